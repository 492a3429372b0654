//! The formats of tracepoints in a recording, so that it can be read on another machine: the first
//! part of a `trace.dat` file of version 6 (`trace-cmd.dat(5)`).

use crate::bytes::Section;
use crate::error::{Error, Result};
use perf_monitor::TracepointFormat;
use std::collections::BTreeMap;
use trace_common::{Cursor, Limits};

const MAGIC: &[u8] = b"\x17\x08\x44tracing";
const VERSION: &str = "0.6";
const LITTLE_ENDIAN: u8 = 0;

/// Formats of tracepoints, and what the printing of their fields needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracingData {
    /// Bytes of `long` on the recorded machine.
    pub long_size: u8,
    /// Bytes of its pages.
    pub page_size: u32,
    /// The file `events/header_page` of tracefs.
    pub header_page: Vec<u8>,
    /// The file `events/header_event` of tracefs.
    pub header_event: Vec<u8>,
    /// The system and the `format` file of each tracepoint.
    pub events: Vec<(String, Vec<u8>)>,
    /// The file `/proc/kallsyms`; `perf` leaves it empty.
    pub kallsyms: Vec<u8>,
    /// The file `printk_formats` of tracefs: the texts of addresses.
    pub printk_formats: Vec<u8>,
    /// The file `saved_cmdlines` of tracefs: names of threads.
    pub saved_cmdlines: Vec<u8>,
}

impl TracingData {
    /// The formats that can be parsed.
    pub fn formats(&self) -> impl Iterator<Item = TracepointFormat> + '_ {
        self.events.iter().filter_map(|(system, text)| {
            TracepointFormat::parse(system, &String::from_utf8_lossy(text)).ok()
        })
    }

    /// The bytes of the section.
    pub fn to_bytes(&self) -> Vec<u8> {
        fn c_string(out: &mut Vec<u8>, text: &str) {
            out.extend(text.bytes().filter(|b| *b != 0));
            out.push(0);
        }
        fn long_block(out: &mut Vec<u8>, bytes: &[u8]) {
            out.extend((bytes.len() as u64).to_le_bytes());
            out.extend(bytes);
        }
        fn block(out: &mut Vec<u8>, bytes: &[u8]) {
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend(bytes);
        }
        let mut out = MAGIC.to_vec();
        c_string(&mut out, VERSION);
        out.extend([LITTLE_ENDIAN, self.long_size]);
        out.extend(self.page_size.to_le_bytes());
        c_string(&mut out, "header_page");
        long_block(&mut out, &self.header_page);
        c_string(&mut out, "header_event");
        long_block(&mut out, &self.header_event);

        // The events of the function tracer come first, without the name of their system.
        let mut systems: BTreeMap<&str, Vec<&[u8]>> = BTreeMap::new();
        for (system, format) in &self.events {
            systems.entry(system).or_default().push(format);
        }
        let ftrace = systems.remove(FTRACE).unwrap_or_default();
        out.extend((ftrace.len() as u32).to_le_bytes());
        ftrace.iter().for_each(|format| long_block(&mut out, format));
        out.extend((systems.len() as u32).to_le_bytes());
        for (system, formats) in systems {
            c_string(&mut out, system);
            out.extend((formats.len() as u32).to_le_bytes());
            formats.iter().for_each(|format| long_block(&mut out, format));
        }

        block(&mut out, &self.kallsyms);
        block(&mut out, &self.printk_formats);
        long_block(&mut out, &self.saved_cmdlines);
        out
    }

    /// Parses the section. `offset` is its offset in the input, for errors.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`], [`Error::Truncated`] and [`Error::Limit`].
    pub fn parse(bytes: &[u8], offset: u64, limits: Limits) -> Result<Self> {
        let cursor = Cursor::with_base(bytes, offset);
        let mut s = Section { what: "tracing data", cursor, limits };
        if s.bytes(MAGIC.len() as u64)? != MAGIC {
            return Err(s.malformed(offset, "no magic number"));
        }
        let version = s.c_string(MAX_NAME)?;
        let at = s.cursor.offset();
        if s.u8()? != LITTLE_ENDIAN {
            return Err(Error::BigEndian);
        }
        let mut this = Self { long_size: s.u8()?, page_size: s.u32()?, ..Self::default() };
        let named_block = |s: &mut Section<'_>, name: &str| {
            let at = s.cursor.offset();
            if s.c_string(MAX_NAME)? != name {
                return Err(s.malformed(at, "a part is missing"));
            }
            long_block(s)
        };
        this.header_page = named_block(&mut s, "header_page")?;
        this.header_event = named_block(&mut s, "header_event")?;
        for _ in 0..s.short_count(8)? {
            this.events.push((FTRACE.to_owned(), long_block(&mut s)?));
        }
        for _ in 0..s.count(5)? {
            let system = s.c_string(MAX_NAME)?;
            for _ in 0..s.short_count_after(this.events.len(), 8)? {
                this.events.push((system.clone(), long_block(&mut s)?));
            }
        }
        let size = s.u32()?;
        this.kallsyms = s.bytes(size.into())?.to_vec();
        let size = s.u32()?;
        this.printk_formats = s.bytes(size.into())?.to_vec();
        // "0.5" is older; a version that is no number is not.
        let minor = version.strip_prefix("0.").and_then(|minor| minor.parse::<u32>().ok());
        match minor {
            None => return Err(s.malformed(at, "an unknown version")),
            Some(..=5) => {}
            Some(_) => this.saved_cmdlines = long_block(&mut s)?,
        }
        Ok(this)
    }
}

/// Bytes of the name of a system, which is that of a directory: each of its events has a copy.
const MAX_NAME: usize = 255;

/// The system of the function tracer's own events.
const FTRACE: &str = "ftrace";

fn long_block(s: &mut Section<'_>) -> Result<Vec<u8>> {
    let size = s.u64()?;
    Ok(s.bytes(size)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> TracingData {
        TracingData {
            long_size: 8,
            page_size: 4096,
            header_page: b"page".to_vec(),
            header_event: b"event".to_vec(),
            events: vec![
                ("ftrace".into(), b"name: function\nID: 1\n".to_vec()),
                (
                    "a".into(),
                    b"name: x\nID: 7\nformat:\n\tfield:int y;\toffset:0;\tsize:4;\tsigned:1;\n"
                        .to_vec(),
                ),
                ("b".into(), Vec::new()),
            ],
            kallsyms: b"0 T _text\n".to_vec(),
            printk_formats: b"0x1 : \"text\"\n".to_vec(),
            saved_cmdlines: b"1 init\n".to_vec(),
        }
    }

    #[test]
    fn sections_round_trip() {
        let data = sample();
        assert_eq!(TracingData::parse(&data.to_bytes(), 0, Limits::default()).unwrap(), data);
        let formats: Vec<_> = data.formats().collect();
        assert_eq!(formats.len(), 1, "the others have no fields");
        assert_eq!((formats[0].system(), formats[0].name(), formats[0].id()), ("a", "x", 7));
    }

    #[test]
    fn counts_are_compared_with_the_bytes_that_are_left() {
        let mut bytes = sample().to_bytes();
        let systems = bytes.windows(2).position(|w| w == b"a\0").unwrap() - 4;
        bytes[systems..systems + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = TracingData::parse(&bytes, 1000, Limits::default()).unwrap_err();
        let why = "more entries than bytes";
        let at = systems as u64 + 1000;
        assert!(
            matches!(error, Error::Malformed { offset, why: w, .. } if (offset, w) == (at, why))
        );
    }

    #[test]
    fn events_of_all_systems_have_a_limit() {
        const MAX: usize = 1 << 16;
        let parse = |systems: &[(&str, usize)]| {
            let events = systems
                .iter()
                .flat_map(|(system, count)| vec![((*system).to_owned(), Vec::new()); *count])
                .collect();
            let data = TracingData { events, ..sample() };
            TracingData::parse(&data.to_bytes(), 0, Limits::default()).map(|data| data.events.len())
        };
        for systems in [&[("a", MAX)][..], &[("ftrace", 1), ("a", MAX - 2), ("b", 1)]] {
            assert_eq!(parse(systems).unwrap(), MAX);
        }
        for systems in [
            &[("a", MAX + 1)][..],
            &[("ftrace", MAX + 1)],
            &[("ftrace", 1), ("a", MAX - 1), ("b", 1)],
        ] {
            let error = parse(systems).unwrap_err();
            assert!(matches!(error, Error::Limit { value: 65_537, limit: 65_536, .. }), "{error}");
        }
    }

    #[test]
    fn names_of_systems_have_a_limit() {
        let parse = |len: usize, limits| {
            let mut data = sample();
            data.events[1].0 = "s".repeat(len);
            TracingData::parse(&data.to_bytes(), 0, limits).map(|data| data.events.len())
        };
        assert_eq!(parse(255, Limits::default()).unwrap(), 3);
        let error = parse(256, Limits::default()).unwrap_err();
        assert!(matches!(error, Error::Limit { value: 256, limit: 255, .. }), "{error}");
        let limits = Limits { max_string: 20, ..Limits::default() };
        assert_eq!(parse(20, limits).unwrap(), 3);
        let error = parse(21, limits).unwrap_err();
        assert!(matches!(error, Error::Limit { value: 21, limit: 20, .. }), "{error}");
        // The text of each of these bytes has three.
        let mut bytes = sample().to_bytes();
        let system = bytes.windows(6).position(|w| w == b"a\0\x01\0\0\0").unwrap();
        bytes.splice(system..=system, [0xff; 86]);
        let error = TracingData::parse(&bytes, 0, Limits::default()).unwrap_err();
        assert!(matches!(error, Error::Limit { value: 258, limit: 255, .. }), "{error}");
    }

    proptest! {
        #[test]
        fn damaged_sections_do_not_panic(cut in 0usize..400, flip in 0usize..400, bit in 0u8..8) {
            let mut bytes = sample().to_bytes();
            if let Some(byte) = bytes.get_mut(flip) {
                *byte ^= 1 << bit;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Ok(data) = TracingData::parse(&bytes, 0, Limits::default()) {
                let _ = data.formats().count();
            }
        }
    }
}
