use super::{Whom, failure, start, threads};
use crate::failure::{Failure, Result};
use perf_monitor::{Count, Counter, Event, Target, online_cpus};
use std::time::{Duration, Instant};

/// What is counted unless told otherwise; what this machine lacks is left out.
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
/// The counts go to standard error, so that the command's output stays its own. Numbers that were
/// extrapolated, because there were more events than counters, are marked with the part of the
/// time that was really counted.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope perf stat -- make -j2
  triscope perf stat -e page-faults,sched:sched_switch -p 1234 --seconds 5
  triscope perf stat -a -e msr/tsc/ --seconds 1")]
pub(crate) struct Args {
    /// Events, separated by commas; may be given several times
    #[arg(short, long, value_name = "EVENTS")]
    event: Vec<String>,
    /// With --pid or --all-cpus: for how long (default: 1)
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    #[command(flatten)]
    whom: Whom,
}

/// An event with its counters: one for each thread or CPU.
struct Counted {
    event: Event,
    counters: Vec<Counter>,
    /// The kernel was left out, as this user may not count it.
    user_only: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let duration = Duration::try_from_secs_f64(args.seconds)
        .map_err(|_| Failure::Message(format!("not a time: {} seconds", args.seconds)))?;
    let tids = threads(&args.whom.pid)?;
    let mut counted = Vec::new();
    let mut left_out = Vec::new();
    if args.event.is_empty() {
        for name in DEFAULT {
            match open(Event::parse(name).map_err(failure)?, &args.whom, &tids) {
                Ok(event) => counted.push(event),
                Err(error) => left_out.push((name, error)),
            }
        }
        if counted.is_empty() {
            if let Some((_, error)) = left_out.pop() {
                return Err(failure(error));
            }
        }
    } else {
        for text in args.event.iter().flat_map(|list| split(list)) {
            let event = Event::parse(text).map_err(failure)?;
            counted.push(open(event, &args.whom, &tids).map_err(failure)?);
        }
    }

    let begin = Instant::now();
    let mut status = None;
    if args.whom.command.is_empty() {
        for counter in counted.iter().flat_map(|c| &c.counters) {
            counter.enable().map_err(failure)?;
        }
        std::thread::sleep(duration);
        for counter in counted.iter().flat_map(|c| &c.counters) {
            counter.disable().map_err(failure)?;
        }
    } else {
        let mut child = start(&args.whom.command)?;
        let ended = child.wait().map_err(|e| Failure::Message(format!("waiting: {e}")))?;
        status = Some(ended);
    }
    let elapsed = begin.elapsed();

    for event in &counted {
        eprintln!("{}", line(event)?);
    }
    for (name, _) in &left_out {
        eprintln!("{:>20}  {name}", "not on this machine");
    }
    eprintln!("{:>20.6}  seconds", elapsed.as_secs_f64());
    match status {
        Some(status) if !status.success() => {
            eprintln!("triscope: the command ended with {status}");
            Err(Failure::Quiet(status.code().map_or(1, |code| code as u8)))
        }
        _ => Ok(()),
    }
}

/// Splits at commas that are not inside `/ /` of a PMU's event.
fn split(list: &str) -> Vec<&str> {
    let mut inside = false;
    list.split(|c| {
        inside ^= c == '/';
        c == ',' && !inside
    })
    .filter(|part| !part.is_empty())
    .collect()
}

/// Opens an event for all that are watched; without the kernel if that alone is allowed.
fn open(event: Event, whom: &Whom, tids: &[u32]) -> perf_monitor::Result<Counted> {
    let open_with = |user_only: bool| {
        let mut builder = event.builder();
        if user_only {
            builder = builder.exclude_kernel(true).exclude_hv(true);
        }
        if whom.all_cpus {
            return online_cpus().into_iter().map(|cpu| builder.open(Target::Cpu(cpu))).collect();
        }
        let builder = builder.inherit(true);
        if whom.command.is_empty() {
            tids.iter().map(|tid| builder.open(Target::Thread(*tid))).collect()
        } else {
            builder.enable_on_exec(true).open(Target::ThisThread).map(|counter| vec![counter])
        }
    };
    let (counters, user_only) = match open_with(false) {
        Err(error) => match error.refusal() {
            Some(perf_monitor::Refusal::Privilege {
                user_space_alone_is_allowed: true, ..
            }) => (open_with(true)?, true),
            _ => return Err(error),
        },
        Ok(counters) => (counters, false),
    };
    Ok(Counted { event, counters, user_only })
}

fn line(counted: &Counted) -> Result<String> {
    let mut sum = Count { time_enabled: Some(0), time_running: Some(0), ..Count::default() };
    let plus = |a: Option<u64>, b: Option<u64>| Some(a.unwrap_or(0).saturating_add(b?));
    for counter in &counted.counters {
        let count = counter.read().map_err(failure)?;
        sum.value = sum.value.saturating_add(count.value);
        sum.time_enabled = plus(sum.time_enabled, count.time_enabled);
        sum.time_running = plus(sum.time_running, count.time_running);
    }
    let name = counted.event.name();
    let note = if counted.user_only { " (user space only)" } else { "" };
    let Some(scaled) = sum.scaled() else {
        return Ok(format!("{:>20}  {name}{note}", "not counted"));
    };
    let unit = counted.event.unit();
    let value = match unit.scale {
        Some(scale) => format!("{:.2} {}", scaled.value as f64 * scale, unit.name),
        None if unit.name == "ns" => format!("{:.2} ms", scaled.value as f64 / 1e6),
        None => grouped(scaled.value),
    };
    let estimate = if scaled.is_estimate {
        format!(" (estimated: counted {:.1} % of the time)", scaled.coverage * 100.0)
    } else {
        String::new()
    };
    Ok(format!("{value:>20}  {name}{note}{estimate}"))
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
    fn digits_are_grouped() {
        assert_eq!([grouped(0), grouped(999), grouped(1_234_567)], ["0", "999", "1 234 567"]);
    }
}
