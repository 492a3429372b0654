//! The small traces that are committed with `gotrace`, so that its tests do not need Go.

use super::judge::{self, Judge, Verdict};
use super::reference::{Printed, Reference};
use super::toolchain::{self, Toolchain};
use super::{Tools, compare, matrix, workload};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::fs;
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::process::Command;
use task_support::{Result, run};
use testkit::digest::Digest;

/// One committed trace: a workload recorded by a toolchain.
struct Fixture {
    name: &'static str,
    version: &'static str,
    workload: &'static str,
    /// The maximum size. The number of events varies, so the workload is recorded repeatedly until
    /// the trace is small enough.
    max: u64,
    /// Wire events that the trace must contain. The workload is recorded repeatedly until it does.
    wanted: &'static [&'static str],
}

const fn fixture(
    name: &'static str,
    version: &'static str,
    workload: &'static str,
    max: u64,
    wanted: &'static [&'static str],
) -> Fixture {
    Fixture { name, version, workload, max, wanted }
}

const SAMPLED: &[&str] = &["CPUSample", "GCBegin", "UserLog", "GoSyscallEndBlocked"];

const FIXTURES: [Fixture; 11] = [
    fixture("shop", "1.27.3", "shop", 150_000, &["CPUSample", "GCBegin", "GCMarkAssistBegin"]),
    fixture("go1.21-mixed", "1.21.13", "fixture", 60_000, &[]),
    fixture("go1.22-mixed", "1.22.10", "fixture", 70_000, SAMPLED),
    fixture("go1.23-mixed", "1.23.9", "fixture", 70_000, SAMPLED),
    fixture("go1.25-mixed", "1.25.5", "fixture", 70_000, SAMPLED),
    fixture("go1.26-mixed", "1.27.3", "fixture", 70_000, SAMPLED),
    fixture("go1.23-coroutines", "1.23.9", "coroutines", 12_000, &["GoSwitchDestroy"]),
    fixture("go1.23-allocations", "1.24.11", "allocations", 20_000, &[]),
    fixture("go1.26-allocations", "1.26.6", "allocations", 20_000, &["SpanAlloc"]),
    fixture("go1.26-collections", "1.27.3", "gc", 95_000, &["GCMarkAssistBegin", "GCSweepBegin"]),
    fixture("go1.26-cgo", "1.27.3", "cgo", 16_000, &["GoCreateSyscall", "GoDestroySyscall"]),
];

/// The trace that the README converts stays uncompressed, as Go wrote it.
const PLAIN: &str = "shop";

/// Of larger expected texts only the digest is kept.
const MAX_TEXT: usize = 40 << 10;

/// Records the committed traces again: all or the named ones.
pub(crate) fn record(tools: &Tools, only: &[String]) -> Result {
    if let Some(name) = only.iter().find(|name| !names().any(|known| known == *name)) {
        return Err(format!("no committed trace is called {name}").into());
    }
    for fixture in &FIXTURES {
        if only.is_empty() || only.iter().any(|name| name == fixture.name) {
            record_one(tools, fixture)?;
        }
    }
    Ok(())
}

/// Writes the output of Go's reader for the committed traces and for the synthetic events of tests.
pub(crate) fn update_expected(tools: &Tools) -> Result {
    let data = directory();
    let mut expected = String::from("# name\tverdict\tevents\tFNV-1a of the text of all events\n");
    let mut size = 0;
    for fixture in &FIXTURES {
        let printed = judged(tools, &load(fixture.name)?)?;
        let mut digest = Digest::default();
        digest.update(&printed.text);
        let verdict = if printed.accepted() { "ok" } else { "error" };
        let events = compare::count(&printed.text);
        expected += &format!("{}\t{verdict}\t{events}\t{:016x}\n", fixture.name, digest.value());
        let packed = gzip(&printed.text)?;
        let text = data.join(format!("{}.events.gz", fixture.name));
        if packed.len() <= MAX_TEXT {
            fs::write(&text, packed)?;
        } else if text.exists() {
            fs::remove_file(&text)?;
        }
    }
    fs::write(data.join("expected.tsv"), expected)?;
    for entry in fs::read_dir(&data)? {
        size += entry?.metadata()?.len();
    }
    println!("{} holds {} KiB", data.display(), size.div_ceil(1024));
    let text = data.join("text");
    let mut wire = gotrace::raw::TextToWire::new(BufReader::new(fs::File::open(
        text.join("kinds.trace.txt"),
    )?))?;
    let mut kinds = Vec::new();
    wire.read_to_end(&mut kinds)?;
    fs::write(text.join("kinds.events"), judged(tools, &kinds)?.text)?;
    let synthetic = data.join("synthetic_events");
    let source = fs::read_to_string(synthetic.join("main.go"))?;
    let program = judge::with_internals(&tools.newest, "synthetic-events", &source)?;
    fs::write(synthetic.join("expected.txt"), run::output(&mut Command::new(program))?)?;
    Ok(())
}

/// Compares the committed traces; returns the number of differences.
pub(crate) fn check(tools: &Tools) -> Result<usize> {
    let mut differences = 0;
    let scratch = tempfile::tempdir()?;
    for fixture in &FIXTURES {
        let trace = scratch.path().join(fixture.name);
        fs::write(&trace, load(fixture.name)?)?;
        let reference = Reference::ask(&tools.trace_tool, &trace)?;
        for problem in matrix::compare_file(tools, &trace, &trace, &reference)? {
            differences += 1;
            println!("DIFFERENT: fixture {}: {problem}\n", fixture.name);
        }
    }
    println!("committed traces: {}, {differences} differences", FIXTURES.len());
    Ok(differences)
}

/// The bytes of a committed trace.
pub(crate) fn load(name: &str) -> Result<Vec<u8>> {
    let path = directory().join(file_name(name));
    let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    if path.extension().is_none_or(|e| e != "gz") {
        return Ok(bytes);
    }
    let mut trace = Vec::new();
    GzDecoder::new(&bytes[..]).read_to_end(&mut trace)?;
    Ok(trace)
}

/// The names of all committed traces.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FIXTURES.iter().map(|f| f.name)
}

fn file_name(name: &str) -> String {
    if name == PLAIN { format!("{name}.trace") } else { format!("{name}.trace.gz") }
}

fn directory() -> PathBuf {
    task_support::workspace().join("crates/gotrace/tests/data")
}

fn record_one(tools: &Tools, fixture: &Fixture) -> Result {
    let version = toolchain::VERSIONS.into_iter().find(|v| *v == fixture.version);
    let toolchain = Toolchain::install(version.ok_or("an unknown version")?)?;
    let workload = workload::named(fixture.workload)?;
    let scratch = tempfile::tempdir()?;
    let trace = scratch.path().join("trace");
    for _ in 0..200 {
        workload.record(&toolchain, &trace)?;
        if fs::metadata(&trace)?.len() > fixture.max {
            continue;
        }
        let wire = Reference::ask(&tools.trace_tool, &trace)?.wire.text;
        let wire = String::from_utf8_lossy(&wire);
        let has = |kind: &str| wire.lines().any(|line| line.split(' ').next() == Some(kind));
        if !fixture.wanted.iter().all(|kind| has(kind)) {
            continue;
        }
        let bytes = fs::read(&trace)?;
        let packed = if fixture.name == PLAIN { bytes } else { gzip(&bytes)? };
        return Ok(fs::write(directory().join(file_name(fixture.name)), packed)?);
    }
    Err(format!("{}: 200 recordings, none as wanted", fixture.name).into())
}

/// The reference's output for a trace, in a fixed order where the reference's order is random.
fn judged(tools: &Tools, trace: &[u8]) -> Result<Printed> {
    let scratch = tempfile::tempdir()?;
    let path = scratch.path().join("trace");
    fs::write(&path, trace)?;
    let mut judge = Judge::start(&tools.judge)?;
    let answer = judge.ask("events", &path)?;
    judge.finish()?;
    let exit = if answer.verdict == Verdict::Accepted { 0 } else { 1 };
    Ok(Printed { text: answer.text, exit: Some(exit), remark: answer.message })
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}
