//! A file in memory with the layout of a ring stands in for the kernel, for what a real one
//! never does: wraps at chosen places, broken records, AUX data.

use super::*;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

struct FakeKernel {
    ring: RingBuffer,
    written: u64,
    fd: OwnedFd,
}

const PAGE: usize = 4096;

impl FakeKernel {
    fn new(pages: usize) -> Self {
        assert_eq!(rustix::param::page_size(), PAGE, "the tests assume pages of 4 KiB");
        let fd = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, ((pages + 1 + 16) * PAGE) as u64).unwrap();
        let ring = RingBuffer::map(&fd, pages).unwrap();
        Self { ring, written: 0, fd }
    }

    /// Starts at a position as if so much had gone through already.
    fn at(pages: usize, position: u64) -> Self {
        let mut this = Self::new(pages);
        this.written = position;
        this.ring.mapping.data_tail().store(position, Ordering::Relaxed);
        this.ring.mapping.data_head().store(position, Ordering::Relaxed);
        this
    }

    fn put(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let at = PAGE as u64 + self.written % self.ring.size as u64;
            rustix::io::pwrite(&self.fd, &[*byte], at).unwrap();
            self.written += 1;
        }
    }

    fn publish(&self) {
        self.ring.mapping.data_head().store(self.written, Ordering::Release);
    }

    fn record(&mut self, type_: u32, body: &[u8]) {
        let mut bytes = type_.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&(8 + body.len() as u16).to_ne_bytes());
        bytes.extend_from_slice(body);
        self.put(&bytes);
        self.publish();
    }

    fn read(&mut self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        let mut batch = self.ring.batch();
        while let Some(record) = batch.next_record() {
            out.push(record.bytes()[8..].to_vec());
        }
        out
    }

    fn tail(&self) -> u64 {
        self.ring.mapping.data_tail().load(Ordering::Relaxed)
    }
}

#[test]
fn records_come_whole_wherever_the_ring_wraps() {
    for start in (0..PAGE as u64).step_by(8) {
        for base in [0, u64::MAX - PAGE as u64 + 1] {
            // The positions themselves may wrap too.
            let mut kernel = FakeKernel::at(1, base.wrapping_add(start));
            let body: Vec<u8> = (0..200).collect();
            kernel.written = base.wrapping_add(start);
            let mut put = kernel.written;
            let mut bytes = 9u32.to_ne_bytes().to_vec();
            bytes.extend_from_slice(&[0, 0, 208, 0]);
            bytes.extend_from_slice(&body);
            for byte in &bytes {
                rustix::io::pwrite(&kernel.fd, &[*byte], PAGE as u64 + put % PAGE as u64).unwrap();
                put = put.wrapping_add(1);
            }
            kernel.ring.mapping.data_head().store(put, Ordering::Release);
            assert_eq!(kernel.read(), [body]);
            assert_eq!(kernel.tail(), put);
            assert_eq!(kernel.ring.stats().samples, 1);
        }
    }
}

#[test]
fn what_was_not_lent_comes_again_even_after_a_panic() {
    let mut kernel = FakeKernel::new(1);
    for n in 0..4u64 {
        kernel.record(9, &n.to_ne_bytes());
    }
    let ring = &mut kernel.ring;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut batch = ring.batch();
        batch.next_record().unwrap();
        batch.next_record().unwrap();
        panic!("the reader fails");
    }));
    assert!(result.is_err());
    assert_eq!(kernel.tail(), 32, "two records were lent");
    assert_eq!(kernel.read(), [2u64.to_ne_bytes(), 3u64.to_ne_bytes()]);
    assert!(kernel.read().is_empty());
}

#[test]
fn chunks_cut_records_and_join_them_again() {
    // A ring of 512 KiB is read in chunks of 128 KiB; records of 24 bytes do not divide them.
    let mut kernel = FakeKernel::new(128);
    let count = (512 * 1024) / 24;
    let mut all = Vec::new();
    for n in 0..count as u64 {
        let mut bytes = 9u32.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&[0, 0, 24, 0]);
        bytes.extend_from_slice(&n.to_ne_bytes());
        bytes.extend_from_slice(&n.to_ne_bytes());
        all.extend_from_slice(&bytes);
    }
    rustix::io::pwrite(&kernel.fd, &all, PAGE as u64).unwrap();
    kernel.written = all.len() as u64;
    kernel.publish();
    let mut next = 0u64;
    let mut batches = 0;
    loop {
        let records = kernel.read();
        if records.is_empty() {
            break;
        }
        batches += 1;
        for record in records {
            assert_eq!(record[..8], next.to_ne_bytes());
            next += 1;
        }
    }
    assert_eq!((next, batches), (count as u64, 5));
    assert_eq!(kernel.ring.stats().corrupt_bytes, 0);
    assert_eq!(kernel.tail(), kernel.written);
}

#[test]
fn what_is_no_record_is_skipped_and_counted() {
    for garbage in [&[0u8; 16][..], &[9, 0, 0, 0, 0, 0, 7, 0], &[9, 0, 0, 0, 0, 0, 0xff, 0xff]] {
        let mut kernel = FakeKernel::new(1);
        kernel.record(9, &[1; 8]);
        kernel.put(garbage);
        kernel.publish();
        assert_eq!(kernel.read(), [[1; 8]]);
        assert_eq!(kernel.ring.stats().corrupt_bytes, garbage.len() as u64);
        kernel.record(9, &[2; 8]);
        assert_eq!(kernel.read(), [[2; 8]], "it goes on behind");
    }
    // A head that runs away from the tail by more than the ring.
    let mut kernel = FakeKernel::new(1);
    kernel.ring.mapping.data_head().store(1 << 40, Ordering::Release);
    assert!(kernel.read().is_empty());
    assert_eq!((kernel.ring.stats().corrupt_bytes, kernel.tail()), (1 << 40, 1 << 40));
}

#[test]
fn losses_and_throttling_are_counted() {
    let mut kernel = FakeKernel::new(1);
    let words = |w: &[u64]| w.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
    kernel.record(PERF_RECORD_LOST, &words(&[1, 5]));
    kernel.record(PERF_RECORD_LOST, &words(&[1, 7]));
    kernel.record(PERF_RECORD_LOST_SAMPLES, &words(&[11]));
    kernel.record(PERF_RECORD_THROTTLE, &words(&[1, 2, 3]));
    kernel.record(PERF_RECORD_UNTHROTTLE, &words(&[1, 2, 3]));
    kernel.record(99, &[]);
    assert_eq!(kernel.read().len(), 6);
    let stats = kernel.ring.stats();
    assert_eq!((stats.lost, stats.lost_samples), (12, 11));
    assert_eq!((stats.throttled, stats.unthrottled, stats.records), (1, 1, 6));
}

#[test]
fn the_aux_area_is_read_where_the_records_say() {
    let mut kernel = FakeKernel::new(1);
    let fd = kernel.fd.try_clone().unwrap();
    let area = kernel.ring.map_aux(&fd, 2).unwrap();
    let control = Arc::clone(&kernel.ring.mapping);
    assert_eq!(control.aux_offset().load(Ordering::Relaxed), 2 * PAGE as u64);
    assert_eq!(control.aux_size().load(Ordering::Relaxed), 2 * PAGE as u64);
    let pattern: Vec<u8> = (0..2 * PAGE).map(|i| (i / 8 % 251) as u8).collect();
    rustix::io::pwrite(&fd, &pattern, 2 * PAGE as u64).unwrap();

    let mut out = vec![7];
    area.copy(16, 8, &mut out);
    assert_eq!(out, [&[7][..], &[2; 8]].concat(), "appended");
    out.clear();
    let end = 2 * PAGE as u64;
    area.copy(3 * end - 8, 16, &mut out);
    assert_eq!(out, [pattern[2 * PAGE - 8..].to_vec(), vec![0; 8]].concat(), "around the end");
    out.clear();
    area.copy(0, u64::MAX, &mut out);
    assert_eq!(out.len(), 2 * PAGE, "never more than the area");
    area.release(24);
    assert_eq!(control.aux_tail().load(Ordering::Relaxed), 24);
    assert!(matches!(kernel.ring.map_aux(&fd, 3), Err(Error::RingPages(3))));
}

#[test]
fn a_ring_that_lies_about_itself_is_refused() {
    let kernel = FakeKernel::new(1);
    for (offset, size) in [(PAGE as u64, 3), (PAGE as u64, 1 << 40), (u64::MAX, 4096), (8192, 4096)]
    {
        kernel.ring.mapping.data_offset().store(offset, Ordering::Relaxed);
        kernel.ring.mapping.data_size().store(size, Ordering::Relaxed);
        assert_eq!(RingBuffer::map(&kernel.fd, 1).unwrap_err(), Errno::INVAL, "{offset} {size}");
    }
}
