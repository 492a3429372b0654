//! Callers in user space from registers and copied stacks.

use super::origin::Origin;
use perf_data::{Features, MappedFile, Mappings};
use perf_monitor::Sample;
use trace_symbols::{AddressSpaces, Architecture, Location, Module, ModuleId, Options, Registers};
use trace_timeline::sources::perf;

/// Follows the stacks of samples by the unwind tables of the mapped files.
pub(crate) struct Unwinder {
    unwinder: trace_symbols::Unwinder,
    /// The modules of the files.
    spaces: AddressSpaces,
    /// Their numbers, by the number of the file in [`Mappings`].
    modules: Vec<ModuleId>,
    architecture: Option<Architecture>,
    origin: Origin,
}

impl Unwinder {
    /// For a recording of a machine like this one.
    pub(crate) fn new(features: &Features) -> Self {
        Self::of(Origin::new(features), super::of_another_kernel(features).is_none())
    }

    /// For a recording that is made now.
    pub(crate) fn live() -> Self {
        Self::of(Origin::live(), true)
    }

    fn of(origin: Origin, is_of_this_kernel: bool) -> Self {
        let mut options = Options::default();
        options.kernel = is_of_this_kernel;
        // Files without a build id, of recordings without inodes or a known clock.
        options.unverified = true;
        let unwinder = trace_symbols::Unwinder::new(options);
        let architecture = Architecture::of_this_machine();
        let (spaces, modules) = (AddressSpaces::default(), Vec::new());
        Self { unwinder, spaces, modules, architecture, origin }
    }

    /// Adds the modules of new files.
    fn add_files(&mut self, mappings: &Mappings) {
        for file in (self.modules.len()..mappings.files()).filter_map(|n| mappings.file(n)) {
            let mut module = match (&*file.name, file.process) {
                // Its code has frame pointers, or none.
                ("[heap]" | "[stack]", Some(process)) => Module::jit(process),
                _ => self.origin.module(file),
            };
            // Another file of these contents can be there now.
            if module.build_id.is_some() || module.inode.is_some() {
                module = module.without_deleted();
            }
            self.modules.push(self.spaces.add_module(module));
        }
    }

    /// Gives a file that was not found another process that mapped it. Returns whether there is one.
    fn look_elsewhere(&mut self, number: usize, file: &MappedFile) -> bool {
        let module = self.modules.get(number).copied();
        let why = module.and_then(|module| self.unwinder.problem(module));
        let other = match why {
            Some(why) if why.is_of_missing_file() => self.origin.elsewhere(number, file),
            _ => None,
        };
        let is_other = other.is_some();
        other.into_iter().for_each(|other| _ = self.spaces.add_module(other));
        is_other
    }
}

impl perf::Unwinder for Unwinder {
    fn unwind(&mut self, sample: &Sample<'_>, mappings: &Mappings, out: &mut Vec<u64>) -> bool {
        let (Some((registers, stack)), Some(process)) = (sample.user_stack(), sample.pid) else {
            return true;
        };
        // A kernel thread has none.
        const NO_ABI: u64 = 0;
        const ABI_64: u64 = 2;
        if registers.abi == NO_ABI {
            return true;
        }
        // All processes outside of the PID namespace have this number.
        if process == 0 {
            return false;
        }
        // The registers and frames of 32-bit processes are others.
        let architecture = self.architecture.filter(|_| registers.abi == ABI_64);
        let registers = architecture
            .and_then(|architecture| Registers::of_sample(architecture, |bit| registers.get(bit)));
        let Some(registers) = registers else { return false };
        self.add_files(mappings);
        let start = out.len();
        loop {
            let Self { unwinder, spaces, modules, .. } = self;
            let mut last = None;
            let locate = |address| {
                let at = mappings.at(process, address, false)?;
                last = Some(at.file);
                let module = *modules.get(at.file)?;
                Some((Location { module, address: at.address }, spaces.module(module)?))
            };
            if unwinder.unwind(&registers, stack.copied(), locate, out).is_complete() {
                return true;
            }
            let file = last.and_then(|number| Some((number, mappings.file(number)?)));
            if !file.is_some_and(|(number, file)| self.look_elsewhere(number, file)) {
                return false;
            }
            out.truncate(start);
        }
    }

    fn forget_changed(&mut self) {
        self.unwinder.forget_changed(&self.spaces);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_data::{BuildId, BuildIdEntry};
    use perf_monitor::{RawRecord, Record, RecordLayout, SampleFlags, perf_event_attr};
    use trace_timeline::sources::perf::Unwinder as _;

    /// Puts a record together.
    fn record(type_: u32, body: &[u8]) -> Vec<u8> {
        let size = u16::try_from(8 + body.len()).unwrap();
        [&type_.to_ne_bytes()[..], &[0; 2], &size.to_ne_bytes(), body].concat()
    }

    const PROCESS: u32 = 7;

    /// Unwinds a sample of a program, whose build id is in the list of the recording.
    fn unwound(abi: u64) -> (Unwinder, bool, Vec<u64>) {
        const MMAP: u32 = 1;
        const SAMPLE: u32 = 9;
        let mut features = Features::of_this_machine();
        let id = BuildId::new(&[7; 20]).unwrap();
        features.build_ids = vec![BuildIdEntry::new(id, "/bin/x".into(), false)];
        let mut attr = perf_event_attr::default();
        let flags = SampleFlags::TID | SampleFlags::REGS_USER | SampleFlags::STACK_USER;
        attr.sample_type = flags.bits();
        const REGISTERS: usize = 33;
        attr.sample_regs_user = (1 << REGISTERS) - 1;
        let layout = RecordLayout::new(&attr);
        let ids = [PROCESS, PROCESS].map(u32::to_ne_bytes).concat();
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let place: Vec<u8> = words(&[0x1000, 0x1000, 0]);
        let map = record(MMAP, &[&ids[..], &place, b"/bin/x\0\0"].concat());
        let registers = if abi == 0 { 0 } else { REGISTERS };
        let registers = [vec![abi], vec![0x1800; registers]].concat();
        let stack: Vec<u8> = words(&[&registers[..], &[8, 0, 8]].concat());
        let sample = record(SAMPLE, &[&ids[..], &stack].concat());
        let raw = RawRecord::split_first(&map, 0).unwrap().0;
        let mut mappings = Mappings::new(&features);
        mappings.push(&layout.decode(raw).unwrap(), raw);
        let raw = RawRecord::split_first(&sample, 0).unwrap().0;
        let Ok(Record::Sample(sample)) = layout.decode(raw) else { panic!("no sample") };
        let (mut unwinder, mut out) = (Unwinder::new(&features), Vec::new());
        let is_whole = unwinder.unwind(&sample, &mappings, &mut out);
        (unwinder, is_whole, out)
    }

    #[test]
    fn files_have_the_build_id_of_the_list() {
        let (unwinder, is_whole, out) = unwound(2);
        if unwinder.architecture.is_none() {
            return;
        }
        assert_eq!((is_whole, out), (false, vec![0x1800]));
        let mut modules = unwinder.spaces.modules().map(|(_, module)| module);
        let program = modules.find(|module| &*module.name == "/bin/x").unwrap();
        assert_eq!(program.build_id, BuildId::new(&[7; 20]));
    }

    #[test]
    fn stacks_of_32_bit_processes_are_cut() {
        const ABIS: [u64; 2] = [0, 1];
        let found = ABIS.map(|abi| {
            let (_, is_whole, out) = unwound(abi);
            (is_whole, out)
        });
        // A kernel thread has no stack in user space.
        assert_eq!(found, [(true, vec![]), (false, vec![])]);
    }
}
