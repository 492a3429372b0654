//! Linux's own `perf`, the judge of many tests.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

/// Runs `perf`, and again if it crashes: perf 6.1 fails an assertion of its own about build ids
/// (`util/build-id.c`, "stack smashing detected") while another recorder has the kernel write them, as
/// tests of events do for a moment.
///
/// # Panics
/// It cannot be started, or crashes each time.
pub fn output(command: &mut Command) -> Output {
    for _ in 0..5 {
        let output = command.output().unwrap();
        let Some(signal) = output.status.signal() else { return output };
        let errors = String::from_utf8_lossy(&output.stderr);
        eprintln!("{command:?} was ended by signal {signal}, and is run again: {errors}");
    }
    panic!("{command:?} crashes each time");
}
