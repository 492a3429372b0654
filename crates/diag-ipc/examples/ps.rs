//! Lists the .NET processes that can be asked.
//!
//! `cargo run -p diag-ipc --example ps`

#[cfg(target_os = "linux")]
fn main() -> Result<(), diag_ipc::Error> {
    for process in diag_ipc::discovery::processes()?.processes {
        let version = match process.client().process_info() {
            Ok(info) => info.clr_version.unwrap_or_default(),
            Err(e) => e.to_string(),
        };
        println!("{:>8}  {:<12}  {}", process.pid, version, process.command_line().join(" "));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {}
