use super::{Event, FRAME_FIELDS, spec_of};
use crate::spec::EventType;
use crate::version::Version;
use std::io::{self, Write};
use trace_common::append_uvarint;

/// Writes wire events as the bytes of a trace.
///
/// The bytes may differ from those of a runtime for the same events: the runtime pads integers
/// whose value it learns late. The writer makes one call to `W` per event, so `W` should be
/// buffered.
#[derive(Debug)]
pub struct Writer<W> {
    sink: W,
    version: Version,
    buffer: Vec<u8>,
}

/// The reason why an event could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The sink failed.
    #[error("writing failed: {0}")]
    Io(#[from] io::Error),
    /// The version of the event differs from that of the trace.
    #[error("an event of {event} does not belong in a trace of {writer}")]
    Version {
        /// The version of the trace.
        writer: Version,
        /// The version of the event.
        event: Version,
    },
    /// The version does not define events of this type, or it is a version of format v1, which this
    /// layer does not support.
    #[error("{version} has no event {ty}")]
    NoSuchEvent {
        /// The version.
        version: Version,
        /// The type of the event.
        ty: EventType,
    },
    /// The event has too few or too many arguments.
    #[error("{ty} with {found} arguments")]
    Arguments {
        /// The type of the event.
        ty: EventType,
        /// Number of its arguments.
        found: usize,
    },
}

impl<W: Write> Writer<W> {
    /// Writes the header of a trace of this version.
    ///
    /// # Errors
    ///
    /// [`WriteError::Io`].
    pub fn new(mut sink: W, version: Version) -> Result<Self, WriteError> {
        sink.write_all(&version.header())?;
        Ok(Self { sink, version, buffer: Vec::new() })
    }

    /// Writes one event.
    ///
    /// # Errors
    ///
    /// A [`WriteError`] if the event does not match the trace's version, if its arguments do not
    /// match its type, or if the sink fails.
    pub fn write_event(&mut self, event: Event<'_>) -> Result<(), WriteError> {
        check_version(self.version, event)?;
        self.buffer.clear();
        event.append_wire(&mut self.buffer)?;
        Ok(self.sink.write_all(&self.buffer)?)
    }

    /// Returns the sink.
    pub fn into_inner(self) -> W {
        self.sink
    }
}

pub(super) fn check_version(writer: Version, event: Event<'_>) -> Result<(), WriteError> {
    if event.version == writer {
        Ok(())
    } else {
        Err(WriteError::Version { writer, event: event.version })
    }
}

impl Event<'_> {
    /// Appends the encoded event. After an error, `out` is unchanged.
    ///
    /// # Errors
    ///
    /// [`WriteError::NoSuchEvent`] and [`WriteError::Arguments`].
    #[expect(clippy::indexing_slicing, reason = "a stack has two arguments: its type says so")]
    pub fn append_wire(self, out: &mut Vec<u8>) -> Result<(), WriteError> {
        let Self { version, ty, args, data } = self;
        let spec = spec_of(version, ty).ok_or(WriteError::NoSuchEvent { version, ty })?;
        let fits = match args.len().checked_sub(spec.args.len()) {
            Some(0) if !spec.is_stack => true,
            // A reader can decode it only if the number of frames is right.
            Some(more) if spec.is_stack => {
                let frames = i64::try_from(args[1]).unwrap_or(0).unsigned_abs();
                frames.checked_mul(FRAME_FIELDS.len() as u64) == Some(more as u64)
            }
            _ => false,
        };
        if !fits {
            return Err(WriteError::Arguments { ty, found: args.len() });
        }
        out.push(ty.0);
        for &arg in args {
            append_uvarint(arg, out);
        }
        if spec.has_data {
            let data = data.unwrap_or_default();
            append_uvarint(data.len() as u64, out);
            out.extend_from_slice(data);
        }
        Ok(())
    }
}
