//! Ps and threads, and what they execute.

use super::process::rank;
use super::{Context, Drawing};
use crate::lanes::Nest;
use crate::model::{Category, Sink, Track, TrackEvent, TrackId};
use crate::pids;
use std::io;
use trace_common::{IdMap, Timestamp};
use trace_timeline::{EntityId, EntityKind, Interval, SpanId, State, Tables};

/// By the position of their entities.
#[derive(Debug, Default)]
pub(super) struct Executors {
    procs: IdMap<Proc>,
    threads: IdMap<Thread>,
    /// Threads of Go programs, by thread id.
    of_go: IdMap<Option<EntityId>>,
    /// Threads of the kernel, by thread id.
    of_kernel: IdMap<Option<EntityId>>,
}

#[derive(Debug, Default)]
struct Proc {
    track: Option<TrackId>,
    inner: Option<TrackId>,
    /// The goroutine on its track.
    shows: Option<EntityId>,
    /// The thread on whose track it is.
    shown_on: Option<EntityId>,
    nest: Nest<SpanId>,
}

#[derive(Debug, Default)]
struct Thread {
    track: Option<TrackId>,
    /// The goroutine or P on its track.
    shows: Option<EntityId>,
    nest: Nest<SpanId>,
    /// The track of its waits, and the end of the last one.
    waits: Option<(TrackId, Timestamp)>,
}

const fn key(id: EntityId) -> i64 {
    id.index() as i64
}

impl Drawing {
    /// Draws a state of a P: the goroutine that it executes, and the P on its thread. Where the
    /// scheduler was recorded, threads show goroutines instead.
    pub(super) fn proc_state(
        &mut self,
        state: &Interval,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let tables = cx.tables;
        let (id, at) = (state.subject, cx.at);
        if !self.executors.procs.contains(key(id)) {
            self.proc_track(id, cx)?;
        }
        let is_running = state.state == State::Running;
        let holder = state.holder.filter(|_| is_running);
        let is_runtime_thread = |thread: &EntityId| {
            is_running && tables.entities.kind(*thread) == Some(EntityKind::GoThread)
        };
        let known = self.executors.procs.get(key(id));
        // Most states of a P change only the goroutine on it.
        let thread = match (state.thread, known.and_then(|known| known.shown_on)) {
            (Some(thread), Some(on)) if is_running && thread == on => Some(on),
            (thread, _) => thread.filter(is_runtime_thread),
        };
        let Some(proc) = self.executors.procs.get_mut(key(id)) else { return Ok(()) };
        let shown = std::mem::replace(&mut proc.shows, holder);
        let shown_on = std::mem::replace(&mut proc.shown_on, thread);
        let Some(track) = proc.track else { return Ok(()) };
        if shown != holder {
            match holder {
                Some(holder) => {
                    let label = self.label(holder, cx);
                    cx.sink.state(
                        at,
                        track,
                        Some(&TrackEvent::new(label).category(Category::Go)),
                    )?;
                }
                None => cx.sink.state(at, track, None)?,
            }
        }
        if shown_on == thread {
            return Ok(());
        }
        if let Some(before) = shown_on {
            self.leave_thread(before, id, cx)?;
        }
        match thread {
            Some(thread) => self.enter_thread(thread, id, cx),
            None => Ok(()),
        }
    }

    /// Shows a goroutine or P on the track of a thread.
    pub(super) fn enter_thread(
        &mut self,
        thread: EntityId,
        what: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let at = cx.at;
        if self.exit(thread, cx.tables).is_some_and(|exit| exit <= at) {
            return Ok(());
        }
        let Some(track) = self.thread_track(thread, cx)? else { return Ok(()) };
        let label = self.label(what, cx);
        if let Some(thread) = self.executors.threads.get_mut(key(thread)) {
            thread.shows = Some(what);
        }
        cx.sink.state(at, track, Some(&TrackEvent::new(label).category(Category::Go)))
    }

    /// Ends what [`Drawing::enter_thread`] shows, unless something else is there already.
    pub(super) fn leave_thread(
        &mut self,
        thread: EntityId,
        what: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let exit = self.exit(thread, cx.tables);
        let Some(thread) = self.executors.threads.get_mut(key(thread)) else { return Ok(()) };
        match thread.shows.take_if(|shown| *shown == what).and(thread.track) {
            Some(track) => cx.sink.state(exit.map_or(cx.at, |exit| exit.min(cx.at)), track, None),
            None => Ok(()),
        }
    }

    /// A thread ends, and what it shows: a Go trace does not say when its threads end.
    pub(super) fn end_thread(
        &mut self,
        id: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        for id in [Some(id), self.of_go(id, cx.tables)].into_iter().flatten() {
            let Some(thread) = self.executors.threads.get_mut(key(id)) else { continue };
            if let Some(track) = thread.shows.take().and(thread.track) {
                cx.sink.state(cx.at, track, None)?;
            }
        }
        Ok(())
    }

    /// Remembers a thread of the kernel.
    pub(super) fn thread_starts(&mut self, id: EntityId, tables: &Tables) {
        let thread = tables.entities.get(id).filter(|thread| thread.kind == EntityKind::Thread);
        if let Some(thread) = thread {
            *self.executors.of_kernel.insert(thread.number) = Some(id);
        }
    }

    /// When a thread has exited, as the kernel says: from then on it executes nothing. The switch away
    /// from it, at which it ends, may be lost.
    fn exit(&mut self, id: EntityId, tables: &Tables) -> Option<Timestamp> {
        let thread = tables.entities.get(id)?;
        if thread.kind == EntityKind::Thread {
            return thread.end;
        }
        let of_kernel = (*self.executors.of_kernel.get(thread.number)?)?;
        let exit = tables.entities.get(of_kernel)?.end?;
        self.is_same_process(id, of_kernel, tables).then_some(exit)
    }

    /// The thread of a Go program that is this thread of the kernel.
    fn of_go(&mut self, id: EntityId, tables: &Tables) -> Option<EntityId> {
        let thread = tables.entities.get(id).filter(|thread| thread.kind == EntityKind::Thread)?;
        let of_go = (*self.executors.of_go.get(thread.number)?)?;
        self.is_same_process(of_go, id, tables).then_some(of_go)
    }

    fn is_same_process(&mut self, one: EntityId, other: EntityId, tables: &Tables) -> bool {
        let process = |id| tables.entities.get(id).and_then(|thread| thread.parent);
        self.pid(process(one), tables) == self.pid(process(other), tables)
    }

    pub(super) fn proc_track(
        &mut self,
        id: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<TrackId> {
        let tables = cx.tables;
        if let Some(track) = self.executors.procs.get(key(id)).and_then(|proc| proc.track) {
            return Ok(track);
        }
        let entity = tables.entities.get(id);
        let process = entity.and_then(|entity| entity.parent);
        let title = (&b"Procs"[..], rank::PROCS);
        let procs = self.process_group(process, |process| &mut process.procs, title, cx)?;
        let number = entity.map_or(-1, |entity| entity.number);
        let rank = i32::try_from(number).unwrap_or(i32::MAX).saturating_add(1);
        let name = format!("P {number}");
        let track = cx.sink.track(&Track::custom(name.as_bytes()).child_of(procs).rank(rank))?;
        *self.executors.procs.insert(key(id)) = Proc { track: Some(track), ..Proc::default() };
        Ok(track)
    }

    /// The track of a thread of the kernel or of a runtime.
    pub(super) fn thread_track(
        &mut self,
        id: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<Option<TrackId>> {
        let tables = cx.tables;
        if let Some(thread) = self.executors.threads.get(key(id)) {
            return Ok(thread.track);
        }
        let Some(entity) = tables.entities.get(id) else { return Ok(None) };
        let track = match pids::of(entity) {
            Some(tid) => {
                // The process of a kernel thread may not be known.
                let process = entity.parent;
                let pid = self.pid(process, tables);
                if process.is_some() {
                    self.process(process, cx)?;
                }
                let name = tables.get(entity.name);
                let is_m = name.is_empty() && entity.kind == EntityKind::GoThread;
                // The kernel may have a name for it.
                let name = if is_m { b"M" } else { name };
                Some(cx.sink.track(&Track::thread(pid, tid, name).placeholder(is_m))?)
            }
            None => None,
        };
        *self.executors.threads.insert(key(id)) = Thread { track, ..Thread::default() };
        if entity.kind == EntityKind::GoThread {
            *self.executors.of_go.insert(entity.number) = Some(id);
        }
        Ok(track)
    }

    /// Draws a time of a thread away from the CPU, until now. It is below the track of the thread: what a
    /// runtime draws there can begin or end meanwhile.
    pub(super) fn wait(
        &mut self,
        id: EntityId,
        since: Timestamp,
        entry: &TrackEvent<'_>,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        let Some(parent) = self.thread_track(id, cx)? else { return Ok(()) };
        let Some(thread) = self.executors.threads.get_mut(key(id)) else { return Ok(()) };
        let (track, last) = match thread.waits {
            Some(known) => known,
            None => (cx.sink.track(&Track::custom(b"Off CPU").child_of(parent))?, since),
        };
        thread.waits = Some((track, cx.at));
        cx.sink.begin(since.max(last), track, entry)?;
        cx.sink.end(cx.at, track, &[])
    }

    /// The track of slices inside an entity, and its open slices. `None` if it has no track.
    pub(super) fn inner(
        &mut self,
        id: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<Option<(TrackId, &mut Nest<SpanId>)>> {
        let tables = cx.tables;
        match tables.entities.kind(id) {
            Some(EntityKind::Goroutine) => self.inside_goroutine(id, cx),
            Some(EntityKind::Proc) => {
                let track = self.proc_track(id, cx)?;
                let Some(proc) = self.executors.procs.get_mut(key(id)) else { return Ok(None) };
                let inner = match proc.inner {
                    Some(inner) => inner,
                    None => {
                        let inner = Track::custom(b"Sweep").child_of(track);
                        *proc.inner.insert(cx.sink.track(&inner)?)
                    }
                };
                Ok(Some((inner, &mut proc.nest)))
            }
            Some(EntityKind::DotnetThread | EntityKind::GoThread | EntityKind::Thread) => {
                let Some(track) = self.thread_track(id, cx)? else { return Ok(None) };
                let thread = self.executors.threads.get_mut(key(id));
                Ok(thread.map(|thread| (track, &mut thread.nest)))
            }
            _ => Ok(None),
        }
    }

    /// The track of an entity's instants. `None` without a lane.
    pub(super) fn track_of(
        &mut self,
        id: EntityId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<Option<TrackId>> {
        let tables = cx.tables;
        match tables.entities.kind(id) {
            Some(EntityKind::Goroutine) => self.goroutine(id, cx),
            Some(EntityKind::Proc) => self.proc_track(id, cx).map(Some),
            Some(EntityKind::DotnetThread | EntityKind::GoThread | EntityKind::Thread) => {
                self.thread_track(id, cx)
            }
            Some(EntityKind::Cpu | EntityKind::Machine) => self.events_of_cpus(cx).map(Some),
            _ => self.events_track(tables.entities.process_of(id), cx).map(Some),
        }
    }
}
