//! Names of symbols, demangled: none has more than 64 KiB, or it is that of the file.

use trace_symbols::{Mapping, Module, Symbolizer, Timestamp};

// A perf map is the shortest file with a name.
pub fn target(data: &[u8]) {
    let mut symbols = Symbolizer::default();
    let module = symbols.spaces_mut().add_module(Module::jit(1));
    let mapping = Mapping { start: 0, end: u64::MAX, offset: 0, module };
    symbols.spaces_mut().map(1, Timestamp::MIN, &mapping);
    symbols.add_perf_map(1, &[b"1 1 ", data, b"\n"].concat());
    if let Ok([frame]) = symbols.symbolize(1, 1, Timestamp::MIN).frames {
        assert!(frame.function.len() <= 1 << 16 || frame.function == frame.symbol);
    }
}
