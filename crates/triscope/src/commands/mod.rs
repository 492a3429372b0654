//! The commands. They do not import each other: shared code is in `answers`, `run`, `io`,
//! `sources` and `timeline`.

pub(crate) mod convert;
#[cfg(unix)]
pub(crate) mod demo;
pub(crate) mod diff;
#[cfg(unix)]
pub(crate) mod doctor;
#[cfg(unix)]
pub(crate) mod dotnet;
#[cfg(unix)]
pub(crate) mod explain;
#[cfg(unix)]
pub(crate) mod export;
#[cfg(unix)]
pub(crate) mod flight;
pub(crate) mod go;
#[cfg(unix)]
pub(crate) mod manual;
#[cfg(unix)]
pub(crate) mod open;
#[cfg(unix)]
pub(crate) mod perf;
#[cfg(unix)]
pub(crate) mod profile;
#[cfg(all(unix, feature = "push"))]
pub(crate) mod push;
#[cfg(unix)]
pub(crate) mod questions;
#[cfg(unix)]
pub(crate) mod record;
pub(crate) mod report;
#[cfg(unix)]
pub(crate) mod sql;
#[cfg(unix)]
pub(crate) mod top;
