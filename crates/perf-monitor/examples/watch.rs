//! Watches a variable with a hardware breakpoint: who writes it?
//!
//! `cargo run --example watch`

use perf_monitor::{BreakpointAccess, Event, Record, SampleFlags, Target};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

static WATCHED: AtomicU64 = AtomicU64::new(0);

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
    let mut sampler = Event::breakpoint((&raw const WATCHED) as u64, 8, BreakpointAccess::Write)
        .builder()
        .exclude_kernel(true)
        .exclude_hv(true)
        .sample_period(1)
        .sample(SampleFlags::IP | SampleFlags::ADDR | SampleFlags::TIME)
        .open_sampler(Target::ThisThread, 8)?;
    sampler.counter().enable()?;
    for i in 0..3 {
        WATCHED.store(i, Ordering::Relaxed);
    }
    sampler.counter().disable()?;
    sampler.drain(|record| {
        if let Record::Sample(s) = record {
            println!(
                "{}: {:#x} was written at {:#x}",
                s.time.unwrap_or_default(),
                s.addr.unwrap_or(0),
                s.ip.unwrap_or(0)
            );
        }
        Ok::<(), perf_monitor::Error>(())
    })?;
    println!("{} writes", sampler.counter().read()?.value);
    Ok(())
}
