//! `triscope flight`: always records, and keeps what was before and after a trigger.

mod assemble;
mod chain;
mod config;
mod control;
mod detect;
mod inbox;
mod kernel;
mod machine;
mod pressure;
mod recorder;
mod reload;
mod sources;
mod store;
mod threads;
mod trigger;

use crate::failure::{Failure, Lines, OneLine, Result};
use crate::io::stdout::Output;
use crate::run::duration::{bytes, with_unit};
use crate::run::procfs::is_in_container;
use crate::run::sample_rate;
use crate::run::target::Process;
use perf_monitor::time_namespace_offset;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use store::{Space, Store};
use trace_common::ClockDomain;
use trace_flight::Cause;
use trigger::Trigger;

/// Record all the time, and keep the time around triggers
///
/// The scheduler of the machine, samples on request, and the kernel events of triggers are recorded in
/// segments of a few seconds in DIR, of which the last ones are kept; .NET runtimes and Go programs on
/// request, beside them. When a trigger fires, the
/// segments from --back before it to --forward after it become a dump: a directory in DIR/dumps for
/// triscope report, explain, convert and export, with a manifest. Triggers that fire meanwhile join
/// the dump.
///
/// SIGUSR1 and `triscope flight dump` make a dump, too. A recorder that was killed leaves its
/// segments: the next one in the same directory continues with them, and `triscope flight dump` without a
/// recorder makes a dump of them. DIR and everything in it is for its user only. Dumps have the names
/// of threads and the paths of programs, but no command lines unless --command-lines is given, and no
/// environment. The command lines that .NET runtimes write are replaced by asterisks.
///
/// Once its events are open, the recorder keeps no capability but CAP_PERFMON and CAP_IPC_LOCK, and
/// CAP_SYS_ADMIN where the kernel does not accept CAP_PERFMON. The threads that supervise COMMAND keep
/// CAP_KILL, which passes signals on to it. The thread for --dotnet and --go keeps CAP_SYS_PTRACE,
/// CAP_DAC_READ_SEARCH and CAP_DAC_OVERRIDE, and the one that reads --config again keeps
/// CAP_DAC_READ_SEARCH. All set no_new_privs. COMMAND has the privileges of the start.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Triggers (--trigger, can be repeated):
  sched-delay=10ms               a thread waited longer for a CPU
  on-cpu=100ms                   a thread was longer on a CPU without a pause
  exit-signal                    KILL or a signal that dumps core (SEGV, ABRT, BUS, ...) ends a process
  event='sched:sched_process_exec if pid > 100'
                                 a tracepoint, with a filter of the kernel
  psi=memory:some:100ms/2s       tasks were stalled longer within the window; cpu, io, memory, irq;
                                 some, full (irq: full)
  gc-pause=20ms                  a GC of .NET paused a program longer (these three with --dotnet)
  dotnet-event=PROVIDER/EVENT    an event of an event source
  'dotnet-counter=PROVIDER/COUNTER>90'
                                 a value of a counter, above or (with <) below
  go-region=TYPE:100ms           a region took longer; of any type without TYPE: (these three with --go)
  go-task=TYPE:100ms             a task took longer
  go-stw=1ms                     the world was stopped longer

With -p or COMMAND, sched-delay, on-cpu and exit-signal are for the threads of that process and of its
future children. event and psi are for the whole machine.

Examples:
  triscope flight -d /var/lib/flight --trigger sched-delay=20ms
  triscope flight -d flight -p 1234 -F 99 --trigger exit-signal
  triscope flight -d flight --dotnet --trigger gc-pause=50ms -- dotnet app.dll
  triscope flight dump -d flight --reason 'slow page'
  triscope report flight/dumps/20261123T024512.123Z-sched-delay

Needs root, or CAP_PERFMON (at kernel.perf_event_paranoid 3 and above CAP_SYS_ADMIN) and a tracefs
that the user may read: see triscope record --help."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    request: Option<Request>,
    /// The directory of segments and dumps: new, empty, or of an earlier recorder
    #[arg(short, long, value_name = "DIR", required = true)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    process: Process,
    /// Record until Ctrl-C, with triggers for all threads (the default without a process and COMMAND)
    #[arg(short = 'a', long = "all-cpus", visible_alias = "all",
        conflicts_with_all = ["Process", "command"])]
    all: bool,
    #[command(flatten)]
    settings: Settings,
    /// Read the settings from this file instead: TOML, with the names of the options as keys and a list
    /// of triggers. SIGHUP reads it again, except with a COMMAND, which gets that signal
    #[arg(long, value_name = "FILE", conflicts_with = "Settings")]
    config: Option<PathBuf>,
    /// Check the settings as the start does, and end. What needs privileges is named if they are missing
    #[arg(long)]
    check: bool,
    /// Record until this command ends
    #[arg(trailing_var_arg = true, value_name = "COMMAND", conflicts_with = "Process")]
    command: Vec<String>,
}

/// How to record.
#[derive(Clone, Debug, clap::Args)]
struct Settings {
    /// Look back from the first trigger of a dump
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = with_unit)]
    back: Duration,
    /// Look forward from the last trigger of a dump
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = with_unit)]
    forward: Duration,
    /// After a dump, suppress triggers for this time. SIGUSR1 and flight dump are never suppressed
    #[arg(long, value_name = "TIME", value_parser = with_unit)]
    cooldown: Option<Duration>,
    /// Disk space: half for segments, half for dumps, of which the oldest are removed
    #[arg(long, value_name = "BYTES", default_value = "200MB", value_parser = bytes)]
    disk: u64,
    /// Memory: half for the kernel's buffers, half for the names and mappings of tasks
    #[arg(long, value_name = "BYTES", default_value = "64MB", value_parser = bytes)]
    memory: u64,
    /// CPU time of the thread that reads the kernel's buffers, in percent of one CPU: above it, an event of a trigger
    /// that has most of the records, the records of switches beside sched_switch, then samples, wake-ups and
    /// switches are not recorded any more
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = percent)]
    cpu: f64,
    /// Sample the stacks of running threads, HERTZ times per second and CPU
    #[arg(short = 'F', long, value_name = "HERTZ",
        value_parser = clap::value_parser!(u64).range(1..))]
    freq: Option<u64>,
    /// Record the .NET runtimes of the process and its children, or of all processes: GCs, exceptions, lock
    /// waits, compilations, and the events and counters of triggers
    #[arg(long)]
    dotnet: bool,
    /// Record the Go programs of the process and its children, or of all processes: execution traces that
    /// they serve by net/http/pprof on a loopback address, otherwise their own trace.FlightRecorder, which is
    /// read from their memory for a dump. Meanwhile trace.Start of a program that serves its trace fails, and
    /// other requests for its trace
    #[arg(long)]
    go: bool,
    /// Make a dump when this happens
    #[arg(long = "trigger", value_name = "TRIGGER")]
    triggers: Vec<Trigger>,
    /// End the recording after the first dump; a command continues, and its end is waited for
    #[arg(long)]
    oneshot: bool,
    /// Keep the command lines of processes in dumps: they can have secrets
    #[arg(long)]
    command_lines: bool,
    /// Serve the metrics for Prometheus at this loopback address, too, such as 127.0.0.1:9500
    #[arg(long, value_name = "ADDRESS", value_parser = loopback)]
    metrics: Option<SocketAddr>,
}

#[derive(clap::Subcommand)]
enum Request {
    /// Make a dump now, and print its path
    Dump {
        /// The directory of the recorder
        #[arg(short, long, value_name = "DIR")]
        dir: PathBuf,
        /// The reason, which is in the manifest
        #[arg(long, value_name = "TEXT", default_value = "triscope flight dump",
            value_parser = reason)]
        reason: String,
        /// Without a recorder: how much to keep of what it left
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = with_unit)]
        back: Duration,
    },
    /// Print the metrics of a recorder in the format of Prometheus
    Status {
        /// The directory of the recorder
        #[arg(short, long, value_name = "DIR")]
        dir: PathBuf,
    },
}

impl Settings {
    /// Triggers need their sources.
    fn check(&self) -> Result {
        if let Some(hertz) = self.freq {
            sample_rate::check(hertz)?;
        }
        for trigger in &self.triggers {
            let missing = match trigger {
                Trigger::Dotnet(_) if !self.dotnet => "--dotnet",
                Trigger::Go(_) if !self.go => "--go",
                _ => continue,
            };
            let why = format!("this trigger needs {missing}");
            return Err(Failure::about(trigger, why).with_code(2));
        }
        if (self.dotnet || self.go) && time_namespace_offset(ClockDomain::Monotonic) != 0 {
            return Err(Failure::about("--dotnet, --go", IN_TIME_NAMESPACE));
        }
        Ok(())
    }
}

fn reason(text: &str) -> std::result::Result<String, String> {
    match text.len() as u64 {
        length if length > control::MAX_REASON => {
            Err(format!("it has {length} bytes: {} are kept at most", control::MAX_REASON))
        }
        _ => Ok(text.to_owned()),
    }
}

fn percent(text: &str) -> std::result::Result<f64, String> {
    let percent = text.parse().ok().filter(|percent: &f64| percent.is_finite() && *percent > 0.0);
    percent.ok_or_else(|| "expected a number above 0".to_owned())
}

fn loopback(text: &str) -> std::result::Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "expected an address and a port: 127.0.0.1:9500".to_owned())?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("the address is reached from other machines: use 127.0.0.1 or [::1]".to_owned())
    }
}

pub(crate) fn run(args: &Args) -> Result {
    match &args.request {
        Some(Request::Dump { dir, reason, back }) => {
            let path = if store::is_locked(dir)? {
                control::dump(dir, reason)?
            } else {
                dump_left(dir, reason, *back)?
            };
            print(&format!("{}\n", OneLine(&path)))
        }
        Some(Request::Status { dir }) => print(&Lines(&control::metrics(dir)?).to_string()),
        None => {
            let settings = match &args.config {
                Some(path) => config::read(path)?,
                None => args.settings.clone(),
            };
            settings.check()?;
            if args.check {
                return recorder::check(&settings);
            }
            if is_in_container() {
                return Err(Failure::new(IN_CONTAINER));
            }
            recorder::run(args, &settings)
        }
    }
}

const IN_CONTAINER: &str = "the kernel's tracepoints are not usable inside of a PID namespace: they \
                            identify threads by their numbers outside of it";

const IN_TIME_NAMESPACE: &str = "not possible inside of a time namespace that changes CLOCK_MONOTONIC: \
                                 the kernel's records have the time outside of it";

fn print(text: &str) -> Result {
    let mut out = Output::new();
    out.buffer.extend_from_slice(text.as_bytes());
    out.finish()
}

/// Makes a dump of what a recorder left.
fn dump_left(dir: &std::path::Path, reason: &str, back: Duration) -> Result<String> {
    let space = Space { segments: u64::MAX, dumps: u64::MAX };
    let mut store = Store::open(dir, space, Duration::MAX)?;
    let cause = Cause::new("command", reason);
    let dump = store.dump_left(back, cause);
    let dump = dump.unwrap_or_else(|| Err(Failure::about(dir.display(), "has no segments")))?;
    Ok(dump.write()?.path.display().to_string())
}
