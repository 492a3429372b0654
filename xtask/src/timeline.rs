//! `cargo xtask test-timeline`: checks that kernel and Go events of one program are on one clock,
//! in files that Perfetto can read.

use crate::perfetto;
use task_support::Result;

pub(crate) fn task(_: &[String]) -> Result {
    conformance_go::answers::check()?;
    let recorded = conformance_go::timeline::record()?;
    let names: Vec<String> = recorded.iter().map(|p| p.to_string_lossy().into_owned()).collect();
    perfetto::lint(&names)
}
