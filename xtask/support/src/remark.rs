//! Remarks: lines that a check prints although it passes, and that the summary of `cargo xtask ci`
//! repeats.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

/// A remark: what it says of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// What it is about.
    pub kind: Kind,
    /// The first line.
    pub text: String,
}

/// The kind of a remark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something failed, and passed when it was run again.
    Unsteady,
    /// Something was not run.
    NotRun,
}

impl Kind {
    /// Begins the line of a remark.
    const fn mark(self) -> &'static str {
        match self {
            Self::Unsteady => "==== UNSTEADY: ",
            Self::NotRun => "==== NOT RUN: ",
        }
    }
}

/// Those of this process that were not taken yet.
static REMARKS: Mutex<Vec<Remark>> = Mutex::new(Vec::new());

/// Prints a remark, and keeps it for [`take`]. What is unsteady is a defect of the check.
pub fn add(kind: Kind, text: &dyn Display) {
    let line = format!("{}{text}", kind.mark());
    eprintln!("\n{line}\n");
    REMARKS.lock().unwrap_or_else(PoisonError::into_inner).extend(parse(&line));
}

/// The remarks of this process since the last call.
#[must_use]
pub fn take() -> Vec<Remark> {
    std::mem::take(&mut *REMARKS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The remarks in the output of a process.
pub fn parse(output: &str) -> impl Iterator<Item = Remark> {
    output.lines().filter_map(|line| {
        let is_of = |kind: &Kind| line.starts_with(kind.mark());
        let kind = [Kind::Unsteady, Kind::NotRun].into_iter().find(is_of)?;
        Some(Remark { kind, text: line[kind.mark().len()..].to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_are_kept_and_found_in_the_output_of_others() {
        add(Kind::Unsteady, &"a clock");
        add(Kind::NotRun, &"miri: not installed\nfor this toolchain");
        let remark = |kind, text: &str| Remark { kind, text: text.into() };
        let remarks =
            [remark(Kind::Unsteady, "a clock"), remark(Kind::NotRun, "miri: not installed")];
        assert_eq!(take(), remarks);
        assert_eq!(take(), []);
        let output =
            "x\n==== UNSTEADY: a clock\n  ==== NOT RUN: y\n==== NOT RUN: miri: not installed\nz";
        assert_eq!(parse(output).collect::<Vec<_>>(), remarks);
    }
}
