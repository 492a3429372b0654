//! .NET traces by hand.

pub mod assemble;

/// An event to put in a trace: of a type, at a time, about a thread, written by another.
#[derive(Clone, Debug)]
pub struct Written {
    /// Number of its type in [`trace`], from 1.
    pub metadata: u32,
    /// Ticks.
    pub at: i64,
    /// The thread that it is about.
    pub thread: u64,
    /// The thread that wrote it.
    pub by: u64,
    /// Its fields.
    pub payload: Vec<u8>,
    /// Whether it has the stack of the trace.
    pub has_stack: bool,
    /// Number of events that the thread which wrote it had lost before.
    pub lost: u32,
}

/// An event that a thread wrote about itself.
pub fn event(metadata: u32, at: i64, thread: u64, payload: &[&[u8]]) -> Written {
    let payload = payload.concat();
    Written { metadata, at, thread, by: thread, payload, has_stack: false, lost: 0 }
}

/// A string as the runtime writes it.
pub fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

/// A trace of format version 4, process 42, whose ticks are nanoseconds of `CLOCK_MONOTONIC`.
///
/// `types` are provider, event number and version; the fields are those of the manifest. An event source is
/// `PROVIDER/NAME`, and its events have no fields.
pub fn trace(types: &[(&str, u32, u32)], events: &[Written]) -> Vec<u8> {
    let mut out = b"Nettrace\x14\0\0\0!FastSerialization.1".to_vec();
    let object = |out: &mut Vec<u8>, name: &str, version: i32| {
        out.extend([5, 5, 1]);
        for number in [version, version, name.len() as i32] {
            out.extend(number.to_le_bytes());
        }
        out.extend(name.as_bytes());
        out.push(6);
    };
    object(&mut out, "Trace", 4);
    out.extend([2026u16, 11, 6, 21, 4, 30, 15, 250].iter().flat_map(|v| v.to_le_bytes()));
    out.extend([1_000i64, 1_000_000_000].iter().flat_map(|v| v.to_le_bytes()));
    out.extend([8u32, 42, 2, 1_000_000].iter().flat_map(|v| v.to_le_bytes()));
    out.push(6);
    let block = |out: &mut Vec<u8>, name: &str, content: &[u8]| {
        object(out, name, 2);
        out.extend((content.len() as i32).to_le_bytes());
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend(content);
        out.push(6);
    };
    let blob = |out: &mut Vec<u8>, event: &Written, sequence: u32| {
        let start = out.len();
        out.extend([0; 4]);
        // Each thread writes its own buffer: events are not sorted.
        out.extend((event.metadata | 1 << 31).to_le_bytes());
        out.extend(sequence.to_le_bytes());
        out.extend(event.thread.to_le_bytes());
        out.extend(event.by.to_le_bytes());
        out.extend(u32::MAX.to_le_bytes());
        out.extend(u32::from(event.has_stack).to_le_bytes());
        out.extend(event.at.to_le_bytes());
        out.extend([0; 32]);
        out.extend((event.payload.len() as u32).to_le_bytes());
        out.extend(&event.payload);
        out.resize(out.len().next_multiple_of(4), 0);
        let size = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&size.to_le_bytes());
    };
    let header = [20, 0, 0, 0].into_iter().chain([0; 16]).collect::<Vec<u8>>();

    let mut metadata = header.clone();
    for (number, (provider, id, version)) in (1u32..).zip(types) {
        let (provider, name) = provider.split_once('/').unwrap_or((provider, ""));
        let mut payload = number.to_le_bytes().to_vec();
        payload.extend(utf16(provider));
        payload.extend(id.to_le_bytes());
        payload.extend(utf16(name));
        payload.extend([0; 8]);
        payload.extend([*version, 4, 0].iter().flat_map(|v| v.to_le_bytes()));
        blob(&mut metadata, &event(0, 0, 0, &[&payload]), 0);
    }
    block(&mut out, "MetadataBlock", &metadata);
    // One stack of one address.
    let stacks: Vec<u8> = [1u32, 1, 8].iter().flat_map(|v| v.to_le_bytes()).collect();
    block(&mut out, "StackBlock", &[&stacks[..], &0x1234u64.to_le_bytes()].concat());
    let mut content = header;
    let mut sequences = std::collections::HashMap::<u64, u32>::new();
    for event in events {
        let sequence = sequences.entry(event.by).or_default();
        *sequence += 1 + event.lost;
        blob(&mut content, event, *sequence);
    }
    block(&mut out, "EventBlock", &content);
    out.push(1);
    out
}
