//! Interned texts and stacks of a Go trace.

use crate::intern::{Frame, StackId, TextId};
use crate::model::Sink;
use gotrace::{GoId, GoState, Stack};
use hashbrown::HashMap;
use trace_common::IdMap;

macro_rules! fixed {
    ($($name:ident: $text:literal),* $(,)?) => {
        /// Texts of every trace.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Fixed { $(pub(super) $name: TextId),* }

        impl Default for Fixed {
            /// Identifiers of no text, until the tracks are made.
            fn default() -> Self {
                const NONE: TextId = TextId { epoch: u32::MAX, index: 0 };
                Self { $($name: NONE),* }
            }
        }

        impl Fixed {
            pub(super) fn new(sink: &mut impl Sink) -> Self {
                Self { $($name: sink.text($text)),* }
            }

            /// Interns the texts again if the sink has evicted them.
            #[inline]
            pub(super) fn refresh(&mut self, sink: &mut impl Sink) {
                // They were interned in this order, so the first one is evicted first.
                if !sink.holds_text(self.running) {
                    *self = Self::new(sink);
                }
            }
        }
    };
}

fixed! {
    running: b"Running",
    runnable: b"Runnable",
    waiting: b"Waiting",
    syscall: b"Syscall",
    unknown: b"Unknown state",
    unblock: b"unblock",
    go: b"go",
    mark: b"GC concurrent mark phase",
    assist: b"GC mark assist",
    sweep: b"GC incremental sweep",
    bytes_swept: b"bytes swept",
    bytes_reclaimed: b"bytes reclaimed",
    goroutine: b"goroutine",
    task: b"task",
    parent: b"parent",
    category: b"category",
    sample: b"CPU sample",
    region_end: b"end of a region from before the trace",
}

/// The names of states with their reasons, and stacks.
#[derive(Debug, Default)]
pub(super) struct Names {
    waiting: HashMap<Box<[u8]>, TextId>,
    runnable: HashMap<Box<[u8]>, TextId>,
    /// The stacks of the generation `generation`, by identifier.
    stacks: IdMap<Option<StackId>>,
    generation: u64,
    scratch: Vec<u8>,
}

impl Names {
    /// Runtimes have some 40 reasons; a trace with many more is malformed.
    const MAX_REASONS: usize = 1024;

    /// Returns the name of a goroutine's state: `Waiting (chan receive)`.
    #[inline]
    pub(super) fn state(
        &mut self,
        state: GoState,
        reason: &[u8],
        fixed: &Fixed,
        sink: &mut impl Sink,
    ) -> TextId {
        let (plain, with_reason) = match state {
            GoState::Running => return fixed.running,
            GoState::Syscall => return fixed.syscall,
            GoState::Runnable => (fixed.runnable, &mut self.runnable),
            GoState::Waiting => (fixed.waiting, &mut self.waiting),
            _ => return fixed.unknown,
        };
        if reason.is_empty() {
            return plain;
        }
        if let Some(&name) = with_reason.get(reason) {
            if sink.holds_text(name) {
                return name;
            }
        }
        if with_reason.len() >= Self::MAX_REASONS {
            with_reason.clear();
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(state.name().as_bytes());
        self.scratch.extend_from_slice(b" (");
        self.scratch.extend_from_slice(reason);
        self.scratch.push(b')');
        let name = sink.text(&self.scratch);
        with_reason.insert(reason.into(), name);
        name
    }

    /// Returns the name of a goroutine: `G7 main.worker`.
    pub(super) fn goroutine(&mut self, id: GoId, entry: &[u8], sink: &mut impl Sink) -> TextId {
        self.scratch.clear();
        self.scratch.push(b'G');
        push_decimal(&mut self.scratch, id.0);
        if !entry.is_empty() {
            self.scratch.push(b' ');
            self.scratch.extend_from_slice(entry);
        }
        sink.unique_text(&self.scratch)
    }

    /// Interns the stack in the sink.
    #[inline]
    pub(super) fn stack(
        &mut self,
        stack: Option<Stack<'_>>,
        generation: u64,
        sink: &mut impl Sink,
    ) -> Option<StackId> {
        let stack = stack.filter(|stack| stack.id() != 0)?;
        if generation != self.generation {
            self.generation = generation;
            self.stacks = IdMap::default();
        }
        // The cast may wrap: keys are only compared for equality.
        let key = stack.id() as i64;
        if let Some(&Some(known)) = self.stacks.get(key) {
            if sink.holds_stack(known) {
                return Some(known);
            }
        }
        let mut frames = stack.frames().map(|frame| Frame {
            function: frame.func,
            file: frame.file,
            line: u32::try_from(frame.line).unwrap_or_default(),
            module: b"Go",
            pc: 0, // two stacks that differ only in this look the same
        });
        let id = sink.stack(&mut frames);
        *self.stacks.insert(key) = Some(id);
        Some(id)
    }
}

/// Appends a number: half the time of `write!`, which is noticeable for goroutines that live
/// shortly.
fn push_decimal(text: &mut Vec<u8>, number: i64) {
    if number < 0 {
        text.push(b'-');
    }
    let mut rest = number.unsigned_abs();
    let start = text.len();
    loop {
        text.push(b'0' + (rest % 10) as u8);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if let Some(digits) = text.get_mut(start..) {
        digits.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_those_of_the_standard_library() {
        for number in [i64::MIN, -1, 0, 9, 10, 120, i64::MAX] {
            let mut text = b"G".to_vec();
            push_decimal(&mut text, number);
            assert_eq!(text, format!("G{number}").as_bytes());
        }
    }
}
