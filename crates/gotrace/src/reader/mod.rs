//! The reader of ordered events.

mod core;
mod ids;

pub use self::core::Loss;
pub(crate) use self::core::{Between, Core};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::event::{Event, OwnedEvent, Record};
use crate::source::Source;
use crate::version::Version;
pub(crate) use ids::missing_id;
use std::io::Read;
use trace_common::{ClockDomain, Limits};

/// Reads the events of a trace in order.
///
/// A reader accepts any [`Read`]: a file, a pipe, a socket, a slice. It does not need a
/// [`BufReader`](std::io::BufReader) around it. It holds one generation of the trace at a time,
/// about a second of the traced program's execution, and returns the events of a generation as soon
/// as the input contains all of it. (A v1 trace, of Go ≤ 1.21, is held as a whole.)
///
/// [`Reader::next_event`] returns borrowed events without an allocation per event; the [`Iterator`]
/// returns [`OwnedEvent`]s.
///
/// The first event of a trace is always a [`Sync`](crate::EventKind::Sync), and so is the last.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut reader = gotrace::Reader::new(std::fs::File::open("trace.out")?)?;
/// while let Some(event) = reader.next_event()? {
///     println!("{event}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reader<R> {
    pub(crate) core: Core<R>,
    /// The event that was returned last.
    pub(crate) event: Record,
}

impl<R: Read> Reader<R> {
    /// Reads the header of a trace from `input`, with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotATrace`] and [`ErrorKind::UnsupportedVersion`] for an invalid header; for a v1
    /// trace, any error in the whole trace.
    pub fn new(input: R) -> Result<Self, Error> {
        Self::with_limits(input, Limits::default())
    }

    /// As [`Reader::new`] with custom `limits` on memory: `max_buffer` bytes of a generation, and
    /// `max_entries` of each of its tables and of live goroutines.
    ///
    /// # Errors
    ///
    /// As [`Reader::new`].
    pub fn with_limits(input: R, limits: Limits) -> Result<Self, Error> {
        let core = Core::new(input, limits)?;
        Ok(Self { core, event: Record::sync(0, 0, false) })
    }

    /// Reads a part of a trace that begins with a generation at `offset`.
    pub(crate) fn within(input: R, version: Version, limits: Limits, offset: u64) -> Self {
        let source = Source::at(offset, input, limits.max_buffer);
        Self { core: Core::of(source, version, limits), event: Record::sync(0, 0, false) }
    }

    /// A reader in this state.
    pub(crate) const fn of(core: Core<R>) -> Self {
        Self { core, event: Record::sync(0, 0, false) }
    }

    /// The version of the trace's format.
    pub const fn version(&self) -> Version {
        self.core.version
    }

    /// The clock of the trace's timestamps.
    ///
    /// For v2 traces this is `CLOCK_MONOTONIC`, as on Linux. Traces recorded on Windows use another
    /// clock, which cannot be detected.
    pub const fn clock_domain(&self) -> ClockDomain {
        if self.core.version.is_v1() { ClockDomain::Local(0) } else { ClockDomain::Monotonic }
    }

    /// Number of generations that are missing between others, by their numbers.
    ///
    /// From Go 1.26 on, Go's own reader skips such a gap silently.
    pub const fn missing_generations(&self) -> u64 {
        self.core.gaps.missing
    }

    /// Number of references of events to lost strings and stacks, in generations that
    /// [`Reader::recover`] has recovered. Those strings and stacks are empty.
    pub const fn unresolved_ids(&self) -> u64 {
        self.core.counts.unresolved_ids
    }

    /// Number of decodable events that are lost: [`Reader::recover`] found no state in which they
    /// are valid, or discarded their generation ([`Loss::events`]).
    pub const fn lost_events(&self) -> u64 {
        self.core.counts.lost_events
    }

    /// Returns the next event; `None` at the end.
    ///
    /// # Errors
    ///
    /// The error in the trace, with its position. Events that were returned before are valid. After
    /// an error there are no more events (`None`), unless [`Reader::recover`] resumes.
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, Error> {
        let found = self.core.next_event(&mut self.event)?;
        Ok(found.then_some(Event { table: &self.core.table, record: &self.event }))
    }

    /// Resumes after the error that [`Reader::next_event`] has just returned and reports what is
    /// lost. `None` if there is no such error, or nothing follows it.
    ///
    /// The reader resumes in the damaged generation if any of it is left, with all intact batches
    /// and with the part of each damaged batch that precedes the damage. Where events that others
    /// depend on are lost, goroutines, procs and threads are put into the state that the next event
    /// implies: a waiting goroutine may start to run without an event that unblocks it. A goroutine
    /// or proc that must exist but that no event names is [`GoId::NONE`](crate::GoId::NONE) or
    /// [`ProcId::NONE`](crate::ProcId::NONE). Lost strings and stacks are empty
    /// ([`Reader::unresolved_ids`] counts them).
    ///
    /// The generation after a damaged one begins like the first of a trace: goroutines change from
    /// [`GoState::Undetermined`](crate::GoState::Undetermined).
    ///
    /// A v1 trace cannot be recovered.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), gotrace::Error> {
    /// let mut reader = gotrace::Reader::new(std::io::stdin())?;
    /// loop {
    ///     match reader.next_event() {
    ///         Ok(Some(event)) => println!("{event}"),
    ///         Ok(None) => break,
    ///         Err(error) => {
    ///             eprintln!("{error}");
    ///             let Some(loss) = reader.recover()? else { break };
    ///             eprintln!("{} bytes lost", loss.bytes);
    ///         }
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Only errors of the input itself ([`ErrorKind::Io`]) and [`ErrorKind::Limit`].
    pub fn recover(&mut self) -> Result<Option<Loss>, Error> {
        self.core.recover()
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<OwnedEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_event().map(|event| event.map(Event::to_owned)).transpose()
    }
}
