use crate::kernel_tests;
use crate::support::{TestChild, as_nobody};
use perf_monitor::{
    Error, Event, Field, KernelFeatures, Refusal, SampleFlags, Software, Target, Tracefs,
    paranoid_level,
};

fn dummy() -> perf_monitor::EventBuilder {
    Event::software(Software::Dummy).builder()
}

fn refusal(result: Result<impl Sized, Error>) -> Refusal {
    match result {
        Ok(_) => panic!("it opened"),
        Err(error) => {
            let refusal = error.refusal().unwrap_or_else(|| panic!("{error}")).clone();
            eprintln!("# {error}");
            refusal
        }
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
    assert_eq!(error.refusal(), Some(&Refusal::OpenFiles { limit: Some(20) }), "{error}");
    assert!(error.to_string().contains("ulimit -n"));
}

kernel_tests! {
    fn a_dead_thread_is_named(t) {
        t.root()?;
        let child = TestChild::start("getppid 1");
        let tid = child.tid;
        child.go();
        assert_eq!(refusal(dummy().open(Target::Thread(tid))), Refusal::NoSuchThread(tid));
        let pid = u32::MAX;
        assert_eq!(refusal(dummy().open(Target::Thread(pid))), Refusal::NoSuchThread(pid));
    }

    fn a_cpu_that_does_not_exist_is_named(t) {
        t.root()?;
        for cpu in [4000, 100_000, u32::MAX] {
            assert_eq!(refusal(dummy().open(Target::Cpu(cpu))), Refusal::NoSuchCpu(cpu));
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
        assert_eq!(refusal(dummy().open(Target::Cpu(1))), Refusal::OfflineCpu(1));
        assert!(!perf_monitor::online_cpus().contains(&1));
        std::fs::write(online, "1").unwrap();
        let value = before.read().unwrap().value;
        before.enable().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(before.read().unwrap().value, value, "an event does not survive its CPU");
        let fresh = clock.open(Target::Cpu(1)).unwrap();
        fresh.enable().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(fresh.read().unwrap().value > 0, "a new one counts");
    }

    fn fields_that_the_kernel_lacks_are_named(t) {
        t.root()?;
        let features = KernelFeatures::probe();
        let mut nonsense = dummy();
        nonsense.attr_mut().flags |= 1 << 60;
        assert_eq!(refusal(nonsense.open(Target::ThisThread)), Refusal::Unknown);
        let named = |result| match refusal(result) {
            Refusal::Fields(fields) => fields.iter().map(|f: &Field| f.name).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        // Branch stacks need hardware that no machine of these tests has, or refuse a timer.
        let branches = Event::software(Software::CpuClock).builder()
            .sample_period(1_000_000_000).sample(SampleFlags::BRANCH_STACK | SampleFlags::IP)
            .branches(perf_monitor::BranchFlags::ANY).open(Target::ThisThread);
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
        assert_eq!(refusal(fast), Refusal::SampleRate { asked, max });
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
        let huge = dummy().open_sampler(Target::ThisThread, 1 << 24);
        assert!(matches!(refusal(huge), Refusal::OutOfMemory | Refusal::LockedMemory { .. }));
    }

    fn an_inheriting_event_without_a_cpu_has_no_ring(t) {
        t.root()?;
        let sampler = dummy().inherit(true).open_sampler(Target::ThisThread, 8);
        assert_eq!(refusal(sampler), Refusal::InheritNeedsCpu);
    }

    fn a_user_without_privilege_is_told_what_helps(t) {
        t.root()?;
        let paranoid = paranoid_level();
        as_nobody(move || {
            let wide = dummy().open(Target::Cpu(0));
            let Refusal::Privilege { paranoid: level, allowed_at, .. } = refusal(wide) else { panic!() };
            assert_eq!((level, allowed_at), (paranoid, Some(0)));
            let kernel = Event::software(Software::PageFaults).builder().open(Target::ThisThread);
            if paranoid >= Some(2) {
                let Refusal::Privilege { allowed_at, user_space_alone_is_allowed, .. } = refusal(kernel)
                else { panic!() };
                assert_eq!(allowed_at, Some(1));
                assert_eq!(user_space_alone_is_allowed, paranoid == Some(2));
            }
            // Not root's to forbid: what an ordinary user may do works.
            let user = Event::software(Software::PageFaults).builder()
                .exclude_kernel(true).exclude_hv(true);
            if paranoid <= Some(2) {
                let counter = user.open(Target::ThisThread).unwrap();
                counter.enable().unwrap();
                crate::support::touch_pages(3);
                assert!(counter.read().unwrap().value >= 3);
                let big = user.open_sampler(Target::ThisThread, 1 << 14);
                let Refusal::LockedMemory { mlock_kb: Some(_), .. } = refusal(big) else { panic!() };
            }
        });
    }

    fn tracefs_is_closed_to_others(t) {
        t.tracefs()?;
        as_nobody(|| {
            let error = Event::parse("sched:sched_switch").unwrap_err();
            assert!(matches!(error, Error::File { .. }), "{error}");
            assert!(error.to_string().contains("gid=GROUP"), "{error}");
        });
    }

    fn a_missing_tracefs_is_told_with_the_remedy(t) {
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
        for root in roots.iter().rev() {
            mount("nodev", root, "tracefs", MountFlags::empty(), None).unwrap();
        }
        assert!(matches!(error, Error::NoTracefs), "{error}");
        assert!(error.to_string().contains("mount -t tracefs"));
        assert!(Event::parse("sched:sched_switch").is_ok());
    }

    fn running_out_of_files_is_told_with_the_limit(t) {
        t.root()?;
        TestChild::start("files").go();
    }

    fn a_ring_of_another_cpu_cannot_be_shared(t) {
        t.root()?;
        let mut sampler = dummy().sample(SampleFlags::IDENTIFIER).open_sampler(Target::Cpu(0), 8).unwrap();
        let error = dummy().open_into(Target::ThisThread, &mut sampler).unwrap_err();
        assert!(error.to_string().contains("same CPU"), "{error}");
    }
}
