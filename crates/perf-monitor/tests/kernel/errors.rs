use crate::kernel_tests;
use crate::support::{TestChild, as_nobody, until};
use perf_monitor::{
    BranchFlags, BreakpointAccess, Counter, Errno, Error, Event, EventBuilder, Field, Hardware,
    KernelFeatures, KernelVersion, OpenErrorReason, Pmu, SampleFlags, Software, Target, Tracefs,
    WithoutKernel, paranoid_level,
};
use std::collections::BTreeMap;

fn dummy() -> EventBuilder {
    Event::software(Software::Dummy).builder()
}

fn reason(result: Result<impl Sized, Error>) -> OpenErrorReason {
    match result {
        Ok(_) => panic!("it opened"),
        Err(error) => error.reason().unwrap_or_else(|| panic!("{error}")).clone(),
    }
}

/// In a child, as the limit is the whole process's.
pub(crate) fn run_out_of_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(20), maximum }).unwrap();
    let mut counters = Vec::new();
    let error = loop {
        match dummy().open(Target::ThisThread) {
            Ok(counter) => counters.push(counter),
            Err(error) => break error,
        }
        assert!(counters.len() < 30);
    };
    assert_eq!(error.reason(), Some(&OpenErrorReason::OpenFiles { limit: Some(20) }), "{error}");
    assert!(error.to_string().contains("ulimit -n"));
    // A feature that could not be tried is tried again.
    assert!(!KernelFeatures::has_lost_counts() && KernelFeatures::refresh_restarts());
    drop(counters);
    let features = KernelFeatures::probe();
    let has_lost = features.read_format.contains(perf_monitor::ReadFormat::LOST);
    assert_eq!(KernelFeatures::has_lost_counts(), has_lost);
    if features.tracefs_readable && features.privileged {
        let restarts = features.version < KernelVersion(6, 18);
        assert_eq!(KernelFeatures::refresh_restarts(), restarts, "{}", features.version);
    }
}

/// What a user without capabilities opens at the `perf_event_paranoid` of `level`: it is allowed up to that of
/// `allowed`. `user_alone`: at level 2, without the kernel, too.
#[track_caller]
fn check_level(
    what: &str,
    result: Result<Counter, Error>,
    (level, allowed): (i64, i64),
    user_alone: bool,
) {
    if level <= allowed {
        return drop(result.unwrap_or_else(|e| panic!("{what} at level {level}: {e}")));
    }
    let error = result.expect_err(what);
    let Some(OpenErrorReason::Privilege {
        paranoid,
        allowed_at,
        user_space_alone_is_allowed,
        held_in_user_namespace: false,
    }) = error.reason()
    else {
        panic!("{what} at level {level}: {error}")
    };
    assert_eq!((*paranoid, *allowed_at), (Some(level), Some(allowed)), "{what}");
    let user_alone = user_alone && level == 2;
    assert_eq!(*user_space_alone_is_allowed, user_alone, "{what} at level {level}");
    // Where a patch of the kernel refuses all events, CAP_PERFMON has no effect.
    let capability = if level <= 2 { "CAP_PERFMON" } else { "CAP_SYS_ADMIN" };
    let remedy = format!("sysctl kernel.perf_event_paranoid={allowed}) or {capability}");
    assert!(error.to_string().contains(&remedy), "{error}");
}

/// What the samples of a user without capabilities can have at this `perf_event_paranoid`.
fn unprivileged_samples(level: i64, call: &Event) {
    let check = |what: &str, builder: &EventBuilder, allowed: i64| {
        check_level(what, builder.open(Target::ThisThread), (level, allowed), false);
    };
    let raw = call.builder().sample_period(1).sample(SampleFlags::RAW);
    check("raw data of a system call", &raw, 1);
    let raw = raw.exclude_kernel(true).exclude_hv(true);
    check("raw data of a system call in user space", &raw, 2);
    check_level("raw data of a CPU", raw.open(Target::Cpu(0)), (level, -1), false);
    let faults = Event::software(Software::PageFaults).builder().sample_period(1);
    let faults = faults.exclude_kernel(true);
    check("physical addresses", &faults.clone().sample(SampleFlags::PHYS_ADDR), 1);
    // Where they are allowed, the PMU refuses them.
    if level > 1 {
        let branches = faults.sample(SampleFlags::BRANCH_STACK).branches(BranchFlags::ANY);
        check("branches of the hypervisor", &branches, 1);
        let branches = branches.branches(BranchFlags::ANY | BranchFlags::KERNEL);
        check("branches of the kernel", &branches.exclude_hv(true), 1);
    }
}

/// What a user without capabilities may open at this `perf_event_paranoid`, and the error otherwise.
fn unprivileged(level: i64, switch: &Event, of_root: u32) {
    let check = |what: &str, result: Result<Counter, Error>, allowed: i64| {
        check_level(what, result, (level, allowed), allowed == 1);
    };
    let user = |builder: EventBuilder| builder.exclude_kernel(true).exclude_hv(true);
    let faults = || Event::software(Software::PageFaults).builder();
    let raw = user(switch.builder()).sample_period(1).sample(SampleFlags::RAW);
    check("raw data of a tracepoint", raw.open(Target::ThisThread), -1);
    check("a CPU", user(dummy()).open(Target::Cpu(0)), 0);
    check("the kernel", faults().open(Target::ThisThread), 1);
    // Not root's to forbid, up to level 2: what an ordinary user may do works.
    check("user space", user(faults()).open(Target::ThisThread), 2);
    let features = KernelFeatures::probe();
    // No privilege helps where the machine lacks the event.
    let cycles = Event::hardware(Hardware::CpuCycles).builder();
    if !features.hardware && (1..=2).contains(&level) {
        for target in [Target::ThisThread, Target::Cpu(0)] {
            let error = cycles.open(target).unwrap_err();
            assert_eq!(error.reason(), Some(&OpenErrorReason::NoSuchEvent), "{error}");
            assert!(!error.to_string().contains("paranoid"), "{error}");
        }
    }
    // Context switches have no part in user space that could be counted alone.
    let switches = Event::software(Software::ContextSwitches).builder().open(Target::ThisThread);
    match switches {
        Ok(_) => assert!(level <= 1),
        Err(error) => assert!(
            matches!(
                error.reason(),
                Some(OpenErrorReason::Privilege { user_space_alone_is_allowed: false, .. })
            ),
            "{error}"
        ),
    }
    assert!(!features.privileged && features.paranoid == Some(level));
    assert_eq!(features.refused.is_some(), level > 2, "{features:?}");
    // Probes and namespaces are for no level.
    let probe = Event::uprobe("/proc/self/exe", 4096).unwrap();
    for builder in [probe.builder(), dummy().namespaces(true)] {
        let error = user(builder).open(Target::ThisThread).unwrap_err();
        let reason = error.reason();
        assert!(
            matches!(reason, Some(OpenErrorReason::Privilege { allowed_at: None, .. })),
            "{error}"
        );
        assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    }
    if level > 2 {
        return;
    }
    let error = user(faults()).open(Target::Thread(of_root)).unwrap_err();
    assert_eq!(
        error.reason(),
        Some(&OpenErrorReason::OtherUser { tid: of_root, uid: 0 }),
        "{error}"
    );
    assert!(error.to_string().contains("belongs to user 0: run as that user"), "{error}");
    let counter = user(faults()).open(Target::ThisThread).unwrap();
    counter.enable().unwrap();
    crate::support::touch_pages(3);
    assert!(counter.read().unwrap().value >= 3);
    // At level -1 nobody looks how much memory is locked.
    let big = user(faults()).open_sampler(Target::ThisThread, 1 << 14);
    if level >= 0 {
        let error = big.unwrap_err();
        let reason = error.reason();
        assert!(
            matches!(reason, Some(OpenErrorReason::LockedMemory { mlock_kb: Some(_), .. })),
            "{error}"
        );
        for remedy in ["use fewer pages", "perf_event_mlock_kb", "RLIMIT_MEMLOCK", "CAP_IPC_LOCK"] {
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}

/// In a child that has all capabilities of a user namespace of its own, with a thread of root outside.
pub(crate) fn in_user_namespace(of_root: u32) {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let all = u64::from_str_radix(capabilities.trim(), 16).unwrap();
    assert_ne!(all >> 21 & 1, 0, "CAP_SYS_ADMIN");
    assert!(!perf_monitor::is_privileged() && !perf_monitor::is_initial_user_namespace());
    assert!(!KernelFeatures::probe().privileged);
    let faults = || Event::software(Software::PageFaults).builder();
    let user = || faults().exclude_kernel(true).exclude_hv(true);
    let paranoid = paranoid_level();
    let namespaced = |allowed_at, user_space_alone_is_allowed| OpenErrorReason::Privilege {
        paranoid,
        allowed_at,
        user_space_alone_is_allowed,
        held_in_user_namespace: true,
    };
    let level = paranoid.unwrap();
    if level <= 2 {
        let reason = reason(user().open(Target::Thread(of_root)));
        assert_eq!(reason, namespaced(None, false));
        assert!(reason.to_string().contains("in the initial user namespace"), "{reason}");
        user().open(Target::ThisThread).unwrap();
    }
    if level == 2 {
        assert_eq!(reason(faults().open(Target::ThisThread)), namespaced(Some(1), true));
    }
    if level >= 1 {
        let reason = reason(user().open(Target::Cpu(0)));
        assert_eq!(reason, namespaced(Some(0), false));
    }
}

kernel_tests! {
    fn capabilities_of_a_user_namespace_have_no_effect(t) {
        t.root()?;
        assert!(perf_monitor::is_initial_user_namespace(), "the tests run as root of the machine");
        let child = TestChild::start("getppid 1"); // of root
        let namespaced = TestChild::in_user_namespace(&format!("namespaced {}", child.tid));
        let Ok(namespaced) = namespaced else {
            return Err(t.refused("no user namespaces"));
        };
        namespaced.go();
        child.go();
    }

    fn a_dead_thread_is_named(t) {
        t.root()?;
        let child = TestChild::start("getppid 1");
        let tid = child.tid;
        child.go();
        assert_eq!(reason(dummy().open(Target::Thread(tid))), OpenErrorReason::NoSuchThread(tid));
        let pid = u32::MAX;
        assert_eq!(reason(dummy().open(Target::Thread(pid))), OpenErrorReason::NoSuchThread(pid));
    }

    fn a_cpu_that_does_not_exist_is_named(t) {
        t.root()?;
        for cpu in [4000, 100_000, u32::MAX] {
            assert_eq!(reason(dummy().open(Target::Cpu(cpu))), OpenErrorReason::NoSuchCpu(cpu));
        }
    }

    fn an_offline_cpu_is_named_and_its_events_are_dead(t) {
        t.root()?;
        t.guest()?;
        let online = "/sys/devices/system/cpu/cpu1/online";
        if !std::path::Path::new(online).exists() {
            return Err(t.refused("a single CPU"));
        }
        let clock = Event::software(Software::CpuClock).builder();
        let before = clock.open(Target::Cpu(1)).unwrap();
        before.enable().unwrap();
        std::fs::write(online, "0").unwrap();
        assert_eq!(reason(dummy().open(Target::Cpu(1))), OpenErrorReason::OfflineCpu(1));
        assert!(!perf_monitor::online_cpus().contains(&1));
        std::fs::write(online, "1").unwrap();
        let value = before.read().unwrap().value;
        before.enable().unwrap();
        let fresh = clock.open(Target::Cpu(1)).unwrap();
        fresh.enable().unwrap();
        until("a new event counts", || fresh.read().unwrap().value > 0);
        assert_eq!(before.read().unwrap().value, value, "an event does not survive its CPU");
    }

    fn fields_that_the_kernel_lacks_are_named(t) {
        t.root()?;
        let features = KernelFeatures::probe();
        let mut nonsense = dummy();
        nonsense.attr_mut().flags |= 1 << 60;
        assert_eq!(reason(nonsense.open(Target::ThisThread)), OpenErrorReason::Unknown);
        let named = |result| match reason(result) {
            OpenErrorReason::Fields(fields) => fields.iter().map(|f: &Field| f.name).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        // Branch stacks need hardware that no machine of these tests has, or refuse a timer.
        let branches = Event::software(Software::CpuClock).builder()
            .sample_period(1_000_000_000).sample(SampleFlags::BRANCH_STACK | SampleFlags::IP)
            .branches(BranchFlags::ANY).open(Target::ThisThread);
        assert_eq!(named(branches), ["PERF_SAMPLE_BRANCH_STACK"]);
        if features.attr_size < Some(144) {
            let mut newer = dummy();
            newer.attr_mut().config4 = 1;
            assert_eq!(named(newer.open(Target::ThisThread)), ["config4"]);
        }
        if features.attr_size < Some(136) {
            let mut newer = dummy().clone();
            newer.attr_mut().config3 = 1;
            newer.attr_mut().config4 = 1;
            let mut two = named(newer.open(Target::ThisThread));
            two.sort_unstable();
            assert_eq!(two, ["config3", "config4"]);
        }
        let clock = Event::software(Software::CpuClock).builder().sample_period(1_000_000_000);
        let inherited = clock.clone().inherit(true).sample(SampleFlags::READ);
        let error = inherited.open(Target::ThisThread).unwrap_err();
        assert!(error.to_string().contains("PERF_SAMPLE_TID"), "{error}");
        if !features.inherit_sample_read {
            let inherited = inherited.sample(SampleFlags::READ | SampleFlags::TID);
            assert_eq!(named(inherited.open(Target::ThisThread)), ["PERF_SAMPLE_READ"]);
        }
        let frames = u16::try_from(perf_monitor::max_stack().unwrap() + 1).unwrap();
        let deep = clock.sample(SampleFlags::CALLCHAIN).sample_max_stack(frames);
        let limit = "sample_max_stack above kernel.perf_event_max_stack";
        assert_eq!(named(deep.open(Target::ThisThread)), [limit]);
        // The dummy event has no AUX area that could be paused.
        let mut paused = dummy();
        paused.attr_mut().aux_action = perf_sys::perf_event_attr::AUX_START_PAUSED;
        assert_eq!(named(paused.open(Target::ThisThread)), ["aux_action"]);
        if !features.has_flag("sigtrap") {
            let newer = dummy().remove_on_exec(true).sigtrap(true).open(Target::ThisThread);
            let mut two = named(newer);
            two.sort_unstable();
            assert_eq!(two, ["remove_on_exec", "sigtrap"]);
        }
    }

    fn too_many_samples_per_second_are_refused_with_the_limit(t) {
        t.root()?;
        let max = perf_monitor::max_sample_rate().unwrap();
        let asked = max as u64 + 1;
        let fast = Event::software(Software::CpuClock).builder()
            .sample_freq(asked).sample(SampleFlags::IP).open(Target::ThisThread);
        assert_eq!(reason(fast), OpenErrorReason::SampleRate { asked, max });
    }

    fn a_period_that_starves_the_machine_is_refused(t) {
        t.root()?;
        let short = Event::software(Software::CpuClock).builder().sample_period(1000);
        let error = short.open(Target::ThisThread).unwrap_err();
        assert!(matches!(error, Error::PeriodTooShort { nanos: 1000, .. }), "{error}");
        assert!(short.allow_short_period().open(Target::ThisThread).is_ok(), "not enabled");
    }

    fn wrong_page_counts_are_refused(t) {
        t.root()?;
        for pages in [0, 3, 1000] {
            let error = dummy().open_sampler(Target::ThisThread, pages).unwrap_err();
            assert!(matches!(error, Error::RingPages(p) if p == pages), "{error}");
        }
        let backward = dummy().write_backward(true).open(Target::ThisThread).unwrap();
        let error = perf_monitor::OverwriteRing::new(backward, 3).unwrap_err();
        assert!(matches!(error, Error::RingPages(3)), "{error}");
        assert!(error.to_string().contains("must be a power of two"), "{error}");
        let huge = dummy().open_sampler(Target::ThisThread, 1 << 24);
        assert!(matches!(reason(huge), OpenErrorReason::OutOfMemory | OpenErrorReason::LockedMemory { .. }));
    }

    fn an_inheriting_event_without_a_cpu_has_no_ring(t) {
        t.root()?;
        let sampler = dummy().inherit(true).open_sampler(Target::ThisThread, 8);
        assert_eq!(reason(sampler), OpenErrorReason::InheritNeedsCpu);
    }

    fn errors_name_the_privilege_that_helps(t) {
        t.tracefs()?;
        let switch = Event::tracepoint("sched", "sched_switch").unwrap();
        let call = Event::tracepoint("raw_syscalls", "sys_enter").unwrap();
        let knob = "/proc/sys/kernel/perf_event_paranoid";
        let own = paranoid_level().unwrap();
        // Every level on a machine that is ours alone.
        let levels = if t.is_guest() { vec![-1, 0, 1, 2, 3] } else { vec![own] };
        for level in &levels {
            if *level != paranoid_level().unwrap() {
                std::fs::write(knob, level.to_string()).unwrap();
            }
            let (level, switch, call) = (*level, switch.clone(), call.clone());
            let child = TestChild::start("getppid 1"); // of root
            let tid = child.tid;
            as_nobody(move || {
                unprivileged(level, &switch, tid);
                unprivileged_samples(level, &call);
            });
            child.go();
        }
        if levels.len() > 1 {
            std::fs::write(knob, own.to_string()).unwrap();
        }
    }

    fn tracefs_is_closed_to_others(t) {
        use std::os::unix::fs::MetadataExt;
        let tracefs = t.tracefs()?;
        // A machine has one tracefs, however often it is mounted.
        let root = std::fs::metadata(tracefs.root()).unwrap();
        if root.mode() & 0o7 != 0 || root.gid() == testkit::process::nobody() {
            return Err(t.refused("the tracefs of this machine is open to users without privileges"));
        }
        as_nobody(|| {
            let error = Event::parse("sched:sched_switch").unwrap_err();
            assert!(matches!(error, Error::File { .. }), "{error}");
            assert!(error.to_string().contains("gid=GROUP"), "{error}");
        });
    }

    fn a_detached_tracefs_has_the_events_of_the_mounted_one(t) {
        let mounted = t.tracefs()?;
        let before = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = Tracefs::detached().unwrap();
        let name = ("sched", "sched_switch");
        assert_eq!(own.events().unwrap(), mounted.events().unwrap());
        assert_eq!(own.format(name.0, name.1).unwrap(), mounted.format(name.0, name.1).unwrap());
        let event = Event::parse_in("sched:sched_switch", &own).unwrap();
        let number = Event::parse("sched:sched_switch").unwrap().as_tracepoint();
        assert_eq!((event.as_tracepoint(), own == mounted), (number, false));
        assert!(event.builder().open(Target::ThisThread).is_ok());
        // It is nowhere that anybody else sees, and gone with the last of its kind.
        assert_eq!(std::fs::read_to_string("/proc/self/mountinfo").unwrap(), before);
        let again = own.clone();
        drop(own);
        assert!(again.event(name.0, name.1).is_ok());
        let root = again.root().to_owned();
        drop(again);
        assert!(!root.join("events").exists());
        as_nobody(|| {
            let error = Tracefs::detached().unwrap_err();
            assert_eq!(error.errno(), Some(Errno::PERM), "{error}");
        });
    }

    fn a_missing_tracefs_is_an_error_with_the_remedy(t) {
        t.root()?;
        t.own_mounts()?;
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
        let mut roots = Vec::new();
        while let Ok(tracefs) = Tracefs::find() {
            unmount(tracefs.root(), UnmountFlags::DETACH).unwrap();
            roots.push(tracefs.root().to_owned());
            assert!(roots.len() < 10);
        }
        let error = Event::parse("sched:sched_switch").unwrap_err();
        // Mounted anywhere else, it is found.
        let dir = testkit::directory::Directory::new("perf test ");
        let unusual = dir.path();
        mount("nodev", unusual, "tracefs", MountFlags::empty(), None).unwrap();
        let found = Tracefs::find().map(|t| t.root().to_owned());
        let event = Event::parse("sched:sched_switch");
        unmount(unusual, UnmountFlags::DETACH).unwrap();
        for root in roots.iter().rev() {
            mount("nodev", root, "tracefs", MountFlags::empty(), None).unwrap();
        }
        assert!(matches!(error, Error::NoTracefs), "{error}");
        assert!(error.to_string().contains("mount -t tracefs"));
        assert_eq!(found.unwrap(), unusual);
        event.unwrap();
        assert!(Event::parse("sched:sched_switch").is_ok());
    }

    fn unknown_events_get_near_matches(t) {
        t.root()?;
        for (text, near) in [
            ("page-fautls", "did you mean page-faults?"),
            ("L1-dcache-lod-misses", "L1-dcache-load-misses"),
            ("sofware/x/", "did you mean software?"),
            ("uprobe/retprob/", "did you mean retprobe"),
        ] {
            let error = Event::parse(text).unwrap_err();
            assert!(error.to_string().contains(near), "{text}: {error}");
        }
        if Pmu::names().unwrap().iter().any(|n| n == "msr") {
            let error = Event::parse("msr/tcs/").unwrap_err().to_string();
            assert!(error.contains("PMU msr has no term \"tcs\"; did you mean tsc?"), "{error}");
        }
        let nowhere = Event::uprobe("/no/such/program", 0).unwrap().builder();
        assert_eq!(reason(nowhere.open(Target::ThisThread)), OpenErrorReason::NoSuchProbePoint);
    }

    fn a_uprobe_beyond_its_file_is_explained(t) {
        t.root()?;
        let exe = std::env::current_exe().unwrap();
        let size = exe.metadata().unwrap().len();
        // At the very end it is accepted: no instruction is looked at before the file is mapped.
        for offset in [size + 1, 1 << 40] {
            let error = Event::uprobe(&exe, offset).unwrap().builder()
                .open(Target::ThisThread).unwrap_err();
            assert_eq!(error.reason(), Some(&OpenErrorReason::ProbeOffset { offset, size }), "{error}");
        }
    }

    fn a_kprobe_whose_name_is_that_of_several_functions_is_explained(t) {
        t.root()?;
        if let Err(error) = Pmu::open("kprobe") {
            return Err(t.refused(error));
        }
        let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap();
        let mut functions = BTreeMap::<&str, u32>::new();
        for line in symbols.lines() {
            if let [_, "t" | "T", name] = line.split_whitespace().collect::<Vec<_>>()[..] {
                *functions.entry(name).or_default() += 1;
            }
        }
        let several = functions.iter().filter(|(_, count)| **count > 1).map(|(name, _)| *name);
        let mut errors = several.take(20).filter_map(|name| {
            Event::kprobe(name, 0).unwrap().builder().open(Target::Cpu(0)).err()
        });
        let found = errors.find(|error| error.errno() == Some(Errno::ADDRNOTAVAIL));
        let Some(error) = found else {
            return Err(t.refused("the kernel takes one of several functions with a name"));
        };
        assert_eq!(error.reason(), Some(&OpenErrorReason::AmbiguousProbePoint), "{error}");
        assert!(error.to_string().contains("use the address"), "{error}");
    }

    fn a_missing_probe_pmu_is_named(t) {
        t.root()?;
        match Event::kprobe("do_sys_openat2", 0) {
            Ok(_) => assert!(Pmu::open("kprobe").is_ok()),
            Err(error) => {
                assert!(matches!(error, Error::NoProbePmu { pmu: "kprobe" }), "{error}");
                let text = error.to_string();
                assert!(text.contains("CONFIG_KPROBE_EVENTS") && !text.contains("did you mean"), "{text}");
                return Err(t.refused(error));
            }
        }
    }

    fn exclude_kernel_has_the_documented_effect(t) {
        t.root()?;
        let count = |event: Software, user: bool| {
            let builder = Event::software(event).builder().exclude_kernel(user).exclude_hv(user);
            builder.open(Target::ThisThread).unwrap()
        };
        for event in [Software::ContextSwitches, Software::TaskClock, Software::PageFaults] {
            let (all, user) = (count(event, false), count(event, true));
            all.enable().unwrap();
            user.enable().unwrap();
            until("a count", || {
                std::thread::sleep(std::time::Duration::from_millis(1)); // a context switch
                crate::support::touch_pages(1);
                all.read().unwrap().value > 0
            });
            let value = user.read().unwrap().value;
            match Event::software(event).without_kernel() {
                WithoutKernel::Nothing => assert_eq!(value, 0, "{event:?}"),
                _ => assert!(value > 0, "{event:?}"),
            }
        }
    }

    fn tracepoints_without_the_kernel_count_what_has_registers_of_user_space(t) {
        t.root()?;
        let tracefs = Tracefs::find_or_detached().map_err(|error| t.refused(error))?;
        let mut documented = Vec::new();
        for (system, name) in [("syscalls", "sys_enter_getppid"), ("raw_syscalls", "sys_enter")] {
            let event = tracefs.event(system, name).map_err(|error| t.refused(error))?;
            let count = |user: bool| {
                let builder = event.builder().exclude_kernel(user).exclude_hv(user);
                let counter = builder.open(Target::ThisThread).unwrap();
                counter.enable().unwrap();
                counter
            };
            let (all, user) = (count(false), count(true));
            let _ = rustix::process::getppid();
            all.disable().unwrap();
            user.disable().unwrap();
            assert!(all.read().unwrap().value > 0, "{event}");
            let value = user.read().unwrap().value;
            let effect = event.without_kernel();
            assert_eq!(value > 0, effect == WithoutKernel::Everything, "{event}: {value}");
            documented.push(effect);
        }
        assert_eq!(documented, [WithoutKernel::Everything, WithoutKernel::Nothing]);
    }

    fn running_out_of_files_names_the_limit(t) {
        t.root()?;
        TestChild::start("files").go();
    }

    fn running_out_of_breakpoints_is_an_error(t) {
        t.root()?;
        let words = [0u64; 64];
        let watch = |word: &u64| {
            let address = std::ptr::from_ref(word) as u64;
            Event::breakpoint(address, 8, BreakpointAccess::Write).builder().open(Target::ThisThread)
        };
        let mut open = Vec::new();
        let error = words.iter().find_map(|word| match watch(word) {
            Ok(counter) => {
                open.push(counter);
                None
            }
            Err(error) => Some(error),
        });
        let error = error.expect("no CPU has 64 of them");
        assert_eq!(error.reason(), Some(&OpenErrorReason::NoCounters), "{error}");
        t.note(format!("{} breakpoints", open.len()));
        assert!(open.len() >= 2);
        open.pop();
        watch(&words[63]).unwrap();
    }

    fn a_directory_that_is_no_cgroup_is_an_error(t) {
        t.root()?;
        use rustix::fd::AsFd;
        let folder = std::fs::File::open("/proc").unwrap();
        let target = Target::Cgroup { dir: folder.as_fd(), cpu: 0 };
        assert_eq!(reason(dummy().open(target)), OpenErrorReason::Cgroup);
    }

    fn a_ring_of_another_cpu_cannot_be_shared(t) {
        t.root()?;
        let mut sampler = dummy().sample(SampleFlags::IDENTIFIER).open_sampler(Target::Cpu(0), 8).unwrap();
        let error = sampler.add(&dummy(), Target::ThisThread).unwrap_err();
        assert!(error.to_string().contains("same CPU"), "{error}");
    }
}
