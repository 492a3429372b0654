//! Processes as `triscope record --keep` writes them: what `/proc` shows of them and no record of the
//! kernel has.
//!
//! A JSON object on each line, with the keys of [`write`]. Times are nanoseconds of
//! `CLOCK_MONOTONIC`; a process without one was there at the start.

use super::model::PROCESSES;
use perf_monitor::ProcessInfo;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use trace_timeline::Timestamp;
use trace_timeline::sources::perf::ObservedProcess;

/// Processes that are read.
const MAX_PROCESSES: usize = 1 << 17;

/// Bytes of a line: a command line of [`ProcessInfo::MAX_ARGUMENTS`] with escapes, and two paths.
const MAX_LINE: u64 = 1 << 16;

/// Writes processes.
pub(crate) struct ProcessWriter {
    path: PathBuf,
    file: BufWriter<Box<dyn Write>>,
}

impl ProcessWriter {
    /// Creates the file in a directory where none is, for its user only.
    #[cfg(unix)]
    pub(crate) fn create_private(dir: &Path) -> io::Result<Self> {
        let path = dir.join(PROCESSES);
        let file = crate::io::private::create_new(&path)?;
        Ok(Self::start(path, Box::new(file)))
    }

    /// Starts the file, which has this path.
    pub(crate) fn start(path: PathBuf, file: Box<dyn Write>) -> Self {
        Self { path, file: BufWriter::new(file) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a process, at the time of its `execve(2)`.
    pub(crate) fn write(&mut self, at: Option<Timestamp>, process: &ProcessInfo) -> io::Result<()> {
        let container = process.container().filter(|container| container.kind.is_container());
        let line = json!({
            "at": at.map(Timestamp::nanos),
            "pid": process.pid,
            "command_line": process.command_line(),
            "executable": process.executable,
            "cgroup": process.cgroup,
            "container": container.map(|container| container.id),
        });
        writeln!(self.file, "{line}")
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Processes of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Processes {
    pub(crate) observed: Vec<ObservedProcess>,
    /// Lines that are none of [`ProcessWriter`], or too many.
    pub(crate) skipped: u64,
}

/// Reads all processes of a file.
pub(crate) fn read(input: impl Read) -> io::Result<Processes> {
    let mut input = BufReader::new(input);
    let mut processes = Processes::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut input).take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(processes);
        }
        match parse(&line).filter(|_| processes.observed.len() < MAX_PROCESSES) {
            Some(process) => processes.observed.push(process),
            None => processes.skipped += 1,
        }
    }
}

fn parse(line: &[u8]) -> Option<ObservedProcess> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let text = |key| value.get(key).and_then(Value::as_str).unwrap_or_default().into();
    Some(ObservedProcess {
        time: value.get("at").and_then(Value::as_i64).map(Timestamp::from_nanos),
        pid: u32::try_from(value.get("pid")?.as_u64()?).ok()?,
        command_line: text("command_line"),
        executable: text("executable"),
        cgroup: text("cgroup"),
        container: text("container"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::File;

    #[test]
    fn written_processes_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = ProcessWriter::create_private(dir.path()).unwrap();
        let this = ProcessInfo::read(std::process::id()).unwrap();
        let mut other = this.clone();
        other.arguments = vec!["./a".to_owned(), "b\n\"c".to_owned()];
        other.cgroup = Some(format!("/docker/{}", "0123456789abcdef".repeat(4)));
        writer.write(None, &this).unwrap();
        writer.write(Some(Timestamp::from_nanos(7)), &other).unwrap();
        writer.flush().unwrap();
        let Processes { observed, skipped } = read(File::open(writer.path()).unwrap()).unwrap();
        let [first, second] = &observed[..] else { panic!("{observed:?}") };
        assert_eq!((skipped, first.time, first.pid), (0, None, std::process::id()));
        assert_eq!(first.command_line, this.command_line().into_bytes());
        assert_eq!(second.time, Some(Timestamp::from_nanos(7)));
        assert_eq!(second.command_line, b"./a 'b\n\"c'");
        assert_eq!(second.container, "0123456789abcdef".repeat(4).into_bytes());
    }

    #[test]
    fn other_lines_are_counted() {
        let long = format!("{{\"pid\":1,\"command_line\":\"{}\"}}\n", "x".repeat(1 << 17));
        let text = format!("{{}}\n{{\"pid\":-1}}\n[1]\n{{\"pid\":3}}\n{long}{{\"pid\":4");
        let processes = read(text.as_bytes()).unwrap();
        assert_eq!(processes.observed.len(), 1);
        // The long line is three parts.
        assert_eq!(processes.skipped, 3 + 3 + 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_panic(bytes: Vec<u8>) {
            prop_assert!(read(&bytes[..]).is_ok());
        }
    }
}
