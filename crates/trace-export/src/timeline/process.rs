//! The tracks of processes, and the numbers of their goroutines by state.

use super::{Context, Drawing};
use crate::model::{Sink, Track, TrackId, Unit};
use hashbrown::HashMap;
use std::io;
use trace_common::Timestamp;
use trace_timeline::{EntityId, State};

/// The processes on the timeline.
#[derive(Debug, Default)]
pub(super) struct Processes {
    all: Vec<Process>,
    by_entity: HashMap<Option<EntityId>, u32>,
}

/// The tracks of a process; groups are added when they are needed.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) track: TrackId,
    pub(super) procs: Option<TrackId>,
    pub(super) goroutines: Option<TrackId>,
    pub(super) runtime: Option<TrackId>,
    pub(super) counts: Counts,
}

/// Rank of the tracks of a process.
pub(super) mod rank {
    pub(in super::super) const COUNTERS: i32 = 1;
    pub(in super::super) const GOROUTINES_BY_STATE: i32 = 10;
    pub(in super::super) const SPANS: i32 = 20;
    pub(in super::super) const PROCS: i32 = 21;
    pub(in super::super) const GOROUTINES: i32 = 23;
    pub(in super::super) const RUNTIME: i32 = 24;
    pub(in super::super) const EVENTS: i32 = 25;
}

impl Processes {
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Process> {
        self.all.get_mut(index as usize)
    }

    /// Writes the numbers of goroutines that have not been written yet.
    pub(super) fn finish(&mut self, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        self.all.iter_mut().try_for_each(|process| process.counts.finish(process.track, cx))
    }
}

impl Drawing {
    /// The position of a process, which is added if it is new.
    pub(super) fn process(
        &mut self,
        process: Option<EntityId>,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<u32> {
        let tables = cx.tables;
        if let Some(known) = self.processes.by_entity.get(&process) {
            return Ok(*known);
        }
        let pid = self.pid(process, tables);
        let name = process.and_then(|process| tables.entities.get(process));
        let name = name.map_or(&b"(unknown)"[..], |process| tables.get(process.name));
        let track = cx.sink.track(&Track::process(pid, name).ordered())?;
        let index = self.processes.all.len() as u32;
        let counts = Counts::default();
        let tracks = Process { track, procs: None, goroutines: None, runtime: None, counts };
        self.processes.all.push(tracks);
        self.processes.by_entity.insert(process, index);
        Ok(index)
    }

    pub(super) fn process_track(
        &mut self,
        process: Option<EntityId>,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<TrackId> {
        let index = self.process(process, cx)?;
        let process = self.processes.get_mut(index);
        process.map(|process| process.track).ok_or_else(|| io::Error::other("no process"))
    }

    /// A group of tracks of a process.
    pub(super) fn process_group(
        &mut self,
        process: Option<EntityId>,
        which: fn(&mut Process) -> &mut Option<TrackId>,
        (name, rank): (&[u8], i32),
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<TrackId> {
        let parent = self.process_track(process, cx)?;
        let index = self.process(process, cx)?;
        let Some(process) = self.processes.get_mut(index) else { return Ok(parent) };
        if let Some(group) = *which(process) {
            return Ok(group);
        }
        let group = cx.sink.track(&Track::custom(name).child_of(parent).rank(rank).ordered())?;
        Ok(*which(process).insert(group))
    }
}

/// Numbers of the goroutines of a process by state.
///
/// They are written once in an interval at most, and those of a moment are written within an interval: a
/// viewer shows the last ones until the next, which can be seconds later.
#[derive(Debug, Default)]
pub(super) struct Counts {
    now: [i64; Self::STATES.len()],
    written: [Option<i64>; Self::STATES.len()],
    tracks: Option<[TrackId; Self::STATES.len()]>,
    /// When the next ones may be written; `None` before the first change.
    due: Option<Timestamp>,
}

impl Counts {
    const STATES: [(State, &'static [u8]); 4] = [
        (State::Running, b"Goroutines running"),
        (State::Runnable, b"Goroutines runnable"),
        (State::Waiting, b"Goroutines waiting"),
        (State::Syscall, b"Goroutines in syscalls"),
    ];

    /// Nanoseconds between values.
    const INTERVAL: i64 = 1_000_000;

    const fn index(state: State) -> Option<usize> {
        match state {
            State::Running => Some(0),
            State::Runnable => Some(1),
            State::Waiting => Some(2),
            State::Syscall => Some(3),
            _ => None,
        }
    }

    /// A goroutine changes from one state to another.
    #[inline]
    pub(super) fn change(
        &mut self,
        from: State,
        to: State,
        process: TrackId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        let is_due = self.due.is_none_or(|due| cx.at >= due);
        if is_due {
            self.write_late(process, cx)?;
        }
        if let Some(count) = Self::index(from).and_then(|from| self.now.get_mut(from)) {
            *count -= 1;
        }
        if let Some(count) = Self::index(to).and_then(|to| self.now.get_mut(to)) {
            *count += 1;
        }
        if is_due { self.write_if_due(process, cx) } else { Ok(()) }
    }

    /// Writes the numbers if the interval has elapsed.
    #[cold]
    fn write_if_due(
        &mut self,
        process: TrackId,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        if self.due.is_some_and(|due| cx.at < due) {
            return Ok(());
        }
        self.due = Some(cx.at.saturating_add_nanos(Self::INTERVAL));
        self.write(process, cx)
    }

    /// Writes the numbers of the time when they were due, if they have changed by then: there was no
    /// event between it and now.
    #[cold]
    fn write_late(&mut self, process: TrackId, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        let Some(due) = self.due.filter(|due| *due < cx.at) else { return Ok(()) };
        if self.written == self.now.map(Some) {
            return Ok(());
        }
        self.due = Some(due.saturating_add_nanos(Self::INTERVAL));
        self.write(process, &mut cx.at(due))
    }

    /// Writes the last numbers.
    fn finish(&mut self, process: TrackId, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        self.write_late(process, cx)?;
        self.write(process, cx)
    }

    #[cold]
    fn write(&mut self, process: TrackId, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        if self.due.is_none() {
            return Ok(()); // no goroutines
        }
        let tracks = match self.tracks {
            Some(tracks) => tracks,
            None => {
                let mut tracks = [process; Self::STATES.len()];
                for ((rank, track), (_, name)) in (0..).zip(&mut tracks).zip(Self::STATES) {
                    let counter = Track::counter(name, Unit::Count).child_of(process);
                    *track = cx.sink.track(&counter.rank(rank::GOROUTINES_BY_STATE + rank))?;
                }
                *self.tracks.insert(tracks)
            }
        };
        for ((track, now), written) in tracks.into_iter().zip(self.now).zip(&mut self.written) {
            if *written != Some(now) {
                *written = Some(now);
                cx.sink.counter(cx.at, track, now.into())?;
            }
        }
        Ok(())
    }
}
