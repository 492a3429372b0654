//! `triscope doctor`: what can be recorded here.

mod kernel;
mod machine;
mod runtimes;

use crate::failure::{OneLine, Result};
use crate::io::stdout::Output;
use machine::Machine;
use serde_json::{Value, json};
use std::fmt::Display;
use std::io::{self, Write};

/// Show what can be recorded on this machine as this user, and why the rest cannot
///
/// Each line was tried, not derived from versions or settings: events are opened on this process or
/// on a CPU and closed at once. A fix is the command that changes the result.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope doctor
  sudo triscope doctor
  triscope doctor --json | jq '.checks[] | select(.works != \"yes\")'

The exit status is 0 whatever the result. No BPF program is loaded by any command.")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Works {
    Yes,
    Partly,
    No,
}

impl Works {
    const fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::Partly => "partly",
            Self::No => "no",
        }
    }
}

/// One thing that can be recorded, or not.
struct Check {
    /// A stable name.
    id: &'static str,
    what: &'static str,
    works: Works,
    /// What was tried and found, or why it failed.
    note: String,
    /// The command that would change the result.
    fix: Option<String>,
}

impl Check {
    fn yes(id: &'static str, what: &'static str, note: impl Display) -> Self {
        Self { id, what, works: Works::Yes, note: note.to_string(), fix: None }
    }

    fn no(id: &'static str, what: &'static str, note: impl Display, fix: Option<String>) -> Self {
        Self { id, what, works: Works::No, note: note.to_string(), fix }
    }

    fn partly(self) -> Self {
        Self { works: Works::Partly, ..self }
    }

    fn json(&self, area: &str) -> Value {
        json!({
            "area": area,
            "id": self.id,
            "what": self.what,
            "works": self.works.name(),
            "note": self.note,
            "fix": self.fix,
        })
    }
}

pub(crate) fn run(args: &Args) -> Result {
    let machine = Machine::look();
    let areas = [("kernel", kernel::checks(&machine)), ("runtimes", runtimes::checks())];
    let mut output = Output::new();
    let _ = if args.json {
        let checks = areas.iter().flat_map(|(area, checks)| checks.iter().map(|c| c.json(area)));
        let value = json!({ "machine": machine.json(), "checks": checks.collect::<Vec<_>>() });
        writeln!(output.buffer, "{value:#}")
    } else {
        print(&machine, &areas, &mut output.buffer)
    }; // writing to a vector does not fail
    output.finish()
}

fn print(machine: &Machine, areas: &[(&str, Vec<Check>)], out: &mut Vec<u8>) -> io::Result<()> {
    for (name, value) in machine.facts() {
        writeln!(out, "{name:<22}{}", OneLine(&value))?;
    }
    for (_, checks) in areas {
        writeln!(out)?;
        for check in checks {
            let note = OneLine(&check.note);
            writeln!(out, "{:<7} {:<28} {note}", check.works.name(), check.what)?;
            if let Some(fix) = &check.fix {
                writeln!(out, "{:<7} {:<28} fix: {}", "", "", OneLine(fix))?;
            }
        }
    }
    Ok(())
}
