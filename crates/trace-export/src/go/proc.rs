//! Procs and threads: the goroutine that each P runs, and the P that each thread runs.

use super::goroutine::Place;
use super::{GoSource, Layout};
use crate::intern::TextId;
use crate::lanes::Nest;
use crate::model::{Sink, Track, TrackEvent, TrackId};
use gotrace::{Event, GoId, ProcId, ProcState, StateTransition, ThreadId};
use std::io;
use trace_common::Timestamp;

#[derive(Debug)]
pub(super) struct Proc {
    pub(super) track: TrackId,
    pub(super) sweep_track: Option<TrackId>,
    pub(super) sweep: Nest,
    /// `P 3`.
    pub(super) label: TextId,
    running: GoId,
    pub(super) thread: ThreadId,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) track: TrackId,
    pub(super) proc: ProcId,
}

impl GoSource {
    pub(super) fn proc_mut(
        &mut self,
        id: ProcId,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<&mut Proc> {
        if !self.procs.contains_key(&id) {
            let name = format!("P {id}");
            let rank = i32::try_from(id.0).unwrap_or(i32::MAX).saturating_add(1);
            let track = Track::custom(name.as_bytes()).child_of(layout.procs).rank(rank);
            let proc = Proc {
                track: sink.track(&track)?,
                sweep_track: None,
                sweep: Nest::default(),
                label: sink.text(name.as_bytes()),
                running: GoId::NONE,
                thread: ThreadId::NONE,
            };
            self.procs.insert(id, proc);
        }
        // It exists now; the map has no API to do this in one step.
        self.procs.get_mut(&id).ok_or_else(|| io::ErrorKind::Other.into())
    }

    pub(super) fn enter_proc(
        &mut self,
        proc: ProcId,
        id: GoId,
        at: Timestamp,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let before = match self.goroutines.get(id.0) {
            Some(goroutine) => goroutine.proc,
            None => return Ok(()),
        };
        if before == proc {
            return Ok(()); // return from a system call during which it kept its P
        }
        self.leave_proc(before, id, at, sink)?;
        let previous = self.proc_mut(proc, layout, sink)?.running;
        self.leave_proc(proc, previous, at, sink)?;
        let Some(goroutine) = self.goroutines.get_mut(id.0) else { return Ok(()) };
        goroutine.proc = proc;
        let label = match goroutine.label.filter(|&label| sink.holds_text(label)) {
            Some(label) => label,
            None => {
                let entry = match goroutine.place {
                    Place::Lane { group, .. } => &self.groups[group as usize].entry[..],
                    Place::Pending(_) => b"",
                };
                *goroutine.label.insert(self.names.goroutine(id, entry, sink))
            }
        };
        // `proc_mut` has made it.
        let Some(proc) = self.procs.get_mut(&proc) else { return Ok(()) };
        proc.running = id;
        sink.begin(at, proc.track, &TrackEvent::new(label))
    }

    /// Ends the goroutine on the P, if it still runs there.
    pub(super) fn leave_proc(
        &mut self,
        proc: ProcId,
        id: GoId,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        if let Some(proc) = self.procs.get_mut(&proc).filter(|p| p.running == id && id.is_some()) {
            proc.running = GoId::NONE;
            sink.end(at, proc.track, &[])?;
        }
        Ok(())
    }

    pub(super) fn proc(
        &mut self,
        event: Event<'_>,
        id: ProcId,
        transition: &StateTransition<'_>,
        layout: &Layout,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let at = event.time();
        match transition.proc() {
            Some((_, ProcState::Running)) => {
                let thread = event.thread();
                let proc = self.proc_mut(id, layout, sink)?;
                if proc.thread == thread {
                    return Ok(()); // repeated at the start of a generation
                }
                self.leave_thread(id, at, sink)?;
                let Some(track) = self.thread_track(thread, sink)? else { return Ok(()) };
                if let Some(other) = self.threads.get(&thread).map(|t| t.proc) {
                    self.leave_thread(other, at, sink)?;
                }
                let proc = self.proc_mut(id, layout, sink)?;
                proc.thread = thread;
                if !sink.holds_text(proc.label) {
                    proc.label = sink.text(format!("P {id}").as_bytes());
                }
                sink.begin(at, track, &TrackEvent::new(proc.label))?;
                if let Some(thread) = self.threads.get_mut(&thread) {
                    thread.proc = id;
                }
                Ok(())
            }
            Some(_) => self.stop_proc(id, at, sink),
            None => Ok(()),
        }
    }

    /// Takes the P from its thread and goroutine.
    pub(super) fn stop_proc(
        &mut self,
        id: ProcId,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(proc) = self.procs.get_mut(&id) else { return Ok(()) };
        if let Some(track) = proc.sweep_track {
            proc.sweep.end_all(at, track, sink)?;
        }
        let running = proc.running;
        self.leave_proc(id, running, at, sink)?;
        // In a system call the goroutine may continue without the P.
        if let Some(goroutine) = self.goroutines.get_mut(running.0) {
            goroutine.proc = ProcId::NONE;
        }
        self.leave_thread(id, at, sink)
    }

    fn leave_thread(
        &mut self,
        proc: ProcId,
        at: Timestamp,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let Some(state) = self.procs.get_mut(&proc) else { return Ok(()) };
        let thread = std::mem::replace(&mut state.thread, ThreadId::NONE);
        match self.threads.get_mut(&thread) {
            Some(thread) if thread.proc == proc && proc.is_some() => {
                thread.proc = ProcId::NONE;
                sink.end(at, thread.track, &[])
            }
            _ => Ok(()),
        }
    }

    /// Returns the track of a thread of the operating system.
    pub(super) fn thread_track(
        &mut self,
        id: ThreadId,
        sink: &mut impl Sink,
    ) -> io::Result<Option<TrackId>> {
        if let Some(thread) = self.threads.get(&id) {
            return Ok(Some(thread.track));
        }
        let Ok(tid @ 1..) = i32::try_from(id.0) else { return Ok(None) };
        let track = sink.track(&Track::thread(self.options.pid, tid, b"M"))?;
        self.threads.insert(id, Thread { track, proc: ProcId::NONE });
        Ok(Some(track))
    }
}
