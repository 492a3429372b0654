use super::analysis::Document;
use super::wire;
use crate::failure::{Failure, OneLine, Result};
use crate::io::progress::Progress;
use crate::sources::go::Trace;
use gotrace::{EventType, Version, raw};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::io::{self, Write};
use std::path::PathBuf;

/// Show what takes the space in a trace: bytes and number of the wire events of each type
///
/// As go tool trace -d=footprint. The bytes are those of the file, so that they add up to its size
/// without the header; Go's tool leaves out the padding in the sizes of batches. Traces of Go 1.22
/// and later have wire events.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go footprint trace.out
  triscope go footprint --json trace.out | jq '.types[0]'")]
pub(crate) struct Args {
    /// The trace; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    document: Document,
}

pub(super) fn run(args: &Args) -> Result {
    let trace = Trace::open(&args.file, Progress::bytes())?;
    let name = trace.name;
    let mut reader = raw::Reader::new(trace.bytes).map_err(|error| Failure::about(&name, error))?;
    let mut footprint = Footprint::new(name, reader.version());
    let mut start = reader.offset();
    let error = loop {
        let ty = match reader.next_event() {
            Ok(Some(event)) => event.ty,
            Ok(None) => break None,
            Err(error) => break Some(error),
        };
        let end = reader.offset();
        footprint.add(ty, end - start);
        start = end;
    };
    args.document.print(|| footprint.to_json(), |out| footprint.print(out))?;
    match error {
        None => Ok(()),
        Some(error) => Err(wire::failure(&footprint.name, footprint.version, error, "go stats")),
    }
}

/// The events of one type.
#[derive(Clone, Copy, Default)]
struct Use {
    events: u64,
    bytes: u64,
}

struct Footprint {
    name: String,
    version: Version,
    by_type: [Use; 256],
    all: Use,
}

impl Footprint {
    const fn new(name: String, version: Version) -> Self {
        let none = Use { events: 0, bytes: 0 };
        Self { name, version, by_type: [none; 256], all: none }
    }

    fn add(&mut self, ty: EventType, bytes: u64) {
        for of in [&mut self.by_type[usize::from(ty.0)], &mut self.all] {
            of.events += 1;
            of.bytes += bytes;
        }
    }

    /// The types that occur, by their bytes, most first.
    fn types(&self) -> Vec<(EventType, Use)> {
        let types = (0..=u8::MAX).map(EventType).zip(self.by_type);
        let mut types: Vec<_> = types.filter(|(_, of)| of.events > 0).collect();
        types.sort_by_key(|(ty, of)| (Reverse(of.bytes), ty.0));
        types
    }

    fn print(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Use { events, bytes } = self.all;
        let name = OneLine(&self.name);
        writeln!(out, "{name}: {} trace, {events} wire events in {bytes} bytes\n", self.version)?;
        writeln!(out, "       bytes   share       events   share  type")?;
        let share = |part: u64, all: u64| part as f64 / all.max(1) as f64 * 100.0;
        for (ty, of) in self.types() {
            let (bytes_share, events_share) = (share(of.bytes, bytes), share(of.events, events));
            let Use { events, bytes } = of;
            writeln!(
                out,
                "{bytes:>12} {bytes_share:>6.2}% {events:>12} {events_share:>6.2}%  {ty}"
            )?;
        }
        Ok(())
    }

    fn to_json(&self) -> Value {
        let types = self.types().into_iter().map(
            |(ty, of)| json!({ "type": ty.to_string(), "bytes": of.bytes, "events": of.events }),
        );
        json!({
            "file": self.name,
            "version": self.version.to_string(),
            "bytes": self.all.bytes,
            "events": self.all.events,
            "types": types.collect::<Vec<_>>(),
        })
    }
}
