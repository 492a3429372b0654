//! The ordered reader on format v2: every event is looked at in every way.
#![no_main]

mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    common::read_all(data, &["22", "23", "25", "26"], |_| false);
});
