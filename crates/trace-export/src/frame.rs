//! Names of frames without a function.

use std::borrow::Cow;

/// The file at `path` without its directory, and a position in it, as far as they are known.
pub(crate) fn place(path: &str, address: u64) -> Cow<'static, str> {
    match module(path) {
        "" if address == 0 => "[unknown]".into(),
        "" => format!("{address:#x}").into(),
        module => format!("{module}+{address:#x}").into(),
    }
}

/// The name of a file without its directory.
pub(crate) fn module(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or_default()
}
