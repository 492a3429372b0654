//! Where and when traces were recorded.

use super::Notes;
use std::cell::RefCell;
use std::rc::Rc;
use trace_common::{ClockDomain, Timestamp};
use trace_timeline::{Event, EventKind};

/// Where and when a trace was recorded: CPUs, threads and times are by number, which those of two machines, or
/// boots, share.
pub(super) struct Origin {
    pub(super) file: String,
    pub(super) host: Option<String>,
    pub(super) clocks: Option<Clocks>,
}

/// The wall clock and the clock of the events at one moment.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    pub(super) wall: Timestamp,
    pub(super) events: Timestamp,
}

/// What happened to the machine between two moments, or to its wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// It was booted: the wall clock has advanced less than the other one.
    Booted,
    /// It was suspended or booted: the wall clock has advanced more.
    SuspendedOrBooted,
}

impl Clocks {
    fn between(self, other: Self) -> Option<Between> {
        /// The wall clock is adjusted. Between two boots, it is the time from one to the other.
        const TOLERANCE: i128 = 60_000_000_000;
        let (one, later) = if self.events < other.events { (self, other) } else { (other, self) };
        let passed =
            |from: Timestamp, to: Timestamp| i128::from(to.nanos()) - i128::from(from.nanos());
        let more = passed(one.wall, later.wall) - passed(one.events, later.events);
        if more < -TOLERANCE {
            Some(Between::Booted)
        } else {
            (more > TOLERANCE).then_some(Between::SuspendedOrBooted)
        }
    }
}

impl Origin {
    /// Why this one may not be on the machine and the clock of earlier ones.
    fn differences(&self, earlier: &[Self]) -> impl Iterator<Item = String> {
        const SHARED: &str = "CPUs and threads with the same numbers are shown as one";
        let mut hosts = earlier.iter().filter_map(|first| Some((first, first.host.as_ref()?)));
        let host = hosts.next().zip(self.host.as_ref()).filter(|((_, other), own)| other != own);
        let host = host.map(|((first, other), own)| {
            format!("it was recorded on {own}, and {} on {other}: {SHARED}", first.file)
        });
        let boot = self.clocks.and_then(|own| {
            let others = earlier.iter().filter_map(|other| Some((other, other.clocks?)));
            let mut between = others.map(|(other, clocks)| (other, own.between(clocks)));
            let (first, why) = between.next()?;
            // One that fits one of them does not differ from it: the others have their warning.
            let why = why.filter(|_| between.all(|(_, why)| why.is_some()))?;
            let why = match why {
                Between::Booted => format!(
                    "the machine was booted between them, or its wall clock was set back: their times \
                     do not relate, and {SHARED}"
                ),
                Between::SuspendedOrBooted => format!(
                    "the machine was suspended or booted between them, or its wall clock was set \
                     forward: if it was booted, their times do not relate, and {SHARED}"
                ),
            };
            Some(format!("its clocks do not fit those of {}: {why}", first.file))
        });
        host.into_iter().chain(boot)
    }
}

/// The origins of traces that are read together.
#[derive(Clone, Default)]
pub(super) struct Origins(Rc<RefCell<Vec<Origin>>>);

impl Origins {
    /// Adds that of a trace, and says why it may not be on the machine and the clock of the others.
    pub(super) fn add(&self, own: Origin, notes: &Notes) {
        let mut earlier = self.0.borrow_mut();
        own.differences(&earlier).for_each(|what| notes.warn(&own.file, &what));
        earlier.push(own);
    }

    /// Adds that of a trace of a runtime, of which these are the first events.
    pub(super) fn add_first(&self, file: &str, events: &[Event], notes: &Notes) {
        let clocks = events.iter().find_map(|event| match event.kind {
            EventKind::Clock { time, domain: ClockDomain::Realtime, reading } => {
                Some(Clocks { wall: reading, events: time })
            }
            _ => None,
        });
        self.add(Origin { file: file.to_owned(), host: None, clocks }, notes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_begins_again_is_that_of_another_boot() {
        const HOUR: i64 = 3_600_000_000_000;
        let at = |hours: i64, clock: i64| {
            let [wall, events] = [(500_000 + hours) * HOUR, clock].map(Timestamp::from_nanos);
            Clocks { wall, events }
        };
        let between = |one: Clocks, other: Clocks| {
            assert_eq!(one.between(other), other.between(one));
            one.between(other)
        };
        assert_eq!(between(at(0, HOUR), at(1, 2 * HOUR)), None);
        assert_eq!(between(at(0, HOUR), at(0, HOUR)), None);
        let suspended = Some(Between::SuspendedOrBooted);
        assert_eq!(between(at(0, HOUR), at(9, 2 * HOUR)), suspended);
        assert_eq!(between(at(0, 7 * HOUR), at(9, HOUR)), Some(Between::Booted));
    }

    #[test]
    fn a_trace_whose_clocks_fit_none_is_of_another_boot() {
        let (origins, notes) = (Origins::default(), Notes::default());
        let clocks = |wall: i64, events: i64| {
            let [wall, events] = [wall, events].map(|s| Timestamp::from_nanos(s * 1_000_000_000));
            Some(Clocks { wall, events })
        };
        for (file, clocks) in [
            ("old", None),
            ("a", clocks(5_000, 700)),
            ("same", clocks(5_010, 710)),
            ("older", None),
            ("booted", clocks(9_000, 100)),
            // These two fit the one before.
            ("next", clocks(9_010, 110)),
            ("last", clocks(9_020, 120)),
        ] {
            origins.add(Origin { file: file.to_owned(), host: None, clocks }, &notes);
        }
        let said = notes.all.take();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("booted: its clocks do not fit those of a: "), "{said:?}");
        assert_eq!(notes.warnings.take(), said);
    }
}
