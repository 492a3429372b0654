//! Processes: their lifetimes, parents and command lines.

use crate::model::{Category, DebugAnnotation, Name, Sink, Track, TrackEvent, Value};
use std::io;
use trace_common::Timestamp;

/// A process, for [`Sink::process`].
///
/// ```
/// use trace_export::{Process, Timestamp};
/// # fn f(sink: &mut impl trace_export::Sink) -> std::io::Result<()> {
/// let process = Process::new(42, b"server").parent(Some(1)).command_line(b"./server --port 80");
/// process.start(Timestamp::from_nanos(7)).draw(sink)
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Process<'a> {
    /// The process id.
    pub pid: u32,
    /// The name that is shown: that of its [track](Track::process).
    pub name: &'a [u8],
    /// The process id of its parent, if it is known.
    pub parent: Option<u32>,
    /// The command line; empty if it is not known.
    pub command_line: &'a [u8],
    /// The path of the executable; empty if it is not known.
    pub executable: &'a [u8],
    /// The path of the cgroup; empty if it is not known.
    pub cgroup: &'a [u8],
    /// The id of the container; empty without one.
    pub container: &'a [u8],
    /// When it started, if that is on the timeline.
    pub start: Option<Timestamp>,
    /// When it ended, if that is on the timeline.
    pub end: Option<Timestamp>,
}

impl<'a> Process<'a> {
    /// Process `pid` with the name of its track.
    pub const fn new(pid: u32, name: &'a [u8]) -> Self {
        let (command_line, executable, cgroup, container): (&[u8], &[u8], &[u8], &[u8]) =
            (b"", b"", b"", b"");
        let (parent, start, end) = (None, None, None);
        Self { pid, name, parent, command_line, executable, cgroup, container, start, end }
    }

    /// Sets the parent.
    #[must_use]
    pub fn parent(self, parent: impl Into<Option<u32>>) -> Self {
        Self { parent: parent.into(), ..self }
    }

    /// Sets the command line.
    #[must_use]
    pub const fn command_line(self, command_line: &'a [u8]) -> Self {
        Self { command_line, ..self }
    }

    /// Sets the path of the executable.
    #[must_use]
    pub const fn executable(self, executable: &'a [u8]) -> Self {
        Self { executable, ..self }
    }

    /// Sets the path of the cgroup and the id of the container.
    #[must_use]
    pub const fn cgroup(self, cgroup: &'a [u8], container: &'a [u8]) -> Self {
        Self { cgroup, container, ..self }
    }

    /// Sets the start.
    #[must_use]
    pub fn start(self, start: impl Into<Option<Timestamp>>) -> Self {
        Self { start: start.into(), ..self }
    }

    /// Sets the end.
    #[must_use]
    pub fn end(self, end: impl Into<Option<Timestamp>>) -> Self {
        Self { end: end.into(), ..self }
    }

    /// Describes the process, and draws its lifetime if its start is known: a slice with the
    /// command line on a track of the process.
    ///
    /// # Errors
    ///
    /// Errors of the sink.
    pub fn draw(&self, sink: &mut impl Sink) -> io::Result<()> {
        sink.process(self)?;
        let Some(start) = self.start else { return Ok(()) };
        let process = sink.track(&Track::process(self.pid, self.name).ordered())?;
        let track = sink.track(&Track::custom(b"Process").child_of(process))?;
        let texts: [(&[u8], &[u8]); 3] = [
            (b"executable", self.executable),
            (b"cgroup", self.cgroup),
            (b"container", self.container),
        ];
        let mut args = Vec::new();
        if let Some(parent) = self.parent {
            args.push(DebugAnnotation::new(sink.text(b"parent"), Value::Int(parent.into())));
        }
        for (name, value) in texts.into_iter().filter(|(_, value)| !value.is_empty()) {
            args.push(DebugAnnotation::new(sink.text(name), Value::Text(Name::Inline(value))));
        }
        let is_known = !self.command_line.is_empty();
        let title = if is_known { self.command_line } else { self.name };
        sink.begin(start, track, &TrackEvent::new(title).category(Category::Process).args(&args))?;
        match self.end {
            Some(end) => sink.end(end.max(start), track, &[]),
            None => Ok(()),
        }
    }
}
