//! The kernel's events, written as segments.

use super::assemble;
use super::chain::{Chain, field, tid};
use super::detect::{Detector, Limits};
use super::store::Store;
use super::trigger::{EVENT, EXIT_SIGNAL, SIGNAL_GENERATE, Trigger};
use crate::failure::{Failure, Result};
use crate::io::place::Place;
use crate::run::open_files;
use crate::sources::kernel::hotplug::GoneCpus;
use crate::sources::kernel::sampling::{Rate, Scope, tracepoint, with_kernel_or_not};
use crate::sources::kernel::sideband_record::Sideband;
use crate::sources::kernel::switch_records::{
    Arrival, PERF_RECORD_SWITCH_CPU_WIDE, Seen, SwitchRecords,
};
use crate::sources::kernel::{self, usual_event};
use crate::sources::symbols;
use crate::timeline::{counted, now};
use perf_data::{
    BuildIds, Features, FileWriter, RecordWriter, RecordedEvent, Synthesizer, TaskRecords,
    TracingData, perf_event_attr,
};
use perf_monitor::{
    CpuChanges, Event, EventBuilder, FieldFormat, RawRecord, RingSet, SampleFlags, SetEvent,
    SetRecord, Software, Target, Tracefs,
};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter};
use trace_flight::{Cause, Segment, Timestamp};

/// The tracepoints of the scheduler, which are recorded always.
pub(super) const TRACEPOINTS: [&str; 3] = ["sched_switch", "sched_waking", "sched_wakeup_new"];

/// Pages of a CPU's sideband buffer: at most, at least, and as a part of the CPU's share.
const SIDE_PAGES: (usize, usize, usize) = (256, 4, 8);

/// Pages of a CPU's buffer, at least.
const MIN_PAGES: usize = 8;

/// The recorder wakes when this part of a buffer is filled.
const WAKEUP_PART: u32 = 8;

/// What is recorded.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Samples per second and CPU.
    pub(super) freq: Option<u64>,
    pub(super) triggers: Vec<Trigger>,
    /// Pages of the buffer and of the sideband buffer of a CPU.
    pages: (usize, usize),
    /// Bytes of the records about tasks and mappings in memory.
    tasks: usize,
}

impl Wanted {
    /// Half of `memory` is for the kernel's buffers, half for the records about tasks and mappings.
    pub(super) fn new(freq: Option<u64>, triggers: Vec<Trigger>, memory: u64) -> Result<Self> {
        let (cpus, page) = (perf_monitor::online_cpus().len().max(1), rustix::param::page_size());
        let Some(pages) = pages(memory / 2, cpus, page) else {
            let least = 2 * least(cpus, page) as u64;
            let why = format!(
                "the buffers of {} need at least {least} bytes",
                counted(cpus as u64, "CPU")
            );
            return Err(Failure::about("--memory", why));
        };
        Ok(Self { freq, triggers, pages, tasks: usize::try_from(memory / 2).unwrap_or(usize::MAX) })
    }
}

/// The events and the segment in progress.
pub(super) struct Kernel {
    set: RingSet,
    /// Kept for other settings: a private mount needs a capability that the recorder drops.
    tracefs: Tracefs,
    events: Vec<(String, SetEvent)>,
    /// The event that is sampled.
    sampled: Option<SetEvent>,
    waking: Option<SetEvent>,
    /// The events of switches and of new threads, unless they were stopped.
    switches: Option<[SetEvent; 2]>,
    switch_records: SwitchRecords,
    build_ids: BuildIds,
    tasks: TaskRecords,
    pub(super) tracing: TracingData,
    fields: Fields,
    fired: Vec<Fired>,
    /// The events of triggers whose samples the recorder's own events have, too.
    copies: BTreeSet<SetEvent>,
    detector: Detector,
    gone: GoneCpus,
    machine: Described,
    current: Option<Current>,
    /// Whether the last segment could not be begun.
    is_failing: bool,
    /// Whether the last segment could not be completed.
    is_torn: bool,
    /// End of the last segment.
    begun: Timestamp,
    /// The latest record.
    last: Timestamp,
    /// Starts of the last rounds.
    starts: VecDeque<Timestamp>,
    /// Losses before the segment.
    lost_before: u64,
    pub(super) stats: Stats,
    /// When the events were enabled.
    enabled: Timestamp,
    /// Those of events that were opened with other settings.
    before: Totals,
    /// Records at the last [`measure`](Self::measure).
    measured: u64,
    /// The event of a trigger that has most of the records since then.
    flooding: Option<SetEvent>,
}

/// Numbers of events.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    records: u64,
    lost: u64,
    gaps: u64,
    accounts: BTreeMap<String, Account>,
}

/// Numbers since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stats {
    pub(super) segments: u64,
    /// Records that may be in no segment, and the time of the last one.
    pub(super) unwritten: u64,
    pub(super) unwritten_at: Option<Timestamp>,
    /// Segments that could not be completed.
    pub(super) failed: u64,
    pub(super) bytes: u64,
}

impl Stats {
    /// Counts records that may be in no segment, up to this time.
    fn add_unwritten(&mut self, records: u64, at: Timestamp) {
        self.unwritten += records;
        self.unwritten_at = self.unwritten_at.max((records > 0).then_some(at));
    }
}

/// Whether there is no space for a file.
pub(super) fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|error| {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    })
}

/// What segments say about this machine. Where there are many CPUs, these are hundreds of files.
struct Described {
    describe: fn() -> Features,
    features: Features,
}

impl Described {
    fn new(describe: fn() -> Features) -> Self {
        Self { describe, features: describe() }
    }

    /// Reads it again: CPUs have come or gone.
    fn refresh(&mut self) {
        self.features = (self.describe)();
    }

    /// The description, with the clocks of this moment and these formats.
    fn now(&mut self, tracing: &TracingData) -> &Features {
        let domain = trace_common::ClockDomain::Monotonic;
        self.features.clock = perf_data::ClockReference::now(domain);
        self.features.tracing.get_or_insert_with(|| tracing.clone());
        &self.features
    }
}

struct Current {
    id: u64,
    path: Place,
    writer: FileWriter<BufWriter<File>>,
    start: Timestamp,
    /// Bytes of the tasks and mappings that it begins with.
    stock: u64,
    /// Records that may still be in memory.
    unflushed: u64,
}

impl Current {
    /// Ends a round, whose records are in the file then.
    fn flush(&mut self) -> perf_data::Result<()> {
        self.writer.finish_round()?;
        self.writer.flush()?;
        self.unflushed = 0;
        Ok(())
    }
}

/// An event that fires a trigger.
struct Fired {
    event: SetEvent,
    kind: &'static str,
    what: String,
    /// The thread that a signal is for, if it is not the one of the sample.
    target: Option<FieldFormat>,
    /// Records since the last [`Kernel::measure`].
    records: u64,
}

struct Fields {
    chain: Chain,
    prev_state: FieldFormat,
    /// Of `sched_waking` and of `sched_wakeup_new`.
    woken: [FieldFormat; 2],
    switch: SetEvent,
    new: SetEvent,
}

/// Whether an event of a trigger has the samples of one of the recorder's own events, which has no filter: a dump with both
/// would have each twice.
fn is_copy(own: &[perf_event_attr], event: &perf_event_attr) -> bool {
    own.iter().any(|own| (own.type_, own.config) == (event.type_, event.config))
}

/// A source that is stopped, with the triggers on its events.
fn with_triggers(name: &str, triggers: &[String]) -> String {
    match triggers {
        [] => name.to_owned(),
        [one] => format!("{name} and records of the trigger {one}"),
        several => format!("{name} and records of the triggers {}", several.join(", ")),
    }
}

/// Bytes that [`pages`] needs.
const fn least(cpus: usize, page: usize) -> usize {
    cpus * page * SIDE_PAGES.1 * SIDE_PAGES.2
}

/// Fields of all events.
const COMMON: SampleFlags = SampleFlags::TID.union(SampleFlags::CPU);

fn sideband() -> EventBuilder {
    symbols::live::sideband(Event::software(Software::Dummy).builder().sample(COMMON))
}

/// Pages of a CPU's buffer and of its sideband buffer, so that those of all CPUs are within this many bytes.
/// The kernel adds a page to each. `None` if it is too little.
fn pages(bytes: u64, cpus: usize, page: usize) -> Option<(usize, usize)> {
    let (most, least, part) = SIDE_PAGES;
    let share = usize::try_from(bytes / cpus as u64 / page as u64).unwrap_or(usize::MAX);
    let below = |pages: usize| pages.checked_ilog2().map(|log| 1 << log);
    let side: usize = below(share / part)?.min(most);
    let main = below(share.checked_sub(side + 2)?)?;
    (side >= least && main >= MIN_PAGES).then_some((main, side))
}

/// Whether this thread may open an event of everything on a CPU.
pub(super) fn may_open() -> bool {
    let cpu = perf_monitor::online_cpus().first().copied().unwrap_or_default();
    sideband().open(Target::Cpu(cpu)).is_ok()
}

impl Kernel {
    /// Opens the events.
    pub(super) fn open(wanted: &Wanted) -> perf_monitor::Result<Self> {
        kernel::tracefs().and_then(|tracefs| Self::open_in(tracefs, wanted))
    }

    /// Enables the events.
    pub(super) fn enable(&mut self) -> Result {
        self.enabled = now().map_err(Failure::new)?;
        self.begun = self.enabled;
        self.set.enable().map_err(kernel::failure)
    }

    /// Opens and enables the events with other settings. They know the running processes once they
    /// [follow](Self::follow).
    pub(super) fn reopen(&self, wanted: &Wanted) -> Result<Self> {
        let opened = Self::open_in(self.tracefs.clone(), wanted);
        let mut this = opened.map_err(kernel::failure)?;
        this.enable()?;
        Ok(this)
    }

    fn open_in(tracefs: Tracefs, wanted: &Wanted) -> perf_monitor::Result<Self> {
        open_files::raise();
        let rings = RingSet::builder().max_pages(wanted.pages.0).wakeup_part(WAKEUP_PART);
        let mut set = rings.sideband_ring(&sideband(), wanted.pages.1).open()?;
        let mut add = |name: &str| {
            let event = tracefs.event("sched", name)?;
            set.add(&event.builder().sample_period(1).sample(COMMON | SampleFlags::RAW))
        };
        let [switch, waking, new] = TRACEPOINTS.map(&mut add);
        let (switch, waking, new) = (switch?, waking?, new?);
        let switch_records = SwitchRecords::add(&mut set, COMMON)?;
        let mut events: Vec<(String, SetEvent)> =
            set.sideband().map(|event| ("dummy:u".to_owned(), event)).into_iter().collect();
        let named = TRACEPOINTS.iter().zip([switch, waking, new]);
        events.extend(named.map(|(name, event)| (format!("sched:{name}"), event)));
        events.push(("dummy".to_owned(), switch_records.event()));
        let mut formats: Vec<(String, String)> =
            TRACEPOINTS.iter().map(|name| ("sched".to_owned(), (*name).to_owned())).collect();
        let mut sampled = None;
        if let Some(freq) = wanted.freq {
            let event = usual_event()?;
            let scope = Scope::default();
            let mut add = |user_only| {
                let chains = scope.chains(&event, Rate::Usual(freq), user_only);
                set.add(&chains).map(|e| (e, user_only))
            };
            let (added, user_only) = with_kernel_or_not([&event], &mut add)?;
            let suffix = if user_only { ":u" } else { "" };
            events.push((format!("{}{suffix}", event.name()), added));
            sampled = Some(added);
        }
        let own = [set.attr(switch)?, set.attr(waking)?, set.attr(new)?];
        let (mut fired, mut copies) = (Vec::new(), BTreeSet::new());
        for trigger in &wanted.triggers {
            for (kind, event, filter) in trigger.events() {
                let parsed = Event::parse_in(&event, &tracefs)?;
                let builder = parsed.builder().sample_period(1).sample(COMMON | SampleFlags::RAW);
                let added = set.add(&builder)?;
                if let Some(filter) = &filter {
                    set.set_filter(added, filter)?;
                }
                if is_copy(&own, &set.attr(added)?) {
                    copies.insert(added);
                }
                events.push((event.clone(), added));
                let format = tracepoint(&parsed);
                formats.extend(format.map(|(system, name)| (system.to_owned(), name.to_owned())));
                fired.push((added, kind, trigger.to_string(), event));
            }
        }
        formats.sort();
        formats.dedup();
        let names = formats.iter().map(|(system, name)| (system.as_str(), name.as_str()));
        let tracing = TracingData::of_this_kernel(&tracefs, names).map_err(|error| {
            perf_monitor::Error::UnknownEvent { name: error.to_string(), near: Vec::new() }
        })?;
        let fired = fired.into_iter().map(|(added, kind, what, event)| {
            let is_sent = kind == EXIT_SIGNAL && event == SIGNAL_GENERATE;
            let target = is_sent.then(|| field(&tracing, SIGNAL_GENERATE, "pid")).flatten();
            Fired { event: added, kind, what, target, records: 0 }
        });
        let fired = fired.collect();
        let fields = || {
            Some(Fields {
                chain: Chain::new(&tracing)?,
                prev_state: field(&tracing, "sched:sched_switch", "prev_state")?,
                woken: [
                    field(&tracing, "sched:sched_waking", "pid")?,
                    field(&tracing, "sched:sched_wakeup_new", "pid")?,
                ],
                switch,
                new,
            })
        };
        let fields = fields().ok_or_else(|| perf_monitor::Error::UnknownEvent {
            name: "sched_switch, sched_waking or sched_wakeup_new with other fields".to_owned(),
            near: Vec::new(),
        })?;
        let side = set.sideband().map(|event| set.attr(event)).transpose()?.unwrap_or_default();
        Ok(Self {
            set,
            tracefs,
            events,
            sampled,
            waking: Some(waking),
            switches: Some([switch, new]),
            switch_records,
            build_ids: BuildIds::new(&side),
            tasks: TaskRecords::new(&side, wanted.tasks),
            tracing,
            fields,
            fired,
            copies,
            detector: Detector::new(Limits::of(&wanted.triggers)),
            gone: GoneCpus::default(),
            machine: Described::new(assemble::features_of_segment),
            current: None,
            is_failing: false,
            is_torn: false,
            begun: Timestamp::MIN,
            last: Timestamp::MIN,
            starts: VecDeque::new(),
            lost_before: 0,
            stats: Stats::default(),
            enabled: Timestamp::MIN,
            before: Totals::default(),
            measured: 0,
            flooding: None,
        })
    }

    /// Reads the mappings of the kernel and the running processes, once the events are enabled. Without the privileges
    /// of the start, the kernel hides its addresses, and can hide the mappings of processes.
    pub(super) fn take_stock(&mut self) -> Result {
        let mut synthesizer = self.synthesizer()?;
        let mut stock = Stock(&mut self.tasks);
        // It writes to memory.
        let _ = synthesizer.kernel(&mut stock);
        let _ = synthesizer.processes(&mut stock);
        Ok(())
    }

    fn synthesizer(&self) -> Result<Synthesizer> {
        let side = self.set.sideband().map(|event| self.set.attr(event)).transpose();
        Ok(Synthesizer::new(&side.map_err(kernel::failure)?.unwrap_or_default(), true))
    }

    /// Bytes of the tasks and mappings that a segment begins with now.
    pub(super) fn stock(&self) -> u64 {
        let mut sum = Sum(0);
        // It does not fail.
        let _ = self.tasks.write(&mut sum);
        sum.0
    }

    /// Only threads of this process and of its children fire triggers of the scheduler.
    pub(super) fn focus(&mut self, pid: u32) {
        self.detector.focus(pid);
    }

    pub(super) const fn set(&mut self) -> &mut RingSet {
        &mut self.set
    }

    /// Everything up to this time was passed on: records wait for one round, and for the slack.
    pub(super) fn recorded(&self) -> Timestamp {
        const SLACK: i64 = 10_000_000;
        match self.starts.front() {
            Some(first) if self.starts.len() == ROUNDS => first.saturating_add_nanos(-SLACK),
            _ => Timestamp::MIN,
        }
    }

    /// Age of the newest record that is surely written.
    pub(super) fn lag(&self, at: Timestamp) -> std::time::Duration {
        let recorded = self.recorded();
        at - if recorded == Timestamp::MIN { self.enabled } else { recorded }
    }

    /// Reads the rings, writes the segment, and returns the causes of triggers.
    pub(super) fn round(&mut self, store: &mut Store) -> Result<Vec<(Timestamp, Cause)>> {
        let start = now().map_err(Failure::new)?;
        self.begin(store, start);
        let mut causes = Vec::new();
        let mut failed = self.read(false, &mut causes)?;
        let Chain { switches, gaps, recovered, .. } = self.fields.chain;
        let seen = Seen { switches, missing: gaps + recovered, lost: self.set.stats().rings.lost };
        self.switch_records.adjust(&mut self.set, seen).map_err(kernel::failure)?;
        if let Some(current) = self.current.as_mut().filter(|_| failed.is_none()) {
            failed = current.flush().err();
        }
        if let Some(error) = failed {
            self.abandon(store, &error);
        }
        self.starts.push_back(start);
        if self.starts.len() > ROUNDS {
            self.starts.pop_front();
        }
        let recorded = self.recorded();
        self.look(recorded, &mut causes);
        Ok(causes)
    }

    /// Finds threads that wait or run for too long, when everything up to `at` was passed on.
    fn look(&mut self, at: Timestamp, causes: &mut Vec<(Timestamp, Cause)>) {
        let Self { set, gone, detector, .. } = self;
        let offline = || -> Vec<u32> { set.gone_cpus().into_iter().chain(gone.cpus()).collect() };
        detector.look(at, offline, causes);
    }

    /// Reads the records of the rings, or all that are left in them: passes each one on to the segment, and finds the
    /// causes of triggers. Returns why the segment cannot be written, if so.
    fn read(
        &mut self,
        is_last: bool,
        causes: &mut Vec<(Timestamp, Cause)>,
    ) -> Result<Option<perf_data::Error>> {
        let passed = if is_last { Timestamp::MAX } else { self.recorded() };
        let sideband = if self.gone.is_empty() { None } else { self.sideband()? };
        let Self { set, build_ids, tasks, fields, fired, copies, detector, gone, .. } = self;
        let (current, stats) = (&mut self.current, &mut self.stats);
        let (waking, last) = (self.waking, &mut self.last);
        let mut failed = None;
        let pass = |record: SetRecord<'_>| {
            while let Some(cpu) = gone.next(record.time) {
                let known = (&mut *detector, &mut fields.chain);
                end_cpu(cpu, known, sideband, current, &mut failed);
            }
            let raw = build_ids.apply(record.layout, record.raw);
            *last = record.time.max(*last);
            let data = record.layout.raw_data(raw);
            // Other records, such as those of losses, can have any event of their buffer.
            let is_copy = data.is_some() && copies.contains(&record.event);
            match data {
                Some(data) => take(&record, data, fields, waking, fired, detector, causes),
                // Two for each switch: they say nothing else.
                None if raw.type_() == PERF_RECORD_SWITCH_CPU_WIDE => {
                    if let Some(arrival) = Arrival::of(record.layout, raw) {
                        let left = fields.chain.arrive(&arrival);
                        if let Some(left) = left.filter(|_| detector.is_active()) {
                            // Whether it is still to run is not known.
                            let (cpu, prev) = (arrival.cpu, (left, false));
                            detector.switch(record.time, cpu, prev, arrival.tid, causes);
                        }
                    }
                }
                None => {
                    detector.sideband(record.cpu, record.layout, raw);
                    tasks.push(raw);
                }
            }
            if !is_copy {
                write(raw, record.time, current, stats, &mut failed);
            }
            Ok::<(), perf_monitor::Error>(())
        };
        let read = if is_last { set.drain(pass) } else { set.round(pass) };
        read.map_err(kernel::failure)?;
        while let Some(cpu) = gone.next(passed) {
            let known = (&mut *detector, &mut fields.chain);
            end_cpu(cpu, known, sideband, current, &mut failed);
        }
        Ok(failed)
    }

    /// Starts a segment, if none is in progress. Without space, what is recorded is counted and not
    /// written.
    fn begin(&mut self, store: &mut Store, at: Timestamp) {
        if self.current.is_some() {
            return;
        }
        match self.start(store, at) {
            Ok(current) => {
                if std::mem::take(&mut self.is_failing) {
                    message!("triscope: segments can be written again");
                }
                self.current = Some(current);
            }
            Err(error) => {
                self.stats.failed += 1;
                // What comes until the next segment begins is in none.
                self.begun = Timestamp::MIN;
                if !std::mem::replace(&mut self.is_failing, true) {
                    Failure::about("no segment can be begun", &error).print();
                }
                // On a full disk, the oldest segment makes room for the next one.
                if is_full(&*error) {
                    store.evict_oldest();
                }
            }
        }
    }

    fn start(
        &mut self,
        store: &mut Store,
        at: Timestamp,
    ) -> std::result::Result<Current, Box<dyn std::error::Error>> {
        const BUFFER: usize = 1 << 18;
        let begun = if self.begun == Timestamp::MIN { at } else { self.begun };
        let (id, path, file) = store.create(begun)?;
        let create = || -> perf_data::Result<FileWriter<BufWriter<File>>> {
            let file = BufWriter::with_capacity(BUFFER, file);
            let mut writer = FileWriter::new(file, self.recorded_events()?)?;
            self.tasks.write(&mut writer)?;
            writer.flush()?;
            Ok(writer)
        };
        match create() {
            Ok(writer) => {
                self.lost_before = self.set.stats().rings.lost;
                self.stats.segments += 1;
                let stock = writer.bytes();
                Ok(Current { id, path, writer, start: begun, stock, unflushed: 0 })
            }
            Err(error) => {
                // It has no records.
                let _ = std::fs::remove_file(&path);
                Err(error.into())
            }
        }
    }

    fn recorded_events(&self) -> perf_monitor::Result<Vec<RecordedEvent>> {
        let events = self.events.iter().map(|(name, event)| {
            let (attr, ids) = (self.set.attr(*event)?, self.set.ids(*event)?);
            Ok(RecordedEvent { name: name.clone(), attr, ids })
        });
        events.collect()
    }

    /// Keeps the events for segments that are not sealed. Without that, a recorder that is killed early leaves records
    /// that nothing can read.
    pub(super) fn keep_events(&mut self, store: &Store) -> Result {
        let events = self.recorded_events().map_err(kernel::failure)?;
        if let Err(failure) = store.keep_events(events, self.machine.now(&self.tracing)) {
            failure.and("after a kill, the events of the last segment cannot be read").print();
        }
        Ok(())
    }

    /// Bytes of the segment in progress.
    pub(super) fn bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.writer.bytes())
    }

    /// Bytes of the tasks and mappings that the segment in progress began with.
    pub(super) fn segment_stock(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.stock)
    }

    /// How long the segment in progress is.
    pub(super) fn age(&self, at: Timestamp) -> std::time::Duration {
        self.current.as_ref().map_or(std::time::Duration::ZERO, |current| at - current.start)
    }

    /// Seals the segment in progress.
    pub(super) fn seal(&mut self, store: &mut Store) -> Result {
        let Some(current) = self.current.take() else { return Ok(()) };
        let end = self.recorded().max(self.last).max(current.start);
        let lost = self.set.stats().rings.lost;
        let segment = Segment {
            id: current.id,
            start: current.start,
            end,
            bytes: 0,
            lost: lost.saturating_sub(self.lost_before),
        };
        self.stats.bytes += current.writer.bytes();
        let finished = current.writer.finish(self.machine.now(&self.tracing));
        if let Err(error) = finished {
            self.stats.add_unwritten(current.unflushed, self.last);
            self.torn(store, &current.path, segment, &error);
            return Ok(());
        }
        self.begun = end;
        self.is_torn = false;
        self.keep(store, &current.path, segment);
        Ok(())
    }

    /// Adds a complete segment to those that are kept. One whose file is gone is a gap.
    fn keep(&mut self, store: &mut Store, path: &Place, segment: Segment) {
        if let Err(error) = store.seal(path, segment) {
            self.stats.failed += 1;
            let what = format!("{}: a segment is lost", path.display());
            Failure::about(what, error).print();
        }
    }

    /// Gives up the segment in progress: it cannot be written. What was written stays.
    fn abandon(&mut self, store: &mut Store, error: &perf_data::Error) {
        let Some(Current { id, path, writer, start, unflushed, .. }) = self.current.take() else {
            return;
        };
        drop(writer);
        self.stats.add_unwritten(unflushed, self.last);
        let lost = self.set.stats().rings.lost.saturating_sub(self.lost_before);
        let segment = Segment { id, start, end: self.last.max(start), bytes: 0, lost };
        self.torn(store, &path, segment, error);
    }

    fn torn(
        &mut self,
        store: &mut Store,
        path: &Place,
        segment: Segment,
        error: &perf_data::Error,
    ) {
        self.stats.failed += 1;
        // What comes until the next segment begins is in none.
        self.begun = Timestamp::MIN;
        // On a full disk, this is each segment.
        if !std::mem::replace(&mut self.is_torn, true) {
            Failure::about("a segment cannot be written", error).print();
        }
        // It makes room for the next one.
        store.evict_oldest();
        self.keep(store, path, segment);
    }

    /// Opens the events on CPUs that came online: their ids belong in a new segment.
    /// The inner result is that of opening.
    pub(super) fn check_cpus(&mut self, store: &mut Store) -> Result<Result<CpuChanges>> {
        // The events that are opened again begin later.
        let at = now().map_err(Failure::new)?;
        let changes = match self.set.check_cpus() {
            Ok(changes) => changes,
            Err(error) => return Ok(Err(kernel::failure(error))),
        };
        self.gone.add(at, &changes.gone);
        if !changes.is_empty() {
            self.machine.refresh();
        }
        if !changes.opened.is_empty() {
            self.seal(store)?;
        }
        Ok(Ok(changes))
    }

    /// Ends a measurement of the CPU time: finds the event of a trigger that has most of the records since the last one.
    pub(super) fn measure(&mut self) {
        let records = self.set.stats().rings.records;
        let all = records.saturating_sub(std::mem::replace(&mut self.measured, records));
        let is_event = |fired: &&Fired| fired.kind == EVENT;
        let of_triggers: u64 = self.fired.iter().filter(is_event).map(|fired| fired.records).sum();
        let most = self.fired.iter().filter(is_event).max_by_key(|fired| fired.records);
        self.flooding = most.filter(|_| of_triggers > all / 2).map(|fired| fired.event);
        self.fired.iter_mut().for_each(|fired| fired.records = 0);
    }

    /// Stops a source to save CPU time: first the event of a trigger that has most of the records, then the records of
    /// switches beside `sched_switch`, then samples, then wake-ups, then switches: the last ones with the triggers on
    /// their events. Returns its name.
    pub(super) fn shed(&mut self, store: &mut Store) -> Result<Option<String>> {
        let flooding = self.flooding.take();
        if let Some(at) = self.fired.iter().position(|fired| Some(fired.event) == flooding) {
            let Fired { event, what, .. } = self.fired.remove(at);
            self.set.disable_event(event).map_err(kernel::failure)?;
            return Ok(Some(format!("records of the trigger {what}")));
        }
        if self.switch_records.is_enabled() {
            self.switch_records.refuse(&mut self.set).map_err(kernel::failure)?;
            return Ok(Some("switches outside of sched_switch".to_owned()));
        }
        let (events, name) = if let Some(event) = self.sampled.take() {
            (vec![event], "samples")
        } else if let Some(event) = self.waking.take() {
            (vec![event], "wake-ups")
        } else if let Some(events) = self.switches.take() {
            self.detector.stop();
            (events.to_vec(), "switches")
        } else {
            return Ok(None);
        };
        for event in &events {
            self.set.disable_event(*event).map_err(kernel::failure)?;
        }
        let triggers = self.stop_copies(&events).map_err(kernel::failure)?;
        if self.switches.is_none() {
            self.mark_stop(store)?;
        }
        Ok(Some(with_triggers(name, &triggers)))
    }

    /// Stops the triggers on events that were stopped: no dump would have the records that fire them. Returns what they
    /// are.
    fn stop_copies(&mut self, stopped: &[SetEvent]) -> perf_monitor::Result<Vec<String>> {
        let attrs = stopped.iter().map(|event| self.set.attr(*event));
        let attrs = attrs.collect::<perf_monitor::Result<Vec<_>>>()?;
        let mut triggers = Vec::new();
        // What is in the buffers of them is still a copy.
        for event in &self.copies {
            if is_copy(&attrs, &self.set.attr(*event)?) {
                self.set.disable_event(*event)?;
                let of = self.fired.iter().position(|fired| fired.event == *event);
                triggers.extend(of.map(|at| self.fired.remove(at).what));
            }
        }
        Ok(triggers)
    }

    /// Marks in the segment that no switch follows, as for records that were lost: no other record ends the state of
    /// the threads that run.
    fn mark_stop(&mut self, store: &mut Store) -> Result {
        let at = now().map_err(Failure::new)?;
        self.begin(store, at);
        let sideband = self.sideband()?;
        let Some((sideband, current)) = sideband.zip(self.current.as_mut()) else { return Ok(()) };
        let mut cpus = perf_monitor::online_cpus().into_iter();
        let written = cpus.try_for_each(|cpu| sideband.write_lost(at, cpu, 0, &mut current.writer));
        self.last = at.max(self.last);
        if let Err(error) = written {
            self.abandon(store, &error);
        }
        Ok(())
    }

    /// The event of records that the kernel has not written.
    fn sideband(&self) -> Result<Option<Sideband>> {
        let events = self.recorded_events().map_err(kernel::failure)?;
        Ok(assemble::sideband(&events))
    }

    /// Stops the events, writes what remains and seals the segment. Returns the causes of triggers in what remained: the
    /// last records of a process that has ended are among it.
    pub(super) fn finish(&mut self, store: &mut Store) -> Result<Vec<(Timestamp, Cause)>> {
        // Up to this time, nothing is missing.
        let watched = now().map_err(Failure::new)?;
        // Otherwise they report the last switches alone.
        self.switch_records.refuse(&mut self.set).map_err(kernel::failure)?;
        self.set.disable().map_err(kernel::failure)?;
        self.begin(store, watched);
        let mut causes = Vec::new();
        let failed = self.read(true, &mut causes)?;
        self.look(watched, &mut causes);
        self.set.count_losses().map_err(kernel::failure)?;
        let end = now().map_err(Failure::new)?;
        // Nothing comes after this.
        self.starts = std::iter::repeat_n(end, ROUNDS).collect();
        match failed {
            Some(error) => self.abandon(store, &error),
            None => self.seal(store)?,
        }
        Ok(causes)
    }

    /// Continues after these events, which are finished: counts further, knows the same tasks and mappings, and watches
    /// the same processes. The forks before are known to those alone, and mappings that may not be read any more. Both
    /// were open at their end: the first segment begins there.
    pub(super) fn follow(&mut self, old: &mut Self) -> Result {
        self.begun = old.begun;
        // There may be room now for what did not fit.
        let is_complete = old.tasks.dropped() == 0 && old.set.stats().rings.lost == 0;
        self.tasks.take_over(&mut old.tasks);
        let mut synthesizer = self.synthesizer()?;
        refresh(&mut self.tasks, is_complete, &mut synthesizer);
        self.detector.take_focus(&mut old.detector);
        self.before = Totals {
            records: old.records(),
            lost: old.lost(),
            gaps: old.gaps(),
            accounts: old.accounts()?,
        };
        self.stats = old.stats;
        Ok(())
    }

    /// Records that the kernel lost.
    pub(super) fn lost(&self) -> u64 {
        self.before.lost + self.set.stats().rings.lost
    }

    /// Records that were passed on.
    pub(super) fn records(&self) -> u64 {
        self.before.records + self.set.stats().rings.records
    }

    /// Records about tasks that did not fit in memory, and threads that are known.
    pub(super) fn tasks(&self) -> (u64, usize) {
        (self.tasks.dropped(), self.tasks.threads())
    }

    /// Switches before which the kernel left out one, or lost it.
    pub(super) const fn gaps(&self) -> u64 {
        self.before.gaps + self.fields.chain.gaps
    }

    /// What the kernel counted of each tracepoint, and what became of it.
    pub(super) fn accounts(&self) -> Result<BTreeMap<String, Account>> {
        let is_tracepoint = |(name, event): &&(String, SetEvent)| {
            name.contains(':') && self.set.sideband() != Some(*event)
        };
        let mut all = self.before.accounts.clone();
        for (name, event) in self.events.iter().filter(is_tracepoint) {
            let counts = self.set.counts(*event).map_err(kernel::failure)?;
            let (delivered, lost) = (counts.delivered, counts.lost.unwrap_or(0));
            let account = Account { count: counts.count, delivered, lost };
            all.entry(name.clone()).or_default().add(&account);
        }
        Ok(all)
    }
}

/// What the kernel counted of an event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    pub(super) count: u64,
    /// Records that were passed on.
    pub(super) delivered: u64,
    /// Records that did not fit in the buffers.
    pub(super) lost: u64,
}

impl Account {
    pub(super) const fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.delivered += other.delivered;
        self.lost += other.lost;
    }

    /// Events that are in no buffer, and are not counted as lost.
    pub(super) const fn missing(&self) -> u64 {
        self.count.saturating_sub(self.delivered + self.lost)
    }
}

/// Rounds after which records are complete: see [`Kernel::recorded`].
const ROUNDS: usize = 3;

/// Takes the sample of a tracepoint with this data.
fn take(
    record: &SetRecord<'_>,
    data: &[u8],
    fields: &mut Fields,
    waking: Option<SetEvent>,
    fired: &mut [Fired],
    detector: &mut Detector,
    causes: &mut Vec<(Timestamp, Cause)>,
) {
    /// `TASK_REPORT`: the states in which a thread does not wait for the CPU.
    const NOT_RUNNABLE: i64 = 0xff;
    let at = record.time;
    if record.event == fields.switch {
        let threads = fields.chain.switch(record.cpu, data).filter(|_| detector.is_active());
        if let Some((prev, next)) = threads {
            let state = fields.prev_state.i64(data).unwrap_or(0);
            detector.switch(at, record.cpu, (prev, state & NOT_RUNNABLE == 0), next, causes);
        }
    } else if detector.is_active() {
        if waking == Some(record.event) {
            tid(&fields.woken[0], data).into_iter().for_each(|tid| detector.woken(at, tid));
        } else if record.event == fields.new {
            tid(&fields.woken[1], data).into_iter().for_each(|tid| detector.woken(at, tid));
        }
    }
    if let Some(fired) = fired.iter_mut().find(|fired| fired.event == record.event) {
        fired.records += 1;
        let thread = match &fired.target {
            Some(target) => tid(target, data).map(|tid| (None, tid)),
            None => record.layout.pid_tid(record.raw).map(|(pid, tid)| (Some(pid), tid)),
        };
        let is_of_others = thread.is_some_and(|(_, tid)| !detector.follows_signals(tid));
        if fired.kind == EXIT_SIGNAL && is_of_others {
            return;
        }
        let cause = Cause::new(fired.kind, fired.what.clone());
        let cause = match thread {
            Some((pid, tid)) => cause.of_thread(pid, tid),
            None => cause,
        };
        causes.push((at, cause));
    }
}

/// Ends what is known of a CPU that went offline at this time: no other record ends the state of the thread that runs
/// there.
fn end_cpu(
    (at, cpu): (Timestamp, u32),
    (detector, chain): (&mut Detector, &mut Chain),
    sideband: Option<Sideband>,
    current: &mut Option<Current>,
    failed: &mut Option<perf_data::Error>,
) {
    detector.lost(cpu);
    chain.forget_cpu(cpu);
    let current = current.as_mut().filter(|_| failed.is_none());
    if let Some((sideband, current)) = sideband.zip(current) {
        *failed = sideband.write_offline(at, cpu, &mut current.writer).err();
    }
}

fn write(
    record: RawRecord<'_>,
    at: Timestamp,
    current: &mut Option<Current>,
    stats: &mut Stats,
    failed: &mut Option<perf_data::Error>,
) {
    match current.as_mut().filter(|_| failed.is_none()) {
        Some(current) => {
            current.unflushed += 1;
            *failed = current.writer.record(record).err();
        }
        None => stats.add_unwritten(1, at),
    }
}

/// Compares known processes with those that run. If these records are not complete, mappings that can be read replace
/// those that are known: an end may have been lost, and the id reused.
fn refresh(tasks: &mut TaskRecords, is_complete: bool, synthesizer: &mut Synthesizer) {
    let running: BTreeSet<u32> = perf_monitor::processes().into_iter().collect();
    // A mount option hides those of other users.
    let is_hidden = |pid: u32| {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // 0 is that of all tasks outside of the PID namespace.
        pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::PERM))
    };
    let is_readable = |pid: u32| File::open(format!("/proc/{pid}/maps")).is_ok();
    tasks.retain_processes(|pid| {
        if running.contains(&pid) { is_complete || !is_readable(pid) } else { is_hidden(pid) }
    });
    for pid in running {
        if !is_complete || !tasks.has_process(pid) {
            // It writes to memory.
            let _ = synthesizer.process(pid, &mut Stock(tasks));
        }
    }
}

/// Passes records on to memory.
struct Stock<'a>(&'a mut TaskRecords);

impl RecordWriter for Stock<'_> {
    fn record(&mut self, record: RawRecord<'_>) -> perf_data::Result<()> {
        self.0.push(record);
        Ok(())
    }

    fn finish_round(&mut self) -> perf_data::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }
}

/// Adds up the bytes of records.
struct Sum(u64);

impl RecordWriter for Sum {
    fn record(&mut self, record: RawRecord<'_>) -> perf_data::Result<()> {
        self.0 += record.bytes().len() as u64;
        Ok(())
    }

    fn finish_round(&mut self) -> perf_data::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const PAGE: usize = 4096;

    #[test]
    fn processes_that_have_ended_are_forgotten() {
        let mut tasks = TaskRecords::new(&Default::default(), usize::MAX);
        let mut synthesizer = Synthesizer::new(&Default::default(), false);
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null());
        let mut children = [command.spawn().unwrap(), command.spawn().unwrap()];
        let [ended, running] = [0, 1].map(|at: usize| children[at].id());
        let mut add = |tasks: &mut TaskRecords, pid| {
            synthesizer.process(pid, &mut Stock(tasks)).unwrap();
        };
        add(&mut tasks, running);
        let known = tasks.bytes();
        add(&mut tasks, ended);
        children[0].kill().unwrap();
        children[0].wait().unwrap();
        let refresh = |tasks: &mut TaskRecords, is_complete| {
            refresh(tasks, is_complete, &mut Synthesizer::new(&Default::default(), false));
            tasks.retain_processes(|pid| [ended, running].contains(&pid));
            (tasks.has_process(ended), tasks.has_process(running))
        };
        assert_eq!(refresh(&mut tasks, true), (false, true));
        assert_eq!(tasks.bytes(), known);
        // The mappings of another process with its id.
        let mut records = Records(Vec::new());
        Synthesizer::new(&Default::default(), false).process(running, &mut records).unwrap();
        let mut mapping = records.0.pop().unwrap();
        mapping[16..24].copy_from_slice(&(PAGE as u64).to_ne_bytes());
        tasks.push(RawRecord::split_first(&mapping, 0).unwrap().0);
        let has_it = |tasks: &TaskRecords| {
            let mut records = Records(Vec::new());
            tasks.write(&mut records).unwrap();
            records.0.contains(&mapping)
        };
        assert!(has_it(&tasks));
        assert_eq!(refresh(&mut tasks, false), (false, true));
        assert!(!has_it(&tasks));
        children[1].kill().unwrap();
        children[1].wait().unwrap();
    }

    struct Records(Vec<Vec<u8>>);

    impl RecordWriter for Records {
        fn record(&mut self, record: RawRecord<'_>) -> perf_data::Result<()> {
            self.0.push(record.bytes().to_vec());
            Ok(())
        }

        fn finish_round(&mut self) -> perf_data::Result<()> {
            Ok(())
        }

        fn bytes(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_trigger_on_a_tracepoint_of_the_recorder_is_a_copy() {
        const TRACEPOINT: u32 = 2;
        let own = [300, 301].map(|id| perf_event_attr::new(TRACEPOINT, id));
        let mut event = perf_event_attr::new(TRACEPOINT, 301);
        assert!(is_copy(&own, &event));
        // As `sched:sched_waking:k`.
        event.set_exclude_user(true);
        assert!(is_copy(&own, &event));
        for (type_, config) in [(TRACEPOINT, 302), (1, 301)] {
            assert!(!is_copy(&own, &perf_event_attr::new(type_, config)));
        }
    }

    #[test]
    fn triggers_that_stop_with_a_source_are_named() {
        let of = |triggers: &[&str]| {
            let triggers: Vec<String> = triggers.iter().map(|name| (*name).to_owned()).collect();
            with_triggers("wake-ups", &triggers)
        };
        assert_eq!(of(&[]), "wake-ups");
        assert_eq!(of(&["event=a:b"]), "wake-ups and records of the trigger event=a:b");
        let both = "wake-ups and records of the triggers event=a:b, event=a:c";
        assert_eq!(of(&["event=a:b", "event=a:c"]), both);
    }

    #[test]
    fn the_machine_is_read_once_for_all_segments() {
        thread_local! {
            static READ: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
        }
        let describe = || {
            READ.set(READ.get() + 1);
            let mut features = Features::default();
            features.hostname = Some(format!("host {}", READ.get()));
            features
        };
        let mut machine = Described::new(describe);
        for _ in 0..3 {
            let features = machine.now(&TracingData::default());
            assert_eq!(features.hostname.as_deref(), Some("host 1"));
            assert!(features.clock.is_some() && features.tracing.is_some());
        }
        // A CPU came online.
        machine.refresh();
        let features = machine.now(&TracingData::default());
        assert_eq!((features.hostname.as_deref(), READ.get()), (Some("host 2"), 2));
    }

    /// The last switch of a CPU is to the kernel's thread that ends its events.
    #[test]
    fn a_cpu_that_goes_offline_ends_what_runs_there() {
        use crate::commands::flight::chain::tests::{chain, switch};
        const A: u32 = 4_000_001;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let mut attr = perf_event_attr::new(1, 9);
        attr.sample_type = (SampleFlags::TIME | SampleFlags::CPU).bits();
        attr.set_sample_id_all(true);
        let event = RecordedEvent { name: "dummy:u".into(), attr, ids: vec![7] };
        let sideband = assemble::sideband(std::slice::from_ref(&event));
        let file = BufWriter::new(File::create(&path).unwrap());
        let writer = FileWriter::new(file, vec![event]).unwrap();
        let at = Timestamp::from_nanos;
        let (path, start, stock) = (Place::from(&path), at(0), 0);
        let mut current = Some(Current { id: 0, path, writer, start, stock, unflushed: 0 });
        let trigger: Trigger = "on-cpu=1us".parse().unwrap();
        let (mut detector, mut chain) = (Detector::new(Limits::of(&[trigger])), chain());
        let (mut causes, mut failed) = (Vec::new(), None);
        switch(&mut chain, 0, A);
        detector.switch(at(10), 1, (0, false), A, &mut causes);
        let known = (&mut detector, &mut chain);
        end_cpu((at(500), 1), known, sideband, &mut current, &mut failed);
        detector.look(at(5_000), Vec::new, &mut causes);
        switch(&mut chain, 0, A + 1);
        assert!(causes.is_empty() && failed.is_none() && chain.gaps == 0, "{causes:?}");
        let Current { writer, path, .. } = current.unwrap();
        drop(writer.finish(&Features::default()).unwrap());
        let mut reader = perf_data::Reader::new(File::open(&path).unwrap()).unwrap();
        let entry = reader.next_record().unwrap().unwrap();
        let Some(Ok(perf_monitor::Record::Lost(lost))) = entry.decode() else {
            panic!("a loss without a number")
        };
        assert_eq!((entry.time(), lost.sample_id.cpu, lost.lost), (Some(at(500)), Some(1), 0));
        // It is no gap in the dump either.
        let mut chain = crate::commands::flight::chain::tests::chain();
        switch(&mut chain, 0, A);
        assemble::follow(&mut chain, &entry);
        switch(&mut chain, 0, A + 1);
        assert_eq!((chain.switches, chain.gaps), (2, 0));
    }

    /// A segment that is given up lacks what its file has not got.
    #[test]
    fn records_in_memory_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let at = Timestamp::from_nanos;
        let bytes = [9 | 16 << 48, 1_u64].map(u64::to_ne_bytes).concat();
        let raw = RawRecord::split_first(&bytes, 0).unwrap().0;
        for (path, lacks) in [(&*dir.path().join("segment"), 0), ("/dev/full".as_ref(), 2)] {
            let file = File::options().write(true).create(true).truncate(true).open(path).unwrap();
            let writer = FileWriter::new(BufWriter::new(file), Vec::new()).unwrap();
            let (path, start, stock) = (Place::from(path), at(0), 0);
            let mut current = Some(Current { id: 0, path, writer, start, stock, unflushed: 0 });
            let (mut stats, mut failed) = (Stats::default(), None);
            for time in [1, 2] {
                write(raw, at(time), &mut current, &mut stats, &mut failed);
            }
            let mut segment = current.take().unwrap();
            assert_eq!((segment.unflushed, segment.flush().is_err()), (2, lacks > 0));
            stats.add_unwritten(segment.unflushed, at(2));
            assert_eq!(stats.unwritten, lacks);
            assert_eq!(stats.unwritten_at, (lacks > 0).then_some(at(2)));
            // Without a segment.
            write(raw, at(3), &mut current, &mut stats, &mut failed);
            assert_eq!((stats.unwritten, stats.unwritten_at), (lacks + 1, Some(at(3))));
        }
    }

    #[test]
    fn a_full_disk_is_not_another_error() {
        let full = || io::Error::from(Errno::NOSPC);
        let flush = |source| perf_data::Error::Io { operation: "flush", offset: 1, source };
        assert!(is_full(&full()) && is_full(&flush(full())));
        assert!(is_full(&io::Error::from(Errno::DQUOT)));
        assert!(is_full(&io::Error::other(flush(full()))), "of a dump");
        assert!(!is_full(&io::Error::from(Errno::ROFS)) && !is_full(&flush(Errno::IO.into())));
    }

    #[test]
    fn buffers_are_within_their_budget() {
        for cpus in [1, 2, 3, 64, 1000] {
            let least = least(cpus, PAGE) as u64;
            assert_eq!(pages(least - 1, cpus, PAGE), None, "{cpus}");
            for bytes in (0..30).map(|n| (least << n) + n) {
                let Some((main, side)) = pages(bytes, cpus, PAGE) else { panic!("{cpus} {bytes}") };
                assert!(main.is_power_of_two() && side.is_power_of_two());
                assert!((main + side + 2) as u64 * (cpus * PAGE) as u64 <= bytes, "{cpus} {bytes}");
            }
        }
        assert_eq!(pages(32_000_000, 2, PAGE), Some((2048, 256)));
        assert_eq!(pages(32_000_000, 64, PAGE), Some((64, 8)));
        assert_eq!(pages(u64::MAX, 1, PAGE).map(|(_, side)| side), Some(256));
    }
}
