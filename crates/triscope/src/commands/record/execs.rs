//! Programs when they start. The recorder reads the kernel's buffers every 10 ms; a program that has
//! ended by then has no command line in `/proc`. A thread that waits for nothing else reads it at once.
//! Of a program that has ended before that, the path is known from the record of its `execve(2)`.

use crate::sources::kernel;
use crossbeam_channel::{Receiver, Sender, bounded};
use perf_monitor::{FieldFormat, NiceThread, ProcessInfo, RingSet, SampleFlags, Timestamp};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Programs between two rounds of the recorder. Those above the limit are read by the recorder, if
/// they still run.
const QUEUE: usize = 1 << 12;

/// Pages of the buffer of each CPU.
const PAGES: usize = 4;

/// Nice value of the thread, if this user may set it.
const NICE: i32 = -15;

/// A program that was executed.
struct Exec {
    /// The time of `sched_process_exec`: after the record of the process's new name.
    at: Timestamp,
    pid: u32,
    program: ProcessInfo,
}

/// The programs that start on this machine.
pub(super) struct Execs {
    received: Receiver<Exec>,
    /// By process, earliest first.
    waiting: HashMap<u32, VecDeque<Exec>>,
    count: usize,
    is_over: Arc<AtomicBool>,
}

impl Drop for Execs {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Execs {
    /// Starts to read programs. Needs the tracepoints of the machine.
    pub(super) fn start() -> perf_monitor::Result<Self> {
        let tracefs = kernel::tracefs()?;
        let event = tracefs.event("sched", "sched_process_exec")?;
        let path = tracefs.format("sched", "sched_process_exec")?.field("filename").cloned();
        let mut set = RingSet::builder().pages(PAGES).wakeup_watermark(1).open()?;
        set.add(&event.builder().sample_period(1).sample(SampleFlags::TID | SampleFlags::RAW))?;
        set.enable()?;
        let (sender, received) = bounded(QUEUE);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let spawned = thread::Builder::new()
            .name("programs".to_owned())
            .spawn(move || read(&mut set, path.as_ref(), &sender, &ends));
        // Without the thread, the recorder reads them.
        drop(spawned);
        Ok(Self { received, waiting: HashMap::new(), count: 0, is_over })
    }

    /// Takes over what was read, once in each round: otherwise the programs of others leave no room for the next one.
    /// Those before this time are forgotten. The names of their processes were passed on, and none of them was drawn.
    pub(super) fn drain(&mut self, before: Timestamp) {
        self.receive();
        let Self { waiting, count, .. } = self;
        waiting.retain(|_, execs| {
            while execs.front().is_some_and(|exec| exec.at < before) {
                execs.pop_front();
                *count -= 1;
            }
            !execs.is_empty()
        });
    }

    fn receive(&mut self) {
        while let Ok(exec) = self.received.try_recv() {
            if self.count >= QUEUE {
                // Of processes whose names are not recorded.
                (self.waiting, self.count) = (HashMap::new(), 0);
            }
            self.count += 1;
            self.waiting.entry(exec.pid).or_default().push_back(exec);
        }
    }

    /// The program of a process that got its name at this time.
    pub(super) fn take(&mut self, pid: u32, at: Timestamp) -> Option<ProcessInfo> {
        self.receive();
        let execs = self.waiting.get_mut(&pid)?;
        let before = execs.len();
        while execs.front().is_some_and(|exec| exec.at < at) {
            execs.pop_front();
        }
        let found = execs.pop_front();
        self.count -= before - execs.len();
        if execs.is_empty() {
            self.waiting.remove(&pid);
        }
        found.map(|exec| exec.program)
    }
}

/// Reads programs until the recording is over, or the events fail: the recorder reads the rest.
fn read(
    set: &mut RingSet,
    path: Option<&FieldFormat>,
    sender: &Sender<Exec>,
    is_over: &AtomicBool,
) {
    /// The longest time until the end is noticed.
    const LOOK: Duration = Duration::from_millis(100);
    let _nice = NiceThread::begin(NICE);
    while !is_over.load(Ordering::Relaxed) && set.wait(Some(LOOK)).is_ok() {
        let read = set.read_unordered(|record| {
            let Some((pid, _)) = record.layout.pid_tid(record.raw) else { return Ok(()) };
            let of_record = || {
                let path = path?.text(record.layout.raw_data(record.raw)?)?;
                let mut program = ProcessInfo::default();
                program.pid = pid;
                program.executable = Some(String::from_utf8_lossy(path).into_owned());
                Some(program)
            };
            if let Some(program) = ProcessInfo::read(pid).or_else(of_record) {
                // A full queue: the recorder reads it.
                let _ = sender.try_send(Exec { at: record.time, pid, program });
            }
            Ok::<(), perf_monitor::Error>(())
        });
        if read.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: i64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn execs(times: &[(i64, u32)]) -> (Execs, Sender<Exec>) {
        let (sender, received) = bounded(QUEUE);
        let program = ProcessInfo::read(std::process::id()).unwrap();
        for (time, pid) in times {
            let mut program = program.clone();
            program.arguments = vec![time.to_string()];
            sender.send(Exec { at: at(*time), pid: *pid, program }).unwrap();
        }
        let (waiting, is_over) = (HashMap::new(), Arc::default());
        (Execs { received, waiting, count: 0, is_over }, sender)
    }

    #[test]
    fn a_program_is_that_of_the_next_execve() {
        let (mut execs, _sender) = execs(&[(10, 1), (12, 2), (20, 1), (30, 1)]);
        let mut take = |pid, time| execs.take(pid, at(time)).map(|p| p.arguments.concat());
        assert_eq!(take(1, 9).as_deref(), Some("10"));
        assert_eq!(take(1, 25).as_deref(), Some("30"), "the one at 20 is of an earlier name");
        assert_eq!(take(1, 31), None);
        assert_eq!(take(2, 11).as_deref(), Some("12"));
        assert_eq!(take(3, 0), None);
        assert_eq!((execs.count, execs.waiting.len()), (0, 0));
    }

    /// Nobody asks for the programs of other processes.
    #[test]
    fn programs_of_others_leave_room_for_the_next_one() {
        let (mut execs, sender) = execs(&[]);
        let program = ProcessInfo::read(std::process::id()).unwrap();
        let exec = |time, pid| Exec { at: at(time), pid, program: program.clone() };
        for pid in 0..QUEUE as u32 {
            assert!(sender.try_send(exec(1, pid)).is_ok());
        }
        execs.drain(at(2));
        assert_eq!((execs.count, execs.waiting.len()), (0, 0));
        assert!(sender.try_send(exec(5, 7)).is_ok());
        execs.drain(at(5));
        assert!(execs.take(7, at(4)).is_some(), "its name is not older");
        assert_eq!((execs.count, execs.waiting.len()), (0, 0));
    }

    #[test]
    fn programs_that_are_not_taken_are_forgotten() {
        let (mut execs, sender) = execs(&[]);
        let program = ProcessInfo::read(std::process::id()).unwrap();
        for pid in 0..3 * QUEUE as u32 {
            sender.send(Exec { at: at(1), pid, program: program.clone() }).unwrap();
            let _ = execs.take(u32::MAX, at(0));
            assert!(execs.count <= QUEUE && execs.waiting.len() <= QUEUE);
        }
    }
}
