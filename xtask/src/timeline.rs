//! `cargo xtask test-timeline`: kernel and Go events of one program, on one clock and in files that
//! Perfetto reads.

use crate::perfetto;
use task_support::Result;

pub(crate) fn task(_: &[String]) -> Result {
    let recorded = conformance_go::timeline::record()?;
    let names: Vec<String> = recorded.iter().map(|p| p.to_string_lossy().into_owned()).collect();
    perfetto::lint(&names)
}
