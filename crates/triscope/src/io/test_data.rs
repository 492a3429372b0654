//! Traces of the repository, for unit tests. The package does not have them.

/// The trace of the Go demo.
pub(crate) const SHOP: &str = "gotrace/tests/data/shop.trace";

/// A file below `crates/` of the repository. `None` outside of it: the test is skipped, and that is
/// reported.
pub(crate) fn of_repository(path: &str) -> Option<Vec<u8>> {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let file = format!("{crates}/{path}");
    match std::fs::read(&file) {
        Ok(bytes) => Some(bytes),
        // In the repository it is there.
        Err(error) if std::path::Path::new(crates).join("testkit/Cargo.toml").exists() => {
            panic!("{file}: {error}")
        }
        Err(error) => {
            message!("\n==== SKIPPED: {file}: {error}");
            None
        }
    }
}
