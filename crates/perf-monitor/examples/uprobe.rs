//! Prints the calls of a function of a program, Rust, Go or C, with its first arguments. Needs root.
//!
//! `cargo run --example uprobe FILE FUNCTION [ARGUMENTS [COUNT]]`, such as
//! `uprobe ./server main.handle 2` or `uprobe ./server server::handle 2`

use perf_monitor::probe::{ElfFile, Fetch, Probe};
use perf_monitor::{Error, FieldFormat, RingSet, SampleFlags};
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let file = PathBuf::from(args.next().ok_or("usage: uprobe FILE FUNCTION [ARGUMENTS [COUNT]]")?);
    let function = args.next().ok_or("which function?")?;
    let arguments = args.next().map_or(Ok(3), |n| n.parse::<u8>())?;
    let mut count = args.next().map_or(Ok(20), |n| n.parse::<u64>())?;

    // Go passes arguments in other registers than C and Rust.
    let is_go = ElfFile::new(File::open(&file)?, &file)?.is_go();
    let argument = if is_go { Fetch::go_arg } else { Fetch::arg };
    let mut builder = Probe::uprobe(&file, function.as_str());
    for n in 1..=arguments {
        builder = builder.arg(format!("arg{n}"), argument(n));
    }
    let probe = builder.create()?;

    let mut set = RingSet::builder().wakeup_watermark(1).open()?;
    let fields = SampleFlags::TID | SampleFlags::RAW;
    set.add(&probe.builder().sample_period(1).sample(fields))?;
    set.enable()?;
    eprintln!("probing {function} of {}", file.display());
    let is_argument = |field: &&FieldFormat| field.name().starts_with("arg");
    while count > 0 {
        set.wait(Some(Duration::from_millis(20)))?;
        set.round(|record| {
            let Some(raw) = record.layout.raw_data(record.raw) else { return Ok(()) };
            print!("{} {function}", record.layout.pid_tid(record.raw).map_or(0, |(_, tid)| tid));
            for field in probe.format().fields().iter().filter(is_argument) {
                print!(" {:#x}", field.u64(raw).unwrap_or(0));
            }
            println!();
            count = count.saturating_sub(1);
            Ok::<_, Error>(())
        })?;
    }
    println!("{} lost", set.stats().rings.lost);
    Ok(())
}
