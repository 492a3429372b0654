//! Files of zstd, decompressed without C code.

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, BufReader, Read};

/// The content of all frames, one after the other.
pub(super) struct Frames<R> {
    source: BufReader<R>,
    decoder: FrameDecoder,
    is_in_frame: bool,
}

impl<R: Read> Frames<R> {
    pub(super) fn new(source: R) -> Self {
        let source = BufReader::with_capacity(1 << 17, source);
        Self { source, decoder: FrameDecoder::new(), is_in_frame: false }
    }

    /// Begins the next frame of data. Returns whether there is one.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = self.source.by_ref().take(length.into());
                    io::copy(&mut skipped, &mut io::sink())?;
                }
                Err(error) => return Err(invalid(error)),
            }
        }
        Ok(false)
    }

    fn end(&self) -> io::Result<()> {
        match self.decoder.get_checksum_from_data() {
            Some(expected) if self.decoder.get_calculated_checksum() != Some(expected) => {
                Err(invalid("the checksum of a zstd frame does not match"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_in_frame && !self.begin()? {
                return Ok(0);
            }
            self.is_in_frame = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBytes(out.len());
                self.decoder.decode_blocks(&mut self.source, strategy).map_err(invalid)?;
            }
            match self.decoder.read(out)? {
                0 if self.decoder.is_finished() && !out.is_empty() => {
                    self.end()?;
                    self.is_in_frame = false;
                }
                count => return Ok(count),
            }
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decompress(file: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Frames::new(file).read_to_end(&mut content)?;
        Ok(content)
    }

    /// A frame with a checksum.
    fn frame(content: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
        encoder.include_checksum(true).unwrap();
        io::copy(&mut &content[..], &mut encoder).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn all_frames_are_read() {
        let content: Vec<u8> = (0..300_000_u32).flat_map(|i| (i % 977).to_le_bytes()).collect();
        let skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
        let file = [&frame(&content)[..], skippable, &frame(b""), &frame(b"end")].concat();
        assert!(decompress(&file).unwrap() == [&content[..], b"end"].concat());
        assert!(decompress(b"").unwrap().is_empty());
    }

    #[test]
    fn damage_is_an_error() {
        let file = frame(b"what a frame has");
        for end in 1..file.len() {
            assert!(decompress(&file[..end]).is_err(), "cut at byte {end}");
        }
        let mut changed = file.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(decompress(&changed).unwrap_err().to_string().contains("checksum"));
    }
}
