//! .NET traces on a timeline.
//!
//! ```no_run
//! use nettrace::{Item, MethodMap, Reader};
//! use std::fs::File;
//! use trace_export::{ClockDomain, PerfettoSink, Sink, dotnet::DotnetSource};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // What methods are called comes at the end of a trace: read it once for that.
//! let mut methods = MethodMap::new();
//! Reader::new(File::open("app.nettrace")?).for_each(|event| {
//!     methods.observe(&event);
//! })?;
//!
//! let mut reader = Reader::new(File::open("app.nettrace")?);
//! let mut sink = PerfettoSink::new(File::create("app.pftrace")?, ClockDomain::Monotonic);
//! let mut source = DotnetSource::new(Default::default(), methods);
//! while let Some(item) = reader.next_item()? {
//!     source.push(&item, &mut sink)?;
//! }
//! source.finish(&mut sink)?;
//! sink.finish()?;
//! # Ok(())
//! # }
//! ```
//!
//! What there is to see, all of it below the track of the process:
//!
//! | track | shows |
//! | --- | --- |
//! | counters | heap by generation, thread pool workers, event counters, meters |
//! | GC | collections; below it, when and why managed threads were suspended |
//! | Activities | by event source and name: what has a start and a stop event, requests for instance |
//! | threads | compilations, waits for locks, exceptions, allocation samples, events of event sources, CPU samples with managed stacks |
//!
//! Times are those of CLOCK_MONOTONIC if the trace was made on Linux: the clock of Go traces and
//! of kernel recordings of the same machine.

use crate::intern::{Frame, StackId, TextId};
use crate::lanes::{Key, Lanes, Nest};
use crate::model::{
    CpuMode, DebugAnnotation, Loss, Name, Sample, Sink, Track, TrackEvent, TrackId, Unit, Value,
};
use hashbrown::HashMap;
use nettrace::analysis::{
    Activity, ActivityStep, ActivityTracker, CounterKind, CounterTracker, GcReason, SuspendReason,
};
use nettrace::manifest::Provider;
use nettrace::{Event, Item, MethodMap};
use std::io;
use trace_common::{ClockDomain, Timestamp};

/// What is to be on the timeline.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DotnetOptions {
    /// The name of the process; from its command line, if the trace has that, when empty.
    pub process: Vec<u8>,
}

/// What of a trace has been put on a timeline, and what has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DotnetStats {
    /// Events of the trace.
    pub events: u64,
    /// CPU samples.
    pub samples: u64,
    /// Events of the runtime that have no place on the timeline.
    pub not_shown: u64,
    /// Events that the runtime dropped.
    pub lost: u64,
    /// Events of event sources whose payload does not match its metadata: they are shown with the
    /// error and the payload.
    pub undecodable: u64,
    /// Starts and stops of activities that are not shown: stops of what began before the trace,
    /// and what was too much.
    pub activities_dropped: u64,
    /// The time of the first event.
    pub first: Option<Timestamp>,
    /// The time of the last event.
    pub last: Option<Timestamp>,
}

/// Puts the events of a .NET trace on a timeline: see the [module](self).
#[derive(Debug, Default)]
pub struct DotnetSource {
    options: DotnetOptions,
    methods: MethodMap,
    stats: DotnetStats,
    counters: CounterTracker,
    activities: ActivityTracker,
    processes: HashMap<u64, Process>,
    threads: HashMap<(u64, u64), Thread>,
    /// Stacks the sink may still hold.
    stacks: HashMap<(u64, Box<[u8]>), StackId>,
    stack_bytes: usize,
}

#[derive(Debug)]
struct Process {
    track: TrackId,
    gc: TrackId,
    suspensions: TrackId,
    collections: Nest,
    suspended: Nest,
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

/// Kinds of activities, and counters: more are dropped and counted.
const MAX_GROUPS: usize = 1 << 12;

/// Bytes of a payload that cannot be decoded to show with its event.
const MAX_PAYLOAD: usize = 256;

/// Bytes of stacks to remember before starting anew.
const MAX_STACK_BYTES: usize = 16 << 20;

impl DotnetSource {
    /// A source with these options. `methods` names the frames of stacks: see the
    /// [module](self).
    pub fn new(options: DotnetOptions, methods: MethodMap) -> Self {
        Self { options, methods, ..Self::default() }
    }

    /// What has been put on the timeline so far.
    pub const fn stats(&self) -> DotnetStats {
        self.stats
    }

    /// Puts the next item of a stream on the timeline.
    ///
    /// # Errors
    ///
    /// Those of the sink.
    pub fn push(&mut self, item: &Item<'_>, sink: &mut impl Sink) -> io::Result<()> {
        match item {
            Item::Trace(trace) => sink.clock_snapshot(&[
                (ClockDomain::Monotonic, trace.timestamp(trace.sync_time_qpc)),
                (ClockDomain::Realtime, trace.sync_time_utc),
            ]),
            Item::Event(event) => self.event(event, sink),
            Item::Lost(lost) => {
                self.stats.lost += lost.count;
                let at = self.stats.last.unwrap_or_default();
                let why = format!("the buffers of thread {} were full", lost.capture_thread);
                let loss =
                    Loss { what: b".NET events", count: Some(lost.count), why: why.as_bytes() };
                sink.lost(at, None, &loss)
            }
            _ => Ok(()),
        }
    }

    /// What is open stays open: it goes on past the end of the trace.
    ///
    /// # Errors
    ///
    /// Those of the sink.
    pub fn finish(&mut self, _sink: &mut impl Sink) -> io::Result<()> {
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, sink: &mut impl Sink) -> io::Result<()> {
        let at = event.timestamp();
        self.stats.events += 1;
        self.stats.first = Some(self.stats.first.map_or(at, |first| first.min(at)));
        self.stats.last = Some(self.stats.last.map_or(at, |last| last.max(at)));
        self.methods.observe(event);
        match Provider::by_name(event.provider()) {
            Some(Provider::Runtime) => self.runtime(event, at, sink),
            Some(Provider::SampleProfiler) => self.sample(event, at, sink),
            Some(Provider::UniversalEvents) if event.name() == "cpu" => {
                self.sample(event, at, sink)
            }
            Some(Provider::EventPipe) => self.process_info(event, sink),
            Some(Provider::Metrics) => self.counter(event, at, sink),
            Some(_) => {
                self.stats.not_shown += 1;
                Ok(())
            }
            None if event.name() == "EventCounters" => self.counter(event, at, sink),
            None => self.custom(event, at, sink),
        }
    }

    fn process<'s>(
        processes: &'s mut HashMap<u64, Process>,
        options: &DotnetOptions,
        pid: u64,
        sink: &mut impl Sink,
    ) -> io::Result<&'s mut Process> {
        if let hashbrown::hash_map::Entry::Vacant(entry) = processes.entry(pid) {
            let name = if options.process.is_empty() { b".NET" } else { &options.process[..] };
            let track = sink.track(&Track::process(pid as i32, name).ordered())?;
            let gc = Track::custom(b"GC").child_of(track).rank(rank::GC).ordered();
            let gc = sink.track(&gc)?;
            let suspensions = sink.track(&Track::custom(b"Suspensions").child_of(gc))?;
            let activities = Track::custom(b"Activities").child_of(track).rank(rank::ACTIVITIES);
            let activities = sink.track(&activities)?;
            entry.insert(Process {
                track,
                gc,
                suspensions,
                collections: Nest::default(),
                suspended: Nest::default(),
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
        Self::process(&mut self.processes, &self.options, event.process_id(), sink)
    }

    fn thread<'s>(
        &'s mut self,
        event: &Event<'_>,
        sink: &mut impl Sink,
    ) -> io::Result<&'s mut Thread> {
        let (pid, tid) = (event.process_id(), event.thread_id());
        if !self.threads.contains_key(&(pid, tid)) {
            let process = Self::process(&mut self.processes, &self.options, pid, sink)?.track;
            let name = event.thread().and_then(|t| t.name.as_deref()).unwrap_or("");
            let track = Track::thread(pid as i32, tid as i32, name.as_bytes()).child_of(process);
            let track = sink.track(&track)?;
            self.threads.insert((pid, tid), Thread { track, nest: Nest::default() });
        }
        self.threads.get_mut(&(pid, tid)).ok_or_else(|| io::Error::other("no thread"))
    }

    fn process_info(&mut self, event: &Event<'_>, sink: &mut impl Sink) -> io::Result<()> {
        // The track may be there already: it is one by its pid, and gets its name now.
        if self.options.process.is_empty() {
            let line = event.field("CommandLine").map(|v| v.to_string()).unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            let base = |w: &str| w.rsplit(['/', '\\']).next().unwrap_or(w).to_owned();
            let name = match (words.next().map(base), words.next().map(base)) {
                (Some(host), Some(app)) if host == "dotnet" && app.ends_with(".dll") => app,
                (Some(program), _) => program,
                _ => return Ok(()),
            };
            self.options.process = name.into_bytes();
        }
        self.of(event, sink).map(drop)
    }

    fn runtime(
        &mut self,
        event: &Event<'_>,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let number = |name: &str| event.field(name).and_then(|v| v.as_u64()).unwrap_or(0);
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
                let name = sink.text(format!("suspended: {reason}").as_bytes());
                let process = self.of(event, sink)?;
                let (key, entry) = (Key::Dotnet("suspend", tid), TrackEvent::new(name));
                process.suspended.begin(key, name, at, process.suspensions, &entry, sink)
            }
            3 => {
                let process = self.of(event, sink)?;
                let key = Key::Dotnet("suspend", tid);
                process.suspended.end(key, at, process.suspensions, &[], sink).map(drop)
            }
            // GCHeapStats
            4 => {
                for (i, name) in ["gen 0", "gen 1", "gen 2", "LOH", "POH"].iter().enumerate() {
                    let Some(size) =
                        event.field(&format!("GenerationSize{i}")).and_then(|v| v.as_u64())
                    else {
                        continue;
                    };
                    let name = format!("Heap {name}");
                    self.count(event, at, name, Unit::Bytes, size as i64, sink)?;
                }
                Ok(())
            }
            // Threads of the pool start, stop, wait
            50 | 51 | 57 => {
                let active = number("ActiveWorkerThreadCount") as i64;
                let name = "Thread pool workers".to_owned();
                self.count(event, at, name, Unit::Count, active, sink)
            }
            // GCAllocationTick, AllocationSampled
            10 | 303 => {
                let type_name = event.field("TypeName").map(|v| v.to_string());
                let name = sink.text(b"allocation sample");
                let amount =
                    event.field("AllocationAmount64").and_then(|v| v.as_u64()).unwrap_or(0);
                let type_name = type_name.unwrap_or_default();
                let args = [text(sink, "type", &type_name), uint(sink, "bytes", amount)];
                self.instant(event, at, name, &args, true, sink)
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
                let stack = self.stack(event, sink);
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
                self.stats.not_shown += 1;
                Ok(())
            }
        }
    }

    fn sample(&mut self, event: &Event<'_>, at: Timestamp, sink: &mut impl Sink) -> io::Result<()> {
        self.stats.samples += 1;
        self.thread(event, sink)?;
        let stack = self.stack(event, sink);
        let (pid, tid) = (event.process_id() as i32, event.thread_id() as i32);
        let sample = Sample { stack, mode: CpuMode::User, ..Sample::new(pid, tid) };
        sink.sample(at, &sample)
    }

    /// The event's stack with its methods, as the sink knows it.
    fn stack(&mut self, event: &Event<'_>, sink: &mut impl Sink) -> Option<StackId> {
        let stack = event.stack();
        if stack.is_empty() {
            return None;
        }
        let pid = event.process_id();
        let key = (pid, stack.as_bytes().into());
        if let Some(id) = self.stacks.get(&key) {
            if sink.holds_stack(*id) {
                return Some(*id);
            }
        }
        let now = event.header().timestamp;
        let frames: Vec<(String, String, u64)> = stack
            .instruction_pointers()
            .enumerate()
            .map(|(depth, ip)| {
                // All but the innermost are return addresses.
                let call = if depth == 0 { ip } else { ip.saturating_sub(1) };
                let frame = self.methods.resolve(pid, call, now);
                let function = match frame.method {
                    Some(method) => method.to_string(),
                    None => format!("{ip:#x}"),
                };
                let module = frame.module.map_or(String::new(), |m| m.name().to_owned());
                // Perfetto's addresses are relative to the module.
                (function, module, frame.method.map_or(0, |m| ip.saturating_sub(m.start)))
            })
            .collect();
        let id = sink.stack(&mut frames.iter().map(|(function, module, pc)| Frame {
            function: function.as_bytes(),
            module: module.as_bytes(),
            pc: *pc,
            ..Frame::default()
        }));
        self.stack_bytes += stack.as_bytes().len();
        if self.stack_bytes > MAX_STACK_BYTES {
            self.stacks.clear();
            self.stack_bytes = stack.as_bytes().len();
        }
        self.stacks.insert(key, id);
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
        let stack = if with_stack { self.stack(event, sink) } else { None };
        let track = self.thread(event, sink)?.track;
        sink.instant(at, track, &TrackEvent::new(name).args(args).stack(stack))
    }

    fn count(
        &mut self,
        event: &Event<'_>,
        at: Timestamp,
        name: String,
        unit: Unit,
        value: i64,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let process = self.of(event, sink)?;
        let track = match process.counters.get(&name) {
            Some(track) => *track,
            None if process.counters.len() >= MAX_GROUPS => {
                self.stats.not_shown += 1;
                return Ok(());
            }
            None => {
                let track = Track::counter(name.as_bytes(), unit).child_of(process.track);
                let track = sink.track(&track.rank(rank::COUNTERS))?;
                process.counters.insert(name, track);
                track
            }
        };
        sink.counter(at, track, value.into())
    }

    fn counter(
        &mut self,
        event: &Event<'_>,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(counter) = self.counters.observe(event) else { return Ok(()) };
        let value = counter.per_second().unwrap_or(counter.value);
        let mut name = format!("{}/{}", counter.provider, counter.name);
        if !counter.tags.is_empty() {
            name.push_str(&format!(" {}", counter.tags));
        }
        // Counters of a timeline are whole numbers: small values are shown in thousandths.
        let bytes = matches!(counter.unit.as_str(), "B" | "By");
        let per = if counter.kind == CounterKind::Rate { "/s" } else { "" };
        if bytes || value.abs() >= 1e6 || value.fract() == 0.0 {
            let unit = if bytes && per.is_empty() { Unit::Bytes } else { Unit::Count };
            let shown = if bytes { String::new() } else { format!(" {}", counter.unit) };
            let name = format!("{name}{shown}{per}");
            return self.count(event, at, name, unit, value as i64, sink);
        }
        let name = format!("{name} (m{}{per})", counter.unit);
        self.count(event, at, name, Unit::Count, (value * 1e3) as i64, sink)
    }

    /// An event of an event source: an activity, or an instant on its thread.
    fn custom(&mut self, event: &Event<'_>, at: Timestamp, sink: &mut impl Sink) -> io::Result<()> {
        let mut fields: Vec<(&str, String)> = Vec::new();
        for field in event.fields() {
            match field {
                Ok((name, value)) => fields.push((name, value.to_string())),
                Err(error) => {
                    self.stats.undecodable += 1;
                    let payload = event.payload();
                    let payload = payload.iter().take(MAX_PAYLOAD).map(|b| format!("{b:02x}"));
                    fields.push(("error", error.to_string()));
                    fields.push(("payload", payload.collect()));
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
                // It began before the trace, or too many are open.
                self.stats.activities_dropped += 1;
                return Ok(());
            }
            None => {
                let name = format!("{}/{}", event.provider(), event.name());
                let name = sink.text(name.as_bytes());
                return self.instant(event, at, name, &args, false, sink);
            }
        };
        let process = Self::process(&mut self.processes, &self.options, pid, sink)?;
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

/// Activities that share tracks.
fn group(activity: &Activity) -> String {
    format!("{}/{}", activity.provider, activity.name)
}

fn uint<'a>(sink: &mut impl Sink, name: &str, value: u64) -> DebugAnnotation<'a> {
    DebugAnnotation { name: sink.text(name.as_bytes()), value: Value::Uint(value) }
}

fn text<'a>(sink: &mut impl Sink, name: &str, value: &'a str) -> DebugAnnotation<'a> {
    DebugAnnotation {
        name: sink.text(name.as_bytes()),
        value: Value::Text(Name::Inline(value.as_bytes())),
    }
}
