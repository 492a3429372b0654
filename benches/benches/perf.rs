//! Decoding perf events from bytes, as they are in a ring or a file: no privileges are needed.
//!
//! Throughput is in records per second. What a live ring costs besides, beside other readers, is
//! `cargo xtask bench-perf`.

#![allow(clippy::unwrap_used, reason = "a benchmark without its input is none")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use perf_monitor::{Decoder, RawRecord, Record, SampleFlags, TracepointFormat};
use perf_sys::{
    PERF_CONTEXT_KERNEL, PERF_CONTEXT_USER, PERF_COUNT_SW_CPU_CLOCK, PERF_RECORD_COMM,
    PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_MISC_KERNEL, PERF_RECORD_MISC_USER,
    PERF_RECORD_MMAP2, PERF_RECORD_SAMPLE, PERF_RECORD_SWITCH, PERF_TYPE_SOFTWARE,
    PERF_TYPE_TRACEPOINT, perf_event_attr,
};
use std::hint::black_box;

/// Records of each input: with samples of 112 bytes as much as a batch of a ring.
const RECORDS: u64 = 1024;

/// What is in the middle of every record here.
const TRACED: SampleFlags = SampleFlags::IDENTIFIER
    .union(SampleFlags::TID)
    .union(SampleFlags::TIME)
    .union(SampleFlags::CPU);

const SYS_ENTER: &str = "\
name: sys_enter
ID: 350
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:long id;\toffset:8;\tsize:8;\tsigned:1;
\tfield:unsigned long args[6];\toffset:16;\tsize:48;\tsigned:0;

print fmt: \"NR %ld (%lx, %lx, %lx, %lx, %lx, %lx)\", REC->id, REC->args[0], REC->args[1]
";

const SCHED_SWITCH: &str = "\
name: sched_switch
ID: 316
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;
\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;
\tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;
\tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;
\tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;

print fmt: \"prev_pid=%d ==> next_pid=%d\", REC->prev_pid, REC->next_pid
";

/// One record after the other.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    fn add(&mut self, type_: u32, misc: u16, words: &[u64], rest: &[u8]) {
        let size = 8 + words.len() * 8 + rest.len();
        assert_eq!(size % 8, 0, "the kernel pads to words");
        self.0.extend(type_.to_ne_bytes());
        self.0.extend(misc.to_ne_bytes());
        self.0.extend(u16::try_from(size).unwrap().to_ne_bytes());
        self.0.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        self.0.extend(rest);
    }

    fn for_each(&self, mut f: impl FnMut(RawRecord<'_>)) {
        let mut rest = &self.0[..];
        while let Some((record, behind)) = RawRecord::split_first(rest, 0) {
            f(record);
            rest = behind;
        }
        assert!(rest.is_empty());
    }
}

const fn pair(low: u32, high: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (low.to_ne_bytes(), high.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn decoder(type_: u32, config: u64, sample: SampleFlags) -> Decoder {
    let mut attr = perf_event_attr::new(type_, config);
    attr.sample_type = sample.bits();
    attr.set_sample_id_all(true);
    Decoder::new(&attr)
}

/// Samples of `raw_syscalls:sys_enter`, 112 bytes each.
fn tracepoints() -> Records {
    let mut records = Records::default();
    for n in 0..RECORDS {
        let mut data = 68_u32.to_ne_bytes().to_vec();
        for word in [350, n % 400, n, 0, 0, 0, 0, 0] {
            data.extend(word.to_ne_bytes());
        }
        data.extend([0; 4]);
        let head = [7, pair(100, 100 + n as u32 % 8), 1_000_000 + 900 * n, n % 2];
        records.add(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_KERNEL, &head, &data);
    }
    records
}

/// Samples of a profile, with callchains of 24 frames and two markers.
fn profile() -> Records {
    let mut records = Records::default();
    for n in 0..RECORDS {
        let ip = 0xffff_ffff_8100_0000 + n;
        let mut words = vec![ip, pair(100, 101), 1_000_000 + 900 * n, n % 2, 26];
        words.push(PERF_CONTEXT_KERNEL);
        words.extend((0..8).map(|frame| ip + frame * 64));
        words.push(PERF_CONTEXT_USER);
        words.extend((0..16).map(|frame| 0x5555_0000_0000 + frame * 64));
        records.add(PERF_RECORD_SAMPLE, PERF_RECORD_MISC_KERNEL, &words, &[]);
    }
    records
}

/// What a recording has besides samples: processes, names, mappings, switches.
fn sideband() -> Records {
    let mut records = Records::default();
    for n in 0..RECORDS {
        let time = 1_000_000 + 900 * n;
        // At the end of each: thread, time, CPU, id.
        let end = [pair(100, 101), time, n % 2, 7];
        let with_end = |words: &[u64]| [words, &end].concat();
        let process = [pair(100 + n as u32, 100), pair(100 + n as u32, 100), time];
        let mut rest = Vec::new();
        match n % 5 {
            0 => records.add(PERF_RECORD_FORK, 0, &with_end(&process), &[]),
            1 => {
                rest.extend(b"a-thread-name\0\0\0");
                rest.extend(end.iter().flat_map(|word| word.to_ne_bytes()));
                records.add(PERF_RECORD_COMM, 0, &[pair(100, 101)], &rest);
            }
            2 => {
                rest.extend(b"/usr/lib/x86_64-linux-gnu/libc.so.6\0\0\0\0\0");
                rest.extend(end.iter().flat_map(|word| word.to_ne_bytes()));
                let at = [pair(100, 100), 0x7f00_0000_0000, 0x20_0000, 0x1000];
                let file = [pair(254, 1), 4711, 1, pair(5, 2)];
                let words = [at, file].concat();
                records.add(PERF_RECORD_MMAP2, PERF_RECORD_MISC_USER, &words, &rest);
            }
            3 => records.add(PERF_RECORD_SWITCH, 0, &end, &[]),
            _ => records.add(PERF_RECORD_EXIT, 0, &with_end(&process), &[]),
        }
    }
    records
}

fn perf(c: &mut Criterion) {
    let mut group = c.benchmark_group("perf");
    group.throughput(Throughput::Elements(RECORDS));

    let samples = tracepoints();
    assert_eq!(samples.0.len() as u64, 112 * RECORDS);
    let tracepoint = decoder(PERF_TYPE_TRACEPOINT, 350, TRACED | SampleFlags::RAW);
    let format = TracepointFormat::parse("raw_syscalls", SYS_ENTER).unwrap();
    let call = format.field("id").unwrap();
    group.bench_function("tracepoint: borrowed", |b| {
        b.iter(|| samples.for_each(|record| _ = black_box(record.bytes().len())));
    });
    group.bench_function("tracepoint: five typed fields", |b| {
        b.iter(|| {
            let mut sum = 0;
            samples.for_each(|record| {
                let layout = tracepoint.layout(record).unwrap();
                let (_, tid) = layout.pid_tid(record).unwrap();
                let time = layout.time(record).unwrap().nanos() as u64;
                let (id, cpu) = (layout.id(record).unwrap(), layout.cpu(record).unwrap());
                let call = call.u64(layout.raw_data(record).unwrap()).unwrap();
                sum ^= id ^ u64::from(tid) ^ time ^ u64::from(cpu) ^ call;
            });
            sum
        });
    });
    group.bench_function("tracepoint: whole sample", |b| {
        b.iter(|| {
            samples.for_each(|record| _ = black_box(tracepoint.decode(record).unwrap()));
        });
    });

    let samples = profile();
    let flags = SampleFlags::IP | SampleFlags::CALLCHAIN;
    let clock = decoder(
        PERF_TYPE_SOFTWARE,
        PERF_COUNT_SW_CPU_CLOCK,
        flags | TRACED.difference(SampleFlags::IDENTIFIER),
    );
    group.bench_function("profile: whole sample and its 24 frames", |b| {
        b.iter(|| {
            let mut frames = 0;
            samples.for_each(|record| {
                let Record::Sample(sample) = clock.decode(record).unwrap() else { return };
                for frame in sample.callchain.unwrap().frames() {
                    black_box(frame);
                    frames += 1;
                }
            });
            assert_eq!(frames, 24 * RECORDS);
        });
    });

    let others = sideband();
    group.bench_function("sideband: decoded", |b| {
        b.iter(|| others.for_each(|record| _ = black_box(tracepoint.decode(record).unwrap())));
    });
    group.bench_function("sideband: times alone", |b| {
        b.iter(|| {
            others.for_each(|record| _ = black_box(tracepoint.time(record).unwrap()));
        });
    });
    group.finish();

    let mut group = c.benchmark_group("perf/format file");
    for (name, text) in
        [("raw_syscalls:sys_enter", SYS_ENTER), ("sched:sched_switch", SCHED_SWITCH)]
    {
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| TracepointFormat::parse(black_box("a system"), black_box(text)).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, perf);
criterion_main!(benches);
