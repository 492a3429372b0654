//! Going on behind damage: it ends, and says so.
#![no_main]

mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    common::read_all(data, &["22", "23", "25", "26"], |_| true);
});
