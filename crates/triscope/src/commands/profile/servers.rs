//! Servers with debug information.

use crate::failure::{Failure, OneLine, Result};
use trace_symbols::Debuginfod;

/// The servers of the environment.
pub(super) fn of_environment() -> Result<Debuginfod> {
    let servers = Debuginfod::from_env().ok_or_else(|| {
        Failure::new("--debuginfod: DEBUGINFOD_URLS is empty: set it to the URLs of servers")
    })?;
    // The files that another program has fetched from them are used, and the others count as not fetched.
    for url in servers.urls.iter().filter(|url| !url.starts_with("http://")) {
        message!(
            "triscope: {}: not asked: --debuginfod speaks http:// only; debuginfod-find debuginfo BUILDID \
             fetches from it into the directory that is read, or use a proxy",
            OneLine(url)
        );
    }
    Ok(servers)
}

/// Says how many files could not be fetched.
pub(super) fn report(servers: &Debuginfod) {
    if servers.failures() > 0 {
        let count = crate::timeline::counted(servers.failures(), "file");
        message!("triscope: the debug information of {count} could not be fetched");
    }
}
