//! Field numbers of Perfetto's messages, with the names of the schema.
//!
//! Source: `protos/perfetto/trace/**.proto` of the Perfetto repository.

pub(super) const TRACE_PACKET: u32 = 1;

/// `TracePacket`
pub(super) mod packet {
    pub(in super::super) const FTRACE_EVENTS: u32 = 1;
    pub(in super::super) const PROCESS_TREE: u32 = 2;
    pub(in super::super) const CLOCK_SNAPSHOT: u32 = 6;
    pub(in super::super) const TIMESTAMP: u32 = 8;
    pub(in super::super) const TRUSTED_PACKET_SEQUENCE_ID: u32 = 10;
    pub(in super::super) const TRACK_EVENT: u32 = 11;
    pub(in super::super) const INTERNED_DATA: u32 = 12;
    pub(in super::super) const SEQUENCE_FLAGS: u32 = 13;
    pub(in super::super) const SYSTEM_INFO: u32 = 45;
    #[cfg(feature = "compress")]
    pub(in super::super) const COMPRESSED_PACKETS: u32 = 50;
    pub(in super::super) const TIMESTAMP_CLOCK_ID: u32 = 58;
    pub(in super::super) const TRACE_PACKET_DEFAULTS: u32 = 59;
    pub(in super::super) const TRACK_DESCRIPTOR: u32 = 60;
    pub(in super::super) const PERF_SAMPLE: u32 = 66;
    pub(in super::super) const FIRST_PACKET_ON_SEQUENCE: u32 = 87;
}

/// `SystemInfo` and its `Utsname`
pub(super) mod system {
    pub(in super::super) const UTSNAME: u32 = 1;
    pub(in super::super) const SYSNAME: u32 = 1;
    pub(in super::super) const RELEASE: u32 = 3;
}

/// `ProcessTree` and its `Process`
pub(super) mod tree {
    pub(in super::super) const PROCESSES: u32 = 1;
    pub(in super::super) const PID: u32 = 1;
    pub(in super::super) const PPID: u32 = 2;
    pub(in super::super) const CMDLINE: u32 = 3;
    pub(in super::super) const PROCESS_START_FROM_BOOT: u32 = 7;
}

/// `ClockSnapshot` and its `Clock`
pub(super) mod clock {
    pub(in super::super) const CLOCKS: u32 = 1;
    pub(in super::super) const PRIMARY_TRACE_CLOCK: u32 = 2;
    pub(in super::super) const CLOCK_ID: u32 = 1;
    pub(in super::super) const TIMESTAMP: u32 = 2;
    pub(in super::super) const IS_INCREMENTAL: u32 = 3;
    pub(in super::super) const UNIT_MULTIPLIER_NS: u32 = 4;
}

/// `TrackDescriptor` and its messages
pub(super) mod track {
    pub(in super::super) const UUID: u32 = 1;
    pub(in super::super) const NAME: u32 = 2;
    pub(in super::super) const PROCESS: u32 = 3;
    pub(in super::super) const THREAD: u32 = 4;
    pub(in super::super) const PARENT_UUID: u32 = 5;
    pub(in super::super) const COUNTER: u32 = 8;
    pub(in super::super) const CHILD_ORDERING: u32 = 11;
    pub(in super::super) const SIBLING_ORDER_RANK: u32 = 12;
    pub(in super::super) const DESCRIPTION: u32 = 14;
    pub(in super::super) const SIBLING_MERGE_BEHAVIOR: u32 = 15;

    pub(in super::super) const PROCESS_PID: u32 = 1;
    pub(in super::super) const PROCESS_NAME: u32 = 6;
    pub(in super::super) const THREAD_PID: u32 = 1;
    pub(in super::super) const THREAD_TID: u32 = 2;
    pub(in super::super) const THREAD_NAME: u32 = 5;
    pub(in super::super) const COUNTER_UNIT: u32 = 3;
    pub(in super::super) const COUNTER_UNIT_NAME: u32 = 6;

    pub(in super::super) const ORDERING_EXPLICIT: u64 = 3;
    pub(in super::super) const MERGE_NONE: u64 = 2;
}

/// `TrackEvent` and its `DebugAnnotation`
pub(super) mod event {
    pub(in super::super) const CATEGORY_IIDS: u32 = 3;
    pub(in super::super) const DEBUG_ANNOTATIONS: u32 = 4;
    pub(in super::super) const TYPE: u32 = 9;
    pub(in super::super) const NAME_IID: u32 = 10;
    pub(in super::super) const TRACK_UUID: u32 = 11;
    pub(in super::super) const NAME: u32 = 23;
    pub(in super::super) const COUNTER_VALUE: u32 = 30;
    /// Varints. `flow_ids` and `terminating_flow_ids` (47, 48) have the same meaning and always
    /// take eight bytes.
    pub(in super::super) const FLOW_IDS_OLD: u32 = 36;
    pub(in super::super) const TERMINATING_FLOW_IDS_OLD: u32 = 42;
    pub(in super::super) const DOUBLE_COUNTER_VALUE: u32 = 44;
    pub(in super::super) const CALLSTACK_IID: u32 = 56;

    pub(in super::super) const SLICE_BEGIN: u64 = 1;
    pub(in super::super) const SLICE_END: u64 = 2;
    pub(in super::super) const INSTANT: u64 = 3;
    pub(in super::super) const COUNTER: u64 = 4;

    pub(in super::super) const ARG_NAME_IID: u32 = 1;
    pub(in super::super) const ARG_BOOL: u32 = 2;
    pub(in super::super) const ARG_UINT: u32 = 3;
    pub(in super::super) const ARG_INT: u32 = 4;
    pub(in super::super) const ARG_DOUBLE: u32 = 5;
    pub(in super::super) const ARG_STRING: u32 = 6;
    pub(in super::super) const ARG_STRING_IID: u32 = 17;
}

/// `InternedData` and its messages
pub(super) mod interned {
    pub(in super::super) const EVENT_CATEGORIES: u32 = 1;
    pub(in super::super) const EVENT_NAMES: u32 = 2;
    pub(in super::super) const DEBUG_ANNOTATION_NAMES: u32 = 3;
    pub(in super::super) const FUNCTION_NAMES: u32 = 5;
    pub(in super::super) const FRAMES: u32 = 6;
    pub(in super::super) const CALLSTACKS: u32 = 7;
    pub(in super::super) const MAPPING_PATHS: u32 = 17;
    pub(in super::super) const SOURCE_PATHS: u32 = 18;
    pub(in super::super) const MAPPINGS: u32 = 19;
    pub(in super::super) const DEBUG_ANNOTATION_STRING_VALUES: u32 = 29;

    pub(in super::super) const IID: u32 = 1;
    pub(in super::super) const TEXT: u32 = 2;
    pub(in super::super) const FRAME_FUNCTION: u32 = 2;
    pub(in super::super) const FRAME_MAPPING: u32 = 3;
    pub(in super::super) const FRAME_REL_PC: u32 = 4;
    pub(in super::super) const FRAME_SOURCE_PATH: u32 = 5;
    pub(in super::super) const FRAME_LINE: u32 = 6;
    pub(in super::super) const CALLSTACK_FRAMES: u32 = 2;
    pub(in super::super) const MAPPING_PATH: u32 = 7;
}

/// `PerfSample`
pub(super) mod sample {
    pub(in super::super) const CPU: u32 = 1;
    pub(in super::super) const PID: u32 = 2;
    pub(in super::super) const TID: u32 = 3;
    pub(in super::super) const CALLSTACK_IID: u32 = 4;
    pub(in super::super) const CPU_MODE: u32 = 5;
}

/// `FtraceEventBundle` and its messages
pub(super) mod ftrace {
    pub(in super::super) const CPU: u32 = 1;
    pub(in super::super) const EVENT: u32 = 2;
    pub(in super::super) const COMPACT_SCHED: u32 = 4;

    pub(in super::super) const EVENT_TIMESTAMP: u32 = 1;
    pub(in super::super) const EVENT_PID: u32 = 2;
    pub(in super::super) const EVENT_SCHED_SWITCH: u32 = 4;

    pub(in super::super) const SWITCH_PREV_COMM: u32 = 1;
    pub(in super::super) const SWITCH_PREV_PID: u32 = 2;
    pub(in super::super) const SWITCH_PREV_PRIO: u32 = 3;
    pub(in super::super) const SWITCH_PREV_STATE: u32 = 4;
    pub(in super::super) const SWITCH_NEXT_COMM: u32 = 5;
    pub(in super::super) const SWITCH_NEXT_PID: u32 = 6;
    pub(in super::super) const SWITCH_NEXT_PRIO: u32 = 7;

    pub(in super::super) const COMPACT_SWITCH_TIMESTAMP: u32 = 1;
    pub(in super::super) const COMPACT_SWITCH_PREV_STATE: u32 = 2;
    pub(in super::super) const COMPACT_SWITCH_NEXT_PID: u32 = 3;
    pub(in super::super) const COMPACT_SWITCH_NEXT_PRIO: u32 = 4;
    pub(in super::super) const COMPACT_INTERN_TABLE: u32 = 5;
    pub(in super::super) const COMPACT_SWITCH_NEXT_COMM: u32 = 6;
    pub(in super::super) const COMPACT_WAKING_TIMESTAMP: u32 = 7;
    pub(in super::super) const COMPACT_WAKING_PID: u32 = 8;
    pub(in super::super) const COMPACT_WAKING_TARGET_CPU: u32 = 9;
    pub(in super::super) const COMPACT_WAKING_PRIO: u32 = 10;
    pub(in super::super) const COMPACT_WAKING_COMM: u32 = 11;
    pub(in super::super) const COMPACT_WAKING_COMMON_FLAGS: u32 = 12;

    /// `common_flags` of the kernel's trace events: `TRACE_FLAG_HARDIRQ` and `TRACE_FLAG_SOFTIRQ`.
    pub(in super::super) const FLAG_HARDIRQ: u8 = 0x08;
    pub(in super::super) const FLAG_SOFTIRQ: u8 = 0x10;
}
