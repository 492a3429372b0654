//! The terminal that is standard output: its size, and lines that fit into it.

use ratatui::text::Span;
use std::io::IsTerminal as _;

/// The size of a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// The size of the terminal, if standard output is one. Serial lines have no size.
pub(crate) fn size() -> Option<Size> {
    let stdout = std::io::stdout();
    let size = rustix::termios::tcgetwinsize(&stdout).ok().filter(|_| stdout.is_terminal())?;
    let size = Size { columns: size.ws_col.into(), rows: size.ws_row.into() };
    Some(size).filter(|size| size.columns > 0 && size.rows > 0)
}

/// The columns of a text without control characters. Some characters have two columns, others none.
pub(crate) fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// The beginning of a line that fits into this number of columns.
pub(crate) fn cut(line: &str, limit: usize) -> &str {
    let mut used = 0;
    for (at, c) in line.char_indices() {
        used += columns(c.encode_utf8(&mut [0; 4]));
        if used > limit {
            return line.get(..at).unwrap_or_default();
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_columns() {
        assert_eq!(
            (cut("abc", 3), cut("abc", 2), cut("abc", 0), cut("", 0)),
            ("abc", "ab", "", "")
        );
        // Two columns each; e and an accent in one column.
        assert_eq!((columns("時間"), cut("時間", 4), cut("時間", 3)), (4, "時間", "時"));
        assert_eq!(cut("e\u{301}x", 1), "e\u{301}");
    }
}
