//! `triscope top`.

mod live;
mod methods;
mod print;
mod rows;
mod screen;
mod view;

use crate::failure::{Failure, Result};
use crate::run::duration::duration;
use crate::run::target::{Target, threads};
use crate::run::watch::Watch;
use crate::sources::goroutines;
use crate::sources::kernel::sampling::{Opened, Rate, Scope, THIS_THREAD, with_kernel_or_not};
use crate::sources::kernel::{self, failure, report_small_rings};
use crossbeam_channel::after;
use live::Live;
use perf_monitor::Event;
use rows::By;
use screen::Screen;
use std::io::{IsTerminal as _, stdin, stdout};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use view::{Action, Header, View};

/// Show live where CPU time goes: by function, thread, process or goroutine
///
/// The table has the samples of the last interval. SELF is the share of samples in a function itself,
/// TOTAL that of samples in it and in what it calls. Stacks are found by frame pointers, as in triscope
/// profile. Methods of .NET programs of a command or -p have names after some seconds, and --once and
/// --json have all.
///
/// Keys: Tab selects what the rows are, s the order, / filters rows by a text, p or Space pauses, arrows
/// and PageUp and PageDown scroll, q or Ctrl-C ends.
///
/// It needs a terminal. --once and --json print the first interval anywhere. triscope perf top prints
/// tables of symbols by thread name, as a log without a terminal, and without stacks.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope top -a
  triscope top -p 1234 --by thread
  triscope top --by goroutine -p 1234          of a Go program
  triscope top -a --once --rows 10
  triscope top --json --delay 5 -p 1234 | jq '.functions[0]'
  triscope top ./program                       its output is discarded

Your own processes need no privilege while kernel.perf_event_paranoid is 2 or less; above 1, stacks
have no kernel part. -a needs root or CAP_PERFMON.")]
pub(crate) struct Args {
    /// What the rows are
    #[arg(long, value_name = "KIND", default_value = "function")]
    by: By,
    /// Samples per second of CPU time
    #[arg(short = 'F', long, value_name = "HERTZ", default_value_t = 999,
          value_parser = clap::value_parser!(u64).range(1..))]
    freq: u64,
    /// Sample this event [default: cycles, or cpu-clock on machines without hardware counters]
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// Length of an interval
    #[arg(short, long, value_name = "SECONDS", value_parser = duration, default_value = "2")]
    delay: Duration,
    /// Only rows with this text, in any case
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print the first interval as a table, and end
    #[arg(long, conflicts_with = "json")]
    once: bool,
    /// Print the first interval as JSON, by everything, and end
    #[arg(long)]
    json: bool,
    /// Rows of the table of --once; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20, requires = "once")]
    rows: usize,
    /// Do not ask .NET runtimes for the names of their methods
    #[arg(long)]
    no_dotnet: bool,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
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
    let event = match &args.event {
        Some(text) => kernel::event(text).map_err(failure)?,
        None => kernel::usual_event().map_err(failure)?,
    };
    let mut opened = open(args, &event)?;
    let mut live = Live::start(args, &mut opened)?;
    let watch = match &args.target.command[..] {
        [] => Watch::running(&args.target.pid, args.seconds)?,
        command if is_printed => Watch::command(command, args.seconds, |_| ())?,
        command => Watch::command(command, args.seconds, discard_output)?,
    };
    if is_printed {
        print(args, &mut opened, &mut live, watch)
    } else {
        show(args, &mut opened, &mut live, watch)
    }
}

/// The output of the command would be in the table.
fn discard_output(command: &mut Command) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
}

/// Opens the event; without the kernel if only that is permitted.
fn open(args: &Args, event: &Event) -> Result<Opened> {
    let mut tids = threads(&args.target.pid)?;
    let on_exec = args.target.starts_on_exec();
    if on_exec {
        tids.push(THIS_THREAD);
    }
    let (cpus, inherit) = (args.target.cpu.clone(), !args.target.is_system_wide());
    let scope = Scope { tids, cpus, inherit, on_exec, ..Scope::default() };
    let opened = with_kernel_or_not(|user_only| {
        let mut opened = scope.open(None, PAGES, user_only)?;
        let chains = scope.chains(event, Rate::Usual(args.freq), user_only);
        let has_goroutines = args.by == By::Goroutine;
        opened.add(&if has_goroutines { goroutines::registers(chains) } else { chains })?;
        report_small_rings(&opened.set, PAGES);
        opened.with_sideband()
    });
    opened.map_err(failure)
}

/// Prints the first interval. A command that still runs gets SIGTERM.
fn print(args: &Args, opened: &mut Opened, live: &mut Live, mut watch: Watch) -> Result {
    let start = Instant::now();
    let end = start + args.delay;
    while !watch.wait(&after(Duration::ZERO))? && Instant::now() < end {
        live.round(opened, &watch)?;
        opened.set.wait(Some(ROUND)).map_err(failure)?;
    }
    opened.set.disable().map_err(failure)?;
    live.rest(opened)?;
    let interval = live.interval(opened, start.elapsed())?;
    match args.json {
        true => print::json(&interval),
        false => print::table(&interval, args.by, &args.filter, args.rows),
    }
}

/// Shows the intervals until the end.
fn show(args: &Args, opened: &mut Opened, live: &mut Live, mut watch: Watch) -> Result {
    let mut view = View::new(Header::of(args, opened), args.by, args.filter.clone());
    let mut screen = Screen::start()?;
    screen.draw(&mut view)?;
    let mut start = Instant::now();
    loop {
        let has_ended = watch.wait(&after(Duration::ZERO))?;
        live.round(opened, &watch)?;
        let mut is_changed = false;
        if has_ended || start.elapsed() >= args.delay {
            let interval = live.interval(opened, start.elapsed())?;
            start = Instant::now();
            view.update(interval);
            is_changed = true;
        }
        while let Some(event) = screen.event() {
            is_changed = true;
            if view.handle(&event) == Action::End {
                return Ok(());
            }
        }
        if is_changed {
            screen.draw(&mut view)?;
        }
        if has_ended {
            drop(screen);
            return watch.outcome();
        }
        opened.set.wait(Some(ROUND)).map_err(failure)?;
    }
}
