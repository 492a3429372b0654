//! Events on all CPUs, in time order and accounted for.

use crate::cgroups::{Cgroup, V2};
use crate::kernel_tests;
use crate::support::{GETPPID, TestChild, as_user, getppid, on_cpu, on_cpu_0, until};
use perf_monitor::{
    Error, Event, EventBuilder, KernelVersion, Record, RingSet, SampleFlags, SetEvent, SetRecord,
    Software, online_cpus,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use trace_common::{Timestamp, stat_field};

/// System calls of any process, with their number.
pub(crate) fn system_calls(t: &crate::support::Test) -> Result<EventBuilder, crate::support::Skip> {
    let event = t.tracefs()?.event("raw_syscalls", "sys_enter").unwrap();
    Ok(event
        .builder()
        .sample_period(1)
        .sample(SampleFlags::TID | SampleFlags::CPU | SampleFlags::RAW))
}

/// Calls `getppid` on every CPU at the same time until `f` returns. One CPU pauses now and then.
pub(crate) fn while_all_cpus_call<R>(f: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for cpu in online_cpus() {
            let stop = &stop;
            scope.spawn(move || {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu as usize);
                rustix::thread::sched_setaffinity(None, &set).unwrap();
                let mut calls = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    getppid(7);
                    calls += 7;
                    if cpu % 2 == 1 {
                        (0..calls % 997).for_each(|i| _ = std::hint::black_box(i));
                    }
                }
            });
        }
        // Also if `f` panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        f()
    })
}

/// An independent check of order and lateness.
#[derive(Default)]
pub(crate) struct OrderCheck {
    newest: Option<Timestamp>,
    pub(crate) records: u64,
    pub(crate) late: u64,
    pub(crate) latest_by: i64,
}

impl OrderCheck {
    pub(crate) fn record(&mut self, time: Timestamp, late: bool) {
        let by = self.newest.map_or(0, |newest| newest.nanos() - time.nanos());
        assert_eq!(late, by > 0, "{time:?} after {:?}", self.newest);
        self.records += 1;
        self.late += u64::from(by > 0);
        self.latest_by = self.latest_by.max(by);
        self.newest = self.newest.max(Some(time));
    }
}

/// Every sample was delivered or lost. Some kernels (6.18 is one) neither write nor count as lost the
/// sample that a CPU takes while its event is being disabled: at most one for each CPU and disabling.
#[track_caller]
pub(crate) fn assert_accounted(count: u64, passed: u64, lost: Option<u64>, disablings: u64) {
    let known = passed + lost.unwrap_or(0);
    assert!(known <= count, "{known} of {count}");
    // Kernels before 6.0 do not count the losses of an event.
    if lost.is_some() {
        let most = disablings * online_cpus().len() as u64;
        assert!(count - known <= most, "{known} of {count}, at most {most} may be missing");
    }
}

/// Fails with what is wrong.
fn ok(_: SetRecord<'_>) -> Result<(), Error> {
    Ok(())
}

kernel_tests! {
    fn chunks_are_the_bytes_of_the_decoded_records(t) {
        let event = system_calls(t)?;
        for pages in [1, 16] {
            let mut set = RingSet::builder().pages(pages).thread(0).open().unwrap();
            let calls = set.add(&event).unwrap();
            set.set_filter(calls, &format!("id == {GETPPID}")).unwrap();
            set.enable_event(calls).unwrap();
            let (mut chunks, mut wraps, mut split, mut samples) = (0, 0, 0, 0);
            // Other numbers of records in each round: they wrap at all positions of the ring.
            for round in 0..400 {
                getppid(1 + round % 29);
                // After an error, the same bytes are there again.
                let mut bytes = BTreeMap::<u32, Vec<u8>>::new();
                let mut in_chunks = Vec::new();
                let result = set.read_chunks(|chunk| {
                    let [front, back] = chunk.records.slices();
                    bytes.entry(chunk.cpu).or_default().extend([front, back].concat());
                    in_chunks.extend(chunk.records.records().map(|r| r.bytes().to_vec()));
                    assert_eq!(chunk.records.record_count(), in_chunks.len() as u64);
                    chunks += 1;
                    wraps += usize::from(!back.is_empty());
                    split += usize::from(chunk.records.records().last().is_some_and(|r| {
                        r.bytes().len() > back.len() && !back.is_empty()
                    }));
                    Err(())
                });
                assert_eq!(result, Err(()), "this thread called: there is one chunk at least");
                let mut decoded = BTreeMap::<u32, Vec<u8>>::new();
                let mut records = Vec::new();
                set.read_unordered(|record| -> Result<(), Error> {
                    record.layout.decode(record.raw)?;
                    samples += u64::from(record.event == calls);
                    decoded.entry(record.cpu).or_default().extend(record.raw.bytes());
                    records.push((record.cpu, record.raw.bytes().to_vec()));
                    Ok(())
                }).unwrap();
                // The error was at the first ring with records.
                let (cpu, bytes) = bytes.pop_first().unwrap();
                assert_eq!(Some(&bytes), decoded.get(&cpu));
                let of_cpu = records.into_iter().filter(|r| r.0 == cpu).map(|r| r.1);
                assert_eq!(in_chunks, of_cpu.collect::<Vec<_>>());
            }
            let stats = set.stats();
            assert!(chunks >= 400 && wraps > 0, "{chunks} chunks, {wraps} wrap");
            t.note(format!("{pages} pages: {wraps} of {chunks} chunks wrap, {split} in a record"));
            assert_eq!(stats.rings.samples, samples);

            // Read as chunks, every call is accounted for.
            let (mut count, mut size) = (0, 0);
            for round in 0..200 {
                getppid(1 + round % 17);
                size += set.read_chunks(|chunk| {
                    count += chunk.records.sample_count();
                    let first = chunk.records.first_sample().map(|sample| sample.offset());
                    let last = chunk.records.last_sample().map(|sample| sample.offset());
                    assert!(first <= last);
                    Ok::<(), Error>(())
                }).unwrap();
            }
            set.disable().unwrap();
            size += set.read_chunks(|chunk| {
                count += chunk.records.sample_count();
                Ok::<(), Error>(())
            }).unwrap();
            set.count_losses().unwrap();
            let after = set.stats();
            assert_eq!(after.rings.samples - stats.rings.samples, count);
            assert_eq!(after.rings.bytes - stats.rings.bytes, size);
            assert_eq!((after.rings.corrupt_bytes, after.rings.unknown_ids), (0, 0));
            let counts = set.counts(calls).unwrap();
            assert_accounted(counts.count, samples + count, counts.lost, 1);
        }
    }

    fn a_reader_has_the_requested_time_slice(t) {
        let slice = || {
            let text = std::fs::read_to_string("/proc/thread-self/sched").unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with("se.slice "))?;
            line.rsplit(' ').next()?.parse::<u64>().ok()
        };
        let policy = || {
            let stat = std::fs::read("/proc/thread-self/stat").unwrap();
            [18, 19].map(|number| stat_field(&stat, number).unwrap().to_owned())
        };
        let before = policy();
        perf_monitor::set_time_slice(Duration::from_micros(200)).unwrap();
        assert_eq!(policy(), before, "priority and niceness stay");
        if KernelVersion::current() < KernelVersion(6, 12) || slice().is_none() {
            t.lacks("time slices of threads (Linux 6.12) in /proc/PID/sched");
            return Ok(());
        }
        assert_eq!(slice(), Some(200_000));
        // The kernel has a minimum.
        perf_monitor::set_time_slice(Duration::from_nanos(1)).unwrap();
        assert_eq!(slice(), Some(100_000));
    }

    fn sets_order_and_account_for_all_cpus(t) {
        let event = system_calls(t)?;
        // So small that records are lost, so large that many are not.
        let mut set = RingSet::builder().pages(64).open().unwrap();
        assert_eq!(set.cpus().collect::<Vec<_>>(), online_cpus());
        let calls = set.add(&event).unwrap();
        set.set_filter(calls, &format!("id == {GETPPID}")).unwrap();
        set.enable_event(calls).unwrap();
        // Many rings' worth, also where emulated CPUs are slow.
        let enough = online_cpus().len() as u64 * if t.is_guest() { 20_000 } else { 200_000 };
        let (mut order, mut samples) = (OrderCheck::default(), BTreeMap::<u32, u64>::new());
        let mut check = |record: SetRecord<'_>| -> Result<(), Error> {
            order.record(record.time, record.late);
            match record.layout.decode(record.raw)? {
                Record::Sample(sample) => {
                    assert_eq!((record.event, sample.cpu), (calls, Some(record.cpu)));
                    assert_eq!(sample.time, Some(record.time));
                    *samples.entry(record.cpu).or_default() += 1;
                }
                Record::Lost(_) => {}
                other => panic!("{other:?}"),
            }
            Ok(())
        };
        while_all_cpus_call(|| {
            let mut rounds = 0;
            until("enough records", || {
                // Some rounds come late.
                if rounds % 10 == 9 {
                    set.wait(Some(Duration::from_millis(5))).unwrap();
                }
                rounds += 1;
                set.round(&mut check).unwrap();
                set.stats().rings.samples > enough
            });
        });
        let stats = set.finish(&mut check).unwrap();
        assert!(!set.has_pending());
        assert_eq!((stats.late, stats.latest_by_nanos), (order.late, order.latest_by));
        assert_eq!(samples.len(), online_cpus().len(), "{samples:?}");
        let counts = set.counts(calls).unwrap();
        assert_eq!(counts.delivered, samples.values().sum::<u64>());
        assert_eq!(stats.rings.samples, counts.delivered);
        assert_eq!((stats.rings.unknown_ids, stats.undecodable), (0, 0));
        assert_accounted(counts.count, counts.delivered, counts.lost, 1);
        match counts.lost {
            Some(lost) => assert_eq!(lost, stats.rings.lost),
            None => t.lacks("losses are known by ring only"),
        }
        t.note(format!("{} samples, {} lost, {} late by at most {} ns, {} inversions",
            counts.delivered, stats.rings.lost, stats.late, stats.latest_by_nanos, stats.inversions));
    }

    fn events_come_and_go_while_a_set_is_read(t) {
        let event = system_calls(t)?;
        let rounds = if t.is_guest() { 30 } else { 60 };
        let filter = format!("id == {GETPPID}");
        let mut set = RingSet::builder().pages(64).slack(Duration::from_millis(1)).open().unwrap();
        let mut seen = BTreeMap::<SetEvent, u64>::new();
        let (mut kernel, mut lost) = (0, Some(0));
        let mut check = |record: SetRecord<'_>| -> Result<(), Error> {
            if let Record::Sample(_) = record.layout.decode(record.raw)? {
                *seen.entry(record.event).or_default() += 1;
            }
            Ok(())
        };
        while_all_cpus_call(|| {
            let mut open = Vec::new();
            for round in 0..rounds {
                let added = set.add(&event).unwrap();
                set.set_filter(added, &filter).unwrap();
                set.enable_event(added).unwrap();
                open.push(added);
                set.round(&mut check).unwrap();
                if round % 3 != 0 {
                    let removed = set.remove(open.remove(round % open.len())).unwrap();
                    kernel += removed.count;
                    lost = lost.zip(removed.lost).map(|(a, b)| a + b);
                }
            }
            assert_eq!(open.len(), rounds / 3);
        });
        let stats = set.finish(&mut check).unwrap();
        assert_eq!(stats.rings.unknown_ids, 0);
        let removed = set.removed_counts();
        assert_eq!((removed.count, removed.lost), (kernel, lost));
        let mut delivered = removed.delivered;
        for (&event, &samples) in &seen {
            let Ok(counts) = set.counts(event) else { continue };
            assert_eq!(counts.delivered, samples);
            assert_accounted(counts.count, samples, counts.lost, 1);
            delivered += samples;
        }
        assert_eq!(delivered, seen.values().sum::<u64>());
        assert_eq!((delivered, 0, 0), (stats.rings.samples, stats.undecodable, stats.rings.corrupt_bytes));
        assert_accounted(removed.count, removed.delivered, removed.lost, rounds as u64 * 2 / 3);
        t.note(format!("{} samples of {} events, {:?} lost of removed ones", delivered, seen.len(), removed.lost));
    }

    fn sets_follow_threads_to_their_end(t) {
        // Unprivileged where `perf_event_paranoid` permits it.
        let child = TestChild::start("tree 1000");
        let sideband = Event::software(Software::Dummy).builder()
            .task(true).comm(true).inherit(true).exclude_kernel(true).exclude_hv(true)
            .sample(SampleFlags::TID);
        let mut set = RingSet::builder().thread(child.tid).pages(8).sideband(&sideband).open().unwrap();
        let dummy = set.sideband().unwrap();
        set.enable().unwrap();
        child.go();
        until("the threads have ended", || set.wait(None).unwrap().hung_up);
        let (mut order, mut forks, mut exits) = (OrderCheck::default(), 0, 0);
        let stats = set.finish(|record| -> Result<(), Error> {
            assert_eq!(record.event, dummy);
            order.record(record.time, record.late);
            match record.layout.decode(record.raw)? {
                Record::Fork(_) => forks += 1,
                Record::Exit(_) => exits += 1,
                _ => {}
            }
            Ok(())
        }).unwrap();
        // A thread and a process, which has a thread of the test harness.
        assert!(forks >= 2 && exits >= forks, "{forks} forks, {exits} exits");
        assert_eq!((stats.late, stats.rings.lost), (0, 0));
        t.note(format!("{forks} forks, {exits} exits"));
    }

    fn a_thread_given_twice_is_measured_once(t) {
        let event = system_calls(t)?;
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let mut set = RingSet::builder().thread(0).thread(tid).pages(64).open().unwrap();
        let calls = set.add(&event).unwrap();
        set.set_filter(calls, &format!("id == {GETPPID}")).unwrap();
        set.enable_event(calls).unwrap();
        getppid(100);
        set.finish(ok).unwrap();
        let counts = set.counts(calls).unwrap();
        assert_eq!((counts.count, counts.delivered), (100, 100));
    }

    fn a_watermark_beyond_the_rings_still_wakes_the_set(t) {
        let event = system_calls(t)?;
        let sideband = Event::software(Software::Dummy).builder().comm(true);
        let rename = || (0..200).for_each(|_| rustix::thread::set_name(c"a name").unwrap());
        let call = || getppid(200);
        type Fill<'a> = &'a dyn Fn();
        let set = || RingSet::builder().thread(0).pages(1);
        let beyond = sideband.clone().wakeup_watermark(u32::MAX);
        for (set, fill) in [
            (set().wakeup_watermark(u32::MAX), &call as Fill<'_>),
            (set().wakeup_part(1), &call),
            (set().sideband_ring(&beyond, 1), &rename),
        ] {
            let mut set = set.open().unwrap();
            let calls = set.add(&event).unwrap();
            set.set_filter(calls, &format!("id == {GETPPID}")).unwrap();
            set.enable().unwrap();
            assert!(!set.wait(Some(Duration::ZERO)).unwrap().readable);
            // On one CPU: its ring is full then.
            on_cpu_0(fill);
            assert!(set.wait(Some(Duration::ZERO)).unwrap().readable);
        }
    }

    fn sideband_survives_a_flood_in_its_own_ring(t) {
        let event = system_calls(t)?;
        let sideband = Event::software(Software::Dummy).builder().task(true).sample(SampleFlags::TID);
        let mut set = RingSet::builder().pages(1).sideband_ring(&sideband, 64).open().unwrap();
        set.add(&event.disabled(false)).unwrap();
        set.enable().unwrap();
        // The flood fills its rings at once, as nobody reads.
        let tid = while_all_cpus_call(|| {
            getppid(10_000);
            std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get() as u32).join().unwrap()
        });
        let mut forks = Vec::new();
        let side = set.sideband().unwrap();
        let stats = set.finish(|record| -> Result<(), Error> {
            if let Record::Fork(fork) = record.layout.decode(record.raw)? {
                assert_eq!(record.event, side);
                forks.push(fork.tid);
            }
            Ok(())
        }).unwrap();
        assert!(stats.rings.lost > 0, "{stats:?}");
        assert!(forks.contains(&tid), "{tid} in {forks:?}");
    }

    fn unordered_reading_keeps_the_order_of_each_ring(t) {
        let event = system_calls(t)?;
        let mut set = RingSet::builder().pages(256).open().unwrap();
        let calls = set.add(&event.disabled(false)).unwrap();
        // More than the rings hold.
        let enough = if t.is_guest() { 40_000 } else { 100_000 };
        let (mut last, mut records) = (BTreeMap::<u32, Timestamp>::new(), 0);
        let mut check = |record: SetRecord<'_>| -> Result<(), Error> {
            let before = last.insert(record.cpu, record.time);
            assert!(before <= Some(record.time));
            records += 1;
            Ok(())
        };
        while_all_cpus_call(|| {
            until("enough records", || {
                set.read_unordered(&mut check).unwrap();
                set.stats().rings.samples > enough
            });
            set.disable().unwrap();
        });
        while set.read_unordered(&mut check).unwrap() > 0 {}
        set.count_losses().unwrap();
        let (counts, stats) = (set.counts(calls).unwrap(), set.stats());
        assert_eq!(records, stats.rings.records);
        assert_accounted(counts.count, counts.delivered, counts.lost, 1);
    }

    fn groups_of_a_set_are_read_with_their_samples(t) {
        t.root()?;
        let counter = |event| Event::software(event).builder();
        let clock = counter(Software::CpuClock).sample_period(1_000_000)
            .sample(SampleFlags::READ | SampleFlags::CPU);
        let mut set = RingSet::builder().pages(16).open().unwrap();
        let members = [counter(Software::PageFaults), counter(Software::ContextSwitches)];
        let group = set.add_group(&clock, &members).unwrap();
        set.enable_event(group).unwrap();
        let (mut samples, mut last) = (0, BTreeMap::<u32, u64>::new());
        // Emulated machines take 100 ms for a sample.
        let enough = if t.is_guest() { 20 } else { 100 };
        while_all_cpus_call(|| until("enough samples", || {
            set.wait(Some(Duration::from_millis(1))).unwrap();
            set.round(|record| -> Result<(), Error> {
                if let Record::Sample(sample) = record.layout.decode(record.raw)? {
                    let counts: Vec<_> = sample.read.unwrap().iter().collect();
                    assert_eq!(counts.len(), 3, "{counts:?}");
                    assert_eq!(counts[0].id, sample.identifier);
                    // The clock that it counts can stand still up to the next tick of the timer.
                    let before = last.insert(record.cpu, counts[0].value);
                    assert!(before <= Some(counts[0].value), "{before:?} {counts:?}");
                    samples += 1;
                }
                Ok(())
            }).unwrap();
            samples > enough
        }));
        set.finish(ok).unwrap();
        // All samples were taken before the last count.
        let (sampled, count) = (last.values().sum::<u64>(), set.counts(group).unwrap().count);
        assert!(0 < sampled && sampled <= count, "{sampled} of {count}");
    }

    fn rings_shrink_to_what_may_be_locked(t) {
        t.root()?;
        let allowed = perf_monitor::paranoid_level().is_none_or(|level| level <= 2);
        if !allowed {
            return Err(t.refused("perf_event_paranoid allows nothing to ordinary users"));
        }
        // Rings of other tests would use up, and give back, what may be locked by `nobody`.
        as_user(50_000 + std::process::id() % 10_000, || {
            // Other rings of this user use it up.
            let many = perf_monitor::default_ring_pages(1);
            let mut held = Vec::new();
            let event = Event::software(Software::Dummy).builder().exclude_kernel(true).exclude_hv(true);
            while let Ok(sampler) = event.open_sampler(perf_monitor::Target::ThisThread, many) {
                held.push(sampler);
            }
            let asked = RingSet::builder().thread(0).pages(many * 2).open();
            assert!(matches!(asked, Err(Error::Map { .. })), "{asked:?}");
            let least = ((32 << 10) / rustix::param::page_size()).max(1);
            for side_pages in [None, Some(32)] {
                let set = RingSet::builder().thread(0);
                let set = match side_pages {
                    Some(pages) => set.sideband_ring(&event, pages),
                    None => set,
                };
                match set.open() {
                    Ok(set) => {
                        assert!(set.pages() < many, "{}", set.pages());
                        assert!(set.pages() <= set.unlimited_pages());
                        assert!(set.sideband_pages() <= side_pages);
                    }
                    Err(error) => {
                        let is_least = matches!(error, Error::Map { pages, .. } if pages == least);
                        assert!(is_least, "{error}");
                    }
                }
            }
        });
    }

    fn sets_open_their_events_on_cpus_that_come_back(t) {
        t.root()?;
        t.guest()?;
        let cpus = online_cpus();
        let online = "/sys/devices/system/cpu/cpu1/online";
        if cpus.len() < 2 || !Path::new(online).exists() {
            return Err(t.refused("no CPU can go offline"));
        }
        let event = system_calls(t)?;
        let mut set = RingSet::builder().pages(64).open().unwrap();
        let calls = set.add(&event).unwrap();
        set.set_filter(calls, &format!("id == {GETPPID}")).unwrap();
        set.enable_event(calls).unwrap();
        let mut seen = BTreeMap::<u32, u64>::new();
        let mut check = |record: SetRecord<'_>| -> Result<(), Error> {
            *seen.entry(record.cpu).or_default() += u64::from(record.event == calls);
            Ok(())
        };
        const TIMES: usize = 500;
        let call_on_cpu_1 = || std::thread::spawn(|| {
            let mut set = rustix::thread::CpuSet::new();
            set.set(1);
            rustix::thread::sched_setaffinity(None, &set).unwrap();
            getppid(TIMES);
        }).join().unwrap();
        call_on_cpu_1();
        assert!(set.check_cpus().unwrap().is_empty());
        std::fs::write(online, "0").unwrap();
        assert_eq!(set.gone_cpus(), [1]);
        let changes = set.check_cpus().unwrap();
        assert_eq!((&changes.gone[..], &changes.opened[..]), (&[1][..], &[][..]));
        assert_eq!(set.gone_cpus(), [0; 0]);
        set.round(&mut check).unwrap();
        std::fs::write(online, "1").unwrap();
        let changes = set.check_cpus().unwrap();
        assert_eq!((&changes.gone[..], &changes.opened[..]), (&[][..], &[1][..]));
        call_on_cpu_1();
        assert!(set.check_cpus().unwrap().is_empty());
        // Gone and back between two looks.
        std::fs::write(online, "0").unwrap();
        std::fs::write(online, "1").unwrap();
        assert_eq!(set.gone_cpus(), [1]);
        call_on_cpu_1(); // in no ring: the kernel ended the events
        let changes = set.check_cpus().unwrap();
        assert_eq!((&changes.gone[..], &changes.opened[..]), (&[1][..], &[1][..]));
        call_on_cpu_1();
        let stats = set.finish(&mut check).unwrap();
        assert_eq!(seen.get(&1), Some(&(3 * TIMES as u64)), "{seen:?} {stats:?}");
        let counts = set.counts(calls).unwrap();
        assert_eq!(counts.delivered, seen.values().sum::<u64>());
        assert_accounted(counts.count, counts.delivered, counts.lost, 3);
    }

    fn threads_stay_measured_on_cpus_that_come_back(t) {
        t.root()?;
        t.guest()?;
        let online = "/sys/devices/system/cpu/cpu1/online";
        if online_cpus().len() < 2 || !Path::new(online).exists() {
            return Err(t.refused("no CPU can go offline"));
        }
        const TIMES: usize = 500;
        let event = system_calls(t)?.inherit(true);
        // In the second set, the events of a cgroup with this process have the ring first.
        std::fs::write(format!("{V2}/cgroup.subtree_control"), "+pids").unwrap();
        let cgroup = Cgroup::create(Path::new(V2), "hotplug");
        let own = std::process::id().to_string();
        let threads = || RingSet::builder().thread(0).pages(256);
        let sets = [(threads(), 1), (threads().cgroup_at(&cgroup.0).unwrap(), 2)];
        std::fs::write(cgroup.0.join("cgroup.procs"), &own).unwrap();
        for (set, times) in sets {
            let mut set = set.open().unwrap();
            let calls = set.add(&event).unwrap();
            set.set_filter(calls, &format!("id == {GETPPID}")).unwrap();
            set.enable().unwrap();
            // This thread is started after the events were opened, and inherits them.
            let (turn, turns) = mpsc::channel::<()>();
            let (called, has_called) = mpsc::channel::<()>();
            let worker = std::thread::spawn(move || for () in turns {
                on_cpu(1, || getppid(TIMES));
                called.send(()).unwrap();
            });
            let call_on_cpu_1 = || {
                turn.send(()).unwrap();
                has_called.recv().unwrap();
            };
            call_on_cpu_1();
            std::fs::write(online, "0").unwrap();
            let changes = set.check_cpus().unwrap();
            assert_eq!((&changes.gone[..], &changes.opened[..]), (&[1][..], &[][..]));
            assert!(set.check_cpus().unwrap().is_empty());
            let mut seen = BTreeMap::<u32, u64>::new();
            let mut check = |record: SetRecord<'_>| -> Result<(), Error> {
                let is_sample = matches!(record.layout.decode(record.raw)?, Record::Sample(_));
                *seen.entry(record.cpu).or_default() += u64::from(record.event == calls && is_sample);
                Ok(())
            };
            set.round(&mut check).unwrap();
            std::fs::write(online, "1").unwrap();
            let changes = set.check_cpus().unwrap();
            assert_eq!((&changes.gone[..], &changes.opened[..]), (&[][..], &[1][..]));
            call_on_cpu_1();
            // Gone and back between two looks.
            std::fs::write(online, "0").unwrap();
            std::fs::write(online, "1").unwrap();
            let changes = set.check_cpus().unwrap();
            assert_eq!((&changes.gone[..], &changes.opened[..]), (&[1][..], &[1][..]));
            call_on_cpu_1();
            drop(turn);
            worker.join().unwrap();
            let stats = set.finish(&mut check).unwrap();
            assert_eq!(seen.get(&1), Some(&(times * 3 * TIMES as u64)), "{seen:?} {stats:?}");
            let counts = set.counts(calls).unwrap();
            assert_eq!(counts.delivered, seen.values().sum::<u64>());
            assert_accounted(counts.count, counts.delivered, counts.lost, 3);
        }
        std::fs::write(format!("{V2}/cgroup.procs"), &own).unwrap();
    }

    fn flags_are_passed_to_the_kernel(t) {
        let event = system_calls(t)?;
        let open = |flags| RingSet::builder().thread(0).pages(8).flags(flags).open();
        // No kernel has this one.
        let refused = open(1 << 40).unwrap_err();
        assert!(matches!(refused, Error::Open { .. }), "{refused}");
        let mut set = open(perf_sys::PERF_FLAG_FD_NO_GROUP).unwrap();
        let calls = set.add(&event.disabled(false)).unwrap();
        set.set_filter(calls, &format!("id == {GETPPID}")).unwrap();
        getppid(10);
        set.finish(ok).unwrap();
        let counts = set.counts(calls).unwrap();
        assert!(counts.delivered >= 10, "{counts:?}");
    }
}
