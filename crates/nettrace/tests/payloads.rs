//! Typed payloads of real events.

mod common;

use std::collections::BTreeMap;

use nettrace::{FieldSource, Options, Order, Reader};

/// Every payload is exactly as long as its fields: the strongest check of the built-in manifest.
#[test]
fn fields_cover_every_payload_to_the_last_byte() {
    let mut files: Vec<_> = [Some(common::data()), common::more_captures()]
        .into_iter()
        .flatten()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap())
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "nettrace" || e == "netperf"))
        .collect();
    files.sort();
    let mut wrong = BTreeMap::new();
    let mut checked = 0;
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let options = Options::new().order(Order::Stream);
        let mut reader = Reader::with_options(&bytes[..], options);
        while let Ok(Some(event)) = reader.next_event() {
            let metadata = event.metadata();
            // Without fields there is nothing to check. And `Flood` of our own workload writes
            // other types than it declares: see `losses_are_what_the_workload_says`.
            // one-collect appends the mapping's metadata to ProcessMapping without declaring it.
            let known = metadata.source == FieldSource::None
                || event.name() == "Flood"
                || &*metadata.provider == "Universal.System" && event.name() == "ProcessMapping";
            if known {
                continue;
            }
            let mut fields = event.fields();
            let read = fields.by_ref().count();
            checked += 1;
            // NetPerf pads payloads to a multiple of four bytes.
            let padding = if event.trace().unwrap().version == 3 { 3 } else { 0 };
            if read != metadata.fields.len() || fields.rest().len() > padding {
                let key = (metadata.provider.clone(), metadata.event_id, metadata.version);
                let what = format!(
                    "{} of {} fields, {} bytes left: {:?} {event:?}",
                    read,
                    metadata.fields.len(),
                    fields.rest().len(),
                    event.payload()
                );
                wrong.entry(key).or_insert(what);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > 10_000, "{checked}");
}
