//! The runtimes of processes, recorded beside the kernel.
//!
//! A thread of its own finds them: it keeps the capabilities that this needs. Threads that it starts wait for the
//! runtimes, so that one that hangs does not keep the others from being recorded. What is recorded is in `DIR/sources`:
//!
//! ```text
//! dotnet-PID-START.nettrace        a session, in progress or ended
//! go-PID-START-FIRST-LAST.trace    a generation of a session of a Go program: a trace by itself
//! ```

mod dotnet;
mod dotnet_trace;
mod dotnet_watch;
mod go;
mod go_pull;
mod go_watch;
mod left;
mod masked;

use super::inbox::Outbox;
use super::threads;
use super::trigger::{DotnetTrigger, GoTrigger, Trigger};
use crate::failure::Result;
use crate::io::place::Place;
use crate::io::private;
use crate::run::family::Family;
use crate::timeline::{counted, now};
use crossbeam_channel::{Receiver, Sender, at, bounded, never, select, unbounded};
use perf_monitor::NiceThread;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trace_flight::{Source, Timestamp, Window};

pub(super) use go_pull::overtaken;
pub(super) use left::{clear, left, put_aside, shrink};

/// Interval between looks at the processes.
const LOOK: Duration = Duration::from_millis(500);

/// Processes of each kind that are recorded at once.
const MAX_PROCESSES: usize = 64;

/// Processes without a recording that a manifest names.
const MAX_NAMED: usize = 16;

/// Why what was recorded in the time that is kept is not there.
const NO_SPACE: &str = "it was removed, as its share of --disk is used up";

/// Time limit of a dump for what a program has not sent yet: the generations of a Go trace take a
/// second or two.
const PENDING_TIMEOUT: Duration = Duration::from_secs(4);

/// Time limit of a dump for the sessions that follow its own.
const FOLLOWING_TIMEOUT: Duration = Duration::from_secs(2);

/// What a dump gets one after the other. To read the memory of many programs takes a while.
pub(super) const REPLIES: [&str; 2] =
    ["Go and .NET", "the flight recorders of Go programs that send no trace"];

/// What is recorded.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) dotnet: bool,
    pub(super) go: bool,
    pub(super) triggers: Vec<Trigger>,
    /// Whether the command lines of programs are kept.
    pub(super) command_lines: bool,
    /// Bytes of all files.
    pub(super) bytes: u64,
    /// How long it is kept.
    pub(super) keep: Duration,
    /// Only this process and its descendants.
    pub(super) pid: Option<u32>,
}

impl Wanted {
    fn dotnet_triggers(&self) -> Vec<DotnetTrigger> {
        let of = |trigger: &Trigger| match trigger {
            Trigger::Dotnet(trigger) => Some(trigger.clone()),
            _ => None,
        };
        self.triggers.iter().filter_map(of).collect()
    }

    /// Whether the .NET sessions of these settings are those of other ones: they continue.
    pub(super) fn keeps_dotnet(&self, before: &Self) -> bool {
        self.dotnet
            && before.dotnet
            && self.dotnet_triggers() == before.dotnet_triggers()
            && self.command_lines == before.command_lines
    }

    /// Whether the Go traces of these settings are those of other ones: they continue.
    pub(super) fn keeps_go(&self, before: &Self) -> bool {
        self.go && before.go && self.go_triggers() == before.go_triggers()
    }

    fn go_triggers(&self) -> Vec<GoTrigger> {
        let of = |trigger: &Trigger| match trigger {
            Trigger::Go(trigger) => Some(trigger.clone()),
            _ => None,
        };
        self.triggers.iter().filter_map(of).collect()
    }
}

/// Numbers of the recorder.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// Bytes of the files.
    pub(super) bytes: AtomicU64,
    /// Processes that are recorded.
    pub(super) processes: AtomicU64,
    /// The start of the window that is open: a dump needs what came since.
    open: Mutex<Option<Timestamp>>,
}

enum Ask {
    /// What a dump needs of each source: these are the [`REPLIES`].
    Collect(Window, Sender<Vec<Collected>>),
    /// Other settings.
    Change(Box<Wanted>),
}

/// The thread that records.
pub(super) struct Sources {
    ask: Option<Sender<Ask>>,
    thread: Option<JoinHandle<()>>,
    pub(super) usage: Arc<Usage>,
}

impl Sources {
    /// Starts the thread. `privileges` drops the privileges that it does not need.
    pub(super) fn start(
        dir: Place,
        wanted: Wanted,
        outbox: &Outbox,
        privileges: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let (ask, asked) = unbounded();
        let usage = Arc::new(Usage::default());
        let (outbox, shared) = (outbox.clone(), Arc::clone(&usage));
        let thread = threads::start("the sources", move || {
            let _nice = NiceThread::begin(0).ok();
            privileges();
            let mut worker = Worker::new(dir, wanted, outbox, shared);
            worker.run(&asked);
        })?;
        Ok(Self { ask: Some(ask), thread: Some(thread), usage })
    }

    /// Requests what a dump needs. The [`REPLIES`] come soon.
    pub(super) fn collect(&self, window: &Window) -> Receiver<Vec<Collected>> {
        let (reply, collected) = bounded(REPLIES.len());
        if let Some(ask) = &self.ask {
            let _ = ask.send(Ask::Collect(window.clone(), reply)); // the thread may have failed
        }
        collected
    }

    /// Keeps what came since the start of the window that is open, within the space.
    pub(super) fn keep(&self, window: Option<&Window>) {
        let mut open = self.usage.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open = window.map(|window| window.start);
    }

    pub(super) fn change(&self, wanted: Wanted) {
        if let Some(ask) = &self.ask {
            let _ = ask.send(Ask::Change(Box::new(wanted))); // the thread may have failed
        }
    }
}

impl Drop for Sources {
    /// Ends all sessions: a program must not continue tracing.
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a failure was printed
        }
    }
}

/// The part of a source in a dump. Its file is removed if no dump takes it: nothing else would, and it counts in no
/// budget.
pub(super) struct Collected {
    pub(super) source: Source,
    part: Part,
}

#[derive(Default)]
enum Part {
    /// There is none.
    #[default]
    Missing,
    /// A session that was requested to end.
    Dotnet(dotnet_trace::Trace),
    /// Generations, of which more may come.
    Go(go_pull::Part),
    /// A file that is complete.
    File(Place),
}

impl Collected {
    pub(super) fn missing(mut source: Source, why: impl Into<String>) -> Self {
        source.missing = Some(why.into());
        Self { source, part: Part::Missing }
    }

    /// Puts the file of the source into the directory of a dump that began to wait for its sources at this time.
    pub(super) fn write(self, window: &Window, dir: &Path, begun: Instant) -> Source {
        let mut source = self.source.clone();
        self.write_to(window, dir, begun).unwrap_or_else(|error| {
            source.missing = Some(error.to_string());
            source
        })
    }

    fn write_to(mut self, window: &Window, dir: &Path, begun: Instant) -> io::Result<Source> {
        let mut source = self.source.clone();
        let pid = source.pid.unwrap_or_default();
        match std::mem::take(&mut self.part) {
            Part::Missing => return Ok(source),
            Part::Dotnet(trace) => {
                let (path, until, failure) = trace.finish();
                // A process before can have had its id.
                let to = private::numbered(dir, &format!("dotnet-{pid}"), "nettrace");
                put(path.path(), &to)?;
                (source.file, source.end) = (file_name(&to), Some(until));
                // It says why.
                source.missing = failure.or(source.missing);
            }
            Part::Go(part) => {
                let path = private::numbered(dir, &format!("go-{pid}"), "trace");
                let timeout = PENDING_TIMEOUT.saturating_sub(begun.elapsed());
                let covered = part.write(window, &path, timeout)?;
                match covered {
                    Some((from, until)) => {
                        source.file = file_name(&path);
                        (source.start, source.end) = (Some(from), Some(until));
                        source.missing = source.missing.or_else(|| part.gap(window, from, until));
                    }
                    None => source.missing = Some(part.why_none(window)),
                }
            }
            Part::File(path) => {
                let to = private::numbered(dir, &format!("{}-{pid}", source.kind), "trace");
                put(path.path(), &to)?;
                source.file = file_name(&to);
            }
        }
        Ok(source)
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        match &self.part {
            Part::Dotnet(trace) => trace.abandon(),
            Part::File(path) => drop(fs::remove_file(path)), // it may be gone
            // Generations are still in their budget.
            Part::Go(_) | Part::Missing => {}
        }
    }
}

fn file_name(path: &Path) -> Option<String> {
    path.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// Moves a file to a directory of the same file system, and synchronises it. One that cannot be moved is removed.
fn put(from: &Path, to: &Path) -> io::Result<()> {
    let moved = fs::set_permissions(from, fs::Permissions::from_mode(private::FILE))
        .and_then(|()| fs::rename(from, to));
    if let Err(error) = moved {
        let _ = fs::remove_file(from); // the first error says why
        return Err(error);
    }
    fs::File::open(to)?.sync_all()
}

/// A dump that waits for its sources.
struct Pending {
    window: Window,
    reply: Sender<Vec<Collected>>,
    /// Until then it waits for the sessions that follow, once they were requested.
    until: Option<Instant>,
}

struct Worker {
    wanted: Wanted,
    outbox: Outbox,
    usage: Arc<Usage>,
    dir: Place,
    family: Option<Family>,
    dotnet: Option<dotnet::Runtimes>,
    go: Option<go::Programs>,
    pending: VecDeque<Pending>,
}

impl Worker {
    fn new(dir: Place, wanted: Wanted, outbox: Outbox, usage: Arc<Usage>) -> Self {
        let family = wanted.pid.map(Family::new);
        let pending = VecDeque::new();
        let mut this = Self { wanted, outbox, usage, dir, family, dotnet: None, go: None, pending };
        this.open();
        this
    }

    /// Opens the sources that are wanted and not open.
    fn open(&mut self) {
        let Self { wanted, outbox, dir, .. } = self;
        if wanted.dotnet && self.dotnet.is_none() {
            let triggers = wanted.dotnet_triggers();
            self.dotnet =
                Some(dotnet::Runtimes::new(&*dir, triggers, wanted.command_lines, outbox));
        }
        if wanted.go && self.go.is_none() {
            self.go = Some(go::Programs::new(&*dir, wanted.go_triggers(), outbox));
        }
    }

    /// Changes the settings. A source continues if it is wanted with the same settings.
    fn change(&mut self, wanted: Wanted) {
        let before = std::mem::replace(&mut self.wanted, wanted);
        let keeps_dotnet = self.wanted.keeps_dotnet(&before);
        let keeps_go = self.wanted.keeps_go(&before);
        if (self.dotnet.is_some() && !keeps_dotnet) || (self.go.is_some() && !keeps_go) {
            // Dumps that wait need what is closed.
            while let Some(first) = self.pending.pop_front() {
                self.send(first);
            }
        }
        if let Some(dotnet) = self.dotnet.take_if(|_| !keeps_dotnet) {
            dotnet.abandon();
        }
        if !keeps_go {
            self.close_go();
        }
        self.open();
    }

    fn run(&mut self, asked: &Receiver<Ask>) {
        let mut looked = Instant::now();
        self.look_after(asked);
        loop {
            let look = looked + LOOK;
            let until = self.pending.front().and_then(|first| first.until);
            let due = until.map_or(look, |until| until.min(look));
            let settled = self.dotnet.as_ref().map(dotnet::Runtimes::settled);
            let settled = settled.cloned().unwrap_or_else(never);
            select! {
                recv(asked) -> ask => match ask {
                    Ok(ask) => self.take(ask),
                    Err(_) => return self.close(),
                },
                recv(settled) -> settled => {
                    if let (Some(dotnet), Ok(settled)) = (&mut self.dotnet, settled) {
                        dotnet.settle(settled);
                    }
                }
                recv(at(due)) -> _ => {}
            }
            self.reply();
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.look_after(asked);
            }
        }
    }

    fn take(&mut self, ask: Ask) {
        match ask {
            Ask::Collect(window, reply) => {
                self.pending.push_back(Pending { window, reply, until: None });
            }
            Ask::Change(wanted) => self.change(*wanted),
        }
    }

    /// Looks at the processes after the requests that have come: what these need is not evicted.
    fn look_after(&mut self, asked: &Receiver<Ask>) {
        while let Ok(ask) = asked.try_recv() {
            self.take(ask);
        }
        self.reply();
        self.look();
    }

    /// Collects what dumps need, one after the other: a session that follows that of one dump is for the next one.
    fn reply(&mut self) {
        while let Some(first) = self.pending.front_mut() {
            let until = *first.until.get_or_insert_with(|| {
                if let Some(dotnet) = &mut self.dotnet {
                    dotnet.prepare();
                }
                Instant::now() + FOLLOWING_TIMEOUT
            });
            let is_prepared = self.dotnet.as_ref().is_none_or(dotnet::Runtimes::is_prepared);
            if !is_prepared && Instant::now() < until {
                return;
            }
            let Some(first) = self.pending.pop_front() else { return };
            self.send(first);
        }
    }

    /// Collects what a dump needs of what is there.
    fn send(&mut self, Pending { window, reply, .. }: Pending) {
        // The dump waits for Go first: what comes meanwhile is not kept for long.
        let (sent, others) = self.go.as_ref().map(|go| go.collect(&window)).unzip();
        let mut recorded = sent.unwrap_or_default();
        if let Some(dotnet) = &mut self.dotnet {
            recorded.append(&mut dotnet.collect(&window));
        }
        if reply.send(recorded).is_err() {
            return; // the dump has failed
        }
        let others = self.go.as_mut().zip(others);
        let others = others.map_or_else(Vec::new, |(go, others)| go.others(&window, &others));
        let _ = reply.send(others); // the dump may have failed
    }

    fn look(&mut self) {
        let processes: BTreeSet<u32> = match &mut self.family {
            Some(family) => family.look(),
            None => perf_monitor::processes().into_iter().collect(),
        };
        let (bytes, earliest) = (self.wanted.bytes, self.earliest());
        let sources = u64::from(self.dotnet.is_some()) + u64::from(self.go.is_some());
        let share = bytes / sources.max(1);
        let (mut used, mut recorded) = (0, 0);
        if let Some(dotnet) = &mut self.dotnet {
            dotnet.look(&processes, share, earliest);
            used += dotnet.bytes();
            recorded += dotnet.recorded();
        }
        if let Some(go) = &mut self.go {
            go.look(&processes, share, earliest);
            used += go.bytes();
            recorded += go.recorded();
        }
        self.usage.bytes.store(used, Ordering::Relaxed);
        self.usage.processes.store(recorded as u64, Ordering::Relaxed);
    }

    /// The earliest time of what is kept: a look takes a while, and may remove nothing more.
    fn earliest(&self) -> Timestamp {
        let kept = now().unwrap_or(Timestamp::MIN) - self.wanted.keep;
        self.needed().map_or(kept, |first| first.min(kept))
    }

    /// The start of what is needed by the window that is open, and by those that wait for their sources.
    fn needed(&self) -> Option<Timestamp> {
        let open = *self.usage.open.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = self.pending.iter().map(|pending| pending.window.start);
        waiting.chain(open).min()
    }

    fn close(&mut self) {
        self.close_go();
        if let Some(dotnet) = self.dotnet.take() {
            dotnet.close();
        }
    }

    fn close_go(&mut self) {
        if let Some(go) = self.go.take() {
            go.close();
        }
    }
}

/// Whether a part that begins at `from` lacks the begin of a window.
fn late(window: &Window, from: Timestamp) -> Option<String> {
    (from > window.start).then(|| "the time before: its recording had not begun".to_owned())
}

/// Processes without a trace, and why: a few are named, the others are counted.
#[derive(Clone, Debug, Default)]
struct Unrecorded {
    named: BTreeMap<u32, (String, String)>,
    others: BTreeSet<u32>,
}

impl Unrecorded {
    fn add(&mut self, pid: u32, name: &str, why: String) {
        if self.named.len() < MAX_NAMED || self.named.contains_key(&pid) {
            self.named.insert(pid, (name.to_owned(), why));
            self.others.remove(&pid);
        } else {
            self.others.insert(pid);
        }
    }

    fn has(&self, pid: u32) -> bool {
        self.named.contains_key(&pid) || self.others.contains(&pid)
    }

    fn retain(&mut self, processes: &BTreeSet<u32>) {
        self.named.retain(|pid, _| processes.contains(pid));
        self.others.retain(|pid| processes.contains(pid));
    }

    fn remove(&mut self, pid: u32) {
        self.named.remove(&pid);
        self.others.remove(&pid);
    }

    fn collect(&self, kind: &str) -> Vec<Collected> {
        let named = self.named.iter().map(|(pid, (name, why))| {
            Collected::missing(Source::new(kind, *pid, name.clone()), why.clone())
        });
        let others = (!self.others.is_empty()).then(|| {
            let mut source = Source::default();
            let count = counted(self.others.len() as u64, "other process");
            (source.kind, source.name) = (kind.to_owned(), count);
            Collected::missing(source, format!("no trace of them is here: {MAX_NAMED} are named"))
        });
        named.chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_without_a_recording_are_named_or_counted() {
        let mut unrecorded = Unrecorded::default();
        let count = MAX_NAMED as u32 + 3;
        let add = |unrecorded: &mut Unrecorded| {
            (1..=count).for_each(|pid| unrecorded.add(pid, "x", "too many".to_owned()));
        };
        let names = |unrecorded: &Unrecorded| -> Vec<(Option<u32>, String)> {
            let collected = unrecorded.collect("dotnet");
            assert!(collected.iter().all(|one| one.source.missing.is_some()));
            collected.iter().map(|one| (one.source.pid, one.source.name.clone())).collect()
        };
        add(&mut unrecorded);
        add(&mut unrecorded);
        assert!((1..=count).all(|pid| unrecorded.has(pid)));
        let all = names(&unrecorded);
        assert_eq!((all.len(), &all[0]), (MAX_NAMED + 1, &(Some(1), "x".to_owned())));
        assert_eq!(all[MAX_NAMED], (None, "3 other processes".to_owned()));
        // Some of them were recorded.
        let others = unrecorded.collect("dotnet").pop().unwrap();
        let why = others.source.missing.as_deref();
        assert_eq!(why, Some("no trace of them is here: 16 are named"));
        // Two have ended, and one is recorded: there is room for the names of others.
        unrecorded.retain(&(3..=count).collect());
        unrecorded.remove(count);
        assert_eq!(names(&unrecorded)[MAX_NAMED - 2], (None, "2 other processes".to_owned()));
        unrecorded.add(count - 1, "y", "too many".to_owned());
        let all = names(&unrecorded);
        assert_eq!(all[MAX_NAMED - 2], (Some(count - 1), "y".to_owned()));
        assert_eq!(all[MAX_NAMED - 1], (None, "1 other process".to_owned()));
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// A thread that records nothing, and keeps an hour.
    fn worker(dir: &Path) -> Worker {
        let (_inbox, outbox) = crate::commands::flight::inbox::new().unwrap();
        let wanted = Wanted {
            dotnet: false,
            go: false,
            triggers: Vec::new(),
            command_lines: true,
            bytes: 1 << 20,
            keep: HOUR,
            pid: None,
        };
        Worker::new(dir.into(), wanted, outbox, Arc::default())
    }

    fn window(start: Timestamp, end: Timestamp) -> Window {
        Window::new(start, end, trace_flight::Cause::new("signal", "SIGUSR1"))
    }

    /// A window waits while the dump of another one is written.
    #[test]
    fn what_windows_need_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut worker = worker(dir.path());
        let sources = Sources { ask: None, thread: None, usage: Arc::clone(&worker.usage) };
        let begin = now().unwrap();
        let kept = worker.earliest();
        assert!(
            worker.needed().is_none() && (begin - HOUR..=now().unwrap() - HOUR).contains(&kept)
        );
        let before = |hours: u32| window(begin - HOUR * hours, begin);
        sources.keep(Some(&before(2)));
        assert_eq!(worker.needed(), Some(begin - HOUR * 2));
        // However long a look takes.
        assert_eq!(worker.earliest(), begin - HOUR * 2);
        let (reply, _collected) = bounded(REPLIES.len());
        worker.pending.push_back(Pending { window: before(4), reply, until: None });
        assert_eq!(worker.earliest(), begin - HOUR * 4);
        sources.keep(Some(&window(begin, begin)));
        worker.pending.clear();
        assert!(worker.earliest() <= now().unwrap() - HOUR, "as long as wanted");
    }

    /// A look can remove what these need.
    #[test]
    fn requests_that_have_come_are_replied_before_a_look() {
        let dir = tempfile::tempdir().unwrap();
        let mut worker = worker(dir.path());
        let (ask, asked) = unbounded();
        let at = now().unwrap();
        let [one, other] = [1, 2].map(|hours: u32| {
            let (reply, collected) = bounded(REPLIES.len());
            ask.send(Ask::Collect(window(at - HOUR * hours, at), reply)).unwrap();
            collected
        });
        worker.look_after(&asked);
        assert_eq!((one.len(), other.len(), asked.len()), (REPLIES.len(), REPLIES.len(), 0));
    }

    #[test]
    fn a_file_that_no_dump_takes_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("go-1-2.snapshot");
        let collected = || {
            fs::write(&path, "trace").unwrap();
            Collected { source: Source::new("go", 1, "x"), part: Part::File((&path).into()) }
        };
        let cause = trace_flight::Cause::new("signal", "SIGUSR1");
        let window = Window::new(Timestamp::MIN, Timestamp::MAX, cause);
        // The dump has failed: before it asked, and afterwards.
        let (reply, asked) = bounded(1);
        reply.send(vec![collected()]).unwrap();
        drop((asked, reply));
        assert!(!path.exists());
        let source =
            collected().write(&window, &dir.path().join("no such directory"), Instant::now());
        assert!(source.missing.is_some() && source.file.is_none());
        assert!(!path.exists());
        let source = collected().write(&window, dir.path(), Instant::now());
        assert_eq!((source.missing, source.file.as_deref()), (None, Some("go-1.trace")));
        assert!(!path.exists() && dir.path().join("go-1.trace").exists());
    }
}
