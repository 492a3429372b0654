//! Reads a flood of tracepoints by perf-monitor and by its peers, all in one run, and prints the CPU
//! time of the reader for each record, how many it read and how many it lost.
//!
//! A child process on CPU 1 calls `getppid` as fast as it can; `raw_syscalls:sys_enter` writes
//! 112 bytes for each call into a ring of 2 MiB; the reader is on CPU 0. Needs root and tracefs:
//! `cargo xtask bench-perf` builds and runs it with both.
#![forbid(unsafe_code)]

mod busy;
mod flood;
mod peers;
mod perf_record;
mod readers;
mod table;

use busy::Busy;
use flood::{Flood, Length};
use readers::{Depth, First, Realtime};
use std::path::PathBuf;
use std::process::ExitCode;
use table::Row;

type Error = Box<dyn std::error::Error>;

const USAGE: &str = "\
usage: perf-peers [--calls N | --seconds N [--rate N]] [--rounds N] [--only WORD] [--realtime] [--busy N]
                  [--triscope FILE]

  --calls N     system calls of the flood in each round (1000000)
  --seconds N   length of the flood in each round, instead of a number of calls
  --rate N      limit of calls per second
  --rounds N    rounds; each runs every reader once (3)
  --only WORD   only readers whose name contains WORD
  --realtime    reader and flood come before all other work of the machine (SCHED_FIFO)
  --busy N      N other processes compute all the time
  --triscope FILE
                also `triscope perf record` of this program";

/// Pages of the ring: 2 MiB, as `perf record -m 512`.
const PAGES: usize = 512;

/// What a reader got of one flood.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// Samples that were read.
    read: u64,
    /// Samples that were lost, as reported to the reader.
    lost: u64,
    /// CPU time of the reader.
    cpu_nanos: u64,
    /// Whatever was looked at, so that looking at it is not optimized away.
    sum: u64,
}

type Reader = Box<dyn Fn(&mut Flood) -> Result<Outcome, Error>>;

/// The readers that are compared.
fn compared(triscope: Option<PathBuf>) -> Vec<(&'static str, Reader)> {
    let ours = |depth| -> Reader { Box::new(move |f| readers::perf_monitor(f, PAGES, depth)) };
    let mut readers: Vec<(&'static str, Reader)> = vec![
        ("perf-monitor, raw", ours(Depth::Raw)),
        ("perf-monitor, five fields", ours(Depth::FiveFields)),
        ("perf-monitor, whole `Sample`", ours(Depth::Sample)),
        ("perf-monitor, raw into a file", ours(Depth::File)),
        ("`RingSet`, ordered, five fields", Box::new(|f| readers::ring_set(f, PAGES))),
        ("`EventMonitor`, ordered, typed", Box::new(|f| readers::event_monitor(f, PAGES))),
        ("perf-event2, raw", Box::new(|f| peers::perf_event2(f, false))),
        ("perf-event2, parsed", Box::new(|f| peers::perf_event2(f, true))),
        ("perf-event-open, raw", Box::new(|f| peers::perf_event_open(f, false))),
        ("perf-event-open, parsed", Box::new(|f| peers::perf_event_open(f, true))),
        ("one_collect, one field", Box::new(peers::one_collect)),
        ("`perf record`, into a file", Box::new(perf_record::run)),
    ];
    if let Some(program) = triscope {
        let run: Reader = Box::new(move |flood| perf_record::triscope(&program, flood));
        readers.push(("`triscope perf record`, into a file", run));
    }
    readers
}

/// perf-monitor with five fields: what it takes to lose nothing on a machine that has other work.
fn circumstances() -> Vec<(&'static str, Reader)> {
    let ours = |pages, first: First| -> Reader {
        Box::new(move |f| {
            let _first = Realtime::begin(first, f)?;
            readers::perf_monitor(f, pages, Depth::FiveFields)
        })
    };
    vec![
        ("2 MiB", ours(PAGES, First::Nobody)),
        ("2 MiB, the reader with SCHED_FIFO", ours(PAGES, First::Reader)),
        ("2 MiB, reader and flood with SCHED_FIFO", ours(PAGES, First::Both)),
        ("32 MiB", ours(16 * PAGES, First::Nobody)),
    ]
}

struct Options {
    length: Length,
    rounds: usize,
    only: String,
    first: First,
    busy: usize,
    triscope: Option<PathBuf>,
}

fn options(args: &[String]) -> Result<Options, Error> {
    let mut options = Options {
        length: Length::Calls(1_000_000),
        rounds: 3,
        only: String::new(),
        first: First::Nobody,
        busy: 0,
        triscope: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(USAGE);
        match arg.as_str() {
            "--calls" => options.length = Length::Calls(value()?.parse()?),
            "--seconds" => options.length = Length::Seconds(value()?.parse()?, 0),
            "--rate" => {
                let rate = value()?.parse()?;
                let Length::Seconds(seconds, _) = options.length else { return Err(USAGE.into()) };
                options.length = Length::Seconds(seconds, rate);
            }
            "--rounds" => options.rounds = value()?.parse()?,
            "--only" => options.only = value()?.clone(),
            "--busy" => options.busy = value()?.parse()?,
            "--triscope" => options.triscope = Some(value()?.into()),
            "--realtime" => options.first = First::Both,
            _ => return Err(USAGE.into()),
        }
    }
    if matches!(options.length, Length::Calls(0) | Length::Seconds(0, _)) || options.rounds == 0 {
        return Err(USAGE.into());
    }
    Ok(options)
}

/// Every reader once in each round, so that a machine whose speed drifts treats them alike.
fn measure(readers: Vec<(&'static str, Reader)>, options: &Options) -> Result<Vec<Row>, Error> {
    let mut readers: Vec<(Row, Reader)> = readers
        .into_iter()
        .filter(|(name, _)| name.contains(&options.only))
        .map(|(name, reader)| (Row::new(name), reader))
        .collect();
    for _ in 0..options.rounds {
        for (row, reader) in &mut readers {
            let mut flood = Flood::prepare(options.length)?;
            let outcome = {
                let _first = Realtime::begin(options.first, &flood)?;
                reader(&mut flood)
            };
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(error) => {
                    eprintln!("\n==== SKIPPED: {}\n==== because: {error}\n", row.name);
                    row.failed = true;
                    continue;
                }
            };
            std::hint::black_box(outcome.sum);
            row.add(outcome, flood.finish()?);
        }
    }
    Ok(readers.into_iter().map(|(row, _)| row).collect())
}

/// How fast the flood is when nobody looks.
fn alone() -> Result<flood::Speed, Error> {
    let mut flood = Flood::prepare(Length::Calls(1_000_000))?;
    flood.go()?;
    flood.finish()
}

fn run(args: &[String]) -> Result<bool, Error> {
    if let [command, length] = args
        && command == flood::COMMAND
    {
        flood::main(length.parse()?)?;
        return Ok(true);
    }
    let options = options(args)?;
    if std::thread::available_parallelism()?.get() < 2 {
        return Err("two CPUs are needed: one for the flood, one for the reader".into());
    }
    readers::pin(readers::CPU)?;
    let bare = alone()?;
    println!(
        "{} a round; a call that is not traced takes {:.0} ns; Linux {}; load {}\n",
        match options.length {
            Length::Calls(calls) => format!("{calls} calls"),
            Length::Seconds(seconds, 0) => format!("{seconds} s"),
            Length::Seconds(seconds, rate) => format!("{seconds} s at {rate} calls/s"),
        },
        bare.cpu_nanos,
        rustix::system::uname().release().to_string_lossy(),
        std::fs::read_to_string("/proc/loadavg")?.split(' ').next().unwrap_or_default()
    );
    let _busy = Busy::start(options.busy)?;
    let rows = measure(compared(options.triscope.clone()), &options)?;
    table::print("reader", &rows);
    if let Some(start) = perf_record::start_and_end() {
        println!(
            "\n`perf record` without its start and end, which take {:.0} ms of CPU.",
            start as f64 / 1e6
        );
    }
    if matches!(options.length, Length::Seconds(..)) || !options.only.is_empty() {
        return Ok(rows.iter().all(|row| !row.failed));
    }
    println!("\nLosses by ring and scheduling (perf-monitor, five fields):\n");
    let more = measure(
        circumstances(),
        &Options { only: String::new(), first: First::Nobody, ..options },
    )?;
    table::print("ring and reader", &more);
    Ok(rows.iter().chain(&more).all(|row| !row.failed))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("perf-peers: {error}");
            ExitCode::FAILURE
        }
    }
}
