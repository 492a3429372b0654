//! Triggers as they are written on the command line and in configuration files.

use crate::run::duration::with_unit;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A condition that makes a dump.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Trigger {
    /// A thread waited for a CPU.
    SchedDelay(Duration),
    /// A thread was on a CPU without a pause.
    OnCpu(Duration),
    /// A tracepoint or probe, with a filter of the kernel.
    Event { event: String, filter: Option<String> },
    /// A signal that ends a process: KILL, or one that dumps core.
    ExitSignal,
    /// Pressure stall information: the resource, `some` or `full`, and stalled time per window.
    Pressure { resource: String, line: String, stall: Duration, window: Duration },
    /// What a .NET runtime reports.
    Dotnet(DotnetTrigger),
    /// What the trace of a Go program has.
    Go(GoTrigger),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum DotnetTrigger {
    /// A GC suspended all managed threads.
    GcPause(Duration),
    /// An event of an event source.
    Event { provider: String, event: String },
    /// A value of a counter above the limit, or below it.
    Counter { provider: String, name: String, is_above: bool, limit: f64 },
}

impl DotnetTrigger {
    /// Whether a value of a counter fires it.
    pub(super) fn fires(&self, source: &str, counter: &str, value: f64) -> bool {
        match self {
            Self::Counter { provider, name, is_above, limit } => {
                provider == source
                    && name == counter
                    && if *is_above { value > *limit } else { value < *limit }
            }
            Self::GcPause(_) | Self::Event { .. } => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum GoTrigger {
    /// A region, of this type or any, took as long.
    Region { ty: Option<String>, limit: Duration },
    /// A task, of this type or any, took as long.
    Task { ty: Option<String>, limit: Duration },
    /// The world was stopped as long.
    StopTheWorld(Duration),
}

/// The kind of a trigger that is an event.
pub(super) const EVENT: &str = "event";

/// The kind of a trigger, and the name of it.
pub(super) const EXIT_SIGNAL: &str = "exit-signal";

/// The event of a signal that is sent: the thread of the sample sends it.
pub(super) const SIGNAL_GENERATE: &str = "signal:signal_generate";

/// The signals that end no process by default: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG and WINCH. The
/// kernel delivers KILL instead of a fatal signal that dumps no core, and to the other threads of each
/// process that ends: the two look the same.
///
/// Sources: `signal(7)`, `complete_signal` of Linux.
const HARMLESS: [i32; 9] = [9, 17, 18, 19, 20, 21, 22, 23, 28];

impl Trigger {
    /// The events of the kernel that fire it: its kind, the event and the filter.
    pub(super) fn events(&self) -> Vec<(&'static str, String, Option<String>)> {
        match self {
            Self::Event { event, filter } => vec![(EVENT, event.clone(), filter.clone())],
            Self::ExitSignal => {
                let harmless = HARMLESS.map(|signal| format!(" && sig != {signal}")).concat();
                vec![
                    (
                        EXIT_SIGNAL,
                        "signal:signal_deliver".to_owned(),
                        Some(format!("sa_handler == 0{harmless}")),
                    ),
                    (
                        EXIT_SIGNAL,
                        SIGNAL_GENERATE.to_owned(),
                        Some("sig == 9 && result == 0".to_owned()),
                    ),
                ]
            }
            Self::SchedDelay(_)
            | Self::OnCpu(_)
            | Self::Pressure { .. }
            | Self::Dotnet(_)
            | Self::Go(_) => Vec::new(),
        }
    }

    pub(super) const fn delay(&self) -> Option<Duration> {
        if let Self::SchedDelay(limit) = self { Some(*limit) } else { None }
    }

    pub(super) const fn on_cpu(&self) -> Option<Duration> {
        if let Self::OnCpu(limit) = self { Some(*limit) } else { None }
    }
}

impl FromStr for Trigger {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, value) = text.split_once('=').map_or((text, None), |(k, v)| (k, Some(v)));
        let need = |what: &str| value.ok_or_else(|| format!("{kind} needs a value: {kind}={what}"));
        match kind {
            "sched-delay" => Ok(Self::SchedDelay(with_unit(need("10ms")?)?)),
            "on-cpu" => Ok(Self::OnCpu(with_unit(need("100ms")?)?)),
            EXIT_SIGNAL if value.is_none() => Ok(Self::ExitSignal),
            "event" => {
                let value = need("SYSTEM:NAME")?;
                let (event, filter) = match value.split_once(" if ") {
                    Some((event, filter)) => (event, Some(filter.trim().to_owned())),
                    None => (value, None),
                };
                let event = event.trim().to_owned();
                if event.is_empty() || filter.as_ref().is_some_and(String::is_empty) {
                    return Err(
                        "expected event=SYSTEM:NAME or event='SYSTEM:NAME if FILTER'".into()
                    );
                }
                Ok(Self::Event { event, filter })
            }
            "psi" => pressure(need("cpu:some:200ms/2s")?),
            "gc-pause" => Ok(Self::Dotnet(DotnetTrigger::GcPause(with_unit(need("20ms")?)?))),
            "dotnet-event" => {
                let (provider, event) = need("PROVIDER/EVENT")?
                    .split_once('/')
                    .filter(|(provider, event)| !provider.is_empty() && !event.is_empty())
                    .ok_or("expected dotnet-event=PROVIDER/EVENT")?;
                let (provider, event) = (provider.to_owned(), event.to_owned());
                Ok(Self::Dotnet(DotnetTrigger::Event { provider, event }))
            }
            "dotnet-counter" => counter(need("PROVIDER/COUNTER>VALUE")?),
            "go-region" => {
                let (ty, limit) = typed(need("TYPE:100ms")?)?;
                Ok(Self::Go(GoTrigger::Region { ty, limit }))
            }
            "go-task" => {
                let (ty, limit) = typed(need("TYPE:100ms")?)?;
                Ok(Self::Go(GoTrigger::Task { ty, limit }))
            }
            "go-stw" => Ok(Self::Go(GoTrigger::StopTheWorld(with_unit(need("1ms")?)?))),
            _ => Err("expected sched-delay=TIME, on-cpu=TIME, exit-signal, \
                      event=SYSTEM:NAME [if FILTER], psi=RESOURCE:some|full:TIME/WINDOW, \
                      gc-pause=TIME, dotnet-event=PROVIDER/EVENT, \
                      dotnet-counter=PROVIDER/COUNTER>VALUE, go-region=[TYPE:]TIME, \
                      go-task=[TYPE:]TIME or go-stw=TIME"
                .to_owned()),
        }
    }
}

/// A time, and the type before it.
fn typed(value: &str) -> Result<(Option<String>, Duration), String> {
    match value.rsplit_once(':') {
        Some((ty, limit)) => Ok((Some(ty.to_owned()), with_unit(limit)?)),
        None => Ok((None, with_unit(value)?)),
    }
}

fn counter(value: &str) -> Result<Trigger, String> {
    let bad = || "expected dotnet-counter=PROVIDER/COUNTER>VALUE, or < instead of >".to_owned();
    let at = value.rfind(['<', '>']).ok_or_else(bad)?;
    let (what, limit) = value.split_at(at);
    let is_above = limit.starts_with('>');
    let limit: f64 = limit.get(1..).unwrap_or_default().trim().parse().map_err(|_| bad())?;
    let (provider, name) = what.trim().split_once('/').ok_or_else(bad)?;
    if provider.is_empty() || name.is_empty() || !limit.is_finite() {
        return Err(bad());
    }
    let (provider, name) = (provider.to_owned(), name.to_owned());
    Ok(Trigger::Dotnet(DotnetTrigger::Counter { provider, name, is_above, limit }))
}

/// The windows of pressure that the kernel accepts: `WINDOW_MIN_US` and `WINDOW_MAX_US` of `kernel/sched/psi.c`.
const WINDOWS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The unit of a stall.
const LEAST_STALL: Duration = Duration::from_micros(1);

fn pressure(value: &str) -> Result<Trigger, String> {
    let bad =
        || "expected psi=RESOURCE:some|full:TIME/WINDOW, such as psi=io:full:200ms/2s".to_owned();
    let mut parts = value.splitn(3, ':');
    let (resource, line) = (parts.next().ok_or_else(bad)?, parts.next().ok_or_else(bad)?);
    let (stall, window) = parts.next().and_then(|rest| rest.split_once('/')).ok_or_else(bad)?;
    if !["cpu", "io", "memory", "irq"].contains(&resource) || !["some", "full"].contains(&line) {
        return Err(bad());
    }
    let (stall, window) = (with_unit(stall)?, with_unit(window)?);
    if stall > window {
        return Err(format!("{stall:?} of {window:?} cannot be"));
    }
    if stall < LEAST_STALL {
        return Err(format!("the stall is at least {LEAST_STALL:?}, not {stall:?}"));
    }
    if window < WINDOWS.0 || window > WINDOWS.1 {
        return Err(format!(
            "the window is from {:?} to {:?}, not {window:?}",
            WINDOWS.0, WINDOWS.1
        ));
    }
    if resource == "irq" && line == "some" {
        return Err("the kernel has psi=irq:full only".to_owned());
    }
    Ok(Trigger::Pressure { resource: resource.to_owned(), line: line.to_owned(), stall, window })
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SchedDelay(limit) => write!(f, "sched-delay={limit:?}"),
            Self::OnCpu(limit) => write!(f, "on-cpu={limit:?}"),
            Self::Event { event, filter: None } => write!(f, "event={event}"),
            Self::Event { event, filter: Some(filter) } => write!(f, "event={event} if {filter}"),
            Self::ExitSignal => f.write_str(EXIT_SIGNAL),
            Self::Pressure { resource, line, stall, window } => {
                write!(f, "psi={resource}:{line}:{stall:?}/{window:?}")
            }
            Self::Dotnet(trigger) => trigger.fmt(f),
            Self::Go(trigger) => trigger.fmt(f),
        }
    }
}

impl fmt::Display for DotnetTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GcPause(limit) => write!(f, "gc-pause={limit:?}"),
            Self::Event { provider, event } => write!(f, "dotnet-event={provider}/{event}"),
            Self::Counter { provider, name, is_above, limit } => {
                let sign = if *is_above { '>' } else { '<' };
                write!(f, "dotnet-counter={provider}/{name}{sign}{limit}")
            }
        }
    }
}

impl fmt::Display for GoTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, ty, limit) = match self {
            Self::Region { ty, limit } => ("region", ty.as_deref(), limit),
            Self::Task { ty, limit } => ("task", ty.as_deref(), limit),
            Self::StopTheWorld(limit) => ("stw", None, limit),
        };
        match ty {
            Some(ty) => write!(f, "go-{kind}={ty}:{limit:?}"),
            None => write!(f, "go-{kind}={limit:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_are_written_as_they_are_read() {
        for text in [
            "sched-delay=10ms",
            "on-cpu=1.5s",
            "exit-signal",
            "event=sched:sched_process_exec",
            "event=signal:signal_generate if sig == 10 && pid != 1",
            "psi=cpu:some:200ms/2s",
            "psi=memory:full:1ms/500ms",
            "gc-pause=20ms",
            "dotnet-event=Microsoft-Windows-DotNETRuntime/ExceptionThrown",
            "dotnet-counter=System.Runtime/cpu-usage>90",
            "dotnet-counter=App/free<0.5",
            "go-region=10ms",
            "go-region=a:b:10ms",
            "go-task=request:1s",
            "go-stw=1ms",
        ] {
            assert_eq!(text.parse::<Trigger>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_triggers_are_refused() {
        for text in [
            "",
            "sched-delay",
            "sched-delay=",
            "sched-delay=10",
            "on-cpu=0s",
            "exit-signal=9",
            "event",
            "event= ",
            "event= if pid > 1",
            "event=sched:sched_switch if ",
            "psi=cpu",
            "psi=memory:some:100ms/100s",
            "psi=memory:some:100ms/400ms",
            "psi=irq:some:100ms/2s",
            "psi=disk:some:1ms/2s",
            "psi=cpu:all:1ms/2s",
            "psi=cpu:some:3s/2s",
            "psi=cpu:some:0.5us/2s",
            "gc-pause",
            "dotnet-event=provider",
            "dotnet-event=/event",
            "dotnet-counter=System.Runtime/cpu-usage",
            "dotnet-counter=cpu-usage>1",
            "dotnet-counter=a/b>x",
            "go-region=a:",
            "go-task=a",
            "go-stw=a:1ms",
            "unknown=1",
        ] {
            assert!(text.parse::<Trigger>().is_err(), "{text}");
        }
        "psi=cpu:some:1us/2s".parse::<Trigger>().unwrap();
    }
}
