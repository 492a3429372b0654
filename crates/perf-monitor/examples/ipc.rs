//! Prints the instructions per cycle of processes, from a group of hardware counters.
//!
//! `cargo run --example ipc [SECONDS [PID...]]`: of these processes, or of all.

use perf_monitor::{Error, Event, Group, Hardware, Target};
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
    if pids.is_empty() {
        for pid in perf_monitor::processes() {
            match open(pid) {
                Ok(group) => groups.push((pid, group)),
                // It has ended, or is another user's.
                Err(error) if error.errno() != Some(perf_monitor::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    } else {
        for pid in pids {
            groups.push((pid, open(pid)?));
        }
    }
    std::thread::sleep(Duration::from_secs(seconds));
    println!("{:>7} {:>15} {:>15} {:>5} COMMAND", "PID", "CYCLES", "INSTRUCTIONS", "IPC");
    for (pid, group) in groups {
        // Both were counted at the same time, so that the ratio needs no scaling.
        let [cycles, instructions] = group.read()?.counts[..] else { continue };
        let (cycles, instructions) = (cycles.value, instructions.value);
        if cycles > 0 {
            let ipc = instructions as f64 / cycles as f64;
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            println!("{pid:>7} {cycles:>15} {instructions:>15} {ipc:>5.2} {}", name.trim());
        }
    }
    Ok(())
}

fn open(pid: u32) -> Result<Group, Error> {
    let options = |event| Event::hardware(event).builder().inherit(true);
    let target = Target::Thread(pid);
    let mut group = Group::open(&options(Hardware::CpuCycles), target)?;
    group.add(&options(Hardware::Instructions))?;
    group.enable()?;
    Ok(group)
}
