//! The recorder: reads the rings, keeps segments, makes dumps.

use super::inbox::{self, Inbox, Message, Outbox, Reply};
use super::kernel::{Account, Kernel, Wanted, is_full, may_open};
use super::machine::Machine;
use super::pressure::Pressure;
use super::reload::Reader;
use super::sources::{self, Sources};
use super::store::{Dump, Dumped, Held, LONGEST, Space, Store};
use super::{Args, IN_CONTAINER, Settings, control, threads};
use crate::failure::{Failure, OneLine, Result};
use crate::run::process::Process;
use crate::run::procfs::{comm, command_line, is_in_container, thread_group};
use crate::run::stop::{Beginning, Listener, Next, exit_code, not_ignored};
use crate::run::target::no_process;
use crate::run::watch::Watch;
use crate::sources::kernel::hotplug::CpuFailure;
use crate::sources::kernel::{failure, is_privilege};
use crate::timeline::{counted, now, size};
use crossbeam_channel::after;
use perf_monitor::NiceThread;
use rustix::thread::{CapabilitySet, CapabilitySets};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use trace_flight::{Cause, Fired, Timestamp, Window, Windows};

/// Maximum time between reads of the rings.
const ROUND: Duration = Duration::from_millis(100);

/// Interval between looks at the CPUs, the process and the budgets.
const LOOK: Duration = Duration::from_secs(1);

/// Time over which the CPU budget is measured.
const MEASURE: Duration = Duration::from_secs(5);

/// Segments in the look-back.
const SEGMENTS: u32 = 8;

/// Shortest and longest segment.
const LENGTHS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Nine times the weight of a nice value of 0.
const NICE: i32 = -10;

/// The records of a segment are this part of the space for segments, or more if its tasks are.
const PART: u64 = 8;

pub(super) fn run(args: &Args, settings: &Settings) -> Result {
    let dir = args.dir.as_deref().unwrap_or(Path::new("."));
    let process = args.process.id().map(running).transpose()?;
    // Before there is anything that a signal could leave half-made.
    let (inbox, outbox) = inbox::new()?;
    let signals = Signals::listen(&outbox, args.command.is_empty())?;
    // The parent of the directory that it removes can be that of another user.
    let begin = || keep_capabilities(CapabilitySet::DAC_OVERRIDE);
    let beginning = (!args.command.is_empty()).then(|| Beginning::start_by(begin)).transpose()?;
    let pressures = pressures(settings)?;
    let kernel = Kernel::open(&wanted(settings)?).map_err(failure)?;
    let mut store = Store::open(dir, space(settings), keep(settings))?;
    let (skeleton, guard) = store.skeleton().unzip();
    if let (Some(beginning), Some(guard)) = (&beginning, guard) {
        beginning.keep(guard);
    }
    let start = Start { process, inbox, outbox, signals, beginning, kernel, pressures };
    let outcome = record(args, settings, store, start);
    if let Some(skeleton) = skeleton.filter(|_| outcome.is_err()) {
        skeleton.remove();
    }
    outcome
}

/// The running process with this id. That of a thread beside the main one is none: no fork has it as parent.
fn running(pid: u32) -> Result<Process> {
    let process = Process::read(pid);
    let is_process = thread_group(pid) == Some(pid) && process.is_running();
    if is_process { Ok(process) } else { Err(no_process(pid)) }
}

/// Checks settings as [`run`] does. What this user or this system does not permit is named.
pub(super) fn check(settings: &Settings) -> Result {
    let wanted = wanted(settings)?;
    let unchecked = |what: &dyn std::fmt::Display, why: &dyn std::fmt::Display| {
        message!("triscope: not checked: {what}: {why}");
    };
    for trigger in &settings.triggers {
        match Pressure::open(trigger) {
            Err(failure) if failure.is_privilege => unchecked(trigger, &failure.failure.message()),
            Err(failure) => return Err(failure.failure),
            Ok(_) => {}
        }
    }
    if is_in_container() {
        unchecked(&EVENTS, &IN_CONTAINER);
        return enough_disk(settings, 0);
    }
    match Kernel::open(&wanted) {
        Ok(mut kernel) => {
            kernel.take_stock()?;
            enough_disk(settings, kernel.stock())
        }
        Err(error) if is_privilege(&error) => {
            unchecked(&EVENTS, &error);
            enough_disk(settings, 0)
        }
        Err(error) => Err(failure(error)),
    }
}

/// What needs privileges.
const EVENTS: &str = "events, filters, and the space for the tasks that run";

/// Refuses a disk budget in which no segment is left: each begins with this many bytes of tasks. Beside a sealed one and
/// that in progress there is room for their records: see [`most_records`].
fn enough_disk(settings: &Settings, stock: u64) -> Result {
    /// Bytes of the records of a segment.
    const RECORDS: u64 = 1 << 16;
    let part = space(settings).segments;
    let need = 3 * stock + RECORDS;
    if part >= need {
        return Ok(());
    }
    let (disk, least) = (settings.disk, need.saturating_mul(parts(settings)));
    let why = format!(
        "{part} of {disk} bytes are for segments, and two with the tasks that run need {need}: use at least \
         {least} bytes"
    );
    Err(Failure::about("--disk", why))
}

/// What is there before anything is recorded.
struct Start {
    /// The only process that is recorded, if it runs already.
    process: Option<Process>,
    inbox: Inbox,
    outbox: Outbox,
    signals: Signals,
    /// The signals until the command is started.
    beginning: Option<Beginning>,
    kernel: Kernel,
    pressures: Vec<Pressure>,
}

fn record(args: &Args, settings: &Settings, mut store: Store, start: Start) -> Result {
    let Start { process, inbox, outbox, signals, beginning, mut kernel, pressures } = start;
    let metrics = settings
        .metrics
        .map(|address| TcpListener::bind(address).map_err(|error| Failure::about(address, error)));
    let metrics = metrics.transpose()?;
    if let Some(address) = metrics.as_ref().and_then(|listener| listener.local_addr().ok()) {
        message!("triscope: metrics: http://{address}/metrics");
    }
    // The thread that does this reads the rings afterwards.
    recover(&mut store, Dump::try_write)?;
    let mut keep_events = || kernel.keep_events(&store);
    match &beginning {
        Some(beginning) => beginning.create(keep_events)?,
        None => keep_events()?,
    }
    kernel.enable()?;
    kernel.take_stock()?;
    enough_disk(settings, kernel.stock())?;
    signals.check()?;
    // It is started with all privileges, which this thread drops afterwards.
    let mut command = if args.command.is_empty() {
        None
    } else {
        let begin = || keep_capabilities(CapabilitySet::KILL);
        let begun = || beginning.iter().for_each(Beginning::end);
        Some(Watch::command_by(&args.command, |_| begun(), begin)?)
    };
    drop(beginning);
    let record = |command: Option<&mut Watch>| -> Result {
        let pid = process
            .map(|process| process.pid)
            .or_else(|| command.as_deref().and_then(Watch::command_pid));
        if let Some(pid) = pid {
            kernel.focus(pid);
        }
        // While there are the privileges for it.
        let subject = pid.map(|pid| (pid, command_of(args, settings, pid)));
        let sources = match settings.dotnet || settings.go {
            true => {
                let needed = CapabilitySet::SYS_PTRACE
                    | CapabilitySet::DAC_READ_SEARCH
                    | CapabilitySet::DAC_OVERRIDE;
                let dir = store.sources()?;
                let wanted = sources_of(settings, pid);
                Some(Sources::start(dir, wanted, &outbox, move || keep_capabilities(needed))?)
            }
            false => {
                store.clear_left();
                None
            }
        };
        // A COMMAND gets the signal that asks for it.
        let config =
            args.config.clone().filter(|_| command.is_none()).map(|path| {
                Reader::start(path, || keep_capabilities(CapabilitySet::DAC_READ_SEARCH))
            });
        let config = config.transpose()?;
        // A reader that does not get a CPU loses events.
        let _nice = NiceThread::begin(NICE).ok();
        // The threads that start from here have as few capabilities.
        drop_capabilities()?;
        let is_over = Arc::new(AtomicBool::new(false));
        pressures.into_iter().try_for_each(|pressure| pressure.watch(&outbox, &is_over))?;
        control::serve(store.dir(), &outbox)?;
        let name = store.dir().display().to_string();
        if let Some(listener) = metrics {
            control::serve_metrics(listener, &outbox)?;
        }
        let mut windows = Windows::new(settings.back, settings.forward);
        windows.set_cooldown(settings.cooldown.unwrap_or_default());
        let mut recorder = Recorder {
            settings: settings.clone(),
            config,
            is_over,
            store,
            kernel,
            sources,
            begun: Instant::now(),
            windows,
            inbox,
            outbox,
            subject,
            replies: VecDeque::new(),
            stats: Stats::default(),
            budget: Budget::start(),
            machine: Machine::start()?,
            cpu_failure: CpuFailure::default(),
            before: Vec::new(),
            writing: 0,
            unwritten: None,
        };
        signals.check()?;
        message!("triscope: {}: recording", OneLine(&name));
        let watched = recorder.watch(process, command);
        recorder.finish().and(watched)
    };
    let recorded = record(command.as_mut());
    match command {
        Some(mut watch) => watch.see_out(recorded).and_then(|()| watch.outcome()),
        None => recorded,
    }
}

/// The command line of the process that is recorded, or its program alone. A program can write all its arguments into the
/// first word.
fn command_of(args: &Args, settings: &Settings, pid: u32) -> String {
    match (settings.command_lines, args.command.first()) {
        (true, None) => command_line(pid).join(" "),
        (true, Some(_)) => args.command.join(" "),
        (false, None) => match std::fs::read_link(format!("/proc/{pid}/exe")) {
            Ok(path) => path.to_string_lossy().into_owned(),
            Err(_) => String::from_utf8_lossy(&comm(pid, pid)).into_owned(),
        },
        (false, Some(program)) => program.clone(),
    }
}

fn wanted(settings: &Settings) -> Result<Wanted> {
    Wanted::new(settings.freq, settings.triggers.clone(), settings.memory)
}

fn pressures(settings: &Settings) -> Result<Vec<Pressure>> {
    let opened =
        settings.triggers.iter().map(Pressure::open).filter_map(std::result::Result::transpose);
    opened.map(|opened| opened.map_err(|refused| refused.failure)).collect()
}

/// Half of the disk is for dumps. Sources share the other half with segments.
const fn space(settings: &Settings) -> Space {
    Space { segments: settings.disk / 2 - source_bytes(settings), dumps: settings.disk / 2 }
}

/// The disk budget divided by that of segments.
const fn parts(settings: &Settings) -> u64 {
    if settings.dotnet || settings.go { 4 } else { 2 }
}

const fn source_bytes(settings: &Settings) -> u64 {
    if settings.dotnet || settings.go { settings.disk / 4 } else { 0 }
}

fn sources_of(settings: &Settings, pid: Option<u32>) -> sources::Wanted {
    sources::Wanted {
        dotnet: settings.dotnet,
        go: settings.go,
        triggers: settings.triggers.clone(),
        command_lines: settings.command_lines,
        bytes: source_bytes(settings),
        keep: keep(settings),
        pid,
    }
}

/// Segments are kept for the look-back, as long as a window can be open, and until triggers of Go and .NET
/// come.
fn keep(settings: &Settings) -> Duration {
    const LATE: Duration = Duration::from_secs(5);
    let longest = settings.forward.saturating_mul(9);
    settings.back.saturating_add(longest).saturating_add(length(settings)).saturating_add(LATE)
}

/// The time that a program reports, if the recorder still has it. Otherwise the trigger fires now: a window in
/// the future would never be over, and one long ago would be empty.
fn recorded_time(of: Option<Timestamp>, now: Timestamp, kept: Duration) -> Option<Timestamp> {
    of.filter(|of| (now - kept..=now).contains(of))
}

/// The length of a segment.
fn length(settings: &Settings) -> Duration {
    (settings.back / SEGMENTS).clamp(LENGTHS.0, LENGTHS.1)
}

/// The length of a segment that begins with this many bytes of tasks: with those of all segments of the look-back, they
/// take no more than half of the space.
fn length_with(settings: &Settings, space: u64, stock: u64) -> Duration {
    let segments = u32::try_from(space / (2 * stock).max(1)).unwrap_or(u32::MAX);
    // After a reboot, one in progress has no end.
    length(settings).max((settings.back / segments.max(1)).min(LONGEST / 2))
}

/// Bytes of records after which a segment that begins with this many bytes of tasks is sealed: not much less than those,
/// and two segments fit in the space.
fn most_records(space: u64, stock: u64) -> u64 {
    (space / PART).max(stock.min((space / 2).saturating_sub(stock)))
}

struct Recorder {
    settings: Settings,
    config: Option<Reader>,
    /// Ends the watches of the triggers of pressure.
    is_over: Arc<AtomicBool>,
    store: Store,
    kernel: Kernel,
    /// Go and .NET, if they are recorded.
    sources: Option<Sources>,
    begun: Instant,
    windows: Windows,
    inbox: Inbox,
    outbox: Outbox,
    subject: Option<(u32, String)>,
    /// Requests for the dumps of the open window and of the one that follows.
    replies: VecDeque<Vec<Reply>>,
    stats: Stats,
    budget: Budget,
    machine: Machine,
    /// Why a CPU that came online is not recorded.
    cpu_failure: CpuFailure,
    /// What is missing before the settings were read again, and when that was.
    before: Vec<(Timestamp, String)>,
    /// Dumps that are being written: one at most.
    writing: u64,
    /// One for which no thread could be started yet.
    unwritten: Option<Job>,
}

/// A dump that is to be written, and who asked for it.
struct Job {
    dump: Dump,
    replies: Vec<Reply>,
}

impl Job {
    fn run(self) -> Message {
        let Self { dump, replies } = self;
        let held = dump.held();
        Message::Dumped { held, result: dump.write().map(Box::new), replies }
    }
}

/// Numbers since the start.
#[derive(Debug, Default)]
struct Stats {
    fired: u64,
    suppressed: u64,
    dumps: u64,
    failed_dumps: u64,
    shed: Vec<String>,
}

/// Makes a dump of the segments of an earlier boot: no window can have them. On a full disk, the oldest ones make room.
/// Where no dump can be made, they are put aside: the recorder starts. `write` writes the dump.
pub(super) fn recover(
    store: &mut Store,
    mut write: impl FnMut(Dump) -> io::Result<Dumped>,
) -> Result {
    let cause = Cause::new("recovered", "the machine was started again");
    while let Some(dump) = store.dump_earlier(Duration::MAX, cause.clone()) {
        let failure = match dump.map(|dump| (dump.held(), write(dump))) {
            Ok((held, Ok(dumped))) => {
                store.release(held, true);
                report(&dumped);
                return store.forget_earlier();
            }
            Ok((held, Err(error))) => {
                store.release(held, false);
                if is_full(&error) {
                    store.remove_earliest();
                    continue;
                }
                Failure::new(error)
            }
            Err(failure) => failure,
        };
        let aside = store.put_earlier_aside()?;
        let why = format!("no dump of the boot before: {}", failure.message());
        Failure::about(aside.display(), why).and("its segments are here").print();
    }
    store.forget_earlier()
}

fn report(dumped: &Dumped) {
    let Dumped { path, manifest, bytes } = dumped;
    let path = path.display().to_string();
    let fired = counted(manifest.window.fired, "trigger");
    let missing = if manifest.is_complete() { "" } else { ", not complete: see manifest.json" };
    message!("triscope: {}: {fired}, {}{missing}", OneLine(&path), size(*bytes));
}

impl Recorder {
    /// Records until the end.
    fn watch(&mut self, process: Option<Process>, mut command: Option<&mut Watch>) -> Result {
        let mut looked = Instant::now();
        loop {
            self.inbox.wait(self.kernel.set(), ROUND);
            // Before a dump, which says so.
            self.machine.look()?;
            let mut is_over = self.messages()?;
            self.round()?;
            if let Some(watch) = &mut command {
                is_over |= watch.wait(&after(Duration::ZERO))?;
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.check_cpus()?;
                self.enforce()?;
                if self.begun.elapsed() > self.store.ring.budget().keep {
                    self.store.forget_left();
                }
                is_over |= process.is_some_and(|process| !process.is_running());
            }
            is_over |= self.settings.oneshot && self.stats.dumps > 0;
            if is_over {
                return Ok(());
            }
        }
    }

    /// Opens the events on CPUs that came online. The others continue if that fails.
    fn check_cpus(&mut self) -> Result {
        let found = self.kernel.check_cpus(&mut self.store)?;
        match self.cpu_failure.changes(found) {
            Some(changes) => self.machine.cpus(&changes.gone, &changes.opened),
            None => Ok(()),
        }
    }

    /// Reads the rings, and does what is due.
    fn round(&mut self) -> Result {
        // All that is there now, and was recorded before.
        let _ = self.kernel.set().wait(Some(Duration::ZERO)).map_err(failure)?;
        let causes = self.kernel.round(&mut self.store)?;
        self.fire_all(causes);
        let at = now().map_err(Failure::new)?;
        let (space, stock) = (self.store.ring.budget().bytes, self.kernel.segment_stock());
        let is_old = self.kernel.age(at) >= length_with(&self.settings, space, stock);
        if is_old || self.kernel.bytes() - stock >= most_records(space, stock) {
            self.kernel.seal(&mut self.store)?;
        }
        // Age is counted from what was written, not from now: a recorder that gets no CPU is behind.
        let keep = self.store.ring.budget().keep;
        let written = self.kernel.recorded();
        let oldest = self.windows.open().map_or(written, |window| written.min(window.start + keep));
        self.store.evict(oldest, self.kernel.bytes());
        if let Some(sources) = &self.sources {
            sources.keep(self.windows.open());
        }
        if let Some(first) = self.store.ring.segments().next() {
            // The first segment has records of before its start, too.
            self.machine.forget(first.start - keep);
        }
        if let Some(job) = self.unwritten.take() {
            let _ = self.write(job); // its failure was printed
        }
        // One dump at a time: meanwhile, other triggers join the window that follows.
        let is_idle = self.writing == 0;
        let recorded = self.kernel.recorded();
        if let Some(window) = is_idle.then(|| self.windows.due(recorded)).flatten() {
            self.kernel.seal(&mut self.store)?;
            self.dump(window);
        }
        Ok(())
    }

    /// Fires the triggers of the kernel's records.
    fn fire_all(&mut self, causes: Vec<(Timestamp, Cause)>) {
        for (at, cause) in causes {
            self.fire(at, cause, false);
        }
    }

    /// Returns the effect on the windows, if there is one.
    fn fire(&mut self, at: Timestamp, cause: Cause, is_demand: bool) -> Option<Fired> {
        self.stats.fired += 1;
        if !is_demand && self.has_the_only_dump(at) {
            self.stats.suppressed += 1;
            return None;
        }
        let what = cause.what.clone();
        let of = match (cause.pid, cause.tid) {
            // Those of the scheduler begin with their thread.
            (_, Some(tid)) if what.starts_with(&format!("thread {tid} ")) => String::new(),
            (Some(pid), Some(tid)) => format!(" of thread {tid} of process {pid}"),
            (None, Some(tid)) => format!(" of thread {tid}"),
            // Those of Go and .NET name their process.
            (_, None) => String::new(),
        };
        let fired = match is_demand {
            true => self.windows.demand(at, cause),
            false => self.windows.fire(at, cause),
        };
        match fired {
            Fired::Opened => {
                self.replies.push_back(Vec::new());
                message!("triscope: trigger: {}{of}", OneLine(&what));
            }
            Fired::Suppressed => self.stats.suppressed += 1,
            _ => {}
        }
        Some(fired)
    }

    /// Does what others ask for. Returns whether to end.
    fn messages(&mut self) -> Result<bool> {
        /// Messages between two reads of the rings, which must not wait for others.
        const MOST: usize = 64;
        let mut is_over = false;
        for _ in 0..MOST {
            let Some(message) = self.inbox.next() else { break };
            let at = now().unwrap_or(Timestamp::MIN);
            match message {
                Message::Stop => is_over = true,
                Message::Reload => self.reload()?,
                Message::Signal(name) => {
                    self.fire(at, Cause::new("signal", name), true);
                }
                Message::Dump { reason, reply } => {
                    self.fire(at, Cause::new("command", reason), true);
                    // It is of now: no window follows that of it.
                    self.replies.back_mut().into_iter().for_each(|all| all.push(reply.clone()));
                }
                Message::Metrics(reply) => {
                    let _ = reply.send(Ok(self.metrics())); // who asked may have gone
                }
                Message::Dumped { held, result, replies } => {
                    self.dumped(Some(held), result, replies);
                }
            }
        }
        self.fire_fired();
        Ok(is_over)
    }

    /// Fires the triggers that are none of the kernel's records.
    fn fire_fired(&mut self) {
        let inbox::Fired { causes, more } = self.inbox.fired();
        let at = now().unwrap_or(Timestamp::MIN);
        let mut last = None;
        for mut cause in causes {
            cause.time = recorded_time(cause.time, at, keep(&self.settings));
            last = self.fire(cause.time.unwrap_or(at), cause, false);
        }
        self.stats.fired += more;
        if let Some(effect) = last {
            self.windows.add(more, effect);
        }
        if matches!(last, None | Some(Fired::Suppressed)) {
            self.stats.suppressed += more;
        }
    }

    /// Whether the only dump is there, or has all of its window.
    fn has_the_only_dump(&self, at: Timestamp) -> bool {
        let is_over = || self.windows.open().is_some_and(|window| at > window.end);
        self.settings.oneshot && (self.writing > 0 || self.stats.dumps > 0 || is_over())
    }

    /// Reads the configuration again. Settings that are wrong change nothing.
    fn reload(&mut self) -> Result {
        let read = match &self.config {
            Some(reader) => reader.read(),
            None => Err(Failure::new("SIGHUP: there is nothing to read again without --config")),
        };
        let checked = read.and_then(|settings| {
            settings.check()?;
            match &self.sources {
                // Their thread would lack the privileges, which were dropped.
                None if settings.dotnet || settings.go => {
                    Err(Failure::new("dotnet, go: a recorder without these needs a new start"))
                }
                _ => Ok(settings),
            }
        });
        let opened = checked.and_then(|settings| Ok((pressures(&settings)?, settings)));
        let (pressures, settings) = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                failure.and("the settings stay as they were").print();
                return Ok(());
            }
        };
        // The old events continue until the new ones are open.
        let reopened = wanted(&settings).and_then(|wanted| {
            enough_disk(&settings, self.kernel.stock())?;
            self.kernel.reopen(&wanted)
        });
        match reopened {
            Ok(kernel) => {
                let mut old = std::mem::replace(&mut self.kernel, kernel);
                // What both have seen fires twice: the time in which both are open is not left out.
                let causes = old.finish(&mut self.store)?;
                self.fire_all(causes);
                self.kernel.follow(&mut old)?;
                self.kernel.keep_events(&self.store)?;
                self.machine.reopened()?;
            }
            Err(failure) => {
                failure.and("the settings stay as they were").print();
                return Ok(());
            }
        }
        if let Some((pid, _)) = &self.subject {
            self.kernel.focus(*pid);
        }
        self.watch_pressures(pressures);
        if settings.metrics != self.settings.metrics {
            message!("triscope: metrics: a new address needs a new start");
        }
        let at = now().map_err(Failure::new)?;
        let earliest = at - keep(&self.settings);
        self.before.retain(|(at, _)| *at >= earliest);
        if let Some(sources) = &self.sources {
            let pid = self.subject.as_ref().map(|(pid, _)| *pid);
            let (before, now) = (sources_of(&self.settings, pid), sources_of(&settings, pid));
            for (name, was, is_kept) in [
                (".NET", before.dotnet, now.keeps_dotnet(&before)),
                ("Go", before.go, now.keeps_go(&before)),
            ] {
                if was && !is_kept {
                    // Whether there was a runtime is known to the thread of the sources.
                    let what = format!(
                        "{name} before the settings were read again: what was recorded was \
                         removed, if there was any"
                    );
                    self.before.push((at, what));
                }
            }
            sources.change(now);
        }
        self.before.extend(self.stats.shed.drain(..).map(|source| {
            let why =
                "not recorded before the settings were read again, as the CPU budget was exceeded";
            (at, format!("{source}: {why}"))
        }));
        self.store.set_space(space(&settings), keep(&settings));
        self.windows.set_lengths(settings.back, settings.forward);
        self.windows.set_cooldown(settings.cooldown.unwrap_or_default());
        self.settings = settings;
        // What was used before was that of other sources.
        self.budget = Budget::start();
        message!("triscope: the settings were read again");
        Ok(())
    }

    /// Watches these triggers of pressure in place of those before.
    fn watch_pressures(&mut self, pressures: Vec<Pressure>) {
        self.is_over.store(true, Ordering::Relaxed);
        self.is_over = Arc::new(AtomicBool::new(false));
        for pressure in pressures {
            if let Err(failure) = pressure.watch(&self.outbox, &self.is_over) {
                failure.print();
            }
        }
    }

    /// Writes a dump on a thread: the rings must be read meanwhile.
    fn dump(&mut self, window: Window) {
        let replies = self.replies.pop_front().unwrap_or_default();
        let slug = window.causes.first().map_or_else(String::new, |cause| cause.trigger.clone());
        self.writing += 1;
        let dump = match self.prepare(window, &slug) {
            Ok(dump) => dump,
            Err(failure) => return self.dumped(None, Err(failure), replies),
        };
        if let Err(failure) = self.write(Job { dump, replies }) {
            failure.and("the dump is written as soon as possible").print();
        }
    }

    /// Starts the thread that writes a dump. Without one, the next round tries it again.
    fn write(&mut self, job: Job) -> Result {
        let outbox = self.outbox.clone();
        let given = threads::give("a dump", job, move |job| {
            // The reader of the rings comes first.
            let _nice = NiceThread::begin(0).ok();
            outbox.post(job.run());
        });
        given.map_err(|(job, failure)| {
            self.unwritten = Some(job);
            failure
        })
    }

    fn prepare(&mut self, window: Window, slug: &str) -> Result<Dump> {
        let more = self.source_bytes();
        let mut dump = self.store.dump(window, slug, more)?;
        // Sessions end for a dump only if there is one.
        dump.collected = self.sources.as_ref().map(|sources| sources.collect(&dump.window));
        dump.tracing = Some(self.kernel.tracing.clone());
        dump.subject.clone_from(&self.subject);
        dump.command_lines = self.settings.command_lines;
        dump.wall_clock_offset = Some(self.machine.wall_clock_offset_nanos());
        dump.clock_changes = self.machine.clock_changes();
        dump.cpus = self.machine.cpu_gaps();
        let from = dump.window.start;
        let stats = self.kernel.stats;
        if stats.unwritten_at.is_some_and(|at| at >= from) {
            let what = counted(stats.unwritten, "record");
            let why = "as segments could not be written";
            dump.missing.push(format!("up to {what} since the start, {why}"));
        }
        dump.missing.extend(
            self.cpu_failure.why().iter().map(|why| format!("a CPU that came online: {why}")),
        );
        let is_within = |(at, _): &&(Timestamp, String)| *at > from;
        let before = self.before.iter().filter(is_within);
        dump.missing.extend(before.map(|(_, what)| what.clone()));
        dump.missing.extend(self.stats.shed.iter().map(|source| {
            format!("{source}: not recorded any more, as the CPU budget was exceeded")
        }));
        Ok(dump)
    }

    /// Bytes of Go and .NET traces.
    fn source_bytes(&self) -> u64 {
        self.sources.as_ref().map_or(0, |sources| sources.usage.bytes.load(Ordering::Relaxed))
    }

    fn dumped(&mut self, held: Option<Held>, result: Result<Box<Dumped>>, replies: Vec<Reply>) {
        if let Some(held) = held {
            self.store.release(held, result.is_ok());
        }
        self.writing = self.writing.saturating_sub(1);
        let reply = match result {
            Ok(dumped) => {
                self.stats.dumps += 1;
                report(&dumped);
                Ok(dumped.path.display().to_string())
            }
            Err(failure) => {
                self.stats.failed_dumps += 1;
                failure.print();
                Err(failure.message().to_owned())
            }
        };
        for asked in replies {
            let _ = asked.send(reply.clone()); // who asked may have gone
        }
    }

    /// Compares the use of resources with the budgets, and stops a source if need be.
    fn enforce(&mut self) -> Result {
        let Some(percent) = self.budget.measure() else { return Ok(()) };
        self.kernel.measure();
        let limit = self.settings.cpu;
        if !self.budget.is_exceeded(percent > limit) {
            return Ok(());
        }
        match self.kernel.shed(&mut self.store)? {
            Some(source) => {
                message!(
                    "triscope: {percent:.1} % of a CPU was used instead of {limit} %: {source} are \
                     not recorded any more"
                );
                self.stats.shed.push(source);
            }
            None if !self.budget.is_reported => {
                self.budget.is_reported = true;
                message!("triscope: {percent:.1} % of a CPU was used instead of {limit} %");
            }
            None => {}
        }
        Ok(())
    }

    /// Numbers in the text format of Prometheus.
    fn metrics(&self) -> String {
        let mut text = String::new();
        let mut put = |name: &str, kind: &str, help: &str, value: f64| {
            let name = format!("triscope_flight_{name}");
            // A string does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        };
        let (ring, kernel) = (&self.store.ring, &self.kernel);
        let (dropped_tasks, threads) = kernel.tasks();
        let span = ring.segments().next().zip(ring.segments().last());
        let span = span.map_or(0.0, |(first, last)| (last.end - first.start).as_secs_f64());
        put("records_total", "counter", "Records of the kernel.", kernel.records() as f64);
        put("lost_records_total", "counter", "Records that the kernel lost.", kernel.lost() as f64);
        let gaps = kernel.gaps() as f64;
        put("switch_gaps_total", "counter", "Switches before which one is missing.", gaps);
        let unwritten = kernel.stats.unwritten as f64;
        put("unwritten_records_total", "counter", "Records that may be in no segment.", unwritten);
        put("segments_total", "counter", "Segments begun.", kernel.stats.segments as f64);
        put(
            "failed_segments_total",
            "counter",
            "Segments not written.",
            kernel.stats.failed as f64,
        );
        put("segment_bytes", "gauge", "Bytes of segments.", ring.used() as f64);
        put("segment_budget_bytes", "gauge", "Their limit.", ring.budget().bytes as f64);
        let evicted = ring.evicted_for_space() as f64;
        put("evicted_segments_total", "counter", "Segments removed before their time.", evicted);
        put("covered_seconds", "gauge", "Time that segments cover.", span);
        let lag = now().map_or(0.0, |at| kernel.lag(at).as_secs_f64());
        put("lag_seconds", "gauge", "Age of the newest record that is surely written.", lag);
        put("triggers_total", "counter", "Triggers that fired.", self.stats.fired as f64);
        let suppressed = self.stats.suppressed as f64;
        put("suppressed_triggers_total", "counter", "Triggers during the cooldown.", suppressed);
        put("dumps_total", "counter", "Dumps written.", self.stats.dumps as f64);
        put("failed_dumps_total", "counter", "Dumps not written.", self.stats.failed_dumps as f64);
        put("dump_bytes", "gauge", "Bytes of dumps.", self.store.dumped_bytes() as f64);
        let sources = self.sources.as_ref();
        let processes = sources.map_or(0, |s| s.usage.processes.load(Ordering::Relaxed));
        put("runtimes", "gauge", "Go and .NET processes that are recorded.", processes as f64);
        put("runtime_bytes", "gauge", "Bytes of their traces.", self.source_bytes() as f64);
        let limit = source_bytes(&self.settings) as f64;
        put("runtime_budget_bytes", "gauge", "Their limit.", limit);
        let overtaken = sources::overtaken() as f64;
        put("overtaken_traces_total", "counter", "Go traces not read in time.", overtaken);
        let refused = threads::refused() as f64;
        put("refused_threads_total", "counter", "Threads that could not be started.", refused);
        put("stopped_sources", "gauge", "Sources stopped.", self.stats.shed.len() as f64);
        put("threads", "gauge", "Threads that are known.", threads as f64);
        put("dropped_task_records_total", "counter", "Not in memory.", dropped_tasks as f64);
        put("cpu_seconds_total", "counter", "CPU time of the recorder.", cpu_time().as_secs_f64());
        put("resident_bytes", "gauge", "Memory of the recorder.", resident() as f64);
        text
    }

    /// Ends the recording: the open window becomes a dump.
    fn finish(&mut self) -> Result {
        self.is_over.store(true, Ordering::Relaxed);
        // Triggers that were reported during the last round.
        let _ = self.messages()?;
        let causes = self.kernel.finish(&mut self.store)?;
        self.fire_all(causes);
        self.await_dump();
        while let Some(window) = self.windows.finish(self.kernel.recorded()) {
            self.dump(window);
            self.await_dump();
        }
        self.sources = None;
        let mut all = Account::default();
        for (event, account) in self.kernel.accounts()? {
            all.add(&account);
            let (lost, missing) = (account.lost, account.missing());
            if lost + missing > 0 {
                message!("triscope: {event}: {lost} lost, {missing} missing without a reason");
            }
        }
        message!(
            "triscope: {} of the kernel, {} delivered, {} lost, {} missing without a reason; {}; {:.1} s \
             of CPU time",
            counted(all.count, "event"),
            all.delivered,
            all.lost,
            all.missing(),
            self.dumps(),
            cpu_time().as_secs_f64()
        );
        // Each failure was printed, and who asked for the dump got it.
        let is_useless = self.stats.failed_dumps > 0 && self.stats.dumps == 0;
        if is_useless { Err(Failure::Quiet(1)) } else { Ok(()) }
    }

    /// Waits until no dump is being written.
    fn await_dump(&mut self) {
        // Nothing else is left to do.
        if let Some(job) = self.unwritten.take() {
            self.outbox.post(job.run());
        }
        while self.writing > 0 {
            match self.inbox.recv() {
                Some(Message::Dumped { held, result, replies }) => {
                    self.dumped(Some(held), result, replies);
                }
                Some(_) => {}
                None => break,
            }
        }
    }

    /// The dumps, and those that failed.
    fn dumps(&self) -> String {
        let mut text = counted(self.stats.dumps, "dump");
        if self.stats.failed_dumps > 0 {
            text.push_str(&format!(", {} failed", self.stats.failed_dumps));
        }
        text
    }
}

/// The use of the CPU by the thread that reads the kernel's buffers: its sources are those that are stopped. Dumps are
/// written by threads of their own, as are traces of Go and .NET.
struct Budget {
    since: Instant,
    used: Duration,
    /// Whether the last measurement was above the limit, too.
    was_above: bool,
    is_reported: bool,
}

impl Budget {
    fn start() -> Self {
        let (since, used) = (Instant::now(), thread_time());
        Self { since, used, was_above: false, is_reported: false }
    }

    /// Percent of a CPU since the last measurement, if that was long enough ago.
    fn measure(&mut self) -> Option<f64> {
        let elapsed = self.since.elapsed();
        if elapsed < MEASURE {
            return None;
        }
        let used = thread_time();
        let percent = 100.0 * (used - self.used).as_secs_f64() / elapsed.as_secs_f64();
        (self.since, self.used) = (Instant::now(), used);
        Some(percent)
    }

    /// Whether two measurements in succession are above the limit: a burst is in one of them.
    const fn is_exceeded(&mut self, is_above: bool) -> bool {
        let is_exceeded = is_above && self.was_above;
        self.was_above = is_above;
        is_exceeded
    }
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Bytes of this process in memory: `proc_pid_statm(5)`.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// The signals, which are received from the start on.
struct Signals {
    /// The first one that asks to end, or 0. With a command there is none.
    end: Arc<AtomicI32>,
    _listeners: Vec<Listener>,
}

impl Signals {
    /// Posts signals. SIGINT, SIGTERM and SIGHUP are those of a command, and before it is started of [`Beginning`].
    fn listen(outbox: &Outbox, has_all: bool) -> Result<Self> {
        let mut listeners = Vec::new();
        // The thread of each needs no capability.
        let mut on = |signals: &[i32], mut act: Box<dyn FnMut(i32) -> Next + Send>| -> Result {
            let begin = || keep_capabilities(CapabilitySet::empty());
            listeners.push(Listener::of_by(signals, begin, move |got| act(got.signal))?);
            Ok(())
        };
        let end = Arc::new(AtomicI32::new(0));
        let ask = Arc::clone(&end);
        let post = outbox.clone();
        on(
            &[SIGUSR1],
            Box::new(move |_| {
                post.post(Message::Signal("SIGUSR1"));
                Next::Wait
            }),
        )?;
        if has_all {
            // Also under nohup: it does not end the recorder.
            let post = outbox.clone();
            on(
                &[SIGHUP],
                Box::new(move |_| {
                    post.post(Message::Reload);
                    Next::Wait
                }),
            )?;
            let post = outbox.clone();
            let is_first = move |signal| {
                ask.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            };
            on(
                &not_ignored(&[SIGINT, SIGTERM]),
                Box::new(move |signal| {
                    if !is_first(signal) {
                        return Next::Exit;
                    }
                    post.post(Message::Stop);
                    Next::Wait
                }),
            )?;
        }
        Ok(Self { end, _listeners: listeners })
    }

    /// Ends the start if a signal asks for it.
    fn check(&self) -> Result {
        match self.end.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Failure::Quiet(exit_code(signal))),
        }
    }
}

/// Keeps no capability of this thread and those that it starts but the one for perf events, and that
/// for their buffers: they are opened again for CPUs that come online and for other settings.
fn drop_capabilities() -> Result {
    // Linux before 5.8 knows no CAP_PERFMON.
    let has_perfmon = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::PERFMON));
    let with = |perf| perf | CapabilitySet::IPC_LOCK;
    if has_perfmon {
        let kept = with(CapabilitySet::PERFMON);
        // On a thread, as capabilities do not come back.
        let suffices = threads::start("the capabilities", move || {
            keep_capabilities(kept);
            may_open()
        })?;
        if suffices.join().unwrap_or(false) {
            keep_capabilities(kept);
            return Ok(());
        }
        message!(
            "triscope: CAP_SYS_ADMIN is kept: this kernel does not open events with CAP_PERFMON alone, as \
             kernel.perf_event_paranoid is {}",
            perf_monitor::paranoid_level().unwrap_or_default()
        );
        keep_capabilities(kept | CapabilitySet::SYS_ADMIN);
        return Ok(());
    }
    keep_capabilities(with(CapabilitySet::SYS_ADMIN));
    Ok(())
}

/// Keeps only these capabilities of this thread and those that it starts. No program that they execute gets
/// more.
fn keep_capabilities(needed: CapabilitySet) {
    if let Err(errno) = rustix::thread::set_no_new_privs(true) {
        message!("triscope: no_new_privs is not set: {errno}");
    }
    let Ok(before) = rustix::thread::capabilities(None) else { return };
    let kept = before.effective & needed;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    if let Err(errno) = rustix::thread::set_capabilities(None, sets) {
        message!("triscope: capabilities are kept: {errno}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever part of the space the tasks take, a segment has records, and two segments fit.
    #[test]
    fn tasks_leave_room_for_records() {
        for stock in [100, 10_000, 1_000_000, 30_000_000] {
            let least = 3 * stock + (1 << 16);
            for space in (0..20).map(|n| least + n * n * stock / 10) {
                let records = most_records(space, stock);
                assert!(2 * (stock + records) <= space || records == space / PART);
                assert!(stock + records + stock < space, "{stock} {space}");
                assert!(records >= (stock / 2).min(space / 8), "{stock} {space}");
            }
        }
    }

    #[test]
    fn a_thread_beside_the_main_one_is_no_process() {
        let own = std::process::id();
        assert_eq!(running(own).map(|process| process.pid).ok(), Some(own));
        let other = std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            // It runs meanwhile.
            (tid, running(tid).err().map(|failure| failure.message().to_owned()))
        });
        let (tid, why) = other.join().unwrap();
        assert_eq!(why, Some(no_process(tid).message().to_owned()));
    }

    #[test]
    fn a_trigger_of_another_time_fires_now() {
        let at = Timestamp::from_nanos;
        let recorded = |of| recorded_time(Some(at(of)), at(1_000), Duration::from_nanos(100));
        assert_eq!([900, 950, 1_000].map(recorded), [900, 950, 1_000].map(|of| Some(at(of))));
        assert_eq!([899, 1_001, i64::MIN, i64::MAX].map(recorded), [None; 4]);
        assert_eq!(recorded_time(None, at(1_000), Duration::ZERO), None);
    }
}
