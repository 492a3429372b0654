use crate::failure::{Failure, Result};
use crate::io::new_directory::NewDirectory;
use crate::io::output_file::OutputFile;
use crate::io::progress::Progress;
use crate::run::stop::Listener;
use crate::sources::go::{self, Resources, TimeRange, Trace};
use gotrace::{Error, GenerationSpan, Generations, Timestamp};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Cut a range of time out of a trace
///
/// The output is a trace that every tool opens, go tool trace included. It contains whole
/// generations, about a second of the program's execution each: all those with events in the range.
/// A trace of one generation is copied as it is. The other commands take --from and --to
/// themselves, and cut exactly. Needs a trace of Go 1.22 or later. Of a damaged trace, the
/// generations before the damage are available.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go trim trace.out --from 10 --to 12 -o part.out
  triscope go trim trace.out --from 59.5 -o end.out && go tool trace end.out
  curl -s http://localhost:6060/debug/pprof/trace?seconds=60 | triscope go trim - --from 50 -o end.out")]
pub(crate) struct TrimArgs {
    /// The trace; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    resources: Resources,
    #[command(flatten)]
    range: TimeRange,
    /// The trace to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Split a trace into parts
///
/// Each part is a trace that every tool opens, go tool trace included, and contains whole
/// generations, about a second of the program's execution each. Needs a trace of Go 1.22 or later.
/// Parts of an earlier split in the same directory are replaced. Those with higher numbers stay, which
/// is an error.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go split trace.out -o parts          writes parts/0001.out, parts/0002.out, ...
  triscope go split trace.out -o parts -n 60    about a minute each")]
pub(crate) struct SplitArgs {
    /// The trace; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    resources: Resources,
    /// The directory for the parts, which is created
    #[arg(short, long, value_name = "DIRECTORY")]
    output: PathBuf,
    /// Number of generations in each part
    #[arg(short = 'n', long, value_name = "N", default_value = "1",
        value_parser = clap::value_parser!(u64).range(1..))]
    generations: u64,
}

pub(super) fn trim(args: &TrimArgs) -> Result {
    args.range.check()?;
    let _listener = Listener::exit();
    let (from, to) = (args.range.from.unwrap_or(0), args.range.to.unwrap_or(i64::MAX));
    let (mut start, mut end) = (None, None);
    let mut part = None;
    let damage = generations(&args.file, args.resources, |header, span, bytes| {
        let start = *start.get_or_insert(span.first);
        let after = |time: Timestamp| time.nanos().wrapping_sub(start.nanos());
        if after(span.first) > to {
            return Ok(false);
        }
        end = Some(span.last);
        if after(span.last) >= from {
            Part::append(&mut part, &args.output, &args.file, header, bytes)?;
        }
        Ok(true)
    })?;
    if part.is_none() && damage.is_none() {
        return Err(go::no_events(args.file.display(), start.zip(end)));
    }
    let is_written = part.is_some();
    part.map_or(Ok(()), Part::complete)?;
    ended(&args.file, damage, is_written)
}

pub(super) fn split(args: &SplitArgs) -> Result {
    let _listener = Listener::exit();
    let _created = NewDirectory::at(&args.output);
    let fail = |error| Failure::about(args.output.display(), error);
    std::fs::create_dir_all(&args.output).map_err(fail)?;
    let mut count = 0;
    let mut part: Option<Part> = None;
    let written = generations(&args.file, args.resources, |header, _, bytes| {
        if count % args.generations == 0 {
            part.take().map_or(Ok(()), Part::complete)?;
        }
        let path = args.output.join(name(count / args.generations + 1));
        count += 1;
        Part::append(&mut part, &path, &args.file, header, bytes)?;
        Ok(true)
    });
    let written = written.and_then(|damage| part.map_or(Ok(()), Part::complete).map(|()| damage));
    let damage = written.map_err(|failure| match count > args.generations {
        true => failure.and("the parts before it are written"),
        false => failure,
    })?;
    let ended = ended(&args.file, damage, count > 0);
    let note = match others(&args.output, count.div_ceil(args.generations)).as_deref() {
        Ok([]) => return ended,
        Ok([other]) => format!("{} is not of this split: remove it", name(*other)),
        Ok([first, .., last]) => {
            let (first, last) = (name(*first), name(*last));
            format!("{first} to {last} are not of this split: remove them")
        }
        Err(error) => format!("parts of an earlier split may be there: {error}"),
    };
    match ended {
        Ok(()) => Err(Failure::about(args.output.display(), note)),
        Err(damage) => Err(damage.and(note)),
    }
}

/// The name of a part.
fn name(number: u64) -> String {
    format!("{number:04}.out")
}

/// The numbers above this one of the files in a directory that have names of parts, in order.
fn others(dir: &Path, last: u64) -> std::io::Result<Vec<u64>> {
    let mut others = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let file = entry?.file_name();
        let number = file.to_str().and_then(|file| file.strip_suffix(".out")?.parse().ok());
        others.extend(number.filter(|number| *number > last && *name(*number) == *file));
    }
    others.sort_unstable();
    Ok(others)
}

/// Passes the generations of a trace to `take`, with the header of the trace, until it returns
/// `false`. Returns the error that ends a damaged trace.
fn generations(
    path: &Path,
    resources: Resources,
    mut take: impl FnMut(&[u8], GenerationSpan, &[u8]) -> Result<bool>,
) -> Result<Option<Error>> {
    let trace = Trace::open(path, Progress::bytes())?;
    let fail = |error: Error| Failure::about(&trace.name, error);
    let mut generations =
        Generations::with_limits(trace.bytes, resources.limits()).map_err(fail)?;
    let header = generations.version().header();
    loop {
        match generations.next_generation() {
            Ok(Some((span, bytes))) if take(&header, span, bytes)? => {}
            Ok(_) => return Ok(None),
            Err(error) => return Ok(Some(error)),
        }
    }
}

/// A trace that is written.
struct Part {
    output: OutputFile,
    writer: Box<dyn Write + Send>,
}

impl Part {
    /// Appends bytes to a trace, which begins with the header of `input`.
    fn append(
        part: &mut Option<Self>,
        path: &Path,
        input: &Path,
        header: &[u8],
        bytes: &[u8],
    ) -> Result {
        let part = match part {
            Some(part) => part,
            none => none.insert(Self::create(path, input, header)?),
        };
        part.write(bytes)
    }

    /// Begins a trace with the header of `input`, which is still read.
    fn create(path: &Path, input: &Path, header: &[u8]) -> Result<Self> {
        let mut output = OutputFile::create(path, &[input.to_owned()])?;
        let writer = output.writer()?;
        let mut this = Self { output, writer };
        this.write(header)?;
        Ok(this)
    }

    fn write(&mut self, bytes: &[u8]) -> Result {
        self.writer.write_all(bytes).map_err(|error| self.output.failure(&error))
    }

    fn complete(mut self) -> Result {
        self.writer.flush().map_err(|error| self.output.failure(&error))?;
        self.output.complete()
    }
}

fn ended(path: &Path, damage: Option<Error>, is_written: bool) -> Result {
    match damage {
        Some(error) => {
            let what = if is_written {
                "the generations before it are written"
            } else {
                "nothing is written"
            };
            Err(Failure::about(path.display(), format!("{error}; {what}")))
        }
        None => Ok(()),
    }
}
