//! Build ids.

use crate::Cursor;
use std::fmt;

/// A build id (`NT_GNU_BUILD_ID`) of at most 20 bytes: it identifies the contents of an ELF file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl BuildId {
    /// Maximum number of bytes.
    pub const MAX: usize = 20;

    /// A build id with these bytes; longer ones are truncated. `None` without bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut this = Self { bytes: [0; Self::MAX], len: bytes.len().min(Self::MAX) as u8 };
        for (to, from) in this.bytes.iter_mut().zip(bytes) {
            *to = *from;
        }
        (this.len > 0).then_some(this)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or(&self.bytes)
    }

    /// The build id among ELF notes.
    pub fn in_notes(notes: &[u8]) -> Option<Self> {
        const NT_GNU_BUILD_ID: u32 = 3;
        let mut c = Cursor::new(notes);
        loop {
            let (name_size, size, type_) = (c.u32().ok()?, c.u32().ok()?, c.u32().ok()?);
            let padded = |size: u32| (size as usize).checked_next_multiple_of(4);
            let name = c.bytes(padded(name_size)?).ok()?;
            // The last one may lack its padding.
            let wanted = padded(size)?.min(c.remaining());
            let bytes = c.bytes(wanted).ok()?;
            if type_ == NT_GNU_BUILD_ID && name == b"GNU\0" {
                return Self::new(bytes.get(..size as usize)?);
            }
        }
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn notes_are_searched() {
        let mut notes = Vec::new();
        for (name, type_, desc) in [(&b"Linux\0"[..], 3, &b"12345"[..]), (b"GNU\0", 3, &[9; 20])] {
            notes.extend((name.len() as u32).to_le_bytes());
            notes.extend((desc.len() as u32).to_le_bytes());
            notes.extend((type_ as u32).to_le_bytes());
            for part in [name, desc] {
                notes.extend(part);
                notes.resize(notes.len().next_multiple_of(4), 0);
            }
        }
        assert_eq!(BuildId::in_notes(&notes), BuildId::new(&[9; 20]));
        assert_eq!(BuildId::in_notes(&notes[..notes.len() - 1]), None);
        assert_eq!(BuildId::new(&[]), None);
        assert_eq!(BuildId::new(&[0xab, 1]).unwrap().to_string(), "ab01");
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_panic(bytes: Vec<u8>) {
            let _ = BuildId::in_notes(&bytes);
        }
    }
}
