//! `PERF_RECORD_SWITCH_CPU_WIDE`: it reports switches that some kernels leave out of `sched_switch`.

use perf_monitor::{
    Event, RawRecord, Record, RecordLayout, RingSet, SampleFlags, SetEvent, Software,
};
use std::time::{Duration, Instant};

/// The type of these records. Source: `perf_event_open(2)`.
pub(crate) const PERF_RECORD_SWITCH_CPU_WIDE: u32 = 15;

/// In the header of those of the thread that leaves the CPU: there is one for each thread of a switch.
const PERF_RECORD_MISC_SWITCH_OUT: u16 = 1 << 13;

/// How long they are recorded from the first switch on, without a need: each switch has two of them.
const TRIAL: Duration = Duration::from_secs(1);

/// The trial is shorter where this many switches are recorded before.
const TRIAL_SWITCHES: u64 = 4096;

/// How long they are recorded after the last need.
const REST: Duration = Duration::from_secs(60);

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
        Ok(Self { event, need: Need::Trial(None) })
    }

    pub(crate) const fn event(&self) -> SetEvent {
        self.event
    }

    pub(crate) const fn is_enabled(&self) -> bool {
        self.need.is_enabled()
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
        let is_switch = raw.type_() == PERF_RECORD_SWITCH_CPU_WIDE;
        if !is_switch || raw.misc() & PERF_RECORD_MISC_SWITCH_OUT != 0 {
            return None;
        }
        match layout.decode(raw).ok()? {
            Record::Switch(switch) => {
                // A thread that has ended has this id.
                let living = |tid: u32| (tid != u32::MAX).then_some(tid);
                let (tid, left) = (living(switch.sample_id.tid?)?, living(switch.peer?.tid));
                Some(Self { cpu: switch.sample_id.cpu?, tid, left })
            }
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Not known yet, since this time of the first switch.
    Trial(Option<Instant>),
    /// No switch is missing but this number of earlier ones.
    No(u64),
    /// This number of switches is missing, the last one at this time.
    Yes(u64, Instant),
    /// Records were lost: the buffers are for the tracepoints.
    Refused,
}

impl Need {
    const fn is_enabled(self) -> bool {
        matches!(self, Self::Trial(_) | Self::Yes(..))
    }

    fn after(self, seen: Seen, now: Instant) -> Self {
        let Seen { switches, missing, lost } = seen;
        match self {
            Self::Refused => self,
            _ if lost > 0 => Self::Refused,
            Self::No(known) | Self::Yes(known, _) if missing > known => Self::Yes(missing, now),
            Self::Trial(_) if missing > 0 => Self::Yes(missing, now),
            Self::Trial(None) if switches > 0 => Self::Trial(Some(now)),
            Self::Trial(Some(since))
                if switches >= TRIAL_SWITCHES || now.duration_since(since) >= TRIAL =>
            {
                Self::No(0)
            }
            Self::Yes(known, last) if now.duration_since(last) >= REST => Self::No(known),
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Seen = Seen { switches: 9, missing: 0, lost: 0 };

    #[test]
    fn they_are_recorded_until_none_was_needed_and_again_after_a_gap() {
        let start = Instant::now();
        assert_eq!(Need::Trial(None).after(Seen::default(), start + TRIAL), Need::Trial(None));
        let trial = Need::Trial(None).after(WHOLE, start);
        assert_eq!(trial, Need::Trial(Some(start)));
        assert_eq!(trial.after(WHOLE, start + TRIAL / 2), trial);
        let off = trial.after(WHOLE, start + TRIAL);
        assert_eq!((off, off.is_enabled()), (Need::No(0), false));
        let many = Seen { switches: TRIAL_SWITCHES, ..WHOLE };
        assert_eq!(trial.after(many, start), Need::No(0));
        assert_eq!(off.after(many, start + TRIAL), off);
        let gap = Seen { missing: 1, ..WHOLE };
        assert_eq!(trial.after(gap, start + TRIAL), Need::Yes(1, start + TRIAL));
        let again = off.after(gap, start);
        assert_eq!((again, again.is_enabled()), (Need::Yes(1, start), true));
    }

    #[test]
    fn they_are_not_recorded_for_ever_after_one_gap() {
        let (start, gap) = (Instant::now(), Seen { missing: 1, ..WHOLE });
        let need = Need::Yes(1, start);
        assert_eq!(need.after(gap, start + REST / 2), need);
        assert_eq!(need.after(gap, start + REST), Need::No(1));
        let next = Seen { missing: 2, ..WHOLE };
        assert_eq!(need.after(next, start + REST), Need::Yes(2, start + REST));
        assert_eq!(Need::No(1).after(gap, start), Need::No(1));
        assert_eq!(Need::No(1).after(next, start), Need::Yes(2, start));
    }

    #[test]
    fn they_take_no_buffer_from_the_tracepoints() {
        let lost = Seen { missing: 1, lost: 1, ..WHOLE };
        let refused = Need::Yes(0, Instant::now()).after(lost, Instant::now());
        assert_eq!((refused, refused.is_enabled()), (Need::Refused, false));
        let gap = Seen { missing: 2, ..WHOLE };
        assert_eq!(refused.after(gap, Instant::now()), Need::Refused);
    }
}
