//! Stacks of events, with the names of their methods.

use super::DotnetSource;
use crate::sources::pusher::Pusher;
use crate::tables::{Frame, Mapping, MappingId, StackId, Tables};
use hashbrown::HashMap;
use nettrace::Event as NetEvent;
use std::fmt;
use std::ops::RangeInclusive;
use trace_common::Timestamp;

/// Finds the lines of .NET methods.
///
/// This crate reads no PDB files: a program that does implements this for
/// [`DotnetSource::with_lines`].
pub trait DotnetLines {
    /// Passes the file and the line of an offset in the IL of a method, by its token, to `each`. Not at
    /// all if they are not known.
    fn line(
        &mut self,
        module: &nettrace::Module,
        token: u32,
        il_offset: u32,
        each: &mut dyn FnMut(&str, u32),
    );
}

/// The lines of a source; none without them.
#[derive(Default)]
pub(super) struct Lines(Option<Box<dyn DotnetLines + Send>>);

impl Lines {
    pub(super) fn new(lines: impl DotnetLines + Send + 'static) -> Self {
        Self(Some(Box::new(lines)))
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lines").field(&self.0.is_some()).finish()
    }
}

/// Maximum number of frames of a stack, innermost first.
const MAX_FRAMES: usize = 1 << 10;

/// Maximum number of bytes of addresses in the cache.
const MAX_CACHED: usize = 16 << 20;

/// Stacks that were resolved, by process and addresses.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    known: HashMap<u64, HashMap<Box<[u8]>, Resolved>>,
    bytes: usize,
}

/// A stack with the names of a period of time, on the clock of the trace: the last one in which it was.
#[derive(Debug)]
struct Resolved {
    period: RangeInclusive<Timestamp>,
    stack: Option<StackId>,
}

impl DotnetSource {
    /// The stack of an event.
    pub(super) fn stack(&mut self, event: &NetEvent<'_>, push: &mut Pusher<'_>) -> Option<StackId> {
        let stack = event.stack();
        if stack.is_empty() || !self.has_stacks {
            return None;
        }
        let (process, bytes) = (event.pid(), stack.as_bytes());
        let at = event.time();
        let known = self.stacks.known.get(&process).and_then(|known| known.get(bytes));
        if let Some(known) = known.filter(|known| known.period.contains(&at)) {
            return known.stack;
        }
        let calls = || {
            let addresses = stack.instruction_pointers().take(MAX_FRAMES).enumerate();
            // All frames but the innermost are return addresses.
            addresses.map(|(depth, address)| {
                (address, if depth == 0 { address } else { address.saturating_sub(1) })
            })
        };
        let frames: Vec<Frame> = calls()
            .map(|(address, call)| self.frame(process, address, call, at, push.tables))
            .collect();
        let stack = push.tables.stack(&frames);
        let addresses = calls().map(|(_, call)| call);
        let period = self.names.methods().period(process, addresses, at);
        if self.stacks.bytes >= MAX_CACHED {
            self.stacks = Stacks::default();
        }
        let known = self.stacks.known.entry(process).or_default();
        if known.insert(bytes.into(), Resolved { period, stack }).is_none() {
            self.stacks.bytes += bytes.len();
        }
        stack
    }

    fn frame(
        &mut self,
        process: u64,
        address: u64,
        call: u64,
        at: Timestamp,
        tables: &mut Tables,
    ) -> Frame {
        let mut resolved = self.names.methods().resolve(process, call, at);
        resolved.address = address;
        match &mut self.lines.0 {
            Some(lines) => frame_with_line(&resolved, &mut **lines, tables),
            None => frame(&resolved, tables),
        }
    }
}

/// A frame of a .NET stack with its file and line, if they are known: see [`frame`].
pub fn frame_with_line(
    resolved: &nettrace::Frame<'_>,
    lines: &mut dyn DotnetLines,
    tables: &mut Tables,
) -> Frame {
    let mut frame = frame(resolved, tables);
    if let (Some(module), Some(method), Some(il_offset)) =
        (resolved.module, resolved.method, resolved.il_offset)
    {
        lines.line(module, method.token, il_offset, &mut |file, line| {
            frame.file = tables.text(file.as_bytes());
            frame.line = line;
        });
    }
    frame
}

/// A frame of a .NET stack, of an event or of an analysis of `nettrace`.
pub fn frame(frame: &nettrace::Frame<'_>, tables: &mut Tables) -> Frame {
    let function = match frame.method {
        Some(method) => tables.text(method.to_string().as_bytes()),
        None => tables.text(format!("{:#x}", frame.address).as_bytes()),
    };
    let mapping = frame.module.and_then(|module| mapping(module, tables));
    let address = frame.method.map_or(0, |method| frame.address.saturating_sub(method.start));
    Frame { function, mapping, address, ..Frame::default() }
}

/// An assembly. Its methods are compiled at run time, so it has no addresses.
fn mapping(module: &nettrace::Module, tables: &mut Tables) -> Option<MappingId> {
    let path = tables.text(module.path.as_bytes());
    let build_id = module.pdb_signature.map_or(String::new(), |guid| guid.to_string());
    let build_id = tables.text(build_id.as_bytes());
    tables.add_mapping(Mapping { path, build_id, ..Mapping::default() })
}
