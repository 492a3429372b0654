use trace_common::ClockDomain;

/// The number of `clock_gettime(2)` for a clock that perf events can use; `None` if they cannot.
pub(crate) const fn clock_id(clock: ClockDomain) -> Option<i32> {
    match clock {
        ClockDomain::Realtime => Some(0),
        ClockDomain::Monotonic => Some(1),
        ClockDomain::MonotonicRaw => Some(4),
        ClockDomain::Boottime => Some(7),
        ClockDomain::Tai => Some(11),
        _ => None,
    }
}
