//! Names of addresses in recordings: of the kernel, of mapped files, of perf maps. An address
//! without a known symbol has none: nothing is guessed.

pub(crate) mod lines;
pub(crate) mod live;
pub(crate) mod managed;
mod problems;
pub(crate) mod unwind;

use crate::failure::OneLine;
pub(crate) use lines::with_lines;
use managed::Managed;
use perf_data::{ClockReference, Features, MappedFile, Mappings};
use perf_monitor::{CallchainContext, CpuMode, RawRecord, Record};
use problems::Problems;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Arc;
use trace_common::ClockDomain;
use trace_symbols::{
    BuildId, Debuginfod, Frame, Location, Module, ModuleId, ModuleKind, Unresolved, build_id,
};
use trace_timeline::sources::perf::{Function, PerfSource, Symbolizer};

/// The mappings of all processes, as records report them, with the symbols of their files.
pub(crate) struct Symbols {
    mappings: Mappings,
    files: RefCell<Files>,
}

/// A recording with the functions and callers of its samples, and the frames without a function. With
/// `lines` functions have files and lines, and those that were inlined are frames.
pub(crate) fn named(
    source: PerfSource,
    features: &Features,
    lines: bool,
) -> (PerfSource, Problems) {
    let files = Files::with_lines(features, lines, None);
    let problems = files.problems.clone();
    (source.with_unwinder(unwind::Unwinder::new(features)).with_symbols(files), problems)
}

/// The symbols of files, by the number of the file in [`Mappings`]. They are read when they are first
/// needed.
pub(crate) struct Files {
    symbolizer: trace_symbols::Symbolizer,
    modules: Vec<Option<ModuleId>>,
    /// Whether the recording is made now: files are those that its processes see.
    is_live: bool,
    /// Whether a file was found below the root directory of another process.
    has_other_files: bool,
    /// Why the kernel has no symbols, if it is not the running one.
    kernel: Option<&'static str>,
    /// Whether the recording is of this machine: its files have the inodes of the recording.
    is_ours: bool,
    /// That of the records. The perf clock cannot be related to others.
    clock: Option<ClockReference>,
    problems: Problems,
    /// Number of samples with the stack that is named.
    samples: u64,
    /// Methods of .NET processes.
    managed: Managed,
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
        Self::of(&features, Files { is_live: true, ..Files::new(&features) })
    }

    fn of(features: &Features, files: Files) -> Self {
        Self { mappings: Mappings::new(features), files: RefCell::new(files) }
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
        self.mappings.apply(record, raw);
    }

    /// What is at an address of a process, in the kernel or in user space. An address of a virtual machine
    /// is none of the process that runs it.
    pub(crate) fn at(&self, pid: u32, address: u64, mode: CpuMode) -> Place<'_> {
        let is_kernel = mode == CpuMode::Kernel;
        // All processes outside of the PID namespace have the number 0.
        let is_known = is_kernel || mode == CpuMode::User && pid != 0;
        let mapped = self.mappings.at(pid, address, is_kernel).filter(|_| is_known);
        let file = mapped.and_then(|mapped| self.mappings.file(mapped.file));
        let symbol = match (mapped, file) {
            (Some(mapped), Some(file)) => {
                symbol(self.files.borrow_mut().frames(mapped.file, file, mapped.address))
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
        symbol(self.files.borrow_mut().frames(0, file, address))
    }

    /// A function of the kernel with the offset in it, for the texts of tracepoints.
    pub(crate) fn kernel_name(&self, address: u64) -> Option<String> {
        let Symbol { mangled, offset, .. } = self.at(0, address, CpuMode::Kernel).symbol?;
        Some(format!("{mangled}+{offset:#x}"))
    }
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
        Self::with_lines(features, false, None)
    }

    fn with_lines(features: &Features, lines: bool, servers: Option<Debuginfod>) -> Self {
        let mut options = trace_symbols::Options::default();
        let is_ours = features.hostname == Features::of_this_machine().hostname;
        let kernel = of_another_kernel(features);
        options.kernel = kernel.is_none();
        // Files without a build id, of recordings without inodes or a known clock. They are reported.
        options.unverified = true;
        options.lines = lines;
        options.debuginfod = servers;
        let symbolizer = trace_symbols::Symbolizer::new(options);
        let clock = features.clock;
        let (modules, managed, problems) = (Vec::new(), Managed::default(), Problems::default());
        Self {
            symbolizer,
            modules,
            is_live: false,
            has_other_files: false,
            kernel,
            is_ours,
            clock,
            problems,
            samples: 1,
            managed,
        }
    }

    /// The symbols for a recording that is made now, also of processes in containers, with inlined
    /// functions, files and lines. Debug information that is not there is asked of `servers`.
    pub(crate) fn live(servers: Option<Debuginfod>) -> Self {
        let features = Features::of_this_machine();
        let clock = ClockReference::now(ClockDomain::Monotonic);
        Self { is_live: true, clock, ..Self::with_lines(&features, true, servers) }
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
        let is_other_file = std::mem::take(&mut self.has_other_files);
        let is_changed = self.symbolizer.forget_changed();
        self.symbolizer.forget_incomplete() | is_changed | is_other_file
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
        if self.modules.len() <= number {
            self.modules.resize(number + 1, None);
        }
        let module = self.modules.get(number).copied().flatten().unwrap_or_else(|| {
            self.add_jitdump(file);
            let module = self.module(file);
            let module = self.symbolizer.spaces_mut().add_module(module);
            if let Some(known) = self.modules.get_mut(number) {
                *known = Some(module);
            }
            module
        });
        let location = Location { module, address };
        if self.has_other_process(module, file) && self.is_missing(location) {
            let other = self.module(file);
            self.symbolizer.spaces_mut().add_module(other);
            self.symbolizer.refresh(module);
            self.has_other_files = true;
        }
        self.symbolizer.resolve(location).frames
    }

    /// Whether the file at a location is not there, or not the one that was mapped.
    fn is_missing(&mut self, location: Location) -> bool {
        let why = self.symbolizer.resolve(location).frames.err();
        matches!(why, Some(Unresolved::File(_) | Unresolved::BuildId { .. } | Unresolved::Replaced))
    }

    /// Whether the file of a module was looked for below the root directory of a process that is not the last
    /// one which mapped it. The first one, such as that of a container, can have ended before.
    fn has_other_process(&self, module: ModuleId, file: &MappedFile) -> bool {
        let module = self.symbolizer.spaces().module(module);
        self.is_live
            && module.is_some_and(|module| {
                module.kind == ModuleKind::File && module.process != file.process
            })
    }

    /// Whether the place of the kernel in memory is known: that of now is that of live recordings alone.
    const fn has_place(&self, file: &MappedFile) -> bool {
        !file.is_kernel || file.is_kernel_function || self.is_live || file.reference.is_some()
    }

    /// Adds the jitdump file of a process, which describes its code.
    fn add_jitdump(&mut self, file: &MappedFile) {
        if let Some(path) = &file.jitdump {
            let mut dump = Module::file(path, None);
            dump.process = file.process;
            self.symbolizer.spaces_mut().add_module(dump);
        }
    }

    /// Whether a file with functions is known to be the one that was mapped.
    fn is_verified(&self, file: &MappedFile) -> bool {
        let is_file = !file.is_kernel && !file.is_perf_map && file.name.starts_with('/');
        let has_time = self.clock.is_some() && file.mapped_at.is_some();
        !is_file || file.build_id.is_some() || (file.inode.is_some() && has_time)
    }

    /// The functions at an address of a file; none if they are not known.
    fn frames(&mut self, number: usize, file: &MappedFile, address: u64) -> &[Frame] {
        self.at(number, file, address).unwrap_or_default()
    }

    /// Whether a build id of the list by path is known to be that of a file which replaced the mapped one
    /// before the recorder made the list.
    fn is_of_another(&self, id: BuildId, file: &MappedFile) -> bool {
        let Some(inode) = file.inode.filter(|_| self.is_ours && !self.is_live) else {
            return false;
        };
        let is_unchanged = match build_id::changed(std::process::id(), &file.name, inode) {
            Some(changed) => {
                let mapped_at = self.clock.zip(file.mapped_at);
                let mapped_at = mapped_at.and_then(|(clock, at)| clock.realtime_at(at));
                mapped_at.is_none_or(|at| build_id::is_unchanged_since(changed, at))
            }
            None => false,
        };
        !is_unchanged && build_id::of_file(&file.name) == Some(id)
    }

    /// The module of a file.
    fn module(&self, file: &MappedFile) -> Module {
        let mut module = file.module(self.clock.as_ref());
        if module.kind == ModuleKind::File {
            module.build_id = module.build_id.filter(|id| !self.is_of_another(*id, file));
            module.process = file.process.filter(|_| self.is_live);
        }
        module
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
        if frames.is_empty() {
            return;
        }
        let module = self.modules.get(number).copied().flatten();
        if let Some(why) = module.and_then(|module| self.symbolizer.problem(module)) {
            self.problems.partial(&file.name, why.to_string());
        }
        if !self.is_verified(file) {
            self.problems.unverified(&file.name);
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_at_an_unknown_place_has_no_names() {
        let mut features = Features::of_this_machine();
        features.build_ids.clear();
        let mappings = Mappings::new(&features);
        let kernel = mappings.file(0).unwrap();
        let mut files = Files::new(&features);
        assert_eq!(files.at(0, kernel, 1), Err(&Unresolved::OtherKernel));
        // Without root, the kernel hides its symbols.
        files.is_live = true;
        assert_ne!(files.at(0, kernel, 1), Err(&Unresolved::OtherKernel));
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
