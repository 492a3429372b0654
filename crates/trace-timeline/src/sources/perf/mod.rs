//! The kernel's scheduler, from raw records of perf events: live ones of `perf-monitor`, or those
//! of a `perf.data` file. Of a file also the samples of other events, with their call chains.
//!
//! ```no_run
//! use perf_data::{Reader, SortedReader};
//! use trace_timeline::{Tables, sources::perf::PerfSource};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // perf record -k CLOCK_MONOTONIC -a -e sched:sched_switch,sched:sched_waking …
//! let file = std::fs::File::open("perf.data")?;
//! let reader = Reader::new(file)?;
//! let mut records = SortedReader::new(reader);
//! let mut tables = Tables::new();
//! let mut source = PerfSource::new(records.session())?;
//! let mut events = Vec::new();
//! while let Some(entry) = records.next_record()? {
//!     source.push(&entry, &mut tables, &mut events);
//! }
//! source.finish(&mut tables, &mut events);
//! # Ok(())
//! # }
//! ```
//!
//! [`SchedDecoder`] decodes live records: those of a `perf_monitor::RingSet` come in time order,
//! and their CPU is known.

mod deferred;
mod off_cpu;
mod sched;
mod scope;
mod stacks;
#[cfg(test)]
mod testing;

pub use sched::SchedDecoder;
pub use stacks::{Function, PREEMPTED, Symbolizer, Unwinder};

use super::kernel::{KernelSource, KernelStats, ProcessAttributes, Record, ThreadRef};
use super::pusher::Pusher;
use crate::event::{Event, ThreadState};
use crate::tables::{SampledEvent, SampledEventId, StackId, Tables};
use deferred::{Chain, Deferred, stack_of};
use off_cpu::{Away, OffCpu};
use perf_data::{Entry, Losses, Session, TracingData};
use perf_monitor::{
    CallchainDeferred as PerfDeferred, Record as PerfRecord, Sample, SampleFlags, Tasks,
    TracepointFormat,
};
use stacks::Stacks;
use std::collections::VecDeque;
use trace_common::{ClockDomain, Timestamp};

/// An error of a recording that cannot be put on a timeline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// Its clock is not `CLOCK_MONOTONIC`, which other traces are on.
    #[error(
        "the recording is not on CLOCK_MONOTONIC and cannot be related to other traces: record it \
         with perf record -k CLOCK_MONOTONIC"
    )]
    Clock,
    /// The records of the scheduler have no CPU.
    #[error("the records of the scheduler have no CPU: record them with perf record -a")]
    Fields,
    /// Its records have no time, as of `perf record --per-thread`.
    #[error("the records have no time: record them with perf record -T")]
    Time,
}

/// Statistics of the samples of a [`PerfSource`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PerfStats {
    /// Samples of events other than those of the scheduler.
    pub samples: u64,
    /// Samples that cannot be decoded, or are of no known event.
    pub undecodable: u64,
    /// Call chains that have as many frames as the kernel records (`sample_max_stack`, as far as the
    /// recording has it): outer frames can be missing.
    pub truncated: u64,
    /// Stacks of user space that the [`Unwinder`] could not follow to their end.
    pub cut: u64,
    /// Times away from the CPU whose end is not known, because records were lost or the kernel left out
    /// a switch.
    pub unfinished: u64,
    /// Stacks without their frames of user space: the kernel deferred them to a record of their own
    /// (`PERF_RECORD_CALLCHAIN_DEFERRED`, Linux 6.19), which did not come.
    pub deferred: u64,
    /// Mappings that were not kept, because there are too many ([`Mappings::dropped`](perf_data::Mappings::dropped)):
    /// frames at their addresses have neither a file nor a function.
    pub dropped_mappings: u64,
    /// Times that the kernel throttled an event (`PERF_RECORD_THROTTLE`): samples are missing then.
    pub throttled: u64,
    /// Records that are earlier than one before them. Their events have the time of that one, so the states
    /// and durations around them are wrong.
    pub late: u64,
}

/// Makes model events of the records of a `perf.data` file: of the scheduler, and samples.
///
/// The weight of a sample is its period: the number of events since the one before. Samples of the
/// idle thread belong to their CPU.
///
/// Of a recording with a sample at each context switch and with records of switches (`perf record
/// -e context-switches -c 1 --switch-events`), or with the call chains of `sched_switch` (`perf record -a
/// -g -e sched:sched_switch`), threads have [`SampleKind::OffCpu`](crate::SampleKind::OffCpu): they
/// come when the thread is back on a CPU, with the time since the switch as their weight. The stack of
/// a thread that was preempted begins with a frame [`PREEMPTED`]. A call chain of `sched_waking` is the
/// stack of the [flow](crate::EventKind::Flow).
///
/// Records of `sched_switch` of a part of the switches (`perf record -F`), or of those of some threads
/// (`perf record` with a command or `-p`, without `-a`), are samples: no states follow from them.
///
/// Of a recording with deferred call chains (`perf record --call-graph fp,defer`), a sample waits for the
/// frames of user space, and events after it wait with it: at most 10 s of the recording, and 65 536
/// events.
#[derive(Debug)]
pub struct PerfSource {
    decoder: SchedDecoder,
    kernel: KernelSource,
    stacks: Stacks,
    off_cpu: OffCpu,
    deferred: Deferred,
    /// The events of the recording in the tables, when their first sample was read.
    events: Vec<Option<SampledEventId>>,
    stats: PerfStats,
    /// The threads that existed at the start, whose records have no time.
    existing: Vec<Existing>,
    /// What the recorder read of processes, that which comes next first.
    observed: VecDeque<ObservedProcess>,
    /// The host name, release and architecture, until the first record.
    machine: Option<[Vec<u8>; 3]>,
    /// Executables and cgroups.
    tasks: Tasks,
    last: Option<Timestamp>,
    /// The latest time of a record, on the clock of the recording.
    newest: Option<Timestamp>,
    losses: Losses,
    /// In nanoseconds.
    offset: i64,
}

#[derive(Debug)]
struct Existing {
    pid: u32,
    tid: u32,
    parent: Option<(u32, u32)>,
    comm: Vec<u8>,
}

/// A process as a recorder saw it in `/proc`: records of the kernel have no command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers construct it")]
pub struct ObservedProcess {
    /// The time of the record of its `execve(2)`; `None` if it was there at the start.
    pub time: Option<Timestamp>,
    /// The process id.
    pub pid: u32,
    /// The command line; empty if it is not known.
    pub command_line: Vec<u8>,
    /// The path of the executable; empty if it is not known.
    pub executable: Vec<u8>,
    /// The path of the cgroup; empty if it is not known.
    pub cgroup: Vec<u8>,
    /// The identifier of the container; empty without one.
    pub container: Vec<u8>,
}

/// A process or thread id of a record, which is a `pid_t`: the kernel has -1 for one that has ended.
fn id(number: u32) -> Option<u32> {
    Some(number).filter(|number| i32::try_from(*number).is_ok())
}

impl PerfSource {
    /// Makes a source for a recording.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if it cannot be put on a timeline.
    pub fn new(session: &Session) -> Result<Self, PerfError> {
        let this = Self::with_offset(session, 0)?;
        // Without events there are no times.
        let is_monotonic =
            session.events().is_empty() || session.clock_domain() == Some(ClockDomain::Monotonic);
        if is_monotonic { Ok(this) } else { Err(PerfError::Clock) }
    }

    /// Makes a source for a recording on another clock: `offset_nanos` is added to all times.
    ///
    /// # Errors
    ///
    /// [`PerfError::Fields`] and [`PerfError::Time`].
    pub fn with_offset(session: &Session, offset_nanos: i64) -> Result<Self, PerfError> {
        let formats = session.features().tracing.iter().flat_map(TracingData::formats);
        // Of a part of the switches, as of `perf record -F` or of some threads, no state follows: they are
        // samples.
        let is_of_threads = scope::is_of_threads(session);
        let is_whole = |format: &TracepointFormat| {
            let is_switch = format.system() == "sched" && format.name() == "sched_switch";
            let is_partial = is_switch && is_of_threads;
            !is_partial
                && !session.events().iter().map(|event| &event.attr).any(|attr| {
                    attr.type_ == perf_sys::PERF_TYPE_TRACEPOINT
                        && attr.config == format.id()
                        && (attr.freq() || attr.sample_period > 1)
                })
        };
        let decoder = SchedDecoder::new(formats.filter(is_whole));
        let has =
            |field| move |event: &perf_data::RecordedEvent| event.attr.sample_type & field == field;
        let needs_cpu = |event: &&perf_data::RecordedEvent| decoder.decodes(event);
        let mut of_scheduler = session.events().iter().filter(needs_cpu);
        if !session.events().iter().all(has(perf_sys::PERF_SAMPLE_TIME)) {
            return Err(PerfError::Time);
        }
        if !of_scheduler.all(has(perf_sys::PERF_SAMPLE_CPU)) {
            return Err(PerfError::Fields);
        }
        let mut kernel = KernelSource::new();
        if !decoder.has_switches() {
            kernel.set_without_switches();
        }
        let features = session.features();
        let machine = [&features.hostname, &features.os_release, &features.arch]
            .map(|text| text.as_deref().unwrap_or_default().as_bytes().to_vec());
        Ok(Self {
            decoder,
            kernel,
            stacks: Stacks::new(features),
            off_cpu: OffCpu::new(session),
            deferred: Deferred::new(session.events().iter().any(|event| event.attr.defer_output())),
            events: Vec::new(),
            stats: PerfStats::default(),
            existing: Vec::new(),
            observed: VecDeque::new(),
            machine: Some(machine),
            tasks: Tasks::new(),
            last: None,
            newest: None,
            losses: Losses::default(),
            offset: offset_nanos,
        })
    }

    /// Names the functions of call chains.
    #[must_use]
    pub fn with_symbols(mut self, symbols: impl Symbolizer + Send + 'static) -> Self {
        self.stacks.set_symbols(Box::new(symbols));
        self
    }

    /// Finds the callers of user space of samples with registers and a copy of the stack.
    #[must_use]
    pub fn with_unwinder(mut self, unwinder: impl Unwinder + Send + 'static) -> Self {
        self.stacks.set_unwinder(Box::new(unwinder));
        self
    }

    /// Makes the records of the scheduler samples like those of other events: nothing is derived from
    /// them.
    #[must_use]
    pub fn with_scheduler_as_samples(mut self) -> Self {
        self.decoder = SchedDecoder::default();
        self.kernel.set_without_switches();
        self
    }

    /// Of the records of the scheduler, only wake-ups are decoded: `sched_waking` becomes a
    /// [flow](crate::EventKind::Flow). Others are samples like those of other events.
    #[must_use]
    pub fn with_wake_ups_only(mut self) -> Self {
        self.ignore_switches();
        self
    }

    /// Records of `sched_switch` are samples.
    fn ignore_switches(&mut self) {
        self.decoder.ignore_switches();
        self.kernel.set_without_switches();
    }

    /// Whether the event with this number is the `sched_switch` that states follow from.
    fn is_switch(&self, session: &Session, event: usize) -> bool {
        session.events().get(event).is_some_and(|event| self.decoder.decodes_switches(event))
    }

    /// Adds what the recorder read of processes, on the clock of the recording.
    #[must_use]
    pub fn with_processes(mut self, processes: impl IntoIterator<Item = ObservedProcess>) -> Self {
        self.observed.extend(processes);
        self.observed.make_contiguous().sort_by_key(|process| process.time);
        self
    }

    /// Statistics of the scheduler so far.
    pub const fn kernel_stats(&self) -> KernelStats {
        self.kernel.stats()
    }

    /// Statistics of the samples so far.
    pub const fn stats(&self) -> PerfStats {
        PerfStats {
            cut: self.stacks.cut,
            deferred: self.deferred.missing,
            dropped_mappings: self.stacks.dropped_mappings(),
            ..self.stats
        }
    }

    /// Appends the model events of the next record, in time order.
    ///
    /// Records must come in time order, as from a [`SortedReader`](perf_data::SortedReader): a
    /// [`Reader`](perf_data::Reader) has the order of the file, in which the buffers of the CPUs follow one
    /// another. Events of a record that is earlier than one before have the time of that one, and
    /// [`PerfStats::late`] counts it.
    pub fn push(&mut self, entry: &Entry<'_>, tables: &mut Tables, out: &mut Vec<Event>) {
        let from = out.len();
        let time = entry.time();
        self.stats.late += u64::from(time.is_some() && time < self.newest);
        self.newest = self.newest.max(time);
        self.push_record(entry, tables, out);
        if !self.observed.is_empty() {
            self.push_observed(tables, out);
        }
        self.deferred.pass(from, self.last, out);
    }

    /// Describes the processes that were observed up to now.
    fn push_observed(&mut self, tables: &mut Tables, out: &mut Vec<Event>) {
        let Some(now) = self.last else { return };
        while let Some(next) = self.observed.front() {
            if next.time.is_some_and(|at| at.saturating_add_nanos(self.offset) > now) {
                return;
            }
            let record = Record::Process {
                pid: next.pid,
                attributes: ProcessAttributes {
                    command_line: &next.command_line,
                    executable: &next.executable,
                    build_id: b"",
                    cgroup: &next.cgroup,
                    container: &next.container,
                },
            };
            self.kernel.push(now, &record, tables, out);
            self.observed.pop_front();
        }
    }

    fn push_record(&mut self, entry: &Entry<'_>, tables: &mut Tables, out: &mut Vec<Event>) {
        if self.decoder.has_switches()
            && scope::opens_on_threads(entry, |e| self.is_switch(entry.session, e))
        {
            self.ignore_switches();
            return;
        }
        let Some(layout) = entry.layout() else {
            self.stats.undecodable += u64::from(entry.raw.type_() == perf_sys::PERF_RECORD_SAMPLE);
            return;
        };
        let cpu = layout.cpu(entry.raw).unwrap_or_default();
        let process = self.learn(entry, tables, out);
        if let (Some(at), Some(pid)) = (entry.time(), process) {
            let at = self.time(at, tables, out);
            self.describe(pid, at, tables, out);
        }
        let Some(record) = self.decoder.decode(entry.raw, layout, cpu) else {
            if entry.raw.type_() == perf_sys::PERF_RECORD_SAMPLE {
                self.sample(entry, tables, out);
            }
            return;
        };
        let Some(at) = entry.time() else {
            match record {
                Record::Thread { pid, tid, parent, .. } => {
                    // Of another thread it is the process itself.
                    let parent = parent.filter(|_| pid == tid);
                    self.existing.push(Existing { pid, tid, parent, comm: Vec::new() });
                }
                Record::Comm { tid, comm, .. } => self.name_existing(entry, tid, comm),
                _ => {}
            }
            return;
        };
        let at = self.time(at, tables, out);
        if let Record::Comm { tid: 1.., by_exec: false, .. } = record {
            self.join(entry, at, tables, out);
        }
        let running = match record {
            Record::Switch { prev, .. } => prev.thread.tid(),
            Record::Waking { by, .. } => by.and_then(ThreadRef::tid),
            _ => None,
        };
        // The ids of a sample are those in the PID namespace of the recorder.
        let ids = layout.pid_tid(entry.raw).filter(|(_, tid)| running == Some(*tid));
        if let Some((Some(pid), tid)) = ids.map(|(pid, tid)| (id(pid), tid)) {
            self.kernel.join_process(pid, tid, &mut Pusher { at, tables, out });
        }
        let record = match record {
            // Without switches, no state of a thread depends on what was lost.
            Record::Lost { cpu, count } if !self.kernel.has_switches() => {
                Record::LostSamples { cpu, count }
            }
            mut record => {
                let has_chain = layout.sample_flags().contains(SampleFlags::CALLCHAIN);
                let chain = has_chain.then(|| self.add_stack(entry, at, &mut record, tables, out));
                return self.push_with(chain.unwrap_or_default(), at, &record, tables, out);
            }
        };
        self.kernel.push(at, &record, tables, out);
    }

    /// A record of a name says of which process its thread is: the record of its start may be missing.
    ///
    /// At an `execve(2)` the thread has become the main thread, whose process is known.
    fn join(
        &mut self,
        entry: &Entry<'_>,
        at: Timestamp,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) {
        let Some(Ok(PerfRecord::Comm(known))) = entry.decode() else { return };
        let (Some(pid), Some(tid)) = (id(known.pid), id(known.tid)) else { return };
        let thread = Record::Thread { pid, tid, parent: None, comm: known.comm, is_new: false };
        self.kernel.push(at, &thread, tables, out);
    }

    /// Pushes a record with the stack of this chain, which may not be complete.
    fn push_with(
        &mut self,
        chain: Chain,
        at: Timestamp,
        record: &Record<'_>,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) {
        let from = out.len();
        self.kernel.push(at, record, tables, out);
        let Some(promise) = chain.promise else { return };
        let made = out.iter_mut().enumerate().skip(from);
        let of_chain = |event: &mut Event| stack_of(event).is_some_and(|s| *s == chain.stack);
        let index = made.filter_map(|(index, event)| of_chain(event).then_some(index)).next_back();
        if let Some(index) = index {
            self.deferred.promise(index, promise);
        }
    }

    /// Ends the recording at its last record, or up to where [waits were counted](Self::count_waits): see
    /// [`KernelSource::finish`]. Threads that are away from the CPU get a sample of the time up to then.
    pub fn finish(&mut self, tables: &mut Tables, out: &mut Vec<Event>) {
        let Some(last) = self.last else { return };
        let from = out.len();
        for (tid, away) in self.off_cpu.rest() {
            if away.since < last {
                self.back(tid, &away, last, tables, out);
            }
        }
        self.kernel.lost_at_end(self.losses.unreported(), last, out);
        self.kernel.finish(last, out);
        self.deferred.finish(from, out);
    }

    /// Gives threads that are away from the CPU a sample of the time up to `at`, on the clock of the
    /// recording, or up to the last record if that is later: what follows counts from there. A live table
    /// shows waits while they last.
    pub fn count_waits(&mut self, at: Timestamp, tables: &mut Tables, out: &mut Vec<Event>) {
        let rest = self.off_cpu.rest();
        if rest.is_empty() {
            return;
        }
        let from = out.len();
        let at = self.time(at, tables, out);
        for (tid, away) in rest {
            if away.since < at {
                self.back(tid, &away, at, tables, out);
            }
            self.off_cpu.leave(tid, Away { since: at, ..away });
        }
        self.deferred.pass(from, Some(at), out);
    }

    /// Names the functions of a stack that was made without symbols. `None` above the limits of the
    /// tables.
    pub fn name(
        &mut self,
        stack: StackId,
        symbols: &mut dyn Symbolizer,
        tables: &mut Tables,
    ) -> Option<StackId> {
        self.stacks.name(stack, symbols, tables)
    }

    /// Forgets the names of functions: [`PerfSource::name`] asks its symbolizer again, which may know
    /// more. The unwinder forgets files that have changed ([`Unwinder::forget_changed`]).
    pub fn forget_names(&mut self) {
        self.stacks.forget_names();
    }

    /// The file that was mapped last at an address of a process, by its number in the recording, and the
    /// address in it: what a [`Symbolizer`] gets for a frame there.
    pub fn locate(&self, pid: u32, address: u64) -> Option<(usize, u64)> {
        self.stacks.locate(pid, address)
    }

    /// The time of a record on the timeline. Before the first one is what was there at the start.
    fn time(&mut self, at: Timestamp, tables: &mut Tables, out: &mut Vec<Event>) -> Timestamp {
        let at = at.saturating_add_nanos(self.offset);
        // A recorder can write records late; the stream stays in order.
        let at = self.last.map_or(at, |last| last.max(at));
        self.last = Some(at);
        if let Some([name, release, architecture]) = self.machine.take() {
            let machine =
                Record::Machine { name: &name, release: &release, architecture: &architecture };
            self.kernel.push(at, &machine, tables, out);
        }
        // A recording of several parts lists them again.
        for Existing { pid, tid, parent, comm } in std::mem::take(&mut self.existing) {
            let comm = &comm[..];
            let thread = Record::Thread { pid, tid, parent, comm, is_new: false };
            self.kernel.push(at, &thread, tables, out);
            if pid == tid {
                self.describe(pid, at, tables, out);
            }
        }
        at
    }

    /// A thread gets or leaves a CPU, as a recording says it that has no `sched_switch`.
    fn runs(
        &mut self,
        cpu: u32,
        tid: u32,
        switch: &perf_monitor::Switch,
        at: Timestamp,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) {
        if tid == 0 || self.decoder.has_switches() {
            return;
        }
        self.kernel.push(at, &SchedDecoder::switch(switch, cpu, tid), tables, out);
    }

    /// Learns what a record says of a task: the process whose executable or cgroup may be new.
    fn learn(
        &mut self,
        entry: &Entry<'_>,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) -> Option<u32> {
        if entry.raw.type_() == perf_sys::PERF_RECORD_SAMPLE {
            return None;
        }
        let record = entry.decode()?.ok()?;
        self.losses.push(entry.raw, &record);
        self.tasks.push(&record);
        self.stacks.apply(&record, entry.raw);
        let tid = |tid: Option<u32>| tid.and_then(id);
        match record {
            PerfRecord::Switch(switch) => {
                let (tid, at) = (tid(switch.sample_id.tid)?, entry.time()?);
                let at = self.time(at, tables, out);
                if let Some(cpu) = switch.sample_id.cpu {
                    self.runs(cpu, tid, &switch, at, tables, out);
                }
                if switch.out && switch.preempted && self.off_cpu.has_samples() {
                    let stacks = &mut self.stacks;
                    self.off_cpu.preempt(tid, |stack| stacks.preempted(stack, tables));
                } else if !switch.out {
                    if let Some(away) = self.off_cpu.enter(tid) {
                        self.back(tid, &away, at, tables, out);
                    }
                }
                None
            }
            // Without a time, it is listed.
            PerfRecord::Fork(fork) if entry.time().is_some() => {
                self.off_cpu.start(tid(Some(fork.tid))?);
                None
            }
            PerfRecord::Exit(exit) => {
                self.deferred.exit(exit.tid);
                self.off_cpu.exit(tid(Some(exit.tid))?);
                None
            }
            PerfRecord::CallchainDeferred(PerfDeferred {
                cookie, callchain, sample_id, ..
            }) => {
                let addresses = callchain.frames().map(|frame| frame.ip).collect();
                let Self { deferred, stacks, .. } = self;
                deferred.join(sample_id.tid?, cookie, addresses, stacks, tables);
                None
            }
            PerfRecord::Lost(lost) if !sched::is_offline(&lost) => {
                self.stats.unfinished += self.off_cpu.forget() as u64;
                None
            }
            PerfRecord::Throttle(_) => {
                self.stats.throttled += 1;
                None
            }
            PerfRecord::Mmap(map) => id(map.pid),
            PerfRecord::Comm(comm) if comm.by_exec => {
                let pid = id(comm.pid)?;
                self.off_cpu.exec(pid);
                Some(pid)
            }
            _ => None,
        }
    }

    /// The call chain of a sample.
    fn chain(&mut self, sample: &Sample<'_>, entry: &Entry<'_>, tables: &mut Tables) -> Chain {
        let chain = self.stacks.stack(sample, entry, tables);
        self.deferred.complete(chain, &mut self.stacks, tables)
    }

    /// Takes the call chain of a record of the scheduler: of the thread that leaves a CPU, or of the
    /// waker. Returns that of the waker.
    fn add_stack(
        &mut self,
        entry: &Entry<'_>,
        at: Timestamp,
        record: &mut Record<'_>,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) -> Chain {
        let left = match record {
            // Samples of switches have it too.
            Record::Switch { .. } if self.off_cpu.has_samples() => return Chain::default(),
            Record::Switch { prev, prev_state, .. } => self.kernel.left(prev.thread, *prev_state),
            Record::Waking { .. } => ThreadState::Unknown,
            _ => return Chain::default(),
        };
        let (pid, chain) = match entry.decode() {
            Some(Ok(PerfRecord::Sample(sample))) if left != ThreadState::Dead => {
                let chain = self.chain(&sample, entry, tables);
                let pid = sample.pid.and_then(id);
                (pid.unwrap_or_default(), Some(chain))
            }
            _ => (0, None),
        };
        match record {
            Record::Switch { prev, next, .. } => {
                if let Some(mut chain) = chain {
                    if left == ThreadState::Preempted {
                        chain = chain.map(|stack| self.stacks.preempted(stack, tables));
                    }
                    if let ThreadRef::Tid(tid) = prev.thread {
                        self.leave(tid, Away { pid, since: at, chain });
                    }
                }
                if let ThreadRef::Tid(tid) = next.thread {
                    if let Some(away) = self.off_cpu.enter(tid) {
                        self.back(tid, &away, at, tables, out);
                    }
                }
                Chain::default()
            }
            Record::Waking { stack, .. } => {
                let chain = chain.unwrap_or_default();
                *stack = chain.stack;
                chain
            }
            _ => Chain::default(),
        }
    }

    /// A thread leaves its CPU. The end of its time away before can be missing.
    fn leave(&mut self, tid: u32, away: Away) {
        let before = self.off_cpu.leave(tid, away);
        self.stats.unfinished += u64::from(before.is_some());
    }

    /// A thread is back on a CPU.
    fn back(
        &mut self,
        tid: u32,
        away: &Away,
        at: Timestamp,
        tables: &mut Tables,
        out: &mut Vec<Event>,
    ) {
        let &Away { pid, since, chain } = away;
        let chain = self.deferred.complete(chain, &mut self.stacks, tables);
        let nanos = u64::try_from(at.nanos_since(since)).unwrap_or_default();
        let event = self.off_cpu.event(tables);
        let record = Record::OffCpu { pid, tid, event, stack: chain.stack, nanos };
        self.push_with(chain, at, &record, tables, out);
    }

    /// A sample of an event that is not of the scheduler.
    fn sample(&mut self, entry: &Entry<'_>, tables: &mut Tables, out: &mut Vec<Event>) {
        let number = entry.session.event_of(entry.raw);
        let event = number.and_then(|number| entry.session.events().get(number));
        let (Some(number), Some(event), Some(Ok(PerfRecord::Sample(sample))), Some(at)) =
            (number, event, entry.decode(), entry.time())
        else {
            self.stats.undecodable += 1;
            return;
        };
        self.stats.samples += 1;
        let at = self.time(at, tables, out);
        let chain = self.chain(&sample, entry, tables);
        let most = usize::from(event.attr.sample_max_stack);
        let frames = sample.callchain.as_ref().map_or(0, |chain| chain.frames().count());
        self.stats.truncated += u64::from(most > 0 && frames >= most);
        let fixed = if event.attr.freq() { 1 } else { event.attr.sample_period };
        let or_idle = |number: Option<u32>| number.and_then(id).unwrap_or(0);
        let (pid, tid) = (or_idle(sample.pid), or_idle(sample.tid));
        if self.off_cpu.is_switch(number) {
            self.leave(tid, Away { pid, since: at, chain });
            return;
        }
        let record = Record::Sample {
            cpu: sample.cpu,
            pid,
            tid,
            event: self.event(number, event, entry.session, tables),
            stack: chain.stack,
            weight: sample.period.unwrap_or(fixed).max(1),
        };
        self.push_with(chain, at, &record, tables, out);
    }

    /// Whether the samples of an event are counted, and not those of a thread that leaves its CPU.
    fn is_sampled(&self, number: usize, event: &perf_data::RecordedEvent) -> bool {
        let attr = &event.attr;
        let is_dummy = attr.type_ == perf_sys::PERF_TYPE_SOFTWARE
            && attr.config == perf_sys::PERF_COUNT_SW_DUMMY;
        // A frequency has the same place.
        attr.sample_period > 0
            && !is_dummy
            && !self.decoder.decodes(event)
            && !self.off_cpu.is_switch(number)
    }

    fn event(
        &mut self,
        number: usize,
        event: &perf_data::RecordedEvent,
        session: &Session,
        tables: &mut Tables,
    ) -> SampledEventId {
        const CLOCKS: [u64; 2] =
            [perf_sys::PERF_COUNT_SW_CPU_CLOCK, perf_sys::PERF_COUNT_SW_TASK_CLOCK];
        if let Some(known) = self.events.get(number).copied().flatten() {
            return known;
        }
        let is_clock =
            event.attr.type_ == perf_sys::PERF_TYPE_SOFTWARE && CLOCKS.contains(&event.attr.config);
        let name = tables.text(event.name.as_bytes());
        let unit = tables.text(if is_clock { b"ns" } else { b"" });
        let mut others = session.events().iter().enumerate().filter(|(other, _)| *other != number);
        let has_others = others.any(|(number, event)| self.is_sampled(number, event));
        let id = tables.add_sampled_event(SampledEvent { name, unit, has_others });
        if self.events.len() <= number {
            self.events.resize(number + 1, None);
        }
        if let Some(known) = self.events.get_mut(number) {
            *known = Some(id);
        }
        id
    }

    /// The executable, cgroup and container of a process.
    fn describe(&mut self, pid: u32, at: Timestamp, tables: &mut Tables, out: &mut Vec<Event>) {
        let at_clock = at.saturating_add_nanos(self.offset.saturating_neg());
        let Some(task) = self.tasks.at(pid, at_clock) else { return };
        let container = task.container().map(|container| container.id).unwrap_or_default();
        let attributes = ProcessAttributes {
            command_line: b"",
            executable: task.executable().unwrap_or_default().as_bytes(),
            build_id: task.build_id().unwrap_or_default(),
            cgroup: task.cgroup().unwrap_or_default().as_bytes(),
            container: container.as_bytes(),
        };
        if attributes != ProcessAttributes::default() {
            self.kernel.push(at, &Record::Process { pid, attributes }, tables, out);
        }
    }

    /// Names a thread that existed at the start.
    fn name_existing(&mut self, entry: &Entry<'_>, tid: u32, comm: &[u8]) {
        // It follows the record that lists the thread.
        if let Some(known) = self.existing.last_mut().filter(|existing| existing.tid == tid) {
            known.comm = comm.to_vec();
        } else if let Some(Ok(PerfRecord::Comm(record))) = entry.decode() {
            let pid = id(record.pid).unwrap_or(tid);
            self.existing.push(Existing { pid, tid, parent: None, comm: comm.to_vec() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Run, SWITCHES, features, sched_migrate_task, sched_switch, sched_waking};
    use crate::{Correlator, Derived, EntityKind, EventKind, Kernel, LossKind, Timestamp};
    use perf_data::{RecordedEvent, perf_event_attr};
    use perf_sys::*;

    /// A sample of the first of these software events: does it have others beside it?
    fn has_others(configs: &[u64]) -> bool {
        let events = (1..).zip(configs).map(|(id, config)| {
            let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, *config);
            attr.sample_type =
                PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU;
            attr.sample_period = 1;
            attr.set_sample_id_all(true);
            attr.set_context_switch(true);
            RecordedEvent { name: format!("event {config}"), attr, ids: vec![id] }
        });
        let mut run = Run::of(events);
        run.push(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER, &[1, 1 | 7 << 32, 10, 0]);
        let sampled = run.events.iter().find_map(|event| match event.kind {
            EventKind::Sample { event, .. } => Some(event),
            _ => None,
        });
        run.tables.sampled_event(sampled.unwrap()).has_others
    }

    #[test]
    fn records_that_are_out_of_order_are_counted() {
        let mut attr = perf_event_attr::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK);
        attr.sample_type =
            PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU;
        attr.sample_period = 1;
        let mut run = Run::of([RecordedEvent { name: "clock".to_owned(), attr, ids: vec![1] }]);
        for time in [10, 30, 20, 30, 29, 40] {
            run.push(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER, &[1, 1 | 7 << 32, time, 0]);
        }
        let samples = run.events.iter().filter_map(|event| match event.kind {
            EventKind::Sample { .. } => Some(event.time.nanos()),
            _ => None,
        });
        assert_eq!(samples.collect::<Vec<_>>(), [10, 30, 30, 30, 30, 40]);
        assert_eq!(run.source.stats().late, 2);
    }

    /// The states before the loss do not last, although no switch was recorded by then.
    #[test]
    fn records_that_are_lost_before_the_first_switch_are_those_of_the_scheduler() {
        let mut run = Run::with([sched_switch(), sched_waking()], features());
        let (by, woken, other) = (5, 7, 9);
        run.waking_of(10_000, 1, by, woken);
        run.lost(SWITCHES, 5_000_000, 1, 1000);
        run.switch_of(5_010_000, 1, (other, 1), woken);
        run.source.finish(&mut run.tables, &mut run.events);
        let loss = (5_000_000, LossKind::SchedulerRecords, 10_000, Some(1000));
        assert_eq!(run.losses(), [loss]);
        let (mut correlator, mut known) = (Correlator::new(), Vec::new());
        let mut each = |derived: Derived<'_>| match derived {
            Derived::Interval(interval) if interval.kernel != Kernel::Unknown => {
                known.push((interval.start.nanos(), interval.end.nanos()));
            }
            _ => {}
        };
        for event in &run.events {
            correlator.push(event, &run.tables.entities, &mut each);
        }
        correlator.finish(&mut each);
        assert_eq!(known, []);
    }

    /// As of `perf sched record`: a thread is woken on the CPU on which it last ran, and the kernel chooses another
    /// one. Without context switches the records are samples.
    #[test]
    fn migrations_say_whose_cpu_a_woken_thread_waits_for() {
        let record = |run: &mut Run| {
            let (woken, first, second, third, sleeping) = (7, 5, 8, 6, 1);
            run.switch_of(1_000, 0, (woken, sleeping), first);
            run.switch_of(2_000, 1, (9, sleeping), second);
            run.waking_of(10_000, 0, first, woken);
            run.migration_of(10_500, woken, 0, 1);
            run.switch_of(12_000, 1, (second, sleeping), third);
            run.switch_of(14_000, 1, (third, sleeping), woken);
        };
        let events = || [sched_switch(), sched_waking(), sched_migrate_task()];
        let mut run = Run::with(events(), features());
        record(&mut run);
        let (mut correlator, mut waits) = (Correlator::new(), Vec::new());
        let mut each = |derived: Derived<'_>| {
            if let Derived::Interval(interval) = derived {
                if let Kernel::Runnable { occupant, .. } = interval.kernel {
                    let by = occupant.thread().and_then(|id| run.tables.entities.get(id));
                    let (start, end) = (interval.start.nanos(), interval.end.nanos());
                    waits.push((start, end, by.map(|by| by.number)));
                }
            }
        };
        for event in &run.events {
            correlator.push(event, &run.tables.entities, &mut each);
        }
        assert_eq!(waits, [(10_000, 12_000, Some(8)), (12_000, 14_000, Some(6))]);
        assert_eq!(run.source.stats().samples, 0);
        let mut run = Run::with(events(), features());
        run.source = run.source.with_wake_ups_only();
        record(&mut run);
        assert_eq!(run.source.stats().samples, 5);
    }

    /// The record of its start is missing.
    #[test]
    fn a_thread_is_one_of_the_process_in_the_record_of_its_name() {
        let mut run = Run::with([sched_switch()], features());
        run.switch_of(10, 0, (0, 0), 8);
        let name = u64::from(b'x');
        run.push(PERF_RECORD_COMM, 0, &[7 | 8 << 32, name, 7 | 8 << 32, 20, 0, SWITCHES]);
        let entities = &run.tables.entities;
        let thread = entities.thread(8).unwrap();
        let process = entities.process_of(thread).and_then(|id| entities.get(id));
        assert_eq!(process.map(|process| process.number), Some(7));
        let start = EventKind::Start { entity: thread };
        let starts = run.events.iter().filter(|event| event.kind == start);
        assert_eq!(starts.map(|event| event.time.nanos()).collect::<Vec<_>>(), [10, 20]);
        assert_eq!(run.tables.get(entities.get(thread).unwrap().name), b"x");
    }

    /// No other record names their processes.
    #[test]
    fn threads_that_leave_a_cpu_or_wake_others_are_of_the_processes_in_the_samples() {
        let mut run = Run::with([sched_switch(), sched_waking()], features());
        run.waking_of(10, 0, 7, 9);
        run.switch_of(20, 1, (8, 1), 9);
        let entities = &run.tables.entities;
        for tid in [7, 8] {
            let process = entities.process(tid);
            assert!(process.is_some());
            assert_eq!(entities.process_of(entities.thread(tid).unwrap()), process);
        }
        assert_eq!(entities.process_of(entities.thread(9).unwrap()), None);
        // It is known at its last switch only, when the thread has exited.
        let ids = 9 | 1 << 32;
        run.push(PERF_RECORD_EXIT, 0, &[ids, ids, 30, 9 | 9 << 32, 30, 1, SWITCHES]);
        run.switch_of(40, 1, (9, 0x10), 0);
        let entities = &run.tables.entities;
        let process = entities.process(9).unwrap();
        assert_eq!(entities.process_of(entities.thread(9).unwrap()), Some(process));
        assert_eq!(entities.get(process).unwrap().end, Some(Timestamp::from_nanos(40)));
    }

    /// A thread other than the main one executes a program: samples have the number of the main thread from then on.
    #[test]
    fn a_thread_that_executes_a_program_becomes_the_main_one() {
        let mut run = Run::with([sched_switch(), sched_waking()], features());
        let pair = |low: u64, high: u64| low | high << 32;
        let (main, thread) = ([pair(7, 1), pair(7, 1)], [pair(7, 7), pair(9, 7)]);
        for (type_, [pids, tids], time) in [
            (PERF_RECORD_FORK, main, 10),
            (PERF_RECORD_FORK, thread, 11),
            (PERF_RECORD_EXIT, main, 30),
        ] {
            if type_ == PERF_RECORD_EXIT {
                run.switch_of(20, 0, (0, 0), 7);
            }
            run.push(type_, 0, &[pids, tids, time, pair(7, 7), time, 0, SWITCHES]);
        }
        run.switch_of(40, 0, (7, 0x20), 9);
        run.switch_of(50, 0, (7, 2), 0);
        assert_eq!(run.source.kernel_stats().unreported, 0);
        let entities = &run.tables.entities;
        let threads = entities.iter().map(|(_, entity)| entity);
        let threads = threads.filter(|e| e.kind == EntityKind::Thread && e.number != 0);
        let ends: Vec<_> = threads.map(|e| (e.number, e.end.map(Timestamp::nanos))).collect();
        assert_eq!(ends, [(7, Some(40)), (9, Some(50)), (7, None)]);
    }

    /// What runs on the CPUs is not known afterwards, also without a switch.
    #[test]
    fn a_recording_of_wake_ups_ends_its_cpus() {
        let ends = |run: &mut Run| {
            run.waking_of(10_000, 1, 5, 7);
            run.source.finish(&mut run.tables, &mut run.events);
            let ends = run.events.iter().filter(|e| matches!(e.kind, EventKind::End { .. }));
            ends.count()
        };
        let mut run = Run::with([sched_switch(), sched_waking()], features());
        assert_eq!(ends(&mut run), 1);
        // Nothing says what runs there.
        let mut run = Run::with([sched_waking()], features());
        run.source = run.source.with_wake_ups_only();
        assert_eq!(ends(&mut run), 0);
    }

    /// No record of the kernel follows the last losses: the count of the event has them.
    #[test]
    fn losses_at_the_end_are_known_by_the_counts_of_events() {
        let end = |run: &mut Run, reported: u64, counted: u64| {
            if reported > 0 {
                run.lost(SWITCHES, 40, 1, reported);
            }
            run.push(PERF_RECORD_LOST_SAMPLES, 0, &[counted, 0, 0, 0, SWITCHES]);
            run.switch_of(50, 1, (7, 1), 0);
            run.source.finish(&mut run.tables, &mut run.events);
            run.losses()
        };
        let scheduler = || Run::with([sched_switch()], features());
        let kind = LossKind::SchedulerRecords;
        assert_eq!(end(&mut scheduler(), 0, 500), [(50, kind, 50, Some(500))]);
        assert_eq!(end(&mut scheduler(), 500, 500), [(40, kind, 40, Some(500))]);
        let mut run = scheduler();
        let all = [(40, kind, 40, Some(300)), (50, kind, 50, Some(200))];
        assert_eq!(end(&mut run, 300, 500), all);
        assert_eq!(run.source.kernel_stats().lost, 500);
        let mut run = scheduler();
        run.source = run.source.with_scheduler_as_samples();
        assert_eq!(end(&mut run, 0, 500), [(50, LossKind::Samples, 50, Some(500))]);
    }

    #[test]
    fn samples_of_one_event_can_be_added_up() {
        const CLOCK: u64 = PERF_COUNT_SW_CPU_CLOCK;
        assert!(has_others(&[CLOCK, PERF_COUNT_SW_PAGE_FAULTS]));
        assert!(!has_others(&[CLOCK]));
        // Neither a dummy nor the switches of an off-CPU profile are samples that are counted.
        assert!(!has_others(&[CLOCK, PERF_COUNT_SW_DUMMY, PERF_COUNT_SW_CONTEXT_SWITCHES]));
    }
}
