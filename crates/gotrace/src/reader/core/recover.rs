//! Resuming after damage.

use super::{After, Core, Phase};
use crate::error::Error;
use crate::event::Record;
use crate::frontier::Frontier;
use crate::generation::{Generation, LostBytes, Salvage, Salvaged};
use crate::id::ThreadId;
use crate::recovery::Recovery;
use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::mem;

/// The extent of a loss in a damaged trace: see [`Reader::recover`](crate::Reader::recover).
///
/// All lost bytes are in `from..to`; this range may also contain intact bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// Offset of the first lost byte in the trace; the offset of the error if no byte is lost.
    pub from: u64,
    /// Offset after the last lost byte; never less than `from`.
    pub to: u64,
    /// Number of lost bytes: batches that cannot be found, and the parts of batches that cannot be
    /// decoded.
    pub bytes: u64,
    /// The number of these bytes that are in batches of events that were found. The events in them
    /// are unknown.
    pub event_bytes: u64,
    /// Number of decodable events that are lost because the reader discards their generation.
    pub events: u64,
    /// The damaged generation, if it is known.
    pub generation: Option<u64>,
    /// Whether the reader resumes in this generation, rather than after it.
    pub partial: bool,
    /// Whether the frequency of the trace clock is assumed because it is lost: all times of the
    /// generation then assume the 15 625 000 ticks per second of Linux.
    pub guessed_frequency: bool,
}

/// The data that recovery needs about an error.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) offset: u64,
    pub(super) generation: Option<u64>,
    pub(super) state: FailedIn,
    /// An error that is still to be returned.
    pub(super) unreported: Option<Error>,
}

/// The location of an error.
#[derive(Debug)]
pub(super) enum FailedIn {
    /// Between generations.
    Loading,
    /// In a generation that was not known to be damaged.
    Generation {
        frontier: Box<Frontier>,
        samples: Vec<Record>,
        /// Events that were accepted but not returned.
        pending: VecDeque<Record>,
        /// Whether its sync event was returned.
        begun: bool,
    },
    /// In a damaged generation, because of a limit.
    Damaged(Box<Recovery>),
}

impl<R: Read> Core<R> {
    /// See [`Reader::recover`](crate::Reader::recover).
    pub(crate) fn recover(&mut self) -> Result<Option<Loss>, Error> {
        let failure = match mem::replace(&mut self.phase, Phase::Done) {
            Phase::Failed(failure) => *failure,
            other => {
                self.phase = other;
                return Ok(None);
            }
        };
        let Failure { offset, generation, state, .. } = failure;
        self.current.after = After::Unknown;
        self.leave_table();
        let mut loss = Loss {
            from: offset,
            to: offset,
            bytes: 0,
            event_bytes: 0,
            events: 0,
            generation,
            partial: false,
            guessed_frequency: false,
        };
        match state {
            FailedIn::Damaged(recovery) => self.give_up(*recovery, &mut loss),
            FailedIn::Generation { frontier, samples, pending, begun } => {
                let positions: HashMap<_, _> = frontier.positions().into_iter().collect();
                let (number, loaded) =
                    (self.current.number, mem::take(&mut self.current.sample_batches));
                let (version, limits) = (self.version, self.limits);
                let salvage = Salvage::again(&mut self.source, version, limits, number, loaded);
                let mut salvaged = salvage.load(self.current.nanos_per_tick);
                if let Some(generation) = &mut salvaged.generation {
                    generation.samples.extend(samples);
                    generation.samples.sort_by_key(|sample| std::cmp::Reverse(sample.time));
                }
                self.resume(salvaged, &positions, pending, begun, &mut loss);
            }
            FailedIn::Loading => {
                let mut lost = LostBytes::default();
                let (version, limits) = (self.version, self.limits);
                let last = self.current.number;
                match Salvage::find(&mut self.source, version, limits, last, &mut lost) {
                    Some(salvage) => {
                        let salvaged = salvage.load(self.current.nanos_per_tick);
                        loss.add(&lost);
                        self.resume(salvaged, &HashMap::new(), VecDeque::new(), false, &mut loss);
                    }
                    None => {
                        loss.add(&lost);
                        if loss.bytes == 0 {
                            return Ok(None);
                        }
                        self.current.after = After::End;
                        self.phase = Phase::Load;
                    }
                }
            }
        }
        Ok(Some(loss))
    }

    /// Resumes with the salvaged part of a damaged generation.
    fn resume(
        &mut self,
        salvaged: Salvaged,
        positions: &HashMap<ThreadId, usize>,
        pending: VecDeque<Record>,
        begun: bool,
        loss: &mut Loss,
    ) {
        let Salvaged { generation, len, at_end, lost, guessed_frequency } = salvaged;
        loss.add(&lost);
        if at_end {
            self.current.after = After::End;
        }
        let Some(generation) = generation else {
            self.current.len = len;
            self.phase = Phase::Load;
            return;
        };
        let Generation { min_time, table, events, samples, .. } = *generation;
        let number = table.generation;
        if !begun && number.saturating_sub(self.current.number) > 1 {
            // The bytes between are a reported loss.
            self.forget_states();
            self.gaps.after = 0;
        }
        loss.generation = Some(number);
        (loss.partial, loss.guessed_frequency) = (true, guessed_frequency);
        self.begin(table, len);
        self.current.offset = self.source.offset();
        let mut frontier = Frontier::default();
        let (bytes, order) = (&self.source, &mut self.order);
        let resume_at = |id| positions.get(&id).copied().unwrap_or(0);
        // All events of the generation can be decoded.
        let _ = frontier.start(events, bytes, |id| order.slot_of(id), resume_at);
        self.order.start(number, frontier.head_time().is_some());
        self.phase = Phase::Damaged(Box::new(Recovery {
            sync: (!begun).then_some(min_time),
            frontier,
            samples,
            pending,
            max_entries: self.limits.max_entries,
        }));
    }

    /// Discards a damaged generation that exceeds a limit.
    fn give_up(&mut self, mut recovery: Recovery, loss: &mut Loss) {
        let left = recovery.pending.len() + recovery.samples.len();
        loss.events = left as u64 + recovery.frontier.drain(&self.source);
        self.counts.lost_events += loss.events;
        self.forget_states();
        self.phase = Phase::Load;
    }
}

impl Loss {
    fn add(&mut self, lost: &LostBytes) {
        if let Some(range) = &lost.range {
            if self.bytes == 0 {
                (self.from, self.to) = (range.start, range.end);
            } else {
                (self.from, self.to) = (self.from.min(range.start), self.to.max(range.end));
            }
        }
        self.bytes += lost.bytes;
        self.event_bytes += lost.event_bytes;
    }
}
