//! Sources of .NET events: a file, standard input, or a session with a live process.

use super::collect::Launched;
use super::signals::StopOnSignal;
use super::target::{self, Target};
use crate::failure::{Failure, OneLine, Result};
use crate::io::input::{Format, Input};
use crate::io::progress::Progress;
use crate::run::stop::Listener;
use crate::run::watch::COMMAND_CONTINUES;
use diag_ipc::{Error, Operation, Session, TracingConfig};
use nettrace::{Event, Options, Order, Reader, Stats};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A .NET trace or a process: FILE, - or PID.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    File(PathBuf),
    Process(u32),
}

impl std::str::FromStr for Source {
    type Err = std::convert::Infallible;

    /// A number is a process id, unless a file with that name exists.
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(match text.parse() {
            Ok(pid) if !Path::new(text).exists() => Self::Process(pid),
            _ => Self::File(text.into()),
        })
    }
}

/// The process or trace that a command reads.
#[derive(clap::Args)]
pub(crate) struct SourceArgs {
    /// A process id, a trace, or - for standard input
    #[arg(value_name = "PID|FILE", group = "target")]
    source: Option<Source>,
    #[command(flatten)]
    options: target::Options,
}

/// The process or trace that a command reads, or a program that it starts.
#[derive(clap::Args)]
pub(crate) struct SourceOrCommand {
    #[command(flatten)]
    source: SourceArgs,
    /// Start a program and read its events from startup to exit (.NET 5); its output is discarded
    #[arg(last = true, value_name = "COMMAND", group = "target")]
    command: Vec<String>,
}

/// A session without data for this time is idle: a runtime writes new events every 100 ms.
const IDLE: Duration = Duration::from_millis(200);

/// A session whose reads fail with `WouldBlock` when it is idle.
struct Waiting(Session);

impl Read for Waiting {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_within(buf, IDLE)
    }
}

/// An open stream of events.
pub(crate) struct Stream {
    pub(crate) name: String,
    reader: Reader<Box<dyn Read + Send>>,
    /// Stops a session on a signal or at a time limit.
    stop_on_signal: Option<StopOnSignal>,
    live: Option<Live>,
}

/// The process of a session.
enum Live {
    Running(Target),
    Launched(Launched),
}

impl Live {
    const fn target(&self) -> &Target {
        match self {
            Self::Running(target) => target,
            Self::Launched(launched) => &launched.target,
        }
    }
}

impl SourceArgs {
    /// The source in the arguments: a file or a process.
    pub(crate) const fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// Whether the source is a process.
    pub(crate) const fn is_live(&self) -> bool {
        !matches!(self.source, Some(Source::File(_)))
    }

    /// Refuses options of a session, of which these are given or not, for a trace: they have no effect.
    pub(crate) fn check(&self, options: &[(&str, bool)]) -> Result {
        match options.iter().find(|(_, is_given)| *is_given && !self.is_live()) {
            Some((option, _)) => {
                let what = format!("{option} is for a process, not for a trace");
                Err(Failure::new(what).with_code(2))
            }
            None => Ok(()),
        }
    }

    /// The process, for commands that do more than read its events.
    pub(crate) fn target(&self) -> Result<Target> {
        match self.source {
            Some(Source::Process(pid)) => target::process(pid),
            _ => self.options.resolve(),
        }
    }

    /// Opens the file, or starts a session with the process that ends after `duration` (`None`:
    /// never).
    pub(crate) fn open(
        &self,
        config: &TracingConfig,
        duration: Option<Duration>,
        order: Order,
        progress: Progress,
    ) -> Result<Stream> {
        self.open_for(|_| Ok(config.clone()), duration, order, progress)
    }

    fn open_for(
        &self,
        config: impl FnOnce(&Target) -> Result<TracingConfig>,
        duration: Option<Duration>,
        order: Order,
        progress: Progress,
    ) -> Result<Stream> {
        match &self.source {
            Some(Source::File(path)) => Stream::of_file(path, order, progress),
            _ => Stream::of(Live::Running(self.target()?), config, duration, order, None),
        }
    }
}

impl SourceOrCommand {
    /// The source, if it is a file or standard input.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self.source.source() {
            Some(Source::File(path)) => Some(path),
            _ => None,
        }
    }

    /// Whether the source is a process.
    pub(crate) const fn is_live(&self) -> bool {
        self.source.is_live()
    }

    /// As [`SourceArgs::check`].
    pub(crate) fn check(&self, options: &[(&str, bool)]) -> Result {
        self.source.check(options)
    }

    /// Whether a program is started.
    pub(crate) fn has_command(&self) -> bool {
        !self.command.is_empty()
    }

    /// Opens the file, or starts a session with the process that ends after `duration` (`None`:
    /// never).
    pub(crate) fn open(
        &self,
        config: &TracingConfig,
        duration: Option<Duration>,
        order: Order,
        progress: Progress,
    ) -> Result<Stream> {
        self.open_for(|_| Ok(config.clone()), duration, order, progress)
    }

    /// As [`SourceOrCommand::open`], with a configuration for the process.
    pub(crate) fn open_for(
        &self,
        config: impl FnOnce(&Target) -> Result<TracingConfig>,
        duration: Option<Duration>,
        order: Order,
        progress: Progress,
    ) -> Result<Stream> {
        if !self.has_command() {
            return self.source.open_for(config, duration, order, progress);
        }
        let live = Live::Launched(Launched::start(&self.command, false)?);
        Stream::of(live, config, duration, order, None)
    }
}

impl Stream {
    /// Opens a file.
    pub(crate) fn of_file(path: &Path, order: Order, progress: Progress) -> Result<Self> {
        let input = Input::open(path, progress)?;
        if input.format != Format::NetTrace {
            let what = input.format.description().unwrap_or("something else");
            return Err(input.failure(format!("is {what}, not a .NET trace")));
        }
        let name = input.name.clone();
        let reader = Reader::with_options(Box::new(input) as _, Options::new().order(order));
        Ok(Self { name, reader, stop_on_signal: None, live: None })
    }

    /// Starts a session with a process, whose events end at `limit`. `late` is the note if the runtime does not
    /// reply in time.
    pub(crate) fn of_process(
        target: Target,
        config: &TracingConfig,
        limit: Duration,
        order: Order,
        late: &str,
    ) -> Result<Self> {
        Self::of(Live::Running(target), |_| Ok(config.clone()), Some(limit), order, Some(late))
    }

    /// Starts a session. A runtime that is suspended at startup is resumed.
    fn of(
        live: Live,
        config: impl FnOnce(&Target) -> Result<TracingConfig>,
        duration: Option<Duration>,
        order: Order,
        late: Option<&str>,
    ) -> Result<Self> {
        let target = live.target();
        let name = target.name.clone();
        let start = || {
            target.client.collect_tracing(&config(target)?).map_err(|error| {
                let note = late.filter(|_| is_late(&error));
                let failure = target.failure()(error);
                match note {
                    Some(note) => failure.and(note),
                    None => failure,
                }
            })
        };
        let begun = target.may_be_suspended().and_then(|resume| {
            let session = start()?;
            match begin(&live, &session, duration, resume) {
                Ok(stop_on_signal) => Ok((session, stop_on_signal)),
                Err(failure) => {
                    let _ = session.stop(); // the first failure is more useful
                    Err(failure)
                }
            }
        });
        let (session, stop_on_signal) = match begun {
            Ok(begun) => begun,
            Err(failure) => {
                // A program that was started for the session ends instead.
                if let Live::Running(target) = &live {
                    target.resume_after_failure();
                }
                return Err(failure);
            }
        };
        let reader =
            Reader::with_options(Box::new(Waiting(session)) as _, Options::new().order(order));
        Ok(Self { name, reader, stop_on_signal: Some(stop_on_signal), live: Some(live) })
    }
}

/// Installs the stop conditions, and resumes a suspended runtime.
fn begin(
    live: &Live,
    session: &Session,
    duration: Option<Duration>,
    resume: bool,
) -> Result<StopOnSignal> {
    let target = live.target();
    let has_command = matches!(live, Live::Launched(_));
    target.exit.take();
    let stop_on_signal = StopOnSignal::new(session.stop_handle(), duration, has_command)?;
    if resume {
        target.resume()?;
    }
    Ok(stop_on_signal)
}

impl Stream {
    /// The process of the session, if there is one and its id is known.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.live.as_ref()?.target().pid
    }

    /// The process of the session, by the socket if it was not named.
    pub(crate) fn process(&self) -> Option<u32> {
        self.live.as_ref()?.target().process()
    }

    /// Calls `each` with every event. Damage, truncation and losses are reported at the end.
    pub(crate) fn read(self, mut each: impl FnMut(&Event<'_>) -> Result) -> Result<Reading> {
        self.read_while(|event| each(event).map(ControlFlow::Continue))
    }

    /// As [`Stream::read`], until `each` breaks. The session then ends; the rest of its stream is not examined.
    pub(crate) fn read_while(
        mut self,
        mut each: impl FnMut(&Event<'_>) -> Result<ControlFlow<()>>,
    ) -> Result<Reading> {
        let mut errors = Errors::default();
        let mut is_unread = false;
        loop {
            match self.reader.next_event() {
                Ok(Some(event)) => match each(&event) {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => {
                        is_unread = true;
                        break;
                    }
                    Err(failure) => return Err(self.leave(failure)),
                },
                Ok(None) => break,
                // The next event may come much later.
                Err(error) if self.live.is_some() && is_wait(&error) => self.reader.flush(),
                Err(error) => {
                    let fatal = matches!(error.kind, nettrace::ErrorKind::Io(_));
                    errors.add(&error);
                    if fatal {
                        break;
                    }
                }
            }
        }
        // Of a stream that cannot be decoded, the rest was not read either.
        if is_unread || errors.count > 0 {
            self.discard();
        }
        let is_interrupted = self.stop_on_signal.as_ref().is_some_and(StopOnSignal::is_interrupted);
        let was_stopped = self.stop_on_signal.as_ref().is_some_and(StopOnSignal::is_stopping);
        let outcome = match &self.live {
            Some(Live::Launched(launched)) => launched.end(was_stopped),
            _ => Ok(()),
        };
        let exit = self.exit_on_signal();
        Ok(Reading {
            outcome,
            stats: *self.reader.stats(),
            trace: self.reader.trace().cloned(),
            name: self.name,
            errors,
            is_interrupted,
            _exit: exit,
        })
    }
}

impl Stream {
    /// From the end of a session on, a signal ends the program: the session has nothing to stop.
    fn exit_on_signal(&mut self) -> Option<Listener> {
        drop(self.stop_on_signal.take()?);
        Listener::exit()
    }

    /// Ends the session, and reads the rest of its stream: closing it before its end can crash the
    /// target.
    fn discard(&mut self) {
        if self.stop_on_signal.as_ref().is_some_and(StopOnSignal::end) {
            drain(self.reader.source_mut());
        }
    }

    /// Ends a session that is no longer read because of this failure. A program that was started for it continues:
    /// see `Watch::see_out`.
    pub(super) fn leave(&mut self, failure: Failure) -> Failure {
        self.discard();
        let Some(Live::Launched(launched)) = &self.live else { return failure };
        failure.print();
        message!("{COMMAND_CONTINUES}");
        let _ = launched.end(false); // the failure that led here is more useful
        failure.printed()
    }
}

/// Whether a session had no data for a time.
fn is_wait(error: &nettrace::Error) -> bool {
    matches!(&error.kind, nettrace::ErrorKind::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// Reads the rest of a session, which may be closed. It has a time limit of its own.
fn drain(session: &mut impl Read) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match session.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
}

/// The errors of a stream: each of its blocks can have one.
#[derive(Default)]
struct Errors {
    /// The first ones.
    shown: Vec<String>,
    count: usize,
}

impl Errors {
    const SHOWN: usize = 10;

    fn add(&mut self, error: &nettrace::Error) {
        if self.shown.len() < Self::SHOWN {
            self.shown.push(error.to_string());
        }
        self.count += 1;
    }

    /// The first errors, and the number of the others.
    fn lines(&self) -> impl Iterator<Item = String> {
        let shown = self.shown.iter().map(|error| OneLine(error).to_string());
        let more = self.count - self.shown.len();
        shown.chain((more > 0).then(|| format!("and {more} more errors")))
    }
}

/// The result of reading a stream.
pub(crate) struct Reading {
    pub(crate) name: String,
    pub(crate) stats: Stats,
    pub(crate) trace: Option<nettrace::Trace>,
    errors: Errors,
    is_interrupted: bool,
    /// The result of a started program.
    outcome: Result,
    /// Ends the program on a signal after a session.
    _exit: Option<Listener>,
}

impl Reading {
    /// Whether the stream has errors.
    pub(crate) const fn has_errors(&self) -> bool {
        self.errors.count > 0
    }

    /// Whether a signal has ended the session.
    pub(crate) const fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// The failure of a command that found nothing in the stream. Errors of the stream are why; the exit code
    /// of a started program counts.
    pub(crate) fn failed(self, failure: Failure) -> Failure {
        let is_why = self.has_errors();
        match self.into_result() {
            Ok(()) => failure,
            Err(other) => {
                if !is_why {
                    failure.print();
                }
                other
            }
        }
    }

    /// Reports losses and errors; an error makes the exit status 1.
    pub(crate) fn into_result(self) -> Result {
        let name = OneLine(&self.name);
        let stats = &self.stats;
        if stats.lost > 0 {
            message!("triscope: {name}: {} events were lost by the runtime", stats.lost);
        }
        if stats.events_without_metadata > 0 {
            let n = stats.events_without_metadata;
            message!("triscope: {name}: {n} events came without their metadata");
        }
        if stats.early_flushes > 0 {
            let n = stats.early_flushes;
            message!("triscope: {name}: events may be out of order at {n} places");
        }
        for line in self.errors.lines() {
            message!("triscope: {name}: {line}");
        }
        if self.has_errors() { Err(Failure::Quiet(1)) } else { self.outcome }
    }
}

/// Whether the runtime has the request, and did not reply in time.
const fn is_late(error: &Error) -> bool {
    matches!(error, Error::Timeout { operation: Operation::Reply, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn only_a_reply_is_late() {
        let timeout = |operation| Error::Timeout { operation, after: Duration::from_secs(1) };
        assert!(is_late(&timeout(Operation::Reply)));
        assert!(!is_late(&timeout(Operation::Connect)));
        assert!(!is_late(&Error::TargetStopped { pid: 1, after: Duration::from_secs(1) }));
    }

    #[test]
    fn few_of_many_errors_are_kept() {
        const BLOCKS: usize = 100_000;
        // A trace of version 6: its clock, no properties.
        let mut trace = b"Nettrace\0\0\0\0\x06\0\0\0\0\0\0\0".to_vec();
        let time = [2026u16, 11, 6, 21, 4, 30, 15, 250].map(u16::to_le_bytes).concat();
        let clock = [1_000i64, 1_000_000_000].map(i64::to_le_bytes).concat();
        let content = [&time[..], &clock, &[8, 0, 0, 0], &[0; 4]].concat();
        trace.extend([content.len() as u8, 0, 0, 1]);
        trace.extend(content);
        // Trace blocks without content, and the end.
        trace.extend([0, 0, 0, 1].repeat(BLOCKS));
        trace.extend([0; 4]);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&trace).unwrap();
        let stream = Stream::of_file(file.path(), Order::Stream, Progress::bytes()).unwrap();
        let reading = stream.read(|_| Ok(())).unwrap();
        assert!(reading.has_errors());
        assert_eq!(reading.errors.shown.len(), Errors::SHOWN);
        let lines: Vec<String> = reading.errors.lines().collect();
        assert_eq!(lines.len(), Errors::SHOWN + 1);
        assert_eq!(lines.last().map(String::as_str), Some("and 99990 more errors"));
    }
}
