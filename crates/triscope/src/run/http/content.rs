//! The content of a reply, without what divides it into chunks.
//!
//! Source: RFC 9112, sections 6 and 7.

use std::io::{self, BufRead, Read};

/// Bytes of the line before a chunk: its size, and extensions, which are ignored.
const MAX_LINE: usize = 4 << 10;

/// Bytes of the lines after the last chunk, which are ignored.
const MAX_TRAILERS: usize = 16 << 10;

/// Where the content of a reply ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// With the connection.
    Connection,
    /// After this number of bytes.
    Bytes(u64),
    /// With a chunk of size 0.
    Chunks,
}

/// What the headers of a reply say about the length of its content.
#[derive(Debug)]
pub(super) struct Framing {
    /// HTTP/1.0 has no chunks.
    has_chunks: bool,
    bytes: Option<u64>,
    is_chunked: bool,
    /// Why it cannot be read.
    fault: Option<String>,
}

impl Framing {
    /// That of a reply with this status line.
    pub(super) fn of(status: &str) -> Self {
        let has_chunks = !status.starts_with("HTTP/1.0");
        Self { has_chunks, bytes: None, is_chunked: false, fault: None }
    }

    /// The next header.
    pub(super) fn header(&mut self, line: &str) {
        let Some((name, values)) = line.split_once(':') else { return };
        let (name, values) = (name.trim_end(), values.split(',').map(str::trim));
        if name.eq_ignore_ascii_case("Content-Length") {
            values.for_each(|value| self.content_length(value));
        } else if name.eq_ignore_ascii_case("Transfer-Encoding") && self.has_chunks {
            values.for_each(|value| self.transfer_encoding(value));
        }
    }

    fn content_length(&mut self, value: &str) {
        let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
        let bytes = value.parse::<u64>().ok().filter(|_| is_number);
        // A proxy may repeat it.
        if bytes.is_none() || self.bytes.is_some() && self.bytes != bytes {
            self.fault = Some(format!("the reply has the length {value:?}"));
        }
        self.bytes = bytes;
    }

    fn transfer_encoding(&mut self, value: &str) {
        if value.eq_ignore_ascii_case("chunked") {
            self.is_chunked = true;
        } else if !value.eq_ignore_ascii_case("identity") {
            self.fault = Some(format!("the transfer encoding {value:?} was not asked for"));
        }
    }

    /// The length, if there is a content with this status.
    pub(super) fn length(self, code: Option<u16>) -> io::Result<Length> {
        match self {
            _ if matches!(code, Some(204 | 304)) => Ok(Length::Bytes(0)),
            Self { fault: Some(why), .. } => Err(invalid(why)),
            Self { is_chunked: true, .. } => Ok(Length::Chunks),
            Self { bytes: Some(bytes), .. } => Ok(Length::Bytes(bytes)),
            _ => Ok(Length::Connection),
        }
    }
}

/// The next part of a reply.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// Content, up to the end of the connection.
    All,
    /// This number of bytes of content, which are the last ones.
    Last(u64),
    /// A line with the size of a chunk.
    Size,
    /// This number of bytes of a chunk.
    Chunk(u64),
    /// The end of the line after a chunk.
    ChunkEnd,
    /// Lines after the last chunk, of this number of bytes at most.
    Trailers(usize),
}

/// The content of a reply. A content that is not complete ends with an error of kind `UnexpectedEof`.
#[derive(Debug)]
pub(crate) struct Content<R> {
    stream: R,
    next: Next,
    /// What has come of a line: a read that a time limit ended is repeated.
    line: Vec<u8>,
}

impl<R: BufRead> Content<R> {
    pub(super) const fn new(stream: R, length: Length) -> Self {
        let next = match length {
            Length::Connection => Next::All,
            Length::Bytes(bytes) => Next::Last(bytes),
            Length::Chunks => Next::Size,
        };
        Self { stream, next, line: Vec::new() }
    }

    pub(super) fn stream(&mut self) -> &mut R {
        &mut self.stream
    }

    /// Reads a part of the next bytes, of which there are `left`. Returns its length, and how many are left.
    fn part(&mut self, left: u64, out: &mut [u8]) -> io::Result<(usize, u64)> {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        let read = self.stream.read(out.get_mut(..len).unwrap_or_default())?;
        if read == 0 {
            return Err(cut_off());
        }
        Ok((read, left.saturating_sub(read as u64)))
    }

    /// Reads a line of at most `max` bytes, and returns it without its end. One that does not come at once is an error of
    /// kind `Interrupted`: who repeats the read can look at a limit of time.
    fn line(&mut self, max: usize) -> io::Result<Vec<u8>> {
        let part = self.stream.fill_buf()?;
        let is_end = part.is_empty();
        let room = max.saturating_sub(self.line.len()).min(part.len());
        let part = part.get(..room).unwrap_or_default();
        let len = part.iter().position(|byte| *byte == b'\n').map_or(room, |at| at + 1);
        self.line.extend_from_slice(part.get(..len).unwrap_or_default());
        self.stream.consume(len);
        let Some(line) = self.line.strip_suffix(b"\n") else {
            return Err(match () {
                () if self.line.len() >= max => {
                    invalid("a line between the chunks of the reply is too long")
                }
                () if is_end => cut_off(),
                () => io::ErrorKind::Interrupted.into(),
            });
        };
        let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
        self.line.clear();
        Ok(line)
    }

    /// Reads the line after the last chunk. The content is complete without it.
    fn trailer(&mut self, max: usize) -> io::Result<Next> {
        match self.line(max) {
            Ok(line) if line.is_empty() => Ok(Next::Last(0)),
            Ok(line) => Ok(Next::Trailers(max.saturating_sub(line.len() + 1))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Next::Last(0)),
            Err(error) => Err(error),
        }
    }
}

impl<R: BufRead> Read for Content<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            self.next = match self.next {
                _ if out.is_empty() => return Ok(0),
                Next::All => return self.stream.read(out),
                Next::Last(0) => return Ok(0),
                Next::Last(left) => {
                    let (len, left) = self.part(left, out)?;
                    self.next = Next::Last(left);
                    return Ok(len);
                }
                Next::Chunk(left) => {
                    let (len, left) = self.part(left, out)?;
                    self.next = if left == 0 { Next::ChunkEnd } else { Next::Chunk(left) };
                    return Ok(len);
                }
                Next::ChunkEnd => match self.line(MAX_LINE)?.is_empty() {
                    true => Next::Size,
                    false => return Err(invalid("a chunk of the reply is longer than its size")),
                },
                Next::Size => match size(&self.line(MAX_LINE)?) {
                    Some(0) => Next::Trailers(MAX_TRAILERS),
                    Some(size) => Next::Chunk(size),
                    None => return Err(invalid("a chunk of the reply has no size")),
                },
                Next::Trailers(max) => match self.trailer(max)? {
                    // As a line that does not come at once.
                    rest @ Next::Trailers(_) => {
                        self.next = rest;
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    end => end,
                },
            };
        }
    }
}

/// The size of a chunk: hexadecimal digits, up to the extensions.
fn size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    let is_number = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
    u64::from_str_radix(digits, 16).ok()
}

/// The server was killed, or its proxy.
pub(super) fn cut_off() -> io::Error {
    let why = "the server closed the connection before the end of the reply";
    io::Error::new(io::ErrorKind::UnexpectedEof, why)
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    /// The content of a reply, and the error that ends it.
    fn read(stream: impl Read, length: Length) -> (Vec<u8>, Option<io::Error>) {
        let mut content = Content::new(BufReader::with_capacity(5, stream), length);
        let (mut all, mut part) = (Vec::new(), [0; 7]);
        loop {
            match content.read(&mut part) {
                Ok(0) => return (all, None),
                Ok(len) => all.extend_from_slice(&part[..len]),
                Err(error) if is_repeated(&error) => {}
                Err(error) => return (all, Some(error)),
            }
        }
    }

    fn is_repeated(error: &io::Error) -> bool {
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
    }

    fn chunks(stream: &[u8]) -> (String, Option<String>) {
        let (content, error) = read(stream, Length::Chunks);
        (String::from_utf8(content).unwrap(), error.map(|error| error.to_string()))
    }

    fn good(content: &str) -> (String, Option<String>) {
        (content.to_owned(), None)
    }

    #[test]
    fn chunks_are_joined() {
        assert_eq!(chunks(b"5\r\nhello\r\n8\r\n, world!\r\n0\r\n\r\n"), good("hello, world!"));
        // Extensions, trailers, capital letters, zeros, and lines that end without CR.
        assert_eq!(chunks(b"1;a=\"b\" ;c\r\nx\r\n0;d\r\nE: f\r\nG: h\r\n\r\nrest"), good("x"));
        assert_eq!(chunks(b"00000000000000000A \n0123456789\n0000\n\n"), good("0123456789"));
        assert_eq!(chunks(b"0\r\n\r\n"), good(""));
        // All of the content is there.
        assert_eq!(chunks(b"1\r\nx\r\n0\r\n"), good("x"));
        assert_eq!(chunks(b"1\r\nx\r\n0\r\nE: f"), good("x"));
    }

    #[test]
    fn a_content_that_is_not_complete_ends_with_an_error() {
        let stream = b"5\r\nhello\r\n1\r\n!\r\n";
        for len in 0..=stream.len() {
            let (content, error) = read(&stream[..len], Length::Chunks);
            assert!(b"hello!".starts_with(&content[..]), "{len}");
            assert_eq!(error.unwrap().kind(), io::ErrorKind::UnexpectedEof, "{len}");
        }
        let (content, error) = read(&b"hello"[..], Length::Bytes(6));
        assert_eq!(content, b"hello");
        assert_eq!(error.unwrap().kind(), io::ErrorKind::UnexpectedEof);
        assert!(read(&b"hello"[..], Length::Bytes(5)).1.is_none());
        assert_eq!(read(&b"hello"[..], Length::Bytes(2)).0, b"he");
        assert!(read(&b"hello"[..], Length::Connection).1.is_none());
    }

    #[test]
    fn hostile_chunks_are_errors() {
        for size in ["", " ", ";a", "-1", "+1", "0x1", "1 1", "g", "\u{e9}", "10000000000000000"] {
            let (content, error) = chunks(format!("{size}\r\nx\r\n0\r\n\r\n").as_bytes());
            let why = "a chunk of the reply has no size".to_owned();
            assert_eq!((content.as_str(), error), ("", Some(why)), "{size:?}");
        }
        // Nothing is allocated for what it says.
        let (content, error) = chunks(b"ffffffffffffffff\r\nx");
        assert_eq!((content.as_str(), error), ("x", Some(cut_off().to_string())));
        let (content, error) = chunks(b"1\r\nxy\r\n0\r\n\r\n");
        let why = "a chunk of the reply is longer than its size".to_owned();
        assert_eq!((content.as_str(), error), ("x", Some(why)));
        let long = "a line between the chunks of the reply is too long";
        let line = |len| format!("1;{}\r\nx\r\n0\r\n\r\n", "a".repeat(len));
        assert_eq!(chunks(line(MAX_LINE - 4).as_bytes()), good("x"));
        assert_eq!(chunks(line(MAX_LINE - 3).as_bytes()).1.as_deref(), Some(long));
        let trailers = "A: b\n".repeat(MAX_TRAILERS / 5);
        assert_eq!(chunks(format!("0\n{trailers}\n").as_bytes()), good(""));
        let (_, error) = chunks(format!("0\n{trailers}A: b\n\n").as_bytes());
        assert_eq!(error.as_deref(), Some(long));
    }

    /// Gives one byte at a time, after an error of a time limit.
    struct Slow<'a> {
        bytes: &'a [u8],
        is_late: bool,
    }

    impl Read for Slow<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.is_late = !self.is_late;
            if self.is_late {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let len = out.len().min(1);
            self.bytes.read(&mut out[..len])
        }
    }

    #[test]
    fn a_read_that_a_time_limit_ended_is_repeated() {
        let bytes = &b"A;long=extension\r\n0123456789\r\n1\r\n!\r\n0\r\nB: c\r\n\r\n"[..];
        let (content, error) = read(Slow { bytes, is_late: false }, Length::Chunks);
        assert_eq!(content, b"0123456789!");
        assert!(error.is_none(), "{error:?}");
    }

    /// A server could send a byte of a line at a time for hours.
    #[test]
    fn a_line_that_does_not_come_at_once_ends_a_read() {
        let bytes = &b"1;a=b\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n"[..];
        let stream = BufReader::with_capacity(1, bytes);
        let (mut content, mut reads, mut found) = (Content::new(stream, Length::Chunks), 0, 0);
        loop {
            reads += 1;
            match content.read(&mut [0; 7]) {
                Ok(0) => break,
                Ok(len) => found += len,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::Interrupted),
            }
        }
        // One for each byte, but for those that end a line.
        assert!(found == 1 && reads > bytes.len() - 7, "{reads}");
    }

    fn length(status: &str, headers: &[&str]) -> Result<Length, String> {
        let mut framing = Framing::of(status);
        headers.iter().for_each(|line| framing.header(line));
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        framing.length(code).map_err(|error| error.to_string())
    }

    #[test]
    fn headers_have_the_length() {
        let (ok, old) = ("HTTP/1.1 200 OK\r\n", "HTTP/1.0 200 OK\r\n");
        let chunked = "transfer-encoding: Chunked\r\n";
        assert_eq!(length(ok, &["X: y\r\n", "no header\r\n"]), Ok(Length::Connection));
        assert_eq!(length(ok, &["Content-length:7\r\n"]), Ok(Length::Bytes(7)));
        assert_eq!(length(old, &["Content-Length : 7 \r\n"]), Ok(Length::Bytes(7)));
        assert_eq!(length(ok, &["Content-Length: 7, 7\r\n"; 2]), Ok(Length::Bytes(7)));
        assert_eq!(length(ok, &[chunked, "Content-Length: 7\r\n"]), Ok(Length::Chunks));
        assert_eq!(length(ok, &["Transfer-Encoding: identity\r\n"]), Ok(Length::Connection));
        // HTTP/1.0 has none.
        assert_eq!(length(old, &[chunked]), Ok(Length::Connection));
        assert_eq!(length("HTTP/1.1 204 No Content\r\n", &[chunked]), Ok(Length::Bytes(0)));
        for value in ["", "-1", "+1", "0x1", "1 1", "18446744073709551616", "7, 8"] {
            let line = format!("Content-Length: {value}\r\n");
            let error = length(ok, &[line.as_str()]).unwrap_err();
            assert!(error.starts_with("the reply has the length "), "{value}: {error}");
        }
        let error = length(ok, &["Transfer-Encoding: gzip, chunked\r\n"]).unwrap_err();
        assert_eq!(error, "the transfer encoding \"gzip\" was not asked for");
    }

    proptest! {
        #[test]
        fn chunks_of_any_sizes_are_joined(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..10),
            hostile in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut stream = Vec::new();
            for part in &parts {
                stream.extend_from_slice(format!("{:X}\r\n", part.len()).as_bytes());
                stream.extend_from_slice(part);
                stream.extend_from_slice(b"\r\n");
            }
            stream.extend_from_slice(b"0\r\n\r\n");
            let (content, error) = read(&stream[..], Length::Chunks);
            prop_assert!(error.is_none());
            prop_assert_eq!(content, parts.concat());
            let (content, _) = read(&hostile[..], Length::Chunks);
            prop_assert!(content.len() <= hostile.len());
        }
    }
}
