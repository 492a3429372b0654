//! Executables and libraries: any bytes.

use trace_symbols::{ObjectFile, Options};

pub fn target(data: &[u8]) {
    let mut options = Options::default();
    options.max_bytes = 1 << 20;
    let Ok(file) = ObjectFile::parse(data.to_vec(), &options) else { return };
    for address in (0..0x100).chain((0x40_0000..0x40_1000).step_by(64)) {
        if let Ok(frames) = file.frames(address) {
            assert!(!frames.is_empty());
        }
    }
}
