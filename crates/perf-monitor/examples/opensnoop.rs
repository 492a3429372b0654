//! Prints every file that is opened, by kprobes with arguments. Needs root.
//!
//! `cargo run --example opensnoop [COUNT]`

use perf_monitor::probe::{Fetch, FetchType, Probe};
use perf_monitor::{Error, FieldFormat, RingSet, SampleFlags};
use std::collections::HashMap;
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
    let mut count = std::env::args().nth(1).map_or(Ok(20), |n| n.parse::<u64>())?;
    // Dropped after the rings, which are declared later.
    let open = Probe::kprobe("do_sys_openat2")
        .arg("path", Fetch::arg(2).user_string())
        .arg("comm", Fetch::comm())
        .create()?;
    let opened = Probe::kretprobe("do_sys_openat2")
        .arg("fd", Fetch::return_value().typed(FetchType::S32))
        .create()?;
    let field = |probe: &Probe, name| probe.format().field(name).cloned().ok_or("no such field");
    let (path, comm, fd) = (field(&open, "path")?, field(&open, "comm")?, field(&opened, "fd")?);

    let mut set = RingSet::builder().wakeup_watermark(4096).open()?;
    let fields = SampleFlags::TID | SampleFlags::RAW;
    let open = set.add(&open.builder().sample_period(1).sample(fields))?;
    set.add(&opened.builder().sample_period(1).sample(fields))?;
    set.enable()?;

    // What each thread is opening.
    let mut opening = HashMap::new();
    while count > 0 {
        set.wait(Some(Duration::from_millis(50)))?;
        set.round(|record| {
            let (Some((pid, tid)), Some(raw)) =
                (record.layout.pid_tid(record.raw), record.layout.raw_data(record.raw))
            else {
                return Ok(());
            };
            let text = |field: &FieldFormat| field.value(raw).map(|v| v.to_string());
            if record.event == open {
                opening.insert(tid, (text(&comm), text(&path)));
            } else if let Some((Some(comm), Some(path))) = opening.remove(&tid) {
                println!("{pid:>7} {comm:<16} {:>4} {path}", fd.i64(raw).unwrap_or(-1));
                count = count.saturating_sub(1);
            }
            Ok::<_, Error>(())
        })?;
    }
    println!("{} lost", set.stats().rings.lost);
    Ok(())
}
