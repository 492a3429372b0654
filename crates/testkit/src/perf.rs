//! Linux's own `perf`, the judge of many tests; programs that may not open events.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

/// Whether `perf` is installed: where not, the test says so.
///
/// # Panics
/// As [`can`](crate::skip::can).
#[track_caller]
pub fn is_installed() -> bool {
    let has_perf = Command::new("perf").arg("--version").output().is_ok();
    crate::skip::can("the perf command (linux-perf)", has_perf)
}

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

/// The default profile of Docker lets a process without `CAP_PERFMON` call `perf_event_open(2)` with the
/// result `EPERM`. This is such a filter.
const FILTERED: &str = r#"
    my ($number, @command) = @ARGV;
    my $program = pack("SCCL", 0x20, 0, 0, 0) . pack("SCCL", 0x15, 0, 1, $number)
        . pack("SCCL", 0x06, 0, 0, 0x00050001) . pack("SCCL", 0x06, 0, 0, 0x7fff0000);
    my $filter = pack("Sx6P", 4, $program);
    my ($prctl, $no_new_privs, $set_seccomp) = (157, 38, 22);
    syscall($prctl, $no_new_privs, 1, 0, 0, 0) == 0 or die "no_new_privs: $!";
    syscall($prctl, $set_seccomp, 2, $filter, 0, 0) == 0 or die "seccomp: $!";
    exec @command;
"#;

/// A command that starts a program with this filter, for `perf_event_open(2)` of x86-64. Needs perl.
pub fn filtered(program: &str) -> Command {
    const PERF_EVENT_OPEN: &str = "298";
    let mut perl = Command::new("perl");
    perl.args(["-e", FILTERED, PERF_EVENT_OPEN, program]);
    perl
}
