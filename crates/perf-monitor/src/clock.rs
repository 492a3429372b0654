use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use trace_common::{ClockDomain, Timestamp};

/// The `clockid_t` of a clock that perf events can use; `None` for other clocks such as
/// [`ClockDomain::Local`].
pub const fn clock_id(clock: ClockDomain) -> Option<i32> {
    match clock {
        ClockDomain::Realtime => Some(0),
        ClockDomain::Monotonic => Some(1),
        ClockDomain::MonotonicRaw => Some(4),
        ClockDomain::Boottime => Some(7),
        ClockDomain::Tai => Some(11),
        _ => None,
    }
}

/// The current time of a clock that events can use; `None` for other clocks such as
/// [`ClockDomain::Local`].
pub fn now(clock: ClockDomain) -> Option<Timestamp> {
    let id = match clock {
        ClockDomain::Realtime => ClockId::Realtime,
        ClockDomain::Monotonic => ClockId::Monotonic,
        ClockDomain::MonotonicRaw => ClockId::MonotonicRaw,
        ClockDomain::Boottime => ClockId::Boottime,
        // It always exists, but rustix lists it as optional.
        ClockDomain::Tai => {
            return clock_gettime_dynamic(DynamicClockId::Tai).ok().map(nanos);
        }
        _ => return None,
    };
    Some(nanos(clock_gettime(id)))
}

fn nanos(time: rustix::time::Timespec) -> Timestamp {
    let seconds = time.tv_sec.saturating_mul(1_000_000_000);
    Timestamp::from_nanos(seconds.saturating_add(time.tv_nsec))
}
