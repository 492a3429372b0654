//! Streams of .NET runtimes without command lines.
//!
//! A runtime writes its command line in `ProcessInfo`, and some versions in `RuntimeInformationStart`. Its
//! characters are replaced one by one, so that all else of the stream keeps its place. Bytes are written
//! once the events in them have been seen.

use super::dotnet_watch::stream_options;
use crate::timeline::counted;
use nettrace::{ErrorKind, Event, Parser, Text, Value};
use std::io::{self, Write};
use std::ops::Range;

/// The field of a payload that has it.
const FIELD: &str = "CommandLine";

/// A stream on its way to a file.
pub(super) struct Masked<W> {
    out: W,
    /// `None` if command lines are kept.
    mask: Option<Mask>,
}

struct Mask {
    parser: Parser,
    /// Bytes that are not written yet.
    held: Vec<u8>,
    /// Offset of the first of them in the stream.
    at: u64,
    /// Offset of the first byte that may have an event that was not seen.
    seen: u64,
    /// Events whose payload was removed, as the command line in it was not found.
    removed: u64,
    /// Why nothing more is written.
    damage: Option<String>,
}

impl<W: Write> Masked<W> {
    pub(super) fn new(out: W, keeps_command_lines: bool) -> Self {
        let mask = Mask {
            parser: Parser::new(stream_options()),
            held: Vec::new(),
            at: 0,
            seen: 0,
            removed: 0,
            damage: None,
        };
        Self { out, mask: (!keeps_command_lines).then_some(mask) }
    }

    /// Writes what remains of a stream that has ended. Returns what is missing of it for the sake of the
    /// command line, in words.
    pub(super) fn finish(mut self) -> io::Result<Option<String>> {
        let Some(mask) = &mut self.mask else { return Ok(None) };
        mask.parser.finish();
        mask.look();
        let ready = mask.ready();
        self.out.write_all(&ready)?;
        Ok(mask.missing())
    }
}

impl<W: Write> Write for Masked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(mask) = &mut self.mask else { return self.out.write(bytes) };
        if mask.damage.is_none() {
            mask.held.extend_from_slice(bytes);
            mask.parser.push(bytes);
            mask.look();
            mask.seen = match mask.damage {
                None => mask.parser.stats().bytes,
                Some(_) => mask.seen,
            };
            let ready = mask.ready();
            self.out.write_all(&ready)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Mask {
    /// Sees the events of all blocks that are there.
    fn look(&mut self) {
        let Self { parser, held, at, seen, removed, damage } = self;
        loop {
            match parser.next_event() {
                Ok(Some(event)) => {
                    let from = event.payload_offset();
                    *seen = from + event.payload().len() as u64;
                    let Some(found) = Found::of(&event) else { continue };
                    *removed += u64::from(matches!(found, Found::Somewhere(_)));
                    let start = usize::try_from(from.saturating_sub(*at)).unwrap_or(usize::MAX);
                    found.erase(held.get_mut(start..).unwrap_or_default());
                }
                Ok(None) => return,
                Err(error) if matches!(error.kind, ErrorKind::Truncated) => {}
                Err(error) => {
                    *damage = Some(error.to_string());
                    return;
                }
            }
        }
    }

    /// The bytes whose events were seen, once.
    fn ready(&mut self) -> Vec<u8> {
        let length = usize::try_from(self.seen.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let rest = self.held.split_off(length.min(self.held.len()));
        let ready = std::mem::replace(&mut self.held, rest);
        self.at += ready.len() as u64;
        ready
    }

    fn missing(&self) -> Option<String> {
        let damage = self.damage.as_ref().map(|why| {
            format!("all from byte {}, which may have the command line: {why}", self.at)
        });
        let removed = (self.removed > 0).then(|| {
            let what = counted(self.removed, "event");
            format!("the fields of {what}: no command line was found where it should be")
        });
        match (damage, removed) {
            (Some(damage), Some(removed)) => Some(format!("{damage}; {removed}")),
            (damage, removed) => damage.or(removed),
        }
    }
}

/// The command line in a payload.
enum Found {
    Utf16(Range<usize>),
    Utf8(Range<usize>),
    /// In these bytes, if it is there.
    Somewhere(Range<usize>),
}

impl Found {
    fn of(event: &Event<'_>) -> Option<Self> {
        let (payload, metadata) = (event.payload(), event.metadata());
        if metadata.is_unknown() {
            return Some(Self::Somewhere(0..payload.len()));
        }
        if metadata.field_index(FIELD).is_none() && !is_about_program(event) {
            return None;
        }
        let mut fields = event.fields();
        loop {
            let start = payload.len().saturating_sub(fields.rest().len());
            match fields.next() {
                Some(Ok((FIELD, Value::Text(text)))) => {
                    let found = place(payload, text);
                    return found.or(Some(Self::Somewhere(start..payload.len())));
                }
                Some(Ok((name, _))) if name != FIELD => {}
                // An older runtime has no field of that name.
                None if start == payload.len() => return None,
                Some(_) | None => return Some(Self::Somewhere(start..payload.len())),
            }
        }
    }

    /// Erases it in the payload.
    fn erase(self, payload: &mut [u8]) {
        const SIGN: u8 = b'*';
        match self {
            Self::Utf16(range) => {
                let units = payload.get_mut(range).unwrap_or_default().chunks_exact_mut(2);
                units.for_each(|unit| unit.copy_from_slice(&[SIGN, 0]));
            }
            Self::Utf8(range) => payload.get_mut(range).unwrap_or_default().fill(SIGN),
            Self::Somewhere(range) => payload.get_mut(range).unwrap_or_default().fill(0),
        }
    }
}

/// Whether it is one of the runtime's events about its program, in whatever version.
fn is_about_program(event: &Event<'_>) -> bool {
    event.name() == "ProcessInfo" || event.name().starts_with("RuntimeInformation")
}

/// The place of a text in the payload that it borrows from.
fn place(payload: &[u8], text: Text<'_>) -> Option<Found> {
    let (Text::Utf16(bytes) | Text::Utf8(bytes)) = text;
    let start = bytes.as_ptr().addr().checked_sub(payload.as_ptr().addr())?;
    let range = start..start.checked_add(bytes.len())?;
    payload.get(range.clone()).filter(|found| *found == bytes)?;
    match text {
        Text::Utf16(_) => Some(Found::Utf16(range)),
        Text::Utf8(_) => Some(Found::Utf8(range)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::test_data;
    use nettrace::{Limits, Reader};
    use proptest::prelude::*;

    /// Streams with one command line each, without and with its terminator, and one with it in events
    /// without such a field: `testkit::nettrace::trace` wrote them.
    const CUT: &[u8] = include_bytes!("masked/cut.nettrace");
    const WHOLE: &[u8] = include_bytes!("masked/whole.nettrace");
    const OTHER: &[u8] = include_bytes!("masked/other.nettrace");

    /// Streams of real runtimes, each with a part of its command line, and one of version 6.
    fn streams() -> impl Iterator<Item = (Vec<u8>, &'static str)> {
        let streams = [
            ("t31-shapes", "dotnet"),
            ("t9-shapes", "dotnet"),
            ("t10-shapes", "aspire-managed.dll dashboard"),
            ("v6-record-trace-pid", ""),
        ];
        let read = |name| test_data::of_repository(&format!("nettrace/tests/data/{name}.nettrace"));
        streams.into_iter().filter_map(move |(name, words)| Some((read(name)?, words)))
    }

    /// What is written of a stream that comes in pieces of this size, and what is missing of it.
    fn masked(stream: &[u8], piece: usize, keeps: bool) -> (Vec<u8>, Option<String>) {
        let mut out = Vec::new();
        let mut masked = Masked::new(&mut out, keeps);
        stream.chunks(piece).for_each(|piece| masked.write_all(piece).unwrap());
        let missing = masked.finish().unwrap();
        (out, missing)
    }

    /// The events of a stream, with their fields.
    fn events(stream: &[u8]) -> Vec<String> {
        let mut reader = Reader::new(stream);
        let mut events = Vec::new();
        while let Ok(Some(event)) = reader.next_event() {
            events.push(format!("{:?} {} {:?}", event.header(), event.name(), event.fields()));
        }
        events
    }

    fn command_line(stream: &[u8]) -> String {
        let mut reader = Reader::new(stream);
        let mut found = String::new();
        while let Some(event) = reader.next_event().unwrap() {
            if let Some(Value::Text(text)) = event.field("CommandLine") {
                found = text.to_string();
            }
        }
        found
    }

    fn has(stream: &[u8], text: &str) -> bool {
        let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        [text.as_bytes(), &utf16].iter().any(|t| stream.windows(t.len()).any(|w| w == *t))
    }

    #[test]
    fn command_lines_of_real_runtimes_are_masked() {
        for (stream, words) in streams() {
            let stream = &stream[..];
            let line = command_line(stream);
            assert!(line.contains(words), "{line}");
            for piece in [1, 7, 4096, usize::MAX] {
                assert_eq!(masked(stream, piece, true), (stream.to_vec(), None));
                let (out, missing) = masked(stream, piece, false);
                assert_eq!((out.len(), missing), (stream.len(), None), "pieces of {piece}");
                assert_eq!(command_line(&out), "*".repeat(line.encode_utf16().count()));
                assert!(line.is_empty() || !has(&out, &line));
                // Nothing else changes.
                let expected: Vec<_> = events(stream)
                    .into_iter()
                    .map(|event| match event.starts_with(' ') || !event.contains(&line) {
                        true => event,
                        false => event.replacen(
                            &format!("{line:?}"),
                            &format!("{:?}", command_line(&out)),
                            1,
                        ),
                    })
                    .collect();
                assert_eq!(events(&out), expected);
            }
        }
    }

    #[test]
    fn texts_without_a_place_are_removed() {
        // Without its terminator.
        let (out, missing) = masked(CUT, 100, false);
        assert!(has(CUT, "s3cr3t") && !has(&out, "s3cr3t"));
        assert_eq!(out.len(), CUT.len());
        assert!(missing.unwrap().starts_with("the fields of 1 event: no command line"));
        // An event of another source, and one that is not declared.
        let (out, missing) = masked(OTHER, 100, false);
        assert!(missing.unwrap().contains("1 event"));
        let text: Vec<u8> = "s3cr3t".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let count = |stream: &[u8]| stream.windows(text.len()).filter(|w| *w == text).count();
        assert_eq!((count(OTHER), count(&out)), (2, 1), "the event of another source stays");
    }

    #[test]
    fn the_rest_of_a_damaged_stream_is_left_out() {
        let mut stream = WHOLE.to_vec();
        let at = stream.windows(10).rposition(|window| window == b"EventBlock").unwrap();
        // The tag at its begin.
        stream[at - 15] = 99;
        let (out, missing) = masked(&stream, 100, false);
        assert!(!has(&out, "s3cr3t") && stream.starts_with(&out), "{}", out.len());
        let missing = missing.unwrap();
        assert!(missing.starts_with(&format!("all from byte {}", out.len())), "{missing}");
    }

    /// A stream of version 4 with ten threads that write one event and end, and one that lives: only that one is
    /// in the sequence points.
    fn threads_that_end() -> Vec<u8> {
        fn object(out: &mut Vec<u8>, name: &str, version: u32) {
            out.extend([5, 5, 1]);
            out.extend([version, version, name.len() as u32].map(u32::to_le_bytes).concat());
            out.extend(name.as_bytes());
            out.push(6);
        }
        fn block(out: &mut Vec<u8>, name: &str, content: &[u8]) {
            object(out, name, 2);
            out.extend((content.len() as u32).to_le_bytes());
            out.resize(out.len().next_multiple_of(4), 0);
            out.extend(content);
            out.push(6);
        }
        const LIVE: u8 = 7;
        // Events with compressed headers.
        let header: Vec<u8> = [&[20, 0, 1, 0][..], &[0; 16]].concat();
        let mut out = b"Nettrace\x14\0\0\0!FastSerialization.1".to_vec();
        object(&mut out, "Trace", 4);
        out.extend([2026u16, 11, 6, 21, 4, 30, 15, 250].map(u16::to_le_bytes).concat());
        out.extend([1_000i64, 1_000_000_000].map(i64::to_le_bytes).concat());
        out.extend([8u32, 42, 2, 1_000_000].map(u32::to_le_bytes).concat());
        out.push(6);
        // A type of events without fields.
        let row = [&[1, 0, 0, 0][..], b"P\0\0\0", &[1, 0, 0, 0], b"E\0\0\0", &[0; 20]].concat();
        let row = [&[0x80, 0, row.len() as u8][..], &row].concat();
        block(&mut out, "MetadataBlock", &[&header[..], &row].concat());
        for round in 0..10u8 {
            let (time, number) = (10 * round, round + 1);
            for (thread, before, time) in [(20 + round, 0, time + 1), (LIVE, round, time + 2)] {
                let event = [0xc7, 1, before, thread, 0, thread, time, 0];
                block(&mut out, "EventBlock", &[&header[..], &event].concat());
            }
            let head = [&i64::from(time + 3).to_le_bytes()[..], &[1, 0, 0, 0]].concat();
            let listed = [&u64::from(LIVE).to_le_bytes()[..], &u32::from(number).to_le_bytes()];
            block(&mut out, "SPBlock", &[head, listed.concat()].concat());
        }
        out.push(1);
        out
    }

    #[test]
    fn threads_that_have_ended_are_no_damage() {
        let stream = threads_that_end();
        let mut out = Vec::new();
        let mut masked = Masked::new(&mut out, false);
        let limits = Limits { max_entries: 4, ..Limits::default() };
        let mask = masked.mask.as_mut().unwrap();
        mask.parser = Parser::new(stream_options().limits(limits));
        stream.chunks(100).for_each(|piece| masked.write_all(piece).unwrap());
        assert_eq!(masked.finish().unwrap(), None);
        assert_eq!((events(&out).len(), &out), (20, &stream));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A stream that is cut anywhere.
        #[test]
        fn no_part_of_the_text_is_left(cut in 0usize..600, piece in 1usize..600) {
            let stream = &WHOLE[..cut.min(WHOLE.len())];
            let (out, missing) = masked(stream, piece, false);
            prop_assert_eq!(missing, None);
            prop_assert!(!has(&out, "s3cr3t") && !has(&out, "--password"));
            prop_assert!(out.len() <= stream.len());
            prop_assert_eq!(events(&out).len(), events(stream).len());
        }
    }
}
