//! `triscope go`: Go execution traces.

mod analysis;
mod events;
mod goroutines;
mod mmu;
mod profile;
mod regions;
mod stats;
mod tasks;
mod wire;

use crate::failure::Result;

/// The commands of the group.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Events(events::Args),
    Wire(wire::Args),
    Stats(stats::Args),
    Goroutines(goroutines::Args),
    Regions(regions::Args),
    Tasks(tasks::Args),
    Profile(profile::Args),
    Mmu(mmu::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result {
        match self {
            Self::Events(args) => events::run(&args),
            Self::Wire(args) => wire::run(&args),
            Self::Stats(args) => stats::run(&args),
            Self::Goroutines(args) => goroutines::run(&args),
            Self::Regions(args) => regions::run(&args),
            Self::Tasks(args) => tasks::run(&args),
            Self::Profile(args) => profile::run(&args),
            Self::Mmu(args) => mmu::run(&args),
        }
    }
}
