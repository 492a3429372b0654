//! Why requests took as long as they did: as text and as JSON.

use crate::failure::{Failure, OneLine, Result};
use crate::sources::model::{Traces, duration, name};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use trace_timeline::answers::{
    CriticalPath, Finder, Found, Paths, PathsError, Piece, Question, Request, Subject,
};
use trace_timeline::{EntityId, Frame, StackId, Tables, Timestamp, text};

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

    /// Prints the paths, with this many frames of each stack.
    pub(crate) fn print(&self, frames: usize, out: &mut Vec<u8>) -> io::Result<()> {
        for (request, path) in &self.paths {
            print(request, path, self.begin, frames, &self.tables, out)?;
        }
        Ok(())
    }

    /// Each request with the pieces of its path.
    pub(crate) fn to_json(&self) -> Vec<Value> {
        self.paths.iter().map(|(request, path)| to_json(request, path, &self.tables)).collect()
    }
}

/// Finds the requests and their critical paths. The second result is a failure if the traces are
/// damaged.
pub(crate) fn answer(traces: &Traces, question: &Question) -> Result<(Answer, Result)> {
    let mut tables = Tables::new();
    let mut finder = Finder::new(question.clone());
    // The second pass reports damage.
    let _ = traces.derive_again(&mut tables, &mut |derived, tables| {
        finder.push(&derived, tables);
    })?;
    let found = finder.finish(&tables);
    let begin = found.begin;
    let mut tables = Tables::new();
    let Some(mut paths) = Paths::new(found) else { return Err(nothing(question)) };
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

/// The failure if there is no such request.
pub(crate) fn nothing(question: &Question) -> Failure {
    let what = match &question.subject {
        Subject::Task(name) => format!("no task {name:?} ended"),
        Subject::Region(name) => format!("no region {name:?} ended"),
        Subject::Activity(name) => format!("no activity {name:?} ended"),
        Subject::Goroutine(id) => format!("goroutine {id} is not in the traces"),
        Subject::Thread(tid) => format!("thread {tid} is not in the traces"),
        _ => {
            "no task or region ended (runtime/trace.NewTask, WithRegion), and no activity of .NET \
              (start and stop events); pass --goroutine or --thread"
                .to_owned()
        }
    };
    let between = if question.between.is_some() { " between these times" } else { "" };
    Failure::new(format_args!("{what}{between}"))
}

fn print(
    request: &Request,
    path: &CriticalPath,
    start: Timestamp,
    frames: usize,
    tables: &Tables,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let total = request.nanos().max(1);
    let begin = request.begin.nanos_since(start) as f64 / 1e9;
    let title = text::request(request, tables);
    writeln!(out, "{}: {} at {begin:.6} s", OneLine(&title), duration(request.nanos()))?;
    // Pieces that hardly count are shown as one.
    let least = total / 1000;
    let (mut short, mut count) = (0, 0);
    // A stack that the next piece has too is printed once.
    let mut last = String::new();
    let mut causes: BTreeMap<String, i64> = BTreeMap::new();
    let flush = |short: &mut i64, count: &mut u64, out: &mut Vec<u8>| {
        if *count > 0 {
            writeln!(out, "{:>7} {:>10}  … {count} short pieces", "", duration(*short))?;
        }
        (*short, *count) = (0, 0);
        Ok::<(), io::Error>(())
    };
    for piece in &path.pieces {
        let (kind, text) = text::piece(piece, tables);
        let cause = match text::during(piece, tables) {
            Some(during) => format!("{kind}, {during}"),
            None if piece.context.is_some() => format!("{kind}, for another task"),
            None => kind.to_owned(),
        };
        *causes.entry(cause).or_default() += piece.nanos();
        if piece.nanos() < least {
            short += piece.nanos();
            count += 1;
            continue;
        }
        flush(&mut short, &mut count, out)?;
        let percent = piece.nanos() as f64 * 100.0 / total as f64;
        let indent = 2 * piece.depth.min(20) as usize;
        let who = name(tables, piece.entity);
        write!(
            out,
            "{percent:>6.1}% {:>10}  {:indent$}{who}: {}",
            duration(piece.nanos()),
            "",
            OneLine(&text)
        )?;
        if let Some(during) = text::during(piece, tables) {
            write!(out, " [{}]", OneLine(&during))?;
        }
        if let Some(waiter) = piece.waiter {
            let reason = tables.str(piece.waiter_reason);
            let waiter = name(tables, waiter);
            if reason.is_empty() {
                write!(out, "; {waiter} waits")?;
            } else {
                write!(out, "; {waiter} waits: {}", OneLine(&reason))?;
            }
        }
        if let Some(task) = piece.context {
            write!(out, " (context: works for {})", name(tables, task))?;
        }
        writeln!(out)?;
        if let Some(line) = stack_line(piece, frames, tables).filter(|line| *line != last) {
            writeln!(out, "{:>18}  {:indent$}  {line}", "", "")?;
            last = line;
        }
    }
    flush(&mut short, &mut count, out)?;
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by_key(|(_, nanos)| Reverse(*nanos));
    write!(out, "  sum:")?;
    for (cause, nanos) in causes {
        write!(out, " {} {};", duration(nanos), OneLine(&cause))?;
    }
    writeln!(out, "\n")
}

/// The stack of a piece, or where the one that waits for it stopped.
fn stack_line(piece: &Piece, frames: usize, tables: &Tables) -> Option<String> {
    let stack = piece.stack.or(piece.waiter_stack).filter(|_| frames > 0)?;
    let what = match (piece.stack, piece.samples) {
        (None, _) => "the wait is ".to_owned(),
        (_, 0) => String::new(),
        (_, 1) => "1 sample ".to_owned(),
        (_, samples) => format!("{samples} samples, most often "),
    };
    // Where a thread left the CPU, the innermost functions are those of the kernel's scheduler.
    let inner = tables.frames(stack);
    let is_kernel = |frame: &Frame| frame.mapping.is_some_and(|id| tables.mapping(id).is_kernel);
    let of_kernel = inner.iter().take_while(|frame| is_kernel(frame)).count();
    let skipped = if piece.samples == 0 && of_kernel < inner.len() { of_kernel } else { 0 };
    let shown = text::frames(tables, inner.get(skipped..).unwrap_or_default(), frames);
    Some(format!("{what}at {}", OneLine(&shown)))
}

fn to_json(request: &Request, path: &CriticalPath, tables: &Tables) -> Value {
    let entity = |id: EntityId| {
        let entity = tables.entities.get(id);
        json!({
            "kind": entity.map(|e| format!("{:?}", e.kind)),
            "number": entity.map(|e| e.number),
            "name": entity.map(|e| tables.str(e.name)),
        })
    };
    let pieces: Vec<Value> = path
        .pieces
        .iter()
        .map(|piece| {
            let (kind, text) = text::piece(piece, tables);
            let frames = |stack: Option<StackId>| {
                let frames = tables.frames(stack?).iter();
                let function = |frame: &Frame| match tables.str(frame.function) {
                    unknown if unknown.is_empty() => text::frame(tables, frame),
                    function => function.into_owned(),
                };
                Some(frames.map(function).collect::<Vec<_>>())
            };
            json!({
                "begin": piece.begin.nanos(),
                "nanos": piece.nanos(),
                "what": kind,
                "text": text,
                "entity": entity(piece.entity),
                "thread": piece.thread.map(entity),
                "depth": piece.depth,
                "reason": tables.str(piece.reason),
                "waiter": piece.waiter.map(entity),
                "waiter_reason": tables.str(piece.waiter_reason),
                "waiter_stack": frames(piece.waiter_stack),
                "during": text::during(piece, tables),
                "context": piece.context.map(entity),
                "stack": frames(piece.stack),
                "samples": piece.samples,
            })
        })
        .collect();
    json!({
        "name": tables.str(request.name),
        "subject": entity(request.subject),
        "begin": request.begin.nanos(),
        "nanos": request.nanos(),
        "pieces": pieces,
    })
}
