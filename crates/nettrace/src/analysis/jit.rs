//! Compilations that have begun.

use std::collections::{BTreeMap, HashMap};

use super::MethodName;
use crate::Timestamp;

/// The start of a compilation. Its end may not name the method.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) start: Timestamp,
    pub(super) il_size: u32,
    pub(super) method: String,
    pub(super) signature: String,
    number: u64,
}

impl Started {
    fn text(&self) -> usize {
        self.method.len() + self.signature.len()
    }
}

/// Compilations without their end, by thread and method.
#[derive(Debug, Default)]
pub(super) struct OpenCompilations {
    started: HashMap<(u64, u64), Started>,
    /// Their threads and methods, oldest first.
    order: BTreeMap<u64, (u64, u64)>,
    count: u64,
    /// Bytes of the names.
    text: usize,
}

/// Maximum number of open compilations. Only lost end events can lead to more.
const MAX_OPEN: usize = 1 << 16;

/// Maximum number of bytes of their names.
const MAX_TEXT: usize = 1 << 24;

impl OpenCompilations {
    /// Adds a compilation; `false` if too many were open, and older ones made room for it.
    pub(super) fn start(
        &mut self,
        tid: u64,
        id: u64,
        start: Timestamp,
        il_size: u32,
        name: MethodName<'_>,
    ) -> bool {
        self.end(tid, id); // its end was lost
        let (method, signature) = (name.to_string(), name.signature.to_string());
        let number = self.count;
        self.count += 1;
        let started = Started { start, il_size, method, signature, number };
        let text = started.text();
        if text > MAX_TEXT {
            return false;
        }
        let fits = self.started.len() < MAX_OPEN && self.text + text <= MAX_TEXT;
        while self.started.len() >= MAX_OPEN || self.text + text > MAX_TEXT {
            let Some((_, (tid, id))) = self.order.pop_first() else { break };
            self.end(tid, id); // its end was lost
        }
        self.text += text;
        self.order.insert(number, (tid, id));
        self.started.insert((tid, id), started);
        fits
    }

    pub(super) fn end(&mut self, tid: u64, id: u64) -> Option<Started> {
        let started = self.started.remove(&(tid, id))?;
        self.order.remove(&started.number);
        self.text -= started.text();
        Some(started)
    }
}
