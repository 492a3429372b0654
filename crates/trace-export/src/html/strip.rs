//! Intervals of one entity in a compact form, and lanes of them.

use super::refs::{By, Refs};
use trace_timeline::{EntityId, StackId, TextId};

/// What an item shows. The page has a colour and a name for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    OnCpu = 0,
    Woken = 1,
    Preempted = 2,
    Sleeping = 3,
    Blocked = 4,
    Stopped = 5,
    Unknown = 6,
    Running = 7,
    RunningWithoutCpu = 8,
    RunningInKernel = 9,
    Runnable = 10,
    Waiting = 11,
    Syscall = 12,
    Gc = 13,
    StopTheWorld = 14,
    Task = 15,
    Region = 16,
    Assist = 17,
    Sweep = 18,
    Jit = 19,
    LockWait = 20,
    Activity = 21,
    Log = 22,
    Exception = 23,
    Other = 24,
    Loss = 25,
    Sample = 26,
    OffCpuSample = 27,
    AllocationSample = 28,
    SyscallWithoutCpu = 29,
    Queued = 30,
    Starvation = 31,
}

/// One interval, or an instant, on a lane. Times are nanoseconds from the start of the timeline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) kind: Kind,
    /// What executes there, or what it is about.
    pub(super) who: Option<EntityId>,
    /// The waker, the thread that has the CPU, or who did it.
    pub(super) by: By,
    pub(super) text: TextId,
    pub(super) stack: Option<StackId>,
}

/// The items of one entity, in time order, encoded: for each the distance from the one before,
/// duration, kind, `who`, `by`, text, stack, as varints.
#[derive(Debug, Default)]
pub(super) struct Strip {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) count: u32,
    /// Whether an item says more than that nothing is known.
    pub(super) is_known: bool,
    bytes: Vec<u8>,
}

impl Strip {
    /// Appends an item. Returns whether a part of it was before the end of the last one, and cut.
    pub(super) fn push(&mut self, item: &Item, refs: &mut Refs) -> bool {
        if self.count == 0 {
            self.start = item.start;
            self.end = item.start;
        }
        let (start, end) = (item.start.max(self.end), item.end.max(self.end));
        let bytes = &mut self.bytes;
        put(bytes, start.abs_diff(self.end));
        put(bytes, end.abs_diff(start));
        bytes.push(item.kind as u8);
        put(bytes, refs.entity(item.who).into());
        put(bytes, refs.by(item.by).into());
        put(bytes, refs.text(item.text).into());
        put(bytes, refs.stack(item.stack).into());
        self.end = end;
        self.count += 1;
        self.is_known |= item.kind != Kind::Unknown;
        start > item.start
    }
}

/// Strips that do not overlap, one after another.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) end: i64,
    pub(super) count: u64,
    /// The entity, if it is the same of all strips.
    pub(super) owner: Option<EntityId>,
    pub(super) bytes: Vec<u8>,
}

impl Lane {
    /// Appends the strip of an entity, which must not begin before the end of this lane.
    pub(super) fn push(&mut self, owner: EntityId, strip: &Strip, refs: &mut Refs) {
        self.owner = if self.count == 0 { Some(owner) } else { self.owner.filter(|o| *o == owner) };
        put(&mut self.bytes, strip.start.abs_diff(self.end));
        put(&mut self.bytes, refs.entity(Some(owner)).into());
        put(&mut self.bytes, strip.count.into());
        self.bytes.extend_from_slice(&strip.bytes);
        self.end = strip.end;
        self.count += u64::from(strip.count);
    }
}

/// Distributes strips over as few lanes as possible, at most `most`. Returns the lanes and the
/// number of strips that found none.
pub(super) fn pack(
    mut strips: Vec<(EntityId, Strip)>,
    most: usize,
    refs: &mut Refs,
) -> (Vec<Lane>, u64) {
    strips.sort_by_key(|(owner, strip)| (strip.start, *owner));
    let mut lanes: Vec<Lane> = Vec::new();
    // The lanes that are free from a time on, the earliest first.
    let mut free = std::collections::BinaryHeap::new();
    let mut left_out = 0;
    for (owner, strip) in strips {
        let is_free = free.peek().is_some_and(|std::cmp::Reverse((end, _))| *end <= strip.start);
        let at = match free.pop() {
            Some(std::cmp::Reverse((_, at))) if is_free => at,
            earliest => {
                free.extend(earliest);
                if lanes.len() >= most {
                    left_out += 1;
                    continue;
                }
                lanes.push(Lane::default());
                lanes.len() - 1
            }
        };
        if let Some(lane) = lanes.get_mut(at) {
            lane.push(owner, &strip, refs);
            // Something without a duration takes room, too.
            let end = if strip.end > strip.start { strip.end } else { strip.end.saturating_add(1) };
            free.push(std::cmp::Reverse((end, at)));
        }
    }
    (lanes, left_out)
}

/// An unsigned LEB128 number.
pub(super) fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_timeline::{Entity, EntityKind, Tables};

    /// Times of a damaged trace.
    #[test]
    fn an_instant_at_the_latest_time_has_a_lane() {
        let owner = Tables::new().entity(Entity::new(EntityKind::Process, 7)).unwrap();
        let (mut strip, mut refs) = (Strip::default(), Refs::default());
        let (at, kind, text) = (i64::MAX, Kind::Log, TextId::EMPTY);
        let item = Item { start: at, end: at, kind, who: None, by: By::Unknown, text, stack: None };
        strip.push(&item, &mut refs);
        let (lanes, left_out) = pack(vec![(owner, strip)], 1, &mut refs);
        assert_eq!((lanes.len(), left_out), (1, 0));
    }
}
