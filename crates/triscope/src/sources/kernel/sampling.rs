//! Events that take samples, and the records that come with them.

use super::events::Cpus;
use super::remedy::{is_missing, is_missing_for_kernel};
use super::{failure, pages_of, rings, tracefs};
use crate::failure::{Failure, Result};
use crate::sources::symbols;
use perf_data::{Features, RecordedEvent, TracingData};
use perf_monitor::{
    Event, EventBuilder, RingSet, SampleFlags, SetEvent, Software, WithoutKernel, max_sample_rate,
    max_stack,
};
use std::path::PathBuf;
use std::time::Duration;

/// Fields of all samples.
const FIELDS: SampleFlags = SampleFlags::IDENTIFIER
    .union(SampleFlags::IP)
    .union(SampleFlags::TID)
    .union(SampleFlags::TIME)
    .union(SampleFlags::CPU);

/// Bytes of each CPU's buffer for the records about tasks: a process that starts writes about 2 KiB.
const SIDE_BYTES: usize = 128 << 10;

/// The recorder wakes when this part of a buffer is filled: the rest is for the time until it gets the
/// CPU.
const WAKEUP_PART: u32 = 8;

/// Requested time slice of the reader. A chunk of 512 KiB takes about as long.
pub(crate) const SLICE: Duration = Duration::from_micros(100);

/// Bytes in a ring that wake the recorder.
pub(crate) fn watermark(set: &RingSet) -> u64 {
    (set.pages() * rustix::param::page_size()) as u64 / u64::from(WAKEUP_PART)
}

/// An event that only user space is sampled of, if this is set.
pub(crate) fn without_kernel(builder: EventBuilder, user_only: bool) -> EventBuilder {
    if user_only { builder.exclude_kernel(true).exclude_hv(true) } else { builder }
}

/// How often an event is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rate {
    /// Once per this number of events.
    Period(u64),
    /// In samples per second.
    Hertz(u64),
    /// As often as the kernel permits, or in samples per second if that is not known.
    Max(u64),
    /// Tracepoints and probes at each occurrence, others in samples per second, at most as often as the
    /// kernel permits.
    Usual(u64),
}

impl Rate {
    fn apply(self, builder: EventBuilder) -> EventBuilder {
        match self {
            Self::Period(period) => builder.sample_period(period),
            Self::Hertz(hertz) => builder.sample_freq(hertz),
            Self::Max(otherwise) => builder.sample_freq(max_rate(otherwise)),
            Self::Usual(_) if is_each_recorded(builder.event()) => builder.sample_period(1),
            Self::Usual(hertz) => builder.sample_freq(hertz.min(max_rate(hertz))),
        }
    }
}

/// The tasks and CPUs that events are opened on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// Threads; none for everything on the CPUs.
    pub(crate) tids: Vec<u32>,
    /// The directories of cgroups whose tasks are sampled on the CPUs, instead of everything.
    pub(crate) cgroups: Vec<PathBuf>,
    /// All CPUs, or these.
    pub(crate) cpus: Option<Cpus>,
    /// Whether children of the threads are included.
    pub(crate) inherit: bool,
    /// Whether the events start with the program that the threads execute.
    pub(crate) on_exec: bool,
    /// Whether mappings that are not executable are recorded, too.
    pub(crate) data: bool,
}

/// The calling thread, as a target of events.
pub(crate) const THIS_THREAD: u32 = 0;

impl Scope {
    /// Options of all events.
    pub(crate) fn common(&self, event: &Event) -> EventBuilder {
        let builder = event.builder().sample(FIELDS);
        builder.inherit(self.inherit).enable_on_exec(self.on_exec)
    }

    /// An event that takes samples, with these fields in addition to those that every sample has.
    pub(crate) fn sampling(
        &self,
        event: &Event,
        fields: SampleFlags,
        rate: Rate,
        user_only: bool,
    ) -> EventBuilder {
        let of_kind = match (event.as_tracepoint(), rate) {
            // With PERIOD, the kernel takes a sample of each software event, whatever the period.
            (Some(_), Rate::Period(2..)) => SampleFlags::RAW,
            (Some(_), _) => SampleFlags::RAW | SampleFlags::PERIOD,
            (None, Rate::Period(_)) => SampleFlags::empty(),
            (None, _) => SampleFlags::PERIOD,
        };
        let builder = self.common(event).sample(FIELDS | fields | of_kind);
        rate.apply(without_kernel(builder, user_only))
    }

    /// An event whose samples have call chains.
    pub(crate) fn chains(&self, event: &Event, rate: Rate, user_only: bool) -> EventBuilder {
        let builder = self.sampling(event, SampleFlags::CALLCHAIN, rate, user_only);
        builder.sample_max_stack(max_depth())
    }

    /// Context switches with their call chains, and records of the switches back: the time that threads
    /// are away from the CPU.
    pub(crate) fn switches(&self) -> EventBuilder {
        let switches = Event::software(Software::ContextSwitches);
        self.chains(&switches, Rate::Period(1), false).context_switch(true)
    }

    /// Opens rings of the requested number of pages, or of at most `usual`, without events but that of
    /// the records about tasks.
    pub(crate) fn open(
        &self,
        asked: Option<usize>,
        usual: usize,
        user_only: bool,
    ) -> perf_monitor::Result<Opened> {
        let mut options = rings(asked, usual);
        for tid in &self.tids {
            options = options.thread(*tid);
        }
        for dir in &self.cgroups {
            options = options.cgroup_at(dir)?;
        }
        if let Some(Cpus(cpus)) = &self.cpus {
            options = options.cpus(cpus.iter().copied());
        }
        let dummy = self.common(&Event::software(Software::Dummy));
        let dummy = dummy.exclude_kernel(true).exclude_hv(true).mmap_data(self.data);
        // In rings of its own: a flood of samples does not lose records about tasks and mappings.
        let dummy = symbols::live::sideband(dummy);
        let side_pages = pages_of(SIDE_BYTES);
        let options = options.wakeup_part(WAKEUP_PART).sideband_ring(&dummy, side_pages);
        let (events, writers, features) = (Vec::new(), Vec::new(), Features::of_this_machine());
        Ok(Opened { set: options.open()?, events, writers, features, user_only })
    }
}

/// The maximum number of frames of a call chain. In an event it is explicit, so that a chain of that
/// length is known to be truncated.
pub(crate) fn max_depth() -> u16 {
    max_stack().and_then(|depth| u16::try_from(depth).ok()).unwrap_or(0)
}

/// Opens events of which [`Scope::switches`] are a part: not without the kernel.
pub(crate) fn with_switches<T>(open: impl FnOnce(bool) -> perf_monitor::Result<T>) -> Result<T> {
    open(false).map_err(|error| match error.reason() {
        Some(reason) if is_missing(reason) => failure(error)
            .and("a thread leaves the CPU in the kernel, which this user may not sample"),
        _ => failure(error),
    })
}

/// Opens events; without the kernel if only that is permitted, and each of them is one of user space, too.
pub(crate) fn with_kernel_or_not<'a, T>(
    events: impl IntoIterator<Item = &'a Event>,
    mut open: impl FnMut(bool) -> perf_monitor::Result<T>,
) -> perf_monitor::Result<T> {
    open(false).or_else(|error| {
        let is_for_kernel = error.reason().is_some_and(is_missing_for_kernel);
        match is_for_kernel && !events.into_iter().any(is_of_kernel) {
            true => open(true),
            false => Err(error),
        }
    })
}

/// Whether an event has nothing without the kernel: `:k`, or one that only occurs there.
fn is_of_kernel(event: &Event) -> bool {
    let builder = event.builder();
    let attr = builder.attr();
    let occurs_there = event.without_kernel() == WithoutKernel::Nothing;
    attr.exclude_user() || (occurs_there && !attr.exclude_kernel())
}

/// Rings, and their events as a recording has them.
pub(crate) struct Opened {
    pub(crate) set: RingSet,
    pub(crate) events: Vec<RecordedEvent>,
    /// The events that write records.
    pub(crate) writers: Vec<SetEvent>,
    /// The machine and the groups.
    pub(crate) features: Features,
    pub(crate) user_only: bool,
}

impl Opened {
    /// Adds an event.
    pub(crate) fn add(&mut self, builder: &EventBuilder) -> perf_monitor::Result<()> {
        let added = self.set.add(builder)?;
        self.record(added, [builder.event()])
    }

    /// Adds the descriptions of an event of the set and the members of its group.
    pub(crate) fn record<'a>(
        &mut self,
        added: SetEvent,
        events: impl IntoIterator<Item = &'a Event>,
    ) -> perf_monitor::Result<()> {
        let leader = (self.set.attr(added)?, self.set.ids(added)?);
        let all = [leader].into_iter().chain(self.set.members(added)?);
        for (event, (attr, ids)) in events.into_iter().zip(all) {
            let is_user = self.user_only
                && event.as_tracepoint().is_none()
                // Otherwise its own name says it.
                && !event.builder().attr().exclude_kernel();
            let name = format!("{event}{}", if is_user { ":u" } else { "" });
            self.events.push(RecordedEvent { name, attr, ids });
        }
        self.writers.push(added);
        Ok(())
    }

    /// Adds the description of the event of the records about tasks: after all others.
    pub(crate) fn with_sideband(mut self) -> perf_monitor::Result<Self> {
        if let Some(event) = self.set.sideband() {
            let (attr, ids) = (self.set.attr(event)?, self.set.ids(event)?);
            self.writers.push(event);
            self.events.push(RecordedEvent { name: "dummy:u".to_owned(), attr, ids });
        }
        Ok(self)
    }
}

/// The ids that the recorded events of a set have now: those of each writer and the members of its group.
pub(crate) fn ids(set: &RingSet, writers: &[SetEvent]) -> perf_monitor::Result<Vec<Vec<u64>>> {
    let mut all = Vec::new();
    for writer in writers {
        all.push(set.ids(*writer)?);
        all.extend(set.members(*writer)?.into_iter().map(|(_, ids)| ids));
    }
    Ok(all)
}

/// Whether the default is a sample at each occurrence.
fn is_each_recorded(event: &Event) -> bool {
    let is_probe = |prefix: &str| event.name().starts_with(prefix);
    event.as_tracepoint().is_some()
        || ["mem:", "kprobe", "kretprobe", "uprobe", "uretprobe"].into_iter().any(is_probe)
}

/// The maximum number of samples per second, or this one if it is not known.
fn max_rate(otherwise: u64) -> u64 {
    max_sample_rate()
        .and_then(|rate| u64::try_from(rate).ok())
        .filter(|rate| *rate > 0)
        .unwrap_or(otherwise)
}

/// The system and the name of a tracepoint, without modifiers. `None` if the event is none.
pub(crate) fn tracepoint(event: &Event) -> Option<(&str, &str)> {
    let mut parts = event.name().split(':');
    event.as_tracepoint().and(parts.next().zip(parts.next()))
}

/// Adds this program, the clock and the formats of the tracepoints to the description of a recording.
pub(crate) fn describe<'a>(
    events: impl IntoIterator<Item = &'a Event>,
    features: &mut Features,
) -> Result {
    features.version = Some(concat!("triscope ", env!("CARGO_PKG_VERSION")).to_owned());
    features.clock = perf_data::ClockReference::now(trace_common::ClockDomain::Monotonic);
    let tracepoints: Vec<(&str, &str)> = events.into_iter().filter_map(tracepoint).collect();
    if !tracepoints.is_empty() {
        let tracefs = tracefs().map_err(failure)?;
        let tracing = TracingData::of_this_kernel(&tracefs, tracepoints);
        features.tracing = Some(tracing.map_err(Failure::new)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_monitor::OpenErrorReason;

    #[test]
    fn events_of_the_kernel_are_not_opened_without_it() {
        let opened = |names: &[&str]| {
            let event = |name: &&str| match name.split_once("tracepoint ") {
                Some((_, name)) => Event::tracepoint_id(name, 300),
                None => Event::parse(name).unwrap(),
            };
            let events: Vec<Event> = names.iter().map(event).collect();
            let opened = with_kernel_or_not(&events, |user_only| match user_only {
                true => Ok(()),
                false => Err(perf_monitor::Error::Open {
                    event: "task-clock".to_owned(),
                    target: "this thread".to_owned(),
                    errno: rustix::io::Errno::ACCESS,
                    reason: OpenErrorReason::Privilege {
                        paranoid: Some(2),
                        allowed_at: Some(1),
                        user_space_alone_is_allowed: true,
                        held_in_user_namespace: false,
                    },
                }),
            });
            opened.is_ok()
        };
        assert!(opened(&["task-clock", "page-faults:u", "context-switches:u"]));
        assert!(!opened(&["task-clock", "page-faults:k"]));
        assert!(!opened(&["task-clock", "context-switches"]));
        assert!(!opened(&["task-clock", "tracepoint sched:sched_switch"]));
        assert!(opened(&["task-clock", "tracepoint syscalls:sys_enter_read"]));
    }

    #[test]
    fn modifiers_are_no_part_of_a_tracepoint() {
        for name in ["sched:sched_switch", "sched:sched_switch:u"] {
            let event = Event::tracepoint_id(name, 300);
            assert_eq!(tracepoint(&event), Some(("sched", "sched_switch")));
        }
        let fault = Event::parse("page-faults:u").unwrap();
        assert_eq!((fault.name(), tracepoint(&fault)), ("page-faults:u", None));
    }

    /// With PERIOD, the kernel takes a sample at each occurrence.
    #[test]
    fn a_period_of_a_tracepoint_has_an_effect() {
        let has_period = |rate| {
            let event = Event::tracepoint_id("sched:sched_switch", 300);
            let builder = Scope::default().sampling(&event, SampleFlags::empty(), rate, false);
            let fields = SampleFlags::from_bits_retain(builder.attr().sample_type);
            assert!(fields.contains(SampleFlags::RAW));
            fields.contains(SampleFlags::PERIOD)
        };
        assert!(!has_period(Rate::Period(1000)));
        // The weight of an occurrence, as of sched_stat_runtime.
        let each = [Rate::Period(1), Rate::Usual(4000), Rate::Hertz(100)];
        assert_eq!(each.map(has_period), [true; 3]);
    }
}
