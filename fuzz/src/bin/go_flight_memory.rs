#![no_main]

use triscope_fuzz::targets::go_flight_memory;

libfuzzer_sys::fuzz_target!(|data: &[u8]| go_flight_memory::target(data));
