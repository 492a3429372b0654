//! Which compilation a map of IL offsets describes.
//!
//! An event with a map has no address. It has the method's id, and the id of the version of its code:
//! both can be the same for several compilations (dynamic methods whose memory is used again), and old
//! runtimes give the map another version than the code. But the runtime writes the events of a
//! compilation one after another, on one thread: `MethodLoad` before `MethodILToNativeMap`, and in the
//! rundown at the end the map before `MethodDCEnd`. So a map belongs to the event of a method beside it.
//! If that is another method, the right one was lost, and the map is not used.

use std::collections::HashMap;

use crate::analysis::number;
use crate::{Event, IlMap};

/// A compilation, as events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compilation {
    pub(crate) id: u64,
    pub(crate) rejit_id: u64,
}

/// The last events of each thread that are about methods.
#[derive(Debug, Default)]
pub(crate) struct Joins {
    threads: HashMap<ThreadKey, Thread>,
    /// Bytes of maps that wait for their method.
    waiting: usize,
    unmatched: u64,
}

#[derive(Debug, Default)]
struct Thread {
    method: Option<Reported>,
    waiting: Option<Waiting>,
}

/// The last method that a thread reported.
#[derive(Clone, Copy, Debug)]
struct Reported {
    of: Compilation,
    /// `None` if the method was dropped.
    index: Option<u32>,
    sequence: u32,
}

/// A map whose method the thread reports next.
#[derive(Debug)]
struct Waiting {
    key: Key,
    map: IlMap,
}

/// The compilation that a map names.
#[derive(Clone, Copy, Debug)]
struct Key {
    of: Compilation,
    sequence: u32,
    /// Version 0 of the events names the version of the IL, not that of the code.
    has_rejit_id: bool,
}

/// Maximum number of threads.
const MAX_THREADS: usize = 1 << 14;

/// Maximum number of bytes of maps that wait.
const MAX_WAITING: usize = 1 << 24;

impl Key {
    fn of_event(event: &Event<'_>) -> Option<Self> {
        let number = |name| number(event, name);
        let of = Compilation { id: number("MethodID")?, rejit_id: number("ReJITID")? };
        let sequence = event.header().sequence_number;
        Some(Self { of, sequence, has_rejit_id: event.version() > 0 })
    }

    /// Whether it names this compilation, whose event has a sequence number. `is_next` is whether that
    /// number follows this one.
    fn names(&self, of: Compilation, is_next: bool) -> bool {
        let is_same = !self.has_rejit_id || self.of.rejit_id == of.rejit_id;
        self.of.id == of.id && is_same && (self.has_rejit_id || is_next)
    }
}

/// The id of a process, that of a thread, and the index of a thread without an id.
type ThreadKey = (u64, u64, u64);

/// The thread of the compilation. A collector can write the events of all threads (version 6), and gives a thread
/// more than one index.
fn thread_of(event: &Event<'_>) -> ThreadKey {
    let tid = event.tid();
    let index = if tid == 0 { event.header().thread } else { 0 };
    (event.pid(), tid, index)
}

const fn follows(sequence: u32, before: u32) -> bool {
    sequence == before.wrapping_add(1)
}

impl Joins {
    pub(crate) const fn unmatched(&self) -> u64 {
        self.unmatched
    }

    fn thread(&mut self, event: &Event<'_>) -> &mut Thread {
        let key = thread_of(event);
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&key) {
            let waiting = self.threads.values().filter(|thread| thread.waiting.is_some());
            self.unmatched += waiting.count() as u64;
            self.waiting = 0;
            self.threads.clear();
        }
        self.threads.entry(key).or_default()
    }

    /// A thread reported a method: returns its map, if that came before.
    pub(crate) fn method(
        &mut self,
        event: &Event<'_>,
        of: Compilation,
        index: Option<u32>,
    ) -> Option<IlMap> {
        let sequence = event.header().sequence_number;
        let thread = self.thread(event);
        thread.method = Some(Reported { of, index, sequence });
        let Waiting { key, map } = thread.waiting.take()?;
        self.waiting = self.waiting.saturating_sub(map.bytes());
        if key.names(of, follows(sequence, key.sequence)) {
            return Some(map);
        }
        self.unmatched += 1;
        None
    }

    /// A thread reported that the code of a method is gone: no map follows.
    pub(crate) fn forget(&mut self, event: &Event<'_>) {
        if let Some(thread) = self.threads.get_mut(&thread_of(event)) {
            thread.method = None;
        }
    }

    /// A map of the method that the thread reported last: returns the index of that, and the map.
    pub(crate) fn after(&mut self, event: &Event<'_>) -> Option<(u32, IlMap)> {
        let found = self.threads.get(&thread_of(event)).and_then(|thread| {
            let (method, key) = (thread.method?, Key::of_event(event)?);
            let is_it = key.names(method.of, follows(key.sequence, method.sequence));
            is_it.then_some(())?;
            Some((method.index?, IlMap::read(event)?))
        });
        self.unmatched += u64::from(found.is_none());
        found
    }

    /// A map of the method that the thread reports next.
    pub(crate) fn before(&mut self, event: &Event<'_>) {
        let read = Key::of_event(event).zip(IlMap::read(event));
        let Some((key, map)) = read else {
            self.unmatched += 1;
            return;
        };
        let bytes = map.bytes();
        let fits = self.waiting.saturating_add(bytes) <= MAX_WAITING;
        let waiting = fits.then_some(Waiting { key, map });
        let replaced = std::mem::replace(&mut self.thread(event).waiting, waiting);
        self.waiting += if fits { bytes } else { 0 };
        if let Some(replaced) = &replaced {
            self.waiting = self.waiting.saturating_sub(replaced.map.bytes());
        }
        self.unmatched += u64::from(replaced.is_some()) + u64::from(!fits);
    }
}
