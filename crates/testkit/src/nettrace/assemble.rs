//! Streams put together piece by piece: also such as no runtime writes.

use trace_common::append_uvarint;

/// A stream of version 4 with one metadata record, whose fields are given as bytes, and one
/// event of that type.
pub fn v4(provider: &str, event: u32, version: u32, fields: &[u8], payload: &[u8]) -> Vec<u8> {
    one_event(provider, event, version, "", 0, fields, payload)
}

/// The same with a name for the event.
pub fn v4_named(provider: &str, event: u32, name: &str, fields: &[u8], payload: &[u8]) -> Vec<u8> {
    one_event(provider, event, 0, name, 0, fields, payload)
}

/// The same with keywords.
pub fn v4_with_keywords(provider: &str, keywords: u64, fields: &[u8], payload: &[u8]) -> Vec<u8> {
    one_event(provider, 1, 0, "Own", keywords, fields, payload)
}

fn one_event(
    provider: &str,
    event: u32,
    version: u32,
    name: &str,
    keywords: u64,
    fields: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let metadata = metadata(provider, event, version, name, keywords, fields);
    Stream::v4()
        .compressed("MetadataBlock", &blob(&[0x80, 0], &metadata))
        .compressed("EventBlock", &blob(&[0xc7, 1, 0, 9, 0, 9, 5], payload))
        .end()
}

/// The payload of a metadata event of version 4 with the id 1, whose fields are given as bytes.
pub fn metadata(
    provider: &str,
    event: u32,
    version: u32,
    name: &str,
    keywords: u64,
    fields: &[u8],
) -> Vec<u8> {
    let mut metadata = 1u32.to_le_bytes().to_vec();
    metadata.extend(utf16z(provider));
    metadata.extend(event.to_le_bytes());
    metadata.extend(utf16z(name));
    metadata.extend(keywords.to_le_bytes());
    metadata.extend(version.to_le_bytes());
    metadata.extend(4u32.to_le_bytes());
    metadata.extend(fields);
    metadata
}

/// A stream of version 6 with one metadata row, whose part after the id is given as bytes, and
/// one event of that type.
pub fn v6(row: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut stream = V6::new();
    let mut metadata = 0u16.to_le_bytes().to_vec();
    let row = [&[1], row].concat();
    metadata.extend((row.len() as u16).to_le_bytes());
    metadata.extend(row);
    stream.block(3, &metadata);
    stream.compressed(&blob(&[0xc7, 1, 0, 9, 0, 9, 5], payload));
    stream.end()
}

/// An event: a header that ends in the payload's size, and the payload.
pub fn blob(header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = header.to_vec();
    out.extend(varint(payload.len() as u64));
    out.extend(payload);
    out
}

/// A number of variable length.
pub fn varint(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    append_uvarint(value, &mut out);
    out
}

/// A string of versions 4 and 5.
pub fn utf16z(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

/// A string of version 6.
pub fn utf8(text: &str) -> Vec<u8> {
    [varint(text.len() as u64), text.as_bytes().to_vec()].concat()
}

/// 2026-11-06 21:04:30.250 … as SYSTEMTIME, 1000 ticks, nanoseconds, 64 bits.
fn clock() -> Vec<u8> {
    let mut out = Vec::new();
    for v in [2026u16, 11, 6, 21, 4, 30, 15, 250] {
        out.extend(v.to_le_bytes());
    }
    out.extend(1_000i64.to_le_bytes());
    out.extend(1_000_000_000i64.to_le_bytes());
    out.extend(8u32.to_le_bytes());
    out
}

/// A stream of version 4.
#[derive(Debug)]
pub struct Stream(pub Vec<u8>);

impl Stream {
    /// Its begin, with the trace object.
    pub fn v4() -> Self {
        let mut s = Self(b"Nettrace\x14\0\0\0!FastSerialization.1".to_vec());
        s.object_header("Trace", 4);
        s.0.extend(clock());
        for v in [42u32, 2, 1_000_000] {
            s.0.extend(v.to_le_bytes());
        }
        s.0.push(6);
        s
    }

    fn object_header(&mut self, name: &str, version: i32) {
        self.0.extend([5, 5, 1]);
        self.0.extend(version.to_le_bytes());
        self.0.extend(version.to_le_bytes());
        self.0.extend((name.len() as i32).to_le_bytes());
        self.0.extend(name.as_bytes());
        self.0.push(6);
    }

    /// A block; its size as it is, or as given.
    pub fn block(mut self, name: &str, size: Option<i32>, content: &[u8]) -> Self {
        self.object_header(name, 2);
        let size = size.unwrap_or(content.len() as i32);
        self.0.extend(size.to_le_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self.0.extend(content);
        self.0.push(6);
        self
    }

    /// A block of events with compressed headers; metadata is one of those.
    pub fn compressed(self, name: &str, events: &[u8]) -> Self {
        let content = [&header(true)[..], events].concat();
        self.block(name, None, &content)
    }

    /// The bytes, with the end of the stream.
    pub fn end(mut self) -> Vec<u8> {
        self.0.push(1);
        self.0
    }
}

/// The header of an event block.
pub fn header(compressed: bool) -> [u8; 20] {
    let mut out = [0; 20];
    out[0] = 20;
    out[2] = u8::from(compressed);
    out
}

/// A stream of version 6.
#[derive(Debug)]
pub struct V6(pub Vec<u8>);

impl Default for V6 {
    fn default() -> Self {
        Self::new()
    }
}

impl V6 {
    /// Its begin, with a trace block that has the number of a process.
    pub fn new() -> Self {
        Self::with_properties(1, &[utf8("ProcessId"), utf8("42")].concat())
    }

    /// A stream whose trace block has this number of properties.
    pub fn with_properties(count: u32, properties: &[u8]) -> Self {
        let mut s = Self(b"Nettrace\0\0\0\0\x06\0\0\0\0\0\0\0".to_vec());
        s.block(1, &[&clock()[..], &count.to_le_bytes(), properties].concat());
        s
    }

    /// A block of this kind.
    pub fn block(&mut self, kind: u8, content: &[u8]) {
        let header = content.len() as u32 & 0xff_ffff | u32::from(kind) << 24;
        self.0.extend(header.to_le_bytes());
        self.0.extend(content);
    }

    /// A block of events with compressed headers.
    pub fn compressed(&mut self, events: &[u8]) {
        let content = [&header(true)[..], events].concat();
        self.block(2, &content);
    }

    /// The bytes, with the end of the stream.
    pub fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 4]);
        self.0
    }
}
