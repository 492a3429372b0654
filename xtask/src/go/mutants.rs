//! Damaged traces: the same verdict as the reference's, and the same events before it.
//!
//! Where the reference itself is at fault, ours must not be: each such case is counted under its
//! name, and has an assertion of its own.

use super::batches::{self, Pieces};
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
    error: Option<gotrace::Error>,
    /// Generations that are missing between others.
    gaps: u64,
    /// Events that are there behind the error, when asked to go on.
    recovered: usize,
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
    /// Go's format 1.26: generations may be missing between others, without a word.
    SilentGap,
}

impl Defect {
    const ALL: [Self; 5] =
        [Self::CutGeneration, Self::EarlyEnd, Self::Panic, Self::CutWireEvent, Self::SilentGap];

    fn explain(self) -> &'static str {
        match self {
            Self::CutGeneration => "it takes a generation cut short for the end; ours refuses",
            Self::EarlyEnd => "it takes damage for the end of the trace; ours refuses",
            Self::Panic => "it panics; ours refuses",
            Self::CutWireEvent => "it takes a cut wire event for the end; ours refuses",
            Self::SilentGap => "it does not tell of missing generations; ours counts them",
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
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
        "damaged traces: {}, each read as events and as wire events; both accept {}, {} differences",
        sum.total,
        sum.accepted,
        sum.different.len()
    );
    println!("  events behind the error, for who asks to go on: {}", sum.recovered);
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
            let Some(bytes) = kind.of(&trace, &pieces, &mut random)? else { break };
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

/// Keeps a trace that is read differently, for whoever looks into it.
fn keep(name: &str, bytes: &[u8]) -> Result<String> {
    let dir = crate::cache::root()?.join("go/different");
    fs::create_dir_all(&dir)?;
    let path = dir.join(name);
    fs::write(&path, bytes)?;
    Ok(path.display().to_string())
}

/// A fault of the reference that accounts for different verdicts, or what is different; and how
/// many events are recovered.
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
        (Some(_), Verdict::Panicked) => Some(Defect::Panic),
        (Some(_), Verdict::Silent) => Some(Defect::EarlyEnd),
        (Some(_), Verdict::Accepted) if batches::ends_within_generation(bytes) => {
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
        (Some(error), Verdict::Accepted) if error.place().offset == bytes.len() as u64 => {
            Some(Defect::CutWireEvent)
        }
        (error, verdict) => return Err(verdicts("wire", error.as_ref(), verdict, theirs)),
    };
    match compare::difference(&ours.text, &theirs.text) {
        None => Ok(defect),
        Some(different) => Err(format!("wire: {different}")),
    }
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
    let mut ours = Ours { text: Vec::new(), error: None, gaps: 0, recovered: 0 };
    let mut reader = match gotrace::Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => {
            ours.error = Some(error);
            return ours;
        }
    };
    let mut text = String::new();
    loop {
        match reader.next_event() {
            Ok(Some(event)) if ours.error.is_none() => {
                let _ = writeln!(text, "{event}"); // a string takes everything
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
    ours.text = text.into_bytes();
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
    Ours { text, error: error.err(), gaps: 0, recovered: 0 }
}
