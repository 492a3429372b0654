//! What decoders get, and what they make of it.

use super::EventId;
use crate::count::ReadValues;
use crate::error::DecodeError;
use crate::format::{FieldFormat, TracepointFormat};
use crate::record::{RawRecord, Record, RecordLayout, Sample};
use crate::ring_set::SetRecord;
use trace_common::Timestamp;

/// An error of a decoder.
pub type DecoderError = Box<dyn std::error::Error + Send + Sync>;

/// A borrowed sample: the argument of the decoder of its event. It is decoded on request only.
#[derive(Clone, Copy, Debug)]
pub struct SampleView<'a> {
    pub(super) event: EventId,
    pub(super) record: &'a SetRecord<'a>,
    pub(super) format: Option<&'a TracepointFormat>,
}

impl<'a> SampleView<'a> {
    /// Its event.
    pub const fn event(&self) -> EventId {
        self.event
    }

    /// Its time, on the clock of the monitor.
    pub const fn time(&self) -> Timestamp {
        self.record.time
    }

    /// The CPU that it was taken on.
    pub const fn cpu(&self) -> u32 {
        self.record.cpu
    }

    /// Process and thread id, with `SampleFlags::TID`. In a PID namespace they are 0 for tasks
    /// outside of it; the field `common_pid` of a tracepoint has the global thread id.
    #[inline]
    pub fn pid_tid(&self) -> Option<(u32, u32)> {
        self.record.layout.pid_tid(self.record.raw)
    }

    /// The data of a tracepoint or probe.
    #[inline]
    pub fn data(&self) -> Option<&'a [u8]> {
        self.record.layout.raw_data(self.record.raw)
    }

    /// The fields of [`data`](Self::data), for events that have them.
    pub const fn format(&self) -> Option<&'a TracepointFormat> {
        self.format
    }

    /// An unsigned field of the data.
    #[inline]
    pub fn u64(&self, field: &FieldFormat) -> Option<u64> {
        field.u64(self.data()?)
    }

    /// A signed field of the data.
    #[inline]
    pub fn i64(&self, field: &FieldFormat) -> Option<i64> {
        field.i64(self.data()?)
    }

    /// A string of the data, without its NUL.
    #[inline]
    pub fn text(&self, field: &FieldFormat) -> Option<&'a [u8]> {
        field.text(self.data()?)
    }

    /// The counts of a group of counters, leader first, and the times.
    ///
    /// # Errors
    ///
    /// Those of [`sample`](Self::sample).
    pub fn counts(&self) -> Result<Option<ReadValues<'a>>, DecodeError> {
        Ok(self.sample()?.and_then(|sample| sample.read))
    }

    /// All fields. `None` never happens for samples that the monitor passes to decoders.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the record is shorter than its layout.
    pub fn sample(&self) -> Result<Option<Sample<'a>>, DecodeError> {
        Ok(match self.record.layout.decode(self.record.raw)? {
            Record::Sample(sample) => Some(sample),
            _ => None,
        })
    }

    /// The undecoded record.
    pub const fn raw(&self) -> RawRecord<'a> {
        self.record.raw
    }

    /// Its layout.
    pub const fn layout(&self) -> &'a RecordLayout {
        self.record.layout
    }
}

/// A record that is not a sample: a loss, a throttling, a fork, a name and so on.
#[derive(Clone, Copy, Debug)]
pub struct RecordView<'a> {
    /// The event that wrote it; `None` for the [sideband](super::EventMonitorBuilder::sideband).
    pub(super) event: Option<EventId>,
    pub(super) record: &'a SetRecord<'a>,
}

impl<'a> RecordView<'a> {
    /// The event that wrote it; `None` for the sideband. Losses have the event that wrote next, not
    /// that of the lost samples: [`EventMonitor::counts`](super::EventMonitor::counts) has those.
    pub const fn event(&self) -> Option<EventId> {
        self.event
    }

    /// Its time, on the clock of the monitor.
    pub const fn time(&self) -> Timestamp {
        self.record.time
    }

    /// The CPU that it was written on.
    pub const fn cpu(&self) -> u32 {
        self.record.cpu
    }

    /// The record.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if it is shorter than its layout.
    pub fn record(&self) -> Result<Record<'a>, DecodeError> {
        self.record.layout.decode(self.record.raw)
    }

    /// The undecoded record.
    pub const fn raw(&self) -> RawRecord<'a> {
        self.record.raw
    }
}

/// An item of a monitor: the value that a decoder made of a sample or record, or an external event.
#[derive(Debug)]
#[non_exhaustive]
pub struct MonitorSample<T> {
    /// The event; `None` for sideband records.
    pub event: Option<EventId>,
    /// Its time, on the clock of the monitor.
    pub time: Timestamp,
    /// The CPU; `None` for external events.
    pub cpu: Option<u32>,
    /// Whether a later one was delivered before.
    pub late: bool,
    /// The value, or the error of its decoder.
    pub value: Result<T, DecoderError>,
    /// Whether the counts of the event contain it: not if it is of a record that is not a sample.
    pub(super) is_counted: bool,
}
