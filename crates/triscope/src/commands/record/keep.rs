//! The raw sources of a recording, for `triscope report` and `triscope explain`.

use crate::failure::{Failure, Result};
use crate::sources::model::{RECORDING, SCHEDULER};
use crate::sources::processes::ProcessWriter;
use crate::sources::quota::QuotaWriter;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The directory.
pub(super) struct Keep {
    dir: PathBuf,
}

impl Keep {
    /// Creates the directory. An existing one must be empty.
    pub(super) fn create(dir: &Path) -> Result<Self> {
        let fail = |error| Failure::about(dir.display(), error);
        fs::create_dir_all(dir).map_err(fail)?;
        if fs::read_dir(dir).map_err(fail)?.next().is_some() {
            return Err(Failure::about(dir.display(), "the directory is not empty"));
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// Names the process that was recorded, for [`RECORDING`].
    pub(super) fn describe(&self, pid: u32, command: &str) -> Result {
        let path = self.dir.join(RECORDING);
        let text = format!("{:#}\n", serde_json::json!({ "pid": pid, "command": command }));
        fs::write(&path, text).map_err(|error| Failure::about(path.display(), error))
    }

    /// The file of the scheduler's records.
    pub(super) fn scheduler(&self) -> PathBuf {
        self.dir.join(SCHEDULER)
    }

    /// Starts the file of the CPU quotas.
    pub(super) fn quotas(&self) -> Result<QuotaWriter> {
        QuotaWriter::create(&self.dir).map_err(|error| Failure::about(self.dir.display(), error))
    }

    /// Starts the file of the processes.
    pub(super) fn processes(&self) -> Result<ProcessWriter> {
        ProcessWriter::create(&self.dir).map_err(|error| Failure::about(self.dir.display(), error))
    }

    /// Copies the Go trace of a process.
    pub(super) fn go(&self, pid: u32, trace: &Path) -> Result {
        let to = self.dir.join(format!("go-{pid}.trace"));
        let copied = fs::copy(trace, &to).map_err(|error| Failure::about(to.display(), error));
        copied.map(drop)
    }

    /// Copies the trace of a .NET process.
    pub(super) fn dotnet(&self, pid: u32, mut trace: &File) -> Result {
        let to = self.dir.join(format!("dotnet-{pid}.nettrace"));
        let mut copy = || -> io::Result<()> {
            trace.seek(SeekFrom::Start(0))?;
            io::copy(&mut trace, &mut File::create(&to)?)?;
            Ok(())
        };
        copy().map_err(|error| Failure::about(to.display(), error))
    }
}
