//! The samples of a set of events, while they are taken.

use crate::failure::{Failure, Result};
use crate::sources::goroutines::Goroutines;
use crate::sources::kernel::failure;
use crate::sources::kernel::sampling::Opened;
use crate::sources::symbols::unwind::Unwinder;
use perf_data::{BuildIds, Entry, Session};
use perf_monitor::{ClockDomain, RawRecord, RecordLayout, RingSet, Timestamp, event_now};
use trace_export::profile::Label;
use trace_timeline::sources::perf::PerfSource;
use trace_timeline::{EntityId, Event, StackId, Tables, TextId};

/// What gets the events that records become: those of samples of goroutines with their labels.
pub(crate) type Each<'a> = &'a mut dyn FnMut(Event, &[(TextId, Label)], &mut Tables);

/// Nanoseconds for which records are held back at most, to bring them in order: what happened in them is
/// not known yet.
const HELD: i64 = 50_000_000;

/// Makes events of the records of a set. Stacks have addresses: [`LiveSamples::name`] names their
/// functions.
pub(crate) struct LiveSamples {
    session: Session,
    /// Of the records about tasks.
    layout: RecordLayout,
    build_ids: BuildIds,
    is_woken: bool,
    pub(crate) source: PerfSource,
    pub(crate) tables: Tables,
    goroutines: Option<Goroutines>,
    /// Events of a record.
    events: Vec<Event>,
    /// When the events were disabled.
    end: Option<Timestamp>,
}

impl LiveSamples {
    /// Reads the samples of these events. With `is_woken`, wake-ups are events, too. Samples of Go
    /// programs have their goroutine if `goroutines` are given.
    pub(crate) fn new(
        opened: &mut Opened,
        is_woken: bool,
        goroutines: Option<Goroutines>,
    ) -> Result<Self> {
        let (events, features) = (opened.events.clone(), std::mem::take(&mut opened.features));
        let attr = events.first().map(|event| event.attr).unwrap_or_default();
        let layout = RecordLayout::new(&attr);
        let session = Session::new(events, features).map_err(Failure::new)?;
        if goroutines.is_some() {
            Goroutines::prepare(&mut opened.set);
        }
        let source = source(&session, is_woken)?;
        let (tables, events) = (Tables::new(), Vec::new());
        let build_ids = BuildIds::new(&attr);
        let end = None;
        Ok(Self { session, layout, build_ids, is_woken, source, tables, goroutines, events, end })
    }

    pub(crate) const fn has_goroutines(&self) -> bool {
        self.goroutines.is_some()
    }

    pub(crate) const fn goroutines(&self) -> Option<&Goroutines> {
        self.goroutines.as_ref()
    }

    /// Adds ids of the events, in their order.
    pub(crate) fn add_ids(&mut self, ids: Vec<Vec<u64>>) -> Result {
        self.session.add_ids(ids).map_err(Failure::new)
    }

    /// Forgets processes, stacks and goroutines.
    pub(crate) fn forget(&mut self) -> Result {
        if let Some(goroutines) = &mut self.goroutines {
            goroutines.forget();
        }
        self.source = source(&self.session, self.is_woken)?;
        self.tables = Tables::new();
        Ok(())
    }

    /// Takes a record.
    pub(crate) fn push(&mut self, raw: RawRecord<'_>, each: Each<'_>) {
        let Self { session, layout, build_ids, source, tables, goroutines, events, .. } = self;
        let raw = build_ids.apply(layout, raw);
        let entry = Entry::new(raw, session);
        if let (Some(goroutines), Some(Ok(record))) = (goroutines.as_mut(), entry.decode()) {
            goroutines.push(&record, tables);
        }
        source.push(&entry, tables, events);
        self.pass(each);
    }

    /// Reads what the rings have.
    pub(crate) fn round(&mut self, set: &mut RingSet, each: Each<'_>) -> Result {
        // A round passes on what the one before found: goroutines are read at once.
        for _ in 0..1 + usize::from(self.goroutines.is_some()) {
            let pushed = set.round(|record| {
                self.push(record.raw, each);
                Ok::<(), perf_monitor::Error>(())
            });
            pushed.map_err(failure)?;
        }
        Ok(())
    }

    /// Reads the rest: the events were disabled just now.
    pub(crate) fn rest(&mut self, set: &mut RingSet, each: Each<'_>) -> Result {
        self.end = event_now(ClockDomain::Monotonic);
        let pushed = set.drain(|record| {
            self.push(record.raw, each);
            Ok::<(), perf_monitor::Error>(())
        });
        pushed.map(drop).map_err(failure)
    }

    /// Ends the samples after the [rest](Self::rest): waits that have not ended have the time up to the end of the
    /// recording.
    pub(crate) fn finish(&mut self, each: Each<'_>) {
        if let Some(goroutines) = &mut self.goroutines {
            goroutines.finish();
        }
        // A thread that waits writes no record.
        if let Some(end) = self.end {
            self.source.count_waits(end, &mut self.tables, &mut self.events);
        }
        self.source.finish(&mut self.tables, &mut self.events);
        self.pass(each);
    }

    /// Passes on the time of threads that are away from the CPU up to about now.
    pub(crate) fn count_waits(&mut self, each: Each<'_>) {
        let Some(now) = event_now(ClockDomain::Monotonic) else { return };
        let at = now.saturating_add_nanos(-HELD);
        self.source.count_waits(at, &mut self.tables, &mut self.events);
        self.pass(each);
    }

    fn pass(&mut self, each: Each<'_>) {
        let Self { tables, goroutines, events, .. } = self;
        for mut event in events.drain(..) {
            let labels = match goroutines {
                Some(goroutines) => goroutines.apply(&mut event, tables),
                None => &[],
            };
            each(event, labels, tables);
        }
    }

    /// Names the functions of a stack. `None` above the limits of the tables.
    pub(crate) fn name(
        &mut self,
        stack: StackId,
        symbols: &mut crate::sources::symbols::Files,
    ) -> Option<StackId> {
        self.source.name(stack, symbols, &mut self.tables)
    }
}

/// The number of a process.
pub(crate) fn pid(process: EntityId, tables: &Tables) -> Option<u32> {
    tables.entities.get(process).and_then(|entity| u32::try_from(entity.number).ok())
}

fn source(session: &Session, is_woken: bool) -> Result<PerfSource> {
    let source = PerfSource::with_offset(session, 0).map_err(Failure::new)?;
    let source = match is_woken {
        true => source.with_wake_ups_only(),
        false => source.with_scheduler_as_samples(),
    };
    Ok(source.with_unwinder(Unwinder::live()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_data::{Features, RecordedEvent};
    use perf_monitor::{SampleFlags, perf_event_attr};
    use trace_timeline::{EventKind, SampleKind};

    fn now() -> Timestamp {
        event_now(ClockDomain::Monotonic).unwrap()
    }

    /// To read the rest takes a while.
    #[test]
    fn a_wait_that_lasts_ends_with_the_recording() {
        const SAMPLE_OF_USER: u64 = 9 | 2 << 32;
        const SWITCH_OUT: u64 = 14 | 1 << 45;
        const USER: u64 = -512_i64 as u64;
        const ID: u64 = 9;
        const TASK: u64 = 1 | 7 << 32;
        let set = match RingSet::builder().thread(0).pages(1).open() {
            Ok(set) => set,
            Err(error) => {
                message!("\n==== SKIPPED: a wait that lasts: {error}");
                return;
            }
        };
        // Context switches.
        let mut attr = perf_event_attr::new(1, 3);
        let fields = SampleFlags::IDENTIFIER | SampleFlags::TID | SampleFlags::TIME;
        attr.sample_type = (fields | SampleFlags::CPU | SampleFlags::CALLCHAIN).bits();
        attr.sample_period = 1;
        attr.set_sample_id_all(true);
        attr.set_context_switch(true);
        let event = RecordedEvent { name: "context-switches".to_owned(), attr, ids: vec![ID] };
        let (events, writers, features) = (vec![event], Vec::new(), Features::default());
        let mut opened = Opened { set, events, writers, features, user_only: false };
        let mut samples = LiveSamples::new(&mut opened, false, None).unwrap();
        let start = now();
        let mut push = |head: u64, body: &[u64]| {
            let size = 8 + 8 * body.len() as u64;
            let words = [&[head | size << 48], body].concat();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            samples.push(RawRecord::split_first(&bytes, 0).unwrap().0, &mut |_, _, _| ());
        };
        let time = start.nanos() as u64;
        push(SAMPLE_OF_USER, &[ID, TASK, time, 0, 2, USER, 0xa0]);
        push(SWITCH_OUT, &[TASK, time, 0, ID]);
        samples.rest(&mut opened.set, &mut |_, _, _| ()).unwrap();
        let end = now();
        while now() == end {}
        let mut waits = Vec::new();
        samples.finish(&mut |event, _, _| {
            if matches!(event.kind, EventKind::Sample { kind: SampleKind::OffCpu, .. }) {
                waits.push(event.time);
            }
        });
        assert!(matches!(waits[..], [at] if start < at && at <= end), "{waits:?}");
    }
}
