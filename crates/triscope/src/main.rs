//! `triscope`: records, converts and inspects kernel, Go and .NET traces.
//!
//! - [`commands`]: one module per command. They do not import each other.
//! - [`run`]: child processes, targets, signals, `/proc`.
//! - [`io`]: inputs, output files, standard output, progress.
//! - [`answers`]: what several commands print about traces.
//! - [`sources`] and [`timeline`]: shared code to read traces and to draw them.
//! - [`failure`]: errors that end a command early; [`message`]: what is not one.
#![forbid(unsafe_code)]
#![deny(clippy::print_stderr)]

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

use clap::{CommandFactory, Parser, Subcommand};
#[cfg(feature = "push")]
use commands::push;
use commands::{
    convert, demo, diff, doctor, dotnet, explain, export, flight, go, manual, open, perf, profile,
    questions, record, report, sql, top,
};
use failure::Failure;
use std::process::ExitCode;
use std::sync::Arc;

/// Record and analyse kernel, Go and .NET traces on one timeline.
#[derive(Parser)]
#[command(
    version,
    propagate_version = true,
    after_help = "\
Examples:
  triscope doctor                              what can be recorded here
  triscope demo                                a timeline of bundled programs
  triscope open trace.out                      timeline and report in the browser
  triscope convert trace.out -o trace.pftrace  to a timeline for https://ui.perfetto.dev
  triscope record -o out.pftrace ./program     the kernel's scheduler and a command
  triscope profile -o cpu.svg ./program        a flame graph of a command
  triscope top -a                              where CPU time goes, live
  triscope diff old.pb.gz new.pb.gz            the functions whose share has changed
  triscope go stats trace.out                  summarize a Go execution trace
  triscope go events trace.out | less          every event as text
  triscope perf stat make                      count events of the kernel
  triscope dotnet collect 1234                 trace a .NET process until Ctrl-C
  curl -s http://localhost:6060/debug/pprof/trace?seconds=5 | triscope go stats -

Input may be compressed with gzip or zstd; - is standard input, except where a file is read twice.

Signals: Ctrl-C, SIGTERM or SIGHUP ends a recording, and the output is completed; a second signal
exits at once. A COMMAND that was started gets the first signal, and the recording ends with it;
the second one becomes SIGTERM, the third one SIGKILL. The flight recorder without a COMMAND keeps
running at SIGHUP and reads its configuration again; SIGUSR1 has it write a dump.

Failures: a COMMAND is not run if its recording cannot begin. Once it runs, a failure of triscope,
such as a full disk or a closed pipe, does not end it: the failure is reported at once, and triscope
waits for the end of the COMMAND."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Open(open::Args),
    Convert(convert::Args),
    Record(record::Args),
    Flight(flight::Args),
    Profile(profile::Args),
    Diff(diff::Args),
    Top(top::Args),
    Report(report::Args),
    Explain(explain::Args),
    Export(export::Args),
    Questions(questions::Args),
    Sql(sql::Args),
    #[cfg(feature = "push")]
    Push(push::Args),
    Doctor(doctor::Args),
    Demo(demo::Args),
    /// Go execution traces: runtime/trace, go test -trace, /debug/pprof/trace
    #[command(subcommand)]
    Go(go::Command),
    /// Linux perf events: count, record, report, probe and show them live
    #[command(subcommand)]
    Perf(perf::Command),
    /// .NET processes and traces: dumps, sessions, events, counters, profiles
    #[command(subcommand)]
    Dotnet(dotnet::Command),
    Completions(manual::Completions),
    Man(manual::Man),
    #[command(hide = true)]
    RescueRuntimes(run::rescue::Args),
}

fn main() -> ExitCode {
    #[cfg(unix)]
    let _messages = message::AtEnd;
    report_size_limits();
    keep_exit_statuses();
    let result = match Cli::parse().command {
        Command::Open(args) => open::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Flight(args) => flight::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Questions(args) => questions::run(&args),
        Command::Sql(args) => sql::run(&args),
        #[cfg(feature = "push")]
        Command::Push(args) => push::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Go(command) => command.run(),
        Command::Perf(command) => command.run(),
        Command::Dotnet(command) => command.run(),
        Command::Completions(args) => args.run(Cli::command()),
        Command::Man(args) => args.run(Cli::command()),
        Command::RescueRuntimes(args) => run::rescue::run(&args),
    };
    let code = result.map_or_else(Failure::report, |()| ExitCode::SUCCESS);
    #[cfg(unix)]
    run::runtimes::wait_for_stops();
    code
}

/// Makes a write beyond `RLIMIT_FSIZE` a reported error: SIGXFSZ would kill the program.
fn report_size_limits() {
    // Without the handler the default action stays in place.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Makes the kernel keep the exit statuses of children: it does not where SIGCHLD was ignored by the program that started
/// this one.
fn keep_exit_statuses() {
    use signal_hook::consts::SIGCHLD;
    if run::stop::not_ignored(&[SIGCHLD]).is_empty() {
        // A handler without effect, which children do not inherit.
        let _ = signal_hook::flag::register(SIGCHLD, Arc::default());
    }
}
