//! Counts instructions around a closure, or what this machine has instead of hardware counters.
//!
//! `cargo run --example count`

use perf_monitor::{Event, Group, Hardware, Software, Target};
use std::process::ExitCode;

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

fn run() -> Result<(), perf_monitor::Error> {
    // User space alone is what an ordinary user may count.
    let user = |event: Event| event.builder().exclude_kernel(true).exclude_hv(true);
    let mut group = Group::open(&user(Event::software(Software::TaskClock)), Target::ThisThread)?;
    group.add(&user(Event::software(Software::PageFaults)))?;
    for event in [Hardware::CpuCycles, Hardware::Instructions] {
        if let Err(error) = group.add(&user(Event::hardware(event))) {
            eprintln!("{error}");
        }
    }
    let (sum, counts) =
        group.measure(|| (0..10_000_000u64).map(std::hint::black_box).sum::<u64>())?;
    println!("the sum is {sum}");
    for (counter, count) in group.counters().iter().zip(&counts) {
        match count.scaled() {
            Some(scaled) if scaled.is_estimate => {
                println!("{:>12}  {} (estimated)", scaled.value, counter.event());
            }
            Some(scaled) => println!("{:>12}  {}", scaled.value, counter.event()),
            None => println!("{:>12}  {}", "not counted", counter.event()),
        }
    }
    Ok(())
}
