//! Critical paths that lead to the causes of waits.

use crate::common::{World, at, pieces};
use crate::go;
use trace_timeline::answers::{Piece, What, critical_path};
use trace_timeline::{
    Context, EntityKind, EventKind, FlowKind, Kernel, Occupant, SpanKind, State, ThreadState, text,
};

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

/// The time ends within a wait: the goroutine that will end it does not exist yet.
#[test]
fn a_wait_whose_end_is_later_leads_to_the_creator_of_the_one_that_ends_it() {
    let mut go = go();
    let [g1, g3, g4] = [1, 3, 4].map(|n| go.goroutine(n));
    let [m0, m1] = go.ms;
    let cpus = go.cpus;
    let on = |n: usize| What::OnCpu { cpu: cpus[n] };
    go.world.go(g1, State::Running, Some(m0), "");
    go.world.go(g3, State::Running, Some(m1), "");
    for g in [g1, g4] {
        go.world.go(g, State::Waiting, None, "chan receive");
    }
    let mut creator = g3;
    let [middle, g2] = [(55, 5), (60, 2)].map(|(time, number)| {
        go.world.at(time);
        let created = go.goroutine(number);
        let (from, context) = (Some(creator), Context::Task);
        let (kind, to) = (FlowKind::Creates, created);
        let (on, cpu, stack) = (None, None, None);
        go.world.push(EventKind::Flow { kind, from, context, on, to, cpu, stack });
        go.world.go(created, State::Runnable, None, "");
        go.world.go(creator, State::Waiting, None, "done");
        go.world.go(created, State::Running, Some(m1), "");
        creator = created;
        created
    });
    // Nothing says who created this one.
    go.world.at(90);
    let late = go.goroutine(6);
    let w = &mut go.world;
    w.at(100).wake(Some(g2), Context::Task, g1);
    w.go(g1, State::Runnable, None, "");
    w.go(g1, State::Running, Some(m0), "");
    w.wake(Some(late), Context::Task, g4);
    w.go(g4, State::Runnable, None, "");
    let explained = |subject, start, end| {
        let (start, end) = (at(start), at(end));
        let history = w.history_within(&[(start, end)]);
        let path = critical_path(&history, &w.tables.entities, subject, start, end, None);
        assert_eq!(path.pieces.last().unwrap().end, end);
        path
    };
    assert_eq!(pieces(&explained(g1, 10, 50)), [(50, g3, on(1))]);
    assert_eq!(pieces(&explained(g1, 10, 58)), [(55, g3, on(1)), (58, middle, on(1))]);
    let whole = [(55, g3, on(1)), (60, middle, on(1)), (100, g2, on(1))];
    assert_eq!(pieces(&explained(g1, 10, 100)), whole);
    let path = explained(g4, 10, 50);
    assert_eq!(pieces(&path), [(50, g4, What::Waits { context: Context::Task })]);
    assert_eq!(w.tables.get(path.pieces[0].reason), b"chan receive");
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
    let start = 2 * ALL;
    w.at(start).go(g, State::Running, Some(go.ms[0]), "");
    for n in 0..ALL / 2 {
        w.at(start + 2 * n + 1);
        w.switch(cpu, Some(thread), ThreadState::Preempted, Some(other));
        w.at(start + 2 * n + 2);
        w.switch(cpu, Some(other), ThreadState::Preempted, Some(thread));
    }
    let end = start + ALL;
    w.at(end).go(g, State::Waiting, None, "done");
    let path = w.explain(g, 0, end, None);
    let (in_spans, rest): (Vec<&Piece>, Vec<&Piece>) =
        path.pieces.iter().partition(|piece| piece.during.is_some());
    assert_eq!((in_spans.len(), rest.len()), (ALL as usize, 2 * ALL as usize));
}

/// A goroutine that the world stops for waits for the one that stops last, which has no CPU, and then for the
/// requester. Timers wake the requester until all have stopped.
#[test]
fn a_stop_the_world_leads_to_the_one_that_stops_last() {
    let mut go = go();
    let [g1, g2, g3] = [1, 2, 3].map(|n| go.goroutine(n));
    let ([cpu, second], [thread, late], other) = (go.cpus, go.threads, go.other);
    let (process, [_, p1]) = (go.process, go.procs);
    let w = &mut go.world;
    let m2 = w.entity(EntityKind::GoThread, 12, Some(process));
    let p2 = w.entity(EntityKind::Proc, 2, Some(process));
    let theirs = w.entity(EntityKind::Task, 1, Some(process));
    w.go(p2, State::Running, Some(m2), "");
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.go(g2, State::Running, Some(go.ms[1]), "");
    w.go(g3, State::Running, Some(m2), "");
    let regions = [g1, g2].map(|g| w.begin(g, SpanKind::Region, "other", None, Some(theirs)));
    w.at(10).switch(second, Some(late), ThreadState::Preempted, Some(other));
    let stop = w.at(20).begin(process, SpanKind::StopTheWorld, "GC mark", Some(g1), None);
    w.at(22).go(g3, State::Runnable, None, "preempted");
    w.go(p2, State::Idle, None, "");
    let sleep = |w: &mut World, slept, woken| {
        w.at(slept).switch(cpu, Some(thread), ThreadState::Sleeping, None);
        w.at(woken).wake(None, Context::HardIrq, thread);
        w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    };
    sleep(w, 25, 45);
    w.at(46).switch(second, Some(other), ThreadState::Preempted, Some(late));
    w.at(48).switch(second, Some(late), ThreadState::Preempted, Some(other));
    sleep(w, 50, 64);
    w.at(65).switch(second, Some(other), ThreadState::Sleeping, Some(late));
    w.at(67).go(g2, State::Runnable, None, "preempted");
    w.go(p1, State::Idle, None, "");
    w.at(70).finish(stop, Some(g1));
    w.at(72).go(p2, State::Running, Some(m2), "");
    w.at(74).go(g3, State::Running, Some(m2), "");
    w.at(80).go(g3, State::Waiting, None, "done");
    regions.iter().for_each(|region| w.finish(*region, None));
    let on = |cpu| What::OnCpu { cpu };
    let preempted = What::WaitsForCpu { occupant: Occupant::Thread(other), is_preempted: true };
    let for_p = |kernel| What::WaitsForProc { proc: Some(p2), holder: None, kernel };
    let path = w.explain(g3, 0, 80, None);
    let expected = [
        (22, g3, What::Running),
        (46, g2, preempted),
        (48, g2, on(second)),
        (65, g2, preempted),
        (67, g2, on(second)),
        (70, g1, on(cpu)),
        (72, g3, for_p(Kernel::Absent)),
        (74, g3, for_p(Kernel::Unknown)),
        (80, g3, What::Running),
    ];
    assert_eq!(pieces(&path), expected);
    for piece in &path.pieces[1..6] {
        assert_eq!((piece.depth, piece.waiter, piece.unblocker), (1, Some(g3), Some(g1)));
        assert_eq!(text::during(piece, &w.tables).unwrap(), "stop-the-world: GC mark");
        assert_eq!(text::waiter(piece, &w.tables).unwrap(), "G3 waits for the stop-the-world");
        // The requester works for all, and the late one for its own task.
        assert_eq!(piece.context, (piece.entity == g2).then_some(theirs));
    }
    assert!(path.pieces[6].during.is_none());
    let path = w.explain(g1, 0, 70, None);
    let expected = [
        (25, g1, on(cpu)),
        (45, g2, preempted),
        (50, g1, on(cpu)),
        (64, g2, preempted),
        (70, g1, on(cpu)),
    ];
    assert_eq!(pieces(&path), expected);
    let held: Vec<_> =
        path.pieces.iter().map(|piece| (piece.depth, piece.during.is_some())).collect();
    assert_eq!(held, [(0, false), (1, true), (0, false), (1, true), (0, false)]);
    // The thread of the requester waits for the late one, not for its own goroutine.
    let path = w.explain(thread, 0, 70, None);
    let waits = path.pieces.iter().filter(|piece| piece.depth == 1);
    let waits: Vec<_> = waits.map(|piece| (piece.entity, piece.waiter, piece.unblocker)).collect();
    assert_eq!(waits, [(g2, Some(thread), Some(g2)); 2]);
    // The time ends before all have stopped.
    let path = w.explain(g3, 30, 60, None);
    let expected = [(46, g2, preempted), (48, g2, on(second)), (60, g2, preempted)];
    assert_eq!(pieces(&path), expected);
}

/// The one that stops last is a P between goroutines: its thread is of a process as the kernel knows it.
#[test]
fn a_p_without_a_goroutine_delays_a_stop_the_world() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let (process, [p0, p1], [m0, m1]) = (go.process, go.procs, go.ms);
    let w = &mut go.world;
    let m2 = w.entity(EntityKind::GoThread, 12, Some(process));
    let p2 = w.entity(EntityKind::Proc, 2, Some(process));
    w.go(p2, State::Running, Some(m2), "");
    w.go(p0, State::Running, Some(m0), "");
    w.go(p1, State::Running, Some(m1), "");
    w.go(g1, State::Running, Some(m0), "");
    w.go(g2, State::Running, Some(m2), "");
    let stop = w.at(20).begin(process, SpanKind::StopTheWorld, "GC mark", Some(g1), None);
    w.at(22).go(g2, State::Runnable, None, "preempted");
    w.go(p2, State::Idle, None, "");
    w.at(60).go(p1, State::Idle, None, "");
    w.at(70).finish(stop, Some(g1));
    w.at(72).go(p2, State::Running, Some(m2), "");
    w.go(g2, State::Running, Some(m2), "");
    w.at(80).go(g2, State::Waiting, None, "done");
    let path = w.explain(g2, 22, 70, None);
    let on = |n: usize| What::OnCpu { cpu: go.cpus[n] };
    assert_eq!(pieces(&path), [(60, go.threads[1], on(1)), (70, g1, on(0))]);
    let during = path.pieces.iter().map(|piece| text::during(piece, &w.tables));
    let expected = Some("stop-the-world: GC mark".to_owned());
    assert_eq!(during.collect::<Vec<_>>(), [expected.clone(), expected]);
}

/// The requester of a stop-the-world is not known, or the stop-the-world has no known end: an idle P is not late.
#[test]
fn an_idle_p_of_a_stopped_world_takes_no_goroutine() {
    for is_cut in [false, true] {
        let mut go = go();
        let g = go.goroutine(1);
        let (process, [_, p1]) = (go.process, go.procs);
        let w = &mut go.world;
        w.go(g, State::Running, Some(go.ms[1]), "");
        let stop = w.at(20).begin(process, SpanKind::StopTheWorld, "GC mark", None, None);
        w.go(g, State::Runnable, None, "preempted");
        w.go(p1, State::Idle, None, "");
        w.at(50).push(EventKind::Finish { span: stop, by: None, is_cut });
        w.at(60).go(p1, State::Running, Some(go.ms[1]), "");
        w.go(g, State::Running, Some(go.ms[1]), "");
        w.at(70).go(g, State::Waiting, None, "done");
        let path = w.explain(g, 20, 70, None);
        let texts: Vec<String> =
            path.pieces.iter().map(|piece| text::piece(piece, &w.tables).1).collect();
        let (stopped, late) =
            ("runnable, the world was stopped", "runnable, P1 was idle (wake-up latency)");
        match is_cut {
            false => assert_eq!(texts, [stopped, late, "ran on CPU 1"]),
            // How long it lasted is not known.
            true => assert_eq!(texts, [late, "ran on CPU 1"]),
        }
    }
}

/// The requester takes the P of a goroutine in a system call. Until it does, it is late itself.
#[test]
fn a_p_of_a_system_call_delays_no_stop_the_world() {
    for leaves in [false, true] {
        let mut go = go();
        let [g1, g2, g3] = [1, 2, 3].map(|n| go.goroutine(n));
        let ([cpu, second], [thread, _], other) = (go.cpus, go.threads, go.other);
        let (process, [_, p1], m1) = (go.process, go.procs, go.ms[1]);
        let w = &mut go.world;
        w.go(g1, State::Running, Some(go.ms[0]), "");
        w.go(g2, State::Running, Some(m1), "");
        w.at(5).go(g2, State::Syscall, Some(m1), "");
        w.at(10).go(g3, State::Runnable, None, "");
        let stop = w.at(20).begin(process, SpanKind::StopTheWorld, "GC mark", Some(g1), None);
        if leaves {
            w.at(25).go(g2, State::Running, Some(m1), "");
        }
        w.at(30).switch(cpu, Some(thread), ThreadState::Preempted, Some(other));
        w.at(70).switch(cpu, Some(other), ThreadState::Preempted, Some(thread));
        w.at(72);
        if leaves {
            w.go(g2, State::Runnable, None, "preempted");
        }
        w.go(p1, State::Idle, None, "");
        w.at(80).finish(stop, Some(g1));
        w.go(p1, State::Running, Some(m1), "");
        w.go(g3, State::Running, Some(m1), "");
        w.at(90).go(g3, State::Waiting, None, "done");
        let [pause] = &w.pauses()[..] else { panic!("one pause") };
        assert_eq!(pause.stopped, Some(at(72)));
        let late: Vec<_> = pause.late().map(|stop| stop.holder).collect();
        let path = w.explain(g3, 20, 90, None);
        let on = |cpu| What::OnCpu { cpu };
        let preempted = What::WaitsForCpu { occupant: Occupant::Thread(other), is_preempted: true };
        if leaves {
            assert_eq!(late, [Some(g2)]);
            let expected = [(72, g2, on(second)), (80, g1, on(cpu)), (90, g3, on(second))];
            assert_eq!(pieces(&path), expected);
        } else {
            assert_eq!(late, []);
            let expected =
                [(30, g1, on(cpu)), (70, g1, preempted), (80, g1, on(cpu)), (90, g3, on(second))];
            assert_eq!(pieces(&path), expected);
        }
    }
}

/// A goroutine that has stopped the world polls the network, and ends the wait of another one.
#[test]
fn a_wait_that_a_stop_the_world_ends_is_not_what_its_requester_did_before() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let ([cpu, second], [m0, m1], process) = (go.cpus, go.ms, go.process);
    let [p0, _] = go.procs;
    let w = &mut go.world;
    w.go(g1, State::Running, Some(m0), "");
    w.go(g2, State::Running, Some(m1), "");
    w.at(10).go(g1, State::Waiting, None, "network");
    w.go(p0, State::Idle, None, "");
    let stop = w.at(60).begin(process, SpanKind::StopTheWorld, "GC mark", Some(g2), None);
    w.at(65).wake(Some(g2), Context::Task, g1);
    w.go(g1, State::Runnable, None, "");
    w.at(67).finish(stop, Some(g2));
    w.go(p0, State::Running, Some(m0), "");
    w.go(g1, State::Running, Some(m0), "");
    // It sets a deadline.
    w.at(70).go(g1, State::Waiting, None, "network");
    w.at(80).wake(Some(g2), Context::Task, g1);
    w.go(g1, State::Running, Some(m0), "");
    w.at(90).go(g1, State::Waiting, None, "done");
    let path = w.explain(g1, 0, 90, None);
    let on = |cpu| What::OnCpu { cpu };
    let expected = [
        (10, g1, on(cpu)),
        (60, g1, What::Waits { context: Context::Task }),
        (65, g2, on(second)),
        (67, g2, on(second)),
        (70, g1, on(cpu)),
        (80, g2, on(second)),
        (90, g1, on(cpu)),
    ];
    assert_eq!(pieces(&path), expected);
    let texts = [1, 2].map(|place| text::piece(&path.pieces[place], &w.tables).1);
    assert_eq!(texts, ["waited for network", "ran on CPU 1"]);
    let during = path.pieces.iter().map(|piece| piece.during.is_some());
    assert_eq!(during.collect::<Vec<_>>(), [false, false, true, true, false, false, false]);
}

/// A thread without a goroutine that the runtime wakes finds that a goroutine can continue. The one that woke it
/// had nothing to do with that, unless it wrote to what the goroutine reads from. A thread of C is none of the runtime.
#[test]
fn a_poller_that_its_runtime_woke_leads_to_nobody() {
    enum By {
        Goroutine,
        SystemCall,
        Thread,
        OfC,
    }
    for by in [By::Goroutine, By::SystemCall, By::Thread, By::OfC] {
        let mut go = go();
        let [g1, g3] = [1, 3].map(|n| go.goroutine(n));
        let ([cpu, second], [thread, poller], [m0, m1]) = (go.cpus, go.threads, go.ms);
        let w = &mut go.world;
        let of = w.tables.entities.process_of(thread);
        let third = w.entity(EntityKind::Cpu, 2, None);
        let idle = w.entity(EntityKind::Thread, 12, of);
        w.switch(third, None, ThreadState::Unknown, Some(idle));
        if matches!(by, By::Thread) {
            w.entity(EntityKind::GoThread, 12, Some(go.process));
        }
        w.go(g1, State::Running, Some(m0), "");
        w.at(10).go(g1, State::Waiting, None, "network");
        w.go(g3, State::Running, Some(m0), "");
        w.switch(second, Some(poller), ThreadState::Sleeping, None);
        let from = match by {
            By::Goroutine => thread,
            By::SystemCall => {
                w.at(40).go(g3, State::Syscall, Some(m0), "");
                thread
            }
            By::Thread | By::OfC => idle,
        };
        w.at(60).wake(Some(from), Context::Task, poller);
        w.switch(second, None, ThreadState::Unknown, Some(poller));
        w.at(70).wake(Some(m1), Context::Task, g1);
        w.go(g1, State::Running, Some(m1), "");
        w.at(80).go(g1, State::Waiting, None, "done");
        let path = w.explain(g1, 0, 80, None);
        let on = |cpu| What::OnCpu { cpu };
        let waits = (60, poller, What::Waits { context: Context::Task });
        let woken = match by {
            By::SystemCall => (60, g3, on(cpu)),
            By::OfC => (60, idle, on(third)),
            By::Goroutine | By::Thread => waits,
        };
        let expected = [(10, g1, on(cpu)), woken, (70, poller, on(second)), (80, g1, on(second))];
        assert_eq!(pieces(&path), expected);
        let text = text::piece(&path.pieces[1], &w.tables).1;
        assert_eq!(text == "waited for network", woken == waits, "{text}");
    }
}

/// A goroutine that has stopped the world wakes a thread that then finds that another goroutine can continue. What it
/// did before it stopped the world has nothing to do with that.
#[test]
fn a_poller_that_a_stop_the_world_wakes_is_not_what_its_requester_did_before() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let ([cpu, second], [thread, poller], [m0, m1]) = (go.cpus, go.threads, go.ms);
    let (process, [_, p1]) = (go.process, go.procs);
    let w = &mut go.world;
    w.go(p1, State::Idle, None, "");
    w.go(g1, State::Running, Some(m0), "");
    w.at(10).go(g1, State::Waiting, None, "network");
    w.go(g2, State::Running, Some(m0), "");
    w.switch(second, Some(poller), ThreadState::Sleeping, None);
    w.at(40).go(g2, State::Syscall, Some(m0), "");
    let stop = w.at(50).begin(process, SpanKind::StopTheWorld, "GC mark", Some(g2), None);
    w.at(60).wake(Some(thread), Context::Task, poller);
    w.switch(second, None, ThreadState::Unknown, Some(poller));
    w.at(65).finish(stop, Some(g2));
    w.at(70).wake(Some(m1), Context::Task, g1);
    w.go(p1, State::Running, Some(m1), "");
    w.go(g1, State::Running, Some(m1), "");
    w.at(80).go(g1, State::Waiting, None, "done");
    let path = w.explain(g1, 0, 80, None);
    let on = |cpu| What::OnCpu { cpu };
    let waits = What::Waits { context: Context::Task };
    let expected = [
        (10, g1, on(cpu)),
        (50, poller, waits),
        (60, g2, on(cpu)),
        (70, poller, on(second)),
        (80, g1, on(second)),
    ];
    assert_eq!(pieces(&path), expected);
    assert_eq!(text::piece(&path.pieces[1], &w.tables).1, "waited for network");
    assert_eq!(text::during(&path.pieces[2], &w.tables).unwrap(), "stop-the-world: GC mark");
}

/// The runtime's monitor polls the network when its timer ends: a packet can have come before.
#[test]
fn the_timer_of_the_monitor_ends_no_wait_for_the_network() {
    for (reason, expected) in [
        ("network", "waited for network"),
        ("sleep", "waited for sleep, ended by a hardware interrupt"),
    ] {
        let mut go = go();
        let g = go.goroutine(1);
        let (second, monitor) = (go.cpus[1], go.threads[1]);
        let w = &mut go.world;
        w.go(g, State::Running, Some(go.ms[0]), "");
        w.at(10).go(g, State::Waiting, None, reason);
        w.switch(second, Some(monitor), ThreadState::Sleeping, None);
        w.at(60).wake(None, Context::HardIrq, monitor);
        w.switch(second, None, ThreadState::Unknown, Some(monitor));
        w.at(65).wake(Some(go.ms[1]), Context::Task, g);
        w.go(g, State::Running, Some(go.ms[0]), "");
        w.at(70).go(g, State::Waiting, None, "done");
        let path = w.explain(g, 0, 70, None);
        assert_eq!(path.pieces[1].end, at(60));
        assert_eq!(text::piece(&path.pieces[1], &w.tables).1, expected);
        // Of the goroutine itself, as another source may report it, the interrupt is the end.
        let mut own = path.pieces[1];
        (own.entity, own.thread) = (g, None);
        let own = text::piece(&own, &w.tables).1;
        assert_eq!(own, format!("waited for {reason}, ended by a hardware interrupt"));
    }
}

/// The goroutine that has stopped the world is the thread that executes it, too.
#[test]
fn a_thread_is_not_held_back_by_its_own_stop_the_world() {
    let mut go = go();
    let [g1, g2] = [1, 2].map(|n| go.goroutine(n));
    let (process, cpus, threads) = (go.process, go.cpus, go.threads);
    let w = &mut go.world;
    for thread in threads {
        w.tables.entities.get_mut(thread).unwrap().parent = Some(process);
    }
    w.go(go.procs[1], State::Idle, None, "");
    w.go(g1, State::Running, Some(go.ms[0]), "");
    w.go(g2, State::Running, Some(go.ms[1]), "");
    let stop = w.at(20).begin(process, SpanKind::StopTheWorld, "GC mark", Some(g1), None);
    for n in 0..2 {
        w.at(25).switch(cpus[n], Some(threads[n]), ThreadState::Sleeping, None);
    }
    for n in 0..2 {
        w.at(45).wake(None, Context::HardIrq, threads[n]);
        w.switch(cpus[n], None, ThreadState::Unknown, Some(threads[n]));
    }
    w.at(50).finish(stop, Some(g1));
    for (thread, is_held) in [(threads[0], false), (threads[1], true)] {
        let path = w.explain(thread, 20, 50, None);
        let during: Vec<_> = path.pieces.iter().map(|piece| piece.during.is_some()).collect();
        assert_eq!(during, [false, is_held, false]);
    }
}
