//! Names of addresses in the web page: it has no files of the recorded machine, functions are
//! addresses.

use perf_data::Features;
use trace_timeline::sources::dotnet::DotnetSource;
use trace_timeline::sources::perf::PerfSource;

/// Frames without a function: all, without a reason.
pub(crate) struct Problems;

impl Problems {
    #[expect(clippy::unused_self, reason = "as of other systems")]
    pub(crate) const fn print(&self) {}
}

/// A recording as it is.
pub(crate) const fn named(source: PerfSource, _: &Features, _: bool) -> (PerfSource, Problems) {
    (source, Problems)
}

/// A source of .NET events as it is.
pub(crate) fn with_lines(source: DotnetSource, _: Option<u32>) -> DotnetSource {
    source
}
