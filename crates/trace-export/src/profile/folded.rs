//! Lines of stacks.

use super::view::{Names, View};
use std::collections::BTreeMap;
use std::io::{self, Write};
use trace_common::folded_name;

/// Samples taken at regular intervals are counted; other events have their weight.
pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut names = Names::default();
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for sample in view.samples() {
        let path = names.path(sample, view);
        let path = path.iter().map(|name| folded_name(names.get(*name)));
        let line = path.collect::<Vec<_>>().join(";");
        let is_counted = view.measure().period > 0;
        let value = if is_counted { sample.count } else { view.profile.value(sample) };
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(value);
    }
    lines.into_iter().try_for_each(|(line, value)| writeln!(out, "{line} {value}"))
}
