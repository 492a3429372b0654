//! Events of the tasks of a cgroup, in both versions of cgroups.

use crate::kernel_tests;
use crate::monitor::while_running;
use crate::sets::system_calls;
use crate::support::{GETPPID, Test, TestChild, until};
use perf_monitor::{
    Errno, Error, Event, EventMonitor, Hardware, KernelFeatures, OpenErrorReason, Registration,
    RingSet, Target, cgroup_dirs,
};
use rustix::fd::AsFd;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::path::{Path, PathBuf};

pub(crate) const V2: &str = "/sys/fs/cgroup";

/// A cgroup that is removed at its end.
pub(crate) struct Cgroup(pub(crate) PathBuf);

impl Cgroup {
    pub(crate) fn create(parent: &Path, name: &str) -> Self {
        let dir = parent.join(name);
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn add(&self, child: &TestChild) {
        std::fs::write(self.0.join("cgroup.procs"), child.pid().to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The cgroup is not the reason.
fn an_event_that_the_machine_lacks_is_named(t: &Test, dir: &Path) {
    if KernelFeatures::probe().hardware {
        t.note("the machine has cycles: the error without them is not tried");
        return;
    }
    let dir = std::fs::File::open(dir).unwrap();
    let target = Target::Cgroup { dir: dir.as_fd(), cpu: 0 };
    let error = Event::hardware(Hardware::CpuCycles).builder().open(target).unwrap_err();
    assert_eq!(error.reason(), Some(&OpenErrorReason::NoSuchEvent), "{error}");
}

/// Counts the calls of two cgroups with one set each, and with one of both.
fn only_members_are_measured(t: &Test, parent: &Path) -> Result<(), crate::support::Skip> {
    const CALLS: [usize; 3] = [300, 50, 1000];
    let (first, second) = (Cgroup::create(parent, "one"), Cgroup::create(parent, "two"));
    an_event_that_the_machine_lacks_is_named(t, &first.0);
    let event = system_calls(t)?;
    let open = |dirs: &[&Path]| {
        let mut builder = RingSet::builder().pages(64);
        for dir in dirs {
            builder = builder.cgroup_at(dir).unwrap();
        }
        let mut set = builder.open().unwrap();
        let calls = set.add(&event).unwrap();
        set.set_filter(calls, &format!("id == {GETPPID}")).unwrap();
        set.enable_event(calls).unwrap();
        (set, calls)
    };
    let mut sets = [open(&[&first.0]), open(&[&second.0]), open(&[&first.0, &second.0])];
    let children = CALLS.map(|calls| TestChild::start(&format!("getppid {calls}")));
    first.add(&children[0]);
    second.add(&children[1]);
    let members = [&children[..1], &children[1..2], &children[..2]]
        .map(|children| children.iter().map(TestChild::pid).collect::<Vec<_>>());
    for child in children {
        child.go();
    }
    let expected = [CALLS[0], CALLS[1], CALLS[0] + CALLS[1]];
    for (((set, calls), expected), members) in sets.iter_mut().zip(expected).zip(members) {
        let mut seen = 0;
        set.finish(|record| {
            if record.event == *calls {
                let pid = record.layout.pid_tid(record.raw).map(|(pid, _)| pid);
                assert!(
                    pid.is_some_and(|pid| members.contains(&pid)),
                    "{pid:?} not in {members:?}"
                );
                seen += 1;
            }
            Ok::<(), Error>(())
        })
        .unwrap();
        let counts = set.counts(*calls).unwrap();
        assert_eq!((seen, counts.count), (expected, expected as u64), "{counts:?}");
    }
    Ok(())
}

/// Monitors one cgroup, while others make the same calls.
fn a_monitor_sees_only_members(t: &Test, parent: &Path) -> Result<(), crate::support::Skip> {
    const CALLS: usize = 200;
    t.tracefs()?;
    let (inside, outside) = (Cgroup::create(parent, "in"), Cgroup::create(parent, "out"));
    let monitor = EventMonitor::builder().perf_event_dir(parent).cgroup("in").pages(64);
    let monitor = monitor.build().unwrap();
    let calls = monitor.register(
        Registration::tracepoint("raw_syscalls:sys_enter")
            .filter(format!("id == {GETPPID}"))
            .decoder(|sample| Ok(sample.pid_tid().map(|(pid, _)| pid))),
    );
    let calls = calls.unwrap();
    let (member, other) =
        (TestChild::start(&format!("getppid {CALLS}")), TestChild::start("getppid 77"));
    inside.add(&member);
    outside.add(&other);
    let pid = member.pid();
    let mut seen = Vec::new();
    while_running(
        &monitor,
        |sample| seen.push(sample.value.unwrap()),
        || {
            other.go();
            member.go();
        },
    );
    assert_eq!(seen, [pid; CALLS]);
    assert_eq!(monitor.counts(calls).unwrap().count, CALLS as u64);
    Ok(())
}

kernel_tests! {
    /// A process that spins in a cgroup with a CPU quota is throttled, and the counters are in the
    /// directory that is found.
    fn the_cgroup_with_a_cpu_quota_is_found(t) {
        t.root()?;
        let child = TestChild::start("spin 100");
        let dirs = cgroup_dirs(child.pid(), "cpu").unwrap();
        let Some(root) = dirs.last() else {
            return Err(t.refused("no cgroup has the CPU controller"));
        };
        let is_unified = root.join("cgroup.controllers").exists();
        if is_unified {
            let controllers = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap();
            if !controllers.split_whitespace().any(|name| name == "cpu") {
                return Err(t.refused("cgroup v2 has no CPU controller"));
            }
            std::fs::write(root.join("cgroup.subtree_control"), "+cpu").unwrap();
        }
        let outer = Cgroup::create(root, &format!("quota-{}", child.pid()));
        let inner = Cgroup::create(&outer.0, "inner");
        let set = |name: &str, value: &str| std::fs::write(outer.0.join(name), value);
        let limited = if is_unified {
            set("cpu.max", "10000 100000")
        } else {
            set("cpu.cfs_period_us", "100000").and_then(|()| set("cpu.cfs_quota_us", "10000"))
        };
        if let Err(error) = limited {
            drop((inner, outer));
            return Err(t.refused(format!("no CPU quotas: {error}")));
        }
        inner.add(&child);
        let dirs = cgroup_dirs(child.pid(), "cpu").unwrap();
        assert_eq!(dirs, [&*inner.0, &*outer.0, root.as_path()]);
        child.go();
        let stat = std::fs::read_to_string(outer.0.join("cpu.stat")).unwrap();
        let throttled = |line: &str| line.strip_prefix("nr_throttled ")?.parse().ok();
        let periods: Option<u64> = stat.lines().find_map(throttled);
        assert!(periods.is_some_and(|periods| periods > 0), "{stat}");
    }

    fn the_tasks_of_a_cgroup_v2_are_measured(t) {
        t.root()?;
        t.guest()?;
        // Perf events follow the cgroups of a hierarchy that has an active controller.
        std::fs::write(format!("{V2}/cgroup.subtree_control"), "+pids").unwrap();
        only_members_are_measured(t, Path::new(V2))?;
        a_monitor_sees_only_members(t, Path::new(V2))?;
    }

    fn the_tasks_of_a_cgroup_v1_are_measured(t) {
        t.root()?;
        t.guest()?;
        let dir = Path::new("/tmp/perf_event");
        std::fs::create_dir_all(dir).unwrap();
        let mounted = || mount("cgroup", dir, "cgroup", MountFlags::empty(), Some(c"perf_event"));
        match mounted() {
            Ok(()) => {}
            Err(errno @ (Errno::NODEV | Errno::INVAL)) => {
                return Err(t.refused(format!("no cgroup v1 for perf events ({errno})")));
            }
            // The hierarchy of version 2 has children.
            Err(errno) => panic!("mounting cgroup v1: {errno}"),
        }
        let result = only_members_are_measured(t, dir).and_then(|()| a_monitor_sees_only_members(t, dir));
        unmount(dir, UnmountFlags::DETACH).unwrap();
        // The controller returns to version 2 some time after an unmount, if the removed cgroups were
        // freed before.
        until("perf events are in the hierarchy of version 2", || {
            std::thread::sleep(std::time::Duration::from_millis(300)); // between two tries
            let hierarchies = std::fs::read_to_string("/proc/cgroups").unwrap();
            let is_back = hierarchies.lines().any(|line| line.starts_with("perf_event\t0\t"));
            if !is_back && mounted().is_ok() {
                unmount(dir, UnmountFlags::DETACH).unwrap();
            }
            is_back
        });
        result?;
    }
}
