//! `triscope explain`: the critical path of requests.

use crate::failure::{Failure, OneLine, Result};
use crate::io::stdout::Output;
use crate::sources::model::{Traces, duration, name};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use trace_timeline::answers::{
    CriticalPath, History, Request, RequestFilter, Requests, critical_path,
};
use trace_timeline::{Derived, EntityId, EntityKind, SpanKind, StackId, Tables, Timestamp, text};

/// Explain why requests took as long as they did: their critical path
///
/// Starts at the end of a request and walks back. While its goroutine or thread waits, the path
/// continues with the goroutine or thread that ended the wait, across the layers: through channels,
/// mutexes, pipes and system calls, to other processes. The pieces sum to the duration.
///
/// Work that such a goroutine did for another task is marked "context": it is why the wait was
/// long, but not a part of this request.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope explain trace.out                           the longest task, region or activity
  triscope explain trace.out perf.data --task checkout --worst 3
  triscope explain trace.out --goroutine 42 --between 1.5 1.6
  triscope explain app.nettrace perf.data --activity Request
  triscope explain trace.out old.data --offset old.data=12.5
  triscope explain --json recording/ | jq '.[0].pieces'")]
pub(crate) struct Args {
    #[command(flatten)]
    traces: Traces,
    /// Only tasks with this name (runtime/trace.NewTask)
    #[arg(long, value_name = "NAME", group = "what")]
    task: Option<String>,
    /// Only regions with this name (runtime/trace.WithRegion)
    #[arg(long, value_name = "NAME", group = "what")]
    region: Option<String>,
    /// Only activities of .NET with this name: a pair of start and stop events of an event source, as
    /// NAME or SOURCE/NAME
    #[arg(long, value_name = "NAME", group = "what")]
    activity: Option<String>,
    /// This goroutine, from its start to its end
    #[arg(long, value_name = "ID", group = "what")]
    goroutine: Option<i64>,
    /// This thread of the kernel, from its start to its end
    #[arg(long, value_name = "TID", group = "what")]
    thread: Option<i64>,
    /// Only between these times, in seconds from the start of the timeline
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    between: Vec<f64>,
    /// Number of requests, longest first
    #[arg(long, value_name = "N", default_value_t = 1)]
    worst: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let (found, begin) = find(args)?;
    let mut tables = Tables::new();
    // The second reading numbers texts anew, and entities as the first.
    let mut requests = Vec::new();
    for (mut request, name) in found {
        request.name = tables.text(&name);
        requests.push(request);
    }
    let mut windows = requests.iter().map(|request| (request.begin, request.end));
    let Some((first, last)) = windows.next() else { return Err(nothing(args)) };
    let mut history = History::new(first, last);
    windows.for_each(|(begin, end)| history.add_window(begin, end));
    let outcome =
        args.traces.derive_with_stacks(&mut tables, &mut |derived, _| history.push(&derived))?;
    history.finish();
    if history.dropped() > 0 {
        return Err(Failure::new("too many events within the time: narrow it with --between"));
    }
    let paths: Vec<(Request, CriticalPath)> = requests
        .into_iter()
        .map(|r| {
            let entities = &tables.entities;
            let path = critical_path(&history, entities, r.subject, r.begin, r.end, r.task);
            (r, path)
        })
        .collect();
    let mut output = Output::new();
    if args.json {
        let paths: Vec<Value> = paths.iter().map(|(r, path)| to_json(r, path, &tables)).collect();
        let text = serde_json::to_string_pretty(&paths).unwrap_or_default();
        output.buffer.extend_from_slice(text.as_bytes());
        output.buffer.push(b'\n');
    } else {
        for (request, path) in &paths {
            let _ = print(request, path, begin, &tables, &mut output.buffer);
        }
    }
    output.finish()?;
    outcome
}

/// A request and its name.
type Named = (Request, Vec<u8>);

/// The first pass: the requests with their names, and the start of the timeline.
fn find(args: &Args) -> Result<(Vec<Named>, Timestamp)> {
    let mut tables = Tables::new();
    let filter = filter(args, &mut tables);
    let has_short_name = args.activity.as_ref().is_some_and(|name| !name.contains('/'));
    let is_selected_later = has_short_name || !args.between.is_empty();
    let mut requests = Requests::new(filter, if is_selected_later { 1 << 20 } else { args.worst });
    let wanted = match (args.goroutine, args.thread) {
        (Some(id), _) => Some((EntityKind::Goroutine, id)),
        (_, Some(tid)) => Some((EntityKind::Thread, tid)),
        _ => None,
    };
    let mut lives: BTreeMap<EntityId, (Timestamp, Timestamp)> = BTreeMap::new();
    let mut time: Option<Timestamp> = None;
    // The second pass reports damage.
    let _ = args.traces.derive_again(&mut tables, &mut |derived, tables| {
        requests.push(&derived);
        match derived {
            Derived::Interval(interval) => {
                let entity = tables.entities.get(interval.subject);
                if wanted.is_some() && entity.map(|e| (e.kind, e.number)) == wanted {
                    let life = (interval.begin, interval.end);
                    lives.entry(interval.subject).or_insert(life).1 = interval.end;
                }
            }
            Derived::Event(event) => {
                time.get_or_insert(event.at);
            }
            _ => {}
        }
    })?;
    let start = time.unwrap_or_default();
    let mut found = requests.into_worst();
    if let Some(name) = args.activity.as_ref().filter(|_| has_short_name) {
        let is_it = |request: &Request| {
            let text = tables.str(request.name);
            text.rsplit_once('/').is_some_and(|(_, activity)| activity == name)
        };
        found.retain(is_it);
    }
    if wanted.is_some() {
        let mut lives: Vec<_> = lives.into_iter().collect();
        lives.sort_by_key(|(_, (begin, end))| Reverse(end.nanos_since(*begin)));
        found = lives
            .into_iter()
            .map(|(subject, (begin, end))| {
                Request::of(SpanKind::Region, Default::default(), subject, begin, end)
            })
            .collect();
    }
    if let [from, to] = args.between[..] {
        let at = |seconds: f64| start.saturating_add_nanos((seconds * 1e9).round() as i64);
        let (from, to) = (at(from), at(to));
        if wanted.is_some() {
            for request in &mut found {
                request.begin = request.begin.max(from);
                request.end = request.end.min(to);
            }
            found.retain(|request| request.begin < request.end);
        } else {
            found.retain(|request| request.begin >= from && request.end <= to);
        }
    }
    found.truncate(args.worst);
    let named = found.into_iter().map(|request| (request, tables.get(request.name).to_vec()));
    Ok((named.collect(), start))
}

fn filter(args: &Args, tables: &mut Tables) -> RequestFilter {
    let mut filter = RequestFilter::default();
    for (name, kind) in [(&args.task, SpanKind::Task), (&args.region, SpanKind::Region)] {
        if let Some(name) = name {
            filter.kind = Some(kind);
            filter.name = Some(tables.text(name.as_bytes()));
        }
    }
    if let Some(name) = &args.activity {
        filter.kind = Some(SpanKind::Activity);
        filter.name = name.contains('/').then(|| tables.text(name.as_bytes()));
    }
    filter
}

fn nothing(args: &Args) -> Failure {
    let Args { task, region, activity, goroutine, thread, .. } = args;
    let what = match (task, region, activity, goroutine, thread) {
        (Some(name), ..) => format!("no task {name:?} ended"),
        (_, Some(name), ..) => format!("no region {name:?} ended"),
        (_, _, Some(name), ..) => format!("no activity {name:?} ended"),
        (.., Some(id), _) => format!("goroutine {id} is not in the traces"),
        (.., Some(tid)) => format!("thread {tid} is not in the traces"),
        _ => {
            "no task or region ended (runtime/trace.NewTask, WithRegion), and no activity of .NET \
              (start and stop events); pass --goroutine or --thread"
                .to_owned()
        }
    };
    let between = if args.between.is_empty() { "" } else { " between these times" };
    Failure::new(format_args!("{what}{between}"))
}

fn print(
    request: &Request,
    path: &CriticalPath,
    start: Timestamp,
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
                Some(frames.map(|frame| tables.str(frame.function)).collect::<Vec<_>>())
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
