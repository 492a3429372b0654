//! The judge: Go's own reader in a program of ours, so that thousands of small inputs can be read
//! without starting a process for each, and so that two map iterations of the reference do not
//! make its answer for old traces a matter of chance.

use super::toolchain::{self, Toolchain};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use task_support::{Result, cache, run};

const SOURCE: &str = include_str!("judge/main.go");

/// What is changed in the reference: the order of goroutines that are runnable when a trace of
/// Go ≤ 1.21 starts, and of events of different procs at the same clock tick, come from iterating
/// a map there, and are different in every run. Here both are in ascending order of the id.
const ORDERED: [(&str, &str, &str); 3] = [
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

/// Builds a program that imports internal packages of the standard library, once.
pub(crate) fn with_internals(newest: &Toolchain, name: &str, source: &str) -> Result<PathBuf> {
    let mut sources = vec![("main.go", source)];
    sources.extend(ORDERED.iter().map(|(file, _, text)| (*file, *text)));
    let hash = toolchain::content_hash(&sources);
    let dir = cache::entry(&format!("go/{name}/{}-{hash:016x}", newest.version), |dir| {
        eprintln!("building {name} with Go {}", newest.version);
        let goroot = dir.join("goroot");
        newest.twin(&goroot)?;
        let src = goroot.join("src");
        for (file, before, text) in ORDERED {
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

/// Replaces the file at `path` by one that has `text` before the only place that reads `mark`.
fn insert(path: &Path, mark: &str, text: &str) -> Result {
    let source = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    if source.matches(mark).count() != 1 {
        return Err(format!("{}: expected {mark:?} exactly once", path.display()).into());
    }
    fs::remove_file(path)?; // it may be a link to the toolchain's own file
    Ok(fs::write(path, source.replace(mark, &format!("{text}{mark}")))?)
}

/// How the reference ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All was read.
    Accepted,
    /// It reported the end of the trace before the end of the input.
    Silent,
    /// It refused.
    Refused,
    /// It panicked, or its text of an event did.
    Panicked,
}

/// What the reference makes of one file.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    /// Of an error or panic.
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

    /// Has the file at `path` read: its ordered `events`, or its `wire` events as they are.
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
                words.next(); // the number of events, for whoever reads this by eye
                let message = words.next().unwrap_or_default().to_owned();
                return Ok(Answer { verdict, message, text });
            } else {
                return Err(format!("the judge died at {}", path.display()).into());
            }
        }
    }

    /// Ends it and waits for it.
    pub(crate) fn finish(mut self) -> Result {
        drop(self.questions);
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the judge: {status}").into()) }
    }
}
