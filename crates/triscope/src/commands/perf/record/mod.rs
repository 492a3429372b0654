//! `triscope perf record`.

mod output;

use crate::failure::{Failure, Result};
use crate::io::output_file::OutputFile;
use crate::run::duration::duration;
use crate::run::target::threads;
use crate::run::watch::Watch;
use crate::sources::kernel::events::{Cpus, cgroup_dir, events};
use crate::sources::kernel::{self, failure, report_small_rings, rings, tracefs};
use crate::timeline::{counted, size};
use crossbeam_channel::after;
use output::Recording;
use perf_data::{Features, RecordedEvent, Synthesizer, TracingData};
use perf_monitor::{
    Event, EventBuilder, KernelFeatures, OpenErrorReason, RingSet, SampleFlags, SetEvent,
    SetRecord, SetStats, Timestamp, max_sample_rate,
};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Record events to a file for perf report, perf script and others
///
/// Options have the names and meanings of perf record's. Without -e the event is cycles, or cpu-clock
/// on machines without hardware counters. Tracepoints, breakpoints and probes are recorded at each
/// occurrence, other events 4000 times per second.
///
/// At the end, the numbers of samples and of lost ones are printed on standard error. The exit status
/// is that of COMMAND.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope perf record -g ./program                       where it spends its time
  triscope perf record -e 'sched:*' -a -- sleep 1         the scheduler, on all CPUs
  triscope perf record -e page-faults -c 1 -p 1234 --seconds 5
  triscope perf record -o - ./program | perf script -i -  as a stream

Recording your own processes needs no privilege while kernel.perf_event_paranoid is 2 or less; above
1 only user space is recorded. Everything else needs root or CAP_PERFMON.")]
pub(crate) struct Args {
    /// Events, separated by commas; can be repeated. Tracepoints can have * and ?
    #[arg(short, long, value_name = "EVENTS")]
    event: Vec<String>,
    /// Samples per second and event, or max
    #[arg(short = 'F', long, value_name = "HERTZ", conflicts_with = "count")]
    freq: Option<Frequency>,
    /// A sample every N events
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Record call chains
    #[arg(short = 'g')]
    call_graph: bool,
    /// Only events whose fields match, in the kernel's filter syntax; for all tracepoints
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,
    /// Pages of each CPU's buffer, a power of two [default: 1024, or the maximum for this user]
    #[arg(short = 'm', long = "mmap-pages", value_name = "PAGES")]
    pages: Option<usize>,
    /// The file; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "perf.data")]
    output: PathBuf,
    /// Running processes, separated by commas, and their future children
    #[arg(short, long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Everything, on all CPUs
    #[arg(short = 'a', long, conflicts_with = "pid")]
    all_cpus: bool,
    /// Only on these CPUs, such as 0-3,8; without -p, everything on them
    #[arg(short = 'C', long = "cpu", value_name = "CPUS")]
    cpus: Option<Cpus>,
    /// Only tasks of this cgroup: a directory, or a name in the hierarchy
    #[arg(short = 'G', long, value_name = "CGROUP", conflicts_with = "pid")]
    cgroup: Option<String>,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    seconds: Option<Duration>,
    /// A command to start, with its arguments; its children are included
    #[arg(trailing_var_arg = true, value_name = "COMMAND", conflicts_with = "pid")]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
enum Frequency {
    Hertz(u64),
    Max,
}

impl std::str::FromStr for Frequency {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "max" => Ok(Self::Max),
            _ => match text.parse() {
                Ok(hertz) if hertz > 0 => Ok(Self::Hertz(hertz)),
                _ => Err("expected a number above 0, or max".to_owned()),
            },
        }
    }
}

/// The default of `-F`.
const HERTZ: u64 = 4000;

/// Default number of pages of a CPU's buffer: 4 MiB hold a flood of 30 ms.
const PAGES: usize = 1024;

/// Maximum time between reads of the rings.
const ROUND: Duration = Duration::from_millis(20);

/// The rings, and their events with their names.
struct Opened {
    set: RingSet,
    events: Vec<(SetEvent, String)>,
    user_only: bool,
}

impl Args {
    /// Whether everything on some CPUs is recorded.
    fn is_system_wide(&self) -> bool {
        self.pid.is_empty() && (self.all_cpus || self.cpus.is_some() || self.cgroup.is_some())
    }

    /// Whether the events begin with the command.
    fn begins_with_command(&self) -> bool {
        !self.command.is_empty() && !self.is_system_wide()
    }

    fn events(&self) -> Result<Vec<Event>> {
        if !self.event.is_empty() {
            return events(&self.event);
        }
        Ok(vec![kernel::usual_event().map_err(failure)?])
    }

    fn configure(&self, event: &Event, user_only: bool) -> EventBuilder {
        let fields = SampleFlags::IDENTIFIER
            | SampleFlags::IP
            | SampleFlags::TID
            | SampleFlags::TIME
            | SampleFlags::CPU
            | SampleFlags::PERIOD;
        let is_tracepoint = event.as_tracepoint().is_some();
        let chain = if self.call_graph { SampleFlags::CALLCHAIN } else { SampleFlags::empty() };
        let raw = if is_tracepoint { SampleFlags::RAW } else { SampleFlags::empty() };
        let builder = event
            .builder()
            .sample(fields | chain | raw)
            .inherit(!self.is_system_wide())
            .enable_on_exec(self.begins_with_command());
        let builder = match (self.count, self.freq) {
            (Some(count), _) => builder.sample_period(count),
            (_, Some(Frequency::Hertz(hertz))) => builder.sample_freq(hertz),
            (_, Some(Frequency::Max)) => builder.sample_freq(max_rate()),
            _ if is_each_recorded(event) => builder.sample_period(1),
            _ => builder.sample_freq(HERTZ.min(max_rate())),
        };
        if user_only { builder.exclude_kernel(true).exclude_hv(true) } else { builder }
    }

    /// Opens the events; without the kernel if only that is permitted.
    fn open(&self, events: &[Event]) -> Result<Opened> {
        let tids = threads(&self.pid)?;
        match self.open_with(events, &tids, false)? {
            Ok(opened) => Ok(opened),
            Err(error) => match error.reason() {
                Some(OpenErrorReason::Privilege { user_space_alone_is_allowed: true, .. }) => {
                    self.open_with(events, &tids, true)?.map_err(failure)
                }
                _ => Err(failure(error)),
            },
        }
    }

    fn open_with(
        &self,
        events: &[Event],
        tids: &[u32],
        user_only: bool,
    ) -> Result<perf_monitor::Result<Opened>> {
        let cgroup = self.cgroup.as_deref().map(cgroup_dir).transpose()?;
        let open = || {
            let mut options = rings(self.pages, PAGES);
            // A command inherits the events of this thread.
            let this_thread: &[u32] = if self.begins_with_command() { &[0] } else { &[] };
            for tid in tids.iter().chain(this_thread) {
                options = options.thread(*tid);
            }
            if let Some(Cpus(cpus)) = &self.cpus {
                options = options.cpus(cpus.iter().copied());
            }
            if let Some(dir) = &cgroup {
                options = options.cgroup_at(dir)?;
            }
            let mut builders = events.iter().map(|event| {
                let suffix = if user_only && event.as_tracepoint().is_none() { ":u" } else { "" };
                (self.configure(event, user_only), format!("{event}{suffix}"))
            });
            let Some((first, name)) = builders.next() else {
                return Err(perf_monitor::Error::UnknownSetEvent);
            };
            // The first event also has the records about tasks, as in perf.
            let first = first
                .mmap(true)
                .mmap2(true)
                .comm(true)
                .comm_exec(true)
                .task(true)
                .build_id(KernelFeatures::probe().has_flag("build_id"));
            let mut set = options.sideband(&first).open()?;
            let mut added: Vec<_> = set.sideband().map(|event| (event, name)).into_iter().collect();
            for (builder, name) in builders {
                added.push((set.add(&builder)?, name));
            }
            if let Some(filter) = &self.filter {
                for ((event, _), _) in
                    added.iter().zip(events).filter(|(_, event)| event.as_tracepoint().is_some())
                {
                    set.set_filter(*event, filter)?;
                }
            }
            Ok(Opened { set, events: added, user_only })
        };
        Ok(open())
    }
}

/// Whether the default is a sample at each occurrence.
fn is_each_recorded(event: &Event) -> bool {
    let is_probe = |prefix: &str| event.name().starts_with(prefix);
    event.as_tracepoint().is_some()
        || ["mem:", "kprobe", "kretprobe", "uprobe", "uretprobe"].into_iter().any(is_probe)
}

fn max_rate() -> u64 {
    max_sample_rate()
        .and_then(|rate| u64::try_from(rate).ok())
        .filter(|rate| *rate > 0)
        .unwrap_or(HERTZ)
}

pub(crate) fn run(args: &Args) -> Result {
    if args.pid.is_empty() && args.command.is_empty() && !args.is_system_wide() {
        return Err(Failure::new("nothing to record: pass a COMMAND, -p PID or -a").with_code(2));
    }
    let mut output = OutputFile::create(&args.output, &[])?;
    let events = args.events()?;
    let Opened { mut set, events: opened, user_only } = args.open(&events)?;
    if args.pages.is_none() {
        report_small_rings(&set, PAGES);
    }
    let mut recorded = Vec::new();
    for (event, name) in &opened {
        recorded.push(RecordedEvent {
            name: name.clone(),
            attr: set.attr(*event).map_err(failure)?,
            ids: set.ids(*event).map_err(failure)?,
        });
    }
    let features = features(&events)?;
    let mut recording = Recording::start(&mut output, recorded, features)?;

    let begin = |set: &mut RingSet| {
        if args.begins_with_command() { Ok(()) } else { set.enable().map_err(failure) }
    };
    let mut watch = if args.command.is_empty() {
        begin(&mut set)?;
        Watch::running(&args.pid, args.seconds)?
    } else {
        begin(&mut set)?;
        let is_stdout = output.is_stdout();
        Watch::command(&args.command, args.seconds, |command| {
            if is_stdout {
                to_stderr(command);
            }
        })?
    };
    // From now on, what was written can be read, however the program ends.
    output.keep();
    synthesize(args, &mut recording)?;
    let mut times = None;
    let mut round = |set: &mut RingSet, recording: &mut Recording| {
        set.read_unordered(|record| take(&record, recording, &mut times))?;
        recording.finish_round()
    };
    loop {
        let has_ended = watch.wait(&after(Duration::ZERO))?;
        round(&mut set, &mut recording)?;
        if has_ended {
            break;
        }
        set.wait(Some(ROUND)).map_err(failure)?;
    }
    set.disable().map_err(failure)?;
    round(&mut set, &mut recording)?;
    set.count_losses().map_err(failure)?;
    let stats = set.stats();
    recording.lost(stats.rings.lost_at_end.unwrap_or(0))?; // unknown before Linux 6.0
    let bytes = recording.finish(times)?;
    let name = output.name();
    output.complete()?;
    report(&name, &stats, bytes, user_only);
    watch.outcome()
}

/// Writes a record, and notes the times of the samples.
fn take(
    record: &SetRecord<'_>,
    recording: &mut Recording,
    times: &mut Option<(Timestamp, Timestamp)>,
) -> Result {
    const SAMPLE: u32 = 9;
    if record.raw.type_() == SAMPLE {
        let (first, last) = times.unwrap_or((record.time, record.time));
        *times = Some((first.min(record.time), last.max(record.time)));
    }
    recording.record(record.raw)
}

/// In pipe mode, the output of the command must not be in the recording.
fn to_stderr(command: &mut Command) {
    use std::os::fd::AsFd;
    if let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned() {
        command.stdout(stderr);
    }
}

fn features(events: &[Event]) -> Result<Features> {
    let mut features = Features::of_this_machine();
    features.version = Some(concat!("triscope ", env!("CARGO_PKG_VERSION")).to_owned());
    features.clock = perf_data::ClockReference::now(trace_common::ClockDomain::Monotonic);
    let tracepoints: Vec<(&str, &str)> = events
        .iter()
        .filter(|event| event.as_tracepoint().is_some())
        .filter_map(|event| {
            // Modifiers can follow.
            let mut parts = event.name().split(':');
            Some((parts.next()?, parts.next()?))
        })
        .collect();
    if !tracepoints.is_empty() {
        let tracefs = tracefs().map_err(failure)?;
        let tracing = TracingData::of_this_kernel(&tracefs, tracepoints);
        features.tracing = Some(tracing.map_err(Failure::new)?);
    }
    Ok(features)
}

/// Writes what was there before.
fn synthesize(args: &Args, recording: &mut Recording) -> Result {
    let mut synthesizer = Synthesizer::new(recording.attr(), true);
    let result = synthesizer.kernel(recording).and_then(|()| {
        if args.is_system_wide() {
            return synthesizer.processes(recording);
        }
        args.pid.iter().try_for_each(|pid| synthesizer.process(*pid, recording))
    });
    result.map_err(|error| recording.failure(error))
}

/// Prints what was recorded, and what was not.
fn report(name: &str, stats: &SetStats, bytes: u64, user_only: bool) {
    let rings = &stats.rings;
    let mut notes = String::new();
    let mut note = |count: u64, what: &str| {
        if count > 0 {
            notes.push_str(&format!("; {count} {what}"));
        }
    };
    note(rings.lost_samples, "lost by the hardware");
    note(rings.throttled, "times throttled: use a lower -F or a higher -c");
    note(rings.unknown_ids + stats.undecodable, "records that are not understood were left out");
    let hint = if rings.lost > 0 { " (use more -m)" } else { "" };
    let user = if user_only { " of user space only" } else { "" };
    eprintln!(
        "triscope: {name}: {}{user}, {}, {} lost{hint}{notes}",
        counted(rings.samples, "sample"),
        size(bytes),
        rings.lost
    );
}
