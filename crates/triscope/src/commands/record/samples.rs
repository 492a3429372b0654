//! Samples of the CPU, and stacks where threads leave it. They are written to a file while the
//! recording runs, and named and drawn at its end: symbols can take longer to read than a buffer of
//! the kernel takes to fill.

use super::drawing::id;
use super::keep::KeptFile;
use super::members::Members;
use super::raw::{Existing, RawRecords};
use crate::sources::kernel::sampling::{Rate, Scope, with_kernel_or_not};
use crate::sources::kernel::sideband_record::Place;
use crate::sources::kernel::switch_records::PERF_RECORD_SWITCH_CPU_WIDE;
use crate::sources::kernel::usual_event;
use perf_data::Error;
use perf_monitor::{RingSet, SetEvent, SetRecord, Tracefs};
use trace_timeline::sources::kernel::{Record, ThreadRef};

/// What is sampled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    /// Samples per second and CPU, of threads that run.
    pub(super) freq: Option<u64>,
    /// Whether switches and wake-ups have stacks.
    pub(super) off_cpu: bool,
}

impl Wanted {
    pub(super) const fn is_any(self) -> bool {
        self.freq.is_some() || self.off_cpu
    }
}

/// The events with stacks.
pub(super) struct Sampling {
    /// Whether switches and wake-ups have stacks.
    off_cpu: bool,
    /// The event that is sampled, with its name.
    pub(super) sampled: Option<(String, SetEvent)>,
}

impl Sampling {
    /// Adds the sampled event to the set; of user space only where the kernel may not be sampled.
    pub(super) fn open(
        wanted: Wanted,
        scope: &Scope,
        set: &mut RingSet,
    ) -> perf_monitor::Result<Option<Self>> {
        if !wanted.is_any() {
            return Ok(None);
        }
        let mut sampled = None;
        if let Some(freq) = wanted.freq {
            let event = usual_event()?;
            let mut name = event.name().to_owned();
            let mut add = |user_only| {
                set.add(&scope.chains(&event, Rate::Usual(freq), user_only)).map(|e| (e, user_only))
            };
            let (added, user_only) = with_kernel_or_not([&event], &mut add)?;
            if user_only {
                name.push_str(":u");
            }
            sampled = Some((name, added));
        }
        Ok(Some(Self { off_cpu: wanted.off_cpu, sampled }))
    }

    /// Starts the file of the samples, with those events of the scheduler that have stacks.
    pub(super) fn start(
        &self,
        file: KeptFile,
        tracefs: Option<&Tracefs>,
        set: &RingSet,
        scheduler: Vec<(String, SetEvent)>,
        existing: Existing,
    ) -> Result<Samples, Error> {
        let mut events: Vec<(String, SetEvent)> =
            set.sideband().map(|event| ("dummy:u".to_owned(), event)).into_iter().collect();
        if self.off_cpu {
            events.extend(scheduler);
        }
        events.extend(self.sampled.clone());
        let tracefs = tracefs.filter(|_| self.off_cpu);
        let records = RawRecords::create(file, tracefs, set, &events, existing, true)?;
        let sampled = self.sampled.as_ref().map(|(_, event)| *event);
        Ok(Samples { records, off_cpu: self.off_cpu, sampled, count: 0 })
    }
}

/// The samples of the drawn threads.
pub(super) struct Samples {
    records: RawRecords<KeptFile>,
    off_cpu: bool,
    sampled: Option<SetEvent>,
    /// Number of samples of the CPU.
    count: u64,
}

impl Samples {
    /// Takes the ids of events that were opened on a CPU which came online.
    pub(super) fn refresh_ids(&mut self, set: &RingSet) -> Result<(), Error> {
        self.records.refresh_ids(set)
    }

    /// Takes a record, unless it is of a thread that is not drawn.
    pub(super) fn push(
        &mut self,
        record: &SetRecord<'_>,
        decoded: Option<&Record<'_>>,
        members: &Members,
    ) -> Result<(), Error> {
        let is_drawn = |tid: u32| tid != 0 && members.is_named(tid);
        let drawn = |thread: ThreadRef| thread.tid().filter(|tid| is_drawn(*tid));
        if record.raw.type_() == PERF_RECORD_SWITCH_CPU_WIDE {
            return match decoded {
                Some(Record::Runs { thread, .. }) if self.off_cpu => match drawn(*thread) {
                    Some(tid) => self.enters(tid, record),
                    None => Ok(()),
                },
                _ => Ok(()),
            };
        }
        // Only samples have it at this place.
        let ids = record.layout.pid_tid(record.raw);
        let is_taken = if ids.is_none() {
            true
        } else if self.sampled == Some(record.event) {
            let is_taken = ids.and_then(|(_, tid)| id(tid)).is_some_and(is_drawn);
            self.count += u64::from(is_taken);
            is_taken
        } else {
            match decoded.filter(|_| self.off_cpu) {
                Some(Record::Switch { prev, .. }) if drawn(prev.thread).is_some() => true,
                // The stack is that of another thread, which is not drawn.
                Some(Record::Switch { next, .. }) => match drawn(next.thread) {
                    Some(tid) => return self.enters(tid, record),
                    None => false,
                },
                _ => false,
            }
        };
        if is_taken { self.records.record(record.raw) } else { Ok(()) }
    }

    /// Writes that a thread is back on a CPU: a `PERF_RECORD_SWITCH` of the sideband.
    fn enters(&mut self, tid: u32, record: &SetRecord<'_>) -> Result<(), Error> {
        const PERF_RECORD_SWITCH: u32 = 14;
        let place = Place { tid, at: record.time, cpu: record.cpu };
        self.records.add(PERF_RECORD_SWITCH, &[], place)
    }

    pub(super) fn finish_round(&mut self) -> Result<(), Error> {
        self.records.finish_round()
    }

    /// Completes the file. Returns it with the number of samples of the CPU.
    pub(super) fn finish(self) -> Result<(KeptFile, u64), Error> {
        Ok((self.records.finish()?, self.count))
    }
}
