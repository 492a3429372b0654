//! Windows of time around triggers.

use std::time::Duration;
use trace_common::Timestamp;

/// Why a trigger fired.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cause {
    /// The kind of trigger, such as `signal`.
    pub trigger: String,
    /// A description of the event.
    pub what: String,
    /// When, if it is known.
    pub time: Option<Timestamp>,
    /// The process.
    pub pid: Option<u32>,
    /// The thread.
    pub tid: Option<u32>,
}

impl Cause {
    /// A cause of this kind.
    pub fn new(trigger: impl Into<String>, what: impl Into<String>) -> Self {
        Self { trigger: trigger.into(), what: what.into(), time: None, pid: None, tid: None }
    }

    /// The same cause, of a thread.
    #[must_use]
    pub fn of_thread(mut self, pid: Option<u32>, tid: u32) -> Self {
        (self.pid, self.tid) = (pid, Some(tid));
        self
    }
}

/// The time that a dump is to cover.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Window {
    /// Its start.
    pub start: Timestamp,
    /// Its end.
    pub end: Timestamp,
    /// The triggers that fired, earliest first: at most [`Windows::MAX_CAUSES`].
    pub causes: Vec<Cause>,
    /// The number of triggers that fired.
    pub fired: u64,
    /// Triggers that were suppressed since the window before.
    pub suppressed: u64,
}

impl Window {
    /// A window of one cause.
    pub fn new(from: Timestamp, until: Timestamp, cause: Cause) -> Self {
        Self { start: from, end: until, causes: vec![cause], fired: 1, suppressed: 0 }
    }
}

/// The effect of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fired {
    /// It opened a window.
    Opened,
    /// It joined the window that is open, and extended it within its limit.
    Joined,
    /// It was suppressed: the last window has just ended, or has all of its time.
    Suppressed,
}

/// The times that a window covers around its triggers.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    back: Duration,
    forward: Duration,
    /// The maximum time from the first trigger to the end.
    longest: Duration,
}

impl Lengths {
    fn new(back: Duration, forward: Duration) -> Self {
        const LONGEST: u32 = 8;
        Self { back, forward, longest: forward.saturating_mul(LONGEST) }
    }
}

/// A window that is not over.
#[derive(Clone, Debug)]
struct Open {
    /// The time of its first trigger.
    first: Timestamp,
    /// Those of the time when it opened.
    lengths: Lengths,
    window: Window,
}

impl Open {
    /// The end at the latest, unless it is the window that follows an open one.
    fn limit(&self) -> Timestamp {
        self.first + self.lengths.longest
    }
}

/// Joins triggers into windows, which end one after the other.
#[derive(Clone, Debug)]
pub struct Windows {
    /// Those of the windows that open from now on.
    lengths: Lengths,
    cooldown: Duration,
    open: Option<Open>,
    /// The window of triggers that come after the longest time of the open one.
    next: Option<Open>,
    /// The start and the end of the last window.
    last: Option<(Timestamp, Timestamp)>,
    suppressed: u64,
}

impl Windows {
    /// Causes that a window names. More are counted.
    pub const MAX_CAUSES: usize = 64;

    /// Windows that look `back` from the first trigger, and `forward` from the last one. All triggers
    /// of a window are within eight times `forward` of the first one: later ones open the next window. That one
    /// takes all triggers until the window before is [taken](Self::due).
    pub fn new(back: Duration, forward: Duration) -> Self {
        Self {
            lengths: Lengths::new(back, forward),
            cooldown: Duration::ZERO,
            open: None,
            next: None,
            last: None,
            suppressed: 0,
        }
    }

    /// Suppresses triggers for this time after the end of a window. Those of a user are never
    /// suppressed: see [`demand`](Self::demand).
    pub const fn set_cooldown(&mut self, cooldown: Duration) {
        self.cooldown = cooldown;
    }

    /// Changes the look-back and look-forward of the windows that open from now on. Those that are open keep theirs.
    pub fn set_lengths(&mut self, back: Duration, forward: Duration) {
        self.lengths = Lengths::new(back, forward);
    }

    /// A trigger fired at this time, which can be before that of others: some are known late.
    ///
    /// Unless it joins a window, it is suppressed during the cooldown, and if the last window has all of its time.
    pub fn fire(&mut self, at: Timestamp, cause: Cause) -> Fired {
        let Lengths { back, forward, .. } = self.lengths;
        let is_over = |(from, until): (Timestamp, Timestamp)| {
            let is_cooling = !self.cooldown.is_zero() && at < until + self.cooldown;
            is_cooling || (at < until && at - back >= from && at + forward <= until)
        };
        let last = match (&self.open, &self.next) {
            (None, _) => self.last,
            (Some(open), None) if at > open.limit() => Some((open.window.start, open.window.end)),
            _ => None,
        };
        if last.is_some_and(is_over) {
            self.suppressed += 1;
            return Fired::Suppressed;
        }
        self.demand(at, cause)
    }

    /// As [`fire`](Self::fire), and is never suppressed.
    pub fn demand(&mut self, at: Timestamp, mut cause: Cause) -> Fired {
        cause.time.get_or_insert(at);
        let (joined, limit) = match (&mut self.open, &mut self.next) {
            (Some(_), Some(next)) if at >= next.first => (next, Timestamp::MAX),
            (Some(open), _) if at <= open.limit() => {
                let limit = open.limit();
                (open, limit)
            }
            (Some(_), Some(next)) => (next, Timestamp::MAX),
            (open, next) => {
                let lengths = self.lengths;
                let mut window = Window::new(at - lengths.back, at + lengths.forward, cause);
                window.suppressed = std::mem::take(&mut self.suppressed);
                let place = if open.is_none() { open } else { next };
                *place = Some(Open { first: at, lengths, window });
                return Fired::Opened;
            }
        };
        let Open { lengths, window, .. } = joined;
        window.start = window.start.min(at - lengths.back);
        window.end = window.end.max((at + lengths.forward).min(limit));
        window.fired += 1;
        let place = window.causes.partition_point(|other| other.time <= cause.time);
        window.causes.insert(place, cause);
        window.causes.truncate(Self::MAX_CAUSES);
        Fired::Joined
    }

    /// More triggers fired, at times between those of the last ones: they are counted with the last one, which had this
    /// effect.
    pub const fn add(&mut self, fired: u64, effect: Fired) {
        match (&mut self.open, &mut self.next, effect) {
            (_, Some(open), Fired::Opened | Fired::Joined)
            | (Some(open), None, Fired::Opened | Fired::Joined) => open.window.fired += fired,
            _ => self.suppressed += fired,
        }
    }

    /// The open window, if everything up to its end was recorded: all up to `recorded` is.
    pub fn due(&mut self, recorded: Timestamp) -> Option<Window> {
        let Open { window, .. } = self.open.take_if(|open| open.window.end <= recorded)?;
        self.ended(window)
    }

    /// The open window, cut at `recorded`: nothing is recorded after it. There can be another one.
    pub fn finish(&mut self, recorded: Timestamp) -> Option<Window> {
        let Open { mut window, .. } = self.open.take()?;
        window.end = window.end.min(recorded);
        self.ended(window)
    }

    fn ended(&mut self, window: Window) -> Option<Window> {
        self.open = self.next.take();
        self.last = Some((window.start, window.end));
        Some(window)
    }

    /// The open window.
    pub fn open(&self) -> Option<&Window> {
        self.open.as_ref().map(|open| &open.window)
    }

    /// Triggers that were suppressed since the last window opened.
    pub const fn suppressed(&self) -> u64 {
        self.suppressed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    fn windows() -> Windows {
        Windows::new(Duration::from_secs(10), Duration::from_secs(2))
    }

    fn cause(text: &str) -> Cause {
        Cause::new("test", text)
    }

    #[test]
    fn a_burst_is_one_window() {
        let mut windows = windows();
        assert_eq!(windows.fire(at(100), cause("a")), Fired::Opened);
        assert_eq!(windows.fire(at(101), cause("b")), Fired::Joined);
        assert_eq!(windows.due(at(102)), None);
        let window = windows.due(at(103)).unwrap();
        assert_eq!((window.start, window.end, window.fired), (at(90), at(103), 2));
        let causes: Vec<_> = window.causes.iter().map(|c| (c.what.as_str(), c.time)).collect();
        assert_eq!(causes, [("a", Some(at(100))), ("b", Some(at(101)))]);
        assert!(windows.open().is_none() && windows.due(at(1000)).is_none());
    }

    #[test]
    fn an_open_window_keeps_its_lengths() {
        let mut windows = windows();
        windows.fire(at(100), cause("a"));
        windows.set_lengths(Duration::from_secs(60), Duration::from_secs(30));
        assert_eq!(windows.fire(at(101), cause("b")), Fired::Joined);
        // It ends 16 s after the first trigger at the latest.
        assert_eq!(windows.fire(at(117), cause("c")), Fired::Opened);
        let window = windows.due(at(103)).unwrap();
        assert_eq!((window.start, window.end, window.fired), (at(90), at(103), 2));
        // So does the one that follows it.
        windows.set_lengths(Duration::from_secs(10), Duration::from_secs(2));
        assert_eq!(windows.fire(at(118), cause("d")), Fired::Joined);
        assert_eq!(windows.due(at(147)), None);
        let window = windows.due(at(148)).unwrap();
        assert_eq!((window.start, window.end, window.fired), (at(57), at(148), 2));
    }

    #[test]
    fn triggers_without_end_are_several_windows() {
        let mut windows = windows();
        let mut ended = Vec::new();
        for second in 0..100 {
            windows.fire(at(second), cause("again"));
            ended.extend(windows.due(at(second)).map(|window| window.end));
        }
        assert_eq!(ended.first(), Some(&at(16)), "eight times two seconds");
        assert!(ended.len() > 4);
    }

    #[test]
    fn the_cooldown_suppresses_all_but_demands() {
        let mut windows = windows();
        windows.set_cooldown(Duration::from_secs(30));
        windows.fire(at(100), cause("a"));
        assert!(windows.due(at(102)).is_some());
        assert_eq!(windows.fire(at(131), cause("b")), Fired::Suppressed);
        assert_eq!(windows.suppressed(), 1);
        assert_eq!(windows.demand(at(131), cause("c")), Fired::Opened);
        let window = windows.finish(at(132)).unwrap();
        assert_eq!((window.end, window.suppressed), (at(132), 1));
        assert_eq!(windows.fire(at(162), cause("d")), Fired::Opened);
    }

    /// Triggers of runtimes are known a second or two after their cause.
    #[test]
    fn late_triggers_are_within_a_window() {
        let mut windows = windows();
        windows.fire(at(100), cause("a"));
        // It joins a window that has begun after it.
        assert_eq!(windows.fire(at(98), cause("b")), Fired::Joined);
        let window = windows.due(at(102)).unwrap();
        assert_eq!((window.start, window.end, window.fired), (at(88), at(102), 2));
        assert!(window.causes.iter().map(|cause| cause.what.as_str()).eq(["b", "a"]));
        // The window has all of its time, or not the end, or not the begin.
        assert_eq!(windows.fire(at(100), cause("c")), Fired::Suppressed);
        assert_eq!(windows.fire(at(101), cause("d")), Fired::Opened);
        let window = windows.due(at(103)).unwrap();
        assert_eq!((window.start, window.end, window.suppressed), (at(91), at(103), 1));
        assert_eq!(windows.fire(at(97), cause("e")), Fired::Opened);
        let window = windows.due(at(103)).unwrap();
        assert_eq!((window.start, window.end), (at(87), at(99)));
        // Those that are known are the earliest ones.
        let first = 200_000;
        for n in (0..200).rev() {
            windows.fire(Timestamp::from_nanos(first + n), cause("f"));
        }
        let window = windows.finish(Timestamp::MAX).unwrap();
        assert_eq!(window.fired, 200);
        let times = window.causes.iter().map(|cause| cause.time.unwrap().nanos());
        assert!(times.eq(first..first + Windows::MAX_CAUSES as i64));
    }

    /// Its dump is written while others fire.
    #[test]
    fn a_window_that_is_not_taken_has_one_that_follows() {
        let mut windows = windows();
        windows.fire(at(100), cause("a"));
        assert_eq!(windows.fire(at(116), cause("b")), Fired::Joined);
        assert_eq!(windows.fire(at(117), cause("c")), Fired::Opened);
        for second in [150, 300] {
            assert_eq!(windows.fire(at(second), cause("d")), Fired::Joined);
        }
        assert_eq!(windows.fire(at(101), cause("e")), Fired::Joined);
        windows.add(5, Fired::Joined);
        let taken = [(); 3].map(|()| windows.due(at(400)));
        let taken =
            taken.map(|window| window.map(|window| (window.start, window.end, window.fired)));
        assert_eq!(taken, [Some((at(90), at(116), 3)), Some((at(107), at(302), 8)), None]);
        windows.add(5, Fired::Suppressed);
        assert_eq!(windows.suppressed(), 5);
        // Not during the cooldown.
        windows.set_cooldown(Duration::from_secs(30));
        assert_eq!(windows.fire(at(400), cause("f")), Fired::Opened);
        assert_eq!(windows.fire(at(417), cause("g")), Fired::Suppressed);
        assert_eq!(windows.demand(at(418), cause("h")), Fired::Opened);
        assert_eq!(windows.fire(at(419), cause("i")), Fired::Joined);
    }

    proptest! {
        /// Each trigger is in exactly one window, or counted as suppressed, and each window is bounded.
        #[test]
        fn every_trigger_is_accounted_for(
            steps in prop::collection::vec((0i64..5, any::<bool>(), 0i64..8), 0..300),
            cooldown in 0u64..6,
        ) {
            let mut windows = windows();
            windows.set_cooldown(Duration::from_secs(cooldown));
            let (mut now, mut fired, mut seen, mut suppressed) = (1000, 0u64, 0u64, 0u64);
            let mut take = |window: Window| {
                seen += window.fired;
                suppressed += window.suppressed;
                let length = window.end.nanos_since(window.start);
                assert!(length <= (10 + 8 + 8 * 2) * 1_000_000_000);
                assert!(window.causes.len() as u64 == window.fired.min(64));
                assert!(window.causes.is_sorted_by_key(|cause| cause.time));
                let times = window.causes.iter().map(|cause| cause.time.unwrap());
                times.for_each(|at| assert!(at <= window.end && at - Duration::from_secs(10) >= window.start));
            };
            for (step, fires, late) in steps {
                now += step;
                if fires {
                    windows.fire(at(now - late), cause("x"));
                    fired += 1;
                }
                windows.due(at(now)).into_iter().for_each(&mut take);
            }
            windows.finish(at(now)).into_iter().for_each(&mut take);
            prop_assert_eq!(seen + suppressed + windows.suppressed(), fired);
        }
    }
}
