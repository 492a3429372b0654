//! Events of the program itself in the stream of the kernel's: what a request costs. Needs root.
//!
//! `cargo run --example external`

use perf_monitor::{EventMonitor, Registration};
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

/// A sample of the stream.
enum Seen {
    SystemCall(u64),
    Begin(&'static str),
    End,
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let monitor = EventMonitor::builder().thread(0).build()?;
    monitor.register(Registration::tracepoint("raw_syscalls:sys_enter").decoder_of(|format| {
        let id = format.and_then(|format| format.field("id")).cloned();
        Ok(move |sample: &perf_monitor::SampleView<'_>| {
            Ok(id.as_ref().and_then(|id| sample.u64(id)).map(Seen::SystemCall))
        })
    }))?;
    let request = monitor.register(Registration::external("request"))?;

    std::thread::scope(|scope| {
        // Prints in time order, whatever comes first.
        let printed = scope.spawn(|| {
            let mut now = None;
            monitor.run(|batch| {
                for sample in batch.drain(..) {
                    match sample.value {
                        Ok(Seen::Begin(name)) => now = Some(name),
                        Ok(Seen::End) => now = None,
                        Ok(Seen::SystemCall(id)) => {
                            if let Some(name) = now {
                                println!("{name}: system call {id}");
                            }
                        }
                        Err(error) => eprintln!("{error}"),
                    }
                }
            })
        });
        while !monitor.is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
        for (name, work) in [("open", open as fn()), ("sleep", sleep)] {
            monitor.enqueue(request, monitor.now(), Seen::Begin(name))?;
            work();
            monitor.enqueue(request, monitor.now(), Seen::End)?;
        }
        monitor.stop(true);
        printed.join().map_err(|_| "the printing thread panicked")??;
        Ok(())
    })
}

fn open() {
    let _ = std::fs::File::open("/no/such/file");
}

fn sleep() {
    std::thread::sleep(Duration::from_millis(1));
}
