//! What a trace says late: the names of methods, processes and threads, and which threads take
//! samples.

use hashbrown::{HashMap, HashSet};
use nettrace::manifest::Provider;
use nettrace::{Event, MethodMap};
use trace_common::Timestamp;

/// Maximum number of processes with names.
const MAX_PROCESSES: usize = 1 << 16;

/// Maximum number of names of threads, of threads without a name, and of threads that take samples.
const MAX_THREADS: usize = 1 << 16;

/// Maximum number of continuations that are known to begin.
const MAX_CONTINUATIONS: usize = 1 << 18;

/// `ThreadCreated` of the runtime.
pub(super) const THREAD_CREATED: u32 = 85;

/// `TaskWaitContinuationStarted`.
const CONTINUATION_STARTED: u32 = 19;

/// The names of methods, processes and threads of a trace, collected in a first reading.
///
/// Methods are named at the end of a trace, and processes anywhere in it. So read a trace first
/// with [`DotnetNames::push`], and pass the result to [`DotnetSource::with_names`].
///
/// [`DotnetSource::with_names`]: super::DotnetSource::with_names
#[derive(Debug, Default)]
pub struct DotnetNames {
    methods: MethodMap,
    processes: HashMap<u64, Named>,
    /// With the times from which threads have them: a later thread can have the id of one that has ended.
    threads: HashMap<(u64, u64), Vec<(Timestamp, &'static str)>>,
    /// Number of these that began with a name.
    named: usize,
    /// Number of the others: they do not use up the room of names.
    unnamed: usize,
    samplers: HashSet<(u64, u64)>,
    /// A bit for each number of an event of `TplEventSource` that the trace has.
    tasks: u32,
    /// Continuations that begin, by process.
    continuations: HashSet<(u64, i64)>,
}

#[derive(Debug, Default)]
struct Named {
    name: String,
    command_line: String,
}

impl DotnetNames {
    /// Makes an empty set of names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Collects the names in an event.
    pub fn push(&mut self, event: &Event<'_>) {
        self.methods.push(event);
        let pid = event.pid();
        let text = |name| event.field(name).map(|v| v.to_string()).unwrap_or_default();
        match (Provider::by_name(event.provider()), event.id()) {
            (Some(Provider::EventPipe), _) => {
                let command_line = text("CommandLine");
                // A flight recording has its characters masked.
                let is_masked = command_line.bytes().all(|byte| byte == b'*');
                if let Some(name) = program(&command_line).filter(|_| !is_masked) {
                    self.process(pid, Named { name, command_line });
                }
            }
            (Some(Provider::UniversalSystem), _)
                if matches!(event.name(), "ExistingProcess" | "ProcessCreate") =>
            {
                let name = text("Name");
                if !name.is_empty() {
                    self.process(pid, Named { name, ..Named::default() });
                }
            }
            (Some(Provider::Runtime), THREAD_CREATED) => self.thread(event),
            // ThreadDC
            (Some(Provider::Rundown), 159) => self.thread(event),
            (Some(Provider::SampleProfiler), _) if self.samplers.len() < MAX_THREADS => {
                self.samplers.insert((pid, event.header().capture_thread));
            }
            (Some(Provider::Tpl), id) if id < u32::BITS => {
                self.tasks |= 1 << id;
                let is_it = id == CONTINUATION_STARTED;
                if is_it && self.continuations.len() < MAX_CONTINUATIONS {
                    let number = event.field_at(0).and_then(|number| number.as_i64());
                    self.continuations.extend(number.map(|number| (pid, number)));
                }
            }
            _ => {}
        }
    }

    /// A bit for each number of an event of `TplEventSource` that was pushed.
    pub(super) const fn tasks(&self) -> u32 {
        self.tasks
    }

    /// Whether an event says that a continuation begins.
    pub(super) fn begins(&self, pid: u64, continuation: i64) -> bool {
        self.continuations.contains(&(pid, continuation))
    }

    fn process(&mut self, pid: u64, named: Named) {
        if self.processes.len() < MAX_PROCESSES || self.processes.contains_key(&pid) {
            self.processes.insert(pid, named);
        }
    }

    fn thread(&mut self, event: &Event<'_>) {
        let number = |name: &str| event.field(name).and_then(|v| v.as_u64());
        let (Some(tid), Some(flags)) = (number("OSThreadID"), number("Flags")) else { return };
        // ThreadFlags of the runtime's event ThreadCreated.
        const GC_SPECIAL: u64 = 1;
        const FINALIZER: u64 = 2;
        const POOL_WORKER: u64 = 4;
        let name = match flags {
            flags if flags & FINALIZER != 0 => ".NET Finalizer",
            flags if flags & GC_SPECIAL != 0 => ".NET GC",
            flags if flags & POOL_WORKER != 0 => ".NET ThreadPool Worker",
            // The thread before it may have one.
            _ if event.id() == THREAD_CREATED => "",
            _ => return,
        };
        let (key, time) = ((event.pid(), tid), event.time());
        let count = if name.is_empty() { &mut self.unnamed } else { &mut self.named };
        let is_full = *count >= MAX_THREADS;
        if is_full && !self.threads.contains_key(&key) {
            return;
        }
        let names = self.threads.entry(key).or_default();
        let after = names.partition_point(|(since, _)| *since <= time);
        let is_last = after == names.len();
        let mut before = names.get_mut(..after).unwrap_or_default().iter_mut().rev();
        match (before.next(), before.next()) {
            // A worker of the pool becomes one after its creation.
            (Some((_, last)), _) if event.id() != THREAD_CREATED => *last = name,
            // The one before says the same of what is between. The rundown names the last one alone.
            (Some(last), Some((_, before))) if is_last && last.1 == name && *before == name => {
                last.0 = time;
            }
            // No room for the one that has ended.
            (Some(last), _) if is_full && is_last => *last = (time, name),
            _ if is_full => {}
            _ => {
                names.insert(after, (time, name));
                *count += 1;
            }
        }
    }

    /// The methods.
    pub const fn methods(&self) -> &MethodMap {
        &self.methods
    }

    /// The name of a process: its program, or `.NET` if the trace does not contain it.
    pub fn process_name(&self, pid: u64) -> &str {
        self.given_name(pid).unwrap_or(".NET")
    }

    /// The name of a process, if the trace contains it.
    pub(super) fn given_name(&self, pid: u64) -> Option<&str> {
        self.processes.get(&pid).map(|named| named.name.as_str())
    }

    /// The command line of a process, if the trace contains it. One of asterisks is masked, and not known.
    pub fn command_line(&self, pid: u64) -> Option<&str> {
        let named = self.processes.get(&pid)?;
        Some(named.command_line.as_str()).filter(|line| !line.is_empty())
    }

    /// The name of the thread of an event; empty if the trace does not contain it.
    pub fn thread_name<'a>(&'a self, event: &Event<'a>) -> &'a str {
        let given = event.thread().and_then(|thread| thread.name.as_deref()).unwrap_or("");
        if !given.is_empty() {
            return given;
        }
        let Some(names) = self.threads.get(&(event.pid(), event.tid())) else {
            return "";
        };
        // A thread can write events before the one about its creation, and the rundown is at the end.
        let begun = names.iter().rfind(|(since, _)| *since <= event.time());
        begun.or(names.first()).map_or("", |(_, name)| name)
    }

    /// Whether a thread takes the samples of the sample profiler, for which it suspends all managed
    /// threads.
    pub fn is_sampler(&self, pid: u64, tid: u64) -> bool {
        self.samplers.contains(&(pid, tid))
    }
}

/// Returns the name of the program in a command line: the assembly, if the host runs one.
fn program(command_line: &str) -> Option<String> {
    let base = |word: &str| word.rsplit(['/', '\\']).next().unwrap_or(word).to_owned();
    let mut words = command_line.split_ascii_whitespace().map(base);
    match (words.next(), words.next()) {
        (Some(host), Some(app)) if host == "dotnet" && app.ends_with(".dll") => Some(app),
        (Some(program), _) => Some(program),
        _ => None,
    }
}
