//! What the .NET source draws, read back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use nettrace::Reader;
use std::path::Path;
use std::sync::Arc;
use testkit::nettrace::{Written, event, trace, utf16};
use testkit::perfetto::Timeline;
use trace_export::timeline::{TimelineOptions, TimelineSource, TimelineStats};
use trace_export::{ClockDomain, CpuIntervals, PerfettoSink, SchedSwitch, Sink, Task, Timestamp};
use trace_timeline::Tables;
use trace_timeline::sources::dotnet::{DotnetNames, DotnetSource, DotnetStats};

const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";
const SAMPLER: &str = "Microsoft-DotNETCore-SampleProfiler";

/// A sample of `thread`, taken by thread 99.
fn sample(metadata: u32, at: i64, thread: u64) -> Written {
    let payload = 2u32.to_le_bytes().to_vec();
    Written { metadata, at, thread, by: 99, payload, has_stack: true, lost: 0 }
}

/// A trace on the timeline: its lines, the source, and the numbers of what is drawn.
fn draw_with(trace: &[u8], options: TimelineOptions) -> (Vec<String>, DotnetSource, TimelineStats) {
    let mut names = DotnetNames::new();
    Reader::new(trace).for_each(|event| names.push(&event)).unwrap();
    let mut sink = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
    let (mut source, mut timeline) =
        (DotnetSource::with_names(0, names), TimelineSource::new(options));
    let (mut tables, mut events) = (Tables::new(), Vec::new());
    let mut reader = Reader::new(trace);
    while let Some(item) = reader.next_item().unwrap() {
        source.push(&item, &mut tables, &mut events);
        for event in events.drain(..) {
            timeline.push(&event, &tables, &mut sink).unwrap();
        }
    }
    timeline.finish(&tables, &mut sink).unwrap();
    sink.finish().unwrap();
    (Timeline::read(&sink.into_inner()).lines, source, timeline.stats())
}

fn draw(trace: &[u8]) -> (Vec<String>, DotnetStats) {
    let (lines, source, _) = draw_with(trace, TimelineOptions::default());
    (lines, source.stats())
}

fn captured(name: &str) -> Vec<u8> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nettrace/tests/data");
    std::fs::read(data.join(name)).unwrap()
}

fn of<'a>(lines: &'a [String], part: &str) -> Vec<&'a str> {
    lines.iter().filter(|line| line.contains(part)).map(String::as_str).collect()
}

#[test]
fn allocations_have_their_bytes_in_every_version() {
    let types = [(RUNTIME, 10, 0), (RUNTIME, 10, 1), (RUNTIME, 10, 2), (RUNTIME, 303, 0)];
    let (u32s, u64s) = (u32::to_le_bytes, u64::to_le_bytes);
    let clr = 9u16.to_le_bytes();
    let name = utf16("T");
    let sampled: [&[u8]; 6] = [&u32s(0), &clr, &u64s(7), &name, &u64s(7), &u64s(400)];
    let events = [
        event(1, 10, 5, &[&u32s(100), &u32s(0)]),
        event(2, 20, 5, &[&u32s(200), &u32s(0), &clr]),
        event(3, 30, 5, &[&u32s(1), &u32s(0), &clr, &u64s(300), &u64s(7), &name, &u32s(0)]),
        event(4, 40, 5, &[&sampled.concat(), &u64s(0)]),
    ];
    let (lines, stats) = draw(&trace(&types, &events));
    let drawn: Vec<&str> = of(&lines, "allocation sample")
        .into_iter()
        .filter_map(|l| l.split("bytes=").nth(1))
        .collect();
    // A sampled object of 400 bytes stands for others.
    assert_eq!(drawn, ["100", "200", "300", "102600"], "{lines:#?}");
    assert_eq!((stats.undecodable, stats.skipped), (0, 0));
}

#[test]
fn undecodable_events_are_shown_and_counted() {
    // A suspension whose reason is cut short.
    let trace = trace(&[(RUNTIME, 9, 1)], &[event(1, 10, 5, &[&[1, 2]])]);
    let (lines, stats) = draw(&trace);
    assert_eq!(stats.undecodable, 1, "{lines:#?}");
    assert_eq!(of(&lines, "payload=0102").len(), 1, "{lines:#?}");
}

#[test]
fn events_without_their_fields_are_not_drawn_with_zeros() {
    // Payloads may end between two fields: GCStart, GCEnd, suspension, heap sizes, workers, target of
    // workers, allocation, sampled allocation, exception, lock wait, compilation and its end.
    let types = [
        (RUNTIME, 1, 0),
        (RUNTIME, 1, 2),
        (RUNTIME, 2, 1),
        (RUNTIME, 9, 1),
        (RUNTIME, 4, 2),
        (RUNTIME, 50, 0),
        (RUNTIME, 55, 0),
        (RUNTIME, 10, 4),
        (RUNTIME, 303, 0),
        (RUNTIME, 80, 1),
        (RUNTIME, 81, 2),
        (RUNTIME, 145, 1),
        (RUNTIME, 141, 1),
        (RUNTIME, 143, 2),
    ];
    for (number, kind) in (1..).zip(&types) {
        let (lines, stats) = draw(&trace(&types, &[event(number, 10, 5, &[&[]])]));
        assert_eq!((stats.events, stats.undecodable), (1, 1), "{kind:?}: {lines:#?}");
        assert_eq!(of(&lines, "error=a field is missing").len(), 1, "{kind:?}: {lines:#?}");
    }
}

#[test]
fn undecodable_events_of_every_kind_are_shown_and_counted() {
    const UNKNOWN: &str = "Shop";
    // Fields missing, of each kind of event that the source decodes itself.
    let types = [
        (RUNTIME, 1, 2),   // GCStart
        (RUNTIME, 4, 2),   // GCHeapStats
        (RUNTIME, 145, 1), // MethodJittingStarted
        (RUNTIME, 80, 1),  // ExceptionThrown
        (RUNTIME, 10, 4),  // GCAllocationTick
        (UNKNOWN, 1, 0),   // without metadata of fields: nothing to decode
    ];
    for (number, kind) in (1..).zip(&types) {
        let (lines, stats) = draw(&trace(&types, &[event(number, 10, 5, &[&[7]])]));
        assert_eq!(stats.events, 1, "{kind:?}");
        let shown = of(&lines, "payload=07").len() as u64;
        assert_eq!(shown, stats.undecodable, "{kind:?}: {lines:#?}");
        assert_eq!(stats.undecodable, u64::from(kind.0 == RUNTIME), "{kind:?}: {lines:#?}");
        assert_eq!(stats.skipped, 0, "{kind:?}: {lines:#?}");
    }
    // A long payload is shown up to a limit.
    let long = vec![0xab; 4096];
    let trace = trace(&[(RUNTIME, 80, 1)], &[event(1, 10, 5, &[&long])]);
    let (lines, stats) = draw(&trace);
    let shown = of(&lines, "payload=abab");
    assert_eq!((stats.undecodable, shown.len()), (1, 1), "{lines:#?}");
    assert!(shown[0].len() < 1500, "{} bytes", shown[0].len());
}

#[test]
fn threads_of_the_runtime_are_named_by_their_role() {
    // ThreadCreated, and ThreadDC of the rundown.
    let types =
        [(RUNTIME, 85, 0), ("Microsoft-Windows-DotNETRuntimeRundown", 159, 0), (RUNTIME, 80, 1)];
    let created = |kind, os: u32, flags: u32| {
        let fields = [&1u64.to_le_bytes()[..], &1u64.to_le_bytes(), &flags.to_le_bytes()];
        let rest = [&1u32.to_le_bytes()[..], &os.to_le_bytes(), &[9, 0]];
        event(kind, 10, 1, &[&fields.concat(), &rest.concat()])
    };
    let thrown = |thread| {
        let text = [utf16("E"), utf16("m")].concat();
        event(3, 20, thread, &[&text, &[0; 8], &[0; 4], &[0; 2], &[9, 0]])
    };
    // Flags: 1 GC special, 2 finalizer, 4 thread pool worker; the finalizer has two of them.
    let roles = [
        (1, 11, 1, ".NET GC"),
        (1, 12, 3, ".NET Finalizer"),
        (1, 13, 4, ".NET ThreadPool Worker"),
        (2, 14, 2, ".NET Finalizer"),
        (1, 15, 8, ""),
    ];
    let mut events: Vec<Written> =
        roles.iter().map(|(kind, os, flags, _)| created(*kind, *os, *flags)).collect();
    events.extend(roles.iter().map(|(_, os, ..)| thrown(u64::from(*os))));
    let (lines, stats) = draw(&trace(&types, &events));
    assert_eq!(stats.undecodable, 0, "{lines:#?}");
    for (_, os, _, name) in roles {
        let track = format!("track {name} {os}");
        assert_eq!(lines.iter().filter(|line| **line == track).count(), 1, "{track}: {lines:#?}");
    }
}

/// Suspensions by two threads that overlap, in which thread 99 takes two samples.
fn suspensions() -> Vec<u8> {
    let types = [(RUNTIME, 9, 1), (RUNTIME, 3, 1), (SAMPLER, 0, 0)];
    let begin = |at, thread, reason: u32| {
        event(1, at, thread, &[&reason.to_le_bytes(), &1u32.to_le_bytes(), &[9, 0]])
    };
    let end = |at, thread| event(2, at, thread, &[&[9, 0]]);
    trace(
        &types,
        &[
            begin(5_000, 7, 1),
            begin(5_100, 99, 0),
            end(5_200, 7),
            sample(3, 5_300, 1),
            sample(3, 5_310, 2),
            end(5_400, 99),
            begin(5_500, 8, 0),
            end(5_600, 8),
            begin(5_700, 99, 0),
            end(5_800, 99),
        ],
    )
}

#[test]
fn suspensions_are_counted_right_and_name_the_sampler() {
    let (lines, _) = draw(&suspensions());
    let begun: Vec<&str> = of(&lines, ": begin Stop-the-world (")
        .iter()
        .filter_map(|l| l.split(['(', ')']).nth(1))
        .collect();
    assert_eq!(begun, ["Gc", "sample profiler", "Other", "sample profiler"], "{lines:#?}");
    assert_eq!(of(&lines, "/GC/Stop-the-world").iter().filter(|l| l.ends_with(": end")).count(), 4);
    assert!(of(&lines, "5100 ")[0].contains("(sample profiler)"), "with its own time");
}

#[test]
fn samples_say_whether_the_thread_had_a_cpu() {
    let samples = |options| -> (Vec<String>, TimelineStats) {
        let (lines, _, stats) = draw_with(&suspensions(), options);
        (of(&lines, " sample 42/").into_iter().map(str::to_owned).collect(), stats)
    };
    let (lines, stats) = samples(TimelineOptions::default());
    assert_eq!((stats.samples, stats.samples_on_cpu, stats.samples_off_cpu), (2, 0, 0));
    for line in &lines {
        assert!(line.contains("[[on or off CPU: unknown] > 0x1234"), "{line}");
    }
    // Thread 1 ran when thread 99 began to suspend it, at 5100; thread 2 had left its CPU.
    let task = |tid| Task::new(tid, b"", 120);
    let mut cpus = CpuIntervals::new();
    for (at, cpu, prev, next) in
        [(4_000, 0, 0, 1), (4_000, 1, 0, 2), (5_050, 1, 2, 99), (5_150, 0, 1, 0), (9_000, 1, 99, 0)]
    {
        let (prev, next) = (task(prev), task(next));
        let switch = SchedSwitch::new(cpu, prev, 1, next);
        cpus.switch(Timestamp::from_nanos(at), &switch);
    }
    let mut options = TimelineOptions::default();
    options.cpus = Some(Arc::new(cpus));
    let (lines, stats) = samples(options);
    assert_eq!((stats.samples, stats.samples_on_cpu, stats.samples_off_cpu), (2, 1, 1));
    assert!(lines[0].contains("42/1") && lines[0].contains("[[on CPU] > 0x1234"), "{lines:?}");
    assert!(lines[1].contains("42/2") && lines[1].contains("[[off CPU] > 0x1234"), "{lines:?}");
}

/// Awaits and scheduled continuations are on tracks of the process, continuations that run on those of their threads.
#[test]
fn tasks_are_drawn() {
    let (lines, stats) = draw(&captured("t31-selfdesc.nettrace"));
    assert!(stats.skipped * 2 < stats.events, "{stats:?}");
    for part in ["/Awaits", "waits for task", "/Thread-pool queue", "continuation", "task id=5"] {
        assert!(lines.iter().any(|line| line.contains(part)), "{part}: {:#?}", &lines[..40]);
    }
}

#[test]
fn other_work_of_the_runtime_is_drawn_on_its_thread() {
    let types = [14, 13, 73, 74, 283, 284].map(|id| (RUNTIME, id, u32::from(id < 20)));
    let (u32s, clr) = (u32::to_le_bytes, 9_u16.to_le_bytes());
    let events = [
        event(1, 10, 5, &[&clr]),
        event(2, 20, 5, &[&u32s(3), &clr]),
        event(3, 30, 5, &[&u32s(1), &clr]),
        event(4, 40, 5, &[&u32s(1), &clr, &[6, 0], &[0; 8], &utf16("N.T")]),
        event(5, 50, 5, &[&clr, &u32s(9)]),
        event(6, 60, 5, &[&clr, &u32s(0), &u32s(9)]),
    ];
    let (lines, stats) = draw(&trace(&types, &events));
    assert_eq!((stats.skipped, stats.undecodable), (0, 0));
    for name in ["finalizers", "type load", "N.T", "tiered compilation", "pending methods"] {
        assert!(lines.iter().any(|line| line.contains(name)), "{name}: {lines:#?}");
    }
}

#[test]
fn processes_are_named_by_the_trace() {
    for name in ["t10-activity.nettrace", "t9-metrics.nettrace", "t31-selfdesc.nettrace"] {
        let (lines, _) = draw(&captured(name));
        let processes: Vec<&String> =
            lines.iter().filter(|l| l.starts_with("track ") && !l.contains('/')).collect();
        assert!(!processes.is_empty(), "{name}: {lines:?}");
        assert!(processes.iter().all(|l| !l.contains(".NET")), "{name}: {processes:?}");
    }
}

#[test]
fn counters_have_one_track_with_their_unit_whatever_the_values() {
    let (lines, _) = draw(&captured("t10-counters.nettrace"));
    let tracks = of(&lines, "(values");
    assert!(!tracks.is_empty());
    let mut names: Vec<&str> = tracks.iter().filter_map(|l| l.split(" (values").next()).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "{tracks:#?}");
    assert!(!tracks.iter().any(|l| l.contains("(m")), "no thousandths: {tracks:#?}");
    assert!(tracks.iter().any(|l| l.ends_with("/working-set (values in MB)")), "{tracks:#?}");
    assert!(tracks.iter().any(|l| l.ends_with("/cpu-usage (values in %)")), "{tracks:#?}");
    let values = of(&lines, "/working-set: value ");
    assert!(values.iter().any(|l| l.contains('.')), "fractions: {values:?}");
}

#[test]
fn events_that_are_not_shown_are_named() {
    let trace = captured("v6-record-trace-pid.nettrace");
    let (_, source, _) = draw_with(&trace, TimelineOptions::default());
    let stats = source.stats();
    assert_eq!((stats.events, stats.skipped), (51, 51));
    let expected = [
        ("Universal.System", "ProcessMapping", 32),
        ("Universal.System", "ProcessMappingMetadata", 18),
        ("Universal.System", "ExistingProcess", 1),
    ];
    assert_eq!(source.skipped(), expected);
}
