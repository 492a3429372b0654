use crate::PERF_ATTR_SIZE_VER9;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct perf_event_attr`: the event to count or sample, and the data to record.
///
/// Each union of the C structure is one field here, named after its first member; the other members
/// are in its description. The bit fields are one word, [`flags`](Self::flags), with a getter and a
/// setter for each.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct perf_event_attr {
    /// `PERF_TYPE_*`, or the number of a dynamic PMU.
    pub type_: u32,
    /// Size of the structure that the caller uses, `PERF_ATTR_SIZE_*`.
    pub size: u32,
    /// The event, encoded for its type.
    pub config: u64,
    /// Events per sample; with `freq`, samples per second (`sample_freq`).
    pub sample_period: u64,
    /// `PERF_SAMPLE_*`.
    pub sample_type: u64,
    /// `PERF_FORMAT_*`.
    pub read_format: u64,
    /// The bit fields: use the methods.
    pub flags: u64,
    /// Samples until a reader is woken; with `watermark`, bytes (`wakeup_watermark`).
    pub wakeup_events: u32,
    /// `HW_BREAKPOINT_*` for a breakpoint: 1 read, 2 write, 3 both, 4 execute.
    pub bp_type: u32,
    /// `config1`, `bp_addr`, `kprobe_func` or `uprobe_path` (the last two are addresses of
    /// NUL-terminated strings: see [`perf_event_open_path`](crate::perf_event_open_path)).
    pub config1: u64,
    /// `config2`, `bp_len`, `kprobe_addr` or `probe_offset`.
    pub config2: u64,
    /// `PERF_SAMPLE_BRANCH_*`.
    pub branch_sample_type: u64,
    /// Registers of [`regs`](crate::regs) for `PERF_SAMPLE_REGS_USER`.
    pub sample_regs_user: u64,
    /// Bytes of the user stack for `PERF_SAMPLE_STACK_USER`, a multiple of 8.
    pub sample_stack_user: u32,
    /// Clock of all timestamps, with `use_clockid`.
    pub clockid: i32,
    /// Registers of [`regs`](crate::regs) for `PERF_SAMPLE_REGS_INTR`.
    pub sample_regs_intr: u64,
    /// Bytes of AUX data until a reader is woken.
    pub aux_watermark: u32,
    /// Maximum number of frames of a callchain.
    pub sample_max_stack: u16,
    /// Reserved, zero.
    pub __reserved_2: u16,
    /// Bytes of AUX data in each sample, for `PERF_SAMPLE_AUX`.
    pub aux_sample_size: u32,
    /// Bits [`AUX_START_PAUSED`](Self::AUX_START_PAUSED), [`AUX_PAUSE`](Self::AUX_PAUSE) and
    /// [`AUX_RESUME`](Self::AUX_RESUME).
    pub aux_action: u32,
    /// Value of `si_perf_data` of the signal, with `sigtrap`.
    pub sig_data: u64,
    /// Additional configuration of the event.
    pub config3: u64,
    /// Additional configuration of the event.
    pub config4: u64,
}

/// Position of C's bit field of `width` bits after `n` others in a word of `size` bits.
pub(crate) const fn position(n: u32, width: u32, size: u32, is_big_endian: bool) -> u32 {
    if is_big_endian { size - n - width } else { n }
}

/// Position of a bit field of [`perf_event_attr::flags`].
const fn shift(n: u32, width: u32) -> u32 {
    position(n, width, 64, cfg!(target_endian = "big"))
}

/// Bit `n` of [`perf_event_attr::aux_action`].
const fn action(n: u32, is_big_endian: bool) -> u32 {
    1 << position(n, 1, 32, is_big_endian)
}

macro_rules! bits {
    ($($(#[$doc:meta])* $bit:literal $name:ident $set:ident;)*) => {
        impl perf_event_attr {
            $(
                $(#[$doc])*
                #[inline]
                pub const fn $name(&self) -> bool {
                    self.flags >> shift($bit, 1) & 1 != 0
                }

                #[doc = concat!("Sets [`", stringify!($name), "`](Self::", stringify!($name), ").")]
                #[inline]
                pub const fn $set(&mut self, on: bool) {
                    let bit = 1 << shift($bit, 1);
                    self.flags = if on { self.flags | bit } else { self.flags & !bit };
                }
            )*

            /// Every one-bit field: name, bit number in the order of the C structure.
            pub const FLAG_NAMES: &[(&str, u32)] = &[$((stringify!($name), $bit)),*];
        }

        /// Getters and setters by name, for the comparison with the header.
        #[cfg(test)]
        pub(crate) const SETTERS: &[(&str, fn(&mut perf_event_attr, bool), fn(&perf_event_attr) -> bool)] =
            &[$((stringify!($name), perf_event_attr::$set, perf_event_attr::$name)),*];
    };
}

bits! {
    /// Off until enabled.
    0 disabled set_disabled;
    /// Child tasks inherit it.
    1 inherit set_inherit;
    /// Must always be on the PMU; an error state otherwise.
    2 pinned set_pinned;
    /// The only group on the PMU.
    3 exclusive set_exclusive;
    /// Does not count user space.
    4 exclude_user set_exclude_user;
    /// Does not count the kernel.
    5 exclude_kernel set_exclude_kernel;
    /// Does not count the hypervisor.
    6 exclude_hv set_exclude_hv;
    /// Does not count when idle.
    7 exclude_idle set_exclude_idle;
    /// Records of executable mappings.
    8 mmap set_mmap;
    /// Records of thread names.
    9 comm set_comm;
    /// `sample_period` is a frequency, in samples per second.
    10 freq set_freq;
    /// Counts per task, in `PERF_RECORD_READ` at exit.
    11 inherit_stat set_inherit_stat;
    /// Enabled by the next `execve(2)`.
    12 enable_on_exec set_enable_on_exec;
    /// Records of forks and exits.
    13 task set_task;
    /// `wakeup_events` is in bytes.
    14 watermark set_watermark;
    /// Records of mappings that are not executable.
    17 mmap_data set_mmap_data;
    /// Every record ends with a sample id.
    18 sample_id_all set_sample_id_all;
    /// Does not count the host.
    19 exclude_host set_exclude_host;
    /// Does not count guests.
    20 exclude_guest set_exclude_guest;
    /// Callchains without the kernel part.
    21 exclude_callchain_kernel set_exclude_callchain_kernel;
    /// Callchains without the user part.
    22 exclude_callchain_user set_exclude_callchain_user;
    /// Records of mappings have the inode (Linux 3.16).
    23 mmap2 set_mmap2;
    /// Names that come from `execve(2)` are marked (Linux 3.16).
    24 comm_exec set_comm_exec;
    /// Timestamps are of `clockid` (Linux 4.1).
    25 use_clockid set_use_clockid;
    /// Records of context switches (Linux 4.3).
    26 context_switch set_context_switch;
    /// The ring is overwritten from its end to its start (Linux 4.7).
    27 write_backward set_write_backward;
    /// Records of namespaces (Linux 4.12).
    28 namespaces set_namespaces;
    /// Records of kernel symbols that come and go (Linux 5.1).
    29 ksymbol set_ksymbol;
    /// Records of BPF programs (Linux 5.1).
    30 bpf_event set_bpf_event;
    /// Output to the AUX area, not to events (Linux 5.4).
    31 aux_output set_aux_output;
    /// Records of cgroups (Linux 5.7).
    32 cgroup set_cgroup;
    /// Records of changes to kernel text (Linux 5.8).
    33 text_poke set_text_poke;
    /// Build ids in `PERF_RECORD_MMAP2` (Linux 5.12).
    34 build_id set_build_id;
    /// Threads inherit it, processes do not (Linux 5.13).
    35 inherit_thread set_inherit_thread;
    /// Removed from a task that calls `execve(2)` (Linux 5.13).
    36 remove_on_exec set_remove_on_exec;
    /// Sends `SIGTRAP` to the task, synchronously (Linux 5.13).
    37 sigtrap set_sigtrap;
    /// User callchains are taken on return to user space (Linux 6.19).
    38 defer_callchain set_defer_callchain;
    /// Emits `PERF_RECORD_CALLCHAIN_DEFERRED` (Linux 6.19).
    39 defer_output set_defer_output;
}

impl perf_event_attr {
    /// Bit of `aux_action`: the AUX event starts paused (Linux 6.13).
    pub const AUX_START_PAUSED: u32 = action(0, cfg!(target_endian = "big"));
    /// Bit of `aux_action`: an overflow pauses the AUX event of the group (Linux 6.13).
    pub const AUX_PAUSE: u32 = action(1, cfg!(target_endian = "big"));
    /// Bit of `aux_action`: an overflow resumes the AUX event of the group (Linux 6.13).
    pub const AUX_RESUME: u32 = action(2, cfg!(target_endian = "big"));

    /// An attribute of the newest size for an event; all other fields are zero.
    pub const fn new(type_: u32, config: u64) -> Self {
        Self {
            type_,
            size: PERF_ATTR_SIZE_VER9,
            config,
            sample_period: 0,
            sample_type: 0,
            read_format: 0,
            flags: 0,
            wakeup_events: 0,
            bp_type: 0,
            config1: 0,
            config2: 0,
            branch_sample_type: 0,
            sample_regs_user: 0,
            sample_stack_user: 0,
            clockid: 0,
            sample_regs_intr: 0,
            aux_watermark: 0,
            sample_max_stack: 0,
            __reserved_2: 0,
            aux_sample_size: 0,
            aux_action: 0,
            sig_data: 0,
            config3: 0,
            config4: 0,
        }
    }

    /// Permitted skid between the address of a sample and the event: 0 (any) to 3 (none).
    #[inline]
    pub const fn precise_ip(&self) -> u8 {
        (self.flags >> shift(15, 2) & 3) as u8
    }

    /// Sets [`precise_ip`](Self::precise_ip); only the two low bits are used.
    #[inline]
    pub const fn set_precise_ip(&mut self, skid: u8) {
        let at = shift(15, 2);
        self.flags = self.flags & !(3 << at) | ((skid & 3) as u64) << at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bit field has the lowest bits on little-endian machines, the highest on big-endian ones.
    #[test]
    fn bit_fields_are_in_the_order_of_the_machine() {
        assert_eq!([0, 1, 2].map(|n| action(n, false)), [1, 2, 4]);
        assert_eq!([0, 1, 2].map(|n| action(n, true)), [1 << 31, 1 << 30, 1 << 29]);
        assert_eq!([position(15, 2, 64, false), position(15, 2, 64, true)], [15, 47]);
    }
}
