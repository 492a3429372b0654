//! What the Perfetto sink writes, read back.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use proptest::prelude::*;
#[allow(dead_code, reason = "shared with other tests")]
use testkit::perfetto::Timeline;
use trace_export::{
    Category, ClockDomain, DebugAnnotation, Flow, Frame, Interrupt, Loss, Name, PerfettoSink,
    Sample, SchedSwitch, SchedWaking, Sink, StackId, Task, TextId, Timestamp, Track, TrackEvent,
    TrackId, Unit, Value,
};

const fn ns(n: i64) -> Timestamp {
    Timestamp::from_nanos(n)
}

fn written(write: impl FnOnce(&mut PerfettoSink<Vec<u8>>) -> std::io::Result<()>) -> Vec<u8> {
    let mut sink = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
    write(&mut sink).unwrap();
    sink.finish().unwrap();
    let bytes = sink.stats().bytes;
    let trace = sink.into_inner();
    assert_eq!(trace.len() as u64, bytes);
    trace
}

#[test]
fn everything_has_its_place() {
    let trace = written(|sink| {
        sink.clock_snapshot(&[
            (ClockDomain::Monotonic, ns(1_000)),
            (ClockDomain::Realtime, ns(1_700_000_000_000_000_000)),
            (ClockDomain::Boottime, ns(51_000)),
            (ClockDomain::Tai, ns(5)), // has no place
        ])?;
        let process = sink.track(&Track::process(42, b"server").ordered())?;
        let thread = sink.track(&Track::thread(42, 43, b"worker"))?;
        assert_eq!(sink.track(&Track::thread(42, 43, b"worker"))?, thread);
        assert_ne!(sink.track(&Track::thread(42, 42, b"main"))?, process);
        let jobs = sink.track(&Track::custom(b"jobs").child_of(process).rank(2))?;
        let heap = sink.track(&Track::counter(b"heap", Unit::Bytes).child_of(process).rank(1))?;

        let load = Track::counter(b"load", Unit::Count).child_of(process).unit_name(b"%");
        let load = sink.track(&load)?;

        let (job, busy, why) = (sink.text(b"job"), sink.text(b"busy"), sink.text(b"why"));
        let mut frames =
            [Frame::new(b"leaf").source(b"a.c", 3), Frame::new(b"main").module(b"server", 9)]
                .into_iter();
        let stack = sink.stack(&mut frames);
        let flow = sink.new_flow();
        let args = [
            DebugAnnotation::new(why, Value::Text(job.into())),
            DebugAnnotation::new(busy, Value::Int(-7)),
            DebugAnnotation::new(job, Value::Text((&b"\xff!"[..]).into())),
        ];
        let entry = TrackEvent::new(job).stack(Some(stack)).args(&args);
        let entry = entry.flow(Some(Flow::Through(flow))).category(Category::Task);
        sink.begin(ns(2_000), jobs, &entry)?;
        sink.state(ns(2_000), thread, Some(&TrackEvent::new(busy)))?;
        sink.state(ns(2_100), thread, Some(&TrackEvent::new(job)))?;
        sink.counter(ns(2_200), heap, (-5).into())?;
        sink.counter(ns(2_250), load, 0.375.into())?;
        sink.instant(ns(2_150), jobs, &TrackEvent::new(&b"late"[..]))?; // on another track: back in time
        let mut sample = Sample::new(42, 43);
        sample.stack = Some(stack);
        sink.sample(ns(2_300), &sample)?;
        sink.state(ns(2_400), thread, None)?;
        sink.end(ns(2_500), jobs, &[DebugAnnotation::new(why, Value::Uint(3))])?;
        sink.end(ns(2_600), jobs, &[])?; // nothing is open
        let loss = Loss::new(b"samples").count(9).why(b"full");
        sink.lost(ns(2_700), None, &loss)?;
        assert_eq!(sink.stats().unmatched_ends, 1);
        assert_eq!((sink.stats().slices, sink.stats().instants), (3, 2));
        Ok(())
    });
    let expected = "\
clocks 3=1000 1=1700000000000000000 6=51000
track server 42
track worker 43
track main 42
track server 42/jobs
track server 42/heap (values in bytes)
track server 42/load (values in %)
clocks 3=2000
2000 server 42/jobs: begin job why=job busy=-7 job=\u{fffd}! ->1 [main > leaf@a.c:3]
2000 worker 43: begin busy
2100 worker 43: end
2100 worker 43: begin job
2200 server 42/heap: value -5
2250 server 42/load: value 0.375
2150 server 42/jobs: instant late
2300 sample 42/43 [main > leaf@a.c:3]
2400 worker 43: end
2500 server 42/jobs: end why=3
track Losses
2700 Losses: instant lost: samples what=samples why=full count=9";
    let timeline = Timeline::read(&trace);
    assert_eq!(timeline.text(), expected);
    let categories: Vec<_> = timeline.categories.iter().map(|(name, n)| (&name[..], *n)).collect();
    assert_eq!(categories, [("", 3), ("loss", 1), ("task", 1)]);
}

/// A viewer has no scale for an infinite value.
#[test]
fn counters_have_finite_values_only() {
    let trace = written(|sink| {
        let load = sink.track(&Track::counter(b"load", Unit::Count))?;
        for (at, value) in (1..).zip([1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 2.5]) {
            sink.counter(ns(at), load, value.into())?;
        }
        assert_eq!((sink.stats().counters, sink.stats().values_omitted), (2, 3));
        Ok(())
    });
    let timeline = Timeline::read(&trace);
    let values: Vec<_> = timeline.lines.iter().filter(|line| line.contains("value ")).collect();
    assert_eq!(values, ["1 load: value 1.5", "5 load: value 2.5"]);
}

#[test]
fn the_kernels_scheduler_is_on_the_clock_that_viewers_read_it_on() {
    let task = |tid, comm| Task::new(tid, comm, 120);
    let switch = |cpu, prev, next| SchedSwitch::new(cpu, prev, 1, next);
    let trace = written(|sink| {
        sink.kernel(b"6.12.1")?;
        let first = switch(1, task(7, b"a"), task(8, b"b"));
        assert!(sink.sched_switch(ns(10), &first).is_err(), "the clock is not known");
        sink.clock_snapshot(&[
            (ClockDomain::Monotonic, ns(0)),
            (ClockDomain::Boottime, ns(1_000)),
        ])?;
        sink.sched_switch(ns(10), &first)?;
        sink.sched_switch(ns(20), &switch(1, task(8, b"b"), task(7, b"a")))?;
        let waking = SchedWaking::new(1, task(9, b"c"), 2);
        sink.sched_waking(ns(25), &waking)?;
        sink.sched_waking(ns(26), &waking.interrupt(Interrupt::Hard))?;
        sink.sched_waking(ns(27), &waking.interrupt(Interrupt::Soft))?;
        sink.sched_switch(ns(30), &switch(1, task(7, b"a"), task(8, b"b")))?;
        assert!(sink.sched_switch(ns(30), &switch(1 << 20, task(7, b"a"), task(8, b"b"))).is_err());
        for i in 0..3000 {
            sink.sched_switch(ns(40 + i), &switch(0, task(0, b"idle"), task(1, b"init")))?;
        }
        Ok(())
    });
    let timeline = Timeline::read(&trace);
    let of = |cpu: &str| -> Vec<&str> {
        timeline.lines.iter().filter(|l| l.contains(cpu)).map(|l| &l[..]).collect()
    };
    let expected = [
        "1010 cpu 1: a 7 -> b 8",
        "1020 cpu 1: (1) -> a 7",
        "1030 cpu 1: (1) -> b 8",
        "1025 cpu 1: wakes c 9 for 2",
        "1026 cpu 1: wakes c 9 for 2 by a hardware interrupt",
        "1027 cpu 1: wakes c 9 for 2 by a software interrupt",
    ];
    assert_eq!(timeline.lines[0], "Linux 6.12.1", "which says what the states are");
    assert_eq!(of("cpu 1"), expected);
    assert_eq!(of("cpu 0").len(), 3000, "over several bundles");
    assert_eq!(of("cpu 0")[2999], "4039 cpu 0: (1) -> init 1");
}

fn clocks(trace: &[u8]) -> Vec<String> {
    let lines = Timeline::read(trace).lines;
    lines.into_iter().filter(|line| line.starts_with("clocks")).collect()
}

#[test]
fn the_first_snapshot_relates_the_clock_to_boottime() {
    let draw = |sink: &mut PerfettoSink<Vec<u8>>| {
        let track = sink.track(&Track::custom(b"t"))?;
        sink.instant(ns(7), track, &TrackEvent::new(&b"x"[..]))
    };
    assert_eq!(clocks(&written(draw)), ["clocks 3=7 6=7"], "assumed to be equal");
    let recorded = written(|sink| {
        let mono = (ClockDomain::Monotonic, ns(5));
        sink.clock_snapshot(&[mono, (ClockDomain::Boottime, ns(50))])?;
        draw(sink)
    });
    assert_eq!(clocks(&recorded), ["clocks 3=5 6=50", "clocks 3=7"], "as measured");
    let of_the_trace_alone = written(|sink| {
        sink.set_clock_domain(ClockDomain::Local(1));
        draw(sink)
    });
    assert_eq!(clocks(&of_the_trace_alone), ["clocks 11=7"]);
}

#[test]
fn snapshots_ascend_whatever_the_order_of_the_traces() {
    let mut sink = PerfettoSink::with_limit(Vec::new(), ClockDomain::Monotonic, 200);
    let track = sink.track(&Track::custom(b"t")).unwrap();
    let readings = |at| [(ClockDomain::Monotonic, ns(at)), (ClockDomain::Realtime, ns(at + 9))];
    sink.clock_snapshot(&readings(500)).unwrap();
    // A second trace from before the first, with enough names to reset the tables.
    sink.clock_snapshot(&readings(100)).unwrap();
    for at in 100..200 {
        let name = sink.text(format!("a name of its own, number {at}").as_bytes());
        sink.instant(ns(at), track, &TrackEvent::new(name)).unwrap();
    }
    sink.clock_snapshot(&readings(600)).unwrap();
    sink.finish().unwrap();
    assert_eq!(sink.stats().snapshots_skipped, 1);
    let trace = sink.into_inner();
    let timeline = Timeline::read(&trace); // which checks that they ascend
    assert!(timeline.restarts > 2);
    assert_eq!(timeline.count(": instant a name"), 100);
    assert!(timeline.lines.iter().any(|l| l.starts_with("100 t: instant")), "not moved");
    assert_eq!(clocks(&trace).last().unwrap(), "clocks 3=600 1=609");
}

#[test]
fn times_of_a_coarse_clock_are_short_and_exact() {
    // As in a Go trace: multiples of 64 ns after the first time, with a step back.
    const FIRST: i64 = 1_000_000_037;
    let times = |step: i64| -> Vec<i64> {
        (0..1000).map(|i| FIRST + i * step - if i % 100 == 99 { 50 * step } else { 0 }).collect()
    };
    let write = |times: &[i64], limit| {
        let mut sink = PerfettoSink::with_limit(Vec::new(), ClockDomain::Monotonic, limit);
        let tracks = [b"t", b"u"].map(|name| sink.track(&Track::custom(name)).unwrap());
        for (i, at) in times.iter().enumerate() {
            let name = sink.text(format!("x{}", i % 10).as_bytes());
            let track = tracks[usize::from(i % 100 == 99)];
            sink.instant(ns(*at), track, &TrackEvent::new(name)).unwrap();
        }
        sink.finish().unwrap();
        let trace = sink.into_inner();
        let timeline = Timeline::read(&trace);
        let instants = timeline.lines.iter().filter(|line| line.contains("instant"));
        let read: Vec<i64> =
            instants.map(|line| line.split_once(' ').unwrap().0.parse().unwrap()).collect();
        assert_eq!(read, times);
        trace.len()
    };
    let (coarse, fine) = (write(&times(640), 1 << 20), write(&times(641), 1 << 20));
    assert!(coarse + 900 < fine, "{coarse} bytes, {fine} in nanoseconds");
    // Few exceptions cost little.
    let mut some = times(640);
    some.iter_mut().skip(1).step_by(50).for_each(|at| *at += 1);
    let some = write(&some, 1 << 20);
    assert!(some < coarse + 20 * 8, "{some} bytes, {coarse} without exceptions");
    // Tables that are full again and again restart the clock.
    for limit in [200, 1 << 20] {
        for odd in [1, 7, 500, 999] {
            let mut times = times(640);
            times.iter_mut().step_by(odd).for_each(|at| *at += 1);
            write(&times, limit);
        }
    }
}

#[test]
fn deltas_stay_small_behind_a_step_back() {
    // Times of a machine that is up for ten days.
    const UP: i64 = 864_000_000_000_000;
    let size = |starts: &[i64]| {
        let trace = written(|sink| {
            let name = sink.text(b"x");
            for start in starts {
                let track = sink.track(&Track::custom(b"t"))?;
                for i in 0..1000 {
                    let at = ns(UP + start + i * 1000);
                    sink.instant(at, track, &TrackEvent::new(name))?;
                }
            }
            Ok(())
        });
        assert_eq!(Timeline::read(&trace).count(": instant x"), starts.len() * 1000);
        trace.len()
    };
    let (apart, together) = (size(&[0, 2_000_000]), size(&[2_000_000, 0]));
    assert!(together <= apart + 16, "{together} bytes, {apart} in the order of time");
}

#[test]
fn values_of_arguments_are_in_the_tables_from_their_second_use() {
    let bytes = written(|sink| {
        let track = sink.track(&Track::custom(b"T"))?;
        let (name, key) = (sink.text(b"event"), sink.text(b"key"));
        let (often, once) = (sink.text(b"often used"), sink.text(b"used once"));
        for (at, value) in [(1, often), (2, once), (3, often), (4, often)] {
            let args = [DebugAnnotation::new(key, Value::Text(Name::Text(value)))];
            let entry = TrackEvent::new(name).args(&args);
            sink.instant(ns(at), track, &entry)?;
        }
        Ok(())
    });
    let count = |text: &[u8]| bytes.windows(text.len()).filter(|part| *part == text).count();
    assert_eq!((count(b"used once"), count(b"often used")), (1, 2));
    let text = Timeline::read(&bytes).text();
    for line in ["1 T: instant event key=often used", "4 T: instant event key=often used"] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn bad_calls_are_refused() {
    let mut sink = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
    let mut other = PerfettoSink::new(Vec::new(), ClockDomain::Monotonic);
    let track = other.track(&Track::custom(b"elsewhere")).unwrap();
    assert!(sink.end(ns(1), track, &[]).is_err());
    assert!(sink.track(&Track::custom(b"child").child_of(track)).is_err());
    assert!(sink.clock_snapshot(&[(ClockDomain::Realtime, ns(1))]).is_err());
}

/// A call of a sink.
#[derive(Clone, Debug)]
enum Call {
    Begin(i64, usize, String),
    State(i64, usize, Option<String>),
    End(usize),
    Instant(i64, usize, Vec<u8>),
    Value(i64, i64),
    Sample(Vec<String>),
    OldName(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let name = "[a-e]{1,30}";
    let call = prop_oneof![
        (-3..1000i64, 0..3usize, name).prop_map(|(t, i, n)| Call::Begin(t, i, n)),
        (0..1000i64, 0..3usize, prop::option::of(name)).prop_map(|(t, i, n)| Call::State(t, i, n)),
        (0..3usize).prop_map(Call::End),
        (0..1000i64, 0..3usize, any::<Vec<u8>>()).prop_map(|(t, i, n)| Call::Instant(t, i, n)),
        (0..1000i64, any::<i64>()).prop_map(|(t, v)| Call::Value(t, v)),
        prop::collection::vec(name, 0..5).prop_map(Call::Sample),
        (0..9usize).prop_map(Call::OldName),
    ];
    prop::collection::vec(call, 0..200)
}

proptest! {
    /// The end of a state and the begin of the next one are written in one piece where both are
    /// short.
    #[test]
    fn a_change_of_state_is_an_end_and_a_begin(
        // 64 ns are a unit of the clock. Other steps are exceptions.
        steps in proptest::collection::vec(
            (
                0..3usize,
                prop_oneof![(-9..300i64).prop_map(|n| 64 * n), -99..99i64, 0..i64::MAX >> 20],
                (0..40usize, proptest::option::of(0..40usize)),
                proptest::option::of(0..1u64 << 40),
                proptest::option::of(0..Category::ALL.len()),
            ),
            0..200,
        ),
    ) {
        let traces = [false, true].map(|is_apart| {
            // Small tables are reset often.
            let mut sink = PerfettoSink::with_limit(Vec::new(), ClockDomain::Monotonic, 1 << 10);
            let tracks: Vec<TrackId> = (0..3u8)
                .map(|n| sink.track(&Track::custom(&[b'a' + n])).unwrap())
                .collect();
            let mut at = 1 << 40;
            for &(track, step, (name, stack), flow, category) in &steps {
                at += step;
                let name = sink.text(format!("name {name}").as_bytes());
                let stack = stack.map(|n| {
                    let function = format!("f{n}");
                    // One has no frames.
                    let frame = (n > 0).then(|| Frame::new(function.as_bytes()));
                    sink.stack(&mut frame.into_iter())
                });
                let mut entry = TrackEvent::new(name).stack(stack).flow(flow.map(Flow::Ends));
                entry.category = category.map(|n| Category::ALL[n]);
                if is_apart {
                    sink.state(ns(at), tracks[track], None).unwrap();
                }
                sink.state(ns(at), tracks[track], Some(&entry)).unwrap();
            }
            sink.finish().unwrap();
            sink.into_inner()
        });
        prop_assert!(traces[0] == traces[1]);
    }

    /// Whatever is called, with tables that are reset all the time: what is written can be
    /// read, refers to nothing that is not there, and has the names that were given.
    #[test]
    fn any_calls_make_a_sound_trace(calls in calls()) {
        let mut sink = PerfettoSink::with_limit(Vec::new(), ClockDomain::Monotonic, 200);
        let tracks: Vec<TrackId> =
            (0..3).map(|_| sink.track(&Track::custom(b"t")).unwrap()).collect();
        let counter = sink.track(&Track::counter(b"c", Unit::Count)).unwrap();
        let mut times = [0i64; 4];
        let mut next = |track: usize, step: i64| {
            times[track] += step.max(0);
            ns(times[track])
        };
        let mut old: Vec<(TextId, String)> = Vec::new();
        let mut old_stacks: Vec<StackId> = Vec::new();
        let mut names = Vec::new();
        let mut values = Vec::new();
        for call in calls {
            match call {
                Call::Begin(step, track, name) => {
                    let id = sink.text(name.as_bytes());
                    old.push((id, name.clone()));
                    names.push(name);
                    sink.begin(next(track, step), tracks[track], &TrackEvent::new(id)).unwrap();
                }
                Call::State(step, track, name) => {
                    let id = name.as_ref().map(|name| sink.text(name.as_bytes()));
                    names.extend(name);
                    let entry = id.map(TrackEvent::new);
                    sink.state(next(track, step), tracks[track], entry.as_ref()).unwrap();
                }
                Call::End(track) => sink.end(next(track, 0), tracks[track], &[]).unwrap(),
                Call::Instant(step, track, name) => {
                    names.push(String::from_utf8_lossy(&name).into_owned());
                    sink.instant(next(track, step), tracks[track], &TrackEvent::new(&name[..])).unwrap();
                }
                Call::Value(step, value) => {
                    values.push(value);
                    sink.counter(next(3, step), counter, value.into()).unwrap();
                }
                Call::Sample(functions) => {
                    let mut frames = functions
                        .iter()
                        .map(|f| Frame::new(f.as_bytes()));
                    let mut sample = Sample::new(1, 2);
                    let stack = sink.stack(&mut frames);
                    old_stacks.push(stack);
                    sample.stack = old_stacks.get(old_stacks.len() / 2).copied();
                    sink.sample(next(0, 0), &sample).unwrap();
                }
                Call::OldName(back) => {
                    if let Some((id, name)) = old.iter().rev().nth(back) {
                        let held = sink.holds_text(*id);
                        names.push(if held { name.clone() } else { "?".to_owned() });
                        sink.instant(next(0, 1), tracks[0], &TrackEvent::new(*id)).unwrap();
                    }
                }
            }
        }
        sink.finish().unwrap();
        let stats = sink.stats();
        let timeline = Timeline::read(&sink.into_inner());
        let read: Vec<&str> = timeline
            .lines
            .iter()
            .filter_map(|l| l.split_once(": begin ").or_else(|| l.split_once(": instant ")))
            .map(|(_, name)| name)
            .collect();
        prop_assert_eq!(read, names);
        prop_assert_eq!(timeline.count("(values") + timeline.count(": value "), values.len() + 1);
        prop_assert_eq!(stats.slices + stats.instants, timeline.count(": begin ") as u64
            + timeline.count(": instant ") as u64);
    }
}

#[test]
fn types_are_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<PerfettoSink<Vec<u8>>>();
    is_shared::<trace_export::ChromeSink<Vec<u8>>>();
    is_shared::<Track<'_>>();
    #[cfg(feature = "timeline")]
    is_shared::<trace_export::timeline::TimelineSource>();
    #[cfg(feature = "profile")]
    {
        is_shared::<trace_export::profile::Profile>();
        is_shared::<trace_export::profile::Samples>();
        is_shared::<trace_export::profile::Error>();
    }
}
