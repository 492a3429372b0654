//! From addresses to functions.

use crate::error::{Result, Unresolved};
use crate::frame::{Frame, Texts};
use crate::jit::{JitSymbols, Written};
use crate::jitdump::JitDump;
use crate::kernel::KernelSymbols;
use crate::methods::{Method, Methods};
use crate::module::{Module, ModuleId, ModuleKind};
use crate::object_file::ObjectFile;
use crate::options::{ALL_TABLES, Options};
use crate::perf_map::PerfMap;
use crate::source;
use crate::spaces::{AddressSpaces, Location};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use trace_common::{Limits, Timestamp};

/// The functions at an address, or the reason why they are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Symbolized<'a> {
    /// The module and the address in it. `None` where nothing is known to be mapped.
    pub location: Option<Location>,
    /// The module at the address.
    pub module: Option<&'a Module>,
    /// The functions: inlined ones first, the function that has the code last. At least one.
    pub frames: Result<&'a [Frame], &'a Unresolved>,
}

/// Resolves addresses of processes and of the kernel to functions.
///
/// The tables of a file are read when one of its addresses is first asked for. Each address is resolved
/// once: later ones come from a cache.
#[derive(Debug)]
pub struct Symbolizer {
    options: Options,
    spaces: AddressSpaces,
    methods: Methods,
    resolvers: Vec<Option<Resolver>>,
    /// Bytes of the tables of all resolvers.
    bytes: u64,
    kernel: Option<Result<KernelSymbols>>,
    texts: Texts,
    /// Maximum number of bytes of texts.
    max_texts: usize,
    cache: HashMap<Location, Cached>,
    frames: Vec<Frame>,
    /// The frames at the last address of just-in-time compiled code: it changes with time, so that it is
    /// not in the cache.
    last: Vec<Frame>,
    last_failure: Unresolved,
    /// What processes had written of just-in-time compiled code when it was read. Not where the caller gave it.
    written: HashMap<ModuleId, Written>,
    /// Just-in-time compiled code of which an address had no name since [`Symbolizer::forget_incomplete`].
    incomplete: HashSet<ModuleId>,
}

#[derive(Debug)]
enum Resolver {
    Kernel,
    /// A single function.
    Function(Box<str>),
    File {
        file: Box<ObjectFile>,
        /// Whether it was at its path here, too, and not only where the process sees it.
        was_here: bool,
    },
    Jit(Box<JitSymbols>),
    None(Unresolved),
}

#[derive(Clone, Debug)]
enum Cached {
    /// A range of the frames.
    Frames(Range<usize>),
    Unresolved(Unresolved),
}

/// Bytes of names and paths that are kept. Each address of a crafted file can have a megabyte of its own.
const MAX_TEXTS: usize = 1 << 28;
/// Frames that are kept for each address that can be, on average. Each address of a crafted file can have hundreds.
const FRAMES: usize = 8;
/// Frames of forgotten addresses that are kept in any case.
const UNUSED_FRAMES: usize = 1 << 10;

impl Cached {
    fn frame_count(&self) -> usize {
        match self {
            Self::Frames(range) => range.len(),
            Self::Unresolved(_) => 0,
        }
    }
}

impl Default for Symbolizer {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Symbolizer {
    /// A symbolizer without processes.
    pub fn new(options: Options) -> Self {
        let texts = Texts::new(options.demangle);
        Self {
            spaces: AddressSpaces::with_limits(Limits {
                max_entries: options.max_mappings,
                ..Limits::default()
            }),
            options,
            methods: Methods::default(),
            resolvers: Vec::new(),
            bytes: 0,
            kernel: None,
            texts,
            max_texts: MAX_TEXTS,
            cache: HashMap::new(),
            frames: Vec::new(),
            last: Vec::new(),
            last_failure: Unresolved::NoSymbol,
            written: HashMap::new(),
            incomplete: HashSet::new(),
        }
    }

    /// The modules and the mappings of processes.
    pub const fn spaces(&self) -> &AddressSpaces {
        &self.spaces
    }

    /// The modules and the mappings of processes, to add others.
    pub const fn spaces_mut(&mut self) -> &mut AddressSpaces {
        &mut self.spaces
    }

    /// Adds a running process with its present mappings, at all times.
    ///
    /// Of a process that was added before, they replace the former ones, and its perf map and jitdump
    /// file are read again for its next address: add it again when it has replaced its program or loaded
    /// libraries.
    ///
    /// # Errors
    ///
    /// As of [`AddressSpaces::read_process`].
    pub fn add_process(&mut self, process: u32) -> Result<()> {
        self.spaces.read_process(process, Timestamp::MIN)?;
        self.forget_jit(process, false);
        Ok(())
    }

    /// Forgets a process: its mappings, the methods that were added, and its perf map and jitdump file.
    /// Those of a process that has ended stay in memory otherwise. What was read of its executable and its
    /// libraries is kept: other processes have them, too.
    ///
    /// To resolve the last addresses of processes after their end, use [`AddressSpaces::exit`].
    pub fn remove_process(&mut self, process: u32) {
        self.spaces.remove_process(process);
        self.methods.remove_process(process);
        self.forget_jit(process, true);
    }

    /// Forgets the descriptions of just-in-time compiled code of a process.
    fn forget_jit(&mut self, process: u32, also_given: bool) {
        let Some(id) = self.spaces.find_module(&Module::jit(process)) else { return };
        let resolver = self.resolvers.get(id.index());
        if also_given || !matches!(resolver, Some(Some(Resolver::Jit(jit))) if jit.is_given) {
            self.replace(id, None);
        }
    }

    /// Puts a resolver in the place of the one of a module, and returns that.
    fn replace(&mut self, id: ModuleId, new: Option<Resolver>) -> Option<Resolver> {
        let slot = self.resolvers.get_mut(id.index())?;
        let bytes = |resolver: &Option<Resolver>| resolver.as_ref().map_or(0, Resolver::bytes);
        self.bytes = self.bytes.saturating_add(bytes(&new));
        let old = std::mem::replace(slot, new);
        self.bytes = self.bytes.saturating_sub(bytes(&old));
        old
    }

    /// The functions at an address of a process at a time.
    ///
    /// For the caller of a function, ask for the return address minus 1: the call may be the last
    /// instruction of its function.
    pub fn symbolize(&mut self, process: u32, address: u64, at: Timestamp) -> Symbolized<'_> {
        let location = self.spaces.locate(process, address, at);
        if self.methods.has(process) {
            let found = self.methods.frame(process, address, at, &mut self.texts);
            if let Ok(frame) = found {
                self.last.clear();
                self.last.push(frame);
                let module = location.and_then(|location| self.spaces.module(location.module));
                return Symbolized { location, module, frames: Ok(&self.last) };
            }
        }
        match location {
            Some(location) => self.resolve_at(location, at),
            None => NOT_MAPPED,
        }
    }

    /// Adds compiled code of a method of a process. It counts before all other sources of names.
    pub fn add_method(&mut self, process: u32, method: &Method<'_>) {
        self.methods.add(process, method);
    }

    /// The runtime of a process freed compiled code.
    pub fn remove_method(&mut self, process: u32, start: u64, size: u64, at: Timestamp) {
        self.methods.remove(process, start, size, at);
    }

    /// Number of methods that were dropped because their names have more than 1 GiB.
    pub const fn dropped_methods(&self) -> u64 {
        self.methods.dropped
    }

    /// Uses a perf map (`/tmp/perf-PID.map`) for the just-in-time compiled code of a process, in place of
    /// its own: one that was kept elsewhere. The format has no errors: lines that are none are left
    /// out.
    pub fn add_perf_map(&mut self, process: u32, text: &[u8]) {
        let map = PerfMap::parse(text);
        self.describe(process, |jit| jit.map = Some(map));
    }

    /// Uses a jitdump file (`jit-PID.dump`) for the just-in-time compiled code of a process, in place of
    /// its own. Returns the number of records that are damaged, with one that the end of the file cuts off.
    ///
    /// # Errors
    ///
    /// [`Unresolved::Malformed`] if the header is none, or the times are not those of
    /// `CLOCK_MONOTONIC`.
    pub fn add_jitdump(&mut self, process: u32, bytes: &[u8]) -> Result<u64> {
        let dump = JitDump::parse(bytes, true)?;
        let damaged = dump.damaged;
        self.describe(process, |jit| (jit.dump, jit.refused) = (Some(dump), None));
        Ok(damaged)
    }

    /// Changes the description of the just-in-time compiled code of a process.
    fn describe(&mut self, process: u32, change: impl FnOnce(&mut JitSymbols)) {
        let id = self.spaces.add_module(Module::jit(process));
        if self.spaces.is_rest(id) {
            return;
        }
        // It no longer matters what the process writes.
        self.written.remove(&id);
        if self.resolvers.len() <= id.index() {
            self.resolvers.resize_with(id.index() + 1, || None);
        }
        let mut jit = match self.replace(id, None) {
            Some(Resolver::Jit(jit)) => jit,
            _ => Box::default(),
        };
        change(&mut jit);
        jit.is_given = true;
        self.replace(id, Some(Resolver::Jit(jit)));
    }

    /// The functions at an address of the kernel at a time. Without any mappings of the kernel or its modules,
    /// their addresses are those of the running one.
    pub fn symbolize_kernel(&mut self, address: u64, at: Timestamp) -> Symbolized<'_> {
        let location = match self.spaces.locate_kernel(address, at) {
            Some(location) => location,
            None if self.spaces.has_kernel() => return NOT_MAPPED,
            None => Location { module: self.spaces.add_module(Module::kernel(None)), address },
        };
        self.resolve(location)
    }

    /// The functions at an address of a module. Of just-in-time compiled code, those that had the address at
    /// all times: where different methods had it, it is [`Unresolved::Ambiguous`].
    pub fn resolve(&mut self, location: Location) -> Symbolized<'_> {
        self.resolve_with(location, None)
    }

    /// The functions at an address of a module at a time. Only just-in-time compiled code changes with
    /// time.
    pub fn resolve_at(&mut self, location: Location, at: Timestamp) -> Symbolized<'_> {
        self.resolve_with(location, Some(at))
    }

    fn resolve_with(&mut self, location: Location, at: Option<Timestamp>) -> Symbolized<'_> {
        let module = self.spaces.module(location.module);
        if module.is_some_and(|module| module.kind == ModuleKind::Jit) {
            self.resolve_jit(location, at)
        } else {
            self.resolve_cached(location)
        }
    }

    /// Forgets all addresses if they take too much memory.
    fn make_room(&mut self) {
        if self.cache.len() >= self.options.max_cached
            || self.frames.len() >= self.options.max_cached.saturating_mul(FRAMES)
            || self.texts.bytes() >= self.max_texts
        {
            self.cache.clear();
            self.frames.clear();
            self.texts.clear();
        }
    }

    fn resolve_jit(&mut self, location: Location, at: Option<Timestamp>) -> Symbolized<'_> {
        self.make_room();
        self.last.clear();
        let found = match self.resolver(location.module) {
            Some((Resolver::Jit(jit), texts)) => jit.frame(location.address, at, texts),
            Some((Resolver::None(why), _)) => Err(why.clone()),
            _ => Err(Unresolved::NotMapped),
        };
        let frames = match found {
            Ok(frame) => {
                self.last.push(frame);
                Ok(&*self.last)
            }
            Err(why) => {
                self.incomplete.insert(location.module);
                self.last_failure = why;
                Err(&self.last_failure)
            }
        };
        let module = self.spaces.module(location.module);
        Symbolized { location: Some(location), module, frames }
    }

    /// The resolver of a module, made for its first address.
    fn resolver(&mut self, id: ModuleId) -> Option<(&Resolver, &mut Texts)> {
        let module = self.spaces.module(id)?;
        if self.resolvers.len() <= id.index() {
            self.resolvers.resize_with(id.index() + 1, || None);
        }
        if self.resolvers.get(id.index())?.is_none() {
            if let (ModuleKind::Jit, Some(process)) = (module.kind, module.process) {
                self.written.insert(id, Written::of_process(process, &self.spaces));
            }
            let has_tables = matches!(module.kind, ModuleKind::File | ModuleKind::Jit);
            let made = if self.spaces.is_rest(id) {
                Resolver::None(Unresolved::TooManyModules)
            } else if has_tables && self.bytes > self.options.max_total_bytes {
                Resolver::None(Unresolved::TooLarge { what: ALL_TABLES, size: self.bytes })
            } else {
                Resolver::new(module, &self.spaces, &self.options)
            };
            self.replace(id, Some(made));
        }
        let made = self.resolvers.get(id.index())?.as_ref()?;
        Some((made, &mut self.texts))
    }

    fn resolve_cached(&mut self, location: Location) -> Symbolized<'_> {
        if !self.cache.contains_key(&location) {
            self.make_room();
            let start = self.frames.len();
            let resolved = self.look_up(location);
            let resolved = match resolved {
                Ok(()) => Cached::Frames(start..self.frames.len()),
                Err(why) => {
                    self.frames.truncate(start);
                    Cached::Unresolved(why)
                }
            };
            self.cache.insert(location, resolved);
        }
        let frames = match self.cache.get(&location) {
            Some(Cached::Frames(range)) => Ok(self.frames.get(range.clone()).unwrap_or_default()),
            Some(Cached::Unresolved(why)) => Err(why),
            None => Err(&Unresolved::NoSymbol),
        };
        let module = self.spaces.module(location.module);
        Symbolized { location: Some(location), module, frames }
    }

    fn look_up(&mut self, Location { module: id, address }: Location) -> Result<()> {
        let mut frames = std::mem::take(&mut self.frames);
        let result = match self.resolver(id) {
            Some((Resolver::File { file, .. }, texts)) => match file.address_of(address) {
                Some(address) => file.find(address, texts, &mut frames),
                None => Err(Unresolved::NoSymbol),
            },
            Some((Resolver::Kernel, _)) => self.look_up_kernel(id, address).map(|frame| {
                frames.push(frame);
            }),
            Some((Resolver::Function(name), texts)) => {
                frames.push(texts.frame(name, Some(address)));
                Ok(())
            }
            Some((Resolver::None(why), _)) => Err(why.clone()),
            Some((Resolver::Jit(_), _)) | None => Err(Unresolved::NotMapped),
        };
        self.frames = frames;
        result
    }

    fn look_up_kernel(&mut self, id: ModuleId, address: u64) -> Result<Frame> {
        let kernel = self.kernel.get_or_insert_with(KernelSymbols::read).as_ref();
        let kernel = kernel.map_err(Clone::clone)?;
        let module = self.spaces.module(id).ok_or(Unresolved::NotMapped)?;
        kernel.frame(module, address, &mut self.texts)
    }

    /// Why a module has no symbols, or its debug information is not used. Of just-in-time compiled code with a
    /// perf map, why the jitdump file of its process is not used. `None` if all is used, or none of its addresses
    /// was asked for.
    pub fn problem(&self, module: ModuleId) -> Option<&Unresolved> {
        match self.resolvers.get(module.index())?.as_ref()? {
            Resolver::None(why) => Some(why),
            Resolver::Kernel => self.kernel.as_ref()?.as_ref().err(),
            Resolver::File { file, .. } => file.problem(),
            Resolver::Jit(jit) => jit.refused.as_ref(),
            Resolver::Function(_) => None,
        }
    }

    /// Number of damaged records of the jitdump file that describes just-in-time compiled code: they are left
    /// out. One that the end of the file cuts off counts if the process had ended when the file was read. 0 of
    /// other modules, and if none of its addresses was asked for.
    pub fn damaged_records(&self, module: ModuleId) -> u64 {
        match self.resolvers.get(module.index()) {
            Some(Some(Resolver::Jit(jit))) => jit.dump.as_ref().map_or(0, |dump| dump.damaged),
            _ => 0,
        }
    }

    /// Forgets the names of files without a build id that were changed since they were mapped. Returns
    /// whether there are some. While processes run, others can map the changed file: ask before their
    /// addresses are resolved.
    pub fn forget_changed(&mut self) -> bool {
        let mut forgotten = Vec::new();
        for (slot, (id, module)) in self.resolvers.iter().zip(self.spaces.modules()) {
            let Some(Resolver::File { was_here, .. }) = *slot else { continue };
            let is_file = module.kind == ModuleKind::File;
            if is_file && source::is_replaced(module, was_here, &self.options) {
                forgotten.push(id);
            }
        }
        if forgotten.is_empty() {
            return false;
        }
        for id in &forgotten {
            self.replace(*id, Some(Resolver::None(Unresolved::Replaced)));
        }
        self.cache.retain(|location, _| !forgotten.contains(&location.module));
        self.drop_forgotten_frames();
        true
    }

    /// Forgets the perf maps and jitdump files that had no name for an address since the last call, and that
    /// their processes have changed since they were read: they are read again for the next address. Returns
    /// whether there are some. A just-in-time compiler writes while its process runs. Those that were added
    /// are kept.
    pub fn forget_incomplete(&mut self) -> bool {
        let mut any = false;
        for id in std::mem::take(&mut self.incomplete) {
            let process = self.spaces.module(id).and_then(|module| module.process);
            let (Some(process), Some(before)) = (process, self.written.get(&id)) else { continue };
            if Written::of_process(process, &self.spaces) != *before {
                self.refresh(id);
                any = true;
            }
        }
        any
    }

    /// Forgets what was read for a module: it is read again for its next address. A perf map grows
    /// while its process runs. The kernel and its modules have one table, which is read again for all of
    /// them.
    pub fn refresh(&mut self, module: ModuleId) {
        self.replace(module, None);
        let spaces = &self.spaces;
        let kind = |id| spaces.module(id).map(|module| module.kind);
        // Its addresses are not in the cache.
        if kind(module) == Some(ModuleKind::Jit) {
            return;
        }
        let is_of_kernel =
            |id| matches!(kind(id), Some(ModuleKind::Kernel | ModuleKind::KernelModule));
        let is_kernel = is_of_kernel(module);
        if is_kernel {
            self.kernel = None;
        }
        self.cache.retain(|&Location { module: id, .. }, _| {
            id != module && !(is_kernel && is_of_kernel(id))
        });
        self.drop_forgotten_frames();
    }

    /// Drops the frames of addresses that were forgotten, when they are most of all.
    fn drop_forgotten_frames(&mut self) {
        let used: usize = self.cache.values().map(Cached::frame_count).sum();
        if self.frames.len() <= 2 * used + UNUSED_FRAMES {
            return;
        }
        let mut frames = Vec::with_capacity(used);
        for cached in self.cache.values_mut() {
            if let Cached::Frames(range) = cached {
                let start = frames.len();
                frames.extend_from_slice(self.frames.get(range.clone()).unwrap_or_default());
                *range = start..frames.len();
            }
        }
        self.frames = frames;
        self.texts.clear();
    }
}

const NOT_MAPPED: Symbolized<'static> =
    Symbolized { location: None, module: None, frames: Err(&Unresolved::NotMapped) };

impl Resolver {
    fn new(module: &Module, spaces: &AddressSpaces, options: &Options) -> Self {
        let made = match module.kind {
            ModuleKind::Kernel | ModuleKind::KernelModule if options.kernel => Ok(Self::Kernel),
            ModuleKind::KernelFunction => Ok(Self::Function(module.name.clone())),
            ModuleKind::File => {
                // Before the file is read, which takes a while.
                let was_here = source::is_here(module, options);
                ObjectFile::of_module(module, options).map(|file| Self::file(file, was_here))
            }
            ModuleKind::Vdso => {
                ObjectFile::of_vdso(module, options).map(|file| Self::file(file, false))
            }
            ModuleKind::Jit if options.perf_maps => {
                let process = module.process.ok_or(Unresolved::NotAFile);
                let jit = process.and_then(|pid| JitSymbols::read(pid, spaces, options));
                jit.map(|jit| Self::Jit(Box::new(jit)))
            }
            _ => Err(Unresolved::Disabled),
        };
        made.unwrap_or_else(Self::None)
    }

    /// The bytes of the tables of a file.
    fn bytes(&self) -> u64 {
        match self {
            Self::File { file, .. } => file.bytes(),
            Self::Jit(jit) => jit.bytes(),
            Self::Kernel | Self::Function(_) | Self::None(_) => 0,
        }
    }

    fn file(file: ObjectFile, was_here: bool) -> Self {
        Self::File { file: Box::new(file), was_here }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spaces::Mapping;
    use std::path::PathBuf;

    #[test]
    fn modules_without_room_have_a_reason() {
        let options = Options { max_mappings: 1, ..Options::default() };
        let mut symbols = Symbolizer::new(options);
        symbols.spaces_mut().add_module(Module::kernel_function("bpf_prog_a"));
        let module = symbols.spaces_mut().add_module(Module::kernel_function("bpf_prog_b"));
        symbols.add_perf_map(7, b"1000 1000 compiled");
        let found = symbols.resolve(Location { module, address: 1 });
        assert_eq!(found.frames, Err(&Unresolved::TooManyModules));
    }

    #[test]
    fn addresses_outside_of_mappings_of_the_kernel_are_not_those_of_the_running_one() {
        let mut symbols = Symbolizer::default();
        let (start, end) = (0xffff_ffff_c010_0000, 0xffff_ffff_c010_0100);
        let found = symbols.symbolize_kernel(end, Timestamp::MAX);
        assert_eq!(found.module.map(|module| module.kind), Some(ModuleKind::Kernel));
        let module = symbols.spaces_mut().add_module(Module::kernel_function("bpf_prog_a"));
        let mapping = Mapping { start, end, offset: 0, module };
        symbols.spaces_mut().map_kernel(Timestamp::MIN, &mapping);
        let frames = symbols.symbolize_kernel(start + 0x10, Timestamp::MAX).frames.unwrap();
        assert_eq!((&*frames[0].function, frames[0].offset), ("bpf_prog_a", Some(0x10)));
        // A function alone does not place the kernel.
        assert_ne!(symbols.symbolize_kernel(end, Timestamp::MAX), NOT_MAPPED);
        let module = symbols.spaces_mut().add_module(Module::kernel_module("[a]", None));
        let mapping = Mapping { start: end, end: end + 0x100, offset: 0, module };
        symbols.spaces_mut().map_kernel(Timestamp::MIN, &mapping);
        assert_eq!(symbols.symbolize_kernel(end + 0x100, Timestamp::MAX), NOT_MAPPED);
    }

    #[test]
    fn the_symbols_of_the_kernel_are_read_again() {
        let mut symbols = Symbolizer::default();
        let mut add = |module| symbols.spaces_mut().add_module(module);
        let modules = [Module::kernel(None), Module::kernel_module("a", None)].map(&mut add);
        let function = add(Module::kernel_function("bpf_prog_a"));
        for refreshed in modules {
            for module in modules.into_iter().chain([function]) {
                let _ = symbols.resolve(Location { module, address: 1 });
            }
            assert!(symbols.kernel.is_some());
            symbols.refresh(refreshed);
            assert!(symbols.kernel.is_none());
            let cached: Vec<ModuleId> = symbols.cache.keys().map(|at| at.module).collect();
            assert_eq!(cached, [function]);
        }
    }

    #[test]
    fn the_tables_of_all_files_have_a_limit() {
        let mut options = Options { unverified: true, lines: false, ..Options::default() };
        options.max_total_bytes = 100;
        let mut symbols = Symbolizer::new(options);
        let mut add = |path: PathBuf| symbols.spaces_mut().add_module(Module::file(path, None));
        let own = [std::env::current_exe().unwrap(), PathBuf::from("/proc/self/exe")];
        let [first, second] = own.map(&mut add);
        let mut problem = |module| {
            let _ = symbols.resolve(Location { module, address: 0 });
            (symbols.problem(module).cloned(), symbols.bytes)
        };
        let (why, bytes) = problem(first);
        assert!(why.is_none() && bytes > 100, "{why:?} {bytes}");
        let refused = Unresolved::TooLarge { what: ALL_TABLES, size: bytes };
        assert_eq!(problem(second), (Some(refused), bytes));
        symbols.refresh(first);
        assert_eq!(symbols.bytes, 0);
        symbols.refresh(second);
        let _ = symbols.resolve(Location { module: second, address: 0 });
        assert_eq!(symbols.bytes, bytes);
        // What is given is counted, but never refused.
        symbols.add_perf_map(7, b"1000 100 compiled\n");
        assert!(symbols.bytes > bytes);
        symbols.remove_process(7);
        assert_eq!(symbols.bytes, bytes);
    }

    #[test]
    fn names_that_are_kept_have_a_limit() {
        let mut symbols = Symbolizer { max_texts: 1000, ..Symbolizer::default() };
        for n in 0..100 {
            let name = format!("{n}{}", "x".repeat(100));
            let module = symbols.spaces_mut().add_module(Module::kernel_function(&name));
            let found = symbols.resolve(Location { module, address: 1 });
            assert_eq!(&*found.frames.unwrap()[0].function, name);
            assert!(symbols.texts.bytes() < 1200 && symbols.cache.len() < 12);
        }
        let map: String = (0..100).map(|n| format!("{n}00 100 {n}{}\n", "x".repeat(100))).collect();
        symbols.add_perf_map(7, map.as_bytes());
        let module = symbols.spaces_mut().add_module(Module::jit(7));
        for address in 0..0x9900 {
            let _ = symbols.resolve(Location { module, address });
            assert!(symbols.texts.bytes() < 1200);
        }
    }

    #[test]
    fn frames_of_forgotten_addresses_are_dropped() {
        let mut symbols = Symbolizer::default();
        let mut add = |name| symbols.spaces_mut().add_module(Module::kernel_function(name));
        let (kept, refreshed) = (add("bpf_prog_a"), add("bpf_prog_b"));
        let name = |symbols: &mut Symbolizer, module, address| {
            let found = symbols.resolve(Location { module, address });
            found.frames.unwrap()[0].function.to_string()
        };
        for round in 0..1000 {
            assert_eq!(name(&mut symbols, kept, round % 20), "bpf_prog_a");
            for address in 0..10 {
                assert_eq!(name(&mut symbols, refreshed, address), "bpf_prog_b");
            }
            symbols.refresh(refreshed);
            assert!(symbols.frames.len() < 2 * UNUSED_FRAMES, "{round}");
        }
        // The other addresses stay in the cache.
        assert_eq!(symbols.cache.len(), 20);
    }
}
