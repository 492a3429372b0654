//! Plain memory replaces the mapping, and the test replaces the kernel: for cases that a real
//! kernel does not produce (wraps at chosen positions, invalid records, AUX data), and so that miri
//! can check both sides.

use super::mapping::Memory;
use super::*;
use std::cell::UnsafeCell;

/// Memory with two sides, like a mapping.
#[derive(Clone, Debug)]
pub(super) struct PlainMemory(Arc<[UnsafeCell<u64>]>);

// SAFETY: the two sides access it by the protocol of the ring, which the tests verify.
unsafe impl Send for PlainMemory {}
// SAFETY: as above.
unsafe impl Sync for PlainMemory {}

impl PlainMemory {
    pub(super) fn new(pages: usize) -> Self {
        Self((0..pages * PAGE / 8).map(|_| UnsafeCell::new(0)).collect())
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.0.as_ptr()).cast()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len() * 8
    }

    pub(super) fn mapping(&self) -> Mapping {
        Mapping::new(Memory::Plain(self.clone())).unwrap()
    }

    /// Writes at this byte.
    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len() && bytes.len() <= self.len() - at);
        // SAFETY: in the memory, as was just checked.
        let to = unsafe { self.as_ptr().add(at) };
        // SAFETY: the range is in the memory, and `bytes` does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

const PAGE: usize = 4096;

fn record_of(type_: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = type_.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&(8 + body.len() as u16).to_ne_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// The writing end of a ring.
pub(crate) struct FakeKernel {
    memory: PlainMemory,
    control: Mapping,
    size: usize,
    written: u64,
}

impl FakeKernel {
    pub(crate) fn new(pages: usize) -> (Self, RingBuffer) {
        Self::at(pages, 0)
    }

    /// Starts at a position, as if that many bytes had already passed through.
    fn at(pages: usize, position: u64) -> (Self, RingBuffer) {
        let memory = PlainMemory::new(1 + pages);
        let control = memory.mapping();
        control.data_tail().store(position, Ordering::Relaxed);
        control.data_head().store(position, Ordering::Relaxed);
        let ring = RingBuffer::of(memory.mapping(), pages, PAGE).unwrap();
        (Self { memory, control, size: pages * PAGE, written: position }, ring)
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let at = (self.written % self.size as u64) as usize;
        let (first, rest) = bytes.split_at(bytes.len().min(self.size - at));
        self.memory.write(PAGE + at, first);
        self.memory.write(PAGE, rest);
        self.written = self.written.wrapping_add(bytes.len() as u64);
    }

    pub(crate) fn publish(&self) {
        self.control.data_head().store(self.written, Ordering::Release);
    }

    pub(crate) fn record(&mut self, type_: u32, body: &[u8]) {
        self.put(&record_of(type_, body));
        self.publish();
    }

    /// Free space in bytes, as the reader reports it.
    pub(crate) fn room(&self) -> usize {
        let tail = self.control.data_tail().load(Ordering::Acquire);
        self.size - self.written.wrapping_sub(tail) as usize
    }
}

fn read(ring: &mut RingBuffer) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let mut batch = ring.batch();
    while let Some(record) = batch.next_record() {
        out.push(record.bytes()[8..].to_vec());
    }
    out
}

/// The records of the next chunk, and its bytes.
fn lend(ring: &mut RingBuffer, left: u64) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut out = (Vec::new(), Vec::new());
    let freed = ring.lend_chunk(left, |chunk| {
        out.0 = chunk.records().map(|record| record.bytes().to_vec()).collect();
        out.1 = chunk.slices().concat();
        assert_eq!(chunk.len(), out.1.len());
        assert_eq!(chunk.record_count(), out.0.len() as u64);
        let samples: Vec<_> = chunk.records().filter(|r| r.type_() == PERF_RECORD_SAMPLE).collect();
        assert_eq!(chunk.sample_count(), samples.len() as u64);
        assert_eq!(chunk.first_sample(), samples.first().copied());
        assert_eq!(chunk.last_sample(), samples.last().copied());
        Ok::<(), ()>(())
    });
    assert!(freed.unwrap() >= out.1.len() as u64);
    out
}

fn tail(ring: &RingBuffer) -> u64 {
    ring.mapping.data_tail().load(Ordering::Relaxed)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

#[test]
fn records_are_whole_wherever_the_ring_wraps() {
    let body: Vec<u8> = (0..200).collect();
    let step = if cfg!(miri) { 504 } else { 8 };
    for start in (0..PAGE as u64).step_by(step).chain([PAGE as u64 - 8, PAGE as u64 - 208]) {
        // The positions themselves can wrap too.
        for base in [0, u64::MAX - PAGE as u64 + 1] {
            let (mut kernel, mut ring) = FakeKernel::at(1, base.wrapping_add(start));
            kernel.record(9, &body);
            assert_eq!(ring.available(), 208);
            assert_eq!(read(&mut ring), [&body[..]]);
            assert_eq!(tail(&ring), kernel.written);
            assert_eq!(ring.stats().samples, 1);
        }
    }
}

#[test]
fn a_record_may_be_a_header_only() {
    let (mut kernel, mut ring) = FakeKernel::new(1);
    kernel.record(100, &[]);
    kernel.record(100, &words(&[7]));
    assert_eq!(read(&mut ring), [vec![], words(&[7])]);
    assert_eq!(ring.stats().corrupt_bytes, 0);
    kernel.record(100, &[]);
    assert_eq!(lend(&mut ring, u64::MAX).0, [record_of(100, &[])]);
}

#[test]
fn chunks_are_the_records_wherever_the_ring_wraps() {
    let records = [(9, 200), (2, 32), (10, 8), (9, 96)]
        .map(|(type_, len)| record_of(type_, &(0..len as u8).collect::<Vec<_>>()));
    let len: usize = records.iter().map(Vec::len).sum();
    let step = if cfg!(miri) { 504 } else { 8 };
    let near_the_end = PAGE as u64 - len as u64 - 8..PAGE as u64;
    for start in (0..PAGE as u64).step_by(step).chain(near_the_end.step_by(8)) {
        for base in [0, u64::MAX - PAGE as u64 + 1] {
            let fill = || {
                let (mut kernel, ring) = FakeKernel::at(1, base.wrapping_add(start));
                records.iter().for_each(|record| kernel.put(record));
                kernel.publish();
                (kernel, ring)
            };
            let (kernel, mut ring) = fill();
            // After an error they are passed again.
            assert_eq!(ring.lend_chunk(u64::MAX, |_| Err("full")), Err("full"));
            assert_eq!((ring.available(), ring.stats()), (len as u64, RingStats::default()));
            assert_eq!(lend(&mut ring, u64::MAX), (records.to_vec(), records.concat()));
            assert_eq!(tail(&ring), kernel.written);
            // The statistics are those of batches.
            let (_kernel, mut batches) = fill();
            read(&mut batches);
            assert_eq!(ring.stats(), batches.stats());
            assert_eq!(lend(&mut ring, u64::MAX), (vec![], vec![]));
            // A part: the record in which it ends is whole.
            let (_kernel, mut ring) = fill();
            assert_eq!(lend(&mut ring, 208).0, records[..1]);
            assert_eq!(lend(&mut ring, 41).0, records[1..3]);
            assert_eq!(lend(&mut ring, 1 << 20).0, records[3..]);
        }
    }
}

#[test]
fn chunks_end_before_what_is_no_record() {
    for size in [0u16, 7, 40, 4000, u16::MAX] {
        let (mut kernel, mut ring) = FakeKernel::new(1);
        let good = record_of(9, &[0; 16]);
        kernel.put(&good);
        let bad = [&9u32.to_ne_bytes()[..], &[0, 0], &size.to_ne_bytes(), &[0; 24]].concat();
        kernel.put(&bad);
        kernel.publish();
        assert_eq!(lend(&mut ring, u64::MAX).0, std::slice::from_ref(&good));
        assert_eq!(ring.stats().corrupt_bytes, 0);
        assert!(lend(&mut ring, u64::MAX).0.is_empty());
        assert_eq!((ring.stats().corrupt_bytes, ring.available()), (bad.len() as u64, 0));
        // What follows is read.
        kernel.put(&good);
        kernel.publish();
        assert_eq!(lend(&mut ring, u64::MAX).0, [good]);
    }
    // A position that no kernel writes.
    let (mut kernel, mut ring) = FakeKernel::new(1);
    kernel.written += 2 * PAGE as u64;
    kernel.publish();
    assert!(lend(&mut ring, u64::MAX).0.is_empty());
    assert_eq!((ring.stats().corrupt_bytes, ring.available()), (2 * PAGE as u64, 0));
}

proptest::proptest! {
    #[cfg_attr(miri, ignore = "slow; the tests above cover the unsafe code")]
    #[test]
    fn chunks_of_any_bytes_end(bytes: Vec<u8>, start in 0..PAGE as u64, left in 1..9000u64) {
        let (mut kernel, mut ring) = FakeKernel::at(1, start);
        kernel.put(&bytes[..bytes.len().min(PAGE)]);
        kernel.publish();
        let all = ring.available();
        let mut passed = 0;
        while ring.available() > 0 {
            let before = ring.available();
            passed += lend(&mut ring, left).1.len() as u64;
            proptest::prop_assert!(ring.available() < before);
        }
        let stats = ring.stats();
        proptest::prop_assert_eq!(stats.bytes, passed);
        proptest::prop_assert!(passed + stats.corrupt_bytes >= all);
    }
}

#[test]
fn a_reader_and_a_writer_share_a_ring() {
    let (mut kernel, mut ring) = FakeKernel::new(1);
    let count = if cfg!(miri) { 300 } else { 50_000 };
    let writer = std::thread::spawn(move || {
        for n in 0..count {
            // Several sizes, so that they wrap at every position.
            let bytes = record_of(9, &words(&vec![n; 1 + n as usize % 7]));
            while kernel.room() < bytes.len() {
                std::thread::yield_now();
            }
            kernel.put(&bytes);
            kernel.publish();
        }
    });
    let mut next = 0;
    let mut in_place = false;
    while next < count {
        // In turn, copied out of the ring and in it.
        in_place = !in_place;
        let bodies = match in_place {
            true => lend(&mut ring, u64::MAX).0.iter().map(|record| record[8..].to_vec()).collect(),
            false => read(&mut ring),
        };
        for body in bodies {
            assert_eq!(body, words(&vec![next; 1 + next as usize % 7]));
            next += 1;
        }
        std::thread::yield_now();
    }
    writer.join().unwrap();
    assert_eq!((ring.stats().samples, ring.stats().corrupt_bytes), (count, 0));
}

#[test]
fn records_that_were_not_returned_are_in_the_next_batch_even_after_a_panic() {
    let (mut kernel, mut ring) = FakeKernel::new(1);
    for n in 0..4u64 {
        kernel.record(9, &n.to_ne_bytes());
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut batch = ring.batch();
        batch.next_record().unwrap();
        batch.next_record().unwrap();
        panic!("the reader fails");
    }));
    assert!(result.is_err());
    assert_eq!(tail(&ring), 32, "two records were returned");
    assert_eq!(read(&mut ring), [2u64.to_ne_bytes(), 3u64.to_ne_bytes()]);
    assert!(read(&mut ring).is_empty());
}

#[test]
fn records_that_a_chunk_cuts_are_joined() {
    // A ring of 512 KiB is read in chunks of 128 KiB; records of 24 bytes do not divide them.
    let (mut kernel, mut ring) = FakeKernel::new(128);
    let count = (512 * 1024) / 24;
    let mut all = Vec::new();
    for n in 0..count as u64 {
        all.extend_from_slice(&record_of(9, &words(&[n, n])));
    }
    kernel.put(&all);
    kernel.publish();
    let (mut next, mut batches) = (0u64, 0);
    loop {
        let mut batch = ring.batch();
        batches += usize::from(!batch.is_empty());
        let before = next;
        while let Some(record) = batch.next_record() {
            assert_eq!(record.word(8), Some(next));
            assert_eq!(record.offset(), next * 24);
            next += 1;
        }
        if next == before {
            break;
        }
    }
    assert_eq!((next, batches), (count as u64, 5));
    assert_eq!(ring.stats().corrupt_bytes, 0);
    assert_eq!(tail(&ring), kernel.written);
}

#[test]
fn bytes_that_are_no_record_are_skipped_and_counted() {
    for garbage in [
        &[0u8; 16][..],
        &[9, 0, 0, 0, 0, 0, 7, 0],
        &[9, 0, 0, 0, 0, 0, 0xff, 0xff],
        &[9, 0, 0, 0], // less than a header
    ] {
        let (mut kernel, mut ring) = FakeKernel::new(1);
        kernel.record(9, &[1; 8]);
        kernel.put(garbage);
        kernel.publish();
        assert_eq!(read(&mut ring), [[1; 8]]);
        assert_eq!(ring.stats().corrupt_bytes, garbage.len() as u64);
        kernel.record(9, &[2; 8]);
        assert_eq!(read(&mut ring), [[2; 8]], "reading resumes after it");
    }
    // A head that exceeds the tail by more than the ring.
    let (kernel, mut ring) = FakeKernel::new(1);
    kernel.control.data_head().store(1 << 40, Ordering::Release);
    assert!(read(&mut ring).is_empty());
    assert_eq!((ring.stats().corrupt_bytes, tail(&ring)), (1 << 40, 1 << 40));
}

#[test]
fn losses_and_throttling_are_counted() {
    let (mut kernel, mut ring) = FakeKernel::new(1);
    kernel.record(PERF_RECORD_LOST, &words(&[1, 5]));
    kernel.record(PERF_RECORD_LOST, &words(&[1, 7]));
    kernel.record(PERF_RECORD_LOST_SAMPLES, &words(&[11]));
    kernel.record(PERF_RECORD_THROTTLE, &words(&[1, 2, 3]));
    kernel.record(PERF_RECORD_UNTHROTTLE, &words(&[1, 2, 3]));
    kernel.record(99, &[]);
    assert_eq!(read(&mut ring).len(), 6);
    let stats = ring.stats();
    assert_eq!((stats.lost, stats.lost_samples, stats.lost_at_end), (12, 11, None));
    assert_eq!((stats.throttled, stats.unthrottled, stats.records), (1, 1, 6));
    assert_eq!(stats.corrupt_bytes, 0);
    // Too short to contain a number.
    kernel.record(PERF_RECORD_LOST, &words(&[1]));
    kernel.record(PERF_RECORD_LOST_SAMPLES, &[]);
    read(&mut ring);
    assert_eq!((ring.stats().lost, ring.stats().corrupt_bytes), (12, 16 + 8));
}

#[test]
fn losses_at_the_end_are_counted_once() {
    let (mut kernel, mut ring) = FakeKernel::new(1);
    kernel.record(PERF_RECORD_LOST, &words(&[1, 5]));
    read(&mut ring);
    ring.set_kernel_losses(12);
    assert_eq!((ring.stats().lost, ring.stats().lost_at_end), (12, Some(7)));
    ring.set_kernel_losses(13);
    assert_eq!((ring.stats().lost, ring.stats().lost_at_end), (13, Some(8)));
    // A later record reports them, with three more.
    kernel.record(PERF_RECORD_LOST, &words(&[1, 11]));
    read(&mut ring);
    assert_eq!((ring.stats().lost, ring.stats().lost_at_end), (16, Some(0)));
    ring.set_kernel_losses(16);
    assert_eq!((ring.stats().lost, ring.stats().lost_at_end), (16, Some(0)));
    // A kernel count below that of the records is ignored.
    ring.set_kernel_losses(2);
    assert_eq!((ring.stats().lost, ring.stats().lost_at_end), (16, Some(0)));
}

#[test]
fn the_aux_area_is_read_where_the_records_say() {
    let (_, ring) = FakeKernel::new(1);
    let memory = PlainMemory::new(2);
    let pattern: Vec<u8> = (0..2 * PAGE).map(|i| (i / 8 % 251) as u8).collect();
    memory.write(0, &pattern);
    let control = Arc::clone(&ring.mapping);
    assert_eq!(AuxArea::place(&control, 2 * PAGE), 2 * PAGE as u64);
    assert_eq!(control.aux_offset().load(Ordering::Relaxed), 2 * PAGE as u64);
    assert_eq!(control.aux_size().load(Ordering::Relaxed), 2 * PAGE as u64);
    let area = AuxArea::of(Arc::clone(&control), memory.mapping(), 2 * PAGE);
    assert_eq!(area.size(), 2 * PAGE);

    let mut out = vec![7];
    area.copy(16, 8, &mut out);
    assert_eq!(out, [&[7][..], &[2; 8]].concat(), "appended");
    out.clear();
    let end = 2 * PAGE as u64;
    area.copy(3 * end - 8, 16, &mut out);
    assert_eq!(out, [pattern[2 * PAGE - 8..].to_vec(), vec![0; 8]].concat(), "around the end");
    out.clear();
    area.copy(8, end + 8, &mut out);
    let newest = [&pattern[16..], &pattern[..16]].concat();
    assert_eq!(out, newest, "never more than the area, and then the newest");
    area.release(24);
    assert_eq!(control.aux_tail().load(Ordering::Relaxed), 24);
    control.aux_head().store(48, Ordering::Release);
    assert_eq!(area.head(), 48);
}

#[test]
fn a_snapshot_has_the_newest_records_first() {
    let memory = PlainMemory::new(2);
    let control = memory.mapping();
    let mut head = 0u64;
    let mut write = |n: u64| {
        let bytes = record_of(9, &words(&[n; 2]));
        head = head.wrapping_sub(24);
        for (i, byte) in bytes.iter().enumerate() {
            memory.write(PAGE + (head.wrapping_add(i as u64) % PAGE as u64) as usize, &[*byte]);
        }
        control.data_head().store(head, Ordering::Release);
    };
    let snapshot = || Snapshot::take(&control, PAGE, PAGE);
    let numbers = |s: &Snapshot| s.records().map(|r| r.word(8).unwrap()).collect::<Vec<_>>();
    assert!(numbers(&snapshot()).is_empty());
    (0..3).for_each(&mut write);
    assert_eq!((numbers(&snapshot()), snapshot().overwritten_bytes()), (vec![2, 1, 0], 0));
    (3..1000).for_each(&mut write);
    // 4096 bytes hold 170 records of 24 and a part of another.
    let expected: Vec<u64> = (830..1000).rev().collect();
    assert_eq!(numbers(&snapshot()), expected);
    assert_eq!(snapshot().overwritten_bytes(), 1000 * 24 - 4096);
    let offsets: Vec<u64> = snapshot().records().take(3).map(|r| r.offset()).collect();
    assert_eq!(offsets, [0, 24, 48]);
}

#[test]
fn a_snapshot_ends_at_what_is_no_record() {
    let memory = PlainMemory::new(2);
    memory.write(PAGE + PAGE - 32, &record_of(9, &[1; 8]));
    memory.write(PAGE + PAGE - 16, &[9, 0, 0, 0, 0, 0, 7, 0]); // less than a header
    memory.mapping().data_head().store(32u64.wrapping_neg(), Ordering::Relaxed);
    assert_eq!(Snapshot::take(&memory.mapping(), PAGE, PAGE).records().count(), 1);
}

#[test]
fn a_snapshot_ends_before_what_was_overwritten_meanwhile() {
    let mut attr = perf_sys::perf_event_attr::new(1, 9);
    attr.sample_type = perf_sys::PERF_SAMPLE_TIME | perf_sys::PERF_SAMPLE_RAW;
    let layout = crate::record::RecordLayout::new(&attr);
    let sample = |time: u64| {
        let raw = [&12u32.to_ne_bytes()[..], &[0; 12]].concat();
        record_of(9, &[&time.to_ne_bytes()[..], &raw].concat())
    };
    let len = sample(0).len();
    let times_of = |oldest: &[u8]| {
        let memory = PlainMemory::new(2);
        for time in 0..20 {
            memory.write(PAGE + PAGE - (time + 1) * len, &sample(time as u64));
        }
        memory.write(PAGE + PAGE - 3 * len, oldest);
        memory.mapping().data_head().store((20 * len as u64).wrapping_neg(), Ordering::Relaxed);
        let mut snapshot = Snapshot::take(&memory.mapping(), PAGE, PAGE);
        snapshot.end_before_overwritten(&layout);
        snapshot.records().map(|r| layout.time(r).unwrap().nanos()).collect::<Vec<_>>()
    };
    let whole: Vec<i64> = (0..20).rev().collect();
    assert_eq!(times_of(&[]), whole);
    // A newer record in the place of the third, or the end of one.
    assert_eq!(times_of(&sample(20)), whole[..17]);
    assert_eq!(times_of(&[255; 20]), whole[..17]);
    let longer = [&sample(2)[..16], &[255; 8]].concat();
    assert_eq!(times_of(&longer), whole[..17], "its data ends behind it");
}

#[test]
fn statistics_of_rings_add_up() {
    let of = |n: u64, lost_at_end| RingStats {
        records: n,
        samples: n + 1,
        bytes: n + 2,
        lost: n + 3,
        lost_at_end,
        lost_samples: n + 4,
        throttled: n + 5,
        unthrottled: n + 6,
        unknown_ids: n + 7,
        corrupt_bytes: n + 8,
    };
    let sum = |a: RingStats, b| {
        let mut sum = a;
        sum.add(b);
        sum
    };
    let expected = RingStats {
        records: 110,
        samples: 112,
        bytes: 114,
        lost: 116,
        lost_at_end: Some(5),
        lost_samples: 118,
        throttled: 120,
        unthrottled: 122,
        unknown_ids: 124,
        corrupt_bytes: 126,
    };
    assert_eq!(sum(of(10, Some(2)), of(100, Some(3))), expected);
    assert_eq!(sum(of(10, None), of(100, Some(5))), expected);
    assert_eq!(sum(of(10, Some(5)), of(100, None)), expected);
    assert_eq!(sum(of(10, None), of(100, None)).lost_at_end, None);
}

#[test]
fn a_ring_with_impossible_sizes_is_refused() {
    let memory = PlainMemory::new(2);
    let control = memory.mapping();
    for (offset, size) in [
        (PAGE as u64, 3),
        (PAGE as u64, 1 << 40),
        (u64::MAX, 4096),
        (8192, 4096),
        (8200, 4096),
        (PAGE as u64 + 8, 4096),
    ] {
        control.data_offset().store(offset, Ordering::Relaxed);
        control.data_size().store(size, Ordering::Relaxed);
        let ring = RingBuffer::of(memory.mapping(), 1, PAGE);
        assert_eq!(ring.unwrap_err(), Errno::INVAL, "{offset} {size}");
    }
    control.data_offset().store(PAGE as u64, Ordering::Relaxed);
    control.data_size().store(2048, Ordering::Relaxed);
    assert_eq!(RingBuffer::of(memory.mapping(), 1, PAGE).unwrap().size(), 2048);
    // Without a control page there is no data to read.
    assert!(Mapping::new(Memory::Plain(PlainMemory::new(0))).is_none());
}

/// Interpreters do not support mapped files in memory.
#[cfg(not(miri))]
mod mapped {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn a_file_is_mapped_as_a_ring_with_an_aux_area() {
        let page = rustix::param::page_size();
        let fd = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 16 * page as u64).unwrap();
        let mut ring = RingBuffer::map(&fd, 2).unwrap();
        assert_eq!(ring.size(), 2 * page);
        rustix::io::pwrite(&fd, &record_of(9, &[3; 8]), page as u64).unwrap();
        ring.mapping.data_head().store(16, Ordering::Release);
        assert_eq!(read(&mut ring), [[3; 8]]);
        let area = ring.map_aux(&fd, 4).unwrap();
        rustix::io::pwrite(&fd, &[5; 8], 3 * page as u64 + 16).unwrap();
        let mut out = Vec::new();
        area.copy(16, 8, &mut out);
        assert_eq!(out, [5; 8]);
        assert!(matches!(ring.map_aux(&fd, 3), Err(Error::RingPages(3))));
    }
}
