//! Callers of functions, from the registers and the stack of a thread.

mod registers;
mod rule;
mod tables;

use crate::elf::Elf;
use crate::error::{Result, Unresolved};
use crate::module::{Module, ModuleId, ModuleKind};
use crate::options::{ALL_TABLES, Options};
use crate::source;
use crate::spaces::{AddressSpaces, Location};
use gimli::UnwindContext;
use std::collections::HashMap;
use std::fmt;
use tables::Tables;

pub use registers::{Architecture, Registers};
use rule::{Caller, Rule, Stack, UnknownCaller};

/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 1 << 10;
/// Rules that are kept, of addresses that were asked for.
const MAX_RULES: usize = 1 << 16;

/// The reason why a stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StackEnd {
    /// The last frame is the outermost one: that of the start of the program or of the thread.
    Outermost,
    /// The copied part of the stack ends. Frames are missing.
    Truncated,
    /// The last frame is the first one on this stack; its caller has another one, such as a goroutine
    /// whose code runs on the stack of the thread. Frames are missing.
    OtherStack,
    /// Nothing describes the code of the last frame, and it has no frame pointer; its file cannot be
    /// read or is another one ([`Unwinder::problem`]); or the stack does not have the described
    /// contents. Frames are missing.
    Unknown,
    /// There are more than 1024 frames.
    TooDeep,
}

impl StackEnd {
    /// Whether no frame is missing.
    pub const fn is_complete(self) -> bool {
        matches!(self, Self::Outermost)
    }
}

/// Finds the callers of functions from the registers and the copied stack of a thread, as samples of
/// perf events have them (`PERF_SAMPLE_REGS_USER`, `PERF_SAMPLE_STACK_USER`).
///
/// | code | source |
/// | --- | --- |
/// | native code | `.eh_frame`, else `.debug_frame` of the file, else of its separate debug file |
/// | Go programs, also stripped ones | the bytes of the frame at each instruction, from the runtime's own table (Go 1.18 to 1.27) |
/// | vdso | `.eh_frame` of its image |
/// | anything else, such as just-in-time compiled code | the chain of frame pointers |
///
/// The tables of a file are read when one of its addresses is first met. A file is used on the same
/// conditions as for names: see the documentation of the crate. The descriptions are searched in an
/// index that is made here, not in `.eh_frame_hdr`, so that a damaged one has no effect.
///
/// ```
/// use trace_symbols::{AddressSpaces, Architecture, Registers, Timestamp, Unwinder};
///
/// # fn sample() -> Option<(u32, fn(u32) -> Option<u64>, Vec<u8>)> { None }
/// let Some(architecture) = Architecture::of_this_machine() else { return };
/// let spaces = AddressSpaces::default();
/// let mut unwinder = Unwinder::default();
/// // `sample_regs_user` is `architecture.sample_regs_user()`.
/// let Some((process, register, stack)) = sample() else { return };
/// let Some(registers) = Registers::of_sample(architecture, register) else { return };
/// let mut addresses = Vec::new();
/// let locate = |address| spaces.code_at(process, address, Timestamp::MAX);
/// let end = unwinder.unwind(&registers, &stack, locate, &mut addresses);
/// println!("{} frames, {end:?}", addresses.len());
/// ```
///
/// # Correctness
///
/// All registers that the compiler's descriptions refer to are restored, also those of a signal's
/// frame. A stack that cannot be followed ends, with the reason: see [`StackEnd`].
pub struct Unwinder {
    options: Options,
    files: HashMap<ModuleId, FileTables>,
    /// Bytes of the tables of all files.
    bytes: u64,
    rules: HashMap<Location, Rule>,
    context: UnwindContext<usize>,
}

/// What was read of a file.
struct FileTables {
    /// The process below whose root directory it was looked for first.
    process: Option<u32>,
    /// Whether it was at its path here, too, and not only where the process sees it. `None` of an image.
    was_here: Option<bool>,
    tables: Result<Option<Tables>>,
}

impl FileTables {
    /// Reads the tables of a module. `total` is the number of bytes of all tables.
    fn open(module: &Module, options: &Options, total: &mut u64) -> Self {
        // Before the file is read, which takes a while.
        let is_file = module.kind == ModuleKind::File;
        let was_here = is_file.then(|| source::is_here(module, options));
        let tables = match module.kind {
            ModuleKind::File if *total > options.max_total_bytes => {
                Err(Unresolved::TooLarge { what: ALL_TABLES, size: *total })
            }
            ModuleKind::File | ModuleKind::Vdso => Tables::open(module, options),
            _ => Ok(None),
        };
        let this = Self { process: module.process, was_here, tables };
        *total = total.saturating_add(this.bytes());
        this
    }

    /// The bytes of the tables.
    fn bytes(&self) -> u64 {
        match &self.tables {
            Ok(Some(tables)) => tables.bytes(),
            _ => 0,
        }
    }

    /// Whether the file is no longer the one whose tables were read.
    fn is_replaced(&self, module: &Module, options: &Options) -> bool {
        let was_here = self.was_here.filter(|_| self.tables.is_ok());
        was_here.is_some_and(|was_here| source::is_replaced(module, was_here, options))
    }
}

impl fmt::Debug for Unwinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, files, bytes: _, rules, context: _ } = self;
        f.debug_struct("Unwinder")
            .field("options", options)
            .field("files", &files.len())
            .field("rules", &rules.len())
            .finish_non_exhaustive()
    }
}

impl Default for Unwinder {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Unwinder {
    /// An unwinder that has not read any file.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            files: HashMap::new(),
            bytes: 0,
            rules: HashMap::new(),
            context: UnwindContext::new(),
        }
    }

    /// Appends the addresses of a stack: the instruction of the sample first, then return addresses.
    /// For the function of a return address, ask for the address minus 1. Of a function that a signal
    /// interrupted, the address of its instruction plus 1 is appended, so that the same holds.
    ///
    /// `stack` is the memory from the stack pointer on. `locate` returns the module and the place in
    /// it at an address of the process at that time
    /// ([`AddressSpaces::code_at`](crate::AddressSpaces::code_at)). A return address that is not one
    /// of code ends the stack.
    pub fn unwind<'m>(
        &mut self,
        registers: &Registers,
        stack: &[u8],
        mut locate: impl FnMut(u64) -> Option<(Location, &'m Module)>,
        out: &mut Vec<u64>,
    ) -> StackEnd {
        let mut registers = registers.clone();
        let stack = Stack { start: registers.floor, bytes: stack };
        let mut is_exact = true;
        let mut code = locate(registers.ip);
        out.push(registers.ip);
        for _ in 1..MAX_FRAMES {
            let Some((location, module)) = code else { return StackEnd::Unknown };
            let Some((rule, tables)) = self.rule(location, module, registers.architecture()) else {
                return StackEnd::Unknown;
            };
            match rule.apply(tables, &mut registers, stack, is_exact) {
                Ok(Caller::Found { is_exact: exact }) => is_exact = exact,
                Ok(Caller::Outermost) => return StackEnd::Outermost,
                Ok(Caller::OtherStack) => return StackEnd::OtherStack,
                Err(UnknownCaller::Truncated) => return StackEnd::Truncated,
                Err(UnknownCaller::Invalid) => return StackEnd::Unknown,
            }
            let ip = registers.ip;
            let call = if is_exact { Some(ip) } else { ip.checked_sub(1) };
            let Some(call) = call else { return StackEnd::Unknown };
            code = locate(call);
            let Some(after) = call.checked_add(1).filter(|_| code.is_some()) else {
                return StackEnd::Unknown;
            };
            out.push(after);
        }
        StackEnd::TooDeep
    }

    /// The reason why the file of a module has no unwind tables. `None` if it has some, or none of its
    /// addresses was met. A file that is not there is looked for again when the module has another
    /// [process](Module::process).
    pub fn problem(&self, module: ModuleId) -> Option<&Unresolved> {
        self.files.get(&module)?.tables.as_ref().err()
    }

    /// Uses the tables of an ELF file in memory for a module.
    ///
    /// # Errors
    ///
    /// [`Unresolved::NotElf`], [`Unresolved::Malformed`] and [`Unresolved::TooLarge`].
    pub fn add_image(&mut self, module: ModuleId, image: Vec<u8>) -> Result<()> {
        let tables = Tables::of(&Elf::from_bytes(image, self.options.max_bytes)?, None)?;
        self.rules.retain(|location, _| location.module != module);
        let file = FileTables { process: None, was_here: None, tables: Ok(tables) };
        self.bytes = self.bytes.saturating_add(file.bytes());
        let old = self.files.insert(module, file);
        self.bytes = self.bytes.saturating_sub(old.map_or(0, |old| old.bytes()));
        Ok(())
    }

    /// Forgets the tables of files without a build id that were changed since they were mapped, on the same
    /// conditions as [`Symbolizer::forget_changed`](crate::Symbolizer::forget_changed) does with names: stacks
    /// end there. Returns whether there are some. `spaces` has the modules of the addresses that were unwound.
    pub fn forget_changed(&mut self, spaces: &AddressSpaces) -> bool {
        let options = &self.options;
        let mut forgotten = Vec::new();
        for (id, file) in &mut self.files {
            let module = spaces.module(*id);
            if module.is_some_and(|module| file.is_replaced(module, options)) {
                self.bytes = self.bytes.saturating_sub(file.bytes());
                file.tables = Err(Unresolved::Replaced);
                forgotten.push(*id);
            }
        }
        self.rules.retain(|location, _| !forgotten.contains(&location.module));
        !forgotten.is_empty()
    }

    /// The rule at a place. `None` if the file cannot be used: its code may not have frame pointers.
    fn rule(
        &mut self,
        location: Location,
        module: &Module,
        architecture: Architecture,
    ) -> Option<(&Rule, Option<&Tables>)> {
        let (options, total) = (&self.options, &mut self.bytes);
        let mut open = || FileTables::open(module, options, total);
        let file = self.files.entry(location.module).or_insert_with(&mut open);
        // It has no bytes.
        let is_missing = file.tables.as_ref().is_err_and(Unresolved::is_of_missing_file);
        if is_missing && file.process != module.process {
            *file = open();
        }
        let tables = file.tables.as_ref().ok()?.as_ref();
        let tables = tables.filter(|tables| tables.architecture == architecture);
        if self.rules.len() >= MAX_RULES && !self.rules.contains_key(&location) {
            self.rules.clear();
        }
        let context = &mut self.context;
        let rule = self.rules.entry(location).or_insert_with(|| {
            let found = tables.and_then(|tables| tables.rule(location.address, context));
            found.unwrap_or(Rule::FramePointer)
        });
        Some((rule, tables))
    }
}
