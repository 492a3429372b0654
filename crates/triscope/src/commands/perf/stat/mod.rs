//! `triscope perf stat`.

mod counters;
mod report;

use crate::failure::{Failure, Result};
use crate::io::in_place;
use crate::io::output_file::cannot_be_written;
use crate::run::duration::duration;
use crate::run::open_files;
use crate::run::stop::{Listener, Next};
use crate::run::target::{self, Target as WatchTarget, threads};
use crate::run::watch::Watch;
use crate::sources::kernel::events::{Cgroup, EventGroup, cgroups, groups};
use crate::sources::kernel::remedy::is_missing;
use crate::sources::kernel::{event, failure};
use counters::{Counted, Part, Sum, longest};
use crossbeam_channel::tick;
use perf_monitor::{Count, OpenErrorReason};
use report::{Form, LeftOut, Report, Row};
use signal_hook::consts::SIGTERM;
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The default events; those that this machine lacks are left out.
const DEFAULT: &[&str] = &[
    "task-clock",
    "context-switches",
    "cpu-migrations",
    "page-faults",
    "cycles",
    "instructions",
    "branches",
    "branch-misses",
];

/// Count events of a command, of processes, or of everything
///
/// Without -e: task-clock, context-switches, cpu-migrations, page-faults, cycles, instructions,
/// branches and branch-misses. Events that this machine does not have, or this user may not count, are
/// left out and named; it is an error if none is left. Beside each count is its rate per second
/// of CPU time; with -a, per second of the time of all CPUs.
///
/// The counts are written to standard error; the exit status is that of COMMAND. Counts that were
/// extrapolated, because there were more events than hardware counters, are marked with the
/// fraction of the time that was counted.
///
/// On machines with several kinds of cores, a hardware event of a command or a process is counted on
/// the cores of one PMU: cycles is that of one kind. If the threads were on other cores, too, the count
/// is not extrapolated to the time there, and is marked with the PMU. So it is if each event of the PMU
/// lacked a counter for a part of the time. cpu_core/cycles/ and cpu_atom/cycles/ together, on x86, have
/// both.
#[derive(clap::Args)]
#[command(group = target::required(), after_help = concat!("\
Examples:
  triscope perf stat make -j2
  triscope perf stat -r 5 -e '{instructions,cycles}:u' ./benchmark
  triscope perf stat -e 'page-faults,sched:sched_*' -p 1234 --seconds 5
  triscope perf stat -I 1000 -C 0-3 -e msr/tsc/       every second, until Ctrl-C
  triscope perf stat -a -G system.slice -e task-clock sleep 10

Counting your own processes needs no privilege while kernel.perf_event_paranoid is 2 or less; above
1 only user space is counted, and marked so.
", target::privileges!(), "
triscope perf list shows the events."))]
pub(crate) struct Args {
    /// Events, separated by commas; can be repeated. {A,B} are counted at the same times, :u and :k
    /// restrict events to user space and kernel, * and ? match tracepoints
    #[arg(short, long, value_name = "EVENTS")]
    event: Vec<String>,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, visible_alias = "duration", value_name = "SECONDS", value_parser = duration)]
    seconds: Option<Duration>,
    /// Print the counts of every MS milliseconds
    #[arg(short = 'I', long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    interval_print: Option<u64>,
    /// Run COMMAND N times, and print means with the standard deviation of the mean in percent
    #[arg(short, long, value_name = "N", default_value_t = 1, requires = "command",
          conflicts_with = "interval_print", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Count only in these cgroups, separated by commas: one for all events, or one for each (an
    /// empty name is none). With -a or -C
    #[arg(short = 'G', long, value_name = "NAMES", value_delimiter = ',')]
    cgroup: Vec<String>,
    /// Print lines of fields with this separator: count, unit, event, time counted in nanoseconds,
    /// share of the time counted in percent, rate and its unit. With -I, the time comes first; with
    /// -G, the cgroup comes after the event; with -r, the deviation comes before the time counted.
    /// \t is a tab
    #[arg(short = 'x', long, value_name = "SEP", conflicts_with = "json", value_parser = separator)]
    field_separator: Option<String>,
    /// Print JSON; with -I, one object per line
    #[arg(short, long)]
    json: bool,
    /// Write the counts to a file; - is standard error
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Append to the file of -o
    #[arg(long, requires = "output")]
    append: bool,
    #[command(flatten)]
    target: WatchTarget,
}

/// The separator of fields: the name of a tab is one, as for `perf`.
fn separator(text: &str) -> std::result::Result<String, Infallible> {
    Ok(if text == "\\t" { "\t" } else { text }.to_owned())
}

pub(crate) fn run(args: &Args) -> Result {
    let groups = groups(&args.event)?;
    if !args.cgroup.is_empty() && !args.target.is_system_wide() {
        return Err(Failure::new("--cgroup counts on CPUs: it needs -a or -C").with_code(2));
    }
    // The default events are in the first cgroup.
    let cgroups = cgroups(&args.cgroup, groups.len().max(1))?;
    let mut output = Destination::open(args)?;
    let form = match &args.field_separator {
        Some(separator) => Form::Fields(separator),
        None if args.json => Form::Json,
        None => Form::Text,
    };
    let mut runs: Vec<Report> = Vec::new();
    let mut outcome = Ok(());
    // Between two runs, there is no command that gets a signal.
    let is_stopped = Arc::new(AtomicBool::new(false));
    let _listener = (args.repeat > 1).then(|| stopped_by(&is_stopped)).transpose()?;
    for _ in 0..args.repeat {
        let opened = open_readable(|| open(args, &groups, &cgroups), Counted::read)?;
        let (report, watch) = count(args, opened, form, &mut output)?;
        let is_at_limit = args.ended_by_limit(report.as_ref(), watch.status());
        outcome = watch.outcome();
        // The first one is all that there is.
        if watch.is_interrupted() && !runs.is_empty() {
            break;
        }
        runs.extend(report);
        let is_stopped = watch.is_interrupted() || is_stopped.load(Ordering::Relaxed);
        if is_stopped || (outcome.is_err() && !is_at_limit) {
            break; // the rest would be of another command
        }
    }
    let number = runs.len();
    if number > 0 && number < args.repeat as usize {
        message!("triscope: the means are of {number} of {} runs", args.repeat);
    }
    if let Some(mut report) = Report::mean(runs) {
        report.runs = (args.repeat > 1).then_some(number);
        output.write(&report.print(form))?;
    }
    outcome
}

/// Sets a flag at a signal. The command gets it, too, if one runs.
fn stopped_by(is_stopped: &Arc<AtomicBool>) -> Result<Listener> {
    let is_stopped = Arc::clone(is_stopped);
    Listener::start(move |_| {
        is_stopped.store(true, Ordering::Relaxed);
        Next::Wait
    })
}

impl Args {
    /// Whether a run ended at the time limit: the command is the same in the next one.
    fn ended_by_limit(&self, report: Option<&Report>, status: Option<ExitStatus>) -> bool {
        let signal = status.and_then(|status| status.signal());
        let is_over =
            self.seconds.zip(report).is_some_and(|(limit, report)| report.elapsed >= limit);
        is_over && matches!(signal, None | Some(SIGTERM))
    }
}

/// The open events, and those that could not be opened.
type Events = (Vec<Counted>, Vec<LeftOut>);

/// Open events.
struct Opened {
    events: Events,
    /// The counts before they are enabled.
    before: Vec<Counts>,
}

/// How often events are opened until all groups can be read.
const ATTEMPTS: usize = 4;

/// Opens all events, and reads them.
///
/// A thread that is started while a group is opened inherits the members that are open by then: as long as it
/// lives, the kernel does not add up that group.
fn open_readable(
    open: impl Fn() -> Result<Events>,
    read: impl Fn(&Counted) -> Result<Option<Counts>>,
) -> Result<Opened> {
    let mut unread = String::new();
    for _ in 0..ATTEMPTS {
        let events = open()?;
        let mut before = Vec::new();
        let mut divided = None;
        for group in &events.0 {
            let Some(counts) = read(group)? else {
                // That took long: the others are not read.
                divided = Some(group.name().to_owned());
                break;
            };
            before.push(counts);
        }
        let Some(name) = divided else { return Ok(Opened { events, before }) };
        unread = name;
    }
    let why = "a thread that was started while the group of this event was opened has a part of the group \
               only, and the kernel does not add it up: try again";
    Err(Failure::about(unread, why))
}

/// Opens all events.
fn open(args: &Args, groups: &[EventGroup], cgroups: &[Option<Rc<Cgroup>>]) -> Result<Events> {
    let tids = threads(&args.target.pids())?;
    open_files::raise();
    let cgroup = |index: usize| cgroups.get(index).cloned().flatten();
    let cgroup_name = |index| cgroup(index).map(|cgroup| cgroup.name.clone());
    let mut counted = Vec::new();
    let mut left_out: Vec<(String, Option<String>, perf_monitor::Error)> = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        match (Counted::open(&group.events, &args.target, &tids, cgroup(index)), &group.events[..])
        {
            (Ok(group), _) => counted.push(group),
            (Err(error), [event]) if is_absent(&error) => {
                left_out.push((event.name().to_owned(), cgroup_name(index), error));
            }
            (Err(error), _) => return Err(failure(error)),
        }
    }
    if groups.is_empty() {
        for name in DEFAULT {
            let event = event(name).map_err(failure)?;
            match Counted::open(&[event], &args.target, &tids, cgroup(0)) {
                Ok(event) => counted.push(event),
                Err(error) if is_refused(&error) || is_forbidden(&error) => {
                    left_out.push(((*name).to_owned(), cgroup_name(0), error));
                }
                Err(error) => return Err(failure(error)),
            }
        }
    }
    if counted.is_empty() && !left_out.is_empty() {
        return Err(failure(left_out.swap_remove(0).2));
    }
    let left_out = left_out.into_iter();
    let left_out = left_out.map(|(name, cgroup, error)| LeftOut::new(&name, cgroup, &error));
    Ok((counted, left_out.collect()))
}

/// Whether the machine, or each of the CPUs, does not have the event.
fn is_absent(error: &perf_monitor::Error) -> bool {
    matches!(error.reason(), Some(OpenErrorReason::NoSuchEvent | OpenErrorReason::NotOnCpu(_)))
}

/// Whether the machine does not count the event, for whatever reason of its PMU: its drivers have several
/// errors for an event that it lacks.
fn is_refused(error: &perf_monitor::Error) -> bool {
    use OpenErrorReason::{Busy, Fields, NoCounters, Unknown};
    let is_of_pmu = matches!(error.reason(), Some(Fields(_) | Unknown | NoCounters | Busy));
    is_absent(error) || is_of_pmu
}

/// Whether this user may not count the event.
fn is_forbidden(error: &perf_monitor::Error) -> bool {
    error.reason().is_some_and(is_missing)
}

/// Counts to the end. Returns the counts, unless they were printed in intervals, and the command.
fn count(
    args: &Args,
    opened: Opened,
    form: Form<'_>,
    output: &mut Destination,
) -> Result<(Option<Report>, Watch)> {
    // The reading is from before the command can start: the first interval contains its first counts.
    let Opened { events: (mut counted, left_out), before } = opened;
    let mut begin = Instant::now();
    if !args.target.starts_on_exec() {
        counted.iter_mut().try_for_each(Counted::enable)?;
        begin = Instant::now();
    }
    let mut watch = if args.target.command.is_empty() {
        Watch::running(&args.target.pids(), args.seconds)?
    } else {
        Watch::command(&args.target.command, args.seconds, |_| ())?
    };
    let mut report = None;
    match args.interval_print {
        None => watch.wait_for_end()?,
        Some(interval) => {
            let intervals = Intervals { length: Duration::from_millis(interval), begin, before };
            let printed = intervals.print(&counted, &left_out, form, output, &mut watch);
            watch.see_out(printed)?;
        }
    }
    if !args.target.starts_on_exec() {
        counted.iter_mut().try_for_each(Counted::disable)?;
    }
    let elapsed = begin.elapsed();
    if args.interval_print.is_none() {
        let counts = counted.iter().map(last_counts).collect::<Result<Vec<_>>>()?;
        let rows = rows(&counted, &counts);
        report = Some(Report { elapsed, at: None, runs: None, rows, left_out });
    }
    Ok((report, watch))
}

/// Counts that are printed in intervals.
struct Intervals {
    length: Duration,
    begin: Instant,
    /// The counts at the begin.
    before: Vec<Counts>,
}

impl Intervals {
    /// Prints them until the end.
    fn print(
        mut self,
        counted: &[Counted],
        left_out: &[LeftOut],
        form: Form<'_>,
        output: &mut Destination,
        watch: &mut Watch,
    ) -> Result {
        let rounds = tick(self.length);
        let mut header = true;
        let mut last = Duration::ZERO;
        loop {
            let ended = watch.wait(&rounds)?;
            // What a group counts that cannot be read is in the next interval, if there is one.
            let latest = |(group, before): (&Counted, &Counts)| {
                let counts = group.read()?;
                if ended && counts.is_none() {
                    unreadable(group, "not in the last interval");
                }
                Ok::<_, Failure>(counts.unwrap_or_else(|| before.clone()))
            };
            let now = counted.iter().zip(&self.before).map(latest);
            let now = now.collect::<Result<Vec<Counts>>>()?;
            let elapsed = self.begin.elapsed();
            let rows = rows(counted, &since(counted, &now, &self.before));
            let left_out = if header { left_out.to_vec() } else { Vec::new() };
            let (at, elapsed) = (Some(elapsed), elapsed - last);
            let part = Report { elapsed, at, runs: None, rows, left_out };
            if header {
                output.write(form.header())?;
            }
            output.write(&part.print(form))?;
            if ended {
                return Ok(());
            }
            (self.before, last, header) = (now, at.unwrap_or_default(), false);
        }
    }
}

/// The counts of the events of a group, for each thread or CPU.
type Counts = Vec<Vec<Count>>;

/// The counts at the end: none of a group that cannot be read, so that those of the others are printed.
fn last_counts(group: &Counted) -> Result<Counts> {
    let counts = group.read()?;
    if counts.is_none() {
        unreadable(group, "not counted");
    }
    Ok(counts.unwrap_or_default())
}

/// Says that a group could not be read, and what follows from it.
fn unreadable(group: &Counted, effect: &str) {
    let why = "the exit of a child keeps the group of this event from being read";
    message!("triscope: {}: {effect}: {why}", group.name());
}

fn since(counted: &[Counted], now: &[Counts], before: &[Counts]) -> Vec<Counts> {
    let of_group = |(group, (now, before)): (&Counted, (&Counts, &Counts))| {
        let of_one = |(now, before): (&Vec<Count>, &Vec<Count>)| {
            let counts = group.events.iter().zip(now.iter().zip(before));
            counts
                .map(|(e, (now, before))| counters::since(now, before, e.unit().is_snapshot))
                .collect()
        };
        now.iter().zip(before).map(of_one).collect()
    };
    counted.iter().zip(now.iter().zip(before)).map(of_group).collect()
}

fn rows(counted: &[Counted], counts: &[Counts]) -> Vec<Row> {
    // The part of the time of each of these threads that it was surely on some cores, by all events of these.
    let on_cores = |cores: &String, threads: usize| -> Vec<Part> {
        let groups = counted.iter().zip(counts);
        let groups: Vec<&Counts> = groups
            .filter(|(group, counts)| {
                group.cores.as_ref() == Some(cores) && counts.len() == threads
            })
            .map(|(_, counts)| counts)
            .collect();
        let of_thread = |thread: usize| {
            let counts = groups.iter().filter_map(|counts| counts.get(thread));
            longest(counts.flatten().copied())
        };
        (0..threads).map(of_thread).collect()
    };
    let of_group = |(group, counts): (&Counted, &Counts)| {
        let row = |(index, event): (usize, &perf_monitor::Event)| {
            let each = counts.iter().filter_map(|each| each.get(index).copied());
            let sum = match &group.cores {
                Some(cores) => Sum::of_some_cores(each.zip(on_cores(cores, counts.len()))),
                None => Sum::of(each),
            };
            let cgroup = group.cgroup.as_ref().map(|cgroup| cgroup.name.clone());
            let mut row = Row::new(event, sum, group.user_only, cgroup);
            row.not_on.clone_from(&group.not_on);
            row.cores = group.cores.clone().filter(|_| sum.is_part);
            row
        };
        group.events.iter().enumerate().map(row).collect::<Vec<_>>()
    };
    counted.iter().zip(counts).flat_map(of_group).collect()
}

/// Where the counts are written.
enum Destination {
    StandardError,
    File {
        path: PathBuf,
        file: File,
        /// Whether it still has the counts of an earlier run, which stay if there are no new ones.
        is_old: bool,
    },
}

impl Destination {
    fn open(args: &Args) -> Result<Self> {
        // As for `perf`, whose counts are on standard error, too.
        let path = args.output.as_ref().filter(|path| path.as_os_str() != "-");
        let Some(path) = path else { return Ok(Self::StandardError) };
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(args.append).truncate(false);
        let file = options.open(path).map_err(|e| cannot_be_written(path, &e))?;
        Ok(Self::File { path: path.clone(), file, is_old: !args.append })
    }

    fn write(&mut self, text: &str) -> Result {
        match self {
            Self::StandardError => {
                std::io::stderr().write_all(text.as_bytes()).map_err(|e| Failure::stderr(&e))
            }
            Self::File { path, file, is_old } => {
                let emptied = if std::mem::take(is_old) { in_place::empty(file) } else { Ok(()) };
                let written = emptied.and_then(|()| file.write_all(text.as_bytes()));
                written.map_err(|e| cannot_be_written(path, &e))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_monitor::Event;
    use std::cell::Cell;

    fn unopened() -> Vec<Counted> {
        let event = |name| Event::tracepoint_id(name, 1);
        vec![
            Counted::unopened(vec![event("a:a"), event("a:b")]),
            Counted::unopened(vec![event("a:c")]),
        ]
    }

    #[test]
    fn groups_that_cannot_be_read_are_opened_again() {
        // A thread starts while a group is opened, this number of times.
        let open = |times: usize| {
            let opened = Cell::new(0);
            let reads = Cell::new(0);
            let open = || {
                opened.set(opened.get() + 1);
                Ok((unopened(), Vec::new()))
            };
            let read = |group: &Counted| {
                reads.set(reads.get() + 1);
                let is_divided = group.events.len() > 1 && opened.get() <= times;
                Ok((!is_divided).then(|| vec![vec![Count::default(); group.events.len()]]))
            };
            let result = open_readable(open, read);
            // Groups after one that cannot be read are not read: each can take a second.
            assert_eq!(reads.get(), opened.get() + usize::from(result.is_ok()));
            (
                opened.get(),
                result.map(|opened| opened.before.len()).map_err(|e| e.message().to_owned()),
            )
        };
        assert_eq!(open(0), (1, Ok(2)));
        assert_eq!(open(ATTEMPTS - 1), (ATTEMPTS, Ok(2)));
        let (opened, result) = open(usize::MAX);
        let error = result.unwrap_err();
        assert_eq!(opened, ATTEMPTS);
        assert!(error.contains("a:a: ") && error.contains("try again"), "{error}");
    }

    #[test]
    fn a_group_that_cannot_be_read_does_not_take_the_others_away() {
        let mut count = Count::default();
        (count.value, count.time_enabled, count.time_running) = (5, Some(10), Some(10));
        let rows = rows(&unopened(), &[Counts::default(), vec![vec![count]]]);
        let report =
            Report { elapsed: Duration::ZERO, at: None, runs: None, rows, left_out: Vec::new() };
        assert_eq!(
            report.print(Form::Fields(",")),
            "<not counted>,,a:a,0,0.00,,\n<not counted>,,a:b,0,0.00,,\n5,,a:c,10,100.00,,\n"
        );
    }

    #[test]
    fn counts_of_some_cores_are_not_extrapolated() {
        let mut group = Counted::unopened(vec![Event::tracepoint_id("a:a", 1)]);
        let mut count = Count::default();
        (count.value, count.time_enabled, count.time_running) = (5, Some(10), Some(4));
        let mut printed = |cores: Option<&str>| {
            group.cores = cores.map(str::to_owned);
            let rows = rows(std::slice::from_ref(&group), &[vec![vec![count]]]);
            let elapsed = Duration::ZERO;
            let report = Report { elapsed, at: None, runs: None, rows, left_out: Vec::new() };
            report.print(Form::Text)
        };
        assert!(printed(None).contains("12  a:a"));
        let text = printed(Some("cpu_core"));
        let mark = "(counted 40.0 % of the time, on the cores of cpu_core only)";
        assert!(text.contains(" 5  a:a") && text.contains(mark), "{text}");
        // Another event of these cores was counted all the time: this one lacked a counter.
        let mut other = Counted::unopened(vec![Event::tracepoint_id("a:b", 1)]);
        other.cores.clone_from(&group.cores);
        let mut whole = count;
        whole.time_running = Some(10);
        let rows = rows(&[group, other], &[vec![vec![count]], vec![vec![whole]]]);
        assert!(rows.iter().all(|row| row.cores.is_none()));
        let elapsed = Duration::ZERO;
        let report = Report { elapsed, at: None, runs: None, rows, left_out: Vec::new() };
        let text = report.print(Form::Text);
        assert!(text.contains(" 12  a:a") && text.contains("(estimated: counted 40.0 %"), "{text}");
    }

    #[test]
    fn the_name_of_a_tab_is_one() {
        let separator = |text| separator(text).unwrap();
        assert_eq!([separator("\\t"), separator(","), separator("\\tx")], ["\t", ",", "\\tx"]);
    }
}
