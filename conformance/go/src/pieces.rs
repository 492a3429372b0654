//! Do the pieces of critical paths sum to the duration, for every task and region of every
//! trace? (`cargo test` asks the same of every goroutine of the committed traces.)

use super::parallel;
use gotrace::Reader;
use gotrace::analysis::{self, CriticalPaths};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use task_support::Result;
use trace_timeline::answers::{CriticalPath, History, RequestFilter, Requests, critical_path};
use trace_timeline::sources::go::GoSource;
use trace_timeline::{Correlator, Tables, Timestamp};

/// The paths of a trace.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// Number of tasks and regions.
    pub(crate) requests: usize,
    pub(crate) problems: Vec<String>,
}

/// Checks the corpus of the Go distribution; returns the number of problems.
pub(crate) fn check(items: &[PathBuf]) -> Result<usize> {
    let results = parallel(items.to_vec(), |item| of(&item.join("trace")))?;
    let (mut requests, mut problems) = (0, 0);
    for (item, paths) in items.iter().zip(&results) {
        requests += paths.requests;
        problems += paths.problems.len();
        for problem in &paths.problems {
            println!("PIECES: {}: {problem}", item.display());
        }
    }
    println!("critical paths of Go's corpus: {requests} tasks and regions; {problems} problems");
    Ok(problems)
}

/// All paths of a trace, up to the first damage.
pub(crate) fn of(trace: &Path) -> Result<Paths> {
    let mut paths = Paths::default();
    let Ok(mut reader) = Reader::new(BufReader::new(File::open(trace)?)) else {
        return Ok(paths); // an input of a test of errors
    };
    let (mut tables, mut events) = (Tables::new(), Vec::new());
    let mut source = GoSource::new(Default::default());
    let mut correlator = Correlator::new();
    let mut requests = Requests::new(RequestFilter::default(), usize::MAX);
    let mut history = History::new(Timestamp::MIN, Timestamp::MAX);
    while let Ok(Some(event)) = reader.next_event() {
        source.push(event, &mut tables, &mut events);
        for event in events.drain(..) {
            correlator.push(&event, &tables.entities, &mut |derived| {
                requests.push(&derived);
                history.push(&derived);
            });
        }
    }
    correlator.finish(&mut |derived| history.push(&derived));
    history.finish();
    if history.dropped() > 0 {
        paths.problems.push(format!("{} items of the history are missing", history.dropped()));
    }
    for r in requests.into_worst() {
        paths.requests += 1;
        let entities = &tables.entities;
        let path = critical_path(&history, entities, r.subject, r.start, r.end, r.task);
        paths.problems.extend(problem(&path));
    }
    own(trace, &mut paths)?;
    Ok(paths)
}

/// The paths that `gotrace` finds by itself.
fn own(trace: &Path, paths: &mut Paths) -> Result<()> {
    let open = || Ok::<_, task_support::Error>(Reader::new(BufReader::new(File::open(trace)?))?);
    let mut requests = analysis::Requests::new(analysis::RequestFilter::All, usize::MAX);
    let mut reader = open()?;
    while let Ok(Some(event)) = reader.next_event() {
        requests.push(event);
    }
    let requests = requests.finish();
    if requests.len() != paths.requests {
        let problem = format!("gotrace finds {} of {} requests", requests.len(), paths.requests);
        paths.problems.push(problem);
    }
    let mut found = CriticalPaths::new(requests);
    let mut reader = open()?;
    while let Ok(Some(event)) = reader.next_event() {
        found.push(event);
    }
    if found.dropped() > 0 {
        paths.problems.push(format!("{} items and events of gotrace are missing", found.dropped()));
    }
    for path in found.finish() {
        let mut at = path.request.start;
        for piece in &path.pieces {
            if piece.start != at || piece.end <= piece.start {
                paths.problems.push(format!("gotrace: no continuation at {at}: {piece:?}"));
            }
            at = piece.end;
        }
        if at != path.request.end {
            paths.problems.push(format!("gotrace: ends at {at}: {:?}", path.request));
        }
    }
    Ok(())
}

/// What is wrong with a path.
fn problem(path: &CriticalPath) -> Option<String> {
    let mut at = path.start;
    for piece in &path.pieces {
        if piece.start != at || piece.end <= piece.start {
            return Some(format!("{:?} does not continue at {at}: {piece:?}", path.subject));
        }
        at = piece.end;
    }
    (at != path.end).then(|| format!("{:?} ends at {at}, not {}", path.subject, path.end))
}
