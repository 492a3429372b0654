//! Shared code of `xtask` and the conformance suites: [`cache`] (downloads and builds, kept by
//! version), [`pypi`] (packages that contain toolchains), [`run`] (child processes), [`lane`]
//! (checks that a machine may not support), [`remark`] (what the summary of the checks repeats) and
//! [`parallel`].
#![forbid(unsafe_code)]

pub mod cache;
pub mod lane;
mod parallel;
pub mod pypi;
pub mod remark;
pub mod run;

pub use parallel::{on_threads, parallel};

use std::path::PathBuf;

/// The reason for the failure of a task, as text.
pub type Error = Box<dyn std::error::Error>;
/// The result of a task or a part of it.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// The directory of what cargo builds.
#[must_use]
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// The root directory of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    let mut dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    // This crate is in `xtask/support`.
    dir.pop();
    dir.pop();
    dir
}
