//! What the recorder costs the machine: the load without pauses, with and without the recorder in turn.

use super::recorder::{Account, Recorder};
use super::{LIMITS, start_load};
use std::fs;
use std::path::Path;
use std::time::Duration;
use task_support::Result;

/// Runs of each kind. The median of an odd number is one of them.
const ROUNDS: usize = 5;

/// The length of a run.
const TIME: Duration = Duration::from_secs(5);

/// A load that never sleeps.
const UNLIMITED: u64 = u64::MAX;

/// What a run of the load has done.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Switches in a second.
    rate: f64,
    /// CPU time of the load for each of them, in nanoseconds. Other work of the machine takes the rate down, and
    /// this hardly.
    nanos: f64,
}

/// Prints the slowdown.
pub(super) fn measure(triscope: &Path, base: &Path) -> Result {
    println!("load average: {}", fs::read_to_string("/proc/loadavg")?.trim());
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let (mut account, mut recorder_nanos) = (Account::default(), Vec::new());
    for round in 0..ROUNDS {
        without.push(run()?);
        let dir = base.join(round.to_string());
        fs::create_dir(&dir)?;
        let mut recorder = Recorder::start(triscope, &dir, &LIMITS)?;
        let (before, _) = recorder.usage()?;
        let run = run()?;
        let cpu = recorder.usage()?.0 - before;
        recorder_nanos.push(cpu * 1e9 / (run.rate * TIME.as_secs_f64()));
        with.push(run);
        recorder.end()?;
        let of_round = recorder.account()?;
        account.count += of_round.count;
        account.lost += of_round.lost;
        fs::remove_dir_all(&dir)?;
    }
    let [without, with] = [("without", &without), ("with", &with)].map(|(name, runs)| {
        let of = |value: fn(&Run) -> f64| median(runs.iter().map(value).collect());
        let median = Run { rate: of(|run| run.rate), nanos: of(|run| run.nanos) };
        println!(
            "{name:<8} the recorder: {:.0} switches/s, {:.0} ns of CPU time of the load for each",
            median.rate, median.nanos
        );
        median
    });
    println!(
        "slowdown {:.1} %; CPU time of the load {:+.1} %, {:+.0} ns for each switch, and {:.0} ns of the recorder; \
         {} of {} events lost",
        slowdown(with.rate, without.rate),
        slowdown(without.nanos, with.nanos),
        with.nanos - without.nanos,
        median(recorder_nanos),
        account.lost,
        account.count
    );
    Ok(())
}

fn run() -> Result<Run> {
    let (mut switches, mut cpu) = (0, 0.0);
    for mut pair in start_load(UNLIMITED, TIME)? {
        switches += pair.counted()?.iter().map(|of| of.voluntary + of.involuntary).sum::<u64>();
        cpu += pair.cpu_time()?;
    }
    Ok(Run { rate: switches as f64 / TIME.as_secs_f64(), nanos: cpu * 1e9 / switches as f64 })
}

/// Percent by which `more` is above `less`.
fn slowdown(less: f64, more: f64) -> f64 {
    100.0 * (more / less - 1.0)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_slowdowns() {
        assert_eq!(median(vec![5.0, 1.0, 3.0]), 3.0);
        assert_eq!(slowdown(200.0, 300.0), 50.0);
    }
}
