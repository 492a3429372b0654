//! Go traces on a timeline: one written by hand, line by line, and every recorded one by numbers
//! that are counted from its events in another way.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use gotrace::raw::TextToWire;
use gotrace::{EventKind, EventType, GoState, Reader};
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
#[allow(dead_code, reason = "shared with other tests")]
use testkit::perfetto::Timeline;
use trace_export::timeline::{TimelineOptions, TimelineSource};
use trace_export::{PerfettoSink, Sink};
use trace_timeline::sources::go::{GoOptions, GoSource, GoStats};
use trace_timeline::{Event, Tables};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data")
}

/// A converted trace, and the numbers of what is on the timeline.
struct Converted {
    bytes: Vec<u8>,
    stats: GoStats,
    goroutines: u64,
    losses: u64,
}

fn options() -> GoOptions {
    let mut options = GoOptions::default();
    options.process = b"Go program".to_vec();
    options.pid = Some(1);
    options
}

/// Converts a trace; resumes after damage.
fn convert(trace: impl Read, options: GoOptions, drawing: TimelineOptions) -> Converted {
    let mut reader = Reader::new(trace).unwrap();
    let mut sink = PerfettoSink::new(Vec::new(), reader.clock_domain());
    let (mut tables, mut events) = (Tables::new(), Vec::<Event>::new());
    let (mut source, mut timeline) = (GoSource::new(options), TimelineSource::new(drawing));
    loop {
        match reader.next_event() {
            Ok(Some(event)) => source.push(event, &mut tables, &mut events),
            Ok(None) => break,
            Err(error) => match reader.recover().unwrap() {
                Some(loss) => {
                    source.loss(&error.to_string(), Some(loss.bytes), &mut tables, &mut events);
                }
                None => break,
            },
        }
        for event in events.drain(..) {
            timeline.push(&event, &tables, &mut sink).unwrap();
        }
    }
    timeline.finish(&tables, &mut sink).unwrap();
    sink.finish().unwrap();
    let drawn = timeline.stats();
    let (goroutines, losses) = (drawn.goroutines, drawn.losses);
    Converted { bytes: sink.into_inner(), stats: source.stats(), goroutines, losses }
}

#[test]
fn every_kind_of_event_is_drawn_as_expected() {
    let text = File::open(data().join("text/kinds.trace.txt")).unwrap();
    let converted = convert(TextToWire::new(text).unwrap(), options(), TimelineOptions::default());
    assert_eq!(converted.stats.experimental, 9);
    let timeline = Timeline::read(&converted.bytes).text() + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kinds.timeline");
    testkit::golden::check(&file, &timeline);
}

/// The recorded traces: name and bytes.
fn recorded() -> Vec<(String, Vec<u8>)> {
    let mut traces = Vec::new();
    for entry in std::fs::read_dir(data()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).unwrap_or_default();
        if name.ends_with(".trace") {
            traces.push((name, bytes));
        } else if name.ends_with(".trace.gz") {
            let mut trace = Vec::new();
            flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut trace).unwrap();
            traces.push((name, trace));
        }
    }
    traces.sort();
    assert!(traces.len() > 5, "the recorded traces are not there");
    traces
}

#[test]
fn nothing_of_recorded_traces_is_missing() {
    for (name, trace) in recorded() {
        let converted = convert(&trace[..], options(), TimelineOptions::default());
        let timeline = Timeline::read(&converted.bytes);

        let (mut states, mut wake_ups, mut switches, mut creations) = ([0; 3], 0, 0, 0);
        let (mut tasks, mut regions, mut logs, mut samples) = (0, 0, 0, 0);
        let (mut goroutines, mut alive) = (0, HashSet::new());
        for event in Reader::new(&trace[..]).unwrap() {
            let event = event.unwrap();
            let event = event.as_event();
            match event.kind() {
                EventKind::TaskBegin => tasks += 1,
                EventKind::RegionBegin => regions += 1,
                EventKind::Log => logs += 1,
                EventKind::StackSample => samples += 1,
                _ => {}
            }
            let Some(transition) = event.state_transition() else { continue };
            let Some((from, to)) = transition.goroutine() else { continue };
            // C threads that call Go use identifiers again.
            let id = transition.resource();
            let new = from == GoState::NotExist || !alive.contains(&id);
            goroutines += u64::from(new && to != GoState::NotExist);
            if to == GoState::NotExist {
                alive.remove(&id)
            } else {
                alive.insert(id)
            };
            creations += usize::from(from == GoState::NotExist);
            let ends_wait = (from, to) == (GoState::Waiting, GoState::Runnable);
            let is_switch = matches!(
                event.wire_type(),
                Some(EventType::GO_SWITCH | EventType::GO_SWITCH_DESTROY)
            );
            wake_ups += usize::from(ends_wait && !is_switch);
            switches += usize::from(ends_wait && is_switch);
            if from != to {
                match to {
                    GoState::Running => states[0] += 1,
                    GoState::Syscall => states[1] += 1,
                    GoState::Waiting => states[2] += 1,
                    _ => {}
                }
            }
        }
        let count = |what| timeline.count(what);
        assert_eq!(count(": begin Running"), states[0], "{name}");
        assert_eq!(count(": begin Syscall"), states[1], "{name}");
        assert_eq!(count(": begin Waiting"), states[2], "{name}");
        assert_eq!(count(": instant unblock ->"), wake_ups, "{name}");
        assert_eq!(count(": instant coroutine switch ->"), switches, "{name}");
        assert_eq!(count(": instant go ->"), creations, "{name}");
        assert_eq!(converted.goroutines, goroutines, "{name}");
        assert_eq!(count(" sample 1/") + count(": instant CPU sample"), samples, "{name}");
        let on = |track: &str, what: &str| {
            let lines = timeline.lines.iter();
            lines.filter(|l| l.contains(track) && l.contains(what)).count()
        };
        assert_eq!(on("/Tasks/", ": begin "), tasks, "{name}");
        let assists = on("/Regions, logs and assists", ": begin GC mark assist");
        assert_eq!(on("/Regions, logs and assists", ": begin ") - assists, regions, "{name}");
        let instants = on("/Regions, logs and assists", ": instant ");
        let sampled = on("/Regions, logs and assists", ": instant CPU sample");
        assert!(instants - sampled >= logs, "{name}");

        // An arrow ends once, and only one that has begun.
        let mut begun = HashSet::new();
        for line in &timeline.lines {
            if let Some((_, id)) = line.rsplit_once(" ->|") {
                assert!(begun.remove(id.split(' ').next().unwrap()), "{name}: {line}");
            } else if let Some((_, id)) = line.rsplit_once(" ->") {
                begun.insert(id.split(' ').next().unwrap());
            }
        }
    }
}

#[test]
fn the_same_trace_gives_the_same_bytes() {
    for (name, trace) in recorded() {
        let [first, second] =
            [0, 1].map(|_| convert(&trace[..], options(), TimelineOptions::default()).bytes);
        assert!(first == second, "{name}");
    }
}

#[test]
fn options_leave_out_and_rename() {
    let (_, trace) = recorded().pop().unwrap();
    let mut options = GoOptions::default();
    options.pid = Some(77);
    options.process = b"shop".to_vec();
    let mut drawing = TimelineOptions::default();
    drawing.arrows = false;
    let timeline = Timeline::read(&convert(&trace[..], options, drawing).bytes);
    assert_eq!(timeline.count(": instant unblock"), 0);
    assert_eq!(timeline.count("->|"), 0);
    assert!(timeline.lines.iter().any(|line| line == "track shop 77"));
    assert!(timeline.count(" sample 77/") > 0);
}

#[test]
fn states_are_reset_after_damage() {
    for (name, mut trace) in recorded() {
        if trace.starts_with(b"go 1.21") {
            continue; // a v1 trace is read as a whole or not at all
        }
        for part in 1..8 {
            let middle = trace.len() * part / 8;
            trace[middle..middle + 40].fill(0xff);
            let converted = convert(&trace[..], options(), TimelineOptions::default());
            // The reader of the test checks that every end has its beginning.
            let timeline = Timeline::read(&converted.bytes);
            let losses = timeline.count(": instant lost: bytes") as u64;
            assert_eq!(losses, converted.losses, "{name}");
            assert!(losses > 0, "{name}: damage at byte {middle} goes unseen");
        }
    }
}
