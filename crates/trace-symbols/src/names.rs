//! The names of generated code, one after another in memory.

use crate::frame::{Frame, Texts};

/// Names that are kept as long as the code of a process is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(String);

/// Code with a name in [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// First address of the code.
    start: u64,
    at: u32,
    len: u32,
}

impl Named {
    /// Code with the same name that starts at another address.
    pub(crate) const fn with_start(self, start: u64) -> Self {
        Self { start, ..self }
    }
}

impl Names {
    /// Keeps the name of the code that starts at an address. `None` if it does not fit in 4 GiB.
    pub(crate) fn add(&mut self, start: u64, name: &str) -> Option<Named> {
        let (at, len) = (u32::try_from(self.0.len()).ok()?, u32::try_from(name.len()).ok()?);
        self.0.push_str(name);
        Some(Named { start, at, len })
    }

    /// The bytes of all names.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    /// The name of the code.
    pub(crate) fn name(&self, code: Named) -> &str {
        let at = code.at as usize;
        self.0.get(at..at + code.len as usize).unwrap_or_default()
    }

    /// The frame of an address in the code.
    pub(crate) fn frame(&self, code: Named, address: u64, texts: &mut Texts) -> Frame {
        texts.frame(self.name(code), Some(address - code.start))
    }
}
