//! `triscope-page`: the commands of the web page, for WebAssembly.
//!
//! The modules are those of `triscope`. Commands that need more than files are not among them.
#![forbid(unsafe_code)]
#![deny(clippy::print_stderr)]
#![allow(dead_code, unused_imports, reason = "other commands share the modules")]

// First: a macro is known to the modules after it.
#[macro_use]
mod message;

mod answers;
mod commands;
mod failure;
mod io;
mod run;
mod sources;
mod timeline;

use clap::Parser;
use commands::{convert, go, report};
use failure::Failure;
use std::process::ExitCode;

#[derive(Parser)]
enum Command {
    Convert(convert::Args),
    Report(report::Args),
    /// Go execution traces
    #[command(subcommand)]
    Go(Go),
}

#[derive(clap::Subcommand)]
enum Go {
    Summary(go::summary::Args),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Convert(args) => convert::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Go(Go::Summary(args)) => go::summary::run(&args),
    };
    result.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}
