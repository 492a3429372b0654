//! The text form: any text is read or refused, and what is read can be written as bytes.

use gotrace::raw::{TestFile, TextReader, TextToWire};
use std::io::Read;

pub fn target(data: &[u8]) {
    if let Ok(mut reader) = TextReader::new(data) {
        while let Ok(Some(event)) = reader.next_event() {
            let _ = event.to_string();
            let _ = event.encoded_size();
        }
    }
    if let Ok(wire) = TextToWire::new(data) {
        let _ = wire.take(1 << 20).read_to_end(&mut Vec::new());
    }
    if let Ok(file) = TestFile::parse(data) {
        let _ = (file.expectation(), file.text());
        let _ = file.to_text_reader();
    }
}
