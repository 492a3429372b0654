use super::counter::{Counter, Counts};
use super::signals::StopOnSignal;
use super::stopping::StoppingEvent;
use super::target::{Selector, Target};
use super::{file_name, numbered};
use crate::failure::{Failure, OneLine, Result};
use crate::io::in_place;
use crate::io::output_file::cannot_be_written;
use crate::io::progress::Status;
use crate::run::child;
use crate::run::duration::duration;
use crate::run::port::{Port, Startup};
use crate::run::runtimes;
use crate::run::stop::Listener;
use crate::timeline::counted;
use diag_ipc::reverse::Server;
use diag_ipc::{
    BufferingMode, Client, Command as Ipc, Error, EventFilter, Level, PROVIDER_PRESETS, Provider,
    ProviderPreset, Rundown, Session, SessionEnd, TracingConfig, runtime_keywords,
};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Record a trace of a .NET process: until Ctrl-C, for a time, or from startup to exit
///
/// With a COMMAND, that program is started and traced from startup to exit (.NET 5). The exit status
/// is then that of COMMAND, or 0 after a signal, or if it still runs when a recording that was
/// stopped is complete.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet collect 1234                                  until Ctrl-C
  triscope dotnet collect 1234 --duration 00:00:00:30 -o app.nettrace
  triscope dotnet collect 1234 --profile gc-collect
  triscope dotnet collect 1234 --rundown-keywords 8             only modules in the rundown
  triscope dotnet collect 1234 --providers System.Runtime::4:EventCounterIntervalSec=1
  triscope dotnet collect 1234 --providers Shop --event-ids Shop=-7   all events of Shop but one
  triscope dotnet collect 1234 --stopping-event Microsoft-Windows-DotNETRuntime/GCStart,Depth:2 --profile gc-collect
  triscope dotnet collect --diagnostic-port $XDG_RUNTIME_DIR/port  wait for a program, trace its startup
  triscope dotnet collect -o app.nettrace -- ./app --its-options

Profiles: cpu-sampling (the default), dotnet-common, dotnet-sampled-thread-time, gc-verbose,
gc-collect, database. A provider is Name[:keywords[:level[:arguments]]], keywords in hexadecimal.")]
pub(crate) struct Args {
    #[command(flatten)]
    target: Selector,
    /// Output file; - is standard output [default: NAME_PID_DATE_TIME.nettrace]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Providers to enable, separated by commas
    #[arg(long, value_name = "LIST")]
    providers: Vec<String>,
    /// Predefined sets of providers, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    profile: Vec<String>,
    /// Keywords of the runtime's provider by name, such as gc+jit+exception
    #[arg(long, value_name = "LIST")]
    clrevents: Option<String>,
    /// The level for --clrevents
    #[arg(long, value_name = "LEVEL", requires = "clrevents")]
    clreventlevel: Option<String>,
    /// Only these events of a provider that is enabled or, after a minus sign, all except these: their ids,
    /// separated by commas (.NET 10)
    #[arg(long, value_name = "PROVIDER=[-]IDS", value_parser = EventIds::parse)]
    event_ids: Vec<EventIds>,
    /// Size of the event buffer in the process, in megabytes
    #[arg(long, value_name = "MB", default_value_t = 256)]
    buffersize: u32,
    /// Stop after TIME: dd:hh:mm:ss, or a shorter form, or a number of seconds; a COMMAND then gets SIGTERM
    #[arg(long, visible_alias = "seconds", value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Stop at the first event with this name and these values of fields, as `dotnet events` prints them, but without
    /// quotes; a value with a comma cannot be given. A COMMAND then gets SIGTERM. The recording reads all events to
    /// find it
    #[arg(long, value_name = "PROVIDER/EVENT[,FIELD:VALUE...]", value_parser = StoppingEvent::parse)]
    stopping_event: Option<StoppingEvent>,
    /// Whether to record the rundown (names of methods) at the end [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    rundown: Option<bool>,
    /// Keywords of the rundown, in hexadecimal: what it describes (.NET 9) [default: 80020139, or
    /// those of the profile]
    #[arg(long, value_name = "HEX", value_parser = hexadecimal)]
    rundown_keywords: Option<u64>,
    /// Record no stacks, which greatly reduces the overhead in the process (.NET 9)
    #[arg(long)]
    no_stacks: bool,
    /// When the buffer is full, drop events, or block the threads that write them (.NET 11)
    #[arg(long, value_enum, ignore_case = true, default_value_t = Buffering::Drop)]
    buffering_mode: Buffering,
    /// Whether to resume a runtime that is suspended at startup after the session has started; that of a
    /// COMMAND is always resumed
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", default_value_t = true, action = clap::ArgAction::Set)]
    resume_runtime: bool,
    /// Show the output of COMMAND, and connect it to the terminal
    #[arg(long)]
    show_child_io: bool,
    /// A program to start and trace
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Buffering {
    #[value(alias = "0")]
    Drop,
    #[value(alias = "1")]
    Block,
}

/// The filter of a provider's events.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EventIds {
    provider: String,
    filter: EventFilter,
}

impl EventIds {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let (provider, ids) = text
            .split_once('=')
            .filter(|(provider, _)| !provider.is_empty())
            .ok_or("expected PROVIDER=IDS, such as Microsoft-Windows-DotNETRuntime=1,2")?;
        let (enable, ids) = ids.strip_prefix('-').map_or((true, ids), |ids| (false, ids));
        let id = |text: &str| {
            // The standard library accepts a sign.
            let id = text.parse::<u32>().ok().filter(|_| !text.starts_with('+'));
            id.ok_or_else(|| format!("{text:?} is not the id of an event"))
        };
        let ids = ids.split(',').map(id).collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(Self { provider: provider.to_owned(), filter: EventFilter::new(enable, ids) })
    }
}

/// Time limit for the runtime of a started program to connect.
const STARTUP: Duration = Duration::from_secs(30);

/// Time for a program that is ending to end by itself, after the end of the session.
const EXIT: Duration = Duration::from_millis(100);

pub(super) fn run(args: &Args) -> Result {
    let config = config(args)?;
    check_command(args)?;
    check_stopping_event(args, &config)?;
    // A runtime that connects is suspended, and a command has begun: an output that cannot be written is reported before.
    check_output(args.output.as_deref())?;
    if args.command.is_empty() {
        let target = args.target.resolve()?;
        let resume = args.resume_runtime && target.may_be_suspended()?;
        let recording = match Recording::start(args, &target, &config, resume) {
            Ok(recording) => recording,
            Err(failure) => {
                if args.resume_runtime {
                    target.resume_after_failure();
                }
                return Err(failure);
            }
        };
        return recording.finish().result;
    }
    let launched = Launched::start(&args.command, args.show_child_io)?;
    let recording = match Recording::start(args, &launched.target, &config, true) {
        Ok(recording) => recording,
        Err(failure) => {
            launched.kill();
            return Err(failure);
        }
    };
    let ended = recording.finish();
    let Err(failure) = ended.result else { return launched.end(ended.is_stopped) };
    // The program runs: a recording that fails is no reason to end it.
    failure.print();
    launched.end(ended.is_stopped)?;
    Err(Failure::Quiet(1))
}

/// Whether the other arguments can be those of a COMMAND, if there is one.
fn check_command(args: &Args) -> Result {
    let wrong = if args.command.is_empty() {
        return Ok(());
    } else if !args.target.is_empty() {
        "either a process or a COMMAND, not both"
    } else if !args.resume_runtime {
        "--resume-runtime false: nothing else can resume COMMAND, whose diagnostic port is that of \
         this recording"
    } else {
        return Ok(());
    };
    Err(Failure::new(wrong).with_code(2))
}

/// Whether the event that ends the recording can occur.
fn check_stopping_event(args: &Args, config: &TracingConfig) -> Result {
    let Some(event) = &args.stopping_event else { return Ok(()) };
    if provider(&config.providers, &event.provider).is_some() {
        return Ok(());
    }
    Err(not_enabled("--stopping-event", &event.provider))
}

/// The index of a provider that is to be enabled.
fn provider(providers: &[Provider], name: &str) -> Option<usize> {
    providers.iter().position(|provider| provider.name.eq_ignore_ascii_case(name))
}

fn not_enabled(option: &str, provider: &str) -> Failure {
    let what = format!("{option}: the provider {provider} is not enabled: see --providers");
    Failure::new(what).with_code(2)
}

fn config(args: &Args) -> Result<TracingConfig> {
    let explicit = runtimes::providers(&args.providers)?;
    let mut more = Vec::new();
    if let Some(names) = &args.clrevents {
        let keywords = runtime_keywords(names).map_err(|unknown| {
            Failure::new(format!("--clrevents: the runtime has no keyword {unknown}")).with_code(2)
        })?;
        let level = args.clreventlevel.as_deref().unwrap_or("4");
        let level = level.parse::<Level>().map_err(|e| Failure::new(e).with_code(2))?;
        let runtime = Provider::new("Microsoft-Windows-DotNETRuntime");
        more.push(runtime.keywords(keywords).level(level));
    }
    let mut rundown = Rundown::Default;
    let default = ["cpu-sampling".to_owned()];
    let is_default = args.profile.is_empty() && explicit.is_empty() && more.is_empty();
    let profiles = if is_default { &default[..] } else { &args.profile };
    for name in profiles {
        let profile = ProviderPreset::find(name.trim()).ok_or_else(|| {
            let known: Vec<_> = PROVIDER_PRESETS.iter().map(|p| p.name).collect();
            let known = known.join(", ");
            Failure::new(format!("there is no profile {name}; there are {known}")).with_code(2)
        })?;
        more.extend(profile.providers());
        // Other events can need the rundown that the profile does not need.
        let is_alone = profiles.len() == 1 && args.providers.is_empty() && args.clrevents.is_none();
        rundown = if is_alone { profile.rundown() } else { Rundown::Default };
    }
    // --clrevents and profiles add up; --providers can restrict them.
    let mut providers = ProviderPreset::merge(explicit, runtimes::merged(&more)?);
    for EventIds { provider: name, filter } in &args.event_ids {
        let index = provider(&providers, name);
        let known = index.and_then(|index| providers.get_mut(index));
        let known = known.ok_or_else(|| not_enabled("--event-ids", name))?;
        if known.filter.replace(filter.clone()).is_some() {
            let what = format!("--event-ids: the provider {name} has ids twice");
            return Err(Failure::new(what).with_code(2));
        }
    }
    match (args.rundown, args.rundown_keywords) {
        (Some(false), Some(_)) => {
            let hint = "--rundown-keywords selects a part of the rundown, and --rundown false \
                        records none: pass one of them";
            return Err(Failure::new(hint).with_code(2));
        }
        (_, Some(keywords)) => rundown = Rundown::Keywords(keywords),
        (Some(true), None) => rundown = Rundown::Default,
        (Some(false), None) => rundown = Rundown::None,
        (None, None) => {}
    }
    Ok(TracingConfig::new(providers)
        .buffer_mb(args.buffersize)
        .rundown(rundown)
        .stacks(!args.no_stacks)
        .buffering(match args.buffering_mode {
            Buffering::Drop => BufferingMode::Drop,
            Buffering::Block => BufferingMode::Block,
        }))
}

/// Parses a hexadecimal number, with or without `0x`.
fn hexadecimal(text: &str) -> std::result::Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    // The standard library accepts a sign.
    let number = u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
    number.ok_or_else(|| "expected a hexadecimal number of at most 64 bits".to_owned())
}

/// Starts a session and reports options that an old runtime does not support and a profile does not
/// require.
fn start(target: &Target, config: &TracingConfig, explicit: bool) -> Result<Session> {
    match target.client.collect_tracing(config) {
        Err(Error::Unsupported { needs: Ipc::CollectTracing4, .. }) if !explicit => {
            message!(
                "triscope: this runtime does not support rundown keywords: recording without rundown"
            );
            let config = config.clone().rundown(Rundown::None);
            target.client.collect_tracing(&config).map_err(target.failure())
        }
        other => other.map_err(target.failure()),
    }
}

/// Installs the stop conditions, and resumes a suspended runtime.
fn begin(args: &Args, target: &Target, session: &Session, resume: bool) -> Result<StopOnSignal> {
    target.exit.take();
    let stop_on_signal =
        StopOnSignal::new(session.stop_handle(), args.duration, !args.command.is_empty())?;
    if resume {
        target.resume()?;
    }
    Ok(stop_on_signal)
}

/// A session that is being recorded.
struct Recording {
    session: Session,
    sink: Sink,
    stop_on_signal: StopOnSignal,
    stopping_event: Option<StoppingEvent>,
}

/// How a recording ended.
struct Ended {
    /// Whether triscope stopped the session.
    is_stopped: bool,
    result: Result,
}

impl Recording {
    /// Starts the session. A runtime that is to be resumed then runs; after a failure, it may be
    /// suspended.
    fn start(args: &Args, target: &Target, config: &TracingConfig, resume: bool) -> Result<Self> {
        // Do first what can fail for other reasons: a session must be stopped properly.
        let sink = Sink::create(args, target)?;
        let explicit = args.rundown.is_some() || args.rundown_keywords.is_some();
        let session = match start(target, config, explicit) {
            Ok(session) => session,
            Err(failure) => {
                sink.discard();
                return Err(failure);
            }
        };
        let begun = sink.begin().and_then(|()| begin(args, target, &session, resume));
        let stop_on_signal = match begun {
            Ok(stop_on_signal) => stop_on_signal,
            Err(failure) => {
                let _ = session.stop(); // the first failure is more useful
                sink.discard(); // nothing of the session was written
                return Err(failure);
            }
        };
        for provider in &config.providers {
            let text = provider.to_string();
            let ids = provider.filter.as_ref().map(shown).unwrap_or_default();
            message!("  {}{ids}", OneLine(text.lines().next().unwrap_or_default()));
        }
        message!("recording {} to {} (Ctrl-C ends it)", target.name, OneLine(&sink.name));
        let stopping_event = args.stopping_event.clone();
        Ok(Self { session, sink, stop_on_signal, stopping_event })
    }

    /// Records to the end.
    fn finish(self) -> Ended {
        let Self { session, mut sink, stop_on_signal, stopping_event } = self;
        let counter = Counter::new(stopping_event.clone());
        let (end, counter, failed, has_asked) =
            record(session, &mut sink, &stop_on_signal, counter);
        let is_stopped = stop_on_signal.is_stopping();
        drop(stop_on_signal);
        let _exit = Listener::exit(); // events may have to be counted
        let result = match failed {
            Some(error) => Err(Failure::about(&sink.name, error)),
            None => {
                // The session may have ended before it was asked to.
                let is_reason = has_asked && is_stopped;
                let note = stopping_event.map(|event| found(&event, &counter, is_reason));
                let note = note.unwrap_or_default();
                let counts = counter.finish().or_else(|| sink.recount());
                message!("{}{note}", summary(&sink.name, &end, counts));
                end.truncation.map_or(Ok(()), |reason| Err(Failure::about(&sink.name, reason)))
            }
        };
        Ended { is_stopped, result }
    }
}

/// Copies the session to its end. A failure to write ends the session. Also returns whether an event was the first to
/// ask for the end.
fn record(
    mut session: Session,
    sink: &mut Sink,
    stop_on_signal: &StopOnSignal,
    mut counter: Counter,
) -> (SessionEnd, Counter, Option<io::Error>, bool) {
    let (mut status, mut shown) = (Status::new(false), Shown::default());
    let mut buffer = vec![0; 1 << 18];
    let (mut failed, mut has_asked) = (None, false);
    loop {
        match session.read(&mut buffer) {
            Ok(0) | Err(_) => break, // see `end`
            Ok(len) => {
                let bytes = &buffer[..len];
                if let Err(error) = sink.write(bytes) {
                    failed = Some(error);
                    break;
                }
                let had_stopped = counter.has_stopped();
                counter.add(bytes);
                // It can be one of the last events after a signal or the time limit.
                let has_end = stop_on_signal.is_stopping() || stop_on_signal.is_interrupted();
                if counter.has_stopped() && !had_stopped && !has_end {
                    stop_on_signal.ask();
                    has_asked = true;
                }
                let read = session.bytes_read();
                status.update(|since| shown.message(since, read, &counter, stop_on_signal));
            }
        }
    }
    let end = session.finish();
    if failed.is_none() {
        failed = sink.flush().err();
    }
    (end, counter, failed, has_asked)
}

/// The ids of a filter, for people.
fn shown(filter: &EventFilter) -> String {
    let ids: Vec<_> = filter.ids.iter().map(ToString::to_string).collect();
    let which = if filter.enable { "events" } else { "all events except" };
    format!(" ({which} {})", ids.join(", "))
}

/// Whether an event is in the recording, and whether it has ended it. Damage may have hidden it.
fn found(event: &StoppingEvent, counter: &Counter, is_reason: bool) -> String {
    let event = event.to_string();
    let event = OneLine(&event);
    match (counter.has_stopped(), counter.errors()) {
        (true, _) if is_reason => format!(", stopped by {event}"),
        (true, _) => format!(", with {event}"),
        (false, 0) => format!(", without {event}"),
        (false, errors) => {
            format!(", {event} not found: {} in the stream", counted(errors, "error"))
        }
    }
}

fn summary(name: &str, end: &SessionEnd, counts: Option<Counts>) -> String {
    let events = match counts {
        Some(Counts { events, lost: 0 }) => format!("{events} events, none lost"),
        Some(Counts { events, lost }) => format!("{events} events, {lost} lost by the runtime"),
        None => "events not counted".to_owned(),
    };
    format!("{}: {} bytes, {events}, {end}", OneLine(name), end.bytes)
}

/// Whether the output can be written, as far as this is known before: without a name, in this directory.
fn check_output(output: Option<&Path>) -> Result {
    let path = output.unwrap_or(Path::new("."));
    if output.is_some_and(|path| path.as_os_str() == "-") {
        return Ok(());
    }
    let fail = |error: io::Error| cannot_be_written(path, &error);
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() && output.is_some() => {
            Err(Failure::about(path.display(), "is a directory, not a file"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            may_write(dir.unwrap_or(Path::new("."))).map_err(fail)
        }
        _ => may_write(path).map_err(fail),
    }
}

/// As the user that opens it, not the one that started a program with the set-user-ID bit.
fn may_write(path: &Path) -> io::Result<()> {
    Ok(accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)?)
}

/// Where the stream is written. A file keeps its content until there is a session.
struct Sink {
    name: String,
    path: Option<PathBuf>,
    /// Whether it did not exist before.
    is_new: bool,
    to: To,
}

enum To {
    Stdout(io::Stdout),
    File(File),
}

impl Sink {
    fn create(args: &Args, target: &Target) -> Result<Self> {
        let path = match &args.output {
            Some(path) if path.as_os_str() == "-" => {
                let name = "standard output".to_owned();
                let to = To::Stdout(io::stdout());
                return Ok(Self { name, path: None, is_new: false, to });
            }
            Some(path) => path,
            None => {
                let (path, file) = create_new(&default_name(args, target))?;
                let (name, to) = (path.display().to_string(), To::File(file));
                return Ok(Self { name, path: Some(path), is_new: true, to });
            }
        };
        let name = path.display().to_string();
        let (file, is_new) = in_place::open(path).map_err(|e| cannot_be_written(path, &e))?;
        Ok(Self { name, path: Some(path.clone()), is_new, to: To::File(file) })
    }

    /// There is a session: removes the previous content.
    fn begin(&self) -> Result {
        let To::File(file) = &self.to else { return Ok(()) };
        in_place::empty(file).map_err(|e| Failure::about(&self.name, e))
    }

    /// Nothing is recorded: removes the file, if it is new.
    fn discard(&self) {
        if let Some(path) = self.path.as_ref().filter(|_| self.is_new) {
            let _ = std::fs::remove_file(path); // it is empty
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.to {
            To::Stdout(stdout) => stdout.write_all(bytes),
            To::File(file) => file.write_all(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Stdout(stdout) => stdout.flush(),
            To::File(file) => file.flush(),
        }
    }

    /// Counts the events of the output, if it can be read again.
    fn recount(&self) -> Option<Counts> {
        let path = self.path.as_ref()?;
        std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        message!("counting events");
        Counter::of(BufReader::new(File::open(path).ok()?)).ok()
    }
}

/// Creates a file with this name, or with a number appended to it if there is one.
fn create_new(name: &str) -> Result<(PathBuf, File)> {
    for path in numbered(name, ".nettrace") {
        match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Failure::about(path.display(), error)),
        }
    }
    Err(Failure::about(name, "there are too many files with this name"))
}

/// The name of the output, without extension.
fn default_name(args: &Args, target: &Target) -> String {
    let command = args.command.first().map(String::as_str);
    let assembly = match command {
        Some(_) => None,
        None => target.client.process_info().ok().and_then(|info| info.entry_assembly),
    };
    file_name(&subject(command, assembly.as_deref()), target.process())
}

/// The program of a command without directory and extension, or the name of an assembly, which can
/// contain dots.
fn subject(command: Option<&str>, assembly: Option<&str>) -> String {
    let program = command.and_then(|path| Path::new(path).file_stem()).map(|n| n.to_string_lossy());
    let name = program.as_deref().or(assembly).filter(|name| !name.is_empty());
    name.unwrap_or("trace").replace('/', "_")
}

/// The last state of the status line.
#[derive(Default)]
struct Shown {
    events: u64,
    bytes: u64,
}

impl Shown {
    /// The status of a recording, with rates since the previous status.
    fn message(
        &mut self,
        since: Duration,
        bytes: u64,
        counter: &Counter,
        stop_on_signal: &StopOnSignal,
    ) -> String {
        let rate = |now: u64, before: u64| (now - before) as f64 / since.as_secs_f64();
        let events = counter.counts().map_or_else(
            || "too many events to count meanwhile".to_owned(),
            |counts| {
                let rate = rate(counts.events, self.events);
                self.events = counts.events;
                format!("{} events ({rate:.0}/s)  {} lost", counts.events, counts.lost)
            },
        );
        let megabytes = bytes as f64 / 1e6;
        let speed = rate(bytes, self.bytes) / 1e6;
        self.bytes = bytes;
        let stopping = if stop_on_signal.is_stopping() { "  stopping, rundown" } else { "" };
        format!("{megabytes:.1} MB ({speed:.1} MB/s)  {events}{stopping}")
    }
}

/// A program started to be traced.
pub(super) struct Launched {
    child: child::Launched,
    pub(super) target: Target,
    _port: Port,
}

impl Launched {
    pub(super) fn start(command: &[String], shows_io: bool) -> Result<Self> {
        let port = Port::bind(Startup::Suspended)?;
        let child = child::Launched::start(command, |command| {
            let io = || if shows_io { Stdio::inherit() } else { Stdio::null() };
            command.envs([port.variable()]).stdin(io()).stdout(io()).stderr(io());
        })?;
        let program = command.first().map_or("", String::as_str);
        match connection(program, &child, &port.server) {
            Ok(runtime) => {
                let client = runtime.client();
                let pid = child.id();
                let name = format!("{program} (process {pid})");
                let server = Some(Arc::clone(&port.server));
                let target = Target {
                    client,
                    pid: Some(pid),
                    name,
                    server,
                    _guard: None,
                    exit: Cell::default(),
                };
                Ok(Self { child, target, _port: port })
            }
            Err(failure) => {
                child.kill();
                let _ = child.wait(); // the first failure is more useful
                Err(failure)
            }
        }
    }

    /// Waits for the program to exit after the recording is complete. If the recording was
    /// `stopped`, a program that still runs gets SIGTERM, as Ctrl-C and the time limit end both.
    pub(super) fn end(&self, stopped: bool) -> Result {
        if stopped {
            if !self.child.is_interrupted() {
                let _ = self.child.exited().recv_timeout(EXIT); // its runtime ends before it does
            }
            // A signal may have ended the program, too.
            if !self.child.is_interrupted() {
                if let Some(status) = self.child.status()? {
                    return child::outcome(status);
                }
            }
            self.child.terminate();
            return self.child.wait().map(drop);
        }
        child::outcome(self.child.wait()?)
    }

    /// Ends the program, which has not begun: its runtime is suspended.
    fn kill(&self) {
        self.child.kill();
        let _ = self.child.wait(); // the failure is more useful
    }
}

/// Waits for the runtime of `child`, or of one of its children.
fn connection(
    program: &str,
    child: &child::Launched,
    server: &Server,
) -> Result<diag_ipc::reverse::Runtime> {
    let start = Instant::now();
    let failed = |why: String| Err(Failure::about(program, why));
    loop {
        match server.accept(Duration::from_millis(100)) {
            Ok(runtime) => return Ok(runtime),
            Err(Error::Timeout { .. }) => {}
            Err(e) => return failed(e.to_string()),
        }
        if is_too_old(child.id()) {
            return failed(
                "runs on .NET Core 3.1, which cannot be traced from startup (that needs .NET 5): \
                 start it, then trace its PID"
                    .into(),
            );
        }
        if let Some(status) = child.status()? {
            return failed(format!("ended ({status}) before its runtime came up"));
        }
        if start.elapsed() > STARTUP {
            return failed(format!(
                "its runtime has not connected in {STARTUP:?}: is it a program for .NET 5 or later?"
            ));
        }
    }
}

/// Whether the runtime of this process listens and does not support `ProcessInfo`: it is older than
/// .NET 5, and does not connect to a diagnostic port.
fn is_too_old(pid: u32) -> bool {
    let info = Client::for_process(pid).and_then(|client| client.process_info());
    info.is_err_and(|error| error.is_unknown_command())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_profile_reduces_the_rundown_only_if_it_is_alone() {
        let rundown = |more: &[&str]| {
            let args = [&["collect", "--profile", "gc-collect"], more].concat();
            config(&Cli::parse_from(args).args).map(|config| config.rundown).ok()
        };
        let reduced = ProviderPreset::find("gc-collect").map(ProviderPreset::rundown);
        assert_eq!(rundown(&[]), reduced);
        assert_ne!(reduced, Some(Rundown::Default));
        for more in [["--clrevents", "gc"], ["--providers", "Own"]] {
            assert_eq!(rundown(&more), Some(Rundown::Default), "{more:?}");
        }
    }

    #[test]
    fn ids_of_events() {
        let ids = |text: &str| EventIds::parse(text).map(|ids| (ids.provider, ids.filter));
        assert_eq!(ids("A=1,2"), Ok(("A".into(), EventFilter::new(true, [1, 2]))));
        assert_eq!(ids("A.B=-7"), Ok(("A.B".into(), EventFilter::new(false, [7]))));
        for bad in ["", "A", "A=", "=1", "A=-", "A=x", "A=1,", "A=+1", "A=1,-2", "A=4294967296"] {
            assert!(ids(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn profiles_and_names_of_keywords_add_up() {
        let runtime = |args: &[&str]| {
            let args = [&["collect"], args].concat();
            let config = config(&Cli::parse_from(args).args).ok().unwrap();
            let is_runtime = |p: &&Provider| p.name == "Microsoft-Windows-DotNETRuntime";
            let all: Vec<_> = config.providers.iter().filter(is_runtime).cloned().collect();
            let [provider] = &all[..] else { panic!("{all:?}") };
            (provider.keywords, provider.level)
        };
        let both = runtime(&["--profile", "gc-collect", "--clrevents", "jit"]);
        assert_eq!(both, (0x11, Level::Informational));
        let both = runtime(&["--profile", "gc-verbose,gc-collect", "--clrevents", "jit"]);
        assert_eq!(both, (0x8013, Level::Verbose));
        let explicit = "Microsoft-Windows-DotNETRuntime:2:5";
        assert_eq!(runtime(&["--profile", "gc-collect", "--providers", explicit]).0, 2);
    }

    #[test]
    fn a_default_name_never_names_an_existing_file() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("My.App_1_20261106_210430");
        let create = || create_new(name.to_str().unwrap()).unwrap();
        let (first, mut file) = create();
        file.write_all(b"first").unwrap();
        let (second, third) = (create().0, create().0);
        let names = [first.clone(), second, third].map(|p| p.file_name().unwrap().to_owned());
        let expected = ["", "_2", "_3"].map(|n| format!("My.App_1_20261106_210430{n}.nettrace"));
        assert_eq!(names, expected.map(std::ffi::OsString::from));
        assert_eq!(std::fs::read(first).unwrap(), b"first");
        assert!(create_new("/nowhere/trace").is_err());
    }

    #[test]
    fn names_of_assemblies_can_contain_dots() {
        assert_eq!(subject(None, Some("My.App")), "My.App");
        assert_eq!(subject(None, Some("a/b")), "a_b");
        assert_eq!(subject(Some("/opt/My.App.dll"), None), "My.App");
        assert_eq!([subject(None, Some("")), subject(None, None)], ["trace", "trace"]);
    }
}
