//! `triscope go footprint` against `go tool trace -d=footprint`.

use super::Tools;
use super::reference::Printed;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use task_support::Result;

/// Bytes and events by type.
type Types = BTreeMap<String, (u64, u64)>;

/// The differences for one intact trace.
pub(crate) fn compare(tools: &Tools, trace: &Path) -> Result<Vec<String>> {
    let theirs = Printed::of(Command::new(&tools.trace_tool).arg("-d=footprint").arg(trace))?;
    let theirs = reference(&theirs.text).ok_or("go tool trace -d=footprint: another format")?;
    let mut ours = Command::new(&tools.triscope);
    let ours = Printed::of(ours.args(["go", "footprint", "--json"]).arg(trace))?;
    let ours = own(&ours.text).ok_or("go footprint --json: another format")?;
    let mut problems = Vec::new();
    let counts = |types: &Types| {
        types.iter().map(|(ty, (_, events))| (ty.clone(), *events)).collect::<Vec<_>>()
    };
    if counts(&ours) != counts(&theirs) {
        problems.push(format!("go footprint: {:?}, not {:?}", counts(&ours), counts(&theirs)));
    }
    for (ty, (bytes, _)) in &ours {
        let other = theirs.get(ty).map_or(0, |(bytes, _)| *bytes);
        // Go's tool leaves out the padding of the size of a batch.
        let is_batch = matches!(&**ty, "EventBatch" | "ExperimentalBatch");
        if (*bytes != other && !is_batch) || *bytes < other {
            problems.push(format!("go footprint: {bytes} bytes of {ty}, not {other}"));
        }
    }
    let sum: u64 = ours.values().map(|(bytes, _)| bytes).sum();
    let size = fs::metadata(trace)?.len();
    // The header is no wire event.
    if sum + gotrace::Version::HEADER_LEN as u64 != size {
        problems.push(format!("go footprint: {sum} bytes of a trace of {size}"));
    }
    Ok(problems)
}

/// Lines `TYPE BYTES SHARE EVENTS SHARE` after two lines; with those of types that do not occur.
fn reference(text: &[u8]) -> Option<Types> {
    let text = std::str::from_utf8(text).ok()?;
    let mut types = Types::new();
    for line in text.lines().skip(2) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [.., bytes, _, events, _] = fields[..] else { return None };
        let (bytes, events) = (bytes.parse().ok()?, events.parse().ok()?);
        if events > 0 {
            types.insert((*fields.first()?).to_owned(), (bytes, events));
        }
    }
    (!types.is_empty()).then_some(types)
}

fn own(json: &[u8]) -> Option<Types> {
    let json: serde_json::Value = serde_json::from_slice(json).ok()?;
    let row = |row: &serde_json::Value| {
        Some((row["type"].as_str()?.to_owned(), (row["bytes"].as_u64()?, row["events"].as_u64()?)))
    };
    json["types"].as_array()?.iter().map(row).collect()
}
