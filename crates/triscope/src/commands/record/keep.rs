//! The raw sources of a recording, for `triscope report` and `triscope explain`.

use super::sched::TRACEPOINTS;
use crate::failure::{Failure, Result};
use crate::sources::model::RECORDING;
use perf_data::{
    Error, Features, FileWriter, RecordWriter, RecordedEvent, Synthesizer, TracingData,
};
use perf_monitor::{RawRecord, RingSet, SetEvent, Tracefs};
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom};
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
        self.dir.join("kernel.perf.data")
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

/// The scheduler's records, written to a `perf.data` file as they are drawn.
pub(super) struct RawScheduler {
    writer: FileWriter<BufWriter<File>>,
    tracing: TracingData,
}

impl RawScheduler {
    /// Starts the file with these events of the set, the first of which is the sideband.
    pub(super) fn create(
        path: &Path,
        tracefs: &Tracefs,
        set: &RingSet,
        events: [(&str, SetEvent); 4],
    ) -> std::result::Result<Self, Error> {
        let file = File::create(path).map_err(|source| Error::Io {
            operation: "create the recording",
            offset: 0,
            source,
        })?;
        let mut recorded = Vec::new();
        for (name, event) in events {
            let (attr, ids) = (set.attr(event)?, set.ids(event)?);
            recorded.push(RecordedEvent { name: name.to_owned(), attr, ids });
        }
        let tracing =
            TracingData::of_this_kernel(tracefs, TRACEPOINTS.map(|name| ("sched", name)))?;
        let sideband = recorded.first().map(|event| event.attr);
        let mut writer = FileWriter::new(BufWriter::with_capacity(1 << 20, file), recorded)?;
        if let Some(attr) = sideband {
            Synthesizer::new(&attr, false).processes(&mut writer)?;
        }
        Ok(Self { writer, tracing })
    }

    pub(super) fn record(&mut self, record: RawRecord<'_>) -> std::result::Result<(), Error> {
        self.writer.record(record)
    }

    /// All records before this one are earlier than those after the next one.
    pub(super) fn finish_round(&mut self) -> std::result::Result<(), Error> {
        self.writer.finish_round()
    }

    pub(super) fn finish(self) -> std::result::Result<(), Error> {
        let mut features = Features::of_this_machine();
        features.tracing = Some(self.tracing);
        self.writer.finish(&features).map(drop)
    }
}
