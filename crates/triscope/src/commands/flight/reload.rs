//! The thread that reads the configuration again.

use super::{Settings, config, threads};
use crate::failure::{Failure, Result};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::path::PathBuf;

/// Reads a file of settings again and again. Its thread keeps what that needs: the file can be readable for its user
/// alone, and below a directory that only this user may enter.
pub(super) struct Reader {
    ask: Sender<Sender<Result<Settings>>>,
}

impl Reader {
    /// Starts the thread. `privileges` drops the privileges that it does not need.
    pub(super) fn start(path: PathBuf, privileges: impl FnOnce() + Send + 'static) -> Result<Self> {
        let (ask, asked): (_, Receiver<Sender<Result<Settings>>>) = unbounded();
        threads::start("the configuration", move || {
            privileges();
            for reply in asked {
                let _ = reply.send(config::read(&path)); // who asked may have gone
            }
        })?;
        Ok(Self { ask })
    }

    /// Reads the file.
    pub(super) fn read(&self) -> Result<Settings> {
        let (reply, settings) = bounded(1);
        let failed = || Failure::new("the thread that reads the configuration has failed");
        self.ask.send(reply).map_err(|_| failed())?;
        settings.recv().map_err(|_| failed())?
    }
}
