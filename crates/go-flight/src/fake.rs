//! A memory with a flight recorder, for tests.

use crate::layout::Layout;
use crate::memory::Memory;
use std::io;
use std::ops::Range;

/// The address of the first byte, and of the variable `tracing`.
pub(crate) const BASE: u64 = 0xc000_0000;

/// Bytes of memory that was reused.
const GARBAGE: u8 = 0xaa;

/// A part of an address space that begins at [`BASE`].
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) bytes: Vec<u8>,
    pub(crate) layout: &'static Layout,
    recorder: u64,
    /// The generations in the ring: their descriptors and their memory.
    ring: Vec<(Vec<u8>, Range<usize>)>,
    ring_memory: Range<usize>,
}

/// The bytes of a generation: batches.
pub(crate) type Batches = Vec<Vec<u8>>;

impl Memory for Fake {
    fn read_at(&mut self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = address.checked_sub(BASE).and_then(|at| usize::try_from(at).ok());
        let bytes = start.and_then(|at| self.bytes.get(at..at.checked_add(buffer.len())?));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::AddrNotAvailable)?);
        Ok(())
    }
}

/// A batch of a generation.
pub(crate) fn batch(generation: u64, content: &[u8]) -> Vec<u8> {
    assert!(generation < 128 && content.len() < 128);
    let mut bytes = vec![1, generation as u8, 3, 100, content.len() as u8];
    bytes.extend_from_slice(content);
    bytes
}

impl Fake {
    /// A running flight recorder with an empty ring.
    pub(crate) fn new(layout: &'static Layout) -> Self {
        let mut fake =
            Self { bytes: Vec::new(), layout, recorder: 0, ring: Vec::new(), ring_memory: 0..0 };
        let tracing = fake.allocate(layout.multiplexer);
        assert_eq!(tracing, BASE);
        let recorder = fake.allocate(64);
        fake.recorder = fake.allocate(layout.flight_recorder);
        fake.write(BASE, layout.multiplexer_enabled, &[1]);
        fake.word(BASE, layout.multiplexer_subscribers, 1);
        fake.word(BASE, layout.multiplexer_flight_recorder, recorder);
        fake.word(recorder, layout.recorder_r, fake.recorder);
        fake.write(fake.recorder, layout.flight_recorder_header, b"go 1.26 trace\0\0\0");
        fake.write(fake.recorder, layout.flight_recorder_enabled, &[1]);
        fake
    }

    /// Makes room for a value, at an aligned address.
    pub(crate) fn allocate(&mut self, len: usize) -> u64 {
        let start = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(start + len, 0);
        BASE + start as u64
    }

    pub(crate) fn write(&mut self, address: u64, offset: usize, bytes: &[u8]) {
        let at = (address - BASE) as usize + offset;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn word(&mut self, address: u64, offset: usize, word: u64) {
        self.write(address, offset, &word.to_le_bytes());
    }

    /// Stops the recorder.
    pub(crate) fn stop(&mut self) {
        self.word(BASE, self.layout.multiplexer_flight_recorder, 0);
    }

    /// Adds a generation at the end of the ring, as the recorder does: by a new ring.
    pub(crate) fn push(&mut self, number: u64, batches: &Batches) {
        self.push_as(number, batches, |_| {});
    }

    /// The same, with a changed descriptor.
    pub(crate) fn push_as(&mut self, number: u64, batches: &Batches, change: impl Fn(&mut [u8])) {
        let layout = self.layout;
        let start = self.bytes.len();
        let list = self.allocate(batches.len() * layout.batch);
        for (i, batch) in batches.iter().enumerate() {
            let data = self.allocate(batch.len());
            self.write(data, 0, batch);
            self.word(list, i * layout.batch + layout.batch_data, data);
            self.word(list, i * layout.batch + layout.batch_data + 8, batch.len() as u64);
        }
        let mut raw = vec![0; layout.generation];
        let size: usize = batches.iter().map(Vec::len).sum();
        for (offset, word) in [
            (layout.generation_gen, number),
            (layout.generation_size, size as u64),
            (layout.generation_min_time, number * 1000),
            (layout.generation_batches, list),
            (layout.generation_batches + 8, batches.len() as u64),
        ] {
            raw[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        }
        change(&mut raw);
        self.ring.push((raw, start..self.bytes.len()));
        self.replace_ring();
    }

    /// Drops the oldest generation. Its memory is used for something else.
    pub(crate) fn drop_oldest(&mut self) {
        let (_, memory) = self.ring.remove(0);
        self.bytes[memory].fill(GARBAGE);
        self.replace_ring();
    }

    /// Writes the ring to another place. The memory of the old one is used for something else.
    fn replace_ring(&mut self) {
        let old = self.ring_memory.clone();
        self.bytes[old].fill(GARBAGE);
        let size = self.layout.generation;
        let ring = self.allocate(self.ring.len() * size);
        for (i, (raw, _)) in self.ring.clone().iter().enumerate() {
            self.write(ring, i * size, raw);
        }
        let start = (ring - BASE) as usize;
        self.ring_memory = start..start + self.ring.len() * size;
        self.word(self.recorder, self.layout.flight_recorder_ring, ring);
        self.word(self.recorder, self.layout.flight_recorder_ring + 8, self.ring.len() as u64);
    }

    /// The address of a field of the `FlightRecorder`.
    pub(crate) fn field(&self, offset: usize) -> u64 {
        self.recorder + offset as u64
    }
}
