use super::analysis::Document;
use crate::failure::{OneLine, Result};
use crate::io::counting::{Count, Counted};
use crate::io::progress::Progress;
use crate::sources::go::{self, Opened, Reading, Recovery, TimeRange, Visitor};
use gotrace::{ClockSnapshot, Event, EventKind, EventType, GoState, ProcState, Timestamp};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::PathBuf;

/// Summarize a trace: version, time, events by kind, goroutines, losses
///
/// For a damaged trace, the part before the damage is counted; with --recover also the rest. The
/// exit status is then 1.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go stats trace.out
  triscope go stats --json trace.out | jq .events_by_type.GoCreate
  triscope go stats --csv trace.out              a line for each value
  triscope go stats --recover cut.out
  triscope go stats --follow trace.out           a trace that is being written

Times in JSON are nanoseconds of the trace's clock: CLOCK_MONOTONIC for traces of Go 1.22 and
later on Linux. Bytes are those of the trace when decompressed; with --from or --to those of the
generations that overlap the range. They are not known then, and null, for standard input, for a
trace that is compressed, damaged, text, or of Go before 1.22, and for a range between two
generations. Those of an event are not known for a range that has a part of a generation.")]
pub(crate) struct Args {
    /// The trace; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    document: Document,
    #[command(flatten)]
    recovery: Recovery,
    #[command(flatten)]
    range: TimeRange,
    /// Wait for more at the end of the file, until its writer closes it or Ctrl-C, and
    /// print the number of events on standard error after each generation
    #[arg(long, conflicts_with = "range")]
    follow: bool,
}

pub(super) fn run(args: &Args) -> Result {
    let bytes = Count::default();
    let mut stats = Stats::default();
    let progress = Progress::bytes();
    let follows = args.follow.then_some(&progress);
    let mut visitor = Counting { stats: &mut stats, follows };
    let mut has_bytes = true;
    let mut read = |mut opened: Opened| {
        has_bytes = opened.is_of_range();
        opened.trace.bytes = Box::new(Counted::new(opened.trace.bytes, bytes.clone()));
        opened.filter(args.recovery, &mut visitor)
    };
    let reading = if args.follow {
        go::follow(&args.file, progress.clone(), read)?
    } else {
        read(args.range.open(&args.file, progress.clone(), args.recovery)?)?
    };
    stats.bytes = has_bytes.then(|| bytes.get());
    args.document.print(|| stats.to_json(&reading), |out| stats.print(&reading, out))?;
    reading.into_result()
}

/// Counts the events while they are read.
struct Counting<'a> {
    stats: &'a mut Stats,
    /// Reports the number of events after each generation.
    follows: Option<&'a Progress>,
}

impl Visitor for Counting<'_> {
    fn push(&mut self, event: Event<'_>) -> Result {
        self.stats.add(event);
        let Stats { events, generations, .. } = self.stats;
        if let Some(progress) = self.follows.filter(|_| event.kind() == EventKind::Sync) {
            if *events > 1 {
                progress.note(&format!("{events} events, {generations} generations"));
            }
        }
        Ok(())
    }

    /// A range within a generation has no clocks of its own.
    fn before(&mut self, event: Event<'_>) -> Result {
        self.stats.has_others = true;
        if let Some(sync) = event.sync() {
            self.stats.clocks = sync.clock_snapshot().or(self.stats.clocks);
        }
        Ok(())
    }

    fn after(&mut self) {
        self.stats.has_others = true;
    }
}

/// From this number on, the Ps of v1 traces are artificial ones, to which Go's reader moves events of
/// the network poller, timers, system calls and the GC.
const ARTIFICIAL: i64 = 1_000_001;

/// The counts of a trace.
struct Stats {
    /// `None` if those of the range are not known.
    bytes: Option<u64>,
    /// Whether the bytes have events that are not in the range, too.
    has_others: bool,
    events: u64,
    generations: u64,
    /// The generation of the last event; 0 if it has none.
    generation: u64,
    by_type: [u64; 256],
    /// The kind of each event type that has occurred.
    kinds: [Option<EventKind>; 256],
    syncs: u64,
    time: Option<(Timestamp, Timestamp)>,
    clocks: Option<ClockSnapshot>,
    goroutines: Ids,
    created: u64,
    procs: Ids,
    threads: Ids,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            bytes: None,
            has_others: false,
            events: 0,
            generations: 0,
            generation: 0,
            by_type: [0; 256],
            kinds: [None; 256],
            syncs: 0,
            time: None,
            clocks: None,
            goroutines: Ids::default(),
            created: 0,
            procs: Ids::default(),
            threads: Ids::default(),
        }
    }
}

impl Stats {
    #[inline]
    fn add(&mut self, event: Event<'_>) {
        self.events += 1;
        if event.generation() != self.generation {
            self.generation = event.generation();
            self.generations += u64::from(self.generation != 0);
        }
        let time = event.time();
        self.time = Some((self.time.map_or(time, |(first, _)| first), time));
        self.goroutines.insert(event.goroutine().0);
        let proc = event.proc().0;
        if proc < ARTIFICIAL || event.generation() != 0 {
            self.procs.insert(proc);
        }
        self.threads.insert(event.thread().0);
        let Some(ty) = event.wire_type() else { return self.add_sync(event) };
        let index = usize::from(ty.0);
        self.by_type[index] += 1;
        if self.by_type[index] == 1 {
            self.kinds[index] = Some(event.kind());
        }
        if introduces(ty) {
            self.add_introduced(event);
        }
    }

    #[cold]
    fn add_sync(&mut self, event: Event<'_>) {
        self.syncs += 1;
        if let Some(sync) = event.sync() {
            self.clocks = self.clocks.or(sync.clock_snapshot());
        }
    }

    /// The goroutine or proc that an event is about.
    fn add_introduced(&mut self, event: Event<'_>) {
        let Some(transition) = event.state_transition() else { return };
        let resource = transition.resource();
        // A state that is reported is a change from an unknown one only where reading began.
        if let (Some(id), Some((from, to))) = (resource.goroutine(), transition.goroutine()) {
            if matches!(from, GoState::NotExist | GoState::Undetermined) || from == to {
                self.created += u64::from(from == GoState::NotExist);
                self.goroutines.insert(id.0);
            }
        } else if let (Some(id), Some((from, to))) = (resource.proc(), transition.proc()) {
            if from != ProcState::Running || from == to {
                self.procs.insert(id.0);
            }
        }
    }

    /// Number of events of each kind.
    fn by_kind(&self) -> [u64; EventKind::ALL.len()] {
        let mut by_kind = [0; EventKind::ALL.len()];
        by_kind[EventKind::Sync as usize] = self.syncs;
        for (kind, count) in self.kinds.iter().zip(self.by_type) {
            if let Some(kind) = kind {
                by_kind[*kind as usize] += count;
            }
        }
        by_kind
    }

    fn bytes_per_event(&self) -> Option<f64> {
        let bytes = self.bytes.filter(|_| !self.has_others);
        bytes.map(|bytes| bytes as f64 / self.events.max(1) as f64)
    }

    fn print(&self, reading: &Reading, out: &mut Vec<u8>) -> io::Result<()> {
        let events = &self.events;
        let format = if reading.version.is_v1() { "v1" } else { "v2" };
        let name = OneLine(&reading.name);
        let bytes = self.bytes.map(|bytes| format!(", {bytes} bytes")).unwrap_or_default();
        writeln!(out, "{name}: {} trace, format {format}{bytes}\n", reading.version)?;
        if let Some((first, last)) = self.time {
            let seconds = last.nanos().wrapping_sub(first.nanos()) as f64 / 1e9;
            writeln!(out, "time         {seconds:.6} s, from {first} to {last} s")?;
            let each = self.bytes_per_event().map(|bytes| format!(", {bytes:.2} bytes each"));
            let each = each.unwrap_or_default();
            let rate = if seconds > 0.0 { *events as f64 / seconds } else { 0.0 };
            writeln!(out, "events       {events}{each}, {rate:.0} a second")?;
        }
        if let Some(clocks) = self.clocks {
            let (wall, at) = (clocks.wall_utc(), clocks.trace);
            writeln!(out, "wall clock   {wall} at {at} s")?;
        }
        if !reading.version.is_v1() {
            writeln!(out, "generations  {}", self.generations)?;
        }
        let created = self.created;
        writeln!(
            out,
            "goroutines   {}, {created} of them created during the trace",
            self.goroutines.len
        )?;
        writeln!(out, "procs        {}", self.procs.len)?;
        writeln!(out, "threads      {}", self.threads.len)?;
        if reading.missing_generations > 0 {
            writeln!(out, "missing      {} generations", reading.missing_generations)?;
        }
        if let Some(error) = &reading.error {
            writeln!(out, "damaged      {}", OneLine(&error.to_string()))?;
        }
        if reading.losses > 0 {
            let (losses, lost) = (reading.losses, reading.lost_bytes);
            writeln!(out, "lost         {lost} bytes at {losses} damaged places")?;
        }
        if reading.unresolved > 0 {
            writeln!(out, "unresolved   {} strings and stacks", reading.unresolved)?;
        }
        if reading.lost_events > 0 {
            writeln!(out, "lost         {} events that fit no state", reading.lost_events)?;
        }
        writeln!(out, "\n      events   share  kind")?;
        let by_kind = self.by_kind();
        let mut kinds: Vec<(u64, EventKind)> =
            EventKind::ALL.into_iter().map(|kind| (by_kind[kind as usize], kind)).collect();
        kinds.sort_by_key(|(count, kind)| (std::cmp::Reverse(*count), *kind));
        for (count, kind) in kinds.into_iter().filter(|(count, _)| *count > 0) {
            let share = count as f64 / *events as f64 * 100.0;
            writeln!(out, "{count:>12} {share:>6.2}%  {kind}")?;
        }
        Ok(())
    }

    fn to_json(&self, reading: &Reading) -> Value {
        let by_kind = self.by_kind();
        let kinds: Map<String, Value> = EventKind::ALL
            .into_iter()
            .map(|kind| (kind.to_string(), by_kind[kind as usize].into()))
            .collect();
        let types: Map<String, Value> = (0..=u8::MAX)
            .filter(|ty| self.by_type[usize::from(*ty)] > 0)
            .map(|ty| (EventType(ty).to_string(), self.by_type[usize::from(ty)].into()))
            .collect();
        json!({
            "file": reading.name,
            "version": reading.version.to_string(),
            "bytes": self.bytes,
            "bytes_per_event": self.bytes_per_event(),
            "generations": if reading.version.is_v1() { None } else { Some(self.generations) },
            "missing_generations": reading.missing_generations,
            "first_ns": self.time.map(|(first, _)| first.nanos()),
            "last_ns": self.time.map(|(_, last)| last.nanos()),
            "clock_snapshot": self.clocks.map(|clocks| json!({
                "trace_ns": clocks.trace.nanos(),
                "mono_ns": clocks.mono,
                "wall": clocks.wall_utc(),
                "wall_s": clocks.wall_seconds,
                "wall_ns": clocks.wall_nanos,
            })),
            "events": self.events,
            "events_by_kind": kinds,
            "events_by_type": types,
            "goroutines": self.goroutines.len,
            "goroutines_created": self.created,
            "procs": self.procs.len,
            "threads": self.threads.len,
            "error": reading.error.as_ref().map(ToString::to_string),
            "losses": reading.losses,
            "lost_bytes": reading.lost_bytes,
            "unresolved_ids": reading.unresolved,
            "lost_event_bytes": reading.lost_event_bytes,
            "lost_events": reading.lost_events,
        })
    }
}

/// Whether events of this type can be the first to name a goroutine or proc. All others are about
/// the current thread's goroutine and proc, or about goroutines that already have a state.
const fn introduces(ty: EventType) -> bool {
    use EventType as T;
    matches!(
        ty,
        T::GO_CREATE
            | T::GO_CREATE_BLOCKED
            | T::GO_CREATE_SYSCALL
            | T::GO_STATUS
            | T::GO_STATUS_STACK
            | T::PROC_START
            | T::PROC_STATUS
            | T::PROC_STEAL
    )
}

/// A set of identifiers, most of which are small.
#[derive(Default)]
struct Ids {
    last: Option<i64>,
    small: Vec<u64>,
    large: HashSet<i64>,
    len: u64,
}

impl Ids {
    /// Smaller identifiers take one bit each: half a megabyte at most.
    const SMALL: i64 = 1 << 22;

    #[inline]
    fn insert(&mut self, id: i64) {
        if self.last != Some(id) && id != -1 {
            self.last = Some(id);
            self.insert_changed(id);
        }
    }

    fn insert_changed(&mut self, id: i64) {
        let new = if (0..Self::SMALL).contains(&id) {
            let (index, bit) = (id as usize / 64, 1 << (id % 64));
            if index >= self.small.len() {
                self.small.resize(index + 1, 0);
            }
            let new = self.small[index] & bit == 0;
            self.small[index] |= bit;
            new
        } else {
            self.large.insert(id)
        };
        self.len += u64::from(new);
    }
}
