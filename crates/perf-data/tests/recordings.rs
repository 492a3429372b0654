//! Recordings of `perf` and of this project, as they were made. `perf report --stats` counts the same
//! records.
#![allow(clippy::unwrap_used, reason = "a test that fails is to panic")]

use perf_data::{Reader, SortedReader};
use perf_monitor::Record;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use testkit::digest::Digest;

/// The events, the number of records by kind, and the digest of all records as text.
fn summary(path: &Path) -> String {
    let reader = Reader::new(File::open(path).unwrap()).unwrap();
    let is_pipe = reader.is_pipe();
    let mut records = SortedReader::new(reader);
    let (mut counts, mut digest) = (BTreeMap::new(), Digest::default());
    let (mut first, mut last) = (None, None);
    while let Some(entry) = records.next_record().unwrap() {
        let record = entry.decode().unwrap().unwrap();
        digest.update(
            format!("{:?} {record:?}\n", entry.event().map(|event| &event.name)).as_bytes(),
        );
        *counts.entry(entry.raw.type_()).or_insert(0) += 1;
        if let Record::Sample(sample) = record {
            last = sample.time;
            first = first.or(last);
        }
    }
    let session = records.session();
    let mut text = format!("pipe: {is_pipe}\nhost: {:?}\n", session.features().hostname);
    for event in session.events() {
        writeln!(text, "event {}: {} ids", event.name, event.ids.len()).unwrap();
    }
    for (type_, count) in counts {
        writeln!(text, "records of type {type_}: {count}").unwrap();
    }
    writeln!(text, "samples from {first:?} to {last:?}").unwrap();
    writeln!(text, "digest: {:016x}", digest.value()).unwrap();
    text
}

#[test]
fn recordings_are_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut read = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "data") {
            testkit::golden::check(&path.with_extension("txt"), &summary(&path));
            read += 1;
        }
    }
    assert_eq!(read, 5);
}
