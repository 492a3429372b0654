//! perf-monitor, and what its peers need as well.

use crate::flood::Flood;
use crate::{Error, Outcome};
use perf_monitor::{Event, FieldFormat, Record, SampleFlags, Sampler, Target, Tracefs};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::process::Command;
use std::time::Duration;

/// The CPU that readers are on.
pub(crate) const CPU: usize = 0;

/// How long a reader waits for records before it asks whether the flood is done.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(5);

/// Puts this thread, and the processes that it will start, on one CPU.
pub(crate) fn pin(cpu: usize) -> Result<(), Error> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// CPU time of this thread.
pub(crate) fn thread_cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Who comes before the ordinary work of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    Nobody,
    Reader,
    Both,
}

/// While it lives, the reader or both come before all ordinary processes of their CPUs.
pub(crate) struct Realtime {
    pids: Vec<u32>,
}

impl Realtime {
    pub(crate) fn begin(first: First, flood: &Flood) -> Result<Self, Error> {
        let all = [std::process::id(), flood.pid()];
        let count = match first {
            First::Nobody => 0,
            First::Reader => 1,
            First::Both => 2,
        };
        let mut this = Self { pids: Vec::new() };
        for pid in all.into_iter().take(count) {
            chrt(&["--fifo", "--pid", "10"], pid)?;
            this.pids.push(pid);
        }
        Ok(this)
    }
}

impl Drop for Realtime {
    fn drop(&mut self) {
        for pid in &self.pids {
            if let Err(error) = chrt(&["--other", "--pid", "0"], *pid) {
                eprintln!("process {pid} is still real-time: {error}");
            }
        }
    }
}

fn chrt(args: &[&str], pid: u32) -> Result<(), Error> {
    let status = Command::new("chrt").args(args).arg(pid.to_string()).status()?;
    if status.success() { Ok(()) } else { Err(format!("chrt: {status}").into()) }
}

/// What is done with a record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Depth {
    /// It is lent.
    Raw,
    /// Id, thread, time, CPU, and a field of the tracepoint.
    FiveFields,
    /// All of it is decoded.
    Sample,
    /// It is lent and written to a file, as `perf record` does.
    File,
}

pub(crate) fn perf_monitor(
    flood: &mut Flood,
    pages: usize,
    depth: Depth,
) -> Result<Outcome, Error> {
    let before = thread_cpu_nanos();
    let fields = SampleFlags::IDENTIFIER
        | SampleFlags::TID
        | SampleFlags::TIME
        | SampleFlags::CPU
        | SampleFlags::RAW;
    let mut sampler = Event::tracepoint("raw_syscalls", "sys_enter")?
        .builder()
        .sample_period(1)
        .sample(fields)
        .wakeup_watermark((pages * 4096 / 4) as u32)
        .open_sampler(Target::Thread(flood.pid()), pages)?;
    let format = Tracefs::find()?.format("raw_syscalls", "sys_enter")?;
    let call = format.field("id").ok_or("no such field")?.clone();
    let mut file = BufWriter::with_capacity(1 << 17, tempfile::tempfile()?);
    sampler.counter().enable()?;
    flood.go()?;
    let mut sum = 0;
    let mut done = false;
    loop {
        let before = sampler.stats().records;
        match depth {
            Depth::Raw => {
                let (mut batch, _) = sampler.batch();
                while let Some(record) = batch.next_record() {
                    black_box(record.bytes().len());
                }
            }
            Depth::FiveFields => sum ^= five_fields(&mut sampler, &call),
            Depth::Sample => sum ^= whole_samples(&mut sampler, &call),
            Depth::File => {
                let (mut batch, _) = sampler.batch();
                while let Some(record) = batch.next_record() {
                    file.write_all(record.bytes())?;
                }
            }
        }
        if sampler.stats().records == before {
            if done {
                break;
            }
            sampler.wait(Some(TIMEOUT))?;
            done = flood.is_done()?;
        }
    }
    file.flush()?;
    let stats = sampler.stats();
    let cpu_nanos = thread_cpu_nanos() - before;
    Ok(Outcome { read: stats.samples, lost: stats.lost, cpu_nanos, sum })
}

fn five_fields(sampler: &mut Sampler, call: &FieldFormat) -> u64 {
    let mut sum = 0;
    let (mut batch, decoder) = sampler.batch();
    while let Some(record) = batch.next_record() {
        let Some(layout) = decoder.layout(record) else { continue };
        let Some(raw) = layout.raw_data(record) else { continue };
        let fields = (layout.id(record), layout.tid(record), layout.timestamp(record), layout.cpu(record));
        if let ((Some(id), Some((_, tid)), Some(time), Some(cpu)), Some(call)) =
            (fields, call.u64(raw))
        {
            sum ^= id ^ u64::from(tid) ^ time.nanos() as u64 ^ u64::from(cpu) ^ call;
        }
    }
    sum
}

fn whole_samples(sampler: &mut Sampler, call: &FieldFormat) -> u64 {
    let mut sum = 0;
    let (mut batch, decoder) = sampler.batch();
    while let Some(record) = batch.next_record() {
        if let Ok(Record::Sample(sample)) = decoder.decode(record) {
            let call = sample.raw.and_then(|raw| call.u64(raw));
            sum ^= call.unwrap_or(0) ^ sample.time.map_or(0, |time| time.nanos() as u64);
        }
    }
    sum
}
