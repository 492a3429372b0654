//! The processed profile format, version 60:
//! <https://github.com/firefox-devtools/profiler/blob/main/docs-developer/processed-profile-format.md>.
//!
//! Later versions of the profiler convert it when they load it. Tables are columns of equal length.

use super::{FirefoxProfile, Marker, MarkerKind, Numbers, Series, Taken, Thread};
use crate::frame::module;
use crate::json;
use crate::profile::Unit;
use crate::profile::origin::Origin;
use crate::profile::samples;
use crate::profile::view::{Names, frame_name, process_name};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::HashMap;
use std::fmt::Display;
use std::io::{self, Write};
use trace_timeline::{
    EntityKind, Frame, InstantKind, Mapping, MappingId, SampleKind, SampledEventId, SpanKind,
    StackId, Tables, TextId, ThreadState,
};

/// The version of the format.
const VERSION: u32 = 60;

/// The version of the format of Firefox itself, which has no meaning here.
const GECKO_VERSION: u32 = 24;

/// Nanoseconds between two samples where no thread has several.
const INTERVAL: i64 = 1_000_000;

pub(super) fn write(
    profile: &FirefoxProfile,
    threads: Vec<(Numbers, Thread)>,
    title: &str,
    tables: &Tables,
    out: &mut dyn Write,
) -> io::Result<u64> {
    let weight = Chosen::of(&profile.series, tables);
    let given = profile.interval.map(|nanos| i64::try_from(nanos).unwrap_or(i64::MAX));
    let interval = given.or_else(|| weight.interval(&threads, tables)).unwrap_or(INTERVAL);
    let mut shared = Shared::new(tables);
    let mut out = Output { gz: GzEncoder::new(out, Compression::default()), text: String::new() };
    out.text.push_str("{\"meta\":");
    meta(&mut out.text, profile, interval, title);
    out.text.push_str(",\"threads\":[");
    let mut left_out = 0;
    let mut is_first = true;
    for (numbers, thread) in threads {
        if !std::mem::take(&mut is_first) {
            out.text.push(',');
        }
        left_out += weight.of_thread(&numbers, thread, interval, &mut shared, &mut out)?;
    }
    out.text.push_str("],");
    shared.write(&mut out)?;
    out.text.push_str(",\"counters\":[]}");
    out.flush()?;
    out.gz.finish()?;
    Ok(left_out)
}

/// The compressed file, written in parts.
struct Output<'a> {
    gz: GzEncoder<&'a mut dyn Write>,
    text: String,
}

impl Output<'_> {
    fn flush(&mut self) -> io::Result<()> {
        self.gz.write_all(self.text.as_bytes())?;
        self.text.clear();
        Ok(())
    }

    /// A key, and a column of a table.
    fn column<T>(
        &mut self,
        key: &str,
        values: impl IntoIterator<Item = T>,
        each: impl FnMut(&mut String, T),
    ) -> io::Result<()> {
        const PART: usize = 1 << 16;
        self.text.push_str(&format!("\"{key}\":"));
        json::list(&mut self.text, values, each);
        self.text.push(',');
        if self.text.len() >= PART { self.flush() } else { Ok(()) }
    }

    /// The number of rows, which ends a table.
    fn length(&mut self, rows: usize) {
        self.text.push_str(&format!("\"length\":{rows}}}"));
    }
}

/// Nothing is `null`.
fn optional(text: &mut String, value: Option<impl Display>) {
    match value {
        Some(value) => json::number(text, value),
        None => text.push_str("null"),
    }
}

/// Nanoseconds as milliseconds with all digits.
fn millis(nanos: i64) -> String {
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let (whole, part) = (nanos / 1_000_000, nanos % 1_000_000);
    match part {
        0 => format!("{sign}{whole}"),
        part => format!("{sign}{whole}.{part:06}"),
    }
}

fn meta(text: &mut String, profile: &FirefoxProfile, interval: i64, title: &str) {
    let categories: Vec<(&str, &str)> =
        Origin::ALL.iter().map(|o| (o.name(), colour(*o))).collect();
    text.push_str(&format!(
        "{{\"version\":{GECKO_VERSION},\"preprocessedProfileVersion\":{VERSION},\
         \"processType\":0,\"stackwalk\":1,\"debug\":false,\"symbolicated\":true,\
         \"usesOnlyOneStackType\":true,\"sourceCodeIsNotOnSearchfox\":true,\
         \"importedFrom\":\"triscope\",\"platform\":\"Linux\",\
         \"extensions\":{{\"baseURL\":[],\"id\":[],\"name\":[],\"length\":0}},\
         \"sampleUnits\":{{\"time\":\"ms\",\"eventDelay\":\"ms\",\"threadCPUDelta\":\"ns\"}},\
         \"interval\":{},\"startTime\":{},\"profilingStartTime\":0,\"profilingEndTime\":{},\
         \"product\":",
        millis(interval),
        millis(profile.epoch.unwrap_or(0)),
        millis(profile.end),
    ));
    json::text(text, title);
    text.push_str(",\"categories\":");
    json::list(text, &categories, |text, (name, colour)| {
        text.push_str("{\"name\":");
        json::text(text, name);
        text.push_str(&format!(",\"color\":\"{colour}\",\"subcategories\":[\"Other\"]}}"));
    });
    text.push_str(",\"markerSchema\":");
    json::list(text, SCHEMAS, |text, (name, description)| {
        text.push_str(&format!(
            "{{\"name\":\"{name}\",\"description\":\"{description}\",\
             \"tooltipLabel\":\"{{marker.name}}\",\"tableLabel\":\"{{marker.data.detail}}\",\
             \"chartLabel\":\"{{marker.data.detail}}\",\
             \"display\":[\"marker-chart\",\"marker-table\",\"timeline-overview\"],\
             \"fields\":[{{\"key\":\"detail\",\"label\":\"Detail\",\"format\":\"string\"}}]}}"
        ));
    });
    text.push('}');
}

/// Colours of the profiler; the grey one is the category of frames without one.
const fn colour(origin: Origin) -> &'static str {
    match origin {
        Origin::Other => "grey",
        Origin::Kernel => "orange",
        Origin::Native => "blue",
        Origin::Go => "lightblue",
        Origin::Dotnet => "purple",
    }
}

/// The types of markers, with their descriptions.
const SCHEMAS: [(&str, &str); 4] = [
    (OFF_CPU, "The thread is not on a CPU"),
    (RUNTIME, "The runtime of the program: garbage collection, compilation, lock waits"),
    (PROGRAM, "Tasks, regions, activities and requests of the program"),
    (INSTANT, "Messages, exceptions and other events of the program"),
];
const OFF_CPU: &str = "off-cpu";
const RUNTIME: &str = "runtime";
const PROGRAM: &str = "program";
const INSTANT: &str = "event";

/// The type and name of a marker.
const fn marker_type(kind: MarkerKind) -> (&'static str, &'static str) {
    match kind {
        MarkerKind::OffCpu(state) => (
            OFF_CPU,
            match state {
                ThreadState::Preempted => "preempted",
                ThreadState::Sleeping => "sleeping",
                ThreadState::Blocked => "blocked",
                ThreadState::Stopped => "stopped",
                _ => "off CPU",
            },
        ),
        MarkerKind::Span(kind) => match kind {
            SpanKind::Task => (PROGRAM, "task"),
            SpanKind::Region => (PROGRAM, "region"),
            SpanKind::Activity => (PROGRAM, "activity"),
            SpanKind::Request => (PROGRAM, "request"),
            SpanKind::Gc => (RUNTIME, "GC"),
            SpanKind::GcAssist => (RUNTIME, "GC assist"),
            SpanKind::GcSweep => (RUNTIME, "GC sweep"),
            SpanKind::StopTheWorld => (RUNTIME, "stop the world"),
            SpanKind::Jit => (RUNTIME, "JIT"),
            SpanKind::LockWait => (RUNTIME, "lock wait"),
            SpanKind::HandleWait => (RUNTIME, "wait for a handle"),
            SpanKind::Queued => (RUNTIME, "queued"),
            SpanKind::TaskRun => (PROGRAM, "task runs"),
            SpanKind::TaskWait => (PROGRAM, "task wait"),
            SpanKind::Await => (PROGRAM, "await"),
            SpanKind::Operation => (PROGRAM, "operation"),
            SpanKind::Finalizers => (RUNTIME, "finalizers"),
            SpanKind::TypeLoad => (RUNTIME, "type load"),
            SpanKind::TieredJit => (RUNTIME, "tiered compilation"),
            _ => (RUNTIME, "span"),
        },
        MarkerKind::Instant(kind) => match kind {
            InstantKind::Log => (INSTANT, "log"),
            InstantKind::Label => (INSTANT, "label"),
            InstantKind::Exception => (INSTANT, "exception"),
            InstantKind::Stopped => (INSTANT, "stopped"),
            InstantKind::Starvation => (INSTANT, "thread pool starvation"),
            _ => (INSTANT, "event"),
        },
    }
}

/// The samples that a profile has: of one event, or of all whose weight is a time.
struct Chosen {
    /// For each series, its place in the file.
    places: Vec<Place>,
    is_time: bool,
    /// Whether the weight of a sample is the number that it stands for.
    is_counted: bool,
    /// Whether the samples are taken at regular intervals of CPU time.
    is_regular: bool,
    /// Whether there are times on the CPU.
    has_cpu: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Samples { is_on_cpu: bool },
    Allocations,
    LeftOut,
}

/// Whether an event of the kernel occurs regularly while a CPU runs: `cycles:u`, `cpu_core/cycles/`. Others
/// have such a word in their names, such as `syscalls:sys_enter_clock_gettime`.
fn is_of_running(name: &str) -> bool {
    let event = name.split_once('/').map_or(name, |(_, event)| event);
    // PMUs of Arm name them with `_`.
    let event = event.split([':', '/', ',']).next().unwrap_or_default().replace('_', "-");
    matches!(
        &*event,
        "cycles" | "cpu-cycles" | "ref-cycles" | "bus-cycles" | "cpu-clock" | "task-clock"
    )
}

/// A row of the table of samples.
struct Row {
    /// Nanoseconds.
    at: i64,
    stack: Option<u32>,
    weight: i64,
    /// Nanoseconds on the CPU since the row before.
    on_cpu: i64,
}

impl Chosen {
    fn of(series: &[Series], tables: &Tables) -> Self {
        let unit = |series: &Series| samples::unit(series.kind, series.event, tables);
        let is_timed = |series: &&Series| unit(series) == Unit::Nanoseconds;
        let timed: u64 = series.iter().filter(is_timed).map(|series| series.count).sum();
        let others = series.iter().enumerate().filter(|(_, series)| {
            unit(series) != Unit::Nanoseconds && series.kind != SampleKind::Allocation
        });
        let most = others.max_by_key(|(_, series)| series.count);
        let single = most.filter(|(_, series)| series.count > timed);
        let place = |(index, series): (usize, &Series)| match single {
            _ if series.kind == SampleKind::Allocation => Place::Allocations,
            Some((chosen, _)) if chosen == index => Place::Samples { is_on_cpu: true },
            None if unit(series) == Unit::Nanoseconds => {
                Place::Samples { is_on_cpu: series.kind != SampleKind::OffCpu }
            }
            _ => Place::LeftOut,
        };
        let places: Vec<Place> = series.iter().enumerate().map(place).collect();
        let is_regular = single.is_some_and(|(_, series)| match series.kind {
            // Of the sampler of .NET, which has no name.
            SampleKind::Cpu if series.event == SampledEventId::NONE => true,
            SampleKind::Cpu => is_of_running(&tables.str(tables.sampled_event(series.event).name)),
            kind => matches!(kind, SampleKind::GoCpu | SampleKind::Managed),
        });
        let is_counted = single.is_some_and(|(_, series)| unit(series) == Unit::Count);
        let has_cpu = places.contains(&Place::Samples { is_on_cpu: true });
        Self { places, is_time: single.is_none(), is_counted, is_regular, has_cpu }
    }

    fn place(&self, sample: &Taken) -> Place {
        self.places.get(usize::from(sample.series)).copied().unwrap_or(Place::LeftOut)
    }

    /// The number of samples that one stands for.
    fn count(&self, sample: &Taken) -> i64 {
        if self.is_counted { i64::try_from(sample.weight).unwrap_or(i64::MAX) } else { 1 }
    }

    /// The time between two samples that are taken at regular intervals: the median of the thread with
    /// most of them, which has a CPU most of the time. An idle CPU is no thread. A sample that stands for
    /// several has several intervals before it.
    fn interval(&self, threads: &[(Numbers, Thread)], tables: &Tables) -> Option<i64> {
        if !self.is_regular {
            return None;
        }
        let taken = |sample: &&Taken| matches!(self.place(sample), Place::Samples { .. });
        let (_, most) = threads.iter().max_by_key(|(_, thread)| {
            let kind = thread.entity.and_then(|entity| tables.entities.kind(entity));
            (kind != Some(EntityKind::Cpu), thread.samples.iter().filter(taken).count())
        })?;
        let mut times: Vec<(i64, i64)> = most
            .samples
            .iter()
            .filter(taken)
            .map(|sample| (sample.at, self.count(sample).max(1)))
            .collect();
        times.sort_unstable();
        let mut distances: Vec<i64> = times
            .iter()
            .zip(times.iter().skip(1))
            .map(|((at, _), (next, count))| (next - at) / count)
            .collect();
        if distances.len() < 2 {
            return None;
        }
        let middle = (distances.len() - 1) / 2;
        Some(*distances.select_nth_unstable(middle).1).filter(|nanos| *nanos > 0)
    }

    /// Writes a thread. Returns the number of its samples that are left out.
    fn of_thread(
        &self,
        Numbers { pid, tid, is_main }: &Numbers,
        mut thread: Thread,
        interval: i64,
        shared: &mut Shared<'_>,
        out: &mut Output<'_>,
    ) -> io::Result<u64> {
        let tables = shared.tables;
        let process = thread.process.map_or_else(String::new, |id| process_name(id, tables));
        let name = thread.entity.and_then(|id| tables.entities.get(id)).map(|entity| {
            match (entity.kind, tables.str(entity.name)) {
                (EntityKind::Cpu, _) => format!("CPU {}", entity.number),
                (EntityKind::Process, _) => process.clone(),
                (_, name) if name.is_empty() => format!("thread {}", entity.number),
                (_, name) => name.into_owned(),
            }
        });
        out.text.push_str(&format!(
            "{{\"processType\":\"default\",\"processStartupTime\":0,\"processShutdownTime\":null,\
             \"registerTime\":0,\"unregisterTime\":null,\"pausedRanges\":[],\
             \"showMarkersInTimeline\":true,\"isMainThread\":{is_main},\
             \"pid\":\"{pid}\",\"tid\":{tid},\"name\":"
        ));
        json::text(&mut out.text, &name.unwrap_or_default());
        out.text.push_str(",\"processName\":");
        json::text(&mut out.text, &process);
        let (rows, left_out) = self.rows(&thread.samples, interval, shared);
        self.samples(&rows, out)?;
        self.allocations(&thread.samples, shared, out)?;
        thread.markers.sort_by_key(|marker| marker.start);
        markers(&thread.markers, shared, out)?;
        out.text.push('}');
        Ok(left_out)
    }

    /// The rows of the samples, in time order.
    fn rows(&self, samples: &[Taken], interval: i64, shared: &mut Shared<'_>) -> (Vec<Row>, u64) {
        let mut left_out = 0;
        let mut rows: Vec<Row> = Vec::with_capacity(samples.len());
        let mut sorted: Vec<(i64, &Taken, bool)> = Vec::with_capacity(samples.len());
        for sample in samples {
            match self.place(sample) {
                // Where its time begins.
                Place::Samples { is_on_cpu } if self.is_time => {
                    let start = sample.at.saturating_sub_unsigned(sample.weight).max(0);
                    sorted.push((start, sample, is_on_cpu));
                }
                Place::Samples { is_on_cpu } => sorted.push((sample.at, sample, is_on_cpu)),
                Place::Allocations => {}
                Place::LeftOut => left_out += 1,
            }
        }
        sorted.sort_by_key(|(at, ..)| *at);
        // The time on the CPU that the row before stands for.
        let mut running = 0;
        for (at, sample, is_on_cpu) in sorted {
            let stack = sample.stack.and_then(|stack| shared.stack(stack));
            let (before, counted) = rows.last().map_or((at, 1), |row| (row.at, row.weight));
            let gap = at.saturating_sub(before);
            if self.is_time {
                let weight = i64::try_from(sample.weight).unwrap_or(i64::MAX);
                rows.push(Row { at, stack, weight, on_cpu: running });
                running = if is_on_cpu { weight } else { 0 };
                continue;
            }
            let weight = self.count(sample);
            let [ran_before, ran] = [counted, weight].map(|count| interval.saturating_mul(count));
            if self.is_regular && gap > ran_before.saturating_add(ran) {
                let at = before.saturating_add(ran_before);
                rows.push(Row { at, stack: None, weight: 0, on_cpu: 0 });
            }
            rows.push(Row { at, stack, weight, on_cpu: gap.min(ran) });
        }
        (rows, left_out)
    }

    fn samples(&self, rows: &[Row], out: &mut Output<'_>) -> io::Result<()> {
        out.text.push_str(",\"samples\":{");
        out.column("stack", rows, |text, row| optional(text, row.stack))?;
        out.column("time", rows, |text, row| text.push_str(&millis(row.at)))?;
        out.column("weight", rows, |text, row| match self.is_time {
            true => text.push_str(&millis(row.weight)),
            false => json::number(text, row.weight),
        })?;
        if self.has_cpu && (self.is_time || self.is_regular) {
            out.column("threadCPUDelta", rows, |text, row| json::number(text, row.on_cpu))?;
        }
        let weight = if self.is_time { "tracing-ms" } else { "samples" };
        out.text.push_str(&format!("\"weightType\":\"{weight}\","));
        out.length(rows.len());
        Ok(())
    }

    /// The table of allocations, if there are any.
    fn allocations(
        &self,
        samples: &[Taken],
        shared: &mut Shared<'_>,
        out: &mut Output<'_>,
    ) -> io::Result<()> {
        let is_one = |sample: &&Taken| self.place(sample) == Place::Allocations;
        let samples: Vec<&Taken> = samples.iter().filter(is_one).collect();
        if samples.is_empty() {
            return Ok(());
        }
        out.text.push_str(",\"nativeAllocations\":{");
        out.column("time", &samples, |text, sample| text.push_str(&millis(sample.at)))?;
        out.column("weight", &samples, |text, sample| json::number(text, sample.weight))?;
        out.column("stack", &samples, |text, sample| {
            optional(text, sample.stack.and_then(|stack| shared.stack(stack)));
        })?;
        out.text.push_str("\"weightType\":\"bytes\",");
        out.length(samples.len());
        Ok(())
    }
}

fn markers(markers: &[Marker], shared: &mut Shared<'_>, out: &mut Output<'_>) -> io::Result<()> {
    const INSTANT_PHASE: u8 = 0;
    const INTERVAL_PHASE: u8 = 1;
    out.text.push_str(",\"markers\":{");
    out.column("name", markers, |text, marker| {
        json::number(text, shared.names.text(marker_type(marker.kind).1.into()));
    })?;
    out.column("startTime", markers, |text, marker| text.push_str(&millis(marker.start.max(0))))?;
    out.column("endTime", markers, |text, marker| match marker.is_instant {
        true => text.push_str("null"),
        false => text.push_str(&millis(marker.end)),
    })?;
    out.column("phase", markers, |text, marker| {
        json::number(text, if marker.is_instant { INSTANT_PHASE } else { INTERVAL_PHASE });
    })?;
    out.column("category", markers, |text, _| json::number(text, Origin::Other as u8))?;
    out.column("data", markers, |text, marker| {
        text.push_str(&format!("{{\"type\":\"{}\",\"detail\":", marker_type(marker.kind).0));
        json::text(text, &shared.tables.str(marker.name));
        if let Some(stack) = marker.stack.and_then(|stack| shared.stack(stack)) {
            text.push_str(&format!(",\"cause\":{{\"stack\":{stack}}}"));
        }
        text.push('}');
    })?;
    out.length(markers.len());
    Ok(())
}

/// The tables that all threads share.
struct Shared<'a> {
    tables: &'a Tables,
    names: Names,
    libs: Vec<Mapping>,
    lib_ids: HashMap<MappingId, u32>,
    /// File names by source.
    sources: Vec<TextId>,
    source_ids: HashMap<TextId, u32>,
    functions: Vec<Function>,
    function_ids: HashMap<Function, u32>,
    frames: Vec<FrameRow>,
    frame_ids: HashMap<(Frame, u32), u32>,
    /// The caller and the frame of each stack.
    stacks: Vec<(Option<u32>, u32)>,
    stack_ids: HashMap<(Option<u32>, u32), u32>,
    known: HashMap<StackId, Option<u32>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Function {
    name: u32,
    lib: Option<u32>,
    source: Option<u32>,
}

struct FrameRow {
    /// The address in the file; -1 if there is none.
    address: i64,
    /// Number of functions at the same address into which this one was inlined.
    depth: u32,
    origin: Origin,
    function: u32,
    line: u32,
}

/// The next number of a table.
const fn next(len: usize) -> u32 {
    len as u32
}

impl<'a> Shared<'a> {
    fn new(tables: &'a Tables) -> Self {
        Self {
            tables,
            names: Names::default(),
            libs: Vec::new(),
            lib_ids: HashMap::new(),
            sources: Vec::new(),
            source_ids: HashMap::new(),
            functions: Vec::new(),
            function_ids: HashMap::new(),
            frames: Vec::new(),
            frame_ids: HashMap::new(),
            stacks: Vec::new(),
            stack_ids: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// The stack in the file; `None` for one without frames.
    fn stack(&mut self, id: StackId) -> Option<u32> {
        if let Some(known) = self.known.get(&id) {
            return *known;
        }
        let mut stack = None;
        let mut outer: Option<(Frame, u32)> = None;
        for frame in self.tables.frames(id).iter().rev() {
            let depth = match outer {
                Some((outer, depth)) if is_inlined(frame, &outer) => depth + 1,
                _ => 0,
            };
            outer = Some((*frame, depth));
            let key = (stack, self.frame(frame, depth));
            let new = next(self.stacks.len());
            let number = *self.stack_ids.entry(key).or_insert(new);
            if number == new {
                self.stacks.push(key);
            }
            stack = Some(number);
        }
        self.known.insert(id, stack);
        stack
    }

    fn frame(&mut self, frame: &Frame, depth: u32) -> u32 {
        if let Some(known) = self.frame_ids.get(&(*frame, depth)) {
            return *known;
        }
        let name = self.names.text(frame_name(frame, self.tables, false));
        let lib = frame.mapping.map(|id| {
            let new = next(self.libs.len());
            let lib = *self.lib_ids.entry(id).or_insert(new);
            if lib == new {
                self.libs.push(self.tables.mapping(id));
            }
            lib
        });
        let source = (!frame.file.is_empty()).then(|| {
            let new = next(self.sources.len());
            let source = *self.source_ids.entry(frame.file).or_insert(new);
            if source == new {
                self.sources.push(frame.file);
            }
            source
        });
        let function = Function { name, lib, source };
        let new = next(self.functions.len());
        let function_id = *self.function_ids.entry(function).or_insert(new);
        if function_id == new {
            self.functions.push(function);
        }
        let id = next(self.frames.len());
        // Those of the kernel are relative to no file, and are not exact as numbers of JSON.
        let is_kernel = frame.mapping.is_some_and(|id| self.tables.mapping(id).is_kernel);
        let address = Some(frame.address).filter(|address| *address > 0 && !is_kernel);
        self.frames.push(FrameRow {
            address: address.and_then(|address| i64::try_from(address).ok()).unwrap_or(-1),
            depth,
            origin: Origin::of(frame, self.tables),
            function: function_id,
            line: frame.line,
        });
        self.frame_ids.insert((*frame, depth), id);
        id
    }

    /// Writes `libs` and `shared`.
    fn write(&mut self, out: &mut Output<'_>) -> io::Result<()> {
        let tables = self.tables;
        out.text.push_str("\"libs\":");
        json::list(&mut out.text, &self.libs, |text, mapping| lib(text, mapping, tables));
        // A resource for each library, of the same number.
        let resources: Vec<u32> = self
            .libs
            .iter()
            .map(|lib| self.names.text(module(&tables.str(lib.path)).into()))
            .collect();
        let sources: Vec<u32> =
            self.sources.iter().map(|file| self.names.text(tables.str(*file))).collect();

        out.text.push_str(",\"shared\":{\"stackTable\":{");
        out.column("frame", &self.stacks, |text, (_, frame)| json::number(text, frame))?;
        out.column("prefix", &self.stacks, |text, (prefix, _)| optional(text, *prefix))?;
        out.length(self.stacks.len());

        let frames = &self.frames;
        out.text.push_str(",\"frameTable\":{");
        out.column("address", frames, |text, frame| json::number(text, frame.address))?;
        out.column("inlineDepth", frames, |text, frame| json::number(text, frame.depth))?;
        out.column("category", frames, |text, frame| json::number(text, frame.origin as u8))?;
        out.column("subcategory", frames, |text, _| text.push('0'))?;
        out.column("func", frames, |text, frame| json::number(text, frame.function))?;
        out.column("nativeSymbol", frames, |text, _| text.push_str("null"))?;
        out.column("innerWindowID", frames, |text, _| text.push_str("null"))?;
        out.column("line", frames, |text, frame| {
            optional(text, Some(frame.line).filter(|line| *line != 0));
        })?;
        out.column("column", frames, |text, _| text.push_str("null"))?;
        out.length(frames.len());

        let functions = &self.functions;
        out.text.push_str(",\"funcTable\":{");
        out.column("name", functions, |text, function| json::number(text, function.name))?;
        out.column("isJS", functions, |text, _| text.push_str("false"))?;
        out.column("relevantForJS", functions, |text, _| text.push_str("false"))?;
        out.column("resource", functions, |text, function| match function.lib {
            Some(lib) => json::number(text, lib),
            None => text.push_str("-1"),
        })?;
        out.column("source", functions, |text, function| optional(text, function.source))?;
        out.column("lineNumber", functions, |text, _| text.push_str("null"))?;
        out.column("columnNumber", functions, |text, _| text.push_str("null"))?;
        out.length(functions.len());

        const LIBRARY: u8 = 1;
        out.text.push_str(",\"resourceTable\":{");
        out.column("lib", 0..resources.len(), json::number)?;
        out.column("name", &resources, json::number)?;
        out.column("host", &resources, |text, _| text.push_str("null"))?;
        out.column("type", &resources, |text, _| json::number(text, LIBRARY))?;
        out.length(resources.len());

        out.text.push_str(
            ",\"nativeSymbols\":{\"libIndex\":[],\"address\":[],\"name\":[],\"functionSize\":[],\
             \"length\":0},\"sources\":{",
        );
        out.column("id", &sources, |text, _| text.push_str("null"))?;
        out.column("filename", &sources, json::number)?;
        out.length(sources.len());
        out.text.push_str(",\"stringArray\":");
        json::list(&mut out.text, self.names.all(), json::text);
        out.text.push('}');
        Ok(())
    }
}

/// Whether a function was inlined into the next outer one: it is at the same address. A function that
/// calls itself is, too.
fn is_inlined(frame: &Frame, outer: &Frame) -> bool {
    (frame.mapping, frame.address) == (outer.mapping, outer.address)
        && frame.address != 0
        && frame.function != outer.function
}

fn lib(text: &mut String, mapping: &Mapping, tables: &Tables) {
    let (path, build_id) = (tables.str(mapping.path), tables.str(mapping.build_id));
    let name = module(&path);
    for (key, value) in [
        ("{\"name\":", name),
        (",\"path\":", &path),
        (",\"debugName\":", name),
        (",\"debugPath\":", &path),
        (",\"breakpadId\":", &breakpad_id(&build_id)),
    ] {
        text.push_str(key);
        json::text(text, value);
    }
    text.push_str(",\"codeId\":");
    match &*build_id {
        "" => text.push_str("null"),
        id => json::text(text, id),
    }
    text.push_str(",\"arch\":\"\"}");
}

/// The debug identifier of a build id: its first 16 bytes as a GUID, whose first three fields are
/// little-endian, and an age of 0.
fn breakpad_id(build_id: &str) -> String {
    const DIGITS: usize = 32;
    let digits = build_id.get(..DIGITS.min(build_id.len())).unwrap_or_default();
    let digits = format!("{digits:0<DIGITS$}").to_uppercase();
    let byte = |at: usize| digits.get(2 * at..2 * at + 2).unwrap_or("00");
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    order.into_iter().map(byte).chain(["0"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_all_digits() {
        for (nanos, text) in [(0, "0"), (1, "0.000001"), (2_500_000, "2.500000"), (-1, "-0.000001")]
        {
            assert_eq!(millis(nanos), text);
        }
    }

    #[test]
    fn build_ids_are_guids() {
        assert_eq!(breakpad_id(""), "000000000000000000000000000000000");
        let id = breakpad_id("00112233445566778899aabbccddeeff01234567");
        assert_eq!(id, "33221100554477668899AABBCCDDEEFF0");
    }
}
