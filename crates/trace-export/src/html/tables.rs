//! The tables of the report.

use super::json;
use super::refs::short;
use std::cmp::Reverse;
use trace_timeline::answers::{CpuTimes, Group, Histogram, Report};
use trace_timeline::{EntityId, Tables, TextId, Timestamp, text};

/// Rows of a table.
const MAX_ROWS: usize = 200;

/// Rows of the table of single goroutines.
const WORST_GOROUTINES: usize = 50;

/// A cell: the page writes durations with a unit.
enum Cell {
    Text(String),
    /// The process of the row.
    Process(Option<EntityId>, String),
    Count(u64),
    Nanos(i64),
    /// A time since the start, with all its digits.
    At(i64),
}

struct Table {
    title: &'static str,
    note: &'static str,
    columns: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

/// `[{"title","note","columns","rows","more"}, …]`
///
/// Rows of processes of interest, for which `of` is true, come first. `notes` are rows of what is not known.
pub(super) fn write(
    out: &mut String,
    report: &Report,
    tables: &Tables,
    notes: &[String],
    of: &dyn Fn(Option<EntityId>) -> bool,
) {
    let view = View { report, tables, of };
    let all = [
        view.threads(),
        view.goroutines(),
        view.single_goroutines(),
        view.off_cpu(),
        view.waits(),
        view.delays(),
        view.preempters(),
        view.wakers(),
        view.pauses(),
        view.longest_pauses(),
        view.gcs(),
        view.throttled(),
        view.unknown(notes),
    ];
    let filled = all.into_iter().filter(|table| !table.rows.is_empty());
    let is_other =
        |row: &Vec<Cell>| !row.iter().any(|cell| matches!(cell, Cell::Process(id, _) if of(*id)));
    json::list(out, filled, |out, mut table| {
        table.rows.sort_by_cached_key(is_other);
        out.push_str("{\"title\":");
        json::text(out, table.title);
        out.push_str(",\"note\":");
        json::text(out, table.note);
        out.push_str(",\"columns\":");
        json::list(out, &table.columns, |out, name| json::text(out, name));
        out.push_str(",\"more\":");
        json::number(out, table.rows.len().saturating_sub(MAX_ROWS));
        out.push_str(",\"rows\":");
        json::list(out, table.rows.iter().take(MAX_ROWS), |out, row| {
            json::list(out, row, |out, cell| match cell {
                Cell::Text(text) | Cell::Process(_, text) => json::text(out, text),
                Cell::Count(count) => json::number(out, count),
                Cell::Nanos(nanos) => {
                    out.push('[');
                    json::number(out, nanos);
                    out.push(']');
                }
                Cell::At(nanos) => {
                    out.push('[');
                    json::number(out, nanos);
                    out.push_str(",1]");
                }
            });
        });
        out.push('}');
    });
}

/// The columns of a histogram of latencies.
const LATENCY: [&str; 2] = ["latency p50", "latency p99"];

/// The columns `first`, those of times, and [`LATENCY`].
fn columns(first: &[&'static str], times: &[&'static str]) -> Vec<&'static str> {
    [first, times, &LATENCY].concat()
}

struct View<'a> {
    report: &'a Report,
    tables: &'a Tables,
    /// Whether a process is of interest.
    of: &'a dyn Fn(Option<EntityId>) -> bool,
}

impl View<'_> {
    fn entity(&self, id: Option<EntityId>) -> Cell {
        Cell::Text(id.map_or("?".to_owned(), |id| short(id, self.tables)))
    }

    fn process(&self, id: Option<EntityId>) -> Cell {
        Cell::Process(id, id.map_or("?".to_owned(), |id| short(id, self.tables)))
    }

    fn text(&self, id: TextId) -> Cell {
        let text = self.tables.str(id);
        Cell::Text(if text.is_empty() { "(unknown)".to_owned() } else { text.into_owned() })
    }

    fn threads(&self) -> Table {
        // Without the scheduler, every time of them would be 0.
        let has_scheduler = self.report.has_scheduler();
        let mut threads: Vec<_> = self.report.threads.iter().filter(|_| has_scheduler).collect();
        threads.sort_by_key(|(_, report)| Reverse(report.times.on_cpu));
        let rows = threads.into_iter().map(|(thread, report)| {
            let parent = self.tables.entities.get(*thread).and_then(|thread| thread.parent);
            let names = [self.entity(Some(*thread)), self.process(parent)];
            let times = report.times.columns().map(Cell::Nanos);
            names.into_iter().chain(times).chain(Self::latency(&report.latency)).collect()
        });
        Table {
            title: "Threads",
            note: "Latency is the time from runnable to on a CPU.",
            columns: columns(&["thread", "process"], &CpuTimes::COLUMNS),
            rows: rows.collect(),
        }
    }

    fn goroutines(&self) -> Table {
        let mut groups: Vec<_> = self.report.groups.iter().collect();
        groups.sort_by_key(|(_, group)| Reverse(group.active()));
        let rows = groups.into_iter().map(|((process, entry), group)| {
            let names = [self.text(*entry), self.process(*process), Cell::Count(group.count)];
            names.into_iter().chain(Self::times(group)).collect()
        });
        Table {
            title: "Goroutines and .NET threads",
            note: "Running time is divided by what the kernel did with the thread.",
            columns: columns(&["entry function", "process", "count"], &Group::COLUMNS),
            rows: rows.collect(),
        }
    }

    /// The goroutines with most scheduling latency.
    fn single_goroutines(&self) -> Table {
        let goroutines = self.report.goroutines(WORST_GOROUTINES, &self.tables.entities, self.of);
        let rows = goroutines.into_iter().map(|(goroutine, times)| {
            let process = self.tables.entities.process_of(goroutine);
            let runs = Cell::Count(times.latency.count());
            let names = [self.entity(Some(goroutine)), self.process(process), runs];
            names.into_iter().chain(Self::times(times)).collect()
        });
        Table {
            title: "Goroutines with most scheduling latency",
            note: "Those that waited longest for a P.",
            columns: columns(&["goroutine", "process", "runs"], &Group::COLUMNS),
            rows: rows.collect(),
        }
    }

    /// The values of [`Group::COLUMNS`] and [`LATENCY`].
    fn times(group: &Group) -> impl Iterator<Item = Cell> {
        group.columns().map(Cell::Nanos).into_iter().chain(Self::latency(&group.latency))
    }

    /// The values of [`LATENCY`].
    fn latency(latency: &Histogram) -> [Cell; LATENCY.len()] {
        [50.0, 99.0].map(|percent| Cell::Nanos(latency.percentile(percent) as i64))
    }

    fn off_cpu(&self) -> Table {
        let mut all: Vec<_> = self.report.off_cpu.iter().collect();
        all.sort_by_key(|(_, times)| Reverse(times.nanos));
        let rows = all.into_iter().map(|((process, reason), times)| {
            vec![
                Cell::Text(text::off_cpu(*reason, self.tables).1),
                self.process(*process),
                Cell::Count(times.count),
                Cell::Nanos(times.nanos),
                Cell::Nanos(times.longest),
            ]
        });
        Table {
            title: "Off CPU by reason",
            note: "Of goroutines, .NET threads, and threads that execute none.",
            columns: vec!["reason", "process", "count", "sum", "longest"],
            rows: rows.collect(),
        }
    }

    fn since_start(&self, at: Timestamp) -> Cell {
        Cell::At(self.report.start.map_or(0, |start| at.nanos_since(start)))
    }

    fn delays(&self) -> Table {
        let delays = self.report.longest_delays(self.of);
        let rows = delays.into_iter().map(|delay| {
            vec![
                self.entity(Some(delay.subject)),
                self.process(self.tables.entities.process_of(delay.subject)),
                Cell::Nanos(delay.nanos),
                self.since_start(delay.end),
                Cell::Text(text::occupant(delay.occupant, self.tables)),
            ]
        });
        Table {
            title: "Longest scheduling delays",
            note: "",
            columns: vec!["who", "process", "delay", "until", "its CPU had"],
            rows: rows.collect(),
        }
    }

    fn longest_pauses(&self) -> Table {
        let rows = self.report.longest_pauses(self.of).into_iter().map(|pause| {
            let late: Vec<String> =
                pause.late().take(3).map(|stop| text::late(pause, stop, self.tables)).collect();
            let stopping = pause.stopped.map(|stopped| stopped.nanos_since(pause.start));
            vec![
                self.text(pause.reason),
                self.process(Some(pause.process)),
                self.since_start(pause.start),
                Cell::Nanos(pause.end.nanos_since(pause.start)),
                stopping.map_or(Cell::Text("?".to_owned()), Cell::Nanos),
                Cell::Text(late.join("; ")),
            ]
        });
        Table {
            title: "Longest stop-the-world pauses",
            note: "Those that stopped last prolonged a pause.",
            columns: vec!["reason", "process", "at", "duration", "until all had stopped", "late"],
            rows: rows.collect(),
        }
    }

    fn throttled(&self) -> Table {
        let mut all: Vec<_> = self.report.throttled.iter().collect();
        all.sort_by_key(|(_, throttled)| Reverse(throttled.nanos));
        let rows = all.into_iter().map(|(process, t)| {
            let periods = Cell::Count(t.periods);
            vec![self.process(Some(*process)), Cell::Nanos(t.nanos), periods]
        });
        Table {
            title: "Throttled by the CPU quota of the cgroup",
            note: "Nanoseconds summed over CPUs.",
            columns: vec!["process", "time", "periods"],
            rows: rows.collect(),
        }
    }

    /// What could not be measured, and why.
    fn unknown(&self, notes: &[String]) -> Table {
        let report = self.report;
        let [.., samples] = report.samples(|_| true);
        let counts = [
            (samples, "samples: whether their thread had a CPU is not recorded"),
            (report.goroutines_dropped(), "goroutines without own times: too many lived at once"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let counts = counts.chain(text::dropped(self.tables.dropped()));
        let mut rows: Vec<Vec<Cell>> =
            counts.map(|(count, what)| vec![Cell::Text(what.into()), Cell::Count(count)]).collect();
        for (kind, losses) in report.losses(|_| true) {
            rows.push(vec![Cell::Text(text::loss(kind).into()), Cell::Count(losses.count)]);
        }
        let unknown = report.unknown(|_| true, &self.tables.entities);
        let scheduler = if report.has_scheduler() {
            vec![
                Cell::Text("time of threads before their first switch, or after a loss".into()),
                Cell::Nanos(unknown),
            ]
        } else {
            vec![
                Cell::Text(
                    "the kernel's scheduler was not recorded: running is not on a CPU".into(),
                ),
                Cell::Text(String::new()),
            ]
        };
        rows.insert(0, scheduler);
        // Their numbers are within the text.
        let notes = notes.iter().map(|note| [note.clone(), String::new()].map(Cell::Text).into());
        rows.extend(notes);
        Table { title: "Not known", note: "", columns: vec!["what", "how much"], rows }
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
            title: "Waits of goroutines and .NET threads",
            note: "",
            columns: vec!["reason", "process", "count", "sum", "p50", "p99", "max"],
            rows: self.by_sum(waits, |this, (process, reason)| {
                [this.text(*reason), this.process(*process)]
            }),
        }
    }

    fn pauses(&self) -> Table {
        Table {
            title: "Stop-the-world pauses",
            note: "From the request to the resumption.",
            columns: vec!["reason", "process", "count", "sum", "p50", "p99", "max"],
            rows: self.by_sum(self.report.pauses.iter(), |this, (process, reason)| {
                [this.text(*reason), this.process(Some(*process))]
            }),
        }
    }

    fn gcs(&self) -> Table {
        Table {
            title: "Garbage collections",
            note: "",
            columns: vec!["GC", "process", "count", "sum", "p50", "p99", "max"],
            rows: self.by_sum(self.report.gcs.iter(), |this, (process, name)| {
                [this.text(*name), this.process(*process)]
            }),
        }
    }

    fn preempters(&self) -> Table {
        let mut all: Vec<_> = self.report.preempters.iter().collect();
        all.sort_by_key(|(_, p)| Reverse(p.total()));
        let rows = all.into_iter().map(|((process, occupant), p)| {
            let who = Cell::Text(text::occupant(*occupant, self.tables));
            let times = [Cell::Nanos(p.preempted), Cell::Nanos(p.woken), Cell::Count(p.count)];
            [who, self.process(*process)].into_iter().chain(times).collect()
        });
        Table {
            title: "Who had the CPU that threads waited for",
            note: "",
            columns: vec!["on the CPU", "waiting process", "preempted", "woken", "count"],
            rows: rows.collect(),
        }
    }

    fn wakers(&self) -> Table {
        let mut all: Vec<_> = self.report.wakers.iter().collect();
        all.sort_by_key(|(_, count)| Reverse(**count));
        let rows = all.into_iter().map(|((process, waker), count)| {
            let who = Cell::Text(text::waker(*waker, self.tables));
            vec![who, self.process(*process), Cell::Count(*count)]
        });
        Table {
            title: "Who woke",
            note: "",
            columns: vec!["waker", "in process", "wake-ups"],
            rows: rows.collect(),
        }
    }
}
