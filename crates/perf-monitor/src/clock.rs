use crate::system::read_text;
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use std::sync::OnceLock;
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
///
/// In a time namespace it has the offset of that: see `time_namespaces(7)`. Times of events have none:
/// [`event_now`] is for comparisons with them.
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

/// The current time as events have it, without the offset of a time namespace, which is read once; `None`
/// as for [`now`].
pub fn event_now(clock: ClockDomain) -> Option<Timestamp> {
    let offset = time_namespace_offset(clock);
    now(clock).map(|now| now.saturating_add_nanos(offset.saturating_neg()))
}

/// Nanoseconds that the time namespace of this process adds to a clock, which are read once: see
/// `time_namespaces(7)`. Times of events do not have them.
pub fn time_namespace_offset(clock: ClockDomain) -> i64 {
    Offsets::of_this_process().of_clock(clock)
}

/// As [`time_namespace_offset`], of another process. It is read each time; 0 if it cannot be read.
pub fn time_namespace_offset_of(pid: u32, clock: ClockDomain) -> i64 {
    Offsets::of(&pid.to_string()).of_clock(clock)
}

fn nanos(time: rustix::time::Timespec) -> Timestamp {
    let seconds = time.tv_sec.saturating_mul(1_000_000_000);
    Timestamp::from_nanos(seconds.saturating_add(time.tv_nsec))
}

/// Nanoseconds that a time namespace adds to the clocks of the initial one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offsets {
    monotonic: i64,
    boottime: i64,
}

impl Offsets {
    fn of_this_process() -> Self {
        static OFFSETS: OnceLock<Offsets> = OnceLock::new();
        *OFFSETS.get_or_init(|| Self::of("self"))
    }

    /// Those of a process, by its name in `/proc`.
    fn of(process: &str) -> Self {
        let namespace = |name: &str| std::fs::read_link(format!("/proc/{process}/ns/{name}")).ok();
        // The file has the offsets of the namespace that children will have.
        if namespace("time") != namespace("time_for_children") {
            return Self::default();
        }
        Self::parse(&read_text(format!("/proc/{process}/timens_offsets")).unwrap_or_default())
    }

    const fn of_clock(self, clock: ClockDomain) -> i64 {
        match clock {
            ClockDomain::Monotonic | ClockDomain::MonotonicRaw => self.monotonic,
            ClockDomain::Boottime => self.boottime,
            _ => 0,
        }
    }

    /// Lines with a clock, seconds and nanoseconds.
    fn parse(text: &str) -> Self {
        let offset = |clock: &str| {
            let mut words = text.lines().find_map(|line| {
                let mut words = line.split_ascii_whitespace();
                (words.next() == Some(clock)).then_some(words)
            })?;
            let mut number = || words.next()?.parse::<i64>().ok();
            Some(number()?.saturating_mul(1_000_000_000).saturating_add(number()?))
        };
        let [monotonic, boottime] = ["monotonic", "boottime"].map(|c| offset(c).unwrap_or(0));
        Self { monotonic, boottime }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_a_time_namespace_are_parsed() {
        let text = "monotonic      -86400         0\nboottime            7 500000000\n";
        let expected = Offsets { monotonic: -86_400_000_000_000, boottime: 7_500_000_000 };
        assert_eq!(Offsets::parse(text), expected);
        let behind = Offsets { monotonic: -500_000_000, boottime: 0 };
        assert_eq!(Offsets::parse("monotonic -1 500000000\nboottime 0 0\n"), behind);
        // Kernels without time namespaces do not have the file.
        for text in ["", "monotonic\n", "monotonic x 0\nboottime 7\n"] {
            assert_eq!(Offsets::parse(text), Offsets::default());
        }
    }
}
