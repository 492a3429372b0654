//! `triscope explain`: the critical path of requests.

use crate::answers::explain::{self, Style};
use crate::failure::{Failure, Result};
use crate::io::stdout::Output;
use crate::run::duration;
use crate::sources::model::Traces;
use trace_timeline::answers::{Question, Subject};

/// Explain why requests took as long as they did: their critical path
///
/// Starts at the end of a request and walks back. While its goroutine or thread waits, the path
/// continues with the goroutine or thread that ended the wait, across the layers: through channels,
/// mutexes, pipes and system calls, to other processes. The pieces sum to the duration.
///
/// The time is summed by its use: which goroutine or thread, what it did or waited for, and who had
/// the CPU or P that it waited for. --path also prints the pieces in time order.
///
/// Below a large sum, and below a piece, is the stack where it stopped. Without one, it is the most
/// frequent stack of its samples (CPU profile of Go, sample profiler of .NET).
///
/// Work that such a goroutine did for another task is marked "context": it is why the wait was
/// long, but not a part of this request.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope explain trace.out                           the longest task, region or activity
  triscope explain trace.out perf.data --task checkout --worst 3
  triscope explain trace.out --path                    with the pieces in time order
  triscope explain trace.out --goroutine 42 --between 1.5 1.6
  triscope explain dir/ --goroutine 1 --pid 1234       that of one of several programs
  triscope explain app.nettrace perf.data --activity Request
  triscope explain trace.out old.data --offset old.data=12.5
  triscope explain --json recording/ | jq '.[0].pieces'")]
pub(crate) struct Args {
    #[command(flatten)]
    traces: Traces,
    /// Only tasks with this name (runtime/trace.NewTask)
    #[arg(long, value_name = "NAME", group = "what")]
    task: Option<String>,
    /// Only regions with this name (runtime/trace.WithRegion)
    #[arg(long, value_name = "NAME", group = "what")]
    region: Option<String>,
    /// Only activities of .NET with this name: a pair of start and stop events of an event source, as
    /// NAME or SOURCE/NAME
    #[arg(long, value_name = "NAME", group = "what")]
    activity: Option<String>,
    /// This goroutine, from its start to its end
    #[arg(long, value_name = "ID", group = "what")]
    goroutine: Option<i64>,
    /// This thread, from its start to its end: as the kernel reports it, otherwise as .NET does
    #[arg(long, value_name = "TID", group = "what")]
    thread: Option<u32>,
    /// Only of this process. Without it, a goroutine or thread is that of the process that triscope
    /// record --keep recorded, if its directory is the only argument, or of the only descendant that
    /// has it. Otherwise it is an error if several processes have it; if the id of one of them is not
    /// known, the one that lived longest is explained
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Only requests that overlap these times, which are explained as a whole; of a goroutine or thread
    /// the part between them. In seconds from the start of the timeline
    #[arg(long, num_args = 2, value_names = ["A", "B"], value_parser = seconds)]
    between: Vec<f64>,
    /// Number of requests, longest first
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    worst: u32,
    /// Print the pieces of the path in time order, too
    #[arg(long, conflicts_with = "json")]
    path: bool,
    /// Frames of each stack, innermost first; 0 for no stacks
    #[arg(long, value_name = "N", default_value_t = 3)]
    frames: usize,
    /// Print JSON, with all pieces and whole stacks
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> std::result::Result<f64, &'static str> {
    duration::seconds(text, duration::FINITE).ok_or("expected a number of seconds")
}

impl Args {
    fn question(&self) -> Result<Question> {
        let Self { task, region, activity, goroutine, thread, .. } = self;
        let subject = match (task, region, activity, goroutine, thread) {
            (Some(name), ..) => Subject::Task(name.clone()),
            (_, Some(name), ..) => Subject::Region(name.clone()),
            (_, _, Some(name), ..) => Subject::Activity(name.clone()),
            (.., Some(id), _) => Subject::Goroutine(*id),
            (.., Some(tid)) => Subject::Thread(*tid),
            _ => Subject::Requests,
        };
        let between = match self.between[..] {
            [from, to] if from < to => Some((duration::nanos(from), duration::nanos(to))),
            [from, to] => {
                let message =
                    format!("--between {from} {to}: the first time must be before the second");
                return Err(Failure::new(message).with_code(2));
            }
            _ => None,
        };
        Ok(Question { subject, between, pid: self.pid, worst: self.worst as usize })
    }
}

pub(crate) fn run(args: &Args) -> Result {
    let (answer, outcome) = explain::answer(&args.traces, &args.question()?)?;
    let mut output = Output::new();
    if args.json {
        let text = serde_json::to_string_pretty(&answer.to_json()).unwrap_or_default();
        output.buffer.extend_from_slice(text.as_bytes());
        output.buffer.push(b'\n');
    } else {
        let style = Style { frames: args.frames, has_pieces: args.path };
        let _ = answer.print(style, &mut output.buffer); // writing to a vector does not fail
    }
    output.finish()?;
    outcome
}
