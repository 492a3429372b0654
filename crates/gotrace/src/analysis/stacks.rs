//! Stacks of all generations, each stored once.

use super::{Frame, Name};
use crate::event::Stack;
use crate::table::SeededState;
use std::collections::HashMap;
use std::sync::Arc;

/// Distinct stacks, numbered from 0 in the order of first appearance.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    frames: Vec<Frame>,
    /// The first frame of each program counter.
    by_pc: HashMap<u64, u32, SeededState>,
    stacks: Vec<Arc<[u32]>>,
    by_frames: HashMap<Arc<[u32]>, u32>,
    /// The generation of `known`.
    serial: u64,
    /// Numbers of the stacks of the generation, by their identifier there.
    known: HashMap<u64, u32, SeededState>,
}

impl Stacks {
    /// The number of a stack. Events without a stack have the empty one.
    pub(super) fn number(&mut self, stack: Option<Stack<'_>>) -> u32 {
        let Some(stack) = stack else { return self.intern(Vec::new()) };
        if stack.table.serial != self.serial {
            self.serial = stack.table.serial;
            self.known.clear();
        }
        if let Some(number) = self.known.get(&stack.id) {
            return *number;
        }
        let frames = stack.table.stack(stack.id).iter();
        let frames = frames.filter_map(|index| stack.table.frames.get(*index as usize));
        let frames: Vec<u32> = frames
            .map(|frame| {
                *self.by_pc.entry(frame.pc).or_insert_with(|| {
                    self.frames.push(Frame {
                        pc: frame.pc,
                        function: Name::of(stack.table, frame.func),
                        file: Name::of(stack.table, frame.file),
                        line: frame.line,
                    });
                    self.frames.len() as u32 - 1
                })
            })
            .collect();
        // The runtime writes one frame without a program counter where it has no stack.
        let is_none = frames
            .iter()
            .all(|index| self.frames.get(*index as usize).is_none_or(|frame| frame.pc == 0));
        let number = self.intern(if is_none { Vec::new() } else { frames });
        self.known.insert(stack.id, number);
        number
    }

    fn intern(&mut self, frames: Vec<u32>) -> u32 {
        if let Some(number) = self.by_frames.get(&frames[..]) {
            return *number;
        }
        let number = self.stacks.len() as u32;
        let frames: Arc<[u32]> = frames.into();
        self.stacks.push(Arc::clone(&frames));
        self.by_frames.insert(frames, number);
        number
    }

    /// The frames of a stack, innermost first.
    pub(super) fn frames(&self, number: usize) -> impl Iterator<Item = &Frame> + Clone {
        let stack = self.stacks.get(number).map(|stack| &stack[..]).unwrap_or_default();
        stack.iter().filter_map(|index| self.frames.get(*index as usize))
    }
}
