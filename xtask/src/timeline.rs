//! `cargo xtask test-timeline`: checks that kernel, Go and .NET events are on one clock, that
//! reports and critical paths agree with what programs measure themselves, and that Perfetto can
//! read the files.

use crate::{perfetto, runtimes};
use task_support::{Result, cache, lane};

pub(crate) const OPTIONS: &str = "\
[WORD]

  WORD   only the answers about programs whose name contains it: go, report, quota, clock, dotnet, pipe";

pub(crate) fn task(args: &[String]) -> Result {
    let targets = match runtimes::targets() {
        Ok(targets) => targets,
        Err(why) => return lane::skip("the timeline of Go and .NET programs", &why),
    };
    // Programs and recordings are in directories of the cache, until the last check.
    let _lock = cache::lock("go/.timeline.lock", "recordings of Go and .NET programs")?;
    conformance_go::answers::check(&targets, args.first().map_or("", String::as_str))?;
    if !args.is_empty() {
        return Ok(());
    }
    let recorded = conformance_go::timeline::record()?;
    let names: Vec<String> = recorded.iter().map(|p| p.to_string_lossy().into_owned()).collect();
    perfetto::lint(&names)
}
