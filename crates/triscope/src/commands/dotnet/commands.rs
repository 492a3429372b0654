//! Commands that consist of one request and one reply.

use super::target::{self, Options, Selector};
use super::{file_name, numbered};
use crate::failure::{Failure, OneLine, Result};
use crate::io::stdout::Output;
use crate::run::duration::duration;
use crate::run::procfs;
use crate::run::stop::{Listener, Next};
use crossbeam_channel::{after, select, tick};
use diag_ipc::{DumpFlags, DumpType, Error, HResult, Operation, PerfMapType, RejectedRequest};
use serde_json::json;
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Show process information: PID, command line, runtime version, architecture
#[derive(clap::Args)]
pub(crate) struct Info {
    #[command(flatten)]
    target: Selector,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Info {
    pub(super) fn run(&self) -> Result {
        let target = self.target.resolve()?;
        let info = match target.client.process_info() {
            Err(error) if error.is_unknown_command() => return self.without_protocol(&target),
            other => other.map_err(target.failure())?,
        };
        let suspended = target.client.is_suspended().map_err(target.failure())?;
        let mut output = Output::new();
        let out = &mut output.buffer;
        if self.json {
            let value = json!({
                "pid": info.pid,
                "cookie": info.cookie.to_string(),
                "command_line": info.command_line,
                "os": info.os,
                "arch": info.arch,
                "entry_assembly": info.entry_assembly,
                "clr_version": info.clr_version,
                "portable_rid": info.portable_rid,
                "suspended": suspended,
            });
            let _ = writeln!(out, "{value:#}"); // writing to a vector does not fail
        } else {
            let state = match suspended {
                Some(true) => "suspended at startup (triscope dotnet resume resumes it)",
                Some(false) => "running",
                None => "unknown",
            };
            let pid = info.pid.to_string();
            let cookie = info.cookie.to_string();
            for (name, value) in [
                ("pid", Some(pid.as_str())),
                ("command line", Some(&info.command_line)),
                ("entry assembly", info.entry_assembly.as_deref()),
                ("runtime", info.clr_version.as_deref()),
                ("platform", info.portable_rid.as_deref()),
                ("os", Some(&info.os)),
                ("architecture", Some(&info.arch)),
                ("state", Some(state)),
                ("cookie", Some(&cookie)),
            ] {
                if let Some(value) = value {
                    let _ = writeln!(out, "{name:<15} {}", OneLine(value));
                }
            }
        }
        output.finish()
    }

    /// Information from `/proc` about a process whose runtime is older than .NET 5.
    fn without_protocol(&self, target: &target::Target) -> Result {
        let pid = target.client.peer().map_err(target.failure())?.pid;
        let command_line = pid.map(procfs::command_line).unwrap_or_default().join(" ");
        let command_line = command_line.trim_end();
        let mut output = Output::new();
        let out = &mut output.buffer;
        if self.json {
            let value = json!({
                "pid": pid,
                "command_line": command_line,
                "os": std::env::consts::OS,
                "suspended": false,
            });
            let _ = writeln!(out, "{value:#}"); // writing to a vector does not fail
        } else {
            let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            for (name, value) in [
                ("pid", pid.as_str()),
                ("command line", command_line),
                ("runtime", ".NET Core 3 (the process reports no more before .NET 5)"),
                ("state", "running"),
            ] {
                let _ = writeln!(out, "{name:<15} {}", OneLine(value));
            }
        }
        output.finish()
    }
}

/// Print the current environment variables of a process
#[derive(clap::Args)]
pub(crate) struct Env {
    #[command(flatten)]
    target: Selector,
    /// Print JSON
    #[arg(long, conflicts_with = "null")]
    json: bool,
    /// End each variable with NUL instead of a newline, and escape nothing
    #[arg(short = '0', long)]
    null: bool,
}

impl Env {
    pub(super) fn run(&self) -> Result {
        let target = self.target.resolve()?;
        let environment = target.client.process_environment().map_err(target.failure())?;
        let mut output = Output::new();
        let out = &mut output.buffer;
        if self.json {
            let map: serde_json::Map<_, _> =
                environment.iter().map(|(n, v)| (n.to_owned(), v.into())).collect();
            let _ = writeln!(out, "{:#}", serde_json::Value::from(map));
        } else {
            let mut variables: Vec<_> = environment.iter().collect();
            variables.sort_unstable();
            for (name, value) in variables {
                let _ = if self.null {
                    write!(out, "{name}={value}\0")
                } else {
                    writeln!(out, "{}={}", OneLine(name), OneLine(value))
                };
            }
        }
        output.finish()
    }
}

/// Set or unset environment variables of a process
///
/// A running program sees the change when it next queries its runtime; a suspended one sees it from
/// the start.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet set-env 1234 LOG_LEVEL=debug
  triscope dotnet set-env 1234 LOG_LEVEL      unset it")]
#[command(override_usage = "triscope dotnet set-env [OPTIONS] [PID] <NAME[=VALUE]>...")]
pub(crate) struct SetEnv {
    #[command(flatten)]
    target: Options,
    /// The process, and the variables to set; a NAME alone is unset
    #[arg(value_name = "PID|NAME[=VALUE]", required = true)]
    words: Vec<String>,
}

impl SetEnv {
    pub(super) fn run(&self) -> Result {
        let (pid, words) = match self.words.split_first() {
            Some((pid, words)) if self.target.is_empty() => {
                let usage = |_| Failure::about(pid, "is not a PID").with_code(2);
                (Some(pid.parse().map_err(usage)?), words)
            }
            _ => (None, &self.words[..]),
        };
        if words.is_empty() {
            let hint = "no variables specified: pass NAME=VALUE to set, NAME to unset";
            return Err(Failure::new(hint).with_code(2));
        }
        let mut variables = Vec::new();
        for word in words {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.as_str(), None),
            };
            if value == Some("") {
                let hint = "cannot be set to an empty value: to unset it, omit the =";
                return Err(Failure::about(name, hint).with_code(2));
            }
            variables.push((name, value));
        }
        let target = match pid {
            Some(pid) => target::process(pid)?,
            None => self.target.resolve()?,
        };
        for (name, value) in variables {
            match target.client.set_environment_variable(name, value) {
                Err(error) if value.is_none() && is_not_set(&error) => {
                    message!("triscope: {}: {} is not set", target.name, OneLine(name));
                }
                other => other.map_err(target.failure())?,
            }
        }
        Ok(())
    }
}

/// Whether the runtime has no such variable.
fn is_not_set(error: &Error) -> bool {
    error.code() == Some(HResult::EnvironmentVariableNotFound)
}

/// Write a memory dump of a process
///
/// The process is suspended meanwhile. It writes the file itself, as its own user and in its own
/// file system. It continues with that if this command ends before, by Ctrl-C or --timeout.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet dump 1234
  triscope dotnet dump 1234 -o core.1234 --type heap --crash-report")]
pub(crate) struct Dump {
    #[command(flatten)]
    target: Selector,
    /// Where the process writes the dump [default: core_PID_DATE_TIME, in this
    /// directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Contents of the dump
    #[arg(long = "type", value_enum, ignore_case = true, default_value_t = Kind::Full)]
    kind: Kind,
    /// Print log messages in the process
    #[arg(long)]
    diag: bool,
    /// Print detailed log messages in the process (.NET 6)
    #[arg(long)]
    verbose: bool,
    /// Write a crash report beside the dump (.NET 6)
    #[arg(long, visible_alias = "crashreport")]
    crash_report: bool,
    /// Wait for the dump for TIME: seconds, or dd:hh:mm:ss [default: until it is written]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
}

/// The runtime does not know that nobody waits for its reply any more.
const STILL_WRITES: &str = "the process may still write the dump";

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// The whole memory of the process
    Full,
    /// Modules, threads, stacks and the managed heap
    #[value(alias = "withheap")]
    Heap,
    /// Modules, threads and stacks
    #[value(alias = "normal")]
    Mini,
    /// Like mini, without data that can identify a person
    Triage,
}

impl Dump {
    pub(super) fn run(&self) -> Result {
        let target = self.target.resolve()?;
        let output = self.output.clone().or_else(|| {
            let name = file_name("core", target.process());
            numbered(&name, "").find(|path| std::fs::symlink_metadata(path).is_err())
        });
        let output = output.unwrap_or_default(); // there is a free name
        // The target has another working directory.
        let path = std::path::absolute(&output).map_err(|e| Failure::about(output.display(), e))?;
        let text = utf8(&path)?;
        let dump_type = match self.kind {
            Kind::Full => DumpType::Full,
            Kind::Heap => DumpType::WithHeap,
            Kind::Mini => DumpType::Normal,
            Kind::Triage => DumpType::Triage,
        };
        let mut flags = DumpFlags::empty();
        flags.set(DumpFlags::LOGGING, self.diag);
        flags.set(DumpFlags::VERBOSE_LOGGING, self.verbose);
        flags.set(DumpFlags::CRASH_REPORT, self.crash_report);
        let limits = target.client.current_timeouts();
        let client =
            target.client.clone().timeouts(limits.dump(self.timeout.unwrap_or(Duration::MAX)));
        // It must end also where SIGINT is ignored: in the background job of a script.
        target.exit.take();
        let _listener = Listener::start(|_| {
            message!("triscope: interrupted: {STILL_WRITES}");
            Next::Exit
        })?;
        client.create_core_dump(text, dump_type, flags).map_err(|error| {
            let may_write = may_write(&error);
            let failure = target.failure()(error);
            if may_write { failure.and(STILL_WRITES) } else { failure }
        })?;
        match target.process().and_then(|pid| size_in_both(pid, &path)) {
            Some(size) => message!("{}: {size} bytes", path.display()),
            None => message!("{}: written in the file system of the target", path.display()),
        }
        Ok(())
    }
}

/// Whether the runtime has the request, and did not reply in time. While a dump is written, the process can be
/// stopped.
const fn may_write(error: &Error) -> bool {
    matches!(
        error,
        Error::Timeout { operation: Operation::Reply, .. } | Error::TargetStopped { .. }
    )
}

/// The size of a file that a process sees at the same path. In a container, its path can be that of another
/// file here.
fn size_in_both(pid: u32, path: &Path) -> Option<u64> {
    let of_process = Path::new("/proc").join(pid.to_string()).join("root");
    let theirs = of_process.join(path.strip_prefix("/").ok()?).metadata().ok()?;
    let ours = path.metadata().ok()?;
    let is_same = (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino());
    is_same.then_some(ours.len())
}

/// Resume a runtime that is suspended at startup
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  DOTNET_DefaultDiagnosticPortSuspend=1 ./app & sleep 1; triscope dotnet resume $!
  port=$XDG_RUNTIME_DIR/port
  DOTNET_DiagnosticPorts=$port ./app & triscope dotnet resume --diagnostic-port $port

A runtime that is suspended for a diagnostic port can only be resumed at that port.")]
pub(crate) struct Resume {
    #[command(flatten)]
    target: Selector,
}

impl Resume {
    pub(super) fn run(&self) -> Result {
        let target = self.target.resolve()?;
        target.client.resume_runtime().map_err(target.failure())?;
        // The runtime answers before it starts its threads, by which it is recognized. A short program may have ended
        // since.
        let limit = after(STARTUP);
        let look = tick(Duration::from_millis(10));
        while let Ok(Some(true)) = target.client.is_suspended() {
            select! {
                recv(look) -> _ => {}
                recv(limit) -> _ => {
                    let hint = "is still suspended: it was started with DOTNET_DiagnosticPorts and \
                                can only be resumed at that port (--diagnostic-port)";
                    return Err(Failure::about(&target.name, hint));
                }
            }
        }
        Ok(())
    }
}

/// Time limit for a resumed runtime to start its threads.
const STARTUP: Duration = Duration::from_secs(5);

/// Enable or disable the files in which perf finds the names of jitted code (.NET 8)
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet perf-map on 1234 && perf record -g -p 1234 sleep 5; triscope dotnet perf-map off 1234

The files are /tmp/perf-PID.map and /tmp/jit-PID.dump, below the target's own root.")]
pub(crate) struct PerfMap {
    #[arg(value_enum)]
    switch: Switch,
    #[command(flatten)]
    target: Selector,
    /// Files to write
    #[arg(long = "type", value_enum, ignore_case = true, default_value_t = MapKind::All)]
    kind: MapKind,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum MapKind {
    /// Both
    All,
    /// jit-PID.dump, for perf inject
    Jitdump,
    /// perf-PID.map
    Perfmap,
}

impl PerfMap {
    pub(super) fn run(&self) -> Result {
        let target = self.target.resolve()?;
        match self.switch {
            Switch::Off => target.client.disable_perf_map(),
            Switch::On => target.client.enable_perf_map(match self.kind {
                MapKind::All => PerfMapType::All,
                MapKind::Jitdump => PerfMapType::JitDump,
                MapKind::Perfmap => PerfMapType::PerfMap,
            }),
        }
        .map_err(target.failure())
    }
}

/// Run the startup hook of an assembly in a process (.NET 8)
///
/// A running process runs the hook at once, a suspended one at startup. A process that cannot load
/// the assembly, or in which the hook throws an exception, ENDS. So the assembly is checked first,
/// as the process sees it: it must have the method `static void Initialize()` in a class
/// `StartupHook` in the global namespace.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  triscope dotnet startup-hook 1234 --assembly /opt/hooks/Hook.dll")]
pub(crate) struct StartupHook {
    #[command(flatten)]
    target: Selector,
    /// The assembly, in the file system of the process
    #[arg(long, value_name = "DLL")]
    assembly: PathBuf,
    /// Send the request without checking the assembly. A path or an assembly name is sent unchanged
    #[arg(long)]
    force: bool,
}

impl StartupHook {
    pub(super) fn run(&self) -> Result {
        let target = self.target.resolve()?;
        if self.force {
            let sent = target.client.apply_startup_hook_unchecked(utf8(&self.assembly)?);
            return sent.map_err(target.failure());
        }
        let path = std::path::absolute(&self.assembly)
            .map_err(|e| Failure::about(self.assembly.display(), e))?;
        match target.client.apply_startup_hook(utf8(&path)?) {
            Err(error @ Error::Rejected(RejectedRequest::StartupHook { .. })) => {
                let hint = format!("{error}; --force sends the request without the check");
                Err(Failure::about(&target.name, hint))
            }
            other => other.map_err(target.failure()),
        }
    }
}

/// The protocol supports only UTF-8 paths.
fn utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Failure::about(path.display(), "is not valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_dump_is_that_of_the_file_of_the_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "core").unwrap();
        assert_eq!(size_in_both(std::process::id(), file.path()), Some(4));
        // No process has this number: what its file is, is not known.
        assert_eq!(size_in_both(u32::MAX, file.path()), None);
        assert_eq!(size_in_both(std::process::id(), &file.path().join("missing")), None);
    }
}
