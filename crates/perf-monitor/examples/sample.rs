//! Samples where a process spends its time: addresses by how often they were seen.
//!
//! `cargo run --example sample -- PID [SECONDS]`

use perf_monitor::{Event, Record, SampleFlags, Software, Target};
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

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let pid = args.next().ok_or("usage: sample PID [SECONDS]")?.parse()?;
    let seconds = args.next().map_or(Ok(5), |s| s.parse())?;
    let mut sampler = Event::software(Software::CpuClock)
        .builder()
        .sample_freq(999)
        .sample(SampleFlags::IP | SampleFlags::TID)
        .open_sampler(Target::Thread(pid), 64)?;
    sampler.counter().enable()?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut addresses: HashMap<u64, u64> = HashMap::new();
    loop {
        let ready = sampler.wait(Some(Duration::from_millis(100)))?;
        sampler.drain(|record| {
            if let Record::Sample(sample) = record {
                *addresses.entry(sample.ip.unwrap_or(0)).or_default() += 1;
            }
        })?;
        if ready.hung_up || Instant::now() > end {
            break; // what was left was read above
        }
    }
    let mut sorted: Vec<_> = addresses.into_iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (address, count) in sorted.iter().take(20) {
        println!("{count:>6}  {address:#x}");
    }
    println!("{} samples, {} lost", sampler.stats().samples, sampler.stats().lost);
    Ok(())
}
