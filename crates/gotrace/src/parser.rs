//! The reader without I/O.

use crate::error::Error;
use crate::event::{Event, Record};
use crate::header;
use crate::reader::Core;
use crate::source::{Pushed, Source};
use crate::v1::V1;
use crate::version::Version;
use std::mem;
use trace_common::Limits;

/// Reads a trace without I/O: push bytes in chunks of any size, and pull events.
///
/// For traces that arrive over an asynchronous connection, or in callbacks. It returns the events
/// of a [`Reader`](crate::Reader), those of a generation (about a second of the traced program's
/// execution) when all of it has been pushed. From Go 1.26 on a generation ends with a mark; earlier
/// ones are known to be complete when the first batch of the next one has been pushed, or after
/// [`Parser::finish`]. A v1 trace (Go ≤ 1.21) returns no event before [`Parser::finish`].
///
/// ```
/// # fn main() -> Result<(), gotrace::Error> {
/// # let trace: &[u8] = include_bytes!("../tests/data/shop.trace");
/// # let mut events = 0;
/// let mut parser = gotrace::Parser::new();
/// for chunk in trace.chunks(4096) {
///     parser.push(chunk);
///     while let Some(event) = parser.next_event()? {
///         println!("{event}");
///         # events += 1;
///     }
/// }
/// parser.finish();
/// while let Some(event) = parser.next_event()? {
///     println!("{event}");
///     # events += 1;
/// }
/// # assert_eq!(events, gotrace::Reader::new(trace)?.count());
/// # Ok(())
/// # }
/// ```
///
/// The first error ends the trace. To resume after damage, use
/// [`Reader::recover`](crate::Reader::recover), which searches the bytes that follow.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    finished: bool,
    state: State,
    /// The event that was returned last.
    event: Record,
}

#[derive(Debug)]
enum State {
    /// Not all of the bytes that the first event needs have been pushed.
    Opening(Source<Pushed>),
    Reading(Box<Core<Pushed>>),
    /// The header was invalid.
    Failed,
}

impl Parser {
    /// A parser at the start of a trace, with the default [`Limits`].
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    /// As [`Parser::new`] with custom `limits`: see [`Reader::with_limits`]. Pushed bytes that are
    /// not yet returned as events count for `max_buffer`.
    ///
    /// [`Reader::with_limits`]: crate::Reader::with_limits
    pub fn with_limits(limits: Limits) -> Self {
        let source = Source::new(Pushed, limits.max_buffer);
        let (state, event) = (State::Opening(source), Record::sync(0, 0, false));
        Self { limits, finished: false, state, event }
    }

    /// Adds bytes of the trace. They are copied once.
    ///
    /// Pull all events before the next call: otherwise the bytes are held. Bytes after
    /// [`Parser::finish`], or after an error, are ignored.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.finished {
            return;
        }
        match &mut self.state {
            State::Opening(source) => source.push(bytes),
            State::Reading(core) => core.push(bytes),
            State::Failed => {}
        }
    }

    /// Marks the end of the trace: the last events can then be returned, and a truncated trace is
    /// detected.
    pub fn finish(&mut self) {
        self.finished = true;
        if let State::Reading(core) = &mut self.state {
            core.finish();
        }
    }

    /// The version of the trace's format; `None` before its header has been pushed and an event
    /// pulled.
    pub const fn version(&self) -> Option<Version> {
        match &self.state {
            State::Reading(core) => Some(core.version),
            State::Opening(_) | State::Failed => None,
        }
    }

    /// Number of generations that are missing between others: see
    /// [`Reader::missing_generations`](crate::Reader::missing_generations).
    pub const fn missing_generations(&self) -> u64 {
        match &self.state {
            State::Reading(core) => core.gaps.missing,
            State::Opening(_) | State::Failed => 0,
        }
    }

    /// Returns the next event; `None` if more bytes are needed, or at the end of the trace.
    ///
    /// # Errors
    ///
    /// The error in the trace, with its position: those of [`Reader::new`] and
    /// [`Reader::next_event`], without errors of an input. Events that were returned before are
    /// valid. There are none after an error.
    ///
    /// [`Reader::new`]: crate::Reader::new
    /// [`Reader::next_event`]: crate::Reader::next_event
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, Error> {
        if let State::Opening(_) = self.state {
            self.open()?;
        }
        let State::Reading(core) = &mut self.state else { return Ok(None) };
        let found = core.next_event(&mut self.event)?;
        Ok(found.then_some(Event { table: &core.table, record: &self.event }))
    }

    /// Reads the header once it is complete, and a v1 trace once all of it is.
    #[cold]
    fn open(&mut self) -> Result<(), Error> {
        let State::Opening(source) = &self.state else { return Ok(()) };
        let bytes = source.window();
        let has_all = match header::parse(bytes) {
            Ok(version) => !version.is_v1() || bytes.len() > V1::max_len(&self.limits),
            Err(_) => bytes.len() >= Version::HEADER_LEN, // the header is invalid
        };
        if has_all || self.finished {
            let State::Opening(source) = mem::replace(&mut self.state, State::Failed) else {
                return Ok(());
            };
            let mut core = Core::pushed(source, self.limits)?;
            if self.finished {
                core.finish();
            }
            self.state = State::Reading(Box::new(core));
        }
        Ok(())
    }
}

impl Default for Parser {
    fn default() -> Self {
        Self::new()
    }
}
