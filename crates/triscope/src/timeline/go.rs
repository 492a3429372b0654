//! Go traces on the timeline.

use super::clock::{Clock, Moved};
use super::{Part, Timeline, counted, notes};
use crate::failure::Result;
use crate::io::output_file::OutputFile;
use crate::sources::go::{self, Reading, Recovery, Trace, Visitor};
use gotrace::Event;
use trace_export::go::{GoOptions, GoSource, GoStats};
use trace_export::{ClockDomain, Loss, Sink};

/// Draws a Go trace on the timeline.
pub(crate) fn draw(
    trace: Trace,
    recovery: Recovery,
    options: GoOptions,
    clock: Clock<'_>,
    sink: &mut Timeline,
    output: &OutputFile,
) -> Result<(GoStats, Reading)> {
    let (sink, name) = (Moved { sink, offset: 0 }, trace.name.clone());
    let mut visitor = GoVisitor { name, source: GoSource::new(options), sink, output, clock };
    let reading = go::read(trace, recovery, &mut visitor)?;
    visitor.source.finish(&mut visitor.sink).map_err(|error| output.failure(&error))?;
    Ok((visitor.source.stats(), reading))
}

/// The conversion between the reader and the timeline.
struct GoVisitor<'a> {
    name: String,
    source: GoSource,
    sink: Moved<'a, Timeline>,
    output: &'a OutputFile,
    clock: Clock<'a>,
}

impl Visitor for GoVisitor<'_> {
    fn begin(&mut self, clock: ClockDomain) -> Result {
        if matches!(self.clock, Clock::Adopt) {
            self.sink.sink.set_domain(clock);
        }
        self.sink.offset = self.clock.offset(&self.name, clock, self.sink.domain())?;
        Ok(())
    }

    fn event(&mut self, event: Event<'_>) -> Result {
        self.source.push(event, &mut self.sink).map_err(|e| self.output.failure(&e))
    }

    fn loss(&mut self, error: &gotrace::Error, loss: &gotrace::Loss) -> Result {
        let why = error.to_string();
        let loss = Loss::new(b"bytes of the Go trace").count(loss.bytes).why(why.as_bytes());
        self.source.loss(&loss, &mut self.sink).map_err(|e| self.output.failure(&e))
    }
}

/// The summary of a converted Go trace.
pub(crate) fn part(stats: &GoStats, reading: &Reading) -> Part {
    let seconds = match (stats.first, stats.last) {
        (Some(first), Some(last)) => last.nanos_since(first) as f64 / 1e9,
        _ => 0.0,
    };
    let events = counted(stats.events, "event");
    let what = format!("{events} of {seconds:.3} s, {}", counted(stats.goroutines, "goroutine"));
    let notes = notes(&[
        (stats.experimental, "experimental event not shown", "experimental events not shown"),
        (
            stats.samples_without_thread,
            "sample without a thread shown as an instant",
            "samples without a thread shown as instants",
        ),
        (reading.losses, "gap", "gaps"),
        (reading.missing_generations, "missing generation", "missing generations"),
        (reading.unresolved, "unresolved name or stack", "unresolved names or stacks"),
        (reading.lost_events, "lost event", "lost events"),
    ]);
    Part { what, notes }
}
