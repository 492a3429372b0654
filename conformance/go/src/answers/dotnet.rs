//! Two answers about .NET programs, their GCs, a thread that is preempted, and their times by thread.

use super::busy::Busy;
use super::recorder::{Dotnet, Recorder, now, numbers};
use super::timeline::{
    OnCpu, RunTimes, Timeline, is_on_cpu, is_waiting_for_cpu, ms, own, require, sum, within,
    within_steal, within_unknown,
};
use std::fs;
use std::path::Path;
use task_support::Result;
use trace_timeline::answers::{CriticalPath, Histogram, What};
use trace_timeline::{EntityKind, SpanKind};

/// The directories of the runtimes.
pub(super) const RUNTIMES: [&str; 3] = ["3.1", "9", "10"];

/// The event source of the program.
pub(super) const STEPS: &str = "Triscope-Answers:ffffffffffffffff:5";

/// GC, contention and threading; work items of the thread pool.
pub(super) const PROVIDERS: [&str; 3] = [
    "Microsoft-Windows-DotNETRuntime:14001:4",
    "System.Diagnostics.Eventing.FrameworkEventSource:2:5",
    STEPS,
];

/// A recorded program, and what it printed.
struct Run {
    timeline: Timeline,
    printed: Vec<(String, Vec<i64>)>,
}

impl Run {
    fn of(targets: &Path, runtime: &str, mode: &str) -> Result<Self> {
        let mut recorder = Recorder::start()?;
        let (mut program, (stdin, stdout)) = Dotnet::start(targets, runtime, mode)?;
        program.collect(&mut recorder, &PROVIDERS)?;
        let lines = program.output(&mut recorder, stdout)?;
        let measured = run_times(program.pid())?;
        drop(stdin);
        let (trace, _) = program.finish(&mut recorder)?;
        let timeline = Timeline::of(recorder.finish()?, None, &[trace])?;
        timeline.check_threads(&measured)?;
        let printed = lines.iter().map(|line| {
            let (name, numbers) = numbers(line)?;
            Ok((name.to_owned(), numbers))
        });
        Ok(Self { timeline, printed: printed.collect::<Result<_>>()? })
    }

    /// The numbers of the lines with this word.
    fn lines<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a [i64]> {
        self.printed.iter().filter(move |(name, _)| name == word).map(|(_, n)| &n[..])
    }

    fn path(&self, activity: &str) -> Result<CriticalPath> {
        self.timeline.path(SpanKind::Activity, &format!("Triscope-Answers/{activity}"))
    }
}

/// The run times of the threads of a process that wait.
fn run_times(pid: u32) -> Result<RunTimes> {
    let mut times = RunTimes::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        // A thread may end meanwhile.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        let run = text.split(' ').next().unwrap_or_default().parse()?;
        let tid = task.file_name().to_string_lossy().parse()?;
        times.insert(tid, (run, now()));
    }
    Ok(times)
}

pub(super) fn check(targets: &Path, runtime: &str) -> Result<()> {
    eprintln!(".NET {runtime}");
    convoy(&Run::of(targets, runtime, "convoy")?, runtime)?;
    starve(&Run::of(targets, runtime, "starve")?)?;
    collections(&Run::of(targets, runtime, "gc")?, runtime)?;
    let busy = Busy::compete(0)?;
    let run = Run::of(targets, runtime, "preempted")?;
    drop(busy);
    preempted(&run)
}

/// The program counts its GCs and, since .NET 7, how long it stood still for them.
fn collections(run: &Run, runtime: &str) -> Result<()> {
    let Some([count, pause]) = run.lines("gc").next() else {
        return Err("the program printed no GCs".into());
    };
    let report = &run.timeline.report;
    let found: u64 = report.gcs.values().map(Histogram::count).sum();
    require("gc: collections", i64::try_from(found)? == *count, format!("{found} of {count}"))?;
    if runtime == "3.1" {
        return Ok(());
    }
    let is_gc = |reason| matches!(run.timeline.tables.get(reason), b"Gc" | b"GcPrep");
    let pauses = report.pauses.iter().filter(|((_, reason), _)| is_gc(*reason));
    let sum: u64 = pauses.map(|(_, durations)| durations.sum()).sum();
    within("gc: pauses", i64::try_from(sum)?, *pause, 2.0)
}

/// A thread computes on a CPU that another process keeps busy.
fn preempted(run: &Run) -> Result<()> {
    let Some([wall, cpu, ran, waited]) = run.lines("preempted").next() else {
        return Err("the program printed no times".into());
    };
    let path = run.path("Preempted")?;
    // This kernel does not report some switches: what the thread did then is not known.
    let unknown: i64 = own(&path, |what| matches!(what, What::Running | What::Unknown)).sum();
    let woken = OnCpu::woken(own(&path, is_waiting_for_cpu));
    let unknown = unknown + woken;
    let (on_cpu, steal) = (own(&path, is_on_cpu).sum(), run.timeline.steal);
    within_steal("preempted: CPU time", on_cpu, unknown, steal, *cpu)?;
    within_steal("preempted: run time of the kernel", on_cpu, unknown, steal, *ran)?;
    let waits = own(&path, is_waiting_for_cpu).sum::<i64>() - woken;
    within_unknown("preempted: wait time of the kernel", waits, unknown, *waited, 2.0)?;
    within("preempted: wall time", sum(&path, |_| true), *wall, 2.0)
}

/// A request waits for a lock that other threads hold one after the other: the path is the work of
/// each holder while it held the lock.
fn convoy(run: &Run, runtime: &str) -> Result<()> {
    let path = run.path("Convoy")?;
    let Some([waiter, from, to]) = run.lines("waited").next() else {
        return Err("the program printed no wait".into());
    };
    within("convoy: the wait", sum(&path, |_| true), to - from, 2.0)?;
    // Between two holders the lock is free: the next one has been woken, and waits for a CPU. The
    // lock is not fair: meanwhile another thread can take it again.
    let (mut agrees, mut held) = (0, 0);
    for hold in run.lines("hold") {
        let [holder, start, end] = hold.try_into()?;
        held += (end.min(*to) - start.max(*from)).max(0);
        for piece in &path.pieces {
            let overlap = end.min(piece.end.nanos()) - start.max(piece.start.nanos());
            let is_holder = run.timeline.number(piece.entity) == holder;
            let is_right = is_holder && (is_on_cpu(&piece.what) || is_waiting_for_cpu(&piece.what));
            agrees += if is_right { overlap.max(0) } else { 0 };
        }
    }
    within("convoy: with the thread that held the lock", agrees, held, 15.0)?;
    // .NET 8 and later report the owner.
    if runtime == "3.1" {
        return Ok(());
    }
    let entities = &run.timeline.tables.entities;
    let mut threads = entities
        .iter()
        .filter(|(_, entity)| entity.kind == EntityKind::DotnetThread && entity.number == *waiter);
    let thread = threads.next().ok_or("the waiter is not in the trace")?.0;
    let waits = run.timeline.history.spans(thread).iter();
    let wait = waits.filter(|span| span.kind == SpanKind::LockWait).max_by_key(|span| span.start);
    let wait = wait.ok_or("the runtime reported no contention")?;
    let owner = wait.of.map(|owner| run.timeline.number(owner));
    let at = wait.start.nanos();
    let holder = run.lines("hold").find(|hold| hold[1] <= at && at <= hold[2]);
    // The program takes the times while it holds the lock. Between two holds it is that of the one before, of the next
    // one, or free.
    let before = run.lines("hold").filter(|hold| hold[2] < at).max_by_key(|hold| hold[2]);
    let after = run.lines("hold").filter(|hold| at < hold[1]).min_by_key(|hold| hold[1]);
    let is_right = match (owner, holder) {
        (owner, Some(hold)) => owner == Some(hold[0]),
        (Some(owner), None) => before.into_iter().chain(after).any(|hold| hold[0] == owner),
        (None, None) => true,
    };
    let text =
        format!("{owner:?} at {at}, the holder was {holder:?}, between {before:?} and {after:?}");
    require("convoy: the owner that .NET reports", is_right, text)
}

/// A work item waits while all workers are blocked.
fn starve(run: &Run) -> Result<()> {
    let path = run.path("Starve")?;
    let Some([queued, started]) = run.lines("queued").next() else {
        return Err("the program printed no wait".into());
    };
    let (mut found, mut added) = (0, 0);
    for piece in &path.pieces {
        if let What::Queued { starvation } = piece.what {
            found += piece.nanos();
            added += starvation;
        }
    }
    within("starvation: in the queue", found, started - queued, 5.0)?;
    require("starvation: workers that were added", added > 0, added.to_string())?;
    let computed = sum(&path, is_on_cpu);
    let is_item = (20_000_000..40_000_000).contains(&computed);
    require("starvation: the item computes", is_item, format!("{:.3} ms", ms(computed)))
}
