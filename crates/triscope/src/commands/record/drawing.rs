//! From records of the kernel to the timeline: decoded, of the command's threads, through the model of
//! `trace-timeline`, as `triscope convert` does with the records of a file.

use super::execs::Execs;
use super::members::{Counts, Members};
use crate::run::procfs;
use crate::sources::kernel::switch_records::Seen;
use crate::sources::processes::ProcessWriter;
use crate::timeline::{Timeline, now};
use perf_monitor::{ProcessInfo, SetRecord};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use trace_export::timeline::{TimelineOptions, TimelineSource};
use trace_export::{CpuIntervals, SchedSwitch, Task as DrawnTask, Timestamp};
use trace_timeline::sources::kernel::{KernelSource, KernelStats, ProcessAttributes, Record};
use trace_timeline::sources::perf::SchedDecoder;
use trace_timeline::{
    Dropped, EntityId, EntityKind, Event, EventKind, LossKind, TableLimits, Tables,
};

/// Ended threads that are remembered. The switches of an older one still have its name; it has no
/// process and no mark at its end. With their processes and tracks they take about 25 MB.
const MAX_ENDED: usize = 1 << 16;

/// Bytes of command lines and paths that are remembered. Later programs have none.
const MAX_PROGRAMS: usize = 8 << 20;

/// Bytes of all names, with those of programs.
const MAX_TEXTS: usize = MAX_PROGRAMS + (4 << 20);

/// An error of the output, or of the file of the processes, with its path.
pub(super) enum DrawingError {
    Output(io::Error),
    Processes(PathBuf, io::Error),
}

impl From<io::Error> for DrawingError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// What was drawn so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drawn {
    pub(super) switches: u64,
    pub(super) wakings: u64,
    pub(super) lost: u64,
    /// Switches that the kernel neither reported nor counted as lost.
    pub(super) gaps: u64,
    /// CPU time in which it is therefore unknown which thread ran, in nanoseconds, at most.
    pub(super) unknown: u64,
    /// Switches that are only in a `PERF_RECORD_SWITCH_CPU_WIDE`.
    pub(super) recovered: u64,
    pub(super) members: Counts,
    /// Ended threads, of any process, that were forgotten: see [`MAX_ENDED`].
    pub(super) forgotten: u64,
    /// Programs above [`MAX_PROGRAMS`], or of processes that ended before they could be read.
    pub(super) unknown_programs: u64,
    /// What is missing because a table is full.
    pub(super) dropped: Dropped,
}

/// What draws the records.
pub(super) struct Drawing {
    decoder: SchedDecoder,
    /// Whether context switches of other threads are recorded.
    is_of_all: bool,
    members: Members,
    kernel: KernelSource,
    tables: Tables,
    events: Vec<Event>,
    source: TimelineSource,
    /// Processes that were found in `/proc`, until a record is later.
    found: VecDeque<Found>,
    /// Threads that have ended, oldest first.
    ended: VecDeque<EntityId>,
    /// CPUs that a thread of the command got or left, if only these are recorded.
    used: BTreeSet<u32>,
    last: Timestamp,
    /// `last` at the end of the round before.
    last_before: Timestamp,
    /// Bytes of the programs that were added.
    program_bytes: usize,
    drawn: Drawn,
    /// The intervals in which threads had a CPU, if they are kept.
    intervals: Option<CpuIntervals>,
    /// What is read of all processes, if it is kept.
    processes: Option<ProcessWriter>,
    /// The programs that start.
    execs: Option<Execs>,
}

/// A process that ran already.
struct Found {
    at: Timestamp,
    pid: u32,
    threads: Vec<(u32, Vec<u8>)>,
    program: Option<ProcessInfo>,
}

impl Found {
    fn read(pid: u32) -> io::Result<Self> {
        let tids = procfs::threads_of(pid).into_iter().flatten();
        let threads = tids.map(|tid| (tid, procfs::comm(pid, tid))).collect();
        let program = ProcessInfo::read(pid);
        // Forks before this time are not those of later threads.
        Ok(Self { at: now()?, pid, threads, program })
    }
}

impl Drawing {
    /// Draws records that this decodes, on a kernel of this release.
    pub(super) fn new(decoder: SchedDecoder, members: Members, release: &str) -> Self {
        let mut options = TimelineOptions::default();
        options.set_kernel(release);
        options.has_idle = decoder.has_switches();
        // Runtimes are drawn after it, by sources of their own.
        options.scheduler_only = true;
        let mut limits = TableLimits::default();
        limits.text_bytes = MAX_TEXTS;
        Self {
            is_of_all: decoder.has_switches(),
            decoder,
            members,
            kernel: KernelSource::new(),
            tables: Tables::with_limits(limits),
            events: Vec::new(),
            source: TimelineSource::new(options),
            found: VecDeque::new(),
            ended: VecDeque::new(),
            used: BTreeSet::new(),
            last: Timestamp::default(),
            last_before: Timestamp::default(),
            program_bytes: 0,
            drawn: Drawn::default(),
            intervals: None,
            processes: None,
            execs: None,
        }
    }

    pub(super) const fn members(&self) -> &Members {
        &self.members
    }

    /// What was drawn so far.
    pub(super) const fn drawn(&self) -> Drawn {
        let (source, kernel) = (self.source.stats(), self.kernel.stats());
        Drawn {
            switches: source.switches,
            wakings: source.wakings,
            lost: kernel.lost,
            gaps: kernel.unreported,
            recovered: kernel.recovered,
            members: self.members.counts(),
            dropped: self.tables.dropped(),
            ..self.drawn
        }
    }

    /// What was recorded so far, of all threads.
    pub(super) const fn seen(&self) -> Seen {
        let KernelStats { switches, unreported, recovered, lost, .. } = self.kernel.stats();
        Seen { switches, missing: unreported + recovered, lost }
    }

    /// Reads programs where they start, if all of them are recorded. Call this before any is recorded: what
    /// starts before is not read until its record is.
    pub(super) fn read_programs(&mut self) {
        // Without it, programs are read when their records are.
        self.execs = Execs::start().ok();
    }

    /// Adds every existing thread. Call this before forks are recorded, so that the names are known
    /// when the first records are read, and after that, so that no thread is missed in between.
    pub(super) fn scan(&mut self) -> io::Result<()> {
        let known: HashMap<u32, usize> =
            self.found.iter().map(|found| (found.pid, found.threads.len())).collect();
        for pid in perf_monitor::processes() {
            let found = Found::read(pid)?;
            if known.get(&pid) != Some(&found.threads.len()) {
                self.found.push_back(found);
            }
        }
        Ok(())
    }

    /// Sets the running process to record. Call this before and after forks are recorded.
    pub(super) fn follow_running(&mut self, pid: u32) -> io::Result<()> {
        let found = Found::read(pid)?;
        for (tid, _) in &found.threads {
            self.members.insert(pid, *tid);
        }
        let is_known = |known: &Found| known.pid == pid && known.threads == found.threads;
        if !self.found.iter().any(is_known) {
            self.found.push_back(found);
        }
        Ok(())
    }

    /// Sets the process of the command.
    pub(super) fn follow(&mut self, pid: u32) {
        self.members.follow(pid);
        if !self.is_of_all {
            // Its records begin with its program.
            let threads = vec![(pid, Vec::new())];
            self.found.push_back(Found { at: Timestamp::default(), pid, threads, program: None });
        }
    }

    /// Keeps the intervals in which threads had a CPU.
    pub(super) fn keep_intervals(&mut self) {
        self.intervals = Some(CpuIntervals::new());
    }

    /// Writes what is read of processes.
    pub(super) fn keep_processes(&mut self, file: ProcessWriter) {
        self.processes = Some(file);
    }

    // Inlined, so that the record is never in memory: to load it in larger parts than it was stored
    // in takes more time than all that is done here.
    #[inline(always)]
    pub(super) fn decode<'a>(&self, record: &SetRecord<'a>) -> Option<Record<'a>> {
        let decoded = self.decoder.decode(record.raw, record.layout, record.cpu);
        if decoded.is_some() || self.is_of_all { decoded } else { switch(record) }
    }

    /// Draws a record.
    #[inline]
    pub(super) fn push(
        &mut self,
        at: Timestamp,
        cpu: u32,
        record: Record<'_>,
        sink: &mut Timeline,
    ) -> Result<(), DrawingError> {
        // The kernel can deliver records late; the stream stays in order.
        let at = self.last.max(at);
        self.last = at;
        while self.found.front().is_some_and(|found| found.at <= at) {
            self.push_found(at, sink)?;
        }
        let program = match record {
            Record::Comm { tid, by_exec: true, .. } => {
                self.members.exec(tid);
                self.exec(at, tid)?
            }
            _ => None,
        };
        let Some(record) = self.members.select(record) else { return Ok(()) };
        self.push_selected(at, &record, sink)?;
        match record {
            Record::Comm { tid, .. } => {
                if let Some(program) = program {
                    self.describe(at, tid, &program, sink)?;
                }
                // A thread that renames itself is running: no switch reports the command's start.
                if !self.is_of_all && self.used.insert(cpu) {
                    self.push_selected(at, &Record::In { cpu, tid }, sink)?;
                }
            }
            Record::In { cpu, .. } | Record::Out { cpu, .. } => {
                self.used.insert(cpu);
            }
            // The events of a thread end with it, before the switch away from it.
            Record::Exit { tid } if !self.is_of_all => {
                let out = Record::Out { cpu, tid, preempted: false };
                self.push_selected(at, &out, sink)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends a round of the recorder: forgets the programs that no process of this recording has executed. Those of the last
    /// round stay, as a record can be late.
    pub(super) fn finish_round(&mut self) {
        let before = std::mem::replace(&mut self.last_before, self.last);
        if let Some(execs) = &mut self.execs {
            execs.drain(before);
        }
    }

    /// Draws the rest that was found in `/proc`, and completes the file of the processes.
    pub(super) fn finish(&mut self, sink: &mut Timeline) -> Result<(), DrawingError> {
        while let Some(found) = self.found.front() {
            let at = self.last.max(found.at);
            self.push_found(at, sink)?;
        }
        let Some(processes) = &mut self.processes else { return Ok(()) };
        processes.flush().map_err(|error| failure(processes, error))
    }

    /// Names the processes and threads, after everything else that is drawn of them but their ends.
    pub(super) fn declare(mut self, sink: &mut Timeline) -> io::Result<ThreadExits> {
        self.source.declare(&self.tables, sink)?;
        Ok(ThreadExits { tables: self.tables, source: self.source })
    }

    pub(super) const fn take_intervals(&mut self) -> Option<CpuIntervals> {
        self.intervals.take()
    }

    #[inline]
    fn push_selected(
        &mut self,
        at: Timestamp,
        record: &Record<'_>,
        sink: &mut Timeline,
    ) -> io::Result<()> {
        let Self { kernel, tables, events, source, .. } = self;
        kernel.push(at, record, tables, events);
        for event in &*events {
            source.push(event, tables, sink)?;
        }
        if self.intervals.is_some() {
            self.add_intervals();
        }
        let is_plain = matches!(
            self.events[..],
            [Event { kind: EventKind::Switch { .. } | EventKind::Flow { .. }, .. }]
        );
        if !is_plain {
            // Another thread with this id ends, and the new one is a member already.
            let new = match *record {
                Record::Thread { tid, .. } | Record::Comm { tid, by_exec: true, .. } => Some(tid),
                _ => None,
            };
            self.follow_events(new);
        }
        self.events.clear();
        Ok(())
    }

    /// Counts losses, and forgets threads whose end is among the events, but not the new one.
    fn follow_events(&mut self, new: Option<u32>) {
        for event in &self.events {
            match event.kind {
                EventKind::Loss { kind: LossKind::UnreportedSwitch, since, .. } => {
                    let unknown = u64::try_from(event.time.nanos_since(since)).unwrap_or_default();
                    self.drawn.unknown += unknown;
                }
                EventKind::End { entity } => {
                    let Some(ended) = self.tables.entities.get(entity) else { continue };
                    if ended.kind != EntityKind::Thread {
                        continue;
                    }
                    let tid = u32::try_from(ended.number).ok();
                    if let Some(tid) = tid.filter(|_| tid != new) {
                        self.members.end(tid);
                    }
                    self.ended.push_back(entity);
                }
                _ => {}
            }
        }
        while self.ended.len() > MAX_ENDED {
            let Some(oldest) = self.ended.pop_front() else { return };
            self.kernel.forget(oldest, &mut self.tables);
            self.drawn.forgotten += 1;
        }
    }

    fn add_intervals(&mut self) {
        let Self { tables, events, intervals: Some(intervals), .. } = self else { return };
        let number = |id: EntityId| tables.entities.get(id).map(|entity| entity.number);
        let cpu_of = |id: EntityId| number(id).and_then(|number| u32::try_from(number).ok());
        let task = |id: Option<EntityId>| {
            let tid = id.and_then(number).and_then(|tid| u32::try_from(tid).ok());
            DrawnTask::new(tid.unwrap_or(0), b"", 120)
        };
        for event in events {
            match event.kind {
                EventKind::Switch { cpu, prev, next, .. } => {
                    let Some(cpu) = cpu_of(cpu) else { continue };
                    let switch = SchedSwitch::new(cpu, task(prev), 0, task(next));
                    intervals.switch(event.time, &switch);
                }
                EventKind::Loss { entity: Some(cpu), .. } => {
                    let Some(cpu) = cpu_of(cpu) else { continue };
                    intervals.lost(event.time, cpu);
                }
                _ => {}
            }
        }
    }

    /// A process that was found in `/proc`.
    #[cold]
    fn push_found(&mut self, at: Timestamp, sink: &mut Timeline) -> io::Result<()> {
        let Some(Found { pid, threads, program, .. }) = self.found.pop_front() else {
            return Ok(());
        };
        let parent = program.as_ref().and_then(|program| id(program.parent));
        let parent = parent.filter(|parent| *parent != 0).map(|parent| (parent, parent));
        let Some(pid) = id(pid) else { return Ok(()) };
        for (tid, comm) in &threads {
            let Some(tid) = id(*tid) else { continue };
            let parent = parent.filter(|_| tid == pid);
            let thread = Record::Thread { pid, tid, parent, comm, is_new: false };
            self.push_selected(at, &thread, sink)?;
        }
        match program {
            Some(program) => self.describe(at, pid, &program, sink),
            None => {
                // The name of a command comes with its program.
                self.drawn.unknown_programs +=
                    u64::from(threads.iter().any(|(_, comm)| !comm.is_empty()));
                Ok(())
            }
        }
    }

    /// A process executes a program. Its calling thread is the main thread now. Returns what is known
    /// of the program, if it is drawn.
    fn exec(&mut self, at: Timestamp, pid: u32) -> Result<Option<ProcessInfo>, DrawingError> {
        let is_drawn = self.members.is_named(pid);
        if !is_drawn && self.processes.is_none() {
            return Ok(None);
        }
        let read = self.execs.as_mut().and_then(|execs| execs.take(pid, at));
        let program = read.or_else(|| ProcessInfo::read(pid));
        if let (Some(processes), Some(program)) = (&mut self.processes, &program) {
            processes.write(Some(at), program).map_err(|error| failure(processes, error))?;
        }
        if is_drawn {
            let is_unread = program.as_ref().is_none_or(|program| program.arguments.is_empty());
            self.drawn.unknown_programs += u64::from(is_unread);
        }
        Ok(program.filter(|_| is_drawn))
    }

    fn describe(
        &mut self,
        at: Timestamp,
        pid: u32,
        program: &ProcessInfo,
        sink: &mut Timeline,
    ) -> io::Result<()> {
        let texts = program.arguments.iter().chain(&program.executable).chain(&program.cgroup);
        let size = texts.map(|text| text.len() + 1).sum::<usize>();
        if self.program_bytes + size > MAX_PROGRAMS {
            self.drawn.unknown_programs += 1;
            return Ok(());
        }
        self.program_bytes += size;
        let container = program.container().filter(|container| container.kind.is_container());
        let container = container.map(|container| container.id).unwrap_or_default();
        let command_line = program.command_line();
        let attributes = ProcessAttributes {
            command_line: command_line.as_bytes(),
            executable: program.executable.as_deref().unwrap_or_default().as_bytes(),
            build_id: b"",
            cgroup: program.cgroup.as_deref().unwrap_or_default().as_bytes(),
            container: container.as_bytes(),
        };
        self.push_selected(at, &Record::Process { pid, attributes }, sink)
    }
}

/// The ends of threads. Their tracks can also belong to a runtime, so these are drawn after all its
/// events.
pub(super) struct ThreadExits {
    tables: Tables,
    source: TimelineSource,
}

impl ThreadExits {
    pub(super) fn draw(mut self, sink: &mut Timeline) -> io::Result<()> {
        self.source.finish(&self.tables, sink)
    }
}

/// A `PERF_RECORD_SWITCH`.
fn switch<'a>(record: &SetRecord<'_>) -> Option<Record<'a>> {
    match record.layout.decode(record.raw).ok()? {
        perf_monitor::Record::Switch(switch) => {
            let tid = switch.sample_id.tid.and_then(id)?;
            Some(SchedDecoder::switch(&switch, record.cpu, tid))
        }
        _ => None,
    }
}

fn failure(processes: &ProcessWriter, error: io::Error) -> DrawingError {
    DrawingError::Processes(processes.path().to_owned(), error)
}

/// A process or thread id, which is a `pid_t`: a record has -1 for one that has ended.
pub(super) fn id(number: u32) -> Option<u32> {
    Some(number).filter(|number| i32::try_from(*number).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use trace_export::{ClockDomain, PerfettoSink, PerfettoStats, Sink};
    use trace_timeline::sources::kernel::Task;

    fn at(nanos: i64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    const fn thread(tid: u32) -> Task<'static> {
        Task::new(tid, b"thread", 120)
    }

    const fn switch(prev: u32, next: u32) -> Record<'static> {
        Record::Switch { cpu: 0, prev: thread(prev), prev_state: 1, next: thread(next) }
    }

    /// Draws records of CPU 0, each with its time. Returns the file and the counts of both sides.
    fn drawn(members: Members, records: &[(i64, Record<'_>)]) -> (String, PerfettoStats, Drawn) {
        let mut file = tempfile::tempfile().unwrap();
        let writer: Box<dyn Write + Send> = Box::new(file.try_clone().unwrap());
        let mut sink: Timeline = PerfettoSink::new(writer, ClockDomain::Boottime);
        let mut drawing = Drawing::new(SchedDecoder::default(), members, "6.1.0");
        drawing.is_of_all = true;
        drawing.keep_intervals();
        for (time, record) in records {
            assert!(drawing.push(at(*time), 0, *record, &mut sink).is_ok());
        }
        assert!(drawing.finish(&mut sink).is_ok());
        let counts = drawing.drawn();
        drawing.declare(&mut sink).unwrap().draw(&mut sink).unwrap();
        sink.finish().unwrap();
        let mut trace = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut trace).unwrap();
        (String::from_utf8_lossy(&trace).into_owned(), sink.stats(), counts)
    }

    #[test]
    fn switches_that_the_kernel_did_not_report_are_marked_and_repaired() {
        let complete = [(10, switch(0, 5)), (20, switch(5, 6)), (30, switch(6, 7))];
        let (trace, written, counts) = drawn(Members::new(true), &complete);
        assert_eq!((counts.gaps, counts.switches, written.sched, written.losses), (0, 3, 3, 0));
        assert!(!trace.contains("lost:"));
        // 6 left the CPU for 0 without a record: it is drawn as leaving when 0 does.
        let gap = [(10, switch(0, 5)), (20, switch(5, 6)), (30, switch(0, 7))];
        let (trace, written, counts) = drawn(Members::new(true), &gap);
        assert_eq!((counts.gaps, counts.unknown, counts.switches, counts.lost), (1, 10, 4, 0));
        assert_eq!((written.sched, written.losses), (4, 1));
        assert_eq!(trace.matches("lost: context switches of CPU 0").count(), 1);
        assert!(trace.contains("the kernel delivered no record of them"));
    }

    #[test]
    fn switches_after_a_counted_loss_are_no_gap() {
        let lost = Record::Lost { cpu: 0, count: 3 };
        let (trace, written, counts) = drawn(
            Members::new(true),
            &[(10, switch(0, 5)), (20, lost), (30, switch(8, 9)), (40, switch(9, 0))],
        );
        assert_eq!((counts.gaps, counts.unknown, counts.lost, written.losses), (0, 0, 3, 1));
        assert_eq!(trace.matches("lost: scheduler records of CPU 0").count(), 1);
        assert!(!trace.contains("lost: context switches"));
    }

    #[test]
    fn threads_outside_the_command_are_one_on_each_cpu() {
        let mut members = Members::new(false);
        members.follow(5);
        let records = [
            (10, switch(8, 9)),
            (20, switch(9, 8)),
            (30, switch(8, 5)),
            (40, switch(5, 9)),
            (50, switch(9, 0)),
        ];
        let (trace, written, counts) = drawn(members, &records);
        assert_eq!((counts.gaps, written.losses), (0, 0));
        assert_eq!(counts.switches, 4, "the first one, to 5, to others, and to the idle thread");
        assert!(trace.contains("other tasks") && trace.contains("others on CPU 0"), "{trace}");
        assert_eq!(trace.matches("thread").count(), 1, "the name of 5: {trace}");
    }

    /// A command that starts processes for hours: what is remembered has a limit, with and without
    /// reused ids.
    #[test]
    fn memory_of_ended_threads_is_limited() {
        const EXTRA: usize = 1000;
        for ids in [1 << 10, u32::MAX] {
            let mut drawing = Drawing::new(SchedDecoder::default(), Members::new(false), "6.1.0");
            drawing.is_of_all = true;
            let writer: Box<dyn Write + Send> = Box::new(io::sink());
            let mut sink: Timeline = PerfettoSink::new(writer, ClockDomain::Boottime);
            drawing.follow(10);
            let mut time = 0;
            let mut push = |drawing: &mut Drawing, record| {
                time += 1;
                assert!(drawing.push(at(time), 0, record, &mut sink).is_ok());
            };
            for n in 0..(MAX_ENDED + EXTRA) as u32 {
                let tid = 11 + n % ids;
                let parent = Some((10, 10));
                push(
                    &mut drawing,
                    Record::Thread { pid: tid, tid, parent, comm: b"", is_new: true },
                );
                push(&mut drawing, switch(10, tid));
                push(&mut drawing, Record::Exit { tid });
                assert!(drawing.members().is_named(tid), "its last switch comes later");
                let (prev, next) = (thread(tid), thread(10));
                push(&mut drawing, Record::Switch { cpu: 0, prev, prev_state: 0x10, next });
            }
            assert_eq!(drawing.members().processes(), [10].into());
            let (counts, entities) = (drawing.drawn(), drawing.tables.entities.len());
            assert_eq!(counts.members.threads, (MAX_ENDED + EXTRA) as u64 + 1);
            assert_eq!(counts.forgotten, EXTRA as u64, "each is drawn or counted");
            // Each has a process; and the CPU, and the command with its process.
            assert_eq!(entities, 2 * MAX_ENDED + 3);
            let exits = drawing.declare(&mut sink).unwrap();
            let before = sink.stats().instants;
            exits.draw(&mut sink).unwrap();
            assert_eq!(sink.stats().instants - before, MAX_ENDED as u64);
        }
    }
}
