//! Sequence points: the lines of the IL of a method.

use super::compressed;
use crate::error::{Result, Unresolved};
use trace_common::Cursor;

/// The line of a sequence point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// The row of the document.
    pub(super) document: u32,
    pub(super) line: u32,
    pub(super) column: u32,
}

const WHAT: &str = "sequence points";

/// One more than the greatest offset and line.
const END: i64 = 0x2000_0000;

/// One more than the greatest column.
const END_COLUMN: i64 = 0x1_0000;

/// Bytes of the points of a method, which are read for each of its addresses. A point has about five bytes: a method
/// with 100 000 lines has half a megabyte.
pub(super) const MAX_BYTES: usize = 1 << 22;

/// The last point with a line at an offset or before it. `document` is 0 if the method has several.
///
/// Points without a line are those of code that the compiler made up: such code has the line before it,
/// as in the runtime's own stack traces.
pub(super) fn at(mut blob: Cursor<'_>, document: u32, il_offset: u32) -> Result<Option<Point>> {
    let blob = &mut blob;
    if blob.remaining() > MAX_BYTES {
        return Err(Unresolved::TooLarge { what: WHAT, size: blob.remaining() as u64 });
    }
    let _local_signature = compressed::unsigned(blob, WHAT)?;
    let mut document = match document {
        0 => compressed::unsigned(blob, WHAT)?,
        row => row,
    };
    let (mut il, mut is_first) = (0i64, true);
    // The line and column of the last point that has them.
    let mut last: Option<(i64, i64)> = None;
    let mut found = None;
    while !blob.is_empty() {
        let offset = blob.offset();
        let step = compressed::unsigned(blob, WHAT)?;
        // A first point at offset 0 is one; after it, a step of 0 changes the document.
        if step == 0 && !is_first {
            document = compressed::unsigned(blob, WHAT)?;
            continue;
        }
        is_first = false;
        il += i64::from(step);
        let lines = compressed::unsigned(blob, WHAT)?;
        let columns = match lines {
            0 => i64::from(compressed::unsigned(blob, WHAT)?),
            _ => i64::from(compressed::signed(blob, WHAT)?),
        };
        if il > i64::from(il_offset) {
            break;
        }
        if lines == 0 && columns == 0 {
            continue;
        }
        let (line, column) = match last {
            None => (
                i64::from(compressed::unsigned(blob, WHAT)?),
                i64::from(compressed::unsigned(blob, WHAT)?),
            ),
            Some((line, column)) => (
                line + i64::from(compressed::signed(blob, WHAT)?),
                column + i64::from(compressed::signed(blob, WHAT)?),
            ),
        };
        if !(0..END).contains(&line) || !(0..END_COLUMN).contains(&column) {
            return Err(Unresolved::Malformed { what: WHAT, offset });
        }
        last = Some((line, column));
        found = Some(Point { document, line: line as u32, column: column as u32 });
    }
    Ok(found.filter(|point| point.line > 0))
}
