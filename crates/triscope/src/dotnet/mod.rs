//! `triscope dotnet`: .NET processes, by their own diagnostics.
//!
//! What the commands share: [`target`] (which process, and how it is reached).

mod collect;
mod commands;
mod counter;
mod ps;
mod signals;
mod target;

use crate::failure::Result;

/// The commands of the group.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Ps(ps::Args),
    Info(commands::Info),
    Env(commands::Env),
    SetEnv(commands::SetEnv),
    Dump(commands::Dump),
    Collect(Box<collect::Args>),
    Resume(commands::Resume),
    PerfMap(commands::PerfMap),
    StartupHook(commands::StartupHook),
}

impl Command {
    pub(crate) fn run(self) -> Result {
        match self {
            Self::Ps(args) => ps::run(&args),
            Self::Info(args) => args.run(),
            Self::Env(args) => args.run(),
            Self::SetEnv(args) => args.run(),
            Self::Dump(args) => args.run(),
            Self::Collect(args) => collect::run(&args),
            Self::Resume(args) => args.run(),
            Self::PerfMap(args) => args.run(),
            Self::StartupHook(args) => args.run(),
        }
    }
}
