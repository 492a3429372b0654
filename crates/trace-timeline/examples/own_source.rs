//! Explains the longest request of an application on a recording of the scheduler: a source outside of
//! the crate.
//!
//! The application logs a line at the begin and at the end of each request: the time of
//! `CLOCK_MONOTONIC` in nanoseconds, the thread id, `begin` or `end`, and the name.
//!
//! ```text
//! 81736450012345 4711 begin POST /order
//! 81736466012345 4711 end
//! ```
//!
//! The recording is on the same clock:
//!
//! ```text
//! perf record -k CLOCK_MONOTONIC -a -e sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new
//! cargo run --features perf --example own_source perf.data requests.log
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Lines};
use trace_timeline::answers::{Finder, Paths, Question, Subject};
use trace_timeline::perf_data::{Reader, SortedReader};
use trace_timeline::sources::perf::PerfSource;
use trace_timeline::{
    Cause, Correlator, Derived, Entity, EntityId, EntityKind, Event, EventKind, SpanId, SpanKind,
    Stream, Streams, Tables, Timestamp, text,
};

type Result<T = (), E = Cause> = std::result::Result<T, E>;

/// The own source, with its reader.
struct Requests {
    lines: Lines<BufReader<File>>,
    /// The open request of each thread.
    open: HashMap<u32, (SpanId, EntityId)>,
    count: i64,
}

impl Stream for Requests {
    fn read(&mut self, tables: &mut Tables, out: &mut Vec<Event>) -> Result<bool> {
        // A line at a time: a thread is looked up when the recording has been read about as far.
        let Some(line) = self.lines.next() else { return Ok(false) };
        self.push(&line?, tables, out)?;
        Ok(true)
    }
}

impl Requests {
    fn open(path: &str) -> Result<Self> {
        let lines = BufReader::new(File::open(path)?).lines();
        Ok(Self { lines, open: HashMap::new(), count: 0 })
    }

    fn push(&mut self, line: &str, tables: &mut Tables, out: &mut Vec<Event>) -> Result {
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().ok_or("a line is cut");
        let at = Timestamp::from_nanos(word()?.parse()?);
        let tid: u32 = word()?.parse()?;
        let is_begin = word()? == "begin";
        // The thread of the recording: `Tables::entity` would add another one.
        let Some(thread) = tables.thread(tid, at, out) else { return Ok(()) };
        let by = Some(thread);
        let mut push = |kind| out.push(Event { time: at, kind });
        if is_begin {
            self.count += 1;
            let name = tables.text(word()?.as_bytes());
            let request = Entity::new(EntityKind::Request, self.count).name(name).start(at);
            let request = request.child_of(tables.entities.process_of(thread));
            let Some(entity) = tables.entity(request) else { return Ok(()) };
            let (span, kind, of, stack) = (tables.new_span(), SpanKind::Request, None, None);
            push(EventKind::Start { entity });
            push(EventKind::Begin { span, entity, kind, name, by, of, stack });
            self.open.insert(tid, (span, entity));
        } else if let Some((span, entity)) = self.open.remove(&tid) {
            push(EventKind::Finish { span, by, is_cut: false });
            push(EventKind::End { entity });
            if let Some(request) = tables.entities.get_mut(entity) {
                request.end = Some(at);
            }
        }
        Ok(())
    }
}

/// Reads both, and derives everything.
fn derive(
    [recording, requests]: &[String; 2],
    tables: &mut Tables,
    each: &mut dyn FnMut(&Derived<'_>, &Tables),
) -> Result {
    let reader = Reader::new(File::open(recording)?)?;
    // Records are in the order of the CPUs' buffers; a source needs that of time.
    let mut reader = SortedReader::new(reader);
    let mut source = PerfSource::new(reader.session())?;
    let mut streams = Streams::new();
    streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
        let Some(record) = reader.next_record()? else {
            source.finish(tables, out);
            return Ok(false);
        };
        source.push(&record, tables, out);
        Ok(true)
    });
    streams.add(Requests::open(requests)?);

    let mut correlator = Correlator::new();
    while let Some(event) = streams.next_event(tables)?.copied() {
        let tables = &*tables;
        correlator.push(&event, &tables.entities, &mut |derived| each(&derived, tables));
    }
    correlator.finish(&mut |derived| each(&derived, tables));
    Ok(())
}

fn main() -> Result {
    let mut args = std::env::args().skip(1);
    let mut path = || args.next().ok_or("usage: own_source PERF_DATA REQUESTS");
    let paths = [path()?, path()?];

    // The first pass finds the request, the second one what happened meanwhile.
    let question = Question { subject: Subject::Requests, ..Question::default() };
    let (mut finder, mut tables) = (Finder::new(question), Tables::new());
    derive(&paths, &mut tables, &mut |derived, tables| finder.push(derived, tables))?;
    let mut found = Paths::new(finder.finish(&tables)).ok_or("no request has ended")?;
    let mut tables = Tables::new();
    derive(&paths, &mut tables, &mut |derived, _| found.push(derived))?;
    for (request, path) in found.finish(&mut tables)? {
        println!("{} of {}", tables.str(request.name), text::duration(request.nanos()));
        for piece in &path.pieces {
            let who = text::name(&tables, piece.entity);
            let (_, what) = text::piece(piece, &tables);
            println!("{:>12}  {who} {what}", text::duration(piece.nanos()));
        }
    }
    Ok(())
}
