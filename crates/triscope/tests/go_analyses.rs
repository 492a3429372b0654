//! The analyses of `triscope go` as processes: tables, JSON, CSV, restriction and damage.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use testkit::process::Running;
use trace_common::append_uvarint;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data").join(name)
}

/// A recorded trace, which may be compressed.
fn recorded(name: &str) -> Vec<u8> {
    let bytes = std::fs::read(fixture(name)).unwrap();
    if !name.ends_with(".gz") {
        return bytes;
    }
    let mut trace = Vec::new();
    GzDecoder::new(&bytes[..]).read_to_end(&mut trace).unwrap();
    trace
}

fn go(args: &[&str], trace: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.arg("go").args(args).arg(trace).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The output of a command that succeeds.
#[track_caller]
fn printed(args: &[&str], trace: &str) -> String {
    let output = go(args, &fixture(trace));
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
fn json(args: &[&str], trace: &str) -> Vec<Value> {
    let args = [args, &["--json"]].concat();
    serde_json::from_str(&printed(&args, trace)).unwrap()
}

fn nanos(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Every analysis that prints rows, with a trace that has some.
const ROWS: [(&[&str], &str); 14] = [
    (&["goroutines"], "shop.trace"),
    (&["goroutines", "--entry", "main.serve.func3"], "shop.trace"),
    (&["goroutines", "--region", "lookup"], "shop.trace"),
    (&["regions"], "shop.trace"),
    (&["tasks", "--logs"], "shop.trace"),
    (&["tasks", "--by-type"], "shop.trace"),
    (&["critical-path"], "shop.trace"),
    (&["latency"], "shop.trace"),
    (&["stalls"], "shop.trace"),
    (&["procs"], "shop.trace"),
    (&["gc"], "shop.trace"),
    (&["pauses"], "shop.trace"),
    (&["mmu"], "shop.trace"),
    (&["allocs"], "go1.26-allocations.trace.gz"),
];

#[test]
fn every_analysis_prints_tables_json_and_csv() {
    for (args, trace) in ROWS {
        let rows = json(args, trace);
        assert!(!rows.is_empty(), "{args:?}");
        let table = printed(args, trace);
        assert!(table.lines().count() > 1, "{args:?}: {table}");
        let csv = printed(&[args, &["--csv"]].concat(), trace);
        assert!(csv.ends_with("\r\n"), "{args:?}");
        let mut lines = csv.split("\r\n");
        let columns = lines.next().unwrap().split(',').count();
        assert!(columns >= 3, "{args:?}: {csv}");
        if args != ["critical-path"] {
            // Cells may contain line breaks in general; those of this trace do not.
            assert_eq!(lines.filter(|line| !line.is_empty()).count(), rows.len(), "{args:?}");
        }
    }
}

#[test]
fn time_begins_after_damage_in_the_first_generation() {
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut");
    std::fs::write(&cut, &recorded("shop.trace")[..50_000]).unwrap();
    let json = |args: &[&str]| -> Value {
        let output = go(&[args, &["--json", "--recover"]].concat(), &cut);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let stats = json(&["stats"]);
    let (first, last) = (nanos(&stats["first_ns"]), nanos(&stats["last_ns"]));
    assert!(last > first && last - first < 1_000_000_000, "from {first} to {last}");
    let all = nanos(&stats["events"]);
    let output = go(&["events", "--recover", "--from", "0", "--to", "0.5"], &cut);
    let lines = text(&output.stdout);
    assert_eq!(lines.lines().filter(|line| line.starts_with("M=")).count() as u64, all);
    assert_eq!(nanos(&json(&["summary"])["start"]), first);
}

#[test]
fn lost_time_is_of_no_state() {
    let dir = tempfile::tempdir().unwrap();
    let damaged = dir.path().join("damaged");
    let mut trace = recorded("go1.23-mixed.trace.gz");
    let (from, to) = (trace.len() * 2 / 5, trace.len() * 3 / 5);
    trace[from..to].fill(0xff);
    std::fs::write(&damaged, &trace).unwrap();
    let json = |command| -> Vec<Value> {
        let output = go(&[command, "--recover", "--json"], &damaged);
        assert_eq!(output.status.code(), Some(1), "{command}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    // Several generations are lost, while this goroutine waits.
    let main = json("goroutines").into_iter().find(|row| row["entry"] == "main.main").unwrap();
    let (total, unknown) = (nanos(&main["times"]["total"]), nanos(&main["times"]["unknown"]));
    assert!(unknown > total / 4, "{main}");
    let lost = json("procs").into_iter().filter(|row| row["procs"] == 0.0).count();
    assert!(lost > 5, "{lost} intervals");
}

#[test]
fn a_cut_trace_is_analysed_up_to_the_cut_and_marked() {
    let dir = tempfile::tempdir().unwrap();
    // In the last of several generations.
    let whole = recorded("go1.25-mixed.trace.gz");
    let cut = dir.path().join("cut");
    std::fs::write(&cut, &whole[..whole.len() - 800]).unwrap();
    for (args, _) in ROWS {
        let args = args.iter().map(|arg| match *arg {
            "main.serve.func3" => "main.main",
            "lookup" => "inner",
            other => other,
        });
        let args: Vec<&str> = args.collect();
        let output = go(&args, &cut);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let message = text(&output.stderr);
        assert!(message.contains("at byte"), "{args:?}: {message}");
        let analysed = text(&output.stdout);
        // This trace has no allocations.
        assert!(analysed.lines().count() > 1 || args == ["allocs"], "{args:?}: {analysed}");
        let output = go(&[&args[..], &["--recover"]].concat(), &cut);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let message = text(&output.stderr);
        assert!(message.contains("damaged in 1 place"), "{args:?}: {message}");
    }
    // The names of types are lost with the end of a generation, their objects are not.
    let whole = recorded("go1.26-allocations.trace.gz");
    std::fs::write(&cut, &whole[..whole.len() - 1000]).unwrap();
    let output = go(&["allocs", "--recover"], &cut);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("(no type)"), "{}", text(&output.stdout));
    // A trace of several generations has events before the cut.
    let whole = recorded("go1.22-mixed.trace.gz");
    let cut = dir.path().join("generations");
    std::fs::write(&cut, &whole[..whole.len() - 1000]).unwrap();
    let output = go(&["latency", "--json"], &cut);
    assert_eq!(output.status.code(), Some(1));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let all = json(&["latency"], "go1.22-mixed.trace.gz");
    let (before, all) = (nanos(&rows[0]["count"]), nanos(&all[0]["count"]));
    assert!(before > all / 2 && before < all, "{before} of {all}");
}

#[test]
fn analyses_of_two_passes_report_damage_once() {
    let dir = tempfile::tempdir().unwrap();
    let (cut, output) = (dir.path().join("cut"), dir.path().join("x.folded"));
    let mut damaged = recorded("shop.trace");
    let middle = damaged.len() / 2;
    damaged[middle..middle + 64].fill(0xff);
    std::fs::write(&cut, &damaged).unwrap();
    let profile = ["profile", "sync", "-o", output.to_str().unwrap()];
    let profiles = [
        ["--goroutine", "net/http.(*conn).serve"],
        ["--region", "lookup"],
        ["--task", "GET /cart"],
    ];
    let profiles = profiles.map(|of| [&profile[..], &of].concat());
    let range = ["--from", "0", "--to", "60"];
    for args in profiles.into_iter().chain([vec!["tasks", "--logs"]]) {
        for range in [&[][..], &range] {
            let output = go(&[&args[..], range, &["--recover"]].concat(), &cut);
            assert_eq!(output.status.code(), Some(1), "{args:?}");
            let message = text(&output.stderr);
            assert_eq!(message.matches("at byte").count(), 1, "{args:?}: {message}");
        }
    }
}

#[test]
fn tasks_have_their_states_types_and_logs() {
    let tasks = json(&["tasks", "--logs"], "shop.trace");
    assert_eq!(tasks.len(), 120);
    for task in &tasks {
        let times = &task["times"];
        let blocked = times["blocked"].as_object().unwrap().values().map(nanos).sum::<u64>();
        let states = ["running", "runnable", "syscall", "syscall_blocked", "unknown"];
        let sum = states.iter().map(|state| nanos(&times[state])).sum::<u64>() + blocked;
        assert_eq!(sum, nanos(&task["duration"]), "the states sum up to the duration");
        let entries = task["entries"].as_array().unwrap();
        let count =
            |kind: &str| entries.iter().filter(|entry| entry["kind"] == kind).count() as u64;
        assert_eq!(count("log"), nanos(&task["logs"]));
        assert_eq!(count("region begins"), nanos(&task["regions"]));
        assert_eq!(count("region ends"), nanos(&task["regions"]));
        let times: Vec<u64> = entries.iter().map(|entry| nanos(&entry["time"])).collect();
        assert!(times.is_sorted());
    }
    let types = json(&["tasks", "--by-type"], "shop.trace");
    let names: Vec<&str> = types.iter().map(|ty| ty["type"].as_str().unwrap()).collect();
    assert_eq!(names, ["GET /search", "GET /cart"]);
    for ty in &types {
        let durations = &ty["durations"];
        assert_eq!((nanos(&durations["count"]), nanos(&ty["incomplete"])), (60, 0));
        let of_type = tasks.iter().filter(|task| task["type"] == ty["type"]);
        let sum: u64 = of_type.map(|task| nanos(&task["duration"])).sum();
        assert_eq!(nanos(&durations["sum"]), sum);
        let buckets = durations["histogram"].as_array().unwrap();
        assert_eq!(buckets.iter().map(|bucket| nanos(&bucket[2])).sum::<u64>(), 60);
    }
    let worst = json(&["tasks", "--type", "GET /cart", "--worst", "3"], "shop.trace");
    assert_eq!(worst.len(), 3);
    assert!(worst.iter().all(|task| task["type"] == "GET /cart" && task["entries"].is_null()));
    let logs = printed(&["tasks", "--logs", "--worst", "1"], "shop.trace");
    assert!(logs.contains("  user: ") && logs.contains("region begins: lookup"), "{logs}");
}

#[test]
fn goroutines_are_restricted_to_tasks_and_regions() {
    let total = |rows: &[Value], entry: &str| {
        let row = rows.iter().find(|row| row["entry"] == entry);
        row.map_or(0, |row| nanos(&row["times"]["total"]))
    };
    let handler = "net/http.(*conn).serve";
    let of_task = json(&["goroutines", "--task", "GET /cart"], "shop.trace");
    let tasks = json(&["tasks", "--type", "GET /cart"], "shop.trace");
    // Each task is within one goroutine.
    let sum: u64 = tasks.iter().map(|task| nanos(&task["duration"])).sum();
    assert_eq!(total(&of_task, handler), sum);
    let of_region = json(&["goroutines", "--region", "rank"], "shop.trace");
    let regions = json(&["regions"], "shop.trace");
    let rank = regions.iter().find(|region| region["type"] == "rank").unwrap();
    assert_eq!(total(&of_region, handler), nanos(&rank["times"]["total"]));
    assert_eq!(of_region.len(), 1, "only the handler has such regions");

    for (option, message) in
        [("--task", "no task of type \"none\""), ("--region", "no region of type \"none\"")]
    {
        let output = go(&["goroutines", option, "none"], &fixture("shop.trace"));
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
}

/// A task that began before the range counts with the part in the range.
#[test]
fn tasks_from_before_the_range_count() {
    let (first, last) = span("shop.trace");
    let from = first + (last - first) / 2;
    let seconds = format!("{:.9}", (from - first) as f64 / 1e9);
    let ty = "GET /cart";
    let (mut expected, mut cut) = (0, 0);
    for task in json(&["tasks", "--type", ty], "shop.trace") {
        // Each task is within one goroutine, and its regions are within the task.
        let (start, end) = (task["start"].as_i64().unwrap(), task["end"].as_i64().unwrap());
        expected += (end - start.max(from)).max(0);
        cut += u64::from(start < from && from < end);
    }
    let rows = json(&["goroutines", "--task", ty, "--from", &seconds], "shop.trace");
    let sum: u64 = rows.iter().map(|row| nanos(&row["times"]["total"])).sum();
    assert!(cut > 0 && sum as i64 == expected, "{cut} tasks, {sum} ns, {expected} ns");
}

/// With an interval that crosses the start of the range, or that the range is within.
#[test]
fn intervals_of_consecutive_ranges_sum_to_the_whole() {
    let (first, last) = span("shop.trace");
    for of in [
        &["goroutines", "--region", "lookup"][..],
        &["goroutines", "--task", "GET /cart"],
        &["regions"],
    ] {
        let sum = |range: &[&str]| {
            let rows = json(&[of, range].concat(), "shop.trace");
            ["total", "running", "runnable"]
                .map(|state| rows.iter().map(|row| nanos(&row["times"][state])).sum::<u64>())
        };
        let whole = sum(&[]);
        for share in [0.3, 0.5, 0.71] {
            let middle = format!("{:.9}", (last - first) as f64 * share / 1e9);
            let (before, after) = (sum(&["--to", &middle]), sum(&["--from", &middle]));
            assert!(before[0] > 0 && after[0] > 0);
            let parts = [before[0] + after[0], before[1] + after[1], before[2] + after[2]];
            assert_eq!(parts, whole, "{of:?}");
        }
    }
}

#[test]
fn a_range_within_a_region_has_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("x.trace");
    let mut wire = Wire::new();
    wire.generation(1, &["job".to_owned(), "step".to_owned()]);
    // From 70.4 ms to 76.8 ms.
    wire.batch(1, 1, 1_100_000, &[&[TASK_BEGIN, 1, 7, 0, 1, 0], &[REGION_BEGIN, 1, 7, 2, 0]]);
    wire.batch(1, 1, 1_200_000, &[&[REGION_END, 1, 7, 2, 0], &[TASK_END, 1, 7, 0]]);
    wire.generation(2, &["job".to_owned()]);
    wire.batch(2, 1, 2_100_000, &[&[TASK_BEGIN, 1, 8, 0, 1, 0]]);
    wire.end(2);
    std::fs::write(&trace, &wire.0).unwrap();
    let of = |args: &[&str]| {
        let output = go(&[args, &["--json"]].concat(), &trace);
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let times = |row: &Value| ["total", "running"].map(|state| nanos(&row["times"][state]));
        (rows.iter().map(times).collect::<Vec<_>>(), text(&output.stderr))
    };
    for args in
        [&["goroutines", "--task", "job"][..], &["goroutines", "--region", "step"], &["regions"]]
    {
        let within = of(&[args, &["--from", "0.072", "--to", "0.0736"]].concat());
        assert_eq!(within, (vec![[1_600_000; 2]], String::new()), "{args:?}");
        let (outside, message) = of(&[args, &["--to", "0.005"]].concat());
        assert_eq!(outside, [[0; 2]; 0], "{args:?}");
        assert!(args == ["regions"] || message.contains("the range contains no "), "{message}");
        let (_, message) = of(&[args, &["--from", "9"]].concat());
        assert!(message.contains("has no events in this range"), "{args:?}: {message}");
    }
}

#[test]
fn profiles_are_restricted_to_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let folded = |restriction: &[&str]| {
        let file = dir.path().join("x.folded");
        let args = [&["profile", "sync", "-o", file.to_str().unwrap()], restriction].concat();
        assert!(go(&args, &fixture("shop.trace")).status.success(), "{restriction:?}");
        let text = std::fs::read_to_string(&file).unwrap();
        let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
        text.lines().map(count).sum::<u64>()
    };
    let (search, cart) = (folded(&["--task", "GET /search"]), folded(&["--task", "GET /cart"]));
    let tasks = json(&["tasks"], "shop.trace");
    let waited = |name: &str| -> u64 {
        let of_type = tasks.iter().filter(|task| task["type"] == name);
        let blocked = of_type.flat_map(|task| task["times"]["blocked"].as_object().unwrap());
        // The kinds of waits that this profile counts.
        let is_sync = |reason: &str| ["chan", "sync", "select"].iter().any(|r| reason.contains(r));
        blocked.filter(|(reason, _)| is_sync(reason)).map(|(_, time)| nanos(time)).sum()
    };
    assert_eq!((search, cart), (waited("GET /search"), waited("GET /cart")));
    assert!(search > 0 && cart > 0);
}

#[test]
fn a_profile_without_an_output_is_a_table() {
    let profile = ["profile", "sync", "--json"];
    let value: Value = serde_json::from_str(&printed(&profile, "shop.trace")).unwrap();
    let functions = value["functions"].as_array().unwrap();
    let own: Vec<u64> = functions.iter().map(|f| f["self"].as_u64().unwrap()).collect();
    assert!(own.len() > 3 && own.is_sorted_by(|a, b| a >= b), "{own:?}");
    assert_eq!(Some(own.iter().sum()), value["total"].as_u64());
    assert_eq!(value["unit"], "nanoseconds");
    let text = printed(&["profile", "sync", "--rows", "2"], "shop.trace");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[2].ends_with(functions[0]["name"].as_str().unwrap()), "{text}");
    assert_eq!(lines[4..], [format!("{} more functions: --rows 0 prints all", own.len() - 2)]);
}

/// A delay that crosses the start of the range counts with its part in the range.
#[test]
fn profiles_of_consecutive_ranges_sum_to_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.folded");
    let (first, last) = span("shop.trace");
    let middle = format!("{:.9}", (last - first) as f64 * 0.5 / 1e9);
    for of in
        [["--goroutine", "net/http.(*conn).serve"], ["--region", "lookup"], ["--task", "GET /cart"]]
    {
        let sum = |range: &[&str]| {
            let args = [&["profile", "sync", "-o", file.to_str().unwrap()], &of[..], range];
            let output = go(&args.concat(), &fixture("shop.trace"));
            assert!(output.status.success(), "{of:?} {range:?}: {}", text(&output.stderr));
            let text = std::fs::read_to_string(&file).unwrap();
            let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
            text.lines().map(count).sum::<u64>()
        };
        assert_eq!(sum(&[]), sum(&["--to", &middle]) + sum(&["--from", &middle]), "{of:?}");
    }
}

#[test]
fn a_critical_path_sums_to_its_task() {
    let paths = json(&["critical-path", "--task", "GET /cart", "--worst", "60"], "shop.trace");
    assert_eq!(paths.len(), 60);
    let mut stacks = 0;
    for path in &paths {
        assert_eq!(path["name"], "GET /cart");
        let pieces = path["pieces"].as_array().unwrap();
        let sum: u64 = pieces.iter().map(|piece| nanos(&piece["nanos"])).sum();
        assert_eq!(sum, nanos(&path["nanos"]));
        stacks += pieces.iter().filter(|piece| piece["waiter_stack"].is_array()).count();
    }
    assert!(stacks > 0, "a piece of a wait has the stack of the waiter");
    let tasks = json(&["tasks", "--type", "GET /cart", "--worst", "1"], "shop.trace");
    assert_eq!(paths[0]["nanos"], tasks[0]["duration"]);
    let csv = printed(&["critical-path", "--task", "GET /cart", "--csv"], "shop.trace");
    let pieces = paths[0]["pieces"].as_array().unwrap().len();
    assert_eq!(csv.lines().count(), 1 + pieces, "one line for each piece");
}

#[test]
fn allocations_need_the_experiment() {
    let types = json(&["allocs"], "go1.26-allocations.trace.gz");
    let node = types.iter().find(|ty| ty["type"] == "main.node").unwrap();
    assert_eq!(nanos(&node["allocated"]["objects"]), 4 * 63);
    let time = json(&["allocs", "--over-time"], "go1.26-allocations.trace.gz");
    assert!(time.iter().any(|row| row["type"] == "main.node" && nanos(&row["objects"]) > 0));
    // Objects may have been freed where the trace is damaged.
    let dir = tempfile::tempdir().unwrap();
    let damaged = dir.path().join("damaged.trace");
    let mut trace = recorded("go1.26-allocations.trace.gz");
    let middle = trace.len() / 2;
    trace[middle..middle + 200].fill(0xff);
    std::fs::write(&damaged, &trace).unwrap();
    let output = go(&["allocs", "--recover"], &damaged);
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.contains(" of the live objects may have been freed"), "{message}");
    let before = go(&["allocs", "--to", "0.0001"], &damaged);
    assert_eq!((before.status.code(), &*text(&before.stderr)), (Some(0), ""));
    assert!(before.stdout.len() > 1000);
    let after = go(&["allocs", "--from", "1e6"], &fixture("go1.26-allocations.trace.gz"));
    assert_eq!((after.status.code(), &*text(&after.stdout)), (Some(1), ""));
    assert!(text(&after.stderr).contains("has no events in this range"));
    let output = go(&["allocs"], &fixture("shop.trace"));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("GODEBUG=traceallocfree=1"));
}

/// The time of the first and the last event, in nanoseconds.
fn span(trace: &str) -> (i64, i64) {
    let stats: Value = serde_json::from_str(&printed(&["stats", "--json"], trace)).unwrap();
    (stats["first_ns"].as_i64().unwrap(), stats["last_ns"].as_i64().unwrap())
}

#[test]
fn every_analysis_is_restricted_to_a_range() {
    for (args, trace) in ROWS {
        let (first, last) = span(trace);
        let seconds = |share: f64| format!("{:.9}", (last - first) as f64 * share / 1e9);
        let (from, to) = (seconds(0.1), seconds(0.9));
        let rows = json(&[args, &["--from", &from, "--to", &to]].concat(), trace);
        assert!(!rows.is_empty(), "{args:?}");
        let whole = json(args, trace);
        // The longest request is in the middle.
        assert!(rows != whole || args == ["critical-path"], "{args:?}");
        let reversed = go(&[args, &["--from", &to, "--to", &from]].concat(), &fixture(trace));
        let message = text(&reversed.stderr);
        assert!(message.contains("--to is before --from"), "{args:?}: {message}");
    }
}

#[test]
fn the_longest_pauses_are_in_the_json() {
    let longest = |worst| -> Vec<Vec<u64>> {
        let rows = json(&["pauses", "--worst", worst], "shop.trace");
        let of = |row: &Value| {
            let pauses = row["longest"].as_array().unwrap();
            pauses.iter().map(|pause| nanos(&pause["duration"])).collect()
        };
        rows.iter().map(of).collect()
    };
    let (all, some) = (longest("1000"), longest("3"));
    let rows = json(&["pauses"], "shop.trace");
    assert!(rows.len() > 1, "several reasons");
    for ((row, all), some) in rows.iter().zip(&all).zip(&some) {
        assert_eq!(all.len() as u64, nanos(&row["count"]));
        assert!(all.is_sorted_by(|a, b| a >= b) && all[0] == nanos(&row["max"]), "{row}");
        assert_eq!(some[..], all[..all.len().min(3)]);
    }
}

#[test]
fn the_summary_of_a_range_counts_its_events() {
    // With an index, and without one.
    for trace in ["shop.trace", "go1.25-mixed.trace.gz", "go1.21-mixed.trace.gz"] {
        let (first, last) = span(trace);
        let seconds = |share: f64| format!("{:.9}", (last - first) as f64 * share / 1e9);
        let range = ["--json", "--from", &seconds(0.4), "--to", &seconds(0.7)];
        let events = |command| -> Value {
            serde_json::from_str(&printed(&[&[command], &range[..]].concat(), trace)).unwrap()
        };
        assert_eq!(events("summary")["events"], events("stats")["events"], "{trace}");
    }
}

#[test]
fn the_parts_of_a_trace_have_the_times_of_the_whole() {
    // The second one has several generations, the third one has none.
    for trace in ["shop.trace", "go1.25-mixed.trace.gz", "go1.21-mixed.trace.gz"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        std::fs::write(&path, recorded(trace)).unwrap();
        let times = |range: &[&str]| {
            let output = go(&[&["goroutines", "--json"], range].concat(), &path);
            assert!(output.status.success(), "{}", text(&output.stderr));
            let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
            let blocked = |row: &Value| -> u64 {
                row["times"]["blocked"].as_object().unwrap().values().map(nanos).sum()
            };
            let of = |state: &str| rows.iter().map(|row| nanos(&row["times"][state])).sum::<u64>();
            let syscall = of("syscall") + of("syscall_blocked");
            [of("running"), of("runnable"), syscall, rows.iter().map(blocked).sum()]
        };
        let (first, last) = span(trace);
        let middle = format!("{:.9}", (last - first) as f64 * 0.6 / 1e9);
        let (whole, a, b) = (times(&[]), times(&["--to", &middle]), times(&["--from", &middle]));
        for ((whole, a), b) in whole.into_iter().zip(a).zip(b) {
            assert_eq!(whole, a + b, "{trace}");
        }
    }
}

#[test]
fn stats_count_the_procs_of_the_program() {
    for trace in ["go1.21-mixed.trace.gz", "go1.22-mixed.trace.gz"] {
        let stats: Value = serde_json::from_str(&printed(&["stats", "--json"], trace)).unwrap();
        assert_eq!(nanos(&stats["procs"]), 3, "{trace}");
    }
}

#[test]
fn events_and_stats_are_those_of_the_range() {
    let trace = "shop.trace";
    let (first, last) = span(trace);
    let at = |share: f64| first + ((last - first) as f64 * share) as i64;
    let (from, to) = (at(0.25), at(0.5));
    let seconds = |time: i64| format!("{:.9}", (time - first) as f64 / 1e9);
    let (a, b) = (seconds(from), seconds(to));
    let range = ["--from", &a, "--to", &b];
    let time =
        |line: &str| -> Option<i64> { line.split_once("Time=")?.1.split(' ').next()?.parse().ok() };
    let whole = printed(&["events"], trace);
    let within = |line: &&str| time(line).is_some_and(|time| (from..=to).contains(&time));
    let wanted: Vec<&str> = whole.lines().filter(within).collect();
    let part = printed(&[&["events"][..], &range].concat(), trace);
    let found: Vec<&str> = part.lines().filter(|line| time(line).is_some()).collect();
    assert!(found == wanted && found.len() > 100, "{} of {}", found.len(), wanted.len());
    let stats: Value =
        serde_json::from_str(&printed(&[&["stats", "--json"][..], &range].concat(), trace))
            .unwrap();
    assert_eq!(nanos(&stats["events"]), wanted.len() as u64);
    // The generations and the clocks are those of the range, wherever they begin.
    assert!(nanos(&stats["generations"]) > 0, "{stats}");
    assert!(stats["clock_snapshot"]["wall"].is_string(), "{stats}");
    let late = go(&["events", "--from", "1000"], &fixture(trace));
    assert!(text(&late.stderr).contains("has no events in this range"));
}

/// Lines of a process, and the rest when it ended.
struct Following {
    child: Running,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Following {
    fn start(args: &[&str], path: &Path) -> Self {
        use std::io::BufRead;
        let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
        let command = command.arg("go").args(args).arg(path).stdin(Stdio::null());
        let mut child = Running::start(command);
        let lines = std::io::BufReader::new(child.child().stdout.take().unwrap()).lines();
        Self { child, lines }
    }
}

#[test]
fn a_growing_trace_is_followed_until_it_is_closed() {
    use std::io::Write;
    let trace = recorded("go1.25-mixed.trace.gz");
    let whole = printed(&["events"], "go1.25-mixed.trace.gz");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut file = std::fs::File::create(&path).unwrap();
    let mut following = Following::start(&["events", "--follow"], &path);
    // The first generation is printed while the second one is not written yet.
    let ends = whole.match_indices(" Sync ").nth(1).unwrap().0;
    let first = whole[..ends].lines().count() - 1;
    file.write_all(&trace[..trace.len() - 800]).unwrap();
    let mut lines: Vec<String> = following.lines.by_ref().take(first).map(Result::unwrap).collect();
    assert_eq!(lines.len(), first);
    file.write_all(&trace[trace.len() - 800..]).unwrap();
    drop(file);
    lines.extend(following.lines.map(Result::unwrap));
    assert!(lines.iter().map(String::as_str).eq(whole.lines()));
    assert!(following.child.child().wait().unwrap().success());
}

/// The first generation is printed while the second one is not sent yet.
#[test]
fn a_trace_is_read_from_a_socket() {
    use std::io::Write;
    let trace = recorded("go1.25-mixed.trace.gz");
    let whole = printed(&["events"], "go1.25-mixed.trace.gz");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut reading = Following::start(&["events"], &path);
    let (mut socket, _) = listener.accept().unwrap();
    socket.write_all(&trace[..trace.len() - 800]).unwrap();
    let mut lines = vec![reading.lines.next().unwrap().unwrap()];
    socket.write_all(&trace[trace.len() - 800..]).unwrap();
    drop(socket);
    lines.extend(reading.lines.map(Result::unwrap));
    assert!(lines.iter().map(String::as_str).eq(whole.lines()));
    assert!(reading.child.child().wait().unwrap().success());
    // Nobody listens any more.
    drop(listener);
    let output = go(&["stats"], &path);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("trace.sock: connection refused"), "{output:?}");
}

#[test]
fn following_ends_at_a_signal() {
    use std::io::Write;
    let trace = recorded("go1.25-mixed.trace.gz");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut file = std::fs::File::create(&path).unwrap();
    let mut following = Following::start(&["events", "--follow"], &path);
    file.write_all(&trace[..trace.len() - 800]).unwrap();
    assert!(following.lines.next().unwrap().is_ok());
    following.child.signal("INT");
    let rest = following.lines.map(Result::unwrap).count();
    assert!(rest > 100);
    let mut message = String::new();
    following.child.child().stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert!(message.contains("stopped within a generation"), "{message}");
    assert!(following.child.child().wait().unwrap().success());
    drop(file);
}

/// An analysis of two passes does not connect to a socket or wait for a pipe.
#[test]
fn an_analysis_of_two_passes_needs_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, pipe) = (dir.path().join("trace.sock"), dir.path().join("pipe"));
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let output = dir.path().join("x.folded");
    let profile = ["profile", "sync", "-o", output.to_str().unwrap()];
    let commands: [(&[&str], &str); 8] = [
        (&["critical-path"], "critical-path"),
        (&["tasks", "--logs"], "--logs"),
        (&["allocs", "--from", "1"], "a restriction to a range of time"),
        (&[&profile[..], &["--to", "1"]].concat(), "a restriction to a range of time"),
        (&[&profile[..], &["--region", "a"]].concat(), "a profile of goroutines, regions or tasks"),
        (&[&profile[..], &["--task", "a"]].concat(), "a profile of goroutines, regions or tasks"),
        (&[&profile[..], &["--goroutine", "a"]].concat(), "a profile of goroutines,"),
        (&["critical-path", "--from", "1"], "critical-path"),
    ];
    for (args, reader) in commands {
        for (input, name) in [
            (&*socket, socket.to_str().unwrap()),
            (&*pipe, pipe.to_str().unwrap()),
            (Path::new("-"), "standard input"),
        ] {
            let output = go(args, input);
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
            assert!(message.contains(&format!("{name}: {reader}")), "{args:?}: {message}");
            assert!(message.contains("reads the trace twice: save it to a file first"));
        }
    }
    assert!(!output.exists());
    let connection = listener.accept();
    assert!(connection.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
}

const STACKS: u64 = 2;
const STRINGS: u64 = 4;
const STRING: u64 = 5;
const FREQUENCY: u64 = 8;
const PROC_STATUS: u64 = 13;
const GO_STATUS: u64 = 25;
const LOG: u64 = 44;
const TASK_BEGIN: u64 = 40;
const TASK_END: u64 = 41;
const REGION_BEGIN: u64 = 42;
const REGION_END: u64 = 43;

/// A trace of Go 1.22.
struct Wire(Vec<u8>);

impl Wire {
    fn new() -> Self {
        Self(b"go 1.22 trace\0\0\0".to_vec())
    }

    /// Begins a generation, in which goroutine 1 runs on thread 1. The names are strings 1, 2, ….
    fn generation(&mut self, number: u64, names: &[String]) {
        self.batch(number, u64::MAX, 1, &[&[FREQUENCY, 15_625_000]]);
        for (names, first) in names.chunks(1000).zip((1..).step_by(1000)) {
            let string = |(id, name): (u64, &String)| {
                let head = [STRING, id, name.len() as u64];
                head.into_iter().chain(name.bytes().map(u64::from)).collect()
            };
            let strings: Vec<Vec<u64>> = (first..).zip(names).map(string).collect();
            let strings = [&[STRINGS][..]].into_iter().chain(strings.iter().map(Vec::as_slice));
            self.batch(number, u64::MAX, 1, &strings.collect::<Vec<_>>());
        }
        let start = [&[PROC_STATUS, 1, 0, 1][..], &[GO_STATUS, 1, 1, 1, 2]];
        self.batch(number, 1, number * 1_000_000, &start);
    }

    /// Ends a generation. The tables are in addition to those at its start.
    fn end(&mut self, number: u64) {
        for table in [STACKS, STRINGS] {
            self.batch(number, u64::MAX, 1, &[&[table]]);
        }
    }

    fn batch(&mut self, generation: u64, thread: u64, ticks: u64, events: &[&[u64]]) {
        let mut data = Vec::new();
        events.iter().copied().flatten().for_each(|value| append_uvarint(*value, &mut data));
        self.0.push(1);
        for field in [generation, thread, ticks, data.len() as u64] {
            append_uvarint(field, &mut self.0);
        }
        self.0.extend(data);
    }
}

/// A trace in which goroutine 1 has this number of tasks, beside as many goroutines that wait.
fn many(count: u64, names: &[String]) -> Vec<u8> {
    let mut wire = Wire::new();
    wire.generation(1, names);
    for id in 1..=count {
        let waits = [GO_STATUS, 1, 1 + id, u64::MAX, 4];
        let name = id.min(names.len() as u64);
        // Each lasts longer than the one before.
        let (begins, ends) = ([TASK_BEGIN, 1, id, 0, name, 0], [TASK_END, id, id, 0]);
        wire.batch(1, 1, 1_000_000 + 10_000 * id, &[&waits, &begins, &ends]);
    }
    wire.end(1);
    wire.0
}

/// A task that hangs is the longest one.
#[test]
fn tasks_that_the_trace_cuts_off_have_the_place_of_their_part() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("x.trace");
    let mut wire = Wire::new();
    wire.generation(1, &["job".to_owned()]);
    let begins = |id| [TASK_BEGIN, 1, id, 0, 1, 0];
    let ends = |id| [TASK_END, 1, id, 0];
    // Task 7 does not end, and task 6 began before the trace.
    wire.batch(1, 1, 1_100_000, &[&begins(7)]);
    wire.batch(1, 1, 1_200_000, &[&begins(8)]);
    wire.batch(1, 1, 1_300_000, &[&ends(8), &ends(6)]);
    // Task 5 is only known as a parent.
    wire.batch(1, 1, 1_700_000, &[&[TASK_BEGIN, 1, 9, 5, 1, 0], &ends(9)]);
    wire.end(1);
    std::fs::write(&trace, &wire.0).unwrap();
    let ids = |args: &[&str]| {
        let output = go(&[&["tasks", "--json"], args].concat(), &trace);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let tasks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        tasks.iter().map(|task| nanos(&task["id"])).collect::<Vec<_>>()
    };
    // The trace begins at 64 ns: task 6 has the longest part.
    assert_eq!(ids(&[]), [6, 7, 8, 9, 5]);
    assert_eq!(ids(&["--worst", "1"]), [6]);
    assert_eq!(ids(&["--type", "job", "--worst", "1"]), [7]);
    // Of the range, 1.05 to 1.7 million ticks of 64 ns, task 7 has the longest part.
    assert_eq!(ids(&["--from", "0.0672", "--worst", "2"]), [7, 6]);
    let table = text(&go(&["tasks", "--type", "job"], &trace).stdout);
    let first = table.lines().nth(1).unwrap();
    assert!(first.contains("incomplete"), "{table}");
}

/// A task that hangs, and one that began and ends outside of the range.
#[test]
fn tasks_that_the_range_is_within_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("x.trace");
    let mut wire = Wire::new();
    wire.generation(1, &["job".to_owned(), "late".to_owned()]);
    let begins = |id| [TASK_BEGIN, 1, id, 0, 1, 0];
    let ends = |id| [TASK_END, 1, id, 0];
    let logs = |id| [LOG, 1, id, 0, 2, 0];
    wire.batch(1, 1, 1_050_000, &[&begins(3), &ends(3)]);
    wire.batch(1, 1, 1_100_000, &[&begins(7), &begins(8)]);
    // Of a task that is over, there is no part in the range.
    wire.batch(1, 1, 1_300_000, &[&begins(9), &logs(8), &logs(3)]);
    wire.batch(1, 1, 1_700_000, &[&ends(7), &ends(9)]);
    wire.end(1);
    std::fs::write(&trace, &wire.0).unwrap();
    // From 1.2 to 1.4 million ticks of 64 ns: the trace begins with the first of them.
    let range = ["--from", "0.0768", "--to", "0.0896"];
    let rows = |args: &[&str]| {
        let output = go(&[&["tasks", "--json"], args, &range].concat(), &trace);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Vec<Value>>(&output.stdout).unwrap()
    };
    for args in [&[][..], &["--type", "job"], &["--logs"]] {
        let of = |row: &Value| (nanos(&row["id"]), nanos(&row["logs"]), row["type"].clone());
        let found: Vec<_> = rows(args).iter().map(of).collect();
        // All of the range is theirs.
        assert_eq!(found, [7, 8, 9].map(|id| (id, u64::from(id == 8), "job".into())), "{args:?}");
    }
    assert_eq!(rows(&["--worst", "1"])[0]["id"], 7);
    let types = rows(&["--by-type"]);
    assert_eq!(types.len(), 1);
    assert_eq!((&types[0]["type"], &types[0]["incomplete"]), (&"job".into(), &3.into()));
}

/// The first task began in the generation before.
#[test]
fn tasks_from_before_the_range_have_their_type() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, compressed) = (dir.path().join("plain.trace"), dir.path().join("x.trace.gz"));
    let mut wire = Wire::new();
    wire.generation(1, &["checkout".to_owned()]);
    wire.batch(1, 1, 1_100_000, &[&[TASK_BEGIN, 1, 7, 0, 1, 0]]);
    wire.generation(2, &["search".to_owned()]);
    let ends = [&[TASK_END, 1, 7, 0][..], &[TASK_BEGIN, 1, 8, 0, 1, 0], &[TASK_END, 1, 8, 0]];
    wire.batch(2, 1, 2_100_000, &ends);
    wire.end(2);
    std::fs::write(&plain, &wire.0).unwrap();
    std::fs::write(&compressed, gzip(&wire.0)).unwrap();
    for path in [&plain, &compressed] {
        for args in [&["tasks"][..], &["tasks", "--by-type"]] {
            let output = go(&[args, &["--json", "--from", "0.1"]].concat(), path);
            assert!(output.status.success(), "{}", text(&output.stderr));
            let tasks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
            let mut types: Vec<&str> = tasks.iter().map(|t| t["type"].as_str().unwrap()).collect();
            types.sort_unstable();
            assert_eq!(types, ["checkout", "search"], "{args:?} {}", path.display());
        }
    }
}

/// Without an index, too: the states are those at the end of the generation before.
#[test]
fn a_range_between_generations_has_the_states_of_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, compressed) = (dir.path().join("plain.trace"), dir.path().join("x.trace.gz"));
    let mut wire = Wire::new();
    // Up to 70.4 ms, and at 128 ms.
    wire.generation(1, &["job".to_owned()]);
    wire.batch(1, 1, 1_100_000, &[&[TASK_BEGIN, 1, 7, 0, 1, 0]]);
    let mut second = |thread, events: &[&[u64]]| wire.batch(2, thread, 2_000_000, events);
    second(u64::MAX, &[&[FREQUENCY, 15_625_000]]);
    second(1, &[&[PROC_STATUS, 1, 0, 1], &[GO_STATUS, 1, 1, 1, 2]]);
    second(u64::MAX, &[&[STACKS]]);
    second(u64::MAX, &[&[STRINGS]]);
    std::fs::write(&plain, &wire.0).unwrap();
    std::fs::write(&compressed, gzip(&wire.0)).unwrap();
    let range = ["--json", "--from", "0.08", "--to", "0.09"];
    for command in ["goroutines", "latency", "procs", "summary", "stats", "mmu", "tasks"] {
        let [plain, compressed] = [&plain, &compressed].map(|path| {
            let output = go(&[&[command], &range[..]].concat(), path);
            assert!(output.status.success(), "{command}: {}", text(&output.stderr));
            let mut answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            if answer.is_object() {
                answer["file"] = Value::Null;
            }
            answer
        });
        assert_eq!(plain, compressed, "{command}");
        if command == "goroutines" {
            assert_eq!(plain[0]["times"]["running"], 10_000_000);
        }
    }
    let late = go(&["goroutines", "--from", "0.2"], &plain);
    assert!(text(&late.stderr).contains("has no events in this range"), "{late:?}");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// A generation begins with events about states. They are those of the whole trace.
#[test]
fn events_of_a_range_are_lines_of_all_events() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    for trace in ["go1.22-mixed.trace.gz", "go1.25-mixed.trace.gz", "go1.21-mixed.trace.gz"] {
        std::fs::write(&path, recorded(trace)).unwrap();
        let (first, last) = span(trace);
        let seconds = format!("{:.9}", (last - first) as f64 * 0.7 / 1e9);
        let whole = text(&go(&["events"], &path).stdout);
        let part = text(&go(&["events", "--from", &seconds], &path).stdout);
        assert!(part.len() > whole.len() / 10 && whole.ends_with(&part), "{trace}");
        let compressed = printed(&["events", "--from", &seconds], trace);
        assert!(compressed == part, "{trace}");
        let keys = ["events_by_type", "goroutines", "goroutines_created", "procs", "threads"];
        let counts = |counts: &Value| keys.map(|key| counts[key].clone());
        let args = ["stats", "--json", "--from", &seconds];
        let stats = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
        let (part, compressed) =
            (stats(&text(&go(&args, &path).stdout)), stats(&printed(&args, trace)));
        assert_eq!(counts(&part), counts(&compressed), "{trace}");
        // The bytes of the generations of the range are known with an index only.
        let each = |stats: &Value| ["bytes", "bytes_per_event"].map(|key| stats[key].as_f64());
        assert_eq!(each(&compressed), [None; 2], "{trace}");
        let args = ["stats", "--from", &seconds];
        assert!(!printed(&args, trace).contains(" bytes"), "{trace}");
        if trace.starts_with("go1.21") {
            assert_eq!(each(&part), [None; 2]);
            continue;
        }
        // Those of the range are a part of a generation.
        let [Some(bytes), None] = each(&part) else { panic!("{part}") };
        let whole = std::fs::metadata(&path).unwrap().len() as f64;
        assert!(0.0 < bytes && bytes < whole, "{trace}: {bytes} of {whole}");
        assert!(!text(&go(&args, &path).stdout).contains("bytes each"));
        let args = ["stats", "--from", "0"];
        let of_whole = text(&go(&[&args[..], &["--json"]].concat(), &path).stdout);
        let of_whole = stats(&of_whole);
        let [Some(bytes), Some(per_event)] = each(&of_whole) else { panic!("{of_whole}") };
        assert!((per_event - bytes / of_whole["events"].as_f64().unwrap()).abs() < 1e-6);
        assert!(text(&go(&args, &path).stdout).contains(&format!("{per_event:.2} bytes each")));
        // An event after the range is another one of the generation, too.
        let end = format!("{:.9}", (last - first - 1) as f64 / 1e9);
        let args = ["stats", "--json", "--to", &end];
        let cut = stats(&text(&go(&args, &path).stdout));
        assert!(matches!(each(&cut), [Some(_), None]), "{cut}");
    }
}

#[test]
fn a_range_after_the_end_is_an_error() {
    for trace in ["shop.trace", "go1.25-mixed.trace.gz", "go1.21-mixed.trace.gz"] {
        for command in ["goroutines", "tasks", "latency", "mmu", "summary", "stats", "events"] {
            let output = go(&[command, "--from", "9999"], &fixture(trace));
            let found = (output.status.code(), &*text(&output.stdout));
            assert_eq!(found, (Some(1), ""), "{command} {trace}");
            let message = text(&output.stderr);
            let (first, last) = span(trace);
            let micros = (last - first) / 1000;
            let there = format!("0 to {}.{:06} s", micros / 1_000_000, micros % 1_000_000);
            let expected = format!(": has no events in this range: the trace has {there}\n");
            assert!(message.ends_with(&expected), "{command}: {message}");
        }
    }
    for command in ["allocs", "trim"] {
        let args: &[&str] = if command == "trim" { &["-o", "/dev/null"] } else { &[] };
        let args = [&[command, "--from", "9999"], args].concat();
        let output = go(&args, &fixture("go1.26-allocations.trace.gz"));
        let message = text(&output.stderr);
        assert!(
            message.contains("has no events in this range: the trace has 0 to 0."),
            "{message}"
        );
    }
}

/// As `--from` and `--to` have them. Those of JSON are on the clock of the trace.
#[test]
fn times_are_after_the_start_of_the_trace() {
    let compared = std::cell::Cell::new(0);
    for trace in ["shop.trace", "go1.25-mixed.trace.gz", "go1.21-mixed.trace.gz"] {
        let (first, last) = span(trace);
        let middle = format!("{:.9}", (last - first) as f64 * 0.3 / 1e9);
        for range in [&[][..], &["--from", &middle]] {
            let check = |command: &[&str], before: &str, starts: &dyn Fn(&Value) -> Value| {
                let args = [command, range].concat();
                let table = printed(&args, trace);
                for row in json(&args, trace) {
                    let start = starts(&row);
                    let Some(start) = start.as_i64() else { continue };
                    let at = format!("{before}{:.6} s", (start - first) as f64 / 1e9);
                    assert!(table.contains(&at), "{args:?} {trace}: {at} in {table}");
                    compared.set(compared.get() + 1);
                }
            };
            let start = |row: &Value| row["start"].clone();
            check(&["stalls"], ") at ", &start);
            check(&["pauses", "--worst", "1000"], " at ", &|row| {
                row["longest"][0]["start"].clone()
            });
            check(&["gc"], " ", &start);
            check(&["procs"], " ", &start);
            check(&["mmu"], "  ", &|row| row["worst"][0]["start"].clone());
        }
    }
    assert!(compared.get() > 100, "{compared:?}");
    let time = json(&["allocs", "--over-time"], "go1.26-allocations.trace.gz")[0]["time"].clone();
    let (first, _) = span("go1.26-allocations.trace.gz");
    let table = printed(&["allocs", "--over-time"], "go1.26-allocations.trace.gz");
    let at = format!(" {:.6} s ", (time.as_i64().unwrap() - first) as f64 / 1e9);
    assert!(table.contains(&at), "{at} in {table}");
}

#[test]
fn a_name_that_does_not_exist_is_an_error_with_those_that_do() {
    let tasks = "no task of type \"x\"; it has the task types \"GET /";
    let goroutines = "no goroutine with the entry function \"x\"; it has the entry functions \"";
    for (args, what) in [
        (&["tasks", "--type", "x"][..], tasks),
        (&["tasks", "--type", "x", "--json"], tasks),
        (&["tasks", "--type", "x", "--by-type"], tasks),
        (&["goroutines", "--entry", "x"], goroutines),
        (&["goroutines", "--entry", "x", "--csv"], goroutines),
        (&["goroutines", "--task", "x"], tasks),
        (
            &["goroutines", "--region", "x"],
            "no region of type \"x\"; it has the region types \"lookup",
        ),
        (&["profile", "sync", "--goroutine", "x"], goroutines),
    ] {
        let output = go(args, &fixture("shop.trace"));
        let found = (output.status.code(), &*text(&output.stdout));
        assert_eq!(found, (Some(1), ""), "{args:?}");
        let message = text(&output.stderr);
        assert!(message.contains(&format!(": the trace contains {what}")), "{args:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
    }
    // None is asked for.
    let none = json(&["tasks", "--type", "GET /cart", "--worst", "0"], "shop.trace");
    assert!(none.is_empty(), "{none:?}");
    let output = go(&["critical-path", "--worst", "0"], &fixture("shop.trace"));
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--worst"), "{}", text(&output.stderr));
}

/// It may be why the trace lacks something.
#[test]
fn damage_is_reported_before_what_a_trace_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut.trace");
    let trace = many(3, &[]);
    std::fs::write(&cut, &trace[..trace.len() - 4]).unwrap();
    for args in [
        &["profile", "gc"][..],
        &["profile", "sync", "--goroutine", "x"],
        &["tasks", "--type", "x"],
        &["goroutines", "--entry", "x"],
        &["goroutines", "--region", "x"],
    ] {
        let output = go(args, &cut);
        let message = text(&output.stderr);
        let lines: Vec<&str> = message.lines().collect();
        let [damage, lacks] = lines[..] else { panic!("{args:?}: {message}") };
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(damage.contains("at byte") && damage.contains("--recover"), "{args:?}: {message}");
        assert!(lacks.contains("what could be read of the trace contains no "), "{message}");
    }
}

#[test]
fn types_above_the_limit_are_together() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("many.trace");
    let names: Vec<String> = (0..5000).map(|number| format!("type {number}")).collect();
    std::fs::write(&trace, many(5001, &names)).unwrap();
    let output = go(&["tasks", "--by-type", "--json"], &trace);
    let types: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(types.len(), 4096 + 1);
    let rest = types.iter().find(|ty| ty["type"] == "").unwrap();
    assert_eq!(nanos(&rest["durations"]["count"]), 5001 - 4096);
    let message = text(&output.stderr);
    assert!(message.contains(": 905 tasks of too many names are in one row"), "{message}");
    let summary: Value =
        serde_json::from_slice(&go(&["summary", "--json"], &trace).stdout).unwrap();
    let losses = summary["losses"].as_array().unwrap();
    let loss = "905 tasks of too many names are in one row without a name";
    assert!(losses.iter().any(|l| l == loss), "{losses:?}");
}

#[test]
fn rows_that_are_left_out_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("many.trace");
    std::fs::write(&trace, many(1234, &[])).unwrap();
    let rows = |args: &[&str]| {
        let output = go(&[args, &["--json"]].concat(), &trace);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        (rows, text(&output.stderr))
    };
    for (args, what, omitted) in
        [(&["tasks"][..], "tasks", 234), (&["goroutines", "--entry", ""], "goroutines", 235)]
    {
        let (all, message) = rows(&[args, &["--worst", "10000"]].concat());
        assert_eq!((all.len(), &*message), (1000 + omitted, ""), "{args:?}");
        let (first, message) = rows(args);
        assert_eq!(first, all[..1000], "{args:?}");
        let note = format!(": {omitted} shorter {what} are not listed: see --worst\n");
        assert!(message.ends_with(&note), "{args:?}: {message}");
        let (first, message) = rows(&[args, &["--worst", "3"]].concat());
        assert_eq!((&first[..], &*message), (&all[..3], ""), "{args:?}");
    }
    let output = go(&["goroutines", "--worst", "3"], &trace);
    assert!(text(&output.stderr).contains("--entry"), "{}", text(&output.stderr));
    assert!(!output.status.success());
    let (tasks, _) = rows(&["tasks", "--worst", "2"]);
    assert_eq!([&tasks[0]["id"], &tasks[1]["id"]], [1234, 1233]);
}

#[test]
fn the_use_of_an_unknown_number_of_processors_has_no_shares() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("many.trace");
    std::fs::write(&trace, many(3, &[])).unwrap();
    let summary = text(&go(&["summary"], &trace).stdout);
    let line = summary.lines().find(|line| line.starts_with("processors")).unwrap();
    assert!(line.contains("unknown number") && !line.contains('%'), "{line}");
    let summary: Value =
        serde_json::from_slice(&go(&["summary", "--json"], &trace).stdout).unwrap();
    let processors = &summary["processors"];
    assert_eq!((&processors["procs"], &processors["idle"]), (&Value::Null, &Value::Null));
    assert!(processors["running"].is_number());
    // In each row of its own command, too.
    let rows: Vec<Value> =
        serde_json::from_slice(&go(&["procs", "--json"], &trace).stdout).unwrap();
    assert!(!rows.is_empty());
    for row in &rows {
        assert_eq!((&row["procs"], &row["idle"]), (&Value::Null, &Value::Null));
        assert!(row["running"].is_number());
    }
    let table = text(&go(&["procs"], &trace).stdout);
    for line in table.lines().skip(1) {
        assert_eq!(line.split_whitespace().filter(|cell| *cell == "-").count(), 2, "{table}");
    }
    let page = dir.path().join("summary.html");
    assert!(go(&["summary", "--html", page.to_str().unwrap()], &trace).status.success());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Ps over time") && !page.contains("idle"));
}

/// The cycles of `go gc` that began in the trace are those of the profile, and the explicit ones have
/// the function that asked for them.
#[test]
fn gcs_have_the_stacks_that_started_them() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("gc.folded");
    let output = output.to_str().unwrap();
    for trace in ["shop.trace", "go1.21-mixed.trace.gz", "go1.26-mixed.trace.gz"] {
        let file = dir.path().join("trace");
        std::fs::write(&file, recorded(trace)).unwrap();
        let cycles = json(&["gc"], trace);
        let started: Vec<&Value> =
            cycles.iter().filter(|cycle| !cycle["start"].is_null()).collect();
        let ran = go(&["profile", "gc", "-o", output], &file);
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        let folded = std::fs::read_to_string(output).unwrap();
        let count = |has: &dyn Fn(&str) -> bool| -> usize {
            let lines = folded.lines().filter_map(|line| line.rsplit_once(' '));
            lines.filter(|(stack, _)| has(stack)).map(|(_, n)| n.parse::<usize>().unwrap()).sum()
        };
        assert_eq!(count(&|_| true), started.len(), "{trace}: {folded}");
        let explicit = started.iter().filter(|cycle| cycle["trigger"] == "explicit").count();
        let asks = |stack: &str| stack.contains("runtime.GC") || stack.contains("FreeOSMemory");
        assert_eq!(count(&asks), explicit, "{trace}: {folded}");
    }
}
