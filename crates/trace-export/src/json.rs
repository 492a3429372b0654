//! A writer of JSON.

use std::fmt::Write;

/// A text as a JSON string.
pub(crate) fn text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{2028}' | '\u{2029}' | '\0'..='\x1f' | '\x7f' => {
                let _ = write!(out, "\\u{:04x}", c as u32); // a string does not fail
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A list of items with commas between them.
pub(crate) fn list<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut String, T),
) {
    out.push('[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        each(out, item);
    }
    out.push(']');
}

pub(crate) fn number(out: &mut String, number: impl std::fmt::Display) {
    let _ = write!(out, "{number}"); // a string does not fail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let mut out = String::new();
        text(&mut out, "a\"\\\n\u{2028}é</script>");
        assert_eq!(out, "\"a\\\"\\\\\\u000a\\u2028é</script>\"");
        out.clear();
        list(&mut out, [1, 2], number);
        assert_eq!(out, "[1,2]");
    }
}
