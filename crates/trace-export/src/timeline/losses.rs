//! What is missing: marks on a track of losses.

use super::{Context, Drawing};
use crate::model::{Loss, Sink};
use std::collections::BTreeMap;
use std::io;
use trace_common::Timestamp;
use trace_timeline::{EntityId, LossKind, Tables, Value};

/// CPUs whose unreported switches are marked together.
///
/// Some kernels leave out a quarter of all switches: a mark for each would be a third of the file and of
/// the time that a recorder takes, and none could be seen.
#[derive(Debug, Default)]
pub(super) struct Losses {
    cpus: BTreeMap<EntityId, Unmarked>,
}

/// Losses of a CPU since its last mark.
#[derive(Clone, Copy, Debug)]
struct Unmarked {
    /// The time of the mark.
    since: Timestamp,
    count: u64,
}

/// Losses of a CPU within this time after a mark are in the next one.
const PERIOD_NANOS: i64 = 1_000_000;

const UNREPORTED: &str =
    "the kernel delivered no record of them: another thread leaves the CPU than came";

impl Losses {
    /// The losses that a mark at this time has to include, if there is one.
    fn add(&mut self, at: Timestamp, cpu: EntityId) -> Option<u64> {
        let mut unmarked = 0;
        if let Some(last) = self.cpus.get_mut(&cpu) {
            if at.nanos_since(last.since) < PERIOD_NANOS {
                last.count += 1;
                return None;
            }
            unmarked = last.count;
        }
        self.cpus.insert(cpu, Unmarked { since: at, count: 0 });
        Some(unmarked + 1)
    }
}

impl Drawing {
    pub(super) fn loss(
        &mut self,
        entity: Option<EntityId>,
        kind: LossKind,
        count: Option<u64>,
        cx: &mut Context<'_, impl Sink>,
    ) -> io::Result<()> {
        self.stats.losses += 1;
        let (what, why) = match kind {
            LossKind::UnreportedSwitch => {
                let times = entity.map_or(Some(1), |cpu| self.losses.add(cx.at, cpu));
                return times.map_or(Ok(()), |times| unreported(entity, times, cx));
            }
            LossKind::CpuOffline => {
                ("scheduler records", "the CPU went offline before this moment")
            }
            LossKind::SchedulerRecords if count.is_none() => {
                ("scheduler records", "the recording has none of the time after this moment")
            }
            LossKind::SchedulerRecords => (
                "scheduler records",
                "the buffer of the CPU was full, before this moment: record with larger buffers",
            ),
            LossKind::Samples => ("samples", "the kernel's buffer was full"),
            LossKind::GoTrace if count.is_some() => {
                ("bytes of the Go trace", "the trace is damaged")
            }
            LossKind::GoTrace => ("part of the Go trace", "the trace is damaged"),
            LossKind::DotnetEvents => {
                (".NET events", "buffers of the runtime were full, or the trace is damaged")
            }
            _ => ("records", ""),
        };
        let tables = cx.tables;
        let given = self.args.iter().find_map(|(name, value)| match value {
            Value::Text(why) if tables.get(*name) == b"why" => Some(tables.get(*why)),
            _ => None,
        });
        let what = of(what, entity, tables);
        let loss = Loss::new(what.as_bytes()).count(count).why(given.unwrap_or(why.as_bytes()));
        cx.sink.lost(cx.at, None, &loss)
    }

    /// Marks the rest.
    pub(super) fn finish_losses(&mut self, cx: &mut Context<'_, impl Sink>) -> io::Result<()> {
        let rest = std::mem::take(&mut self.losses.cpus);
        let mut rest = rest.into_iter().filter(|(_, unmarked)| unmarked.count > 0);
        rest.try_for_each(|(cpu, unmarked)| unreported(Some(cpu), unmarked.count, cx))
    }
}

/// Marks switches of a CPU that the kernel did not report.
fn unreported(
    cpu: Option<EntityId>,
    times: u64,
    cx: &mut Context<'_, impl Sink>,
) -> io::Result<()> {
    let what = of("context switches", cpu, cx.tables);
    let loss = Loss::new(what.as_bytes());
    if times == 1 {
        return cx.sink.lost(cx.at, None, &loss.why(UNREPORTED.as_bytes()));
    }
    let why = format!("{UNREPORTED} ({times} times since the last mark)");
    cx.sink.lost(cx.at, None, &loss.why(why.as_bytes()))
}

fn of(what: &str, entity: Option<EntityId>, tables: &Tables) -> String {
    match entity {
        Some(entity) => format!("{what} of {}", trace_timeline::text::name(tables, entity)),
        None => what.to_owned(),
    }
}
