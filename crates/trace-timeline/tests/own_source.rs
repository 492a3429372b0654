//! Sources outside of this crate: they share the threads, processes and CPUs of the kernel's recording.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use std::collections::BTreeMap;
use trace_timeline::answers::{Finder, Paths, Piece, Question, Subject};
use trace_timeline::sources::kernel::{KernelSource, Record, Task, ThreadRef};
use trace_timeline::{
    Cause, Correlator, Derived, Entity, EntityId, EntityKind, Event, EventKind, SpanKind, Streams,
    Tables, Timestamp, text,
};

const PID: u32 = 70;
const TID: u32 = 71;

fn at(n: i64) -> Timestamp {
    Timestamp::from_nanos(n)
}

/// A recording of the scheduler: a thread of the application sleeps, waits for a CPU and runs.
fn kernel() -> Vec<(i64, Record<'static>)> {
    let task = |tid| Task::new(tid, b"worker", 120);
    let switch = |prev, prev_state, next| Record::Switch {
        cpu: 0,
        prev: task(prev),
        prev_state,
        next: task(next),
    };
    let thread = |pid, tid| Record::Thread { pid, tid, parent: None, comm: b"app", is_new: false };
    let waking = Record::Waking {
        cpu: 1,
        by: Some(ThreadRef::Tid(0)),
        flags: Some(0),
        task: task(TID),
        target_cpu: 0,
        is_new: false,
        stack: None,
    };
    vec![
        (0, thread(PID, PID)),
        (0, thread(90, 90)),
        (0, thread(PID, TID)),
        (100, switch(0, 0, TID)),
        (300, switch(TID, 1, 90)),
        (500, waking),
        (600, switch(90, 1, TID)),
        (900, switch(TID, 1, 0)),
    ]
}

/// Requests of an application: the time, and whether one begins or ends.
struct Requests {
    lines: std::vec::IntoIter<(i64, bool)>,
    open: Option<(trace_timeline::SpanId, EntityId)>,
}

impl Requests {
    fn read(&mut self, tables: &mut Tables, out: &mut Vec<Event>) -> bool {
        let Some((time, is_begin)) = self.lines.next() else { return false };
        let at = at(time);
        let thread = tables.thread(TID, at, out).unwrap();
        let mut push = |kind| out.push(Event { time: at, kind });
        if is_begin {
            let process = tables.entities.process_of(thread);
            let name = tables.text(b"POST /order");
            let request = Entity::new(EntityKind::Request, 1).child_of(process).name(name);
            let entity = tables.entity(request.start(at)).unwrap();
            let (span, by) = (tables.new_span(), Some(thread));
            push(EventKind::Start { entity });
            let (kind, of, stack) = (SpanKind::Request, None, None);
            push(EventKind::Begin { span, entity, kind, name, by, of, stack });
            self.open = Some((span, entity));
        } else {
            let (span, entity) = self.open.take().unwrap();
            push(EventKind::Finish { span, by: Some(thread), is_cut: false });
            push(EventKind::End { entity });
        }
        true
    }
}

/// Reads the recording, and the requests before or after it.
fn read(are_first: bool, tables: &mut Tables, each: &mut dyn FnMut(Derived<'_>, &Tables)) {
    let mut requests = Requests { lines: vec![(200, true), (800, false)].into_iter(), open: None };
    let requests = move |tables: &mut Tables, out: &mut Vec<Event>| -> Result<bool, Cause> {
        Ok(requests.read(tables, out))
    };
    let (mut source, mut records) = (KernelSource::new(), kernel().into_iter());
    let kernel = move |tables: &mut Tables, out: &mut Vec<Event>| -> Result<bool, Cause> {
        let next = records.next();
        if let Some((time, record)) = &next {
            source.push(at(*time), record, tables, out);
        }
        Ok(next.is_some())
    };
    let mut streams = Streams::new();
    if are_first {
        streams.add(requests);
        streams.add(kernel);
    } else {
        streams.add(kernel);
        streams.add(requests);
    }
    let mut correlator = Correlator::new();
    while let Some(event) = streams.next_event(tables).unwrap().copied() {
        let entities = &tables.entities;
        correlator.push(&event, entities, &mut |derived| each(derived, tables));
    }
    correlator.finish(&mut |derived| each(derived, tables));
}

/// The same thread has the request and the states, and it has these from the start of the recording on.
#[test]
fn a_request_of_an_own_source_is_explained_by_the_scheduler() {
    for are_first in [false, true] {
        let subject = Subject::Activity("POST /order".to_owned());
        let question = Question { subject, ..Question::default() };
        let (mut finder, mut tables) = (Finder::new(question), Tables::new());
        let mut of_thread = 0;
        read(are_first, &mut tables, &mut |derived, tables| {
            if let Derived::Interval(interval) = &derived {
                let number = tables.entities.get(interval.subject).unwrap().number;
                of_thread += if number == TID.into() { interval.nanos() } else { 0 };
            }
            finder.push(&derived, tables);
        });
        assert_eq!(of_thread, 900, "{are_first}");
        let threads = tables.entities.iter().filter(|(_, entity)| entity.number == TID.into());
        assert_eq!(threads.count(), 1);

        let mut paths = Paths::new(finder.finish(&tables)).expect("the request is found");
        let mut tables = Tables::new();
        read(are_first, &mut tables, &mut |derived, _| paths.push(&derived));
        let (request, path) = paths.finish(&mut tables).unwrap().pop().unwrap();
        assert_eq!(request.nanos(), 600);
        let mut uses = BTreeMap::new();
        for piece in &path.pieces {
            *uses.entry(text::piece(piece, &tables).0).or_insert(0) += piece.nanos();
        }
        let expected = [("on_cpu", 100 + 200), ("waits", 200), ("waits_for_cpu", 100)];
        assert_eq!(uses, BTreeMap::from(expected), "{are_first}");
        assert_eq!(path.pieces.iter().map(Piece::nanos).sum::<i64>(), 600);
    }
}

#[test]
fn types_are_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    fn is_sent<T: Send>() {}
    is_shared::<Tables>();
    is_shared::<Correlator>();
    is_shared::<Event>();
    is_shared::<trace_timeline::StreamError>();
    is_shared::<trace_timeline::answers::Report>();
    is_shared::<trace_timeline::answers::History>();
    is_shared::<KernelSource>();
    #[cfg(feature = "go")]
    is_shared::<trace_timeline::sources::go::GoSource>();
    #[cfg(feature = "dotnet")]
    is_sent::<trace_timeline::sources::dotnet::DotnetSource>();
    #[cfg(feature = "perf")]
    is_sent::<trace_timeline::sources::perf::PerfSource>();
}
