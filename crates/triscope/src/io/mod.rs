//! Inputs and outputs of the commands.

pub(crate) mod counting;
#[cfg_attr(not(unix), path = "follow_wasi.rs")]
pub(crate) mod follow;
#[cfg(unix)]
pub(crate) mod in_place;
pub(crate) mod input;
#[cfg_attr(not(unix), path = "links_wasi.rs")]
mod links;
pub(crate) mod new_directory;
pub(crate) mod output_file;
#[cfg_attr(not(unix), path = "partial_file_wasi.rs")]
pub(crate) mod partial_file;
pub(crate) mod per_file;
#[cfg(unix)]
pub(crate) mod place;
#[cfg(unix)]
pub(crate) mod private;
#[cfg(unix)]
pub(crate) mod private_dir;
pub(crate) mod profile_file;
pub(crate) mod profile_table;
#[cfg_attr(not(unix), path = "progress_wasi.rs")]
pub(crate) mod progress;
#[cfg(unix)]
pub(crate) mod recording;
pub(crate) mod regular;
#[cfg(unix)]
pub(crate) mod skeleton;
#[cfg_attr(not(unix), path = "spool_wasi.rs")]
pub(crate) mod spool;
pub(crate) mod stdout;
#[cfg(unix)]
pub(crate) mod terminal;
#[cfg(test)]
pub(crate) mod test_data;
#[cfg(unix)]
pub(crate) mod unnamed;
#[cfg(any(not(unix), test))]
mod zstd_frames;
