use std::io::{self, Read};
use std::ops::ControlFlow;

use crate::event::Event;
use crate::parser::{Item, Options, Parser};
use crate::state::Stats;
use crate::{Error, Result, Trace};

/// Bytes per read of the source.
const CHUNK: usize = 1 << 18;

/// Reads a NetTrace stream from a [`Read`]: a file, a slice, the socket of a session.
///
/// It waits for no more data than the current block needs. With [`Order::Stream`](crate::Order::Stream),
/// events of a live session arrive as soon as the runtime has written them; with
/// [`Order::Time`](crate::Order::Time), the last events of a process that becomes idle are held until its
/// next event or [`Reader::flush`]. It has its own buffer: do not wrap the source in a `BufReader`.
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
    /// # Errors
    ///
    /// Each error is returned once. After a damaged block the next call resumes with the next
    /// block. A truncated stream yields every event before the truncation, then
    /// [`crate::ErrorKind::Truncated`], then `None`. An error of the source is
    /// [`crate::ErrorKind::Io`]; the next call reads again.
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

    /// The next event, or `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::next_item`].
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        while !self.parser.advance_to_event()? {
            if !self.fill()? {
                return Ok(None);
            }
        }
        Ok(Some(self.parser.event()))
    }

    /// Calls `each` with every remaining event. [`Reader::try_for_each`] can stop early.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::next_item`]; `each` has been called with the events before.
    pub fn for_each(&mut self, mut each: impl FnMut(Event<'_>)) -> Result<()> {
        while let Some(event) = self.next_event()? {
            each(event);
        }
        Ok(())
    }

    /// Calls `each` with the remaining events until it returns [`ControlFlow::Break`]. Reading can
    /// continue after that.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::next_item`]; `each` has been called with the events before.
    pub fn try_for_each<B>(
        &mut self,
        mut each: impl FnMut(Event<'_>) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>> {
        while let Some(event) = self.next_event()? {
            if let ControlFlow::Break(value) = each(event) {
                return Ok(ControlFlow::Break(value));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Has the next calls return the events that [`Order::Time`](crate::Order::Time) holds back, although
    /// older events may follow: see [`Parser::flush`].
    ///
    /// For a live source that has no data for now: give its reads a time limit, and call this after an
    /// error of the kind [`io::ErrorKind::WouldBlock`]. Nothing is returned early while only a part of a
    /// block has come, because the rest is on its way.
    pub fn flush(&mut self) {
        if self.parser.is_between_blocks() {
            self.parser.flush();
        }
    }

    /// Statistics of the stream so far.
    pub fn stats(&self) -> &Stats {
        self.parser.stats()
    }

    /// The stream's `Trace` object, once it was read.
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

    /// The source, to read what the parser does not: bytes that are read here are missing in the
    /// stream.
    pub fn source_mut(&mut self) -> &mut R {
        &mut self.source
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
