//! `triscope dotnet`: .NET processes and traces.
//!
//! Shared modules: [`target`] (selects and connects to a process), [`source`] (reads a trace or a
//! session event by event), [`providers`] (the providers to enable).

mod collect;
mod commands;
mod counter;
mod counters;
mod events;
mod gc;
mod gcdump;
mod json;
mod profile;
mod profiler;
mod providers;
mod ps;
mod signals;
mod source;
mod stack;
mod stats;
mod stopping;
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
    Events(events::Args),
    Stats(stats::Args),
    Counters(counters::Args),
    Stack(stack::Args),
    Profile(profile::Args),
    Gc(gc::Args),
    Gcdump(gcdump::Args),
    Resume(commands::Resume),
    PerfMap(commands::PerfMap),
    StartupHook(commands::StartupHook),
    #[command(subcommand)]
    Profiler(profiler::Command),
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
            Self::Events(args) => events::run(&args),
            Self::Stats(args) => stats::run(&args),
            Self::Counters(args) => counters::run(&args),
            Self::Stack(args) => stack::run(&args),
            Self::Profile(args) => profile::run(&args),
            Self::Gc(args) => gc::run(&args),
            Self::Gcdump(args) => gcdump::run(&args),
            Self::Resume(args) => args.run(),
            Self::PerfMap(args) => args.run(),
            Self::StartupHook(args) => args.run(),
            Self::Profiler(command) => command.run(),
        }
    }
}

/// The default name of a file about a process, without extension: `NAME_PID_yyyyMMdd_HHmmss`, in UTC.
fn file_name(name: &str, pid: Option<u32>) -> String {
    let time = jiff::Timestamp::now().strftime("%Y%m%d_%H%M%S");
    match pid {
        Some(pid) => format!("{name}_{pid}_{time}"),
        None => format!("{name}_{time}"),
    }
}

/// Names of files to try until one is free: `NAME`, `NAME_2`, `NAME_3`, each with this extension.
fn numbered(name: &str, extension: &str) -> impl Iterator<Item = std::path::PathBuf> {
    (1u32..).map(move |number| match number {
        1 => format!("{name}{extension}").into(),
        _ => format!("{name}_{number}{extension}").into(),
    })
}
