//! `triscope sql`: SQL about a dataset or traces, by the program `triscope-sql`.

use crate::answers::dataset::{Cohorts, is_dataset, question};
use crate::failure::{Failure, Result};
use crate::run::child::{Launched, outcome_of_part};
use crate::run::cleanup;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Answer SQL about a dataset, or about traces
///
/// DIR is a dataset of triscope export. Traces are exported to a temporary dataset first, which is one
/// recording. Of damaged traces, what could be read is in it, and the exit status is 1. DataFusion answers, in a
/// program of its own: triscope-sql, beside this program or in PATH. It only reads.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope sql scheduling_latency dataset
  triscope sql 'SELECT host, count(*) FROM sched GROUP BY host' dataset
  triscope sql --json cpu_time recording/       what triscope record --keep wrote
  triscope sql --csv - dataset < question.sql
  triscope sql latency_regression dataset --before \"date < '2026-11-20'\" --after \"date >= '2026-11-20'\"
  triscope questions                            the questions with a name

The tables and columns are described in docs/dataset.md.")]
pub(crate) struct Args {
    /// One SELECT, the name of a question, or - for standard input
    #[arg(value_name = "QUERY")]
    query: String,
    /// A dataset, or the traces of one recording
    #[arg(value_name = "DIR|TRACE", required = true)]
    inputs: Vec<PathBuf>,
    /// Print an array of objects
    #[arg(long)]
    json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Limit for rows that are ordered, grouped or joined, and for the table that is printed; what exceeds
    /// it goes to temporary files, or is an error [default: half of what is available]
    #[arg(long, value_name = "MB")]
    memory: Option<u32>,
    /// Of damaged traces, resume after the damage, and report what is lost
    #[arg(long)]
    recover: bool,
    /// CLOCK_MONOTONIC time in seconds at which the clock of a trace shows 0; with several traces
    /// FILE=SECONDS
    #[arg(long, value_name = "[FILE=]SECONDS", allow_hyphen_values = true)]
    offset: Vec<String>,
    #[command(flatten)]
    cohorts: Cohorts,
}

/// The program that answers.
const PROGRAM: &str = "triscope-sql";

pub(crate) fn run(args: &Args) -> Result {
    let program = program();
    let mut command = Command::new(&program);
    if args.json {
        command.arg("--json");
    } else if args.csv {
        command.arg("--csv");
    }
    if let Some(megabytes) = args.memory {
        command.args(["--memory", &megabytes.to_string()]);
    }
    let query = match args.cohorts.is_given() {
        true => args.cohorts.apply(&args.query, question(&args.query)?.sql.to_owned())?,
        false => args.query.clone(),
    };
    command.args(["--", &query]);
    if let [dataset] = args.inputs.as_slice() {
        if is_dataset(dataset) {
            if args.recover || !args.offset.is_empty() {
                let what = "is a dataset: --recover and --offset are for traces";
                return Err(Failure::about(dataset.display(), what).with_code(2));
            }
            return Err(missing(&command.arg(dataset).exec()));
        }
    }
    if let Some(dataset) = args.inputs.iter().find(|path| is_dataset(path)) {
        let what = "a dataset is asked alone, without traces and other datasets";
        return Err(Failure::about(dataset.display(), what).with_code(2));
    }
    // Before minutes are spent on the export.
    if let Err(error) = Command::new(&program).arg("--help").output() {
        return Err(missing(&error));
    }
    let temporary =
        tempfile::tempdir().map_err(|error| Failure::about("temporary files", error))?;
    let path = temporary.path().to_owned();
    let _guard = cleanup::on_exit(move || {
        let _ = std::fs::remove_dir_all(&path); // nothing is left to report to
    });
    let status = export(args, temporary.path())?;
    let exported = outcome_of_part("triscope export", status);
    // Of damaged traces there is what could be read.
    if !matches!(status.code(), Some(0 | 1)) || !is_dataset(temporary.path()) {
        return exported;
    }
    command.arg(temporary.path());
    let answered = wait(command.get_program(), command.get_args())?;
    outcome_of_part(PROGRAM, answered).and(exported)
}

/// Runs a program. A signal that ends this program is passed on to it.
fn wait<'a>(program: &'a OsStr, args: impl IntoIterator<Item = &'a OsStr>) -> Result<ExitStatus> {
    let command: Vec<&OsStr> = std::iter::once(program).chain(args).collect();
    Launched::start(&command, |_| ())?.wait()
}

/// The program beside this one, or its name, which is searched in `PATH`.
fn program() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|path| path.with_file_name(PROGRAM));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into())
}

fn missing(error: &std::io::Error) -> Failure {
    let failure = Failure::about(PROGRAM, error);
    match error.kind() {
        ErrorKind::NotFound => failure.and(
            "it is built by itself with Rust 1.94 or later: cargo install --path sql, in the sources of \
             triscope; DuckDB answers without it: triscope questions --help",
        ),
        _ => failure,
    }
}

/// Exports traces by this program. What it has to say about them is printed.
fn export(args: &Args, dataset: &Path) -> Result<ExitStatus> {
    let own = std::env::current_exe().map_err(|e| Failure::about("triscope export", e))?;
    let mut all: Vec<&OsStr> = vec!["export".as_ref(), "-o".as_ref(), dataset.as_os_str()];
    if args.recover {
        all.push("--recover".as_ref());
    }
    for offset in &args.offset {
        all.extend::<[&OsStr; 2]>(["--offset".as_ref(), offset.as_ref()]);
    }
    all.push("--".as_ref());
    all.extend(args.inputs.iter().map(|path| path.as_os_str()));
    wait(own.as_os_str(), all)
}
