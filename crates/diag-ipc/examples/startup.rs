//! Starts a program and traces it from startup to exit.
//!
//! `cargo run -p diag-ipc --example startup -- FILE COMMAND [ARGUMENT…]`

#[cfg(unix)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use diag_ipc::reverse::Server;
    use std::time::Duration;

    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, program, arguments @ ..] = &args[..] else {
        return Err("usage: startup FILE COMMAND [ARGUMENT…]".into());
    };
    let mut file = std::fs::File::create(file)?;
    let port = std::env::temp_dir().join(format!("startup-{}", std::process::id()));
    let server = Server::bind(&port)?;
    let mut child = std::process::Command::new(program)
        .args(arguments)
        .env("DOTNET_DiagnosticPorts", server.path())
        .spawn()?;

    // Without a session, its runtime would stay suspended.
    let session = begin(&server).inspect_err(|_| drop(child.kill()))?;
    let (end, status) = std::thread::scope(|scope| {
        // The .NET programs that it starts have the variable, too.
        scope.spawn(|| {
            while let Ok(other) = server.accept(Duration::MAX) {
                let _ = other.client().resume_runtime(); // it may have ended
            }
        });
        let end = session.record(&mut file);
        let status = child.wait();
        server.shutdown(); // ends the thread
        (end, status)
    });
    println!("{} bytes, {end}; {}", end.bytes, status?);
    Ok(())
}

/// Starts a session with the next runtime that connects, and resumes it.
#[cfg(unix)]
fn begin(
    server: &diag_ipc::reverse::Server,
) -> Result<diag_ipc::Session, Box<dyn std::error::Error>> {
    use diag_ipc::{ProviderPreset, TracingConfig};

    // The runtime is suspended before the first line of the program.
    let client = server.accept(std::time::Duration::from_secs(30))?.client();
    let preset = ProviderPreset::find("cpu-sampling").ok_or("no such preset")?;
    let session = client.collect_tracing(&TracingConfig::new(preset.providers()))?;
    client.resume_runtime()?;
    Ok(session)
}

#[cfg(not(unix))]
fn main() {}
