//! Frames: functions at an address.

use crate::demangle::demangle;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

/// Bytes of a name or a path of a file: each can have its own, of a table that they share. The rest is left out.
pub(crate) const MAX_TEXT: usize = 1 << 16;
/// The same of all frames at one address.
const MAX_TEXTS: usize = 1 << 20;
/// Bytes that a text has where there is no more room.
const MIN_TEXT: usize = 1 << 10;

/// A function at an address. Where functions were inlined, an address has several.
///
/// A name or a path of more than 64 KiB is cut. Where those of one address have more than 1 MiB, the later ones
/// are cut at 1 KiB.
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

/// The room for the names and paths at one address. In a crafted file, hundreds of inlined calls have long ones.
#[derive(Debug)]
pub(crate) struct Room {
    left: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { left: MAX_TEXTS }
    }
}

impl Room {
    /// The part of a text that there is room for.
    pub(crate) fn cut<'a>(&mut self, text: &'a str) -> &'a str {
        let mut end = text.len().min(self.left.clamp(MIN_TEXT, MAX_TEXT));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.left = self.left.saturating_sub(end);
        text.get(..end).unwrap_or_default()
    }
}

/// Texts that are kept once.
#[derive(Debug)]
pub(crate) struct Texts {
    known: HashSet<Arc<str>>,
    /// Of all that are known.
    bytes: usize,
    is_demangled: bool,
}

impl Texts {
    pub(crate) fn new(is_demangled: bool) -> Self {
        Self { known: HashSet::new(), bytes: 0, is_demangled }
    }

    /// The bytes of all texts.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        self.bytes += text.len();
        self.known.insert(Arc::clone(&text));
        text
    }

    /// Forgets all; frames keep theirs.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
        self.bytes = 0;
    }

    /// A frame of a symbol.
    pub(crate) fn frame(&mut self, symbol: &str, offset: Option<u64>) -> Frame {
        let symbol = Room::default().cut(symbol);
        let name = self.get(symbol);
        let function = match demangle(symbol) {
            Cow::Owned(demangled) if self.is_demangled => self.get(&demangled),
            _ => Arc::clone(&name),
        };
        Frame { function, symbol: name, offset, file: None, line: 0, column: 0, is_inlined: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_counted_once_and_cut() {
        let mut texts = Texts::new(false);
        let long = "x".repeat(MAX_TEXT + 1);
        assert_eq!(texts.frame(&long, None).symbol.len(), MAX_TEXT);
        assert_eq!((texts.get("name"), texts.get("name")), ("name".into(), "name".into()));
        assert_eq!(texts.bytes(), MAX_TEXT + 4);
        texts.clear();
        assert_eq!(texts.bytes(), 0);
    }

    #[test]
    fn texts_of_an_address_have_a_limit() {
        let mut room = Room::default();
        assert_eq!(room.cut("name"), "name");
        let long = format!("a{}", "ä".repeat(MAX_TEXT));
        let sizes = [(); 20].map(|()| room.cut(&long).len());
        // The last byte would be half of a letter.
        assert_eq!(sizes[..15], [MAX_TEXT - 1; 15]);
        assert_eq!(sizes[17..], [MIN_TEXT - 1; 3]);
        assert!(sizes.iter().sum::<usize>() < MAX_TEXTS + 20 * MIN_TEXT);
        assert_eq!(room.cut("name"), "name");
    }
}
