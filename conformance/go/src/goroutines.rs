//! The goroutines of samples, which `go-flight` reads from the memory of running programs of each
//! release, compared with the execution traces of the same runs.

use super::toolchain::{self, Toolchain};
use go_flight::{Function, Goroutine, Goroutines, ThreadSample, Unattributed};
use gotrace::{GoState, Reader, ResourceId};
use perf_monitor::{
    CallchainContext, ClockDomain, CpuMode, Event, Record, RingSet, SampleFlags, SetRecord,
    Software,
};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use task_support::remark::{self, Kind};
use task_support::{Result, cache, run};
use trace_symbols::Symbolizer;

const PROGRAM: &str = include_str!("goroutines/main.go");

/// Samples per second of CPU time.
const HERTZ: u64 = 4_999;

/// Kinds of programs: a name, and options of `go build`.
const BUILDS: [(&str, &[&str]); 2] =
    [("plain", &[]), ("stripped PIE", &["-buildmode=pie", "-ldflags=-s -w"])];

/// The least share of the samples of goroutines that have one, and of those whose goroutine is that of
/// the trace.
const ATTRIBUTED: f64 = 0.95;
const AGREED: f64 = 0.99;

/// The least share of the samples of goroutines that have one by the execution trace of the same run.
const TRACED: f64 = 0.99;

/// The most recordings of a program whose memory is read while it runs: a busy machine delays the reader.
const RECORDINGS: usize = 4;

/// The most recordings of a program whose samples are compared afterwards.
const TRACED_RECORDINGS: usize = 2;

/// The first Go 1.N whose traces have the threads and the clock of samples.
const TRACED_SINCE: u32 = 22;

/// Times of the trace and of samples are taken one after the other, and the trace's have a resolution
/// of 64 ns.
const TOLERANCE: i64 = 2_000;

fn program(toolchain: &Toolchain, options: &[&str]) -> Result<PathBuf> {
    let files = [("main.go", PROGRAM), ("options", &options.join("\0"))];
    let hash = toolchain::content_hash(&files);
    let dir =
        cache::entry(&format!("go/goroutines/{}-{hash:016x}", toolchain.version), |dir: &Path| {
            fs::write(dir.join("main.go"), PROGRAM)?;
            fs::write(dir.join("go.mod"), "module goroutines\n\ngo 1.21\n")?;
            let mut build = toolchain.command();
            build.arg("build").args(options).args(["-o", "goroutines"]);
            run::output(build.current_dir(dir))?;
            Ok(())
        })?;
    Ok(dir.join("goroutines"))
}

/// Compares every release; returns the number of problems.
pub(crate) fn check(toolchains: &[Toolchain]) -> Result<usize> {
    let dir = tempfile::tempdir()?;
    let triscope = run::triscope()?;
    let mut problems = 0;
    for toolchain in toolchains {
        for (build, options) in builds(toolchain) {
            let program = program(toolchain, options)?;
            let name = format!("Go {}, {build}", toolchain.version);
            let is_traced = toolchain.minor() >= TRACED_SINCE;
            let by_trace = || {
                let traced = Traced::of(&triscope, &program, dir.path())?;
                println!("  by the trace, {name}: {traced}");
                Ok(traced.verdict())
            };
            if is_traced && !repeated(TRACED_RECORDINGS, &name, by_trace)? {
                println!("GOROUTINES: {name}: the trace names too few");
                problems += 1;
            }
            let by_memory = || {
                let recorded = Recorded::of(&program, &dir.path().join("trace"))?;
                let counts = if is_traced {
                    let trace = fs::read(dir.path().join("trace"))?;
                    recorded.compared(&History::read(&trace)?)
                } else {
                    recorded.locked()
                };
                println!("  goroutines of samples, {name}: {counts}");
                Ok(counts.verdict())
            };
            if !repeated(RECORDINGS, &name, by_memory)? {
                println!("GOROUTINES: {name}: too few are right");
                problems += 1;
            }
        }
    }
    Ok(problems)
}

/// The goroutines of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// Too few samples have one. A busy machine can be the reason.
    Few,
    /// Too many are other ones. No machine is the reason.
    Wrong,
}

/// Records until the goroutines are good or wrong, at most `most` times. Returns whether they are good.
fn repeated(most: usize, name: &str, mut record: impl FnMut() -> Result<Verdict>) -> Result<bool> {
    for recording in 1..=most {
        match record()? {
            Verdict::Good => return Ok(true),
            Verdict::Wrong => break,
            Verdict::Few => {
                let what =
                    format_args!("{name}: few goroutines in recording {recording} of {most}");
                remark::add(Kind::Unsteady, &what);
            }
        }
    }
    Ok(false)
}

/// All kinds for the newest release, the first for others.
fn builds(toolchain: &Toolchain) -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let count = if toolchain.version == toolchain::NEWEST { BUILDS.len() } else { 1 };
    BUILDS.into_iter().take(count)
}

/// A sample in user space.
struct Sample {
    at: i64,
    tid: u32,
    /// The innermost function.
    function: String,
    found: std::result::Result<Goroutine, Unattributed>,
}

/// A run of the program.
struct Recorded {
    samples: Vec<Sample>,
    /// Goroutines by the thread that they keep.
    locked: HashMap<u32, u64>,
}

impl Recorded {
    fn of(program: &Path, trace: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .arg(trace)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pid = child.id();
        let mut input = child.stdin.take().ok_or("no standard input")?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no standard output")?).lines();
        lines.next().ok_or("the program has ended")??;
        let mut set = events(pid)?;
        let mut reader = Attribution::open(pid)?;
        // Read soon: short goroutines end.
        let _realtime = perf_monitor::RealtimeThread::begin(1);
        set.enable()?;
        input.write_all(b"\n")?;
        let (end, ended) = std::sync::mpsc::channel();
        let printed = std::thread::spawn(move || {
            let mut locked = HashMap::new();
            for line in lines.map_while(std::io::Result::ok) {
                let words: Vec<&str> = line.split(' ').collect();
                match words[..] {
                    ["locked", tid, number] => {
                        if let (Ok(tid), Ok(number)) = (tid.parse(), number.parse()) {
                            locked.insert(tid, number);
                        }
                    }
                    _ => break,
                }
            }
            let _ = end.send(());
            locked
        });
        while ended.try_recv().is_err() {
            set.wait(Some(Duration::from_millis(20)))?;
            set.read_unordered(|record| reader.push(&record))?;
        }
        set.disable()?;
        set.drain(|record| reader.push(&record))?;
        if set.stats().rings.lost > 0 {
            return Err(format!("{} samples were lost", set.stats().rings.lost).into());
        }
        input.write_all(b"\n")?;
        child.wait()?;
        let locked = printed.join().map_err(|_| "the thread that reads the output failed")?;
        Ok(Self { samples: reader.samples, locked })
    }

    /// The goroutines of threads that execute only one.
    fn locked(&self) -> Counts {
        let mut counts = Counts::default();
        for sample in &self.samples {
            let Some(goroutine) = self.locked.get(&sample.tid) else { continue };
            // Before that, the thread executed other goroutines.
            if sample.function == "main.spinLocked" {
                counts.add(sample, Some(&[*goroutine]));
            }
        }
        counts
    }

    fn compared(&self, history: &History) -> Counts {
        let mut counts = Counts::default();
        for sample in &self.samples {
            let goroutines = history.at(sample.tid, sample.at);
            counts.add(sample, goroutines.as_deref());
        }
        counts
    }
}

/// The samples of a recording whose goroutines `triscope convert` names by the execution trace of the same
/// run: those in functions that only goroutines execute.
struct Traced {
    samples: u64,
    named: u64,
    /// Samples of goroutines that keep their thread, and those of them with another goroutine than the
    /// program printed.
    locked: u64,
    wrong: u64,
}

impl Traced {
    fn of(triscope: &Path, program: &Path, dir: &Path) -> Result<Self> {
        let rate = testkit::sampling::rate(HERTZ).to_string();
        let mut child = Command::new(triscope)
            .args(["profile", "-F", &rate, "-o", "x.data", "--"])
            .arg(program)
            .arg("trace")
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        child.stdin.take().ok_or("no standard input")?.write_all(b"\n\n")?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("{}: {}", triscope.display(), output.status).into());
        }
        let printed = String::from_utf8_lossy(&output.stdout);
        let locked: Vec<&str> = printed
            .lines()
            .filter(|line| line.starts_with("locked "))
            .filter_map(|line| line.rsplit(' ').next())
            .collect();
        let convert = ["convert", "x.data", "trace", "--by", "goroutine", "-o", "x.folded"];
        run::output(Command::new(triscope).args(convert).current_dir(dir))?;
        let mut this = Self { samples: 0, named: 0, locked: 0, wrong: 0 };
        for line in fs::read_to_string(dir.join("x.folded"))?.lines() {
            let Some((stack, weight)) = line.rsplit_once(' ') else { continue };
            let weight: u64 = weight.parse()?;
            let frames: Vec<&str> = stack.split(';').collect();
            let Some(own) = frames.iter().find(|frame| frame.starts_with("main.spin")) else {
                continue;
            };
            let goroutine = frames.iter().find_map(|frame| frame.strip_prefix("goroutine "));
            let number = goroutine.and_then(|text| text.split(' ').next());
            this.samples += weight;
            this.named += if number.is_some() { weight } else { 0 };
            if let Some(number) = number.filter(|_| *own == "main.spinLocked") {
                this.locked += weight;
                this.wrong += if locked.contains(&number) { 0 } else { weight };
            }
        }
        Ok(this)
    }

    fn named(&self) -> f64 {
        self.named as f64 / self.samples.max(1) as f64
    }

    /// The share of the samples of goroutines that keep their thread whose goroutine is another one.
    fn wrong(&self) -> f64 {
        self.wrong as f64 / self.locked.max(1) as f64
    }

    fn verdict(&self) -> Verdict {
        if self.wrong() > 1.0 - AGREED {
            Verdict::Wrong
        } else if self.locked == 0 || self.named() < TRACED {
            Verdict::Few
        } else {
            Verdict::Good
        }
    }
}

impl std::fmt::Display for Traced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.2} % of {} ms of goroutines named, {:.2} % of {} ms are another one",
            self.named() * 100.0,
            self.samples / 1_000_000,
            self.wrong() * 100.0,
            self.locked / 1_000_000,
        )
    }
}

/// Samples of a program by the result of the comparison.
#[derive(Default)]
struct Counts {
    agreed: u64,
    other: u64,
    missing: BTreeMap<Unattributed, u64>,
    /// With a goroutine while the trace has none.
    surplus: u64,
    none: u64,
}

impl Counts {
    fn add(&mut self, sample: &Sample, known: Option<&[u64]>) {
        match (&sample.found, known) {
            (Ok(found), Some(known)) if known.contains(&found.id) => self.agreed += 1,
            (Ok(_), Some(_)) => self.other += 1,
            (Err(reason), Some(_)) => *self.missing.entry(*reason).or_default() += 1,
            (Ok(_), None) => self.surplus += 1,
            (Err(_), None) => self.none += 1,
        }
    }

    /// On a busy machine, goroutines are read late and are then missing, but not wrong.
    fn verdict(&self) -> Verdict {
        let missing: u64 = self.missing.values().sum();
        let attributed = (self.agreed + self.other) as f64;
        let all = attributed + missing as f64;
        if attributed <= 100.0 {
            Verdict::Few
        } else if (self.agreed as f64) < AGREED * attributed {
            Verdict::Wrong
        } else if attributed < ATTRIBUTED * all {
            Verdict::Few
        } else {
            Verdict::Good
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let other = self.other;
        let missing: u64 = self.missing.values().sum();
        let all = self.agreed + other + missing;
        write!(
            f,
            "{all} samples of goroutines, {:.2} % agree, {other} differ, {missing} have none ({:?}); \
             of {} others, {} have one",
            self.agreed as f64 * 100.0 / all.max(1) as f64,
            self.missing,
            self.none + self.surplus,
            self.surplus,
        )
    }
}

/// Samples of all threads with user registers and call chains.
fn events(pid: u32) -> Result<RingSet> {
    let (g, sp) = Goroutines::goroutine_register().ok_or("no layouts for this machine")?;
    let fields = SampleFlags::TID
        | SampleFlags::TIME
        | SampleFlags::IP
        | SampleFlags::CALLCHAIN
        | SampleFlags::REGS_USER;
    let builder = Event::software(Software::CpuClock)
        .builder()
        .sample(fields)
        .sample_regs_user(1 << g | 1 << sp)
        .sample_freq(testkit::sampling::rate(HERTZ))
        .wakeup_events(1)
        .clock(ClockDomain::Monotonic)
        .inherit(true);
    let side =
        Event::software(Software::Dummy).builder().sample(SampleFlags::TID | SampleFlags::TIME);
    let mut options =
        RingSet::builder().pages(1024).clock(ClockDomain::Monotonic).sideband_ring(&side, 8);
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        options = options.thread(entry?.file_name().to_string_lossy().parse()?);
    }
    let mut set = options.open()?;
    set.add(&builder)?;
    Ok(set)
}

/// Finds goroutines while the program runs.
struct Attribution {
    pid: u32,
    goroutines: Goroutines,
    symbols: Symbolizer,
    registers: (u32, u32),
    samples: Vec<Sample>,
}

impl Attribution {
    fn open(pid: u32) -> Result<Self> {
        let mut symbols = Symbolizer::default();
        symbols.add_process(pid).map_err(|error| error.to_string())?;
        Ok(Self {
            pid,
            goroutines: Goroutines::open(pid)?,
            symbols,
            registers: Goroutines::goroutine_register().ok_or("no layouts for this machine")?,
            samples: Vec::new(),
        })
    }

    fn push(&mut self, record: &SetRecord<'_>) -> perf_monitor::Result<()> {
        let Ok(Record::Sample(sample)) = record.layout.decode(record.raw) else { return Ok(()) };
        if record.raw.cpu_mode() != CpuMode::User {
            return Ok(());
        }
        let (Some(registers), Some(chain), Some(at), Some(tid)) =
            (sample.regs_user, sample.callchain, sample.time, sample.tid)
        else {
            return Ok(());
        };
        let user = chain.frames().filter(|frame| frame.context == CallchainContext::User);
        let callers: Vec<u64> = user.map(|frame| frame.ip).collect();
        let (symbols, pid) = (&mut self.symbols, self.pid);
        let mut functions = |address: u64| {
            let found = symbols.symbolize(pid, address, perf_monitor::Timestamp::MAX);
            let frame = found.frames.ok()?.last()?;
            Some(Function { start: address - frame.offset?, name: frame.symbol.clone() })
        };
        let Some(function) = callers.first().and_then(|ip| functions(*ip)) else { return Ok(()) };
        let (Some(g), Some(sp)) =
            (registers.get(self.registers.0), registers.get(self.registers.1))
        else {
            return Ok(());
        };
        let now = perf_monitor::now(ClockDomain::Monotonic).unwrap_or(at);
        let sampled = ThreadSample { tid, g, sp, callers: &callers, time: at, now };
        let found = self.goroutines.at(&sampled, &mut functions);
        let function = function.name.to_string();
        self.samples.push(Sample { at: at.nanos(), tid, function, found });
        Ok(())
    }
}

/// The goroutines of threads over time, of an execution trace.
#[derive(Default)]
struct History {
    /// The times from which a thread executes a goroutine, or none.
    threads: HashMap<u32, Vec<(i64, Option<u64>)>>,
}

impl History {
    fn read(trace: &[u8]) -> Result<Self> {
        let mut this = Self::default();
        let mut reader = Reader::new(trace)?;
        while let Some(event) = reader.next_event()? {
            let Some(transition) = event.state_transition() else { continue };
            let (ResourceId::Goroutine(goroutine), Some((from, to))) =
                (transition.resource(), transition.goroutine())
            else {
                continue;
            };
            let is_on = |state| matches!(state, GoState::Running | GoState::Syscall);
            let next = match (is_on(from), is_on(to)) {
                (_, true) => Some(u64::try_from(goroutine.0)?),
                (true, false) => None,
                (false, false) => continue,
            };
            let thread = u32::try_from(event.thread().0)?;
            this.threads.entry(thread).or_default().push((event.time().nanos(), next));
        }
        Ok(this)
    }

    /// The goroutines that a thread executed around a time; `None` if it executed none.
    fn at(&self, tid: u32, at: i64) -> Option<Vec<u64>> {
        let changes = self.threads.get(&tid)?;
        let first = changes.partition_point(|(time, _)| *time <= at - TOLERANCE);
        let last = changes.partition_point(|(time, _)| *time <= at + TOLERANCE);
        let around = changes.get(first.checked_sub(1)?..last)?;
        let exact = changes.partition_point(|(time, _)| *time <= at);
        changes.get(exact.checked_sub(1)?)?.1?;
        Some(around.iter().filter_map(|(_, goroutine)| *goroutine).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recordings_with_few_goroutines_are_repeated() {
        let counts = |agreed, other, late| {
            let missing = BTreeMap::from([(Unattributed::Changed, late)]);
            Counts { agreed, other, missing, ..Counts::default() }.verdict()
        };
        assert_eq!(counts(1000, 5, 10), Verdict::Good);
        assert_eq!(counts(1000, 5, 100), Verdict::Few);
        assert_eq!(counts(1000, 20, 100), Verdict::Wrong);
        let recordings = |verdicts: &[Verdict]| {
            let mut left = verdicts.iter().copied();
            (
                repeated(2, "x", || left.next().ok_or("recorded too often".into())).unwrap(),
                left.len(),
            )
        };
        assert_eq!(recordings(&[Verdict::Few, Verdict::Good, Verdict::Good]), (true, 1));
        assert_eq!(recordings(&[Verdict::Few, Verdict::Few, Verdict::Good]), (false, 1));
        assert_eq!(recordings(&[Verdict::Wrong, Verdict::Good]), (false, 1));
    }
}
