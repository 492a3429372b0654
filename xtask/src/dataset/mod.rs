//! `cargo xtask test-dataset`: datasets of `triscope export`, read by DuckDB and Arrow.

pub(crate) mod fleet;

use crate::runtimes;
use conformance_go::answers::Cgroup;
use serde_json::json;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use task_support::{Result, lane, pypi, run, target_dir, workspace};

const CHECK: &str = include_str!("check.py");

const SPARK: &str = include_str!("spark.py");

/// What the checks have in common.
const ANSWERS: &str = include_str!("answers.py");
const GIVEN: &str = include_str!("given.py");
const VIEWS: &str = include_str!("views.py");

/// The readers, with versions.
const PACKAGES: &[&str] = &["duckdb==2.0.0", "pyarrow==26.0.1"];

pub(crate) const OPTIONS: &str = "\
[--write] [--triscope-sql] [--spark] [FILE|DIR...]

  --write    regenerate the tables and questions of docs/dataset.md, and the examples of the questions
  --triscope-sql   also compare the answers of triscope-sql, which is built first, with those of DuckDB
  --spark    also compare the answers of Spark, with several workers: needs Java 17 and a download of 435 MB
  FILE|DIR   also recordings for triscope export: answers are compared with triscope report";

/// The traces of the workspace that are exported.
const TRACES: &[&str] = &[
    "crates/gotrace/tests/data/shop.trace",
    "crates/nettrace/tests/data/t10-activity.nettrace",
    "crates/nettrace/tests/data/t10-counters.nettrace",
    "crates/nettrace/tests/data/t31-selfdesc.nettrace",
];

/// A Go trace with a damaged part.
const DAMAGED: &str = "damaged.trace";

/// A command that enters the cgroup `$0` and computes until it was throttled in ten periods.
const THROTTLED: &str = "echo $$ > $0/cgroup.procs; \
     until grep -q '^nr_throttled [1-9][0-9]' $0/cpu.stat; do \
     i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done; done";

/// A command of eight processes that compete for the CPUs.
const COMPETE: &str = "for n in 1 2 3 4 5 6 7 8; do \
     (i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done) & done; wait; ls / > /dev/null";

pub(crate) fn task(args: &[String]) -> Result {
    let python = match environment() {
        Ok(python) => python,
        Err(why) => return lane::skip("datasets in DuckDB and Arrow", &why),
    };
    let found = runtimes::targets().and_then(|targets| Ok((targets, Cgroup::make()?)));
    let (targets, cgroup) = match found {
        Ok(found) => found,
        Err(why) => return lane::skip("datasets of recordings", &why),
    };
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let write = has("--write");
    let triscope_sql = has("--triscope-sql").then(crate::sql::program).transpose()?;
    let spark = has("--spark").then(spark).transpose()?;
    let dir = target_dir().join("dataset");
    fresh(&dir)?;
    scripts(&dir)?;
    let triscope = run::triscope()?;
    let mut recordings: Vec<PathBuf> = TRACES.iter().map(|path| workspace().join(path)).collect();
    recordings.extend(args.iter().filter(|arg| !arg.starts_with("--")).map(PathBuf::from));
    let mut damaged = fs::read(workspace().join(TRACES[0]))?;
    damaged.iter_mut().skip(40_000).take(100).for_each(|byte| *byte = 0xff);
    fs::write(dir.join(DAMAGED), damaged)?;
    recordings.push(dir.join(DAMAGED));
    record(&triscope, &targets, &cgroup, &dir, &mut recordings)?;

    let dataset = dir.join("dataset");
    let mut exported = Vec::new();
    for (number, recording) in recordings.iter().enumerate() {
        // Of a damaged trace, what can be read is exported, and the commands fail.
        let is_damaged = recording.ends_with(DAMAGED);
        let recover: &[&str] = if is_damaged { &["--recover"] } else { &[] };
        let attempt = |command: &mut Command| -> Result<Output> {
            let output = run::attempt(command.args(recover))?;
            let error = || String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() == is_damaged { Err(error().into()) } else { Ok(output) }
        };
        // The report of one recording is compared with a dataset of it alone.
        let alone = dir.join(format!("alone-{number}"));
        for output in [&dataset, &alone] {
            let mut export = Command::new(&triscope);
            export.args(["export", "--host", "test"]).arg(recording).arg("-o").arg(output);
            attempt(&mut export)?;
        }
        let mut report = Command::new(&triscope);
        let report = attempt(report.args(["report", "--json", "--all"]).arg(recording))?;
        let path = dir.join(format!("report-{number}.json"));
        fs::write(&path, report.stdout)?;
        let mut explain = Command::new(&triscope);
        explain.args(["explain", "--json", "--worst", "100"]).args(recover).arg(recording);
        let explained = explained(&run::attempt(&mut explain)?)?;
        exported.push(json!({
            "name": recording,
            "dataset": alone,
            "report": path,
            "explained": explained,
        }));
    }
    let (input, check) = (dir.join("input.json"), dir.join("check.py"));
    let asked = [questions(), with_cohorts()].concat();
    let text = json!({
        "dataset": dataset,
        "recordings": exported,
        "questions": asked,
        "tables": tables(),
        "examples": dir.join("examples.json"),
        "triscope_sql": triscope_sql,
        "spark": spark,
    });
    fs::write(&input, text.to_string())?;
    fs::write(&check, CHECK)?;
    run::run(Command::new(python).arg(&check).arg(&input))?;
    if write {
        document(&dir.join("examples.json"))?;
    }
    Ok(())
}

/// A Python with the readers.
fn environment() -> Result<PathBuf> {
    pypi::environment(PACKAGES)
}

/// A Python with Spark, and a Java for it.
fn spark() -> Result<PathBuf> {
    crate::debian::ensure_program("java", "default-jre-headless")?;
    pypi::environment(&["pyspark==4.3.0"])
}

/// Makes an empty directory.
fn fresh(dir: &Path) -> Result {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => fs::create_dir_all(dir)?,
    }
    Ok(())
}

/// Writes what the checks have in common.
fn scripts(dir: &Path) -> Result {
    let all =
        [("answers.py", ANSWERS), ("given.py", GIVEN), ("spark.py", SPARK), ("views.py", VIEWS)];
    for (name, text) in all {
        fs::write(dir.join(name), text)?;
    }
    Ok(())
}

/// The questions, for the checks.
fn questions() -> Vec<serde_json::Value> {
    let questions = trace_dataset::QUESTIONS.iter();
    questions
        .map(|q| {
            json!({
                "name": q.name, "about": q.about(), "sql": q.sql, "spark": q.in_spark(), "ask": q.name,
            })
        })
        .collect()
}

/// Conditions for the questions that compare cohorts: each recording is in one. Engines support subqueries
/// in few places.
const COHORTS: [&str; 2] = [
    "kernel IS NULL -- of a runtime",
    "recording IN (SELECT recording FROM recordings WHERE kernel IS NOT NULL)",
];

/// The questions that compare cohorts, with conditions.
fn with_cohorts() -> Vec<serde_json::Value> {
    let [before, after] = COHORTS;
    let with = |q: &trace_dataset::Question| {
        let with = |sql: &str| trace_dataset::with_cohorts(sql, before, after);
        let (sql, spark) = (with(q.sql)?, with(&q.in_spark())?);
        let name = format!("{} by kernel", q.name);
        Some(json!({ "name": name, "about": q.about(), "ask": &sql, "sql": &sql, "spark": spark }))
    };
    trace_dataset::QUESTIONS.iter().filter_map(with).collect()
}

/// The tables, for the checks.
fn tables() -> Vec<serde_json::Value> {
    let tables = trace_dataset::TABLES.iter().map(|table| {
        let columns: Vec<_> = table.columns.iter().map(|column| column.name).collect();
        json!({ "name": table.name, "columns": columns, "sorted_by": table.sorted_by })
    });
    tables.collect()
}

/// The answer of `triscope explain --json`: without requests, none.
fn explained(output: &Output) -> Result<String> {
    let error = String::from_utf8_lossy(&output.stderr);
    match String::from_utf8(output.stdout.clone())? {
        text if !text.is_empty() => Ok(text),
        _ if error.contains("no task or region ended") => Ok("[]".to_owned()),
        _ => Err(error.into()),
    }
}

/// Records the scheduler with processes that compete and with a CPU quota, samples of the CPU, and a
/// .NET program.
fn record(
    triscope: &Path,
    targets: &Path,
    cgroup: &Cgroup,
    dir: &Path,
    recordings: &mut Vec<PathBuf>,
) -> Result {
    let mut scheduler = |name: &str, script: &[&OsStr]| {
        let kept = dir.join(name);
        let mut command = Command::new(triscope);
        command.args(["record", "--sched", "--keep"]).arg(&kept).arg("-o");
        command.arg(kept.with_extension("pftrace")).args(["--", "sh", "-c"]).args(script);
        recordings.push(kept);
        run::run(&mut command)
    };
    scheduler("scheduler", &[COMPETE.as_ref()])?;
    scheduler("quota", &[THROTTLED.as_ref(), cgroup.path().as_os_str()])?;
    let samples = dir.join("samples.data");
    let mut command = Command::new(triscope);
    command.args(["profile", "-e", "cpu-clock", "-o"]).arg(&samples);
    run::run(command.args(["--", "sh", "-c", COMPETE]))?;
    recordings.push(samples);
    let trace = dir.join("workload.nettrace");
    let mut command = Command::new(triscope);
    command.args(["dotnet", "collect", "--clrevents", "gc+exception+contention+threading"]);
    command.args(["--clreventlevel", "verbose", "-o"]);
    command.arg(&trace).arg("--").arg(targets.join("9/run"));
    run::run(command.env("WORKLOAD_MODE", "mix").env("WORKLOAD_SECONDS", "2"))?;
    recordings.push(trace);
    Ok(())
}

/// Writes what is generated into `docs/dataset.md` and the questions.
fn document(examples: &Path) -> Result {
    let path = workspace().join("docs/dataset.md");
    let text = fs::read_to_string(&path)?;
    let text = replaced(&text, "tables", &trace_dataset::markdown())?;
    let mut list = "\n| question | meaning |\n| --- | --- |\n".to_owned();
    for question in trace_dataset::QUESTIONS {
        list.push_str(&format!("| `{}` | {} |\n", question.name, question.about()));
    }
    list.push('\n');
    fs::write(&path, replaced(&text, "questions", &list)?)?;
    let examples: serde_json::Value = serde_json::from_str(&fs::read_to_string(examples)?)?;
    for question in trace_dataset::QUESTIONS {
        let rows = examples[question.name].as_str().ok_or("a question without an example")?;
        let path = workspace().join("crates/trace-dataset/sql").join(question.name);
        let (head, rest) =
            question.sql.split_once("-- Example:\n").ok_or("a question without an example")?;
        let code = rest.lines().skip_while(|line| line.starts_with("--"));
        let code = code.collect::<Vec<_>>().join("\n");
        let rows: String = rows.lines().map(|row| format!("--   {row}\n")).collect();
        let text = format!("{head}-- Example:\n{rows}{code}\n");
        fs::write(path.with_extension("sql"), text)?;
    }
    Ok(())
}

/// The text with another part between two comments.
fn replaced(text: &str, name: &str, part: &str) -> Result<String> {
    let lacks = || format!("docs/dataset.md has no part {name}");
    let begin = format!("<!-- {name}: cargo xtask test-dataset --write -->\n");
    let (head, rest) = text.split_once(&begin).ok_or_else(lacks)?;
    let end = format!("<!-- end of {name} -->\n");
    let (_, tail) = rest.split_once(&end).ok_or_else(lacks)?;
    Ok([head, &begin, part, &end, tail].concat())
}
