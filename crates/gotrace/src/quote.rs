//! String literals as Go's `strconv` writes and reads them.
//!
//! Go strings are bytes, and so are these. Printability follows the tables of the Go release named
//! in `printable.rs` and not those of the Rust compiler, which differ between releases.

use crate::printable::CHANGES;

/// Bytes that are not escaped between double quotes: printable ASCII except `"` and `\`.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = b' ';
    while byte < 0x7f {
        #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
        let place = &mut plain[byte as usize];
        *place = byte != b'"' && byte != b'\\';
        byte += 1;
    }
    plain
};

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends `text` in double quotes, as `strconv.AppendQuote` and the verb `%q` do.
pub(crate) fn append_quoted(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    append_escaped(text, out);
    out.push(b'"');
}

/// Appends `text` as it is written between double quotes.
pub(crate) fn append_escaped(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    loop {
        let is_escaped = |b: &u8| PLAIN.get(usize::from(*b)) != Some(&true);
        let plain = rest.iter().position(is_escaped).unwrap_or(rest.len());
        let (before, escaped) = rest.split_at(plain);
        out.extend_from_slice(before);
        let Some((&first, after)) = escaped.split_first() else { break };
        rest = if first < 0x80 {
            append_escaped_ascii(first, out);
            after
        } else {
            let (c, len) = bstr::decode_utf8(escaped);
            // The length is at most that of the text.
            let (sequence, following) = escaped.split_at(len);
            match c {
                Some(c) if is_printable(c) => {
                    out.extend_from_slice(sequence);
                    following
                }
                Some(c) => {
                    let (prefix, digits) = if c < '\u{10000}' { (b'u', 4) } else { (b'U', 8) };
                    append_hex(prefix, u32::from(c), digits, out);
                    following
                }
                // Each byte of an invalid UTF-8 sequence is escaped separately.
                None => {
                    append_hex(b'x', first.into(), 2, out);
                    after
                }
            }
        };
    }
}

fn append_escaped_ascii(byte: u8, out: &mut Vec<u8>) {
    let letter = match byte {
        b'"' | b'\\' => byte,
        0x07 => b'a',
        0x08 => b'b',
        0x0c => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x0b => b'v',
        _ => return append_hex(b'x', byte.into(), 2, out),
    };
    out.extend_from_slice(&[b'\\', letter]);
}

fn append_hex(prefix: u8, value: u32, digits: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b'\\', prefix]);
    for digit in (0..digits).rev() {
        let nibble = (value >> (4 * digit) & 0xf) as usize;
        out.extend(HEX.get(nibble)); // always one of the sixteen
    }
}

/// Equivalent of `strconv.IsPrint`.
fn is_printable(c: char) -> bool {
    CHANGES.partition_point(|&change| change <= u32::from(c)) % 2 == 1
}

/// Appends the value of the literal `text`, as `strconv.Unquote` reads it: interpreted (`"…"`), raw
/// (`` `…` ``), or one character (`'…'`). Returns `None` if it is not a literal; then `out` may
/// contain a part of it.
pub(crate) fn unquote(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (&quote, rest) = text.split_first()?;
    let (&last, body) = rest.split_last()?;
    if last != quote {
        return None;
    }
    match quote {
        b'`' => {
            // Carriage returns are removed from raw literals.
            out.extend(body.iter().filter(|&&b| b != b'\r'));
            (!body.contains(&b'`')).then_some(())
        }
        b'"' => {
            let mut rest = body;
            while !rest.is_empty() {
                rest = unquote_char(rest, quote, out)?;
            }
            Some(())
        }
        b'\'' if body.is_empty() => Some(()),
        b'\'' => unquote_char(body, quote, out)?.is_empty().then_some(()),
        _ => None,
    }
}

/// Appends the first character or escape of `text` and returns what follows it.
fn unquote_char<'a>(text: &'a [u8], quote: u8, out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (&first, rest) = text.split_first()?;
    if first == quote || first == b'\n' {
        return None;
    }
    if first >= 0x80 {
        let (c, len) = bstr::decode_utf8(text);
        return match c {
            Some(_) => {
                let (sequence, following) = text.split_at(len); // at most the whole text
                out.extend_from_slice(sequence);
                Some(following)
            }
            // Each byte that is not valid UTF-8 becomes U+FFFD.
            None => {
                out.extend_from_slice("\u{fffd}".as_bytes());
                Some(rest)
            }
        };
    }
    if first != b'\\' {
        out.push(first);
        return Some(rest);
    }
    let (&escape, rest) = rest.split_first()?;
    let byte = match escape {
        b'a' => 0x07,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0b,
        b'\\' => b'\\',
        b'\'' | b'"' if escape == quote => escape,
        b'x' => {
            let (value, rest) = digits(rest, 2, 16)?;
            out.push(value as u8);
            return Some(rest);
        }
        b'0'..=b'7' => {
            let (value, rest) = digits(text.get(1..)?, 3, 8)?;
            out.push(u8::try_from(value).ok()?);
            return Some(rest);
        }
        b'u' | b'U' => {
            let (value, rest) = digits(rest, if escape == b'u' { 4 } else { 8 }, 16)?;
            let c = char::from_u32(value)?;
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(rest);
        }
        _ => return None,
    };
    out.push(byte);
    Some(rest)
}

/// Parses the first `n` digits of `text`; returns the number and the rest of the text.
fn digits(text: &[u8], n: usize, radix: u32) -> Option<(u32, &[u8])> {
    let (head, rest) = text.split_at_checked(n)?;
    let value = head.iter().try_fold(0u32, |value, &byte| {
        Some(value.checked_mul(radix)? + char::from(byte).to_digit(radix)?)
    })?;
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printable::QUOTED_HASH;
    use proptest::prelude::*;

    fn quoted(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        append_quoted(text, &mut out);
        out
    }

    fn unquoted(text: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        unquote(text, &mut out).map(|()| out)
    }

    #[test]
    fn every_code_point_is_quoted_as_go_does() {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for c in '\0'..=char::MAX {
            for byte in quoted(c.encode_utf8(&mut [0; 4]).as_bytes()) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        assert_eq!(hash, QUOTED_HASH);
    }

    #[test]
    fn invalid_utf8_is_quoted_byte_by_byte() {
        let text = b"a\xff\xe2\x82z\xe2\x82\xac \xed\xa0\x80\x00\x7f\"\\\x1b";
        let expected = r#""a\xff\xe2\x82z€ \xed\xa0\x80\x00\x7f\"\\\x1b""#;
        assert_eq!(quoted(text), expected.as_bytes());
    }

    #[test]
    fn literals_are_read_as_go_does() {
        // The results of strconv.Unquote of Go 1.27.3.
        for (literal, value) in [
            (&br#""""#[..], Some(&b""[..])),
            (b"``", Some(b"")),
            (b"''", Some(b"")),
            (b"`a\r\\n\nb`", Some(b"a\\n\nb")),
            (b"`a`b`", None),
            (b"\"a\nb\"", None),
            (br#""a"b""#, None),
            (br#""\a\b\f\n\r\t\v\\\"""#, Some(b"\x07\x08\x0c\n\r\t\x0b\\\"")),
            (br#""\'""#, None),
            (br#"'\''"#, Some(b"'")),
            (br#"'"'"#, Some(b"\"")),
            (br#"'ab'"#, None),
            (b"'\xc3\xa9'", Some("é".as_bytes())),
            (br#""\x00\xfF\101\377""#, Some(b"\x00\xff\x41\xff")),
            (br#""\400""#, None),
            (br#""\08""#, None),
            (br#""\xf""#, None),
            (br#""\x+1""#, None),
            (br#""\u20ac\U0001F600""#, Some("€😀".as_bytes())),
            (br#""\ud800""#, None),
            (br#""\U00110000""#, None),
            (br#""\UFFFFFFFFF""#, None),
            (b"\"\xff\xe2\x82z\"", Some("\u{fffd}\u{fffd}\u{fffd}z".as_bytes())),
            (br#""\"#, None),
            (br#""\""#, None),
            (br#"""#, None),
            (b"", None),
            (b"a", None),
            (b"abc", None),
            (br#""a'"#, None),
        ] {
            assert_eq!(unquoted(literal).as_deref(), value, "{:?}", bstr::BStr::new(literal));
        }
    }

    proptest! {
        #[test]
        fn quoting_loses_nothing(text: Vec<u8>, string: String) {
            prop_assert_eq!(unquoted(&quoted(&text)), Some(text));
            prop_assert_eq!(unquoted(&quoted(string.as_bytes())), Some(string.into_bytes()));
        }

        #[test]
        fn any_text_is_read_or_refused(text: Vec<u8>, quote in "[\"'`]") {
            let mut literal = quote.clone().into_bytes();
            literal.extend(text);
            literal.extend(quote.bytes());
            let _ = unquoted(&literal);
        }
    }
}
