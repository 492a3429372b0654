//! The small traces that are committed with `gotrace`, so that its tests need no Go.

use super::digest::Digest;
use super::judge::{Judge, Verdict};
use super::reference::{Printed, Reference};
use super::toolchain::{self, Toolchain};
use super::{Tools, compare, matrix, workload};
use crate::Result;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// One committed trace: a workload recorded by a toolchain.
struct Fixture {
    name: &'static str,
    version: &'static str,
    workload: &'static str,
    /// How large it may be; how many events there are is a matter of luck, so it is recorded
    /// anew until it is small enough.
    max: u64,
    /// Wire events that must be in it, for the same reason.
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

/// The trace that the README converts stays as Go wrote it; the others are compressed.
const PLAIN: &str = "shop";

/// Expected texts larger than this are kept as their digest only.
const MAX_TEXT: usize = 40 << 10;

/// `cargo xtask fixtures-go [NAME…]`: records the committed traces anew, all or some.
pub(super) fn make(tools: &Tools, only: &[String]) -> Result {
    let data = directory()?;
    fs::create_dir_all(&data)?;
    for fixture in &FIXTURES {
        if only.is_empty() || only.iter().any(|name| name == fixture.name) {
            record(tools, fixture, &data)?;
        }
    }
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
    Ok(())
}

/// Compares the committed traces; returns how many differences there were.
pub(super) fn check(tools: &Tools) -> Result<usize> {
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
pub(super) fn load(name: &str) -> Result<Vec<u8>> {
    let path = directory()?.join(file_name(name));
    let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    if path.extension().is_none_or(|e| e != "gz") {
        return Ok(bytes);
    }
    let mut trace = Vec::new();
    GzDecoder::new(&bytes[..]).read_to_end(&mut trace)?;
    Ok(trace)
}

/// The names of all committed traces.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FIXTURES.iter().map(|f| f.name)
}

fn file_name(name: &str) -> String {
    if name == PLAIN { format!("{name}.trace") } else { format!("{name}.trace.gz") }
}

fn directory() -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask has no parent")?;
    Ok(workspace.join("crates/gotrace/tests/data"))
}

fn record(tools: &Tools, fixture: &Fixture, data: &Path) -> Result {
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
        return Ok(fs::write(data.join(file_name(fixture.name)), packed)?);
    }
    Err(format!("{}: 200 recordings, none as wanted", fixture.name).into())
}

/// What the reference says of a trace, in its order where that is a matter of chance.
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
