//! Known answers across the layers, on timelines by hand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

mod common;

use common::{World, at, pieces};
use trace_timeline::answers::{CriticalPath, Piece, Report, What, critical_path};
use trace_timeline::{
    Context, EntityId, EntityKind, EventKind, FlowKind, Kernel, LossKind, Occupant, SpanKind,
    State, ThreadState, text,
};

/// A Go program with two Ms on two CPUs, and another process.
struct Go {
    world: World,
    cpus: [EntityId; 2],
    /// Kernel threads of the Ms.
    threads: [EntityId; 2],
    ms: [EntityId; 2],
    procs: [EntityId; 2],
    process: EntityId,
    other: EntityId,
}

fn go() -> Go {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 10, None);
    let kernel_process = w.entity(EntityKind::Process, 10, None);
    let cpus = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let threads = [10, 11].map(|n| w.entity(EntityKind::Thread, n, Some(kernel_process)));
    let other = w.entity(EntityKind::Thread, 99, None);
    let ms = [10, 11].map(|n| w.entity(EntityKind::GoThread, n, Some(process)));
    let procs = [0, 1].map(|n| w.entity(EntityKind::Proc, n, Some(process)));
    for n in 0..2 {
        w.switch(cpus[n], None, ThreadState::Unknown, Some(threads[n]));
        w.go(procs[n], State::Running, Some(ms[n]), "");
    }
    Go { world: w, cpus, threads, ms, procs, process, other }
}

impl Go {
    fn goroutine(&mut self, number: i64) -> EntityId {
        self.world.entity(EntityKind::Goroutine, number, Some(self.process))
    }
}

/// What the thread did before is not known of the goroutine.
#[test]
fn a_goroutine_can_be_in_its_first_state_since_an_earlier_time() {
    let mut go = go();
    let [cpu, _] = go.cpus;
    go.world.at(100);
    let (caller, waiter) = (go.goroutine(1), go.goroutine(2));
    let w = &mut go.world;
    let since = at(40);
    w.go(caller, State::Syscall, Some(go.ms[0]), "");
    w.push(EventKind::Since { entity: caller, since });
    w.go(waiter, State::Waiting, None, "chan receive");
    w.push(EventKind::Since { entity: waiter, since });
    w.at(150).go(waiter, State::Runnable, None, "");
    let found = |id| -> Vec<_> {
        let intervals = go.world.intervals(id).into_iter();
        intervals.map(|i| (i.begin.nanos(), i.end.nanos(), i.state, i.kernel)).collect()
    };
    let w = &go.world;
    assert!(w.events.is_sorted_by_key(|event| event.at));
    let on_cpu = Kernel::OnCpu { cpu };
    let expected = [(40, 100, State::Syscall, Kernel::Unknown), (100, 150, State::Syscall, on_cpu)];
    assert_eq!(found(caller), expected);
    assert_eq!(found(waiter), [(40, 150, State::Waiting, Kernel::Absent)]);
}

#[test]
fn running_time_is_split_by_what_the_kernel_did() {
    let mut go = go();
    let g = go.goroutine(1);
    let [cpu, _] = go.cpus;
    let [thread, _] = go.threads;
    let w = &mut go.world;
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(100).switch(cpu, Some(thread), ThreadState::Preempted, Some(go.other));
    w.at(130).switch(cpu, Some(go.other), ThreadState::Sleeping, None);
    w.at(150).switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(200).go(g, State::Waiting, None, "chan receive");
    w.at(250).wake(None, Context::Unknown, g);
    w.go(g, State::Runnable, None, "");

    let runnable = |occupant| Kernel::Runnable { cpu: Some(cpu), occupant, is_preempted: true };
    let found: Vec<_> =
        go.world.intervals(g).iter().map(|i| (i.end.nanos(), i.state, i.kernel)).collect();
    let expected = [
        (100, State::Running, Kernel::OnCpu { cpu }),
        (130, State::Running, runnable(Occupant::Thread(go.other))),
        // Nobody has the CPU: a quota, a cpuset, or the switch itself.
        (150, State::Running, runnable(Occupant::Idle)),
        (200, State::Running, Kernel::OnCpu { cpu }),
        (250, State::Waiting, Kernel::Absent),
    ];
    assert_eq!(found, expected);
    let thread = go.world.intervals(thread);
    assert_eq!(thread.last().map(|i| (i.state, i.holder)), Some((State::Running, None)));
    assert_eq!(thread[0].holder, Some(g));
}

#[test]
fn a_lost_record_makes_what_crosses_it_unknown() {
    let mut go = go();
    let g = go.goroutine(1);
    let [cpu, _] = go.cpus;
    let [thread, second] = go.threads;
    let w = &mut go.world;
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(20).switch(go.cpus[1], Some(second), ThreadState::Sleeping, None);
    w.at(50).lost(cpu, LossKind::SchedulerRecords, 30);
    w.at(80).switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(90).go(g, State::Waiting, None, "select");
    let found: Vec<_> =
        go.world.intervals(g).iter().map(|i| (i.end.nanos(), i.state, i.kernel)).collect();
    let expected = [
        (30, State::Running, Kernel::OnCpu { cpu }),
        (80, State::Running, Kernel::Unknown),
        (90, State::Running, Kernel::OnCpu { cpu }),
    ];
    assert_eq!(found, expected);
    // The thread that slept may have run unseen.
    let second: Vec<_> =
        go.world.intervals(second).iter().map(|i| (i.end.nanos(), i.kernel)).collect();
    assert_eq!(second[1..], [(30, Kernel::Sleeping), (90, Kernel::Unknown)]);
}

/// The scheduler was recorded for a part of the timeline only.
#[test]
fn after_the_end_of_a_recording_nothing_is_known_of_threads() {
    let mut go = go();
    let g = go.goroutine(1);
    let [thread, second] = go.threads;
    let w = &mut go.world;
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(20).switch(go.cpus[1], Some(second), ThreadState::Sleeping, None);
    w.at(50);
    for cpu in go.cpus {
        w.push(EventKind::End { entity: cpu });
    }
    w.at(90).go(g, State::Waiting, None, "select");
    let [cpu, _] = go.cpus;
    let of = |id| -> Vec<_> {
        go.world.intervals(id).iter().map(|i| (i.end.nanos(), i.kernel)).collect()
    };
    let on = Kernel::OnCpu { cpu };
    assert_eq!(of(g), [(50, on), (90, Kernel::Unknown)]);
    assert_eq!(of(thread), [(50, on), (90, Kernel::Unknown)]);
    assert_eq!(of(second)[1..], [(50, Kernel::Sleeping), (90, Kernel::Unknown)]);
}

/// A switch that the kernel did not report concerns the two threads of that CPU only.
#[test]
fn an_unreported_switch_does_not_disturb_other_threads() {
    let mut go = go();
    let [cpu, _] = go.cpus;
    let [thread, second] = go.threads;
    let w = &mut go.world;
    w.at(20).switch(go.cpus[1], Some(second), ThreadState::Sleeping, None);
    w.at(50).lost(cpu, LossKind::UnreportedSwitch, 30);
    w.switch(cpu, Some(go.other), ThreadState::Sleeping, None);
    w.at(90).switch(cpu, None, ThreadState::Unknown, Some(thread));
    let of = |thread| -> Vec<_> {
        go.world.intervals(thread).iter().map(|i| (i.end.nanos(), i.kernel)).collect()
    };
    assert_eq!(of(thread), [(30, Kernel::OnCpu { cpu }), (90, Kernel::Unknown)]);
    let on = Kernel::OnCpu { cpu: go.cpus[1] };
    assert_eq!(of(second), [(20, on), (90, Kernel::Sleeping)]);
}

/// A thread runs although no record switched it in: what it did since the last record of its CPU is
/// unknown, and from then on it is on the CPU.
#[test]
fn a_thread_that_came_unseen_is_on_its_cpu_from_when_it_is_seen() {
    let mut go = go();
    let [cpu, _] = go.cpus;
    let [thread, _] = go.threads;
    let w = &mut go.world;
    w.at(20).switch(cpu, Some(thread), ThreadState::Preempted, None);
    w.at(50).lost(cpu, LossKind::UnreportedSwitch, 30);
    w.switch(cpu, Some(thread), ThreadState::Unknown, Some(thread));
    w.at(90).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    let found: Vec<_> =
        go.world.intervals(thread).iter().map(|i| (i.end.nanos(), i.kernel)).collect();
    let on = Kernel::OnCpu { cpu };
    let waits = Kernel::Runnable { cpu: Some(cpu), occupant: Occupant::Idle, is_preempted: true };
    assert_eq!(found, [(20, on), (30, waits), (50, Kernel::Unknown), (90, on)]);
}

/// A thread is woken when it has begun to sleep and still has its CPU: the kernel puts it in the queue
/// as soon as it has left. No other record says so, until it gets a CPU.
#[test]
fn a_thread_woken_as_it_leaves_its_cpu_waits_for_the_next() {
    let mut go = go();
    let g = go.goroutine(1);
    let [cpu, other_cpu] = go.cpus;
    let [thread, second] = go.threads;
    let w = &mut go.world;
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(97).wake(Some(second), Context::Task, thread);
    w.at(100).switch(cpu, Some(thread), ThreadState::Sleeping, Some(go.other));
    w.at(300).switch(other_cpu, Some(second), ThreadState::Sleeping, Some(thread));
    w.at(350).go(g, State::Waiting, None, "chan receive");
    let (was_on, is_on) = (Kernel::OnCpu { cpu }, Kernel::OnCpu { cpu: other_cpu });
    let occupant = Occupant::Thread(go.other);
    let waits = Kernel::Runnable { cpu: Some(cpu), occupant, is_preempted: false };
    let of = |id| -> Vec<_> {
        let all = go.world.intervals(id);
        all.iter().map(|i| (i.end.nanos(), i.state, i.kernel)).collect()
    };
    let running = State::Running;
    let expected = [(100, running, was_on), (300, running, waits), (350, running, is_on)];
    assert_eq!(of(g), expected);
    assert_eq!(of(thread)[1], (300, State::Runnable, waits));
}

/// The same thread, which gets its own CPU again after `between`: what it did before, since the end of
/// that.
fn before_it_runs(mut woken: impl FnMut(&mut Go), between: impl FnOnce(&mut Go)) -> (i64, Kernel) {
    let mut go = go();
    let (thread, other) = (go.threads[0], go.other);
    woken(&mut go);
    let cpu = go.cpus[0];
    go.world.switch(cpu, Some(thread), ThreadState::Sleeping, Some(other));
    between(&mut go);
    go.world.at(9_000_000).switch(cpu, None, ThreadState::Unknown, Some(thread));
    let found = go.world.intervals(thread);
    let wait = found.iter().rev().find(|interval| interval.end == at(9_000_000)).unwrap();
    (wait.begin.nanos(), wait.kernel)
}

fn wake_on_cpu(go: &mut Go) {
    let [thread, second] = go.threads;
    go.world.at(97).wake(Some(second), Context::Task, thread);
    go.world.at(100);
}

/// What the CPU executed is known as long as it was one thread.
#[test]
fn a_cpu_with_several_occupants_since_has_no_known_one() {
    let waits = |go: &Go, occupant| {
        (100, Kernel::Runnable { cpu: Some(go.cpus[0]), occupant, is_preempted: false })
    };
    let known = go();
    let found = before_it_runs(wake_on_cpu, |_| ());
    assert_eq!(found, waits(&known, Occupant::Thread(known.other)));
    let found = before_it_runs(wake_on_cpu, |go| {
        go.world.at(200).switch(go.cpus[0], Some(go.other), ThreadState::Sleeping, None);
    });
    assert_eq!(found, waits(&known, Occupant::Unknown));
}

/// A wake-up of a thread that goes on says nothing of its next sleep, whose wake-up is missing here.
#[test]
fn a_thread_that_goes_on_after_a_wake_up_sleeps_later() {
    let asleep = |begin| (begin, Kernel::Sleeping);
    // It went on for too long.
    let late = |go: &mut Go| {
        wake_on_cpu(go);
        go.world.at(1_000_098);
    };
    assert_eq!(before_it_runs(late, |_| ()), asleep(1_000_098));
    // It was preempted.
    let preempted = |go: &mut Go| {
        wake_on_cpu(go);
        let (cpu, thread, other) = (go.cpus[0], go.threads[0], go.other);
        go.world.switch(cpu, Some(thread), ThreadState::Preempted, Some(other));
        go.world.at(110).switch(cpu, Some(other), ThreadState::Preempted, Some(thread));
        go.world.at(120);
    };
    assert_eq!(before_it_runs(preempted, |_| ()), asleep(120));
    // It was not on that CPU any more, as the next record showed.
    let elsewhere = |go: &mut Go| {
        wake_on_cpu(go);
        let cpu = go.cpus[0];
        go.world.at(110).lost(cpu, LossKind::UnreportedSwitch, 105);
        go.world.switch(cpu, Some(go.other), ThreadState::Sleeping, None);
        go.world.at(120).switch(cpu, None, ThreadState::Unknown, Some(go.threads[0]));
        go.world.at(130);
    };
    assert_eq!(before_it_runs(elsewhere, |_| ()), asleep(130));
}

/// It was woken on its CPU, slept all the same, and was woken again; or records are missing.
#[test]
fn a_second_wake_up_ends_the_sleep() {
    let (cpu, occupant, is_preempted) = (None, Occupant::Unknown, false);
    let found = before_it_runs(wake_on_cpu, |go| {
        let [thread, second] = go.threads;
        go.world.at(200).wake(Some(second), Context::Task, thread);
    });
    assert_eq!(found, (200, Kernel::Runnable { cpu, occupant, is_preempted }));
    let found = before_it_runs(wake_on_cpu, |go| {
        go.world.at(200).lost(go.cpus[0], LossKind::SchedulerRecords, 150);
    });
    assert_eq!(found, (150, Kernel::Unknown));
}

/// G1 waits for G2, which waits for G3: the time is that of G3, then G2, then G1.
#[test]
fn a_chain_of_channels_leads_to_its_end() {
    let mut go = go();
    let [g1, g2, g3] = [1, 2, 3].map(|n| go.goroutine(n));
    let [m0, m1] = go.ms;
    let cpu = |n: usize| What::OnCpu { cpu: go.cpus[n] };
    let w = &mut go.world;
    w.go(g3, State::Running, Some(m1), "");
    w.go(g1, State::Running, Some(m0), "");
    w.at(10).go(g1, State::Waiting, None, "chan receive");
    w.go(g2, State::Running, Some(m0), "");
    w.at(20).go(g2, State::Waiting, None, "chan receive");
    w.at(100).wake(Some(g3), Context::Task, g2);
    w.go(g2, State::Runnable, None, "");
    w.go(g2, State::Running, Some(m0), "");
    w.at(130).wake(Some(g2), Context::Task, g1);
    w.go(g1, State::Runnable, None, "");
    w.at(135).go(g2, State::Waiting, None, "chan send");
    w.at(140).go(g1, State::Running, Some(m0), "");
    w.at(150).go(g1, State::Waiting, None, "done");
    let path = go.world.explain(g1, 0, 150, None);
    let (proc, kernel) = (Some(go.procs[0]), Kernel::OnCpu { cpu: go.cpus[0] });
    let expected = [
        (10, g1, cpu(0)),
        (20, g2, cpu(0)),
        (100, g3, cpu(1)),
        (130, g2, cpu(0)),
        (135, g1, What::WaitsForProc { proc, holder: Some(g2), kernel }),
        (140, g1, What::WaitsForProc { proc, holder: None, kernel }),
        (150, g1, cpu(0)),
    ];
    assert_eq!(pieces(&path), expected);
    let depths: Vec<u32> = path.pieces.iter().map(|piece| piece.depth).collect();
    assert_eq!(depths, [0, 1, 2, 1, 0, 0, 0]);
    assert_eq!(path.pieces[2].waiter, Some(g2));
    assert_eq!(go.world.tables.get(path.pieces[2].waiter_reason), b"chan receive");
}

/// The holder of a mutex works on another request, and its thread is preempted.
#[test]
fn work_of_a_mutex_holder_for_another_request_is_context() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let [m0, m1] = go.ms;
    let w = &mut go.world;
    let [ours, theirs] = [1, 2].map(|n| w.entity(EntityKind::Task, n, Some(go.process)));
    w.go(g1, State::Running, Some(m0), "");
    w.go(g2, State::Running, Some(m1), "");
    let region = w.begin(g2, SpanKind::Region, "save", None, Some(theirs));
    w.at(10).go(g1, State::Waiting, None, "sync");
    w.at(30).switch(go.cpus[1], Some(go.threads[1]), ThreadState::Preempted, Some(go.other));
    w.at(70).switch(go.cpus[1], Some(go.other), ThreadState::Preempted, Some(go.threads[1]));
    w.at(80).finish(region, None);
    w.at(90).wake(Some(g2), Context::Task, g1);
    w.go(g1, State::Runnable, None, "");
    w.go(g1, State::Running, Some(m0), "");
    w.at(100).go(g1, State::Waiting, None, "done");
    let path = go.world.explain(g1, 0, 100, Some(ours));
    let preempted = What::WaitsForCpu { occupant: Occupant::Thread(go.other), is_preempted: true };
    let found: Vec<_> =
        path.pieces.iter().map(|p| (p.end.nanos(), p.entity, p.what, p.context)).collect();
    let on = |n: usize| What::OnCpu { cpu: go.cpus[n] };
    let expected = [
        (10, g1, on(0), None),
        (30, g2, on(1), Some(theirs)),
        (70, g2, preempted, Some(theirs)),
        (80, g2, on(1), Some(theirs)),
        (90, g2, on(1), None),
        (100, g1, on(0), None),
    ];
    assert_eq!(found, expected);
}

/// A .NET thread waits for a thread that serves another request, or a part of the same one.
#[test]
fn work_of_a_dotnet_thread_for_another_request_is_context() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 10, None);
    let [cpu, second] = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let [thread, owner] = [10, 11].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    let [ours, theirs, part, handed_over] =
        [1, 2, 3, 4].map(|n| w.entity(EntityKind::Request, n, Some(process)));
    let begin = |w: &mut World, request, by, of| {
        w.begin(request, SpanKind::Request, "request", Some(by), of)
    };
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.switch(second, None, ThreadState::Unknown, Some(owner));
    let request = begin(&mut w, ours, thread, None);
    let other = begin(&mut w, theirs, owner, None);
    w.at(10).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    w.at(40).finish(other, Some(owner));
    let of_ours = begin(&mut w, part, owner, Some(ours));
    w.at(60).finish(of_ours, Some(owner));
    let elsewhere = begin(&mut w, handed_over, owner, None);
    w.at(70).wake(Some(owner), Context::Task, thread);
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(80).finish(elsewhere, Some(thread));
    w.at(100).finish(request, Some(thread));
    let path = w.explain(thread, 0, 100, Some(ours));
    let found: Vec<_> = path.pieces.iter().map(|p| (p.end.nanos(), p.entity, p.context)).collect();
    let expected = [
        (10, thread, None),
        (40, owner, Some(theirs)),
        (70, owner, None), // a part of the request, and then one that another thread ended
        (100, thread, None),
    ];
    assert_eq!(found, expected);
}

/// Without activity ids, an activity has no parent.
#[test]
fn an_activity_within_another_one_is_a_part_of_it() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 10, None);
    let cpu = w.entity(EntityKind::Cpu, 0, None);
    let [thread, child] = [10, 11].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    let [outer, inner, later] = [1, 2, 3].map(|n| w.entity(EntityKind::Activity, n, Some(process)));
    let begin = |w: &mut World, of| w.begin(of, SpanKind::Activity, "activity", Some(thread), None);
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    let spans = [begin(&mut w, outer), begin(&mut w, inner)];
    w.at(10).switch(cpu, Some(thread), ThreadState::Sleeping, Some(child));
    w.at(40).wake(Some(child), Context::Task, thread);
    w.switch(cpu, Some(child), ThreadState::Sleeping, Some(thread));
    w.at(50).finish(spans[1], Some(thread));
    w.at(60).finish(spans[0], Some(thread));
    let last = begin(&mut w, later);
    w.at(70).finish(last, Some(thread));
    let contexts = |of| {
        let path = w.explain(thread, 0, 60, Some(of));
        path.pieces.iter().map(|piece| (piece.end.nanos(), piece.context)).collect::<Vec<_>>()
    };
    let none = [(10, None), (40, None), (60, None)];
    assert_eq!(contexts(outer), none, "the child works for a part of it");
    let of = |activity| Some(activity);
    let before = [(10, of(inner)), (40, of(inner)), (50, of(inner)), (60, of(outer))];
    assert_eq!(contexts(later), before, "which have ended before");
}

/// A goroutine reads from a pipe that a thread of another process writes to.
#[test]
fn a_system_call_leads_to_the_thread_that_ended_it() {
    let mut go = go();
    let g = go.goroutine(1);
    let [cpu, second] = go.cpus;
    let [thread, _] = go.threads;
    let w = &mut go.world;
    w.switch(second, Some(go.threads[1]), ThreadState::Sleeping, Some(go.other));
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(10).go(g, State::Syscall, Some(go.ms[0]), "");
    w.at(15).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    w.at(60).wake(Some(go.other), Context::Task, thread);
    w.at(70).switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(80).go(g, State::Running, Some(go.ms[0]), "");
    w.at(90).go(g, State::Waiting, None, "done");
    let path = go.world.explain(g, 0, 90, None);
    let waits = What::WaitsForCpu { occupant: Occupant::Unknown, is_preempted: false };
    let expected = [
        (15, g, What::OnCpu { cpu }),
        (60, go.other, What::OnCpu { cpu: second }),
        (70, g, waits),
        (90, g, What::OnCpu { cpu }),
    ];
    assert_eq!(pieces(&path), expected);
}

/// The P of a goroutine in a system call is taken away: the wait is one wait.
#[test]
fn a_wait_is_one_wait_when_its_p_is_taken_away() {
    let mut go = go();
    let g = go.goroutine(1);
    let [cpu, second] = go.cpus;
    let [thread, _] = go.threads;
    let w = &mut go.world;
    w.switch(second, Some(go.threads[1]), ThreadState::Sleeping, Some(go.other));
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(10).go(g, State::Syscall, Some(go.ms[0]), "");
    w.at(15).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    w.at(30).go(go.procs[0], State::Idle, None, "");
    w.at(60).wake(Some(go.other), Context::Task, thread);
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(80).go(g, State::Running, Some(go.ms[0]), "");
    w.at(90).go(g, State::Waiting, None, "done");
    let path = go.world.explain(g, 0, 90, None);
    let expected = [
        (15, g, What::OnCpu { cpu }),
        (60, go.other, What::OnCpu { cpu: second }),
        (90, g, What::OnCpu { cpu }),
    ];
    assert_eq!(pieces(&path), expected);
}

/// The counters of a cgroup say how long its threads were throttled: that part of a wait for a CPU
/// is named, each nanosecond once.
#[test]
fn throttling_is_separated_from_other_waits_for_a_cpu() {
    let mut go = go();
    let g = go.goroutine(1);
    let [cpu, _] = go.cpus;
    let [thread, _] = go.threads;
    let w = &mut go.world;
    let process = w.entity(EntityKind::Process, 10, None);
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(10).switch(cpu, Some(thread), ThreadState::Preempted, Some(go.other));
    w.at(90).switch(cpu, Some(go.other), ThreadState::Preempted, Some(thread));
    let throttle =
        |since, nanos| EventKind::Throttle { process, since: at(since), nanos, periods: 1 };
    w.at(95).push(throttle(75, 60));
    w.at(100).switch(cpu, Some(thread), ThreadState::Preempted, Some(go.other));
    w.at(120).switch(cpu, Some(go.other), ThreadState::Preempted, Some(thread));
    w.at(130).go(g, State::Waiting, None, "done");
    let path = go.world.explain(g, 0, 130, None);
    let on = What::OnCpu { cpu };
    let waits = What::WaitsForCpu { occupant: Occupant::Thread(go.other), is_preempted: true };
    let expected = [
        (10, g, on),
        (70, g, What::Throttled),
        (90, g, waits),
        (100, g, on),
        (120, g, waits),
        (130, g, on),
    ];
    assert_eq!(pieces(&path), expected);
}

/// While the thread of a P is throttled, the goroutines that wait for that P are, too.
#[test]
fn a_wait_for_a_throttled_p_is_throttling() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let [cpu, _] = go.cpus;
    let [thread, _] = go.threads;
    let m = go.ms[0];
    let w = &mut go.world;
    let process = w.entity(EntityKind::Process, 10, None);
    w.go(g1, State::Running, Some(m), "");
    w.at(10).wake(Some(g1), Context::Task, g2);
    w.go(g2, State::Runnable, None, "");
    w.at(20).switch(cpu, Some(thread), ThreadState::Preempted, Some(go.other));
    w.at(90).switch(cpu, Some(go.other), ThreadState::Preempted, Some(thread));
    w.at(95).push(EventKind::Throttle { process, since: at(75), nanos: 60, periods: 1 });
    w.at(100).go(g1, State::Waiting, None, "chan receive");
    w.go(g2, State::Running, Some(m), "");
    w.at(110).go(g2, State::Waiting, None, "done");
    let path = go.world.explain(g2, 10, 110, None);
    let (proc, holder) = (Some(go.procs[0]), Some(g1));
    let waits = |kernel| What::WaitsForProc { proc, holder, kernel };
    let (on, occupant) = (Kernel::OnCpu { cpu }, Occupant::Thread(go.other));
    let preempted = Kernel::Runnable { cpu: Some(cpu), occupant, is_preempted: true };
    let expected = [
        (20, g2, waits(on)),
        (80, g2, What::Throttled),
        (90, g2, waits(preempted)),
        (100, g2, waits(on)),
        (110, g2, What::OnCpu { cpu }),
    ];
    assert_eq!(pieces(&path), expected);
}

/// A worker of a thread pool was added because the others were blocked: the request waited in the
/// queue, and before that its own thread ran.
#[test]
fn a_work_item_waits_in_the_queue_of_the_pool() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 7, None);
    let cpus = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let threads = [7, 8].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    let main = w.entity(EntityKind::DotnetThread, 7, Some(process));
    let activity = w.entity(EntityKind::Activity, 1, Some(process));
    w.go(main, State::Running, None, "");
    w.switch(cpus[0], None, ThreadState::Unknown, Some(threads[0]));
    let item = w.at(20).begin(process, SpanKind::Queued, "work item", Some(main), None);
    w.at(30).switch(cpus[0], Some(threads[0]), ThreadState::Sleeping, None);
    let text = w.text("thread-pool starvation");
    w.at(50).push(EventKind::Instant {
        entity: process,
        kind: trace_timeline::InstantKind::Starvation,
        name: text,
        of: None,
        stack: None,
    });
    w.at(60).switch(cpus[1], None, ThreadState::Unknown, Some(threads[1]));
    // The runtime mentions the worker later than the kernel.
    let worker = w.at(65).entity(EntityKind::DotnetThread, 8, Some(process));
    w.go(worker, State::Running, None, "");
    w.finish(item, Some(worker));
    w.at(90).wake(Some(threads[1]), Context::Task, threads[0]);
    w.switch(cpus[0], None, ThreadState::Unknown, Some(threads[0]));
    w.at(95).switch(cpus[1], Some(threads[1]), ThreadState::Sleeping, None);
    w.at(100).switch(cpus[0], Some(threads[0]), ThreadState::Sleeping, None);
    let on = |n: usize| What::OnCpu { cpu: cpus[n] };
    let queued = What::Queued { starvation: 1 };
    let path = w.explain(main, 0, 100, Some(activity));
    let expected =
        [(30, main, on(0)), (65, worker, queued), (90, worker, on(1)), (100, main, on(0))];
    assert_eq!(pieces(&path), expected);
    // A request that ends on the worker began on the thread that queued its item.
    let path = w.explain(worker, 0, 95, Some(activity));
    let expected = [(20, main, on(0)), (65, worker, queued), (95, worker, on(1))];
    assert_eq!(pieces(&path), expected);
    // The life of the thread itself has no such cut.
    let path = w.explain(worker, 0, 95, None);
    assert_eq!(
        pieces(&path),
        [(60, threads[1], What::Unknown), (65, threads[1], on(1)), (95, worker, on(1))]
    );
}

/// Without the kernel's scheduler, the owner that the runtime reports is the one that was waited
/// for.
#[test]
fn a_lock_wait_leads_to_the_owner_that_the_runtime_reports() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 7, None);
    let [waiter, owner] = [1, 2].map(|n| w.entity(EntityKind::DotnetThread, n, Some(process)));
    w.go(waiter, State::Running, None, "");
    w.go(owner, State::Running, None, "");
    let wait = w.at(10).begin(waiter, SpanKind::LockWait, "lock", None, Some(owner));
    w.go(waiter, State::Waiting, None, "lock");
    w.at(70).finish(wait, None);
    w.go(waiter, State::Running, None, "");
    w.at(80).go(waiter, State::Waiting, None, "");
    let path = w.explain(waiter, 0, 80, None);
    let unknown = What::NotRecorded;
    assert_eq!(pieces(&path), [(10, waiter, unknown), (70, owner, unknown), (80, waiter, unknown)]);
    assert_eq!(w.tables.get(path.pieces[1].waiter_reason), b"lock");
    let (what, text) = text::piece(&path.pieces[0], &w.tables);
    assert_eq!((what, &*text), ("not_recorded", "not known: the scheduler was not recorded"));
}

/// Before a switch of its thread, and after a loss, nothing is known of a .NET thread; the scheduler
/// was recorded.
#[test]
fn a_dotnet_thread_of_a_lost_time_is_unknown() {
    let mut w = World::default();
    let cpu = w.entity(EntityKind::Cpu, 0, None);
    let process = w.entity(EntityKind::Process, 7, None);
    let kernel = w.entity(EntityKind::Thread, 7, Some(process));
    let thread = w.entity(EntityKind::DotnetThread, 7, Some(process));
    w.go(thread, State::Running, None, "");
    w.at(10).switch(cpu, None, ThreadState::Unknown, Some(kernel));
    w.at(50).lost(cpu, LossKind::SchedulerRecords, 30);
    w.at(60).switch(cpu, Some(kernel), ThreadState::Sleeping, None);
    let path = w.explain(thread, 0, 60, None);
    let (on, unknown) = (What::OnCpu { cpu }, What::Unknown);
    assert_eq!(pieces(&path), [(10, thread, unknown), (30, thread, on), (60, thread, unknown)]);
}

/// The network poller: a thread without a goroutine that another process wakes. What it did before
/// that is its own affair.
#[test]
fn a_poller_leads_to_the_thread_that_woke_it() {
    let mut go = go();
    let g = go.goroutine(1);
    let [cpu, second] = go.cpus;
    let [_, poller] = go.threads;
    let w = &mut go.world;
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(10).go(g, State::Waiting, None, "network");
    w.at(30).switch(second, Some(poller), ThreadState::Sleeping, Some(go.other));
    w.at(60).wake(Some(go.other), Context::Task, poller);
    w.at(65).switch(second, Some(go.other), ThreadState::Sleeping, Some(poller));
    w.at(70).wake(Some(go.ms[1]), Context::Task, g);
    w.go(g, State::Runnable, None, "");
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(80).go(g, State::Waiting, None, "done");
    let path = go.world.explain(g, 0, 80, None);
    let occupant = Occupant::Unknown;
    let expected = [
        (10, g, What::OnCpu { cpu }),
        // The writer was not seen before it had the CPU.
        (30, go.other, What::Unknown),
        (60, go.other, What::OnCpu { cpu: second }),
        (65, poller, What::WaitsForCpu { occupant, is_preempted: false }),
        (70, poller, What::OnCpu { cpu: second }),
        (80, g, What::OnCpu { cpu }),
    ];
    assert_eq!(pieces(&path), expected);
}

/// Up to Go 1.21 a timer names the P that found it. The P did not make the goroutine wait.
#[test]
fn a_p_is_not_the_cause_of_a_wait() {
    let mut go = go();
    let g = go.goroutine(1);
    let [cpu, _] = go.cpus;
    let w = &mut go.world;
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(10).go(g, State::Waiting, None, "sleep");
    w.go(go.procs[1], State::Idle, None, "");
    w.at(70).wake(Some(go.procs[1]), Context::Unknown, g);
    w.go(g, State::Runnable, None, "");
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.at(80).go(g, State::Waiting, None, "done");
    let path = go.world.explain(g, 0, 80, None);
    let (on, waits) = (What::OnCpu { cpu }, What::Waits { context: Context::Unknown });
    assert_eq!(pieces(&path), [(10, g, on), (70, g, waits), (80, g, on)]);
    let (_, text) = text::piece(&path.pieces[1], &go.world.tables);
    assert_eq!(text, "waited for sleep");
}

/// The holder of a mutex waits for the network on another request. The kernel knows the thread that
/// received the answer, and the process that sent it: both worked for that request.
#[test]
fn threads_behind_a_goroutine_of_another_request_are_context() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let second = go.cpus[1];
    let poller = go.threads[1];
    let w = &mut go.world;
    let [ours, theirs] = [1, 2].map(|n| w.entity(EntityKind::Task, n, Some(go.process)));
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.go(g2, State::Running, Some(go.ms[1]), "");
    let region = w.begin(g2, SpanKind::Region, "save", None, Some(theirs));
    w.at(10).go(g1, State::Waiting, None, "sync");
    w.go(g2, State::Waiting, None, "network");
    w.at(20).switch(second, Some(poller), ThreadState::Sleeping, Some(go.other));
    w.at(60).wake(Some(go.other), Context::Task, poller);
    w.at(65).switch(second, Some(go.other), ThreadState::Sleeping, Some(poller));
    w.at(70).wake(Some(go.ms[1]), Context::Task, g2);
    w.go(g2, State::Runnable, None, "");
    w.go(g2, State::Running, Some(go.ms[1]), "");
    w.at(80).finish(region, None);
    w.at(90).wake(Some(g2), Context::Task, g1);
    w.go(g1, State::Runnable, None, "");
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.at(100).go(g1, State::Waiting, None, "done");
    let path = w.explain(g1, 0, 100, Some(ours));
    let found: Vec<_> =
        path.pieces.iter().map(|p| (p.end.nanos(), p.entity, p.depth, p.context)).collect();
    let expected = [
        (10, g1, 0, None),
        (20, go.other, 2, Some(theirs)),
        (60, go.other, 2, Some(theirs)),
        (65, poller, 2, Some(theirs)),
        (70, poller, 2, Some(theirs)),
        (80, g2, 1, Some(theirs)),
        (90, g2, 1, None),
        (100, g1, 0, None),
    ];
    assert_eq!(found, expected);
    // For the request itself they are causes.
    let path = w.explain(g1, 0, 100, Some(theirs));
    assert!(path.pieces.iter().all(|piece| piece.context.is_none()), "{path:#?}");
}

#[test]
fn disks_and_interrupts_are_leaves() {
    let mut go = go();
    let g = go.goroutine(1);
    let [cpu, _] = go.cpus;
    let [thread, _] = go.threads;
    let w = &mut go.world;
    w.go(g, State::Syscall, Some(go.ms[0]), "");
    w.at(10).switch(cpu, Some(thread), ThreadState::Blocked, None);
    w.at(50).wake(None, Context::HardIrq, thread);
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(60).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    w.at(90).wake(None, Context::SoftIrq, thread);
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(100).go(g, State::Waiting, None, "done");
    let path = go.world.explain(g, 0, 100, None);
    let on = What::OnCpu { cpu };
    let expected = [
        (10, g, on),
        (50, g, What::Blocked),
        (60, g, on),
        (90, g, What::Waits { context: Context::SoftIrq }),
        (100, g, on),
    ];
    assert_eq!(pieces(&path), expected);
}

/// A shell waits in `vfork(2)`, uninterruptibly, until its child executes a program. A thread of the
/// kernel that ends a wait does it for a disk.
#[test]
fn a_program_that_ends_an_uninterruptible_wait_is_followed() {
    let mut w = World::default();
    let cpus = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let [init, kthreadd] = [1, 2].map(|n| w.entity(EntityKind::Process, n, None));
    let shell = w.entity(EntityKind::Process, 10, Some(init));
    let child = w.entity(EntityKind::Process, 11, Some(shell));
    let worker = w.entity(EntityKind::Process, 12, Some(kthreadd));
    let [shell, child, worker] = [(10, shell), (11, child), (12, worker)]
        .map(|(n, process)| w.entity(EntityKind::Thread, n, Some(process)));
    w.switch(cpus[0], None, ThreadState::Unknown, Some(shell));
    w.switch(cpus[1], None, ThreadState::Unknown, Some(child));
    w.at(10).switch(cpus[0], Some(shell), ThreadState::Blocked, None);
    w.at(30).wake(Some(child), Context::Task, shell);
    w.switch(cpus[0], None, ThreadState::Unknown, Some(shell));
    w.at(40).switch(cpus[1], Some(child), ThreadState::Sleeping, Some(worker));
    w.at(50).switch(cpus[0], Some(shell), ThreadState::Blocked, None);
    w.at(80).wake(Some(worker), Context::Task, shell);
    w.switch(cpus[0], None, ThreadState::Unknown, Some(shell));
    w.at(90).switch(cpus[0], Some(shell), ThreadState::Sleeping, None);
    let path = w.explain(shell, 0, 90, None);
    let on = |n: usize| What::OnCpu { cpu: cpus[n] };
    let expected = [
        (10, shell, on(0)),
        (30, child, on(1)),
        (50, shell, on(0)),
        (80, shell, What::Blocked),
        (90, shell, on(0)),
    ];
    assert_eq!(pieces(&path), expected);
}

/// A P keeps the world from stopping because its thread has no CPU.
#[test]
fn a_pause_names_who_was_late_and_why() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let [p0, p1] = go.procs;
    let w = &mut go.world;
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.go(g2, State::Running, Some(go.ms[1]), "");
    w.at(10).switch(go.cpus[1], Some(go.threads[1]), ThreadState::Preempted, Some(go.other));
    let process = go.process;
    let pause = w.at(20).begin(process, SpanKind::StopTheWorld, "GC mark", Some(g1), None);
    w.at(60).switch(go.cpus[1], Some(go.other), ThreadState::Sleeping, Some(go.threads[1]));
    w.at(65).go(g2, State::Runnable, None, "preempted");
    w.go(p1, State::Idle, None, "");
    w.at(70).finish(pause, Some(g1));
    let pauses = go.world.pauses();
    assert_eq!(pauses.len(), 1);
    let pause = &pauses[0];
    assert_eq!((pause.begin, pause.stopped, pause.end), (at(20), Some(at(65)), at(70)));
    assert_eq!(pause.stops.len(), 1, "{p0:?} requested it");
    let stop = pause.stops[0];
    assert_eq!((stop.entity, stop.holder, stop.thread), (p1, Some(g2), Some(go.threads[1])));
    assert_eq!((stop.at, stop.on_cpu, stop.runnable), (at(65), 5, 40));
    let requester = pause.requester.as_ref().unwrap();
    assert_eq!((requester.thread, requester.stopping.on_cpu), (go.threads[0], 45));
    assert_eq!((requester.stopping.runnable, requester.stopped.runnable), (0, 0));
    assert_eq!(text::requester(pause, &go.world.tables), None, "it had a CPU all the time");
}

/// All have stopped at once, and the requester loses its CPU: before and after they had.
#[test]
fn a_pause_names_who_had_the_cpu_of_its_requester() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let (cpu, thread) = (go.cpus[0], go.threads[0]);
    let w = &mut go.world;
    let process = w.entity(EntityKind::Process, 98, None);
    let name = w.text("stress");
    w.tables.entities.get_mut(process).unwrap().name = name;
    let hog = w.entity(EntityKind::Thread, 97, Some(process));
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.go(g2, State::Running, Some(go.ms[1]), "");
    let pause = w.at(20).begin(go.process, SpanKind::StopTheWorld, "GC mark", Some(g1), None);
    w.at(30).switch(cpu, Some(thread), ThreadState::Preempted, Some(go.other));
    w.at(35).go(g2, State::Runnable, None, "preempted");
    w.go(go.procs[1], State::Idle, None, "");
    w.at(40).switch(cpu, Some(go.other), ThreadState::Preempted, Some(hog));
    w.at(70).switch(cpu, Some(hog), ThreadState::Preempted, Some(thread));
    w.at(75).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    w.at(80).wake(None, Context::SoftIrq, thread);
    w.at(82).switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(90).finish(pause, Some(g1));
    let [pause] = &go.world.pauses()[..] else { panic!("one pause") };
    let requester = pause.requester.as_ref().unwrap();
    assert_eq!(pause.stopped, Some(at(35)));
    assert_eq!((requester.stopping.on_cpu, requester.stopping.runnable), (10, 5));
    assert_eq!((requester.stopped.on_cpu, requester.stopped.runnable), (13, 37));
    let [other, hog] = [go.other, hog].map(Occupant::Thread);
    assert_eq!(requester.occupants, [(hog, 30), (other, 10), (Occupant::Unknown, 2)]);
    assert_eq!(
        text::requester(pause, &go.world.tables).unwrap(),
        "G1, without a CPU for 42 ns (5 ns of it until all had stopped); that CPU: thread 97 of \
         stress (98) 30 ns, thread 99 10 ns, unknown 2 ns"
    );
}

#[test]
fn a_goroutine_that_did_not_exist_yet_is_explained_by_its_creator() {
    let mut go = go();
    let g1 = go.goroutine(1);
    let cpus = go.cpus;
    let on = |n: usize| What::OnCpu { cpu: cpus[n] };
    let w = &mut go.world;
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.at(40);
    let g2 = go.goroutine(2);
    let w = &mut go.world;
    w.push(EventKind::Flow {
        kind: FlowKind::Creates,
        from: Some(g1),
        context: Context::Task,
        on: None,
        to: g2,
        cpu: None,
        stack: None,
    });
    w.go(g2, State::Runnable, None, "");
    w.at(50).go(g2, State::Running, Some(go.ms[1]), "");
    w.at(90).go(g2, State::Waiting, None, "done");
    let path = go.world.explain(g2, 0, 90, None);
    let kernel = Kernel::OnCpu { cpu: cpus[1] };
    let proc = What::WaitsForProc { proc: Some(go.procs[1]), holder: None, kernel };
    assert_eq!(pieces(&path), [(40, g1, on(0)), (50, g2, proc), (90, g2, on(1))]);
}

/// The thread that is woken for an idle P waits for a CPU: so does the goroutine that runs on it then.
#[test]
fn an_idle_p_whose_next_thread_waits_for_a_cpu_is_that_wait() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let ([_, cpu], [_, thread], [_, p1]) = (go.cpus, go.threads, go.procs);
    let (m, other) = (go.ms[1], go.other);
    let w = &mut go.world;
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.go(p1, State::Idle, None, "");
    w.at(5).switch(cpu, Some(thread), ThreadState::Sleeping, Some(other));
    w.at(10).wake(Some(g1), Context::Task, g2);
    w.go(g2, State::Runnable, None, "");
    let (kind, from, context) = (FlowKind::Wakes, Some(go.threads[0]), Context::Task);
    let (on, to, stack) = (None, thread, None);
    w.at(20).push(EventKind::Flow { kind, from, context, on, to, cpu: Some(cpu), stack });
    w.at(70).switch(cpu, Some(other), ThreadState::Preempted, Some(thread));
    w.at(75).go(p1, State::Running, Some(m), "");
    w.at(80).go(g2, State::Running, Some(m), "");
    w.at(90).go(g2, State::Waiting, None, "done");
    let path = go.world.explain(g2, 10, 90, None);
    assert_eq!(path.pieces.iter().map(Piece::nanos).sum::<i64>(), 80);
    let ends: Vec<i64> = path.pieces.iter().map(|piece| piece.end.nanos()).collect();
    assert_eq!(ends, [20, 70, 75, 80, 90]);
    let texts = for_p(&go, &path);
    let idle = "runnable, P1 was idle (wake-up latency)";
    let (no_cpu, between) =
        ("runnable, the thread of P1 waited for thread 99", "runnable, P1 was between goroutines");
    assert_eq!(texts, [idle, no_cpu, idle, between]);
    let by = path.pieces.get(1).and_then(|piece| match piece.what {
        What::WaitsForProc { kernel: Kernel::Runnable { occupant, .. }, .. } => occupant.thread(),
        _ => None,
    });
    assert_eq!(by, Some(other));
}

/// Two goroutines that wake each other at the same moment: no cycle.
#[test]
fn wakes_at_the_same_time_are_followed_once() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let w = &mut go.world;
    for g in [g1, g2] {
        w.go(g, State::Waiting, None, "tie");
    }
    w.at(50).wake(Some(g2), Context::Task, g1);
    w.go(g1, State::Runnable, None, "");
    w.wake(Some(g1), Context::Task, g2);
    w.go(g2, State::Runnable, None, "");
    w.at(60);
    w.go(g1, State::Running, Some(go.ms[0]), "");
    let path = go.world.explain(g1, 0, 60, None);
    assert_eq!(path.pieces[0].what, What::Waits { context: Context::Task });
    assert_eq!(path.pieces[0].nanos(), 50);
}

/// A .NET thread waits twice for the same lock. The kernel does more with it than the runtime reports.
#[test]
fn a_lock_wait_is_counted_once() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 1, None);
    let cpu = w.entity(EntityKind::Cpu, 0, None);
    let [thread, other] = [7, 8].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    let dotnet = w.entity(EntityKind::DotnetThread, 7, Some(process));
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.go(dotnet, State::Running, None, "");
    w.at(10).go(dotnet, State::Waiting, None, "Monitor");
    w.at(15).switch(cpu, Some(thread), ThreadState::Sleeping, Some(other));
    w.at(70).wake(Some(other), Context::Task, thread);
    w.at(80).switch(cpu, Some(other), ThreadState::Preempted, None);
    w.at(85).switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(90).go(dotnet, State::Running, None, "");
    w.at(95).go(dotnet, State::Waiting, None, "Monitor");
    w.at(115).go(dotnet, State::Running, None, "");
    w.at(120).push(EventKind::End { entity: dotnet });
    let waiting = |i: &&trace_timeline::Interval| i.state == State::Waiting;
    assert!(w.intervals(dotnet).iter().filter(waiting).count() > 2);
    let report = w.report(Report::new());
    let waits: Vec<_> = report.waits.values().map(|waits| &waits.durations).collect();
    let [waits] = waits[..] else { panic!("{waits:?}") };
    assert_eq!((waits.count(), waits.sum(), waits.max()), (2, 100, 80));
    assert_eq!(waits.buckets().map(|(_, _, count)| count).collect::<Vec<_>>(), [1, 1]);
}

/// The texts of the pieces in which a goroutine waited for a P.
fn for_p(go: &Go, path: &CriticalPath) -> Vec<String> {
    let is_it = |piece: &&Piece| matches!(piece.what, What::WaitsForProc { .. });
    let pieces = path.pieces.iter().filter(is_it);
    pieces.map(|piece| text::piece(piece, &go.world.tables).1).collect()
}

/// A goroutine waits for a P at the end of the trace, or before a time in which nothing is known of
/// the P.
#[test]
fn a_p_that_is_not_known_is_not_between_goroutines() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let [p0, _] = go.procs;
    let w = &mut go.world;
    w.go(g1, State::Runnable, None, "");
    w.at(10).go(p0, State::Unknown, None, "");
    w.at(20).go(p0, State::Running, Some(go.ms[0]), "");
    w.at(30).go(g1, State::Running, Some(go.ms[0]), "");
    w.go(g2, State::Runnable, None, "");
    w.at(50).go(g1, State::Waiting, None, "select");
    let (between, unknown) =
        ("runnable, P0 was between goroutines", "runnable, its P is not known");
    let path = go.world.explain(g1, 0, 50, None);
    assert_eq!(for_p(&go, &path), [between, unknown, between]);
    let summed = path.pieces.iter().map(|piece| text::use_of_time(piece, &go.world.tables));
    let of_any = "runnable, a P was between goroutines";
    assert_eq!(summed.take(3).collect::<Vec<_>>(), [of_any, unknown, of_any]);
    let path = go.world.explain(g2, 30, 50, None);
    assert_eq!(for_p(&go, &path), [unknown]);
}

/// The P is that of the next interval, which begins after the window, and not one of a later window.
#[test]
fn the_p_is_known_behind_the_end_of_the_window() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let [m0, m1] = go.ms;
    let w = &mut go.world;
    w.go(g1, State::Runnable, None, "");
    w.go(g2, State::Running, Some(m0), "");
    w.at(30).go(g2, State::Waiting, None, "select");
    w.go(g1, State::Running, Some(m0), "");
    w.at(40).go(g1, State::Waiting, None, "select");
    w.at(50).go(g1, State::Runnable, None, "");
    w.at(60).go(g1, State::Running, Some(m1), "");
    w.at(70).go(g1, State::Waiting, None, "done");
    for windows in [&[(at(5), at(20))][..], &[(at(5), at(20)), (at(55), at(65))]] {
        let history = go.world.history_within(windows);
        let entities = &go.world.tables.entities;
        let path = critical_path(&history, entities, g1, at(5), at(20), None);
        assert_eq!(for_p(&go, &path), ["runnable, P0 ran G2"]);
    }
}

/// The reason of a wait is that of the one that waits. A thread that ends waits for the runtime has the
/// reason of the goroutine.
#[test]
fn a_sleep_has_no_reason_of_its_waiter() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let [_, second] = go.cpus;
    let [_, thread] = go.threads;
    let [m0, m1] = go.ms;
    let w = &mut go.world;
    w.go(g1, State::Running, Some(m0), "");
    w.go(g2, State::Running, Some(m1), "");
    w.at(10).go(g1, State::Waiting, None, "chan receive");
    w.go(g2, State::Syscall, Some(m1), "");
    w.switch(second, Some(thread), ThreadState::Sleeping, None);
    w.at(60).wake(None, Context::HardIrq, thread);
    w.switch(second, None, ThreadState::Unknown, Some(thread));
    w.go(g2, State::Running, Some(m1), "");
    w.at(70).wake(Some(g2), Context::Task, g1);
    w.go(g2, State::Waiting, None, "done");
    w.go(g1, State::Running, Some(m0), "");
    // The other thread polls the network.
    w.at(80).go(g1, State::Waiting, None, "network");
    w.switch(second, Some(thread), ThreadState::Sleeping, None);
    w.at(150).wake(None, Context::SoftIrq, thread);
    w.switch(second, None, ThreadState::Unknown, Some(thread));
    w.at(160).wake(Some(m1), Context::Task, g1);
    w.go(g1, State::Running, Some(m0), "");
    w.at(170).go(g1, State::Waiting, None, "done");
    let path = go.world.explain(g1, 0, 170, None);
    let tables = &go.world.tables;
    let waits = path.pieces.iter().filter(|piece| matches!(piece.what, What::Waits { .. }));
    let found: Vec<_> = waits.map(|piece| (piece.entity, text::piece(piece, tables).1)).collect();
    let network = "waited for network, ended by a software interrupt (network, timer)";
    let expected = [(g2, "slept, ended by a hardware interrupt"), (thread, network)];
    assert_eq!(found, expected.map(|(entity, text)| (entity, text.to_owned())));
}

/// Each span is opened and closed once: with a look at all spans for each piece this would not end.
#[test]
fn many_spans_and_many_pieces() {
    const ALL: i64 = 100_000;
    let mut go = go();
    let g = go.goroutine(1);
    let (cpu, thread, other) = (go.cpus[0], go.threads[0], go.other);
    let w = &mut go.world;
    let task = w.entity(EntityKind::Task, 1, Some(go.process));
    // It does not end.
    w.begin(g, SpanKind::Region, "save", None, Some(task));
    w.go(g, State::Waiting, None, "sleep");
    for n in 0..ALL {
        let span = w.at(2 * n).begin(g, SpanKind::GcAssist, "", None, None);
        w.at(2 * n + 1).finish(span, None);
    }
    let begin = 2 * ALL;
    w.at(begin).go(g, State::Running, Some(go.ms[0]), "");
    for n in 0..ALL / 2 {
        w.at(begin + 2 * n + 1);
        w.switch(cpu, Some(thread), ThreadState::Preempted, Some(other));
        w.at(begin + 2 * n + 2);
        w.switch(cpu, Some(other), ThreadState::Preempted, Some(thread));
    }
    let end = begin + ALL;
    w.at(end).go(g, State::Waiting, None, "done");
    let path = w.explain(g, 0, end, None);
    let (in_spans, rest): (Vec<&Piece>, Vec<&Piece>) =
        path.pieces.iter().partition(|piece| piece.during.is_some());
    assert_eq!((in_spans.len(), rest.len()), (ALL as usize, 2 * ALL as usize));
}

/// The sampler of .NET stops all threads before it takes their stacks.
#[test]
fn a_managed_sample_has_the_state_before_the_stop() {
    let mut w = World::default();
    let cpu = w.entity(EntityKind::Cpu, 0, None);
    let process = w.entity(EntityKind::Process, 1, None);
    let threads = [7, 8].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    let [runs, sleeps] = [7, 8].map(|n| w.entity(EntityKind::DotnetThread, n, Some(process)));
    w.switch(cpu, None, ThreadState::Unknown, Some(threads[1]));
    w.at(5).switch(cpu, Some(threads[1]), ThreadState::Sleeping, Some(threads[0]));
    let stop = w.at(10).begin(process, SpanKind::StopTheWorld, "sample profiler", None, None);
    w.at(12).switch(cpu, Some(threads[0]), ThreadState::Sleeping, None);
    for entity in [runs, sleeps] {
        w.at(15).push(EventKind::Sample {
            entity,
            kind: trace_timeline::SampleKind::Managed,
            stack: None,
            weight: 1,
            thread: None,
            cpu: None,
            event: Default::default(),
            of: None,
        });
    }
    w.at(20).finish(stop, None);
    let samples = w.samples();
    let kernels: Vec<Kernel> = samples.iter().map(|sample| sample.kernel).collect();
    assert_eq!(kernels, [Kernel::OnCpu { cpu }, Kernel::Sleeping]);
}

/// Each of many goroutines waits for a P once, the later ones longer.
#[test]
fn the_worst_goroutines_have_times_of_their_own() {
    const ALL: i64 = 20_000;
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 1, None);
    let m = w.entity(EntityKind::GoThread, 2, Some(process));
    for number in 1..=ALL {
        let goroutine = w.entity(EntityKind::Goroutine, number, Some(process));
        w.go(goroutine, State::Runnable, None, "");
        w.at(w.now + number);
        w.go(goroutine, State::Running, Some(m), "");
        w.at(w.now + 1);
        w.push(EventKind::End { entity: goroutine });
    }
    let mut report = Report::new();
    report.keep_goroutine(5);
    let report = w.report(report);
    let entities = &w.tables.entities;
    let found: Vec<(i64, u64, i64)> = report
        .goroutines(3, entities)
        .into_iter()
        .map(|(id, g)| (entities.get(id).unwrap().number, g.latency.sum(), g.total()))
        .collect();
    let of = |number: i64| (number, number as u64, number + 1);
    assert_eq!(found, [of(ALL), of(ALL - 1), of(ALL - 2), of(5)]);
    let all = report.goroutines(usize::MAX, entities).len();
    assert!((1_024..5_000).contains(&all), "{all}");
    assert_eq!(report.goroutines_dropped(), 0);
}

/// A goroutine has all of its times or none, also if many exist before the first of them has an
/// interval, as at the begin of a trace.
#[test]
fn goroutines_without_own_times_are_counted() {
    const ALL: i64 = 40_000;
    const MOST: usize = 1 << 15;
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 1, None);
    let all: Vec<EntityId> =
        (1..=ALL).map(|number| w.entity(EntityKind::Goroutine, number, Some(process))).collect();
    for goroutine in &all {
        w.go(*goroutine, State::Runnable, None, "");
    }
    w.at(10);
    for goroutine in &all[..10] {
        w.push(EventKind::End { entity: *goroutine });
    }
    // There is room by now, but a part of their times is gone.
    for goroutine in &all[10..] {
        w.go(*goroutine, State::Waiting, None, "select");
    }
    w.at(30).push(EventKind::End { entity: process });
    let mut report = Report::new();
    report.keep_goroutine(ALL);
    let report = w.report(report);
    let found = report.goroutines(usize::MAX, &w.tables.entities);
    assert_eq!(found.len(), MOST + 1);
    assert_eq!(report.goroutines_dropped(), ALL as u64 - found.len() as u64);
    for (goroutine, times) in found {
        let number = w.tables.entities.get(goroutine).unwrap().number;
        assert_eq!(times.total(), if number <= 10 { 10 } else { 30 }, "G{number}");
    }
}
