//! The PE and CLI metadata of an assembly.

pub fn target(data: &[u8]) {
    let _ = diag_ipc::check_startup_hook(data);
}
