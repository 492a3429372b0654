//! Contents of sections, decompressed.

use crate::elf::{Elf, Section};
use crate::error::{Result, Unresolved};
use flate2::{Decompress, FlushDecompress};
#[cfg(feature = "dwarf")]
use std::sync::Arc;

/// The compression of a section (`Elf64_Chdr`).
#[derive(Clone, Copy)]
enum Compression {
    Zlib,
    #[cfg(feature = "zstd")]
    Zstd,
}

impl Compression {
    /// Source: `ELFCOMPRESS_*` of the ELF specification.
    const fn of(kind: u32) -> Option<Self> {
        match kind {
            1 => Some(Self::Zlib),
            #[cfg(feature = "zstd")]
            2 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Maximum number of bytes that one byte stands for.
    const fn max_ratio(self) -> u64 {
        match self {
            Self::Zlib => 1032,
            #[cfg(feature = "zstd")]
            Self::Zstd => crate::zstd::MAX_RATIO,
        }
    }

    /// Decompresses `bytes`. Returns whether they have exactly the contents of `out`.
    fn inflate(self, bytes: &[u8], out: &mut [u8]) -> bool {
        match self {
            // At once: without a window of the last bytes beside them.
            Self::Zlib => {
                let mut inflater = Decompress::new(true);
                let status = inflater.decompress(bytes, out, FlushDecompress::Finish);
                status.is_ok() && inflater.total_out() == out.len() as u64
            }
            #[cfg(feature = "zstd")]
            Self::Zstd => crate::zstd::decompress(bytes, out).is_some(),
        }
    }
}

/// The bytes of a section, decompressed.
#[cfg(feature = "unwind")]
pub(crate) fn bytes(what: &'static str, elf: &Elf, section: &Section) -> Result<Vec<u8>> {
    let Some(packed) = Packed::read(what, elf, section)? else { return elf.bytes(what, section) };
    let mut out = vec![0; packed.size];
    packed.inflate(&mut out)?;
    Ok(out)
}

/// The same in shared memory, which the bytes are read into: those of debug information are many. `left` is
/// the number of bytes that the sections of the file may still have.
#[cfg(feature = "dwarf")]
pub(crate) fn shared(
    what: &'static str,
    elf: &Elf,
    section: &Section,
    left: &mut u64,
) -> Result<Arc<[u8]>> {
    let packed = Packed::read(what, elf, section)?;
    let size = match &packed {
        Some(packed) => packed.size,
        None => elf.size(what, section)?,
    };
    let too_large = Unresolved::TooLarge { what, size: size as u64 };
    *left = left.checked_sub(size as u64).ok_or(too_large)?;
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
    compression: Compression,
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
        let word = |at: usize| {
            let bytes: Option<[u8; 4]> = bytes.get(at..at + 4)?.try_into().ok();
            bytes.map(u32::from_le_bytes)
        };
        let long = |at: usize| Some(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
        let (header, size) = if elf.is_64() { (24, long(8)) } else { (12, word(4).map(u64::from)) };
        let (Some(kind), Some(size)) = (word(0), size) else {
            return Err(Unresolved::Malformed { what, offset });
        };
        let Some(compression) = Compression::of(kind) else {
            return Err(Unresolved::Compression { what, kind });
        };
        let too_large = Unresolved::TooLarge { what, size };
        if size > elf.max() {
            return Err(too_large);
        }
        // Nothing is allocated for contents that the bytes cannot have.
        if size > section.size.saturating_mul(compression.max_ratio()) {
            return Err(Unresolved::Malformed { what, offset });
        }
        let size = usize::try_from(size).map_err(|_| too_large)?;
        Ok(Some(Self { what, compression, offset, bytes, header, size }))
    }

    fn inflate(&self, out: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.get(self.header..).unwrap_or_default();
        let Self { what, offset, .. } = *self;
        let is_whole = self.compression.inflate(bytes, out);
        if is_whole { Ok(()) } else { Err(Unresolved::Malformed { what, offset }) }
    }
}
