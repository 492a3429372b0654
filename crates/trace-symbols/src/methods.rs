//! Methods that a runtime reports: code with the times of its existence.

use crate::error::{Result, Unresolved};
use crate::frame::{Frame, Texts};
use crate::names::{Named, Names};
use crate::time_map::TimeMap;
use std::collections::HashMap;
use trace_common::Timestamp;

/// Compiled code of a method, as a runtime reports it: .NET's `MethodLoad` and rundown events, for
/// example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method<'a> {
    /// First address.
    pub start: u64,
    /// Bytes of code.
    pub size: u64,
    /// The time from which on the code exists. `None` if that is not known: the runtime listed the
    /// method at the end. It counts where no method with a time has the address.
    pub from: Option<Timestamp>,
    /// The name, with the tier or other remarks that are to be shown.
    pub name: &'a str,
}

/// The methods of all processes.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    processes: HashMap<u32, Process>,
    bytes: usize,
    pub(crate) dropped: u64,
}

#[derive(Debug, Default)]
struct Process {
    dated: TimeMap<Named>,
    listed: TimeMap<Named>,
    names: Names,
    bytes: usize,
}

/// Bytes of names and ranges of all methods.
const MAX_BYTES: usize = 1 << 30;

impl Methods {
    pub(crate) fn add(&mut self, process: u32, method: &Method<'_>) {
        let known = self.processes.entry(process).or_default();
        let bytes = method.name.len() + size_of::<Named>();
        let is_kept = self.bytes + bytes <= MAX_BYTES;
        if is_kept {
            self.bytes += bytes;
            known.bytes += bytes;
        }
        let named = is_kept.then(|| known.names.add(method.start, method.name)).flatten();
        let Some(named) = named else {
            self.dropped += 1;
            return;
        };
        let end = method.start.saturating_add(method.size);
        match method.from {
            Some(from) => known.dated.insert(method.start, end, from, named),
            None => known.listed.insert(method.start, end, Timestamp::MIN, named),
        }
    }

    /// The runtime freed the code of a method.
    pub(crate) fn remove(&mut self, process: u32, start: u64, size: u64, at: Timestamp) {
        if let Some(process) = self.processes.get_mut(&process) {
            let end = start.saturating_add(size);
            process.dated.remove(start, end, at);
            process.listed.remove(start, end, at);
        }
    }

    /// Forgets the methods of a process.
    pub(crate) fn remove_process(&mut self, process: u32) {
        self.bytes -= self.processes.remove(&process).map_or(0, |process| process.bytes);
    }

    pub(crate) fn has(&self, process: u32) -> bool {
        self.processes.contains_key(&process)
    }

    /// The method with the code at an address at a time.
    pub(crate) fn frame(
        &self,
        process: u32,
        address: u64,
        at: Timestamp,
        texts: &mut Texts,
    ) -> Result<Frame> {
        let process = self.processes.get(&process).ok_or(Unresolved::NoSymbol)?;
        let found = process.dated.at(address, at).or_else(|| process.listed.at(address, at));
        let found = found.ok_or(Unresolved::NoSymbol)?;
        Ok(process.names.frame(found, address, texts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_found_at_their_time() {
        let at = Timestamp::from_nanos;
        let mut methods = Methods::default();
        let method = |start, from: Option<i64>, name| Method {
            start,
            size: 16,
            from: from.map(Timestamp::from_nanos),
            name,
        };
        methods.add(1, &method(0x1000, Some(10), "Program.Main() [Tier0]"));
        methods.add(1, &method(0x1000, Some(20), "Program.Main() [Tier1]"));
        methods.add(1, &method(0x1000, None, "Program.Main() [listed]"));
        methods.add(1, &method(0x2000, None, "Program.Other()"));
        methods.remove(1, 0x1000, 16, at(30));
        let name = |process, address, time| {
            let frame = methods.frame(process, address, at(time), &mut Texts::new(true));
            frame.map_or_else(|why| why.to_string(), |frame| frame.function.to_string())
        };
        assert_eq!(name(1, 0x1004, 5), "Program.Main() [listed]");
        assert_eq!(name(1, 0x1004, 15), "Program.Main() [Tier0]");
        assert_eq!(name(1, 0x1004, 25), "Program.Main() [Tier1]");
        assert_eq!(name(1, 0x1004, 30), Unresolved::NoSymbol.to_string());
        assert_eq!(name(1, 0x2004, 30), "Program.Other()");
        assert_eq!(name(2, 0x2004, 30), Unresolved::NoSymbol.to_string());
        methods.remove_process(1);
        assert!(!methods.has(1));
        assert_eq!(methods.bytes, 0);
    }
}
