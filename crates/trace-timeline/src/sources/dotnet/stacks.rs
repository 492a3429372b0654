//! Stacks of events, with the names of their methods.

use super::DotnetSource;
use crate::sources::pusher::Pusher;
use crate::tables::{Frame, Mapping, MappingId, StackId, Tables};
use hashbrown::HashMap;
use nettrace::Event as NetEvent;

/// Maximum number of frames of a stack, innermost first.
const MAX_FRAMES: usize = 1 << 10;

/// Maximum number of bytes of addresses in the cache.
const MAX_CACHED: usize = 16 << 20;

/// Stacks that were resolved, by process and addresses.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    known: HashMap<u64, HashMap<Box<[u8]>, Option<StackId>>>,
    bytes: usize,
}

impl DotnetSource {
    /// The stack of an event.
    pub(super) fn stack(&mut self, event: &NetEvent<'_>, push: &mut Pusher<'_>) -> Option<StackId> {
        let stack = event.stack();
        if stack.is_empty() || !self.has_stacks {
            return None;
        }
        let (process, bytes) = (event.process_id(), stack.as_bytes());
        if let Some(known) = self.stacks.known.get(&process).and_then(|known| known.get(bytes)) {
            return *known;
        }
        let at = event.header().timestamp;
        let addresses = stack.instruction_pointers().take(MAX_FRAMES).enumerate();
        let frames: Vec<Frame> = addresses
            .map(|(depth, address)| self.frame(process, address, depth, at, push.tables))
            .collect();
        let id = push.tables.stack(&frames);
        if self.stacks.bytes >= MAX_CACHED {
            self.stacks = Stacks::default();
        }
        self.stacks.bytes += bytes.len();
        self.stacks.known.entry(process).or_default().insert(bytes.into(), id);
        id
    }

    fn frame(
        &self,
        process: u64,
        address: u64,
        depth: usize,
        at: i64,
        tables: &mut Tables,
    ) -> Frame {
        // All frames but the innermost are return addresses.
        let call = if depth == 0 { address } else { address.saturating_sub(1) };
        let mut resolved = self.names.methods().resolve(process, call, at);
        resolved.address = address;
        frame(&resolved, tables)
    }
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
