use crate::failure::Result;
use crate::run::duration::duration;
use crate::run::target::{Target as WatchTarget, of_living, threads};
use crate::run::watch::Watch;
use crate::sources::kernel::{self, failure};
use perf_monitor::{Count, Counter, Event, OpenErrorReason, Scaled, Target, online_cpus};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// The default events; those that this machine lacks are left out.
const DEFAULT: &[&str] = &[
    "task-clock",
    "context-switches",
    "cpu-migrations",
    "page-faults",
    "cycles",
    "instructions",
    "branches",
    "branch-misses",
];

/// Count events of a command, of processes, or of everything
///
/// Without -e: task-clock, context-switches, cpu-migrations, page-faults, cycles, instructions,
/// branches and branch-misses, if this machine has them. Beside each count is its rate per second
/// of CPU time; with -a, per second of the time of all CPUs.
///
/// The counts are written to standard error; the exit status is that of COMMAND. Counts that were
/// extrapolated, because there were more events than hardware counters, are marked with the
/// fraction of the time that was counted.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope perf stat make -j2
  triscope perf stat -e page-faults,sched:sched_switch -p 1234 --seconds 5
  triscope perf stat -a -e msr/tsc/                   until Ctrl-C

Counting your own processes needs no privilege while kernel.perf_event_paranoid is 2 or less; above
1 only user space is counted, and marked so. Everything else needs root or CAP_PERFMON.
triscope perf list shows the events.")]
pub(crate) struct Args {
    /// Events, separated by commas; can be repeated
    #[arg(short, long, value_name = "EVENTS")]
    event: Vec<String>,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    seconds: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: WatchTarget,
}

/// An event with its counters: one for each thread or CPU.
struct EventCounters {
    event: Event,
    counters: Vec<Counter>,
    /// The kernel is excluded, because this user may not count it.
    user_only: bool,
}

impl EventCounters {
    fn read(&self) -> Result<Option<Scaled>> {
        let mut sum = Count::default();
        (sum.time_enabled, sum.time_running) = (Some(0), Some(0));
        let plus = |a: Option<u64>, b: Option<u64>| Some(a.unwrap_or(0).saturating_add(b?));
        for counter in &self.counters {
            let count = counter.read().map_err(failure)?;
            sum.value = sum.value.saturating_add(count.value);
            sum.time_enabled = plus(sum.time_enabled, count.time_enabled);
            sum.time_running = plus(sum.time_running, count.time_running);
        }
        Ok(sum.scaled())
    }

    /// Whether a part of the event is not counted: time is also counted in the kernel.
    fn is_user_only(&self) -> bool {
        self.user_only && !self.is_cpu_time()
    }

    fn is_cpu_time(&self) -> bool {
        let name = self.event.name().split(':').next();
        matches!(name, Some("task-clock" | "cpu-clock"))
    }
}

pub(crate) fn run(args: &Args) -> Result {
    let tids = threads(&args.target.pid)?;
    let mut counted = Vec::new();
    let mut left_out = Vec::new();
    if args.event.is_empty() {
        for name in DEFAULT {
            match open(kernel::event(name).map_err(failure)?, &args.target, &tids) {
                Ok(event) => counted.push(event),
                Err(error) => left_out.push((*name, error)),
            }
        }
        if counted.is_empty() && !left_out.is_empty() {
            return Err(failure(left_out.swap_remove(0).1));
        }
    } else {
        for text in args.event.iter().flat_map(|list| split(list)) {
            let event = kernel::event(text).map_err(failure)?;
            counted.push(open(event, &args.target, &tids).map_err(failure)?);
        }
    }

    let counters = || counted.iter().flat_map(|c| &c.counters);
    let mut begin = Instant::now();
    let mut watch = if args.target.command.is_empty() {
        counters().try_for_each(Counter::enable).map_err(failure)?;
        begin = Instant::now();
        Watch::running(&args.target.pid, args.seconds)?
    } else {
        Watch::command(&args.target.command, args.seconds, |_| ())?
    };
    watch.wait_for_end()?;
    if args.target.command.is_empty() {
        counters().try_for_each(Counter::disable).map_err(failure)?;
    }
    let elapsed = begin.elapsed();
    if args.json {
        eprintln!("{:#}", to_json(&counted, &left_out, elapsed)?);
    } else {
        report(&counted, &left_out, elapsed)?;
    }
    watch.outcome()
}

/// Prints the counts on standard error.
fn report(
    counted: &[EventCounters],
    left_out: &[(&str, perf_monitor::Error)],
    elapsed: Duration,
) -> Result {
    let mut text = String::new();
    let values = counted.iter().map(EventCounters::read).collect::<Result<Vec<_>>>()?;
    let cpu_time = counted.iter().zip(&values).find(|(event, _)| event.is_cpu_time());
    let cpu_time = cpu_time.and_then(|(_, value)| Some(value.as_ref()?.value as f64 / 1e9));
    for (event, value) in counted.iter().zip(&values) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", line(event, value.as_ref(), elapsed, cpu_time));
    }
    for (name, error) in left_out {
        let why = match error.reason() {
            Some(OpenErrorReason::Privilege { .. }) => "not permitted",
            _ => "not on this machine",
        };
        let _ = writeln!(text, "{why:>20}  {name}");
    }
    let _ = writeln!(text, "{:>20.6}  seconds", elapsed.as_secs_f64());
    eprint!("{text}");
    Ok(())
}

/// The counts as JSON. A count that was extrapolated has `coverage` below 1.
fn to_json(
    counted: &[EventCounters],
    left_out: &[(&str, perf_monitor::Error)],
    elapsed: Duration,
) -> Result<Value> {
    let mut events = Vec::new();
    for event in counted {
        let scaled = event.read()?;
        let unit = event.event.unit();
        events.push(json!({
            "event": event.event.name(),
            "count": scaled.as_ref().map(|scaled| scaled.value),
            "coverage": scaled.as_ref().map(|scaled| scaled.coverage),
            "scale": unit.scale,
            "unit": unit.name,
            "user_only": event.is_user_only(),
        }));
    }
    let not_counted: Vec<_> = left_out
        .iter()
        .map(|(name, error)| json!({ "event": name, "error": error.to_string() }))
        .collect();
    Ok(json!({ "seconds": elapsed.as_secs_f64(), "events": events, "not_counted": not_counted }))
}

/// Splits at commas outside the `/ /` of a PMU event.
fn split(list: &str) -> Vec<&str> {
    let mut inside = false;
    list.split(|c| {
        inside ^= c == '/';
        c == ',' && !inside
    })
    .filter(|part| !part.is_empty())
    .collect()
}

/// Opens an event for all targets; without the kernel if only that is permitted.
fn open(event: Event, target: &WatchTarget, tids: &[u32]) -> perf_monitor::Result<EventCounters> {
    let open_with = |user_only: bool| {
        let mut builder = event.builder();
        if user_only {
            builder = builder.exclude_kernel(true).exclude_hv(true);
        }
        if target.all_cpus {
            return online_cpus().into_iter().map(|cpu| builder.open(Target::Cpu(cpu))).collect();
        }
        let builder = builder.inherit(true);
        if target.command.is_empty() {
            of_living(tids, |tid| builder.open(Target::Thread(tid)))
        } else {
            builder.enable_on_exec(true).open(Target::ThisThread).map(|counter| vec![counter])
        }
    };
    let (counters, user_only) = match open_with(false) {
        Err(error) => match error.reason() {
            Some(OpenErrorReason::Privilege { user_space_alone_is_allowed: true, .. }) => {
                (open_with(true)?, true)
            }
            _ => return Err(error),
        },
        Ok(counters) => (counters, false),
    };
    Ok(EventCounters { event, counters, user_only })
}

/// One line of the report. The rates are per second of `cpu_time`, if it was counted.
fn line(
    counted: &EventCounters,
    scaled: Option<&Scaled>,
    elapsed: Duration,
    cpu_time: Option<f64>,
) -> String {
    let name = counted.event.name();
    let note = if counted.is_user_only() { " (user space only)" } else { "" };
    let Some(scaled) = scaled else {
        return format!("{:>20}  {name}{note}", "not counted");
    };
    let unit = counted.event.unit();
    let value = match unit.scale {
        Some(scale) => format!("{:.2} {}", scaled.value as f64 * scale, unit.name),
        None if unit.name == "ns" => format!("{:.2} ms", scaled.value as f64 / 1e6),
        None => grouped(scaled.value),
    };
    let rate = match cpu_time.filter(|time| *time > 0.0) {
        Some(time) if counted.is_cpu_time() => {
            format!("{:.3} CPUs utilized", time / elapsed.as_secs_f64())
        }
        Some(time) if unit.scale.is_none() && unit.name.is_empty() => {
            rate(scaled.value as f64 / time)
        }
        _ => String::new(),
    };
    let estimate = if scaled.is_estimate {
        format!(" (estimated: counted {:.1} % of the time)", scaled.coverage * 100.0)
    } else {
        String::new()
    };
    let name = format!("{name}{note}");
    format!("{value:>20}  {name:<36} {rate:>19}{estimate}").trim_end().to_owned()
}

/// A frequency with three significant digits.
fn rate(per_second: f64) -> String {
    let (value, unit) = [(1e9, "G"), (1e6, "M"), (1e3, "K")]
        .into_iter()
        .find(|(size, _)| per_second >= *size)
        .map_or((per_second, ""), |(size, unit)| (per_second / size, unit));
    format!("{value:.3} {unit}/s")
}

/// A number with its digits in groups of three.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_outside_of_terms() {
        assert_eq!(
            split("cycles,cpu/event=1,umask=2/u,,cs"),
            ["cycles", "cpu/event=1,umask=2/u", "cs"]
        );
    }

    #[test]
    fn rates_are_short() {
        assert_eq!([rate(0.0), rate(1234.5), rate(2e9)], ["0.000 /s", "1.234 K/s", "2.000 G/s"]);
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([grouped(0), grouped(999), grouped(1_234_567)], ["0", "999", "1 234 567"]);
    }
}
