//! The file format of speedscope: <https://www.speedscope.app/file-format-schema.json>.

use crate::failure::{Failure, Result};
use serde_json::Value;
use trace_export::profile::{LabelSet, Measure, Profile, ReadLimits, Unit};
use trace_timeline::{Frame, Tables, TextId};

/// A parsed file takes about ten times as much memory.
const MAX_BYTES: usize = 64 << 20;

fn list<'a>(value: &'a Value, key: &str) -> Option<&'a [Value]> {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice)
}

/// Reads the samples of all profiles of a file, which have one unit.
pub(super) fn read(data: &[u8], limits: &ReadLimits, tables: &mut Tables) -> Result<Profile> {
    if data.len() > MAX_BYTES {
        return Err(Failure::new(format_args!("more than {MAX_BYTES} bytes")));
    }
    let file: Value = serde_json::from_slice(data).map_err(Failure::new)?;
    let frames = file.get("shared").and_then(|shared| list(shared, "frames"));
    let (Some(frames), Some(profiles)) = (frames, list(&file, "profiles")) else {
        return Err(Failure::new("is JSON, but no file of speedscope"));
    };
    let frames: Vec<Frame> = frames.iter().map(|value| frame(value, tables)).collect();
    let mut read: Option<(Unit, Profile)> = None;
    let mut all_frames = 0;
    for profile in profiles {
        let text = |key| profile.get(key).and_then(Value::as_str).unwrap_or_default();
        if text("type") != "sampled" {
            let kind = text("type");
            let what = format!("profiles of the type {kind:?} are not read, only \"sampled\" ones");
            return Err(Failure::new(what));
        }
        let (unit, scale) = unit(text("unit"))?;
        let (first, sum) = read.get_or_insert_with(|| (unit, Profile::new(measure(unit))));
        if *first != unit {
            return Err(Failure::new("the profiles have different units"));
        }
        let rows = |key| list(profile, key).unwrap_or_default();
        let (stacks, weights) = (rows("samples"), rows("weights"));
        if stacks.len() != weights.len() {
            let what = format!("{} samples with {} weights", stacks.len(), weights.len());
            return Err(Failure::new(what));
        }
        for (stack, weight) in stacks.iter().zip(weights) {
            let indexes = stack.as_array().map_or(&[][..], Vec::as_slice);
            all_frames += indexes.len();
            if indexes.len() > limits.depth || all_frames > limits.frames {
                return Err(Failure::new("has too many frames"));
            }
            let frame = |index: &Value| {
                let index = usize::try_from(index.as_u64()?).ok()?;
                frames.get(index).copied()
            };
            // Outermost first.
            let path: Option<Vec<Frame>> = indexes.iter().rev().map(frame).collect();
            let path = path.ok_or(Failure::new("a sample has a frame that does not exist"))?;
            let weight = weight.as_f64().filter(|weight| *weight >= 0.0);
            let weight = weight.ok_or(Failure::new("a weight is no positive number"))?;
            let weight = (weight * scale).round() as u64;
            let count = if unit == Unit::Count { weight } else { 1 };
            sum.add(tables.stack(&path), LabelSet::default(), count, weight);
        }
    }
    read.map(|(_, profile)| profile).ok_or(Failure::new("the file has no profiles"))
}

fn frame(value: &Value, tables: &mut Tables) -> Frame {
    let text = |key| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut text_id = |text: &str| -> TextId { tables.text(text.as_bytes()) };
    let (function, file) = (text_id(text("name")), text_id(text("file")));
    let line = value.get("line").and_then(Value::as_u64).and_then(|line| line.try_into().ok());
    Frame { function, file, line: line.unwrap_or(0), ..Frame::default() }
}

/// A unit and the factor of its weights.
fn unit(name: &str) -> Result<(Unit, f64)> {
    Ok(match name {
        "none" => (Unit::Count, 1.0),
        "bytes" => (Unit::Bytes, 1.0),
        "nanoseconds" => (Unit::Nanoseconds, 1.0),
        "microseconds" => (Unit::Nanoseconds, 1e3),
        "milliseconds" => (Unit::Nanoseconds, 1e6),
        "seconds" => (Unit::Nanoseconds, 1e9),
        name => return Err(Failure::new(format_args!("the unit {name:?} is not known"))),
    })
}

fn measure(unit: Unit) -> Measure {
    let (events, weight) = match unit {
        Unit::Count => ("counts", "counts"),
        // A profile of type "sampled" can have one entry for all samples of a stack.
        unit => ("stacks", unit.name()),
    };
    Measure { events: events.into(), weight: weight.into(), unit, period: 0 }
}
