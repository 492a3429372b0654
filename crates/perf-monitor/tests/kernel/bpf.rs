//! BPF programs that decide what an event records.

use crate::kernel_tests;
use crate::support::{ReadAll, touch_pages};
use perf_monitor::{Error, Event, SampleFlags, Sampler, Software, Target};
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getpriority_process, getrlimit, setrlimit};
use std::io;

/// `BPF_PROG_TYPE_*`.
#[derive(Clone, Copy)]
pub(crate) enum ProgramType {
    SocketFilter = 1,
    Tracepoint = 5,
    PerfEvent = 7,
}

/// Loads a program of two instructions: it returns `result`.
pub(crate) fn load(kind: ProgramType, result: u32) -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: i32 = 5;
    let instructions = [0xb7 | u64::from(result) << 32, 0x95]; // r0 = result; exit
    let license = c"GPL";
    let mut attr = [0u64; 16];
    attr[0] = kind as u64 | (instructions.len() as u64) << 32;
    attr[1] = instructions.as_ptr() as u64;
    attr[2] = license.as_ptr() as u64;
    // Before Linux 5.11 programs are locked memory.
    let before = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    // SAFETY: the pointers in the attribute live until the call is over.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, attr.as_ptr(), size_of_val(&attr)) };
    let error = io::Error::last_os_error();
    setrlimit(Resource::Memlock, before)?;
    if fd < 0 {
        return Err(error);
    }
    // SAFETY: a new descriptor, ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Calls that hardly anyone else makes: a program at the tracepoint is everyone's.
fn calls(times: usize) {
    for _ in 0..times {
        std::hint::black_box(getpriority_process(None)).unwrap();
    }
}

fn at_getpriority() -> Sampler {
    Event::tracepoint("syscalls", "sys_enter_getpriority")
        .unwrap()
        .builder()
        .sample_period(1)
        .sample(SampleFlags::TID)
        .open_sampler(Target::ThisThread, 8)
        .unwrap()
}

fn count(sampler: &mut Sampler) -> (u64, usize) {
    sampler.counter().reset().unwrap();
    sampler.counter().enable().unwrap();
    calls(10);
    sampler.counter().disable().unwrap();
    (sampler.counter().read().unwrap().value, sampler.drain_all(|_| ()).unwrap())
}

#[track_caller]
fn refused(result: perf_monitor::Result<()>, errno: Errno, hint: &str) {
    let error = result.unwrap_err();
    assert!(matches!(&error, Error::Control { errno: e, .. } if *e == errno), "{error}");
    assert!(error.to_string().contains(hint), "{error}");
}

kernel_tests! {
    fn bpf_programs_filter_a_tracepoint(t) {
        t.tracefs()?;
        let mut sampler = at_getpriority();
        assert_eq!(sampler.counter().query_bpf().unwrap(), [], "none yet");
        assert_eq!(count(&mut sampler), (10, 10));

        let no_program = std::fs::File::open("/dev/null").unwrap();
        refused(sampler.counter().set_bpf(no_program.as_fd()), Errno::INVAL, "not a BPF program");
        let other = load(ProgramType::SocketFilter, 0).map_err(|e| t.refused(e))?;
        refused(sampler.counter().set_bpf(other.as_fd()), Errno::INVAL, "of the type");

        let keep = load(ProgramType::Tracepoint, 1).unwrap();
        sampler.counter().set_bpf(keep.as_fd()).unwrap();
        assert_eq!(count(&mut sampler), (10, 10), "it returns 1");
        assert_eq!(sampler.counter().query_bpf().unwrap().len(), 1);

        // What it drops is dropped for every event of the tracepoint.
        let mut other = at_getpriority();
        let drop_all = load(ProgramType::Tracepoint, 0).unwrap();
        other.counter().set_bpf(drop_all.as_fd()).unwrap();
        drop(drop_all);
        assert_eq!(count(&mut other), (0, 0), "it returns 0");
        assert_eq!(count(&mut sampler), (0, 0), "for the other event, too");
        let ids = sampler.counter().query_bpf().unwrap();
        assert!(ids.len() == 2 && ids[0] != ids[1] && !ids.contains(&0), "{ids:?}");
        drop(other);
        assert_eq!(count(&mut sampler), (10, 10), "the program went with its event");
        assert_eq!(sampler.counter().query_bpf().unwrap().len(), 1);
    }

    fn bpf_programs_filter_samples(t) {
        t.root()?;
        let mut sampler = Event::software(Software::PageFaults).builder()
            .sample_period(1).sample(SampleFlags::ADDR)
            .open_sampler(Target::ThisThread, 16).unwrap();
        refused(sampler.counter().query_bpf().map(drop), Errno::INVAL, "only tracepoints");
        let wrong = load(ProgramType::SocketFilter, 0).map_err(|e| t.refused(e))?;
        refused(sampler.counter().set_bpf(wrong.as_fd()), Errno::INVAL, "of the type");
        let drop_all = load(ProgramType::PerfEvent, 0).unwrap();
        sampler.counter().set_bpf(drop_all.as_fd()).unwrap();
        refused(sampler.counter().set_bpf(drop_all.as_fd()), Errno::EXIST, "already");
        sampler.counter().enable().unwrap();
        touch_pages(20);
        sampler.counter().disable().unwrap();
        assert!(sampler.counter().read().unwrap().value >= 20, "it counts");
        assert_eq!(sampler.drain_all(|_| ()).unwrap(), 0, "but is not sampled");
    }
}
