//! Build ids of files, and of the running kernel.

use crate::elf::Elf;
use crate::files::{self, Found};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::SystemTime;
use trace_common::{BuildId, Inode};

/// Notes of the kernel are short; more than this is not read.
const MAX_NOTES: u64 = 1 << 16;

/// The build id in the note segments of an ELF file, or in its note sections. `None` if the file cannot be
/// read or has none.
///
/// Go's linker (from Go 1.24 on) writes a section that is in no note segment: the kernel does not report
/// that build id, perf(1) does.
///
/// Special files are not opened: a pipe would block, and a watchdog would start.
pub fn of_file(path: impl AsRef<Path>) -> Option<BuildId> {
    Elf::build_id_of(files::open(path.as_ref()).ok()?).ok()?
}

/// The build id of a file that a process has mapped, or had when it ran. The file with the path is
/// read, as this process sees it or else as that one does, if it has the inode of the mapping.
pub fn of_mapped(process: u32, path: impl AsRef<Path>, inode: Inode) -> Option<BuildId> {
    Elf::build_id_of(mapped(process, path.as_ref(), inode)?.open().ok()?).ok()?
}

/// The time at which a file was changed last that a process has mapped, or had when it ran: found as by
/// [`of_mapped`]. The build id is that of the mapping if the file was not changed since.
pub fn changed(process: u32, path: impl AsRef<Path>, inode: Inode) -> Option<SystemTime> {
    mapped(process, path.as_ref(), inode)?.changed()
}

/// Whether a file that was [`changed`] last at this time had the same contents at another time. Times of
/// files are those of the kernel's last tick: a change less than 10 ms later can count as one before.
pub fn is_unchanged_since(changed: SystemTime, at: SystemTime) -> bool {
    files::is_unchanged_since(changed, at)
}

fn mapped(process: u32, path: &Path, inode: Inode) -> Option<Found> {
    let is_it = |file: &Found| file.is_inode(inode);
    // Most files are those that this process sees, too.
    let own = files::find(path).ok().filter(is_it);
    own.or_else(|| files::find_in_process(process, path).ok().filter(is_it))
}

/// The build id of the running kernel (`/sys/kernel/notes`).
pub fn of_kernel() -> Option<BuildId> {
    BuildId::in_notes(&read_start("/sys/kernel/notes")?)
}

/// The build id of a loaded module of the running kernel.
pub fn of_module(name: &str) -> Option<BuildId> {
    if name.contains(['/', '\0']) || name.starts_with('.') {
        return None;
    }
    let file = format!("/sys/module/{name}/notes/.note.gnu.build-id");
    BuildId::in_notes(&read_start(&file)?)
}

fn read_start(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_NOTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_files_have_none() {
        assert_eq!(of_file("/dev/null"), None);
        assert_eq!(of_file("/proc/self/maps"), None);
        assert_eq!(of_module("../kernel"), None);
    }
}
