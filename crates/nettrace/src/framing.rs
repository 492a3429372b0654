//! Block boundaries: the FastSerialization objects of versions 3 to 5, and the plain block headers
//! of version 6.

use trace_common::{Cursor, ReadErrorKind};

use crate::{Error, ErrorKind, Result};

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Trace,
    Event,
    Metadata,
    Stack,
    SequencePoint,
    Thread,
    RemoveThread,
    LabelList,
    End,
    Unknown,
}

/// A block whose content is fully in the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Offset of the first byte of the content.
    pub(crate) start: u64,
    /// Offset after the last byte of the content.
    pub(crate) end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Nothing read yet.
    Unknown,
    /// Version 3: objects begin with tag 4.
    NetPerf,
    /// Versions 4 and 5: objects begin with tag 5.
    FastSerialization,
    V6,
}

const MAGIC: &[u8; 8] = b"Nettrace";
const FAST: &[u8; 20] = b"!FastSerialization.1";

const TAG_NULL: u8 = 1;
const TAG_BEGIN: u8 = 4;
const TAG_BEGIN_PRIVATE: u8 = 5;
const TAG_END: u8 = 6;

/// Maximum length of a type name; the longest known one is 13 bytes.
const MAX_NAME: usize = 256;

#[derive(Debug)]
pub(crate) struct Framing {
    form: Form,
    /// Offset of the next unread byte.
    pub(crate) position: u64,
    /// The end tag of the last object was not read yet.
    end_tag_due: bool,
    /// Version of the trace object.
    pub(crate) version: u32,
    max_block: usize,
}

impl Framing {
    pub(crate) fn new(max_block: usize) -> Self {
        Self { form: Form::Unknown, position: 0, end_tag_due: false, version: 0, max_block }
    }

    /// The next block, if `rest` (the input from [`Framing::position`]) contains all of its header.
    /// Its content may extend beyond `rest`. Consumes nothing: see [`Framing::consume`].
    pub(crate) fn peek(&mut self, rest: &[u8]) -> Result<Option<Frame>> {
        let mut c = Cursor::with_base(rest, self.position);
        match self.peek_cursor(&mut c) {
            Ok(frame) => Ok(Some(frame)),
            Err(e) if matches!(e.kind, ErrorKind::Read(ReadErrorKind::UnexpectedEnd { .. })) => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    pub(crate) fn consume(&mut self, frame: &Frame) {
        self.position = frame.end;
        self.end_tag_due = self.form != Form::V6;
    }

    /// Whether the input ends with a whole block: `rest` is the input from [`Framing::position`].
    pub(crate) fn is_between_blocks(&self, rest: &[u8]) -> bool {
        // The end tag of an object is read with the next one.
        rest.len() == usize::from(self.end_tag_due)
    }

    fn peek_cursor(&mut self, c: &mut Cursor<'_>) -> Result<Frame> {
        if self.form == Form::Unknown {
            self.form = self.stream_header(c)?;
            self.position = c.offset();
        }
        let frame = match self.form {
            Form::V6 => Self::block_v6(c)?,
            form => self.object(c, form)?,
        };
        if frame.end - frame.start > self.max_block as u64 {
            let size = frame.end - frame.start;
            return Err(Error::limit(frame.start, "block size", size, self.max_block));
        }
        Ok(frame)
    }

    fn stream_header(&mut self, c: &mut Cursor<'_>) -> Result<Form> {
        // A wrong first byte is an error, not missing input.
        let seen = c.rest();
        let starts = |magic: &[u8]| seen.iter().zip(magic).all(|(a, b)| a == b);
        let net_perf: Vec<u8> =
            (FAST.len() as u32).to_le_bytes().into_iter().chain(*FAST).collect();
        if starts(&net_perf) {
            c.skip(net_perf.len())?;
            self.version = 3;
            return Ok(Form::NetPerf);
        }
        if !starts(MAGIC) {
            return Err(Error::new(c.offset(), ErrorKind::NotNetTrace));
        }
        c.skip(MAGIC.len())?;
        let at = c.offset();
        let length = c.u32()?;
        if length == 0 {
            let at = c.offset();
            let major = c.i32()?;
            c.skip(4)?; // minor versions are compatible
            if major != 6 {
                return Err(Error::new(at, ErrorKind::UnsupportedVersion(major)));
            }
            self.version = 6;
            return Ok(Form::V6);
        }
        if length as usize != FAST.len() {
            return Err(Error::invalid(at, "stream header", length.into()));
        }
        let at = c.offset();
        if c.array::<20>()? != *FAST {
            return Err(Error::new(at, ErrorKind::NotNetTrace));
        }
        Ok(Form::FastSerialization)
    }

    fn block_v6(c: &mut Cursor<'_>) -> Result<Frame> {
        let header = c.u32()?;
        let start = c.offset();
        let end = start + u64::from(header & 0xff_ffff);
        let kind = match header >> 24 {
            0 => Kind::End,
            1 => Kind::Trace,
            2 => Kind::Event,
            3 => Kind::Metadata,
            4 => Kind::SequencePoint,
            5 => Kind::Stack,
            6 => Kind::Thread,
            7 => Kind::RemoveThread,
            8 => Kind::LabelList,
            _ => Kind::Unknown,
        };
        Ok(Frame { kind, start, end })
    }

    fn object(&mut self, c: &mut Cursor<'_>, form: Form) -> Result<Frame> {
        if self.end_tag_due {
            tag(c, TAG_END, "the end tag of an object")?;
        }
        let at = c.offset();
        let begin = c.u8()?;
        if begin == TAG_NULL {
            return Ok(Frame { kind: Kind::End, start: c.offset(), end: c.offset() });
        }
        // Version 3 begins objects with tag 4, later ones with tag 5.
        let expected = if form == Form::NetPerf { TAG_BEGIN } else { TAG_BEGIN_PRIVATE };
        if begin != expected {
            let expected = "the begin tag of an object";
            return Err(Error::new(at, ErrorKind::UnexpectedTag { expected, found: begin }));
        }
        tag(c, expected, "the begin tag of a type")?;
        tag(c, TAG_NULL, "the null tag of a type's type")?;
        let version_at = c.offset();
        let version = c.i32()?;
        c.skip(4)?; // oldest compatible reader
        let length_at = c.offset();
        let length = c.i32()?;
        let length = match usize::try_from(length) {
            Ok(length) if length <= MAX_NAME => length,
            _ => return Err(Error::invalid(length_at, "length of a type name", length.into())),
        };
        let name = c.bytes(length)?;
        let kind = match name {
            b"Trace" => Kind::Trace,
            b"EventBlock" => Kind::Event,
            b"MetadataBlock" => Kind::Metadata,
            b"StackBlock" => Kind::Stack,
            b"SPBlock" => Kind::SequencePoint,
            // The object name of versions 1 and 2, which no released runtime wrote.
            b"Microsoft.DotNet.Runtime.EventPipeFile" => {
                return Err(Error::new(version_at, ErrorKind::UnsupportedVersion(version)));
            }
            _ => Kind::Unknown,
        };
        tag(c, TAG_END, "the end tag of a type")?;
        if kind == Kind::Trace {
            let good = if form == Form::NetPerf { version == 3 } else { matches!(version, 4 | 5) };
            if !good {
                return Err(Error::new(version_at, ErrorKind::UnsupportedVersion(version)));
            }
            self.version = version as u32;
            return Ok(Frame { kind, start: c.offset(), end: c.offset() + 48 });
        }
        let size_at = c.offset();
        let size = c.i32()?;
        let Ok(size) = u32::try_from(size) else {
            return Err(Error::invalid(size_at, "block size", size.into()));
        };
        // The content begins at a multiple of four bytes of the file.
        let padding = (4 - c.offset() % 4) % 4;
        c.skip(padding as usize)?;
        Ok(Frame { kind, start: c.offset(), end: c.offset() + u64::from(size) })
    }
}

fn tag(c: &mut Cursor<'_>, expected_tag: u8, expected: &'static str) -> Result<()> {
    let at = c.offset();
    let found = c.u8()?;
    if found == expected_tag {
        Ok(())
    } else {
        Err(Error::new(at, ErrorKind::UnexpectedTag { expected, found }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type with this name and version, up to the content of its object.
    fn object(begin: u8, name: &str, version: i32) -> Vec<u8> {
        let mut out = vec![begin, begin, TAG_NULL];
        out.extend(version.to_le_bytes());
        out.extend([0; 4]);
        out.extend((name.len() as i32).to_le_bytes());
        out.extend(name.as_bytes());
        out.push(TAG_END);
        out
    }

    fn fast(begin: u8, name: &str, version: i32) -> Vec<u8> {
        let start: &[u8] = if begin == TAG_BEGIN { b"" } else { MAGIC };
        let header = [start, &20u32.to_le_bytes(), FAST].concat();
        [header, object(begin, name, version)].concat()
    }

    fn v6(kind: u8, size: u32) -> Vec<u8> {
        let header = (u32::from(kind) << 24 | size).to_le_bytes();
        [&MAGIC[..], &0u32.to_le_bytes(), &6u32.to_le_bytes(), &0u32.to_le_bytes(), &header]
            .concat()
    }

    fn first(bytes: &[u8], max_block: usize) -> Result<Frame> {
        Framing::new(max_block).peek(bytes).map(|frame| frame.expect("a whole header"))
    }

    #[test]
    fn the_limit_of_a_block_is_the_largest_size_that_is_read() {
        let frame = first(&v6(2, 1000), 1000).unwrap();
        assert_eq!((frame.kind, frame.start, frame.end), (Kind::Event, 24, 1024));
        let error = first(&v6(2, 1001), 1000).unwrap_err();
        assert_eq!(error.offset, 24);
        let limit = matches!(error.kind, ErrorKind::Limit { value: 1001, limit: 1000, .. });
        assert!(limit, "{error}");
    }

    /// Version 3 is the only one without the magic number, versions 4 and 5 the only ones with it.
    #[test]
    fn the_form_of_a_stream_decides_its_versions() {
        for (begin, good) in [(TAG_BEGIN, &[3][..]), (TAG_BEGIN_PRIVATE, &[4, 5])] {
            for version in 0..8 {
                let bytes = fast(begin, "Trace", version);
                match first(&bytes, 100) {
                    Ok(frame) => {
                        assert!(good.contains(&version), "version {version}");
                        assert_eq!(frame.kind, Kind::Trace);
                        assert_eq!(frame.end - frame.start, 48);
                    }
                    Err(error) => {
                        assert!(!good.contains(&version), "version {version}: {error}");
                        assert!(
                            matches!(error.kind, ErrorKind::UnsupportedVersion(v) if v == version)
                        );
                        let at = bytes.len() as u64 - 18; // version, reader, name, end tag
                        assert_eq!(error.offset, at);
                    }
                }
            }
        }
    }

    #[test]
    fn the_object_of_versions_1_and_2_is_named_in_the_error() {
        let bytes = fast(TAG_BEGIN, "Microsoft.DotNet.Runtime.EventPipeFile", 2);
        let kind = first(&bytes, 100).unwrap_err().kind;
        assert!(matches!(kind, ErrorKind::UnsupportedVersion(2)), "{kind:?}");
    }
}
