//! Starting, monitoring and stopping commands and processes.

#[cfg(unix)]
pub(crate) mod candidate;
#[cfg(unix)]
pub(crate) mod child;
pub(crate) mod cleanup;
pub(crate) mod duration;
#[cfg(test)]
#[cfg(unix)]
pub(crate) mod fake;
#[cfg(unix)]
pub(crate) mod family;
#[cfg(unix)]
pub(crate) mod go_program;
#[cfg(unix)]
pub(crate) mod http;
#[cfg(unix)]
pub(crate) mod loopback;
#[cfg(unix)]
pub(crate) mod named;
#[cfg(unix)]
pub(crate) mod open_files;
#[cfg(unix)]
mod peer;
#[cfg(unix)]
pub(crate) mod port;
#[cfg(unix)]
pub(crate) mod pprof;
#[cfg(unix)]
pub(crate) mod process;
#[cfg(unix)]
pub(crate) mod procfs;
#[cfg(unix)]
pub(crate) mod programs;
#[cfg(unix)]
pub(crate) mod rescue;
#[cfg(unix)]
pub(crate) mod runtimes;
#[cfg(unix)]
pub(crate) mod sample_rate;
#[cfg(unix)]
pub(crate) mod serve;
#[cfg_attr(not(unix), path = "stop_wasi.rs")]
pub(crate) mod stop;
#[cfg(unix)]
pub(crate) mod target;
#[cfg(unix)]
pub(crate) mod threads;
#[cfg(unix)]
pub(crate) mod time_namespace;
#[cfg(unix)]
pub(crate) mod timed;
#[cfg(test)]
pub(crate) mod wait;
#[cfg(unix)]
pub(crate) mod watch;
