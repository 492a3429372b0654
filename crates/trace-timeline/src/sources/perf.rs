//! The kernel's scheduler, from raw records of perf events: live ones of `perf-monitor`, or those
//! of a `perf.data` file.
//!
//! ```no_run
//! use perf_data::{Limits, Reader, SortedReader};
//! use trace_timeline::{Tables, sources::perf::PerfSource};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // perf record -k CLOCK_MONOTONIC -a -e sched:sched_switch,sched:sched_waking …
//! let file = std::fs::File::open("perf.data")?;
//! let reader = Reader::open(file, Limits::default())?;
//! let mut records = SortedReader::new(reader, Limits::default());
//! let mut tables = Tables::new();
//! let mut source = PerfSource::new(records.session())?;
//! let mut events = Vec::new();
//! while let Some(entry) = records.next_record()? {
//!     source.push(&entry, &mut tables, &mut events);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`SchedDecoder`] decodes live records: those of a `perf_monitor::RingSet` come in time order,
//! and their CPU is known.

use super::kernel::{KernelSource, KernelStats, Record, Task};
use crate::event::Event;
use crate::tables::Tables;
use perf_data::{Entry, Session, TracingData};
use perf_monitor::{FieldFormat, RawRecord, Record as PerfRecord, RecordLayout, TracepointFormat};
use trace_common::Timestamp;

/// An error of a recording that cannot be put on a timeline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// It has no context switches.
    #[error(
        "the recording has no sched:sched_switch events: record them with perf record -a \
         -e sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new"
    )]
    NoSwitches,
    /// Its clock is not `CLOCK_MONOTONIC`, which other traces are on.
    #[error(
        "the recording is not on CLOCK_MONOTONIC and cannot be related to other traces: record it \
         with perf record -k CLOCK_MONOTONIC"
    )]
    Clock,
    /// Its records have no time or no CPU.
    #[error("the records have no time or no CPU: record them with perf record -a")]
    Fields,
}

/// Decodes scheduler records.
#[derive(Clone, Debug, Default)]
pub struct SchedDecoder {
    switch: Option<(u64, SwitchFields)>,
    /// `sched_waking` and `sched_wakeup_new`.
    wakings: Vec<(u64, WakingFields)>,
}

#[derive(Clone, Debug)]
struct TaskFields {
    tid: FieldFormat,
    prio: FieldFormat,
    comm: FieldFormat,
}

#[derive(Clone, Debug)]
struct SwitchFields {
    prev: TaskFields,
    prev_state: FieldFormat,
    next: TaskFields,
}

#[derive(Clone, Debug)]
struct WakingFields {
    task: TaskFields,
    target_cpu: FieldFormat,
    /// The thread that runs: unlike the ids of the sample, in the initial PID namespace.
    running: Option<FieldFormat>,
    flags: Option<FieldFormat>,
    is_new: bool,
}

impl TaskFields {
    fn find(format: &TracepointFormat, prefix: &str) -> Option<Self> {
        let field = |name| format.field(&format!("{prefix}{name}")).cloned();
        Some(Self { tid: field("pid")?, prio: field("prio")?, comm: field("comm")? })
    }

    fn read<'a>(&self, raw: &'a [u8]) -> Option<Task<'a>> {
        let tid = i32::try_from(self.tid.i64(raw)?).ok()?;
        let prio = i32::try_from(self.prio.i64(raw)?).ok()?;
        Some(Task { tid, comm: self.comm.str(raw)?, prio })
    }
}

impl SchedDecoder {
    /// A decoder for tracepoints of these formats. Others than those of [`kernel`](super::kernel)
    /// are ignored.
    pub fn new(formats: impl IntoIterator<Item = TracepointFormat>) -> Self {
        let mut this = Self::default();
        for format in formats.into_iter().filter(|format| format.system() == "sched") {
            let field = |name| format.field(name).cloned();
            match format.name() {
                "sched_switch" => {
                    let fields = || {
                        Some(SwitchFields {
                            prev: TaskFields::find(&format, "prev_")?,
                            prev_state: field("prev_state")?,
                            next: TaskFields::find(&format, "next_")?,
                        })
                    };
                    this.switch = fields().map(|fields| (format.id(), fields));
                }
                name @ ("sched_waking" | "sched_wakeup_new") => {
                    let fields = || {
                        Some(WakingFields {
                            task: TaskFields::find(&format, "")?,
                            target_cpu: field("target_cpu")?,
                            running: field("common_pid"),
                            flags: field("common_flags"),
                            is_new: name == "sched_wakeup_new",
                        })
                    };
                    this.wakings.extend(fields().map(|fields| (format.id(), fields)));
                }
                _ => {}
            }
        }
        this
    }

    /// Whether it can decode context switches.
    pub const fn has_switches(&self) -> bool {
        self.switch.is_some()
    }

    /// Decodes a record of this CPU. `None` if it does not concern the scheduler.
    pub fn decode<'a>(
        &self,
        raw: RawRecord<'a>,
        layout: &RecordLayout,
        cpu: u32,
    ) -> Option<Record<'a>> {
        if let Some(data) = layout.raw_data(raw) {
            let id = u64::from(u16::from_ne_bytes(*data.first_chunk()?));
            return match &self.switch {
                Some((known, fields)) if *known == id => Some(Record::Switch {
                    cpu,
                    prev: fields.prev.read(data)?,
                    prev_state: fields.prev_state.i64(data)?,
                    next: fields.next.read(data)?,
                }),
                _ => {
                    let (_, fields) = self.wakings.iter().find(|(known, _)| *known == id)?;
                    let flags = fields.flags.as_ref().and_then(|flags| flags.u64(data));
                    let running = fields.running.as_ref().and_then(|pid| pid.i64(data));
                    Some(Record::Waking {
                        cpu,
                        by: running.and_then(|tid| i32::try_from(tid).ok()),
                        flags: flags.and_then(|flags| u8::try_from(flags).ok()),
                        task: fields.task.read(data)?,
                        target_cpu: u32::try_from(fields.target_cpu.u64(data)?).ok()?,
                        is_new: fields.is_new,
                    })
                }
            };
        }
        if raw.type_() == perf_sys::PERF_RECORD_SAMPLE {
            return None; // of another event
        }
        let id = |id: u32| i32::try_from(id).ok();
        Some(match layout.decode(raw).ok()? {
            PerfRecord::Comm(comm) => Record::Comm { tid: id(comm.tid)?, comm: comm.comm },
            PerfRecord::Fork(fork) => Record::Thread {
                pid: id(fork.pid)?,
                tid: id(fork.tid)?,
                parent: id(fork.ppid).zip(id(fork.ptid)),
                comm: b"",
                is_new: true,
            },
            PerfRecord::Exit(exit) => Record::Exit { tid: id(exit.tid)? },
            PerfRecord::Lost(lost) => Record::Lost { cpu, count: lost.lost },
            // Without a time it is the count of an event that the recorder wrote at the end: the same
            // losses as in the records of the kernel.
            PerfRecord::LostSamples(lost)
                if lost.sample_id.time.is_some_and(|t| t.nanos() != 0) =>
            {
                Record::Lost { cpu, count: lost.lost }
            }
            _ => return None,
        })
    }
}

/// Makes model events of the scheduler records of a `perf.data` file.
#[derive(Debug)]
pub struct PerfSource {
    decoder: SchedDecoder,
    kernel: KernelSource,
    /// The threads that existed at the start, whose records have no time.
    existing: Vec<Existing>,
    last: Option<Timestamp>,
    /// In nanoseconds.
    offset: i64,
}

#[derive(Debug)]
struct Existing {
    pid: i32,
    tid: i32,
    comm: Vec<u8>,
}

/// `CLOCK_MONOTONIC` in `perf_event_attr::clockid`.
const MONOTONIC: i32 = 1;

impl PerfSource {
    /// Makes a source for a recording.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if it cannot be put on a timeline.
    pub fn new(session: &Session) -> Result<Self, PerfError> {
        let is_monotonic = |event: &perf_data::RecordedEvent| {
            event.attr.use_clockid() && event.attr.clockid == MONOTONIC
        };
        let this = Self::with_offset(session, 0)?;
        if session.events().iter().all(is_monotonic) { Ok(this) } else { Err(PerfError::Clock) }
    }

    /// Makes a source for a recording on another clock: `offset` nanoseconds are added to all
    /// times.
    ///
    /// # Errors
    ///
    /// [`PerfError::NoSwitches`] and [`PerfError::Fields`].
    pub fn with_offset(session: &Session, offset: i64) -> Result<Self, PerfError> {
        let formats = session.features().tracing.iter().flat_map(TracingData::formats);
        let decoder = SchedDecoder::new(formats);
        if !decoder.has_switches() {
            return Err(PerfError::NoSwitches);
        }
        const FIELDS: u64 = perf_sys::PERF_SAMPLE_TIME | perf_sys::PERF_SAMPLE_CPU;
        if !session.events().iter().all(|event| event.attr.sample_type & FIELDS == FIELDS) {
            return Err(PerfError::Fields);
        }
        let (kernel, existing) = (KernelSource::new(), Vec::new());
        Ok(Self { decoder, kernel, existing, last: None, offset })
    }

    /// Statistics so far.
    pub const fn stats(&self) -> KernelStats {
        self.kernel.stats()
    }

    /// Appends the model events of the next record, in time order.
    pub fn push(&mut self, entry: &Entry<'_>, tables: &mut Tables, out: &mut Vec<Event>) {
        let Some(layout) = entry.layout() else { return };
        let cpu = layout.cpu(entry.raw).unwrap_or_default();
        let Some(record) = self.decoder.decode(entry.raw, layout, cpu) else { return };
        let Some(at) = entry.time() else {
            match record {
                Record::Thread { pid, tid, .. } => {
                    self.existing.push(Existing { pid, tid, comm: Vec::new() });
                }
                Record::Comm { tid, comm } => self.name_existing(entry, tid, comm),
                _ => {}
            }
            return;
        };
        let at = at.saturating_add_nanos(self.offset);
        if self.last.is_none() {
            for Existing { pid, tid, comm } in self.existing.drain(..) {
                let (parent, comm) = (None, &comm[..]);
                let thread = Record::Thread { pid, tid, parent, comm, is_new: false };
                self.kernel.push(at, &thread, tables, out);
            }
        }
        // A recorder can write records late; the stream stays in order.
        let at = self.last.map_or(at, |last| last.max(at));
        self.last = Some(at);
        self.kernel.push(at, &record, tables, out);
    }

    /// Names a thread that existed at the start.
    fn name_existing(&mut self, entry: &Entry<'_>, tid: i32, comm: &[u8]) {
        let known = self.existing.iter_mut().rev().find(|existing| existing.tid == tid);
        if let Some(known) = known {
            known.comm = comm.to_vec();
        } else if let Some(Ok(PerfRecord::Comm(record))) = entry.decode() {
            let pid = i32::try_from(record.pid).unwrap_or(tid);
            self.existing.push(Existing { pid, tid, comm: comm.to_vec() });
        }
    }
}
