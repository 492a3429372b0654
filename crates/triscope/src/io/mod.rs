//! Inputs and outputs of the commands.

pub(crate) mod counting;
pub(crate) mod input;
pub(crate) mod output_file;
pub(crate) mod per_file;
pub(crate) mod profile_file;
pub(crate) mod progress;
pub(crate) mod stdout;
