//! Six answers about a Go program, and its times by thread.

use super::recorder::{Recorder, numbers};
use super::timeline::{
    OnCpu, RunTimes, Timeline, is_on_cpu, is_waiting_for_cpu, ms, own, require, sum, within,
    within_steal, within_stops, within_unknown,
};
use crate::toolchain::{self, Toolchain};
use gotrace::{EventKind, RangeName, ResourceId};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use task_support::{Result, cache, run};
use trace_timeline::answers::{CriticalPath, Histogram, Piece, What};
use trace_timeline::{EntityId, EntityKind, Kernel, SpanKind, Timestamp};

const PROGRAM: &str = include_str!("main.go");

/// Maximum nanoseconds between the events of a stop and the runtime's own readings of the clock.
/// 3.5 µs were measured on an idle machine, where a stop takes 30 µs, 7.5 µs on a slower one, where it takes
/// 65 µs, and 12 to 16 µs in seven recordings on a third one, where it takes 60 to 140 µs.
pub(super) const EVENTS_OF_A_STOP: i64 = 20_000;

/// Builds the program, and returns its directory.
pub(super) fn build() -> Result<PathBuf> {
    let go = Toolchain::install(toolchain::NEWEST)?;
    let dir = cache::root()?.join("go/answers");
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("main.go"), PROGRAM)?;
    fs::write(dir.join("go.mod"), "module answers\n\ngo 1.22\n")?;
    run::output(go.command().args(["build", "-o", "program"]).current_dir(&dir))?;
    Ok(dir)
}

/// Records the program and checks the answers.
pub(super) fn check(dir: &Path) -> Result<()> {
    let mut recorder = Recorder::start()?;
    let printed = run_program(&mut recorder, dir, &["answers.trace"], None)?;
    let recorded = recorder.finish()?;
    let trace = dir.join("answers.trace");
    let answers = Answers(Timeline::of(recorded, Some(&trace), &[])?);
    let measured = Measured::parse(&printed)?;
    answers.0.check_threads(&measured.threads)?;
    answers.check_preempted(&measured)?;
    answers.check_collections(&measured)?;
    answers.check_paths(&ranges(&trace)?)?;
    answers.check_late_stop()
}

/// Runs the program while the kernel is recorded, and the counters of its cgroup, and returns what
/// it printed.
pub(super) fn run_program(
    recorder: &mut Recorder,
    dir: &Path,
    args: &[&str],
    cpu_stat: Option<PathBuf>,
) -> Result<String> {
    let mut program = Command::new(dir.join("program"))
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(cpu_stat) = cpu_stat {
        recorder.watch_quota(cpu_stat, program.id());
    }
    let status = recorder.until("end of the Go program", || Ok(program.try_wait()?));
    if status.is_err() {
        program.kill()?;
    }
    let output = program.wait_with_output()?;
    match status? {
        status if status.success() => Ok(String::from_utf8(output.stdout)?),
        status => Err(format!("the Go program: {status}").into()),
    }
}

/// What the program measured, in nanoseconds.
pub(super) struct Measured {
    pub(super) threads: RunTimes,
    /// Wall time, CPU time, run time and wait time of the task that is preempted.
    pub(super) preempted: [i64; 4],
    /// The run time of the process.
    pub(super) process: i64,
    /// The number of GCs, and how long the program stood still for them.
    pub(super) collections: [i64; 2],
}

impl Measured {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut this =
            Self { threads: BTreeMap::new(), process: 0, preempted: [0; 4], collections: [0; 2] };
        for line in text.lines() {
            let (name, numbers) = numbers(line)?;
            match (name, &numbers[..]) {
                ("thread", [tid, run, at]) => {
                    this.threads.insert(*tid, (*run, Timestamp::from_nanos(*at)));
                }
                ("process", [run]) => this.process = *run,
                ("gc", two) => this.collections = two.try_into()?,
                ("preempted", four) => this.preempted = four.try_into()?,
                _ => return Err(format!("unknown line: {line}").into()),
            }
        }
        Ok(this)
    }
}

/// An assist of the GC or a stop-the-world of a goroutine in the Go trace, in nanoseconds.
struct Range {
    is_assist: bool,
    goroutine: i64,
    start: i64,
    end: i64,
}

impl Range {
    fn overlap(&self, start: Timestamp, end: Timestamp) -> i64 {
        (self.end.min(end.nanos()) - self.start.max(start.nanos())).max(0)
    }
}

/// Those that ended.
fn ranges(trace: &Path) -> Result<Vec<Range>> {
    let mut reader = gotrace::Reader::new(BufReader::new(File::open(trace)?))?;
    let (mut open, mut ranges) = (BTreeMap::new(), Vec::new());
    while let Some(event) = reader.next_event()? {
        let Some(range) = event.range() else { continue };
        let is_assist = match range.name {
            RangeName::GcMarkAssist => true,
            RangeName::StopTheWorld(_) => false,
            _ => continue,
        };
        let ResourceId::Goroutine(goroutine) = range.scope else { continue };
        let (key, at) = ((is_assist, goroutine), event.time().nanos());
        match event.kind() {
            EventKind::RangeBegin => _ = open.insert(key, at),
            EventKind::RangeEnd => {
                let goroutine = goroutine.0;
                let begun = open.remove(&key);
                ranges.extend(begun.map(|start| Range { is_assist, goroutine, start, end: at }));
            }
            _ => {}
        }
    }
    Ok(ranges)
}

struct Answers(Timeline);

impl Answers {
    fn check_preempted(&self, measured: &Measured) -> Result<()> {
        let [wall, cpu, run, wait] = measured.preempted;
        let path = self.0.path(SpanKind::Region, "compute")?;
        // This kernel does not report some switches: what the thread did then is not known.
        let unknown = sum(&path, |what| matches!(what, What::Running | What::Syscall));
        // Go may preempt the goroutine too: its thread waits for the CPU then as well.
        let waits_for_cpu = |what: &What| {
            let has_no_cpu = matches!(what, What::WaitsForProc { kernel, .. }
                if matches!(kernel, Kernel::Runnable { .. }));
            is_waiting_for_cpu(what) || has_no_cpu
        };
        let woken = OnCpu::woken(own(&path, waits_for_cpu));
        let unknown = unknown + woken;
        let (on_cpu, steal) = (sum(&path, is_on_cpu), self.0.steal);
        within_steal("preempted: CPU time", on_cpu, unknown, steal, cpu)?;
        within_steal("preempted: run time of the kernel", on_cpu, unknown, steal, run)?;
        let waits = sum(&path, waits_for_cpu) - woken;
        within_unknown("preempted: wait time of the kernel", waits, unknown, wait, 2.0)?;
        within("preempted: wall time", sum(&path, |_| true), wall, 2.0)?;
        let most = path.pieces.iter().filter_map(|piece| match piece.what {
            What::WaitsForCpu { occupant, .. } => Some((occupant.thread()?, piece.nanos())),
            _ => None,
        });
        let mut by: BTreeMap<EntityId, i64> = BTreeMap::new();
        most.for_each(|(thread, nanos)| *by.entry(thread).or_default() += nanos);
        let names: Vec<String> = by.keys().map(|thread| self.0.name(*thread)).collect();
        let is_named = names.iter().any(|name| name == "sh");
        require("preempted by the busy shell", is_named, names.join(", "))
    }

    fn check_collections(&self, measured: &Measured) -> Result<()> {
        let [count, pause] = measured.collections;
        let Timeline { report, tables, .. } = &self.0;
        let found: u64 = report.gcs.values().map(Histogram::count).sum();
        require("GCs", i64::try_from(found)? == count, format!("{found} of {count}"))?;
        let of_gc = |reason| tables.get(reason).starts_with(b"GC ");
        let pauses = report.pauses.iter().filter(|((_, reason), _)| of_gc(*reason));
        let (sum, stops) = pauses.fold((0, 0), |(sum, stops), (_, durations)| {
            (sum + durations.sum(), stops + durations.count())
        });
        let events = i64::try_from(stops)? * EVENTS_OF_A_STOP;
        within_stops("GC pauses", i64::try_from(sum)?, events, self.0.steal, pause)
    }

    fn check_paths(&self, ranges: &[Range]) -> Result<()> {
        let task = |name| self.0.path(SpanKind::Task, name);
        let on_cpu_of = |path: &CriticalPath, name: &str| -> i64 {
            let pieces = path.pieces.iter().filter(|piece| is_on_cpu(&piece.what));
            pieces.filter(|piece| self.0.name(piece.entity) == name).map(Piece::nanos).sum()
        };
        // Goroutines are named after the functions that `locked` starts.
        let chain = task("chain")?;
        within("chain: computed", sum(&chain, is_on_cpu), 140_000_000, 5.0)?;
        let timer = sum(&chain, |what| matches!(what, What::Waits { .. }));
        within("chain: the timer", timer, 30_000_000, 10.0)?;

        let waiter = task("waiter")?;
        let context = waiter.pieces.iter().filter(|piece| is_on_cpu(&piece.what));
        let context =
            context.filter(|piece| piece.context.is_some_and(|task| self.0.name(task) == "holder"));
        let context: i64 = context.map(Piece::nanos).sum();
        within("mutex: computed by the holder for its own task", context, 100_000_000, 5.0)?;

        // Two workers: the path is the computing of one or both, at least two jobs of them. With
        // more CPUs than busy threads it is 40 and 60 ms.
        let pool = task("pool")?;
        let is_ready = |what: &What| {
            is_on_cpu(what) || is_waiting_for_cpu(what) || matches!(what, What::WaitsForProc { .. })
        };
        let wall = sum(&pool, |_| true);
        within("pool: workers compute, or wait for a P or CPU", sum(&pool, is_ready), wall, 10.0)?;
        let computed = sum(&pool, is_on_cpu);
        let is_all = (57_000_000..=147_000_000).contains(&computed);
        require("pool: computed on the path", is_all, format!("{:.3} ms", ms(computed)))?;

        let fsync = task("fsync")?;
        let disk = sum(&fsync, |what| matches!(what, What::Blocked | What::Waits { .. }));
        let is_disk = disk * 2 > sum(&fsync, |what| !is_waiting_for_cpu(what));
        require("fsync waits for the disk", is_disk, format!("{:.3} ms", ms(disk)))?;

        let pipe = task("pipe")?;
        let shell = on_cpu_of(&pipe, "sh");
        let is_shell = shell * 10 > 9 * sum(&pipe, is_on_cpu);
        require("pipe: the shell computes", is_shell, format!("{:.3} ms", ms(shell)))?;

        self.check_gc(&task("assist")?, ranges)
    }

    /// The parts of a path that its goroutine pays to the GC, and in which others stop the world, are those
    /// of the Go trace.
    fn check_gc(&self, path: &CriticalPath, ranges: &[Range]) -> Result<()> {
        let subject = self.0.number(path.subject);
        let is_own = |range: &&Range| range.goroutine == subject;
        let assists: Vec<&Range> = ranges.iter().filter(|r| r.is_assist && is_own(r)).collect();
        let all_stops: Vec<&Range> = ranges.iter().filter(|r| !r.is_assist).collect();
        let stops: Vec<&Range> = all_stops.iter().copied().filter(|r| !is_own(r)).collect();
        // In time order: a goroutine has one assist at a time, and the world stops once.
        let within_ranges = |piece: &Piece, ranges: &[&Range]| -> i64 {
            let first = ranges.partition_point(|range| range.end <= piece.start.nanos());
            let here = ranges[first..].iter().take_while(|range| range.start < piece.end.nanos());
            here.map(|range| range.overlap(piece.start, piece.end)).sum()
        };
        let is_stop =
            |piece: &Piece| piece.during.is_some_and(|(kind, _)| kind == SpanKind::StopTheWorld);
        let (mut assisted, mut stopped, mut held_back) = (0, 0, 0);
        for piece in &path.pieces {
            // It waits for those that stop the world.
            let is_held = piece.depth == 1 && is_stop(piece);
            let kind = piece.during.map(|(kind, _)| kind).filter(|_| piece.depth == 0);
            assisted += match kind {
                Some(SpanKind::GcAssist) => piece.nanos(),
                // The world can stop within an assist, which can wait for another goroutine.
                _ if kind.is_some() || piece.depth > 0 => within_ranges(piece, &assists),
                _ => 0,
            };
            stopped +=
                if is_held || kind == Some(SpanKind::StopTheWorld) { piece.nanos() } else { 0 };
            let is_executing = is_on_cpu(&piece.what)
                || is_waiting_for_cpu(&piece.what)
                || matches!(piece.what, What::Running | What::Syscall);
            // One that stops the world itself waits for those that are late, too.
            if is_held {
                held_back += within_ranges(piece, &all_stops);
            } else if piece.depth == 0 && !is_executing {
                held_back += within_ranges(piece, &stops);
            }
        }
        let pays: i64 = assists.iter().map(|range| range.overlap(path.start, path.end)).sum();
        require("assist: the GC makes it pay", pays > 0, format!("{:.3} ms", ms(pays)))?;
        within("assist: the share of the GC", assisted, pays, 2.0)?;
        let text = format!("{:.3} ms", ms(held_back));
        require("assist: stop-the-worlds hold it back", held_back > 0, text)?;
        within("assist: the share of stop-the-worlds", stopped, held_back, 2.0)
    }

    /// The task that computes meanwhile waits for the busy shell that has the CPU of that thread.
    fn check_late_path(&self) -> Result<()> {
        let path = self.0.path(SpanKind::Task, "late")?;
        let mut by: BTreeMap<String, i64> = BTreeMap::new();
        for piece in path.pieces.iter().filter(|piece| piece.depth > 0 && piece.during.is_some()) {
            if let What::WaitsForCpu { occupant, .. } = piece.what {
                let name = occupant.thread().map(|thread| self.0.name(thread));
                *by.entry(name.unwrap_or_default()).or_default() += piece.nanos();
            }
        }
        let is_named = by.get("sh").is_some_and(|nanos| *nanos > 200_000);
        let text: Vec<String> =
            by.iter().map(|(name, nanos)| format!("{name} {:.3} ms", ms(*nanos))).collect();
        require("stop-the-world: the task waits for the busy shell", is_named, text.join(", "))
    }

    /// One of the pauses waits for the thread that shares its CPU: for a part of a time slice, which
    /// is several times the tens of microseconds that a stop takes otherwise.
    fn check_late_stop(&self) -> Result<()> {
        let pauses = self.0.report.longest_pauses(|_| true);
        let stops = pauses.into_iter().filter_map(|pause| {
            let last = pause.stops.last()?;
            Some((last.time.nanos_since(pause.start), last.runnable))
        });
        let stops: Vec<(i64, i64)> = stops.collect();
        let late = stops.iter().any(|(took, runnable)| *took > 200_000 && runnable * 2 > *took);
        let text: Vec<String> = stops
            .iter()
            .map(|(took, runnable)| {
                format!("{:.3} ms, {:.3} without a CPU", ms(*took), ms(*runnable))
            })
            .collect();
        require("stop-the-world: late as a thread had no CPU", late, text.join("; "))?;
        self.check_late_path()?;
        let threads = self.0.report.threads.len();
        let kinds = self.0.tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Goroutine);
        eprintln!("{threads} threads, {} goroutines", kinds.count());
        Ok(())
    }
}
