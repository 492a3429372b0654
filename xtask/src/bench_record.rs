//! `cargo xtask bench-record`: the CPU time and the memory of `triscope record`, beside those of
//! `perf sched record`.
//!
//! Pairs of processes switch through pipes (`perf bench sched pipe`) for all of the run. The
//! recorders take turns: each records the whole machine for the same time. Their CPU time is user
//! plus system time as the kernel accounts it, their memory the largest resident set.

use crate::{debian, procfs};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use task_support::{Result, lane, run};

pub(crate) const OPTIONS: &str = "\
[--seconds N] [--rounds N] [--pairs N] [--only-triscope]

  --seconds N       length of a recording (default: 10)
  --rounds N        recordings of each recorder (default: 3)
  --pairs N         pairs of processes that switch (default: 1)
  --only-triscope   measure the memory of a long recording";

/// Interval between looks at a recorder.
const LOOK: Duration = Duration::from_millis(200);

struct Options {
    seconds: u64,
    rounds: usize,
    pairs: usize,
    only_triscope: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        use lexopt::prelude::*;
        let mut this = Self { seconds: 10, rounds: 3, pairs: 1, only_triscope: false };
        let mut args = lexopt::Parser::from_args(args);
        while let Some(arg) = args.next()? {
            match arg {
                Long("seconds") => this.seconds = args.value()?.parse()?,
                Long("rounds") => this.rounds = args.value()?.parse()?,
                Long("pairs") => this.pairs = args.value()?.parse()?,
                Long("only-triscope") => this.only_triscope = true,
                _ => return Err(arg.unexpected().into()),
            }
        }
        Ok(this)
    }
}

/// Processes that are killed at the end.
struct Load(Vec<Child>);

impl Load {
    fn start(pairs: usize) -> Result<Self> {
        let mut load = Self(Vec::new());
        for _ in 0..pairs {
            let mut bench = Command::new("perf");
            bench.args(["bench", "sched", "pipe", "--loop", "2000000000"]);
            bench.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
            // Its child has both ends of the pipe, and would wait for ever.
            load.0.push(bench.process_group(0).spawn()?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status(); // it may have ended
            let _ = child.wait();
        }
    }
}

/// One recording.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// CPU seconds for one second of recording.
    cpu: f64,
    /// Largest resident set, in KiB: of the first half, of all.
    memory: (u64, u64),
    /// Switches of the machine in a second.
    switches: f64,
}

pub(crate) fn task(args: &[String]) -> Result {
    let options = Options::parse(args)?;
    if let Err(why) = debian::ensure_program("perf", "linux-perf") {
        return lane::skip("recorders side by side", &why);
    }
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked", "--package", "triscope"]);
    let triscope = run::artifact(&mut build, "triscope")?;
    let load = Load::start(options.pairs)?;
    let subject = load.0.first().map_or(1, Child::id).to_string();
    let dir = tempfile::tempdir()?;
    measure(&options, &triscope, &subject, dir.path())
}

fn measure(options: &Options, triscope: &Path, subject: &str, dir: &Path) -> Result {
    let seconds = options.seconds.to_string();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    println!("load average: {}", fs::read_to_string("/proc/loadavg")?.trim());
    println!("{:<10} {:>12} {:>12} {:>14} {:>14}", "", "CPU", "switches/s", "first half", "peak");
    for _ in 0..options.rounds {
        let mut command = Command::new(triscope);
        command.args(["record", "--sched", "--pid", subject, "--seconds", &seconds, "-o"]);
        ours.push(cost("triscope", command.arg(dir.join("out.pftrace")), options.seconds)?);
        if !options.only_triscope {
            let mut command = Command::new("perf");
            command.args(["sched", "record", "-o"]).arg(dir.join("perf.data"));
            theirs.push(cost("perf", command.args(["sleep", &seconds]), options.seconds)?);
        }
    }
    let ratio = median(&ours) / median(&theirs);
    if !theirs.is_empty() {
        println!("CPU time per switch, ours : perf's = {ratio:.2} : 1 (medians)");
    }
    let peak = ours.iter().map(|cost| cost.memory.1).max().unwrap_or(0);
    println!("largest resident set of triscope: {:.1} MiB", peak as f64 / 1024.0);
    if peak > 64 << 10 {
        return Err("triscope took more than 64 MiB".into());
    }
    Ok(())
}

/// The median of CPU time per switch.
fn median(costs: &[Cost]) -> f64 {
    let mut all: Vec<f64> = costs.iter().map(|cost| cost.cpu / cost.switches).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs a recorder, and reads its CPU time and memory as long as it runs.
fn cost(name: &str, command: &mut Command, seconds: u64) -> Result<Cost> {
    let errors = Stdio::piped();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn()?;
    let (start, before) = (Instant::now(), procfs::switches()?);
    let mut cost = Cost::default();
    let mut elapsed = 0.0;
    while child.try_wait()?.is_none() {
        // What follows the recording, such as perf's rewriting of its file, is not measured.
        if start.elapsed() < Duration::from_secs(seconds) {
            if let Some((ticks, resident)) = usage(child.id()) {
                elapsed = start.elapsed().as_secs_f64();
                cost.cpu = ticks as f64 / 100.0; // USER_HZ
                cost.memory.1 = cost.memory.1.max(resident);
                if elapsed < seconds as f64 / 2.0 {
                    cost.memory.0 = cost.memory.1;
                }
                cost.switches = (procfs::switches()? - before) as f64;
            }
        } else if let Some((_, resident)) = usage(child.id()) {
            cost.memory.1 = cost.memory.1.max(resident);
        }
        std::thread::sleep(LOOK); // between two readings
    }
    let output = child.wait_with_output()?;
    if !output.status.success() || elapsed == 0.0 {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    cost.cpu /= elapsed;
    cost.switches /= elapsed;
    let mib = |kib: u64| kib as f64 / 1024.0;
    println!(
        "{name:<10} {:>8.1} %   {:>12.0} {:>10.1} MiB {:>10.1} MiB   {}",
        cost.cpu * 100.0,
        cost.switches,
        mib(cost.memory.0),
        mib(cost.memory.1),
        String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default()
    );
    Ok(cost)
}

/// CPU time of a process in ticks, and its resident set in KiB.
fn usage(pid: u32) -> Option<(u64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |n: usize| fields.get(n)?.parse::<u64>().ok();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some((ticks(11)? + ticks(12)?, line.trim().trim_end_matches(" kB").parse().ok()?))
}
