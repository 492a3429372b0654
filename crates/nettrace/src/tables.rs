//! Tables that events refer to by number: stacks, threads, label lists. Stacks and label lists are
//! valid until the next sequence point.

use std::collections::HashMap;

use trace_common::{Cursor, Limits};

use crate::strings::{guid, utf8, varint64};
use crate::{Error, Guid, Result, table_space};

/// Maximum number of bytes of a stack: 16384 frames. A runtime writes at most 100. Each of many tiny events can have the
/// same stack, and takes the time of its size again.
const MAX_STACK: usize = 1 << 17;

/// Maximum number of bytes of a label list. The labels other than texts take less than 100. As for a stack, each event
/// takes the time of the size.
const MAX_LABEL_LIST: usize = 1 << 14;

/// Rows of bytes with consecutive ids, from stack and label list blocks.
#[derive(Debug, Default)]
pub(crate) struct RowCache {
    bytes: Vec<u8>,
    /// Offset and length of each row.
    rows: Vec<(u32, u32)>,
    /// Blocks in order of their ids.
    segments: Vec<Segment>,
    /// Rows of blocks whose ids decrease, which the format allows.
    irregular: HashMap<u32, u32>,
    /// Total number of rows since the beginning of the stream.
    pub(crate) total: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    first_id: u32,
    first_row: u32,
    rows: u32,
}

impl RowCache {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
        self.segments.clear();
        table_space::empty(&mut self.irregular);
    }

    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let row = match self.irregular.get(&id) {
            Some(row) => *row,
            None => {
                let after = self.segments.partition_point(|s| s.first_id <= id);
                let s = self.segments.get(after.checked_sub(1)?)?;
                let nth = id - s.first_id;
                if nth >= s.rows {
                    return None;
                }
                s.first_row + nth
            }
        };
        let (start, len) = *self.rows.get(row as usize)?;
        self.bytes.get(start as usize..start as usize + len as usize)
    }

    /// Bytes of memory.
    fn memory(&self) -> usize {
        self.bytes.len()
            + size_of_val(&*self.rows)
            + size_of_val(&*self.segments)
            + 2 * self.irregular.len() * size_of::<(u32, u32)>()
    }

    /// Starts a block of rows.
    fn begin(&mut self, first_id: u32) -> bool {
        if self.segments.last().is_some_and(|last| last.rows == 0) {
            self.segments.pop();
        }
        let regular = match self.segments.last() {
            Some(last) => u64::from(first_id) >= u64::from(last.first_id) + u64::from(last.rows),
            None => true,
        };
        if regular {
            let first_row = self.rows.len() as u32;
            self.segments.push(Segment { first_id, first_row, rows: 0 });
        }
        regular
    }

    fn push(&mut self, id: u32, regular: bool, row: &[u8], at: u64, limits: &Limits) -> Result<()> {
        let size = self.memory() + row.len() + size_of::<(u32, u32)>();
        if size > limits.max_buffer.min(u32::MAX as usize) {
            return Err(Error::limit(at, "stacks held", size as u64, limits.max_buffer));
        }
        if self.rows.len() >= limits.max_entries {
            return Err(Error::limit(at, "stacks", self.rows.len() as u64, limits.max_entries));
        }
        let index = self.rows.len() as u32;
        self.rows.push((self.bytes.len() as u32, row.len() as u32));
        self.bytes.extend_from_slice(row);
        self.total += 1;
        match self.segments.last_mut() {
            Some(segment) if regular => segment.rows += 1,
            _ => {
                self.irregular.insert(id, index);
            }
        }
        Ok(())
    }

    /// A stack block of any version; `c` is its content.
    pub(crate) fn add_stacks(&mut self, c: &mut Cursor<'_>, limits: &Limits) -> Result<()> {
        let first_id = c.u32()?;
        let count = c.u32()?;
        let regular = self.begin(first_id);
        for n in 0..count {
            let at = c.offset();
            let size = c.u32()?;
            let row = c.bytes(size as usize)?;
            check_size("stack size", row, MAX_STACK, at)?;
            self.push(first_id.wrapping_add(n), regular, row, at, limits)?;
        }
        Ok(())
    }

    /// A label list block of version 6; `c` is its content.
    pub(crate) fn add_labels(&mut self, c: &mut Cursor<'_>, limits: &Limits) -> Result<()> {
        let first_id = c.u32()?;
        let count = c.u32()?;
        let regular = self.begin(first_id);
        for n in 0..count {
            let at = c.offset();
            let whole = c.rest();
            let start = c.position();
            while !read_label(c)?.1 {}
            let row = whole.get(..c.position() - start).unwrap_or_default();
            check_size("label list size", row, MAX_LABEL_LIST, at)?;
            self.push(first_id.wrapping_add(n), regular, row, at, limits)?;
        }
        Ok(())
    }
}

fn check_size(what: &'static str, row: &[u8], most: usize, at: u64) -> Result<()> {
    if row.len() > most {
        return Err(Error::limit(at, what, row.len() as u64, most));
    }
    Ok(())
}

/// A label: additional data of an event beyond its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Label<'a> {
    /// The activity that the event belongs to.
    ActivityId(Guid),
    /// The activity that caused it.
    RelatedActivityId(Guid),
    /// W3C trace id.
    TraceId([u8; 16]),
    /// W3C span id.
    SpanId(u64),
    /// A key with text.
    Text(std::borrow::Cow<'a, str>, std::borrow::Cow<'a, str>),
    /// A key with a number.
    Number(std::borrow::Cow<'a, str>, i64),
    /// Overrides the metadata's opcode.
    Opcode(u8),
    /// Overrides the metadata's keywords.
    Keywords(u64),
    /// Overrides the metadata's level.
    Level(u8),
    /// Overrides the metadata's version.
    Version(u8),
}

fn read_label<'a>(c: &mut Cursor<'a>) -> Result<(Label<'a>, bool)> {
    let at = c.offset();
    let kind = c.u8()?;
    let label = match kind & 0x7f {
        1 => Label::ActivityId(guid(c)?),
        2 => Label::RelatedActivityId(guid(c)?),
        3 => Label::TraceId(c.array()?),
        4 => Label::SpanId(c.u64()?),
        5 => Label::Text(utf8(c)?, utf8(c)?),
        6 => Label::Number(utf8(c)?, varint64(c)?),
        7 => Label::Opcode(c.u8()?),
        8 => Label::Keywords(c.u64()?),
        9 => Label::Level(c.u8()?),
        10 => Label::Version(c.u8()?),
        _ => return Err(Error::invalid(at, "label kind", kind.into())),
    };
    Ok((label, kind & 0x80 != 0))
}

/// The labels of one event. A list of more than 16 KiB is an error.
#[derive(Clone, Debug)]
pub struct Labels<'a>(Option<Cursor<'a>>);

impl<'a> Labels<'a> {
    pub(crate) fn new(row: Option<&'a [u8]>) -> Self {
        Self(row.map(Cursor::new))
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = Label<'a>;

    fn next(&mut self) -> Option<Label<'a>> {
        let c = self.0.as_mut()?;
        // The row was decoded once when its block arrived, so it does not fail here.
        let (label, last) = read_label(c).ok()?;
        if last {
            self.0 = None;
        }
        Some(label)
    }
}

/// The threads of a stream of version 6, by index.
#[derive(Debug, Default)]
pub(crate) struct ThreadTable {
    threads: HashMap<u64, Thread>,
    /// Bytes of memory.
    bytes: usize,
}

impl ThreadTable {
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<&Thread> {
        self.threads.get(&index)
    }

    pub(crate) fn insert(
        &mut self,
        index: u64,
        thread: Thread,
        limits: &Limits,
        at: u64,
    ) -> Result<()> {
        self.remove(index);
        if self.threads.len() >= limits.max_entries {
            let n = self.threads.len();
            return Err(Error::limit(at, "threads", n as u64, limits.max_entries));
        }
        let bytes = self.bytes.saturating_add(thread.memory());
        if bytes > limits.max_buffer {
            return Err(Error::limit(at, "size of threads", bytes as u64, limits.max_buffer));
        }
        self.bytes = bytes;
        self.threads.insert(index, thread);
        Ok(())
    }

    pub(crate) fn remove(&mut self, index: u64) {
        if let Some(thread) = self.threads.remove(&index) {
            self.bytes -= thread.memory();
        }
    }

    pub(crate) fn clear(&mut self) {
        table_space::empty(&mut self.threads);
        self.bytes = 0;
    }
}

/// A thread of version 6, where events name threads by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Thread {
    /// Name, if given.
    pub name: Option<Box<str>>,
    /// Process id of the operating system.
    pub pid: Option<u64>,
    /// Thread id of the operating system.
    pub tid: Option<u64>,
    /// Key/value pairs.
    pub properties: Vec<(String, String)>,
}

impl Thread {
    /// Bytes of memory, in a table that has twice the space of its entries.
    pub(crate) fn memory(&self) -> usize {
        let name = self.name.as_ref().map_or(0, |name| name.len());
        2 * size_of::<(u64, Self)>() + name + memory_of(&self.properties)
    }

    /// One row of a thread block; `c` is the row after its size.
    pub(crate) fn parse(c: &mut Cursor<'_>) -> Result<(u64, Self)> {
        let index = c.uvarint()?;
        let mut thread = Self::default();
        while !c.is_empty() {
            match c.u8()? {
                1 => thread.name = Some(utf8(c)?.into()),
                2 => thread.pid = Some(c.uvarint()?),
                3 => thread.tid = Some(c.uvarint()?),
                4 => {
                    let key = utf8(c)?.into_owned();
                    thread.properties.push((key, utf8(c)?.into_owned()));
                }
                // Entries have no size field: the data after an unknown one is unreadable.
                _ => break,
            }
        }
        thread.properties.shrink_to_fit();
        Ok((index, thread))
    }
}

/// Bytes of memory of keys and values.
pub(crate) fn memory_of(properties: &[(String, String)]) -> usize {
    let text: usize = properties.iter().map(|(key, value)| key.len() + value.len()).sum();
    size_of_val(properties) + text
}

/// The instruction pointers of a stack, innermost first. A stack of more than 128 KiB in a block of stacks is an error.
#[derive(Clone, Copy, Default)]
pub struct Stack<'a> {
    bytes: &'a [u8],
    pointer_size: u32,
}

impl<'a> Stack<'a> {
    pub(crate) const fn new(bytes: &'a [u8], pointer_size: u32) -> Self {
        Self { bytes, pointer_size }
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.bytes.len() / (self.pointer_size.max(1) as usize)
    }

    /// Whether the event has no stack.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes as in the stream: equal bytes are equal stacks.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The instruction pointers, innermost first. All but the first are return addresses.
    pub fn instruction_pointers(&self) -> impl ExactSizeIterator<Item = u64> + 'a {
        let size = if self.pointer_size == 4 { 4 } else { 8 };
        self.bytes
            .chunks_exact(size)
            .map(|b| b.iter().rev().fold(0, |ip, &byte| ip << 8 | u64::from(byte)))
    }
}

impl std::fmt::Debug for Stack<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.instruction_pointers().map(|ip| format!("{ip:#x}"))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_cleared_has_no_space() {
        let limits = Limits::default();
        let (mut rows, mut threads) = (RowCache::default(), ThreadTable::default());
        for id in 0..10_000 {
            rows.push(id, false, b"", 0, &limits).unwrap();
            threads.insert(id.into(), Thread::default(), &limits, 0).unwrap();
        }
        rows.clear();
        threads.clear();
        assert_eq!((rows.irregular.capacity(), threads.threads.capacity()), (0, 0));
    }
}
