//! Go traces on the timeline.

use super::{Part, Timeline, counted, notes};
use crate::failure::{Failure, Result};
use crate::io::output_file::OutputFile;
use crate::sources::go::{self, Reading, Recovery, Trace, Visitor};
use gotrace::Event;
use trace_export::go::{GoOptions, GoSource, GoStats};
use trace_export::{ClockDomain, Loss, Sink};

/// What to do with a trace whose clock is not the timeline's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherClock {
    /// Nothing else is on the timeline: it takes the clock of the trace.
    Adopt,
    /// Draw it, with a warning.
    Warn,
    /// Refuse it.
    Refuse,
}

/// Puts a Go trace on the timeline.
pub(crate) fn draw(
    trace: Trace,
    recovery: Recovery,
    options: GoOptions,
    other_clock: OtherClock,
    sink: &mut Timeline,
    output: &OutputFile,
) -> Result<(GoStats, Reading)> {
    let mut visitor = GoVisitor { source: GoSource::new(options), sink, output, other_clock };
    let reading = go::read(trace, recovery, &mut visitor)?;
    visitor.source.finish(visitor.sink).map_err(|error| output.failure(&error))?;
    Ok((visitor.source.stats(), reading))
}

/// Everything between a reader and a file.
struct GoVisitor<'a> {
    source: GoSource,
    sink: &'a mut Timeline,
    output: &'a OutputFile,
    other_clock: OtherClock,
}

impl Visitor for GoVisitor<'_> {
    fn begin(&mut self, clock: ClockDomain) -> Result {
        match self.other_clock {
            OtherClock::Adopt => self.sink.set_domain(clock),
            _ if clock == self.sink.domain() => {}
            OtherClock::Warn => {
                eprintln!("triscope: a Go trace on the {clock} does not line up with other traces");
            }
            OtherClock::Refuse => {
                return Err(Failure::new(format_args!(
                    "the Go trace is on {clock}, which nothing relates to the kernel's clocks: \
                     build the program with Go 1.22 or newer"
                )));
            }
        }
        Ok(())
    }

    fn event(&mut self, event: Event<'_>) -> Result {
        self.source.push(event, self.sink).map_err(|e| self.output.failure(&e))
    }

    fn loss(&mut self, error: &gotrace::Error, loss: &gotrace::Loss) -> Result {
        let why = error.to_string();
        let loss =
            Loss { what: b"bytes of the Go trace", count: Some(loss.bytes), why: why.as_bytes() };
        self.source.loss(&loss, self.sink).map_err(|e| self.output.failure(&e))
    }
}

/// What has been converted of a Go trace.
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
