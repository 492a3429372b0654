//! Why requests took as long as they did: as text and as JSON.

mod json;
mod print;
mod summary;

use crate::failure::{Failure, OneLine, Result};
use crate::sources::model::Traces;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use trace_timeline::answers::{
    CriticalPath, Finder, Found, Paths, PathsError, Question, Request, Subject,
};
use trace_timeline::{Derived, EventKind, SpanKind, Tables, Timestamp};

pub(crate) use print::Style;

/// The critical paths of requests.
pub(crate) struct Answer {
    paths: Vec<(Request, CriticalPath)>,
    tables: Tables,
    /// The start of the timeline.
    begin: Timestamp,
}

impl Answer {
    /// Paths that another analysis found, in a timeline that starts at `begin`.
    pub(crate) const fn of(
        paths: Vec<(Request, CriticalPath)>,
        tables: Tables,
        begin: Timestamp,
    ) -> Self {
        Self { paths, tables, begin }
    }

    /// Prints the paths.
    pub(crate) fn print(&self, style: Style, out: &mut Vec<u8>) -> io::Result<()> {
        for (request, path) in &self.paths {
            print::print(request, path, self.begin, style, &self.tables, out)?;
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
    let failures = traces.derive_again(&mut tables, &mut |derived, tables| {
        finder.push(&derived, tables);
    })?;
    let found = finder.finish(&tables);
    let begin = found.begin;
    let mut tables = Tables::new();
    let Some(mut paths) = Paths::new(found) else {
        failures.iter().for_each(Failure::print);
        return Err(nothing(question, traces, failures.is_empty(), Explained::All));
    };
    // This pass reports damage.
    let outcome = traces.derive(&mut tables, &mut |derived, _| paths.push(&derived))?;
    let paths = paths.finish(&mut tables).map_err(|error| match error {
        PathsError::TooMany => {
            Failure::new("too many events within the time: narrow it with --between")
        }
        error => Failure::new(error),
    })?;
    Ok((Answer { paths, tables, begin }, outcome))
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
    let named = |what: &str, name: &str, kind: SpanKind| {
        let others = names(traces, kind).unwrap_or_default();
        let has = if is_whole { "have" } else { "has" };
        let there = format!("; {read} {has} {}", there(what, &others));
        format!("no {what} {name:?} ended{}", between(question)) + &there
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
            let (activities, threads) = match explained {
                Explained::All => (
                    ", and no activity of .NET (start and stop events)",
                    format!(" or --thread{thread}"),
                ),
                Explained::OfGo => ("", String::new()),
            };
            format!(
                "no task or region ended (runtime/trace.NewTask, WithRegion){activities}{}{of}; pass \
                 --goroutine{threads}",
                between(question)
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
                open.insert(span, (name, event.at));
            }
            EventKind::Finish { span, is_cut, .. } => {
                let Some((name, begin)) = open.remove(&span).filter(|_| !is_cut) else { return };
                let name = tables.str(name).into_owned();
                if sums.len() < MAX || sums.contains_key(&name) {
                    let sum = sums.entry(name).or_default();
                    *sum = sum.saturating_add(event.at.nanos_since(begin));
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
fn there(what: &str, names: &[String]) -> String {
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
