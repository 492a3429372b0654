//! Critical paths with known answers: what each goroutine hands over to the next, and when.

use super::Tools;
use super::toolchain::Toolchain;
use gotrace::{EventKind, GoState, RangeName, Reader};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use task_support::{Result, cache, run};

const PROGRAM: &str = include_str!("paths/main.go");

/// The steps of a path: who, and what it did. Steps below this part of the whole are left out: the
/// way to a P and back.
const LEAST: f64 = 0.02;

/// The first release whose traces say how long a system call took.
const SINCE: u32 = 22;

/// Records the program with every toolchain and checks the critical path of each task; returns the
/// number of problems.
pub(crate) fn check(tools: &Tools, toolchains: &[Toolchain]) -> Result<usize> {
    // Another run builds and records in the same directories.
    let _lock = cache::lock("go/.paths.lock", "critical paths with known answers")?;
    let (mut tasks, mut failed) = (0, 0);
    for toolchain in toolchains.iter().filter(|toolchain| toolchain.minor() >= SINCE) {
        let trace = record(toolchain)?;
        let facts = Facts::of(&trace)?;
        for task in TASKS {
            let path = path(tools, &trace, task)?;
            let mut problems = facts.problems(&path);
            problems.extend(wrong_answer(task, &steps(&path)));
            match task {
                "assist" => problems.extend(facts.wrong_assists(&path)),
                "fsync" => problems.extend(facts.wrong_syscalls(&path)),
                _ => {}
            }
            for problem in &problems {
                println!("CRITICAL PATH: {task} of Go {}: {problem}", toolchain.version);
            }
            tasks += 1;
            failed += problems.len();
        }
    }
    println!("critical paths with known answers: {tasks} tasks; {failed} problems");
    Ok(failed)
}

const TASKS: [&str; 5] = ["chain", "waiter", "pool", "fsync", "assist"];

/// Compares the steps of a path with those that the program makes.
///
/// `main` and the goroutine that gives out jobs do almost nothing. They still seem to run for long
/// when the kernel takes the CPU from their thread, so their running time is no part of an answer.
fn wrong_answer(task: &str, steps: &[String]) -> Option<String> {
    let is_idle = |step: &str| {
        ["main", "func"].iter().any(|name| step.starts_with(name)) && step.ends_with(" running")
    };
    let steps: Vec<&str> = steps.iter().map(String::as_str).filter(|step| !is_idle(step)).collect();
    let expected = match task {
        "chain" => &["first running", "second running", "third running"][..],
        "waiter" => &["holder running for holder"],
        // Which worker has the last job is a matter of chance.
        "pool" => {
            let is_right = !steps.is_empty() && steps.iter().all(|step| *step == "worker running");
            return (!is_right).then(|| format!("{steps:?}"));
        }
        _ => return None,
    };
    (steps != expected).then(|| format!("{steps:?}, not {expected:?}"))
}

/// Builds the program and runs it; returns its trace.
fn record(toolchain: &Toolchain) -> Result<PathBuf> {
    let dir = cache::root()?.join("go/paths").join(toolchain.version);
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("main.go"), PROGRAM)?;
    fs::write(dir.join("go.mod"), format!("module paths\n\ngo 1.{SINCE}\n"))?;
    run::output(toolchain.command().args(["build", "-o", "program"]).current_dir(&dir))?;
    let trace = dir.join("paths.trace");
    run::output(Command::new(dir.join("program")).arg(&trace).current_dir(&dir))?;
    Ok(trace)
}

/// The critical path of the longest task of a type.
fn path(tools: &Tools, trace: &Path, task: &str) -> Result<Value> {
    let mut command = Command::new(&tools.triscope);
    command.args(["go", "critical-path", "--json", "--task", task]).arg(trace);
    let paths: Value = serde_json::from_slice(&run::output(&mut command)?)?;
    paths.get(0).cloned().ok_or_else(|| format!("no path of {task}").into())
}

fn pieces(path: &Value) -> impl Iterator<Item = &Value> {
    path["pieces"].as_array().into_iter().flatten()
}

/// A step of a path: its time, and its longest piece with the number of that piece.
#[derive(Default)]
struct Step {
    nanos: f64,
    longest: f64,
    place: usize,
}

/// The long steps of a path, each once, in the order of their longest pieces.
fn steps(path: &Value) -> Vec<String> {
    let total = path["nanos"].as_f64().unwrap_or(0.0);
    let mut steps: BTreeMap<String, Step> = BTreeMap::new();
    for (place, piece) in pieces(path).enumerate() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let who = text(&piece["entity"]["name"]).replace("main.", "");
        let mut name = format!("{who} {}", text(&piece["what"]));
        if let Some(other) = piece["context"]["name"].as_str() {
            name.push_str(&format!(" for {other}"));
        }
        let nanos = piece["nanos"].as_f64().unwrap_or(0.0);
        let step = steps.entry(name).or_default();
        step.nanos += nanos;
        if step.longest < nanos {
            (step.longest, step.place) = (nanos, place);
        }
    }
    let is_long =
        |name: &str, step: &Step| step.nanos >= total * LEAST && !name.contains("waits_for_p");
    let mut steps: Vec<(String, Step)> =
        steps.into_iter().filter(|(name, step)| is_long(name, step)).collect();
    steps.sort_by_key(|(_, step)| step.place);
    steps.into_iter().map(|(name, _)| name).collect()
}

/// What the events of a trace say.
#[derive(Default)]
struct Facts {
    /// Wake-ups: the goroutine that made another one runnable, and when.
    wakes: HashSet<(i64, i64, i64)>,
    /// The times within GC assists, by goroutine.
    assists: BTreeMap<i64, Vec<Range<i64>>>,
    /// The times in system calls, by goroutine.
    syscalls: BTreeMap<i64, Vec<Range<i64>>>,
}

impl Facts {
    fn of(trace: &Path) -> Result<Self> {
        let mut facts = Self::default();
        let mut reader = Reader::new(fs::File::open(trace)?)?;
        while let Some(event) = reader.next_event()? {
            let at = event.time().nanos();
            if let Some(transition) = event.state_transition() {
                if let (Some(id), Some((GoState::Waiting | GoState::NotExist, _))) =
                    (transition.resource().goroutine(), transition.goroutine())
                {
                    facts.wakes.insert((at, event.goroutine().0, id.0));
                }
                if let (Some(id), Some((from, to))) =
                    (transition.resource().goroutine(), transition.goroutine())
                {
                    let syscalls = facts.syscalls.entry(id.0).or_default();
                    match (from, to, syscalls.last_mut()) {
                        // Its status at the start of a generation.
                        (GoState::Syscall, GoState::Syscall, Some(_)) => {}
                        (GoState::Syscall, _, Some(last)) => last.end = at,
                        (_, GoState::Syscall, _) => syscalls.push(at..i64::MAX),
                        _ => {}
                    }
                }
            }
            let Some(range) = event.range().filter(|r| r.name == RangeName::GcMarkAssist) else {
                continue;
            };
            let Some(id) = range.scope.goroutine() else { continue };
            let assists = facts.assists.entry(id.0).or_default();
            match (event.kind(), assists.last_mut()) {
                (EventKind::RangeBegin, _) => assists.push(at..i64::MAX),
                (EventKind::RangeEnd, Some(last)) => last.end = at,
                _ => {}
            }
        }
        Ok(facts)
    }

    /// Where a path returns from a goroutine to the one that waited for it, the first made the other
    /// one runnable, at that very time. And the pieces sum up to the whole.
    fn problems(&self, path: &Value) -> Vec<String> {
        let (mut problems, mut at) = (Vec::new(), number(&path["start"]));
        let pieces: Vec<&Value> = pieces(path).collect();
        for (piece, next) in pieces.iter().zip(pieces.iter().skip(1).map(Some).chain([None])) {
            if number(&piece["start"]) != at {
                problems.push(format!("a gap at {at}: {piece}"));
            }
            at = number(&piece["start"]) + number(&piece["nanos"]);
            let Some(next) = next else { continue };
            let of = |piece: &Value| (number(&piece["entity"]["number"]), number(&piece["depth"]));
            let ((by, depth), (woken, outer)) = (of(piece), of(next));
            let is_handed_over = by != woken && outer < depth;
            if is_handed_over && !self.wakes.contains(&(at, by, woken)) {
                problems.push(format!("G{by} did not wake G{woken} at {at}"));
            }
        }
        if at - number(&path["start"]) != number(&path["nanos"]) || pieces.is_empty() {
            problems.push("the pieces do not sum up to it".to_owned());
        }
        problems
    }

    /// The task's own goroutine is in system calls when its events say so, and waits for nothing
    /// else. A fast disk can make the calls any short, so their share is no part of the answer.
    fn wrong_syscalls(&self, path: &Value) -> Option<String> {
        let mut syscalls = 0;
        for piece in pieces(path) {
            let (start, id) = (number(&piece["start"]), number(&piece["entity"]["number"]));
            let end = start + number(&piece["nanos"]);
            let is_within = |syscall: &Range<i64>| syscall.start <= start && end <= syscall.end;
            let within = self.syscalls.get(&id).is_some_and(|all| all.iter().any(is_within));
            let what = piece["what"].as_str().unwrap_or_default();
            if (what == "syscall") != within
                || (what != "running" && !within) && what != "waits_for_p"
            {
                return Some(format!("the goroutine is in a system call: {within}, but {piece}"));
            }
            syscalls += u32::from(within);
        }
        (syscalls == 0).then(|| "the goroutine is never in a system call".to_owned())
    }

    /// The pieces of the task's own goroutine are marked as a GC assist where it assists, and nowhere
    /// else, unless the world is stopped.
    fn wrong_assists(&self, path: &Value) -> Option<String> {
        let mut marked = 0;
        for piece in pieces(path).filter(|piece| piece["depth"] == 0) {
            let (start, id) = (number(&piece["start"]), number(&piece["entity"]["number"]));
            let end = start + number(&piece["nanos"]);
            let is_within = |assist: &Range<i64>| assist.start <= start && end <= assist.end;
            let assists = self.assists.get(&id).is_some_and(|all| all.iter().any(is_within));
            let during = piece["during"].as_str().unwrap_or_default();
            if (during == "GC assist") != assists && !during.starts_with("stop-the-world") {
                return Some(format!("the goroutine assists: {assists}, but {piece}"));
            }
            marked += u32::from(assists);
        }
        (marked == 0).then(|| "the goroutine never assists".to_owned())
    }
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(i64::MIN)
}
