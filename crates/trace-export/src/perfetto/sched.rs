//! Switches of the kernel's scheduler, in columns: about seven bytes each.

use super::PerfettoSink;
use super::field::{TRACE_PACKET, ftrace, packet};
use super::sequence::SEQUENCE;
use crate::model::{Interrupt, SchedSwitch, SchedWaking};
use crate::proto::Buffer;
use hashbrown::HashMap;
use std::io::{self, Write};
use trace_common::Timestamp;

/// Switches and wake-ups of one CPU that are not written yet.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    /// The first switch of a CPU is written in full: readers of the compact form take the previous
    /// thread from the switch before it.
    began: bool,
    first: Buffer,
    count: usize,
    switch: Columns,
    waking: Columns,
    flags: Flags,
    comms: Comms,
}

/// The column of the flags of wake-ups: a byte each.
#[derive(Debug, Default)]
struct Flags {
    bytes: Vec<u8>,
    /// All flags of the column.
    all: u8,
}

impl Flags {
    #[inline]
    fn push(&mut self, interrupt: Option<Interrupt>) {
        let flags = match interrupt {
            None => 0,
            Some(Interrupt::Hard) => ftrace::FLAG_HARDIRQ,
            Some(Interrupt::Soft) => ftrace::FLAG_SOFTIRQ,
        };
        self.bytes.push(flags);
        self.all |= flags;
    }

    /// Readers take a column that is missing as one of zeros.
    fn write(&mut self, out: &mut Buffer) {
        if self.all != 0 {
            out.bytes(ftrace::COMPACT_WAKING_COMMON_FLAGS, &self.bytes);
        }
        self.bytes.clear();
        self.all = 0;
    }
}

/// The names of threads in a bundle, and their indexes in its table.
#[derive(Debug, Default)]
struct Comms {
    /// Some of the names, by their hash. `None` until the first name: most CPU numbers have none.
    recent: Option<Box<[(Short, u32); RECENT]>>,
    short: HashMap<Short, u32>,
    long: HashMap<Box<[u8]>, u32>,
    table: Buffer,
}

/// Number of names that are found without a hash table.
const RECENT: usize = 64;

/// A name of at most 15 bytes, as the kernel has them: its bytes, and its length in the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Short(u64, u64);

impl Short {
    /// No name is that long.
    const NONE: Self = Self(0, u64::MAX);

    #[inline]
    fn new(name: &[u8]) -> Option<Self> {
        let len = name.len() as u64;
        let (low, high) = if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk())
        {
            if len > 15 {
                return None;
            }
            // Of the last bytes those that are not among the first.
            let high = u64::from_le_bytes(*last) >> 8 >> (8 * (15 - len));
            (u64::from_le_bytes(*first), high)
        } else if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
            let high = u64::from(u32::from_le_bytes(*last)) >> (8 * (8 - len));
            (u64::from(u32::from_le_bytes(*first)) | high << 32, 0)
        } else {
            let byte = |index: usize| name.get(index).copied().unwrap_or(0);
            (u64::from_le_bytes([byte(0), byte(1), byte(2), 0, 0, 0, 0, 0]), 0)
        };
        Some(Self(low, high | len << 56))
    }

    #[inline]
    const fn hash(self) -> usize {
        let mixed = (self.0 ^ self.1.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 58) as usize % RECENT
    }
}

impl Comms {
    /// Returns the index of a name in the table.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a hash is less than the length")]
    fn index(&mut self, name: &[u8]) -> u64 {
        let Some(short) = Short::new(name) else { return self.long(name) };
        match self.recent.as_ref().map(|recent| recent[short.hash()]) {
            Some((known, index)) if known == short => index.into(),
            _ => self.short(short, name),
        }
    }

    #[cold]
    #[inline(never)]
    #[expect(clippy::indexing_slicing, reason = "a hash is less than the length")]
    fn short(&mut self, short: Short, name: &[u8]) -> u64 {
        let next = self.next();
        let index = *self.short.entry(short).or_insert_with(|| {
            self.table.text(ftrace::COMPACT_INTERN_TABLE, name);
            next
        });
        let recent = self.recent.get_or_insert_with(|| Box::new([(Short::NONE, 0); RECENT]));
        recent[short.hash()] = (short, index);
        index.into()
    }

    #[cold]
    #[inline(never)]
    fn long(&mut self, name: &[u8]) -> u64 {
        let next = self.next();
        let index = *self.long.entry(name.into()).or_insert_with(|| {
            self.table.text(ftrace::COMPACT_INTERN_TABLE, name);
            next
        });
        index.into()
    }

    fn next(&self) -> u32 {
        (self.short.len() + self.long.len()) as u32
    }

    fn clear(&mut self) {
        if let Some(recent) = &mut self.recent {
            recent.fill((Short::NONE, 0));
        }
        self.short.clear();
        self.long.clear();
        self.table.clear();
    }
}

/// Columns of one kind of event. A column is a packed field.
#[derive(Debug, Default)]
struct Columns {
    last: u64,
    /// Events that are not in the columns yet: encoding many values of a column at a time takes a
    /// third of the instructions. `None` until the first event: most CPU numbers have none.
    chunk: Option<Box<Chunk>>,
    columns: [Buffer; Chunk::COLUMNS],
}

/// The values of some events by column: the distance of the time from the previous event, then
/// those of its kind.
#[derive(Debug)]
struct Chunk {
    len: usize,
    values: [[u64; Self::LEN]; Self::COLUMNS],
}

impl Chunk {
    const COLUMNS: usize = 5;
    const LEN: usize = 64;
}

impl Columns {
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "less than the length of a column")]
    fn push(&mut self, at: u64, [a, b, c, d]: [u64; 4]) {
        // A step back, which the merge of several ring buffers may cause, wraps around, and the
        // reader's addition undoes it.
        let row = [at.wrapping_sub(self.last), a, b, c, d];
        self.last = at;
        let chunk = match &mut self.chunk {
            Some(chunk) => chunk,
            None => self.add_chunk(),
        };
        let place = chunk.len % Chunk::LEN;
        for (column, value) in chunk.values.iter_mut().zip(row) {
            column[place] = value;
        }
        chunk.len = place + 1;
        if chunk.len == Chunk::LEN {
            self.encode();
        }
    }

    #[cold]
    fn add_chunk(&mut self) -> &mut Box<Chunk> {
        let values = [[0; Chunk::LEN]; Chunk::COLUMNS];
        self.chunk.get_or_insert_with(|| Box::new(Chunk { len: 0, values }))
    }

    #[inline(never)]
    fn encode(&mut self) {
        let Some(chunk) = &mut self.chunk else { return };
        for (column, values) in self.columns.iter_mut().zip(&chunk.values) {
            column.packed(values.get(..chunk.len).unwrap_or_default());
        }
        chunk.len = 0;
    }

    fn write(&mut self, fields: [u32; Chunk::COLUMNS], out: &mut Buffer) {
        self.encode();
        for (column, field) in self.columns.iter_mut().zip(fields) {
            if column.len() > 0 {
                out.bytes(field, column.as_slice());
            }
            column.clear();
        }
        self.last = 0;
    }
}

impl Bundle {
    /// Number of events after which a bundle is written.
    pub(super) const FULL: usize = 1024;

    pub(super) const fn is_full(&self) -> bool {
        self.count >= Self::FULL
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a switch at `at`, nanoseconds of `CLOCK_BOOTTIME`.
    #[inline]
    pub(super) fn switch(&mut self, at: u64, switch: &SchedSwitch<'_>) {
        self.count += 1;
        let SchedSwitch { prev_state, next, .. } = switch;
        if !self.began {
            return self.begin(at, switch);
        }
        let comm = self.comms.index(next.comm);
        let values = [*prev_state as u64, next.tid.into(), next.prio as i64 as u64, comm];
        self.switch.push(at, values);
    }

    #[cold]
    fn begin(&mut self, at: u64, switch: &SchedSwitch<'_>) {
        let SchedSwitch { prev, prev_state, next, .. } = switch;
        self.began = true;
        let out = &mut self.first;
        let event = out.open(ftrace::EVENT);
        out.varint(ftrace::EVENT_TIMESTAMP, at);
        out.int(ftrace::EVENT_PID, prev.tid.into());
        let message = out.open(ftrace::EVENT_SCHED_SWITCH);
        out.text(ftrace::SWITCH_PREV_COMM, prev.comm);
        out.int(ftrace::SWITCH_PREV_PID, prev.tid.into());
        out.int(ftrace::SWITCH_PREV_PRIO, prev.prio.into());
        out.int(ftrace::SWITCH_PREV_STATE, *prev_state);
        out.text(ftrace::SWITCH_NEXT_COMM, next.comm);
        out.int(ftrace::SWITCH_NEXT_PID, next.tid.into());
        out.int(ftrace::SWITCH_NEXT_PRIO, next.prio.into());
        out.close(message);
        out.close(event);
    }

    /// Adds a wake-up at `at`, nanoseconds of `CLOCK_BOOTTIME`.
    #[inline]
    pub(super) fn waking(&mut self, at: u64, waking: &SchedWaking<'_>) {
        self.count += 1;
        let task = &waking.task;
        let comm = self.comms.index(task.comm);
        let values = [task.tid.into(), waking.target_cpu.into(), task.prio as i64 as u64, comm];
        self.waking.push(at, values);
        self.flags.push(waking.interrupt);
    }

    /// Writes a packet with the events since the last one.
    pub(super) fn write(&mut self, cpu: u32, sequence: u64, out: &mut Buffer) {
        let message = out.open_large(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, sequence);
        let bundle = out.open_large(packet::FTRACE_EVENTS);
        out.varint(ftrace::CPU, cpu.into());
        out.raw(self.first.as_slice());
        let compact = out.open_large(ftrace::COMPACT_SCHED);
        out.raw(self.comms.table.as_slice());
        self.switch.write(
            [
                ftrace::COMPACT_SWITCH_TIMESTAMP,
                ftrace::COMPACT_SWITCH_PREV_STATE,
                ftrace::COMPACT_SWITCH_NEXT_PID,
                ftrace::COMPACT_SWITCH_NEXT_PRIO,
                ftrace::COMPACT_SWITCH_NEXT_COMM,
            ],
            out,
        );
        self.waking.write(
            [
                ftrace::COMPACT_WAKING_TIMESTAMP,
                ftrace::COMPACT_WAKING_PID,
                ftrace::COMPACT_WAKING_TARGET_CPU,
                ftrace::COMPACT_WAKING_PRIO,
                ftrace::COMPACT_WAKING_COMM,
            ],
            out,
        );
        self.flags.write(out);
        out.close_large(compact);
        out.close_large(bundle);
        out.close_large(message);
        self.first.clear();
        self.comms.clear();
        self.count = 0;
    }
}

impl<W: Write> PerfettoSink<W> {
    /// Returns the bundle of CPU `cpu` and the time on `CLOCK_BOOTTIME`: viewers interpret the
    /// times of scheduler events on that clock only.
    #[inline]
    pub(super) fn bundle(&mut self, at: Timestamp, cpu: u32) -> io::Result<(u64, &mut Bundle)> {
        let Some(offset) = self.to_boottime else { return Err(unrelated()) };
        let at = self.nanos(at.saturating_add_nanos(offset));
        let place = cpu as usize;
        if place >= self.cpus.len() {
            self.add_cpu(cpu)?;
        }
        self.stats.sched += 1;
        let bundle = self.cpus.get_mut(place).ok_or_else(|| no_cpu(cpu))?;
        Ok((at, bundle))
    }

    #[cold]
    pub(super) fn add_cpu(&mut self, cpu: u32) -> io::Result<()> {
        /// More CPUs than any kernel supports.
        const MAX_CPUS: u32 = 1 << 16;
        if cpu >= MAX_CPUS {
            return Err(no_cpu(cpu));
        }
        self.cpus.resize_with(cpu as usize + 1, Bundle::default);
        Ok(())
    }

    #[cold]
    pub(super) fn write_bundle(&mut self, cpu: usize) -> io::Result<()> {
        if self.cpus.get(cpu).is_none_or(Bundle::is_empty) {
            return Ok(());
        }
        self.prepare()?;
        if let Some(bundle) = self.cpus.get_mut(cpu) {
            bundle.write(cpu as u32, SEQUENCE, &mut self.out);
        }
        Ok(())
    }
}

#[cold]
fn unrelated() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "scheduler events need a clock snapshot with CLOCK_BOOTTIME before them",
    )
}

#[cold]
fn no_cpu(cpu: u32) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("there is no processor {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_index_each() {
        let mut comms = Comms::default();
        // Names of all lengths that differ in one byte, in their length, or in a zero at the end.
        let mut names: Vec<Vec<u8>> = Vec::new();
        for len in 0..20 {
            for place in 0..len {
                let mut name = vec![b'a'; len];
                name[place] = b'b';
                names.push(name);
            }
            names.push(vec![0; len]);
            names.push(vec![b'a'; len]);
        }
        names.sort();
        names.dedup();
        for _ in 0..2 {
            for (index, name) in names.iter().enumerate() {
                assert_eq!(comms.index(name), index as u64, "{name:?}");
            }
        }
        comms.clear();
        assert_eq!(comms.index(b"a"), 0);
        assert_eq!(comms.table.as_slice(), b"\x2a\x01a");
    }
}
