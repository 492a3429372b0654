//! Perf maps: the text files in which just-in-time compilers describe their code
//! (`/tmp/perf-PID.map`).

use crate::error::{Result, Unresolved};
use crate::files;
use crate::frame::{Frame, Texts};
use crate::kernel::hex;
use crate::names::{Named, Names};
use crate::time_map::TimeMap;
use std::path::PathBuf;
use trace_common::Timestamp;

/// The code of a process.
///
/// The format has no times: where several lines describe an address, the last one counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerfMap {
    methods: TimeMap<Named>,
    names: Names,
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
            this.methods.insert(start, end, Timestamp::MIN, named);
        }
        this
    }

    /// The function at an address.
    pub(crate) fn frame(&self, address: u64, texts: &mut Texts) -> Result<Frame> {
        let code = self.methods.at(address, Timestamp::MAX).ok_or(Unresolved::NoSymbol)?;
        Ok(self.names.frame(code, address, texts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_line_of_an_address_counts() {
        let map = PerfMap::parse(
            b"1000 20 LazyCompile:*hot a.js:1\n0x1010 0x8 replaced\nnot a line\n1010 4 last\n\
              ffffffffffffffff 2 overflow\n2000 10 incomp",
        );
        let mut texts = Texts::new(true);
        let mut at = |address| match map.frame(address, &mut texts) {
            Ok(frame) => (frame.function.to_string(), frame.offset.unwrap_or(99)),
            Err(error) => (error.to_string(), 0),
        };
        assert_eq!(at(0x1008), ("LazyCompile:*hot a.js:1".to_owned(), 8));
        assert_eq!(at(0x1012), ("last".to_owned(), 2));
        assert_eq!(at(0x1014), ("replaced".to_owned(), 4));
        assert_eq!(at(0x1018).1, 0x18);
        assert_eq!(at(0x2000).0, Unresolved::NoSymbol.to_string(), "its line is not complete");
    }

    proptest! {
        #[test]
        fn any_text_is_no_panic(text: Vec<u8>, address: u64) {
            let _ = PerfMap::parse(&text).frame(address, &mut Texts::new(true));
        }
    }
}
