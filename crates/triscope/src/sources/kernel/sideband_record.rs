//! Records of the sideband that the kernel has not written.

use perf_data::{RecordWriter, Result, perf_event_attr};
use perf_monitor::{RawRecord, SampleFlags, Timestamp};

const PERF_RECORD_LOST: u32 = 2;

/// Where and when a record is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) tid: u32,
    pub(crate) at: Timestamp,
    pub(crate) cpu: u32,
}

/// The event that the records are of: one with `sample_id_all`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sideband {
    pub(crate) attr: perf_event_attr,
    /// One of its ids.
    pub(crate) id: u64,
}

impl Sideband {
    /// Writes a record with this body.
    pub(crate) fn write(
        &self,
        type_: u32,
        body: &[u64],
        place: Place,
        out: &mut impl RecordWriter,
    ) -> Result<()> {
        const HEADER: usize = 8;
        let recorded = SampleFlags::from_bits_retain(self.attr.sample_type);
        let fields = [
            (SampleFlags::TID, u64::from(place.tid) << 32),
            (SampleFlags::TIME, place.at.nanos() as u64),
            (SampleFlags::ID, self.id),
            (SampleFlags::STREAM_ID, self.id),
            (SampleFlags::CPU, u64::from(place.cpu)),
            (SampleFlags::IDENTIFIER, self.id),
        ];
        let present = fields.into_iter().filter(|(field, _)| recorded.contains(*field));
        let words = body.iter().copied().chain(present.map(|(_, value)| value));
        let mut bytes = vec![0; HEADER];
        words.for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
        // `perf_event_header`: type, flags, size.
        let size = (bytes.len() as u16).to_ne_bytes();
        bytes.splice(..HEADER, [&type_.to_ne_bytes()[..], &[0; 2], &size].concat());
        match RawRecord::split_first(&bytes, 0) {
            Some((raw, _)) => out.record(raw),
            None => Ok(()), // its size is that of the header
        }
    }

    /// Writes a `PERF_RECORD_LOST` of this number of records.
    pub(crate) fn write_lost(
        &self,
        at: Timestamp,
        cpu: u32,
        count: u64,
        out: &mut impl RecordWriter,
    ) -> Result<()> {
        self.write(PERF_RECORD_LOST, &[self.id, count], Place { tid: 0, at, cpu }, out)
    }

    /// Writes that a CPU went offline: a `PERF_RECORD_LOST` of no records and of no event. It is none of the kernel's,
    /// whose records have the id of an event.
    pub(crate) fn write_offline(
        &self,
        at: Timestamp,
        cpu: u32,
        out: &mut impl RecordWriter,
    ) -> Result<()> {
        self.write(PERF_RECORD_LOST, &[0, 0], Place { tid: 0, at, cpu }, out)
    }
}
