//! Reads a flood of tracepoints by perf-monitor and by its peers, one after the other, and prints
//! the CPU time of the reader for each record, and what was lost.
//!
//! A child process on CPU 1 calls `getppid` as fast as it can; `raw_syscalls:sys_enter` writes
//! 112 bytes for each call into a ring of 2 MiB; the reader is on CPU 0. Needs root and tracefs:
//!
//! ```sh
//! unshare -m sh -c 'mount -t tracefs nodev /sys/kernel/tracing; cargo run --release -- 1000000 3'
//! ```

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const PAGES: usize = 512;

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

fn cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The child process.
struct Flood {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Flood {
    fn prepare(calls: u64) -> Self {
        let mut child = Command::new("/proc/self/exe")
            .args(["flood", &calls.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        Self { child, output }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Nanoseconds for each call, and whether it is done, without waiting.
    fn is_done(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    }

    fn finish(mut self) -> f64 {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
        line.trim().parse().unwrap()
    }
}

fn flood(calls: u64) {
    pin(1);
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let start = Instant::now();
    for _ in 0..calls {
        black_box(rustix::process::getppid());
    }
    println!("{}", start.elapsed().as_nanos() as f64 / calls as f64);
    // The reader still reads: the thread must not be gone.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[derive(Default)]
struct Read {
    samples: u64,
    lost: u64,
    sum: u64,
}

fn ours(flood: &mut Flood, how: &str) -> Read {
    use perf_monitor::{Event, Record, SampleFlags, Target, Tracefs};
    let fields = SampleFlags::IDENTIFIER
        | SampleFlags::TID
        | SampleFlags::TIME
        | SampleFlags::CPU
        | SampleFlags::RAW;
    let mut sampler = Event::tracepoint("raw_syscalls", "sys_enter")
        .unwrap()
        .builder()
        .sample_period(1)
        .sample(fields)
        .wakeup_watermark((PAGES * 4096 / 4) as u32)
        .open_sampler(Target::Thread(flood.pid()), PAGES)
        .unwrap();
    let format = Tracefs::find().unwrap().format("raw_syscalls", "sys_enter").unwrap();
    let id = format.field("id").unwrap().clone();
    sampler.counter().enable().unwrap();
    flood.go();
    let mut read = Read::default();
    let mut done = false;
    loop {
        let before = sampler.stats().records;
        match how {
            "raw" => {
                let (mut batch, _) = sampler.batch();
                while let Some(record) = batch.next() {
                    black_box(record.bytes().len());
                }
            }
            "five fields" => {
                let (mut batch, decoder) = sampler.batch();
                while let Some(record) = batch.next() {
                    let plan = decoder.plan(record);
                    let Some(raw) = plan.raw_data(record) else { continue };
                    let (_, tid) = plan.tid(record).unwrap();
                    let time = plan.timestamp(record).unwrap().nanos() as u64;
                    let cpu = plan.cpu(record).unwrap();
                    let event = plan.id(record).unwrap();
                    let call = id.u64(raw).unwrap();
                    read.sum ^= event ^ u64::from(tid) ^ time ^ u64::from(cpu) ^ call;
                }
            }
            _ => {
                let (mut batch, decoder) = sampler.batch();
                while let Some(record) = batch.next() {
                    if let Ok(Record::Sample(sample)) = decoder.decode(record) {
                        read.sum ^= id.u64(sample.raw.unwrap()).unwrap()
                            ^ sample.time.unwrap().nanos() as u64;
                    }
                }
            }
        }
        if sampler.stats().records == before {
            if done {
                break;
            }
            sampler.wait(Some(std::time::Duration::from_millis(5))).unwrap();
            done = flood.is_done();
        }
    }
    let stats = sampler.stats();
    read.samples = stats.samples;
    read.lost = stats.lost;
    read
}

#[cfg(feature = "perf-event2")]
fn perf_event2(flood: &mut Flood, parse: bool) -> Read {
    use perf_event::{Builder, SampleFlag, data::Record, events::Tracepoint};
    use std::os::fd::{AsRawFd, BorrowedFd};
    let id = event_id();
    let mut sampler = Builder::new(Tracepoint::with_id(id))
        .sample(SampleFlag::from_bits_retain(2 | 4 | 128 | 1024 | 65536))
        .sample_period(1)
        .observe_pid(flood.pid() as i32)
        .any_cpu()
        .include_kernel()
        .include_hv()
        .wakeup_watermark(PAGES * 4096 / 4)
        .enabled(true)
        .build()
        .unwrap()
        .sampled(PAGES * 4096)
        .unwrap();
    sampler.enable().unwrap();
    flood.go();
    let mut read = Read::default();
    let mut done = false;
    loop {
        let mut got = false;
        while let Some(record) = sampler.next_record() {
            got = true;
            match record.ty() {
                9 => {
                    read.samples += 1;
                    if parse {
                        if let Record::Sample(sample) = record.parse_record().unwrap() {
                            read.sum ^= sample.time().unwrap_or(0)
                                ^ sample.raw().map_or(0, |raw| u64::from(raw[8]));
                        }
                    } else {
                        record
                            .data()
                            .iter()
                            .for_each(|part| read.sum ^= part.first().map_or(0, |b| u64::from(*b)));
                    }
                }
                2 => {
                    let bytes = record.to_vec();
                    read.lost += u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
                }
                _ => {}
            }
        }
        if !got {
            if done {
                return read;
            }
            wait(unsafe { BorrowedFd::borrow_raw(sampler.as_raw_fd()) });
            done = flood.is_done();
        }
    }
}

#[cfg(feature = "perf-event-open")]
fn perf_event_open(flood: &mut Flood, parse: bool) -> Read {
    use perf_event_open::config::{Cpu, Opts, Proc, SampleOn, WakeUpOn};
    use perf_event_open::{count::Counter, event::tp::Tracepoint, sample::record::Record};
    use std::os::fd::{AsRawFd, BorrowedFd};
    let mut options = Opts::default();
    options.sample_on = SampleOn::Count(1);
    options.sample_format.raw = true;
    options.wake_up.on = WakeUpOn::Bytes((PAGES * 4096 / 4) as u64 as _);
    options.record_id_format.task = true;
    options.record_id_format.time = true;
    options.record_id_format.cpu = true;
    options.record_id_format.id = true;
    let tracepoint = Tracepoint { id: event_id() };
    let counter = Counter::new(tracepoint, (Proc(flood.pid()), Cpu::ALL), &options).unwrap();
    let sampler = counter.sampler(PAGES.trailing_zeros() as u8).unwrap();
    let mut records = sampler.iter().unwrap().into_cow();
    counter.enable().unwrap();
    flood.go();
    let mut read = Read::default();
    let mut done = false;
    loop {
        let mut got = false;
        while let Some(record) = records.lending_next() {
            got = true;
            let bytes = record.as_raw().as_bytes();
            match u32::from_ne_bytes(bytes[..4].try_into().unwrap()) {
                9 => {
                    read.samples += 1;
                    if !parse {
                        read.sum ^= u64::from(bytes[8]);
                    } else if let (_, Record::Sample(sample)) = record.parse() {
                        read.sum ^= sample.raw.as_ref().map_or(0, |raw| u64::from(raw[8]));
                    }
                }
                2 => read.lost += u64::from_ne_bytes(bytes[16..24].try_into().unwrap()),
                _ => {}
            }
        }
        if !got {
            if done {
                return read;
            }
            wait(unsafe { BorrowedFd::borrow_raw(counter.file().as_raw_fd()) });
            done = flood.is_done();
        }
    }
}

#[cfg(feature = "one_collect")]
fn one_collect(flood: &mut Flood) -> Read {
    use one_collect::perf_event::{RingBufBuilder, RingBufSessionBuilder};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;
    let tracefs = one_collect::tracefs::TraceFS::open().unwrap();
    let mut event = tracefs.find_event("raw_syscalls", "sys_enter").unwrap();
    let mut session = RingBufSessionBuilder::new()
        .with_page_count(PAGES)
        .with_target_pid(flood.pid() as i32)
        .with_tracepoint_events(RingBufBuilder::for_tracepoint())
        .build()
        .unwrap();
    let (samples, lost) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64)));
    let id = event.format().get_field_ref_unchecked("id");
    let seen = samples.clone();
    event.add_callback(move |data| {
        seen.set(seen.get() + 1);
        black_box(data.format().get_u64(id, data.event_data())?);
        Ok(())
    });
    session.add_event(event).unwrap();
    let gone = lost.clone();
    let lost_event = session.lost_event();
    let field = lost_event.format().get_field_ref_unchecked("lost");
    lost_event.add_callback(move |data| {
        gone.set(gone.get() + data.format().get_u64(field, data.event_data())?);
        Ok(())
    });
    session.set_read_timeout(Duration::from_millis(1));
    session.enable().unwrap();
    flood.go();
    let end = Cell::new(None::<Instant>);
    session
        .parse_until(|| {
            if let Some(end) = end.get() {
                return end.elapsed() > Duration::from_millis(300);
            }
            if flood.is_done() {
                end.set(Some(Instant::now()));
            }
            false
        })
        .unwrap();
    Read { samples: samples.get(), lost: lost.get(), sum: 0 }
}

#[cfg(any(feature = "perf-event2", feature = "perf-event-open"))]
fn event_id() -> u64 {
    perf_monitor::Event::tracepoint("raw_syscalls", "sys_enter").unwrap().as_tracepoint().unwrap()
}

#[cfg(any(feature = "perf-event2", feature = "perf-event-open"))]
fn wait(fd: std::os::fd::BorrowedFd<'_>) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let five = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&five));
}

type Reader = (&'static str, fn(&mut Flood) -> Read);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "flood") {
        return flood(args[1].parse().unwrap());
    }
    let number = |i: usize, default| args.get(i).map_or(default, |n| n.parse().unwrap());
    let (calls, rounds) = (number(0, 1_000_000), number(1, 3));
    pin(0);
    let readers: &[Reader] = &[
        ("perf-monitor, raw", |f| ours(f, "raw")),
        ("perf-monitor, five fields", |f| ours(f, "five fields")),
        ("perf-monitor, whole sample", |f| ours(f, "sample")),
        #[cfg(feature = "perf-event2")]
        ("perf-event2, raw", |f| perf_event2(f, false)),
        #[cfg(feature = "perf-event2")]
        ("perf-event2, parsed", |f| perf_event2(f, true)),
        #[cfg(feature = "perf-event-open")]
        ("perf-event-open, raw", |f| perf_event_open(f, false)),
        #[cfg(feature = "perf-event-open")]
        ("perf-event-open, parsed", |f| perf_event_open(f, true)),
        #[cfg(feature = "one_collect")]
        ("one_collect, one field", one_collect),
    ];
    println!(
        "| reader | CPU ns per record, each round | lost | ns per call of the flood |\n| --- | --- | --- | --- |"
    );
    for (name, reader) in readers {
        let (mut times, mut lost, mut speed) = (Vec::new(), 0, Vec::new());
        for _ in 0..rounds {
            let mut flood = Flood::prepare(calls);
            let before = cpu_nanos();
            let read = reader(&mut flood);
            let nanos = cpu_nanos() - before;
            black_box(read.sum);
            speed.push(format!("{:.0}", flood.finish()));
            times.push(format!("{:.1}", nanos as f64 / read.samples.max(1) as f64));
            lost += read.lost;
        }
        println!("| {name} | {} | {lost} | {} |", times.join(" "), speed.join(" "));
    }
}
