//! Counters that the kernel schedules together.

use crate::Target;
use crate::builder::EventBuilder;
use crate::count::{Count, GroupCounts, decode, read_size};
use crate::counter::Counter;
use crate::error::{Error, Result};
use crate::flags::ReadFormat;
use perf_sys::PERF_TYPE_SOFTWARE;
use rustix::fd::{AsFd, OwnedFd};

/// A group of events that are scheduled together, so that their counts can be compared, and read at
/// once.
///
/// ```
/// use perf_monitor::{Event, Group, Software, Target};
///
/// let mut group = Group::open(&user(Software::TaskClock), Target::ThisThread)?;
/// let faults = group.add(&user(Software::PageFaults))?;
/// group.enable()?;
/// let touched = vec![1u8; 1 << 20];
/// group.disable()?;
/// let counts = group.read()?;
/// assert!(counts.counts[faults].value > 0, "touched {} bytes", touched.len());
///
/// fn user(event: Software) -> perf_monitor::EventBuilder {
///     Event::software(event).builder().exclude_kernel(true).exclude_hv(true)
/// }
/// # Ok::<(), perf_monitor::Error>(())
/// ```
#[derive(Debug)]
pub struct Group {
    counters: Vec<Counter>,
    target: OwnedTarget,
    enabled: bool,
}

/// A target for opening members later.
#[derive(Debug)]
enum OwnedTarget {
    ThisThread,
    Thread(u32),
    Cpu(u32),
    ThreadOnCpu { tid: u32, cpu: u32 },
    Cgroup { dir: OwnedFd, cpu: u32 },
}

impl OwnedTarget {
    fn new(target: Target<'_>) -> Result<Self> {
        Ok(match target {
            Target::ThisThread => Self::ThisThread,
            Target::Thread(tid) => Self::Thread(tid),
            Target::Cpu(cpu) => Self::Cpu(cpu),
            Target::ThreadOnCpu { tid, cpu } => Self::ThreadOnCpu { tid, cpu },
            Target::Cgroup { dir, cpu } => {
                let dir = rustix::io::fcntl_dupfd_cloexec(dir, 0)
                    .map_err(|errno| Error::System { call: "fcntl(F_DUPFD_CLOEXEC)", errno })?;
                Self::Cgroup { dir, cpu }
            }
        })
    }

    fn as_target(&self) -> Target<'_> {
        match self {
            Self::ThisThread => Target::ThisThread,
            Self::Thread(tid) => Target::Thread(*tid),
            Self::Cpu(cpu) => Target::Cpu(*cpu),
            Self::ThreadOnCpu { tid, cpu } => Target::ThreadOnCpu { tid: *tid, cpu: *cpu },
            Self::Cgroup { dir, cpu } => Target::Cgroup { dir: dir.as_fd(), cpu: *cpu },
        }
    }
}

impl Group {
    /// Opens the leader. Its read format becomes that of the group: ids and both times are added.
    ///
    /// # Errors
    ///
    /// [`Error::Open`]; [`Error::System`] if the directory of a cgroup cannot be duplicated.
    pub fn open(leader: &EventBuilder, target: Target<'_>) -> Result<Self> {
        let owned = OwnedTarget::new(target)?;
        let leader = leader.in_group().disabled(true);
        let counter = leader.open(target)?;
        Ok(Self { counters: vec![counter], target: owned, enabled: false })
    }

    /// Adds an event with the target of the group. Returns its index in [`GroupCounts::counts`].
    ///
    /// Members of a group that measures a [`Target::Cgroup`] are also opened on that cgroup.
    /// (Opened only on its CPU they would count the same, because the kernel schedules a group by
    /// its leader, see [`merge_sched_in`][sched].)
    ///
    /// From Linux 6.12 a tracepoint that joins an enabled group led by a software event does not
    /// count. To avoid this, an enabled group is disabled briefly.
    ///
    /// [sched]: https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c
    ///
    /// # Errors
    ///
    /// [`Error::Open`], and [`Error::Control`] if the group cannot be disabled and enabled.
    pub fn add(&mut self, event: &EventBuilder) -> Result<usize> {
        let member = event.in_group().disabled(false);
        let leader = self.leader();
        let counter = member.open_in(self.target.as_target(), Some(leader.as_fd()), 0)?;
        let software_led = leader.attr().type_ == PERF_TYPE_SOFTWARE;
        self.counters.push(counter);
        if self.enabled && software_led {
            self.leader().disable()?;
            self.leader().enable()?;
        }
        Ok(self.counters.len() - 1)
    }

    #[expect(clippy::indexing_slicing, reason = "there is always a leader")]
    fn leader(&self) -> &Counter {
        // A group is created with its leader and never loses a member.
        &self.counters[0]
    }

    /// The members, leader first.
    pub fn counters(&self) -> &[Counter] {
        &self.counters
    }

    /// Starts all of them.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn enable(&mut self) -> Result<()> {
        self.leader().enable_group()?;
        self.enabled = true;
        Ok(())
    }

    /// Stops all of them.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn disable(&mut self) -> Result<()> {
        self.leader().disable_group()?;
        self.enabled = false;
        Ok(())
    }

    /// Sets all counts to 0. The times are not reset.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn reset(&self) -> Result<()> {
        self.leader().reset_group()
    }

    /// Reads all counts at the same time.
    ///
    /// # Errors
    ///
    /// Those of [`Counter::read`].
    pub fn read(&self) -> Result<GroupCounts> {
        let mut counts = GroupCounts::default();
        self.read_into(&mut Vec::new(), &mut counts)?;
        Ok(counts)
    }

    /// Reads all counts at the same time, into memory that the caller reuses.
    ///
    /// # Errors
    ///
    /// Those of [`Counter::read`].
    pub fn read_into(&self, buffer: &mut Vec<u8>, counts: &mut GroupCounts) -> Result<()> {
        let format = ReadFormat::from_bits_retain(self.leader().attr().read_format);
        buffer.resize(read_size(format, self.counters.len()), 0);
        let bytes = self.leader().read_into(buffer)?;
        counts.counts.clear();
        counts.counts.extend(decode(bytes, format)?.iter());
        Ok(())
    }

    /// Enables the group, runs `f`, disables the group, and returns the counts of that period.
    ///
    /// # Errors
    ///
    /// Those of [`enable`](Self::enable) and [`read`](Self::read).
    pub fn measure<R>(&mut self, f: impl FnOnce() -> R) -> Result<(R, Vec<Count>)> {
        let before = self.read()?;
        self.enable()?;
        let result = f();
        self.disable()?;
        let after = self.read()?;
        let counts = after.counts.iter().zip(&before.counts).map(|(a, b)| a.since(b)).collect();
        Ok((result, counts))
    }
}
