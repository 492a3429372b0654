//! `cargo xtask bench-fleet`: the dataset of a fleet, made from real recordings by time shift and
//! host name, written by parallel exports and read by DuckDB, triscope-sql and Spark.
//!
//! The recordings of the scheduler and of samples are made at that moment; the Go and .NET traces are
//! those of the workspace. Every host has the scheduler in every minute (`--every`), and the others once
//! an hour.

use super::{COMPETE, TRACES, environment, fresh, questions, scripts, spark, tables};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, lane, on_threads, run, target_dir, workspace};

const CHECK: &str = include_str!("fleet.py");

pub(crate) const OPTIONS: &str = "\
[--hosts N] [--minutes N] [--hours N] [--every N] [--trips N] [--writers N]
              [--datafusion] [--spark] [--memory MB] [--dir DIR] [--keep] [--again]

  --hosts N     hosts of the fleet (default: 32)
  --minutes N   minutes of each host (default: 3)
  --hours N     the same in hours
  --every N     minutes from one recording of the scheduler to the next (default: 1)
  --trips N     round trips between two processes in each of them: each is two switches and two
                wake-ups (default: 4000)
  --writers N   exports at the same time (default: 4)
  --datafusion  also ask triscope-sql, which is built first, and compare its answers with those of DuckDB
  --spark       also ask Spark, with two workers, in the same way
  --memory MB   memory for DuckDB, and for the two workers of Spark together (default: 8192). An exact
                percentile has all values in memory
  --dir DIR     where the directory fleet is made again, with the dataset and what engines spill: 2 to 6
                bytes for a row, and as much again (default: target)
  --keep        keep the dataset
  --again       ask the dataset that was kept, and keep it";

/// 2026-11-01T00:00:00 UTC, in seconds: the first minute of the fleet.
const BEGIN: u64 = 1_793_491_200;

/// Two processes that answer each other `$2` times through pipes in the directory `$1`, beside others
/// that compete for the CPUs.
const SWITCH: &str = "mkfifo $1/there $1/back
    (while read line; do echo $line; done < $1/there > $1/back) &
    (n=0; echo x; while [ $n -lt $2 ] && read line; do n=$((n+1)); echo $line; done) \
        > $1/there < $1/back";

struct Options {
    hosts: u64,
    minutes: u64,
    every: u64,
    trips: u64,
    writers: usize,
    has_datafusion: bool,
    has_spark: bool,
    memory: u64,
    dir: PathBuf,
    keep: bool,
    again: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        use lexopt::prelude::*;
        let mut this = Self {
            hosts: 32,
            minutes: 3,
            every: 1,
            trips: 4000,
            writers: 4,
            has_datafusion: false,
            has_spark: false,
            memory: 8192,
            dir: target_dir(),
            keep: false,
            again: false,
        };
        let mut args = lexopt::Parser::from_args(args);
        while let Some(arg) = args.next()? {
            match arg {
                Long("hosts") => this.hosts = args.value()?.parse()?,
                Long("minutes") => this.minutes = args.value()?.parse()?,
                Long("hours") => this.minutes = args.value()?.parse::<u64>()?.saturating_mul(60),
                Long("every") => this.every = args.value()?.parse()?,
                Long("trips") => this.trips = args.value()?.parse()?,
                Long("writers") => this.writers = args.value()?.parse()?,
                Long("datafusion") => this.has_datafusion = true,
                Long("spark") => this.has_spark = true,
                Long("memory") => this.memory = args.value()?.parse()?,
                Long("dir") => this.dir = std::path::absolute(args.value()?)?,
                Long("keep") => this.keep = true,
                Long("again") => this.again = true,
                _ => return Err(arg.unexpected().into()),
            }
        }
        // The minute of one host is compared with the dataset of all.
        if this.hosts < 2 || this.minutes == 0 || this.every == 0 {
            return Err("a fleet has two hosts, and minutes".into());
        }
        Ok(this)
    }
}

/// An export of a recording as that of a host at a time.
struct Export<'a> {
    recording: &'a Path,
    host: u64,
    minute: u64,
}

pub(crate) fn task(args: &[String]) -> Result {
    let options = Options::parse(args)?;
    let python = match environment() {
        Ok(python) => python,
        Err(why) => return lane::skip("datasets of a fleet", &why),
    };
    let triscope_sql = options.has_datafusion.then(crate::sql::optimized).transpose()?;
    let spark = options.has_spark.then(spark).transpose()?;
    let dir = &options.dir.join("fleet");
    let written = dir.join("written.json");
    if !options.again {
        fresh(dir)?;
        fs::write(&written, write(&options, dir)?.to_string())?;
    }
    let Ok(text) = fs::read_to_string(&written) else {
        return Err("no dataset was kept: --keep".into());
    };
    let mut task: serde_json::Value = serde_json::from_str(&text)?;
    task["tables"] = tables().into();
    task["questions"] = questions().into();
    task["triscope_sql"] = json!(triscope_sql);
    task["spark"] = json!(spark);
    task["memory"] = json!(options.memory);
    // A worker of Spark has one part of a join or an order in memory at a time.
    task["partitions"] = (options.hosts / 16).max(2).into();
    let (input, check) = (dir.join("input.json"), dir.join("fleet.py"));
    scripts(dir)?;
    fs::write(&input, task.to_string())?;
    fs::write(&check, CHECK)?;
    run::run(Command::new(python).arg(&check).arg(&input))?;
    if !options.keep && !options.again {
        fs::remove_dir_all(dir.join("dataset"))?;
    }
    Ok(())
}

/// Writes the dataset. The result is what is known of it.
fn write(options: &Options, dir: &Path) -> Result<serde_json::Value> {
    let triscope = run::triscope()?;
    let (scheduler, others) = record(&triscope, dir, options.trips)?;
    let dataset = dir.join("dataset");
    let mut exports = Vec::new();
    for host in 0..options.hosts {
        for minute in 0..options.minutes {
            if minute % options.every == 0 {
                exports.push(Export { recording: &scheduler, host, minute });
            }
            if minute % 60 == 0 {
                exports.extend(others.iter().map(|recording| Export { recording, host, minute }));
            }
        }
    }
    let (count, start) = (exports.len(), std::time::Instant::now());
    let export = |export| rows(&triscope, &export, &dataset).map(|rows| (export, rows));
    let written = on_threads(options.writers, exports, export)?;
    let seconds = start.elapsed().as_secs_f64();
    let rows: u64 = written.iter().map(|(_, rows)| rows).sum();
    println!(
        "{count} exports by {} writers: {rows} rows in {seconds:.1} s, {:.0} rows/s",
        options.writers,
        rows as f64 / seconds
    );
    // A round trip has two intervals on a CPU at least.
    let of_scheduler = written.iter().find(|(export, _)| export.recording == scheduler);
    if of_scheduler.is_none_or(|(_, rows)| *rows < 2 * options.trips) {
        return Err(format!("{} round trips have left too few rows", options.trips).into());
    }
    // A minute in the middle in which a recording begins.
    let minute = options.minutes / 2 / options.every * options.every;
    Ok(json!({
        "dataset": dataset,
        "recordings": count,
        "rows": rows,
        "host": host_name(options.hosts / 2),
        "other_host": host_name(options.hosts / 2 - 1),
        "begin": (BEGIN + minute * 60) * 1_000_000_000,
    }))
}

fn host_name(host: u64) -> String {
    format!("host-{host:04}")
}

/// Records the scheduler with processes that switch, and samples of processes that compete. Returns
/// that of the scheduler, and the others.
fn record(triscope: &Path, dir: &Path, trips: u64) -> Result<(PathBuf, Vec<PathBuf>)> {
    let (scheduler, pipes) = (dir.join("scheduler"), dir.join("pipes"));
    fs::create_dir(&pipes)?;
    let mut command = Command::new(triscope);
    command.args(["record", "--sched", "--keep"]).arg(&scheduler).arg("-o");
    command.arg(dir.join("scheduler.pftrace")).args(["--", "sh", "-c"]);
    command.arg(format!("({COMPETE}) & {SWITCH}; wait")).arg("sh").arg(&pipes);
    run::run(command.arg(trips.to_string()))?;
    let samples = dir.join("samples.data");
    let mut command = Command::new(triscope);
    command.args(["profile", "-e", "cpu-clock", "-o"]).arg(&samples);
    run::run(command.args(["--", "sh", "-c", COMPETE]))?;
    let mut others: Vec<PathBuf> = TRACES.iter().map(|path| workspace().join(path)).collect();
    others.push(samples);
    Ok((scheduler, others))
}

/// Exports a recording, and returns the number of rows that the command reports.
fn rows(triscope: &Path, export: &Export<'_>, dataset: &Path) -> Result<u64> {
    let begin = BEGIN + export.minute * 60;
    let mut command = Command::new(triscope);
    command.arg("export").arg(export.recording).arg("-o").arg(dataset);
    command.args(["--host", &host_name(export.host), "--start", &begin.to_string()]);
    let output = run::attempt(&mut command)?;
    let text = String::from_utf8_lossy(&output.stderr);
    // Beside lines about frames without a function.
    let rows = text.lines().find_map(|line| line.split_once(" rows in "));
    let rows = rows.and_then(|(line, _)| line.rsplit_once(": "));
    match rows.and_then(|(_, rows)| rows.parse().ok()) {
        Some(rows) if output.status.success() => Ok(rows),
        _ => Err(format!("{}: {text}", export.recording.display()).into()),
    }
}
