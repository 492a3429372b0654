//! The trace that a Go program sends all the time, cut into its generations: a file for each.

use super::go_watch::watch;
use super::late;
use crate::commands::flight::inbox::Outbox;
use crate::commands::flight::trigger::GoTrigger;
use crate::io::place::Place;
use crate::io::private;
use crate::run::http::BadStatus;
use crate::run::pprof::{Listening, Request};
use crate::timeline::now;
use crossbeam_channel::bounded;
use gotrace::{ErrorKind, Generations, Limits};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use trace_common::ReadErrorKind;
use trace_flight::{Timestamp, Window};

/// Time limit for a connection and the headers of the reply.
const HEADERS: Duration = Duration::from_secs(2);

/// The length of a trace that is requested: after it, the next one is.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Bytes of a part of a generation for the reader that looks for triggers, and parts that wait for it.
const PART: usize = 256 << 10;
const QUEUE: usize = 16;

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
            let why = format!("the generations of all Go programs have {limit} bytes of memory");
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

/// What has come of a trace.
#[derive(Debug, Default)]
struct Pulled {
    header: Vec<u8>,
    generations: VecDeque<Arc<Generation>>,
    /// The space that they take.
    bytes: u64,
    /// Of that space, once it is known.
    budget: Option<u64>,
    /// Why nothing more comes, or triggers do not see it.
    failure: Option<String>,
    /// Whether the address will never send a trace.
    is_refused: bool,
    has_ended: bool,
}

impl Pulled {
    /// Adds a generation, instead of the oldest ones if there are too many.
    fn push(&mut self, generation: Generation) {
        self.bytes += generation.bytes;
        self.generations.push_back(Arc::new(generation));
        let budget = self.budget.unwrap_or(u64::MAX);
        while self.generations.len() > 1
            && (self.generations.len() > MAX_GENERATIONS || self.bytes > budget)
        {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        if let Some(oldest) = self.generations.pop_front() {
            self.bytes -= oldest.bytes;
        }
    }
}

/// A generation. Its file is removed with it: a dump that copies it keeps it until then.
#[derive(Debug)]
struct Generation {
    path: Place,
    first: Timestamp,
    last: Timestamp,
    bytes: u64,
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

    /// Removes the oldest generations until the budget holds.
    pub(super) fn evict(&self, earliest: Timestamp, budget: u64) {
        let mut pulled = self.lock();
        pulled.budget = Some(budget);
        while let Some(oldest) = pulled.generations.front() {
            if oldest.last >= earliest && pulled.bytes <= budget {
                return;
            }
            pulled.remove_oldest();
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
        (pid, name): (u32, &str),
        triggers: &[GoTrigger],
        outbox: &Outbox,
    ) -> Self {
        let (shared, request) = (Arc::new(Shared::default()), Arc::new(Request::default()));
        let address = listening.address;
        let dir = dir.into();
        let (name, outbox) = (name.to_owned(), outbox.clone());
        let (to, asked, triggers) = (Arc::clone(&shared), Arc::clone(&request), triggers.to_vec());
        let thread = std::thread::spawn(move || {
            let body = asked.send(address, LONG, HEADERS).and_then(|mut body| {
                // From now on data comes when the program has some.
                body.get_mut().each(None)?;
                Ok(body)
            });
            let (failure, is_refused) = match body {
                Ok(body) => (receive(body, &dir, (pid, &name), triggers, &to, &outbox), false),
                Err(error) => {
                    let why = format!("http://{address}/debug/pprof/trace: {error}");
                    (Some(why), is_final(&error))
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
        });
        Self { listening, shared, request, thread }
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

    /// Requests the end if the program does not listen any more: it may wait for it.
    pub(super) fn look(&self) {
        if !self.has_ended() && !self.listening.is_open() {
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
    std::thread::scope(|scope| {
        let (parts, received) = bounded(QUEUE);
        let watching = (!triggers.is_empty()).then(|| {
            scope.spawn(move || {
                let failure = watch(received, limits(), triggers, of, outbox);
                if let Some(failure) = failure {
                    to.change(|pulled| pulled.failure = Some(failure));
                }
            })
        });
        let mut pass = |bytes: &[u8]| {
            if watching.is_some() {
                // It may have failed, which is noted.
                let _ = bytes.chunks(PART).try_for_each(|part| parts.send(part.to_vec()));
            }
        };
        let result = split(body, dir, of.0, to, &RECEIVING, &mut pass);
        drop(parts);
        result.err()
    })
}

/// An input that notes its end, and has memory for what comes.
struct Noted<'a, R> {
    input: R,
    has_ended: &'a Cell<bool>,
    held: &'a Held<'a>,
}

impl<R: Read> Read for Noted<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(out)?;
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
    pass: &mut dyn FnMut(&[u8]),
) -> Result<(), String> {
    let (has_ended, held) = (Cell::new(false), Held::new(memory));
    let body = Noted { input: body, has_ended: &has_ended, held: &held };
    let mut generations =
        Generations::with_limits(body, limits()).map_err(|error| error.to_string())?;
    let header = generations.version().header().to_vec();
    pass(&header);
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
        shared.change(|pulled| pulled.push(generation));
        pass(bytes);
        held.release(bytes.len() as u64);
    }
}

/// The part of a trace in a dump.
pub(super) struct Part {
    shared: Arc<Shared>,
    /// Whether it is the earliest one of its process.
    is_first: bool,
}

impl Part {
    pub(super) fn of(pull: &Pull, is_first: bool) -> Self {
        Self { shared: Arc::clone(&pull.shared), is_first }
    }

    /// Writes the generations of a window, once they have come. Returns the time that they cover.
    pub(super) fn write(
        &self,
        window: &Window,
        path: &Path,
        timeout: Duration,
    ) -> io::Result<Option<(Timestamp, Timestamp)>> {
        let is_short = |pulled: &mut Pulled| {
            let last = pulled.generations.back().map(|generation| generation.last);
            !pulled.has_ended && last.is_none_or(|last| last < window.end)
        };
        let pulled = self.shared.news.wait_timeout_while(self.shared.lock(), timeout, is_short);
        let (pulled, _) = pulled.unwrap_or_else(PoisonError::into_inner);
        let is_within = |g: &&Arc<Generation>| g.last >= window.start && g.first <= window.end;
        let within: Vec<_> = pulled.generations.iter().filter(is_within).cloned().collect();
        let header = pulled.header.clone();
        // The trace continues while this is copied.
        drop(pulled);
        let Some(first) = within.first().map(|generation| generation.first) else {
            return Ok(None);
        };
        let mut last = first;
        let mut out = private::create_new(path)?;
        out.write_all(&header)?;
        for generation in within {
            let bytes = fs::read(&generation.path)?;
            out.write_all(bytes.get(header.len()..).unwrap_or_default())?;
            last = last.max(generation.last);
        }
        out.sync_all()?;
        Ok(Some((first, last)))
    }

    /// What a part that covers this time lacks.
    pub(super) fn gap(&self, window: &Window, from: Timestamp, until: Timestamp) -> Option<String> {
        let end = || {
            let why = match self.shared.lock().has_ended {
                true => "the time after: its recording had ended",
                false => "the end: its last generation had not come",
            };
            (until < window.end).then(|| why.to_owned())
        };
        let late = || late(window, from).filter(|_| self.is_first);
        self.failure().or_else(late).or_else(end)
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.shared.failure()
    }
}

#[cfg(test)]
#[path = "go_pull_tests.rs"]
pub(super) mod tests;
