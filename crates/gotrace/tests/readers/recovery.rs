//! How much of a damaged trace `Reader::recover` gives.
//!
//! Each trace is cut and has a byte flipped at 50 random positions (10 in debug builds, where each
//! takes 20 times as long), the same in every run. An event
//! counts as decodable if its batch, header included, is undamaged up to its end. It counts as
//! recovered if the damaged trace gives an event of the same thread, kind, resource, state and
//! values; its time, names and stack may differ, because they depend on other batches.
//!
//! Each trace has to give 90 % on average and 60 % in the worst case. Of a trace with fewer than
//! [`FEW`] events a single one is too large a share of it: these must give 90 % together.
//!
//! `cargo xtask test-go` runs it over the whole corpus: `GOTRACE_RECOVERY` names a file with the
//! paths of further traces, one a line, and `GOTRACE_RECOVERY_POSITIONS` is the number of positions.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that prints a table"
)]

use crate::common::{Batch, V2, batches, events, recorded};
use gotrace::{Event, EventKind, Metric, Reader, Value};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::mem::discriminant;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use testkit::random::Random;

const FEW: u64 = 100;

fn positions() -> u64 {
    let default = if cfg!(debug_assertions) { 10 } else { 50 };
    std::env::var("GOTRACE_RECOVERY_POSITIONS").map_or(default, |number| number.parse().unwrap())
}

/// Number of events by what identifies them.
type Events = HashMap<u64, u64>;

/// Hashes what the event's own batch says of it.
fn identity(event: Event<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (event.thread(), event.kind() as u8).hash(&mut hasher);
    if let Some(transition) = event.state_transition() {
        let resource = transition.resource();
        (resource.goroutine(), resource.proc()).hash(&mut hasher);
        transition.goroutine().map(|(_, to)| discriminant(&to)).hash(&mut hasher);
        transition.proc().map(|(_, to)| discriminant(&to)).hash(&mut hasher);
    }
    if let Some(Metric { name, value: Value::Uint64(value), .. }) = event.metric() {
        (name, value).hash(&mut hasher);
    }
    event.range().map(|range| discriminant(&range.name)).hash(&mut hasher);
    event.task().map(|task| task.id).hash(&mut hasher);
    event.region().map(|region| region.task).hash(&mut hasher);
    event.log().map(|log| log.task).hash(&mut hasher);
    if let Some(experimental) = event.experimental() {
        experimental.args().for_each(|arg| arg.hash(&mut hasher));
    }
    hasher.finish()
}

/// Reads a trace to its end, whatever the damage.
fn read(trace: &[u8]) -> Events {
    let mut events = Events::new();
    let mut reader = Reader::new(trace).unwrap();
    loop {
        match reader.next_event() {
            Ok(Some(event)) if event.kind() == EventKind::Sync => {}
            Ok(Some(event)) => *events.entry(identity(event)).or_default() += 1,
            Ok(None) => return events,
            Err(_) => {
                if reader.recover().unwrap().is_none() {
                    return events;
                }
            }
        }
    }
}

struct Subject {
    trace: Vec<u8>,
    batches: Vec<Batch>,
    whole: Events,
}

impl Subject {
    fn new(trace: Vec<u8>) -> Self {
        Self { batches: batches(&trace), whole: read(&trace), trace }
    }

    /// The share of decodable events that `damaged` gives, in per cent. Bytes of `damage` are not
    /// as they were.
    fn share(&self, damaged: &[u8], damage: &Range<usize>) -> f64 {
        let decodable: u64 = self.batches.iter().map(|batch| self.decodable(batch, damage)).sum();
        let given = read(damaged);
        let recovered: u64 = given
            .iter()
            .map(|(id, count)| (*count).min(self.whole.get(id).copied().unwrap_or(0)))
            .sum();
        if decodable == 0 {
            100.0
        } else {
            100.0 * recovered.min(decodable) as f64 / decodable as f64
        }
    }

    fn decodable(&self, batch: &Batch, damage: &Range<usize>) -> u64 {
        if damage.start >= batch.range.end || damage.end <= batch.range.start {
            return batch.events;
        }
        let intact = damage.start.max(batch.data);
        if batch.events == 0 { 0 } else { events(&self.trace[batch.data..intact]).0 }
    }
}

struct Shares {
    mean: f64,
    worst: f64,
    worst_at: usize,
}

fn shares(shares: &[(usize, f64)]) -> Shares {
    let mean = shares.iter().map(|(_, share)| share).sum::<f64>() / shares.len() as f64;
    let (worst_at, worst) = *shares.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    Shares { mean, worst, worst_at }
}

/// Mean and worst of cuts, then of flips.
fn measure(trace: Vec<u8>, positions: u64) -> (u64, [Shares; 2]) {
    let subject = Subject::new(trace);
    let mut random = Random::new(22);
    let mut cuts = Vec::new();
    let mut flips = Vec::new();
    for _ in 0..positions {
        let cut = 16 + random.below(subject.trace.len() - 16);
        let share = subject.share(&subject.trace[..cut], &(cut..usize::MAX));
        cuts.push((cut, share));
        let flip = 16 + random.below(subject.trace.len() - 16);
        let mut damaged = subject.trace.clone();
        damaged[flip] ^= 1 << random.below(8);
        flips.push((flip, subject.share(&damaged, &(flip..flip + 1))));
    }
    (subject.batches.iter().map(|b| b.events).sum(), [shares(&cuts), shares(&flips)])
}

/// A trace by its path.
fn loaded(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn most_decodable_events_are_recovered() {
    let mut traces: Vec<(String, Option<PathBuf>)> =
        V2.iter().map(|name| ((*name).to_owned(), None)).collect();
    if let Some(list) = std::env::var_os("GOTRACE_RECOVERY") {
        for line in std::fs::read_to_string(list).unwrap().lines() {
            let (name, path) = line.split_once('\t').unwrap();
            traces.push((name.to_owned(), Some(path.into())));
        }
    }
    let positions = positions();
    println!(
        "{:<60} {:>9} {:>21} {:>25}",
        "",
        "events",
        format!("{positions} cuts"),
        format!("{positions} flips")
    );
    println!(
        "{:<60} {:>9} {:>9} {:>11} {:>13} {:>11}",
        "trace", "", "mean", "worst", "mean", "worst"
    );
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let small = Mutex::new(Vec::new());
    let work = || {
        while let Some((name, path)) = traces.get(next.fetch_add(1, Relaxed)) {
            let trace = path.as_ref().map_or_else(|| recorded(name), |path| loaded(path));
            let (events, [cuts, flips]) = measure(trace, positions);
            println!(
                "{name:<60} {events:>9} {:>7.1} % {:>9.1} % {:>11.1} % {:>9.1} %   (at {} and {})",
                cuts.mean, cuts.worst, flips.mean, flips.worst, cuts.worst_at, flips.worst_at
            );
            if events < FEW {
                small.lock().unwrap().extend([cuts.mean, flips.mean]);
            } else if [cuts, flips].iter().any(|shares| shares.mean < 90.0 || shares.worst < 60.0) {
                failed.lock().unwrap().push(name.as_str());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    match threads {
        1 => work(),
        _ => std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work)))),
    }
    let small = small.into_inner().unwrap();
    let mean = small.iter().sum::<f64>() / small.len() as f64;
    if !small.is_empty() {
        println!("{} traces with fewer than {FEW} events: {mean:.1} %", small.len() / 2);
    }
    let mut failed = failed.into_inner().unwrap();
    if mean < 90.0 {
        failed.push("those with few events");
    }
    assert!(failed.is_empty(), "mean below 90 % or worst below 60 %: {failed:?}");
}
