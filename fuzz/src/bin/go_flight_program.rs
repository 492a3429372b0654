#![no_main]

use triscope_fuzz::targets::go_flight_program;

libfuzzer_sys::fuzz_target!(|data: &[u8]| go_flight_program::target(data));
