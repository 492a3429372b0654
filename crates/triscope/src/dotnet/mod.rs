//! `triscope dotnet`: .NET processes and traces.

mod counters;
mod events;
mod gc;
mod gcdump;
mod json;
mod profile;
mod providers;
mod source;
mod stack;
mod stats;
mod writers;

use crate::failure::Result;

/// The commands of the group.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Events(events::Args),
    Stats(stats::Args),
    Counters(counters::Args),
    Stack(stack::Args),
    Profile(profile::Args),
    Gc(gc::Args),
    Gcdump(gcdump::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result {
        match self {
            Self::Events(args) => events::run(&args),
            Self::Stats(args) => stats::run(&args),
            Self::Counters(args) => counters::run(&args),
            Self::Stack(args) => stack::run(&args),
            Self::Profile(args) => profile::run(&args),
            Self::Gc(args) => gc::run(&args),
            Self::Gcdump(args) => gcdump::run(&args),
        }
    }
}
