//! What an earlier recorder left of its sources.

use super::masked::Masked;
use crate::commands::flight::kernel::is_full;
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
/// and lacks the names of methods. The generations of a session of a Go program become one trace. A file that cannot be
/// copied costs its source, and stays. A full disk is an error.
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
                let mut source = Source::new(kind, pid, "");
                source.start = i64::try_from(at).ok().map(Timestamp::from_nanos);
                match copy(&path, &to.join(&file), command_lines) {
                    Ok(masked) => {
                        source.file = Some(file);
                        source.missing = masked.or_else(|| Some(KILLED.to_owned()));
                        copied.push(path);
                    }
                    Err(error) => source.missing = Some(uncopied(error)?),
                }
                sources.push(source);
            }
            _ => {}
        }
    }
    for ((pid, at), mut generations) in go {
        generations.sort();
        // The recorder of the dump can have another one of this process, and a session can be in two directories.
        let path = private::numbered(to, &format!("go-{pid}-{at}"), "trace");
        let mut joined = Joined { source: Source::new("go", pid, ""), copied: Vec::new() };
        if let Err(error) = joined.write(&generations, &path) {
            let _ = fs::remove_file(&path); // the first error says why
            let mut source = Source::new("go", pid, "");
            source.missing = Some(uncopied(error)?);
            joined = Joined { source, copied: Vec::new() };
        }
        sources.push(joined.source);
        copied.append(&mut joined.copied);
    }
    Ok(Left { sources, copied })
}

/// Why a source is not in a dump. A full disk is an error of the dump.
fn uncopied(error: io::Error) -> io::Result<String> {
    match is_full(&error) {
        true => Err(error),
        false => Ok(format!("all: what a recorder that was killed left cannot be copied: {error}")),
    }
}

/// The generations of a session of a Go program as one trace.
struct Joined {
    source: Source,
    copied: Vec<PathBuf>,
}

impl Joined {
    /// Writes the trace. A generation that cannot be read is left out.
    fn write(&mut self, generations: &[(u64, PathBuf)], to: &Path) -> io::Result<()> {
        let Self { source, copied } = self;
        let (mut out, mut unread) = (private::create_new(to)?, None);
        for (_, path) in generations {
            let bytes = match fs::read(path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    unread.get_or_insert(error);
                    continue;
                }
            };
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
            copied.push(path.clone());
        }
        let unread = unread.map(|error| format!("a generation cannot be read: {error}"));
        if source.end.is_some() {
            out.sync_all()?;
            source.file = to.file_name().map(|name| name.to_string_lossy().into_owned());
            source.missing = unread.or_else(|| Some(KILLED.to_owned()));
        } else {
            fs::remove_file(to)?;
            let why = "the recorder was killed before a generation was whole";
            source.missing = Some(format!("all: {}", unread.as_deref().unwrap_or(why)));
        }
        Ok(())
    }
}

/// Copies a .NET trace, whose recorder may have kept the command line. Returns what is missing for its sake.
fn copy(from: &Path, to: &Path, command_lines: bool) -> io::Result<Option<String>> {
    let mut input = File::open(from)?;
    let file = private::create_new(to)?;
    let mut out = Masked::new(&file, command_lines);
    let copied = io::copy(&mut input, &mut out).and_then(|_| out.finish()).and_then(|missing| {
        file.sync_all()?;
        Ok(missing)
    });
    copied.inspect_err(|_| {
        let _ = fs::remove_file(to); // the first error says why
    })
}

/// Moves the sources of an earlier recorder to another directory: all that can be moved. Returns the first
/// error.
pub(in super::super) fn put_aside(from: &Path, to: &Path) -> io::Result<()> {
    let name = |path: &Path| to.join(path.file_name().unwrap_or_default());
    each(from, |path| fs::rename(&path, name(&path)))
}

/// Removes the oldest files until no more than these bytes are left. One that cannot be removed stays, and the next one is
/// removed.
pub(in super::super) fn shrink(dir: &Path, most: u64) -> io::Result<()> {
    let mut found = Vec::new();
    let mut result = each(dir, |path| {
        let metadata = fs::metadata(&path)?;
        found.push((metadata.modified()?, path, metadata.len()));
        Ok(())
    });
    found.sort_unstable();
    let mut left: u64 = found.iter().map(|(.., bytes)| bytes).sum();
    for (_, path, bytes) in found {
        if left <= most {
            break;
        }
        match fs::remove_file(path) {
            Ok(()) => left -= bytes,
            Err(error) => result = result.and(Err(error)),
        }
    }
    result
}

/// Removes what is left and was written this long ago: all that can be removed.
pub(in super::super) fn clear(dir: &Path, age: Duration) -> io::Result<()> {
    each(dir, |path| {
        let written = fs::metadata(&path)?.modified()?;
        // It may be of the future, as the clock can be set.
        match written.elapsed().unwrap_or_default() >= age {
            true => fs::remove_file(path),
            false => Ok(()),
        }
    })
}

/// Does this with each file of a directory. Returns the first error: it does not keep the others.
fn each(dir: &Path, mut run: impl FnMut(PathBuf) -> io::Result<()>) -> io::Result<()> {
    let mut result = Ok(());
    for path in files(dir)? {
        let one = run(path);
        result = result.and(one);
    }
    result
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        files(dir).unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn a_file_that_stays_does_not_keep_the_others() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = |number: u32| format!("dotnet-{number}-5.nettrace");
        let write = |dir: &Path, numbers: &[u32]| {
            numbers.iter().for_each(|number| fs::write(dir.join(name(*number)), "x").unwrap());
        };
        // No file takes its place, and it is not removed as one. It is the first one, and the oldest.
        fs::create_dir(to.path().join(name(1))).unwrap();
        write(from.path(), &[1, 2, 3]);
        put_aside(from.path(), to.path()).unwrap_err();
        assert_eq!((names(from.path()), names(to.path()).len()), (vec![name(1)], 3));
        clear(to.path(), Duration::ZERO).unwrap_err();
        assert_eq!(names(to.path()), [name(1)]);
        write(to.path(), &[2, 3]);
        shrink(to.path(), 0).unwrap_err();
        assert_eq!(names(to.path()), [name(1)]);
    }
}
