/// The name of a frame in a line of the folded format of flame graph tools (`outer;inner 3`): without the
/// separators of the format, and without what a terminal would obey.
///
/// ```
/// assert_eq!(trace_common::folded_name("a;b\nc"), "a:b c");
/// ```
pub fn folded_name(name: &str) -> String {
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
    use super::folded_name;

    #[test]
    fn names_have_no_separators_and_no_control_characters() {
        assert_eq!(folded_name("a;b c<d>\né"), "a:b c<d> é");
        let hostile = "\x1b]0;title\x07\t\r\x7f\u{9b}2J";
        assert_eq!(folded_name(hostile), "\\u{1b}]0:title\\u{7}\\t\\r\\u{7f}\\u{9b}2J");
    }
}
