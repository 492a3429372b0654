//! The encoded wire events of a trace: reading and writing, in binary and as text.
//!
//! This layer does not order, resolve or validate events beyond their framing. It serves to test
//! and debug tracers and readers; use [`Reader`](crate::Reader) to analyse programs. It supports
//! format v2 (Go ≥ 1.22).
//!
//! ```
//! use gotrace::raw;
//!
//! // A trace as text, converted to bytes, and decoded event by event.
//! let text = "Trace Go1.22\nEventBatch gen=1 m=0 time=0 size=5\nFrequency freq=15625000\n";
//! let wire = raw::TextToWire::new(text.as_bytes())?;
//! let mut reader = raw::Reader::new(wire)?;
//! let mut writer = raw::TextWriter::new(Vec::new(), reader.version())?;
//! while let Some(event) = reader.next_event()? {
//!     writer.write_event(event)?;
//! }
//! assert_eq!(writer.into_inner(), text.as_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The text form
//!
//! Its first line is `Trace Go1.N`. Each event is a line with its name and all its arguments in
//! order, each as `name=value`. The frames of a `Stack` follow, one per line; the data of an event
//! that has data follows on a line `data="…"`, quoted as in Go source. Empty lines and lines whose
//! first word begins with `#` are skipped.
//!
//! Source: `src/internal/trace/raw/doc.go` of the Go distribution.

mod reader;
mod testfile;
mod text;
mod writer;

pub use reader::Reader;
pub use testfile::{Expectation, TestFile};
pub use text::{TextReader, TextToWire, TextWriter};
pub use writer::{WriteError, Writer};

use crate::quote::append_quoted;
use crate::spec::{EventSpec, EventType};
use crate::version::Version;
use std::fmt;

/// A wire event that borrows from the reader that returned it.
///
/// Wire events include the framing and the tables of the format: batches, strings, stacks.
/// `Display` writes the text form, as Go prints it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The version of the trace, which determines the available event types.
    pub version: Version,
    /// The type of the event.
    pub ty: EventType,
    /// The arguments in the order of [`EventSpec::args`], then those of the frames of a stack, four
    /// per frame: pc, function, file, line.
    pub args: &'a [u64],
    /// The data, if the event has data and it is present.
    pub data: Option<&'a [u8]>,
}

/// An owned [`Event`].
#[derive(Clone, PartialEq, Eq)]
pub struct OwnedEvent {
    /// See [`Event::version`].
    pub version: Version,
    /// See [`Event::ty`].
    pub ty: EventType,
    /// See [`Event::args`].
    pub args: Vec<u64>,
    /// See [`Event::data`].
    pub data: Option<Vec<u8>>,
}

impl OwnedEvent {
    /// Returns the borrowed form, which can be written.
    pub fn as_event(&self) -> Event<'_> {
        Event { version: self.version, ty: self.ty, args: &self.args, data: self.data.as_deref() }
    }
}

const FRAME_FIELDS: [&str; 4] = ["pc", "func", "file", "line"];

/// Returns the specification of events with number `ty` in traces of this version.
///
/// Like Go's, this layer accepts numbers that Go 1.26 has skipped: they have no name and no
/// arguments.
fn spec_of(version: Version, ty: EventType) -> Option<&'static EventSpec> {
    (ty.0 != 0 && ty <= version.last_type()).then(|| ty.entry())
}

const fn uvarint_len(value: u64) -> usize {
    (63 - (value | 1).leading_zeros() as usize) / 7 + 1
}

impl Event<'_> {
    /// Number of bytes that a [`Writer`] writes for the event. The runtime may write more: it pads
    /// integers whose value it learns late.
    pub fn encoded_size(self) -> usize {
        let args: usize = self.args.iter().map(|&arg| uvarint_len(arg)).sum();
        let data = self.data.unwrap_or_default();
        let has_data = spec_of(self.version, self.ty).is_some_and(|spec| spec.has_data);
        1 + args + if has_data { uvarint_len(data.len() as u64) + data.len() } else { 0 }
    }

    /// Appends the text form as Go prints it, without a final line feed.
    ///
    /// An event that should have data but has none gets no `data` line. This text cannot be read
    /// back; the text of a [`TextWriter`] can.
    pub fn append_text(self, out: &mut Vec<u8>) {
        let spec = self.ty.entry();
        out.extend_from_slice(spec.name.as_bytes());
        let mut integers = itoa::Buffer::new();
        let mut append_arg = |name: &str, value: u64, out: &mut Vec<u8>| {
            out.extend_from_slice(name.as_bytes());
            out.push(b'=');
            out.extend_from_slice(integers.format(value).as_bytes());
        };
        for (name, &value) in spec.args.iter().zip(self.args) {
            out.push(b' ');
            append_arg(name, value, out);
        }
        if spec.is_stack {
            let frames = self.args.get(spec.args.len()..).unwrap_or_default();
            for frame in frames.chunks(FRAME_FIELDS.len()) {
                let mut separator = &b"\n\t"[..];
                for (name, &value) in FRAME_FIELDS.iter().zip(frame) {
                    out.extend_from_slice(separator);
                    append_arg(name, value, out);
                    separator = b" ";
                }
            }
        }
        if let Some(data) = self.data {
            append_data(data, out);
        }
    }

    /// Converts the event to an owned one, which can be stored or sent to another thread.
    pub fn to_owned(self) -> OwnedEvent {
        OwnedEvent {
            version: self.version,
            ty: self.ty,
            args: self.args.to_vec(),
            data: self.data.map(<[u8]>::to_vec),
        }
    }
}

fn append_data(data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"\n\tdata=");
    append_quoted(data, out);
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        self.append_text(&mut text);
        f.write_str(&String::from_utf8_lossy(&text)) // quoted data is UTF-8: lossless
    }
}

impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("version", &self.version)
            .field("ty", &self.ty)
            .field("args", &self.args)
            .field("data", &self.data.map(bstr::BStr::new))
            .finish()
    }
}

impl fmt::Display for OwnedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_event(), f)
    }
}

impl fmt::Debug for OwnedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_event(), f)
    }
}
