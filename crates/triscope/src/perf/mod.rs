//! `triscope perf`: events of the Linux kernel.

mod list;
pub(crate) mod ring;
mod stat;
mod trace;

use crate::failure::{Failure, Result};
use crate::signals::Listener;
use perf_monitor::{Error, Event, Refusal, Tracefs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

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
pub(crate) fn failure(error: Error) -> Failure {
    Failure::new(error)
}

/// The tracefs: one that is mounted, or else one of this process's own.
pub(crate) fn tracefs() -> perf_monitor::Result<Tracefs> {
    match Tracefs::find() {
        // The remedy is to mount it, or to be someone who needs no mount.
        Err(Error::NoTracefs) => Tracefs::detached().map_err(|_| Error::NoTracefs),
        other => other,
    }
}

/// Whether somebody with more privilege would not have been refused this.
pub(crate) fn is_privilege(error: &Error) -> bool {
    match error {
        Error::NoTracefs | Error::File { .. } => true,
        other => {
            let refusal = other.refusal();
            matches!(refusal, Some(Refusal::Privilege { .. } | Refusal::LockedMemory { .. }))
        }
    }
}

/// The event that a description means.
fn event(text: &str) -> perf_monitor::Result<Event> {
    match Event::parse(text) {
        Err(Error::NoTracefs) => Event::parse_in(text, &tracefs()?),
        other => other,
    }
}

/// A number of seconds.
pub(crate) fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|s: f64| Duration::try_from_secs_f64(s).ok());
    seconds.filter(|s| !s.is_zero()).ok_or_else(|| "not a number of seconds above 0".to_owned())
}

/// Whom to watch.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Whom {
    /// A process or thread that runs already, by its identifier, with what it starts from now on;
    /// several are separated by commas
    #[arg(short, long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Everything on all CPUs
    #[arg(short = 'a', long)]
    all_cpus: bool,
    /// A command to start, with its arguments; what it starts is watched, too
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The process that a thread is one of.
///
/// `/proc/TID` is there for every thread, and its `task` has all threads of the process.
pub(crate) fn thread_group(tid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// Whether any thread of a process runs: one that has ended and was not waited for is in `/proc`.
pub(crate) fn is_running(pid: u32) -> bool {
    let ended = |tid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
        // The state is behind the name, which may have anything in it.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        matches!(state, None | Some('Z' | 'X'))
    };
    threads_of(pid).is_some_and(|tids| !tids.iter().all(ended))
}

/// The threads of a process; of a thread that leads none, that thread alone.
fn threads_of(pid: u32) -> Option<Vec<u32>> {
    if thread_group(pid)? != pid {
        return Some(vec![pid]);
    }
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    Some(entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// All threads of the processes with these identifiers; of a thread, the thread itself.
fn threads(pids: &[u32]) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for &pid in pids {
        let threads = threads_of(pid).filter(|threads| !threads.is_empty());
        all.extend(threads.ok_or_else(|| Failure::new(format!("there is no process {pid}")))?);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Opens something for each thread, but those that have ended meanwhile, unless all have.
fn of_living<T>(
    tids: &[u32],
    mut open: impl FnMut(u32) -> perf_monitor::Result<T>,
) -> perf_monitor::Result<Vec<T>> {
    let mut opened = Vec::new();
    let mut ended = None;
    for &tid in tids {
        match open(tid) {
            Ok(one) => opened.push(one),
            Err(error) if matches!(error.refusal(), Some(Refusal::NoSuchThread(_))) => {
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

/// Until when what runs already is watched: a signal, the time, or the end of all of it.
pub(crate) struct Until {
    signals: mpsc::Receiver<i32>,
    _listener: Listener,
    deadline: Option<Instant>,
    /// Whose ends to wait for; empty if nothing ends.
    pids: Vec<u32>,
}

impl Until {
    /// `clean_up` is called before a second signal ends this process.
    pub(crate) fn new(
        seconds: Option<Duration>,
        pids: &[u32],
        clean_up: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let (sender, signals) = mpsc::channel();
        let mut asked = false;
        let listener = Listener::start(move |signal| {
            // The second one does not wait.
            if std::mem::replace(&mut asked, true) {
                clean_up();
                std::process::exit(crate::signals::exit_code(signal).into());
            }
            let _ = sender.send(signal); // whoever waited has gone: it ends already
        })?;
        // What is too far away to be told never comes.
        let deadline = seconds.and_then(|s| Instant::now().checked_add(s));
        Ok(Self { signals, _listener: listener, deadline, pids: pids.to_vec() })
    }

    /// Waits for so long at most, and says whether that was the end.
    pub(crate) fn wait(&self, most: Duration) -> bool {
        let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        match self.signals.recv_timeout(left.map_or(most, |left| left.min(most))) {
            Ok(_) | Err(mpsc::RecvTimeoutError::Disconnected) => return true,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        let over = self.deadline.is_some_and(|at| Instant::now() >= at);
        over || !self.pids.is_empty() && !self.pids.iter().any(|pid| is_running(*pid))
    }
}
