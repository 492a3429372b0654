use crate::kernel_tests;
use crate::support::{GETPPID, ReadAll, TestChild, getppid, touch_pages, until};
use perf_monitor::{
    Error, Event, EventBuilder, OverwriteRing, ReadFormat, Record, RecordLayout, RingSet,
    SampleFlags, Software, Target, Timestamp, online_cpus,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trace_common::ClockDomain;

fn sys_enter() -> EventBuilder {
    Event::tracepoint("raw_syscalls", "sys_enter")
        .unwrap()
        .builder()
        .sample_period(1)
        .wakeup_events(1)
        .sample(SampleFlags::TID | SampleFlags::TIME | SampleFlags::CPU | SampleFlags::RAW)
}

kernel_tests! {
    fn a_ring_of_one_page_loses_and_accounts_exactly(t) {
        t.tracefs()?;
        let has_lost = perf_monitor::KernelFeatures::probe().read_format.contains(ReadFormat::LOST);
        let format = if has_lost { ReadFormat::LOST } else { ReadFormat::empty() };
        let mut sampler = sys_enter().read_format(format).open_sampler(Target::ThisThread, 1).unwrap();
        sampler.counter().set_filter(&format!("id == {GETPPID}")).unwrap();
        sampler.counter().enable().unwrap();
        let mut samples = 0;
        for _ in 0..5 {
            getppid(1000);
            sampler.drain_all(|r| samples += u64::from(matches!(r, Record::Sample(_)))).unwrap();
        }
        // A LOST record is written with the next record that fits.
        getppid(1);
        sampler.counter().disable().unwrap();
        sampler.drain_all(|r| samples += u64::from(matches!(r, Record::Sample(_)))).unwrap();
        let (stats, count) = (sampler.stats(), sampler.counter().read().unwrap());
        assert_eq!(stats.samples, samples);
        assert!(stats.lost > 0 && samples > 0, "{stats:?}");
        assert_eq!(count.value, 5001);
        assert_eq!(samples + stats.lost, 5001, "delivered and lost are all");
        if has_lost {
            assert_eq!(count.lost, Some(stats.lost), "FORMAT_LOST is the sum of LOST records");
        } else {
            t.lacks("PERF_FORMAT_LOST (Linux 6.0)");
        }
        t.note(format!("{samples} samples + {} lost = 5001", stats.lost));
    }

    fn a_drain_ends_with_the_first_error(t) {
        t.tracefs()?;
        let mut sampler = sys_enter().open_sampler(Target::ThisThread, 16).unwrap();
        sampler.counter().set_filter(&format!("id == {GETPPID}")).unwrap();
        sampler.counter().enable().unwrap();
        getppid(3);
        sampler.counter().disable().unwrap();
        let mut read = 0;
        let stopped = sampler.drain(|_| {
            read += 1;
            Err(Error::RingPages(7))
        });
        assert!(matches!(stopped, Err(Error::RingPages(7))), "{stopped:?}");
        assert_eq!((read, sampler.drain_all(|_| ()).unwrap()), (1, 2));
    }

    fn a_reader_that_keeps_up_loses_nothing(t) {
        t.tracefs()?;
        // The ring holds all of it, so that a busy machine makes no difference.
        let child = TestChild::start("getppid 20000");
        // A wakeup for each sample would be an interrupt of the other CPU for each, which costs an
        // emulated machine a minute.
        let mut sampler = sys_enter().wakeup_events(50)
            .open_sampler(Target::Thread(child.tid), 1024).unwrap();
        sampler.counter().set_filter(&format!("id == {GETPPID}")).unwrap();
        sampler.counter().enable().unwrap();
        let reader = std::thread::spawn(move || {
            let mut samples = 0;
            loop {
                let ready = sampler.wait(Some(Duration::from_secs(20))).unwrap();
                sampler.drain_all(|r| samples += usize::from(matches!(r, Record::Sample(_)))).unwrap();
                if ready.hung_up {
                    break (samples, sampler.stats());
                }
                assert!(ready.readable, "nothing for 20 s");
            }
        });
        child.go();
        let (samples, stats) = reader.join().unwrap();
        assert_eq!((samples, stats.lost, stats.corrupt_bytes), (20_000, 0, 0));
    }

    fn the_tail_is_read_after_the_thread_is_gone(t) {
        t.tracefs()?;
        let child = TestChild::start("getppid 3");
        let mut sampler = sys_enter().wakeup_events(1000).open_sampler(Target::Thread(child.tid), 8).unwrap();
        sampler.counter().set_filter(&format!("id == {GETPPID}")).unwrap();
        sampler.counter().enable().unwrap();
        child.go();
        let ready = sampler.wait(Some(Duration::from_secs(5))).unwrap();
        assert!(ready.hung_up, "{ready:?}");
        assert_eq!(sampler.drain_all(|_| ()).unwrap(), 3, "records that woke nobody");
    }

    fn a_watermark_beyond_the_ring_still_wakes(t) {
        t.tracefs()?;
        let mut sampler = sys_enter().wakeup_watermark(u32::MAX).open_sampler(Target::ThisThread, 1).unwrap();
        sampler.counter().enable().unwrap();
        let no = sampler.wait(Some(Duration::ZERO)).unwrap();
        assert!(!no.readable && !no.hung_up);
        getppid(60);
        assert!(sampler.wait(Some(Duration::ZERO)).unwrap().readable);
        assert_eq!(sampler.stats().records, 0);
        assert!(sampler.drain_all(|_| ()).unwrap() > 0);
    }

    fn readers_are_woken_as_requested(t) {
        t.tracefs()?;
        for (events, calls) in [(1, 1), (20, 20)] {
            let mut sampler = sys_enter().wakeup_events(events).open_sampler(Target::ThisThread, 8).unwrap();
            sampler.counter().set_filter(&format!("id == {GETPPID}")).unwrap();
            sampler.counter().enable().unwrap();
            getppid(calls - 1);
            assert!(!sampler.wait(Some(Duration::ZERO)).unwrap().readable, "{events}");
            getppid(1);
            assert!(sampler.wait(Some(Duration::ZERO)).unwrap().readable, "{events}");
            assert_eq!(sampler.drain_all(|_| ()).unwrap(), calls);
        }
    }

    fn epoll_reports_the_ring_with_records(t) {
        t.tracefs()?;
        use rustix::event::epoll;
        let sampler = |id: u64| {
            let sampler = sys_enter().open_sampler(Target::ThisThread, 8).unwrap();
            sampler.counter().set_filter(&format!("id == {id}")).unwrap();
            sampler.counter().enable().unwrap();
            sampler
        };
        let samplers = [sampler(u64::from(u32::MAX)), sampler(GETPPID)]; // the first never
        let epoll_fd = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for (i, sampler) in samplers.iter().enumerate() {
            let data = epoll::EventData::new_u64(i as u64);
            epoll::add(&epoll_fd, sampler, data, epoll::EventFlags::IN).unwrap();
        }
        let ready = || {
            let mut events = Vec::with_capacity(4);
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let spare = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&epoll_fd, spare, Some(&now)).unwrap();
            events.iter().map(|e| e.data.u64()).collect::<Vec<_>>()
        };
        assert_eq!(ready(), [] as [u64; 0]);
        getppid(1);
        assert_eq!(ready(), [1]);
    }

    fn a_flight_recorder_keeps_the_newest(t) {
        t.tracefs()?;
        let builder = sys_enter().write_backward(true).sample(SampleFlags::TIME | SampleFlags::RAW);
        let counter = builder.open(Target::ThisThread).unwrap();
        let layout = RecordLayout::new(counter.attr());
        let mut ring = OverwriteRing::new(counter, 1).unwrap();
        ring.counter().set_filter(&format!("id == {GETPPID}")).unwrap();
        assert_eq!(ring.snapshot().unwrap().records().count(), 0);
        ring.counter().enable().unwrap();
        getppid(3);
        assert_eq!(ring.snapshot().unwrap().records().count(), 3);
        getppid(500);
        let snapshot = ring.snapshot().unwrap();
        let times: Vec<_> = snapshot.records().map(|r| layout.time(r).unwrap()).collect();
        assert!((30..60).contains(&times.len()), "{}", times.len());
        assert!(times.windows(2).all(|w| w[0] >= w[1]), "newest first");
        assert!(snapshot.overwritten_bytes() > 0);
        getppid(1);
        let newer = ring.snapshot().unwrap();
        assert!(newer.overwritten_bytes() > snapshot.overwritten_bytes(), "it continues");
    }

    fn snapshots_are_whole_while_another_cpu_writes(t) {
        t.tracefs()?;
        let cpus = online_cpus();
        let [reading, .., writing] = cpus[..] else { return Err(t.refused("one CPU")) };
        let on = |cpu| {
            let mut set = rustix::thread::CpuSet::new();
            set.set(cpu as usize);
            rustix::thread::sched_setaffinity(None, &set).unwrap();
        };
        // Small samples: many are written, and the next one begins where the oldest does.
        let fields = SampleFlags::IDENTIFIER | SampleFlags::TIME | SampleFlags::RAW;
        let builder = sys_enter().write_backward(true).sample_id_all(true).sample(fields);
        let counter = builder.open(Target::Cpu(writing)).unwrap();
        let (id, layout) = (counter.id().unwrap(), RecordLayout::new(counter.attr()));
        let mut ring = OverwriteRing::new(counter, 1).unwrap();
        ring.counter().set_filter(&format!("id == {GETPPID}")).unwrap();
        ring.counter().enable().unwrap();
        // Each waits for all CPUs, which takes longer where they are emulated.
        let snapshots = if t.is_guest() { 25 } else { 400 };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                on(writing);
                while !stop.load(Ordering::Relaxed) {
                    getppid(100);
                }
            });
            let reader = scope.spawn(|| {
                on(reading);
                until("a full ring", || ring.snapshot().unwrap().overwritten_bytes() > 0);
                for _ in 0..snapshots {
                    let (snapshot, mut newer) = (ring.snapshot().unwrap(), i64::MAX);
                    for record in snapshot.records() {
                        let time = layout.time(record).map_or(0, Timestamp::nanos);
                        let is_ours = layout.id(record) == Some(id);
                        if layout.decode(record).is_err() || !is_ours || time <= 0 || time > newer {
                            return Err(format!("{record:?} after {newer}"));
                        }
                        newer = time;
                    }
                    if newer == i64::MAX {
                        return Err("nothing".to_owned());
                    }
                }
                Ok(())
            });
            let read = reader.join();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(read.unwrap(), Ok(()));
        });
    }

    fn a_ring_of_the_other_direction_is_an_error(t) {
        t.root()?;
        let event = |backward| Event::software(Software::Dummy).builder().write_backward(backward);
        let error = event(true).open_sampler(Target::ThisThread, 1).unwrap_err();
        assert!(error.to_string().contains("OverwriteRing"), "{error}");
        let forward = event(false).open(Target::ThisThread).unwrap();
        let error = OverwriteRing::new(forward, 1).unwrap_err();
        assert!(error.to_string().contains("Sampler"), "{error}");
        let identified = event(false).sample(SampleFlags::IDENTIFIER);
        let mut sampler = identified.open_sampler(Target::ThisThread, 1).unwrap();
        let error = sampler.add(&event(true), Target::ThisThread).unwrap_err();
        assert!(error.to_string().contains("write_backward"), "{error}");
        let sideband = event(true).comm(true);
        for set in [
            RingSet::builder().thread(0).pages(1).sideband(&sideband),
            RingSet::builder().thread(0).pages(1).sideband_ring(&sideband, 1),
        ] {
            let error = set.open().unwrap_err();
            assert!(error.to_string().contains("OverwriteRing"), "{error}");
        }
    }

    fn only_events_of_a_sampler_have_an_aux_area_in_it(t) {
        t.root()?;
        let dummy = Event::software(Software::Dummy).builder();
        let mut sampler = dummy.open_sampler(Target::ThisThread, 8).unwrap();
        let id = sampler.counter().id().unwrap();
        let second = dummy.open(Target::ThisThread).unwrap();
        assert!(sampler.map_aux(second.id().unwrap(), 4).unwrap().is_none());
        assert!(matches!(sampler.map_aux(id, 3), Err(Error::RingPages(3))));
        // No PMU of software writes one.
        let error = sampler.map_aux(id, 4).unwrap_err();
        assert!(matches!(error, Error::Map { pages: 4, .. }), "{error}");
        assert!(error.to_string().contains("does not support an AUX area"), "{error}");
    }

    fn a_paused_ring_takes_nothing(t) {
        t.tracefs()?;
        let mut sampler = sys_enter().open_sampler(Target::ThisThread, 8).unwrap();
        sampler.counter().enable().unwrap();
        sampler.counter().pause_output().unwrap();
        sampler.drain_all(|_| ()).unwrap();
        getppid(10);
        assert_eq!(sampler.drain_all(|_| ()).unwrap(), 0);
        sampler.counter().resume_output().unwrap();
        getppid(10);
        assert!(sampler.drain_all(|_| ()).unwrap() >= 10);
        assert!(sampler.stats().lost >= 10, "the kernel counts it as lost");
    }

    fn events_share_a_ring(t) {
        t.tracefs()?;
        let dummy = Event::software(Software::Dummy).builder();
        let mut sampler = dummy
            .sample(SampleFlags::IDENTIFIER | SampleFlags::TIME)
            .open_sampler(Target::ThisThread, 16).unwrap();
        let faults = Event::software(Software::PageFaults)
            .builder().sample_period(1).sample(SampleFlags::TIME | SampleFlags::ADDR);
        let faults = sampler.add(&faults, Target::ThisThread).unwrap().id().unwrap();
        let calls = sampler.add(&sys_enter(), Target::ThisThread).unwrap();
        calls.set_filter(&format!("id == {GETPPID}")).unwrap();
        let calls = calls.id().unwrap();
        sampler.enable().unwrap();
        touch_pages(5);
        getppid(5);
        let (mut addresses, mut raw) = (0, 0);
        sampler.drain_all(|record| if let Record::Sample(s) = record {
            match s.identifier {
                Some(id) if id == faults => addresses += usize::from(s.addr.is_some()),
                Some(id) if id == calls => raw += usize::from(s.raw.is_some()),
                other => panic!("{other:?}"),
            }
        }).unwrap();
        assert!(addresses >= 5);
        assert_eq!(raw, 5);
        // Removed, it writes no more.
        let removed = sampler.remove(faults).unwrap().unwrap();
        assert_eq!(removed.id().unwrap(), faults);
        assert!(sampler.remove(faults).unwrap().is_none());
        sampler.drain_all(|_| ()).unwrap(); // what came since the last look
        touch_pages(5);
        assert_eq!(sampler.drain_all(|_| ()).unwrap(), 0);
        let other_clock = sys_enter().clock(ClockDomain::MonotonicRaw);
        let error = sampler.add(&other_clock, Target::ThisThread).unwrap_err();
        assert!(error.to_string().contains("same clock"), "{error}");
    }

    fn records_with_two_trailers_share_a_ring(t) {
        t.root()?;
        let event = |fields| {
            Event::software(Software::Dummy).builder().comm(true)
                .sample(SampleFlags::IDENTIFIER | SampleFlags::TIME | fields)
        };
        let mut sampler = event(SampleFlags::empty()).open_sampler(Target::ThisThread, 8).unwrap();
        let other = event(SampleFlags::TID | SampleFlags::CPU);
        let other = sampler.add(&other, Target::ThisThread).unwrap().id().unwrap();
        sampler.enable().unwrap();
        rustix::thread::set_name(c"two-trailers").unwrap();
        let own = sampler.counter().id().unwrap();
        let mut seen = Vec::new();
        sampler.drain_all(|record| if let Record::Comm(c) = record {
            assert_eq!(c.comm, b"two-trailers");
            assert!(c.sample_id.time.unwrap() > Timestamp::default(), "{c:?}");
            seen.push((c.sample_id.id.unwrap(), c.sample_id.tid, c.sample_id.cpu.is_some()));
        }).unwrap();
        seen.sort_unstable();
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(seen, [(own, None, false), (other, Some(tid), true)]);
    }

    fn events_without_their_id_cannot_share_a_ring(t) {
        t.root()?;
        let dummy = Event::software(Software::Dummy).builder().sample(SampleFlags::TIME);
        let mut sampler = dummy.open_sampler(Target::ThisThread, 8).unwrap();
        let error = sampler.add(&dummy, Target::ThisThread).unwrap_err();
        assert!(matches!(error, Error::NoCommonId), "{error}");
        // Nor one that was opened for itself.
        let identified = dummy.clone().sample(SampleFlags::TIME | SampleFlags::IDENTIFIER);
        let mut sampler = identified.open_sampler(Target::ThisThread, 8).unwrap();
        let without = dummy.open(Target::ThisThread).unwrap();
        assert!(matches!(sampler.add_counter(without), Err(Error::NoCommonId)));
        assert_eq!(sampler.counters().count(), 1);
    }

    fn losses_after_the_last_record_are_counted(t) {
        t.tracefs()?;
        for pages in [1, 2, 4] {
            let mut sampler = sys_enter().sample(SampleFlags::IDENTIFIER | SampleFlags::RAW)
                .open_sampler(Target::ThisThread, pages).unwrap();
            let second = sampler.add(&sys_enter(), Target::ThisThread).unwrap();
            second.set_filter(&format!("id == {GETPPID}")).unwrap();
            sampler.counter().set_filter(&format!("id == {GETPPID}")).unwrap();
            sampler.enable().unwrap();
            getppid(2000);
            let mut samples = 0;
            let stats = sampler
                .finish_all(|r| samples += u64::from(matches!(r, Record::Sample(_)))).unwrap();
            assert_eq!((stats.samples, stats.unknown_ids), (samples, 0));
            t.note(format!("{pages} pages: {samples} samples, {} lost", stats.lost));
            if perf_monitor::KernelFeatures::has_lost_counts() {
                assert_eq!(samples + stats.lost, 4000, "{stats:?}");
                assert_eq!(stats.lost_at_end, Some(stats.lost), "no record came after the losses");
            } else {
                t.lacks("PERF_FORMAT_LOST (Linux 6.0)");
                assert_eq!((stats.lost, stats.lost_at_end), (0, None), "unknown, and said to be");
            }
            // Asking again changes nothing.
            sampler.count_losses().unwrap();
            assert_eq!(sampler.stats(), stats);
        }
    }

    fn losses_before_an_event_was_added_are_not_counted(t) {
        t.tracefs()?;
        let dummy = || Event::software(Software::Dummy).builder().sample(SampleFlags::IDENTIFIER)
            .open_sampler(Target::ThisThread, 1).unwrap();
        let (mut first, mut second) = (dummy(), dummy());
        let calls = first.add(&sys_enter(), Target::ThisThread).unwrap();
        calls.set_filter(&format!("id == {GETPPID}")).unwrap();
        let id = calls.id().unwrap();
        first.enable().unwrap();
        getppid(2000);
        first.disable().unwrap();
        // Removed and added again, it is counted once.
        let calls = first.remove(id).unwrap().unwrap();
        first.add_counter(calls).unwrap();
        first.enable().unwrap();
        getppid(2000);
        let stats = first.finish_all(|_| ()).unwrap();
        if perf_monitor::KernelFeatures::has_lost_counts() {
            assert_eq!(stats.samples + stats.lost, 4000, "{stats:?}");
        } else {
            t.lacks("PERF_FORMAT_LOST (Linux 6.0)");
        }
        // In another ring, and in one of its own.
        let calls = first.remove(id).unwrap().unwrap();
        second.add_counter(calls).unwrap();
        second.enable().unwrap();
        getppid(3);
        let stats = second.finish_all(|_| ()).unwrap();
        assert_eq!((stats.samples, stats.lost), (3, 0), "{stats:?}");
        let mut third = second.remove(id).unwrap().unwrap().into_sampler(1).unwrap();
        third.enable().unwrap();
        getppid(3);
        let stats = third.finish_all(|_| ()).unwrap();
        assert_eq!((stats.samples, stats.lost), (3, 0), "{stats:?}");
    }

    fn rings_of_many_sizes_map(t) {
        t.root()?;
        let event = Event::software(Software::Dummy).builder();
        for pages in [1, 2, 1024, 8192] {
            let mut sampler = event.open_sampler(Target::ThisThread, pages).unwrap();
            assert_eq!(sampler.ring_mut().size(), pages * rustix::param::page_size());
        }
    }

    fn timestamps_are_of_the_requested_clock(t) {
        t.tracefs()?;
        use rustix::time::{ClockId, clock_gettime};
        // Clocks that an NMI cannot read are for software events only.
        let faults = || Event::software(Software::PageFaults)
            .builder().sample_period(1).sample(SampleFlags::TIME);
        for (builder, clock, id) in [
            (sys_enter(), ClockDomain::Monotonic, ClockId::Monotonic),
            (sys_enter(), ClockDomain::MonotonicRaw, ClockId::MonotonicRaw),
            (faults(), ClockDomain::Realtime, ClockId::Realtime),
            (faults(), ClockDomain::Boottime, ClockId::Boottime),
        ] {
            let now = || { let t = clock_gettime(id); t.tv_sec * 1_000_000_000 + t.tv_nsec };
            let mut sampler = builder.clock(clock).open_sampler(Target::ThisThread, 8).unwrap();
            sampler.counter().enable().unwrap();
            let before = now();
            getppid(1);
            touch_pages(1);
            let after = now();
            sampler.counter().disable().unwrap();
            let mut times = Vec::new();
            sampler.drain_all(|r| times.extend(r.sample_id().unwrap().time)).unwrap();
            let inside = times.iter().any(|t| (before..=after).contains(&t.nanos()));
            assert!(inside, "{clock}: {before} {times:?} {after}");
        }
    }
}
