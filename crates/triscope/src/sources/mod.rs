//! Shared code to read traces and to open events.

pub(crate) mod go;
pub(crate) mod kernel;
