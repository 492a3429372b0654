//! Child processes whose failure names the command.

use crate::Result;
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

fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|s| s.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
