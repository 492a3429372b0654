//! The critical paths of requests.

use super::json;
use super::refs::Refs;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use trace_timeline::answers::{CriticalPath, Piece, Request};
use trace_timeline::{Tables, Timestamp, text};

/// Pieces of all paths on the page: each has some 100 bytes of JSON.
pub(super) const MAX_PIECES: usize = 1 << 18;

/// How many pieces of each path are on the page: the same number of the long paths, and all of
/// those with fewer.
fn shares(lengths: impl Iterator<Item = usize>, most: usize) -> Vec<usize> {
    let mut shares: Vec<usize> = lengths.collect();
    let mut order: Vec<&mut usize> = shares.iter_mut().collect();
    order.sort_unstable();
    let (mut left, mut paths) = (most, order.len());
    for share in order {
        *share = (*share).min(left / paths.max(1));
        left -= *share;
        paths -= 1;
    }
    shares
}

/// The longest pieces, in time order, and the others.
fn longest(pieces: &[Piece], most: usize) -> (Vec<&Piece>, Vec<&Piece>) {
    let mut kept: Vec<(usize, &Piece)> = pieces.iter().enumerate().collect();
    kept.sort_by_key(|(_, piece)| Reverse(piece.nanos()));
    let rest = kept.split_off(most.min(kept.len()));
    kept.sort_unstable_by_key(|(place, _)| *place);
    let only = |pieces: Vec<(usize, _)>| pieces.into_iter().map(|(_, piece)| piece).collect();
    (only(kept), only(rest))
}

/// `[{"name","subject","begin","nanos","pieces","rest":[[what, pieces, nanoseconds], …]}, …]`, with at
/// most this number of pieces.
pub(super) fn write(
    out: &mut String,
    paths: &[(Request, CriticalPath)],
    most: usize,
    start: Timestamp,
    refs: &mut Refs,
    tables: &Tables,
) {
    let shares = shares(paths.iter().map(|(_, path)| path.pieces.len()), most);
    json::list(out, paths.iter().zip(shares), |out, ((request, path), share)| {
        let (pieces, rest) = longest(&path.pieces, share);
        out.push_str("{\"name\":");
        json::text(out, &text::request(request, tables));
        for (name, number) in [
            ("subject", i64::from(refs.entity(Some(request.subject)))),
            ("begin", request.start.nanos_since(start)),
            ("nanos", request.nanos()),
        ] {
            out.push_str(",\"");
            out.push_str(name);
            out.push_str("\":");
            json::number(out, number);
        }
        out.push_str(",\"pieces\":");
        json::list(out, pieces, |out, piece| write_piece(out, piece, start, refs, tables));
        let mut sums: BTreeMap<&str, (u64, i64)> = BTreeMap::new();
        for piece in rest {
            let (count, nanos) = sums.entry(text::piece(piece, tables).0).or_default();
            *count += 1;
            *nanos += piece.nanos();
        }
        out.push_str(",\"rest\":");
        json::list(out, sums, |out, (what, (count, nanos))| {
            out.push('[');
            json::text(out, what);
            out.push(',');
            json::number(out, count);
            out.push(',');
            json::number(out, nanos);
            out.push(']');
        });
        out.push('}');
    });
}

/// `[begin, nanoseconds, entity, depth, waiter, context, stack, what, text, during, owner]`; the owner is
/// that of the lock that the waiter waits for
fn write_piece(
    out: &mut String,
    piece: &Piece,
    start: Timestamp,
    refs: &mut Refs,
    tables: &Tables,
) {
    let (what, words) = text::piece(piece, tables);
    let during = text::during(piece, tables).unwrap_or_default();
    let numbers = [
        piece.start.nanos_since(start),
        piece.nanos(),
        refs.entity(Some(piece.entity)).into(),
        piece.depth.into(),
        refs.entity(piece.waiter).into(),
        refs.entity(piece.context).into(),
        refs.stack(piece.stack).into(),
    ];
    out.push('[');
    for number in numbers {
        json::number(out, number);
        out.push(',');
    }
    json::text(out, what);
    out.push(',');
    json::text(out, &words);
    out.push(',');
    json::text(out, &during);
    out.push(',');
    json::number(out, refs.entity(piece.waiter_lock_owner));
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_timeline::answers::What;
    use trace_timeline::{Entity, EntityKind, SpanKind, TextId};

    #[test]
    fn long_paths_share_what_short_ones_leave() {
        let shares = |lengths: &[usize], most| shares(lengths.iter().copied(), most);
        assert_eq!(shares(&[100, 2, 50], 1000), [100, 2, 50]);
        assert_eq!(shares(&[100, 2, 50], 42), [20, 2, 20]);
        assert_eq!(shares(&[100, 2, 5], 42), [35, 2, 5]);
        assert_eq!(shares(&[3, 3], 1), [0, 1]);
        assert!(shares(&[], 1).is_empty());
    }

    /// The shortest pieces above the limit are summed.
    #[test]
    fn pieces_above_the_limit_are_summed() {
        let mut tables = Tables::new();
        let entity = tables.entity(Entity::new(EntityKind::Goroutine, 1)).unwrap();
        let at = Timestamp::from_nanos;
        let piece = |start, end, what| Piece::new(at(start), at(end), entity, what);
        let pieces = vec![
            piece(0, 1, What::Running),
            piece(1, 11, What::Running),
            piece(11, 13, What::Syscall),
            piece(13, 33, What::Running),
            piece(33, 36, What::Running),
        ];
        let request = Request::of(SpanKind::Region, TextId::EMPTY, entity, at(0), at(36));
        let path = CriticalPath::new(entity, at(0), at(36), pieces);
        let mut out = String::new();
        write(&mut out, &[(request, path)], 2, at(0), &mut Refs::default(), &tables);
        let (_, pieces) = out.split_once("\"pieces\":").unwrap();
        assert_eq!(
            pieces,
            "[[1,10,5,0,0,0,0,\"running\",\"ran\",\"\",0],\
             [13,20,5,0,0,0,0,\"running\",\"ran\",\"\",0]],\
             \"rest\":[[\"running\",2,4],[\"syscall\",1,2]]}]"
        );
    }
}
