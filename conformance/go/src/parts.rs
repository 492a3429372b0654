//! Parts of traces: any consecutive generations are a trace that the reference accepts, with the
//! events that gotrace returns.

use super::judge::{Judge, Verdict};
use super::recovery::is_whole;
use super::toolchain::Toolchain;
use super::{Tools, compare, parallel};
use gotrace::{Index, Reader, TextFormatter};
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use task_support::Result;

/// The size above which a trace is left out of a run that is not full, in bytes.
const SAMPLED_SIZE: u64 = 500_000;

/// Number of generations per trace that are compared.
const GENERATIONS: usize = 6;

/// Cuts generations out of the traces of the corpus and of the workloads; returns the number of
/// differences.
pub(crate) fn check(
    tools: &Tools,
    toolchains: &[Toolchain],
    corpus: &[PathBuf],
    full: bool,
) -> Result<usize> {
    let mut traces = tools.traces(toolchains, corpus, &[]);
    traces.retain(|(_, path)| {
        let small = fs::metadata(path).is_ok_and(|data| data.len() <= SAMPLED_SIZE);
        (full || small) && is_whole(path).unwrap_or(false)
    });
    let scratch = tempfile::tempdir()?;
    let numbered: Vec<_> = traces.into_iter().enumerate().collect();
    let results = parallel(numbered, |(number, (name, path))| {
        let part = scratch.path().join(number.to_string());
        let found = compare_parts(tools, &path, &part);
        found.map_err(|error| format!("{name}: {error}").into()).map(|found| (name, found))
    })?;
    let (mut traces, mut parts, mut failed) = (0, 0, 0);
    for (name, Found { compared, differences }) in results {
        traces += usize::from(compared > 0);
        parts += compared;
        failed += differences.len();
        for difference in differences.iter().take(3) {
            println!("DIFFERENT: {name}: {difference}");
        }
    }
    println!("parts of traces: {parts} of {traces}, {failed} differences");
    if traces == 0 { Err("no trace has several generations".into()) } else { Ok(failed) }
}

#[derive(Debug, Default)]
struct Found {
    compared: usize,
    differences: Vec<String>,
}

/// Compares each generation alone, and with all that follow it.
fn compare_parts(tools: &Tools, path: &Path, part: &Path) -> Result<Found> {
    let trace = fs::read(path)?;
    let index = Index::read(&trace[..])?;
    let count = index.generations().len();
    let mut found = Found::default();
    if count < 2 {
        return Ok(found);
    }
    let mut judge = Judge::start(&tools.judge)?;
    for start in (0..count).step_by(count.div_ceil(GENERATIONS)) {
        for end in [start + 1, count] {
            let mut bytes = Vec::new();
            index.copy(Cursor::new(&trace), start..end, &mut bytes)?;
            fs::write(part, &bytes)?;
            let theirs = judge.ask("events", part)?;
            let what = format!("generations {start}..{end} of {count}");
            if theirs.verdict != Verdict::Accepted {
                let message = theirs.message;
                found.differences.push(format!("{what}: {:?}: {message}", theirs.verdict));
            } else if let Some(difference) = compare::difference(&text(&bytes)?, &theirs.text) {
                found.differences.push(format!("{what}: {difference}"));
            }
            found.compared += 1;
        }
    }
    judge.finish()?;
    Ok(found)
}

/// The text of all events.
fn text(trace: &[u8]) -> Result<Vec<u8>> {
    let (mut text, mut formatter) = (Vec::new(), TextFormatter::new());
    let mut reader = Reader::new(trace)?;
    while let Some(event) = reader.next_event()? {
        formatter.append(event, &mut text);
        text.push(b'\n');
    }
    Ok(text)
}
