//! The monitor: one stream of everything, registered while it runs, and accounted for.

use crate::kernel_tests;
use crate::sets::{OrderCheck, assert_accounted, while_all_cpus_call};
use crate::support::{GETPPID, Setting, Skip, Test, TestChild, as_nobody, getppid, until};
use perf_monitor::{
    Error, Event, EventId, EventMonitor, EventSource, EventType, FieldType, FieldValue,
    MonitorCounts, MonitorSample, MonitorStream, Overflow, Record, Registration, SampleFlags,
    SampleView, Software, TracepointFormat, online_cpus,
};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trace_common::Timestamp;

/// What these tests make of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// A system call by this thread.
    Call {
        nr: u64,
        tid: u32,
    },
    Lost(u64),
    External(u64),
}

fn call_of(
    format: Option<&TracepointFormat>,
) -> impl FnMut(&SampleView<'_>) -> Result<Option<Value>, perf_monitor::DecoderError>
+ Send
+ 'static
+ use<> {
    let nr = format.and_then(|f| f.field("id")).cloned().expect("the tracepoint has the field");
    move |sample| {
        let (_, tid) = sample.pid_tid().ok_or("no thread")?;
        let nr = sample.u64(&nr).ok_or("no number")?;
        Ok(Some(Value::Call { nr, tid }))
    }
}

/// `getppid` of all processes.
fn calls() -> Registration<Value> {
    Registration::tracepoint("raw_syscalls:sys_enter")
        .filter(format!("id == {GETPPID}"))
        .decoder_of(|format| Ok(call_of(format)))
}

fn can_trace(t: &Test) -> Result<(), Skip> {
    t.tracefs().map(drop)
}

/// No sample is lost without a count when events are disabled often under load.
#[track_caller]
fn assert_exact(counts: MonitorCounts, disablings: u64) {
    let passed = counts.delivered + counts.dropped + counts.overflow;
    assert_accounted(counts.count, passed, counts.lost, disablings);
}

/// Runs the monitor on another thread while `f` runs.
pub(crate) fn while_running<T: Send + 'static, R>(
    monitor: &EventMonitor<T>,
    mut deliver: impl FnMut(MonitorSample<T>) + Send,
    f: impl FnOnce() -> R,
) -> R {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| monitor.run(|batch| batch.drain(..).for_each(&mut deliver)));
        until("it runs", || monitor.is_running());
        // Also if `f` panics.
        struct Stop<'a, T>(&'a EventMonitor<T>);
        impl<T> Drop for Stop<'_, T> {
            fn drop(&mut self) {
                self.0.stop(true);
            }
        }
        let stop = Stop(monitor);
        let result = f();
        drop(stop);
        running.join().unwrap().unwrap();
        assert!(!monitor.is_running());
        result
    })
}

/// External events between calls. Returns whether they were enqueued in time.
fn are_external_events_in_place() -> bool {
    const SLACK: Duration = Duration::from_millis(50);
    let monitor = EventMonitor::builder().thread(0).pages(64).slack(SLACK).build().unwrap();
    let calls = monitor.register(calls()).unwrap();
    let external = monitor.register(Registration::external("mine")).unwrap();
    assert_eq!(monitor.registered_event_type(external), Some(EventType::External));
    let enqueue = |time, value| monitor.enqueue(external, time, Value::External(value)).unwrap();
    assert!(matches!(
        monitor.enqueue(calls, monitor.now(), Value::External(0)),
        Err(Error::NotExternal { .. })
    ));
    let samples = Mutex::new(Vec::new());
    let is_in_time = while_running(
        &monitor,
        |sample| samples.lock().unwrap().push(sample),
        || {
            // Out of order, and between calls.
            let mut times = vec![monitor.now()];
            for _ in 0..10 {
                getppid(5);
                times.push(monitor.now());
            }
            for (i, time) in times.iter().enumerate().rev() {
                assert!(enqueue(*time, i as u64));
            }
            if monitor.now() - times[0] >= SLACK / 2 {
                return false;
            }
            monitor.disable(external).unwrap();
            assert!(!enqueue(monitor.now(), 99));
            monitor.enable(external).unwrap();
            until("all are delivered", || samples.lock().unwrap().len() == 61);
            assert!(enqueue(times[3], 33));
            until("the late one is delivered", || samples.lock().unwrap().len() == 62);
            // Of the future: the stop delivers it.
            assert!(enqueue(monitor.now().saturating_add_nanos(3_600_000_000_000), 44));
            true
        },
    );
    if !is_in_time {
        return false;
    }
    let samples = samples.into_inner().unwrap();
    let mut order = OrderCheck::default();
    let shown: Vec<_> = samples
        .iter()
        .map(|sample| {
            order.record(sample.time, sample.late);
            assert_eq!(sample.cpu.is_none(), sample.event == Some(external));
            match sample.value.as_ref().unwrap() {
                Value::External(n) => *n,
                _ => 1000,
            }
        })
        .collect();
    let mut expected = vec![0];
    for i in 1..=10 {
        expected.extend([1000; 5]);
        expected.push(i);
    }
    expected.extend([33, 44]);
    assert_eq!(shown, expected);
    let counts = monitor.counts(external).unwrap();
    assert_eq!((counts.count, counts.delivered, counts.late), (13, 13, 1));
    assert_eq!((order.late, monitor.stats().set.late), (1, 1));
    true
}

kernel_tests! {
    fn a_monitor_delivers_typed_samples_and_runs_again(t) {
        can_trace(t)?;
        let monitor = EventMonitor::builder().thread(0).pages(64).build().unwrap();
        let event = monitor.register(calls()).unwrap();
        assert_eq!(monitor.registered_event_type(event), Some(EventType::Tracepoint));
        assert_eq!(monitor.name(event).as_deref(), Some("raw_syscalls:sys_enter"));
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        getppid(10); // it does not run yet
        for times in [100, 0, 200] {
            let mut seen = Vec::new();
            while_running(&monitor, |sample| {
                assert_eq!((sample.event, sample.late), (Some(event), false));
                seen.push(sample.value.unwrap());
            }, || {
                getppid(times);
                // It runs already, on another thread.
                assert!(matches!(monitor.run(|_| ()), Err(Error::MonitorRuns)));
            });
            // Nothing that it recorded is left behind by the stop.
            assert_eq!(seen, vec![Value::Call { nr: GETPPID, tid }; times]);
            getppid(10); // it does not run any more
        }
        let counts = monitor.counts(event).unwrap();
        assert_eq!((counts.delivered, counts.count), (300, 300));
        assert_exact(counts, 0);
        monitor.close();
    }

    fn events_are_controlled_one_by_one_by_group_and_all(t) {
        can_trace(t)?;
        let monitor = EventMonitor::builder().thread(0).pages(64).build().unwrap();
        let group = monitor.register_group("a group");
        assert_eq!(monitor.group_name(group).as_deref(), Some("a group"));
        let [a, b] = [(); 2].map(|()| monitor.register(calls().group(group).disabled()).unwrap());
        let c = monitor.register(calls().disabled()).unwrap();
        let counts = || [a, b, c].map(|event| monitor.counts(event).unwrap().count);
        while_running(&monitor, |_| (), || {
            let step = |control: &dyn Fn() -> Result<(), Error>, expected: [u64; 3]| {
                let before = counts();
                control().unwrap();
                getppid(10);
                let after = counts();
                let delta = [0, 1, 2].map(|i| after[i] - before[i]);
                assert_eq!(delta, expected);
            };
            step(&|| Ok(()), [0, 0, 0]);
            step(&|| monitor.enable(a), [10, 0, 0]);
            step(&|| monitor.enable_group(group), [10, 10, 0]);
            step(&|| monitor.enable_all(), [10, 10, 10]);
            step(&|| monitor.disable(b), [10, 0, 10]);
            step(&|| monitor.disable_group(group), [0, 0, 10]);
            step(&|| monitor.set_filter(c, "id == 1000000"), [0, 0, 0]);
            step(&|| monitor.set_filter(c, &format!("id == {GETPPID}")), [0, 0, 10]);
            let refused = monitor.set_filter(c, "nosuchfield == 1").unwrap_err();
            assert!(matches!(refused, Error::Filter { .. }), "{refused}");
            assert!(refused.to_string().contains("Field not found, at byte"), "{refused}");
            step(&|| Ok(()), [0, 0, 10]);
            step(&|| monitor.disable_all(), [0, 0, 0]);
            monitor.unregister_group(group).unwrap();
            assert!(matches!(monitor.enable(a), Err(Error::NotRegistered)));
            assert!(matches!(monitor.unregister(b), Err(Error::NotRegistered)));
            assert!(matches!(monitor.enable_group(group), Err(Error::NotRegistered)));
            assert_eq!(monitor.registered_event_type(a), None);
            monitor.unregister(c).unwrap();
        });
        let unregistered = monitor.stats().unregistered;
        assert_eq!((unregistered.count, unregistered.delivered), (110, 110), "{unregistered:?}");
    }

    fn decoders_drop_and_fail_and_are_counted(t) {
        can_trace(t)?;
        let monitor = EventMonitor::builder().thread(0).pages(64).build().unwrap();
        let mut number = 0;
        let event = monitor.register(calls().decoder(move |sample| {
            number += 1;
            match number % 3 {
                0 => Ok(None),
                1 => Ok(Some(Value::External(sample.sample()?.ok_or("no sample")?.tid.unwrap().into()))),
                _ => Err("refused".into()),
            }
        })).unwrap();
        let without = monitor.register(Registration::tracepoint("raw_syscalls:sys_enter")
            .filter(format!("id == {GETPPID}"))).unwrap();
        let (mut values, mut errors) = (0, 0);
        while_running(&monitor, |sample| match sample.value {
            Ok(Value::External(tid)) if tid > 0 => values += 1,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.to_string(), "refused");
                errors += 1;
            }
        }, || getppid(300));
        assert_eq!((values, errors), (100, 100));
        let counts = monitor.counts(event).unwrap();
        assert_eq!((counts.delivered, counts.dropped, counts.errors), (200, 100, 100));
        assert_exact(counts, 0);
        assert_eq!(monitor.counts(without).unwrap().dropped, 300);
    }

    fn external_events_are_in_their_place_in_time(t) {
        can_trace(t)?;
        // Events that are enqueued after half of the slack could be late: then again.
        until("events are enqueued in time", are_external_events_in_place);
    }

    fn channels_block_or_drop_and_account(t) {
        can_trace(t)?;
        for overflow in [Overflow::Block, Overflow::Drop] {
            let monitor = EventMonitor::builder().thread(0).pages(64).batch(16)
                .poll_interval(Duration::ZERO).build().unwrap();
            let event = monitor.register(calls()).unwrap();
            let stream = monitor.spawn(2, overflow).unwrap();
            assert!(matches!(monitor.spawn(2, overflow), Err(Error::MonitorRuns)));
            until("it has started", || monitor.is_running());
            getppid(100);
            let mut taken = 0;
            if overflow == Overflow::Drop {
                // Nothing is taken: all but the first two batches do not fit.
                until("the others are dropped", || monitor.counts(event).unwrap().overflow > 0);
            }
            monitor.stop(false);
            let mut batches = 0;
            for batch in &stream {
                assert!((1..=16).contains(&batch.len()));
                taken += batch.len() as u64;
                batches += 1;
            }
            stream.join().unwrap();
            let counts = monitor.counts(event).unwrap();
            assert_eq!(counts.delivered, taken, "{counts:?}");
            assert_exact(counts, 0);
            match overflow {
                Overflow::Block => assert_eq!((counts.count, taken), (100, 100)),
                _ => assert!(batches >= 2 && counts.overflow > 0, "{counts:?}"),
            }
            // Dropping the stream ends the run.
            let stream = monitor.spawn(1, overflow).unwrap();
            getppid(100);
            drop(stream);
            until("it stops at the first batch", || {
                getppid(1);
                !monitor.is_running()
            });
            assert_exact(monitor.counts(event).unwrap(), 1);
            // Also without a batch, as waiting for its end does.
            let earlier = monitor.spawn(1, overflow).unwrap();
            monitor.stop(true);
            let stream = monitor.spawn(1, overflow).unwrap();
            drop(earlier);
            getppid(16);
            assert!(stream.next_batch().is_some(), "it was stopped");
            drop(stream);
            until("it stops without a batch", || !monitor.is_running());
            monitor.spawn(1, overflow).unwrap().join().unwrap();
            // Dropping the monitor ends a reader that nobody takes batches from, and closes the events.
            let guard = Arc::new(());
            let source = EventSource::new(Event::software(Software::Dummy).builder());
            monitor.register(Registration::event(source.guard(Arc::clone(&guard)))).unwrap();
            let stream = monitor.spawn(1, overflow).unwrap();
            getppid(1000);
            drop(monitor);
            assert_eq!(Arc::strong_count(&guard), 1);
            drop(stream);
        }
    }

    fn the_thread_that_stops_a_monitor_can_take_the_rest(t) {
        can_trace(t)?;
        let monitor = EventMonitor::builder().thread(0).pages(64).batch(16)
            .poll_interval(Duration::ZERO).build().unwrap();
        let event = monitor.register(calls()).unwrap();
        fn sum(stream: &MonitorStream<Value>) -> usize {
            stream.map(|batch| batch.len()).sum()
        }
        for stop in [EventMonitor::stop, |monitor: &EventMonitor<_>, _| monitor.stop(false)] {
            let before = monitor.counts(event).unwrap().delivered;
            let stream = monitor.spawn(1, Overflow::Block).unwrap();
            until("it has started", || monitor.is_running());
            getppid(200);
            stop(&monitor, true);
            assert_eq!(sum(&stream), 200);
            assert!(stream.next_batch_within(Duration::ZERO).is_none());
            stream.join().unwrap();
            let counts = monitor.counts(event).unwrap();
            assert_eq!((counts.delivered - before, counts.overflow), (200, 0));
        }
        // Closing stops it as well.
        let stream = monitor.spawn(1, Overflow::Block).unwrap();
        until("it has started", || monitor.is_running());
        getppid(200);
        monitor.close();
        assert_eq!(sum(&stream), 200);
    }

    fn closures_of_a_registration_can_use_the_monitor(t) {
        can_trace(t)?;
        type Shared = Arc<Mutex<Option<Arc<EventMonitor<Value>>>>>;
        /// Uses the monitor when it is dropped.
        struct Guard(Shared);
        impl Drop for Guard {
            fn drop(&mut self) {
                ask(&self.0);
            }
        }
        fn ask(shared: &Shared) {
            let monitor = shared.lock().unwrap().clone().unwrap();
            assert_eq!(monitor.stats().unregistered.count, 0);
        }
        let shared = Shared::default();
        let [by_default, options, decoder] = [(); 3].map(|()| Arc::clone(&shared));
        let asked = Arc::new(AtomicU64::new(0));
        let count = [(); 3].map(|()| Arc::clone(&asked));
        let [defaults, optional, decoders] = count;
        let monitor = EventMonitor::builder().thread(0).pages(8).default_options(move |event| {
            ask(&by_default);
            defaults.fetch_add(1, Ordering::Relaxed);
            event
        }).build().unwrap();
        let monitor = Arc::new(monitor);
        *shared.lock().unwrap() = Some(Arc::clone(&monitor));
        let registration = calls().options(move |event| {
            ask(&options);
            optional.fetch_add(1, Ordering::Relaxed);
            event
        }).decoder_of(move |_| {
            ask(&decoder);
            decoders.fetch_add(1, Ordering::Relaxed);
            Ok(|_: &SampleView<'_>| Ok(None))
        });
        monitor.register(registration).unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        // Guards of events that cannot be registered are dropped as well.
        let source = || EventSource::new(Event::software(Software::TaskClock).builder())
            .guard(Guard(Arc::clone(&shared)));
        let refused = monitor.register(Registration::event(source()).filter("no filter")).unwrap_err();
        assert!(matches!(refused, Error::Filter { .. }), "{refused}");
        let declared = Registration::event(source()).field("x", FieldType::U8);
        assert!(matches!(monitor.register(declared), Err(Error::NotExternal { .. })));
        shared.lock().unwrap().take();
    }

    fn a_thread_without_privileges_gets_its_policy_back(t) {
        t.root()?;
        // A thread that loses its privileges while it is realtime.
        let after = std::thread::spawn(|| {
            let before = perf_sys::sched_getscheduler().unwrap();
            let realtime = perf_monitor::RealtimeThread::begin(1).unwrap();
            rustix::thread::set_thread_groups(&[]).unwrap();
            let nobody = rustix::process::Uid::from_raw(testkit::process::nobody());
            rustix::thread::set_thread_uid(nobody).unwrap();
            drop(realtime);
            (before, perf_sys::sched_getscheduler().unwrap())
        });
        let (before, after) = after.join().unwrap();
        // Only the flag that children are reset by stays.
        assert!(after == before || after == before.reset_on_fork(), "{before:?} {after:?}");
    }

    fn a_nice_value_that_cannot_be_restored_is_reported(t) {
        t.root()?;
        use rustix::process::getpriority_process;
        as_nobody(|| {
            let this = Some(rustix::thread::gettid());
            let before = getpriority_process(this).unwrap();
            let nice = perf_monitor::NiceThread::begin(before + 5).unwrap();
            let raised = getpriority_process(this).unwrap();
            let restored = nice.restore();
            let after = getpriority_process(this).unwrap();
            match restored {
                Ok(()) => assert_eq!(after, before),
                Err(error) => {
                    assert!(matches!(error, Error::System { call: "setpriority", .. }), "{error}");
                    assert_eq!(after, raised);
                }
            }
        });
    }

    fn counters_breakpoints_and_records_are_in_the_stream(t) {
        t.root()?;
        let lost = Arc::new(AtomicU64::new(0));
        let of_records = Arc::clone(&lost);
        let sideband = Event::software(Software::Dummy).builder().task(true).comm(true);
        let monitor = EventMonitor::builder().thread(0).pages(1).sideband(&sideband.inherit(true), 16)
            .default_options(|event| event.exclude_hv(true))
            .records(move |view| match view.record() {
                Ok(Record::Lost(record)) => {
                    of_records.fetch_add(record.lost, Ordering::Relaxed);
                    Some(Value::Lost(record.lost))
                }
                Ok(Record::Fork(fork)) if view.event().is_none() => Some(Value::External(fork.tid.into())),
                _ => None,
            })
            .build().unwrap();
        let clock = Event::software(Software::TaskClock).builder().sample_period(1_000_000);
        let sampled = Arc::new(AtomicU64::new(0));
        let by_clock = Arc::clone(&sampled);
        let group = monitor.register(Registration::counters(clock, [
            Event::software(Software::PageFaults).builder(),
        ]).decoder(move |sample| {
            by_clock.fetch_add(1, Ordering::Relaxed);
            let counts = sample.counts()?.ok_or("no counts")?;
            let values: Vec<u64> = counts.iter().map(|count| count.value).collect();
            assert_eq!(values.len(), 2);
            Ok(Some(Value::Call { nr: values[0], tid: 0 }))
        })).unwrap();
        assert_eq!(monitor.registered_event_type(group), Some(EventType::Software));
        static WATCHED: AtomicU64 = AtomicU64::new(0);
        let address = &raw const WATCHED as u64;
        let watch = Event::breakpoint(address, 8, perf_monitor::BreakpointAccess::Write);
        let watch = monitor.register(
            Registration::event(watch)
                .options(|event| event.sample_period(1).sample(SampleFlags::ADDR).exclude_kernel(true))
                .decoder(move |sample| {
                    let addr = sample.sample()?.and_then(|s| s.addr).ok_or("no address")?;
                    Ok((addr == address).then_some(Value::Call { nr: 0, tid: 1 }))
                }),
        );
        let (mut clocks, mut writes, mut forks) = (0, 0, 0);
        let thread = while_running(&monitor, |sample| match sample.value.unwrap() {
            Value::Call { tid: 0, nr } => clocks += u64::from(nr > 0),
            Value::Call { .. } => writes += 1,
            Value::External(_) => forks += 1,
            Value::Lost(_) => {}
        }, || {
            // A virtual CPU that has to wait skips ticks of its clock.
            until("the clock is sampled", || {
                crate::support::spin_for(Duration::from_millis(5));
                sampled.load(Ordering::Relaxed) > 10
            });
            (0..10).for_each(|i| WATCHED.store(i, Ordering::Relaxed));
            std::thread::spawn(|| ()).join()
        });
        thread.unwrap();
        assert!(clocks > 10 && forks >= 1, "{clocks} {forks}");
        match watch {
            Ok(watch) => {
                assert_eq!(writes, 10);
                assert_eq!(monitor.registered_event_type(watch), Some(EventType::Breakpoint));
            }
            Err(error) => t.lacks(format!("no breakpoint: {error}")),
        }
    }

    fn tracepoints_are_registered_by_pattern(t) {
        can_trace(t)?;
        let monitor = EventMonitor::builder().thread(0).pages(16).build().unwrap();
        let ids = monitor.register_all("sched:sched_process_*", |name| {
            Registration::tracepoint(name).disabled().decoder(|_| Ok(Some(Value::Lost(0))))
        }).unwrap();
        let names: Vec<_> = ids.iter().map(|id| monitor.name(*id).unwrap()).collect();
        assert!(names.iter().any(|name| name == "sched:sched_process_fork"), "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("sched:sched_process_")), "{names:?}");
        let none = monitor.register_all("nosuch:*", |name| Registration::tracepoint(name));
        assert!(matches!(none, Err(Error::UnknownEvent { .. })), "{none:?}");
        let near = monitor.register(Registration::tracepoint("sched:sched_swich")).unwrap_err();
        assert!(near.to_string().contains("sched_switch"), "{near}");
    }

    fn guards_are_dropped_after_the_descriptors(t) {
        t.root()?;
        struct Guard(Arc<Mutex<Vec<usize>>>);
        impl Drop for Guard {
            fn drop(&mut self) {
                self.0.lock().unwrap().push(events_open());
            }
        }
        fn events_open() -> usize {
            let fds = std::fs::read_dir("/proc/self/fd").unwrap();
            let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            links.filter(|link| link.to_string_lossy().contains("perf_event")).count()
        }
        // Other tests have events open too: in a process of its own this is exact.
        if std::env::var_os("PERF_TEST_GUARDS").is_none() {
            let status = Command::new("/proc/self/exe")
                .args(["--exact", "monitor::guards_are_dropped_after_the_descriptors", "--test-threads=1"])
                .env("PERF_TEST_GUARDS", "1").status().unwrap();
            assert!(status.success());
            return Ok(());
        }
        let log = Arc::new(Mutex::new(Vec::new()));
        let before = events_open();
        let monitor = EventMonitor::<Value>::builder().thread(0).pages(1).build().unwrap();
        let rings = events_open() - before;
        let source = || EventSource::new(Event::software(Software::Dummy).builder())
            .guard(Guard(Arc::clone(&log)));
        let one = monitor.register(Registration::event(source())).unwrap();
        let _two = monitor.register(Registration::event(source())).unwrap();
        assert_eq!(events_open() - before, 3 * rings);
        monitor.unregister(one).unwrap();
        assert_eq!(*log.lock().unwrap(), [before + 2 * rings]);
        drop(monitor);
        assert_eq!(*log.lock().unwrap(), [before + 2 * rings, before]);
    }

    fn late_samples_are_those_that_are_found_late(t) {
        can_trace(t)?;
        if online_cpus().len() < 2 {
            return Err(t.refused("only one CPU"));
        }
        // 3 million of each, in a run of minutes. Emulated machines are slow.
        let wanted = match (is_long(), t.is_guest()) {
            (true, _) => 3_000_000,
            (_, true) => 6_000,
            _ => 150_000,
        };
        for (poll, slack) in [(0, 5_000), (200, 5_000), (2000, 5_000), (0, 0)] {
            let monitor = EventMonitor::builder().pages(1024)
                .poll_interval(Duration::from_micros(poll))
                .slack(Duration::from_micros(slack)).build().unwrap();
            let event = monitor.register(calls()).unwrap();
            let delivered = AtomicU64::new(0);
            let mut order = OrderCheck::default();
            while_running(&monitor, |sample| {
                order.record(sample.time, sample.late);
                delivered.fetch_add(1, Ordering::Relaxed);
            }, || while_all_cpus_call(|| until("enough samples", || {
                std::thread::sleep(Duration::from_millis(1)); // between two looks
                delivered.load(Ordering::Relaxed) > wanted
            })));
            let (counts, stats) = (monitor.counts(event).unwrap(), monitor.stats().set);
            assert_exact(counts, 1);
            assert_eq!(counts.delivered, order.records);
            assert_eq!((stats.late, stats.latest_by_nanos), (order.late, order.latest_by));
            assert_eq!(stats.rings.unknown_ids, 0);
            t.note(format!("poll {poll} µs, slack {slack} µs: {} samples, {} lost, {} late by at most {} ns, {} inversions",
                order.records, stats.rings.lost, stats.late, stats.latest_by_nanos, stats.inversions));
        }
    }

    fn events_are_registered_at_random_while_threads_fork_and_exit(t) {
        can_trace(t)?;
        let seed = std::env::var("PERF_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
        let duration = Duration::from_secs(if is_long() { 60 } else { 3 });
        // Emulated machines take up to a second for a step with 24 threads.
        let (most, threads) = if t.is_guest() && !is_long() { (15, 4) } else { (u32::MAX, 24) };
        let mut random = Random(seed);
        let monitor = EventMonitor::builder().pages(128).build().unwrap();
        let names = ["sched:sched_process_fork", "sched:sched_process_exit", "sched:sched_process_exec",
            "raw_syscalls:sys_enter", "raw_syscalls:sys_exit", "sched:sched_switch"];
        let stop = AtomicBool::new(false);
        let mut delivered = BTreeMap::<EventId, u64>::new();
        let mut order = OrderCheck::default();
        let (mut registered, mut disablings, mut at_end) = (0, 1, Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let stop = &stop;
                scope.spawn(move || while !stop.load(Ordering::Relaxed) {
                    if thread % 4 == 0 {
                        // A process; its end is a task's as well.
                        let _ = Command::new("/bin/true").status();
                    } else {
                        let _ = std::thread::Builder::new().spawn(|| getppid(20)).map(std::thread::JoinHandle::join);
                    }
                });
            }
            struct Stop<'a>(&'a AtomicBool);
            impl Drop for Stop<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let _stop = Stop(&stop);
            while_running(&monitor, |sample| {
                order.record(sample.time, sample.late);
                *delivered.entry(sample.event.unwrap()).or_default() += 1;
            }, || {
                let end = std::time::Instant::now() + duration;
                let mut open = Vec::new();
                let mut steps = 0..most;
                while steps.next().is_some() && std::time::Instant::now() < end {
                    let choice = random.next() % 10;
                    if open.len() < 4 || open.len() < 12 && choice < 4 {
                        let name = names[random.next() as usize % names.len()];
                        let registration = Registration::tracepoint(name)
                            .decoder(|sample| Ok(sample.data().map(|data| Value::Lost(data.len() as u64))));
                        open.push(monitor.register(registration).unwrap());
                        registered += 1;
                    } else {
                        let place = random.next() as usize % open.len();
                        disablings += u64::from(choice != 5);
                        match choice {
                            4 => monitor.disable(open[place]).unwrap(),
                            5 => monitor.enable(open[place]).unwrap(),
                            _ => monitor.unregister(open.swap_remove(place)).unwrap(),
                        }
                    }
                    // Nothing is awaited: each run has another order of calls and samples.
                    std::thread::sleep(Duration::from_micros(random.next() % 3000));
                }
                at_end = open;
            });
        });
        let mut passed = 0;
        for event in at_end {
            let counts = monitor.counts(event).unwrap();
            assert_exact(counts, disablings);
            assert_eq!(counts.delivered, delivered.get(&event).copied().unwrap_or(0));
            passed += counts.delivered;
        }
        let stats = monitor.stats();
        assert_exact(stats.unregistered, disablings);
        let missing = stats.unregistered.lost.map_or(0, |lost| {
            stats.unregistered.count - stats.unregistered.delivered - lost
        });
        passed += stats.unregistered.delivered;
        assert_eq!(passed, delivered.values().sum::<u64>());
        assert_eq!((stats.set.late, stats.set.rings.unknown_ids), (order.late, 0), "{stats:?}");
        t.note(format!("seed {seed}: {registered} registrations, {disablings} disablings, {passed} \
            samples, {} lost, {} late, {missing} missing", stats.set.rings.lost, stats.set.late));
    }

    fn a_monitor_measures_cpus_that_come_back(t) {
        t.guest()?;
        can_trace(t)?;
        let online = "/sys/devices/system/cpu/cpu1/online";
        if !std::path::Path::new(online).exists() {
            return Err(t.refused("no CPU can go offline"));
        }
        let monitor = EventMonitor::builder().pages(64).build().unwrap();
        monitor.register(calls()).unwrap();
        let on_cpu_1 = AtomicU64::new(0);
        let seen = || on_cpu_1.load(Ordering::SeqCst);
        let call_on_cpu_1 = || std::thread::spawn(|| {
            let mut set = rustix::thread::CpuSet::new();
            set.set(1);
            rustix::thread::sched_setaffinity(None, &set).unwrap();
            getppid(10);
        }).join().unwrap();
        while_running(&monitor, |sample| {
            on_cpu_1.fetch_add(u64::from(sample.cpu == Some(1)), Ordering::SeqCst);
        }, || {
            call_on_cpu_1();
            until("calls on CPU 1", || seen() == 10);
            // The monitor looks once a second for CPUs that went and came. A look that came too late
            // is one more try.
            until("calls on CPU 1 again", || {
                std::fs::write(online, "0").unwrap();
                std::thread::sleep(Duration::from_millis(1500));
                std::fs::write(online, "1").unwrap();
                std::thread::sleep(Duration::from_millis(1500));
                call_on_cpu_1();
                std::thread::sleep(Duration::from_millis(500));
                seen() > 10
            });
        });
    }

    fn a_monitor_of_a_process_sees_its_threads(t) {
        can_trace(t)?;
        let child = TestChild::start("tree 1000");
        let monitor = EventMonitor::builder().pid(child.tid).pages(64)
            .default_options(|event| event.inherit(true)).build().unwrap();
        let event = monitor.register(calls()).unwrap();
        let mut samples = 0;
        while_running(&monitor, |_| samples += 1, || child.go());
        assert_eq!(samples, 1000 + 500 + 250);
        assert_exact(monitor.counts(event).unwrap(), 0);
        let missing = EventMonitor::<Value>::builder().pid(u32::MAX / 2).build().unwrap_err();
        assert!(matches!(missing, Error::File { .. }), "{missing}");
        // A thread that was started before the event was registered, which does not inherit.
        let monitor = EventMonitor::builder().pid(std::process::id()).pages(64).build().unwrap();
        let (go, wait) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            wait.recv().unwrap();
            getppid(20);
            rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
        });
        let event = monitor.register(calls()).unwrap();
        let mut tids = Vec::new();
        let tid = while_running(&monitor, |sample| {
            if let Value::Call { tid, .. } = sample.value.unwrap() {
                tids.push(tid);
            }
        }, || {
            go.send(()).unwrap();
            thread.join().unwrap()
        });
        assert_eq!(tids.iter().filter(|other| **other == tid).count(), 20);
        assert_exact(monitor.counts(event).unwrap(), 0);
    }

    fn fields_of_external_events_are_decoded_at_their_turn(t) {
        can_trace(t)?;
        let monitor = EventMonitor::builder().thread(0).pages(64).build().unwrap();
        let calls = monitor.register(calls()).unwrap();
        let request = Registration::external("request")
            .field("size", FieldType::U32)
            .field("path", FieldType::Text)
            .decoder_of(|format| {
                let format = format.expect("it has fields");
                let [size, path] = ["size", "path"].map(|name| format.field(name).unwrap().clone());
                Ok(move |sample: &SampleView<'_>| {
                    let path = sample.text(&path).ok_or("no path")?;
                    let (_, tid) = sample.pid_tid().ok_or("no thread")?;
                    match (path, sample.u64(&size).ok_or("no size")?) {
                        (b"/drop", _) => Ok(None),
                        (b"/fail", _) => Err("refused".into()),
                        (path, size) => Ok(Some(Value::Call { nr: size + path.len() as u64, tid })),
                    }
                })
            });
        let request = monitor.register(request).unwrap();
        let not_external = Registration::tracepoint("raw_syscalls:sys_enter").field("x", FieldType::U8);
        let refused = monitor.register(not_external).unwrap_err();
        assert!(matches!(refused, Error::NotExternal { .. }), "{refused}");
        let twice = Registration::external("twice").field("x", FieldType::U8).field("x", FieldType::U8);
        assert!(matches!(monitor.register(twice), Err(Error::ExternalField { .. })));
        let mut seen = Vec::new();
        while_running(&monitor, |sample| seen.push(sample), || {
            let enqueue = |path: &[u8], size| {
                let values = [("size", FieldValue::Unsigned(size)), ("path", FieldValue::Text(path))];
                monitor.enqueue_fields(request, monitor.now(), &values)
            };
            getppid(1);
            assert!(enqueue(b"/a", 40).unwrap());
            getppid(1);
            assert!(enqueue(b"/drop", 0).unwrap() && enqueue(b"/fail", 0).unwrap());
            let refused = enqueue(b"/a", 1 << 40).unwrap_err();
            assert!(refused.to_string().contains("\"size\""), "{refused}");
            let refused = monitor.enqueue_fields(calls, monitor.now(), &[]).unwrap_err();
            assert!(matches!(refused, Error::NotExternal { .. }), "{refused}");
            // What was enqueued before is still delivered.
            let values = [("size", FieldValue::Unsigned(7))];
            let future = monitor.now().saturating_add_nanos(3_600_000_000_000);
            assert!(monitor.enqueue_fields(request, future, &values).unwrap());
            let counts = monitor.counts(request).unwrap();
            assert_eq!((counts.dropped + counts.errors) / 3, 0);
            monitor.unregister(request).unwrap();
            assert!(matches!(enqueue(b"/a", 1), Err(Error::NotRegistered)));
        });
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let shown: Vec<_> = seen.iter().map(|sample| match &sample.value {
            Ok(Value::Call { nr, tid: of }) => {
                assert_eq!(*of, tid);
                (sample.event == Some(request), *nr)
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => (error.to_string() == "refused", 0),
        }).collect();
        assert_eq!(shown, [(false, GETPPID), (true, 42), (false, GETPPID), (true, 0), (true, 7)]);
        let counts = monitor.stats().unregistered;
        assert_eq!((counts.count, counts.delivered, counts.dropped, counts.errors), (4, 3, 1, 1));
    }

    fn the_reading_thread_is_realtime_while_it_reads(t) {
        can_trace(t)?;
        let policy = || perf_sys::sched_getscheduler().unwrap();
        let ordinary = policy();
        {
            let _realtime = perf_monitor::RealtimeThread::begin(5).unwrap();
            assert_eq!(policy(), perf_sys::SchedPolicy::fifo(5));
            // What it starts is not realtime.
            assert_eq!(std::thread::spawn(policy).join().unwrap(), ordinary);
        }
        assert_eq!(policy(), ordinary);
        let refused = perf_monitor::RealtimeThread::begin(100).unwrap_err();
        assert!(matches!(refused, Error::Realtime { priority: 100, .. }), "{refused}");
        let monitor = EventMonitor::builder().thread(0).pages(64).realtime(3).build().unwrap();
        let calls = calls().decoder(move |_| {
            let is_realtime = policy() == perf_sys::SchedPolicy::fifo(3);
            Ok(Some(Value::External(is_realtime.into())))
        });
        monitor.register(calls).unwrap();
        let mut seen = Vec::new();
        while_running(&monitor, |sample| seen.push(sample.value.unwrap()), || getppid(10));
        assert_eq!(seen, [Value::External(1); 10]);
        // A priority that does not exist is an error of the run, and leaves nothing behind.
        let monitor = EventMonitor::<Value>::builder().thread(0).pages(64).realtime(100).build().unwrap();
        let refused = monitor.run(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::Realtime { .. }) && !monitor.is_running(), "{refused}");
    }

    fn throttling_is_in_the_counts_of_its_event(t) {
        t.root()?;
        t.guest()?;
        // One sample in a tick of the timer: an emulated CPU takes few more where the host is loaded.
        let rate = Setting::write("/proc/sys/kernel/perf_event_max_sample_rate", "1");
        let monitor = EventMonitor::<Value>::builder().thread(0).pages(256).build().unwrap();
        let clock = |period| {
            let clock = Event::software(Software::CpuClock).builder().sample_period(period);
            monitor.register(Registration::event(clock)).unwrap()
        };
        let (fast, slow) = (clock(20_000), clock(1_000_000_000));
        while_running(&monitor, |_| (), || until("it is throttled", || {
            crate::support::spin_for(Duration::from_millis(20));
            monitor.counts(fast).unwrap().throttled > 0
        }));
        drop(rate);
        let (fast, slow) = (monitor.counts(fast).unwrap(), monitor.counts(slow).unwrap());
        assert_eq!(fast.throttled, monitor.stats().set.rings.throttled, "{fast:?}");
        assert_eq!(slow.throttled, 0, "{slow:?}");
    }
}

/// Runs of minutes: `PERF_TEST_LONG=1`.
fn is_long() -> bool {
    std::env::var_os("PERF_TEST_LONG").is_some_and(|value| value != "0")
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// The monitor is used by several threads.
#[test]
fn monitors_are_shared_by_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<EventMonitor<Value>>();
    let _: fn(Timestamp) = |_| ();
}
