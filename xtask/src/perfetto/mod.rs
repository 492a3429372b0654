//! Checks Perfetto traces against the official schema, and draws them for the documentation.

mod outputs;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use task_support::{Result, lane, pypi};

const PACKETS: &str = include_str!("packets.py");
const LINT: &str = include_str!("lint.py");
const DRAW: &str = include_str!("draw.py");
const STATS: &str = include_str!("stats.py");
const BYTES: &str = include_str!("bytes.py");

/// Python packages of the schema, with versions.
const PACKAGES: &[&str] = &["perfetto==0.59.1", "protobuf==7.36.2"];

/// Has a table of [`BYTES`]: the most that an event of the recorded traces takes.
const LIMITS: &str = "docs/benchmarks/timeline.md";

/// Makes Perfetto's trace processor mandatory, for a CI that can download it.
const REQUIRE: &str = "--require-trace-processor";

pub(crate) const LINT_OPTIONS: &str = "\
[--require-trace-processor] [FILE...]

  --require-trace-processor   import the traces with Perfetto's trace processor too, which its
                              Python package downloads; TRACE_PROCESSOR=PROGRAM names another
  FILE   Perfetto traces (default: one of each kind that this workspace writes)";

pub(crate) const BYTES_OPTIONS: &str = "\
[FILE...]

  FILE   Perfetto traces (default: one of each kind that this workspace writes)";

pub(crate) const DRAW_OPTIONS: &str = "\
FILE -o OUT.svg [--from-ms MS] [--ms MS] [--most N] [--only PATH]...

  --from-ms MS   start MS milliseconds after the first event
  --ms MS        length (default: to the end)
  --most N       at most N children of a group (default: 8)
  --only PATH    only tracks whose path contains PATH";

/// Runs a script, which may use [`PACKETS`], with `args`; nothing without the Python packages. It
/// prints a line with `FAULT` for each fault: they are the error.
fn script(task: &str, script: &str, args: &[String]) -> Result {
    let python = match pypi::environment(PACKAGES) {
        Ok(python) => python,
        Err(error) => return lane::skip(task, &error),
    };
    // The script reports the errors. The reported command need not contain its text.
    let failure = |error: std::io::Error| format!("{task}: {error}");
    let mut command = Command::new(python);
    command.arg("-c").arg([PACKETS, script].concat()).args(args).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failure)?;
    let mut faults = Vec::new();
    for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        let line = line.map_err(failure)?;
        println!("{line}");
        if line.contains("FAULT") {
            faults.push(line);
        }
    }
    let status = child.wait().map_err(failure)?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{task}: {status}\n{}", faults.join("\n")).into())
}

/// `cargo xtask lint-perfetto`: checks the named files. Without arguments, checks one output of
/// every kind that triscope writes, and the bytes of their events.
pub(crate) fn lint(args: &[String]) -> Result {
    let (options, files): (Vec<String>, Vec<String>) =
        args.iter().cloned().partition(|arg| arg.starts_with("--"));
    if let Some(unknown) = options.iter().find(|option| *option != REQUIRE) {
        return Err(format!("unknown option {unknown}").into());
    }
    let is_required = !options.is_empty();
    if files.is_empty() {
        let outputs = outputs::Outputs::make()?;
        check_bytes(&outputs.files)?;
        return check(&outputs.files, is_required);
    }
    check(&files, is_required)
}

fn check(files: &[String], is_required: bool) -> Result {
    script("lint-perfetto", LINT, files)?;
    if is_required || std::env::var_os("TRACE_PROCESSOR").is_some() {
        return script("import by the trace processor", STATS, files);
    }
    let why = format!(
        "it is downloaded when it is first used: {REQUIRE} allows that, or TRACE_PROCESSOR names one"
    );
    lane::skip("import by Perfetto's trace processor", &why)
}

/// `cargo xtask perfetto-bytes`: a table of the bytes of an event.
pub(crate) fn bytes(args: &[String]) -> Result {
    if !args.is_empty() {
        return script("perfetto-bytes", BYTES, args);
    }
    let outputs = outputs::Outputs::make()?;
    check_bytes(&outputs.files)
}

/// Prints the table of the outputs. An event that takes more bytes than documented is an error.
fn check_bytes(outputs: &[String]) -> Result {
    let limits = task_support::workspace().join(LIMITS).to_string_lossy().into_owned();
    script("perfetto-bytes", BYTES, &[&["--limits".to_owned(), limits], outputs].concat())
}

/// `cargo xtask draw-timeline FILE -o OUT.svg ...`: draws a part of a trace.
pub(crate) fn draw(args: &[String]) -> Result {
    script("draw-timeline", DRAW, args)
}
