//! Critical paths of a Go trace in the model of timelines, whose texts all paths have.

use crate::answers::explain::Answer;
use gotrace::analysis::{
    CriticalPath, CriticalPaths, Frame, Name, Occupant, PathGoroutine, PathPiece, PathState,
    RangeKind, Request, RequestKind,
};
use gotrace::{ProcId, TaskId};
use std::collections::HashMap;
use std::sync::Arc;
use trace_timeline::answers::{self, Piece, What};
use trace_timeline::{
    Context, Entity, EntityId, EntityKind, Kernel, SpanKind, StackId, Tables, TextId,
};

/// The paths as an answer; `None` if the tables have no room.
pub(super) fn answer(paths: CriticalPaths) -> Option<Answer> {
    let begin = paths.first().unwrap_or_default();
    let mut tables = Tables::new();
    let process = tables.entity(Entity::new(EntityKind::Process, -1))?;
    let (entities, stacks) = Default::default();
    let mut model = Model { tables, process, entities, stacks };
    let paths = paths.finish().into_iter().map(|path| model.path(path)).collect();
    Some(Answer::of(paths, model.tables, begin))
}

struct Model {
    tables: Tables,
    /// In place of goroutines above the limits of the tables.
    process: EntityId,
    entities: HashMap<(EntityKind, i64, Name), EntityId>,
    stacks: HashMap<Arc<[Frame]>, Option<StackId>>,
}

impl Model {
    fn path(&mut self, path: CriticalPath) -> (answers::Request, answers::CriticalPath) {
        let Request { kind, name, start, end, .. } = path.request;
        let subject = self.goroutine(&path.subject);
        let (kind, name) = match kind {
            RequestKind::Task(_) => (SpanKind::Task, self.text(&name)),
            _ => (SpanKind::Region, self.text(&name)),
        };
        let request = answers::Request::of(kind, name, subject, start, end);
        let pieces = path.pieces.iter().map(|piece| self.piece(piece)).collect();
        (request, answers::CriticalPath::new(subject, start, end, pieces))
    }

    fn piece(&mut self, piece: &PathPiece) -> Piece {
        let what = match &piece.what {
            PathState::Running => What::Running,
            PathState::Syscall => What::Syscall,
            PathState::Runnable { proc, occupant } => {
                let (holder, kernel) = match occupant {
                    Occupant::Goroutine(holder) => (Some(self.goroutine(holder)), Kernel::Unknown),
                    Occupant::Idle => (None, Kernel::Absent),
                    _ => (None, Kernel::Unknown),
                };
                let proc =
                    proc.map(|ProcId(id)| self.entity(EntityKind::Proc, id, &Name::default()));
                What::WaitsForProc { proc, holder, kernel }
            }
            PathState::Waits => What::Waits { context: Context::Task },
            _ => What::Unknown,
        };
        let entity = self.goroutine(&piece.goroutine);
        let mut result = Piece::new(piece.start, piece.end, entity, what);
        result.depth = piece.depth;
        result.reason = self.text(&piece.reason);
        result.stack = self.stack(&piece.stack);
        result.samples = piece.samples;
        result.waiter = piece.waiter.as_ref().map(|waiter| self.goroutine(waiter));
        result.waiter_reason = self.text(&piece.waiter_reason);
        result.waiter_stack = self.stack(&piece.waiter_stack);
        result.during = piece.during.as_ref().map(|during| match during {
            RangeKind::StopTheWorld(reason) => (SpanKind::StopTheWorld, self.text(reason)),
            _ => (SpanKind::GcAssist, TextId::EMPTY),
        });
        result.context = piece
            .context
            .as_ref()
            .map(|(TaskId(id), name)| self.entity(EntityKind::Task, *id as i64, name));
        result
    }

    fn text(&mut self, name: &Name) -> TextId {
        self.tables.text(name)
    }

    fn goroutine(&mut self, goroutine: &PathGoroutine) -> EntityId {
        self.entity(EntityKind::Goroutine, goroutine.id.0, &goroutine.entry)
    }

    fn entity(&mut self, kind: EntityKind, number: i64, name: &Name) -> EntityId {
        let Self { tables, process, entities, .. } = self;
        *entities.entry((kind, number, name.clone())).or_insert_with(|| {
            let text = tables.text(name);
            tables.entity(Entity::new(kind, number).name(text)).unwrap_or(*process)
        })
    }

    fn stack(&mut self, frames: &Arc<[Frame]>) -> Option<StackId> {
        let tables = &mut self.tables;
        *self.stacks.entry(Arc::clone(frames)).or_insert_with(|| {
            let frame = |frame: &Frame| trace_timeline::Frame {
                function: tables.text(&frame.function),
                file: tables.text(&frame.file),
                line: u32::try_from(frame.line).unwrap_or(0),
                ..trace_timeline::Frame::default()
            };
            let frames: Vec<_> = frames.iter().map(frame).collect();
            tables.stack(&frames)
        })
    }
}
