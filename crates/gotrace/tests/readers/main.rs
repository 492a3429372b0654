//! Readers: whole, hostile and damaged traces.

#[path = "../common/mod.rs"]
mod common;
mod generations;
mod hostile;
mod parser;
mod recover;
mod recovery;
mod validate;
