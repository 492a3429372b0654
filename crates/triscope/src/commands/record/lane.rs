//! The threads drawn on one CPU.

use trace_export::Timestamp;

/// The thread that runs on a CPU, and the thread drawn there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    /// The running thread, if known.
    running: Option<i32>,
    /// The drawn thread; `None` before the first switch.
    pub(super) drawn: Option<i32>,
    /// The time of the last switch.
    last: Timestamp,
}

/// How to draw a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The previous thread of this switch is not the next thread of the last one: the kernel did
    /// not report the switches between, not even as lost. Between the last switch and this one it is
    /// unknown which thread ran, for this number of nanoseconds.
    ///
    /// Observed on Linux 6.18, also with `perf record`: switches away from some threads appear in
    /// no ring buffer.
    pub(super) gap: Option<u64>,
    /// The drawn thread, if the switch away from it was not reported. The previous thread of this
    /// switch came after it.
    pub(super) left_unseen: Option<i32>,
    /// The drawing does not change.
    pub(super) is_nothing: bool,
}

impl Lane {
    /// The CPU switches from thread `prev` to `next`, which are drawn as `before` and `after`.
    pub(super) fn switch(
        &mut self,
        at: Timestamp,
        (prev, before): (i32, i32),
        (next, after): (i32, i32),
    ) -> Step {
        let since = std::mem::replace(&mut self.last, at);
        let unknown = u64::try_from(at.nanos_since(since)).unwrap_or_default();
        let running = self.running.replace(next);
        let drawn = self.drawn.replace(after);
        let left_unseen = drawn.filter(|drawn| *drawn != before);
        Step {
            gap: running.is_some_and(|running| running != prev).then_some(unknown),
            left_unseen,
            is_nothing: before == after && drawn.is_some(),
        }
    }

    /// The kernel reported lost switches: the running thread is unknown.
    pub(super) const fn lost(&mut self) {
        self.running = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: i32 = 1000;

    fn plain() -> Step {
        Step { gap: None, left_unseen: None, is_nothing: false }
    }

    fn at(nanos: i64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    #[test]
    fn what_changes_is_drawn() {
        let mut lane = Lane::default();
        let step = lane.switch(at(1), (5, OTHER), (6, OTHER));
        assert_eq!(step, plain(), "the first one is drawn");
        let step = lane.switch(at(2), (6, OTHER), (7, OTHER));
        assert_eq!(step, Step { is_nothing: true, ..plain() });
        assert_eq!(lane.switch(at(3), (7, OTHER), (1, 1)), plain());
        assert_eq!(lane.switch(at(4), (1, 1), (7, OTHER)), plain());
    }

    #[test]
    fn gaps_are_seen() {
        let mut lane = Lane::default();
        lane.switch(at(10), (1, 1), (7, OTHER));
        let step = lane.switch(at(25), (1, 1), (8, OTHER));
        let gap = Step { gap: Some(15), left_unseen: Some(OTHER), is_nothing: false };
        assert_eq!(step, gap, "1 has come back unseen");
        // Between other threads a gap does not change the drawing, but it is reported.
        let step = lane.switch(at(30), (9, OTHER), (10, OTHER));
        assert_eq!(step, Step { gap: Some(5), is_nothing: true, ..plain() });
        // A switch out of order has no duration.
        let step = lane.switch(at(20), (9, OTHER), (10, OTHER));
        assert_eq!(step.gap, Some(0));
        // A reported loss is not a gap.
        lane.lost();
        assert_eq!(lane.switch(at(40), (1, OTHER), (1, 1)), plain());
        lane.lost();
        let step = lane.switch(at(50), (9, OTHER), (10, OTHER));
        assert_eq!(step, Step { left_unseen: Some(1), is_nothing: true, ..plain() });
    }
}
