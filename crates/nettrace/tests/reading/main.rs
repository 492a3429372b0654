//! Streams and `.gcdump` files of all versions: recorded, assembled and hostile ones, and what their
//! events add up to.

mod analysis;
mod captures;
#[path = "../common/mod.rs"]
mod common;
mod dotnetdiag;
mod formats;
mod gcdump;
mod hostile;
mod il_maps;
mod order;
mod payloads;
mod times;
mod trace_event;
