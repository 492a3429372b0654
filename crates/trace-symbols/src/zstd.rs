//! Sections that are compressed with zstd (RFC 8878).

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::Read;

/// Maximum number of bytes that one byte stands for: a block of 4 bytes can be 128 KiB of one byte.
pub(crate) const MAX_RATIO: u64 = (128 << 10) / 4;

/// A window that writers ask for whatever the size of the contents is: the largest one of the levels up to 19.
const USUAL_WINDOW: u64 = 8 << 20;

/// Decompresses all frames. `None` if they do not have exactly the contents of `out`.
///
/// The decoder keeps the bytes of the window of a frame beside the contents.
pub(crate) fn decompress(mut frames: &[u8], mut out: &mut [u8]) -> Option<()> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(USUAL_WINDOW.max((out.len() as u64).next_power_of_two()));
    while !frames.is_empty() {
        decoder.init(&mut frames).ok()?;
        loop {
            decoder.decode_blocks(&mut frames, BlockDecodingStrategy::UptoBlocks(1)).ok()?;
            let size = decoder.read(out).ok()?;
            out = out.split_at_mut_checked(size)?.1;
            if decoder.can_collect() > 0 {
                return None;
            }
            if decoder.is_finished() {
                break;
            }
        }
    }
    out.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame whose window has this exponent, with these blocks (section 3.1.1): each of one byte that is
    /// repeated, or of bytes without compression.
    fn frame(window: u8, blocks: &[Block<'_>]) -> Vec<u8> {
        let mut out = vec![0x28, 0xb5, 0x2f, 0xfd, 0, window << 3];
        for (i, block) in blocks.iter().enumerate() {
            let (kind, size, content) = match *block {
                Block::Raw(bytes) => (0, bytes.len(), bytes),
                Block::Zeros(size) => (1, size, &[0][..]),
            };
            let is_last = i + 1 == blocks.len();
            let header = (size << 3 | kind << 1 | usize::from(is_last)).to_le_bytes();
            out.extend([&header[..3], content].concat());
        }
        out
    }

    #[derive(Clone, Copy)]
    enum Block<'a> {
        Raw(&'a [u8]),
        Zeros(usize),
    }

    fn inflate(frames: &[u8], size: usize) -> Option<Vec<u8>> {
        let mut out = vec![1; size];
        decompress(frames, &mut out).map(|()| out)
    }

    #[test]
    fn all_frames_are_the_contents() {
        let raw = |window, bytes| frame(window, &[Block::Raw(bytes)]);
        let frames = [raw(0, b"one"), raw(10, b""), raw(13, b"two")].concat();
        assert_eq!(inflate(&frames, 6).as_deref(), Some(&b"onetwo"[..]));
        assert_eq!(inflate(b"", 0).as_deref(), Some(&b""[..]));
        for (frames, size) in [(&frames[..], 5), (&frames, 7), (b"", 1), (b"\x28\xb5", 0)] {
            assert_eq!(inflate(frames, size), None, "{size}");
        }
        for end in 1..frames.len() {
            assert_eq!(inflate(&frames[..end], 6), None, "{end}");
        }
    }

    #[test]
    fn a_large_window_needs_large_contents() {
        // 16 MiB.
        let window = 14;
        assert_eq!(inflate(&frame(window, &[Block::Raw(b"x")]), 1), None);
        let blocks = [Block::Zeros(128 << 10); 128];
        let large = inflate(&frame(window, &blocks), 16 << 20);
        assert!(large.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0)));
    }

    #[test]
    fn contents_end_with_their_size() {
        // A window of 1 MiB: the decoder keeps that much, and no more.
        let blocks = [Block::Zeros(128 << 10); 1024];
        assert_eq!(inflate(&frame(10, &blocks), 100), None);
    }
}
