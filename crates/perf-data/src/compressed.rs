//! Compressed records: one zstd stream, cut into records at any place.

use crate::error::{Error, Result};
use ruzstd::decoding::FrameDecoder;
use std::io::Read as _;

/// The longest header of a zstd frame, with its magic number (RFC 8878).
const LONGEST_HEADER: usize = 18;

/// Bytes of the header of a block, and of a frame's checksum.
const BLOCK_HEADER: usize = 3;
const CHECKSUM: usize = 4;

/// The most bytes that a block stands for.
const MAX_BLOCK: u64 = 128 << 10;

/// An empty last block: it ends a frame whose writer did not.
const LAST_BLOCK: [u8; BLOCK_HEADER] = [1, 0, 0];

/// Decompresses the data of successive records, block by block: a few bytes can stand for 128 KiB.
pub(crate) struct Inflater {
    decoder: FrameDecoder,
    state: State,
    input: Vec<u8>,
    /// Decoded bytes of `input`.
    at: usize,
    /// Bytes of the window of the frame.
    window: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a frame.
    Start,
    /// In a frame.
    Blocks,
    /// After the last block of a frame.
    Checksum,
}

impl Inflater {
    pub(crate) fn new() -> Self {
        let (decoder, state) = (FrameDecoder::new(), State::Start);
        Self { decoder, state, input: Vec::new(), at: 0, window: 0 }
    }

    /// Adds the data of a record.
    pub(crate) fn feed(&mut self, data: &[u8]) {
        self.input.drain(..self.at);
        self.at = 0;
        self.input.extend_from_slice(data);
    }

    /// Ends the input: `perf` does not end its frame. Returns whether it ended within a block, which
    /// is then dropped.
    pub(crate) fn end(&mut self) -> bool {
        let is_truncated = self.at < self.input.len();
        self.at = self.input.len();
        self.feed(if self.state == State::Blocks { &LAST_BLOCK } else { &[] });
        is_truncated
    }

    /// At most how many bytes of the input so far are not in the output yet, decompressed.
    pub(crate) fn held_back(&self) -> u64 {
        let window = if self.state == State::Blocks { self.window } else { 0 };
        let is_cut = self.at < self.input.len();
        window + if is_cut { MAX_BLOCK } else { 0 }
    }

    /// Decodes the next block of the record at `offset` and appends what it completes to `out`:
    /// the decoder keeps as much as the window of the frame until more follows. Returns whether
    /// there was a whole block.
    pub(crate) fn step(&mut self, offset: u64, out: &mut Vec<u8>) -> Result<bool> {
        let failed =
            |error: &dyn std::fmt::Display| Error::Decompress { offset, why: error.to_string() };
        let input = self.input.get(self.at..).unwrap_or_default();
        match self.state {
            State::Start if input.is_empty() => return Ok(false),
            State::Start => {
                let mut rest = input;
                match self.decoder.init(&mut rest) {
                    Ok(()) => {
                        self.window = window(input, self.decoder.content_size());
                        self.at = self.input.len() - rest.len();
                    }
                    Err(_) if input.len() < LONGEST_HEADER => return Ok(false),
                    Err(error) => return Err(failed(&error)),
                }
                self.state = State::Blocks;
            }
            State::Blocks => {
                let Some((size, is_last)) = block(input) else { return Ok(false) };
                let Some(block) = input.get(..size) else { return Ok(false) };
                let mut chunk = [0; 8 << 10];
                let (read, mut written) =
                    self.decoder.decode_from_to(block, &mut chunk).map_err(|e| failed(&e))?;
                if read != size {
                    return Err(failed(&"a block of another size than its header says"));
                }
                self.at += size;
                while written > 0 {
                    out.extend_from_slice(chunk.get(..written).unwrap_or_default());
                    // `decode_from_to` would want the checksum after the last block first.
                    written = self.decoder.read(&mut chunk).map_err(|e| failed(&e))?;
                }
                if is_last {
                    let is_whole = self.decoder.is_finished();
                    self.state = if is_whole { State::Start } else { State::Checksum };
                }
            }
            // The checksum is of the whole frame; damage shows as records that are none.
            State::Checksum if input.len() < CHECKSUM => return Ok(false),
            State::Checksum => {
                self.at += CHECKSUM;
                self.state = State::Start;
            }
        }
        Ok(true)
    }
}

/// Bytes of the window of a frame (RFC 8878, section 3.1.1.1).
fn window(header: &[u8], content_size: u64) -> u64 {
    const SINGLE_SEGMENT: u8 = 1 << 5;
    match header.first_chunk::<6>() {
        Some([_, _, _, _, descriptor, _]) if descriptor & SINGLE_SEGMENT != 0 => content_size,
        Some([.., descriptor]) => {
            let base = 1024_u64 << (descriptor >> 3);
            base + base / 8 * u64::from(descriptor & 7)
        }
        None => 0,
    }
}

/// Size of the first block with its header, and whether it is the frame's last one.
fn block(input: &[u8]) -> Option<(usize, bool)> {
    const RLE: usize = 1;
    let [a, b, c] = *input.first_chunk::<BLOCK_HEADER>()?;
    let header = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
    let content = if header >> 1 & 3 == RLE { 1 } else { header >> 3 };
    Some((BLOCK_HEADER + content, header & 1 == 1))
}

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflater").field("state", &self.state).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a frame with this descriptor of its window (RFC 8878, section 3.1.1.1.2).
    fn header(window: u8) -> Vec<u8> {
        [&0xfd2f_b528_u32.to_le_bytes()[..], &[0, window]].concat()
    }

    /// A block with its header (section 3.1.1.2).
    fn block(kind: u8, size: u32, content: &[u8]) -> Vec<u8> {
        let header = size << 3 | u32::from(kind) << 1;
        [&header.to_le_bytes()[..BLOCK_HEADER], content].concat()
    }

    fn inflate(frame: &[u8]) -> (usize, Option<Error>) {
        let (mut inflater, mut out) = (Inflater::new(), Vec::new());
        inflater.feed(frame);
        loop {
            match inflater.step(0, &mut out) {
                Ok(true) => {}
                Ok(false) => return (out.len(), None),
                Err(error) => return (out.len(), Some(error)),
            }
        }
    }

    /// All that the decoder has not returned, and not much more.
    #[test]
    fn the_bytes_that_are_held_back_are_known() {
        let run = block(1, 1 << 17, b"x");
        for (window, size) in [(9 << 3, 1 << 19), (9 << 3 | 4, 3 << 18)] {
            let frame = [&header(window)[..], &run.repeat(12)].concat();
            let (mut inflater, mut out) = (Inflater::new(), Vec::new());
            assert_eq!(inflater.held_back(), 0);
            inflater.feed(&frame);
            while inflater.step(0, &mut out).unwrap() {}
            assert_eq!((out.len() as u64, inflater.held_back()), ((12 << 17) - size, size));
            inflater.feed(&run[..2]);
            assert_eq!(inflater.held_back(), size + MAX_BLOCK);
            assert!(inflater.end());
            while inflater.step(0, &mut out).unwrap() {}
            assert_eq!((out.len(), inflater.held_back()), (12 << 17, 0));
        }
        // A frame of one segment has no descriptor of a window: all of its content is kept.
        assert_eq!(window(&[0, 0, 0, 0, 1 << 5 | 1 << 6, 64], 320), 320);
    }

    #[test]
    fn a_window_has_a_limit() {
        // 1 MiB: the block's bytes are kept until there are more.
        let one = [&header(10 << 3)[..], &block(1, 1 << 17, b"x").repeat(12)].concat();
        let (size, error) = inflate(&one);
        assert!(error.is_none() && size == 4 << 17, "{size}: {error:?}");
        // 1 TiB: all bytes would be kept.
        let (size, error) = inflate(&[&header(30 << 3)[..], &block(0, 20, &[0; 20])].concat());
        assert!(matches!(error, Some(Error::Decompress { .. })) && size == 0, "{error:?}");
    }

    #[test]
    fn a_block_has_at_most_128_kib() {
        // No literals, 100 matches of 131074 bytes. Each table has one code, that of the longest match with
        // 16 more bits.
        let mut sequences = vec![0, 100, 0b0101_0100, 0, 0, 52];
        sequences.extend([0xff; 200]);
        sequences.push(1);
        let mut frame = header(10 << 3);
        frame.extend(block(0, 8, b"contents"));
        frame.extend(block(2, sequences.len() as u32, &sequences));
        let (size, error) = inflate(&frame);
        assert!(matches!(error, Some(Error::Decompress { .. })), "{size}: {error:?}");
    }
}
