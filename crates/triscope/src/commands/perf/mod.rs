//! `triscope perf`: events of the Linux kernel.

mod list;
mod probe;
mod record;
mod report;
mod script;
mod stat;
mod top;
mod trace;

use crate::failure::Result;
use std::path::{Path, PathBuf};

/// The recording that a command reads.
#[derive(clap::Args)]
struct Recording {
    /// The recording; - is standard input, in pipe mode [default: perf.data]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The same as FILE, as for perf
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    input: Option<PathBuf>,
}

impl Recording {
    fn path(&self) -> &Path {
        self.file.as_ref().or(self.input.as_ref()).map_or(Path::new("perf.data"), PathBuf::as_path)
    }
}

/// The commands of the group.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    List(list::Args),
    Probe(probe::Args),
    Record(record::Args),
    Report(report::Args),
    Script(script::Args),
    Stat(stat::Args),
    Top(top::Args),
    Trace(trace::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result {
        match self {
            Self::List(args) => list::run(&args),
            Self::Probe(args) => probe::run(&args),
            Self::Record(args) => record::run(&args),
            Self::Report(args) => report::run(&args),
            Self::Script(args) => script::run(&args),
            Self::Stat(args) => stat::run(&args),
            Self::Top(args) => top::run(&args),
            Self::Trace(args) => trace::run(&args),
        }
    }
}
