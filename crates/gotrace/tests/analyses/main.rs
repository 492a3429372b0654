//! The analyses of whole and damaged traces.

mod clip;
#[path = "../common/mod.rs"]
mod common;
mod critical_path;
mod damaged;
mod heap;
mod known;
mod scheduling;
