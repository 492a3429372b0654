//! Switches of the kernel's scheduler, in columns: about seven bytes each.

use super::field::{TRACE_PACKET, ftrace, packet};
use super::proto::Buffer;
use crate::model::{SchedSwitch, SchedWaking};

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
    comms: Vec<Box<[u8]>>,
    intern_table: Buffer,
}

/// Columns of one kind of event. A column is a packed field.
#[derive(Debug, Default)]
struct Columns {
    last: u64,
    columns: [Buffer; 5],
}

impl Columns {
    fn push(&mut self, at: u64, values: [u64; 4]) {
        let [times, rest @ ..] = &mut self.columns;
        // A step back, which the merge of several ring buffers may cause, wraps around, and the
        // reader's addition undoes it.
        times.plain_varint(at.wrapping_sub(self.last));
        self.last = at;
        for (column, value) in rest.iter_mut().zip(values) {
            column.plain_varint(value);
        }
    }

    fn write(&mut self, fields: [u32; 5], out: &mut Buffer) {
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

    /// Adds a switch at `at`, nanoseconds of `CLOCK_BOOTTIME`.
    pub(super) fn switch(&mut self, at: u64, switch: &SchedSwitch<'_>) {
        self.count += 1;
        let SchedSwitch { prev, prev_state, next, .. } = switch;
        if !self.began {
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
            return;
        }
        let comm = self.comm(next.comm);
        let values = [*prev_state as u64, next.tid as i64 as u64, next.prio as i64 as u64, comm];
        self.switch.push(at, values);
    }

    /// Adds a wake-up at `at`, nanoseconds of `CLOCK_BOOTTIME`.
    pub(super) fn waking(&mut self, at: u64, waking: &SchedWaking<'_>) {
        self.count += 1;
        let task = &waking.task;
        let comm = self.comm(task.comm);
        let values =
            [task.tid as i64 as u64, waking.target_cpu.into(), task.prio as i64 as u64, comm];
        self.waking.push(at, values);
    }

    /// Returns the index of a thread's name in the bundle's table.
    fn comm(&mut self, comm: &[u8]) -> u64 {
        let place = self.comms.iter().position(|c| **c == *comm);
        let place = place.unwrap_or_else(|| {
            self.comms.push(comm.into());
            self.intern_table.text(ftrace::COMPACT_INTERN_TABLE, comm);
            self.comms.len() - 1
        });
        place as u64
    }

    /// Writes a packet with the events since the last one, if there are any.
    pub(super) fn write(&mut self, cpu: u32, sequence: u64, out: &mut Buffer) {
        if self.count == 0 {
            return;
        }
        let message = out.open_large(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, sequence);
        let bundle = out.open_large(packet::FTRACE_EVENTS);
        out.varint(ftrace::CPU, cpu.into());
        out.raw(self.first.as_slice());
        let compact = out.open_large(ftrace::COMPACT_SCHED);
        out.raw(self.intern_table.as_slice());
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
        out.close_large(compact);
        out.close_large(bundle);
        out.close_large(message);
        self.first.clear();
        self.intern_table.clear();
        self.comms.clear();
        self.count = 0;
    }
}
