//! Prints the fields of a tracepoint live, on CPU 0. Needs root and a mounted tracefs.
//!
//! `cargo run --example tracepoint -- [SYSTEM NAME [COUNT]]`

use perf_monitor::{Event, SampleFlags, Target, Tracefs};
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

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let system = args.next().unwrap_or_else(|| "sched".into());
    let name = args.next().unwrap_or_else(|| "sched_switch".into());
    let mut count = args.next().map_or(Ok(20), |n| n.parse::<u64>())?;

    let format = Tracefs::find()?.format(&system, &name)?;
    let mut sampler = Event::tracepoint(&system, &name)?
        .builder()
        .sample_period(1)
        .wakeup_events(1)
        .sample(SampleFlags::TIME | SampleFlags::RAW)
        .open_sampler(Target::Cpu(0), 128)?;
    sampler.counter().enable()?;
    while count > 0 {
        sampler.wait(None)?;
        // Borrowed, not copied: the fields are read where the record is.
        let (mut batch, decoder) = sampler.batch();
        while let Some(record) = batch.next_record() {
            let Some(layout) = decoder.layout(record) else { continue };
            let (Some(at), Some(raw)) = (layout.time(record), layout.raw_data(record)) else {
                continue;
            };
            print!("{at} {name}");
            for field in format.fields() {
                if let Some(value) = field.value(raw) {
                    print!(" {}={value}", field.name());
                }
            }
            println!();
            count = count.saturating_sub(1);
        }
    }
    println!("{} lost", sampler.stats().lost);
    Ok(())
}
