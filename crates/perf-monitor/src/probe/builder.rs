//! Options of a probe, and its creation.

use super::control::Installed;
use super::definition::{self, Place, ProbeDefinition, ProbeKind};
use super::fetch::Fetch;
use super::file::ProbedFile;
use super::owner::Owner;
use super::usdt::UsdtProbe;
use super::{Probe, ProbeInterface};
use crate::error::{Error, Result};
use crate::event::{Event, number};
use crate::format::TracepointFormat;
use crate::tracefs::Tracefs;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// An instruction to probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProbeLocation {
    /// An address of the kernel, or an offset in a file.
    Address(u64),
    /// An instruction of a function.
    Symbol {
        /// The function.
        name: String,
        /// Offset in the function, in bytes.
        offset: u64,
    },
}

impl ProbeLocation {
    /// The function, or an address with this before it.
    fn default_name(&self, prefix: &str) -> String {
        match self {
            Self::Address(address) => format!("{prefix}_{address:x}"),
            Self::Symbol { name, .. } => {
                // Without the module of the kernel or the path of Rust.
                name.rsplit(':').next().unwrap_or(name).to_owned()
            }
        }
    }
}

impl fmt::Display for ProbeLocation {
    /// The syntax of the kernel.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address:#x}"),
            Self::Symbol { name, offset: 0 } => f.write_str(name),
            Self::Symbol { name, offset } => write!(f, "{name}+{offset}"),
        }
    }
}

impl From<u64> for ProbeLocation {
    fn from(address: u64) -> Self {
        Self::Address(address)
    }
}

impl From<&str> for ProbeLocation {
    /// `FUNCTION`, `FUNCTION+OFFSET` or a number.
    fn from(text: &str) -> Self {
        if let Some(address) = number(text) {
            return Self::Address(address);
        }
        let symbol = |name: &str, offset| Self::Symbol { name: name.to_owned(), offset };
        match text.rsplit_once('+').and_then(|(name, offset)| Some((name, number(offset)?))) {
            Some((name, offset)) => symbol(name, offset),
            None => symbol(text, 0),
        }
    }
}

impl From<String> for ProbeLocation {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

#[derive(Clone, Debug)]
enum Point {
    Kernel(ProbeLocation),
    File(PathBuf, ProbeLocation),
    #[cfg(feature = "symbols")]
    Usdt {
        file: PathBuf,
        provider: String,
        name: String,
    },
}

/// A probe whose file and functions were looked up.
struct Resolved {
    file: Option<ProbedFile>,
    /// In the file.
    places: Vec<FilePlace>,
    /// What a name is made of.
    name: String,
}

/// A place in a file.
struct FilePlace {
    offset: u64,
    /// The offset of the counter that the kernel increments while the probe is enabled.
    semaphore: Option<u64>,
    usdt: Option<UsdtProbe>,
}

/// Options of a probe. [`create`](Self::create) creates it.
#[derive(Clone, Debug)]
#[must_use]
pub struct ProbeBuilder {
    kind: ProbeKind,
    point: Point,
    arguments: Vec<(String, Fetch)>,
    max_active: u32,
    group: Option<String>,
    name: Option<String>,
    pid: Option<u32>,
    semaphore: Option<u64>,
    tracefs: Option<Tracefs>,
    interface: Option<ProbeInterface>,
}

impl ProbeBuilder {
    fn new(kind: ProbeKind, point: Point) -> Self {
        Self {
            kind,
            point,
            arguments: Vec::new(),
            max_active: 0,
            group: None,
            name: None,
            pid: None,
            semaphore: None,
            tracefs: None,
            interface: None,
        }
    }

    pub(super) fn kernel(kind: ProbeKind, location: ProbeLocation) -> Self {
        Self::new(kind, Point::Kernel(location))
    }

    pub(super) fn user(kind: ProbeKind, file: &Path, location: ProbeLocation) -> Self {
        Self::new(kind, Point::File(file.to_owned(), location))
    }

    #[cfg(feature = "symbols")]
    pub(super) fn usdt(file: &Path, provider: String, name: String) -> Self {
        Self::new(ProbeKind::Uprobe, Point::Usdt { file: file.to_owned(), provider, name })
    }

    /// Reads a value at each hit: a typed [`Fetch`], or text in the syntax of the kernel. The name is
    /// that of the field in [`Probe::format`].
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<Fetch>) -> Self {
        self.arguments.push((name.into(), value.into()));
        self
    }

    /// The name of the event. The default is made of the function and a number. It must be unique in
    /// its group.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The group (system) of the event, instead of that of this process. For probes that are
    /// [kept](Probe::keep): no [sweep](super::sweep) removes them.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// For a kretprobe: how many calls can be active at a time. The returns of more are not seen. The
    /// default of 0 lets the kernel choose, from the number of CPUs.
    pub const fn max_active(mut self, calls: u32) -> Self {
        self.max_active = calls;
        self
    }

    /// Looks up the file as this process sees it, in its mount namespace (Linux 5.6).
    ///
    /// With a chosen [`group`](Self::group), [`list`](super::list) names it by a path of this
    /// process, or `/proc/PID/root/PATH`, if the kernel can parse that; otherwise by a file descriptor.
    pub const fn in_process(mut self, pid: u32) -> Self {
        self.pid = Some(pid);
        self
    }

    /// The offset in the file of a 16-bit counter that the kernel increments while the probe is
    /// enabled (Linux 4.20). [`Probe::usdt`] finds it.
    pub const fn semaphore(mut self, offset: u64) -> Self {
        self.semaphore = Some(offset);
        self
    }

    /// The tracefs to use. The default is the mounted one, otherwise a private one.
    pub fn tracefs(mut self, tracefs: &Tracefs) -> Self {
        self.tracefs = Some(tracefs.clone());
        self
    }

    /// The tracefs to use if none was chosen.
    pub(crate) fn or_tracefs(mut self, tracefs: &Tracefs) -> Self {
        self.tracefs.get_or_insert_with(|| tracefs.clone());
        self
    }

    /// Overrides the choice of the [interface](super#two-interfaces).
    pub const fn interface(mut self, interface: ProbeInterface) -> Self {
        self.interface = Some(interface);
        self
    }

    /// Chooses group and name as `perf probe` does, where none was chosen: group `probe`, or
    /// `probe_FILE` for the file `FILE.EXTENSION`, or `sdt_PROVIDER`; the name is that of the
    /// function, with `__return` at its return. For probes that are [kept](Probe::keep).
    pub fn perf_names(mut self) -> Self {
        let (group, name) = match &self.point {
            Point::Kernel(location) => {
                // Without what the compiler appends, as in `f.isra.0`.
                let name = location.default_name("abs");
                let function = name.split(['.', '@']).next().unwrap_or_default();
                ("probe".to_owned(), function.to_owned())
            }
            Point::File(path, location) => {
                let file = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let base = file.split(|c| !is_part(c)).next().unwrap_or_default();
                let group = definition::identifier(&format!("probe_{base}"), definition::MAX_NAME);
                (group, location.default_name("abs"))
            }
            #[cfg(feature = "symbols")]
            Point::Usdt { provider, name, .. } => (format!("sdt_{provider}"), name.clone()),
        };
        let at_return = if self.kind.is_return() { "__return" } else { "" };
        self.group.get_or_insert_with(|| definition::identifier(&group, definition::MAX_NAME));
        self.name.get_or_insert_with(|| {
            // The part after the last separator: `handle` of `server::handle`.
            let base = definition::identifier(&name, definition::MAX_NAME - at_return.len());
            format!("{base}{at_return}")
        });
        self
    }

    /// The lines of `kprobe_events` or `uprobe_events` for this probe, one for each place, without
    /// creating it.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create), except the kernel's.
    pub fn definitions(&self) -> Result<Vec<ProbeDefinition>> {
        let definitions = self.define(&self.resolve()?)?;
        definitions.iter().try_for_each(ProbeDefinition::check)?;
        Ok(definitions)
    }

    /// Creates the probe.
    ///
    /// # Errors
    ///
    /// [`Error::Probe`] with the kernel's explanation; [`Error::ProbeExists`];
    /// [`Error::ProbeSyntax`] for a name or argument that cannot be written;
    /// [`Error::UnknownSymbol`], [`Error::AmbiguousSymbol`], [`Error::UnusableSymbol`] and
    /// [`Error::Elf`] for functions of files; [`Error::UsdtArgument`]; [`Error::ProbeTypes`];
    /// [`Error::NoTracefs`], [`Error::NoProbeFile`] and [`Error::NoProbePmu`] if the kernel cannot create
    /// probes so; and [`Error::File`].
    pub fn create(&self) -> Result<Probe> {
        let resolved = self.resolve()?;
        if self.may_use_pmu() {
            if let Some(event) = self.pmu_event(&resolved) {
                match event {
                    // Without the PMU, tracefs.
                    Err(Error::NoProbePmu { .. }) if self.interface.is_none() => {}
                    event => return self.pmu_probe(event?),
                }
            }
        }
        self.by_tracefs(&resolved)
    }

    /// Looks up files and functions.
    fn resolve(&self) -> Result<Resolved> {
        let mut resolved = Resolved { file: None, places: Vec::new(), name: String::new() };
        // Nothing removes a probe of a chosen group.
        let is_kept = self.group.is_some();
        match &self.point {
            Point::Kernel(location) => resolved.name = location.default_name(""),
            Point::File(path, location) => {
                let file = ProbedFile::open(path, self.pid, is_kept)?;
                let offset = self.file_offset(&file, location)?;
                resolved.name = location.default_name(&default_name(path));
                resolved.places.push(FilePlace { offset, semaphore: self.semaphore, usdt: None });
                resolved.file = Some(file);
            }
            #[cfg(feature = "symbols")]
            Point::Usdt { file, provider, name } => {
                let file = ProbedFile::open(file, self.pid, is_kept)?;
                let mut elf = super::ElfFile::new(&file.file, &file.path)?;
                let places =
                    elf.usdt_probes_of(provider, name)?.into_iter().map(|usdt| FilePlace {
                        offset: usdt.offset,
                        semaphore: self.semaphore.or(usdt.semaphore),
                        usdt: Some(usdt),
                    });
                resolved.places.extend(places);
                resolved.name = format!("{provider}_{name}");
                resolved.file = Some(file);
            }
        }
        Ok(resolved)
    }

    /// Whether the PMU can create such a probe, and nothing else is asked for.
    fn may_use_pmu(&self) -> bool {
        let is_plain = self.arguments.is_empty()
            && self.max_active == 0
            && self.group.is_none()
            && self.name.is_none();
        is_plain && self.interface != Some(ProbeInterface::Tracefs)
    }

    /// The event of the PMU, if it has such probes.
    fn pmu_event(&self, resolved: &Resolved) -> Option<Result<Event>> {
        if let Some(file) = &resolved.file {
            let [place] = resolved.places.as_slice() else { return None };
            return (!file.is_descriptor).then(|| {
                let (counter, at_return) = (place.semaphore.unwrap_or(0), self.kind.is_return());
                let mut event = Event::uprobe_at(&file.name, place.offset, at_return, counter)?;
                event.file = Some(file.id);
                Ok(event)
            });
        }
        let Point::Kernel(location) = &self.point else { return None };
        match (location, self.kind) {
            // `MODULE:FUNCTION`: some stable kernels look for a function of that name and find none.
            (ProbeLocation::Symbol { name, .. }, _)
                if name.contains(':') && self.interface.is_none() =>
            {
                None
            }
            (ProbeLocation::Address(address), ProbeKind::Kprobe) => {
                Some(Event::kprobe_address(*address))
            }
            (ProbeLocation::Symbol { name, offset }, ProbeKind::Kprobe) => {
                Some(Event::kprobe(name, *offset))
            }
            (ProbeLocation::Symbol { name, offset: 0 }, _) => Some(Event::kretprobe(name)),
            // The PMU has no return probes elsewhere.
            _ => None,
        }
    }

    fn pmu_probe(&self, event: Event) -> Result<Probe> {
        let format = pmu_format(self.kind, event.name())?;
        Ok(Probe { kind: self.kind, event, format, installed: None })
    }

    #[cfg(feature = "symbols")]
    fn file_offset(&self, file: &ProbedFile, location: &ProbeLocation) -> Result<u64> {
        if self.kind == ProbeKind::Uretprobe {
            super::check_return(&file.file, &file.path, &location.to_string())?;
        }
        match location {
            ProbeLocation::Address(offset) => Ok(*offset),
            ProbeLocation::Symbol { name, offset } => {
                super::ElfFile::new(&file.file, &file.path)?.function(name)?.at(*offset)
            }
        }
    }

    #[cfg(not(feature = "symbols"))]
    fn file_offset(&self, file: &ProbedFile, location: &ProbeLocation) -> Result<u64> {
        match location {
            ProbeLocation::Address(offset) => Ok(*offset),
            ProbeLocation::Symbol { name, .. } => Err(Error::UnusableSymbol {
                path: file.path.clone(),
                name: name.clone(),
                why: "this program was built without the feature `symbols` of perf-monitor",
            }),
        }
    }

    fn define(&self, resolved: &Resolved) -> Result<Vec<ProbeDefinition>> {
        let group = match &self.group {
            Some(group) => group.clone(),
            None => own_group()?,
        };
        let name = match &self.name {
            Some(name) => name.clone(),
            None => unique_name(&resolved.name, self.kind),
        };
        let define = |location: String, usdt: Option<&UsdtProbe>| {
            let place = Place { usdt, ..self.kind.place() };
            let arguments = self
                .arguments
                .iter()
                .map(|(name, fetch)| Ok((name.clone(), fetch.render(place)?)))
                .collect::<Result<_>>()?;
            Ok(ProbeDefinition {
                kind: self.kind,
                group: group.clone(),
                name: name.clone(),
                location,
                max_active: self.max_active,
                arguments,
            })
        };
        let Some(file) = &resolved.file else {
            let Point::Kernel(location) = &self.point else { return Ok(Vec::new()) };
            return Ok(vec![define(location.to_string(), None)?]);
        };
        let places = resolved.places.iter().map(|place| {
            let mut text = format!("{}:{:#x}", file.name, place.offset);
            if let Some(semaphore) = place.semaphore {
                text.push_str(&format!("({semaphore:#x})"));
            }
            define(text, place.usdt.as_ref())
        });
        let definitions = places.collect::<Result<Vec<_>>>()?;
        check_types(&definitions)?;
        Ok(definitions)
    }

    fn by_tracefs(&self, resolved: &Resolved) -> Result<Probe> {
        if self.interface == Some(ProbeInterface::Pmu) {
            return Err(definition::refused(
                &resolved.name,
                0,
                "arguments, names, groups, several places and files of other processes need tracefs",
            ));
        }
        let tracefs = match &self.tracefs {
            Some(tracefs) => tracefs.clone(),
            None => Tracefs::find_or_detached()?,
        };
        let definitions = self.define(resolved)?;
        let installed = Installed::create(&tracefs, &definitions)?;
        // Otherwise it is removed: it may be in another file.
        resolved.file.as_ref().map_or(Ok(()), ProbedFile::check)?;
        let (group, name) = (installed.group.as_str(), installed.name.as_str());
        Ok(Probe {
            kind: self.kind,
            event: tracefs.event(group, name)?,
            format: tracefs.format(group, name)?,
            installed: Some(installed),
        })
    }
}

/// The kernel adds a place to an event if its arguments have the types of those of the first place.
fn check_types(definitions: &[ProbeDefinition]) -> Result<()> {
    let Some((first, others)) = definitions.split_first() else { return Ok(()) };
    for other in others {
        for ((name, fetch), (_, other)) in first.arguments.iter().zip(&other.arguments) {
            let (name, first, second) = (name.as_str(), type_of(fetch), type_of(other));
            if first != second {
                let [name, first, second] = [name, first, second].map(str::to_owned);
                return Err(Error::ProbeTypes { name, first, second });
            }
        }
    }
    Ok(())
}

/// The type of a fetch argument; empty if none is given.
fn type_of(fetch: &str) -> &str {
    fetch.rsplit_once(':').map_or("", |(_, type_)| type_)
}

/// The group of this process's probes.
fn own_group() -> Result<String> {
    let owner = Owner::this().ok_or_else(|| {
        let error = std::io::Error::other("not of this pid namespace: choose the group of probes");
        Error::file("/proc/self", error)
    })?;
    Ok(owner.to_string())
}

fn unique_name(function: &str, kind: ProbeKind) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let at_return = if kind.is_return() { "__return" } else { "" };
    // At most 63 characters: 33 of the function, 9 and 21 of the number.
    format!("{}{at_return}_{n}", definition::identifier(function, 32))
}

fn default_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The format of the raw data of PMU probes, which have no file that describes it: `struct
/// kprobe_trace_entry_head` and `kretprobe_trace_entry_head`, or the same words of a uprobe.
fn pmu_format(kind: ProbeKind, name: &str) -> Result<TracepointFormat> {
    let word = size_of::<usize>();
    let words: &[&str] =
        if kind.is_return() { &["__probe_func", "__probe_ret_ip"] } else { &["__probe_ip"] };
    let mut text = format!(
        "name: {name}\nID: 0\nformat:\n\
         \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
         \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
         \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
         \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
    );
    for (i, field) in words.iter().enumerate() {
        let offset = 8 + i * word;
        text.push_str(&format!(
            "\tfield:unsigned long {field};\toffset:{offset};\tsize:{word};\tsigned:0;\n"
        ));
    }
    TracepointFormat::parse(if kind.is_user() { "uprobe" } else { "kprobe" }, &text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::FieldFormat;

    #[test]
    fn locations_are_symbols_offsets_or_addresses() {
        let symbol = |name: &str, offset| ProbeLocation::Symbol { name: name.into(), offset };
        assert_eq!(ProbeLocation::from("main.add"), symbol("main.add", 0));
        assert_eq!(ProbeLocation::from("vfs_read+0x10"), symbol("vfs_read", 16));
        assert_eq!(ProbeLocation::from("<dyn A + B>::f"), symbol("<dyn A + B>::f", 0));
        assert_eq!(ProbeLocation::from("0x10"), ProbeLocation::Address(16));
        assert_eq!(ProbeLocation::from(7), ProbeLocation::Address(7));
    }

    #[test]
    fn names_are_unique_and_short_enough() {
        let long = "a_very_long_function_name_of_a_generic_type_in_a_deep_module";
        let (first, second) =
            (unique_name(long, ProbeKind::Uretprobe), unique_name(long, ProbeKind::Uretprobe));
        assert_ne!(first, second);
        assert!(first.contains("__return_") && first.len() + 19 <= definition::MAX_NAME, "{first}");
        definition::check_identifier(&first).unwrap();
    }

    #[test]
    fn raw_data_of_pmu_probes_has_a_format() {
        let format = pmu_format(ProbeKind::Uretprobe, "uprobe:/x+0x1%return").unwrap();
        let names: Vec<&str> = format.fields().iter().map(FieldFormat::name).collect();
        assert_eq!(names, ["__probe_func", "__probe_ret_ip"]);
        assert_eq!(format.common_fields().len(), 4);
        let format = pmu_format(ProbeKind::Kprobe, "x").unwrap();
        let mut raw = [0; 20];
        raw[8] = 7;
        assert_eq!(format.field("__probe_ip").unwrap().u64(&raw), Some(7));
    }

    #[test]
    fn functions_of_modules_are_probed_by_tracefs() {
        let uses_pmu = |builder: &ProbeBuilder| {
            builder.may_use_pmu() && builder.pmu_event(&builder.resolve().unwrap()).is_some()
        };
        assert!(uses_pmu(&Probe::kprobe("vfs_read")));
        let of_module = Probe::kprobe("xfs:xfs_file_open");
        assert!(!uses_pmu(&of_module));
        assert!(!uses_pmu(&Probe::kretprobe("xfs:xfs_file_open")));
        assert!(uses_pmu(&of_module.interface(ProbeInterface::Pmu)));
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn places_with_different_types_of_an_argument_are_refused() {
        let texts = match cfg!(target_arch = "x86_64") {
            true => ["-4@%edi", "8@%rdi"],
            false => ["-4@w0", "8@x0"],
        };
        let place = |text: &str| {
            let usdt = Some(UsdtProbe::with_argument(text));
            FilePlace { offset: 0x10, semaphore: None, usdt }
        };
        let file = ProbedFile::open(&std::env::current_exe().unwrap(), None, false).unwrap();
        let places = texts.into_iter().map(place).collect();
        let resolved = Resolved { file: Some(file), places, name: "x".to_owned() };
        let define = |fetch: &str| {
            let builder = Probe::uprobe("/x", 0x10u64).group("g").name("n").arg("a", fetch);
            builder.define(&resolved)
        };
        let error = define("$arg1").unwrap_err();
        let Error::ProbeTypes { name, first, second } = &error else { panic!("{error}") };
        assert_eq!([&**name, &**first, &**second], ["a", "s32", "u64"]);
        assert!(error.to_string().contains("as in $arg1:u64"), "{error}");
        // With a type, and for what an argument points to, they are the same.
        for fetch in ["$arg1:u64", "+8($arg1)", "+0($arg1):string"] {
            assert_eq!(define(fetch).unwrap().len(), 2, "{fetch}");
        }
    }

    #[test]
    fn the_pmu_has_no_arguments() {
        let builder = Probe::kprobe("x").arg("a", Fetch::arg(1)).interface(ProbeInterface::Pmu);
        assert!(builder.create().unwrap_err().to_string().contains("need tracefs"));
    }
}
