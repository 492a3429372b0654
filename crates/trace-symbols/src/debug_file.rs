//! Separate files with debug information.

use crate::elf::Elf;
use crate::error::Result;
use crate::files;
use crate::options::Options;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use trace_common::BuildId;

/// Finds the file with the debug information of a file: by its build id in the debug directories, then
/// by its `.gnu_debuglink`. Its build id or CRC is that of the file. It is looked for as the process
/// sees files, then as this process does.
pub(crate) fn find(elf: &Elf, path: &Path, process: Option<u32>, options: &Options) -> Option<Elf> {
    let local = elf
        .build_id()
        .and_then(|id| by_build_id(id, process, options))
        .or_else(|| by_link(elf, path, process, options));
    #[cfg(feature = "debuginfod")]
    return local.or_else(|| by_server(elf, options));
    #[cfg(not(feature = "debuginfod"))]
    local
}

/// The debug information that a server has, of a file without its own.
#[cfg(feature = "debuginfod")]
fn by_server(elf: &Elf, options: &Options) -> Option<Elf> {
    let servers = options.debuginfod.as_ref()?;
    let id = elf.build_id().filter(|_| elf.section_named(b".debug_info").is_none())?;
    servers.find(id, options.max_bytes)
}

/// Finds the file with the parts of debug information that a file shares with others: by its build id in the
/// debug directories, then by its path.
#[cfg(feature = "dwarf")]
pub(crate) fn supplement(elf: &Elf, process: Option<u32>, options: &Options) -> Option<Elf> {
    let (path, id) = elf.supplementary_link()?;
    let path = Path::new(std::ffi::OsStr::from_bytes(&path));
    by_build_id(id, process, options).or_else(|| {
        // A relative path is one from the debug file, which may have been found by a link.
        let found = path.is_absolute().then(|| with_id(id, process, path, options));
        found.flatten()
    })
}

/// The file with a path, if it has this build id.
fn with_id(id: BuildId, process: Option<u32>, path: &Path, options: &Options) -> Option<Elf> {
    files::candidates(process, path).filter_map(Result::ok).find_map(|file| {
        let debug = Elf::new(file, options.max_bytes).ok()?;
        (debug.build_id() == Some(id)).then_some(debug)
    })
}

fn by_build_id(id: BuildId, process: Option<u32>, options: &Options) -> Option<Elf> {
    let digits = id.to_string();
    let (front, rest) = digits.split_at_checked(2)?;
    options.debug_directories.iter().find_map(|directory| {
        let path = directory.join(".build-id").join(front).join(format!("{rest}.debug"));
        with_id(id, process, &path, options)
    })
}

fn by_link(elf: &Elf, path: &Path, process: Option<u32>, options: &Options) -> Option<Elf> {
    let (name, crc) = elf.debug_link()?;
    let name = Path::new(std::ffi::OsStr::from_bytes(&name));
    // The link is a name, not a path.
    if name.components().count() != 1 || name.file_name()? != name.as_os_str() {
        return None;
    }
    let directory = path.parent()?;
    let beside = [directory.join(name), directory.join(".debug").join(name)];
    // Below the other directories, files have their whole path.
    let inside = directory.strip_prefix("/").ok();
    let debug_directories = options.debug_directories.iter().filter_map(|debug| {
        let inside = inside?;
        Some(debug.join(inside).join(name))
    });
    beside.into_iter().chain(debug_directories).find_map(|path: PathBuf| {
        files::candidates(process, &path).filter_map(Result::ok).find_map(|file| {
            let is_same = crc_of(&file, options.max_bytes)? == crc;
            let debug = is_same.then(|| Elf::new(file, options.max_bytes))?.ok()?;
            let (own, other) = (elf.build_id(), debug.build_id());
            (own.is_none() || other.is_none() || own == other).then_some(debug)
        })
    })
}

/// The CRC-32 of a file of at most this many bytes.
fn crc_of(mut file: &File, max: u64) -> Option<u32> {
    if file.metadata().ok()?.len() > max {
        return None;
    }
    let mut buffer = vec![0; 1 << 16];
    let mut crc = 0;
    let mut left = max;
    loop {
        let read = file.read(&mut buffer).ok()?;
        left = left.checked_sub(read as u64)?;
        match buffer.get(..read) {
            Some([]) | None => return Some(crc),
            Some(bytes) => crc = trace_common::crc32(crc, bytes),
        }
    }
}
