use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of [`perf_event_mmap_page::capabilities`].
pub mod capabilities {
    const fn bit(n: u32) -> u64 {
        if cfg!(target_endian = "big") { 1 << (63 - n) } else { 1 << n }
    }

    /// Always 0 since Linux 3.12.
    pub const CAP_BIT0: u64 = bit(0);
    /// Always 1 since Linux 3.12: the other bits have their current positions.
    pub const CAP_BIT0_IS_DEPRECATED: u64 = bit(1);
    /// A user-space instruction can read the counter.
    pub const CAP_USER_RDPMC: u64 = bit(2);
    /// `time_*` convert the hardware clock to `time_enabled` and `time_running`.
    pub const CAP_USER_TIME: u64 = bit(3);
    /// `time_zero` converts the hardware clock to the perf clock.
    pub const CAP_USER_TIME_ZERO: u64 = bit(4);
    /// The hardware clock is shorter than 64 bits: `time_cycles` and `time_mask`.
    pub const CAP_USER_TIME_SHORT: u64 = bit(5);
}

/// `struct perf_event_mmap_page`: the first page of a mapping of an event.
///
/// The kernel writes it concurrently. Use this type for its offsets; do not create a reference to a
/// mapped page.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct perf_event_mmap_page {
    /// Version of the structure.
    pub version: u32,
    /// Lowest version that it is compatible with.
    pub compat_version: u32,
    /// Sequence lock of the fields up to `time_mask`: odd while the kernel writes them.
    pub lock: u32,
    /// Number of the hardware counter plus 1; 0 if the event is not on a counter.
    pub index: u32,
    /// Offset to add to the hardware counter.
    pub offset: i64,
    /// Nanoseconds that the event was enabled.
    pub time_enabled: u64,
    /// Nanoseconds that the event was on the PMU.
    pub time_running: u64,
    /// Bits of [`capabilities`].
    pub capabilities: u64,
    /// Bits of the hardware counter, for sign extension.
    pub pmc_width: u16,
    /// Conversion of the hardware clock to nanoseconds: shift.
    pub time_shift: u16,
    /// Conversion of the hardware clock to nanoseconds: multiplier.
    pub time_mult: u32,
    /// Conversion of the hardware clock to `time_enabled`: offset.
    pub time_offset: u64,
    /// Conversion of the hardware clock to timestamps of samples: offset.
    pub time_zero: u64,
    /// Size of the header, up to the reserved part.
    pub size: u32,
    /// Reserved, zero.
    pub __reserved_1: u32,
    /// Hardware clock at the last update, for short clocks.
    pub time_cycles: u64,
    /// Mask of the hardware clock, for short clocks.
    pub time_mask: u64,
    /// Reserved, zero.
    pub __reserved: [u8; 116 * 8],
    /// Bytes ever written to the data ring: read with acquire ordering.
    pub data_head: u64,
    /// Bytes ever read from the data ring: written with release ordering.
    pub data_tail: u64,
    /// Offset of the data ring in the mapping.
    pub data_offset: u64,
    /// Size of the data ring.
    pub data_size: u64,
    /// Bytes ever written to the AUX area.
    pub aux_head: u64,
    /// Bytes ever read from the AUX area.
    pub aux_tail: u64,
    /// Offset of the AUX area in the mapping, set by user space.
    pub aux_offset: u64,
    /// Size of the AUX area, set by user space.
    pub aux_size: u64,
}
