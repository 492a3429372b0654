//! `cargo xtask soak`: the flight recorder for a long time, with a load of many switches and then without.
//!
//! The CPU time of the recorder is that of `/proc/PID/stat`, its memory the resident set. The segments are
//! read while it runs. Three numbers are compared:
//!
//! - the tracepoints in all segments, with those that the recorder has passed on: they are equal;
//! - those, and what it counts as lost, with the kernel's count of its events: they are not more. The rest is
//!   missing: the kernel has counted it, and has neither written it nor counted it as lost. It is at most 1 %, and
//!   at most one switch for each CPU;
//! - the switches of the threads of the load in all segments, with those that the scheduler counts for each
//!   thread: the difference is not larger than the number of lost switches. With no such loss they are equal.
//!
//! `--overhead` measures what the recorder costs a load that never sleeps.

mod load;
mod overhead;
mod recorder;
mod segments;

use crate::procfs;
use load::{Counted, Pair};
use recorder::Recorder;
use segments::Counts;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use task_support::{Result, lane, run};

pub(crate) const OPTIONS: &str = "\
[--overhead] [--seconds N] [--load N] [--rate N] [--dir DIR] [--triscope FILE]

  --overhead        instead: a load without pauses, with and without the recorder, for a minute
  --seconds N       length of the recording (default: 1800)
  --load N          seconds with the load, at the start (default: half of the recording)
  --rate N          switches of the load in a second, and those of threads that are preempted on top
                    (default: 160000)
  --dir DIR         for segments, about 1.5 GB (default: the directory for temporary files)
  --triscope FILE   this program (default: it is built)

The soak fails above 2 % of a CPU without switches, and 5 % for 200000 switches in a second (linear between and
above); if the load is slower than that; if the resident set of the last third of a phase is above 32 MiB and
more than 2 MiB above that of its first third; if a record that was passed on is in no segment; if more than 1 % of
the kernel's events, or more than one switch for each CPU, are neither passed on nor lost; and if a switch of the
load is neither in a segment nor lost.";

/// Percent of a CPU without switches, and for [`BUSY`] switches in a second.
const MAX_CPU: (f64, f64) = (2.0, 5.0);

/// The rate that the limit is for.
const BUSY: f64 = 200_000.0;

/// KiB by which the resident set may grow from the first to the last third of a phase, once it is above
/// [`FULL`].
const MAX_GROWTH: f64 = 2048.0;

/// KiB: the program, and what it moves out of the kernel's buffers while it is late.
const FULL: f64 = 32768.0;

/// Percent of the kernel's events that may be missing without a reason.
const MAX_MISSING: u64 = 1;

/// As [`MAX_MISSING`], beside compilers on all CPUs: 2.8 % were missing, of idle CPUs.
const MAX_MISSING_BRIEFLY: u64 = 5;

/// How many times its limit the recorder may use the CPU beside them: it was 2.6 times.
const SLACK_BRIEFLY: f64 = 4.0;

/// The options of the recorder. Its own limit is far above that of the soak: without samples there would be
/// less to measure.
const LIMITS: [&str; 6] = ["-F", "99", "--disk", "8GB", "--cpu", "100"];

/// Interval between looks at the recorder.
const LOOK: Duration = Duration::from_millis(500);

/// Not measured: the recorder begins, and the load.
const WARM_UP: Duration = Duration::from_secs(2);

/// Pairs on each CPU. One more runs on any CPU.
const PAIRS: usize = 2;

/// The part of the rate that the pair on any CPU has.
const ROAMING: u64 = 50;

struct Options {
    time: Duration,
    /// The part with the load.
    load: Option<Duration>,
    rate: u64,
    dir: PathBuf,
    triscope: Option<PathBuf>,
    /// Whether the slowdown of a load is measured, instead of the recorder.
    is_overhead: bool,
    /// Whether the load must reach the rate of the limit, and the recorder the limits themselves: otherwise
    /// the machine may be busy with something else.
    is_full: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        use lexopt::prelude::*;
        let mut this = Self {
            time: Duration::from_secs(1800),
            load: None,
            rate: 160_000,
            dir: std::env::temp_dir(),
            triscope: None,
            is_overhead: false,
            is_full: true,
        };
        let mut args = lexopt::Parser::from_args(args);
        while let Some(arg) = args.next()? {
            match arg {
                Long("overhead") => this.is_overhead = true,
                Long("seconds") => this.time = Duration::from_secs(args.value()?.parse()?),
                Long("load") => this.load = Some(Duration::from_secs(args.value()?.parse()?)),
                Long("rate") => this.rate = args.value()?.parse()?,
                Long("dir") => this.dir = args.value()?.into(),
                Long("triscope") => this.triscope = Some(args.value()?.into()),
                _ => return Err(arg.unexpected().into()),
            }
        }
        Ok(this)
    }
}

pub(crate) fn task(args: &[String]) -> Result {
    match args.split_first() {
        Some((first, rest)) if first == "--pair" => load::run(rest),
        _ => soak(&Options::parse(args)?),
    }
}

/// A short one with a lower rate, for a machine that has other work.
pub(crate) fn smoke() -> Result {
    let none = Options::parse(&[])?;
    soak(&Options { time: Duration::from_secs(20), rate: 60_000, is_full: false, ..none })
}

fn soak(options: &Options) -> Result {
    let can_mount = run::output(&mut run::with_tracefs("true".as_ref()));
    if let Err(why) = can_mount {
        return lane::skip("a soak of the flight recorder", &why);
    }
    let triscope = options.triscope.clone().map_or_else(run::triscope, Ok)?;
    let dir = tempfile::tempdir_in(&options.dir)?;
    if options.is_overhead {
        return overhead::measure(&triscope, dir.path());
    }
    let outcome = record(options, &triscope, dir.path())?;
    outcome.print();
    let failures = outcome.failures(options.is_full);
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

/// A part of the recording.
struct Phase {
    name: &'static str,
    seconds: f64,
    /// CPU time of the recorder, in seconds.
    cpu: f64,
    /// Switches of the machine.
    switches: u64,
    /// Resident sets in KiB, in the order of time.
    resident: Vec<u64>,
}

impl Phase {
    /// Looks at the recorder for this time.
    fn watch(name: &'static str, recorder: &Recorder, time: Duration) -> Result<Self> {
        std::thread::sleep(WARM_UP); // what it does meanwhile is not measured
        let (start, before) = (Instant::now(), procfs::switches()?);
        let (cpu, _) = recorder.usage()?;
        let mut resident = Vec::new();
        while start.elapsed() < time.saturating_sub(WARM_UP) || resident.len() < 3 {
            std::thread::sleep(LOOK); // between two readings
            resident.push(recorder.usage()?.1);
        }
        let cpu = recorder.usage()?.0 - cpu;
        let seconds = start.elapsed().as_secs_f64();
        let switches = procfs::switches()? - before;
        Ok(Self { name, seconds, cpu, switches, resident })
    }

    fn rate(&self) -> f64 {
        self.switches as f64 / self.seconds
    }

    /// Percent of a CPU that it may use: the part for each switch is that of the limits.
    fn max_percent(&self) -> f64 {
        MAX_CPU.0 + (MAX_CPU.1 - MAX_CPU.0) * self.rate() / BUSY
    }

    fn percent(&self) -> f64 {
        100.0 * self.cpu / self.seconds
    }

    /// Means of the resident sets of the first and of the last third.
    fn thirds(&self) -> (f64, f64) {
        let third = self.resident.len() / 3;
        let mean = |all: &[u64]| all.iter().sum::<u64>() as f64 / all.len().max(1) as f64;
        (mean(&self.resident[..third]), mean(&self.resident[self.resident.len() - third..]))
    }
}

/// What was seen.
struct Outcome {
    phases: [Phase; 2],
    account: recorder::Account,
    /// The part of the switches.
    switches: recorder::Account,
    counts: Counts,
    /// The threads of the load.
    load: Vec<Counted>,
    cpus: u64,
    /// Sources that the recorder has stopped, and records without a segment.
    stopped: f64,
    unwritten: f64,
}

fn record(options: &Options, triscope: &Path, base: &Path) -> Result<Outcome> {
    let with_load = options.load.unwrap_or(options.time / 2).min(options.time);
    let mut recorder = Recorder::start(triscope, base, &LIMITS)?;
    let has_ended = Arc::new(AtomicBool::new(false));
    let (segments, until) = (recorder.segments(), Arc::clone(&has_ended));
    let reader = std::thread::spawn(move || {
        segments::follow(&segments, &until).map_err(|error| error.to_string())
    });
    println!("load average: {}", fs::read_to_string("/proc/loadavg")?.trim());
    let mut pairs = start_load(options.rate, with_load)?;
    let busy = Phase::watch("load", &recorder, with_load)?;
    busy.print();
    let mut load = Vec::new();
    for pair in &mut pairs {
        load.extend(pair.counted()?);
    }
    let idle = Phase::watch("idle", &recorder, options.time - with_load)?;
    idle.print();
    let metrics = recorder.metrics()?;
    let metric = |name: &str| metrics.get(name).copied().ok_or_else(|| format!("no metric {name}"));
    let (stopped, unwritten) = (metric("stopped_sources")?, metric("unwritten_records_total")?);
    // The threads of the load wait until it has ended: they switch no more.
    recorder.end()?;
    drop(pairs);
    has_ended.store(true, Ordering::Release);
    let counts = reader.join().map_err(|_| "the thread that reads segments has failed")??;
    let account = recorder.account()?;
    let switches = recorder.losses_of("sched:sched_switch")?;
    let cpus = std::thread::available_parallelism()?.get() as u64;
    Ok(Outcome { phases: [busy, idle], account, switches, counts, load, cpus, stopped, unwritten })
}

fn start_load(rate: u64, time: Duration) -> Result<Vec<Pair>> {
    let cpus = std::thread::available_parallelism()?.get();
    let roaming = rate / ROAMING;
    let each = (rate - roaming) / (cpus * PAIRS) as u64;
    let pinned = (0..cpus * PAIRS).map(|n| Pair::start(n / cpus, Some(n % cpus), each, time));
    let last = Pair::start(0, None, roaming, time);
    pinned.chain([last]).collect()
}

impl Phase {
    fn print(&self) {
        let (first, last) = self.thirds();
        println!(
            "{:<5} {:>6.0} s {:>8.0} switches/s, CPU of the recorder {:>5.2} % (limit {:.2} %), resident {:.1} MiB in \
             the first third, {:.1} MiB in the last",
            self.name,
            self.seconds,
            self.rate(),
            self.percent(),
            self.max_percent(),
            first / 1024.0,
            last / 1024.0
        );
    }

    fn failures(&self, is_full: bool) -> Vec<String> {
        let mut failures = Vec::new();
        let slack = if is_full { 1.0 } else { SLACK_BRIEFLY };
        if self.percent() > self.max_percent() * slack {
            failures.push(format!("{}: {:.2} % of a CPU", self.name, self.percent()));
        }
        let (first, last) = self.thirds();
        if last > FULL && last - first > MAX_GROWTH {
            failures.push(format!("{}: memory has grown by {:.0} KiB", self.name, last - first));
        }
        failures
    }
}

impl Outcome {
    /// Tracepoints in the segments.
    fn written(&self) -> u64 {
        let tracepoints = self.counts.samples.iter().filter(|(event, _)| event.contains(':'));
        tracepoints.filter(|(event, _)| !event.starts_with("dummy")).map(|(_, count)| count).sum()
    }

    /// Switches of the load: those that the kernel counts, and those in segments away from its threads and to
    /// them.
    fn of_load(&self) -> (u64, u64, u64) {
        let counted = self.load.iter().map(|of| of.voluntary + of.involuntary).sum();
        let of = |tid: u32| self.counts.threads.get(&tid).copied().unwrap_or_default();
        let out = self.load.iter().map(|thread| of(thread.tid).out).sum();
        let r#in = self.load.iter().map(|thread| of(thread.tid).r#in).sum();
        (counted, out, r#in)
    }

    fn print(&self) {
        let Self { account, switches, counts, .. } = self;
        println!(
            "{} segments, {:.1} GB: {} tracepoints",
            counts.segments,
            counts.bytes as f64 / 1e9,
            self.written()
        );
        for (event, count) in &counts.samples {
            println!("  {count:>12} {event}");
        }
        println!(
            "kernel: {} events = {} passed on + {} lost + {} missing",
            account.count, account.delivered, account.lost, account.missing
        );
        println!(
            "switches: {} lost, {} missing; {} gaps in the order of switches, {} of them of idle CPUs",
            switches.lost, switches.missing, counts.gaps, counts.idle_gaps
        );
        let (counted, out, r#in) = self.of_load();
        println!(
            "switches of the load: {counted} by the counts of its {} threads, {out} recorded (and {in} back)",
            self.load.len(),
            in = r#in
        );
        let woken =
            |thread: &Counted| self.counts.threads.get(&thread.tid).map_or(0, |of| of.woken);
        let voluntary: u64 = self.load.iter().map(|thread| thread.voluntary - 1).sum();
        let woken: u64 = self.load.iter().map(woken).sum();
        println!("wake-ups of the load: {voluntary} that ended a wait, {woken} recorded");
    }

    fn failures(&self, is_full: bool) -> Vec<String> {
        let mut failures: Vec<String> =
            self.phases.iter().flat_map(|phase| phase.failures(is_full)).collect();
        let mut check = |holds: bool, what: &str| {
            if !holds {
                failures.push(what.to_owned());
            }
        };
        check(!is_full || self.phases[0].rate() >= BUSY, "the load is too slow");
        check(self.stopped == 0.0, "the recorder has stopped a source");
        check(self.unwritten == 0.0, "records were not written");
        let account = self.account;
        check(self.written() == account.delivered, "segments do not have what was passed on");
        let known = account.delivered + account.lost;
        check(known <= account.count, "more is passed on and lost than the kernel counts");
        let max_missing = if is_full { MAX_MISSING } else { MAX_MISSING_BRIEFLY };
        let is_small = account.missing * 100 <= account.count * max_missing;
        check(is_small, "too many of the kernel's events are missing");
        // While an event ends, a CPU can count a sample that it does not write.
        check(self.switches.missing <= self.cpus, "switches are missing");
        let (counted, out, r#in) = self.of_load();
        let known = self.switches.lost;
        check(out.max(r#in) <= counted, "more switches of the load than the kernel counts");
        check(counted <= out + known, "switches of the load are not counted as lost");
        // Those from another thread can be missing, as any gap.
        check(
            counted <= r#in + known + self.counts.gaps,
            "switches to the load are missing without a gap",
        );
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recorder::Account;
    use segments::OfThread;

    fn phase(switches: u64, cpu: f64) -> Phase {
        Phase { name: "load", seconds: 10.0, cpu, switches, resident: vec![33_000; 30] }
    }

    /// A soak without a loss: a thread has switched 9 times, and waited for 5 of them.
    fn outcome() -> Outcome {
        let mut counts = Counts::default();
        counts.samples.insert("sched:sched_switch".to_owned(), 2000);
        counts.samples.insert("cpu-clock".to_owned(), 7);
        counts.samples.insert("dummy:u".to_owned(), 0);
        counts.threads.insert(7, OfThread { out: 9, r#in: 9, woken: 4 });
        Outcome {
            phases: [phase(2_000_000, 0.49), phase(0, 0.19)],
            account: Account { count: 2000, delivered: 2000, lost: 0, missing: 0 },
            switches: Account::default(),
            counts,
            load: vec![Counted { tid: 7, voluntary: 5, involuntary: 4 }],
            cpus: 2,
            stopped: 0.0,
            unwritten: 0.0,
        }
    }

    #[test]
    fn each_limit_is_enforced() {
        assert_eq!(outcome().failures(true), [""; 0]);
        let fails = |change: fn(&mut Outcome)| {
            let mut outcome = outcome();
            change(&mut outcome);
            outcome.failures(true).len()
        };
        assert_eq!(fails(|o| o.phases[0].cpu = 0.51), 1, "5 % at 200000 switches a second");
        assert_eq!(fails(|o| o.phases[1].cpu = 0.21), 1, "2 % without switches");
        assert_eq!(fails(|o| o.phases[1].resident[29] += 30_000), 1, "memory grows");
        assert_eq!(fails(|o| o.phases[1].resident = (0..30).map(|n| n * 1000).collect()), 0);
        assert_eq!(fails(|o| o.phases[0].switches -= 1), 1, "the load is slow");
        assert_eq!(fails(|o| o.stopped = 1.0), 1);
        assert_eq!(fails(|o| o.unwritten = 1.0), 1);
        assert_eq!(fails(|o| *o.counts.samples.get_mut("sched:sched_switch").unwrap() -= 1), 1);
        assert_eq!(fails(|o| o.account.lost = 1), 1, "more than the kernel counts");
        assert_eq!(
            fails(|o| (o.account.count, o.account.missing) = (2020, 20)),
            0,
            "1 % are missing"
        );
        assert_eq!(fails(|o| (o.account.count, o.account.missing) = (2021, 21)), 1);
        assert_eq!(fails(|o| o.switches.missing = 2), 0, "one for each CPU");
        assert_eq!(fails(|o| o.switches.missing = 3), 1, "a switch is missing");
        assert_eq!(fails(|o| o.load[0].voluntary += 1), 2, "a switch is in no segment");
        assert_eq!(fails(|o| o.load[0].involuntary -= 1), 1, "one too many");
        // A loss that is counted is none of a limit, and neither is a gap of another thread.
        let mut lost = outcome();
        lost.load[0].voluntary += 1;
        lost.account = Account { count: 2001, lost: 1, ..lost.account };
        lost.switches.lost = 1;
        assert_eq!(lost.failures(true), [""; 0]);
        let mut hidden = outcome();
        hidden.counts.threads.insert(7, OfThread { out: 9, r#in: 8, woken: 4 });
        assert_eq!(hidden.failures(true).len(), 1);
        hidden.counts.gaps = 1;
        assert_eq!(hidden.failures(true), [""; 0]);
    }

    #[test]
    fn short_soaks_pass_on_a_busy_machine() {
        let mut slow = outcome();
        slow.phases[0].cpu = 1.98;
        slow.phases[1].cpu = 0.79;
        slow.account = Account { count: 2100, missing: 100, ..slow.account };
        assert_eq!(slow.failures(false), [""; 0]);
        slow.phases[1].cpu = 0.81;
        slow.account = Account { count: 2110, missing: 110, ..slow.account };
        assert_eq!(slow.failures(false).len(), 2);
    }
}
