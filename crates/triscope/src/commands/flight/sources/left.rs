//! What an earlier recorder left of its sources.

use super::masked::Masked;
use crate::io::private;
use gotrace::Generations;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use trace_flight::{Source, Timestamp};

const KILLED: &str = "its end: the recorder was killed";

/// What an earlier recorder left, in a dump.
#[derive(Debug, Default)]
pub(in super::super) struct Left {
    pub(in super::super) sources: Vec<Source>,
    /// The files that the dump has: they are removed when it is complete.
    pub(in super::super) copied: Vec<PathBuf>,
}

/// Copies what a recorder that was killed left in `from` to the directory of a dump. A .NET trace ends early,
/// and lacks the names of methods. The generations of a session of a Go program become one trace.
pub(in super::super) fn left(from: &Path, to: &Path, command_lines: bool) -> io::Result<Left> {
    let Left { mut sources, mut copied } = Left::default();
    // By process and start of the session: numbers of goroutines are of one session.
    let mut go: BTreeMap<(u32, u64), Vec<(u64, PathBuf)>> = BTreeMap::new();
    for path in files(from)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((stem, _)) = name.rsplit_once('.') else { continue };
        let mut parts = stem.split('-');
        let kind = parts.next().unwrap_or_default();
        let Some(pid) = parts.next().and_then(|pid| pid.parse().ok()) else { continue };
        let mut number = || parts.next().and_then(|at| at.parse().ok()).unwrap_or(0);
        let at: u64 = number();
        match kind {
            "go" if name.ends_with(".trace") => {
                go.entry((pid, at)).or_default().push((number(), path));
            }
            "dotnet" => {
                let file = format!("dotnet-{pid}-{at}.nettrace");
                let masked = copy(&path, &to.join(&file), command_lines)?;
                copied.push(path);
                let mut source = Source::new(kind, pid, "");
                source.file = Some(file);
                source.start = i64::try_from(at).ok().map(Timestamp::from_nanos);
                source.missing = masked.or_else(|| Some(KILLED.to_owned()));
                sources.push(source);
            }
            _ => {}
        }
    }
    for ((pid, at), mut generations) in go {
        generations.sort();
        // The recorder of the dump can have another one of this process, and a session can be in two directories.
        let path = private::numbered(to, &format!("go-{pid}-{at}"), "trace");
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut source = Source::new("go", pid, "");
        let mut out = private::create_new(&path)?;
        for (_, path) in generations {
            let bytes = fs::read(&path)?;
            // The newest one may not be whole.
            if let Ok(mut parts) = Generations::new(&bytes[..]) {
                let header = parts.version().header();
                while let Ok(Some((span, bytes))) = parts.next_generation() {
                    if source.end.is_none() {
                        out.write_all(&header)?;
                        source.start = Some(span.first);
                    }
                    out.write_all(bytes)?;
                    source.end = Some(span.last);
                }
            }
            copied.push(path);
        }
        if source.end.is_some() {
            out.sync_all()?;
            source.file = Some(file);
            source.missing = Some(KILLED.to_owned());
        } else {
            fs::remove_file(path)?;
            source.missing =
                Some("all: the recorder was killed before a generation was whole".to_owned());
        }
        sources.push(source);
    }
    Ok(Left { sources, copied })
}

/// Copies a .NET trace, whose recorder may have kept the command line. Returns what is missing for its sake.
fn copy(from: &Path, to: &Path, command_lines: bool) -> io::Result<Option<String>> {
    let file = private::create_new(to)?;
    let mut out = Masked::new(&file, command_lines);
    io::copy(&mut File::open(from)?, &mut out)?;
    let missing = out.finish()?;
    file.sync_all()?;
    Ok(missing)
}

/// Moves the sources of an earlier recorder to another directory.
pub(in super::super) fn put_aside(from: &Path, to: &Path) -> io::Result<()> {
    let name = |path: &Path| to.join(path.file_name().unwrap_or_default());
    files(from)?.into_iter().try_for_each(|path| fs::rename(&path, name(&path)))
}

/// Removes the oldest files until no more than these bytes are left.
pub(in super::super) fn shrink(dir: &Path, most: u64) -> io::Result<()> {
    let mut found = Vec::new();
    for path in files(dir)? {
        let metadata = fs::metadata(&path)?;
        found.push((metadata.modified()?, path, metadata.len()));
    }
    found.sort_unstable();
    let mut left: u64 = found.iter().map(|(.., bytes)| bytes).sum();
    for (_, path, bytes) in found {
        if left <= most {
            break;
        }
        fs::remove_file(path)?;
        left -= bytes;
    }
    Ok(())
}

/// Removes what is left and was written this long ago.
pub(in super::super) fn clear(dir: &Path, age: Duration) -> io::Result<()> {
    files(dir)?.into_iter().try_for_each(|path| {
        let written = fs::metadata(&path)?.modified()?;
        // It may be of the future, as the clock can be set.
        match written.elapsed().unwrap_or_default() >= age {
            true => fs::remove_file(path),
            false => Ok(()),
        }
    })
}

fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}
