//! .NET threads, their waits for locks and the pool, and activities.

use crate::common::{World, pieces};
use trace_timeline::answers::{Report, What};
use trace_timeline::{
    Context, EntityKind, EventKind, Kernel, LossKind, SpanKind, State, ThreadState, text,
};

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

/// The same thread begins another request while the first one waits: only a child is a part of it.
#[test]
fn the_child_of_an_activity_is_a_part_of_it() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 10, None);
    let cpu = w.entity(EntityKind::Cpu, 0, None);
    let [thread, child] = [10, 11].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    let [outer, inner, later] = [1, 2, 3].map(|n| w.entity(EntityKind::Activity, n, Some(process)));
    let begin = |w: &mut World, activity, parent| {
        w.begin(activity, SpanKind::Activity, "activity", Some(thread), parent)
    };
    w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    let spans = [begin(&mut w, outer, None), begin(&mut w, inner, Some(outer))];
    w.at(10).switch(cpu, Some(thread), ThreadState::Sleeping, Some(child));
    w.at(40).wake(Some(child), Context::Task, thread);
    w.switch(cpu, Some(child), ThreadState::Sleeping, Some(thread));
    w.at(50).finish(spans[1], Some(thread));
    w.at(60).finish(spans[0], Some(thread));
    let last = begin(&mut w, later, None);
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
