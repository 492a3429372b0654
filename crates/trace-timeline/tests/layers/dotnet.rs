//! .NET threads, their waits for locks and the pool, and activities.

use crate::common::{World, pieces};
use trace_timeline::answers::{Report, Waker, What, critical_path};
use trace_timeline::{
    Context, EntityKind, EventKind, Frame, Kernel, LossKind, SampleKind, SpanKind, State,
    ThreadState, text,
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

/// The kernel reports that a thread is woken, and then its runtime that its wait for a task ends: with or without
/// the kernel's part, or without that of one of them.
#[test]
fn a_wake_up_that_the_kernel_and_dotnet_report_counts_once() {
    for by_kernel in [0, 2, 3] {
        let mut w = World::default();
        let process = w.entity(EntityKind::Process, 7, None);
        let threads = [7, 8].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
        let [waiter, other] = [7, 8].map(|n| w.entity(EntityKind::DotnetThread, n, Some(process)));
        for number in 0..3 {
            if number < by_kernel {
                w.at(10 * number + 1).wake(Some(threads[1]), Context::Task, threads[0]);
            }
            w.at(10 * number + 2).wake(Some(other), Context::Task, waiter);
        }
        let report = w.report(Report::new());
        let found: Vec<_> = report.wakers.iter().map(|(key, count)| (*key, *count)).collect();
        let expected = (Some(process), Waker::Thread(threads[1]));
        assert_eq!(found, [(expected, 3)], "{by_kernel}");
    }
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

/// The thread that continues after an await, or takes a work item, serves another request meanwhile: neither that,
/// nor its lock and its samples, are parts of the wait.
#[test]
fn what_a_thread_does_before_it_continues_is_no_part_of_an_await() {
    for kind in [SpanKind::Await, SpanKind::Queued] {
        let mut w = World::default();
        let process = w.entity(EntityKind::Process, 7, None);
        let [main, worker] = [1, 2].map(|n| w.entity(EntityKind::DotnetThread, n, Some(process)));
        let [ours, theirs] = [1, 2].map(|n| w.entity(EntityKind::Activity, n, Some(process)));
        let [awaits, serves] = ["Shop.Pay", "Shop.Serve"].map(|name| {
            let function = w.text(name);
            w.tables.stack(&[Frame { function, ..Frame::default() }]).unwrap()
        });
        w.go(main, State::Running, None, "");
        w.go(worker, State::Running, None, "");
        let (span, name) = (w.tables.new_span(), w.text("Task.Delay"));
        let (entity, by, of, stack) = (process, Some(main), None, Some(awaits));
        w.at(20).push(EventKind::Begin { span, entity, kind, name, by, of, stack });
        let lock = w.at(30).begin(worker, SpanKind::LockWait, "lock", None, None);
        w.at(50).finish(lock, None);
        let other = w.at(55).begin(theirs, SpanKind::Activity, "serve", Some(worker), None);
        w.at(60).push(EventKind::Sample {
            entity: worker,
            kind: SampleKind::Managed,
            stack: Some(serves),
            weight: 1,
            thread: None,
            cpu: None,
            event: Default::default(),
            of: None,
        });
        w.at(90).finish(other, Some(worker));
        w.at(100).finish(span, Some(worker));
        w.at(110).go(worker, State::Waiting, None, "");
        let path = w.explain(worker, 20, 100, Some(ours));
        let found: Vec<_> = path
            .pieces
            .iter()
            .map(|p| (p.end.nanos(), p.stack, p.samples, p.during, p.context))
            .collect();
        let until = |end, context| (end, Some(awaits), 0, None, context);
        // What the worker works on is the context of an item that waits for it.
        let expected = match kind {
            SpanKind::Await => vec![until(100, None)],
            _ => vec![until(55, None), until(90, Some(theirs)), until(100, None)],
        };
        assert_eq!(found, expected, "{kind}");
    }
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

/// Three threads want one lock. Those that got it say when: the owner at the begin of a wait had it until
/// then. A thread of another process has a lock with the same number.
#[test]
fn a_lock_wait_is_divided_among_the_holders_of_the_lock() {
    let mut w = World::default();
    let [process, other] = [7, 8].map(|n| w.entity(EntityKind::Process, n, None));
    let [a, b, c] = [1, 2, 3].map(|n| w.entity(EntityKind::DotnetThread, n, Some(process)));
    let [x, y] = [4, 5].map(|n| w.entity(EntityKind::DotnetThread, n, Some(other)));
    for thread in [a, b, c, x, y] {
        w.go(thread, State::Running, None, "");
    }
    let second = w.at(1).begin_lock(b, 9, Some(a));
    let third = w.at(2).begin_lock(c, 9, Some(a));
    let of_other = w.at(5).begin_lock(x, 9, Some(y));
    w.at(10).finish(second, None);
    w.go(b, State::Running, None, "");
    w.at(15).finish(of_other, None);
    w.go(x, State::Running, None, "");
    w.at(20).finish(third, None);
    w.go(c, State::Running, None, "");
    // The lock is not fair: a thread that did not wait for it can have it.
    w.at(30).begin_lock(b, 9, Some(c));
    let last = w.at(40).begin_lock(a, 9, Some(x));
    w.at(50).finish(last, None);
    w.go(a, State::Running, None, "");
    w.at(60).go(c, State::Running, None, "");
    let path = w.explain(c, 0, 25, None);
    let unknown = What::NotRecorded;
    let expected = [(2, c, unknown), (10, a, unknown), (20, b, unknown), (25, c, unknown)];
    assert_eq!(pieces(&path), expected);
    let owners: Vec<_> = path.pieces.iter().map(|piece| piece.waiter_lock_owner).collect();
    assert_eq!(owners, [None, Some(a), Some(b), None]);
    let held = text::waiter(&path.pieces[2], &w.tables);
    let expected = "thread 3 of process 7 waited for a lock held by thread 2 of process 7";
    assert_eq!(held.as_deref(), Some(expected));
    // The wait of the second thread has no end.
    let path = w.explain(b, 25, 60, None);
    let expected = [(30, b, unknown), (40, c, unknown), (50, x, unknown), (60, a, unknown)];
    assert_eq!(pieces(&path), expected);
    // Within a part of the wait, what threads said before counts.
    let at = |n| trace_timeline::Timestamp::from_nanos(n);
    for (start, end, expected) in [
        (5, 8, &[(8, a)][..]),
        (12, 18, &[(18, b)]),
        (3, 18, &[(10, a), (18, b)]),
        (12, 14, &[(14, b)]),
    ] {
        let history = w.history_within(&[(at(start), at(end))]);
        let entities = &w.tables.entities;
        let path = critical_path(&history, entities, c, at(start), at(end), None);
        let found: Vec<_> = path.pieces.iter().map(|p| (p.end.nanos(), p.entity)).collect();
        assert_eq!(found, expected, "{start}..{end}");
    }
}

/// The kernel's wake-up says who had the lock: the runtime reports the owner at the begin of the wait.
#[test]
fn a_lock_wait_that_the_kernel_saw_names_the_thread_that_ended_it() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 7, None);
    let cpus = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let kernel = [7, 8, 9].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    let [a, b, c] = [7, 8, 9].map(|n| w.entity(EntityKind::DotnetThread, n, Some(process)));
    for thread in [a, b, c] {
        w.go(thread, State::Running, None, "");
    }
    w.switch(cpus[0], None, ThreadState::Unknown, Some(kernel[0]));
    w.switch(cpus[1], None, ThreadState::Unknown, Some(kernel[2]));
    let wait = w.at(10).begin_lock(c, 9, Some(a));
    w.at(12).switch(cpus[1], Some(kernel[2]), ThreadState::Sleeping, Some(kernel[1]));
    w.at(40).wake(Some(kernel[1]), Context::Task, kernel[2]);
    w.switch(cpus[1], Some(kernel[1]), ThreadState::Sleeping, Some(kernel[2]));
    w.at(45).finish(wait, None);
    w.go(c, State::Running, None, "");
    // Nobody ends the next wait, but a timer.
    let wait = w.at(50).begin_lock(c, 9, Some(a));
    w.switch(cpus[1], Some(kernel[2]), ThreadState::Sleeping, None);
    w.at(80).wake(None, Context::SoftIrq, kernel[2]);
    w.switch(cpus[1], None, ThreadState::Unknown, Some(kernel[2]));
    w.finish(wait, None);
    w.go(c, State::Running, None, "");
    w.at(90).switch(cpus[1], Some(kernel[2]), ThreadState::Sleeping, None);
    for subject in [c, kernel[2]] {
        let path = w.explain(subject, 0, 90, None);
        let on = |n: usize| What::OnCpu { cpu: cpus[n] };
        let timer = What::Waits { context: Context::SoftIrq };
        let found: Vec<_> = path
            .pieces
            .iter()
            .filter(|piece| piece.what == timer || piece.depth > 0)
            .map(|p| (p.start.nanos(), p.end.nanos(), p.entity, p.what, p.waiter_lock_owner))
            .collect();
        let ran = (12, 40, b, on(1), Some(b));
        assert_eq!(found, [ran, (50, 80, subject, timer, None)], "{path:#?}");
    }
    let path = w.explain(c, 0, 90, None);
    let during: Vec<_> =
        path.pieces.iter().map(|p| (p.end.nanos(), text::during(p, &w.tables))).collect();
    let of_a = Some("lock held by thread 7".to_owned());
    let released = Some("lock".to_owned());
    assert_eq!(
        during,
        [
            (10, None),
            (12, of_a.clone()),
            (40, None),
            (45, released),
            (50, None),
            (80, of_a),
            (90, None)
        ]
    );
}

/// The thread that ends a stop-the-world wakes one that waits for a lock: it had no lock.
#[test]
fn a_thread_that_restarts_the_world_is_no_owner_of_a_lock() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 7, None);
    let cpus = [0, 1].map(|n| w.entity(EntityKind::Cpu, n, None));
    let kernel = [7, 8, 9].map(|n| w.entity(EntityKind::Thread, n, Some(process)));
    let [a, b, c] = [7, 8, 9].map(|n| w.entity(EntityKind::DotnetThread, n, Some(process)));
    for thread in [a, b, c] {
        w.go(thread, State::Running, None, "");
    }
    w.switch(cpus[0], None, ThreadState::Unknown, Some(kernel[1]));
    w.switch(cpus[1], None, ThreadState::Unknown, Some(kernel[2]));
    let wait = w.at(10).begin_lock(c, 9, Some(a));
    w.at(12).switch(cpus[1], Some(kernel[2]), ThreadState::Sleeping, None);
    let stop = w.at(30).begin(process, SpanKind::StopTheWorld, "GC", Some(b), None);
    w.at(40).wake(Some(kernel[1]), Context::Task, kernel[2]);
    w.switch(cpus[1], None, ThreadState::Unknown, Some(kernel[2]));
    w.at(42).finish(stop, Some(b));
    w.at(45).finish(wait, None);
    w.go(c, State::Running, None, "");
    w.at(50).switch(cpus[1], Some(kernel[2]), ThreadState::Sleeping, None);
    let path = w.explain(c, 0, 50, None);
    let mut others: Vec<_> = path.pieces.iter().filter(|piece| piece.depth > 0).collect();
    others.dedup_by_key(|piece| (piece.entity, piece.waiter_lock_owner));
    let others: Vec<_> = others.iter().map(|p| (p.entity, p.waiter_lock_owner)).collect();
    assert_eq!(others, [(b, Some(a))], "{path:#?}");
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

/// Samples alone mention the thread of the kernel.
#[test]
fn a_dotnet_thread_without_switches_was_not_recorded() {
    let mut w = World::default();
    let process = w.entity(EntityKind::Process, 7, None);
    w.entity(EntityKind::Thread, 7, Some(process));
    let thread = w.entity(EntityKind::DotnetThread, 7, Some(process));
    w.go(thread, State::Running, None, "");
    w.at(60).go(thread, State::Waiting, None, "");
    let path = w.explain(thread, 0, 60, None);
    assert_eq!(pieces(&path), [(60, thread, What::NotRecorded)]);
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
            kind: SampleKind::Managed,
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

/// The reasons of waits are names of methods or of what is waited for.
#[test]
fn waits_for_handles_read_well() {
    for (reason, expected) in [
        ("Monitor.Wait", "waited in Monitor.Wait"),
        ("wait handle", "waited for a wait handle"),
        ("task", "waited for task"),
    ] {
        let mut w = World::default();
        let process = w.entity(EntityKind::Process, 7, None);
        let thread = w.entity(EntityKind::DotnetThread, 1, Some(process));
        w.go(thread, State::Waiting, None, reason);
        w.at(50).go(thread, State::Running, None, "");
        w.at(60).go(thread, State::Waiting, None, "");
        let path = w.explain(thread, 0, 50, None);
        let texts: Vec<_> = path.pieces.iter().map(|p| text::piece(p, &w.tables).1).collect();
        assert_eq!(texts, [expected]);
    }
}
