//! TraceEvent's own test inputs against its own published answers.
//!
//! The inputs are not part of this repository: unpack `src/TraceEvent/TraceEvent.Tests/inputs`
//! of github.com/microsoft/perfview (each `eventpipe-*.zip`, beside its `.baseline.txt`) and
//! name the folder in the environment variable `TRACEEVENT_INPUTS`.
//!
//! A baseline has, for each event type, how many there are and the first one as text: its time,
//! its thread, its fields.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use nettrace::{ErrorKind, Event, Reader, Value};

#[derive(Debug)]
struct Expected {
    name: String,
    provider: String,
    count: u64,
    attributes: Vec<(String, String)>,
}

#[derive(Debug, Default)]
struct Found {
    count: u64,
    msec: String,
    tid: String,
    fields: HashMap<String, String>,
}

#[test]
fn event_types_counts_and_first_payloads_are_those_of_trace_event() {
    let Some(dir) = std::env::var_os("TRACEEVENT_INPUTS") else {
        testkit::skip::without("TRACEEVENT_INPUTS, the folder of TraceEvent's inputs");
        return;
    };
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.to_str().is_some_and(|p| p.ends_with(".baseline.txt")))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let (mut types, mut values, mut failures) = (0, 0, Vec::new());
    for baseline in files {
        let input = baseline.to_str().unwrap().trim_end_matches(".baseline.txt").to_string();
        if !Path::new(&input).exists() {
            continue; // objver1: its zip holds a file of another name
        }
        let found = match read(&input) {
            Ok(found) => found,
            // Versions 1 and 2 were never released; TraceEvent dropped them too.
            Err(e) if matches!(e.kind, ErrorKind::UnsupportedVersion(1 | 2)) => {
                eprintln!("{input}: {e}");
                continue;
            }
            Err(e) => {
                failures.push(format!("{input}: {e}"));
                continue;
            }
        };
        for expected in parse_baseline(&std::fs::read_to_string(&baseline).unwrap()) {
            types += 1;
            let get = |name: &str| {
                let found = expected.attributes.iter().find(|(n, _)| n == name);
                found.map(|(_, v)| v.trim().replace(',', "")).unwrap_or_default()
            };
            let (msec, tid) = (get("MSec"), get("TID"));
            let of_provider = found.get(&expected.provider);
            // TraceEvent counts by name: one event may have several ids (a self-describing event
            // with several shapes), and it has one name for both events of memory pressure.
            let count = |id: &Key| {
                let alike = |other: &Key| {
                    other.1 == id.1
                        || expected.name.ends_with("/GC") && other.1.ends_with("MemoryPressure")
                };
                let all = of_provider.into_iter().flatten();
                all.filter(|(other, _)| alike(other)).map(|(_, f)| f.count).sum::<u64>()
            };
            let same = of_provider.into_iter().flatten().find(|(id, f)| {
                f.msec == msec
                    && f.tid == tid
                    && (f.count == expected.count || count(id) == expected.count)
            });
            let Some((id, same)) = same else {
                let near: Vec<_> = found
                    .get(&expected.provider)
                    .into_iter()
                    .flatten()
                    .map(|(id, f)| (id, f.count, &f.msec, &f.tid))
                    .filter(|(_, count, m, _)| **m == msec || *count == expected.count)
                    .collect();
                failures.push(format!(
                    "{input}: {} {} at {msec} by {tid}: {near:?}",
                    expected.name, expected.count
                ));
                continue;
            };
            for (name, text) in &expected.attributes {
                let Some(value) = same.fields.get(&name.to_lowercase()) else { continue };
                match agrees(text, value) {
                    Some(true) => values += 1,
                    Some(false) => failures.push(format!(
                        "{input}: {} (id {id:?}) {name}: {value:?}, TraceEvent has {text:?}",
                        expected.name
                    )),
                    None => {} // the name of an enumeration's value
                }
            }
        }
    }
    eprintln!("{types} event types, {values} field values compared");
    assert!(failures.is_empty(), "{} of {types}: {failures:#?}", failures.len());
    assert!(types > 80 && values > 300, "{types} {values}");
}

type Key = (u32, String);

fn read(path: &str) -> Result<HashMap<String, BTreeMap<Key, Found>>, nettrace::Error> {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Reader::new(&bytes[..]);
    let mut types: HashMap<String, BTreeMap<Key, Found>> = HashMap::new();
    loop {
        let event = match reader.next_event() {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(types),
            Err(e) if e.is_truncated() => return Ok(types),
            Err(e) => return Err(e),
        };
        let of_provider = types.entry(event.provider().to_string()).or_default();
        let found = of_provider.entry((event.id(), event.name().to_string())).or_default();
        found.count += 1;
        if found.count == 1 {
            let trace = event.trace().unwrap();
            let ticks = event.header().ticks - trace.sync_time_qpc;
            let msec = ticks as f64 * 1_000.0 / trace.qpc_frequency as f64;
            found.msec = format!("{msec:.4}");
            found.tid = event.tid().to_string();
            found.fields = fields(&event);
        }
    }
}

fn fields(event: &Event<'_>) -> HashMap<String, String> {
    let mut all = HashMap::new();
    for (name, value) in event.fields().map_while(Result::ok) {
        let text = match value {
            Value::Array(_) | Value::Object(_) | Value::Bytes(_) => continue,
            other => other.to_string(),
        };
        all.insert(name.to_lowercase(), text);
    }
    all
}

/// Whether two texts mean the same value; `None` if TraceEvent shows a name for a number.
fn agrees(theirs: &str, ours: &str) -> Option<bool> {
    let number = |s: &str| -> Option<f64> {
        let s = s.replace(',', "");
        match s.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok().map(|v| v as f64),
            None => s.parse().ok(),
        }
    };
    if theirs.eq_ignore_ascii_case(ours) {
        return Some(true);
    }
    match (number(theirs), number(ours)) {
        (Some(a), Some(b)) => {
            // The baselines have fifteen digits; 32-bit values may be shown as signed.
            let wrapped = b as u32 as i32;
            Some((a - b).abs() <= a.abs() * 1e-13 || f64::from(wrapped) == a)
        }
        (None, Some(_)) => None,
        _ => Some(theirs == ours),
    }
}

fn parse_baseline(text: &str) -> Vec<Expected> {
    text.trim_start_matches('\u{feff}').lines().filter_map(parse_line).collect()
}

/// `Provider/Event/Name, count, <Event MSec= "…" …/>`
fn parse_line(line: &str) -> Option<Expected> {
    let (name, rest) = line.split_once(", ")?;
    let (count, xml) = rest.split_once(", ")?;
    let mut attributes = Vec::new();
    let mut rest = xml.strip_prefix("<Event ")?;
    // Attributes up to the end of the element, or of the line: baselines cut it at 1000.
    while let Some((name, after)) = rest.split_once('=') {
        let after = after.trim_start();
        let Some((value, more)) = after.strip_prefix('"').and_then(|a| a.split_once('"')) else {
            break;
        };
        let name = name.trim().to_string();
        if name.contains('>') || name.contains('<') {
            break; // elements within
        }
        attributes.push((name, unescape(value)));
        rest = more;
    }
    Some(Expected {
        name: name.to_string(),
        provider: name.split('/').next()?.to_string(),
        count: count.replace(',', "").parse().ok()?,
        attributes,
    })
}

fn unescape(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    text.replace("&apos;", "'").replace("&amp;", "&")
}
