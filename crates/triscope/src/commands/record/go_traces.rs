//! Go traces of the recorded processes, found while they run.

use super::Version;
use crate::failure::{Failure, OneLine, Result};
use crate::io::regular;
use crate::io::unnamed::descriptor;
use crate::run::family::Turns;
use crate::run::pprof::{Answer, Download, Listening, listening};
use crate::run::procfs;
use crate::run::programs::{FileId, GoProgram, Programs, has};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{File, Metadata};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

/// A trace without a time limit: until the end of the recording.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Traces of a recording: each may be a download.
const MAX_TRACES: usize = 64;

/// Known processes that are examined again at each look: they can execute another program, begin a
/// trace, or listen.
const AGAIN: usize = 64;

/// Programs without a trace that are named at the end.
const MAX_NAMED: usize = 16;

/// Which Go traces are looked for.
pub(super) struct Wanted {
    /// The only trace that is looked for.
    named: Option<PathBuf>,
    /// The process of the command, once it is known.
    subject: u32,
    limit: Duration,
    began: SystemTime,
    /// Files that the command line names, as they were before.
    arguments: Vec<(PathBuf, Version)>,
}

/// The Go traces of the recorded processes, or the process of one that was named.
pub(super) struct GoTraces {
    wanted: Wanted,
    /// The directory of traces that are served.
    dir: PathBuf,
    programs: Programs,
    processes: BTreeMap<u32, Process>,
    turns: Turns,
    found: Vec<Found>,
    /// Downloads that their process has not accepted yet.
    asked: BTreeMap<u32, Download>,
    /// Downloads that were accepted and have failed.
    failures: Vec<Failure>,
    /// Processes without a trace, by program and reason.
    missing: BTreeMap<(String, String), u64>,
    /// Processes that had a trace, or a reason, above the limit.
    ignored: BTreeSet<u32>,
}

/// A recorded process.
struct Process {
    file: Option<FileId>,
    program: Option<Rc<GoProgram>>,
    arguments: Arguments,
    /// Whether there is a trace of it.
    has_trace: bool,
    /// Whether it has written one: while it is asked for another, it cannot begin its next one.
    is_writer: bool,
    /// Whether it was seen before. Between `fork(2)` and `execve(2)`, a child has the executable and
    /// the files of its parent.
    is_settled: bool,
    /// Addresses that have sent no trace.
    tried: HashSet<SocketAddr>,
    refusal: Option<Failure>,
    pace: Pace,
}

/// The looks at a process at which its files and sockets are examined: the more of them showed nothing, the
/// rarer. What comes later is found within a fourth of the time that the process has run.
#[derive(Default)]
struct Pace {
    looks: u32,
    next: u32,
}

impl Pace {
    /// Looks between two examinations, at most: three seconds.
    const MAX: u32 = 30;

    /// Counts a look. Returns whether the process is to be examined.
    fn is_due(&mut self) -> bool {
        let look = self.looks;
        self.looks = look.saturating_add(1);
        let is_due = look >= self.next;
        if is_due {
            self.next = look.saturating_add((look / 4).clamp(1, Self::MAX));
        }
        is_due
    }
}

/// Files that the command line of a process names.
#[derive(Default)]
struct Arguments {
    paths: Vec<PathBuf>,
    /// The root directory of the process, if it is another one than that of this program: paths are below its descriptor.
    _root: Option<File>,
}

struct Found {
    pid: u32,
    /// The name of the program.
    name: String,
    source: Source,
}

enum Source {
    /// The program writes it, or has sent it. A process can have it under another name than this program, or under
    /// none.
    File(File, PathBuf),
    Download(Download),
}

/// A Go trace of which nothing more comes.
pub(super) struct GoTrace {
    pub(super) pid: u32,
    /// The name of the program; empty for that of the command.
    pub(super) name: String,
    /// Its name in messages.
    pub(super) shown: String,
    file: File,
}

impl GoTrace {
    pub(super) fn path(&self) -> PathBuf {
        descriptor(&self.file)
    }
}

impl Wanted {
    /// Prepares for a command that is about to be started.
    pub(super) fn of_command(command: &[String], limit: Option<Duration>) -> Self {
        let paths = paths(command.iter().map(String::as_str));
        let arguments = paths.map(|path| (path.clone(), Version::of(&path))).collect();
        Self::new(0, limit, arguments)
    }

    /// Prepares for a running process.
    pub(super) fn of_process(pid: u32, limit: Option<Duration>) -> Self {
        Self::new(pid, limit, Vec::new())
    }

    /// Prepares to find the process that writes this trace: the command can be a shell or `go test`, which
    /// starts the program.
    pub(super) fn of_named(trace: &Path) -> Self {
        Self { named: Some(trace.to_owned()), ..Self::new(0, None, Vec::new()) }
    }

    fn new(subject: u32, limit: Option<Duration>, arguments: Vec<(PathBuf, Version)>) -> Self {
        Self {
            named: None,
            subject,
            limit: limit.unwrap_or(LONG),
            began: SystemTime::now(),
            arguments,
        }
    }

    pub(super) const fn set_pid(&mut self, pid: u32) {
        self.subject = pid;
    }
}

impl GoTraces {
    pub(super) fn new(wanted: Wanted, dir: PathBuf) -> Self {
        Self {
            wanted,
            dir,
            programs: Programs::default(),
            processes: BTreeMap::new(),
            turns: Turns::default(),
            found: Vec::new(),
            asked: BTreeMap::new(),
            failures: Vec::new(),
            missing: BTreeMap::new(),
            ignored: BTreeSet::new(),
        }
    }

    /// Looks at the recorded processes: at those that are new, and again at a few others.
    pub(super) fn look(&mut self, processes: &BTreeSet<u32>) {
        if self.wanted.named.is_some() && !self.found.is_empty() {
            return;
        }
        self.hear();
        self.receive();
        self.downloads().chain(self.asked.values()).for_each(Download::look);
        let is_gone = |pid: &&u32| !processes.contains(pid);
        // Those that were started last first: `go test` has the options of the program that it starts.
        let gone: Vec<u32> = self.processes.keys().rev().filter(is_gone).copied().collect();
        for pid in gone {
            self.conclude(pid);
        }
        let is_new = |pid: &&u32| !self.processes.contains_key(pid);
        let new: Vec<u32> = processes.iter().filter(is_new).copied().collect();
        let again = self.turns.next(&self.processes, AGAIN);
        for pid in new.into_iter().chain(again) {
            self.examine(pid);
        }
    }

    /// Takes the answers of the processes that were asked.
    fn hear(&mut self) {
        for (pid, download) in std::mem::take(&mut self.asked) {
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            match (download.answer(), &process.program) {
                (Answer::Accepted, Some(program)) => {
                    let (name, address) = (program.name.clone(), download.address());
                    message!(
                        "triscope: the Go trace of {} ({pid}) comes from http://{address}/debug/pprof",
                        OneLine(&name)
                    );
                    process.has_trace = true;
                    self.add(pid, name, Source::Download(download));
                }
                (Answer::Pending, Some(_)) => drop(self.asked.insert(pid, download)),
                (Answer::Refused, _) | (_, None) => process.refusal = download.finish().err(),
            }
        }
    }

    /// Takes what was sent to its end. A process that has sent a trace can be asked for another one.
    fn receive(&mut self) {
        for Found { pid, name, source } in std::mem::take(&mut self.found) {
            let source = match source {
                Source::Download(download) if download.is_complete() => {
                    let (address, shown) = (download.address(), download.name());
                    match download.finish() {
                        Ok(file) => {
                            let process = self.processes.get_mut(&pid);
                            if let Some(process) = process.filter(|_| is_trace(&file)) {
                                process.tried.remove(&address);
                            }
                            Source::File(file, shown.into())
                        }
                        Err(failure) => {
                            self.failures.push(failure);
                            continue;
                        }
                    }
                }
                source => source,
            };
            self.found.push(Found { pid, name, source });
        }
    }

    /// A download without an answer may still become a trace.
    fn expect(&mut self, pid: u32) {
        let Some(download) = self.asked.remove(&pid) else { return };
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if download.answer() == Answer::Refused {
            process.refusal = download.finish().err();
            return;
        }
        process.has_trace = true;
        let name = process.program.as_ref().map(|program| program.name.clone());
        self.add(pid, name.unwrap_or_default(), Source::Download(download));
    }

    fn examine(&mut self, pid: u32) {
        let executable = Programs::file(pid);
        let file = executable.map(|executable| executable.id);
        if file.is_none() || self.processes.get(&pid).is_none_or(|known| known.file != file) {
            // It executes another program: a trace of the one before has ended.
            self.conclude(pid);
            // It can end while its executable is searched.
            let arguments = Arguments::of(pid);
            let program = executable.and_then(|executable| self.programs.go(pid, executable));
            let arguments = program.as_ref().map(|_| arguments).unwrap_or_default();
            let process = Process {
                file,
                program,
                arguments,
                has_trace: false,
                is_writer: false,
                is_settled: pid == self.wanted.subject,
                tried: HashSet::new(),
                refusal: None,
                pace: Pace::default(),
            };
            self.processes.insert(pid, process);
        }
        let is_served = self.asked.contains_key(&pid) || self.is_served(pid);
        let is_full = self.found.len() + self.asked.len() + self.failures.len() >= MAX_TRACES;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if is_served || (is_full && process.has_trace) {
            return;
        }
        let Some(program) = process.program.clone().filter(|_| process.pace.is_due()) else {
            return;
        };
        let has_written = self.add_written(pid, &program.name);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.has_trace |= has_written;
        process.is_writer |= has_written;
        let is_settled = std::mem::replace(&mut process.is_settled, true);
        if !is_settled || process.is_writer || !program.has_pprof || self.wanted.named.is_some() {
            return;
        }
        match process.untried(pid, is_full) {
            Ok(Some(listening)) => {
                process.tried.insert(listening.address);
                self.asked.insert(pid, Download::start(listening, self.wanted.limit, &self.dir));
            }
            Ok(None) => {}
            Err(refusal) => process.refusal = Some(refusal),
        }
    }

    /// Whether the process sends a trace.
    fn is_served(&self, pid: u32) -> bool {
        let is_it = |found: &Found| found.pid == pid && matches!(found.source, Source::Download(_));
        self.found.iter().any(is_it)
    }

    /// Adds the traces that a process writes. Returns whether there are any.
    fn add_written(&mut self, pid: u32, name: &str) -> bool {
        let mut has_written = false;
        for (at, path) in procfs::written_files(pid) {
            if let Some(file) = go_trace(&at, self.wanted.named.as_deref()) {
                has_written = true;
                self.add(pid, name.to_owned(), Source::File(file, path));
            }
        }
        has_written
    }

    /// Adds a trace, unless it is known or there are too many.
    fn add(&mut self, pid: u32, name: String, source: Source) {
        if let Source::File(file, _) = &source {
            let is_it = |found: &Found| match &found.source {
                Source::File(other, _) => is_same(other.metadata(), file.metadata()),
                Source::Download(_) => false,
            };
            if self.found.iter().any(is_it) {
                return;
            }
        }
        if self.found.len() >= MAX_TRACES {
            self.ignored.insert(pid);
            return;
        }
        self.found.push(Found { pid, name, source });
    }

    /// The process has ended: was there a trace?
    fn conclude(&mut self, pid: u32) {
        self.expect(pid);
        let Some(process) = self.processes.remove(&pid) else { return };
        let Some(program) = process.program.filter(|_| process.is_settled) else { return };
        let mut has_trace = process.has_trace;
        for path in process.arguments.paths {
            let written = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
            let is_new = written.is_ok_and(|at| at >= self.wanted.began);
            let named = self.wanted.named.as_deref();
            if let Some(file) = is_new.then(|| go_trace(&path, named)).flatten() {
                has_trace = true;
                self.add(pid, program.name.clone(), Source::File(file, path));
            }
        }
        if has_trace || self.wanted.named.is_some() {
            return;
        }
        let why = match process.refusal {
            Some(Failure::Message(refusal, _)) => format!("it sent no trace: {refusal}"),
            _ if program.has_pprof => "it did not listen on a loopback address".to_owned(),
            _ => "no execution trace of it was seen: call runtime/trace.Start and name the file \
                  with --go-trace, or import net/http/pprof"
                .to_owned(),
        };
        let key = (format!("{} ({})", program.name, program.version), why);
        // There are few programs, but a refusal can have any text.
        if self.missing.len() < MAX_TRACES || self.missing.contains_key(&key) {
            *self.missing.entry(key).or_default() += 1;
        } else {
            self.ignored.insert(pid);
        }
    }

    /// Requests the end of all traces that are served.
    pub(super) fn stop(&mut self) {
        let asked: Vec<u32> = self.asked.keys().copied().collect();
        asked.into_iter().for_each(|pid| self.expect(pid));
        self.downloads().for_each(Download::stop);
    }

    /// Whether all traces that are served are complete.
    pub(super) fn are_complete(&self) -> bool {
        self.downloads().all(Download::is_complete)
    }

    fn downloads(&self) -> impl Iterator<Item = &Download> {
        self.found.iter().filter_map(|found| match &found.source {
            Source::Download(download) => Some(download),
            Source::File(..) => None,
        })
    }

    /// The traces, and for the processes without one the reasons.
    pub(super) fn finish(mut self) -> (Vec<GoTrace>, Vec<Failure>) {
        self.stop();
        let left: Vec<u32> = self.processes.keys().rev().copied().collect();
        left.into_iter().for_each(|pid| self.conclude(pid));
        let written = |(path, before): (PathBuf, Version)| {
            let is_written = Version::of(&path) != before;
            Some((is_written.then(|| go_trace(&path, None))??, path))
        };
        let arguments = std::mem::take(&mut self.wanted.arguments);
        for (file, path) in arguments.into_iter().filter_map(written) {
            self.add(self.wanted.subject, String::new(), Source::File(file, path));
        }
        let (mut traces, mut failures) = (Vec::new(), self.failures);
        for Found { pid, name, source } in self.found {
            let name = if pid == self.wanted.subject { String::new() } else { name };
            let (shown, file) = match source {
                Source::File(file, path) => (path.display().to_string(), Ok(file)),
                Source::Download(download) => (download.name(), download.finish()),
            };
            match file {
                Ok(file) => traces.push(GoTrace { pid, name, shown, file }),
                Err(failure) => failures.push(failure),
            }
        }
        let named = self.missing.len().min(MAX_NAMED);
        let ignored = self.ignored.len() as u64;
        let unnamed = self.missing.values().skip(named).sum::<u64>() + ignored;
        for ((program, why), count) in self.missing.into_iter().take(named) {
            let program = if count > 1 { format!("{program}, {count} processes") } else { program };
            failures.push(Failure::about(program, why));
        }
        if unnamed > 0 {
            let processes = if unnamed == 1 { "process" } else { "processes" };
            failures.push(Failure::new(format_args!("{unnamed} more Go {processes}")));
        }
        (traces, failures)
    }
}

impl Process {
    /// An address that may serve its trace. An error if none is asked.
    fn untried(&self, pid: u32, is_full: bool) -> Result<Option<Listening>> {
        // Connecting to another network namespace would reach another program.
        match procfs::shares_network(pid) {
            Some(true) => {}
            Some(false) => return Err(Failure::new("it has another network namespace")),
            None => return Ok(None),
        }
        if is_full {
            return Err(Failure::new(format_args!("{MAX_TRACES} other traces are recorded")));
        }
        Ok(listening(pid).into_iter().find(|listening| !self.tried.contains(&listening.address)))
    }
}

/// The words of a command line that can be files: arguments, and values of options.
fn paths<'a>(command: impl Iterator<Item = &'a str>) -> impl Iterator<Item = PathBuf> {
    let values = command.skip(1).map(|word| match word.split_once('=') {
        Some((option, value)) if option.starts_with('-') => value,
        _ => word,
    });
    values.filter(|word| !word.is_empty()).map(PathBuf::from)
}

impl Arguments {
    /// Those of a process, from its working directory.
    fn of(pid: u32) -> Self {
        let dir = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        let line = procfs::command_line(pid);
        let paths = paths(line.iter().map(String::as_str)).map(|path| dir.join(path));
        let root = procfs::other_root(pid);
        let here = |path: PathBuf| match &root {
            Some(root) => descriptor(root).join(path.strip_prefix("/").unwrap_or(&path)),
            None => path,
        };
        Self { paths: paths.map(here).collect(), _root: root }
    }
}

fn is_same(a: io::Result<Metadata>, b: io::Result<Metadata>) -> bool {
    let id = |file: io::Result<Metadata>| file.map(|file| (file.dev(), file.ino())).ok();
    let a = id(a);
    a.is_some() && a == id(b)
}

/// Opens a file, if it begins as a Go execution trace does, and is the one that was named.
fn go_trace(path: &Path, named: Option<&Path>) -> Option<File> {
    // To open another file can have an effect. The process can put one in its place meanwhile.
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let file = is_file.then(|| regular::open(path).ok())??;
    // To open it would wait for a writer, if it is a FIFO.
    let is_named = |named| is_same(std::fs::metadata(named), file.metadata());
    (is_trace(&file) && named.is_none_or(is_named)).then_some(file)
}

/// Whether a file begins as a Go execution trace does.
fn is_trace(file: &File) -> bool {
    let mut head = [0; 16];
    let has_head = file.read_exact_at(&mut head, 0).is_ok();
    has_head && head.starts_with(b"go 1.") && has(&head, b" trace\0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::wait;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::process::{Child, ChildStdout, Command, Stdio};

    #[test]
    fn processes_without_news_are_examined_rarely() {
        let mut pace = Pace::default();
        let due: Vec<u32> = (0..6000).filter(|_| pace.is_due()).collect();
        assert_eq!(due[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]);
        assert!(due.len() < 250, "{}", due.len());
        let is_soon = |pair: &[u32]| pair[1] - pair[0] <= (pair[0] / 4).clamp(1, Pace::MAX);
        assert!(due.windows(2).all(is_soon), "{due:?}");
    }

    #[test]
    fn values_of_options_are_paths() {
        let words = ["server", "-trace=a.out", "--", "b", "x=y", "-o="];
        let paths: Vec<PathBuf> = paths(words.into_iter()).collect();
        assert_eq!(paths, ["a.out", "--", "b", "x=y"].map(PathBuf::from));
    }

    #[test]
    fn a_file_with_two_names_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| dir.path().join(name));
        for path in [&a, &c] {
            std::fs::write(path, b"go 1.26 trace\0\0\0rest").unwrap();
        }
        std::os::unix::fs::symlink(&a, &b).unwrap();
        let mut traces = GoTraces::new(Wanted::of_process(1, None), PathBuf::new());
        for path in [a, b, c.clone()] {
            traces.add(1, String::new(), Source::File(go_trace(&path, None).unwrap(), path));
        }
        // Their process can remove them.
        std::fs::remove_file(&c).unwrap();
        let (traces, _) = traces.finish();
        let read = |trace: &GoTrace| std::fs::read(trace.path()).unwrap().ends_with(b"rest");
        assert!(traces.len() == 2 && traces.iter().all(read));
        assert_eq!(traces[1].shown, c.display().to_string());
    }

    /// A child that ends with the test.
    struct Program(Child, BufReader<ChildStdout>);

    impl Program {
        /// Starts a command that prints a line, and records it as a program in Go.
        fn start(command: &mut Command, has_pprof: bool) -> (Self, GoTraces) {
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            let mut program = Self(child, output);
            program.wait_for("started");
            let wanted = Wanted::of_process(program.0.id(), None);
            let mut traces = GoTraces::new(wanted, std::env::temp_dir());
            let (name, version) = ("program".to_owned(), "go1.26".to_owned());
            let go = GoProgram { name, version, has_pprof };
            traces.programs = Programs::with(program.0.id(), go);
            (program, traces)
        }

        fn wait_for(&mut self, line: &str) {
            let mut printed = String::new();
            self.1.read_line(&mut printed).unwrap();
            assert_eq!(printed.trim_end(), line);
        }

        fn look(&self, traces: &mut GoTraces) {
            traces.look(&[self.0.id()].into());
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdin(Stdio::piped());
        shell
    }

    /// The last one is that of an argument, and is never seen open.
    #[test]
    fn all_traces_of_a_process_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trace() { printf 'go 1.26 trace\\0\\0\\0'; }
            echo started; read line; exec 9>a; trace >&9; echo 1; read line
            exec 9>b; trace >&9; trace >\"$0\"; echo 2; read line";
        let (mut program, mut traces) =
            Program::start(shell(script).arg("c").current_dir(dir.path()), false);
        traces.wanted.began = SystemTime::UNIX_EPOCH;
        for line in ["1", "2"] {
            program.look(&mut traces);
            program.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            program.wait_for(line);
        }
        program.look(&mut traces);
        program.look(&mut traces);
        let (traces, failures) = traces.finish();
        let names: Vec<_> = traces.iter().map(|trace| trace.shown.rsplit('/').next()).collect();
        assert_eq!(names, ["a", "b", "c"].map(Some));
        assert!(failures.is_empty());
    }

    #[test]
    fn a_process_without_a_trace_has_the_reason() {
        const SCRIPT: &str = "echo started; read line";
        let why = |command: &mut Command, has_pprof, others: usize| {
            let (program, mut traces) = Program::start(command, has_pprof);
            traces.failures.extend((0..others).map(|_| Failure::new("it has failed")));
            program.look(&mut traces);
            traces.finish().1.pop().unwrap().message().to_owned()
        };
        let none = why(&mut shell(SCRIPT), false, 0);
        assert!(none.starts_with("program (go1.26): no execution trace of it was seen"), "{none}");
        let not_listening = why(&mut shell(SCRIPT), true, 0);
        assert_eq!(not_listening, "program (go1.26): it did not listen on a loopback address");
        let many = why(&mut shell(SCRIPT), true, MAX_TRACES);
        assert!(many.ends_with(": it sent no trace: 64 other traces are recorded"), "{many}");
        let mut unshare = Command::new("unshare");
        let made = unshare.args(["--net", "true"]).output();
        if !made.is_ok_and(|made| made.status.success()) {
            message!("\n==== SKIPPED: another network namespace: needs root");
            return;
        }
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", SCRIPT]).stdin(Stdio::piped());
        let elsewhere = why(&mut unshare, true, 0);
        assert!(elsewhere.ends_with(": it has another network namespace"), "{elsewhere}");
    }

    /// Until it is waited for, nothing can be read of it.
    #[test]
    fn a_process_that_has_ended_has_no_other_namespace() {
        let (mut program, mut traces) = Program::start(&mut shell("echo started; read line"), true);
        program.look(&mut traces);
        let pid = program.0.id();
        program.0.kill().unwrap();
        wait::until("its end", || !procfs::is_running(pid));
        assert_eq!(procfs::shares_network(pid), None);
        assert!(matches!(traces.processes[&pid].untried(pid, false), Ok(None)));
    }

    #[test]
    fn a_process_with_traces_above_the_limit_is_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        let write = |path: &Path| {
            std::fs::write(path, b"go 1.26 trace\0\0\0").unwrap();
            File::open(path).unwrap()
        };
        let known = write(&path);
        let mut traces = GoTraces::new(Wanted::of_process(1, None), PathBuf::new());
        traces.found.extend((0..MAX_TRACES).map(|_| {
            let source = Source::File(known.try_clone().unwrap(), path.clone());
            Found { pid: 1, name: String::new(), source }
        }));
        for (pid, name) in [(7, "a"), (7, "b"), (8, "c")] {
            let path = dir.path().join(name);
            traces.add(pid, name.to_owned(), Source::File(write(&path), path));
        }
        let (traces, failures) = traces.finish();
        assert_eq!(traces.len(), MAX_TRACES);
        let messages: Vec<&str> = failures.iter().map(Failure::message).collect();
        assert_eq!(messages, ["2 more Go processes"]);
    }

    /// A program that answers each request for its trace with this: its socket is also that of the test.
    fn serve(content: &'static str) -> (Program, GoTraces) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = OwnedFd::from(listener.try_clone().unwrap());
        // Ends with the process of the tests.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let _ = lines.map_while(io::Result::ok).find(String::is_empty);
                let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{content}"); // it may have gone
            }
        });
        Program::start(shell("echo started; kill -STOP $$; :").stdin(socket), true)
    }

    #[test]
    fn a_program_whose_trace_has_ended_is_asked_again() {
        let (program, mut traces) = serve("go 1.26 trace\0\0\0");
        wait::until("the second trace", || {
            program.look(&mut traces);
            traces.found.len() == 2
        });
    }

    /// A program can have any page at this address.
    #[test]
    fn a_program_that_sends_no_trace_is_asked_once() {
        let (program, mut traces) = serve("<html></html>");
        wait::until("the page", || {
            program.look(&mut traces);
            matches!(traces.found[..], [Found { source: Source::File(..), .. }])
        });
        for _ in 0..=Pace::MAX {
            program.look(&mut traces);
            assert!(traces.found.len() == 1 && traces.asked.is_empty());
        }
    }

    #[test]
    fn only_go_traces_are_go_traces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"go 1.26 trace\0\0\0rest").unwrap();
        assert!(go_trace(&path, None).is_some() && go_trace(&path, Some(&path)).is_some());
        assert!(go_trace(&path, Some(dir.path())).is_none());
        std::fs::write(&path, b"go 1.26 is out").unwrap();
        assert!(go_trace(&path, None).is_none());
        assert!(go_trace(dir.path(), None).is_none());
    }
}
