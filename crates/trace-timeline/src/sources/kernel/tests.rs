use super::*;
use crate::correlate::{Correlator, Derived, Kernel};

fn at(n: i64) -> Timestamp {
    Timestamp::from_nanos(n)
}

const fn task(tid: u32) -> Task<'static> {
    Task::new(tid, b"x", 120)
}

const fn tid(tid: u32) -> ThreadRef {
    ThreadRef::Tid(tid)
}

struct Run {
    source: KernelSource,
    tables: Tables,
    events: Vec<Event>,
}

impl Run {
    fn new() -> Self {
        let (source, tables) = (KernelSource::new(), Tables::new());
        Self { source, tables, events: Vec::new() }
    }

    fn push(&mut self, time: i64, record: Record<'_>) -> &[Event] {
        self.events.clear();
        self.source.push(at(time), &record, &mut self.tables, &mut self.events);
        &self.events
    }
}

const fn switch(prev: u32, prev_state: i64, next: u32) -> Record<'static> {
    switch_of(task(prev), prev_state, task(next))
}

const fn switch_of(prev: Task<'static>, prev_state: i64, next: Task<'static>) -> Record<'static> {
    Record::Switch { cpu: 0, prev, prev_state, next }
}

#[test]
fn states_of_all_kernels() {
    assert_eq!(left(0), ThreadState::Preempted);
    for preempted in [0x100, 0x400, 0x800, 0x1000] {
        assert_eq!(left(preempted), ThreadState::Preempted, "{preempted:#x}");
    }
    assert_eq!(left(1), ThreadState::Sleeping);
    assert_eq!(left(2), ThreadState::Blocked);
    assert_eq!(left(0x80), ThreadState::Sleeping); // an idle kernel thread
    assert_eq!((left(0x10), left(0x20)), (ThreadState::Dead, ThreadState::Dead));
}

/// Two wake-ups by different threads say nothing about the time between them.
#[cfg(feature = "perf")]
#[test]
fn wake_ups_alone_are_no_context_switches() {
    let mut run = Run::new();
    run.source.set_without_switches();
    for (time, by) in [(10, 7), (20, 8), (30, 7)] {
        let (flags, stack, is_new) = (Some(0), None, false);
        let (cpu, by, task, target_cpu) = (0, Some(tid(by)), task(9), 1);
        let events =
            run.push(time, Record::Waking { cpu, by, flags, task, target_cpu, is_new, stack });
        let flows = |event: &&Event| matches!(event.kind, EventKind::Flow { .. });
        assert_eq!(events.iter().filter(flows).count(), 1);
        let others = |event: &&Event| {
            matches!(event.kind, EventKind::Switch { .. } | EventKind::Loss { .. })
        };
        assert_eq!(events.iter().find(others), None);
    }
    assert_eq!(run.source.stats(), KernelStats { wakings: 3, ..KernelStats::default() });
}

/// Two recordings of one machine, one of the scheduler and one of samples.
#[test]
fn recordings_share_cpus_processes_and_threads() {
    let mut run = Run::new();
    let start = |pid, tid| {
        let parent = Some((1, 1));
        Record::Thread { pid, tid, parent, comm: b"old", is_new: true }
    };
    run.push(1_000, start(7, 7));
    run.push(2_000, switch(0, 0, 7));
    let before = run.tables.entities.len();
    let name = |tables: &Tables| {
        let process = tables.entities.process(7).and_then(|id| tables.entities.get(id));
        process.map(|process| tables.str(process.name).into_owned())
    };
    assert_eq!(name(&run.tables).as_deref(), Some("x"));
    let mut other = KernelSource::new();
    let mut push = |time, record| {
        let mut events = Vec::new();
        other.push(at(time), &record, &mut run.tables, &mut events);
        events
    };
    let sample = |tid| Record::Sample {
        cpu: Some(0),
        pid: 7,
        tid,
        event: SampledEventId::default(),
        stack: None,
        weight: 1,
    };
    // It saw the start a little later, when the first one had read a new name.
    push(1_700, start(7, 7));
    let events = push(2_500, sample(7));
    // The CPU may have been mentioned later by the first one.
    let [Event { kind: EventKind::Start { .. }, .. }, Event { kind: EventKind::Sample { .. }, .. }] =
        events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(run.tables.entities.len(), before);
    assert_eq!(name(&run.tables).as_deref(), Some("x"));
    // Losses of samples say nothing about the scheduler.
    let mut push = |time, record| {
        let mut events = Vec::new();
        other.push(at(time), &record, &mut run.tables, &mut events);
        events
    };
    let lost = push(2_600, Record::LostSamples { cpu: 0, count: 3 });
    assert!(matches!(
        lost[..],
        [Event { kind: EventKind::Loss { kind: LossKind::Samples, count: Some(3), .. }, .. }]
    ));
    // The thread id is used again.
    push(9_000_000, start(7, 7));
    assert_eq!(run.tables.entities.len(), before + 2, "a process and a thread");
}

/// Its id is used again between the two.
#[test]
fn a_thread_of_another_process_in_another_recording_is_another_one() {
    let listed = |pid, tid| Record::Thread { pid, tid, parent: None, comm: b"x", is_new: false };
    let mut run = Run::new();
    run.push(1_000, listed(7, 8));
    let first = run.tables.entities.thread(8).unwrap();
    let (mut later, mut events) = (KernelSource::new(), Vec::new());
    later.push(at(9_000_000), &listed(9, 8), &mut run.tables, &mut events);
    let second = run.tables.entities.thread(8).unwrap();
    let process_of = |thread| {
        let entities = &run.tables.entities;
        entities.process_of(thread).and_then(|id| entities.get(id)).map(|process| process.number)
    };
    assert_eq!([first, second].map(process_of), [Some(7), Some(9)]);
    // The first one is still read.
    let last = run.push(2_000, switch(0, 0, 8)).last().copied();
    let next = last.and_then(|event| match event.kind {
        EventKind::Switch { next, .. } => next,
        _ => None,
    });
    assert_eq!(next, Some(first));
}

#[test]
fn a_missing_switch_is_a_loss_since_the_last_record() {
    let mut run = Run::new();
    run.push(10, switch(0, 0, 5));
    let events = run.push(30, switch(6, 1, 0)).to_vec();
    let loss = events.iter().find_map(|event| match event.kind {
        EventKind::Loss { kind, since, .. } => Some((kind, since)),
        _ => None,
    });
    assert_eq!(loss, Some((LossKind::UnreportedSwitch, at(10))));
    assert_eq!(run.source.stats().unreported, 1);
}

/// The thread that runs is in other records too.
#[test]
fn a_waker_that_was_not_switched_in_shows_a_missing_switch() {
    let mut run = Run::new();
    run.push(10, switch(5, 0x100, 0));
    let waking = |by| Record::Waking {
        cpu: 0,
        by: Some(tid(by)),
        flags: Some(0x08),
        task: task(9),
        target_cpu: 1,
        is_new: false,
        stack: None,
    };
    run.push(20, waking(0));
    assert_eq!(run.source.stats().unreported, 0);
    let events = run.push(40, waking(5)).to_vec();
    assert_eq!(run.source.stats().unreported, 1);
    let since = events.iter().find_map(|event| match event.kind {
        EventKind::Loss { kind: LossKind::UnreportedSwitch, since, .. } => Some(since),
        _ => None,
    });
    assert_eq!(since, Some(at(20)));
    let running = events.iter().find_map(|event| match event.kind {
        EventKind::Switch { next, .. } => next,
        _ => None,
    });
    let key = running.and_then(|id| run.tables.entities.get(id)).map(|e| e.number);
    assert_eq!(key, Some(5));
    run.push(50, waking(5));
    run.push(60, switch(5, 1, 0));
    assert_eq!(run.source.stats().unreported, 1);
}

/// `PERF_RECORD_SWITCH_CPU_WIDE` beside `sched_switch`.
#[test]
fn a_switch_without_a_tracepoint_is_that_of_its_other_record() {
    let mut run = Run::new();
    let runs =
        |next, prev: Option<u32>| Record::Runs { cpu: 0, thread: tid(next), prev: prev.map(tid) };
    let has_loss =
        |events: &[Event]| events.iter().any(|event| matches!(event.kind, EventKind::Loss { .. }));
    run.push(10, switch(5, 1, 0));
    assert_eq!(run.push(11, runs(0, Some(5))), []);
    assert!(!has_loss(run.push(20, runs(6, Some(0)))));
    let last = run.events.last().unwrap().kind;
    assert!(matches!(last, EventKind::Switch { prev: None, next: Some(_), .. }), "{last:?}");
    assert!(!has_loss(run.push(30, switch(6, 1, 0))));
    let counts = |run: &Run| (run.source.stats().recovered, run.source.stats().unreported);
    assert_eq!((counts(&run), run.source.stats().switches), ((1, 0), 3));

    // A thread that has ended has no id in the record.
    run.push(35, switch(0, 0, 6));
    run.push(36, Record::Exit { tid: 6 });
    assert!(!has_loss(run.push(40, runs(7, None))));
    let ended = run.tables.entities.iter().find(|(_, entity)| entity.number == 6).unwrap().1;
    assert_eq!((counts(&run), ended.end), ((2, 0), Some(at(40))));
    // Nor has one that is not of interest.
    run.push(41, switch_of(task(7), 1, Task::OTHER));
    assert!(!has_loss(run.push(42, runs(7, None))));
    assert_eq!(counts(&run), (3, 0));

    // Another thread had the CPU meanwhile.
    assert!(has_loss(run.push(50, runs(9, Some(8)))));
    assert!(has_loss(run.push(52, runs(7, None))));
    assert_eq!(run.push(55, runs(7, None)), []);
    let events = run.push(60, switch(3, 1, 0));
    let since = events.iter().find_map(|event| match event.kind {
        EventKind::Loss { since, .. } => Some(since),
        _ => None,
    });
    assert_eq!((since, counts(&run)), (Some(at(55)), (3, 3)));
}

#[test]
fn processes_and_machines_have_attributes() {
    let mut run = Run::new();
    let (release, architecture) = (&b"6.18.0"[..], &b"x86_64"[..]);
    run.push(1, Record::Machine { name: b"host", release, architecture });
    let describe = |executable| Record::Process {
        pid: 7,
        attributes: ProcessAttributes {
            executable,
            build_id: &[0xab, 0x01],
            ..ProcessAttributes::default()
        },
    };
    run.push(2, describe(b"/bin/old"));
    run.push(3, Record::Thread { pid: 7, tid: 7, parent: None, comm: b"a", is_new: false });
    run.push(4, describe(b"/bin/new"));
    run.push(5, describe(b""));
    run.push(6, switch(0, 0, 7));
    let entities = &run.tables.entities;
    let process = entities.process(7).unwrap();
    let attribute = |id, attribute| {
        entities.attribute(id, attribute).map(|value| run.tables.str(value).into_owned())
    };
    assert_eq!(attribute(process, Attribute::Executable).as_deref(), Some("/bin/new"));
    assert_eq!(attribute(process, Attribute::BuildId).as_deref(), Some("ab01"));
    assert_eq!(attribute(process, Attribute::Cgroup), None);
    let thread = entities.iter().find(|(_, e)| e.kind == EntityKind::Thread).unwrap().1;
    assert_eq!(thread.parent, Some(process));
    let cpu = entities.iter().find(|(_, e)| e.kind == EntityKind::Cpu).unwrap().1;
    let machine = cpu.parent.unwrap();
    assert_eq!(attribute(machine, Attribute::KernelRelease).as_deref(), Some("6.18.0"));
}

/// A tree of processes: what was there before, forks and `execve(2)`, and ends.
#[test]
fn processes_have_parents_programs_and_ends() {
    let mut run = Run::new();
    let existing = |pid, parent| {
        let parent = Some((parent, parent));
        Record::Thread { pid, tid: pid, parent, comm: b"old", is_new: false }
    };
    let new = |pid, tid, parent| {
        let parent = Some((parent, parent));
        Record::Thread { pid, tid, parent, comm: b"", is_new: true }
    };
    let program = |pid, command_line| Record::Process {
        pid,
        attributes: ProcessAttributes {
            command_line,
            cgroup: b"/app",
            ..ProcessAttributes::default()
        },
    };
    // A child that is listed before its parent; the parent of 9 is the idle process.
    run.push(1, existing(5, 9));
    run.push(1, existing(9, 0));
    run.push(1, program(9, b"init -x"));
    run.push(2, new(20, 20, 9));
    run.push(3, Record::Comm { tid: 20, comm: b"child", by_exec: false });
    run.push(4, new(20, 21, 20));
    let get = |run: &Run, pid| {
        let tables = &run.tables;
        let id = tables.entities.process(pid).unwrap();
        let process = *tables.entities.get(id).unwrap();
        let text = |attribute| {
            tables.entities.attribute(id, attribute).map(|value| tables.str(value).into_owned())
        };
        let line = text(Attribute::CommandLine);
        (process, tables.str(process.name).into_owned(), line, text(Attribute::Cgroup))
    };
    let first = run.tables.entities.process(9);
    let (init, name, line, _) = get(&run, 9);
    assert_eq!((init.parent, init.start, &name[..]), (None, None, "old"));
    assert_eq!(line.as_deref(), Some("init -x"));
    assert_eq!((get(&run, 5).0.parent, &get(&run, 5).1[..]), (first, "old"));
    let (child, name, line, cgroup) = get(&run, 20);
    assert_eq!((child.parent, child.start, &name[..]), (first, Some(at(2)), "child"));
    assert_eq!((line.as_deref(), cgroup.as_deref()), (Some("init -x"), Some("/app")));

    run.push(5, Record::Comm { tid: 20, comm: b"prog", by_exec: true });
    let (.., line, cgroup) = get(&run, 20);
    assert_eq!((line, cgroup.as_deref()), (None, Some("/app")), "the new program is not known");
    run.push(6, program(20, b"./prog 1"));
    assert_eq!(get(&run, 20).2.as_deref(), Some("./prog 1"));

    // The main thread ends first.
    run.push(7, Record::Exit { tid: 20 });
    run.push(8, switch(20, 0x10, 21));
    assert_eq!(get(&run, 20).0.end, None);
    run.push(9, Record::Exit { tid: 21 });
    assert_eq!(get(&run, 20).0.end, Some(at(9)), "the switch away from it can be missing");
    run.push(10, switch(21, 0x10, 0));
    assert_eq!(get(&run, 20).0.end, Some(at(10)));
    // The id of a process whose end was lost.
    let before = run.tables.entities.process(5).unwrap();
    run.push(11, Record::Lost { cpu: 0, count: 1 });
    run.push(11, new(5, 5, 9));
    let (again, ..) = get(&run, 5);
    assert_eq!((again.start, again.end), (Some(at(11)), None));
    assert_eq!(run.tables.entities.get(before).unwrap().end, Some(at(11)));
}

/// No record says that the last thread left a CPU that went offline.
#[test]
fn a_loss_without_a_number_ends_what_runs() {
    let mut run = Run::new();
    run.push(1, switch(0, 0, 5));
    let events = run.push(2, Record::Lost { cpu: 0, count: 0 }).to_vec();
    let [event] = &events[..] else { panic!("{events:?}") };
    let EventKind::Loss { kind: LossKind::SchedulerRecords, count: None, .. } = event.kind else {
        panic!("{event:?}")
    };
    // The CPU is back.
    run.push(3, switch(7, 1, 0));
    let stats = run.source.stats();
    assert_eq!((stats.switches, stats.unreported, stats.lost), (2, 0, 0));
}

/// Only the state of the thread that ran there is not known.
#[test]
fn a_thread_sleeps_while_a_cpu_goes_offline() {
    let mut run = Run::new();
    let mut events = Vec::new();
    let lost = Record::Offline { cpu: 0 };
    for (time, record) in
        [(1, switch(0, 0, 8)), (2, switch(8, 1, 5)), (4, lost), (9, switch(0, 0, 8))]
    {
        events.extend_from_slice(run.push(time, record));
    }
    let [sleeper, last] = [8, 5].map(|tid| run.tables.entities.thread(tid).unwrap());
    let (mut correlator, mut known) = (Correlator::new(), Vec::new());
    let mut each = |derived: Derived<'_>| {
        if let Derived::Interval(interval) = derived {
            let (start, end) = (interval.start.nanos(), interval.end.nanos());
            known.push((interval.subject, start, end, interval.kernel));
        }
    };
    for event in &events {
        correlator.push(event, &run.tables.entities, &mut each);
    }
    correlator.finish(&mut each);
    assert!(known.contains(&(sleeper, 2, 9, Kernel::Sleeping)), "{known:?}");
    let at_end = known.iter().rfind(|(subject, ..)| *subject == last).map(|(.., kernel)| *kernel);
    assert_eq!(at_end, Some(Kernel::Unknown));
}

/// Nothing is missing of the threads that have exited.
#[test]
fn a_thread_that_has_exited_does_not_end_with_a_cpu() {
    let mut run = Run::new();
    for (time, record) in [
        (1, of_seven(7, true)),
        (2, switch(0, 0, 7)),
        (3, Record::Exit { tid: 7 }),
        (4, switch(7, 0x100, 5)),
        (9, Record::Offline { cpu: 1 }),
    ] {
        run.push(time, record);
    }
    assert!(run.source.known(7).is_some_and(|thread| !thread.has_ended));
}

/// A thread of process 7.
const fn of_seven(tid: u32, is_new: bool) -> Record<'static> {
    Record::Thread { pid: 7, tid, parent: None, comm: b"old", is_new }
}

/// A recorder lists some threads of a process, and the main thread last or not at all.
#[test]
fn a_process_has_the_name_of_its_main_thread() {
    let listed = |tid, comm| Record::Thread { pid: 100, tid, parent: None, comm, is_new: false };
    let name = |run: &Run| {
        let process = run.tables.entities.process(100).unwrap();
        run.tables.str(run.tables.entities.get(process).unwrap().name).into_owned()
    };
    let mut run = Run::new();
    run.push(1, listed(105, b"worker-3"));
    assert_eq!(name(&run), "");
    run.push(1, listed(100, b"server"));
    assert_eq!(name(&run), "server");
    let worker = run.tables.entities.thread(105).unwrap();
    assert_eq!(run.tables.str(run.tables.entities.get(worker).unwrap().name), "worker-3");
    // It was in a switch before.
    let mut run = Run::new();
    run.push(1, switch(0, 0, 100));
    run.push(2, listed(105, b"worker-3"));
    assert_eq!(name(&run), "x");
}

/// The record of the process's own begin is lost.
#[test]
fn the_process_of_a_new_thread_is_one_without_a_start() {
    let mut run = Run::new();
    let (pid, tid, parent) = (100, 105, Some((100, 100)));
    run.push(5, Record::Thread { pid, tid, parent, comm: b"", is_new: true });
    let entities = &run.tables.entities;
    let of_kind = |kind| entities.iter().filter(move |(_, entity)| entity.kind == kind);
    let processes: Vec<_> = of_kind(EntityKind::Process).collect();
    let [(id, process)] = processes[..] else { panic!("{processes:?}") };
    assert_eq!((process.number, process.parent, process.start), (100, None, None));
    let threads: Vec<_> = of_kind(EntityKind::Thread).collect();
    let [(_, thread)] = threads[..] else { panic!("{threads:?}") };
    assert_eq!((thread.number, thread.parent, thread.start), (105, Some(id), Some(at(5))));
}

/// Of a damaged file.
#[test]
fn a_cpu_has_a_number_that_linux_gives() {
    let mut run = Run::new();
    for number in [0, switches::MAX_CPUS - 1, switches::MAX_CPUS, u32::MAX] {
        let (cpu, event, stack, weight) = (Some(number), SampledEventId::default(), None, 1);
        let last = *run
            .push(1, Record::Sample { cpu, pid: 7, tid: 7, event, stack, weight })
            .last()
            .unwrap();
        let EventKind::Sample { cpu, .. } = last.kind else { panic!("{last:?}") };
        assert_eq!(cpu.is_some(), number < switches::MAX_CPUS);
    }
    assert_eq!(run.source.cpus.iter().flatten().count(), 2);
    assert_eq!(run.tables.dropped().entities, 2);
}

/// Another source can have found its process, which has other threads.
#[test]
fn a_process_does_not_end_with_a_thread_that_was_not_known_as_one_of_it() {
    let mut run = Run::new();
    run.push(1, of_seven(7, false));
    run.push(2, switch(0, 0, 9));
    let process = run.tables.entities.process(7).unwrap();
    let thread = run.tables.entities.thread(9).unwrap();
    run.tables.entities.get_mut(thread).unwrap().parent = Some(process);
    run.push(3, Record::Exit { tid: 9 });
    assert_eq!(run.tables.entities.get(process).unwrap().end, None);
    run.push(4, Record::Exit { tid: 7 });
    assert_eq!(run.tables.entities.get(process).unwrap().end, Some(at(4)));
}

/// As Go's `syscall.Exec` on any thread: the kernel gives the caller the id of the main thread.
#[test]
fn a_thread_that_executes_a_program_becomes_the_main_thread() {
    let mut run = Run::new();
    for (time, record) in [
        (1, of_seven(7, true)),
        (2, of_seven(9, true)),
        (3, switch(0, 0, 7)),
        (4, Record::Exit { tid: 7 }),
        (5, switch(7, 0x40, 9)),
    ] {
        run.push(time, record);
    }
    let events = run.push(6, Record::Comm { tid: 7, comm: b"new", by_exec: true }).to_vec();
    let ends = events.iter().filter(|event| matches!(event.kind, EventKind::End { .. }));
    assert_eq!(ends.count(), 1, "the thread with the former id");
    // It has the CPU.
    assert!(!run.push(7, switch(7, 1, 0)).is_empty());
    let stats = run.source.stats();
    assert_eq!((stats.switches, stats.unreported), (3, 0));
    let entities = &run.tables.entities;
    let process = entities.process(7).unwrap();
    assert_eq!(entities.get(process).unwrap().end, None);
    let threads: Vec<_> = entities
        .iter()
        .filter(|(_, entity)| entity.kind == EntityKind::Thread)
        .map(|(_, thread)| (thread.number, thread.parent, thread.start, thread.end))
        .collect();
    let thread = |tid, start, end: Option<i64>| (tid, Some(process), Some(at(start)), end.map(at));
    assert_eq!(threads, [thread(7, 1, Some(5)), thread(9, 2, Some(6)), thread(7, 6, None)]);
    // The process ends with it.
    run.push(8, Record::Exit { tid: 7 });
    assert_eq!(run.tables.entities.get(process).unwrap().end, Some(at(8)));
}

/// A recorder lists the threads of a command that it has started, as if they existed at the begin.
#[test]
fn a_thread_that_is_listed_before_it_is_created_is_one_thread() {
    let mut run = Run::new();
    run.push(1, of_seven(7, false));
    run.push(1, of_seven(9, false));
    for tid in [7, 9] {
        let events = run.push(5, of_seven(tid, true)).to_vec();
        let [Event { time, kind: EventKind::Start { entity } }] = events[..] else {
            panic!("{events:?}")
        };
        let thread = run.tables.entities.get(entity).unwrap();
        assert_eq!((time, thread.number), (at(5), tid.into()));
        assert_eq!((thread.start, thread.end), (Some(at(5)), None));
    }
    run.push(6, Record::In { cpu: 0, tid: 9 });
    let entities = &run.tables.entities;
    let numbers = |kind| {
        let of_kind = move |(_, entity): &(EntityId, &Entity)| entity.kind == kind;
        entities.iter().filter(of_kind).map(|(_, entity)| (entity.number, entity.start))
    };
    let start = Some(at(5));
    assert_eq!(numbers(EntityKind::Thread).collect::<Vec<_>>(), [(7, start), (9, start)]);
    let process = entities.process(7).and_then(|id| entities.get(id)).unwrap();
    assert_eq!((process.start, process.end), (start, None));
    let of_seven = numbers(EntityKind::Process).filter(|(number, _)| *number == 7);
    assert_eq!(of_seven.count(), 1);
}

/// The exit of the one before was not recorded.
#[test]
fn a_new_thread_is_not_the_one_that_ends_with_its_id() {
    let mut run = Run::new();
    run.push(1, of_seven(9, false));
    run.push(2, switch(0, 0, 9));
    run.push(3, of_seven(9, true));
    let is_thread = |entity: &&Entity| (entity.kind, entity.number) == (EntityKind::Thread, 9);
    let entities = run.tables.entities.iter().map(|(_, entity)| entity);
    let threads: Vec<_> =
        entities.filter(is_thread).map(|thread| (thread.start, thread.end)).collect();
    assert_eq!(threads, [(None, Some(at(3))), (Some(at(3)), None)]);
}

/// It existed before the recording, and the switch away from it is not recorded.
#[test]
fn the_former_main_thread_is_another_entity() {
    let mut run = Run::new();
    run.push(1, of_seven(7, false));
    run.push(1, of_seven(9, false));
    run.push(4, Record::Exit { tid: 7 });
    run.push(4, Record::Comm { tid: 7, comm: b"new", by_exec: true });
    let entities = &run.tables.entities;
    let threads = entities.iter().filter(|(_, entity)| entity.kind == EntityKind::Thread);
    let threads: Vec<_> =
        threads.map(|(_, thread)| (thread.number, thread.start, thread.end)).collect();
    let (start, end) = (None, Some(at(4)));
    assert_eq!(threads, [(7, start, end), (9, start, end), (7, Some(at(4)), None)]);
}

/// The kernel uses the new id before it reports the new name.
#[test]
fn a_thread_has_the_id_of_the_main_thread_before_it_executes_a_program() {
    let waking = Record::Waking {
        cpu: 0,
        by: Some(tid(7)),
        flags: Some(0),
        task: task(15),
        target_cpu: 1,
        is_new: false,
        stack: None,
    };
    for record in [waking, switch(7, 2, 0)] {
        let mut run = Run::new();
        for (time, record) in [
            (1, of_seven(7, true)),
            (2, of_seven(9, true)),
            (3, switch(0, 0, 7)),
            (4, Record::Exit { tid: 7 }),
            (5, switch(7, 0x20, 9)),
            (6, record),
        ] {
            run.push(time, record);
        }
        run.push(7, Record::Comm { tid: 7, comm: b"new", by_exec: true });
        assert_eq!(run.source.stats().unreported, 0);
        let entities = &run.tables.entities;
        let process = entities.process(7).unwrap();
        let of_process = |(id, entity): (EntityId, &Entity)| {
            (entity.parent == Some(process)).then(|| {
                let name = run.tables.str(entity.name).into_owned();
                (entity.number, name, entity.end, id)
            })
        };
        let threads: Vec<_> = entities.iter().filter_map(of_process).collect();
        let [main, former, new] = &threads[..] else { panic!("{threads:?}") };
        assert_eq!((main.0, main.2, former.0, former.2), (7, Some(at(5)), 9, Some(at(6))));
        assert_eq!((new.0, &new.1[..], new.2), (7, "new", None));
    }
}

/// The events of a thread end with it, so no `PERF_RECORD_SWITCH` follows its exit.
#[test]
fn a_thread_ends_at_its_exit_if_only_its_own_switches_are_recorded() {
    let mut run = Run::new();
    run.push(1, of_seven(7, false));
    run.push(1, of_seven(9, true));
    run.push(2, Record::In { cpu: 0, tid: 9 });
    let events = run.push(3, Record::Exit { tid: 9 }).to_vec();
    let [
        Event { kind: EventKind::Switch { prev, left: ThreadState::Dead, next: None, .. }, .. },
        Event { time: end, kind: EventKind::End { entity } },
    ] = events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((prev, end), (Some(entity), at(3)));
    assert_eq!(run.tables.entities.get(entity).unwrap().end, Some(at(3)));
    // One that waits, too.
    run.push(4, Record::In { cpu: 1, tid: 7 });
    run.push(5, Record::Out { cpu: 1, tid: 7, preempted: false });
    let events = run.push(6, Record::Exit { tid: 7 }).to_vec();
    assert!(matches!(events[..], [Event { kind: EventKind::End { .. }, .. }]), "{events:?}");
    let process = run.tables.entities.process(7).unwrap();
    assert_eq!(run.tables.entities.get(process).unwrap().end, Some(at(6)));
    // A recording of all threads of a CPU has the switch, and the id is used again.
    let is_end = |event: &Event| matches!(event.kind, EventKind::End { .. });
    assert_eq!(run.push(7, Record::Out { cpu: 1, tid: 7, preempted: false }), []);
    assert!(!run.push(8, of_seven(9, true)).iter().any(is_end));
    assert_eq!(run.source.stats().unreported, 0);
    let threads = run.tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Thread);
    let threads: Vec<_> = threads.map(|(_, thread)| (thread.number, thread.end)).collect();
    assert_eq!(threads, [(7, Some(at(6))), (9, Some(at(3))), (9, None)]);
}

/// The records of its way from the first CPU are missing.
#[test]
fn a_thread_that_ends_leaves_the_cpu_where_it_was_seen_last() {
    let mut run = Run::new();
    run.push(1, of_seven(9, true));
    run.push(2, Record::In { cpu: 0, tid: 9 });
    run.push(3, Record::In { cpu: 1, tid: 9 });
    let events = run.push(4, Record::Exit { tid: 9 }).to_vec();
    let [
        Event { kind: EventKind::Switch { cpu, left: ThreadState::Dead, .. }, .. },
        Event { kind: EventKind::End { .. }, .. },
    ] = events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(run.tables.entities.get(cpu).unwrap().number, 1);
}

/// The times at which a thread ends, and the end of its last interval.
fn ends(events: &[Event], tables: &Tables, thread: EntityId) -> (Vec<i64>, Option<i64>) {
    let end = EventKind::End { entity: thread };
    let times = events.iter().filter(|event| event.kind == end).map(|event| event.time.nanos());
    let (mut correlator, mut last) = (Correlator::new(), None);
    let mut each = |derived: Derived<'_>| match derived {
        Derived::Interval(interval) if interval.subject == thread => {
            last = Some(interval.end.nanos());
        }
        _ => {}
    };
    for event in events {
        correlator.push(event, &tables.entities, &mut each);
    }
    correlator.finish(&mut each);
    (times.collect(), last)
}

/// As of `perf record -F`.
#[cfg(feature = "perf")]
#[test]
fn a_thread_ends_at_its_exit_if_no_switches_are_recorded() {
    let mut run = Run::new();
    run.source.set_without_switches();
    let sample = |tid| {
        let (cpu, event, stack, weight) = (Some(0), SampledEventId::default(), None, 1);
        Record::Sample { cpu, pid: tid, tid, event, stack, weight }
    };
    let mut events = Vec::new();
    for (time, record) in
        [(1, of_seven(7, true)), (5, sample(7)), (10, Record::Exit { tid: 7 }), (100, sample(8))]
    {
        events.extend_from_slice(run.push(time, record));
    }
    let thread = run.tables.entities.thread(7).unwrap();
    assert_eq!(ends(&events, &run.tables, thread), (vec![10], Some(10)));
}

/// The switches away from threads that have exited are lost. One that has a CPU by other records leaves it later.
#[test]
fn a_thread_that_has_exited_ends_with_a_loss() {
    let exits = [(1, of_seven(7, true)), (2, switch(0, 0, 7)), (3, Record::Exit { tid: 7 })];
    let lost = |cpu| Record::Lost { cpu, count: 5 };
    let preempted = 0x100;
    let of_its_cpu = [(9, lost(0)), (12, switch(5, 1, 0)), (20, lost(0)), (60, switch(0, 0, 5))];
    let of_another = [(9, lost(1)), (12, switch(7, 0x10, 0)), (20, lost(0))];
    // It waits for a CPU, and gets it after its end.
    let of_its_queue = [
        (4, switch(7, preempted, 5)),
        (9, lost(1)),
        (12, switch(5, preempted, 7)),
        (13, switch(7, 0x10, 0)),
    ];
    for (records, end, known) in
        [(&of_its_cpu[..], 9, 3), (&of_another, 12, 12), (&of_its_queue, 9, 3)]
    {
        let mut run = Run::new();
        let mut events = Vec::new();
        for (time, record) in exits.iter().chain(records) {
            events.extend_from_slice(run.push(*time, *record));
        }
        let thread = run.tables.entities.thread(7).unwrap();
        assert_eq!(ends(&events, &run.tables, thread), (vec![end], Some(end)));
        // The record of its exit says when it was.
        let entity = run.tables.entities.get(thread).unwrap();
        assert_eq!((entity.number, entity.end), (7, Some(at(known))));
        assert_eq!(run.source.stats().unreported, 0);
        // Its number is not kept.
        assert!(run.source.exiting.is_empty() && run.source.known(7).is_none());
    }
}

/// `sched_migrate_task` and `sched_wakeup`.
#[test]
fn a_record_says_in_which_queue_a_thread_waits() {
    let mut run = Run::new();
    run.push(1, switch(7, 1, 0));
    for from in [Some(0), None] {
        let event =
            *run.push(2, Record::Queue { cpu: 0, task: task(7), from, to: 3 }).last().unwrap();
        let EventKind::Queue { thread, from: before, cpu } = event.kind else {
            panic!("{event:?}")
        };
        let cpu_of = |id: EntityId| run.tables.entities.get(id).map(|cpu| cpu.number);
        assert_eq!(Some(thread), run.tables.entities.thread(7));
        assert_eq!((before.and_then(cpu_of), cpu_of(cpu)), (from.map(i64::from), Some(3)));
    }
}

#[test]
fn a_reused_thread_id_is_another_entity() {
    let mut run = Run::new();
    let fork = |tid| Record::Thread { pid: 1, tid, parent: None, comm: b"a", is_new: true };
    run.push(1, fork(7));
    run.push(2, switch(0, 0, 7));
    run.push(3, Record::Exit { tid: 7 });
    let last = run.push(4, switch(7, 0x10, 0)).last().copied().unwrap();
    assert!(matches!(last.kind, EventKind::End { .. }), "{last:?}");
    run.push(5, fork(7));
    let entities = &run.tables.entities;
    let threads: Vec<_> = entities.iter().filter(|(_, e)| e.kind == EntityKind::Thread).collect();
    assert_eq!(threads.len(), 2);
    assert_eq!((threads[0].1.start, threads[0].1.end), (Some(at(1)), Some(at(4))));
    assert_eq!((threads[1].1.start, threads[1].1.end), (Some(at(5)), None));
}

/// The start of the other process with its id is missing. Its main thread can be in a switch.
#[test]
fn a_new_thread_joins_no_process_that_has_ended() {
    for is_main_seen in [false, true] {
        let mut run = Run::new();
        for (time, record) in [
            (1, of_seven(7, true)),
            (2, switch(0, 0, 7)),
            (3, Record::Exit { tid: 7 }),
            (4, switch(7, 0x10, 0)),
        ] {
            run.push(time, record);
        }
        let ended = run.tables.entities.process(7).unwrap();
        if is_main_seen {
            run.push(5, switch(0, 0, 7));
        }
        run.push(6, of_seven(9, true));
        let entities = &run.tables.entities;
        let process = entities.process(7).unwrap();
        assert_eq!(entities.get(ended).unwrap().end, Some(at(4)));
        assert_eq!(entities.get(process).unwrap().end, None);
        let name = if is_main_seen { "x" } else { "" };
        assert_eq!(run.tables.str(entities.get(process).unwrap().name), name);
        let process_of = |tid| entities.process_of(entities.thread(tid).unwrap());
        let of_main = if is_main_seen { process } else { ended };
        assert_eq!([7, 9].map(process_of), [Some(of_main), Some(process)]);
    }
}

/// Its main thread is not known, so that others can live on which are not known either.
#[test]
fn a_process_whose_known_threads_have_ended_has_new_ones() {
    let mut run = Run::new();
    run.push(1, of_seven(9, true));
    let process = run.tables.entities.process(7);
    run.push(2, Record::Exit { tid: 9 });
    run.push(3, of_seven(11, true));
    assert_eq!(run.tables.entities.process(7), process);
}

#[test]
fn a_thread_that_is_not_of_interest_has_no_entity() {
    let mut run = Run::new();
    let states = |events: &[Event]| {
        let switches = events.iter().filter_map(|event| match event.kind {
            EventKind::Switch { prev, left, next, is_next_unknown, .. } => {
                Some((prev.is_some(), left, next.is_some(), is_next_unknown))
            }
            _ => None,
        });
        switches.collect::<Vec<_>>()
    };
    let (unknown, other) = (ThreadState::Unknown, Task::OTHER);
    assert_eq!(states(run.push(1, switch_of(other, 1, other))), [(false, unknown, false, true)]);
    assert_eq!(states(run.push(2, switch_of(other, 0, task(5)))), [(false, unknown, true, false)]);
    let sleeping = ThreadState::Sleeping;
    assert_eq!(states(run.push(3, switch(5, 1, 0))), [(true, sleeping, false, false)]);
    let preempted = ThreadState::Preempted;
    assert_eq!(
        states(run.push(4, switch_of(task(0), 0, other))),
        [(false, preempted, false, true)]
    );
    assert_eq!((run.source.stats().switches, run.source.stats().unreported), (4, 0));
    run.push(5, switch(0, 0, 5));
    assert_eq!(run.source.stats().unreported, 1);
    let threads = run.tables.entities.iter().filter(|(_, e)| e.kind == EntityKind::Thread);
    assert_eq!(threads.count(), 1);
}

/// A machine that starts processes for ever.
#[test]
fn ended_threads_and_processes_can_be_forgotten() {
    let mut run = Run::new();
    run.push(1, switch_of(task(0), 0, Task::OTHER));
    let mut time = 1;
    let mut least = usize::MAX;
    for round in 0..1_000 {
        let pid = 10 + 2 * (round % 100);
        for tid in [pid, pid + 1] {
            let parent = Some((1, 1));
            let new = Record::Thread { pid, tid, parent, comm: b"a", is_new: true };
            time += 1;
            run.push(time, new);
        }
        let program = ProcessAttributes { command_line: b"a b", ..Default::default() };
        run.push(time, Record::Process { pid, attributes: program });
        for tid in [pid, pid + 1] {
            time += 2;
            run.push(time - 1, Record::Exit { tid });
            let ended = run.push(time, switch_of(task(tid), 0x10, Task::OTHER)).to_vec();
            let ended = ended.iter().find_map(|event| match event.kind {
                EventKind::End { entity } => Some(entity),
                _ => None,
            });
            run.source.forget(ended.unwrap(), &mut run.tables);
        }
        assert!(run.tables.entities.process(pid).is_none());
        least = least.min(run.tables.entities.len());
        assert_eq!(run.tables.entities.len(), least);
    }
    assert!(run.source.processes.len() <= 1, "the parent");
    assert!(run.source.living.is_empty() && run.source.headless.is_empty());
}

#[test]
fn an_interrupt_is_not_the_thread_that_it_interrupts() {
    let mut run = Run::new();
    let waking = |flags| Record::Waking {
        cpu: 0,
        by: Some(tid(5)),
        flags,
        task: task(9),
        target_cpu: 1,
        is_new: false,
        stack: None,
    };
    for (flags, context, has_waker) in [
        (Some(0x10), Context::SoftIrq, false),
        (Some(0x18), Context::HardIrq, false),
        (Some(0x01), Context::Task, true),
        (None, Context::Unknown, true),
    ] {
        let last = run.push(1, waking(flags)).last().copied().unwrap();
        let EventKind::Flow { from, context: found, .. } = last.kind else { panic!("{last:?}") };
        assert_eq!((found, from.is_some()), (context, has_waker), "{flags:?}");
    }
}

/// Its threads may be those of a runtime, whose process is found by it.
#[test]
fn a_thread_whose_process_becomes_known_starts_again() {
    let mut run = Run::new();
    run.push(10, switch(0, 0, 8));
    let thread = run.tables.entities.thread(8).unwrap();
    let mut listed = |time| {
        let (pid, tid, parent, comm, is_new) = (7, 8, None, &b"x"[..], false);
        run.push(time, Record::Thread { pid, tid, parent, comm, is_new }).to_vec()
    };
    let start = |events: &[Event]| {
        let is_start = |event: &&Event| event.kind == EventKind::Start { entity: thread };
        events.iter().filter(is_start).count()
    };
    assert_eq!((start(&listed(20)), start(&listed(30))), (1, 0));
    assert_eq!(run.tables.entities.process_of(thread), run.tables.entities.process(7));
}

/// Another thread of the process makes it known.
#[test]
fn a_main_thread_that_was_only_in_switches_is_one_of_its_process() {
    let mut run = Run::new();
    run.push(10, switch(0, 0, 7));
    let main = run.tables.entities.thread(7).unwrap();
    let events = run.push(20, of_seven(9, true)).to_vec();
    assert!(events.iter().any(|event| event.kind == EventKind::Start { entity: main }));
    let process = run.tables.entities.process(7).unwrap();
    assert_eq!(run.tables.entities.process_of(main), Some(process));
    let end = |run: &Run| run.tables.entities.get(process).unwrap().end;
    run.push(30, Record::Exit { tid: 9 });
    assert_eq!(end(&run), None);
    run.push(40, Record::Exit { tid: 7 });
    assert_eq!(end(&run), Some(at(40)));
}

/// The process ends with its other threads.
#[test]
fn a_main_thread_that_has_exited_joins_no_process() {
    let mut run = Run::new();
    run.push(10, switch(0, 0, 7));
    run.push(15, Record::Exit { tid: 7 });
    run.push(20, of_seven(9, true));
    run.push(30, Record::Exit { tid: 9 });
    let process = run.tables.entities.process(7).unwrap();
    assert_eq!(run.tables.entities.get(process).unwrap().end, Some(at(30)));
}
