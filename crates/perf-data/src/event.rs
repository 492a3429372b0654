//! Events of a recording and the form of their attributes in it.

use perf_monitor::generalized_name;
use perf_sys::*;
use std::collections::HashMap;
use trace_common::{ClockDomain, SeededState};
use zerocopy::{FromBytes, IntoBytes};

/// An event of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedEvent {
    /// Its name, as in `-e` of `perf record`.
    pub name: String,
    /// Its attribute.
    pub attr: perf_event_attr,
    /// The ids that its records have: one for each CPU and task that it was opened on.
    pub ids: Vec<u64>,
}

/// The places of events by their ids.
pub(crate) type PlacesById = HashMap<u64, usize, SeededState>;

/// Published sizes of the attribute.
const SIZES: [u32; 10] = [
    PERF_ATTR_SIZE_VER0,
    PERF_ATTR_SIZE_VER1,
    PERF_ATTR_SIZE_VER2,
    PERF_ATTR_SIZE_VER3,
    PERF_ATTR_SIZE_VER4,
    PERF_ATTR_SIZE_VER5,
    PERF_ATTR_SIZE_VER6,
    PERF_ATTR_SIZE_VER7,
    PERF_ATTR_SIZE_VER8,
    PERF_ATTR_SIZE_VER9,
];

/// The smallest published size that has every used field of these attributes. `perf` refuses an
/// attribute that is longer than the one that it was built with.
pub(crate) fn common_size<'a>(attrs: impl IntoIterator<Item = &'a perf_event_attr>) -> u32 {
    let used = attrs.into_iter().map(|attr| {
        let bytes = attr.as_bytes();
        bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last as u32 + 1)
    });
    let used = used.max().unwrap_or(0);
    SIZES.into_iter().find(|size| *size >= used).unwrap_or(PERF_ATTR_SIZE_VER9)
}

/// The first `size` bytes of an attribute, with that size in it.
pub(crate) fn to_bytes(attr: &perf_event_attr, size: u32) -> Vec<u8> {
    let attr = perf_event_attr { size, ..*attr };
    let bytes = attr.as_bytes();
    bytes.get(..size as usize).unwrap_or(bytes).to_vec()
}

/// An attribute of any size. Fields that it does not have are 0; unknown ones are dropped.
pub(crate) fn from_bytes(bytes: &[u8]) -> perf_event_attr {
    let mut whole = [0; size_of::<perf_event_attr>()];
    for (to, from) in whole.iter_mut().zip(bytes) {
        *to = *from;
    }
    perf_event_attr::read_from_bytes(&whole).unwrap_or_default()
}

/// The clock of an event; `None` if it is that of perf, or one that is not known.
pub(crate) const fn clock_of(attr: &perf_event_attr) -> Option<ClockDomain> {
    if attr.use_clockid() { clock_of_id(attr.clockid) } else { None }
}

/// The clock with this `clockid_t`.
pub(crate) const fn clock_of_id(id: i32) -> Option<ClockDomain> {
    match id {
        0 => Some(ClockDomain::Realtime),
        1 => Some(ClockDomain::Monotonic),
        4 => Some(ClockDomain::MonotonicRaw),
        7 => Some(ClockDomain::Boottime),
        11 => Some(ClockDomain::Tai),
        _ => None,
    }
}

/// The name of an event of which only the attribute is known.
pub(crate) fn name_of(attr: &perf_event_attr) -> String {
    match (generalized_name(attr.type_, attr.config), attr.type_) {
        (Some(name), _) => name,
        (None, PERF_TYPE_RAW) => format!("r{:x}", attr.config),
        (None, PERF_TYPE_BREAKPOINT) => format!("mem:{:#x}/{}", attr.config1, attr.config2),
        (None, type_) => format!("{type_}:{:#x}", attr.config),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those by which events are opened.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_clock_of_an_event_has_its_number() {
        let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, 0);
        attr.clockid = 1;
        assert_eq!(clock_of(&attr), None);
        attr.set_use_clockid(true);
        let mut known = 0;
        for number in 0..32 {
            attr.clockid = number;
            if let Some(clock) = clock_of(&attr) {
                assert_eq!(perf_monitor::clock_id(clock), Some(number));
                known += 1;
            }
        }
        assert_eq!(known, 5);
    }

    #[test]
    fn attributes_have_the_smallest_size_that_fits() {
        let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, 0);
        assert_eq!(common_size([&attr]), PERF_ATTR_SIZE_VER0);
        let small = to_bytes(&attr, PERF_ATTR_SIZE_VER0);
        assert_eq!(small.len(), 64);
        assert_eq!(from_bytes(&small).size, 64);
        attr.config4 = 7;
        assert_eq!(common_size([&perf_event_attr::default(), &attr]), PERF_ATTR_SIZE_VER9);
        assert_eq!(from_bytes(&to_bytes(&attr, PERF_ATTR_SIZE_VER9)), attr);
        // A longer attribute than ours, of a newer kernel.
        let mut long = to_bytes(&attr, PERF_ATTR_SIZE_VER9);
        long.extend([9; 16]);
        assert_eq!(from_bytes(&long), attr);
    }

    #[test]
    fn events_without_a_name_get_the_one_of_their_attribute() {
        let name = |type_, config| name_of(&perf_event_attr::new(type_, config));
        assert_eq!(name(PERF_TYPE_SOFTWARE, 0), "cpu-clock");
        assert_eq!(name(PERF_TYPE_HARDWARE, 1), "instructions");
        assert_eq!(name(PERF_TYPE_RAW, 0x1a8), "r1a8");
        assert_eq!(name(99, 3), "99:0x3");
    }
}
