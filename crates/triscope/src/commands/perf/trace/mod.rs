mod print;
mod syscalls;

use crate::failure::{Failure, Result};
use crate::io::stdout::Output;
use crate::run::child::output_to_stderr;
use crate::run::duration::duration;
use crate::run::target::{self, Target as WatchTarget, threads};
use crate::run::watch::Watch;
use crate::sources::kernel::events::events;
use crate::sources::kernel::hotplug::Hotplug;
use crate::sources::kernel::{check_realtime, failure, report_small_rings, rings, tracefs};
use crate::sources::symbols::Symbols;
use crate::sources::symbols::live::{Before, sideband, take_stock};
use crate::timeline::counted;
use crossbeam_channel::tick;
use perf_monitor::{
    Event, EventBuilder, FieldFormat, RealtimeThread, RingSet, SampleFlags, SetEvent, Software,
    Tracefs, TracepointFormat,
};
use print::{Printed, Printer};
use std::collections::HashMap;
use std::time::Duration;
use syscalls::Role;

/// Show tracepoints live, with their fields
///
/// Lines are in time order over all CPUs: `time cpu thread event field=value …`, with the time in
/// seconds of CLOCK_MONOTONIC. Text that is empty or contains spaces is quoted. Events that did not
/// fit in the kernel's buffers are reported at the position of the loss. COMMAND prints on standard
/// error, and the exit status is its own.
///
/// A system call with both of its tracepoints (syscalls:sys_enter_NAME and sys_exit_NAME) is one line
/// at the time of its return: `NAME(argument: value, …) = result <seconds>`. The result is `?` if the
/// return was not seen: no call continues after the end of its thread, or where events were lost.
///
/// Needs root, or CAP_PERFMON (at kernel.perf_event_paranoid 3 and above CAP_SYS_ADMIN) and a tracefs that
/// the user may read.
#[derive(clap::Args)]
#[command(group = target::required(), after_help = "\
Examples:
  triscope perf trace -e sched:sched_process_exec -a            until Ctrl-C
  triscope perf trace -e raw_syscalls:sys_enter --filter 'id == 257' ls
  triscope perf trace -e sched:sched_switch,sched:sched_waking -p 1234 --seconds 5
  triscope perf trace -e 'syscalls:sys_*_openat' --comm 'nginx*' -a
  triscope perf trace -e block:block_rq_issue -g --json -a | jq .fields.sector

`triscope perf list :` lists the tracepoints. An invalid filter is refused with the fields of the
tracepoint. Filters are described in the kernel's Documentation/trace/events.rst.")]
pub(crate) struct Args {
    /// Tracepoints, separated by commas; can be repeated. * and ? match any characters and one
    #[arg(short, long, value_name = "SYSTEM:NAME", required = true)]
    event: Vec<String>,
    /// Only events whose fields match, in the kernel's filter syntax: id == 257 && ret < 0. With
    /// several tracepoints, all must have the fields
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,
    /// Only events of threads with this name; * and ? match any characters and one (Linux 4.5)
    #[arg(long, value_name = "NAME", value_parser = comm)]
    comm: Option<String>,
    /// Record call chains, and print them below the event
    #[arg(short = 'g', long)]
    call_graph: bool,
    /// Print JSON, one object per line, with times in nanoseconds
    #[arg(long)]
    json: bool,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, visible_alias = "duration", value_name = "SECONDS", value_parser = duration)]
    seconds: Option<Duration>,
    /// Pages of each CPU's buffer, a power of two [default: 256, or the maximum for this user]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// Read the buffers with this realtime priority (SCHED_FIFO), 1 to 99
    #[arg(short, long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99))]
    realtime: Option<u8>,
    #[command(flatten)]
    target: WatchTarget,
}

/// Default number of pages of a CPU's buffer.
const PAGES: usize = 256;

/// Interval between reads of the rings, short enough for live output.
const ROUND: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &Args) -> Result {
    let tracefs = tracefs().map_err(failure)?;
    let mut formats = Vec::new();
    for event in events(&args.event)? {
        // The name can be followed by modifiers.
        let mut parts = event.name().split(':');
        let (Some(_), Some(system), Some(name)) =
            (event.as_tracepoint(), parts.next(), parts.next())
        else {
            let why = "not a tracepoint; see triscope perf list";
            return Err(Failure::about(event.name(), why).with_code(2));
        };
        let format = tracefs.format(system, name).map_err(failure)?;
        formats.push((event, format));
    }
    args.target.cpus()?;
    check_realtime(args.realtime)?;
    let tids = threads(&args.target.pids())?;
    let end = end_of_threads(&tracefs);
    let (set, opened) = open(args, &formats, end.as_ref(), &tids).map_err(failure)?;
    let (events, printed) = opened.into_iter().unzip();
    let symbols = args.call_graph.then(Symbols::live);
    let printer = Printer {
        events,
        printed,
        is_json: args.json,
        symbols,
        calls: HashMap::new(),
        lost: 0,
        outside: 0,
        undecodable: 0,
    };
    let mut tracer = Tracer { set, printer };

    // Mappings that begin while the list is read are in the records about tasks. Of other events, nothing is read meanwhile.
    if !args.target.starts_on_exec() {
        let sideband = tracer.set.sideband();
        sideband.map_or(Ok(()), |event| tracer.set.enable_event(event)).map_err(failure)?;
    }
    tracer.take_stock(args)?;
    if !args.target.starts_on_exec() {
        tracer.set.enable().map_err(failure)?;
    }
    let mut watch = if args.target.command.is_empty() {
        Watch::running(&args.target.pids(), args.seconds)?
    } else {
        Watch::command(&args.target.command, args.seconds, output_to_stderr)?
    };
    let traced = tracer.run(args, &mut watch);
    if traced.is_err() {
        let _ = tracer.set.disable(); // they are closed at the end of the command
    }
    watch.see_out(traced)?;
    let report = |count: u64, what: &str| {
        if count > 0 {
            message!("triscope: {} {what}", counted(count, "event"));
        }
    };
    let stats = tracer.set.stats();
    report(tracer.printer.lost, "lost: use more --pages, --realtime or a --filter");
    report(tracer.printer.not_shown(&stats), "could not be decoded and are not shown");
    report(stats.late, "printed out of order");
    let outside = "of threads outside of this PID namespace: their number in it is 0";
    report(tracer.printer.outside, outside);
    watch.outcome()
}

/// The tracepoint of the end of a thread. Without it, calls end when their thread is seen again.
fn end_of_threads(tracefs: &Tracefs) -> Option<(Event, TracepointFormat)> {
    const NAME: &str = "sched_process_exit";
    Some((tracefs.event("sched", NAME).ok()?, tracefs.format("sched", NAME).ok()?))
}

/// Opens the events, and finds the fields to print of each. The end of threads is for calls.
fn open<'a>(
    args: &Args,
    formats: &'a [(Event, TracepointFormat)],
    end: Option<&'a (Event, TracepointFormat)>,
    tids: &[u32],
) -> perf_monitor::Result<(RingSet, Vec<(SetEvent, Printed<'a>)>)> {
    let command = args.target.starts_on_exec();
    let mut options = rings(args.pages, PAGES);
    // A command inherits the events of this thread.
    let this_thread: &[u32] = if command { &[0] } else { &[] };
    for tid in tids.iter().chain(this_thread) {
        options = options.thread(*tid);
    }
    if let Some(cpus) = &args.target.cpu {
        options = options.cpus(cpus.0.iter().copied());
    }
    let common = |builder: EventBuilder| {
        builder.inherit(!args.target.is_system_wide()).enable_on_exec(command)
    };
    if args.call_graph {
        let dummy = Event::software(Software::Dummy).builder().sample(SampleFlags::TID);
        options = options.sideband(&sideband(common(dummy)));
    }
    let mut set = options.open()?;
    if args.pages.is_none() {
        report_small_rings(&set, PAGES);
    }
    let chain = if args.call_graph { SampleFlags::CALLCHAIN } else { SampleFlags::empty() };
    let fields = SampleFlags::TID | SampleFlags::CPU | SampleFlags::RAW | chain;
    let filter = args.kernel_filter();
    let mut printed = Vec::new();
    for (event, format) in formats {
        let builder = common(event.builder().sample_period(1).sample(fields));
        let added = set.add(&builder)?;
        if let Some(filter) = &filter {
            set.set_filter(added, filter).map_err(|error| with_fields(error, format))?;
        }
        let role = Role::of(format, formats.iter().map(|(_, format)| format));
        printed.push((added, Printed::new(event, format, role)));
    }
    let has_calls = printed.iter().any(|(_, printed)| printed.role != Role::None);
    if let Some((event, format)) = end.filter(|_| has_calls) {
        let fields = SampleFlags::TID | SampleFlags::CPU | SampleFlags::RAW;
        let added = set.add(&common(event.builder().sample_period(1).sample(fields)))?;
        printed.push((added, Printed::new(event, format, Role::End)));
    }
    Ok((set, printed))
}

impl Args {
    /// The filter that the kernel applies to each event.
    fn kernel_filter(&self) -> Option<String> {
        // In capitals it is the thread's name, whatever the fields of the tracepoint are.
        let comm = self.comm.as_ref().map(|comm| format!("COMM ~ \"{comm}\""));
        match (&self.filter, comm) {
            (Some(filter), Some(comm)) => Some(format!("({filter}) && {comm}")),
            (Some(filter), None) => Some(filter.clone()),
            (None, comm) => comm,
        }
    }
}

/// A pattern of thread names that the kernel's filter syntax can express.
fn comm(text: &str) -> std::result::Result<String, String> {
    match text.is_empty() || text.contains(['"', '\\']) {
        true => Err("expected a thread name without quotes and backslashes".into()),
        false => Ok(text.to_owned()),
    }
}

/// Adds the fields of the tracepoint to the error of a rejected filter, if it does not have them: they
/// are not found in a private tracefs.
fn with_fields(error: perf_monitor::Error, format: &TracepointFormat) -> perf_monitor::Error {
    match error {
        perf_monitor::Error::Filter { event, filter, errno, why }
            if !why.contains("the fields are") =>
        {
            let names: Vec<&str> = format.fields().iter().map(FieldFormat::name).collect();
            let why = format!("the fields are {}", names.join(", "));
            perf_monitor::Error::Filter { event, filter, errno, why }
        }
        other => other,
    }
}

struct Tracer<'a> {
    set: RingSet,
    printer: Printer<'a>,
}

impl Tracer<'_> {
    /// Learns the mappings that exist already.
    fn take_stock(&mut self, args: &Args) -> Result {
        let Some(symbols) = &mut self.printer.symbols else { return Ok(()) };
        let pids = args.target.pids();
        let before = match args.target.starts_on_exec() {
            true => Before::Command,
            false => Before::Processes(&pids),
        };
        take_stock(&self.set, &before, |layout, raw| {
            if let Ok(record) = layout.decode(raw) {
                symbols.apply_live(&record, layout, raw);
            }
        })
    }

    /// Prints until the watch ends.
    fn run(&mut self, args: &Args, watch: &mut Watch) -> Result {
        let Self { set, printer } = self;
        // The command was started before: it keeps its ordinary priority.
        let _realtime = args.realtime.map(RealtimeThread::begin).transpose().map_err(failure)?;
        let mut out = Output::new();
        let rounds = tick(ROUND);
        let mut hotplug = Hotplug::new(args.target.starts_on_exec());
        let mut ended = false;
        while !ended {
            hotplug.look(set);
            set.round(|record| printer.record(&record, &mut out))?;
            out.write()?;
            ended = watch.wait(&rounds)?;
        }
        set.disable().map_err(failure)?;
        set.drain(|record| printer.record(&record, &mut out))?;
        set.count_losses().map_err(failure)?;
        printer.finish(&mut out);
        printer.lost += set.stats().rings.lost_at_end.unwrap_or(0); // unknown before Linux 6.0
        out.finish()
    }
}
