//! The processes and threads that a command monitors.

use super::named::process_named;
use super::procfs::threads_of;
use crate::failure::{Failure, Result};
use crate::sources::kernel::events::Cpus;
use clap::ArgGroup;
use perf_monitor::OpenErrorReason;

/// Running processes.
#[derive(clap::Args)]
pub(crate) struct Processes {
    /// Running processes or threads, separated by commas, and their future children
    #[arg(short, long, value_name = "PID", value_delimiter = ',', group = "target")]
    pid: Vec<u32>,
    /// The running process with this name, if there is only one
    #[arg(short, long, value_name = "NAME", value_parser = process_named, group = "target",
          conflicts_with = "pid")]
    name: Option<u32>,
}

impl Processes {
    /// Their ids.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.pid.iter().copied().chain(self.name).collect()
    }

    /// Whether none was specified.
    pub(crate) fn is_empty(&self) -> bool {
        self.pid.is_empty() && self.name.is_none()
    }
}

/// A running process.
#[derive(Clone, clap::Args)]
#[group(multiple = false)]
pub(crate) struct Process {
    /// A running process, and its future children
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// The running process with this name, if there is only one
    #[arg(short, long, value_name = "NAME", value_parser = process_named)]
    name: Option<u32>,
}

impl Process {
    /// Its id, if one was specified.
    pub(crate) fn id(&self) -> Option<u32> {
        self.pid.or(self.name)
    }
}

/// The options of a [`Target`], of which a command needs at least one.
pub(crate) fn required() -> ArgGroup {
    ArgGroup::new("target").required(true).multiple(true)
}

/// The end of a help that says what each level of `kernel.perf_event_paranoid` permits: the other levels, and
/// the privileges at which it does not matter. Source: `perf_event_open(2)`.
macro_rules! privileges {
    () => {
        "\
All CPUs (-a, -C) need 0 or less, and samples of most tracepoints -1. Everything else, and all of it
at higher levels, needs root or CAP_PERFMON (at level 3 and above CAP_SYS_ADMIN)."
    };
}
pub(crate) use privileges;

/// The processes, threads or CPUs to monitor. Commands have [`required`] as a group.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Target {
    #[command(flatten)]
    processes: Processes,
    /// Everything, on all CPUs; with a COMMAND, while it runs
    #[arg(short = 'a', long, group = "target", conflicts_with = "Processes")]
    pub(crate) all_cpus: bool,
    /// Everything, on these CPUs: 0,2-3; with a COMMAND, while it runs
    #[arg(short = 'C', long, value_name = "CPUS", group = "target", conflicts_with = "Processes")]
    pub(crate) cpu: Option<Cpus>,
    /// A command to start, with its arguments; its children are included
    #[arg(
        trailing_var_arg = true,
        value_name = "COMMAND",
        group = "target",
        conflicts_with = "Processes"
    )]
    pub(crate) command: Vec<String>,
}

impl Target {
    /// The ids of the running processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.ids()
    }

    /// The running processes in words: `process 1, 2`.
    pub(crate) fn in_words(&self) -> String {
        let pids: Vec<String> = self.pids().iter().map(u32::to_string).collect();
        format!("process {}", pids.join(", "))
    }

    /// Whether CPUs are monitored rather than tasks.
    pub(crate) const fn is_system_wide(&self) -> bool {
        self.all_cpus || self.cpu.is_some()
    }

    /// The CPUs that are named. One that is not online is an error.
    pub(crate) fn cpus(&self) -> Result<Option<Cpus>> {
        self.cpu.as_ref().map_or(Ok(()), Cpus::check)?;
        Ok(self.cpu.clone())
    }

    /// Whether the command inherits its events, which start with its first instruction.
    pub(crate) fn starts_on_exec(&self) -> bool {
        !self.command.is_empty() && !self.is_system_wide()
    }
}

/// All threads of the processes with these ids; for a thread id, only that thread.
pub(crate) fn threads(pids: &[u32]) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for &pid in pids {
        all.extend(threads_of(pid).ok_or_else(|| no_process(pid))?);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Opens an item for each thread. Skips threads that have ended, unless all have.
pub(crate) fn of_living<T>(
    tids: &[u32],
    mut open: impl FnMut(u32) -> perf_monitor::Result<T>,
) -> perf_monitor::Result<Vec<T>> {
    let mut opened = Vec::new();
    let mut ended = None;
    for &tid in tids {
        match open(tid) {
            Ok(one) => opened.push(one),
            Err(error) if matches!(error.reason(), Some(OpenErrorReason::NoSuchThread(_))) => {
                ended = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match ended {
        Some(error) if opened.is_empty() => Err(error),
        _ => Ok(opened),
    }
}

/// The failure for a process that does not exist.
pub(crate) fn no_process(pid: u32) -> Failure {
    Failure::new(format_args!("there is no process {pid}"))
}
