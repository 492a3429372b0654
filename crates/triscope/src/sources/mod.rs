//! Shared code to read traces and to open events.

pub(crate) mod go;
pub(crate) mod goroutine_frame;
#[cfg(unix)]
pub(crate) mod goroutines;
#[cfg(unix)]
pub(crate) mod kernel;
#[cfg(unix)]
pub(crate) mod live;
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

/// Of a recording of perf that is [incomplete](perf_data::Reader::is_incomplete).
pub(crate) const INCOMPLETE: &str = "the recorder did not complete it: the end can be missing";
