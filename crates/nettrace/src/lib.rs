//! Reads the event stream of .NET's EventPipe.
#![forbid(unsafe_code)]

mod cursor;
pub mod derived;
mod error;
mod event;
mod framing;
mod guid;
mod input;
mod losses;
pub mod manifest;
mod metadata;
mod order;
mod parser;
mod payload;
mod profile;
mod reader;
mod session;
mod summary;
mod symbols;
mod tables;
mod trace;
mod types;

pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventHeader};
pub use guid::Guid;
pub use losses::Lost;
pub use metadata::{FieldSource, Metadata};
pub use parser::{Item, Options, Order, Parser};
pub use payload::{Array, Fields, FileTime, Text, Value};
pub use profile::{Profile, Sample, SampleKind};
pub use reader::Reader;
pub use session::{SequencePoint, Stats};
pub use summary::Summary;
pub use symbols::{Frame, Method, MethodMap, Module, OptimizationTier};
pub use tables::{Label, Labels, Stack, Thread};
pub use trace::Trace;
pub use types::{Field, FieldType};
