//! Which file is mapped at an address of a process, at the time of a record.

use crate::build_id::BuildIdEntry;
use crate::ended::EndedProcesses;
#[cfg(target_os = "linux")]
use crate::features::ClockReference;
use crate::features::Features;
use perf_monitor::{CpuMode, FileId, Ksymbol, Mmap, ProcessEvent, RawRecord, Record};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
#[cfg(target_os = "linux")]
use std::path::Path;
use std::sync::Arc;
use trace_common::{BuildId, Inode, KernelReference, SeededState, Timestamp};

/// A file with code: an executable, a library, the kernel, or what a just-in-time compiler wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappedFile {
    /// The path; [`Mappings::KERNEL`], or `[name]` of a module of the kernel; the name of a function that
    /// was added to the kernel; `/tmp/perf-PID.map` for executable memory without a file. Each program that a
    /// process executes, and each process that gets the number, has another one.
    pub name: String,
    /// The bytes of the path, if they are no UTF-8 text: [`name`](Self::name) has U+FFFD in place of what is none.
    pub raw_name: Option<Box<[u8]>>,
    /// The build id, if the recording has it: that of the mapping, or of a list by path that the recorder
    /// made at its end.
    pub build_id: Option<BuildId>,
    /// The inode, if the mapping has it instead of a build id. A build id is then that of the list, and of
    /// another file if this one was replaced during the recording: that is for the reader to find out.
    pub inode: Option<Inode>,
    /// The generation of the inode in the first record of the file; 0 if it is not known, as of files that
    /// were mapped before the recording. A file system gives the number of an inode that was removed to the
    /// next file, with another generation.
    pub generation: u64,
    /// The time from which on it must not have changed, to have the code that was mapped: that of the first
    /// record of its mapping. Of a mapping before the recording, that of the first record with a time.
    pub mapped_at: Option<Timestamp>,
    /// The process that mapped it last: its root directory has the file, if that process still runs.
    pub process: Option<u32>,
    /// Other processes that mapped it, at most eight: the last one first, and rather those that run. Where
    /// the last one has ended, such as a check in a container, the root directory of one of these has the file.
    pub other_processes: Vec<u32>,
    /// Whether it is the kernel, one of its modules or a function that was added to it.
    pub is_kernel: bool,
    /// Whether it is one function that was added to the running kernel, such as a program of BPF
    /// (`PERF_RECORD_KSYMBOL`).
    pub is_kernel_function: bool,
    /// Whether it is memory without a file, or with one in memory alone (`memfd_create(2)`): just-in-time compilers describe
    /// it in a file with this name.
    pub is_perf_map: bool,
    /// The jitdump file that the process mapped, of such memory: it has the names of the code, too.
    pub jitdump: Option<String>,
    /// The bytes of its path, if they are no UTF-8 text.
    raw_jitdump: Option<Box<[u8]>>,
    /// Of the kernel and its modules: where they were in memory. Without it, the recording can be of an
    /// earlier boot, whose addresses have other names now.
    pub reference: Option<KernelReference>,
}

impl MappedFile {
    /// A process maps the file.
    fn mapped_by(&mut self, process: u32, ended: &EndedProcesses) {
        const MAX_OTHERS: usize = 8;
        let Some(last) = self.process.replace(process).filter(|last| *last != process) else {
            return;
        };
        let others = &mut self.other_processes;
        others.retain(|other| *other != process);
        others.insert(0, last);
        if others.len() > MAX_OTHERS {
            others.remove(others.iter().rposition(|other| ended.has(*other)).unwrap_or(MAX_OTHERS));
        }
    }
}

#[cfg(target_os = "linux")]
impl MappedFile {
    /// The file for a [`Symbolizer`](trace_symbols::Symbolizer), with what identifies its contents: the build
    /// id, or the inode with the wall-clock time of the mapping.
    ///
    /// The kernel without a [`reference`](Self::reference) is the running one: use it for a recording that was
    /// made since the machine started.
    ///
    /// The time needs the [clock of the recording](Features::clock), which `perf record` writes with the
    /// option `--clockid`. A file of which neither the build id nor the inode and the time are known has no
    /// names, except with [`Options::unverified`](trace_symbols::Options::unverified): it may have been
    /// replaced since.
    ///
    /// The module of a file has no process. Set [`Module::process`](trace_symbols::Module::process) to
    /// [`process`](Self::process) while that process runs to look for the file in its root directory, such
    /// as that of a container.
    pub fn module(&self, clock: Option<&ClockReference>) -> trace_symbols::Module {
        use trace_symbols::Module;
        let mut module = match self.process {
            _ if self.is_kernel && self.name == Mappings::KERNEL => Module::kernel(self.build_id),
            _ if self.is_kernel_function => Module::kernel_function(&self.name),
            _ if self.is_kernel => Module::kernel_module(&self.name, self.build_id),
            Some(process) if self.is_perf_map => Module::jit(process),
            _ => {
                let is_vdso = matches!(&*self.name, "[vdso]" | Module::VDSO_32);
                let mut module =
                    if is_vdso { Module::vdso() } else { Module::file(self.path(), None) };
                if is_vdso {
                    module.name = self.name.as_str().into();
                }
                module.build_id = self.build_id;
                module.inode = self.inode;
                module.generation = self.generation;
                module.mapped_at = clock.zip(self.mapped_at).and_then(|(c, at)| c.realtime_at(at));
                module
            }
        };
        module.reference.clone_from(&self.reference);
        module
    }

    /// The [jitdump file](Self::jitdump) for a [`Symbolizer`](trace_symbols::Symbolizer), without a process,
    /// as of [`module`](Self::module).
    pub fn jitdump_module(&self) -> Option<trace_symbols::Module> {
        let name = Path::new(self.jitdump.as_deref()?);
        let path = self.raw_jitdump.as_deref().map_or(name, raw_path);
        Some(trace_symbols::Module::file(path, None))
    }

    /// The path of a file, as the process that mapped it sees it: that of [`raw_name`](Self::raw_name), or
    /// else the [`name`](Self::name).
    pub fn path(&self) -> &Path {
        self.raw_name.as_deref().map_or_else(|| Path::new(&self.name), raw_path)
    }
}

#[cfg(target_os = "linux")]
fn raw_path(bytes: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// An address within a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappedAddress {
    /// The number of the file, for [`Mappings::file`].
    pub file: usize,
    /// The position in the file, or in the function that was added to the kernel; of the kernel, its
    /// modules and memory without a file the address itself.
    pub address: u64,
    /// The first address of the mapping in memory.
    pub start: u64,
    /// The address after its last one.
    pub end: u64,
}

/// The mappings of all processes, as the records up to now report them.
///
/// Records are those of one machine, in time order. Memory grows with the number of mappings of live
/// processes, and with that of files. The mappings of the last 1024 processes that ended are kept, as
/// threads of a process can outlive its first thread. Four million mappings of processes are kept: those that
/// a process shares with its parent count once. Others are [counted](Self::dropped).
#[derive(Debug)]
pub struct Mappings {
    processes: HashMap<u32, Arc<Space>>,
    /// Number of mappings of all processes. Those that processes share count once.
    count: usize,
    /// Maximum of `count`.
    limit: usize,
    /// Number of mappings that may still be copied for processes that shared them.
    copies: usize,
    /// Number of mappings that were not kept.
    dropped: u64,
    /// Processes between an `execve(2)` and their first new mapping.
    in_exec: HashSet<u32>,
    ended: EndedProcesses,
    /// End and file of the kernel's text and of its modules, by their start.
    kernel: BTreeMap<u64, (u64, usize)>,
    /// The file of the kernel's text.
    text: Option<usize>,
    /// End and file of the functions that were added to the kernel, by their start.
    functions: BTreeMap<u64, (u64, usize)>,
    files: Vec<MappedFile>,
    /// The first time of a record.
    start: Option<Timestamp>,
    numbers: HashMap<FileKey, Generations>,
    /// Build ids of the recording; `None` for a name that several files have.
    build_ids: HashMap<String, Option<BuildId>>,
}

/// The facts by which a file is the same as another one, with the generation of its inode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct FileKey {
    name: String,
    /// As of [`MappedFile`].
    raw_name: Option<Box<[u8]>>,
    build_id: Option<BuildId>,
    inode: Option<Inode>,
    reference: Option<KernelReference>,
}

impl FileKey {
    fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

/// The files that had an inode, one after another.
#[derive(Debug, Default)]
struct Generations {
    /// The generation of the last one, 0 if it is not known, and its number.
    last: Option<(u64, usize)>,
    /// The numbers of those before it, by their generation.
    earlier: HashMap<u64, usize, SeededState>,
}

impl Generations {
    /// The number of the file with this generation. As for perf(1), one that is not known is no difference: a
    /// list of the processes that run does not have it.
    fn number(&mut self, generation: u64) -> Option<usize> {
        let (last, number) = self.last.as_mut()?;
        if *last == 0 {
            *last = generation;
        }
        if generation == 0 || *last == generation {
            return Some(*number);
        }
        self.earlier.get(&generation).copied()
    }

    /// Adds a file that has no number yet.
    fn add(&mut self, generation: u64, number: usize) {
        if let Some((generation, number)) = self.last.replace((generation, number)) {
            self.earlier.insert(generation, number);
        }
    }
}

/// The address space of a process: mappings by their start.
type Space = BTreeMap<u64, Mapping>;

/// Maximum number of mappings of all processes: some 200 MB.
const MAX_MAPPINGS: usize = 1 << 22;
/// Mappings that may be copied for each record, on average. A process that maps a file after its fork gets its own
/// copy of those of its parent: a few hundred. Each process of a crafted recording can have millions.
const COPIES_PER_RECORD: usize = 1 << 8;
/// Mappings that a new one adds: itself, and the rest of one that it cuts in two.
const MOST_ADDED: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: u64,
    pgoff: u64,
    file: usize,
}

impl Mappings {
    /// The name of the kernel without its modules.
    pub const KERNEL: &str = "[kernel.kallsyms]";

    /// No mappings. The features have the build ids of files.
    pub fn new(features: &Features) -> Self {
        let mut this = Self {
            processes: HashMap::new(),
            count: 0,
            limit: MAX_MAPPINGS,
            copies: MAX_MAPPINGS,
            dropped: 0,
            in_exec: HashSet::new(),
            ended: EndedProcesses::default(),
            kernel: BTreeMap::new(),
            text: None,
            functions: BTreeMap::new(),
            files: Vec::new(),
            start: None,
            numbers: HashMap::new(),
            build_ids: build_ids_of(features),
        };
        this.add_file(FileKey::named(Self::KERNEL), 0, None);
        this
    }

    /// Takes a record. It changes something if it is about mappings.
    pub fn push(&mut self, record: &Record<'_>, raw: RawRecord<'_>) {
        self.copies = (self.copies + COPIES_PER_RECORD).min(MAX_MAPPINGS);
        let at = time(record);
        if self.start.is_none() && at.is_some() {
            self.start = at;
            self.files.iter_mut().for_each(|file| file.mapped_at = at);
        }
        match record {
            Record::Mmap(mmap) if !mmap.is_data => self.map(mmap, raw.cpu_mode(), at),
            Record::Ksymbol(symbol) => self.kernel_function(symbol),
            Record::Fork(fork) => self.fork(fork, raw),
            // Until there are new mappings, the registers of the process are those of the old
            // program.
            Record::Comm(comm) if comm.by_exec => {
                // The main thread has ended before, if another one executes the program.
                self.ended.revive(comm.pid);
                self.in_exec.insert(comm.pid);
                self.forget_perf_map(comm.pid);
            }
            Record::Exit(exit) if exit.pid == exit.tid => {
                self.in_exec.remove(&exit.pid);
                if let Some(pid) = self.ended.end(exit.pid) {
                    self.forget(pid);
                }
            }
            _ => {}
        }
    }

    fn map(&mut self, mmap: &Mmap<'_>, mode: CpuMode, at: Option<Timestamp>) {
        let name = String::from_utf8_lossy(mmap.filename);
        let raw_name = matches!(name, Cow::Owned(_)).then(|| mmap.filename.into());
        let name = name.into_owned();
        let end = mmap.addr.saturating_add(mmap.len);
        let (build_id, inode, generation) = match mmap.file {
            Some(FileId::BuildId(id)) => (BuildId::new(id), None, 0),
            Some(FileId::Inode { major, minor, inode, generation }) if inode != 0 => {
                (None, Some(Inode { major, minor, inode }), generation)
            }
            _ => (None, None, 0),
        };
        if mode == CpuMode::Kernel {
            self.map_kernel(&name, mmap, build_id);
            return;
        }
        // That of 32-bit processes is another one, which perf(1) gives this name.
        let name = if name == "[vdso]" && end <= 1 << 32 { "[vdso32]".to_owned() } else { name };
        let is_perf_map = trace_common::is_memory_of_no_file(&name);
        if is_jitdump(&name) {
            let map = self.add_file(FileKey::named(perf_map(mmap.pid)), 0, Some(mmap.pid));
            if let Some(map) = self.files.get_mut(map) {
                (map.is_perf_map, map.jitdump) = (true, Some(name.clone()));
                map.raw_jitdump.clone_from(&raw_name);
            }
        }
        let (key, generation) = match is_perf_map {
            true => (FileKey { build_id, ..FileKey::named(perf_map(mmap.pid)) }, 0),
            false => (FileKey { name, raw_name, build_id, inode, reference: None }, generation),
        };
        let file = self.add_file(key, generation, Some(mmap.pid));
        if let Some(file) = self.files.get_mut(file) {
            file.is_perf_map |= is_perf_map;
            file.mapped_at = file.mapped_at.or(at).or(self.start);
        }
        if self.in_exec.remove(&mmap.pid) {
            self.forget(mmap.pid);
        }
        self.insert(mmap.pid, mmap.addr, Mapping { end, pgoff: mmap.pgoff, file });
    }

    /// Adds a mapping of a process. Without room for its own copy of those that it shares, it loses them.
    fn insert(&mut self, pid: u32, start: u64, mapping: Mapping) {
        let space = self.processes.entry(pid).or_default();
        let shared = if Arc::strong_count(space) > 1 { space.len() } else { 0 };
        if shared > self.copies || self.count + shared > self.limit {
            self.dropped += shared as u64;
            *space = Arc::default();
        } else {
            self.copies -= shared;
            self.count += shared;
        }
        let space = Arc::make_mut(space);
        let before = space.len();
        let has_room = self.count + MOST_ADDED <= self.limit;
        self.dropped += insert(space, start, mapping, has_room);
        self.count = self.count - before + space.len();
    }

    /// Another program has the number of a process from now on. What describes its compiled code is another file, with
    /// the same path.
    fn forget_perf_map(&mut self, pid: u32) {
        self.numbers.remove(&FileKey::named(perf_map(pid)));
    }

    /// Forgets the mappings of a process.
    fn forget(&mut self, pid: u32) {
        // Those that another process shares stay.
        let own = self.processes.remove(&pid).and_then(Arc::into_inner);
        self.count -= own.map_or(0, |space| space.len());
    }

    /// Adds the kernel's text or a module, whose record is that of a [`Synthesizer`](crate::Synthesizer) or of
    /// `perf`: the name of the kernel ends with that of a symbol, whose address is in place of the offset.
    fn map_kernel(&mut self, name: &str, mmap: &Mmap<'_>, own_id: Option<BuildId>) {
        let (name, symbol, address) = match name.strip_prefix(Self::KERNEL) {
            Some(symbol) => (Self::KERNEL.to_owned(), symbol.into(), mmap.pgoff),
            None => {
                let name = module_name(name);
                let symbol = name.as_str().into();
                (name, symbol, mmap.addr)
            }
        };
        // The recorder did not see the addresses of the kernel.
        if address == 0 {
            return;
        }
        let is_text = name == Self::KERNEL;
        let reference = Some(KernelReference { symbol, address });
        let key = FileKey { build_id: own_id, reference, ..FileKey::named(name) };
        let file = self.add_file(key, 0, None);
        // The rest of the recording is of another boot: its modules follow.
        if is_text && self.text.replace(file).is_some_and(|old| old != file) {
            self.kernel.clear();
        }
        self.kernel.insert(mmap.addr, (mmap.addr.saturating_add(mmap.len), file));
    }

    /// The kernel adds a function, or removes one: `/proc/kallsyms` has those of now alone.
    fn kernel_function(&mut self, symbol: &Ksymbol<'_>) {
        let (start, end) = (symbol.addr, symbol.addr.saturating_add(symbol.len.into()));
        if symbol.unregister {
            self.functions.remove(&start);
            return;
        }
        if start == end || symbol.name.is_empty() {
            return;
        }
        // The records of their ends were lost.
        let covered = self.functions.range(..end).rev();
        let covered: Vec<u64> =
            covered.take_while(|(_, (old, _))| *old > start).map(|(start, _)| *start).collect();
        for old in covered {
            self.functions.remove(&old);
        }
        let next = self.files.len();
        let name = String::from_utf8_lossy(symbol.name).into_owned();
        let file = self.add_file(FileKey::named(name), 0, None);
        if let Some(new) = self.files.get_mut(next) {
            new.is_kernel_function = true;
        }
        self.functions.insert(start, (end, file));
    }

    /// Adds a file of a process, or of the kernel. The generation is that of its inode, 0 if it is not known.
    fn add_file(&mut self, mut key: FileKey, generation: u64, process: Option<u32>) -> usize {
        key.build_id = key.build_id.or_else(|| self.build_ids.get(&key.name).copied().flatten());
        let next = self.files.len();
        let known = self.numbers.get_mut(&key).and_then(|files| files.number(generation));
        if let Some(known) = known {
            if let (Some(file), Some(process)) = (self.files.get_mut(known), process) {
                file.mapped_by(process, &self.ended);
            }
            return known;
        }
        // The number of the kernel is known before its place.
        let first = self.files.first_mut();
        if let Some(kernel) = first.filter(|kernel| {
            kernel.reference.is_none() && key.reference.is_some() && kernel.name == key.name
        }) {
            (kernel.build_id, kernel.reference) = (key.build_id, key.reference.clone());
            self.numbers.entry(key).or_default().add(0, 0);
            return 0;
        }
        let FileKey { name, raw_name, build_id, inode, reference } = key.clone();
        let is_kernel = process.is_none();
        self.files.push(MappedFile {
            name,
            raw_name,
            build_id,
            inode,
            generation,
            mapped_at: None,
            process,
            other_processes: Vec::new(),
            is_kernel,
            is_kernel_function: false,
            is_perf_map: false,
            jitdump: None,
            raw_jitdump: None,
            reference,
        });
        self.numbers.entry(key).or_default().add(generation, next);
        next
    }

    /// A new process has the mappings of its parent; a listed one those of the records that follow.
    fn fork(&mut self, fork: &ProcessEvent, raw: RawRecord<'_>) {
        if fork.pid != fork.ppid {
            // The number is used again.
            self.ended.revive(fork.pid);
            self.in_exec.remove(&fork.pid);
            self.forget(fork.pid);
            let is_listed = is_listed(fork, raw);
            if !is_listed {
                self.forget_perf_map(fork.pid);
            }
            let parent = self.processes.get(&fork.ppid).filter(|_| !is_listed);
            if let Some(space) = parent.map(Arc::clone) {
                self.processes.insert(fork.pid, space);
            }
        }
    }

    /// The file at an address of a process, or of the kernel. `None` where nothing is mapped, as far
    /// as the records report.
    pub fn at(&self, pid: u32, address: u64, is_kernel: bool) -> Option<MappedAddress> {
        if is_kernel {
            let at = |ranges: &BTreeMap<u64, (u64, usize)>| {
                let (start, (end, file)) = ranges.range(..=address).next_back()?;
                (address < *end).then_some((*start, *end, *file))
            };
            if let Some((start, end, file)) = at(&self.functions) {
                return Some(MappedAddress { file, address: address - start, start, end });
            }
            let (start, end, file) = at(&self.kernel)?;
            return Some(MappedAddress { file, address, start, end });
        }
        let (start, mapping) = self.processes.get(&pid)?.range(..=address).next_back()?;
        if address >= mapping.end {
            return None;
        }
        let file = mapping.file;
        let is_perf_map = self.files.get(file).is_some_and(|file| file.is_perf_map);
        let in_file = (address - start).wrapping_add(mapping.pgoff);
        let (start, end) = (*start, mapping.end);
        let address = if is_perf_map { address } else { in_file };
        Some(MappedAddress { file, address, start, end })
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// The file with this number. File 0 is the kernel.
    pub fn file(&self, number: usize) -> Option<&MappedFile> {
        self.files.get(number)
    }

    /// Number of mappings of processes that were not kept, because there are too many. Nothing is mapped at their
    /// addresses.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Whether a recorder lists a process that was there at the start. Its mappings follow: those of its
/// parent now are not those that it began with. `perf` marks such records since Linux 4.20; before, they
/// only have no time.
pub(crate) fn is_listed(fork: &ProcessEvent, raw: RawRecord<'_>) -> bool {
    raw.misc() & perf_sys::PERF_RECORD_MISC_FORK_EXEC != 0 || fork.time.nanos() == 0
}

/// The file in which a just-in-time compiler describes the code of a process.
fn perf_map(pid: u32) -> String {
    format!("/tmp/perf-{pid}.map")
}

/// Whether a file is one that a just-in-time compiler maps so that recorders find it: `jit-PID.dump`.
fn is_jitdump(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let pid = file.strip_prefix("jit-").and_then(|rest| rest.strip_suffix(".dump"));
    pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The time of a record. Recorders write records without one about what was there at the start.
pub(crate) fn time(record: &Record<'_>) -> Option<Timestamp> {
    record.sample_id()?.time.filter(|time| time.nanos() != 0)
}

/// Inserts a mapping, and cuts those that it covers. Without room, it is left out, and so are those that it would
/// cut: the rest of them could be two. Returns the number of mappings that are lost.
fn insert(space: &mut Space, start: u64, mapping: Mapping, has_room: bool) -> u64 {
    let end = mapping.end;
    // The rest of one that it is in would begin at the same address.
    if start >= end {
        return 0;
    }
    let mut lost = 0;
    let covered: Vec<u64> =
        space.range(..end).rev().take_while(|(_, old)| old.end > start).map(|(s, _)| *s).collect();
    for old_start in covered {
        let Some(old) = space.remove(&old_start) else { continue };
        if !has_room {
            lost += u64::from(old_start < start || old.end > end);
            continue;
        }
        if old.end > end {
            let pgoff = old.pgoff.wrapping_add(end - old_start);
            space.insert(end, Mapping { pgoff, ..old });
        }
        if old_start < start {
            space.insert(old_start, Mapping { end: start, ..old });
        }
    }
    if !has_room {
        return lost + 1;
    }
    space.insert(start, mapping);
    lost
}

/// The build ids of files by their names here: `perf` lists the files of modules.
fn build_ids_of(features: &Features) -> HashMap<String, Option<BuildId>> {
    let mut ids = HashMap::new();
    for BuildIdEntry { is_kernel, build_id, file, .. } in &features.build_ids {
        let name = if *is_kernel { module_name(file) } else { file.clone() };
        // Files of several containers can have one path, and paths that are no text one name. Which of them
        // has which id is not known.
        let known = ids.entry(name).or_insert(Some(*build_id));
        *known = known.filter(|known| known == build_id);
    }
    ids
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
        let mut space = Space::new();
        let shown = |space: &Space| -> Vec<(u64, u64, u64, usize)> {
            space.iter().map(|(s, m)| (*s, m.end, m.pgoff, m.file)).collect()
        };
        for (start, end, pgoff, file) in
            [(10, 50, 100, 1), (20, 30, 0, 2), (45, 60, 7, 3), (35, 35, 0, 4)]
        {
            assert_eq!(insert(&mut space, start, Mapping { end, pgoff, file }, true), 0);
        }
        let all = [(10, 20, 100, 1), (20, 30, 0, 2), (30, 45, 120, 1), (45, 60, 7, 3)];
        assert_eq!(shown(&space), all);
        // Without room.
        assert_eq!(insert(&mut space, 35, Mapping { end: 35, pgoff: 0, file: 5 }, false), 0);
        assert_eq!(shown(&space), all);
        let lost = insert(&mut space, 15, Mapping { end: 40, pgoff: 0, file: 5 }, false);
        assert_eq!((lost, shown(&space)), (3, all[3..].to_vec()));
    }

    /// Applies a record with this body.
    fn apply(mappings: &mut Mappings, type_: u32, body: &[u8]) {
        apply_with(mappings, type_, 0, body);
    }

    fn apply_with(mappings: &mut Mappings, type_: u32, misc: u16, body: &[u8]) {
        let bytes = record(type_, misc, body);
        let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
        let layout = perf_monitor::RecordLayout::new(&Default::default());
        mappings.push(&layout.decode(raw).unwrap(), raw);
    }

    fn record(type_: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        const HEADER: usize = 8;
        let size = ((HEADER + body.len()) as u16).to_ne_bytes();
        [&type_.to_ne_bytes()[..], &misc.to_ne_bytes(), &size, body].concat()
    }

    fn words(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    /// A recording of many short processes: memory has a limit, and a number that is used again is a
    /// live process.
    #[test]
    fn mappings_of_the_last_ended_processes_are_kept() {
        let mut mappings = Mappings::new(&Features::default());
        let map = [0x1000_u64, 0x1000, 0].map(u64::to_ne_bytes).concat();
        let map = [&words(&[1, 1])[..], &map, b"/bin/x\0\0"].concat();
        apply(&mut mappings, perf_sys::PERF_RECORD_MMAP, &map);
        let time = 1_u64.to_ne_bytes();
        let task = |pid| [&words(&[pid, 1, pid, 1])[..], &time].concat();
        let count = 3 * EndedProcesses::MAX as u32;
        for pid in 2..count {
            apply(&mut mappings, perf_sys::PERF_RECORD_FORK, &task(pid));
            assert!(mappings.at(pid, 0x1800, false).is_some());
            apply(&mut mappings, perf_sys::PERF_RECORD_EXIT, &task(pid));
            assert!(
                mappings.at(pid, 0x1800, false).is_some(),
                "its threads can outlive the first one"
            );
            // This one always lives.
            if pid == 2 {
                apply(&mut mappings, perf_sys::PERF_RECORD_FORK, &task(pid));
            }
            assert!(mappings.processes.len() <= EndedProcesses::MAX + 2);
        }
        assert!(mappings.at(3, 0x1800, false).is_none());
        assert!(mappings.at(2, 0x1800, false).is_some());
        // A thread executes a program after the end of the main thread.
        apply(&mut mappings, perf_sys::PERF_RECORD_EXIT, &task(2));
        let mut comm = words(&[2, 2]);
        comm.extend(b"x\0\0\0\0\0\0\0");
        apply_with(&mut mappings, perf_sys::PERF_RECORD_COMM, 1 << 13, &comm);
        for pid in count..2 * count {
            apply(&mut mappings, perf_sys::PERF_RECORD_EXIT, &task(pid));
        }
        assert!(mappings.at(2, 0x1800, false).is_some());
    }

    /// Maps a page of a process.
    fn map(mappings: &mut Mappings, pid: u32, start: u64) {
        let place = [start, 0x1000, 0].map(u64::to_ne_bytes).concat();
        let body = [&words(&[pid, pid])[..], &place, b"/bin/x\0\0"].concat();
        apply(mappings, perf_sys::PERF_RECORD_MMAP, &body);
    }

    /// A process forks another one.
    fn fork(mappings: &mut Mappings, pid: u32, parent: u32) {
        let fork = [&words(&[pid, parent, pid, parent])[..], &1_u64.to_ne_bytes()].concat();
        apply(mappings, perf_sys::PERF_RECORD_FORK, &fork);
    }

    fn exit(mappings: &mut Mappings, pid: u32) {
        let exit = [&words(&[pid, 1, pid, 1])[..], &1_u64.to_ne_bytes()].concat();
        apply(mappings, perf_sys::PERF_RECORD_EXIT, &exit);
    }

    /// Number of mappings of all processes, those that processes share once.
    fn distinct(mappings: &Mappings) -> usize {
        let spaces = mappings.processes.values().map(|space| (Arc::as_ptr(space), space.len()));
        spaces.collect::<HashMap<_, _>>().into_values().sum()
    }

    /// Each process of a crafted recording copies the mappings of its parent.
    #[test]
    fn mappings_of_all_processes_have_a_limit() {
        let mut mappings = Mappings::new(&Features::default());
        mappings.limit = 1000;
        (0..100).for_each(|page| map(&mut mappings, 1, page << 12));
        let is_mapped = |mappings: &Mappings, pid, page: u64| {
            mappings.at(pid, page << 12 | 0x800, false).is_some()
        };
        for pid in 2..200 {
            fork(&mut mappings, pid, 1);
            assert_eq!(mappings.count, distinct(&mappings));
            assert!(is_mapped(&mappings, pid, 99), "it shares them");
            map(&mut mappings, pid, 200 << 12);
            assert_eq!(mappings.count, distinct(&mappings));
            assert!(mappings.count <= 1000);
        }
        // Of nine processes, all is kept. Others lose what they shared, and then their own mapping.
        assert!(is_mapped(&mappings, 9, 99) && is_mapped(&mappings, 9, 200));
        assert!(!is_mapped(&mappings, 20, 99) && is_mapped(&mappings, 20, 200));
        assert!(!is_mapped(&mappings, 199, 99) && !is_mapped(&mappings, 199, 200));
        assert!(is_mapped(&mappings, 1, 99));
        let kept = (2..200).map(|pid| [99, 200].map(|page| is_mapped(&mappings, pid, page)));
        let lost: u64 = kept.map(|[old, new]| 100 * u64::from(!old) + u64::from(!new)).sum();
        assert_eq!(mappings.dropped(), lost);
        // There is room again.
        let most = EndedProcesses::MAX as u32;
        (2..200).chain(1000..1000 + most).for_each(|pid| exit(&mut mappings, pid));
        assert_eq!((mappings.count, distinct(&mappings)), (100, 100));
        fork(&mut mappings, 300, 1);
        map(&mut mappings, 300, 200 << 12);
        assert!(is_mapped(&mappings, 300, 99) && is_mapped(&mappings, 300, 200));
        assert_eq!(mappings.dropped(), lost);
    }

    /// The same process is forked again and again by one with many mappings.
    #[test]
    fn copies_of_mappings_have_a_limit() {
        const PAGES: u64 = 1000;
        const ROUNDS: u64 = 1000;
        let mut mappings = Mappings::new(&Features::default());
        (0..PAGES).for_each(|page| map(&mut mappings, 1, page << 12));
        mappings.copies = 5 * PAGES as usize;
        for _ in 0..ROUNDS {
            fork(&mut mappings, 2, 1);
            map(&mut mappings, 2, PAGES << 12);
            assert!(mappings.at(2, PAGES << 12, false).is_some());
            assert_eq!(mappings.count, distinct(&mappings));
        }
        let copied = PAGES * ROUNDS - mappings.dropped();
        assert!(copied <= 5 * PAGES + 2 * ROUNDS * COPIES_PER_RECORD as u64);
        assert!(copied > PAGES * ROUNDS / 2);
    }

    /// The record of the end of a process between `execve(2)` and its first mapping was lost.
    #[test]
    fn a_new_process_with_a_number_that_executed_a_program_keeps_what_it_inherits() {
        let mut mappings = Mappings::new(&Features::default());
        map(&mut mappings, 7, 0x1000);
        let comm = [&words(&[9, 9])[..], b"x\0\0\0\0\0\0\0"].concat();
        apply_with(&mut mappings, perf_sys::PERF_RECORD_COMM, 1 << 13, &comm);
        fork(&mut mappings, 9, 7);
        map(&mut mappings, 9, 0x3000);
        assert!([0x1800, 0x3800].iter().all(|address| mappings.at(9, *address, false).is_some()));
    }

    /// Checks of containers come and go: the program that they check is known as long as it runs.
    #[test]
    fn processes_that_run_are_known_longer_than_those_that_ended() {
        let mut mappings = Mappings::new(&Features::default());
        let place = [0x1000_u64, 0x1000, 0].map(u64::to_ne_bytes).concat();
        let map = |mappings: &mut Mappings, pid: u32| {
            let body = [&words(&[pid, pid])[..], &place, b"/bin/x\0\0"].concat();
            apply(mappings, perf_sys::PERF_RECORD_MMAP, &body);
            let file = mappings.file(mappings.at(pid, 0x1800, false).unwrap().file).unwrap();
            (file.process, file.other_processes.clone())
        };
        assert_eq!(map(&mut mappings, 1), (Some(1), vec![]));
        assert_eq!(map(&mut mappings, 1), (Some(1), vec![]));
        for pid in 2..100 {
            map(&mut mappings, pid);
            exit(&mut mappings, pid);
        }
        assert_eq!(map(&mut mappings, 100), (Some(100), vec![99, 98, 97, 96, 95, 94, 93, 1]));
        // Of those that run, the last ones.
        (101..109).for_each(|pid| _ = map(&mut mappings, pid));
        let running = (100..108).rev().collect();
        assert_eq!(map(&mut mappings, 108), (Some(108), running));
    }

    #[test]
    fn memory_has_the_names_that_perf_gives_it() {
        let mut mappings = Mappings::new(&Features::default());
        let mut name = |start: u64, name: &[u8]| {
            let map = [start, 0x1000, 0].map(u64::to_ne_bytes).concat();
            let map = [&words(&[7, 7])[..], &map, name].concat();
            apply(&mut mappings, perf_sys::PERF_RECORD_MMAP, &map);
            let file = mappings.at(7, start, false).and_then(|at| mappings.file(at.file)).unwrap();
            (file.name.clone(), file.is_perf_map)
        };
        assert_eq!(name(0xf7f0_0000, b"[vdso]\0\0"), ("[vdso32]".to_owned(), false));
        assert_eq!(name(0x7fff_0000_0000, b"[vdso]\0\0"), ("[vdso]".to_owned(), false));
        // Code of a compiler in a file in memory alone.
        let map = ("/tmp/perf-7.map".to_owned(), true);
        assert_eq!(name(0x1000, b"/memfd:jit (deleted)\0\0\0\0"), map);
    }

    #[test]
    fn code_without_a_file_has_the_jitdump_file_of_its_process() {
        let mut mappings = Mappings::new(&Features::default());
        let mut map = |pid, start: u64, name: &[u8]| {
            let place = [start, 0x1000, 0].map(u64::to_ne_bytes).concat();
            let body = [&words(&[pid, pid])[..], &place, name].concat();
            apply(&mut mappings, perf_sys::PERF_RECORD_MMAP, &body);
        };
        map(7, 0x1000, b"//anon\0\0");
        map(7, 0x2000, b"/w/jit-7.dump\0\0\0");
        map(7, 0x3000, b"//anon\0\0");
        map(8, 0x1000, b"//anon\0\0");
        map(8, 0x2000, b"/w/jit-x.dump\0\0\0");
        let jitdump = |pid, address| {
            let file = mappings.file(mappings.at(pid, address, false)?.file)?;
            file.jitdump.as_deref()
        };
        let dump = Some("/w/jit-7.dump");
        assert_eq!([jitdump(7, 0x1800), jitdump(7, 0x3800)], [dump; 2]);
        assert_eq!([jitdump(7, 0x2800), jitdump(8, 0x1800)], [None; 2]);
    }

    #[test]
    fn compiled_code_of_each_program_with_a_number_is_another_file() {
        let mut mappings = Mappings::new(&Features::default());
        let code = |mappings: &mut Mappings, name: &[u8]| {
            let place = [0x1000_u64, 0x1000, 0].map(u64::to_ne_bytes).concat();
            let body = [&words(&[7, 7])[..], &place, name].concat();
            apply(mappings, perf_sys::PERF_RECORD_MMAP, &body);
            let number = mappings.at(7, 0x1800, false).unwrap().file;
            let file = mappings.file(number).unwrap();
            (number, file.name.clone(), file.jitdump.is_some())
        };
        let name = || "/tmp/perf-7.map".to_owned();
        assert_eq!(code(&mut mappings, b"//anon\0\0"), (1, name(), false));
        code(&mut mappings, b"/w/jit-7.dump\0\0\0");
        assert_eq!(code(&mut mappings, b"//anon\0\0"), (1, name(), true));
        let comm = [&words(&[7, 7])[..], b"x\0\0\0\0\0\0\0"].concat();
        apply_with(&mut mappings, perf_sys::PERF_RECORD_COMM, 1 << 13, &comm);
        assert_eq!(code(&mut mappings, b"//anon\0\0"), (3, name(), false));
        // It is listed again.
        let listed = [&words(&[7, 1, 7, 1])[..], &0_u64.to_ne_bytes()].concat();
        apply(&mut mappings, perf_sys::PERF_RECORD_FORK, &listed);
        assert_eq!(code(&mut mappings, b"//anon\0\0"), (3, name(), false));
        fork(&mut mappings, 7, 1);
        assert_eq!(code(&mut mappings, b"//anon\0\0"), (4, name(), false));
    }

    /// The build ids and inodes of two files of one path, for which the recording lists these build ids.
    fn two_files_of_a_path(ids: &[BuildId]) -> [(Option<BuildId>, u64); 2] {
        let mut features = Features::default();
        let entry = |id: &BuildId| BuildIdEntry::new(*id, "/bin/x".into(), false);
        features.build_ids.extend(ids.iter().map(entry));
        let mut mappings = Mappings::new(&features);
        [(0x1000_u64, 5_u64), (0x2000, 6)].map(|(start, inode)| {
            let place = [start, 0x1000, 0].map(u64::to_ne_bytes).concat();
            let file = [0, inode, 0].map(u64::to_ne_bytes).concat();
            let body =
                [&words(&[7, 7])[..], &place, &file, &words(&[5, 2]), b"/bin/x\0\0"].concat();
            apply(&mut mappings, perf_sys::PERF_RECORD_MMAP2, &body);
            let at = mappings.at(7, start, false).unwrap();
            let file = mappings.file(at.file).unwrap();
            (file.build_id, file.inode.unwrap().inode)
        })
    }

    /// A program can be built again while it is recorded: the list of build ids has that of the last file.
    #[test]
    fn files_with_a_build_id_by_path_keep_their_inode() {
        let id = BuildId::new(&[7; 20]).unwrap();
        assert_eq!(two_files_of_a_path(&[id]), [(Some(id), 5), (Some(id), 6)]);
    }

    /// `perf record -a` of containers of two distributions: which file has which id is not known.
    #[test]
    fn files_of_a_path_with_several_build_ids_are_known_by_their_inode() {
        let ids = [1, 2].map(|byte| BuildId::new(&[byte; 20]).unwrap());
        assert_eq!(two_files_of_a_path(&ids), [(None, 5), (None, 6)]);
    }

    /// A program without a build id is built again, and has the inode of the one before.
    #[test]
    fn files_that_have_an_inode_one_after_another_are_several() {
        let mut attr = perf_sys::perf_event_attr::new(1, 9);
        attr.sample_type = perf_sys::PERF_SAMPLE_TIME;
        attr.set_sample_id_all(true);
        let layout = perf_monitor::RecordLayout::new(&attr);
        let mut mappings = Mappings::new(&Features::default());
        let mut map = |pid: u32, generation: u64, at: u64, name: &[u8]| {
            let place = [0x1000_u64, 0x1000, 0].map(u64::to_ne_bytes).concat();
            let file = [0, 5, generation].map(u64::to_ne_bytes).concat();
            let mut name = name.to_vec();
            name.resize((name.len() + 1).next_multiple_of(8), 0);
            let body =
                [&words(&[pid, pid])[..], &place, &file, &words(&[5, 2]), &name, &at.to_ne_bytes()]
                    .concat();
            let bytes = record(perf_sys::PERF_RECORD_MMAP2, 0, &body);
            let (raw, _) = RawRecord::split_first(&bytes, 0).unwrap();
            mappings.push(&layout.decode(raw).unwrap(), raw);
            let number = mappings.at(pid, 0x1800, false).unwrap().file;
            let file = mappings.file(number).unwrap();
            (number, file.generation, file.mapped_at.unwrap().nanos())
        };
        assert_eq!(map(7, 1, 10, b"/w/x"), (1, 1, 10));
        assert_eq!(map(8, 2, 20, b"/w/x"), (2, 2, 20));
        assert_eq!(map(9, 2, 30, b"/w/x"), (2, 2, 20));
        // The list of another part of the recording does not have it.
        assert_eq!(map(9, 0, 40, b"/w/x"), (2, 2, 20));
        assert_eq!(map(7, 1, 50, b"/w/x"), (1, 1, 10));
        // The first one was there before, and keeps the generation by which it is known.
        assert_eq!(map(7, 0, 60, b"/w/y"), (3, 0, 60));
        assert_eq!(map(8, 4, 70, b"/w/y"), (3, 0, 60));
        assert_eq!(map(9, 5, 80, b"/w/y"), (4, 5, 80));
        assert_eq!(map(9, 4, 90, b"/w/y"), (3, 0, 60));
        // A third one; one without a generation is the last that was added.
        assert_eq!(map(9, 6, 95, b"/w/y"), (5, 6, 95));
        assert_eq!(map(9, 5, 96, b"/w/y"), (4, 5, 80));
        assert_eq!(map(9, 0, 97, b"/w/y"), (5, 6, 95));
    }

    #[test]
    fn files_whose_path_is_no_text_are_not_the_same() {
        let mut mappings = Mappings::new(&Features::default());
        let mut map = |name: &[u8; 8]| {
            let place = [0x1000_u64, 0x1000, 0].map(u64::to_ne_bytes).concat();
            let body = [&words(&[7, 7])[..], &place, name].concat();
            apply(&mut mappings, perf_sys::PERF_RECORD_MMAP, &body);
            mappings.at(7, 0x1800, false).and_then(|at| mappings.file(at.file)).unwrap().clone()
        };
        let (first, second) = (map(b"/w/\xff\0\0\0\0"), map(b"/w/\xfe\0\0\0\0"));
        assert_eq!([&*first.name, &*second.name], ["/w/\u{fffd}"; 2]);
        assert_eq!(first.raw_name.as_deref(), Some(&b"/w/\xff"[..]));
        assert_eq!(second.raw_name.as_deref(), Some(&b"/w/\xfe"[..]));
        assert_eq!(map(b"/w/\xc3\xb6\0\0\0").raw_name, None);
    }

    #[test]
    fn a_name_with_several_build_ids_has_none() {
        let [first, second] = [1, 2].map(|byte| BuildId::new(&[byte; 20]).unwrap());
        let id = |name: &str, ids: &[BuildId]| {
            let mut features = Features::default();
            let entry = |id: &BuildId| BuildIdEntry::new(*id, name.to_owned(), false);
            features.build_ids.extend(ids.iter().map(entry));
            build_ids_of(&features).get(name).copied().flatten()
        };
        // Paths that are no text have one name.
        for name in ["/w/x", "/w/\u{fffd}"] {
            assert_eq!(id(name, &[first]), Some(first));
            assert_eq!(id(name, &[first, first]), Some(first));
            assert_eq!(id(name, &[first, second]), None);
            assert_eq!(id(name, &[first, second, second]), None);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_jitdump_file_has_the_bytes_of_its_path() {
        use std::os::unix::ffi::OsStrExt;
        let mut mappings = Mappings::new(&Features::default());
        let mut map = |start: u64, name: &[u8]| {
            let place = [start, 0x1000, 0].map(u64::to_ne_bytes).concat();
            let body = [&words(&[7, 7])[..], &place, name].concat();
            apply(&mut mappings, perf_sys::PERF_RECORD_MMAP, &body);
            mappings.at(7, start, false).and_then(|at| mappings.file(at.file)).unwrap().clone()
        };
        let dump = map(0x1000, b"/\xff/jit-7.dump\0\0\0");
        let code = map(0x2000, b"//anon\0\0");
        assert_eq!(dump.path().as_os_str().as_bytes(), b"/\xff/jit-7.dump");
        assert_eq!(code.jitdump_module().unwrap().path(), dump.path());
        assert_eq!(dump.jitdump_module(), None);
        assert_eq!(code.path(), Path::new("/tmp/perf-7.map"));
    }

    #[test]
    fn the_kernel_and_its_modules_have_the_place_of_their_boot() {
        const KERNEL: u16 = 1;
        let mut mappings = Mappings::new(&Features::default());
        let mut map = |addr: u64, len: u64, pgoff: u64, name: &[u8]| {
            let place = [addr, len, pgoff].map(u64::to_ne_bytes).concat();
            let body = [&words(&[u32::MAX, 0])[..], &place, name].concat();
            apply_with(&mut mappings, perf_sys::PERF_RECORD_MMAP, KERNEL, &body);
            let at = mappings.at(0, addr, true)?;
            let file = mappings.file(at.file).unwrap();
            let KernelReference { symbol, address } = file.reference.clone().unwrap();
            Some((at.file, file.name.clone(), symbol.into_string(), address))
        };
        let file = |number, name: &str, symbol: &str, address| {
            Some((number, name.to_owned(), symbol.to_owned(), address))
        };
        // The recorder did not see its addresses.
        assert_eq!(map(0, 0x1000, 0, b"[kernel.kallsyms]_text\0\0"), None);
        let first = file(0, Mappings::KERNEL, "_text", 0x2000);
        assert_eq!(map(0x1000, 0x9000, 0x2000, b"[kernel.kallsyms]_text\0\0"), first);
        let module = map(0x2_0000, 0x1000, 0, b"/lib/modules/6.1/a.ko\0\0\0");
        assert_eq!(module, file(1, "[a]", "[a]", 0x2_0000));
        assert_eq!(map(0x1000, 0x9000, 0x2000, b"[kernel.kallsyms]_text\0\0"), first);
        let second = file(2, Mappings::KERNEL, "_text", 0x3000);
        assert_eq!(map(0x3000, 0x9000, 0x3000, b"[kernel.kallsyms]_text\0\0"), second);
        assert!([0x1000, 0x2_0000].iter().all(|address| mappings.at(0, *address, true).is_none()));
    }

    #[test]
    fn functions_are_in_the_kernel_until_they_are_removed() {
        const TEXT: u64 = 0xffff_ffff_8000_0000;
        const KERNEL: u16 = 1;
        let mut mappings = Mappings::new(&Features::default());
        let map = [TEXT, 0x4000_0000, TEXT].map(u64::to_ne_bytes).concat();
        let map = [&words(&[u32::MAX, 0])[..], &map, b"[kernel.kallsyms]_text\0\0"].concat();
        apply_with(&mut mappings, perf_sys::PERF_RECORD_MMAP, KERNEL, &map);
        let symbol = |mappings: &mut Mappings, at: u64, len, name: &[u8], is_end: bool| {
            let kind = u32::from(perf_sys::PERF_RECORD_KSYMBOL_TYPE_BPF);
            let kind_and_flags = kind | u32::from(is_end) << 16;
            let place = (TEXT + at).to_ne_bytes();
            let body = [&place[..], &words(&[len, kind_and_flags]), name].concat();
            apply(mappings, perf_sys::PERF_RECORD_KSYMBOL, &body);
        };
        let at = |mappings: &Mappings, at: u64| {
            let found = mappings.at(7, TEXT + at, true).unwrap();
            let file = mappings.file(found.file).unwrap();
            assert!(file.is_kernel);
            let is_function = file.is_kernel_function;
            assert_eq!(is_function, found.address < TEXT);
            is_function.then(|| (file.name.clone(), found.address))
        };
        let function = |name: &str, address| Some((name.to_owned(), address));
        symbol(&mut mappings, 0x1000, 0x100, b"bpf_prog_a\0\0\0\0\0\0", false);
        symbol(&mut mappings, 0x1100, 0x80, b"bpf_prog_b\0\0\0\0\0\0", false);
        assert_eq!(at(&mappings, 0x10ff), function("bpf_prog_a", 0xff));
        assert_eq!(at(&mappings, 0x1100), function("bpf_prog_b", 0));
        assert_eq!([at(&mappings, 0xfff), at(&mappings, 0x1180)], [None, None]);
        symbol(&mut mappings, 0x1000, 0x100, b"bpf_prog_a\0\0\0\0\0\0", true);
        assert_eq!(at(&mappings, 0x10ff), None);
        assert_eq!(at(&mappings, 0x1100), function("bpf_prog_b", 0));
        // Another program where one was whose end is in no record.
        symbol(&mut mappings, 0x1140, 0x40, b"bpf_prog_a\0\0\0\0\0\0", false);
        assert_eq!(at(&mappings, 0x1150), function("bpf_prog_a", 0x10));
        assert_eq!(at(&mappings, 0x1100), None);
        // What has no code or no name is left out, and the kernel is no function.
        symbol(&mut mappings, 0x2000, 0, b"bpf_prog_c\0\0\0\0\0\0", false);
        symbol(&mut mappings, 0x2000, 9, b"\0\0\0\0\0\0\0\0", false);
        assert_eq!(at(&mappings, 0x2000), None);
        symbol(&mut mappings, 0x3000, 9, b"[kernel.kallsyms]\0\0\0\0\0\0\0", false);
        assert!(!mappings.file(0).unwrap().is_kernel_function);
        assert_eq!(mappings.files(), 3);
    }

    #[test]
    fn modules_have_the_build_id_of_their_file() {
        let id = BuildId::new(&[7; 20]).unwrap();
        let file = "/lib/modules/6.1/kernel/virtio-net.ko.xz";
        let mut features = Features::default();
        features.build_ids.push(BuildIdEntry::new(id, file.into(), true));
        for name in [&b"[virtio_net]\0\0\0\0"[..], b"/other/virtio-net.ko\0\0\0\0"] {
            let mut mappings = Mappings::new(&features);
            let place = [0x1000_u64, 0x1000, 0].map(u64::to_ne_bytes).concat();
            let body = [&words(&[u32::MAX, 0])[..], &place, name].concat();
            apply_with(&mut mappings, perf_sys::PERF_RECORD_MMAP, 1, &body);
            let at = mappings.at(0, 0x1800, true).unwrap();
            assert_eq!(mappings.file(at.file).unwrap().build_id, Some(id));
        }
    }

    #[test]
    fn modules_have_the_name_of_their_file() {
        assert_eq!(module_name("/lib/modules/6.1/kernel/net/virtio-net.ko.xz"), "[virtio_net]");
        assert_eq!(module_name("[virtio_net]"), "[virtio_net]");
    }
}
