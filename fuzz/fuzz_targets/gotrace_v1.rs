//! The ordered reader on format v1.
#![no_main]

mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    common::read_all(data, &["11", "19", "21"], |_| false);
});
