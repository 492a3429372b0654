//! What runtimes the recorded process has, found while it runs.

use super::Version;
use crate::failure::{Failure, Result};
use crate::run::pprof::{Download, listening};
use crate::run::{go_program, procfs};
use diag_ipc::discovery::Process;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempPath;

/// Interval between looks at the process.
const LOOK: Duration = Duration::from_millis(100);

/// A trace without a time limit: until the end of the recording.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// The text in programs that import `net/http/pprof`.
const PPROF: &[u8] = b"/debug/pprof/trace";

/// The marker in hosts of .NET programs, inverted so that this program does not contain it:
/// `bundle_marker.cpp` of the .NET runtime.
const INVERTED_DOTNET_HOST: [u8; 32] = [
    0x74, 0xed, 0xfd, 0x46, 0x95, 0x9e, 0xdf, 0xc7, 0x8d, 0x84, 0x6c, 0xfd, 0xeb, 0x28, 0x5f, 0xcd,
    0xec, 0x0a, 0x46, 0x19, 0x10, 0x51, 0xcc, 0xe7, 0x11, 0xc4, 0xd2, 0x31, 0xdb, 0x4c, 0x95, 0x51,
];

/// Bytes of a program that are searched.
const MAX_SEARCH: u64 = 256 << 20;

/// Whether a command is a .NET program, whose runtime connects to a diagnostic port at startup.
pub(super) fn is_dotnet_command(command: &[String]) -> bool {
    let Some(program) = command.first().and_then(|name| find(name)) else { return false };
    // The compiler must not compute the marker.
    let marker = std::hint::black_box(INVERTED_DOTNET_HOST).map(|byte| !byte);
    program.file_name().is_some_and(|name| name == "dotnet") || contains(&program, &marker)
}

/// Whether a running process has a .NET runtime.
pub(super) fn is_dotnet_process(pid: u32) -> bool {
    Process::find(pid).is_ok()
}

/// The file of a command, by the search path.
fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Whether a file contains this text.
fn contains(path: &Path, text: &[u8]) -> bool {
    let search = || -> io::Result<bool> {
        let mut file = File::open(path)?.take(MAX_SEARCH);
        let mut block = vec![0; 1 << 20];
        let mut kept = 0;
        loop {
            let read = file.read(block.get_mut(kept..).unwrap_or_default())?;
            let filled = block.get(..kept + read).unwrap_or_default();
            if has(filled, text) {
                return Ok(true);
            }
            if read == 0 {
                return Ok(false);
            }
            let keep = filled.len().min(text.len() - 1);
            let from = filled.len() - keep;
            block.copy_within(from..from + keep, 0);
            kept = keep;
        }
    };
    search().unwrap_or(false)
}

fn has(block: &[u8], text: &[u8]) -> bool {
    let Some((first, rest)) = text.split_first() else { return true };
    let mut block = block;
    while let Some(at) = block.iter().position(|byte| byte == first) {
        block = block.get(at + 1..).unwrap_or_default();
        if block.starts_with(rest) {
            return true;
        }
    }
    false
}

/// The Go trace of the recorded process, if it has one.
pub(super) struct GoTrace {
    pid: u32,
    limit: Duration,
    /// Files that the command line names, as they were before.
    arguments: Vec<(PathBuf, Version)>,
    /// The executable that was examined, and what it is.
    program: Option<(PathBuf, Option<Program>)>,
    tried: HashSet<SocketAddr>,
    refusals: Vec<Failure>,
    found: Option<Found>,
    looked: Option<Instant>,
}

struct Program {
    version: String,
    has_pprof: bool,
}

enum Found {
    /// The program writes it.
    File(PathBuf),
    Download(Download),
}

/// A Go trace of which nothing more comes.
pub(super) enum Ended {
    File(PathBuf),
    Downloaded(TempPath),
}

impl Ended {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Downloaded(path) => path,
        }
    }
}

impl GoTrace {
    /// Prepares for a command that is about to be started.
    pub(super) fn of_command(command: &[String], limit: Option<Duration>) -> Self {
        let values = command.iter().skip(1).map(|word| match word.split_once('=') {
            Some((option, value)) if option.starts_with('-') => value,
            _ => word,
        });
        let paths = values.filter(|word| !word.is_empty()).map(PathBuf::from);
        let arguments = paths.map(|path| (path.clone(), Version::of(&path))).collect();
        Self::new(limit, arguments)
    }

    /// Prepares for a running process.
    pub(super) fn of_process(pid: u32, limit: Option<Duration>) -> Self {
        Self { pid, ..Self::new(limit, Vec::new()) }
    }

    fn new(limit: Option<Duration>, arguments: Vec<(PathBuf, Version)>) -> Self {
        Self {
            pid: 0,
            limit: limit.unwrap_or(LONG),
            arguments,
            program: None,
            tried: HashSet::new(),
            refusals: Vec::new(),
            found: None,
            looked: None,
        }
    }

    pub(super) const fn set_pid(&mut self, pid: u32) {
        self.pid = pid;
    }

    /// Whether the process is a Go program.
    pub(super) fn is_go(&mut self) -> bool {
        if self.pid != 0 {
            self.examine();
        }
        matches!(self.program, Some((_, Some(_))))
    }

    /// Finds out what the process executes: it can change by `execve(2)`.
    fn examine(&mut self) {
        let exe = PathBuf::from(format!("/proc/{}/exe", self.pid));
        let Ok(path) = std::fs::read_link(&exe) else { return };
        if self.program.as_ref().is_none_or(|(known, _)| *known != path) {
            let program = go_program::version(&exe).map(|version| {
                let has_pprof = contains(&exe, PPROF);
                Program { version, has_pprof }
            });
            self.program = Some((path, program));
        }
    }

    /// Looks at the process from time to time.
    pub(super) fn look(&mut self) {
        if self.found.is_some() || self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        self.examine();
        let Some((_, Some(program))) = &self.program else { return };
        if let Some(path) = procfs::written_files(self.pid).into_iter().find(|f| is_go_trace(f)) {
            self.found = Some(Found::File(path));
            return;
        }
        // Connecting to another network namespace would reach another program.
        if !program.has_pprof || !procfs::shares_network(self.pid) {
            return;
        }
        for address in listening(self.pid) {
            if self.tried.insert(address) {
                match Download::start(address, self.limit) {
                    Ok(download) => {
                        eprintln!("triscope: the Go trace comes from http://{address}/debug/pprof");
                        self.found = Some(Found::Download(download));
                        return;
                    }
                    Err(refusal) => self.refusals.push(refusal),
                }
            }
        }
    }

    /// The trace; `None` if the process is no Go program.
    pub(super) fn finish(mut self) -> Result<Option<Ended>> {
        match self.found.take() {
            Some(Found::File(path)) => return Ok(Some(Ended::File(path))),
            Some(Found::Download(download)) => {
                return download.finish().map(|file| Some(Ended::Downloaded(file)));
            }
            None => {}
        }
        let written =
            |(path, before): &(PathBuf, Version)| Version::of(path) != *before && is_go_trace(path);
        if let Some((path, _)) = self.arguments.iter().find(|argument| written(argument)) {
            return Ok(Some(Ended::File(path.clone())));
        }
        let Some((path, Some(program))) = self.program else { return Ok(None) };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Program { version, has_pprof } = program;
        let why = match self.refusals.pop() {
            Some(Failure::Message(refusal, _)) => format!("it refuses a trace: {refusal}"),
            _ if has_pprof => "it did not listen on a loopback address".to_owned(),
            _ => "it writes no execution trace and does not serve net/http/pprof: call \
                  runtime/trace.Start, or import net/http/pprof"
                .to_owned(),
        };
        Err(Failure::about(format!("{name} ({version})"), why))
    }
}

/// Whether a file begins as a Go execution trace does.
fn is_go_trace(path: &Path) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let mut head = Vec::new();
    let read = is_file
        .then(|| File::open(path))
        .and_then(|file| BufReader::new(file.ok()?).take(16).read_to_end(&mut head).ok());
    read.is_some() && head.starts_with(b"go 1.") && has(&head, b" trace\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_across_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut bytes = vec![b'/'; (1 << 20) - 4];
        bytes.extend_from_slice(b"//debug/pprof/trace?");
        std::fs::write(&path, &bytes).unwrap();
        assert!(contains(&path, PPROF));
        assert!(!contains(&path, b"/debug/pprof/heap"));
        assert!(!contains(dir.path(), PPROF));
    }

    #[test]
    fn this_program_is_no_dotnet_host() {
        let own = std::env::current_exe().unwrap();
        assert!(!is_dotnet_command(&[own.to_str().unwrap().to_owned()]));
        assert!(is_dotnet_command(&["/usr/bin/dotnet".to_owned()]));
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("app");
        std::fs::write(&host, INVERTED_DOTNET_HOST.map(|byte| !byte)).unwrap();
        assert!(is_dotnet_command(&[host.to_str().unwrap().to_owned()]));
    }

    #[test]
    fn only_go_traces_are_go_traces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"go 1.26 trace\0\0\0rest").unwrap();
        assert!(is_go_trace(&path));
        std::fs::write(&path, b"go 1.26 is out").unwrap();
        assert!(!is_go_trace(&path));
        assert!(!is_go_trace(dir.path()));
    }
}
