//! What several commands make of traces: answers as text and as JSON, and datasets to ask.

#[cfg(unix)]
pub(crate) mod dataset;
pub(crate) mod explain;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod profile;
