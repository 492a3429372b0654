#![no_main]

use triscope_fuzz::targets::diag_ipc_request;

libfuzzer_sys::fuzz_target!(|data: &[u8]| diag_ipc_request::target(data));
