//! `triscope-sql`: answers SQL about a dataset of `triscope export`, by DataFusion.
//!
//! `triscope sql` runs this program. It is built by itself, because DataFusion is far larger than
//! everything else.
#![forbid(unsafe_code)]

mod dataset;
mod output;

use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::DataFrame;
use futures::TryStreamExt;
use output::{Format, Output, broken};
use std::ffi::OsString;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const USAGE: &str = "\
Answer SQL about a dataset of triscope export

usage: triscope-sql [--json | --csv] [--memory MB] [--] QUERY DIR

  QUERY         one SELECT, the name of a question (triscope questions), or - for standard input;
                -- before it if it begins with a comment
  DIR           the directory of the dataset
  --json        print an array of objects
  --csv         print comma-separated values with a header
  --memory MB   limit for rows that are ordered, grouped or joined, and for the table that is printed;
                what exceeds it goes to temporary files, or is an error (default: half of what is
                available, or 64 MiB if that is more)

The tables and their columns are described in docs/dataset.md. The dataset is not changed.";

struct Args {
    format: Format,
    /// In bytes.
    memory: Option<usize>,
    query: String,
    dir: PathBuf,
}

enum Error {
    Usage(String),
    /// A file, directory or stream.
    Io(String, std::io::Error),
    Engine(DataFusionError),
    /// A table that is larger than the memory.
    Table,
    /// The standard output was closed.
    Closed,
}

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        Self::Engine(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(what) => write!(f, "{what}"),
            Self::Io(name, error) => write!(f, "{name}: {error}"),
            Self::Engine(error) => write!(f, "{}", one_line(&error.strip_backtrace())),
            Self::Table => write!(
                f,
                "the table does not fit into the memory: --json and --csv print rows as they arrive, \
                 LIMIT prints fewer"
            ),
            Self::Closed => Ok(()),
        }
    }
}

/// A text without line breaks and control characters, which come from files and queries.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for c in text.trim().chars() {
        match c {
            '\n' => line.push(' '),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

fn main() -> ExitCode {
    // A failure of the engine is an error of the program, and has no backtrace.
    std::panic::set_hook(Box::new(|_| {}));
    let result = match std::panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(_) => Err(Error::Engine(DataFusionError::Execution(
            "the engine failed: a file of the dataset may be damaged".to_owned(),
        ))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // As shells report SIGPIPE.
        Err(Error::Closed) => ExitCode::from(128 + 13),
        Err(error) => {
            eprintln!("triscope-sql: {error}");
            ExitCode::from(if matches!(error, Error::Usage(_)) { 2 } else { 1 })
        }
    }
}

fn run() -> Result<(), Error> {
    let Some(args) = parse(std::env::args_os().skip(1).collect())? else {
        return writeln!(std::io::stdout(), "{USAGE}").map_err(broken);
    };
    let sql = query(args.query)?;
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.build().map_err(|e| Error::Io("threads".to_owned(), e))?;
    runtime.block_on(answer(&sql, &args.dir, args.format, args.memory.or_else(usual_memory)))
}

fn parse(args: Vec<OsString>) -> Result<Option<Args>, Error> {
    use lexopt::prelude::*;
    let usage = |error: lexopt::Error| Error::Usage(error.to_string());
    let (mut format, mut memory, mut query, mut dir) = (Format::Table, None, None, None);
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(usage)? {
        match arg {
            Long("json") => format = Format::Json,
            Long("csv") => format = Format::Csv,
            Long("memory") => {
                let text = parser.value().map_err(usage)?.string().map_err(usage)?;
                let megabytes: usize = text.parse().map_err(|_| {
                    Error::Usage(format!("--memory {text}: not a number of megabytes"))
                })?;
                memory = Some(megabytes.saturating_mul(1_000_000));
            }
            Short('h') | Long("help") => return Ok(None),
            Value(text) if query.is_none() => query = Some(text.string().map_err(usage)?),
            Value(path) if dir.is_none() => dir = Some(PathBuf::from(path)),
            _ => return Err(usage(arg.unexpected())),
        }
    }
    match (query, dir) {
        (Some(query), Some(dir)) => Ok(Some(Args { format, memory, query, dir })),
        _ => Err(Error::Usage(
            "a query and the directory of a dataset are needed: --help".to_owned(),
        )),
    }
}

/// The SQL that was given, by name or as text.
fn query(text: String) -> Result<String, Error> {
    if text == "-" {
        let mut sql = String::new();
        let read = std::io::stdin().lock().read_to_string(&mut sql);
        read.map_err(|error| Error::Io("standard input".to_owned(), error))?;
        return Ok(sql);
    }
    let question = trace_dataset::QUESTIONS.iter().find(|question| question.name == text);
    if question.is_none() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(Error::Usage(format!("no question is named {text}: triscope questions")));
    }
    Ok(question.map_or(text, |question| question.sql.to_owned()))
}

/// Without this much, in bytes, a question cannot even use files: a cgroup can be full of what the kernel can
/// take back.
const LEAST_MEMORY: usize = 64 << 20;

/// Half of the memory that is available, in bytes, or the least, if the system says so.
fn usual_memory() -> Option<usize> {
    let half = usize::try_from(trace_common::available_memory()? / 2).ok()?;
    Some(half.max(LEAST_MEMORY))
}

async fn answer(sql: &str, dir: &Path, format: Format, memory: Option<usize>) -> Result<(), Error> {
    let context = dataset::open(dir, memory).await?;
    let options = SQLOptions::new();
    // Questions only: nothing is written.
    let options = options.with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let frame = context.sql_with_options(sql, options).await?;
    let plan = frame.logical_plan().clone();
    dataset::check(&plan, dir)?;
    let result = write(frame, format).await;
    match result {
        Err(Error::Engine(error)) => Err(match dataset::incomplete(&plan, dir) {
            Some(path) => {
                let what = "the file is not complete: export its recording again";
                Error::Io(path.display().to_string(), std::io::Error::other(what))
            }
            None => Error::Engine(error),
        }),
        result => result,
    }
}

async fn write(frame: DataFrame, format: Format) -> Result<(), Error> {
    let pool = Arc::clone(frame.task_ctx().memory_pool());
    let mut output = Output::new(format, frame.schema().inner().clone(), &pool);
    let mut batches = frame.execute_stream().await?;
    while let Some(batch) = batches.try_next().await? {
        output.write(&batch)?;
    }
    output.finish()
}
