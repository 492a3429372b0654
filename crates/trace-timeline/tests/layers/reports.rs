//! Pauses with who was late, and reports.

use crate::common::{World, at};
use crate::go;
use trace_timeline::answers::{Report, Waker};
use trace_timeline::{
    Context, Correlator, Derived, EntityId, EntityKind, EventKind, FlowKind, LossKind, Occupant,
    SampleKind, SampledEventId, SpanKind, State, ThreadState, text,
};

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
    assert_eq!((pause.start, pause.stopped, pause.end), (at(20), Some(at(65)), at(70)));
    assert_eq!(pause.stops.len(), 1, "{p0:?} requested it");
    let stop = pause.stops[0];
    assert_eq!((stop.entity, stop.holder, stop.thread), (p1, Some(g2), Some(go.threads[1])));
    assert_eq!((stop.time, stop.on_cpu, stop.runnable), (at(65), 5, 40));
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

/// It is woken on the CPU on which it last ran, and gets another one.
#[test]
fn a_pause_names_who_had_the_cpu_that_its_woken_requester_got() {
    let mut go = go();
    let g1 = go.goroutine(1);
    let ([cpu, second_cpu], [thread, second]) = (go.cpus, go.threads);
    let w = &mut go.world;
    w.go(g1, State::Running, Some(go.ms[0]), "");
    let pause = w.at(20).begin(go.process, SpanKind::StopTheWorld, "GC mark", Some(g1), None);
    w.at(30).switch(cpu, Some(thread), ThreadState::Sleeping, Some(go.other));
    let (kind, from, context) = (FlowKind::Wakes, None, Context::SoftIrq);
    let (on, to, cpu, stack) = (None, thread, Some(cpu), None);
    w.at(40).push(EventKind::Flow { kind, from, context, on, to, cpu, stack });
    w.at(50).switch(second_cpu, Some(second), ThreadState::Preempted, Some(thread));
    w.at(60).finish(pause, Some(g1));
    let [pause] = &go.world.pauses()[..] else { panic!("one pause") };
    let requester = pause.requester.as_ref().unwrap();
    assert_eq!((requester.stopped.on_cpu, requester.stopped.runnable), (20, 10));
    assert_eq!(requester.occupants, [(Occupant::Thread(second), 10)]);
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
        .goroutines(3, entities, |_| true)
        .into_iter()
        .map(|(id, g)| (entities.get(id).unwrap().number, g.latency.sum(), g.total()))
        .collect();
    let of = |number: i64| (number, number as u64, number + 1);
    assert_eq!(found, [of(ALL), of(ALL - 1), of(ALL - 2), of(5)]);
    let all = report.goroutines(usize::MAX, entities, |_| true).len();
    assert!((1_024..5_000).contains(&all), "{all}");
    assert_eq!(report.goroutines_left_out(|_| true), ALL as u64 - all as u64);
    assert_eq!(report.goroutines_dropped(), 0);
}

/// The worst goroutines of each process are known, however many worse ones others have, and those that
/// are left out are counted.
#[test]
fn each_process_has_its_worst_goroutines() {
    const MANY: i64 = 10_000;
    let mut w = World::default();
    let mut number = 0;
    for (pid, count, delay) in [(1, MANY, 50), (2, 3, 1), (3, MANY, 70)] {
        let process = w.entity(EntityKind::Process, pid, None);
        let m = w.entity(EntityKind::GoThread, 10 + pid, Some(process));
        for _ in 0..count {
            number += 1;
            let goroutine = w.entity(EntityKind::Goroutine, number, Some(process));
            w.go(goroutine, State::Runnable, None, "");
            w.at(w.now + delay).go(goroutine, State::Running, Some(m), "");
            w.at(w.now + 1).push(EventKind::End { entity: goroutine });
        }
    }
    let mut report = Report::new();
    report.keep_goroutine(MANY);
    report.keep_goroutine(MANY + 2);
    let report = w.report(report);
    let entities = &w.tables.entities;
    let number = |id: EntityId| entities.get(id).unwrap().number;
    let is = |pid: i64| move |process: Option<EntityId>| process.map(number) == Some(pid);
    let found = |worst, pid| -> Vec<i64> {
        let found = report.goroutines(worst, entities, is(pid));
        found.iter().map(|(goroutine, _)| number(*goroutine)).collect()
    };
    assert_eq!(found(usize::MAX, 2), [MANY + 1, MANY + 2, MANY + 3]);
    // One that was kept is among those of its process only.
    assert_eq!(found(0, 1), [MANY]);
    assert_eq!(found(0, 2), [MANY + 2]);
    assert_eq!(found(0, 3), [0; 0]);
    for (pid, count) in [(1, MANY), (2, 3), (3, MANY)] {
        let known = found(usize::MAX, pid).len() as u64;
        assert!(known >= (count as u64).min(Report::MAX_GOROUTINES as u64), "{known}");
        assert_eq!(known + report.goroutines_left_out(is(pid)), count as u64);
    }
}

/// Times at both ends of the clock, as damaged records have.
#[test]
fn sums_of_any_times_are_clamped() {
    let mut w = World { now: i64::MIN, ..World::default() };
    let process = w.entity(EntityKind::Process, 1, None);
    let cpu = w.entity(EntityKind::Cpu, 0, None);
    let [thread, other] = [1, 2].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    let m = w.entity(EntityKind::GoThread, 1, Some(process));
    let goroutine = w.entity(EntityKind::Goroutine, 1, Some(process));
    let states = [
        ThreadState::Preempted,
        ThreadState::Sleeping,
        ThreadState::Blocked,
        ThreadState::Stopped,
        ThreadState::Unknown,
    ];
    for (turn, now) in [i64::MIN, i64::MIN + 9, -9, 0, 9, i64::MAX - 9].into_iter().enumerate() {
        w.at(now).go(goroutine, State::Running, Some(m), "");
        w.switch(cpu, None, ThreadState::Unknown, Some(thread));
        let pause = w.begin(process, SpanKind::StopTheWorld, "stop", Some(goroutine), None);
        w.at(now + 2).switch(cpu, Some(thread), states[turn % states.len()], Some(other));
        w.at(now + 4).go(goroutine, State::Runnable, None, "");
        w.finish(pause, None);
    }
    w.at(i64::MAX).push(EventKind::End { entity: goroutine });
    let report = w.report(Report::new());
    let longest = report.threads.values().map(|thread| thread.times.total()).max();
    assert_eq!(longest, Some(i64::MAX));
    for group in report.groups.values() {
        assert_eq!(group.total(), i64::MAX);
        assert_eq!(group.columns().len(), trace_timeline::answers::Group::COLUMNS.len());
    }
    for preempter in report.preempters.values() {
        assert!(preempter.total() >= preempter.preempted.max(preempter.woken));
    }
    let unknown = report.unknown(|_| true, &w.tables.entities);
    assert!(unknown >= 0, "{unknown}");
    for pause in w.pauses() {
        let _ = text::requester(&pause, &w.tables);
    }
}

/// The longest delays of a process are known, however long those of others are.
#[test]
fn each_process_has_its_longest_delays() {
    let mut w = World::default();
    for (pid, delays) in [(1, 100..120), (2, 1..4)] {
        let process = w.entity(EntityKind::Process, pid, None);
        let m = w.entity(EntityKind::GoThread, 10 + pid, Some(process));
        for delay in delays {
            let goroutine = w.entity(EntityKind::Goroutine, delay, Some(process));
            w.go(goroutine, State::Runnable, None, "");
            w.at(w.now + delay).go(goroutine, State::Running, Some(m), "");
            w.at(w.now + 1).push(EventKind::End { entity: goroutine });
        }
    }
    let report = w.report(Report::new());
    let entities = &w.tables.entities;
    let of = |pid: Option<i64>| -> Vec<i64> {
        let number = |id: Option<EntityId>| id.and_then(|id| entities.get(id)).map(|e| e.number);
        let delays = report.longest_delays(|process| pid.is_none() || number(process) == pid);
        delays.iter().map(|delay| delay.nanos).collect()
    };
    let longest: Vec<i64> = (110..120).rev().collect();
    assert_eq!(of(None), longest);
    assert_eq!(of(Some(1)), longest);
    assert_eq!(of(Some(2)), [3, 2, 1]);
    let worst = report.goroutines(2, entities, |process| {
        process.and_then(|id| entities.get(id)).is_some_and(|process| process.number == 2)
    });
    let numbers: Vec<i64> = worst.iter().map(|(id, _)| entities.get(*id).unwrap().number).collect();
    assert_eq!(numbers, [3, 2]);
}

/// The process of a thread becomes known after long delays.
#[test]
fn a_process_that_is_known_late_has_its_longest_delays() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 1, None);
    let cpu = w.entity(EntityKind::Cpu, 0, None);
    let thread = w.entity(EntityKind::Thread, 2, None);
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    let delay = |w: &mut World, nanos: i64| {
        w.at(w.now + 1).switch(cpu, Some(thread), ThreadState::Preempted, None);
        w.at(w.now + nanos).switch(cpu, None, ThreadState::Unknown, Some(thread));
    };
    (100..120).for_each(|nanos| delay(&mut w, nanos));
    w.at(w.now + 1).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    let known = w.now;
    w.at(w.now + 1).switch(cpu, None, ThreadState::Unknown, Some(thread));
    (1..4).for_each(|nanos| delay(&mut w, nanos));
    w.at(w.now + 1).switch(cpu, Some(thread), ThreadState::Sleeping, None);
    let (mut correlator, mut report) = (Correlator::new(), Report::new());
    for event in &w.events {
        if event.time > at(known) {
            w.tables.entities.get_mut(thread).unwrap().parent = Some(process);
        }
        let entities = &w.tables.entities;
        let mut each = |derived: Derived<'_>| report.push(&derived, entities);
        correlator.push(event, entities, &mut each);
    }
    let of = |process: Option<EntityId>| -> Vec<i64> {
        let delays = report.longest_delays(|of| of == process);
        delays.iter().map(|delay| delay.nanos).collect()
    };
    assert_eq!(of(None), (110..120).rev().collect::<Vec<_>>());
    assert_eq!(of(Some(process)), [3, 2, 1]);
}

#[test]
fn lost_bytes_are_no_records() {
    let mut w = World::default();
    let process = Some(w.entity(EntityKind::Process, 1, None));
    let machine = w.entity(EntityKind::Machine, 0, None);
    let cpu = Some(w.entity(EntityKind::Cpu, 0, Some(machine)));
    let lost = [
        (process, LossKind::GoTrace, Some(4_000)),
        (process, LossKind::GoTrace, Some(96)),
        (process, LossKind::GoTrace, None),
        (None, LossKind::DotnetEvents, Some(7)),
        (cpu, LossKind::SchedulerRecords, Some(5)),
    ];
    for (entity, kind, count) in lost {
        w.push(EventKind::Loss { entity, kind, since: at(0), count });
    }
    let report = w.report(Report::new());
    let losses = |of: Option<EntityId>| {
        let losses = report.losses(|process| process == of).into_iter();
        losses.map(|(kind, l)| (kind, l.count, l.records, l.bytes)).collect::<Vec<_>>()
    };
    let of_all = [(LossKind::SchedulerRecords, 1, 5, 0), (LossKind::DotnetEvents, 1, 7, 0)];
    assert_eq!(losses(None), of_all);
    let [scheduler, dotnet] = of_all;
    assert_eq!(losses(process), [scheduler, (LossKind::GoTrace, 3, 0, 4_096), dotnet]);
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
    let found = report.goroutines(usize::MAX, &w.tables.entities, |_| true);
    assert_eq!(found.len(), MOST + 1);
    assert_eq!(report.goroutines_dropped(), ALL as u64 - found.len() as u64);
    for (goroutine, times) in found {
        let number = w.tables.entities.get(goroutine).unwrap().number;
        assert_eq!(times.total(), if number <= 10 { 10 } else { 30 }, "G{number}");
    }
}

/// Nothing is known of the time that was lost: it is no time on a CPU.
#[test]
fn time_of_a_pause_that_was_lost_is_not_known() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let w = &mut go.world;
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.go(g2, State::Running, Some(go.ms[1]), "");
    let pause = w.at(20).begin(go.process, SpanKind::StopTheWorld, "GC mark", Some(g1), None);
    w.at(110).lost(go.cpus[1], LossKind::SchedulerRecords, 30);
    w.at(120).go(g2, State::Runnable, None, "preempted");
    w.go(go.procs[1], State::Idle, None, "");
    w.at(130).finish(pause, Some(g1));
    let stop = go.world.pauses()[0].stops[0];
    assert_eq!((stop.entity, stop.time), (go.procs[1], at(120)));
    assert_eq!((stop.on_cpu, stop.runnable), (10, 0));
}

/// The records before the pause were lost, too.
#[test]
fn a_loss_that_began_before_a_pause_takes_no_time_from_it() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let w = &mut go.world;
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.go(g2, State::Running, Some(go.ms[1]), "");
    let pause = w.at(20).begin(go.process, SpanKind::StopTheWorld, "GC mark", Some(g1), None);
    w.at(110).lost(go.cpus[1], LossKind::SchedulerRecords, 10);
    w.at(120).go(g2, State::Runnable, None, "preempted");
    w.go(go.procs[1], State::Idle, None, "");
    w.at(130).finish(pause, Some(g1));
    let stop = go.world.pauses()[0].stops[0];
    assert_eq!((stop.entity, stop.time), (go.procs[1], at(120)));
    assert_eq!((stop.on_cpu, stop.runnable), (0, 0));
}

/// A wait has ended when the thread has a CPU again, and an allocation says nothing of the kernel.
#[test]
fn waits_and_allocations_are_no_samples_of_what_runs() {
    let mut go = go();
    let g1 = go.goroutine(1);
    let thread = go.threads[0];
    let w = &mut go.world;
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.at(10);
    for kind in [SampleKind::Cpu, SampleKind::OffCpu, SampleKind::Allocation] {
        let (stack, cpu, of, event) = (None, None, None, SampledEventId::NONE);
        let (entity, thread, weight) = (thread, None, 1);
        w.push(EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of });
    }
    let process = w.tables.entities.process_of(thread);
    let report = w.report(Report::new());
    assert_eq!(report.samples(|of| of == process), [1, 0, 0]);
    assert_eq!(report.samples(|of| of != process), [0; 3]);
}

/// A goroutine waits in a system call, and then for another goroutine.
#[test]
fn wake_ups_of_a_goroutine_and_of_its_thread_are_two() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let (thread, other) = (go.threads[0], go.other);
    let w = &mut go.world;
    w.go(g1, State::Syscall, Some(go.ms[0]), "");
    w.at(10).wake(Some(other), Context::Task, thread);
    w.at(20).go(g1, State::Waiting, None, "chan receive");
    w.at(30).wake(Some(g2), Context::Task, g1);
    assert_eq!(w.report(Report::new()).wakers.values().sum::<u64>(), 2);
}

/// Replicas of a program have goroutines with the same entry functions.
#[test]
fn goroutines_that_wake_others_have_their_process() {
    let mut w = World::default();
    let name = w.text("main.serve");
    let mut wakers = Vec::new();
    for pid in [10, 20] {
        let process = w.entity(EntityKind::Process, pid, None);
        w.entity(EntityKind::Goroutine, 7, Some(process));
        let waker = Waker::Goroutines(Some(process), name);
        wakers.push(waker);
        let expected = match pid {
            10 => "goroutines main.serve".to_owned(),
            _ => format!("goroutines main.serve of process {pid}"),
        };
        assert_eq!(text::waker(waker, &w.tables), expected);
    }
    assert_ne!(text::waker(wakers[0], &w.tables), text::waker(wakers[1], &w.tables));
    let unknown = Waker::Goroutines(None, trace_timeline::TextId::EMPTY);
    assert_eq!(text::waker(unknown, &w.tables), "goroutines (unknown)");
}
