//! .NET traces on a timeline.
//!
//! ```no_run
//! use nettrace::Reader;
//! use std::fs::File;
//! use trace_export::{ClockDomain, PerfettoSink, Sink, dotnet::{DotnetNames, DotnetSource}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Methods are named at the end of a trace: read it once for the names.
//! let mut names = DotnetNames::new();
//! Reader::new(File::open("app.nettrace")?).for_each(|event| names.observe(&event))?;
//!
//! let mut reader = Reader::new(File::open("app.nettrace")?);
//! let mut sink = PerfettoSink::new(File::create("app.pftrace")?, ClockDomain::Monotonic);
//! let mut source = DotnetSource::new(Default::default(), names);
//! while let Some(item) = reader.next_item()? {
//!     source.push(&item, &mut sink)?;
//! }
//! source.finish(&mut sink)?;
//! sink.finish()?;
//! # Ok(())
//! # }
//! ```
//!
//! All tracks are below that of the process:
//!
//! | track | shows |
//! | --- | --- |
//! | counters | heap by generation, thread pool workers, event counters, meters |
//! | GC | garbage collections (GCs); below it, suspensions of the managed threads with their reason |
//! | Activities | by event source and name: pairs of start and stop events, such as requests |
//! | threads | JIT compilations, lock contention, exceptions, allocation samples, events of event sources, managed stack samples |
//!
//! **Managed stack samples are not CPU samples.** The runtime's sample profiler suspends all
//! managed threads and takes the stack of each, whether it was running or waiting. With
//! [`DotnetOptions::cpus`] the outermost frame of each sample is `[on CPU]` or `[off CPU]`,
//! according to the kernel's context switches: at the time when the sampler began to suspend the
//! threads, or within the millisecond before the sample if the trace has no suspensions. Otherwise
//! that frame is `[on or off CPU: unknown]`. Samples of `Universal.Events/cpu` (format version 6)
//! are CPU samples taken by the kernel, and have no such frame.
//! Times of a trace from Linux are on `CLOCK_MONOTONIC`, as in Go traces and kernel recordings of
//! the same machine.

mod names;
mod suspensions;

pub use names::DotnetNames;

use crate::cpu::{CpuIntervals, CpuState};
use crate::intern::{Frame, StackId, TextId};
use crate::lanes::{Key, Lanes, Nest};
use crate::model::{
    CounterValue, CpuMode, DebugAnnotation, Loss, Name, Sample, Sink, Track, TrackEvent, TrackId,
    Unit, Value,
};
use hashbrown::HashMap;
use nettrace::analysis::{
    Activity, ActivityStep, ActivityTracker, CounterKind, CounterTracker, GcReason, SuspendReason,
};
use nettrace::manifest::Provider;
use nettrace::{Event, Item};
use std::io;
use std::sync::Arc;
use suspensions::Suspensions;
use trace_common::{ClockDomain, Timestamp};

/// Options for drawing a .NET trace.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DotnetOptions {
    /// The name of the process. If empty, the name of the program in the trace's command line.
    pub process: Vec<u8>,
    /// The context switches of the threads, if the kernel's scheduler was recorded: they mark
    /// samples as on or off CPU.
    pub cpus: Option<Arc<CpuIntervals>>,
}

/// Numbers of events and samples that were drawn and that were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DotnetStats {
    /// Events in the trace.
    pub events: u64,
    /// Events that were drawn.
    pub shown: u64,
    /// Samples of managed stacks, or CPU samples of format version 6.
    pub samples: u64,
    /// Samples of a thread that had a CPU.
    pub samples_on_cpu: u64,
    /// Samples of a thread that had no CPU. For the other samples it is unknown.
    pub samples_off_cpu: u64,
    /// Events that cannot be drawn: see [`DotnetSource::not_shown`].
    pub not_shown: u64,
    /// Events that the runtime dropped.
    pub lost: u64,
    /// Events whose payload does not match its metadata: they are shown with the error and the
    /// payload.
    pub undecodable: u64,
    /// Starts and stops of activities that were not drawn: stops of activities that began before
    /// the trace, and those above a limit.
    pub activities_dropped: u64,
    /// The time of the first event.
    pub first: Option<Timestamp>,
    /// The time of the last event.
    pub last: Option<Timestamp>,
}

/// Draws the events of a .NET trace on a timeline: see the [module](self).
#[derive(Debug, Default)]
pub struct DotnetSource {
    options: DotnetOptions,
    names: DotnetNames,
    stats: DotnetStats,
    /// By provider and event.
    not_shown: HashMap<Box<str>, Kinds>,
    counters: CounterTracker,
    activities: ActivityTracker,
    processes: HashMap<u64, Process>,
    threads: HashMap<(u64, u64), Thread>,
    /// Stacks that the sink may still hold, by their last frame.
    stacks: [Stacks; Root::COUNT],
    stack_bytes: usize,
}

/// The events of one provider, by event number: name and count.
type Kinds = HashMap<u32, (Box<str>, u64)>;

/// By process and addresses.
type Stacks = HashMap<(u64, Box<[u8]>), StackId>;

#[derive(Debug)]
struct Process {
    track: TrackId,
    gc: TrackId,
    collections: Nest,
    suspensions: Suspensions,
    counters: HashMap<String, TrackId>,
    activities: TrackId,
    /// By event source and name.
    groups: HashMap<String, Lanes>,
    /// By number: the lane of its group.
    open: HashMap<u64, u32>,
}

#[derive(Debug)]
struct Thread {
    track: TrackId,
    nest: Nest,
}

mod rank {
    pub(super) const COUNTERS: i32 = 1;
    pub(super) const GC: i32 = 20;
    pub(super) const ACTIVITIES: i32 = 22;
}

/// The outermost frame of a stack, which marks the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    /// Not a sample, or a sample of the kernel.
    None,
    OnCpu,
    OffCpu,
    Unknown,
}

impl Root {
    const COUNT: usize = 4;

    const fn name(self) -> &'static [u8] {
        match self {
            Self::None => b"",
            Self::OnCpu => b"[on CPU]",
            Self::OffCpu => b"[off CPU]",
            Self::Unknown => b"[on or off CPU: unknown]",
        }
    }
}

/// Nanoseconds before a sample in which a thread counts as on CPU, if the trace does not contain
/// when the sampler suspended it.
const SAMPLE_WINDOW: i64 = 1_000_000;

/// Maximum number of kinds of events that are counted separately.
const MAX_KINDS: usize = 1 << 12;

/// Maximum number of kinds of activities, and of counters: more are dropped and counted.
const MAX_GROUPS: usize = 1 << 12;

/// Maximum number of bytes of an undecodable payload that are shown with its event.
const MAX_PAYLOAD: usize = 256;

/// Maximum number of bytes of cached stacks.
const MAX_STACK_BYTES: usize = 16 << 20;

impl DotnetSource {
    /// Makes a source with these options. `names` are those of the whole trace: see the
    /// [module](self).
    pub fn new(options: DotnetOptions, names: DotnetNames) -> Self {
        Self { options, names, ..Self::default() }
    }

    /// Returns the numbers of drawn events so far.
    pub const fn stats(&self) -> DotnetStats {
        self.stats
    }

    /// The events that were not shown, most frequent first: provider, event, number of events.
    pub fn not_shown(&self) -> Vec<(&str, &str, u64)> {
        let mut kinds: Vec<(&str, &str, u64)> = self
            .not_shown
            .iter()
            .flat_map(|(provider, events)| {
                events.values().map(move |(event, count)| (&**provider, &**event, *count))
            })
            .collect();
        kinds.sort_by(|a, b| (b.2, a.0, a.1).cmp(&(a.2, b.0, b.1)));
        kinds
    }

    /// Counts an event that cannot be drawn.
    fn skip(&mut self, event: &Event<'_>) {
        self.stats.not_shown += 1;
        if !self.not_shown.contains_key(event.provider()) {
            if self.not_shown.len() >= MAX_KINDS {
                return;
            }
            self.not_shown.insert(event.provider().into(), HashMap::new());
        }
        let Some(events) = self.not_shown.get_mut(event.provider()) else { return };
        if let Some((_, count)) = events.get_mut(&event.id()) {
            *count += 1;
        } else if events.len() < MAX_KINDS {
            let name = match event.name() {
                "" => format!("event {}", event.id()),
                name => name.to_owned(),
            };
            events.insert(event.id(), (name.into(), 1));
        }
    }

    /// Draws the next item of a stream.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub fn push(&mut self, item: &Item<'_>, sink: &mut impl Sink) -> io::Result<()> {
        match item {
            Item::Trace(trace) => sink.clock_snapshot(&[
                (ClockDomain::Monotonic, trace.timestamp(trace.sync_time_qpc)),
                (ClockDomain::Realtime, trace.sync_time_utc),
            ]),
            Item::Event(event) => self.event(event, sink),
            Item::Loss(lost) => {
                self.stats.lost += lost.count;
                let at = self.stats.last.unwrap_or_default();
                let why = format!("the buffers of thread {} were full", lost.capture_thread);
                let loss = Loss::new(b".NET events").count(lost.count).why(why.as_bytes());
                sink.lost(at, None, &loss)
            }
            _ => Ok(()),
        }
    }

    /// Draws the deferred events. Open slices and states stay open: they continue past the end of
    /// the trace.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub fn finish(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let mut pids: Vec<u64> = self.processes.keys().copied().collect();
        pids.sort_unstable(); // the order of a map is not deterministic
        for pid in pids {
            if let Some(process) = self.processes.get_mut(&pid) {
                process.suspensions.finish(sink)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, sink: &mut impl Sink) -> io::Result<()> {
        let at = event.timestamp();
        self.stats.events += 1;
        self.stats.first = Some(self.stats.first.map_or(at, |first| first.min(at)));
        self.stats.last = Some(self.stats.last.map_or(at, |last| last.max(at)));
        self.names.observe(event);
        let before = self.stats;
        match Provider::by_name(event.provider()) {
            Some(Provider::Runtime) => self.runtime(event, at, sink),
            Some(Provider::SampleProfiler) => self.sample(event, at, false, sink),
            Some(Provider::UniversalEvents) if event.name() == "cpu" => {
                self.sample(event, at, true, sink)
            }
            // The process name, which its track shows.
            Some(Provider::EventPipe) => self.of(event, sink).map(drop),
            Some(Provider::Metrics) => self.counter(event, at, sink),
            Some(_) => {
                self.skip(event);
                Ok(())
            }
            None if event.name() == "EventCounters" => self.counter(event, at, sink),
            None => self.custom(event, at, sink),
        }?;
        let DotnetStats { not_shown, activities_dropped, .. } = before;
        let is_shown = (self.stats.not_shown, self.stats.activities_dropped)
            == (not_shown, activities_dropped);
        self.stats.shown += u64::from(is_shown);
        Ok(())
    }

    fn process<'s>(
        processes: &'s mut HashMap<u64, Process>,
        options: &DotnetOptions,
        names: &DotnetNames,
        pid: u64,
        sink: &mut impl Sink,
    ) -> io::Result<&'s mut Process> {
        if let hashbrown::hash_map::Entry::Vacant(entry) = processes.entry(pid) {
            let given = &options.process[..];
            let name = if given.is_empty() { names.process(pid).as_bytes() } else { given };
            let track = sink.track(&Track::process(pid as i32, name).ordered())?;
            let gc = Track::custom(b"GC").child_of(track).rank(rank::GC).ordered();
            let gc = sink.track(&gc)?;
            let suspensions = Track::custom(b"Suspensions").child_of(gc).ordered();
            let suspensions = Suspensions::new(Lanes::new(sink.track(&suspensions)?));
            let activities = Track::custom(b"Activities").child_of(track).rank(rank::ACTIVITIES);
            let activities = sink.track(&activities)?;
            entry.insert(Process {
                track,
                gc,
                collections: Nest::default(),
                suspensions,
                counters: HashMap::new(),
                activities,
                groups: HashMap::new(),
                open: HashMap::new(),
            });
        }
        processes.get_mut(&pid).ok_or_else(|| io::Error::other("no process"))
    }

    fn of<'s>(
        &'s mut self,
        event: &Event<'_>,
        sink: &mut impl Sink,
    ) -> io::Result<&'s mut Process> {
        let Self { processes, options, names, .. } = self;
        Self::process(processes, options, names, event.process_id(), sink)
    }

    fn thread<'s>(
        &'s mut self,
        event: &Event<'_>,
        sink: &mut impl Sink,
    ) -> io::Result<&'s mut Thread> {
        let (pid, tid) = (event.process_id(), event.thread_id());
        if !self.threads.contains_key(&(pid, tid)) {
            let Self { processes, options, names, .. } = &mut *self;
            let process = Self::process(processes, options, names, pid, sink)?.track;
            let name = names.of_thread(event);
            let track = Track::thread(pid as i32, tid as i32, name.as_bytes()).child_of(process);
            let track = sink.track(&track)?;
            self.threads.insert((pid, tid), Thread { track, nest: Nest::default() });
        }
        self.threads.get_mut(&(pid, tid)).ok_or_else(|| io::Error::other("no thread"))
    }

    fn runtime(
        &mut self,
        event: &Event<'_>,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        if let Err(error) = event.check_payload() {
            return self.undecodable(event, at, &error.to_string(), sink);
        }
        let known = |name: &str| event.field(name).and_then(|v| v.as_u64());
        // Older runtimes write fewer fields; the missing ones count as 0.
        let number = |name: &str| known(name).unwrap_or(0);
        let tid = event.thread_id();
        match event.id() {
            // GCStart
            1 => {
                let (count, depth) = (number("Count"), number("Depth"));
                let reason = GcReason::from_code(number("Reason") as u32).to_string();
                let name = sink.text(format!("GC gen {depth}").as_bytes());
                let args = [
                    uint(sink, "number", count),
                    text(sink, "reason", &reason),
                    uint(sink, "type", number("Type")),
                ];
                let process = self.of(event, sink)?;
                let key = Key::Dotnet("gc", count);
                let entry = TrackEvent::new(name).args(&args);
                process.collections.begin(key, name, at, process.gc, &entry, sink)
            }
            // GCEnd
            2 => {
                let key = Key::Dotnet("gc", number("Count"));
                let process = self.of(event, sink)?;
                process.collections.end(key, at, process.gc, &[], sink).map(drop)
            }
            // GCSuspendEEBegin, GCRestartEEEnd
            9 => {
                let reason = SuspendReason::from_code(number("Reason") as u32);
                self.of(event, sink)?.suspensions.begin(at, tid, reason, sink)
            }
            3 => self.of(event, sink)?.suspensions.end(at, tid, sink),
            // GCHeapStats
            4 => {
                for (i, name) in ["gen 0", "gen 1", "gen 2", "LOH", "POH"].iter().enumerate() {
                    let Some(size) =
                        event.field(&format!("GenerationSize{i}")).and_then(|v| v.as_u64())
                    else {
                        continue;
                    };
                    let name = format!("Heap {name}");
                    let size = i64::try_from(size).unwrap_or(i64::MAX);
                    self.count(event, at, &name, Unit::Bytes, "", size.into(), sink)?;
                }
                Ok(())
            }
            // Start, stop and wait of thread pool workers
            50 | 51 | 57 => {
                let active = i64::from(number("ActiveWorkerThreadCount") as u32);
                self.count(event, at, "Thread pool workers", Unit::Count, "", active.into(), sink)
            }
            // GCAllocationTick, AllocationSampled
            10 | 303 => {
                let type_name = event.field("TypeName").map(|v| v.to_string());
                let name = sink.text(b"allocation sample");
                // Bytes allocated since the last tick: 64 bits since version 2 of the event. A
                // sampled allocation has the size of its object.
                let fields = ["AllocationAmount64", "AllocationAmount", "ObjectSize"];
                let amount = fields.into_iter().find_map(known);
                let type_name = type_name.unwrap_or_default();
                let args = [
                    text(sink, "type", &type_name),
                    uint(sink, "bytes", amount.unwrap_or_default()),
                ];
                let said = if amount.is_some() { &args[..] } else { &args[..1] };
                self.instant(event, at, name, said, true, sink)
            }
            // ExceptionThrown
            80 => {
                let type_name = event.field("ExceptionType").map(|v| v.to_string());
                let name = sink.text(type_name.unwrap_or_default().as_bytes());
                let message = event.field("ExceptionMessage").map(|v| v.to_string());
                let message = message.unwrap_or_default();
                let args = [text(sink, "message", &message)];
                self.instant(event, at, name, &args, true, sink)
            }
            // ContentionStart, ContentionStop
            81 => {
                let name = sink.text(b"waits for a lock");
                let owner = number("LockOwnerThreadID");
                let args =
                    [uint(sink, "owner thread", owner), uint(sink, "lock", number("LockID"))];
                let stack = self.stack(event, Root::None, sink);
                let thread = self.thread(event, sink)?;
                let entry = TrackEvent::new(name).args(&args).stack(stack);
                let key = Key::Dotnet("wait", 0);
                thread.nest.begin(key, name, at, thread.track, &entry, sink)
            }
            91 => {
                let thread = self.thread(event, sink)?;
                thread.nest.end(Key::Dotnet("wait", 0), at, thread.track, &[], sink).map(drop)
            }
            // MethodJittingStarted
            145 => {
                let part = |name| event.field(name).map(|v| v.to_string()).unwrap_or_default();
                let method = format!("JIT {}.{}", part("MethodNamespace"), part("MethodName"));
                let name = sink.text(method.as_bytes());
                let args = [uint(sink, "IL bytes", number("MethodILSize"))];
                let key = Key::Dotnet("jit", number("MethodID"));
                let thread = self.thread(event, sink)?;
                let entry = TrackEvent::new(name).args(&args);
                thread.nest.begin(key, name, at, thread.track, &entry, sink)
            }
            // MethodLoad, MethodLoadVerbose
            141 | 143 => {
                let args = [uint(sink, "code bytes", number("MethodSize"))];
                let key = Key::Dotnet("jit", number("MethodID"));
                let thread = self.thread(event, sink)?;
                if thread.nest.is_open(key) {
                    thread.nest.end(key, at, thread.track, &args, sink)?;
                }
                Ok(())
            }
            _ => {
                self.skip(event);
                Ok(())
            }
        }
    }

    /// A runtime event whose fields cannot be decoded: it is shown with its payload.
    #[cold]
    fn undecodable(
        &mut self,
        event: &Event<'_>,
        at: Timestamp,
        error: &str,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        self.stats.undecodable += 1;
        let payload = hex(event.payload());
        let args = [text(sink, "error", error), text(sink, "payload", &payload)];
        let name = format!("{}/{}", event.provider(), event.name());
        let name = sink.text(name.as_bytes());
        self.instant(event, at, name, &args, false, sink)
    }

    fn sample(
        &mut self,
        event: &Event<'_>,
        at: Timestamp,
        is_on_cpu: bool,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        self.stats.samples += 1;
        self.thread(event, sink)?;
        let (pid, tid) = (event.process_id() as i32, event.thread_id() as i32);
        let mut sample = Sample::new(pid, tid);
        let root = if is_on_cpu {
            self.stats.samples_on_cpu += 1;
            Root::None
        } else {
            let sampler = event.header().capture_thread;
            let suspended = self.of(event, sink)?.suspensions.sample(sampler, sink)?;
            let from = suspended.unwrap_or(at.saturating_add_nanos(-SAMPLE_WINDOW));
            let to = suspended.unwrap_or(at);
            let state = self.options.cpus.as_ref().map(|cpus| cpus.state_within(tid, from, to));
            match state {
                Some(CpuState::OnCpu(cpu)) => {
                    self.stats.samples_on_cpu += 1;
                    sample.cpu = Some(cpu);
                    sample.mode = CpuMode::User;
                    Root::OnCpu
                }
                Some(CpuState::OffCpu) => {
                    self.stats.samples_off_cpu += 1;
                    Root::OffCpu
                }
                Some(CpuState::Unknown) | None => Root::Unknown,
            }
        };
        sample.stack = self.stack(event, root, sink);
        sink.sample(at, &sample)
    }

    /// Interns the event's stack with its methods in the sink.
    fn stack(&mut self, event: &Event<'_>, root: Root, sink: &mut impl Sink) -> Option<StackId> {
        let stack = event.stack();
        if stack.is_empty() {
            return None;
        }
        let pid = event.process_id();
        let key = (pid, stack.as_bytes().into());
        let [.., known] = &self.stacks;
        let known = self.stacks.get(root as usize).unwrap_or(known).get(&key);
        if let Some(id) = known.filter(|id| sink.holds_stack(**id)) {
            return Some(*id);
        }
        let now = event.header().timestamp;
        let frames: Vec<(String, String, u64)> = stack
            .instruction_pointers()
            .enumerate()
            .map(|(depth, ip)| {
                // All frames but the innermost are return addresses.
                let call = if depth == 0 { ip } else { ip.saturating_sub(1) };
                let frame = self.names.methods.resolve(pid, call, now);
                let function = match frame.method {
                    Some(method) => method.to_string(),
                    None => format!("{ip:#x}"),
                };
                let module = frame.module.map_or(String::new(), |m| m.name().to_owned());
                // Perfetto's addresses are relative to the module.
                (function, module, frame.method.map_or(0, |m| ip.saturating_sub(m.start)))
            })
            .collect();
        let outermost = (root != Root::None).then(|| Frame::new(root.name()));
        let methods = frames.iter().map(|(function, module, pc)| Frame {
            function: function.as_bytes(),
            module: module.as_bytes(),
            pc: *pc,
            ..Frame::default()
        });
        let id = sink.stack(&mut methods.chain(outermost));
        self.stack_bytes += stack.as_bytes().len();
        if self.stack_bytes > MAX_STACK_BYTES {
            self.stacks.iter_mut().for_each(HashMap::clear);
            self.stack_bytes = stack.as_bytes().len();
        }
        if let Some(stacks) = self.stacks.get_mut(root as usize) {
            stacks.insert(key, id);
        }
        Some(id)
    }

    fn instant(
        &mut self,
        event: &Event<'_>,
        at: Timestamp,
        name: TextId,
        args: &[DebugAnnotation<'_>],
        with_stack: bool,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let stack = if with_stack { self.stack(event, Root::None, sink) } else { None };
        let track = self.thread(event, sink)?.track;
        sink.instant(at, track, &TrackEvent::new(name).args(args).stack(stack))
    }

    #[expect(clippy::too_many_arguments, reason = "a track and its value")]
    fn count(
        &mut self,
        event: &Event<'_>,
        at: Timestamp,
        name: &str,
        unit: Unit,
        unit_name: &str,
        value: CounterValue,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let process = self.of(event, sink)?;
        let track = match process.counters.get(name) {
            Some(track) => *track,
            None if process.counters.len() >= MAX_GROUPS => {
                self.skip(event);
                return Ok(());
            }
            None => {
                let track = Track::counter(name.as_bytes(), unit).child_of(process.track);
                let track = track.unit_name(unit_name.as_bytes()).rank(rank::COUNTERS);
                let track = sink.track(&track)?;
                process.counters.insert(name.to_owned(), track);
                track
            }
        };
        sink.counter(at, track, value)
    }

    /// An event counter or a value of a meter. Its track has one name and one unit, independent of
    /// the values.
    fn counter(
        &mut self,
        event: &Event<'_>,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(counter) = self.counters.observe(event) else {
            // The beginning and end of a collection, and rates without a value yet.
            self.skip(event);
            return Ok(());
        };
        let mut name = format!("{}/{}", counter.provider, counter.name);
        if !counter.tags.is_empty() {
            name.push_str(&format!(" {}", counter.tags));
        }
        let is_rate = counter.kind == CounterKind::Rate;
        let is_bytes = matches!(&*counter.unit, "B" | "By" | "bytes");
        let (unit, unit_name) = match (&*counter.unit, is_rate) {
            (_, false) if is_bytes => (Unit::Bytes, String::new()),
            ("", false) => (Unit::Count, String::new()),
            ("", true) => (Unit::Count, "1/s".to_owned()),
            (unit, false) => (Unit::Count, unit.to_owned()),
            (unit, true) => (Unit::Count, format!("{unit}/s")),
        };
        for (quantile, value) in &counter.quantiles {
            let name = format!("{name} p{}", quantile * 100.0);
            self.count(event, at, &name, unit, &unit_name, (*value).into(), sink)?;
        }
        if !counter.quantiles.is_empty() {
            name.push_str(" sum");
        }
        let value = counter.per_second().unwrap_or(counter.value);
        self.count(event, at, &name, unit, &unit_name, value.into(), sink)
    }

    /// An event of an event source: an activity, or an instant on its thread.
    fn custom(&mut self, event: &Event<'_>, at: Timestamp, sink: &mut impl Sink) -> io::Result<()> {
        let mut fields: Vec<(&str, String)> = Vec::new();
        for field in event.fields() {
            match field {
                Ok((name, value)) => fields.push((name, value.to_string())),
                Err(error) => {
                    self.stats.undecodable += 1;
                    fields.push(("error", error.to_string()));
                    fields.push(("payload", hex(event.payload())));
                }
            }
        }
        let mut args: Vec<DebugAnnotation<'_>> = Vec::with_capacity(fields.len());
        for (name, value) in &fields {
            args.push(text(sink, if name.is_empty() { "value" } else { name }, value));
        }
        let pid = event.process_id();
        let (number, group, ended) = match self.activities.step(event) {
            Some(ActivityStep::Start(number)) => {
                let Some(activity) = self.activities.get(number) else { return Ok(()) };
                (number, group(activity), None)
            }
            Some(ActivityStep::Stop(number, activity)) => {
                (number, group(&activity), Some(activity))
            }
            Some(_) => {
                // The activity began before the trace, or too many are open.
                self.stats.activities_dropped += 1;
                return Ok(());
            }
            None => {
                let name = format!("{}/{}", event.provider(), event.name());
                let name = sink.text(name.as_bytes());
                return self.instant(event, at, name, &args, false, sink);
            }
        };
        let Self { processes, options, names, .. } = &mut *self;
        let process = Self::process(processes, options, names, pid, sink)?;
        if !process.groups.contains_key(&group) {
            if process.groups.len() >= MAX_GROUPS {
                self.stats.activities_dropped += 1;
                return Ok(());
            }
            let track = Track::custom(group.as_bytes()).child_of(process.activities).ordered();
            process.groups.insert(group.clone(), Lanes::new(sink.track(&track)?));
        }
        let Some(lanes) = process.groups.get_mut(&group) else { return Ok(()) };
        if ended.is_none() {
            let lane = lanes.acquire(sink)?;
            process.open.insert(number, lane);
            let Some(lane) = lanes.lanes.get(lane as usize) else { return Ok(()) };
            let name = sink.text(group.rsplit('/').next().unwrap_or(&group).as_bytes());
            return sink.begin(at, lane.track, &TrackEvent::new(name).args(&args));
        }
        let Some(lane) = process.open.remove(&number) else { return Ok(()) };
        lanes.release(lane);
        match lanes.lanes.get(lane as usize) {
            Some(lane) => sink.end(at, lane.track, &args),
            None => Ok(()),
        }
    }
}

/// Returns the start of a payload.
fn hex(payload: &[u8]) -> String {
    payload.iter().take(MAX_PAYLOAD).map(|byte| format!("{byte:02x}")).collect()
}

/// A group of activities that share tracks.
fn group(activity: &Activity) -> String {
    format!("{}/{}", activity.provider, activity.name)
}

fn uint<'a>(sink: &mut impl Sink, name: &str, value: u64) -> DebugAnnotation<'a> {
    DebugAnnotation::new(sink.text(name.as_bytes()), Value::Uint(value))
}

fn text<'a>(sink: &mut impl Sink, name: &str, value: &'a str) -> DebugAnnotation<'a> {
    DebugAnnotation {
        name: sink.text(name.as_bytes()),
        value: Value::Text(Name::Inline(value.as_bytes())),
    }
}
