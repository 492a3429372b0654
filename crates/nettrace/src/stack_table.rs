//! Stacks, kept once each.

use std::collections::HashMap;

use crate::method_map::{Frame, MethodMap};
use crate::{Event, Timestamp};

#[derive(Debug, Default)]
pub(crate) struct StackTable {
    stacks: Vec<Box<[u64]>>,
    by_bytes: HashMap<Box<[u8]>, u32>,
}

impl StackTable {
    /// The index of an event's stack.
    pub(crate) fn intern(&mut self, event: &Event<'_>) -> u32 {
        let stack = event.stack();
        if let Some(known) = self.by_bytes.get(stack.as_bytes()) {
            return *known;
        }
        let index = self.stacks.len() as u32;
        self.stacks.push(stack.instruction_pointers().collect());
        self.by_bytes.insert(stack.as_bytes().into(), index);
        index
    }

    /// The instruction pointers of a stack, innermost first.
    pub(crate) fn get(&self, stack: u32) -> &[u64] {
        self.stacks.get(stack as usize).map_or(&[], |s| s)
    }

    /// The instruction pointers of a stack, innermost first, and an address within each instruction.
    pub(crate) fn calls(&self, stack: u32) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.get(stack).iter().enumerate().map(|(depth, &ip)| {
            // All but the innermost are return addresses: the call is before them, and may be
            // the last instruction of its method.
            (ip, if depth == 0 { ip } else { ip.saturating_sub(1) })
        })
    }

    /// The frames of a stack of a process at a time, innermost first.
    pub(crate) fn frames<'a>(
        &'a self,
        methods: &'a MethodMap,
        process: u64,
        at: Timestamp,
        stack: u32,
    ) -> impl ExactSizeIterator<Item = Frame<'a>> + 'a {
        self.calls(stack)
            .map(move |(ip, call)| Frame { address: ip, ..methods.resolve(process, call, at) })
    }
}
