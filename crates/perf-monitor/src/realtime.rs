//! Scheduling of a reading thread.

use crate::error::{Error, Result};
use perf_sys::{SchedPolicy, sched_getscheduler, sched_set_slice, sched_setscheduler};
use std::time::Duration;

/// While it lives, this thread runs with `SCHED_FIFO`: before all ordinary threads of its CPU. A
/// reader that does not get the CPU loses the records that do not fit in its rings.
///
/// Dropping it restores the policy. It is dropped on the thread that began it: it is not `Send`.
///
/// ```no_run
/// let _realtime = perf_monitor::RealtimeThread::begin(1)?;
/// // … read the rings …
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Debug)]
pub struct RealtimeThread {
    before: SchedPolicy,
    /// Not `Send`.
    _thread: std::marker::PhantomData<*const ()>,
}

impl RealtimeThread {
    /// Gives this thread a priority of 1 (lowest) to 99. Needs `CAP_SYS_NICE`, or a sufficient
    /// `RLIMIT_RTPRIO`. Threads and processes that it starts are not realtime.
    ///
    /// # Errors
    ///
    /// [`Error::Realtime`].
    pub fn begin(priority: u8) -> Result<Self> {
        let refused = |errno| Error::Realtime { priority, errno };
        let before = sched_getscheduler().map_err(refused)?;
        sched_setscheduler(SchedPolicy::fifo(priority)).map_err(refused)?;
        Ok(Self { before, _thread: std::marker::PhantomData })
    }
}

impl Drop for RealtimeThread {
    fn drop(&mut self) {
        // Lowering the priority is always permitted.
        let _ = sched_setscheduler(self.before);
    }
}

/// Requests a time slice for this thread, 0.1 to 100 ms: with a short one, a reader gets the CPU
/// earlier when a ring wakes it, and loses fewer records (Linux 6.12; earlier kernels ignore it). Its
/// share of the CPU stays the same, and no privilege is needed: `sched_setattr(2)`.
///
/// # Errors
///
/// [`Error::System`], in containers that forbid the call.
pub fn set_time_slice(slice: Duration) -> Result<()> {
    sched_set_slice(slice).map_err(|errno| Error::System { call: "sched_setattr", errno })
}
