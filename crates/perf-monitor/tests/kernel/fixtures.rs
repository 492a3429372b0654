//! Not tests: what they write is the test data of `tests/fixtures.rs` and of the fuzz targets.
//!
//! `cargo xtask update-golden --record` runs it, as root.

use crate::support::{GETPPID, ReadAll, TestChild, getppid, on_cpu_0, spin_for, touch_pages};
use perf_monitor::{
    Event, KernelFeatures, ReadFormat, Record, SampleFlags, Sampler, Software, Target, Tracefs,
};
use std::path::Path;
use std::time::Duration;

fn write(name: &str, bytes: &[u8]) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    std::fs::write(dir.join(name), bytes).unwrap();
}

/// The words of the attribute that the layout of its records depends on, and the records.
fn records(sampler: &mut Sampler, most: usize) -> Vec<u8> {
    let attr = *sampler.counter().attr();
    let words = [
        attr.sample_type,
        attr.read_format,
        attr.flags,
        attr.branch_sample_type,
        attr.sample_regs_user,
        attr.sample_regs_intr,
    ];
    let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut left = most;
    loop {
        let (mut batch, _) = sampler.batch();
        if batch.is_empty() {
            return out;
        }
        while let Some(record) = batch.next_record() {
            if left > 0 {
                out.extend_from_slice(record.bytes());
                left -= 1;
            }
        }
    }
}

#[test]
#[ignore = "writes test data"]
fn fixtures_of_records() {
    // What happens to a task: nothing here has a path of the machine in it.
    on_cpu_0(|| {
        let mut sampler = Event::software(Software::Dummy)
            .builder()
            .inherit(true)
            .mmap2(true)
            .mmap_data(true)
            .comm(true)
            .task(true)
            .context_switch(true)
            .namespaces(true)
            .sample(SampleFlags::TID | SampleFlags::TIME | SampleFlags::CPU | SampleFlags::ID)
            .open_sampler(Target::ThreadOnCpu { tid: 0, cpu: 0 }, 64)
            .unwrap();
        sampler.counter().enable().unwrap();
        let work = || {
            touch_pages(2);
            std::thread::sleep(Duration::from_millis(1)); // a switch
        };
        std::thread::Builder::new().name("fixture".into()).spawn(work).unwrap().join().unwrap();
        sampler.counter().disable().unwrap();
        write("task.perf", &records(&mut sampler, 60));
    });

    let features = KernelFeatures::probe();
    let fields = features.sample - SampleFlags::AUX - SampleFlags::WEIGHT;
    let mut sampler = Event::software(Software::CpuClock)
        .builder()
        .sample_period(1_000_000)
        .sample(fields)
        .read_format(features.read_format - ReadFormat::GROUP)
        .sample_regs_user(0b111)
        .sample_regs_intr(0b11)
        .sample_stack_user(64)
        .open_sampler(Target::ThisThread, 64)
        .unwrap();
    sampler.counter().enable().unwrap();
    spin_for(Duration::from_millis(20));
    sampler.counter().disable().unwrap();
    write("every-field.perf", &records(&mut sampler, 3));

    // A ring of one page: losses are reported between samples.
    let mut sampler = Event::tracepoint("raw_syscalls", "sys_enter")
        .unwrap()
        .builder()
        .sample_period(1)
        .sample(SampleFlags::TID | SampleFlags::TIME | SampleFlags::RAW | SampleFlags::IDENTIFIER)
        .open_sampler(Target::ThisThread, 1)
        .unwrap();
    sampler.counter().set_filter(&format!("id == {GETPPID}")).unwrap();
    sampler.counter().enable().unwrap();
    getppid(1000);
    sampler.drain_all(|_| ()).unwrap();
    getppid(3);
    write("losses.perf", &records(&mut sampler, 60));
}

#[test]
#[ignore = "writes test data"]
fn fixtures_of_formats() {
    let tracefs = Tracefs::find().unwrap();
    for (system, name) in
        [("raw_syscalls", "sys_enter"), ("sched", "sched_process_exec"), ("sched", "sched_switch")]
    {
        let mut bytes =
            std::fs::read(tracefs.root().join(format!("events/{system}/{name}/format"))).unwrap();
        bytes.push(0);
        on_cpu_0(|| {
            let event = Event::tracepoint(system, name).unwrap();
            let mut sampler = event
                .builder()
                .sample_period(1)
                .inherit(true)
                .sample(SampleFlags::RAW)
                .open_sampler(Target::ThreadOnCpu { tid: 0, cpu: 0 }, 64)
                .unwrap();
            sampler.counter().enable().unwrap();
            TestChild::start("getppid 1").go();
            sampler.counter().disable().unwrap();
            let mut raw = Vec::new();
            let last = |record: Record<'_>| {
                if let Record::Sample(sample) = record {
                    raw = sample.raw.unwrap().to_vec();
                }
            };
            sampler.drain_all(last).unwrap();
            bytes.extend_from_slice(&raw);
        });
        write(&format!("{system}.{name}.format"), &bytes);
    }
}
