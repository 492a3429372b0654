use crate::kernel_tests;
use crate::support::{ReadAll, until};
use perf_monitor::{
    Counter, Error, Event, EventBuilder, Group, Hardware, OpenErrorReason, Pmu, Record,
    SampleFlags, Target,
};

fn user(event: Hardware) -> EventBuilder {
    Event::hardware(event).builder().exclude_kernel(true).exclude_hv(true)
}

/// A loop of a known number of instructions on arm64: two per turn.
#[inline(never)]
fn turns(n: u64) {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: it changes the one register that it names.
    unsafe {
        std::arch::asm!("2: subs {n}, {n}, #1", "b.ne 2b", n = inout(reg) n => _);
    }
    #[cfg(not(target_arch = "aarch64"))]
    for i in 0..n {
        std::hint::black_box(i);
    }
}

fn measure(counter: &Counter, n: u64) -> u64 {
    counter.reset().unwrap();
    counter.enable().unwrap();
    turns(n);
    counter.disable().unwrap();
    counter.read().unwrap().value
}

use std::time::Duration;

kernel_tests! {
    fn cycles_grow_with_the_work(t) {
        t.hardware()?;
        let cycles = user(Hardware::CpuCycles).open(Target::ThisThread).unwrap();
        // An emulated PMU takes its cycles from the clock of a machine that may be busy.
        let tries = if t.is_icount() { 1 } else { 10 };
        let grown = (0..tries).any(|_| {
            let (short, long) = (measure(&cycles, 1_000_000), measure(&cycles, 4_000_000));
            t.note(format!("1 M turns {short} cycles, 4 M turns {long}"));
            assert!(short > 0);
            long > 2 * short
        });
        assert!(grown);
    }

    fn instructions_are_exact(t) {
        t.hardware()?;
        let instructions = match user(Hardware::Instructions).open(Target::ThisThread) {
            Ok(counter) => counter,
            Err(error) => {
                assert!(!t.is_icount(), "{error}");
                return Err(t.refused(error));
            }
        };
        let (short, long) = (measure(&instructions, 1_000_000), measure(&instructions, 3_000_000));
        t.note(format!("1 M turns {short} instructions, 3 M turns {long}"));
        if t.is_icount() {
            // Twice 2 instructions for each turn more; what is around is the same.
            let difference = long - short;
            assert!(difference.abs_diff(4_000_000) < 4_000, "{difference}");
        }
    }

    fn hardware_groups_count_together(t) {
        t.hardware()?;
        let mut group = Group::open(&user(Hardware::CpuCycles), Target::ThisThread).unwrap();
        for _ in 0..2 {
            group.add(&user(Hardware::CpuCycles)).unwrap();
        }
        until("equal counts", || {
            let ((), counts) = group.measure(|| turns(2_000_000)).unwrap();
            assert_eq!(counts[0].time_running, counts[2].time_running);
            let (a, b) = (counts[0].value, counts[2].value);
            t.note(format!("{a} and {b} cycles"));
            // An emulated PMU reads the clock of a machine that may be busy between the two.
            a > 0 && a.abs_diff(b) < a / 10
        });
    }

    fn raw_events_are_event_numbers_of_the_cpu(t) {
        t.hardware()?;
        if cfg!(not(target_arch = "aarch64")) {
            return Err(t.refused("the numbers are those of arm64"));
        }
        // CPU_CYCLES of the architecture's manual, together with what the kernel calls cycles.
        let mut group = Group::open(&user(Hardware::CpuCycles), Target::ThisThread).unwrap();
        let raw = Event::parse("r11").unwrap().builder().exclude_kernel(true).exclude_hv(true);
        group.add(&raw).unwrap();
        until("equal counts", || {
            let ((), counts) = group.measure(|| turns(1_000_000)).unwrap();
            let (a, b) = (counts[0].value, counts[1].value);
            a > 0 && a.abs_diff(b) < a / 10
        });
        if t.is_icount() {
            // INST_RETIRED: two instructions for each turn.
            let instructions = Event::raw(8).builder().exclude_kernel(true)
                .open(Target::ThisThread).unwrap();
            let difference = measure(&instructions, 3_000_000) - measure(&instructions, 1_000_000);
            assert!(difference.abs_diff(4_000_000) < 4_000, "{difference}");
        }
    }

    fn cache_events_count_or_do_not_exist(t) {
        t.root()?;
        let mut counted = Vec::new();
        for event in Event::all_cache() {
            match event.builder().exclude_kernel(true).exclude_hv(true).open(Target::ThisThread) {
                Ok(counter) => {
                    measure(&counter, 1000);
                    counted.push(event.to_string());
                }
                Err(error) => {
                    assert_eq!(error.reason(), Some(&OpenErrorReason::NoSuchEvent), "{error}");
                    assert!(error.to_string().contains("does not have the event"), "{error}");
                }
            }
        }
        t.note(format!("{} of {}: {}", counted.len(), Event::all_cache().count(), counted.join(" ")));
        if counted.is_empty() {
            return Err(t.refused("no cache event"));
        }
    }

    fn a_group_bigger_than_the_pmu_is_refused(t) {
        t.hardware()?;
        let mut group = Group::open(&user(Hardware::CpuCycles), Target::ThisThread).unwrap();
        let error = (0..64).find_map(|_| group.add(&user(Hardware::CpuCycles)).err());
        let error = error.expect("no PMU has 64 counters");
        t.note(format!("{} counters, then: {error}", group.counters().len()));
        assert!(matches!(error.reason(), Some(OpenErrorReason::Group | OpenErrorReason::NoCounters)), "{error}");
    }

    fn multiplexed_counters_are_scaled(t) {
        t.hardware()?;
        let counters: Vec<Counter> = (0..12)
            .map(|_| user(Hardware::CpuCycles).open(Target::ThisThread).unwrap()).collect();
        // The longer they take turns, the better the estimates agree.
        until("estimates that agree", || {
            counters.iter().for_each(|c| c.enable().unwrap());
            crate::support::spin_for(Duration::from_millis(100));
            counters.iter().for_each(|c| c.disable().unwrap());
            let counts: Vec<_> = counters.iter().map(|c| c.read().unwrap()).collect();
            // A counter that never had its turn is not left out: there is no estimate then.
            let scaled: Option<Vec<_>> = counts.iter().map(perf_monitor::Count::scaled).collect();
            let Some(scaled) = scaled else { return false };
            assert!(scaled.iter().any(|s| s.is_estimate), "12 counters do not fit: {counts:?}");
            assert!(scaled.iter().all(|s| s.coverage > 0.0 && s.coverage <= 1.0), "{scaled:?}");
            assert!(counts.iter().zip(&scaled).all(|(c, s)| s.value >= c.value));
            let coverage: Vec<_> = scaled.iter().map(|s| format!("{:.2}", s.coverage)).collect();
            t.note(format!("coverage {}", coverage.join(" ")));
            let value = || scaled.iter().map(|s| s.value);
            value().max() < value().min().map(|min| 2 * min)
        });
    }

    fn overflows_are_sampled(t) {
        t.hardware()?;
        let mut sampler = user(Hardware::CpuCycles)
            .sample_period(200_000).sample(SampleFlags::IP | SampleFlags::PERIOD | SampleFlags::TIME)
            .open_sampler(Target::ThisThread, 64).unwrap();
        sampler.counter().enable().unwrap();
        turns(10_000_000);
        sampler.counter().disable().unwrap();
        let cycles = sampler.counter().read().unwrap().value;
        let (mut samples, mut here) = (0, 0);
        let at = turns as *const () as u64;
        sampler.drain_all(|r| if let Record::Sample(s) = r {
            assert_eq!(s.period, Some(200_000));
            samples += 1;
            here += u64::from(s.ip.unwrap().abs_diff(at) < 4096);
        }).unwrap();
        t.note(format!("{cycles} cycles, {samples} samples, {here} of them in the loop"));
        assert!(samples > 0 && samples <= cycles / 200_000 + 1);
        if t.is_icount() {
            assert!(samples + 2 >= cycles / 200_000, "none is missing: {samples} of {cycles}");
            assert!(here * 10 >= samples * 9);
        }
    }

    fn frequencies_adapt(t) {
        t.hardware()?;
        let mut sampler = user(Hardware::CpuCycles)
            .sample_freq(1000).sample(SampleFlags::IP | SampleFlags::PERIOD)
            .open_sampler(Target::ThisThread, 64).unwrap();
        sampler.counter().enable().unwrap();
        let mut periods = Vec::new();
        until("a longer period", || {
            crate::support::spin_for(Duration::from_millis(20));
            sampler.drain_all(|r| if let Record::Sample(s) = r { periods.extend(s.period) }).unwrap();
            periods.len() > 5 && periods.last() > periods.first()
        });
        t.note(format!("{} samples, last period {:?}", periods.len(), periods.last()));
    }

    fn counters_are_read_in_user_space(t) {
        t.hardware()?;
        let knob = "/proc/sys/kernel/perf_user_access";
        let mut builder = user(Hardware::CpuCycles);
        if std::path::Path::new(knob).exists() {
            t.guest()?;
            std::fs::write(knob, "1").unwrap();
            builder.attr_mut().config1 = 3;
        }
        let counter = builder.open(Target::ThisThread).unwrap();
        let page = counter.user_page().unwrap();
        counter.enable().unwrap();
        if !page.offers_rdpmc() {
            return Err(t.refused("cap_user_rdpmc is not offered"));
        }
        let before = page.read().value.expect("the event is on a counter");
        turns(100_000);
        let after = page.read().value.unwrap();
        let by_call = counter.read().unwrap().value;
        t.note(format!("100 k turns {} cycles by instruction", after - before));
        assert!(after > before && by_call >= after, "{before} {after} {by_call}");
        if page.offers_time() {
            const SLACK: u64 = 1_000_000; // the two clocks drift
            // Between two readings of the kernel, however long the thread was off the CPU.
            let enabled = || counter.read().unwrap().time_enabled.unwrap();
            let (before, read, after) = (enabled(), page.read(), enabled());
            let inside = before.saturating_sub(SLACK)..=after + SLACK;
            assert!(read.times_are_current && inside.contains(&read.time_enabled), "{read:?}");
        }
    }

    fn a_pinned_event_off_the_pmu_is_an_error(t) {
        t.hardware()?;
        // More pinned counters than the PMU has: some must go to the error state.
        let mut counters = Vec::new();
        for _ in 0..16 {
            let counter = user(Hardware::CpuCycles).pinned(true).open(Target::ThisThread).unwrap();
            counter.enable().unwrap();
            counters.push(counter);
        }
        let out = counters.iter().filter(|c| matches!(c.read(), Err(Error::PinnedOut { .. }))).count();
        t.note(format!("{out} of 16 pinned counters are out"));
        assert!(out > 0 && out < 16);
    }

    fn named_events_of_the_cpu_count(t) {
        t.hardware()?;
        let Some(pmu) = ["armv8_pmuv3", "armv8_pmuv3_0", "armv8_cortex_a57", "cpu"].iter()
            .find_map(|n| Pmu::open(n).ok()) else { return Err(t.refused("no CPU PMU in sysfs")) };
        t.note(format!("{}: {} events, terms {}", pmu.name(), pmu.events().len(), pmu.terms().join(" ")));
        let name = if pmu.name() == "cpu" { "cpu-cycles" } else { "cpu_cycles" };
        let counter = pmu.event(name).unwrap().builder()
            .exclude_kernel(true).open(Target::ThisThread).unwrap();
        assert!(measure(&counter, 1_000_000) > 0);
    }
}
