//! The same answers from the commands: `triscope record`, then `triscope report --json` and `triscope
//! explain --json` of what it kept.

use super::busy::Busy;
use super::go::{EVENTS_OF_A_STOP, Measured};
use super::recorder::numbers;
use super::steal;
use super::timeline::{OnCpu, ms, require, within, within_steal, within_stops, within_unknown};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use task_support::{Result, run};

/// Records the Go program with the command, and checks what it reports.
pub(super) fn check_go(triscope: &Path, program: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut command = record(triscope, dir.path(), &[]);
    command.arg(program.join("program")).arg("answers.trace");
    let output = run::output(&mut command)?;
    let measured = Measured::parse(std::str::from_utf8(&output)?)?;
    let commands = Commands { triscope, dir: dir.path() };
    let report = commands.run(&["report"])?;
    let is_its = |thread: &Value| thread["process"]["name"] == "program";
    let steal = commands.steal()?;
    check_threads(&report, steal, measured.process, is_its)?;
    let [count, pause] = measured.collections;
    check_collections(&report, steal, count, Some(pause))?;
    commands.check_preempted(&["--region", "compute"], measured.preempted)
}

/// As [`check_go`], the GCs of the .NET program on a runtime: a directory of `targets`.
pub(super) fn check_gc(triscope: &Path, targets: &Path, runtime: &str) -> Result<()> {
    eprintln!("report of .NET {runtime}");
    let gc = of_dotnet(triscope, &targets.join(runtime), "gc", STEPS)?;
    let [count, pause] = gc.line("gc")?;
    // The program counts its pauses since .NET 7.
    check_collections(&gc.report, gc.steal, count, (runtime != "3.1").then_some(pause))
}

/// As [`check_gc`], a request on a busy CPU.
pub(super) fn check_preempted(triscope: &Path, targets: &Path, runtime: &str) -> Result<()> {
    let busy = Busy::compete(0)?;
    let preempted = of_dotnet(triscope, &targets.join(runtime), "preempted", STEPS)?;
    drop(busy);
    let commands = preempted.commands(triscope);
    commands.check_preempted(&["--activity", "Preempted"], preempted.line("preempted")?)
}

/// The event source of the .NET program.
pub(super) const STEPS: &str = "Triscope-Answers";

/// A recorded .NET program, and what it printed.
pub(super) struct Recorded {
    dir: tempfile::TempDir,
    pub(super) report: Value,
    /// The most steal time, in nanoseconds.
    pub(super) steal: i64,
    printed: Vec<String>,
}

impl Recorded {
    pub(super) fn commands<'a>(&'a self, triscope: &'a Path) -> Commands<'a> {
        Commands { triscope, dir: self.dir.path() }
    }

    /// The numbers of the line with this word.
    pub(super) fn line<const N: usize>(&self, word: &str) -> Result<[i64; N]> {
        for line in &self.printed {
            let (name, numbers) = numbers(line)?;
            if name == word {
                return Ok(numbers.as_slice().try_into()?);
            }
        }
        Err(format!("the program printed no {word}").into())
    }
}

/// Runs a program, and prints its own process id and the run time of the program's processes as the
/// kernel counts it, in nanoseconds.
const MEASURE: &str = "
import os, resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print('usage', os.getpid(), round((usage.ru_utime + usage.ru_stime) * 1e9), flush=True)
sys.exit(code)";

/// The interpreter itself: `python3` may be a script that starts dozens of processes first.
fn python() -> Result<PathBuf> {
    let print = ["-c", "import sys; print(sys.executable, end='')"];
    let path = run::output(Command::new("python3").args(print))?;
    Ok(PathBuf::from(OsString::from_vec(path)))
}

/// Records the .NET program on a runtime, with these event sources.
pub(super) fn of_dotnet(
    triscope: &Path,
    runtime: &Path,
    mode: &str,
    providers: &str,
) -> Result<Recorded> {
    let dir = tempfile::tempdir()?;
    let options = ["--sched", "--dotnet", "--provider", providers];
    let mut command = record(triscope, dir.path(), &options);
    command.arg(python()?).args(["-c", MEASURE]).arg(runtime.join("run"));
    command.env("WORKLOAD_MODE", format!("answers:{mode}")).env("TMPDIR", dir.path());
    let mut recorder = Recorder(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    let mut input = recorder.0.stdin.take();
    let output = recorder.0.stdout.take().ok_or("no standard output")?;
    let mut printed = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line == "done" {
            // The program ends with its input.
            input = None;
        } else {
            printed.push(line);
        }
    }
    drop(input);
    let status = recorder.0.wait()?;
    if !status.success() {
        return Err(format!("triscope record: {status}").into());
    }
    let commands = Commands { triscope, dir: dir.path() };
    let (report, steal) = (commands.run(&["report"])?, commands.steal()?);
    let recorded = Recorded { dir, report, steal, printed };
    let [measurer, run] = recorded.line("usage")?;
    let is_its = |thread: &Value| number(&thread["process"]["pid"]) != measurer;
    check_threads(&recorded.report, steal, run, is_its)?;
    Ok(recorded)
}

/// Dropping it kills the process.
struct Recorder(Child);

impl Drop for Recorder {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that records another one, whose arguments follow.
pub(super) fn record(triscope: &Path, dir: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(triscope);
    command.args(["record", "-o", "x.pftrace", "--keep", "raw"]).args(options);
    command.arg("--").current_dir(dir).stdin(Stdio::null());
    command
}

/// What was kept, and the commands that read it.
pub(super) struct Commands<'a> {
    pub(super) triscope: &'a Path,
    pub(super) dir: &'a Path,
}

impl Commands<'_> {
    pub(super) fn run(&self, args: &[&str]) -> Result<Value> {
        let mut command = Command::new(self.triscope);
        command.args(args).args(["--json", "raw"]).current_dir(self.dir);
        Ok(serde_json::from_slice(&run::output(&mut command)?)?)
    }

    /// The most steal time of the recording, in nanoseconds.
    pub(super) fn steal(&self) -> Result<i64> {
        let about = std::fs::read(self.dir.join("raw/recording.json"))?;
        let about: Value = serde_json::from_slice(&about)?;
        Ok(steal::most(about["steal_nanos"].as_i64().ok_or("no steal time")?))
    }

    /// The wall time, CPU time, run time and wait time of the request that is preempted.
    fn check_preempted(&self, request: &[&str], measured: [i64; 4]) -> Result<()> {
        let [wall, cpu, ran, waited] = measured;
        let paths = self.run(&[&["explain"], request].concat())?;
        let path = paths.get(0).ok_or("no such request")?;
        let pieces = path["pieces"].as_array().ok_or("no pieces")?;
        // Of the subject alone: not of those that it waits for, as the sampler of .NET that stops it.
        let own = |what: &'static [&str]| {
            let is_it = |piece: &&Value| piece["what"].as_str().is_some_and(|w| what.contains(&w));
            let own = pieces.iter().filter(|piece| piece["depth"] == 0).filter(is_it);
            own.map(|piece| number(&piece["nanos"]))
        };
        let sum = |what| -> i64 { own(what).sum() };
        let all: i64 = pieces.iter().map(|piece| number(&piece["nanos"])).sum();
        require(
            "explain: the pieces are the whole",
            all == number(&path["nanos"]),
            ms(all).to_string(),
        )?;
        within("explain: wall time", all, wall, 2.0)?;
        // This kernel does not report some switches: what the thread did then is not known.
        let unknown = sum(&["running", "syscall", "unknown"]);
        let (on_cpu, steal) = (sum(&["on_cpu"]), self.steal()?);
        // Go may preempt the goroutine, too: its thread waits for the CPU then as well.
        const WAITS: &[&str] = &["waits_for_cpu", "waits_for_p"];
        let woken = OnCpu::woken(own(WAITS));
        within_steal("explain: CPU time", on_cpu, unknown + woken, steal, cpu)?;
        within_steal("explain: run time of the kernel", on_cpu, unknown + woken, steal, ran)?;
        let waits = sum(WAITS) - woken;
        within_unknown("explain: wait time of the kernel", waits, unknown + woken, waited, 2.0)
    }
}

pub(super) fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

pub(super) fn rows<'a>(report: &'a Value, table: &str) -> Result<&'a Vec<Value>> {
    Ok(report[table].as_array().ok_or_else(|| format!("no {table} in the report"))?)
}

/// The sum of the times of these threads on a CPU is what the kernel counted.
fn check_threads(
    report: &Value,
    steal: i64,
    expected: i64,
    is_its: impl Fn(&Value) -> bool,
) -> Result<()> {
    let mut sums = OnCpu::default();
    for thread in rows(report, "threads")?.iter().filter(|thread| is_its(thread)) {
        sums.on_cpu += number(&thread["times"]["on_cpu"]);
        sums.unknown += number(&thread["times"]["unknown"]);
        let latency = |field: &str| number(&thread["latency"][field]);
        sums.woken += latency("count") * latency("p50").min(OnCpu::EACH_WAKE);
    }
    sums.check("report: on CPU, all threads", steal, expected)
}

/// The number of GCs, and how long the program stood still for them, if it measured that.
fn check_collections(report: &Value, steal: i64, count: i64, pause: Option<i64>) -> Result<()> {
    let durations = |row: &Value, field: &str| number(&row["durations"][field]);
    let found: i64 = rows(report, "gcs")?.iter().map(|row| durations(row, "count")).sum();
    require("report: GCs", found == count, format!("{found} of {count}"))?;
    let Some(pause) = pause else { return Ok(()) };
    let (mut sum, mut events) = (0, 0);
    for row in rows(report, "pauses")? {
        match row["reason"].as_str().unwrap_or_default() {
            "Gc" | "GcPrep" => {}
            of_go if of_go.starts_with("GC ") => {
                events += durations(row, "count") * EVENTS_OF_A_STOP;
            }
            _ => continue,
        }
        sum += durations(row, "sum");
    }
    within_stops("report: GC pauses", sum, events, steal, pause)
}
