//! Processes and their threads.

use super::{Cpu, DEFAULT_PRIO, KernelSource, ProcessAttributes, Running, Task, Thread, ThreadRef};
use crate::entity::{Attribute, Entity, EntityId, EntityKind};
use crate::event::{EventKind, ThreadState};
use crate::sources::pusher::Pusher;
use crate::tables::{Tables, TextId};
use trace_common::Timestamp;

impl KernelSource {
    /// The thread that a record names; `None` for the idle thread and for one that is not of interest.
    pub(super) fn named(&mut self, thread: ThreadRef, push: &mut Pusher<'_>) -> Option<EntityId> {
        self.thread(thread.tid()?, push)
    }

    #[inline]
    pub(super) fn known(&self, tid: u32) -> Option<&Thread> {
        self.threads.get(tid.into())?.as_ref()
    }

    /// The thread with this id; `None` for the idle thread.
    pub(super) fn thread(&mut self, tid: u32, push: &mut Pusher<'_>) -> Option<EntityId> {
        if tid == 0 {
            return None;
        }
        if let Some(thread) = self.mentioned(tid) {
            return Some(thread.entity);
        }
        self.add(tid, Entity::new(EntityKind::Thread, tid.into()), push)
    }

    /// A known thread, of which more than a listing is known now.
    #[inline]
    pub(super) fn mentioned(&mut self, tid: u32) -> Option<&mut Thread> {
        let thread = self.threads.get_mut(tid.into())?.as_mut()?;
        thread.is_listed_only = false;
        Some(thread)
    }

    /// The thread of a sample, which says of which process it is.
    pub(super) fn sampled(
        &mut self,
        pid: u32,
        tid: u32,
        push: &mut Pusher<'_>,
    ) -> Option<EntityId> {
        let known = self.known(tid);
        if tid != 0 && !known.is_some_and(|thread| thread.is_in_process) {
            // A record of its name may have come before.
            let known = known.and_then(|thread| push.tables.entities.get(thread.entity));
            let comm = known.map_or_else(Vec::new, |thread| push.tables.get(thread.name).to_vec());
            self.fork(pid, tid, None, &comm, false, push);
        }
        self.thread(tid, push)
    }

    pub(super) fn add(
        &mut self,
        tid: u32,
        entity: Entity,
        push: &mut Pusher<'_>,
    ) -> Option<EntityId> {
        let entity = match self.adopt_thread(entity, push) {
            Some(known) => known,
            None => push.start(entity)?,
        };
        self.insert(tid, entity, push);
        Some(entity)
    }

    fn insert(&mut self, tid: u32, entity: EntityId, push: &Pusher<'_>) {
        let process = push.tables.entities.get(entity).and_then(|entity| entity.parent);
        if let Some(process) = process {
            self.living.entry(process).or_default().insert(tid);
        }
        let is_in_process = process.is_some();
        let thread = Thread {
            entity,
            exit: None,
            is_in_process,
            is_listed_only: false,
            has_ended: false,
            cpu: None,
        };
        *self.threads.insert(tid.into()) = Some(thread);
    }

    pub(super) fn fork(
        &mut self,
        pid: u32,
        tid: u32,
        parent: Option<(u32, u32)>,
        comm: &[u8],
        is_new: bool,
        push: &mut Pusher<'_>,
    ) {
        let mut is_other_process = false;
        if is_new {
            if self.start_listed(pid, tid, parent, push) {
                return;
            }
            self.end(tid, push); // an existing one is another thread
            // The start of the other process can be missing.
            is_other_process = pid == tid || self.has_ended(pid, push);
            if is_other_process {
                self.headless.remove(&pid);
                self.end_process(pid, push);
            }
        }
        let inherited = parent.and_then(|(_, tid)| self.name_of(tid, push.tables));
        let name = match (comm, inherited) {
            (b"", Some(name)) => name,
            _ => push.tables.text(comm),
        };
        let process = match self.processes.get(&pid) {
            Some(process) if !is_other_process => {
                let process = *process;
                self.complete(process, tid == pid, name, parent, push);
                Some(process)
            }
            _ if pid == tid => self.add_process(pid, name, parent, is_new, push),
            // Its start was not recorded. It has the name of its main thread.
            _ => {
                // Its main thread was only in switches.
                let has_main = self.known(pid).is_some_and(|main| {
                    let known = push.tables.entities.get(main.entity);
                    main.exit.is_none() && known.is_some_and(|known| known.end.is_none())
                });
                let main = self.name_of(pid, push.tables);
                let name = main.filter(|_| has_main || !is_other_process).unwrap_or_default();
                let process = self.add_process(pid, name, parent, false, push);
                if let Some(process) = process.filter(|_| has_main) {
                    self.join(pid, process, name, push);
                }
                process
            }
        };
        if self.known(tid).is_some() {
            // Seen in a switch before it was listed.
            if let Some(process) = process {
                self.join(tid, process, name, push);
            }
            return;
        }
        let mut thread = Entity::new(EntityKind::Thread, tid.into());
        thread = thread.child_of(process).name(name);
        thread.start = Some(push.at).filter(|_| is_new);
        self.add(tid, thread, push);
        if let Some(thread) = self.threads.get_mut(tid.into()).and_then(Option::as_mut) {
            thread.is_listed_only = !is_new;
        }
    }

    /// Whether the process with this id has ended, with its main thread and all others that are known.
    fn has_ended(&self, pid: u32, push: &Pusher<'_>) -> bool {
        let process = self.processes.get(&pid).filter(|_| self.headless.contains(&pid));
        let known = process.and_then(|process| push.tables.entities.get(*process));
        known.and_then(|known| known.end).is_some_and(|end| end <= push.at)
    }

    /// The name of a thread that is known.
    fn name_of(&self, tid: u32, tables: &Tables) -> Option<TextId> {
        let thread = self.known(tid)?;
        tables.entities.get(thread.entity).map(|entity| entity.name)
    }

    /// A process that is not known yet. The parent of another thread than the main one is the process itself.
    fn add_process(
        &mut self,
        pid: u32,
        name: TextId,
        parent: Option<(u32, u32)>,
        is_new: bool,
        push: &mut Pusher<'_>,
    ) -> Option<EntityId> {
        let parent = parent.filter(|(parent, _)| *parent != pid);
        let parent = parent.and_then(|(parent, _)| self.parent(parent, push));
        let start = Some(push.at).filter(|_| is_new);
        let process = Entity::new(EntityKind::Process, pid.into());
        let process = process.child_of(parent).name(name).start(start);
        let process = self.adopt(process, push).or_else(|| push.start(process))?;
        self.processes.insert(pid, process);
        if let Some(parent) = parent {
            inherit(process, parent, push);
        }
        Some(process)
    }

    /// A recorder lists the threads of a process after its records have begun, and puts them before all
    /// others: the creation of a thread can follow. If records were lost, the end of another one that had
    /// its id can be among them.
    fn start_listed(
        &mut self,
        pid: u32,
        tid: u32,
        parent: Option<(u32, u32)>,
        push: &mut Pusher<'_>,
    ) -> bool {
        let has_lost = self.stats.lost > 0;
        let process = self.processes.get(&pid).copied();
        let thread = self.threads.get_mut(tid.into()).and_then(Option::as_mut);
        let Some(thread) = thread.filter(|thread| thread.is_listed_only && !has_lost) else {
            return false;
        };
        let entities = &mut push.tables.entities;
        let known = entities.get_mut(thread.entity);
        let is_listed = |known: &&mut Entity| known.parent == process && known.end.is_none();
        let Some(known) = known.filter(is_listed) else { return false };
        thread.is_listed_only = false;
        let entity = thread.entity;
        // Another recording may know the start.
        let is_found = known.start.is_none();
        known.start.get_or_insert(push.at);
        let process = process.filter(|_| pid == tid);
        if let Some(id) = process {
            let name = known.name;
            self.complete(id, true, name, parent, push);
            if let Some(process) = push.tables.entities.get_mut(id) {
                process.start.get_or_insert(push.at);
                if let Some(parent) = process.parent {
                    inherit(id, parent, push);
                }
            }
        }
        if is_found {
            push.event(EventKind::Start { entity });
        }
        true
    }

    /// A known thread is one of this process, unless its process is known already.
    fn join(&mut self, tid: u32, process: EntityId, name: TextId, push: &mut Pusher<'_>) {
        let thread = self.threads.get_mut(tid.into()).and_then(Option::as_mut);
        let Some(thread) = thread.filter(|thread| !thread.is_in_process) else { return };
        thread.is_in_process = true;
        if thread.exit.is_none() {
            self.living.entry(process).or_default().insert(tid);
        }
        let entity = thread.entity;
        let Some(known) = push.tables.entities.get_mut(entity) else { return };
        (known.parent, known.name) = (Some(process), name);
        // Runtime threads can be related by it.
        if known.end.is_none() {
            push.event(EventKind::Start { entity });
        }
    }

    /// The process of a parent; `None` for the idle process.
    pub(super) fn parent(&mut self, pid: u32, push: &mut Pusher<'_>) -> Option<EntityId> {
        if pid == 0 {
            return None;
        }
        if let Some(process) = self.processes.get(&pid) {
            return Some(*process);
        }
        let process = push.process(Some(pid), b"");
        self.processes.extend(process.map(|process| (pid, process)));
        process
    }

    /// A process that existed already, and of which only the number is known so far.
    pub(super) fn complete(
        &mut self,
        process: EntityId,
        is_main: bool,
        name: TextId,
        parent: Option<(u32, u32)>,
        push: &mut Pusher<'_>,
    ) {
        let known = push.tables.entities.get(process).copied();
        let Some(known) = known.filter(|known| is_main && known.start.is_none()) else { return };
        let parent = match (known.parent, parent) {
            (None, Some((parent, _))) => self.parent(parent, push).filter(|id| *id != process),
            (parent, _) => parent,
        };
        if let Some(entity) = push.tables.entities.get_mut(process) {
            entity.parent = parent;
            if entity.name.is_empty() {
                entity.name = name;
            }
        }
    }

    pub(super) fn describe(
        &mut self,
        pid: u32,
        known: &ProcessAttributes<'_>,
        push: &mut Pusher<'_>,
    ) {
        let process = match self.processes.get(&pid) {
            Some(process) => Some(*process),
            None => push.process(Some(pid), b""),
        };
        self.processes.extend(process.map(|process| (pid, process)));
        let build_id: String = known.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        for (attribute, value) in [
            (Attribute::CommandLine, known.command_line),
            (Attribute::Executable, known.executable),
            (Attribute::BuildId, build_id.as_bytes()),
            (Attribute::Cgroup, known.cgroup),
            (Attribute::Container, known.container),
        ] {
            describe(process, attribute, value, push);
        }
    }

    /// A process that another source, which is read ahead, has found before: that of a runtime or
    /// of another recording.
    pub(super) fn adopt(&self, process: Entity, push: &mut Pusher<'_>) -> Option<EntityId> {
        let at = push.at;
        let entities = &mut push.tables.entities;
        let id = entities.shared(EntityKind::Process, process.number)?;
        // Another recording may have renamed it already.
        let main = entities.shared(EntityKind::Thread, process.number);
        let is_of_kernel = main.is_some_and(|main| entities.process_of(main) == Some(id));
        let known = entities.get_mut(id)?;
        let pid = u32::try_from(process.number).ok()?;
        if self.processes.get(&pid) == Some(&id) || !is_same(known, process.start, at) {
            return None; // the process id is used again
        }
        known.parent = process.parent.or(known.parent);
        known.start = known.start.or(process.start);
        if !process.name.is_empty() && !is_of_kernel {
            known.name = process.name;
        }
        if !is_of_kernel {
            push.event(EventKind::Start { entity: id });
        }
        Some(id)
    }

    /// A thread that another source, which is read ahead, has found before. Its start there may be later
    /// than its first record here.
    pub(super) fn adopt_thread(&self, thread: Entity, push: &mut Pusher<'_>) -> Option<EntityId> {
        let at = push.at;
        let id = push.tables.entities.shared(EntityKind::Thread, thread.number)?;
        let known = push.tables.entities.get_mut(id)?;
        // The end of one of another process can be in neither recording, or follow.
        let is_of_other = known.parent.zip(thread.parent).is_some_and(|(known, own)| known != own);
        if is_of_other || !is_same(known, thread.start, at) {
            return None;
        }
        known.start = known.start.or(thread.start);
        if known.parent.is_none() {
            (known.parent, known.name) = (thread.parent, thread.name);
        }
        push.event(EventKind::Start { entity: id });
        Some(id)
    }

    /// A thread exits. The switch away from it, which is its end, can be missing.
    pub(super) fn exit(&mut self, tid: u32, push: &mut Pusher<'_>) {
        let Some(thread) = self.threads.get_mut(tid.into()).and_then(Option::as_mut) else {
            return;
        };
        if thread.exit.is_some() {
            return;
        }
        thread.exit = Some(push.at);
        let known = push.tables.entities.get_mut(thread.entity);
        // Another recording may have ended it.
        let Some(known) = known.filter(|thread| thread.end.is_none()) else { return };
        known.end = Some(push.at);
        let process = known.parent;
        self.leave(process, tid, push);
        if process.is_some() && self.processes.get(&tid) == process.as_ref() {
            self.headless.insert(tid);
        }
        if self.has_switch_records || self.is_without_switches {
            self.end_at_exit(tid, push);
        } else {
            self.exiting.insert(tid);
        }
    }

    /// Records are lost, and the switches away from threads that have exited can be among them. One that has a CPU
    /// by the other records leaves it later. The number of one that has ended is known until the next loss: the CPU that
    /// it waits for can still be recorded.
    pub(super) fn end_exited(&mut self, push: &mut Pusher<'_>) {
        let Self { exiting, cpus, threads, .. } = self;
        exiting.retain(|tid| {
            let Some(thread) = threads.get_mut((*tid).into()).and_then(Option::as_mut) else {
                return false;
            };
            let cpu = thread.cpu.and_then(|number| cpus.get(number as usize)?.as_ref());
            if cpu.is_some_and(|cpu| cpu.running == Running::tid(*tid)) {
                return true;
            }
            if thread.has_ended {
                // Late records of it have come by now.
                if let Some(known) = threads.remove((*tid).into()) {
                    *known = None;
                }
                return false;
            }
            thread.has_ended = true;
            // Its entity has the time of the exit.
            push.event(EventKind::End { entity: thread.entity });
            true
        });
    }

    /// A thread that exits leaves its CPU, as no record says that it does.
    fn end_at_exit(&mut self, tid: u32, push: &mut Pusher<'_>) {
        let Some(thread) = self.threads.get_mut(tid.into()).and_then(Option::as_mut) else {
            return;
        };
        thread.has_ended = true;
        let entity = thread.entity;
        if let Some((_, cpu)) = self.cpu_of(tid) {
            cpu.running = Running::Unknown;
            push.event(EventKind::Switch {
                cpu: cpu.entity,
                prev: Some(entity),
                left: ThreadState::Dead,
                next: None,
                is_next_unknown: true,
                prio: DEFAULT_PRIO,
            });
        }
        push.end(entity);
    }

    /// The CPU that a thread has by the records so far, and its number.
    fn cpu_of(&mut self, tid: u32) -> Option<(u32, &mut Cpu)> {
        let number = self.known(tid)?.cpu?;
        let cpu = self.cpus.get_mut(number as usize)?.as_mut()?;
        (cpu.running == Running::tid(tid)).then_some((number, cpu))
    }

    /// Whether a thread has left this CPU when it ended.
    pub(super) fn has_left_at_exit(&self, cpu: u32, tid: u32) -> bool {
        let cpu = self.cpus.get(cpu as usize).and_then(Option::as_ref);
        self.known(tid).is_some_and(|thread| thread.has_ended)
            && cpu.is_none_or(|cpu| cpu.running != Running::tid(tid))
    }

    pub(super) fn end(&mut self, tid: u32, push: &mut Pusher<'_>) {
        let Some(thread) = self.threads.remove(tid.into()).and_then(Option::take) else { return };
        self.exiting.remove(&tid);
        let Some(known) = push.tables.entities.get(thread.entity).copied() else { return };
        if thread.has_ended || known.end.is_some() && known.end != thread.exit {
            return; // at its exit, or another recording has ended it
        }
        push.end(thread.entity);
        match (known.end, known.parent) {
            (None, process) => self.leave(process, tid, push),
            // It has left the process, which may have ended with it.
            (Some(_), Some(process)) if !self.living.contains_key(&process) => {
                self.end_of(process, push);
            }
            _ => {}
        }
    }

    /// A thread that calls `execve(2)` becomes the main thread, whose end was recorded. The end of the thread
    /// with its former id is not.
    pub(super) fn exec(&mut self, pid: u32, push: &mut Pusher<'_>) {
        let is_running = |main: &Thread| main.exit.is_none() && main.is_in_process;
        let has_main = self.known(pid).is_some_and(is_running);
        let process = self.processes.get(&pid).copied().filter(|_| !has_main);
        let Some(process) = process else { return };
        self.headless.remove(&pid);
        let name = {
            let entities = &mut push.tables.entities;
            let Some(known) = entities.get_mut(process) else { return };
            known.end = None;
            known.name
        };
        // An entity without a process is the new thread: its id was seen before.
        if self.known(pid).is_some_and(|main| main.exit.is_some()) {
            self.end(pid, push);
        }
        let former = self.living_threads(process, push.tables);
        let seen = self.known(pid).map(|thread| thread.entity);
        let next = seen.or_else(|| {
            let entity = push.start(Entity::new(EntityKind::Thread, pid.into()))?;
            self.insert(pid, entity, push);
            Some(entity)
        });
        self.join(pid, process, name, push);
        if let Some(thread) = next.and_then(|next| push.tables.entities.get_mut(next)) {
            thread.start = Some(push.at);
        }
        for tid in former {
            let prev = self.known(tid).map(|thread| thread.entity);
            if let Some((number, cpu)) = self.cpu_of(tid) {
                cpu.running = Running::tid(pid);
                push.event(EventKind::Switch {
                    cpu: cpu.entity,
                    prev,
                    left: ThreadState::Dead,
                    next,
                    is_next_unknown: false,
                    prio: DEFAULT_PRIO,
                });
                self.set_cpu(ThreadRef::Tid(pid), Some(number));
            }
            self.end(tid, push);
        }
    }

    /// Whether the thread with this id is another one that is about to execute a program: it has the id of the
    /// main thread from then on. The record of its new name comes later.
    pub(super) fn becomes_main(
        &mut self,
        former: ThreadRef,
        next: ThreadRef,
        push: &mut Pusher<'_>,
    ) -> bool {
        let (ThreadRef::Tid(former), ThreadRef::Tid(tid)) = (former, next) else { return false };
        let thread = self.known(former).filter(|thread| thread.exit.is_none());
        let process = thread.and_then(|thread| push.tables.entities.get(thread.entity)?.parent);
        let is_main = self.headless.contains(&tid) && process.as_ref() == self.processes.get(&tid);
        if is_main {
            self.exec(tid, push);
        }
        is_main
    }

    /// The threads of a process that have not ended.
    fn living_threads(&self, process: EntityId, tables: &Tables) -> Vec<u32> {
        let is_living = |tid: &u32| {
            let thread = self.known(*tid).filter(|thread| thread.exit.is_none());
            thread.and_then(|thread| tables.entities.get(thread.entity)?.parent) == Some(process)
        };
        self.living.get(&process).into_iter().flatten().copied().filter(is_living).collect()
    }

    /// A thread leaves its process. The main thread can do it before the others.
    pub(super) fn leave(&mut self, process: Option<EntityId>, tid: u32, push: &mut Pusher<'_>) {
        let Some(process) = process else { return };
        let living = self.living.get_mut(&process);
        let is_last = living.is_some_and(|living| {
            living.remove(&tid);
            living.is_empty()
        });
        if is_last {
            self.living.remove(&process);
            self.end_of(process, push);
        }
    }

    pub(super) fn end_of(&self, process: EntityId, push: &mut Pusher<'_>) {
        if let Some(process) = push.tables.entities.get_mut(process) {
            process.end = Some(push.at);
        }
    }

    /// The process id is used again: the ends of its threads were not recorded.
    pub(super) fn end_process(&mut self, pid: u32, push: &mut Pusher<'_>) {
        let Some(process) = self.processes.get(&pid) else { return };
        self.living.remove(process);
        let process = push.tables.entities.get_mut(*process);
        if let Some(process) = process.filter(|process| process.end.is_none()) {
            // Another recording may have found the new process already.
            if process.start.is_none_or(|start| start < push.at) {
                process.end = Some(push.at);
            }
        }
    }

    /// The name of a thread in a tracepoint. Returns the thread, if it has one.
    #[inline]
    pub(super) fn comm_of(&mut self, task: &Task<'_>, push: &mut Pusher<'_>) -> Option<EntityId> {
        self.comm(task.thread.tid()?, task.comm, push)
    }

    /// The current name of a thread. Returns the thread, unless the name is empty.
    pub(super) fn comm(
        &mut self,
        tid: u32,
        comm: &[u8],
        push: &mut Pusher<'_>,
    ) -> Option<EntityId> {
        if tid == 0 || comm.is_empty() {
            return None;
        }
        let entity = self.thread(tid, push)?;
        let tables = &mut *push.tables;
        let thread = tables.entities.get(entity)?;
        if tables.get(thread.name) == comm {
            return Some(entity);
        }
        let process = thread.parent.filter(|_| self.processes.get(&tid) == thread.parent.as_ref());
        let name = tables.text(comm);
        for id in [Some(entity), process].into_iter().flatten() {
            if let Some(entity) = tables.entities.get_mut(id) {
                entity.name = name;
            }
        }
        Some(entity)
    }
}

/// Whether a process or thread that starts now, or exists now without a known start, is a known one.
fn is_same(known: &Entity, start: Option<Timestamp>, at: Timestamp) -> bool {
    /// Each recording takes the time of a start on its own.
    const TOLERANCE: u64 = 1_000_000;
    // One that ends now is followed by another one.
    let is_alive = known.end.is_none_or(|end| end > at);
    let is_start = match (known.start, start) {
        (Some(known), Some(start)) => known.nanos_since(start).unsigned_abs() < TOLERANCE,
        _ => true,
    };
    is_alive && is_start
}

/// Attributes of the program that a process executes.
pub(super) const PROGRAM: [Attribute; 3] =
    [Attribute::CommandLine, Attribute::Executable, Attribute::BuildId];

/// A new process has the program and the cgroup of its parent.
fn inherit(process: EntityId, parent: EntityId, push: &mut Pusher<'_>) {
    let entities = &mut push.tables.entities;
    for attribute in PROGRAM.into_iter().chain([Attribute::Cgroup, Attribute::Container]) {
        // Another source can know better.
        if entities.attribute(process, attribute).is_none() {
            if let Some(value) = entities.attribute(parent, attribute) {
                entities.describe(process, attribute, value);
            }
        }
    }
}

/// Sets an attribute that is known.
pub(super) fn describe(
    entity: Option<EntityId>,
    attribute: Attribute,
    value: &[u8],
    push: &mut Pusher<'_>,
) {
    if let Some(entity) = entity.filter(|_| !value.is_empty()) {
        let value = push.tables.text(value);
        push.tables.entities.describe(entity, attribute, value);
    }
}
