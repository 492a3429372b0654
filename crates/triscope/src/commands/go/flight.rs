use crate::failure::{Failure, Result};
use crate::io::output_file::OutputFile;
use crate::run::stop::Listener;
use crate::run::target::no_process;
use crate::run::{go_program, procfs};
use crate::timeline::size;
use go_flight::{CoreFile, Error, Limits, Process, Program, Snapshot};
use gotrace::Generations;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// Read the flight recorder of a Go program from its memory
///
/// The program runs or has left a core file. It has started a trace.FlightRecorder, and was built by Go
/// 1.25, 1.26 or 1.27. It needs no handler, is neither stopped nor changed, and may hang. Symbols are
/// not needed.
///
/// The output is the trace that the program's own WriteTo writes, except for the generation in
/// progress: about the last second.
///
/// A process needs the same user, where kernel.yama.ptrace_scope permits it, or root
/// (CAP_SYS_PTRACE).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope go flight 1234 -o flight.trace
  triscope go flight server -o flight.trace              the only Go program of this name
  triscope go flight server -o - | triscope go summary -
  triscope go flight --core core --program ./server -o flight.trace    after a crash")]
pub(crate) struct Args {
    /// The process, by its id or by the name of its program or main thread, or the first word of its command line
    #[arg(
        value_name = "PID|NAME",
        group = "target",
        required_unless_present_any = ["core", "pid", "name"]
    )]
    process: Option<String>,
    /// The process with this id
    #[arg(short, long, value_name = "PID", group = "target")]
    pid: Option<u32>,
    /// The only Go program with this name, or the only one whose main thread has it
    #[arg(short, long, value_name = "NAME", group = "target")]
    name: Option<String>,
    /// A core file, instead of a process
    #[arg(long, value_name = "FILE", requires = "program", conflicts_with = "target")]
    core: Option<PathBuf>,
    /// The executable file that left the core file
    #[arg(long, value_name = "FILE", requires = "core")]
    program: Option<PathBuf>,
    /// Where to write the trace; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Refuse a flight recorder that is larger than this, in MB
    #[arg(long, value_name = "MB", default_value = "256",
        value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

impl Args {
    fn limits(&self) -> Limits {
        let max_buffer = usize::try_from(u64::from(self.limit) * 1_000_000).unwrap_or(usize::MAX);
        Limits { max_buffer, ..Limits::default() }
    }

    /// The flight recorder, and the name of its source in messages.
    fn snapshot(&self) -> Result<(Snapshot, String)> {
        if let (Some(core), Some(program)) = (&self.core, &self.program) {
            let open = |path: &PathBuf| {
                File::open(path).map_err(|error| Failure::about(path.display(), error))
            };
            let name = core.display().to_string();
            let program = Program::parse(open(program)?)
                .map_err(|error| Failure::about(program.display(), error))?;
            let core = CoreFile::parse(BufReader::new(open(core)?));
            let snapshot = core.and_then(|mut core| core.snapshot(&program, self.limits()));
            return Ok((snapshot.map_err(|error| self.failure(&name, error))?, name));
        }
        let pid = self.pid()?;
        let name = format!("process {pid}");
        let snapshot = Process::open(pid).and_then(|mut process| process.snapshot(self.limits()));
        let fail = |error| match error {
            Error::Process { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                no_process(pid)
            }
            Error::AccessDenied { .. } | Error::Process { .. } => Failure::new(error),
            _ => self.failure(&name, error),
        };
        Ok((snapshot.map_err(fail)?, name))
    }

    fn pid(&self) -> Result<u32> {
        if let Some(pid) = self.pid {
            return Ok(pid);
        }
        if let Some(name) = &self.name {
            return named(name);
        }
        let process = self.process.as_deref().unwrap_or_default();
        process.parse().or_else(|_| named(process))
    }

    fn failure(&self, name: &str, error: Error) -> Failure {
        match error {
            Error::LimitExceeded { .. } => {
                let more = format!("more than {} MB must be read: see --limit", self.limit);
                Failure::about(name, more)
            }
            _ => Failure::about(name, error),
        }
    }
}

pub(super) fn run(args: &Args) -> Result {
    let inputs: Vec<PathBuf> = args.core.iter().chain(&args.program).cloned().collect();
    let mut output = OutputFile::create(&args.output, &inputs)?;
    let _listener = Listener::exit();
    let (snapshot, source) = args.snapshot()?;
    let mut writer = output.writer()?;
    let written = snapshot.write_to(&mut writer).and_then(|()| writer.flush());
    written.map_err(|error| output.failure(&error))?;
    drop(writer);
    let name = output.name();
    output.complete()?;
    message!("{name}: {}", summary(&snapshot));
    if snapshot.has_failed {
        message!(
            "triscope: {source}: the flight recorder failed to store a batch: the trace lacks it, as \
             that of the program's own WriteTo does"
        );
    }
    Ok(())
}

/// The number of generations, the time that they cover, and what is not in the trace.
fn summary(snapshot: &Snapshot) -> String {
    let count = snapshot.generations.len();
    let noun = if count == 1 { "generation" } else { "generations" };
    let covered = seconds(snapshot).map_or_else(String::new, |seconds| format!(", {seconds:.3} s"));
    let bytes = size(snapshot.size());
    let more = size(snapshot.unfinished.bytes);
    format!("{count} {noun}{covered}, {bytes}; without the generation in progress ({more} so far)")
}

/// The time from the first to the last batch.
fn seconds(snapshot: &Snapshot) -> Option<f64> {
    let (first, last) = (snapshot.generations.first()?, snapshot.generations.last()?);
    let mut last = Generations::new(snapshot.header.chain(&last.bytes[..])).ok()?;
    let (span, _) = last.next_generation().ok()??;
    Some((span.last.nanos() - first.first_time.nanos()) as f64 / 1e9)
}

/// Whether a process has this name: by the link to its program, the name of its main thread, of which the kernel
/// keeps 15 bytes, and the first word of its command line.
fn has_name(program: &Path, comm: &[u8], word: &str, name: &str) -> bool {
    let file = program.file_name().unwrap_or_default().as_encoded_bytes();
    // The file of a program that was updated is another one.
    let replaced = file.strip_suffix(b" (deleted)");
    let of_word = Path::new(word).file_name().unwrap_or_default().as_encoded_bytes();
    let is_name = |bytes: &[u8]| bytes == name.as_bytes();
    is_name(file) || replaced.is_some_and(is_name) || is_name(comm) || is_name(of_word)
}

/// The only Go program with this name.
fn named(name: &str) -> Result<u32> {
    let is_named = |pid: u32| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let words = procfs::command_line(pid);
        let word = words.first().map_or("", String::as_str);
        has_name(&program, &procfs::comm(pid, pid), word, name)
    };
    let is_go = |pid: &u32| go_program::version(Path::new(&format!("/proc/{pid}/exe"))).is_some();
    let mut found = perf_monitor::processes();
    found.retain(|pid| is_named(*pid) && is_go(pid));
    match found[..] {
        [pid] => Ok(pid),
        [] => Err(Failure::new(format_args!(
            "no Go program that this user can read has the name {name}"
        ))),
        _ => Err(Failure::new(format_args!(
            "several Go programs have the name {name}: {}",
            found.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_its_name_after_an_update_of_its_file() {
        let named = |program: &str, comm: &str, word, name| {
            has_name(Path::new(program), comm.as_bytes(), word, name)
        };
        let (long, removed) = ("payments-gateway", "/srv/payments-gateway (deleted)");
        assert!(named(removed, "payments-gatewa", "", long));
        assert!(named("/srv/payments-gateway", "", "", long));
        // As the name of a link, and of a thread.
        assert!(named("/srv/release-7 (deleted)", "payments-gatewa", "bin/payments-gateway", long));
        assert!(named("", "payments", "", "payments"));
        assert!(!named("/srv/server.test", "server.test", "./server.test", "server"));
        // A file can have such a name.
        assert!(named("/srv/a (deleted)", "", "", "a (deleted)"));
        assert!(!named(removed, "payments-gatewa", "payments-gateway", "payments"));
        assert!(!named("", "", "", "payments"));
    }
}
