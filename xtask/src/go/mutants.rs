//! Damaged traces: the same verdict as the reference's, and the same events before it.
//!
//! Where the reference itself is at fault, ours must not be: each such case is counted under its
//! name, and has an assertion of its own.

use super::batches::{Batch, Pieces, minor};
use super::judge::{Answer, Judge, Verdict};
use super::mutation;
use super::random::Random;
use super::{Tools, compare, fixtures, parallel};
use crate::Result;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Mutations of each kind of each committed trace.
const EACH: usize = 12;

/// Traces with more bytes than this are not damaged: it would take long and show nothing new.
const MAX_SEED: usize = 80_000;

/// What ours makes of a trace.
struct Ours {
    text: Vec<u8>,
    /// The error, or `None` for a trace that is read to its end.
    error: Option<String>,
}

/// A fault of the reference that a damaged trace met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Defect {
    /// Go's format 1.26: a generation that is cut short before its first events is no error.
    CutGeneration,
    /// A table or batch header that ends early reads as the end of the whole trace.
    EarlyEnd,
    /// It panics.
    Panic,
    /// A wire event that is cut between two of its numbers is no error.
    CutWireEvent,
}

impl Defect {
    fn explain(self) -> &'static str {
        match self {
            Self::CutGeneration => "the reference takes a generation cut short for the end",
            Self::EarlyEnd => "the reference takes damage for the end of the trace",
            Self::Panic => "the reference panics",
            Self::CutWireEvent => "the reference takes a cut wire event for the end",
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    total: usize,
    accepted: usize,
    defects: BTreeMap<Defect, usize>,
    different: Vec<String>,
}

/// Makes the mutations and compares all; returns how many differences there were.
pub(super) fn check(tools: &Tools) -> Result<usize> {
    let scratch = tempfile::tempdir()?;
    let jobs: Vec<_> = fixtures::names().collect();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {})); // a panic of ours is reported as a difference
    let tallies = parallel(jobs, |name| of_fixture(tools, name, scratch.path()));
    std::panic::set_hook(hook);
    let mut sum = Tally::default();
    for tally in tallies? {
        sum.total += tally.total;
        sum.accepted += tally.accepted;
        sum.different.extend(tally.different);
        for (defect, n) in tally.defects {
            *sum.defects.entry(defect).or_default() += n;
        }
    }
    for different in sum.different.iter().take(40) {
        println!("DIFFERENT: {different}\n");
    }
    println!(
        "damaged traces: {}, each read as events and as wire events; both accept {}, {} differences",
        sum.total,
        sum.accepted,
        sum.different.len()
    );
    for (defect, n) in sum.defects {
        println!("  {n:>4} times {}; ours refuses", defect.explain());
    }
    Ok(sum.different.len())
}

fn of_fixture(tools: &Tools, name: &str, scratch: &Path) -> Result<Tally> {
    let trace = fixtures::load(name)?;
    let mut tally = Tally::default();
    if trace.len() > MAX_SEED {
        return Ok(tally);
    }
    let pieces = Pieces::of(&trace)?;
    let mut random = Random::new(trace.len() as u64);
    let mut judge = Judge::start(&tools.judge)?;
    let path = scratch.join(name);
    for kind in mutation::ALL {
        for number in 0..EACH {
            let bytes = kind.of(&trace, &pieces, &mut random)?;
            fs::write(&path, &bytes)?;
            tally.total += 1;
            let theirs = judge.ask("events", &path)?;
            tally.accepted += usize::from(theirs.verdict == Verdict::Accepted);
            let mut problems = Vec::new();
            let mut note = |result: std::result::Result<Option<Defect>, String>| match result {
                Ok(defect) => {
                    if let Some(defect) = defect {
                        *tally.defects.entry(defect).or_default() += 1;
                    }
                }
                Err(problem) => problems.push(problem),
            };
            note(compare_events(&bytes, &theirs));
            note(compare_wire(&bytes, &judge.ask("wire", &path)?));
            for problem in problems {
                let kept = keep(&format!("{name}-{kind:?}-{number}"), &bytes)?;
                tally.different.push(format!("{name}, {kind:?} {number} ({kept}): {problem}"));
            }
        }
    }
    judge.finish()?;
    Ok(tally)
}

/// Keeps a trace that is read differently, for whoever looks into it.
fn keep(name: &str, bytes: &[u8]) -> Result<String> {
    let dir = crate::cache::root()?.join("go/different");
    fs::create_dir_all(&dir)?;
    let path = dir.join(name);
    fs::write(&path, bytes)?;
    Ok(path.display().to_string())
}

fn compare_events(bytes: &[u8], theirs: &Answer) -> std::result::Result<Option<Defect>, String> {
    let ours = caught(|| events(bytes))?;
    let mut defect = None;
    match (&ours.error, theirs.verdict) {
        (None, Verdict::Accepted) | (Some(_), Verdict::Refused) => {}
        (Some(_), Verdict::Panicked) => defect = Some(Defect::Panic),
        (Some(_), Verdict::Silent) => defect = Some(Defect::EarlyEnd),
        (Some(_), Verdict::Accepted) if ends_within_generation(bytes) => {
            defect = Some(Defect::CutGeneration);
        }
        (error, verdict) => {
            return Err(format!(
                "events: ours says {}, the reference {verdict:?} {}",
                error.as_deref().unwrap_or("ok"),
                theirs.message
            ));
        }
    }
    match compare::difference(&ours.text, &theirs.text) {
        None => Ok(defect),
        Some(different) => Err(format!("events: {different}")),
    }
}

fn compare_wire(bytes: &[u8], theirs: &Answer) -> std::result::Result<Option<Defect>, String> {
    let ours = caught(|| wire(bytes))?;
    let defect = match (&ours.error, theirs.verdict) {
        (None, Verdict::Accepted) | (Some(_), Verdict::Refused) => None,
        (Some(_), Verdict::Accepted) => Some(Defect::CutWireEvent),
        (error, verdict) => {
            return Err(format!(
                "wire: ours says {}, the reference {verdict:?} {}",
                error.as_deref().unwrap_or("ok"),
                theirs.message
            ));
        }
    };
    match compare::difference(&ours.text, &theirs.text) {
        None => Ok(defect),
        Some(different) => Err(format!("wire: {different}")),
    }
}

fn caught<T>(read: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        format!("ours panics: {}", message.or(panic.downcast_ref().copied()).unwrap_or("?"))
    })
}

fn events(bytes: &[u8]) -> Ours {
    let mut text = String::new();
    let error = (|| {
        let mut reader = gotrace::Reader::new(bytes)?;
        while let Some(event) = reader.next_event()? {
            let _ = writeln!(text, "{event}"); // a string takes everything
        }
        Ok::<(), gotrace::Error>(())
    })();
    Ours { text: text.into_bytes(), error: error.err().map(|e| e.to_string()) }
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
    Ours { text, error: error.err().map(|e| e.to_string()) }
}

/// Whether a trace of the format that marks the end of generations ends without such a mark.
fn ends_within_generation(bytes: &[u8]) -> bool {
    minor(bytes) >= 26
        && Pieces::of(bytes).is_ok_and(|p| p.batches.last() != Some(&Batch::EndOfGeneration))
}
