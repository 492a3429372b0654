//! Layouts of records: their headers and the fixed parts after them.
//!
//! Variable parts (file names, callchains) and the sample id at the end follow the fixed part.
//! `sample_type` and `read_format` of the event determine the fields of a sample.

use crate::attr::position;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
        )]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
    )*};
}

layout! {
    /// `struct perf_event_header`: the start of every record.
    perf_event_header {
        /// `PERF_RECORD_*`.
        type_: u32,
        /// `PERF_RECORD_MISC_*`.
        misc: u16,
        /// Bytes of the record, this header included.
        size: u16,
    }
    /// `struct perf_ns_link_info`: one namespace.
    perf_ns_link_info {
        /// Device of the namespace file.
        dev: u64,
        /// Inode of the namespace file.
        ino: u64,
    }
    /// Fixed part of `PERF_RECORD_MMAP`; the file name follows.
    perf_record_mmap {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Start address.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Offset in the file, in bytes.
        pgoff: u64,
    }
    /// Fixed part of `PERF_RECORD_MMAP2`; the file name follows.
    perf_record_mmap2 {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Start address.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Offset in the file, in bytes.
        pgoff: u64,
        /// Device (major, minor: 4 bytes each), inode and generation (8 bytes each); or with
        /// `PERF_RECORD_MISC_MMAP_BUILD_ID` the size of the build id, 3 reserved bytes, build id.
        file: [u8; 24],
        /// `PROT_*` of the mapping.
        prot: u32,
        /// `MAP_*` of the mapping.
        flags: u32,
    }
    /// Fixed part of `PERF_RECORD_LOST`.
    perf_record_lost {
        /// Id of the event that lost records.
        id: u64,
        /// Number of lost records.
        lost: u64,
    }
    /// Fixed part of `PERF_RECORD_FORK` and `PERF_RECORD_EXIT`.
    perf_record_fork {
        /// Process.
        pid: u32,
        /// Parent process.
        ppid: u32,
        /// Thread.
        tid: u32,
        /// Parent thread.
        ptid: u32,
        /// Timestamp.
        time: u64,
    }
    /// Fixed part of `PERF_RECORD_THROTTLE` and `PERF_RECORD_UNTHROTTLE`.
    perf_record_throttle {
        /// Timestamp.
        time: u64,
        /// Id of the event.
        id: u64,
        /// Stream id of the event.
        stream_id: u64,
    }
    /// Fixed part of `PERF_RECORD_AUX`.
    perf_record_aux {
        /// Offset of the new data in the AUX area.
        aux_offset: u64,
        /// Size of the new data in bytes.
        aux_size: u64,
        /// `PERF_AUX_FLAG_*`.
        flags: u64,
    }
    /// Fixed part of `PERF_RECORD_KSYMBOL`; the name follows.
    perf_record_ksymbol {
        /// Start address.
        addr: u64,
        /// Bytes.
        len: u32,
        /// `PERF_RECORD_KSYMBOL_TYPE_*`.
        ksym_type: u16,
        /// `PERF_RECORD_KSYMBOL_FLAGS_*`.
        flags: u16,
    }
    /// Fixed part of `PERF_RECORD_BPF_EVENT`.
    perf_record_bpf_event {
        /// `PERF_BPF_EVENT_*`.
        type_: u16,
        /// Reserved, zero.
        flags: u16,
        /// Id of the program.
        id: u32,
        /// Tag of the program.
        tag: [u8; 8],
    }
    /// Fixed part of `PERF_RECORD_COMM`; the name follows.
    perf_record_comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
    }
    /// Fixed part of `PERF_RECORD_READ`; the values follow, in the layout of `read_format`.
    perf_record_read {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
    }
    /// Fixed part of `PERF_RECORD_ITRACE_START`.
    perf_record_itrace_start {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
    }
    /// Fixed part of `PERF_RECORD_LOST_SAMPLES`.
    perf_record_lost_samples {
        /// Number of lost samples.
        lost: u64,
    }
    /// Fixed part of `PERF_RECORD_SWITCH_CPU_WIDE`; `PERF_RECORD_SWITCH` has none.
    perf_record_switch {
        /// Process of the next or previous thread.
        next_prev_pid: u32,
        /// The next or previous thread.
        next_prev_tid: u32,
    }
    /// Fixed part of `PERF_RECORD_NAMESPACES`; a [`perf_ns_link_info`] for each namespace follows.
    perf_record_namespaces {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Number of namespaces, in the order of `NET_NS_INDEX` and so on.
        nr_namespaces: u64,
    }
    /// Fixed part of `PERF_RECORD_CGROUP`; the path follows.
    perf_record_cgroup {
        /// Id of the cgroup.
        id: u64,
    }
    /// Fixed part of `PERF_RECORD_TEXT_POKE`; the bytes before and after follow, padded together.
    perf_record_text_poke {
        /// Address: 8 bytes in two words, because the fixed part is 12 bytes long.
        addr: [u32; 2],
        /// Number of bytes before.
        old_len: u16,
        /// Number of bytes after.
        new_len: u16,
    }
    /// Fixed part of `PERF_RECORD_AUX_OUTPUT_HW_ID`.
    perf_record_aux_output_hw_id {
        /// Id of the hardware for the events in the AUX area.
        hw_id: u64,
    }
    /// Fixed part of `PERF_RECORD_CALLCHAIN_DEFERRED`; the addresses follow.
    perf_record_callchain_deferred {
        /// The cookie at the end of the callchains of the samples.
        cookie: u64,
        /// Number of addresses.
        nr: u64,
    }
    /// The sample id at the end of records, with every field. A record has the fields selected by
    /// the event's `sample_type`, in this order; each takes 8 bytes.
    perf_sample_id {
        /// Process (`PERF_SAMPLE_TID`).
        pid: u32,
        /// Thread (`PERF_SAMPLE_TID`).
        tid: u32,
        /// Timestamp (`PERF_SAMPLE_TIME`).
        time: u64,
        /// Id of the event, or of its group leader (`PERF_SAMPLE_ID`).
        id: u64,
        /// Id of the event itself (`PERF_SAMPLE_STREAM_ID`).
        stream_id: u64,
        /// CPU (`PERF_SAMPLE_CPU`).
        cpu: u32,
        /// Reserved, zero (`PERF_SAMPLE_CPU`).
        res: u32,
        /// The same as `id` (`PERF_SAMPLE_IDENTIFIER`).
        identifier: u64,
    }
    /// `struct perf_branch_entry`: one taken branch.
    perf_branch_entry {
        /// Address of the branch.
        from: u64,
        /// Its target.
        to: u64,
        /// Bit fields: use the methods.
        bits: u64,
    }
}

/// `siginfo_t` of the `SIGTRAP` that an event with `sigtrap` sends, up to its last field.
///
/// (mips has two of the fields in the opposite order.)
///
/// A signal handler gets it as its `siginfo_t`; [`sigtrap_wait`](crate::sigtrap_wait) needs no
/// handler.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct perf_siginfo {
    /// `SIGTRAP`.
    pub si_signo: i32,
    /// 0.
    pub si_errno: i32,
    /// [`TRAP_PERF`](crate::TRAP_PERF); any other value is a `SIGTRAP` of another origin, with
    /// another meaning of the following fields.
    pub si_code: i32,
    /// Padding.
    pub __pad: [u32; size_of::<usize>() / 4 - 1],
    /// The address of the sample, such as that of a breakpoint, if `sample_type` has it.
    pub si_addr: usize,
    /// `sig_data` of the event.
    pub si_perf_data: usize,
    /// `type` of the event.
    pub si_perf_type: u32,
    /// [`TRAP_PERF_FLAG_ASYNC`](crate::TRAP_PERF_FLAG_ASYNC), or 0.
    pub si_perf_flags: u32,
}

/// Position of a bit field that C declares once: the machine determines the order.
const fn declared_once(n: u32, width: u32, is_big_endian: bool) -> u32 {
    position(n, width, 64, is_big_endian)
}

/// Position of a bit field that C declares for each order of bits: it is the same on every machine.
const fn declared_twice(n: u32, _width: u32, _is_big_endian: bool) -> u32 {
    n
}

macro_rules! fields {
    ($ty:ident . $word:tt, $position:ident:
        $($(#[$doc:meta])* $name:ident $at:literal $width:literal;)*) => {
        impl $ty {
            $(
                $(#[$doc])*
                #[inline]
                pub const fn $name(&self) -> u64 {
                    let at = Self::position($at, $width, cfg!(target_endian = "big"));
                    self.$word >> at & ((1 << $width) - 1)
                }
            )*

            const fn position(n: u32, width: u32, is_big_endian: bool) -> u32 {
                $position(n, width, is_big_endian)
            }
        }
        /// Names, positions and widths.
        #[cfg(test)]
        impl $ty {
            pub(crate) const FIELDS: &[(&str, u32, u32)] = &[$((
                stringify!($name),
                Self::position($at, $width, cfg!(target_endian = "big")),
                $width,
            )),*];
        }
    };
}

fields! { perf_branch_entry.bits, declared_once:
    /// The target was mispredicted.
    mispred 0 1;
    /// The target was predicted.
    predicted 1 1;
    /// In a transaction.
    in_tx 2 1;
    /// Aborts a transaction.
    abort 3 1;
    /// Cycles since the last branch.
    cycles 4 16;
    /// `PERF_BR_*`.
    type_ 20 4;
    /// `PERF_BR_SPEC_*`.
    spec 24 2;
    /// `PERF_BR_NEW_*`.
    new_type 26 4;
    /// `PERF_BR_PRIV_*`.
    priv_ 30 3;
}

/// `union perf_mem_data_src`: where the data of a memory access came from.
#[repr(transparent)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct perf_mem_data_src(pub u64);

fields! { perf_mem_data_src.0, declared_twice:
    /// `PERF_MEM_OP_*`.
    mem_op 0 5;
    /// `PERF_MEM_LVL_*`.
    mem_lvl 5 14;
    /// `PERF_MEM_SNOOP_*`.
    mem_snoop 19 5;
    /// `PERF_MEM_LOCK_*`.
    mem_lock 24 2;
    /// `PERF_MEM_TLB_*`.
    mem_dtlb 26 7;
    /// `PERF_MEM_LVLNUM_*`.
    mem_lvl_num 33 4;
    /// `PERF_MEM_REMOTE_*`.
    mem_remote 37 1;
    /// `PERF_MEM_SNOOPX_*`.
    mem_snoopx 38 2;
    /// `PERF_MEM_BLK_*`.
    mem_blk 40 3;
    /// `PERF_MEM_HOPS_*`.
    mem_hops 43 3;
    /// `PERF_MEM_REGION_*`.
    mem_region 46 5;
}

/// `union perf_sample_weight`: cost of the sampled access or branch.
#[repr(transparent)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct perf_sample_weight(pub u64);

fields! { perf_sample_weight.0, declared_twice:
    /// First weight; the whole latency on x86.
    var1_dw 0 32;
    /// Second weight.
    var2_w 32 16;
    /// Third weight.
    var3_w 48 16;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header has declarations of both orders for all but the branches.
    #[test]
    fn bit_fields_are_where_the_header_has_them() {
        let positions =
            |of: fn(u32, u32, bool) -> u32, n, width| [false, true].map(|big| of(n, width, big));
        assert_eq!(positions(perf_branch_entry::position, 0, 1), [0, 63]);
        assert_eq!(positions(perf_branch_entry::position, 4, 16), [4, 44]);
        assert_eq!(positions(perf_mem_data_src::position, 0, 5), [0, 0]);
        assert_eq!(positions(perf_mem_data_src::position, 33, 4), [33, 33]);
        assert_eq!(positions(perf_sample_weight::position, 0, 32), [0, 0]);
        assert_eq!(positions(perf_sample_weight::position, 48, 16), [48, 48]);
    }
}
