//! Files and lines of .NET methods: those that the runtime's own reader of PDB files prints in the same run.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::dotnet::Runtime;
use testkit::sampling::rate;

/// The runtimes whose stacks end in the methods of the program.
const RUNTIMES: [Runtime; 2] = [Runtime::Net9, Runtime::Net10];

/// The name of the source in the PDB files.
const SOURCE: &str = "/src/Lines.cs";

/// The assembly with these symbols: `beside` it, or `embedded` in it.
fn assembly(kind: &str) -> PathBuf {
    let workload = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/workload/lines");
    workload.join(kind).join("Lines.dll")
}

/// The number of the line of the source with this text.
fn line_of(text: &str) -> u64 {
    let source = assembly("").with_file_name("Lines.cs");
    let source = std::fs::read_to_string(source).unwrap();
    let lines = source.lines().zip(1..).filter(|(line, _)| line.contains(text));
    let [line] = lines.map(|(_, number)| number).collect::<Vec<_>>()[..] else { panic!("{text}") };
    line
}

/// Lines, with the weight of each, by method and the method that it calls.
type Lines = BTreeMap<(String, String), BTreeMap<u64, f64>>;

/// What a run has.
struct Run {
    /// The lines that the runtime's own reader has.
    truth: BTreeMap<(String, String), BTreeSet<u64>>,
    lines: Lines,
    errors: String,
}

/// The output of a command that runs the program, which writes `x.speedscope.json`.
fn run(runtime: Runtime, assembly: &Path, command: &[&str]) -> Run {
    run_with(runtime, assembly, command, &[])
}

/// The same, with variables of the environment.
fn run_with(
    runtime: Runtime,
    assembly: &Path,
    command: &[&str],
    variables: &[(&str, &str)],
) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_triscope"))
        .args(command)
        .args(["-o", "x.speedscope.json", "--"])
        .arg(runtime.program())
        .current_dir(&dir)
        .env("WORKLOAD_MODE", "answers:lines")
        .env("WORKLOAD_ASSEMBLY", assembly)
        .env("WORKLOAD_OUTPUT", dir.path().join("truth"))
        // Ports are in the temporary directory.
        .env("TMPDIR", dir.path())
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("DOTNET_DiagnosticPorts")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let mut truth = BTreeMap::<_, BTreeSet<u64>>::new();
    let text = std::fs::read_to_string(dir.path().join("truth")).unwrap();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [method, callee, line, rest @ ..] = &words[..] else { panic!("{text}") };
        assert!(rest == [SOURCE] || *line == "0", "{text}");
        if *line != "0" {
            let key = ((*method).to_owned(), (*callee).to_owned());
            truth.entry(key).or_default().insert(line.parse().unwrap());
        }
    }
    let json = std::fs::read(dir.path().join("x.speedscope.json")).unwrap();
    Run { truth, lines: lines(&serde_json::from_slice(&json).unwrap()), errors }
}

/// The lines of the methods of the class `Lines`.
fn lines(profile: &serde_json::Value) -> Lines {
    let frames = profile["shared"]["frames"].as_array().unwrap();
    // The name without arguments and tier, and the line; 0 if there is none.
    let frame = |index: &serde_json::Value| {
        let frame = &frames[index.as_u64().unwrap() as usize];
        let name = frame["name"].as_str().unwrap();
        let (_, name) = name.split_once("Lines!Lines.")?;
        let line = frame["line"].as_u64().unwrap_or(0);
        let file = frame["file"].as_str().unwrap_or_default();
        assert!(line == 0 || file == SOURCE, "{frame}");
        Some((name[..name.find('(').unwrap()].to_owned(), line))
    };
    let mut lines = Lines::new();
    for profile in profile["profiles"].as_array().unwrap() {
        let stacks = profile["samples"].as_array().unwrap();
        let weights = profile["weights"].as_array().unwrap();
        for (stack, weight) in stacks.iter().zip(weights) {
            let stack: Vec<_> = stack.as_array().unwrap().iter().map(frame).collect();
            for (depth, method) in stack.iter().enumerate() {
                let Some((method, line)) = method else { continue };
                // The innermost method calls nothing, or the runtime.
                let callee = stack.get(depth + 1).cloned().flatten();
                let callee = callee.map_or(String::new(), |(name, _)| name);
                let key = (method.clone(), callee);
                let known = lines.entry(key).or_default().entry(*line).or_default();
                *known += weight.as_f64().unwrap();
            }
        }
    }
    lines
}

/// Checks that callers are at the lines of the truth, and that the method that computes is in its loop.
fn check(run: &Run, what: &str) {
    let Run { truth, lines, errors } = run;
    let all = format!("{what}\n{truth:#?}\n{lines:#?}\n{errors}");
    for method in ["One", "Two", "Three"] {
        let key = (method.to_owned(), "Spin".to_owned());
        let expected = truth.get(&key).unwrap_or_else(|| panic!("{method}: {all}"));
        let found = lines.get(&key).unwrap_or_else(|| panic!("{method}: {all}"));
        let found: BTreeSet<u64> = found.keys().copied().collect();
        assert_eq!(found, *expected, "{method}: {all}");
    }
    let spin = &lines[&("Spin".to_owned(), String::new())];
    let sum: f64 = spin.values().sum();
    let in_loop = spin.get(&line_of("// spins")).copied().unwrap_or_default();
    // Optimised code of the end of the loop has the line behind it.
    assert!(in_loop > 0.95 * sum, "{in_loop} of {sum}: {all}");
    let (first, last) = (line_of("static long Spin"), line_of("return x; // of Spin"));
    assert!(spin.keys().all(|line| *line == 0 || (first..=last + 1).contains(line)), "{all}");
}

/// The frequency makes about 10 000 samples.
fn profile(runtime: Runtime, assembly: &Path) -> Run {
    run(runtime, assembly, &["profile", "-F", &rate(4999).to_string()])
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn lines_of_a_profile_are_those_of_the_runtime() {
    for runtime in RUNTIMES {
        for kind in ["beside", "embedded"] {
            let run = profile(runtime, &assembly(kind));
            check(&run, &format!("{runtime:?} {kind}"));
        }
    }
}

/// Code that is not optimised has a line for each call.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn lines_of_unoptimised_code_are_exact() {
    for runtime in RUNTIMES {
        let command = ["profile", "-F", &rate(4999).to_string()];
        let run = run_with(runtime, &assembly("beside"), &command, &[("DOTNET_JITMinOpts", "1")]);
        check(&run, &format!("{runtime:?}"));
        let lines_of = |method: &str| -> BTreeSet<u64> {
            let key = (method.to_owned(), "Spin".to_owned());
            run.lines[&key].keys().copied().collect()
        };
        let one = line_of("x += Spin(rounds");
        let two = ["long x = Spin(rounds", "long y = Spin(2"].map(line_of);
        let three = line_of("return Spin(");
        assert_eq!(lines_of("One"), [one].into(), "{:#?}", run.lines);
        assert_eq!(lines_of("Two"), two.into(), "{:#?}", run.lines);
        assert_eq!(lines_of("Three"), [three].into(), "{:#?}", run.lines);
        let spin = &run.lines[&("Spin".to_owned(), String::new())];
        let in_loop = spin[&line_of("// spins")];
        assert!(in_loop > 0.95 * spin.values().sum::<f64>(), "{spin:?}");
    }
}

/// The runtime's own sampler, by its session.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn lines_of_managed_samples_are_those_of_the_runtime() {
    for runtime in RUNTIMES {
        let command = ["dotnet", "profile", "--duration", "600"];
        check(&run(runtime, &assembly("beside"), &command), &format!("{runtime:?}"));
    }
}

/// Without its file there are no lines; the file of another build is refused, and named.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn lines_need_the_file_of_the_same_build() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("Lines.dll");
    std::fs::copy(assembly("beside"), &copy).unwrap();
    let has_lines = |run: &Run| run.lines.values().any(|lines| lines.keys().any(|line| *line > 0));
    let run = profile(Runtime::Net9, &copy);
    assert!(!has_lines(&run) && run.truth.is_empty(), "{:#?}", run.lines);
    assert!(!run.errors.contains("its methods have no lines"), "{}", run.errors);

    // The id is the first item of the file behind its header.
    let mut pdb = std::fs::read(assembly("beside").with_extension("pdb")).unwrap();
    let at = pdb.windows(8).position(|bytes| bytes == b"#Pdb\0\0\0\0").unwrap() - 8;
    let start = u32::from_le_bytes(pdb[at..at + 4].try_into().unwrap()) as usize;
    pdb[start] ^= 1;
    std::fs::write(copy.with_extension("pdb"), pdb).unwrap();
    let run = profile(Runtime::Net9, &copy);
    assert!(!has_lines(&run), "{:#?}", run.lines);
    assert!(run.errors.contains("Lines.dll: its methods have no lines"), "{}", run.errors);
    assert!(run.errors.contains("is of another build"), "{}", run.errors);
}
