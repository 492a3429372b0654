//! The judge: Go's own reader in a small program. It reads thousands of small inputs without a new
//! process for each. It fixes the order of two map iterations, so that the reference's output for
//! old traces is deterministic, and one fault of an analysis.

use super::toolchain::{self, Toolchain};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use task_support::{Result, cache, run};

const SOURCE: &str = include_str!("judge/main.go");

/// The changes in the reference. The order of goroutines that are runnable when a trace of Go ≤ 1.21
/// starts, and of events of different procs at the same clock tick, comes from iterating over a map
/// and differs in every run. Here both are in ascending order of the id. The mutator utilization
/// counts a background worker of the GC when it starts, because it was one before, and again at its
/// label, but it uncounts it once: here it is a worker until it stops.
const CHANGES: [(&str, &str, &str); 4] = [
    (
        "internal/trace/gc.go",
        "\t\t\t\t\t// Stopped running while doing GC things.\n",
        "\t\t\t\t\tdelete(bgMark, g)\n",
    ),
    (
        "internal/trace/internal/tracev1/parser.go",
        "\tallProcs = append(allProcs, proc{pid: ProfileP",
        "\tslices.SortFunc(allProcs, func(a, b proc) int { return cmp.Compare(a.pid, b.pid) })\n",
    ),
    ("internal/trace/tracev1.go", "\t\"errors\"\n", "\t\"cmp\"\n\t\"slices\"\n"),
    (
        "internal/trace/tracev1.go",
        "\t\t\tit.createdPreInit = nil\n",
        "\t\t\tslices.SortFunc(it.extra, func(a, b Event) int {\n\
         \t\t\t\treturn cmp.Compare(a.base.args[0], b.base.args[0])\n\t\t\t})\n",
    ),
];

/// The judge's program, built once.
pub(crate) fn program(newest: &Toolchain) -> Result<PathBuf> {
    with_internals(newest, "judge", SOURCE)
}

/// Builds a program that imports internal packages of the standard library, cached.
pub(crate) fn with_internals(newest: &Toolchain, name: &str, source: &str) -> Result<PathBuf> {
    let mut sources = vec![("main.go", source)];
    sources.extend(CHANGES.iter().map(|(file, _, text)| (*file, *text)));
    let hash = toolchain::content_hash(&sources);
    let dir = cache::entry(&format!("go/{name}/{}-{hash:016x}", newest.version), |dir| {
        eprintln!("building {name} with Go {}", newest.version);
        let goroot = dir.join("goroot");
        newest.twin(&goroot)?;
        let src = goroot.join("src");
        for (file, before, text) in CHANGES {
            insert(&src.join(file), before, text)?;
        }
        let package = format!("triscope{name}");
        fs::create_dir(src.join(&package))?;
        fs::write(src.join(&package).join("main.go"), source)?;
        let mut build = newest.command_in(&goroot);
        build.current_dir(&src).arg("build").arg("-o").arg(dir.join(name));
        run::output(build.arg(package))?;
        fs::remove_dir_all(&goroot)?;
        Ok(())
    })?;
    Ok(dir.join(name))
}

/// Inserts `text` in the file at `path` before the only occurrence of `mark`.
fn insert(path: &Path, mark: &str, text: &str) -> Result {
    let source = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    if source.matches(mark).count() != 1 {
        return Err(format!("{}: expected {mark:?} exactly once", path.display()).into());
    }
    fs::remove_file(path)?; // it may be a link to the toolchain's file
    Ok(fs::write(path, source.replace(mark, &format!("{text}{mark}")))?)
}

/// The verdict of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It read the whole trace.
    Accepted,
    /// It reported the end of the trace before the end of the input.
    Silent,
    /// It reported an error.
    Refused,
    /// It panicked, or formatting an event did.
    Panicked,
}

/// The reference's result for a file.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    /// The message of an error or panic.
    pub(crate) message: String,
    pub(crate) text: Vec<u8>,
}

/// A running judge.
#[derive(Debug)]
pub(crate) struct Judge {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Judge {
    pub(crate) fn start(program: &Path) -> Result<Judge> {
        let mut child = std::process::Command::new(program)
            .arg("text")
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let questions = child.stdin.take().ok_or("the judge has no input")?;
        let answers = BufReader::new(child.stdout.take().ok_or("the judge has no output")?);
        Ok(Judge { child, questions, answers })
    }

    /// Reads the file at `path`: the ordered `events`, or the unordered `wire` events.
    pub(crate) fn ask(&mut self, layer: &str, path: &Path) -> Result<Answer> {
        writeln!(self.questions, "{layer} {}", path.display())?;
        let mut text = Vec::new();
        loop {
            let mut line = String::new();
            self.answers.read_line(&mut line)?;
            if let Some(length) = line.strip_prefix("T ") {
                let length: u64 = length.trim_end().parse()?;
                let got = (&mut self.answers).take(length).read_to_end(&mut text)?;
                if got as u64 != length {
                    return Err("the judge died while it printed".into());
                }
            } else if let Some(verdict) = line.strip_prefix("V ") {
                let mut words = verdict.trim_end().splitn(3, ' ');
                let verdict = match words.next() {
                    Some("ok") => Verdict::Accepted,
                    Some("silent") => Verdict::Silent,
                    Some("error") => Verdict::Refused,
                    Some("panic") => Verdict::Panicked,
                    other => return Err(format!("the judge says {other:?} of {path:?}").into()),
                };
                words.next(); // the number of events, for a person who reads the output
                let message = words.next().unwrap_or_default().to_owned();
                return Ok(Answer { verdict, message, text });
            } else {
                return Err(format!("the judge died at {}", path.display()).into());
            }
        }
    }

    /// Stops the judge and waits for it.
    pub(crate) fn finish(mut self) -> Result {
        drop(self.questions);
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the judge: {status}").into()) }
    }
}
