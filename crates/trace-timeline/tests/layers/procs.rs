//! Waits for a P, and for the CPU of its thread.

use crate::common::{World, at, pieces};
use crate::{Go, go};
use trace_timeline::answers::{CriticalPath, Piece, What, critical_path};
use trace_timeline::{
    Context, EntityId, EntityKind, EventKind, FlowKind, Kernel, Occupant, SpanKind, State, TextId,
    ThreadState, Timestamp, text,
};

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
    let (cgroup, since) = (TextId::EMPTY, at(75));
    w.at(95).push(EventKind::Throttle { process, cgroup, since, nanos: 60, periods: 1 });
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

/// A goroutine whose thread has no CPU has not stopped for a stop-the-world: that does not hold it back.
#[test]
fn a_throttled_thread_is_not_held_back_by_a_stop_the_world() {
    let mut go = go();
    let [g, other] = [1, 2].map(|n| go.goroutine(n));
    let [cpu, _] = go.cpus;
    let [thread, _] = go.threads;
    let w = &mut go.world;
    let process = w.entity(EntityKind::Process, 10, None);
    w.go(g, State::Running, Some(go.ms[0]), "");
    w.go(other, State::Running, Some(go.ms[1]), "");
    w.at(10).switch(cpu, Some(thread), ThreadState::Preempted, Some(go.other));
    let stop = w.at(20).begin(go.process, SpanKind::StopTheWorld, "GC mark", Some(other), None);
    w.at(90).switch(cpu, Some(go.other), ThreadState::Preempted, Some(thread));
    let (cgroup, since) = (TextId::EMPTY, at(75));
    w.at(95).push(EventKind::Throttle { process, cgroup, since, nanos: 60, periods: 1 });
    w.finish(stop, Some(other));
    w.at(100).go(g, State::Waiting, None, "done");
    let path = go.world.explain(g, 0, 100, None);
    let on = What::OnCpu { cpu };
    let waits = What::WaitsForCpu { occupant: Occupant::Thread(go.other), is_preempted: true };
    let expected = [(10, g, on), (70, g, What::Throttled), (90, g, waits), (100, g, on)];
    assert_eq!(pieces(&path), expected);
    assert!(path.pieces.iter().all(|piece| piece.during.is_none()));
}

/// Threads are preempted from 10 ms to 90 ms, the first one also from -1260 ms to -1200 ms. Then the counters are
/// read, which have this number of milliseconds since 75 ms. Returns how long the first thread was throttled, and how
/// long it waited otherwise, in milliseconds. `others` are the process and CPU of the other threads.
fn throttled(nanos: i64, others: &[(i64, usize)]) -> (i64, i64) {
    const MS: i64 = 1_000_000;
    let mut w = World { now: -1300 * MS, ..World::default() };
    let processes = [10, 20].map(|number| w.entity(EntityKind::Process, number, None));
    let cpus = [0, 1].map(|number| w.entity(EntityKind::Cpu, number, None));
    let other = w.entity(EntityKind::Thread, 99, None);
    let mut threads = vec![(w.entity(EntityKind::Thread, 10, Some(processes[0])), cpus[0])];
    for (number, (pid, cpu)) in (11..).zip(others) {
        let process = processes[usize::from(*pid == 20)];
        threads.push((w.entity(EntityKind::Thread, number, Some(process)), cpus[*cpu]));
    }
    let preempt = |w: &mut World, threads: &[(EntityId, EntityId)], start, end| {
        let preempted = ThreadState::Preempted;
        threads.iter().for_each(|(thread, cpu)| {
            w.at(start * MS).switch(*cpu, Some(*thread), preempted, Some(other));
        });
        threads.iter().for_each(|(thread, cpu)| {
            w.at(end * MS).switch(*cpu, Some(other), preempted, Some(*thread));
        });
    };
    w.switch(threads[0].1, None, ThreadState::Unknown, Some(threads[0].0));
    preempt(&mut w, &threads[..1], -1260, -1200);
    preempt(&mut w, &threads, 10, 90);
    let (since, nanos, cgroup) = (at(75 * MS), nanos * MS, w.text("/sys/fs/cgroup/shop"));
    w.at(95 * MS);
    for process in processes {
        w.push(EventKind::Throttle { process, cgroup, since, nanos, periods: 1 });
    }
    let path = w.explain(threads[0].0, -1300 * MS, 95 * MS, None);
    let sum = |is_it: fn(&What) -> bool| {
        path.pieces.iter().filter(|piece| is_it(&piece.what)).map(Piece::nanos).sum::<i64>() / MS
    };
    let waits = sum(|what| matches!(what, What::WaitsForCpu { .. }));
    (sum(|what| matches!(what, What::Throttled)), waits)
}

/// The kernel adds up the throttling of all CPUs: a thread has its share of it.
#[test]
fn throttling_is_shared_by_the_cpus_of_a_cgroup() {
    assert_eq!(throttled(60, &[]), (60, 60 + 20));
    assert_eq!(throttled(60, &[(10, 1)]), (30, 60 + 50), "of the same process");
    assert_eq!(throttled(60, &[(20, 1)]), (30, 60 + 50), "of another process of the cgroup");
    assert_eq!(throttled(60, &[(10, 0)]), (60, 60 + 20), "both wait for the same CPU");
}

/// A reading is about more than the time that is explained: threads that waited before and after it have their shares.
#[test]
fn a_share_of_throttling_does_not_depend_on_the_time_that_is_explained() {
    const MS: i64 = 1_000_000;
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 10, None);
    let cpus = [0, 1].map(|number| w.entity(EntityKind::Cpu, number, None));
    let other = w.entity(EntityKind::Thread, 99, None);
    let threads = [10, 11].map(|number| w.entity(EntityKind::Thread, number, Some(process)));
    for (cpu, thread) in cpus.into_iter().zip(threads) {
        w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    }
    let (preempted, sleeping) = (ThreadState::Preempted, ThreadState::Sleeping);
    for (number, start, end) in [(0, 10, 12), (1, 20, 95), (0, 97, 99)] {
        let (cpu, thread) = (cpus[number], threads[number]);
        w.at(start * MS).switch(cpu, Some(thread), preempted, Some(other));
        w.at(end * MS).switch(cpu, Some(other), sleeping, Some(thread));
    }
    let (cgroup, since, nanos) = (w.text("/sys/fs/cgroup/shop"), at(0), 5 * MS);
    w.at(100 * MS).push(EventKind::Throttle { process, cgroup, since, nanos, periods: 1 });
    w.at(101 * MS).switch(cpus[0], Some(threads[0]), sleeping, None);
    // Both waits of the thread, of all waits.
    let share = 5 * MS * (2 + 2) / (2 + 2 + 75);
    let whole = (at(i64::MIN), Timestamp::MAX);
    for (start, end) in [(0, 15), (96, 99)] {
        let (start, end) = (at(start * MS), at(end * MS));
        for window in [whole, (start, end)] {
            let (history, entities) = (w.history_within(&[window]), &w.tables.entities);
            let path = critical_path(&history, entities, threads[0], start, end, None);
            let throttled = path.pieces.iter().filter(|piece| piece.what == What::Throttled);
            assert_eq!(throttled.map(Piece::nanos).sum::<i64>(), share, "{window:?}");
        }
    }
}

/// The period of a quota can be up to a second, and so can the throttling that one reading finds.
#[test]
fn throttling_in_a_long_period_is_whole() {
    const MS: i64 = 1_000_000;
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 10, None);
    let cpu = w.entity(EntityKind::Cpu, 0, None);
    let other = w.entity(EntityKind::Thread, 99, None);
    let thread = w.entity(EntityKind::Thread, 10, Some(process));
    let preempted = ThreadState::Preempted;
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    w.at(100 * MS).switch(cpu, Some(thread), preempted, Some(other));
    w.at(1000 * MS).switch(cpu, Some(other), preempted, Some(thread));
    let (cgroup, since, nanos) = (TextId::EMPTY, at(900 * MS), 900 * MS);
    w.push(EventKind::Throttle { process, cgroup, since, nanos, periods: 1 });
    w.at(1010 * MS).switch(cpu, Some(thread), preempted, Some(other));
    let on = What::OnCpu { cpu };
    let expected = [(100, on), (1000, What::Throttled), (1010, on)];
    let path = w.explain(thread, 0, 1010 * MS, None);
    assert_eq!(pieces(&path), expected.map(|(end, what)| (end * MS, thread, what)));
}

/// What is throttled when the counters are read was not for more than the longest period.
#[test]
fn a_wait_that_ended_before_the_period_was_not_throttled() {
    assert_eq!(throttled(2000, &[]), (80, 60));
}

/// While the thread of a P is throttled, the goroutines that wait for that P are, too: also those of a trace
/// that does not record its process id.
#[test]
fn a_wait_for_a_throttled_p_is_throttling() {
    for number in [10, -1] {
        let mut go = go();
        go.world.tables.entities.get_mut(go.process).unwrap().number = number;
        wait_for_a_throttled_p(go);
    }
}

fn wait_for_a_throttled_p(mut go: Go) {
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
    let (cgroup, since) = (TextId::EMPTY, at(75));
    w.at(95).push(EventKind::Throttle { process, cgroup, since, nanos: 60, periods: 1 });
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
