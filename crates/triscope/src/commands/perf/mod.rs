//! `triscope perf`: events of the Linux kernel.

mod list;
mod stat;
mod trace;

use crate::failure::Result;

/// The commands of the group.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    List(list::Args),
    Stat(stat::Args),
    Trace(trace::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result {
        match self {
            Self::List(args) => list::run(&args),
            Self::Stat(args) => stat::run(&args),
            Self::Trace(args) => trace::run(&args),
        }
    }
}
