//! `triscope perf`: events of the Linux kernel.

mod list;
mod stat;
mod trace;

use crate::failure::{Failure, Result};
use std::process::{Child, Command as Process};

/// The commands of the group.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    List(list::Args),
    Stat(stat::Args),
    Trace(trace::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result {
        match self {
            Self::List(args) => list::run(&args),
            Self::Stat(args) => stat::run(&args),
            Self::Trace(args) => trace::run(&args),
        }
    }
}

/// A refusal of the kernel, for the user.
pub(crate) fn failure(error: perf_monitor::Error) -> Failure {
    Failure::Message(error.to_string())
}

/// Whom to watch.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Whom {
    /// A process or thread that runs already, by its identifier; may be given several times
    #[arg(short, long, value_name = "PID")]
    pid: Vec<u32>,
    /// Everything on all CPUs
    #[arg(short = 'a', long)]
    all_cpus: bool,
    /// A command to start; what it starts is watched too
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Starts a command. Events of this thread that are inherited and enabled by `execve(2)` begin
/// with its first instruction.
pub(crate) fn start(command: &[String]) -> Result<Child> {
    let (program, args) = command.split_first().ok_or(Failure::Message("no command".into()))?;
    Process::new(program).args(args).spawn().map_err(|error| Failure::about(program, error))
}

/// All threads of the processes with these identifiers; of a thread, the thread itself.
fn threads(pids: &[u32]) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for pid in pids {
        let dir = format!("/proc/{pid}/task");
        let entries = std::fs::read_dir(&dir)
            .map_err(|_| Failure::Message(format!("there is no process {pid}")))?;
        let tids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        all.extend(tids);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}
