//! `cargo xtask fuzz`: runs every fuzz target for a limited time, with the committed fixtures as
//! seeds.

use flate2::read::GzDecoder;
use lexopt::prelude::*;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::Command;
use task_support::{Result, lane, parallel, run, target_dir, workspace};

pub(crate) const OPTIONS: &str = "\
[--seconds N] [WORD]

  --seconds N   fuzz each target for N seconds (default: 60), and until it has executed 10000 inputs,
                for at most twice as long
  WORD          only targets whose name contains it";

pub(crate) fn task(args: &[String]) -> Result {
    let (mut seconds, mut filter) = (60, String::new());
    let mut args = lexopt::Parser::from_args(args);
    while let Some(arg) = args.next()? {
        match arg {
            Long("seconds") => seconds = args.value()?.parse()?,
            Value(word) => filter = word.string()?,
            _ => return Err(arg.unexpected().into()),
        }
    }
    fuzz_all(Limit { seconds, inputs: None }, &filter)
}

/// Fuzzes each target for 3 s at most: it shows that the targets work, and that the fixtures are read.
pub(crate) fn smoke() -> Result {
    fuzz_all(Limit { seconds: 3, inputs: Some(3 * LEAST) }, "")
}

/// Where the fuzzing of a target ends.
#[derive(Clone, Copy)]
struct Limit {
    seconds: u32,
    /// The number of inputs with which it ends before.
    inputs: Option<u64>,
}

/// That the lock file has what the manifests need: cargo-fuzz changes it if not.
pub(crate) fn consistent() -> Result {
    let mut update = run::cargo();
    update.args(["update", "--workspace", "--locked", "--quiet"]);
    run::run(update.current_dir(workspace().join("fuzz")))
}

/// Fuzzes each target whose name contains `filter`.
fn fuzz_all(limit: Limit, filter: &str) -> Result {
    if run::output(cargo_fuzz().arg("--version")).is_err() {
        let why = "it needs a nightly toolchain and cargo-fuzz (`cargo install cargo-fuzz`)";
        return lane::skip("fuzzing", &why);
    }
    let targets: Vec<String> = targets()?.into_iter().filter(|t| t.contains(filter)).collect();
    if targets.is_empty() {
        return Err(format!("no fuzz target's name contains {filter:?}").into());
    }
    let mut build = cargo_fuzz();
    build.args(["build", "--fuzz-dir", "fuzz", "--target-dir"]).arg(target_dir().join("fuzz"));
    run::run(&mut build)?;
    let inputs = limit.inputs.map(|inputs| format!(", or with {inputs} inputs"));
    let inputs = inputs.unwrap_or_default();
    eprintln!("fuzzing {} targets for {} s each{inputs}", targets.len(), limit.seconds);
    parallel(targets, |target| fuzz(&target, limit)).map(drop)
}

/// The targets. `cargo fuzz list` knows only programs that the manifest names.
fn targets() -> Result<Vec<String>> {
    names("bin")
}

/// The names of source files of the fuzz crate.
fn names(dir: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(workspace().join("fuzz/src").join(dir))? {
        names.extend(entry?.path().file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// The inputs that a target executes at least, if it can in [`MOST_ROUNDS`].
const LEAST: u64 = 10_000;

/// With fewer, a target has found nothing because it has tried nothing. Not more: on a loaded machine one
/// of traces executes its seeds alone.
const FEW: u64 = 10;

/// Rounds of the requested time.
const MOST_ROUNDS: u32 = 2;

/// Runs a target that is already built.
fn fuzz(target: &str, Limit { seconds, inputs }: Limit) -> Result {
    let corpus = PathBuf::from("fuzz/corpus").join(target);
    let artifacts = PathBuf::from("fuzz/artifacts").join(target);
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&artifacts)?;
    for (name, bytes) in seeds(target)? {
        fs::write(corpus.join(name), bytes)?;
    }
    let binary = binary(target)?;
    let (mut executed, mut rounds) = (0, 0);
    while executed < LEAST && rounds < MOST_ROUNDS {
        let mut command = Command::new(&binary);
        // Names of new functions would take a symbolizer for each.
        command.arg(&corpus).args(["-rss_limit_mb=2048", "-timeout=10", "-print_funcs=0"]);
        command.arg(format!("-max_total_time={seconds}"));
        command.args(inputs.map(|inputs| format!("-runs={inputs}")));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        if target.ends_with("_parallel") {
            // Threads may still end when the fuzzer looks for leaks.
            command.arg("-detect_leaks=0");
        }
        let output = run::attempt(&mut command)?;
        let text = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(40)..].join("\n");
            return Err(format!("{target}: {}\n{tail}", output.status).into());
        }
        executed += executions(&text).ok_or_else(|| format!("{target}: no count of executions"))?;
        rounds += 1;
    }
    if executed < FEW {
        let seconds = rounds * seconds;
        return Err(format!("{target}: only {executed} inputs in {seconds} s").into());
    }
    eprintln!("  {target}: nothing found with {executed} inputs");
    Ok(())
}

/// The number in the last line of libFuzzer: `Done 1234 runs in 5 second(s)`.
fn executions(text: &str) -> Option<u64> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix("Done "))?;
    line.split(' ').next()?.parse().ok()
}

/// The program of a target as built by cargo-fuzz: in a directory named after the platform.
fn binary(target: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(target_dir().join("fuzz"))? {
        let path = entry?.path().join("release").join(target);
        if path.is_file() {
            return Ok(path);
        }
    }
    Err(format!("cargo fuzz built no {target}").into())
}

fn cargo_fuzz() -> Command {
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz"]);
    // The environment of this process belongs to its own build.
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO_TARGET_DIR");
    command
}

/// Larger inputs slow the fuzzer down.
const MAX_SEED: usize = 128 << 10;

/// The crates whose fixtures are seeds of a target, each with what the target reads before a file:
/// `gotrace_v2` belongs to `gotrace`.
fn sources(target: &str) -> Result<Vec<(PathBuf, &'static [u8])>> {
    let crates = workspace().join("crates");
    let data = |name: &str| crates.join(name).join("tests/data");
    if target == "timeline_sources" {
        // The first byte selects the format.
        return Ok(vec![
            (data("gotrace"), &[0]),
            (data("nettrace"), &[1]),
            (data("perf-data"), &[2]),
        ]);
    }
    let mut sources: Vec<(PathBuf, &[u8])> = Vec::new();
    for entry in fs::read_dir(&crates)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if target.starts_with(&format!("{}_", name.replace('-', "_"))) {
            sources.push((data(&name), &[]));
        }
    }
    if target == "gotrace_text" {
        sources.push((data("gotrace").join("text"), &[]));
    }
    Ok(sources)
}

/// Descriptions and expected output beside fixtures, which are in none of their formats.
const TEXTS: [&str; 4] = ["c", "md", "tsv", "txt"];

/// The part of a fixture that a target reads, if there is one.
fn part<'a>(target: &str, bytes: &'a [u8]) -> Option<&'a [u8]> {
    /// The begin of the formats of tracepoints, which are a section of a recording.
    const TRACING: &[u8] = b"\x17\x08\x44tracing";
    if target != "perf_data_tracing" {
        return Some(bytes);
    }
    let at = bytes.windows(TRACING.len()).position(|part| part == TRACING)?;
    bytes.get(at..)
}

/// The fixtures that are seeds of a target, by name.
fn seeds(target: &str) -> Result<Vec<(String, Vec<u8>)>> {
    let mut seeds = Vec::new();
    for (data, first) in sources(target)? {
        let files = if data.is_dir() { Some(fs::read_dir(&data)?) } else { None };
        for file in files.into_iter().flatten() {
            let file = file?.path();
            let is_text = file.extension().is_some_and(|e| TEXTS.iter().any(|text| e == *text));
            // Others read texts, too.
            if !file.is_file() || !first.is_empty() && is_text {
                continue;
            }
            let mut bytes = fs::read(&file)?;
            if bytes.starts_with(&[0x1f, 0x8b]) {
                let mut unpacked = Vec::new();
                GzDecoder::new(&bytes[..]).read_to_end(&mut unpacked)?;
                bytes = unpacked;
            }
            if let Some(part) = part(target, &bytes).filter(|part| part.len() <= MAX_SEED) {
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                seeds.push((format!("seed-{name}"), [first, part].concat()));
            }
        }
    }
    Ok(seeds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Targets without seeds: no file has the bytes that they read.
    const SEEDLESS: [&str; 7] = [
        "cgroup",
        "diag_ipc_reply",
        "diag_ipc_request",
        "diag_ipc_startup_hook",
        "go_flight_core",
        "go_flight_memory",
        "go_flight_program",
    ];

    #[test]
    fn each_target_has_a_program() {
        let mut modules = names("targets").unwrap();
        modules.retain(|name| name != "mod");
        assert_eq!(targets().unwrap(), modules);
        for name in modules {
            let program = workspace().join(format!("fuzz/src/bin/{name}.rs"));
            let program = fs::read_to_string(program).unwrap();
            assert!(program.contains(&format!("{name}::target(")), "{name}");
        }
    }

    #[test]
    fn targets_have_seeds_or_are_listed() {
        let targets = targets().unwrap();
        assert!(SEEDLESS.iter().all(|name| targets.iter().any(|target| target == name)));
        for target in targets {
            let is_listed = SEEDLESS.contains(&target.as_str());
            assert_eq!(seeds(&target).unwrap().is_empty(), is_listed, "{target}");
        }
        let go = seeds("timeline_sources").unwrap();
        assert!(go.iter().any(|(_, bytes)| bytes.starts_with(b"\0go 1.2")));
        let heaps = seeds("nettrace_gcdump").unwrap();
        assert!(heaps.iter().any(|(_, bytes)| bytes[4..].starts_with(b"!FastSerialization.1")));
        let formats = seeds("perf_data_tracing").unwrap();
        assert!(formats.iter().all(|(_, bytes)| bytes[3..].starts_with(b"tracing")));
        let text = seeds("gotrace_text").unwrap();
        assert!(text.iter().any(|(name, _)| name == "seed-kinds.trace.txt"));
    }

    #[test]
    fn executions_are_counted() {
        let text = "#2\tINITED cov: 5\nDone 1 runs of seeds\nDone 31415 runs in 5 second(s)\n";
        assert_eq!(executions(text), Some(31415));
        assert_eq!(executions("#2\tINITED cov: 5\n"), None);
    }
}
