//! Outputs that are symbolic links: there are none.

use super::output_file::Kind;
use std::fs::Metadata;
use std::path::Path;

/// How a regular file that is there is written.
pub(super) fn kind_of(path: &Path, _: &Metadata) -> Kind {
    Kind::of_path(path.to_owned())
}
