//! The layouts of all versions: bytes and the events that they are.

mod golden;
mod raw;
mod synthetic_events;
mod text;
mod v1;
