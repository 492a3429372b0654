//! Events to count or sample.

use crate::builder::EventBuilder;
use crate::error::{Error, Result};
use crate::generalized::{self, Cache, CacheOp, CacheResult, Hardware, Software};
use crate::pmu::Pmu;
use crate::probe;
use crate::system;
use crate::tracefs::Tracefs;
use perf_sys::*;
use std::ffi::{CString, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
#[cfg(feature = "symbols")]
use trace_common::FoundFile;

/// An event: a PMU and a configuration of it.
///
/// ```
/// use perf_monitor::{Event, Software};
///
/// let faults = Event::software(Software::PageFaults);
/// assert_eq!(faults, Event::parse("page-faults")?);
/// assert_eq!(Event::parse("page-fualts").unwrap_err().to_string(),
///     "no event \"page-fualts\" here; did you mean page-faults?");
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub(crate) name: String,
    pub(crate) type_: u32,
    pub(crate) config: [u64; 5],
    pub(crate) bp_type: u32,
    pub(crate) path: Option<CString>,
    /// Device and inode of the file that the offset of a uprobe is of.
    pub(crate) file: Option<(u64, u64)>,
    /// Bits of [`perf_event_attr::flags`] that modifiers such as `:u` set.
    pub(crate) flags: u64,
    /// `:P`: the highest `precise_ip` that the kernel accepts.
    pub(crate) is_most_precise: bool,
    pub(crate) unit: EventUnit,
    pub(crate) cpus: Option<Vec<u32>>,
    /// Of a tracepoint: whether it has the registers of user space, which is where it then occurs.
    pub(crate) is_at_user_registers: bool,
}

/// The effect of `exclude_kernel` on an event: see [`Event::without_kernel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WithoutKernel {
    /// It counts user space.
    UserSpace,
    /// It counts the same as without `exclude_kernel`: clocks ignore it, and tracepoints of system
    /// calls (`syscalls:*`) and of uprobes have the registers of user space.
    Everything,
    /// It counts nothing: the event only occurs in the kernel, such as context switches and all other
    /// tracepoints.
    Nothing,
}

/// The unit of a count: `count * scale` is in the unit `name`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct EventUnit {
    /// The unit, such as `Joules` or `ns`; empty for a plain count.
    pub name: String,
    /// The factor; `None` is 1.
    pub scale: Option<f64>,
    /// Whether a count is a state at its time, such as the occupancy of a cache: the difference of two
    /// is no count.
    pub is_snapshot: bool,
}

/// Accesses that a [breakpoint](Event::breakpoint) counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakpointAccess {
    /// Reads. x86 has no breakpoint for reads alone: use [`BreakpointAccess::ReadWrite`].
    Read,
    /// Writes.
    Write,
    /// Reads and writes.
    ReadWrite,
    /// Execution.
    Execute,
}

impl Event {
    fn new(name: impl Into<String>, type_: u32, config: u64) -> Self {
        let name = name.into();
        Self {
            is_at_user_registers: type_ == PERF_TYPE_TRACEPOINT && name.starts_with("syscalls:"),
            name,
            type_,
            config: [config, 0, 0, 0, 0],
            bp_type: 0,
            path: None,
            file: None,
            flags: 0,
            is_most_precise: false,
            unit: EventUnit::default(),
            cpus: None,
        }
    }

    /// A generalised hardware event.
    pub fn hardware(event: Hardware) -> Self {
        Self::new(event.name(), PERF_TYPE_HARDWARE, event.config())
    }

    /// An event that the kernel itself counts.
    pub fn software(event: Software) -> Self {
        let mut this = Self::new(event.name(), PERF_TYPE_SOFTWARE, event.config());
        if matches!(event, Software::CpuClock | Software::TaskClock) {
            this.unit = EventUnit { name: "ns".into(), ..EventUnit::default() };
        }
        this
    }

    /// A generalised cache event.
    pub fn cache(cache: Cache, op: CacheOp, result: CacheResult) -> Self {
        let (name, config) = generalized::cache(cache, op, result);
        Self::new(name, PERF_TYPE_HW_CACHE, config)
    }

    /// An event number from the manual of the CPU, as `perf` takes it after `r`.
    pub fn raw(config: u64) -> Self {
        Self::new(format!("r{config:x}"), PERF_TYPE_RAW, config)
    }

    /// An event by the number of its PMU, for events without a constructor here.
    pub fn from_type(name: impl Into<String>, type_: u32, config: u64) -> Self {
        Self::new(name, type_, config)
    }

    /// Accesses to `len` bytes at `addr`: 1, 2, 4 or 8 bytes, aligned to that size. For
    /// [`BreakpointAccess::Execute`] the length is the size of `long` and `len` is ignored.
    pub fn breakpoint(addr: u64, len: u64, access: BreakpointAccess) -> Self {
        let (bp_type, letters, len) = match access {
            BreakpointAccess::Read => (1, "r", len),
            BreakpointAccess::Write => (2, "w", len),
            BreakpointAccess::ReadWrite => (3, "rw", len),
            BreakpointAccess::Execute => (4, "x", size_of::<std::ffi::c_long>() as u64),
        };
        let mut this = Self::new(format!("mem:{addr:#x}/{len}:{letters}"), PERF_TYPE_BREAKPOINT, 0);
        this.bp_type = bp_type;
        this.config = [0, addr, len, 0, 0];
        this
    }

    /// A tracepoint by its system and name. Needs a readable tracefs.
    ///
    /// # Errors
    ///
    /// [`Error::NoTracefs`], [`Error::File`], and [`Error::UnknownEvent`] with similar names.
    pub fn tracepoint(system: &str, name: &str) -> Result<Self> {
        Tracefs::find()?.event(system, name)
    }

    /// A tracepoint by the number of its tracefs `id` file.
    pub fn tracepoint_id(name: impl Into<String>, id: u64) -> Self {
        Self::new(name, PERF_TYPE_TRACEPOINT, id)
    }

    /// A probe `offset` bytes into a kernel function. The kprobe PMU (Linux 4.17) creates and
    /// removes it with the event. Its raw data contains only the address. Needs `CAP_PERFMON`
    /// (`CAP_SYS_ADMIN` before Linux 5.8).
    ///
    /// # Errors
    ///
    /// [`Error::NoProbePmu`]. Opening fails if the function does not exist.
    pub fn kprobe(symbol: &str, offset: u64) -> Result<Self> {
        let name = match offset {
            0 => format!("kprobe:{symbol}"),
            _ => format!("kprobe:{symbol}+{offset:#x}"),
        };
        Self::probe("kprobe", symbol.as_bytes(), name, offset, false)
    }

    /// A probe at the return of a kernel function: see [`Event::kprobe`].
    ///
    /// # Errors
    ///
    /// [`Error::NoProbePmu`].
    pub fn kretprobe(symbol: &str) -> Result<Self> {
        Self::probe("kprobe", symbol.as_bytes(), format!("kretprobe:{symbol}"), 0, true)
    }

    /// A probe at an address of the kernel: see [`Event::kprobe`].
    ///
    /// # Errors
    ///
    /// [`Error::NoProbePmu`].
    pub fn kprobe_address(address: u64) -> Result<Self> {
        let name = format!("kprobe:{address:#x}");
        let mut this = Self::probe("kprobe", b"", name, address, false)?;
        this.path = None;
        Ok(this)
    }

    /// A probe `offset` bytes into the file of a program or library. The uprobe PMU (Linux 4.17)
    /// creates and removes it with the event. Its raw data contains only the address. Needs
    /// `CAP_SYS_ADMIN`; Linux 5.8 to 6.15 without a later fix accept `CAP_PERFMON`.
    ///
    /// # Errors
    ///
    /// [`Error::NoProbePmu`]. Opening fails if the file does not exist.
    pub fn uprobe(file: impl AsRef<Path>, offset: u64) -> Result<Self> {
        Self::probe_of_file(file.as_ref(), offset, false)
    }

    /// A probe at the return of the function at `offset` of a file: see [`Event::uprobe`]. Go programs are
    /// refused with the feature `symbols`: see [`Probe::uretprobe`](crate::probe::Probe::uretprobe).
    ///
    /// # Errors
    ///
    /// [`Error::NoProbePmu`], and [`Error::UnusableSymbol`] for a Go program.
    pub fn uretprobe(file: impl AsRef<Path>, offset: u64) -> Result<Self> {
        let file = file.as_ref();
        // The kernel opens the file again, and reports one that it cannot probe.
        #[cfg(feature = "symbols")]
        if let Some(opened) = FoundFile::find(file).ok().and_then(|found| found.open().ok()) {
            probe::check_return(&opened, file, &format!("{offset:#x}"))?;
        }
        Self::probe_of_file(file, offset, true)
    }

    fn probe_of_file(file: &Path, offset: u64, at_return: bool) -> Result<Self> {
        let kind = if at_return { "uretprobe" } else { "uprobe" };
        let name = format!("{kind}:{}:{offset:#x}", file.display());
        Self::probe("uprobe", file.as_os_str().as_bytes(), name, offset, at_return)
    }

    /// A uprobe with a counter that the kernel increments while the probe is enabled, at the offset
    /// `counter` of the file; 0 is none.
    pub(crate) fn uprobe_at(
        file: &str,
        offset: u64,
        at_return: bool,
        counter: u64,
    ) -> Result<Self> {
        let mut this = Self::probe_of_file(Path::new(file), offset, at_return)?;
        if counter != 0 {
            let bits = Pmu::open("uprobe")?.term_bits("ref_ctr_offset", counter)?;
            for (word, bits) in this.config.iter_mut().zip(bits) {
                *word |= bits;
            }
        }
        Ok(this)
    }

    fn probe(
        pmu: &'static str,
        path: &[u8],
        name: String,
        offset: u64,
        at_return: bool,
    ) -> Result<Self> {
        let path = CString::new(path).map_err(|_| Error::EventSyntax {
            text: name.clone(),
            why: "a name has no NUL byte",
        })?;
        let pmu = match Pmu::open(pmu) {
            Err(Error::UnknownEvent { .. }) => return Err(Error::NoProbePmu { pmu }),
            other => other?,
        };
        let retprobe = if at_return { pmu.term_bits("retprobe", 1)? } else { [0; 5] };
        let mut this = Self::new(name, pmu.type_(), 0);
        this.config = retprobe;
        this.config[2] = offset;
        this.path = Some(path);
        Ok(this)
    }

    /// An event of a dynamic PMU by its names in sysfs, such as `msr` and `tsc`.
    ///
    /// # Errors
    ///
    /// Those of [`Pmu::open`] and [`Pmu::event`].
    pub fn pmu(pmu: &str, event: &str) -> Result<Self> {
        Pmu::open(pmu)?.event(event)
    }

    /// Parses an event description in the syntax of `perf`: `cycles:u`, `r1a8`,
    /// `L1-dcache-load-misses`, `mem:0x1234/4:w`, `sched:sched_switch`, `msr/tsc/`,
    /// `cpu/event=0x3c,umask=1/k`; and `kprobe:SYMBOL[+OFFSET]`, `kprobe:0xADDRESS`, `kretprobe:SYMBOL`,
    /// `uprobe:FILE:OFFSET`, `uretprobe:FILE:OFFSET`.
    ///
    /// | modifier | |
    /// | --- | --- |
    /// | `u`, `k`, `h` | counts user space, the kernel, the hypervisor: only those that are named |
    /// | `G`, `H` | counts virtual machines, the host: only those that are named |
    /// | `I` | does not count when the CPU is idle |
    /// | `p`, `pp`, `ppp` | [`precise_ip`](EventBuilder::precise_ip) of 1, 2, 3 |
    /// | `P` | the highest `precise_ip` that the kernel accepts, also 0: see [`Counter::attr`](crate::Counter::attr) |
    /// | `D` | [`pinned`](EventBuilder::pinned) |
    /// | `e` | [`exclusive`](EventBuilder::exclusive) |
    ///
    /// # Errors
    ///
    /// [`Error::EventSyntax`], [`Error::UnknownEvent`] with similar names that exist, and the errors
    /// of the constructor.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_with(text, &Tracefs::find)
    }

    /// Parses as [`Event::parse`] does, with the tracepoints of `tracefs`.
    ///
    /// # Errors
    ///
    /// Those of [`Event::parse`].
    pub fn parse_in(text: &str, tracefs: &Tracefs) -> Result<Self> {
        Self::parse_with(text, &|| Ok(tracefs.clone()))
    }

    fn parse_with(text: &str, tracefs: &dyn Fn() -> Result<Tracefs>) -> Result<Self> {
        let syntax = |why| Error::EventSyntax { text: text.to_owned(), why };
        if let Some((pmu, rest)) = text.split_once('/').filter(|(p, _)| !p.contains(':')) {
            let (terms, modifiers) =
                rest.rsplit_once('/').ok_or(syntax("a closing / is missing"))?;
            return Pmu::open(pmu)?.event(terms)?.modified(modifiers, text);
        }
        // The rest after the n-th colon: modifiers contain none.
        let after = |n: usize| text.splitn(n + 1, ':').nth(n).unwrap_or("");
        let mut parts = text.split(':');
        let (first, second) = (parts.next().unwrap_or(""), parts.next());
        match (first, second) {
            ("mem", Some(address)) => {
                let (address, len) = address.split_once('/').unwrap_or((address, "4"));
                let address = number(address).ok_or(syntax("not an address"))?;
                let len = number(len).ok_or(syntax("not a length"))?;
                let (access, modifiers) = match parts.next() {
                    None | Some("rw" | "wr") => (BreakpointAccess::ReadWrite, after(3)),
                    Some("r") => (BreakpointAccess::Read, after(3)),
                    Some("w") => (BreakpointAccess::Write, after(3)),
                    Some("x") => (BreakpointAccess::Execute, after(3)),
                    Some(modifiers) if refused_modifier(modifiers).is_none() => {
                        (BreakpointAccess::ReadWrite, after(2))
                    }
                    _ => return Err(syntax("the access is one of r, w, rw, x")),
                };
                Self::breakpoint(address, len, access).modified(modifiers, text)
            }
            ("kprobe", Some(address)) if address.starts_with("0x") => {
                let address = number(address).ok_or(syntax("not an address"))?;
                Self::kprobe_address(address)?.modified(after(2), text)
            }
            ("kprobe", Some(symbol)) => {
                let (symbol, offset) = symbol.split_once('+').unwrap_or((symbol, "0"));
                let offset = number(offset).ok_or(syntax("not an offset"))?;
                Self::kprobe(symbol, offset)?.modified(after(2), text)
            }
            ("kretprobe", Some(symbol)) => Self::kretprobe(symbol)?.modified(after(2), text),
            ("uprobe" | "uretprobe", Some(_)) => {
                let (file, offset) =
                    after(1).rsplit_once(':').ok_or(syntax("FILE:OFFSET is needed"))?;
                let offset = number(offset).ok_or(syntax("not an offset"))?;
                if first == "uprobe" {
                    Self::uprobe(file, offset)
                } else {
                    Self::uretprobe(file, offset)
                }
            }
            (name, None) => Self::by_name(name).ok_or_else(|| Self::unknown(name)),
            (first, Some(second)) => match Self::by_name(first) {
                Some(event) => event.modified(after(1), text),
                None => tracefs()?.event(first, second)?.modified(after(2), text),
            },
        }
    }

    fn by_name(name: &str) -> Option<Self> {
        let raw = || {
            let hex = name.strip_prefix('r')?;
            u64::from_str_radix(hex, 16).ok().map(Self::raw)
        };
        Hardware::by_name(name)
            .map(Self::hardware)
            .or_else(|| Software::by_name(name).map(Self::software))
            .or_else(raw)
            .or_else(|| Self::all_cache().find(|event| event.name == name))
    }

    fn unknown(name: &str) -> Error {
        let mut known: Vec<String> = Self::all_cache().map(|e| e.name).collect();
        known.extend(Hardware::ALL.iter().flat_map(|(_, n)| *n).map(|n| (*n).to_owned()));
        known.extend(Software::ALL.iter().flat_map(|(_, n)| *n).map(|n| (*n).to_owned()));
        Error::UnknownEvent {
            name: name.to_owned(),
            near: system::near_matches(name, known.iter().map(String::as_str), 3),
        }
    }

    /// All generalised cache events. A CPU supports some of them.
    pub fn all_cache() -> impl Iterator<Item = Self> {
        generalized::all_cache().map(|(cache, op, result)| Self::cache(cache, op, result))
    }

    fn modified(mut self, modifiers: &str, text: &str) -> Result<Self> {
        if modifiers.is_empty() {
            return Ok(self);
        }
        if let Some(why) = refused_modifier(modifiers) {
            return Err(Error::EventSyntax { text: text.to_owned(), why });
        }
        let has = |c| modifiers.contains(c);
        let mut attr = perf_event_attr::default();
        if has('u') || has('k') || has('h') {
            attr.set_exclude_user(!has('u'));
            attr.set_exclude_kernel(!has('k'));
            attr.set_exclude_hv(!has('h'));
        }
        if has('G') != has('H') {
            attr.set_exclude_host(has('G'));
            attr.set_exclude_guest(has('H'));
        }
        attr.set_exclude_idle(has('I'));
        attr.set_pinned(has('D'));
        attr.set_exclusive(has('e'));
        self.is_most_precise = has('P');
        let precise = if has('P') { 3 } else { modifiers.matches('p').count() as u8 };
        attr.set_precise_ip(precise);
        self.flags = attr.flags;
        let colon = if self.name.ends_with('/') { "" } else { ":" };
        self.name = format!("{}{colon}{modifiers}", self.name);
        Ok(self)
    }

    pub(crate) fn of_pmu(name: String, type_: u32, config: [u64; 5], unit: EventUnit) -> Self {
        Self { config, unit, ..Self::new(name, type_, 0) }
    }

    /// The name, in the syntax of [`Event::parse`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The unit of the counts.
    pub const fn unit(&self) -> &EventUnit {
        &self.unit
    }

    /// The CPUs to count it on; `None` for all. A PMU that several CPUs share counts the same on each
    /// of them: a sum of all CPUs would be too large. See [`Pmu::cpus`](crate::Pmu::cpus).
    pub fn cpus(&self) -> Option<&[u32]> {
        self.cpus.as_deref()
    }

    /// Whether this is a tracepoint, and its number.
    pub const fn as_tracepoint(&self) -> Option<u64> {
        if self.type_ == PERF_TYPE_TRACEPOINT { Some(self.config[0]) } else { None }
    }

    /// `PERF_TYPE_*`, or the number of the dynamic PMU.
    pub const fn type_(&self) -> u32 {
        self.type_
    }

    /// Whether this is an event of cores without the name of a PMU: a generalised hardware or cache event,
    /// or a [raw](Event::raw) one. On machines with several kinds of cores it is that of one kind for a task:
    /// see [`Pmu::of_cores`](crate::Pmu::of_cores).
    pub const fn is_of_cores(&self) -> bool {
        matches!(self.type_, PERF_TYPE_HARDWARE | PERF_TYPE_HW_CACHE | PERF_TYPE_RAW)
    }

    /// The effect of `exclude_kernel` on this event. Users without privileges need it at
    /// `perf_event_paranoid` 2.
    ///
    /// A tracepoint counts where its registers are those of user space ([`perf_tp_event_match`][match]).
    /// That of a uprobe is known as such if [`Tracefs::event`] returned it.
    ///
    /// [match]: https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c
    pub const fn without_kernel(&self) -> WithoutKernel {
        match self.type_ {
            PERF_TYPE_SOFTWARE => {}
            PERF_TYPE_TRACEPOINT if self.is_at_user_registers => return WithoutKernel::Everything,
            PERF_TYPE_TRACEPOINT => return WithoutKernel::Nothing,
            _ => return WithoutKernel::UserSpace,
        }
        match self.config[0] {
            PERF_COUNT_SW_CPU_CLOCK
            | PERF_COUNT_SW_TASK_CLOCK
            | PERF_COUNT_SW_DUMMY
            | PERF_COUNT_SW_BPF_OUTPUT => WithoutKernel::Everything,
            PERF_COUNT_SW_CONTEXT_SWITCHES
            | PERF_COUNT_SW_CPU_MIGRATIONS
            | PERF_COUNT_SW_CGROUP_SWITCHES => WithoutKernel::Nothing,
            _ => WithoutKernel::UserSpace,
        }
    }

    /// Of a tracepoint: whether its raw data on threads needs no privilege, as that of system calls and
    /// uprobes (`TRACE_EVENT_FL_CAP_ANY` of the kernel).
    pub(crate) fn has_raw_data_of_user_space(&self) -> bool {
        self.is_at_user_registers || self.name.starts_with("raw_syscalls:")
    }

    /// Whether its offset is still of the file that the kernel will probe.
    pub(crate) fn check_file(&self) -> Result<()> {
        let (Some(path), Some(id)) = (&self.path, self.file) else { return Ok(()) };
        probe::check_file(Path::new(OsStr::from_bytes(path.to_bytes())), id)
    }

    /// Options for counting or sampling it.
    pub fn builder(&self) -> EventBuilder {
        EventBuilder::new(self.clone())
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Why modifiers cannot be used, if one cannot.
fn refused_modifier(modifiers: &str) -> Option<&'static str> {
    modifiers.chars().find_map(|c| match (c, modifiers.matches(c).count()) {
        ('p', 1..=3) | ('u' | 'k' | 'h' | 'P' | 'G' | 'H' | 'I' | 'D' | 'e', 1) => None,
        ('p', _) => Some("there are at most three modifiers p"),
        ('u' | 'k' | 'h' | 'P' | 'G' | 'H' | 'I' | 'D' | 'e', _) => Some("a modifier is repeated"),
        ('S', _) => Some("the modifier S, samples with the counts of a group, is not of one event"),
        ('W', _) => Some("the modifier W, a group that can be divided, is not supported"),
        ('b', _) => Some("the modifier b, counting by a BPF program, is not supported"),
        ('R', _) => Some("the modifier R, the latency of retirement, is not supported"),
        ('X', _) => Some("the modifier X, an event that stays in its place, is not supported"),
        _ => Some("the modifiers are u, k, h, G, H, I, p (up to three), P, D and e"),
    })
}

/// Parses a number in C syntax: decimal or with 0x.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_perf_parse() {
        let ok = |text: &str| Event::parse(text).unwrap();
        assert_eq!(ok("cycles"), Event::hardware(Hardware::CpuCycles));
        assert_eq!(ok("cs"), Event::software(Software::ContextSwitches));
        assert_eq!(ok("r1a8").config[0], 0x1a8);
        assert_eq!(ok("L1-dcache-load-misses").config[0], 0x1_0000);
        assert_eq!(ok("LLC-prefetches").config[0], 0x202);
        let watch = ok("mem:0x1000/8:w");
        assert_eq!((watch.bp_type, watch.config[1], watch.config[2]), (2, 0x1000, 8));
        let both = ok("mem:0:u");
        assert_eq!((both.bp_type, both.builder().attr().exclude_kernel()), (3, true));
    }

    #[test]
    fn names_are_in_the_syntax_that_parses() {
        for text in [
            "cycles:u",
            "L1-dcache-load-misses:k",
            "r1a8:pp",
            "mem:0x1000/8:w",
            "mem:0x1000/4:rw:u",
            "kprobe:vfs_read",
            "kprobe:vfs_read+0x4",
            "kprobe:vfs_read:D",
            "kprobe:0xffffffff81000000",
            "kretprobe:vfs_read",
            "uprobe:/a:b:0x10",
            "uretprobe:/a:b:0x10",
        ] {
            match Event::parse(text) {
                Ok(event) => assert_eq!(event.name(), text),
                Err(Error::NoProbePmu { .. }) => {}
                Err(error) => panic!("{text}: {error}"),
            }
        }
        let tsc = Event::of_pmu("msr/tsc/".into(), 9, [0; 5], EventUnit::default());
        assert_eq!(tsc.modified("u", "").unwrap().name(), "msr/tsc/u");
    }

    proptest! {
        #[test]
        fn names_parse_as_their_event(
            address: u64,
            access in proptest::sample::select(vec!["", ":r", ":w", ":rw", ":x"]),
            modifiers in "(:[ukh])?",
            raw: u64,
        ) {
            let raw = format!("r{raw:x}{modifiers}");
            let breakpoint = format!("mem:{address}{access}{modifiers}");
            for text in [raw, breakpoint] {
                let event = Event::parse(&text).unwrap();
                prop_assert_eq!(&Event::parse(event.name()).unwrap(), &event);
            }
        }
    }

    #[test]
    fn modifiers_of_perf_set_the_attribute() {
        let attr = |text: &str| {
            let event = Event::parse(text).unwrap();
            let modifiers = text.split_once(':').map_or("", |(_, modifiers)| modifiers);
            assert!(event.name().ends_with(modifiers), "{}", event.name());
            *event.builder().attr()
        };
        let user = attr("instructions:u");
        assert!(user.exclude_kernel() && user.exclude_hv() && !user.exclude_user());
        for (text, precise) in [("cycles:p", 1), ("cycles:ppp", 3), ("cycles:P", 3)] {
            assert_eq!(attr(text).precise_ip(), precise, "{text}");
            assert_eq!(Event::parse(text).unwrap().is_most_precise, text.ends_with('P'));
        }
        let of_vms = |text| {
            let attr = attr(text);
            (attr.exclude_host(), attr.exclude_guest())
        };
        assert_eq!(of_vms("cycles:G"), (true, false));
        assert_eq!(of_vms("cycles:H"), (false, true));
        assert_eq!(of_vms("cycles:GH"), (false, false));
        let all = attr("cycles:ukDeI");
        assert!(all.pinned() && all.exclusive() && all.exclude_idle() && all.exclude_hv());
        assert!(!all.exclude_user() && !all.exclude_kernel());
        // Each sets no other bit.
        assert_eq!(attr("cycles:DeI").flags.count_ones(), attr("cycles").flags.count_ones() + 3);
    }

    #[test]
    fn tracepoints_occur_in_the_kernel_but_for_system_calls() {
        let of = |name| Event::tracepoint_id(name, 7).without_kernel();
        assert_eq!(of("sched:sched_switch"), WithoutKernel::Nothing);
        assert_eq!(of("raw_syscalls:sys_enter"), WithoutKernel::Nothing);
        assert_eq!(of("syscalls:sys_enter_read"), WithoutKernel::Everything);
        assert_eq!(Event::raw(7).without_kernel(), WithoutKernel::UserSpace);
    }

    #[test]
    fn syntax_errors_are_explained() {
        let error = |text: &str| Event::parse(text).unwrap_err().to_string();
        assert!(error("mem:zzz").contains("not an address"), "{}", error("mem:zzz"));
        assert!(error("mem:0x10:q").contains("one of r, w"));
        assert!(error("msr/tsc").contains("closing /"));
        assert!(error("instuctions").contains("did you mean instructions?"));
        assert!(error("uprobe:/bin/true").contains("FILE:OFFSET"));
        assert!(error("nosuchpmu/x/").contains("nosuchpmu"));
        for c in ["S", "W", "b", "R", "X"] {
            let error = error(&format!("cycles:u{c}"));
            assert!(error.contains(&format!("the modifier {c}, ")), "{error}");
        }
        assert!(error("cycles:z").contains("the modifiers are"), "{}", error("cycles:z"));
        for text in ["cycles:u:k", "mem:0x1000/8:w:u:k", "mem:0x1000:u:k"] {
            assert!(error(text).contains("the modifiers are"), "{}", error(text));
        }
        assert!(error("cycles:uku").contains("repeated"));
        assert!(error("cycles:pppp").contains("at most three"));
        for text in ["kprobe:ext4:ext4_sync_file", "kretprobe:vfs_read:garbage", "kprobe:0x10:z"] {
            match Event::parse(text).unwrap_err() {
                Error::NoProbePmu { .. } => {}
                error => assert!(error.to_string().contains("the modifiers are"), "{error}"),
            }
        }
        assert!(Event::kprobe("a\0b", 0).unwrap_err().to_string().contains("NUL"));
    }
}
