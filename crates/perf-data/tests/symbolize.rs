//! The functions of the samples of a recording, as the example `symbolize` finds them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails is to panic")]

#[allow(dead_code, reason = "an example has a main function")]
#[path = "../examples/symbolize.rs"]
mod example;

use perf_data::perf_monitor::{self, RawRecord};
use perf_data::trace_symbols::{Options, Unresolved};
use perf_data::{
    ClockReference, Features, FileWriter, Reader, RecordWriter, RecordedEvent, perf_event_attr,
};
use std::collections::BTreeMap;
use std::io::Cursor;
use trace_common::{ClockDomain, Timestamp};

#[inline(never)]
fn sampled_function() -> u32 {
    std::hint::black_box(7)
}

fn record(type_: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = (8 + body.len()) as u16;
    [&type_.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes(), body].concat()
}

/// A recording of this process: the mapping of its program, and one sample.
fn recording(clock: Option<ClockReference>, at: Timestamp) -> Vec<u8> {
    const USER: u16 = 2;
    let address = sampled_function as fn() -> u32 as usize as u64;
    let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let (start, end, words) = maps
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = words[0].split_once('-').unwrap();
            (hex(start), hex(end), words)
        })
        .find(|(start, end, _)| (*start..*end).contains(&address))
        .unwrap();
    let (major, minor) = words[3].split_once(':').unwrap();
    let device = hex(major) | hex(minor) << 32;
    let task = u64::from(std::process::id()) * (1 | 1 << 32);
    let inode = words[4].parse::<u64>().unwrap();
    let fixed = [task, start, end - start, hex(words[2]), device, inode, 0, 5 | 2 << 32];
    let mut map = fixed.map(u64::to_ne_bytes).concat();
    map.extend_from_slice(words[5].as_bytes());
    map.resize((map.len() + 1).next_multiple_of(8), 0);
    map.extend([task, at.nanos() as u64].map(u64::to_ne_bytes).concat());
    let sample = [address, task, at.nanos() as u64].map(u64::to_ne_bytes).concat();
    // `IP | TID | TIME`
    let mut attr = perf_event_attr { sample_type: 0b111, ..perf_event_attr::new(1, 0) };
    attr.set_sample_id_all(true);
    let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![1] };
    let mut writer = FileWriter::new(Cursor::new(Vec::new()), vec![event]).unwrap();
    for bytes in [record(10, USER, &map), record(9, USER, &sample)] {
        writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
    }
    let mut features = Features::of_this_machine();
    features.clock = clock;
    writer.finish(&features).unwrap().into_inner()
}

/// A recording of samples in the kernel at one address, where one program of BPF is after another.
fn recording_of_programs() -> Vec<u8> {
    const ADDRESS: u64 = 0xffff_ffff_c000_1000;
    const KERNEL: u16 = 1;
    let mut attr = perf_event_attr { sample_type: 0b111, ..perf_event_attr::new(1, 0) };
    attr.set_sample_id_all(true);
    let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![1] };
    let mut writer = FileWriter::new(Cursor::new(Vec::new()), vec![event]).unwrap();
    let symbol = |name: &[u8; 16], is_end: u64, at: u64| {
        let fixed = [ADDRESS, 0x100 | 1 << 32 | is_end << 48].map(u64::to_ne_bytes).concat();
        let id = [0, at].map(u64::to_ne_bytes).concat();
        record(17, 0, &[&fixed[..], name, &id].concat())
    };
    let sample = |at| record(9, KERNEL, &[ADDRESS + 4, 7, at].map(u64::to_ne_bytes).concat());
    let (first, second) = (b"bpf_prog_a\0\0\0\0\0\0", b"bpf_prog_b\0\0\0\0\0\0");
    for bytes in [
        sample(1),
        symbol(first, 0, 2),
        sample(3),
        symbol(first, 1, 4),
        sample(5),
        symbol(second, 0, 6),
        sample(7),
        sample(8),
    ] {
        writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
    }
    writer.finish(&Features::default()).unwrap().into_inner()
}

/// A recording of a sample in the kernel, which has its text at this place.
fn recording_of_kernel(start: u64, end: u64, address: u64) -> Vec<u8> {
    const KERNEL: u16 = 1;
    let mut attr = perf_event_attr { sample_type: 0b111, ..perf_event_attr::new(1, 0) };
    attr.set_sample_id_all(true);
    let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![1] };
    let mut writer = FileWriter::new(Cursor::new(Vec::new()), vec![event]).unwrap();
    let mut map = [u64::from(u32::MAX), start, end - start, start].map(u64::to_ne_bytes).concat();
    map.extend(b"[kernel.kallsyms]_text\0\0");
    map.extend([0, 1].map(u64::to_ne_bytes).concat());
    let sample = [address, 7, 2].map(u64::to_ne_bytes).concat();
    for bytes in [record(1, KERNEL, &map), record(9, KERNEL, &sample)] {
        writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
    }
    writer.finish(&Features::default()).unwrap().into_inner()
}

/// With each boot, the kernel is at another place.
#[test]
fn a_recording_of_an_earlier_boot_has_the_names_of_its_code() {
    const MOVED: u64 = 0x40_0000;
    let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let address = |name: &str| {
        let line = text.lines().find(|line| line.split(' ').nth(2) == Some(name))?;
        u64::from_str_radix(line.split(' ').next()?, 16).ok().filter(|address| *address != 0)
    };
    let known = (address("_text"), address("_etext"), address("vfs_read"));
    let (Some(start), Some(end), Some(function)) = known else {
        testkit::skip::can("addresses of the kernel (kernel.kptr_restrict)", false);
        return;
    };
    for moved in [0, MOVED] {
        let [start, end, function] = [start, end, function].map(|address| address - moved);
        let found = functions(recording_of_kernel(start, end, function + 1), Options::default());
        assert_eq!(found, BTreeMap::from([("vfs_read".to_owned(), 1)]));
    }
}

#[test]
fn a_program_of_bpf_has_its_name_while_it_is_in_the_kernel() {
    let expected = [("bpf_prog_a", 1), ("bpf_prog_b", 2), ("not mapped", 2)];
    let expected = expected.map(|(name, count)| (name.to_owned(), count));
    let found = functions(recording_of_programs(), Options::default());
    assert_eq!(found, BTreeMap::from(expected));
}

fn functions(recording: Vec<u8>, options: Options) -> BTreeMap<String, u64> {
    let reader = Reader::new(Cursor::new(recording)).unwrap();
    example::linux::functions(reader, options).unwrap()
}

#[test]
fn a_sample_has_the_function_of_a_file_that_is_known_to_be_the_one_that_was_mapped() {
    assert_eq!(sampled_function(), 7);
    let now = perf_monitor::now(ClockDomain::Monotonic).unwrap();
    let clock = ClockReference::now(ClockDomain::Monotonic).unwrap();
    let expected = BTreeMap::from([("symbolize::sampled_function".to_owned(), 1)]);
    assert_eq!(functions(recording(Some(clock), now), Options::default()), expected);
    // The program was built after 1970.
    let mut early = clock;
    (early.realtime, early.clock) = (Timestamp::from_nanos(1), now);
    let (first, _) =
        functions(recording(Some(early), now), Options::default()).pop_first().unwrap();
    assert!(first.ends_with(&Unresolved::Replaced.to_string()), "{first}");
    // Of a recording with the perf clock, nothing identifies the file.
    let (first, _) = functions(recording(None, now), Options::default()).pop_first().unwrap();
    assert!(first.ends_with(&Unresolved::Unverified.to_string()), "{first}");
    assert!(first.contains("Options::unverified"), "{first}");
    let mut options = Options::default();
    options.unverified = true;
    assert_eq!(functions(recording(None, now), options), expected);
}
