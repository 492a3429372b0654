//! The initial file system of a virtual machine: a cpio archive in the `newc` format.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use task_support::Result;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// Writes an archive with `/init` and these files, in directories that are created; the programs in
/// `/tests` are run.
pub(crate) fn write(archive: &Path, init: &Path, files: &[(&str, &Path)]) -> Result {
    let mut out = BufWriter::new(File::create(archive)?);
    let mut inode = 0;
    let mut put = |name: &str, mode: u32, data: &[u8]| -> std::io::Result<()> {
        inode += 1;
        entry(&mut out, inode, name, mode, data)
    };
    let mut dirs: BTreeSet<&str> =
        ["bin", "dev", "proc", "sys", "tmp", "tests", "modules"].into_iter().collect();
    for (name, _) in files {
        let parents = Path::new(name).ancestors().skip(1).filter_map(Path::to_str);
        dirs.extend(parents.filter(|dir| !dir.is_empty()));
    }
    // Each is before what is in it.
    for dir in dirs {
        put(dir, DIRECTORY, &[])?;
    }
    put("init", PROGRAM, &fs::read(init)?)?;
    for (name, file) in files {
        put(name, PROGRAM, &fs::read(file)?)?;
    }
    put("TRAILER!!!", 0, &[])?;
    out.flush()?;
    Ok(())
}

/// A header of hexadecimal numbers, the name, the data; both padded to 4 bytes.
fn entry(
    out: &mut impl Write,
    inode: u32,
    name: &str,
    mode: u32,
    data: &[u8],
) -> std::io::Result<()> {
    let links = if mode == DIRECTORY { 2 } else { 1 };
    let size = u32::try_from(data.len()).map_err(std::io::Error::other)?;
    let name_size = name.len() as u32 + 1;
    write!(out, "070701")?;
    // inode mode uid gid links mtime size dev (2) rdev (2) name-size check
    for field in [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0] {
        write!(out, "{field:08x}")?;
    }
    const HEADER: usize = 6 + 13 * 8;
    out.write_all(name.as_bytes())?;
    out.write_all(&[0])?;
    pad(out, HEADER + name.len() + 1)?;
    out.write_all(data)?;
    pad(out, data.len())
}

fn pad(out: &mut impl Write, len: usize) -> std::io::Result<()> {
    out.write_all(&[0; 4][..len.next_multiple_of(4) - len])
}
