//! A session of a .NET runtime, and its file.
//!
//! All waits for a runtime are those of threads of their own: its socket may hang.

use super::dotnet_watch::{DotnetWatch, Process};
use super::masked::Masked;
use crate::failure::{Failure, Result};
use crate::io::counting::{Count, Counted};
use crate::io::place::Place;
use crate::run::runtimes::{NO_REPLY, Session};
use crate::timeline::now;
use diag_ipc::{Client, TracingConfig};
use std::fs::{self, File};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use trace_flight::Timestamp;

/// Time without data after which a dump does not wait for the end of a session any more: a runtime collects the
/// names of the methods of a large program in a few seconds.
const SILENT: Duration = Duration::from_secs(10);

/// Time limit of a dump for the end of a session.
const LONGEST: Duration = Duration::from_secs(30);

/// The size of a file, and its limit.
#[derive(Clone, Default)]
pub(super) struct Size {
    bytes: Count,
    limit: Arc<AtomicU64>,
    /// When data came last.
    last: Arc<Mutex<Option<Instant>>>,
    /// Why data could not be written.
    failure: Arc<OnceLock<String>>,
}

impl Size {
    /// Allows this number of bytes more.
    fn allow(&self, more: u64) {
        self.limit.store(self.bytes.get().saturating_add(more), Ordering::Relaxed);
    }

    fn has_room(&self, more: usize) -> bool {
        self.bytes.get() + more as u64 <= self.limit.load(Ordering::Relaxed)
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn fail(&self, error: &io::Error) {
        self.failure.get_or_init(|| error.to_string());
    }

    fn last(&self) -> Option<Instant> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the stream of a session to its file, and watches it.
struct Tee {
    file: Masked<Counted<File>>,
    size: Size,
    watch: Option<DotnetWatch>,
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.size.touch();
        // The error ends the session.
        if !self.size.has_room(bytes.len()) {
            let why = "it has its share of the disk";
            let error = io::Error::new(io::ErrorKind::FileTooLarge, why);
            self.size.fail(&error);
            return Err(error);
        }
        let len = self.file.write(bytes).inspect_err(|error| self.size.fail(error))?;
        if let Some(watch) = &mut self.watch {
            watch.push(bytes.get(..len).unwrap_or_default());
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A session that is to be started, with its file.
pub(super) struct Start {
    process: Process,
    config: TracingConfig,
    path: Place,
    size: Size,
    leads: Arc<AtomicBool>,
    tee: Tee,
}

impl Start {
    /// `limit` is that of the file.
    pub(super) fn new(
        process: &Process,
        config: &TracingConfig,
        (path, file): (Place, File),
        (limit, keeps_command_lines): (u64, bool),
        leads: &Arc<AtomicBool>,
        watch: Option<DotnetWatch>,
    ) -> Self {
        let size = Size::default();
        size.allow(limit);
        let file = Masked::new(Counted::new(file, size.bytes.clone()), keeps_command_lines);
        let tee = Tee { file, size: size.clone(), watch };
        let (process, config, leads) = (process.clone(), config.clone(), Arc::clone(leads));
        Self { process, config, path, size, leads, tee }
    }

    pub(super) fn path(&self) -> &Place {
        &self.path
    }

    /// Starts it, once the runtime replies; without a runtime, there is none.
    pub(super) fn run(
        self,
        client: impl FnOnce() -> Result<Option<Client>>,
    ) -> Result<Option<Trace>> {
        let Self { process, config, path, size, leads, tee } = self;
        let start = || {
            let Some(client) = client()? else { return Ok(None) };
            Session::start(&client, process.pid, &config, tee).map(Some)
        };
        let started = start();
        if !matches!(started, Ok(Some(_))) {
            let _ = fs::remove_file(&path); // it is empty
        }
        let Some(session) = started? else { return Ok(None) };
        let begun = now().map_err(Failure::new)?;
        Ok(Some(Trace { session, path, begun, size, leads, stopped: OnceLock::new() }))
    }
}

/// A session and its file.
pub(super) struct Trace {
    session: Session<Tee>,
    path: Place,
    pub(super) begun: Timestamp,
    size: Size,
    leads: Arc<AtomicBool>,
    /// When its end was requested first.
    stopped: OnceLock<Instant>,
}

impl Trace {
    /// Waits for the end that was requested. Returns the file, its end, and why it is truncated.
    pub(super) fn finish(self) -> (Place, Timestamp, Option<String>) {
        // One that has ended before has nothing of the time since.
        let ended = self.ended();
        self.session.stop();
        let asked = ended.or_else(|| now().ok()).unwrap_or(Timestamp::MIN);
        let stopped = *self.stopped.get_or_init(Instant::now);
        let until = || {
            let silent = self.size.last().map_or(stopped, |last| last.max(stopped));
            (silent + SILENT).min(stopped + LONGEST)
        };
        while !self.session.wait_until(until()) {
            if until() <= Instant::now() {
                // The session still has the file open.
                self.size.allow(0);
                return (self.path, asked, Some(format!("its end: {NO_REPLY}")));
            }
        }
        let failure = match self.session.finish() {
            Some((tee, failure)) => {
                let missing = tee.file.finish().unwrap_or_else(|error| Some(error.to_string()));
                failure.map(|failure| failure.message().to_owned()).or(missing)
            }
            None => Some("its recording failed".to_owned()),
        };
        (self.path, asked, failure)
    }

    #[cfg(test)]
    pub(super) fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn path(&self) -> &std::path::Path {
        self.path.path()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.size.bytes.get()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.session.has_ended()
    }

    /// When its last data came, if it has ended.
    pub(super) fn ended(&self) -> Option<Timestamp> {
        let last = self.size.last().filter(|_| self.has_ended())?;
        Some(now().ok()? - last.elapsed())
    }

    /// Why its data could not be written, if so.
    pub(super) fn failure(&self) -> Option<String> {
        self.size.failure.get().cloned()
    }

    /// Waits for the end, up to this time.
    pub(super) fn wait_until(&self, until: Instant) {
        self.session.wait_until(until);
    }

    /// Its events fire triggers from now on.
    pub(super) fn lead(&self) {
        self.leads.store(true, Ordering::Relaxed);
    }

    /// Requests the end, after which the runtime may write this number of bytes.
    pub(super) fn stop(&self, room: u64) {
        self.size.allow(room);
        self.leads.store(false, Ordering::Relaxed);
        self.stopped.get_or_init(Instant::now);
        self.session.stop();
    }

    /// Requests the end, and removes the file: nobody needs it, and the runtime may take minutes.
    pub(super) fn abandon(&self) {
        self.stop(0);
        // The session still has it open.
        let _ = File::options().write(true).truncate(true).open(&self.path);
        let _ = fs::remove_file(&self.path);
    }
}

/// A session that has begun. It ends if nothing takes it.
pub(super) struct Begun(Option<Trace>);

impl Begun {
    pub(super) const fn new(trace: Trace) -> Self {
        Self(Some(trace))
    }

    pub(super) fn take(mut self) -> Option<Trace> {
        self.0.take()
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(trace) = self.0.take() {
            trace.abandon();
        }
    }
}
