//! Shared code to read traces and to open events.

pub(crate) mod go;
pub(crate) mod goroutine_frame;
#[cfg(unix)]
pub(crate) mod goroutines;
#[cfg(unix)]
pub(crate) mod kernel;
#[cfg(unix)]
pub(crate) mod live;
pub(crate) mod manifest;
pub(crate) mod model;
pub(crate) mod processes;
pub(crate) mod profile;
pub(crate) mod quota;
#[cfg(unix)]
pub(crate) mod recording;
#[cfg(unix)]
pub(crate) mod runtimes;
#[cfg_attr(not(unix), path = "symbols_wasi.rs")]
pub(crate) mod symbols;

use std::path::Path;

/// Why the directory of a recording of perf is not read, if it is one.
pub(crate) fn perf_directory(path: &Path) -> Option<String> {
    let data = path.join("data");
    if !data.is_file() {
        None
    } else if path.join("data.0").is_file() {
        let why = "is a directory of perf record --threads, which is not read: record without \
                   --threads";
        Some(why.to_owned())
    } else if path.join("kcore_dir").is_dir() {
        Some(format!("is a directory of perf record --kcore: use its file {}", data.display()))
    } else {
        None
    }
}

/// Of a recording of perf that is not [complete](perf_data::Reader::is_complete).
pub(crate) const INCOMPLETE: &str = "the recorder did not complete it: the end can be missing";
