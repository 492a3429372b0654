//! What can be registered.

use super::{EventId, GroupId, SampleView};
use crate::builder::EventBuilder;
use crate::declared::FieldType;
use crate::error::Result;
use crate::event::Event;
use crate::flags::SampleFlags;
use crate::format::TracepointFormat;
use crate::monitor::sample::DecoderError;
use crate::probe::{Probe, ProbeBuilder};
use perf_sys::*;
use std::any::Any;
use std::fmt;

/// The type of a registered event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventType {
    /// A tracepoint.
    Tracepoint,
    /// A probe in the kernel.
    Kprobe,
    /// A probe in user space.
    Uprobe,
    /// A hardware event, or a group led by one.
    Hardware,
    /// A software event.
    Software,
    /// A cache event.
    HardwareCache,
    /// An event by its number in the PMU of the CPU.
    Raw,
    /// A breakpoint.
    Breakpoint,
    /// An event of another PMU.
    DynamicPmu,
    /// An event from outside of the kernel.
    External,
}

impl EventType {
    pub(super) fn of(event: &Event) -> Self {
        match event.type_() {
            PERF_TYPE_HARDWARE => Self::Hardware,
            PERF_TYPE_SOFTWARE => Self::Software,
            PERF_TYPE_TRACEPOINT => Self::Tracepoint,
            PERF_TYPE_HW_CACHE => Self::HardwareCache,
            PERF_TYPE_RAW => Self::Raw,
            PERF_TYPE_BREAKPOINT => Self::Breakpoint,
            _ => match event.name().split(':').next() {
                Some("kprobe" | "kretprobe") => Self::Kprobe,
                Some("uprobe" | "uretprobe") => Self::Uprobe,
                _ => Self::DynamicPmu,
            },
        }
    }
}

/// An event of the kernel as it is registered: with the fields of its data, and with what must be
/// kept while it is open.
///
/// Anything that can be made into one can be registered, such as a probe whose guard deletes it.
pub struct EventSource {
    pub(super) event: EventBuilder,
    pub(super) members: Vec<EventBuilder>,
    pub(super) format: Option<TracepointFormat>,
    pub(super) type_: EventType,
    /// Dropped after all descriptors of the event are closed.
    pub(super) guard: Option<Box<dyn Any + Send>>,
}

impl fmt::Debug for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSource")
            .field("event", &self.event)
            .field("members", &self.members)
            .field("type", &self.type_)
            .finish_non_exhaustive()
    }
}

impl EventSource {
    /// An event without further properties.
    pub fn new(event: EventBuilder) -> Self {
        let type_ = EventType::of(event.event());
        Self { event, members: Vec::new(), format: None, type_, guard: None }
    }

    /// Sets the fields of its data.
    #[must_use]
    pub fn format(mut self, format: TracepointFormat) -> Self {
        self.format = Some(format);
        self
    }

    /// Sets the type, where that of the kernel's event is another: a probe by tracefs is a
    /// tracepoint.
    #[must_use]
    pub fn event_type(mut self, type_: EventType) -> Self {
        self.type_ = type_;
        self
    }

    /// Sets a value that is dropped when all descriptors of the event are closed.
    #[must_use]
    pub fn guard(mut self, guard: impl Any + Send) -> Self {
        self.guard = Some(Box::new(guard));
        self
    }

    /// Adds a counter that is read with each sample of the event: [`SampleView::counts`]. The event
    /// leads the group; it needs `SampleFlags::READ`, which is set.
    #[must_use]
    pub fn counter(mut self, member: EventBuilder) -> Self {
        self.members.push(member);
        self
    }
}

impl From<EventBuilder> for EventSource {
    fn from(event: EventBuilder) -> Self {
        Self::new(event)
    }
}

impl From<Probe> for EventSource {
    /// A sample of each hit. The probe is removed when its events are closed.
    fn from(probe: Probe) -> Self {
        let type_ = if probe.kind().is_user() { EventType::Uprobe } else { EventType::Kprobe };
        let source = Self::new(each(probe.builder())).format(probe.format().clone());
        source.event_type(type_).guard(probe)
    }
}

/// A sample of each occurrence, with its data.
pub(super) fn each(event: EventBuilder) -> EventBuilder {
    let fields = SampleFlags::TID | SampleFlags::CPU | SampleFlags::RAW;
    event.sample_period(1).sample(fields)
}

impl From<Event> for EventSource {
    fn from(event: Event) -> Self {
        Self::new(event.builder())
    }
}

/// A decoder: makes a value of a sample, or drops it (`None`).
pub(super) type Decoder<T> =
    Box<dyn FnMut(&SampleView<'_>) -> Result<Option<T>, DecoderError> + Send>;

/// Makes the decoder of an event with these fields.
pub(super) type MakeDecoder<T> =
    Box<dyn FnOnce(Option<&TracepointFormat>) -> Result<Decoder<T>> + Send>;

/// An event to register with [`EventMonitor::register`](super::EventMonitor::register), and its
/// options.
pub struct Registration<T> {
    pub(super) source: Source,
    pub(super) options: Vec<Box<dyn FnOnce(EventBuilder) -> EventBuilder + Send>>,
    pub(super) is_enabled: bool,
    pub(super) filter: Option<String>,
    pub(super) group: Option<GroupId>,
    pub(super) decoder: Option<MakeDecoder<T>>,
    /// Declared fields.
    pub(super) fields: Vec<(String, FieldType)>,
}

pub(super) enum Source {
    /// By name, in the tracefs of the monitor.
    Tracepoint(String),
    /// Created in the tracefs of the monitor.
    Probe(Box<ProbeBuilder>),
    Kernel(Box<EventSource>),
    External(String),
}

impl<T> fmt::Debug for Registration<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.source {
            Source::Tracepoint(name) | Source::External(name) => name,
            Source::Kernel(source) => source.event.event().name(),
            Source::Probe(_) => "a probe",
        };
        f.debug_struct("Registration").field("event", &name).finish_non_exhaustive()
    }
}

impl<T> Registration<T> {
    const fn of(source: Source) -> Self {
        Self {
            source,
            options: Vec::new(),
            is_enabled: true,
            filter: None,
            group: None,
            decoder: None,
            fields: Vec::new(),
        }
    }

    /// A tracepoint by its name, `system:name`.
    pub fn tracepoint(name: impl Into<String>) -> Self {
        Self::of(Source::Tracepoint(name.into()))
    }

    /// A kprobe, uprobe, their returns or a USDT probe. It is created with the registration and
    /// removed when it is unregistered.
    pub fn probe(probe: ProbeBuilder) -> Self {
        Self::of(Source::Probe(Box::new(probe)))
    }

    /// Any event of the kernel: hardware, software, cache, raw, breakpoint, dynamic PMU, probe.
    /// Events that count need a sample period or frequency to deliver samples.
    pub fn event(source: impl Into<EventSource>) -> Self {
        Self::of(Source::Kernel(Box::new(source.into())))
    }

    /// A group of counters: the first one takes the samples, with the counts of all.
    pub fn counters(
        leader: impl Into<EventSource>,
        members: impl IntoIterator<Item = EventBuilder>,
    ) -> Self {
        let mut source = leader.into();
        source.members.extend(members);
        Self::event(source)
    }

    /// An event from outside of the kernel, whose values are given to
    /// [`EventMonitor::enqueue`](super::EventMonitor::enqueue), or those of its fields to
    /// [`EventMonitor::enqueue_fields`](super::EventMonitor::enqueue_fields).
    pub fn external(name: impl Into<String>) -> Self {
        Self::of(Source::External(name.into()))
    }

    /// Declares a field of an [external](Self::external) event. Decoders read it like a field of a
    /// tracepoint.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>, type_: FieldType) -> Self {
        self.fields.push((name.into(), type_));
        self
    }

    /// Changes the options of an event of the kernel, after those that the monitor has for all of them.
    #[must_use]
    pub fn options(
        mut self,
        options: impl FnOnce(EventBuilder) -> EventBuilder + Send + 'static,
    ) -> Self {
        self.options.push(Box::new(options));
        self
    }

    /// Registers it disabled: it records nothing until
    /// [`EventMonitor::enable`](super::EventMonitor::enable).
    #[must_use]
    pub const fn disabled(mut self) -> Self {
        self.is_enabled = false;
        self
    }

    /// Filters an event of the kernel, in the kernel: [`Counter::set_filter`](crate::Counter::set_filter).
    #[must_use]
    pub fn filter(mut self, filter: impl Into<String>) -> Self {
        self.filter = Some(filter.into());
        self
    }

    /// Makes it a member of a group of events.
    #[must_use]
    pub const fn group(mut self, group: GroupId) -> Self {
        self.group = Some(group);
        self
    }

    /// Sets the decoder: it makes a value of each sample, or drops it with `None`. An error is
    /// delivered in place of the value. Without a decoder the samples are counted and dropped. For
    /// external events it decodes the fields.
    #[must_use]
    pub fn decoder<D>(self, decoder: D) -> Self
    where
        D: FnMut(&SampleView<'_>) -> Result<Option<T>, DecoderError> + Send + 'static,
    {
        self.decoder_of(|_| Ok(decoder))
    }

    /// Sets the decoder by a function of the fields of the event, which finds the fields that the
    /// decoder reads. The fields are `None` for events without data.
    #[must_use]
    pub fn decoder_of<D, M>(mut self, make: M) -> Self
    where
        M: FnOnce(Option<&TracepointFormat>) -> Result<D> + Send + 'static,
        D: FnMut(&SampleView<'_>) -> Result<Option<T>, DecoderError> + Send + 'static,
    {
        self.decoder = Some(Box::new(|format| Ok(Box::new(make(format)?) as Decoder<T>)));
        self
    }
}

/// Whether `name` matches a pattern with `*` (anything) and `?` (one character).
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    // The last `*`, and how much of the name it took.
    let (mut at, mut rest, mut star) = (0, 0, None);
    loop {
        match (pattern.get(at), name.get(rest)) {
            (Some('*'), _) => {
                star = Some((at, rest));
                at += 1;
            }
            (Some(p), Some(n)) if p == n || *p == '?' => {
                at += 1;
                rest += 1;
            }
            (None, None) => return true,
            (_, None) => return false,
            _ => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                at = place + 1;
                rest = taken + 1;
            }
        }
    }
}

/// Tally of an event's samples. Only the reader writes it.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) dropped: Single,
    pub(super) errors: Single,
    pub(super) overflow: Single,
    pub(super) external: Single,
    pub(super) late: Single,
}

/// The sum of some tallies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TallySum {
    pub(super) dropped: u64,
    pub(super) errors: u64,
    pub(super) overflow: u64,
    pub(super) external: u64,
    pub(super) late: u64,
}

impl TallySum {
    pub(super) fn add(&mut self, tally: &Tally) {
        self.dropped += tally.dropped.get();
        self.errors += tally.errors.get();
        self.overflow += tally.overflow.get();
        self.external += tally.external.get();
        self.late += tally.late.get();
    }
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub(super) struct Single(std::sync::atomic::AtomicU64);

impl Single {
    pub(super) fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn add(&self, count: u64) {
        self.0.store(self.get() + count, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A decoder on its way to the reader, or at work.
pub(super) struct Handler<T> {
    pub(super) event: EventId,
    pub(super) set_event: crate::SetEvent,
    pub(super) format: Option<TracepointFormat>,
    pub(super) decoder: Option<Decoder<T>>,
    pub(super) tally: std::sync::Arc<Tally>,
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match() {
        for (pattern, name, expected) in [
            ("sched:*", "sched:sched_switch", true),
            ("sched:*", "sched", false),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("*:sys_enter*", "raw_syscalls:sys_enter", true),
            ("*sys_e*t", "syscalls:sys_enter_exit", true),
            ("*sys_e*t", "syscalls:sys_enter_exits", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbXb", false),
            ("**", "x", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
