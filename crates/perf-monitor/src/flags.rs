use bitflags::bitflags;
use perf_sys::*;

bitflags! {
    /// Which fields a sample has: `PERF_SAMPLE_*` of `perf_event_open(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SampleFlags: u64 {
        /// Instruction address.
        const IP = PERF_SAMPLE_IP;
        /// Process and thread id.
        const TID = PERF_SAMPLE_TID;
        /// Timestamp, on the clock of the event.
        const TIME = PERF_SAMPLE_TIME;
        /// Address of the data, or of the breakpoint.
        const ADDR = PERF_SAMPLE_ADDR;
        /// Counter values, in the layout of the read format.
        const READ = PERF_SAMPLE_READ;
        /// Callchain.
        const CALLCHAIN = PERF_SAMPLE_CALLCHAIN;
        /// Id of the event, or of its group leader.
        const ID = PERF_SAMPLE_ID;
        /// CPU number.
        const CPU = PERF_SAMPLE_CPU;
        /// Period that led to this sample.
        const PERIOD = PERF_SAMPLE_PERIOD;
        /// Id of the event itself, even in a group.
        const STREAM_ID = PERF_SAMPLE_STREAM_ID;
        /// The data of a tracepoint.
        const RAW = PERF_SAMPLE_RAW;
        /// Last branches.
        const BRANCH_STACK = PERF_SAMPLE_BRANCH_STACK;
        /// Registers of user space.
        const REGS_USER = PERF_SAMPLE_REGS_USER;
        /// A copy of the top of the user stack.
        const STACK_USER = PERF_SAMPLE_STACK_USER;
        /// Cost of the access, one number.
        const WEIGHT = PERF_SAMPLE_WEIGHT;
        /// Source of the data.
        const DATA_SRC = PERF_SAMPLE_DATA_SRC;
        /// Id of the event at a fixed place: needed when several events share a ring.
        const IDENTIFIER = PERF_SAMPLE_IDENTIFIER;
        /// State of a hardware transaction.
        const TRANSACTION = PERF_SAMPLE_TRANSACTION;
        /// Registers at the interrupt.
        const REGS_INTR = PERF_SAMPLE_REGS_INTR;
        /// Physical address of the data (Linux 4.14).
        const PHYS_ADDR = PERF_SAMPLE_PHYS_ADDR;
        /// A slice of the AUX area (Linux 5.5).
        const AUX = PERF_SAMPLE_AUX;
        /// Id of the cgroup (Linux 5.7).
        const CGROUP = PERF_SAMPLE_CGROUP;
        /// Page size of the data address (Linux 5.11).
        const DATA_PAGE_SIZE = PERF_SAMPLE_DATA_PAGE_SIZE;
        /// Page size of the instruction address (Linux 5.11).
        const CODE_PAGE_SIZE = PERF_SAMPLE_CODE_PAGE_SIZE;
        /// Cost of the access, three numbers (Linux 5.12). Not together with `WEIGHT`.
        const WEIGHT_STRUCT = PERF_SAMPLE_WEIGHT_STRUCT;
        const _ = !0;
    }

    /// The values that reading a counter returns: `PERF_FORMAT_*` of `perf_event_open(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReadFormat: u64 {
        /// Nanoseconds that the event was enabled.
        const TOTAL_TIME_ENABLED = PERF_FORMAT_TOTAL_TIME_ENABLED;
        /// Nanoseconds that the event was on the PMU.
        const TOTAL_TIME_RUNNING = PERF_FORMAT_TOTAL_TIME_RUNNING;
        /// Id of the event.
        const ID = PERF_FORMAT_ID;
        /// Every event of the group.
        const GROUP = PERF_FORMAT_GROUP;
        /// Samples that did not fit in the ring (Linux 6.0).
        const LOST = PERF_FORMAT_LOST;
        const _ = !0;
    }

    /// Which branches `SampleFlags::BRANCH_STACK` holds: `PERF_SAMPLE_BRANCH_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct BranchFlags: u64 {
        /// Branches in user space.
        const USER = PERF_SAMPLE_BRANCH_USER;
        /// Branches in the kernel.
        const KERNEL = PERF_SAMPLE_BRANCH_KERNEL;
        /// Branches in the hypervisor.
        const HV = PERF_SAMPLE_BRANCH_HV;
        /// Any branch.
        const ANY = PERF_SAMPLE_BRANCH_ANY;
        /// Calls of any kind.
        const ANY_CALL = PERF_SAMPLE_BRANCH_ANY_CALL;
        /// Returns of any kind.
        const ANY_RETURN = PERF_SAMPLE_BRANCH_ANY_RETURN;
        /// Indirect calls.
        const IND_CALL = PERF_SAMPLE_BRANCH_IND_CALL;
        /// Transaction aborts.
        const ABORT_TX = PERF_SAMPLE_BRANCH_ABORT_TX;
        /// In a transaction.
        const IN_TX = PERF_SAMPLE_BRANCH_IN_TX;
        /// Not in a transaction.
        const NO_TX = PERF_SAMPLE_BRANCH_NO_TX;
        /// Conditional branches.
        const COND = PERF_SAMPLE_BRANCH_COND;
        /// The call stack, from the branch records.
        const CALL_STACK = PERF_SAMPLE_BRANCH_CALL_STACK;
        /// Indirect jumps.
        const IND_JUMP = PERF_SAMPLE_BRANCH_IND_JUMP;
        /// Direct calls.
        const CALL = PERF_SAMPLE_BRANCH_CALL;
        /// Leaves the flags of the entries out.
        const NO_FLAGS = PERF_SAMPLE_BRANCH_NO_FLAGS;
        /// Leaves the cycles of the entries out.
        const NO_CYCLES = PERF_SAMPLE_BRANCH_NO_CYCLES;
        /// Saves the type of each branch.
        const TYPE_SAVE = PERF_SAMPLE_BRANCH_TYPE_SAVE;
        /// Saves the index in the hardware (Linux 5.7).
        const HW_INDEX = PERF_SAMPLE_BRANCH_HW_INDEX;
        /// Saves the privilege level (Linux 6.1).
        const PRIV_SAVE = PERF_SAMPLE_BRANCH_PRIV_SAVE;
        /// Saves event counts between branches (Linux 6.8).
        const COUNTERS = PERF_SAMPLE_BRANCH_COUNTERS;
        const _ = !0;
    }
}
