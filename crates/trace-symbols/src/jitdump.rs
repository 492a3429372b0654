//! Jitdump files: the code of just-in-time compilers with its times (`jit-PID.dump`).
//!
//! The format is that of the file `jitdump-specification.txt` of perf(1), version 1.

use crate::error::{Result, Unresolved, malformed};
use crate::time_map::TimeMap;
use trace_common::{Cursor, ReadError, Timestamp};

/// `JiTD`, as a little-endian machine writes it.
const MAGIC: u32 = 0x4a69_5444;
/// The times are those of a counter of the processor, not of `CLOCK_MONOTONIC`.
const ARCHITECTURE_TIMESTAMP: u64 = 1;

const JIT_CODE_LOAD: u32 = 0;
const JIT_CODE_MOVE: u32 = 1;
const JIT_CODE_DEBUG_INFO: u32 = 2;
const JIT_CODE_CLOSE: u32 = 3;

/// Bytes in front of the contents of a record.
const PREFIX: usize = 16;
/// The size of a record can be rounded up to a multiple of this.
const ALIGNMENT: usize = 8;

/// The reserved word of the header in files of V8 and Dart.
const ADDS_ELF_HEADER: u32 = 0xdead_beef;
/// Machines of 32 bits that V8 and Dart have: `EM_386` and `EM_ARM`.
const MACHINES_32: [u32; 2] = [3, 40];
/// The size of the header of an ELF file of 64 bits, and of 32 bits.
const ELF_HEADER: [u64; 2] = [0x40, 0x34];

/// The methods that a jitdump file describes, by address and time.
#[derive(Clone, Debug, Default)]
pub(crate) struct JitDump {
    methods: TimeMap<Method>,
    names: String,
    /// Positions in the code: address, file (a part of the names), line.
    lines: Vec<Line>,
    /// The offset of a line where its code begins: see [`Header::elf_header`].
    elf_header: u64,
    /// Records that could not be read.
    pub(crate) damaged: u64,
}

#[derive(Clone, Copy, Debug)]
struct Text {
    at: u32,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    offset: u64,
    file: Text,
    line: u32,
}

#[derive(Clone, Copy, Debug)]
struct Method {
    start: u64,
    name: Text,
    /// A range of the lines.
    lines: (u32, u32),
}

/// A method at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    pub(crate) name: &'a str,
    pub(crate) offset: u64,
    pub(crate) line: Option<(&'a str, u32)>,
}

impl JitDump {
    /// Reads a file of `CLOCK_MONOTONIC` times. If it is complete, a record that its end cuts off is damaged:
    /// otherwise the process may be in the middle of it.
    pub(crate) fn parse(bytes: &[u8], is_complete: bool) -> Result<Self> {
        let error = malformed("the jitdump header");
        let mut c = Cursor::new(bytes);
        let magic = c.u32().map_err(&error)?;
        if magic != MAGIC {
            return Err(Unresolved::Malformed { what: "the jitdump header", offset: 0 });
        }
        c.skip(4).map_err(&error)?;
        let size = c.u32().map_err(&error)?;
        let header =
            Header { machine: c.u32().map_err(&error)?, reserved: c.u32().map_err(&error)? };
        c.skip(12).map_err(&error)?;
        let flags = c.u64().map_err(&error)?;
        if flags & ARCHITECTURE_TIMESTAMP != 0 {
            return Err(Unresolved::Malformed { what: "a clock of the processor", offset: 32 });
        }
        let rest = bytes.get(size as usize..).unwrap_or_default();
        let mut this = Self::default();
        let mut c = Cursor::with_base(rest, size.into());
        let mut pending = Pending::default();
        while !c.is_empty() {
            let Ok((kind, at, mut record)) = next(&mut c) else {
                this.damaged += u64::from(is_complete);
                break;
            };
            let read = match kind {
                JIT_CODE_LOAD => this.load(at, &mut record, &mut pending),
                JIT_CODE_MOVE => this.relocate(at, &mut record),
                JIT_CODE_DEBUG_INFO => this.debug_info(&mut record, &mut pending),
                JIT_CODE_CLOSE => break,
                _ => Ok(()),
            };
            this.damaged += u64::from(read.is_err());
        }
        this.elf_header = header.elf_header(pending.begins);
        Ok(this)
    }

    /// The bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.methods.bytes() + (self.names.len() + size_of_val(&*self.lines)) as u64
    }

    fn load(
        &mut self,
        at: Timestamp,
        c: &mut Cursor<'_>,
        pending: &mut Pending,
    ) -> Result<(), ReadError> {
        c.skip(8)?;
        let (_, start, size, _) = (c.u64()?, c.u64()?, c.u64()?, c.u64()?);
        let name = c.rest().split(|byte| *byte == 0).next().unwrap_or_default();
        let name = self.text(name);
        let lines = match pending.address.take() {
            Some(address) if address == start => pending.lines,
            _ => (0, 0),
        };
        self.methods.insert(start, start.saturating_add(size), at, Method { start, name, lines });
        Ok(())
    }

    fn relocate(&mut self, at: Timestamp, c: &mut Cursor<'_>) -> Result<(), ReadError> {
        c.skip(16)?;
        let (old, new, size) = (c.u64()?, c.u64()?, c.u64()?);
        let method = self.methods.at(old, at);
        self.methods.remove(old, old.saturating_add(size), at);
        if let Some(method) = method {
            let method = Method { start: new, ..method };
            self.methods.insert(new, new.saturating_add(size), at, method);
        }
        Ok(())
    }

    /// The lines of the code that the next record loads.
    fn debug_info(&mut self, c: &mut Cursor<'_>, pending: &mut Pending) -> Result<(), ReadError> {
        let (start, count) = (c.u64()?, c.u64()?);
        let first = self.lines.len() as u32;
        let mut last = Text { at: 0, len: 0 };
        for _ in 0..count {
            let (address, line, _) = (c.u64()?, c.u32()?, c.u32()?);
            let name = c.rest().split(|byte| *byte == 0).next().unwrap_or_default();
            c.skip(name.len() + 1)?;
            // The same file as of the entry before.
            if name != b"\xff" {
                last = self.text(name);
            }
            let offset = address.wrapping_sub(start);
            self.lines.push(Line { offset, file: last, line });
        }
        // Versions of V8 write freed memory as names of files. Where it has a zero, the entries after it
        // are misread.
        if c.remaining() >= ALIGNMENT {
            self.damaged += 1;
            return Ok(());
        }
        let lines = self.lines.get_mut(first as usize..).unwrap_or_default();
        lines.sort_by_key(|line| line.offset);
        if let Some(Line { offset, .. }) = lines.first() {
            let (least, greatest) = pending.begins.unwrap_or((*offset, *offset));
            pending.begins = Some((least.min(*offset), greatest.max(*offset)));
        }
        pending.address = Some(start);
        pending.lines = (first, self.lines.len() as u32);
        Ok(())
    }

    fn text(&mut self, text: &[u8]) -> Text {
        let text = String::from_utf8_lossy(text);
        let (at, len) = (self.names.len(), text.len());
        if u32::try_from(at + len).is_err() {
            return Text { at: 0, len: 0 };
        }
        self.names.push_str(&text);
        Text { at: at as u32, len: len as u32 }
    }

    fn get(&self, text: Text) -> &str {
        let start = text.at as usize;
        self.names.get(start..start + text.len as usize).unwrap_or_default()
    }

    /// The method at an address at a time of `CLOCK_MONOTONIC`.
    pub(crate) fn at(&self, address: u64, at: Timestamp) -> Option<Found<'_>> {
        Some(self.found(self.methods.at(address, at)?, address))
    }

    /// The method at an address, if all that had it have the same name.
    pub(crate) fn at_any_time(&self, address: u64) -> Result<Option<Found<'_>>> {
        let all = self.methods.all(address).ok_or(Unresolved::Ambiguous)?;
        let Some((last, before)) = all.split_first() else { return Ok(None) };
        let name = self.get(last.name);
        if before.iter().any(|method| self.get(method.name) != name) {
            return Err(Unresolved::Ambiguous);
        }
        let found = self.found(*last, address);
        // Other code of the same method has other lines.
        let line = found.line.filter(|_| before.is_empty());
        Ok(Some(Found { line, ..found }))
    }

    fn found(&self, method: Method, address: u64) -> Found<'_> {
        let offset = address - method.start;
        let lines = self.lines.get(method.lines.0 as usize..method.lines.1 as usize);
        let lines = lines.unwrap_or_default();
        let position = offset.saturating_add(self.elf_header);
        let line = lines.partition_point(|line| line.offset <= position).checked_sub(1);
        let line = line.and_then(|index| lines.get(index));
        let line = line.map(|line| (self.get(line.file), line.line));
        Found { name: self.get(method.name), offset, line }
    }
}

/// The debug information that precedes its code.
#[derive(Debug, Default)]
struct Pending {
    address: Option<u64>,
    lines: (u32, u32),
    /// The least and the greatest offset of a first line, of all code so far.
    begins: Option<(u64, u64)>,
}

/// The parts of the header that show how addresses of lines are meant.
#[derive(Clone, Copy, Debug)]
struct Header {
    machine: u32,
    reserved: u32,
}

impl Header {
    /// Bytes that the addresses of lines are too high. They are addresses in the code, but V8, Dart and
    /// LLVM add the size of an ELF header, as a former perf(1) put one in front of the code. V8 and
    /// Dart leave a mark. LLVM has a line at the begin of each function.
    fn elf_header(self, begins: Option<(u64, u64)>) -> u64 {
        let [elf64, elf32] = ELF_HEADER;
        let marked = if MACHINES_32.contains(&self.machine) { elf32 } else { elf64 };
        match begins {
            Some((least, _)) if self.reserved == ADDS_ELF_HEADER && least >= marked => marked,
            Some(begins) if begins == (elf64, elf64) => elf64,
            _ => 0,
        }
    }
}

/// The next record: its kind, time and contents.
fn next<'a>(c: &mut Cursor<'a>) -> Result<(u32, Timestamp, Cursor<'a>), ReadError> {
    let (kind, size, at) = (c.u32()?, c.u32()?, c.u64()?);
    let contents = c.sub((size as usize).saturating_sub(PREFIX))?;
    let at = Timestamp::from_nanos(i64::try_from(at).unwrap_or(i64::MAX));
    Ok((kind, at, contents))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(flags: u64) -> Vec<u8> {
        header_of(62, 0, flags)
    }

    fn header_of(machine: u32, reserved: u32, flags: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [MAGIC, 1, 40, machine, reserved, 7] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes
    }

    fn record(out: &mut Vec<u8>, kind: u32, at: u64, words: &[u64], rest: &[u8]) {
        let size = (PREFIX + words.len() * 8 + rest.len()) as u32;
        out.extend(kind.to_le_bytes());
        out.extend(size.to_le_bytes());
        out.extend(at.to_le_bytes());
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        out.extend(rest);
    }

    /// Code of 256 bytes with lines at these offsets: 1, 2 and so on.
    fn code(out: &mut Vec<u8>, start: u64, offsets: &[u64], name: &[u8]) {
        let mut lines = Vec::new();
        for (offset, line) in offsets.iter().zip(1u32..) {
            lines.extend((start + offset).to_le_bytes());
            lines.extend(line.to_le_bytes());
            lines.extend(0u32.to_le_bytes());
            lines.extend(name);
        }
        lines.resize(lines.len().next_multiple_of(8), 0);
        record(out, JIT_CODE_DEBUG_INFO, 1, &[start, offsets.len() as u64], &lines);
        record(out, JIT_CODE_LOAD, 2, &[0, start, start, 256, 1], b"f\0");
    }

    const fn at(nanos: i64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    #[test]
    fn code_has_the_name_of_its_time() {
        let mut file = header(0);
        let mut lines = Vec::new();
        for (address, line, name) in [(0x1000u64, 3u32, &b"a.js\0"[..]), (0x1008, 5, b"\xff\0")] {
            lines.extend(address.to_le_bytes());
            lines.extend(line.to_le_bytes());
            lines.extend(0u32.to_le_bytes());
            lines.extend(name);
        }
        record(&mut file, JIT_CODE_DEBUG_INFO, 9, &[0x1000, 2], &lines);
        record(&mut file, JIT_CODE_LOAD, 10, &[0, 0x1000, 0x1000, 16, 1], b"first\0code");
        record(&mut file, JIT_CODE_LOAD, 20, &[0, 0x1000, 0x1000, 8, 2], b"second\0");
        record(&mut file, JIT_CODE_MOVE, 30, &[0, 0x1000, 0x1000, 0x2000, 8, 2], b"");
        record(&mut file, JIT_CODE_LOAD, 40, &[0], b"");
        file.extend([0, 0, 0, 0, 99, 0]);
        let dump = JitDump::parse(&file, false).unwrap();
        let name = |address, time| dump.at(address, at(time)).map(|found| found.name);
        assert_eq!(name(0x1004, 9), None);
        assert_eq!(name(0x1004, 10), Some("first"));
        assert_eq!(name(0x1004, 25), Some("second"));
        assert_eq!(name(0x1009, 25), Some("first"));
        assert_eq!((name(0x1004, 30), name(0x2004, 30)), (None, Some("second")));
        let line = |address| dump.at(address, at(10)).and_then(|found| found.line);
        assert_eq!((line(0x1007), line(0x1009)), (Some(("a.js", 3)), Some(("a.js", 5))));
        assert_eq!(dump.damaged, 1);
        let any = |address| dump.at_any_time(address).map(|found| found.map(|found| found.name));
        assert_eq!(any(0x1004), Err(Unresolved::Ambiguous));
        assert_eq!([any(0x1009), any(0x2004)], [Ok(Some("first")), Ok(Some("second"))]);
        assert_eq!(any(0x3000), Ok(None));
        assert!(JitDump::parse(&header(1), true).is_err(), "another clock");
    }

    #[test]
    fn a_record_that_the_end_of_a_complete_file_cuts_off_is_damaged() {
        let mut file = header(0);
        record(&mut file, JIT_CODE_LOAD, 1, &[0, 0x1000, 0x1000, 16, 1], b"f\0");
        let before = file.len();
        record(&mut file, JIT_CODE_LOAD, 2, &[0, 0x2000, 0x2000, 16, 2], b"g\0");
        let read = |end: usize, is_complete| {
            let dump = JitDump::parse(&file[..end], is_complete).unwrap();
            assert!(dump.at(0x1004, at(5)).is_some());
            (dump.damaged, dump.at(0x2004, at(5)).is_some())
        };
        for end in before + 1..file.len() {
            assert_eq!([true, false].map(|is| read(end, is)), [(1, false), (0, false)], "{end}");
        }
        for is_complete in [true, false] {
            assert_eq!(read(before, is_complete), (0, false));
            assert_eq!(read(file.len(), is_complete), (0, true));
        }
        // Nothing is read behind the last record.
        record(&mut file, JIT_CODE_CLOSE, 3, &[], b"");
        file.push(0);
        assert_eq!(JitDump::parse(&file, true).unwrap().damaged, 0);
    }

    /// The line at an offset of the code at 0x1000.
    fn line_at(header: Vec<u8>, others: &[u64], offsets: &[u64], offset: u64) -> Option<u32> {
        let mut file = header;
        code(&mut file, 0x1000, offsets, b"a.js\0");
        code(&mut file, 0x2000, others, b"a.js\0");
        let dump = JitDump::parse(&file, false).unwrap();
        assert_eq!(dump.damaged, 0);
        dump.at(0x1000 + offset, at(5))?.line.map(|(_, line)| line)
    }

    #[test]
    fn lines_have_no_elf_header_in_front() {
        let v8 = || header_of(62, ADDS_ELF_HEADER, 0);
        assert_eq!(line_at(v8(), &[0x43], &[0x40, 0x48], 7), Some(1));
        assert_eq!(line_at(v8(), &[0x43], &[0x40, 0x48], 8), Some(2));
        let v8_32 = || header_of(40, ADDS_ELF_HEADER, 0);
        assert_eq!(line_at(v8_32(), &[0x37], &[0x34, 0x3c], 7), Some(1));
        assert_eq!(line_at(v8_32(), &[0x37], &[0x34, 0x3c], 8), Some(2));
        // One that does not add it.
        assert_eq!(line_at(v8(), &[0x10], &[0x40, 0x48], 8), None);
        let llvm = || header(0);
        assert_eq!(line_at(llvm(), &[0x40], &[0x40, 0x48], 8), Some(2));
    }

    #[test]
    fn lines_of_other_compilers_are_where_they_say() {
        for others in [0, 0x10, 0x43] {
            assert_eq!(line_at(header(0), &[others], &[0x40, 0x48], 8), None);
            assert_eq!(line_at(header(0), &[others], &[0x40, 0x48], 0x47), Some(1));
        }
    }

    #[test]
    fn names_of_freed_memory_are_damage() {
        let mut file = header_of(62, ADDS_ELF_HEADER, 0);
        code(&mut file, 0x1000, &[0x40, 0x48], b"\xe6M\x02\0\0\0\0\0\x07\xf0\0");
        code(&mut file, 0x2000, &[0x40], b"a.js\0");
        let dump = JitDump::parse(&file, false).unwrap();
        assert_eq!(dump.damaged, 1);
        let found = |address| dump.at(address, at(5)).map(|found| (found.name, found.line));
        assert_eq!(found(0x1010), Some(("f", None)));
        assert_eq!(found(0x2010), Some(("f", Some(("a.js", 1)))));
    }

    proptest! {
        #[test]
        fn any_records_are_no_panic(rest: Vec<u8>, kind in 0u32..5, words: Vec<u64>) {
            let mut file = header(0);
            record(&mut file, kind, 1, &words, &rest);
            file.extend(rest);
            if let Ok(dump) = JitDump::parse(&file, true) {
                let _ = dump.at(0x1000, at(5));
            }
        }
    }
}
