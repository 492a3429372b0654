//! Frames: functions at an address.

use crate::demangle::demangle;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

/// A function at an address. Where functions were inlined, an address has several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Frame {
    /// The function as its source has it: demangled.
    pub function: Arc<str>,
    /// The name in the table of symbols; the same as `function` if it is not mangled.
    pub symbol: Arc<str>,
    /// The distance from the start of the function, in bytes. `None` for an inlined function.
    pub offset: Option<u64>,
    /// The source file, if it is known.
    pub file: Option<Arc<str>>,
    /// The line in the source file, from 1 on; 0 if it is unknown. In a function that called an inlined
    /// one, the line of the call.
    pub line: u32,
    /// The column in the line, from 1 on; 0 if it is unknown.
    pub column: u32,
    /// Whether the function was inlined into the one of the next frame.
    pub is_inlined: bool,
}

/// Texts that are kept once.
#[derive(Debug)]
pub(crate) struct Texts {
    known: HashSet<Arc<str>>,
    is_demangled: bool,
}

impl Texts {
    pub(crate) fn new(is_demangled: bool) -> Self {
        Self { known: HashSet::new(), is_demangled }
    }

    pub(crate) fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        self.known.insert(Arc::clone(&text));
        text
    }

    /// Forgets all; frames keep theirs.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    /// A frame of a symbol.
    pub(crate) fn frame(&mut self, symbol: &str, offset: Option<u64>) -> Frame {
        let name = self.get(symbol);
        let function = match demangle(symbol) {
            Cow::Owned(demangled) if self.is_demangled => self.get(&demangled),
            _ => Arc::clone(&name),
        };
        Frame { function, symbol: name, offset, file: None, line: 0, column: 0, is_inlined: false }
    }
}
