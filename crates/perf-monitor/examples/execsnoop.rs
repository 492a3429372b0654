//! Prints every program that is started, with its arguments. Needs root.
//!
//! `cargo run --example execsnoop [COUNT]`
//!
//! The arguments are on the new stack, of which the sample contains a copy: they are complete, and
//! they are those at the start, whatever the program does to them later.

use perf_monitor::{Error, Record, RingSet, Sample, SampleFlags, Tracefs};
use std::borrow::Cow;
use std::process::ExitCode;
use std::time::Duration;

#[cfg(target_arch = "x86_64")]
const SP: u32 = perf_sys::regs::x86::PERF_REG_X86_SP;
#[cfg(target_arch = "aarch64")]
const SP: u32 = perf_sys::regs::arm64::PERF_REG_ARM64_SP;

/// Bytes of the stack: the arguments are above the pointers to them and to the environment. A record
/// has at most 64 KiB.
const STACK: u32 = 63 << 10;

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
    let mut count = std::env::args().nth(1).map_or(Ok(20), |n| n.parse::<u64>())?;
    let exec = Tracefs::find_or_detached()?.event("sched", "sched_process_exec")?;
    let fields = SampleFlags::TID | SampleFlags::REGS_USER | SampleFlags::STACK_USER;
    let options = exec.builder().sample_period(1).sample(fields);
    let options = options.sample_regs_user(1 << SP).sample_stack_user(STACK);
    let mut set = RingSet::builder().wakeup_watermark(1).open()?;
    set.add(&options)?;
    set.enable()?;
    while count > 0 {
        set.wait(Some(Duration::from_millis(20)))?;
        set.round(|record| {
            if let Record::Sample(sample) = record.layout.decode(record.raw)? {
                let (pid, arguments) = (sample.pid.unwrap_or(0), arguments(&sample));
                println!("{pid:>7} {}", arguments.unwrap_or_default().join(" "));
                count = count.saturating_sub(1);
            }
            Ok::<_, Error>(())
        })?;
    }
    println!("{} lost", set.stats().rings.lost);
    Ok(())
}

/// A new stack has, from the stack pointer on: the number of arguments, and their addresses.
fn arguments<'a>(sample: &Sample<'a>) -> Option<Vec<Cow<'a, str>>> {
    let sp = sample.regs_user?.get(SP)?;
    let stack = sample.stack_user?.copied();
    let word = |n: u64| {
        let at = usize::try_from(n).ok()?.checked_mul(8)?;
        Some(u64::from_ne_bytes(stack.get(at..)?.first_chunk().copied()?))
    };
    let text = |n| {
        let at = usize::try_from(word(n)?.checked_sub(sp)?).ok()?;
        Some(String::from_utf8_lossy(stack.get(at..)?.split(|b| *b == 0).next()?))
    };
    // What is above the copy is left out.
    Some((1..=word(0)?).map_while(text).collect())
}
