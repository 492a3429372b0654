//! What is recorded: a command that is started, or a process that runs.

use super::{Args, ROUND, now};
use crate::failure::{Failure, Result};
use crate::run::child::{self, Launched};
use crate::run::port::Port;
use crate::run::procfs::{is_running, thread_group};
use crate::run::stop::Until;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Instant;
use trace_export::Timestamp;

pub(super) struct Subject {
    /// Its process identifier.
    pub(super) pid: u32,
    /// The words of its command line.
    words: Vec<String>,
    /// From when it is recorded.
    pub(super) begin: Timestamp,
    how: How,
}

enum How {
    Started { launched: Launched, deadline: Option<Instant>, status: Option<ExitStatus> },
    Attached { until: Until },
}

/// Which process is to be recorded; nothing for a command.
pub(super) fn process(args: &Args) -> Result<Option<u32>> {
    let usage = |what| Err(Failure::new(what).with_code(2));
    let pid = match (args.pid, args.dotnet.flatten()) {
        (Some(a), Some(b)) if a != b => return usage("one process at a time can be recorded"),
        (a, b) => a.or(b),
    };
    match (pid, args.command.is_empty()) {
        (None, true) => usage("what is to be recorded? A command, or a process: --pid PID"),
        (Some(_), false) => usage("either a command is recorded or a process that runs"),
        (Some(pid), true) if thread_group(pid) != Some(pid) || !is_running(pid) => {
            Err(Failure::new(format_args!("there is no process {pid}")))
        }
        (pid, _) => Ok(pid),
    }
}

impl Subject {
    /// Starts the command. Where the timeline is standard output, what the command writes there
    /// goes to standard error.
    pub(super) fn start(
        args: &Args,
        port: Option<&Port>,
        is_stdout_taken: bool,
        clean_up: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let begin = now();
        let prepare = |command: &mut Command| {
            command.envs(port.map(Port::variable));
            if is_stdout_taken {
                command.stdout(std::io::stderr());
            }
        };
        let launched = Launched::start(&args.command, prepare, clean_up)?;
        let deadline = args.seconds.and_then(|s| Instant::now().checked_add(s));
        let pid = launched.id();
        let how = How::Started { launched, deadline, status: None };
        Ok(Self { pid, words: args.command.clone(), begin, how })
    }

    /// Watches a process that runs.
    pub(super) fn attach(
        args: &Args,
        pid: u32,
        clean_up: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let until = Until::new(args.seconds, &[pid], clean_up)?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let words = line.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
        Ok(Self { pid, words, begin: now(), how: How::Attached { until } })
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

    /// Waits for a moment, unless the recording is over.
    pub(super) fn is_over(&mut self) -> Result<bool> {
        match &mut self.how {
            How::Attached { until } => Ok(until.wait(ROUND)),
            How::Started { launched, deadline, status } => {
                *status = launched.try_wait()?;
                if status.is_none() {
                    if deadline.is_some_and(|at| Instant::now() >= at) {
                        *deadline = None;
                        launched.terminate();
                    }
                    std::thread::sleep(ROUND);
                }
                Ok(status.is_some())
            }
        }
    }

    /// How the recording has ended.
    pub(super) fn end(&self) -> String {
        match &self.how {
            How::Started { status: Some(status), .. } => status.to_string(),
            How::Attached { .. } if !is_running(self.pid) => "its end".to_owned(),
            _ => "the end of the recording".to_owned(),
        }
    }

    /// What a command has come to.
    pub(super) fn outcome(&self) -> Result {
        match &self.how {
            How::Started { status: Some(status), .. } => child::outcome(*status),
            _ => Ok(()),
        }
    }
}
