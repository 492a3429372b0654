//! Finding batches behind damage.
//!
//! Nothing marks the start of a batch, and a header can be found in any data. But runtimes write
//! the size of a batch in ten bytes, whatever it is, which other data hardly ever contains; and
//! batches follow each other without a gap.

use crate::batch::{self, Batch, MAX_BATCH_SIZE};
use crate::error::Error;
use crate::source::Source;
use crate::spec::EventType;
use std::io::Read;

/// As much as the largest batch and a header.
const BATCH: usize = MAX_BATCH_SIZE as usize + 64;
/// Batches in a row that are looked at.
const CHAIN: usize = 4;
/// How far ahead the number of a generation may be: runtimes count from 1, one a second or so.
const MAX_GAP: u64 = 1 << 20;

/// The index from `from` on where a batch of `generation` or a later one begins, into the source's
/// window; `None` if there is none.
///
/// # Errors
///
/// Those of the input and of the source's limit.
pub(crate) fn find<R: Read>(
    source: &mut Source<R>,
    mut from: usize,
    generation: u64,
) -> Result<Option<usize>, Error> {
    loop {
        let (found, end) = scan(source, from, generation)?;
        match end {
            Some(end) if found.is_none() => from = end,
            _ => return Ok(found),
        }
    }
}

/// Releases what precedes a batch of `generation` or a later one; all of the input if there is none,
/// which is `false`.
///
/// # Errors
///
/// Those of the input.
pub(crate) fn skip<R: Read>(source: &mut Source<R>, generation: u64) -> Result<bool, Error> {
    loop {
        let (found, end) = scan(source, 0, generation)?;
        source.release(found.or(end).unwrap_or(source.window().len()));
        if found.is_some() || end.is_none() {
            return Ok(found.is_some());
        }
    }
}

/// Looks for a batch among the indexes from `from` on; up to which one, unless that is the end of
/// the input.
fn scan<R: Read>(
    source: &mut Source<R>,
    from: usize,
    generation: u64,
) -> Result<(Option<usize>, Option<usize>), Error> {
    let more = source.ensure(from + (1 + CHAIN) * BATCH)?;
    let bytes = source.window();
    let end = if more { from + BATCH } else { bytes.len() };
    let found = (from..end).find(|&at| begins(bytes, at, !more, generation));
    Ok((found, more.then_some(end)))
}

/// Whether a batch of `generation`, or of a later one, begins at index `at` of the source's window.
pub(crate) fn is_batch<R: Read>(
    source: &mut Source<R>,
    at: usize,
    generation: u64,
) -> Result<bool, Error> {
    let more = source.ensure(at + (1 + CHAIN) * BATCH)?;
    Ok(begins(source.window(), at, !more, generation))
}

/// Whether a batch begins at index `at`. `complete` says that no more bytes follow.
///
/// A batch of `generation` itself is believed for the size that runtimes write. For a later
/// generation, another batch of it has to follow; without such a size, three or the end.
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
    let mut same = 1;
    let mut next = at + len + first.data.len();
    for _ in 1..CHAIN {
        if next == bytes.len() && complete {
            return same >= 2;
        }
        let Some((batch, len)) = header(bytes, next) else { break };
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
    same >= if written { 2 } else { CHAIN }
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
