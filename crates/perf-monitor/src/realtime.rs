//! Scheduling of a reading thread.

use crate::error::{Error, Result};
use perf_sys::{SchedPolicy, sched_getscheduler, sched_set_slice, sched_setscheduler};
use rustix::process::{getpriority_process, setpriority_process};
use std::time::Duration;

/// While it lives, this thread runs with `SCHED_FIFO`: before all ordinary threads of its CPU. A
/// reader that does not get the CPU loses the records that do not fit in its rings.
///
/// Dropping it restores the policy. It is dropped on the thread that began it: it is not `Send`. If
/// the thread has no `CAP_SYS_NICE` then, `SCHED_RESET_ON_FORK` stays set: threads and processes that
/// it starts have a nice value of 0 or more.
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
        // Lowering the priority is always permitted, but clearing the flag needs CAP_SYS_NICE.
        let _ = sched_setscheduler(self.before)
            .or_else(|_| sched_setscheduler(self.before.reset_on_fork()));
    }
}

/// While it lives, this thread has another nice value. With a low one, a reader gets its share of a busy
/// CPU earlier, and a larger share, but does not displace other threads for as long as it has work,
/// as [`RealtimeThread`] does.
///
/// Threads and processes that it starts have the same nice value.
///
/// Dropping it restores the value before, if this user may: a lower value than the present one needs
/// the privileges of [`begin`](Self::begin) also if the thread had it before. Without them a thread
/// that began a higher value keeps it. [`restore`](Self::restore) reports that.
///
/// ```no_run
/// let _nice = perf_monitor::NiceThread::begin(-10)?;
/// // … read the rings …
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Debug)]
pub struct NiceThread {
    before: i32,
    /// Not `Send`.
    _thread: std::marker::PhantomData<*const ()>,
}

impl NiceThread {
    /// Gives this thread a nice value of -20 (the largest share) to 19. A lower value than the present
    /// one needs `CAP_SYS_NICE`, or a sufficient `RLIMIT_NICE`: `setpriority(2)`.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn begin(nice: i32) -> Result<Self> {
        // The process id of these calls is a thread id on Linux.
        let thread = Some(rustix::thread::gettid());
        let refused = |errno| Error::System { call: "setpriority", errno };
        let before = getpriority_process(thread).map_err(refused)?;
        setpriority_process(thread, nice).map_err(refused)?;
        Ok(Self { before, _thread: std::marker::PhantomData })
    }

    /// Restores the value before, as dropping it does.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if this user may not restore it. The present value stays.
    pub fn restore(self) -> Result<()> {
        self.set_before().map_err(|errno| Error::System { call: "setpriority", errno })
    }

    fn set_before(&self) -> rustix::io::Result<()> {
        setpriority_process(Some(rustix::thread::gettid()), self.before)
    }
}

impl Drop for NiceThread {
    fn drop(&mut self) {
        // An error cannot be returned here: `restore` does.
        let _ = self.set_before();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nice_value_of_this_thread_alone_changes() {
        let nice = |thread| getpriority_process(Some(thread)).unwrap();
        let this = rustix::thread::gettid();
        let before = nice(this);
        // The kernel sets the nearest value that there is: tests can run with any.
        let [high, low] = [before + 1, before - 1].map(|value| value.clamp(-20, 19));
        // Higher values need no privilege.
        let higher = NiceThread::begin(before + 1).unwrap();
        assert_eq!(nice(this), high);
        assert_eq!(nice(rustix::process::getpid()), before, "the main thread");
        match NiceThread::begin(before - 1) {
            Ok(lower) => {
                assert_eq!(nice(this), low);
                assert_eq!(nice(rustix::process::getpid()), before, "the main thread");
                drop(lower);
                assert_eq!(nice(this), high);
                drop(higher);
                assert_eq!(nice(this), before);
            }
            // Not permitted.
            Err(error) => assert!(matches!(error, Error::System { call: "setpriority", .. })),
        }
    }
}
