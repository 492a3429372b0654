//! Shared code to read traces and to open events.

pub(crate) mod go;
pub(crate) mod html;
pub(crate) mod kernel;
pub(crate) mod model;
pub(crate) mod recording;
pub(crate) mod symbols;
