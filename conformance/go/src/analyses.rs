//! The analyses of gotrace compared with Go's own, for the recorded traces.
//!
//! Summaries and mutator utilization are compared with the packages of the toolchain, which the
//! judge calls; profiles with what `go tool trace -pprof` writes and `go tool pprof` reads.

use super::toolchain::Toolchain;
use super::{Tools, batches, parallel};
use gotrace::analysis::{
    Finished, Frame, Goroutine, Profile, ProfileKind, ProfileScope, Region, Summarizer, Task,
    Times, Utilization, UtilizationOptions,
};
use gotrace::bstr::BStr;
use gotrace::{Event, GoId, Reader, Timestamp};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use task_support::{Result, run};

/// The profiles that `go tool trace -pprof` writes.
const REFERENCE_PROFILES: [ProfileKind; 4] =
    [ProfileKind::Network, ProfileKind::Sync, ProfileKind::Syscall, ProfileKind::Scheduler];

/// The reference takes seconds and much memory for a large trace: those above this size, in bytes,
/// are left out of a run that is not full.
const SAMPLED_SIZE: u64 = 300_000;

/// Compares the analyses of every recorded trace that the reference accepts; returns the number of
/// differences.
pub(crate) fn check(
    tools: &Tools,
    toolchains: &[Toolchain],
    corpus: &[PathBuf],
    only: &[String],
    full: bool,
) -> Result<usize> {
    let mut chosen = Vec::new();
    let mut omitted = 0;
    for (name, path) in tools.traces(toolchains, corpus, only) {
        // The reference accepts a truncated generation as the end of the trace; we do not.
        let data = fs::read(&path)?;
        if batches::ends_within_generation(&data) || drain(&data).is_err() {
            continue;
        }
        if full || !only.is_empty() || data.len() as u64 <= SAMPLED_SIZE {
            chosen.push((name, path));
        } else {
            omitted += 1;
        }
    }
    let count = chosen.len();
    let differences = parallel(chosen, |(name, path)| {
        compare(tools, &path)
            .map_err(|error| format!("{name}: {error}").into())
            .map(|found| (name, found))
    })?;
    let mut failed = 0;
    let mut facts = 0;
    for (name, found) in differences {
        facts += found.facts;
        for difference in found.differences {
            failed += 1;
            println!("DIFFERENT: analyses of {name}: {difference}");
        }
    }
    println!("analyses: {count} traces, {facts} facts of the reference, {failed} differences");
    if omitted > 0 {
        println!("  {omitted} traces above {SAMPLED_SIZE} bytes are left out: see --full");
    }
    Ok(failed)
}

fn drain(data: &[u8]) -> gotrace::Result<()> {
    let mut reader = Reader::new(data)?;
    while reader.next_event()?.is_some() {}
    Ok(())
}

#[derive(Debug, Default)]
struct Found {
    facts: usize,
    differences: Vec<String>,
}

fn compare(tools: &Tools, path: &Path) -> Result<Found> {
    let mut found = Found::default();
    let judged = Command::new(&tools.judge).arg("analyze").arg(path).env("TZ", "UTC").output()?;
    if !judged.status.success() {
        return Err(String::from_utf8_lossy(&judged.stderr).into_owned().into());
    }
    let theirs = String::from_utf8(judged.stdout)?;
    let mut theirs: Vec<String> = theirs.lines().map(str::to_owned).collect();
    let Ours { facts: mut ours, scope } = ours(path)?;
    // A fault of the reference, of which the judge prints the value beside the right one.
    theirs.retain(|fact| {
        let fault = fact.strip_prefix("fault window ");
        if let Some(fault) = fault {
            eprintln!(
                "{}: a window of the reference extends past the end: {fault}",
                path.display()
            );
        }
        fault.is_none()
    });
    // Another one, which the judge describes: stops of the world are not compared.
    let before = theirs.len();
    theirs.retain(|fact| fact != "fault stop-the-world");
    if theirs.len() < before {
        ours.retain(|fact| !counts_stops(fact));
    }
    found.compare(&ours, &theirs);
    for kind in REFERENCE_PROFILES {
        found.compare(&our_profile(kind, &scope, path)?, &their_profile(tools, kind, path)?);
    }
    Ok(found)
}

impl Found {
    /// Compares facts in any order.
    fn compare(&mut self, ours: &[String], theirs: &[String]) {
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for fact in ours {
            *counts.entry(fact).or_default() += 1;
        }
        for fact in theirs {
            *counts.entry(fact).or_default() -= 1;
        }
        self.facts += theirs.len();
        for (fact, count) in counts.into_iter().filter(|(_, count)| *count != 0) {
            let whose = if count > 0 { "only ours" } else { "only theirs" };
            self.differences.push(format!("{whose}: {fact}"));
        }
    }
}

/// Whether a fact is about a utilization that counts stops of the world: bit 0 of its flags.
fn counts_stops(fact: &str) -> bool {
    let mut words = fact.split(' ');
    matches!(words.next(), Some("utilization" | "minimum"))
        && words.next().and_then(|flags| flags.parse::<u32>().ok()).is_some_and(|f| f & 1 != 0)
}

fn events(path: &Path, mut each: impl FnMut(Event<'_>)) -> Result {
    let mut reader = Reader::new(fs::File::open(path)?)?;
    while let Some(event) = reader.next_event()? {
        each(event);
    }
    Ok(())
}

/// Our side of a comparison.
struct Ours {
    /// In the form of the judge.
    facts: Vec<String>,
    /// The scope of the reference's profiles.
    scope: ProfileScope,
}

fn ours(path: &Path) -> Result<Ours> {
    let mut summarizer = Summarizer::new();
    // The reference has one goroutine of each id: the last. C threads that call Go reuse ids.
    let mut goroutines: BTreeMap<GoId, Goroutine> = BTreeMap::new();
    let mut has_reused = false;
    let mut utilizations: Vec<_> = (0..1 << 5).map(|f| Utilization::new(options(f))).collect();
    let mut facts = Vec::new();
    events(path, |event| {
        match summarizer.push(event) {
            Some(Finished::Goroutine(goroutine)) => {
                has_reused |= goroutines.insert(goroutine.id, *goroutine).is_some();
            }
            Some(Finished::Region(region)) => facts.push(region_fact(&region)),
            _ => {}
        }
        for utilization in &mut utilizations {
            utilization.push(event);
        }
    })?;
    let summary = summarizer.finish();
    for goroutine in summary.goroutines {
        has_reused |= goroutines.insert(goroutine.id, goroutine).is_some();
    }
    let mut scope = ProfileScope::since_first_run();
    if has_reused {
        scope = ProfileScope::all();
        goroutines.values().for_each(|goroutine| scope.add_goroutine(goroutine));
    }
    for goroutine in goroutines.values() {
        goroutine_facts(goroutine, &mut facts);
    }
    facts.extend(summary.tasks.iter().map(task_fact));
    for (flags, utilization) in utilizations.into_iter().enumerate() {
        let curve = utilization.finish();
        for (number, function) in curve.functions().enumerate() {
            for (time, value) in function {
                facts.push(format!("utilization {flags} {number} {} {value:.9}", time.nanos()));
            }
        }
        if curve.functions().len() == 0 {
            continue;
        }
        for exponent in 3..=11 {
            let window = Duration::from_nanos(10_u64.pow(exponent));
            let value = curve.of(window);
            facts.push(format!("minimum {flags} {} {value:.9}", window.as_nanos()));
        }
    }
    Ok(Ours { facts, scope })
}

/// The options for the bits of Go's `UtilFlags`.
fn options(flags: u32) -> UtilizationOptions {
    let bit = |n: u32| flags & (1 << n) != 0;
    let mut options = UtilizationOptions::default();
    options.stop_the_world = bit(0);
    options.background = bit(1);
    options.assist = bit(2);
    options.sweep = bit(3);
    options.per_proc = bit(4);
    options
}

fn goroutine_facts(goroutine: &Goroutine, facts: &mut Vec<String>) {
    let entry = goroutine.entry.as_ref();
    facts.push(format!(
        "goroutine {} {} {} {} {} {} {}",
        goroutine.id,
        encode(entry.map_or(BStr::new(""), |entry| &entry.name)),
        entry.map_or(0, |entry| entry.pc),
        goroutine.created.nanos(),
        at(goroutine.start),
        at(goroutine.end),
        stats(&goroutine.times)
    ));
    facts.extend(goroutine.open_regions.iter().map(region_fact));
}

fn region_fact(region: &Region) -> String {
    let Region { goroutine, task, name, start, end, times, .. } = region;
    let (name, start, end) = (encode(name), at(*start), at(*end));
    format!("region {goroutine} {task} {name} {start} {end} {}", stats(times))
}

fn task_fact(task: &Task) -> String {
    let parent = task.parent.map_or_else(|| "-1".to_owned(), |parent| parent.to_string());
    let (name, start, end) = (encode(&task.name), at(task.start), at(task.end));
    let mut fact =
        format!("task {} {name} {parent} {start} {end} {} {}", task.id, task.regions, task.logs);
    for goroutine in &task.goroutines {
        let _ = write!(fact, " {goroutine}");
    }
    fact
}

fn at(time: Option<Timestamp>) -> i64 {
    time.map_or(-1, Timestamp::nanos)
}

fn stats(times: &Times) -> String {
    let Times { total, running, runnable, syscall, syscall_blocked, .. } = times;
    let states = [total, running, runnable, syscall, syscall_blocked].map(Duration::as_nanos);
    let mut text = states.map(|nanos| nanos.to_string()).join(" ");
    let mut blocked: Vec<_> =
        times.blocked().map(|(name, time)| (encode(name), time.as_nanos())).collect();
    let mut ranges: Vec<_> = times
        .ranges()
        .map(|(range, time)| (encode(BStr::new(&range.to_string())), time.as_nanos()))
        .collect();
    for sums in [&mut blocked, &mut ranges] {
        sums.sort();
        text.push_str(" |");
        for (name, nanos) in sums.iter().filter(|(_, nanos)| *nanos != 0) {
            let _ = write!(text, " {name} {nanos}");
        }
    }
    text
}

/// Replaces what would not be one word.
fn encode(name: &BStr) -> String {
    let mut text = String::from("\"");
    for byte in name.iter() {
        if byte.is_ascii_graphic() && *byte != b'%' {
            text.push(char::from(*byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text.push('"');
    text
}

/// The samples of our profile: count, nanoseconds, and the frames.
fn our_profile(kind: ProfileKind, scope: &ProfileScope, path: &Path) -> Result<Vec<String>> {
    let mut profile = Profile::new(kind, scope.clone());
    events(path, |event| profile.push(event))?;
    profile.finish();
    let mut facts = Vec::new();
    for (delay, stack) in profile.stacks() {
        let mut fact = format!("{} {} {}:", kind.name(), delay.count, delay.time.as_nanos());
        for Frame { pc, function, file, line, .. } in stack {
            let _ = write!(fact, " {pc:#x} {function} {file}:{line}");
        }
        facts.push(fact);
    }
    Ok(facts)
}

/// The same of `go tool trace -pprof`, as `go tool pprof -raw` prints it.
fn their_profile(tools: &Tools, kind: ProfileKind, path: &Path) -> Result<Vec<String>> {
    match written_profile(tools, kind, path)? {
        none if none.is_empty() => Ok(Vec::new()), // the trace has no goroutines
        profile => printed_samples(tools, kind.name(), &profile),
    }
}

/// The file that `go tool trace -pprof` writes; empty for a trace without goroutines.
pub(crate) fn written_profile(tools: &Tools, kind: ProfileKind, path: &Path) -> Result<Vec<u8>> {
    let flag = format!("-pprof={}", kind.name());
    let profile = tempfile::NamedTempFile::new()?;
    let mut trace = Command::new(&tools.trace_tool);
    trace.arg(flag).arg(path).stdout(profile.reopen()?).stderr(Stdio::piped());
    let output = trace.spawn()?.wait_with_output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() && error.contains("failed to find matching goroutines") {
        return Ok(Vec::new());
    } else if !output.status.success() {
        return Err(error.into());
    }
    Ok(fs::read(profile.path())?)
}

/// The samples of a pprof profile, as `go tool pprof -raw` prints them.
pub(crate) fn printed_samples(tools: &Tools, kind: &str, profile: &[u8]) -> Result<Vec<String>> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(profile)?;
    let mut pprof = Command::new(&tools.pprof_tool);
    pprof.args(["-raw", "-symbolize=none"]).arg(file.path());
    let text = String::from_utf8(run::output(&mut pprof)?)?;
    raw_samples(kind, &text).ok_or_else(|| format!("go tool pprof -raw printed:\n{text}").into())
}

/// Samples in an order that does not depend on the program that wrote them.
pub(crate) fn sorted(mut samples: Vec<String>) -> Vec<String> {
    samples.sort();
    samples
}

/// The samples in the text of `go tool pprof -raw`: lines `COUNT TIME: ID...` below `Samples:`, and
/// `ID: ADDRESS M=1 FUNCTION FILE:LINE:COLUMN s=0` below `Locations`.
fn raw_samples(kind: &str, text: &str) -> Option<Vec<String>> {
    let (_, rest) = text.split_once("\nSamples:\n")?;
    let (samples, rest) = rest.split_once("Locations\n")?;
    let (locations, _) = rest.split_once("Mappings")?;
    let mut frames = BTreeMap::new();
    for line in locations.lines() {
        let (id, location) = line.trim().split_once(": ")?;
        let (location, _start_line) = location.rsplit_once(" s=")?;
        let (location, _column) = location.rsplit_once(':')?;
        frames.insert(id, location.replacen(" M=1 ", " ", 1));
    }
    // The first line has the types of the values.
    let samples = samples.lines().skip(1).map(|line| {
        let (values, ids) = line.split_once(':')?;
        let mut values = values.split_whitespace();
        let mut fact = format!("{kind} {} {}:", values.next()?, values.next()?);
        for id in ids.split_whitespace() {
            match frames.get(id)?.as_str() {
                // The runtime writes a frame without a program counter where it has no stack.
                "0x0  :0" => {}
                location => _ = write!(fact, " {location}"),
            }
        }
        Some(fact)
    });
    samples.collect()
}
