//! What the tests of this crate share.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, of which each file uses a part"
)]

pub mod exercise;

use std::path::{Path, PathBuf};
use std::time::Duration;

use nettrace::{Item, Options, Order, Parser, Reader, Stats, Summary, Timestamp};

/// A time, in nanoseconds.
pub const fn at(nanos: i64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// A duration, in nanoseconds.
pub const fn lasting(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

/// Parses a whole stream, and returns the parser after its end.
pub fn parse(bytes: &[u8], order: Order, mut each: impl FnMut(Item<'_>)) -> Parser {
    let mut parser = Parser::new(Options::new().order(order));
    parser.push(bytes);
    parser.finish();
    while let Some(item) = parser.next_item().unwrap() {
        each(item);
    }
    parser
}

/// The captures that are committed.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// A folder of larger captures, by the environment variable `NETTRACE_CAPTURES`.
pub fn more_captures() -> Option<PathBuf> {
    std::env::var_os("NETTRACE_CAPTURES").map(PathBuf::from)
}

/// Every capture that has known answers, as (file, answers).
pub fn captures_with_answers() -> Vec<(PathBuf, serde_json::Value)> {
    let mut found = Vec::new();
    for dir in [Some(data()), more_captures()].into_iter().flatten() {
        let mut answers: Vec<_> =
            std::fs::read_dir(dir.join("expect")).unwrap().map(|e| e.unwrap().path()).collect();
        answers.sort();
        for path in answers {
            let file = dir.join(path.file_stem().unwrap());
            let text = std::fs::read_to_string(&path).unwrap();
            if file.exists() {
                found.push((file, serde_json::from_str(&text).unwrap()));
            }
        }
    }
    found
}

/// Reads a whole file and says what `dotnet stats` says of it.
pub fn answers(file: &Path, order: Order) -> (serde_json::Value, Stats) {
    let bytes = std::fs::read(file).unwrap();
    let mut reader = Reader::with_options(&bytes[..], Options::new().order(order));
    let mut summary = Summary::new();
    loop {
        match reader.next_event() {
            Ok(Some(event)) => summary.push(&event),
            Ok(None) => break,
            Err(e) => panic!("{}: {e}", file.display()),
        }
    }
    let stats = *reader.stats();
    let trace = reader.trace().unwrap();
    let by_event: Vec<_> = summary
        .iter()
        .map(|(provider, id, version, count)| {
            serde_json::json!({
                "provider": provider, "id": id, "version": version, "count": count
            })
        })
        .collect();
    let value = serde_json::json!({
        "events": stats.events,
        "metadata": stats.metadata,
        "stacks": stats.stacks,
        "sequence_points": stats.sequence_points,
        "lost": stats.lost,
        "sync_time_qpc": trace.sync_time_qpc,
        "pid": trace.pid,
        "by_event": by_event,
    });
    (value, stats)
}
