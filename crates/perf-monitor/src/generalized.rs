//! Generalised events: those that every kernel has, whatever the CPU calls them.

use perf_sys::*;

macro_rules! named {
    ($(#[$doc:meta])* $ty:ident, $const_ty:ty: $($(#[$vdoc:meta])* $variant:ident = $value:ident, $($name:literal)|+;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $ty { $($(#[$vdoc])* $variant,)* }

        impl $ty {
            /// All variants, with their names in `perf`, the usual one first.
            pub const ALL: &'static [(Self, &'static [&'static str])] =
                &[$((Self::$variant, &[$($name),+])),*];

            pub(crate) const fn config(self) -> u64 {
                match self { $(Self::$variant => $value,)* }
            }

            /// The usual name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => named!(@ first $($name)+),)* }
            }

            /// The variant with this name.
            pub fn by_name(name: &str) -> Option<Self> {
                Self::ALL.iter().find(|(_, names)| names.contains(&name)).map(|(v, _)| *v)
            }
        }
    };
    (@ first $first:literal $($rest:literal)*) => { $first };
}

named! {
    /// Generalised hardware events: `PERF_COUNT_HW_*`.
    Hardware, u64:
    /// Core cycles.
    CpuCycles = PERF_COUNT_HW_CPU_CYCLES, "cycles" | "cpu-cycles";
    /// Retired instructions.
    Instructions = PERF_COUNT_HW_INSTRUCTIONS, "instructions";
    /// Accesses to the last-level cache.
    CacheReferences = PERF_COUNT_HW_CACHE_REFERENCES, "cache-references";
    /// Misses of the last-level cache.
    CacheMisses = PERF_COUNT_HW_CACHE_MISSES, "cache-misses";
    /// Retired branches.
    BranchInstructions = PERF_COUNT_HW_BRANCH_INSTRUCTIONS, "branches" | "branch-instructions";
    /// Mispredicted branches.
    BranchMisses = PERF_COUNT_HW_BRANCH_MISSES, "branch-misses";
    /// Bus cycles.
    BusCycles = PERF_COUNT_HW_BUS_CYCLES, "bus-cycles";
    /// Cycles in which no instruction was issued, because none was fetched or decoded.
    StalledCyclesFrontend = PERF_COUNT_HW_STALLED_CYCLES_FRONTEND,
        "stalled-cycles-frontend" | "idle-cycles-frontend";
    /// Cycles in which no instruction was retired, because resources were busy.
    StalledCyclesBackend = PERF_COUNT_HW_STALLED_CYCLES_BACKEND,
        "stalled-cycles-backend" | "idle-cycles-backend";
    /// Cycles at a constant rate.
    RefCpuCycles = PERF_COUNT_HW_REF_CPU_CYCLES, "ref-cycles";
}

named! {
    /// Events that the kernel itself counts: `PERF_COUNT_SW_*`.
    Software, u64:
    /// A high-resolution timer of the CPU, in nanoseconds.
    CpuClock = PERF_COUNT_SW_CPU_CLOCK, "cpu-clock";
    /// Nanoseconds that the task ran.
    TaskClock = PERF_COUNT_SW_TASK_CLOCK, "task-clock";
    /// Page faults.
    PageFaults = PERF_COUNT_SW_PAGE_FAULTS, "page-faults" | "faults";
    /// Context switches.
    ContextSwitches = PERF_COUNT_SW_CONTEXT_SWITCHES, "context-switches" | "cs";
    /// Migrations to another CPU.
    CpuMigrations = PERF_COUNT_SW_CPU_MIGRATIONS, "cpu-migrations" | "migrations";
    /// Page faults without I/O.
    PageFaultsMin = PERF_COUNT_SW_PAGE_FAULTS_MIN, "minor-faults";
    /// Page faults with I/O.
    PageFaultsMaj = PERF_COUNT_SW_PAGE_FAULTS_MAJ, "major-faults";
    /// Unaligned accesses that the kernel fixed up.
    AlignmentFaults = PERF_COUNT_SW_ALIGNMENT_FAULTS, "alignment-faults";
    /// Instructions that the kernel emulated.
    EmulationFaults = PERF_COUNT_SW_EMULATION_FAULTS, "emulation-faults";
    /// Counts nothing: carries sideband records.
    Dummy = PERF_COUNT_SW_DUMMY, "dummy";
    /// Samples written by BPF programs.
    BpfOutput = PERF_COUNT_SW_BPF_OUTPUT, "bpf-output";
    /// Context switches to a task of another cgroup (Linux 5.13).
    CgroupSwitches = PERF_COUNT_SW_CGROUP_SWITCHES, "cgroup-switches";
}

named! {
    /// Caches of the generalised cache events.
    Cache, u64:
    /// Level 1, data.
    L1d = PERF_COUNT_HW_CACHE_L1D, "L1-dcache";
    /// Level 1, instructions.
    L1i = PERF_COUNT_HW_CACHE_L1I, "L1-icache";
    /// Last level.
    Ll = PERF_COUNT_HW_CACHE_LL, "LLC";
    /// Address translations of data.
    Dtlb = PERF_COUNT_HW_CACHE_DTLB, "dTLB";
    /// Address translations of instructions.
    Itlb = PERF_COUNT_HW_CACHE_ITLB, "iTLB";
    /// Branch prediction.
    Bpu = PERF_COUNT_HW_CACHE_BPU, "branch";
    /// Memory of the node.
    Node = PERF_COUNT_HW_CACHE_NODE, "node";
}

named! {
    /// Accesses of the generalised cache events.
    CacheOp, u64:
    /// Loads.
    Read = PERF_COUNT_HW_CACHE_OP_READ, "load";
    /// Stores.
    Write = PERF_COUNT_HW_CACHE_OP_WRITE, "store";
    /// Prefetches.
    Prefetch = PERF_COUNT_HW_CACHE_OP_PREFETCH, "prefetch";
}

named! {
    /// Outcomes of the generalised cache events.
    CacheResult, u64:
    /// Every access.
    Access = PERF_COUNT_HW_CACHE_RESULT_ACCESS, "s";
    /// Misses.
    Miss = PERF_COUNT_HW_CACHE_RESULT_MISS, "-misses";
}

/// All generalised cache events. A CPU supports some of them.
pub(crate) fn all_cache() -> impl Iterator<Item = (Cache, CacheOp, CacheResult)> {
    Cache::ALL.iter().flat_map(|(cache, _)| {
        CacheOp::ALL.iter().flat_map(move |(op, _)| {
            CacheResult::ALL.iter().map(move |(result, _)| (*cache, *op, *result))
        })
    })
}

/// The name and the configuration of a generalised cache event.
pub(crate) fn cache(cache: Cache, op: CacheOp, result: CacheResult) -> (String, u64) {
    let name = format!("{}-{}{}", cache.name(), op.name(), result.name());
    let config = cache.config() | op.config() << 8 | result.config() << 16;
    (name.replace("prefetchs", "prefetches"), config)
}

/// The name in `perf` of a generalised hardware, software or cache event with this type and
/// configuration; `None` for other events.
///
/// ```
/// use perf_monitor::generalized_name;
///
/// assert_eq!(generalized_name(1, 2).as_deref(), Some("page-faults"));
/// assert_eq!(generalized_name(3, 0x1_0000).as_deref(), Some("L1-dcache-load-misses"));
/// assert_eq!(generalized_name(4, 2), None);
/// ```
pub fn generalized_name(type_: u32, config: u64) -> Option<String> {
    let of = |(event, name): (u64, &'static str)| (event == config).then(|| name.to_owned());
    match type_ {
        PERF_TYPE_HARDWARE => {
            Hardware::ALL.iter().find_map(|(event, _)| of((event.config(), event.name())))
        }
        PERF_TYPE_SOFTWARE => {
            Software::ALL.iter().find_map(|(event, _)| of((event.config(), event.name())))
        }
        PERF_TYPE_HW_CACHE => all_cache()
            .map(|(of, op, result)| cache(of, op, result))
            .find_map(|(name, known)| (known == config).then_some(name)),
        _ => None,
    }
}
