//! Reading in parallel: the same events and the same profiles as in sequence, for intact and damaged
//! traces; and analyses that are divided anywhere.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that fails is to panic"
)]

mod common;

use gotrace::analysis::{
    Clipped, GcCycles, Profile, ProfileKind, ProfileScope, Scheduling, SchedulingOptions,
    Utilization, UtilizationOptions,
};
use gotrace::parallel::{Parallel, Split};
use gotrace::{Event, EventKind, EventType, OwnedEvent, Parser, Reader, Timestamp};
use proptest::prelude::*;
use proptest::sample::Index;
use std::io::Cursor;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The text of each event, as far as it does not depend on earlier generations.
#[derive(Clone, Default)]
struct Texts {
    events: Vec<String>,
    /// Events of parts that were joined.
    joined: usize,
}

impl Split for Texts {
    fn push(&mut self, event: Event<'_>) {
        let repeats = event.state_transition().is_some_and(|transition| {
            transition.goroutine().is_some_and(|(from, to)| from == to)
                || transition.proc().is_some_and(|(from, to)| from == to)
        });
        let repeats = repeats || event.kind() == EventKind::RangeActive;
        self.events.push(match event.kind() {
            EventKind::TaskEnd => format!("{} {} TaskEnd", event.time(), event.task().unwrap().id),
            _ if repeats => format!("{} {}", event.time(), event.kind()),
            _ => event.to_string(),
        });
    }

    fn part(&self, _start: Timestamp) -> Self {
        Self::default()
    }

    fn join(&mut self, part: Self) {
        self.joined += part.events.len();
        self.events.extend(part.events);
    }
}

/// Reads the rest; returns the text of the error and of what follows it.
fn rest<A: Split>(mut reader: Reader<impl std::io::Read>, analysis: &mut A) -> Vec<String> {
    let mut errors = Vec::new();
    loop {
        match reader.next_event() {
            Ok(Some(event)) => analysis.push(event),
            Ok(None) => return errors,
            Err(error) => {
                errors.push(error.to_string());
                match reader.recover() {
                    Ok(Some(loss)) => errors.push(format!("{loss:?}")),
                    Ok(None) => return errors,
                    Err(error) => {
                        errors.push(error.to_string());
                        return errors;
                    }
                }
            }
        }
    }
}

/// Reads a trace in sequence and in parallel.
fn both<A: Split>(trace: &[u8], make: impl Fn() -> A) -> [(A, Vec<String>); 2] {
    let mut sequential = make();
    let errors = rest(Reader::new(trace).unwrap(), &mut sequential);
    let mut parallel = make();
    let threads = NonZeroUsize::new(3).unwrap();
    let reader = Parallel::new(threads).read(|| Ok(Cursor::new(trace)), &mut parallel).unwrap();
    let parallel_errors = rest(reader, &mut parallel);
    [(sequential, errors), (parallel, parallel_errors)]
}

/// An analysis whose whole result is a text.
trait Outcome: Split {
    fn outcome(self) -> String;
}

impl Outcome for Profile {
    fn outcome(mut self) -> String {
        self.finish();
        let text = |(delay, stack)| format!("{delay:?} {:?}\n", Vec::from_iter(stack));
        self.stacks().map(|(delay, stack)| text((delay, stack))).collect()
    }
}

impl Outcome for Scheduling {
    fn outcome(self) -> String {
        format!("{:#?}", self.finish())
    }
}

impl Outcome for GcCycles {
    fn outcome(self) -> String {
        format!("{:#?}", self.finish())
    }
}

impl Outcome for Utilization {
    fn outcome(self) -> String {
        format!("{:?}", self.finish().functions().collect::<Vec<_>>())
    }
}

impl<A: Outcome> Outcome for Clipped<A> {
    fn outcome(self) -> String {
        self.finish().outcome()
    }
}

impl<A: Outcome, B: Outcome> Outcome for (A, B) {
    fn outcome(self) -> String {
        self.0.outcome() + &self.1.outcome()
    }
}

fn scheduling() -> Scheduling {
    let mut options = SchedulingOptions::default();
    options.intervals = 64;
    Scheduling::new(options)
}

fn utilization(option: usize) -> Utilization {
    let mut options = UtilizationOptions::default();
    (options.sweep, options.per_proc) = (option & 1 != 0, option & 2 != 0);
    Utilization::new(options)
}

/// Calls a generic function for each analysis.
macro_rules! for_each_analysis {
    ($check:expr) => {{
        for kind in ProfileKind::ALL {
            for scope in [ProfileScope::all(), ProfileScope::since_first_run()] {
                $check(&format!("{kind:?}"), || Profile::new(kind, scope.clone()));
            }
        }
        $check("scheduling", scheduling);
        $check("collections", || GcCycles::new(5));
        for option in 0..4 {
            $check("utilization", || utilization(option));
        }
        $check("two", || (GcCycles::new(5), scheduling()));
    }};
}

/// Asserts that two texts are equal, and shows the first difference.
fn assert_same(name: &str, a: &str, b: &str) {
    if let Some((line, (a, b))) = a.lines().zip(b.lines()).enumerate().find(|(_, (a, b))| a != b) {
        let cut = |text: &str| text.chars().take(2000).collect::<String>();
        panic!("{name}, line {line}: {} in sequence, {} in parallel", cut(a), cut(b));
    }
    assert_eq!(a.len(), b.len(), "{name}");
}

/// Compares both ways. Returns the number of events that were joined, and of all events.
fn compare(name: &str, trace: &[u8]) -> (usize, usize) {
    let [(sequential, errors), (parallel, parallel_errors)] = both(trace, Texts::default);
    assert_eq!(errors, parallel_errors, "{name}");
    let (a, b) = (&sequential.events, &parallel.events);
    if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
        panic!("{name}, event {at}: {} in sequence, {} in parallel", a[at], b[at]);
    }
    assert_eq!(a.len(), b.len(), "{name}");
    for_each_analysis!(|what: &str, make| compare_outcomes(&format!("{name} {what}"), trace, make));
    (parallel.joined, b.len())
}

fn compare_outcomes<A: Outcome>(name: &str, trace: &[u8], make: impl Fn() -> A) {
    let [(sequential, _), (parallel, _)] = both(trace, make);
    assert_same(name, &sequential.outcome(), &parallel.outcome());
}

/// Compares an analysis of all events with one that is joined of parts.
fn divide<A: Outcome>(
    name: &str,
    events: &[OwnedEvent],
    cuts: &[usize],
    make: impl Fn() -> A,
) -> usize {
    let (mut whole, mut joined) = (make(), make());
    events.iter().for_each(|event| whole.push(event.as_event()));
    let start = events.first().map_or(Timestamp::MIN, |event| event.as_event().time());
    let mut count = 0;
    for cuts in cuts.windows(2) {
        let mut part = joined.part(start);
        let events = &events[cuts[0]..cuts[1]];
        events.iter().for_each(|event| part.push(event.as_event()));
        if joined.is_continued_by(&part) {
            joined.join(part);
            count += 1;
        } else {
            events.iter().for_each(|event| joined.push(event.as_event()));
        }
    }
    assert_same(&format!("{name} divided at {cuts:?}"), &whole.outcome(), &joined.outcome());
    count
}

/// Every committed trace of Go ≥ 1.22; with `GOTRACE_TRACES`, every trace below that folder.
fn traces() -> Vec<(String, Vec<u8>)> {
    if let Ok(folder) = std::env::var("GOTRACE_TRACES") {
        let files = std::fs::read_dir(folder).unwrap();
        return files
            .map(|file| file.unwrap().path())
            .map(|path| (path.display().to_string(), std::fs::read(path).unwrap()))
            .collect();
    }
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let names = data.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    let names = names.filter(|name| name.contains(".trace"));
    names.map(|name| (name.clone(), common::recorded(&name))).collect()
}

#[test]
fn every_trace_is_read_as_in_sequence() {
    let mut all = (0, 0);
    for (name, trace) in traces() {
        let (joined, events) = compare(&name, &trace);
        println!("{name}: {joined} of {events} events joined");
        all = (all.0 + joined, all.1 + events);
    }
    println!("{all:?}");
}

/// A trace with several generations.
fn generations() -> Vec<u8> {
    common::recorded("go1.26-collections.trace.gz")
}

proptest! {
    // Without optimization, one takes about five times as long.
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 6 } else { 24 }))]

    /// Cut, or with some changed bytes.
    #[test]
    fn a_damaged_trace_is_read_as_in_sequence(
        cut: Option<Index>,
        flips in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
    ) {
        for mut trace in [generations(), common::recorded("go1.25-mixed.trace.gz")] {
            let header = 16;
            for (at, value) in &flips {
                let at = header + at.index(trace.len() - header);
                trace[at] = *value;
            }
            if let Some(cut) = cut {
                trace.truncate(header + cut.index(trace.len() - header));
            }
            compare("damaged", &trace);
        }
    }

    /// The results are the same wherever the trace is divided.
    #[test]
    fn an_analysis_can_be_divided_anywhere(cuts in prop::collection::vec(any::<Index>(), 0..6)) {
        for (name, events) in &*DIVIDED {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(events.len())).collect();
            cuts.extend([0, events.len()]);
            cuts.sort_unstable();
            for_each_analysis!(|what: &str, make| divide(&format!("{name} {what}"), events, &cuts, make));
        }
    }

    /// So are those of a range of time.
    #[test]
    fn a_range_can_be_divided_anywhere(
        cuts in prop::collection::vec(any::<Index>(), 0..6),
        ends in any::<(Index, Index)>(),
    ) {
        for (name, events) in &*DIVIDED {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(events.len())).collect();
            cuts.extend([0, events.len()]);
            cuts.sort_unstable();
            let time = |index: Index| events[index.index(events.len())].as_event().time();
            let (from, to) = (time(ends.0).min(time(ends.1)), time(ends.0).max(time(ends.1)));
            for_each_analysis!(|what: &str, make: _| {
                let name = format!("{name} {what} from {from:?} to {to:?}");
                divide_range(&name, events, &cuts, (from, to), make);
            });
        }
    }
}

fn divide_range<A: Outcome>(
    name: &str,
    events: &[OwnedEvent],
    cuts: &[usize],
    (from, to): (Timestamp, Timestamp),
    make: impl Fn() -> A,
) {
    divide(name, events, cuts, || Clipped::new(from, to, make()));
}

/// Traces that are divided, and their events.
static DIVIDED: LazyLock<Vec<(&str, Vec<OwnedEvent>)>> = LazyLock::new(|| {
    let names = ["shop.trace", "go1.26-mixed.trace.gz", "go1.26-collections.trace.gz"];
    let events = |name| {
        let trace = common::recorded(name);
        Reader::new(&trace[..]).unwrap().map(Result::unwrap).collect()
    };
    names.into_iter().map(|name| (name, events(name))).collect()
});

/// Parts are joined: not all of them are read again.
#[test]
fn parts_of_each_analysis_are_joined() {
    let (_, events) = &DIVIDED[2];
    let is_sync = |at: &usize| events[*at].as_event().kind() == EventKind::Sync;
    let mut cuts: Vec<usize> = (0..events.len()).filter(is_sync).collect();
    *cuts.last_mut().unwrap() = events.len();
    for_each_analysis!(|what: &str, make: _| {
        let joined = divide(what, events, &cuts, make);
        assert_eq!(joined, cuts.len() - 1, "{what}");
    });
}

/// Most of a trace with many generations is read in parallel: little is read again.
#[test]
fn generations_are_joined() {
    let (joined, events) = compare("collections", &generations());
    assert!(joined * 10 > events * 9, "{joined} of {events}");
}

/// Generations in which an interval of sweeping, a region and a task are open from one to the next.
/// The identifiers of the names differ from generation to generation.
fn open_across_generations() -> Vec<u8> {
    use EventType as T;
    const RUNNING: u64 = 1;
    const GO_RUNNING: u64 = 2;
    let mut trace = common::Assembler::new(23);
    for generation in 1..=4 {
        let (request, work) = (generation + 1, generation + 10);
        let mut strings = vec![T::STRINGS.0];
        for (id, name) in [(request, "request"), (work, "work")] {
            strings.extend([T::STRING.0, id as u8, name.len() as u8]);
            strings.extend(name.as_bytes());
        }
        let begin: [(u8, &[u64]); 3] = [
            (T::GC_SWEEP_BEGIN.0, &[1, 0]),
            (T::USER_TASK_BEGIN.0, &[1, generation, 0, request, 0]),
            (T::USER_REGION_BEGIN.0, &[1, generation, work, 0]),
        ];
        let end: [(u8, &[u64]); 3] = [
            (T::USER_REGION_END.0, &[1, generation - 1, work, 0]),
            (T::USER_TASK_END.0, &[1, generation - 1, 0]),
            (T::GC_SWEEP_END.0, &[1, 8192, 0]),
        ];
        let mut events: Vec<(u8, &[u64])> = vec![(T::PROC_STATUS.0, &[1, 0, RUNNING])];
        if generation > 1 {
            events.push((T::GC_SWEEP_ACTIVE.0, &[1, 0]));
        }
        events.push((T::GO_STATUS.0, &[1, 1, 7, GO_RUNNING]));
        if generation > 1 {
            events.extend(end);
        }
        events.extend(begin);
        // The first events of a generation may come before the last ones of the previous generation:
        // these are farther apart.
        let ticks = 10_000 * generation;
        trace.batch(generation, u64::MAX, ticks, &[(T::FREQUENCY.0, &[15_625_000])]);
        trace.batch(generation, 7, ticks, &events);
        trace.raw_batch(generation, u64::MAX, ticks, &[T::STACKS.0]);
        trace.raw_batch(generation, u64::MAX, ticks, &strings);
    }
    trace.0
}

/// A thread that reports an open interval before the goroutine that it runs has done nothing yet.
#[test]
fn generations_with_open_intervals_are_joined() {
    let trace = open_across_generations();
    let (joined, events) = compare("open", &trace);
    assert_eq!(joined, events - 1, "all but the last sync event");
    let mut ended = Vec::new();
    common::events_of(&trace, |event| match event.kind() {
        EventKind::TaskEnd => ended.push(event.task().unwrap().name.to_string()),
        EventKind::RegionEnd => ended.push(event.region().unwrap().name.to_string()),
        _ => {}
    });
    assert_eq!(ended, ["work", "request"].repeat(3));
}

/// From Go 1.26 on, the numbers of generations need not ascend: more can be missing than there are numbers.
#[test]
fn missing_generations_are_counted_up_to_the_largest_number() {
    use EventType as T;
    const IDLE: u64 = 2;
    let mut trace = common::Assembler::new(26);
    for (number, generation) in (1..).zip([1, u64::MAX, 1, u64::MAX]) {
        let ticks = 10_000 * number; // far apart, as above
        let sync: [(u8, &[u64]); 3] = [
            (T::SYNC.0, &[]),
            (T::FREQUENCY.0, &[15_625_000]),
            (T::CLOCK_SNAPSHOT.0, &[1, 1, 1, 1]),
        ];
        trace.batch(generation, u64::MAX, ticks, &sync);
        trace.batch(generation, 7, ticks, &[(T::PROC_STATUS.0, &[1, 0, IDLE])]);
        trace.0.push(T::END_OF_GENERATION.0);
    }
    let trace = &trace.0[..];
    let mut reader = Reader::new(trace).unwrap();
    while reader.next_event().unwrap().is_some() {}
    assert_eq!(reader.missing_generations(), u64::MAX);
    let mut parser = Parser::new();
    parser.push(trace);
    parser.finish();
    while parser.next_event().unwrap().is_some() {}
    assert_eq!(parser.missing_generations(), u64::MAX);
    let mut texts = Texts::default();
    let parallel = Parallel::new(NonZeroUsize::new(3).unwrap());
    let mut rest = parallel.read(|| Ok(Cursor::new(trace)), &mut texts).unwrap();
    while let Some(event) = rest.next_event().unwrap() {
        texts.push(event);
    }
    assert_eq!(rest.missing_generations(), u64::MAX);
    let events = texts.events.len();
    assert_eq!(texts.joined, events - 1, "all but the last sync event");
}

/// The generation before the damage is read in parallel, and the error follows it.
#[test]
fn a_generation_that_begins_with_damage_is_found_as_in_sequence() {
    for name in ["go1.22-mixed.trace.gz", "go1.25-mixed.trace.gz"] {
        let mut trace = common::recorded(name);
        let damaged = common::batches(&trace).into_iter().find(|batch| batch.generation == 4);
        trace[damaged.unwrap().range.start] = 0xff;
        compare(name, &trace);
    }
}

/// A thread that fails to open the trace does not change the result.
#[test]
fn a_trace_that_cannot_be_opened_again_is_an_error() {
    let trace = generations();
    let calls = AtomicUsize::new(0);
    let open = || match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(Cursor::new(&trace[..])),
        _ => Err(std::io::Error::other("closed")),
    };
    let mut texts = Texts::default();
    let threads = NonZeroUsize::new(2).unwrap();
    let error = Parallel::new(threads).read(open, &mut texts).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

/// A panic of an analysis does not leave other threads behind.
#[test]
fn a_panic_ends_all_threads() {
    struct Panics;
    impl Split for Panics {
        fn push(&mut self, _: Event<'_>) {
            panic!("as tested");
        }
        fn part(&self, _start: Timestamp) -> Self {
            Self
        }
        fn join(&mut self, _: Self) {}
    }
    let trace = generations();
    let threads = NonZeroUsize::new(2).unwrap();
    let read = || Parallel::new(threads).read(|| Ok(Cursor::new(&trace[..])), &mut Panics);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err());
}
