//! Waiting on tokio's runtime.

use super::RingSet;
use crate::error::{Error, Result};
use crate::sampler::Readiness;
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A [`RingSet`] whose rings are waited for on tokio's runtime, instead of by
/// [`RingSet::wait`]. Feature `tokio`.
///
/// Reading the rings does not wait, and is done by the [set](Self::set).
///
/// ```no_run
/// # async fn read(set: perf_monitor::RingSet) -> Result<(), perf_monitor::Error> {
/// use std::time::Duration;
/// let mut set = perf_monitor::AsyncRingSet::new(set)?;
/// loop {
///     // A round is due when a ring has the watermark, and at the latest after 10 ms.
///     let _ = tokio::time::timeout(Duration::from_millis(10), set.wait()).await;
///     set.set().round(|record| {
///         println!("{:?} on CPU {}", record.time, record.cpu);
///         Ok::<(), perf_monitor::Error>(())
///     })?;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncRingSet {
    epoll: AsyncFd<Epoll>,
    set: RingSet,
}

/// The epoll descriptor of a set: it stays open while it is registered.
#[derive(Debug)]
struct Epoll(Arc<OwnedFd>);

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsyncRingSet {
    /// Registers a set with the runtime of the current task.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    ///
    /// # Panics
    ///
    /// Outside of a runtime, or if its I/O is disabled.
    pub fn new(set: RingSet) -> Result<Self> {
        let epoll = Epoll(Arc::clone(set.control.epoll()));
        #[allow(deprecated, reason = "the newer one is unsafe; `Epoll` keeps what it demands")]
        let epoll = AsyncFd::try_with_interest(epoll, Interest::READABLE);
        let epoll = epoll.map_err(|refused| error(&refused.into()))?;
        Ok(Self { epoll, set })
    }

    /// Waits until a ring contains the watermark, or all threads of the set exited. A wake-up is
    /// reported once. It can be cancelled.
    ///
    /// # Errors
    ///
    /// [`Error::System`].
    pub async fn wait(&mut self) -> Result<Readiness> {
        let mut guard = self.epoll.readable().await.map_err(|e| error(&e))?;
        // Before the reports are collected: one that comes later wakes it again.
        guard.clear_ready();
        let RingSet { waker, control, .. } = &mut self.set;
        waker.woken(|hung_up| control.have_all_ended(hung_up))
    }

    /// The set.
    pub const fn set(&mut self) -> &mut RingSet {
        &mut self.set
    }

    /// Removes the set from the runtime.
    pub fn into_inner(self) -> RingSet {
        self.set
    }
}

fn error(error: &std::io::Error) -> Error {
    Error::System { call: "epoll_ctl", errno: Errno::from_io_error(error).unwrap_or(Errno::IO) }
}
