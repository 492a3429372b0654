//! Events of all kinds in one stream.

mod builder;
mod external;
mod registration;
mod run;
mod runner;
mod sample;
mod stream;

pub use builder::EventMonitorBuilder;
pub use registration::{EventSource, EventType, Registration};
pub use sample::{DecoderError, MonitorSample, RecordView, SampleView};
pub use stream::{MonitorStream, Overflow};

use crate::builder::EventBuilder;
use crate::declared;
use crate::error::{Error, Result};
use crate::format::{FieldValue, TracepointFormat};
use crate::ring_set::{Control, EventCounts, SetEvent, SetStats};
use crate::tracefs::Tracefs;
use crate::{clock, flags::SampleFlags};
use external::{External, ExternalHandler, ExternalInbox, Payload};
pub(crate) use registration::matches;
use registration::{Decoder, Handler, Source, Tally, TallySum, each};
use run::{Run, Runs};
use runner::{Runner, Sink};
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Deref};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trace_common::{ClockDomain, Timestamp};

/// A registered event. It is one for all CPUs, threads and cgroups, and is not used again after it
/// was unregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(u64);

/// A group of registered events: [`EventMonitor::register_group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u64);

/// One stream, in time order, of tracepoints, probes, counters and external events.
///
/// Each event has a decoder, which makes a value of type `T` of its samples. Events are registered,
/// changed and unregistered at any time, by any thread, also while the monitor runs.
///
/// ```no_run
/// use perf_monitor::{EventMonitor, Registration};
///
/// let monitor = EventMonitor::builder().build()?; // everything on all CPUs
/// monitor.register(Registration::tracepoint("sched:sched_process_exec").decoder_of(|format| {
///     let filename = format.and_then(|f| f.field("filename")).cloned();
///     Ok(move |sample: &perf_monitor::SampleView<'_>| {
///         let name = filename.as_ref().and_then(|field| sample.text(field));
///         Ok(name.map(|name| String::from_utf8_lossy(name).into_owned()))
///     })
/// }))?;
/// monitor.run(|batch| {
///     for sample in batch {
///         println!("{:?} {:?}", sample.time, sample.value);
///     }
/// })?;
/// # Ok::<(), perf_monitor::Error>(())
/// ```
///
/// # Running
///
/// Events record while the monitor runs: [`run`](Self::run) reads on the calling thread and passes
/// batches to a callback, [`spawn`](Self::spawn) starts a thread and passes them to a channel.
/// [`stop`](Self::stop) ends both; the events are then paused, and what they recorded is delivered
/// before `run` returns. The monitor can run again. Dropping it closes everything.
///
/// One thread reads. It takes no lock that registration holds, except at start and stop, and when a
/// CPU comes online.
///
/// # Order and lateness
///
/// Samples of all CPUs and external events are delivered in time order, with a delay: see
/// [`RingSet`](crate::RingSet#order). One that is too late for that is delivered, marked
/// ([`MonitorSample::late`]) and counted.
///
/// # Accounting
///
/// Every sample is accounted for: when the monitor is stopped, [`MonitorCounts`] of an event with a
/// sample period of 1 have `count == delivered + dropped + overflow + lost`, with the exception of
/// [`RingSet`](crate::RingSet#losses).
pub struct EventMonitor<T> {
    inner: Arc<Inner<T>>,
}

impl<T> std::fmt::Debug for EventMonitor<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventMonitor")
            .field("registry", &self.inner.registry)
            .finish_non_exhaustive()
    }
}

/// Counts of an event of an [`EventMonitor`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MonitorCounts {
    /// How often the event happened, by the kernel's count; for external events, how many had their
    /// turn.
    pub count: u64,
    /// Samples that did not fit in the rings; `None` if this kernel does not count them (before
    /// Linux 6.0): then only [`MonitorStats::set`] has the losses, by ring.
    pub lost: Option<u64>,
    /// Delivered samples, also those with an error as their value.
    pub delivered: u64,
    /// Samples that the decoder dropped.
    pub dropped: u64,
    /// Samples whose decoder returned an error.
    pub errors: u64,
    /// Samples that did not fit in the channel: [`Overflow::Drop`].
    pub overflow: u64,
    /// How often the kernel throttled the event because of its rate: it took no samples until the
    /// next tick. Each is a `PERF_RECORD_THROTTLE`.
    pub throttled: u64,
    /// External events that were delivered late.
    pub late: u64,
}

impl MonitorCounts {
    fn new(counts: EventCounts, tally: TallySum) -> Self {
        let TallySum { dropped, errors, overflow, external, late } = tally;
        Self {
            count: counts.count + external,
            lost: counts.lost,
            delivered: (counts.delivered + external).saturating_sub(dropped + overflow),
            dropped,
            errors,
            overflow,
            throttled: counts.throttled,
            late,
        }
    }
}

/// Statistics of an [`EventMonitor`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MonitorStats {
    /// Those of its rings, after the last round.
    pub set: SetStats,
    /// Sums of the counts of all events that were unregistered.
    pub unregistered: MonitorCounts,
}

/// What the threads of a monitor share.
pub(crate) struct Inner<T> {
    registry: Mutex<Registry>,
    inbox: Inbox<T>,
    /// `None` while it runs.
    runner: Mutex<Option<Runner<T>>>,
    /// The end of a run is reported when what it has of this is dropped.
    runs: Arc<Runs>,
    stats: Mutex<SetStats>,
    default_options: Option<DefaultOptions>,
    clock: ClockDomain,
}

/// Changes the options of each event that is registered.
type DefaultOptions = Box<dyn Fn(EventBuilder) -> EventBuilder + Send + Sync>;

/// What registration keeps. Fields are dropped in this order: first the descriptors of the events,
/// then the guards.
struct Registry {
    control: Control,
    events: BTreeMap<EventId, Registered>,
    groups: BTreeMap<GroupId, String>,
    next_id: u64,
    tracefs: Option<Tracefs>,
    unregistered: TallySum,
    /// Tallies of unregistered events that the reader still knows.
    waiting: Vec<Arc<Tally>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("events", &self.events)
            .field("groups", &self.groups)
            .finish_non_exhaustive()
    }
}

struct Registered {
    name: String,
    type_: EventType,
    /// `None` for external events.
    set_event: Option<SetEvent>,
    group: Option<GroupId>,
    is_enabled: bool,
    tally: Arc<Tally>,
    /// Of declared fields.
    format: Option<Arc<TracepointFormat>>,
    guard: Option<Box<dyn Any + Send>>,
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered")
            .field("name", &self.name)
            .field("type", &self.type_)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// What other threads leave for the reader.
struct Inbox<T> {
    handlers: Mutex<Vec<(u32, Handler<T>)>>,
    externals: ExternalInbox<T>,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self { handlers: Mutex::default(), externals: ExternalInbox::default() }
    }
}

impl<T> Inbox<T> {
    fn take_handlers(&self) -> Vec<(u32, Handler<T>)> {
        std::mem::take(&mut *lock(&self.handlers))
    }
}

/// A panic of a decoder does not make the monitor unusable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Inner<T> {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    fn tracefs(&self) -> Result<Tracefs> {
        self.registry().tracefs()
    }

    fn publish(&self, stats: SetStats) {
        *lock(&self.stats) = stats;
    }
}

/// A run that has begun: the events record. At the end, also if a decoder panics or no thread could start,
/// the monitor is dropped before the end of the run is reported: who waits for that finds the events
/// closed, if the monitor is.
struct Begun<T, I: Deref<Target = Inner<T>>> {
    runner: Option<Runner<T>>,
    // These are dropped in this order.
    inner: I,
    run: Run,
}

impl<T, I: Deref<Target = Inner<T>>> Begun<T, I> {
    /// Starts the events, and reserves the reader.
    fn new(inner: I) -> Result<Self> {
        let run = inner.runs.begin(|| {
            let mut registry = inner.registry();
            // The first error is the reason.
            registry.control.resume().inspect_err(|_| drop(registry.control.pause()))
        })?;
        let runner = lock(&inner.runner).take();
        Ok(Self { runner, inner, run })
    }

    /// Reads on this thread.
    fn run(mut self, sink: &mut dyn Sink<T>) -> Result<()> {
        self.run.starts_on_this_thread();
        match &mut self.runner {
            Some(runner) => runner.run(&self.inner, sink),
            None => Err(Error::MonitorRuns), // never so: the reader is reserved
        }
    }
}

impl<T, I: Deref<Target = Inner<T>>> Drop for Begun<T, I> {
    fn drop(&mut self) {
        *lock(&self.inner.runner) = self.runner.take();
        // Without a run to its end, the events still record.
        let _ = self.inner.registry().control.pause();
    }
}

impl<T> EventMonitor<T> {
    /// Options of a monitor, which measures everything on all CPUs by default.
    pub fn builder() -> EventMonitorBuilder<T> {
        EventMonitorBuilder::new()
    }

    /// Registers an event. It records while the monitor runs, unless it is registered
    /// [disabled](Registration::disabled). The closures that change its options and make its decoder
    /// run on this thread, and can use the monitor.
    ///
    /// # Errors
    ///
    /// [`Error::Open`], [`Error::UnknownEvent`], [`Error::NoTracefs`], [`Error::Filter`],
    /// [`Error::NotRegistered`] for an unknown group, [`Error::File`] if the threads of a process cannot
    /// be listed, and those of the decoder's maker. [`Error::NotOfKernel`] for an external event with a
    /// filter or options, [`Error::NotExternal`] for another one with declared fields, and
    /// [`Error::ExternalField`].
    pub fn register(&self, registration: Registration<T>) -> Result<EventId> {
        let Registration { source, options, is_enabled, filter, group, decoder, fields } =
            registration;
        self.inner.registry().check_group(group)?;
        // The closures of the registration are called, and its values dropped, without the lock of the
        // registry: they can use the monitor.
        let mut source = match source {
            Source::Tracepoint(name) => tracepoint(&self.inner.tracefs()?, &name)?,
            Source::Probe(probe) => {
                // Not every probe needs one.
                let probe = match self.inner.tracefs() {
                    Ok(tracefs) => probe.or_tracefs(&tracefs),
                    Err(_) => *probe,
                };
                probe.create()?.into()
            }
            Source::Kernel(source) => *source,
            Source::External(name) => {
                if filter.is_some() || !options.is_empty() {
                    let what = if filter.is_some() { "filter" } else { "options" };
                    return Err(Error::NotOfKernel { name, what });
                }
                let format = declared::declare(&name, &fields)?;
                let decoder = decoder.map(|make| make(Some(&format))).transpose()?;
                return self.insert_external(name, group, is_enabled, format, decoder);
            }
        };
        if !fields.is_empty() {
            return Err(Error::NotExternal { name: source.event.event().name().to_owned() });
        }
        if let Some(default) = &self.inner.default_options {
            source.event = default(source.event);
        }
        source.event = options.into_iter().fold(source.event, |event, option| option(event));
        if !source.members.is_empty() {
            source.event = source.event.with_sample(SampleFlags::READ).in_group();
        }
        let decoder = decoder.map(|make| make(source.format.as_ref())).transpose()?;
        self.insert_kernel(source, group, is_enabled, filter, decoder)
    }

    fn insert_external(
        &self,
        name: String,
        group: Option<GroupId>,
        is_enabled: bool,
        format: TracepointFormat,
        decoder: Option<Decoder<T>>,
    ) -> Result<EventId> {
        let (tally, format) = (Arc::<Tally>::default(), Arc::new(format));
        let handler =
            ExternalHandler { format: Arc::clone(&format), decoder, tally: Arc::clone(&tally) };
        // Unlocked before the handler is dropped.
        let mut registry = self.inner.registry();
        registry.check_group(group)?;
        let event = registry.insert(Registered {
            name,
            type_: EventType::External,
            set_event: None,
            group,
            is_enabled,
            tally,
            format: Some(format),
            guard: None,
        });
        self.inner.inbox.externals.set_handler(event, Some(handler));
        Ok(event)
    }

    fn insert_kernel(
        &self,
        source: EventSource,
        group: Option<GroupId>,
        is_enabled: bool,
        filter: Option<String>,
        decoder: Option<Decoder<T>>,
    ) -> Result<EventId> {
        let EventSource { event, members, format, type_, mut guard } = source;
        let tally = Arc::new(Tally::default());
        // Unlocked before the guard and the decoder are dropped.
        let mut registry = self.inner.registry();
        registry.check_group(group)?;
        let name = event.event().name().to_owned();
        // The reader gets the decoder before there is a sample.
        let (set_event, place) =
            registry.control.add(&event.disabled(true), members, None, filter)?;
        let id = registry.insert(Registered {
            name,
            type_,
            set_event: Some(set_event),
            group,
            is_enabled,
            tally: Arc::clone(&tally),
            format: None,
            guard: guard.take(),
        });
        let handler = Handler { event: id, set_event, format, decoder, tally };
        lock(&self.inner.inbox.handlers).push((place, handler));
        let enabled =
            if is_enabled { registry.control.set_enabled(set_event, true) } else { Ok(()) };
        if let Err(error) = enabled {
            // The first error is the reason.
            (guard, _) = registry.unregister(id);
            drop(registry);
            drop(guard);
            return Err(error);
        }
        Ok(id)
    }

    /// Registers each tracepoint that matches a pattern with `*` and `?`, such as `sched:*`, by the
    /// registration that `with` makes of its name. If one cannot be registered, none is.
    ///
    /// # Errors
    ///
    /// Those of [`register`](Self::register), and [`Error::UnknownEvent`] if none matches.
    pub fn register_all(
        &self,
        pattern: &str,
        mut with: impl FnMut(&str) -> Registration<T>,
    ) -> Result<Vec<EventId>> {
        let names = self.inner.tracefs()?.events()?;
        let mut ids = Vec::new();
        for name in names.iter().filter(|name| matches(pattern, name)) {
            match self.register(with(name)) {
                Ok(id) => ids.push(id),
                // Some of ftrace's own have no id.
                Err(Error::UnknownEvent { .. }) => {}
                Err(error) => {
                    for id in ids {
                        self.unregister(id)?;
                    }
                    return Err(error);
                }
            }
        }
        if ids.is_empty() {
            return Err(Error::UnknownEvent { name: pattern.to_owned(), near: Vec::new() });
        }
        Ok(ids)
    }

    /// Adds a group of events, which are enabled, disabled and unregistered together.
    pub fn register_group(&self, name: impl Into<String>) -> GroupId {
        let mut registry = self.inner.registry();
        let id = GroupId(registry.take_id());
        registry.groups.insert(id, name.into());
        id
    }

    /// Unregisters an event. What it recorded before is still delivered. Its guard is dropped when
    /// its descriptors are closed.
    ///
    /// # Errors
    ///
    /// [`Error::NotRegistered`] and [`Error::Control`].
    pub fn unregister(&self, event: EventId) -> Result<()> {
        let (guard, result) = {
            let mut registry = self.inner.registry();
            let is_external = registry.get(event)?.format.is_some();
            let removed = registry.unregister(event);
            if is_external {
                self.inner.inbox.externals.set_handler(event, None);
            }
            removed
        };
        // Closing a probe can take long, and its guard may be anything.
        drop(guard);
        // Decoders are dropped by the reader; if there is none, here. They can use the monitor.
        let forgotten = lock(&self.inner.runner).as_mut().map(|r| r.settle(&self.inner));
        drop(forgotten);
        result
    }

    /// Unregisters a group with all its events.
    ///
    /// # Errors
    ///
    /// Those of [`unregister`](Self::unregister).
    pub fn unregister_group(&self, group: GroupId) -> Result<()> {
        let members = self.inner.registry().members(group)?;
        for event in members {
            match self.unregister(event) {
                Ok(()) | Err(Error::NotRegistered) => {} // another thread was faster
                Err(error) => return Err(error),
            }
        }
        self.inner.registry().groups.remove(&group);
        Ok(())
    }

    /// The type of a registered event; `None` if it is not registered.
    pub fn registered_event_type(&self, event: EventId) -> Option<EventType> {
        self.inner.registry().events.get(&event).map(|event| event.type_)
    }

    /// The name of a registered event.
    pub fn name(&self, event: EventId) -> Option<String> {
        self.inner.registry().events.get(&event).map(|event| event.name.clone())
    }

    /// The name of a group.
    pub fn group_name(&self, group: GroupId) -> Option<String> {
        self.inner.registry().groups.get(&group).cloned()
    }

    /// Enables an event.
    ///
    /// # Errors
    ///
    /// [`Error::NotRegistered`] and [`Error::Control`].
    pub fn enable(&self, event: EventId) -> Result<()> {
        self.inner.registry().set_enabled(event, true)
    }

    /// Disables an event.
    ///
    /// # Errors
    ///
    /// [`Error::NotRegistered`] and [`Error::Control`].
    pub fn disable(&self, event: EventId) -> Result<()> {
        self.inner.registry().set_enabled(event, false)
    }

    /// Enables all events of a group.
    ///
    /// # Errors
    ///
    /// [`Error::NotRegistered`] and [`Error::Control`].
    pub fn enable_group(&self, group: GroupId) -> Result<()> {
        self.inner.registry().set_group_enabled(group, true)
    }

    /// Disables all events of a group.
    ///
    /// # Errors
    ///
    /// [`Error::NotRegistered`] and [`Error::Control`].
    pub fn disable_group(&self, group: GroupId) -> Result<()> {
        self.inner.registry().set_group_enabled(group, false)
    }

    /// Enables all events.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn enable_all(&self) -> Result<()> {
        self.inner.registry().set_all_enabled(true)
    }

    /// Disables all events.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn disable_all(&self) -> Result<()> {
        self.inner.registry().set_all_enabled(false)
    }

    /// Changes the filter of an event in the kernel, also while it records:
    /// [`RingSet::set_filter`](crate::RingSet::set_filter).
    ///
    /// # Errors
    ///
    /// [`Error::NotRegistered`], [`Error::NotOfKernel`] for an external event, and [`Error::Filter`] with
    /// the kernel's explanation.
    pub fn set_filter(&self, event: EventId, filter: &str) -> Result<()> {
        let mut registry = self.inner.registry();
        let registered = registry.get(event)?;
        let Some(set_event) = registered.set_event else {
            return Err(Error::NotOfKernel { name: registered.name.clone(), what: "filter" });
        };
        registry.control.set_filter(set_event, filter)
    }

    /// Adds a value of an external event, with a time on the [clock](EventMonitorBuilder::clock) of the
    /// monitor: see [`now`](Self::now). It is delivered in its place in time. One whose time has not
    /// come waits, until the monitor is stopped at the latest. Returns `false`, and drops the value, if
    /// the event is disabled.
    ///
    /// # Errors
    ///
    /// [`Error::NotRegistered`], [`Error::NotExternal`], and [`Error::TooManyExternal`] if 1,048,576
    /// wait for the reader or for their time.
    pub fn enqueue(&self, event: EventId, time: Timestamp, value: T) -> Result<bool> {
        self.push_external(event, |_| Ok(External { event, time, payload: Payload::Value(value) }))
    }

    /// Adds an external event by the values of its [declared](Registration::field) fields, which its
    /// decoder makes a value of when it is its turn. Fields without a value are 0 or empty. Returns
    /// `false` if the event is disabled.
    ///
    /// # Errors
    ///
    /// Those of [`enqueue`](Self::enqueue), and [`Error::ExternalField`].
    pub fn enqueue_fields(
        &self,
        event: EventId,
        time: Timestamp,
        values: &[(&str, FieldValue<'_>)],
    ) -> Result<bool> {
        self.push_external(event, |format| {
            Ok(External { event, time, payload: Payload::of_fields(format, time, values)? })
        })
    }

    fn push_external(
        &self,
        event: EventId,
        external: impl FnOnce(&TracepointFormat) -> Result<External<T>>,
    ) -> Result<bool> {
        // It stays registered until the event is in the inbox.
        let registry = self.inner.registry();
        let Some(format) = registry.external(event)? else { return Ok(false) };
        self.inner.inbox.externals.push(external(format)?, self.inner.clock)?;
        Ok(true)
    }

    /// The time now, on the clock of the monitor, as samples have it: without the offset of a time namespace.
    pub fn now(&self) -> Timestamp {
        clock::event_now(self.inner.clock).unwrap_or_default()
    }

    /// Runs on this thread until [`stop`](Self::stop), and passes batches of samples to `f`. Samples
    /// that `f` leaves in the batch are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::MonitorRuns`], [`Error::Realtime`], [`Error::Control`] and [`Error::System`]. At the end,
    /// if the events could not be opened on a CPU that came online, also at the last try:
    /// [`Error::Open`], [`Error::Map`] and [`Error::Filter`].
    pub fn run(&self, f: impl FnMut(&mut Vec<MonitorSample<T>>)) -> Result<()> {
        struct Callback<F>(F);
        impl<T, F: FnMut(&mut Vec<MonitorSample<T>>)> Sink<T> for Callback<F> {
            fn deliver(&mut self, batch: &mut Vec<MonitorSample<T>>) -> ControlFlow<()> {
                // After a panic, the next run does not pass these samples again.
                let mut samples = std::mem::take(batch);
                (self.0)(&mut samples);
                samples.clear();
                *batch = samples;
                ControlFlow::Continue(())
            }
        }
        Begun::new(&*self.inner)?.run(&mut Callback(f))
    }

    /// Runs on a new thread until [`stop`](Self::stop), and passes batches of samples to a channel
    /// for `capacity` batches.
    ///
    /// # Errors
    ///
    /// [`Error::MonitorRuns`] and [`Error::Thread`]. Those of [`run`](Self::run) are returned by
    /// [`MonitorStream::join`].
    pub fn spawn(&self, capacity: usize, overflow: Overflow) -> Result<MonitorStream<T>>
    where
        T: Send + 'static,
    {
        MonitorStream::start(Arc::clone(&self.inner), capacity, overflow)
    }

    /// Stops a running monitor: the events are paused, and what they recorded is delivered. With
    /// `wait`, this returns when all is delivered, except on the thread that runs the monitor. It
    /// does nothing if the monitor does not run.
    pub fn stop(&self, wait: bool) {
        self.inner.runs.stop(wait);
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.inner.runs.is_running()
    }

    /// Counts of an event so far.
    ///
    /// # Errors
    ///
    /// [`Error::NotRegistered`], and [`Error::Control`] if the event cannot be read on a CPU.
    pub fn counts(&self, event: EventId) -> Result<MonitorCounts> {
        let registry = self.inner.registry();
        let registered = registry.get(event)?;
        let counts = match registered.set_event {
            Some(event) => registry.control.counts(event)?,
            None => EventCounts::default(),
        };
        let mut tally = TallySum::default();
        tally.add(&registered.tally);
        Ok(MonitorCounts::new(counts, tally))
    }

    /// Statistics so far.
    pub fn stats(&self) -> MonitorStats {
        let registry = self.inner.registry();
        let removed = registry.control.removed_counts();
        let mut tallies = registry.unregistered;
        registry.waiting.iter().for_each(|tally| tallies.add(tally));
        let unregistered = MonitorCounts::new(removed, tallies);
        MonitorStats { set: *lock(&self.inner.stats), unregistered }
    }

    /// Stops the monitor, waits until it has stopped, and closes all events. Dropping it does the
    /// same. On the thread that runs the monitor, it does not wait: the events are closed at the end of
    /// the run.
    pub fn close(self) {
        drop(self);
    }
}

impl<T> Drop for EventMonitor<T> {
    fn drop(&mut self) {
        self.inner.runs.stop(true);
    }
}

fn tracepoint(tracefs: &Tracefs, name: &str) -> Result<EventSource> {
    let (system, event) = name
        .split_once(':')
        .ok_or(Error::EventSyntax { text: name.to_owned(), why: "a tracepoint is SYSTEM:NAME" })?;
    let format = tracefs.format(system, event)?;
    let builder = each(tracefs.event(system, event)?.builder());
    Ok(EventSource::new(builder).format(format))
}

impl Registry {
    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn insert(&mut self, event: Registered) -> EventId {
        let id = EventId(self.take_id());
        self.events.insert(id, event);
        id
    }

    fn get(&self, event: EventId) -> Result<&Registered> {
        self.events.get(&event).ok_or(Error::NotRegistered)
    }

    /// The fields of an external event; `None` if it is disabled.
    fn external(&self, event: EventId) -> Result<Option<&TracepointFormat>> {
        let registered = self.get(event)?;
        match &registered.format {
            Some(format) => Ok(registered.is_enabled.then_some(&**format)),
            None => Err(Error::NotExternal { name: registered.name.clone() }),
        }
    }

    fn check_group(&self, group: Option<GroupId>) -> Result<()> {
        match group {
            Some(group) if !self.groups.contains_key(&group) => Err(Error::NotRegistered),
            _ => Ok(()),
        }
    }

    fn members(&self, group: GroupId) -> Result<Vec<EventId>> {
        if !self.groups.contains_key(&group) {
            return Err(Error::NotRegistered);
        }
        let of_group = self.events.iter().filter(|(_, event)| event.group == Some(group));
        Ok(of_group.map(|(id, _)| *id).collect())
    }

    fn tracefs(&mut self) -> Result<Tracefs> {
        match &self.tracefs {
            Some(tracefs) => Ok(tracefs.clone()),
            None => {
                let tracefs = match Tracefs::find() {
                    Err(Error::NoTracefs) => Tracefs::detached().map_err(|_| Error::NoTracefs)?,
                    other => other?,
                };
                Ok(self.tracefs.insert(tracefs).clone())
            }
        }
    }

    fn set_enabled(&mut self, event: EventId, on: bool) -> Result<()> {
        let registered = self.events.get_mut(&event).ok_or(Error::NotRegistered)?;
        registered.is_enabled = on;
        match registered.set_event {
            Some(event) => self.control.set_enabled(event, on),
            None => Ok(()),
        }
    }

    fn set_group_enabled(&mut self, group: GroupId, on: bool) -> Result<()> {
        self.members(group)?.into_iter().try_for_each(|event| self.set_enabled(event, on))
    }

    fn set_all_enabled(&mut self, on: bool) -> Result<()> {
        let all: Vec<EventId> = self.events.keys().copied().collect();
        all.into_iter().try_for_each(|event| self.set_enabled(event, on))
    }

    /// Removes an event, also if that is an error. Returns its guard, to be dropped without the lock.
    fn unregister(&mut self, event: EventId) -> (Option<Box<dyn Any + Send>>, Result<()>) {
        let Some(registered) = self.events.remove(&event) else {
            return (None, Err(Error::NotRegistered));
        };
        // An event that cannot be read is removed all the same.
        let removed = registered.set_event.map(|event| self.control.remove(event)).transpose();
        let Self { waiting, unregistered, .. } = self;
        waiting.retain(|tally| {
            let is_final = Arc::strong_count(tally) == 1;
            if is_final {
                unregistered.add(tally);
            }
            !is_final
        });
        waiting.push(registered.tally);
        (registered.guard, removed.map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::generalized::Software;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Weak;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A part of a decoder. It counts its end, and unregisters another event.
    struct OnDrop {
        monitor: Weak<EventMonitor<()>>,
        count: Arc<AtomicUsize>,
        other: Option<EventId>,
    }

    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.count.fetch_add(1, Ordering::Relaxed);
            if let (Some(monitor), Some(other)) = (self.monitor.upgrade(), self.other) {
                monitor.unregister(other).unwrap();
            }
        }
    }

    /// A monitor of this thread; `None` where this user may not open events.
    fn monitor<T>() -> Option<EventMonitor<T>> {
        let monitor = EventMonitor::builder().thread(0).pages(1).build();
        monitor.inspect_err(|error| eprintln!("skipped: {error}")).ok()
    }

    #[test]
    fn decoders_of_a_monitor_that_does_not_run_are_dropped_and_can_use_it() {
        let Some(monitor) = monitor::<()>().map(Arc::new) else { return };
        let count = Arc::<AtomicUsize>::default();
        let register = |registration: Registration<()>, other| {
            let count = Arc::clone(&count);
            let on_drop = OnDrop { monitor: Arc::downgrade(&monitor), count, other };
            let registration = registration.decoder(move |_| {
                let _ = &on_drop;
                Ok(None)
            });
            monitor.register(registration).unwrap()
        };
        let dummy = || {
            let event = Event::software(Software::Dummy).builder();
            Registration::event(EventSource::new(event.exclude_kernel(true).exclude_hv(true)))
        };
        // A value that waits keeps no decoder of other events.
        let waiting = monitor.register(Registration::external("waiting")).unwrap();
        assert!(monitor.enqueue(waiting, Timestamp::MAX, ()).unwrap());
        let third = register(Registration::external("third"), None);
        let second = register(dummy(), Some(third));
        let first = register(dummy(), Some(second));
        monitor.unregister(first).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 3);
        assert!(lock(&monitor.inner.inbox.handlers).is_empty());
        // Their tallies are added up by the next one.
        monitor.unregister(waiting).unwrap();
        assert_eq!(monitor.inner.registry().waiting.len(), 1);
    }

    #[test]
    fn external_events_have_neither_filters_nor_options() {
        let Some(monitor) = monitor::<()>() else { return };
        let event = || Registration::external("mine").field("n", declared::FieldType::U32);
        let filtered = monitor.register(event().filter("n > 100")).unwrap_err();
        assert!(matches!(filtered, Error::NotOfKernel { what: "filter", .. }), "{filtered}");
        let changed = monitor.register(event().options(|event| event)).unwrap_err();
        assert!(matches!(changed, Error::NotOfKernel { what: "options", .. }), "{changed}");
        let event = monitor.register(event()).unwrap();
        let filtered = monitor.set_filter(event, "n > 100").unwrap_err();
        assert!(matches!(filtered, Error::NotOfKernel { what: "filter", .. }), "{filtered}");
        assert!(filtered.to_string().starts_with("mine is an external event"), "{filtered}");
        monitor.unregister(event).unwrap();
        assert!(matches!(monitor.set_filter(event, "n > 100"), Err(Error::NotRegistered)));
    }

    #[test]
    fn samples_of_a_callback_that_panics_are_not_passed_again() {
        let Some(monitor) = monitor::<u32>() else { return };
        let event = monitor.register(Registration::external("numbers")).unwrap();
        let now = monitor.now();
        let enqueue = |values: std::ops::Range<u32>| {
            values.for_each(|value| assert!(monitor.enqueue(event, now, value).unwrap()));
        };
        enqueue(0..3);
        let run = || monitor.run(|_| panic!("a callback fails"));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        enqueue(3..4);
        let mut seen = Vec::new();
        let ended = monitor.run(|batch| {
            seen.extend(batch.drain(..).map(|sample| sample.value.unwrap()));
            monitor.stop(false);
        });
        assert!(ended.is_ok());
        assert_eq!(seen, [3]);
    }
}
