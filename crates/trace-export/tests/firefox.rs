//! Files for the Firefox Profiler: their tables as its documentation of the format describes them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::Value;
use std::io::Read as _;
use trace_export::profile::FirefoxProfile;
use trace_timeline::{
    Entity, EntityId, EntityKind, Event, EventKind, Frame, LossKind, Mapping, SampleKind,
    SampledEvent, SampledEventId, SpanKind, StackId, Tables, TextId, ThreadState, Timestamp,
};

/// A process with a thread, and stacks.
struct Example {
    tables: Tables,
    thread: EntityId,
    stacks: [StackId; 3],
    profile: FirefoxProfile,
}

impl Example {
    fn new() -> Self {
        let mut tables = Tables::new();
        let name = tables.text(b"shop \"1\"");
        let process = Entity::new(EntityKind::Process, 7).name(name);
        let process = tables.entity(process).unwrap();
        let thread = Entity::new(EntityKind::Thread, 8).child_of(Some(process)).name(name);
        let thread = tables.entity(thread).unwrap();
        let path = tables.text(b"/bin/shop");
        let build_id = tables.text(b"00112233445566778899aabbccddeeff01234567");
        let program = tables.add_mapping(Mapping { path, build_id, ..Mapping::default() });
        let path = tables.text(b"[kernel.kallsyms]");
        let kernel = Mapping { path, is_kernel: true, ..Mapping::default() };
        let kernel = tables.add_mapping(kernel);
        let file = tables.text(b"main.go");
        let mut frame = |function: &[u8], mapping, address, line| Frame {
            function: tables.text(function),
            mapping,
            file: if line > 0 { file } else { TextId::EMPTY },
            line,
            address,
        };
        let main = frame(b"main.main", program, 0x10, 3);
        // Inlined into main.
        let inlined = frame(b"main.leaf", program, 0x10, 9);
        let read = frame(b"vfs_read", kernel, 0xffff_ffff_8100_0020, 0);
        let unnamed = frame(b"", program, 0x30, 0);
        let stacks = [&[inlined, main][..], &[read, inlined, main], &[unnamed]];
        let stacks = stacks.map(|frames| tables.stack(frames).unwrap());
        Self { tables, thread, stacks, profile: FirefoxProfile::new() }
    }

    fn push(&mut self, at: i64, kind: EventKind) {
        let event = Event { time: Timestamp::from_nanos(at), kind };
        self.profile.push(&event, &self.tables);
    }

    fn sample(&mut self, at: i64, kind: SampleKind, of: SampledEventId, stack: usize, weight: u64) {
        let (entity, stack) = (self.thread, Some(self.stacks[stack]));
        let kind = EventKind::Sample {
            entity,
            kind,
            stack,
            weight,
            thread: None,
            cpu: None,
            event: of,
            of: None,
        };
        self.push(at, kind);
    }

    fn event(&mut self, name: &str, unit: &str) -> SampledEventId {
        let [name, unit] = [name, unit].map(|text| self.tables.text(text.as_bytes()));
        self.tables.add_sampled_event(SampledEvent { name, unit, has_others: false })
    }

    /// The file, after a check of its tables, and the number of samples that were left out.
    fn written(self) -> (Value, u64) {
        let mut bytes = Vec::new();
        let left_out = self.profile.write("a \"title\"", &self.tables, &mut bytes).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        check(&file);
        (file, left_out)
    }
}

fn len(value: &Value) -> usize {
    value.as_array().unwrap().len()
}

/// All columns of a table are as long as it says.
fn check_table(table: &Value) -> usize {
    let length = usize::try_from(table["length"].as_u64().unwrap()).unwrap();
    for (key, column) in table.as_object().unwrap() {
        if let Value::Array(values) = column {
            assert_eq!(values.len(), length, "{key}");
        }
    }
    length
}

/// The numbers of a column are below `limit`; null and -1 are none.
fn check_column(column: &Value, limit: usize) {
    for value in column.as_array().unwrap() {
        let number = value.as_i64().unwrap_or(-1);
        assert!(number < limit as i64, "{number} of {limit}");
    }
}

fn check(file: &Value) {
    let shared = &file["shared"];
    let strings = len(&shared["stringArray"]);
    let table = |name: &str| check_table(&shared[name]);
    let [stacks, frames, functions, resources, sources] =
        ["stackTable", "frameTable", "funcTable", "resourceTable", "sources"].map(table);
    check_column(&shared["stackTable"]["frame"], frames);
    for (index, prefix) in shared["stackTable"]["prefix"].as_array().unwrap().iter().enumerate() {
        assert!(prefix.is_null() || prefix.as_u64().unwrap() < index as u64, "callers come first");
    }
    check_column(&shared["frameTable"]["func"], functions);
    check_column(&shared["frameTable"]["category"], len(&file["meta"]["categories"]));
    check_column(&shared["funcTable"]["name"], strings);
    check_column(&shared["funcTable"]["resource"], resources);
    check_column(&shared["funcTable"]["source"], sources);
    check_column(&shared["resourceTable"]["lib"], len(&file["libs"]));
    check_column(&shared["resourceTable"]["name"], strings);
    check_column(&shared["sources"]["filename"], strings);
    for thread in file["threads"].as_array().unwrap() {
        let (samples, markers) = (&thread["samples"], &thread["markers"]);
        check_table(samples);
        check_table(markers);
        check_column(&samples["stack"], stacks);
        check_column(&markers["name"], strings);
        let times = samples["time"].as_array().unwrap();
        assert!(times.is_sorted_by_key(|time| (time.as_f64().unwrap() * 1e6) as i64), "{times:?}");
    }
}

/// The names of the frames of a sample, outermost first.
fn names(file: &Value, sample: usize) -> Vec<String> {
    let shared = &file["shared"];
    let mut names = Vec::new();
    let mut stack = file["threads"][0]["samples"]["stack"][sample].as_u64();
    while let Some(at) = stack.map(|at| usize::try_from(at).unwrap()) {
        let at_index = |table: &str, column: &str, row: usize| {
            usize::try_from(shared[table][column][row].as_u64().unwrap()).unwrap()
        };
        let frame = at_index("stackTable", "frame", at);
        let name = at_index("funcTable", "name", at_index("frameTable", "func", frame));
        names.push(shared["stringArray"][name].as_str().unwrap().to_owned());
        stack = shared["stackTable"]["prefix"][at].as_u64();
    }
    names.reverse();
    names
}

const fn switch(
    cpu: EntityId,
    prev: Option<EntityId>,
    left: ThreadState,
    next: Option<EntityId>,
) -> EventKind {
    EventKind::Switch { cpu, prev, left, next, is_next_unknown: false, prio: 120 }
}

#[test]
fn samples_of_an_event_are_counted_and_gaps_are_idle() {
    let mut example = Example::new();
    let cycles = example.event("cycles", "");
    example.sample(1_000_000, SampleKind::Cpu, cycles, 0, 12_345);
    example.sample(2_000_000, SampleKind::Cpu, cycles, 1, 23_456);
    // 8 ms later.
    example.sample(10_000_000, SampleKind::Cpu, cycles, 2, 34_567);
    example.sample(11_000_000, SampleKind::Allocation, SampledEventId::NONE, 0, 4096);
    let (file, left_out) = example.written();
    assert_eq!(left_out, 0);
    let thread = &file["threads"][0];
    assert_eq!((&thread["pid"], &thread["tid"]), (&Value::from("7"), &Value::from(8)));
    assert_eq!(thread["name"], "shop \"1\"");
    let samples = &thread["samples"];
    assert_eq!(samples["weightType"], "samples");
    // From the first one on; a row without a stack begins the gap.
    let expected: Value = serde_json::json!([0, 1, 2, 9]);
    assert_eq!(samples["time"], expected);
    assert_eq!(samples["weight"], serde_json::json!([1, 1, 0, 1]));
    assert_eq!(samples["threadCPUDelta"], serde_json::json!([0, 1_000_000, 0, 1_000_000]));
    assert_eq!(names(&file, 0), ["main.main", "main.leaf"]);
    assert_eq!(names(&file, 1), ["main.main", "main.leaf", "vfs_read"]);
    assert_eq!(names(&file, 2), [""; 0]);
    assert_eq!(names(&file, 3), ["shop+0x30"]);
    assert_eq!(thread["nativeAllocations"]["weight"], serde_json::json!([4096]));

    let frames = &file["shared"]["frameTable"];
    let row = |column: &str| frames[column].as_array().unwrap().clone();
    assert_eq!(row("inlineDepth"), [0, 1, 0, 0]);
    // Go, Go, kernel, native.
    assert_eq!(row("category"), [3, 3, 1, 2]);
    assert_eq!(frames["line"], serde_json::json!([3, 9, null, null]));
    // The kernel has no positions in a file.
    assert_eq!(frames["address"], serde_json::json!([0x10, 0x10, -1, 0x30]));
    assert_eq!(file["libs"][0]["breakpadId"], "33221100554477668899AABBCCDDEEFF0");
    assert_eq!(file["libs"][0]["codeId"], "00112233445566778899aabbccddeeff01234567");
}

/// As in a recording of `cycles` alone, and one of `cycles` and `page-faults`.
#[test]
fn an_event_of_two_recordings_is_one() {
    let mut example = Example::new();
    let [alone, faults] = ["cycles", "page-faults"].map(|name| example.event(name, ""));
    let beside = SampledEvent { has_others: true, ..example.tables.sampled_event(alone) };
    let beside = example.tables.add_sampled_event(beside);
    for (at, event) in (0..).zip([alone, alone, beside, beside, beside, faults]) {
        example.sample(at * 1_000_000, SampleKind::Cpu, event, 0, 100);
    }
    let (file, left_out) = example.written();
    assert_eq!(left_out, 1);
    assert_eq!(file["threads"][0]["samples"]["weight"], serde_json::json!([1, 1, 1, 1, 1]));
}

/// As those of a recorder that counts the samples with the same stack.
#[test]
fn a_sample_can_stand_for_several() {
    let mut example = Example::new();
    let faults = example.event("page-faults", "");
    for at in 0..3 {
        example.sample(at * 1_000_000, SampleKind::Cpu, faults, 0, 100);
    }
    for (at, count) in [(3, 4), (4, 1)] {
        example.sample(at * 1_000_000, SampleKind::Cpu, SampledEventId::NONE, 0, count);
    }
    // Of these there are most.
    let (file, left_out) = example.written();
    assert_eq!(left_out, 3);
    assert_eq!(file["threads"][0]["samples"]["weight"], serde_json::json!([4, 1]));
}

/// Each stands for as many intervals as samples.
#[test]
fn samples_that_stand_for_several_are_as_many_intervals() {
    let mut example = Example::new();
    for (at, count) in [(1, 1), (2, 1), (3, 1), (4, 4), (20, 1), (24, 3)] {
        example.sample(at * 1_000_000, SampleKind::Cpu, SampledEventId::NONE, 0, count);
    }
    let (file, _) = example.written();
    assert_eq!(file["meta"]["interval"], 1);
    let samples = &file["threads"][0]["samples"];
    // Idle from the end of the four samples on.
    assert_eq!(samples["time"], serde_json::json!([0, 1, 2, 3, 7, 19, 23]));
    assert_eq!(samples["weight"], serde_json::json!([1, 1, 1, 4, 0, 1, 3]));
    let ms = 1_000_000;
    assert_eq!(samples["threadCPUDelta"], serde_json::json!([0, ms, ms, ms, 0, ms, 3 * ms]));
    assert_eq!(names(&file, 4), [""; 0]);
}

/// The process id, the thread id, the name, and whether it is the main thread, of each thread.
fn threads(file: &Value) -> Vec<(String, i64, String, bool)> {
    let threads = file["threads"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let thread = |thread: &Value| {
        let tid = thread["tid"].as_i64().unwrap();
        let is_main = thread["isMainThread"].as_bool().unwrap();
        (text(&thread["pid"]), tid, text(&thread["name"]), is_main)
    };
    threads.map(thread).collect()
}

/// A process id is used again, and Go traces have none.
#[test]
fn processes_with_one_number_are_apart() {
    let mut example = Example::new();
    let cycles = example.event("cycles", "");
    let mut add = |kind, number, parent| {
        let entity = Entity::new(kind, number).child_of(parent);
        example.tables.entity(entity).unwrap()
    };
    let later = add(EntityKind::Process, 7, None);
    let later = add(EntityKind::Thread, 7, Some(later));
    // The one has a thread of the first process.
    let [known, unknown] = [8, 9].map(|tid| {
        let process = add(EntityKind::Process, -1, None);
        (process, add(EntityKind::GoThread, tid, Some(process)))
    });
    let shop = example.thread;
    let sampled = [later, shop, known.1, known.0, unknown.1, unknown.0];
    for (at, entity) in (0..).zip(sampled) {
        example.thread = entity;
        example.sample(at * 1_000_000, SampleKind::Cpu, cycles, 0, 1);
    }
    let first = |tid: i64, name: &str, is_main| ("7".to_owned(), tid, name.to_owned(), is_main);
    let index = i64::try_from(unknown.0.index()).unwrap();
    let pid = (6 << 20) + index + 1;
    let (file, _) = example.written();
    let name = "shop \"1\"";
    let expected = [
        first(7, name, true),
        first(8, name, false),
        ("7.1".to_owned(), 7, "thread 7".to_owned(), true),
        (pid.to_string(), 9, "thread 9".to_owned(), false),
        (pid.to_string(), pid, "unknown process".to_owned(), true),
    ];
    assert_eq!(threads(&file), expected);
    // Of both sources.
    assert_eq!(file["threads"][1]["samples"]["time"], serde_json::json!([1, 2]));
}

/// The threads of a program in a container have ids that threads of other processes have, too.
#[test]
fn one_thread_of_several_is_a_coincidence() {
    let mut example = Example::new();
    let cycles = example.event("cycles", "");
    let mut add = |kind, number, parent| {
        let entity = Entity::new(kind, number).child_of(parent);
        example.tables.entity(entity).unwrap()
    };
    // Thread 8 is of process 7; there is no thread 9, or it is of another process.
    let other = add(EntityKind::Process, 90, None);
    add(EntityKind::Thread, 91, Some(other));
    let goroutines = [[8, 9], [8, 91]].map(|tids| {
        let process = add(EntityKind::Process, -1, None);
        tids.map(|tid| add(EntityKind::GoThread, tid, Some(process)))[0]
    });
    for (at, entity) in (0..).zip(goroutines) {
        example.thread = entity;
        example.sample(at * 1_000_000, SampleKind::Cpu, cycles, 0, 1);
    }
    let (file, _) = example.written();
    let pids: Vec<i64> = threads(&file).iter().map(|(pid, ..)| pid.parse().unwrap()).collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| *pid > 6 << 20), "{pids:?}");
}

/// A thread of another process had the id of one of its threads before.
#[test]
fn the_process_with_several_of_the_threads_is_the_one() {
    let mut example = Example::new();
    let cycles = example.event("cycles", "");
    let mut add = |kind, number, parent| {
        let entity = Entity::new(kind, number).child_of(parent);
        example.tables.entity(entity).unwrap()
    };
    let [before, process] = [90, 91].map(|pid| add(EntityKind::Process, pid, None));
    for (tid, of) in [(95, before), (95, process), (96, process)] {
        add(EntityKind::Thread, tid, Some(of));
    }
    let traced = add(EntityKind::Process, -1, None);
    let sampled = [95, 96].map(|tid| add(EntityKind::GoThread, tid, Some(traced)));
    for (at, entity) in (0..).zip(sampled) {
        example.thread = entity;
        example.sample(at * 1_000_000, SampleKind::Cpu, cycles, 0, 1);
    }
    let (file, _) = example.written();
    let pids: Vec<String> = threads(&file).into_iter().map(|(pid, ..)| pid).collect();
    assert_eq!(pids, ["91", "91"]);
}

#[test]
fn idle_cpus_are_apart() {
    let mut example = Example::new();
    let cycles = example.event("cycles", "");
    let host = example.tables.text(b"host");
    let machine = example.tables.entity(Entity::new(EntityKind::Machine, 0).name(host));
    for (at, number) in (0..).zip([1, 0, 1]) {
        let cpu = Entity::new(EntityKind::Cpu, number).child_of(machine);
        let known = example.tables.entities.cpu(number);
        example.thread = known.or_else(|| example.tables.entity(cpu)).unwrap();
        example.sample(at, SampleKind::Cpu, cycles, 0, 1);
    }
    let (file, _) = example.written();
    let expected = [0, 1].map(|n| ("0".to_owned(), (6 << 20) + n, format!("CPU {n}"), false));
    assert_eq!(threads(&file), expected);
    assert_eq!(file["threads"][0]["processName"], "host");
    assert_eq!(file["threads"][1]["samples"]["length"], 2);
}

/// A thread that is sampled every 10 ms is not idle between.
#[test]
fn the_interval_is_that_of_the_samples() {
    let mut example = Example::new();
    let cycles = example.event("cycles", "");
    for at in [0, 10, 20, 31, 41, 141, 151] {
        example.sample(at * 1_000_000, SampleKind::Cpu, cycles, 0, 1);
    }
    let (file, _) = example.written();
    assert_eq!(file["meta"]["interval"], 10);
    let samples = &file["threads"][0]["samples"];
    assert_eq!(samples["time"], serde_json::json!([0, 10, 20, 31, 41, 51, 141, 151]));
    let busy = 10_000_000;
    let expected = serde_json::json!([0, busy, busy, busy, busy, 0, busy, busy]);
    assert_eq!(samples["threadCPUDelta"], expected);
    let mut given = Example::new();
    given.profile.set_interval(1_000_000);
    let cycles = given.event("cycles", "");
    for at in [0, 10, 20] {
        given.sample(at * 1_000_000, SampleKind::Cpu, cycles, 0, 1);
    }
    let (file, _) = given.written();
    assert_eq!(file["meta"]["interval"], 1);
    assert_eq!(file["threads"][0]["samples"]["length"], 5);
}

/// Samples of other events have intervals of their own, or none.
#[test]
fn the_interval_is_that_of_the_thread_with_most_of_the_samples() {
    let mut example = Example::new();
    let process = example.tables.entities.process_of(example.thread);
    let busy = Entity::new(EntityKind::Thread, 9).child_of(process);
    let busy = example.tables.entity(busy).unwrap();
    let none = SampledEventId::NONE;
    for at in 0..50 {
        example.sample(at * 1_000_000, SampleKind::Allocation, none, 0, 4096);
    }
    example.sample(50_000_000, SampleKind::Managed, none, 0, 1);
    example.thread = busy;
    for at in 6..26 {
        example.sample(at * 10_000_000, SampleKind::Managed, none, 0, 1);
    }
    let (file, left_out) = example.written();
    assert_eq!((left_out, &file["meta"]["interval"]), (0, &Value::from(10)));
}

/// Only events that count while a CPU runs say that it did.
#[test]
fn occurrences_are_no_time_on_the_cpu() {
    for (name, is_time) in [
        ("cycles:u", true),
        ("cpu_core/cycles/u", true),
        ("ref-cycles", true),
        ("armv8_pmuv3_0/cpu_cycles/", true),
        ("syscalls:sys_enter_clock_nanosleep", false),
        ("stalled-cycles-frontend", false),
        ("page-faults", false),
    ] {
        let mut example = Example::new();
        let event = example.event(name, "");
        for at in [0, 1, 2, 50] {
            example.sample(at * 1_000_000, SampleKind::Cpu, event, 0, 1);
        }
        let (file, _) = example.written();
        let samples = &file["threads"][0]["samples"];
        assert_eq!(samples["threadCPUDelta"].is_array(), is_time, "{name}");
        // One begins the gap.
        assert_eq!(samples["length"], 4 + i32::from(is_time), "{name}");
    }
}

#[test]
fn times_are_weights_from_their_begin() {
    let mut example = Example::new();
    let clock = example.event("cpu-clock", "ns");
    let off = example.event("off-cpu", "ns");
    let faults = example.event("page-faults", "");
    example.sample(0, SampleKind::Cpu, faults, 0, 1);
    example.sample(1_000_000, SampleKind::Cpu, clock, 0, 1_000_000);
    example.sample(5_000_000, SampleKind::OffCpu, off, 1, 3_500_000);
    let (file, left_out) = example.written();
    assert_eq!(left_out, 1, "the page fault");
    let thread = &file["threads"][0];
    let samples = &thread["samples"];
    assert_eq!(samples["weightType"], "tracing-ms");
    assert_eq!(samples["time"], serde_json::json!([0, 1.5]));
    assert_eq!(samples["weight"], serde_json::json!([1, 3.5]));
    assert_eq!(samples["threadCPUDelta"], serde_json::json!([0, 1_000_000]));
    let markers = &thread["markers"];
    assert_eq!(markers["startTime"], serde_json::json!([1.5]));
    assert_eq!(markers["endTime"], serde_json::json!([5]));
    assert_eq!(markers["data"][0]["type"], "off-cpu");
    assert!(markers["data"][0]["cause"]["stack"].is_u64());
}

#[test]
fn spans_are_markers_of_their_thread_or_of_the_main_thread() {
    let mut example = Example::new();
    let process = example.tables.entities.process_of(example.thread).unwrap();
    let name = example.tables.text(b"sweep");
    let spans = [example.tables.new_span(), example.tables.new_span()];
    for (span, entity) in spans.into_iter().zip([process, example.thread]) {
        let kind = SpanKind::Gc;
        let begin = EventKind::Begin { span, entity, kind, name, by: None, of: None, stack: None };
        example.push(10, begin);
    }
    example.push(2_000_010, EventKind::Finish { span: spans[0], by: None, is_cut: false });
    // The other one is open at the end.
    let cycles = example.event("cycles", "");
    example.sample(3_000_010, SampleKind::Cpu, cycles, 0, 1);
    let (file, _) = example.written();
    let ends = ["2", "3"].map(|end| serde_json::from_str::<Value>(&format!("[{end}]")).unwrap());
    for (thread, (tid, end)) in [(7, &ends[0]), (8, &ends[1])].into_iter().enumerate() {
        let thread = &file["threads"][thread];
        assert_eq!(thread["tid"], tid);
        assert_eq!(thread["isMainThread"], tid == 7);
        assert_eq!(thread["markers"]["endTime"], *end);
        assert_eq!(thread["markers"]["data"][0]["detail"], "sweep");
    }
}

/// The sample and the switches of a wait are one marker, with the stack of the one and the state of the other.
#[test]
fn a_wait_with_a_sample_and_switches_is_one_marker() {
    let mut example = Example::new();
    let cpu = example.tables.entity(Entity::new(EntityKind::Cpu, 0)).unwrap();
    let off = example.event("off-cpu", "ns");
    let thread = example.thread;
    let process = example.tables.entities.process_of(thread);
    let other = Entity::new(EntityKind::Thread, 9).child_of(process);
    let other = example.tables.entity(other).unwrap();
    let ms = |ms: i64| ms * 1_000_000;
    let leaves = switch(cpu, Some(thread), ThreadState::Blocked, None);
    let comes = switch(cpu, None, ThreadState::Unknown, Some(thread));
    example.push(0, switch(cpu, Some(other), ThreadState::Sleeping, Some(thread)));
    // The sample follows the switch, and then it precedes it.
    example.push(ms(1), leaves);
    example.push(ms(3), comes);
    example.sample(ms(3), SampleKind::OffCpu, off, 1, 2_000_000);
    example.push(ms(4), leaves);
    example.sample(ms(6), SampleKind::OffCpu, off, 1, 2_000_000);
    example.push(ms(6), comes);
    let (file, _) = example.written();
    let markers = &file["threads"][0]["markers"];
    assert_eq!(markers["startTime"], serde_json::json!([1, 4]));
    assert_eq!(markers["endTime"], serde_json::json!([3, 6]));
    for data in markers["data"].as_array().unwrap() {
        assert!(data["cause"]["stack"].is_u64(), "{data}");
    }
}

/// Of a wait, the part is shown that the records prove: not the time of a loss, and not what the kernel
/// did not report.
#[test]
fn waits_end_where_their_end_is_not_known() {
    let mut example = Example::new();
    let [cpu, other] = [0, 1].map(|number| {
        let cpu = Entity::new(EntityKind::Cpu, number);
        example.tables.entity(cpu).unwrap()
    });
    let thread = example.thread;
    let ms = |ms: i64| ms * 1_000_000;
    let loss = |cpu, kind, since| {
        let (entity, since) = (Some(cpu), Timestamp::from_nanos(ms(since)));
        EventKind::Loss { entity, kind, since, count: None }
    };
    let leaves = switch(cpu, Some(thread), ThreadState::Sleeping, None);
    let comes = switch(cpu, None, ThreadState::Unknown, Some(thread));
    let repair = switch(other, Some(thread), ThreadState::Unknown, Some(thread));
    example.push(0, leaves);
    example.push(ms(1), comes);
    // Records of any CPU are missing: it may have run there.
    example.push(ms(2), leaves);
    example.push(ms(6), loss(other, LossKind::SchedulerRecords, 4));
    example.push(ms(7), comes);
    // It came without a record, after the last one of that CPU.
    example.push(ms(10), leaves);
    example.push(ms(15), loss(other, LossKind::UnreportedSwitch, 13));
    example.push(ms(15), repair);
    example.push(ms(16), switch(other, Some(thread), ThreadState::Blocked, None));
    // The loss is of another CPU.
    example.push(ms(18), loss(other, LossKind::UnreportedSwitch, 17));
    example.push(ms(20), comes);
    // The recording ends.
    example.push(ms(21), leaves);
    example.push(ms(25), EventKind::End { entity: cpu });
    example.push(ms(30), comes);
    // A thread that has ended does not come back.
    example.push(ms(31), switch(cpu, Some(thread), ThreadState::Dead, None));
    example.push(ms(40), EventKind::End { entity: cpu });
    let (file, _) = example.written();
    let markers = &file["threads"][0]["markers"];
    assert_eq!(markers["startTime"], serde_json::json!([0, 2, 10, 16, 21]));
    assert_eq!(markers["endTime"], serde_json::json!([1, 4, 13, 20, 25]));
}
