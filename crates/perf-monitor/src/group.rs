//! Counters that are on the PMU together, or not at all.

use crate::Target;
use crate::builder::EventBuilder;
use crate::count::{Count, GroupCounts, decode, read_size};
use crate::counter::Counter;
use crate::error::Result;
use crate::flags::ReadFormat;
use perf_sys::PERF_TYPE_SOFTWARE;
use rustix::fd::{AsFd, BorrowedFd};

/// Events that are scheduled together, so that their counts can be compared; read at once.
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
/// assert!(counts.counts[faults].value > 0, "{} bytes were touched", touched.len());
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

/// A target that members are opened on later; a cgroup's directory is given with each.
#[derive(Clone, Copy, Debug)]
enum OwnedTarget {
    ThisThread,
    Thread(u32),
    Cpu(u32),
    ThreadOnCpu { tid: u32, cpu: u32 },
    Cgroup { cpu: u32 },
}

impl Group {
    /// Opens the leader. Its read format becomes that of the group: ids and both times are added.
    pub fn open(leader: &EventBuilder, target: Target<'_>) -> Result<Self> {
        let owned = match target {
            Target::ThisThread => OwnedTarget::ThisThread,
            Target::Thread(tid) => OwnedTarget::Thread(tid),
            Target::Cpu(cpu) => OwnedTarget::Cpu(cpu),
            Target::ThreadOnCpu { tid, cpu } => OwnedTarget::ThreadOnCpu { tid, cpu },
            Target::Cgroup { cpu, .. } => OwnedTarget::Cgroup { cpu },
        };
        let leader = as_member(leader).disabled(true);
        let counter = leader.open(target)?;
        Ok(Self { counters: vec![counter], target: owned, enabled: false })
    }

    /// Adds an event; the result is its index in [`GroupCounts::counts`].
    ///
    /// From Linux 6.12 a tracepoint that joins an enabled group led by a software event does not
    /// count. If the group is enabled, it is off for a moment here, so that it counts.
    pub fn add(&mut self, event: &EventBuilder) -> Result<usize> {
        self.add_in(event, None)
    }

    /// Adds an event to a group that was opened on a [`Target::Cgroup`], whose directory is given
    /// again.
    pub fn add_to_cgroup(&mut self, event: &EventBuilder, dir: BorrowedFd<'_>) -> Result<usize> {
        self.add_in(event, Some(dir))
    }

    fn add_in(&mut self, event: &EventBuilder, dir: Option<BorrowedFd<'_>>) -> Result<usize> {
        let target = match (self.target, dir) {
            (OwnedTarget::Thread(tid), _) => Target::Thread(tid),
            (OwnedTarget::Cpu(cpu), _) => Target::Cpu(cpu),
            (OwnedTarget::ThreadOnCpu { tid, cpu }, _) => Target::ThreadOnCpu { tid, cpu },
            (OwnedTarget::Cgroup { cpu }, Some(dir)) => Target::Cgroup { dir, cpu },
            // Without the directory the kernel refuses the mixed group, and that is reported.
            (OwnedTarget::Cgroup { cpu }, None) => Target::Cpu(cpu),
            (OwnedTarget::ThisThread, _) => Target::ThisThread,
        };
        let member = as_member(event).disabled(false);
        let leader = self.leader();
        let counter = member.open_in(target, Some(leader.as_fd()), 0)?;
        let software_led = leader.attr().type_ == PERF_TYPE_SOFTWARE;
        self.counters.push(counter);
        if self.enabled && software_led {
            self.leader().disable()?;
            self.leader().enable()?;
        }
        Ok(self.counters.len() - 1)
    }

    fn leader(&self) -> &Counter {
        // A group is made with its leader and never loses a member.
        &self.counters[0]
    }

    /// The members, leader first.
    pub fn counters(&self) -> &[Counter] {
        &self.counters
    }

    /// Starts all of them.
    pub fn enable(&mut self) -> Result<()> {
        self.leader().enable_group()?;
        self.enabled = true;
        Ok(())
    }

    /// Stops all of them.
    pub fn disable(&mut self) -> Result<()> {
        self.leader().disable_group()?;
        self.enabled = false;
        Ok(())
    }

    /// Sets all counts to 0; the times go on.
    pub fn reset(&self) -> Result<()> {
        self.leader().reset_group()
    }

    /// Reads all at one moment.
    pub fn read(&self) -> Result<GroupCounts> {
        let mut counts = GroupCounts::default();
        self.read_into(&mut Vec::new(), &mut counts)?;
        Ok(counts)
    }

    /// Reads all at one moment, into memory that is kept for the next time.
    pub fn read_into(&self, buffer: &mut Vec<u8>, counts: &mut GroupCounts) -> Result<()> {
        let format = ReadFormat::from_bits_retain(self.leader().attr().read_format);
        buffer.resize(read_size(format, self.counters.len()), 0);
        let bytes = self.leader().read_into(buffer)?;
        counts.counts.clear();
        counts.counts.extend(decode(bytes, format)?.iter());
        Ok(())
    }

    /// Runs `f` while the group counts, and returns what it counted.
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

fn as_member(event: &EventBuilder) -> EventBuilder {
    let format = ReadFormat::from_bits_retain(event.attr().read_format)
        | ReadFormat::GROUP
        | ReadFormat::ID
        | ReadFormat::TOTAL_TIME_ENABLED
        | ReadFormat::TOTAL_TIME_RUNNING;
    event.clone().read_format(format)
}
