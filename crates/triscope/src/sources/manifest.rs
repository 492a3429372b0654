//! The manifest of a dump of a flight recorder: what the recorder could not measure, and why.

use crate::failure::{Failure, Result};
use crate::io::regular;
use serde_json::Value;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::Path;

/// The file that describes a dump of a flight recorder.
pub(crate) const MANIFEST: &str = "manifest.json";

/// It has a line for each file and process.
const LONGEST: u64 = 16 << 20;

/// Most texts that a report has.
const MOST: usize = 64;

/// What a dump lacks, and why. Other directories and files lack nothing.
pub(crate) fn missing(dir: &Path) -> Result<Vec<String>> {
    let path = dir.join(MANIFEST);
    let fail = |error: &dyn std::fmt::Display| Failure::about(path.display(), error);
    let bytes = match regular::read(&path, LONGEST) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(Vec::new()),
        Err(error) => return Err(fail(&error)),
    };
    let manifest: Value = serde_json::from_slice(&bytes).map_err(|error| fail(&error))?;
    let list = |key: &str| manifest.get(key).and_then(Value::as_array).into_iter().flatten();
    let own = list("missing").filter_map(Value::as_str).map(str::to_owned);
    let mut all: Vec<String> = own.chain(list("sources").filter_map(of_source)).collect();
    let more = all.len().saturating_sub(MOST);
    if more > 0 {
        all.truncate(MOST);
        all.push(format!("{more} more, which {MANIFEST} has"));
    }
    Ok(all)
}

/// What the trace of a process lacks.
fn of_source(source: &Value) -> Option<String> {
    let text = |key| source.get(key).and_then(Value::as_str);
    let (missing, kind) = (text("missing")?, text("kind").unwrap_or_default());
    let name = text("name").unwrap_or_default();
    let pid = source.get("pid").and_then(Value::as_u64);
    let pid = pid.map_or_else(String::new, |pid| format!(" ({pid})"));
    Some(format!("{kind} of {name}{pid}: {missing}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dump_lacks_has_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(missing(dir.path()).unwrap(), [""; 0]);
        let write = |manifest: &Value| {
            std::fs::write(dir.path().join(MANIFEST), manifest.to_string()).unwrap();
        };
        write(&serde_json::json!({
            "missing": ["the newest segment was truncated"],
            "sources": [
                { "kind": "dotnet", "name": "web", "pid": 7, "missing": "no reply" },
                { "kind": "go", "name": "shop", "pid": 8, "missing": null },
            ],
        }));
        let expected = ["the newest segment was truncated", "dotnet of web (7): no reply"];
        assert_eq!(missing(dir.path()).unwrap(), expected);
        write(&serde_json::json!({ "missing": vec!["x"; MOST + 3] }));
        let many = missing(dir.path()).unwrap();
        assert_eq!((many.len(), &*many[MOST]), (MOST + 1, "3 more, which manifest.json has"));
        std::fs::write(dir.path().join(MANIFEST), "{").unwrap();
        assert!(missing(dir.path()).is_err());
    }
}
