use crate::failure::{OneLine, Result};
use crate::io::stdout::Output;
use crate::io::terminal;
use crate::run::child::output_to_stderr;
use crate::run::duration::duration;
use crate::run::procfs::is_in_container;
use crate::run::sample_rate;
use crate::run::target::{self, Processes, threads};
use crate::run::watch::Watch;
use crate::sources::kernel::events::Cpus;
use crate::sources::kernel::hotplug::Hotplug;
use crate::sources::kernel::sampling::{THIS_THREAD, with_kernel_or_not, without_kernel};
use crate::sources::kernel::{self, failure, report_namespace, report_small_rings_of, rings};
use crate::sources::symbols::Symbols;
use crate::sources::symbols::live::{Before, sideband, take_stock};
use crossbeam_channel::after;
use perf_monitor::{
    Event, RawRecord, Record, RecordLayout, RingSet, SampleFlags, SetRecord, Software, Tasks,
    Timestamp, max_sample_rate,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Show live where CPU time goes: by thread name, file and symbol
///
/// The table has the samples of the last interval. On a terminal it is refreshed in place; otherwise
/// one table follows the other; with --json, one object on a line. Ctrl-C ends it. COMMAND prints on
/// standard error.
///
/// Samples of a clock on idle CPUs are counted, and not in the table. Other events do not occur there. In a
/// PID namespace, they are in one row with the threads outside of it.
///
/// It takes no stacks, as perf top: symbols are those of the sampled instructions. triscope top has
/// callers, goroutines and .NET methods, rows by process or thread, and keys to sort and filter.
#[derive(clap::Args)]
#[command(after_help = concat!("\
Examples:
  triscope perf top
  triscope perf top -p 1234 -d 5
  triscope perf top --json ./program | jq '.rows[0]'
  triscope perf top -e page-faults -C 0

Your own processes (-p, or a COMMAND) need no privilege while kernel.perf_event_paranoid is 2 or
less; above 1 only user space is sampled.
", target::privileges!()))]
pub(crate) struct Args {
    /// The event [default: cycles, or cpu-clock if not all CPUs count them]
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// Samples per second and CPU
    #[arg(short = 'F', long, value_name = "HERTZ", default_value_t = 997,
          value_parser = clap::value_parser!(u64).range(1..))]
    freq: u64,
    #[command(flatten)]
    processes: Processes,
    /// Everything, on all CPUs (the default without a process and COMMAND); with a COMMAND, while it runs
    #[arg(short = 'a', long, conflicts_with = "Processes")]
    all_cpus: bool,
    /// Only on these CPUs, such as 0-3,8
    #[arg(short = 'C', long = "cpu", value_name = "CPUS")]
    cpus: Option<Cpus>,
    /// Interval between tables
    #[arg(short, long, value_name = "SECONDS", value_parser = duration, default_value = "2")]
    delay: Duration,
    /// Rows of a table [default: the height of the terminal, or 20; all with --json]
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
    /// Print each table as a JSON object
    #[arg(long)]
    json: bool,
    /// Stop after SECONDS; a command then gets SIGTERM
    #[arg(long, visible_alias = "duration", value_name = "SECONDS", value_parser = duration)]
    seconds: Option<Duration>,
    /// A command to start, with its arguments; its children are included
    #[arg(trailing_var_arg = true, value_name = "COMMAND", conflicts_with = "Processes")]
    command: Vec<String>,
}

/// Maximum number of pages of a CPU's buffer: a second at a high rate.
const PAGES: usize = 256;

/// Files after which those of ended processes are forgotten: memory does not grow with the time. The limit
/// is twice the number of those that are mapped at once, if that is more.
const MAX_FILES: usize = 1 << 16;

/// Maximum time between reads of the rings.
const ROUND: Duration = Duration::from_millis(100);

/// What is known, and the samples since the last table.
struct Live {
    tasks: Tasks,
    symbols: Symbols,
    hotplug: Hotplug,
    rows: HashMap<Row, Weight>,
    all: Weight,
    /// Samples of a clock on idle CPUs, which are no others.
    idle: u64,
    is_clock: bool,
    max_files: usize,
    /// In a PID namespace, where threads outside of it have the number of the idle ones.
    is_inside: bool,
    undecodable: u64,
}

/// The threads outside of the PID namespace of this program, and idle CPUs.
const OUTSIDE: &str = "[outside of this PID namespace]";

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Row {
    comm: String,
    file: String,
    symbol: String,
}

/// Samples, and the events that they stand for: the kernel changes the period of each CPU to keep the
/// frequency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Weight {
    periods: u64,
    samples: u64,
}

impl Weight {
    fn add(&mut self, period: u64) {
        self.periods = self.periods.saturating_add(period);
        self.samples += 1;
    }
}

pub(crate) fn run(args: &Args) -> Result {
    let event = match &args.event {
        Some(text) => kernel::event(text).map_err(failure)?,
        None => kernel::usual_event().map_err(failure)?,
    };
    sample_rate::check(args.freq)?;
    args.cpus.as_ref().map_or(Ok(()), Cpus::check)?;
    let pids = args.processes.ids();
    let mut tids = threads(&pids)?;
    let on_exec = !args.command.is_empty() && !args.all_cpus;
    if on_exec {
        tids.push(THIS_THREAD);
    }
    // A kernel that permits fewer takes fewer.
    let most = max_sample_rate().and_then(|most| u64::try_from(most).ok()).unwrap_or(args.freq);
    let sampled = event
        .builder()
        .sample_freq(args.freq.min(most))
        .sample(SampleFlags::IP | SampleFlags::TID | SampleFlags::PERIOD)
        .inherit(!tids.is_empty())
        .enable_on_exec(on_exec);
    // On all CPUs, also if the sampled event is on some.
    let dummy = Event::software(Software::Dummy).builder().sample(SampleFlags::TID);
    let dummy = dummy.exclude_kernel(true).exclude_hv(true).inherit(!tids.is_empty());
    let dummy = sideband(dummy.enable_on_exec(on_exec));
    let open = |user_only| {
        let mut options = rings(None, PAGES).sideband(&dummy);
        for tid in &tids {
            options = options.thread(*tid);
        }
        if let Some(Cpus(cpus)) = &args.cpus {
            options = options.cpus(cpus.iter().copied());
        }
        let mut set = options.open()?;
        set.add(&without_kernel(sampled.clone(), user_only))?;
        Ok((set, user_only))
    };
    let (mut set, user_only) = with_kernel_or_not([&event], open).map_err(failure)?;
    let name = format!("{event}{}", if user_only { ":u" } else { "" });
    report_small_rings_of(&set, PAGES, None);
    report_namespace(tids.is_empty());
    let is_clock = matches!(event.name().split(':').next(), Some("cpu-clock" | "task-clock"));
    let mut live = Live::new(on_exec, is_clock, is_in_container());
    if !on_exec {
        set.enable().map_err(failure)?;
    }
    let before = if on_exec { Before::Command } else { Before::Processes(&pids) };
    take_stock(&set, &before, |layout, raw| live.apply(layout, raw))?;
    let mut watch = match &args.command[..] {
        [] => Watch::running(&pids, args.seconds)?,
        command => Watch::command(command, args.seconds, output_to_stderr)?,
    };
    let shown = live.show(args, &name, &mut set, &mut watch);
    if shown.is_err() {
        let _ = set.disable(); // they are closed at the end of the command
    }
    watch.see_out(shown)?;
    watch.outcome()
}

impl Live {
    fn new(is_command: bool, is_clock: bool, is_inside: bool) -> Self {
        Self {
            tasks: Tasks::live(),
            symbols: Symbols::live(),
            hotplug: Hotplug::new(is_command),
            rows: HashMap::new(),
            all: Weight::default(),
            idle: 0,
            is_clock,
            max_files: MAX_FILES,
            is_inside,
            undecodable: 0,
        }
    }

    /// Prints tables until the end.
    fn show(&mut self, args: &Args, name: &str, set: &mut RingSet, watch: &mut Watch) -> Result {
        let mut start = Instant::now();
        let mut lost = 0;
        loop {
            let has_ended = watch.wait(&after(Duration::ZERO))?;
            self.hotplug.look(set);
            let each = |record: SetRecord<'_>| {
                self.apply(record.layout, record.raw);
                Ok::<(), perf_monitor::Error>(())
            };
            if has_ended {
                // A round keeps the last records back.
                set.finish(each).map_err(failure)?;
            } else {
                set.round(each).map_err(failure)?;
            }
            if has_ended || start.elapsed() >= args.delay {
                let total = set.stats().rings.lost;
                if args.json {
                    self.print_json(args, name, total - lost)?;
                } else {
                    self.print(args, name, total - lost)?;
                }
                self.symbols.look_again();
                self.forget_files(|live| {
                    take_stock(set, &Before::Processes(&[]), |layout, raw| live.apply(layout, raw))
                })?;
                lost = total;
                start = Instant::now();
            }
            if has_ended {
                return Ok(());
            }
            set.wait(Some(ROUND)).map_err(failure)?;
        }
    }

    /// Begins again with the files that are mapped now, which `take_stock` adds, if there were too many.
    fn forget_files(&mut self, take_stock: impl FnOnce(&mut Self) -> Result) -> Result {
        if self.symbols.files() > self.max_files {
            self.symbols = Symbols::live();
            take_stock(self)?;
            self.max_files = MAX_FILES.max(2 * self.symbols.files());
        }
        Ok(())
    }

    fn apply(&mut self, layout: &RecordLayout, raw: RawRecord<'_>) {
        let Ok(record) = layout.decode(raw) else {
            self.undecodable += 1;
            return;
        };
        let mode = raw.cpu_mode();
        self.symbols.apply_live(&record, layout, raw);
        if let Record::Sample(sample) = &record {
            let tid = sample.tid.unwrap_or(0);
            let time = sample.time.unwrap_or(Timestamp::from_nanos(i64::MAX));
            let comm = match self.tasks.at(tid, time) {
                _ if tid == 0 && self.is_inside => OUTSIDE.to_owned(),
                _ if tid == 0 => "swapper".to_owned(),
                Some(task) if !task.name().is_empty() => task.name().to_owned(),
                _ => format!(":{}", tid as i32),
            };
            if self.is_clock && tid == 0 && !self.is_inside {
                self.idle += 1;
                return;
            }
            let place = self.symbols.at(sample.pid.unwrap_or(0), sample.ip.unwrap_or(0), mode);
            let level = place.level();
            let symbol = match &place.symbol {
                Some(symbol) => format!("{level} {}", symbol.name),
                None => format!("{level} {:#018x}", place.address),
            };
            let file = place.file.unwrap_or("[unknown]").to_owned();
            let period = sample.period.unwrap_or(1);
            self.rows.entry(Row { comm, file, symbol }).or_default().add(period);
            self.all.add(period);
        }
        self.tasks.push(&record);
    }

    /// The rows of the table, that with the largest share first.
    fn take_rows(&mut self) -> Vec<(Row, Weight)> {
        let mut rows: Vec<(Row, Weight)> = self.rows.drain().collect();
        rows.sort_by(|(a, n), (b, m)| m.cmp(n).then_with(|| a.cmp(b)));
        rows
    }

    /// Prints the table on a line, and begins the next one.
    fn print_json(&mut self, args: &Args, event: &str, lost: u64) -> Result {
        let row = |(row, weight): (Row, Weight)| {
            json!({
                "comm": row.comm,
                "dso": row.file,
                "symbol": row.symbol,
                "samples": weight.samples,
                "periods": weight.periods,
            })
        };
        let rows = self.take_rows().into_iter().take(args.rows.unwrap_or(usize::MAX)).map(row);
        let table = json!({
            "event": event,
            "samples": self.all.samples,
            "periods": self.all.periods,
            "idle": self.idle,
            "lost": lost,
            "undecodable": self.undecodable,
            "rows": rows.collect::<Vec<Value>>(),
        });
        (self.all, self.idle, self.undecodable) = (Weight::default(), 0, 0);
        let mut out = Output::new();
        let _ = writeln!(out.buffer, "{table}"); // to a vector
        out.finish()
    }

    /// Prints the table, and begins the next one.
    fn print(&mut self, args: &Args, event: &str, lost: u64) -> Result {
        let mut out = Output::new();
        let is_terminal = std::io::stdout().is_terminal();
        let size = terminal::size();
        let height = size.map_or(20, |size| size.rows.saturating_sub(4).max(1));
        let width = size.map_or(usize::MAX, |size| size.columns);
        let rows = self.take_rows();
        // Writing to a vector does not fail.
        if is_terminal {
            let _ = write!(out.buffer, "\x1b[H\x1b[2J");
        }
        let idle = match self.idle {
            0 => String::new(),
            idle => format!(", {idle} more of idle CPUs"),
        };
        let _ = writeln!(out.buffer, "{} samples of {event}{idle}, {lost} lost", self.all.samples);
        let _ =
            writeln!(out.buffer, "Overhead  Command           Shared Object             Symbol");
        for (row, weight) in rows.iter().take(args.rows.unwrap_or(height)) {
            let share = weight.periods as f64 * 100.0 / self.all.periods.max(1) as f64;
            let file = row.file.rsplit('/').next().unwrap_or_default();
            let line = format!(
                "{share:>7.2}%  {:<16}  {:<24}  {}",
                OneLine(&row.comm).to_string(),
                OneLine(file).to_string(),
                OneLine(&row.symbol)
            );
            let _ = writeln!(out.buffer, "{}", terminal::cut(&line, width));
        }
        if self.undecodable > 0 {
            let _ = writeln!(out.buffer, "{} records could not be decoded", self.undecodable);
        }
        if !is_terminal {
            out.buffer.push(b'\n');
        }
        (self.all, self.idle, self.undecodable) = (Weight::default(), 0, 0);
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_data::perf_event_attr;

    #[test]
    fn files_of_ended_processes_are_forgotten() {
        let mut live = Live::new(true, false, false);
        live.max_files = 100;
        let layout = RecordLayout::new(&perf_event_attr::new(0, 0));
        let map = |live: &mut Live, pid: u64| {
            const MMAP: u64 = 1 | 2 << 32 | 48 << 48;
            let words = [MMAP, pid | pid << 32, 0x1000, 0x1000, 0];
            let mut bytes = words.map(u64::to_ne_bytes).concat();
            bytes.extend(format!("/{pid:06}\0").into_bytes());
            live.apply(&layout, RawRecord::split_first(&bytes, 0).unwrap().0);
        };
        let kernel = live.symbols.files();
        for pid in 1..=1000 {
            map(&mut live, pid);
            live.forget_files(|live| {
                map(live, pid);
                Ok(())
            })
            .unwrap();
            live.max_files = 100;
            assert!(live.symbols.files() <= 100);
        }
        // As many as there are at once.
        live.forget_files(|_| panic!("there are few")).unwrap();
        (1..=100).for_each(|pid| map(&mut live, pid));
        let all = |live: &mut Live| {
            (1..=40_000).for_each(|pid| map(live, pid));
            Ok(())
        };
        live.forget_files(all).unwrap();
        assert_eq!(live.max_files, 2 * (kernel + 40_000));
    }

    #[test]
    fn a_sample_weighs_its_period() {
        let mut live = Live::new(true, false, false);
        let mut attr = perf_event_attr::new(0, 0);
        attr.sample_type = (SampleFlags::IP | SampleFlags::TID | SampleFlags::PERIOD).bits();
        let layout = RecordLayout::new(&attr);
        const USER: u64 = 2;
        for (thread, period) in [(7, 10), (8, 100), (7, 10)] {
            let words = [9 | USER << 32 | 32 << 48, 0x1000, thread | thread << 32, period];
            let bytes = words.map(u64::to_ne_bytes).concat();
            live.apply(&layout, RawRecord::split_first(&bytes, 0).unwrap().0);
        }
        assert_eq!(live.all, Weight { periods: 120, samples: 3 });
        let rows = live.take_rows();
        let rows: Vec<_> =
            rows.iter().map(|(row, weight)| (&*row.comm, weight.periods, weight.samples)).collect();
        assert_eq!(rows, [(":8", 100, 1), (":7", 20, 2)]);
    }
}
