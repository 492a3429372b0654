use super::{Whom, failure, start, threads};
use crate::failure::{Failure, Result};
use crate::output::Output;
use perf_monitor::{
    Counter, Event, EventFormat, RawRecord, Record, RecordPlan, SampleFlags, Sampler, Target,
    Tracefs, online_cpus,
};
use std::io::Write as _;
use std::time::{Duration, Instant};
use trace_common::{ClockDomain, Merge, Timestamp};

/// Show tracepoints live, with their fields
///
/// Lines are in the order of time over all CPUs: `time cpu thread event field=value …`, the time
/// in seconds of CLOCK_MONOTONIC. What did not fit in the kernel's buffers is told at the end.
/// Needs root, or CAP_PERFMON and a readable tracefs.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope perf trace -e sched:sched_process_exec -a
  triscope perf trace -e raw_syscalls:sys_enter --filter 'id == 257' -- ls
  triscope perf trace -e sched:sched_switch,sched:sched_waking -p 1234 --seconds 5")]
pub(crate) struct Args {
    /// Tracepoints, separated by commas
    #[arg(short, long, value_name = "SYSTEM:NAME", required = true, value_delimiter = ',')]
    event: Vec<String>,
    /// Only events whose fields match, in the language of the kernel: id == 257 && ret < 0
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,
    /// Stop after so many seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Pages of each CPU's buffer, a power of two
    #[arg(long, value_name = "N", default_value_t = 256)]
    pages: usize,
    #[command(flatten)]
    whom: Whom,
}

/// How long events wait for earlier ones of other CPUs.
const SLACK: i64 = 5_000_000;

/// One ring, with the events that write into it.
struct Source {
    sampler: Sampler,
    others: Vec<Counter>,
    hung_up: bool,
}

/// What is printed of an event, by its id.
struct Printed<'a> {
    id: u64,
    plan: RecordPlan,
    format: &'a EventFormat,
    name: &'a str,
}

pub(crate) fn run(args: &Args) -> Result {
    let tracefs = Tracefs::find().map_err(failure)?;
    let mut formats = Vec::new();
    for text in &args.event {
        let event = Event::parse(text).map_err(failure)?;
        let (Some(_), Some((system, name))) = (event.as_tracepoint(), text.split_once(':')) else {
            let message = format!("{text}: not a tracepoint; see triscope perf list");
            return Err(Failure::Message(message));
        };
        formats.push((event, tracefs.format(system, name).map_err(failure)?));
    }
    let deadline = match args.seconds.map(Duration::try_from_secs_f64) {
        Some(Ok(time)) => Some(Instant::now() + time),
        Some(Err(_)) => return Err(Failure::Message("not a time".into())),
        None => None,
    };
    let (mut sources, printed) = open(args, &formats).map_err(|e| match e {
        Opening::Refused(error) => failure(error),
        Opening::Failure(failure) => failure,
    })?;

    let mut child = if args.whom.command.is_empty() {
        for source in &sources {
            for counter in std::iter::once(source.sampler.counter()).chain(&source.others) {
                counter.enable().map_err(failure)?;
            }
        }
        None
    } else {
        Some(start(&args.whom.command)?)
    };
    let mut merge: Merge<Vec<u8>> = Merge::new(sources.len());
    let mut out = Output::new();
    let mut watermark = now();
    loop {
        let round = now();
        for (number, source) in sources.iter_mut().enumerate() {
            take(number, source, &mut merge)?;
        }
        // What was written before the previous round began has been seen in this one.
        print(&mut merge, watermark.saturating_add_nanos(-SLACK), &printed, &mut out)?;
        out.write()?;
        watermark = round;
        let ended = match &mut child {
            Some(child) => child.try_wait().is_ok_and(|status| status.is_some()),
            None => !args.whom.pid.is_empty() && sources.iter().all(|s| s.hung_up),
        };
        if ended || deadline.is_some_and(|at| Instant::now() >= at) {
            break;
        }
        wait(&mut sources)?;
    }
    for (number, source) in sources.iter_mut().enumerate() {
        take(number, source, &mut merge)?;
    }
    print(&mut merge, Timestamp::MAX, &printed, &mut out)?;
    out.finish()?;
    let lost: u64 = sources.iter().map(|s| s.sampler.stats().lost).sum();
    if lost > 0 {
        eprintln!("triscope: {lost} events were lost: use more --pages or a --filter");
    }
    if merge.late() > 0 {
        eprintln!("triscope: {} lines came late", merge.late());
    }
    Ok(())
}

enum Opening {
    Refused(perf_monitor::Error),
    Failure(Failure),
}

impl From<perf_monitor::Error> for Opening {
    fn from(error: perf_monitor::Error) -> Self {
        Self::Refused(error)
    }
}

fn open<'a>(
    args: &Args,
    formats: &'a [(Event, EventFormat)],
) -> std::result::Result<(Vec<Source>, Vec<Printed<'a>>), Opening> {
    let fields = SampleFlags::IDENTIFIER
        | SampleFlags::TID
        | SampleFlags::TIME
        | SampleFlags::CPU
        | SampleFlags::RAW;
    let command = !args.whom.command.is_empty();
    let mut targets = Vec::new();
    if args.whom.all_cpus {
        targets.extend(online_cpus().into_iter().map(Target::Cpu));
    } else if command {
        // Inheriting events have rings if they are of one CPU each.
        targets.extend(online_cpus().into_iter().map(|cpu| Target::ThreadOnCpu { tid: 0, cpu }));
    } else {
        let tids = threads(&args.whom.pid).map_err(Opening::Failure)?;
        targets.extend(tids.into_iter().map(Target::Thread));
    }
    let (mut sources, mut printed) = (Vec::<Source>::new(), Vec::new());
    for target in targets {
        let mut source: Option<Source> = None;
        for (event, format) in formats {
            let builder = event
                .builder()
                .sample_period(1)
                .sample(fields)
                .clock(ClockDomain::Monotonic)
                .inherit(command)
                .enable_on_exec(command)
                .wakeup_watermark(u32::MAX);
            let counter = match &mut source {
                None => {
                    let sampler = builder.open_sampler(target, args.pages)?;
                    let added =
                        source.insert(Source { sampler, others: Vec::new(), hung_up: false });
                    added.sampler.counter()
                }
                Some(source) => {
                    let counter = builder.open_into(target, &mut source.sampler)?;
                    source.others.push(counter);
                    match source.others.last() {
                        Some(counter) => counter,
                        None => continue,
                    }
                }
            };
            if let Some(filter) = &args.filter {
                counter.set_filter(filter)?;
            }
            let plan = RecordPlan::new(counter.attr());
            printed.push(Printed { id: counter.id()?, plan, format, name: event.name() });
        }
        sources.extend(source);
    }
    printed.sort_by_key(|p| p.id);
    Ok((sources, printed))
}

fn now() -> Timestamp {
    perf_monitor::now(ClockDomain::Monotonic).unwrap_or_default()
}

/// Moves what is in a ring to the merge.
fn take(number: usize, source: &mut Source, merge: &mut Merge<Vec<u8>>) -> Result {
    let mut left = source.sampler.ring_mut().available();
    while left > 0 {
        let (mut batch, decoder) = source.sampler.batch();
        let mut count = 0u64;
        while let Some(record) = batch.next() {
            count += record.bytes().len() as u64;
            if let Some(at) = decoder.timestamp(record) {
                merge.push(number, at, record.bytes().to_vec());
            }
        }
        if count == 0 {
            break;
        }
        left = left.saturating_sub(count);
    }
    Ok(())
}

/// Prints what is not after the watermark.
fn print(
    merge: &mut Merge<Vec<u8>>,
    watermark: Timestamp,
    printed: &[Printed<'_>],
    out: &mut Output,
) -> Result {
    while let Some(item) = merge.pop(watermark) {
        let Some((raw, _)) = RawRecord::split_first(&item.value, 0) else { continue };
        let id =
            item.value.get(8..16).and_then(|b| b.first_chunk()).map(|b| u64::from_ne_bytes(*b));
        let Ok(index) = printed.binary_search_by_key(&id, |p| Some(p.id)) else { continue };
        let Some(event) = printed.get(index) else { continue };
        let Ok(Record::Sample(sample)) = event.plan.decode(raw) else { continue };
        let cpu = sample.cpu.unwrap_or(0);
        let tid = sample.tid.unwrap_or(0);
        // A buffer in memory takes everything.
        let _ = write!(out.buffer, "{} {cpu:03} {tid:>7} {}", item.at, event.name);
        for field in event.format.fields() {
            match sample.raw.and_then(|raw| field.value(raw)) {
                Some(value) => _ = write!(out.buffer, " {}={value}", field.name()),
                None => _ = write!(out.buffer, " {}=?", field.name()),
            }
        }
        out.buffer.push(b'\n');
        out.write_if_full()?;
    }
    Ok(())
}

/// Waits a moment, so that lines are live, or until threads end.
fn wait(sources: &mut [Source]) -> Result {
    std::thread::sleep(Duration::from_millis(20));
    for source in sources {
        let ready = source.sampler.wait(Some(Duration::ZERO)).map_err(failure)?;
        source.hung_up = ready.hung_up;
    }
    Ok(())
}
