//! Files and standard input: decompressed, recognized by their first bytes.

use super::counting::Counted;
use super::follow::Follow;
use super::progress::Progress;
use crate::failure::{Failure, OneLine, Result};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
#[cfg(unix)]
use std::os::{unix::fs::FileTypeExt, unix::net::UnixStream};
use std::path::{Path, PathBuf};
use trace_common::Cursor;

/// The format of an input, detected by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A Go execution trace of any version.
    GoTrace,
    /// A Go execution trace as text: `Trace Go1.N`.
    GoText,
    /// A test of a Go execution trace: `-- expect --`.
    GoTest,
    /// A profile of `runtime/pprof` or `go test -cpuprofile`.
    Pprof,
    /// A recording of Linux `perf`.
    PerfData,
    /// A .NET trace, NetTrace or NetPerf.
    NetTrace,
    /// Readings of `cpu.stat`, which `triscope record --keep` wrote.
    CpuStat,
    /// None of these.
    Unknown,
}

impl Format {
    fn of(head: &[u8]) -> Self {
        const SIGNATURES: [(&[u8], Format); 9] = [
            (b"go 1.", Format::GoTrace),
            (b"Trace Go", Format::GoText),
            (b"-- expect --", Format::GoTest),
            (b"PERFILE2", Format::PerfData),
            (b"PERFFILE", Format::PerfData),
            // Of a big-endian machine.
            (b"2ELIFREP", Format::PerfData),
            (b"Nettrace", Format::NetTrace),
            (crate::sources::quota::SIGNATURE, Format::CpuStat),
            (b"\x14\0\0\0!FastSerialization", Format::NetTrace),
        ];
        let known = SIGNATURES.into_iter().find(|(signature, _)| head.starts_with(signature));
        match known {
            Some((_, format)) => format,
            None if looks_like_pprof(head) => Self::Pprof,
            None => Self::Unknown,
        }
    }

    /// The usual name of the format, if it is known.
    pub(crate) fn description(self) -> Option<&'static str> {
        Some(match self {
            Self::GoTrace | Self::GoText | Self::GoTest => "a Go execution trace",
            Self::Pprof => "a pprof profile",
            Self::PerfData => "a perf.data recording of Linux perf",
            Self::NetTrace => "a .NET trace",
            Self::CpuStat => "readings of the CPU quota of cgroups",
            Self::Unknown => return None,
        })
    }
}

/// Whether this is the beginning of a protobuf message with the fields of a profile, in any order,
/// including the type of a value.
///
/// Source: `proto/profile.proto` of pprof.
fn looks_like_pprof(head: &[u8]) -> bool {
    const VARINT: u64 = 0;
    const BYTES: u64 = 2;
    let mut cursor = Cursor::new(head);
    let mut value_types = 0;
    loop {
        let Ok(key) = cursor.uvarint() else { return value_types > 0 };
        match (key >> 3, key & 7) {
            (7..=10 | 12 | 14, VARINT) => {
                let _ = cursor.uvarint();
            }
            (field @ (1..=6 | 11 | 13), BYTES) => {
                let len = cursor.uvarint().unwrap_or(0);
                // A value type consists of two string indexes: name and unit.
                if matches!(field, 1 | 11) {
                    if !(2..=12).contains(&len) || cursor.peek().is_some_and(|key| key != 0x08) {
                        return false;
                    }
                    value_types += 1;
                }
                let inside = cursor.remaining().min(usize::try_from(len).unwrap_or(usize::MAX));
                let _ = cursor.skip(inside);
            }
            _ => return false,
        }
    }
}

/// Refuses an input that can be read only once: standard input, a pipe or a socket. `reader` is
/// what reads it twice.
pub(crate) fn check_twice(path: &Path, reader: &str) -> Result {
    if is_file(path) {
        return Ok(());
    }
    let name: &dyn std::fmt::Display =
        if path.as_os_str() == "-" { &"standard input" } else { &path.display() };
    let message = format!("{reader} reads the trace twice: save it to a file first");
    Err(Failure::about(name, message))
}

/// Refuses a file that is given twice, also by another name: all that it has would count twice.
pub(crate) fn check_distinct(paths: &[PathBuf]) -> Result {
    let mut known: HashMap<Identity, &PathBuf> = HashMap::new();
    for path in paths {
        let before = identity(path).and_then(|identity| known.insert(identity, path));
        if let Some(before) = before {
            let why = match before == path {
                true => "is given twice".to_owned(),
                false => format!("is the same file as {}", OneLine(&before.to_string_lossy())),
            };
            return Err(Failure::about(path.display(), why).with_code(2));
        }
    }
    Ok(())
}

/// The device and inode of a file. Standard input, and what cannot be opened, has none.
#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).ok().filter(|_| path.as_os_str() != "-")?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(unix)]
type Identity = (u64, u64);

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<Identity> {
    std::fs::canonicalize(path).ok()
}

#[cfg(not(unix))]
type Identity = PathBuf;

/// Whether an input can be read more than once. What cannot be opened counts as a file: opening it
/// reports the error.
pub(crate) fn is_file(path: &Path) -> bool {
    let is_stream = |file: std::fs::FileType| !file.is_file() && !file.is_dir();
    path.as_os_str() != "-"
        && !std::fs::metadata(path).is_ok_and(|metadata| is_stream(metadata.file_type()))
}

/// An open input: [`Read`] returns its content, decompressed.
pub(crate) struct Input {
    /// Its name in messages.
    pub(crate) name: String,
    /// The format of its content.
    pub(crate) format: Format,
    /// Whether the file itself has other bytes.
    pub(crate) is_compressed: bool,
    bytes: Box<dyn Read + Send>,
}

impl Input {
    /// Opens a file, connects to a Unix socket, or takes standard input if `path` is `-`.
    pub(crate) fn open(path: &Path, progress: Progress) -> Result<Self> {
        if path.as_os_str() == "-" {
            let counted = Counted::new(io::stdin(), progress);
            return Self::of("standard input".to_owned(), counted);
        }
        let name = path.display().to_string();
        let fail = |error: io::Error| Failure::about(&name, describe(&error));
        #[cfg(unix)]
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
            let socket = UnixStream::connect(path).map_err(fail)?;
            return Self::of(name, Counted::new(socket, progress));
        }
        let file = File::open(path).map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        if metadata.is_dir() {
            return Err(Failure::about(&name, "is a directory, not a file"));
        }
        if metadata.is_file() {
            progress.set_total(metadata.len());
        }
        Self::of(name, Counted::new(file, progress))
    }

    /// The content of a file that is still being written.
    pub(crate) fn follow(path: &Path, file: Follow, progress: Progress) -> Result<Self> {
        Self::of(path.display().to_string(), Counted::new(file, progress))
    }

    fn of(name: String, source: impl Read + Send + 'static) -> Result<Self> {
        let fail = |error: io::Error| Failure::about(&name, describe(&error));
        let (head, raw) = peek(source).map_err(fail)?;
        let is_compressed = head.starts_with(GZIP) || head.starts_with(ZSTD);
        let bytes: Box<dyn Read + Send> = match &head[..] {
            [] => return Err(Failure::about(&name, "is empty")),
            head if head.starts_with(GZIP) => Box::new(flate2::read::MultiGzDecoder::new(raw)),
            head if head.starts_with(ZSTD) => zstd(raw).map_err(fail)?,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
                let hint =
                    "is compressed with xz, which is not supported: decompress it with xz -d";
                return Err(Failure::about(&name, hint));
            }
            _ => Box::new(raw),
        };
        let (head, bytes) = peek(bytes).map_err(fail)?;
        if head.is_empty() {
            return Err(Failure::about(&name, "holds nothing when decompressed"));
        }
        let format = Format::of(&head);
        Ok(Self { name, format, is_compressed, bytes: Box::new(bytes) })
    }

    /// A failure of this input.
    pub(crate) fn failure(&self, message: impl std::fmt::Display) -> Failure {
        Failure::about(&self.name, message)
    }
}

impl Read for Input {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.bytes.read(out)
    }
}

/// Decompresses all frames of zstd.
#[cfg(unix)]
fn zstd(raw: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let buffered = io::BufReader::with_capacity(1 << 17, raw);
    Ok(Box::new(zstd::Decoder::with_buffer(buffered)?))
}

/// The same without C code.
#[cfg(not(unix))]
fn zstd(raw: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    Ok(Box::new(super::zstd_frames::Frames::new(raw)))
}

/// The failure to read an input.
pub(crate) fn failure(path: &Path, error: &io::Error) -> Failure {
    Failure::about(path.display(), describe(error))
}

/// The message of an error without the number that Rust appends.
fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.clone(), |(text, _)| text.to_lowercase())
}

/// The magic numbers of compressed files.
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Number of bytes used to detect the format.
const HEAD: u64 = 64;

/// Returns the first bytes of a source, and a reader that starts with these bytes again.
fn peek(mut source: impl Read) -> io::Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::new();
    source.by_ref().take(HEAD).read_to_end(&mut head)?;
    Ok((head.clone(), io::Cursor::new(head).chain(source)))
}
