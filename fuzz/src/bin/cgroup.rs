#![no_main]

use triscope_fuzz::targets::cgroup;

libfuzzer_sys::fuzz_target!(|data: &[u8]| cgroup::target(data));
