//! Servers with debug information.

use crate::failure::{Failure, OneLine, Result};
use trace_symbols::Debuginfod;

/// The servers of the environment.
pub(super) fn of_environment() -> Result<Debuginfod> {
    let servers = Debuginfod::from_env().ok_or_else(|| {
        Failure::new("--debuginfod: DEBUGINFOD_URLS is empty: set it to the URLs of servers")
    })?;
    match servers.urls.iter().find(|url| !url.starts_with("http://")) {
        None => Ok(servers),
        Some(url) => Err(Failure::about(OneLine(url), "--debuginfod speaks http:// only").and(
            "debuginfod-find debuginfo BUILDID fetches from other servers into the directory that is \
             read, or use a proxy",
        )),
    }
}

/// Says how many files could not be fetched.
pub(super) fn report(servers: &Debuginfod) {
    if servers.failures() > 0 {
        let count = crate::timeline::counted(servers.failures(), "file");
        message!("triscope: the debug information of {count} could not be fetched");
    }
}
