//! The threads drawn on one CPU.

/// The thread that runs on a CPU, and the thread drawn there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    /// The running thread, if known.
    running: Option<i32>,
    /// The drawn thread; `None` before the first switch.
    pub(super) drawn: Option<i32>,
}

/// How to draw a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The previous thread of this switch is not the next thread of the last one: the kernel did
    /// not report the switches between, not even as lost.
    ///
    /// Observed on Linux 6.18, also with `perf record`: switches away from some threads appear in
    /// no ring buffer.
    pub(super) is_behind_a_gap: bool,
    /// The drawn thread, if the switch away from it was not reported. The previous thread of this
    /// switch came after it.
    pub(super) left_unseen: Option<i32>,
    /// The drawing does not change.
    pub(super) is_nothing: bool,
}

impl Lane {
    /// The CPU switches from thread `prev` to `next`, which are drawn as `before` and `after`.
    pub(super) fn switch(&mut self, prev: i32, next: i32, before: i32, after: i32) -> Step {
        let running = self.running.replace(next);
        let drawn = self.drawn.replace(after);
        let left_unseen = drawn.filter(|drawn| *drawn != before);
        Step {
            is_behind_a_gap: running.is_some_and(|running| running != prev),
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
        Step { is_behind_a_gap: false, left_unseen: None, is_nothing: false }
    }

    #[test]
    fn what_changes_is_drawn() {
        let mut lane = Lane::default();
        assert_eq!(lane.switch(5, 6, OTHER, OTHER), plain(), "the first one is drawn");
        assert_eq!(lane.switch(6, 7, OTHER, OTHER), Step { is_nothing: true, ..plain() });
        assert_eq!(lane.switch(7, 1, OTHER, 1), plain());
        assert_eq!(lane.switch(1, 7, 1, OTHER), plain());
    }

    #[test]
    fn gaps_are_seen() {
        let mut lane = Lane::default();
        lane.switch(1, 7, 1, OTHER);
        let step = lane.switch(1, 8, 1, OTHER);
        let gap = Step { is_behind_a_gap: true, left_unseen: Some(OTHER), is_nothing: false };
        assert_eq!(step, gap, "1 has come back unseen");
        // Between other threads a gap does not change the drawing, but it is reported.
        let step = lane.switch(9, 10, OTHER, OTHER);
        assert_eq!(step, Step { is_behind_a_gap: true, is_nothing: true, ..plain() });
        // A reported loss is not a gap.
        lane.lost();
        assert_eq!(lane.switch(1, 1, OTHER, 1), plain());
        lane.lost();
        let step = lane.switch(9, 10, OTHER, OTHER);
        assert_eq!(step, Step { left_unseen: Some(1), is_nothing: true, ..plain() });
    }
}
