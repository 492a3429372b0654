//! `cargo xtask bench-profile`: `triscope profile` beside `perf record` and samply: the CPU time of the
//! profiled program, and that of the recorder.
//!
//! The program computes for a fixed number of iterations. Times are user plus system time as the
//! kernel accounts them, not elapsed time: other work on the machine changes them little. The recorders
//! take turns.

use crate::{debian, samply};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use task_support::{Result, lane, run, workspace};

pub(crate) const OPTIONS: &str = "\
[--seconds N] [--rounds N] [--rate HERTZ]...

  --seconds N    CPU time of the program (default: 20)
  --rounds N     runs of each recorder (default: 5)
  --rate HERTZ   samples per second (default: 99, 999 and 4999)";

/// The profiled program.
const PROGRAM: &str = "crates/triscope/tests/perf/shares/shares.rs";

/// The limit of what users may sample.
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// Runs a command that reads another file in its place. The kernel's own limit stays.
const WITH_LIMIT: &str = "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"";

/// Iterations of the run that the length of the others follows from.
const TRIAL: u64 = 2_000;

struct Options {
    seconds: u64,
    rounds: usize,
    rates: Vec<u64>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        use lexopt::prelude::*;
        let mut this = Self { seconds: 20, rounds: 5, rates: Vec::new() };
        let mut args = lexopt::Parser::from_args(args);
        while let Some(arg) = args.next()? {
            match arg {
                Long("seconds") => this.seconds = args.value()?.parse()?,
                Long("rounds") => this.rounds = args.value()?.parse()?,
                Long("rate") => this.rates.push(args.value()?.parse()?),
                _ => return Err(arg.unexpected().into()),
            }
        }
        if this.rates.is_empty() {
            this.rates = vec![99, 999, 4999];
        }
        Ok(this)
    }
}

/// A recorder, by the way in which it finds callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Recorder {
    None,
    Triscope,
    TriscopeDwarf,
    Perf,
    PerfDwarf,
    Samply,
}

impl Recorder {
    const ALL: [Self; 5] =
        [Self::Triscope, Self::Perf, Self::TriscopeDwarf, Self::PerfDwarf, Self::Samply];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Triscope => "triscope profile, frame pointers",
            Self::Perf => "perf record, frame pointers",
            Self::TriscopeDwarf => "triscope profile, DWARF",
            Self::PerfDwarf => "perf record, DWARF",
            Self::Samply => "samply, DWARF",
        }
    }
}

/// What a run costs, in seconds of CPU time.
#[derive(Clone, Copy, Debug)]
struct Cost {
    program: f64,
    recorder: f64,
    samples: u64,
}

struct Bench {
    dir: tempfile::TempDir,
    program: PathBuf,
    triscope: PathBuf,
    samply: PathBuf,
    iterations: u64,
}

pub(crate) fn task(args: &[String]) -> Result {
    let options = Options::parse(args)?;
    if let Err(why) = debian::ensure_program("perf", "linux-perf") {
        return lane::skip("`triscope profile` beside `perf record`", &why);
    }
    let samply = samply::installed()?;
    let mut build = run::cargo();
    build.args(["build", "--release", "--locked", "--package", "triscope"]);
    let triscope = run::artifact(&mut build, "triscope")?;
    let dir = tempfile::tempdir()?;
    let program = dir.path().join("program");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut compile = Command::new(rustc);
    compile.args(["--edition=2021", "-O", "-C", "force-frame-pointers=yes", "-o"]);
    run::run(compile.arg(&program).arg(workspace().join(PROGRAM)))?;
    let mut bench = Bench { dir, program, triscope, samply, iterations: TRIAL };
    let trial = bench.measure(Recorder::None, 0)?.program;
    bench.iterations = (TRIAL as f64 * options.seconds as f64 / trial) as u64;

    let mut costs: BTreeMap<(u64, Recorder), Vec<Cost>> = BTreeMap::new();
    let start = Instant::now();
    for round in 1..=options.rounds {
        let plain = bench.measure(Recorder::None, 0)?;
        costs.entry((0, Recorder::None)).or_default().push(plain);
        for rate in &options.rates {
            for recorder in Recorder::ALL {
                let cost = bench.measure(recorder, *rate)?;
                costs.entry((*rate, recorder)).or_default().push(cost);
            }
        }
        let load = std::fs::read_to_string("/proc/loadavg")?;
        let load = load.split(' ').next().unwrap_or_default();
        eprintln!("round {round}: {} s, load {load}", start.elapsed().as_secs());
    }
    let plain = costs.get(&(0, Recorder::None)).map_or(0.0, |of| median(of, |cost| cost.program));
    println!("| Hz | recorder | program, CPU s | slower by | recorder, CPU s | samples |");
    println!("| --: | --- | --: | --: | --: | --: |");
    for ((rate, recorder), of) in &costs {
        let program = median(of, |cost| cost.program);
        println!(
            "| {rate} | {} | {program:.2} | {:.1} % | {:.2} | {} |",
            recorder.name(),
            (program / plain - 1.0) * 100.0,
            median(of, |cost| cost.recorder),
            median(of, |cost| cost.samples as f64)
        );
    }
    Ok(())
}

fn median(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    let mut values: Vec<f64> = costs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Bench {
    /// What samply is run by. Where nothing counts cycles, it samples by the CPU clock, as the others do,
    /// but only if users may sample the kernel. Root may in any case.
    fn permissive(&self) -> Result<Vec<OsString>> {
        let limit: i32 = std::fs::read_to_string(PARANOID)?.trim().parse()?;
        if limit <= 1 {
            return Ok(Vec::new());
        }
        let file = self.dir.path().join("paranoid");
        std::fs::write(&file, "1\n")?;
        let mut command =
            ["unshare", "--mount", "sh", "-c", WITH_LIMIT].map(OsString::from).to_vec();
        command.extend([file.into(), PARANOID.into()]);
        Ok(command)
    }

    /// Runs the program with a recorder.
    fn measure(&self, recorder: Recorder, rate: u64) -> Result<Cost> {
        let output = self.dir.path().join(match recorder {
            Recorder::Samply => "profile.json",
            Recorder::Perf | Recorder::PerfDwarf => "perf.data",
            _ => "profile.folded",
        });
        let rate = rate.to_string();
        let (program, words): (&Path, &[&str]) = match recorder {
            Recorder::None => (Path::new("env"), &[]),
            Recorder::Triscope => (&self.triscope, &["profile", "-F", &rate, "-o"]),
            Recorder::TriscopeDwarf => {
                (&self.triscope, &["profile", "--call-graph", "dwarf", "-F", &rate, "-o"])
            }
            Recorder::Perf => (Path::new("perf"), &["record", "-g", "-F", &rate, "-o"]),
            Recorder::PerfDwarf => {
                (Path::new("perf"), &["record", "--call-graph", "dwarf", "-F", &rate, "-o"])
            }
            Recorder::Samply => (&self.samply, &["record", "-s", "-r", &rate, "-o"]),
        };
        let mut command: Vec<OsString> = match recorder {
            Recorder::Samply => self.permissive()?,
            _ => Vec::new(),
        };
        command.push(program.into());
        command.extend(words.iter().map(OsString::from));
        if recorder != Recorder::None {
            command.extend([output.clone().into(), "--".into()]);
        }
        // Times of the program alone, and of all that was waited for.
        let inner = "TIMEFORMAT='program %3U %3S'; time \"$0\" on \"$1\"";
        command.extend(["bash", "-c", inner].map(OsString::from));
        command.extend([self.program.clone().into(), self.iterations.to_string().into()]);
        let mut all = Command::new("bash");
        all.args(["-c", "TIMEFORMAT='all %3U %3S'; time \"$@\"", "bash"]).args(command);
        let ran = all.current_dir(self.dir.path()).output()?;
        let text = String::from_utf8_lossy(&ran.stderr);
        if !ran.status.success() {
            return Err(format!("{}: {text}", recorder.name()).into());
        }
        let (program, all) = (seconds(&text, "program")?, seconds(&text, "all")?);
        let samples = match recorder {
            Recorder::None => 0,
            Recorder::Samply => samply::samples(&output)?,
            _ => printed_samples(&text).ok_or_else(|| format!("no samples: {text}"))?,
        };
        if recorder != Recorder::None {
            std::fs::remove_file(&output)?;
        }
        Ok(Cost { program, recorder: all - program, samples })
    }
}

/// The user and system time of a line that begins with this word.
fn seconds(text: &str, word: &str) -> Result<f64> {
    let of = |line: &str| {
        let (user, system) = line.strip_prefix(word)?.trim().split_once(' ')?;
        Some(user.parse::<f64>().ok()? + system.parse::<f64>().ok()?)
    };
    text.lines().find_map(of).ok_or_else(|| format!("no times: {text}").into())
}

/// The number before "samples", as both programs print it.
fn printed_samples(text: &str) -> Option<u64> {
    let (before, _) = text.split_once(" samples")?;
    before.rsplit([' ', '(', '~']).next()?.parse().ok()
}
