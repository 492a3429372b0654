//! `triscope top`.

mod live;
mod methods;
mod print;
mod rows;
mod screen;
mod view;

use crate::failure::{Failure, Result};
use crate::run::child::output_to_stderr;
use crate::run::duration::duration;
use crate::run::sample_rate;
use crate::run::target::{self, Target, threads};
use crate::run::watch::Watch;
use crate::sources::goroutines;
use crate::sources::kernel::sampling::{
    Opened, Rate, Scope, THIS_THREAD, with_kernel_or_not, with_switches,
};
use crate::sources::kernel::{self, failure, report_namespace, report_small_rings_of};
use crossbeam_channel::after;
use live::Live;
use perf_monitor::{Event, EventBuilder, Software};
use rows::By;
use screen::Screen;
use std::io::{IsTerminal as _, stdin, stdout};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use view::{Action, Header, View};

/// Show live where CPU time goes, or where threads wait: by function, thread, process or goroutine
///
/// The table has the samples of the last interval. SELF is the share of samples in a function itself,
/// TOTAL that of samples in it and in what it calls. Stacks are found by frame pointers, as in triscope
/// profile. Methods of .NET programs have names after some seconds, and --once and --json have all.
///
/// With --off-cpu and --wall, shares are of time. SELF of a wait is that of the function that called the
/// kernel. Waits that last count up to the end of each interval. A thread is known from the first time
/// that it leaves the CPU.
///
/// Keys: Tab selects what the rows are, s the order, / filters rows by a text, p or Space pauses, arrows
/// and PageUp and PageDown scroll, q or Ctrl-C ends.
///
/// It needs a terminal. --once and --json print the first interval anywhere; the output of a command then
/// goes to standard error. triscope perf top prints
/// tables of symbols by thread name, as a log without a terminal, and without stacks.
#[derive(clap::Args)]
#[command(group = target::required(), after_help = concat!("\
Examples:
  triscope top -a
  triscope top -p 1234 --by thread
  triscope top --by goroutine -p 1234          of a Go program
  triscope top --off-cpu -p 1234               where its threads wait
  triscope top -a --once --rows 10
  triscope top --json --delay 5 -p 1234 | jq '.functions[0]'
  triscope top ./program                       its output is discarded

Your own processes need no privilege while kernel.perf_event_paranoid is 2 or less; above 1, stacks
have no kernel part. --off-cpu and --wall need 1 or less.
", target::privileges!()))]
pub(crate) struct Args {
    /// What the rows are
    #[arg(long, value_name = "KIND", default_value = "function")]
    by: By,
    /// Samples per second of CPU time
    #[arg(short = 'F', long, value_name = "HERTZ", default_value_t = sample_rate::USUAL,
          value_parser = clap::value_parser!(u64).range(1..))]
    freq: u64,
    /// Sample this event [default: cycles, or cpu-clock if not all CPUs count them]
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// The time that threads are away from the CPU, by the stack where they left it
    #[arg(long, conflicts_with_all = ["wall", "event"])]
    off_cpu: bool,
    /// The time of threads on and off the CPU
    #[arg(long, conflicts_with = "event")]
    wall: bool,
    /// Length of an interval
    #[arg(short, long, value_name = "SECONDS", value_parser = duration, default_value = "2")]
    delay: Duration,
    /// Only rows with this text, ignoring case
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print the first interval as a table, and end; a command that still runs then gets SIGTERM
    #[arg(long, conflicts_with = "json")]
    once: bool,
    /// Print the first interval as JSON, by function, thread and process, with --by goroutine also by goroutine, and
    /// end; a command that still runs then gets SIGTERM
    #[arg(long)]
    json: bool,
    /// Rows of the table of --once; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20, requires = "once")]
    rows: usize,
    /// Do not ask .NET runtimes for the names of their methods
    #[arg(long)]
    no_dotnet: bool,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, visible_alias = "duration", value_name = "SECONDS", value_parser = duration)]
    seconds: Option<Duration>,
    #[command(flatten)]
    target: Target,
}

/// Maximum number of pages of a CPU's buffer: a second at a high rate.
const PAGES: usize = 256;

/// Maximum time between reads of the rings, and between a key and its effect.
const ROUND: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &Args) -> Result {
    let is_printed = args.once || args.json;
    let is_terminal = stdin().is_terminal() && stdout().is_terminal();
    if !(is_printed || is_terminal) {
        let what = "top needs a terminal as its input and output: use --once or --json";
        return Err(Failure::new(what).with_code(2));
    }
    sample_rate::check(args.freq)?;
    let mut opened = open(args, args.sampled()?.as_ref())?;
    let mut live = Live::start(args, &mut opened)?;
    let mut watch = match &args.target.command[..] {
        [] => Watch::running(&args.target.pids(), args.seconds)?,
        command if is_printed => Watch::command(command, args.seconds, output_to_stderr)?,
        command => Watch::command(command, args.seconds, discard_output)?,
    };
    let shown = if is_printed {
        print(args, &mut opened, &mut live, &mut watch)
    } else {
        show(args, &mut opened, &mut live, &mut watch)
    };
    if let Err(failure) = shown {
        let _ = opened.set.disable(); // they are closed at the end of the command
        return watch.see_out(Err(failure));
    }
    // A command that has ended by itself has the exit code.
    if watch.status().is_some() { watch.outcome() } else { Ok(()) }
}

/// The output of the command would be in the table.
fn discard_output(command: &mut Command) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
}

impl Args {
    /// Whether context switches are sampled.
    const fn has_switches(&self) -> bool {
        self.off_cpu || self.wall
    }

    /// The event that is sampled beside context switches.
    fn sampled(&self) -> Result<Option<Event>> {
        let event = match &self.event {
            _ if self.off_cpu => return Ok(None),
            // Its unit is that of the time off the CPU.
            _ if self.wall => return Ok(Some(Event::software(Software::CpuClock))),
            Some(text) => kernel::event(text),
            None => kernel::usual_event(),
        };
        event.map(Some).map_err(failure)
    }

    /// An event whose samples have the registers that goroutines are found by, if they are wanted.
    fn registers(&self, builder: EventBuilder) -> EventBuilder {
        if self.by == By::Goroutine { goroutines::registers(builder) } else { builder }
    }
}

/// Opens the events; without the kernel if only that is permitted, and possible.
fn open(args: &Args, event: Option<&Event>) -> Result<Opened> {
    let cpus = args.target.cpus()?;
    let mut tids = threads(&args.target.pids())?;
    let on_exec = args.target.starts_on_exec();
    if on_exec {
        tids.push(THIS_THREAD);
    }
    let inherit = !args.target.is_system_wide();
    let scope = Scope { tids, cpus, inherit, on_exec, ..Scope::default() };
    let open = |user_only| {
        let mut opened = scope.open(None, PAGES, user_only)?;
        if let Some(event) = event {
            let chains = scope.chains(event, Rate::Usual(args.freq), user_only);
            opened.add(&args.registers(chains))?;
        }
        if args.has_switches() {
            opened.add(&args.registers(scope.switches()))?;
        }
        report_small_rings_of(&opened.set, PAGES, None);
        report_namespace(args.target.is_system_wide());
        opened.with_sideband()
    };
    match args.has_switches() {
        true => with_switches(open),
        false => with_kernel_or_not(event, open).map_err(failure),
    }
}

/// Prints the first interval.
fn print(args: &Args, opened: &mut Opened, live: &mut Live, watch: &mut Watch) -> Result {
    let start = Instant::now();
    while !watch.wait(&after(Duration::ZERO))? && start.elapsed() < args.delay {
        live.round(opened, watch)?;
        opened.set.wait(Some(ROUND)).map_err(failure)?;
    }
    opened.set.disable().map_err(failure)?;
    let duration = start.elapsed();
    live.rest(opened)?;
    let interval = live.interval(opened, duration)?;
    match args.json {
        true => print::json(&interval, &args.filter),
        false => print::table(&interval, args.by, &args.filter, args.rows),
    }?;
    live.print_problems();
    Ok(())
}

/// Shows the intervals until the end.
fn show(args: &Args, opened: &mut Opened, live: &mut Live, watch: &mut Watch) -> Result {
    let mut view = View::new(Header::of(args, opened), args.by, args.filter.clone());
    let mut screen = Screen::start()?;
    screen.draw(&mut view)?;
    let mut start = Instant::now();
    loop {
        let has_ended = watch.wait(&after(Duration::ZERO))?;
        live.round(opened, watch)?;
        let mut is_changed = false;
        if has_ended || start.elapsed() >= args.delay {
            // Samples that are taken while names are looked up belong to the next interval.
            let now = Instant::now();
            view.update(live.interval(opened, now - start)?);
            start = now;
            is_changed = true;
        }
        while let Some(event) = screen.event() {
            is_changed = true;
            if view.handle(&event) == Action::End {
                drop(screen);
                live.print_problems();
                return Ok(());
            }
        }
        if is_changed {
            screen.draw(&mut view)?;
        }
        if has_ended {
            drop(screen);
            live.print_problems();
            return Ok(());
        }
        opened.set.wait(Some(ROUND)).map_err(failure)?;
    }
}
