//! Records a capture of the workload: how fixtures are made.
//!
//! `capture RUNTIME MODE MILLISECONDS FILE [rundown=KEYWORDS] PROVIDER…` with RUNTIME 3.1, 9 or 10
//! and providers as `NAME[:KEYWORDS[:LEVEL[:ARGUMENTS]]]`; keywords are hexadecimal. Without
//! `rundown` there is none. Needs the variable `TRISCOPE_DOTNET_TARGETS`: the directory that `cargo xtask runtimes`
//! prints.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a tool of the tests")]

use std::time::Duration;

use diag_ipc::{Client, Provider, Rundown, TracingConfig};
use testkit::dotnet::{Runtime, Target};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [runtime, mode, millis, file, providers @ ..] = &args[..] else {
        panic!("usage: record RUNTIME MODE MILLISECONDS FILE [rundown=KEYWORDS] PROVIDER…");
    };
    let runtime = match runtime.as_str() {
        "3.1" => Runtime::Core31,
        "9" => Runtime::Net9,
        "10" => Runtime::Net10,
        other => panic!("{other} is not a runtime: 3.1, 9, 10"),
    };
    let target = Target::of(runtime).mode(mode).start();
    let rundown = providers.iter().find_map(|p| p.strip_prefix("rundown="));
    let rundown = rundown.map_or(Rundown::None, |keywords| {
        Rundown::Keywords(u64::from_str_radix(keywords, 16).unwrap())
    });
    let providers = providers.iter().filter(|p| !p.starts_with("rundown="));
    let providers = providers.map(|p| p.parse::<Provider>().unwrap());
    let config = TracingConfig::new(providers).rundown(rundown);
    let mut session = Client::new(target.socket()).collect_tracing(&config).unwrap();
    let stop_handle = session.stop_handle();
    let duration = Duration::from_millis(millis.parse().unwrap());
    let timer = std::thread::spawn(move || {
        std::thread::sleep(duration);
        stop_handle.stop().unwrap();
    });
    let bytes = std::io::copy(&mut session, &mut std::fs::File::create(file).unwrap()).unwrap();
    timer.join().unwrap();
    println!("{file}: {bytes} bytes");
}
