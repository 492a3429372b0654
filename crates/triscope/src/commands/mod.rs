//! The commands. They do not import each other: shared code is in `run`, `io`, `sources` and
//! `timeline`.

pub(crate) mod convert;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod dotnet;
pub(crate) mod explain;
pub(crate) mod go;
pub(crate) mod manual;
pub(crate) mod perf;
pub(crate) mod record;
pub(crate) mod report;
