//! The file format of speedscope: <https://www.speedscope.app/file-format-schema.json>.

use super::{LabelValue, Profile, Sample, Unit};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

pub(super) fn write(profile: &Profile, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let unit = match profile.measure.unit {
        Unit::Count => "none",
        unit => unit.name(),
    };
    write!(
        out,
        "{{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\
         \"exporter\":\"trace-export {}\",\"name\":{},\"activeProfileIndex\":0,\
         \"shared\":{{\"frames\":[",
        env!("CARGO_PKG_VERSION"),
        string(title)
    )?;
    for (index, frame) in profile.frames.values.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(out, "{comma}{{\"name\":{}", string(&profile.name_of(index as u32)))?;
        if frame.file != 0 {
            write!(out, ",\"file\":{}", string(profile.text_of(frame.file)))?;
        }
        if frame.line != 0 {
            write!(out, ",\"line\":{}", frame.line)?;
        }
        out.write_all(b"}")?;
    }
    out.write_all(b"]},\"profiles\":[")?;
    let mut threads: BTreeMap<Option<i64>, Vec<(&Sample, u64)>> = BTreeMap::new();
    for (sample, value) in profile.in_order() {
        threads.entry(thread(profile, sample)).or_default().push((sample, value));
    }
    for (index, (thread, samples)) in threads.iter().enumerate() {
        let name = thread.map_or_else(|| title.to_owned(), |thread| format!("thread {thread}"));
        let total: u64 = samples.iter().map(|(_, value)| value).sum();
        write!(
            out,
            "{}{{\"type\":\"sampled\",\"name\":{},\"unit\":\"{unit}\",\"startValue\":0,\
             \"endValue\":{total},\"samples\":[",
            if index == 0 { "" } else { "," },
            string(&name)
        )?;
        for (index, (sample, _)) in samples.iter().enumerate() {
            let frames = profile.frames_of(sample.stack).iter().rev();
            let frames: Vec<_> = frames.map(u32::to_string).collect();
            write!(out, "{}[{}]", if index == 0 { "" } else { "," }, frames.join(","))?;
        }
        let weights: Vec<_> = samples.iter().map(|(_, value)| value.to_string()).collect();
        write!(out, "],\"weights\":[{}]}}", weights.join(","))?;
    }
    out.write_all(b"]}\n")
}

/// The value of the label `thread`.
fn thread(profile: &Profile, sample: &Sample) -> Option<i64> {
    let labels = profile.labels_of(sample.labels).iter();
    let mut threads = labels.filter(|(key, _)| profile.text_of(*key) == "thread");
    match threads.next()?.1 {
        LabelValue::Number(thread) => Some(thread),
        LabelValue::Text(_) => None,
    }
}

/// A JSON string.
fn string(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if u32::from(c) < 0x20 => {
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            c => json.push(c),
        }
    }
    json.push('"');
    json
}
