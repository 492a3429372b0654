//! Records of the kernel in a `perf.data` file, as they are read.

use super::events::TRACEPOINTS;
use crate::sources::kernel::sampling;
use crate::sources::kernel::sideband_record::{Place, Sideband};
use perf_data::{
    BuildIds, Error, Features, FileWriter, RecordWriter, RecordedEvent, Result, Synthesizer,
    TracingData,
};
use perf_monitor::{RawRecord, RecordLayout, RingSet, SetEvent, Timestamp, Tracefs};
use std::io::{BufWriter, Seek, Write};

/// The processes that exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    All,
    Process(u32),
    /// The command comes later.
    None,
}

/// A file of records.
pub(super) struct RawRecords<F: Write + Seek> {
    writer: FileWriter<BufWriter<F>>,
    events: Vec<SetEvent>,
    tracing: Option<TracingData>,
    /// With the layout of the sideband, if the names of functions are needed.
    build_ids: Option<(BuildIds, RecordLayout)>,
    sideband: Option<Sideband>,
}

impl<F: Write + Seek> RawRecords<F> {
    /// Starts the file with these events of the set, the first of which is the sideband. With
    /// `has_stacks`, it has what the names of functions need.
    pub(super) fn create(
        file: F,
        tracefs: Option<&Tracefs>,
        set: &RingSet,
        events: &[(String, SetEvent)],
        existing: Existing,
        has_stacks: bool,
    ) -> Result<Self> {
        const BUFFER: usize = 1 << 20;
        let mut recorded = Vec::new();
        for (name, event) in events {
            let (attr, ids) = (set.attr(*event)?, set.ids(*event)?);
            recorded.push(RecordedEvent { name: name.clone(), attr, ids });
        }
        let formats =
            |tracefs| TracingData::of_this_kernel(tracefs, TRACEPOINTS.map(|name| ("sched", name)));
        let tracing = tracefs.map(formats).transpose()?;
        let id = |event: &RecordedEvent| event.ids.first().copied().unwrap_or_default();
        let sideband = recorded.first().map(|event| Sideband { attr: event.attr, id: id(event) });
        let mut writer = FileWriter::new(BufWriter::with_capacity(BUFFER, file), recorded)?;
        if let Some(Sideband { attr, .. }) = sideband {
            let mut synthesizer = Synthesizer::new(&attr, has_stacks);
            if has_stacks {
                synthesizer.kernel(&mut writer)?;
            }
            match existing {
                Existing::All => synthesizer.processes(&mut writer)?,
                Existing::Process(pid) => synthesizer.process(pid, &mut writer)?,
                Existing::None => {}
            }
        }
        let build_ids = sideband
            .filter(|_| has_stacks)
            .map(|Sideband { attr, .. }| (BuildIds::new(&attr), RecordLayout::new(&attr)));
        let events = events.iter().map(|(_, event)| *event).collect();
        Ok(Self { writer, events, tracing, build_ids, sideband })
    }

    /// Takes the ids of events that were opened on a CPU which came online.
    pub(super) fn refresh_ids(&mut self, set: &RingSet) -> Result<()> {
        self.writer.add_ids(sampling::ids(set, &self.events)?);
        Ok(())
    }

    /// Adds a process that was started before its records begin.
    pub(super) fn process(&mut self, pid: u32) -> Result<()> {
        let Some(Sideband { attr, .. }) = &self.sideband else { return Ok(()) };
        // Its program comes later: it has no mappings that are of use.
        Synthesizer::new(attr, false).process(pid, &mut self.writer)
    }

    pub(super) fn record(&mut self, record: RawRecord<'_>) -> Result<()> {
        self.writer.record(match &mut self.build_ids {
            Some((ids, layout)) => ids.apply(layout, record),
            None => record,
        })
    }

    /// Adds a record of the sideband that the kernel has not written, with this body.
    pub(super) fn add(&mut self, type_: u32, body: &[u64], place: Place) -> Result<()> {
        let Some(sideband) = self.sideband else { return Ok(()) };
        sideband.write(type_, body, place, &mut self.writer)
    }

    /// Adds the number of records that the buffer of a CPU has lost.
    pub(super) fn lost(&mut self, at: Timestamp, cpu: u32, count: u64) -> Result<()> {
        let Some(sideband) = self.sideband else { return Ok(()) };
        sideband.write_lost(at, cpu, count, &mut self.writer)
    }

    /// Adds that a CPU went offline.
    pub(super) fn offline(&mut self, at: Timestamp, cpu: u32) -> Result<()> {
        let Some(sideband) = self.sideband else { return Ok(()) };
        sideband.write_offline(at, cpu, &mut self.writer)
    }

    /// All records before this one are earlier than those after the next one.
    pub(super) fn finish_round(&mut self) -> Result<()> {
        self.writer.finish_round()
    }

    /// Completes the file.
    pub(super) fn finish(self) -> Result<F> {
        let mut features = Features::of_this_machine();
        features.tracing = self.tracing;
        features.clock = perf_data::ClockReference::now(trace_common::ClockDomain::Monotonic);
        let out = self.writer.finish(&features)?;
        out.into_inner().map_err(|error| Error::Io {
            operation: "write the recording",
            offset: 0,
            source: error.into_error(),
        })
    }
}
