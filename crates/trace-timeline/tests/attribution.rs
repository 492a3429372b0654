//! Known answers to whose time something is, on timelines by hand: what runtimes and the kernel say of
//! the same moment does not always have one obvious owner.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

mod common;

use common::{World, at, pieces};
use trace_timeline::answers::{OffCpu, Piece, Report, What, critical_path};
use trace_timeline::{
    Context, EntityId, EntityKind, EventKind, FlowKind, InstantKind, Kernel, Occupant, SampleKind,
    SampledEventId, SpanKind, State, TextId, ThreadState, text,
};

/// CPUs and threads of one process, each thread on its CPU.
struct Machine {
    world: World,
    process: EntityId,
    cpus: [EntityId; 3],
    threads: [EntityId; 3],
}

fn machine() -> Machine {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 10, None);
    let cpus = [0, 1, 2].map(|n| w.entity(EntityKind::Cpu, n, None));
    let threads = [10, 11, 12].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    for n in 0..3 {
        w.switch(cpus[n], None, ThreadState::Unknown, Some(threads[n]));
    }
    Machine { world: w, process, cpus, threads }
}

impl Machine {
    /// The M of a thread, which runs a P, and a goroutine.
    fn go(&mut self, number: i64) -> (EntityId, EntityId, EntityId) {
        let process = Some(self.process);
        let w = &mut self.world;
        let m = w.entity(EntityKind::GoThread, 10 + number, process);
        let proc = w.entity(EntityKind::Proc, number, process);
        w.go(proc, State::Running, Some(m), "");
        (m, proc, w.entity(EntityKind::Goroutine, number, process))
    }

    /// The .NET threads.
    fn dotnet(&mut self) -> [EntityId; 3] {
        let process = Some(self.process);
        let threads = [10, 11, 12].map(|n| self.world.entity(EntityKind::DotnetThread, n, process));
        threads.map(|thread| {
            self.world.go(thread, State::Running, None, "");
            thread
        })
    }
}

/// A thread that executes a goroutine finds that the timer of another one has expired. What it did
/// before has nothing to do with that.
#[test]
fn a_timer_found_by_a_busy_thread_is_a_wait() {
    let mut machine = machine();
    let (m, _, g1) = machine.go(0);
    let g2 = machine.world.entity(EntityKind::Goroutine, 2, Some(machine.process));
    let w = &mut machine.world;
    w.go(g1, State::Running, Some(m), "");
    w.at(10).go(g1, State::Waiting, None, "sleep");
    w.go(g2, State::Running, Some(m), "");
    w.at(5000).go(g2, State::Waiting, None, "chan receive");
    w.wake(Some(m), Context::Task, g1);
    w.go(g1, State::Runnable, None, "");
    w.go(g1, State::Running, Some(m), "");
    w.at(5010).go(g1, State::Waiting, None, "done");
    let path = machine.world.explain(g1, 0, 5010, None);
    let (on, thread) = (What::OnCpu { cpu: machine.cpus[0] }, machine.threads[0]);
    let waits = What::Waits { context: Context::Task };
    assert_eq!(pieces(&path), [(10, g1, on), (5000, thread, waits), (5010, g1, on)]);
    let tables = &machine.world.tables;
    assert_eq!(tables.get(path.pieces[1].reason), b"sleep");
    assert_eq!(text::piece(&path.pieces[1], tables).1, "waited for sleep");
}

/// The goroutine that has the P that another one waits for is not executing.
#[test]
fn a_p_whose_goroutine_has_no_cpu_does_not_run_it() {
    let mut machine = machine();
    let (m, _, g1) = machine.go(0);
    let g2 = machine.world.entity(EntityKind::Goroutine, 2, Some(machine.process));
    let ([cpu, ..], [thread, ..]) = (machine.cpus, machine.threads);
    let other = machine.world.entity(EntityKind::Thread, 99, None);
    let w = &mut machine.world;
    w.go(g1, State::Running, Some(m), "");
    w.at(10).go(g2, State::Runnable, None, "");
    w.at(20).switch(cpu, Some(thread), ThreadState::Preempted, Some(other));
    w.at(60).switch(cpu, Some(other), ThreadState::Sleeping, Some(thread));
    w.at(70).switch(cpu, Some(thread), ThreadState::Blocked, None);
    w.at(80).switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(90).go(g1, State::Waiting, None, "select");
    w.go(g2, State::Running, Some(m), "");
    w.at(100).go(g2, State::Waiting, None, "done");
    let path = machine.world.explain(g2, 10, 100, None);
    let tables = &machine.world.tables;
    let texts: Vec<String> = path.pieces.iter().map(|piece| text::piece(piece, tables).1).collect();
    let expected = [
        "runnable, P0 ran G0",
        "runnable, P0 had G0, whose thread waited for thread 99",
        "runnable, P0 ran G0",
        "runnable, P0 had G0, which waited in the kernel",
        "runnable, P0 ran G0",
        "ran on CPU 0",
    ];
    assert_eq!(texts, expected);
    let by: Vec<_> = path.pieces[..2].iter().map(|piece| piece.what.by()).collect();
    assert_eq!(by, [Some(g1), Some(other)]);
}

/// A .NET thread is suspended while another one, which serves another request, collects garbage.
#[test]
fn a_gc_is_no_work_for_the_request_of_its_thread() {
    let mut machine = machine();
    let [a, b, _] = machine.dotnet();
    let ([cpu, second, _], [thread, collector, _]) = (machine.cpus, machine.threads);
    let process = machine.process;
    let w = &mut machine.world;
    let [ours, theirs] = [1, 2].map(|n| w.entity(EntityKind::Activity, n, Some(process)));
    let [_, other] = [(ours, a), (theirs, b)]
        .map(|(of, by)| w.begin(of, SpanKind::Activity, "request", Some(by), None));
    let stop = w.at(20).begin(process, SpanKind::StopTheWorld, "GC", Some(b), None);
    w.at(22).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    w.at(70).wake(Some(collector), Context::Task, thread);
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.finish(stop, Some(b));
    w.at(80).finish(other, Some(b));
    let path = machine.world.explain(a, 0, 80, Some(ours));
    let on = |cpu| What::OnCpu { cpu };
    let expected = [(22, a, on(cpu)), (70, b, on(second)), (80, a, on(cpu))];
    assert_eq!(pieces(&path), expected);
    let during: Vec<_> = path.pieces.iter().map(|piece| piece.during.map(|of| of.0)).collect();
    assert_eq!(during, [None, Some(SpanKind::StopTheWorld), None]);
    assert!(path.pieces.iter().all(|piece| piece.context.is_none()), "{path:#?}");
}

/// A managed thread that sleeps has stopped, although no event says so before all have.
#[test]
fn a_dotnet_thread_stops_when_it_sleeps() {
    let mut machine = machine();
    let [requester, early, late] = machine.dotnet();
    let process = machine.process;
    let w = &mut machine.world;
    let stop = w.at(20).begin(process, SpanKind::StopTheWorld, "GC", Some(requester), None);
    w.at(22).switch(machine.cpus[1], Some(machine.threads[1]), ThreadState::Sleeping, None);
    let (kind, name) = (InstantKind::Stopped, w.text("stopped"));
    w.at(60).push(EventKind::Instant { entity: process, kind, name, of: None, stack: None });
    w.at(70).finish(stop, Some(requester));
    let pauses = machine.world.pauses();
    let [pause] = &pauses[..] else { panic!("{pauses:?}") };
    let stops: Vec<_> = pause.stops.iter().map(|stop| (stop.entity, stop.time.nanos())).collect();
    assert_eq!(stops, [(early, 22), (late, 60)]);
}

/// A thread in native code, which need not stop, executes on after all have stopped.
#[test]
fn a_dotnet_thread_in_native_code_is_not_late() {
    const US: i64 = 1000;
    for (end, is_stop) in [(8_000, false), (5_040, true)] {
        let mut machine = machine();
        let [requester, last, other] = machine.dotnet();
        let process = machine.process;
        let ([cpu, second, third], [kernel, of_last, of_other]) = (machine.cpus, machine.threads);
        let w = &mut machine.world;
        let stop = w.at(0).begin(process, SpanKind::StopTheWorld, "GC", Some(requester), None);
        w.at(1_000 * US).switch(cpu, Some(kernel), ThreadState::Sleeping, None);
        w.at(4_900 * US).switch(second, Some(of_last), ThreadState::Sleeping, None);
        w.wake(Some(of_last), Context::Task, kernel);
        w.switch(cpu, None, ThreadState::Unknown, Some(kernel));
        let (kind, name) = (InstantKind::Stopped, w.text("stopped"));
        w.at(5_000 * US);
        w.push(EventKind::Instant { entity: process, kind, name, of: None, stack: None });
        w.at(end * US).finish(stop, Some(requester));
        w.at(9_000 * US).switch(third, Some(of_other), ThreadState::Sleeping, None);
        let pauses = w.pauses();
        let [pause] = &pauses[..] else { panic!("{pauses:?}") };
        assert_eq!(pause.stopped, Some(at(5_000 * US)));
        let stops: Vec<_> =
            pause.stops.iter().map(|s| (s.entity, s.time.nanos() / US, s.on_cpu / US)).collect();
        let late = (last, 4_900, 4_900);
        match is_stop {
            false => assert_eq!(stops, [late]),
            // The pause is too short to say so.
            true => assert_eq!(stops, [late, (other, 5_000, 5_000)]),
        }
        // The requester waits for the one that has stopped last, as far as that is known.
        let path = w.explain(requester, 0, 5_000 * US, None);
        let who = if is_stop { other } else { last };
        let found: Vec<_> = pieces(&path).iter().map(|p| (p.0 / US, p.1)).collect();
        assert_eq!(found, [(1_000, requester), (4_900, who), (5_000, requester)]);
    }
}

/// One that sleeps soon after all have stopped had to stop. One that executes for longer is in native code, also if it
/// sleeps before the end of the pause.
#[test]
fn a_dotnet_thread_that_sleeps_late_stopped_with_all() {
    const US: i64 = 1000;
    for (slept, is_stop) in [(540, true), (560, false)] {
        let mut machine = machine();
        let [requester, _, late] = machine.dotnet();
        let process = machine.process;
        let w = &mut machine.world;
        w.at(5).switch(machine.cpus[1], Some(machine.threads[1]), ThreadState::Sleeping, None);
        let stop = w.at(10).begin(process, SpanKind::StopTheWorld, "GC", Some(requester), None);
        let (kind, name) = (InstantKind::Stopped, w.text("stopped"));
        w.at(500 * US);
        w.push(EventKind::Instant { entity: process, kind, name, of: None, stack: None });
        w.at(slept * US);
        w.switch(machine.cpus[2], Some(machine.threads[2]), ThreadState::Sleeping, None);
        w.at(900 * US).finish(stop, Some(requester));
        let stops: Vec<_> =
            w.pauses()[0].stops.iter().map(|s| (s.entity, s.time.nanos(), s.on_cpu)).collect();
        let late = (late, 500 * US, 500 * US - 10);
        assert_eq!(stops, if is_stop { vec![late] } else { vec![] });
    }
}

/// The runtime does not report the end of a thread, and the next one can have its id.
#[test]
fn a_dotnet_thread_ends_with_its_kernel_thread() {
    let mut machine = machine();
    let [requester, ended, _] = machine.dotnet();
    let (process, cpu, thread) = (machine.process, machine.cpus[1], machine.threads[1]);
    let w = &mut machine.world;
    let stop = w.at(20).begin(process, SpanKind::StopTheWorld, "GC", Some(requester), None);
    w.at(50).go(ended, State::Waiting, None, "lock");
    w.switch(cpu, Some(thread), ThreadState::Dead, None);
    w.push(EventKind::End { entity: thread });
    w.at(60).finish(stop, Some(requester));
    // What its runtime reports late.
    w.at(70).go(ended, State::Running, None, "");
    let later = w.at(80).begin(process, SpanKind::StopTheWorld, "GC", Some(requester), None);
    w.at(90).finish(later, Some(requester));
    let next = w.at(1000).entity(EntityKind::Thread, 11, Some(process));
    w.switch(cpu, None, ThreadState::Unknown, Some(next));
    let last = w.at(1100).begin(process, SpanKind::StopTheWorld, "GC", Some(requester), None);
    w.at(1105).switch(cpu, Some(next), ThreadState::Sleeping, None);
    w.at(1110).finish(last, Some(requester));
    let pauses = machine.world.pauses();
    let stops = pauses.iter().map(|pause| {
        let stop = pause.stops.iter().find(|stop| stop.entity == ended);
        stop.map(|stop| (stop.time.nanos(), stop.on_cpu, stop.runnable))
    });
    assert_eq!(stops.collect::<Vec<_>>(), [Some((50, 30, 0)), None, Some((1105, 5, 0))]);
    let states = machine.world.intervals(ended);
    assert!(states.iter().all(|interval| interval.reason == TextId::EMPTY), "{states:?}");
    let states: Vec<_> = states.into_iter().map(|i| (i.end.nanos(), i.state, i.kernel)).collect();
    let on_cpu = Kernel::OnCpu { cpu };
    let expected = [
        (50, State::Running, on_cpu),
        (1000, State::Unknown, Kernel::Unknown),
        (1105, State::Running, on_cpu),
        (1110, State::Running, Kernel::Sleeping),
    ];
    assert_eq!(states, expected);
    let report = machine.world.report(Report::new());
    let unknown: Vec<_> = report.groups.values().map(|g| (g.running.unknown, g.unknown)).collect();
    assert_eq!(unknown, [(0, 950)]);
}

/// A second trace of a process begins while the first one continues, within a pause.
#[test]
fn a_thread_is_that_of_the_last_trace_that_mentions_it() {
    let mut machine = machine();
    let [requester, first, _] = machine.dotnet();
    let (process, cpu, thread) = (machine.process, machine.cpus[1], machine.threads[1]);
    let w = &mut machine.world;
    let stop = w.at(20).begin(process, SpanKind::StopTheWorld, "GC", Some(requester), None);
    w.at(30);
    let [_, second, _] = machine.dotnet();
    let w = &mut machine.world;
    w.at(40).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    w.at(50).finish(stop, Some(requester));
    // The first trace continues.
    w.at(55).go(first, State::Waiting, None, "Monitor");
    w.at(60).switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(65).go(first, State::Running, None, "");
    let stop = w.at(70).begin(process, SpanKind::StopTheWorld, "GC", Some(requester), None);
    w.at(75).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    w.at(80).finish(stop, Some(requester));
    w.at(90).push(EventKind::Sample {
        entity: first,
        kind: SampleKind::Managed,
        stack: None,
        weight: 1,
        thread: None,
        cpu: None,
        event: SampledEventId::NONE,
        of: None,
    });
    let pauses = machine.world.pauses();
    let found: Vec<_> = pauses
        .iter()
        .map(|pause| {
            let stops =
                pause.stops.iter().map(|stop| (stop.entity, stop.time.nanos(), stop.on_cpu));
            let requester = pause.requester.as_ref().map(|requester| requester.thread);
            (requester, stops.collect::<Vec<_>>())
        })
        .collect();
    let requester = Some(machine.threads[0]);
    let expected = [(requester, vec![(second, 40, 20)]), (requester, vec![(second, 75, 5)])];
    assert_eq!(found, expected);
    let states = machine.world.intervals(first).into_iter();
    let states: Vec<_> = states.map(|i| (i.end.nanos(), i.state, i.kernel)).collect();
    let on_cpu = Kernel::OnCpu { cpu };
    let unknown = (90, State::Unknown, Kernel::Unknown);
    assert_eq!(states, [(30, State::Running, on_cpu), unknown]);
    // Each thread counts once.
    let report = machine.world.report(Report::new());
    let of_kernel: i64 = report.threads.values().map(|thread| thread.times.on_cpu).sum();
    let of_runtime: i64 = report.groups.values().map(|group| group.running.on_cpu).sum();
    assert_eq!((of_kernel, of_runtime), (90 + 55 + 90, 90 + 55 + 90));
    // The sample is of the thread all the same.
    let samples: Vec<_> = machine.world.samples().iter().map(|s| (s.thread, s.kernel)).collect();
    assert_eq!(samples, [(Some(thread), Kernel::Sleeping)]);
}

/// The kernel reports a new thread shortly before its creator makes it runnable.
#[test]
fn a_new_thread_is_explained_by_its_creator() {
    let mut machine = machine();
    let ([cpu, second, third], [main, creator, idle]) = (machine.cpus, machine.threads);
    let process = machine.process;
    let w = &mut machine.world;
    w.switch(third, Some(idle), ThreadState::Sleeping, None);
    w.at(5).switch(cpu, Some(main), ThreadState::Sleeping, None);
    w.at(40);
    let new = w.entity(EntityKind::Thread, 13, Some(process));
    let (kind, from, context) = (FlowKind::Creates, Some(creator), Context::Task);
    let (on, cpu_of, stack) = (None, Some(third), None);
    w.at(42).push(EventKind::Flow { kind, from, context, on, to: new, cpu: cpu_of, stack });
    w.at(45).switch(third, None, ThreadState::Unknown, Some(new));
    w.at(60).wake(Some(new), Context::Task, main);
    w.at(65).switch(cpu, None, ThreadState::Unknown, Some(main));
    let path = machine.world.explain(main, 0, 65, None);
    let on = |cpu| What::OnCpu { cpu };
    let woken = |occupant| What::WaitsForCpu { occupant, is_preempted: false };
    let expected = [
        (5, main, on(cpu)),
        (42, creator, on(second)),
        (45, new, woken(Occupant::Idle)),
        (60, new, on(third)),
        (65, main, woken(Occupant::Unknown)),
    ];
    assert_eq!(pieces(&path), expected);
}

/// A .NET thread spins and is preempted while its runtime reports a wait.
#[test]
fn time_on_a_cpu_within_a_wait_is_not_off_it() {
    let mut machine = machine();
    let [thread, ..] = machine.dotnet();
    let ([cpu, ..], [kernel, other, _]) = (machine.cpus, machine.threads);
    let w = &mut machine.world;
    w.at(10).go(thread, State::Waiting, None, "Monitor");
    w.at(15).switch(cpu, Some(kernel), ThreadState::Preempted, None);
    w.at(25).switch(cpu, None, ThreadState::Unknown, Some(kernel));
    w.at(30).switch(cpu, Some(kernel), ThreadState::Sleeping, None);
    w.at(70).wake(Some(other), Context::Task, kernel);
    w.at(80).switch(cpu, None, ThreadState::Unknown, Some(kernel));
    w.at(90).go(thread, State::Running, None, "");
    let report = machine.world.report(Report::new());
    let nanos = |is_it: fn(&OffCpu) -> bool| -> i64 {
        let of = report.off_cpu.iter().filter(|((_, reason), _)| is_it(reason));
        of.map(|(_, times)| times.nanos).sum()
    };
    assert_eq!(nanos(|reason| matches!(reason, OffCpu::Waits(_))), 40);
    assert_eq!(nanos(|reason| *reason == OffCpu::Preempted), 10);
    assert_eq!(nanos(|reason| *reason == OffCpu::Woken), 10);
    let waits: u64 = report.waits.values().map(|waits| waits.durations.sum()).sum();
    assert_eq!(waits, 80, "as the runtime reports it");
}

/// The worker that ended the request was busy with another one before.
#[test]
fn work_of_the_last_worker_for_another_task_is_context() {
    let mut machine = machine();
    let (m, _, g1) = machine.go(0);
    let (m2, _, g2) = machine.go(1);
    let process = machine.process;
    let w = &mut machine.world;
    let [ours, theirs, inner] = [1, 2, 3].map(|n| w.entity(EntityKind::Task, n, Some(process)));
    w.go(g1, State::Running, Some(m), "");
    w.go(g2, State::Running, Some(m2), "");
    let task = w.begin(ours, SpanKind::Task, "ours", Some(g1), None);
    let other = w.begin(g2, SpanKind::Region, "their part", None, Some(theirs));
    w.at(60).finish(other, None);
    let part = w.begin(g2, SpanKind::Region, "our part", None, Some(ours));
    // It works for this one as a part of ours, whatever its context says.
    let library = w.at(70).begin(g2, SpanKind::Region, "library", None, Some(inner));
    w.at(80).finish(library, None);
    w.at(100).finish(part, None);
    w.finish(task, Some(g2));
    let contexts = |task| -> Vec<_> {
        let path = machine.world.explain(g2, 0, 100, task);
        path.pieces.iter().map(|piece| (piece.end.nanos(), piece.context)).collect()
    };
    assert_eq!(contexts(Some(ours)), [(60, Some(theirs)), (100, None)]);
    assert_eq!(contexts(None), [(100, None)]);
}

/// A wait that ends after the window is explained as the whole is.
#[test]
fn a_window_that_ends_within_a_wait_explains_it() {
    let mut machine = machine();
    let (m, _, g1) = machine.go(0);
    let (m2, _, g2) = machine.go(1);
    let w = &mut machine.world;
    w.go(g1, State::Running, Some(m), "");
    w.go(g2, State::Running, Some(m2), "");
    w.at(10).go(g1, State::Waiting, None, "chan receive");
    w.at(100).wake(Some(g2), Context::Task, g1);
    w.go(g1, State::Runnable, None, "");
    w.at(110).go(g1, State::Running, Some(m), "");
    w.at(120).go(g1, State::Waiting, None, "done");
    let history = machine.world.history_within(&[(at(0), at(50))]);
    let entities = &machine.world.tables.entities;
    let path = critical_path(&history, entities, g1, at(0), at(50), None);
    let on = |n: usize| What::OnCpu { cpu: machine.cpus[n] };
    assert_eq!(pieces(&path), [(10, g1, on(0)), (50, g2, on(1))]);
}

/// The thread that takes an idle P does so after the window.
#[test]
fn a_window_that_ends_while_a_p_is_idle_knows_who_takes_it() {
    let mut machine = machine();
    let (m, proc, g1) = machine.go(0);
    let ([cpu, ..], [thread, waker, _]) = (machine.cpus, machine.threads);
    let other = machine.world.entity(EntityKind::Thread, 99, None);
    let w = &mut machine.world;
    w.go(proc, State::Idle, None, "");
    w.at(5).switch(cpu, Some(thread), ThreadState::Sleeping, Some(other));
    w.at(10).go(g1, State::Runnable, None, "");
    let (kind, from, context) = (FlowKind::Wakes, Some(waker), Context::Task);
    let (on, to, stack) = (None, thread, None);
    w.at(20).push(EventKind::Flow { kind, from, context, on, to, cpu: Some(cpu), stack });
    w.at(70).switch(cpu, Some(other), ThreadState::Preempted, Some(thread));
    w.at(75).go(proc, State::Running, Some(m), "");
    w.at(80).go(g1, State::Running, Some(m), "");
    w.at(90).go(g1, State::Waiting, None, "done");
    let history = machine.world.history_within(&[(at(10), at(50))]);
    let entities = &machine.world.tables.entities;
    let path = critical_path(&history, entities, g1, at(10), at(50), None);
    let kernels: Vec<(i64, Kernel)> = path
        .pieces
        .iter()
        .map(|piece: &Piece| match piece.what {
            What::WaitsForProc { kernel, .. } => (piece.end.nanos(), kernel),
            what => panic!("{what:?}"),
        })
        .collect();
    let (occupant, is_preempted) = (Occupant::Thread(other), false);
    let no_cpu = Kernel::Runnable { cpu: Some(cpu), occupant, is_preempted };
    assert_eq!(kernels, [(20, Kernel::Absent), (50, no_cpu)]);
}
