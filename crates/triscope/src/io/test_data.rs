//! Traces of the repository, for unit tests. The package does not have them.

/// Names the folder `crates` of the repository for tests of a package that was unpacked elsewhere.
const VARIABLE: &str = "TRISCOPE_TEST_CRATES";

/// The trace of the Go demo.
pub(crate) const SHOP: &str = "gotrace/tests/data/shop.trace";

/// A file below `crates/` of the repository. `None` outside of it: the test is skipped, and that is
/// reported.
pub(crate) fn of_repository(path: &str) -> Option<Vec<u8>> {
    let crates = std::env::var_os(VARIABLE).map_or_else(
        || concat!(env!("CARGO_MANIFEST_DIR"), "/..").into(),
        std::path::PathBuf::from,
    );
    let file = crates.join(path);
    match std::fs::read(&file) {
        Ok(bytes) => Some(bytes),
        // In the repository it is there.
        Err(error) if crates.join("testkit/Cargo.toml").exists() => {
            panic!("{}: {error}", file.display())
        }
        Err(error) => {
            message!("\n==== SKIPPED: {}: {error}", file.display());
            None
        }
    }
}
