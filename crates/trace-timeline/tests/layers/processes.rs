//! Which process of the kernel a runtime's process is.

use crate::common::{World, at};
use trace_timeline::{
    ClockDomain, Correlator, Derived, EntityId, EntityKind, EventKind, Kernel, State, ThreadState,
};

/// Threads, each on a CPU of its own: the process ids and the thread ids.
fn kernel_threads(w: &mut World, threads: &[(u32, u32)]) {
    for (number, (pid, tid)) in (0..).zip(threads) {
        let known = w.tables.entities.process(*pid);
        let process = known.unwrap_or_else(|| w.entity(EntityKind::Process, (*pid).into(), None));
        let thread = w.entity(EntityKind::Thread, (*tid).into(), Some(process));
        let cpu = w.entity(EntityKind::Cpu, number, None);
        w.switch(cpu, None, ThreadState::Unknown, Some(thread));
    }
}

/// A trace that does not record its process id: its process, and goroutines on Ms with these ids, one each
/// 10 ns from 10 ns on.
fn go(w: &mut World, ids: &[i64]) -> (EntityId, Vec<EntityId>) {
    let process = w.entity(EntityKind::Process, -1, None);
    let goroutines = ids.iter().map(|id| {
        w.at(w.now + 10);
        let m = w.entity(EntityKind::GoThread, *id, Some(process));
        let goroutine = w.entity(EntityKind::Goroutine, *id, Some(process));
        w.go(goroutine, State::Running, Some(m), "");
        goroutine
    });
    let goroutines: Vec<EntityId> = goroutines.collect();
    w.at(100).go(goroutines[0], State::Waiting, None, "");
    (process, goroutines)
}

fn correlated(w: &World) -> Correlator {
    let mut correlator = Correlator::new();
    for event in &w.events {
        correlator.push(event, &w.tables.entities, &mut |_: Derived<'_>| {});
    }
    correlator
}

/// The ends of the intervals of each goroutine, and whether it was on a CPU.
fn on_cpu(w: &World, goroutines: &[EntityId]) -> Vec<Vec<(i64, bool)>> {
    let is_on_cpu = |kernel| match kernel {
        Kernel::OnCpu { .. } => true,
        Kernel::Unknown => false,
        kernel => panic!("{kernel:?}"),
    };
    let of = |goroutine: &EntityId| {
        let intervals = w.intervals(*goroutine);
        intervals.iter().map(|i| (i.end.nanos(), is_on_cpu(i.kernel))).collect()
    };
    goroutines.iter().map(of).collect()
}

/// The ids of the threads of a container are those of other processes of the machine.
#[test]
fn threads_with_ids_of_several_processes_are_not_related() {
    let mut w = World::default();
    kernel_threads(&mut w, &[(1, 1), (7, 7), (8, 8)]);
    let (process, goroutines) = go(&mut w, &[1, 7, 8]);
    let expected = [vec![(20, true), (100, false)], vec![(100, false)], vec![(100, false)]];
    assert_eq!(on_cpu(&w, &goroutines), expected);
    let correlator = correlated(&w);
    assert_eq!((correlator.unrelated(), correlator.processes()), (vec![process], vec![]));
}

/// A .NET trace has the process id: its process, and threads with these ids, one each 10 ns from 10 ns on.
fn dotnet(w: &mut World, pid: i64, ids: &[i64]) -> (EntityId, Vec<EntityId>) {
    let process = w.entity(EntityKind::Process, pid, None);
    let threads = ids.iter().map(|id| {
        w.at(w.now + 10);
        let thread = w.entity(EntityKind::DotnetThread, *id, Some(process));
        w.go(thread, State::Running, None, "");
        thread
    });
    let threads: Vec<EntityId> = threads.collect();
    w.at(100).push(EventKind::Clock { time: at(0), domain: ClockDomain::Realtime, reading: at(0) });
    (process, threads)
}

/// The process of a container is number 1, as the first one of the machine.
#[test]
fn threads_of_other_processes_than_the_recorded_one_are_those_of_a_container() {
    let mut w = World::default();
    kernel_threads(&mut w, &[(1, 1), (7, 7), (8, 8)]);
    let (process, threads) = dotnet(&mut w, 1, &[1, 7, 8]);
    let expected = [vec![(30, true), (100, false)], vec![(100, false)], vec![(100, false)]];
    assert_eq!(on_cpu(&w, &threads), expected);
    let correlator = correlated(&w);
    assert_eq!((correlator.unrelated(), correlator.processes()), (vec![process], vec![]));
}

/// Other processes use the ids of threads that ended before the recording of the kernel began.
#[test]
fn a_recorded_process_with_two_threads_is_that_process() {
    let mut w = World::default();
    kernel_threads(&mut w, &[(50, 50), (60, 51), (50, 52), (60, 53), (60, 54)]);
    let (_, threads) = dotnet(&mut w, 50, &[50, 51, 52, 53, 54]);
    let (on, off) = (vec![(100, true)], vec![(100, false)]);
    let expected = [on.clone(), off.clone(), on, off.clone(), off];
    assert_eq!(on_cpu(&w, &threads), expected);
    let correlator = correlated(&w);
    assert_eq!((correlator.unrelated(), correlator.processes()), (vec![], vec![]));
}

/// The last id is used again by another process. Its M may have ended before the recording began.
#[test]
fn the_process_is_that_of_the_threads() {
    let mut w = World::default();
    kernel_threads(&mut w, &[(50, 50), (50, 51), (50, 52), (60, 53)]);
    let (process, goroutines) = go(&mut w, &[50, 51, 52, 53]);
    let on = vec![(100, true)];
    let expected = [on.clone(), on.clone(), on, vec![(100, false)]];
    assert_eq!(on_cpu(&w, &goroutines), expected);
    let correlator = correlated(&w);
    assert_eq!((correlator.unrelated(), correlator.processes()), (vec![], vec![(process, 50)]));
}

/// The kernel's process of the first thread is known when the others begin.
#[test]
fn a_thread_whose_process_is_known_late_is_looked_at_again() {
    let mut w = World::default();
    kernel_threads(&mut w, &[(60, 49), (50, 50), (50, 51)]);
    let (process, goroutines) = go(&mut w, &[49, 50, 51]);
    let entities = &mut w.tables.entities;
    let late = entities.thread(49).unwrap();
    let of = entities.get_mut(late).unwrap().parent.take();
    let mut correlator = Correlator::new();
    let mut kernels = Vec::new();
    for event in &w.events {
        if event.time.nanos() == 20 {
            w.tables.entities.get_mut(late).unwrap().parent = of;
        }
        correlator.push(event, &w.tables.entities, &mut |derived: Derived<'_>| {
            if let Derived::Interval(interval) = derived {
                if interval.subject == goroutines[0] {
                    kernels.push((interval.end.nanos(), interval.kernel));
                }
            }
        });
    }
    assert_eq!(correlator.processes(), [(process, 50)]);
    let is_known = |(end, kernel): &(i64, Kernel)| (*end, *kernel != Kernel::Unknown);
    let known: Vec<_> = kernels.iter().map(is_known).collect();
    assert_eq!(known, [(20, true), (100, false)]);
}

/// The kernel's processes of all threads are known after their last event, by another start of each.
#[test]
fn the_process_is_found_by_threads_whose_process_is_known_last() {
    for (pids, found) in [([50, 50], Some(50)), ([50, 51], None)] {
        let mut w = World::default();
        kernel_threads(&mut w, &[(pids[0], 50), (pids[1], 51)]);
        let (process, goroutines) = go(&mut w, &[50, 51]);
        let threads = [50, 51].map(|tid| w.tables.entities.thread(tid).unwrap());
        let parents = threads.map(|id| w.tables.entities.get_mut(id).unwrap().parent.take());
        let starts = threads.map(|entity| EventKind::Start { entity });
        w.at(150);
        starts.iter().for_each(|start| _ = w.push(*start));
        w.at(200).go(goroutines[1], State::Waiting, None, "");
        let mut correlator = Correlator::new();
        let mut on_cpu = 0;
        for event in &w.events {
            if event.time.nanos() == 150 {
                for (id, parent) in threads.into_iter().zip(parents) {
                    w.tables.entities.get_mut(id).unwrap().parent = parent;
                }
            }
            correlator.push(event, &w.tables.entities, &mut |derived: Derived<'_>| match derived {
                Derived::Interval(i) if i.subject == goroutines[1] => {
                    let is_on_cpu = matches!(i.kernel, Kernel::OnCpu { .. });
                    on_cpu += if is_on_cpu { i.nanos() } else { 0 };
                }
                _ => {}
            });
        }
        let unrelated: Vec<EntityId> = found.is_none().then_some(process).into_iter().collect();
        assert_eq!(correlator.unrelated(), unrelated);
        let found: Vec<_> = found.map(|pid| (process, pid)).into_iter().collect();
        assert_eq!(correlator.processes(), found);
        assert_eq!(on_cpu, if found.is_empty() { 150 - 20 } else { 200 - 20 });
    }
}

/// A thread of a container has the id of one of the machine. Two traces of its process have it.
#[test]
fn one_thread_of_several_is_a_coincidence() {
    let found = |traces: &[&[i64]]| {
        let mut w = World::default();
        kernel_threads(&mut w, &[(8, 8)]);
        let process = w.entity(EntityKind::Process, -1, None);
        for id in traces.concat() {
            w.entity(EntityKind::GoThread, id, Some(process));
        }
        let correlator = correlated(&w);
        assert_eq!(correlator.unrelated(), []);
        correlator.processes().iter().map(|(_, pid)| *pid).collect::<Vec<_>>()
    };
    assert_eq!(found(&[&[8], &[8]]), [8], "it has no others");
    assert_eq!(found(&[&[1, 7, 8, 9]]), [0; 0]);
    assert_eq!(found(&[&[7, 8], &[8, 9]]), [0; 0]);
}

/// Another program, in a PID namespace of its own, has a thread with an id of the first one's.
#[test]
fn a_thread_comes_back_from_a_process_with_the_same_id() {
    for is_executing in [true, false] {
        let mut w = World::default();
        kernel_threads(&mut w, &[(50, 100), (50, 101), (60, 7)]);
        let process = w.entity(EntityKind::Process, -1, None);
        let ms = [100, 101].map(|id| w.entity(EntityKind::GoThread, id, Some(process)));
        let goroutine = w.entity(EntityKind::Goroutine, 1, Some(process));
        if is_executing {
            w.go(goroutine, State::Running, Some(ms[0]), "");
        }
        w.at(10);
        let (other, goroutines) = go(&mut w, &[100, 7]);
        if !is_executing {
            w.go(goroutine, State::Running, Some(ms[0]), "");
        }
        w.at(150).go(goroutine, State::Waiting, None, "");
        let on_cpu = |goroutine: EntityId| -> Vec<(i64, i64)> {
            let intervals = w.intervals(goroutine);
            let on_cpu = intervals.iter().filter(|i| matches!(i.kernel, Kernel::OnCpu { .. }));
            on_cpu.map(|i| (i.start.nanos(), i.end.nanos())).collect()
        };
        // An M that executes nothing is the other one's until that has a thread of a third process.
        match is_executing {
            true => {
                assert_eq!((on_cpu(goroutine), on_cpu(goroutines[0])), (vec![(0, 150)], vec![]));
            }
            false => assert_eq!(
                (on_cpu(goroutine), on_cpu(goroutines[0])),
                (vec![(100, 150)], vec![(20, 30)])
            ),
        }
        assert_eq!(on_cpu(goroutines[1]), []);
        let correlator = correlated(&w);
        assert_eq!(
            (correlator.unrelated(), correlator.processes()),
            (vec![other], vec![(process, 50)])
        );
    }
}
