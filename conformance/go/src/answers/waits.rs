//! `report` beside what a program measures of its own waits: why and for how long, until when it had a CPU
//! again, who woke it, and who had its CPU.
//!
//! Goroutines wait for another one in four ways, five times 40 ms each. Both read `CLOCK_MONOTONIC`: before
//! the wait, directly before the wake-up, and when the waiter runs again. Then a thread computes on one CPU
//! beside a process that the kernel counts in `/proc/PID/schedstat`.

use super::busy::Busy;
use super::command::{Commands, STEPS, number, of_dotnet, record, rows};
use super::recorder::numbers;
use super::timeline::{OnCpu, require, within, within_steal, within_unknown};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use task_support::{Result, run};

/// Most nanoseconds between readings of the clock and the events of a wake-up: as those of a stop, see
/// [`super::go::EVENTS_OF_A_STOP`].
const EVENTS_OF_A_WAIT: i64 = super::go::EVENTS_OF_A_STOP;

/// Where the program waits: its line and goroutine, and in the report the goroutine's waits.
const PLACES: [(&str, &str, &str); 3] = [
    ("sending", "main.sends", "waits: chan send"),
    ("locking", "main.locks", "waits: sync"),
    ("reading", "main.reads", "sleeps in a system call"),
];

/// The goroutine that ends these waits.
const WAKER: &str = "main.hands";

/// Records the Go program with the command while it waits, and checks what it reports.
pub(super) fn check(triscope: &Path, program: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let busy = Busy::stopped(0)?;
    let pid = busy.pid();
    let mut command = record(triscope, dir.path(), &[]);
    command.arg(program.join("program")).args(["blocked.trace", "blocked", &pid.to_string()]);
    // With one P, a goroutine that wakes another one wakes no thread for it. Beside the process, the runtime
    // does not preempt: the thread wants its CPU all the time.
    command.env("GOMAXPROCS", "1").env("GODEBUG", "asyncpreemptoff=1");
    let output = run::output(&mut command)?;
    drop(busy);
    let printed = std::str::from_utf8(&output)?.lines();
    let printed = printed.map(numbers).collect::<Result<BTreeMap<&str, Vec<i64>>>>()?;
    let commands = Commands { triscope, dir: dir.path() };
    let measured = Measured { report: commands.run(&["report"])?, printed };
    measured.check_waits()?;
    measured.check_sleep()?;
    measured.check_wakers()?;
    measured.check_preempted(pid.into(), commands.steal()?)
}

/// As [`check`], the .NET program on a runtime: a directory of `targets`. A thread waits for another one, in four
/// ways: the runtime reports two of them, and since .NET 9 three.
pub(super) fn check_dotnet(triscope: &Path, targets: &Path, runtime: &str) -> Result<()> {
    eprintln!("waits of .NET {runtime}");
    // The waits for tasks, too.
    let providers = format!("{STEPS},System.Threading.Tasks.TplEventSource:3:4");
    let run = of_dotnet(triscope, &targets.join(runtime), "waits", &providers)?;
    let waits = |reason: &str| -> Result<(i64, i64)> {
        let mut waits = rows(&run.report, "waits")?.iter().filter(|row| row["reason"] == reason);
        let row = waits.next().ok_or_else(|| format!("report: no waits: {reason}"))?;
        Ok((number(&row["durations"]["sum"]), number(&row["durations"]["count"])))
    };
    for (word, reason) in [("locking", "lock"), ("joining", "task")] {
        let [count, blocked, late] = run.line(word)?;
        let (sum, found) = waits(reason)?;
        within(&format!("report: waits: {reason}"), sum, blocked + late, 2.0)?;
        require(
            &format!("report: waits: {reason}"),
            found >= count,
            format!("{found} of {count}"),
        )?;
    }
    // .NET 9 and later report waits for wait handles, also those of other threads.
    if runtime != "3.1" {
        let [count, blocked, _] = run.line("turns")?;
        let (sum, found) = waits("wait handle")?;
        let holds = found >= count && sum >= blocked - blocked / 50;
        require("report: waits: wait handle", holds, format!("{sum} ns in {found} waits"))?;
    }
    let [tid, wall, ran, waited] = run.line("waiter")?;
    let mut threads = rows(&run.report, "threads")?.iter();
    let waiter = threads.find(|row| number(&row["tid"]) == tid).ok_or("report: no waiter")?;
    let time = |field: &str| number(&waiter["times"][field]);
    let (slept, unknown) = (time("sleeping") + time("blocked"), time("unknown"));
    within_unknown("report: the waiter sleeps", slept, unknown, wall - ran - waited, 2.0)?;
    let mut sum = 0;
    for word in ["turns", "locking", "joining", "reading"] {
        sum += run.line::<3>(word)?[1];
    }
    within_unknown("report: until the wake-ups", slept, unknown, sum, 2.0)?;
    Ok(())
}

/// The report, and the lines that the program printed.
struct Measured<'a> {
    report: Value,
    printed: BTreeMap<&'a str, Vec<i64>>,
}

/// Times of a goroutine in nanoseconds.
struct Goroutine {
    waiting: i64,
    /// It waited for a P.
    runnable: i64,
    /// Its thread waited for a CPU while it had a P.
    no_cpu: i64,
    /// The same in system calls.
    no_cpu_in_call: i64,
    on_cpu: i64,
}

impl Measured<'_> {
    fn line<const N: usize>(&self, word: &str) -> Result<[i64; N]> {
        let line = self.printed.get(word).ok_or_else(|| format!("no {word}"))?;
        Ok(line.as_slice().try_into()?)
    }

    /// The rows of the program in a table.
    fn rows(&self, table: &str) -> Result<Vec<&Value>> {
        let rows = rows(&self.report, table)?.iter();
        Ok(rows.filter(|row| row["process"]["name"] == "program").collect())
    }

    fn row(&self, table: &str, field: &str, value: &str) -> Result<&Value> {
        let mut rows = self.rows(table)?.into_iter().filter(|row| row[field] == value);
        rows.next().ok_or_else(|| format!("report: no {value} in {table}").into())
    }

    fn goroutine(&self, entry: &str) -> Result<Goroutine> {
        let row = self.row("goroutines", "entry", entry)?;
        let no_cpu = |state: &str| {
            let time = |field: &str| number(&row[state][field]);
            time("preempted") + time("woken")
        };
        Ok(Goroutine {
            waiting: number(&row["waiting"]),
            runnable: number(&row["runnable"]),
            no_cpu: no_cpu("running"),
            no_cpu_in_call: no_cpu("syscall"),
            on_cpu: number(&row["running"]["on_cpu"]) + number(&row["syscall"]["on_cpu"]),
        })
    }

    /// Each kind of wait until the wake-up, and from then until the goroutine ran.
    fn check_waits(&self) -> Result<()> {
        // A goroutine that has no CPU between its reading of the clock and its wake-up of another one, or
        // its own wait, measures less or more than there was.
        let waker = self.goroutine(WAKER)?.no_cpu;
        for (word, entry, text) in PLACES {
            let [count, blocked, late] = self.line(word)?;
            let goroutine = self.goroutine(entry)?;
            let own = goroutine.no_cpu;
            let off_cpu = self.row("off_cpu", "text", text)?;
            let is = |what: &str, found: i64, unknown: i64, expected: i64| {
                within_unknown(&format!("report: {text}: {what}"), found, unknown, expected, 2.0)
            };
            let found = number(&off_cpu["nanos"]);
            // It can lose its P between its reading of the clock and its wait: the program counts that with the wait.
            let before = (blocked - found - own).clamp(0, goroutine.runnable);
            is("until the wake-up", found - waker, waker + own + before, blocked)?;
            let number_of = number(&off_cpu["count"]);
            // A few short ones of the runtime's locks are among them.
            let holds = if word == "locking" { number_of >= count } else { number_of == count };
            require(&format!("report: {text}"), holds, format!("{number_of} of {count} waits"))?;
            if let Some(reason) = text.strip_prefix("waits: ") {
                let sum = number(&self.row("waits", "reason", reason)?["durations"]["sum"]);
                let is_same = sum == found;
                require(&format!("report: waits: {reason}"), is_same, format!("{sum} ns"))?;
            }
            // It waits for its turn, too.
            let [turns, waited, late_turn] =
                if word == "locking" { self.line("turns")? } else { [0; 3] };
            if word != "reading" {
                let expected = blocked + waited;
                let unknown = waker + own + before;
                is("the goroutine", goroutine.waiting - waker, unknown, expected)?;
            }
            // Each wake-up, and the start: with the time on the CPU until it reads the clock.
            let events = EVENTS_OF_A_WAIT * (count + turns + 1);
            let found = goroutine.runnable - before + goroutine.no_cpu_in_call;
            let unknown = own + goroutine.on_cpu + waker + events;
            is("from the wake-up to the CPU", found, unknown, late + late_turn)?;
        }
        Ok(())
    }

    /// The goroutine measures when it runs again, not when the timer wakes it.
    fn check_sleep(&self) -> Result<()> {
        let [count, slept] = self.line("slept")?;
        let row = &self.row("waits", "reason", "sleep")?["durations"];
        let waker = self.goroutine(WAKER)?;
        let late = waker.runnable + waker.no_cpu + EVENTS_OF_A_WAIT * count;
        within_unknown("report: waits: sleep", number(&row["sum"]), late, slept, 2.0)?;
        let sleeps = number(&row["count"]);
        require("report: sleeps", sleeps == count, format!("{sleeps} of {count}"))
    }

    /// The goroutine ends each of these waits, and at last that of the main one.
    fn check_wakers(&self) -> Result<()> {
        let mut expected = 1;
        for (word, ..) in PLACES.into_iter().chain([("turns", "", "")]) {
            expected += self.line::<3>(word)?[0];
        }
        let row = self.row("wakers", "waker", &format!("goroutines {WAKER}"))?;
        let found = number(&row["count"]);
        require("report: hand-overs", found == expected, format!("{found} of {expected}"))
    }

    /// A thread beside a process: how long each of them had the CPU, as the kernel counts it.
    fn check_preempted(&self, pid: i64, steal: i64) -> Result<()> {
        let [tid, waited, other] = self.line("beside")?;
        let threads = self.rows("threads")?;
        let preempted = |thread: &Value| number(&thread["times"]["preempted"]);
        let mut own = threads.iter().filter(|thread| number(&thread["tid"]) == tid);
        let own = own.next().ok_or("report: no thread beside the process")?;
        let time = |field: &str| number(&own["times"][field]);
        let latency = |field: &str| number(&own["latency"][field]);
        // See `OnCpu::EACH_WAKE`.
        let wakes = latency("count") * latency("p50").min(OnCpu::EACH_WAKE);
        let unknown = time("unknown") + wakes;
        let (found, woken) = (preempted(own), time("woken"));
        within_unknown("report: without a CPU", found + woken - wakes, unknown, waited, 2.0)?;

        // By reason, of all threads. While the goroutine waits for a P, its thread may wait for a CPU.
        let others = threads.iter().map(|thread| preempted(thread)).sum::<i64>() - found;
        let off_cpu = |what| {
            Ok::<_, task_support::Error>(number(&self.row("off_cpu", "what", what)?["nanos"]))
        };
        let sum = off_cpu("preempted")?;
        let around = others + woken + unknown + off_cpu("waits_for_p")?;
        within_unknown("report: preempted", sum - others, around, waited, 2.0)?;

        // Whenever the process had the CPU, the thread waited for it.
        let preempters = self.rows("preempters")?;
        let is_it = |row: &&&Value| number(&row["pid"]) == pid;
        let sum = |rows: Vec<&&Value>| -> i64 {
            rows.into_iter().map(|row| number(&row["preempted"])).sum()
        };
        let found = sum(preempters.iter().filter(is_it).collect());
        let is_unknown = |row: &&&Value| row["occupant"] == "unknown";
        let unknown = sum(preempters.iter().filter(is_unknown).collect()) + time("unknown");
        within_steal("report: preempted by the process", found, unknown, steal, other)?;
        let name = preempters.iter().find(is_it).and_then(|row| row["occupant"].as_str());
        let name = name.unwrap_or_default();
        require("report: by name", name.starts_with("sh ("), name.to_owned())
    }
}
