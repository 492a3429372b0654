//! Perf maps of many lines that overlap: an address has the name that all of its lines have, and the

//! offset in the last of them.

use std::fmt::Write;
use trace_symbols::{Mapping, Module, Symbolizer, Timestamp};

pub fn target(data: &[u8]) {
    let (mut text, mut table) = (String::new(), vec![(None, false); 512]);
    for bytes in data.chunks_exact(3) {
        let [start, size, name] = [bytes[0], bytes[1], bytes[2] % 3].map(u64::from);
        writeln!(text, "{start:x} {size:x} f{name}").unwrap();
        for (last, is_ambiguous) in &mut table[start as usize..(start + size) as usize] {
            *is_ambiguous |= last.is_some_and(|(_, other)| other != name);
            *last = Some((start, name));
        }
    }
    let mut symbols = Symbolizer::default();
    let module = symbols.spaces_mut().add_module(Module::jit(1));
    let mapping = Mapping { start: 0, end: u64::MAX, offset: 0, module };
    symbols.spaces_mut().map(1, Timestamp::MIN, &mapping);
    symbols.add_perf_map(1, text.as_bytes());
    for (address, (last, is_ambiguous)) in (0..).zip(table) {
        let expected = last.filter(|_| !is_ambiguous);
        let expected = expected.map(|(start, name)| (format!("f{name}"), Some(address - start)));
        let found = symbols.symbolize(1, address, Timestamp::MIN).frames.ok();
        let found = found.map(|frames| (frames[0].symbol.to_string(), frames[0].offset));
        assert_eq!(found, expected, "{address:#x}");
    }
}
