//! Parts of a trace that are ordered without the events before them.
//!
//! Each generation reports the state of every goroutine and proc at its start. So a generation can
//! be ordered on its own: a state that is reported is assumed to be the state at the end of the
//! previous generation. [`Ordering::is_continued_by`] compares these assumptions with that state
//! when it is known. If they hold, the events of the part are those of a sequential reading, and
//! [`Ordering::join`] is the state after it. If not, the generation has to be read again.
//!
//! A report that cannot be an assumption, as it comes too late, is an error in the part.

use super::state::{GoStatus, Goroutine, Name, ProcStatus, Ranges, Thread};
use super::{Advance, Blocked, Context, GcPhase, MIN_WORK, Ordering};
use crate::error::ErrorKind;
use crate::id::{GoId, ProcId, TaskId, ThreadId};
use crate::id_set::IdSet;
use crate::spec::EventType;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use trace_common::{Limits, SeededState};

/// The state at the start of a part, as far as its events imply it.
#[derive(Debug, Default)]
pub(super) struct Assumed {
    goroutines: HashMap<i64, GoStatus, SeededState>,
    procs: HashMap<i64, ProcStatus, SeededState>,
    /// The goroutine and the proc of each thread, where there is one.
    bound_goroutines: HashMap<i64, GoId, SeededState>,
    bound_procs: HashMap<i64, ProcId, SeededState>,
    /// Procs in a system call that are stolen, and the thread that the theft names.
    stolen: HashMap<i64, ThreadId, SeededState>,
    go_ranges: Vec<(i64, EventType)>,
    proc_ranges: Vec<(i64, EventType)>,
    /// The first event of the mark phase, with its sequence number.
    gc: Option<(EventType, u64)>,
    /// Ends of regions that began before, in order.
    region_ends: Vec<(i64, TaskId, Arc<[u8]>)>,
    /// Tasks that begin in the part (true), or began before and end in it.
    tasks: Vec<(u64, bool)>,
    /// Goroutines that the part creates.
    created: IdSet,
}

/// A number of threads that each part may have looked through, however small it is.
const MAX_THREADS: i64 = 1 << 10;

/// The error of a part that has to be read again.
fn mistaken() -> Blocked {
    ErrorKind::BrokenOrder.into()
}

/// Adds an assumption; there can be one for each key.
fn assume<V>(map: &mut HashMap<i64, V, SeededState>, key: i64, value: V) -> Advance {
    match map.insert(key, value) {
        None => Ok(()),
        Some(_) => Err(mistaken()),
    }
}

impl Thread {
    /// Whether it had events other than reports of states.
    const fn acted(&self) -> bool {
        self.events > self.reports
    }
}

impl Ordering {
    /// The unknown state before the first event of a part.
    pub(crate) fn assuming(limits: &Limits) -> Self {
        Self { assumed: Some(Box::default()), ..Self::new(limits) }
    }

    /// A state is reported by the thread of the context.
    pub(super) fn report(&mut self, c: Context) {
        let thread = &mut self.threads[c.slot];
        thread.reports = thread.reports.wrapping_add(1);
    }

    pub(super) fn assume_goroutine(&mut self, id: GoId, status: GoStatus) -> Advance {
        let Some(assumed) = &mut self.assumed else { return Ok(()) };
        if assumed.created.contains(id.0 as u64) {
            return Err(mistaken());
        }
        assume(&mut assumed.goroutines, id.0, status)
    }

    /// The goroutine has been on the thread since before the part.
    pub(super) fn assume_on_thread(&mut self, slot: usize, id: GoId) -> Advance {
        let Some(assumed) = &mut self.assumed else { return Ok(()) };
        let thread = &self.threads[slot];
        if !thread.id.is_some() || thread.acted() || thread.g.is_some() {
            return Err(mistaken());
        }
        assume(&mut assumed.bound_goroutines, thread.id.0, id)
    }

    pub(super) fn assume_proc(&mut self, c: Context, id: ProcId, status: ProcStatus) -> Advance {
        let Some(assumed) = &mut self.assumed else { return Ok(()) };
        assume(&mut assumed.procs, id.0, status)?;
        if matches!(status, ProcStatus::Running | ProcStatus::Syscall) {
            let thread = &self.threads[c.slot];
            if !thread.id.is_some() || thread.acted() || thread.p.is_some() {
                return Err(mistaken());
            }
            assume(&mut assumed.bound_procs, thread.id.0, id)?;
        }
        Ok(())
    }

    /// A proc of which the thread is unknown is stolen from `m`. Whether the proc was in a system
    /// call before the part, and thus whether it is running until now: that is assumed.
    pub(super) fn assume_stolen(&mut self, p: ProcId, m: ThreadId) -> Result<bool, Blocked> {
        let Some(assumed) = &mut self.assumed else { return Ok(false) };
        let reported = assumed.procs.get(&p.0) == Some(&ProcStatus::SyscallAbandoned);
        if !reported || assumed.stolen.contains_key(&p.0) {
            return Ok(false);
        }
        assumed.stolen.insert(p.0, m);
        match self.known_thread(m) {
            Some(slot) if self.threads[slot].acted() => Err(mistaken()),
            _ => Ok(true),
        }
    }

    pub(super) fn note_created(&mut self, id: i64) {
        if let Some(assumed) = &mut self.assumed {
            assumed.created.insert(id as u64);
        }
    }

    pub(super) fn assume_go_range(&mut self, id: i64, range: EventType) {
        if let Some(assumed) = &mut self.assumed {
            assumed.go_ranges.push((id, range));
        }
    }

    pub(super) fn assume_proc_range(&mut self, id: i64, range: EventType) {
        if let Some(assumed) = &mut self.assumed {
            assumed.proc_ranges.push((id, range));
        }
    }

    /// An event of the mark phase; nothing is assumed if the phase is known.
    pub(super) fn assume_gc(&mut self, c: Context, ty: EventType, seq: u64) -> Advance {
        let Some(assumed) = &mut self.assumed else { return Ok(()) };
        if self.gc_phase == GcPhase::Undetermined {
            assumed.gc = Some((ty, seq));
        } else if ty == EventType::GC_ACTIVE {
            return Err(mistaken());
        }
        c.needs_user_code()
    }

    pub(super) fn assume_region(&mut self, g: GoId, task: TaskId, name: Option<&Arc<[u8]>>) {
        if let Some(assumed) = &mut self.assumed {
            assumed.region_ends.push((g.0, task, name.cloned().unwrap_or_default()));
        }
    }

    pub(super) fn assume_task(&mut self, id: u64, begins: bool) {
        if let Some(assumed) = &mut self.assumed {
            assumed.tasks.push((id, begins));
        }
    }

    /// Whether the state that `part` assumed at its start is this one. It takes time for what the
    /// part reports, and for the threads so far: a small part of many threads is read again.
    pub(crate) fn is_continued_by(&self, part: &Self, max_entries: usize) -> bool {
        let Some(assumed) = &part.assumed else { return false };
        let part_work = part.work.left.saturating_add(MAX_THREADS - MIN_WORK);
        self.threads.len() as i64 <= part_work
            && self.initial_generation != 0
            && self.following.is_empty()
            && self.len() + part.threads.len() <= max_entries
            && self.work.left + (part.work.left - MIN_WORK) >= 0
            && self.has_goroutines(assumed)
            && self.has_procs(assumed)
            && self.has_threads(assumed, part)
            && self.has_gc(assumed)
            && self.has_regions(assumed)
            && self.has_tasks(assumed)
    }

    fn has_goroutines(&self, assumed: &Assumed) -> bool {
        let has = |(id, status): (&i64, &GoStatus)| {
            self.goroutines.get(*id).is_some_and(|goroutine| goroutine.status == *status)
        };
        // They are all, if the numbers are the same and each is there.
        let all = assumed.goroutines.keys();
        let ranges = all.filter_map(|id| self.goroutines.get(*id)?.ranges());
        let has_range = |(id, range): &(i64, EventType)| {
            let ranges = self.goroutines.get(*id).and_then(Goroutine::ranges);
            ranges.is_some_and(|ranges| ranges.has(*range))
        };
        assumed.goroutines.len() == self.goroutines.len()
            && assumed.goroutines.iter().all(has)
            && ranges.map(Ranges::len).sum::<usize>() == assumed.go_ranges.len()
            && assumed.go_ranges.iter().all(has_range)
    }

    fn has_procs(&self, assumed: &Assumed) -> bool {
        use ProcStatus::{Syscall, SyscallAbandoned};
        let has = |(id, status): (&i64, &ProcStatus)| {
            let proc = self.procs.get(*id).map(|proc| proc.status);
            proc.is_some_and(|proc| match (proc, *status) {
                (Syscall, SyscallAbandoned) => true,
                (SyscallAbandoned, _) => false,
                (proc, status) => proc == status,
            })
        };
        let ranges = assumed.procs.keys().filter_map(|id| self.procs.get(*id));
        let has_range = |(id, range): &(i64, EventType)| {
            self.procs.get(*id).is_some_and(|proc| proc.ranges.has(*range))
        };
        assumed.procs.len() == self.procs.len()
            && assumed.procs.iter().all(has)
            && ranges.map(|proc| proc.ranges.len()).sum::<usize>() == assumed.proc_ranges.len()
            && assumed.proc_ranges.iter().all(has_range)
    }

    fn has_threads(&self, assumed: &Assumed, part: &Self) -> bool {
        let (mut goroutines, mut procs, mut reported) = (0, 0, 0);
        for thread in self.threads.iter() {
            if thread.g.is_some() {
                goroutines += 1;
                if assumed.bound_goroutines.get(&thread.id.0) != Some(&thread.g) {
                    return false;
                }
            }
            if !thread.p.is_some() {
                continue;
            }
            if assumed.procs.get(&thread.p.0) != Some(&ProcStatus::SyscallAbandoned) {
                procs += 1;
                if assumed.bound_procs.get(&thread.id.0) != Some(&thread.p) {
                    return false;
                }
                continue;
            }
            reported += 1;
            // Until its proc is stolen, the thread does nothing.
            let holds = match assumed.stolen.get(&thread.p.0) {
                Some(m) => *m == thread.id,
                None => part.known_thread(thread.id).is_none_or(|m| !part.threads[m].acted()),
            };
            if !holds {
                return false;
            }
        }
        let abandoned = |status: &&ProcStatus| **status == ProcStatus::SyscallAbandoned;
        assumed.bound_goroutines.len() == goroutines
            && assumed.bound_procs.len() == procs
            && assumed.procs.values().filter(abandoned).count() == reported
    }

    fn has_gc(&self, assumed: &Assumed) -> bool {
        match assumed.gc {
            None => true,
            Some((EventType::GC_ACTIVE, seq)) => {
                self.gc_phase == GcPhase::Running && seq == self.gc_seq.wrapping_add(1)
            }
            Some((_, seq)) => {
                self.gc_phase == GcPhase::NotRunning && seq == self.gc_seq.wrapping_add(1)
            }
        }
    }

    fn has_regions(&self, assumed: &Assumed) -> bool {
        let mut ended: HashMap<i64, usize, SeededState> = HashMap::default();
        assumed.region_ends.iter().all(|(id, task, name)| {
            let ended = ended.entry(*id).or_default();
            let open = self.goroutines.get(*id).map_or(&[][..], Goroutine::regions);
            let innermost = open.len().checked_sub(*ended + 1).and_then(|index| open.get(index));
            *ended += 1;
            innermost.is_none_or(|region| {
                // This state is that at the end of a generation.
                region.task == *task && matches!(&region.name, Name::Kept(kept) if kept == name)
            })
        })
    }

    fn has_tasks(&self, assumed: &Assumed) -> bool {
        let mut ended: HashSet<u64, SeededState> = HashSet::default();
        assumed.tasks.iter().all(|(id, begins)| match begins {
            true => ended.contains(id) || !self.tasks.contains_key(id),
            false => {
                ended.insert(*id);
                true
            }
        })
    }

    /// The state after a part that continues this one.
    pub(crate) fn join(mut self, mut part: Self) -> Self {
        let Some(assumed) = part.assumed.take() else { return part };
        for (id, ..) in &assumed.region_ends {
            if let Some(goroutine) = self.goroutines.get_mut(*id) {
                goroutine.open().regions.pop();
            }
        }
        // The part reports all goroutines.
        for id in assumed.goroutines.keys().copied() {
            let regions = self.goroutines.get_mut(id).map(Goroutine::take_regions);
            let Some(regions) = regions.filter(|regions| !regions.is_empty()) else { continue };
            if let (false, Some(goroutine)) =
                (assumed.created.contains(id as u64), part.goroutines.get_mut(id))
            {
                goroutine.open().regions.splice(..0, regions);
            }
        }
        for (id, begins) in &assumed.tasks {
            if !begins {
                self.tasks.remove(id);
            }
        }
        self.tasks.extend(part.tasks.drain());
        part.tasks = self.tasks;
        if assumed.gc.is_none() {
            (part.gc_seq, part.gc_phase) = (self.gc_seq, self.gc_phase);
        }
        for thread in self.threads.iter() {
            let is_new = !part.thread_index.contains_key(&thread.id.0);
            let slot = part.slot_of(thread.id) as usize;
            let joined = &mut part.threads[slot];
            joined.seen |= thread.seen;
            if is_new {
                (joined.g, joined.p) = (thread.g, thread.p);
            }
            let reported = assumed.procs.get(&thread.p.0) == Some(&ProcStatus::SyscallAbandoned);
            if thread.p.is_some() && reported && !assumed.stolen.contains_key(&thread.p.0) {
                joined.p = thread.p;
                if let Some(proc) = part.procs.get_mut(thread.p.0) {
                    proc.status = ProcStatus::Syscall;
                }
            } else if is_new && reported {
                joined.p = ProcId::NONE;
            }
        }
        part.initial_generation = self.initial_generation;
        part.work.left = self.work.left + (part.work.left - MIN_WORK);
        part
    }
}
