//! Prints how long threads wait for a CPU after they are woken. Needs root.
//!
//! `cargo run --example schedlat [SECONDS]`

use perf_monitor::{RingSet, SampleFlags, SetRecord, Timestamp, Tracefs};
use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The waits of the threads of one name, in nanoseconds.
#[derive(Default)]
struct Waits {
    count: u64,
    sum: i64,
    max: i64,
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(5), |n| n.parse())?;
    let tracefs = Tracefs::find_or_detached()?;
    let field = |event, name| {
        let format = tracefs.format("sched", event)?;
        format.field(name).cloned().ok_or_else(|| format!("{event} has no field {name}").into())
    };
    let field = |event, name| -> Result<_, Box<dyn std::error::Error>> { field(event, name) };
    let woken = field("sched_wakeup", "pid")?;
    let switch = |name| field("sched_switch", name);
    let (prev_pid, next_pid, next_comm) =
        (switch("prev_pid")?, switch("next_pid")?, switch("next_comm")?);
    let options = |name| {
        let event = tracefs.event("sched", name)?;
        Ok::<_, perf_monitor::Error>(event.builder().sample_period(1).sample(SampleFlags::RAW))
    };
    let mut set = RingSet::builder().open()?;
    let wakeup = set.add(&options("sched_wakeup")?)?;
    let wakeup_new = set.add(&options("sched_wakeup_new")?)?;
    set.add(&options("sched_switch")?)?;
    set.enable()?;

    // Records come in time order, also those of different CPUs.
    let mut waiting: HashMap<i64, Timestamp> = HashMap::new();
    let mut waits: HashMap<String, Waits> = HashMap::new();
    let mut add = |record: SetRecord<'_>| {
        let Some(raw) = record.layout.raw_data(record.raw) else { return Ok(()) };
        if record.event == wakeup || record.event == wakeup_new {
            waiting.insert(woken.i64(raw).unwrap_or(0), record.time);
            return Ok(());
        }
        // It was woken while it still had a CPU: it did not wait.
        prev_pid.i64(raw).and_then(|pid| waiting.remove(&pid));
        if let Some(since) = next_pid.i64(raw).and_then(|pid| waiting.remove(&pid)) {
            let name = next_comm.value(raw).map(|v| v.to_string()).unwrap_or_default();
            let waits = waits.entry(name).or_default();
            let wait = record.time.nanos() - since.nanos();
            waits.count += 1;
            waits.sum += wait;
            waits.max = waits.max.max(wait);
        }
        Ok::<_, perf_monitor::Error>(())
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        set.wait(Some(Duration::from_millis(50)))?;
        set.round(&mut add)?;
    }
    let stats = set.finish(&mut add)?;

    let mut waits: Vec<_> = waits.into_iter().collect();
    waits.sort_by_key(|(_, waits)| std::cmp::Reverse(waits.max));
    println!("{:<16} {:>8} {:>12} {:>12}", "THREAD", "WAITS", "MEAN/µs", "MAX/µs");
    for (name, Waits { count, sum, max }) in waits.into_iter().take(20) {
        let micros = |nanos: i64| nanos as f64 / 1000.0;
        let mean = micros(sum) / count as f64;
        println!("{name:<16} {count:>8} {mean:>12.1} {:>12.1}", micros(max));
    }
    println!("{} lost, {} late", stats.rings.lost, stats.late);
    Ok(())
}
