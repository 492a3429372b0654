use super::analysis::{Analysis, Rows};
use super::path_model;
use crate::answers::explain::{self, Explained, Style};
use crate::failure::{Failure, Result};
use crate::io::input;
use crate::io::stdout::Output;
use crate::sources::go::Visitor;
use crate::sources::model::Traces;
use gotrace::analysis::{CriticalPaths, RequestFilter, Requests};
use gotrace::{Event, GoId};
use serde_json::Value;
use trace_timeline::answers::{Question, Subject};

/// Print the critical path of the longest tasks, of regions, or of a goroutine
///
/// Starts at the end and walks back. While the goroutine waits, the path continues with the
/// goroutine that ended the wait. The pieces sum to the duration. Work that such a goroutine did
/// for another task is marked "context": it is why the wait was long, but not a part of this task.
///
/// triscope explain does the same for several traces, and with the kernel's scheduler.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go critical-path trace.out                       the longest task or region
  triscope go critical-path --task checkout --worst 3 trace.out
  triscope go critical-path --goroutine 42 trace.out
  triscope go critical-path --json trace.out | jq '.[0].pieces'
  triscope go critical-path --csv trace.out > pieces.csv")]
pub(crate) struct Args {
    #[command(flatten)]
    analysis: Analysis,
    #[command(flatten)]
    requests: Wanted,
    #[command(flatten)]
    rows: Rows,
    /// Number of tasks and regions, longest first
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    worst: u32,
    /// Frames of each stack, innermost first; 0 for no stacks
    #[arg(long, value_name = "N", default_value_t = 3)]
    frames: usize,
}

/// The requests that are explained: all if nothing is given.
#[derive(clap::Args)]
#[group(multiple = false)]
struct Wanted {
    /// Only tasks of this type
    #[arg(long, value_name = "TYPE")]
    task: Option<String>,
    /// Only regions of this type
    #[arg(long, value_name = "TYPE")]
    region: Option<String>,
    /// This goroutine, from its start to its end
    #[arg(long, value_name = "ID")]
    goroutine: Option<i64>,
}

impl Wanted {
    fn subject(&self) -> Subject {
        match (&self.task, &self.region, self.goroutine) {
            (Some(name), ..) => Subject::Task(name.clone()),
            (_, Some(name), _) => Subject::Region(name.clone()),
            (.., Some(id)) => Subject::Goroutine(id),
            _ => Subject::Requests,
        }
    }

    fn filter(&self) -> RequestFilter {
        match (&self.task, &self.region, self.goroutine) {
            (Some(name), ..) => RequestFilter::Tasks(name.as_str().into()),
            (_, Some(name), _) => RequestFilter::Regions(name.as_str().into()),
            (.., Some(id)) => RequestFilter::Goroutine(GoId(id)),
            _ => RequestFilter::All,
        }
    }
}

/// The first pass over a trace.
impl Visitor for Requests {
    fn push(&mut self, event: Event<'_>) -> Result {
        self.push(event);
        Ok(())
    }

    fn loss(&mut self, _error: &gotrace::Error, _loss: &gotrace::Loss) -> Result {
        self.loss();
        Ok(())
    }
}

/// The second pass over a trace, to the end of the last request.
impl Visitor for CriticalPaths {
    fn push(&mut self, event: Event<'_>) -> Result {
        self.push(event);
        Ok(())
    }

    fn loss(&mut self, _error: &gotrace::Error, _loss: &gotrace::Loss) -> Result {
        self.loss();
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.is_complete()
    }
}

pub(super) fn run(args: &Args) -> Result {
    let analysis = &args.analysis;
    input::check_twice(&analysis.file, "critical-path")?;
    let (from, to) = analysis.bounds()?;
    let mut requests = Requests::new(args.requests.filter(), args.worst as usize).between(from, to);
    let reading = analysis.visit(&mut requests)?;
    let requests = requests.finish();
    if requests.is_empty() {
        let between = analysis.range.is_given().then_some((0, 0)); // for the message
        let subject = args.requests.subject();
        let question = Question { subject, between, ..Question::default() };
        let is_whole = reading.into_result().inspect_err(Failure::print).is_ok();
        let traces = Traces::of(vec![analysis.file.clone()]);
        return Err(explain::nothing(&question, &traces, is_whole, Explained::OfGo));
    }
    let mut paths = CriticalPaths::new(requests);
    analysis.visit_again(&mut paths)?;
    let is_whole = paths.dropped() == 0;
    let answer = path_model::answer(paths).filter(|_| is_whole);
    let Some(answer) = answer else {
        return Err(Failure::new("too many events within the time of the requests"));
    };
    if args.rows.is_data() {
        let mut rows = answer.to_json();
        if args.rows.is_csv() {
            rows = rows.into_iter().flat_map(pieces).collect();
        }
        args.rows.print_data(&rows)?;
    } else {
        let style = Style { frames: args.frames, has_pieces: true };
        let mut output = Output::new();
        let _ = answer.print(style, &mut output.buffer); // writing to a vector does not fail
        output.finish()?;
    }
    reading.into_result()
}

/// The pieces of a path, each with its request.
fn pieces(mut request: Value) -> impl Iterator<Item = Value> {
    let fields = request.as_object_mut();
    let pieces = fields.and_then(|fields| {
        fields.remove("summary");
        fields.remove("pieces")
    });
    let pieces = match pieces {
        Some(Value::Array(pieces)) => pieces,
        _ => Vec::new(),
    };
    pieces.into_iter().map(move |mut piece| {
        if let Some(fields) = piece.as_object_mut() {
            fields.insert("request".to_owned(), request.clone());
        }
        piece
    })
}
