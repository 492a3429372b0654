//! The page around the data.

use flate2::{Compression, write::ZlibEncoder};
use std::io::{self, Write};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("app.js");

const DOCUMENT: &str = include_str!("document.html");
const DOCUMENT_STYLE: &str = include_str!("document.css");

/// Writes a page without data. `body` is HTML.
pub(super) fn write_document(
    out: impl Write,
    title: &str,
    summary: &str,
    body: &str,
) -> io::Result<u64> {
    let mut out = Counting { out, bytes: 0 };
    fill(&mut out, DOCUMENT, |name, out| match name {
        "TITLE" => out.write_all(escape(title).as_bytes()),
        "SUMMARY" => out.write_all(escape(summary).as_bytes()),
        "STYLE" => {
            out.write_all(STYLE.as_bytes())?;
            out.write_all(DOCUMENT_STYLE.as_bytes())
        }
        _ => out.write_all(body.as_bytes()),
    })?;
    Ok(out.bytes)
}

/// Writes a template; `part` writes each `{{NAME}}` of it.
fn fill<W: Write>(
    out: &mut W,
    template: &str,
    mut part: impl FnMut(&str, &mut W) -> io::Result<()>,
) -> io::Result<()> {
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        out.write_all(before.as_bytes())?;
        part(name, out)?;
        rest = after;
    }
    out.write_all(rest.as_bytes())?;
    out.flush()
}

/// Writes the page with this title. `data` is compressed and encoded in base64, so that no text of
/// it is seen by the parser of HTML. Returns the bytes written.
pub(super) fn write(out: impl Write, title: &str, data: &[&[u8]]) -> io::Result<u64> {
    let mut out = Counting { out, bytes: 0 };
    fill(&mut out, PAGE, |name, out| match name {
        "TITLE" => out.write_all(escape(title).as_bytes()),
        "STYLE" => out.write_all(STYLE.as_bytes()),
        "SCRIPT" => out.write_all(SCRIPT.as_bytes()),
        _ => {
            let base64 = Base64 { out, left: Vec::new() };
            let mut compressed = ZlibEncoder::new(base64, Compression::new(6));
            for part in data {
                compressed.write_all(part)?;
            }
            compressed.finish()?.finish()
        }
    })?;
    Ok(out.bytes)
}

/// A text within an HTML element.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

struct Counting<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// An encoder of base64.
struct Base64<W> {
    out: W,
    /// Less than three bytes.
    left: Vec<u8>,
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The four digits of three bytes; missing bytes count as zero.
fn digits(three: &[u8]) -> [u8; 4] {
    let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
    let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
    [18, 12, 6, 0].map(|shift| ALPHABET.get((bits >> shift & 63) as usize).copied().unwrap_or(b'='))
}

impl<W: Write> Base64<W> {
    fn finish(mut self) -> io::Result<()> {
        let digits = digits(&self.left);
        let (used, pad): (usize, &[u8]) = match self.left.len() {
            0 => return Ok(()),
            1 => (2, b"=="),
            _ => (3, b"="),
        };
        self.out.write_all(digits.get(..used).unwrap_or_default())?;
        self.out.write_all(pad)
    }
}

impl<W: Write> Write for Base64<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left.extend_from_slice(bytes);
        let mut encoded = Vec::with_capacity(self.left.len() / 3 * 4);
        let chunks = self.left.chunks_exact(3);
        let left = chunks.remainder().to_vec();
        for three in chunks {
            encoded.extend_from_slice(&digits(three));
        }
        self.left = left;
        self.out.write_all(&encoded)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base64(parts: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut encoder = Base64 { out: &mut out, left: Vec::new() };
        for part in parts {
            encoder.write_all(part).unwrap();
        }
        encoder.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (text, encoded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(&[text.as_bytes()]), encoded);
            let parts: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(base64(&parts), encoded);
        }
    }

    #[test]
    fn nothing_of_a_title_or_of_data_is_markup() {
        let mut out = Vec::new();
        let hostile = "</title></script><script>alert(1)</script>";
        let bytes = write(&mut out, hostile, &[hostile.as_bytes()]).unwrap();
        assert_eq!(bytes, out.len() as u64);
        let page = String::from_utf8(out).unwrap();
        assert!(!page.contains("alert(1)</script>"));
        assert_eq!(page.matches("</script>").count(), PAGE.matches("</script>").count());
        assert!(!page.contains("{{"));
    }

    /// Each word of `text::piece` has a colour.
    #[test]
    fn pieces_have_colours() {
        for word in [
            "on_cpu",
            "running",
            "syscall",
            "waits_for_cpu",
            "waits_for_p",
            "not_recorded",
            "blocked",
            "stopped",
            "waits",
            "throttled",
            "queued",
            "unknown",
        ] {
            assert!(SCRIPT.contains(&format!(" {word}: '#")), "{word}");
        }
    }

    /// The page itself names nothing that a browser would load.
    #[test]
    fn the_page_loads_nothing() {
        for part in [PAGE, STYLE, SCRIPT] {
            for word in ["http:", "https:", "src=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
                assert!(!part.contains(word), "{word}");
            }
        }
        for page in [PAGE, DOCUMENT] {
            assert!(page.contains("default-src 'none'") && !page.contains("unsafe"));
        }
        assert!(!SCRIPT.contains("innerHTML") && !SCRIPT.contains("{{"));
        assert!(!SCRIPT.contains("</script"));
    }
}
