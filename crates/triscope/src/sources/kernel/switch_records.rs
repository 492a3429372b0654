//! `PERF_RECORD_SWITCH_CPU_WIDE`: kernels that leave out a `sched_switch` have it.

use perf_monitor::{
    Event, RawRecord, Record, RecordLayout, RingSet, SampleFlags, SetEvent, Software,
};
use std::time::{Duration, Instant};

/// The type of these records. Source: `perf_event_open(2)`.
pub(crate) const PERF_RECORD_SWITCH_CPU_WIDE: u32 = 15;

/// How long they are recorded without a need: each switch has two of them.
const TRIAL: Duration = Duration::from_secs(1);

/// The trial is shorter where this many switches are recorded before.
const TRIAL_SWITCHES: u64 = 4096;

/// The event of these records, which is enabled while they are needed.
pub(crate) struct SwitchRecords {
    event: SetEvent,
    need: Need,
}

/// What was recorded so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) switches: u64,
    /// Switches that are in no `sched_switch`.
    pub(crate) missing: u64,
    /// Lost records.
    pub(crate) lost: u64,
}

impl SwitchRecords {
    /// Adds the event, whose records have these fields.
    pub(crate) fn add(set: &mut RingSet, fields: SampleFlags) -> perf_monitor::Result<Self> {
        let dummy = Event::software(Software::Dummy).builder().sample(fields);
        let event = set.add(&dummy.context_switch(true))?;
        Ok(Self { event, need: Need::Trial(Instant::now()) })
    }

    pub(crate) const fn event(&self) -> SetEvent {
        self.event
    }

    /// Enables or disables the event, by what was recorded so far.
    pub(crate) fn adjust(&mut self, set: &mut RingSet, seen: Seen) -> perf_monitor::Result<()> {
        self.set_need(set, self.need.after(seen, Instant::now()))
    }

    /// Disables the event for good.
    pub(crate) fn refuse(&mut self, set: &mut RingSet) -> perf_monitor::Result<()> {
        self.set_need(set, Need::Refused)
    }

    fn set_need(&mut self, set: &mut RingSet, need: Need) -> perf_monitor::Result<()> {
        let was_enabled = std::mem::replace(&mut self.need, need).is_enabled();
        match (was_enabled, need.is_enabled()) {
            (true, false) => set.disable_event(self.event),
            (false, true) => set.enable_event(self.event),
            _ => Ok(()),
        }
    }
}

/// A thread gets a CPU.
pub(crate) struct Arrival {
    pub(crate) cpu: u32,
    pub(crate) tid: u32,
    /// The thread that left the CPU; `None` if it has ended.
    pub(crate) left: Option<u32>,
}

impl Arrival {
    /// `None` if the record is another one.
    pub(crate) fn of(layout: &RecordLayout, raw: RawRecord<'_>) -> Option<Self> {
        if raw.type_() != PERF_RECORD_SWITCH_CPU_WIDE {
            return None;
        }
        match layout.decode(raw).ok()? {
            Record::Switch(switch) if !switch.out => {
                let left = Some(switch.peer?.tid).filter(|tid| *tid != u32::MAX);
                Some(Self { cpu: switch.sample_id.cpu?, tid: switch.sample_id.tid?, left })
            }
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Not known yet, since this time.
    Trial(Instant),
    /// Every switch was a `sched_switch`.
    No,
    Yes,
    /// Records were lost: the buffers are for the tracepoints.
    Refused,
}

impl Need {
    const fn is_enabled(self) -> bool {
        matches!(self, Self::Trial(_) | Self::Yes)
    }

    fn after(self, seen: Seen, now: Instant) -> Self {
        let is_tried =
            |since| seen.switches >= TRIAL_SWITCHES || now.duration_since(since) >= TRIAL;
        match self {
            _ if self == Self::Refused || seen.lost > 0 => Self::Refused,
            _ if seen.missing > 0 => Self::Yes,
            Self::Trial(since) if is_tried(since) => Self::No,
            need => need,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_recorded_until_none_was_needed_and_again_after_a_gap() {
        let start = Instant::now();
        let whole = Seen { switches: 9, ..Seen::default() };
        let trial = Need::Trial(start).after(whole, start + TRIAL / 2);
        assert_eq!(trial, Need::Trial(start));
        let off = trial.after(whole, start + TRIAL);
        assert_eq!((off, off.is_enabled()), (Need::No, false));
        let many = Seen { switches: TRIAL_SWITCHES, ..whole };
        assert_eq!(trial.after(many, start), Need::No);
        assert_eq!(off.after(whole, start + TRIAL), Need::No);
        let again = off.after(Seen { missing: 1, ..whole }, start + 2 * TRIAL);
        assert_eq!((again, again.is_enabled()), (Need::Yes, true));
        assert_eq!(again.after(Seen { missing: 1, ..many }, start + 9 * TRIAL), Need::Yes);
        let needed = Seen { missing: 1, ..whole };
        assert_eq!(trial.after(needed, start + TRIAL), Need::Yes);
    }

    #[test]
    fn they_take_no_buffer_from_the_tracepoints() {
        let lost = Seen { lost: 1, missing: 1, ..Seen::default() };
        let refused = Need::Yes.after(lost, Instant::now());
        assert_eq!((refused, refused.is_enabled()), (Need::Refused, false));
        assert_eq!(refused.after(Seen { missing: 1, ..lost }, Instant::now()), Need::Refused);
    }
}
