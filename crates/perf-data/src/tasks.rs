//! The records about the tasks and mappings of a moment.

use crate::error::Result;
use crate::mappings::{is_listed, time};
use crate::writer::RecordWriter;
use perf_monitor::{RawRecord, Record, RecordLayout};
use perf_sys::{PERF_RECORD_FORK, PERF_RECORD_MISC_FORK_EXEC, perf_event_attr, perf_event_header};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keeps the records that a recording must begin with if it begins now: names and parents of the
/// running threads, and their mappings.
///
/// It takes the records of a [`Synthesizer`](crate::Synthesizer) and then those of the kernel, in time
/// order. A recording in parts writes its records at the start of each part, so that each part can be
/// read alone. They have no time, as those of a synthesizer.
///
/// Memory is bounded: records that do not fit in the limit are [counted](Self::dropped). What they replace is
/// forgotten nevertheless.
#[derive(Debug)]
pub struct TaskRecords {
    layout: RecordLayout,
    /// Mappings of the kernel.
    kernel: Vec<Mapping>,
    processes: BTreeMap<u32, Process>,
    bytes: usize,
    limit: usize,
    dropped: u64,
}

#[derive(Debug, Default)]
struct Process {
    threads: BTreeMap<u32, Thread>,
    /// Shared with the processes that it forked.
    mappings: Arc<Vec<Mapping>>,
}

#[derive(Debug)]
struct Thread {
    fork: Arc<[u8]>,
    comm: Option<Arc<[u8]>>,
}

#[derive(Clone, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    /// With the process that made it, which can be an ancestor.
    record: Arc<[u8]>,
}

/// Bytes that a record takes beside its own.
const OVERHEAD: usize = 64;

/// Offset of the flags of a record.
const MISC: usize = 4;

/// Offset of the process and the thread in records of names and mappings.
const IDS: usize = size_of::<perf_event_header>();

/// Offset of the new thread in records of forks.
const FORK_TID: usize = IDS + 8;

/// Offset of the time in records of forks.
const FORK_TIME: usize = IDS + 16;

impl TaskRecords {
    /// For records of an event with this attribute, in at most `limit` bytes.
    pub fn new(attr: &perf_event_attr, limit: usize) -> Self {
        Self {
            layout: RecordLayout::new(attr),
            kernel: Vec::new(),
            processes: BTreeMap::new(),
            bytes: 0,
            limit,
            dropped: 0,
        }
    }

    /// Takes a record. Those that are not about tasks and mappings are ignored.
    pub fn push(&mut self, raw: RawRecord<'_>) {
        let Ok(record) = self.layout.decode(raw) else { return };
        match &record {
            Record::Mmap(mmap) if !mmap.is_data => {
                let (start, end) = (mmap.addr, mmap.addr.saturating_add(mmap.len));
                // They are gone, whether there is room for the new one or not.
                self.forget_mappings(mmap.pid, |old| old.start >= start && old.end <= end);
                let Some(record) = self.timeless(raw) else {
                    // Readers would cut one that is replaced in part, but not without the record.
                    self.forget_mappings(mmap.pid, |old| old.start < end && old.end > start);
                    return;
                };
                match self.mappings_mut(mmap.pid) {
                    Some(mappings) => mappings.push(Mapping { start, end, record }),
                    None => self.release(&record),
                }
            }
            Record::Fork(fork) => {
                let is_listed = is_listed(fork, raw);
                // An earlier process or thread with this number has ended, whether there is room or not.
                if !is_listed && fork.pid != fork.ppid {
                    self.remove(fork.pid);
                } else if !is_listed {
                    self.remove_thread(fork.pid, fork.tid);
                }
                let Some(record) = self.timeless(raw) else { return };
                let parent = self.processes.get(&fork.ppid);
                let comm = parent.and_then(|process| {
                    process.threads.get(&fork.ptid).or_else(|| process.threads.get(&fork.ppid))
                });
                let comm = comm.and_then(|thread| thread.comm.clone());
                self.bytes += comm.as_deref().map_or(0, size);
                let parent = parent.filter(|_| fork.pid != fork.ppid && !is_listed);
                let mappings = parent.map(|parent| Arc::clone(&parent.mappings));
                self.bytes += mappings.as_deref().map_or(0, |mappings| shared(mappings));
                let process = self.processes.entry(fork.pid).or_default();
                if let Some(mappings) = mappings {
                    process.mappings = mappings;
                }
                let before = process.threads.insert(fork.tid, Thread { fork: record, comm });
                before.iter().for_each(|thread| self.release_thread(thread));
            }
            Record::Comm(comm) => {
                if let Some(process) = self.processes.get_mut(&comm.pid).filter(|_| comm.by_exec) {
                    // The new program makes its own, for which there is room then.
                    let before = std::mem::take(&mut process.mappings);
                    self.release_mappings(before);
                    self.exec(comm.pid);
                }
                let name = |this: &mut Self, new: Option<Arc<[u8]>>| {
                    let process = this.processes.get_mut(&comm.pid);
                    let thread = process.and_then(|process| process.threads.get_mut(&comm.tid));
                    match thread {
                        Some(thread) => std::mem::replace(&mut thread.comm, new),
                        None => new,
                    }
                };
                // The thread has another name, whether there is room for it or not. Only a list of what runs
                // repeats the name that is known.
                if comm.by_exec || time(&record).is_some() {
                    let before = name(self, None);
                    before.iter().for_each(|comm| self.release(comm));
                }
                let Some(new) = self.timeless(raw) else { return };
                let before = name(self, Some(new));
                before.iter().for_each(|comm| self.release(comm));
            }
            Record::Exit(exit) => {
                self.remove_thread(exit.pid, exit.tid);
                // Threads can outlive the first one.
                if self.processes.get(&exit.pid).is_some_and(|process| process.threads.is_empty()) {
                    self.remove(exit.pid);
                }
            }
            _ => {}
        }
    }

    /// Continues with the records of another one, which is empty afterwards. Both are for records with the same fields.
    ///
    /// A recorder that opens its events again may not be able to read these mappings again: it has dropped
    /// privileges. Records above the limit of this one stay. Those that were [dropped](Self::dropped) are added up.
    pub fn take_over(&mut self, other: &mut Self) {
        self.kernel = std::mem::take(&mut other.kernel);
        self.processes = std::mem::take(&mut other.processes);
        self.bytes = std::mem::take(&mut other.bytes);
        self.dropped += std::mem::take(&mut other.dropped);
    }

    /// Forgets the other processes: the ends of some may have been lost.
    pub fn retain_processes(&mut self, mut keep: impl FnMut(u32) -> bool) {
        let others = self.processes.keys().filter(|pid| !keep(**pid));
        let others: Vec<u32> = others.copied().collect();
        others.into_iter().for_each(|pid| self.remove(pid));
    }

    /// A thread that executes a program becomes the main thread, which has ended before. Its own end is not
    /// recorded.
    fn exec(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if process.threads.contains_key(&pid) {
            return;
        }
        let mut former = std::mem::take(&mut process.threads).into_values();
        let Some(mut caller) = former.next() else { return };
        let mut fork = caller.fork.to_vec();
        if let Some(tid) = fork.get_mut(FORK_TID..FORK_TID + 4) {
            tid.copy_from_slice(&pid.to_ne_bytes());
        }
        caller.fork = fork.into();
        process.threads.insert(pid, caller);
        // There is one, unless records were lost.
        former.for_each(|thread| self.release_thread(&thread));
    }

    /// Writes the records, and ends the round.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) of the output.
    pub fn write(&self, out: &mut (impl RecordWriter + ?Sized)) -> Result<()> {
        let mut buffer = Vec::new();
        for mapping in &self.kernel {
            put(&mapping.record, &mut buffer, None, out)?;
        }
        for (pid, process) in &self.processes {
            // The first thread comes first.
            let first = process.threads.get(pid).map(|thread| (pid, thread));
            let others = process.threads.iter().filter(|(tid, _)| *tid != pid);
            for (tid, thread) in first.into_iter().chain(others) {
                put(&thread.fork, &mut buffer, None, out)?;
                if let Some(comm) = &thread.comm {
                    put(comm, &mut buffer, Some((*pid, *tid)), out)?;
                }
            }
        }
        // After all forks: a child does not have what its parent mapped later.
        for (pid, process) in &self.processes {
            for mapping in process.mappings.iter() {
                put(&mapping.record, &mut buffer, Some((*pid, *pid)), out)?;
            }
        }
        out.finish_round()
    }

    /// Whether a process is known.
    pub fn has_process(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.processes.values().map(|process| process.threads.len()).sum()
    }

    /// Bytes in memory, roughly.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records that did not fit in the limit. Their threads have no name, or addresses of their
    /// mappings no file.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// A copy of the record without the time and place at its end. `None` if it does not fit.
    fn timeless(&mut self, raw: RawRecord<'_>) -> Option<Arc<[u8]>> {
        let bytes = raw.bytes();
        if self.bytes + bytes.len() + OVERHEAD > self.limit {
            self.dropped += 1;
            return None;
        }
        let mut copy = bytes.to_vec();
        let trailer = copy.len().saturating_sub(self.layout.sample_id_size());
        copy.get_mut(trailer..)?.fill(0);
        if raw.type_() == PERF_RECORD_FORK {
            copy.get_mut(FORK_TIME..FORK_TIME + 8)?.fill(0);
            // Its mappings are those that this writes, not those of its parent.
            let misc = raw.misc() | PERF_RECORD_MISC_FORK_EXEC;
            copy.get_mut(MISC..MISC + 2)?.copy_from_slice(&misc.to_ne_bytes());
        }
        self.bytes += size(&copy);
        Some(copy.into())
    }

    fn release(&mut self, record: &[u8]) {
        self.bytes = self.bytes.saturating_sub(size(record));
    }

    fn release_thread(&mut self, thread: &Thread) {
        self.release(&thread.fork);
        thread.comm.iter().for_each(|comm| self.release(comm));
    }

    /// The mappings of a process, or of the kernel, of which a process that shares them gets its own.
    fn mappings_mut(&mut self, pid: u32) -> Option<&mut Vec<Mapping>> {
        if pid == u32::MAX {
            return Some(&mut self.kernel);
        }
        let process = self.processes.get_mut(&pid)?;
        if Arc::strong_count(&process.mappings) > 1 {
            self.bytes += sum(&process.mappings);
            self.bytes = self.bytes.saturating_sub(shared(&process.mappings));
        }
        Some(Arc::make_mut(&mut process.mappings))
    }

    /// Forgets some mappings of a process, or of the kernel.
    fn forget_mappings(&mut self, pid: u32, is_gone: impl Fn(&Mapping) -> bool) {
        let known = match pid {
            u32::MAX => &self.kernel,
            pid => match self.processes.get(&pid) {
                Some(process) => &*process.mappings,
                None => return,
            },
        };
        // Most cover none, and are those that another process has, too.
        if !known.iter().any(&is_gone) {
            return;
        }
        if pid != u32::MAX && self.drop_shared(pid, &is_gone) {
            return;
        }
        let mut released = 0;
        if let Some(mappings) = self.mappings_mut(pid) {
            mappings.retain(|old| {
                let is_gone = is_gone(old);
                released += if is_gone { size(&old.record) } else { 0 };
                !is_gone
            });
        }
        self.bytes = self.bytes.saturating_sub(released);
    }

    /// Drops the mappings that a process shares if there is no room for its own copy of them. Returns whether
    /// they were dropped. Those that are gone are not counted.
    fn drop_shared(&mut self, pid: u32, is_gone: impl Fn(&Mapping) -> bool) -> bool {
        let Some(process) = self.processes.get_mut(&pid) else { return false };
        let mappings = &process.mappings;
        let needed = (self.bytes + sum(mappings)).saturating_sub(shared(mappings));
        if Arc::strong_count(mappings) == 1 || needed <= self.limit {
            return false;
        }
        let before = std::mem::take(&mut process.mappings);
        self.dropped += before.iter().filter(|mapping| !is_gone(mapping)).count() as u64;
        self.release_mappings(before);
        true
    }

    fn release_mappings(&mut self, mappings: Arc<Vec<Mapping>>) {
        let bytes = match Arc::try_unwrap(mappings) {
            Ok(mappings) => sum(&mappings),
            Err(mappings) => shared(&mappings),
        };
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn remove_thread(&mut self, pid: u32, tid: u32) {
        let process = self.processes.get_mut(&pid);
        let ended = process.and_then(|process| process.threads.remove(&tid));
        ended.iter().for_each(|thread| self.release_thread(thread));
    }

    fn remove(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        process.threads.values().for_each(|thread| self.release_thread(thread));
        self.release_mappings(process.mappings);
    }
}

/// Bytes of the mappings of one process alone.
fn sum(mappings: &[Mapping]) -> usize {
    mappings.iter().map(|mapping| size(&mapping.record)).sum()
}

/// Bytes that are counted for each process that shares mappings, except for one.
const fn shared(mappings: &[Mapping]) -> usize {
    mappings.len() * OVERHEAD
}

const fn size(record: &[u8]) -> usize {
    record.len() + OVERHEAD
}

/// Writes a record, as that of another process and thread if they are given.
fn put(
    record: &[u8],
    buffer: &mut Vec<u8>,
    ids: Option<(u32, u32)>,
    out: &mut (impl RecordWriter + ?Sized),
) -> Result<()> {
    buffer.clear();
    buffer.extend_from_slice(record);
    if let (Some((pid, tid)), Some(place)) = (ids, buffer.get_mut(IDS..IDS + 8)) {
        let ids = [pid.to_ne_bytes(), tid.to_ne_bytes()].concat();
        place.copy_from_slice(&ids);
    }
    match RawRecord::split_first(buffer, 0) {
        Some((record, _)) => out.record(record),
        None => Ok(()),
    }
}
