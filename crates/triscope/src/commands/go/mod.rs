//! `triscope go`: Go execution traces.

mod allocs;
mod analysis;
mod critical_path;
mod csv;
mod events;
#[cfg(unix)]
mod fetch;
#[cfg(unix)]
mod flight;
mod footprint;
mod gc;
mod goroutines;
mod groups;
mod latency;
mod longest;
mod mmu;
mod path_model;
mod pauses;
mod procs;
mod profile;
mod regions;
mod restrict;
mod stalls;
mod stats;
pub(crate) mod summary;
mod summary_page;
mod task_log;
mod tasks;
mod trim;
mod wire;

use crate::failure::Result;

/// The commands of the group.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Events(events::Args),
    Wire(wire::Args),
    Footprint(footprint::Args),
    Stats(stats::Args),
    Summary(summary::Args),
    Trim(trim::TrimArgs),
    Split(trim::SplitArgs),
    Goroutines(goroutines::Args),
    Regions(regions::Args),
    Tasks(tasks::Args),
    CriticalPath(critical_path::Args),
    Profile(profile::Args),
    Latency(latency::Args),
    Stalls(stalls::Args),
    Procs(procs::Args),
    Gc(gc::Args),
    Pauses(pauses::Args),
    Mmu(mmu::Args),
    Allocs(allocs::Args),
    #[cfg(unix)]
    Fetch(fetch::Args),
    #[cfg(unix)]
    Flight(flight::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result {
        match self {
            Self::Events(args) => events::run(&args),
            Self::Wire(args) => wire::run(&args),
            Self::Footprint(args) => footprint::run(&args),
            Self::Stats(args) => stats::run(&args),
            Self::Summary(args) => summary::run(&args),
            Self::Trim(args) => trim::trim(&args),
            Self::Split(args) => trim::split(&args),
            Self::Goroutines(args) => goroutines::run(&args),
            Self::Regions(args) => regions::run(&args),
            Self::Tasks(args) => tasks::run(&args),
            Self::CriticalPath(args) => critical_path::run(&args),
            Self::Profile(args) => profile::run(&args),
            Self::Latency(args) => latency::run(&args),
            Self::Stalls(args) => stalls::run(&args),
            Self::Procs(args) => procs::run(&args),
            Self::Gc(args) => gc::run(&args),
            Self::Pauses(args) => pauses::run(&args),
            Self::Mmu(args) => mmu::run(&args),
            Self::Allocs(args) => allocs::run(&args),
            #[cfg(unix)]
            Self::Fetch(args) => fetch::run(&args),
            #[cfg(unix)]
            Self::Flight(args) => flight::run(&args),
        }
    }
}
