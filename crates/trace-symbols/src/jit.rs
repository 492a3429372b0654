//! The code of a just-in-time compiler, as the process described it.

use crate::error::{Result, Unresolved};
use crate::files;
use crate::frame::{Frame, Room, Texts};
use crate::jitdump::JitDump;
use crate::module::Module;
use crate::options::Options;
use crate::perf_map::PerfMap;
use crate::spaces::AddressSpaces;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::path::Path;
use trace_common::Timestamp;

/// The reason of a file that is not there.
const MISSING: Unresolved = Unresolved::File(std::io::ErrorKind::NotFound);

/// The jitdump file and the perf map of a process.
#[derive(Debug, Default)]
pub(crate) struct JitSymbols {
    pub(crate) dump: Option<JitDump>,
    pub(crate) map: Option<PerfMap>,
    /// Why the jitdump file that the process has written is not used.
    pub(crate) refused: Option<Unresolved>,
    /// Whether the caller added them: the files of the process are not read.
    pub(crate) is_given: bool,
}

impl JitSymbols {
    /// Reads what a process wrote. It maps its jitdump file, so that its path is known.
    pub(crate) fn read(process: u32, spaces: &AddressSpaces, options: &Options) -> Result<Self> {
        // Processes of other containers can have the same number there: their paths lead nowhere here. An
        // earlier process can have had the number here.
        let mut first = None;
        let paths: Vec<&Path> = dump_paths(process, spaces).collect();
        let dump = paths.into_iter().rev().find_map(|path| {
            let read = read_dump(process, path, options.max_bytes);
            read.map_err(|why| match &first {
                // Those of others are not there.
                None | Some(MISSING) => first = Some(why),
                Some(_) => {}
            })
            .ok()
        });
        let dump = dump.map(Ok).or(first.map(Err));
        let map = PerfMap::of_process(process, options.max_bytes);
        match (dump, map) {
            // It has a jitdump file, so that it needs no perf map.
            (Some(Err(why)), Err(_)) => Err(why),
            (None, Err(MISSING)) => Err(Unresolved::NotAFile),
            (None, Err(why)) => Err(why),
            (dump, map) => {
                let (dump, refused) = match dump {
                    Some(Ok(dump)) => (Some(dump), None),
                    Some(Err(why)) => (None, Some(why).filter(|why| *why != MISSING)),
                    None => (None, None),
                };
                Ok(Self { dump, map: map.ok(), refused, is_given: false })
            }
        }
    }

    /// The bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let dump = self.dump.as_ref().map_or(0, JitDump::bytes);
        dump + self.map.as_ref().map_or(0, PerfMap::bytes)
    }

    /// The function at an address at a time. Without a time, the one that had it at all times.
    pub(crate) fn frame(
        &self,
        address: u64,
        at: Option<Timestamp>,
        texts: &mut Texts,
    ) -> Result<Frame> {
        let found = match (&self.dump, at) {
            (Some(dump), Some(at)) => dump.at(address, at),
            (Some(dump), None) => dump.at_any_time(address)?,
            (None, _) => None,
        };
        if let Some(found) = found {
            let mut frame = texts.frame(found.name, Some(found.offset));
            if let Some((file, line)) = found.line {
                frame.file = Some(texts.get(Room::default().cut(file)));
                frame.line = line;
            }
            return Ok(frame);
        }
        match &self.map {
            Some(map) => map.frame(address, texts),
            None => Err(Unresolved::NoSymbol),
        }
    }
}

/// The sizes of what a process has written, as far as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Of all files that may be its jitdump file.
    dumps: u64,
    map: Option<u64>,
}

impl Written {
    pub(crate) fn of_process(process: u32, spaces: &AddressSpaces) -> Self {
        let sizes = dump_paths(process, spaces)
            .filter_map(|path| files::size_written_by(process, |_| path.to_owned()));
        Self { dumps: sizes.sum(), map: PerfMap::size(process) }
    }
}

/// The paths that the jitdump file of a process can have: one of them is that which it has mapped.
fn dump_paths(process: u32, spaces: &AddressSpaces) -> impl Iterator<Item = &Path> {
    let modules = spaces.modules().map(|(_, module)| module);
    modules.filter(move |module| is_jitdump(&module.name, process)).map(Module::path)
}

/// Whether a path is that of the jitdump file of a process: `jit-PID.dump`.
fn is_jitdump(path: &str, process: u32) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let pid = name.strip_prefix("jit-").and_then(|rest| rest.strip_suffix(".dump"));
    let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
    pid.is_some_and(|pid| pid == process || files::inner_pid(process) == Some(pid))
}

fn read_dump(process: u32, path: &Path, max: u64) -> Result<JitDump> {
    // It could write the rest of the last record after the file is read.
    let is_complete = has_ended(process);
    let bytes = files::read_written_by(process, |_| path.to_owned(), max, "the jitdump file")?;
    JitDump::parse(&bytes, is_complete)
}

/// Whether no process has this number, also none that this user may not see in `/proc`.
fn has_ended(process: u32) -> bool {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jitdump_file_is_complete_when_its_process_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jit.dump");
        // The header of 40 bytes, and the first bytes of a record.
        let mut dump = [0x4a69_5444_u32, 1, 40, 62, 0, 7].map(u32::to_le_bytes).concat();
        dump.extend([0; 16 + 8]);
        std::fs::write(&path, dump).unwrap();
        let damaged = |process| read_dump(process, &path, 1 << 20).unwrap().damaged;
        assert_eq!(damaged(std::process::id()), 0);
        // No process has such a number.
        assert_eq!(damaged(i32::MAX as u32), 1);
    }
}
