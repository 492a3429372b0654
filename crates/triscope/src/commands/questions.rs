//! `triscope questions`: SQL for datasets.

use crate::answers::dataset::{Cohorts, is_dataset, question};
use crate::failure::{Failure, Result};
use crate::io::stdout::Output;
use std::path::Path;
use trace_dataset::{QUESTIONS, views};

/// Print questions about a dataset in SQL
///
/// Without NAME, a list of the questions. The SQL has the tables of triscope export by their names;
/// --views makes them known to DuckDB; DataFusion takes the same SQL, Spark that of --spark.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope questions
  triscope questions --json | jq -r '.[].name'
  triscope questions scheduling_latency
  triscope questions scheduling_latency --views dataset | duckdb
  triscope questions --views dataset > views.sql; duckdb -init views.sql
  triscope questions latency_regression --before \"kernel LIKE '6.12.%'\" --after \"kernel LIKE '6.18.%'\"")]
pub(crate) struct Args {
    /// The name of a question
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print statements for DuckDB first, that make the tables of this dataset views
    #[arg(long, value_name = "DIR")]
    views: Option<String>,
    /// Print the question as Spark takes it
    #[arg(long, requires = "name", conflicts_with = "views")]
    spark: bool,
    /// List the questions as JSON: name, about (the description), compares_cohorts and sql
    #[arg(long, conflicts_with_all = ["name", "views", "before", "after"])]
    json: bool,
    #[command(flatten)]
    cohorts: Cohorts,
}

/// All questions, as `--json` lists them.
fn list() -> String {
    let questions = QUESTIONS.iter().map(|question| {
        serde_json::json!({
            "name": question.name,
            "about": question.about(),
            "compares_cohorts": question.compares_cohorts(),
            "sql": question.sql,
        })
    });
    let list = serde_json::Value::from_iter(questions);
    serde_json::to_string_pretty(&list).unwrap_or_default() + "\n"
}

/// Statements that make the tables at `dir` views.
fn views_of(dir: &str) -> Result<String> {
    if dir.is_empty() {
        return Err(Failure::new("--views: the name of the directory is empty").with_code(2));
    }
    if !is_dataset(Path::new(dir)) {
        let what = "no dataset of triscope export: it has no directory recordings";
        return Err(Failure::about(dir, what));
    }
    Ok(views(dir))
}

pub(crate) fn run(args: &Args) -> Result {
    let mut text = args.views.as_deref().map(views_of).transpose()?.unwrap_or_default();
    match &args.name {
        Some(name) => {
            let question = question(name)?;
            let sql = if args.spark { question.in_spark() } else { question.sql.to_owned() };
            text.push_str(&args.cohorts.apply(name, sql)?);
        }
        None if args.json => text = list(),
        None if args.cohorts.is_given() => {
            let what = "--before and --after need the name of a question: triscope questions";
            return Err(Failure::new(what).with_code(2));
        }
        None if args.views.is_none() => {
            let width = QUESTIONS.iter().map(|question| question.name.len()).max().unwrap_or(0);
            for question in QUESTIONS {
                text.push_str(&format!("{:<width$}  {}\n", question.name, question.about()));
            }
        }
        None => {}
    }
    let mut output = Output::new();
    output.buffer.extend_from_slice(text.as_bytes());
    output.finish()
}
