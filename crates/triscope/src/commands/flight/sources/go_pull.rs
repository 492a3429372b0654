//! The trace that a Go program sends all the time, cut into its generations: a file for each.

use super::go_watch::watch;
use super::{NO_SPACE, late};
use crate::commands::flight::inbox::Outbox;
use crate::commands::flight::threads;
use crate::commands::flight::trigger::GoTrigger;
use crate::failure::Failure;
use crate::io::place::Place;
use crate::io::private;
use crate::run::http::BadStatus;
use crate::run::pprof::{self, Listening, Request};
use crate::timeline::now;
use crossbeam_channel::{Receiver, TrySendError, bounded};
use gotrace::{ErrorKind, Generations, Limits};
use std::cell::{Cell, OnceCell};
use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trace_common::ReadErrorKind;
use trace_flight::{Timestamp, Window};

/// Time limit for a connection and the headers of the reply.
const HEADERS: Duration = Duration::from_secs(2);

/// The length of a trace that is requested: after it, the next one is.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Generations that may wait for the reader that looks for triggers: seconds. They are files.
const QUEUE: usize = 8;

/// Time in which what has come is written. A program whose trace is not read waits with it.
const STUCK: Duration = Duration::from_secs(5);

/// Traces that were not read in time.
static OVERTAKEN: AtomicU64 = AtomicU64::new(0);

/// The number of traces that were not read in time: by the reader that looks for triggers, or at all.
pub(in super::super) fn overtaken() -> u64 {
    OVERTAKEN.load(Ordering::Relaxed)
}

/// Bytes of memory that each trace has for the generation that it receives: those of most programs are smaller.
const SHARE: u64 = 4 << 20;

/// What all traces may take beside that. Each could need the limit of a generation.
static RECEIVING: Memory = Memory::new(256 << 20);

/// Generations of a trace that are kept: hours.
const MAX_GENERATIONS: usize = 1 << 14;

/// The space that a file takes is a multiple of this.
const BLOCK: u64 = 4096;

/// Limits of a generation.
pub(super) fn limits() -> Limits {
    /// A generation has a second of the trace: a few megabytes.
    const MAX_GENERATION: usize = 64 << 20;
    Limits { max_buffer: MAX_GENERATION, ..Limits::default() }
}

/// Memory for the generations of several traces.
#[derive(Debug)]
struct Memory {
    used: AtomicU64,
    limit: u64,
}

impl Memory {
    const fn new(limit: u64) -> Self {
        Self { used: AtomicU64::new(0), limit }
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(drop).map_err(|_| {
            let limit = self.limit;
            let why = format!(
                "the generations of all Go programs need more than {limit} bytes of memory"
            );
            io::Error::new(io::ErrorKind::QuotaExceeded, why)
        })
    }
}

/// What a trace has of the memory. The buffer of its reader does not shrink: it has the size of the largest generation.
#[derive(Debug)]
struct Held<'a> {
    memory: &'a Memory,
    /// Bytes that were received and are in the buffer.
    received: Cell<u64>,
    taken: Cell<u64>,
}

impl<'a> Held<'a> {
    const fn new(memory: &'a Memory) -> Self {
        Self { memory, received: Cell::new(0), taken: Cell::new(0) }
    }

    fn receive(&self, bytes: u64) -> io::Result<()> {
        let (received, taken) = (self.received.get() + bytes, self.taken.get());
        self.received.set(received);
        let more = received.saturating_sub(SHARE + taken);
        if more > 0 {
            self.memory.take(more)?;
            self.taken.set(taken + more);
        }
        Ok(())
    }

    /// Bytes are not needed any more.
    fn release(&self, bytes: u64) {
        self.received.set(self.received.get().saturating_sub(bytes));
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.taken.get(), Ordering::Relaxed);
    }
}

/// Why generations are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Age,
    Disk,
    Count,
}

impl Limit {
    fn why(self) -> String {
        match self {
            Self::Age => "it was removed, as it is older than what is kept".to_owned(),
            Self::Disk => NO_SPACE.to_owned(),
            Self::Count => format!("it was removed, as {MAX_GENERATIONS} generations are kept"),
        }
    }
}

/// The last generation that was removed.
#[derive(Clone, Copy, Debug)]
struct Removed {
    /// Its last event.
    last: Timestamp,
    by: Limit,
}

/// What has come of a trace.
#[derive(Debug, Default)]
struct Pulled {
    header: Vec<u8>,
    generations: VecDeque<Arc<Generation>>,
    /// The first event and the last one of all that have come, also of those that were removed.
    span: Option<(Timestamp, Timestamp)>,
    removed: Option<Removed>,
    /// The space that they take.
    bytes: u64,
    /// Of that space, once it is known.
    budget: Option<u64>,
    /// Why nothing more comes, or triggers do not see it.
    failure: Option<String>,
    /// Whether the address will never send a trace.
    is_refused: bool,
    has_ended: bool,
    /// Since when what was received is being written.
    busy: Option<Instant>,
    /// Whether that was too long.
    is_stuck: bool,
}

impl Pulled {
    /// Adds a generation, instead of the oldest ones if there are too many.
    fn push(&mut self, generation: Arc<Generation>) {
        let begun = self.span.map_or(generation.first, |(first, _)| first);
        self.span = Some((begun, generation.last));
        self.bytes += generation.bytes;
        self.generations.push_back(generation);
        let budget = self.budget.unwrap_or(u64::MAX);
        while self.generations.len() > 1 {
            let by = match self.generations.len() > MAX_GENERATIONS {
                true => Limit::Count,
                false if self.bytes > budget => Limit::Disk,
                false => return,
            };
            self.remove_oldest(by);
        }
    }

    fn remove_oldest(&mut self, by: Limit) {
        if let Some(oldest) = self.generations.pop_front() {
            self.bytes -= oldest.bytes;
            self.removed = Some(Removed { last: oldest.last, by });
        }
    }

    /// Whether all up to this time has come.
    fn reaches(&self, time: Timestamp) -> bool {
        self.span.is_some_and(|(_, last)| last >= time)
    }
}

/// A generation. Its file is removed with it: a dump that has it keeps it until it is copied.
#[derive(Debug)]
struct Generation {
    path: Place,
    first: Timestamp,
    last: Timestamp,
    bytes: u64,
}

impl Generation {
    fn is_within(&self, window: &Window) -> bool {
        self.last >= window.start && self.first <= window.end
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // it may be gone
    }
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    pulled: Mutex<Pulled>,
    /// A generation has come, or the end.
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pulled> {
        self.pulled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Pulled)) {
        change(&mut self.lock());
        self.news.notify_all();
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// The time of the last event.
    pub(super) fn last(&self) -> Option<Timestamp> {
        self.lock().generations.back().map(|generation| generation.last)
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// Whether the address will never send a trace.
    pub(super) fn is_refused(&self) -> bool {
        self.lock().is_refused
    }

    /// Notes whether the connection is read or what has come is written.
    fn set_busy(&self, is_busy: bool) {
        self.lock().busy = is_busy.then(Instant::now);
    }

    /// Whether what has come is being written for this time or longer, and was not before.
    fn becomes_stuck(&self, time: Duration) -> bool {
        let mut pulled = self.lock();
        let is_stuck = pulled.busy.is_some_and(|since| since.elapsed() >= time);
        is_stuck && !std::mem::replace(&mut pulled.is_stuck, true)
    }

    /// It was not read in time: this is why.
    fn overtake(&self, name: &str, why: &str) {
        OVERTAKEN.fetch_add(1, Ordering::Relaxed);
        Failure::about(name, why).print();
        self.change(|pulled| pulled.failure = Some(why.to_owned()));
    }

    /// Removes the oldest generations until the budget holds.
    pub(super) fn evict(&self, earliest: Timestamp, budget: u64) {
        let mut pulled = self.lock();
        pulled.budget = Some(budget);
        while let Some(oldest) = pulled.generations.front() {
            let by = match oldest.last < earliest {
                true => Limit::Age,
                false if pulled.bytes > budget => Limit::Disk,
                false => return,
            };
            pulled.remove_oldest(by);
        }
    }
}

/// A trace that a program sends all the time. All waits for the program are those of a thread of its own.
pub(super) struct Pull {
    listening: Listening,
    shared: Arc<Shared>,
    request: Arc<Request>,
    thread: JoinHandle<()>,
}

impl Pull {
    pub(super) fn start(
        listening: Listening,
        dir: impl Into<Place>,
        of: (u32, &str),
        triggers: &[GoTrigger],
        outbox: &Outbox,
    ) -> crate::failure::Result<Self> {
        Self::start_within(HEADERS, listening, dir, of, triggers, outbox)
    }

    /// As [`start`](Self::start), with this time limit for a connection and the headers of the reply.
    fn start_within(
        headers: Duration,
        listening: Listening,
        dir: impl Into<Place>,
        (pid, name): (u32, &str),
        triggers: &[GoTrigger],
        outbox: &Outbox,
    ) -> crate::failure::Result<Self> {
        let (shared, request) = (Arc::new(Shared::default()), Arc::new(Request::default()));
        let address = listening.address;
        let dir = dir.into();
        let (name, outbox) = (name.to_owned(), outbox.clone());
        let (to, asked, triggers) = (Arc::clone(&shared), Arc::clone(&request), triggers.to_vec());
        let thread = threads::start("a Go trace", move || {
            let body = asked.send(address, LONG, headers).and_then(|mut body| {
                // From now on data comes when the program has some.
                body.each(None)?;
                Ok(body)
            });
            let (failure, is_refused) = match body {
                Ok(body) => (receive(body, &dir, (pid, &name), triggers, &to, &outbox), false),
                Err(error) => {
                    (Some(format!("{}: {error}", pprof::name(address))), is_final(&error))
                }
            };
            // Nothing is read any more: the program would wait for that.
            asked.close();
            to.change(|pulled| {
                (pulled.has_ended, pulled.is_refused) = (true, is_refused);
                if let Some(failure) = failure {
                    pulled.failure = Some(failure);
                }
            });
        })?;
        Ok(Self { listening, shared, request, thread })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.listening.address
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.request.is_accepted()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Requests the end if the program does not listen any more: it may wait for it. Closes the connection if nothing
    /// reads it: the program would keep what it has to send, in more and more memory.
    pub(super) fn look(&self) {
        self.look_for(STUCK);
    }

    fn look_for(&self, stuck: Duration) {
        if self.has_ended() {
            return;
        }
        if self.shared.becomes_stuck(stuck) {
            self.request.close();
            let why = format!("its trace could not be written within {} s", stuck.as_secs());
            self.shared.overtake(&pprof::name(self.address()), &why);
        } else if !self.listening.is_open() {
            self.end();
        }
    }

    /// Requests the end: what the program has sent is still received.
    pub(super) fn end(&self) {
        self.request.end();
    }

    /// Requests the end, and closes the connection. It is not needed for more: what comes is a
    /// generation that no dump wants.
    pub(super) fn close(&self) {
        self.request.end();
        self.request.close();
    }

    /// Waits for the end of one that was closed, and removes what it has, unless a dump takes it.
    pub(super) fn remove(self) {
        let _ = self.thread.join(); // what it has is there, and goes with the last part of a dump
    }
}

/// Whether a server will answer the same to the next request: it serves something else, or refuses this program.
/// While another one has the trace, it answers with 500.
fn is_final(error: &io::Error) -> bool {
    BadStatus::of(error).is_some_and(|status| {
        status.code.is_none_or(|code| match code {
            // Request Timeout, Too Early, Too Many Requests.
            408 | 425 | 429 => false,
            code => (400..500).contains(&code),
        })
    })
}

/// Receives a trace up to its end. Returns why it ended early.
fn receive(
    body: impl Read,
    dir: &Place,
    of: (u32, &str),
    triggers: Vec<GoTrigger>,
    to: &Shared,
    outbox: &Outbox,
) -> Option<String> {
    let watching = (!triggers.is_empty())
        .then_some(|written: Written| watch(written, limits(), triggers, of, outbox));
    receive_by(body, dir, of, to, watching)
}

/// As [`receive`], with what reads the trace meanwhile, and returns why it cannot be read. The connection does not wait
/// for that: the program would need more and more memory. A reader that is too slow gets no more.
fn receive_by(
    body: impl Read,
    dir: &Place,
    (pid, name): (u32, &str),
    to: &Shared,
    reader: Option<impl FnOnce(Written) -> Option<String> + Send>,
) -> Option<String> {
    std::thread::scope(|scope| {
        let (written, received) = bounded(QUEUE);
        let mut written = reader.and_then(|reader| {
            let read = Written { received, header: None, part: None };
            let watching = threads::start_in(scope, "the triggers of a Go trace", move || {
                if let Some(failure) = reader(read) {
                    to.change(|pulled| pulled.failure = Some(failure));
                }
            });
            let refused = |failure: Failure| {
                failure.print();
                let why = format!("triggers do not see it: {}", failure.message());
                to.change(|pulled| pulled.failure = Some(why));
            };
            watching.map(|_| written).map_err(refused).ok()
        });
        let mut pass = |header: usize, generation: &Arc<Generation>| {
            let Some(queue) = &written else { return };
            match queue.try_send((header, Arc::clone(generation))) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => {
                    written = None;
                    let why =
                        format!("triggers do not see it any more: {QUEUE} generations waited");
                    to.overtake(&format!("{name} ({pid})"), &why);
                }
                // It has failed, which is noted.
                Err(TrySendError::Disconnected(_)) => written = None,
            }
        };
        let result = split(body, dir, pid, to, &RECEIVING, &mut pass);
        // All is written. The reader can take its time.
        to.set_busy(false);
        drop(written);
        result.err()
    })
}

/// The trace as it is in the files of its generations. One that is evicted stays until it was read.
struct Written {
    /// The bytes of the header in each file, and the generation.
    received: Receiver<(usize, Arc<Generation>)>,
    /// That of the first one is read.
    header: Option<usize>,
    part: Option<(fs::File, Arc<Generation>)>,
}

impl Written {
    /// Opens the next generation. Returns whether there is one.
    fn next(&mut self) -> io::Result<bool> {
        let Ok((header, generation)) = self.received.recv() else { return Ok(false) };
        let mut file = fs::File::open(&generation.path)?;
        file.seek(SeekFrom::Start(self.header.unwrap_or(0) as u64))?;
        (self.header, self.part) = (Some(header), Some((file, generation)));
        Ok(true)
    }
}

impl Read for Written {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some((file, _)) = &mut self.part {
                match file.read(out)? {
                    0 if !out.is_empty() => self.part = None,
                    len => return Ok(len),
                }
            }
            if self.part.is_none() && !self.next()? {
                return Ok(0); // the trace has ended
            }
        }
    }
}

/// An input that notes its end and when it is read, and has memory for what comes.
struct Noted<'a, R> {
    input: R,
    has_ended: &'a Cell<bool>,
    held: &'a Held<'a>,
    shared: &'a Shared,
}

impl<R: Read> Read for Noted<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.shared.set_busy(false);
        let read = match self.input.read(out) {
            // A program that was killed has not completed its reply: what came is its trace.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            read => read,
        };
        self.shared.set_busy(true);
        let len = read?;
        self.has_ended.set(self.has_ended.get() || (len == 0 && !out.is_empty()));
        self.held.receive(len as u64)?;
        Ok(len)
    }
}

/// Whether an error is that of a generation in which the program, or its connection, ended.
fn is_cut(error: &gotrace::Error, has_ended: bool) -> bool {
    match error.kind() {
        ErrorKind::Io(error) => error.kind() == io::ErrorKind::ConnectionReset,
        ErrorKind::IncompleteGeneration
        // What comes with the end of a generation.
        | ErrorKind::NoFrequency
        | ErrorKind::Malformed { cause: ReadErrorKind::UnexpectedEnd { .. }, .. } => has_ended,
        _ => false,
    }
}

/// Writes each generation of a trace to a file.
fn split(
    body: impl Read,
    dir: &Place,
    pid: u32,
    shared: &Shared,
    memory: &Memory,
    pass: &mut dyn FnMut(usize, &Arc<Generation>),
) -> Result<(), String> {
    let (has_ended, held) = (Cell::new(false), Held::new(memory));
    let body = Noted { input: body, has_ended: &has_ended, held: &held, shared };
    let mut generations =
        Generations::with_limits(body, limits()).map_err(|error| error.to_string())?;
    let header = generations.version().header().to_vec();
    shared.change(|pulled| pulled.header.clone_from(&header));
    // Of a process, it is another one for each session.
    let start = now().map_err(|error| error.to_string())?.nanos();
    loop {
        let (span, bytes) = match generations.next_generation() {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            Err(error) if is_cut(&error, has_ended.get()) => return Ok(()),
            Err(error) => return Err(format!("the rest of its trace cannot be read: {error}")),
        };
        let (first, last) = (span.first.nanos(), span.last.nanos());
        let name = format!("go-{pid}-{start}-{first}-{last}.trace");
        let path = dir.join(name);
        let write = || -> io::Result<()> {
            let mut file = private::create_new(path.path())?;
            let written = file.write_all(&header).and_then(|()| file.write_all(bytes));
            written.inspect_err(|_| {
                let _ = fs::remove_file(&path); // nobody knows it
            })
        };
        write().map_err(|error| format!("{}: {error}", path.display()))?;
        let space = ((header.len() + bytes.len()) as u64).next_multiple_of(BLOCK);
        // A generation of the future would never be too old.
        let last = now().map_or(span.last, |now| span.last.min(now));
        let generation = Generation { path, first: span.first.min(last), last, bytes: space };
        let generation = Arc::new(generation);
        shared.change(|pulled| pulled.push(Arc::clone(&generation)));
        pass(header.len(), &generation);
        held.release(bytes.len() as u64);
    }
}

/// The part of a trace in a dump.
pub(super) struct Part {
    shared: Arc<Shared>,
    /// The generations of the window that had come: they stay until they are copied.
    held: Vec<Arc<Generation>>,
    /// What was removed before.
    removed: Option<Removed>,
    /// What was removed before the generations were copied.
    uncopied: Cell<Option<Removed>>,
    /// Why a generation is left out, if one is.
    unread: OnceCell<String>,
    /// Whether it is the earliest one of its process.
    is_first: bool,
}

impl Part {
    pub(super) fn of(pull: &Pull, window: &Window, is_first: bool) -> Self {
        Self::new(Arc::clone(&pull.shared), window, is_first)
    }

    fn new(shared: Arc<Shared>, window: &Window, is_first: bool) -> Self {
        let pulled = shared.lock();
        let within = pulled.generations.iter().filter(|generation| generation.is_within(window));
        let (held, removed) = (within.cloned().collect(), pulled.removed);
        drop(pulled);
        let (uncopied, unread) = (Cell::new(None), OnceCell::new());
        Self { shared, held, removed, uncopied, unread, is_first }
    }

    /// Writes the generations of a window, once they have come. Returns the time that they cover.
    pub(super) fn write(
        &self,
        window: &Window,
        path: &Path,
        timeout: Duration,
    ) -> io::Result<Option<(Timestamp, Timestamp)>> {
        let is_short = |pulled: &mut Pulled| !pulled.has_ended && !pulled.reaches(window.end);
        let pulled = self.shared.news.wait_timeout_while(self.shared.lock(), timeout, is_short);
        let (pulled, _) = pulled.unwrap_or_else(PoisonError::into_inner);
        let within = self.within(&pulled, window);
        self.uncopied.set(pulled.removed);
        let header = pulled.header.clone();
        // The trace continues while this is copied.
        drop(pulled);
        if within.is_empty() {
            return Ok(None);
        }
        let out = private::create_new(path)?;
        let copied = self.copy(&within, &header, out);
        if !matches!(copied, Ok(Some(_))) {
            let _ = fs::remove_file(path); // it has no generation, or not all of them
        }
        copied
    }

    /// Copies generations. Returns the time that they cover. One that cannot be read is left out.
    fn copy(
        &self,
        generations: &[Arc<Generation>],
        header: &[u8],
        mut out: fs::File,
    ) -> io::Result<Option<(Timestamp, Timestamp)>> {
        out.write_all(header)?;
        let mut covered: Option<(Timestamp, Timestamp)> = None;
        for generation in generations {
            let bytes = match fs::read(&generation.path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.unread.get_or_init(|| format!("a generation cannot be read: {error}"));
                    continue;
                }
            };
            out.write_all(bytes.get(header.len()..).unwrap_or_default())?;
            let (first, last) = covered.unwrap_or((generation.first, generation.last));
            covered = Some((first, last.max(generation.last)));
        }
        out.sync_all()?;
        Ok(covered)
    }

    /// The generations of a window: those that are held, and those that have come since.
    fn within(&self, pulled: &Pulled, window: &Window) -> Vec<Arc<Generation>> {
        let held = self.held.last();
        let is_held =
            |generation: &Arc<Generation>| held.is_some_and(|held| Arc::ptr_eq(held, generation));
        let new = pulled.generations.iter().position(is_held).map_or(0, |last| last + 1);
        let since = pulled.generations.iter().skip(new);
        let since = since.filter(|generation| generation.is_within(window));
        self.held.iter().chain(since).cloned().collect()
    }

    /// What a part that covers this time lacks.
    pub(super) fn gap(&self, window: &Window, from: Timestamp, until: Timestamp) -> Option<String> {
        let pulled = self.shared.lock();
        let before = || {
            let is_removed = |removed: &Removed| removed.last >= window.start;
            let is_begun = pulled.span.is_some_and(|(first, _)| first <= window.start);
            match self.removed.filter(is_removed) {
                _ if from <= window.start => None,
                Some(removed) => Some(format!("the time before: {}", removed.by.why())),
                // Nothing happened in the time before.
                None if is_begun || !self.is_first => None,
                None => late(window, from),
            }
        };
        let since = || {
            let held = self.held.last().map(|held| held.last);
            let known = held.max(self.removed.map(|removed| removed.last));
            let is_new = |removed: &Removed| {
                let last = removed.last.min(window.end);
                last >= window.start && known.is_none_or(|known| known < last)
            };
            // What is removed later is in the dump, or is of after the window.
            let removed = self.uncopied.get().filter(is_new)?;
            Some(format!("what came while the dump waited: {}", removed.by.why()))
        };
        let end = || {
            let why = match pulled.has_ended {
                true => "the time after: its recording had ended",
                false => "the end: its last generation had not come",
            };
            (until < window.end && !pulled.reaches(window.end)).then(|| why.to_owned())
        };
        let unread = || self.unread.get().cloned();
        pulled.failure.clone().or_else(unread).or_else(before).or_else(since).or_else(end)
    }

    /// Why there is no generation of a window.
    pub(super) fn why_none(&self, window: &Window) -> String {
        let pulled = self.shared.lock();
        let removed = pulled.removed.filter(|removed| removed.last >= window.start);
        let removed = removed.map(|removed| removed.by.why());
        let why = pulled.failure.as_ref().or(self.unread.get()).cloned().or(removed);
        why.unwrap_or_else(|| "no generation of the window has arrived".to_owned())
    }
}

#[cfg(test)]
#[path = "go_pull_tests.rs"]
pub(super) mod tests;
