//! Expected texts that are committed as files.

use std::path::Path;

/// Compares `text` with the committed file at `path`, line by line.
///
/// `cargo xtask update-golden` writes the file instead (it sets `UPDATE_GOLDEN`).
///
/// # Panics
/// At the first line that differs.
#[track_caller]
pub fn check(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, text).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap();
    for (number, (line, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(line, expected, "line {} of {}", number + 1, path.display());
    }
    assert_eq!(text.len(), expected.len(), "the length of {}", path.display());
}
