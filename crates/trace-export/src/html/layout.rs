//! Which lane is where: CPUs first, then processes with their pauses, requests, threads and
//! goroutines.

use super::refs::{By, Refs};
use super::strip::{Item, Kind, Lane, Strip, pack};
use super::{HtmlTimeline, Loss, Span, json};
use crate::cut;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use trace_timeline::answers::Report;
use trace_timeline::{Entities, EntityId, EntityKind, Tables, TextId, text};

/// Processes with a group of their own; the others share one.
const MAX_PROCESSES: usize = 16;

/// Types of tasks and activities, and entry functions of goroutines, with lanes of their own in a process;
/// the others share some.
const MAX_NAMES: usize = 256;

/// A group of lanes, which can be folded.
struct Group {
    name: String,
    /// The group that it is in, counted from 1.
    parent: usize,
    is_open: bool,
    /// The process whose use of CPUs is shown; 0 for none.
    process: u32,
    /// Whether the process is of interest.
    is_main: bool,
}

/// A lane and its encoded items.
pub(super) struct Track {
    group: usize,
    name: String,
    form: Form,
    owner: u32,
    count: u64,
    pub(super) bytes: Vec<u8>,
}

/// How the page draws a lane.
#[derive(Clone, Copy)]
enum Form {
    Cpu = 0,
    States = 1,
    Spans = 2,
    Counter = 3,
}

/// The groups and lanes of the page, in their order.
pub(super) struct Layout {
    groups: Vec<Group>,
    tracks: Vec<Track>,
    /// Goroutines, threads and spans without a lane.
    pub(super) folded: u64,
    /// Intervals of threads without a lane, of processes that are not of interest.
    pub(super) summarized: u64,
    max_lanes: usize,
    /// Whether a process is of interest.
    has_main: bool,
    /// The group of losses; 0 for none.
    losses: usize,
}

/// What belongs to one process.
#[derive(Default)]
struct Process {
    entity: Option<EntityId>,
    on_cpu: i64,
    /// Whether it is of interest: it has a colour.
    is_main: bool,
    threads: Vec<(EntityId, Strip)>,
    procs: Vec<(EntityId, Strip)>,
    dotnet: Vec<(EntityId, Strip)>,
    /// By entry function.
    goroutines: BTreeMap<String, Vec<(EntityId, Strip)>>,
    runtime: Vec<Span>,
    requests: BTreeMap<String, Vec<Span>>,
    others: BTreeMap<&'static str, Vec<Span>>,
    samples: Vec<(EntityId, Strip)>,
    /// Samples of all threads and goroutines.
    sampled: u64,
    counters: Vec<Track>,
    /// Counters with one value.
    constants: Vec<Track>,
}

impl Process {
    /// Whether a runtime describes it.
    fn has_runtime(&self) -> bool {
        !(self.goroutines.is_empty()
            && self.dotnet.is_empty()
            && self.requests.is_empty()
            && self.runtime.is_empty())
    }

    /// Whether it has nothing but samples of the idle thread, which are of CPUs and of no process.
    fn is_of_cpus(&self, entities: &Entities) -> bool {
        let is_cpu = |(id, _): &(EntityId, Strip)| {
            matches!(entities.kind(*id), Some(EntityKind::Cpu | EntityKind::Machine))
        };
        self.threads.is_empty()
            && !self.has_runtime()
            && !self.samples.is_empty()
            && self.samples.iter().all(is_cpu)
    }

    /// The order of processes: how much a reader wants to see them. Without the scheduler, samples
    /// say which are busy.
    fn rank(&self) -> impl Ord + use<> {
        let (on_cpu, sampled) = (Reverse(self.on_cpu), Reverse(self.sampled));
        (!self.is_main, Reverse(self.has_runtime()), on_cpu, sampled)
    }

    /// Takes over the lanes of another process.
    fn absorb(&mut self, other: Self) {
        self.threads.extend(other.threads);
        self.procs.extend(other.procs);
        self.dotnet.extend(other.dotnet);
        merge(&mut self.goroutines, other.goroutines);
        self.runtime.extend(other.runtime);
        merge(&mut self.requests, other.requests);
        merge(&mut self.others, other.others);
        self.samples.extend(other.samples);
        self.counters.extend(other.counters);
        self.constants.extend(other.constants);
    }
}

/// Adds lists to those of the same key.
fn merge<K: Ord, T>(lists: &mut BTreeMap<K, Vec<T>>, others: BTreeMap<K, Vec<T>>) {
    for (key, list) in others {
        lists.entry(key).or_default().extend(list);
    }
}

/// Removes the lists above [`MAX_NAMES`], those that weigh least. Returns what they have.
fn take_rest<T>(lists: &mut BTreeMap<String, Vec<T>>, weight: impl Fn(&Vec<T>) -> u64) -> Vec<T> {
    if lists.len() <= MAX_NAMES {
        return Vec::new();
    }
    let mut names: Vec<_> =
        lists.iter().map(|(name, list)| (Reverse(weight(list)), name.clone())).collect();
    names.sort();
    let rest = names.into_iter().skip(MAX_NAMES);
    rest.filter_map(|(_, name)| lists.remove(&name)).flatten().collect()
}

impl Layout {
    /// With the processes that are of interest, if they were chosen.
    pub(super) fn new(
        html: &mut HtmlTimeline,
        family: Option<&BTreeSet<EntityId>>,
        tables: &Tables,
        report: &Report,
    ) -> Self {
        let mut this = Self {
            groups: Vec::new(),
            tracks: Vec::new(),
            folded: 0,
            summarized: 0,
            max_lanes: html.options.max_lanes,
            has_main: false,
            losses: 0,
        };
        let mut processes = collect(html, tables, report);
        let refs = &mut html.refs;
        if !html.cpus.is_empty() {
            let group = this.group("CPUs", 0, true, 0);
            let mut cpus: Vec<_> = std::mem::take(&mut html.cpus).into_iter().collect();
            cpus.sort_by_key(|(cpu, _)| tables.entities.get(*cpu).map(|cpu| cpu.number));
            for (cpu, strip) in cpus {
                let mut lane = Lane::default();
                lane.push(cpu, &strip, refs);
                this.track(group, &text::name(tables, cpu), Form::Cpu, lane, refs);
            }
        }
        let losses = html.losses.iter().filter_map(|loss| {
            let (kind, by, text) = (Kind::Loss, By::Unknown, TextId::EMPTY);
            let Loss { start, end, .. } = *loss;
            let item = Item { start, end, kind, who: None, by, text, stack: None };
            Some(Span { owner: loss.entity?, item })
        });
        let losses: Vec<Span> = losses.collect();
        if !losses.is_empty() {
            this.losses = this.group("Losses", 0, true, 0);
            this.spans(this.losses, "Losses", losses, refs);
        }
        for process in &mut processes {
            process.is_main = match family {
                Some(family) => process.entity.is_some_and(|id| family.contains(&id)),
                None => process.has_runtime(),
            };
        }
        processes.sort_by_key(Process::rank);
        this.has_main = processes.iter().any(|process| process.is_main);
        if family.is_some() && this.has_main {
            this.summarize(&mut processes, html.options.max_other_items);
        }
        let rest = processes.split_off(processes.len().min(MAX_PROCESSES));
        for (index, process) in processes.into_iter().enumerate() {
            this.process(process, index, refs, tables);
        }
        if !rest.is_empty() {
            let name = format!("{} other processes", rest.len());
            let group = this.group(&name, 0, false, 0);
            let mut shared = Process::default();
            rest.into_iter().for_each(|process| shared.absorb(process));
            this.lanes(group, shared, false, refs, tables);
        }
        this
    }

    /// Removes the threads of processes that are not of interest and have too many intervals.
    fn summarize(&mut self, processes: &mut [Process], mut room: u64) {
        for process in processes.iter_mut().filter(|p| !p.is_main && !p.has_runtime()) {
            let items = process.threads.iter().map(|(_, strip)| u64::from(strip.count)).sum();
            match room.checked_sub(items) {
                Some(left) => room = left,
                None => {
                    self.summarized += items;
                    process.threads.clear();
                }
            }
        }
    }

    /// Adds a group; the result is its number, counted from 1.
    fn group(&mut self, name: &str, parent: usize, is_open: bool, process: u32) -> usize {
        self.groups.push(Group { name: name.to_owned(), parent, is_open, process, is_main: false });
        self.groups.len()
    }

    /// Adds a lane. Many can have one name, which is cut.
    fn track(&mut self, group: usize, name: &str, form: Form, lane: Lane, refs: &mut Refs) {
        let (owner, count) = (refs.entity(lane.owner), lane.count);
        let name = cut::text(name.as_bytes(), cut::NAME).into_owned();
        self.tracks.push(Track { group, name, form, owner, count, bytes: lane.bytes });
    }

    fn process(&mut self, process: Process, index: usize, refs: &mut Refs, tables: &Tables) {
        let name = match process.entity {
            Some(id) => text::name(tables, id),
            None if process.is_of_cpus(&tables.entities) => "idle CPUs".to_owned(),
            None => "unknown process".to_owned(),
        };
        let name = cut::text(name.as_bytes(), cut::NAME);
        let is_first = index < 3 && (process.is_main || !self.has_main);
        let group = self.group(&name, 0, is_first, refs.entity(process.entity));
        if let Some(group) = self.groups.last_mut() {
            group.is_main = process.is_main;
        }
        self.lanes(group, process, is_first, refs, tables);
    }

    /// The lanes of a process, or of several, in a group.
    fn lanes(
        &mut self,
        group: usize,
        process: Process,
        is_first: bool,
        refs: &mut Refs,
        tables: &Tables,
    ) {
        self.spans(group, "GC and pauses", process.runtime, refs);
        let mut requests = process.requests;
        let others = take_rest(&mut requests, |spans| spans.len() as u64);
        for (name, spans) in requests {
            self.spans(group, &name, spans, refs);
        }
        self.spans(group, "other tasks and activities", others, refs);
        self.tracks.extend(process.counters.into_iter().map(|c| Track { group, ..c }));
        let has_goroutines = !process.goroutines.is_empty();
        if !process.threads.is_empty() {
            let threads = process.threads.len();
            let is_open = is_first && threads <= 24;
            let of = self.group(&format!("threads ({threads})"), group, is_open, 0);
            self.threads(of, process.threads, Form::States, refs, tables);
        }
        if !process.samples.is_empty() {
            let lanes = process.samples.len();
            let is_open = is_first && lanes <= 24;
            let of = self.group(&format!("samples ({lanes})"), group, is_open, 0);
            self.threads(of, process.samples, Form::Spans, refs, tables);
        }
        if !process.dotnet.is_empty() {
            let of = self.group(".NET threads", group, is_first && !has_goroutines, 0);
            self.threads(of, process.dotnet, Form::States, refs, tables);
        }
        if !process.procs.is_empty() {
            let of = self.group("Ps", group, is_first, 0);
            let mut procs = process.procs;
            procs.sort_by_key(|(proc, _)| tables.entities.get(*proc).map(|proc| proc.number));
            self.threads(of, procs, Form::States, refs, tables);
        }
        if has_goroutines {
            let count: usize = process.goroutines.values().map(Vec::len).sum();
            let of = self.group(&format!("goroutines ({count})"), group, is_first, 0);
            self.goroutines(of, process.goroutines, refs);
        }
        for (name, spans) in process.others {
            let of = self.group(name, group, false, 0);
            self.spans(of, name, spans, refs);
        }
        if !process.constants.is_empty() {
            let of = self.group("constant counters", group, false, 0);
            self.tracks.extend(process.constants.into_iter().map(|c| Track { group: of, ..c }));
        }
    }

    /// One lane each, those with most items first, except for Ps.
    fn threads(
        &mut self,
        group: usize,
        mut threads: Vec<(EntityId, Strip)>,
        form: Form,
        refs: &mut Refs,
        tables: &Tables,
    ) {
        let is_proc = |id: &EntityId| tables.entities.kind(*id) == Some(EntityKind::Proc);
        if !threads.iter().any(|(id, _)| is_proc(id)) {
            threads.sort_by_key(|(id, strip)| (Reverse(strip.count), *id));
        }
        for (index, (id, strip)) in threads.into_iter().enumerate() {
            if index >= self.max_lanes {
                self.folded += 1;
                continue;
            }
            let mut lane = Lane::default();
            lane.push(id, &strip, refs);
            self.track(group, &text::name(tables, id), form, lane, refs);
        }
    }

    fn goroutines(
        &mut self,
        group: usize,
        mut entries: BTreeMap<String, Vec<(EntityId, Strip)>>,
        refs: &mut Refs,
    ) {
        let busy = |strips: &Vec<(EntityId, Strip)>| {
            strips.iter().map(|(_, strip)| u64::from(strip.count)).sum::<u64>()
        };
        let others = take_rest(&mut entries, busy);
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by_key(|(name, strips)| (Reverse(busy(strips)), name.clone()));
        if !others.is_empty() {
            entries.push(("other goroutines".to_owned(), others));
        }
        for (index, (name, strips)) in entries.into_iter().enumerate() {
            let count = strips.len();
            let (lanes, folded) = pack(strips, self.max_lanes, refs);
            self.folded += folded;
            let short = cut::text(name.as_bytes(), cut::NAME);
            let title = if count == 1 { short } else { format!("{short} × {count}").into() };
            let of = self.group(&title, group, index < 6 && lanes.len() <= 8, 0);
            for lane in lanes {
                self.track(of, &name, Form::States, lane, refs);
            }
        }
    }

    fn spans(&mut self, group: usize, name: &str, spans: Vec<Span>, refs: &mut Refs) {
        let strips = spans.into_iter().map(|Span { owner, item }| {
            let mut strip = Strip::default();
            strip.push(&item, refs);
            (owner, strip)
        });
        let strips = strips.collect();
        let (lanes, folded) = pack(strips, self.max_lanes, refs);
        self.folded += folded;
        for lane in lanes {
            self.track(group, name, Form::Spans, lane, refs);
        }
    }

    pub(super) fn tracks(&self) -> impl Iterator<Item = &Track> {
        self.tracks.iter()
    }

    /// Intervals, spans and instants in the lanes. Those of CPUs are also of threads.
    pub(super) fn items(&self) -> u64 {
        let is_item = |track: &&Track| {
            !matches!(track.form, Form::Cpu | Form::Counter) && track.group != self.losses
        };
        self.tracks.iter().filter(is_item).map(|track| track.count).sum()
    }

    /// `"groups":[[name, parent, open, process, main], …],"tracks":[[group, name, form, owner, count,
    /// bytes], …]`
    pub(super) fn write(&self, out: &mut String) {
        out.push_str("\"groups\":");
        json::list(out, &self.groups, |out, group| {
            out.push('[');
            json::text(out, &group.name);
            for number in [
                group.parent as u64,
                group.is_open.into(),
                group.process.into(),
                group.is_main.into(),
            ] {
                out.push(',');
                json::number(out, number);
            }
            out.push(']');
        });
        out.push_str(",\"tracks\":");
        json::list(out, &self.tracks, |out, track| {
            out.push('[');
            json::number(out, track.group);
            out.push(',');
            json::text(out, &track.name);
            let numbers =
                [track.form as u64, track.owner.into(), track.count, track.bytes.len() as u64];
            for number in numbers {
                out.push(',');
                json::number(out, number);
            }
            out.push(']');
        });
    }
}

/// The process of an entity, which is added if it is new.
fn process_of<'a>(
    id: EntityId,
    processes: &'a mut BTreeMap<Option<EntityId>, Process>,
    entities: &Entities,
) -> &'a mut Process {
    let entity = entities.process_of(id);
    processes.entry(entity).or_insert_with(|| Process { entity, ..Process::default() })
}

/// Everything by process.
fn collect(html: &mut HtmlTimeline, tables: &Tables, report: &Report) -> Vec<Process> {
    let entities = &tables.entities;
    let mut processes: BTreeMap<Option<EntityId>, Process> = BTreeMap::new();
    let mut subjects: Vec<(EntityId, Strip)> = html.subjects.drain().collect();
    subjects.sort_unstable_by_key(|(id, _)| *id);
    let has_scheduler = !html.cpus.is_empty();
    for (id, strip) in subjects {
        // Without the scheduler, the lane of a kernel thread would be empty.
        if !has_scheduler && !strip.is_known && entities.kind(id) == Some(EntityKind::Thread) {
            continue;
        }
        let process = process_of(id, &mut processes, entities);
        match entities.kind(id) {
            Some(EntityKind::Thread) => {
                let on_cpu = report.threads.get(&id).map_or(0, |thread| thread.times.on_cpu);
                process.on_cpu = process.on_cpu.saturating_add(on_cpu);
                process.threads.push((id, strip));
            }
            Some(EntityKind::Proc) => process.procs.push((id, strip)),
            Some(EntityKind::DotnetThread) => process.dotnet.push((id, strip)),
            _ => {
                let name =
                    entities.get(id).map_or("".into(), |goroutine| tables.str(goroutine.name));
                let name = if name.is_empty() { "(unknown)".into() } else { name };
                process.goroutines.entry(name.into_owned()).or_default().push((id, strip));
            }
        }
    }
    for span in std::mem::take(&mut html.spans) {
        let process = process_of(span.owner, &mut processes, entities);
        match span.item.kind {
            Kind::Gc | Kind::StopTheWorld => process.runtime.push(span),
            Kind::Task | Kind::Activity => {
                let what = if span.item.kind == Kind::Task { "task" } else { "activity" };
                let name = format!("{what} {}", tables.str(span.item.text));
                process.requests.entry(name).or_default().push(span);
            }
            Kind::Region => process.others.entry("regions").or_default().push(span),
            Kind::Sweep | Kind::Assist => {
                process.others.entry("GC assists and sweeps").or_default().push(span);
            }
            Kind::Jit => process.others.entry("compilations").or_default().push(span),
            Kind::LockWait => process.others.entry("lock waits").or_default().push(span),
            Kind::Waiting => {
                process.others.entry("waits for tasks and wait handles").or_default().push(span);
            }
            Kind::Queued | Kind::Starvation => {
                process.others.entry("thread-pool queue").or_default().push(span);
            }
            _ => process.others.entry("events").or_default().push(span),
        }
    }
    for (id, strip) in std::mem::take(&mut html.samples) {
        let process = process_of(id, &mut processes, entities);
        process.sampled += u64::from(strip.count);
        process.samples.push((id, strip));
    }
    for ((entity, name), counter) in std::mem::take(&mut html.counters) {
        let process = process_of(entity, &mut processes, entities);
        let unit = tables.str(counter.unit);
        let name = text::counter(tables, entity, name);
        let name = if unit.is_empty() { name } else { format!("{name} ({unit})").into() };
        let counters = if counter.changes { &mut process.counters } else { &mut process.constants };
        counters.push(Track {
            group: 0,
            // The quantiles of a histogram with many tags differ at the end of their names.
            name: cut::middle(name.as_bytes(), cut::NAME).into_owned(),
            form: Form::Counter,
            owner: html.refs.entity(Some(entity)),
            count: counter.count,
            bytes: counter.bytes,
        });
    }
    // A thread that the kernel's part shows has one lane, also after its end there. One without switches is not shown
    // there.
    for process in processes.values_mut() {
        let number = |id: EntityId| entities.get(id).map(|entity| entity.number);
        let known = process.threads.iter().filter(|(_, strip)| strip.is_known);
        let known: BTreeSet<_> = known.map(|(id, _)| number(*id)).collect();
        process.dotnet.retain(|(id, _)| !known.contains(&number(*id)));
    }
    processes.into_values().collect()
}
