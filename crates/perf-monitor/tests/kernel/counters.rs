use crate::kernel_tests;
use crate::support::{
    GETPPID, ReadAll, TestChild, getppid, on_cpu_0, spin_for, touch_pages, until,
};
use perf_monitor::{
    BreakpointAccess, Error, Event, Group, KernelFeatures, KernelVersion, Pmu, ReadFormat,
    SampleFlags, Software, Target,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A watched variable.
static WATCHED: AtomicU64 = AtomicU64::new(0);

/// A function whose calls are counted.
#[inline(never)]
fn called(x: u64) {
    std::hint::black_box(x);
}

kernel_tests! {
    fn software_events_count(t) {
        t.root()?;
        let faults = Event::software(Software::PageFaults).builder().open(Target::ThisThread).unwrap();
        touch_pages(10);
        assert_eq!(faults.read().unwrap().value, 0, "it starts off");
        faults.enable().unwrap();
        touch_pages(64);
        faults.disable().unwrap();
        let count = faults.read().unwrap();
        assert!(count.value >= 64, "{count:?}");
        assert_eq!(count.time_enabled, count.time_running);
        assert!(!count.scaled().unwrap().is_estimate);
        touch_pages(64);
        assert_eq!(faults.read().unwrap().value, count.value, "off again");
        faults.reset().unwrap();
        assert_eq!(faults.read().unwrap().value, 0);
        assert_eq!(faults.read().unwrap().time_enabled, count.time_enabled, "the times continue");
    }

    fn a_cpu_wide_event_counts_every_task(t) {
        t.root()?;
        for cpu in perf_monitor::online_cpus() {
            let clock = Event::software(Software::CpuClock).builder().open(Target::Cpu(cpu)).unwrap();
            clock.enable().unwrap();
            until("10 ms of a CPU", || clock.read().unwrap().value > 10_000_000);
        }
    }

    fn tracepoints_count_exactly_with_a_filter(t) {
        t.tracefs()?;
        let event = Event::tracepoint("raw_syscalls", "sys_enter").unwrap();
        let counter = event.builder().open(Target::ThisThread).unwrap();
        counter.set_filter(&format!("id == {GETPPID}")).unwrap();
        counter.enable().unwrap();
        getppid(1000);
        counter.disable().unwrap();
        assert_eq!(counter.read().unwrap().value, 1000);
    }

    fn groups_are_read_at_once(t) {
        t.root()?;
        let has_lost = KernelFeatures::probe().read_format.contains(ReadFormat::LOST);
        let format = if has_lost { ReadFormat::LOST } else { ReadFormat::empty() };
        let builder = |e| Event::software(e).builder().read_format(format);
        let mut group = Group::open(&builder(Software::TaskClock), Target::ThisThread).unwrap();
        let faults = group.add(&builder(Software::PageFaults)).unwrap();
        let dummy = group.add(&builder(Software::Dummy)).unwrap();
        let work = || {
            touch_pages(100);
            // The clock of an emulated x86-64 machine advances by ticks of 4 ms.
            spin_for(Duration::from_millis(20));
        };
        let ((), counts) = group.measure(work).unwrap();
        assert!(counts[faults].value >= 100, "{counts:?}");
        assert_eq!(counts[dummy].value, 0);
        assert!(counts[0].value > 0 && counts[0].time_running > Some(0), "{counts:?}");
        assert!(counts.iter().all(|c| c.lost == has_lost.then_some(0)), "{counts:?}");
        let ids: Vec<_> = group.counters().iter().map(|c| Some(c.id().unwrap())).collect();
        assert_eq!(counts.iter().map(|c| c.id).collect::<Vec<_>>(), ids);
        let all = group.read().unwrap();
        assert_eq!(all.by_id(ids[faults].unwrap()).unwrap().value, counts[faults].value);
        group.reset().unwrap();
        assert_eq!(group.read().unwrap().counts[faults].value, 0);
    }

    fn a_tracepoint_that_joins_an_enabled_group_counts(t) {
        t.tracefs()?;
        let dummy = Event::software(Software::Dummy).builder();
        let mut group = Group::open(&dummy, Target::ThisThread).unwrap();
        group.enable().unwrap();
        let event = Event::tracepoint("raw_syscalls", "sys_enter").unwrap();
        let joined = group.add(&event.builder()).unwrap();
        getppid(100);
        let count = group.read().unwrap().counts[joined];
        assert!(count.value >= 100, "{count:?}");

        // On a CPU it would never count, not even after the next switch.
        let mut group = Group::open(&dummy, Target::Cpu(0)).unwrap();
        group.enable().unwrap();
        let joined = group.add(&event.builder()).unwrap();
        on_cpu_0(|| getppid(100));
        let count = group.read().unwrap().counts[joined];
        assert!(count.value >= 100, "{count:?}");
    }

    fn inherited_events_count_the_whole_tree(t) {
        t.tracefs()?;
        let event = Event::tracepoint("raw_syscalls", "sys_enter").unwrap();
        let child = TestChild::start("tree 1000");
        let counter = event.builder().inherit(true).open(Target::Thread(child.tid)).unwrap();
        counter.set_filter(&format!("id == {GETPPID}")).unwrap();
        counter.enable().unwrap();
        child.go();
        assert_eq!(counter.read().unwrap().value, 1000 + 500 + 250);
        let alone = TestChild::start("tree 1000");
        let counter = event.builder().open(Target::Thread(alone.tid)).unwrap();
        counter.set_filter(&format!("id == {GETPPID}")).unwrap();
        counter.enable().unwrap();
        alone.go();
        assert_eq!(counter.read().unwrap().value, 1000, "without inherit, the thread alone");
    }

    fn groups_are_read_while_children_exit(t) {
        t.root()?;
        let software = |event| {
            let builder = Event::software(event).builder();
            builder.inherit(true).exclude_kernel(true).exclude_hv(true)
        };
        let first = software(Software::TaskClock);
        let mut group = Group::open(&first, Target::ThisThread).unwrap();
        for event in [Software::CpuClock, Software::PageFaults, Software::CpuMigrations] {
            group.add(&software(event)).unwrap();
        }
        group.enable().unwrap();
        // An emulated CPU takes 12 s for 500 rounds.
        let rounds = if t.is_guest() { 50 } else { 500 };
        for _ in 0..rounds {
            let threads = [(); 3].map(|()| std::thread::spawn(|| ()));
            while threads.iter().any(|thread| !thread.is_finished()) {
                group.read().unwrap();
                // They need a CPU, and an emulated machine has one or two.
                std::thread::yield_now();
            }
            // Each is finished before the kernel has removed its events.
            group.read().unwrap();
            for thread in threads {
                thread.join().unwrap();
            }
        }
        assert!(group.read().unwrap().counts[0].value > 0);
    }

    fn enable_on_exec_starts_with_the_program(t) {
        t.tracefs()?;
        let event = Event::tracepoint("raw_syscalls", "sys_enter").unwrap();
        let counter = event
            .builder().inherit(true).enable_on_exec(true).open(Target::ThisThread).unwrap();
        getppid(50);
        TestChild::start("getppid 300").go();
        getppid(50);
        let value = counter.read().unwrap().value;
        assert!(value > 300, "only what was started counts, all of it: {value}");
    }

    fn refresh_stops_after_n_samples(t) {
        t.tracefs()?;
        let event = Event::tracepoint("raw_syscalls", "sys_enter").unwrap();
        let mut sampler = event
            .builder().sample_period(1).sample(SampleFlags::TID)
            .open_sampler(Target::ThisThread, 8).unwrap();
        assert!(sampler.counter().refresh(0).is_err());
        sampler.counter().refresh(3).unwrap();
        getppid(10);
        assert_eq!(sampler.drain_all(|_| ()).unwrap(), 3);
        // Enabling it again works, or is refused: it is never silently dead.
        match sampler.counter().enable() {
            Ok(()) => {
                getppid(10);
                assert!(sampler.drain_all(|_| ()).unwrap() >= 10);
                t.note("refresh restarts");
            }
            Err(error) => {
                assert!(matches!(error, Error::RefreshIsFinal { .. }), "{error}");
                assert!(!KernelFeatures::refresh_restarts());
                t.note("refresh is final");
            }
        }
        let version = KernelVersion::current();
        assert_eq!(KernelFeatures::refresh_restarts(), version < KernelVersion(6, 18), "{version}");
    }

    fn the_period_can_be_changed(t) {
        t.tracefs()?;
        let event = Event::tracepoint("raw_syscalls", "sys_enter").unwrap();
        let mut sampler = event
            .builder().sample_period(1).sample(SampleFlags::TID)
            .open_sampler(Target::ThisThread, 8).unwrap();
        sampler.counter().set_filter(&format!("id == {GETPPID}")).unwrap();
        sampler.counter().enable().unwrap();
        getppid(10);
        assert_eq!(sampler.drain_all(|_| ()).unwrap(), 10);
        sampler.counter().set_period(5).unwrap();
        // Not many in one tick of the timer: with a period above 1, Linux 6.18 does not resume a
        // tracepoint that it throttled.
        for _ in 0..10 {
            getppid(5);
            std::thread::sleep(Duration::from_millis(11));
        }
        let samples = sampler.drain_all(|_| ()).unwrap();
        assert!((9..=13).contains(&samples), "{samples}");
        assert!(sampler.counter().set_period(1 << 63).is_err());
    }

    fn breakpoints_count_accesses(t) {
        t.root()?;
        let addr = (&raw const WATCHED) as u64;
        let write = |n: u64| (0..n).for_each(|i| WATCHED.store(i, Ordering::Relaxed));
        let event = Event::breakpoint(addr, 8, BreakpointAccess::Write);
        let mut counter = event.builder().open(Target::ThisThread).unwrap();
        counter.enable().unwrap();
        write(7);
        std::hint::black_box(WATCHED.load(Ordering::Relaxed));
        assert_eq!(counter.read().unwrap().value, 7);
        // Another variable from now on.
        let elsewhere = AtomicU64::new(0);
        let other = Event::breakpoint((&raw const elsewhere) as u64, 8, BreakpointAccess::Write);
        counter.modify(&other.builder()).unwrap();
        write(7);
        elsewhere.store(1, Ordering::Relaxed);
        assert_eq!(counter.read().unwrap().value, 8);
        let clock = Event::software(Software::Dummy);
        let mut dummy = clock.builder().open(Target::ThisThread).unwrap();
        assert!(dummy.modify(&other.builder()).is_err());
    }

    fn breakpoints_count_reads_and_calls(t) {
        t.root()?;
        let addr = (&raw const WATCHED) as u64;
        let both = Event::breakpoint(addr, 8, BreakpointAccess::ReadWrite);
        let both = both.builder().open(Target::ThisThread).unwrap();
        both.enable().unwrap();
        WATCHED.store(1, Ordering::Relaxed);
        std::hint::black_box(WATCHED.load(Ordering::Relaxed));
        both.disable().unwrap();
        assert_eq!(both.read().unwrap().value, 2);
        let calls = Event::breakpoint(called as *const () as u64, 8, BreakpointAccess::Execute);
        let calls = calls.builder().open(Target::ThisThread).unwrap();
        calls.enable().unwrap();
        (0..5).for_each(called);
        calls.disable().unwrap();
        assert_eq!(calls.read().unwrap().value, 5);
    }

    fn dynamic_pmus_count(t) {
        t.root()?;
        if !Pmu::names().unwrap().iter().any(|n| n == "msr") {
            return Err(t.refused("no PMU msr"));
        }
        let tsc = Event::parse("msr/tsc/").unwrap().builder().open(Target::ThisThread).unwrap();
        tsc.enable().unwrap();
        spin_for(Duration::from_millis(10));
        tsc.disable().unwrap();
        assert!(tsc.read().unwrap().value > 1_000_000);
    }

    fn software_events_of_5_13(t) {
        t.root()?;
        let event = Event::software(Software::CgroupSwitches).builder();
        t.needs(event.open(Target::Cpu(0)), (5, 13))?;
    }

    fn lost_samples_are_in_the_counts(t) {
        t.root()?;
        let event = Event::software(Software::Dummy).builder().read_format(ReadFormat::LOST);
        let counter = t.needs(event.open(Target::ThisThread), (6, 0))?;
        assert_eq!(counter.read().unwrap().lost, Some(0));
    }

    fn the_features_agree_with_what_opens(t) {
        t.root()?;
        let features = KernelFeatures::probe();
        t.note(format!(
            "attr size {:?}, {} flags, sample {:#x}, read format {:#x}, PMUs {}",
            features.attr_size.unwrap(), features.flags.len(), features.sample.bits(),
            features.read_format.bits(), features.pmus.join(" "),
        ));
        assert!(features.attr_size.unwrap() >= 112);
        assert!(features.sample.contains(SampleFlags::IP | SampleFlags::RAW | SampleFlags::IDENTIFIER));
        assert!(features.read_format.contains(ReadFormat::GROUP));
        assert!(features.has_flag("inherit") && features.has_flag("use_clockid"));
        assert!(features.privileged && features.refused.is_none());
        let version = features.version;
        for (flag, since) in [
            ("write_backward", (4, 7)), ("namespaces", (4, 12)), ("ksymbol", (5, 1)),
            ("cgroup", (5, 7)), ("text_poke", (5, 8)), ("build_id", (5, 12)),
            ("remove_on_exec", (5, 13)), ("sigtrap", (5, 13)), ("inherit_thread", (5, 13)),
            ("defer_callchain", (6, 19)), ("defer_output", (6, 19)),
        ] {
            let has = features.has_flag(flag);
            if version >= KernelVersion(since.0, since.1) {
                assert!(has, "Linux {version} should have {flag}");
            }
            if !has {
                t.lacks(format!("{flag} (Linux {}.{})", since.0, since.1));
            }
        }
        if version >= KernelVersion(6, 12) {
            assert!(features.inherit_sample_read);
        }
    }

    fn the_control_page_has_the_times(t) {
        t.root()?;
        let counter = Event::software(Software::TaskClock).builder().open(Target::ThisThread).unwrap();
        let page = counter.user_page().unwrap();
        counter.enable().unwrap();
        spin_for(Duration::from_millis(5));
        // Between two readings of the kernel, however long the thread was off the CPU.
        let enabled = || counter.read().unwrap().time_enabled.unwrap();
        let (before, read, after) = (enabled(), page.read(), enabled());
        assert_eq!(read.value, None, "a software event is not on a hardware counter");
        t.note(format!("rdpmc {}, time {}", page.offers_rdpmc(), page.offers_time()));
        assert!(!read.times_are_current, "the page does not say whether it counts: {read:?}");
        assert!(read.time_enabled <= after && before > 0, "{before} {read:?} {after}");
        // The times of an event that is disabled do not pass.
        counter.disable().unwrap();
        let stopped = page.read();
        spin_for(Duration::from_millis(5));
        assert_eq!(page.read(), stopped);
    }
}
