//! The sizes of rings: what is useful, what the machine has, and what this user may lock.

use crate::system;

/// Bytes of a ring: smaller ones lose too many records.
const LEAST: usize = 32 << 10;
/// Bytes of a ring without a request, at most: more is not useful. [`default_ring_pages`] are not more, whatever the
/// memory of the machine.
pub const MAX_DEFAULT_RING_BYTES: u64 = 8 << 20;
/// All rings together have at most this part of the memory.
const PART_OF_MEMORY: u64 = 64;

/// Pages for each of `rings` rings (a power of two) that this user may map at once: at most 8 MiB
/// each, and at most 1/64 of the machine's memory for all of them, but at least 32 KiB each.
///
/// Without `CAP_IPC_LOCK` the rings of a user share `kernel.perf_event_mlock_kb` for each online
/// CPU, plus `RLIMIT_MEMLOCK` ([`perf_mmap`][mmap]). Rings that are already mapped are not
/// subtracted, so mapping can still fail with
/// [`LockedMemory`](crate::OpenErrorReason::LockedMemory): then retry with half. A bigger ring
/// costs only memory, and loses less when the reader is scheduled late.
///
/// [mmap]: https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c
pub fn default_ring_pages(rings: usize) -> usize {
    let limits = RingLimits::of_this_user();
    limits.fit(limits.unlimited(rings, 0), rings).main
}

/// Data pages of the rings of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingPages {
    pub(crate) main: usize,
    /// Those of the ring of the sideband; 0 without one.
    pub(crate) side: usize,
}

impl RingPages {
    /// With the control page of each ring.
    fn locked(self) -> u64 {
        let with_control = |pages: usize| (pages as u64).saturating_add(1);
        let side = if self.side == 0 { 0 } else { with_control(self.side) };
        with_control(self.main).saturating_add(side)
    }

    /// With half of the bigger ring; `None` if both are as small as is useful.
    pub(crate) fn smaller(self, page: usize) -> Option<Self> {
        let (Self { main, side }, least) = (self, least_pages(page));
        if main > least && main >= side {
            Some(Self { main: main / 2, side })
        } else if side > least {
            Some(Self { main, side: side / 2 })
        } else {
            None
        }
    }
}

/// What the rings of a user may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingLimits {
    /// Bytes that may be locked, with the control pages; `None` without a limit.
    lockable: Option<u64>,
    /// Bytes of memory of the machine.
    memory: u64,
    /// Bytes of a page.
    page: usize,
}

impl RingLimits {
    pub(crate) fn of_this_user() -> Self {
        const CAP_IPC_LOCK: u32 = 14;
        let page = rustix::param::page_size();
        let is_limited =
            !system::has_capability(CAP_IPC_LOCK) && system::paranoid_level() != Some(-1);
        let lockable = is_limited.then(|| {
            let kib = system::mlock_kb().and_then(|kb| u64::try_from(kb).ok());
            let kib = kib.unwrap_or_else(|| default_mlock_kb(page));
            lockable(kib, system::memlock_limit(), system::online_cpus().len(), page)
        });
        let memory = rustix::system::sysinfo();
        let memory = (memory.totalram as u64).saturating_mul(u64::from(memory.mem_unit));
        Self { lockable, memory, page }
    }

    /// Bytes of a page.
    pub(crate) const fn page(&self) -> usize {
        self.page
    }

    /// The rings of each of `cpus` CPUs if this user could lock any amount of memory: beside a sideband
    /// of `side` pages.
    pub(crate) fn unlimited(&self, cpus: usize, side: usize) -> RingPages {
        let page = self.page as u64;
        let share = self.memory / PART_OF_MEMORY / cpus.max(1) as u64;
        let bytes =
            share.saturating_sub((side as u64).saturating_mul(page)).min(MAX_DEFAULT_RING_BYTES);
        let pages = usize::try_from(bytes / page).unwrap_or(usize::MAX);
        RingPages { main: power_of_two_in(pages).max(least_pages(self.page)), side }
    }

    /// The largest rings of each of `cpus` CPUs, up to these, that this user may lock together. If not even
    /// the smallest ones are permitted, those.
    pub(crate) fn fit(&self, mut pages: RingPages, cpus: usize) -> RingPages {
        let Some(lockable) = self.lockable else { return pages };
        let share = lockable / self.page as u64 / cpus.max(1) as u64;
        while pages.locked() > share {
            let Some(smaller) = pages.smaller(self.page) else { break };
            pages = smaller;
        }
        pages
    }
}

/// The highest power of two up to `n`; 0 of 0.
pub(crate) fn power_of_two_in(n: usize) -> usize {
    n.checked_ilog2().map_or(0, |bits| 1 << bits)
}

fn least_pages(page: usize) -> usize {
    (LEAST / page).max(1)
}

/// The kernel's default of `perf_event_mlock_kb`: 512 KiB and a page.
const fn default_mlock_kb(page: usize) -> u64 {
    512 + (page as u64 >> 10)
}

/// Bytes that a user may lock for rings. The kernel rounds both limits down to pages.
fn lockable(mlock_kb: u64, memlock: Option<u64>, online: usize, page: usize) -> u64 {
    let page = page as u64;
    let shared = (mlock_kb.saturating_mul(1024) / page).saturating_mul(online as u64);
    let own = memlock.map_or(u64::MAX, |bytes| bytes / page);
    shared.saturating_add(own).saturating_mul(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const PAGES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

    #[test]
    fn rings_share_what_may_be_locked() {
        let of = |rings, lockable, memory, page| {
            let limits = RingLimits { lockable, memory, page };
            limits.fit(limits.unlimited(rings, 0), rings).main
        };
        let pages = |rings, lockable| of(rings, lockable, 16 * GIB, 4096);
        assert_eq!(pages(1, None), 2048, "8 MiB");
        assert_eq!(pages(2, None), 2048);
        assert_eq!(pages(64, None), 1024, "256 MiB for all of them");
        // The kernel's default for 4 CPUs, without additional locked memory.
        assert_eq!(pages(4, Some(4 * (516 << 10))), 128);
        // One page less for the control page; half of the rest fits.
        assert_eq!(pages(4, Some(4 * (512 << 10))), 64);
        assert_eq!(pages(4, Some(4 * (516 << 10) + 4 * (8 << 20))), 2048);
        assert_eq!(pages(0, Some(0)), 8);
        assert_eq!(of(1, None, 1 << 20, 4096), 8, "a tiny machine");
        assert_eq!(of(1, None, 16 * GIB, 65536), 128, "of big pages");
        assert_eq!(of(1, Some(0), 16 * GIB, 65536), 1, "32 KiB are less than a page");
        assert!(default_ring_pages(1).is_power_of_two());
    }

    /// The rings of each CPU for a sideband of 128 KiB, and what all of them may lock.
    fn sizes(page: usize, mlock_kb: u64, memlock: u64, cpus: usize) -> (RingPages, u64) {
        let lockable = lockable(mlock_kb, Some(memlock), cpus, page);
        let limits = RingLimits { lockable: Some(lockable), memory: 1 << 42, page };
        let side = ((128 << 10) / page).max(1);
        (limits.fit(limits.unlimited(cpus, side), cpus), lockable)
    }

    #[test]
    fn main_and_sideband_rings_fit_into_what_may_be_locked() {
        for page in PAGES {
            for cpus in 1..=256 {
                for memlock in [0, 64 << 10, 8 << 20, 1 << 30] {
                    for mlock_kb in [default_mlock_kb(page), 512, 300, 2048] {
                        let (rings, limit) = sizes(page, mlock_kb, memlock, cpus);
                        let bytes = |rings: RingPages| rings.locked() * (page * cpus) as u64;
                        let what = format!("{page} {mlock_kb} {memlock} {cpus}: {rings:?}");
                        assert!(bytes(rings) <= limit, "{what}");
                        assert!(rings.main.is_power_of_two() && rings.side.is_power_of_two());
                        assert!(rings.main >= least_pages(page), "{what}");
                        assert!(rings.side >= least_pages(page), "{what}");
                        // Not smaller than necessary.
                        let bigger = RingPages { main: rings.main * 2, ..rings };
                        let is_most = rings.main as u64 * page as u64 == MAX_DEFAULT_RING_BYTES;
                        let is_halved = rings.side * page < 128 << 10;
                        assert!(is_most || is_halved || bytes(bigger) > limit, "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn rings_by_the_default_limits_are_known() {
        let of = |page: usize, memlock| {
            let (rings, _) = sizes(page, default_mlock_kb(page), memlock, 8);
            (rings.main, rings.side)
        };
        assert_eq!(PAGES.map(|page| of(page, 0)), [(64, 32), (16, 8), (4, 2)]);
        // 1 MiB for each CPU in addition.
        assert_eq!(PAGES.map(|page| of(page, 8 << 20)), [(256, 32), (64, 8), (16, 2)]);
        // Nothing fits: the smallest ones are tried.
        let least = |page| sizes(page, 0, 0, 8).0;
        assert_eq!(least(4 << 10), RingPages { main: 8, side: 8 });
        assert_eq!(least(64 << 10), RingPages { main: 1, side: 1 });
    }

    #[test]
    fn the_bigger_ring_is_halved() {
        let all = |main, side, page| {
            let first = RingPages { main, side };
            let each = std::iter::successors(Some(first), |pages| pages.smaller(page));
            each.map(|pages| (pages.main, pages.side)).collect::<Vec<_>>()
        };
        assert_eq!(all(64, 32, 4 << 10), [(64, 32), (32, 32), (16, 32), (16, 16), (8, 16), (8, 8)]);
        assert_eq!(all(4, 2, 64 << 10), [(4, 2), (2, 2), (1, 2), (1, 1)]);
        assert_eq!(all(16, 0, 4 << 10), [(16, 0), (8, 0)]);
        assert_eq!(all(8, 4, 4 << 10), [(8, 4)], "a small one stays");
    }
}
