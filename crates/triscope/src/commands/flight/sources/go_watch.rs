//! Triggers of Go programs, from their traces.

use crate::commands::flight::inbox::Outbox;
use crate::commands::flight::trigger::GoTrigger;
use gotrace::{Event, EventKind, GoId, GoState, Limits, RangeName, Reader, TaskId, Timestamp};
use std::collections::HashMap;
use std::io::Read;
use std::time::Duration;
use trace_flight::Cause;

/// Open regions of all goroutines, and open tasks, that are followed: a program that never ends them must not cost more.
const MAX_OPEN: usize = 1 << 16;

/// Reads a trace up to its end, and posts what fires triggers. Returns why it cannot be read.
pub(super) fn watch(
    trace: impl Read,
    limits: Limits,
    triggers: Vec<GoTrigger>,
    (pid, name): (u32, &str),
    outbox: &Outbox,
) -> Option<String> {
    let mut watch = Watch::new(triggers);
    let read = || -> Result<(), gotrace::Error> {
        let mut reader = Reader::with_limits(trace, limits)?;
        while let Some(event) = reader.next_event()? {
            if let Some((kind, what, at)) = watch.observe(event) {
                let mut cause = Cause::new(kind, format!("{name} ({pid}): {what}"));
                (cause.pid, cause.time) = (Some(pid), Some(at));
                outbox.fired(cause);
            }
        }
        Ok(())
    };
    read().err().map(|error| format!("triggers do not see it any more: {error}"))
}

/// What fired: the kind of trigger, what happened, and when.
type Fired = (&'static str, String, Timestamp);

/// Regions that are open.
#[derive(Default)]
struct Regions {
    /// A goroutine without one has no entry.
    open: HashMap<GoId, Vec<(String, Timestamp)>>,
    /// Those of all goroutines.
    count: usize,
}

impl Regions {
    fn begin(&mut self, goroutine: GoId, ty: &str, at: Timestamp) {
        if self.count < MAX_OPEN {
            self.open.entry(goroutine).or_default().push((ty.to_owned(), at));
            self.count += 1;
        }
    }

    /// Removes the innermost one of this type.
    fn end(&mut self, goroutine: GoId, ty: &[u8]) -> Option<(String, Timestamp)> {
        let open = self.open.get_mut(&goroutine)?;
        let index = open.iter().rposition(|(name, _)| name.as_bytes() == ty)?;
        let region = open.remove(index);
        if open.is_empty() {
            self.open.remove(&goroutine);
        }
        self.count -= 1;
        Some(region)
    }

    /// The goroutine has ended.
    fn forget(&mut self, goroutine: GoId) {
        self.count -= self.open.remove(&goroutine).map_or(0, |open| open.len());
    }
}

struct Watch {
    triggers: Vec<GoTrigger>,
    regions: Regions,
    tasks: HashMap<TaskId, (String, Timestamp)>,
    stops: HashMap<GoId, Timestamp>,
}

impl Watch {
    fn new(triggers: Vec<GoTrigger>) -> Self {
        let (regions, tasks, stops) = (Regions::default(), HashMap::new(), HashMap::new());
        Self { triggers, regions, tasks, stops }
    }

    fn observe(&mut self, event: Event<'_>) -> Option<Fired> {
        let (at, goroutine) = (event.time(), event.goroutine());
        match event.kind() {
            EventKind::RegionBegin => {
                self.regions.begin(goroutine, &event.region()?.name.to_string(), at);
            }
            EventKind::RegionEnd => {
                let (ty, begun) = self.regions.end(goroutine, event.region()?.name)?;
                let limit = self.limit(&ty, |trigger| match trigger {
                    GoTrigger::Region { ty, limit } => Some((ty.as_deref(), *limit)),
                    _ => None,
                });
                return over("go-region", format!("region {ty} of {goroutine}"), begun, at, limit?);
            }
            EventKind::TaskBegin if self.tasks.len() < MAX_OPEN => {
                let task = event.task()?;
                self.tasks.insert(task.id, (task.name.to_string(), at));
            }
            EventKind::TaskEnd => {
                let id = event.task()?.id;
                let (ty, begun) = self.tasks.remove(&id)?;
                let limit = self.limit(&ty, |trigger| match trigger {
                    GoTrigger::Task { ty, limit } => Some((ty.as_deref(), *limit)),
                    _ => None,
                });
                return over("go-task", format!("task {ty} ({id})"), begun, at, limit?);
            }
            EventKind::RangeBegin if self.stops.len() < MAX_OPEN => {
                if let RangeName::StopTheWorld(_) = event.range()?.name {
                    self.stops.insert(goroutine, at);
                }
            }
            EventKind::RangeEnd => {
                let RangeName::StopTheWorld(reason) = event.range()?.name else { return None };
                let begun = self.stops.remove(&goroutine)?;
                let limit = self.triggers.iter().filter_map(|trigger| match trigger {
                    GoTrigger::StopTheWorld(limit) => Some(*limit),
                    _ => None,
                });
                let what = format!("stop-the-world ({reason})");
                return over("go-stw", what, begun, at, limit.min()?);
            }
            EventKind::StateTransition => {
                if let Some((_, GoState::NotExist)) = event.state_transition()?.goroutine() {
                    self.regions.forget(goroutine);
                    self.stops.remove(&goroutine);
                }
            }
            _ => {}
        }
        None
    }

    /// The lowest limit for this type.
    fn limit<'a>(
        &'a self,
        wanted: &str,
        of: impl Fn(&'a GoTrigger) -> Option<(Option<&'a str>, Duration)>,
    ) -> Option<Duration> {
        let of_type = self.triggers.iter().filter_map(of);
        let is_wanted = |ty: &Option<&str>| ty.is_none_or(|ty| ty == wanted);
        of_type.filter(|(ty, _)| is_wanted(ty)).map(|(_, limit)| limit).min()
    }
}

fn over(
    kind: &'static str,
    what: String,
    begun: Timestamp,
    at: Timestamp,
    limit: Duration,
) -> Option<Fired> {
    let time = Duration::from_nanos(u64::try_from(at.nanos_since(begun)).unwrap_or(0));
    (time >= limit).then(|| (kind, format!("{what} took {time:?}"), at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::test_data;

    #[test]
    fn open_regions_of_all_goroutines_have_one_limit() {
        let mut regions = Regions::default();
        let at = Timestamp::from_nanos(1);
        // Each goroutine has two of one type, and one of another.
        for n in 0..MAX_OPEN as i64 {
            ["a", "b", "a"].iter().for_each(|ty| regions.begin(GoId(n), ty, at));
        }
        let open = |regions: &Regions| regions.open.values().map(Vec::len).sum::<usize>();
        assert_eq!((regions.count, open(&regions)), (MAX_OPEN, MAX_OPEN));
        assert_eq!(regions.end(GoId(0), b"a"), Some(("a".to_owned(), at)));
        assert_eq!(regions.end(GoId(0), b"c"), None);
        assert_eq!(regions.open[&GoId(0)].len(), 2);
        regions.forget(GoId(1));
        regions.forget(GoId(i64::MAX));
        assert_eq!((regions.count, open(&regions)), (MAX_OPEN - 4, MAX_OPEN - 4));
        // Nothing is left of goroutines whose regions have ended.
        for n in 0..MAX_OPEN as i64 {
            ["a", "a", "b"].iter().for_each(|ty| drop(regions.end(GoId(n), ty.as_bytes())));
        }
        assert_eq!((regions.count, regions.open.len()), (0, 0));
    }

    /// The trace of the demo has regions and tasks: those that are longer than a limit fire, and no
    /// others.
    #[test]
    fn regions_and_tasks_above_a_limit_fire() {
        let Some(bytes) = test_data::of_repository(test_data::SHOP) else { return };
        let fired = |triggers: &[&str]| -> Vec<String> {
            let of = |text: &&str| match text.parse() {
                Ok(crate::commands::flight::trigger::Trigger::Go(trigger)) => trigger,
                other => panic!("{other:?}"),
            };
            let mut watch = Watch::new(triggers.iter().map(of).collect());
            let mut reader = Reader::new(&bytes[..]).unwrap();
            let mut all = Vec::new();
            while let Some(event) = reader.next_event().unwrap() {
                all.extend(watch.observe(event).map(|(kind, what, _)| format!("{kind}: {what}")));
            }
            all
        };
        let of = |all: &[String], kind: &str| all.iter().filter(|s| s.starts_with(kind)).count();
        let all = fired(&["go-region=1us", "go-task=1us", "go-stw=1us"]);
        let (regions, tasks, stops) =
            (of(&all, "go-region"), of(&all, "go-task"), of(&all, "go-stw"));
        assert!(regions > 0 && tasks > 0 && stops > 0, "{all:?}");
        let some = fired(&["go-region=1ms", "go-task=1h"]);
        assert_eq!(of(&some, "go-task"), 0);
        assert!(of(&some, "go-region") <= regions);
        assert!(fired(&["go-region=no such type:1us"]).is_empty());
    }
}
