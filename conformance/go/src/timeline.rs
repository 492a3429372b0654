//! `cargo xtask test-timeline`: are the kernel's and Go's events on one clock?
//!
//! A Go program makes 1000 system calls that both tracers record. `triscope perf trace` and
//! `triscope go events` must report each call at the same time, on the same thread.

use super::toolchain::{self, Toolchain};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, run};

const PROGRAM: &str = include_str!("timeline/main.go");
const CALLS: usize = 1000;
/// The number of `getppid` on x86-64 and arm64.
const GETPPID: &str = if cfg!(target_arch = "x86_64") { "110" } else { "173" };
/// Maximum median skew in nanoseconds. On one clock, the skew is only the time of the entry into
/// the kernel.
const LARGEST_MEDIAN: i64 = 50_000;

/// The oldest Go whose traces are on the clock of the kernel: 1.22.
const OLDEST_MINOR: u32 = 22;

/// Compares the clocks with every version of Go, and returns recordings of the program for the check
/// against Perfetto's schema.
///
/// # Errors
/// A difference, or a program that fails.
pub fn record() -> Result<Vec<PathBuf>> {
    let triscope = run::triscope()?;
    let dir = cache::root()?.join("go/timeline");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("main.go"), PROGRAM)?;
    fs::write(dir.join("go.mod"), "module timeline\n\ngo 1.22\n")?;
    let on_this_clock = |version: &&str| toolchain::minor(version) >= OLDEST_MINOR;
    // The last one is the newest: its program is recorded below.
    for version in toolchain::VERSIONS.into_iter().filter(on_this_clock) {
        let go = Toolchain::install(version)?;
        run::output(go.command().args(["build", "-o", "program"]).current_dir(&dir))?;
        compare_clocks(&triscope, &dir, version)?;
    }
    recordings(&triscope, &dir)
}

/// Compares the times of the system calls of the program, which takes less than a second.
fn compare_clocks(triscope: &Path, dir: &Path, version: &str) -> Result {
    let filter = format!("id == {GETPPID}");
    let kernel = in_own_mounts(
        dir,
        triscope,
        &["perf", "trace", "-e", "raw_syscalls:sys_enter", "--filter", &filter, "--"],
        &["./program", "skew.trace"],
    )?;
    let runtime =
        run::output(Command::new(triscope).args(["go", "events", "skew.trace"]).current_dir(dir))?;
    let kernel = kernel_times(&String::from_utf8_lossy(&kernel));
    let runtime = go_times(&String::from_utf8_lossy(&runtime));
    let mut skews: Vec<i64> = kernel
        .iter()
        .filter_map(|(at, tid)| {
            let same_thread = runtime.iter().filter(|(_, m)| m == tid);
            same_thread.map(|(t, _)| (at - t).abs()).min()
        })
        .collect();
    if kernel.len() != CALLS || skews.len() != CALLS {
        let (k, s) = (kernel.len(), skews.len());
        return Err(format!(
            "Go {version}: {k} calls in the kernel, {s} of them in the trace: not {CALLS}"
        )
        .into());
    }
    skews.sort_unstable();
    let (median, worst) = (skews[CALLS / 2], skews[CALLS - 1]);
    eprintln!("Go {version}: {CALLS} calls: median skew {median} ns, largest {worst} ns");
    if median > LARGEST_MEDIAN {
        return Err(format!("Go {version}: the median skew is above {LARGEST_MEDIAN} ns").into());
    }
    Ok(())
}

/// Recordings of the program, which was built by the newest Go.
fn recordings(triscope: &Path, dir: &Path) -> Result<Vec<PathBuf>> {
    // With goroutines, with all tasks of the machine, and with losses.
    let mut recorded = Vec::new();
    for (name, options) in [
        ("merged", &[][..]),
        ("everything", &["--all-tasks", "--uncompressed"]),
        ("losses", &["--pages", "1"]),
    ] {
        let (trace, out) = (format!("{name}.trace"), format!("{name}.pftrace"));
        let record = ["record", "--sched", "--go-trace", &trace, "-o", &out];
        let output = run::attempt(
            Command::new(triscope)
                .args(record)
                .args(options)
                .args(["./program", &trace])
                .current_dir(dir),
        )?;
        let summary = String::from_utf8_lossy(&output.stderr);
        let reports = |what: &str| summary.contains(what);
        let expects_losses = options.contains(&"--pages");
        let is_whole =
            reports(" switches") && reports(" threads of 1 process,") && reports(" goroutines");
        if !output.status.success() || !is_whole || reports(" events lost") != expects_losses {
            let (options, status) = (options.join(" "), output.status);
            return Err(format!("record {options}: {status}: {summary}").into());
        }
        eprint!("{summary}");
        recorded.push(dir.join(out));
    }

    // The same from the recorded files, with the layers related to each other.
    let raw = dir.join("raw");
    if raw.exists() {
        fs::remove_dir_all(&raw)?;
    }
    let record = ["record", "--sched", "--go-trace", "raw.trace", "-o", "raw.pftrace", "--keep"];
    run::output(
        Command::new(triscope)
            .args(record)
            .args(["raw", "./program", "raw.trace"])
            .current_dir(dir),
    )?;
    let convert = ["convert", "raw", "-o", "converted.pftrace"];
    let output = run::attempt(Command::new(triscope).args(convert).current_dir(dir))?;
    let summary = String::from_utf8_lossy(&output.stderr);
    let is_whole = summary.contains(" context switches, ") && summary.contains(" goroutines");
    if !output.status.success() || !is_whole {
        return Err(format!("convert raw: {}: {summary}", output.status).into());
    }
    eprint!("{summary}");
    recorded.push(dir.join("converted.pftrace"));
    Ok(recorded)
}

/// Runs triscope with a tracefs, in a separate mount namespace.
fn in_own_mounts(dir: &Path, triscope: &Path, args: &[&str], program: &[&str]) -> Result<Vec<u8>> {
    run::output(run::with_tracefs(triscope).args(args).args(program).current_dir(dir))
}

/// Time in nanoseconds and thread of each line `SECONDS.NANOS CPU THREAD …`.
fn kernel_times(text: &str) -> Vec<(i64, u32)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (seconds, nanos) = words.next()?.split_once('.')?;
        let at = seconds.parse::<i64>().ok()? * 1_000_000_000 + nanos.parse::<i64>().ok()?;
        Some((at, words.nth(1)?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Time and thread of every system call of the main goroutine: lines
/// `M=THREAD … Time=NANOS GoID=1 Running->Syscall …`.
fn go_times(text: &str) -> Vec<(i64, u32)> {
    let line = |line: &str| {
        let (thread, _) = line.strip_prefix("M=")?.split_once(' ')?;
        let (_, rest) = line.split_once(" Time=")?;
        let (time, rest) = rest.split_once(' ')?;
        let is_call = rest.starts_with("GoID=1 Running->Syscall");
        if is_call { Some((time.parse().ok()?, thread.parse().ok()?)) } else { None }
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_are_read() {
        let kernel = "6558.152129315 001    2312 raw_syscalls:sys_enter id=110 args=[0x0]\nother\n";
        assert_eq!(kernel_times(kernel), [(6_558_152_129_315, 2312)]);
        let runtime = "M=2312 P=1 G=1 StateTransition Time=6558152123776 GoID=1 Running->Syscall\n\
            M=2312 P=1 G=1 StateTransition Time=6558152133440 GoID=1 Syscall->Running\n";
        assert_eq!(go_times(runtime), [(6_558_152_123_776, 2312)]);
    }
}
