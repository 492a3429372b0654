//! Build ids of files, and of the running kernel.

use crate::elf::Elf;
use crate::files;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use trace_common::{BuildId, Inode};

/// Notes of the kernel are short; more than this is not read.
const MAX_NOTES: u64 = 1 << 16;

/// The build id in the note segments of an ELF file, as the kernel reads it. `None` if the file
/// cannot be read or has none.
///
/// Special files are not opened: a pipe would block.
pub fn of_file(path: impl AsRef<Path>) -> Option<BuildId> {
    Elf::segments_of(files::open(path.as_ref()).ok()?).ok()?.build_id_in_segments()
}

/// The build id of a file that a process has mapped, or had when it ran. The file with the path is
/// read, as the process sees it or else as this process does, if it has the inode of the mapping.
pub fn of_mapped(process: u32, path: impl AsRef<Path>, inode: Inode) -> Option<BuildId> {
    let mut files = files::candidates(Some(process), path.as_ref()).filter_map(Result::ok);
    let file = files.find(|file| files::is_inode(file, inode))?;
    Elf::segments_of(file).ok()?.build_id_in_segments()
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
