//! Raw records of the scheduler: the fields of its tracepoints, and records about tasks.

use super::id;
use crate::sources::kernel::{Record, Task, ThreadRef};
use perf_monitor::{
    FieldFormat, Loss, RawRecord, Record as PerfRecord, RecordLayout, SampleId, TracepointFormat,
};

/// Decodes scheduler records.
#[derive(Clone, Debug, Default)]
pub struct SchedDecoder {
    switch: Option<(u64, SwitchFields)>,
    /// `sched_waking` and `sched_wakeup_new`.
    wakings: Vec<(u64, WakingFields)>,
    /// `sched_migrate_task` and `sched_wakeup`.
    queues: Vec<(u64, QueueFields)>,
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

#[derive(Clone, Debug)]
struct QueueFields {
    task: TaskFields,
    from: Option<FieldFormat>,
    to: FieldFormat,
}

/// The thread of a field of a tracepoint, which is a `pid_t`.
fn thread(tid: i64) -> Option<ThreadRef> {
    let tid = i32::try_from(tid).ok()?;
    Some(u32::try_from(tid).map_or(ThreadRef::Other, ThreadRef::Tid))
}

impl TaskFields {
    fn find(format: &TracepointFormat, prefix: &str) -> Option<Self> {
        let field = |name| format.field(&format!("{prefix}{name}")).cloned();
        Some(Self { tid: field("pid")?, prio: field("prio")?, comm: field("comm")? })
    }

    fn read<'a>(&self, raw: &'a [u8]) -> Option<Task<'a>> {
        let thread = thread(self.tid.i64(raw)?)?;
        let prio = i32::try_from(self.prio.i64(raw)?).ok()?;
        Some(Task { thread, comm: self.comm.text(raw)?, prio })
    }
}

impl WakingFields {
    fn read<'a>(&self, raw: &'a [u8], cpu: u32) -> Option<Record<'a>> {
        let flags = self.flags.as_ref().and_then(|flags| flags.u64(raw));
        let running = self.running.as_ref().and_then(|pid| pid.i64(raw));
        Some(Record::Waking {
            cpu,
            by: running.and_then(thread),
            flags: flags.and_then(|flags| u8::try_from(flags).ok()),
            task: self.task.read(raw)?,
            target_cpu: u32::try_from(self.target_cpu.u64(raw)?).ok()?,
            is_new: self.is_new,
            stack: None,
        })
    }
}

impl QueueFields {
    /// Of `sched_migrate_task` and of `sched_wakeup`.
    fn find(format: &TracepointFormat) -> Option<Self> {
        let field = |name: &str| format.field(name).cloned();
        let task = TaskFields::find(format, "")?;
        match format.name() {
            "sched_migrate_task" => {
                Some(Self { task, from: Some(field("orig_cpu")?), to: field("dest_cpu")? })
            }
            _ => Some(Self { task, from: None, to: field("target_cpu")? }),
        }
    }

    fn read<'a>(&self, raw: &'a [u8], cpu: u32) -> Option<Record<'a>> {
        let number = |field: &FieldFormat| u32::try_from(field.u64(raw)?).ok();
        let from = self.from.as_ref().and_then(number);
        Some(Record::Queue { cpu, task: self.task.read(raw)?, from, to: number(&self.to)? })
    }
}

impl SchedDecoder {
    /// A decoder for tracepoints of these formats. Others than those of [`kernel`](crate::sources::kernel)
    /// are ignored. `sched_migrate_task` needs `sched_switch`, and `sched_wakeup` also `sched_waking`.
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
                "sched_migrate_task" | "sched_wakeup" => {
                    let fields = QueueFields::find(&format);
                    this.queues.extend(fields.map(|fields| (format.id(), fields)));
                }
                _ => {}
            }
        }
        // They end no sleep.
        let has_switches = this.switch.is_some();
        let has_wakings = this.wakings.iter().any(|(_, fields)| !fields.is_new);
        this.queues.retain(|(_, fields)| has_switches && (has_wakings || fields.from.is_some()));
        this
    }

    /// Whether samples of this event are records of the scheduler.
    pub(super) fn decodes(&self, event: &perf_data::RecordedEvent) -> bool {
        let switch = self.switch.iter().map(|(id, _)| *id);
        let wakings = self.wakings.iter().map(|(id, _)| *id);
        let mut ids = switch.chain(wakings).chain(self.queues.iter().map(|(id, _)| *id));
        event.attr.type_ == perf_sys::PERF_TYPE_TRACEPOINT && ids.any(|id| id == event.attr.config)
    }

    /// Whether samples of this event are context switches.
    pub(super) fn decodes_switches(&self, event: &perf_data::RecordedEvent) -> bool {
        event.attr.type_ == perf_sys::PERF_TYPE_TRACEPOINT
            && self.switch.as_ref().is_some_and(|(id, _)| *id == event.attr.config)
    }

    /// Context switches are not decoded any more, nor what says nothing without them.
    pub(super) fn ignore_switches(&mut self) {
        self.switch = None;
        self.queues.clear();
    }

    /// Whether it can decode context switches.
    pub const fn has_switches(&self) -> bool {
        self.switch.is_some()
    }

    fn tracepoint<'a>(&self, data: &'a [u8], cpu: u32) -> Option<Record<'a>> {
        let id = u64::from(u16::from_ne_bytes(*data.first_chunk()?));
        match &self.switch {
            Some((known, fields)) if *known == id => Some(Record::Switch {
                cpu,
                prev: fields.prev.read(data)?,
                prev_state: fields.prev_state.i64(data)?,
                next: fields.next.read(data)?,
            }),
            _ => match self.wakings.iter().find(|(known, _)| *known == id) {
                Some((_, fields)) => fields.read(data, cpu),
                None => {
                    let (_, fields) = self.queues.iter().find(|(known, _)| *known == id)?;
                    fields.read(data, cpu)
                }
            },
        }
    }

    /// A `PERF_RECORD_SWITCH` of a thread on this CPU: for recordings without `sched_switch`.
    pub const fn switch<'a>(switch: &perf_monitor::Switch, cpu: u32, tid: u32) -> Record<'a> {
        match switch.out {
            true => Record::Out { cpu, tid, preempted: switch.preempted },
            false => Record::In { cpu, tid },
        }
    }

    /// Decodes a record of this CPU, or of the one that the record names. `None` if it does not concern the
    /// scheduler.
    pub fn decode<'a>(
        &self,
        raw: RawRecord<'a>,
        layout: &RecordLayout,
        cpu: u32,
    ) -> Option<Record<'a>> {
        if raw.type_() == perf_sys::PERF_RECORD_SAMPLE {
            // Behind a call chain, the data is at no fixed place.
            let data = layout.raw_data(raw).or_else(|| match layout.decode(raw) {
                Ok(PerfRecord::Sample(sample)) => sample.raw,
                _ => None,
            });
            return self.tracepoint(data?, cpu);
        }
        // As frequent as samples, and not needed.
        if raw.type_() == perf_sys::PERF_RECORD_SWITCH_CPU_WIDE
            && raw.misc() & perf_sys::PERF_RECORD_MISC_SWITCH_OUT != 0
        {
            return None;
        }
        let of = |record: &SampleId| record.cpu.unwrap_or(cpu);
        Some(match layout.decode(raw).ok()? {
            PerfRecord::Comm(comm) => {
                Record::Comm { tid: id(comm.tid)?, comm: comm.comm, by_exec: comm.by_exec }
            }
            PerfRecord::Fork(fork) => Record::Thread {
                pid: id(fork.pid)?,
                tid: id(fork.tid)?,
                parent: id(fork.ppid).zip(id(fork.ptid)),
                comm: b"",
                is_new: true,
            },
            PerfRecord::Exit(exit) => Record::Exit { tid: id(exit.tid)? },
            // The other thread is in it only if it is of a whole CPU.
            PerfRecord::Switch(switch) if self.has_switches() => Record::Runs {
                cpu: switch.sample_id.cpu?,
                thread: ThreadRef::Tid(id(switch.sample_id.tid?)?),
                prev: id(switch.peer?.tid).map(ThreadRef::Tid),
            },
            PerfRecord::Lost(lost) if is_offline(&lost) => {
                Record::Offline { cpu: of(&lost.sample_id) }
            }
            PerfRecord::Lost(lost) => Record::Lost { cpu: of(&lost.sample_id), count: lost.lost },
            // The hardware lost them: no records of the scheduler. Without a time it is the count of an
            // event that the recorder wrote at the end: `perf_data::Losses` has what is new in it.
            PerfRecord::LostSamples(lost)
                if lost.sample_id.time.is_some_and(|t| t.nanos() != 0) =>
            {
                Record::LostSamples { cpu: of(&lost.sample_id), count: lost.lost }
            }
            _ => return None,
        })
    }
}

/// Whether a recorder wrote that a CPU went offline: no records of no event. The kernel's have the id of an event.
pub(super) const fn is_offline(lost: &Loss) -> bool {
    matches!(lost.id, Some(0)) && lost.lost == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::perf::testing::{MIGRATION_FORMAT, SWITCH_FORMAT, WAKING_FORMAT};
    use perf_sys::*;

    /// Decodes a record with these words, of thread 8 on CPU 3, as one of CPU 0.
    fn decode(
        decoder: &SchedDecoder,
        type_: u32,
        misc: u16,
        words: &[u64],
    ) -> Option<Record<'static>> {
        let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY);
        attr.sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU;
        attr.set_sample_id_all(true);
        let layout = RecordLayout::new(&attr);
        let words = [words, &[7 | 8 << 32, 1000, 3]].concat();
        let size = 8 + 8 * words.len() as u64;
        let header = u64::from(type_) | u64::from(misc) << 32 | size << 48;
        let bytes: Vec<u8> = [header].iter().chain(&words).flat_map(|w| w.to_le_bytes()).collect();
        let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
        match decoder.decode(raw, &layout, 0)? {
            Record::Lost { cpu, count } => Some(Record::Lost { cpu, count }),
            Record::LostSamples { cpu, count } => Some(Record::LostSamples { cpu, count }),
            Record::Runs { cpu, thread, prev } => Some(Record::Runs { cpu, thread, prev }),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn threads_of_tracepoints_have_a_pid_t() {
        assert_eq!(thread(7), Some(ThreadRef::Tid(7)));
        assert_eq!(thread(-1), Some(ThreadRef::Other));
        assert_eq!(thread(1 << 31), None);
    }

    /// Otherwise no state follows from them: they are samples.
    #[test]
    fn queues_are_those_of_threads_whose_switches_and_wake_ups_are_recorded() {
        let wakeup = WAKING_FORMAT.replace("name: sched_waking", "name: sched_wakeup");
        let decoder = |texts: &[&str]| {
            let parse = |text: &&str| TracepointFormat::parse("sched", text).unwrap();
            SchedDecoder::new(texts.iter().map(parse))
        };
        for (texts, expected) in [
            (&[SWITCH_FORMAT, WAKING_FORMAT, &wakeup, MIGRATION_FORMAT][..], 2),
            (&[SWITCH_FORMAT, &wakeup, MIGRATION_FORMAT], 1),
            (&[WAKING_FORMAT, &wakeup, MIGRATION_FORMAT], 0),
        ] {
            let mut decoder = decoder(texts);
            assert_eq!(decoder.queues.len(), expected);
            decoder.ignore_switches();
            assert!(decoder.queues.is_empty());
        }
    }

    /// Files have the records of all CPUs.
    #[test]
    fn a_loss_is_of_the_cpu_in_the_record() {
        let lost = decode(&SchedDecoder::default(), PERF_RECORD_LOST, 0, &[1, 40]);
        assert_eq!(lost, Some(Record::Lost { cpu: 3, count: 40 }));
        let samples = decode(&SchedDecoder::default(), PERF_RECORD_LOST_SAMPLES, 0, &[50]);
        assert_eq!(samples, Some(Record::LostSamples { cpu: 3, count: 50 }), "no switch is lost");
    }

    #[test]
    fn records_of_switches_say_which_thread_runs() {
        let switches =
            SchedDecoder::new([TracepointFormat::parse("sched", SWITCH_FORMAT).unwrap()]);
        assert!(switches.has_switches());
        let other = |tid: u32| 6 | u64::from(tid) << 32;
        let wide = PERF_RECORD_SWITCH_CPU_WIDE;
        let thread = ThreadRef::Tid(8);
        let runs = decode(&switches, wide, 0, &[other(5)]);
        let prev = Some(ThreadRef::Tid(5));
        assert_eq!(runs, Some(Record::Runs { cpu: 3, thread, prev }));
        let ended = decode(&switches, wide, 0, &[other(u32::MAX)]);
        assert_eq!(ended, Some(Record::Runs { cpu: 3, thread, prev: None }));
        assert_eq!(decode(&switches, wide, PERF_RECORD_MISC_SWITCH_OUT, &[other(5)]), None);
        assert_eq!(decode(&switches, PERF_RECORD_SWITCH, 0, &[]), None, "of one thread");
        assert_eq!(decode(&SchedDecoder::default(), wide, 0, &[other(5)]), None);
    }
}
