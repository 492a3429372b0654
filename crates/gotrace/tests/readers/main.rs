//! Readers: whole, hostile and damaged traces.

#[path = "../common/mod.rs"]
mod common;
mod generations;
mod hostile;
mod recover;
mod recovery;
mod validate;
