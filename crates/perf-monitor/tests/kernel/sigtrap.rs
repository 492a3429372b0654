//! Signals of events, and what `execve(2)` does to them.

use crate::kernel_tests;
use crate::support::{GETPPID, TestChild, touch_pages};
use perf_monitor::{
    BreakpointAccess, Event, EventBuilder, SampleFlags, SigtrapReceiver, Software, Target,
};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A watched variable.
static WATCHED: AtomicU64 = AtomicU64::new(0);

const SIGTRAP: i32 = 5;
const DATA: u64 = 0xfeed_0000_c0de;

fn trapping(event: &Event) -> EventBuilder {
    event
        .builder()
        .exclude_kernel(true)
        .exclude_hv(true)
        .sample_period(1)
        .sample(SampleFlags::ADDR)
        .remove_on_exec(true)
        .sigtrap(true)
        .sig_data(DATA)
}

fn trapping_faults() -> EventBuilder {
    trapping(&Event::software(Software::PageFaults))
}

/// In a child: the signal ends it.
pub(crate) fn trap() {
    let faults = trapping_faults().open(Target::ThisThread).unwrap();
    faults.enable().unwrap();
    touch_pages(3);
}

kernel_tests! {
    fn signals_of_events_are_received(t) {
        t.root()?;
        let faults = t.needs(trapping_faults().open(Target::ThisThread), (5, 13))?;
        let traps = SigtrapReceiver::block().unwrap();
        assert_eq!(traps.wait(Duration::ZERO).unwrap(), None);
        faults.enable().unwrap();
        touch_pages(3);
        faults.disable().unwrap();
        let trap = traps.wait(Duration::ZERO).unwrap().expect("three pages were touched");
        assert_eq!((trap.sig_data, trap.type_), (DATA, faults.event().type_()));
        assert!(trap.is_async && trap.address != 0, "{trap:x?}");
        assert_eq!(traps.wait(Duration::ZERO).unwrap(), None, "signals do not queue");
        assert!(faults.read().unwrap().value >= 3, "but all of them count");
        assert_eq!(traps.wait(Duration::from_millis(5)).unwrap(), None, "it waits in vain");
    }

    fn a_watched_variable_traps(t) {
        t.root()?;
        if cfg!(not(target_arch = "x86_64")) {
            // The access is made again after the signal, for ever: a watchpoint of arm64 stops
            // before it, and the emulated machine never gets over it.
            return Err(t.refused("a trapping watchpoint of this architecture never ends"));
        }
        let address = (&raw const WATCHED) as u64;
        let watch = trapping(&Event::breakpoint(address, 8, BreakpointAccess::Write));
        let watch = t.needs(watch.open(Target::ThisThread), (5, 13))?;
        let traps = SigtrapReceiver::block().unwrap();
        watch.enable().unwrap();
        for i in 1..=3 {
            WATCHED.store(i, Ordering::Relaxed);
            let trap = traps.wait(Duration::ZERO).unwrap().expect("a signal for each write");
            assert_eq!((trap.sig_data, trap.address), (DATA, address));
            assert_eq!(trap.type_, perf_sys::PERF_TYPE_BREAKPOINT);
        }
        watch.disable().unwrap();
        // A signal that nobody took does not end the process when the thread takes signals again.
        watch.enable().unwrap();
        WATCHED.store(0, Ordering::Relaxed);
        watch.disable().unwrap();
        drop(traps);
    }

    fn a_signal_without_receiver_ends_the_process(t) {
        t.root()?;
        t.needs(trapping_faults().open(Target::ThisThread), (5, 13))?;
        let status = TestChild::start("trap").go_to_its_end();
        assert_eq!(status.signal(), Some(SIGTRAP), "{status}");
    }

    fn remove_on_exec_ends_an_event(t) {
        t.tracefs()?;
        let event = Event::tracepoint("raw_syscalls", "sys_enter").unwrap();
        for (remove, want) in [(false, 200), (true, 100)] {
            let child = TestChild::start("exec 100");
            // The test harness of the new program may run the calls in a thread of their own.
            let builder = event.builder().inherit(true).remove_on_exec(remove);
            let counter = t.needs(builder.open(Target::Thread(child.tid)), (5, 13))?;
            counter.set_filter(&format!("id == {GETPPID}")).unwrap();
            counter.enable().unwrap();
            child.go();
            let count = counter.read().unwrap();
            assert_eq!(count.value, want, "remove_on_exec {remove}: {count:?}");
        }
    }
}
