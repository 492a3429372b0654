use crate::kernel_tests;
use crate::support::{GETPPID, ReadAll, TestChild, getppid, on_cpu_0, until};
use perf_monitor::{Error, Event, FieldKind, FieldValue, Record, SampleFlags, Target};

#[inline(never)]
extern "C" fn probed(x: u64) -> u64 {
    std::hint::black_box(x.wrapping_mul(3))
}

/// This program's file and the offset of [`probed`] in it.
fn probed_offset() -> (std::path::PathBuf, u64) {
    let address = probed as *const () as u64;
    let exe = std::fs::read_link("/proc/self/exe").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines() {
        let mut parts = line.split_whitespace();
        let (start, end) = parts.next().unwrap().split_once('-').unwrap();
        let hex = |s: &str| u64::from_str_radix(s, 16).unwrap();
        let offset = hex(parts.nth(1).unwrap());
        if (hex(start)..hex(end)).contains(&address) {
            return (exe, address - hex(start) + offset);
        }
    }
    panic!("not mapped")
}

kernel_tests! {
    fn every_format_file_of_the_kernel_parses(t) {
        let (mut fields, mut data_loc, mut rel_loc, mut arrays) = (0, 0, 0, 0);
        let formats = t.formats()?;
        for (name, format) in formats {
            let (system, event) = name.split_once(':').unwrap();
            assert_eq!(format.name(), event, "{name}");
            fields += format.fields().len();
            for field in format.fields() {
                match field.kind() {
                    FieldKind::DataLoc { .. } => data_loc += 1,
                    FieldKind::RelLoc { .. } => rel_loc += 1,
                    FieldKind::Array { .. } => arrays += 1,
                    _ => {}
                }
            }
            if system != "ftrace" {
                assert_eq!(format.common_fields().len(), 4, "{name}");
            }
        }
        let events = formats.len();
        t.note(format!("{events} events, {fields} fields: {data_loc} data_loc, {rel_loc} rel_loc, {arrays} arrays"));
        assert!(events > 300 && data_loc > 20 && arrays > 20);
    }

    fn fields_of_a_system_call_are_typed(t) {
        let tracefs = t.tracefs()?;
        let format = tracefs.format("raw_syscalls", "sys_enter").unwrap();
        let (id, args) = (format.field("id").unwrap(), format.field("args").unwrap());
        let pid = format.field("common_pid").unwrap();
        let event = Event::tracepoint("raw_syscalls", "sys_enter").unwrap();
        assert_eq!(event.as_tracepoint(), Some(format.id()));
        let mut sampler = event
            .builder().sample_period(1).sample(SampleFlags::TID | SampleFlags::RAW)
            .open_sampler(Target::ThisThread, 8).unwrap();
        sampler.counter().enable().unwrap();
        // An invalid descriptor, so that the arguments are known and nothing happens.
        let fake = 0x1234_5678;
        // SAFETY: nothing owns the number, and the kernel refuses it.
        let _ = rustix::io::read(unsafe { rustix::fd::BorrowedFd::borrow_raw(fake) }, &mut [0u8; 77]);
        getppid(1);
        sampler.counter().disable().unwrap();
        let mut seen = Vec::new();
        let (mut batch, decoder) = sampler.batch();
        while let Some(record) = batch.next_record() {
            let raw = decoder.layout(record).unwrap().raw_data(record).unwrap();
            assert_eq!(pid.i64(raw), Some(i64::from(rustix::thread::gettid().as_raw_nonzero().get())));
            let args: Vec<i64> = args.elements(raw).unwrap().iter().collect();
            assert_eq!(args.len(), 6);
            seen.push((id.u64(raw).unwrap(), args[0], args[2]));
        }
        let read = if cfg!(target_arch = "x86_64") { 0 } else { 63 };
        assert!(seen.contains(&(read, i64::from(fake), 77)), "{seen:?}");
        assert!(seen.iter().any(|(id, ..)| *id == GETPPID));
    }

    fn strings_at_data_locations_are_read(t) {
        let tracefs = t.tracefs()?;
        let format = tracefs.format("sched", "sched_process_exec").unwrap();
        let filename = format.field("filename").unwrap();
        assert!(matches!(filename.kind(), FieldKind::DataLoc { element: 1 }), "{filename:?}");
        let mut sampler = Event::tracepoint("sched", "sched_process_exec").unwrap()
            .builder().sample_period(1).inherit(true).sample(SampleFlags::RAW)
            .open_sampler(Target::ThreadOnCpu { tid: 0, cpu: 0 }, 8).unwrap();
        sampler.counter().enable().unwrap();
        // On the one CPU that the ring is for.
        on_cpu_0(|| TestChild::start("getppid 1").go());
        let mut names = Vec::new();
        sampler.drain_all(|record| if let Record::Sample(s) = record {
            if let Some(FieldValue::Text(text)) = filename.value(s.raw.unwrap()) {
                names.push(String::from_utf8_lossy(text).into_owned());
            }
        }).unwrap();
        assert_eq!(names, ["/proc/self/exe"]);
    }

    fn fields_at_relative_offsets_are_read(t) {
        let tracefs = t.tracefs()?;
        // No event of these kernels has such fields: a module of our own has.
        t.module()?;
        let module = std::fs::File::open("/modules/rel_loc.ko").unwrap();
        rustix::system::finit_module(&module, c"", 0).unwrap();
        let format = tracefs.format("rel_loc", "fired").unwrap();
        let field = |name| format.field(name).unwrap();
        let (count, text, words, last) = (field("count"), field("text"), field("words"), field("last"));
        assert!(matches!(text.kind(), FieldKind::RelLoc { element: 1 }), "{text:?}");
        assert!(matches!(words.kind(), FieldKind::RelLoc { element: 2 }), "{words:?}");
        let mut sampler = Event::tracepoint("rel_loc", "fired").unwrap()
            .builder().sample_period(1).sample(SampleFlags::RAW)
            .open_sampler(Target::ThisThread, 8).unwrap();
        sampler.counter().enable().unwrap();
        let texts = ["hello", "x", "a somewhat longer text"];
        for text in texts {
            std::fs::write("/sys/module/rel_loc/parameters/fire", text).unwrap();
        }
        sampler.counter().disable().unwrap();
        let mut seen = Vec::new();
        sampler.drain_all(|record| if let Record::Sample(s) = record {
            let raw = s.raw.unwrap();
            assert_eq!(last.i64(raw), Some(-1), "the field behind both");
            let Some(FieldValue::Text(text)) = text.value(raw) else { panic!("no text") };
            let text = std::str::from_utf8(text).unwrap().to_owned();
            assert_eq!(count.u64(raw), Some(text.len() as u64));
            let words: Vec<i64> = words.elements(raw).unwrap().iter().collect();
            assert_eq!(words, (1000..1000 + text.len() as i64).collect::<Vec<_>>());
            seen.push(text);
        }).unwrap();
        assert_eq!(seen, texts);
        t.note(format!("{} texts and arrays", seen.len()));
        drop(sampler);
        rustix::system::delete_module(c"rel_loc", 0).unwrap();
    }

    fn names_of_threads_are_in_switches(t) {
        let tracefs = t.tracefs()?;
        let format = tracefs.format("sched", "sched_switch").unwrap();
        let (comm, prev) = (format.field("prev_comm").unwrap(), format.field("prev_pid").unwrap());
        let mut sampler = Event::tracepoint("sched", "sched_switch").unwrap()
            .builder().sample_period(1).sample(SampleFlags::TID | SampleFlags::RAW)
            .open_sampler(Target::ThisThread, 8).unwrap();
        rustix::thread::set_name(c"perf-test-name").unwrap();
        sampler.counter().enable().unwrap();
        let tid = i64::from(rustix::thread::gettid().as_raw_nonzero().get());
        let mut seen = 0;
        until("a switch away from this thread", || {
            std::thread::sleep(std::time::Duration::from_millis(2)); // a switch away
            sampler.drain_all(|record| if let Record::Sample(s) = record {
                let raw = s.raw.unwrap();
                if prev.i64(raw) == Some(tid) {
                    assert_eq!(comm.text(raw), Some(&b"perf-test-name"[..]));
                    seen += 1;
                }
            }).unwrap();
            seen > 0
        });
    }

    fn bad_filters_are_refused_with_the_fields(t) {
        t.tracefs()?;
        let event = Event::tracepoint("raw_syscalls", "sys_enter").unwrap();
        let counter = event.builder().open(Target::ThisThread).unwrap();
        let error = counter.set_filter("nosuch == 1").unwrap_err();
        assert!(matches!(error, Error::Filter { .. }), "{error}");
        assert!(error.to_string().contains("the fields are id, args"), "{error}");
        // An event with a modifier is the same tracepoint.
        let of_kernel = Event::parse("raw_syscalls:sys_enter:k").unwrap();
        let of_kernel = of_kernel.builder().open(Target::ThisThread).unwrap();
        let error = of_kernel.set_filter("nosuch == 1").unwrap_err();
        assert!(error.to_string().contains("the fields are id, args"), "{error}");
        assert!(counter.set_filter("id ==").is_err());
        assert!(counter.set_filter("a\0b").is_err());
        let clock = Event::parse("cpu-clock").unwrap().builder().open(Target::ThisThread).unwrap();
        let error = clock.set_filter("id == 1").unwrap_err();
        assert!(error.to_string().contains("only tracepoints"), "{error}");
    }

    fn unknown_tracepoints_get_near_matches(t) {
        t.tracefs()?;
        let error = Event::parse("sched:sched_swich").unwrap_err().to_string();
        assert!(error.contains("did you mean sched:sched_switch"), "{error}");
        let error = Event::parse("shed:sched_switch").unwrap_err().to_string();
        assert!(error.contains("sched:sched_switch"), "{error}");
    }

    fn kprobes_by_pmu_count(t) {
        t.root()?;
        if perf_monitor::Pmu::open("kprobe").is_err() {
            return Err(t.refused("no PMU kprobe (CONFIG_KPROBE_EVENTS)"));
        }
        let open = |n: usize| (0..n).for_each(|_| drop(std::fs::File::open("/proc/self/stat_x")));
        let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap();
        let address = symbols.lines().find_map(|l| l.strip_suffix(" do_sys_openat2")).unwrap();
        let address = u64::from_str_radix(address.split(' ').next().unwrap(), 16).unwrap();
        for event in [
            Event::kprobe("do_sys_openat2", 0),
            Event::kretprobe("do_sys_openat2"),
            Event::kprobe_address(address),
        ] {
            let event = event.unwrap();
            let counter = event.builder().open(Target::ThisThread).unwrap();
            counter.enable().unwrap();
            open(5);
            counter.disable().unwrap();
            assert_eq!(counter.read().unwrap().value, 5, "{event}");
        }
        let error = Event::kprobe("no_such_function_at_all", 0).unwrap()
            .builder().open(Target::ThisThread).unwrap_err();
        assert_eq!(error.reason(), Some(&perf_monitor::OpenErrorReason::NoSuchProbePoint), "{error}");
    }

    fn uprobes_by_pmu_count(t) {
        t.root()?;
        let (file, offset) = probed_offset();
        for event in [Event::uprobe(&file, offset), Event::uretprobe(&file, offset)] {
            let event = event.unwrap();
            let counter = event.builder().open(Target::ThisThread).unwrap();
            counter.enable().unwrap();
            (0..9).for_each(|i| { probed(i); });
            counter.disable().unwrap();
            assert_eq!(counter.read().unwrap().value, 9, "{event}");
        }
    }
}
