//! Measures how long a million samples of 50 000 addresses take: `throughput FILE…`.
//!
//! The addresses are spread over the loaded code of the files. CPU time of this process, cold and warm.

use std::error::Error;
use std::time::Duration;
use trace_symbols::{Location, Module, ObjectFile, Options, Symbolizer, build_id};

const ADDRESSES: usize = 50_000;
const SAMPLES: usize = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::default();
    options.lines = std::env::var_os("NO_LINES").is_none();
    let mut symbols = Symbolizer::new(options.clone());
    let files: Vec<String> = std::env::args().skip(1).collect();
    let mut locations = Vec::new();
    for path in &files {
        let file = ObjectFile::open(path, &options)?;
        let build_id = file.build_id().or_else(|| build_id::of_file(path));
        let module = symbols.spaces_mut().add_module(Module::file(path, build_id));
        let code = file.code();
        let size: u64 = code.iter().map(|range| range.end - range.start).sum();
        let step = (size * files.len() as u64 / ADDRESSES as u64).max(1);
        let positions = code.iter().flat_map(|range| range.clone().step_by(step as usize));
        locations.extend(positions.map(|address| Location { module, address }));
    }
    locations.truncate(ADDRESSES);
    let mut random = 1u64;
    let mut samples = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        locations.get((random >> 33) as usize % locations.len())
    };
    for name in ["cold", "warm", "warm again"] {
        let before = cpu_time();
        let (mut frames, mut unresolved, mut lines) = (0u64, 0u64, 0u64);
        for _ in 0..SAMPLES {
            let Some(location) = samples() else { continue };
            match symbols.resolve(*location).frames {
                Ok(found) => {
                    frames += found.len() as u64;
                    lines += u64::from(found.first().is_some_and(|frame| frame.line > 0));
                }
                Err(_) => unresolved += 1,
            }
        }
        println!(
            "{name}: {:?}; {} addresses, {SAMPLES} samples: {frames} frames, {lines} with a line, \
             {unresolved} unresolved",
            cpu_time().saturating_sub(before),
            locations.len(),
        );
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
    Ok(())
}

/// The CPU time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
