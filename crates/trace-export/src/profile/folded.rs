//! Lines of stacks.

use super::view::{Names, View};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Samples taken at regular intervals are counted; other events have their weight.
pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut names = Names::default();
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for sample in view.samples() {
        let path = names.path(sample, view);
        let path = path.iter().map(|name| escaped(names.get(*name)));
        let line = path.collect::<Vec<_>>().join(";");
        let is_counted = view.measure().period > 0;
        let value = if is_counted { sample.count } else { view.profile.value(sample) };
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(value);
    }
    lines.into_iter().try_for_each(|(line, value)| writeln!(out, "{line} {value}"))
}

/// A name without the separators of the format, and without what a terminal would obey.
pub(super) fn escaped(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            ';' => escaped.push(':'),
            '\n' => escaped.push(' '),
            c if c.is_control() => escaped.extend(c.escape_default()),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn names_have_no_separators_and_no_control_characters() {
        assert_eq!(escaped("a;b c<d>\né"), "a:b c<d> é");
        let hostile = "\x1b]0;title\x07\t\r\x7f\u{9b}2J";
        assert_eq!(escaped(hostile), "\\u{1b}]0:title\\u{7}\\t\\r\\u{7f}\\u{9b}2J");
    }
}
