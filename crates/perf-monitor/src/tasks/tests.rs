use super::*;
use crate::record::{Cgroup, Comm, Mmap, SampleId};
use proptest::prelude::*;

const fn t(nanos: i64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn id(time: i64) -> SampleId {
    SampleId { time: Some(t(time)), ..SampleId::default() }
}

fn fork(ppid: u32, ptid: u32, pid: u32, tid: u32, time: i64) -> Record<'static> {
    Record::Fork(ProcessEvent { pid, ppid, tid, ptid, time: t(time), sample_id: id(time) })
}

fn exit(pid: u32, tid: u32, time: i64) -> Record<'static> {
    let event = ProcessEvent { pid, ppid: 1, tid, ptid: 1, time: t(time), sample_id: id(time) };
    Record::Exit(event)
}

fn comm(pid: u32, tid: u32, comm: &str, by_exec: bool, time: i64) -> Record<'_> {
    Record::Comm(Comm { pid, tid, comm: comm.as_bytes(), by_exec, sample_id: id(time) })
}

fn map<'a>(pid: u32, path: &'a str, build_id: &'a [u8], time: i64) -> Record<'a> {
    Record::Mmap(Mmap {
        pid,
        tid: pid,
        addr: 0,
        len: 1,
        pgoff: 0,
        file: Some(FileId::BuildId(build_id)),
        prot: PROT_EXEC,
        flags: 0,
        filename: path.as_bytes(),
        is_data: false,
        sample_id: id(time),
    })
}

fn tasks(records: &[Record<'_>]) -> Tasks {
    let mut tasks = Tasks::new();
    records.iter().for_each(|record| tasks.push(record));
    tasks
}

#[test]
fn a_task_is_what_it_was_at_the_time() {
    let tasks = tasks(&[
        comm(10, 10, "sh", false, 0),
        map(10, "/bin/sh", &[1], 0),
        fork(10, 10, 20, 20, 100),
        comm(20, 20, "make", true, 110),
        map(20, "/usr/bin/make", &[2], 111),
        map(20, "/lib/ld.so", &[3], 112),
        fork(20, 20, 20, 21, 120),
        comm(20, 21, "worker", false, 125),
        exit(20, 21, 130),
        exit(20, 20, 140),
        // The id is used again.
        fork(10, 10, 20, 20, 200),
    ]);
    let at = |tid, time| tasks.at(tid, t(time)).unwrap();
    assert_eq!((at(20, 105).name(), at(20, 105).executable()), ("sh", Some("/bin/sh")));
    assert_eq!((at(20, 110).name(), at(20, 110).executable()), ("make", Some("/usr/bin/make")));
    assert_eq!(at(20, 139).build_id(), Some(&[2][..]));
    assert_eq!(at(20, 205).name(), "sh", "another process");
    assert_eq!((at(20, 150).ended(), at(20, 205).ended()), (Some(t(140)), None));
    let thread = at(21, 122);
    assert_eq!((thread.name(), thread.pid(), thread.parent()), ("make", 20, 10));
    assert_eq!(thread.executable(), Some("/usr/bin/make"), "that of its process");
    assert_eq!(at(21, 126).name(), "worker");
    assert_eq!(at(20, 50).name(), "sh", "before its start: as at its start");
    assert!(tasks.at(99, t(0)).is_none());
    assert_eq!(tasks.len(), 4);
}

#[test]
fn lost_records_leave_no_wrong_names() {
    let tasks = tasks(&[
        comm(10, 10, "sh", false, 0),
        fork(10, 10, 20, 20, 100),
        comm(20, 20, "old", true, 110),
        // Its exit is lost.
        fork(10, 10, 20, 20, 200),
        // Its fork is lost.
        comm(30, 31, "thread", false, 210),
    ]);
    assert_eq!(tasks.at(20, t(210)).unwrap().name(), "sh");
    assert_eq!(tasks.at(20, t(199)).unwrap().name(), "old");
    assert_eq!(tasks.at(31, t(300)).unwrap().pid(), 30);
    let unnamed = tasks.at(31, t(300)).unwrap();
    assert_eq!((unnamed.executable(), unnamed.container()), (None, None));
}

#[test]
fn mappings_at_run_time_are_no_executables() {
    let memory =
        ["//anon", "/memfd:doublemapper (deleted)", "/dev/zero (deleted)", "/SYSV00000000"];
    let library = "/usr/lib/libfoo.so.1";
    let executable = |records: &[Record<'_>], pid| {
        tasks(records).at(pid, t(i64::MAX)).unwrap().executable().map(str::to_owned)
    };
    for path in memory.into_iter().chain(["/anon_hugepage (deleted)", "/[aio]", "[vdso]"]) {
        // The parent's executable is not known.
        let of_child = [fork(50, 50, 20, 20, 100), map(20, path, &[1], 110)];
        assert_eq!(executable(&of_child, 20), None, "{path}");
        let listed = [comm(20, 20, "a", false, 0), map(20, path, &[1], 0)];
        assert_eq!(executable(&listed, 20), None, "{path}");
        let listed =
            [map(20, path, &[1], 0), map(20, "/bin/a", &[1], 0), map(20, library, &[2], 0)];
        assert_eq!(executable(&listed, 20).as_deref(), Some("/bin/a"), "{path}");
        let unseen = [comm(20, 20, "a", false, 100), map(20, path, &[1], 110)];
        assert_eq!(executable(&unseen, 20), None, "{path}");
    }
    for path in [library, "/opt/plugin.so", "/app/System.Private.CoreLib.dll", "/opt/any"] {
        let of_child = [fork(50, 50, 20, 20, 100), map(20, path, &[1], 110)];
        assert_eq!(executable(&of_child, 20), None, "{path}");
    }
    for path in [library, "/opt/plugin.so", "/app/System.Private.CoreLib.dll"] {
        let unseen = [comm(20, 20, "a", false, 100), map(20, path, &[1], 110)];
        assert_eq!(executable(&unseen, 20), None, "{path}");
    }
    // Its fork and its execve were lost.
    let unseen = [map(20, "/bin/a", &[1], 110), map(20, library, &[2], 111)];
    assert_eq!(executable(&unseen, 20).as_deref(), Some("/bin/a"));
    // Programs that execute themselves from memory.
    let path = "/memfd:runc_cloned:/proc/self/exe (deleted)";
    let executed =
        [comm(20, 20, "6", true, 100), map(20, path, &[1], 110), map(20, "/lib/ld.so", &[2], 111)];
    assert_eq!(executable(&executed, 20).as_deref(), Some(path));
}

/// A process with the threads 20 and 21, of which the main one has ended.
fn without_main_thread() -> Tasks {
    tasks(&[
        fork(10, 10, 20, 20, 100),
        comm(20, 20, "make", true, 110),
        map(20, "/usr/bin/make", &[2], 111),
        fork(20, 20, 20, 21, 120),
        exit(20, 20, 130),
    ])
}

#[test]
fn a_process_continues_without_its_main_thread() {
    let mut tasks = without_main_thread();
    tasks.push(&map(20, "/lib/plugin.so", &[3], 140));
    tasks.push(&comm(20, 20, "renamed", false, 145));
    tasks.push(&fork(20, 21, 20, 22, 150));
    tasks.push(&fork(20, 21, 30, 30, 160));
    assert_eq!(tasks.len(), 4);
    for (tid, time) in [(20, 115), (20, 145), (21, 125), (21, 145), (22, 155), (30, 165)] {
        let task = tasks.at(tid, t(time)).unwrap();
        assert_eq!(task.executable(), Some("/usr/bin/make"), "{tid} at {time}");
        assert_eq!(task.build_id(), Some(&[2][..]), "{tid} at {time}");
    }
    let leader = tasks.at(20, t(145)).unwrap();
    assert_eq!((leader.started(), leader.ended()), (Some(t(100)), Some(t(130))));
    assert_eq!((leader.name(), tasks.at(20, t(144)).unwrap().name()), ("renamed", "make"));
}

#[test]
fn a_main_thread_is_known_as_long_as_its_process() {
    let mut tasks = without_main_thread().keep_ended(Duration::from_nanos(100));
    tasks.push(&comm(20, 21, "worker", false, 1000));
    assert_eq!(tasks.at(21, t(1000)).unwrap().executable(), Some("/usr/bin/make"));
    tasks.push(&exit(20, 21, 1010));
    tasks.push(&fork(1, 1, 40, 40, 1110));
    assert_eq!(tasks.at(21, t(1000)).unwrap().executable(), Some("/usr/bin/make"));
    tasks.push(&fork(1, 1, 41, 41, 1111));
    assert!(tasks.at(20, t(120)).is_none() && tasks.at(21, t(1000)).is_none());
    assert_eq!(tasks.len(), 2);
}

#[test]
fn an_id_that_is_used_again_ends_the_threads_of_before() {
    let mut tasks = without_main_thread().keep_ended(Duration::from_nanos(100));
    // The exit of thread 21 is lost.
    tasks.push(&fork(10, 10, 20, 20, 200));
    tasks.push(&comm(20, 20, "sh", true, 200));
    tasks.push(&map(20, "/bin/sh", &[1], 201));
    assert_eq!(tasks.at(20, t(125)).unwrap().executable(), Some("/usr/bin/make"));
    assert_eq!(tasks.at(20, t(202)).unwrap().executable(), Some("/bin/sh"));
    assert_eq!(tasks.at(21, t(202)).unwrap().ended(), Some(t(200)));
    tasks.push(&comm(20, 20, "sh", false, 301));
    assert!(tasks.at(21, t(202)).is_none());
    assert_eq!(tasks.len(), 1);
    // Of a process whose start is lost, nothing is known at the time of the one before it.
    tasks.push(&exit(20, 20, 310));
    tasks.push(&comm(20, 20, "other", false, 320));
    let names = [305, 320].map(|time| tasks.at(20, t(time)).unwrap().name());
    assert_eq!(names, ["sh", "other"]);
}

#[test]
fn execve_in_a_thread_ends_the_threads_of_its_process() {
    // With a look at all tasks for each of these, the test would take minutes.
    const PROCESSES: u32 = 1 << 15;
    let pids = (1..=PROCESSES).map(|n| n * 4);
    let mut tasks = Tasks::new();
    for pid in pids.clone() {
        tasks.push(&fork(1, 1, pid, pid, 10));
        [1, 2].into_iter().for_each(|n| tasks.push(&fork(pid, pid, pid, pid + n, 20)));
    }
    for pid in pids.clone() {
        tasks.push(&exit(pid, pid, 30));
        tasks.push(&comm(pid, pid, "new", true, 31));
        tasks.push(&map(pid, "/bin/new", &[1], 32));
    }
    for pid in pids {
        let main = tasks.at(pid, t(40)).unwrap();
        assert_eq!((main.name(), main.executable()), ("new", Some("/bin/new")));
        assert_eq!((main.started(), main.ended()), (Some(t(31)), None));
        let threads = [1, 2].map(|n| tasks.at(pid + n, t(40)).unwrap().ended());
        assert_eq!(threads, [Some(t(31)); 2]);
    }
    assert_eq!(tasks.processes.counts(), (PROCESSES as usize, 0));
}

#[test]
fn a_listed_process_has_an_executable_of_its_own() {
    let tasks = tasks(&[
        fork(1, 1, 10, 10, 0),
        comm(10, 10, "python3", false, 0),
        map(10, "/usr/bin/python3", b"", 0),
        fork(10, 10, 20, 20, 0),
        comm(20, 20, "sleep", false, 0),
        map(20, "/usr/bin/sleep", b"", 0),
        map(20, "/lib/libc.so.6", b"", 0),
        // A new process has that of its parent.
        fork(10, 10, 30, 30, 100),
    ]);
    let executable = |pid| tasks.at(pid, t(200)).unwrap().executable();
    assert_eq!(executable(10), Some("/usr/bin/python3"));
    assert_eq!(executable(20), Some("/usr/bin/sleep"));
    assert_eq!(executable(30), Some("/usr/bin/python3"));
}

#[test]
fn records_of_the_start_do_not_repeat_tasks() {
    // As perf writes them: without a time.
    let tasks = tasks(&[
        fork(1, 1, 10, 10, 0),
        comm(10, 10, "sh", false, 0),
        fork(1, 1, 10, 10, 0),
        fork(1, 1, 10, 10, 0),
    ]);
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks.at(10, t(5)).unwrap().name(), "sh");
    assert_eq!(tasks.at(10, t(5)).unwrap().parent(), 1);
}

#[test]
fn memory_is_bounded_and_losses_are_counted() {
    let mut tasks = Tasks::new().keep_ended(Duration::from_nanos(100)).max_tasks(10);
    for n in 0..1000u32 {
        let time = i64::from(n) * 10 + 1;
        tasks.push(&fork(1, 1, 100 + n, 100 + n, time));
        tasks.push(&exit(100 + n, 100 + n, time + 5));
    }
    assert!(tasks.len() <= 10);
    assert!(tasks.forgotten() > 0);
    assert!(tasks.at(100, t(1)).is_none());
    // Those that run are not forgotten: new ones are not added.
    let mut tasks = Tasks::new().max_tasks(3);
    (0..5).for_each(|n| tasks.push(&fork(1, 1, 10 + n, 10 + n, 10)));
    assert_eq!((tasks.len(), tasks.forgotten()), (3, 2));
    // Ended ones are known for a time.
    let mut tasks = Tasks::new().keep_ended(Duration::from_nanos(100));
    tasks.push(&fork(1, 1, 10, 10, 1));
    tasks.push(&exit(10, 10, 2));
    tasks.push(&fork(1, 1, 11, 11, 102));
    assert!(tasks.at(10, t(2)).is_some());
    tasks.push(&fork(1, 1, 12, 12, 103));
    assert!(tasks.at(10, t(2)).is_none());
    // A task that changes its name all the time.
    let mut tasks = Tasks::new();
    for n in 0..1000 {
        tasks.push(&comm(10, 10, &n.to_string(), true, n + 1));
    }
    assert_eq!(tasks.at(10, t(1000)).unwrap().name(), "999");
    assert_eq!(tasks.lives[&10][0].names.0.len(), MAX_CHANGES);
}

#[test]
fn the_first_of_too_many_cgroups_are_forgotten() {
    let mut tasks = Tasks::new().max_tasks(3);
    let path = |id: u64| format!("/{id}");
    for n in [1, 2, 1, 3, 4, 5] {
        let path = path(n);
        tasks.push(&Record::Cgroup(Cgroup { id: n, path: path.as_bytes(), sample_id: id(10) }));
    }
    let known = [1, 2, 3, 4, 5].map(|id| tasks.cgroup(id).map(str::to_owned));
    assert_eq!(known, [None, None, Some(path(3)), Some(path(4)), Some(path(5))]);
    assert_eq!(tasks.forgotten(), 2);
}

/// A directory that looks like a `/proc` with these processes. It is removed at the end.
struct FakeProc(std::path::PathBuf);

impl FakeProc {
    fn new(name: &str, pids: &[u32]) -> Self {
        let root = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let this = Self(root);
        pids.iter().for_each(|pid| this.add(*pid));
        this
    }

    fn add(&self, pid: u32) {
        self.write(pid, pid, "S (sleeping)");
    }

    fn add_thread(&self, pid: u32, tid: u32) {
        self.write(pid, tid, "S (sleeping)");
        // Each thread is there by its id, too.
        std::fs::create_dir(self.0.join(tid.to_string())).unwrap();
    }

    /// Makes it a zombie.
    fn end(&self, pid: u32) {
        self.write(pid, pid, "Z (zombie)");
    }

    fn write(&self, pid: u32, tid: u32, state: &str) {
        let dir = self.0.join(format!("{pid}/task/{tid}"));
        std::fs::create_dir_all(&dir).unwrap();
        let status = format!("State:\t{state}\nTgid: {pid}\nPPid: 1\n");
        std::fs::write(dir.join("status"), status).unwrap();
        std::fs::write(dir.join("comm"), "x\n").unwrap();
    }

    fn remove(&self, pid: u32) {
        std::fs::remove_dir_all(self.0.join(pid.to_string())).unwrap();
    }

    fn tasks(&self) -> Tasks {
        Tasks { proc: Some(Proc::new(&self.0)), ..Tasks::new() }
    }
}

impl Drop for FakeProc {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn tasks_whose_exit_was_lost_are_ended_by_a_scan() {
    const SECOND: i64 = 1_000_000_000;
    let proc = FakeProc::new("perf-tasks-lost", &[1, 20, 30, 40]);
    let mut tasks = proc.tasks();
    tasks.scan(t(SECOND));
    // All but the first end; the exit of 40 is not lost, and that of 30 comes after the scan.
    [20, 30, 40].into_iter().for_each(|pid| proc.remove(pid));
    tasks.push(&exit(40, 40, 2 * SECOND));
    tasks.scan(t(3 * SECOND));
    tasks.push(&comm(30, 30, "late", false, 2 * SECOND + 1));
    tasks.push(&exit(30, 30, 2 * SECOND + 2));
    let ends = |tasks: &Tasks| [1, 20, 30, 40].map(|tid| tasks.at(tid, t(3)).unwrap().ended());
    let (late, known) = (Some(t(2 * SECOND + 2)), Some(t(2 * SECOND)));
    assert_eq!(ends(&tasks), [None, None, late, known]);
    // Another one gets the id, and a later scan does not begin again.
    tasks.push(&fork(1, 1, 50, 50, 4 * SECOND));
    tasks.scan(t(5 * SECOND));
    tasks.push(&comm(1, 1, "x", false, 13 * SECOND - 1));
    assert_eq!(ends(&tasks), [None, None, late, known]);
    tasks.push(&comm(1, 1, "y", false, 13 * SECOND));
    assert_eq!(ends(&tasks), [None, Some(t(3 * SECOND)), late, known]);
    assert_eq!(tasks.at(50, t(13 * SECOND)).unwrap().ended(), None);
    tasks.push(&comm(1, 1, "z", false, 15 * SECOND));
    assert_eq!(tasks.at(50, t(15 * SECOND)).unwrap().ended(), Some(t(5 * SECOND)));
    assert!(tasks.missing.is_empty());
}

#[test]
fn zombies_do_not_run() {
    const SECOND: i64 = 1_000_000_000;
    let proc = FakeProc::new("perf-tasks-zombies", &[1, 20, 30, 40]);
    proc.add_thread(40, 41);
    let mut tasks = proc.tasks();
    // It ended before the events recorded.
    proc.end(30);
    tasks.scan(t(SECOND));
    proc.end(20);
    proc.end(40);
    tasks.push(&exit(20, 20, 2 * SECOND));
    tasks.scan(t(3 * SECOND));
    let ends = |tasks: &Tasks| {
        [1, 20, 30, 40, 41].map(|tid| tasks.at(tid, t(20 * SECOND)).unwrap().ended())
    };
    let known = Some(t(2 * SECOND));
    assert_eq!(ends(&tasks), [None, known, None, None, None]);
    // The exits of the others do not come.
    tasks.push(&comm(1, 1, "y", false, 13 * SECOND));
    let lost = [Some(t(SECOND)), Some(t(3 * SECOND))];
    assert_eq!(ends(&tasks), [None, known, lost[0], lost[1], None]);
    // The main thread is that of its process as long as another one runs.
    assert!(tasks.processes.has_ended_leader(40));
    tasks.scan(t(14 * SECOND));
    assert_eq!(ends(&tasks), [None, known, lost[0], lost[1], None]);
    assert_eq!(tasks.len(), 5);
}

#[test]
fn tasks_that_proc_hides_are_not_ended() {
    let proc = FakeProc::new("perf-tasks-hidden", &[20]);
    let mut tasks = proc.tasks();
    tasks.push(&fork(1, 1, 30, 30, 1));
    tasks.scan(t(2));
    tasks.push(&comm(20, 20, "x", false, 1_000_000_000_000));
    assert_eq!(tasks.at(30, t(1)).unwrap().ended(), None);
}

#[test]
fn many_lives_of_a_thread_id_are_forgotten_in_order() {
    // If each of them moved the ones behind it, the test would take minutes.
    const LIVES: i64 = 1 << 17;
    let mut tasks = Tasks::new();
    for n in 0..LIVES {
        tasks.push(&fork(1, 1, 20, 20, 1000 + 2 * n));
        tasks.push(&exit(20, 20, 1001 + 2 * n));
    }
    assert_eq!(tasks.len(), LIVES as usize);
    // A minute after the end of all but the last.
    tasks.push(&fork(1, 1, 30, 30, 60_000_000_000 + 1001 + 2 * (LIVES - 1)));
    assert_eq!(tasks.len(), 2);
    assert_eq!(tasks.at(20, t(1000)).unwrap().started(), Some(t(1000 + 2 * (LIVES - 1))));
}

#[test]
fn lives_of_a_thread_id_are_in_order_if_the_records_are_not() {
    // If each looked at all before it, the test would take minutes.
    const LIVES: i64 = 1 << 17;
    let mut tasks = Tasks::new();
    (0..LIVES).for_each(|n| tasks.push(&fork(5, 5, 5, 5, 2 * LIVES - n)));
    assert_eq!(tasks.len(), LIVES as usize);
    assert!(tasks.lives[&5].iter().map(Life::start).is_sorted());
    assert!((0..LIVES).all(|time| tasks.at(5, t(time)).is_some()));
    // The start of a task from /proc, whose id another one had, can be too early as well.
    let mut tasks = Tasks::new();
    tasks.push(&fork(1, 1, 20, 20, 100));
    tasks.push(&exit(20, 20, 110));
    tasks.push(&comm(20, 20, "x", false, 200));
    tasks.push(&fork(1, 1, 20, 20, 90));
    assert_eq!(tasks.len(), 2);
    assert!(tasks.lives[&20].iter().map(Life::start).is_sorted());
}

#[test]
fn the_tasks_of_this_machine_are_found() {
    let mut tasks = Tasks::live();
    tasks.scan(t(1000));
    let pid = std::process::id();
    let this = tasks.at(pid, t(2000)).unwrap();
    let own = std::env::current_exe().unwrap();
    assert_eq!(this.executable(), Some(own.to_str().unwrap()));
    assert_eq!(this.parent(), std::os::unix::process::parent_id());
    assert_eq!(this.ns_pids().first(), Some(&pid));
    assert!(this.started().is_none());
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    assert!(cgroup.lines().any(|line| line.ends_with(this.cgroup().unwrap())), "{cgroup}");
    // The record of a fork that the scan saw already.
    let parent = this.parent();
    let count = tasks.len();
    tasks.push(&fork(parent, parent, pid, pid, 900));
    assert_eq!(tasks.len(), count);
    assert_eq!(tasks.at(pid, t(2000)).unwrap().started(), Some(t(900)));
    assert_eq!(tasks.at(pid, t(2000)).unwrap().executable(), Some(own.to_str().unwrap()));
}

proptest! {
    #[test]
    fn any_records_are_no_panic(
        records in proptest::collection::vec((0u8..5, 0u32..5, 0u32..5, 0i64..300), 0..200),
        max in 0usize..20,
    ) {
        let mut tasks = Tasks::new().keep_ended(Duration::from_nanos(50)).max_tasks(max);
        for (kind, a, b, time) in records {
            match kind {
                0 => tasks.push(&fork(a, a, b, b, time)),
                1 => tasks.push(&exit(a, b, time)),
                4 => tasks.push(&fork(a, a, a, b, time)),
                2 => tasks.push(&comm(a, b, "x", a == b, time)),
                _ => tasks.push(&map(a, "/x", &[1], time)),
            }
            prop_assert!(tasks.len() <= max);
            prop_assert_eq!(tasks.len(), tasks.lives.values().map(VecDeque::len).sum::<usize>());
            let ended = tasks.lives.values().flatten().filter(|life| life.until.is_some()).count();
            let (running, kept) = tasks.processes.counts();
            prop_assert_eq!(ended, tasks.ended.len() + kept);
            prop_assert_eq!(tasks.len(), ended + running);
            let mut lives = tasks.lives.values();
            prop_assert!(lives.all(|lives| lives.iter().map(Life::start).is_sorted()));
            for tid in 0..5 {
                if let Some(task) = tasks.at(tid, t(time)) {
                    let _ = (task.name(), task.executable(), task.container());
                }
            }
        }
    }
}
