//! Events of the timeline model for several benchmarks.

use trace_timeline::sources::go::GoSource;
use trace_timeline::sources::kernel::{KernelSource, Record, Task, ThreadRef};
use trace_timeline::{Event, Tables, Timestamp};

/// Context switches of one iteration.
pub(crate) const SWITCHES: usize = 1 << 16;

pub(crate) const CPUS: usize = 8;

/// Threads of each CPU.
pub(crate) const THREADS: u32 = 16;

/// Switches on all CPUs in turn. One of `sleeps` threads is preempted, the others sleep and are
/// woken before they run again.
pub(crate) fn scheduler(sleeps: usize, tables: &mut Tables) -> Vec<Event> {
    let (mut source, mut events) = (KernelSource::new(), Vec::new());
    let task = |tid| Task::new(tid, b"worker", 120);
    let mut running = [0; CPUS];
    let mut is_asleep = [false; CPUS * THREADS as usize + 1];
    for n in 0..SWITCHES {
        let cpu = n % CPUS;
        let first = cpu as u32 * THREADS + 1;
        let at = |part: i64| Timestamp::from_nanos(n as i64 * 1_000 + part);
        let (prev, next) = (running[cpu], first + (n / CPUS) as u32 % THREADS);
        let number = cpu as u32;
        if std::mem::replace(&mut is_asleep[next as usize], false) {
            let waking = Record::Waking {
                cpu: number,
                by: Some(ThreadRef::Tid(prev)),
                flags: Some(1),
                task: task(next),
                target_cpu: number,
                is_new: false,
                stack: None,
            };
            source.push(at(0), &waking, tables, &mut events);
        }
        let sleeps = n / CPUS % sleeps != 0;
        is_asleep[prev as usize] = sleeps && prev != 0;
        running[cpu] = next;
        let (prev, next) = (task(prev), task(next));
        let prev_state = i64::from(sleeps);
        let switch = Record::Switch { cpu: number, prev, prev_state, next };
        source.push(at(500), &switch, tables, &mut events);
    }
    events
}

/// The events of a Go trace: a web shop.
pub(crate) fn go(tables: &mut Tables) -> Vec<Event> {
    let path = "../crates/gotrace/tests/data/shop.trace";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let trace = std::fs::read(path).unwrap();
    let mut reader = gotrace::Reader::new(&trace[..]).unwrap();
    let (mut source, mut events) = (GoSource::new(Default::default()), Vec::new());
    while let Some(event) = reader.next_event().unwrap() {
        source.push(event, tables, &mut events);
    }
    events
}
