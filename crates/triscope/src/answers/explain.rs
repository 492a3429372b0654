//! Why requests took as long as they did: as text and as JSON.

mod json;
mod print;
mod summary;

use crate::failure::{Failure, OneLine, Result};
use crate::sources::model::{Traces, name};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use trace_timeline::answers::{
    CriticalPath, Finder, Found, Paths, PathsError, Question, Request, Subject,
};
use trace_timeline::{Derived, EntityId, EntityKind, EventKind, SpanKind, Tables, Timestamp};

pub(crate) use print::Style;

/// The critical paths of requests.
pub(crate) struct Answer {
    paths: Vec<(Request, CriticalPath)>,
    tables: Tables,
    /// The start of the timeline.
    start: Timestamp,
}

impl Answer {
    /// Paths that another analysis found, in a timeline that starts at `start`.
    pub(crate) const fn of(
        paths: Vec<(Request, CriticalPath)>,
        tables: Tables,
        start: Timestamp,
    ) -> Self {
        Self { paths, tables, start }
    }

    /// Prints the paths.
    pub(crate) fn print(&self, style: Style, out: &mut Vec<u8>) -> io::Result<()> {
        for (request, path) in &self.paths {
            print::print(request, path, self.start, style, &self.tables, out)?;
        }
        Ok(())
    }

    /// Each request with the pieces of its path.
    pub(crate) fn to_json(&self) -> Vec<Value> {
        self.paths.iter().map(|(request, path)| json::of(request, path, &self.tables)).collect()
    }
}

/// Finds the requests and their critical paths. The second result is a failure if the traces are
/// damaged.
pub(crate) fn answer(traces: &Traces, question: &Question) -> Result<(Answer, Result)> {
    traces.check_twice()?;
    let mut tables = Tables::new();
    let mut finder = Finder::new(question.clone());
    let unreported = traces.derive_again(&mut tables, &mut |derived, tables| {
        finder.push(&derived, tables);
    })?;
    choose_process(&mut finder, question, traces, &tables).inspect_err(|_| unreported.print())?;
    let found = finder.finish(&tables);
    let start = found.start;
    let Some(mut paths) = Paths::new(found) else {
        unreported.print();
        let is_whole = unreported.is_whole();
        return Err(of_no_process(question, &tables, is_whole)
            .unwrap_or_else(|| nothing(question, traces, is_whole, Explained::All)));
    };
    // This pass reports damage.
    let mut tables = Tables::new();
    let outcome = traces.derive(&mut tables, &mut |derived, _| paths.push(&derived))?;
    let paths = paths.finish(&mut tables).map_err(|error| match error {
        PathsError::TooMany => Failure::new(match question.subject {
            Subject::Goroutine(_) | Subject::Thread(_) => {
                "too many events within the time: narrow it with --between"
            }
            _ => {
                "too many events within the time of the requests: ask for fewer or shorter ones \
                 (--worst, --task, --region, --activity), or for a part (--goroutine or --thread with \
                 --between)"
            }
        }),
        error => Failure::new(error),
    })?;
    Ok((Answer { paths, tables, start }, outcome))
}

/// The critical paths of requests that another pass found. `None` if they have too many events.
pub(crate) fn paths_of(
    traces: &Traces,
    requests: Vec<Request>,
    tables: &Tables,
) -> Result<Option<Vec<(Request, CriticalPath)>>> {
    let found = Found::of(requests, tables);
    let mut tables = Tables::new();
    let Some(mut paths) = Paths::new(found) else { return Ok(Some(Vec::new())) };
    // The first pass reported damage.
    let _ = traces.derive_again(&mut tables, &mut |derived, _| paths.push(&derived))?;
    match paths.finish(&mut tables) {
        Ok(paths) => Ok(Some(paths)),
        Err(PathsError::TooMany) => Ok(None),
        Err(error) => Err(Failure::new(error)),
    }
}

/// Chooses among the processes that have the goroutine or thread: the one that is given, or the recorded
/// one, or its only descendant. If none of them is it and the id of one is not known, all remain.
fn choose_process(
    finder: &mut Finder,
    question: &Question,
    traces: &Traces,
    tables: &Tables,
) -> Result {
    let what = match question.subject {
        Subject::Goroutine(id) => format!("goroutine {id}"),
        Subject::Thread(tid) => format!("thread {tid}"),
        _ => return Ok(()),
    };
    let known = finder.processes(tables);
    let pid_of = |process: &EntityId| u32::try_from(tables.entities.get(*process)?.number).ok();
    let names = |processes: &[EntityId]| {
        let names: BTreeSet<String> =
            processes.iter().map(|process| name(tables, *process)).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    };
    if let Some(pid) = question.pid {
        if known.is_empty() || known.iter().any(|process| pid_of(process) == Some(pid)) {
            return Ok(());
        }
        let between = between(question);
        let message =
            format!("{what} is not in process {pid}{between}; it is in {}", names(&known));
        return Err(Failure::new(OneLine(&message)));
    }
    // A process can have several traces. The ids of some are not known.
    let is_one = |of: &[EntityId]| match of {
        [first, rest @ ..] => {
            let pid = pid_of(first);
            rest.is_empty() || (pid.is_some() && rest.iter().all(|other| pid_of(other) == pid))
        }
        [] => false,
    };
    if known.is_empty() || is_one(&known) {
        return Ok(());
    }
    let recorded = traces.recorded();
    let own: Vec<EntityId> = known
        .iter()
        .copied()
        .filter(|process| recorded.is_some() && pid_of(process) == recorded)
        .collect();
    let family = recorded.map(|pid| tables.entities.family(pid)).unwrap_or_default();
    let family: Vec<EntityId> =
        known.iter().copied().filter(|process| family.contains(process)).collect();
    match [own, family].iter().find(|of| is_one(of)).and_then(|of| pid_of(of.first()?)) {
        Some(pid) => {
            finder.restrict(pid);
            Ok(())
        }
        // Without its id, a process cannot be chosen: the longest life is explained.
        None if known.iter().any(|process| pid_of(process).is_none()) => Ok(()),
        None => {
            let all = names(&known);
            let message = format!("{what} is in several processes: {all}; choose one with --pid");
            Err(Failure::new(OneLine(&message)))
        }
    }
}

/// The failure if the process that is asked for is not in the traces.
fn of_no_process(question: &Question, tables: &Tables, is_whole: bool) -> Option<Failure> {
    let pid = question.pid?;
    let mut processes = tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Process);
    let is_there = processes.any(|(_, process)| process.number == i64::from(pid));
    let read = if is_whole { "the traces" } else { "what could be read of the traces" };
    (!is_there).then(|| Failure::new(format_args!("process {pid} is not in {read}")))
}

/// What a command can explain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Explained {
    All,
    /// Tasks, regions and goroutines.
    OfGo,
}

/// The failure if there is no such request. Names are those that exist. Of damaged traces it is about
/// what was read.
pub(crate) fn nothing(
    question: &Question,
    traces: &Traces,
    is_whole: bool,
    explained: Explained,
) -> Failure {
    let read = if is_whole { "the traces" } else { "what could be read of the traces" };
    let of_process = question.pid.map_or_else(String::new, |pid| format!(" in process {pid}"));
    let named = |what: &str, name: &str, kind: SpanKind| {
        let others = names(traces, kind).unwrap_or_default();
        let has = if is_whole { "have" } else { "has" };
        let there = format!("; {read} {has} {}", there(what, &others));
        let ended = match (question.between, explained) {
            (None, _) => "ended",
            (_, Explained::All) => "that overlaps these times ended",
            (_, Explained::OfGo) => "began and ended between these times",
        };
        format!("no {what} {name:?} {ended}{of_process}{there}")
    };
    Failure::new(OneLine(&match &question.subject {
        Subject::Task(name) => named("task", name, SpanKind::Task),
        Subject::Region(name) => named("region", name, SpanKind::Region),
        Subject::Activity(name) => named("activity", name, SpanKind::Activity),
        Subject::Goroutine(id) => {
            format!("goroutine {id} is not in {read}{}", between(question))
        }
        Subject::Thread(tid) => format!("thread {tid} is not in {read}{}", between(question)),
        _ => {
            let thread = traces.recorded().map_or_else(String::new, |pid| {
                format!(", as --thread {pid}, the main thread of the recorded process")
            });
            let of = if is_whole { String::new() } else { format!(" in {read}") };
            let when = match (question.between, explained) {
                (None, _) => "",
                (_, Explained::All) => ", that overlaps these times",
                (_, Explained::OfGo) => " between these times",
            };
            let (activities, threads) = match explained {
                Explained::All => (
                    ", and no activity of .NET (start and stop events)",
                    format!(" or --thread{thread}"),
                ),
                Explained::OfGo => ("", String::new()),
            };
            format!(
                "no task or region ended (runtime/trace.NewTask, WithRegion){activities}{when}\
                 {of_process}{of}; pass --goroutine{threads}"
            )
        }
    }))
}

const fn between(question: &Question) -> &'static str {
    if question.between.is_some() { " between these times" } else { "" }
}

/// The names of requests that exist, those with most time first.
fn names(traces: &Traces, kind: SpanKind) -> Result<Vec<String>> {
    /// More names are not remembered.
    const MAX: usize = 1 << 12;
    let is_it =
        |found: SpanKind| found == kind || (found, kind) == (SpanKind::Request, SpanKind::Activity);
    let mut tables = Tables::new();
    let mut open = BTreeMap::new();
    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    // The caller reports damage.
    let _ = traces.derive_again(&mut tables, &mut |derived, tables| {
        let Derived::Event(event) = derived else { return };
        match event.kind {
            EventKind::Begin { span, kind, name, .. } if is_it(kind) => {
                open.insert(span, (name, event.time));
            }
            EventKind::Finish { span, is_cut, .. } => {
                let Some((name, start)) = open.remove(&span).filter(|_| !is_cut) else { return };
                let name = tables.str(name).into_owned();
                if sums.len() < MAX || sums.contains_key(&name) {
                    let sum = sums.entry(name).or_default();
                    *sum = sum.saturating_add(event.time.nanos_since(start));
                }
            }
            _ => {}
        }
    })?;
    let mut names: Vec<(String, i64)> = sums.into_iter().collect();
    names.sort_by_key(|(_, nanos)| Reverse(*nanos));
    Ok(names.into_iter().map(|(name, _)| name).collect())
}

/// The names that exist, as a part of a message.
pub(crate) fn there(what: &str, names: &[String]) -> String {
    const SHOWN: usize = 5;
    let plural = match what.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{what}s"),
    };
    if names.is_empty() {
        return format!("no {plural}");
    }
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("{name:?}")).collect();
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(", {more} more"),
    };
    format!("the {plural} {}{more}", shown.join(", "))
}
