//! Callers in user space from registers and copied stacks.

use perf_data::{ClockReference, Features};
use perf_monitor::{FileId, RawRecord, Record, Sample};
use trace_common::{ClockDomain, EndedProcesses};
use trace_symbols::{
    AddressSpaces, Architecture, BuildId, Inode, Mapping, Module, Options, Registers,
};
use trace_timeline::Timestamp;
use trace_timeline::sources::perf;

/// Follows the stacks of samples by the unwind tables of the mapped files.
pub(crate) struct Unwinder {
    unwinder: trace_symbols::Unwinder,
    spaces: AddressSpaces,
    ended: EndedProcesses,
    architecture: Option<Architecture>,
    /// Whether the recording is made now: files are those that its processes see.
    is_live: bool,
    clock: Option<ClockReference>,
    /// The time of the first record that has one.
    start: Option<Timestamp>,
}

impl Unwinder {
    /// For a recording of a machine like this one.
    pub(crate) fn new(features: &Features) -> Self {
        Self::with_clock(features.clock, false, super::of_another_kernel(features).is_none())
    }

    /// For a recording that is made now.
    pub(crate) fn live() -> Self {
        Self::with_clock(ClockReference::now(ClockDomain::Monotonic), true, true)
    }

    fn with_clock(clock: Option<ClockReference>, is_live: bool, is_of_this_kernel: bool) -> Self {
        let mut options = Options::default();
        options.kernel = is_of_this_kernel;
        // Files without a build id, of recordings without inodes or a known clock.
        options.unverified = true;
        let unwinder = trace_symbols::Unwinder::new(options);
        let architecture = Architecture::of_this_machine();
        let spaces = AddressSpaces::default();
        let ended = EndedProcesses::default();
        Self { unwinder, spaces, ended, architecture, is_live, clock, start: None }
    }
}

impl Unwinder {
    /// The first record with a time: files that were mapped before must not change from then on.
    fn begin(&mut self, at: Timestamp) {
        self.start = Some(at);
        let mapped_at = self.clock.and_then(|clock| clock.realtime_at(at));
        let known: Vec<Module> = self.spaces.modules().map(|(_, module)| module.clone()).collect();
        for mut module in known {
            module.mapped_at = mapped_at;
            self.spaces.add_module(module);
        }
    }
}

impl perf::Unwinder for Unwinder {
    fn apply(&mut self, record: &Record<'_>, raw: RawRecord<'_>, at: Option<Timestamp>) {
        if let (None, Some(at)) = (self.start, at) {
            self.begin(at);
        }
        let mapped_at =
            self.clock.zip(at.or(self.start)).and_then(|(clock, at)| clock.realtime_at(at));
        let at = at.unwrap_or(Timestamp::MIN);
        match record {
            Record::Mmap(map)
                if !map.is_data && raw.cpu_mode() != perf_monitor::CpuMode::Kernel =>
            {
                let name = String::from_utf8_lossy(map.filename);
                let Some(mut module) = Module::of_mapping(&name, map.pid) else { return };
                match map.file {
                    Some(FileId::BuildId(id)) => module.build_id = BuildId::new(id),
                    Some(FileId::Inode { major, minor, inode, .. }) if inode != 0 => {
                        module.inode = Some(Inode { major, minor, inode });
                    }
                    _ => {}
                }
                module.mapped_at = mapped_at;
                if !self.is_live && module.kind == trace_symbols::ModuleKind::File {
                    module.process = None;
                }
                let module = self.spaces.add_module(module);
                let (start, end) = (map.addr, map.addr.saturating_add(map.len));
                self.spaces.map(map.pid, at, &Mapping { start, end, offset: map.pgoff, module });
            }
            // Without a time it lists a process, whose mappings follow.
            Record::Fork(fork) if fork.pid != fork.ppid && fork.time.nanos() != 0 => {
                // The number is used again.
                if self.ended.revive(fork.pid) {
                    self.spaces.exit(fork.pid);
                }
                self.spaces.fork(fork.ppid, fork.pid, at);
            }
            Record::Comm(comm) if comm.by_exec => {
                // The first thread has ended before, if another one executes the program.
                self.ended.revive(comm.pid);
                self.spaces.exec(comm.pid);
            }
            // Memory would grow with the number of processes that a long recording has seen.
            Record::Exit(exit) if exit.pid == exit.tid => {
                if let Some(process) = self.ended.end(exit.pid) {
                    self.spaces.remove_process(process);
                }
            }
            _ => {}
        }
    }

    fn unwind(&mut self, sample: &Sample<'_>, at: Timestamp, out: &mut Vec<u64>) -> bool {
        let (Some((registers, stack)), Some(process)) = (sample.user_stack(), sample.pid) else {
            return true;
        };
        // A kernel thread has none.
        const NO_ABI: u64 = 0;
        if registers.abi == NO_ABI {
            return true;
        }
        let registers = self
            .architecture
            .and_then(|architecture| Registers::of_sample(architecture, |bit| registers.get(bit)));
        let Some(registers) = registers else { return false };
        let locate = |address| self.spaces.code_at(process, address, at);
        self.unwinder.unwind(&registers, stack.copied(), locate, out).is_complete()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_monitor::{RecordLayout, perf_event_attr};
    use trace_timeline::sources::perf::Unwinder as _;

    /// Puts a record together.
    fn record(type_: u32, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let size = u16::try_from(8 + body.len()).unwrap();
        let header = [&type_.to_ne_bytes()[..], &[0; 2], &size.to_ne_bytes()].concat();
        [header, body].concat()
    }

    fn ids(ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|id| id.to_ne_bytes()).collect()
    }

    const MMAP: u32 = 1;
    const EXIT: u32 = 4;
    const FORK: u32 = 7;

    /// A page of code at an address of a process.
    fn map(process: u32, start: u64) -> Vec<u8> {
        let place = [start, 0x1000, 0].map(u64::to_ne_bytes).concat();
        record(MMAP, &[&ids(&[process, process]), &place, b"/bin/x\0\0"])
    }

    fn apply(unwinder: &mut Unwinder, at: i64, bytes: &[u8]) {
        let layout = RecordLayout::new(&perf_event_attr::default());
        let (raw, _) = RawRecord::split_first(bytes, 0).unwrap();
        unwinder.apply(&layout.decode(raw).unwrap(), raw, Some(Timestamp::from_nanos(at)));
    }

    #[test]
    fn threads_keep_the_mappings_after_the_first_one_has_ended() {
        let mut unwinder = Unwinder::with_clock(None, false, false);
        let has_code = |unwinder: &Unwinder, at| {
            let at = Timestamp::from_nanos(at);
            [0x1800, 0x2800].map(|address| unwinder.spaces.code_at(7, address, at).is_some())
        };
        apply(&mut unwinder, 1, &map(7, 0x1000));
        let exit = record(EXIT, &[&ids(&[7, 1, 7, 1]), &2_u64.to_ne_bytes()]);
        apply(&mut unwinder, 2, &exit);
        apply(&mut unwinder, 3, &map(7, 0x2000));
        assert_eq!(has_code(&unwinder, 4), [true; 2]);
        // Another process with this number.
        let fork = record(FORK, &[&ids(&[7, 1, 7, 1]), &5_u64.to_ne_bytes()]);
        apply(&mut unwinder, 5, &fork);
        assert_eq!([4, 6].map(|at| has_code(&unwinder, at)), [[true; 2], [false; 2]]);
    }

    #[test]
    fn processes_that_ended_long_ago_are_forgotten() {
        let mut unwinder = Unwinder::with_clock(None, false, false);
        let has_code = |unwinder: &Unwinder, process| {
            unwinder.spaces.code_at(process, 0x1800, Timestamp::from_nanos(2)).is_some()
        };
        for process in 1..=2000 {
            apply(&mut unwinder, 1, &map(process, 0x1000));
            // A thread of it does not end the process.
            for tid in [process + 5000, process] {
                let exit = record(EXIT, &[&ids(&[process, 1, tid, 1]), &1_u64.to_ne_bytes()]);
                apply(&mut unwinder, 1, &exit);
            }
        }
        assert!(has_code(&unwinder, 2000), "its last samples are unwound");
        assert!(!has_code(&unwinder, 1));
    }
}
