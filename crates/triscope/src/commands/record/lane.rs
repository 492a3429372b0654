//! What is drawn on one CPU.

/// The thread that has a CPU, and the one that is drawn there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    /// The thread that has it, if that is known.
    running: Option<i32>,
    /// The thread that is drawn; nothing before the first switch.
    pub(super) drawn: Option<i32>,
}

/// What to draw of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The thread that leaves is not the one that came: there were switches between of which the
    /// kernel has reported nothing, not even a loss.
    ///
    /// Measured on Linux 6.18, where `perf record` sees it, too: switches away from some threads
    /// are in no ring.
    pub(super) is_behind_a_gap: bool,
    /// The thread that is drawn, where it has left unseen: the one that leaves now has come since.
    pub(super) left_unseen: Option<i32>,
    /// Nothing (more) changes of what is drawn.
    pub(super) is_nothing: bool,
}

impl Lane {
    /// The CPU goes from thread `prev` to `next`, which are drawn as `before` and `after`.
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

    /// The kernel has reported lost switches: the running thread is not known.
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
        // Between others a gap makes no difference to what is drawn, but there was one.
        let step = lane.switch(9, 10, OTHER, OTHER);
        assert_eq!(step, Step { is_behind_a_gap: true, is_nothing: true, ..plain() });
        // A reported loss is no gap.
        lane.lost();
        assert_eq!(lane.switch(1, 1, OTHER, 1), plain());
        lane.lost();
        let step = lane.switch(9, 10, OTHER, OTHER);
        assert_eq!(step, Step { left_unseen: Some(1), is_nothing: true, ..plain() });
    }
}
