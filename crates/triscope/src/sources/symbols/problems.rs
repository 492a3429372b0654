//! Frames without a function, and why.

use crate::failure::OneLine;
use crate::timeline::counted;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of files that are named.
const SHOWN: usize = 3;

/// The frames without a function, by file and reason; and those of files that nothing identifies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problems(Arc<Mutex<HashMap<(String, Problem), u64>>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Problem {
    Unresolved(String),
    Unverified,
    /// Functions have names, but no lines and inlined calls.
    Partial(String),
    /// The names of a process are those of its perf map alone.
    PerfMapOnly(String),
    /// A part of the jitdump file of a process is not used.
    Damaged {
        process: u32,
    },
}

impl Problems {
    /// Counts a frame without a function.
    pub(super) fn missing(&self, file: &str, why: String, count: u64) {
        self.add(file, Problem::Unresolved(why), count);
    }

    /// Counts an address with the function of a file that may not be the one that was mapped.
    pub(super) fn unverified(&self, file: &str) {
        self.add(file, Problem::Unverified, 1);
    }

    /// Counts an address with a function, of a file whose debug information is not used.
    pub(super) fn partial(&self, file: &str, why: String) {
        self.add(file, Problem::Partial(why), 1);
    }

    /// Counts an address with the function of a perf map, whose process has a jitdump file that is not used.
    pub(super) fn perf_map_only(&self, file: &str, why: String) {
        self.add(file, Problem::PerfMapOnly(why), 1);
    }

    /// Keeps the number of records of the jitdump file of a process that are damaged.
    pub(super) fn damaged(&self, process: u32, records: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry((String::new(), Problem::Damaged { process })).or_default();
        *count = records.max(*count);
    }

    fn add(&self, file: &str, problem: Problem, count: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((file.to_owned(), problem)).or_default() += count;
    }

    /// Prints the files with most frames.
    pub(crate) fn print(&self) {
        self.lines().iter().for_each(|line| message!("triscope: {line}"));
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts: Vec<_> = counts.iter().collect();
        counts.sort_by(|((file, _), count), ((other, _), more)| {
            more.cmp(count).then_with(|| file.cmp(other))
        });
        let (mut lines, mut rest, mut files) = (Vec::new(), 0, 0u64);
        for ((file, problem), count) in counts {
            let file = OneLine(file);
            match problem {
                Problem::Unverified => lines.push(format!(
                    "{file}: not verified: neither a build id nor a time shows that it is the file that \
                     was mapped"
                )),
                Problem::Partial(why) => {
                    lines.push(format!("{file}: debug information is not used: {why}"));
                }
                Problem::PerfMapOnly(why) => {
                    lines.push(format!("{file}: the jitdump file of its process is not used: {why}"));
                }
                Problem::Damaged { process } => lines.push(format!(
                    "process {process}: {} of its jitdump file left out",
                    counted(*count, "damaged record")
                )),
                Problem::Unresolved(why) if lines.len() < SHOWN => {
                    let frames = counted(*count, "frame");
                    lines.push(format!("{file}: {frames} without a function: {why}"));
                }
                Problem::Unresolved(_) => (rest, files) = (rest + count, files + 1),
            }
        }
        if rest > 0 {
            let (frames, files) = (counted(rest, "frame"), counted(files, "other file"));
            lines.push(format!("{frames} of {files} without a function"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_with_most_frames_are_named() {
        let problems = Problems::default();
        for (file, count) in [("/a", 5), ("/b", 9), ("/c", 7), ("/d", 1), ("/e", 2), ("/b", 1)] {
            problems.missing(file, trace_symbols::Unresolved::NoSymbols.to_string(), count);
        }
        let shown = |file, count| {
            format!("{file}: {count} frames without a function: the file has no symbols")
        };
        let rest = "3 frames of 2 other files without a function".to_owned();
        assert_eq!(problems.lines(), [shown("/b", 10), shown("/c", 7), shown("/a", 5), rest]);
        assert!(Problems::default().lines().is_empty());
    }
}
