use super::source::SourceOrCommand;
use super::{providers, writers};
use crate::failure::{Failure, Result};
use crate::io::progress::Progress;
use crate::run::duration::duration;
use diag_ipc::TracingConfig;
use nettrace::{Order, Profile, SampleKind};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Write CPU samples of a process or a trace as a flame graph or profile
///
/// The form follows from the name: .speedscope.json (speedscope.app), .pb.gz (go tool pprof),
/// .svg (a flame graph), .folded (lines of stacks for flame graph tools).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet profile 1234 -o app.speedscope.json
  triscope dotnet profile 1234 --duration 30 -o app.pb.gz && go tool pprof -top app.pb.gz
  triscope dotnet profile app.nettrace --managed -o app.svg")]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceOrCommand,
    /// Where to write it
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Sample a process for SECONDS
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = duration)]
    duration: Duration,
    /// Leave out samples of threads that were outside managed code, most of which wait. Mind
    /// that .NET 9 and later say that of nearly all samples
    #[arg(long)]
    managed: bool,
}

pub(super) fn run(args: &Args) -> Result {
    let form = writers::Form::of(&args.output).ok_or_else(|| {
        let forms = ".speedscope.json, .pb.gz, .svg or .folded";
        Failure::about(args.output.display(), format!("the name must end in {forms}"))
    })?;
    let config = TracingConfig::new(providers::samples());
    let stream = args.source.open(&config, Some(args.duration), Order::Time, Progress::bytes())?;
    let name = stream.name.clone();
    let mut profile = Profile::new();
    let reading = stream.read(|event| {
        profile.observe(event);
        Ok(())
    })?;
    let keep = |kind| !args.managed || matches!(kind, SampleKind::Managed | SampleKind::Running);
    let weights = profile.weights();
    let samples = profile.samples().iter().copied().zip(weights);
    let samples: Vec<_> = samples.filter(|(s, _)| keep(s.kind)).collect();
    if samples.is_empty() {
        return Err(Failure::about(&name, "there are no CPU samples in it"));
    }
    let trace = reading.trace.clone().ok_or_else(|| Failure::about(&name, "is cut"))?;
    let title = std::path::Path::new(&name)
        .file_name()
        .map_or(name.clone().into(), |n| n.to_string_lossy());
    let fail = |e: std::io::Error| Failure::about(args.output.display(), e);
    let mut out = BufWriter::new(File::create(&args.output).map_err(fail)?);
    writers::write(form, &title, &trace, &profile, &samples, &mut out)
        .and_then(|()| out.flush())
        .map_err(fail)?;
    let (frames, resolved) = profile.resolved();
    eprintln!(
        "{}: {} samples, {:.1} % of frames with names",
        args.output.display(),
        samples.len(),
        resolved as f64 * 100.0 / frames.max(1) as f64
    );
    reading.into_result()
}
