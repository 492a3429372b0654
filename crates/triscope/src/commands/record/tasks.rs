//! The threads of the command and of other processes.

use crate::run::procfs;
use perf_monitor::ProcessInfo;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque, btree_map};
use std::io;
use std::rc::Rc;
use trace_common::IdMap;
use trace_export::{Process, Sink, Task, Timestamp, Track, TrackId};

/// The name of a thread, as stored by the kernel.
pub(super) type Comm = [u8; 16];

pub(super) fn text(comm: &Comm) -> &[u8] {
    let end = comm.iter().position(|b| *b == 0).unwrap_or(comm.len());
    comm.get(..end).unwrap_or_default()
}

pub(super) fn comm(bytes: &[u8]) -> Comm {
    let mut comm = [0; 16];
    for (to, from) in comm.iter_mut().zip(bytes) {
        *to = *from;
    }
    comm
}

struct Thread {
    pid: u32,
    tid: u32,
    comm: Comm,
    /// Whether it belongs to the command.
    is_ours: bool,
    /// If it was forked during the recording.
    start: Option<Timestamp>,
    exit: Option<Timestamp>,
    /// The parent of its process; 0 if it is not known.
    parent: u32,
    /// The program of its process.
    program: Option<Rc<ProcessInfo>>,
}

impl Thread {
    fn new(pid: u32, tid: u32) -> Self {
        let (is_ours, start, exit, parent, program) = (false, None, None, 0, None);
        Self { pid, tid, comm: comm(b""), is_ours, start, exit, parent, program }
    }
}

/// Ended threads that are remembered. The switches of an older one still have its name; it has no
/// process and no mark at its end. With their tracks they take about 20 MB.
const MAX_ENDED: usize = 1 << 17;

/// Bytes of command lines and paths that are remembered. Later programs have none.
const MAX_PROGRAMS: usize = 8 << 20;

/// The threads drawn by name: those of the command, or all.
pub(super) struct Tasks {
    with_others: bool,
    /// By thread id: those that run, and ended ones.
    threads: HashMap<u32, Thread>,
    /// The ended ones among them, oldest first, with their ends.
    ended: VecDeque<(u32, Timestamp)>,
    /// Ended threads whose ids were reused.
    former: VecDeque<Thread>,
    /// Number of ended threads that were forgotten.
    forgotten: u64,
    /// CPUs on which other threads are drawn without their names.
    others_on: IdMap<()>,
    /// The command, until its first record is read.
    starting: Option<u32>,
    /// Bytes of the programs that were added.
    program_bytes: usize,
    /// Programs above [`MAX_PROGRAMS`], or of processes that ended before they could be read.
    unknown_programs: u64,
    /// Number of threads that run, by process of the command.
    running: BTreeMap<u32, u32>,
}

/// Number of threads and processes of the command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) threads: usize,
    pub(super) processes: usize,
    /// Ended threads, of any process, that were forgotten: see [`MAX_ENDED`].
    pub(super) forgotten: u64,
    /// Programs without a command line.
    pub(super) unknown_programs: u64,
}

/// All other threads on CPU 0 are drawn as the thread with this id, those of CPU 1 as the next one,
/// and so on. No thread has these ids: the first one is the kernel's limit for process ids
/// (`PID_MAX_LIMIT`).
const OTHERS: u32 = 4 << 20;

impl Tasks {
    pub(super) fn new(with_others: bool) -> Self {
        Self {
            with_others,
            threads: HashMap::new(),
            ended: VecDeque::new(),
            former: VecDeque::new(),
            forgotten: 0,
            others_on: IdMap::default(),
            starting: None,
            program_bytes: 0,
            unknown_programs: 0,
            running: BTreeMap::new(),
        }
    }

    /// Whether all threads are drawn.
    pub(super) const fn are_all(&self) -> bool {
        self.with_others
    }

    /// The processes of the command that run.
    pub(super) fn processes(&self) -> BTreeSet<u32> {
        self.running.keys().copied().collect()
    }

    /// Adds every existing thread, if all are drawn. Call this after forks are recorded, so that
    /// none is missed in between.
    pub(super) fn scan(&mut self) {
        if !self.with_others {
            return;
        }
        for pid in perf_monitor::processes() {
            for thread in threads(pid, false) {
                self.threads.entry(thread.tid).or_insert(thread);
            }
            self.set_program(pid, ProcessInfo::read(pid));
        }
    }

    /// Sets the running process to record. Call this after forks are recorded.
    pub(super) fn follow_running(&mut self, pid: u32) {
        for thread in threads(pid, true) {
            self.insert(thread);
        }
        self.set_program(pid, ProcessInfo::read(pid));
    }

    /// Sets the process of the command.
    pub(super) fn follow(&mut self, pid: u32) {
        self.insert(Thread { is_ours: true, ..Thread::new(pid, pid) });
        self.starting = Some(pid);
    }

    /// A process or thread is created. A process has the program of its parent until it executes
    /// another one.
    pub(super) fn fork(
        &mut self,
        at: Timestamp,
        (parent, parent_thread): (u32, u32),
        (pid, tid): (u32, u32),
    ) {
        let maker = self.threads.get(&parent_thread).or_else(|| self.threads.get(&parent));
        // A thread inherits its name until another one is set.
        let comm = maker.map_or([0; 16], |thread| thread.comm);
        let is_command = self.starting == Some(tid);
        if is_command {
            self.starting = None;
        }
        let is_ours = is_command || maker.is_some_and(|thread| thread.is_ours);
        if is_ours || self.with_others {
            let start = Some(at);
            let is_process = pid == tid;
            let of_parent = self.threads.get(&parent).filter(|_| is_process);
            let program = of_parent.and_then(|parent| parent.program.clone());
            let parent = if is_process { parent } else { 0 };
            let new = Thread { comm, is_ours, start, parent, program, ..Thread::new(pid, tid) };
            self.insert(new);
        } else if let Some(former) = self.threads.remove(&tid) {
            if former.is_ours && former.exit.is_none() {
                self.leaves(former.pid);
            }
            self.former.push_back(former);
            self.limit();
        }
    }

    /// A process executes a program, of which this is known.
    pub(super) fn exec(&mut self, pid: u32, program: Option<ProcessInfo>) {
        if let Some(thread) = self.threads.get_mut(&pid) {
            thread.program = None;
            let is_unread = |program: &ProcessInfo| program.arguments.is_empty();
            self.unknown_programs += u64::from(program.as_ref().is_some_and(is_unread));
            self.set_program(pid, program);
        }
    }

    fn set_program(&mut self, pid: u32, program: Option<ProcessInfo>) {
        let Some(thread) = self.threads.get_mut(&pid) else { return };
        let size = |info: &ProcessInfo| {
            let texts = info.arguments.iter().chain(&info.executable).chain(&info.cgroup);
            texts.map(|text| text.len() + size_of::<String>()).sum::<usize>()
        };
        match program {
            Some(program) if self.program_bytes + size(&program) <= MAX_PROGRAMS => {
                self.program_bytes += size(&program);
                if thread.parent == 0 {
                    thread.parent = program.parent;
                }
                thread.program = Some(Rc::new(program));
            }
            _ => self.unknown_programs += 1,
        }
    }

    pub(super) fn rename(&mut self, tid: u32, comm: Comm) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.comm = comm;
        }
    }

    /// The current name of a thread.
    pub(super) fn comm(&self, tid: u32) -> Comm {
        self.threads.get(&tid).map_or([0; 16], |thread| thread.comm)
    }

    pub(super) fn has_ended(&self, tid: u32) -> bool {
        self.threads.get(&tid).is_some_and(|thread| thread.exit.is_some())
    }

    pub(super) fn exit(&mut self, tid: u32, at: Timestamp) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let was_running = thread.exit.replace(at).is_none();
        let (pid, is_ours) = (thread.pid, thread.is_ours);
        if was_running && is_ours {
            self.leaves(pid);
        }
        self.ended.push_back((tid, at));
        self.limit();
    }

    /// Forgets the oldest of too many ended threads.
    fn limit(&mut self) {
        while self.ended.len() + self.former.len() > MAX_ENDED {
            if self.former.pop_front().is_some() {
                self.forgotten += 1;
                continue;
            }
            let Some((tid, at)) = self.ended.pop_front() else { return };
            // Its id can have been reused since.
            if let Entry::Occupied(thread) = self.threads.entry(tid) {
                if thread.get().exit == Some(at) {
                    thread.remove();
                    self.forgotten += 1;
                }
            }
        }
    }

    /// A thread of this process has ended.
    fn leaves(&mut self, pid: u32) {
        if let btree_map::Entry::Occupied(mut threads) = self.running.entry(pid) {
            *threads.get_mut() -= 1;
            if *threads.get() == 0 {
                threads.remove();
            }
        }
    }

    fn insert(&mut self, thread: Thread) {
        let is_running = |thread: &Thread| thread.is_ours && thread.exit.is_none();
        if is_running(&thread) {
            *self.running.entry(thread.pid).or_default() += 1;
        }
        let before = self.threads.insert(thread.tid, thread);
        if let Some(pid) = before.as_ref().filter(|before| is_running(before)).map(|b| b.pid) {
            self.leaves(pid);
        }
        // If it has not ended it is the same thread: the command, or a fork that was scanned
        // already.
        self.former.extend(before.filter(|thread| thread.exit.is_some()));
        self.limit();
    }

    fn is_ours(&self, tid: u32) -> bool {
        self.threads.get(&tid).is_some_and(|thread| thread.is_ours)
    }

    /// Whether a thread is drawn by name.
    pub(super) fn is_named(&self, tid: i32) -> bool {
        self.with_others || u32::try_from(tid).is_ok_and(|tid| self.is_ours(tid))
    }

    /// How a thread is drawn on a CPU: as itself, as the idle thread, or as another thread.
    pub(super) fn drawn<'a>(&mut self, task: Task<'a>, cpu: u32) -> Task<'a> {
        if task.tid == 0 || self.is_named(task.tid) {
            return task;
        }
        self.others_on.insert(cpu.into());
        Task::new(id(OTHERS.saturating_add(cpu)), b"other", 120)
    }

    /// Declares the tracks, and returns the ends of the command's threads.
    ///
    /// Called at the end of the recording: a track has only one name, which is the last name of its
    /// thread.
    pub(super) fn declare(
        self,
        is_idle_known: bool,
        sink: &mut impl Sink,
    ) -> io::Result<(Counts, Vec<(Timestamp, TrackId)>)> {
        let mut all: Vec<Thread> = self.threads.into_values().chain(self.former).collect();
        all.sort_by_key(|t| (!t.is_ours, t.pid, t.pid != t.tid, t.tid, t.exit.is_none(), t.exit));
        let (forgotten, unknown_programs) = (self.forgotten, self.unknown_programs);
        let mut counts = Counts { forgotten, unknown_programs, ..Counts::default() };
        let mut exits = Vec::new();
        let processes = all.chunk_by(|a, b| (a.is_ours, a.pid) == (b.is_ours, b.pid));
        for (threads, thread) in processes.flat_map(|p| p.iter().map(move |thread| (p, thread))) {
            let (pid, tid) = (id(thread.pid), id(thread.tid));
            if pid == tid {
                sink.track(&Track::process(pid, text(&thread.comm)).ordered())?;
                thread.draw_process(end_of_process(thread, threads), sink)?;
                counts.processes += usize::from(thread.is_ours);
            }
            let track = sink.track(&Track::thread(pid, tid, text(&thread.comm)))?;
            if thread.is_ours {
                counts.threads += 1;
                exits.extend(thread.exit.map(|at| (at, track)));
            }
        }
        if !self.others_on.is_empty() {
            let name = if is_idle_known { "other tasks" } else { "other tasks, or idle" };
            sink.track(&Track::process(id(OTHERS), name.as_bytes()))?;
        }
        let others_on: BTreeSet<u32> =
            self.others_on.ids().filter_map(|cpu| u32::try_from(cpu).ok()).collect();
        for cpu in others_on {
            let name = format!("others on CPU {cpu}");
            let tid = id(OTHERS.saturating_add(cpu));
            sink.track(&Track::thread(id(OTHERS), tid, name.as_bytes()))?;
        }
        exits.sort_by_key(|(at, _)| *at);
        Ok((counts, exits))
    }
}

impl Thread {
    /// Draws the process of a main thread.
    fn draw_process(&self, end: Option<Timestamp>, sink: &mut impl Sink) -> io::Result<()> {
        let program = self.program.as_deref();
        let line = program.map(ProcessInfo::command_line).unwrap_or_default();
        let container = program.and_then(ProcessInfo::container);
        let container = container.filter(|container| container.kind.is_container());
        let container = container.map(|container| container.id).unwrap_or_default();
        let executable = program.and_then(|program| program.executable.as_deref());
        let cgroup = program.and_then(|program| program.cgroup.as_deref()).unwrap_or_default();
        Process::new(id(self.pid), text(&self.comm))
            .parent(Some(id(self.parent)).filter(|parent| *parent > 0))
            .command_line(line.as_bytes())
            .executable(executable.unwrap_or_default().as_bytes())
            .cgroup(cgroup.as_bytes(), container.as_bytes())
            .started(self.start)
            .ended(end)
            .draw(sink)
    }
}

/// The end of the process of a main thread: that of the last of its threads, if all have ended.
fn end_of_process(main: &Thread, threads: &[Thread]) -> Option<Timestamp> {
    let end = main.exit?;
    // Another process may have had this id before, or has it now.
    let others = threads.iter().filter(|thread| thread.tid != thread.pid);
    let others = others.filter(|thread| {
        thread.start.is_none_or(|start| start < end && main.start.is_none_or(|main| main <= start))
    });
    let mut last = end;
    for thread in others {
        last = last.max(thread.exit?);
    }
    Some(last)
}

/// The current threads of a process.
fn threads(pid: u32, is_ours: bool) -> impl Iterator<Item = Thread> {
    procfs::threads_of(pid).into_iter().flatten().map(move |tid| {
        let comm = comm(&procfs::comm(pid, tid));
        Thread { comm, is_ours, ..Thread::new(pid, tid) }
    })
}

fn id(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_export::{ClockDomain, PerfettoSink};

    fn at(n: i64) -> Timestamp {
        Timestamp::from_nanos(n)
    }

    fn task(tid: i32) -> Task<'static> {
        Task::new(tid, b"x", 120)
    }

    #[test]
    fn what_the_command_starts_is_its_own() {
        let mut tasks = Tasks::new(false);
        tasks.follow(10);
        tasks.fork(at(0), (1, 1), (10, 10)); // the first record of the command, read after `follow`
        tasks.fork(at(0), (10, 10), (11, 11));
        tasks.fork(at(0), (11, 11), (11, 12)); // a thread of a child
        tasks.exit(10, at(5)); // a daemon: its parent is gone
        tasks.fork(at(0), (11, 12), (13, 13));
        tasks.fork(at(0), (1, 1), (20, 20));
        for (tid, named) in [(10, true), (11, true), (12, true), (13, true), (20, false)] {
            assert_eq!(tasks.is_named(tid), named, "{tid}");
        }
        assert_eq!(tasks.processes(), [11, 13].into(), "10 has ended");
        tasks.exit(11, at(6));
        assert_eq!(tasks.processes(), [11, 13].into(), "its second thread runs");
        tasks.exit(12, at(7));
        tasks.exit(12, at(7));
        assert_eq!(tasks.processes(), [13].into());
        let (counts, exits) = tasks
            .declare(true, &mut PerfettoSink::new(Vec::new(), ClockDomain::Monotonic))
            .unwrap();
        assert_eq!((counts.threads, counts.processes, exits.len()), (4, 3, 3));
    }

    #[test]
    fn a_number_that_is_given_again_is_another_thread() {
        let mut tasks = Tasks::new(false);
        tasks.follow(10);
        tasks.fork(at(0), (10, 10), (11, 11));
        tasks.exit(11, at(1));
        assert!(tasks.is_named(11), "it is switched away from after its end");
        tasks.fork(at(0), (1, 1), (11, 11));
        assert!(!tasks.is_named(11), "somebody else's");
        tasks.fork(at(0), (10, 10), (11, 11));
        assert!(tasks.is_named(11));
        let (counts, exits) = tasks
            .declare(true, &mut PerfettoSink::new(Vec::new(), ClockDomain::Monotonic))
            .unwrap();
        assert_eq!((counts.threads, exits.len()), (3, 1));
    }

    /// A command that starts processes for hours: what is remembered has a limit, with and without
    /// reused ids.
    #[test]
    fn memory_of_ended_threads_is_limited() {
        const EXTRA: u32 = 1000;
        let limit = u32::try_from(MAX_ENDED).unwrap();
        for ids in [1 << 10, u32::MAX] {
            let mut tasks = Tasks::new(false);
            tasks.follow(10);
            for n in 0..limit + EXTRA {
                let tid = 11 + n % ids;
                tasks.fork(at(0), (10, 10), (tid, tid));
                tasks.exit(tid, at(n.into()));
                assert!(tasks.is_named(i32::try_from(tid).unwrap()), "its last switch comes later");
            }
            assert!(tasks.ended.len() + tasks.former.len() <= MAX_ENDED);
            assert!(tasks.threads.len() <= MAX_ENDED + 1);
            assert_eq!(tasks.processes(), [10].into());
            let sink = &mut PerfettoSink::new(io::sink(), ClockDomain::Monotonic);
            let (counts, exits) = tasks.declare(true, sink).unwrap();
            let total = u64::try_from(counts.threads).unwrap() + counts.forgotten;
            assert_eq!(total, u64::from(limit + EXTRA) + 1, "each is drawn or counted");
            assert_eq!(exits.len(), counts.threads - 1);
        }
    }

    #[test]
    fn others_are_one_task_of_each_cpu() {
        let mut tasks = Tasks::new(false);
        tasks.follow(10);
        assert_eq!(tasks.drawn(task(10), 1).tid, 10);
        assert_eq!(tasks.drawn(task(0), 1).tid, 0);
        assert_eq!(tasks.drawn(task(77), 1).tid, tasks.drawn(task(78), 1).tid);
        assert_ne!(tasks.drawn(task(77), 0).tid, tasks.drawn(task(77), 1).tid);
        assert_eq!(tasks.drawn(task(77), u32::MAX - 1).comm, b"other");
        assert_eq!(Tasks::new(true).drawn(task(77), 1).tid, 77);
    }
}
