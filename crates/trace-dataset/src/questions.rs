//! Questions about a dataset in SQL.

use crate::schema::{ColumnType, TABLES};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// A question about a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Question {
    /// A short name.
    pub name: &'static str,
    /// The query, which begins with comments: the meaning and an example result. Tables of the
    /// dataset are views with their names: see [`views`].
    pub sql: &'static str,
}

impl Question {
    /// The meaning: the first comment.
    pub fn about(&self) -> String {
        let lines = self.sql.lines().map_while(|line| line.strip_prefix("--"));
        let lines = lines.map(str::trim).take_while(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join(" ")
    }

    /// Whether the question compares two cohorts of recordings, which [`with_cohorts`] chooses.
    pub fn compares_cohorts(&self) -> bool {
        self.sql.contains(COHORTS)
    }

    /// The query as Spark takes it: DuckDB and DataFusion have [`Question::sql`]. Few differ.
    pub fn in_spark(&self) -> String {
        let parts = SPARK.iter().filter(|(name, ..)| *name == self.name);
        parts.fold(self.sql.to_owned(), |sql, (_, part, spark)| sql.replace(part, spark))
    }
}

/// What Spark writes in another way: the name of a question, a part of it, and that in Spark.
const SPARK: &[(&str, &str, &str)] = &[(
    "flame_graph",
    "string_agg(replace(coalesce(f.function, '?'), ';', ':'), ';' ORDER BY k.depth DESC)",
    "listagg(replace(coalesce(f.function, '?'), ';', ':'), ';') WITHIN GROUP (ORDER BY k.depth DESC)",
)];

/// The part of a query that compares cohorts which has them: each row is a recording with its cohort, `before`
/// or `after`.
const COHORTS: &str = " cohorts AS (\n";

/// The query of a question that [compares cohorts](Question::compares_cohorts), with other cohorts: the
/// recordings for which the conditions hold, in SQL about the columns of the table `recordings`. A recording
/// for which both hold is in both. `None` if the query is of another question.
///
/// ```
/// let question = trace_dataset::QUESTIONS.iter().find(|q| q.name == "latency_regression").unwrap();
/// let sql = trace_dataset::with_cohorts(question.sql, "date < '2026-11-22'", "kernel LIKE '6.18.%'");
/// assert!(sql.unwrap().contains("kernel LIKE '6.18.%'"));
/// ```
pub fn with_cohorts(sql: &str, before: &str, after: &str) -> Option<String> {
    let (head, rest) = sql.split_once(COHORTS)?;
    // The end of the common table expression is the first line that is not indented.
    let (_, tail) = rest.split_once("\n)")?;
    let cohort = |name: &str, condition: &str| {
        // A comment at the end of the condition ends with its line.
        format!(
            "  SELECT recording, '{name}' AS cohort FROM recordings WHERE (\n    {condition}\n  )\n"
        )
    };
    let (before, after) = (cohort("before", before), cohort("after", after));
    Some(format!("{head}{COHORTS}{before}  UNION ALL\n{after}){tail}"))
}

macro_rules! questions {
    ($($name:literal),* $(,)?) => {
        &[$(Question { name: $name, sql: include_str!(concat!("../sql/", $name, ".sql")) }),*]
    };
}

/// The questions, in alphabetical order.
pub const QUESTIONS: &[Question] = questions![
    "allocation_sites",
    "counters",
    "coverage",
    "cpu_time",
    "cpu_utilization",
    "exceptions",
    "flame_graph",
    "flame_graph_difference",
    "gc_pauses",
    "gcs",
    "goroutine_times",
    "goroutine_waits",
    "hot_functions",
    "latency_regression",
    "lock_waits",
    "losses",
    "migrations",
    "noisy_neighbours",
    "off_cpu",
    "runtimes",
    "scheduling_latency",
    "slowest_tasks",
    "thread_times",
    "throttling",
    "wakers",
];

/// The partitions: columns of each view, whether or not the files have them too.
const PARTITIONS: [&str; 2] = ["date", "host"];

/// Statements for DuckDB that make the tables of the dataset at `dir` views with their names. The
/// partitions are columns `date` and `host`.
///
/// All columns of this version of the schema are there: those that no file has are `NULL`, and a table
/// without files has no rows. Both happen in datasets of older versions.
///
/// DuckDB 2.0 finds no files below a directory with `\` in its name.
pub fn views(dir: &str) -> String {
    let mut text = String::new();
    let (path, dir) = (Path::new(dir), as_pattern(dir.trim_end_matches('/')));
    // That of another machine, or of an object store, is not looked at.
    let is_local = path.is_dir();
    for table in TABLES {
        let name = table.name;
        let columns = table.columns.iter().map(|column| (column.name, sql_type(column.kind)));
        let columns = columns.filter(|(name, _)| !PARTITIONS.contains(name));
        let columns = columns.chain(PARTITIONS.map(|name| (name, "VARCHAR")));
        let columns: Vec<_> =
            columns.map(|(name, kind)| format!("NULL::{kind} AS \"{name}\"")).collect();
        // A string takes all.
        let _ = write!(
            text,
            "CREATE OR REPLACE VIEW {name} AS SELECT * FROM (SELECT {} WHERE false)",
            columns.join(", ")
        );
        if !is_local || has_files(&path.join(name)) {
            let _ = write!(
                text,
                " UNION ALL BY NAME SELECT * FROM read_parquet('{dir}/{name}/*/*/*.parquet', \
                 hive_partitioning = true, hive_types = {{'date': VARCHAR, 'host': VARCHAR}}, \
                 union_by_name = true)"
            );
        }
        text.push_str(";\n");
    }
    text
}

const fn sql_type(kind: ColumnType) -> &'static str {
    match kind {
        ColumnType::Int => "BIGINT",
        ColumnType::Double => "DOUBLE",
        ColumnType::Bool => "BOOLEAN",
        ColumnType::Text => "VARCHAR",
    }
}

/// Whether a table has a file: without one, DuckDB makes no view.
fn has_files(table: &Path) -> bool {
    let entries = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
    let dates = entries(table.to_owned());
    let hosts = dates.flat_map(|date| entries(date.path()));
    let mut files = hosts.flat_map(|host| entries(host.path()));
    files.any(|file| file.path().extension().is_some_and(|extension| extension == "parquet"))
}

/// A path as a pattern in a string: only it matches.
fn as_pattern(path: &str) -> String {
    let mut pattern = String::new();
    for c in path.chars() {
        match c {
            '[' | '*' | '?' => pattern.extend(['[', c, ']']),
            '\'' => pattern.push_str("''"),
            _ => pattern.push(c),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_have_a_meaning_and_an_example() {
        assert!(QUESTIONS.is_sorted_by_key(|question| question.name));
        for question in QUESTIONS {
            assert!(question.about().ends_with('.'), "{}", question.name);
            assert!(question.sql.contains("\n-- Example:\n"), "{}", question.name);
            // Rows of a recording that is not complete do not count.
            let mut code = question.sql.lines().filter(|line| !line.starts_with("--"));
            assert!(code.any(|line| line.contains(" recordings")), "{}", question.name);
        }
    }

    #[test]
    fn questions_that_differ_in_spark_say_so() {
        for question in QUESTIONS {
            let differs = question.in_spark() != question.sql;
            let says = question.sql.contains("\n-- In Spark: ");
            assert_eq!(differs, says, "{}", question.name);
        }
        for (name, ..) in SPARK {
            let question = QUESTIONS.iter().find(|question| question.name == *name).unwrap();
            assert_ne!(question.in_spark(), question.sql);
        }
    }

    #[test]
    fn conditions_choose_cohorts() {
        let comparing: Vec<_> = QUESTIONS.iter().filter(|q| q.compares_cohorts()).collect();
        let names: Vec<_> = comparing.iter().map(|question| question.name).collect();
        assert_eq!(names, ["flame_graph_difference", "latency_regression"]);
        for question in comparing {
            let sql = with_cohorts(question.sql, "host = 'a' -- old", "host = 'b'").unwrap();
            let expected = " cohorts AS (
  SELECT recording, 'before' AS cohort FROM recordings WHERE (
    host = 'a' -- old
  )
  UNION ALL
  SELECT recording, 'after' AS cohort FROM recordings WHERE (
    host = 'b'
  )
), ";
            let (head, tail) = sql.split_once(expected).unwrap();
            assert!(question.sql.starts_with(head) && question.sql.ends_with(tail));
            assert!(!tail.contains("OVER ("), "{tail}");
            assert!(question.about().contains("--before and --after"), "{}", question.name);
        }
        assert_eq!(with_cohorts(QUESTIONS[0].sql, "true", "false"), None);
    }

    #[test]
    fn a_table_without_files_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("recordings/date=2026-11-22/host=a");
        fs::create_dir_all(&host).unwrap();
        fs::create_dir_all(dir.path().join("sched/date=2026-11-22/host=a")).unwrap();
        fs::write(host.join("0000000000000001.parquet"), "").unwrap();
        let text = views(dir.path().to_str().unwrap());
        assert_eq!(text.lines().count(), TABLES.len());
        let reads: Vec<_> = text.lines().filter(|line| line.contains("read_parquet")).collect();
        assert_eq!(reads.len(), 1);
        assert!(reads[0].starts_with(
            "CREATE OR REPLACE VIEW recordings AS SELECT * FROM (SELECT NULL::BIGINT AS \"recording\", "
        ));
        assert_eq!(reads[0].matches("AS \"host\"").count(), 1);
    }

    #[test]
    fn names_of_directories_are_quoted() {
        assert!(views("it's/").contains("read_parquet('it''s/sched/*/*/*.parquet'"));
        let special = views("a[1]*?");
        assert!(special.contains("read_parquet('a[[]1][*][?]/sched/*/*/*.parquet'"), "{special}");
    }
}
