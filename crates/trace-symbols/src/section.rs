//! Contents of sections, decompressed.

use crate::elf::{Elf, Section};
use crate::error::{Result, Unresolved};
use flate2::{Decompress, FlushDecompress};
#[cfg(feature = "dwarf")]
use std::sync::Arc;

/// Compression of a section (`Elf64_Chdr`).
const ELFCOMPRESS_ZLIB: u32 = 1;
/// Maximum number of bytes that deflate makes of one.
const MAX_RATIO: u64 = 1032;

/// The bytes of a section, decompressed.
#[cfg(feature = "unwind")]
pub(crate) fn bytes(what: &'static str, elf: &Elf, section: &Section) -> Result<Vec<u8>> {
    let Some(packed) = Packed::read(what, elf, section)? else { return elf.bytes(what, section) };
    let mut out = vec![0; packed.size];
    packed.inflate(&mut out)?;
    Ok(out)
}

/// The same in shared memory, which the bytes are read into: those of debug information are many.
#[cfg(feature = "dwarf")]
pub(crate) fn shared(what: &'static str, elf: &Elf, section: &Section) -> Result<Arc<[u8]>> {
    let packed = Packed::read(what, elf, section)?;
    let size = match &packed {
        Some(packed) => packed.size,
        None => elf.size(what, section)?,
    };
    let mut out: Arc<[u8]> = std::iter::repeat_n(0, size).collect();
    if let Some(out) = Arc::get_mut(&mut out) {
        match packed {
            Some(packed) => packed.inflate(out)?,
            None => elf.bytes_into(what, section, out)?,
        }
    }
    Ok(out)
}

/// A compressed section.
struct Packed {
    what: &'static str,
    /// Of the section in the file.
    offset: u64,
    /// The section with its header.
    bytes: Vec<u8>,
    /// Bytes of the header.
    header: usize,
    /// Bytes of the contents.
    size: usize,
}

impl Packed {
    /// Reads a section. `None` if it is not compressed.
    fn read(what: &'static str, elf: &Elf, section: &Section) -> Result<Option<Self>> {
        if !section.is_compressed() {
            return Ok(None);
        }
        let (bytes, offset) = (elf.bytes(what, section)?, section.offset);
        let (header, size) = if elf.is_64() { (24, 8) } else { (12, 4) };
        let word = |at: usize| {
            let bytes: Option<[u8; 4]> = bytes.get(at..at + 4)?.try_into().ok();
            bytes.map(u32::from_le_bytes)
        };
        let (Some(ELFCOMPRESS_ZLIB), Some(size)) = (word(0), word(size)) else {
            return Err(Unresolved::Malformed { what, offset });
        };
        if u64::from(size) > elf.max() {
            return Err(Unresolved::TooLarge { what, size: size.into() });
        }
        // Nothing is allocated for contents that the bytes cannot have.
        if u64::from(size) > section.size.saturating_mul(MAX_RATIO) {
            return Err(Unresolved::Malformed { what, offset });
        }
        Ok(Some(Self { what, offset, bytes, header, size: size as usize }))
    }

    /// Decompresses the contents at once: without a window of their last bytes beside them.
    fn inflate(&self, out: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.get(self.header..).unwrap_or_default();
        let mut inflater = Decompress::new(true);
        let status = inflater.decompress(bytes, out, FlushDecompress::Finish);
        let is_whole = status.is_ok() && inflater.total_out() == out.len() as u64;
        let Self { what, offset, .. } = *self;
        if is_whole { Ok(()) } else { Err(Unresolved::Malformed { what, offset }) }
    }
}
