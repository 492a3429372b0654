//! The events of a recording.

use super::{Args, Frequency, PAGES};
use crate::failure::{Failure, Result};
use crate::run::target::threads;
use crate::sources::kernel::events::{Cgroup, Cpus, EventGroup};
use crate::sources::kernel::{failure, rings};
use perf_data::{EventGroup as GroupFeature, Features, RecordedEvent};
use perf_monitor::{
    Event, EventBuilder, KernelFeatures, OpenErrorReason, RingSet, SampleFlags, SetEvent, Software,
    max_sample_rate,
};
use std::rc::Rc;

/// The default of `-F`.
const HERTZ: u64 = 4000;

/// Fields of all samples.
const FIELDS: SampleFlags = SampleFlags::IDENTIFIER
    .union(SampleFlags::IP)
    .union(SampleFlags::TID)
    .union(SampleFlags::TIME)
    .union(SampleFlags::CPU);

/// Pages of each CPU's buffer for the records about tasks: a process that starts writes about 2 KiB.
const SIDE_PAGES: usize = 32;

/// The recorder wakes when this part of a buffer is filled: the rest is for the time until it gets the
/// CPU.
const WAKEUP_PART: u32 = 8;

/// The rings, and their events as a recording has them.
pub(super) struct Opened {
    pub(super) set: RingSet,
    pub(super) events: Vec<RecordedEvent>,
    /// The events that write records.
    pub(super) writers: Vec<SetEvent>,
    /// The machine and the groups.
    pub(super) features: Features,
    pub(super) user_only: bool,
}

/// The cgroup of each group of events.
type Cgroups = [Option<Rc<Cgroup>>];

impl Args {
    /// Options of all events.
    fn common(&self, event: &Event) -> EventBuilder {
        event
            .builder()
            .sample(FIELDS)
            .inherit(!self.is_system_wide())
            .enable_on_exec(self.begins_with_command())
    }

    /// The event of the records about tasks, which it writes into a ring of its own: a flood of
    /// samples does not lose them.
    fn sideband(&self) -> EventBuilder {
        self.common(&Event::software(Software::Dummy))
            .exclude_kernel(true)
            .exclude_hv(true)
            .mmap(true)
            .mmap2(true)
            .comm(true)
            .comm_exec(true)
            .task(true)
            .build_id(KernelFeatures::probe().has_flag("build_id"))
    }

    /// An event that takes samples.
    fn sampling(&self, event: &Event, user_only: bool) -> EventBuilder {
        let is_tracepoint = event.as_tracepoint().is_some();
        let chain = if self.call_graph { SampleFlags::CALLCHAIN } else { SampleFlags::empty() };
        // With PERIOD, the kernel takes a sample of each software event, whatever the period.
        let of_kind = match is_tracepoint {
            true => SampleFlags::RAW | SampleFlags::PERIOD,
            false if self.count.is_some() => SampleFlags::empty(),
            false => SampleFlags::PERIOD,
        };
        let fields = FIELDS | chain | of_kind;
        let builder = without_kernel(self.common(event).sample(fields), user_only);
        match (self.count, self.freq) {
            (Some(count), _) => builder.sample_period(count),
            (_, Some(Frequency::Hertz(hertz))) => builder.sample_freq(hertz),
            (_, Some(Frequency::Max)) => builder.sample_freq(max_rate()),
            _ if is_each_recorded(event) => builder.sample_period(1),
            _ => builder.sample_freq(HERTZ.min(max_rate())),
        }
    }

    /// Opens the events; without the kernel if only that is permitted.
    ///
    /// A command is that process if it is started already, otherwise it inherits the events.
    pub(super) fn open(
        &self,
        groups: &[EventGroup],
        cgroups: &Cgroups,
        command: Option<u32>,
    ) -> Result<Opened> {
        let is_unsampled = |group: &&EventGroup| group.events.len() > 1 && !group.leader_samples;
        if let Some(group) = groups.iter().find(is_unsampled) {
            let names: Vec<String> = group.events.iter().map(ToString::to_string).collect();
            let why = "only groups with :S are recorded, whose first event samples";
            return Err(Failure::about(format!("{{{}}}", names.join(",")), why));
        }
        let mut tids = threads(&self.pid)?;
        if self.begins_with_command() {
            const THIS_THREAD: u32 = 0;
            tids.push(command.unwrap_or(THIS_THREAD));
        }
        match self.open_with(groups, cgroups, &tids, false) {
            Ok(opened) => Ok(opened),
            Err(error) => match error.reason() {
                Some(OpenErrorReason::Privilege { user_space_alone_is_allowed: true, .. }) => {
                    self.open_with(groups, cgroups, &tids, true).map_err(failure)
                }
                _ => Err(failure(error)),
            },
        }
    }

    fn open_with(
        &self,
        groups: &[EventGroup],
        cgroups: &Cgroups,
        tids: &[u32],
        user_only: bool,
    ) -> perf_monitor::Result<Opened> {
        let mut options = rings(self.pages, PAGES);
        for tid in tids {
            options = options.thread(*tid);
        }
        if let Some(Cpus(cpus)) = &self.cpus {
            options = options.cpus(cpus.iter().copied());
        }
        let options = options.wakeup_part(WAKEUP_PART).sideband_ring(&self.sideband(), SIDE_PAGES);
        let mut set = options.open()?;
        let (mut events, mut writers) = (Vec::new(), Vec::new());
        let mut features = Features::of_this_machine();
        for (group, cgroup) in groups.iter().zip(cgroups) {
            let index = events.len();
            let added =
                self.open_group(&mut set, group, cgroup.as_deref(), user_only, &mut events)?;
            writers.extend(added);
            if group.leader_samples {
                let members = events.len() - index;
                features.groups.push(GroupFeature::new(index as u32, members as u32));
            }
        }
        if let Some(event) = set.sideband() {
            writers.push(event);
            let (attr, ids) = (set.attr(event)?, set.ids(event)?);
            events.push(RecordedEvent { name: "dummy:u".to_owned(), attr, ids });
        }
        Ok(Opened { set, events, writers, features, user_only })
    }

    /// Opens an event, or a group whose first event samples.
    fn open_group(
        &self,
        set: &mut RingSet,
        group: &EventGroup,
        cgroup: Option<&Cgroup>,
        user_only: bool,
        events: &mut Vec<RecordedEvent>,
    ) -> perf_monitor::Result<Option<SetEvent>> {
        let Some((first, rest)) = group.events.split_first() else { return Ok(None) };
        let mut leader = self.sampling(first, user_only);
        let mut members = Vec::new();
        if group.leader_samples {
            // The kernel does not inherit groups whose counts are in the samples.
            let fields = SampleFlags::from_bits_retain(leader.attr().sample_type);
            leader = leader.sample(fields | SampleFlags::READ).inherit(false);
            // Readers expect the same fields in all of its events.
            let fields = SampleFlags::from_bits_retain(leader.attr().sample_type);
            members.extend(rest.iter().map(|event| {
                without_kernel(event.builder().sample(fields).sample_id_all(true), user_only)
            }));
        }
        let added = match cgroup {
            Some(cgroup) => {
                let dir = rustix::io::dup(&cgroup.dir)
                    .map_err(|errno| perf_monitor::Error::System { call: "dup", errno })?;
                set.add_in_cgroup(&leader, &members, dir)?
            }
            None if members.is_empty() && !group.leader_samples => set.add(&leader)?,
            None => set.add_group(&leader, &members)?,
        };
        if let (Some(filter), Some(_)) = (&self.filter, first.as_tracepoint()) {
            set.set_filter(added, filter)?;
        }
        let all = [(set.attr(added)?, set.ids(added)?)].into_iter().chain(set.members(added)?);
        events.extend(group.events.iter().zip(all).map(|(event, (attr, ids))| {
            let suffix = if user_only && event.as_tracepoint().is_none() { ":u" } else { "" };
            RecordedEvent { name: format!("{event}{suffix}"), attr, ids }
        }));
        Ok(Some(added))
    }
}

/// Bytes in a ring that wake the recorder.
pub(super) fn watermark(set: &RingSet) -> u64 {
    (set.pages() * rustix::param::page_size()) as u64 / u64::from(WAKEUP_PART)
}

fn without_kernel(builder: EventBuilder, user_only: bool) -> EventBuilder {
    if user_only { builder.exclude_kernel(true).exclude_hv(true) } else { builder }
}

/// Whether the default is a sample at each occurrence.
fn is_each_recorded(event: &Event) -> bool {
    let is_probe = |prefix: &str| event.name().starts_with(prefix);
    event.as_tracepoint().is_some()
        || ["mem:", "kprobe", "kretprobe", "uprobe", "uretprobe"].into_iter().any(is_probe)
}

fn max_rate() -> u64 {
    max_sample_rate()
        .and_then(|rate| u64::try_from(rate).ok())
        .filter(|rate| *rate > 0)
        .unwrap_or(HERTZ)
}
