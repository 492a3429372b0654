use std::io::{self, Read};

use crate::event::Event;
use crate::parser::{Item, Options, Parser};
use crate::session::Stats;
use crate::{Error, Result, Trace};

/// Bytes to ask of the source at a time.
const CHUNK: usize = 1 << 18;

/// Reads a NetTrace stream from a [`Read`]: a file, a slice, the socket of a session.
///
/// It reads what the source has and waits for no more than the current block needs, so that
/// events of a live session come as soon as the runtime has written them. It buffers itself:
/// wrap nothing in a `BufReader`.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    parser: Parser,
}

impl<R: Read> Reader<R> {
    /// A reader with the default [`Options`]: events in the order of time.
    pub fn new(source: R) -> Self {
        Self::with_options(source, Options::new())
    }

    /// A reader with options.
    pub fn with_options(source: R, options: Options) -> Self {
        Self { source, parser: Parser::new(options) }
    }

    /// The next item, or `None` at the end of the stream.
    ///
    /// An error is given once. After one of a damaged block the next call goes on with the
    /// next block; a stream that was cut gives every event before the cut, then
    /// [`crate::ErrorKind::Truncated`], then `None`.
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>> {
        loop {
            if let Some(step) = self.parser.advance()? {
                return Ok(Some(self.parser.view(step)));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// The next event, or `None` at the end of the stream: see [`Reader::next_item`].
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        while !self.parser.advance_to_event()? {
            if !self.fill()? {
                return Ok(None);
            }
        }
        Ok(Some(self.parser.event()))
    }

    /// Calls `each` with every event that is left.
    pub fn for_each(&mut self, mut each: impl FnMut(Event<'_>)) -> Result<()> {
        while let Some(event) = self.next_event()? {
            each(event);
        }
        Ok(())
    }

    /// What has been read so far.
    pub fn stats(&self) -> &Stats {
        self.parser.stats()
    }

    /// What the stream says about itself, once that has come.
    pub fn trace(&self) -> Option<&Trace> {
        self.parser.trace()
    }

    /// The parser.
    pub fn parser(&self) -> &Parser {
        &self.parser
    }

    /// The source.
    pub fn source(&self) -> &R {
        &self.source
    }

    #[cold]
    fn fill(&mut self) -> Result<bool> {
        if self.parser.is_finished() {
            return Ok(false);
        }
        let source = &mut self.source;
        let filled = loop {
            match self.parser.push_with(CHUNK, |buf| source.read(buf)) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        match filled {
            Ok(0) => self.parser.finish(),
            Ok(_) => {}
            Err(e) => return Err(Error::new(self.parser.input_end(), e.into())),
        }
        Ok(true)
    }
}
