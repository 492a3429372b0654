//! The kernel's scheduler on the timeline.

use super::Timeline;
use crate::convert::file::OutputFile;
use crate::failure::Failure;
use crate::perf;
use perf_monitor::{
    Counter, Event, FieldFormat, Record, RecordPlan, SampleFlags, Sampler, Software, Target,
    Tracefs, online_cpus,
};
use std::collections::HashMap;
use std::io;
use trace_common::Merge;
use trace_export::{
    ClockDomain, Entry, Loss, SchedSwitch, SchedWaking, Sink, Task, Timestamp, Track, TrackId,
};

/// How long events wait for earlier ones of other CPUs, in nanoseconds.
const SLACK: i64 = 5_000_000;

/// A refusal of the kernel, or of the output.
pub(super) enum Error {
    Perf(perf_monitor::Error),
    Output(io::Error),
}

impl Error {
    pub(super) fn into_failure(self, output: &OutputFile) -> Failure {
        match self {
            Self::Perf(error) => perf::failure(error),
            Self::Output(error) => output.failure(&error),
        }
    }
}

impl From<perf_monitor::Error> for Error {
    fn from(error: perf_monitor::Error) -> Self {
        Self::Perf(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// What was recorded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stats {
    pub(super) switches: u64,
    pub(super) wakings: u64,
    pub(super) threads: usize,
    pub(super) lost: u64,
    pub(super) late: u64,
}

/// A name of a thread, as the kernel keeps it.
type Comm = [u8; 16];

/// An event that waits for its turn; small and without memory of its own.
#[derive(Clone, Copy)]
enum Item {
    Switch { cpu: u32, prev: Who, prev_state: i64, next: Who },
    Waking { cpu: u32, task: Who, target_cpu: u32 },
    Comm { pid: u32, tid: u32, comm: Comm },
    Fork { parent: u32, pid: u32, tid: u32 },
    Exit { pid: u32, tid: u32 },
    Lost(u64),
}

#[derive(Clone, Copy)]
struct Who {
    tid: i32,
    prio: i32,
    comm: Comm,
}

impl Who {
    fn task(&self) -> Task<'_> {
        Task { tid: self.tid, comm: text(&self.comm), prio: self.prio }
    }
}

fn text(comm: &Comm) -> &[u8] {
    let end = comm.iter().position(|b| *b == 0).unwrap_or(comm.len());
    comm.get(..end).unwrap_or_default()
}

fn comm(bytes: &[u8]) -> Comm {
    let mut comm = [0; 16];
    for (to, from) in comm.iter_mut().zip(bytes) {
        *to = *from;
    }
    comm
}

/// The fields of the two tracepoints.
struct Fields {
    prev: [FieldFormat; 3],
    prev_state: FieldFormat,
    next: [FieldFormat; 3],
    woken: [FieldFormat; 3],
    target_cpu: FieldFormat,
}

impl Fields {
    fn find(tracefs: &Tracefs) -> perf_monitor::Result<Self> {
        let switch = tracefs.format("sched", "sched_switch")?;
        let waking = tracefs.format("sched", "sched_waking")?;
        let get = |format: &perf_monitor::EventFormat, name: &str| {
            format.field(name).cloned().ok_or_else(|| perf_monitor::Error::UnknownEvent {
                name: format!("{}.{name}", format.name()),
                near: Vec::new(),
            })
        };
        let who = |format, prefix: &str| -> perf_monitor::Result<_> {
            Ok([
                get(format, &format!("{prefix}pid"))?,
                get(format, &format!("{prefix}prio"))?,
                get(format, &format!("{prefix}comm"))?,
            ])
        };
        Ok(Self {
            prev: who(&switch, "prev_")?,
            prev_state: get(&switch, "prev_state")?,
            next: who(&switch, "next_")?,
            woken: who(&waking, "")?,
            target_cpu: get(&waking, "target_cpu")?,
        })
    }
}

fn who(fields: &[FieldFormat; 3], raw: &[u8]) -> Option<Who> {
    let [tid, prio, name] = fields;
    Some(Who { tid: tid.i64(raw)? as i32, prio: prio.i64(raw)? as i32, comm: comm(name.str(raw)?) })
}

/// One CPU: its ring, and the events that write into it.
struct Cpu {
    number: u32,
    sampler: Sampler,
    switch: Counter,
    waking: Counter,
    switch_id: u64,
    waking_id: u64,
}

/// Records switches, wake-ups, forks, exits and names on all CPUs.
pub(super) struct Scheduler {
    cpus: Vec<Cpu>,
    fields: Fields,
    /// The layout of both tracepoints' samples.
    plan: RecordPlan,
    merge: Merge<Item>,
    /// When the last round began: everything before was seen in this one.
    watermark: Timestamp,
    /// Threads of the command, by identifier.
    threads: HashMap<u32, Thread>,
    /// Processes of the command.
    processes: HashMap<u32, ()>,
    /// Threads that have ended. Their tracks belong to the runtime until it has been drawn.
    exits: Vec<(Timestamp, TrackId)>,
    stats: Stats,
}

struct Thread {
    track: TrackId,
}

impl Scheduler {
    pub(super) fn open(pages: usize) -> perf_monitor::Result<Self> {
        let tracefs = Tracefs::find()?;
        let fields = Fields::find(&tracefs)?;
        let common = SampleFlags::IDENTIFIER | SampleFlags::TID | SampleFlags::TIME;
        let side = Event::software(Software::Dummy)
            .builder()
            .clock(ClockDomain::Monotonic)
            .sample(common)
            .comm(true)
            .comm_exec(true)
            .task(true);
        let tracepoint = |name| -> perf_monitor::Result<_> {
            Ok(tracefs
                .event("sched", name)?
                .builder()
                .clock(ClockDomain::Monotonic)
                .sample_period(1)
                .sample(common | SampleFlags::RAW)
                .wakeup_watermark(u32::MAX))
        };
        let (switch, waking) = (tracepoint("sched_switch")?, tracepoint("sched_waking")?);
        let mut cpus = Vec::new();
        for number in online_cpus() {
            let target = Target::Cpu(number);
            let mut sampler = side.open_sampler(target, pages)?;
            let switch = switch.open_into(target, &mut sampler)?;
            let waking = waking.open_into(target, &mut sampler)?;
            let (switch_id, waking_id) = (switch.id()?, waking.id()?);
            cpus.push(Cpu { number, sampler, switch, waking, switch_id, waking_id });
        }
        let plan = match cpus.first() {
            Some(cpu) => RecordPlan::new(cpu.switch.attr()),
            None => RecordPlan::new(side.attr()),
        };
        Ok(Self {
            merge: Merge::new(cpus.len()),
            cpus,
            fields,
            plan,
            watermark: Timestamp::default(),
            threads: HashMap::new(),
            processes: HashMap::new(),
            exits: Vec::new(),
            stats: Stats::default(),
        })
    }

    pub(super) fn enable(&mut self) -> perf_monitor::Result<()> {
        for cpu in &self.cpus {
            cpu.sampler.counter().enable()?;
            cpu.switch.enable()?;
            cpu.waking.enable()?;
        }
        Ok(())
    }

    /// The command is this process, with what it starts.
    pub(super) fn follow(&mut self, pid: u32) {
        self.processes.insert(pid, ());
    }

    /// Takes what is there, and writes what nothing earlier can come before.
    pub(super) fn round(&mut self, sink: &mut Timeline) -> Result<(), Error> {
        let begin = perf_monitor::now(ClockDomain::Monotonic).unwrap_or_default();
        for number in 0..self.cpus.len() {
            self.take(number)?;
        }
        self.write(self.watermark.saturating_add_nanos(-SLACK), sink)?;
        self.watermark = begin;
        Ok(())
    }

    /// Writes where threads ended: the last that happens on their tracks.
    pub(super) fn draw_exits(&mut self, sink: &mut Timeline) -> io::Result<()> {
        for (at, track) in self.exits.drain(..) {
            let name = sink.text(b"exit");
            sink.instant(at, track, &Entry::new(name))?;
        }
        Ok(())
    }

    /// Takes and writes the rest, but for [`Scheduler::draw_exits`].
    pub(super) fn finish(&mut self, sink: &mut Timeline) -> Result<Stats, Error> {
        for cpu in &self.cpus {
            cpu.switch.disable()?;
            cpu.waking.disable()?;
            cpu.sampler.counter().disable()?;
        }
        for number in 0..self.cpus.len() {
            self.take(number)?;
        }
        self.write(Timestamp::MAX, sink)?;
        self.stats.threads = self.threads.len();
        self.stats.late = self.merge.late();
        Ok(self.stats)
    }

    fn take(&mut self, number: usize) -> Result<(), Error> {
        let Self { cpus, fields, plan, merge, .. } = self;
        let Some(cpu) = cpus.get_mut(number) else { return Ok(()) };
        let mut left = cpu.sampler.ring_mut().available();
        while left > 0 {
            let (mut batch, decoder) = cpu.sampler.batch();
            let mut count = 0;
            while let Some(raw) = batch.next() {
                count += raw.bytes().len() as u64;
                let Some(at) = decoder.timestamp(raw) else { continue };
                // Samples of the tracepoints, in their common layout, without decoding more.
                let item = if let Some(data) = plan.raw_data(raw) {
                    let id = plan.id(raw);
                    if id == Some(cpu.switch_id) {
                        switch(fields, cpu.number, data)
                    } else if id == Some(cpu.waking_id) {
                        waking(fields, cpu.number, data)
                    } else {
                        None
                    }
                } else {
                    side(decoder.decode(raw).map_err(perf_monitor::Error::from)?)
                };
                if let Some(item) = item {
                    merge.push(number, at, item);
                }
            }
            if count == 0 {
                break;
            }
            left = left.saturating_sub(count);
        }
        Ok(())
    }

    fn write(&mut self, watermark: Timestamp, sink: &mut Timeline) -> Result<(), Error> {
        while let Some(merged) = self.merge.pop(watermark) {
            let at = merged.at;
            match merged.value {
                Item::Switch { cpu, prev, prev_state, next } => {
                    self.stats.switches += 1;
                    let (prev, next) = (prev.task(), next.task());
                    sink.sched_switch(at, &SchedSwitch { cpu, prev, prev_state, next })?;
                }
                Item::Waking { cpu, task, target_cpu } => {
                    self.stats.wakings += 1;
                    sink.sched_waking(at, &SchedWaking { cpu, task: task.task(), target_cpu })?;
                }
                Item::Fork { parent, pid, tid } => {
                    if self.processes.contains_key(&parent) {
                        self.processes.insert(pid, ());
                        self.thread(pid, tid, b"", sink)?;
                    }
                }
                Item::Comm { pid, tid, comm } => {
                    if self.processes.contains_key(&pid) {
                        self.thread(pid, tid, text(&comm), sink)?;
                    }
                }
                Item::Exit { pid, tid } => {
                    if self.processes.contains_key(&pid) {
                        let track = self.thread(pid, tid, b"", sink)?;
                        self.exits.push((at, track));
                    }
                }
                Item::Lost(count) => {
                    self.stats.lost += count;
                    let why = b"the buffer of the CPU was full";
                    let loss = Loss { what: b"scheduler events", count: Some(count), why };
                    sink.lost(at, None, &loss)?;
                }
            }
        }
        Ok(())
    }

    /// The track of a thread; with a name it is declared again.
    fn thread(
        &mut self,
        pid: u32,
        tid: u32,
        name: &[u8],
        sink: &mut Timeline,
    ) -> io::Result<TrackId> {
        if let (Some(thread), true) = (self.threads.get(&tid), name.is_empty()) {
            return Ok(thread.track);
        }
        let id = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        if pid == tid && !name.is_empty() {
            sink.track(&Track::process(id(pid), name))?;
        }
        let track = sink.track(&Track::thread(id(pid), id(tid), name))?;
        self.threads.insert(tid, Thread { track });
        Ok(track)
    }
}

fn switch(fields: &Fields, cpu: u32, raw: &[u8]) -> Option<Item> {
    Some(Item::Switch {
        cpu,
        prev: who(&fields.prev, raw)?,
        prev_state: fields.prev_state.i64(raw)?,
        next: who(&fields.next, raw)?,
    })
}

fn waking(fields: &Fields, cpu: u32, raw: &[u8]) -> Option<Item> {
    let target_cpu = fields.target_cpu.u64(raw)? as u32;
    Some(Item::Waking { cpu, task: who(&fields.woken, raw)?, target_cpu })
}

fn side(record: Record<'_>) -> Option<Item> {
    Some(match record {
        Record::Comm(c) => Item::Comm { pid: c.pid, tid: c.tid, comm: comm(c.comm) },
        Record::Fork(f) => Item::Fork { parent: f.ppid, pid: f.pid, tid: f.tid },
        Record::Exit(e) => Item::Exit { pid: e.pid, tid: e.tid },
        Record::Lost(l) | Record::LostSamples(l) => Item::Lost(l.lost),
        _ => return None,
    })
}
