//! Call chains with the files and functions of their frames.

use super::deferred::{Chain, Promise};
use crate::tables::{Frame, Mapping, MappingId, StackId, Tables};
use hashbrown::HashMap;
use perf_data::{Entry, Features, MappedFile, Mappings, RecordedEvent};
use perf_monitor::{Callchain, CallchainContext, CpuMode, RawRecord, Record, Sample};
use std::fmt;
use std::ops::Range;

/// Names the functions of call chains.
///
/// This crate reads no symbols of files: a program that does implements this for
/// [`PerfSource::with_symbols`](super::PerfSource::with_symbols).
pub trait Symbolizer {
    /// Passes the functions at an address of a file, as [`MappedAddress`](perf_data::MappedAddress)
    /// has it, to `each`: inlined ones first, the one that has the code last. `number` identifies the
    /// file in the recording. None if they are not known.
    fn functions(
        &mut self,
        number: usize,
        file: &MappedFile,
        address: u64,
        each: &mut dyn FnMut(Function<'_>),
    );

    /// A frame at an address of a file has no function. Unlike [`Symbolizer::functions`], this is called
    /// for each frame.
    fn missing(&mut self, number: usize, file: &MappedFile, address: u64) {
        let _ = (number, file, address);
    }
}

/// Finds the callers of user space of samples that have registers and a copy of the stack
/// ([`Sample::user_stack`]), as of `perf record --call-graph dwarf`.
///
/// This crate reads no files: a program that does implements this for
/// [`PerfSource::with_unwinder`](super::PerfSource::with_unwinder).
pub trait Unwinder {
    /// Appends the addresses of a stack: the instruction of the sample, then return addresses. The mappings
    /// are those at the time of the sample. Returns whether no frame is missing.
    fn unwind(&mut self, sample: &Sample<'_>, mappings: &Mappings, out: &mut Vec<u64>) -> bool;

    /// Files may have changed since they were mapped:
    /// [`PerfSource::forget_names`](super::PerfSource::forget_names) was called.
    fn forget_changed(&mut self) {}
}

/// A function at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers construct it")]
pub struct Function<'a> {
    /// The name.
    pub name: &'a str,
    /// The source file; empty if it is unknown.
    pub file: &'a str,
    /// The line in the source file; 0 if it is unknown.
    pub line: u32,
}

/// The function of the innermost frame of a thread that was preempted: it could have gone on.
pub const PREEMPTED: &str = "[preempted]";

/// Maximum number of frames of a stack, innermost first.
const MAX_FRAMES: usize = 1 << 10;

/// Maximum number of named addresses in the cache.
const MAX_CACHED: usize = 1 << 18;

/// The files that are mapped into processes, and addresses that were named.
pub(super) struct Stacks {
    mappings: Mappings,
    symbols: Option<Box<dyn Symbolizer + Send>>,
    unwinder: Option<Box<dyn Unwinder + Send>>,
    /// Addresses of a stack in user space.
    addresses: Vec<u64>,
    /// Stacks that the unwinder could not follow to their end.
    pub(super) cut: u64,
    /// The mapped parts of files, by the number of the file.
    parts: Vec<Vec<Part>>,
    /// The numbers of the files.
    numbers: HashMap<MappingId, usize>,
    names: Names,
    frames: Vec<Frame>,
}

/// A part of a file that a process has mapped.
#[derive(Clone, Copy, Debug)]
struct Part {
    id: MappingId,
    /// Its positions in the file.
    first: u64,
    end: u64,
    /// The address in memory of position 0.
    base: u64,
}

/// Mapped parts of a file that are distinguished: programs have one or two.
const MAX_PARTS: usize = 4;

impl fmt::Debug for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stacks").field("files", &self.mappings.files()).finish_non_exhaustive()
    }
}

/// Names of addresses.
#[derive(Default)]
struct Names {
    /// Ranges of the functions, by file and address.
    known: HashMap<(usize, u64), Range<usize>>,
    /// Frames without mapping and address.
    functions: Vec<Frame>,
}

impl Names {
    /// Appends a frame with its function and the inlined ones; as it is if they are not known.
    fn push(
        &mut self,
        frame: Frame,
        (number, file, call): (usize, &MappedFile, u64),
        symbols: &mut dyn Symbolizer,
        tables: &mut Tables,
        frames: &mut Vec<Frame>,
    ) {
        if self.known.len() >= MAX_CACHED {
            *self = Self::default();
        }
        let functions = &mut self.functions;
        let range = self.known.entry((number, call)).or_insert_with(|| {
            let start = functions.len();
            symbols.functions(number, file, call, &mut |function| {
                let Function { name, file, line } = function;
                let [function, file] = [name, file].map(|text| tables.text(text.as_bytes()));
                functions.push(Frame { function, file, line, ..Frame::default() });
            });
            start..functions.len()
        });
        let named = self.functions.get(range.clone()).unwrap_or_default();
        if named.is_empty() {
            symbols.missing(number, file, call);
            frames.push(frame);
        }
        let Frame { mapping, address, .. } = frame;
        frames.extend(named.iter().map(|named| Frame { mapping, address, ..*named }));
    }
}

/// Appends the stack that the last branch records of the CPU have. Returns whether they are those of calls
/// without a return (`perf record --call-graph lbr`), and not the last branches (`perf record -b`).
fn of_branches(sample: &Sample<'_>, entry: &Entry<'_>, addresses: &mut Vec<u64>) -> bool {
    let event = entry.session.event_of(entry.raw);
    let event = event.and_then(|number| entry.session.events().get(number));
    let are_calls = |event: &RecordedEvent| {
        event.attr.branch_sample_type & perf_sys::PERF_SAMPLE_BRANCH_CALL_STACK != 0
    };
    let Some(branches) = sample.branch_stack.filter(|_| event.is_some_and(are_calls)) else {
        return false;
    };
    // In the kernel, all that is known of the innermost function is its entry.
    let in_user = sample.ip.filter(|_| entry.raw.cpu_mode() == CpuMode::User);
    let innermost = in_user.or_else(|| branches.iter().next().map(|call| call.to));
    addresses.extend(innermost);
    // A call has the address of its instruction, where other stacks have that of the next one.
    addresses.extend(branches.iter().map(|call| call.from.saturating_add(1)));
    true
}

impl Stacks {
    pub(super) fn new(features: &Features) -> Self {
        Self {
            mappings: Mappings::new(features),
            symbols: None,
            unwinder: None,
            addresses: Vec::new(),
            cut: 0,
            parts: Vec::new(),
            numbers: HashMap::new(),
            names: Names::default(),
            frames: Vec::new(),
        }
    }

    pub(super) fn set_symbols(&mut self, symbols: Box<dyn Symbolizer + Send>) {
        self.symbols = Some(symbols);
    }

    pub(super) fn set_unwinder(&mut self, unwinder: Box<dyn Unwinder + Send>) {
        self.unwinder = Some(unwinder);
    }

    pub(super) fn apply(&mut self, record: &Record<'_>, raw: RawRecord<'_>) {
        self.mappings.push(record, raw);
    }

    /// Number of mappings that were not kept.
    pub(super) const fn dropped_mappings(&self) -> u64 {
        self.mappings.dropped()
    }

    /// Finds the addresses of user space that are not in the call chain: the instruction of the sample,
    /// then return addresses.
    fn unwind(&mut self, sample: &Sample<'_>, entry: &Entry<'_>) {
        self.addresses.clear();
        if of_branches(sample, entry, &mut self.addresses) {
            return;
        }
        let is_possible = sample.user_stack().is_some();
        if let Some(unwinder) = self.unwinder.as_mut().filter(|_| is_possible) {
            let is_whole = unwinder.unwind(sample, &self.mappings, &mut self.addresses);
            self.cut += u64::from(!is_whole);
        }
    }

    /// The call chain of a sample, with the callers that the unwinder finds; without one, its
    /// instruction address.
    pub(super) fn stack(
        &mut self,
        sample: &Sample<'_>,
        entry: &Entry<'_>,
        tables: &mut Tables,
    ) -> Chain {
        let (pid, mode) = (sample.pid.unwrap_or_default(), entry.raw.cpu_mode());
        self.unwind(sample, entry);
        let unwound = std::mem::take(&mut self.addresses);
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        let (mut last, mut cookie) = (None, None);
        for frame in sample.callchain.iter().flat_map(Callchain::frames).take(MAX_FRAMES) {
            let mode = match frame.context {
                CallchainContext::None => mode,
                CallchainContext::Kernel => CpuMode::Kernel,
                CallchainContext::User if !unwound.is_empty() => continue,
                CallchainContext::User => CpuMode::User,
                // Not an address.
                CallchainContext::UserDeferred => {
                    cookie = cookie.or(Some(frame.ip)).filter(|_| unwound.is_empty());
                    continue;
                }
                _ => CpuMode::Unknown,
            };
            // The innermost address of each context is that of an instruction, others are return
            // addresses.
            let is_return = last.replace(frame.context) == Some(frame.context);
            self.frame(pid, frame.ip, mode, is_return, tables, &mut frames);
        }
        for (depth, ip) in unwound.iter().take(MAX_FRAMES.saturating_sub(frames.len())).enumerate()
        {
            self.frame(pid, *ip, CpuMode::User, depth > 0, tables, &mut frames);
        }
        self.addresses = unwound;
        let is_of_user = frames.is_empty();
        if let (true, Some(ip)) = (is_of_user, sample.ip) {
            self.frame(pid, ip, mode, false, tables, &mut frames);
        }
        let stack = tables.stack(&frames);
        self.frames = frames;
        let promise = cookie.zip(stack).map(|(cookie, stack)| {
            let kernel = Some(stack).filter(|_| !is_of_user);
            Promise { pid, tid: sample.tid.unwrap_or_default(), cookie, kernel }
        });
        Chain { stack, promise }
    }

    /// The stack of these frames of the kernel, and of the addresses in user space outside of them.
    pub(super) fn join(
        &mut self,
        pid: u32,
        kernel: Option<StackId>,
        user: &[u64],
        tables: &mut Tables,
    ) -> Option<StackId> {
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        frames.extend(kernel.map_or(&[][..], |kernel| tables.frames(kernel)));
        for (depth, ip) in user.iter().take(MAX_FRAMES.saturating_sub(frames.len())).enumerate() {
            self.frame(pid, *ip, CpuMode::User, depth > 0, tables, &mut frames);
        }
        let stack = tables.stack(&frames);
        self.frames = frames;
        stack
    }

    pub(super) fn locate(&self, pid: u32, address: u64) -> Option<(usize, u64)> {
        self.mappings.at(pid, address, false).map(|at| (at.file, at.address))
    }

    /// The stack of a thread that was preempted there.
    pub(super) fn preempted(&self, stack: Option<StackId>, tables: &mut Tables) -> Option<StackId> {
        let function = tables.text(PREEMPTED.as_bytes());
        let mut frames = vec![Frame { function, ..Frame::default() }];
        frames.extend(stack.map_or(&[][..], |stack| tables.frames(stack)));
        tables.stack(&frames)
    }

    /// Asks the symbolizer again for addresses whose names are known.
    pub(super) fn forget_names(&mut self) {
        self.names = Names::default();
        if let Some(unwinder) = &mut self.unwinder {
            unwinder.forget_changed();
        }
    }

    /// The same stack with the names of its functions.
    pub(super) fn name(
        &mut self,
        stack: StackId,
        symbols: &mut dyn Symbolizer,
        tables: &mut Tables,
    ) -> Option<StackId> {
        let unnamed = tables.frames(stack).to_vec();
        let mut frames = Vec::with_capacity(unnamed.len());
        let mut inner = None;
        for frame in unnamed {
            let is_kernel = frame.mapping.is_some_and(|id| tables.mapping(id).is_kernel);
            // As above.
            let is_return = inner.replace(is_kernel) == Some(is_kernel);
            let call = frame.address.saturating_sub(u64::from(is_return));
            let mapping = frame.mapping.filter(|_| frame.function.is_empty());
            let number = mapping.and_then(|mapping| self.numbers.get(&mapping).copied());
            match number.and_then(|number| Some((number, self.mappings.file(number)?, call))) {
                Some(place) => self.names.push(frame, place, symbols, tables, &mut frames),
                None => frames.push(frame),
            }
        }
        tables.stack(&frames)
    }

    /// Appends the frame of an address, or several where functions were inlined.
    fn frame(
        &mut self,
        pid: u32,
        ip: u64,
        mode: CpuMode,
        is_return: bool,
        tables: &mut Tables,
        frames: &mut Vec<Frame>,
    ) {
        let back = u64::from(is_return);
        let call = ip.saturating_sub(back);
        let unknown = Frame { address: ip, ..Frame::default() };
        let is_kernel = mode == CpuMode::Kernel;
        // Of a guest or a hypervisor, or of any process outside of the PID namespace.
        if !is_kernel && (mode != CpuMode::User || pid == 0) {
            return frames.push(unknown);
        }
        let mapped = self.mappings.at(pid, call, is_kernel);
        // Without a record of its mapping, it is the kernel nevertheless.
        let place = mapped.map(|at| (at.file, at.address)).or(is_kernel.then_some((0, call)));
        let Some((number, position)) = place else { return frames.push(unknown) };
        let (start, end) = mapped.map_or((0, 0), |at| (at.start, at.end));
        let base = call.wrapping_sub(position);
        let mapping = self.part(number, position, [start, end, base], tables);
        let call = position;
        let Some(file) = self.mappings.file(number) else { return frames.push(unknown) };
        let frame = Frame { mapping, address: call.saturating_add(back), ..Frame::default() };
        match &mut self.symbols {
            Some(symbols) => {
                self.names.push(frame, (number, file, call), symbols.as_mut(), tables, frames);
            }
            None => frames.push(frame),
        }
    }

    /// The mapping of a position in a file, which a process has mapped from `start` to `end`, with position
    /// 0 at `base`.
    fn part(
        &mut self,
        number: usize,
        position: u64,
        [start, end, base]: [u64; 3],
        tables: &mut Tables,
    ) -> Option<MappingId> {
        if self.parts.len() <= number {
            self.parts.resize(number + 1, Vec::new());
        }
        let parts = self.parts.get_mut(number)?;
        let known = parts.iter().find(|part| (part.first..part.end).contains(&position));
        // Other parts of the same program are as far from each other in memory as in the file.
        let known = known.or_else(|| parts.iter().find(|part| part.base == base));
        if let Some(part) = known.or_else(|| parts.get(MAX_PARTS - 1).and(parts.first())) {
            return Some(part.id);
        }
        let file = self.mappings.file(number)?;
        let build_id = file.build_id.map_or_else(String::new, |id| id.to_string());
        let [path, build_id] =
            [file.name.as_bytes(), build_id.as_bytes()].map(|text| tables.text(text));
        let (is_kernel, offset) = (file.is_kernel, start.wrapping_sub(base));
        let mapping = Mapping { path, build_id, start, end, offset, is_kernel };
        let id = tables.add_mapping(mapping)?;
        let (first, end) = (offset, end.wrapping_sub(base));
        parts.push(Part { id, first, end, base });
        self.numbers.insert(id, number);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::Unwinder;
    use crate::EventKind;
    use crate::sources::perf::PerfStats;
    use crate::sources::perf::testing::Run;
    use perf_data::{Mappings, RecordedEvent, perf_event_attr};
    use perf_monitor::Sample;
    use perf_sys::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    const ID: u64 = 9;

    /// The addresses of the stack of a sample with a call chain and branches.
    fn stack(branch_type: u64, misc: u16, ip: u64, chain: &[u64], calls: &[[u64; 3]]) -> Vec<u64> {
        counted(branch_type, misc, ip, chain, calls).0
    }

    /// The same, and the statistics of the source.
    fn counted(
        branch_type: u64,
        misc: u16,
        ip: u64,
        chain: &[u64],
        calls: &[[u64; 3]],
    ) -> (Vec<u64>, PerfStats) {
        let mut attr = perf_event_attr::new(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES);
        attr.sample_type = PERF_SAMPLE_IDENTIFIER
            | PERF_SAMPLE_IP
            | PERF_SAMPLE_TID
            | PERF_SAMPLE_TIME
            | PERF_SAMPLE_CALLCHAIN
            | PERF_SAMPLE_BRANCH_STACK;
        attr.branch_sample_type = branch_type;
        attr.sample_period = 1;
        let event = RecordedEvent { name: "cycles".into(), attr, ids: vec![ID] };
        let mut run = Run::of([event]);
        let calls = [&[calls.len() as u64][..], calls.as_flattened()].concat();
        let body = [&[ID, ip, 1 | 1 << 32, 5, chain.len() as u64], chain, &calls].concat();
        run.push(PERF_RECORD_SAMPLE, misc, &body);
        let stack = run.events.iter().find_map(|event| match event.kind {
            EventKind::Sample { stack, .. } => stack,
            _ => None,
        });
        let addresses =
            run.tables.frames(stack.unwrap()).iter().map(|frame| frame.address).collect();
        (addresses, run.source.stats())
    }

    /// Processes have a program at different addresses; a function has one position in its file.
    #[test]
    fn a_part_of_a_file_is_one_mapping_in_all_processes() {
        let mut attr = perf_event_attr::new(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES);
        attr.sample_type =
            PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CALLCHAIN;
        attr.sample_period = 1;
        let mut run = Run::of([RecordedEvent { name: "cycles".into(), attr, ids: vec![ID] }]);
        let name = u64::from_le_bytes(*b"/bin/x\0\0");
        let user = PERF_RECORD_MISC_USER;
        for (pid, start, length, offset) in [
            (1, 0x40_1000, 0x2000, 0x1000),
            (2, 0x7f00_0000_1000, 0x2000, 0x1000),
            // Farther away in memory than in the file.
            (2, 0x7f00_0001_0000, 0x1000, 0x8000),
        ] {
            let body = [pid | pid << 32, start, length, offset, name];
            run.push(PERF_RECORD_MMAP, user, &body);
        }
        for (pid, ip) in [(1, 0x40_1010), (2, 0x7f00_0000_1010), (2, 0x7f00_0001_0010)] {
            let body = [ID, pid | pid << 32, 5, 2, PERF_CONTEXT_USER, ip];
            run.push(PERF_RECORD_SAMPLE, user, &body);
        }
        let place = |event: &crate::Event| match event.kind {
            EventKind::Sample { stack, .. } => {
                let frame = run.tables.frames(stack.unwrap())[0];
                let mapping = run.tables.mapping(frame.mapping.unwrap());
                Some([frame.address, mapping.start, mapping.end, mapping.offset])
            }
            _ => None,
        };
        let program = [0x1010, 0x40_1000, 0x40_3000, 0x1000];
        let other = [0x8010, 0x7f00_0001_0000, 0x7f00_0001_1000, 0x8000];
        let places: Vec<_> = run.events.iter().filter_map(place).collect();
        assert_eq!(places, [program, program, other]);
    }

    #[test]
    fn deferred_frames_of_user_space_are_counted() {
        const COOKIE: u64 = 0xc00c1e;
        let address = 0xffff_ffff_8100_0000;
        let chain = [PERF_CONTEXT_KERNEL, address, PERF_CONTEXT_USER_DEFERRED, COOKIE];
        let (kernel, any) = (PERF_RECORD_MISC_KERNEL, PERF_SAMPLE_BRANCH_ANY);
        let (stack, stats) = counted(any, kernel, address, &chain, &[]);
        assert_eq!((stack, stats.deferred), (vec![address], 1));
        let (stack, stats) = counted(any, kernel, address, &chain[..2], &[]);
        assert_eq!((stack, stats.deferred), (vec![address], 0));
    }

    #[test]
    fn last_branch_records_are_the_callers_in_user_space() {
        const CALLS: u64 = PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_CALL_STACK;
        let calls = [[0x210, 0x300, 0], [0x110, 0x200, 0]];
        let (user, kernel) = (PERF_RECORD_MISC_USER, PERF_RECORD_MISC_KERNEL);
        // Of calls, the addresses after their first byte: those of the call without its last byte.
        let of_user = stack(CALLS, user, 0x304, &[], &calls);
        assert_eq!(of_user, [0x304, 0x211, 0x111]);
        let chain = [PERF_CONTEXT_KERNEL, 0xffff_ffff_8100_0000];
        let of_kernel = stack(CALLS, kernel, chain[1], &chain, &calls);
        assert_eq!(of_kernel, [chain[1], 0x300, 0x211, 0x111]);
        // Without a call, and with branches that are not of calls.
        assert_eq!(stack(CALLS, user, 0x304, &[], &[]), [0x304]);
        let chain = [PERF_CONTEXT_USER, 0x304, 0x404];
        assert_eq!(stack(PERF_SAMPLE_BRANCH_ANY, user, 0x304, &chain, &calls), [0x304, 0x404]);
    }

    /// Finds one caller, and that others are missing.
    #[derive(Default)]
    struct OneCaller {
        /// Whether files may have changed.
        is_changed: Arc<AtomicBool>,
    }

    impl Unwinder for OneCaller {
        fn unwind(&mut self, sample: &Sample<'_>, _: &Mappings, out: &mut Vec<u64>) -> bool {
            out.extend([sample.ip.unwrap(), 0x404]);
            false
        }

        fn forget_changed(&mut self) {
            self.is_changed.store(true, Relaxed);
        }
    }

    /// `perf record -b --call-graph dwarf`
    #[test]
    fn samples_with_branches_are_unwound() {
        let mut attr = perf_event_attr::new(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES);
        attr.sample_type = PERF_SAMPLE_IDENTIFIER
            | PERF_SAMPLE_IP
            | PERF_SAMPLE_TID
            | PERF_SAMPLE_TIME
            | PERF_SAMPLE_BRANCH_STACK
            | PERF_SAMPLE_REGS_USER
            | PERF_SAMPLE_STACK_USER;
        attr.branch_sample_type = PERF_SAMPLE_BRANCH_ANY;
        attr.sample_regs_user = 1;
        attr.sample_period = 1;
        let mut run = Run::of([RecordedEvent { name: "cycles".into(), attr, ids: vec![ID] }]);
        let unwinder = OneCaller::default();
        let is_changed = Arc::clone(&unwinder.is_changed);
        run.source = run.source.with_unwinder(unwinder);
        let (branch, registers, stack) =
            ([1, 0x210, 0x300, 0], [PERF_SAMPLE_REGS_ABI_64, 0], [8, 0, 8]);
        let body = [&[ID, 0x304, 1 | 1 << 32, 5][..], &branch, &registers, &stack].concat();
        run.push(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_USER, &body);
        let stack = run.events.iter().find_map(|event| match event.kind {
            EventKind::Sample { stack, .. } => stack,
            _ => None,
        });
        let frames = run.tables.frames(stack.unwrap());
        assert_eq!(frames.iter().map(|frame| frame.address).collect::<Vec<_>>(), [0x304, 0x404]);
        assert_eq!(run.source.stats().cut, 1);
        // The unwinder has files of its own.
        assert!(!is_changed.load(Relaxed));
        run.source.forget_names();
        assert!(is_changed.load(Relaxed));
    }
}
