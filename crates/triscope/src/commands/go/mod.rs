//! `triscope go`: Go execution traces.

mod events;
mod stats;
mod wire;

use crate::failure::Result;

/// The commands of the group.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Events(events::Args),
    Wire(wire::Args),
    Stats(stats::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result {
        match self {
            Self::Events(args) => events::run(&args),
            Self::Wire(args) => wire::run(&args),
            Self::Stats(args) => stats::run(&args),
        }
    }
}
