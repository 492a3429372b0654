//! What is counted or recorded until it ends: a command, running processes, or everything.

use super::child::{self, Launched};
use super::procfs::is_running;
use super::stop::Listener;
use crate::failure::{Failure, Result};
use crossbeam_channel::{Receiver, after, bounded, never, select, tick};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// How often the processes that are watched are looked at: nothing reports the end of a process
/// that is not a child on every kernel (pidfd_open(2) came with Linux 5.3).
const LOOK: Duration = Duration::from_millis(100);

/// Waits for the end: of the command, of the processes, of the time, or by a signal.
pub(crate) struct Watch {
    subject: Subject,
    /// The time is over.
    deadline: Receiver<Instant>,
}

enum Subject {
    Command {
        launched: Launched,
        status: Option<ExitStatus>,
    },
    /// Processes; none if everything is watched.
    Running {
        pids: Vec<u32>,
        look: Receiver<Instant>,
        /// A signal asks for the end.
        stopped: Receiver<()>,
        _listener: Listener,
    },
}

impl Watch {
    /// Starts a command, which gets SIGTERM when the time is over.
    pub(crate) fn command(
        command: &[String],
        time: Option<Duration>,
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let launched = Launched::start(command, prepare)?;
        Ok(Self { subject: Subject::Command { launched, status: None }, deadline: timer(time) })
    }

    /// Watches processes until all have ended, or everything if there are none.
    pub(crate) fn running(pids: &[u32], time: Option<Duration>) -> Result<Self> {
        let (stop, stopped) = bounded(1);
        let listener = Listener::stop(move || {
            let _ = stop.send(()); // the watch may be over already
        })?;
        let look = if pids.is_empty() { never() } else { tick(LOOK) };
        let pids = pids.to_vec();
        let subject = Subject::Running { pids, look, stopped, _listener: listener };
        Ok(Self { subject, deadline: timer(time) })
    }

    /// The process identifier of the command.
    pub(crate) fn command_pid(&self) -> Option<u32> {
        match &self.subject {
            Subject::Command { launched, .. } => Some(launched.id()),
            Subject::Running { .. } => None,
        }
    }

    /// Waits for the next round, or for the end: says whether that was the end.
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
            Subject::Running { pids, look, stopped, .. } => loop {
                select! {
                    recv(stopped) -> _ => return Ok(true),
                    recv(deadline) -> _ => return Ok(true),
                    recv(look) -> _ => {
                        if !pids.iter().any(|pid| is_running(*pid)) {
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

    /// How the command has ended.
    pub(crate) const fn status(&self) -> Option<ExitStatus> {
        match &self.subject {
            Subject::Command { status, .. } => *status,
            Subject::Running { .. } => None,
        }
    }

    /// The result of this program when all went well: that of the command, if there is one.
    pub(crate) fn outcome(&self) -> Result {
        match &self.subject {
            Subject::Command { status: Some(status), .. } => child::outcome(*status),
            Subject::Command { .. } => Err(Failure::new("the command has not ended")),
            Subject::Running { .. } => Ok(()),
        }
    }
}

/// Ready when the time is over, if there is a limit.
pub(crate) fn timer(time: Option<Duration>) -> Receiver<Instant> {
    time.map_or_else(never, after)
}
