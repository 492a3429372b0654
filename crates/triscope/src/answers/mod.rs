//! Answers about traces, as text and as JSON, that several commands give.

pub(crate) mod explain;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod profile;
