//! Prints the instructions per cycle of processes, from a group of hardware counters.
//!
//! `cargo run --example ipc [SECONDS [PID...]]`: of these processes, or of all.

use perf_monitor::{Errno, Error, Event, Group, Hardware, Target};
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
    let seconds = args.next().map_or(Ok(1), |n| n.parse())?;
    let pids = args.map(|pid| pid.parse()).collect::<Result<Vec<u32>, _>>()?;
    let mut groups = Vec::new();
    let mut refused = Vec::new();
    let is_each_needed = !pids.is_empty();
    for pid in if is_each_needed { pids } else { perf_monitor::processes() } {
        match open(pid) {
            Ok(threads) => groups.push((pid, threads)),
            // It is another user's, for example.
            Err(error) if is_each_needed => return Err(error.into()),
            Err(error) => refused.push(error),
        }
    }
    let left_out = refused.len();
    if let Some(error) = refused.into_iter().next() {
        if groups.is_empty() {
            return Err(error.into());
        }
        eprintln!("{left_out} processes are left out: {error}");
    }
    std::thread::sleep(Duration::from_secs(seconds));
    println!("{:>7} {:>15} {:>15} {:>5} COMMAND", "PID", "CYCLES", "INSTRUCTIONS", "IPC");
    for (pid, threads) in groups {
        let (mut cycles, mut instructions) = (0, 0);
        for group in threads {
            // Both were counted at the same time, so that the ratio needs no scaling.
            let [group_cycles, group_instructions] = group.read()?.counts[..] else { continue };
            cycles += group_cycles.value;
            instructions += group_instructions.value;
        }
        if cycles > 0 {
            let ipc = instructions as f64 / cycles as f64;
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            println!("{pid:>7} {cycles:>15} {instructions:>15} {ipc:>5.2} {}", name.trim());
        }
    }
    Ok(())
}

/// A group for each thread of a process, and for those that they start.
fn open(pid: u32) -> Result<Vec<Group>, Error> {
    let threads = perf_monitor::threads(pid);
    // Without threads, it does not exist: the kernel has the error.
    let threads = if threads.is_empty() { vec![pid] } else { threads };
    let mut groups = Vec::new();
    let mut ended = None;
    for thread in threads {
        match open_thread(thread) {
            Ok(group) => groups.push(group),
            Err(error) if error.errno() == Some(Errno::SRCH) => ended = Some(error),
            Err(error) => return Err(error),
        }
    }
    ended.filter(|_| groups.is_empty()).map_or(Ok(groups), Err)
}

fn open_thread(thread: u32) -> Result<Group, Error> {
    let options = |event| Event::hardware(event).builder().inherit(true);
    let mut group = Group::open(&options(Hardware::CpuCycles), Target::Thread(thread))?;
    group.add(&options(Hardware::Instructions))?;
    group.enable()?;
    Ok(group)
}
