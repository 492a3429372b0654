//! Damaged traces: gotrace must give the same verdict as the reference, and the same events before
//! it.
//!
//! Where the reference itself is wrong, gotrace must differ: each such case is counted under its
//! name, and has its own assertion.

use super::batches::{self, Pieces};
use super::judge::{Answer, Judge, Verdict};
use super::mutation;
use super::{Tools, compare, fixtures, parallel};
use gotrace::{ErrorKind, EventType, Inconsistency, TextFormatter};
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use task_support::{Result, cache};
use testkit::random::Random;

/// Number of mutations of each kind per trace, by default.
pub(crate) const EACH: usize = 12;

/// Larger traces, in bytes, are not damaged: they take long and show nothing new.
const MAX_SEED: usize = 80_000;

/// The result of gotrace for a trace.
struct Ours {
    text: Vec<u8>,
    /// The error, or `None` for a trace that was read to its end.
    error: Option<gotrace::Error>,
    /// Number of generations missing between others.
    gaps: u64,
    /// Number of events that were recovered after the error.
    recovered: usize,
    /// Whether the trace has data of an unknown experiment.
    unknown_experiment: bool,
}

/// A fault of the reference that a damaged trace triggered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Defect {
    /// Go's format 1.26: a generation that is truncated before its first events is not an error.
    CutGeneration,
    /// A truncated table or batch header counts as the end of the whole trace.
    EarlyEnd,
    /// The reference panics at a CPU sample with an unknown stack.
    SamplePanic,
    /// The reference panics at a proc status that does not fit in a byte.
    StatusPanic,
    /// The reference panics at a missing string or stack in a trace of Go ≤ 1.21.
    OldPanic,
    /// The reference panics at data of an unknown experiment.
    ExperimentPanic,
    /// A wire event that is truncated between two integers is not an error.
    CutWireEvent,
    /// Go's format 1.26: the reference does not report missing generations.
    SilentGap,
}

impl Defect {
    const ALL: [Self; 8] = [
        Self::CutGeneration,
        Self::EarlyEnd,
        Self::SamplePanic,
        Self::StatusPanic,
        Self::OldPanic,
        Self::ExperimentPanic,
        Self::CutWireEvent,
        Self::SilentGap,
    ];

    fn explain(self) -> &'static str {
        match self {
            Self::CutGeneration => "it accepts a truncated generation as the end; gotrace does not",
            Self::EarlyEnd => "it accepts damage as the end of the trace; gotrace does not",
            Self::SamplePanic => "it panics at an unknown stack of a sample; gotrace does not",
            Self::StatusPanic => "it panics at a proc status of 256 or more; gotrace does not",
            Self::OldPanic => "it panics at an undefined id in a v1 trace; gotrace does not",
            Self::ExperimentPanic => "it panics at an unknown experiment; gotrace returns its data",
            Self::CutWireEvent => "it accepts a truncated wire event as the end; gotrace does not",
            Self::SilentGap => "it does not report missing generations; gotrace counts them",
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    seeds: usize,
    total: usize,
    accepted: usize,
    defects: BTreeMap<Defect, usize>,
    recovered: usize,
    different: Vec<String>,
}

impl Tally {
    fn count(&mut self, defect: Option<Defect>) {
        if let Some(defect) = defect {
            *self.defects.entry(defect).or_default() += 1;
        }
    }
}

/// Damages the committed traces and those of Go's corpus, `each` times in every way, and compares
/// the results; returns the number of differences.
pub(crate) fn check(tools: &Tools, corpus: &[PathBuf], each: usize) -> Result<usize> {
    let scratch = tempfile::tempdir()?;
    let mut seeds = Vec::new();
    for name in fixtures::names() {
        seeds.push((name.to_owned(), fixtures::load(name)?));
    }
    for item in corpus {
        let name = item.file_name().unwrap_or_default().to_string_lossy().into_owned();
        seeds.push((name, fs::read(item.join("trace"))?));
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {})); // a panic of gotrace is reported as a difference
    let tallies = parallel(seeds, |(name, trace)| {
        let pieces = Pieces::of(&trace);
        match pieces {
            Ok(pieces) if trace.len() <= MAX_SEED && !pieces.batches.is_empty() => {
                damaged(tools, &Seed { name, trace, pieces }, each, scratch.path())
            }
            _ => Ok(Tally::default()), // too large, or damaged to begin with
        }
    });
    std::panic::set_hook(hook);
    let mut sum = Tally::default();
    for tally in tallies? {
        sum.seeds += tally.seeds;
        sum.total += tally.total;
        sum.accepted += tally.accepted;
        sum.recovered += tally.recovered;
        sum.different.extend(tally.different);
        for (defect, n) in tally.defects {
            *sum.defects.entry(defect).or_default() += n;
        }
    }
    for different in sum.different.iter().take(40) {
        println!("DIFFERENT: {different}\n");
    }
    println!(
        "damaged traces: {} made from {}, each read as events and as wire events; both accept {}, \
         {} differences",
        sum.total,
        sum.seeds,
        sum.accepted,
        sum.different.len()
    );
    println!("  events recovered after the error: {}", sum.recovered);
    println!("  known faults of the reference:");
    for defect in Defect::ALL {
        let n = sum.defects.get(&defect).copied().unwrap_or(0);
        println!("  {n:>6} times {}", defect.explain());
        if n == 0 {
            sum.different.push(format!("no damaged trace shows that {}", defect.explain()));
        }
    }
    Ok(sum.different.len())
}

/// An undamaged trace.
struct Seed {
    name: String,
    trace: Vec<u8>,
    pieces: Pieces,
}

fn damaged(tools: &Tools, seed: &Seed, each: usize, scratch: &Path) -> Result<Tally> {
    let Seed { name, trace, pieces } = seed;
    let mut tally = Tally { seeds: 1, ..Tally::default() };
    let mut random = Random::new(trace.len() as u64);
    let mut judge = Judge::start(&tools.judge)?;
    let path = scratch.join(name);
    for kind in mutation::ALL {
        for number in 0..each {
            let Some(bytes) = kind.of(trace, pieces, &mut random)? else { break };
            fs::write(&path, &bytes)?;
            tally.total += 1;
            let theirs = judge.ask("events", &path)?;
            tally.accepted += usize::from(theirs.verdict == Verdict::Accepted);
            let wire = judge.ask("wire", &path)?;
            let mut problems = Vec::new();
            match compare_events(&bytes, &theirs) {
                Ok((defect, recovered)) => {
                    tally.recovered += recovered;
                    tally.count(defect);
                }
                Err(problem) => problems.push(problem),
            }
            match compare_wire(&bytes, &wire) {
                Ok(defect) => tally.count(defect),
                Err(problem) => problems.push(problem),
            }
            for problem in problems {
                let kept = keep(&format!("{name}-{kind:?}-{number}"), &bytes)?;
                tally.different.push(format!("{name}, {kind:?} {number} ({kept}): {problem}"));
            }
        }
    }
    judge.finish()?;
    Ok(tally)
}

/// Saves a trace that is read differently, for debugging.
fn keep(name: &str, bytes: &[u8]) -> Result<String> {
    let dir = cache::root()?.join("go/different");
    fs::create_dir_all(&dir)?;
    let path = dir.join(name);
    fs::write(&path, bytes)?;
    Ok(path.display().to_string())
}

/// Returns the fault of the reference that explains different verdicts, or an unexplained
/// difference; and the number of recovered events.
fn compare_events(
    bytes: &[u8],
    theirs: &Answer,
) -> std::result::Result<(Option<Defect>, usize), String> {
    let ours = caught(|| events(bytes))?;
    let defect = match (&ours.error, theirs.verdict) {
        (None, Verdict::Accepted) => match batches::missing_generations(bytes) {
            Some(missing) if missing != ours.gaps => {
                return Err(format!("{missing} generations are missing, ours says {}", ours.gaps));
            }
            Some(1..) => Some(Defect::SilentGap),
            _ => None,
        },
        (Some(_), Verdict::Refused) => None,
        (Some(error), Verdict::Panicked) if is_sample(error) => Some(Defect::SamplePanic),
        (Some(error), Verdict::Panicked) if is_status(error) => Some(Defect::StatusPanic),
        (Some(error), Verdict::Panicked) if batches::minor(bytes) < 22 && is_unknown(error) => {
            Some(Defect::OldPanic)
        }
        (None, Verdict::Panicked) if ours.unknown_experiment => {
            // gotrace continues where the reference stopped.
            let before = ours.text.get(..theirs.text.len()).unwrap_or_default();
            return match compare::difference(before, &theirs.text) {
                None => Ok((Some(Defect::ExperimentPanic), 0)),
                Some(different) => Err(format!("events: {different}")),
            };
        }
        (Some(_), Verdict::Silent) => Some(Defect::EarlyEnd),
        (Some(error), Verdict::Accepted)
            if at_end(error, bytes) || batches::ends_within_generation(bytes) =>
        {
            Some(Defect::CutGeneration)
        }
        (error, verdict) => return Err(verdicts("events", error.as_ref(), verdict, theirs)),
    };
    match compare::difference(&ours.text, &theirs.text) {
        None => Ok((defect, ours.recovered)),
        Some(different) => Err(format!("events: {different}")),
    }
}

fn compare_wire(bytes: &[u8], theirs: &Answer) -> std::result::Result<Option<Defect>, String> {
    let ours = caught(|| wire(bytes))?;
    let defect = match (&ours.error, theirs.verdict) {
        (None, Verdict::Accepted) | (Some(_), Verdict::Refused) => None,
        // A size that no input has is rejected before the rest is read.
        (Some(error), Verdict::Accepted)
            if at_end(error, bytes) || matches!(error.kind(), ErrorKind::Limit { .. }) =>
        {
            Some(Defect::CutWireEvent)
        }
        (error, verdict) => return Err(verdicts("wire", error.as_ref(), verdict, theirs)),
    };
    match compare::difference(&ours.text, &theirs.text) {
        None => Ok(defect),
        Some(different) => Err(format!("wire: {different}")),
    }
}

/// Whether the input ended prematurely.
fn at_end(error: &gotrace::Error, bytes: &[u8]) -> bool {
    error.position().offset == bytes.len() as u64
}

/// Whether the error is an undefined status.
fn is_status(error: &gotrace::Error) -> bool {
    matches!(error.kind(), ErrorKind::Inconsistent(Inconsistency::InvalidStatus { .. }))
}

/// Whether the error is a string or stack that is in no table.
fn is_unknown(error: &gotrace::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnknownId { .. })
}

/// Whether the error is an unknown stack of a CPU sample.
fn is_sample(error: &gotrace::Error) -> bool {
    is_unknown(error) && error.position().event == Some(EventType::CPU_SAMPLE)
}

fn verdicts(
    layer: &str,
    ours: Option<&gotrace::Error>,
    verdict: Verdict,
    theirs: &Answer,
) -> String {
    let ours = ours.map_or_else(|| "ok".to_owned(), ToString::to_string);
    format!("{layer}: ours says {ours}, the reference {verdict:?} {}", theirs.message)
}

fn caught<T>(read: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        format!("ours panics: {}", message.or(panic.downcast_ref().copied()).unwrap_or("?"))
    })
}

fn events(bytes: &[u8]) -> Ours {
    let mut ours =
        Ours { text: Vec::new(), error: None, gaps: 0, recovered: 0, unknown_experiment: false };
    let mut reader = match gotrace::Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => {
            ours.error = Some(error);
            return ours;
        }
    };
    let mut formatter = TextFormatter::new();
    loop {
        match reader.next_event() {
            Ok(Some(event)) if ours.error.is_none() => {
                if let Some(sync) = event.sync() {
                    ours.unknown_experiment |=
                        sync.experimental_batches().any(|b| b.experiment.name().is_none());
                }
                formatter.append(event, &mut ours.text);
                ours.text.push(b'\n');
            }
            Ok(Some(_)) => ours.recovered += 1,
            Ok(None) => break,
            Err(error) => {
                ours.error.get_or_insert(error);
                if !matches!(reader.recover(), Ok(Some(_))) {
                    break;
                }
            }
        }
    }
    ours.gaps = reader.missing_generations();
    ours
}

fn wire(bytes: &[u8]) -> Ours {
    let mut text = Vec::new();
    let error = (|| {
        let mut reader = gotrace::raw::Reader::new(bytes)?;
        while let Some(event) = reader.next_event()? {
            event.append_text(&mut text);
            text.push(b'\n');
        }
        Ok::<(), gotrace::Error>(())
    })();
    Ours { text, error: error.err(), gaps: 0, recovered: 0, unknown_experiment: false }
}
