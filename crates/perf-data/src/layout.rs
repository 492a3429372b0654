//! The layout of `perf.data`, from `tools/perf/Documentation/perf.data-file-format.txt`, and where
//! that is silent from `tools/perf/util/header.c` and `tools/lib/perf/include/perf/event.h`.

/// The first bytes of a recording of a little-endian machine.
pub(crate) const MAGIC: &[u8; 8] = b"PERFILE2";

/// The same of a big-endian machine.
pub(crate) const MAGIC_SWAPPED: &[u8; 8] = b"2ELIFREP";

/// Bytes of the header in file mode.
pub(crate) const FILE_HEADER: u64 = 104;

/// Bytes of the header in pipe mode.
pub(crate) const PIPE_HEADER: u64 = 16;

/// Bytes of an offset and a size.
pub(crate) const SECTION: usize = 16;

/// Bits for features in the header.
pub(crate) const FEATURE_BITS: u32 = 256;

/// Strings of the format are padded with NULs to a multiple of this.
pub(crate) const STRING_ALIGN: usize = 64;

/// Types of records that `perf` itself writes: `enum perf_user_event_type`.
pub mod record_type {
    /// An event with its ids, in pipe mode.
    pub const HEADER_ATTR: u32 = 64;
    /// The formats of tracepoints, in pipe mode. The data follows the record.
    pub const HEADER_TRACING_DATA: u32 = 66;
    /// The build id of a file, in pipe mode.
    pub const HEADER_BUILD_ID: u32 = 67;
    /// Every ring was read once since the last such record.
    pub const FINISHED_ROUND: u32 = 68;
    /// The CPU and the thread of each id of an event. Both are -1 where they are not limited.
    pub const ID_INDEX: u32 = 69;
    /// Data of an AUX area. The data follows the record.
    pub const AUXTRACE: u32 = 71;
    /// Name, unit or CPUs of an event.
    pub const EVENT_UPDATE: u32 = 78;
    /// A feature section, in pipe mode.
    pub const HEADER_FEATURE: u32 = 80;
    /// Compressed records.
    pub const COMPRESSED: u32 = 81;
    /// Everything that was there at the start has been recorded (Linux 5.17).
    pub const FINISHED_INIT: u32 = 82;
    /// Compressed records, padded to 8 bytes (Linux 6.16).
    pub const COMPRESSED2: u32 = 83;
}

/// What a [`record_type::EVENT_UPDATE`] changes: `PERF_EVENT_UPDATE__*`.
pub(crate) mod event_update {
    /// The name of the event.
    pub(crate) const NAME: u64 = 2;
}

/// `PERF_RECORD_MISC_BUILD_ID_SIZE`: the record contains the size of its build id.
pub(crate) const MISC_BUILD_ID_SIZE: u16 = 1 << 15;

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// A feature section of a recording: `HEADER_*` of `perf`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Feature {
            $($(#[$doc])* $name = $number,)*
        }

        impl Feature {
            /// The section with this number, if it is known.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its number.
            pub const fn number(self) -> u32 {
                self as u32
            }
        }
    };
}

features! {
    /// Formats of tracepoints: [`TracingData`](crate::TracingData).
    TracingData = 1,
    /// Build ids of mapped files.
    BuildId = 2,
    /// Name of the machine.
    Hostname = 3,
    /// Release of the kernel.
    OsRelease = 4,
    /// Version of the recorder.
    Version = 5,
    /// Architecture of the machine.
    Arch = 6,
    /// Numbers of CPUs.
    NrCpus = 7,
    /// Model of the CPU.
    CpuDesc = 8,
    /// Vendor, family, model and stepping of the CPU.
    CpuId = 9,
    /// Memory of the machine.
    TotalMem = 10,
    /// Command line of the recorder.
    CmdLine = 11,
    /// Events with their names.
    EventDesc = 12,
    /// Cores and packages of the CPUs.
    CpuTopology = 13,
    /// NUMA nodes.
    NumaTopology = 14,
    /// Samples have branch stacks.
    BranchStack = 15,
    /// Names of the PMUs.
    PmuMappings = 16,
    /// Groups of events.
    GroupDesc = 17,
    /// An index of the AUX area data.
    AuxTrace = 18,
    /// Counts, not samples.
    Stat = 19,
    /// Caches of the CPUs.
    Cache = 20,
    /// Times of the first and the last sample.
    SampleTime = 21,
    /// Memory blocks of the NUMA nodes.
    MemTopology = 22,
    /// Resolution of the clock.
    ClockId = 23,
    /// The recording is a directory.
    DirFormat = 24,
    /// BPF programs.
    BpfProgInfo = 25,
    /// Types of BPF programs.
    BpfBtf = 26,
    /// Records are compressed.
    Compressed = 27,
    /// Capabilities of the CPU's PMU.
    CpuPmuCaps = 28,
    /// The clock of the events and the wall clock at one moment.
    ClockData = 29,
    /// PMUs of CPUs with cores of several kinds.
    HybridTopology = 30,
    /// Capabilities of all PMUs.
    PmuCaps = 31,
}
