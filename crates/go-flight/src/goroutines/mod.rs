//! The goroutines that the threads of a running Go program execute.

mod labels;
pub(crate) mod layout;
mod layouts;
#[cfg(test)]
mod tests;

pub(crate) use layout::known;

use crate::error::{Error, Result};
use crate::layout::Architecture;
use crate::memory::{Memory, Source};
use crate::process::{ProcessMemory, open};
use crate::program::Build;
use layout::Layout;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use trace_common::Timestamp;

/// Maximum number of goroutines and of threads that are remembered.
const MAX_KNOWN: usize = 1 << 20;

/// Maximum age of a sample whose goroutine was not seen before, in nanoseconds.
const MAX_AGE: i64 = 200_000;

/// Maximum size of a stack: twice the `maxstacksize` of the runtime.
const MAX_STACK: u64 = 2 << 30;

/// Finds the goroutines that the threads of a running Go program executed at samples of a profiler.
/// Linux only.
///
/// In Go code a register holds the address of the current `runtime.g`: R14 on amd64 and R28 on arm64
/// (Go's ABIInternal). A profiler samples it with `PERF_SAMPLE_REGS_USER`
/// ([`goroutine_register`](Self::goroutine_register)). The number of the goroutine is then read from the
/// memory of the process, which is neither stopped nor changed. Read it soon after the sample: the
/// runtime uses the memory of a goroutine that has ended for another one.
///
/// A goroutine is returned only if it can be right:
///
/// - its stack contains the sampled stack pointer, or the thread executes it on the stack of the
///   runtime (`m.g0`) or of C;
/// - `m.curg` of its thread is that goroutine, or was at an earlier sample, or its entry function
///   is the outermost one of the sampled call chain;
/// - the entry function is not another one than that of the call chain;
/// - it was found before the sample, or is read within 200 µs: a new goroutine may have the memory of
///   the one that was sampled. One that the register does not name, on the stack of the runtime or in C
///   code, is always read within 200 µs: the thread may execute another one since.
///
/// Once the process has ended, it is the one that the register had at an earlier sample, if the call chain
/// has its entry function: another goroutine of that function may have its memory since.
///
/// [`Unattributed`] says why another sample has none.
///
/// ```no_run
/// use go_flight::{Function, Goroutines, ThreadSample};
/// use trace_common::Timestamp;
///
/// # fn functions(_: u64) -> Option<Function> { None }
/// let mut goroutines = Goroutines::open(1234)?;
/// // Of a sample with user registers and a call chain.
/// let sample = ThreadSample {
///     tid: 1240,
///     g: 0xc00_0000_1500,
///     sp: 0xc00_0004_2f80,
///     callers: &[],
///     time: Timestamp::from_nanos(1_000_000),
///     now: Timestamp::from_nanos(1_020_000),
/// };
/// match goroutines.at(&sample, &mut functions) {
///     Ok(goroutine) => println!("goroutine {}", goroutine.id),
///     Err(reason) => println!("no goroutine: {reason}"),
/// }
/// # Ok::<(), go_flight::Error>(())
/// ```
#[derive(Debug)]
pub struct Goroutines {
    version: String,
    reader: Reader<ProcessMemory>,
}

/// The parts of a sample of a thread.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "callers construct it")]
pub struct ThreadSample<'a> {
    /// The thread, in the innermost PID namespace of the process: the last id of `NSpid` in
    /// `/proc/PID/task/TID/status`.
    pub tid: u32,
    /// The value of the [`goroutine_register`](Goroutines::goroutine_register).
    pub g: u64,
    /// The stack pointer of user space.
    pub sp: u64,
    /// The call chain in user space, innermost first: the address of the instruction, and return
    /// addresses. It can be empty.
    pub callers: &'a [u64],
    /// The time of the sample, in nanoseconds of a clock.
    pub time: Timestamp,
    /// The time now, on the same clock.
    pub now: Timestamp,
}

impl ThreadSample<'_> {
    fn is_late(&self) -> bool {
        self.now.nanos_since(self.time) > MAX_AGE
    }

    /// The goroutine that the thread executes now, if it did so at the sample.
    fn in_time(&self, now: Goroutine) -> Result<Goroutine, Unattributed> {
        if self.is_late() { Err(Unattributed::Changed) } else { Ok(now) }
    }
}

/// A function of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers construct it")]
pub struct Function {
    /// The address of its first instruction in the process.
    pub start: u64,
    /// Its name, as in Go's table of functions.
    pub name: Arc<str>,
}

/// A goroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Goroutine {
    /// Its number, `goid`. Numbers are not used again.
    pub id: u64,
    /// The address of the function that the `go` statement started.
    pub entry: u64,
    /// The address of its labels; 0 without any.
    labels: u64,
}

/// The reason why no goroutine is known of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Unattributed {
    /// The runtime executed none: the scheduler, or a thread without a goroutine.
    Runtime,
    /// A signal handler interrupted the thread.
    Signal,
    /// On the stack of the runtime, with a call chain that does not show for which goroutine.
    SystemStack,
    /// The register holds no goroutine: code that is not Go, or assembly that uses the register.
    NotGo,
    /// The thread or the memory of the goroutine was used for another one before it was read.
    Changed,
    /// The memory cannot be read: the process has ended.
    Unreadable,
}

impl Unattributed {
    /// All reasons.
    pub const ALL: [Self; 6] = [
        Self::Runtime,
        Self::Signal,
        Self::SystemStack,
        Self::NotGo,
        Self::Changed,
        Self::Unreadable,
    ];
}

impl fmt::Display for Unattributed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runtime => "in the scheduler of Go",
            Self::Signal => "in a signal handler",
            Self::SystemStack => "on a stack of the runtime",
            Self::NotGo => "in code that is not Go",
            Self::Changed => "read too late",
            Self::Unreadable => "of a process that had ended",
        })
    }
}

impl Goroutines {
    /// Opens the memory of a Go program.
    ///
    /// Needs the permission to trace the process, as [`Process::open`](crate::Process::open).
    ///
    /// # Errors
    ///
    /// [`Error::Process`], [`Error::AccessDenied`], [`Error::Elf`], [`Error::NotGo`],
    /// [`Error::UnsupportedArchitecture`] and [`Error::UnsupportedRuntime`]: layouts are known for
    /// Go 1.21 to 1.27.
    pub fn open(pid: u32) -> Result<Self> {
        let memory = ProcessMemory::open(pid)?;
        let build = Build::read(open(pid, "exe")?)?;
        let layout = build.minor().and_then(|minor| Layout::of(minor, build.architecture));
        match layout {
            Some(layout) => {
                Ok(Self { version: build.version, reader: Reader::new(memory, layout) })
            }
            None => Err(Error::UnsupportedRuntime { version: build.version }),
        }
    }

    /// The version of Go that built the program, such as `go1.26.6`.
    pub fn go_version(&self) -> &str {
        &self.version
    }

    /// The bit of the register with the goroutine in `perf_event_attr::sample_regs_user`, and that of
    /// the stack pointer, on this machine. `None` on an architecture without layouts.
    pub const fn goroutine_register() -> Option<(u32, u32)> {
        match Architecture::of_this_machine() {
            Some(Architecture::Amd64) => Some((22, 7)),
            Some(Architecture::Arm64) => Some((28, 31)),
            None => None,
        }
    }

    /// The goroutine that a thread executed. `functions` has the function at an address.
    ///
    /// # Errors
    ///
    /// The reason why there is none, or none is known.
    pub fn at(
        &mut self,
        sample: &ThreadSample<'_>,
        functions: &mut dyn FnMut(u64) -> Option<Function>,
    ) -> Result<Goroutine, Unattributed> {
        self.reader.at(sample, functions)
    }

    /// The labels that `runtime/pprof.SetGoroutineLabels` or `Do` gave it, at most 64: those that it had
    /// when [`at`](Self::at) read it, which a sample that is read late may precede. Empty if it has none, or
    /// if they were changed meanwhile and cannot be read.
    pub fn labels(&mut self, goroutine: &Goroutine) -> Vec<(String, String)> {
        let Reader { memory, layout, .. } = &mut self.reader;
        labels::read(memory, layout.minor, goroutine.labels).unwrap_or_default()
    }
}

/// The outermost function of a call chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// That of a goroutine, which starts there.
    Entry(u64),
    /// A goroutine: its entry function is not in the chain. The caller of a function without a frame is
    /// missing.
    Goroutine,
    /// Code of the runtime between goroutines.
    Runtime,
    Unknown,
}

impl Base {
    fn of(callers: &[u64], functions: &mut dyn FnMut(u64) -> Option<Function>) -> Self {
        // A call can be the last instruction of its function.
        let at = |index: usize| {
            callers.get(index).map(|address| address.saturating_sub(u64::from(index > 0)))
        };
        let Some(last) = callers.len().checked_sub(1) else { return Self::Unknown };
        let Some(outermost) = at(last).and_then(&mut *functions) else { return Self::Unknown };
        match &*outermost.name {
            "runtime.goexit" if last < 2 => Self::Goroutine,
            "runtime.goexit" => {
                let entry = last.checked_sub(1).and_then(at).and_then(functions);
                entry.map_or(Self::Goroutine, |entry| Self::Entry(entry.start))
            }
            "runtime.mcall" | "runtime.mstart" | "runtime.mstart0" | "runtime.mstart1"
            | "runtime.rt0_go" => Self::Runtime,
            _ => Self::Unknown,
        }
    }

    /// Whether a goroutine with this entry function can have the call chain.
    const fn permits(self, entry: u64) -> bool {
        match self {
            Self::Entry(found) => found == entry,
            Self::Goroutine | Self::Runtime | Self::Unknown => true,
        }
    }

    const fn is_of(self, entry: u64) -> bool {
        matches!(self, Self::Entry(found) if found == entry)
    }
}

/// `runtime.g`.
#[derive(Clone, Copy, Debug)]
struct G {
    stack: (u64, u64),
    m: u64,
    goid: u64,
    entry: u64,
    labels: u64,
}

impl G {
    const fn has(&self, sp: u64) -> bool {
        let (low, high) = self.stack;
        low < sp && sp <= high && high - low <= MAX_STACK
    }

    const fn goroutine(&self) -> Goroutine {
        Goroutine { id: self.goid, entry: self.entry, labels: self.labels }
    }
}

/// `runtime.m`.
#[derive(Clone, Copy, Debug)]
struct M {
    g0: u64,
    procid: u64,
    gsignal: u64,
    curg: u64,
    is_in_c: bool,
}

/// A goroutine that was found.
#[derive(Clone, Copy, Debug)]
struct Known {
    goroutine: Goroutine,
    /// The time from which on its `g` is known to be its own.
    since: Timestamp,
}

#[derive(Debug)]
struct Reader<R> {
    memory: R,
    layout: &'static Layout,
    /// Goroutines by the address of their `g`, which the runtime never frees.
    known: HashMap<u64, Known>,
    /// Addresses of the `m` of threads.
    threads: HashMap<u32, u64>,
    buffer: Vec<u8>,
}

impl<R: Memory> Reader<R> {
    fn new(memory: R, layout: &'static Layout) -> Self {
        let (known, threads) = (HashMap::new(), HashMap::new());
        Self { memory, layout, known, threads, buffer: Vec::new() }
    }

    fn at(
        &mut self,
        sample: &ThreadSample<'_>,
        functions: &mut dyn FnMut(u64) -> Option<Function>,
    ) -> Result<Goroutine, Unattributed> {
        // Before the functions, which take longer to find.
        let g = self.g(sample.g);
        let base = Base::of(sample.callers, functions);
        let found = match g {
            Some(g) if g.goid == 0 && g.has(sample.sp) => self.on_system_stack(sample, &g, base),
            Some(g) if g.goid != 0 && g.has(sample.sp) => self.on_its_stack(sample, &g, base),
            Some(g) if g.goid != 0 && self.known.contains_key(&sample.g) => {
                self.on_other_stack(sample, &g, base)
            }
            Some(_) => self.of_thread(sample, base),
            None => match self.known.get(&sample.g) {
                // The process has ended.
                Some(known) if base.is_of(known.goroutine.entry) => Ok(known.goroutine),
                Some(_) => Err(Unattributed::Unreadable),
                None => self.of_thread(sample, base),
            },
        }?;
        if g.is_some_and(|g| g.goid == found.id) {
            let known = self.known.get(&sample.g).filter(|known| known.goroutine.id == found.id);
            let is_late = sample.is_late();
            let since = match known {
                Some(known) => known.since,
                None if is_late => sample.now,
                None => sample.time,
            };
            if self.known.len() < MAX_KNOWN || self.known.contains_key(&sample.g) {
                self.known.insert(sample.g, Known { goroutine: found, since });
            }
            if is_late && sample.time < since {
                return Err(Unattributed::Changed);
            }
        }
        Ok(found)
    }

    /// The register has a goroutine whose stack is in use.
    fn on_its_stack(
        &mut self,
        sample: &ThreadSample<'_>,
        g: &G,
        base: Base,
    ) -> Result<Goroutine, Unattributed> {
        if !base.permits(g.entry) {
            return Err(Unattributed::Changed);
        }
        let m = self.m(g.m).filter(|m| m.curg == sample.g);
        if m.is_some_and(|m| m.procid == u64::from(sample.tid)) && self.threads.len() < MAX_KNOWN {
            self.threads.insert(sample.tid, g.m);
        }
        if m.is_some() || base.is_of(g.entry) || self.known.contains_key(&sample.g) {
            return Ok(g.goroutine());
        }
        Err(Unattributed::Changed)
    }

    /// The register has a goroutine, and the stack pointer is elsewhere: on the stack of the thread in
    /// code of the vDSO or of C, or its stack was moved since.
    fn on_other_stack(
        &mut self,
        sample: &ThreadSample<'_>,
        g: &G,
        base: Base,
    ) -> Result<Goroutine, Unattributed> {
        if base.is_of(g.entry) {
            return Ok(g.goroutine());
        }
        let m = self.m(g.m).filter(|m| m.curg == sample.g && m.procid == u64::from(sample.tid));
        let on_g0 = m.and_then(|m| self.g(m.g0)).is_some_and(|g0| g0.has(sample.sp));
        if on_g0 && base.permits(g.entry) { Ok(g.goroutine()) } else { Err(Unattributed::Changed) }
    }

    /// The register has the `g0` or the `gsignal` of a thread.
    fn on_system_stack(
        &mut self,
        sample: &ThreadSample<'_>,
        g: &G,
        base: Base,
    ) -> Result<Goroutine, Unattributed> {
        let m = self.m(g.m).filter(|m| m.procid == u64::from(sample.tid));
        match m {
            Some(m) if m.gsignal == sample.g => Err(Unattributed::Signal),
            Some(m) if m.g0 == sample.g => {
                if self.threads.len() < MAX_KNOWN {
                    self.threads.insert(sample.tid, g.m);
                }
                let current = self.current(&m, base, Unattributed::SystemStack);
                current.and_then(|goroutine| sample.in_time(goroutine))
            }
            _ => Err(Unattributed::NotGo),
        }
    }

    /// The register has something else: what the thread executes now.
    fn of_thread(
        &mut self,
        sample: &ThreadSample<'_>,
        base: Base,
    ) -> Result<Goroutine, Unattributed> {
        let m = self.threads.get(&sample.tid).copied();
        let current = match m.and_then(|m| self.m(m)).filter(|m| m.procid == u64::from(sample.tid))
        {
            Some(m) if m.is_in_c && base == Base::Unknown => match self.g(m.curg) {
                Some(g) if g.goid != 0 => Ok(g.goroutine()),
                _ => Err(Unattributed::NotGo),
            },
            Some(m) => self.current(&m, base, Unattributed::NotGo),
            None => Err(Unattributed::NotGo),
        };
        current.and_then(|goroutine| sample.in_time(goroutine))
    }

    /// The goroutine that a thread executes now, if it has this entry function.
    fn current(
        &mut self,
        m: &M,
        base: Base,
        otherwise: Unattributed,
    ) -> Result<Goroutine, Unattributed> {
        match base {
            Base::Runtime => Err(Unattributed::Runtime),
            Base::Goroutine | Base::Unknown => Err(otherwise),
            Base::Entry(entry) => match self.g(m.curg) {
                Some(g) if g.goid != 0 && g.entry == entry => Ok(g.goroutine()),
                _ => Err(Unattributed::Changed),
            },
        }
    }

    fn g(&mut self, address: u64) -> Option<G> {
        let layout = self.layout;
        let object = self.object(address, layout.g())?;
        let word = |offset| object.word(offset).ok();
        Some(G {
            stack: (word(layout.g_stack)?, word(layout.g_stack + 8)?),
            m: word(layout.g_m)?,
            goid: word(layout.g_goid)?,
            entry: word(layout.g_startpc)?,
            labels: word(layout.g_labels)?,
        })
    }

    fn m(&mut self, address: u64) -> Option<M> {
        let layout = self.layout;
        let object = self.object(address, layout.m())?;
        let word = |offset| object.word(offset).ok();
        Some(M {
            g0: word(layout.m_g0)?,
            procid: word(layout.m_procid)?,
            gsignal: word(layout.m_gsignal)?,
            curg: word(layout.m_curg)?,
            is_in_c: object.flag(layout.m_incgo).ok()?,
        })
    }

    fn object(&mut self, address: u64, size: u64) -> Option<crate::memory::Object<'_>> {
        if address == 0 || address % 8 != 0 {
            return None;
        }
        let mut source = Source::new(&mut self.memory, usize::try_from(size).ok()?);
        source.object(address, size, &mut self.buffer).ok()
    }
}
