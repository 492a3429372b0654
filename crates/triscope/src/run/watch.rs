//! The subject of a count or recording: a command, running processes, or the whole system.

use super::child::{self, Launched};
use super::process::Process;
use super::stop::Listener;
use crate::failure::{Failure, Result};
use crossbeam_channel::{Receiver, after, bounded, never, select, tick};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Printed when the recording of a command has failed.
pub(crate) const COMMAND_CONTINUES: &str =
    "triscope: the command continues, and is not recorded any more";

/// Poll interval of running processes: not every kernel reports the exit of a process that is not a
/// child (pidfd_open(2) came with Linux 5.3).
const LOOK: Duration = Duration::from_millis(100);

/// Waits for the end: of the command, of the processes, of the time limit, or by a signal.
pub(crate) struct Watch {
    subject: Subject,
    /// Ready at the time limit.
    deadline: Receiver<Instant>,
}

enum Subject {
    Command {
        launched: Launched,
        status: Option<ExitStatus>,
    },
    /// Processes; empty if the whole system is monitored.
    Running {
        processes: Vec<Process>,
        look: Receiver<Instant>,
        /// Ready when a signal requests the end.
        stopped: Receiver<()>,
        _listener: Listener,
    },
}

impl Watch {
    /// Starts a command, which gets SIGTERM at the time limit.
    pub(crate) fn command(
        command: &[String],
        time: Option<Duration>,
        prepare: impl Fn(&mut Command),
    ) -> Result<Self> {
        Ok(Self::of(Launched::start(command, prepare)?, time))
    }

    /// As [`command`](Self::command), without a time limit. Each thread that supervises the command calls `begin`
    /// first.
    pub(crate) fn command_by(
        command: &[String],
        prepare: impl Fn(&mut Command),
        begin: fn(),
    ) -> Result<Self> {
        Ok(Self::of(Launched::start_by(command, prepare, begin)?, None))
    }

    /// As [`command`](Self::command), but the process is stopped before it executes the command.
    pub(crate) fn stopped_command(
        command: &[String],
        time: Option<Duration>,
        prepare: impl Fn(&mut Command),
    ) -> Result<Self> {
        Ok(Self::of(Launched::start_stopped(command, prepare)?, time))
    }

    fn of(launched: Launched, time: Option<Duration>) -> Self {
        Self { subject: Subject::Command { launched, status: None }, deadline: timer(time) }
    }

    /// Starts a command that is stopped. An error if a signal came before.
    pub(crate) fn resume(&self) -> Result {
        match &self.subject {
            Subject::Command { launched, .. } => launched.resume(),
            Subject::Running { .. } => Ok(()),
        }
    }

    /// Monitors processes until all have ended, or the whole system if there are none.
    pub(crate) fn running(pids: &[u32], time: Option<Duration>) -> Result<Self> {
        let (stop, stopped) = bounded(1);
        let listener = Listener::stop(move || {
            let _ = stop.send(()); // the watch may have ended
        })?;
        let look = if pids.is_empty() { never() } else { tick(LOOK) };
        let processes = pids.iter().copied().map(Process::read).collect();
        let subject = Subject::Running { processes, look, stopped, _listener: listener };
        Ok(Self { subject, deadline: timer(time) })
    }

    /// The process id of the command.
    pub(crate) fn command_pid(&self) -> Option<u32> {
        match &self.subject {
            Subject::Command { launched, .. } => Some(launched.id()),
            Subject::Running { .. } => None,
        }
    }

    /// Whether a signal has asked to end the command.
    pub(crate) fn is_interrupted(&self) -> bool {
        match &self.subject {
            Subject::Command { launched, .. } => launched.is_interrupted(),
            Subject::Running { .. } => false,
        }
    }

    /// Sends SIGTERM to the command.
    pub(crate) fn terminate(&self) {
        if let Subject::Command { launched, .. } = &self.subject {
            launched.terminate();
        }
    }

    /// Waits for the next round, or for the end. Returns whether it was the end.
    pub(crate) fn wait(&mut self, round: &Receiver<Instant>) -> Result<bool> {
        let Self { subject, deadline } = self;
        match subject {
            Subject::Command { launched, status } => loop {
                select! {
                    recv(launched.exited()) -> _ => {
                        *status = launched.status()?;
                        return Ok(true);
                    }
                    recv(deadline) -> _ => {
                        launched.terminate();
                        *deadline = never();
                    }
                    recv(round) -> _ => return Ok(false),
                }
            },
            Subject::Running { processes, look, stopped, .. } => loop {
                select! {
                    recv(stopped) -> _ => return Ok(true),
                    recv(deadline) -> _ => return Ok(true),
                    recv(look) -> _ => {
                        if !processes.iter().any(Process::is_running) {
                            return Ok(true);
                        }
                    }
                    recv(round) -> _ => return Ok(false),
                }
            },
        }
    }

    /// Waits for the end.
    pub(crate) fn wait_for_end(&mut self) -> Result {
        while !self.wait(&never())? {}
        Ok(())
    }

    /// Returns the result of a recording, and first supervises a command that still runs to its end: the end of
    /// a recording, or its failure, is no reason to end the command. The failure is printed at once.
    ///
    /// This is for each failure from the start of the command on, also before anything was recorded: the command may
    /// have done a part of its work. What can fail before is done before the command is started.
    pub(crate) fn see_out<T>(&mut self, recorded: Result<T>) -> Result<T> {
        if let Subject::Command { launched, status } = &mut self.subject {
            if status.is_none() {
                *status = launched.status()?;
            }
        }
        if !matches!(self.subject, Subject::Command { status: None, .. }) {
            return recorded;
        }
        let recorded = recorded.map_err(|failure| {
            failure.print();
            failure.printed()
        });
        message!("{COMMAND_CONTINUES}");
        self.wait_for_end()?;
        recorded
    }

    /// Sets the time limit of a command, which gets SIGTERM then.
    pub(crate) fn limit(&mut self, time: Option<Duration>) {
        self.deadline = timer(time);
    }

    /// The exit status of the command.
    pub(crate) const fn status(&self) -> Option<ExitStatus> {
        match &self.subject {
            Subject::Command { status, .. } => *status,
            Subject::Running { .. } => None,
        }
    }

    /// The result of this program after a successful run: that of the command, if there is one.
    pub(crate) fn outcome(&self) -> Result {
        match &self.subject {
            Subject::Command { status: Some(status), .. } => child::outcome(*status),
            Subject::Command { .. } => Err(Failure::new("the command has not ended")),
            Subject::Running { .. } => Ok(()),
        }
    }
}

/// Ready at the time limit, if there is one.
pub(crate) fn timer(time: Option<Duration>) -> Receiver<Instant> {
    time.map_or_else(never, after)
}
