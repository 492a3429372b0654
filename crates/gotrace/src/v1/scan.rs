//! First pass over a v1 trace: all work that does not depend on the order of events.
//!
//! This pass checks every byte, so the later passes only have to follow the contents of events.

use super::convert::BUILT_IN;
use super::event::{Event, Goroutines, Procs};
use super::wire::{self, Lead, MAX_ARGS, MAX_STRING, Type, uvarint};
use crate::error::{Error, ErrorKind};
use crate::gosort;
use crate::table::{Frame, Span, Table};
use crate::version::Version;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use trace_common::{Cursor, Limits, SeededState};

/// Maximum number of frames of a stack.
const MAX_FRAMES: u64 = 1000;

/// The results of the first pass.
pub(super) struct Scan {
    pub(super) table: Table,
    /// Identifiers of log messages, which the trace contains inline.
    pub(super) messages: HashMap<Arc<[u8]>, u64>,
    /// Identifier of the first of [`BUILT_IN`].
    pub(super) first_built_in: u64,
    /// Stacks with a frame of which a string is missing, with the identifier of that string.
    pub(super) broken_stacks: HashMap<u32, u64, SeededState>,
    pub(super) procs: Procs,
    pub(super) goroutines: Goroutines,
    /// The starts of batches, by proc, in the order of the trace.
    pub(super) batches: Vec<Vec<u32>>,
    /// Samples of the CPU profiler, sorted by time.
    pub(super) samples: Vec<Event>,
    /// Ticks per second.
    pub(super) frequency: i64,
    /// Goroutines of the runtime that wake others for timers; these wake-ups are not their events.
    pub(super) timers: HashSet<u64, SeededState>,
    /// Number of timed events, including samples.
    pub(super) events: usize,
}

/// Reads `data`, all of a trace after its header.
pub(super) fn scan(data: &[u8], version: Version, limits: &Limits) -> Result<Scan, Error> {
    let mut scanner = Scanner {
        limits,
        max_events: limits.max_buffer / 4,
        scan: Scan {
            table: Table::new(0),
            messages: HashMap::new(),
            first_built_in: 0,
            broken_stacks: HashMap::default(),
            procs: Procs::default(),
            goroutines: Goroutines::default(),
            batches: Vec::new(),
            samples: Vec::new(),
            frequency: 0,
            timers: HashSet::default(),
            events: 0,
        },
        stacks: Vec::new(),
        in_batch: false,
    };
    let mut c = super::cursor(data);
    loop {
        let offset = c.offset();
        let Some(lead) = Lead::read(&mut c) else { break };
        let ty = lead.known_type(version, offset)?;
        scanner.event(lead, ty, offset, &mut c)?;
    }
    let mut scan = scanner.finish()?;
    if scan.frequency == 0 {
        return Err(Error::at(c.offset(), ErrorKind::NoFrequency));
    }
    // Samples are written when the profiler's buffer is read, not when they are taken.
    gosort::sort_by(&mut scan.samples, |a, b| a.time < b.time);
    Ok(scan)
}

struct Scanner<'a> {
    limits: &'a Limits,
    max_events: usize,
    scan: Scan,
    stacks: Vec<(u32, Span)>,
    in_batch: bool,
}

impl Scanner<'_> {
    fn event(
        &mut self,
        lead: Lead,
        ty: Type,
        offset: u64,
        c: &mut Cursor<'_>,
    ) -> Result<(), Error> {
        match ty {
            Type::STRING => return self.string(offset, c),
            Type::BATCH => return self.batch(lead, offset, c),
            _ if !self.in_batch => {
                return Err(Error::at(offset, ErrorKind::OutsideBatch(ty.spec().name)));
            }
            Type::STACK => return self.stack(lead, offset, c),
            _ => {}
        }
        let mut args = [0; MAX_ARGS];
        let found = lead.args(c, &mut args)?;
        let expected = usize::from(ty.spec().args);
        if found != expected {
            return Err(wrong_arguments(ty, offset, expected, found));
        }
        match ty {
            Type::FREQUENCY => {
                self.scan.frequency = args[0] as i64;
                if self.scan.frequency <= 0 {
                    return Err(Error::at(offset, ErrorKind::TimeOrder));
                }
            }
            Type::TIMER_GOROUTINE => {
                self.scan.timers.insert(args[0]);
            }
            Type::CPU_SAMPLE => {
                self.count_event(offset)?;
                let [_, time, p, g, _] = args;
                let proc = self.proc(p as i32, offset)?;
                self.scan.samples.push(Event {
                    time: time as i64,
                    at: super::index(offset),
                    go: self.scan.goroutines.intern(g),
                    target: Goroutines::NONE,
                    proc,
                    ty,
                    blocks: false,
                });
            }
            Type::USER_LOG => {
                self.count_event(offset)?;
                self.message(c)?;
            }
            _ => self.count_event(offset)?,
        }
        Ok(())
    }

    fn count_event(&mut self, offset: u64) -> Result<(), Error> {
        self.scan.events += 1;
        self.limit(offset, "the number of events (max_buffer)", self.scan.events, self.max_events)
    }

    fn limit(
        &self,
        offset: u64,
        what: &'static str,
        size: usize,
        limit: usize,
    ) -> Result<(), Error> {
        if size > limit { Err(Error::at(offset, ErrorKind::limit(what, limit))) } else { Ok(()) }
    }

    /// Returns the number of a P.
    fn proc(&mut self, id: i32, offset: u64) -> Result<u16, Error> {
        let limit = Procs::MAX;
        let number = self.scan.procs.intern(id);
        number.ok_or_else(|| Error::at(offset, ErrorKind::limit("the number of Ps", limit)))
    }

    fn batch(&mut self, lead: Lead, offset: u64, c: &mut Cursor<'_>) -> Result<(), Error> {
        let expected = usize::from(Type::BATCH.spec().args);
        match lead.inline_args() {
            Some(found) if found == expected => {}
            found => {
                return Err(wrong_arguments(Type::BATCH, offset, expected, found.unwrap_or(4)));
            }
        }
        let id = wire::proc(c)?;
        uvarint(c, "time of a batch")?;
        self.in_batch = true;
        let proc = usize::from(self.proc(id, offset)?);
        if proc >= self.scan.batches.len() {
            self.scan.batches.resize_with(proc + 1, Vec::new);
        }
        if let Some(batches) = self.scan.batches.get_mut(proc) {
            batches.push(super::index(offset));
        }
        Ok(())
    }

    fn string(&mut self, offset: u64, c: &mut Cursor<'_>) -> Result<(), Error> {
        let id = uvarint(c, "identifier of a string")?;
        let size = uvarint(c, "the length of a string (max_string)")?;
        if !self.in_batch {
            // As in Go's reader, which only looks into batches.
            return wire::string(c, size).map(drop);
        }
        if id == 0 || size == 0 {
            return Err(Error::at(offset, ErrorKind::EmptyString(id)));
        }
        let string = Arc::from(self.bytes(offset, size, c)?);
        if !self.scan.table.strings.insert(id, string) {
            return Err(Error::at(offset, ErrorKind::DuplicateId { what: "string", id }));
        }
        let entries = self.scan.table.strings.len();
        self.limit(offset, "the number of strings (max_entries)", entries, self.limits.max_entries)
    }

    /// Reads the message after the arguments of a log.
    fn message(&mut self, c: &mut Cursor<'_>) -> Result<(), Error> {
        let offset = c.offset();
        let size = uvarint(c, "length of a message")?;
        let message = self.bytes(offset, size, c)?;
        if !self.scan.messages.contains_key(message) {
            let number = self.scan.messages.len() as u64;
            self.scan.messages.insert(Arc::from(message), number);
        }
        let entries = self.scan.messages.len();
        self.limit(offset, "the number of messages (max_entries)", entries, self.limits.max_entries)
    }

    fn bytes<'a>(&self, offset: u64, size: u64, c: &mut Cursor<'a>) -> Result<&'a [u8], Error> {
        if size > MAX_STRING {
            let what = "string";
            return Err(Error::at(
                offset,
                ErrorKind::TooLarge { what, value: size, limit: MAX_STRING },
            ));
        }
        self.limit(
            offset,
            "the length of a string (max_string)",
            size as usize,
            self.limits.max_string,
        )?;
        wire::string(c, size)
    }

    fn stack(&mut self, lead: Lead, offset: u64, c: &mut Cursor<'_>) -> Result<(), Error> {
        let mut args = match lead.inline_args() {
            // Too short for a frame: only a stack without frames fits.
            Some(found) => {
                let mut args = [0; MAX_ARGS];
                lead.args(c, &mut args)?;
                let expected = if found < 2 { 2 } else { 2 + 4 * frames(args[1], offset)? };
                return if found == expected {
                    Ok(())
                } else {
                    Err(wrong_arguments(Type::STACK, offset, expected, found))
                };
            }
            None => lead.arg_bytes(c)?,
        };
        let id = uvarint(&mut args, "identifier of a stack")? as u32;
        let expected = frames(uvarint(&mut args, "number of frames")?, offset)?;
        let table = &mut self.scan.table;
        let start = table.stack_frames.len();
        let mut found = 0;
        while !args.is_empty() {
            let mut value = || uvarint(&mut args, "frame");
            let frame = Frame { pc: value()?, func: value()?, file: value()?, line: value()? };
            found += 1;
            if found <= expected && id != 0 {
                table.push_frame(frame);
            }
        }
        if found != expected {
            return Err(wrong_arguments(Type::STACK, offset, 2 + 4 * expected, 2 + 4 * found));
        }
        if id != 0 && expected != 0 {
            self.stacks.push((id, Span { start: start as u32, len: expected as u32 }));
            self.limit(
                offset,
                "the number of stacks (max_entries)",
                self.stacks.len(),
                self.limits.max_entries,
            )?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Scan, Error> {
        let Self { mut scan, stacks, .. } = self;
        // The last definition of an identifier counts.
        for &(id, span) in stacks.iter().rev() {
            scan.table.stacks.insert(u64::from(id), span);
        }
        scan.add_strings()?;
        scan.find_broken_stacks(stacks.iter().map(|&(id, _)| id));
        Ok(scan)
    }
}

impl Scan {
    /// Finds stacks whose frames refer to strings that damage has removed. Nearly always there are
    /// none.
    fn find_broken_stacks(&mut self, stacks: impl Iterator<Item = u32>) {
        let table = &self.table;
        let missing =
            |frame: &Frame| [frame.func, frame.file].into_iter().find(|&id| !table.has_string(id));
        let frames: Vec<Option<u64>> = table.frames.iter().map(missing).collect();
        if frames.iter().all(Option::is_none) {
            return;
        }
        for id in stacks {
            let stack = table.stack(u64::from(id));
            if let Some(string) = stack.iter().find_map(|&frame| *frames.get(frame as usize)?) {
                self.broken_stacks.insert(id, string);
            }
        }
    }

    /// Adds messages, and strings that are not in the trace, after the trace's own strings.
    fn add_strings(&mut self) -> Result<(), Error> {
        let last = self.table.strings.max_id();
        let added = (self.messages.len() + BUILT_IN.len()) as u64;
        if last.checked_add(added).is_none() {
            let (what, max) = ("identifier of a string", u64::MAX - added);
            return Err(Error::at(0, ErrorKind::TooLarge { what, value: last, limit: max }));
        }
        self.first_built_in = last + 1 + self.messages.len() as u64;
        for (message, id) in &mut self.messages {
            *id += last + 1;
            self.table.strings.insert(*id, Arc::clone(message));
        }
        for (id, string) in (self.first_built_in..).zip(BUILT_IN) {
            self.table.strings.insert(id, Arc::from(string.as_bytes()));
        }
        Ok(())
    }
}

fn frames(count: u64, offset: u64) -> Result<usize, Error> {
    if count > MAX_FRAMES {
        let what = "stack";
        return Err(Error::at(
            offset,
            ErrorKind::TooLarge { what, value: count, limit: MAX_FRAMES },
        ));
    }
    Ok(count as usize)
}

#[cold]
fn wrong_arguments(ty: Type, offset: u64, expected: usize, found: usize) -> Error {
    let event = ty.spec().name;
    Error::at(offset, ErrorKind::WrongArguments { event, expected, found })
}
