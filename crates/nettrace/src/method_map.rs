use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::RangeInclusive;

use trace_common::{Limits, Timestamp};

use crate::analysis::{self, number};
use crate::il_join::{Compilation, Joins};
use crate::manifest::Provider;
use crate::{Event, IlMap};

/// A method, or another named range of code, at a load address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Method {
    /// The runtime's id of the method, shared by all its compilations. 0 for native code.
    pub id: u64,
    /// Id of its module.
    pub module_id: u64,
    /// Token of the method in the metadata of its module: 0x06 and the row of the table `MethodDef`.
    /// 0 if it has none: dynamic methods, and native code.
    pub token: u32,
    /// Namespace and type, `A.B.Type`; empty for native code.
    pub namespace: Box<str>,
    /// Method name.
    pub name: Box<str>,
    /// Signature as the runtime writes it: `void  (int32,class System.String)`.
    pub signature: Box<str>,
    /// First address.
    pub start: u64,
    /// Bytes of code; 0 if only the entry point is known.
    pub size: u32,
    /// 0 for the first compilation.
    pub rejit_id: u64,
    /// Flags of the runtime: 1 dynamic, 2 generic, 8 jitted; from bit 7 on the optimization tier.
    pub flags: u32,
    /// The IL offsets of its code, if the runtime reported them: of methods that were compiled at run
    /// time, with the keyword `JittedMethodILToNativeMap` (0x20000).
    pub il_map: Option<IlMap>,
    /// The operating system's id of the process.
    process: u64,
    /// Time of the event that describes it.
    described: Timestamp,
}

/// Optimization tier of a compilation: bits 7 to 9 of [`Method::flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OptimizationTier {
    /// The runtime does not report it: precompiled code, or a runtime before 3.0.
    Unknown,
    /// Compiled with minimal optimisation (debugging, or `NoOptimization`).
    MinOptJitted,
    /// Compiled once, optimised.
    Optimized,
    /// First compilation, quick.
    QuickJitted,
    /// Hot method, optimised.
    OptimizedTier1,
    /// Optimised while it ran (on-stack replacement).
    OptimizedTier1Osr,
    /// Quick, and instrumented to guide optimisation.
    QuickJittedInstrumented,
    /// Optimised, and instrumented.
    OptimizedTier1Instrumented,
}

impl OptimizationTier {
    /// The tier in the flags of a method.
    pub(crate) const fn of_flags(flags: u32) -> Self {
        match flags >> 7 & 7 {
            1 => Self::MinOptJitted,
            2 => Self::Optimized,
            3 => Self::QuickJitted,
            4 => Self::OptimizedTier1,
            5 => Self::OptimizedTier1Osr,
            6 => Self::QuickJittedInstrumented,
            7 => Self::OptimizedTier1Instrumented,
            _ => Self::Unknown,
        }
    }
}

impl Method {
    /// The optimization tier of this compilation.
    pub fn tier(&self) -> OptimizationTier {
        OptimizationTier::of_flags(self.flags)
    }

    /// The offset in the method's IL of the code at an address. `None` if it is not known, or the code
    /// belongs to no instruction.
    ///
    /// For the caller of a function, ask for the return address minus 1.
    pub fn il_offset(&self, address: u64) -> Option<u32> {
        let offset = u32::try_from(address.checked_sub(self.start)?).ok()?;
        if offset >= self.size {
            return None;
        }
        self.il_map.as_ref()?.il_offset(offset)
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.size.into())
    }

    /// Bytes of its names.
    fn text_bytes(&self) -> usize {
        self.namespace.len() + self.name.len() + self.signature.len()
    }

    /// Whether its event has no names: see [`read_method`].
    fn is_nameless(&self) -> bool {
        self.name.starts_with("[token ")
    }
}

impl fmt::Display for Method {
    /// `Namespace.Type.Method(arguments)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}.", self.namespace)?;
        }
        f.write_str(&self.name)?;
        f.write_str(self.signature.find('(').and_then(|i| self.signature.get(i..)).unwrap_or(""))
    }
}

/// A loaded module: an assembly's file, or in version 6 any mapped file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Module {
    /// Path of the file with the code, as the runtime reports it.
    pub path: Box<str>,
    /// GUID of the managed symbols (PDB), if the runtime gave one.
    pub pdb_signature: Option<crate::Guid>,
    /// Path of the symbols on the build machine.
    pub pdb_path: Box<str>,
}

impl Module {
    /// Whether two descriptions can be of one module: what either lacks is no difference.
    fn can_be(&self, other: &Self) -> bool {
        let signatures = self.pdb_signature.zip(other.pdb_signature);
        let is_without_path = self.path.is_empty() || other.path.is_empty();
        signatures.is_none_or(|(one, other)| one == other)
            && (is_without_path || self.path == other.path)
    }

    /// The file's name, without a managed file's extension.
    pub fn name(&self) -> &str {
        let name = self.path.rsplit(['/', '\\']).next().unwrap_or("");
        name.strip_suffix(".dll").or_else(|| name.strip_suffix(".exe")).unwrap_or(name)
    }
}

/// A resolved instruction pointer.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Frame<'a> {
    /// The instruction pointer.
    pub address: u64,
    /// The method, if one is known at that address and time.
    pub method: Option<&'a Method>,
    /// The module, if known.
    pub module: Option<&'a Module>,
    /// The offset in the method's IL, if known: see [`Method::il_offset`]. Of a caller, that of the call.
    pub il_offset: Option<u32>,
}

impl fmt::Display for Frame<'_> {
    /// `module!Namespace.Type.Method(arguments)`; unresolved parts keep the address:
    /// `module!0x7f…`, `?!0x7f…`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.module.map_or("?", Module::name))?;
        match self.method {
            Some(method) => write!(f, "!{method}"),
            None => write!(f, "!{:#x}", self.address),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Range {
    /// Index in [`MethodMap::methods`].
    method: u32,
    /// The runtime's id of that method.
    id: u64,
    end: u64,
    /// Times at which the code appears and, exclusive, disappears.
    from: Timestamp,
    to: Timestamp,
}

/// Process, id of the module, and time at which it was first described: an id is that of another module once
/// its own was unloaded.
type ModuleKey = (u64, u64, Timestamp);

#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: u64,
    module: u64,
    /// Time of its event.
    from: Timestamp,
}

/// The mappings of processes over time. One can replace others, or parts of them.
#[derive(Debug, Default)]
struct Mappings {
    /// By process, logarithm of the size, and first address: those that contain an address begin shortly
    /// before it.
    by_size: BTreeMap<(u64, u32, u64), Vec<Mapping>>,
    /// The sizes of the mappings of a process, one bit each.
    sizes: HashMap<u64, u64>,
}

impl Mappings {
    fn insert(&mut self, process: u64, start: u64, mapping: Mapping) {
        let Some(size) = mapping.end.saturating_sub(start).checked_ilog2() else { return };
        *self.sizes.entry(process).or_default() |= 1 << size;
        self.by_size.entry((process, size, start)).or_default().push(mapping);
    }

    /// The mappings at an address over time.
    fn at(&self, process: u64, address: u64) -> impl Iterator<Item = &Mapping> {
        let mut sizes = self.sizes.get(&process).copied().unwrap_or(0);
        let sizes = std::iter::from_fn(move || {
            let size = sizes.checked_ilog2()?;
            sizes &= !(1 << size);
            Some(size)
        });
        sizes.flat_map(move |size| {
            let lowest = address.saturating_sub(u64::MAX >> (63 - size));
            let near = self.by_size.range((process, size, lowest)..=(process, size, address)).rev();
            let near = near.take(MAX_OVERLAP).flat_map(|(_, mappings)| mappings.iter().rev());
            near.take(MAX_RANGES).filter(move |mapping| address < mapping.end)
        })
    }

    /// The mapping at an address: the newest at this time, or otherwise the first after it.
    fn find(&self, process: u64, address: u64, at: Timestamp) -> Option<Mapping> {
        let mut best: Option<Mapping> = None;
        for mapping in self.at(process, address) {
            let is_better = match best.map(|best| best.from) {
                None => true,
                Some(best) if mapping.from <= at => best > at || mapping.from > best,
                Some(best) => best > at && mapping.from < best,
            };
            if is_better {
                best = Some(*mapping);
            }
        }
        best
    }
}

/// A map from instruction pointers to methods over time, built from the runtime's load, JIT,
/// precompiled-code and rundown events.
///
/// The rundown is at the end of a session, so read a whole file before you resolve stacks.
#[derive(Debug, Default)]
pub struct MethodMap {
    methods: Vec<Method>,
    /// By process and first address: the compilations at one address over time.
    ranges: BTreeMap<(u64, u64), Vec<Range>>,
    /// Entry points of unknown size.
    entries: BTreeMap<(u64, u64), u32>,
    modules: BTreeMap<ModuleKey, Module>,
    mappings: Mappings,
    /// Size of the longest method.
    longest: u64,
    text_bytes: usize,
    limits: Limits,
    dropped: u64,
    undecodable: u64,
    il_maps: Joins,
    replaced: u64,
}

/// A period of time, without its end.
struct Period {
    at: Timestamp,
    from: Timestamp,
    to: Timestamp,
}

impl Period {
    const fn around(at: Timestamp) -> Self {
        Self { at, from: Timestamp::MIN, to: Timestamp::MAX }
    }

    /// Begins or ends it at this time.
    fn limit(&mut self, time: Timestamp) {
        if time <= self.at {
            self.from = self.from.max(time);
        } else {
            self.to = self.to.min(time);
        }
    }
}

/// Maximum number of overlapping methods before an address that are searched.
const MAX_OVERLAP: usize = 64;

/// Maximum number of methods at one address over time, and of those that are searched.
const MAX_RANGES: usize = 1 << 12;

/// Assumed maximum size of code of which only the entry point is known.
const MAX_ENTRY: u64 = 1 << 14;

impl MethodMap {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    /// Creates an empty map that holds at most what `limits` allows.
    pub fn with_limits(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The known methods.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// The known modules, with their ids. A module that was loaded after another one was unloaded can have
    /// the same id: see [`module_of`](Self::module_of).
    pub fn modules(&self) -> impl Iterator<Item = (u64, &Module)> {
        self.modules.iter().map(|((_, id, _), module)| (*id, module))
    }

    /// The module of a method of this map.
    pub fn module_of(&self, method: &Method) -> Option<&Module> {
        self.module_at(method.process, method.module_id, method.described)
    }

    /// Number of methods, modules and maps of IL offsets that were dropped because of the limits, or because
    /// more than 4096 methods were at one address.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Number of events about methods, modules and mappings that lack their id or addresses. What they
    /// describe is not in the map.
    pub const fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// Number of maps of IL offsets that are malformed, or do not come with the event of their
    /// compilation, so that it is not known which one they describe.
    pub fn unmatched_il_maps(&self) -> u64 {
        self.il_maps.unmatched()
    }

    /// Processes an event. Returns whether it was about methods or modules.
    #[inline]
    pub fn push(&mut self, event: &Event<'_>) -> bool {
        match event.known() {
            Some(Provider::Runtime) => self.runtime(event),
            Some(Provider::Rundown) => self.rundown(event),
            Some(Provider::UniversalSystem) => self.universal(event),
            _ => false,
        }
    }

    fn runtime(&mut self, event: &Event<'_>) -> bool {
        let now = event.time();
        match event.id() {
            141 | 143 => _ = self.method(event, now),
            142 | 144 => self.unload(event, now),
            // Rundown by the runtime provider itself, before the rundown provider existed.
            137..=140 => _ = self.method(event, Timestamp::MIN),
            159 => self.entry_point(event),
            149..=153 => self.module(event),
            190 => self.il_map_after(event),
            _ => return false,
        }
        true
    }

    fn rundown(&mut self, event: &Event<'_>) -> bool {
        match event.id() {
            141..=144 => _ = self.method(event, Timestamp::MIN),
            149 => self.il_map_after(event),
            150 => self.il_map_before(event),
            151..=154 => self.module(event),
            _ => return false,
        }
        true
    }

    fn universal(&mut self, event: &Event<'_>) -> bool {
        let process = event.pid();
        let range = || Some((number(event, "StartAddress")?, number(event, "EndAddress")?));
        match event.name() {
            "ProcessMapping" => {
                let (Some(module), Some((start, end))) = (number(event, "Id"), range()) else {
                    self.undecodable += 1;
                    return true;
                };
                let path = text(event, "FileName");
                if !path.is_empty() {
                    let described = Module { path, ..Module::default() };
                    self.add_module((process, module, event.time()), described);
                }
                if self.room(size_of::<Mapping>()) {
                    let mapping = Mapping { end, module, from: event.time() };
                    self.replaced +=
                        u64::from(self.mappings.find(process, start, mapping.from).is_some());
                    self.mappings.insert(process, start, mapping);
                }
            }
            "ProcessSymbol" => {
                let Some((start, end)) = range() else {
                    self.undecodable += 1;
                    return true;
                };
                let method = Method {
                    id: 0,
                    // 0 is no mapping.
                    module_id: number(event, "MappingId").unwrap_or(0),
                    token: 0,
                    namespace: "".into(),
                    name: text(event, "Name"),
                    signature: "".into(),
                    start,
                    size: end.saturating_sub(start).try_into().unwrap_or(u32::MAX),
                    rejit_id: 0,
                    flags: 0,
                    il_map: None,
                    process,
                    described: event.time(),
                };
                self.insert(process, method, Timestamp::MIN);
            }
            _ => return false,
        }
        true
    }

    /// Adds the method of an event. Returns its index, unless it is dropped.
    fn method(&mut self, event: &Event<'_>, from: Timestamp) -> Option<u32> {
        let range = number(event, "MethodStartAddress").zip(number(event, "MethodSize"));
        let method = range.and_then(|(start, size)| read_method(event, start, size));
        let Some(method) = method else {
            self.undecodable += 1;
            return None;
        };
        let of = Compilation { id: method.id, rejit_id: method.rejit_id };
        let index = self.insert(event.pid(), method, from);
        if let Some(map) = self.il_maps.method(event, of, index) {
            self.set_il_map(index, map);
        }
        index
    }

    /// The map of the compilation that the thread reported last.
    fn il_map_after(&mut self, event: &Event<'_>) {
        if let Some((index, map)) = self.il_maps.after(event) {
            self.set_il_map(Some(index), map);
        }
    }

    /// The map of the compilation that the thread reports next.
    fn il_map_before(&mut self, event: &Event<'_>) {
        self.il_maps.before(event);
    }

    /// Sets the map of a method. The rundown repeats those whose load event was seen.
    fn set_il_map(&mut self, index: Option<u32>, map: IlMap) {
        let method = index.and_then(|index| self.methods.get_mut(index as usize));
        let Some(known) = method.map(|method| &mut method.il_map) else { return };
        if known.is_none() {
            let bytes = self.text_bytes.saturating_add(map.bytes());
            if bytes <= self.limits.max_buffer {
                self.text_bytes = bytes;
                *known = Some(map);
            } else {
                self.dropped += 1;
            }
        }
    }

    /// Adds a method. Returns its index, also if it is already known. `None` if it is dropped.
    fn insert(&mut self, process: u64, method: Method, from: Timestamp) -> Option<u32> {
        if from == Timestamp::MIN {
            if let Some(known) = self.repeated(process, &method) {
                return Some(known);
            }
        }
        if !self.room(method.text_bytes() + size_of::<Method>() + size_of::<Range>()) {
            return None;
        }
        let index = self.methods.len() as u32;
        let end = method.end();
        let overlaps = self.overlaps(process, method.start, end);
        let ranges = self.ranges.entry((process, method.start)).or_default();
        if ranges.len() >= MAX_RANGES {
            self.dropped += 1;
            return None;
        }
        // Code previously at this address is gone, even without an unload event.
        for range in ranges.iter_mut().filter(|r| r.from < from && r.to > from) {
            range.to = from;
        }
        self.replaced += u64::from(overlaps || !ranges.is_empty());
        ranges.push(Range { method: index, id: method.id, end, from, to: Timestamp::MAX });
        self.longest = self.longest.max(method.size.into());
        self.methods.push(method);
        Some(index)
    }

    /// The index of the known method that the rundown repeats. Its load event has more information, but may have no
    /// names.
    fn repeated(&mut self, process: u64, method: &Method) -> Option<u32> {
        let end = method.end();
        let is_same = |m: &Method| {
            let is_nameless = m.is_nameless() || method.is_nameless();
            m.rejit_id == method.rejit_id && (is_nameless || m.name == method.name)
        };
        let same = |r: &&mut Range| {
            r.end == end
                && r.id == method.id
                && self.methods.get(r.method as usize).is_some_and(is_same)
        };
        // The newest: code that is gone can have had the same id and address.
        let ranges = self.ranges.get_mut(&(process, method.start))?;
        let range = ranges.iter_mut().rev().find(same)?;
        // It exists at the end, so it existed since it was loaded.
        range.to = Timestamp::MAX;
        let index = range.method;
        let is_nameless = self.methods.get(index as usize).is_some_and(Method::is_nameless);
        if is_nameless && !method.is_nameless() && self.room(method.text_bytes()) {
            let known = self.methods.get_mut(index as usize)?;
            known.namespace.clone_from(&method.namespace);
            known.name.clone_from(&method.name);
            known.signature.clone_from(&method.signature);
        }
        Some(index)
    }

    fn unload(&mut self, event: &Event<'_>, now: Timestamp) {
        let Some(start) = number(event, "MethodStartAddress") else { return };
        let id = number(event, "MethodID");
        let key = (event.pid(), start);
        let same = |r: &&mut Range| Some(r.id) == id;
        let known = self.ranges.get_mut(&key).and_then(|ranges| ranges.iter_mut().rev().find(same));
        match known {
            Some(range) => range.to = now,
            // It was loaded before the session: the unload event describes it.
            None => {
                let added = self.method(event, Timestamp::MIN);
                let ranges = self.ranges.get_mut(&key);
                if let Some(range) = ranges.and_then(|ranges| ranges.last_mut()) {
                    if Some(range.method) == added {
                        range.to = now;
                    }
                }
            }
        }
        self.il_maps.forget(event);
    }

    fn entry_point(&mut self, event: &Event<'_>) {
        let start = number(event, "EntryPoint");
        let method = start.and_then(|start| Some((start, read_method(event, start, 0)?)));
        let Some((start, method)) = method else {
            self.undecodable += 1;
            return;
        };
        if start != 0 && self.room(method.text_bytes() + size_of::<Method>()) {
            self.entries.insert((event.pid(), start), self.methods.len() as u32);
            self.methods.push(method);
        }
    }

    fn module(&mut self, event: &Event<'_>) {
        let Some(id) = number(event, "ModuleID") else {
            self.undecodable += 1;
            return;
        };
        let mut path = text(event, "ModuleILPath");
        if path.is_empty() {
            path = text(event, "ModuleNativePath");
        }
        let pdb_path = text(event, "ManagedPdbBuildPath");
        let pdb_signature = match event.field("ManagedPdbSignature") {
            // Without symbols it is zero.
            Some(crate::Value::Guid(guid)) if !guid.is_empty() => Some(guid),
            _ => None,
        };
        let module = Module { path, pdb_signature, pdb_path };
        self.add_module((event.pid(), id, event.time()), module);
    }

    /// Adds a module of a process, with its id and the time of its event.
    fn add_module(&mut self, key: ModuleKey, module: Module) {
        let (process, id, at) = key;
        let known = self.module_with_key(process, id, at);
        let known = known.filter(|(_, known)| known.can_be(&module));
        // Domain modules have no symbols: keep those of the module.
        let is_news = known.is_none_or(|(_, known)| {
            *known != module && (known.path.is_empty() || module.pdb_signature.is_some())
        });
        let key = known.map_or(key, |(key, _)| *key);
        let bytes = module.path.len() + module.pdb_path.len() + size_of::<Module>();
        if is_news && self.room(bytes) {
            self.modules.insert(key, module);
        }
    }

    /// The module that has an id at a time, with its key: the newest one then, or otherwise the first after it.
    fn module_with_key(
        &self,
        process: u64,
        id: u64,
        at: Timestamp,
    ) -> Option<(&ModuleKey, &Module)> {
        let (first, last) = ((process, id, Timestamp::MIN), (process, id, Timestamp::MAX));
        let before = self.modules.range(first..=(process, id, at)).next_back();
        before.or_else(|| self.modules.range(first..=last).next())
    }

    fn module_at(&self, process: u64, id: u64, at: Timestamp) -> Option<&Module> {
        self.module_with_key(process, id, at).map(|(_, module)| module)
    }

    /// The module of the mapping at an address.
    fn mapped(&self, process: u64, address: u64, at: Timestamp) -> Option<&Module> {
        let mapping = self.mappings.find(process, address, at)?;
        self.module_at(process, mapping.module, mapping.from)
    }

    fn room(&mut self, bytes: usize) -> bool {
        self.text_bytes = self.text_bytes.saturating_add(bytes);
        let fits = self.text_bytes <= self.limits.max_buffer
            && self.methods.len() < self.limits.max_entries.min(u32::MAX as usize);
        self.dropped += u64::from(!fits);
        fits
    }

    /// Resolves the instruction pointer `address` of a process at a time. Versions 3 to 5
    /// have one process: that of [`crate::Trace`].
    pub fn resolve(&self, process: u64, address: u64, at: Timestamp) -> Frame<'_> {
        let method = self.find(process, address, at);
        let module = match method {
            Some(method) => self.module_of(method),
            None => self.mapped(process, address, at),
        };
        let il_offset = method.and_then(|method| method.il_offset(address));
        Frame { address, method, module, il_offset }
    }

    /// A period of time around `at`, in which [`resolve`](Self::resolve) finds the same methods
    /// and modules at these addresses.
    pub fn period(
        &self,
        process: u64,
        addresses: impl IntoIterator<Item = u64>,
        at: Timestamp,
    ) -> RangeInclusive<Timestamp> {
        let mut period = Period::around(at);
        for address in addresses {
            let mut of_methods = Period::around(at);
            for range in self.ranges_at(process, address) {
                of_methods.limit(range.from);
                of_methods.limit(range.to);
            }
            if of_methods.from > Timestamp::MIN && of_methods.to < Timestamp::MAX {
                // Between two methods, the nearer one is found.
                let middle = of_methods.from.nanos() / 2 + of_methods.to.nanos() / 2;
                let middle = Timestamp::from_nanos(middle);
                (-1..=2).for_each(|n| of_methods.limit(middle.saturating_add_nanos(n)));
            }
            period.limit(of_methods.from);
            period.limit(of_methods.to);
            for mapping in self.mappings.at(process, address) {
                period.limit(mapping.from);
            }
        }
        let last = match period.to {
            Timestamp::MAX => Timestamp::MAX,
            end => end.saturating_add_nanos(-1),
        };
        period.from..=last
    }

    /// Number of times that code or a mapping took the place of another one, or of a part of it. Until
    /// it changes, an address has one method and module, of those reported so far.
    pub(crate) const fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Whether there is, or was, code between these addresses.
    fn overlaps(&self, process: u64, start: u64, end: u64) -> bool {
        let has_begin = || self.ranges.range((process, start)..(process, end)).next().is_some();
        start < end && (has_begin() || self.ranges_at(process, start).next().is_some())
    }

    /// The compilations at an address over time.
    fn ranges_at(&self, process: u64, address: u64) -> impl Iterator<Item = &Range> {
        let lowest = address.saturating_sub(self.longest);
        let near = self.ranges.range((process, lowest)..=(process, address)).rev();
        let near = near.take(MAX_OVERLAP).flat_map(|(_, ranges)| ranges.iter().rev());
        near.take(MAX_RANGES).filter(move |range| address < range.end)
    }

    /// Whether native code is of another file than the one that is mapped: it has the life of its mapping,
    /// which can be repeated with another id.
    fn is_of_another(&self, range: &Range, mapped: Option<&Module>) -> bool {
        let method = self.methods.get(range.method as usize);
        let own = method.and_then(|method| self.module_of(method));
        own.zip(mapped).is_some_and(|(own, mapped)| own.path != mapped.path)
    }

    fn find(&self, process: u64, address: u64, at: Timestamp) -> Option<&Method> {
        let mut closest: Option<(u64, u32)> = None;
        let module = LazyCell::new(|| self.mapped(process, address, at));
        for range in self.ranges_at(process, address) {
            if range.id == 0 && self.is_of_another(range, *module) {
                continue;
            }
            // Distance in time between `at` and the lifetime of the code.
            let miss = if at < range.from {
                range.from.nanos().abs_diff(at.nanos())
            } else if at >= range.to {
                range.to.nanos().abs_diff(at.nanos()).saturating_add(1)
            } else {
                0
            };
            if closest.is_none_or(|(best, _)| miss < best) {
                closest = Some((miss, range.method));
            }
            if miss == 0 {
                break;
            }
        }
        let index = match closest {
            Some((_, index)) => index,
            None => {
                let (key, index) =
                    self.entries.range((process, 0)..=(process, address)).next_back()?;
                if address - key.1 >= MAX_ENTRY {
                    return None;
                }
                *index
            }
        };
        self.methods.get(index as usize)
    }
}

/// The text of the field of this name; empty if there is none.
fn text(event: &Event<'_>, name: &str) -> Box<str> {
    analysis::text(event, name).unwrap_or_default().into()
}

/// The method of an event, with `size` bytes of code, or 0 if that is not known. Fields that some versions
/// of the events do not have are 0.
fn read_method(event: &Event<'_>, start: u64, size: u64) -> Option<Method> {
    let number = |name: &str| number(event, name);
    let name = text(event, "MethodName");
    let token = number("MethodToken").unwrap_or(0);
    Some(Method {
        id: number("MethodID")?,
        module_id: number("ModuleID").unwrap_or(0),
        token: token as u32,
        namespace: text(event, "MethodNamespace"),
        // Events below level verbose have no names: use the metadata token.
        name: if name.is_empty() { format!("[token {token:#010x}]").into() } else { name },
        signature: text(event, "MethodSignature"),
        start,
        size: size.try_into().unwrap_or(u32::MAX),
        rejit_id: number("ReJITID").unwrap_or(0),
        flags: number("MethodFlags").unwrap_or(0) as u32,
        il_map: None,
        process: event.pid(),
        described: event.time(),
    })
}
