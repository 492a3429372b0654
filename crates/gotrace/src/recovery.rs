//! The order of the events of a damaged generation.
//!
//! Events are taken in the order of undamaged traces as long as that is possible. Where an event
//! contradicts what precedes it, or waits for one that is not there, the state that it implies is
//! [adopted](Ordering::adopt). So only what cannot be decoded is lost.

use crate::error::{Error, ErrorKind, Position};
use crate::event::Record;
use crate::frontier::{Cursor, Frontier, RawEvent};
use crate::order::{Blocked, Ordering};
use crate::spec::{EventType, MAX_ARGS, Plan};
use crate::table::Table;
use std::collections::VecDeque;

/// How far ahead of a thread that waits for an event other threads may go, in nanoseconds: more
/// than the clocks of the CPUs of one machine disagree.
const MAX_SKEW: i64 = 100_000;

/// The events of a generation that are left, and how many could not be resolved or ordered.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) frontier: Frontier,
    /// CPU samples, the earliest last.
    pub(crate) samples: Vec<Record>,
    /// Events that were taken before the error.
    pub(crate) pending: VecDeque<Record>,
    /// The most goroutines, procs, threads and tasks that may be held.
    pub(crate) max_entries: usize,
    /// The time of the sync event, until it is given.
    pub(crate) sync: Option<i64>,
}

/// What recovery counts in the whole trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Names of strings and stacks that are not in the tables.
    pub(crate) unresolved_ids: u64,
    /// Events that were decoded but not given.
    pub(crate) lost_events: u64,
}

impl Recovery {
    /// Makes the next event the one to be given; `false` if there is none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`].
    pub(crate) fn next(
        &mut self,
        order: &mut Ordering,
        bytes: &[u8],
        table: &Table,
        event: &mut Record,
        counts: &mut Counts,
    ) -> Result<bool, Error> {
        let found = self.find_next(order, bytes, table, event, counts)?;
        if found {
            Ordering::hide_placeholders(event);
        }
        Ok(found)
    }

    fn find_next(
        &mut self,
        order: &mut Ordering,
        bytes: &[u8],
        table: &Table,
        event: &mut Record,
        counts: &mut Counts,
    ) -> Result<bool, Error> {
        loop {
            if let Some(mut pending) = self.pending.pop_front() {
                counts.unresolved_ids += resolve(&mut pending.args, pending.ty, table);
                *event = pending;
                return Ok(true);
            }
            if let Some(following) = order.next_following() {
                *event = following;
                return Ok(true);
            }
            let head = self.frontier.head_time();
            let sample = self.samples.last().map(|sample| sample.time);
            if sample.is_some_and(|time| head.is_none_or(|head| time < head)) {
                self.pending.extend(self.samples.pop());
                continue;
            }
            let Some(head) = head else { return Ok(false) };
            if order.len() > self.max_entries {
                let what = "the number of goroutines, procs, threads and tasks (max_entries)";
                return Err(self.error(ErrorKind::Limit { what, limit: self.max_entries }));
            }
            let mut merge = Merge { recovery: self, order, bytes, table, event, counts };
            if merge.take(0)? || merge.take_other(head)? || merge.force()? {
                return Ok(true);
            }
        }
    }

    /// An error at the earliest event.
    fn error(&self, kind: ErrorKind) -> Error {
        let cursor = self.frontier.cursor(0);
        Error::new(kind, Position { offset: cursor.start as u64, ..Position::default() })
    }
}

/// What taking an event needs.
struct Merge<'a> {
    recovery: &'a mut Recovery,
    order: &'a mut Ordering,
    bytes: &'a [u8],
    table: &'a Table,
    event: &'a mut Record,
    counts: &'a mut Counts,
}

impl Merge<'_> {
    /// Takes the event of the cursor at `index`, unless it waits for another one.
    fn take(&mut self, index: usize) -> Result<bool, Error> {
        let Self { recovery, order, bytes, table, event, counts } = self;
        let taken = recovery.frontier.offer(index, bytes, |cursor| {
            let (raw, missing) = resolved(cursor, table);
            let mut taken = order.advance_apart(&raw, cursor.slot, table, event);
            if let (0, Err(Blocked::Never(_))) = (index, &taken) {
                taken = adopted(order, &raw, cursor, table, event);
            }
            counts.unresolved_ids += if taken.is_ok() { missing } else { 0 };
            taken
        })?;
        self.refused(index, taken)
    }

    /// Takes the event of another thread for which the earliest one may wait.
    fn take_other(&mut self, head: i64) -> Result<bool, Error> {
        if let Err(limit) = self.order.work.charge(self.recovery.frontier.len()) {
            return Err(self.recovery.error(limit));
        }
        self.recovery.frontier.sort();
        for index in 1..self.recovery.frontier.len() {
            let time = self.recovery.frontier.cursor(index).event.time;
            if time.saturating_sub(head) > MAX_SKEW {
                break;
            }
            if self.take(index)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes the earliest event, whatever it waits for; passes over one that no state fits.
    fn force(&mut self) -> Result<bool, Error> {
        let Self { recovery, order, bytes, table, event, counts } = self;
        let mut accepted = true;
        let taken = recovery.frontier.offer(0, bytes, |cursor| {
            let (raw, missing) = resolved(cursor, table);
            match adopted(order, &raw, cursor, table, event) {
                Ok(()) => counts.unresolved_ids += missing,
                Err(Blocked::Never(kind)) if matches!(*kind, ErrorKind::Limit { .. }) => {
                    return Err(Blocked::Never(kind));
                }
                Err(_) => {
                    counts.lost_events += 1;
                    accepted = false;
                }
            }
            Ok(())
        })?;
        Ok(self.refused(0, taken)? && accepted)
    }

    /// Whether the event was taken; an error if a limit is exceeded.
    fn refused(&self, index: usize, taken: Result<(), Blocked>) -> Result<bool, Error> {
        match taken {
            Ok(()) => Ok(true),
            Err(Blocked::Never(kind)) if matches!(*kind, ErrorKind::Limit { .. }) => {
                let cursor = self.recovery.frontier.cursor(index);
                let offset = cursor.start as u64;
                let thread = Some(cursor.thread);
                Err(Error::new(*kind, Position { offset, thread, ..Position::default() }))
            }
            Err(_) => Ok(false),
        }
    }
}

/// Takes an event in the state that it implies.
fn adopted(
    order: &mut Ordering,
    raw: &RawEvent,
    cursor: &Cursor,
    table: &Table,
    event: &mut Record,
) -> Result<(), Blocked> {
    // What the event was to be followed by, had it been refused halfway.
    order.forget_following();
    order.adopt(raw, cursor.slot, table)?;
    order.advance_apart(raw, cursor.slot, table, event)
}

/// The event of a cursor, and how many names in it were missing.
fn resolved(cursor: &Cursor, table: &Table) -> (RawEvent, u64) {
    let mut raw = cursor.event;
    let mut args = raw.args();
    let missing = resolve(&mut args, raw.ty, table);
    raw.set_args(args);
    (raw, missing)
}

/// Replaces identifiers that are not in the tables by that of nothing; returns how many.
fn resolve(args: &mut [u64; MAX_ARGS], ty: EventType, table: &Table) -> u64 {
    let plan = ty.plan();
    let stacks = [plan.stack, plan.other_stack].map(|index| (index, true));
    let strings = [plan.string, plan.other_string].map(|index| (index, false));
    let mut missing = 0;
    for (index, is_stack) in stacks.into_iter().chain(strings) {
        let Some(id) = args.get_mut(usize::from(index)) else { continue };
        let there = if is_stack { table.has_stack(*id) } else { table.has_string(*id) };
        if !there && index != Plan::NONE {
            *id = 0;
            missing += 1;
        }
    }
    missing
}
