//! Lines of stacks.

use super::Profile;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Samples taken at regular intervals are counted; other events have their weight.
pub(super) fn write(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for sample in &profile.samples {
        let frames = profile.frames_of(sample.stack).iter().rev();
        let names: Vec<_> = frames.map(|frame| profile.name_of(*frame).replace(';', ":")).collect();
        let value = if profile.measure.period > 0 { sample.count } else { profile.value(sample) };
        *lines.entry(names.join(";")).or_default() += value;
    }
    lines.into_iter().try_for_each(|(line, value)| writeln!(out, "{line} {value}"))
}
