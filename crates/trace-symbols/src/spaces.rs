//! The address spaces of processes, over time.

use crate::error::{Result, Unresolved};
use crate::module::{Module, ModuleId, ModuleKind};
use crate::time_map::TimeMap;
use crate::{elf::Elf, files};
use std::collections::HashMap;
use std::path::Path;
use std::time::SystemTime;
use trace_common::{BuildId, Inode, Limits, Timestamp};

/// A mapping of code into the address space of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// The position in the file of the first address; without a meaning for memory without a file.
    pub offset: u64,
    /// The file or other memory.
    pub module: ModuleId,
}

/// An address within a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The module.
    pub module: ModuleId,
    /// The position in the file; the address in memory where the module is no file.
    pub address: u64,
}

/// The code that is mapped into processes and into the kernel, over time.
///
/// Changes are applied in the order of time: mappings, forks and `execve(2)`, as the records of perf
/// events or another source report them. An address is found as it was at any time since.
#[derive(Debug)]
pub struct AddressSpaces {
    /// The programs of each process id, in the order of time.
    processes: HashMap<u32, Vec<Space>>,
    kernel: TimeMap<Value>,
    modules: Vec<Module>,
    numbers: HashMap<Module, ModuleId>,
    limits: Limits,
    entries: usize,
    dropped: u64,
}

/// The address space of one program.
#[derive(Debug, Default)]
struct Space {
    from: Timestamp,
    /// Whether the program is replaced with its next mapping.
    in_exec: bool,
    mappings: TimeMap<Value>,
    /// The space that it was copied from: a process id, the index of the space, and the time.
    parent: Option<(u32, usize, Timestamp)>,
    /// Number of spaces that an address is looked for in.
    depth: usize,
}

#[derive(Clone, Copy, Debug)]
struct Value {
    module: ModuleId,
    /// Subtracted from an address in memory.
    bias: u64,
}

impl Default for AddressSpaces {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl AddressSpaces {
    /// No mappings. At most `limits.max_entries` mappings and modules are kept.
    pub fn new(limits: Limits) -> Self {
        Self {
            processes: HashMap::new(),
            kernel: TimeMap::default(),
            modules: Vec::new(),
            numbers: HashMap::new(),
            limits,
            entries: 0,
            dropped: 0,
        }
    }

    /// Number of mappings that were dropped because of the limits.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The number of a module. The same module has the same number.
    pub fn add_module(&mut self, module: Module) -> ModuleId {
        let identity = module.identity();
        if let Some(known) = self.numbers.get(&identity) {
            // A process that still runs replaces one that may have ended.
            if let Some(slot) = self.modules.get_mut(known.index()) {
                slot.process = module.process.or(slot.process);
                // A file that was changed between two mappings has the code of only one of them.
                slot.mapped_at = [slot.mapped_at, module.mapped_at].into_iter().flatten().min();
            }
            return *known;
        }
        let id = ModuleId::new(self.modules.len() as u32);
        self.entries += 1;
        self.modules.push(module);
        self.numbers.insert(identity, id);
        id
    }

    /// The module with this number.
    pub fn module(&self, id: ModuleId) -> Option<&Module> {
        self.modules.get(id.index())
    }

    /// The modules with their numbers.
    pub fn modules(&self) -> impl ExactSizeIterator<Item = (ModuleId, &Module)> {
        let number = |index: usize| ModuleId::new(index as u32);
        self.modules.iter().enumerate().map(move |(index, module)| (number(index), module))
    }

    fn has_room(&mut self) -> bool {
        let has_room = self.entries < self.limits.max_entries;
        self.entries += usize::from(has_room);
        self.dropped += u64::from(!has_room);
        has_room
    }

    fn value(&self, mapping: &Mapping) -> Value {
        let module = mapping.module;
        let is_file = self
            .module(module)
            .is_some_and(|module| matches!(module.kind, ModuleKind::File | ModuleKind::Vdso));
        let bias = if is_file { mapping.start.wrapping_sub(mapping.offset) } else { 0 };
        Value { module, bias }
    }

    /// A process maps code.
    pub fn map(&mut self, process: u32, at: Timestamp, mapping: &Mapping) {
        if !self.has_room() {
            return;
        }
        let value = self.value(mapping);
        let spaces = self.processes.entry(process).or_default();
        if spaces.last().is_none_or(|space| space.in_exec) {
            let from = if spaces.is_empty() { Timestamp::MIN } else { at };
            spaces.push(Space { from, ..Space::default() });
        }
        if let Some(space) = spaces.last_mut() {
            space.mappings.insert(mapping.start, mapping.end, at, value);
        }
    }

    /// A process unmaps memory.
    pub fn unmap(&mut self, process: u32, at: Timestamp, start: u64, end: u64) {
        if let Some(space) = self.processes.get_mut(&process).and_then(|spaces| spaces.last_mut()) {
            space.mappings.remove(start, end, at);
        }
    }

    /// The kernel maps code: itself, or a module.
    pub fn map_kernel(&mut self, at: Timestamp, mapping: &Mapping) {
        if self.has_room() {
            let value = Value { module: mapping.module, bias: 0 };
            self.kernel.insert(mapping.start, mapping.end, at, value);
        }
    }

    /// A process is created: it has the mappings of its parent.
    pub fn fork(&mut self, parent: u32, child: u32, at: Timestamp) {
        if parent == child || !self.has_room() {
            return;
        }
        let spaces = self.processes.get(&parent);
        let space = spaces.and_then(|spaces| Some((spaces.len() - 1, spaces.last()?)));
        let copied = match space {
            Some((_, space)) if space.depth >= self.limits.max_depth => {
                self.dropped += 1;
                Space { from: at, ..Space::default() }
            }
            Some((index, space)) => Space {
                from: at,
                parent: Some((parent, index, at)),
                depth: space.depth + 1,
                ..Space::default()
            },
            None => Space { from: at, ..Space::default() },
        };
        self.processes.entry(child).or_default().push(copied);
    }

    /// A process replaces its program.
    ///
    /// Until the first mapping of the new program, addresses are those of the old one, as the
    /// registers of the process are.
    pub fn exec(&mut self, process: u32) {
        if let Some(space) = self.processes.get_mut(&process).and_then(|spaces| spaces.last_mut()) {
            space.in_exec = true;
        }
    }

    /// The place of an address of a process, or of the kernel, at a time. `None` where nothing is
    /// known to be mapped.
    pub fn locate(&self, process: u32, address: u64, at: Timestamp) -> Option<Location> {
        let spaces = self.processes.get(&process)?;
        let index = spaces.iter().rposition(|space| space.from <= at)?;
        let mut space = spaces.get(index)?;
        let mut at = at;
        let value = loop {
            if let Some(value) = space.mappings.at(address, at) {
                break value;
            }
            let (parent, index, time) = space.parent?;
            space = self.processes.get(&parent)?.get(index)?;
            at = time;
        };
        Some(Location { module: value.module, address: address.wrapping_sub(value.bias) })
    }

    /// The place of an address of a process at a time, and the module there.
    pub fn code_at(
        &self,
        process: u32,
        address: u64,
        at: Timestamp,
    ) -> Option<(Location, &Module)> {
        let location = self.locate(process, address, at)?;
        Some((location, self.module(location.module)?))
    }

    /// The place of an address of the kernel at a time.
    pub fn locate_kernel(&self, address: u64, at: Timestamp) -> Option<Location> {
        let value = self.kernel.at(address, at)?;
        Some(Location { module: value.module, address })
    }

    /// Reads the mappings of a running process (`/proc/PID/maps`), as if they were made at this time.
    ///
    /// The build ids of the files are read: a file that is replaced later is recognised.
    ///
    /// # Errors
    ///
    /// [`Unresolved::File`] if the process does not exist, or is one of another user (reading needs
    /// `PTRACE_MODE_READ_FSCREDS`, see `proc_pid_maps(5)`).
    pub fn read_process(&mut self, process: u32, at: Timestamp) -> Result<()> {
        // A file that is changed in place while it is mapped changes the code of the process, too.
        let now = SystemTime::now();
        let maps = std::fs::read(format!("/proc/{process}/maps")).map_err(Unresolved::from)?;
        let mut known: HashMap<(Inode, Box<str>), ModuleId> = HashMap::new();
        for line in String::from_utf8_lossy(&maps).lines() {
            let Some(parsed) = MapsLine::parse(line).filter(|parsed| parsed.is_executable) else {
                continue;
            };
            let Some(module) = Module::of_mapping(parsed.name, process) else { continue };
            let MapsLine { start, end, offset, inode, .. } = parsed;
            let module = match module.kind {
                ModuleKind::File => {
                    *known.entry((inode, parsed.name.into())).or_insert_with(|| {
                        let build_id = build_id(process, &parsed, &module);
                        let module = module.with_inode(inode).with_mapped_at(now);
                        self.add_module(Module { build_id, ..module })
                    })
                }
                _ => self.add_module(module),
            };
            self.map(process, at, &Mapping { start, end, offset, module });
        }
        Ok(())
    }
}

/// The build id of a mapped file: of the very inode where this user may open it, else of the file with
/// its path and inode.
fn build_id(process: u32, line: &MapsLine<'_>, module: &Module) -> Option<BuildId> {
    let mapped = format!("/proc/{process}/map_files/{:x}-{:x}", line.start, line.end);
    let file = files::open(Path::new(&mapped)).ok().or_else(|| {
        let file = files::find_in_process(process, Path::new(&*module.name)).ok()?;
        file.is_inode(line.inode).then(|| file.open().ok())?
    })?;
    Elf::new(file, u64::MAX).ok()?.build_id()
}

/// A line of `/proc/PID/maps`.
#[derive(Debug)]
struct MapsLine<'a> {
    start: u64,
    end: u64,
    is_executable: bool,
    offset: u64,
    inode: Inode,
    name: &'a str,
}

impl<'a> MapsLine<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = Inode {
            major: u32::try_from(hex(major)?).ok()?,
            minor: u32::try_from(hex(minor)?).ok()?,
            inode: words.next()?.parse().ok()?,
        };
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            is_executable: permissions.as_bytes().get(2) == Some(&b'x'),
            offset,
            inode,
            name: words.next().unwrap_or_default().trim_start(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(nanos: i64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    #[test]
    fn children_have_the_mappings_of_their_parent_until_they_exec() {
        let mut spaces = AddressSpaces::default();
        let old = spaces.add_module(Module::file("/bin/old", None));
        let new = spaces.add_module(Module::file("/bin/new", None));
        let mapping = |module, start| Mapping { start, end: start + 0x1000, offset: 0x10, module };
        spaces.map(1, at(1), &mapping(old, 0x1000));
        spaces.fork(1, 2, at(10));
        spaces.map(1, at(12), &mapping(new, 0x1000));
        spaces.exec(2);
        spaces.map(2, at(20), &mapping(new, 0x5000));
        let place = |process, address, time| {
            let location = spaces.locate(process, address, at(time))?;
            Some((location.module, location.address))
        };
        assert_eq!(place(1, 0x1008, 0), None);
        assert_eq!(place(1, 0x1008, 11), Some((old, 0x18)));
        assert_eq!(place(1, 0x1008, 12), Some((new, 0x18)));
        assert_eq!(place(2, 0x1008, 9), None, "before it existed");
        assert_eq!(place(2, 0x1008, 15), Some((old, 0x18)), "also after the parent's change");
        assert_eq!(place(2, 0x1008, 20), None, "after its execve");
        assert_eq!(place(2, 0x5008, 20), Some((new, 0x18)));
        assert_eq!(place(3, 0x5008, 20), None);
    }

    #[test]
    fn a_process_id_is_used_again() {
        let mut spaces = AddressSpaces::default();
        let [a, b] = ["/a", "/b"].map(|path| spaces.add_module(Module::file(path, None)));
        let mapping = |module| Mapping { start: 0, end: 16, offset: 0, module };
        spaces.map(7, at(1), &mapping(a));
        spaces.fork(1, 7, at(5));
        spaces.map(7, at(6), &mapping(b));
        let module = |time| spaces.locate(7, 3, at(time)).map(|location| location.module);
        assert_eq!([module(1), module(5), module(6)], [Some(a), None, Some(b)]);
    }

    #[test]
    fn lines_of_maps_parse() {
        let line = "7f00-7fff r-xp 00001000 fe:01 42                   /usr/lib/a b.so (deleted)";
        let line = MapsLine::parse(line).unwrap();
        assert_eq!(
            (line.start, line.end, line.offset, line.inode.inode),
            (0x7f00, 0x7fff, 0x1000, 42)
        );
        assert!(line.is_executable);
        let module = Module::of_mapping(line.name, 1).unwrap();
        assert_eq!(&*module.name, "/usr/lib/a b.so");
        assert!(MapsLine::parse("7f00 r").is_none());
        assert_eq!(MapsLine::parse("1-2 ---p 0 0:0 0").unwrap().name, "");
    }

    #[test]
    fn limits_are_kept_and_counted() {
        let mut spaces = AddressSpaces::new(Limits { max_entries: 2, ..Limits::default() });
        let module = spaces.add_module(Module::kernel(None));
        for start in 0..3 {
            spaces.map_kernel(at(0), &Mapping { start, end: start + 1, offset: 0, module });
        }
        assert_eq!(spaces.dropped(), 2);
        assert!(spaces.locate_kernel(0, at(0)).is_some());
        assert!(spaces.locate_kernel(1, at(0)).is_none());
    }
}
