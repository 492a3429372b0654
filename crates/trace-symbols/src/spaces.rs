//! The address spaces of processes, over time.

use crate::error::{Result, Unresolved};
use crate::module::{Module, ModuleId, ModuleKind};
use crate::time_map::TimeMap;
use crate::{elf::Elf, files};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::time::SystemTime;
use trace_common::{BuildId, Inode, Limits, Timestamp, unescape_octal};

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
    /// The position in the file, or the offset in a function of the kernel; the address in memory of other
    /// modules.
    pub address: u64,
}

/// The code that is mapped into processes and into the kernel, over time.
///
/// Changes are applied in the order of time: mappings, forks and `execve(2)`, as the records of perf
/// events or another source report them. An address is found as it was at any time since.
///
/// Memory grows with the number of changes. [`exit`](Self::exit) and
/// [`remove_process`](Self::remove_process) forget processes that have ended.
#[derive(Debug)]
pub struct AddressSpaces {
    /// The spaces of each process id, in the order of time.
    processes: HashMap<u32, Vec<usize>>,
    spaces: Vec<Space>,
    /// Spaces that are not used.
    free: Vec<usize>,
    /// Processes that have ended and their last spaces, the earliest first.
    ended: VecDeque<(u32, usize)>,
    kernel: TimeMap<Value>,
    /// The kernel or a module of it is in [`Self::kernel`], or had no room there.
    has_kernel: bool,
    modules: Vec<Module>,
    numbers: HashMap<Module, ModuleId>,
    /// The module in place of all those that there is no room for.
    rest: Option<ModuleId>,
    limits: Limits,
    entries: usize,
    dropped: u64,
}

/// Number of ended processes whose mappings are kept.
const MAX_ENDED: usize = 1 << 10;

/// The address space of one program.
#[derive(Debug, Default)]
struct Space {
    from: Timestamp,
    /// Whether the program is replaced with its next mapping.
    in_exec: bool,
    /// Whether the process has ended.
    has_ended: bool,
    /// `None` where what the parent has was unmapped.
    mappings: TimeMap<Option<Value>>,
    /// The space that it was copied from, and the time.
    parent: Option<(usize, Timestamp)>,
    /// Number of spaces that an address is looked for in.
    depth: usize,
    /// Number of spaces that were copied from this one, and 1 for its process.
    users: usize,
}

impl Space {
    /// Whether a mapping from now on is that of another program.
    const fn is_over(&self) -> bool {
        self.in_exec || self.has_ended
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    module: ModuleId,
    /// Subtracted from an address in memory.
    bias: u64,
}

impl Default for AddressSpaces {
    fn default() -> Self {
        Self::with_limits(Limits::default())
    }
}

impl AddressSpaces {
    /// No mappings, with the default [`Limits`].
    pub fn new() -> Self {
        Self::default()
    }

    /// No mappings. At most `limits.max_entries` mappings, address spaces and modules are kept: about
    /// 250 bytes each. All modules beyond are one more, whose addresses have no names.
    pub fn with_limits(limits: Limits) -> Self {
        Self {
            processes: HashMap::new(),
            spaces: Vec::new(),
            free: Vec::new(),
            ended: VecDeque::new(),
            kernel: TimeMap::default(),
            has_kernel: false,
            modules: Vec::new(),
            numbers: HashMap::new(),
            rest: None,
            limits,
            entries: 0,
            dropped: 0,
        }
    }

    /// Number of mappings and modules that were dropped because of the limits. A module counts each time
    /// that it is added.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The number of a module. The same module has the same number, and so have all new ones that there is no
    /// room for: those are [`Unresolved::TooManyModules`].
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
        if !self.has_room() {
            return self.rest();
        }
        let id = self.push_module(module);
        self.numbers.insert(identity, id);
        id
    }

    fn push_module(&mut self, module: Module) -> ModuleId {
        let id = ModuleId::new(self.modules.len() as u32);
        self.entries += 1;
        self.modules.push(module);
        id
    }

    /// The module in place of those that there is no room for.
    fn rest(&mut self) -> ModuleId {
        let known = self.rest;
        let rest =
            known.unwrap_or_else(|| self.push_module(Module::file("[too many files]", None)));
        self.rest = Some(rest);
        rest
    }

    /// Whether a module is that in place of those that there was no room for.
    pub(crate) fn is_rest(&self, id: ModuleId) -> bool {
        self.rest == Some(id)
    }

    /// The number of a module, if it was added.
    pub(crate) fn find_module(&self, module: &Module) -> Option<ModuleId> {
        self.numbers.get(&module.identity()).copied()
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

    const fn has_room(&mut self) -> bool {
        let has_room = self.entries < self.limits.max_entries;
        self.dropped += !has_room as u64;
        has_room
    }

    /// Changes mappings of a space, and counts them.
    fn change(&mut self, space: usize, change: impl FnOnce(&mut TimeMap<Option<Value>>)) {
        if let Some(space) = self.spaces.get_mut(space) {
            let before = space.mappings.len();
            change(&mut space.mappings);
            self.entries = self.entries - before + space.mappings.len();
        }
    }

    /// The last space of a process.
    fn last(&self, process: u32) -> Option<(usize, &Space)> {
        let index = *self.processes.get(&process)?.last()?;
        Some((index, self.spaces.get(index)?))
    }

    /// Adds a space to a process.
    fn push(&mut self, process: u32, space: Space) -> usize {
        let space = Space { users: 1, ..space };
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(slot) = self.spaces.get_mut(index) {
                    *slot = space;
                }
                index
            }
            None => {
                self.spaces.push(space);
                self.spaces.len() - 1
            }
        };
        self.entries += 1;
        self.processes.entry(process).or_default().push(index);
        index
    }

    /// A process no longer has these spaces. Those that others were copied from stay for them.
    fn release(&mut self, spaces: Vec<usize>) {
        for first in spaces {
            if self.spaces.get(first).is_some_and(|space| space.has_ended) {
                self.ended.retain(|(_, space)| *space != first);
            }
            let mut next = Some(first);
            while let Some((index, space)) =
                next.and_then(|index| Some((index, self.spaces.get_mut(index)?)))
            {
                space.users -= 1;
                if space.users > 0 {
                    break;
                }
                self.entries -= space.mappings.len() + 1;
                next = std::mem::take(space).parent.map(|(parent, _)| parent);
                self.free.push(index);
            }
        }
    }

    fn value(&self, mapping: &Mapping) -> Value {
        let module = mapping.module;
        let bias = match self.module(module).map(|module| module.kind) {
            Some(ModuleKind::File | ModuleKind::Vdso) => mapping.start.wrapping_sub(mapping.offset),
            Some(ModuleKind::KernelFunction) => mapping.start,
            _ => 0,
        };
        Value { module, bias }
    }

    /// A process maps code.
    pub fn map(&mut self, process: u32, at: Timestamp, mapping: &Mapping) {
        if !self.has_room() {
            // What was there before is not there any more.
            let before = self.entries;
            let mut is_over = self.last(process).is_some_and(|(_, space)| space.is_over());
            if !is_over {
                self.unmap(process, at, mapping.start, mapping.end);
                // A mapping with a hole is two, for which there is no room either.
                is_over = self.entries > before;
            }
            if is_over {
                self.forget_last(process, at);
            }
            return;
        }
        let value = self.value(mapping);
        let space = match self.last(process) {
            Some((index, space)) if !space.is_over() => index,
            last => {
                let from = if last.is_none() { Timestamp::MIN } else { at };
                self.push(process, Space { from, ..Space::default() })
            }
        };
        self.change(space, |map| map.insert(mapping.start, mapping.end, at, Some(value)));
    }

    /// A process unmaps memory.
    pub fn unmap(&mut self, process: u32, at: Timestamp, start: u64, end: u64) {
        if let Some((index, space)) = self.last(process) {
            let is_copy = space.parent.is_some();
            self.change(index, |map| match is_copy {
                true => map.insert(start, end, at, None),
                false => map.remove(start, end, at),
            });
        }
    }

    /// From a time on, a process has only these mappings.
    fn replace(&mut self, process: u32, at: Timestamp, mappings: &[Mapping]) {
        let space = match self.last(process) {
            Some((index, space))
                if !space.is_over() && space.parent.is_none() && space.from <= at =>
            {
                index
            }
            _ => {
                let spaces = self.processes.remove(&process).unwrap_or_default();
                let is_before =
                    |index: &usize| self.spaces.get(*index).is_some_and(|space| space.from < at);
                let (before, hidden): (Vec<_>, Vec<_>) = spaces.into_iter().partition(is_before);
                if !before.is_empty() {
                    self.processes.insert(process, before);
                }
                self.release(hidden);
                self.push(process, Space { from: at, ..Space::default() })
            }
        };
        let new: BTreeMap<(u64, u64), Option<Value>> = mappings
            .iter()
            .map(|mapping| ((mapping.start, mapping.end), Some(self.value(mapping))))
            .collect();
        self.change(space, |map| {
            map.retain(at, |start, end, old| new.get(&(start, end)) == Some(old));
        });
        for ((start, end), value) in new {
            let is_known = self
                .spaces
                .get(space)
                .is_some_and(|space| space.mappings.live(start) == Some((end, value)));
            if !is_known && self.has_room() {
                self.change(space, |map| map.insert(start, end, at, value));
            }
        }
    }

    /// From a time on, nothing is known of a process. Its last program is forgotten, which there is no room
    /// to keep beside the next one.
    fn forget_last(&mut self, process: u32, at: Timestamp) {
        if let Some(last) = self.processes.get_mut(&process).and_then(Vec::pop) {
            self.release(vec![last]);
            self.push(process, Space { from: at, ..Space::default() });
        }
    }

    /// The kernel maps code: itself, a module, or a function that was added to it.
    pub fn map_kernel(&mut self, at: Timestamp, mapping: &Mapping) {
        let kind = self.module(mapping.module).map(|module| module.kind);
        self.has_kernel |= matches!(kind, Some(ModuleKind::Kernel | ModuleKind::KernelModule));
        if self.has_room() {
            let value = self.value(mapping);
            let before = self.kernel.len();
            self.kernel.insert(mapping.start, mapping.end, at, value);
            self.entries = self.entries - before + self.kernel.len();
        }
    }

    /// Whether the kernel has mapped itself or a module at any time.
    pub(crate) const fn has_kernel(&self) -> bool {
        self.has_kernel
    }

    /// A process is created: it has the mappings of its parent.
    pub fn fork(&mut self, parent: u32, child: u32, at: Timestamp) {
        if parent == child {
            return;
        }
        if !self.has_room() {
            self.forget_last(child, at);
            return;
        }
        let copied = match self.last(parent) {
            Some((_, space)) if space.depth >= self.limits.max_depth => {
                self.dropped += 1;
                Space { from: at, ..Space::default() }
            }
            Some((index, space)) => Space {
                from: at,
                parent: Some((index, at)),
                depth: space.depth + 1,
                ..Space::default()
            },
            None => Space { from: at, ..Space::default() },
        };
        if let Some(parent) = copied.parent.and_then(|(index, _)| self.spaces.get_mut(index)) {
            parent.users += 1;
        }
        self.push(child, copied);
    }

    /// A process replaces its program.
    ///
    /// Until the first mapping of the new program, addresses are those of the old one, as the
    /// registers of the process are.
    pub fn exec(&mut self, process: u32) {
        let last = self.last(process).map(|(index, _)| index);
        if let Some(space) = last.and_then(|index| self.spaces.get_mut(index)) {
            space.in_exec = true;
        }
    }

    /// A process ends, with all of its threads.
    ///
    /// Its addresses are found until 1024 other processes have ended: samples of its last moments may be
    /// resolved later. The next mapping of its number is that of another process.
    pub fn exit(&mut self, process: u32) {
        let last = self.last(process).map(|(index, _)| index);
        let Some((index, space)) =
            last.and_then(|index| Some((index, self.spaces.get_mut(index)?)))
        else {
            return;
        };
        if std::mem::replace(&mut space.has_ended, true) {
            return;
        }
        self.ended.push_back((process, index));
        if self.ended.len() > MAX_ENDED {
            if let Some((process, last)) = self.ended.pop_front() {
                let mut spaces = self.processes.remove(&process).unwrap_or_default();
                let count = spaces.iter().position(|space| *space == last).map_or(0, |at| at + 1);
                // Another process has the number now.
                let later = spaces.split_off(count);
                if !later.is_empty() {
                    self.processes.insert(process, later);
                }
                self.release(spaces);
            }
        }
    }

    /// Forgets a process at once. The processes that it created keep the mappings that they have of it.
    /// Modules are kept.
    pub fn remove_process(&mut self, process: u32) {
        let spaces = self.processes.remove(&process).unwrap_or_default();
        self.release(spaces);
    }

    /// The place of an address of a process, or of the kernel, at a time. `None` where nothing is
    /// known to be mapped.
    pub fn locate(&self, process: u32, address: u64, at: Timestamp) -> Option<Location> {
        let spaces = self.processes.get(&process)?.iter().rev();
        let mut space =
            spaces.filter_map(|index| self.spaces.get(*index)).find(|s| s.from <= at)?;
        let mut at = at;
        let value = loop {
            if let Some(value) = space.mappings.at(address, at) {
                break value?;
            }
            let (parent, time) = space.parent?;
            space = self.spaces.get(parent)?;
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
        Some(Location { module: value.module, address: address.wrapping_sub(value.bias) })
    }

    /// Reads the mappings of a running process (`/proc/PID/maps`), as if they were made at this time.
    ///
    /// They replace those that were known from this time on: the process may have replaced its program or
    /// unloaded libraries, or be another one with the same number. Of a process without mappings, such as
    /// one that waits for its parent after its end, nothing changes.
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
        let mut known: HashMap<(Inode, Cow<'_, [u8]>), ModuleId> = HashMap::new();
        let mut mappings = Vec::new();
        for line in maps.split(|byte| *byte == b'\n') {
            let Some(parsed) = MapsLine::parse(line).filter(|parsed| parsed.is_executable) else {
                continue;
            };
            let is_32 = *parsed.name == *b"[vdso]" && parsed.end <= 1 << 32;
            let name: &[u8] = if is_32 { Module::VDSO_32.as_bytes() } else { &parsed.name };
            let Some(module) = Module::of_raw_mapping(name, process) else { continue };
            let MapsLine { start, end, offset, inode, .. } = parsed;
            let module = match module.kind {
                ModuleKind::File => {
                    *known.entry((inode, parsed.name.clone())).or_insert_with(|| {
                        let build_id = build_id(process, &parsed, &module);
                        let module = module.with_inode(inode).with_mapped_at(now);
                        self.add_module(Module { build_id, ..module })
                    })
                }
                _ => self.add_module(module),
            };
            mappings.push(Mapping { start, end, offset, module });
        }
        if !maps.is_empty() {
            self.replace(process, at, &mappings);
        }
        Ok(())
    }
}

/// The build id of a mapped file: of the very inode where this user may open it, else of the file with
/// its path and inode.
fn build_id(process: u32, line: &MapsLine<'_>, module: &Module) -> Option<BuildId> {
    let mapped = format!("/proc/{process}/map_files/{:x}-{:x}", line.start, line.end);
    let file = files::open(Path::new(&mapped)).ok().or_else(|| {
        let file = files::find_in_process(process, module.path()).ok()?;
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
    /// The name of the mapping: the bytes of a path are any.
    name: Cow<'a, [u8]>,
}

impl<'a> MapsLine<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let mut word = || std::str::from_utf8(words.next()?).ok();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = word()?.split_once('-')?;
        let permissions = word()?;
        let offset = hex(word()?)?;
        let (major, minor) = word()?.split_once(':')?;
        let inode = Inode {
            major: u32::try_from(hex(major)?).ok()?,
            minor: u32::try_from(hex(minor)?).ok()?,
            inode: word()?.parse().ok()?,
        };
        let name = words.next().unwrap_or_default().trim_ascii_start();
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            is_executable: permissions.as_bytes().get(2) == Some(&b'x'),
            offset,
            inode,
            // The kernel writes only a newline as an escape, not a backslash.
            name: unescape_octal(name, |byte| byte == b'\n'),
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
    fn the_mappings_of_a_process_are_replaced() {
        let mut spaces = AddressSpaces::default();
        let [a, b, c] = ["/a", "/b", "/c"].map(|path| spaces.add_module(Module::file(path, None)));
        let mapping = |start, module| Mapping { start, end: start + 16, offset: 0, module };
        let row = |spaces: &AddressSpaces, process, time| {
            [0, 16, 32, 48].map(|address| {
                spaces.locate(process, address, at(time)).map(|location| location.module)
            })
        };
        spaces.replace(1, at(10), &[mapping(0, a), mapping(16, b), mapping(32, b)]);
        let entries = spaces.entries;
        spaces.replace(1, at(15), &[mapping(0, a), mapping(16, b), mapping(32, b)]);
        assert_eq!(spaces.entries, entries, "nothing has changed");
        spaces.replace(1, at(20), &[mapping(0, a), mapping(32, c), mapping(48, c)]);
        assert_eq!(row(&spaces, 1, 19), [Some(a), Some(b), Some(b), None]);
        assert_eq!(row(&spaces, 1, 20), [Some(a), None, Some(c), Some(c)]);
        // A child unmaps what it has of its parent.
        spaces.fork(1, 3, at(30));
        spaces.unmap(3, at(40), 0, 48);
        assert_eq!(row(&spaces, 3, 39), [Some(a), None, Some(c), Some(c)]);
        assert_eq!(row(&spaces, 3, 40), [None, None, None, Some(c)]);
        // A child does not have those of its parent any more.
        spaces.fork(1, 2, at(30));
        spaces.replace(2, at(40), &[mapping(48, b)]);
        assert_eq!(row(&spaces, 2, 35), [Some(a), None, Some(c), Some(c)]);
        assert_eq!(row(&spaces, 2, 40), [None, None, None, Some(b)]);
        // At all times.
        spaces.replace(2, Timestamp::MIN, &[mapping(16, a)]);
        for time in [35, 40] {
            assert_eq!(row(&spaces, 2, time), [None, Some(a), None, None]);
        }
        spaces.exec(1);
        spaces.replace(1, at(50), &[mapping(16, a)]);
        assert_eq!(row(&spaces, 1, 49), [Some(a), None, Some(c), Some(c)]);
        assert_eq!(row(&spaces, 1, 50), [None, Some(a), None, None]);
    }

    /// Memory does not grow with the number of processes that ever were.
    #[test]
    fn the_last_ended_processes_are_kept() {
        let mut spaces = AddressSpaces::default();
        let module = spaces.add_module(Module::file("/a", None));
        let mapping = |start| Mapping { start, end: start + 16, offset: 0, module };
        spaces.map(1, at(0), &mapping(0));
        let count = 3 * MAX_ENDED as u32;
        for process in 2..count {
            // Each creates the next one.
            let parent = if process % 5 == 0 { 1 } else { process - 1 };
            spaces.fork(parent, process, at(process.into()));
            spaces.map(process, at(process.into()), &mapping(16));
            spaces.exit(parent.max(2));
            spaces.exit(process);
            spaces.exit(process);
            assert!(spaces.locate(process, 3, at(process.into())).is_some());
            assert!(spaces.locate(process, 19, Timestamp::MAX).is_some());
            assert!(spaces.entries <= 3 * MAX_ENDED);
        }
        assert!(spaces.locate(2, 19, Timestamp::MAX).is_none());
        assert!(spaces.spaces.len() <= 2 * MAX_ENDED);
        assert_eq!(spaces.ended.len(), MAX_ENDED);
        (1..count).for_each(|process| spaces.remove_process(process));
        assert_eq!((spaces.entries, spaces.processes.len(), spaces.ended.len()), (1, 0, 0));
    }

    #[test]
    fn children_keep_the_mappings_of_a_parent_that_is_removed() {
        let mut spaces = AddressSpaces::default();
        let module = spaces.add_module(Module::file("/a", None));
        let mapping = |start| Mapping { start, end: start + 16, offset: 0, module };
        spaces.map(1, at(0), &mapping(0));
        spaces.fork(1, 2, at(5));
        spaces.remove_process(1);
        // The number is used again.
        spaces.map(1, at(6), &mapping(32));
        let has = |spaces: &AddressSpaces, process, address| {
            spaces.locate(process, address, at(9)).is_some()
        };
        assert_eq!([0, 32].map(|address| has(&spaces, 1, address)), [false, true]);
        assert_eq!([0, 32].map(|address| has(&spaces, 2, address)), [true, false]);
        // After its end, too: the mapping is that of another process.
        spaces.exit(1);
        spaces.map(1, at(9), &mapping(64));
        assert_eq!([32, 64].map(|address| has(&spaces, 1, address)), [false, true]);
        [1, 2].into_iter().for_each(|process| spaces.remove_process(process));
        assert_eq!(spaces.entries, 1);
    }

    #[test]
    fn lines_of_maps_parse() {
        let line = b"7f00-7fff r-xp 00001000 fe:01 42                   /usr/lib/a b.so (deleted)";
        let line = MapsLine::parse(line).unwrap();
        assert_eq!(
            (line.start, line.end, line.offset, line.inode.inode),
            (0x7f00, 0x7fff, 0x1000, 42)
        );
        assert!(line.is_executable);
        let module = Module::of_raw_mapping(&line.name, 1).unwrap();
        assert_eq!((&*module.name, &module.raw_path), ("/usr/lib/a b.so", &None));
        assert!(MapsLine::parse(b"7f00 r").is_none());
        assert_eq!(*MapsLine::parse(b"1-2 ---p 0 0:0 0").unwrap().name, *b"");
        let line = MapsLine::parse(b"1-2 r-xp 0 0:0 5 /a\\012b/\xff (deleted)").unwrap();
        let module = Module::of_raw_mapping(&line.name, 1).unwrap();
        assert_eq!(&*module.name, "/a\nb/\u{fffd}");
        assert_eq!(module.path().as_os_str().as_encoded_bytes(), b"/a\nb/\xff");
    }

    #[test]
    fn addresses_of_functions_of_the_kernel_are_offsets_in_them() {
        let mut spaces = AddressSpaces::default();
        let (start, end) = (0xffff_ffff_c010_0000, 0xffff_ffff_c010_0100);
        let kernel = spaces.add_module(Module::kernel(None));
        let function = spaces.add_module(Module::kernel_function("bpf_prog_a"));
        let all =
            Mapping { start: 0xffff_ffff_8000_0000, end: u64::MAX, offset: 0, module: kernel };
        spaces.map_kernel(at(1), &all);
        spaces.map_kernel(at(2), &Mapping { start, end, offset: 0, module: function });
        let place = |address| spaces.locate_kernel(address, at(3));
        assert_eq!(place(start + 0x10), Some(Location { module: function, address: 0x10 }));
        assert_eq!(place(end), Some(Location { module: kernel, address: end }));
    }

    #[test]
    fn limits_are_kept_and_counted() {
        let mut spaces = AddressSpaces::with_limits(Limits { max_entries: 2, ..Limits::default() });
        let module = spaces.add_module(Module::kernel(None));
        for start in 0..3 {
            spaces.map_kernel(at(0), &Mapping { start, end: start + 1, offset: 0, module });
        }
        assert_eq!(spaces.dropped(), 2);
        assert!(spaces.locate_kernel(0, at(0)).is_some());
        assert!(spaces.locate_kernel(1, at(0)).is_none());
    }

    #[test]
    fn modules_without_room_are_one() {
        let mut spaces = AddressSpaces::with_limits(Limits { max_entries: 4, ..Limits::default() });
        let mut add = |number| spaces.add_module(Module::file(format!("/{number}"), None));
        let first = add(0);
        let ids: Vec<ModuleId> = (1..100).map(&mut add).collect();
        assert_eq!(add(0), first);
        assert_eq!((spaces.modules().len(), spaces.dropped()), (5, 96));
        assert!(ids[3..].iter().all(|id| *id == ids[3] && spaces.is_rest(*id)));
        assert!(ids[..3].iter().all(|id| !spaces.is_rest(*id)));
    }

    #[test]
    fn files_that_have_an_inode_one_after_another_are_several_modules() {
        let mut spaces = AddressSpaces::default();
        let inode = Inode { major: 8, minor: 1, inode: 5 };
        let second = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let mut add = |generation, seconds, build_id| {
            let mut module = Module::file("/w/x", build_id).with_inode(inode);
            module.generation = generation;
            let id = spaces.add_module(module.with_mapped_at(second(seconds)));
            (id, spaces.module(id).unwrap().mapped_at)
        };
        let (first, second_file) = (add(1, 10, None), add(2, 20, None));
        assert_ne!(first.0, second_file.0);
        assert_eq!([first.1, second_file.1], [10, 20].map(|seconds| Some(second(seconds))));
        assert_eq!(add(2, 30, None), second_file);
        // The same contents.
        let id = BuildId::new(&[7; 20]);
        assert_eq!(add(1, 10, id), add(2, 20, id));
    }

    #[test]
    fn without_room_no_program_has_the_addresses_of_another() {
        let limits = Limits { max_entries: 4, ..Limits::default() };
        let with_a = || {
            let mut spaces = AddressSpaces::with_limits(limits);
            let [a, b] = ["/a", "/b"].map(|name| spaces.add_module(Module::file(name, None)));
            let [a, b] =
                [a, b].map(|module| Mapping { start: 0x1000, end: 0x2000, offset: 0, module });
            spaces.map(1, at(1), &a);
            assert!(spaces.locate(1, 0x1008, at(1)).is_some());
            (spaces, b)
        };
        // Another program.
        let (mut spaces, b) = with_a();
        spaces.exec(1);
        spaces.map(1, at(2), &b);
        assert_eq!(spaces.locate(1, 0x1008, at(3)), None);
        // Another library.
        let (mut spaces, b) = with_a();
        spaces.map(1, at(2), &b);
        assert_eq!(spaces.locate(1, 0x1008, at(3)), None);
        assert!(spaces.locate(1, 0x1008, at(1)).is_some());
        // Another process with the number.
        let (mut spaces, _) = with_a();
        spaces.exit(1);
        spaces.fork(9, 1, at(2));
        assert_eq!(spaces.locate(1, 0x1008, at(3)), None);
        assert_eq!(spaces.dropped(), 1);
    }

    #[test]
    fn mappings_within_another_do_not_exceed_the_limits() {
        let limits = Limits { max_entries: 6, ..Limits::default() };
        for process in [1, 2] {
            let mut spaces = AddressSpaces::with_limits(limits);
            let module = spaces.add_module(Module::file("/a", None));
            let mapping = |start, end| Mapping { start, end, offset: 0, module };
            spaces.map(1, at(0), &mapping(0, 1 << 40));
            // Process 2 is a copy.
            spaces.fork(1, 2, at(1));
            for n in 1..1000 {
                spaces.map(process, at(n), &mapping(n as u64 * 0x2000, n as u64 * 0x2000 + 0x1000));
                // The last two divide another mapping, which is kept for the copy.
                assert!(spaces.entries <= limits.max_entries + 4, "{n}: {}", spaces.entries);
            }
            assert_eq!(spaces.locate(process, 0x2000, at(1000)), None);
        }
    }
}
