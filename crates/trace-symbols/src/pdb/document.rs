//! Names of source files.

use super::{PortablePdb, compressed};
use crate::error::{Result, Unresolved, malformed};

/// Maximum number of bytes of a name.
const MAX_NAME: usize = 1 << 16;

/// Maximum number of bytes of the indices of its parts: each part has a character between it and the next one.
const MAX_PARTS: usize = 4 * MAX_NAME;

impl PortablePdb {
    /// The name of a document, by its row: parts with a character between them.
    pub(super) fn document(&self, row: u32) -> Result<String> {
        const WHAT: &str = "the name of a document";
        let mut columns = self.row(&self.documents, row)?;
        let index = self.heaps.blob(&mut columns).map_err(malformed(WHAT))?;
        let mut parts = self.blob(index)?;
        if parts.remaining() > MAX_PARTS {
            return Err(Unresolved::Malformed { what: WHAT, offset: parts.offset() });
        }
        let separator = parts.u8().map_err(malformed(WHAT))?;
        let mut name = Vec::new();
        let mut is_first = true;
        while !parts.is_empty() {
            let offset = parts.offset();
            let part = match compressed::unsigned(&mut parts, WHAT)? {
                0 => &[],
                index => self.blob(index)?.rest(),
            };
            if !std::mem::take(&mut is_first) && separator != 0 {
                name.push(separator);
            }
            // Parts can be shared, so that a small file could have a huge name.
            if name.len() + part.len() > MAX_NAME {
                return Err(Unresolved::Malformed { what: WHAT, offset });
            }
            name.extend_from_slice(part);
        }
        Ok(String::from_utf8_lossy(&name).into_owned())
    }
}
