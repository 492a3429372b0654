//! The constants of `linux/perf_event.h`, of Linux 7.3.

/// Defines constants by group, and [`TABLE`] of all of them for the comparison with the header.
macro_rules! constants {
    ($(
        #[doc = $group_doc:literal]
        $ty:ident in $enum:ident {$(
            $(#[doc = $doc:literal])*
            $name:ident = $value:expr;
        )*}
    )*) => {
        $($(
            #[doc = $group_doc]
            #[doc = ""]
            $(#[doc = $doc])*
            pub const $name: $ty = $value;
        )*)*

        /// Every constant by name, with the value that a C compiler prints: sign-extended to 64
        /// bits.
        #[cfg(test)]
        pub(crate) const TABLE: &[(&str, u64)] = &[$($((stringify!($name), $name as u64),)*)*];
    };
}

constants! {
    /// Values of [`perf_event_attr::type_`](crate::perf_event_attr::type_). Dynamic PMUs have the number in their sysfs `type` file.
    u32 in perf_type_id {
        /// Generalised hardware events, `PERF_COUNT_HW_*`.
        PERF_TYPE_HARDWARE = 0;
        /// Events that the kernel itself counts, `PERF_COUNT_SW_*`.
        PERF_TYPE_SOFTWARE = 1;
        /// A tracepoint; `config` is the number in its tracefs `id` file.
        PERF_TYPE_TRACEPOINT = 2;
        /// Generalised cache events.
        PERF_TYPE_HW_CACHE = 3;
        /// An event number from the manual of the CPU.
        PERF_TYPE_RAW = 4;
        /// A hardware breakpoint: `bp_type`, `bp_addr`, `bp_len`.
        PERF_TYPE_BREAKPOINT = 5;
        PERF_TYPE_MAX = 6;
    }

    /// `config` of `PERF_TYPE_HARDWARE`.
    u64 in perf_hw_id {
        /// Core cycles; affected by frequency scaling.
        PERF_COUNT_HW_CPU_CYCLES = 0;
        /// Retired instructions.
        PERF_COUNT_HW_INSTRUCTIONS = 1;
        PERF_COUNT_HW_CACHE_REFERENCES = 2;
        PERF_COUNT_HW_CACHE_MISSES = 3;
        PERF_COUNT_HW_BRANCH_INSTRUCTIONS = 4;
        PERF_COUNT_HW_BRANCH_MISSES = 5;
        PERF_COUNT_HW_BUS_CYCLES = 6;
        PERF_COUNT_HW_STALLED_CYCLES_FRONTEND = 7;
        PERF_COUNT_HW_STALLED_CYCLES_BACKEND = 8;
        /// Cycles at a constant rate.
        PERF_COUNT_HW_REF_CPU_CYCLES = 9;
        PERF_COUNT_HW_MAX = 10;
    }

    /// `config` of `PERF_TYPE_HW_CACHE`, bits 0–7: which cache.
    u64 in perf_hw_cache_id {
        PERF_COUNT_HW_CACHE_L1D = 0;
        PERF_COUNT_HW_CACHE_L1I = 1;
        PERF_COUNT_HW_CACHE_LL = 2;
        PERF_COUNT_HW_CACHE_DTLB = 3;
        PERF_COUNT_HW_CACHE_ITLB = 4;
        PERF_COUNT_HW_CACHE_BPU = 5;
        PERF_COUNT_HW_CACHE_NODE = 6;
        PERF_COUNT_HW_CACHE_MAX = 7;
    }

    /// `config` of `PERF_TYPE_HW_CACHE`, bits 8–15: which access.
    u64 in perf_hw_cache_op_id {
        PERF_COUNT_HW_CACHE_OP_READ = 0;
        PERF_COUNT_HW_CACHE_OP_WRITE = 1;
        PERF_COUNT_HW_CACHE_OP_PREFETCH = 2;
        PERF_COUNT_HW_CACHE_OP_MAX = 3;
    }

    /// `config` of `PERF_TYPE_HW_CACHE`, bits 16–23: which outcome.
    u64 in perf_hw_cache_op_result_id {
        PERF_COUNT_HW_CACHE_RESULT_ACCESS = 0;
        PERF_COUNT_HW_CACHE_RESULT_MISS = 1;
        PERF_COUNT_HW_CACHE_RESULT_MAX = 2;
    }

    /// `config` of `PERF_TYPE_SOFTWARE`.
    u64 in perf_sw_ids {
        /// A per-CPU high-resolution timer, nanoseconds.
        PERF_COUNT_SW_CPU_CLOCK = 0;
        /// Nanoseconds that the task ran.
        PERF_COUNT_SW_TASK_CLOCK = 1;
        PERF_COUNT_SW_PAGE_FAULTS = 2;
        PERF_COUNT_SW_CONTEXT_SWITCHES = 3;
        PERF_COUNT_SW_CPU_MIGRATIONS = 4;
        PERF_COUNT_SW_PAGE_FAULTS_MIN = 5;
        PERF_COUNT_SW_PAGE_FAULTS_MAJ = 6;
        PERF_COUNT_SW_ALIGNMENT_FAULTS = 7;
        PERF_COUNT_SW_EMULATION_FAULTS = 8;
        /// Counts nothing: a carrier of side-band records.
        PERF_COUNT_SW_DUMMY = 9;
        /// Samples made by the BPF helper `bpf_perf_event_output`.
        PERF_COUNT_SW_BPF_OUTPUT = 10;
        /// Context switches to a task of another cgroup (Linux 5.13).
        PERF_COUNT_SW_CGROUP_SWITCHES = 11;
        PERF_COUNT_SW_MAX = 12;
    }

    /// Bits of [`perf_event_attr::sample_type`](crate::perf_event_attr::sample_type): fields of a sample.
    u64 in perf_event_sample_format {
        PERF_SAMPLE_IP = 1 << 0;
        PERF_SAMPLE_TID = 1 << 1;
        PERF_SAMPLE_TIME = 1 << 2;
        PERF_SAMPLE_ADDR = 1 << 3;
        PERF_SAMPLE_READ = 1 << 4;
        PERF_SAMPLE_CALLCHAIN = 1 << 5;
        PERF_SAMPLE_ID = 1 << 6;
        PERF_SAMPLE_CPU = 1 << 7;
        PERF_SAMPLE_PERIOD = 1 << 8;
        PERF_SAMPLE_STREAM_ID = 1 << 9;
        PERF_SAMPLE_RAW = 1 << 10;
        PERF_SAMPLE_BRANCH_STACK = 1 << 11;
        PERF_SAMPLE_REGS_USER = 1 << 12;
        PERF_SAMPLE_STACK_USER = 1 << 13;
        PERF_SAMPLE_WEIGHT = 1 << 14;
        PERF_SAMPLE_DATA_SRC = 1 << 15;
        /// The id, at a fixed place: first in a sample, last in other records.
        PERF_SAMPLE_IDENTIFIER = 1 << 16;
        PERF_SAMPLE_TRANSACTION = 1 << 17;
        PERF_SAMPLE_REGS_INTR = 1 << 18;
        /// Physical address of the data.
        PERF_SAMPLE_PHYS_ADDR = 1 << 19;
        /// A slice of the AUX area (Linux 5.5).
        PERF_SAMPLE_AUX = 1 << 20;
        /// Id of the cgroup (Linux 5.7).
        PERF_SAMPLE_CGROUP = 1 << 21;
        PERF_SAMPLE_DATA_PAGE_SIZE = 1 << 22;
        PERF_SAMPLE_CODE_PAGE_SIZE = 1 << 23;
        /// Three weights in one word, instead of `PERF_SAMPLE_WEIGHT` (Linux 5.12).
        PERF_SAMPLE_WEIGHT_STRUCT = 1 << 24;
        PERF_SAMPLE_MAX = 1 << 25;
    }

    /// Bit numbers of `branch_sample_type`.
    u32 in perf_branch_sample_type_shift {
        PERF_SAMPLE_BRANCH_USER_SHIFT = 0;
        PERF_SAMPLE_BRANCH_KERNEL_SHIFT = 1;
        PERF_SAMPLE_BRANCH_HV_SHIFT = 2;
        PERF_SAMPLE_BRANCH_ANY_SHIFT = 3;
        PERF_SAMPLE_BRANCH_ANY_CALL_SHIFT = 4;
        PERF_SAMPLE_BRANCH_ANY_RETURN_SHIFT = 5;
        PERF_SAMPLE_BRANCH_IND_CALL_SHIFT = 6;
        PERF_SAMPLE_BRANCH_ABORT_TX_SHIFT = 7;
        PERF_SAMPLE_BRANCH_IN_TX_SHIFT = 8;
        PERF_SAMPLE_BRANCH_NO_TX_SHIFT = 9;
        PERF_SAMPLE_BRANCH_COND_SHIFT = 10;
        PERF_SAMPLE_BRANCH_CALL_STACK_SHIFT = 11;
        PERF_SAMPLE_BRANCH_IND_JUMP_SHIFT = 12;
        PERF_SAMPLE_BRANCH_CALL_SHIFT = 13;
        PERF_SAMPLE_BRANCH_NO_FLAGS_SHIFT = 14;
        PERF_SAMPLE_BRANCH_NO_CYCLES_SHIFT = 15;
        PERF_SAMPLE_BRANCH_TYPE_SAVE_SHIFT = 16;
        PERF_SAMPLE_BRANCH_HW_INDEX_SHIFT = 17;
        PERF_SAMPLE_BRANCH_PRIV_SAVE_SHIFT = 18;
        PERF_SAMPLE_BRANCH_COUNTERS_SHIFT = 19;
        PERF_SAMPLE_BRANCH_MAX_SHIFT = 20;
    }

    /// Bits of [`perf_event_attr::branch_sample_type`](crate::perf_event_attr::branch_sample_type).
    u64 in perf_branch_sample_type {
        PERF_SAMPLE_BRANCH_USER = 1 << PERF_SAMPLE_BRANCH_USER_SHIFT;
        PERF_SAMPLE_BRANCH_KERNEL = 1 << PERF_SAMPLE_BRANCH_KERNEL_SHIFT;
        PERF_SAMPLE_BRANCH_HV = 1 << PERF_SAMPLE_BRANCH_HV_SHIFT;
        PERF_SAMPLE_BRANCH_ANY = 1 << PERF_SAMPLE_BRANCH_ANY_SHIFT;
        PERF_SAMPLE_BRANCH_ANY_CALL = 1 << PERF_SAMPLE_BRANCH_ANY_CALL_SHIFT;
        PERF_SAMPLE_BRANCH_ANY_RETURN = 1 << PERF_SAMPLE_BRANCH_ANY_RETURN_SHIFT;
        PERF_SAMPLE_BRANCH_IND_CALL = 1 << PERF_SAMPLE_BRANCH_IND_CALL_SHIFT;
        PERF_SAMPLE_BRANCH_ABORT_TX = 1 << PERF_SAMPLE_BRANCH_ABORT_TX_SHIFT;
        PERF_SAMPLE_BRANCH_IN_TX = 1 << PERF_SAMPLE_BRANCH_IN_TX_SHIFT;
        PERF_SAMPLE_BRANCH_NO_TX = 1 << PERF_SAMPLE_BRANCH_NO_TX_SHIFT;
        PERF_SAMPLE_BRANCH_COND = 1 << PERF_SAMPLE_BRANCH_COND_SHIFT;
        PERF_SAMPLE_BRANCH_CALL_STACK = 1 << PERF_SAMPLE_BRANCH_CALL_STACK_SHIFT;
        PERF_SAMPLE_BRANCH_IND_JUMP = 1 << PERF_SAMPLE_BRANCH_IND_JUMP_SHIFT;
        PERF_SAMPLE_BRANCH_CALL = 1 << PERF_SAMPLE_BRANCH_CALL_SHIFT;
        PERF_SAMPLE_BRANCH_NO_FLAGS = 1 << PERF_SAMPLE_BRANCH_NO_FLAGS_SHIFT;
        PERF_SAMPLE_BRANCH_NO_CYCLES = 1 << PERF_SAMPLE_BRANCH_NO_CYCLES_SHIFT;
        PERF_SAMPLE_BRANCH_TYPE_SAVE = 1 << PERF_SAMPLE_BRANCH_TYPE_SAVE_SHIFT;
        PERF_SAMPLE_BRANCH_HW_INDEX = 1 << PERF_SAMPLE_BRANCH_HW_INDEX_SHIFT;
        PERF_SAMPLE_BRANCH_PRIV_SAVE = 1 << PERF_SAMPLE_BRANCH_PRIV_SAVE_SHIFT;
        PERF_SAMPLE_BRANCH_COUNTERS = 1 << PERF_SAMPLE_BRANCH_COUNTERS_SHIFT;
        PERF_SAMPLE_BRANCH_MAX = 1 << PERF_SAMPLE_BRANCH_MAX_SHIFT;
    }

    /// Branch types: `type` of [`perf_branch_entry`](crate::perf_branch_entry).
    u8 in anonymous {
        PERF_BR_UNKNOWN = 0;
        PERF_BR_COND = 1;
        PERF_BR_UNCOND = 2;
        PERF_BR_IND = 3;
        PERF_BR_CALL = 4;
        PERF_BR_IND_CALL = 5;
        PERF_BR_RET = 6;
        PERF_BR_SYSCALL = 7;
        PERF_BR_SYSRET = 8;
        PERF_BR_COND_CALL = 9;
        PERF_BR_COND_RET = 10;
        PERF_BR_ERET = 11;
        PERF_BR_IRQ = 12;
        PERF_BR_SERROR = 13;
        PERF_BR_NO_TX = 14;
        PERF_BR_EXTEND_ABI = 15;
        PERF_BR_MAX = 16;
    }

    /// Speculation outcome: `spec` of [`perf_branch_entry`](crate::perf_branch_entry).
    u8 in anonymous {
        PERF_BR_SPEC_NA = 0;
        PERF_BR_SPEC_WRONG_PATH = 1;
        PERF_BR_NON_SPEC_CORRECT_PATH = 2;
        PERF_BR_SPEC_CORRECT_PATH = 3;
        PERF_BR_SPEC_MAX = 4;
    }

    /// More branch types: `new_type` of [`perf_branch_entry`](crate::perf_branch_entry), when `type` is `PERF_BR_EXTEND_ABI`.
    u8 in anonymous {
        PERF_BR_NEW_FAULT_ALGN = 0;
        PERF_BR_NEW_FAULT_DATA = 1;
        PERF_BR_NEW_FAULT_INST = 2;
        PERF_BR_NEW_ARCH_1 = 3;
        PERF_BR_NEW_ARCH_2 = 4;
        PERF_BR_NEW_ARCH_3 = 5;
        PERF_BR_NEW_ARCH_4 = 6;
        PERF_BR_NEW_ARCH_5 = 7;
        PERF_BR_NEW_MAX = 8;
    }

    /// Privilege level: `priv` of [`perf_branch_entry`](crate::perf_branch_entry).
    u8 in anonymous {
        PERF_BR_PRIV_UNKNOWN = 0;
        PERF_BR_PRIV_USER = 1;
        PERF_BR_PRIV_KERNEL = 2;
        PERF_BR_PRIV_HV = 3;
    }

    /// The ABI word before sampled registers.
    u64 in perf_sample_regs_abi {
        PERF_SAMPLE_REGS_ABI_NONE = 0;
        PERF_SAMPLE_REGS_ABI_32 = 1;
        PERF_SAMPLE_REGS_ABI_64 = 2;
    }

    /// Bits of a `PERF_SAMPLE_TRANSACTION` field.
    u64 in anonymous {
        PERF_TXN_ELISION = 1 << 0;
        PERF_TXN_TRANSACTION = 1 << 1;
        PERF_TXN_SYNC = 1 << 2;
        PERF_TXN_ASYNC = 1 << 3;
        PERF_TXN_RETRY = 1 << 4;
        PERF_TXN_CONFLICT = 1 << 5;
        PERF_TXN_CAPACITY_WRITE = 1 << 6;
        PERF_TXN_CAPACITY_READ = 1 << 7;
        PERF_TXN_MAX = 1 << 8;
        PERF_TXN_ABORT_MASK = 0xffffffff00000000;
        PERF_TXN_ABORT_SHIFT = 32;
    }

    /// Bits of [`perf_event_attr::read_format`](crate::perf_event_attr::read_format): what `read(2)` returns.
    u64 in perf_event_read_format {
        PERF_FORMAT_TOTAL_TIME_ENABLED = 1 << 0;
        PERF_FORMAT_TOTAL_TIME_RUNNING = 1 << 1;
        PERF_FORMAT_ID = 1 << 2;
        PERF_FORMAT_GROUP = 1 << 3;
        /// Samples lost by this event (Linux 6.0).
        PERF_FORMAT_LOST = 1 << 4;
        PERF_FORMAT_MAX = 1 << 5;
    }

    /// Argument of the `PERF_EVENT_IOC_*` that act on one event or on its group.
    u32 in perf_event_ioc_flags {
        PERF_IOC_FLAG_GROUP = 1 << 0;
    }

    /// Index into the links of a `PERF_RECORD_NAMESPACES`.
    usize in anonymous {
        NET_NS_INDEX = 0;
        UTS_NS_INDEX = 1;
        IPC_NS_INDEX = 2;
        PID_NS_INDEX = 3;
        USER_NS_INDEX = 4;
        MNT_NS_INDEX = 5;
        CGROUP_NS_INDEX = 6;
        NR_NAMESPACES = 7;
    }

    /// `type` of a [`perf_event_header`](crate::perf_event_header).
    u32 in perf_event_type {
        PERF_RECORD_MMAP = 1;
        PERF_RECORD_LOST = 2;
        PERF_RECORD_COMM = 3;
        PERF_RECORD_EXIT = 4;
        PERF_RECORD_THROTTLE = 5;
        PERF_RECORD_UNTHROTTLE = 6;
        PERF_RECORD_FORK = 7;
        PERF_RECORD_READ = 8;
        PERF_RECORD_SAMPLE = 9;
        PERF_RECORD_MMAP2 = 10;
        PERF_RECORD_AUX = 11;
        PERF_RECORD_ITRACE_START = 12;
        PERF_RECORD_LOST_SAMPLES = 13;
        PERF_RECORD_SWITCH = 14;
        PERF_RECORD_SWITCH_CPU_WIDE = 15;
        PERF_RECORD_NAMESPACES = 16;
        PERF_RECORD_KSYMBOL = 17;
        PERF_RECORD_BPF_EVENT = 18;
        PERF_RECORD_CGROUP = 19;
        PERF_RECORD_TEXT_POKE = 20;
        PERF_RECORD_AUX_OUTPUT_HW_ID = 21;
        /// User callchain of earlier samples (Linux 6.19).
        PERF_RECORD_CALLCHAIN_DEFERRED = 22;
        PERF_RECORD_MAX = 23;
    }

    /// `ksym_type` of a `PERF_RECORD_KSYMBOL`.
    u16 in perf_record_ksymbol_type {
        PERF_RECORD_KSYMBOL_TYPE_UNKNOWN = 0;
        PERF_RECORD_KSYMBOL_TYPE_BPF = 1;
        /// Out-of-line code: kprobe slots and trampolines.
        PERF_RECORD_KSYMBOL_TYPE_OOL = 2;
        PERF_RECORD_KSYMBOL_TYPE_MAX = 3;
    }

    /// `type` of a `PERF_RECORD_BPF_EVENT`.
    u16 in perf_bpf_event_type {
        PERF_BPF_EVENT_UNKNOWN = 0;
        PERF_BPF_EVENT_PROG_LOAD = 1;
        PERF_BPF_EVENT_PROG_UNLOAD = 2;
        PERF_BPF_EVENT_MAX = 3;
    }

    /// Markers in a callchain: the addresses that follow are of this context.
    u64 in perf_callchain_context {
        PERF_CONTEXT_HV = -32i64 as u64;
        PERF_CONTEXT_KERNEL = -128i64 as u64;
        PERF_CONTEXT_USER = -512i64 as u64;
        /// One word follows: the cookie of the `PERF_RECORD_CALLCHAIN_DEFERRED` to come.
        PERF_CONTEXT_USER_DEFERRED = -640i64 as u64;
        PERF_CONTEXT_GUEST = -2048i64 as u64;
        PERF_CONTEXT_GUEST_KERNEL = -2176i64 as u64;
        PERF_CONTEXT_GUEST_USER = -2560i64 as u64;
        PERF_CONTEXT_MAX = -4095i64 as u64;
    }

    /// Other constants.
    u64 in define {
        PERF_PMU_TYPE_SHIFT = 32;
        PERF_HW_EVENT_MASK = 0xffffffff;
        PERF_SAMPLE_WEIGHT_TYPE = 0x1004000;
        PERF_SAMPLE_BRANCH_PLM_ALL = 7;
        PERF_BRANCH_ENTRY_INFO_BITS_MAX = 33;
    }

    /// Names of arm64 for its branch types.
    u8 in define {
        PERF_BR_ARM64_FIQ = 3;
        PERF_BR_ARM64_DEBUG_HALT = 4;
        PERF_BR_ARM64_DEBUG_EXIT = 5;
        PERF_BR_ARM64_DEBUG_INST = 6;
        PERF_BR_ARM64_DEBUG_DATA = 7;
    }

    /// Sizes of `struct perf_event_attr` as it grew.
    u32 in define {
        /// Linux 2.6.31.
        PERF_ATTR_SIZE_VER0 = 64;
        /// Adds `config2` (Linux 2.6.33).
        PERF_ATTR_SIZE_VER1 = 72;
        /// Adds `branch_sample_type` (Linux 3.4).
        PERF_ATTR_SIZE_VER2 = 80;
        /// Adds `sample_regs_user` and `sample_stack_user` (Linux 3.7).
        PERF_ATTR_SIZE_VER3 = 96;
        /// Adds `sample_regs_intr` (Linux 3.19).
        PERF_ATTR_SIZE_VER4 = 104;
        /// Adds `aux_watermark` (Linux 4.1).
        PERF_ATTR_SIZE_VER5 = 112;
        /// Adds `aux_sample_size` (Linux 5.5).
        PERF_ATTR_SIZE_VER6 = 120;
        /// Adds `sig_data` (Linux 5.13).
        PERF_ATTR_SIZE_VER7 = 128;
        /// Adds `config3` (Linux 6.3).
        PERF_ATTR_SIZE_VER8 = 136;
        /// Adds `config4`.
        PERF_ATTR_SIZE_VER9 = 144;
    }

    /// Bits of `misc` of a [`perf_event_header`](crate::perf_event_header).
    u16 in define {
        PERF_RECORD_MISC_CPUMODE_MASK = 0x7;
        PERF_RECORD_MISC_CPUMODE_UNKNOWN = 0x0;
        PERF_RECORD_MISC_KERNEL = 1 << 0;
        PERF_RECORD_MISC_USER = 0x2;
        PERF_RECORD_MISC_HYPERVISOR = 0x3;
        PERF_RECORD_MISC_GUEST_KERNEL = 0x4;
        PERF_RECORD_MISC_GUEST_USER = 0x5;
        PERF_RECORD_MISC_PROC_MAP_PARSE_TIMEOUT = 1 << 12;
        PERF_RECORD_MISC_MMAP_DATA = 1 << 13;
        PERF_RECORD_MISC_COMM_EXEC = 1 << 13;
        PERF_RECORD_MISC_FORK_EXEC = 1 << 13;
        PERF_RECORD_MISC_SWITCH_OUT = 1 << 13;
        PERF_RECORD_MISC_EXACT_IP = 1 << 14;
        PERF_RECORD_MISC_SWITCH_OUT_PREEMPT = 1 << 14;
        PERF_RECORD_MISC_MMAP_BUILD_ID = 1 << 14;
        PERF_RECORD_MISC_EXT_RESERVED = 1 << 15;
    }

    /// `flags` of a `PERF_RECORD_KSYMBOL`.
    u16 in define {
        PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER = 1 << 0;
    }

    /// Limits of a callchain.
    u32 in define {
        PERF_MAX_STACK_DEPTH = 127;
        PERF_MAX_CONTEXTS_PER_STACK = 8;
    }

    /// Bits of `flags` of a `PERF_RECORD_AUX`.
    u64 in define {
        PERF_AUX_FLAG_TRUNCATED = 0x1;
        PERF_AUX_FLAG_OVERWRITE = 0x2;
        PERF_AUX_FLAG_PARTIAL = 0x4;
        PERF_AUX_FLAG_COLLISION = 0x8;
        PERF_AUX_FLAG_PMU_FORMAT_TYPE_MASK = 0xff00;
        PERF_AUX_FLAG_CORESIGHT_FORMAT_CORESIGHT = 0x0;
        PERF_AUX_FLAG_CORESIGHT_FORMAT_RAW = 0x100;
    }

    /// `flags` of `perf_event_open(2)`.
    u64 in define {
        /// With `PERF_FLAG_FD_OUTPUT`: share the ring of `group_fd`, do not join its group.
        PERF_FLAG_FD_NO_GROUP = 1 << 0;
        /// Write to the ring of `group_fd`.
        PERF_FLAG_FD_OUTPUT = 1 << 1;
        /// `pid` is a file descriptor of a cgroup directory.
        PERF_FLAG_PID_CGROUP = 1 << 2;
        /// Set close-on-exec.
        PERF_FLAG_FD_CLOEXEC = 1 << 3;
    }

    /// `si_code` of a [`perf_siginfo`](crate::perf_siginfo) (Linux 5.13).
    i32 in define {
        TRAP_PERF = 6;
    }

    /// `si_perf_flags` of a [`perf_siginfo`](crate::perf_siginfo) (Linux 5.18).
    u32 in define {
        /// The signal was blocked, so that the thread continued and got it later.
        TRAP_PERF_FLAG_ASYNC = 1 << 0;
    }

    /// Fields of a `PERF_SAMPLE_DATA_SRC`; each is shifted by the `_SHIFT` of its name.
    u64 in define {
        PERF_MEM_OP_NA = 0x1;
        PERF_MEM_OP_LOAD = 0x2;
        PERF_MEM_OP_STORE = 0x4;
        PERF_MEM_OP_PFETCH = 0x8;
        PERF_MEM_OP_EXEC = 0x10;
        PERF_MEM_OP_SHIFT = 0x0;
        PERF_MEM_LVL_NA = 0x1;
        PERF_MEM_LVL_HIT = 0x2;
        PERF_MEM_LVL_MISS = 0x4;
        PERF_MEM_LVL_L1 = 0x8;
        PERF_MEM_LVL_LFB = 0x10;
        PERF_MEM_LVL_L2 = 0x20;
        PERF_MEM_LVL_L3 = 0x40;
        PERF_MEM_LVL_LOC_RAM = 0x80;
        PERF_MEM_LVL_REM_RAM1 = 0x100;
        PERF_MEM_LVL_REM_RAM2 = 0x200;
        PERF_MEM_LVL_REM_CCE1 = 0x400;
        PERF_MEM_LVL_REM_CCE2 = 0x800;
        PERF_MEM_LVL_IO = 0x1000;
        PERF_MEM_LVL_UNC = 0x2000;
        PERF_MEM_LVL_SHIFT = 0x5;
        PERF_MEM_REMOTE_REMOTE = 0x1;
        PERF_MEM_REMOTE_SHIFT = 0x25;
        PERF_MEM_LVLNUM_L1 = 0x1;
        PERF_MEM_LVLNUM_L2 = 0x2;
        PERF_MEM_LVLNUM_L3 = 0x3;
        PERF_MEM_LVLNUM_L4 = 0x4;
        PERF_MEM_LVLNUM_L2_MHB = 0x5;
        PERF_MEM_LVLNUM_MSC = 0x6;
        PERF_MEM_LVLNUM_L0 = 0x7;
        PERF_MEM_LVLNUM_UNC = 0x8;
        PERF_MEM_LVLNUM_CXL = 0x9;
        PERF_MEM_LVLNUM_IO = 0xa;
        PERF_MEM_LVLNUM_ANY_CACHE = 0xb;
        PERF_MEM_LVLNUM_LFB = 0xc;
        PERF_MEM_LVLNUM_RAM = 0xd;
        PERF_MEM_LVLNUM_PMEM = 0xe;
        PERF_MEM_LVLNUM_NA = 0xf;
        PERF_MEM_LVLNUM_SHIFT = 0x21;
        PERF_MEM_SNOOP_NA = 0x1;
        PERF_MEM_SNOOP_NONE = 0x2;
        PERF_MEM_SNOOP_HIT = 0x4;
        PERF_MEM_SNOOP_MISS = 0x8;
        PERF_MEM_SNOOP_HITM = 0x10;
        PERF_MEM_SNOOP_SHIFT = 0x13;
        PERF_MEM_SNOOPX_FWD = 0x1;
        PERF_MEM_SNOOPX_PEER = 0x2;
        PERF_MEM_SNOOPX_SHIFT = 0x26;
        PERF_MEM_LOCK_NA = 0x1;
        PERF_MEM_LOCK_LOCKED = 0x2;
        PERF_MEM_LOCK_SHIFT = 0x18;
        PERF_MEM_TLB_NA = 0x1;
        PERF_MEM_TLB_HIT = 0x2;
        PERF_MEM_TLB_MISS = 0x4;
        PERF_MEM_TLB_L1 = 0x8;
        PERF_MEM_TLB_L2 = 0x10;
        PERF_MEM_TLB_WK = 0x20;
        PERF_MEM_TLB_OS = 0x40;
        PERF_MEM_TLB_SHIFT = 0x1a;
        PERF_MEM_BLK_NA = 0x1;
        PERF_MEM_BLK_DATA = 0x2;
        PERF_MEM_BLK_ADDR = 0x4;
        PERF_MEM_BLK_SHIFT = 0x28;
        PERF_MEM_HOPS_0 = 0x1;
        PERF_MEM_HOPS_1 = 0x2;
        PERF_MEM_HOPS_2 = 0x3;
        PERF_MEM_HOPS_3 = 0x4;
        PERF_MEM_HOPS_SHIFT = 0x2b;
        PERF_MEM_REGION_NA = 0x0;
        PERF_MEM_REGION_RSVD = 0x1;
        PERF_MEM_REGION_L_SHARE = 0x2;
        PERF_MEM_REGION_L_NON_SHARE = 0x3;
        PERF_MEM_REGION_O_IO = 0x4;
        PERF_MEM_REGION_O_SHARE = 0x5;
        PERF_MEM_REGION_O_NON_SHARE = 0x6;
        PERF_MEM_REGION_MMIO = 0x7;
        PERF_MEM_REGION_MEM0 = 0x8;
        PERF_MEM_REGION_MEM1 = 0x9;
        PERF_MEM_REGION_MEM2 = 0xa;
        PERF_MEM_REGION_MEM3 = 0xb;
        PERF_MEM_REGION_MEM4 = 0xc;
        PERF_MEM_REGION_MEM5 = 0xd;
        PERF_MEM_REGION_MEM6 = 0xe;
        PERF_MEM_REGION_MEM7 = 0xf;
        PERF_MEM_REGION_SHIFT = 0x2e;
    }
}
