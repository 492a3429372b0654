//! Built records, for the tests of this module.

use super::PerfSource;
use crate::{Event, Tables};
use perf_data::{Entry, Features, RecordedEvent, Session};
use perf_monitor::RawRecord;

/// A recording, and what its source has made of it.
pub(super) struct Run {
    session: Session,
    pub(super) source: PerfSource,
    pub(super) tables: Tables,
    pub(super) events: Vec<Event>,
}

impl Run {
    pub(super) fn of(events: impl IntoIterator<Item = RecordedEvent>) -> Self {
        let session = Session::new(events, Features::default()).unwrap();
        let source = PerfSource::with_offset(&session, 0).unwrap();
        Self { session, source, tables: Tables::new(), events: Vec::new() }
    }

    pub(super) fn push(&mut self, type_: u32, misc: u16, body: &[u64]) {
        let size = 8 + 8 * body.len();
        let header = u64::from(type_) | u64::from(misc) << 32 | (size as u64) << 48;
        let words = [&[header], body].concat();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
        let entry = Entry { raw, session: &self.session };
        self.source.push(&entry, &mut self.tables, &mut self.events);
    }
}
