//! Records of rings and of `perf.data` files.

mod layout;
mod sample;
mod sideband;
#[cfg(test)]
mod tests;

pub use layout::{Decoder, RecordLayout};
pub use sample::{
    BranchStack, Callchain, CallchainContext, Frame, Registers, Sample, StackUser, U64Slice,
};
pub use sideband::{
    Aux, BpfEvent, CallchainDeferred, Cgroup, Comm, FileId, Ksymbol, Loss, Mmap, Namespaces,
    ProcessEvent, Read, SampleId, Switch, SwitchPeer, TextPoke, ThreadId, Throttle,
};

use perf_sys::*;
pub use trace_common::CpuMode;

/// An undecoded record: a header of 8 bytes and its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawRecord<'a> {
    bytes: &'a [u8],
    offset: u64,
}

impl<'a> RawRecord<'a> {
    /// Creates a record of at least a header; `offset` is its offset in the input, for errors.
    pub(crate) const fn new(bytes: &'a [u8], offset: u64) -> Self {
        Self { bytes, offset }
    }

    /// Splits off the first record of `bytes`. `None` if `bytes` does not contain its header, or
    /// the whole size in it. `offset` is the offset of `bytes` in the input, for errors.
    pub fn split_first(bytes: &'a [u8], offset: u64) -> Option<(Self, &'a [u8])> {
        let header = bytes.first_chunk::<8>()?;
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        if size < header.len() {
            return None;
        }
        let (record, rest) = bytes.split_at_checked(size)?;
        Some((Self::new(record, offset), rest))
    }

    /// All bytes, including the header.
    #[inline]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its offset in the input.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// `PERF_RECORD_*`.
    #[inline]
    pub fn type_(&self) -> u32 {
        self.bytes.first_chunk().map_or(0, |b| u32::from_ne_bytes(*b))
    }

    /// `PERF_RECORD_MISC_*`.
    #[inline]
    pub fn misc(&self) -> u16 {
        self.bytes.get(4..6).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_ne_bytes(*b))
    }

    /// The mode of the CPU, `PERF_RECORD_MISC_KERNEL` and so on.
    pub fn cpu_mode(&self) -> CpuMode {
        match self.misc() & PERF_RECORD_MISC_CPUMODE_MASK {
            PERF_RECORD_MISC_KERNEL => CpuMode::Kernel,
            PERF_RECORD_MISC_USER => CpuMode::User,
            PERF_RECORD_MISC_HYPERVISOR => CpuMode::Hypervisor,
            PERF_RECORD_MISC_GUEST_KERNEL => CpuMode::GuestKernel,
            PERF_RECORD_MISC_GUEST_USER => CpuMode::GuestUser,
            _ => CpuMode::Unknown,
        }
    }

    /// The word of 8 bytes at this offset of the record.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> Option<u64> {
        self.bytes.get(at..)?.first_chunk().map(|b| u64::from_ne_bytes(*b))
    }
}

/// A decoded record; it borrows from the raw one.
///
/// The variants are the types 1 to 22 of `perf_event_open(2)`. Other types are
/// [`Record::Unknown`].
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "boxing a sample would allocate for each")]
#[non_exhaustive]
pub enum Record<'a> {
    /// A mapping, `PERF_RECORD_MMAP` or `PERF_RECORD_MMAP2`.
    Mmap(Mmap<'a>),
    /// Records that did not fit in the ring.
    Lost(Loss),
    /// A thread has a new name.
    Comm(Comm<'a>),
    /// A thread ended.
    Exit(ProcessEvent),
    /// The kernel throttled an event for its rate.
    Throttle(Throttle),
    /// The kernel unthrottled the event.
    Unthrottle(Throttle),
    /// A thread started.
    Fork(ProcessEvent),
    /// Counts of a task that ended, with `inherit_stat`.
    Read(Read<'a>),
    /// A sample.
    Sample(Sample<'a>),
    /// New data in the AUX area.
    Aux(Aux),
    /// Instruction tracing started for a thread.
    ItraceStart(ThreadId),
    /// Samples that the hardware lost.
    LostSamples(Loss),
    /// A context switch of the measured thread, or of any thread on the measured CPU.
    Switch(Switch),
    /// The namespaces of a process.
    Namespaces(Namespaces<'a>),
    /// A kernel symbol was registered or unregistered.
    Ksymbol(Ksymbol<'a>),
    /// A BPF program was loaded or unloaded.
    BpfEvent(BpfEvent),
    /// A cgroup was created, or existed already.
    Cgroup(Cgroup<'a>),
    /// The kernel's text was modified.
    TextPoke(TextPoke<'a>),
    /// An id of the hardware for the events in the AUX area.
    #[non_exhaustive]
    AuxOutputHwId {
        /// The id.
        hw_id: u64,
        /// Event, time and place.
        sample_id: SampleId,
    },
    /// The user callchain of earlier samples.
    CallchainDeferred(CallchainDeferred<'a>),
    /// A type that is unknown to this crate.
    Unknown(RawRecord<'a>),
}

impl Record<'_> {
    /// Event, time and place of the record; for a sample, from its fields. `None` for unknown
    /// types.
    pub fn sample_id(&self) -> Option<SampleId> {
        Some(match self {
            Self::Mmap(r) => r.sample_id,
            Self::Lost(r) | Self::LostSamples(r) => r.sample_id,
            Self::Comm(r) => r.sample_id,
            Self::Exit(r) | Self::Fork(r) => r.sample_id,
            Self::Throttle(r) | Self::Unthrottle(r) => r.sample_id,
            Self::Read(r) => r.sample_id,
            Self::Sample(r) => r.sample_id(),
            Self::Aux(r) => r.sample_id,
            Self::ItraceStart(r) => r.sample_id,
            Self::Switch(r) => r.sample_id,
            Self::Namespaces(r) => r.sample_id,
            Self::Ksymbol(r) => r.sample_id,
            Self::BpfEvent(r) => r.sample_id,
            Self::Cgroup(r) => r.sample_id,
            Self::TextPoke(r) => r.sample_id,
            Self::AuxOutputHwId { sample_id, .. } => *sample_id,
            Self::CallchainDeferred(r) => r.sample_id,
            Self::Unknown(_) => return None,
        })
    }
}
