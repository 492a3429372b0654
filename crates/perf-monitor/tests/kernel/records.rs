use crate::bpf::{self, ProgramType};
use crate::kernel_tests;
use crate::support::{ReadAll, TestChild, getppid, spin_for, touch_pages, until};
use perf_monitor::{
    CallchainContext, Event, Group, KernelFeatures, KernelVersion, ReadFormat, Record, SampleFlags,
    Sampler, Software, Target,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Records by the name of their variant.
fn kinds(sampler: &mut Sampler, into: &mut BTreeMap<String, usize>) {
    sampler
        .drain_all(|record| {
            let name = format!("{record:?}");
            let name = name.split(['(', ' ']).next().unwrap().to_owned();
            *into.entry(name).or_default() += 1;
        })
        .unwrap();
}

fn per_cpu(build: impl Fn(u32) -> Sampler) -> Vec<Sampler> {
    perf_monitor::online_cpus().into_iter().map(build).collect()
}

kernel_tests! {
    fn sideband_records_are_recorded(t) {
        t.root()?;
        let dummy = |cpu| {
            Event::software(Software::Dummy).builder()
                .mmap(true).mmap2(true).comm(true).comm_exec(true).task(true)
                .context_switch(true).namespaces(true)
                .sample(SampleFlags::TID | SampleFlags::TIME | SampleFlags::CPU)
                .open_sampler(Target::Cpu(cpu), 64).unwrap()
        };
        let (mut seen, mut names, mut files) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (mut lost, mut is_whole) = (0, false);
        // The buffers hold the records of the whole machine, and can be full: record again then.
        for _ in 0..10 {
            let mut samplers = per_cpu(dummy);
            samplers.iter().for_each(|s| s.counter().enable().unwrap());
            TestChild::start("tree 4").go();
            std::thread::Builder::new().name("named-thread".into())
                .spawn(|| std::thread::sleep(Duration::from_millis(2))).unwrap().join().unwrap(); // a switch
            samplers.iter().for_each(|s| s.counter().disable().unwrap());
            (seen, names, files) = (BTreeMap::new(), Vec::new(), Vec::new());
            for sampler in &mut samplers {
                sampler.drain_all(|record| {
                    let id = record.sample_id().unwrap();
                    assert!(id.time.is_some() && id.cpu.is_some(), "{record:?}");
                    match &record {
                        Record::Comm(c) => names.push(String::from_utf8_lossy(c.comm).into_owned()),
                        Record::Mmap(m) => {
                            assert!(m.file.is_some());
                            files.push(String::from_utf8_lossy(m.filename).into_owned());
                        }
                        Record::Switch(s) => assert!(s.peer.is_some()),
                        _ => {}
                    }
                    let name = format!("{record:?}");
                    *seen.entry(name.split('(').next().unwrap().to_owned()).or_insert(0) += 1;
                }).unwrap();
                lost += sampler.stats().lost;
            }
            let kinds = ["Mmap", "Comm", "Fork", "Exit", "Switch", "Namespaces"];
            is_whole = kinds.iter().all(|kind| seen.contains_key(*kind))
                && names.iter().any(|n| n == "named-thread")
                && files.iter().any(|f| f.contains("vdso"));
            if is_whole {
                break;
            }
        }
        assert!(is_whole, "{seen:?} {names:?} {files:?}, {lost} lost");
        t.note(format!("{seen:?}"));
    }

    fn every_sample_field_of_this_kernel_is_decoded(t) {
        t.root()?;
        let features = KernelFeatures::probe();
        // AUX is not for timers; WEIGHT excludes WEIGHT_STRUCT.
        let mut fields = features.sample - SampleFlags::AUX;
        if fields.contains(SampleFlags::WEIGHT_STRUCT) {
            fields -= SampleFlags::WEIGHT;
        }
        let mut sampler = Event::software(Software::CpuClock).builder()
            .sample_period(1_000_000).sample(fields).read_format(features.read_format - ReadFormat::GROUP)
            .sample_regs_user(0b111).sample_regs_intr(0b11).sample_stack_user(256)
            .open_sampler(Target::ThisThread, 128).unwrap();
        let mut samples = 0;
        // A busy machine may give few of them at a time.
        for _ in 0..50 {
            sampler.counter().enable().unwrap();
            spin_for(Duration::from_millis(30));
            sampler.counter().disable().unwrap();
            sampler.drain_all(|record| {
                let Record::Sample(s) = record else { return };
                samples += 1;
                let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                assert_eq!(s.tid, Some(own));
                assert!(s.ip.is_some_and(|ip| ip > 0) && s.time.is_some());
                assert_eq!(s.period, Some(1_000_000));
                assert_eq!(s.identifier, s.id);
                let count = s.read.unwrap().iter().next().unwrap();
                assert_eq!(count.id, s.id, "the counts are where they should be");
                assert!(s.callchain.unwrap().frames().count() > 0);
                if fields.contains(SampleFlags::REGS_USER) {
                    let regs = s.regs_user.unwrap();
                    assert_eq!(regs.values.len(), if regs.abi == 0 { 0 } else { 3 });
                }
                if fields.contains(SampleFlags::STACK_USER) {
                    assert!(s.stack_user.unwrap().copied().len() <= 256);
                }
                if fields.contains(SampleFlags::CODE_PAGE_SIZE) {
                    let size = s.code_page_size.unwrap();
                    assert!(size == 0 || size.is_power_of_two(), "{size}");
                }
                if fields.contains(SampleFlags::CGROUP) {
                    assert!(s.cgroup.is_some());
                }
            }).unwrap();
            if samples > 5 {
                break;
            }
        }
        assert!(samples > 5, "{samples}");
        t.note(format!("{samples} samples with {} fields", fields.iter().count()));
        for (name, flag) in SampleFlags::all().iter_names() {
            if !features.sample.contains(flag) {
                t.lacks(format!("PERF_SAMPLE_{name} on cpu-clock"));
            }
        }
    }

    fn callchains_have_contexts(t) {
        t.root()?;
        let mut sampler = Event::software(Software::PageFaultsMin).builder()
            .sample_period(1).sample(SampleFlags::CALLCHAIN | SampleFlags::IP)
            .open_sampler(Target::ThisThread, 16).unwrap();
        sampler.counter().enable().unwrap();
        touch_pages(5);
        sampler.counter().disable().unwrap();
        let mut user = 0;
        sampler.drain_all(|record| if let Record::Sample(s) = record {
            user += s.callchain.unwrap().frames()
                .filter(|f| f.context == CallchainContext::User).count();
        }).unwrap();
        assert!(user > 0);
    }

    fn kernel_text_and_symbols_change_when_a_probe_is_set(t) {
        t.root()?;
        if perf_monitor::Pmu::open("kprobe").is_err() {
            return Err(t.refused("no PMU kprobe"));
        }
        let builder = Event::software(Software::Dummy).builder()
            .ksymbol(true).text_poke(true).sample(SampleFlags::TIME);
        let mut samplers = Vec::new();
        for cpu in perf_monitor::online_cpus() {
            samplers.push(t.needs(builder.open_sampler(Target::Cpu(cpu), 64), (5, 8))?);
        }
        samplers.iter().for_each(|s| s.counter().enable().unwrap());
        let probe = Event::kretprobe("do_sys_openat2").unwrap().builder().open(Target::ThisThread).unwrap();
        probe.enable().unwrap();
        drop(probe);
        // Elsewhere than on x86-64 no text is poked. The page that the kernel allocates for its first
        // probe is a symbol, but an earlier test may have set that one; a program always is.
        let mut wanted = "TextPoke";
        if !cfg!(target_arch = "x86_64") {
            bpf::load(ProgramType::SocketFilter, 0).map_err(|e| t.refused(e))?;
            wanted = "Ksymbol";
        }
        let mut seen = BTreeMap::new();
        until(wanted, || {
            samplers.iter_mut().for_each(|s| kinds(s, &mut seen));
            seen.contains_key(wanted)
        });
        t.note(format!("{seen:?}"));
    }

    fn cgroups_are_recorded(t) {
        t.root()?;
        t.guest()?;
        let builder = Event::software(Software::Dummy).builder()
            .cgroup(true).task(true).sample(SampleFlags::TIME | SampleFlags::TID);
        let mut samplers = Vec::new();
        for cpu in perf_monitor::online_cpus() {
            samplers.push(t.needs(builder.open_sampler(Target::Cpu(cpu), 64), (5, 7))?);
        }
        samplers.iter().for_each(|s| s.counter().enable().unwrap());
        // Perf events follow the cgroups of a hierarchy that has an active controller.
        std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+pids").unwrap();
        let dir = "/sys/fs/cgroup/perf-test";
        std::fs::create_dir(dir).map_err(|e| t.cannot(e))?;
        let mut paths = Vec::new();
        until("the record of the new cgroup", || {
            for s in &mut samplers {
                s.drain_all(|r| if let Record::Cgroup(c) = r { paths.push(c.path.to_vec()) }).unwrap();
            }
            paths.contains(&b"/perf-test".to_vec())
        });

        // And an event on it.
        let fd = std::fs::File::open(dir).unwrap();
        use rustix::fd::AsFd;
        let clock = Event::software(Software::TaskClock).builder();
        let counters: Vec<_> = perf_monitor::online_cpus().into_iter()
            .map(|cpu| clock.open(Target::Cgroup { dir: fd.as_fd(), cpu }).unwrap()).collect();
        counters.iter().for_each(|c| c.enable().unwrap());
        // A group of two of the cgroup, of which the second is added without naming it again.
        let mut groups: Vec<_> = perf_monitor::online_cpus().into_iter()
            .map(|cpu| Group::open(&clock, Target::Cgroup { dir: fd.as_fd(), cpu }).unwrap())
            .collect();
        for group in &mut groups {
            group.add(&Event::software(Software::ContextSwitches).builder()).unwrap();
            group.add(&clock).unwrap();
            group.enable().unwrap();
        }
        let child = TestChild::start("spin 40");
        std::fs::write(format!("{dir}/cgroup.procs"), child.tid.to_string()).unwrap();
        child.go();
        let sum: u64 = counters.iter().map(|c| c.read().unwrap().value).sum();
        assert!(sum >= 40_000_000, "{sum} ns");
        let mut members = [0; 3];
        for group in &groups {
            for (sum, count) in members.iter_mut().zip(&group.read().unwrap().counts) {
                *sum += count.value;
            }
        }
        t.note(format!("{sum} ns, in a group {members:?}"));
        assert!(members[0] >= 40_000_000 && members[1] > 0, "{members:?}");
        assert!(members[2].abs_diff(members[0]) < members[0] / 10, "{members:?}");
        drop((counters, groups));
        std::fs::remove_dir(dir).unwrap();
    }

    fn counts_of_ended_tasks_are_recorded(t) {
        t.root()?;
        let mut seen = BTreeMap::new();
        let mut samplers = per_cpu(|cpu| {
            Event::software(Software::TaskClock).builder()
                .inherit(true).inherit_stat(true).task(true)
                .sample(SampleFlags::TID | SampleFlags::TIME)
                .open_sampler(Target::ThreadOnCpu { tid: 0, cpu }, 16).unwrap()
        });
        samplers.iter().for_each(|s| s.counter().enable().unwrap());
        TestChild::start("spin 5").go();
        samplers.iter_mut().for_each(|s| kinds(s, &mut seen));
        assert!(seen.contains_key("Fork") && seen.contains_key("Exit"), "{seen:?}");
        t.note(format!("{seen:?}"));
        if !seen.contains_key("Read") {
            // Linux 6.1 and 6.12 write none; 5.10, 6.18 and 7.2 do.
            let version = KernelVersion::current();
            let lacks = KernelVersion(5, 11)..KernelVersion(6, 18);
            assert!(lacks.contains(&version), "Linux {version} should write PERF_RECORD_READ: {seen:?}");
            return Err(t.refused("no PERF_RECORD_READ is written"));
        }
    }

    fn bursts_are_throttled_and_counted(t) {
        t.root()?;
        t.guest()?;
        let rate = "/proc/sys/kernel/perf_event_max_sample_rate";
        let before = std::fs::read_to_string(rate).unwrap();
        std::fs::write(rate, "1000").unwrap();
        let mut sampler = Event::software(Software::CpuClock).builder()
            .sample_period(20_000).sample(SampleFlags::TIME).open_sampler(Target::ThisThread, 256).unwrap();
        sampler.counter().enable().unwrap();
        until("a throttled event", || {
            spin_for(Duration::from_millis(20));
            sampler.drain_all(|_| ()).unwrap();
            sampler.stats().throttled > 0
        });
        let stats = sampler.finish_all(|_| ()).unwrap();
        std::fs::write(rate, before.trim()).unwrap();
        t.note(format!("{stats:?}"));
        // It is throttled and unthrottled by turns.
        assert!(stats.lost > 0 || stats.throttled.abs_diff(stats.unthrottled) <= 1, "{stats:?}");
    }

    fn user_callchains_are_deferred(t) {
        t.root()?;
        let builder = Event::software(Software::CpuClock).builder()
            .sample_period(500_000).sample(SampleFlags::CALLCHAIN | SampleFlags::TID)
            .defer_callchain(true).defer_output(true);
        let mut sampler = t.needs(builder.open_sampler(Target::ThisThread, 64), (6, 19))?;
        sampler.counter().enable().unwrap();
        let (mut samples, mut promised, mut kept) = (0, Vec::new(), Vec::new());
        until("deferred callchains", || {
            getppid(1000);
            sampler.drain_all(|record| match record {
                Record::Sample(s) => {
                    samples += 1;
                    promised.extend(s.callchain.unwrap().deferred_cookie());
                }
                Record::CallchainDeferred(d) => kept.push((d.cookie, d.callchain.frames().count())),
                _ => {}
            }).unwrap();
            // Only x86 unwinds user space in the kernel: elsewhere samples promise nothing.
            if cfg!(target_arch = "x86_64") { kept.len() > 5 } else { samples > 20 }
        });
        t.note(format!("{samples} samples, {} promised, {} came", promised.len(), kept.len()));
        if kept.is_empty() {
            assert!(promised.is_empty(), "promised, but never written");
            return Err(t.refused("accepted, but no deferred callchain comes"));
        }
        assert!(kept.iter().all(|(cookie, frames)| promised.contains(cookie) && *frames > 0));
    }

    fn bpf_programs_are_recorded(t) {
        t.root()?;
        t.guest()?;
        let builder = Event::software(Software::Dummy).builder()
            .bpf_event(true).ksymbol(true).sample(SampleFlags::TIME);
        let mut samplers = Vec::new();
        for cpu in perf_monitor::online_cpus() {
            samplers.push(t.needs(builder.open_sampler(Target::Cpu(cpu), 16), (5, 1))?);
        }
        samplers.iter().for_each(|s| s.counter().enable().unwrap());
        let program = bpf::load(ProgramType::SocketFilter, 0).map_err(|e| t.refused(e))?;
        drop(program);
        let mut seen = BTreeMap::new();
        until("the record of the program", || {
            samplers.iter_mut().for_each(|s| kinds(s, &mut seen));
            seen.contains_key("BpfEvent")
        });
        t.note(format!("{seen:?}"));
    }
}
