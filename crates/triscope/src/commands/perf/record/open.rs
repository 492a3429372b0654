//! The events of a recording.

use super::{Args, Frequency, PAGES};
use crate::failure::{Failure, Result};
use crate::run::target::threads;
use crate::sources::kernel::events::{Cgroup, EventGroup};
use crate::sources::kernel::failure;
use crate::sources::kernel::sampling::{
    Opened, Rate, Scope, THIS_THREAD, with_kernel_or_not, without_kernel,
};
use perf_data::EventGroup as GroupFeature;
use perf_monitor::{Event, EventBuilder, SampleFlags};
use std::rc::Rc;

/// The default of `-F`.
const HERTZ: u64 = 4000;

/// The cgroup of each group of events.
type Cgroups = [Option<Rc<Cgroup>>];

impl Args {
    /// An event that takes samples.
    fn sampling(&self, scope: &Scope, event: &Event, user_only: bool) -> EventBuilder {
        let chain = if self.call_graph { SampleFlags::CALLCHAIN } else { SampleFlags::empty() };
        let rate = match (self.count, self.freq) {
            (Some(count), _) => Rate::Period(count),
            (_, Some(Frequency::Hertz(hertz))) => Rate::Hertz(hertz),
            (_, Some(Frequency::Max)) => Rate::Max(HERTZ),
            (_, None) => Rate::Usual(HERTZ),
        };
        scope.sampling(event, chain, rate, user_only)
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
        let mut tids = threads(&self.processes.ids())?;
        let on_exec = self.begins_with_command();
        if on_exec {
            tids.push(command.unwrap_or(THIS_THREAD));
        }
        let (cpus, inherit) = (self.cpus.clone(), !self.is_system_wide());
        let scope = Scope { tids, cpus, inherit, on_exec, ..Scope::default() };
        let events = groups.iter().flat_map(|group| &group.events);
        with_kernel_or_not(events, |user_only| self.open_with(groups, cgroups, &scope, user_only))
            .map_err(failure)
    }

    fn open_with(
        &self,
        groups: &[EventGroup],
        cgroups: &Cgroups,
        scope: &Scope,
        user_only: bool,
    ) -> perf_monitor::Result<Opened> {
        let mut opened = scope.open(self.pages, PAGES, user_only)?;
        for (group, cgroup) in groups.iter().zip(cgroups) {
            let index = opened.events.len();
            self.open_group(&mut opened, group, scope, cgroup.as_deref())?;
            if group.leader_samples {
                let members = opened.events.len() - index;
                opened.features.groups.push(GroupFeature::new(index as u32, members as u32));
            }
        }
        opened.with_sideband()
    }

    /// Opens an event, or a group whose first event samples.
    fn open_group(
        &self,
        opened: &mut Opened,
        group: &EventGroup,
        scope: &Scope,
        cgroup: Option<&Cgroup>,
    ) -> perf_monitor::Result<()> {
        let Some((first, rest)) = group.events.split_first() else { return Ok(()) };
        let (set, user_only) = (&mut opened.set, opened.user_only);
        let mut leader = self.sampling(scope, first, user_only);
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
        opened.record(added, &group.events)
    }
}
