//! Triggers of .NET runtimes, from the streams of their sessions.

use crate::commands::flight::inbox::Outbox;
use crate::commands::flight::trigger::DotnetTrigger;
use diag_ipc::{Level, Provider};
use nettrace::analysis::{CounterTracker, GcTracker, SuspendReason};
use nettrace::{Event, Limits, Options, Order, Parser, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trace_flight::Cause;

/// Bytes of a block of a stream: the runtime's have 100 KB.
const MAX_BLOCK: usize = 16 << 20;

/// Options for a stream that is read while it comes.
pub(super) fn stream_options() -> Options {
    let limits = Limits { max_buffer: MAX_BLOCK, ..Limits::default() };
    // No order across threads, and no delay.
    Options::new().order(Order::Stream).limits(limits)
}

/// The process of a stream.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) name: String,
}

/// Reads a stream, and posts what fires triggers.
pub(super) struct DotnetWatch {
    parser: Parser,
    gc: GcTracker,
    counters: CounterTracker,
    triggers: Vec<DotnetTrigger>,
    process: Process,
    outbox: Outbox,
    /// Whether this is the session whose events fire: a process can have two for a moment.
    leads: Arc<AtomicBool>,
}

impl DotnetWatch {
    pub(super) fn new(
        triggers: Vec<DotnetTrigger>,
        process: Process,
        outbox: &Outbox,
        leads: &Arc<AtomicBool>,
    ) -> Self {
        Self {
            parser: Parser::new(stream_options()),
            gc: GcTracker::new(),
            counters: CounterTracker::new(),
            triggers,
            process,
            outbox: outbox.clone(),
            leads: Arc::clone(leads),
        }
    }

    /// Reads bytes of the stream.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let Self { parser, gc, counters, triggers, process, outbox, leads } = self;
        parser.push(bytes);
        loop {
            let causes = match parser.next_event() {
                Ok(Some(event)) => causes(&event, gc, counters, triggers, process),
                Ok(None) => return,
                // A block that is damaged was skipped; the file has it.
                Err(_) => continue,
            };
            if leads.load(Ordering::Relaxed) {
                causes.into_iter().for_each(|cause| outbox.fired(cause));
            }
        }
    }
}

fn causes(
    event: &Event<'_>,
    gc: &mut GcTracker,
    counters: &mut CounterTracker,
    triggers: &[DotnetTrigger],
    process: &Process,
) -> Vec<Cause> {
    let Process { pid, name } = process;
    let mut causes = Vec::new();
    let mut fire = |kind: &str, what: String, at: Timestamp, tid: u64| {
        let mut cause = Cause::new(kind, format!("{name} ({pid}): {what}"));
        (cause.time, cause.pid) = (Some(at), Some(*pid));
        // In another PID namespace, its threads have other ids, too.
        let has_our_ids = event.pid() == u64::from(*pid);
        cause.tid = u32::try_from(tid).ok().filter(|_| has_our_ids);
        causes.push(cause);
    };
    let ended = gc.push(event);
    // They are about whole GCs.
    while gc.next_gc().is_some() {}
    let counter = counters.push(event);
    for trigger in triggers {
        match trigger {
            DotnetTrigger::GcPause(limit) => {
                let Some(pause) = &ended else { continue };
                if !matches!(pause.reason, SuspendReason::Gc | SuspendReason::GcPrep) {
                    continue;
                }
                let time = pause.end - pause.start;
                if time >= *limit {
                    let number = pause.gc.map_or_else(String::new, |number| format!(" {number}"));
                    let what = format!("GC{number} paused it for {time:?}");
                    fire("gc-pause", what, pause.end, pause.tid);
                }
            }
            DotnetTrigger::Event { provider, event: wanted } => {
                if event.provider() == provider && event.name() == wanted {
                    let at = event.time();
                    fire("dotnet-event", format!("{provider}/{wanted}"), at, event.tid());
                }
            }
            DotnetTrigger::Counter { provider, name, .. } => {
                let Some(counter) = &counter else { continue };
                // The interval is not that of this session if another one has a shorter one.
                let value = counter.per_second().unwrap_or(counter.value);
                if trigger.fires(&counter.provider, &counter.name, value) {
                    let what = format!("{provider}/{name} was {value}");
                    fire("dotnet-counter", what, event.time(), event.tid());
                }
            }
        }
    }
    causes
}

/// The providers that triggers need beside those that are always recorded.
pub(super) fn providers(triggers: &[DotnetTrigger], always: Vec<Provider>) -> Vec<Provider> {
    /// Interval between values of counters, in seconds.
    const COUNTERS: &str = "EventCounterIntervalSec=1";
    let mut providers = always;
    for trigger in triggers {
        let (name, is_counter) = match trigger {
            DotnetTrigger::GcPause(_) => continue,
            DotnetTrigger::Event { provider, .. } => (provider, false),
            DotnetTrigger::Counter { provider, .. } => (provider, true),
        };
        let at = providers.iter().position(|provider| provider.name == *name);
        let at = at.unwrap_or_else(|| {
            let new = Provider::new(name).level(Level::Informational);
            // Events of counters have no keywords. Others of their source need no room on the disk.
            let is_event = |trigger: &DotnetTrigger| matches!(trigger, DotnetTrigger::Event { provider, .. } if provider == name);
            let is_event = triggers.iter().any(is_event);
            providers.push(if is_event { new } else { new.keywords(0) });
            providers.len() - 1
        });
        if let Some(provider) = providers.get_mut(at).filter(|_| is_counter) {
            COUNTERS.clone_into(&mut provider.arguments);
        }
    }
    providers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_enabled_once() {
        let triggers: Vec<DotnetTrigger> = [("A", false), ("B", true), ("A", true)]
            .map(|(provider, is_counter)| {
                let (provider, name) = (provider.to_owned(), "x".to_owned());
                match is_counter {
                    false => DotnetTrigger::Event { provider, event: name },
                    true => DotnetTrigger::Counter { provider, name, is_above: true, limit: 1.0 },
                }
            })
            .into();
        let own = Provider::new("B").keywords(7).level(Level::Warning);
        let with = "EventCounterIntervalSec=1";
        let found = |always| {
            let all = providers(&triggers, always);
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let (a, recorded) = (format!("A:{:#x}:4:{with}", u64::MAX), format!("B:0x7:3:{with}"));
        assert_eq!(found(vec![own]), [recorded, a.clone()]);
        // One that only has a counter is recorded without its other events.
        assert_eq!(found(Vec::new()), [a, format!("B:0x0:4:{with}")]);
    }

    /// A stream of version 6 with the value of the counter `c` of the source `P`: the increment in an interval
    /// of this length.
    fn stream(increment: f64, seconds: f64) -> Vec<u8> {
        const DOUBLE: u8 = 14;
        const TEXT: u8 = 18;
        let short = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        let sized = |bytes: Vec<u8>| [&(bytes.len() as u16).to_le_bytes()[..], &bytes].concat();
        let block = |kind: u8, content: Vec<u8>| {
            [&(content.len() as u32 | u32::from(kind) << 24).to_le_bytes()[..], &content].concat()
        };
        // SYSTEMTIME, ticks then, ticks per second, bytes of a pointer, number of properties.
        let date = [2026u16, 11, 6, 21, 4, 30, 15, 250].map(u16::to_le_bytes).concat();
        let ticks = [1_000i64, 1_000_000_000].map(i64::to_le_bytes).concat();
        let trace = [date, ticks, [8u32, 0].map(u32::to_le_bytes).concat()].concat();
        let fields = [("Name", TEXT), ("Increment", DOUBLE), ("IntervalSec", DOUBLE)];
        let fields = fields.map(|(name, ty)| sized([short(name), vec![ty]].concat())).concat();
        let names = [vec![1], short("P"), vec![1], short("EventCounters")].concat();
        let row = [names, vec![3, 0], fields, vec![0, 0]].concat();
        // Number, id of the process (2), id of the thread (3).
        let thread = sized(vec![1, 2, 41, 3, 42]);
        let mut payload = vec![b'c', 0, 0, 0];
        payload.extend([increment, seconds].map(f64::to_le_bytes).concat());
        let mut events = vec![20, 0, 1];
        events.resize(20, 0);
        events.extend([0xc7, 1, 0, 1, 0, 1, 5, payload.len() as u8]);
        [
            [&b"Nettrace"[..], &[0, 6, 0].map(u32::to_le_bytes).concat()].concat(),
            block(1, trace),
            block(6, thread),
            block(3, [vec![0, 0], sized(row)].concat()),
            block(2, [events, payload].concat()),
            vec![0; 4],
        ]
        .concat()
    }

    /// The runtime has the shortest interval of all sessions.
    #[test]
    fn a_rate_fires_by_its_value_per_second() {
        let fired = |pid, increment, seconds| {
            let (inbox, outbox) = crate::commands::flight::inbox::new().unwrap();
            let trigger = DotnetTrigger::Counter {
                provider: "P".to_owned(),
                name: "c".to_owned(),
                is_above: true,
                limit: 50.0,
            };
            let process = Process { pid, name: "app".to_owned() };
            let leads = Arc::new(AtomicBool::new(true));
            DotnetWatch::new(vec![trigger], process, &outbox, &leads)
                .push(&stream(increment, seconds));
            let causes = inbox.fired().causes;
            let of = |cause: Cause| (cause.what, cause.pid, cause.tid);
            causes.into_iter().map(of).collect::<Vec<_>>()
        };
        let what = |pid: u32| format!("app ({pid}): P/c was 80");
        assert_eq!(fired(41, 10.0, 0.125), [(what(41), Some(41), Some(42))]);
        assert!(fired(41, 60.0, 2.0).is_empty());
        // It is process 41 in a PID namespace of its own, and so is its thread one of that.
        assert_eq!(fired(4041, 10.0, 0.125), [(what(4041), Some(4041), None)]);
    }

    #[test]
    fn values_fire_above_or_below() {
        let of = |is_above| DotnetTrigger::Counter {
            provider: "P".to_owned(),
            name: "c".to_owned(),
            is_above,
            limit: 5.0,
        };
        assert!(of(true).fires("P", "c", 6.0) && !of(true).fires("P", "c", 5.0));
        assert!(of(false).fires("P", "c", 4.0) && !of(false).fires("P", "c", f64::NAN));
        assert!(!of(true).fires("Q", "c", 6.0) && !of(true).fires("P", "d", 6.0));
    }
}
