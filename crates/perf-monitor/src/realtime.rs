//! Realtime scheduling of a reading thread.

use crate::error::{Error, Result};
use perf_sys::{SchedPolicy, sched_getscheduler, sched_setscheduler};

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
