use super::writer::check_version;
use super::{Event, FRAME_FIELDS, WriteError, append_data, spec_of};
use crate::error::{Error, ErrorKind, Position};
use crate::quote::unquote;
use crate::spec::EventType;
use crate::version::Version;
use bstr::{BStr, ByteSlice};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use trace_common::Limits;

/// Reads the text form of a trace.
///
/// It accepts the input of Go's `raw.TextReader`, and also lines longer than 64 KiB.
pub struct TextReader<R> {
    lines: Lines<R>,
    version: Version,
    types: HashMap<&'static [u8], EventType>,
    failed: bool,
    args: Vec<u64>,
    data: Vec<u8>,
}

impl<R: Read> TextReader<R> {
    /// Reads the header line from `source` with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Text`] and [`ErrorKind::UnsupportedVersion`] for the header line,
    /// [`ErrorKind::Io`], and [`ErrorKind::Limit`].
    pub fn new(source: R) -> Result<Self, Error> {
        Self::with_limits(source, Limits::default())
    }

    /// As [`TextReader::new`] with custom limits: [`Limits::max_buffer`] bounds the size of one
    /// line.
    ///
    /// # Errors
    ///
    /// As [`TextReader::new`].
    pub fn with_limits(source: R, limits: Limits) -> Result<Self, Error> {
        Self::begin(source, limits, 0, 0)
    }

    /// As [`TextReader::new`] for text that begins after `lines` lines and `offset` bytes of a
    /// file.
    pub(super) fn at(source: R, lines: u64, offset: u64) -> Result<Self, Error> {
        Self::begin(source, Limits::default(), lines, offset)
    }

    fn begin(source: R, limits: Limits, number: u64, offset: u64) -> Result<Self, Error> {
        let mut lines = Lines {
            source: BufReader::with_capacity(64 << 10, source),
            limit: limits.max_buffer,
            line: Vec::new(),
            number,
            offset,
            next_offset: offset,
        };
        let header = if lines.next()? { parse_header(lines.current()) } else { Err(None) };
        let version = header.map_err(|problem| match problem {
            Some(kind) => Error::at(lines.offset, kind),
            None => lines.error("expected the header of a trace, \"Trace Go1.N\"".to_owned()),
        })?;
        let types = (1..=u8::MAX)
            .map(EventType)
            .filter_map(|ty| Some((version.spec(ty)?.name.as_bytes(), ty)))
            .collect();
        Ok(Self { lines, version, types, failed: false, args: Vec::new(), data: Vec::new() })
    }

    /// The version of the trace.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The number of the last line of the last event, from 1.
    pub fn line(&self) -> u64 {
        self.lines.number
    }

    /// Returns the next event; `None` at the end, and after an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Text`] for a malformed line, [`ErrorKind::Io`], and [`ErrorKind::Limit`].
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, Error> {
        if self.failed {
            return Ok(None);
        }
        match self.parse() {
            Ok(None) => Ok(None),
            Ok(Some((ty, has_data))) => Ok(Some(Event {
                version: self.version,
                ty,
                args: &self.args,
                data: has_data.then_some(&self.data),
            })),
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }

    fn parse(&mut self) -> Result<Option<(EventType, bool)>, Error> {
        if !self.lines.next()? {
            return Ok(None);
        }
        let (name, rest) = split_word(self.lines.current());
        let Some(&ty) = self.types.get(name) else {
            let message = format!("{} has no event {:?}", self.version, shown(name));
            return Err(self.lines.error(message));
        };
        let spec = ty.entry();
        self.args.clear();
        parse_args(rest, spec.args, &mut self.args)
            .map_err(|problem| self.lines.error(format!("{ty}: {problem}")))?;
        if spec.is_stack {
            // As in the binary form, a negative number means none.
            let frames = self.args.get(1).map_or(0, |&n| i64::try_from(n).unwrap_or(0));
            for _ in 0..frames {
                self.lines.expect(ty, "a frame of the stack")?;
                if self.args.len() >= self.lines.limit / 8 {
                    let limit = self.lines.limit;
                    let kind = ErrorKind::limit("the size of a stack in bytes (max_buffer)", limit);
                    return Err(Error::at(self.lines.offset, kind));
                }
                parse_args(self.lines.current(), &FRAME_FIELDS, &mut self.args)
                    .map_err(|problem| self.lines.error(format!("frame of {ty}: {problem}")))?;
            }
        }
        if spec.has_data {
            self.lines.expect(ty, "a line \"data=…\"")?;
            self.data.clear();
            parse_data(self.lines.current(), &mut self.data).ok_or_else(|| {
                let line = shown(trim(self.lines.current()));
                self.lines.error(format!("{ty}: expected data=\"…\", found {line:?}"))
            })?;
        }
        Ok(Some((ty, spec.has_data)))
    }
}

impl<R> fmt::Debug for TextReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextReader")
            .field("version", &self.version)
            .field("line", &self.lines.number)
            .finish_non_exhaustive()
    }
}

/// The lines of a text, without empty lines and comments.
struct Lines<R> {
    source: BufReader<R>,
    limit: usize,
    line: Vec<u8>,
    number: u64,
    offset: u64,
    next_offset: u64,
}

impl<R: Read> Lines<R> {
    /// Moves to the next line; `false` at the end.
    fn next(&mut self) -> Result<bool, Error> {
        loop {
            self.line.clear();
            self.offset = self.next_offset;
            let mut source = (&mut self.source).take(self.limit as u64 + 1);
            let len = source
                .read_until(b'\n', &mut self.line)
                .map_err(|error| Error::at(self.next_offset, error))?;
            if len == 0 {
                return Ok(false);
            }
            self.number += 1;
            self.next_offset += len as u64;
            if len > self.limit {
                let kind =
                    ErrorKind::limit("the length of a line in bytes (max_buffer)", self.limit);
                return Err(Error::at(self.offset, kind));
            }
            let text = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            self.line.truncate(text.len());
            if !split_word(&self.line).0.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Moves to the next line, which must exist.
    fn expect(&mut self, ty: EventType, what: &str) -> Result<(), Error> {
        if self.next()? { Ok(()) } else { Err(self.error(format!("{ty}: {what} is missing"))) }
    }

    fn current(&self) -> &[u8] {
        &self.line
    }

    fn error(&self, message: String) -> Error {
        let kind = ErrorKind::Text { line: self.number, message };
        Error::new(kind, Position { offset: self.offset, ..Position::default() })
    }
}

/// Parses the version in a header; `Err(None)` if this is not a header.
fn parse_header(line: &[u8]) -> Result<Version, Option<ErrorKind>> {
    let (word, rest) = split_word(line);
    let (version, rest) = split_word(rest);
    let minor = version.strip_prefix(b"Go1.").and_then(parse_integer).ok_or(None)?;
    if word != b"Trace" || !trim(rest).is_empty() {
        return Err(None);
    }
    u32::try_from(minor)
        .ok()
        .and_then(Version::from_minor)
        .ok_or(Some(ErrorKind::UnsupportedVersion(minor)))
}

/// Parses `name=value` for each of `names`, and rejects further text.
fn parse_args(line: &[u8], names: &[&str], args: &mut Vec<u64>) -> Result<(), String> {
    let mut rest = line;
    for &name in names {
        let (word, after) = split_word(rest);
        let value = word
            .strip_prefix(name.as_bytes())
            .and_then(|word| word.strip_prefix(b"="))
            .ok_or_else(|| format!("expected the argument {name:?}, found {:?}", shown(word)))?;
        let value = parse_integer(value)
            .ok_or_else(|| format!("{name} is {:?}, not an integer", shown(value)))?;
        args.push(value);
        rest = after;
    }
    match trim(rest) {
        b"" => Ok(()),
        rest => Err(format!("unexpected {:?} after the arguments", shown(rest))),
    }
}

/// Parses `data="…"`.
fn parse_data(line: &[u8], data: &mut Vec<u8>) -> Option<()> {
    let (name, value) = line.split_once_str(b"=")?;
    (trim(name) == b"data").then_some(())?;
    unquote(trim(value), data)
}

/// Digits only, as in `strconv.ParseUint` with base 10.
fn parse_integer(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// Splits off the first word of a line. A word ends before white space or `#`; where that is the
/// first character, there is no word.
fn split_word(line: &[u8]) -> (&[u8], &[u8]) {
    let line = line.trim_start_with(char::is_whitespace);
    let end = line
        .char_indices()
        .find(|&(_, _, c)| c == '#' || c.is_whitespace())
        .map_or(line.len(), |(start, ..)| start);
    if end == 0 { (b"", b"") } else { line.split_at(end) }
}

/// Returns `text` without surrounding white space.
pub(super) fn trim(text: &[u8]) -> &[u8] {
    text.trim_with(char::is_whitespace)
}

/// Returns the part of the input that a message shows.
fn shown(text: &[u8]) -> &BStr {
    BStr::new(text.get(..100).unwrap_or(text))
}

/// Writes the text form of a trace.
///
/// The text is Go's, except that an event without its data gets an empty `data` line, so that every
/// trace that can be written can be read back.
#[derive(Debug)]
pub struct TextWriter<W> {
    sink: W,
    version: Version,
    buffer: Vec<u8>,
}

impl<W: Write> TextWriter<W> {
    /// Writes the header line of a trace of this version.
    ///
    /// # Errors
    ///
    /// [`WriteError::Io`].
    pub fn new(mut sink: W, version: Version) -> Result<Self, WriteError> {
        writeln!(sink, "Trace Go1.{}", version.minor())?;
        Ok(Self { sink, version, buffer: Vec::new() })
    }

    /// Writes one event.
    ///
    /// # Errors
    ///
    /// A [`WriteError`] if the event does not belong to the trace's version, or if the sink fails.
    pub fn write_event(&mut self, event: Event<'_>) -> Result<(), WriteError> {
        check_version(self.version, event)?;
        let Event { version, ty, data, .. } = event;
        let spec = spec_of(version, ty).filter(|spec| !spec.name.is_empty());
        let spec = spec.ok_or(WriteError::NoSuchEvent { version, ty })?;
        self.buffer.clear();
        event.append_text(&mut self.buffer);
        if spec.has_data && data.is_none() {
            append_data(b"", &mut self.buffer);
        }
        self.buffer.push(b'\n');
        Ok(self.sink.write_all(&self.buffer)?)
    }

    /// Returns the sink.
    pub fn into_inner(self) -> W {
        self.sink
    }
}

/// Converts the text form of a trace to its bytes, which [`Read`] returns.
///
/// Errors in the text are reported as [`io::Error`]s that contain an [`Error`], after the bytes of
/// all preceding events.
#[derive(Debug)]
pub struct TextToWire<R> {
    text: TextReader<R>,
    bytes: Vec<u8>,
    taken: usize,
    error: Option<Error>,
}

impl<R: Read> TextToWire<R> {
    /// Converts the text that `source` provides.
    ///
    /// # Errors
    ///
    /// As [`TextReader::new`].
    pub fn new(source: R) -> Result<Self, Error> {
        Ok(TextReader::new(source)?.into())
    }
}

impl<R: Read> From<TextReader<R>> for TextToWire<R> {
    fn from(text: TextReader<R>) -> Self {
        let bytes = text.version().header().to_vec();
        Self { text, bytes, taken: 0, error: None }
    }
}

impl<R: Read> Read for TextToWire<R> {
    #[expect(
        clippy::indexing_slicing,
        reason = "what is taken is no more than there is, and the length is the least of both"
    )]
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
            while self.bytes.len() < out.len().min(64 << 10) && self.error.is_none() {
                match self.text.next_event() {
                    Ok(Some(event)) => {
                        event.append_wire(&mut self.bytes).map_err(io::Error::other)?;
                    }
                    Ok(None) => break,
                    Err(error) => self.error = Some(error),
                }
            }
        }
        let pending = &self.bytes[self.taken..];
        if pending.is_empty() {
            if let Some(error) = self.error.take() {
                return Err(io::Error::other(error));
            }
        }
        let len = pending.len().min(out.len());
        out[..len].copy_from_slice(&pending[..len]);
        self.taken += len;
        Ok(len)
    }
}
