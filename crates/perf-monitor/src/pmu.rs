//! Dynamic PMUs: `/sys/bus/event_source/devices`.

use crate::error::{Error, Result};
use crate::event::{Event, EventUnit, number};
use crate::generalized::Hardware;
use crate::system::{self, parse_cpu_list, read_text};
use std::path::{Path, PathBuf};

const DEVICES: &str = "/sys/bus/event_source/devices";

/// A PMU that the kernel describes in sysfs: its number, its terms and its named events.
///
/// Documented in `Documentation/ABI/testing/sysfs-bus-event_source-devices-{format,events}`.
#[derive(Clone, Debug)]
pub struct Pmu {
    name: String,
    dir: PathBuf,
    type_: u32,
}

/// Whether each of these CPUs has the counters of all PMUs of cores. On hybrid x86 and big.LITTLE there are several such
/// PMUs, and each names its CPUs in a file `cpus`; those that CPUs share have `cpumask`.
pub(crate) fn is_same_on(cpus: &[u32]) -> bool {
    is_same_in(Path::new(DEVICES), cpus)
}

fn is_same_in(devices: &Path, cpus: &[u32]) -> bool {
    let names = names_in(devices).unwrap_or_default();
    names.iter().filter_map(|name| read_text(devices.join(name).join("cpus")).ok()).all(|text| {
        let own = parse_cpu_list(&text);
        cpus.iter().all(|cpu| own.contains(cpu))
    })
}

/// The PMUs of cores that name their CPUs.
fn core_pmus_in(devices: &Path) -> Vec<Pmu> {
    let names = names_in(devices).unwrap_or_default();
    let pmus = names.iter().filter_map(|name| Pmu::open_in(devices, name).ok());
    pmus.filter(|pmu| pmu.has("cpus")).collect()
}

/// Whether CPUs share the PMU with this number, such as that of a memory controller: it names a CPU of each
/// group in a file `cpumask`. Its events are those of CPUs, and never of tasks.
pub(crate) fn is_shared(type_: u32) -> bool {
    is_shared_in(Path::new(DEVICES), type_)
}

fn is_shared_in(devices: &Path, type_: u32) -> bool {
    let names = names_in(devices).unwrap_or_default();
    // Each CPU has an SPE of its own, which samples tasks: its `cpumask` has the CPUs with one.
    let names = names.iter().filter(|name| !name.starts_with("arm_spe"));
    let mut pmus = names.filter_map(|name| Pmu::open_in(devices, name).ok());
    pmus.any(|pmu| pmu.type_ == type_ && pmu.has("cpumask") && !pmu.has("cpus"))
}

/// Position of the value of a term: configuration word and bits, lowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TermFormat {
    word: usize,
    ranges: Vec<(u32, u32)>,
}

impl Pmu {
    /// The names of all PMUs, sorted.
    ///
    /// # Errors
    ///
    /// [`Error::File`] if sysfs cannot be read.
    pub fn names() -> Result<Vec<String>> {
        names_in(Path::new(DEVICES))
    }

    /// The PMUs of cores, by name, that name their CPUs: on hybrid x86 and big.LITTLE one for each kind of
    /// cores, on other machines one or none.
    ///
    /// An event of one of several such PMUs counts a task while it is on the cores of that PMU alone. So
    /// does an event [of cores](Event::is_of_cores) without the name of a PMU: the kernel chooses one.
    pub fn of_cores() -> Vec<Self> {
        core_pmus_in(Path::new(DEVICES))
    }

    /// Opens the PMU with this name.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownEvent`] with similar names that exist.
    pub fn open(name: &str) -> Result<Self> {
        Self::open_in(Path::new(DEVICES), name)
    }

    fn open_in(devices: &Path, name: &str) -> Result<Self> {
        let unknown = || {
            let names = names_in(devices).unwrap_or_default();
            Error::UnknownEvent {
                name: format!("{name}/"),
                near: system::near_matches(name, names.iter().map(String::as_str), 3),
            }
        };
        // The name comes from users: it must not lead out of the directory.
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(unknown());
        }
        let dir = devices.join(name);
        let text = read_text(dir.join("type")).map_err(|_| unknown())?;
        let type_ = text.trim().parse().map_err(|_| Error::Format {
            what: "the type file of a PMU",
            offset: 0,
            why: "not a number",
        })?;
        Ok(Self { name: name.to_owned(), dir, type_ })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number for `perf_event_attr::type`.
    pub const fn type_(&self) -> u32 {
        self.type_
    }

    /// The CPUs to open events on; `None` for all. A PMU that several CPUs share, such as a memory
    /// controller or an energy counter, names one of each group; one of some cores names those.
    pub fn cpus(&self) -> Option<Vec<u32>> {
        let mut files = ["cpumask", "cpus"].into_iter();
        let text = files.find_map(|file| read_text(self.dir.join(file)).ok())?;
        Some(parse_cpu_list(&text)).filter(|cpus| !cpus.is_empty())
    }

    fn has(&self, file: &str) -> bool {
        self.dir.join(file).exists()
    }

    /// Names of the events, sorted.
    pub fn events(&self) -> Vec<String> {
        let mut names = names_in(&self.dir.join("events")).unwrap_or_default();
        names.retain(|n| {
            ![".unit", ".scale", ".per-pkg", ".snapshot"].iter().any(|s| n.ends_with(s))
        });
        names
    }

    /// Names of the terms, sorted.
    pub fn terms(&self) -> Vec<String> {
        names_in(&self.dir.join("format")).unwrap_or_default()
    }

    /// An event by name or by terms: `tsc`, `event=0x3c,umask=1`, `config=7`.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownTerm`] with similar terms, [`Error::TermValue`], [`Error::EventSyntax`].
    pub fn event(&self, text: &str) -> Result<Event> {
        let mut config = [0u64; 5];
        let mut unit = EventUnit::default();
        for term in text.split(',').map(str::trim).filter(|t| !t.is_empty()) {
            self.apply(term, &mut config, &mut unit, true)?;
        }
        let name = format!("{}/{text}/", self.name);
        let mut event = Event::of_pmu(name, self.type_, config, unit);
        event.cpus = self.cpus();
        Ok(event)
    }

    /// The configuration that sets one term.
    pub(crate) fn term_bits(&self, term: &str, value: u64) -> Result<[u64; 5]> {
        let mut config = [0; 5];
        self.set(term, value, &mut config)?;
        Ok(config)
    }

    fn apply(
        &self,
        term: &str,
        config: &mut [u64; 5],
        unit: &mut EventUnit,
        may_be_event: bool,
    ) -> Result<()> {
        let (name, value) = term.split_once('=').unwrap_or((term, ""));
        let is_alias = value.is_empty() && !name.contains(['/', '.']) && may_be_event;
        if is_alias {
            let events = self.dir.join("events");
            let is_term = self.dir.join("format").join(name).exists();
            let names = [name].into_iter().chain(generalized_names(name).filter(|_| !is_term));
            let found = |name| Some((name, read_text(events.join(name)).ok()?));
            if let Some((name, terms)) = { names }.find_map(found) {
                for term in terms.trim().split(',') {
                    self.apply(term, config, unit, false)?;
                }
                if let Ok(text) = read_text(events.join(format!("{name}.unit"))) {
                    unit.name = text.trim().to_owned();
                }
                if let Ok(text) = read_text(events.join(format!("{name}.scale"))) {
                    unit.scale = text.trim().parse().ok();
                }
                unit.is_snapshot = events.join(format!("{name}.snapshot")).exists();
                return Ok(());
            }
        }
        let number = if value.is_empty() { Some(1) } else { number(value) };
        let number = number.ok_or_else(|| Error::EventSyntax {
            text: term.to_owned(),
            why: "the value of a term is a number",
        })?;
        self.set(name, number, config)
    }

    fn set(&self, term: &str, value: u64, config: &mut [u64; 5]) -> Result<()> {
        let format = match term {
            "config" | "config1" | "config2" | "config3" | "config4" => {
                TermFormat { word: word_of(term).unwrap_or(0), ranges: vec![(0, 63)] }
            }
            _ => self.format_of(term)?,
        };
        let bits: u32 = format.ranges.iter().map(|(low, high)| high - low + 1).sum();
        if bits < 64 && value >> bits != 0 {
            return Err(Error::TermValue {
                pmu: self.name.clone(),
                term: term.to_owned(),
                value,
                bits,
            });
        }
        let mut rest = value;
        let Some(word) = config.get_mut(format.word) else { return Ok(()) };
        for (low, high) in format.ranges {
            let width = high - low + 1;
            let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
            *word = *word & !(mask << low) | (rest & mask) << low;
            rest = if width == 64 { 0 } else { rest >> width };
        }
        Ok(())
    }

    fn format_of(&self, term: &str) -> Result<TermFormat> {
        let text = if term.is_empty() || term.contains(['/', '.']) {
            None
        } else {
            read_text(self.dir.join("format").join(term)).ok()
        };
        match text {
            Some(text) => parse_format(&text),
            None => {
                let mut known = self.terms();
                known.extend(self.events());
                Err(Error::UnknownTerm {
                    pmu: self.name.clone(),
                    term: term.to_owned(),
                    near: system::near_matches(term, known.iter().map(String::as_str), 3),
                })
            }
        }
    }
}

/// The other names of a generalised hardware event: the kernel lists `cycles` as `cpu-cycles`.
fn generalized_names<'a>(name: &'a str) -> impl Iterator<Item = &'a str> {
    let all = Hardware::ALL.iter().map(|(_, names)| *names);
    let of_event = all.filter(move |names| names.contains(&name)).flatten();
    of_event.map(|other| -> &'a str { other })
}

fn word_of(name: &str) -> Option<usize> {
    ["config", "config1", "config2", "config3", "config4"].iter().position(|c| *c == name)
}

/// Parses a file of the `format` directory: `config1:0-7,32`.
fn parse_format(text: &str) -> Result<TermFormat> {
    const WHAT: &str = "a format file of a PMU";
    let bad = |offset: usize, why| Error::Format { what: WHAT, offset: offset as u64, why };
    let text = text.trim();
    let (word, bits) = text.split_once(':').ok_or(bad(0, "no colon"))?;
    let word = word_of(word).ok_or(bad(0, "not one of config, config1 … config4"))?;
    let ranges = bits
        .split(',')
        .map(|range| {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let at = text.len() - bits.len();
            let low: u32 = low.trim().parse().map_err(|_| bad(at, "not a bit number"))?;
            let high: u32 = high.trim().parse().map_err(|_| bad(at, "not a bit number"))?;
            if low > high || high > 63 {
                return Err(bad(at, "not a range of bits of 64"));
            }
            Ok((low, high))
        })
        .collect::<Result<Vec<_>>>()?;
    if ranges.iter().map(|(low, high)| high - low + 1).sum::<u32>() > 64 {
        return Err(bad(0, "more than 64 bits"));
    }
    Ok(TermFormat { word, ranges })
}

fn names_in(dir: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(dir).map_err(|e| Error::file(dir, e))?;
    let mut names: Vec<String> =
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sysfs files of a PMU, in a temporary directory.
    fn fake(files: &[(&str, &str)]) -> (PathBuf, Pmu) {
        let id = std::thread::current().name().unwrap_or("t").replace("::", "-");
        let root = std::env::temp_dir().join(format!("perf-pmu-{}-{id}", std::process::id()));
        for (path, text) in files {
            let path = root.join("x").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let pmu = Pmu::open_in(&root, "x").unwrap();
        (root, pmu)
    }

    #[test]
    fn terms_land_in_their_bits() {
        let (root, pmu) = fake(&[
            ("type", "42\n"),
            ("format/event", "config:0-7,32-35\n"),
            ("format/edge", "config1:18\n"),
            ("format/wide", "config2:0-63\n"),
            ("events/joules", "event=0xabc,edge\n"),
            ("events/joules.scale", "2.5e-10\n"),
            ("events/joules.unit", "Joules\n"),
            ("events/occupancy", "event=0x2\n"),
            ("events/occupancy.snapshot", "1\n"),
            ("events/cpu-cycles", "event=0x3c\n"),
            ("cpumask", "0,4-5\n"),
        ]);
        let event = pmu.event("joules").unwrap();
        assert_eq!(event.type_, 42);
        assert_eq!(event.config, [0xa_0000_00bc, 1 << 18, 0, 0, 0]);
        let joules = EventUnit { name: "Joules".into(), scale: Some(2.5e-10), is_snapshot: false };
        assert_eq!(*event.unit(), joules);
        assert!(pmu.event("occupancy").unwrap().unit().is_snapshot);
        let event = pmu.event("event=0x1,wide=0xffffffffffffffff,config3=9").unwrap();
        assert_eq!(event.config, [1, 0, u64::MAX, 9, 0]);
        assert!(matches!(
            pmu.event("event=0x1000"),
            Err(Error::TermValue { bits: 12, value: 0x1000, .. })
        ));
        let error = pmu.event("evnt=1").unwrap_err().to_string();
        assert!(error.contains("did you mean event?"), "{error}");
        assert!(matches!(pmu.event("../type"), Err(Error::UnknownTerm { .. })));
        assert_eq!(pmu.events(), ["cpu-cycles", "joules", "occupancy"]);
        assert_eq!(pmu.event("cycles").unwrap().config, pmu.event("cpu-cycles").unwrap().config);
        assert!(matches!(pmu.event("instructions"), Err(Error::UnknownTerm { .. })));
        assert_eq!(event.cpus(), Some(&[0, 4, 5][..]));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn pmus_of_some_cores_are_found() {
        let (root, _) = fake(&[("type", "4\n"), ("cpumask", "0\n")]);
        assert!(is_same_in(&root, &[0, 1, 2]), "no PMU of cores names its CPUs");
        std::fs::write(root.join("x/cpus"), "0-1\n").unwrap();
        assert!(is_same_in(&root, &[0, 1]));
        assert!(!is_same_in(&root, &[0, 1, 2]));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn pmus_of_cores_name_their_cpus() {
        let (root, _) = fake(&[("type", "4\n"), ("cpus", "0-7\n")]);
        let files = [
            ("atom/type", "10\n"),
            ("atom/cpus", "8-15\n"),
            ("uncore/type", "11\n"),
            ("uncore/cpumask", "0\n"),
            ("software/type", "1\n"),
            ("broken/cpus", "0\n"),
        ];
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let pmus = core_pmus_in(&root);
        let pmus: Vec<(&str, u32)> = pmus.iter().map(|pmu| (pmu.name(), pmu.type_())).collect();
        assert_eq!(pmus, [("atom", 10), ("x", 4)]);
        std::fs::remove_dir_all(&root).unwrap();
        assert!(core_pmus_in(&root).is_empty());
    }

    #[test]
    fn pmus_that_cpus_share_are_found() {
        let (root, _) = fake(&[("type", "42\n"), ("cpumask", "0\n")]);
        assert!(is_shared_in(&root, 42));
        assert!(!is_shared_in(&root, 4), "another PMU");
        std::fs::rename(root.join("x"), root.join("arm_spe_0")).unwrap();
        assert!(!is_shared_in(&root, 42), "each CPU has its own");
        std::fs::rename(root.join("arm_spe_0"), root.join("x")).unwrap();
        // That of some cores.
        std::fs::write(root.join("x/cpus"), "0-1\n").unwrap();
        assert!(!is_shared_in(&root, 42));
        for file in ["cpus", "cpumask"] {
            std::fs::remove_file(root.join("x").join(file)).unwrap();
        }
        assert!(!is_shared_in(&root, 42), "such as msr");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn broken_format_files_are_refused() {
        for bad in
            ["", "config", "config9:0", "config:9-3", "config:0-64", "config:x", "config:0-63,0"]
        {
            assert!(parse_format(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_format("config:0\n").unwrap().ranges, [(0, 0)]);
    }

    #[test]
    fn names_do_not_leave_the_directory() {
        for name in ["", "..", "../../../proc", "."] {
            assert!(matches!(Pmu::open(name), Err(Error::UnknownEvent { .. })), "{name}");
        }
    }
}
