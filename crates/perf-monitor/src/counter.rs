//! One open event.

use crate::Target;
use crate::builder::EventBuilder;
use crate::count::{Count, decode, read_size};
use crate::error::{DecodeError, Error, Result};
use crate::event::Event;
use crate::features::KernelFeatures;
use crate::flags::ReadFormat;
use crate::ring::UserPage;
use crate::sampler::Sampler;
use perf_sys::*;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::{Pid, gettid};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trace_common::ReadErrorKind;

/// A group that a child's exit keeps from being read is read again after pauses that double, up to the
/// longest one, and for so long in total.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSES: Duration = Duration::from_secs(1);

/// An open event. Dropping it closes it.
///
/// It is opened by [`EventBuilder::open`].
#[derive(Debug)]
pub struct Counter {
    fd: OwnedFd,
    attr: perf_event_attr,
    event: Event,
    follows_thread: bool,
    /// The thread that it counts, if that is the thread that opened it.
    opened_on: Option<Pid>,
    refreshed: AtomicBool,
}

impl Counter {
    pub(crate) fn new(
        fd: OwnedFd,
        attr: perf_event_attr,
        event: Event,
        target: Target<'_>,
    ) -> Self {
        let follows_thread = target.cpu().is_none();
        let opened_on = matches!(target, Target::ThisThread).then(gettid);
        Self { fd, attr, event, follows_thread, opened_on, refreshed: AtomicBool::new(false) }
    }

    /// The event.
    pub const fn event(&self) -> &Event {
        &self.event
    }

    /// The attribute that it was opened with.
    pub const fn attr(&self) -> &perf_event_attr {
        &self.attr
    }

    pub(crate) const fn follows_thread(&self) -> bool {
        self.follows_thread
    }

    pub(crate) const fn opened_on(&self) -> Option<Pid> {
        self.opened_on
    }

    /// Whether a reader of this direction can read its ring.
    pub(crate) fn check_direction(&self, is_backward: bool) -> Result<()> {
        match self.attr.write_backward() == is_backward {
            true => Ok(()),
            false => Err(Error::RingDirection { event: self.event.name().to_owned(), is_backward }),
        }
    }

    fn control(&self, operation: &'static str, result: Result<(), Errno>) -> Result<()> {
        result.map_err(|errno| {
            let hint = match (operation, errno) {
                ("PERF_EVENT_IOC_PERIOD", Errno::INVAL) => {
                    Some("0, above 2^63, above the maximum sample rate, or not a sampling event")
                }
                ("PERF_EVENT_IOC_REFRESH", Errno::INVAL) => {
                    Some("only for sampling events that are not inherited, and by at least 1")
                }
                ("PERF_EVENT_IOC_SET_OUTPUT", Errno::INVAL) => Some(
                    "the ring must be of the same CPU, or of the same thread, have the same clock, \
                     and be written in the same direction (write_backward)",
                ),
                ("PERF_EVENT_IOC_PAUSE_OUTPUT", Errno::INVAL) => Some("there is no ring"),
                ("PERF_EVENT_IOC_MODIFY_ATTRIBUTES", Errno::INVAL | Errno::OPNOTSUPP) => {
                    Some("only breakpoints, and only their address, length and access")
                }
                ("PERF_EVENT_IOC_SET_BPF", Errno::INVAL) => Some(
                    "not a BPF program, or not of the type that the event takes: tracepoint, \
                     kprobe (of probes) or perf_event (of others)",
                ),
                ("PERF_EVENT_IOC_SET_BPF", Errno::EXIST) => Some("the event has a program already"),
                ("PERF_EVENT_IOC_QUERY_BPF", Errno::INVAL) => {
                    Some("only tracepoints list their programs")
                }
                ("PERF_EVENT_IOC_QUERY_BPF", Errno::PERM) => Some("this needs CAP_PERFMON"),
                ("PERF_EVENT_IOC_QUERY_BPF", Errno::NOSPC) => Some("there are more than 64"),
                _ => None,
            };
            Error::Control { operation, event: self.event.name().to_owned(), errno, hint }
        })
    }

    /// Starts counting.
    ///
    /// # Errors
    ///
    /// [`Error::RefreshIsFinal`] for an event that was [refreshed](Self::refresh), on kernels where
    /// the call succeeds and the event never counts again.
    pub fn enable(&self) -> Result<()> {
        let is_tracepoint = self.event.as_tracepoint().is_some();
        if is_tracepoint
            && self.refreshed.load(Ordering::Relaxed)
            && !KernelFeatures::refresh_restarts()
        {
            return Err(Error::RefreshIsFinal { event: self.event.name().to_owned() });
        }
        self.control("PERF_EVENT_IOC_ENABLE", ioctl_enable(&self.fd, 0))
    }

    /// Stops counting.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn disable(&self) -> Result<()> {
        self.control("PERF_EVENT_IOC_DISABLE", ioctl_disable(&self.fd, 0))
    }

    pub(crate) fn enable_group(&self) -> Result<()> {
        self.control("PERF_EVENT_IOC_ENABLE", ioctl_enable(&self.fd, PERF_IOC_FLAG_GROUP))
    }

    pub(crate) fn disable_group(&self) -> Result<()> {
        self.control("PERF_EVENT_IOC_DISABLE", ioctl_disable(&self.fd, PERF_IOC_FLAG_GROUP))
    }

    pub(crate) fn reset_group(&self) -> Result<()> {
        self.control("PERF_EVENT_IOC_RESET", ioctl_reset(&self.fd, PERF_IOC_FLAG_GROUP))
    }

    /// Sets the count to 0. The times are not reset: use [`Count::since`] to measure from here.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn reset(&self) -> Result<()> {
        self.control("PERF_EVENT_IOC_RESET", ioctl_reset(&self.fd, 0))
    }

    /// Enables a sampling event for `samples` more samples. Then the event disables itself.
    ///
    /// It can be enabled again after that, except a tracepoint from Linux 6.18 on:
    /// [`enable`](Self::enable) returns an error, see [`KernelFeatures::refresh_restarts`].
    ///
    /// # Errors
    ///
    /// [`Error::Control`], also for 0 samples.
    pub fn refresh(&self, samples: u32) -> Result<()> {
        if samples == 0 {
            return self.control("PERF_EVENT_IOC_REFRESH", Err(Errno::INVAL));
        }
        self.control("PERF_EVENT_IOC_REFRESH", ioctl_refresh(&self.fd, samples))?;
        self.refreshed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Changes the period, or the frequency of an event that was opened with one.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] for events that do not sample, and for values that the kernel rejects.
    pub fn set_period(&self, period: u64) -> Result<()> {
        self.control("PERF_EVENT_IOC_PERIOD", ioctl_period(&self.fd, period))
    }

    /// The id in samples and in group counts.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn id(&self) -> Result<u64> {
        let mut id = 0;
        let result = ioctl_id(&self.fd).map(|found| id = found);
        self.control("PERF_EVENT_IOC_ID", result).map(|()| id)
    }

    /// Filters a tracepoint by its fields in the kernel: `id == 110 && args[0] > 5`, `comm ~
    /// "ssh*"`. `Documentation/trace/events.rst` has the syntax.
    ///
    /// # Errors
    ///
    /// [`Error::Filter`], with the kernel's explanation (where tracefs is mounted and may be written)
    /// and the names of the fields.
    pub fn set_filter(&self, filter: &str) -> Result<()> {
        let refused = |errno, why: String| Error::Filter {
            event: self.event.name().to_owned(),
            filter: filter.to_owned(),
            errno,
            why,
        };
        let text = CString::new(filter)
            .map_err(|_| refused(Errno::INVAL, "it has a NUL byte".to_owned()))?;
        ioctl_set_filter(&self.fd, &text).map_err(|errno| {
            let why = if self.event.as_tracepoint().is_none() {
                "only tracepoints (and the AUX events of tracing PMUs) have filters".to_owned()
            } else {
                self.explain_filter(filter)
                    .unwrap_or_else(|| "a field that does not exist, or a syntax error".to_owned())
            };
            refused(errno, why)
        })
    }

    /// The kernel's explanation of a rejected filter, and the names of the fields.
    fn explain_filter(&self, filter: &str) -> Option<String> {
        let (system, name) = self.event.name().split_once(':')?;
        // Without the modifiers of `perf`, as in `sched:sched_switch:k`.
        let name = name.split(':').next().unwrap_or(name);
        let tracefs = crate::Tracefs::find().ok()?;
        let format = tracefs.format(system, name).ok()?;
        let names: Vec<&str> = format.fields().iter().map(crate::FieldFormat::name).collect();
        let names = format!("the fields are {}", names.join(", "));
        Some(match tracefs.explain_filter(system, name, filter) {
            Some(reason) => format!("{reason}; {names}"),
            None => names,
        })
    }

    /// Attaches a BPF program as a filter: the kernel drops the events for which it returns 0. It
    /// stays attached until the event is closed.
    ///
    /// On a tracepoint (`BPF_PROG_TYPE_TRACEPOINT`) the program belongs to the tracepoint, not to
    /// the event: no perf event of that tracepoint, of *any* process, counts or records the events
    /// that it drops. On other events (`BPF_PROG_TYPE_PERF_EVENT`, one for each event) only the
    /// sample is dropped; the event still counts it. Loading programs needs `CAP_BPF` and
    /// `CAP_PERFMON`.
    ///
    /// # Errors
    ///
    /// [`Error::Control`]: not a program, of the wrong type, or the event has one already.
    pub fn set_bpf(&self, program: BorrowedFd<'_>) -> Result<()> {
        self.control("PERF_EVENT_IOC_SET_BPF", ioctl_set_bpf(&self.fd, program))
    }

    /// The ids of the BPF programs at this tracepoint, at most 64 (Linux 4.16). Needs
    /// `CAP_PERFMON`.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] for other events than tracepoints.
    pub fn query_bpf(&self) -> Result<Vec<u32>> {
        let mut ids = vec![0; 64];
        let mut count = 0;
        let result = ioctl_query_bpf(&self.fd, &mut ids).map(|n| count = n);
        self.control("PERF_EVENT_IOC_QUERY_BPF", result)?;
        ids.truncate(count);
        Ok(ids)
    }

    /// Changes a breakpoint to the address, length and access of another event. This also enables a
    /// disabled breakpoint.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] for events that are not breakpoints.
    pub fn modify(&mut self, to: &EventBuilder) -> Result<()> {
        let mut attr = self.attr;
        attr.bp_type = to.attr().bp_type;
        attr.config1 = to.attr().config1;
        attr.config2 = to.attr().config2;
        attr.set_disabled(false); // otherwise the kernel disables it
        self.control("PERF_EVENT_IOC_MODIFY_ATTRIBUTES", ioctl_modify_attributes(&self.fd, &attr))?;
        self.attr = attr;
        Ok(())
    }

    /// Stops writing to the ring. The kernel counts records that it does not write as lost.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] if there is no ring.
    pub fn pause_output(&self) -> Result<()> {
        self.control("PERF_EVENT_IOC_PAUSE_OUTPUT", ioctl_pause_output(&self.fd, true))
    }

    /// Resumes writing to the ring.
    ///
    /// # Errors
    ///
    /// [`Error::Control`] if there is no ring.
    pub fn resume_output(&self) -> Result<()> {
        self.control("PERF_EVENT_IOC_PAUSE_OUTPUT", ioctl_pause_output(&self.fd, false))
    }

    /// Redirects the records to the ring of another event of the same CPU, or of the same thread,
    /// and with the same clock. The reader of that ring must know their layout: see
    /// [`Sampler::add_counter`].
    pub(crate) fn set_output(&self, ring_of: Option<BorrowedFd<'_>>) -> Result<()> {
        self.control("PERF_EVENT_IOC_SET_OUTPUT", ioctl_set_output(&self.fd, ring_of))
    }

    /// Reads the count, with the values of the read format. With `inherit` it includes the counts
    /// of all children, including those that exited.
    ///
    /// # Errors
    ///
    /// [`Error::PinnedOut`] if the event is pinned and not on the PMU; [`Error::Control`].
    pub fn read(&self) -> Result<Count> {
        let format = ReadFormat::from_bits_retain(self.attr.read_format);
        // A single event in the layout of a group is a group with one member.
        let mut buffer = [0u8; 6 * 8];
        let len = read_size(format, 1).min(buffer.len());
        let buffer = buffer.get_mut(..len).unwrap_or_default();
        first_count(self.read_into(buffer)?, format)
    }

    /// Reads the count of this event, the leader of a group with this number of events.
    pub(crate) fn read_first_of(&self, events: usize) -> Result<Count> {
        let format = ReadFormat::from_bits_retain(self.attr.read_format);
        let mut buffer = vec![0; read_size(format, events)];
        first_count(self.read_into(&mut buffer)?, format)
    }

    pub(crate) fn read_into<'a>(&self, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
        let read = || rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut *buffer));
        match read_whole_group(read, std::thread::sleep) {
            Ok(0) => Err(Error::PinnedOut { event: self.event.name().to_owned() }),
            Ok(n) => Ok(buffer.get(..n).unwrap_or_default()),
            Err(errno) => Err(Error::Control {
                operation: "read",
                event: self.event.name().to_owned(),
                errno,
                hint: matches!(errno, Errno::NOSPC)
                    .then_some("the group has more events than the buffer has room for"),
            }),
        }
    }

    /// Maps the control page, to read the counter and its times without a system call where the PMU
    /// supports it.
    ///
    /// # Errors
    ///
    /// [`Error::Map`].
    pub fn user_page(&self) -> Result<UserPage> {
        UserPage::map(self)
    }

    /// Maps a ring of `pages` pages (a power of two) for the samples of this event.
    ///
    /// [`EventBuilder::open_sampler`] is shorter and sets the options that a ring needs.
    ///
    /// # Errors
    ///
    /// [`Error::RingDirection`] with [`write_backward`](EventBuilder::write_backward),
    /// [`Error::RingPages`] and [`Error::Map`].
    pub fn into_sampler(self, pages: usize) -> Result<Sampler> {
        Sampler::new(self, pages)
    }
}

/// An event that is counted on another CPU while it is disabled writes its sample after that, or not
/// at all if it is closed first, or redirected: waits until all samples are written that were counted.
pub(crate) fn wait_for_the_last() {
    // Without it, one sample of each CPU can be missing from the counts.
    let _ = membarrier_global();
}

impl AsFd for Counter {
    /// Readable when the kernel wakes readers; hung up when the thread has exited.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// While a child that inherited a group exits, its events leave the group one after another, and the
/// kernel (since Linux 6.6) refuses to add up what is incomplete, with `ECHILD`: until the child had
/// the CPU again. A child that inherited the group before a member was added never has all of it, so
/// that this ends.
///
/// Source: `__perf_read_group_add` in `kernel/events/core.c`.
fn read_whole_group(
    mut read: impl FnMut() -> rustix::io::Result<usize>,
    mut sleep: impl FnMut(Duration),
) -> rustix::io::Result<usize> {
    let (mut pause, mut paused) = (FIRST_PAUSE, Duration::ZERO);
    loop {
        match read() {
            Err(Errno::CHILD) if paused < MAX_PAUSES => {
                sleep(pause);
                paused += pause;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            result => return result,
        }
    }
}

fn first_count(bytes: &[u8], format: ReadFormat) -> Result<Count> {
    decode(bytes, format)?.iter().next().ok_or(Error::Decode(DecodeError {
        what: "the values of a counter",
        offset: 0,
        kind: ReadErrorKind::UnexpectedEnd { wanted: 8, left: 0 }.into(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_read_again_until_the_child_has_exited() {
        // The child is off the CPU for a while.
        let (mut reads, mut paused) = (0, Duration::ZERO);
        let read = || {
            reads += 1;
            if reads < 50 { Err(Errno::CHILD) } else { Ok(40) }
        };
        assert_eq!(read_whole_group(read, |pause| paused += pause), Ok(40));
        assert!(paused > Duration::from_millis(100), "{paused:?}");
        // Or it never has all of the group.
        let (mut reads, mut paused) = (0, Duration::ZERO);
        let read = || {
            reads += 1;
            Err(Errno::CHILD)
        };
        assert_eq!(read_whole_group(read, |pause| paused += pause), Err(Errno::CHILD));
        assert!(paused < Duration::from_secs(2) && reads < 200, "{paused:?} {reads}");
        // Other errors are no reason to wait.
        let read = read_whole_group(|| Err(Errno::NOSPC), |_| panic!("it waits"));
        assert_eq!(read, Err(Errno::NOSPC));
    }
}
