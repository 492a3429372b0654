//! Names that are written for each of many tracks are cut: a trace has a name once.

use std::borrow::Cow;

/// Bytes of the name of a track.
pub(crate) const NAME: usize = 200;

/// The end of a text that is cut.
pub(crate) const MARK: char = '…';

/// A text, with U+FFFD for bytes that are not UTF-8. Of one that is longer than `max` bytes, it is the begin and an
/// ellipsis.
pub(crate) fn text(text: &[u8], max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return String::from_utf8_lossy(text);
    }
    // The bytes of a character after its first one, three at most, begin with the bits 10.
    let is_begin = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0xc0 != 0x80);
    let end = (max.saturating_sub(3)..=max).rev().find(is_begin).unwrap_or(max);
    let begin = String::from_utf8_lossy(text.get(..end).unwrap_or_default());
    Cow::Owned(format!("{begin}{MARK}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_end_with_an_ellipsis_after_a_character() {
        assert_eq!(text("aé".as_bytes(), 3), "aé");
        assert_eq!(text("aéb".as_bytes(), 3), "aé…");
        assert_eq!(text("aéb".as_bytes(), 2), "a…");
        assert_eq!(text("é😀😀".as_bytes(), 5), "é…");
        assert_eq!(text(b"\x80\x80\x80\x80\x80", 4), "\u{fffd}\u{fffd}\u{fffd}\u{fffd}…");
        assert_eq!(text(b"a\xff", 2), "a\u{fffd}");
        // A name that is cut already stays as it is.
        let cut = text("aé".repeat(100).as_bytes(), NAME).into_owned();
        assert_eq!(text(cut.as_bytes(), NAME), cut);
    }
}
