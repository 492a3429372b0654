//! Are the events of .NET and of the kernel on one clock?
//!
//! A program writes 1000 events, each directly before a system call. The two times of each pair are
//! compared.

use super::dotnet::STEPS;
use super::recorder::{Dotnet, Recorder};
use std::path::Path;
use task_support::Result;
use trace_timeline::Timestamp;

const EVENTS: usize = 1000;
/// The number of `getppid` on x86-64 and arm64.
const GETPPID: u32 = if cfg!(target_arch = "x86_64") { 110 } else { 173 };
/// Maximum median skew in nanoseconds. On one clock, the skew is the time from the stamp of the
/// event to the entry into the kernel.
const LARGEST_MEDIAN: i64 = 50_000;

pub(super) fn check(targets: &Path, runtime: &str) -> Result<()> {
    let mut recorder = Recorder::start()?;
    recorder.watch_calls(GETPPID)?;
    let (mut program, (stdin, stdout)) = Dotnet::start(targets, runtime, "clock")?;
    program.collect(&mut recorder, &[STEPS])?;
    program.output(&mut recorder, stdout)?;
    drop(stdin);
    let (trace, _) = program.finish(&mut recorder)?;
    let (recorded, _) = recorder.finish()?;

    let mut reader = nettrace::Reader::new(&trace[..]);
    let mut events = Vec::new();
    while let Some(event) = reader.next_event()? {
        if event.name() == "Tick" {
            events.push((event.time().nanos(), i64::try_from(event.tid())?));
        }
    }
    let Some((first, thread)) = events.first().copied() else { return Err("no events".into()) };
    // The shell that starts the program calls it too.
    let is_after = |(at, caller): &&(Timestamp, i64)| *caller == thread && at.nanos() >= first;
    let calls = recorded.calls.iter().filter(is_after);
    let calls: Vec<i64> = calls.map(|(at, _)| at.nanos()).collect();
    if (events.len(), calls.len()) != (EVENTS, EVENTS) {
        let (events, calls) = (events.len(), calls.len());
        return Err(format!("{events} events, {calls} system calls: not {EVENTS}").into());
    }
    // Each event is before its call, and the next event after it.
    let skews = events.iter().zip(&calls).map(|((event, _), call)| call - event);
    let mut skews: Vec<i64> = skews.collect();
    let late = events.iter().skip(1).zip(&calls).filter(|((event, _), call)| event < call).count();
    skews.sort_unstable();
    let (least, median, most) = (skews[0], skews[EVENTS / 2], skews[EVENTS - 1]);
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    eprintln!(
        ".NET {runtime}: {EVENTS} events: skew {least} ns at least, median {median} ns, largest \
         {most} ns; load {load}"
    );
    if !(-LARGEST_MEDIAN..=LARGEST_MEDIAN).contains(&median) {
        return Err(format!("the median skew is above {LARGEST_MEDIAN} ns").into());
    }
    if least < 0 || late > 0 {
        return Err(format!("{late} events are out of order, the least skew is {least} ns").into());
    }
    Ok(())
}
