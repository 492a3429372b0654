use super::text::trim;
use super::{TextReader, TextToWire};
use crate::error::{Error, ErrorKind, Position};
use crate::quote::unquote;
use bstr::{BStr, BString, ByteSlice};

/// A `.test` file of Go's own reader tests: a trace as text and the expected result of a reader.
///
/// The file is a txtar archive of two files, `expect` and `trace`.
///
/// ```
/// use gotrace::raw::{Expectation, TestFile};
///
/// let file = b"-- expect --\nFAILURE \"broken .*\"\n-- trace --\nTrace Go1.22\n";
/// let test = TestFile::parse(file)?;
/// assert_eq!(*test.expectation(), Expectation::Failure("broken .*".into()));
/// let reader = gotrace::raw::Reader::new(test.to_wire()?)?;
/// # assert_eq!(reader.version(), gotrace::Version::Go122);
/// # Ok::<(), gotrace::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TestFile<'a> {
    expectation: Expectation,
    trace: &'a [u8],
    /// Offset of the text of the trace.
    lines_before: u64,
    offset: u64,
}

/// The expected result of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// The reader accepts the whole trace.
    Success,
    /// The reader fails; Go's error message matches this regular expression.
    Failure(BString),
}

impl<'a> TestFile<'a> {
    /// Parses a `.test` file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Text`] if the file is not such an archive or the expectation is malformed.
    #[expect(clippy::indexing_slicing, reason = "the rests are ends of the file")]
    pub fn parse(file: &'a [u8]) -> Result<Self, Error> {
        let fail = |rest: &[u8], message: &str| {
            let before = &file[..file.len() - rest.len()];
            let line = 1 + before.find_iter(b"\n").count() as u64;
            let kind = ErrorKind::Text { line, message: message.to_owned() };
            Error::new(kind, Position { offset: before.len() as u64, ..Position::default() })
        };
        let Some((_, b"expect", at_expect)) = split_file(file) else {
            return Err(fail(file, "expected \"-- expect --\": not a test of a trace"));
        };
        let Some((expect, b"trace", trace)) = split_file(at_expect) else {
            return Err(fail(at_expect, "expected \"-- trace --\" after the expectation"));
        };
        if let Some((_, _, rest)) = split_file(trace) {
            return Err(fail(rest, "a third file in a test of a trace"));
        }
        let expectation = Expectation::parse(expect)
            .ok_or_else(|| fail(at_expect, "expected SUCCESS or FAILURE \"…\""))?;
        let before = &file[..file.len() - trace.len()];
        let lines_before = before.find_iter(b"\n").count() as u64;
        Ok(Self { expectation, trace, lines_before, offset: before.len() as u64 })
    }

    /// The expected result of a reader.
    pub fn expectation(&self) -> &Expectation {
        &self.expectation
    }

    /// The text of the trace.
    pub fn text(&self) -> &'a BStr {
        BStr::new(self.trace)
    }

    /// Returns a reader of the text. Its errors have lines and offsets of the whole file.
    ///
    /// # Errors
    ///
    /// As [`TextReader::new`].
    pub fn to_text_reader(&self) -> Result<TextReader<&'a [u8]>, Error> {
        TextReader::at(self.trace, self.lines_before, self.offset)
    }

    /// Returns the bytes of the trace.
    ///
    /// # Errors
    ///
    /// As [`TextReader::new`].
    pub fn to_wire(&self) -> Result<TextToWire<&'a [u8]>, Error> {
        Ok(self.to_text_reader()?.into())
    }
}

impl Expectation {
    /// The first line of the file; an empty file expects success.
    fn parse(file: &[u8]) -> Option<Self> {
        let Some(line) = file.lines().next() else { return Some(Self::Success) };
        match line.split_once_str(" ").unwrap_or((line, b"")) {
            (b"SUCCESS", _) => Some(Self::Success),
            (b"FAILURE", pattern) => {
                let mut text = Vec::new();
                unquote(pattern, &mut text)?;
                Some(Self::Failure(text.into()))
            }
            _ => None,
        }
    }
}

/// Splits a txtar archive at its next line `-- name --`: the text before, the name, the text after.
#[expect(clippy::indexing_slicing, reason = "both positions are of a line found in the archive")]
fn split_file(archive: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut start = 0;
    loop {
        let rest = &archive[start..];
        let end = rest.find_byte(b'\n');
        let line = &rest[..end.unwrap_or(rest.len())];
        let name = line.strip_prefix(b"-- ").and_then(|line| line.strip_suffix(b" --"));
        if let Some(name) = name.map(trim).filter(|name| !name.is_empty()) {
            return Some((&archive[..start], name, &rest[end.map_or(rest.len(), |end| end + 1)..]));
        }
        start += end? + 1;
    }
}
