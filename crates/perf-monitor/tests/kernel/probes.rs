//! Probes with arguments, their names, and what is left of them.

use crate::kernel_tests;
use crate::monitor::while_running;
use crate::support::{ReadAll, Skip, Test, TestChild, as_nobody, until};
use perf_monitor::probe::{
    self, Fetch, FetchType, Probe, ProbeDefinition, ProbeInterface, ProbeKind,
};
use perf_monitor::{
    Errno, Error, EventMonitor, EventType, Record, Registration, SampleFlags, SampleView, Sampler,
    Target, Tracefs, TracepointFormat, WithoutKernel,
};
use std::ffi::CStr;
use std::path::PathBuf;

/// The function that is probed, with the arguments of C.
#[inline(never)]
pub(crate) extern "C" fn called(x: u64, y: i32, text: *const std::ffi::c_char) -> i32 {
    std::hint::black_box(text);
    std::hint::black_box((x as i32).wrapping_add(y))
}

pub(crate) fn probed(x: u64, y: i32, text: &CStr) -> i32 {
    std::hint::black_box(called as extern "C" fn(_, _, _) -> _)(x, y, text.as_ptr())
}

const CALLED: &str = "kernel::probes::called";
const EXE: &str = "/proc/self/exe";

/// What a child does before and after it waits.
pub(crate) fn prepare(role: &str) -> Option<Box<dyn FnOnce()>> {
    if role == "owns a probe" {
        let probe = Probe::uprobe(EXE, CALLED).arg("x", Fetch::arg(1)).create().unwrap();
        println!("probe {}", probe.event());
        return Some(Box::new(|| drop(probe)));
    }
    let program = PathBuf::from(role.strip_prefix("hidden ")?);
    let dir = program.parent().unwrap();
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    // SAFETY: it is about mounts only, not about file descriptors.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).unwrap();
    mount("none", dir, "tmpfs", MountFlags::empty(), None).unwrap();
    std::fs::copy(EXE, &program).unwrap();
    Some(Box::new(move || {
        let status = std::process::Command::new(program)
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env("PERF_TEST_CHILD", "probed 7")
            .stdout(std::process::Stdio::null())
            .stdin(std::process::Stdio::null())
            .status();
        assert!(status.unwrap().success());
    }))
}

/// A tracefs that can create this kind of probe.
fn needs(t: &Test, kind: ProbeKind) -> Result<Tracefs, Skip> {
    let tracefs = t.tracefs()?;
    if !tracefs.root().join(kind.file()).exists() {
        return Err(t.refused(format!(
            "no {} (CONFIG_{}_EVENTS)",
            kind.file(),
            if kind.is_user() { "UPROBE" } else { "KPROBE" }
        )));
    }
    Ok(tracefs)
}

fn sampler(probe: &Probe) -> Sampler {
    let options = probe.builder().sample_period(1).sample(SampleFlags::RAW | SampleFlags::TID);
    options.open_sampler(Target::ThisThread, 16).unwrap()
}

/// The raw data of the hits of `probe` on this thread, during `work`.
fn hits(probe: &Probe, work: impl FnOnce()) -> Vec<Vec<u8>> {
    let mut sampler = sampler(probe);
    sampler.enable().unwrap();
    work();
    sampler.disable().unwrap();
    let mut all = Vec::new();
    sampler
        .drain_all(|record| {
            if let Record::Sample(sample) = record {
                all.push(sample.raw.unwrap().to_vec());
            }
        })
        .unwrap();
    all
}

fn integers(probe: &Probe, field: &str, hits: &[Vec<u8>]) -> Vec<i64> {
    let field = probe.format().field(field).unwrap_or_else(|| panic!("{field}: {probe:?}"));
    hits.iter().map(|raw| field.i64(raw).unwrap()).collect()
}

fn texts(probe: &Probe, field: &str, hits: &[Vec<u8>]) -> Vec<String> {
    let field = probe.format().field(field).unwrap();
    hits.iter().map(|raw| String::from_utf8_lossy(field.text(raw).unwrap()).into_owned()).collect()
}

/// Waits until a probe whose descriptors are closed is removed. A process that another test starts
/// holds copies of them until its `execve(2)`, so that the removal may need another try.
fn until_gone(tracefs: &Tracefs, event: &str) {
    until("the probe is removed", || {
        probe::retry_removals();
        !exists(tracefs, event)
    });
}

fn exists(tracefs: &Tracefs, event: &str) -> bool {
    let (group, name) = event.split_once(':').unwrap();
    tracefs.root().join("events").join(group).join(name).exists()
}

kernel_tests! {
    fn kprobes_have_typed_arguments_and_strings(t) {
        needs(t, ProbeKind::Kprobe)?;
        let probe = Probe::kprobe("do_sys_openat2")
            .arg("dir", Fetch::arg(1).typed(FetchType::S32))
            .arg("path", Fetch::arg(2).user_string())
            .arg("raw", "+0($arg2):ustring")
            .arg("thread", "$comm")
            .create().unwrap();
        assert_eq!((probe.kind(), probe.interface()), (ProbeKind::Kprobe, ProbeInterface::Tracefs));
        let paths = ["/proc/no such file", "/proc/self/stat_x", "/"];
        let hits = hits(&probe, || for path in paths {
            let _ = std::fs::File::open(path);
        });
        assert_eq!(texts(&probe, "path", &hits), paths);
        assert_eq!(texts(&probe, "raw", &hits), paths);
        assert_eq!(integers(&probe, "dir", &hits), [-100; 3], "AT_FDCWD");
        let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        assert_eq!(texts(&probe, "thread", &hits), [name.trim(); 3]);
    }

    fn kretprobes_have_the_return_value(t) {
        needs(t, ProbeKind::Kretprobe)?;
        let probe = Probe::kretprobe("do_sys_openat2")
            .arg("result", Fetch::return_value().typed(FetchType::S32))
            .max_active(16)
            .create().unwrap();
        let hits = hits(&probe, || {
            let _ = std::fs::File::open("/no such file");
            let _ = std::fs::File::options().write(true).open("/proc");
        });
        assert_eq!(integers(&probe, "result", &hits), [-2, -21], "ENOENT, EISDIR");
        assert!(probe.format().field("__probe_ret_ip").is_some());
    }

    fn kprobes_inside_functions_and_at_addresses_hit(t) {
        needs(t, ProbeKind::Kprobe)?;
        let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap();
        let line = symbols.lines().find_map(|l| l.strip_suffix(" do_sys_openat2")).unwrap();
        let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        let work = || for _ in 0..3 { let _ = std::fs::File::open("/no such file"); };
        for location in [probe::ProbeLocation::from(address), "do_sys_openat2+0".into()] {
            let probe = Probe::kprobe(location.clone()).interface(ProbeInterface::Tracefs).create();
            let probe = probe.unwrap();
            assert_eq!(hits(&probe, work).len(), 3, "{location:?}");
        }
    }

    fn unknown_kernel_symbols_get_near_matches(t) {
        needs(t, ProbeKind::Kprobe)?;
        let error = Probe::kprobe("do_sys_openat3").arg("x", "$arg1").create().unwrap_err();
        let Error::Probe { near, definition, .. } = &error else { panic!("{error}") };
        assert!(near.iter().any(|name| name == "do_sys_openat2"), "{error}");
        assert!(definition.contains(" do_sys_openat3 x=$arg1"), "{error}");
        t.note(near.join(" "));
    }

    fn the_kernels_explanation_of_a_refused_probe_has_its_offset(t) {
        needs(t, ProbeKind::Uprobe)?;
        let builder = Probe::uprobe(EXE, CALLED).name("bad").group("perf_test");
        let error = builder.arg("good", "%sp").arg("bad", "%nosuch:u64").create().unwrap_err();
        let Error::Probe { definition, errno, why, offset, .. } = &error else { panic!("{error}") };
        assert_eq!(*errno, Errno::INVAL);
        assert!(why.is_some(), "{error}");
        assert_eq!(&definition[offset.unwrap() as usize..][..7], "%nosuch", "{error}");
        t.note(why.as_deref().unwrap());
    }

    fn uprobes_by_symbol_have_arguments(t) {
        needs(t, ProbeKind::Uprobe)?;
        let probe = Probe::uprobe(EXE, CALLED)
            .arg("x", Fetch::arg(1))
            .arg("y", Fetch::arg(2).typed(FetchType::S32))
            .arg("text", Fetch::arg(3).user_string())
            .arg("bytes", Fetch::arg(3).field(1).typed(FetchType::U8).array(2))
            .arg("constant", Fetch::constant(7))
            .create().unwrap();
        let hits = hits(&probe, || {
            probed(1 << 40, -5, c"first");
            probed(2, 6, c"second");
        });
        assert_eq!(integers(&probe, "x", &hits), [1 << 40, 2]);
        assert_eq!(integers(&probe, "y", &hits), [-5, 6]);
        assert_eq!(texts(&probe, "text", &hits), ["first", "second"]);
        assert_eq!(integers(&probe, "constant", &hits), [7, 7]);
        let bytes = probe.format().field("bytes").unwrap();
        let bytes: Vec<i64> = bytes.elements(&hits[1]).unwrap().iter().collect();
        assert_eq!(bytes, [i64::from(b'e'), i64::from(b'c')]);
    }

    fn probes_without_the_kernel_count_those_of_user_space(t) {
        let tracefs = needs(t, ProbeKind::Uprobe)?;
        // With an argument, it is a tracepoint.
        let probe = Probe::uprobe(EXE, CALLED).arg("x", "%sp").create().unwrap();
        let (group, name) = probe.event().name().split_once(':').unwrap();
        for event in [probe.event(), &tracefs.event(group, name).unwrap()] {
            assert_eq!(event.without_kernel(), WithoutKernel::Everything);
            let counter = event.builder().exclude_kernel(true).exclude_hv(true);
            let counter = counter.open(Target::ThisThread).unwrap();
            counter.enable().unwrap();
            probed(1, 2, c"");
            assert_eq!(counter.read().unwrap().value, 1);
        }
        needs(t, ProbeKind::Kprobe)?;
        let probe = Probe::kprobe("do_nanosleep").arg("x", "%sp").create();
        let probe = probe.map_err(|error| t.refused(error))?;
        assert_eq!(probe.event().without_kernel(), WithoutKernel::Nothing);
    }

    fn uretprobes_have_the_return_value(t) {
        needs(t, ProbeKind::Uretprobe)?;
        let probe = Probe::uretprobe(EXE, CALLED)
            .arg("sum", Fetch::return_value().typed(FetchType::S32))
            .create().unwrap();
        let hits = hits(&probe, || (0..5).for_each(|i| { probed(i, -2, c""); }));
        assert_eq!(integers(&probe, "sum", &hits), [-2, -1, 0, 1, 2]);
        let error = Probe::uretprobe(EXE, CALLED).arg("x", Fetch::arg(1)).create().unwrap_err();
        assert!(error.to_string().contains("are gone"), "{error}");
    }

    fn hits_and_misses_are_counted(t) {
        needs(t, ProbeKind::Uprobe)?;
        let probe = Probe::uprobe(EXE, CALLED).arg("x", Fetch::arg(1)).create().unwrap();
        let twin = Probe::uprobe(EXE, CALLED).arg("x", Fetch::arg(1)).create().unwrap();
        assert_eq!(hits(&probe, || (0..6).for_each(|i| { probed(i, 0, c""); })).len(), 6);
        let counts = probe.counts().unwrap().unwrap();
        assert_eq!((counts.hits, counts.missed), (6, None));
        assert_eq!(twin.counts().unwrap().unwrap().hits, 0);

        // One call at a time is seen at its return: other threads sleep in it, too.
        needs(t, ProbeKind::Kretprobe)?;
        let probe = Probe::kretprobe("hrtimer_nanosleep").max_active(1).create().unwrap();
        let counter = probe.builder().inherit(true).open(Target::ThisThread).unwrap();
        counter.enable().unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let sleep = || while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            // The probed function.
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(sleep);
            }
            until("a return that was missed", || {
                let counts = probe.counts().unwrap().unwrap();
                counts.missed.unwrap() > 0 && counts.hits > 0
            });
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    fn probes_without_arguments_are_the_pmus(t) {
        t.root()?;
        if perf_monitor::Pmu::open("uprobe").is_err() {
            return Err(t.refused("no PMU uprobe (CONFIG_UPROBE_EVENTS)"));
        }
        for (builder, field) in [
            (Probe::uprobe(EXE, CALLED), "__probe_ip"),
            (Probe::uretprobe(EXE, CALLED), "__probe_func"),
        ] {
            let probe = builder.create().unwrap();
            assert_eq!(probe.interface(), ProbeInterface::Pmu);
            let hits = hits(&probe, || (0..4).for_each(|i| { probed(i, 0, c""); }));
            let address = called as *const () as i64;
            assert_eq!(integers(&probe, field, &hits), [address; 4]);
        }
    }

    fn a_probe_of_a_file_that_was_replaced_is_refused(t) {
        t.root()?;
        if perf_monitor::Pmu::open("uprobe").is_err() {
            return Err(t.refused("no PMU uprobe (CONFIG_UPROBE_EVENTS)"));
        }
        let dir = testkit::directory::Directory::new("perf-probe-");
        let (program, newer) = (dir.join("program"), dir.join("newer"));
        for file in [&program, &newer] {
            std::fs::write(file, [0u8; 64]).unwrap();
        }
        let probe = Probe::uprobe(&program, 16u64).interface(ProbeInterface::Pmu).create().unwrap();
        probe.builder().open(Target::ThisThread).unwrap();
        std::fs::rename(newer, program).unwrap();
        let error = probe.builder().open(Target::ThisThread).unwrap_err();
        assert!(error.to_string().contains("the file was replaced or removed"), "{error}");
    }

    fn unknown_and_ambiguous_functions_are_explained(t) {
        t.root()?;
        let error = Probe::uprobe(EXE, "kernel::probes::callde").create().unwrap_err();
        assert!(error.to_string().contains(&format!("did you mean {CALLED}")), "{error}");
        let error = Probe::uprobe(EXE, format!("{CALLED}+0x100000")).create().unwrap_err();
        assert!(error.to_string().contains("beyond the end of the function"), "{error}");
        let error = Probe::uprobe("/proc/self/stat", CALLED).create().unwrap_err();
        assert!(matches!(error, Error::Elf { .. }), "{error}");
        let error = Probe::uprobe("/no such file", CALLED).create().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOENT), "{error}");
    }

    fn probes_are_listed_and_removed_when_dropped(t) {
        let tracefs = needs(t, ProbeKind::Uprobe)?;
        let probe = Probe::uprobe(EXE, CALLED).arg("x", Fetch::arg(1)).create().unwrap();
        let again = Probe::uprobe(EXE, CALLED).arg("x", Fetch::arg(1)).create().unwrap();
        let event = probe.event().to_string();
        assert_ne!(event, again.event().to_string());
        assert!(event.starts_with(&format!("triscope_{}_", std::process::id())), "{event}");
        let (group, name) = event.split_once(':').unwrap();
        let is_it = |p: &ProbeDefinition| p.group == group && p.name == name;
        let listed = probe::list(&tracefs).unwrap().into_iter().find(is_it).unwrap();
        assert_eq!(listed.kind, ProbeKind::Uprobe);
        assert_eq!(listed.arguments[0].0, "x");
        drop(probe);
        assert!(!exists(&tracefs, &event) && exists(&tracefs, &again.event().to_string()));
        again.remove().unwrap();
        assert!(!probe::list(&tracefs).unwrap().iter().any(is_it));
        let error = probe::delete(&tracefs, &listed).unwrap_err();
        assert!(matches!(error, Error::UnknownEvent { .. }), "{error}");
    }

    fn probes_are_registered_in_a_monitor(t) {
        let tracefs = needs(t, ProbeKind::Uprobe)?;
        let monitor = EventMonitor::builder().thread(0).pages(64).build().unwrap();
        let uint = |field: &'static str| move |format: Option<&TracepointFormat>| {
            let field = format.and_then(|f| f.field(field)).cloned().unwrap();
            Ok(move |sample: &SampleView<'_>| Ok(sample.u64(&field)))
        };
        let at = Probe::uprobe(EXE, CALLED).arg("x", Fetch::arg(1));
        let at = monitor.register(Registration::probe(at).filter("x < 3").decoder_of(uint("x")));
        let back = Probe::uretprobe(EXE, CALLED)
            .arg("sum", Fetch::return_value().typed(FetchType::U32)).create().unwrap();
        let name = back.event().to_string();
        let back = monitor.register(Registration::event(back).decoder_of(uint("sum"))).unwrap();
        let at = at.unwrap();
        assert_eq!(monitor.registered_event_type(at), Some(EventType::Uprobe));
        assert_eq!(monitor.name(back).as_deref(), Some(&*name));
        let mut seen = Vec::new();
        while_running(&monitor, |sample| {
            seen.push((sample.event == Some(at), sample.value.unwrap()));
        }, || (0..5).for_each(|i| { probed(i, 10, c""); }));
        // In time order; the kernel filtered the calls.
        let calls = [(true, 0), (false, 10), (true, 1), (false, 11), (true, 2), (false, 12),
            (false, 13), (false, 14)];
        assert_eq!(seen, calls);
        assert!(exists(&tracefs, &name));
        monitor.unregister(back).unwrap();
        until_gone(&tracefs, &name);
        let name = monitor.name(at).unwrap();
        assert!(exists(&tracefs, &name));
        monitor.close();
        until_gone(&tracefs, &name);
    }

    fn a_probe_in_use_is_removed_later(t) {
        let tracefs = needs(t, ProbeKind::Uprobe)?;
        let create = || Probe::uprobe(EXE, CALLED).arg("x", Fetch::arg(1)).create().unwrap();
        let probe = create();
        let event = probe.event().to_string();
        let sampler = sampler(&probe);
        let error = probe.remove().unwrap_err();
        assert!(matches!(&error, Error::ProbeBusy { name } if *name == event), "{error}");
        assert!(probe::retry_removals() > 0); // other tests may have such probes too
        assert!(exists(&tracefs, &event));
        drop(sampler);
        // The next probe does it, too.
        until("the probe is removed", || {
            drop(create());
            !exists(&tracefs, &event)
        });
    }

    fn a_name_that_exists_is_refused(t) {
        let tracefs = needs(t, ProbeKind::Uprobe)?;
        let group = format!("perf_test_{}", std::process::id());
        let builder = Probe::uprobe(EXE, CALLED).group(&group).name("twice").arg("x", Fetch::arg(1));
        let first = builder.create().unwrap();
        assert_eq!(first.event().to_string(), format!("{group}:twice"));
        let error = builder.create().unwrap_err();
        assert!(matches!(&error, Error::ProbeExists { name } if name.ends_with(":twice")), "{error}");
        assert!(exists(&tracefs, &format!("{group}:twice")), "the first is untouched");
        // Kept, it is removed by hand.
        let event = first.keep();
        let left = probe::list(&tracefs).unwrap();
        let left = left.iter().find(|p| p.group == group).unwrap();
        assert_eq!(event.to_string(), format!("{}:{}", left.group, left.name));
        probe::delete(&tracefs, left).unwrap();
        assert!(!exists(&tracefs, &event.to_string()));
    }

    fn probes_of_killed_processes_are_swept_and_no_others(t) {
        let tracefs = needs(t, ProbeKind::Uprobe)?;
        let owned = |pid: u32| {
            let groups = tracefs.systems().unwrap();
            groups.into_iter().filter(|g| g.starts_with(&format!("triscope_{pid}_"))).collect::<Vec<_>>()
        };
        // One that a test left which was killed.
        let left = probe::list(&tracefs).unwrap();
        if let Some(left) = left.iter().find(|p| p.group == "triscope_1_1") {
            probe::delete(&tracefs, left).unwrap();
        }
        let foreign = Probe::uprobe(EXE, CALLED).group("triscope_1_1").name("x").arg("x", "%sp");
        let foreign = foreign.create().unwrap();
        let (killed, alive) = (TestChild::start("owns a probe"), TestChild::start("owns a probe"));
        let (dead, living) = (killed.pid(), alive.pid());
        assert_eq!((owned(dead).len(), owned(living).len()), (1, 1));
        killed.kill();
        assert_eq!(owned(dead).len(), 1, "it outlives its process");
        // The first probe of another process removes it.
        TestChild::start("owns a probe").go();
        assert_eq!((owned(dead).len(), owned(living).len()), (0, 1));
        assert!(exists(&tracefs, "triscope_1_1:x"));
        // So does a call.
        let second = TestChild::start("owns a probe");
        let dead = second.pid();
        second.kill();
        let swept = probe::sweep(&tracefs).unwrap();
        // Others may have left some, too.
        let of_dead = format!("triscope_{dead}_");
        let removed = swept.removed.iter().filter(|name| name.starts_with(&of_dead));
        assert_eq!(removed.count(), 1, "{swept:?}");
        assert!(!swept.busy.iter().any(|name| name.starts_with(&of_dead)), "{swept:?}");
        assert_eq!(owned(living).len(), 1);
        alive.go();
        assert_eq!(owned(living).len(), 0, "removed at its end");
        drop(foreign);
    }

    fn a_file_of_another_mount_namespace_is_probed(t) {
        needs(t, ProbeKind::Uprobe)?;
        // White space in the name, which the kernel's syntax cannot express.
        let dir = testkit::directory::Directory::new("perf probe ");
        let program = dir.join("the program");
        let child = TestChild::start(&format!("hidden {}", program.display()));
        assert!(!program.exists());
        let error = Probe::uprobe(&program, CALLED).arg("x", Fetch::arg(1)).create().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::NOENT), "{error}");
        let builder = Probe::uprobe(&program, CALLED).in_process(child.tid);
        let error = builder.clone().interface(ProbeInterface::Pmu).create().unwrap_err();
        assert!(error.to_string().contains("need tracefs"), "{error}");
        let probe = builder.arg("text", Fetch::arg(3).user_string()).create().unwrap();
        let open = |cpu| {
            let options = probe.builder().sample_period(1).sample(SampleFlags::RAW);
            options.open_sampler(Target::Cpu(cpu), 16).unwrap()
        };
        let mut samplers: Vec<Sampler> =
            perf_monitor::online_cpus().into_iter().map(open).collect();
        samplers.iter().for_each(|s| s.enable().unwrap());
        child.go();
        let mut hits = Vec::new();
        for sampler in &mut samplers {
            sampler.finish_all(|record| if let Record::Sample(s) = record {
                hits.push(s.raw.unwrap().to_vec());
            }).unwrap();
        }
        assert_eq!(texts(&probe, "text", &hits), ["in a child"; 7]);
        drop(samplers);
        drop(probe);
        std::fs::remove_dir(dir.path()).unwrap(); // it is empty
    }

    fn a_kept_probe_of_a_process_names_its_file(t) {
        let tracefs = needs(t, ProbeKind::Uprobe)?;
        let dir = testkit::directory::Directory::new("perf-kept-");
        let program = dir.join("program");
        let child = TestChild::start(&format!("hidden {}", program.display()));
        let own = std::env::current_exe().unwrap();
        let group = format!("perf_kept_{}", std::process::id());
        for (file, pid, name) in [
            (&program, child.tid, format!("/proc/{}/root{}", child.tid, program.display())),
            // In the mount namespace of this process.
            (&own, std::process::id(), own.display().to_string()),
        ] {
            let builder = Probe::uprobe(file, CALLED).in_process(pid).group(&group).name("kept");
            builder.create().unwrap().keep();
            let kept = probe::list(&tracefs).unwrap();
            let kept = kept.iter().find(|p| p.group == group).unwrap();
            probe::delete(&tracefs, kept).unwrap();
            assert!(kept.location.starts_with(&format!("{name}:0x")), "{}", kept.location);
        }
        child.kill();
        std::fs::remove_dir(dir.path()).unwrap(); // it is empty
    }

    fn usdt_probes_have_arguments_and_a_semaphore(t) {
        needs(t, ProbeKind::Uprobe)?;
        let probe = Probe::usdt(EXE, "perf_test", "hit")
            .arg("number", Fetch::arg(1))
            .arg("text", Fetch::arg(2).user_string())
            .create().unwrap();
        assert_eq!(usdt::semaphore(), 0);
        let mut sampler = sampler(&probe);
        sampler.enable().unwrap();
        // Once for each place, and for each mapping.
        assert!(usdt::semaphore() > 0);
        usdt::hit_here(-3, c"one");
        usdt::hit_there(4, c"two");
        sampler.disable().unwrap();
        let mut hits = Vec::new();
        sampler.drain_all(|record| if let Record::Sample(s) = record {
            hits.push(s.raw.unwrap().to_vec());
        }).unwrap();
        drop(sampler);
        assert_eq!(integers(&probe, "number", &hits), [-3, 4]);
        assert_eq!(texts(&probe, "text", &hits), ["one", "two"]);
        drop(probe);
        until("the semaphore is released", || usdt::semaphore() == 0);
        let error = Probe::usdt(EXE, "perf_test", "hti").create().unwrap_err();
        assert!(error.to_string().contains("did you mean perf_test:hit?"), "{error}");
        let error = Probe::usdt(EXE, "perf_test", "hit").arg("x", Fetch::arg(3)).create();
        assert!(matches!(error, Err(Error::UsdtArgument { argument: 3, .. })), "{error:?}");
    }

    fn probes_need_a_writable_tracefs(t) {
        needs(t, ProbeKind::Uprobe)?;
        as_nobody(|| {
            let builder = Probe::uprobe(EXE, 0x1000).arg("x", "%sp");
            let error = builder.create().unwrap_err();
            assert!(matches!(error, Error::File { .. } | Error::NoTracefs), "{error}");
        });
    }
}

/// A USDT probe at two places, as the macros of `sys/sdt.h` write it.
mod usdt {
    use std::ffi::CStr;

    /// The kernel counts it up in this process.
    #[unsafe(link_section = ".probes")]
    static SEMAPHORE: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);

    pub(super) fn semaphore() -> u16 {
        SEMAPHORE.load(std::sync::atomic::Ordering::SeqCst)
    }

    macro_rules! probe {
        ($number:expr, $text:expr, $operands:literal $(, $syntax:ident)?) => {
            // SAFETY: the instruction does nothing; the rest is in other sections.
            unsafe {
                std::arch::asm!(
                    "990: nop",
                    ".pushsection .note.stapsdt,\"\",%note",
                    ".balign 4",
                    ".4byte 992f-991f, 994f-993f, 3",
                    "991: .asciz \"stapsdt\"",
                    "992: .balign 4",
                    "993: .8byte 990b",
                    ".8byte _.stapsdt.base",
                    ".8byte {semaphore}",
                    ".asciz \"perf_test\"",
                    ".asciz \"hit\"",
                    $operands,
                    "994: .balign 4",
                    ".popsection",
                    ".ifndef _.stapsdt.base",
                    ".pushsection .stapsdt.base,\"aG\",%progbits,.stapsdt.base,comdat",
                    ".weak _.stapsdt.base",
                    ".hidden _.stapsdt.base",
                    "_.stapsdt.base: .space 1",
                    ".popsection",
                    ".endif",
                    number = in(reg) $number,
                    text = in(reg) $text,
                    semaphore = sym SEMAPHORE,
                    options(readonly, nostack, preserves_flags $(, $syntax)?)
                );
            }
        };
    }

    #[cfg(target_arch = "x86_64")]
    macro_rules! hit {
        ($number:expr, $text:expr) => {
            probe!($number, $text, ".asciz \"-4@{number:e} 8@{text}\"", att_syntax)
        };
    }

    #[cfg(target_arch = "aarch64")]
    macro_rules! hit {
        ($number:expr, $text:expr) => {
            probe!($number, $text, ".asciz \"-4@{number:w} 8@{text}\"")
        };
    }

    #[inline(never)]
    pub(super) fn hit_here(number: i32, text: &CStr) {
        hit!(number, text.as_ptr());
    }

    #[inline(never)]
    pub(super) fn hit_there(number: i32, text: &CStr) {
        let (number, text) = (std::hint::black_box(number), std::hint::black_box(text).as_ptr());
        hit!(number, text);
    }
}
