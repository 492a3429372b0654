//! Recordings in parts: each part begins with the tasks and mappings of its start.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails is to panic")]

use perf_data::{
    Features, FileWriter, Mappings, Reader, RecordWriter, RecordedEvent, TaskRecords,
    perf_event_attr,
};
use perf_monitor::{RawRecord, Record};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;

const MMAP2: u32 = 10;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const USER: u16 = 2;
const BY_EXEC: u16 = 1 << 13;
/// Of a process that a recorder lists.
const FORK_EXEC: u16 = 1 << 13;

/// `IDENTIFIER | TID | TIME | CPU`, with `sample_id_all`.
fn attr() -> perf_event_attr {
    let mut attr = perf_event_attr::new(1, 9);
    attr.sample_type = 1 << 16 | 1 << 1 | 1 << 2 | 1 << 7;
    attr.set_sample_id_all(true);
    attr
}

/// A record with a sample id of that time.
fn record(type_: u32, misc: u16, words: &[u64], text: &str, time: u64) -> Vec<u8> {
    let mut body: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    if !text.is_empty() {
        body.extend(text.as_bytes());
        body.resize((body.len() + 1).next_multiple_of(8), 0);
    }
    body.extend([0, time, 0, 1].iter().flat_map(|w: &u64| w.to_ne_bytes()));
    let size = (8 + body.len()) as u16;
    [&type_.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes(), &body].concat()
}

const fn pair(a: u32, b: u32) -> u64 {
    a as u64 | (b as u64) << 32
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Fork { parent: u32, pid: u32 },
    Thread { pid: u32, tid: u32 },
    Name { pid: u32, name: u8 },
    Exec { pid: u32, name: u8 },
    Map { pid: u32, page: u8, file: u8 },
    Exit { pid: u32, tid: u32 },
}

fn bytes(step: Step, time: u64) -> Vec<u8> {
    match step {
        Step::Fork { parent, pid } => {
            record(FORK, 0, &[pair(pid, parent), pair(pid, parent), time], "", time)
        }
        Step::Thread { pid, tid } => {
            record(FORK, 0, &[pair(pid, pid), pair(tid, pid), time], "", time)
        }
        Step::Name { pid, name } => record(COMM, 0, &[pair(pid, pid)], &format!("n{name}"), time),
        Step::Exec { pid, name } => {
            record(COMM, BY_EXEC, &[pair(pid, pid)], &format!("e{name}"), time)
        }
        Step::Map { pid, page, file } => {
            let start = u64::from(page) * 4096;
            let words = [pair(pid, pid), start, 8192, 0, 0, 0, 0, pair(5, 2)];
            record(MMAP2, USER, &words, &format!("/lib{file}"), time)
        }
        Step::Exit { pid, tid } => {
            record(EXIT, 0, &[pair(pid, pid), pair(tid, tid), time], "", time)
        }
    }
}

/// The names of threads and the files at some addresses, as records say.
#[derive(Debug, Default, PartialEq)]
struct World {
    names: BTreeMap<u32, Vec<u8>>,
    files: BTreeMap<(u32, u64), String>,
}

fn world(records: &[Vec<u8>]) -> World {
    let event = RecordedEvent { name: "dummy".into(), attr: attr(), ids: vec![1] };
    let mut writer = FileWriter::new(Cursor::new(Vec::new()), vec![event]).unwrap();
    for bytes in records {
        writer.record(RawRecord::split_first(bytes, 0).unwrap().0).unwrap();
    }
    let input = writer.finish(&Features::default()).unwrap();
    let mut reader = Reader::new(input).unwrap();
    let (mut names, mut mappings) = (BTreeMap::new(), Mappings::new(&Features::default()));
    let mut threads: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    while let Some(entry) = reader.next_record().unwrap() {
        let record = entry.decode().unwrap().unwrap();
        mappings.push(&record, entry.raw);
        match record {
            Record::Comm(comm) => {
                names.insert(comm.tid, comm.comm.to_vec());
            }
            Record::Fork(fork) => {
                threads.entry(fork.pid).or_default().insert(fork.tid);
                if let Some(name) = names.get(&fork.ptid).cloned() {
                    names.insert(fork.tid, name);
                }
            }
            Record::Exit(exit) => {
                names.remove(&exit.tid);
                threads.entry(exit.pid).or_default().remove(&exit.tid);
            }
            _ => {}
        }
    }
    let mut files = BTreeMap::new();
    for (pid, _) in threads.iter().filter(|(_, threads)| !threads.is_empty()) {
        for page in 0..20u64 {
            let at = page * 4096;
            if let Some(place) = mappings.at(*pid, at, false) {
                files.insert((*pid, at), mappings.file(place.file).unwrap().name.clone());
            }
        }
    }
    World { names, files }
}

/// Steps that a kernel could report: of processes and threads that run.
fn possible(steps: &[(u8, u8, u8, u8)]) -> Vec<Step> {
    let mut running: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut next = 100;
    let mut out = Vec::new();
    for (kind, a, b, c) in steps {
        let pids: Vec<u32> = running.keys().copied().collect();
        let pid = pids.get(usize::from(*a) % pids.len().max(1)).copied();
        let Some(pid) = pid else {
            running.insert(next, BTreeSet::from([next]));
            // Each thread of the kernel has a name.
            out.push(Step::Fork { parent: 1, pid: next });
            out.push(Step::Name { pid: next, name: *b });
            next += 1;
            continue;
        };
        let step = match kind % 8 {
            0 | 1 => {
                running.insert(next, BTreeSet::from([next]));
                next += 1;
                Step::Fork { parent: pid, pid: next - 1 }
            }
            2 => {
                running.entry(pid).or_default().insert(next);
                next += 1;
                Step::Thread { pid, tid: next - 1 }
            }
            3 => Step::Name { pid, name: *b },
            // Its first thread executes it.
            4 if running[&pid].len() == 1 => {
                out.push(Step::Exec { pid, name: *b });
                Step::Map { pid, page: b % 16, file: *c }
            }
            5 | 6 => Step::Map { pid, page: b % 16, file: *c },
            _ => {
                let threads = running.get_mut(&pid).unwrap();
                // The first thread is the last to end here.
                let tid = *threads.last().unwrap();
                threads.remove(&tid);
                if threads.is_empty() {
                    running.remove(&pid);
                }
                Step::Exit { pid, tid }
            }
        };
        out.push(step);
    }
    out
}

/// A writer that keeps the records.
#[derive(Default)]
struct Kept(Vec<Vec<u8>>);

impl RecordWriter for Kept {
    fn record(&mut self, record: RawRecord<'_>) -> perf_data::Result<()> {
        self.0.push(record.bytes().to_vec());
        Ok(())
    }

    fn finish_round(&mut self) -> perf_data::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }
}

/// Processes that were there at the start, as a recorder lists them one after the other: a parent, and
/// a child that executes another program.
fn listed(misc: u16) -> Vec<Vec<u8>> {
    let map = |pid, page, file| bytes(Step::Map { pid, page, file }, 0);
    let fork = |pid, parent| record(FORK, misc, &[pair(pid, parent), pair(pid, parent), 0], "", 0);
    let name = |pid, name| bytes(Step::Name { pid, name }, 0);
    vec![
        fork(100, 1),
        name(100, 1),
        map(100, 0, 1),
        map(100, 10, 1),
        fork(101, 100),
        name(101, 2),
        map(101, 4, 2),
    ]
}

/// Two pages of a file.
fn pages(pid: u32, page: u64, file: u8) -> [((u32, u64), String); 2] {
    [page, page + 1].map(|page| ((pid, page * 4096), format!("/lib{file}")))
}

/// The parent has replaced its program since.
#[test]
fn a_listed_process_has_its_own_mappings_only() {
    let expected: BTreeMap<_, _> =
        [pages(100, 0, 1), pages(100, 10, 1), pages(101, 4, 2)].into_iter().flatten().collect();
    // perf marks the records since Linux 4.20; before, they only have no time.
    for misc in [FORK_EXEC, 0] {
        let all = listed(misc);
        assert_eq!(world(&all).files, expected);
        let mut tasks = TaskRecords::new(&attr(), usize::MAX);
        for bytes in &all {
            tasks.push(RawRecord::split_first(bytes, 0).unwrap().0);
        }
        let mut part = Kept::default();
        tasks.write(&mut part).unwrap();
        assert_eq!(world(&part.0).files, expected);
        // Of a later one, each process begins again with the mappings of the list.
        assert_eq!(world(&[part.0.clone(), part.0.clone()].concat()).files, expected);
        for fork in part.0.iter().filter(|record| record[..4] == FORK.to_ne_bytes()) {
            assert_eq!(fork[4..6], FORK_EXEC.to_ne_bytes());
        }
    }
}

/// A recorder with other settings looks at processes again, whose mappings it may not read any more.
#[test]
fn known_processes_are_taken_over() {
    let apply = |tasks: &mut TaskRecords, records: &[Vec<u8>]| {
        for bytes in records {
            tasks.push(RawRecord::split_first(bytes, 0).unwrap().0);
        }
    };
    let all = listed(FORK_EXEC);
    let mut old = TaskRecords::new(&attr(), usize::MAX);
    apply(&mut old, &all);
    let bytes = old.bytes();
    let mut tasks = TaskRecords::new(&attr(), bytes);
    tasks.take_over(&mut old);
    assert_eq!((old.threads(), old.bytes(), old.has_process(100)), (0, 0, false));
    assert_eq!((tasks.threads(), tasks.bytes(), tasks.dropped()), (2, bytes, 0));
    assert!(tasks.has_process(100) && tasks.has_process(101) && !tasks.has_process(102));
    // There is no room for more, which the next one counts, too.
    apply(&mut tasks, &all[..1]);
    let mut next = TaskRecords::new(&attr(), usize::MAX);
    next.take_over(&mut tasks);
    assert_eq!((next.dropped(), tasks.dropped()), (1, 0));
    // A list without mappings takes none away.
    apply(&mut next, &[all[0].clone(), all[1].clone()]);
    let mut part = Kept::default();
    next.write(&mut part).unwrap();
    assert_eq!(world(&part.0), world(&all));
    next.retain_processes(|pid| pid != 101);
    assert!(next.has_process(100) && !next.has_process(101));
    next.retain_processes(|_| false);
    assert_eq!((next.threads(), next.bytes()), (0, 0));
}

/// The kernel gives the thread the id of the main thread, whose end it reports before.
#[test]
fn a_thread_that_executes_a_program_is_the_main_thread() {
    let mut tasks = TaskRecords::new(&attr(), usize::MAX);
    let mut apply = |steps: &[Step]| {
        for step in steps {
            let bytes = bytes(*step, 1000);
            tasks.push(RawRecord::split_first(&bytes, 0).unwrap().0);
        }
        let mut part = Kept::default();
        tasks.write(&mut part).unwrap();
        (part.0, tasks.threads(), tasks.bytes())
    };
    let (pid, tid) = (100, 101);
    let start = [Step::Fork { parent: 1, pid }, Step::Thread { pid, tid }];
    apply(&start);
    let exec = [Step::Exit { pid, tid: pid }, Step::Exec { pid, name: 5 }];
    let (part, threads, _) = apply(&exec);
    assert_eq!((world(&part).names, threads), (BTreeMap::from([(pid, b"e5".to_vec())]), 1));
    let forks: Vec<_> = part.iter().filter(|record| record[..4] == FORK.to_ne_bytes()).collect();
    assert_eq!(forks.len(), 1);
    assert_eq!(forks[0][8..24], *[pid, pid, pid, pid].map(u32::to_ne_bytes).concat());
    assert_eq!(apply(&[Step::Exit { pid, tid: pid }]), (Vec::new(), 0, 0));
}

/// A recorder at its limit: nothing is that of an earlier program, process or mapping.
#[test]
fn records_without_room_replace_what_was_before() {
    let (pid, tid) = (100, 101);
    let long =
        |type_: u32, misc: u16, words: &[u64]| record(type_, misc, words, &"x".repeat(900), 2000);
    // What is known after these steps and more records, with no more room than the steps need.
    let known = |steps: &[Step], more: &[Vec<u8>]| {
        let steps: Vec<_> = steps.iter().map(|step| bytes(*step, 1000)).collect();
        let mut tasks = TaskRecords::new(&attr(), usize::MAX);
        let apply = |tasks: &mut TaskRecords, bytes: &[u8]| {
            tasks.push(RawRecord::split_first(bytes, 0).unwrap().0);
            tasks.bytes()
        };
        let limit = steps.iter().map(|bytes| apply(&mut tasks, bytes)).max().unwrap();
        let mut tasks = TaskRecords::new(&attr(), limit);
        steps.iter().chain(more).for_each(|bytes| _ = apply(&mut tasks, bytes));
        let mut part = Kept::default();
        tasks.write(&mut part).unwrap();
        (world(&part.0), tasks.dropped())
    };
    let names = |of: &[(u32, &str)]| -> BTreeMap<u32, Vec<u8>> {
        of.iter().map(|(tid, name)| (*tid, name.as_bytes().to_vec())).collect()
    };
    let files = |of: Vec<[((u32, u64), String); 2]>| of.into_iter().flatten().collect();
    let start = [
        Step::Fork { parent: 1, pid },
        Step::Name { pid, name: 1 },
        Step::Map { pid, page: 0, file: 1 },
        Step::Map { pid, page: 10, file: 2 },
    ];

    // The mappings of the former program make the room for the name of the next one.
    let exec = bytes(Step::Exec { pid, name: 5 }, 2000);
    let expected = World { names: names(&[(pid, "e5")]), files: BTreeMap::new() };
    assert_eq!(known(&start, &[exec]), (expected, 0));
    let exec = long(COMM, BY_EXEC, &[pair(pid, pid)]);
    assert_eq!(known(&start, &[exec]), (World::default(), 1));
    // Another thread executes it, and is the main thread then, whose end is recorded.
    let more = [Step::Thread { pid, tid }, Step::Exit { pid, tid: pid }];
    let exec = long(COMM, BY_EXEC, &[pair(pid, pid)]);
    let exit = bytes(Step::Exit { pid, tid: pid }, 3000);
    assert_eq!(known(&[&start[..], &more].concat(), &[exec, exit]), (World::default(), 1));

    let both = || files(vec![pages(pid, 0, 1), pages(pid, 10, 2)]);
    let rename = long(COMM, 0, &[pair(pid, pid)]);
    let expected = World { names: BTreeMap::new(), files: both() };
    assert_eq!(known(&start, &[rename]), (expected, 1));
    // A list of what runs: it is the same thread.
    let listed = record(COMM, 0, &[pair(pid, pid)], &"x".repeat(900), 0);
    let expected = World { names: names(&[(pid, "n1")]), files: both() };
    assert_eq!(known(&start, &[listed]), (expected, 1));

    // The end of the process with this number was lost.
    let child = Step::Fork { parent: pid, pid: 200 };
    let others = [Step::Map { pid: 200, page: 14, file: 3 }];
    let all = [&start[..], &[child], &others].concat();
    let fork = record(FORK, 0, &[pair(200, 1), pair(200, 1), 2000], "", 2000);
    let expected = World { names: names(&[(pid, "n1")]), files: both() };
    assert_eq!(known(&all, &[fork]), (expected, 0));

    // A child replaces what it shares with its parent, and there is no room for its own copy of the rest.
    let shares = [&start[..], &[child]].concat();
    let cover = long(MMAP2, USER, &[pair(200, 200), 0, 2 * 4096, 0, 0, 0, 0, pair(5, 2)]);
    let expected = World { names: names(&[(pid, "n1"), (200, "n1")]), files: both() };
    assert_eq!(known(&shares, &[cover]), (expected, 2));

    // A mapping that covers one, and a part of another.
    let map = |page: u64, len: u64| {
        long(MMAP2, USER, &[pair(pid, pid), page * 4096, len * 4096, 0, 0, 0, 0, pair(5, 2)])
    };
    let name = names(&[(pid, "n1")]);
    let expected = World { names: name.clone(), files: files(vec![pages(pid, 10, 2)]) };
    assert_eq!(known(&start, &[map(0, 2)]), (expected, 1));
    let expected = World { names: name, files: files(vec![pages(pid, 0, 1)]) };
    assert_eq!(known(&start, &[map(11, 4)]), (expected, 1));
}

proptest! {
    /// The second part alone says the same of the tasks that run as the whole recording.
    #[test]
    fn a_part_begins_with_the_tasks_of_its_start(
        steps in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 0..200),
        cut in 0usize..200,
    ) {
        let steps = possible(&steps);
        let all: Vec<Vec<u8>> =
            steps.iter().zip(1000..).map(|(step, time)| bytes(*step, time)).collect();
        let (first, second) = all.split_at(cut.min(all.len()));
        let mut tasks = TaskRecords::new(&attr(), usize::MAX);
        for bytes in first {
            tasks.push(RawRecord::split_first(bytes, 0).unwrap().0);
        }
        let mut part = Kept::default();
        tasks.write(&mut part).unwrap();
        prop_assert_eq!(tasks.dropped(), 0);
        part.0.extend(second.iter().cloned());
        prop_assert_eq!(world(&part.0), world(&all));
    }

    /// Memory is given back, and the limit holds.
    #[test]
    fn memory_is_bounded(
        steps in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 0..200),
        limit in 0usize..20_000,
    ) {
        let mut tasks = TaskRecords::new(&attr(), usize::MAX);
        let mut small = TaskRecords::new(&attr(), limit);
        let mut running = BTreeSet::new();
        for (step, time) in possible(&steps).into_iter().zip(1000..) {
            let bytes = bytes(step, time);
            let raw = RawRecord::split_first(&bytes, 0).unwrap().0;
            tasks.push(raw);
            small.push(raw);
            match step {
                Step::Fork { pid, .. } => drop(running.insert((pid, pid))),
                Step::Thread { pid, tid } => drop(running.insert((pid, tid))),
                Step::Exit { pid, tid } => drop(running.remove(&(pid, tid))),
                _ => {}
            }
            prop_assert_eq!(tasks.threads(), running.len());
        }
        for (pid, tid) in running {
            let bytes = bytes(Step::Exit { pid, tid }, 5000);
            tasks.push(RawRecord::split_first(&bytes, 0).unwrap().0);
        }
        prop_assert_eq!((tasks.bytes(), tasks.threads()), (0, 0));
    }

    #[test]
    fn any_record_is_no_panic(records in prop::collection::vec(
        (0u32..30, any::<u16>(), prop::collection::vec(any::<u64>(), 0..12)), 0..50)
    ) {
        let mut tasks = TaskRecords::new(&attr(), 1 << 16);
        for (type_, misc, words) in records {
            let bytes = record(type_, misc, &words, "", 1);
            tasks.push(RawRecord::split_first(&bytes, 0).unwrap().0);
        }
        tasks.write(&mut Kept::default()).unwrap();
    }
}
