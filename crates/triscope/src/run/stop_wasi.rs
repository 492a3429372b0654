//! Signals that stop the program: WASI has none. The host ends the program.

/// A listener that is never called.
pub(crate) struct Listener;

impl Listener {
    /// Exits on the first signal.
    #[expect(clippy::unnecessary_wraps, reason = "as with signals")]
    pub(crate) const fn exit() -> Option<Self> {
        Some(Self)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {}
}
