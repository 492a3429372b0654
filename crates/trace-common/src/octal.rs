//! Octal escapes in the text files of the kernel.

use std::borrow::Cow;

/// Undoes the escapes that the kernel writes for characters which separate the fields and lines of its text
/// files: a backslash and three octal digits.
///
/// A file has some characters as escapes and others as they are. `/proc/PID/maps` has a newline as `\012`, but a
/// backslash as itself: `\040` is no space there. `is_escaped` says which bytes are escapes. Escapes of others,
/// and what is no escape, stay.
///
/// Source: `proc_pid_maps(5)`, `proc_pid_mountinfo(5)`.
///
/// ```
/// use trace_common::unescape_octal;
///
/// assert_eq!(*unescape_octal(br"/a\040b\012c", |_| true), *b"/a b\nc");
/// assert_eq!(*unescape_octal(br"/a\040b\012c", |byte| byte == b'\n'), *b"/a\\040b\nc");
/// ```
pub fn unescape_octal(text: &[u8], is_escaped: impl Fn(u8) -> bool) -> Cow<'_, [u8]> {
    if !text.contains(&b'\\') {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let byte = if *first == b'\\' { code(after) } else { None };
        rest = match byte.filter(|byte| is_escaped(*byte)) {
            Some(byte) => {
                out.push(byte);
                after.get(3..).unwrap_or_default()
            }
            None => {
                out.push(*first);
                after
            }
        };
    }
    Cow::Owned(out)
}

/// The byte whose three octal digits a text begins with.
fn code(text: &[u8]) -> Option<u8> {
    // `from_str_radix` takes a sign, too.
    let digits = text.get(..3).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_that_are_none_are_text() {
        let all = |text| unescape_octal(text, |_| true).into_owned();
        assert_eq!(all(b"/a\\0409\\"), b"/a 9\\");
        assert_eq!(all(b"/\\777"), b"/\\777");
        assert_eq!(all(b"/\\+12\\04"), b"/\\+12\\04");
        assert_eq!(all(b"/\\134012\\377\xff"), b"/\\012\xff\xff");
    }

    #[test]
    fn bytes_that_the_file_has_as_they_are_stay() {
        let lines = |text| unescape_octal(text, |byte| byte == b'\n').into_owned();
        assert_eq!(lines(b"/a\\012b\\040\\134"), b"/a\nb\\040\\134");
    }
}
