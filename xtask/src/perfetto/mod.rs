//! Perfetto traces and the official schema: checked, and drawn for the documentation.

use std::path::PathBuf;
use std::process::Command;
use task_support::{Result, cache, lane, pypi, run};

const PACKETS: &str = include_str!("packets.py");
const LINT: &str = include_str!("lint.py");
const DRAW: &str = include_str!("draw.py");

/// The schema, in the language that it is published for: packages and versions.
const PACKAGES: &[&str] = &["perfetto==0.59.1", "protobuf==7.36.2"];

pub(crate) const LINT_OPTIONS: &str = "\
[FILE...]

  FILE   Perfetto traces (default: one of each kind that this workspace writes)";

pub(crate) const DRAW_OPTIONS: &str = "\
FILE -o OUT.svg [--from-ms MS] [--ms MS] [--most N] [--only PATH]...

  --from-ms MS   start MS milliseconds after the first event
  --ms MS        length (default: to the end)
  --most N       at most N children of a group (default: 8)
  --only PATH    only tracks whose path contains PATH";

/// Runs a script, which is given [`PACKETS`], with `args`.
fn script(task: &str, script: &str, args: &[String]) -> Result {
    let python = match pypi::environment("perfetto-0.59.1", PACKAGES) {
        Ok(python) => python,
        Err(error) => return lane::skip(task, &error),
    };
    // The script has said what is wrong; its text need not be shown as part of the command.
    let status = Command::new(python).arg("-c").arg([PACKETS, script].concat()).args(args).status();
    if status.map_err(|error| format!("{task}: {error}"))?.success() {
        Ok(())
    } else {
        Err("faults were found".into())
    }
}

/// `cargo xtask lint-perfetto [FILE...]`: checks the files that are named; without any, what
/// `triscope convert` makes of every recorded trace, and a timeline with everything in it.
pub(crate) fn lint(files: &[String]) -> Result {
    if !files.is_empty() {
        return script("lint-perfetto", LINT, files);
    }
    let out = cache::root()?.join("lint-perfetto");
    std::fs::create_dir_all(&out)?;
    let mut made = Vec::new();
    let mut make = |name: &str, command: &mut Command| -> Result {
        let file = out.join(name).with_extension("pftrace");
        let file = file.to_string_lossy().into_owned();
        run::output(command.arg(&file))?;
        made.push(file);
        Ok(())
    };
    let example = ["-p", "trace-export", "--example", "synthetic", "--"];
    make("synthetic", Command::new("cargo").args(["run", "--quiet", "--release"]).args(example))?;
    for trace in recorded()? {
        let name = trace.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let convert = ["run", "--quiet", "--release", "-p", "triscope", "--", "convert"];
        make(&name, Command::new("cargo").args(convert).arg(&trace).arg("-o"))?;
    }
    script("lint-perfetto", LINT, &made)?;
    std::fs::remove_dir_all(&out)?;
    Ok(())
}

/// The recorded Go traces in the repository.
fn recorded() -> Result<Vec<PathBuf>> {
    let dir = task_support::workspace().join("crates/gotrace/tests/data");
    let mut traces = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.to_string_lossy();
        if name.ends_with(".trace") || name.ends_with(".trace.gz") {
            traces.push(path);
        }
    }
    traces.sort();
    if traces.is_empty() { Err("there are no recorded traces".into()) } else { Ok(traces) }
}

/// `cargo xtask draw-timeline FILE -o OUT.svg ...`: a part of a trace as a picture.
pub(crate) fn draw(args: &[String]) -> Result {
    script("draw-timeline", DRAW, args)
}
