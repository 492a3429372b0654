//! Samples where a process spends its time, on all of its threads: addresses by how often they were seen.
//!
//! `cargo run --example sample -- PID [SECONDS]`

use perf_monitor::{
    DecoderError, Event, EventMonitor, MonitorSample, Overflow, Registration, SampleFlags,
    Software, threads,
};
use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The message names the cause and the remedy.
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), DecoderError> {
    let mut args = std::env::args().skip(1);
    let pid = args.next().ok_or("usage: sample PID [SECONDS]")?.parse()?;
    let seconds = args.next().map_or(Ok(5), |s| s.parse())?;
    // All threads of the process, and with `inherit` those that start later. A `Target::Thread` with its id
    // is the main thread only.
    let monitor = EventMonitor::builder().pid(pid).build()?;
    let clock = Event::software(Software::CpuClock)
        .builder()
        .sample_freq(999)
        .sample(SampleFlags::IP | SampleFlags::TID)
        .inherit(true);
    let event = monitor.register(
        Registration::event(clock)
            .decoder(|sample| Ok(sample.sample()?.and_then(|sample| sample.ip))),
    )?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut addresses: HashMap<u64, u64> = HashMap::new();
    let mut count = |batch: Vec<MonitorSample<u64>>| -> Result<(), DecoderError> {
        for sample in batch {
            *addresses.entry(sample.value?).or_default() += 1;
        }
        Ok(())
    };
    let stream = monitor.spawn(16, Overflow::Block)?;
    eprintln!("sampling process {pid} for {seconds} s, or until it ends");
    while let Some(batch) = stream.next_batch_within(Duration::from_millis(100)) {
        count(batch)?;
        if Instant::now() > end || threads(pid).is_empty() {
            break;
        }
    }
    monitor.stop(false);
    while let Some(batch) = stream.next_batch() {
        count(batch)?; // what was left in the rings
    }
    stream.join()?;
    let mut sorted: Vec<_> = addresses.into_iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (address, count) in sorted.iter().take(20) {
        println!("{count:>6}  {address:#x}");
    }
    let lost = monitor.stats().set.rings.lost;
    println!("{} samples, {lost} lost", monitor.counts(event)?.delivered);
    Ok(())
}
