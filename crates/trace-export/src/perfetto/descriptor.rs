//! Descriptors of tracks, processes and the system.

use super::field::{TRACE_PACKET, packet, system, track, tree};
use super::sequence::SEQUENCE;
use super::{Named, PerfettoSink, TrackState};
use crate::intern::Interner;
use crate::model::{Track, TrackId, TrackKind, Unit};
use crate::process::Process;
use crate::proto::Packed;
use std::io::{self, Write};

impl<W: Write> PerfettoSink<W> {
    /// Writes the release of the Linux kernel that scheduler events come from, in the form of
    /// `uname(2)`. Call it first. Without it readers interpret the states in [`SchedSwitch`](crate::SchedSwitch) as
    /// those of Linux 4.4, whose numbers differ: preempted threads are then not shown as such.
    ///
    /// # Errors
    ///
    /// Errors of the writer.
    pub fn kernel(&mut self, release: &[u8]) -> io::Result<()> {
        self.prepare()?;
        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        let info = out.open(packet::SYSTEM_INFO);
        let utsname = out.open(system::UTSNAME);
        out.text(system::SYSNAME, b"Linux");
        out.text(system::RELEASE, cut(release));
        out.close(utsname);
        out.close(info);
        out.close(message);
        Ok(())
    }

    pub(super) fn add_track(&mut self, new: &Track<'_>) -> io::Result<TrackId> {
        let ids = new.kind.ids();
        if let Some(known) = ids.and_then(|ids| self.by_tid.get_mut(&ids)) {
            let (id, name) = (known.id, new.new_name().map(cut));
            if let Some(name) = name.filter(|name| *known.name != **name) {
                known.name = name.into();
                self.write_track(id, new)?;
            }
            return Ok(id);
        }
        let id = u32::try_from(self.tracks.len()).map(TrackId::new).map_err(io::Error::other)?;
        if let Some(parent) = new.parent {
            self.track_state(parent)?;
        }
        if let Some(ids) = ids {
            self.by_tid.insert(ids, Named { id, name: cut(new.name).into() });
        }
        let packed = Packed::new(uuid(id)).ok_or_else(|| io::Error::other("too many tracks"))?;
        self.tracks.push(TrackState { uuid: packed, depth: 0, in_state: false });
        self.stats.tracks += 1;
        self.write_track(id, new)?;
        Ok(id)
    }

    /// Writes the description of a track. Another one of the same track replaces its name.
    fn write_track(&mut self, id: TrackId, new: &Track<'_>) -> io::Result<()> {
        self.prepare()?;
        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        let descriptor = out.open(packet::TRACK_DESCRIPTOR);
        out.varint(track::UUID, uuid(id));
        if let Some(parent) = new.parent {
            out.varint(track::PARENT_UUID, uuid(parent));
        }
        match new.kind {
            TrackKind::Process { pid } => {
                let process = out.open(track::PROCESS);
                out.int(track::PROCESS_PID, pid.into());
                out.text(track::PROCESS_NAME, cut(new.name));
                out.close(process);
            }
            TrackKind::Thread { pid, tid } => {
                let thread = out.open(track::THREAD);
                out.int(track::THREAD_PID, pid.into());
                out.int(track::THREAD_TID, tid.into());
                // Without a name it keeps the name that the kernel reports.
                if !new.name.is_empty() {
                    out.text(track::THREAD_NAME, cut(new.name));
                }
                out.close(thread);
            }
            TrackKind::Custom => {
                out.text(track::NAME, cut(new.name));
                // Tracks of the same name are different tracks.
                out.varint(track::SIBLING_MERGE_BEHAVIOR, track::MERGE_NONE);
            }
            TrackKind::Counter(unit) => {
                out.text(track::NAME, cut(new.name));
                let counter = out.open(track::COUNTER);
                let unit = match unit {
                    Unit::Nanoseconds => 1,
                    Unit::Count => 2,
                    Unit::Bytes => 3,
                };
                if new.unit_name.is_empty() {
                    out.varint(track::COUNTER_UNIT, unit);
                } else {
                    out.text(track::COUNTER_UNIT_NAME, cut(new.unit_name));
                }
                out.close(counter);
            }
        }
        if new.ordered {
            out.varint(track::CHILD_ORDERING, track::ORDERING_EXPLICIT);
        }
        if new.rank != 0 {
            out.int(track::SIBLING_ORDER_RANK, new.rank.into());
        }
        if !new.description.is_empty() {
            out.text(track::DESCRIPTION, cut(new.description));
        }
        out.close(descriptor);
        out.close(message);
        Ok(())
    }

    /// Viewers name a process by the first element of its command line, whatever its track is named:
    /// that is the name here, and the arguments follow. Nothing is written of a process without a
    /// known parent, which viewers would take to be process 0, and of one whose id was used before:
    /// viewers have one process for both.
    pub(super) fn write_process(&mut self, new: &Process<'_>) -> io::Result<()> {
        let Some(parent) = new.parent.filter(|_| self.tree.insert(new.pid)) else {
            return Ok(());
        };
        self.prepare()?;
        let offset = self.to_boottime.unwrap_or(0);
        let start = new.start.map(|start| self.nanos(start.saturating_add_nanos(offset)));
        let program = new.command_line.iter().position(|byte| *byte == b' ');
        let arguments = program.and_then(|end| new.command_line.get(end + 1..));
        let out = &mut self.out;
        let message = out.open(TRACE_PACKET);
        out.varint(packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        let tree = out.open(packet::PROCESS_TREE);
        let process = out.open(tree::PROCESSES);
        out.int(tree::PID, new.pid.into());
        out.int(tree::PPID, parent.into());
        out.text(tree::CMDLINE, cut(new.name));
        // A single element is cut at its first space.
        if arguments.is_some() || new.name.contains(&b' ') {
            out.text(tree::CMDLINE, cut(arguments.unwrap_or_default()));
        }
        if let Some(start) = start {
            out.varint(tree::PROCESS_START_FROM_BOOT, start);
        }
        out.close(process);
        out.close(tree);
        out.close(message);
        Ok(())
    }
}

const fn uuid(track: TrackId) -> u64 {
    track.index() as u64 + 1
}

/// Truncates texts that are not interned at the same length as interned ones.
pub(super) fn cut(text: &[u8]) -> &[u8] {
    text.get(..Interner::MAX_TEXT).unwrap_or(text)
}
