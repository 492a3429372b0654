use crate::kernel_tests;
use crate::support::TestChild;
use perf_monitor::{
    ClockDomain, Event, EventBuilder, KernelVersion, PrintFormat, Record, RingSet, SampleFlags,
    Software, Tasks, Timestamp, now,
};

fn sideband() -> EventBuilder {
    Event::software(Software::Dummy)
        .builder()
        .mmap(true)
        .mmap2(true)
        .comm(true)
        .comm_exec(true)
        .task(true)
        .sample(SampleFlags::TID)
}

/// Everything that happens while `f` runs.
fn watch(builder: &EventBuilder, f: impl FnOnce()) -> (Tasks, Vec<(u32, Timestamp)>) {
    let mut set = RingSet::builder().sideband(builder).open().unwrap();
    let mut tasks = Tasks::live();
    set.enable().unwrap();
    tasks.scan(now(ClockDomain::Monotonic).unwrap());
    f();
    let mut ended = Vec::new();
    set.finish(|record| {
        let record = record.layout.decode(record.raw)?;
        if let Record::Exit(exit) = &record {
            ended.push((exit.tid, exit.time));
        }
        tasks.push(&record);
        Ok::<(), perf_monitor::Error>(())
    })
    .unwrap();
    (tasks, ended)
}

kernel_tests! {
    fn tasks_are_followed_from_start_to_end(t) {
        t.root()?;
        let with_build_id = sideband().build_id(true);
        let has_build_ids = KernelVersion::current() >= KernelVersion(5, 12);
        let builder = if has_build_ids { with_build_id } else { sideband() };
        let (mut tid, mut changed) = (0, 0);
        let (tasks, ended) = watch(&builder, || {
            let child = TestChild::start("getppid 1");
            tid = child.tid;
            child.go();
            // A thread of it becomes another program.
            let child = TestChild::start("exec 1");
            changed = child.tid;
            child.go();
        });
        let (_, end) = *ended.iter().find(|(ended, _)| *ended == tid).unwrap();
        let task = tasks.at(tid, end).unwrap();
        let main = task.pid();
        let process = tasks.at(main, end).unwrap();
        let own = std::env::current_exe().unwrap();
        assert_eq!(process.executable(), Some(own.to_str().unwrap()));
        assert!(process.started().is_some_and(|start| start < end), "{process:?}");
        assert!(process.ended().is_some());
        assert_eq!(process.parent(), std::process::id());
        let ours = tasks.at(std::process::id(), end).unwrap();
        assert_eq!(ours.executable(), Some(own.to_str().unwrap()));
        assert_eq!(process.cgroup(), ours.cgroup(), "inherited");
        // Before its execve, it was what this process is.
        let start = tasks.at(main, process.started().unwrap()).unwrap();
        assert_eq!(start.executable(), ours.executable());
        assert!(ours.started().is_none() && ours.ended().is_none());

        // The thread that called execve(2) became the main thread.
        let thread = tasks.at(changed, Timestamp::from_nanos(i64::MAX)).unwrap();
        assert_ne!(thread.pid(), changed);
        let main = tasks.at(thread.pid(), Timestamp::from_nanos(i64::MAX)).unwrap();
        assert_eq!(main.started(), thread.ended(), "at the execve");
        assert!(main.started().is_some() && main.ended() > main.started(), "{main:?}");
        assert_eq!(main.parent(), std::process::id());
        t.note(format!("{} tasks", tasks.len()));
    }

    fn print_formats_of_this_kernel_are_parsed(t) {
        let formats = t.formats()?;
        let refused: Vec<&str> = formats
            .iter()
            .filter(|(_, format)| PrintFormat::new(format).is_err())
            .map(|(event, _)| event.as_str())
            .collect();
        let all = formats.len();
        // Those that call functions of the kernel or use its constants.
        assert!(refused.len() * 20 < all, "{} of {all}: {refused:?}", refused.len());
        for name in ["sched:sched_switch", "raw_syscalls:sys_enter", "irq:softirq_entry"] {
            assert!(!refused.contains(&name), "{name}");
        }
        t.note(format!("{} of {all} print formats are not parsed", refused.len()));
    }
}
