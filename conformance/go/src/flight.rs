//! The flight recorders of running programs of each release, read from their memory by `go-flight`
//! and compared with the bytes that the programs write.

use super::layouts::SINCE;
use super::toolchain::{self, Toolchain};
use super::{Tools, compare, workload};
use go_flight::{Error, Generation, Limits, Process, Program, Snapshot};
use gotrace::Generations;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use task_support::remark::{self, Kind};
use task_support::{Result, cache, lane, run};

const PROGRAM: &str = include_str!("flight/main.go");

/// Kinds of programs: a name, and options of `go build`.
const BUILDS: [(&str, &[&str]); 4] = [
    ("plain", &[]),
    ("stripped", &["-ldflags=-s -w"]),
    ("PIE", &["-buildmode=pie"]),
    ("stripped PIE", &["-buildmode=pie", "-ldflags=-s -w"]),
];

/// The emulator of the other architecture: its programs leave core files of that architecture.
const EMULATOR: (&str, &str) = ("arm64", "qemu-aarch64");

/// The longest period of generations that the runtime accepts (2.1 s), and one of a few hundred
/// microseconds, in nanoseconds.
const LONG: &str = "traceadvanceperiod=2147483647";
const SHORT: &str = "traceadvanceperiod=300000";

/// Turns on the experimental events of allocations.
const EXPERIMENT: &str = "traceallocfree=1";

/// The least number of snapshots of a program whose generations are short, and of different rings in
/// them.
const SNAPSHOTS: usize = 40;
const RINGS: usize = 8;

/// The user `nobody`.
const NOBODY: u32 = 65534;

/// The program for an architecture, built with these options.
pub(crate) fn program(toolchain: &Toolchain, goarch: &str, options: &[&str]) -> Result<PathBuf> {
    let hash = toolchain::content_hash(&[("main.go", PROGRAM), ("options", &options.join("\0"))]);
    let key = format!("go/flight/{}-{goarch}-{hash:016x}", toolchain.version);
    let dir = cache::entry(&key, |dir: &Path| {
        fs::write(dir.join("main.go"), PROGRAM)?;
        fs::write(dir.join("go.mod"), format!("module flight\n\ngo 1.{SINCE}\n"))?;
        let mut build = toolchain.command();
        build.env("GOARCH", goarch).arg("build").args(options).args(["-o", "flight"]);
        run::output(build.current_dir(dir))?;
        Ok(())
    })?;
    Ok(dir.join("flight"))
}

/// `GOARCH` of this machine.
const fn host() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// Compares every release and kind of program; returns the number of problems.
pub(crate) fn check(tools: &Tools, toolchains: &[Toolchain]) -> Result<usize> {
    let scratch = tempfile::tempdir()?;
    let mut problems = Problems::default();
    let (mut compared, mut programs) = (0, 0);
    let (other, emulator) = EMULATOR;
    let is_emulated = other != host() && {
        let has_emulator = run::have(emulator);
        if !has_emulator {
            let lane = format!("the flight recorder in core files of {other}");
            lane::skip(&lane, &format!("{emulator} is not installed"))?;
        }
        has_emulator
    };
    for toolchain in toolchains.iter().filter(|toolchain| toolchain.minor() >= SINCE) {
        for (build, options) in BUILDS {
            programs += 1;
            let name = format!("Go {}, {build}", toolchain.version);
            let native = program(toolchain, host(), options)?;
            let mut check = Check {
                tools,
                program: &native,
                dir: scratch.path(),
                name,
                problems: &mut problems,
            };
            compared += check.quiet()?;
            compared += check.busy()?;
            compared += check.crash(None)?;
            if options.is_empty() {
                check.failed()?;
            }
            // A position-independent executable needs a dynamic loader of the other architecture.
            if is_emulated && !build.contains("PIE") {
                programs += 1;
                let emulated = program(toolchain, other, options)?;
                check.name = format!("Go {} for {other}, {build}", toolchain.version);
                check.program = &emulated;
                compared += check.crash(Some(emulator))?;
            }
        }
    }
    refusals(tools, toolchains, scratch.path(), &mut problems)?;
    println!(
        "flight recorders in memory: {compared} generations of {programs} programs; {} problems",
        problems.0
    );
    Ok(problems.0)
}

#[derive(Default)]
struct Problems(usize);

impl Problems {
    fn add(&mut self, name: &str, what: impl std::fmt::Display) {
        self.0 += 1;
        println!("FLIGHT RECORDER: {name}: {what}");
    }
}

struct Check<'a> {
    tools: &'a Tools,
    program: &'a Path,
    dir: &'a Path,
    name: String,
    problems: &'a mut Problems,
}

impl Check<'_> {
    /// A program whose generations end rarely: the whole snapshot is what `WriteTo` writes. Returns
    /// the number of generations that were compared.
    fn quiet(&mut self) -> Result<usize> {
        let mut target = Target::start(self.program, LONG)?;
        let mut process = Process::open(target.pid())?;
        let is_absent = |error: &Error| matches!(error, Error::NotRunning | Error::NotFound);
        if !process.snapshot(Limits::default()).is_err_and(|e| is_absent(&e)) {
            self.problems.add(&self.name, "a recorder was found before it was started");
        }
        target.send("start")?;
        for _ in 0..3 {
            target.send("advance")?;
        }
        let file = self.dir.join("written");
        // A generation can end between the two. What both have is compared all the same.
        let mut compared = 0;
        let mut is_same = false;
        for _ in 0..5 {
            target.send(&format!("write {}", file.display()))?;
            let snapshot = process.snapshot(Limits::default())?;
            compared += self.compare(&generations(&file)?, &snapshot);
            if snapshot.has_failed {
                self.problems.add(&self.name, "the recorder failed to store a batch");
            }
            let mut bytes = Vec::new();
            snapshot.write_to(&mut bytes)?;
            is_same = bytes == fs::read(&file)?;
            if bytes.len() as u64 != snapshot.size() {
                self.problems.add(&self.name, "the size is not the number of bytes");
            }
            if is_same {
                break;
            }
        }
        if !is_same {
            self.problems.add(&self.name, "no snapshot was what the program wrote");
        }
        self.commands(&target)?;
        // A stopped process has a flight recorder all the same.
        target.stop()?;
        let (first, second) =
            (process.snapshot(Limits::default())?, process.snapshot(Limits::default())?);
        if first != second {
            self.problems.add(&self.name, "two snapshots of a stopped process differ");
        }
        target.signal("CONT")?;
        target.send("stop")?;
        if !process.snapshot(Limits::default()).is_err_and(|e| is_absent(&e)) {
            self.problems.add(&self.name, "a recorder was found after it was stopped");
        }
        drop(target);
        if !matches!(process.snapshot(Limits::default()), Err(Error::Memory { .. })) {
            self.problems.add(&self.name, "a process that has ended is no error");
        }
        Ok(compared)
    }

    /// A program that ends generations all the time: each generation of each snapshot is also in the
    /// trace that the program records meanwhile.
    fn busy(&mut self) -> Result<usize> {
        let mut target = Target::start(self.program, SHORT)?;
        let file = self.dir.join("recorded");
        target.send(&format!("record {}", file.display()))?;
        target.send("start")?;
        target.send("advance")?;
        let mut process = Process::open(target.pid())?;
        let (mut snapshots, mut changing) = (Vec::<Snapshot>::new(), 0);
        let mut seen = BTreeSet::new();
        while snapshots.len() + changing < SNAPSHOTS || seen.len() < RINGS {
            match process.snapshot(Limits::default()) {
                Ok(snapshot) => {
                    seen.extend(snapshot.generations.last().map(|newest| newest.number));
                    snapshots.push(snapshot);
                }
                Err(Error::Changing { .. }) => changing += 1,
                Err(error) => return Err(format!("{}: {error}", self.name).into()),
            }
        }
        target.send("advance")?;
        target.end()?;
        let recorded = generations(&file)?;
        let mut compared = 0;
        for snapshot in &snapshots {
            let common = self.compare(&recorded, snapshot);
            if common != snapshot.generations.len() {
                self.problems.add(&self.name, "a generation is not in the program's own trace");
            }
            compared += common;
            let numbers: Vec<u64> = snapshot.generations.iter().map(|g| g.number).collect();
            if !numbers.is_sorted_by(|a, b| a + 1 == *b) {
                self.problems.add(&self.name, format_args!("generations {numbers:?}"));
            }
        }
        println!(
            "  {}: {} snapshots while {} generations ended, {changing} given up, {compared} generations equal",
            self.name,
            snapshots.len(),
            recorded.len(),
        );
        Ok(compared)
    }

    /// A program that crashes: its core file has the flight recorder. Returns the number of generations
    /// that were compared. An emulator writes the core file itself.
    fn crash(&mut self, emulator: Option<&str>) -> Result<usize> {
        let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern")?;
        if emulator.is_none() && pattern.contains(['|', '/']) {
            let why = format!("kernel.core_pattern is {}", pattern.trim_end());
            lane::skip("the flight recorder in a core file", &why)?;
            return Ok(0);
        }
        let dir = tempfile::tempdir()?;
        let (written, trace) = (dir.path().join("written"), dir.path().join("trace"));
        // On a busy machine, one of many crashes was seen to leave no core file.
        let mut ends = Vec::new();
        let core = loop {
            let end = self.abort(dir.path(), &written, emulator)?;
            let files = fs::read_dir(dir.path())?.flatten().map(|entry| entry.path());
            let prefix = if emulator.is_some() { "qemu_" } else { "core" };
            let is_core = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
            };
            if let Some(core) = files.into_iter().find(is_core) {
                break core;
            }
            let what = format_args!("{}: a crash left no core file: {end}", self.name);
            remark::add(Kind::Unsteady, &what);
            ends.push(end.to_string());
            if ends.len() == 3 {
                return Err(format!("{}: no core file: {}", self.name, ends.join(", ")).into());
            }
        };
        let mut command = Command::new(&self.tools.triscope);
        command.args(["go", "flight", "--core"]).arg(core).arg("--program").arg(self.program);
        run::output(command.arg("-o").arg(&trace))?;
        let (theirs, ours) = (generations(&written)?, generations(&trace)?);
        let common = ours.iter().filter(|(number, _)| theirs.contains_key(number));
        let same =
            common.clone().filter(|(number, bytes)| theirs.get(number) == Some(bytes)).count();
        if same == 0 || same != common.count() {
            self.problems.add(&self.name, "the core file has other generations");
        }
        Ok(same)
    }

    /// Runs the program in a directory until it has written its flight recorder, and aborts it.
    fn abort(&self, dir: &Path, written: &Path, emulator: Option<&str>) -> Result<ExitStatus> {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c unlimited && exec \"$@\"", "sh"]);
        command.args(emulator).arg(self.program);
        command.current_dir(dir).env("GOTRACEBACK", "crash").stderr(Stdio::null());
        let mut target = Target::of(command, LONG)?;
        target.send("start")?;
        target.send("advance")?;
        target.send(&format!("write {}", written.display()))?;
        target.signal("ABRT")?;
        // Waiting closes the input, at whose end the program ends by itself: before the signal, in an emulator.
        let _input = target.child.stdin.take();
        Ok(target.child.wait()?)
    }

    /// The recorder of these releases does not store experimental batches, and notes it.
    fn failed(&mut self) -> Result {
        let mut target = Target::start(self.program, &format!("{LONG},{EXPERIMENT}"))?;
        target.send("start")?;
        target.send("advance")?;
        // The program is parsed once.
        let program = Process::open(target.pid())?.program().clone();
        let snapshot = Process::with_program(target.pid(), program)?.snapshot(Limits::default())?;
        if !snapshot.has_failed {
            self.problems.add(&self.name, "the recorder stored all experimental batches");
        }
        Ok(())
    }

    /// Compares the generations that both have; returns their number.
    fn compare(&mut self, theirs: &BTreeMap<u64, Vec<u8>>, ours: &Snapshot) -> usize {
        let mut compared = 0;
        for Generation { number, bytes, .. } in &ours.generations {
            let Some(theirs) = theirs.get(number) else { continue };
            compared += 1;
            if theirs != bytes {
                let what =
                    format!("generation {number}: {} bytes, not {}", bytes.len(), theirs.len());
                self.problems.add(&self.name, what);
            }
        }
        if compared == 0 {
            self.problems.add(&self.name, "no generation in common");
        }
        compared
    }

    /// The trace of the command is one that Go's own tool reads, with the events that we read.
    fn commands(&mut self, target: &Target) -> Result {
        let trace = self.dir.join("snapshot");
        let mut command = Command::new(&self.tools.triscope);
        command.args(["go", "flight", &target.pid().to_string(), "-o"]).arg(&trace);
        run::output(&mut command)?;
        let theirs = Command::new(&self.tools.trace_tool).arg("-d=parsed").arg(&trace).output()?;
        let ours = self.tools.ours("events", &trace)?;
        if !theirs.status.success() || !ours.accepted() {
            let text = String::from_utf8_lossy(&theirs.stderr);
            self.problems.add(&self.name, format_args!("not accepted: {text}{}", ours.remark));
        } else if let Some(difference) = compare::difference(&ours.text, &theirs.stdout) {
            self.problems.add(&self.name, difference);
        }
        Ok(())
    }
}

/// Programs and processes that are refused.
fn refusals(
    tools: &Tools,
    toolchains: &[Toolchain],
    dir: &Path,
    problems: &mut Problems,
) -> Result {
    let http = workload::named("http")?;
    for toolchain in toolchains.iter().filter(|toolchain| toolchain.minor() < SINCE) {
        let parsed = Program::parse(fs::File::open(http.program(toolchain)?)?);
        if !matches!(parsed, Err(Error::UnsupportedVersion { .. })) {
            problems.add(toolchain.version, format_args!("not refused: {parsed:?}"));
        }
    }
    if fs::metadata("/proc/self")?.uid() != 0 {
        return lane::skip("the flight recorder of another user", &"it needs root");
    }
    // Another user must be able to start the program.
    let triscope = dir.join("triscope");
    fs::copy(&tools.triscope, &triscope)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    let newest = program(&tools.newest, host(), &[])?;
    let target = Target::start(&newest, LONG)?;
    let mut command = Command::new(&triscope);
    command.args(["go", "flight", &target.pid().to_string(), "-o", "-"]).uid(NOBODY).gid(NOBODY);
    let denied = run::attempt(&mut command)?;
    let text = String::from_utf8_lossy(&denied.stderr);
    if denied.status.success() || !text.contains("belongs to user 0: run as that user, or as root")
    {
        problems.add("another user", format_args!("{}: {text}", denied.status));
    }
    Ok(())
}

/// The generations of a trace, by number.
fn generations(trace: &Path) -> Result<BTreeMap<u64, Vec<u8>>> {
    let mut generations = BTreeMap::new();
    let mut reader = Generations::new(fs::File::open(trace)?)?;
    while let Some((span, bytes)) = reader.next_generation()? {
        generations.insert(span.number, bytes.to_vec());
    }
    Ok(generations)
}

/// A process of our program. It is killed when it is dropped.
struct Target {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Target {
    fn start(program: &Path, debug: &str) -> Result<Self> {
        Self::of(Command::new(program), debug)
    }

    fn of(mut command: Command, debug: &str) -> Result<Self> {
        command.env("GODEBUG", debug).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let answers = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        let mut target = Self { child, answers };
        target.wait_for("ready")?;
        Ok(target)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn send(&mut self, command: &str) -> Result {
        writeln!(self.child.stdin.as_mut().ok_or("no standard input")?, "{command}")?;
        self.wait_for("done")
    }

    fn wait_for(&mut self, answer: &str) -> Result {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.trim_end() == answer {
            Ok(())
        } else {
            Err(format!("the program printed {line:?}").into())
        }
    }

    fn signal(&self, name: &str) -> Result {
        let pid = self.pid().to_string();
        run::output(Command::new("kill").arg(format!("-{name}")).arg(pid)).map(drop)
    }

    /// Stops every thread.
    fn stop(&self) -> Result {
        self.signal("STOP")?;
        let is_stopped = |thread: fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        };
        let threads = format!("/proc/{}/task", self.pid());
        while !fs::read_dir(&threads)?.flatten().all(is_stopped) {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Lets the program end, so that its files are complete.
    fn end(mut self) -> Result {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the program ended with {status}").into())
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}
