//! Starts a program and traces it from startup to exit.
//!
//! `cargo run -p diag-ipc --example startup -- FILE COMMAND [ARGUMENT…]`

#[cfg(unix)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use diag_ipc::reverse::Server;
    use diag_ipc::{ProviderPreset, TracingConfig};
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

    // The runtime is suspended before the first line of the program.
    let runtime = server.accept(Duration::from_secs(30))?;
    let preset = ProviderPreset::find("cpu-sampling").ok_or("no such preset")?;
    let session = runtime.client().collect_tracing(&TracingConfig::new(preset.providers()))?;
    runtime.client().resume_runtime()?;

    let end = session.record(&mut file);
    println!("{} bytes, {end}; {}", end.bytes, child.wait()?);
    Ok(())
}

#[cfg(not(unix))]
fn main() {}
