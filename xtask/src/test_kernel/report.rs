//! The results of the tests: printed, as the table in the documentation, and compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

/// The outcome of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mark {
    Passed,
    /// It passed, except for features that this kernel or machine lacks.
    Partly(Vec<String>),
    /// This kernel or machine does not support it: the reason.
    Refused(Vec<String>),
    Skipped(String),
    Failed,
}

/// The results of one kernel.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    version: String,
    verdict: Result<(), String>,
    tests: BTreeMap<String, Mark>,
    notes: Vec<(String, String)>,
    duration: Duration,
    /// Duration of each test, if known.
    times: Vec<(String, Duration)>,
    /// CPU time on the host.
    cpu: Option<Duration>,
    /// The console output, shown after a failure.
    text: String,
}

impl Outcome {
    /// Parses the output of the tests: lines of the test harness, and lines of their report.
    pub(crate) fn new(
        name: String,
        version: String,
        text: &str,
        verdict: Result<(), String>,
        duration: Duration,
    ) -> Self {
        let mut tests: BTreeMap<String, Mark> = BTreeMap::new();
        let mut notes = Vec::new();
        for line in text.lines() {
            if let Some((test, result)) =
                line.strip_prefix("test ").and_then(|l| l.split_once(" ... "))
            {
                let short = test.rsplit("::").next().unwrap_or(test);
                let mark = match result.trim() {
                    // Not tests: helpers that other tests start, and writers of test data.
                    _ if short == "child" => continue,
                    result if result.starts_with("ignored") => continue,
                    "ok" => Mark::Passed,
                    _ => Mark::Failed,
                };
                tests.insert(short.to_owned(), mark);
            }
        }
        for line in text.lines().filter_map(|l| l.split_once("guest: report\t")).map(|(_, l)| l) {
            let mut parts = line.splitn(3, '\t');
            let (kind, test, detail) = (parts.next(), parts.next(), parts.next());
            let (Some(kind), Some(test), Some(detail)) = (kind, test, detail) else { continue };
            let mark = tests.get_mut(test).filter(|m| **m != Mark::Failed);
            match (kind, mark) {
                ("NOTE", _) => notes.push((test.to_owned(), detail.to_owned())),
                ("LACKS", Some(Mark::Partly(reasons))) => reasons.push(detail.to_owned()),
                ("LACKS", Some(mark)) if *mark == Mark::Passed => {
                    *mark = Mark::Partly(vec![detail.to_owned()]);
                }
                ("REFUSED", Some(Mark::Refused(reasons))) => reasons.push(detail.to_owned()),
                ("REFUSED", Some(mark)) => *mark = Mark::Refused(vec![detail.to_owned()]),
                ("SKIPPED", Some(mark)) => *mark = Mark::Skipped(detail.to_owned()),
                _ => {}
            }
        }
        // The harness prints `ok` for a test only after it ran: no tests is not a success.
        let verdict = verdict
            .and_then(|()| if tests.is_empty() { Err("no test ran".to_owned()) } else { Ok(()) });
        let (times, cpu, text) = (Vec::new(), None, text.to_owned());
        Self { name, version, verdict, tests, notes, duration, times, cpu, text }
    }

    /// Adds the durations of the tests, longest first.
    pub(crate) fn with_times(
        mut self,
        mut times: Vec<(String, Duration)>,
        cpu: Option<Duration>,
    ) -> Self {
        times.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        self.times = times;
        self.cpu = cpu;
        self
    }

    /// CPU time on the host, if known.
    pub(crate) const fn cpu(&self) -> Option<Duration> {
        self.cpu
    }

    pub(crate) fn is_good(&self) -> bool {
        self.verdict.is_ok() && !self.tests.values().any(|m| *m == Mark::Failed)
    }

    /// Order in reports: by architecture, mode and version.
    pub(crate) fn order(&self) -> (usize, Vec<u64>) {
        let kind = ["x86_64", "aarch64", "icount"];
        let kind = kind.iter().rposition(|k| self.name.contains(k)).unwrap_or(0);
        let numbers = self.version.split(|c: char| !c.is_ascii_digit());
        (kind, numbers.filter_map(|n| n.parse().ok()).collect())
    }

    /// Number of tests that passed.
    pub(crate) fn passed(&self) -> usize {
        self.count(|mark| matches!(mark, Mark::Passed | Mark::Partly(_)))
    }

    fn count(&self, of: impl Fn(&Mark) -> bool) -> usize {
        self.tests.values().filter(|m| of(m)).count()
    }

    /// Prints it.
    pub(crate) fn print(&self) {
        eprintln!(
            "\n== {} ({}): {} passed, {} refused by the kernel, {} skipped, {} failed; {:.1} s",
            self.name,
            self.version,
            self.passed(),
            self.count(|m| matches!(m, Mark::Refused(_))),
            self.count(|m| matches!(m, Mark::Skipped(_))),
            self.count(|m| *m == Mark::Failed),
            self.duration.as_secs_f64(),
        );
        for (test, mark) in &self.tests {
            match mark {
                Mark::Refused(reasons) => {
                    for reason in reasons {
                        eprintln!("   refused  {test}: {reason}");
                    }
                }
                Mark::Partly(reasons) => {
                    for reason in reasons {
                        eprintln!("   lacks    {test}: {reason}");
                    }
                }
                Mark::Skipped(why) => eprintln!("   skipped  {test}: {why}"),
                Mark::Failed => eprintln!("   FAILED   {test}"),
                Mark::Passed => {}
            }
        }
        for (test, note) in &self.notes {
            eprintln!("   note     {test}: {note}");
        }
        let long = self.times.iter().take(6);
        let long: Vec<String> = long
            .map(|(test, time)| {
                let short = test.rsplit("::").next().unwrap_or(test);
                format!("{short} {:.1} s", time.as_secs_f64())
            })
            .collect();
        if let Some(cpu) = self.cpu {
            eprintln!("   time     {:.1} s of CPU; {}", cpu.as_secs_f64(), long.join(", "));
        }
        let has_failed = self.count(|m| *m == Mark::Failed) > 0;
        let why = self.verdict.as_ref().err().cloned();
        if let Some(why) = why.or_else(|| has_failed.then(|| "a test has no result".into())) {
            let lines: Vec<&str> = self.text.lines().collect();
            let tail = &lines[lines.len().saturating_sub(120)..];
            eprintln!("   {}: {why}; the end of its console:\n{}", self.name, tail.join("\n"));
        }
    }
}

/// The entry for a test on one kernel in the committed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// `✓`
    Works,
    /// `(✓)`
    Partly,
}

/// The committed table, as written by [`markdown`].
#[derive(Debug)]
pub(crate) struct Table<'a> {
    columns: Vec<&'a str>,
    versions: Vec<&'a str>,
    rows: Vec<(&'a str, Vec<&'a str>)>,
}

impl<'a> Table<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        let cells = |line: &'a str| -> Option<Vec<&'a str>> {
            let inner = line.strip_prefix('|')?.strip_suffix('|')?;
            Some(inner.split('|').map(str::trim).collect())
        };
        let mut rows = text.lines().filter_map(cells);
        let columns = rows.next().ok_or("docs/kernel-support.md has no table")?;
        let mut rows = rows
            .filter(|row| row[0] != "---" && row.len() == columns.len())
            .map(|row| (row[0], row[1..].to_vec()));
        let (_, versions) = rows
            .next()
            .filter(|(name, _)| *name == "version")
            .ok_or("the table in docs/kernel-support.md does not begin with the versions")?;
        Ok(Self { columns: columns[1..].to_vec(), versions, rows: rows.collect() })
    }

    /// The tests of these outcomes that have no row.
    pub(crate) fn without_row(&self, outcomes: &[Outcome]) -> Vec<String> {
        let has_row = |test: &str| self.rows.iter().any(|(row, _)| *row == row_of(test));
        let tests: BTreeSet<&String> = outcomes.iter().flat_map(|o| o.tests.keys()).collect();
        tests.into_iter().filter(|test| !has_row(test)).cloned().collect()
    }

    /// The kernels with a column and without an outcome.
    pub(crate) fn without_outcome(&self, outcomes: &[Outcome]) -> Vec<&'a str> {
        let ran = |name: &str| outcomes.iter().any(|outcome| outcome.name == name);
        self.columns.iter().copied().filter(|name| !ran(name)).collect()
    }

    /// The entries of the table that `outcome` does not fulfil.
    ///
    /// The host's column applies to the kernel on which it was generated, and to other builds of it; another
    /// machine with this kernel may have no hardware PMU. A test that did not run is missing, unless the tests were
    /// `filtered`.
    pub(crate) fn broken_promises(&self, outcome: &Outcome, filtered: bool) -> Vec<String> {
        let Some(column) = self.columns.iter().position(|name| *name == outcome.name) else {
            return vec![format!("{}: the table has no such column", outcome.name)];
        };
        let (theirs, ours) = (self.versions[column], &outcome.version);
        let is_host = outcome.name == super::HOST;
        if is_host && source_of(theirs) != source_of(ours) {
            eprintln!("\n== the host is {ours}; the table has {theirs}: not compared");
            return Vec::new();
        }
        let mut broken = Vec::new();
        for (test, cells) in &self.rows {
            let promise = match cells[column] {
                "✓" => Promise::Works,
                "(✓)" => Promise::Partly,
                _ => continue,
            };
            let now = match (promise, outcome.tests.get(&test.replace(' ', "_"))) {
                (_, Some(Mark::Passed)) | (Promise::Partly, Some(Mark::Partly(_))) => continue,
                (_, None) if filtered => continue,
                // Its failure is reported separately.
                (_, Some(Mark::Failed)) => continue,
                (_, Some(Mark::Refused(why))) if is_host && why.iter().any(|w| lacks_pmu(w)) => {
                    eprintln!("\n== {test}: not compared on the host: {}", why.join("; "));
                    continue;
                }
                (_, Some(Mark::Partly(lacks))) => format!("lacks {}", lacks.join("; ")),
                (_, Some(Mark::Refused(why))) => format!("refused: {}", why.join("; ")),
                (_, Some(Mark::Skipped(why))) => format!("skipped: {why}"),
                (_, None) => "did not run".to_owned(),
            };
            broken.push(format!("{}: {test}: {now}", outcome.name));
        }
        broken
    }
}

/// The name of a test in the table.
fn row_of(test: &str) -> String {
    test.replace('_', " ")
}

/// The release of a kernel without the number of its build: `6.18.44-fc-v` of `6.18.44-fc-v595`.
fn source_of(release: &str) -> &str {
    match release.rsplit_once('-') {
        Some(_) => release.trim_end_matches(|c: char| c.is_ascii_digit()),
        None => release,
    }
}

/// Whether a test was refused because the machine has no counters in hardware.
fn lacks_pmu(why: &str) -> bool {
    why == "no hardware PMU" || why == "no cache event"
}

/// The table for the documentation.
pub(crate) fn markdown(outcomes: &[Outcome]) -> String {
    let mut out = String::from(
        "# Kernel support\n\n\
         Results of the tests of `perf-monitor` on real kernels. Generated by\n\
         `cargo xtask test-kernel --write`; do not edit. `cargo xtask test-kernel` fails when a ✓ is lost.\n\n\
         ✓ works; (✓) works except for what is listed below; – is refused by this kernel or machine, for\n\
         the reason below; blank was not tried there because it would change the machine. Kernel 7 is the\n\
         newest release of Linux 7 that Debian has; the version is in the first row. The x86-64 machines have\n\
         no hardware PMU; the arm64 ones have an emulated one, which counts instructions exactly with\n\
         `icount`.\n\n| |",
    );
    let mut line = |text: String| out.push_str(&text);
    for outcome in outcomes {
        line(format!(" {} |", outcome.name));
    }
    line("\n| --- |".to_owned());
    outcomes.iter().for_each(|_| line(" :-: |".to_owned()));
    line("\n| version |".to_owned());
    outcomes.iter().for_each(|o| line(format!(" {} |", o.version)));
    let tests: BTreeSet<&String> = outcomes.iter().flat_map(|o| o.tests.keys()).collect();
    let mut refusals: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for test in tests {
        line(format!("\n| {} |", row_of(test)));
        for outcome in outcomes {
            line(match outcome.tests.get(test) {
                Some(Mark::Passed) => " ✓ |".to_owned(),
                Some(mark @ (Mark::Refused(reasons) | Mark::Partly(reasons))) => {
                    let by_reason = refusals.entry(test).or_default();
                    for reason in reasons {
                        by_reason.entry(reason).or_default().push(&outcome.name);
                    }
                    if matches!(mark, Mark::Partly(_)) { " (✓) |" } else { " – |" }.to_owned()
                }
                Some(Mark::Failed) => " **failed** |".to_owned(),
                Some(Mark::Skipped(_)) | None => "  |".to_owned(),
            });
        }
    }
    line("\n\n## What was refused\n".to_owned());
    for (test, reasons) in refusals {
        line(format!("\n- {}\n", row_of(test)));
        for (reason, kernels) in reasons {
            line(format!("  - {reason}: {}\n", kernels.join(", ")));
        }
    }
    let mut notes = String::from("\n## What was measured\n");
    for outcome in outcomes {
        let _ = write!(notes, "\n### {} ({})\n\n", outcome.name, outcome.version);
        for (test, note) in &outcome.notes {
            let _ = writeln!(notes, "- {}: {note}", row_of(test));
        }
    }
    out + &notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tests_and_reports_are_read() {
        let text = "test a::one ... ok\ntest a::two ... ok\ntest three ... FAILED\ntest child ... ok\n\
            test x::fixtures ... ignored, writes test data\n\
            guest: report\tREFUSED\ttwo\tEINVAL\nguest: report\tNOTE\tone\t5 ns\n\
            test four ... ok\nguest: report\tLACKS\tfour\ta field\n";
        let outcome =
            Outcome::new("6.1 x86_64".into(), "6.1.0".into(), text, Ok(()), Duration::ZERO);
        assert_eq!(outcome.tests["one"], Mark::Passed);
        assert_eq!(outcome.tests["two"], Mark::Refused(vec!["EINVAL".into()]));
        assert_eq!(outcome.tests["four"], Mark::Partly(vec!["a field".into()]));
        assert!(!outcome.is_good() && outcome.tests.len() == 4);
        let table = markdown(&[outcome]);
        assert!(table.contains("| two | – |") && table.contains("- EINVAL: 6.1 x86_64"), "{table}");
        assert!(table.contains("| four | (✓) |") && table.contains("- a field: 6.1"), "{table}");
    }

    #[test]
    fn a_lost_check_mark_is_a_broken_promise() {
        let name = || "6.1 x86_64".to_owned();
        let outcome = |version: &str, text: &str| {
            Outcome::new(name(), version.into(), text, Ok(()), Duration::ZERO)
        };
        let good = "test a::one ... ok\ntest two ... ok\ntest four ... ok\n\
            guest: report\tLACKS\tfour\ta field\n";
        let committed = markdown(&[outcome("6.1.0", good)]);
        let table = Table::parse(&committed).unwrap();
        // Another version of the kernel must match the same entries.
        assert_eq!(table.broken_promises(&outcome("6.1.9", good), false), [""; 0]);
        let lost = "test a::one ... ok\ntest four ... ok\ntest five ... ok\n\
            guest: report\tREFUSED\tone\tEINVAL\nguest: report\tREFUSED\tfour\tEPERM\n";
        assert_eq!(
            table.broken_promises(&outcome("6.1.0", lost), false),
            [
                "6.1 x86_64: four: refused: EPERM",
                "6.1 x86_64: one: refused: EINVAL",
                "6.1 x86_64: two: did not run"
            ]
        );
        assert_eq!(table.broken_promises(&outcome("6.1.0", lost), true).len(), 2);
        let less = good.replace("four\ta field", "two\ta field");
        assert_eq!(
            table.broken_promises(&outcome("6.1.0", &less), false),
            ["6.1 x86_64: two: lacks a field"]
        );
    }

    #[test]
    fn tests_without_a_row_and_kernels_without_an_outcome_are_found() {
        let outcome = |name: &str, text: &str| {
            Outcome::new(name.to_owned(), "6.1.0".into(), text, Ok(()), Duration::ZERO)
        };
        let old = "test a_test ... ok\n";
        let committed = markdown(&[outcome("6.1", old), outcome("6.12", old)]);
        let table = Table::parse(&committed).unwrap();
        let new = outcome("6.1", "test a_test ... ok\ntest x::a_new_test ... ok\n");
        assert_eq!(table.without_row(std::slice::from_ref(&new)), ["a_new_test"]);
        assert_eq!(table.without_outcome(&[new]), ["6.12"]);
        let both = [outcome("6.1", old), outcome("6.12", old)];
        assert!(table.without_row(&both).is_empty() && table.without_outcome(&both).is_empty());
    }

    #[test]
    fn the_host_is_compared_with_other_builds_of_its_kernel() {
        let outcome = |version: &str, text: &str| {
            Outcome::new("host".to_owned(), version.into(), text, Ok(()), Duration::ZERO)
        };
        let committed = markdown(&[outcome("6.18.44-fc-v595", "test one ... ok\n")]);
        let table = Table::parse(&committed).unwrap();
        let broken = |version| table.broken_promises(&outcome(version, ""), false);
        assert_eq!(broken("6.18.44-fc-v782"), ["host: one: did not run"]);
        assert_eq!(broken("6.18.45-fc-v595"), [""; 0]);
        assert_eq!(broken("6.18.44"), [""; 0]);
    }

    #[test]
    fn no_tests_is_no_success() {
        let outcome = Outcome::new("x".into(), String::new(), "", Ok(()), Duration::ZERO);
        assert!(!outcome.is_good());
    }
}
