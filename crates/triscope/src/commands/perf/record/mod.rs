//! `triscope perf record`.

mod open;

use crate::failure::{Failure, Result};
use crate::io::output_file::OutputFile;
use crate::io::progress::Status;
use crate::io::recording::Recording;
use crate::message;
use crate::run::child::output_to_stderr;
use crate::run::duration::duration;
use crate::run::stop::Beginning;
use crate::run::target::{self, Processes};
use crate::run::watch::Watch;
use crate::sources::kernel::events::{Cpus, EventGroup, cgroups, groups};
use crate::sources::kernel::hotplug::Hotplug;
use crate::sources::kernel::sampling::{Opened, SLICE, watermark};
use crate::sources::kernel::{self, failure, report_namespace, report_small_rings, sampling};
use crate::timeline::{counted, size};
use crossbeam_channel::after;
use perf_data::{Features, Synthesizer};
use perf_monitor::{Event, RealtimeThread, RingSet, SetEvent, SetStats, set_time_slice};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Record events to a file for perf report, perf script and others
///
/// Options have the names and meanings of perf record's, except for -n, the name of a process, and
/// --filter, which is for all tracepoints. Without -e the event is cycles, or cpu-clock
/// if not all CPUs count them. Tracepoints, breakpoints and probes are recorded at each occurrence,
/// other events 4000 times per second.
///
/// At the end, the numbers of samples and of lost ones are printed on standard error. The exit status
/// is that of COMMAND. Only the user who recorded can read the file.
#[derive(clap::Args)]
#[command(after_help = concat!("\
Examples:
  triscope perf record -g ./program                       where it spends its time
  triscope perf record -e 'sched:*' -a -- sleep 1         the scheduler, on all CPUs
  triscope perf record -e page-faults -c 1 -p 1234 --seconds 5
  triscope perf record -o - ./program | perf script -i -  as a stream

Recording your own processes needs no privilege while kernel.perf_event_paranoid is 2 or less; above
1 only user space is recorded.
", target::privileges!()))]
pub(crate) struct Args {
    /// Events, separated by commas; can be repeated. Tracepoints can have * and ?. With {A,B}:S each
    /// sample of A has the counts of A and B since the one before; children are not included
    #[arg(short, long, value_name = "EVENTS")]
    event: Vec<String>,
    /// Samples per second and event, or max
    #[arg(short = 'F', long, value_name = "HERTZ", conflicts_with = "count")]
    freq: Option<Frequency>,
    /// A sample every N events
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
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
    /// Read the buffers with this realtime priority (SCHED_FIFO), 1 to 99
    #[arg(short, long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99))]
    realtime: Option<u8>,
    /// The file; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "perf.data")]
    output: PathBuf,
    #[command(flatten)]
    processes: Processes,
    /// Everything, on all CPUs
    #[arg(short = 'a', long, conflicts_with = "Processes")]
    all_cpus: bool,
    /// Only on these CPUs, such as 0-3,8; without -p, everything on them
    #[arg(short = 'C', long = "cpu", value_name = "CPUS")]
    cpus: Option<Cpus>,
    /// Only tasks of these cgroups, separated by commas: one for all events, or one for each event or
    /// group (an empty name is none). A directory, or a name in the hierarchy
    #[arg(
        short = 'G',
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with = "Processes"
    )]
    cgroup: Vec<String>,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, visible_alias = "duration", value_name = "SECONDS", value_parser = duration)]
    seconds: Option<Duration>,
    /// Print the progress every second, also without a terminal
    #[arg(long)]
    progress: bool,
    /// A command to start, with its arguments; its children are included
    #[arg(trailing_var_arg = true, value_name = "COMMAND", conflicts_with = "Processes")]
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

/// Default number of pages of a CPU's buffer: 4 MiB hold a flood of 30 ms.
const PAGES: usize = 1024;

/// Maximum time between reads of the rings.
const ROUND: Duration = Duration::from_millis(20);

impl Args {
    /// Whether everything on some CPUs is recorded.
    fn is_system_wide(&self) -> bool {
        self.processes.is_empty()
            && (self.all_cpus || self.cpus.is_some() || !self.cgroup.is_empty())
    }

    /// Whether the events begin with the command.
    fn begins_with_command(&self) -> bool {
        !self.command.is_empty() && !self.is_system_wide()
    }
}

pub(crate) fn run(args: &Args) -> Result {
    if args.processes.is_empty() && args.command.is_empty() && !args.is_system_wide() {
        return Err(
            Failure::new("nothing to record: pass a COMMAND, -p PID, -n NAME or -a").with_code(2)
        );
    }
    args.cpus.as_ref().map_or(Ok(()), Cpus::check)?;
    let groups = match &args.event[..] {
        [] => vec![EventGroup::from(kernel::usual_event().map_err(failure)?)],
        lists => groups(lists)?,
    };
    args.filter.as_ref().map_or(Ok(()), |_| check_filter(&groups))?;
    kernel::check_realtime(args.realtime)?;
    message::begin();
    let beginning = Beginning::start()?;
    let mut output = OutputFile::recording(&args.output, &[])?;
    let cgroups = cgroups(&args.cgroup, groups.len())?;
    let is_stdout = output.is_stdout();
    let prepare = |command: &mut Command| {
        if is_stdout {
            // It must not be in the recording.
            output_to_stderr(command);
        }
        beginning.end();
    };
    // Groups are not inherited: they are opened on the process of the command.
    let is_stopped = args.begins_with_command() && groups.iter().any(|group| group.leader_samples);
    let stopped = is_stopped
        .then(|| Watch::stopped_command(&args.command, args.seconds, prepare))
        .transpose()?;
    let command_pid = stopped.as_ref().and_then(Watch::command_pid);
    let opened = args.open(&groups, &cgroups, command_pid)?;
    let Opened { mut set, events, writers, mut features, user_only } = opened;
    if args.pages.is_none() {
        report_small_rings(&set, PAGES);
    }
    report_namespace(args.is_system_wide());
    describe(&groups, &mut features)?;
    let mut recording = Recording::start(&mut output, events, features)?;

    // Processes that start while the list is written are in the records about tasks.
    if !args.begins_with_command() {
        set.sideband().map_or(Ok(()), |event| set.enable_event(event)).map_err(failure)?;
    }
    synthesize(args, &mut recording)?;
    if !args.begins_with_command() {
        set.enable().map_err(failure)?;
    }
    let mut watch = match stopped {
        Some(watch) => watch,
        None if args.command.is_empty() => {
            let watch = Watch::running(&args.processes.ids(), args.seconds)?;
            beginning.end();
            watch
        }
        None => Watch::command(&args.command, args.seconds, prepare)?,
    };
    if is_stopped {
        watch.resume()?;
    }
    let recorded = record(args, set, writers, recording, &output, &mut watch);
    let recorded = recorded.map_err(|failure| output.with_kept(failure));
    let (stats, bytes) = watch.see_out(recorded)?;
    if is_stopped && stats.rings.records == 0 {
        // Not even the record of its execve(2): the shell in its place could not execute it, and has printed why, or
        // reads it, as some shells do with a script without `#!`.
        let program = args.command.first().map_or("", String::as_str);
        let why = "is not recorded: the shell that was to execute it has not";
        Failure::about(program, why).print();
        return watch.outcome().and(Err(Failure::Quiet(1)));
    }
    let name = output.name();
    output.complete()?;
    report(&name, &stats, bytes, user_only);
    watch.outcome()
}

/// Refuses a filter that no tracepoint would get, or not each one.
fn check_filter(groups: &[EventGroup]) -> Result {
    let is_tracepoint = |event: &&Event| event.as_tracepoint().is_some();
    // Other groups are not recorded at all.
    let sampled = groups.iter().filter(|group| group.leader_samples);
    let mut members = sampled.flat_map(|group| group.events.iter().skip(1));
    if let Some(member) = members.find(is_tracepoint) {
        let why =
            "--filter is of events that take samples, and not of the other members of a group";
        return Err(Failure::about(member, why).with_code(2));
    }
    match groups.iter().filter_map(|group| group.events.first()).any(|event| is_tracepoint(&event))
    {
        true => Ok(()),
        false => {
            let why = "--filter is of the fields of tracepoints: -e has none";
            Err(Failure::new(why).with_code(2))
        }
    }
}

/// Records until the end. From the first record on, what was written can be read, however the program ends. Returns
/// the statistics, and the number of bytes.
fn record(
    args: &Args,
    mut set: RingSet,
    writers: Vec<SetEvent>,
    mut recording: Recording,
    output: &OutputFile,
    watch: &mut Watch,
) -> Result<(SetStats, u64)> {
    let realtime = args.realtime.map(RealtimeThread::begin).transpose().map_err(failure)?;
    if realtime.is_none() {
        // Some containers forbid it; losses are counted in any case.
        let _ = set_time_slice(SLICE);
    }
    let round = |set: &mut RingSet, recording: &mut Recording| {
        let bytes = set.read_chunks(|chunk| {
            output.keep();
            recording.chunk(&chunk)
        })?;
        recording.finish_round()?;
        Ok::<u64, Failure>(bytes)
    };
    // After so much, the next may be there already.
    let watermark = watermark(&set);
    let mut status = Status::new(args.progress);
    let mut written = 0;
    let mut hotplug = Hotplug::new(args.begins_with_command());
    loop {
        let has_ended = watch.wait(&after(Duration::ZERO))?;
        if recording.takes_ids() {
            if let Some(ids) = hotplug.ids(&mut set, &writers)? {
                recording.add_ids(ids);
            }
        }
        let bytes = round(&mut set, &mut recording)?;
        if has_ended {
            break;
        }
        written += bytes;
        status.update(|_| {
            let rings = set.stats().rings;
            let samples = counted(rings.samples, "sample");
            format!("{samples}, {}, {} lost", size(written), rings.lost)
        });
        if bytes < watermark {
            set.wait(Some(ROUND)).map_err(failure)?;
        }
    }
    drop(status);
    set.disable().map_err(failure)?;
    round(&mut set, &mut recording)?;
    drop(realtime);
    set.count_losses().map_err(failure)?;
    let stats = set.stats();
    for event in writers {
        // Unknown before Linux 6.0.
        let lost = set.counts(event).map_err(failure)?.lost.unwrap_or(0);
        let id = set.ids(event).map_err(failure)?.first().copied();
        recording.lost(id.unwrap_or(0), lost)?;
    }
    Ok((stats, recording.finish()?))
}

/// Adds this program, the clock and the formats of the tracepoints to the description.
fn describe(groups: &[EventGroup], features: &mut Features) -> Result {
    sampling::describe(groups.iter().flat_map(|group| &group.events), features)
}

/// Writes what was there before.
fn synthesize(args: &Args, recording: &mut Recording) -> Result {
    let mut synthesizer = Synthesizer::new(recording.attr(), true);
    let result = synthesizer.kernel(recording).and_then(|()| {
        if args.is_system_wide() {
            return synthesizer.processes(recording);
        }
        args.processes.ids().into_iter().try_for_each(|pid| synthesizer.process(pid, recording))
    });
    result.map_err(|error| recording.failure(error))
}

/// What to do about losses: `-m` is not the size of the buffers of records about tasks and mappings.
const fn hint(stats: &SetStats) -> &'static str {
    if stats.rings.lost > stats.sideband_lost { " (use more -m)" } else { "" }
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
    note(stats.sideband_lost, "of the lost records are about tasks and mappings");
    note(rings.throttled, "times throttled: use a lower -F or a higher -c");
    note(rings.unknown_ids + stats.undecodable, "records that are not understood were left out");
    let hint = hint(stats);
    let user = if user_only { " of user space only" } else { "" };
    message!(
        "triscope: {name}: {}{user}, {}, {} lost{hint}{notes}",
        counted(rings.samples, "sample"),
        size(bytes),
        rings.lost
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_buffers_are_recommended_for_losses_in_them() {
        let mut stats = SetStats::default();
        assert_eq!(hint(&stats), "");
        stats.rings.lost = 3;
        assert_eq!(hint(&stats), " (use more -m)");
        stats.sideband_lost = 3;
        assert_eq!(hint(&stats), "", "they are of the sideband");
    }

    #[test]
    fn a_filter_is_of_all_tracepoints() {
        let clock = || Event::software(perf_monitor::Software::CpuClock);
        let tracepoint = || Event::tracepoint_id("sched:sched_switch", 300);
        let refusal = |events: Vec<Event>| {
            let group = EventGroup { leader_samples: events.len() > 1, events };
            let groups = [group, EventGroup::from(clock())];
            check_filter(&groups).err().map(|failure| failure.message().to_owned())
        };
        assert_eq!(refusal(vec![tracepoint()]), None);
        assert_eq!(refusal(vec![tracepoint(), clock()]), None);
        let none = refusal(vec![clock()]).unwrap();
        assert!(none.contains("-e has none"), "{none}");
        for leader in [clock(), tracepoint()] {
            let of_member = refusal(vec![leader, tracepoint()]).unwrap();
            assert!(of_member.starts_with("sched:sched_switch: --filter is of"), "{of_member}");
        }
    }
}
