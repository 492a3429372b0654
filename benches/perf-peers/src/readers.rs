//! perf-monitor, and what its peers need as well.

use crate::flood::Flood;
use crate::{Error, Outcome};
use perf_monitor::{
    Event, EventMonitor, FieldFormat, Record, Registration, RingSet, SampleFlags, SampleView,
    Sampler, SetRecord, Target, Tracefs,
};
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
    /// It is read in the batch, undecoded.
    Raw,
    /// Id, thread, time, CPU, and a field of the tracepoint.
    FiveFields,
    /// All of it is decoded.
    Sample,
    /// It is written to a file, as `perf record` does.
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

/// What a sample of an event is made into: thread and system call.
type Value = (u32, u64);

/// In time order over the rings of two CPUs, with the same fields.
pub(crate) fn ring_set(flood: &mut Flood, pages: usize) -> Result<Outcome, Error> {
    let before = thread_cpu_nanos();
    let event = Event::tracepoint("raw_syscalls", "sys_enter")?;
    let format = Tracefs::find()?.format("raw_syscalls", "sys_enter")?;
    let call = format.field("id").ok_or("no such field")?;
    let mut set = RingSet::builder()
        .thread(flood.pid())
        .cpus([0, 1])
        .pages(pages)
        .wakeup_watermark((pages * 4096 / 4) as u32)
        .open()?;
    let fields = SampleFlags::TID | SampleFlags::CPU | SampleFlags::RAW;
    let added = set.add(&event.builder().sample_period(1).sample(fields))?;
    set.enable_event(added)?;
    flood.go()?;
    let mut sum = 0;
    let mut take = |record: SetRecord<'_>| -> Result<(), perf_monitor::Error> {
        let (layout, raw) = (record.layout, record.raw);
        if let (Some((_, tid)), Some(call)) =
            (layout.pid_tid(raw), layout.raw_data(raw).and_then(|data| call.u64(data)))
        {
            sum ^= u64::from(tid) ^ record.time.nanos() as u64 ^ u64::from(record.cpu) ^ call;
        }
        Ok(())
    };
    while !flood.is_done()? {
        set.wait(Some(TIMEOUT))?;
        set.round(&mut take)?;
    }
    set.finish(&mut take)?;
    let counts = set.counts(added)?;
    let lost = counts.lost.unwrap_or(set.stats().rings.lost);
    Ok(Outcome { read: counts.delivered, lost, cpu_nanos: thread_cpu_nanos() - before, sum })
}

/// The same by a decoder, in batches of typed values.
pub(crate) fn event_monitor(flood: &mut Flood, pages: usize) -> Result<Outcome, Error> {
    let before = thread_cpu_nanos();
    let monitor = EventMonitor::<Value>::builder()
        .thread(flood.pid())
        .cpus([0, 1])
        .pages(pages)
        .wakeup_watermark((pages * 4096 / 4) as u32)
        .build()?;
    let decoder = Registration::tracepoint("raw_syscalls:sys_enter").decoder_of(|format| {
        let call = format.and_then(|format| format.field("id")).cloned();
        Ok(move |sample: &SampleView<'_>| {
            let (_, tid) = sample.pid_tid().ok_or("no thread")?;
            let call = call.as_ref().and_then(|call| sample.u64(call)).ok_or("no call")?;
            Ok(Some((tid, call)))
        })
    });
    let event = monitor.register(decoder)?;
    let mut sum = 0;
    std::thread::scope(|scope| {
        // The events record while the monitor runs.
        let ending = scope.spawn(|| {
            while !monitor.is_running() {
                std::thread::yield_now();
            }
            let went = flood.go().and_then(|()| flood.wait()).map_err(|error| error.to_string());
            monitor.stop(false);
            went
        });
        monitor.run(|batch| {
            for sample in batch.drain(..) {
                if let Ok((tid, call)) = sample.value {
                    let cpu = sample.cpu.unwrap_or(0);
                    sum ^= u64::from(tid) ^ sample.time.nanos() as u64 ^ u64::from(cpu) ^ call;
                }
            }
        })?;
        ending.join().map_err(|_| "the flood panicked")??;
        Ok::<(), Error>(())
    })?;
    let counts = monitor.counts(event)?;
    let lost = counts.lost.unwrap_or(monitor.stats().set.rings.lost);
    Ok(Outcome { read: counts.delivered, lost, cpu_nanos: thread_cpu_nanos() - before, sum })
}

fn five_fields(sampler: &mut Sampler, call: &FieldFormat) -> u64 {
    let mut sum = 0;
    let (mut batch, decoder) = sampler.batch();
    while let Some(record) = batch.next_record() {
        let Some(layout) = decoder.layout(record) else { continue };
        let Some(raw) = layout.raw_data(record) else { continue };
        let fields =
            (layout.id(record), layout.pid_tid(record), layout.time(record), layout.cpu(record));
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
