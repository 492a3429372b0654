use crate::failure::{Failure, Result};
use crate::io::stdout::Output;
use crate::run::duration::duration;
use crate::run::target::{Target as WatchTarget, of_living, threads};
use crate::run::watch::Watch;
use crate::sources::kernel::ring::{Ring, with_pages};
use crate::sources::kernel::{failure, tracefs};
use crate::timeline::{counted, now};
use crossbeam_channel::tick;
use perf_monitor::{
    Event, FieldFormat, FieldValue, RawRecord, Record, RecordLayout, SampleFlags, Target,
    TracepointFormat, online_cpus,
};
use std::io::Write as _;
use std::time::Duration;
use trace_common::{ClockDomain, Merge, Timestamp};

/// Show tracepoints live, with their fields
///
/// Lines are in time order over all CPUs: `time cpu thread event field=value …`, with the time in
/// seconds of CLOCK_MONOTONIC. Text that is empty or contains spaces is quoted. Events that did not
/// fit in the kernel's buffers are reported at the position of the loss. The exit status is that of
/// COMMAND.
///
/// Needs root, or CAP_PERFMON and a tracefs that is readable for this user.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope perf trace -e sched:sched_process_exec -a            until Ctrl-C
  triscope perf trace -e raw_syscalls:sys_enter --filter 'id == 257' ls
  triscope perf trace -e sched:sched_switch,sched:sched_waking -p 1234 --seconds 5

triscope perf list : shows the tracepoints. An invalid filter is refused with the fields of the
tracepoint. Filters are described in the kernel's Documentation/trace/events.rst.")]
pub(crate) struct Args {
    /// Tracepoints, separated by commas; can be repeated
    #[arg(short, long, value_name = "SYSTEM:NAME", required = true, value_delimiter = ',')]
    event: Vec<String>,
    /// Only events whose fields match, in the kernel's filter syntax: id == 257 && ret < 0. With
    /// several tracepoints, all must have the fields
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    seconds: Option<Duration>,
    /// Pages of each CPU's buffer, a power of two [default: 256, or the maximum for this user]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    #[command(flatten)]
    target: WatchTarget,
}

/// How long events wait for earlier ones of other CPUs, in nanoseconds.
const SLACK: i64 = 5_000_000;

/// Default number of pages of a CPU's buffer.
const PAGES: usize = 256;

/// Interval between reads of the rings, short enough for live output.
const ROUND: Duration = Duration::from_millis(20);

/// The rings with their CPU numbers.
type Rings = Vec<(u32, Ring)>;

/// The printed fields of an event, by event id.
struct Printed<'a> {
    id: u64,
    plan: RecordLayout,
    format: &'a TracepointFormat,
    name: &'a str,
}

/// An item that waits to be printed.
enum Item {
    /// A sample, as in the ring.
    Sample(Box<[u8]>),
    Lost {
        cpu: u32,
        count: u64,
    },
}

pub(crate) fn run(args: &Args) -> Result {
    let tracefs = tracefs().map_err(failure)?;
    let mut formats = Vec::new();
    for text in &args.event {
        let event = Event::parse_in(text, &tracefs).map_err(failure)?;
        // The name can be followed by modifiers.
        let mut parts = event.name().split(':');
        let (Some(_), Some(system), Some(name)) =
            (event.as_tracepoint(), parts.next(), parts.next())
        else {
            return Err(Failure::about(text, "not a tracepoint; see triscope perf list"));
        };
        let format = tracefs.format(system, name).map_err(failure)?;
        formats.push((event, format));
    }
    let tids = threads(&args.target.pid)?;
    let opened = with_pages(args.pages, PAGES, |pages| open(args, pages, &formats, &tids));
    let (rings, printed) = opened.map_err(failure)?;
    let mut tracer =
        Tracer { merge: Merge::new(rings.len()), rings, printed, lost: 0, undecodable: 0 };

    let mut watch = if args.target.command.is_empty() {
        tracer.rings.iter().try_for_each(|(_, ring)| ring.enable()).map_err(failure)?;
        Watch::running(&args.target.pid, args.seconds)?
    } else {
        Watch::command(&args.target.command, args.seconds, |_| ())?
    };
    tracer.run(&mut watch)?;
    let report = |count: u64, what: &str| {
        if count > 0 {
            eprintln!("triscope: {} {what}", counted(count, "event"));
        }
    };
    report(tracer.lost, "lost: use more --pages or a --filter");
    report(tracer.undecodable, "could not be decoded and are not shown");
    report(tracer.merge.late(), "printed out of order");
    watch.outcome()
}

/// Opens the events: a ring for each CPU, and the fields to print of each event.
fn open<'a>(
    args: &Args,
    pages: usize,
    formats: &'a [(Event, TracepointFormat)],
    tids: &[u32],
) -> perf_monitor::Result<(Rings, Vec<Printed<'a>>)> {
    let fields = SampleFlags::IDENTIFIER
        | SampleFlags::TID
        | SampleFlags::TIME
        | SampleFlags::CPU
        | SampleFlags::RAW;
    let command = !args.target.command.is_empty();
    let (mut rings, mut printed) = (Vec::new(), Vec::new());
    for cpu in online_cpus() {
        // Inheriting events can have rings if they are per CPU.
        let targets = match tids {
            _ if args.target.all_cpus => vec![Target::Cpu(cpu)],
            [] => vec![Target::ThreadOnCpu { tid: 0, cpu }],
            tids => tids.iter().map(|&tid| Target::ThreadOnCpu { tid, cpu }).collect(),
        };
        let mut ring: Option<Ring> = None;
        let mut add = |target, event: &'a Event, format| {
            let builder = event
                .builder()
                .sample_period(1)
                .sample(fields)
                .clock(ClockDomain::Monotonic)
                .inherit(!args.target.all_cpus)
                .enable_on_exec(command)
                .wakeup_watermark(u32::MAX);
            let counter = match &mut ring {
                None => ring.insert(Ring::open(&builder, target, pages)?).sampler.counter(),
                Some(ring) => ring.add(&builder, target)?,
            };
            if let Some(filter) = &args.filter {
                counter.set_filter(filter).map_err(|error| with_fields(error, format))?;
            }
            let plan = RecordLayout::new(counter.attr());
            printed.push(Printed { id: counter.id()?, plan, format, name: event.name() });
            Ok(())
        };
        for (event, format) in formats {
            let numbers: Vec<u32> = (0..targets.len() as u32).collect();
            of_living(&numbers, |n| add(targets[n as usize], event, format))?;
        }
        rings.extend(ring.map(|ring| (cpu, ring)));
    }
    printed.sort_by_key(|p| p.id);
    Ok((rings, printed))
}

/// Adds the fields of the tracepoint to the error of a rejected filter.
fn with_fields(error: perf_monitor::Error, format: &TracepointFormat) -> perf_monitor::Error {
    match error {
        perf_monitor::Error::Filter { event, filter, errno, .. } => {
            let names: Vec<&str> = format.fields().iter().map(FieldFormat::name).collect();
            let why = format!("the fields are {}", names.join(", "));
            perf_monitor::Error::Filter { event, filter, errno, why }
        }
        other => other,
    }
}

struct Tracer<'a> {
    rings: Rings,
    printed: Vec<Printed<'a>>,
    merge: Merge<Item>,
    lost: u64,
    /// Samples of unknown events or layouts.
    undecodable: u64,
}

impl Tracer<'_> {
    /// Prints until the watch ends.
    fn run(&mut self, watch: &mut Watch) -> Result {
        let mut out = Output::new();
        let rounds = tick(ROUND);
        let mut watermark = now();
        let mut ended = false;
        while !ended {
            let round = now();
            self.take()?;
            // Data written before the previous round began was read in this one.
            self.print(watermark.saturating_add_nanos(-SLACK), &mut out)?;
            out.write()?;
            watermark = round;
            ended = watch.wait(&rounds)?;
        }
        for (_, ring) in &self.rings {
            ring.disable().map_err(failure)?;
        }
        self.take()?;
        self.print(Timestamp::MAX, &mut out)?;
        for (_, ring) in &mut self.rings {
            self.lost += ring.lost_at_the_end().map_err(failure)?;
            self.undecodable += ring.sampler.stats().unknown_ids;
        }
        out.finish()
    }

    /// Moves the contents of the rings to the merge.
    fn take(&mut self) -> Result {
        let Self { rings, merge, .. } = self;
        for (number, (cpu, ring)) in rings.iter_mut().enumerate() {
            ring.take(|layout, raw, at| {
                // A sample is decoded when it is printed.
                if layout.raw_data(raw).is_some() {
                    merge.push(number, at, Item::Sample(raw.bytes().into()));
                    return Ok(());
                }
                let item = match layout.decode(raw)? {
                    Record::Sample(_) => Item::Sample(raw.bytes().into()),
                    Record::Lost(l) | Record::LostSamples(l) => {
                        Item::Lost { cpu: *cpu, count: l.lost }
                    }
                    _ => return Ok(()),
                };
                merge.push(number, at, item);
                Ok(())
            })
            .map_err(failure)?;
        }
        Ok(())
    }

    /// Prints the items up to the watermark.
    fn print(&mut self, watermark: Timestamp, out: &mut Output) -> Result {
        while let Some(merged) = self.merge.pop(watermark) {
            match merged.value {
                Item::Sample(bytes) => {
                    if self.line(merged.at, &bytes, out).is_none() {
                        self.undecodable += 1;
                    }
                }
                Item::Lost { cpu, count } => {
                    self.lost += count;
                    let at = merged.at;
                    // Writing to a vector does not fail.
                    let _ = writeln!(out.buffer, "{at} {cpu:03} {:>7} {count} events lost", "-");
                }
            }
            out.write_if_full()?;
        }
        Ok(())
    }

    /// Prints a sample; `None` if it cannot be decoded.
    fn line(&self, at: Timestamp, bytes: &[u8], out: &mut Output) -> Option<()> {
        let (raw, _) = RawRecord::split_first(bytes, 0)?;
        let id = bytes.get(8..16).and_then(|b| b.first_chunk()).map(|b| u64::from_ne_bytes(*b));
        let index = self.printed.binary_search_by_key(&id, |p| Some(p.id)).ok()?;
        let event = self.printed.get(index)?;
        let Ok(Record::Sample(sample)) = event.plan.decode(raw) else { return None };
        let cpu = sample.cpu.unwrap_or(0);
        let tid = sample.tid.unwrap_or(0);
        let _ = write!(out.buffer, "{at} {cpu:03} {tid:>7} {}", event.name);
        for field in event.format.fields() {
            let name = field.name();
            let _ = match sample.raw.and_then(|raw| field.value(raw)) {
                // Quoted, so that spaces do not look like the start of another field.
                Some(value @ FieldValue::Text(text)) if is_to_be_quoted(text) => {
                    write!(out.buffer, " {name}=\"{value}\"")
                }
                Some(value) => write!(out.buffer, " {name}={value}"),
                None => write!(out.buffer, " {name}=?"),
            };
        }
        out.buffer.push(b'\n');
        Some(())
    }
}

fn is_to_be_quoted(text: &[u8]) -> bool {
    text.is_empty() || text.contains(&b' ')
}
