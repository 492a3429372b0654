//! States of threads and goroutines by the records of the kernel, and times in which they are not known.

use crate::common::{World, at};
use crate::{Go, go};
use trace_timeline::answers::Report;
use trace_timeline::{
    Context, EntityId, EntityKind, EventKind, FlowKind, Kernel, LossKind, Occupant, State,
    ThreadState,
};

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
        intervals.map(|i| (i.start.nanos(), i.end.nanos(), i.state, i.kernel)).collect()
    };
    let w = &go.world;
    assert!(w.events.is_sorted_by_key(|event| event.time));
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

/// Another recording has wake-ups alone.
#[test]
fn a_wake_up_after_the_end_of_a_recording_begins_no_wait_for_a_cpu() {
    let mut w = World::default();
    let cpu = w.entity(EntityKind::Cpu, 0, None);
    let thread = w.entity(EntityKind::Thread, 10, None);
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(10).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    w.at(20).push(EventKind::End { entity: cpu });
    wake_on(w.at(30), cpu, thread);
    wake_on(w.at(90), cpu, thread);
    let found: Vec<_> = w.intervals(thread).iter().map(|i| (i.end.nanos(), i.kernel)).collect();
    let expected = [(10, Kernel::OnCpu { cpu }), (20, Kernel::Sleeping), (90, Kernel::Unknown)];
    assert_eq!(found, expected);
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

/// The record of its way from the other CPU is missing: it did not leave the one that it has now.
#[test]
fn an_unreported_switch_does_not_disturb_a_thread_that_has_another_cpu() {
    let mut go = go();
    let [cpu, second] = go.cpus;
    let [thread, other] = go.threads;
    let w = &mut go.world;
    w.at(20).switch(second, Some(other), ThreadState::Sleeping, None);
    w.at(50).switch(second, None, ThreadState::Unknown, Some(thread));
    w.at(60).lost(cpu, LossKind::UnreportedSwitch, 30);
    w.switch(cpu, Some(go.other), ThreadState::Sleeping, None);
    w.at(90).switch(second, Some(thread), ThreadState::Sleeping, None);
    let found: Vec<_> =
        go.world.intervals(thread).iter().map(|i| (i.end.nanos(), i.kernel)).collect();
    assert_eq!(found, [(50, Kernel::OnCpu { cpu }), (90, Kernel::OnCpu { cpu: second })]);
}

/// No record says that it left the first one.
#[test]
fn a_thread_that_is_seen_on_another_cpu_does_not_occupy_the_one_before() {
    for is_leaving in [false, true] {
        let mut go = go();
        let [cpu, second] = go.cpus;
        let [waiting, idle] = go.threads;
        let w = &mut go.world;
        w.at(10).switch(cpu, Some(waiting), ThreadState::Preempted, Some(go.other));
        w.at(20).switch(second, Some(idle), ThreadState::Sleeping, None);
        let moved = Some(go.other);
        let (prev, next) = if is_leaving { (moved, None) } else { (None, moved) };
        let left = if is_leaving { ThreadState::Sleeping } else { ThreadState::Unknown };
        w.at(50).switch(second, prev, left, next);
        w.at(90).switch(cpu, None, ThreadState::Unknown, Some(waiting));
        let found: Vec<_> =
            go.world.intervals(waiting).iter().map(|i| (i.end.nanos(), i.kernel)).collect();
        let waits = |occupant| Kernel::Runnable { cpu: Some(cpu), occupant, is_preempted: true };
        let expected = [
            (10, Kernel::OnCpu { cpu }),
            (50, waits(Occupant::Thread(go.other))),
            (90, waits(Occupant::Unknown)),
        ];
        assert_eq!(found, expected);
    }
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

/// The first record of a CPU is of a thread that left another one before: when it came is not known. The
/// events of `perf record -a` begin on one CPU after the other.
#[test]
fn a_thread_that_the_first_switch_of_a_cpu_shows_there_is_unknown_since_its_last_state() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 10, None);
    let kernel_process = w.entity(EntityKind::Process, 10, None);
    let cpus = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let thread = w.entity(EntityKind::Thread, 10, Some(kernel_process));
    let other = w.entity(EntityKind::Thread, 99, None);
    let m = w.entity(EntityKind::GoThread, 10, Some(process));
    let g = w.entity(EntityKind::Goroutine, 1, Some(process));
    w.go(g, State::Running, Some(m), "");
    w.at(10).switch(cpus[0], Some(thread), ThreadState::Sleeping, Some(other));
    w.at(50).switch(cpus[1], Some(thread), ThreadState::Preempted, None);
    w.at(90).switch(cpus[1], None, ThreadState::Unknown, Some(thread));
    w.at(95).go(g, State::Waiting, None, "select");
    let of = |id| -> Vec<_> {
        w.intervals(id).iter().map(|i| (i.start.nanos(), i.end.nanos(), i.kernel)).collect()
    };
    let (cpu, occupant, is_preempted) = (Some(cpus[1]), Occupant::Idle, true);
    let waits = (50, 90, Kernel::Runnable { cpu, occupant, is_preempted });
    let runs = (90, 95, Kernel::OnCpu { cpu: cpus[1] });
    for id in [thread, g] {
        let found = of(id);
        assert!(found.iter().all(|(start, end, kernel)| {
            *kernel == Kernel::Unknown && *end <= 50 || *start >= 50
        }));
        assert_eq!(found[found.len() - 2..], [waits, runs]);
    }
    // One whose place is known there stays as it is.
    assert_eq!(of(other).last(), Some(&(10, 95, Kernel::OnCpu { cpu: cpus[0] })));
}

/// A thread is woken when it has begun to sleep and still has its CPU: the kernel puts it in a queue
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
    let occupant = Occupant::Thread(second);
    let waits = Kernel::Runnable { cpu: Some(other_cpu), occupant, is_preempted: false };
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
    (wait.start.nanos(), wait.kernel)
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

/// A wake-up of a thread that continues says nothing of its next sleep, whose wake-up is missing here.
#[test]
fn a_thread_that_continues_after_a_wake_up_sleeps_later() {
    let asleep = |start| (start, Kernel::Sleeping);
    // It continued for too long.
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

/// A flow to a thread that last ran on this CPU.
fn flow_on(w: &mut World, kind: FlowKind, cpu: Option<EntityId>, to: EntityId) {
    let (from, context) = (None, Context::HardIrq);
    let (on, stack) = (None, None);
    w.push(EventKind::Flow { kind, from, context, on, to, cpu, stack });
}

/// A wake-up of a thread on a CPU.
fn wake_on(w: &mut World, cpu: EntityId, to: EntityId) {
    flow_on(w, FlowKind::Wakes, Some(cpu), to);
}

/// Only wake-ups are recorded, with or without the CPU: nothing says when the thread gets one.
#[test]
fn wake_ups_alone_are_no_waits_for_a_cpu() {
    for has_cpu in [true, false] {
        let mut w = World::default();
        let process = w.entity(EntityKind::Process, 10, None);
        let cpu = w.entity(EntityKind::Cpu, 0, None);
        let thread = w.entity(EntityKind::Thread, 10, Some(process));
        for time in [10, 90] {
            flow_on(w.at(time), FlowKind::Wakes, has_cpu.then_some(cpu), thread);
        }
        let found: Vec<_> = w.intervals(thread).iter().map(|i| (i.end.nanos(), i.kernel)).collect();
        assert_eq!(found, [(90, Kernel::Unknown)]);
        let report = w.report(Report::new());
        assert!(!report.has_scheduler() && report.preempters.is_empty());
        assert_eq!(report.wakers.values().sum::<u64>(), 2);
    }
}

/// A source of its own can say that a thread of the kernel has another one's work. That one may do it later.
#[test]
fn work_that_a_thread_gets_ends_no_sleep() {
    for kind in [FlowKind::Continues, FlowKind::HandsOver] {
        let mut w = World::default();
        let cpu = w.entity(EntityKind::Cpu, 0, None);
        let thread = w.entity(EntityKind::Thread, 10, None);
        w.switch(cpu, None, ThreadState::Unknown, Some(thread));
        w.at(10).switch(cpu, Some(thread), ThreadState::Sleeping, None);
        flow_on(w.at(30), kind, Some(cpu), thread);
        w.at(50).switch(cpu, None, ThreadState::Unknown, Some(thread));
        let found: Vec<_> = w.intervals(thread).iter().map(|i| (i.end.nanos(), i.kernel)).collect();
        assert_eq!(found, [(10, Kernel::OnCpu { cpu }), (50, Kernel::Sleeping)]);
    }
}

/// One of two CPUs is recorded: a thread that is woken on the other one is not known until it is back.
#[test]
fn a_thread_that_is_woken_on_a_cpu_without_switches_is_unknown() {
    let mut w = World::default();
    let [cpu, other] = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let thread = w.entity(EntityKind::Thread, 10, None);
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(20).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    wake_on(w.at(30), other, thread);
    w.at(80).switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(90).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    wake_on(w.at(95), cpu, thread);
    w.at(99).switch(cpu, None, ThreadState::Unknown, Some(thread));
    let found: Vec<_> = w.intervals(thread).iter().map(|i| (i.end.nanos(), i.kernel)).collect();
    let (on, occupant, is_preempted) = (Kernel::OnCpu { cpu }, Occupant::Idle, false);
    let expected = [
        (20, on),
        (30, Kernel::Sleeping),
        (80, Kernel::Unknown),
        (90, on),
        (95, Kernel::Sleeping),
        (99, Kernel::Runnable { cpu: Some(cpu), occupant, is_preempted }),
    ];
    assert_eq!(found, expected);
}

/// A CPU was idle since the recording began, and its first switch is to a thread that was woken on it. A loss
/// between them can have another one.
#[test]
fn the_first_switch_of_a_cpu_ends_the_wait_of_a_woken_thread() {
    for is_lost in [false, true] {
        let mut w = World::default();
        let [cpu, idle] = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
        let [thread, other] = [10, 11].map(|n| w.entity(EntityKind::Thread, n, None));
        w.switch(cpu, None, ThreadState::Unknown, Some(thread));
        w.at(20).switch(cpu, Some(thread), ThreadState::Sleeping, None);
        wake_on(w.at(30), idle, thread);
        wake_on(w.at(33), idle, other);
        if is_lost {
            w.at(50).lost(cpu, LossKind::SchedulerRecords, 45);
        }
        w.at(60).switch(idle, None, ThreadState::Unknown, Some(thread));
        w.at(70).switch(idle, Some(thread), ThreadState::Sleeping, Some(other));
        w.at(80).switch(idle, Some(other), ThreadState::Sleeping, None);
        let of = |thread| -> Vec<_> {
            w.intervals(thread).iter().map(|i| (i.end.nanos(), i.state, i.kernel)).collect()
        };
        let on = |cpu| (State::Running, Kernel::OnCpu { cpu });
        let sleeping = (State::Waiting, Kernel::Sleeping);
        let unknown = (State::Unknown, Kernel::Unknown);
        let (occupant, is_preempted) = (Occupant::Unknown, false);
        let kernel = Kernel::Runnable { cpu: Some(idle), occupant, is_preempted };
        let waits = if is_lost { unknown } else { (State::Runnable, kernel) };
        let ends = |expected: &[(i64, (State, Kernel))]| -> Vec<_> {
            expected.iter().map(|(end, (state, kernel))| (*end, *state, *kernel)).collect()
        };
        let expected = [(20, on(cpu)), (30, sleeping), (60, waits), (70, on(idle)), (80, sleeping)];
        assert_eq!(of(thread), ends(&expected));
        let mut expected = vec![(33, unknown), (70, waits), (80, on(idle))];
        expected.drain(..usize::from(is_lost)); // it stays unknown
        assert_eq!(of(other), ends(&expected));
    }
}

/// A thread that sleeps, since another one has its CPU, the first of two. The second CPU has a thread, too.
struct Sleeper {
    world: World,
    cpus: [EntityId; 2],
    thread: EntityId,
    /// On the first CPU.
    first: EntityId,
    /// On the second CPU.
    second: EntityId,
    third: EntityId,
}

/// It leaves its CPU at 5.
fn sleeper(left: ThreadState) -> Sleeper {
    let mut w = World::default();
    let process = Some(w.entity(EntityKind::Process, 10, None));
    let cpus = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let [thread, first, second, third] =
        [10, 11, 12, 13].map(|n| w.entity(EntityKind::Thread, n, process));
    w.switch(cpus[0], None, ThreadState::Unknown, Some(thread));
    w.switch(cpus[1], None, ThreadState::Unknown, Some(second));
    w.at(5).switch(cpus[0], Some(thread), left, Some(first));
    Sleeper { world: w, cpus, thread, first, second, third }
}

impl Sleeper {
    /// It is woken. The record has the CPU on which it last ran, also if the kernel chooses another one.
    fn wake(&mut self) {
        wake_on(self.world.at(10), self.cpus[0], self.thread);
    }

    /// A record says that it is in the queue of the second CPU.
    fn queue(&mut self, time: i64, is_moved: bool) {
        let (thread, [first, cpu]) = (self.thread, self.cpus);
        let from = is_moved.then_some(first);
        self.world.at(time).push(EventKind::Queue { thread, from, cpu });
    }

    /// It gets a CPU from this thread.
    fn run(&mut self, time: i64, cpu: usize, prev: Option<EntityId>) {
        let (cpu, next) = (self.cpus[cpu], Some(self.thread));
        self.world.at(time).switch(cpu, prev, ThreadState::Sleeping, next);
        self.world.at(time + 10).switch(cpu, next, ThreadState::Sleeping, None);
    }

    /// Its waits for a CPU: begin, end, number of the CPU and the occupant.
    fn waits(&self) -> Vec<(i64, i64, usize, Occupant)> {
        let waits = self.world.intervals(self.thread).into_iter().filter_map(|i| match i.kernel {
            Kernel::Runnable { cpu, occupant, .. } => {
                let cpu = self.cpus.iter().position(|known| Some(*known) == cpu).unwrap();
                Some((i.start.nanos(), i.end.nanos(), cpu, occupant))
            }
            _ => None,
        });
        waits.collect()
    }
}

/// The kernel puts it in the queue of another CPU. The thread on the CPU on which it last ran has no part in it.
#[test]
fn a_woken_thread_waits_for_the_cpu_that_it_gets() {
    let mut s = sleeper(ThreadState::Sleeping);
    s.world.at(6).switch(s.cpus[1], Some(s.second), ThreadState::Sleeping, None);
    s.wake();
    s.run(14, 1, None);
    assert_eq!(s.waits(), [(10, 14, 1, Occupant::Idle)]);
    let report = s.world.report(Report::new());
    let occupants: Vec<Occupant> = report.preempters.keys().map(|(_, by)| *by).collect();
    assert_eq!(occupants, [Occupant::Idle]);
    // A thread that had that CPU since before the wake-up.
    let mut s = sleeper(ThreadState::Sleeping);
    s.wake();
    s.run(14, 1, Some(s.second));
    assert_eq!(s.waits(), [(10, 14, 1, Occupant::Thread(s.second))]);
}

/// What the CPU executed last has its share. Before that, the thread may have been in another queue.
#[test]
fn a_woken_thread_waits_for_the_last_occupant_of_another_cpu() {
    let mut s = sleeper(ThreadState::Sleeping);
    s.wake();
    s.world.at(12).switch(s.cpus[1], Some(s.second), ThreadState::Sleeping, Some(s.third));
    s.run(14, 1, Some(s.third));
    let third = Occupant::Thread(s.third);
    assert_eq!(s.waits(), [(10, 12, 1, Occupant::Unknown), (12, 14, 1, third)]);
    // A CPU without anything to do takes a thread from its queue at once: the thread came from another one.
    let mut s = sleeper(ThreadState::Sleeping);
    s.wake();
    s.world.at(12).switch(s.cpus[1], Some(s.second), ThreadState::Sleeping, None);
    s.run(14, 1, None);
    assert_eq!(s.waits(), [(10, 14, 1, Occupant::Unknown)]);
    // It is not known since when that CPU had its last occupant.
    let mut s = sleeper(ThreadState::Sleeping);
    s.wake();
    s.world.at(12).lost(s.cpus[1], LossKind::UnreportedSwitch, 11);
    s.run(14, 1, Some(s.third));
    assert_eq!(s.waits(), [(10, 14, 1, Occupant::Unknown)]);
}

/// It has waited for all that its CPU executed meanwhile.
#[test]
fn a_woken_thread_that_gets_its_last_cpu_waits_for_all_occupants() {
    let mut s = sleeper(ThreadState::Sleeping);
    s.wake();
    let (cpu, first, third) = (s.cpus[0], s.first, s.third);
    s.world.at(12).switch(cpu, Some(first), ThreadState::Preempted, Some(third));
    s.world.at(13).switch(cpu, Some(third), ThreadState::Sleeping, Some(first));
    s.run(14, 0, Some(first));
    let [first, third] = [first, third].map(Occupant::Thread);
    assert_eq!(s.waits(), [(10, 12, 0, first), (12, 13, 0, third), (13, 14, 0, first)]);
}

/// It gets none until the end, or records are lost.
#[test]
fn a_woken_thread_that_gets_no_cpu_waits_for_nobody_that_is_known() {
    for is_lost in [false, true] {
        let mut s = sleeper(ThreadState::Sleeping);
        s.wake();
        let (cpu, first) = (s.cpus[0], s.first);
        s.world.at(20).switch(cpu, Some(first), ThreadState::Sleeping, None);
        if is_lost {
            s.world.at(30).lost(cpu, LossKind::SchedulerRecords, 25);
        }
        s.world.at(40).switch(cpu, None, ThreadState::Unknown, Some(first));
        let end = if is_lost { 25 } else { 40 };
        assert_eq!(s.waits(), [(10, end, 0, Occupant::Unknown)]);
    }
}

/// As records of migrations and of `sched_wakeup` say it: nothing is inferred.
#[test]
fn a_record_of_the_queue_says_which_cpu_a_thread_waits_for() {
    for is_moved in [true, false] {
        let mut s = sleeper(ThreadState::Sleeping);
        s.wake();
        s.queue(11, is_moved);
        s.world.at(12).switch(s.cpus[1], Some(s.second), ThreadState::Sleeping, Some(s.third));
        s.run(14, 1, Some(s.third));
        let [second, third] = [s.second, s.third].map(Occupant::Thread);
        assert_eq!(s.waits(), [(10, 12, 1, second), (12, 14, 1, third)]);
    }
    // The thread is moved when it has waited in the queue of its last CPU.
    let mut s = sleeper(ThreadState::Sleeping);
    s.wake();
    s.world.at(100).switch(s.cpus[0], Some(s.first), ThreadState::Sleeping, Some(s.third));
    s.queue(1_000_000, true);
    s.run(1_000_020, 1, Some(s.second));
    let [first, second, third] = [s.first, s.second, s.third].map(Occupant::Thread);
    let expected =
        [(10, 100, 0, first), (100, 1_000_000, 0, third), (1_000_000, 1_000_020, 1, second)];
    assert_eq!(s.waits(), expected);
    // A preempted one has been in it all the time.
    let mut s = sleeper(ThreadState::Preempted);
    s.queue(12, true);
    s.run(14, 1, Some(s.second));
    assert_eq!(s.waits(), [(5, 12, 0, first), (12, 14, 1, second)]);
    // One that sleeps is in none.
    let mut s = sleeper(ThreadState::Sleeping);
    s.queue(8, true);
    s.run(14, 1, Some(s.second));
    assert_eq!(s.waits(), []);
}

/// What the thread executes waits with it, and its own state can change meanwhile: what is before stays unknown.
#[test]
fn a_goroutine_waits_for_the_cpu_that_its_thread_gets() {
    let mut go = go();
    let g = go.goroutine(1);
    let ([cpu, second_cpu], [thread, second]) = (go.cpus, go.threads);
    let w = &mut go.world;
    w.go(g, State::Syscall, Some(go.ms[0]), "");
    w.at(5).switch(cpu, Some(thread), ThreadState::Sleeping, Some(go.other));
    wake_on(w.at(10), cpu, thread);
    // Its P is taken away.
    w.at(12).go(go.procs[0], State::Idle, None, "");
    w.at(14).switch(second_cpu, Some(second), ThreadState::Preempted, Some(thread));
    w.at(20).go(g, State::Waiting, None, "done");
    let waits = |id| -> Vec<_> {
        let intervals = go.world.intervals(id).into_iter();
        let waits = intervals.filter(|i| matches!(i.kernel, Kernel::Runnable { .. }));
        waits.map(|i| (i.start.nanos(), i.end.nanos(), i.kernel)).collect()
    };
    let runnable =
        |cpu, occupant| Kernel::Runnable { cpu: Some(cpu), occupant, is_preempted: false };
    let known = runnable(second_cpu, Occupant::Thread(second));
    assert_eq!(waits(thread), [(10, 14, known)]);
    assert_eq!(waits(g), [(10, 12, runnable(cpu, Occupant::Unknown)), (12, 14, known)]);
}
