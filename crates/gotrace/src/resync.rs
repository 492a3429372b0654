//! Resynchronization: finding batches after damage.
//!
//! Nothing marks the start of a batch, and any data can contain something like a header. But
//! runtimes always write the size of a batch in ten bytes, which other data hardly ever contains;
//! and batches follow each other without a gap.

use crate::batch::{self, Batch, MAX_BATCH_SIZE};
use crate::source::Source;
use crate::spec::EventType;
use std::io::Read;

/// The size of the largest batch plus a header.
const BATCH: usize = MAX_BATCH_SIZE as usize + 64;
/// Number of consecutive batches that are checked.
const CHAIN: usize = 4;
/// The maximum step of a generation number: runtimes count from 1, about one per second.
const MAX_GAP: u64 = 1 << 20;

/// Finds the index, `from` or later, of a batch of `generation` or a later one, in the source's
/// window; `None` if there is none, or none within the source's size limit.
pub(crate) fn find<R: Read>(
    source: &mut Source<R>,
    mut from: usize,
    generation: u64,
) -> Option<usize> {
    loop {
        match scan(source, from, generation) {
            Scan::Found(at) => return Some(at),
            Scan::More(end) => from = end,
            Scan::End => return None,
        }
    }
}

/// Releases the bytes before a batch of `generation` or a later one. Without such a batch it
/// releases all of the input and returns `false`.
pub(crate) fn skip<R: Read>(source: &mut Source<R>, generation: u64) -> bool {
    loop {
        let scan = scan(source, 0, generation);
        source.release(match scan {
            Scan::Found(index) | Scan::More(index) => index,
            Scan::End => source.window().len(),
        });
        if !matches!(scan, Scan::More(_)) {
            return matches!(scan, Scan::Found(_));
        }
    }
}

/// Whether a batch of `generation` or of the next one begins at the start of the source's window;
/// of any generation if `generation` is 0, before the first.
///
/// For a position that is the end of another batch, or of the trace's header: a header is enough
/// there, even of a batch that is truncated. A later generation must not be followed by another
/// one.
pub(crate) fn continues<R: Read>(source: &mut Source<R>, generation: u64) -> bool {
    let _ = source.ensure(2 * BATCH); // an error of the input is returned by the next read
    let bytes = source.window();
    let Some((first, len)) = header(bytes, 0) else { return false };
    if first.end_of_generation || first.generation == 0 {
        return false;
    }
    match first.generation.wrapping_sub(generation) {
        0 => true,
        gap if gap == 1 || (generation == 0 && gap < MAX_GAP) => {
            header(bytes, len + first.data.len())
                .is_none_or(|(next, _)| next.generation == first.generation)
        }
        _ => false,
    }
}

enum Scan {
    Found(usize),
    /// Not before this index.
    More(usize),
    End,
}

/// Looks for a batch from the index `from` on. An error of the input ends the search; the next read
/// returns the error again.
fn scan<R: Read>(source: &mut Source<R>, from: usize, generation: u64) -> Scan {
    let more = source.ensure(from + (1 + CHAIN) * BATCH);
    let bytes = source.window();
    let end = if let Ok(true) = more { from + BATCH } else { bytes.len() };
    match (from..end).find(|&at| begins(bytes, at, matches!(more, Ok(false)), generation)) {
        Some(at) => Scan::Found(at),
        // Releasing this makes room in a full source.
        None if more.unwrap_or(from < end) => Scan::More(end),
        None => Scan::End,
    }
}

/// Whether a batch of `generation`, or of a later one, begins at index `at` of the source's window.
pub(crate) fn is_batch<R: Read>(source: &mut Source<R>, at: usize, generation: u64) -> bool {
    let more = source.ensure(at + (1 + CHAIN) * BATCH);
    begins(source.window(), at, matches!(more, Ok(false)), generation)
}

/// Whether a batch begins at index `at`. `complete` says that no more bytes follow.
///
/// A batch of `generation` itself is accepted if its size is encoded as runtimes do. For a later
/// generation, another batch of it has to follow. Without such a size, it must be the same
/// generation or the next one, and three batches have to follow, or the end.
fn begins(bytes: &[u8], at: usize, complete: bool, generation: u64) -> bool {
    let starts = [EventType::EVENT_BATCH.0, EventType::EXPERIMENTAL_BATCH.0];
    if !bytes.get(at).is_some_and(|first| starts.contains(first)) {
        return false;
    }
    let Some((first, len)) = header(bytes, at) else { return false };
    let gap = first.generation.wrapping_sub(generation);
    if first.end_of_generation || first.generation == 0 || gap >= MAX_GAP {
        return false;
    }
    let written = is_written_by_runtime(bytes, at, len);
    if written && gap == 0 {
        return true;
    }
    if !written && gap > 1 {
        return false; // stacks of a recursion are periodic and look like batches
    }
    let needed = if written { 2 } else { CHAIN };
    let mut same = 1;
    let mut next = at + len + first.data.len();
    for _ in 1..CHAIN {
        if next == bytes.len() && complete {
            return same >= 2;
        }
        let Some((batch, len)) = header(bytes, next) else {
            // The next header itself may be damaged.
            let plausible = gap <= 1 || generation == 0;
            return same >= needed || (written && plausible);
        };
        next += len + batch.data.len();
        if batch.end_of_generation {
            continue;
        }
        let follows = batch.generation.wrapping_sub(first.generation) <= 1;
        same += usize::from(follows);
        if !follows && !written {
            return false;
        }
    }
    same >= needed
}

fn header(bytes: &[u8], at: usize) -> Option<(Batch, usize)> {
    batch::header(bytes.get(at..)?, 0).ok()
}

/// Whether the header of `len` bytes at `at` ends with a size of ten bytes.
#[expect(clippy::indexing_slicing, reason = "constant indexes of ten bytes")]
fn is_written_by_runtime(bytes: &[u8], at: usize, len: usize) -> bool {
    let size = len.checked_sub(10).and_then(|start| bytes.get(at + start..at + len));
    size.is_some_and(|size| size[9] == 0 && size[..9].iter().all(|byte| *byte >= 0x80))
}
