//! Critical paths as text.

use super::summary::{context, uses};
use crate::failure::OneLine;
use crate::sources::model::duration;
use crate::timeline::counted;
use std::io::{self, Write};
use trace_timeline::answers::{CriticalPath, Piece, Request};
use trace_timeline::{Frame, Tables, Timestamp, text};

/// How a path is printed.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    /// Frames of each stack.
    pub(crate) frames: usize,
    /// Whether the pieces are printed, too.
    pub(crate) has_pieces: bool,
}

/// Uses of the time that have a line of their own.
const USES: usize = 10;

/// The width of the columns before a text.
const COLUMNS: usize = 28;

/// Prints a title, the time by its use, and the pieces if they are wanted.
pub(super) fn print(
    request: &Request,
    path: &CriticalPath,
    start: Timestamp,
    style: Style,
    tables: &Tables,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let start = request.start.nanos_since(start) as f64 / 1e9;
    let title = text::request(request, tables);
    writeln!(out, "{}: {} at {start:.6} s", OneLine(&title), duration(request.nanos()))?;
    print_uses(path, request.nanos(), style, tables, out)?;
    if style.has_pieces {
        print_pieces(path, request.nanos(), style, tables, out)?;
    }
    writeln!(out)
}

fn percent(nanos: i64, total: i64) -> f64 {
    nanos as f64 * 100.0 / total.max(1) as f64
}

fn print_uses(
    path: &CriticalPath,
    total: i64,
    style: Style,
    tables: &Tables,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let uses = uses(path, tables);
    let (shown, rest) = uses.split_at(uses.len().min(USES));
    let mut line = |nanos: i64, count: u64, what: &str, stack: Option<String>| {
        let (percent, took) = (percent(nanos, total), duration(nanos));
        let times = if count == 1 { String::new() } else { format!("{count} x") };
        writeln!(out, "{percent:>6.1}% {took:>10} {times:>8} {}", OneLine(what))?;
        stack.map_or(Ok(()), |stack| writeln!(out, "{:COLUMNS$}{stack}", ""))
    };
    for of in shown {
        let what = format!("{}: {}", text::with_process(tables, of.entity), of.text);
        // Where most of the time went; the others are below the pieces.
        let is_large = !style.has_pieces && of.nanos.saturating_mul(10) >= total;
        let stack = is_large.then(|| stack_line(of.longest, style.frames, tables)).flatten();
        line(of.nanos, of.count, &what, stack)?;
    }
    if !rest.is_empty() {
        let nanos = rest.iter().map(|of| of.nanos).sum();
        let count = rest.iter().map(|of| of.count).sum();
        line(nanos, count, &counted(rest.len() as u64, "more use"), None)?;
    }
    let pieces = counted(path.pieces.len() as u64, "piece");
    let hint = match style.has_pieces {
        true => format!("sum of {pieces}, in time order:"),
        false => format!("sum of {pieces}; --path prints them in time order"),
    };
    line(path.end.nanos_since(path.start), 1, &hint, None)
}

fn print_pieces(
    path: &CriticalPath,
    total: i64,
    style: Style,
    tables: &Tables,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    // Pieces that hardly count are shown as one.
    let least = total / 1000;
    let (mut short, mut count) = (0, 0);
    // A stack that the next piece has too is printed once.
    let mut last = String::new();
    let flush = |short: &mut i64, count: &mut u64, out: &mut Vec<u8>| {
        if *count > 0 {
            let pieces = counted(*count, "short piece");
            writeln!(out, "{:>7} {:>10}  … {pieces}", "", duration(*short))?;
        }
        (*short, *count) = (0, 0);
        Ok::<(), io::Error>(())
    };
    for piece in &path.pieces {
        if piece.nanos() < least {
            short += piece.nanos();
            count += 1;
            continue;
        }
        flush(&mut short, &mut count, out)?;
        let indent = 2 * piece.depth.min(20) as usize;
        let (percent, took) = (percent(piece.nanos(), total), duration(piece.nanos()));
        let line = piece_line(piece, tables);
        writeln!(out, "{percent:>6.1}% {took:>10}  {:indent$}{}", "", OneLine(&line))?;
        if let Some(line) = stack_line(piece, style.frames, tables).filter(|line| *line != last) {
            writeln!(out, "{:>18}  {:indent$}  {line}", "", "")?;
            last = line;
        }
    }
    flush(&mut short, &mut count, out)
}

fn piece_line(piece: &Piece, tables: &Tables) -> String {
    let (_, text) = text::piece(piece, tables);
    let mut line = format!("{}: {text}", text::with_process(tables, piece.entity));
    line.extend(text::during(piece, tables).map(|during| format!(" [{during}]")));
    line.extend(text::waiter(piece, tables).map(|waiter| format!("; {waiter}")));
    line.extend(context(piece, tables));
    line
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
