//! Prints the programs that are executed, in a task of tokio. Needs root.
//!
//! `cargo run --features tokio --example tokio`

use perf_monitor::{AsyncRingSet, Error, RingSet, SampleFlags, Tracefs};
use std::process::ExitCode;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    let tracefs = Tracefs::find_or_detached()?;
    let exec = tracefs.event("sched", "sched_process_exec")?;
    let filename = tracefs.format("sched", "sched_process_exec")?.field("filename").cloned();
    let mut set = RingSet::builder().pages(16).open()?;
    let flags = SampleFlags::TID | SampleFlags::RAW;
    set.add(&exec.builder().sample_period(1).sample(flags).disabled(false))?;
    let mut set = AsyncRingSet::new(set)?;
    loop {
        // Other tasks of this thread run meanwhile.
        let _ = tokio::time::timeout(Duration::from_millis(10), set.wait()).await;
        set.set().round(|record| {
            let data = record.layout.raw_data(record.raw);
            if let Some(name) = data.zip(filename.as_ref()).and_then(|(data, f)| f.text(data)) {
                println!("{}", String::from_utf8_lossy(name));
            }
            Ok::<(), Error>(())
        })?;
    }
}
