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
    pub at: Option<Timestamp>,
    /// The process.
    pub pid: Option<u32>,
    /// The thread.
    pub tid: Option<u32>,
}

impl Cause {
    /// A cause of this kind.
    pub fn new(trigger: impl Into<String>, what: impl Into<String>) -> Self {
        Self { trigger: trigger.into(), what: what.into(), at: None, pid: None, tid: None }
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
    pub from: Timestamp,
    /// Its end.
    pub until: Timestamp,
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
        Self { from, until, causes: vec![cause], fired: 1, suppressed: 0 }
    }
}

/// The effect of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fired {
    /// It opened a window.
    Opened,
    /// It joined the window that is open, and extended it within its limit.
    Joined,
    /// It was suppressed: the last window has just ended.
    Suppressed,
}

/// Joins triggers into windows: one is open at a time.
#[derive(Clone, Debug)]
pub struct Windows {
    back: Duration,
    forward: Duration,
    /// The maximum time from the first trigger to the end.
    longest: Duration,
    cooldown: Duration,
    open: Option<(Timestamp, Window)>,
    /// The end of the last window.
    ended: Option<Timestamp>,
    suppressed: u64,
}

impl Windows {
    /// Causes that a window names. More are counted.
    pub const MAX_CAUSES: usize = 64;

    /// Windows that look `back` from the first trigger, and `forward` from the last one. All triggers
    /// of a window are within eight times `forward` of the first one.
    pub fn new(back: Duration, forward: Duration) -> Self {
        const LONGEST: u32 = 8;
        Self {
            back,
            forward,
            longest: forward.saturating_mul(LONGEST),
            cooldown: Duration::ZERO,
            open: None,
            ended: None,
            suppressed: 0,
        }
    }

    /// Suppresses triggers for this time after the end of a window. Those of a user are never
    /// suppressed: see [`demand`](Self::demand).
    pub const fn set_cooldown(&mut self, cooldown: Duration) {
        self.cooldown = cooldown;
    }

    /// Changes the look-back and look-forward of the windows that open from now on.
    pub fn set_lengths(&mut self, back: Duration, forward: Duration) {
        let Self { cooldown, open, ended, suppressed, .. } =
            std::mem::replace(self, Self::new(back, forward));
        (self.cooldown, self.open, self.ended, self.suppressed) =
            (cooldown, open, ended, suppressed);
    }

    /// A trigger fired at this time.
    pub fn fire(&mut self, at: Timestamp, cause: Cause) -> Fired {
        let is_cooling = |end: Timestamp| at < end + self.cooldown;
        if self.open.is_none() && self.ended.is_some_and(is_cooling) {
            self.suppressed += 1;
            return Fired::Suppressed;
        }
        self.demand(at, cause)
    }

    /// As [`fire`](Self::fire), also during the cooldown.
    pub fn demand(&mut self, at: Timestamp, mut cause: Cause) -> Fired {
        cause.at.get_or_insert(at);
        let until = at + self.forward;
        match &mut self.open {
            Some((first, window)) => {
                window.until = window.until.max(until.min(*first + self.longest));
                window.fired += 1;
                if window.causes.len() < Self::MAX_CAUSES {
                    window.causes.push(cause);
                }
                Fired::Joined
            }
            None => {
                let mut window = Window::new(at - self.back, until, cause);
                window.suppressed = std::mem::take(&mut self.suppressed);
                self.open = Some((at, window));
                Fired::Opened
            }
        }
    }

    /// The open window, if everything up to its end was recorded: all up to `recorded` is.
    pub fn due(&mut self, recorded: Timestamp) -> Option<Window> {
        let (_, window) = self.open.take_if(|(_, window)| window.until <= recorded)?;
        self.ended = Some(window.until);
        Some(window)
    }

    /// The open window, cut at `recorded`: nothing is recorded after it.
    pub fn finish(&mut self, recorded: Timestamp) -> Option<Window> {
        let (_, mut window) = self.open.take()?;
        window.until = window.until.min(recorded);
        self.ended = Some(window.until);
        Some(window)
    }

    /// The open window.
    pub fn open(&self) -> Option<&Window> {
        self.open.as_ref().map(|(_, window)| window)
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
        assert_eq!((window.from, window.until, window.fired), (at(90), at(103), 2));
        let causes: Vec<_> = window.causes.iter().map(|c| (c.what.as_str(), c.at)).collect();
        assert_eq!(causes, [("a", Some(at(100))), ("b", Some(at(101)))]);
        assert!(windows.open().is_none() && windows.due(at(1000)).is_none());
    }

    #[test]
    fn triggers_without_end_are_several_windows() {
        let mut windows = windows();
        let mut ended = Vec::new();
        for second in 0..100 {
            windows.fire(at(second), cause("again"));
            ended.extend(windows.due(at(second)).map(|window| window.until));
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
        assert_eq!((window.until, window.suppressed), (at(132), 1));
        assert_eq!(windows.fire(at(162), cause("d")), Fired::Opened);
    }

    proptest! {
        /// Each trigger is in exactly one window, or counted as suppressed, and each window is bounded.
        #[test]
        fn every_trigger_is_accounted_for(
            steps in prop::collection::vec((0i64..5, any::<bool>()), 0..300),
            cooldown in 0u64..6,
        ) {
            let mut windows = windows();
            windows.set_cooldown(Duration::from_secs(cooldown));
            let (mut now, mut fired, mut seen, mut suppressed) = (1000, 0u64, 0u64, 0u64);
            let mut take = |window: Window| {
                seen += window.fired;
                suppressed += window.suppressed;
                let length = window.until.nanos_since(window.from);
                assert!(length <= (10 + 8 * 2) * 1_000_000_000);
                assert!(window.causes.len() as u64 == window.fired.min(64));
            };
            for (step, fires) in steps {
                now += step;
                if fires {
                    windows.fire(at(now), cause("x"));
                    fired += 1;
                }
                windows.due(at(now)).into_iter().for_each(&mut take);
            }
            windows.finish(at(now)).into_iter().for_each(&mut take);
            prop_assert_eq!(seen + suppressed + windows.suppressed(), fired);
        }
    }
}
