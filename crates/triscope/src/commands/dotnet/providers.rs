//! The providers that commands enable in a process.

use diag_ipc::{Level, Provider};

pub(crate) const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";

/// Keywords of the runtime's provider.
pub(crate) mod keywords {
    pub(crate) const GC: u64 = 0x1;
    pub(crate) const LOADER: u64 = 0x8;
    pub(crate) const JIT: u64 = 0x10;
    pub(crate) const CONTENTION: u64 = 0x4000;
    /// `JittedMethodILToNativeMap`, for lines. The rundown has it, too.
    pub(crate) const IL_MAPS: u64 = 0x2_0000;
    pub(crate) const EXCEPTION: u64 = 0x8000;
    pub(crate) const THREADING: u64 = 0x1_0000;
    pub(crate) const TYPE: u64 = 0x8_0000;
    pub(crate) const GC_HEAP_DUMP: u64 = 0x10_0000;
    pub(crate) const GC_HEAP_COLLECT: u64 = 0x80_0000;
    pub(crate) const GC_HEAP_AND_TYPE_NAMES: u64 = 0x100_0000;
    /// The names and lines of methods.
    pub(crate) const NAMES: u64 = LOADER | JIT | IL_MAPS;
}

/// The runtime's events of GCs, exceptions, lock waits and threads.
pub(crate) fn runtime_default() -> Provider {
    use keywords::{CONTENTION, EXCEPTION, GC, THREADING};
    Provider::new(RUNTIME)
        .keywords(GC | CONTENTION | EXCEPTION | THREADING)
        .level(Level::Informational)
}

/// Stacks of all managed threads, about every millisecond, and the events to resolve them.
pub(crate) fn samples() -> [Provider; 2] {
    [
        Provider::new("Microsoft-DotNETCore-SampleProfiler").level(Level::Informational),
        Provider::new(RUNTIME).keywords(keywords::NAMES).level(Level::Verbose),
    ]
}

/// GCs and suspensions.
pub(crate) fn gc() -> Provider {
    Provider::new(RUNTIME).keywords(keywords::GC).level(Level::Informational)
}

/// One heap dump when the session starts.
pub(crate) fn heap_walk() -> Provider {
    use keywords::{GC, GC_HEAP_AND_TYPE_NAMES, GC_HEAP_COLLECT, GC_HEAP_DUMP, TYPE};
    Provider::new(RUNTIME)
        .keywords(GC | GC_HEAP_DUMP | GC_HEAP_COLLECT | GC_HEAP_AND_TYPE_NAMES | TYPE)
        .level(Level::Verbose)
}
