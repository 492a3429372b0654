#![no_main]

use triscope_fuzz::targets::perf_monitor_elf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| perf_monitor_elf::target(data));
