//! The tables and their columns.

use std::fmt::Write as _;

/// The version of the schema, in the metadata of each file. It changes when a column changes its
/// meaning or goes; a new column or table does not change it.
pub const SCHEMA_VERSION: u32 = 1;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnType {
    /// `INT64`.
    Int,
    /// `DOUBLE`.
    Double,
    /// `BOOLEAN`.
    Bool,
    /// `BYTE_ARRAY` with the logical type `STRING`.
    Text,
}

/// A column of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Column {
    /// The name.
    pub name: &'static str,
    /// The type.
    pub kind: ColumnType,
    /// Whether it can be `NULL`: not known, or not applicable.
    pub is_nullable: bool,
    /// The unit: `ns`, `id` for a key of another table, or empty.
    pub unit: &'static str,
    /// The meaning.
    pub about: &'static str,
}

/// A table of the dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// The name: also that of its directory.
    pub name: &'static str,
    /// The meaning of a row.
    pub about: &'static str,
    /// The column by which the rows of each row group are sorted, if there is one.
    pub sorted_by: Option<&'static str>,
    /// The columns.
    pub columns: &'static [Column],
}

const fn column(
    name: &'static str,
    kind: ColumnType,
    unit: &'static str,
    about: &'static str,
) -> Column {
    Column { name, kind, is_nullable: false, unit, about }
}

const fn int(name: &'static str, unit: &'static str, about: &'static str) -> Column {
    column(name, ColumnType::Int, unit, about)
}

const fn text(name: &'static str, about: &'static str) -> Column {
    column(name, ColumnType::Text, "", about)
}

const fn flag(name: &'static str, about: &'static str) -> Column {
    column(name, ColumnType::Bool, "", about)
}

/// The same column, which can be `NULL`.
const fn opt(column: Column) -> Column {
    Column { is_nullable: true, ..column }
}

const RECORDING: Column = int("recording", "id", "the recording, the same in all of its tables");
const PROCESS: Column = opt(int("process", "id", "the process: `processes.process`"));
const THREAD: Column = opt(int("thread", "id", "the thread: `threads.thread`"));
const CPU: Column = opt(int("cpu", "", "the number of the CPU"));
const STACK: Column = opt(int("stack", "id", "the stack: `stacks.stack`"));
const ENTITY_KIND: Column = text(
    "entity_kind",
    "`machine`, `cpu`, `process`, `thread`, `go_thread`, `proc`, `goroutine`, `dotnet_thread`, `task`, \
     `activity`, `request`, `gc`, `heap`, `thread_pool`",
);
const ENTITY: Column = int(
    "entity",
    "id",
    "its key: in `processes`, `threads` (also of `go_thread` and `dotnet_thread`) or `goroutines`; \
     `cpus.entity`; of a task, activity or request `tasks.entity`; of a GC `gc.of`. Others have no table",
);
const KERNEL: Column = opt(text(
    "kernel",
    "what the kernel did with its thread: `on_cpu`, `preempted` or `woken` (waits for a CPU), \
     `sleeping`, `blocked`, `stopped`; `absent` if no thread executed it",
));

/// A table of moments.
macro_rules! events {
    ($name:literal, $about:literal, $($column:expr),* $(,)?) => {
        Table {
            name: $name,
            about: $about,
            sorted_by: Some("monotonic"),
            columns: &[
                RECORDING,
                opt(int("time", "ns", "nanoseconds since 1970, UTC")),
                int("monotonic", "ns", "the same moment on the clock of the recording"),
                $($column),*
            ],
        }
    };
}

/// A table of times with a duration.
macro_rules! intervals {
    ($name:literal, $about:literal, $($column:expr),* $(,)?) => {
        Table {
            name: $name,
            about: $about,
            sorted_by: Some("end_monotonic"),
            columns: &[
                RECORDING,
                opt(int("end_time", "ns", "the end, in nanoseconds since 1970, UTC")),
                int("end_monotonic", "ns", "the end on the clock of the recording"),
                int("duration", "ns", "the duration: it began at the end minus this"),
                $($column),*
            ],
        }
    };
}

/// A table of entities.
macro_rules! entities {
    ($name:literal, $about:literal, $($column:expr),* $(,)?) => {
        Table {
            name: $name,
            about: $about,
            sorted_by: None,
            columns: &[
                RECORDING,
                $($column,)*
                opt(int("start_monotonic", "ns", "when it was created, if the recording has it")),
                opt(int("end_monotonic", "ns", "when it ended, if the recording has it")),
            ],
        }
    };
}

/// A table of spans.
macro_rules! spans {
    ($name:literal, $about:literal, $kinds:literal) => {
        intervals!(
            $name,
            $about,
            text("kind", $kinds),
            opt(text("name", "the name")),
            PROCESS,
            ENTITY_KIND,
            ENTITY,
            opt(int(
                "of",
                "id",
                "the task, activity, GC or owner of the lock; of a task its parent"
            )),
            opt(int("by", "id", "the entity that began it, if that is another one")),
            STACK,
            flag(
                "is_open",
                "whether its end is not known: it is that of the recording, or where events are missing; \
                 or the begin of a mark phase of Go"
            ),
            int("span", "id", "the key among all tasks, regions, GCs and waits"),
        )
    };
}

/// All tables of a dataset, in alphabetical order.
pub const TABLES: &[Table] = &[
    events!(
        "clocks",
        "A reading of another clock",
        text("clock", "`CLOCK_REALTIME`, `CLOCK_MONOTONIC`, `CLOCK_BOOTTIME` or another one"),
        int("reading", "ns", "its time"),
    ),
    events!(
        "counters",
        "A new value of a counter, which holds until the next one",
        ENTITY_KIND,
        ENTITY,
        PROCESS,
        text("name", "the name"),
        opt(text("unit", "the unit, e.g. `B`; a plain number has none")),
        column("value", ColumnType::Double, "", "the value"),
        opt(text(
            "of_name",
            "the name of the entity, unless it is a process: `gen 0`, …, `LOH` or `POH` of the heap of .NET, `thread pool`",
        )),
    ),
    Table {
        name: "cpus",
        about: "A CPU that the recording mentions",
        sorted_by: None,
        columns: &[
            RECORDING,
            int("cpu", "", "the number of the CPU"),
            opt(int("entity", "id", "the key, for columns `entity` of the kind `cpu`")),
        ],
    },
    Table {
        name: "critical_paths",
        about: "A piece of the critical path of a task, activity or region, which its pieces partition: \
                of the longest ones of each recording",
        sorted_by: None,
        columns: &[
            RECORDING,
            opt(int("end_time", "ns", "the end, in nanoseconds since 1970, UTC")),
            int("end_monotonic", "ns", "the end on the clock of the recording"),
            int("duration", "ns", "the duration: it began at the end minus this"),
            int("span", "id", "the task or region: `tasks.span`, `regions.span`"),
            text(
                "what",
                "`on_cpu`, `running`, `syscall`, `waits_for_cpu`, `waits_for_p`, `throttled`, `queued`, \
                 `blocked`, `stopped`, `waits`, `not_recorded`, `unknown`",
            ),
            text("text", "the same as a phrase with the names of others, as in `triscope explain`"),
            ENTITY_KIND,
            int("entity", "id", "the goroutine or thread whose time it is"),
            THREAD,
            int("depth", "", "number of waits that lead to it; 0 is the request itself"),
            opt(text("reason", "why it waited, as the runtime reports it")),
            opt(int("waiter", "id", "the goroutine or thread that waits for it")),
            opt(text("waiter_reason", "why that one waits")),
            opt(text("during", "the work of the runtime meanwhile, e.g. a stop-the-world")),
            opt(int("context", "id", "the other task that it worked for")),
            STACK,
        ],
    },
    intervals!(
        "dotnet_thread_states",
        "A time in which nothing known of a .NET thread changed",
        int("dotnet_thread", "id", "the thread as the runtime knows it: `threads.thread`"),
        opt(text("state", "`running`, `waiting`, … as the runtime reports it")),
        KERNEL,
        CPU,
        THREAD,
        opt(int("latency", "ns", "of the first interval on a CPU after a wait for one: that wait")),
    ),
    events!(
        "events",
        "A moment that a program or runtime reports",
        text("kind", "`log`, `label`, `exception`, `stopped`, `starvation`, `other`"),
        opt(text("name", "the name or message")),
        PROCESS,
        ENTITY_KIND,
        ENTITY,
        opt(int("of", "id", "the task or activity")),
        STACK,
    ),
    Table {
        name: "frames",
        about: "A frame of stacks, each stored once per recording",
        sorted_by: None,
        columns: &[
            RECORDING,
            int("frame", "id", "the key, from 0"),
            opt(text("function", "the function")),
            opt(text("file", "the source file")),
            opt(int("line", "", "the line in the source file")),
            opt(text("module", "the executable, library or assembly")),
            opt(text("build_id", "the build id of the module, in hexadecimal")),
            opt(int("address", "", "relative to the start of the module; without one absolute")),
            opt(flag("is_kernel", "whether it is the kernel or one of its modules")),
        ],
    },
    spans!(
        "gc",
        "A garbage collection, or work for one",
        "`gc` (in Go its concurrent mark phase), `gc_assist`, `gc_sweep`"
    ),
    intervals!(
        "goroutine_states",
        "A time in which nothing known of a goroutine changed. The rows of a goroutine partition its lifetime",
        int("goroutine", "id", "the goroutine: `goroutines.goroutine`"),
        opt(text(
            "state",
            "`running`, `runnable`, `waiting`, `syscall`, as the runtime reports it"
        )),
        opt(text("reason", "why it left the state before, e.g. `chan receive`")),
        KERNEL,
        CPU,
        THREAD,
        opt(int("proc", "", "the number of the P")),
        STACK,
        opt(int(
            "latency",
            "ns",
            "of the first running interval after runnable ones: their duration"
        )),
    ),
    entities!(
        "goroutines",
        "A goroutine",
        int("goroutine", "id", "the key"),
        PROCESS,
        int("number", "", "the goroutine id of the runtime"),
        opt(text("entry", "its entry function")),
    ),
    events!(
        "losses",
        "Records are missing before this moment",
        text(
            "kind",
            "`scheduler_records`, `unreported_switch`, `cpu_offline`, `samples`, `go_trace`, `dotnet_events`; \
             `unread`: the rest of a damaged source"
        ),
        int("since_monotonic", "ns", "nothing is missing before"),
        CPU,
        PROCESS,
        opt(int("count", "", "number of records, or of bytes of a Go trace")),
    ),
    intervals!(
        "pauses",
        "A stop-the-world, from the request to the resumption",
        PROCESS,
        opt(text("reason", "the reason")),
        opt(int("by", "id", "the goroutine or thread that requested it")),
        opt(int("stopping", "ns", "the time until all had stopped")),
    ),
    intervals!(
        "proc_states",
        "A time in which nothing known of a P of the Go scheduler changed",
        PROCESS,
        int("proc", "", "the number of the P"),
        opt(text("state", "`running`, `idle`, `syscall`")),
        opt(int("goroutine", "id", "the goroutine that it executes")),
        KERNEL,
        CPU,
        THREAD,
    ),
    entities!(
        "processes",
        "A process",
        int("process", "id", "the key"),
        opt(int("pid", "", "the process id")),
        opt(text("name", "the name")),
        opt(int("parent", "id", "the parent: `processes.process`")),
        opt(text("command_line", "the command line")),
        opt(text("executable", "the path of the executable")),
        opt(text("build_id", "the build id of the executable, in hexadecimal")),
        opt(text("cgroup", "the cgroup")),
        opt(text("container", "the id of the container")),
        opt(text("runtime", "the runtime: `Go` or `.NET`")),
    ),
    Table {
        name: "recordings",
        about: "A recording. Its row is written last: without one, the other rows are incomplete",
        sorted_by: None,
        columns: &[
            RECORDING,
            int("schema_version", "", "the version of this schema"),
            opt(text("host", "the host")),
            opt(text("kernel", "the release of the kernel")),
            opt(text("architecture", "the architecture of the machine")),
            opt(text("clock", "the clock of all columns `monotonic`")),
            opt(int("clock_offset", "ns", "`time` minus `monotonic`; unknown if all times are")),
            opt(int("start_time", "ns", "the first event, in nanoseconds since 1970, UTC")),
            opt(int("start_monotonic", "ns", "the first event of any source")),
            opt(int("end_monotonic", "ns", "the last event of any source")),
            opt(int(
                "sched_start_monotonic",
                "ns",
                "the first record of the kernel's scheduler; `NULL` without such records",
            )),
            opt(int("sched_end_monotonic", "ns", "the last record of the kernel's scheduler")),
            flag("is_partial", "whether a source was damaged: what could be read is there"),
            int("dropped_entities", "", "goroutines and threads above the limit, with their rows"),
            int("dropped_texts", "", "uses of texts above the limit, which are `?`"),
            int("dropped_stacks", "", "uses of stacks above the limit, which are `NULL`"),
            int(
                "arguments",
                "",
                "arguments of events and spans: the schema has no column for them",
            ),
            int("requests", "", "tasks, activities and regions that ended"),
            int("paths", "", "those of them that have rows in `critical_paths`"),
        ],
    },
    spans!(
        "regions",
        "A region of a goroutine, a compilation, or other work of a .NET thread",
        "`region`, `jit`; of .NET also `task_run`, `operation`, `finalizers`, `type_load`, `tiered_jit`; \
         `stop_the_world` without a known end: others are in `pauses`"
    ),
    events!(
        "samples",
        "A sample of a profiler",
        text("kind", "`cpu`, `off_cpu`, `go_cpu`, `managed`, `allocation`"),
        opt(text("event", "the event of the kernel that is sampled")),
        int("weight", "", "in `unit`"),
        opt(text("unit", "`ns`, `B`; without one a number of events or samples")),
        PROCESS,
        ENTITY_KIND,
        ENTITY,
        THREAD,
        KERNEL,
        CPU,
        opt(int("of", "id", "the task or activity")),
        STACK,
    ),
    intervals!(
        "sched",
        "A time in which a thread had a CPU and executed the same goroutine",
        int("cpu", "", "the number of the CPU"),
        int("thread", "id", "the thread: `threads.thread`"),
        opt(int("holder", "id", "the goroutine or .NET thread that it executed")),
        opt(int("latency", "ns", "of the first interval after a wait for a CPU: that wait")),
    ),
    Table {
        name: "sources",
        about: "A file that the recording was made of",
        sorted_by: None,
        columns: &[RECORDING, text("file", "the name of the file"), int("bytes", "B", "its size")],
    },
    Table {
        name: "stacks",
        about: "A frame of a call stack. Equal stacks are stored once per recording",
        sorted_by: None,
        columns: &[
            RECORDING,
            int("stack", "id", "the key of the stack, from 0"),
            int("depth", "", "0 is the innermost frame"),
            int("frame", "id", "the frame: `frames.frame`"),
        ],
    },
    spans!(
        "tasks",
        "A unit of work that the program names",
        "`task` of Go; `activity` and `request` of .NET"
    ),
    intervals!(
        "thread_states",
        "A time in which a thread had no CPU. With `sched` they partition the lifetime of the thread",
        int("thread", "id", "the thread: `threads.thread`"),
        opt(text(
            "state",
            "`preempted` or `woken` (waits for a CPU), `sleeping`, `blocked`, `stopped`"
        )),
        opt(int("holder", "id", "the goroutine or .NET thread that it would execute")),
        opt(int("cpu", "", "the CPU that it waits for")),
        opt(text("occupant_kind", "what that CPU executes: `thread`, `idle`, `unrecorded`")),
        opt(int("occupant", "id", "that thread: `threads.thread`")),
    ),
    entities!(
        "threads",
        "A thread. One that the kernel and a runtime know has a row for each",
        int("thread", "id", "the key"),
        text("layer", "who knows it: `kernel`, `go`, `dotnet`"),
        opt(int("tid", "", "the thread id")),
        PROCESS,
        opt(text("name", "the last name")),
    ),
    events!(
        "throttles",
        "The CPU quota of a cgroup was used up. A reading of its counters has a row for each process of the cgroup and \
         of those below it: count it once, by `cgroup` and `monotonic`",
        PROCESS,
        int("since_monotonic", "ns", "the reading of the counters before"),
        int("throttled", "ns", "throttled time, summed over CPUs"),
        int("periods", "", "periods in which the cgroup was throttled"),
        opt(text(
            "cgroup",
            "the directory of that cgroup, which can be an ancestor of that of the process"
        )),
    ),
    spans!(
        "waits",
        "A wait for a lock, a task or a wait handle, or of a work item for a worker",
        "`lock`, `task_wait` and `handle_wait` of a .NET thread, `queued` in the thread pool of .NET, \
         `scheduled` of a task or continuation of .NET until it begins, `await` of a method of .NET"
    ),
    events!(
        "wakeups",
        "One entity made another one continue",
        text("kind", "`wakes`, `creates`, `hands_over`, `continues`"),
        opt(int("waker", "id", "the goroutine, .NET thread or thread that did it")),
        opt(int("waker_thread", "id", "the kernel thread that executed it")),
        opt(text("context", "`task`, `hard_irq`, `soft_irq`: an interrupt has no waker")),
        ENTITY_KIND,
        ENTITY,
        STACK,
    ),
];

/// All tables as Markdown.
pub fn markdown() -> String {
    let mut text = String::new();
    for table in TABLES {
        let _ = write!(text, "\n### {}\n\n{}.", table.name, table.about); // a string takes all
        if let Some(column) = table.sorted_by {
            let _ = write!(text, " Sorted by `{column}`.");
        }
        text.push_str("\n\n| column | type | unit | meaning |\n| --- | --- | --- | --- |\n");
        for Column { name, kind, is_nullable, unit, about } in table.columns {
            let kind = match kind {
                ColumnType::Int => "BIGINT",
                ColumnType::Double => "DOUBLE",
                ColumnType::Bool => "BOOLEAN",
                ColumnType::Text => "VARCHAR",
            };
            let null = if *is_nullable { ", NULL" } else { "" };
            let _ = writeln!(text, "| `{name}` | {kind}{null} | {unit} | {about} |");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_sorted_columns_exist() {
        for (table, next) in TABLES.iter().zip(TABLES.iter().skip(1)) {
            assert!(table.name < next.name, "{}", next.name);
        }
        for table in TABLES {
            let names: Vec<_> = table.columns.iter().map(|column| column.name).collect();
            let mut unique = names.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), names.len(), "{}", table.name);
            assert!(table.sorted_by.is_none_or(|column| names.contains(&column)), "{}", table.name);
            assert!(table.columns.iter().all(|column| !column.about.is_empty()), "{}", table.name);
        }
    }
}
