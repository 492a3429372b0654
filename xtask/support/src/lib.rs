//! What `xtask` and the conformance suites share: [`cache`] (downloads and builds, kept by
//! version), [`pypi`] (packages that carry toolchains), [`run`] (child processes), [`lane`]
//! (checks that this machine cannot run) and [`parallel`].
#![forbid(unsafe_code)]

pub mod cache;
pub mod lane;
mod parallel;
pub mod pypi;
pub mod run;

pub use parallel::{on_threads, parallel};

use std::path::PathBuf;

/// Any reason why a task fails, as text for a person.
pub type Error = Box<dyn std::error::Error>;
/// The result of a task or a part of it.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// The root directory of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    let mut dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    // This crate is in `xtask/support`.
    dir.pop();
    dir.pop();
    dir
}
