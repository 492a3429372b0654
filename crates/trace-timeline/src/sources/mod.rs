//! Sources: they turn the events of a parser into events of the model.
//!
//! A source appends to a `Vec<Event>`, in time order, and holds only what is live: open spans and
//! the identifiers of running goroutines and threads. [`Streams`](crate::Streams) merges several.
//!
//! An own source makes events in the same way: see `examples/own_source.rs`. It finds the threads,
//! processes and CPUs that other sources know too by [`Tables::thread`](crate::Tables::thread) and so on.

#[cfg(feature = "kernel")]
pub mod cgroup;
#[cfg(feature = "dotnet")]
pub mod dotnet;
#[cfg(feature = "go")]
pub mod go;
#[cfg(feature = "kernel")]
pub mod kernel;
#[cfg(feature = "perf")]
pub mod perf;
#[cfg(any(feature = "dotnet", feature = "go", feature = "kernel"))]
#[cfg_attr(
    not(all(feature = "dotnet", feature = "go")),
    allow(dead_code, reason = "the kernel has no spans, and each runtime has parts of its own")
)]
mod pusher;
