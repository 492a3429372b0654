//! Records a trace of a process for a number of seconds.
//!
//! `cargo run --release -p diag-ipc --example record -- PID SECONDS FILE [PROVIDER…]`

use diag_ipc::{Client, Provider, TracingConfig};
use std::error::Error;
use std::fs::File;
use std::time::Duration;

#[cfg(target_os = "linux")]
fn client(process: &str) -> Result<Client, Box<dyn Error>> {
    Ok(Client::for_process(process.parse()?)?)
}

#[cfg(not(target_os = "linux"))]
fn client(process: &str) -> Result<Client, Box<dyn Error>> {
    Ok(Client::new(diag_ipc::pipe_address(process.parse()?)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [process, seconds, file, providers @ ..] = &args[..] else {
        return Err("usage: record PID SECONDS FILE [PROVIDER…]".into());
    };
    let mut config = TracingConfig::new([]);
    for provider in providers {
        config.providers.push(provider.parse()?);
    }
    if providers.is_empty() {
        config.providers.push(Provider::new("Microsoft-DotNETCore-SampleProfiler"));
    }
    let seconds = Duration::from_secs(seconds.parse()?);

    let mut file = File::create(file)?;
    let session = client(process)?.collect_tracing(&config)?;
    println!("{} started session {:#x}", session.command(), session.id());
    let end = session.record_for(seconds, &mut file);
    println!("{} bytes, {end}", end.bytes);
    Ok(())
}
