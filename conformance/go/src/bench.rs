//! Measures gotrace and Go's own reader in one run: every round runs both of each pair one after
//! the other, so that a drift of the machine's speed affects both.

use super::Tools;
use super::toolchain::Toolchain;
use super::workload::{self, Workload};
use lexopt::prelude::*;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use task_support::{Result, cache, run};

/// The options of `cargo xtask bench-go`.
pub const OPTIONS: &str = "\
[--rounds N] [--viewer] [TRACE]

  --rounds N   measure N times (default: 5)
  --viewer     also start Go's viewer, which takes a minute and gigabytes of memory
  TRACE        a trace, may be compressed with xz (default: a busy HTTP server,
               and goroutines that come and go, recorded once)";

struct Options {
    rounds: usize,
    viewer: bool,
    trace: Option<PathBuf>,
}

fn options(args: &[String]) -> Result<Options> {
    let mut options = Options { rounds: 5, viewer: false, trace: None };
    let mut args = lexopt::Parser::from_args(args);
    while let Some(arg) = args.next()? {
        match arg {
            Long("rounds") => options.rounds = args.value()?.parse()?,
            Long("viewer") => options.viewer = true,
            Value(path) => options.trace = Some(path.into()),
            _ => return Err(arg.unexpected().into()),
        }
    }
    Ok(options)
}

/// `cargo xtask bench-go`.
pub(crate) fn run(args: &[String]) -> Result {
    if let [flag, trace] = args {
        if flag == DRAIN {
            return drain(Path::new(trace));
        }
    }
    let options = options(args)?;
    let tools = Tools::ready()?;
    match &options.trace {
        Some(path) => compare(&tools, &options, "the trace", &unpacked(path)?),
        None => {
            let busy = recorded(workload::BUSY, &tools.newest)?;
            compare(&tools, &options, "a busy HTTP server", &busy)?;
            let swarm = recorded(workload::SWARM, &tools.newest)?;
            compare(&tools, &options, "100 000 goroutines at a time come and go", &swarm)
        }
    }
}

/// Prints the table for one trace.
fn compare(tools: &Tools, options: &Options, what: &str, trace: &Path) -> Result {
    let me = std::env::current_exe()?;
    let scratch = tempfile::tempdir()?;
    let timeline = scratch.path().join("timeline.pftrace");
    let judge = |what: &str| command(&tools.judge, &[what.as_ref(), trace.as_ref(), "1".as_ref()]);
    let theirs = |mode: &str| command(&tools.trace_tool, &[mode.as_ref(), trace.as_ref()]);
    let ours =
        |mode: &str| command(&tools.triscope, &["go".as_ref(), mode.as_ref(), trace.as_ref()]);
    let mut rows = vec![
        Row::new("drain (all events, nothing done with them)", Some(judge("drain")), {
            command(&me, &["bench-go".as_ref(), DRAIN.as_ref(), trace.as_ref()])
        }),
        Row::new("`go stats`", None, ours("stats")),
        Row::new("`go events` / `-d=parsed`", Some(theirs("-d=parsed")), ours("events")),
        Row::new("`go wire` / `-d=wire`", Some(theirs("-d=wire")), ours("wire")),
        Row::new("`convert` to a Perfetto timeline", None, {
            let args = ["convert".as_ref(), trace.as_ref(), "-o".as_ref(), timeline.as_ref()];
            command(&tools.triscope, &args)
        }),
    ];
    for round in 1..=options.rounds {
        eprintln!("{what}: round {round} of {}", options.rounds);
        for row in &mut rows {
            row.theirs.as_mut().map_or(Ok(()), Side::measure)?;
            row.ours.measure()?;
        }
    }
    let events = rows[0].ours.events;
    if let Some(theirs) = rows[0].theirs.as_ref().filter(|theirs| theirs.events != events) {
        let theirs = theirs.events;
        return Err(format!("ours reads {events} events, the reference {theirs}").into());
    }
    println!(
        "\n{what}: {:.1} MB, {events} events; Go {} beside triscope {}; medians of {} rounds; \
         load {}\n",
        fs::metadata(trace)?.len() as f64 / 1e6,
        tools.newest.version,
        env!("CARGO_PKG_VERSION"),
        options.rounds,
        fs::read_to_string("/proc/loadavg")?.split(' ').next().unwrap_or_default()
    );
    println!(
        "| what | Go, CPU ns/event | triscope, CPU ns/event | times less | Go, s | triscope, s | \
         Go, peak MB | triscope, peak MB |"
    );
    println!("| --- | --: | --: | --: | --: | --: | --: | --: |");
    let per_event = |side: &Side| side.cpu().as_nanos() as f64 / events.max(1) as f64;
    for Row { what, theirs, ours } in &rows {
        let theirs = |show: &dyn Fn(&Side) -> String| theirs.as_ref().map_or("–".into(), show);
        println!(
            "| {what} | {} | {:.1} | {} | {} | {:.2} | {} | {:.0} |",
            theirs(&|side| format!("{:.0}", per_event(side))),
            per_event(ours),
            theirs(&|side| format!("{:.1}", per_event(side) / per_event(ours))),
            theirs(&|side| format!("{:.2}", side.wall().as_secs_f64())),
            ours.wall().as_secs_f64(),
            theirs(&|side| format!("{:.0}", side.peak_mb())),
            ours.peak_mb()
        );
    }
    let viewer = match options.viewer {
        false => "(not run)".to_owned(),
        true => viewer(tools, trace)?,
    };
    let written = fs::metadata(&timeline)?.len() as f64 / 1e6;
    println!("\nThe timeline has {written:.1} MB; Go's viewer until it opens: {viewer}");
    Ok(())
}

const DRAIN: &str = "--drain";

/// Reads all events and prints their number and the elapsed nanoseconds of wall-clock and CPU time,
/// as the judge does.
fn drain(trace: &Path) -> Result {
    let file = fs::File::open(trace)?;
    let (start, before) = (Instant::now(), cpu_nanos()?);
    let mut events = 0_u64;
    let mut reader = gotrace::Reader::new(file)?;
    while let Some(event) = reader.next_event()? {
        std::hint::black_box(&event);
        events += 1;
    }
    println!("{events} {} {}", start.elapsed().as_nanos(), cpu_nanos()? - before);
    Ok(())
}

/// The CPU time that this thread has used so far.
fn cpu_nanos() -> Result<u64> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(stat.split(' ').next().unwrap_or_default().parse()?)
}

/// A task of the benchmark, with Go's program for it, if there is one, and ours.
struct Row {
    what: &'static str,
    theirs: Option<Side>,
    ours: Side,
}

impl Row {
    fn new(what: &'static str, theirs: Option<Command>, ours: Command) -> Row {
        Row { what, theirs: theirs.map(Side::new), ours: Side::new(ours) }
    }
}

/// A command that is run repeatedly.
struct Side {
    command: Command,
    wall: Vec<Duration>,
    cpu: Vec<Duration>,
    peak_kib: Vec<u64>,
    /// The number of events, if the command prints it.
    events: u64,
}

impl Side {
    fn new(command: Command) -> Side {
        Side { command, wall: Vec::new(), cpu: Vec::new(), peak_kib: Vec::new(), events: 0 }
    }

    fn measure(&mut self) -> Result {
        // The output of a drain is small; event texts are discarded.
        let drains = self.command.get_args().any(|a| a == "drain" || a == DRAIN);
        self.command.stdin(Stdio::null());
        self.command.stdout(if drains { Stdio::piped() } else { Stdio::null() });
        let start = Instant::now();
        let mut child = self.command.spawn()?;
        let mut peak = 0;
        // A child that has ended can be inspected until it is waited for.
        while is_running(&child) {
            peak = peak.max(peak_kib(&child));
            std::thread::sleep(Duration::from_millis(2));
        }
        let (mut wall, mut cpu) = (start.elapsed(), cpu_time(&child));
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("{:?}: {status}", self.command).into());
        }
        if let Some(output) = child.stdout {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line)?;
            let mut numbers = line.split_whitespace().map(str::parse::<u64>);
            let mut number = || numbers.next().ok_or("a drain prints three numbers");
            self.events = number()??;
            wall = Duration::from_nanos(number()??);
            cpu = Duration::from_nanos(number()??);
        }
        self.wall.push(wall);
        self.cpu.push(cpu);
        self.peak_kib.push(peak);
        Ok(())
    }

    fn wall(&self) -> Duration {
        median(&self.wall)
    }

    fn cpu(&self) -> Duration {
        median(&self.cpu)
    }

    fn peak_mb(&self) -> f64 {
        median(&self.peak_kib) as f64 * 1024.0 / 1e6
    }
}

fn median<T: Copy + Ord + Default>(values: &[T]) -> T {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The fields of `/proc/PID/stat` after the name of the program.
fn stat(child: &Child) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_whitespace().map(str::to_owned).collect()
}

fn is_running(child: &Child) -> bool {
    stat(child).first().is_some_and(|state| state != "Z")
}

/// User and system time of a child that has ended, in the kernel's steps of 10 ms.
fn cpu_time(child: &Child) -> Duration {
    let ticks: u64 =
        stat(child).iter().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// The peak memory of a running child.
fn peak_kib(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

fn command(program: &Path, args: &[&std::ffi::OsStr]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env("TZ", "UTC");
    command
}

/// The time until Go's viewer would open a browser, and its memory use then.
fn viewer(tools: &Tools, trace: &Path) -> Result<String> {
    eprintln!("starting Go's viewer");
    let start = Instant::now();
    let mut child = Command::new(&tools.trace_tool)
        .arg("-http=127.0.0.1:0")
        .arg(trace)
        .env("BROWSER", "true")
        .stderr(Stdio::piped())
        .spawn()?;
    let output = child.stderr.take().ok_or("the viewer says nothing")?;
    let opened = BufReader::new(output)
        .lines()
        .map_while(std::result::Result::ok)
        .any(|line| line.contains("Opening browser"));
    let (elapsed, peak) = (start.elapsed(), peak_kib(&child));
    child.kill()?;
    child.wait()?;
    if !opened {
        return Err("Go's viewer did not open".into());
    }
    Ok(format!("{:.1} s, {:.0} MB peak", elapsed.as_secs_f64(), peak as f64 * 1024.0 / 1e6))
}

/// The trace at `path`, decompressed into the cache if it is compressed with xz.
fn unpacked(path: &Path) -> Result<PathBuf> {
    if path.extension().is_none_or(|e| e != "xz") {
        return Ok(path.to_owned());
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let size = fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?.len();
    let dir = cache::entry(&format!("go/unpacked/{name}-{size}"), |dir| {
        let code = "import lzma, shutil, sys\n\
                    shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], 'wb'))";
        let mut python = Command::new("python3");
        run::run(python.args(["-c", code]).arg(path).arg(dir.join("trace")))
    })?;
    Ok(dir.join("trace"))
}

/// The trace of a workload, which is recorded once.
fn recorded(workload: Workload, newest: &Toolchain) -> Result<PathBuf> {
    let dir = workload.recorded(newest, "benchmark", |_| {
        eprintln!("recorded {}", workload.name);
        Ok(())
    })?;
    Ok(dir.join("trace"))
}
