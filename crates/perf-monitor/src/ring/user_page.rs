use super::{Mapping, map};
use crate::counter::Counter;
use crate::diagnose;
use crate::error::Result;
use crate::pmu;
use crate::system::present_cpus;
use perf_sys::capabilities::*;
use perf_sys::{rdpmc, read_hardware_clock};
use rustix::thread::gettid;
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

/// The control page of a counter of this thread: its count and times, read without a system call if
/// the PMU supports it.
///
/// On x86 this depends on `/sys/bus/event_source/devices/cpu/rdpmc`; on arm64 on
/// `kernel.perf_user_access` (Linux 5.17) and on `config1` of the event having bit 1 (and bit 0
/// for a 64-bit counter).
///
/// It is not `Send`: the instruction reads the counter of the CPU that runs it. It has no count of an
/// event that another thread opened, or that is not for [`Target::ThisThread`](crate::Target::ThisThread), and none
/// where some CPUs have other counters (hybrid x86, big.LITTLE): the thread can move to one without this counter.
#[derive(Debug)]
pub struct UserPage {
    mapping: Mapping,
    owner: u32,
    /// Whether the counter of an event that counts is one of the CPU of this thread.
    has_count: bool,
    _not_send: PhantomData<*const ()>,
}

/// The content of the control page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserCount {
    /// The count; `None` if only [`Counter::read`] can read it: the PMU does not support it, the event
    /// is not on a counter now, it was not opened by this thread for
    /// [`Target::ThisThread`](crate::Target::ThisThread), or CPUs have different counters.
    pub value: Option<u64>,
    /// Nanoseconds that the event was enabled, up to now if `times_are_current`.
    pub time_enabled: u64,
    /// Nanoseconds that it was on the PMU, up to now if `times_are_current`.
    pub time_running: u64,
    /// Whether the hardware clock extrapolated the times up to now. Otherwise they are from the
    /// kernel's last update of the page, and [`Counter::read`] has the times of now.
    ///
    /// They are extrapolated while the page names the hardware counter of the event: then both times
    /// pass. Otherwise the page does not say whether they do: the event can be disabled, wait for a
    /// counter, or be one that no instruction can read, such as a software event.
    pub times_are_current: bool,
}

impl UserPage {
    pub(crate) fn map(counter: &Counter) -> Result<Self> {
        let refused = |errno| {
            let reason = diagnose::map(counter.attr(), counter.follows_thread(), errno);
            super::map_error(0, errno, reason)
        };
        let mapping = map(counter, 0, false).map_err(refused)?;
        let thread = gettid();
        let has_count = counter.opened_on() == Some(thread) && pmu::is_same_on(&present_cpus());
        // A thread id is positive.
        let owner = thread.as_raw_nonzero().get().unsigned_abs();
        Ok(Self { mapping, owner, has_count, _not_send: PhantomData })
    }

    fn has(&self, capability: u64) -> bool {
        self.mapping.capabilities().load(Ordering::Relaxed) & capability != 0
    }

    /// Whether an instruction can read the count.
    pub fn offers_rdpmc(&self) -> bool {
        self.has(CAP_USER_RDPMC)
    }

    /// Whether the times can be extrapolated up to now.
    pub fn offers_time(&self) -> bool {
        self.has(CAP_USER_TIME)
    }

    /// Whether the hardware clock can be converted to timestamps of the perf clock.
    pub fn offers_time_zero(&self) -> bool {
        self.has(CAP_USER_TIME_ZERO)
    }

    /// Begins a read under the sequence lock `perf_event_mmap_page::lock`. `None` while the kernel
    /// writes the page.
    ///
    /// The page is mapped read-only, for which Rust allows only relaxed loads: fences order them.
    /// The kernel's side is [`perf_event_update_userpage`][update]; [`struct
    /// perf_event_mmap_page`][page] documents this loop.
    ///
    /// [update]: https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c
    /// [page]: https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h
    fn begin(&self) -> Option<u32> {
        let sequence = self.mapping.lock().load(Ordering::Relaxed);
        // Ordering: the fields are loaded after the first load of the sequence.
        fence(Ordering::Acquire);
        if sequence & 1 != 0 {
            std::hint::spin_loop();
            return None;
        }
        Some(sequence)
    }

    fn is_unchanged(&self, sequence: u32) -> bool {
        // Ordering: the fields are loaded before the second load of the sequence.
        fence(Ordering::Acquire);
        self.mapping.lock().load(Ordering::Relaxed) == sequence
    }

    /// Reads the page.
    pub fn read(&self) -> UserCount {
        let page = &self.mapping;
        loop {
            let Some(sequence) = self.begin() else { continue };
            let mut out = UserCount {
                value: None,
                time_enabled: page.time_enabled().load(Ordering::Relaxed),
                time_running: page.time_running().load(Ordering::Relaxed),
                times_are_current: false,
            };
            let index = page.index().load(Ordering::Relaxed);
            // `perf_event_index` gives an index to active events only.
            if self.has(CAP_USER_TIME) && index != 0 {
                if let Some(delta) = self.time_since_update() {
                    out.time_enabled = out.time_enabled.wrapping_add(delta);
                    out.time_running = out.time_running.wrapping_add(delta);
                    out.times_are_current = true;
                }
            }
            if self.has_count && self.has(CAP_USER_RDPMC) && index != 0 {
                let width = u32::from(page.pmc_width().load(Ordering::Relaxed)).clamp(1, 64);
                // SAFETY: the kernel permits the instruction to this thread (cap_user_rdpmc; the
                // event counts the current thread, as `UserPage` is not `Send`), and reported that
                // the event is on this counter. If the kernel moves the event or the thread between
                // the load of the index and the instruction, the value is of another counter, and the
                // sequence number shows that the read must be retried. The instruction does not trap:
                // - each CPU of the machine has this counter, also one that is offline (`has_count`);
                // - the permission is that of the process on x86, as long as a page is mapped, and that of
                //   the context of the event on arm64, also while the event waits for a counter.
                // The administrator can take the permission from all programs in that moment
                // (`rdpmc`, `kernel.perf_user_access`). The trap then ends this process by a signal,
                // and leaves its memory as it is.
                if let Some(raw) = unsafe { rdpmc(index - 1) } {
                    let signed = (raw << (64 - width)) as i64 >> (64 - width);
                    let offset = page.offset().load(Ordering::Relaxed);
                    out.value = Some(offset.wrapping_add(signed as u64));
                }
            }
            if self.is_unchanged(sequence) {
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

    /// The current time of the perf clock: the clock of events without
    /// [`clock`](crate::EventBuilder::clock). `None` if the kernel does not support it.
    pub fn perf_clock(&self) -> Option<trace_common::Timestamp> {
        if !self.has(CAP_USER_TIME_ZERO) {
            return None;
        }
        loop {
            let Some(sequence) = self.begin() else { continue };
            let zero = self.mapping.time_zero().load(Ordering::Relaxed);
            let nanos = self.clock_nanos()?;
            if self.is_unchanged(sequence) {
                let now = zero.wrapping_add(nanos) as i64;
                return Some(trace_common::Timestamp::from_nanos(now));
            }
        }
    }

    /// The id of the thread that the page was mapped on.
    pub const fn owner(&self) -> u32 {
        self.owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::tests::PlainMemory;

    fn page() -> UserPage {
        UserPage {
            mapping: PlainMemory::new(1).mapping(),
            owner: 1,
            has_count: true,
            _not_send: PhantomData,
        }
    }

    #[test]
    fn without_capabilities_the_times_are_those_of_the_page() {
        let page = page();
        page.mapping.time_enabled().store(100, Ordering::Relaxed);
        page.mapping.time_running().store(40, Ordering::Relaxed);
        page.mapping.index().store(1, Ordering::Relaxed);
        let count = page.read();
        assert_eq!((count.value, count.times_are_current), (None, false));
        assert_eq!((count.time_enabled, count.time_running), (100, 40));
        assert_eq!(page.perf_clock(), None);
        assert!(!page.offers_rdpmc() && !page.offers_time() && !page.offers_time_zero());
    }

    /// A clock that the mask keeps constant, so that the result is known: 1001 cycles at 3/2 ns.
    #[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn page_with_clock() -> UserPage {
        let page = page();
        let m = &page.mapping;
        let offers = CAP_USER_TIME | CAP_USER_TIME_ZERO | CAP_USER_TIME_SHORT;
        m.capabilities().store(offers, Ordering::Relaxed);
        m.time_cycles().store(1001, Ordering::Relaxed);
        m.time_mask().store(0, Ordering::Relaxed);
        m.time_mult().store(3, Ordering::Relaxed);
        m.time_shift().store(1, Ordering::Relaxed);
        m.time_offset().store(7, Ordering::Relaxed);
        m.time_zero().store(10_000, Ordering::Relaxed);
        m.time_enabled().store(100, Ordering::Relaxed);
        m.time_running().store(40, Ordering::Relaxed);
        page
    }

    #[test]
    #[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn both_times_are_brought_up_to_now_while_the_event_counts() {
        let page = page_with_clock();
        page.mapping.index().store(4, Ordering::Relaxed);
        let count = page.read();
        let delta = 7 + 1001 * 3 / 2;
        assert!(count.times_are_current);
        assert_eq!((count.time_enabled, count.time_running), (100 + delta, 40 + delta));
        let now = page.perf_clock().unwrap();
        assert_eq!(now.nanos(), 10_000 + 1001 * 3 / 2);
    }

    /// The page of an event that is disabled is like that of one that waits or that is of software.
    #[test]
    #[cfg(all(not(miri), any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn times_without_a_counter_are_those_of_the_page() {
        let page = page_with_clock();
        let count = page.read();
        assert!(page.offers_time() && !count.times_are_current);
        assert_eq!((count.time_enabled, count.time_running), (100, 40));
    }

    #[test]
    fn a_page_that_is_being_written_is_read_again() {
        let page = page();
        assert_eq!(page.begin(), Some(0));
        page.mapping.lock().store(1, Ordering::Relaxed);
        assert_eq!(page.begin(), None, "an odd sequence: the kernel writes");
        page.mapping.lock().store(2, Ordering::Relaxed);
        assert!(!page.is_unchanged(0), "it was written in between");
        assert!(page.is_unchanged(2));
    }

    #[test]
    fn a_reader_never_sees_half_of_an_update() {
        let memory = PlainMemory::new(1);
        let page = UserPage { mapping: memory.mapping(), ..page() };
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let kernel = std::thread::spawn(move || {
            let m = memory.mapping();
            for n in 1..=rounds {
                m.lock().store(2 * n as u32 - 1, Ordering::Relaxed);
                fence(Ordering::Release);
                m.time_enabled().store(n, Ordering::Relaxed);
                m.time_running().store(n, Ordering::Relaxed);
                m.lock().store(2 * n as u32, Ordering::Release);
            }
        });
        loop {
            let count = page.read();
            assert_eq!(count.time_enabled, count.time_running);
            if count.time_enabled == rounds {
                break;
            }
        }
        kernel.join().unwrap();
    }
}
