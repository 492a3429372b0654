//! Where .NET events come from: a file, standard input, or a session with a live process.

use super::signals::StopOnSignal;
use crate::failure::{Failure, OneLine, Result};
use crate::io::input::{Format, Input};
use crate::io::progress::Progress;
use diag_ipc::{Client, TracingConfig};
use nettrace::{Event, Options, Order, Reader, Stats};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A .NET trace or a process: FILE, - or PID.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    File(PathBuf),
    Process(u32),
}

impl std::str::FromStr for Source {
    type Err = std::convert::Infallible;

    /// A number is a process, unless there is a file of that name.
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(match text.parse() {
            Ok(pid) if !Path::new(text).exists() => Self::Process(pid),
            _ => Self::File(text.into()),
        })
    }
}

/// A stream of events that is open.
pub(crate) struct Stream {
    pub(crate) name: String,
    reader: Reader<Box<dyn Read + Send>>,
    /// Ends a session by signal or clock.
    stop_on_signal: Option<StopOnSignal>,
}

impl Source {
    /// Opens the file, or starts a session with the process that ends after `duration` (never,
    /// if there is none).
    pub(crate) fn open(
        &self,
        config: &TracingConfig,
        duration: Option<Duration>,
        order: Order,
        progress: Progress,
    ) -> Result<Stream> {
        let (name, bytes, stop_on_signal): (_, Box<dyn Read + Send>, _) = match self {
            Self::File(path) => {
                let input = Input::open(path, progress)?;
                if input.format != Format::NetTrace {
                    let what = input.format.description().unwrap_or("something else");
                    return Err(input.failure(format!("is {what}, not a .NET trace")));
                }
                (input.name.clone(), Box::new(input), None)
            }
            Self::Process(pid) => {
                let name = format!("process {pid}");
                let session = Client::for_process(*pid)
                    .and_then(|client| client.collect_tracing(config))
                    .map_err(|e| Failure::about(&name, e))?;
                let stop_on_signal = StopOnSignal::new(session.stop_handle(), duration)?;
                (name, Box::new(session), Some(stop_on_signal))
            }
        };
        let reader = Reader::with_options(bytes, Options::new().order(order));
        Ok(Stream { name, reader, stop_on_signal })
    }
}

impl Stream {
    /// Calls `each` with every event. Damage, truncation and losses are reported at the end.
    pub(crate) fn read(mut self, mut each: impl FnMut(&Event<'_>) -> Result) -> Result<Reading> {
        let mut errors = Vec::new();
        loop {
            match self.reader.next_event() {
                Ok(Some(event)) => {
                    if let Err(failure) = each(&event) {
                        self.leave();
                        return Err(failure);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let fatal = matches!(error.kind, nettrace::ErrorKind::Io(_));
                    errors.push(error.to_string());
                    if fatal {
                        break;
                    }
                }
            }
        }
        Ok(Reading {
            stats: *self.reader.stats(),
            trace: self.reader.trace().cloned(),
            name: self.name,
            errors,
        })
    }
}

impl Stream {
    /// Ends a session that nobody reads any more: closing it in the middle can crash its target.
    fn leave(&mut self) {
        if self.stop_on_signal.as_ref().is_some_and(StopOnSignal::end) {
            loop {
                match self.reader.next_event() {
                    Ok(Some(_)) => {}
                    Err(e) if !matches!(e.kind, nettrace::ErrorKind::Io(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
        }
    }
}

/// How the reading of a stream went.
pub(crate) struct Reading {
    pub(crate) name: String,
    pub(crate) stats: Stats,
    pub(crate) trace: Option<nettrace::Trace>,
    pub(crate) errors: Vec<String>,
}

impl Reading {
    /// Reports losses and errors; an error makes the exit status 1.
    pub(crate) fn into_result(self) -> Result {
        let name = OneLine(&self.name);
        let stats = &self.stats;
        if stats.lost > 0 {
            eprintln!("triscope: {name}: {} events were lost by the runtime", stats.lost);
        }
        if stats.events_without_metadata > 0 {
            let n = stats.events_without_metadata;
            eprintln!("triscope: {name}: {n} events came without their metadata");
        }
        if stats.early_flushes > 0 {
            let n = stats.early_flushes;
            eprintln!("triscope: {name}: events may be out of order at {n} places");
        }
        const SHOWN: usize = 10;
        for error in self.errors.iter().take(SHOWN) {
            eprintln!("triscope: {name}: {}", OneLine(error));
        }
        if self.errors.len() > SHOWN {
            eprintln!("triscope: {name}: and {} more errors", self.errors.len() - SHOWN);
        }
        if self.errors.is_empty() { Ok(()) } else { Err(Failure::Quiet(1)) }
    }
}
