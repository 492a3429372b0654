//! The wire reader: what it reads can be written, as bytes and as text, and read again.

use gotrace::raw::{Event, Reader, TextReader, TextWriter, Writer};

pub fn target(data: &[u8]) {
    let Ok(mut reader) = Reader::new(data) else { return };
    if reader.version().is_v1() {
        return;
    }
    let mut wire = Writer::new(Vec::new(), reader.version()).unwrap();
    let mut text = TextWriter::new(Vec::new(), reader.version()).unwrap();
    let mut events = Vec::new();
    while let Ok(Some(event)) = reader.next_event() {
        if event.ty.spec().is_none() {
            return; // a number that Go has skipped: there is no text for it
        }
        wire.write_event(event).unwrap();
        text.write_event(event).unwrap();
        events.push(event.to_owned());
    }
    let (wire, text) = (wire.into_inner(), text.into_inner());
    let mut again = Reader::new(&wire[..]).unwrap();
    let mut from_text = TextReader::new(&text[..]).unwrap();
    for event in &events {
        let event = event.as_event();
        assert!(again.next_event().unwrap() == Some(event));
        // No data and empty data are one thing in bytes, and two in Go's text.
        let data = |event: Event<'_>| event.data.unwrap_or_default().to_vec();
        let read = from_text.next_event().unwrap().unwrap();
        assert!((read.ty, read.args, data(read)) == (event.ty, event.args, data(event)));
    }
    assert!(again.next_event().unwrap().is_none());
    assert!(from_text.next_event().unwrap().is_none());
}
