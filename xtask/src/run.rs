//! Child processes whose failure names the command.

use crate::Result;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Runs `command` with its output shown; a failure is an error.
pub(crate) fn run(command: &mut Command) -> Result {
    let status = command.status().map_err(|e| format!("{}: {e}", line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", line(command)).into()) }
}

/// Runs `command` and returns what it printed; a failure is an error with its last lines.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = attempt(command)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let text = String::from_utf8_lossy(if output.stderr.is_empty() {
        &output.stdout
    } else {
        &output.stderr
    })
    .into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(20)..].join("\n");
    Err(format!("{}: {}\n{tail}", line(command), output.status).into())
}

/// Runs `command` and returns its outcome, whatever it is.
pub(crate) fn attempt(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().map_err(|e| format!("{}: {e}", line(command)).into())
}

/// Whether `program` can be started at all.
pub(crate) fn have(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

/// Runs a build and returns the executable of the artifact with this name.
pub(crate) fn artifact(command: &mut Command, name: &str) -> Result<PathBuf> {
    executable(&messages(command)?, name)
}

/// Runs a build and returns what cargo tells of it: a JSON object in each line.
pub(crate) fn messages(command: &mut Command) -> Result<String> {
    let output = output(command.args(["--quiet", "--message-format=json"]))?;
    Ok(String::from_utf8_lossy(&output).into_owned())
}

/// The executable of the artifact with this name.
pub(crate) fn executable(messages: &str, name: &str) -> Result<PathBuf> {
    // The two fields that are needed have no escapes.
    let field = |line: &str, key: &str| {
        let (_, rest) = line.split_once(&format!("\"{key}\":\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    messages
        .lines()
        .filter(|line| line.contains("\"reason\":\"compiler-artifact\""))
        .filter(|line| line.contains(&format!("\"name\":\"{name}\"")))
        .find_map(|line| field(line, "executable"))
        .map(PathBuf::from)
        .ok_or_else(|| format!("the build made no executable {name}").into())
}

/// `program` with a tracefs, in mounts of its own. Needs root and `unshare`, of util-linux.
pub(crate) fn with_tracefs(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c"])
        .arg("mount -t tracefs nodev /sys/kernel/tracing && exec \"$@\"")
        .arg("sh")
        .arg(program);
    command
}

fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|s| s.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
