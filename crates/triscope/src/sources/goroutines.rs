//! The goroutines of samples, read from the memory of Go programs while they run.

use crate::failure::{Failure, OneLine, Result};
use crate::sources::goroutine_frame::on_goroutine;
use crate::timeline::counted;
use go_flight::{Error, Function, Goroutine, ThreadSample, Unattributed};
use perf_monitor::{
    CallchainContext, ClockDomain, EventBuilder, ProcessEvent, RealtimeThread, Record, RingSet,
    Sample, SampleFlags, Timestamp,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io;
use std::time::Duration;
use trace_export::profile::Label;
use trace_symbols::{Options, Symbolizer};
use trace_timeline::{Entity, EntityId, EntityKind, Event, EventKind, SampleKind, Tables, TextId};

/// Priority of the thread that reads goroutines: the lowest of those before all others.
const PRIORITY: u8 = 1;

/// Maximum number of threads whose last goroutine is kept.
const MAX_THREADS: usize = 1 << 20;

/// Maximum number of goroutines that are found again in the tables.
const MAX_GOROUTINES: usize = 1 << 20;

/// Makes the samples of an event have what goroutines are found by.
pub(crate) fn registers(builder: EventBuilder) -> EventBuilder {
    let Some((g, sp)) = go_flight::Goroutines::goroutine_register() else { return builder };
    let fields = SampleFlags::from_bits_retain(builder.attr().sample_type) | SampleFlags::REGS_USER;
    // Goroutines end: the memory is read after each sample.
    let others = builder.attr().sample_regs_user;
    builder.sample(fields).sample_regs_user(others | 1 << g | 1 << sp).wakeup_events(1)
}

/// The goroutine of a sample.
#[derive(Clone, Debug)]
struct Found {
    pid: u32,
    id: u64,
    /// The entry function.
    entry: TextId,
    labels: Vec<(TextId, Label)>,
}

/// The process, number and entry function of a goroutine.
type Identity = (Option<EntityId>, u64, TextId);

/// The goroutines in the tables, which do not look for an equal one.
#[derive(Debug, Default)]
struct Entities {
    /// By process id.
    all: HashMap<u32, HashMap<Identity, EntityId>>,
    count: usize,
}

impl Entities {
    /// The goroutine of a sample, which is added if it is new.
    fn of(
        &mut self,
        found: &Found,
        process: Option<EntityId>,
        tables: &mut Tables,
    ) -> Option<EntityId> {
        let key = (process, found.id, found.entry);
        if let Some(known) = self.all.get(&found.pid).and_then(|all| all.get(&key)) {
            return Some(*known);
        }
        let number = i64::try_from(found.id).ok()?;
        let goroutine = Entity::new(EntityKind::Goroutine, number);
        let new = tables.entity(goroutine.child_of(process).name(found.entry))?;
        if self.count >= MAX_GOROUTINES {
            *self = Self::default();
        }
        self.all.entry(found.pid).or_default().insert(key, new);
        self.count += 1;
        Some(new)
    }

    /// Another program of the process has other goroutines.
    fn forget(&mut self, pid: u32) {
        self.count -= self.all.remove(&pid).map_or(0, |all| all.len());
    }
}

/// A Go program.
struct Program {
    goroutines: go_flight::Goroutines,
    symbols: Symbolizer,
}

pub(crate) struct Goroutines {
    registers: (u32, u32),
    /// Whether goroutines are the outermost frames.
    are_frames: bool,
    /// Processes; `None` for those whose goroutines are not known.
    programs: HashMap<u32, Option<Program>>,
    /// The goroutines of the last sample of threads.
    last: HashMap<u32, Option<Found>>,
    /// The ids of threads in the innermost PID namespace of their process.
    own_ids: HashMap<u32, u32>,
    entities: Entities,
    attributed: u64,
    unattributed: BTreeMap<Unattributed, u64>,
    realtime: Option<RealtimeThread>,
}

impl Goroutines {
    pub(crate) fn new(are_frames: bool) -> Result<Self> {
        let registers = go_flight::Goroutines::goroutine_register().ok_or_else(|| {
            Failure::new("goroutines of samples are known on amd64 and arm64 only")
        })?;
        Ok(Self {
            registers,
            are_frames,
            programs: HashMap::new(),
            last: HashMap::new(),
            own_ids: HashMap::new(),
            entities: Entities::default(),
            attributed: 0,
            unattributed: BTreeMap::new(),
            // Without the privilege, more goroutines are read too late, and counted.
            realtime: RealtimeThread::begin(PRIORITY).ok(),
        })
    }

    /// Records of the set are passed on without delay.
    pub(crate) fn prepare(set: &mut RingSet) {
        set.set_slack(Duration::ZERO);
    }

    /// Forgets programs and threads.
    pub(crate) fn forget(&mut self) {
        self.programs.clear();
        self.last.clear();
        self.own_ids.clear();
        self.entities = Entities::default();
    }

    /// The program of a process has ended.
    fn ended(&mut self, pid: u32) {
        self.programs.remove(&pid);
        self.entities.forget(pid);
    }

    /// The recording has ended.
    pub(crate) fn finish(&mut self) {
        self.realtime = None;
    }

    /// Learns the goroutine of a sample.
    pub(crate) fn push(&mut self, record: &Record<'_>, tables: &mut Tables) {
        match record {
            Record::Sample(sample) => {
                let tid = sample.tid.unwrap_or_default();
                let found = self.find(sample, tables);
                if self.last.len() < MAX_THREADS || self.last.contains_key(&tid) {
                    self.last.insert(tid, found);
                }
            }
            // Its memory has more code.
            Record::Mmap(perf_monitor::Mmap { pid, .. }) => {
                self.programs.remove(pid);
            }
            // Its memory has another program.
            Record::Comm(perf_monitor::Comm { pid, by_exec: true, .. }) => self.ended(*pid),
            // Its memory is open.
            Record::Exit(ProcessEvent { pid, tid, .. }) if pid == tid => self.ended(*pid),
            // Another thread had the id.
            Record::Fork(ProcessEvent { pid, tid, .. }) => {
                if pid == tid {
                    self.ended(*pid);
                }
                self.last.remove(tid);
                self.own_ids.remove(tid);
            }
            _ => {}
        }
    }

    fn find(&mut self, sample: &Sample<'_>, tables: &mut Tables) -> Option<Found> {
        let (pid, tid, at) = (sample.pid?, sample.tid?, sample.time?);
        let program = self.programs.entry(pid).or_insert_with(|| Program::open(pid)).as_mut()?;
        let registers = sample.regs_user?;
        let (g, sp) = (registers.get(self.registers.0)?, registers.get(self.registers.1)?);
        let chain = sample.callchain.iter().flat_map(perf_monitor::Callchain::frames);
        let callers: Vec<u64> = chain
            .filter(|frame| frame.context == CallchainContext::User)
            .map(|frame| frame.ip)
            .collect();
        let now = perf_monitor::event_now(ClockDomain::Monotonic).unwrap_or(at);
        let own = self.own_ids.get(&tid).copied().unwrap_or_else(|| {
            let own = own_id(pid, tid);
            if self.own_ids.len() < MAX_THREADS {
                self.own_ids.insert(tid, own);
            }
            own
        });
        match program.at(pid, &ThreadSample { tid: own, g, sp, callers: &callers, time: at, now }) {
            Ok(goroutine) => {
                self.attributed += 1;
                Some(program.describe(pid, &goroutine, tables))
            }
            Err(reason) => {
                *self.unattributed.entry(reason).or_default() += 1;
                None
            }
        }
    }

    /// Makes an event that is a sample of a thread one of its goroutine. Returns the labels of the
    /// goroutine.
    pub(crate) fn apply(&mut self, event: &mut Event, tables: &mut Tables) -> &[(TextId, Label)] {
        let EventKind::Sample { entity, thread, stack, kind, .. } = &mut event.kind else {
            return &[];
        };
        let sampled = tables.entities.get(*entity).copied();
        let Some(sampled) = sampled.filter(|entity| entity.kind == EntityKind::Thread) else {
            return &[];
        };
        if !matches!(kind, SampleKind::Cpu | SampleKind::OffCpu) {
            return &[];
        }
        let tid = u32::try_from(sampled.number).ok();
        let Some(found) = tid.and_then(|tid| self.last.get(&tid)?.as_ref()) else { return &[] };
        let process = tables.entities.process_of(*entity);
        let Some(goroutine) = self.entities.of(found, process, tables) else { return &[] };
        (*thread, *entity) = (Some(*entity), goroutine);
        if self.are_frames {
            let number = i64::try_from(found.id).unwrap_or(i64::MAX);
            *stack = on_goroutine(*stack, number, found.entry, tables);
        }
        &found.labels
    }

    /// How many samples have a goroutine, and why others have none.
    pub(crate) fn notes(&self) -> String {
        let missing: u64 = self.unattributed.values().sum();
        if self.attributed + missing == 0 {
            return "; no samples of Go programs: no goroutines".to_owned();
        }
        let all = counted(self.attributed + missing, "sample");
        let mut text = format!("; {} of {all} of Go programs with a goroutine", self.attributed);
        for (reason, count) in &self.unattributed {
            // Writing to a string does not fail.
            let _ = write!(text, ", {count} {reason}");
        }
        text
    }
}

/// The id of a thread as its process knows it.
fn own_id(pid: u32, tid: u32) -> u32 {
    let status = std::fs::read(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    // It has ended: nothing of it is read any more.
    trace_common::innermost_pid(&status).unwrap_or(tid)
}

/// Whether this program or the machine has no file descriptor left.
fn has_no_descriptor(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE]
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
}

impl Program {
    /// Opens a process; `None` if it is no Go program whose goroutines can be read.
    fn open(pid: u32) -> Option<Self> {
        let goroutines = match go_flight::Goroutines::open(pid) {
            Ok(goroutines) => goroutines,
            Err(Error::NotGo | Error::Elf(_)) => return None,
            // It has ended, or is one of another user.
            Err(Error::Process { source, .. }) if !has_no_descriptor(&source) => return None,
            Err(error) => {
                message!(
                    "triscope: goroutines of process {pid} are unknown: {}",
                    OneLine(&error.to_string())
                );
                return None;
            }
        };
        let mut options = Options::default();
        (options.kernel, options.perf_maps, options.lines) = (false, false, false);
        let mut symbols = Symbolizer::new(options);
        symbols.add_process(pid).ok()?;
        Some(Self { goroutines, symbols })
    }

    fn at(
        &mut self,
        pid: u32,
        sample: &ThreadSample<'_>,
    ) -> std::result::Result<Goroutine, Unattributed> {
        let symbols = &mut self.symbols;
        self.goroutines.at(sample, &mut |address| {
            let found = symbols.symbolize(pid, address, Timestamp::MAX);
            let frame = found.frames.ok()?.last()?;
            Some(Function { start: address - frame.offset?, name: frame.symbol.clone() })
        })
    }

    fn describe(&mut self, pid: u32, goroutine: &Goroutine, tables: &mut Tables) -> Found {
        let found = self.symbols.symbolize(pid, goroutine.entry, Timestamp::MAX);
        let entry = found.frames.ok().and_then(|frames| frames.last());
        let entry = entry.map_or(TextId::EMPTY, |frame| tables.text(frame.function.as_bytes()));
        let labels = self.goroutines.labels(goroutine).into_iter().map(|(key, value)| {
            (tables.text(key.as_bytes()), Label::Text(tables.text(value.as_bytes())))
        });
        Found { pid, id: goroutine.id, entry, labels: labels.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_timeline::SampledEventId;

    fn goroutines() -> Goroutines {
        Goroutines {
            registers: (0, 0),
            are_frames: false,
            programs: HashMap::new(),
            last: HashMap::new(),
            own_ids: HashMap::new(),
            entities: Entities::default(),
            attributed: 0,
            unattributed: BTreeMap::new(),
            realtime: None,
        }
    }

    #[test]
    fn samples_of_a_goroutine_are_one_entity_until_its_program_ends() {
        let (mut goroutines, mut tables) = (goroutines(), Tables::new());
        let process = tables.entity(Entity::new(EntityKind::Process, 7)).unwrap();
        let entry = tables.text(b"main.worker");
        let mut thread = |tid: u32, id| {
            let thread = Entity::new(EntityKind::Thread, tid.into()).child_of(Some(process));
            goroutines.last.insert(tid, Some(Found { pid: 7, id, entry, labels: Vec::new() }));
            tables.entity(thread).unwrap()
        };
        let (first, second) = (thread(8, 18), thread(9, 18));
        let other = thread(10, 19);
        let mut sampled = |goroutines: &mut Goroutines, entity| {
            let kind = EventKind::Sample {
                entity,
                kind: SampleKind::Cpu,
                stack: None,
                weight: 1,
                thread: None,
                cpu: None,
                event: SampledEventId::NONE,
                of: None,
            };
            let mut event = Event { time: Timestamp::default(), kind };
            goroutines.apply(&mut event, &mut tables);
            let EventKind::Sample { entity, thread, .. } = event.kind else { return None };
            thread.map(|_| entity)
        };
        let known = sampled(&mut goroutines, first);
        assert!(known.is_some());
        // Also on another thread.
        assert_eq!([first, second].map(|of| sampled(&mut goroutines, of)), [known; 2]);
        assert_ne!(sampled(&mut goroutines, other), known);
        assert_eq!(goroutines.entities.count, 2);
        goroutines.ended(7);
        assert_eq!(goroutines.entities.count, 0);
        assert_ne!(sampled(&mut goroutines, first), known);
    }
}
