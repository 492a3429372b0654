//! Names of addresses in the web page: it has no files of the recorded machine, functions are
//! addresses.

use perf_data::Features;
use trace_timeline::sources::dotnet::DotnetSource;
use trace_timeline::sources::perf::PerfSource;

/// A recording as it is.
pub(crate) fn named(source: PerfSource, _: &Features) -> PerfSource {
    source
}

/// A source of .NET events as it is.
pub(crate) fn with_lines(source: DotnetSource, _: Option<i64>) -> DotnetSource {
    source
}
