//! The rows of the table, from the samples of an interval.

use super::print::label;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

/// What the rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum By {
    /// Functions
    Function,
    /// Threads
    Thread,
    /// Processes
    Process,
    /// Goroutines of Go programs (Go 1.21 to 1.27), read from their memory while they run
    Goroutine,
}

impl By {
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Function => "FUNCTION",
            Self::Thread => "THREAD",
            Self::Process => "PROCESS",
            Self::Goroutine => "GOROUTINE",
        }
    }

    /// The next one.
    pub(super) const fn next(self, has_goroutines: bool) -> Self {
        match self {
            Self::Function => Self::Thread,
            Self::Thread => Self::Process,
            Self::Process if has_goroutines => Self::Goroutine,
            Self::Process | Self::Goroutine => Self::Function,
        }
    }
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Own,
    Total,
    Name,
}

impl Sort {
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Own => Self::Total,
            Self::Total => Self::Name,
            Self::Name => Self::Own,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Own => "self",
            Self::Total => "total",
            Self::Name => "name",
        }
    }
}

/// The number and the name of a process, thread or goroutine.
pub(super) type Named = (i64, String);

/// What was sampled.
#[derive(Clone, Debug, Default)]
pub(super) struct Task {
    pub(super) process: Named,
    pub(super) thread: Named,
    pub(super) goroutine: Option<Named>,
}

/// Samples with the same stack.
#[derive(Clone, Debug, Default)]
pub(super) struct Sampled {
    pub(super) task: Task,
    /// Functions by number, innermost first.
    pub(super) path: Vec<u32>,
    /// The function that the weight is its own of.
    pub(super) own: Option<u32>,
    pub(super) weight: u64,
}

/// The samples of an interval.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    pub(super) duration: Duration,
    pub(super) samples: u64,
    pub(super) lost: u64,
    pub(super) has_goroutines: bool,
    pub(super) sampled: Vec<Sampled>,
    /// Names of functions and their files.
    pub(super) functions: Vec<(String, String)>,
}

/// A row: shares from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    /// The file of a function; the function of most samples of others.
    pub(super) detail: String,
    /// The process, thread or goroutine id.
    pub(super) id: Option<i64>,
    pub(super) own: f64,
    pub(super) total: f64,
}

impl Interval {
    fn weight(&self) -> u64 {
        self.sampled.iter().fold(0, |sum, sampled| sum.saturating_add(sampled.weight))
    }

    fn function(&self, number: u32) -> (&str, &str) {
        let function = self.functions.get(number as usize);
        function.map_or(("", ""), |(name, file)| (name, file))
    }

    /// The rows whose [label] or detail contains the filter, ignoring case.
    pub(super) fn rows(&self, by: By, sort: Sort, filter: &str) -> Vec<Row> {
        let mut rows = match by {
            By::Function => self.functions(),
            By::Thread => self.tasks(|task| Some(&task.thread)),
            By::Process => self.tasks(|task| Some(&task.process)),
            By::Goroutine => self.tasks(|task| task.goroutine.as_ref()),
        };
        let filter = filter.to_lowercase();
        let contains = |text: &str| text.to_lowercase().contains(&filter);
        rows.retain(|row| filter.is_empty() || contains(&label(row, by)) || contains(&row.detail));
        let share = |share: f64| Reverse((share * 1e12) as u64);
        rows.sort_by_cached_key(|row| {
            let by = match sort {
                Sort::Own => (share(row.own), share(row.total)),
                Sort::Total => (share(row.total), share(row.own)),
                Sort::Name => (Reverse(0), Reverse(0)),
            };
            (by, row.name.clone(), row.id)
        });
        rows
    }

    fn functions(&self) -> Vec<Row> {
        let all = self.weight().max(1) as f64;
        // Own and total weight, and the last sample that was counted.
        let mut weights: HashMap<u32, (u64, u64, usize)> = HashMap::new();
        for (number, Sampled { path, own, weight, .. }) in (1..).zip(&self.sampled) {
            if let Some(function) = own {
                let (own, ..) = weights.entry(*function).or_default();
                *own = own.saturating_add(*weight);
            }
            for function in path {
                let (_, total, last) = weights.entry(*function).or_default();
                if *last != number {
                    *total = total.saturating_add(*weight);
                    *last = number;
                }
            }
        }
        let row = |(function, (own, total, _)): (u32, (u64, u64, usize))| {
            let (name, file) = self.function(function);
            let (own, total) = (own as f64 / all, total as f64 / all);
            Row { name: name.to_owned(), detail: file.to_owned(), id: None, own, total }
        };
        weights.into_iter().map(row).collect()
    }

    fn tasks(&self, of: impl Fn(&Task) -> Option<&Named>) -> Vec<Row> {
        let all = self.weight().max(1) as f64;
        let mut weights: HashMap<Option<&Named>, (u64, HashMap<u32, u64>)> = HashMap::new();
        for Sampled { task, own, weight, .. } in &self.sampled {
            let (sum, functions) = weights.entry(of(task)).or_default();
            *sum = sum.saturating_add(*weight);
            if let Some(function) = own {
                let own = functions.entry(*function).or_default();
                *own = own.saturating_add(*weight);
            }
        }
        let row = |(task, (sum, functions)): (Option<&Named>, (u64, HashMap<u32, u64>))| {
            let most =
                functions.into_iter().max_by_key(|(function, own)| (*own, Reverse(*function)));
            let detail = most.map_or("", |(function, _)| self.function(function).0).to_owned();
            let share = sum as f64 / all;
            let name = task.map_or("[none]", |(_, name)| name).to_owned();
            Row { name, detail, id: task.map(|(id, _)| *id), own: share, total: share }
        };
        weights.into_iter().map(row).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two threads of one process: `main` calls `parse`, which calls itself, and `print`.
    pub(in super::super) fn example() -> Interval {
        let task = |tid, goroutine: Option<i64>| Task {
            process: (10, "server".into()),
            thread: (tid, format!("worker-{tid}")),
            goroutine: goroutine.map(|id| (id, "main.serve".into())),
        };
        let sampled = |task, path: &[u32], weight| {
            let own = path.first().copied();
            Sampled { task, path: path.to_vec(), own, weight }
        };
        let functions = ["main", "parse", "print"].map(|name| (name.to_owned(), "app".to_owned()));
        Interval {
            duration: Duration::from_secs(2),
            samples: 100,
            lost: 3,
            has_goroutines: true,
            sampled: vec![
                sampled(task(11, Some(7)), &[1, 1, 0], 60),
                sampled(task(12, None), &[2, 0], 30),
                sampled(task(12, Some(8)), &[0], 10),
            ],
            functions: functions.to_vec(),
        }
    }

    fn shown(rows: &[Row]) -> Vec<String> {
        let row = |row: &Row| {
            let id = row.id.map_or(String::new(), |id| format!(" {id}"));
            format!(
                "{:.0} {:.0} {}{id} {}",
                row.own * 100.0,
                row.total * 100.0,
                row.name,
                row.detail
            )
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn functions_count_recursion_once() {
        let rows = example().rows(By::Function, Sort::Own, "");
        assert_eq!(shown(&rows), ["60 60 parse app", "30 30 print app", "10 100 main app"]);
        let rows = example().rows(By::Function, Sort::Total, "");
        assert_eq!(shown(&rows)[0], "10 100 main app");
        let rows = example().rows(By::Function, Sort::Name, "PR");
        assert_eq!(shown(&rows), ["30 30 print app"]);
    }

    #[test]
    fn a_wait_can_belong_to_a_caller() {
        let mut interval = example();
        interval.sampled[0].own = Some(0);
        let rows = interval.rows(By::Function, Sort::Own, "");
        assert_eq!(shown(&rows), ["70 100 main app", "30 30 print app", "0 60 parse app"]);
        let rows = interval.rows(By::Thread, Sort::Own, "worker-11");
        assert_eq!(shown(&rows), ["60 60 worker-11 11 main"]);
    }

    #[test]
    fn rows_are_found_by_the_number_that_is_shown() {
        let rows = |by, filter| shown(&example().rows(by, Sort::Own, filter));
        assert_eq!(rows(By::Process, "(10)"), ["100 100 server 10 parse"]);
        assert_eq!(rows(By::Goroutine, "8"), ["10 10 main.serve 8 main"]);
        assert!(rows(By::Goroutine, "9").is_empty());
    }

    #[test]
    fn tasks_have_their_function_of_most_samples() {
        let rows = |by| shown(&example().rows(by, Sort::Own, ""));
        assert_eq!(rows(By::Thread), ["60 60 worker-11 11 parse", "40 40 worker-12 12 print"]);
        assert_eq!(rows(By::Process), ["100 100 server 10 parse"]);
        let goroutines =
            ["60 60 main.serve 7 parse", "30 30 [none] print", "10 10 main.serve 8 main"];
        assert_eq!(rows(By::Goroutine), goroutines);
        assert!(Interval::default().rows(By::Thread, Sort::Own, "").is_empty());
    }
}
