//! The memory of a profile of an hour: 999 samples per second on each of some CPUs go through the source
//! and the profile that `triscope profile` uses.
//!
//! `cargo run --release --package triscope-benches --example profile_hour [CPUS] [STACKS]`
#![forbid(unsafe_code)]

use perf_data::{Entry, Features, RecordedEvent, Session, perf_event_attr};
use perf_monitor::RawRecord;
use perf_sys::*;
use std::error::Error;
use trace_export::profile::Samples;
use trace_timeline::Tables;
use trace_timeline::sources::perf::PerfSource;

const SECONDS: u64 = 3600;
const HERTZ: u64 = 999;
/// Frames of a stack.
const DEPTH: u64 = 30;
const THREADS: u64 = 100;
const ID: u64 = 9;
/// The limit on the largest resident set, in kB.
const LIMIT: u64 = 200 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let cpus = args.next().transpose()?.unwrap_or(2);
    let stacks = args.next().transpose()?.unwrap_or(50_000);
    let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK);
    attr.sample_type = PERF_SAMPLE_IDENTIFIER
        | PERF_SAMPLE_TID
        | PERF_SAMPLE_TIME
        | PERF_SAMPLE_CPU
        | PERF_SAMPLE_PERIOD
        | PERF_SAMPLE_CALLCHAIN;
    attr.sample_period = HERTZ;
    attr.set_freq(true);
    attr.set_sample_id_all(true);
    let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![ID] };
    let session = Session::new([event], Features::default())?;
    let mut source = PerfSource::with_offset(&session, 0)?;
    let (mut tables, mut samples, mut events) = (Tables::new(), Samples::new(), Vec::new());
    let (mut bytes, mut random) = (Vec::new(), 1u64);
    for second in 0..SECONDS {
        for tick in 0..HERTZ * cpus {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let stack = (random >> 33) % stacks;
            sample(
                &mut bytes,
                // A record at 0 is one without a time.
                (second + 1) * 1_000_000_000 + tick * 1_000_000 / cpus,
                stack,
                tick % cpus,
            );
            let (raw, _) = RawRecord::split_first(&bytes, 0).ok_or("a malformed record")?;
            source.push(&Entry::new(raw, &session), &mut tables, &mut events);
            events.drain(..).for_each(|event| samples.push(&event, &tables));
        }
        if [59, SECONDS - 1].contains(&second) {
            println!("after {} s: {} kB resident", second + 1, memory("VmRSS:")?);
        }
    }
    let dropped = tables.dropped();
    let profiles = samples.into_profiles(&tables);
    let count: u64 = profiles.iter().map(|(_, profile)| profile.count()).sum();
    let peak = memory("VmHWM:")?;
    println!(
        "{count} samples of {stacks} stacks: at most {peak} kB resident; dropped: {dropped:?}"
    );
    if count != SECONDS * HERTZ * cpus {
        return Err("samples are missing".into());
    }
    if peak > LIMIT { Err("more than 200 MiB".into()) } else { Ok(()) }
}

/// Writes the record of a sample.
fn sample(bytes: &mut Vec<u8>, time: u64, stack: u64, cpu: u64) {
    bytes.clear();
    let tid = 1000 + stack % THREADS;
    // Stacks of a thread have their outer half in common.
    let frames = (0..DEPTH).map(|depth| {
        let of = if depth < DEPTH / 2 { stack } else { stack % THREADS };
        0x40_0000 + (of << 8) + depth
    });
    let head = [ID, 1000 | tid << 32, time, cpu, 1_001_001, DEPTH + 1, PERF_CONTEXT_USER];
    let size = 8 * (1 + head.len() as u64 + DEPTH);
    let misc = u64::from(PERF_RECORD_MISC_USER) << 32;
    let header = u64::from(PERF_RECORD_SAMPLE) | misc | size << 48;
    let words = [header].into_iter().chain(head).chain(frames);
    words.for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
}

/// A field of `/proc/self/status`, in kB.
fn memory(field: &str) -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
