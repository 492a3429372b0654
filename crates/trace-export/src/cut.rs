//! Names that are written for each of many tracks are cut: a trace has a name once.

use std::borrow::Cow;

/// Bytes of the name of a track.
pub(crate) const NAME: usize = 200;

/// Stands for what is cut off.
pub(crate) const MARK: char = '…';

/// A text, with U+FFFD for bytes that are not UTF-8. Of one that is longer than `max` bytes, it is the begin and an
/// ellipsis.
pub(crate) fn text(text: &[u8], max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return String::from_utf8_lossy(text);
    }
    let end = (max.saturating_sub(3)..=max).rev().find(|at| is_begin(text, *at)).unwrap_or(max);
    let begin = String::from_utf8_lossy(text.get(..end).unwrap_or_default());
    Cow::Owned(format!("{begin}{MARK}"))
}

/// As [`text`], with the end, too: of a text that is longer than `max` bytes, what is in the middle is cut out.
#[cfg(any(feature = "html", test))]
pub(crate) fn middle(name: &[u8], max: usize) -> Cow<'_, str> {
    if name.len() <= max {
        return String::from_utf8_lossy(name);
    }
    let from = name.len() - max / 2;
    let from = (from..=from + 3).find(|at| is_begin(name, *at)).unwrap_or(from);
    let end = String::from_utf8_lossy(name.get(from..).unwrap_or_default());
    Cow::Owned(text(name, max - max / 2).into_owned() + &end)
}

/// Whether there is the first byte of a character. Those after it, three at most, begin with the bits 10.
fn is_begin(text: &[u8], at: usize) -> bool {
    text.get(at).is_some_and(|byte| byte & 0xc0 != 0x80)
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

    #[test]
    fn the_middle_of_long_texts_is_an_ellipsis_between_characters() {
        assert_eq!(middle("aébc".as_bytes(), 5), "aébc");
        assert_eq!(middle("abcdefg".as_bytes(), 4), "ab…fg");
        assert_eq!(middle("abcdefg".as_bytes(), 5), "abc…fg");
        assert_eq!(middle("aé—éb".as_bytes(), 4), "a…b");
        assert_eq!(middle("é😀😀é".as_bytes(), 8), "é…é");
        assert_eq!(middle(b"\x80\x80\x80\x80\x80", 2), "\u{fffd}…\u{fffd}");
    }
}
