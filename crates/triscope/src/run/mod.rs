//! Starting, monitoring and stopping commands and processes.

pub(crate) mod child;
pub(crate) mod cleanup;
pub(crate) mod duration;
pub(crate) mod go_program;
pub(crate) mod port;
pub(crate) mod pprof;
pub(crate) mod procfs;
pub(crate) mod serve;
pub(crate) mod stop;
pub(crate) mod target;
pub(crate) mod watch;
