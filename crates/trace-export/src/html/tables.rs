//! The tables of the report.

use super::json;
use std::cmp::Reverse;
use trace_timeline::answers::{Histogram, Report, Waker};
use trace_timeline::{EntityId, LossKind, Occupant, Tables, TextId, text};

/// Rows of a table.
const MAX_ROWS: usize = 200;

/// A cell: the page writes durations with a unit.
enum Cell {
    Text(String),
    Count(u64),
    Nanos(i64),
}

struct Table {
    title: &'static str,
    note: &'static str,
    columns: &'static [&'static str],
    rows: Vec<Vec<Cell>>,
}

/// `[{"title","note","columns","rows","more"}, …]`
pub(super) fn write(out: &mut String, report: &Report, tables: &Tables) {
    let view = View { report, tables };
    let all = [
        view.threads(),
        view.goroutines(),
        view.waits(),
        view.preempters(),
        view.wakers(),
        view.pauses(),
        view.collections(),
    ];
    let filled = all.into_iter().filter(|table| !table.rows.is_empty());
    json::list(out, filled, |out, table| {
        out.push_str("{\"title\":");
        json::text(out, table.title);
        out.push_str(",\"note\":");
        json::text(out, table.note);
        out.push_str(",\"columns\":");
        json::list(out, table.columns, |out, name| json::text(out, name));
        out.push_str(",\"more\":");
        json::number(out, table.rows.len().saturating_sub(MAX_ROWS));
        out.push_str(",\"rows\":");
        json::list(out, table.rows.iter().take(MAX_ROWS), |out, row| {
            json::list(out, row, |out, cell| match cell {
                Cell::Text(text) => json::text(out, text),
                Cell::Count(count) => json::number(out, count),
                Cell::Nanos(nanos) => {
                    out.push('[');
                    json::number(out, nanos);
                    out.push(']');
                }
            });
        });
        out.push('}');
    });
}

/// What a loss is, as text.
pub(super) const fn loss(kind: LossKind) -> &'static str {
    match kind {
        LossKind::SchedulerRecords => "scheduler records lost: the buffer of a CPU was full",
        LossKind::UnreportedSwitch => {
            "switches that the kernel did not report; states were repaired"
        }
        LossKind::GoTrace => "damaged part of a Go trace",
        LossKind::DotnetEvents => ".NET events lost: the buffers of the runtime were full",
        _ => "other loss",
    }
}

struct View<'a> {
    report: &'a Report,
    tables: &'a Tables,
}

impl View<'_> {
    fn entity(&self, id: Option<EntityId>) -> Cell {
        Cell::Text(id.map_or("?".to_owned(), |id| text::name(self.tables, id)))
    }

    fn text(&self, id: TextId) -> Cell {
        let text = self.tables.str(id);
        Cell::Text(if text.is_empty() { "(unknown)".to_owned() } else { text.into_owned() })
    }

    fn threads(&self) -> Table {
        let mut threads: Vec<_> = self.report.threads.iter().collect();
        threads.sort_by_key(|(_, report)| Reverse(report.times.on_cpu));
        let rows = threads.into_iter().map(|(thread, report)| {
            let parent = self.tables.entities.get(*thread).and_then(|thread| thread.parent);
            let t = &report.times;
            vec![
                self.entity(Some(*thread)),
                self.entity(parent),
                Cell::Nanos(t.on_cpu),
                Cell::Nanos(t.preempted),
                Cell::Nanos(t.woken),
                Cell::Nanos(t.sleeping),
                Cell::Nanos(t.blocked),
                Cell::Nanos(t.unknown + t.stopped),
                Cell::Nanos(report.latency.percentile(50.0) as i64),
                Cell::Nanos(report.latency.percentile(99.0) as i64),
            ]
        });
        Table {
            title: "Threads",
            note: "Latency is the time from runnable to on a CPU.",
            columns: &[
                "thread",
                "process",
                "on CPU",
                "preempted",
                "woken",
                "sleeping",
                "blocked",
                "unknown",
                "latency p50",
                "latency p99",
            ],
            rows: rows.collect(),
        }
    }

    fn goroutines(&self) -> Table {
        let mut groups: Vec<_> = self.report.groups.iter().collect();
        groups.sort_by_key(|(_, group)| Reverse(group.total() - group.waiting));
        let rows = groups.into_iter().map(|((process, entry), group)| {
            let r = &group.running;
            vec![
                self.text(*entry),
                self.entity(*process),
                Cell::Count(group.count),
                Cell::Nanos(r.on_cpu),
                Cell::Nanos(r.preempted + r.woken),
                Cell::Nanos(r.sleeping + r.blocked + r.stopped),
                Cell::Nanos(r.unknown),
                Cell::Nanos(group.syscall.total()),
                Cell::Nanos(group.runnable),
                Cell::Nanos(group.waiting),
                Cell::Nanos(group.latency.percentile(50.0) as i64),
                Cell::Nanos(group.latency.percentile(99.0) as i64),
            ]
        });
        Table {
            title: "Goroutines and .NET threads",
            note: "Running time is divided by what the kernel did with the thread.",
            columns: &[
                "entry function",
                "process",
                "count",
                "on CPU",
                "no CPU",
                "in kernel",
                "running",
                "syscall",
                "runnable",
                "waiting",
                "latency p50",
                "latency p99",
            ],
            rows: rows.collect(),
        }
    }

    fn durations(histogram: &Histogram) -> [Cell; 5] {
        [
            Cell::Count(histogram.count()),
            Cell::Nanos(i64::try_from(histogram.sum()).unwrap_or(i64::MAX)),
            Cell::Nanos(histogram.percentile(50.0) as i64),
            Cell::Nanos(histogram.percentile(99.0) as i64),
            Cell::Nanos(i64::try_from(histogram.max()).unwrap_or(i64::MAX)),
        ]
    }

    fn by_sum<'a, K>(
        &self,
        of: impl Iterator<Item = (K, &'a Histogram)>,
        mut name: impl FnMut(&Self, K) -> [Cell; 2],
    ) -> Vec<Vec<Cell>> {
        let mut all: Vec<_> = of.collect();
        all.sort_by_key(|(_, histogram)| Reverse(histogram.sum()));
        let rows = all.into_iter().map(|(key, histogram)| {
            name(self, key).into_iter().chain(Self::durations(histogram)).collect()
        });
        rows.collect()
    }

    fn waits(&self) -> Table {
        let waits = self.report.waits.iter().map(|(key, waits)| (key, &waits.durations));
        Table {
            title: "Waits of goroutines",
            note: "",
            columns: &["reason", "process", "count", "sum", "p50", "p99", "max"],
            rows: self.by_sum(waits, |this, (process, reason)| {
                [this.text(*reason), this.entity(*process)]
            }),
        }
    }

    fn pauses(&self) -> Table {
        Table {
            title: "Stop-the-world pauses",
            note: "From the request to the resumption.",
            columns: &["reason", "process", "count", "sum", "p50", "p99", "max"],
            rows: self.by_sum(self.report.pauses.iter(), |this, (process, reason)| {
                [this.text(*reason), this.entity(Some(*process))]
            }),
        }
    }

    fn collections(&self) -> Table {
        Table {
            title: "Garbage collections",
            note: "",
            columns: &["phase", "process", "count", "sum", "p50", "p99", "max"],
            rows: self.by_sum(self.report.collections.iter(), |this, process| {
                [Cell::Text("mark phase or collection".to_owned()), this.entity(*process)]
            }),
        }
    }

    fn preempters(&self) -> Table {
        let mut all: Vec<_> = self.report.preempters.iter().collect();
        all.sort_by_key(|(_, p)| Reverse(p.preempted + p.woken));
        let rows = all.into_iter().map(|((process, occupant), p)| {
            let who = match occupant {
                Occupant::Thread(thread) => self.entity(Some(*thread)),
                Occupant::Idle => {
                    Cell::Text("idle (CPU quota, cpuset, or wake-up of the CPU)".to_owned())
                }
                Occupant::Unrecorded => Cell::Text("a thread that was not recorded".to_owned()),
                Occupant::Unknown => Cell::Text("unknown".to_owned()),
            };
            let times = [Cell::Nanos(p.preempted), Cell::Nanos(p.woken), Cell::Count(p.count)];
            [who, self.entity(*process)].into_iter().chain(times).collect()
        });
        Table {
            title: "Who had the CPU that threads waited for",
            note: "",
            columns: &["on the CPU", "waiting process", "preempted", "woken", "count"],
            rows: rows.collect(),
        }
    }

    fn wakers(&self) -> Table {
        let mut all: Vec<_> = self.report.wakers.iter().collect();
        all.sort_by_key(|(_, count)| Reverse(**count));
        let rows = all.into_iter().map(|((process, waker), count)| {
            let who = match waker {
                Waker::Goroutines(_, entry) => self.text(*entry),
                Waker::Thread(thread) => self.entity(Some(*thread)),
                Waker::HardIrq => Cell::Text("hardware interrupt".to_owned()),
                Waker::SoftIrq => Cell::Text("software interrupt (network, timers)".to_owned()),
                _ => Cell::Text("unknown".to_owned()),
            };
            vec![who, self.entity(*process), Cell::Count(*count)]
        });
        Table {
            title: "Who woke",
            note: "",
            columns: &["waker", "in process", "wake-ups"],
            rows: rows.collect(),
        }
    }
}
