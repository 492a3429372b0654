use super::{RawRecord, RecordLayout, SampleId};
use crate::count::ReadValues;
use crate::error::DecodeError;
use crate::flags::{BranchFlags, SampleFlags};
use perf_sys::*;
use trace_common::{Cursor, ReadError, Timestamp};

/// A sample: the fields that its event selects, in the order of the kernel.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Sample<'a> {
    /// `PERF_RECORD_MISC_*`.
    pub misc: u16,
    /// Id of the event, at a fixed place.
    pub identifier: Option<u64>,
    /// Instruction address.
    pub ip: Option<u64>,
    /// Process id in the pid namespace of the process that opened the event: 0 for processes
    /// outside it, -1 (as `u32::MAX`) for processes that exited.
    pub pid: Option<u32>,
    /// Thread id, likewise.
    pub tid: Option<u32>,
    /// Timestamp.
    pub time: Option<Timestamp>,
    /// Address of the data.
    pub addr: Option<u64>,
    /// Id of the event, or of its group leader.
    pub id: Option<u64>,
    /// Id of the event itself.
    pub stream_id: Option<u64>,
    /// CPU.
    pub cpu: Option<u32>,
    /// Period that led to the sample.
    pub period: Option<u64>,
    /// Counts.
    pub read: Option<ReadValues<'a>>,
    /// Callchain.
    pub callchain: Option<Callchain<'a>>,
    /// Data of a tracepoint: see [`TracepointFormat`](crate::TracepointFormat). It can end with
    /// padding.
    pub raw: Option<&'a [u8]>,
    /// Last branches.
    pub branch_stack: Option<BranchStack<'a>>,
    /// Registers of user space.
    pub regs_user: Option<Registers<'a>>,
    /// The top of the user stack.
    pub stack_user: Option<StackUser<'a>>,
    /// Cost of the access, in the form of `WEIGHT` or `WEIGHT_STRUCT`.
    pub weight: Option<perf_sample_weight>,
    /// Source of the data.
    pub data_src: Option<perf_mem_data_src>,
    /// `PERF_TXN_*`.
    pub transaction: Option<u64>,
    /// Registers at the interrupt.
    pub regs_intr: Option<Registers<'a>>,
    /// Physical address of the data.
    pub phys_addr: Option<u64>,
    /// Id of the cgroup.
    pub cgroup: Option<u64>,
    /// Page size of the data address.
    pub data_page_size: Option<u64>,
    /// Page size of the instruction address.
    pub code_page_size: Option<u64>,
    /// A slice of the AUX area.
    pub aux: Option<&'a [u8]>,
}

/// Values of 8 bytes, not necessarily aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct U64Slice<'a>(&'a [u8]);

impl<'a> U64Slice<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Number of values.
    pub const fn len(&self) -> usize {
        self.0.len() / 8
    }

    /// Whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u64> + DoubleEndedIterator + 'a {
        self.0.chunks_exact(8).map(|b| b.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b)))
    }

    /// The value at this index.
    pub fn get(&self, index: usize) -> Option<u64> {
        self.0.get(index.checked_mul(8)?..)?.first_chunk().map(|b| u64::from_ne_bytes(*b))
    }
}

/// A callchain: addresses, innermost frame first, with context markers between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Callchain<'a>(pub U64Slice<'a>);

/// The context of a frame of a callchain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallchainContext {
    /// Before any marker.
    None,
    /// Hypervisor.
    Hypervisor,
    /// Kernel.
    Kernel,
    /// User space.
    User,
    /// The user part is deferred: the address is the cookie of
    /// [`CallchainDeferred`](super::CallchainDeferred).
    UserDeferred,
    /// Virtual machine.
    Guest,
    /// Kernel of a virtual machine.
    GuestKernel,
    /// User space of a virtual machine.
    GuestUser,
    /// A marker that is unknown to this crate.
    Other(u64),
}

/// One frame of a callchain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Frame {
    /// Its context.
    pub context: CallchainContext,
    /// Its address: of the instruction in the innermost frame, the return address in others.
    pub ip: u64,
}

impl<'a> Callchain<'a> {
    /// The frames, innermost first, without the markers.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + 'a {
        let mut context = CallchainContext::None;
        self.0.iter().filter_map(move |ip| {
            if ip < PERF_CONTEXT_MAX {
                return Some(Frame { context, ip });
            }
            context = match ip {
                PERF_CONTEXT_HV => CallchainContext::Hypervisor,
                PERF_CONTEXT_KERNEL => CallchainContext::Kernel,
                PERF_CONTEXT_USER => CallchainContext::User,
                PERF_CONTEXT_USER_DEFERRED => CallchainContext::UserDeferred,
                PERF_CONTEXT_GUEST => CallchainContext::Guest,
                PERF_CONTEXT_GUEST_KERNEL => CallchainContext::GuestKernel,
                PERF_CONTEXT_GUEST_USER => CallchainContext::GuestUser,
                other => CallchainContext::Other(other),
            };
            None
        })
    }

    /// The cookie of the deferred user part, with `defer_callchain`.
    pub fn deferred_cookie(&self) -> Option<u64> {
        self.frames().find(|f| f.context == CallchainContext::UserDeferred).map(|f| f.ip)
    }
}

/// The last branches, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BranchStack<'a> {
    /// Index of the newest in the hardware, with `BranchFlags::HW_INDEX`.
    pub hw_idx: Option<u64>,
    /// Event counts between branches, with `BranchFlags::COUNTERS`: the PMU's
    /// `branch_counter_nr` and `branch_counter_width` have their format.
    pub counters: Option<U64Slice<'a>>,
    entries: U64Slice<'a>,
}

impl<'a> BranchStack<'a> {
    /// Number of branches.
    pub const fn len(&self) -> usize {
        self.entries.len() / 3
    }

    /// Whether there are no branches.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The branches, newest first.
    pub fn iter(&self) -> impl Iterator<Item = perf_branch_entry> + 'a {
        let words = self.entries;
        (0..self.len()).map(move |i| {
            let word = |n| words.get(i * 3 + n).unwrap_or(0);
            perf_branch_entry { from: word(0), to: word(1), bits: word(2) }
        })
    }
}

/// The registers of a mask, in the order of their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registers<'a> {
    /// `PERF_SAMPLE_REGS_ABI_*`; with 0 (none) no registers follow.
    pub abi: u64,
    /// The register mask, as in `sample_regs_user` or `sample_regs_intr`.
    pub mask: u64,
    /// Their values.
    pub values: U64Slice<'a>,
}

impl Registers<'_> {
    /// The register with this bit number (see [`perf_sys::regs`]), if it was sampled.
    pub fn get(&self, bit: u32) -> Option<u64> {
        if bit > 63 || self.mask >> bit & 1 == 0 {
            return None;
        }
        self.values.get((self.mask & ((1 << bit) - 1)).count_ones() as usize)
    }
}

/// A copy of the top of the user stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackUser<'a> {
    /// The bytes, from the stack pointer on; only the first `dyn_size` are valid.
    pub data: &'a [u8],
    /// Bytes that were copied.
    pub dyn_size: u64,
}

impl<'a> StackUser<'a> {
    /// The valid bytes.
    pub fn copied(&self) -> &'a [u8] {
        let len = usize::try_from(self.dyn_size).unwrap_or(usize::MAX).min(self.data.len());
        self.data.get(..len).unwrap_or_default()
    }
}

impl<'a> Sample<'a> {
    /// The registers and the copy of the stack of user space, from which callers are found by unwind
    /// tables. `None` if the sample lacks one of the two.
    pub fn user_stack(&self) -> Option<(Registers<'a>, StackUser<'a>)> {
        self.regs_user.zip(self.stack_user)
    }

    /// Fills in the fields of an empty sample. A sample is large: copying one costs more than this.
    #[inline]
    pub(super) fn fill(
        &mut self,
        layout: &RecordLayout,
        raw: RawRecord<'a>,
    ) -> Result<(), DecodeError> {
        let body = Cursor::with_base(raw.bytes().get(8..).unwrap_or_default(), raw.offset() + 8);
        let filled = if layout.has_branch_index() {
            self.fill_with_branches(layout, body)
        } else {
            self.fields(layout, &mut body.clone(), false)
        };
        filled.map_err(|e| DecodeError::read("a sample", e))
    }

    /// An empty branch stack has no `hw_idx` if the hardware provided no stack, and has one if it
    /// provided an empty stack: the end of the record distinguishes the two.
    #[cold]
    fn fill_with_branches(
        &mut self,
        layout: &RecordLayout,
        body: Cursor<'a>,
    ) -> Result<(), ReadError> {
        let mut cursor = body;
        let filled = self.fields(layout, &mut cursor, false);
        let is_right = match &filled {
            Ok(()) => cursor.is_empty() || self.branch_stack.is_some_and(|s| !s.is_empty()),
            Err(_) => false,
        };
        if is_right {
            return filled;
        }
        let mut other = Self { misc: self.misc, ..Self::default() };
        if other.fields(layout, &mut body.clone(), true).is_err() {
            return filled;
        }
        *self = other;
        Ok(())
    }

    #[inline]
    fn fields(
        &mut self,
        layout: &RecordLayout,
        c: &mut Cursor<'a>,
        empty_stack_has_index: bool,
    ) -> Result<(), ReadError> {
        let has = |flag: SampleFlags| layout.sample.contains(flag);
        let s = self;
        if has(SampleFlags::IDENTIFIER) {
            s.identifier = Some(c.u64()?);
        }
        if has(SampleFlags::IP) {
            s.ip = Some(c.u64()?);
        }
        if has(SampleFlags::TID) {
            s.pid = Some(c.u32()?);
            s.tid = Some(c.u32()?);
        }
        if has(SampleFlags::TIME) {
            s.time = Some(Timestamp::from_nanos(c.i64()?));
        }
        if has(SampleFlags::ADDR) {
            s.addr = Some(c.u64()?);
        }
        if has(SampleFlags::ID) {
            s.id = Some(c.u64()?);
        }
        if has(SampleFlags::STREAM_ID) {
            s.stream_id = Some(c.u64()?);
        }
        if has(SampleFlags::CPU) {
            s.cpu = Some(c.u32()?);
            c.skip(4)?;
        }
        if has(SampleFlags::PERIOD) {
            s.period = Some(c.u64()?);
        }
        if has(SampleFlags::READ) {
            s.read = Some(ReadValues::take(c, layout.read_format)?);
        }
        if has(SampleFlags::CALLCHAIN) {
            s.callchain = Some(Callchain(words(c)?));
        }
        if has(SampleFlags::RAW) {
            let size = c.u32()?;
            s.raw = Some(c.bytes(size as usize)?);
        }
        if !layout.sample.intersects(AFTER_RAW) {
            return Ok(());
        }
        if has(SampleFlags::BRANCH_STACK) {
            s.branch_stack = Some(branch_stack(layout, c, empty_stack_has_index)?);
        }
        if has(SampleFlags::REGS_USER) {
            s.regs_user = Some(registers(c, layout.regs_user)?);
        }
        if has(SampleFlags::STACK_USER) {
            let size = c.u64()?;
            let data = c.bytes(length(size))?;
            let dyn_size = if size == 0 { 0 } else { c.u64()? };
            s.stack_user = Some(StackUser { data, dyn_size });
        }
        if layout.sample.intersects(SampleFlags::WEIGHT | SampleFlags::WEIGHT_STRUCT) {
            s.weight = Some(perf_sample_weight(c.u64()?));
        }
        if has(SampleFlags::DATA_SRC) {
            s.data_src = Some(perf_mem_data_src(c.u64()?));
        }
        if has(SampleFlags::TRANSACTION) {
            s.transaction = Some(c.u64()?);
        }
        if has(SampleFlags::REGS_INTR) {
            s.regs_intr = Some(registers(c, layout.regs_intr)?);
        }
        if has(SampleFlags::PHYS_ADDR) {
            s.phys_addr = Some(c.u64()?);
        }
        if has(SampleFlags::CGROUP) {
            s.cgroup = Some(c.u64()?);
        }
        if has(SampleFlags::DATA_PAGE_SIZE) {
            s.data_page_size = Some(c.u64()?);
        }
        if has(SampleFlags::CODE_PAGE_SIZE) {
            s.code_page_size = Some(c.u64()?);
        }
        if has(SampleFlags::AUX) {
            let size = c.u64()?;
            s.aux = Some(c.bytes(length(size))?);
        }
        Ok(())
    }

    /// The fields that other records have in their sample id.
    pub fn sample_id(&self) -> SampleId {
        SampleId {
            pid: self.pid,
            tid: self.tid,
            time: self.time,
            id: self.identifier.or(self.id),
            stream_id: self.stream_id,
            cpu: self.cpu,
        }
    }

    /// Whether the address is that of the instruction that caused the event.
    pub const fn is_exact(&self) -> bool {
        self.misc & PERF_RECORD_MISC_EXACT_IP != 0
    }
}

/// The fields after the raw data. Most samples have none of them.
const AFTER_RAW: SampleFlags = SampleFlags::all()
    .difference(SampleFlags::IDENTIFIER)
    .difference(SampleFlags::IP)
    .difference(SampleFlags::TID)
    .difference(SampleFlags::TIME)
    .difference(SampleFlags::ADDR)
    .difference(SampleFlags::ID)
    .difference(SampleFlags::STREAM_ID)
    .difference(SampleFlags::CPU)
    .difference(SampleFlags::PERIOD)
    .difference(SampleFlags::READ)
    .difference(SampleFlags::CALLCHAIN)
    .difference(SampleFlags::RAW);

/// A length that exceeds the address space is rejected by the cursor.
fn length(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// A count of words, and the words.
pub(super) fn words<'a>(c: &mut Cursor<'a>) -> Result<U64Slice<'a>, ReadError> {
    let count = c.u64()?;
    Ok(U64Slice(c.bytes(length(count).saturating_mul(8))?))
}

fn registers<'a>(c: &mut Cursor<'a>, mask: u64) -> Result<Registers<'a>, ReadError> {
    let abi = c.u64()?;
    let count = if abi == PERF_SAMPLE_REGS_ABI_NONE { 0 } else { mask.count_ones() as usize };
    Ok(Registers { abi, mask, values: U64Slice(c.bytes(count * 8)?) })
}

fn branch_stack<'a>(
    layout: &RecordLayout,
    c: &mut Cursor<'a>,
    empty_stack_has_index: bool,
) -> Result<BranchStack<'a>, ReadError> {
    let count = length(c.u64()?);
    let has_index =
        layout.branches.contains(BranchFlags::HW_INDEX) && (count > 0 || empty_stack_has_index);
    let hw_idx = if has_index { Some(c.u64()?) } else { None };
    let entries = U64Slice(c.bytes(count.saturating_mul(24))?);
    let counters = if layout.branches.contains(BranchFlags::COUNTERS) {
        Some(U64Slice(c.bytes(count.saturating_mul(8))?))
    } else {
        None
    };
    Ok(BranchStack { hw_idx, counters, entries })
}
