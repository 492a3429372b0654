//! Names that a trace contains late: of methods, processes and threads.

use hashbrown::HashMap;
use nettrace::manifest::Provider;
use nettrace::{Event, MethodMap};

/// Maximum number of threads with names.
const MAX_THREADS: usize = 1 << 16;

/// The names of methods, processes and threads of a trace, collected before it is drawn.
///
/// Methods are named at the end of a trace, and processes anywhere in it. So read a trace first
/// with [`DotnetNames::observe`], and pass the result to [`DotnetSource::new`].
///
/// [`DotnetSource::new`]: super::DotnetSource::new
#[derive(Debug, Default)]
pub struct DotnetNames {
    pub(super) methods: MethodMap,
    processes: HashMap<u64, String>,
    threads: HashMap<(u64, u64), String>,
}

impl DotnetNames {
    /// Makes an empty set of names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Collects the names in an event.
    pub fn observe(&mut self, event: &Event<'_>) {
        self.methods.observe(event);
        let pid = event.process_id();
        match (Provider::by_name(event.provider()), event.id()) {
            (Some(Provider::EventPipe), _) => {
                let line = event.field("CommandLine").map(|v| v.to_string()).unwrap_or_default();
                if let Some(name) = program(&line) {
                    self.processes.insert(pid, name);
                }
            }
            (Some(Provider::UniversalSystem), _)
                if matches!(event.name(), "ExistingProcess" | "ProcessCreate") =>
            {
                let name = event.field("Name").map(|v| v.to_string()).unwrap_or_default();
                if !name.is_empty() {
                    self.processes.insert(pid, name);
                }
            }
            // ThreadCreated, ThreadDC
            (Some(Provider::Runtime), 85) => self.thread(event),
            (Some(Provider::Rundown), 159) => self.thread(event),
            _ => {}
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
            _ => return,
        };
        if self.threads.len() < MAX_THREADS {
            self.threads.insert((event.process_id(), tid), name.to_owned());
        }
    }

    /// Returns the name of a process: its program, or `.NET` if the trace does not contain it.
    pub(super) fn process(&self, pid: u64) -> &str {
        self.processes.get(&pid).map_or(".NET", String::as_str)
    }

    /// Returns the name of a thread; empty if the trace does not contain it.
    pub(super) fn of_thread<'a>(&'a self, event: &Event<'a>) -> &'a str {
        let given = event.thread().and_then(|thread| thread.name.as_deref()).unwrap_or("");
        if !given.is_empty() {
            return given;
        }
        let key = (event.process_id(), event.thread_id());
        self.threads.get(&key).map_or("", String::as_str)
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
