//! Texts, frames and stacks that are written once.

use super::PerfettoSink;
use super::field::{event, interned, packet};
use crate::intern::{StackId, TextId};
use crate::proto::{Packed, Part};
use std::io::Write;

/// The replacement of an evicted text.
const EVICTED: &[u8] = b"?";

/// The part of the interner's current table that is in the file.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) epoch: Option<u32>,
    /// By text: its number as the name of an event, or 0. They are counted separately: events
    /// that are named by small numbers are short.
    pub(super) names: Vec<Packed>,
    pub(super) name_count: u32,
    /// By text, a bit for each [`TextKind`].
    pub(super) texts: Vec<u8>,
    /// Texts of the arguments of an event that are not in the file yet.
    pub(super) due: Vec<(u32, TextKind)>,
    pub(super) frames: Vec<bool>,
    /// By stack: its number, if it is in the file.
    pub(super) stacks: Vec<Packed>,
}

/// The tables of texts in a file that use the numbers of the interner.
#[derive(Clone, Copy, Debug)]
pub(super) enum TextKind {
    ArgName,
    ArgValue,
    Function,
    SourcePath,
    Mapping,
}

impl TextKind {
    /// The bit of a text that was written once as the value of an argument, in the event itself.
    /// Many values occur once: messages, addresses. The second time it gets a number.
    const SEEN: u8 = 1 << 7;

    pub(super) const fn bit(self) -> u8 {
        1 << self as u8
    }

    pub(super) const fn field(self) -> u32 {
        match self {
            Self::ArgName => interned::DEBUG_ANNOTATION_NAMES,
            Self::ArgValue => interned::DEBUG_ANNOTATION_STRING_VALUES,
            Self::Function => interned::FUNCTION_NAMES,
            Self::SourcePath => interned::SOURCE_PATHS,
            Self::Mapping => interned::MAPPING_PATHS,
        }
    }
}

impl Written {
    /// The bits of a text.
    #[inline]
    pub(super) fn bits(&mut self, index: u32) -> &mut u8 {
        entry(&mut self.texts, index, 0)
    }
}

/// An entry of a list, which grows.
#[expect(clippy::indexing_slicing, reason = "the list was extended to the index")]
fn entry<T: Copy>(list: &mut Vec<T>, index: u32, default: T) -> &mut T {
    let index = index as usize;
    if index >= list.len() {
        list.resize(index + 1, default);
    }
    &mut list[index]
}

/// Returns the number in the file of index `index` of a table: 0 represents none.
pub(super) const fn iid(index: u32) -> u64 {
    index as u64 + 1
}

impl<W: Write> PerfettoSink<W> {
    /// Writes the name of an event by its number. Returns the number if it is new.
    pub(super) fn write_name(&mut self, index: u32) -> Option<u32> {
        let written = &mut self.written;
        let known = entry(&mut written.names, index, Packed::NONE);
        if !known.is_none() {
            let name = Part::varint(event::NAME_IID, *known);
            self.out.parts(|parts| parts.put(name));
            return None;
        }
        written.name_count += 1;
        *known = Packed::new(written.name_count.into()).unwrap_or(Packed::NONE);
        self.out.varint(event::NAME_IID, written.name_count.into());
        Some(written.name_count)
    }

    /// Marks a stack as written. Returns whether it was not.
    pub(super) fn is_new_stack(&mut self, index: u32) -> bool {
        let known = entry(&mut self.written.stacks, index, Packed::NONE);
        let is_new = known.is_none();
        *known = Packed::new(iid(index)).unwrap_or(Packed::NONE);
        is_new
    }

    /// Within a packet: writes the name, with its number, the stack and the texts of arguments that
    /// are not in the file yet.
    #[cold]
    pub(super) fn write_interned(&mut self, name: Option<(u32, u32)>, stack: Option<u32>) {
        let data = self.out.open(packet::INTERNED_DATA);
        if let Some((iid, index)) = name {
            let message = self.out.open(interned::EVENT_NAMES);
            self.out.varint(interned::IID, iid.into());
            self.out.text(interned::TEXT, self.names.text_at(index));
            self.out.close(message);
        }
        if let Some(stack) = stack {
            self.write_stack(stack);
        }
        let mut due = std::mem::take(&mut self.written.due);
        for (index, kind) in due.drain(..) {
            self.write_text(index, kind);
        }
        self.written.due = due;
        self.out.close(data);
    }

    /// A text must be in the file after this event.
    #[inline]
    pub(super) fn require(&mut self, index: u32, kind: TextKind) {
        let bits = self.written.texts.get(index as usize);
        if bits.is_none_or(|bits| bits & kind.bit() == 0) {
            self.written.due.push((index, kind));
        }
    }

    /// Whether a text is the value of an argument for the first time, or so short that a number is
    /// not shorter.
    #[inline]
    pub(super) fn is_first_use(&mut self, index: u32) -> bool {
        const SHORT: usize = 3;
        let bits = self.written.bits(index);
        let is_first = *bits & (TextKind::SEEN | TextKind::ArgValue.bit()) == 0;
        *bits |= TextKind::SEEN;
        is_first || self.names.text_at(index).len() <= SHORT
    }

    /// Returns the index of a text in the current table.
    #[inline]
    pub(super) fn current_text(&mut self, id: TextId) -> u32 {
        match self.names.current_text(id) {
            Some(index) => index,
            None => self.stale_text(),
        }
    }

    /// Returns the replacement of an evicted text.
    #[cold]
    pub(super) fn stale_text(&mut self) -> u32 {
        self.stats.stale_ids += 1;
        // The table must not be reset here: that would evict the names of this event.
        self.names.text_in_place(EVICTED)
    }

    /// Within interned data: writes a text, unless it is already written.
    pub(super) fn write_text(&mut self, index: u32, kind: TextKind) -> u64 {
        let bits = self.written.bits(index);
        if *bits & kind.bit() == 0 {
            *bits |= kind.bit();
            let message = self.out.open(kind.field());
            self.out.varint(interned::IID, iid(index));
            self.out.text(interned::TEXT, self.names.text_at(index));
            self.out.close(message);
            if let TextKind::Mapping = kind {
                let message = self.out.open(interned::MAPPINGS);
                self.out.varint(interned::IID, iid(index));
                self.out.varint(interned::MAPPING_PATH, iid(index));
                self.out.close(message);
            }
        }
        iid(index)
    }

    /// Returns the index of a stack in the current table; `None` if it has no frames.
    #[inline]
    pub(super) fn stack_index(&mut self, id: StackId) -> Option<u32> {
        let Some(index) = self.names.current_stack(id) else {
            self.stats.stale_ids += 1;
            return None;
        };
        // Stacks without frames are not written.
        let is_written = self.written.stacks.get(index as usize).is_some_and(|iid| !iid.is_none());
        (is_written || !self.names.stack_at(index).is_empty()).then_some(index)
    }

    /// Within interned data: writes a stack and everything it refers to.
    #[expect(clippy::indexing_slicing, reason = "less than its length")]
    pub(super) fn write_stack(&mut self, index: u32) {
        let depth = self.names.stack_at(index).len();
        for i in 0..depth {
            self.write_frame(self.names.stack_at(index)[i]);
        }
        let stack = self.out.open(interned::CALLSTACKS);
        self.out.varint(interned::IID, iid(index));
        // The format requires the outermost frame first.
        for &frame in self.names.stack_at(index).iter().rev() {
            self.out.varint(interned::CALLSTACK_FRAMES, iid(frame));
        }
        self.out.close(stack);
    }

    pub(super) fn write_frame(&mut self, index: u32) {
        if std::mem::replace(entry(&mut self.written.frames, index, false), true) {
            return;
        }
        let frame = self.names.frame_at(index);
        let function = self.write_text(frame.function, TextKind::Function);
        let has_file = !self.names.text_at(frame.file).is_empty();
        let file = has_file.then(|| self.write_text(frame.file, TextKind::SourcePath));
        let mapping = self.write_text(frame.module, TextKind::Mapping);
        let out = &mut self.out;
        let message = out.open(interned::FRAMES);
        out.varint(interned::IID, iid(index));
        out.varint(interned::FRAME_FUNCTION, function);
        out.varint(interned::FRAME_MAPPING, mapping);
        if frame.address != 0 {
            out.varint(interned::FRAME_REL_PC, frame.address);
        }
        if let Some(file) = file {
            out.varint(interned::FRAME_SOURCE_PATH, file);
        }
        if frame.line != 0 {
            out.varint(interned::FRAME_LINE, frame.line.into());
        }
        out.close(message);
    }
}
