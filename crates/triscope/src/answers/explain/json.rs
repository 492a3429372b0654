//! Critical paths as JSON.

use super::summary::{Use, uses};
use serde_json::{Value, json};
use trace_timeline::answers::{CriticalPath, Piece, Request};
use trace_timeline::{EntityId, Frame, StackId, Tables, text};

/// A request with the uses of its time and the pieces of its path.
pub(super) fn of(request: &Request, path: &CriticalPath, tables: &Tables) -> Value {
    let pieces: Vec<Value> = path.pieces.iter().map(|piece| self::piece(piece, tables)).collect();
    let summary: Vec<Value> = uses(path, tables).iter().map(|of| of_time(of, tables)).collect();
    json!({
        "name": tables.str(request.name),
        "subject": entity(request.subject, tables),
        "start": request.start.nanos(),
        "nanos": request.nanos(),
        "summary": summary,
        "pieces": pieces,
    })
}

fn entity(id: EntityId, tables: &Tables) -> Value {
    let entity = tables.entities.get(id);
    let process = tables.entities.process_of(id).and_then(|id| tables.entities.get(id));
    json!({
        "kind": entity.map(|e| e.kind.name()),
        "number": entity.map(|e| e.number),
        "name": entity.map(|e| tables.str(e.name)),
        "pid": process.map(|process| process.number).filter(|pid| *pid >= 0),
        "process": process.map(|process| tables.str(process.name)),
    })
}

fn of_time(of: &Use<'_>, tables: &Tables) -> Value {
    json!({
        "what": of.kind,
        "text": of.text,
        "entity": entity(of.entity, tables),
        "context": of.longest.context.map(|id| entity(id, tables)),
        "during": text::during(of.longest, tables),
        "nanos": of.nanos,
        "pieces": of.count,
    })
}

fn piece(piece: &Piece, tables: &Tables) -> Value {
    let (kind, text) = text::piece(piece, tables);
    let entity = |id: EntityId| entity(id, tables);
    let frames = |stack: Option<StackId>| {
        let frames = tables.frames(stack?).iter();
        let function = |frame: &Frame| match tables.str(frame.function) {
            unknown if unknown.is_empty() => text::frame(tables, frame),
            function => function.into_owned(),
        };
        Some(frames.map(function).collect::<Vec<_>>())
    };
    json!({
        "start": piece.start.nanos(),
        "nanos": piece.nanos(),
        "what": kind,
        "text": text,
        "by": piece.what.by().map(entity),
        "entity": entity(piece.entity),
        "thread": piece.thread.map(entity),
        "depth": piece.depth,
        "reason": tables.str(piece.reason),
        "waiter": piece.waiter.map(entity),
        "waiter_reason": tables.str(piece.waiter_reason),
        "waiter_stack": frames(piece.waiter_stack),
        "waiter_lock_owner": piece.waiter_lock_owner.map(entity),
        "unblocker": piece.unblocker.map(entity),
        "during": text::during(piece, tables),
        "lock_owner": piece.lock_owner.map(entity),
        "context": piece.context.map(entity),
        "stack": frames(piece.stack),
        "samples": piece.samples,
    })
}
