//! The events of a profile.

use super::Args;
use crate::failure::Result;
use crate::run::target::threads;
use crate::sources::goroutines;
use crate::sources::kernel::events::cgroup_dir;
use crate::sources::kernel::sampling::{
    Opened, Rate, Scope, THIS_THREAD, with_kernel_or_not, with_switches,
};
use crate::sources::kernel::{failure, report_namespace, report_small_rings};
use perf_monitor::{Event, EventBuilder};
use std::path::PathBuf;

/// Default number of pages of a CPU's buffer: 4 MiB.
const PAGES: usize = 1024;

/// Opens the events; without the kernel if only that is permitted, and possible.
///
/// `waking` is the event of wake-ups.
pub(super) fn open(args: &Args, event: Option<&Event>, waking: Option<&Event>) -> Result<Opened> {
    let scope = args.scope()?;
    let open = |user_only| open_with(args, &scope, event, waking, user_only);
    match args.has_switches() {
        true => with_switches(open),
        false => with_kernel_or_not(event, open).map_err(|e| args.call_graph.explain(failure(e))),
    }
}

fn open_with(
    args: &Args,
    scope: &Scope,
    event: Option<&Event>,
    waking: Option<&Event>,
    user_only: bool,
) -> perf_monitor::Result<Opened> {
    let mut opened = scope.open(args.pages, PAGES, user_only)?;
    if let Some(event) = event {
        let rate = args.count.map_or(Rate::Usual(args.freq), Rate::Period);
        let chains = args.call_graph.apply(scope.chains(event, rate, user_only), true);
        opened.add(&args.registers(chains))?;
    }
    if let Some(waking) = waking {
        let chains = scope.chains(waking, Rate::Period(1), false);
        let is_first = opened.events.is_empty();
        opened.add(&args.call_graph.apply(chains, is_first))?;
    }
    if args.has_switches() {
        let is_first = opened.events.is_empty();
        opened.add(&args.registers(args.call_graph.apply(scope.switches(), is_first)))?;
    }
    if args.pages.is_none() {
        report_small_rings(&opened.set, PAGES);
    }
    report_namespace(args.target.is_system_wide());
    opened.with_sideband()
}

/// The name of the event that is sampled.
pub(super) fn sampled_name(opened: &Opened) -> &str {
    opened.events.first().map_or("", |event| &event.name)
}

impl Args {
    /// The directories of the cgroups.
    pub(super) fn cgroup_dirs(&self) -> Result<Vec<PathBuf>> {
        self.cgroup.iter().map(|name| cgroup_dir(name)).collect()
    }

    /// An event whose samples have the registers that goroutines are found by, if they are wanted.
    fn registers(&self, builder: EventBuilder) -> EventBuilder {
        if self.has_goroutines() { goroutines::registers(builder) } else { builder }
    }

    fn scope(&self) -> Result<Scope> {
        let mut tids = threads(&self.target.pids())?;
        let on_exec = self.target.starts_on_exec();
        if on_exec {
            tids.push(THIS_THREAD);
        }
        let (cpus, inherit) = (self.target.cpus()?, !self.target.is_system_wide());
        let cgroups = self.cgroup_dirs()?;
        let data = self.records_data();
        Ok(Scope { tids, cgroups, cpus, inherit, on_exec, data })
    }
}
