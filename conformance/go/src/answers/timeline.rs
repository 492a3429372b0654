//! The timeline of a recording, and its answers.

use super::recorder::Recorded;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use task_support::Result;
use trace_timeline::answers::{
    CriticalPath, History, Piece, Report, Request, RequestFilter, Requests, What, critical_path,
};
use trace_timeline::sources::dotnet::DotnetSource;
use trace_timeline::sources::go::GoSource;
use trace_timeline::{Correlator, EntityId, Event, Kernel, SpanKind, Streams, Tables, Timestamp};

/// Run time of threads by thread id as the kernel counted it, and when it was read.
pub(super) type RunTimes = BTreeMap<i64, (i64, Timestamp)>;

/// The timeline of one or more programs.
pub(super) struct Timeline {
    pub(super) tables: Tables,
    pub(super) report: Report,
    pub(super) history: History,
    pub(super) requests: Vec<Request>,
    /// The most steal time, in nanoseconds.
    pub(super) steal: i64,
}

pub(super) fn percent(found: i64, expected: i64) -> f64 {
    (found - expected).abs() as f64 * 100.0 / expected.max(1) as f64
}

pub(super) fn ms(nanos: i64) -> f64 {
    nanos as f64 / 1e6
}

/// Fails unless the value is within this percentage of the expected one.
pub(super) fn within(what: &str, found: i64, expected: i64, most: f64) -> Result<()> {
    let difference = percent(found, expected);
    let text = format!("{:.3} ms, expected {:.3} ms: {difference:.2} %", ms(found), ms(expected));
    eprintln!("{what}: {text}");
    if difference > most {
        return Err(format!("{what}: {text}, more than {most} % off").into());
    }
    Ok(())
}

/// The same where a part is not known, which may belong to the value.
pub(super) fn within_unknown(
    what: &str,
    found: i64,
    unknown: i64,
    expected: i64,
    most: f64,
) -> Result<()> {
    eprintln!("{what}: {:.3} ms, and {:.3} ms that are not known", ms(found), ms(unknown));
    within(what, expected.clamp(found, found + unknown), expected, most)
}

/// CPU time within 2 % of what the kernel counted, which leaves out steal time.
pub(super) fn within_steal(
    what: &str,
    on_cpu: i64,
    unknown: i64,
    steal: i64,
    counted: i64,
) -> Result<()> {
    within_unknown(what, on_cpu - steal, unknown + steal, counted, 2.0)
}

/// The time of stops within 2 % of what the runtime counted. Their events enclose that: by up to `events`,
/// and by steal time, of which a tenth of the whole is allowed.
pub(super) fn within_stops(
    what: &str,
    sum: i64,
    events: i64,
    steal: i64,
    counted: i64,
) -> Result<()> {
    let around = events + steal.min(counted / 10);
    within_unknown(what, sum - around, around, counted, 2.0)
}

pub(super) fn require(what: &str, holds: bool, why: String) -> Result<()> {
    eprintln!("{what}: {why}");
    if holds { Ok(()) } else { Err(format!("{what}: {why}").into()) }
}

/// Sums of threads, in nanoseconds.
#[derive(Default)]
pub(super) struct OnCpu {
    pub(super) on_cpu: i64,
    /// The timeline marks it as unknown: switches that this kernel does not report.
    pub(super) unknown: i64,
    /// From being woken to the CPU, of each wake-up up to [`OnCpu::EACH_WAKE`].
    pub(super) woken: i64,
}

impl OnCpu {
    /// The most nanoseconds that the kernel counts before a switch: it counts from the wake-up that
    /// preempts another thread or ends the idle state of a CPU. In a nested virtual machine, where one
    /// CPU is slow to interrupt another one, that is 29 us if the other one is busy, of 33 us from the
    /// wake-up to the switch, and 12 us if it is idle. Elsewhere it is 2 us.
    pub(super) const EACH_WAKE: i64 = 40_000;

    /// What the kernel may count as CPU time of these waits for a CPU.
    pub(super) fn woken(waits: impl Iterator<Item = i64>) -> i64 {
        waits.map(|nanos| nanos.min(Self::EACH_WAKE)).sum()
    }

    /// Fails unless it is what the kernel counted within 1 %, except for what is unknown, steal time and
    /// what it counts before switches.
    pub(super) fn check(&self, what: &str, steal: i64, expected: i64) -> Result<()> {
        let Self { on_cpu, unknown, woken } = *self;
        let text = format!(
            "{:.3} ms, expected {:.3} ms; {:.3} ms unknown, {:.3} ms until woken threads had a CPU, {:.0} ms \
             of steal time",
            ms(on_cpu),
            ms(expected),
            ms(unknown),
            ms(woken),
            ms(steal)
        );
        let least = expected - expected / 100 - unknown - woken;
        let most = expected + expected / 100 + steal;
        let holds = expected > 0 && (least..=most).contains(&on_cpu);
        require(what, holds, text)
    }
}

impl Timeline {
    /// The timeline of a recording, of the Go trace in this file and of .NET traces.
    pub(super) fn of(
        (recorded, mut tables): (Recorded, Tables),
        go: Option<&Path>,
        dotnet: &[Vec<u8>],
    ) -> Result<Self> {
        let mut streams = Streams::new();
        for events in [recorded.kernel, recorded.quota] {
            let mut events = Some(events);
            streams.add(move |_: &mut Tables, out: &mut Vec<Event>| {
                out.extend(events.take().unwrap_or_default());
                Ok(false)
            });
        }
        if let Some(trace) = go {
            let mut reader = gotrace::Reader::new(BufReader::new(File::open(trace)?))?;
            let mut source = GoSource::new(Default::default());
            streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
                let Some(event) = reader.next_event()? else { return Ok(false) };
                source.push(event, tables, out);
                Ok(true)
            });
        }
        for bytes in dotnet {
            let mut reader = nettrace::Reader::new(&bytes[..]);
            let mut source = DotnetSource::new(0);
            streams.add(move |tables: &mut Tables, out: &mut Vec<Event>| {
                let Some(item) = reader.next_item()? else { return Ok(false) };
                source.push(&item, tables, out);
                Ok(true)
            });
        }
        let mut correlator = Correlator::new();
        let mut report = Report::new();
        let mut requests = Requests::new(RequestFilter::default(), usize::MAX);
        let mut history = History::new(Timestamp::from_nanos(i64::MIN), Timestamp::MAX);
        while let Some(event) = streams.next_event(&mut tables)? {
            correlator.push(event, &tables.entities, &mut |derived| {
                report.push(&derived, &tables.entities);
                requests.push(&derived);
                history.push(&derived);
            });
        }
        correlator.finish(&mut |derived| {
            report.push(&derived, &tables.entities);
            history.push(&derived);
        });
        history.finish();
        let requests = requests.into_worst();
        Ok(Self { tables, report, history, requests, steal: recorded.steal })
    }

    pub(super) fn number(&self, id: EntityId) -> i64 {
        self.tables.entities.get(id).map_or(0, |entity| entity.number)
    }

    pub(super) fn name(&self, id: EntityId) -> String {
        self.tables.entities.get(id).map_or_else(String::new, |e| self.tables.str(e.name).into())
    }

    /// The sum of the threads' times on a CPU is what the kernel counted.
    pub(super) fn check_threads(&self, measured: &RunTimes) -> Result<()> {
        let (mut sums, mut expected) = (OnCpu::default(), 0);
        for thread in self.report.threads.keys() {
            let Some((run, read)) = measured.get(&self.number(*thread)) else { continue };
            let mut woken = 0;
            for interval in self.history.intervals(*thread) {
                let nanos = interval.end.min(*read).nanos_since(interval.start).max(0);
                match interval.kernel {
                    Kernel::OnCpu { .. } => {
                        sums.on_cpu += nanos;
                        sums.woken += woken.min(OnCpu::EACH_WAKE);
                    }
                    Kernel::Unknown => sums.unknown += nanos,
                    _ => {}
                }
                woken = match interval.kernel {
                    Kernel::Runnable { is_preempted: false, .. } => woken + nanos,
                    _ => 0,
                };
            }
            expected += run;
        }
        sums.check("on CPU, all threads", self.steal, expected)
    }

    /// The critical path of the longest request with this name.
    pub(super) fn path(&self, kind: SpanKind, name: &str) -> Result<CriticalPath> {
        let is_it = |r: &&Request| r.kind == kind && self.tables.str(r.name) == name;
        let r = self.requests.iter().find(is_it).ok_or_else(|| format!("no {name}"))?;
        let entities = &self.tables.entities;
        let path = critical_path(&self.history, entities, r.subject, r.start, r.end, r.task);
        let total: i64 = path.pieces.iter().map(Piece::nanos).sum();
        if total != r.nanos() {
            return Err(format!("{name}: pieces of {total} ns, not {}", r.nanos()).into());
        }
        let mut sums: BTreeMap<String, i64> = BTreeMap::new();
        for piece in &path.pieces {
            let what = format!("{:?}", piece.what);
            let what = what.split([' ', '{']).next().unwrap_or_default().to_owned();
            *sums.entry(what).or_default() += piece.nanos();
        }
        let sums: Vec<String> =
            sums.iter().map(|(what, nanos)| format!("{what} {:.3} ms", ms(*nanos))).collect();
        eprintln!("{name}: {}", sums.join(", "));
        Ok(path)
    }
}

pub(super) const fn is_on_cpu(what: &What) -> bool {
    matches!(what, What::OnCpu { .. })
}

pub(super) const fn is_waiting_for_cpu(what: &What) -> bool {
    matches!(what, What::WaitsForCpu { .. })
}

pub(super) fn sum(path: &CriticalPath, is_it: impl Fn(&What) -> bool) -> i64 {
    path.pieces.iter().filter(|piece| is_it(&piece.what)).map(Piece::nanos).sum()
}

/// Times of the subject alone: not of those that it waits for, as the sampler of .NET that stops it.
pub(super) fn own(path: &CriticalPath, is_it: impl Fn(&What) -> bool) -> impl Iterator<Item = i64> {
    let own = path.pieces.iter().filter(move |piece| piece.depth == 0 && is_it(&piece.what));
    own.map(Piece::nanos)
}
