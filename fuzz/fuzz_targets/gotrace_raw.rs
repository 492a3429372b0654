//! The wire reader: what it reads can be written, as bytes and as text, and read again.
#![no_main]

use gotrace::raw::{Reader, TextReader, TextWriter, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(mut reader) = Reader::new(data) else { return };
    if reader.version().is_v1() {
        return;
    }
    let mut wire = Writer::new(Vec::new(), reader.version()).unwrap();
    let mut text = TextWriter::new(Vec::new(), reader.version()).unwrap();
    let mut events = Vec::new();
    while let Ok(Some(event)) = reader.next_event() {
        wire.write_event(event).unwrap();
        text.write_event(event).unwrap();
        events.push(event.to_owned());
    }
    let (wire, text) = (wire.into_inner(), text.into_inner());
    let mut again = Reader::new(&wire[..]).unwrap();
    let mut from_text = TextReader::new(&text[..]).unwrap();
    for event in &events {
        let expected = Some(event.as_event());
        assert!(again.next_event().unwrap() == expected);
        assert!(from_text.next_event().unwrap() == expected);
    }
    assert!(again.next_event().unwrap().is_none());
    assert!(from_text.next_event().unwrap().is_none());
});
