//! Perf maps: the text files in which just-in-time compilers describe their code
//! (`/tmp/perf-PID.map`).

use crate::error::{Result, Unresolved};
use crate::files;
use crate::frame::{Frame, Texts};
use crate::kernel::hex;
use crate::names::{Named, Names};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The code of a process.
///
/// The format has no times: where lines describe an address with different names, it has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerfMap {
    /// By the first address. They do not overlap.
    ranges: BTreeMap<u64, Range>,
    names: Names,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    /// `None` if several methods had the addresses.
    code: Option<Named>,
}

impl PerfMap {
    /// Reads the map that a process wrote.
    pub(crate) fn of_process(process: u32, max: u64) -> Result<Self> {
        let path = |pid| PathBuf::from(format!("/tmp/perf-{pid}.map"));
        let text = files::read_written_by(process, path, max, "the perf map")?;
        Ok(Self::parse(&text))
    }

    /// Parses lines of start, size and name. Others are left out.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let mut this = Self::default();
        // A line without an end is still being written.
        let complete = text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        for line in text.get(..complete).unwrap_or_default().split(|byte| *byte == b'\n') {
            let mut words = line.splitn(3, |byte| *byte == b' ');
            let (start, size) = (words.next().and_then(hex), words.next().and_then(hex));
            let (Some(start), Some(size), Some(name)) = (start, size, words.next()) else {
                continue;
            };
            let Some(end) = start.checked_add(size) else { continue };
            let name = String::from_utf8_lossy(name.trim_ascii());
            let Some(named) = this.names.add(start, &name) else { break };
            this.insert(start, end, named);
        }
        this
    }

    /// Adds code. Where other code is already, both names count, or none if they differ.
    fn insert(&mut self, start: u64, end: u64, code: Named) {
        let overlaps = self.ranges.range(..end).rev().take_while(|(_, old)| old.end > start);
        let overlaps: Vec<(u64, Range)> = overlaps.map(|(at, old)| (*at, *old)).collect();
        let mut at = start;
        for (old_start, old) in overlaps.into_iter().rev() {
            self.ranges.remove(&old_start);
            let (from, to) = (old_start.max(start), old.end.min(end));
            self.put(old_start, from, old.code);
            self.put(at, from, Some(code));
            let is_same = old.code.is_some_and(|old| self.names.name(old) == self.names.name(code));
            self.put(from, to, is_same.then_some(code));
            self.put(to, old.end, old.code);
            at = to;
        }
        self.put(at, end, Some(code));
    }

    /// Adds a range where none is. Those without a name that touch are one.
    fn put(&mut self, start: u64, end: u64, code: Option<Named>) {
        if start >= end {
            return;
        }
        if code.is_none() {
            if let Some((_, before)) = self.ranges.range_mut(..start).next_back() {
                if before.end == start && before.code.is_none() {
                    before.end = end;
                    return;
                }
            }
        }
        self.ranges.insert(start, Range { end, code });
    }

    /// The function at an address.
    pub(crate) fn frame(&self, address: u64, texts: &mut Texts) -> Result<Frame> {
        let found = self.ranges.range(..=address).next_back();
        let (_, found) = found.filter(|(_, r)| address < r.end).ok_or(Unresolved::NoSymbol)?;
        let code = found.code.ok_or(Unresolved::Ambiguous)?;
        Ok(self.names.frame(code, address, texts))
    }
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
                    table[address as usize].push(format!("f{name}"));
                }
            }
            let map = PerfMap::parse(text.as_bytes());
            for (address, mut names) in table.into_iter().enumerate() {
                names.dedup();
                let expected = match &names[..] {
                    [] => Err(Unresolved::NoSymbol),
                    [name] => Ok(name.clone()),
                    _ => Err(Unresolved::Ambiguous),
                };
                let found = map.frame(address as u64, &mut Texts::new(true));
                prop_assert_eq!(found.map(|frame| frame.function.to_string()), expected);
            }
        }

        #[test]
        fn any_text_is_no_panic(text: Vec<u8>, address: u64) {
            let _ = PerfMap::parse(&text).frame(address, &mut Texts::new(true));
        }
    }
}
