//! Build ids of the files that processes map.

use crate::event::clock_of;
use crate::synthesize::MAX_FILES;
use perf_monitor::{CpuMode, FileId, Mmap, RawRecord, Record, RecordLayout};
use perf_sys::{
    PERF_RECORD_MISC_MMAP_BUILD_ID, PERF_RECORD_MMAP2, perf_event_attr, perf_event_header,
    perf_record_mmap2,
};
use std::collections::HashMap;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;
use trace_common::{BuildId, ClockDomain, Inode, Timestamp};
use trace_symbols::build_id;

/// Reads the build ids of mapped files, and puts them into the records of the mappings in place of the
/// inodes.
///
/// The kernel does that itself for an event with `build_id` (Linux 5.12), but then marks the records
/// that it writes to the events of other programs, too (see [`FileId::BuildId`]). perf(1) 6.1 takes a
/// part of the device for the size of a build id then, and aborts.
///
/// A file is read when its first mapping is seen, where the process sees it. It must have the inode of
/// the mapping, and must not have changed since. Of a process in a container that has ended, it is not
/// found: the record stays as it is.
#[derive(Debug, Default)]
pub struct BuildIds {
    /// By inode and its generation.
    known: HashMap<(Inode, u64), Known>,
    /// The clock of the records, if it is one that can be read.
    clock: Option<ClockDomain>,
    record: Vec<u8>,
}

/// A file that was read.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The time of its last change.
    changed: SystemTime,
    /// `None` if it has no build id.
    id: Option<BuildId>,
    /// A process that sees the file.
    process: u32,
}

const MISC: usize = offset_of!(perf_event_header, misc);
/// Bytes of the field `file`.
const SIZE: usize = 24;

const FILE: usize = size_of::<perf_event_header>() + offset_of!(perf_record_mmap2, file);

impl BuildIds {
    /// For records of events with this attribute: its clock relates them to the times of files. Without a
    /// clock that can be read, as with `Default`, files must not have changed shortly before they are read.
    pub fn new(attr: &perf_event_attr) -> Self {
        Self { clock: clock_of(attr), ..Self::default() }
    }

    /// The wall-clock time of a record; now for one without a time.
    fn wall(&self, at: Option<Timestamp>) -> SystemTime {
        let age = || {
            let at = at.filter(|at| at.nanos() != 0)?;
            perf_monitor::event_now(self.clock?).map(|now| now - at)
        };
        // Before the wall clock: the time in between must not make a mapping older than its file.
        let age = age();
        let now = SystemTime::now();
        age.and_then(|age| now.checked_sub(age)).unwrap_or(now)
    }

    /// The record, with the build id if it is about the mapping of a file that has one.
    pub fn apply<'a>(&'a mut self, layout: &RecordLayout, raw: RawRecord<'a>) -> RawRecord<'a> {
        let Some(id) = self.id(layout, raw) else { return raw };
        self.record.clear();
        self.record.extend_from_slice(raw.bytes());
        mark(&mut self.record, id);
        RawRecord::split_first(&self.record, raw.offset()).map_or(raw, |(record, _)| record)
    }

    fn id(&mut self, layout: &RecordLayout, raw: RawRecord<'_>) -> Option<BuildId> {
        if raw.type_() != PERF_RECORD_MMAP2 || raw.cpu_mode() == CpuMode::Kernel {
            return None;
        }
        match layout.decode(raw) {
            Ok(Record::Mmap(mmap)) => self.of(&mmap),
            _ => None,
        }
    }

    /// The build id of the file of a mapping that has an inode, if the file has not changed since.
    fn of(&mut self, mmap: &Mmap<'_>) -> Option<BuildId> {
        let Some(FileId::Inode { major, minor, inode, generation }) = mmap.file else {
            return None;
        };
        if !mmap.filename.starts_with(b"/") || inode == 0 {
            return None;
        }
        let inode = Inode { major, minor, inode };
        let path = Path::new(std::ffi::OsStr::from_bytes(mmap.filename));
        let known = self.known.get(&(inode, generation)).copied();
        let mut processes =
            [Some(mmap.pid), known.map(|known| known.process)].into_iter().flatten();
        let (process, changed) = processes.find_map(|process| {
            build_id::changed(process, path, inode).map(|changed| (process, changed))
        })?;
        if !build_id::is_unchanged_since(changed, self.wall(mmap.sample_id.time)) {
            return None;
        }
        if let Some(known) = known.filter(|known| known.changed == changed) {
            return known.id;
        }
        let id = build_id::of_mapped(process, path, inode);
        // It can change while it is read.
        if build_id::changed(process, path, inode) != Some(changed) {
            return None;
        }
        if self.known.len() < MAX_FILES {
            self.known.insert((inode, generation), Known { changed, id, process });
        }
        id
    }
}

/// Puts the build id into the record of a mapping.
fn mark(record: &mut [u8], id: BuildId) {
    let bytes = id.as_bytes();
    let size = [bytes.len() as u8, 0, 0, 0];
    let mut file = [0; SIZE];
    file.iter_mut().zip(size.iter().chain(bytes)).for_each(|(to, from)| *to = *from);
    if let Some(place) = record.get_mut(FILE..).and_then(<[u8]>::first_chunk_mut) {
        *place = file;
    }
    if let Some(misc) = record.get_mut(MISC..).and_then(<[u8]>::first_chunk_mut) {
        *misc = (u16::from_ne_bytes(*misc) | PERF_RECORD_MISC_MMAP_BUILD_ID).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_sys::PERF_RECORD_MISC_USER;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use zerocopy::IntoBytes;

    /// The record of a mapping of this program, or of another file with its path.
    fn mapping(inode: u64, generation: u64) -> Vec<u8> {
        let program = std::env::current_exe().unwrap();
        let device = fs::metadata(&program).unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let mut file = [0; SIZE];
        let id = [u64::from(major) | u64::from(minor) << 32, inode, generation];
        file.copy_from_slice(id.as_bytes());
        let pid = std::process::id();
        let fixed = perf_record_mmap2 {
            pid,
            tid: pid,
            addr: 0x1000,
            len: 0x1000,
            pgoff: 0,
            file,
            prot: 5,
            flags: 2,
        };
        let mut name = program.as_os_str().as_bytes().to_vec();
        name.resize((name.len() + 1).next_multiple_of(8), 0);
        let size = size_of::<perf_event_header>() + fixed.as_bytes().len() + name.len();
        let header = perf_event_header {
            type_: PERF_RECORD_MMAP2,
            misc: PERF_RECORD_MISC_USER,
            size: size as u16,
        };
        [header.as_bytes(), fixed.as_bytes(), &name].concat()
    }

    #[test]
    fn records_of_mapped_files_have_their_build_ids() {
        let program = std::env::current_exe().unwrap();
        let expected = build_id::of_file(&program).expect("linkers write build ids");
        let inode = fs::metadata(&program).unwrap().ino();
        let layout = RecordLayout::new(&perf_event_attr::default());
        let mut ids = BuildIds::default();
        for _ in 0..2 {
            let bytes = mapping(inode, 3);
            let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
            let applied = ids.apply(&layout, raw);
            let Ok(Record::Mmap(mmap)) = layout.decode(applied) else { panic!("{applied:?}") };
            assert_eq!(mmap.file, Some(FileId::BuildId(expected.as_bytes())));
            assert_eq!(mmap.filename, program.as_os_str().as_bytes());
            // One that has a build id already stays.
            let again = applied.bytes().to_vec();
            let (raw, _) = RawRecord::split_first(&again, 0).unwrap();
            assert_eq!(ids.apply(&layout, raw).bytes(), again);
        }
        assert_eq!(ids.known.len(), 1);
        // Another file had the path.
        let bytes = mapping(inode + 1, 3);
        let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
        assert_eq!(ids.apply(&layout, raw).bytes(), bytes);
    }
}
