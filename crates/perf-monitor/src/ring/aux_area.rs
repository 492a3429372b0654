use super::mapping::Memory;
use super::{Mapping, map_error};
use crate::error::{Error, Result};
use crate::{Field, OpenErrorReason, system};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The AUX area of an event: the raw trace of a PMU such as Intel PT or Arm SPE.
/// [`Record::Aux`](crate::Record::Aux) reports new data in it.
#[derive(Debug)]
pub struct AuxArea {
    control: Arc<Mapping>,
    map: Mapping,
    size: usize,
}

impl AuxArea {
    pub(super) fn map(event: impl AsFd, control: Arc<Mapping>, pages: usize) -> Result<Self> {
        if !pages.is_power_of_two() {
            return Err(Error::RingPages(pages));
        }
        let refused = |errno| {
            let reason = match errno {
                Errno::PERM => OpenErrorReason::LockedMemory {
                    memlock: system::memlock_limit(),
                    mlock_kb: system::mlock_kb(),
                },
                Errno::NOMEM => OpenErrorReason::OutOfMemory,
                Errno::OPNOTSUPP => {
                    OpenErrorReason::Fields(vec![Field { name: "an AUX area", since: "" }])
                }
                _ => OpenErrorReason::Unknown,
            };
            map_error(pages, errno, reason)
        };
        let page = rustix::param::page_size();
        let size = pages.checked_mul(page).ok_or_else(|| refused(Errno::INVAL))?;
        let offset = Self::place(&control, size);
        let raw: MmapRaw = MmapOptions::new()
            .len(size)
            .offset(offset)
            .map_raw(event.as_fd().as_raw_fd())
            .map_err(|e| refused(Errno::from_io_error(&e).unwrap_or(Errno::INVAL)))?;
        let map = Mapping::new(Memory::Mapped(raw)).ok_or_else(|| refused(Errno::INVAL))?;
        Ok(Self::of(control, map, size))
    }

    /// Sets the offset of the area in the mapping: behind the data ring.
    pub(super) fn place(control: &Mapping, size: usize) -> u64 {
        let offset = control.memory.len() as u64;
        control.aux_offset().store(offset, Ordering::Relaxed);
        control.aux_size().store(size as u64, Ordering::Relaxed);
        offset
    }

    pub(super) const fn of(control: Arc<Mapping>, map: Mapping, size: usize) -> Self {
        Self { control, map, size }
    }

    /// Bytes of the area.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Appends the bytes that a [`Record::Aux`](crate::Record::Aux) reports to `out`. If they
    /// exceed the area, only the newest are appended.
    pub fn copy(&self, aux_offset: u64, aux_size: u64, out: &mut Vec<u8>) {
        // The record was written after the data; it came through the ring with acquire ordering.
        let len = aux_size.min(self.size as u64) as usize;
        let from = out.len();
        out.resize(from + len, 0);
        let at = aux_offset.wrapping_add(aux_size - len as u64);
        self.map.copy(0, self.size, at, out.get_mut(from..).unwrap_or_default());
    }

    /// Releases the bytes up to this offset (of a record: `aux_offset + aux_size`) to the PMU.
    pub fn release(&self, up_to: u64) {
        // Ordering: the copy comes before this store (D in perf_output_put_handle).
        // https://github.com/torvalds/linux/blob/v6.12/kernel/events/ring_buffer.c
        self.control.aux_tail().store(up_to, Ordering::Release);
    }

    /// The current write position of the PMU.
    pub fn head(&self) -> u64 {
        // Ordering: data copied after this was written before it. The control page is mapped
        // writable, so an acquire load is allowed.
        self.control.aux_head().load(Ordering::Acquire)
    }
}
