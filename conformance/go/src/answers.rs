//! Do reports and critical paths agree with what a program measured itself?
//!
//! A Go program computes, waits and is preempted in a known way while the kernel's scheduler is
//! recorded. Its own measurements (`CLOCK_MONOTONIC`, `CLOCK_THREAD_CPUTIME_ID`,
//! `/proc/PID/task/TID/schedstat`) are compared with the report of the correlated timeline, and the
//! critical paths of its tasks with what it does.

use super::toolchain::{self, Toolchain};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use task_support::{Result, cache, run};
use trace_timeline::answers::{
    CriticalPath, History, Piece, Report, Request, RequestFilter, Requests, What, critical_path,
};
use trace_timeline::sources::go::GoSource;
use trace_timeline::sources::kernel::KernelSource;
use trace_timeline::sources::perf::SchedDecoder;
use trace_timeline::{
    Correlator, EntityId, EntityKind, Event, Kernel, SpanKind, Streams, Tables, Timestamp,
};

const PROGRAM: &str = include_str!("answers/main.go");

/// Records the program and checks the answers.
///
/// # Errors
/// A wrong answer, or a program that fails.
pub fn check() -> Result<()> {
    let go = Toolchain::install(toolchain::NEWEST)?;
    let dir = cache::root()?.join("go/answers");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("main.go"), PROGRAM)?;
    fs::write(dir.join("go.mod"), "module answers\n\ngo 1.22\n")?;
    run::output(go.command().args(["build", "-o", "program"]).current_dir(&dir))?;
    let mut tables = Tables::new();
    let (kernel, printed) = record(&dir, &mut tables)?;
    let answers = Answers::of(kernel, &dir.join("answers.trace"), tables)?;
    let measured = Measured::parse(&printed)?;
    answers.check_threads(&measured)?;
    answers.check_preempted(&measured)?;
    answers.check_paths()?;
    answers.check_late_stop()
}

/// Runs the program, and returns the kernel's events and what it printed.
fn record(dir: &Path, tables: &mut Tables) -> Result<(Vec<Event>, String)> {
    use perf_monitor::{Event as PerfEvent, RingSet, SampleFlags, Software, Tracefs};
    let tracefs = Tracefs::find_or_detached()?;
    let side = PerfEvent::software(Software::Dummy).builder().sample(SampleFlags::TID);
    let side = side.comm(true).comm_exec(true).task(true);
    let mut set = RingSet::builder().pages(1024).sideband_ring(&side, 16).open()?;
    let mut formats = Vec::new();
    for name in ["sched_switch", "sched_waking", "sched_wakeup_new"] {
        let event = tracefs.event("sched", name)?;
        let sample = SampleFlags::TID | SampleFlags::RAW;
        set.add(&event.builder().sample_period(1).sample(sample))?;
        formats.push(tracefs.format("sched", name)?);
    }
    let decoder = SchedDecoder::new(formats);
    let mut source = KernelSource::new();
    let mut events = Vec::new();
    set.enable()?;
    let mut program = Command::new(dir.join("program"))
        .arg("answers.trace")
        .current_dir(dir)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut push = |record: perf_monitor::SetRecord<'_>| -> Result<()> {
        if let Some(decoded) = decoder.decode(record.raw, record.layout, record.cpu) {
            source.push(record.time, &decoded, tables, &mut events);
        }
        Ok(())
    };
    while program.try_wait()?.is_none() {
        set.wait(Some(Duration::from_millis(20)))?;
        set.round(&mut push)?;
    }
    set.disable()?;
    set.drain(&mut push)?;
    let output = program.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("the program: {}", output.status).into());
    }
    let stats = source.stats();
    eprintln!(
        "{} context switches, {} lost, {} unreported",
        stats.switches, stats.lost, stats.unreported
    );
    Ok((events, String::from_utf8(output.stdout)?))
}

/// What the program measured, in nanoseconds.
struct Measured {
    /// Run time of each thread, and when it was read.
    threads: BTreeMap<i64, (i64, Timestamp)>,
    /// Wall time, CPU time, run time and wait time of the task that is preempted.
    preempted: [i64; 4],
}

impl Measured {
    fn parse(text: &str) -> Result<Self> {
        let mut this = Self { threads: BTreeMap::new(), preempted: [0; 4] };
        for line in text.lines() {
            let mut words = line.split(' ');
            let name = words.next();
            let numbers = words.map(str::parse).collect::<std::result::Result<Vec<i64>, _>>()?;
            match (name, &numbers[..]) {
                (Some("thread"), [tid, run, at]) => {
                    this.threads.insert(*tid, (*run, Timestamp::from_nanos(*at)));
                }
                (Some("preempted"), four) => this.preempted = four.try_into()?,
                _ => return Err(format!("unknown line: {line}").into()),
            }
        }
        Ok(this)
    }
}

/// The timeline of the program.
struct Answers {
    tables: Tables,
    report: Report,
    history: History,
    requests: Vec<Request>,
}

fn percent(found: i64, expected: i64) -> f64 {
    (found - expected).abs() as f64 * 100.0 / expected.max(1) as f64
}

fn ms(nanos: i64) -> f64 {
    nanos as f64 / 1e6
}

/// Fails unless the value is within this percentage of the expected one.
fn within(what: &str, found: i64, expected: i64, most: f64) -> Result<()> {
    let difference = percent(found, expected);
    eprintln!("{what}: {:.3} ms, expected {:.3} ms: {difference:.2} %", ms(found), ms(expected));
    if difference > most {
        return Err(format!("{what}: more than {most} % off").into());
    }
    Ok(())
}

fn require(what: &str, holds: bool, why: String) -> Result<()> {
    eprintln!("{what}: {why}");
    if holds { Ok(()) } else { Err(format!("{what}: {why}").into()) }
}

impl Answers {
    fn of(kernel: Vec<Event>, trace: &Path, mut tables: Tables) -> Result<Self> {
        let mut kernel = Some(kernel);
        let mut reader = gotrace::Reader::new(BufReader::new(File::open(trace)?))?;
        let mut source = GoSource::new(Default::default());
        let mut streams = Streams::new();
        streams.add(move |_: &mut Tables, out: &mut Vec<Event>| {
            out.extend(kernel.take().unwrap_or_default());
            Ok(false)
        });
        streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
            let Some(event) = reader.next_event()? else { return Ok(false) };
            source.push(event, tables, out);
            Ok(true)
        });
        let mut correlator = Correlator::new();
        let mut report = Report::new();
        let mut requests = Requests::new(RequestFilter::default(), usize::MAX);
        let mut history = History::new(Timestamp::from_nanos(i64::MIN), Timestamp::MAX);
        while let Some(event) = streams.next(&mut tables)? {
            correlator.push(&event, &tables.entities, &mut |derived| {
                report.push(&derived, &tables.entities);
                requests.push(&derived);
                history.push(&derived);
            });
        }
        correlator.finish(&mut |derived| {
            report.push(&derived, &tables.entities);
            history.push(&derived);
        });
        history.finish();
        let requests = requests.into_worst();
        Ok(Self { tables, report, history, requests })
    }

    fn number(&self, id: EntityId) -> i64 {
        self.tables.entities.get(id).map_or(0, |entity| entity.number)
    }

    fn name(&self, id: EntityId) -> String {
        self.tables.entities.get(id).map_or_else(String::new, |e| self.tables.str(e.name).into())
    }

    /// The sum of the threads' times on a CPU is what the kernel counted, except for what the
    /// timeline marks as unknown (switches that this kernel does not report) and a few microseconds
    /// of each switch: the kernel counts from the wake-up that preempts another thread, not from
    /// the switch.
    fn check_threads(&self, measured: &Measured) -> Result<()> {
        const EACH_SWITCH: i64 = 10_000;
        let (mut found, mut unknown, mut switches, mut expected) = (0, 0, 0, 0);
        for thread in self.report.threads.keys() {
            let Some((run, read)) = measured.threads.get(&self.number(*thread)) else { continue };
            let mut had_cpu = false;
            for interval in self.history.intervals(*thread) {
                let nanos = interval.end.min(*read).nanos_since(interval.begin).max(0);
                match interval.kernel {
                    Kernel::OnCpu { .. } => {
                        found += nanos;
                        switches += i64::from(!had_cpu);
                    }
                    Kernel::Unknown => unknown += nanos,
                    _ => {}
                }
                had_cpu = matches!(interval.kernel, Kernel::OnCpu { .. });
            }
            expected += run;
        }
        let text = format!(
            "{:.3} ms, expected {:.3} ms; {:.3} ms unknown, {switches} times",
            ms(found),
            ms(expected),
            ms(unknown)
        );
        let least = expected - expected / 100 - unknown - switches * EACH_SWITCH;
        let holds = (least..=expected + expected / 100).contains(&found);
        require("on CPU, all threads", holds, text)
    }

    fn check_preempted(&self, measured: &Measured) -> Result<()> {
        let [wall, cpu, run, wait] = measured.preempted;
        let path = self.path(SpanKind::Region, "compute")?;
        within("preempted: CPU time", sum(&path, is_on_cpu), cpu, 2.0)?;
        within("preempted: run time of the kernel", sum(&path, is_on_cpu), run, 2.0)?;
        within("preempted: wait time of the kernel", sum(&path, is_waiting_for_cpu), wait, 2.0)?;
        within("preempted: wall time", sum(&path, |_| true), wall, 2.0)?;
        let most = path.pieces.iter().filter_map(|piece| match piece.what {
            What::WaitsForCpu { occupant, .. } => Some((occupant.thread()?, piece.nanos())),
            _ => None,
        });
        let mut by: BTreeMap<EntityId, i64> = BTreeMap::new();
        most.for_each(|(thread, nanos)| *by.entry(thread).or_default() += nanos);
        let names: Vec<String> = by.keys().map(|thread| self.name(*thread)).collect();
        let is_named = names.iter().any(|name| name == "sh");
        require("preempted by the busy shell", is_named, names.join(", "))
    }

    /// The critical path of the longest request with this name.
    fn path(&self, kind: SpanKind, name: &str) -> Result<CriticalPath> {
        let is_it = |r: &&Request| r.kind == kind && self.tables.str(r.name) == name;
        let r = self.requests.iter().find(is_it).ok_or_else(|| format!("no {name}"))?;
        let entities = &self.tables.entities;
        let path = critical_path(&self.history, entities, r.subject, r.begin, r.end, r.task);
        let total: i64 = path.pieces.iter().map(Piece::nanos).sum();
        if total != r.nanos() {
            return Err(format!("{name}: pieces of {total} ns, not {}", r.nanos()).into());
        }
        Ok(path)
    }

    fn check_paths(&self) -> Result<()> {
        let task = |name| self.path(SpanKind::Task, name);
        let on_cpu_of = |path: &CriticalPath, name: &str| -> i64 {
            let pieces = path.pieces.iter().filter(|piece| is_on_cpu(&piece.what));
            pieces.filter(|piece| self.name(piece.entity) == name).map(Piece::nanos).sum()
        };
        // Goroutines are named after the functions that `locked` starts.
        let chain = task("chain")?;
        within("chain: computed", sum(&chain, is_on_cpu), 140_000_000, 5.0)?;
        let timer = sum(&chain, |what| matches!(what, What::Waits { .. }));
        within("chain: the timer", timer, 30_000_000, 10.0)?;

        let waiter = task("waiter")?;
        let context = waiter.pieces.iter().filter(|piece| is_on_cpu(&piece.what));
        let context =
            context.filter(|piece| piece.context.is_some_and(|task| self.name(task) == "holder"));
        let context: i64 = context.map(Piece::nanos).sum();
        within("mutex: computed by the holder for its own task", context, 100_000_000, 5.0)?;

        // Two workers: the first is done after 40 ms, and computes for 60 ms then.
        let pool = task("pool")?;
        within("pool: computed on the path", sum(&pool, is_on_cpu), 100_000_000, 10.0)?;

        let fsync = task("fsync")?;
        let disk = sum(&fsync, |what| matches!(what, What::Blocked | What::Waits { .. }));
        let is_disk = disk * 2 > sum(&fsync, |what| !is_waiting_for_cpu(what));
        require("fsync waits for the disk", is_disk, format!("{:.3} ms", ms(disk)))?;

        let pipe = task("pipe")?;
        let shell = on_cpu_of(&pipe, "sh");
        let is_shell = shell * 10 > 9 * sum(&pipe, is_on_cpu);
        require("pipe: the shell computes", is_shell, format!("{:.3} ms", ms(shell)))?;

        let assist = task("assist")?;
        let assists = assist.pieces.iter().filter(|piece| {
            let is_assist = matches!(piece.during, Some((SpanKind::GcAssist, _)));
            is_assist || self.tables.str(piece.reason).contains("assist")
        });
        let assists: i64 = assists.map(Piece::nanos).sum();
        require("assist: the GC makes it pay", assists > 0, format!("{:.3} ms", ms(assists)))
    }

    /// One of the pauses waits for the thread that shares its CPU.
    fn check_late_stop(&self) -> Result<()> {
        let stops = self.report.longest_pauses.iter().filter_map(|pause| {
            let last = pause.stops.last()?;
            Some((last.at.nanos_since(pause.begin), last.runnable))
        });
        let stops: Vec<(i64, i64)> = stops.collect();
        let late = stops.iter().any(|(took, runnable)| *took > 1_000_000 && runnable * 2 > *took);
        let text: Vec<String> = stops
            .iter()
            .map(|(took, runnable)| {
                format!("{:.3} ms, {:.3} without a CPU", ms(*took), ms(*runnable))
            })
            .collect();
        require("stop-the-world: late as a thread had no CPU", late, text.join("; "))?;
        let threads = self.report.threads.len();
        let kinds = self.tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Goroutine);
        eprintln!("{threads} threads, {} goroutines", kinds.count());
        Ok(())
    }
}

const fn is_on_cpu(what: &What) -> bool {
    matches!(what, What::OnCpu { .. })
}

const fn is_waiting_for_cpu(what: &What) -> bool {
    matches!(what, What::WaitsForCpu { .. })
}

fn sum(path: &CriticalPath, is_it: impl Fn(&What) -> bool) -> i64 {
    path.pieces.iter().filter(|piece| is_it(&piece.what)).map(Piece::nanos).sum()
}
