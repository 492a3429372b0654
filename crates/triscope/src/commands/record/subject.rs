//! The subject of a recording: a started command, or a running process.

use super::Args;
use crate::failure::{Failure, Result};
use crate::run::child::output_to_stderr;
use crate::run::port::Port;
use crate::run::procfs::{command_line, is_running, thread_group};
use crate::run::stop::Beginning;
use crate::run::target::no_process;
use crate::run::watch::Watch;
use crate::timeline::now;
use std::path::Path;
use std::process::Command;
use trace_export::Timestamp;

pub(super) struct Subject {
    /// Its process id.
    pub(super) pid: u32,
    /// The arguments of its command line.
    words: Vec<String>,
    /// Start of the recording.
    pub(super) begin: Timestamp,
    /// Waits for the end of the recording.
    pub(super) watch: Watch,
}

/// The process to record; `None` for a command.
pub(super) fn process(args: &Args) -> Result<Option<u32>> {
    let usage = |what| Err(Failure::new(what).with_code(2));
    let pid = match (args.process.id(), args.dotnet.flatten()) {
        (Some(a), Some(b)) if a != b => return usage("--pid and --dotnet name two processes"),
        _ => args.running(),
    };
    match (pid, args.command.is_empty()) {
        (None, true) => usage("nothing to record: pass a COMMAND, --pid PID or --name NAME"),
        (Some(_), false) => usage("pass either a COMMAND or a running process, not both"),
        (Some(pid), true) if thread_group(pid) != Some(pid) || !is_running(pid) => {
            Err(no_process(pid))
        }
        (pid, _) => Ok(pid),
    }
}

impl Subject {
    /// Starts the command. If the timeline goes to standard output, the command's standard output
    /// is redirected to standard error.
    pub(super) fn start(
        args: &Args,
        port: Option<&Port>,
        is_stdout_taken: bool,
        beginning: &Beginning,
    ) -> Result<Self> {
        let begin = now().map_err(Failure::new)?;
        let prepare = |command: &mut Command| {
            command.envs(port.map(Port::variable));
            if is_stdout_taken {
                output_to_stderr(command);
            }
            beginning.end();
        };
        // The recorder ends it: its Go trace has to be complete before.
        let watch = Watch::command(&args.command, None, prepare)?;
        let pid = watch.command_pid().unwrap_or_default();
        Ok(Self { pid, words: args.command.clone(), begin, watch })
    }

    /// Watches a running process.
    pub(super) fn attach(args: &Args, pid: u32, beginning: &Beginning) -> Result<Self> {
        // A process that has ended has no command line.
        let words = command_line(pid);
        let watch = Watch::running(&[pid], args.seconds)?;
        beginning.end();
        let begin = now().map_err(Failure::new)?;
        Ok(Self { pid, words, begin, watch })
    }

    /// The command line.
    pub(super) fn line(&self) -> String {
        self.words.join(" ")
    }

    /// The program's name.
    pub(super) fn name(&self) -> String {
        let program = self.words.first().map_or("", String::as_str);
        Path::new(program).file_name().map_or(program.into(), |n| n.to_string_lossy().into_owned())
    }

    /// How the recording ended.
    pub(super) fn end(&self) -> String {
        match self.watch.status() {
            Some(status) => status.to_string(),
            None if !is_running(self.pid) => "its end".to_owned(),
            None => "the end of the recording".to_owned(),
        }
    }
}
