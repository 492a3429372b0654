//! The time of a critical path by its use.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use trace_timeline::answers::{CriticalPath, Piece};
use trace_timeline::{EntityId, EntityKind, Tables, text};

/// The pieces of one use: the same entity, activity and others that are involved.
pub(super) struct Use<'a> {
    /// The goroutine or thread.
    pub(super) entity: EntityId,
    /// The stable name of the use.
    pub(super) kind: &'static str,
    /// The use as a phrase.
    pub(super) text: String,
    /// The sum of the pieces.
    pub(super) nanos: i64,
    /// Number of pieces.
    pub(super) count: u64,
    /// The longest piece, the first of several.
    pub(super) longest: &'a Piece,
}

/// The uses of the time of a path, largest first. They sum to its duration.
pub(super) fn uses<'a>(path: &'a CriticalPath, tables: &Tables) -> Vec<Use<'a>> {
    let mut places = BTreeMap::new();
    let mut uses: Vec<Use<'_>> = Vec::new();
    for piece in &path.pieces {
        let (kind, _) = text::piece(piece, tables);
        let text = phrase(piece, tables);
        let key = (piece.entity, kind, text.clone());
        let place = *places.entry(key).or_insert(uses.len());
        match uses.get_mut(place) {
            Some(known) => {
                known.nanos = known.nanos.saturating_add(piece.nanos());
                known.count += 1;
                if piece.nanos() > known.longest.nanos() {
                    known.longest = piece;
                }
            }
            None => uses.push(Use {
                entity: piece.entity,
                kind,
                text,
                nanos: piece.nanos(),
                count: 1,
                longest: piece,
            }),
        }
    }
    uses.sort_by_key(|of| Reverse(of.nanos));
    uses
}

/// The use of a piece, and all that distinguishes it from others.
fn phrase(piece: &Piece, tables: &Tables) -> String {
    let mut phrase = text::use_of_time(piece, tables);
    phrase.extend(text::during(piece, tables).map(|during| format!(" [{during}]")));
    // A thread of the kernel is on the path for the goroutine that waits for it.
    let is_thread = tables.entities.kind(piece.entity) == Some(EntityKind::Thread);
    let waiter = if is_thread { text::waiter(piece, tables) } else { text::mutex(piece, tables) };
    phrase.extend(waiter.map(|waiter| format!("; {waiter}")));
    phrase.extend(context(piece, tables));
    phrase
}

/// The other task that a piece is for, as a remark.
pub(super) fn context(piece: &Piece, tables: &Tables) -> Option<String> {
    let task = piece.context?;
    Some(format!(" (context: works for {})", text::name(tables, task)))
}
