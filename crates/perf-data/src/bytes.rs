//! Reading and writing the parts that several sections have.

use crate::error::{Error, Result};
use crate::layout::STRING_ALIGN;
use trace_common::{Cursor, Limits};

/// Appends a string of a feature section: its padded size, its bytes, NULs.
pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    let size = (text.len() + 1).next_multiple_of(STRING_ALIGN);
    out.extend((size as u32).to_le_bytes());
    let end = out.len() + size;
    out.extend(text.as_bytes());
    out.resize(end, 0);
}

/// Appends a list of strings with their number.
pub(crate) fn put_strings<'a>(out: &mut Vec<u8>, list: impl ExactSizeIterator<Item = &'a String>) {
    out.extend((list.len() as u32).to_le_bytes());
    list.for_each(|text| put_string(out, text));
}

/// A reader of a section. Every error names the section.
pub(crate) struct Section<'a> {
    pub(crate) what: &'static str,
    pub(crate) cursor: Cursor<'a>,
    pub(crate) limits: Limits,
}

impl<'a> Section<'a> {
    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.cursor.u8().map_err(|e| Error::read(self.what, e))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.cursor.u32().map_err(|e| Error::read(self.what, e))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.cursor.u64().map_err(|e| Error::read(self.what, e))
    }

    /// Bytes of a size from the input. Nothing is allocated: they are borrowed.
    pub(crate) fn bytes(&mut self, size: u64) -> Result<&'a [u8]> {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        self.cursor.bytes(size).map_err(|e| Error::read(self.what, e))
    }

    /// A padded string with its size before it.
    pub(crate) fn string(&mut self) -> Result<String> {
        let offset = self.cursor.offset();
        let size = u64::from(self.u32()?);
        self.check(offset, size, self.limits.max_string)?;
        Ok(text(self.bytes(size)?))
    }

    /// A string of at most `max` bytes that ends with a NUL.
    pub(crate) fn c_string(&mut self, max: usize) -> Result<String> {
        let (offset, rest) = (self.cursor.offset(), self.cursor.rest());
        let Some(end) = rest.iter().position(|b| *b == 0) else {
            return Err(self.malformed(offset, "a string without its NUL"));
        };
        let max = max.min(self.limits.max_string);
        self.check(offset, end as u64, max)?;
        let text = text(self.bytes(end as u64 + 1)?);
        // Bytes that are not UTF-8 take more in the text, which can be written again.
        self.check(offset, text.len() as u64, max)?;
        Ok(text)
    }

    /// The number of entries that follow, of at least `least` bytes each.
    pub(crate) fn count(&mut self, least: usize) -> Result<usize> {
        let offset = self.cursor.offset();
        let count = self.u32()? as usize;
        if count.saturating_mul(least) > self.cursor.remaining() {
            return Err(self.malformed(offset, "more entries than bytes"));
        }
        self.check(offset, count as u64, self.limits.max_entries)?;
        Ok(count)
    }

    /// The number of entries of a list that describes the machine, the command or the tracepoints: an entry can
    /// be larger in memory than in the file.
    pub(crate) fn short_count(&mut self, least: usize) -> Result<usize> {
        self.short_count_after(0, least)
    }

    /// The same for a list that continues: it has `before` entries.
    pub(crate) fn short_count_after(&mut self, before: usize, least: usize) -> Result<usize> {
        const MAX: usize = 1 << 16;
        let offset = self.cursor.offset();
        let count = self.count(least)?;
        self.check(offset, before.saturating_add(count) as u64, MAX)?;
        Ok(count)
    }

    fn check(&self, offset: u64, size: u64, limit: usize) -> Result<()> {
        if size > limit as u64 {
            return Err(Error::Limit { what: self.what, offset, value: size, limit: limit as u64 });
        }
        Ok(())
    }

    pub(crate) const fn malformed(&self, offset: u64, why: &'static str) -> Error {
        Error::Malformed { what: self.what, offset, why }
    }
}

/// Text up to the first NUL.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}
