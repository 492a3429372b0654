//! Names of addresses in recordings: of the kernel, of mapped files, of perf maps. An address
//! without a known symbol has none: nothing is guessed.

mod elf;
pub(crate) mod live;
mod table;

use crate::failure::OneLine;
use perf_data::{BuildId, Features};
use perf_monitor::{CpuMode, FileId, Mmap, ProcessEvent};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::rc::Rc;
use table::SymbolTable;

/// The kernel's symbols and modules.
const KERNEL: &str = "[kernel.kallsyms]";

/// The address space of a process: mappings by their start.
type Space = BTreeMap<u64, Mapping>;

#[derive(Clone)]
struct Mapping {
    end: u64,
    pgoff: u64,
    file: Rc<MappedFile>,
}

/// A mapped file with its symbols.
pub(crate) struct MappedFile {
    /// The name that is shown.
    name: String,
    build_id: Option<BuildId>,
    /// The file of a just-in-time compiler, not an ELF file.
    is_perf_map: bool,
    symbols: std::cell::OnceCell<SymbolTable>,
}

/// The mappings of all processes, as records report them.
pub(crate) struct Symbols {
    processes: HashMap<u32, Rc<Space>>,
    /// Processes between an `execve(2)` and their first new mapping.
    in_exec: HashSet<u32>,
    kernel: SymbolTable,
    /// Start and end of the kernel's text and of its modules, with their names.
    kernel_maps: BTreeMap<u64, (u64, String)>,
    files: HashMap<(String, Option<BuildId>), Rc<MappedFile>>,
    /// Build ids of the recording.
    build_ids: HashMap<String, BuildId>,
}

/// The name of a symbol as its source has it, for Rust; other names stay as they are.
pub(crate) fn demangled(name: &str) -> Cow<'_, str> {
    match rustc_demangle::try_demangle(name) {
        Ok(name) => Cow::Owned(format!("{name:#}")),
        Err(_) => Cow::Borrowed(name),
    }
}

/// What is at an address.
pub(crate) struct Place<'a> {
    /// The address in the file; in the kernel the address itself.
    pub(crate) address: u64,
    /// The file, `[kernel.kallsyms]` or a module.
    pub(crate) file: Option<&'a str>,
    /// The symbol, and the offset in it.
    pub(crate) symbol: Option<(&'a str, u64)>,
    pub(crate) is_kernel: bool,
}

/// Writes the symbol and the file of a place: ` main+0x4 (/bin/app)`.
pub(crate) fn put_place(
    line: &mut String,
    place: &Place<'_>,
    is_demangled: bool,
) -> std::fmt::Result {
    match place.symbol {
        Some((name, offset)) => {
            let name = if is_demangled { demangled(name) } else { name.into() };
            write!(line, " {}+{offset:#x}", OneLine(&name))?;
        }
        None => line.push_str(" [unknown]"),
    }
    write!(line, " ({})", OneLine(place.file.unwrap_or("[unknown]")))
}

impl Symbols {
    /// The symbols for a recording.
    ///
    /// Those of the kernel are of the running one, if the recording is of the same.
    pub(crate) fn new(features: &Features) -> Self {
        let ours = Features::of_this_machine();
        let is_this_kernel = match (features.build_id(KERNEL), BuildId::of_kernel()) {
            (Some(theirs), Some(ours)) => theirs == ours,
            _ => features.os_release == ours.os_release && features.hostname == ours.hostname,
        };
        let kernel = if is_this_kernel { table::of_kernel() } else { SymbolTable::default() };
        let entries = features.build_ids.iter().filter(|entry| !entry.is_kernel);
        Self {
            processes: HashMap::new(),
            in_exec: HashSet::new(),
            kernel,
            kernel_maps: BTreeMap::new(),
            files: HashMap::new(),
            build_ids: entries.map(|entry| (entry.file.clone(), entry.build_id)).collect(),
        }
    }

    /// Adds a mapping.
    pub(crate) fn map(&mut self, mmap: &Mmap<'_>, mode: CpuMode) {
        let name = String::from_utf8_lossy(mmap.filename).into_owned();
        let end = mmap.addr.saturating_add(mmap.len);
        if mode == CpuMode::Kernel {
            let name = match name.strip_prefix(KERNEL) {
                Some(_) => KERNEL.to_owned(),
                None => module_name(&name),
            };
            self.kernel_maps.insert(mmap.addr, (end, name));
            return;
        }
        let file = self.file(name, mmap);
        if self.in_exec.remove(&mmap.pid) {
            self.processes.remove(&mmap.pid);
        }
        let space = self.processes.entry(mmap.pid).or_default();
        insert(Rc::make_mut(space), mmap.addr, Mapping { end, pgoff: mmap.pgoff, file });
    }

    fn file(&mut self, name: String, mmap: &Mmap<'_>) -> Rc<MappedFile> {
        let build_id = match mmap.file {
            Some(FileId::BuildId(id)) => BuildId::new(id),
            _ => self.build_ids.get(&name).copied(),
        };
        let anonymous = ["//anon", "/dev/zero", "/anon_hugepage"];
        let is_perf_map = anonymous.into_iter().any(|prefix| name.starts_with(prefix));
        let name = if is_perf_map { format!("/tmp/perf-{}.map", mmap.pid) } else { name };
        let file = || MappedFile {
            name: name.clone(),
            build_id,
            is_perf_map,
            symbols: std::cell::OnceCell::new(),
        };
        Rc::clone(self.files.entry((name.clone(), build_id)).or_insert_with(|| Rc::new(file())))
    }

    /// A new process has the mappings of its parent.
    pub(crate) fn fork(&mut self, fork: &ProcessEvent) {
        if fork.pid != fork.ppid {
            match self.processes.get(&fork.ppid).map(Rc::clone) {
                Some(space) => self.processes.insert(fork.pid, space),
                None => self.processes.remove(&fork.pid),
            };
        }
    }

    /// `execve(2)` removes all mappings. Until there are new ones, the registers of the process are
    /// those of the old program.
    pub(crate) fn exec(&mut self, pid: u32) {
        self.in_exec.insert(pid);
    }

    /// What is at an address of a process.
    pub(crate) fn at(&self, pid: u32, address: u64, is_kernel: bool) -> Place<'_> {
        if is_kernel {
            return self.in_kernel(address);
        }
        let mapping = self.processes.get(&pid).and_then(|space| {
            let (start, mapping) = space.range(..=address).next_back()?;
            (address < mapping.end).then_some((*start, mapping))
        });
        let Some((start, mapping)) = mapping else {
            return Place { address, file: None, symbol: None, is_kernel };
        };
        let file = &mapping.file;
        let in_file = address - start + mapping.pgoff;
        let looked_up = if file.is_perf_map { address } else { in_file };
        Place {
            address: in_file,
            file: Some(&file.name),
            symbol: file.symbols().at(looked_up),
            is_kernel,
        }
    }

    fn in_kernel(&self, address: u64) -> Place<'_> {
        let map = self.kernel_maps.range(..=address).next_back();
        let map = map.filter(|(_, (end, _))| address < *end).map(|(_, (_, name))| name.as_str());
        // Without the record of the kernel's mapping, its own symbols are used.
        let symbol = self.kernel.at(address);
        let file = map.or(symbol.is_some().then_some(KERNEL));
        Place { address, file, symbol, is_kernel: true }
    }

    /// A function of the kernel with the offset in it, for the texts of tracepoints.
    pub(crate) fn kernel_name(&self, address: u64) -> Option<String> {
        self.kernel.at(address).map(|(name, offset)| format!("{name}+{offset:#x}"))
    }
}

impl MappedFile {
    fn symbols(&self) -> &SymbolTable {
        self.symbols.get_or_init(|| match self.is_perf_map {
            true => table::of_perf_map(&self.name),
            false => elf::symbols(&self.name, self.build_id),
        })
    }
}

/// Inserts a mapping, and cuts those that it covers.
fn insert(space: &mut Space, start: u64, mapping: Mapping) {
    let end = mapping.end;
    let covered: Vec<u64> =
        space.range(..end).rev().take_while(|(_, old)| old.end > start).map(|(s, _)| *s).collect();
    for old_start in covered {
        let Some(old) = space.remove(&old_start) else { continue };
        if old.end > end {
            let pgoff = old.pgoff.wrapping_add(end - old_start);
            space.insert(end, Mapping { pgoff, ..old.clone() });
        }
        if old_start < start {
            space.insert(old_start, Mapping { end: start, ..old });
        }
    }
    space.insert(start, mapping);
}

/// `[name]` of the file of a module.
fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    match name.split_once(".ko") {
        Some((name, _)) => format!("[{}]", name.replace('-', "_")),
        None => file.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_replace_what_they_cover() {
        let file = |name: &str| {
            Rc::new(MappedFile {
                name: name.into(),
                build_id: None,
                is_perf_map: false,
                symbols: std::cell::OnceCell::new(),
            })
        };
        let mut space = Space::new();
        insert(&mut space, 10, Mapping { end: 50, pgoff: 100, file: file("a") });
        insert(&mut space, 20, Mapping { end: 30, pgoff: 0, file: file("b") });
        insert(&mut space, 45, Mapping { end: 60, pgoff: 7, file: file("c") });
        let shown: Vec<_> =
            space.iter().map(|(s, m)| (*s, m.end, m.pgoff, m.file.name.as_str())).collect();
        assert_eq!(
            shown,
            [(10, 20, 100, "a"), (20, 30, 0, "b"), (30, 45, 120, "a"), (45, 60, 7, "c")]
        );
    }

    #[test]
    fn modules_have_the_name_of_their_file() {
        assert_eq!(module_name("/lib/modules/6.1/kernel/net/virtio-net.ko.xz"), "[virtio_net]");
        assert_eq!(module_name("[virtio_net]"), "[virtio_net]");
    }
}
