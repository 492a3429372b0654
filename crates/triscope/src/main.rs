//! `triscope`: what running programs tell about themselves, read, shown and converted.
//!
//! One module per command. What they share: [`input`] (files and standard input, compressed or
//! not, and what they hold), [`output`] (standard output through one buffer), [`launch`] (commands
//! that are started), [`signals`], [`progress`] and [`failure`] (what ends a command early).
#![forbid(unsafe_code)]

mod convert;
mod dotnet;
mod failure;
mod go;
mod input;
mod launch;
mod output;
mod perf;
mod progress;
mod record;
mod signals;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

/// Look into what running programs tell about themselves.
#[derive(Parser)]
#[command(
    version,
    propagate_version = true,
    after_help = "\
Examples:
  triscope convert trace.out -o trace.pftrace  a timeline for https://ui.perfetto.dev
  triscope record -o out.pftrace ./program     what the scheduler does with a command
  triscope go stats trace.out                  what is in a Go execution trace
  triscope go events trace.out | less          every event as text
  triscope perf stat make                      count events of the kernel
  triscope dotnet collect 1234                 trace a .NET process until Ctrl-C
  curl -s http://localhost:6060/debug/pprof/trace?seconds=5 | triscope go stats -

Input may be compressed with gzip or zstd; - is standard input."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Convert(convert::Args),
    Record(record::Args),
    /// Go execution traces: runtime/trace, go test -trace, /debug/pprof/trace
    #[command(subcommand)]
    Go(go::Command),
    /// Events of the Linux kernel: list, count, and show them live
    #[command(subcommand)]
    Perf(perf::Command),
    /// .NET processes and traces: dumps, tracing sessions, events, counters, profiles
    #[command(subcommand)]
    Dotnet(dotnet::Command),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Convert(args) => convert::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Go(command) => command.run(),
        Command::Perf(command) => command.run(),
        Command::Dotnet(command) => command.run(),
    };
    result.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}
