//! Ranges of time of a Go trace.

use super::section::Section;
use super::{Pass, Reading, Recovery, Trace, Visitor, read};
use crate::failure::{Failure, Result};
use crate::io::input;
use crate::io::progress::Progress;
use crate::run::duration;
use gotrace::analysis::{Clip, Clipped};
use gotrace::parallel::Split;
use gotrace::{Error, Event, Index, Limits, Loss, Reader, Timestamp};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use trace_common::ClockDomain;

/// A range of time, relative to the start of a trace.
#[derive(Clone, Copy, Default, clap::Args)]
#[group(id = "range", multiple = true)]
pub(crate) struct TimeRange {
    /// Only from this time on, in seconds after the start of the trace
    ///
    /// Of a trace of Go 1.22 or later that is not compressed, most commands read only the generations of
    /// the range. They do not know types of tasks, stacks and names that only earlier generations
    /// have. go events, go tasks, go regions, go profile, go critical-path, go allocs, and go goroutines
    /// with --task or --region read from the start of the trace.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) from: Option<i64>,
    /// Only up to this time, in seconds after the start of the trace
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) to: Option<i64>,
}

/// Parses seconds, and converts them to nanoseconds.
fn seconds(arg: &str) -> std::result::Result<i64, &'static str> {
    let seconds = duration::seconds(arg, 0.0..1e9);
    seconds.map(duration::nanos).ok_or("expected a number of seconds from 0 to 1000000000")
}

impl TimeRange {
    /// Whether there is a restriction.
    pub(crate) const fn is_given(self) -> bool {
        self.from.is_some() || self.to.is_some()
    }

    /// Refuses a range whose end is before its start.
    pub(crate) fn check(self) -> Result {
        if self.to.is_some_and(|to| to < self.from.unwrap_or(0)) {
            return Err(Failure::new("--to is before --from").with_code(2));
        }
        Ok(())
    }

    /// Refuses a range after the end of the trace, unless the trace ends with an error. `has_begun`
    /// says whether an event is in the range or after it.
    pub(crate) fn check_begun(self, has_begun: bool, reading: &Reading) -> Result {
        match &reading.error {
            None if !has_begun && self.is_given() => Err(reading.no_events()),
            _ => Ok(()),
        }
    }

    /// The first and the last time, in a trace that starts at `start`.
    pub(crate) fn bounds(self, start: Timestamp) -> (Timestamp, Timestamp) {
        let at = |nanos| start.saturating_add_nanos(nanos);
        (self.from.map_or(Timestamp::MIN, at), self.to.map_or(Timestamp::MAX, at))
    }

    /// The first and the last time in a trace that is read several times.
    pub(crate) fn bounds_in(
        self,
        path: &Path,
        recovery: Recovery,
    ) -> Result<(Timestamp, Timestamp)> {
        self.check()?;
        if !self.is_given() {
            return Ok((Timestamp::MIN, Timestamp::MAX));
        }
        input::check_twice(path, "a restriction to a range of time")?;
        let trace = Trace::open(path, Progress::again())?;
        let fail = |error: Error| Failure::about(&trace.name, error);
        let mut reader = Reader::with_limits(trace.bytes, recovery.limits()).map_err(fail)?;
        // Without an event there is nothing to restrict, and reading reports the error.
        let start = super::start(&mut reader, recovery);
        Ok(self.bounds(start.unwrap_or_default()))
    }

    /// The generations of a trace that overlap the range, and the start of the trace; all of the
    /// trace if that is not known without decoding it.
    pub(crate) fn open(
        self,
        path: &Path,
        progress: Progress,
        recovery: Recovery,
    ) -> Result<Opened> {
        self.check()?;
        let section = if self.is_given() { self.section(path, recovery.limits())? } else { None };
        let Some((section, start)) = section else { return self.open_whole(path, progress) };
        let name = path.display().to_string();
        let bytes = section.open(path).map_err(|error| Failure::about(&name, error))?;
        let bytes = Box::new(bytes);
        Ok(Opened { trace: Trace { name, bytes, progress }, start: Some(start), range: self })
    }

    /// All of the trace, for what depends on earlier generations.
    pub(crate) fn open_whole(self, path: &Path, progress: Progress) -> Result<Opened> {
        self.check()?;
        Ok(Opened { trace: Trace::open(path, progress)?, start: None, range: self })
    }

    /// Analyses the range, on several threads if possible.
    pub(crate) fn analyse<A: Split>(
        self,
        path: &Path,
        pass: &Pass,
        recovery: Recovery,
        mut analysis: A,
    ) -> Result<(A, Reading)> {
        if !self.is_given() {
            let reading = super::read_split(path, pass, recovery, &mut analysis)?;
            return Ok((analysis, reading));
        }
        self.check()?;
        let Some((section, start)) = self.section(path, recovery.limits())? else {
            let opened = self.open(path, pass.progress.clone(), recovery)?;
            let reading = opened.clip(recovery, &mut super::Analyst(&mut analysis))?;
            return Ok((analysis, reading));
        };
        let (from, to) = self.bounds(start);
        let mut clipped = Clipped::new(from, to, analysis);
        let open = || section.open(path);
        let name = path.display().to_string();
        let visitor = ClippedAnalyst(&mut clipped);
        let mut reading = super::read_parallel(name, open, pass, recovery, visitor)?;
        reading.start = Some(start);
        Ok((clipped.finish(), reading))
    }

    /// The generations that overlap the range, and the start of the trace; `None` for what is no
    /// undamaged file of a trace with generations, and for a range between two of them.
    fn section(self, path: &Path, limits: Limits) -> Result<Option<(Section, Timestamp)>> {
        if path.as_os_str() == "-" || !path.is_file() {
            return Ok(None);
        }
        let Ok(file) = File::open(path) else { return Ok(None) };
        // A compressed trace, text, or a trace of Go before 1.22 has no index.
        let index = match Index::with_limits(BufReader::with_capacity(1 << 16, &file), limits) {
            Ok(index) if index.damage().is_none() => index,
            _ => return Ok(None),
        };
        let Some(start) = index.generations().first().map(|first| first.first) else {
            return Ok(None);
        };
        let (from, to) = self.bounds(start);
        let selected = index.generations().get(index.select(from, to)).unwrap_or_default();
        let (Some(first), Some(last)) = (selected.first(), selected.last()) else {
            // Between two generations, all has the states at the end of the first of them.
            let end = index.generations().last().map(|last| last.last).filter(|end| *end < from);
            return match end {
                Some(end) => Err(super::no_events(path.display(), Some((start, end)))),
                None => Ok(None),
            };
        };
        let (header, offset) = (index.version().header(), first.offset);
        let len = last.offset + last.len - offset;
        Ok(Some((Section { header, offset, len }, start)))
    }
}

/// A trace, or the part of it that overlaps a range of time.
pub(crate) struct Opened {
    pub(crate) trace: Trace,
    range: TimeRange,
    /// The start of the whole trace, if that is not the start of the part.
    start: Option<Timestamp>,
}

impl Opened {
    /// A whole trace.
    pub(crate) const fn whole(trace: Trace) -> Self {
        Self { trace, range: TimeRange { from: None, to: None }, start: None }
    }

    /// Whether its bytes are those that the range needs: those of the generations that overlap it.
    pub(crate) const fn is_of_range(&self) -> bool {
        self.start.is_some() || !self.range.is_given()
    }

    /// Passes on the events of the range, and the states at its start and end.
    pub(crate) fn clip(self, recovery: Recovery, visitor: &mut impl Visitor) -> Result<Reading> {
        let Self { trace, range, start } = self;
        if !range.is_given() {
            return read(trace, recovery, visitor);
        }
        let bounds = start.map(|start| range.bounds(start));
        let mut clipped =
            Cut { range, bounds, clip: None, is_lost: false, has_begun: false, visitor };
        let mut reading = read(trace, recovery, &mut clipped)?;
        reading.start = start.or(reading.start);
        range.check_begun(clipped.has_begun, &reading)?;
        reading.repeated = clipped.finish()?;
        Ok(reading)
    }

    /// Passes on the events of the range, and nothing else.
    pub(crate) fn filter(self, recovery: Recovery, visitor: &mut impl Visitor) -> Result<Reading> {
        let Self { trace, range, start } = self;
        if !range.is_given() {
            return read(trace, recovery, visitor);
        }
        let bounds = start.map(|start| range.bounds(start));
        let mut filtered = Filtered { range, bounds, has_begun: false, is_over: false, visitor };
        let mut reading = read(trace, recovery, &mut filtered)?;
        reading.start = start.or(reading.start);
        range.check_begun(filtered.has_begun, &reading)?;
        Ok(reading)
    }
}

/// Passes the events to an analysis of a range of time.
struct ClippedAnalyst<'a, A>(&'a mut Clipped<A>);

impl<A: Split> Visitor for ClippedAnalyst<'_, A> {
    fn push(&mut self, event: Event<'_>) -> Result {
        self.0.push(event);
        Ok(())
    }

    fn loss(&mut self, _error: &Error, _loss: &Loss) -> Result {
        self.0.loss();
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }
}

impl<A> AsMut<Clipped<A>> for ClippedAnalyst<'_, A> {
    fn as_mut(&mut self) -> &mut Clipped<A> {
        self.0
    }
}

struct Cut<'a, V> {
    range: TimeRange,
    bounds: Option<(Timestamp, Timestamp)>,
    /// `None` before the first event.
    clip: Option<Clip>,
    /// There was a loss before the first event.
    is_lost: bool,
    has_begun: bool,
    visitor: &'a mut V,
}

impl<V: Visitor> Cut<'_, V> {
    /// Completes the range, and returns the number of events that only report states.
    fn finish(&mut self) -> Result<u64> {
        let mut outcome = Ok(());
        let Some(clip) = &mut self.clip else { return Ok(0) };
        clip.finish(&mut |event| pass(self.visitor, event, &mut outcome));
        outcome.map(|()| clip.repeated())
    }
}

/// Passes on an event, unless an earlier one failed.
fn pass(visitor: &mut impl Visitor, event: Event<'_>, outcome: &mut Result) {
    if outcome.is_ok() {
        *outcome = visitor.push(event);
    }
}

impl<V: Visitor> Visitor for Cut<'_, V> {
    fn begin(&mut self, clock: ClockDomain) -> Result {
        self.visitor.begin(clock)
    }

    fn push(&mut self, event: Event<'_>) -> Result {
        let range = self.range;
        let (from, to) = *self.bounds.get_or_insert_with(|| range.bounds(event.time()));
        self.has_begun |= event.time() >= from;
        if event.time() < from {
            self.visitor.before(event)?;
        }
        let is_lost = self.is_lost;
        let clip = self.clip.get_or_insert_with(|| {
            let mut clip = Clip::new(from, to);
            if is_lost {
                clip.loss();
            }
            clip
        });
        let mut outcome = Ok(());
        clip.push(event, &mut |event| pass(self.visitor, event, &mut outcome));
        outcome
    }

    fn loss(&mut self, error: &Error, loss: &Loss) -> Result {
        let Some(clip) = &mut self.clip else {
            self.is_lost = true;
            // Where the range begins with the trace, the clip has nothing to pass on that says so.
            let is_from_start = self.range.from.is_none_or(|from| from <= 0);
            return if is_from_start { self.visitor.loss(error, loss) } else { Ok(()) };
        };
        clip.loss();
        // The states before the range are those of the clip, and damage after it changes nothing in it.
        if clip.is_within() { self.visitor.loss(error, loss) } else { Ok(()) }
    }

    fn is_complete(&self) -> bool {
        self.clip.as_ref().is_some_and(Clip::is_complete) || self.visitor.is_complete()
    }
}

struct Filtered<'a, V> {
    range: TimeRange,
    bounds: Option<(Timestamp, Timestamp)>,
    has_begun: bool,
    is_over: bool,
    visitor: &'a mut V,
}

impl<V: Visitor> Visitor for Filtered<'_, V> {
    fn begin(&mut self, clock: ClockDomain) -> Result {
        self.visitor.begin(clock)
    }

    fn push(&mut self, event: Event<'_>) -> Result {
        let range = self.range;
        let (from, to) = *self.bounds.get_or_insert_with(|| range.bounds(event.time()));
        self.has_begun |= event.time() >= from;
        self.is_over = event.time() > to;
        match event.time() {
            time if time < from => self.visitor.before(event),
            _ if self.is_over => {
                self.visitor.after();
                Ok(())
            }
            _ => self.visitor.push(event),
        }
    }

    fn loss(&mut self, error: &Error, loss: &Loss) -> Result {
        self.visitor.loss(error, loss)
    }

    fn is_complete(&self) -> bool {
        self.is_over || self.visitor.is_complete()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{damage, region};
    use super::*;
    use gotrace::analysis::Summarizer;
    use gotrace::synthetic::{EventConfig, EventDetails, SyncDetails};
    use gotrace::{GoId, GoState, StateTransition, ThreadId};

    struct Summarizing(Summarizer);

    impl Visitor for Summarizing {
        fn push(&mut self, event: Event<'_>) -> Result {
            self.0.push(event);
            Ok(())
        }

        fn loss(&mut self, _error: &Error, _loss: &Loss) -> Result {
            self.0.loss();
            Ok(())
        }
    }

    #[test]
    fn damage_after_the_range_changes_nothing_in_it() {
        let Some((error, loss)) = damage() else { return };
        let times = |is_damaged: bool| {
            let range = TimeRange { from: None, to: Some(300) };
            let mut summary = Summarizing(Summarizer::new());
            let (clip, visitor) = (None, &mut summary);
            let is_lost = false;
            let mut cut = Cut { range, bounds: None, clip, is_lost, has_begun: false, visitor };
            let (before, after) = region(is_damaged);
            before.iter().for_each(|event| cut.push(event.as_event()).unwrap());
            if is_damaged {
                cut.loss(&error, &loss).unwrap();
            }
            after.iter().for_each(|event| cut.push(event.as_event()).unwrap());
            cut.finish().unwrap();
            let goroutine = summary.0.finish().goroutines.swap_remove(0);
            let regions = goroutine.open_regions.iter().map(|region| region.times.total);
            (goroutine.times.total.as_nanos(), regions.map(|time| time.as_nanos()).collect())
        };
        assert_eq!(times(false), (300, vec![200]));
        assert_eq!(times(true), times(false));
    }

    #[test]
    fn damage_within_the_range_concerns_its_analysis() {
        let Some((error, loss)) = damage() else { return };
        let mut summary = Summarizing(Summarizer::new());
        let range = TimeRange { from: Some(0), to: None };
        let visitor = &mut summary;
        let (clip, is_lost) = (None, false);
        let mut cut = Cut { range, bounds: None, clip, is_lost, has_begun: false, visitor };
        region(true).0.iter().for_each(|event| cut.push(event.as_event()).unwrap());
        cut.loss(&error, &loss).unwrap();
        cut.finish().unwrap();
        assert_eq!(summary.0.finish().goroutines[0].open_regions, []);
    }

    /// What is mentioned for the first time after damage may have the same state before and after.
    #[test]
    fn damage_before_the_first_event_concerns_each_range() {
        let Some((error, loss)) = damage() else { return };
        let at = |time, details| {
            let event = EventConfig::new(details).time(Timestamp::from_nanos(time));
            event.goroutine(GoId(7)).thread(ThreadId(1)).build().unwrap()
        };
        let waits = StateTransition::of_goroutine(GoId(7), GoState::Waiting, GoState::Waiting);
        let events = [
            at(100, EventDetails::Sync(SyncDetails { n: 1, ..SyncDetails::default() })),
            at(400, EventDetails::StateTransition(waits)),
            at(600, EventDetails::StackSample),
        ];
        let total = |from, to| {
            let mut summary = Summarizing(Summarizer::new());
            let (clip, is_lost, visitor) = (None, false, &mut summary);
            let range = TimeRange { from, to };
            let mut cut = Cut { range, bounds: None, clip, is_lost, has_begun: false, visitor };
            cut.loss(&error, &loss).unwrap();
            events.iter().for_each(|event| cut.push(event.as_event()).unwrap());
            cut.finish().unwrap();
            let goroutines = summary.0.finish().goroutines;
            goroutines.iter().map(|one| one.times.total.as_nanos()).sum::<u128>()
        };
        let whole = total(None, None);
        assert_eq!(whole, 500);
        for middle in [100, 200, 400] {
            let (first, rest) = (total(None, Some(middle)), total(Some(middle), None));
            assert_eq!((first, first + rest), (middle as u128, whole));
        }
    }
}
