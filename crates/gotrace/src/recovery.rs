//! The order of the events of a damaged generation.
//!
//! Events are accepted in the order of undamaged traces as long as possible. Where an event
//! contradicts the preceding events, or waits for a missing event, the state that it implies is
//! [adopted](Ordering::adopt). So only data that cannot be decoded is lost.

use crate::error::{Error, ErrorKind, Position};
use crate::event::Record;
use crate::frontier::{Cursor, Encoded, Frontier, RawEvent};
use crate::order::{Blocked, Ordering};
use crate::spec::{EventType, MAX_ARGS, Plan};
use crate::table::Table;
use std::collections::VecDeque;

/// The time in nanoseconds by which other threads may be ahead of a thread that waits for an event:
/// more than the skew between the CPU clocks of one machine.
const MAX_SKEW: i64 = 100_000;

/// The remaining events of a generation, and the counts of unresolved and unordered ones.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) frontier: Frontier,
    /// CPU samples, the earliest last.
    pub(crate) samples: Vec<Record>,
    /// Events that were accepted before the error.
    pub(crate) pending: VecDeque<Record>,
    /// The maximum number of goroutines, procs, threads and tasks.
    pub(crate) max_entries: usize,
    /// The time of the sync event, until it is returned.
    pub(crate) sync: Option<i64>,
}

/// The counts of recovery in the whole trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// References to strings and stacks that are not in the tables.
    pub(crate) unresolved_ids: u64,
    /// Events that were decoded but not returned.
    pub(crate) lost_events: u64,
}

impl Recovery {
    /// Finds the next event to return; `false` if there is none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Limit`].
    pub(crate) fn next(
        &mut self,
        order: &mut Ordering,
        bytes: &dyn Encoded,
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
        bytes: &dyn Encoded,
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
                return Err(self.error(ErrorKind::limit(what, self.max_entries)));
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

/// The state that is needed to accept an event.
struct Merge<'a> {
    recovery: &'a mut Recovery,
    order: &'a mut Ordering,
    bytes: &'a dyn Encoded,
    table: &'a Table,
    event: &'a mut Record,
    counts: &'a mut Counts,
}

impl Merge<'_> {
    /// Accepts the event of the cursor at `index`, unless it waits for another event.
    fn take(&mut self, index: usize) -> Result<bool, Error> {
        let Self { recovery, order, table, event, counts, .. } = self;
        let cursor = recovery.frontier.cursor(index);
        let (raw, missing) = resolved(cursor, table);
        let mut taken = order.advance_apart(&raw, cursor.slot, table, event);
        if let (0, Err(Blocked::Never(_))) = (index, &taken) {
            taken = adopted(order, &raw, cursor, table, event);
        }
        match taken {
            Ok(()) => counts.unresolved_ids += missing,
            Err(blocked) => return self.refused(index, blocked),
        }
        recovery.frontier.pass(index, self.bytes)?;
        Ok(true)
    }

    /// Accepts the event of another thread that the earliest event may wait for.
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

    /// Accepts the earliest event even if it should wait; skips an event that no state fits.
    fn force(&mut self) -> Result<bool, Error> {
        let Self { recovery, order, table, event, counts, .. } = self;
        let cursor = recovery.frontier.cursor(0);
        let (raw, missing) = resolved(cursor, table);
        let accepted = match adopted(order, &raw, cursor, table, event) {
            Ok(()) => {
                counts.unresolved_ids += missing;
                true
            }
            Err(blocked) => {
                self.refused(0, blocked)?;
                self.counts.lost_events += 1;
                false
            }
        };
        self.recovery.frontier.pass(0, self.bytes)?;
        Ok(accepted)
    }

    /// The event at `index` was not accepted: an error if a limit is exceeded.
    fn refused(&self, index: usize, blocked: Blocked) -> Result<bool, Error> {
        match blocked {
            Blocked::Never(kind) if matches!(*kind, ErrorKind::Limit { .. }) => {
                let cursor = self.recovery.frontier.cursor(index);
                let offset = cursor.start as u64;
                let thread = Some(cursor.thread);
                Err(Error::new(*kind, Position { offset, thread, ..Position::default() }))
            }
            _ => Ok(false),
        }
    }
}

/// Accepts an event after adopting the state that it implies.
fn adopted(
    order: &mut Ordering,
    raw: &RawEvent,
    cursor: &Cursor,
    table: &Table,
    event: &mut Record,
) -> Result<(), Blocked> {
    // The rest of the expansion of the event, if it was rejected halfway.
    order.forget_following();
    order.adopt(raw, cursor.slot, table)?;
    order.advance_apart(raw, cursor.slot, table, event)
}

/// Returns the event of a cursor, and the number of its unresolved identifiers.
fn resolved(cursor: &Cursor, table: &Table) -> (RawEvent, u64) {
    let mut raw = cursor.event;
    let mut args = raw.args();
    let missing = resolve(&mut args, raw.ty, table);
    raw.set_args(args);
    (raw, missing)
}

/// Replaces identifiers that are not in the tables by 0; returns their number.
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
