//! The sequence of packets: its state, and the times of packets.

use super::clock::{Delta, DeltaClock};
use super::event::category_iid;
use super::field::{TRACE_PACKET, interned, packet};
use super::snapshot::clock_id;
use super::{FLUSH_AT, PerfettoSink};
use crate::model::Category;
use crate::proto::Open;
use std::io::{self, Write};
use trace_common::Timestamp;

/// The single packet sequence of a sink.
pub(super) const SEQUENCE: u64 = 1;
/// `sequence_flags`: resets the interned data.
const STATE_CLEARED: u64 = 1;

impl<W: Write> PerfettoSink<W> {
    /// Must be called before every packet: writes out complete packets, and begins the sequence,
    /// again after each reset of the table of names.
    #[inline]
    pub(super) fn prepare(&mut self) -> io::Result<()> {
        if self.out.len() >= FLUSH_AT {
            self.flush()?;
        }
        if self.written.epoch != Some(self.names.epoch()) {
            self.restart();
        }
        Ok(())
    }

    /// As [`PerfettoSink::prepare`], for packets with this time, which it returns.
    #[inline]
    pub(super) fn prepare_at(&mut self, at: Timestamp) -> io::Result<u64> {
        let at = self.nanos(at);
        self.prepare()?;
        if self.clock.last().is_none() {
            self.start_delta_clock(at);
        }
        Ok(at)
    }

    #[cold]
    pub(super) fn restart(&mut self) {
        let first = self.written.epoch.is_none();
        self.written.epoch = Some(self.names.epoch());
        self.written.names.clear();
        self.written.name_count = 0;
        self.written.texts.clear();
        self.written.frames.clear();
        self.written.stacks.clear();

        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        out.varint(packet::SEQUENCE_FLAGS, STATE_CLEARED);
        if first {
            out.varint(packet::FIRST_PACKET_ON_SEQUENCE, 1);
        }
        self.clock.write_default(out);
        let data = out.open(packet::INTERNED_DATA);
        for category in Category::ALL {
            let entry = out.open(interned::EVENT_CATEGORIES);
            out.varint(interned::IID, category_iid(category).into());
            out.text(interned::TEXT, category.name().as_bytes());
            out.close(entry);
        }
        out.close(data);
        out.close(message);
        if let Some(last) = self.clock.last() {
            self.start_delta_clock(last);
        }
    }

    /// Makes times relative to `at`.
    #[cold]
    pub(super) fn start_delta_clock(&mut self, at: u64) {
        let at = at.max(self.last_snapshot);
        if self.clock.start(at) {
            self.use_fine_clock();
        }
        self.snapshot(at, &mut vec![(clock_id(self.domain), at)], true);
    }

    /// Writes that the times of the following packets are in nanoseconds.
    #[cold]
    pub(super) fn use_fine_clock(&mut self) {
        self.clock.refine();
        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        self.clock.write_default(out);
        out.close(message);
    }

    /// The time of a packet relative to a previous one. Call it before the packet is opened.
    ///
    /// Deltas are signed: a step back takes ten bytes, and the deltas after it are small again.
    #[inline]
    pub(super) fn delta(&mut self, at: u64) -> Delta {
        match self.clock.delta(at) {
            Some(delta) => delta,
            None => self.fine_delta(at),
        }
    }

    #[cold]
    pub(super) fn fine_delta(&mut self, at: u64) -> Delta {
        self.use_fine_clock();
        self.clock.delta(at).unwrap_or(Delta { value: 0, is_exception: false })
    }

    /// Writes the time and the sequence of a packet.
    #[inline]
    pub(super) fn packet_head(&mut self, delta: Delta) {
        self.out.varint(packet::TIMESTAMP, delta.value);
        self.out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        if delta.is_exception {
            DeltaClock::write_exception(&mut self.out);
        }
    }

    /// Begins a packet: all fields before its content.
    ///
    /// It has no `SEQ_NEEDS_INCREMENTAL_STATE`: readers skip packets with that flag while the state
    /// of their sequence is not known. Here each file begins with the state, and no packet is lost.
    #[inline]
    pub(super) fn open_packet(&mut self, at: u64) -> Open {
        let delta = self.delta(at);
        let message = self.out.open(TRACE_PACKET);
        self.packet_head(delta);
        message
    }
}
