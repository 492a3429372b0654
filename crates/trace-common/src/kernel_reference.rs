//! Where a kernel was in memory.

/// A symbol of a kernel and its address, from which addresses of one boot are converted to those of another:
/// the kernel and its modules are loaded at other addresses after each boot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelReference {
    /// The name of the symbol, such as `_text`; `[NAME]` for the start of a module.
    pub symbol: Box<str>,
    /// Its address in memory.
    pub address: u64,
}
