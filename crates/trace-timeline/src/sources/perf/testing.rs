//! Built records, for the tests of this module.

use super::PerfSource;
use crate::{Event, EventKind, LossKind, Tables};
use perf_data::{Entry, Features, RecordedEvent, Session, TracingData, perf_event_attr};
use perf_monitor::RawRecord;
use perf_sys::*;

/// A recording, and what its source has made of it.
pub(super) struct Run {
    session: Session,
    pub(super) source: PerfSource,
    pub(super) tables: Tables,
    pub(super) events: Vec<Event>,
}

/// The ids of records of `sched_switch` and `sched_waking`.
pub(super) const SWITCHES: u64 = 30;
const WAKINGS: u64 = 31;
const MIGRATIONS: u64 = 32;

/// The numbers of the tracepoints.
const SWITCH: u64 = 300;
const WAKING: u64 = 301;
const MIGRATION: u64 = 302;

pub(super) const SWITCH_FORMAT: &str = "name: sched_switch\nID: 300\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
    \tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;\n\
    \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
    \tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n\
    \tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;\n";

pub(super) const WAKING_FORMAT: &str = "name: sched_waking\nID: 301\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\
    \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;\n\
    \tfield:int prio;\toffset:28;\tsize:4;\tsigned:1;\n\
    \tfield:int target_cpu;\toffset:32;\tsize:4;\tsigned:1;\n";

pub(super) const MIGRATION_FORMAT: &str = "name: sched_migrate_task\nID: 302\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
    \tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;\n\
    \tfield:int prio;\toffset:28;\tsize:4;\tsigned:1;\n\
    \tfield:int orig_cpu;\toffset:32;\tsize:4;\tsigned:1;\n\
    \tfield:int dest_cpu;\toffset:36;\tsize:4;\tsigned:1;\n";

/// The formats of the tracepoints.
pub(super) fn features() -> Features {
    let formats = [SWITCH_FORMAT, WAKING_FORMAT, MIGRATION_FORMAT];
    let mut tracing = TracingData::default();
    tracing.events = formats.map(|text| ("sched".to_owned(), text.as_bytes().to_vec())).to_vec();
    let mut features = Features::default();
    features.tracing = Some(tracing);
    features
}

fn tracepoint(name: &str, number: u64, id: u64) -> RecordedEvent {
    let mut attr = perf_event_attr::new(PERF_TYPE_TRACEPOINT, number);
    attr.sample_type = PERF_SAMPLE_IDENTIFIER
        | PERF_SAMPLE_TID
        | PERF_SAMPLE_TIME
        | PERF_SAMPLE_CPU
        | PERF_SAMPLE_RAW;
    attr.sample_period = 1;
    attr.set_sample_id_all(true);
    RecordedEvent { name: name.to_owned(), attr, ids: vec![id] }
}

/// Each switch of a recording.
pub(super) fn sched_switch() -> RecordedEvent {
    tracepoint("sched:sched_switch", SWITCH, SWITCHES)
}

/// Each wake-up of a recording.
pub(super) fn sched_waking() -> RecordedEvent {
    tracepoint("sched:sched_waking", WAKING, WAKINGS)
}

/// Each migration of a recording.
pub(super) fn sched_migrate_task() -> RecordedEvent {
    tracepoint("sched:sched_migrate_task", MIGRATION, MIGRATIONS)
}

/// Two numbers of 32 bits.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Run {
    pub(super) fn of(events: impl IntoIterator<Item = RecordedEvent>) -> Self {
        Self::with(events, Features::default())
    }

    pub(super) fn with(
        events: impl IntoIterator<Item = RecordedEvent>,
        features: Features,
    ) -> Self {
        let session = Session::new(events, features).unwrap();
        let source = PerfSource::with_offset(&session, 0).unwrap();
        Self { session, source, tables: Tables::new(), events: Vec::new() }
    }

    pub(super) fn push(&mut self, type_: u32, misc: u16, body: &[u64]) {
        let size = 8 + 8 * body.len();
        let header = u64::from(type_) | u64::from(misc) << 32 | (size as u64) << 48;
        let words = [&[header], body].concat();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
        let entry = Entry::new(raw, &self.session);
        self.source.push(&entry, &mut self.tables, &mut self.events);
    }

    /// A sample of a tracepoint: its fields, without the first 8 bytes.
    fn tracepoint(
        &mut self,
        (id, number): (u64, u64),
        (time, cpu, tid): (u64, u32, u32),
        fields: &[u64],
    ) {
        // The size is before the data, which is not aligned; 4 bytes follow it.
        let fields = [&[number | u64::from(tid) << 32], fields].concat();
        let size = 8 * fields.len() as u64 + 4;
        let mut raw = vec![size];
        for field in fields {
            *raw.last_mut().unwrap() |= field << 32;
            raw.push(field >> 32);
        }
        let event = self.session.events().iter().find(|event| event.ids.contains(&id)).unwrap();
        let chain: &[u64] = match event.attr.sample_type & PERF_SAMPLE_CALLCHAIN {
            0 => &[],
            _ => &[2, PERF_CONTEXT_USER, 0xa0],
        };
        let body = [&[id, pair(tid, tid), time, pair(cpu, 0)], chain, &raw].concat();
        self.push(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_KERNEL, &body);
    }

    /// A thread leaves a CPU in this state, and another one gets it.
    pub(super) fn switch_of(&mut self, time: u64, cpu: u32, (prev, state): (u32, u64), next: u32) {
        let fields = [0, 0, pair(prev, 120), state, 0, 0, pair(next, 120)];
        self.tracepoint((SWITCHES, SWITCH), (time, cpu, prev), &fields);
    }

    /// A thread that has this CPU wakes another one on it.
    pub(super) fn waking_of(&mut self, time: u64, cpu: u32, by: u32, tid: u32) {
        let fields = [0, 0, pair(tid, 120), pair(cpu, 0)];
        self.tracepoint((WAKINGS, WAKING), (time, cpu, by), &fields);
    }

    /// A thread is moved from the queue of a CPU to that of another one.
    pub(super) fn migration_of(&mut self, time: u64, tid: u32, from: u32, to: u32) {
        let fields = [0, 0, pair(tid, 120), pair(from, to)];
        self.tracepoint((MIGRATIONS, MIGRATION), (time, from, tid), &fields);
    }

    /// A `PERF_RECORD_SWITCH`: a thread gets a CPU, or leaves it.
    pub(super) fn switch_record(&mut self, time: u64, cpu: u32, tid: u32, is_out: bool) {
        let out = if is_out { PERF_RECORD_MISC_SWITCH_OUT } else { 0 };
        self.push(PERF_RECORD_SWITCH, out, &[pair(tid, tid), time, pair(cpu, 0), SWITCHES]);
    }

    /// The kernel lost records of an event with this id.
    pub(super) fn lost(&mut self, id: u64, time: u64, cpu: u32, count: u64) {
        self.push(PERF_RECORD_LOST, 0, &[id, count, pair(0, 0), time, pair(cpu, 0), id]);
    }

    /// The time, kind, begin and number of each loss.
    pub(super) fn losses(&self) -> Vec<(i64, LossKind, i64, Option<u64>)> {
        let loss = |event: &Event| match event.kind {
            EventKind::Loss { kind, since, count, .. } => {
                Some((event.time.nanos(), kind, since.nanos(), count))
            }
            _ => None,
        };
        self.events.iter().filter_map(loss).collect()
    }
}
