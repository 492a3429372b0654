//! The PE and CLI metadata of an assembly.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = diag_ipc::check_startup_hook(data);
});
