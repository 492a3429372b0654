//! Stacks of all generations, each stored once.

use super::numbers::Numbers;
use super::{Frame, Name};
use crate::event::Stack;
use crate::table::Table;
use std::collections::HashMap;
use std::sync::Arc;
use trace_common::SeededState;

/// Distinct stacks, numbered from 0 in the order of first appearance.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    distinct: Distinct,
    /// Numbers of the stacks of the generation.
    known: Numbers,
}

#[derive(Debug, Default)]
struct Distinct {
    frames: Vec<Frame>,
    /// The first frame of each program counter.
    by_pc: HashMap<u64, u32, SeededState>,
    stacks: Vec<Arc<[u32]>>,
    by_frames: HashMap<Arc<[u32]>, u32>,
    /// The number of the empty stack, once it was asked for.
    empty: Option<u32>,
}

impl Stacks {
    /// The number of a stack. Events without a stack have the empty one.
    pub(super) fn number(&mut self, stack: Option<Stack<'_>>) -> u32 {
        match stack {
            Some(stack) => self.of(stack.table, stack.id),
            None => self.distinct.empty(),
        }
    }

    /// The number of the stack `id` of a generation; that of the empty one if there is none.
    #[inline]
    pub(super) fn of(&mut self, table: &Table, id: u64) -> u32 {
        let Self { distinct, known } = self;
        if id == 0 {
            return distinct.empty(); // in all tables
        }
        known.number(table, id, || distinct.add(table, id))
    }

    /// The number of distinct stacks.
    pub(super) fn len(&self) -> usize {
        self.distinct.stacks.len()
    }

    /// Adds the first `count` stacks of a part of the trace. `numbers` are the numbers here of those
    /// that were added before, and is extended.
    pub(super) fn append(&mut self, part: &Self, count: usize, numbers: &mut Vec<u32>) {
        for number in numbers.len()..count {
            let frames =
                part.frames(number).map(|frame| self.distinct.frame(frame.pc, || frame.clone()));
            let frames: Vec<u32> = frames.collect();
            numbers.push(self.distinct.intern(frames));
        }
    }

    /// The frames of a stack, innermost first.
    pub(super) fn frames(&self, number: usize) -> impl Iterator<Item = &Frame> + Clone {
        let Distinct { frames, stacks, .. } = &self.distinct;
        let stack = stacks.get(number).map(|stack| &stack[..]).unwrap_or_default();
        stack.iter().filter_map(|index| frames.get(*index as usize))
    }
}

impl Distinct {
    fn add(&mut self, table: &Table, id: u64) -> u32 {
        let frames = table.stack(id).iter();
        let frames = frames.filter_map(|index| table.frames.get(*index as usize));
        let frames: Vec<u32> = frames
            .map(|frame| {
                self.frame(frame.pc, || Frame {
                    pc: frame.pc,
                    function: Name::of(table, frame.func),
                    file: Name::of(table, frame.file),
                    line: frame.line,
                })
            })
            .collect();
        // The runtime writes one frame without a program counter where it has no stack.
        let is_none = frames
            .iter()
            .all(|index| self.frames.get(*index as usize).is_none_or(|frame| frame.pc == 0));
        self.intern(if is_none { Vec::new() } else { frames })
    }

    /// The number of the frame of a program counter.
    fn frame(&mut self, pc: u64, frame: impl FnOnce() -> Frame) -> u32 {
        *self.by_pc.entry(pc).or_insert_with(|| {
            self.frames.push(frame());
            self.frames.len() as u32 - 1
        })
    }

    /// The number of the empty stack.
    fn empty(&mut self) -> u32 {
        if let Some(number) = self.empty {
            return number;
        }
        let number = self.intern(Vec::new());
        *self.empty.insert(number)
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
}
