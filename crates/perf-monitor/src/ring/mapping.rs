//! The mapping of an event: its control page, and the bytes of its rings, which wrap.

use memmap2::{MmapOptions, MmapRaw};
use perf_sys::perf_event_mmap_page;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// Memory that another party writes to.
#[derive(Debug)]
pub(super) enum Memory {
    Mapped(MmapRaw),
    #[cfg(test)]
    Plain(super::tests::PlainMemory),
}

impl Memory {
    pub(super) fn as_ptr(&self) -> *mut u8 {
        match self {
            Self::Mapped(map) => map.as_mut_ptr(),
            #[cfg(test)]
            Self::Plain(memory) => memory.as_ptr(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Mapped(map) => map.len(),
            #[cfg(test)]
            Self::Plain(memory) => memory.len(),
        }
    }
}

/// A mapping that starts with the control page.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) memory: Memory,
}

macro_rules! atomic_fields {
    ($($name:ident: $atomic:ty, $int:ty;)*) => {$(
        pub(super) fn $name(&self) -> &$atomic {
            const OFFSET: usize = offset_of!(perf_event_mmap_page, $name);
            const { assert!(OFFSET + size_of::<$int>() <= size_of::<perf_event_mmap_page>()) };
            // SAFETY: the mapping is at least a page long (checked by `new`), so that the offset,
            // which is within the structure of less than a page, is in it.
            let pointer = unsafe { self.memory.as_ptr().add(OFFSET) };
            // SAFETY: the pointer is aligned, as the mapping is to a page and the field is in a
            // `repr(C)` structure; the memory lives as long as `self`; the kernel and we access
            // it by whole words only.
            unsafe { &*pointer.cast::<$atomic>() }
        }
    )*};
}

impl Mapping {
    pub(super) fn new(memory: Memory) -> Option<Self> {
        const { assert!(size_of::<perf_event_mmap_page>() <= 4096) };
        (memory.len() >= size_of::<perf_event_mmap_page>()).then_some(Self { memory })
    }

    atomic_fields! {
        lock: AtomicU32, u32;
        index: AtomicU32, u32;
        offset: AtomicU64, i64;
        time_enabled: AtomicU64, u64;
        time_running: AtomicU64, u64;
        capabilities: AtomicU64, u64;
        pmc_width: AtomicU16, u16;
        time_shift: AtomicU16, u16;
        time_mult: AtomicU32, u32;
        time_offset: AtomicU64, u64;
        time_zero: AtomicU64, u64;
        time_cycles: AtomicU64, u64;
        time_mask: AtomicU64, u64;
        data_head: AtomicU64, u64;
        data_tail: AtomicU64, u64;
        data_offset: AtomicU64, u64;
        data_size: AtomicU64, u64;
        aux_head: AtomicU64, u64;
        aux_tail: AtomicU64, u64;
        aux_offset: AtomicU64, u64;
        aux_size: AtomicU64, u64;
    }

    /// Copies `out.len()` bytes from position `at` of the ring that starts at byte `start` of the
    /// mapping and has `size` bytes. The copy wraps at the end of the ring.
    ///
    /// Panics if the ring is not in the mapping or is smaller than `out`; callers guarantee both.
    pub(super) fn copy(&self, start: usize, size: usize, at: u64, out: &mut [u8]) {
        assert!(
            start <= self.memory.len() && size <= self.memory.len() - start && out.len() <= size
        );
        if out.is_empty() {
            return;
        }
        let from = (at % size as u64) as usize;
        let first = out.len().min(size - from);
        let (head, rest) = out.split_at_mut(first);
        // SAFETY: `start + size` is in the mapping and `from` is below `size`.
        let source = unsafe { self.memory.as_ptr().add(start + from) };
        // SAFETY: `first` bytes are left of the ring at `from`, and `head` has that length; `head`
        // is local memory, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(source, head.as_mut_ptr(), head.len()) };
        // SAFETY: `start` is in the mapping.
        let source = unsafe { self.memory.as_ptr().add(start) };
        // SAFETY: `rest` is shorter than the ring, and is local memory.
        unsafe { std::ptr::copy_nonoverlapping(source, rest.as_mut_ptr(), rest.len()) };
    }
}

/// Maps `pages` data pages of an event behind its control page.
pub(super) fn map(fd: impl AsFd, pages: usize, writable: bool) -> Result<Mapping, Errno> {
    let len = pages
        .checked_add(1)
        .and_then(|n| n.checked_mul(rustix::param::page_size()))
        .ok_or(Errno::INVAL)?;
    let mut options = MmapOptions::new();
    options.len(len);
    let fd = fd.as_fd().as_raw_fd();
    let map = if writable { options.map_raw(fd) } else { options.map_raw_read_only(fd) };
    let map = map.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))?;
    Mapping::new(Memory::Mapped(map)).ok_or(Errno::INVAL)
}
