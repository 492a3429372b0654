//! Names of addresses in recordings: of the kernel, of mapped files, of perf maps. An address
//! without a known symbol has none: nothing is guessed.

pub(crate) mod lines;
pub(crate) mod live;
pub(crate) mod managed;
mod origin;
mod problems;
pub(crate) mod unwind;

use crate::failure::OneLine;
pub(crate) use lines::with_lines;
use managed::Managed;
use origin::Origin;
use perf_data::{BuildIds, Features, MappedFile, Mappings, perf_event_attr};
use perf_monitor::{CallchainContext, CpuMode, FileId, Mmap, RawRecord, Record, RecordLayout};
use problems::Problems;
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::sync::Arc;
use trace_common::{ClockDomain, is_memory_of_no_file};
use trace_symbols::{Debuginfod, Frame, Location, Module, ModuleId, Unresolved, build_id};
use trace_timeline::sources::perf::{Function, PerfSource, Symbolizer};

/// The mappings of all processes, as records report them, with the symbols of their files.
pub(crate) struct Symbols {
    mappings: Mappings,
    files: RefCell<Files>,
    /// Of the files that are mapped now.
    build_ids: BuildIds,
    /// Whether a file was mapped since, whose program can have been built again.
    is_stale: Cell<bool>,
}

/// A recording with the functions and callers of its samples, and the frames without a function. With
/// `lines` functions have files and lines, and those that were inlined are frames.
pub(crate) fn named(
    source: PerfSource,
    features: &Features,
    lines: bool,
) -> (PerfSource, Problems) {
    let files = Files::of(features, Origin::new(features), lines, None);
    let problems = files.problems.clone();
    (source.with_unwinder(unwind::Unwinder::new(features)).with_symbols(files), problems)
}

/// The symbols of files, by the number of the file in [`Mappings`]. They are read when they are first
/// needed.
pub(crate) struct Files {
    symbolizer: trace_symbols::Symbolizer,
    known: Vec<Option<Known>>,
    origin: Origin,
    /// Whether addresses have names that had none when they were first asked for.
    has_more_names: bool,
    /// Why the kernel has no symbols, if it is not the running one.
    kernel: Option<&'static str>,
    problems: Problems,
    /// Number of samples with the stack that is named.
    samples: u64,
    /// Methods of .NET processes.
    managed: Managed,
}

/// A file of which an address was asked for.
#[derive(Clone, Copy)]
struct Known {
    module: ModuleId,
    /// Why nothing describes its code.
    refusal: Option<&'static Unresolved>,
    /// Whether the jitdump file that describes its code was added.
    has_jitdump: bool,
}

/// A function that is not inlined.
#[derive(Clone)]
pub(crate) struct Symbol {
    /// As its source has it, for Rust and C++.
    pub(crate) name: Arc<str>,
    /// As the file has it.
    pub(crate) mangled: Arc<str>,
    /// The offset of the address in it.
    pub(crate) offset: u64,
}

/// What is at an address.
pub(crate) struct Place<'a> {
    /// The address in the file; in the kernel the address itself.
    pub(crate) address: u64,
    /// The file, `[kernel.kallsyms]` or a module.
    pub(crate) file: Option<&'a str>,
    pub(crate) symbol: Option<Symbol>,
    mode: CpuMode,
}

impl Place<'_> {
    /// The mark of the mode, as perf has it: `[k]` for the kernel, `[.]` for user space.
    pub(crate) const fn level(&self) -> &'static str {
        match self.mode {
            CpuMode::Kernel => "[k]",
            CpuMode::User => "[.]",
            CpuMode::GuestKernel => "[g]",
            CpuMode::GuestUser => "[u]",
            _ => "[H]",
        }
    }
}

/// The mode of a frame of a call chain, whose sample is of this mode; `None` if the frame is no address.
pub(crate) const fn mode_of(context: CallchainContext, of_sample: CpuMode) -> Option<CpuMode> {
    match context {
        CallchainContext::None => Some(of_sample),
        CallchainContext::Kernel => Some(CpuMode::Kernel),
        CallchainContext::User => Some(CpuMode::User),
        CallchainContext::UserDeferred => None,
        CallchainContext::Hypervisor => Some(CpuMode::Hypervisor),
        CallchainContext::GuestKernel => Some(CpuMode::GuestKernel),
        CallchainContext::GuestUser => Some(CpuMode::GuestUser),
        _ => Some(CpuMode::Unknown),
    }
}

/// Writes the symbol and the file of a place: ` main+0x4 (/bin/app)`.
pub(crate) fn put_place(
    line: &mut String,
    place: &Place<'_>,
    is_demangled: bool,
) -> std::fmt::Result {
    match &place.symbol {
        Some(Symbol { name, mangled, offset }) => {
            let name = if is_demangled { name } else { mangled };
            write!(line, " {}+{offset:#x}", OneLine(name))?;
        }
        None => line.push_str(" [unknown]"),
    }
    write!(line, " ({})", OneLine(place.file.unwrap_or("[unknown]")))
}

impl Symbols {
    /// The symbols for a recording.
    pub(crate) fn new(features: &Features) -> Self {
        Self::of(features, Files::new(features))
    }

    /// The symbols for records that are read while they are made.
    pub(crate) fn live() -> Self {
        let features = Features::of_this_machine();
        Self::of(&features, Files::of(&features, Origin::live(), false, None))
    }

    fn of(features: &Features, files: Files) -> Self {
        let mut attr = perf_event_attr::default();
        attr.set_use_clockid(true);
        attr.clockid = perf_monitor::clock_id(ClockDomain::Monotonic).unwrap_or_default();
        let build_ids = BuildIds::new(&attr);
        let (mappings, files) = (Mappings::new(features), RefCell::new(files));
        Self { mappings, files, build_ids, is_stale: Cell::new(false) }
    }

    /// The mappings up to now.
    pub(crate) const fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    /// Prints the files whose code has no functions, and those that may be others.
    pub(crate) fn print_problems(&self) {
        self.files.borrow().print_problems();
    }

    /// Names addresses again that had no name, if there is one now: call this now and then.
    pub(crate) fn look_again(&mut self) {
        self.files.get_mut().forget_changed();
    }

    /// Number of files that were mapped so far.
    pub(crate) fn files(&self) -> usize {
        self.mappings.files()
    }

    /// Applies a record, if it is about mappings.
    pub(crate) fn apply(&mut self, record: &Record<'_>, raw: RawRecord<'_>) {
        self.mappings.push(record, raw);
    }

    /// Applies a record that was made now: files that are mapped are known by their build ids, so that one
    /// that is replaced later is another one.
    pub(crate) fn apply_live(
        &mut self,
        record: &Record<'_>,
        layout: &RecordLayout,
        raw: RawRecord<'_>,
    ) {
        if !matches!(record, Record::Mmap(_)) {
            return self.apply(record, raw);
        }
        let raw = self.build_ids.apply(layout, raw);
        if let Ok(record) = layout.decode(raw) {
            self.mappings.push(&record, raw);
            // A program without a build id can have been built again, with the same inode.
            if matches!(&record, Record::Mmap(map) if has_inode(map)) {
                self.is_stale.set(true);
            }
        }
    }

    /// What is at an address of a process, in the kernel or in user space. An address of a virtual machine
    /// is none of the process that runs it.
    pub(crate) fn at(&self, pid: u32, address: u64, mode: CpuMode) -> Place<'_> {
        // Many files can be mapped between two names.
        if self.is_stale.take() {
            self.files.borrow_mut().symbolizer.forget_changed();
        }
        let is_kernel = mode == CpuMode::Kernel;
        // All processes outside of the PID namespace have the number 0.
        let is_known = is_kernel || mode == CpuMode::User && pid != 0;
        let mapped = self.mappings.at(pid, address, is_kernel).filter(|_| is_known);
        let file = mapped.and_then(|mapped| self.mappings.file(mapped.file));
        let symbol = match (mapped, file) {
            (Some(mapped), Some(file)) => {
                self.files.borrow_mut().symbol(mapped.file, file, mapped.address)
            }
            // Without the record of the kernel's mapping, its own symbols are used.
            _ if is_kernel => self.kernel_symbol(address),
            _ => None,
        };
        let kernel = (is_kernel && symbol.is_some()).then_some(Mappings::KERNEL);
        Place {
            address: mapped.map_or(address, |mapped| mapped.address),
            file: file.map(|file| file.name.as_str()).or(kernel),
            symbol,
            mode,
        }
    }

    fn kernel_symbol(&self, address: u64) -> Option<Symbol> {
        let file = self.mappings.file(0)?;
        self.files.borrow_mut().symbol(0, file, address)
    }

    /// A function of the kernel with the offset in it, for the texts of tracepoints.
    pub(crate) fn kernel_name(&self, address: u64) -> Option<String> {
        let mapped = self.mappings.at(0, address, true);
        let (number, address) = mapped.map_or((0, address), |at| (at.file, at.address));
        let file = self.mappings.file(number)?;
        // It can be any number: one without a function is no frame that has none.
        let found = symbol(self.files.borrow_mut().frames(number, file, address));
        let Symbol { mangled, offset, .. } = found?;
        Some(format!("{mangled}+{offset:#x}"))
    }
}

/// Whether a file is mapped that its inode alone identifies.
fn has_inode(map: &Mmap<'_>) -> bool {
    matches!(map.file, Some(FileId::Inode { inode, .. }) if inode != 0)
        && !is_memory_of_no_file(&String::from_utf8_lossy(map.filename))
}

/// The function that has the code at an address.
fn symbol(frames: &[Frame]) -> Option<Symbol> {
    let frame = frames.last()?;
    let (name, mangled) = (Arc::clone(&frame.function), Arc::clone(&frame.symbol));
    Some(Symbol { name, mangled, offset: frame.offset? })
}

/// Why the kernel of a recording is not known to be the running one. `None` if it is.
fn of_another_kernel(features: &Features) -> Option<&'static str> {
    let ours = Features::of_this_machine();
    match (features.build_id(Mappings::KERNEL), build_id::of_kernel()) {
        (Some(theirs), Some(ours)) if theirs == ours => None,
        (Some(_), Some(_)) => Some("the recording is of another kernel than the running one"),
        _ if features.os_release.is_none() => Some("the recording does not say of which kernel"),
        _ if features.os_release == ours.os_release && features.hostname == ours.hostname => None,
        _ => Some("the recording is of another kernel or machine"),
    }
}

impl Files {
    /// The symbols for a recording.
    ///
    /// Those of the kernel are of the running one, if the recording is of the same. Frames are those of
    /// perf: inlined functions are part of the one that has their code.
    pub(crate) fn new(features: &Features) -> Self {
        Self::of(features, Origin::new(features), false, None)
    }

    fn of(features: &Features, origin: Origin, lines: bool, servers: Option<Debuginfod>) -> Self {
        let mut options = trace_symbols::Options::default();
        let kernel = of_another_kernel(features);
        options.kernel = kernel.is_none();
        // Files without a build id, of recordings without inodes or a known clock. They are reported.
        options.unverified = true;
        options.lines = lines;
        options.debuginfod = servers;
        let symbolizer = trace_symbols::Symbolizer::new(options);
        let (known, managed, problems) = (Vec::new(), Managed::default(), Problems::default());
        Self {
            symbolizer,
            known,
            origin,
            has_more_names: false,
            kernel,
            problems,
            samples: 1,
            managed,
        }
    }

    /// The symbols for a recording that is made now, also of processes in containers, with inlined
    /// functions, files and lines. Debug information that is not there is asked of `servers`.
    pub(crate) fn live(servers: Option<Debuginfod>) -> Self {
        let features = Features::of_this_machine();
        Self::of(&features, Origin::live(), true, servers)
    }

    /// Names the code of these methods, too.
    pub(crate) fn with_methods(self, managed: Managed) -> Self {
        Self { managed, ..self }
    }

    /// The methods whose code is named, to add more.
    pub(crate) const fn methods_mut(&mut self) -> &mut Managed {
        &mut self.managed
    }

    /// The number of samples with the stack that is named next: it is named once for all of them.
    pub(crate) const fn set_samples(&mut self, samples: u64) {
        self.samples = samples;
    }

    /// Forgets the names of files that were changed since they were mapped, and what just-in-time compilers
    /// have added to. Returns whether names are others now.
    pub(crate) fn forget_changed(&mut self) -> bool {
        let has_more = std::mem::take(&mut self.has_more_names);
        let is_changed = self.symbolizer.forget_changed();
        self.symbolizer.forget_incomplete() | is_changed | has_more
    }

    /// Prints the files whose code has no functions, and the assemblies whose PDB file is not used.
    pub(crate) fn print_problems(&self) {
        self.problems.print();
        lines::print_problems(self.managed.problems());
    }

    /// The functions at an address of a file: inlined ones first.
    fn at(
        &mut self,
        number: usize,
        file: &MappedFile,
        address: u64,
    ) -> Result<&[Frame], &Unresolved> {
        if !self.has_place(file) {
            return Err(&Unresolved::OtherKernel);
        }
        let Known { module, refusal, has_jitdump } = self.known(number, file);
        if let Some(why) = refusal {
            return Err(why);
        }
        // A compiler can map it after its first code has run.
        let dump = if has_jitdump { None } else { file.jitdump_module() };
        if let Some(mut dump) = dump {
            dump.process = file.process;
            self.add_jitdump(number, module, dump);
        }
        let location = Location { module, address };
        let is_file_of_process = self.origin.is_live && !file.is_kernel && !file.is_perf_map;
        while is_file_of_process && self.is_missing(location) {
            let Some(other) = self.origin.elsewhere(number, file) else { break };
            self.symbolizer.spaces_mut().add_module(other);
            self.symbolizer.refresh(module);
            self.has_more_names |= !self.is_missing(location);
        }
        self.symbolizer.resolve(location).frames
    }

    /// What is known of a file.
    fn known(&mut self, number: usize, file: &MappedFile) -> Known {
        if let Some(known) = self.known.get(number).copied().flatten() {
            return known;
        }
        let module = self.symbolizer.spaces_mut().add_module(self.origin.module(file));
        // What was read before can be that of an earlier process with the number.
        if file.is_perf_map && self.origin.is_live {
            self.symbolizer.refresh(module);
        }
        let refusal = self.origin.refusal(file);
        let known = Known { module, refusal, has_jitdump: false };
        if self.known.len() <= number {
            self.known.resize(number + 1, None);
        }
        if let Some(slot) = self.known.get_mut(number) {
            *slot = Some(known);
        }
        known
    }

    /// Whether the file at a location is not there, or not the one that was mapped.
    fn is_missing(&mut self, location: Location) -> bool {
        self.symbolizer.resolve(location).frames.is_err_and(Unresolved::is_of_missing_file)
    }

    /// Whether the place of the kernel in memory is known: that of now is that of live recordings alone.
    const fn has_place(&self, file: &MappedFile) -> bool {
        !file.is_kernel
            || file.is_kernel_function
            || self.origin.is_live
            || file.reference.is_some()
    }

    /// Adds the jitdump file of a process, which describes its code.
    fn add_jitdump(&mut self, number: usize, module: ModuleId, dump: Module) {
        self.symbolizer.spaces_mut().add_module(dump);
        self.symbolizer.refresh(module);
        self.has_more_names = true;
        if let Some(Some(known)) = self.known.get_mut(number) {
            known.has_jitdump = true;
        }
    }

    /// Whether a file with functions is known to be the one that was mapped.
    fn is_verified(&self, file: &MappedFile) -> bool {
        let is_file = !file.is_kernel && !file.is_perf_map && file.name.starts_with('/');
        let has_time = self.origin.mapped_at(file).is_some();
        !is_file || file.build_id.is_some() || (file.inode.is_some() && has_time)
    }

    /// Counts the damaged records of the jitdump file that describes just-in-time compiled code.
    fn count_damaged(&self, number: usize, file: &MappedFile) {
        let known = self.known.get(number).copied().flatten();
        let damaged = known.map_or(0, |known| self.symbolizer.damaged_records(known.module));
        if let Some(process) = file.process.filter(|_| damaged > 0) {
            self.problems.damaged(process, damaged);
        }
    }

    /// Counts an address with functions if the file may be another one, or its debug information is not used.
    fn count_named(&self, number: usize, file: &MappedFile) {
        self.count_damaged(number, file);
        let known = self.known.get(number).copied().flatten();
        if let Some(why) = known.and_then(|known| self.symbolizer.problem(known.module)) {
            match file.is_perf_map {
                true => self.problems.perf_map_only(&file.name, why.to_string()),
                false => self.problems.partial(&file.name, why.to_string()),
            }
        }
        if !self.is_verified(file) {
            self.problems.unverified(&file.name);
        }
    }

    /// The function that has the code at an address of a file. Without one, the reason is counted.
    fn symbol(&mut self, number: usize, file: &MappedFile, address: u64) -> Option<Symbol> {
        let symbol = symbol(self.frames(number, file, address));
        match symbol {
            Some(_) => self.count_named(number, file),
            None => self.missing(number, file, address),
        }
        symbol
    }

    /// The functions at an address of a file; none if they are not known.
    fn frames(&mut self, number: usize, file: &MappedFile, address: u64) -> &[Frame] {
        self.at(number, file, address).unwrap_or_default()
    }
}

impl Symbolizer for Files {
    fn functions(
        &mut self,
        number: usize,
        file: &MappedFile,
        address: u64,
        each: &mut dyn FnMut(Function<'_>),
    ) {
        if let Some((name, line)) = self.managed.at(number, address) {
            let file = line.as_ref().map_or("", |line| &line.file);
            return each(Function { name, file, line: line.as_ref().map_or(0, |line| line.line) });
        }
        let is_stub = file.is_perf_map && self.managed.has(number);
        let frames = self.frames(number, file, address);
        if is_stub && frames.is_empty() {
            return each(Function { name: Managed::STUB, ..Function::default() });
        }
        for frame in frames {
            let file = frame.file.as_deref().unwrap_or_default();
            each(Function { name: &frame.function, file, line: frame.line });
        }
        if !frames.is_empty() {
            self.count_named(number, file);
        }
    }

    fn missing(&mut self, number: usize, file: &MappedFile, address: u64) {
        let problems = self.problems.clone();
        let samples = self.samples;
        const NO_PLACE: &str = "the recording does not say where the kernel was in memory";
        let place = (!self.has_place(file)).then_some(NO_PLACE);
        let kernel = self.kernel.filter(|_| file.is_kernel).or(place);
        if let Err(why) = self.at(number, file, address) {
            let why = kernel.map_or_else(|| why.to_string(), str::to_owned);
            problems.missing(&file.name, why, samples);
        }
        self.count_damaged(number, file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_symbols::PerfMapProblem;

    #[test]
    fn a_kernel_at_an_unknown_place_has_no_names() {
        let mut features = Features::of_this_machine();
        features.build_ids.clear();
        let mappings = Mappings::new(&features);
        let kernel = mappings.file(0).unwrap();
        let mut files = Files::new(&features);
        assert_eq!(files.at(0, kernel, 1), Err(&Unresolved::OtherKernel));
        // Without root, the kernel hides its symbols.
        files.origin.is_live = true;
        assert_ne!(files.at(0, kernel, 1), Err(&Unresolved::OtherKernel));
    }

    /// Process `pid` maps code of a file or of none, at a time.
    fn map(mappings: &mut Mappings, pid: u32, start: u64, name: &str, at: u64) {
        const MMAP: u32 = 1;
        let mut name = name.as_bytes().to_vec();
        name.resize((name.len() + 1).next_multiple_of(8), 0);
        let place = [start, 0x1000, 0].map(u64::to_ne_bytes).concat();
        let ids = [pid, pid].map(u32::to_ne_bytes).concat();
        push(mappings, MMAP, &[ids, place, name].concat(), at);
    }

    /// Adds a record with this body and time.
    fn push(mappings: &mut Mappings, type_: u32, body: &[u8], at: u64) {
        let mut attr = perf_event_attr::new(1, 0);
        attr.sample_type = perf_monitor::SampleFlags::TIME.bits();
        attr.set_sample_id_all(true);
        let layout = RecordLayout::new(&attr);
        let size = u16::try_from(8 + body.len() + 8).unwrap();
        let header = [&type_.to_ne_bytes()[..], &[0; 2], &size.to_ne_bytes()].concat();
        let bytes = [&header[..], body, &at.to_ne_bytes()].concat();
        let raw = RawRecord::split_first(&bytes, 0).unwrap().0;
        mappings.push(&layout.decode(raw).unwrap(), raw);
    }

    /// The function at an address of a process.
    fn named(mappings: &Mappings, files: &mut Files, address: u64) -> Result<String, Unresolved> {
        let at = mappings.at(std::process::id(), address, false).unwrap();
        let frames = files.at(at.file, mappings.file(at.file).unwrap(), at.address);
        frames.map(|frames| frames[0].function.to_string()).map_err(Clone::clone)
    }

    /// Numbers of processes are used again, and on each machine.
    #[test]
    fn just_in_time_compiled_code_has_no_names_of_another_process() {
        let refused = |features: &Features, at| {
            let mut mappings = Mappings::new(features);
            map(&mut mappings, std::process::id(), 0x1000, "//anon", at);
            match named(&mappings, &mut Files::new(features), 0x1800) {
                Err(Unresolved::PerfMapRefused(why)) => Some(why),
                _ => None,
            }
        };
        let mut features = Features::of_this_machine();
        features.clock = perf_data::ClockReference::now(ClockDomain::Monotonic);
        let now = perf_monitor::now(ClockDomain::Monotonic).unwrap().nanos().unsigned_abs();
        assert_eq!(refused(&features, now), None);
        // Before this process was started.
        assert_eq!(refused(&features, 1), Some(PerfMapProblem::OtherProcess));
        features.hostname = Some("another.machine".to_owned());
        assert_eq!(refused(&features, now), Some(PerfMapProblem::OtherMachine));
    }

    /// The number of a process is used again while its perf map is in memory.
    #[test]
    fn compiled_code_has_no_names_of_an_earlier_process_that_was_recorded() {
        const FORK: u32 = 7;
        let pid = std::process::id();
        let map_file = format!("/tmp/perf-{pid}.map");
        let mut mappings = Mappings::new(&Features::of_this_machine());
        let mut files = Files::live(None);
        let mut name = |name: &str, at: u64| {
            std::fs::write(&map_file, format!("100000 1000 {name}\n")).unwrap();
            let ids = [pid, 1, pid, 1].map(u32::to_ne_bytes).concat();
            push(&mut mappings, FORK, &[ids, at.to_ne_bytes().to_vec()].concat(), at);
            map(&mut mappings, pid, 0x10_0000, "//anon", at);
            named(&mappings, &mut files, 0x10_0800)
        };
        let names = [name("first", 1), name("other", 2)];
        std::fs::remove_file(&map_file).unwrap();
        assert_eq!(names, ["first", "other"].map(|name| Ok::<_, Unresolved>(name.to_owned())));
    }

    #[test]
    fn a_jitdump_file_that_is_mapped_later_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let path = dir.path().join(format!("jit-{pid}.dump"));
        // The header of 40 bytes, and code: its kind, size and time, 5 words, its name.
        let mut dump = [0x4a69_5444, 1, 40, 62, 0, pid].map(u32::to_le_bytes).concat();
        dump.extend([0; 16]);
        dump.extend([0, 16 + 40 + 9].map(u32::to_le_bytes).concat());
        dump.extend([1_u64, 0, 0x1000, 0x1000, 0x1000, 1].map(u64::to_le_bytes).concat());
        dump.extend(b"compiled\0");
        std::fs::write(&path, dump).unwrap();
        let mut mappings = Mappings::new(&Features::of_this_machine());
        let mut files = Files::live(None);
        map(&mut mappings, pid, 0x1000, "//anon", 1);
        assert!(named(&mappings, &mut files, 0x1800).is_err());
        map(&mut mappings, pid, 0x4000, path.to_str().unwrap(), 2);
        assert_eq!(named(&mappings, &mut files, 0x1800), Ok("compiled".to_owned()));
        assert!(files.forget_changed(), "the address is named again");
    }

    #[test]
    fn damaged_records_of_a_jitdump_file_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let path = dir.path().join(format!("jit-{pid}.dump"));
        // As above, behind code without contents.
        let mut dump = [0x4a69_5444, 1, 40, 62, 0, pid].map(u32::to_le_bytes).concat();
        dump.extend([0; 16]);
        dump.extend([0_u32, 16, 0, 0].map(u32::to_le_bytes).concat());
        dump.extend([0, 16 + 40 + 9].map(u32::to_le_bytes).concat());
        dump.extend([1_u64, 0, 0x1000, 0x1000, 0x1000, 1].map(u64::to_le_bytes).concat());
        dump.extend(b"compiled\0");
        std::fs::write(&path, dump).unwrap();
        let mut mappings = Mappings::new(&Features::of_this_machine());
        map(&mut mappings, pid, 0x1000, "//anon", 1);
        map(&mut mappings, pid, 0x4000, path.to_str().unwrap(), 2);
        let at = mappings.at(pid, 0x1800, false).unwrap();
        let mut files = Files::live(None);
        for _ in 0..2 {
            assert!(files.symbol(at.file, mappings.file(at.file).unwrap(), at.address).is_some());
        }
        let line = format!("process {pid}: 1 damaged record of its jitdump file left out");
        assert_eq!(files.problems.lines(), [line]);
    }

    /// A check in a container maps the libraries of the program that it checks, and ends.
    #[test]
    fn files_are_looked_for_where_each_process_sees_them() {
        let mut mappings = Mappings::new(&Features::default());
        let mut origin = Origin::live();
        [7, 8, 9].into_iter().for_each(|pid| map(&mut mappings, pid, 0x1000, "/lib/x.so", 1));
        let mut tried = |mappings: &Mappings| {
            let file = mappings.file(1).unwrap();
            let next = || origin.elsewhere(1, file).map(|module| module.process.unwrap());
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        assert_eq!(tried(&mappings), [9, 8, 7]);
        assert!(tried(&mappings).is_empty());
        map(&mut mappings, 10, 0x1000, "/lib/x.so", 2);
        assert_eq!(tried(&mappings), [10]);
    }

    #[test]
    fn a_kernel_without_symbols_has_a_reason() {
        let why = |features: &Features| Files::new(features).kernel.unwrap_or_default();
        let mut features = Features::of_this_machine();
        features.build_ids.clear();
        assert_eq!(why(&features), "");
        features.os_release = Some("2.6.32".to_owned());
        assert!(why(&features).contains("another kernel"));
        assert!(why(&Features::default()).contains("does not say of which kernel"));
    }
}
