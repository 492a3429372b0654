use super::{Mapping, map};
use crate::counter::Counter;
use crate::diagnose;
use crate::error::Result;
use perf_sys::capabilities::*;
use perf_sys::{rdpmc, read_hardware_clock};
use rustix::io::Errno;
use rustix::thread::{Pid, gettid};
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

/// The control page of a counter of this thread: its count and its times, read without a system
/// call where the PMU offers that.
///
/// On x86 the offer depends on `/sys/bus/event_source/devices/cpu/rdpmc`; on arm64 on
/// `kernel.perf_user_access` (Linux 5.17) and on `config1` of the event having bit 1 (and bit 0
/// for a 64-bit counter).
///
/// It stays on the thread that it was mapped on: the instruction reads the counter of the CPU that
/// it runs on.
#[derive(Debug)]
pub struct UserPage {
    mapping: Mapping,
    owner: Pid,
    counts_this_thread: bool,
    _not_send: PhantomData<*const ()>,
}

/// What the control page tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserCount {
    /// The count; `None` if it can be had by [`Counter::read`] only: not offered, or the event is
    /// not on a counter now.
    pub value: Option<u64>,
    /// Nanoseconds that the event was enabled; up to now if `times_are_current`.
    pub time_enabled: u64,
    /// Nanoseconds that it was counting; up to now if `times_are_current`.
    pub time_running: u64,
    /// Whether the times were brought up to now by the hardware clock. Otherwise they are of the
    /// last time that the kernel wrote the page.
    pub times_are_current: bool,
}

impl UserPage {
    pub(crate) fn map(counter: &Counter) -> Result<Self> {
        let refused = |errno| {
            let reason = diagnose::map(counter.attr(), counter.follows_thread(), errno);
            super::map_error(0, errno, reason)
        };
        let raw = map(counter, 0, false).map_err(refused)?;
        let mapping = Mapping::new(raw).ok_or_else(|| refused(Errno::INVAL))?;
        let owner = gettid();
        let counts_this_thread = counter.opened_on() == Some(owner);
        Ok(Self { mapping, owner, counts_this_thread, _not_send: PhantomData })
    }

    fn has(&self, capability: u64) -> bool {
        self.mapping.capabilities().load(Ordering::Relaxed) & capability != 0
    }

    /// Whether the count can be read by an instruction.
    pub fn offers_rdpmc(&self) -> bool {
        self.has(CAP_USER_RDPMC)
    }

    /// Whether the times can be brought up to now.
    pub fn offers_time(&self) -> bool {
        self.has(CAP_USER_TIME)
    }

    /// Whether the hardware clock can be converted to timestamps of the perf clock.
    pub fn offers_time_zero(&self) -> bool {
        self.has(CAP_USER_TIME_ZERO)
    }

    /// Reads the page.
    pub fn read(&self) -> UserCount {
        let page = &self.mapping;
        loop {
            let sequence = page.lock().load(Ordering::Acquire);
            if sequence & 1 != 0 {
                std::hint::spin_loop();
                continue;
            }
            let mut out = UserCount {
                value: None,
                time_enabled: page.time_enabled().load(Ordering::Relaxed),
                time_running: page.time_running().load(Ordering::Relaxed),
                times_are_current: false,
            };
            let index = page.index().load(Ordering::Relaxed);
            if self.has(CAP_USER_TIME) {
                if let Some(delta) = self.time_since_update() {
                    out.time_enabled = out.time_enabled.wrapping_add(delta);
                    if index != 0 {
                        out.time_running = out.time_running.wrapping_add(delta);
                    }
                    out.times_are_current = true;
                }
            }
            if self.counts_this_thread && self.has(CAP_USER_RDPMC) && index != 0 {
                let width = u32::from(page.pmc_width().load(Ordering::Relaxed)).clamp(1, 64);
                // SAFETY: the kernel offers the instruction to this thread (cap_user_rdpmc; the
                // event counts the thread that we are on, as `UserPage` is not `Send`), and told
                // that the event is on this counter. If the kernel moves it between the two
                // loads, the value is of another counter and the sequence tells us to try again.
                if let Some(raw) = unsafe { rdpmc(index - 1) } {
                    let signed = (raw << (64 - width)) as i64 >> (64 - width);
                    let offset = page.offset().load(Ordering::Relaxed);
                    out.value = Some(offset.wrapping_add(signed as u64));
                }
            }
            fence(Ordering::Acquire);
            if page.lock().load(Ordering::Relaxed) == sequence {
                return out;
            }
        }
    }

    /// Nanoseconds since the kernel wrote the times, by the hardware clock.
    fn time_since_update(&self) -> Option<u64> {
        let offset = self.mapping.time_offset().load(Ordering::Relaxed);
        Some(offset.wrapping_add(self.clock_nanos()?))
    }

    fn clock_nanos(&self) -> Option<u64> {
        let page = &self.mapping;
        let mut cycles = read_hardware_clock()?;
        if self.has(CAP_USER_TIME_SHORT) {
            let base = page.time_cycles().load(Ordering::Relaxed);
            let mask = page.time_mask().load(Ordering::Relaxed);
            cycles = base.wrapping_add(cycles.wrapping_sub(base) & mask);
        }
        let shift = u32::from(page.time_shift().load(Ordering::Relaxed)).min(63);
        let mult = u64::from(page.time_mult().load(Ordering::Relaxed));
        let whole = (cycles >> shift).wrapping_mul(mult);
        let rest = (cycles & ((1 << shift) - 1)).wrapping_mul(mult) >> shift;
        Some(whole.wrapping_add(rest))
    }

    /// Now, on the perf clock: the clock of timestamps of events without
    /// [`clock`](crate::EventBuilder::clock). `None` if it is not offered.
    pub fn perf_clock(&self) -> Option<trace_common::Timestamp> {
        if !self.has(CAP_USER_TIME_ZERO) {
            return None;
        }
        loop {
            let sequence = self.mapping.lock().load(Ordering::Acquire);
            let zero = self.mapping.time_zero().load(Ordering::Relaxed);
            let nanos = self.clock_nanos()?;
            fence(Ordering::Acquire);
            if sequence & 1 == 0 && self.mapping.lock().load(Ordering::Relaxed) == sequence {
                let now = zero.wrapping_add(nanos) as i64;
                return Some(trace_common::Timestamp::from_nanos(now));
            }
        }
    }

    /// The thread whose counter this is.
    pub const fn owner(&self) -> Pid {
        self.owner
    }
}
