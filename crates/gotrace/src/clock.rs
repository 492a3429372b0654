//! The clock of a trace: ticks as nanoseconds.

/// Converts ticks of the trace clock to nanoseconds as Go on amd64 does: in floating point, where
/// values out of range become the least integer.
///
/// On Linux a tick is 64 ns. Where a tick is a whole number of nanoseconds and the product is below
/// 2⁵³, floating point is exact and an integer multiplication has the same result. It is three
/// times as fast, and it is on the critical path of each event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TickScale {
    nanos_per_tick: f64,
    /// The same as an integer, for ticks below `exact_below`.
    whole: u64,
    exact_below: u64,
}

impl TickScale {
    pub(crate) fn new(nanos_per_tick: f64) -> Self {
        let whole = nanos_per_tick as u64;
        let exact = whole > 0 && whole as f64 == nanos_per_tick;
        let exact_below = if exact { (1 << 53) / whole } else { 0 };
        Self { nanos_per_tick, whole, exact_below }
    }

    #[inline(always)]
    pub(crate) fn nanos(self, ticks: u64) -> i64 {
        if ticks < self.exact_below { (ticks * self.whole) as i64 } else { self.rounded(ticks) }
    }

    #[inline]
    fn rounded(self, ticks: u64) -> i64 {
        let nanos = ticks as f64 * self.nanos_per_tick;
        // The next lower double is in range, and times are not negative.
        if nanos < 9_223_372_036_854_775_808.0 { nanos as i64 } else { i64::MIN }
    }
}

/// Seconds and nanoseconds with the nanoseconds below one second.
pub(crate) fn normalize(seconds: i64, nanos: i64) -> (i64, u32) {
    const SECOND: i64 = 1_000_000_000;
    (seconds.wrapping_add(nanos.div_euclid(SECOND)), nanos.rem_euclid(SECOND) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn out_of_range_is_the_most_negative_number() {
        for (ticks, nanos_per_tick) in
            [(u64::MAX, 64.0), (1, f64::INFINITY), (0, f64::INFINITY), (1 << 63, 1.0)]
        {
            assert_eq!(TickScale::new(nanos_per_tick).nanos(ticks), i64::MIN);
        }
        assert_eq!(TickScale::new(1.0).nanos((1 << 62) - 1), 1 << 62, "as rounded");
    }

    proptest! {
        #[test]
        fn whole_ticks_give_what_floating_point_gives(
            ticks in prop_oneof![any::<u64>(), 0u64..1 << 50],
            per_second in prop_oneof![Just(15_625_000u64), Just(1_000_000_000), 1u64..1 << 40],
        ) {
            let scale = TickScale::new(1.0 / (per_second as f64 / 1e9));
            prop_assert_eq!(scale.nanos(ticks), scale.rounded(ticks));
        }
    }

    #[test]
    fn the_ticks_of_linux_are_whole() {
        assert!(TickScale::new(1.0 / (15_625_000.0 / 1e9)).exact_below > 1 << 46);
    }

    #[test]
    fn wall_clocks_are_normalized() {
        assert_eq!(normalize(5, -1), (4, 999_999_999));
        assert_eq!(normalize(5, 2_000_000_001), (7, 1));
        assert_eq!(normalize(i64::MAX, i64::MAX).1, (i64::MAX % 1_000_000_000) as u32);
    }
}
