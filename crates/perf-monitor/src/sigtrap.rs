use crate::error::{Error, Result};
use perf_sys::{TRAP_PERF, TRAP_PERF_FLAG_ASYNC, sigtrap_block, sigtrap_unblock, sigtrap_wait};
use rustix::io::Errno;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// Receives the signals of events with [`sigtrap`](crate::EventBuilder::sigtrap) that measure this
/// thread, without a signal handler.
///
/// It blocks `SIGTRAP` in the thread until it is dropped: the thread continues when an event
/// overflows, and [`wait`](Self::wait) takes the signal. This needs Linux 5.18 (or a stable release
/// of 5.15): older kernels end a process that blocks the signal. Without a `SigtrapReceiver` or a
/// signal handler, the signal ends the process on every kernel.
///
/// ```no_run
/// use perf_monitor::{Event, Software, Target, SigtrapReceiver};
/// use std::time::Duration;
///
/// let traps = SigtrapReceiver::block()?;
/// let faults = Event::software(Software::PageFaults)
///     .builder()
///     .exclude_kernel(true)
///     .exclude_hv(true)
///     .sample_period(1)
///     .remove_on_exec(true)
///     .sigtrap(true)
///     .sig_data(42)
///     .open(Target::ThisThread)?;
/// faults.enable()?;
/// let touched = vec![1u8; 1 << 20];
/// faults.disable()?;
/// let trap = traps.wait(Duration::ZERO)?.expect("the memory was touched for the first time");
/// assert_eq!(trap.sig_data, 42, "touched {} bytes", touched.len());
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Debug)]
pub struct SigtrapReceiver {
    was_blocked: bool,
    /// The signal mask belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

/// The content of a `SIGTRAP` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SigtrapInfo {
    /// [`sig_data`](crate::EventBuilder::sig_data) of the event.
    pub sig_data: u64,
    /// The address of the sample: of the watched data for a breakpoint, of the accessed memory for a
    /// page fault. 0 if the event has none.
    pub address: u64,
    /// `PERF_TYPE_*` of the event, or the number of its PMU.
    pub type_: u32,
    /// The thread continued before it took the signal, because the signal was blocked.
    pub is_async: bool,
}

impl SigtrapReceiver {
    /// Blocks `SIGTRAP` in this thread.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn block() -> Result<Self> {
        let was_blocked = sigtrap_block().map_err(system)?;
        Ok(Self { was_blocked, _not_send: PhantomData })
    }

    /// Takes the pending signal, or waits up to `timeout` for one. `None` if none arrived.
    ///
    /// Signals do not queue: an overflow while one is pending sends no further signal, and is only
    /// [counted](crate::Counter::read). A `SIGTRAP` of another origin is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub fn wait(&self, timeout: Duration) -> Result<Option<SigtrapInfo>> {
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            match sigtrap_wait(left).map_err(system)? {
                Some(info) if info.si_code == TRAP_PERF => {
                    return Ok(Some(SigtrapInfo {
                        sig_data: info.si_perf_data as u64,
                        address: info.si_addr as u64,
                        type_: info.si_perf_type,
                        is_async: info.si_perf_flags & TRAP_PERF_FLAG_ASYNC != 0,
                    }));
                }
                None if start.elapsed() >= timeout => return Ok(None),
                // Of another origin; or another signal interrupted the wait.
                _ => {}
            }
        }
    }
}

impl Drop for SigtrapReceiver {
    /// Unblocks the signal if it was not blocked before. A pending one is dropped first, because it
    /// would end the process.
    fn drop(&mut self) {
        if !self.was_blocked {
            while let Ok(Some(_)) = sigtrap_wait(Duration::ZERO) {}
            let _ = sigtrap_unblock(); // cannot fail for a signal that exists
        }
    }
}

fn system(errno: Errno) -> Error {
    Error::System { call: "sigtimedwait", errno }
}
