//! Traces of Go 1.11 to 1.21, format v1.
//!
//! The format requires a reader to hold all of a trace: the order of events is known only after the
//! last return from a system call, and strings and stacks come last. The reader holds the bytes and
//! 32 bytes per event; arguments are decoded on demand. The passes:
//!
//! ```text
//!  bytes ──▶ scan ──▶ order ──▶ check ──▶ convert
//!            tables,  one       times,    one event at a time,
//!            samples  sequence  states    in terms of v2
//! ```
//!
//! Verdict and events are those of Go's reader, which converts v1 traces in the same way
//! (`src/internal/trace/tracev1.go` of Go 1.27). Where its result depends on the iteration order of
//! a map (events of several Ps at the same time; the statuses of goroutines that existed before the
//! trace), this reader orders by identifier. Where it panics when an event is accessed, because the
//! event refers to data that is not in the trace, this reader rejects the event.

mod check;
mod convert;
mod event;
mod order;
mod scan;
mod wire;

use crate::error::{Error, ErrorKind, Inconsistency};
use crate::table::Table;
use crate::version::Version;
use convert::Converter;
use event::{Event, Goroutines, Procs};
use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::sync::Arc;
use trace_common::{Cursor, Limits, SeededState};
use wire::{Lead, MAX_ARGS};

/// A v1 trace that was read and checked.
pub(crate) struct V1 {
    version: Version,
    data: Vec<u8>,
    events: Vec<Event>,
    /// Number of events that have been returned.
    position: usize,
    table: Arc<Table>,
    messages: HashMap<Arc<[u8]>, u64>,
    first_built_in: u64,
    broken_stacks: HashMap<u32, u64, SeededState>,
    procs: Procs,
    goroutines: Goroutines,
    converter: Converter,
}

impl V1 {
    /// Reads all of a trace after its header. Errors are found here, before any event is returned,
    /// except for events that no version of the format should have, and those that refer to what is not
    /// in the trace.
    pub(crate) fn read(
        source: impl Read,
        version: Version,
        limits: &Limits,
    ) -> Result<Self, Error> {
        let data = read_all(source, Self::max_len(limits) - Version::HEADER_LEN)?;
        let mut scan = scan::scan(&data, version, limits)?;
        let mut events = order::merge(&data, &mut scan)?;
        check::fix_times(&data, &scan, &mut events)?;
        check::check(&data, &scan, &mut events)?;
        Ok(Self {
            version,
            data,
            events,
            position: 0,
            table: Arc::new(scan.table),
            messages: scan.messages,
            first_built_in: scan.first_built_in,
            broken_stacks: scan.broken_stacks,
            converter: Converter::new(scan.goroutines.ids.len(), scan.procs.ids.len()),
            procs: scan.procs,
            goroutines: scan.goroutines,
        })
    }

    /// The maximum length of a trace, header included.
    pub(crate) fn max_len(limits: &Limits) -> usize {
        Version::HEADER_LEN.saturating_add(limits.max_buffer).min(u32::MAX as usize)
    }

    /// The tables that events refer to.
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The time of the sync event before all others; `None` if there are no others.
    pub(crate) fn first_sync_time(&self) -> Option<i64> {
        self.events.first().map(|event| event.time.wrapping_sub(1))
    }
}

impl fmt::Debug for V1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("V1")
            .field("version", &self.version)
            .field("bytes", &self.data.len())
            .field("events", &self.events.len())
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// Reads to the end of `source`, to the limit, or to the largest offset that fits in 32 bits.
fn read_all(source: impl Read, limit: usize) -> Result<Vec<u8>, Error> {
    let mut data = Vec::new();
    match source.take(limit as u64 + 1).read_to_end(&mut data) {
        Err(error) => Err(match error.downcast::<Error>() {
            Ok(error) => error, // of the reader's own source
            Err(error) => Error::at(offset_of(data.len()), error),
        }),
        Ok(_) if data.len() > limit => {
            let what = "the size of a v1 trace in bytes (max_buffer)";
            Err(Error::at(offset_of(limit), ErrorKind::limit(what, limit)))
        }
        Ok(_) => {
            data.shrink_to_fit();
            Ok(data)
        }
    }
}

/// Converts an index into the bytes after the header to an offset in the trace.
fn offset_of(index: usize) -> u64 {
    (Version::HEADER_LEN + index) as u64
}

/// Converts an offset that [`read_all`] has bounded.
fn index(offset: u64) -> u32 {
    offset as u32
}

/// A cursor at the start of `data`.
fn cursor(data: &[u8]) -> Cursor<'_> {
    Cursor::with_base(data, offset_of(0))
}

/// A cursor at offset `at` of the trace.
fn cursor_at(data: &[u8], at: u32) -> Cursor<'_> {
    let index = at as usize - Version::HEADER_LEN;
    Cursor::with_base(data.get(index..).unwrap_or_default(), u64::from(at))
}

/// The arguments of an event and their number.
fn args_of(data: &[u8], event: &Event) -> Result<([u64; MAX_ARGS], usize), Error> {
    let mut args = [0; MAX_ARGS];
    let mut c = cursor_at(data, event.at);
    match Lead::read(&mut c) {
        Some(lead) => lead.args(&mut c, &mut args).map(|count| (args, count)),
        None => Ok((args, 0)),
    }
}

/// Returns the message after the arguments of a log.
fn log_message<'a>(data: &'a [u8], event: &Event) -> Result<&'a [u8], Error> {
    let mut c = cursor_at(data, event.at);
    if let Some(lead) = Lead::read(&mut c) {
        lead.skip_args(&mut c)?;
    }
    let size = wire::uvarint(&mut c, "length of a message")?;
    wire::string(&mut c, size)
}

#[cold]
fn inconsistent(event: &Event, problem: Inconsistency) -> Error {
    let name = event.ty.spec().name;
    Error::at(u64::from(event.at), ErrorKind::InconsistentV1 { event: name, problem })
}
