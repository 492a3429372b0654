//! Perf maps and jitdump files: any text, and any bytes behind a header.

use trace_symbols::{Mapping, Module, Symbolizer, Timestamp};

pub fn target(data: &[u8]) {
    let mut symbols = Symbolizer::default();
    let module = symbols.spaces_mut().add_module(Module::jit(1));
    let mapping = Mapping { start: 0, end: u64::MAX, offset: 0, module };
    symbols.spaces_mut().map(1, Timestamp::MIN, &mapping);
    symbols.add_perf_map(1, data);
    look_at(&mut symbols);
    // A header of 40 bytes with the times of `CLOCK_MONOTONIC`.
    let mut dump = [&0x4a69_5444u32.to_le_bytes()[..], &[1, 0, 0, 0, 40, 0, 0, 0]].concat();
    dump.resize(40, 0);
    dump.extend_from_slice(data);
    assert!(symbols.add_jitdump(1, &dump).is_ok());
    let _ = symbols.add_jitdump(2, data);
    look_at(&mut symbols);
}

fn look_at(symbols: &mut Symbolizer) {
    for address in (0..64).chain((0..64).map(|bit| 1 << bit)).chain([u64::MAX - 1]) {
        for at in [Timestamp::MIN, Timestamp::from_nanos(1), Timestamp::MAX] {
            if let Ok(frames) = symbols.symbolize(1, address, at).frames {
                assert_eq!(frames.len(), 1);
            }
        }
    }
}
