//! Perf maps: the text files in which just-in-time compilers describe their code
//! (`/tmp/perf-PID.map`).

use crate::error::{Result, Unresolved};
use crate::files;
use crate::frame::{Frame, Texts};
use crate::kernel::hex;
use crate::names::{Named, Names};
use std::collections::{BinaryHeap, HashMap};
use std::path::PathBuf;

/// The code of a process.
///
/// The format has no times: where lines describe an address with different names, it has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerfMap {
    /// In ascending order. They do not overlap.
    ranges: Vec<Range>,
    names: Names,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    /// `None` if several methods had the addresses.
    code: Option<Named>,
}

/// A line of the file. The order is that of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    number: u32,
    /// The number of the name.
    name: u32,
    start: u64,
    end: u64,
}

fn path(pid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{pid}.map"))
}

impl PerfMap {
    /// Reads the map that a process wrote.
    pub(crate) fn of_process(process: u32, max: u64) -> Result<Self> {
        let text = files::read_written_by(process, path, max, "the perf map")?;
        Ok(Self::parse(&text))
    }

    /// The size of the map that a process wrote.
    pub(crate) fn size(process: u32) -> Option<u64> {
        files::size_written_by(process, path)
    }

    /// The bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.names.bytes() + size_of_val(&*self.ranges) as u64
    }

    /// Parses lines of start, size and name. Others are left out.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let (mut lines, mut texts, mut names) = (Vec::new(), Vec::new(), Names::default());
        let mut known = HashMap::new();
        // A line without an end is still being written.
        let complete = text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        for line in text.get(..complete).unwrap_or_default().split(|byte| *byte == b'\n') {
            let mut words = line.splitn(3, |byte| *byte == b' ');
            let (start, size) = (words.next().and_then(hex), words.next().and_then(hex));
            let (Some(start), Some(size), Some(name)) = (start, size, words.next()) else {
                continue;
            };
            let Some(end) = start.checked_add(size).filter(|end| start < *end) else { continue };
            let name = String::from_utf8_lossy(name.trim_ascii());
            let name = match known.get(&name) {
                Some(name) => *name,
                None => {
                    let Some(named) = names.add(0, &name) else { break };
                    let Ok(number) = u32::try_from(texts.len()) else { break };
                    texts.push(named);
                    known.insert(name, number);
                    number
                }
            };
            let Ok(number) = u32::try_from(lines.len()) else { break };
            lines.push(Line { number, name, start, end });
        }
        drop(known);
        Self { ranges: ranges(lines, &texts), names }
    }

    /// The function at an address.
    pub(crate) fn frame(&self, address: u64, texts: &mut Texts) -> Result<Frame> {
        let before = self.ranges.partition_point(|range| range.start <= address);
        let found = self.ranges.get(..before).and_then(<[Range]>::last);
        let found = found.filter(|range| address < range.end).ok_or(Unresolved::NoSymbol)?;
        let code = found.code.ok_or(Unresolved::Ambiguous)?;
        Ok(self.names.frame(code, address, texts))
    }
}

/// The ranges that lines describe, each with the code of its last line if all of its lines have the same
/// name.
///
/// The work grows with the number of lines, however they overlap: each is sorted by its start and by its
/// end, and is in `active` once.
fn ranges(mut lines: Vec<Line>, names: &[Named]) -> Vec<Range> {
    let mut out: Vec<Range> = Vec::new();
    let mut ends: Vec<(u64, u32)> = lines.iter().map(|line| (line.end, line.name)).collect();
    ends.sort_unstable();
    lines.sort_unstable_by_key(|line| line.start);
    let (mut starts, mut ends) = (lines.into_iter().peekable(), ends.into_iter().peekable());
    // The lines that have started, the last one of the file first. Those that have ended are removed
    // when they are first.
    let mut active = BinaryHeap::new();
    // The numbers of the active lines with each name, and that of their names.
    let (mut counts, mut different) = (vec![0u32; names.len()], 0u32);
    let mut at = 0;
    // Every line ends after it starts.
    while let Some((end, _)) = ends.peek() {
        let next = starts.peek().map_or(*end, |line| line.start.min(*end));
        let code = active.peek().and_then(|line: &Line| {
            let named = names.get(line.name as usize)?;
            (different == 1).then(|| named.with_start(line.start))
        });
        match out.last_mut() {
            _ if different == 0 || at == next => {}
            Some(last) if last.end == at && last.code == code => last.end = next,
            _ => out.push(Range { start: at, end: next, code }),
        }
        at = next;
        while let Some(line) = starts.next_if(|line| line.start == at) {
            if let Some(count) = counts.get_mut(line.name as usize) {
                different += u32::from(*count == 0);
                *count += 1;
            }
            active.push(line);
        }
        while let Some((_, name)) = ends.next_if(|(end, _)| *end == at) {
            if let Some(count) = counts.get_mut(name as usize) {
                *count -= 1;
                different -= u32::from(*count == 0);
            }
        }
        while active.peek().is_some_and(|line| line.end <= at) {
            active.pop();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_with_several_names_are_ambiguous() {
        let map = PerfMap::parse(
            b"1000 20 LazyCompile:*hot a.js:1\n0x1010 0x8 replaced\nnot a line\n1010 4 last\n\
              3000 10 same\n3000 10 same\n3008 10 other\n3000 10 same\n\
              ffffffffffffffff 2 overflow\n2000 10 incomp",
        );
        let mut texts = Texts::new(true);
        let mut at = |address| match map.frame(address, &mut texts) {
            Ok(frame) => (frame.function.to_string(), frame.offset.unwrap_or(99)),
            Err(error) => (error.to_string(), 0),
        };
        assert_eq!(at(0x1008), ("LazyCompile:*hot a.js:1".to_owned(), 8));
        let ambiguous = (Unresolved::Ambiguous.to_string(), 0);
        assert_eq!([at(0x1010), at(0x1012), at(0x1014)], [(); 3].map(|()| ambiguous.clone()));
        assert_eq!(at(0x1018).1, 0x18);
        assert_eq!(at(0x1020).0, Unresolved::NoSymbol.to_string());
        // A line that is repeated says nothing else.
        assert_eq!(at(0x3004), ("same".to_owned(), 4));
        assert_eq!(at(0x3008), ambiguous);
        assert_eq!(at(0x3014), ("other".to_owned(), 0xc));
        assert_eq!(at(0x2000).0, Unresolved::NoSymbol.to_string(), "its line is not complete");
    }

    #[test]
    fn lines_that_overlap_many_others_take_no_time() {
        let mut text = String::new();
        (0..50_000).for_each(|i| text.push_str(&format!("{:x} 1 a\n", 2 * i)));
        text.push_str(&"0 20000 b\n".repeat(50_000));
        let map = PerfMap::parse(text.as_bytes());
        // Every other address has both names.
        assert_eq!(map.ranges.len(), 100_000);
        let mut texts = Texts::new(true);
        assert_eq!(map.frame(0x10, &mut texts), Err(Unresolved::Ambiguous));
        let frame = map.frame(0x11, &mut texts).unwrap();
        assert_eq!((&*frame.function, frame.offset), ("b", Some(0x11)));
    }

    proptest! {
        #[test]
        fn a_table_of_every_address_agrees(
            lines in proptest::collection::vec((0u64..40, 0u64..20, 0u8..3), 0..30),
        ) {
            let mut table = vec![Vec::new(); 64];
            let mut text = String::new();
            for (start, size, name) in lines {
                text.push_str(&format!("{start:x} {size:x} f{name}\n"));
                for address in start..start + size {
                    table[address as usize].push((format!("f{name}"), start));
                }
            }
            let map = PerfMap::parse(text.as_bytes());
            for (address, names) in (0..).zip(table) {
                let expected = match names.last() {
                    None => Err(Unresolved::NoSymbol),
                    Some((name, start)) if names.iter().all(|(other, _)| other == name) => {
                        Ok((name.clone(), Some(address - start)))
                    }
                    Some(_) => Err(Unresolved::Ambiguous),
                };
                let found = map.frame(address, &mut Texts::new(true));
                let found = found.map(|frame| (frame.function.to_string(), frame.offset));
                prop_assert_eq!(found, expected);
            }
        }

        #[test]
        fn any_text_is_no_panic(text: Vec<u8>, address: u64) {
            let _ = PerfMap::parse(&text).frame(address, &mut Texts::new(true));
        }
    }
}
