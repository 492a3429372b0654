use super::{Event, FRAME_FIELDS, spec_of};
use crate::error::{Error, ErrorKind, Position};
use crate::header;
use crate::source::Source;
use crate::spec::EventType;
use crate::version::Version;
use std::fmt;
use std::io::Read;
use std::mem;
use std::ops::Range;
use trace_common::{Cursor, Limits, ReadErrorKind};

/// Reads wire events from the bytes of a trace.
///
/// It has its own buffer of bounded size: at most the event that is being read, up to
/// [`Limits::max_buffer`]. It never waits for bytes after the event that it returns.
///
/// Where Go's `raw.Reader` accepts a trace that is truncated between two integers of an event as
/// complete, this reader returns an error.
pub struct Reader<R> {
    source: Source<R>,
    version: Version,
    limit: usize,
    /// Number of bytes of the event that was returned last.
    used: usize,
    at_end: bool,
    failed: bool,
    args: Vec<u64>,
}

/// An event found at the start of a piece of the trace.
struct Found {
    ty: EventType,
    data: Option<Range<usize>>,
    len: usize,
}

/// The reason why an event could not be decoded.
enum Obstacle {
    /// At least this many bytes are needed.
    Short {
        needed: u64,
        what: &'static str,
        cause: ReadErrorKind,
    },
    Malformed {
        offset: usize,
        what: &'static str,
        cause: ReadErrorKind,
    },
    Invalid(EventType),
    TooLarge,
}

impl<R: Read> Reader<R> {
    /// Reads the header from `source` with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotATrace`] and [`ErrorKind::UnsupportedVersion`] for the header, and
    /// [`ErrorKind::Io`].
    pub fn new(source: R) -> Result<Self, Error> {
        Self::with_limits(source, Limits::default())
    }

    /// As [`Reader::new`] with custom limits: [`Limits::max_buffer`] bounds the size of one event.
    ///
    /// # Errors
    ///
    /// As [`Reader::new`].
    pub fn with_limits(source: R, limits: Limits) -> Result<Self, Error> {
        let limit = limits.max_buffer;
        let mut source = Source::new(source, limit);
        let version = header::read_from(&mut source)?;
        let args = Vec::new();
        Ok(Self { source, version, limit, used: 0, at_end: false, failed: false, args })
    }

    /// The version of the trace.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Offset in the trace of the next event, in bytes.
    pub fn offset(&self) -> u64 {
        self.source.offset() + self.used as u64
    }

    /// Returns the next event; `None` at the end, and after an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], or the event is malformed, truncated, larger than [`Limits::max_buffer`],
    /// or of a type that the version does not define.
    #[expect(
        clippy::indexing_slicing,
        reason = "the data of an event lies within the window that it was read from"
    )]
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, Error> {
        self.source.release(mem::take(&mut self.used));
        if self.failed {
            return Ok(None);
        }
        let found = loop {
            let bytes = self.source.window();
            match decode(bytes, self.version, self.limit, &mut self.args) {
                Ok(found) => break found,
                Err(Obstacle::Short { .. }) if bytes.is_empty() && self.at_end => return Ok(None),
                Err(Obstacle::Short { needed, .. }) if !self.at_end => match self.fill(needed) {
                    Ok(()) => {}
                    Err(error) => {
                        self.failed = true;
                        return Err(error);
                    }
                },
                Err(obstacle) => {
                    self.failed = true;
                    return Err(self.error(obstacle));
                }
            }
        };
        self.used = found.len;
        let data = found.data.map(|data| &self.source.window()[data]);
        Ok(Some(Event { version: self.version, ty: found.ty, args: &self.args, data }))
    }

    /// Reads until this many bytes of the event are available, or the source ends.
    #[cold]
    fn fill(&mut self, needed: u64) -> Result<(), Error> {
        match usize::try_from(needed) {
            Ok(needed) if needed <= self.limit => {
                self.at_end = !self.source.ensure(needed)?;
                Ok(())
            }
            _ => Err(self.error(Obstacle::TooLarge)),
        }
    }

    #[cold]
    fn error(&self, obstacle: Obstacle) -> Error {
        let bytes = self.source.window();
        let event = bytes.first().map(|&b| EventType(b));
        let mut position = Position { offset: self.source.offset(), event, ..Position::default() };
        let kind = match obstacle {
            Obstacle::Malformed { offset, what, cause } => {
                position.offset += offset as u64;
                ErrorKind::Malformed { what, cause }
            }
            Obstacle::Short { what, cause, .. } => {
                position.offset += bytes.len() as u64;
                ErrorKind::Malformed { what, cause }
            }
            Obstacle::Invalid(ty) => {
                position.event = None;
                ErrorKind::InvalidEvent(ty.0)
            }
            Obstacle::TooLarge => {
                ErrorKind::limit("the size of an event in bytes (max_buffer)", self.limit)
            }
        };
        Error::new(kind, position)
    }
}

/// Decodes the event at the start of `bytes` and stores its arguments in `args`.
#[inline]
fn decode(
    bytes: &[u8],
    version: Version,
    limit: usize,
    args: &mut Vec<u64>,
) -> Result<Found, Obstacle> {
    let mut cursor = Cursor::new(bytes);
    args.clear();
    let Ok(ty) = cursor.u8().map(EventType) else {
        let cause = ReadErrorKind::UnexpectedEnd { wanted: 1, left: 0 };
        return Err(Obstacle::Short { needed: 1, what: "the type of an event", cause });
    };
    let spec = spec_of(version, ty).ok_or(Obstacle::Invalid(ty))?;
    read_args(&mut cursor, spec.args.len() as u64, "an argument", args)?;
    if spec.is_stack {
        // Go treats the number of frames as signed: a negative number means none.
        let frames = args.get(1).map_or(0, |&n| i64::try_from(n).unwrap_or(0).unsigned_abs());
        let count = frames.saturating_mul(FRAME_FIELDS.len() as u64);
        if count > cursor.remaining() as u64 && count / 8 > limit as u64 {
            return Err(Obstacle::TooLarge);
        }
        read_args(&mut cursor, count, "a frame of a stack", args)?;
    }
    let mut data = None;
    if spec.has_data {
        let before = cursor.position();
        read_args(&mut cursor, 1, "the length of data", args)?;
        let len = args.pop().map_or(0, |n| i64::try_from(n).unwrap_or(0).unsigned_abs());
        let start = cursor.position();
        let needed = (start as u64).saturating_add(len);
        if needed > limit as u64 {
            return Err(Obstacle::TooLarge);
        }
        if cursor.skip(len as usize).is_err() {
            let cause =
                ReadErrorKind::UnexpectedEnd { wanted: len as usize, left: bytes.len() - before };
            return Err(Obstacle::Short { needed, what: "data", cause });
        }
        data = (len > 0).then(|| start..cursor.position());
    }
    Ok(Found { ty, data, len: cursor.position() })
}

#[inline]
fn read_args(
    cursor: &mut Cursor<'_>,
    count: u64,
    what: &'static str,
    args: &mut Vec<u64>,
) -> Result<(), Obstacle> {
    for done in 0..count {
        match cursor.uvarint() {
            Ok(arg) => args.push(arg),
            Err(error) => {
                let cause = error.kind;
                return Err(match cause {
                    ReadErrorKind::UnexpectedEnd { .. } => {
                        // Every missing integer takes at least one byte.
                        let pending = (cursor.position() + cursor.remaining()) as u64;
                        let missing = count - done - u64::from(!cursor.is_empty());
                        let needed = pending.saturating_add(missing.max(1));
                        Obstacle::Short { needed, what, cause }
                    }
                    _ => Obstacle::Malformed { offset: cursor.position(), what, cause },
                });
            }
        }
    }
    Ok(())
}

impl<R> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("version", &self.version)
            .field("at_end", &self.at_end)
            .finish_non_exhaustive()
    }
}
