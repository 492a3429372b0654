//! Kprobes, uprobes and their returns, with arguments.
//!
//! ```no_run
//! use perf_monitor::probe::{Fetch, FetchType, Probe};
//! use perf_monitor::{Record, SampleFlags, Target};
//!
//! // Every file that this thread opens.
//! let open = Probe::kprobe("do_sys_openat2")
//!     .arg("path", Fetch::arg(2).user_string())
//!     .create()?;
//! let path = open.format().field("path").cloned();
//! let mut sampler = open
//!     .event()
//!     .builder()
//!     .sample_period(1)
//!     .sample(SampleFlags::RAW)
//!     .open_sampler(Target::ThisThread, 16)?;
//! sampler.enable()?;
//! let _ = std::fs::File::open("/etc/hostname");
//! sampler.drain(|record| {
//!     if let (Record::Sample(sample), Some(path)) = (record, &path) {
//!         let text = sample.raw.and_then(|raw| path.text(raw));
//!         println!("{}", String::from_utf8_lossy(text.unwrap_or_default()));
//!     }
//!     Ok::<(), perf_monitor::Error>(())
//! })?;
//! # Ok::<(), perf_monitor::Error>(())
//! ```
//!
//! # Two interfaces
//!
//! [`ProbeBuilder::create`] chooses between them; [`Probe::interface`] returns the choice.
//!
//! - **The PMUs `kprobe` and `uprobe`** (Linux 4.17) create the probe with each event that is opened
//!   and remove it with the event, also if the process is killed. There are no names and no
//!   arguments. Each opened event is another probe at the same place: on a machine with 64 CPUs
//!   each hit is handled 64 times.
//! - **tracefs** (`kprobe_events`, `uprobe_events`) creates one probe, with a name and a format, for
//!   all events. It exists until it is removed.
//!
//! The PMU is used if the probe has no arguments, no chosen name or group, no
//! [`max_active`](ProbeBuilder::max_active), one place, and a file that does not depend on another
//! process; tracefs is used otherwise, for functions of modules (`MODULE:FUNCTION`), which the PMU of some
//! kernels does not find, and where the PMU does not exist.
//! [`ProbeBuilder::interface`] overrides this.
//!
//! # Names and removal
//!
//! A probe of tracefs is in a group that names its process: `triscope_PID_START_NAMESPACE`, with the
//! start time of the process in clock ticks and the inode of its pid namespace. [`Probe`] removes it
//! when it is dropped; the events of the probe must be closed before. A probe that is still in use is
//! removed later: see [`retry_removals`].
//!
//! The probes of a process that was killed stay. The first probe of each process [`sweep`]s them.
//!
//! # Privileges
//!
//! tracefs is root's by default. The kprobe PMU needs `CAP_PERFMON` (`CAP_SYS_ADMIN` before Linux 5.8),
//! the uprobe PMU `CAP_SYS_ADMIN`.

mod builder;
mod control;
mod definition;
#[cfg(feature = "symbols")]
mod elf;
mod fetch;
mod file;
mod owner;
mod parse;
#[cfg(feature = "symbols")]
mod pclntab;
mod usdt;

pub use builder::{ProbeBuilder, ProbeLocation};
pub use definition::{ProbeDefinition, ProbeKind};
#[cfg(feature = "symbols")]
pub(crate) use elf::check_return;
#[cfg(feature = "symbols")]
pub use elf::{ElfFile, Function};
pub use fetch::{Fetch, FetchType};
pub(crate) use file::check_file;
pub use usdt::{UsdtArgument, UsdtProbe};

use crate::Tracefs;
use crate::builder::EventBuilder;
use crate::error::Result;
use crate::event::Event;
use crate::format::TracepointFormat;
use crate::monitor::matches;
use control::Installed;
use std::path::Path;

/// How a probe is created: see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProbeInterface {
    /// `kprobe_events` or `uprobe_events` of tracefs.
    Tracefs,
    /// The PMU `kprobe` or `uprobe`.
    Pmu,
}

/// A probe: an event, the format of its raw data, and the probe's life in the kernel.
///
/// The probe is removed when this is dropped. Drop it after its events: see the [module](self).
#[derive(Debug)]
pub struct Probe {
    kind: ProbeKind,
    event: Event,
    format: TracepointFormat,
    installed: Option<Installed>,
}

impl Probe {
    /// A probe at an instruction of the kernel: a function, `FUNCTION+OFFSET`, `MODULE:FUNCTION`, or
    /// an address.
    pub fn kprobe(location: impl Into<ProbeLocation>) -> ProbeBuilder {
        ProbeBuilder::kernel(ProbeKind::Kprobe, location.into())
    }

    /// A probe at the return of a function of the kernel.
    pub fn kretprobe(function: impl Into<ProbeLocation>) -> ProbeBuilder {
        ProbeBuilder::kernel(ProbeKind::Kretprobe, function.into())
    }

    /// A probe at an instruction of a program or library: a function, `FUNCTION+OFFSET`, or an offset
    /// in the file.
    ///
    /// Functions are looked up in `.symtab`, then in `.dynsym`, and those of a Go program without
    /// symbols in the table of its runtime. Names of Rust functions can be demangled
    /// (`crate::module::function`). Needs the feature `symbols`.
    pub fn uprobe(file: impl AsRef<Path>, location: impl Into<ProbeLocation>) -> ProbeBuilder {
        ProbeBuilder::user(ProbeKind::Uprobe, file.as_ref(), location.into())
    }

    /// A probe at the return of a function of a program or library.
    ///
    /// Functions of Go programs are refused: the kernel replaces the return address on the stack, and
    /// Go's runtime ends the program when it grows or scans such a stack. Without the feature `symbols`, Go
    /// programs are not recognised.
    pub fn uretprobe(file: impl AsRef<Path>, function: impl Into<ProbeLocation>) -> ProbeBuilder {
        ProbeBuilder::user(ProbeKind::Uretprobe, file.as_ref(), function.into())
    }

    /// A probe at a USDT probe (`DTRACE_PROBE`, `systemtap-sdt`) of a program or library, at all its
    /// places. Its arguments are [`Fetch::arg`]; its semaphore is counted up as long as the probe is
    /// enabled (Linux 4.20).
    #[cfg(feature = "symbols")]
    pub fn usdt(
        file: impl AsRef<Path>,
        provider: impl Into<String>,
        name: impl Into<String>,
    ) -> ProbeBuilder {
        ProbeBuilder::usdt(file.as_ref(), provider.into(), name.into())
    }

    /// A probe in the syntax of `perf probe`: `[[GROUP:]EVENT=]FUNCTION[+OFFSET|%return]
    /// [[NAME=]FETCH]...`, in the kernel or in a file. `sdt_PROVIDER:NAME` is a USDT probe.
    ///
    /// Lines and variables of the source are refused: debug information is not read.
    ///
    /// # Errors
    ///
    /// [`Error::ProbeSyntax`](crate::Error::ProbeSyntax) with the offset.
    pub fn parse(text: &str, file: Option<&Path>) -> Result<ProbeBuilder> {
        parse::parse(text, file)
    }

    /// The event: a tracepoint, or an event of the PMU.
    pub const fn event(&self) -> &Event {
        &self.event
    }

    /// Options for counting or sampling the event.
    pub fn builder(&self) -> EventBuilder {
        self.event.builder()
    }

    /// The format of the raw data of samples: the arguments, after `__probe_ip` or, at a return,
    /// `__probe_func` and `__probe_ret_ip`.
    pub const fn format(&self) -> &TracepointFormat {
        &self.format
    }

    /// The probed place.
    pub const fn kind(&self) -> ProbeKind {
        self.kind
    }

    /// How the probe was created.
    pub const fn interface(&self) -> ProbeInterface {
        if self.installed.is_some() { ProbeInterface::Tracefs } else { ProbeInterface::Pmu }
    }

    /// Hits and misses of a probe of tracefs, as the kernel counted them since its creation. `None`
    /// for a probe of a PMU.
    ///
    /// # Errors
    ///
    /// [`Error::File`](crate::Error::File) and [`Error::Format`](crate::Error::Format).
    pub fn counts(&self) -> Result<Option<ProbeCounts>> {
        self.installed.as_ref().map(Installed::counts).transpose()
    }

    /// Removes the probe now.
    ///
    /// # Errors
    ///
    /// [`Error::ProbeBusy`](crate::Error::ProbeBusy) if an event of it is open: it is removed later, as
    /// when the probe is dropped. [`Error::File`](crate::Error::File).
    pub fn remove(self) -> Result<()> {
        self.installed.map_or(Ok(()), Installed::remove)
    }

    /// Leaves the probe in the kernel, for other programs or a later time, and returns its event. No
    /// sweep removes it if its [group](ProbeBuilder::group) was chosen.
    pub fn keep(self) -> Event {
        if let Some(installed) = self.installed {
            installed.forget();
        }
        self.event
    }
}

/// The kernel's counts of a probe: [`Probe::counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeCounts {
    /// Hits while it was enabled, by any event or program.
    pub hits: u64,
    /// Hits that no event saw: of a kretprobe, calls beyond
    /// [`max_active`](ProbeBuilder::max_active); of a kprobe, hits inside of another probe. `None` if
    /// the kernel does not count them, as for programs.
    pub missed: Option<u64>,
}

/// The result of [`sweep`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// The events that were removed, as `GROUP:NAME`.
    pub removed: Vec<String>,
    /// Those that could not be removed, because someone uses them.
    pub busy: Vec<String>,
}

/// Removes the probes of this library whose process does not exist any more.
///
/// The group of a probe names its process by id, start time and pid namespace. Only processes of the
/// same pid namespace remove it, and only if no such process exists. Probes with other names are
/// never touched. The first probe that a process creates does this, and removes those that the process
/// created before an `execve(2)`.
///
/// # Errors
///
/// [`Error::File`](crate::Error::File) if tracefs cannot be read.
pub fn sweep(tracefs: &Tracefs) -> Result<Swept> {
    control::sweep(tracefs)
}

/// Removes the probes of this process that could not be removed when they were dropped, mostly because
/// they were in use, and returns how many still cannot. Creating a probe does the same.
pub fn retry_removals() -> usize {
    control::retry_removals()
}

/// All probes of `kprobe_events` and `uprobe_events`, of every process.
///
/// # Errors
///
/// [`Error::File`](crate::Error::File), and [`Error::ProbeSyntax`](crate::Error::ProbeSyntax) for a
/// line that this library does not understand.
pub fn list(tracefs: &Tracefs) -> Result<Vec<ProbeDefinition>> {
    let mut all = control::list(tracefs, ProbeKind::Kprobe)?;
    all.extend(control::list(tracefs, ProbeKind::Uprobe)?);
    Ok(all)
}

/// The probes of [`list`] whose `[GROUP:]NAME` matches a pattern with `*` (anything) and `?` (one
/// character).
///
/// # Errors
///
/// Those of [`list`].
pub fn list_matching(tracefs: &Tracefs, pattern: &str) -> Result<Vec<ProbeDefinition>> {
    let mut all = list(tracefs)?;
    all.retain(|probe| match pattern.contains(':') {
        true => matches(pattern, &format!("{}:{}", probe.group, probe.name)),
        false => matches(pattern, &probe.name),
    });
    Ok(all)
}

/// Whether a tracepoint is a uprobe: it has the registers of user space. Not if the list of uprobes
/// cannot be read.
pub(crate) fn is_uprobe(tracefs: &Tracefs, group: &str, name: &str) -> bool {
    control::has(tracefs, ProbeKind::Uprobe, group, name)
}

/// Removes a probe of any process.
///
/// # Errors
///
/// [`Error::ProbeBusy`](crate::Error::ProbeBusy),
/// [`Error::UnknownEvent`](crate::Error::UnknownEvent) and [`Error::File`](crate::Error::File).
pub fn delete(tracefs: &Tracefs, probe: &ProbeDefinition) -> Result<()> {
    control::remove(tracefs, probe.kind, &probe.group, &probe.name)
}
