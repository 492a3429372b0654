//! `triscope report` and `triscope explain` as processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data").join(name);
    path.to_str().unwrap().to_owned()
}

fn triscope(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = triscope(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The data of the page of these traces, and the messages.
fn page(dir: &Path, traces: &[&str]) -> (Value, String) {
    let page = dir.join("page.html");
    let output = triscope(&[&["report", "--html", page.to_str().unwrap()], traces].concat());
    let messages = text(&output.stderr);
    assert!(output.status.success(), "{messages}");
    let (json, _) = testkit::page::data(&std::fs::read_to_string(&page).unwrap());
    (serde_json::from_str(&json).unwrap(), messages)
}

#[track_caller]
fn assert_fails(args: &[&str], message: &str) {
    let output = triscope(args);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(text(&output.stderr), format!("triscope: {message}\n"));
}

#[test]
fn a_report_has_every_goroutine() {
    let shop = fixture("shop.trace");
    let report = json(&["report", "--json", &shop]);
    let groups = report["goroutines"].as_array().unwrap();
    let goroutines: u64 = groups.iter().map(|group| group["count"].as_u64().unwrap()).sum();
    assert_eq!(goroutines, 150, "as triscope convert counts them");
    let handler = groups.iter().find(|g| g["entry"] == "net/http.(*conn).serve").unwrap();
    assert_eq!(handler["count"], 3);
    // The kernel was not recorded: nothing is claimed about CPUs.
    assert_eq!(handler["running"]["on_cpu"], 0);
    assert!(handler["running"]["unknown"].as_u64().unwrap() > 20_000_000, "{handler}");
    let stops: u64 = report["pauses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pause| pause["durations"]["count"].as_u64().unwrap())
        .sum();
    assert_eq!(stops, 27, "the stop-the-world pauses of the trace");

    let output = triscope(&["report", &shop]);
    let report = text(&output.stdout);
    for part in [
        "0.094 s",
        "Goroutines and .NET threads",
        "Off CPU by reason",
        "Longest scheduling delays",
        "\nGarbage collections\n",
        "\nStop-the-world pauses\n",
        "scheduler was not recorded",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
}

#[test]
fn single_goroutines_sum_to_those_by_entry_function() {
    let shop = fixture("shop.trace");
    let report = json(&["report", "--json", "--worst", "1000", &shop]);
    let sum = |of: &str, pointer: &str| {
        let rows = report[of].as_array().unwrap().iter();
        rows.map(|row| row.pointer(pointer).unwrap().as_i64().unwrap()).sum::<i64>()
    };
    for part in ["/latency/sum", "/latency/count", "/runnable", "/waiting", "/running/unknown"] {
        assert!(sum("goroutines", part) > 0, "{part}");
        assert_eq!(sum("goroutines", part), sum("single_goroutines", part), "{part}");
    }
    let latency = |row: &Value| row.pointer("/latency/sum").unwrap().as_i64().unwrap();
    let rows = report["single_goroutines"].as_array().unwrap();
    assert!(rows.is_sorted_by(|a, b| latency(a) >= latency(b)));

    let one = json(&["report", "--json", "--goroutine", "1", &shop]);
    let [main] = &one["single_goroutines"].as_array().unwrap()[..] else { panic!("{one}") };
    assert_eq!((&main["goroutine"], &main["entry"]), (&1.into(), &"main.main".into()));
    assert_eq!(Some(main), rows.iter().find(|row| row["goroutine"] == 1));
    let text = text(&triscope(&["report", "--goroutine", "1", &shop]).stdout);
    assert!(text.contains("  main.main (G1), shop\n"), "{text}");
    assert_fails(
        &["report", "--goroutine", "99999", &shop],
        "goroutine 99999 is not in the traces",
    );
}

#[test]
fn pieces_of_the_longest_requests_sum_to_them() {
    let shop = fixture("shop.trace");
    let requests = json(&["explain", "--json", "--worst", "50", &shop]);
    let requests = requests.as_array().unwrap();
    assert_eq!(requests.len(), 50);
    let mut before = i64::MAX;
    for request in requests {
        let nanos = request["nanos"].as_i64().unwrap();
        assert!(nanos <= before, "longest first");
        before = nanos;
        let pieces = request["pieces"].as_array().unwrap();
        let sum: i64 = pieces.iter().map(|piece| piece["nanos"].as_i64().unwrap()).sum();
        assert_eq!(sum, nanos, "{request}");
    }
    // The handlers of the shop share a mutex: others hold it for their own requests.
    let longest = requests[0]["pieces"].as_array().unwrap();
    let is_context = |piece: &&Value| {
        piece["waiter_reason"] == "sync"
            && piece["context"]["kind"] == "task"
            && piece["depth"] == 1
    };
    assert!(longest.iter().any(|piece| is_context(&piece)), "{longest:#?}");
}

/// A request that overlaps the times is explained as a whole.
#[test]
fn requests_overlap_the_times_between_which_they_are_wanted() {
    let shop = fixture("shop.trace");
    let whole = json(&["explain", "--json", "--goroutine", "1", &shop]);
    let search = ["explain", "--json", "--task", "GET /search", "--worst", "9999", &shop];
    let all = json(&search);
    let all = all.as_array().unwrap();
    // The timeline begins with the first event, a little before the one of the goroutine.
    let start = whole[0]["start"].as_i64().unwrap();
    let longest = &all[0];
    let begin = longest["start"].as_i64().unwrap() - start;
    let nanos = longest["nanos"].as_i64().unwrap();
    let at = |nanos: i64| format!("{:.9}", nanos as f64 / 1e9);
    let (from, to) = (at(begin + nanos / 3), at(begin + nanos / 2));
    let found = json(&[&search[..], &["--between", &from, &to]].concat());
    let found = found.as_array().unwrap();
    assert_eq!(&found[0], longest);
    assert!(found.len() < all.len(), "{}", found.len());
    assert_fails(
        &["explain", "--task", "GET /search", "--between", "90", "91", &shop],
        "no task \"GET /search\" that overlaps these times ended; the traces have the tasks \
         \"GET /search\", \"GET /cart\"",
    );
}

#[test]
fn a_goroutine_is_explained_from_its_start_to_its_end() {
    let shop = fixture("shop.trace");
    let all = json(&["explain", "--json", "--goroutine", "1", &shop]);
    let part = ["explain", "--json", "--goroutine", "1", "--between", "0.01", "0.02", &shop];
    let part = json(&part);
    assert_eq!(
        (&all[0]["subject"]["name"], &all[0]["subject"]["number"]),
        (&Value::from("main.main"), &Value::from(1))
    );
    assert_eq!(part[0]["nanos"], 10_000_000);
    // The first event of the timeline is a little before the first one of the goroutine.
    let later = part[0]["start"].as_i64().unwrap() - all[0]["start"].as_i64().unwrap();
    assert!((9_999_000..=10_000_000).contains(&later), "{later}");
    let output = text(&triscope(&["explain", "--goroutine", "1", &shop]).stdout);
    assert!(output.starts_with("main.main (G1): "), "{output}");
    assert!(output.contains("; --path prints them in time order\n"), "{output}");
}

/// The uses of the time sum to each request, in JSON and as text.
#[test]
fn uses_of_the_time_sum_to_the_request() {
    let shop = fixture("shop.trace");
    let requests = json(&["explain", "--json", "--worst", "50", &shop]);
    for request in requests.as_array().unwrap() {
        let sum = |of: &str| -> i64 {
            let rows = request[of].as_array().unwrap();
            rows.iter().map(|row| row["nanos"].as_i64().unwrap()).sum()
        };
        let nanos = request["nanos"].as_i64().unwrap();
        assert_eq!((sum("summary"), sum("pieces")), (nanos, nanos), "{request}");
        let uses = request["summary"].as_array().unwrap();
        let nanos = |of: &Value| of["nanos"].as_i64().unwrap();
        assert!(uses.is_sorted_by(|a, b| nanos(a) >= nanos(b)), "{request}");
        let pieces: u64 = uses.iter().map(|of| of["pieces"].as_u64().unwrap()).sum();
        assert_eq!(pieces, request["pieces"].as_array().unwrap().len() as u64);
    }
}

#[test]
fn the_text_of_explain_is_the_expected_one() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let activity = fixture("../../../nettrace/tests/data/t10-activity.nettrace");
    let shop = fixture("shop.trace");
    for (name, args) in [
        ("explain.txt", &["explain", "--worst", "2", &shop][..]),
        ("explain-path.txt", &["explain", "--path", &shop]),
        ("explain-goroutine.txt", &["explain", "--goroutine", "32", &shop]),
        ("explain-dotnet.txt", &["explain", &activity]),
    ] {
        let output = triscope(args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        testkit::golden::check(&data.join(name), &text(&output.stdout));
    }
    let text = std::fs::read_to_string(data.join("explain.txt")).unwrap();
    assert!(text.contains(" waited for a mutex held by net/http.(*conn).serve (G"), "{text}");
    let text = std::fs::read_to_string(data.join("explain-dotnet.txt")).unwrap();
    assert!(text.contains("not known: the scheduler was not recorded\n"), "{text}");
}

/// The traces of Go 1.21 do not name the thread that ended a sleep, only its P.
#[test]
fn a_sleep_of_go_1_21_is_a_sleep() {
    let old = fixture("go1.21-mixed.trace.gz");
    let output = text(&triscope(&["explain", &old]).stdout);
    assert!(output.contains(": waited for sleep\n"), "{output}");
    assert!(!output.contains(" P0: not known\n"), "{output}");
}

#[test]
fn wrong_usage_is_named() {
    let shop = fixture("shop.trace");
    let old = fixture("go1.21-mixed.trace.gz");
    let usage = |args: &[&str], message: &str| {
        let output = triscope(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(message), "{args:?}: {stderr}");
        assert_eq!(text(&output.stdout), "");
    };
    usage(&["explain", "--worst", "0", &shop], "invalid value '0' for '--worst <N>'");
    usage(
        &["report", "--goroutine", "1", "--worst", "5", &shop],
        "the argument '--goroutine <ID>' cannot be used with '--worst <N>'",
    );
    usage(&["explain", &shop, "--between", "nan", "nan"], "expected a number of seconds");
    usage(
        &["explain", &shop, "--between", "1", "0.5"],
        "triscope: --between 1 0.5: the first time must be before the second\n",
    );
    usage(
        &["report", &shop, &old, "--offset", "wrong=12.5"],
        &format!("triscope: --offset: wrong is none of the traces: {shop}, {old}\n"),
    );
    usage(
        &["report", &shop, "--offset", "wrong=12.5"],
        &format!("triscope: --offset: wrong is none of the traces: {shop}\n"),
    );
}

/// A process that is not in the traces is an error that names those which are.
#[test]
fn a_missing_process_is_an_error() {
    let data = fixture("../../../perf-data/tests/data/scheduler.perf.data");
    let shop = fixture("shop.trace");
    assert!(triscope(&["report", "--pid", "8", &data]).status.success());
    let output = triscope(&["report", "--pid", "77", &data]);
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(1), ""));
    assert!(
        stderr.starts_with("triscope: process 77 is not in the traces; they have "),
        "{stderr}"
    );
    assert!(stderr.contains("8 (sums)"), "{stderr}");
    assert!(!stderr.contains("not a system-wide record"), "a note about other things: {stderr}");
    assert_fails(
        &["report", "--pid", "77", &shop],
        "process 77 is not in the traces; they name no process ids; shop: not shown, as its process id \
         is not known: name the file go-PID.trace",
    );
}

/// Between two traces, the wall clock has advanced by hours more than the clock of the events.
#[test]
fn traces_of_two_boots_are_said_to_be_mixed() {
    let go = fixture("shop.trace");
    let dotnet = fixture("../../../nettrace/tests/data/t10-activity.nettrace");
    let note = format!("{go}: its clocks do not fit those of {dotnet}: the machine was ");
    let mixed = format!("triscope: {note}");
    let report = triscope(&["report", &dotnet, &go]);
    assert!(text(&report.stdout).contains(&note), "{}", text(&report.stdout));
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [timeline, dataset] = ["out.pftrace", "dataset"].map(path);
    for args in [
        &["convert", &dotnet, &go, "-o", &timeline][..],
        &["explain", &dotnet, &go],
        &["export", &dotnet, &go, "-o", &dataset, "--host", "x"],
    ] {
        let output = triscope(args);
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert_eq!(stderr.matches(&mixed).count(), 1, "{args:?}: {stderr}");
    }
    // Those of one boot, and one whose clock is moved.
    let other = fixture("go1.26-mixed.trace.gz");
    let moved = format!("{go}=1");
    for args in [&["report", &other, &go][..], &["report", &dotnet, &go, "--offset", &moved]] {
        let output = triscope(args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(!text(&output.stdout).contains("its clocks do not fit"), "{args:?}");
    }
}

/// A trace of .NET has its threads without the kernel's scheduler.
#[test]
fn a_thread_of_dotnet_is_explained() {
    let trace = fixture("../../../nettrace/tests/data/t10-activity.nettrace");
    let explained = json(&["explain", "--json", "--thread", "28683", &trace]);
    let pieces = explained[0]["pieces"].as_array().unwrap();
    assert!(!pieces.is_empty(), "{explained}");
    assert_fails(&["explain", "--thread", "1", &trace], "thread 1 is not in the traces");
}

/// Writes a recording on the clock of Go, with a sample of each of these threads: process ids and thread ids.
fn write_samples(path: &Path, threads: &[(u32, u32)], time: u64) {
    use perf_data::{Features, FileWriter, RecordWriter as _, RecordedEvent};
    let (tid, at) = (1 << 1, 1 << 2);
    let mut attr = perf_data::perf_event_attr::new(1, 0);
    (attr.sample_type, attr.clockid) = (tid | at, 1);
    attr.set_use_clockid(true);
    let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![1] };
    let file = std::fs::File::create(path).unwrap();
    let mut writer = FileWriter::new(file, vec![event]).unwrap();
    for (pid, tid) in threads {
        let head = [&9_u32.to_ne_bytes()[..], &[2, 0], &24_u16.to_ne_bytes()].concat();
        let ids = [pid.to_ne_bytes(), tid.to_ne_bytes()].concat();
        let bytes = [head, ids, time.to_ne_bytes().into()].concat();
        writer.record(perf_monitor::RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
    }
    writer.finish(&Features::default()).unwrap();
}

/// The ids of the threads of a Go trace, and its begin.
fn threads_of(trace: &str) -> (Vec<u32>, u64) {
    let mut reader = gotrace::Reader::new(std::fs::File::open(trace).unwrap()).unwrap();
    let (mut threads, mut begin) = (std::collections::BTreeSet::new(), None);
    while let Some(event) = reader.next_event().unwrap() {
        if event.thread().0 > 0 {
            threads.insert(u32::try_from(event.thread().0).unwrap());
            begin.get_or_insert(u64::try_from(event.time().nanos()).unwrap());
        }
    }
    (threads.into_iter().collect(), begin.unwrap())
}

/// A Go trace does not record its process id, and threads of a container have the ids of other ones.
#[test]
fn the_process_of_a_go_trace_is_that_of_its_threads() {
    let shop = fixture("shop.trace");
    let (threads, begin) = threads_of(&shop);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("samples.perf.data");
    let data = path.to_str().unwrap();
    let other = threads[0].to_string();
    let notes = |report: &Value| -> Vec<String> {
        let notes = report["notes"].as_array().unwrap().iter();
        let notes = notes.map(|note| note.as_str().unwrap().to_owned());
        // The recording has one, too.
        notes.filter(|note| note.starts_with("shop: ")).collect()
    };

    let of_one: Vec<(u32, u32)> = threads.iter().map(|tid| (500, *tid)).collect();
    write_samples(&path, &of_one, begin);
    let report = json(&["report", "--json", "--pid", "500", &shop, data]);
    let rows = report["goroutines"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["process"]["pid"] == 500), "{rows:?}");
    assert_eq!(notes(&report), [""; 0]);

    let of_several: Vec<(u32, u32)> = threads.iter().map(|tid| (*tid, *tid)).collect();
    write_samples(&path, &of_several, begin);
    let report = json(&["report", "--json", &shop, data]);
    let unrelated = "shop: its thread ids are those of several processes, as ids of a container are: \
                     it is not related to threads of the kernel";
    assert_eq!(notes(&report), [unrelated]);
    for name in ["x.pftrace", "x.json"] {
        let output = dir.path().join(name);
        let ran = triscope(&["convert", &shop, data, "-o", output.to_str().unwrap()]);
        let stderr = text(&ran.stderr);
        assert_eq!(stderr.lines().filter(|line| *line == unrelated).count(), 1, "{stderr}");
    }
    let report = json(&["report", "--json", "--pid", &other, &shop, data]);
    assert!(report["goroutines"].as_array().unwrap().is_empty());
    let hidden = "shop: not shown, as its process id is not known: name the file go-PID.trace";
    assert_eq!(notes(&report), [unrelated, hidden]);
    // They say where a process may be that is missed.
    let output = triscope(&["report", "--pid", "500", &shop, data]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.starts_with("triscope: process 500 is not in the traces; they have "),
        "{stderr}"
    );
    assert!(stderr.ends_with(&format!("; {unrelated}; {hidden}\n")), "{stderr}");

    // One thread of several can be a coincidence.
    write_samples(&path, &of_several[..1], begin);
    let report = json(&["report", "--json", "--pid", &other, &shop, data]);
    assert!(report["goroutines"].as_array().unwrap().is_empty());
    assert_eq!(notes(&report), [hidden]);
}

/// As it is in the report.
#[test]
fn an_export_has_the_process_of_a_go_trace() {
    let shop = fixture("shop.trace");
    let (threads, begin) = threads_of(&shop);
    let dir = tempfile::tempdir().unwrap();
    let [data, output] = ["samples.perf.data", "dataset"].map(|name| dir.path().join(name));
    let export = |pid_of: fn(u32) -> u32| {
        let threads: Vec<(u32, u32)> = threads.iter().map(|tid| (pid_of(*tid), *tid)).collect();
        write_samples(&data, &threads, begin);
        let [data, output] = [&data, &output].map(|path| path.to_str().unwrap());
        let ran = triscope(&["export", &shop, data, "-o", output, "--host", "a"]);
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        text(&ran.stderr)
    };
    let unrelated =
        |stderr: &str| stderr.matches("triscope: shop: its thread ids are those").count();

    assert_eq!(unrelated(&export(|_| 500)), 0);
    // Statistics of the column `pid`, as Parquet has them: no NULL, and 500 is the greatest and the least value.
    let value = [&[8_u8][..], &500_i64.to_le_bytes()].concat();
    let statistics = [&[0x36, 0, 0x28][..], &value, &[0x18], &value, &[0]].concat();
    let processes = only_file(&output.join("processes"));
    let bytes = std::fs::read(processes).unwrap();
    assert!(bytes.windows(statistics.len()).any(|part| part == statistics));

    assert_eq!(unrelated(&export(|tid| tid)), 1);
}

/// The only file in a directory and those inside it.
fn only_file(path: &Path) -> PathBuf {
    if path.is_file() {
        return path.to_owned();
    }
    let mut entries = std::fs::read_dir(path).unwrap();
    let first = only_file(&entries.next().unwrap().unwrap().path());
    assert!(entries.next().is_none(), "{}", path.display());
    first
}

/// A recording with the traces of two programs, of which the first one was recorded.
fn two_programs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("go1.26-mixed.trace.gz"), dir.path().join("go-77.trace")).unwrap();
    std::fs::copy(fixture("shop.trace"), dir.path().join("go-88.trace")).unwrap();
    std::fs::write(dir.path().join("recording.json"), "{\"pid\": 77}").unwrap();
    dir
}

/// A goroutine of a process that is not shown is an error that names the process.
#[test]
fn a_goroutine_is_one_of_the_processes_that_are_shown() {
    let dir = two_programs();
    let traces = dir.path().to_str().unwrap();
    let ids = |pid: &str| -> std::collections::BTreeSet<i64> {
        let report = json(&["report", "--json", "--worst", "1000", "--pid", pid, traces]);
        let rows = report["single_goroutines"].as_array().unwrap().iter();
        rows.map(|row| row["goroutine"].as_i64().unwrap()).collect()
    };
    let (own, other) = (ids("77"), ids("88"));
    let both = own.intersection(&other).next().unwrap().to_string();
    let only = other.difference(&own).next().unwrap().to_string();
    let pids = |args: &[&str]| -> Vec<Value> {
        let report = json(&[&["report", "--json", traces], args].concat());
        let rows = report["single_goroutines"].as_array().unwrap().iter();
        rows.map(|row| row["process"]["pid"].clone()).collect()
    };
    assert_eq!(pids(&["--goroutine", &both]), [77]);
    assert_eq!(pids(&["--goroutine", &both, "--pid", "88"]), [88]);
    assert_eq!(pids(&["--goroutine", &both, "--all"]).len(), 2);
    assert_eq!(pids(&["--goroutine", &only, "--all"]), [88]);
    let message = |id: &str, of: &str| {
        format!("goroutine {id} is not in the processes that are shown; it is in {of}")
    };
    let of_other = "go-88 (process 88)";
    assert_fails(&["report", "--goroutine", &only, traces], &message(&only, of_other));
    assert_fails(
        &["report", "--goroutine", &only, "--pid", "77", traces],
        &message(&only, of_other),
    );
    assert_fails(
        &["report", "--goroutine", "99999", traces],
        "goroutine 99999 is not in the traces",
    );
    // Without the others.
    let report = json(&["report", "--json", traces]);
    for table in ["processes", "goroutines", "waits", "off_cpu"] {
        let rows = report[table].as_array().unwrap();
        assert!(!rows.is_empty(), "{table}");
        for row in rows {
            let pid = if table == "processes" { &row["pid"] } else { &row["process"]["pid"] };
            assert_eq!(pid, 77, "{table}");
        }
    }
}

/// Goroutines of several processes have the same number: that of the recorded process is explained, and the
/// others are named.
#[test]
fn a_goroutine_is_explained_in_one_process() {
    let dir = two_programs();
    let traces = dir.path().to_str().unwrap();
    let explained = |args: &[&str]| {
        let paths = json(&[&["explain", "--json", traces], args].concat());
        let paths = paths.as_array().unwrap();
        paths.iter().map(|path| path["subject"]["pid"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    let main = ["--goroutine", "1", "--worst", "9"];
    assert_eq!(explained(&main), [77]);
    assert_eq!(explained(&[&main[..], &["--pid", "77"]].concat()), [77]);
    assert_eq!(explained(&[&main[..], &["--pid", "88"]].concat()), [88]);
    let tasks = explained(&["--task", "GET /search", "--pid", "88"]);
    assert_eq!(tasks, [88]);
    let of_both = ["explain", traces, "--task", "GET /search", "--pid", "77"];
    assert_eq!(triscope(&of_both).status.code(), Some(1));
    assert_fails(
        &["explain", traces, "--goroutine", "1", "--pid", "99"],
        "goroutine 1 is not in process 99; it is in go-77 (process 77), go-88 (process 88)",
    );
    assert_fails(&["explain", traces, "--pid", "99"], "process 99 is not in the traces");
    // The numbers of goroutines say nothing without their process.
    let printed = text(&triscope(&["explain", traces, "--goroutine", "1", "--path"]).stdout);
    assert!(printed.starts_with("main.main (G1) of go-77 (77): "), "{printed}");
    assert!(printed.contains("  main.main (G1) of go-77 (77): "), "{printed}");
    // Without the name of the recorded process.
    std::fs::remove_file(dir.path().join("recording.json")).unwrap();
    assert_fails(
        &["explain", traces, "--goroutine", "1"],
        "goroutine 1 is in several processes: go-77 (process 77), go-88 (process 88); choose one \
         with --pid",
    );
    assert_eq!(explained(&[&main[..], &["--pid", "88"]].concat()), [88]);
}

/// Go traces without a process id: `--pid` can choose none of them, so the longest life is explained.
#[test]
fn a_goroutine_of_unknown_processes_is_the_one_that_lived_longest() {
    let dir = tempfile::tempdir().unwrap();
    let traces = ["go1.26-mixed.trace.gz", "shop.trace"].map(|name| {
        let path = dir.path().join(name);
        std::fs::copy(fixture(name), &path).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let explained = |args: &[&str]| {
        let all: [&str; 6] = ["explain", "--json", &traces[0], &traces[1], "--goroutine", "1"];
        json(&[&all[..], args].concat()).as_array().unwrap().clone()
    };
    let (one, both) = (explained(&[]), explained(&["--worst", "9"]));
    assert_eq!((one.len(), both.len()), (1, 2));
    assert_eq!(one[0]["nanos"], both[0]["nanos"]);
    assert!(both.iter().all(|path| path["subject"]["pid"].is_null()), "{both:?}");
    let output = triscope(&["explain", &traces[0], "--goroutine", "1", "--pid=-1"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

/// Two threads wait for a lock that a third one holds, one after the other. The kernel is not recorded.
#[test]
fn a_lock_of_dotnet_has_its_owners() {
    use testkit::nettrace::{event, trace};
    const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";
    let types =
        [("Shop/OrderStart", 1, 0), ("Shop/OrderStop", 2, 0), (RUNTIME, 81, 2), (RUNTIME, 91, 1)];
    let (u64s, clr) = (u64::to_le_bytes, 9u16.to_le_bytes());
    let waits = |at, thread, owner| {
        event(3, at, thread, &[&[0], &clr, &u64s(0x10), &u64s(0x20), &u64s(owner)])
    };
    let has = |at, thread| event(4, at, thread, &[&[0], &clr, &0f64.to_le_bytes()]);
    let events = [
        event(1, 1_000, 7, &[]),
        waits(2_000, 6, 5),
        waits(3_000, 7, 5),
        has(10_000, 6),
        has(20_000, 7),
        event(2, 21_000, 7, &[]),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.nettrace");
    std::fs::write(&path, trace(&types, &events)).unwrap();
    let path = path.to_str().unwrap();
    let paths = json(&["explain", "--json", path]);
    let pieces = paths[0]["pieces"].as_array().unwrap();
    let found: Vec<_> = pieces
        .iter()
        .map(|piece| {
            let number = |of: &str| piece[of]["number"].as_i64();
            (piece["nanos"].as_i64().unwrap(), number("entity"), number("waiter_lock_owner"))
        })
        .collect();
    let expected = [
        (2_000, Some(7), None),
        (7_000, Some(5), Some(5)),
        (10_000, Some(6), Some(6)),
        (1_000, Some(7), None),
    ];
    assert_eq!(found, expected);
    for args in [&["explain", path][..], &["explain", path, "--path"]] {
        let printed = text(&triscope(args).stdout);
        for owner in [5, 6] {
            let line = format!("; thread 7 waited for a lock held by thread {owner}\n");
            assert!(printed.contains(&line), "{printed}");
        }
    }
}

/// All files of a directory are read: an output among them would be one of the inputs of the next command.
#[test]
fn an_output_in_the_directory_of_the_traces_is_refused() {
    let dir = two_programs();
    let traces = dir.path().to_str().unwrap();
    let names = || -> Vec<_> {
        let files = std::fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let refused = |output: &str| {
        format!(
            "{traces}/{output}: is in {traces}, whose files are all read as inputs: the output needs \
             another directory"
        )
    };
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert_fails(&["report", traces, "--html", &path("x.html")], &refused("x.html"));
    for name in ["x.html", "x.pftrace", "x.json", "x.folded", "x.json.gz"] {
        assert_fails(&["convert", traces, "-o", &path(name)], &refused(name));
        assert_eq!(names(), before);
    }
    for name in ["x.html", "x.pftrace"] {
        assert_fails(&["record", "--keep", traces, "-o", &path(name), "true"], &refused(name));
        assert_eq!(names(), before);
    }
    // By another name.
    let link = tempfile::tempdir().unwrap();
    let link = link.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    let output = triscope(&["report", link.to_str().unwrap(), "--html", &path("x.html")]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert_eq!(names(), before);
    // The files of a directory below it are not read.
    let output = triscope(&["export", traces, "-o", &path("dataset"), "--host", "x"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    std::fs::create_dir(path("pages")).unwrap();
    assert!(triscope(&["report", traces, "--html", &path("pages/x.html")]).status.success());
    assert!(triscope(&["report", traces]).status.success());
}

/// Samples of `sched_switch` are no record of the scheduler.
#[test]
fn samples_of_the_scheduler_are_named_so() {
    let data = fixture("../../../perf-data/tests/data/scheduler.perf.data");
    let output = triscope(&["report", &data]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = text(&output.stdout);
    assert!(report.contains(" samples of "), "{report}");
    assert!(report.contains(", not a system-wide record of the scheduler"), "{report}");
    assert!(report.contains("The kernel's scheduler was not recorded"), "{report}");
    assert!(!report.contains("\nThreads"), "{report}");
    let dir = tempfile::tempdir().unwrap();
    // The page has the same.
    let (page, _) = page(dir.path(), &[&data]);
    let tables = page["tables"].as_array().unwrap();
    assert!(tables.iter().all(|table| table["title"] != "Threads"), "{tables:?}");
    let unknown = tables.iter().find(|table| table["title"] == "Not known").unwrap().to_string();
    assert!(unknown.contains("the kernel's scheduler was not recorded"), "{unknown}");
    let timeline = dir.path().join("out.pftrace");
    let output = triscope(&["convert", &data, "-o", timeline.to_str().unwrap()]);
    let stderr = text(&output.stderr);
    assert!(stderr.contains(" samples of sched:sched_switch, "), "{stderr}");
}

/// The notes of the text are on the page, too.
#[test]
fn a_page_has_the_notes_of_the_report() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::copy(fixture("shop.trace"), dir.path().join("shop.trace")).unwrap();
    std::fs::write(dir.path().join("recording.json"), "{\"steal_nanos\": 5000000}").unwrap();
    let traces = dir.path().to_str().unwrap();
    let report = text(&triscope(&["report", traces]).stdout);
    let note = report.lines().find(|line| line.contains(" of steal time")).unwrap().trim();
    let (page, _) = page(out.path(), &[traces]);
    assert_eq!(page["notes"], Value::from(vec![note]));
    let tables = page["tables"].as_array().unwrap();
    let unknown = tables.iter().find(|table| table["title"] == "Not known").unwrap();
    let row = Value::from(vec![note, ""]);
    assert!(unknown["rows"].as_array().unwrap().contains(&row), "{unknown}");
}

/// A dump of a flight recorder has its manifest beside the traces.
#[test]
fn what_a_dump_lacks_is_in_the_report_and_printed_by_export() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("shop.trace"), dir.path().join("shop.trace")).unwrap();
    let manifest = r#"{"missing": ["the newest segment was truncated"], "sources": [
        {"kind": "dotnet", "name": "web", "pid": 7, "missing": "its runtime has not replied"}]}"#;
    std::fs::write(dir.path().join("manifest.json"), manifest).unwrap();
    let traces = dir.path().to_str().unwrap();
    let notes = [
        format!("{traces}: missing: the newest segment was truncated"),
        format!("{traces}: missing: dotnet of web (7): its runtime has not replied"),
    ];
    let report = text(&triscope(&["report", traces]).stdout);
    let json = text(&triscope(&["report", "--json", traces]).stdout);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["notes"], Value::from(notes.to_vec()));
    let out = tempfile::tempdir().unwrap();
    let output = out.path().join("dataset");
    let export = text(&triscope(&["export", traces, "-o", output.to_str().unwrap()]).stderr);
    for note in &notes {
        assert!(report.contains(note), "{report}");
        assert!(export.contains(note), "{export}");
    }
}

/// Another trace is longer: nothing is known of the threads after the damage.
#[test]
fn states_of_threads_end_with_a_damaged_recording() {
    let dir = tempfile::tempdir().unwrap();
    let (shop, data) = (fixture("shop.trace"), dir.path().join("damaged.perf.data"));
    let whole = fixture("../../../perf-data/tests/data/scheduler.perf.data");
    let mut bytes = std::fs::read(whole).unwrap();
    // Of records that are samples of a part of the switches, or of those of a command, no state follows: these
    // become those of all CPUs, with a period of 1.
    let number = |at: usize| {
        usize::try_from(u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())).unwrap()
    };
    let (attr_size, attrs, size) = (number(16), number(24), number(32));
    let mut tracepoints = 0;
    for attr in bytes[attrs..attrs + size].chunks_exact_mut(attr_size) {
        const TRACEPOINT: u8 = 2;
        const INHERIT: u8 = 1 << 1;
        const FREQUENCY: u8 = 1 << 2;
        const ENABLE_ON_EXEC: u8 = 1 << 4;
        assert!(attr[40] & INHERIT != 0 && attr[41] & ENABLE_ON_EXEC != 0);
        attr[40] &= !INHERIT;
        attr[41] &= !ENABLE_ON_EXEC;
        if attr[0] == TRACEPOINT {
            assert!(attr[41] & FREQUENCY != 0);
            attr[41] &= !FREQUENCY;
            attr[16..24].copy_from_slice(&1_u64.to_le_bytes());
            tracepoints += 1;
        }
    }
    assert_eq!(tracepoints, 5);
    let file = std::io::Cursor::new(bytes.clone());
    let mut reader = perf_data::Reader::new(file).unwrap();
    let (mut places, mut times) = (Vec::new(), Vec::new());
    while let Some(entry) = reader.next_record().unwrap() {
        places.push(usize::try_from(entry.raw.offset()).unwrap());
        times.extend(entry.time());
    }
    // The size of a record is at least that of its header.
    let size = places[places.len() / 2] + 6;
    bytes[size..size + 2].copy_from_slice(&4_u16.to_le_bytes());
    std::fs::write(&data, bytes).unwrap();

    let data = data.to_str().unwrap();
    let on_cpu = |args: &[&str]| -> Vec<Value> {
        let output = triscope(&[&["report", "--json", "--all", data], args].concat());
        assert_eq!(output.status.code(), Some(1), "it is damaged");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let threads = report["threads"].as_array().unwrap().iter();
        threads.map(|thread| thread["times"]["on_cpu"].clone()).collect()
    };
    let begin = times.iter().min().unwrap().nanos() as f64 / 1e9;
    let offsets = [(data, -begin), (&*shop, 1e6)].map(|(file, offset)| format!("{file}={offset}"));
    let alone = on_cpu(&[]);
    assert!(alone.iter().any(|nanos| nanos.as_i64() > Some(0)), "{alone:?}");
    assert_eq!(on_cpu(&[&shop, "--offset", &offsets[0], "--offset", &offsets[1]]), alone);
}

/// Without a request, the main thread of a recorded process is the proposal.
#[test]
fn a_recording_without_requests_names_its_main_thread() {
    let dir = tempfile::tempdir().unwrap();
    let data = fixture("../../../perf-data/tests/data/scheduler.perf.data");
    std::fs::copy(data, dir.path().join("samples.perf.data")).unwrap();
    std::fs::write(dir.path().join("recording.json"), "{\"pid\": 8}").unwrap();
    let output = triscope(&["explain", dir.path().to_str().unwrap()]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--thread 8, the main thread of the recorded process\n"), "{stderr}");
}

/// A pipe in the place of a file that names the recording is not waited for.
#[test]
fn a_pipe_instead_of_the_recorded_process_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let data = fixture("../../../perf-data/tests/data/scheduler.perf.data");
    std::fs::copy(data, dir.path().join("samples.perf.data")).unwrap();
    let pipe = dir.path().join("recording.json");
    assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    let output = triscope(&["report", dir.path().to_str().unwrap()]);
    let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(shown.contains("recording.json: is not a regular file"), "{shown}");
}

/// What was read of it to know its format is not read a second time.
#[test]
fn a_recording_of_perf_is_read_from_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let data = fixture("../../../perf-data/tests/data/scheduler.perf.data");
    let [file, pipe] = ["a", "b"].map(|name| dir.path().join(format!("{name}.perf.data")));
    std::fs::copy(data, &file).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let bytes = std::fs::read(&file).unwrap();
    let (file, path) = (file.to_str().unwrap(), pipe.to_str().unwrap().to_owned());
    let writer = std::thread::spawn(move || std::fs::write(pipe, bytes));
    let of_pipe = triscope(&["report", &path]);
    writer.join().unwrap().unwrap();
    let of_file = triscope(&["report", file]);
    assert_eq!(text(&of_pipe.stderr).replace(&path, file), text(&of_file.stderr));
    assert_eq!(text(&of_pipe.stdout).replace(&path, file), text(&of_file.stdout));
    assert!(!of_file.stdout.is_empty());
}

#[test]
fn unsuitable_inputs_are_refused() {
    let (shop, old) = (fixture("shop.trace"), fixture("go1.21-mixed.trace.gz"));
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("x.html");
    let page = page.to_str().unwrap();
    for args in [&["explain", "-"][..], &["report", "-", "--html", page]] {
        let why = "standard input: this command reads the trace twice: save it to a file first";
        assert_fails(args, why);
    }
    assert_fails(
        &["report", &shop, &old],
        &format!(
            "{old}: its clock cannot be related to that of other traces, as that of Go 1.21 and \
             older: analyse it alone, or pass --offset FILE=SECONDS"
        ),
    );
    assert_fails(
        &["explain", "--activity", "x", &shop],
        "no activity \"x\" ended; the traces have no activities",
    );
    assert!(triscope(&["report", &old]).status.success());
    assert_fails(
        &["explain", "--task", "x", &shop],
        "no task \"x\" ended; the traces have the tasks \"GET /search\", \"GET /cart\"",
    );
    assert_fails(
        &["explain", "--region", "x", "--between", "0", "1", &shop],
        "no region \"x\" that overlaps these times ended; the traces have the regions \"lookup\", \
         \"rank\", \"render\"",
    );
    assert_fails(
        &["explain", "--goroutine", "77777", &shop],
        "goroutine 77777 is not in the traces",
    );
    let empty = tempfile::tempdir().unwrap();
    let dir = empty.path().to_str().unwrap();
    assert_fails(&["report", dir], &format!("{dir}: the directory has no traces"));
    let toml = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let toml = toml.to_str().unwrap();
    assert_fails(
        &["report", toml],
        &format!(
            "{toml}: is not a trace of a known format: Go execution traces (runtime/trace, go test \
             -trace, /debug/pprof/trace), .NET traces and perf.data recordings can be analysed"
        ),
    );
}

/// The tables of a report need one pass.
#[test]
fn a_report_can_be_of_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let others = [
        "../../../nettrace/tests/data/t10-activity.nettrace",
        "../../../perf-data/tests/data/scheduler.perf.data",
    ];
    for name in ["shop.trace"].into_iter().chain(others) {
        // A Go trace from there has no name.
        let path = dir.path().join("Go program.trace");
        std::fs::copy(fixture(name), &path).unwrap();
        let of_file = triscope(&["report", "--json", path.to_str().unwrap()]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
        let input = std::fs::File::open(&path).unwrap();
        let mut pipe = Command::new("cat").stdin(input).stdout(Stdio::piped()).spawn().unwrap();
        let input = pipe.stdout.take().unwrap();
        let of_input = command.args(["report", "--json", "-"]).stdin(input).output().unwrap();
        assert!(pipe.wait().unwrap().success());
        assert!(of_input.status.success(), "{}", text(&of_input.stderr));
        let expected = |file: &[u8]| text(file).replace(path.to_str().unwrap(), "standard input");
        assert!(of_file.stdout.len() > 1000);
        assert_eq!(text(&of_input.stdout), expected(&of_file.stdout));
        assert_eq!(text(&of_input.stderr), expected(&of_file.stderr));
    }
}

/// A trace on another clock is moved by its offset.
#[test]
fn an_offset_relates_another_clock() {
    let (shop, old) = (fixture("shop.trace"), fixture("go1.21-mixed.trace.gz"));
    // The first line: the duration in seconds.
    let seconds = |args: &[&str]| -> f64 {
        let output = triscope(args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().next().unwrap().trim_end_matches(" s").parse().unwrap()
    };
    let alone = seconds(&["report", &shop]);
    let at =
        |offset: &str| seconds(&["report", &shop, &old, "--offset", &format!("{old}={offset}")]);
    // The timeline is longer, by what the clock is moved.
    let (near, far) = (at("1000000"), at("1000100"));
    assert!(near > alone && ((far - near).abs() - 100.0).abs() < 0.002, "{alone} {near} {far}");
    let output = triscope(&["explain", &shop, "--offset", "x"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "triscope: --offset: x is not a number of seconds\n");
}

/// Behind damage, reading resumes: what is lost is reported once, and the exit status is 1.
#[test]
fn reading_resumes_after_damage() {
    let dir = tempfile::tempdir().unwrap();
    let damaged = |name: &str, mut bytes: Vec<u8>| {
        let half = bytes.len() / 2;
        bytes[half..half + 64].fill(0xff);
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let go = damaged("shop.trace", std::fs::read(fixture("shop.trace")).unwrap());
    let cut = triscope(&["explain", "--json", "--worst", "9999", &go]);
    assert!(text(&cut.stderr).contains("; --recover resumes after damage"), "{cut:?}");
    let whole = triscope(&["explain", "--recover", "--json", "--worst", "9999", &go]);
    assert_eq!((cut.status.code(), whole.status.code()), (Some(1), Some(1)));
    let requests = |output: &Output| -> Vec<Value> {
        let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        value.as_array().cloned().unwrap_or_default()
    };
    assert!(requests(&whole).len() > requests(&cut).len(), "{}", requests(&whole).len());
    for request in requests(&whole) {
        let pieces = request["pieces"].as_array().unwrap();
        let sum: i64 = pieces.iter().map(|piece| piece["nanos"].as_i64().unwrap()).sum();
        assert_eq!(sum, request["nanos"].as_i64().unwrap(), "{request}");
    }
    let stderr = text(&whole.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with(&format!("triscope: {go}: damaged in 1 place, ")), "{stderr}");
    let report = text(&triscope(&["report", "--recover", &go]).stdout);
    let lost = report.lines().find(|line| line.contains("damaged or missing parts"));
    assert!(lost.is_some_and(|line| line.ends_with(" bytes")), "{lost:?}");

    let fixture = fixture("../../../nettrace/tests/data/t10-activity.nettrace");
    let dotnet = damaged("app.nettrace", std::fs::read(&fixture).unwrap());
    let output = triscope(&["report", "--recover", &dotnet]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with(&format!("triscope: {dotnet}: damaged in ")), "{stderr}");
}

/// An activity is found by its name, with or without its event source.
#[test]
fn activities_are_selected_by_name() {
    let trace = fixture("../../../nettrace/tests/data/t10-activity.nettrace");
    let all = json(&["explain", "--json", "--worst", "9999", &trace]);
    let full = all[0]["name"].as_str().unwrap();
    let (_, short) = full.split_once('/').unwrap();
    let count = |name: &str| {
        let args = ["explain", "--json", "--worst", "9999", "--activity", name, &trace];
        json(&args).as_array().unwrap().len()
    };
    let expected = all.as_array().unwrap().iter().filter(|request| request["name"] == full);
    let expected = expected.count();
    assert!(expected > 0);
    assert_eq!((count(full), count(short)), (expected, expected));
}

/// The longest activities of a .NET program.
#[test]
fn activities_are_explained() {
    let trace = fixture("../../../nettrace/tests/data/t10-activity.nettrace");
    let requests = json(&["explain", "--json", "--worst", "3", &trace]);
    for request in requests.as_array().unwrap() {
        assert_eq!(request["subject"]["kind"], "dotnet_thread");
        let pieces = request["pieces"].as_array().unwrap();
        let sum: i64 = pieces.iter().map(|piece| piece["nanos"].as_i64().unwrap()).sum();
        assert_eq!(sum, request["nanos"].as_i64().unwrap(), "{request}");
    }
    assert_eq!(requests.as_array().unwrap().len(), 3);
    assert!(triscope(&["report", &trace]).status.success());
}

/// What is before the damage is reported, and the exit status is 1.
#[test]
fn a_cut_trace_is_reported_up_to_the_cut() {
    let bytes = std::fs::read(fixture("shop.trace")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut.trace");
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let output = triscope(&["report", "--json", cut.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with(&format!("triscope: {}: ", cut.display())));
    serde_json::from_slice::<Value>(&output.stdout).unwrap();
}

/// The page has the title and no markup of its own making; it is the same each time.
#[test]
fn a_page_is_written_in_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let (report, convert) = (dir.path().join("report.html"), dir.path().join("convert.html"));
    let shop = fixture("shop.trace");
    let written = triscope(&["report", &shop, "--html", report.to_str().unwrap()]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    assert!(text(&written.stderr).contains("20 explained requests"), "{}", text(&written.stderr));
    let written = triscope(&["convert", &shop, "-o", convert.to_str().unwrap()]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("<title>shop.trace</title>"));
    assert_eq!(page, std::fs::read_to_string(&convert).unwrap());
    let refused = triscope(&["convert", &shop, "--no-arrows", "-o", convert.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(text(&refused.stderr), "triscope: not for a page: --no-arrows\n");
}

/// A page is of the same traces as a timeline.
#[test]
fn a_page_takes_the_options_of_a_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.html");
    let (shop, old) = (fixture("shop.trace"), fixture("go1.21-mixed.trace.gz"));
    let page = |args: &[&str]| {
        let output = triscope(&[&["convert", "-o", out.to_str().unwrap()], args].concat());
        (output.status.code(), text(&output.stderr))
    };
    let (code, errors) = page(&[&shop, &old]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("its clock cannot be related"), "{errors}");
    let (code, errors) = page(&[&shop, &old, "--offset", &format!("{old}=12.5")]);
    assert_eq!(code, Some(0), "{errors}");

    let cut = dir.path().join("cut.trace");
    let mut bytes = std::fs::read(&shop).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xff);
    std::fs::write(&cut, bytes).unwrap();
    let cut = cut.to_str().unwrap();
    let (code, errors) = page(&[cut, "--recover", "--pid", "7", "--name", "shop"]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("damaged in "), "{errors}");
}

/// The critical paths of a page are found in a second pass. With several traces their texts are
/// those of the page of one.
#[test]
fn a_page_of_two_traces_has_the_texts_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let paths = |traces: &[&str]| {
        let (page, _) = page(dir.path(), traces);
        let path = |path: &Value| {
            let texts = |piece: &Value| {
                let texts = piece.as_array().unwrap().iter().filter_map(Value::as_str);
                texts.map(str::to_owned).collect::<Vec<_>>()
            };
            let pieces: Vec<_> = path["pieces"].as_array().unwrap().iter().map(texts).collect();
            // Those of several programs have their process.
            let name = path["name"].as_str().unwrap().split(" of ").next().unwrap();
            (name.to_owned(), path["nanos"].as_i64().unwrap(), pieces)
        };
        page["paths"].as_array().unwrap().iter().map(path).collect::<Vec<_>>()
    };
    let go = fixture("shop.trace");
    let dotnet = fixture("../../../nettrace/tests/data/t10-activity.nettrace");
    let (of_go, of_dotnet) = (paths(&[&go]), paths(&[&dotnet]));
    let of_both = paths(&[&dotnet, &go]);
    let mut longest = [of_go, of_dotnet].concat();
    longest.sort_by_key(|(_, nanos, _)| std::cmp::Reverse(*nanos));
    let find = |path: &_| longest.contains(path);
    assert!(of_both.len() == 20 && of_both.iter().all(find), "{of_both:?}\n{longest:?}");
}

/// The page is written up to the cut, and the damage is reported once.
#[test]
fn a_page_of_a_cut_trace_ends_at_the_cut() {
    let bytes = std::fs::read(fixture("shop.trace")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (cut, page) = (dir.path().join("cut.trace"), dir.path().join("cut.html"));
    std::fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let output = triscope(&["report", cut.to_str().unwrap(), "--html", page.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert_eq!(error.matches("triscope: ").count(), 1, "{error}");
    assert!(std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
}

/// What is missing may be in the part that could not be read.
#[test]
fn a_request_that_a_damaged_trace_lacks_is_not_said_to_be_missing() {
    let bytes = std::fs::read(fixture("shop.trace")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut.trace");
    std::fs::write(&cut, &bytes[..60_000]).unwrap();
    let cut = cut.to_str().unwrap();
    let lacks = |args: &[&str], message: &str| {
        let output = triscope(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        let [damage, nothing] = error.lines().collect::<Vec<_>>()[..] else { panic!("{error}") };
        assert!(damage.starts_with(&format!("triscope: {cut}: ")), "{args:?}: {error}");
        assert_eq!(nothing, format!("triscope: {message}"), "{args:?}");
    };
    let tasks = "no task \"nope\" ended; what could be read of the traces has no tasks";
    lacks(&["explain", cut, "--task", "nope"], tasks);
    lacks(&["go", "critical-path", cut, "--task", "nope"], tasks);
    let goroutine = "goroutine 77777 is not in what could be read of the traces";
    lacks(&["explain", cut, "--goroutine", "77777"], goroutine);
    lacks(
        &["explain", cut],
        "no task or region ended (runtime/trace.NewTask, WithRegion), and no activity of .NET \
         (start and stop events) in what could be read of the traces; pass --goroutine or --thread",
    );
    lacks(
        &["go", "critical-path", cut],
        "no task or region ended (runtime/trace.NewTask, WithRegion) in what could be read of the \
         traces; pass --goroutine",
    );
}

#[test]
fn pieces_have_their_stacks() {
    let shop = fixture("shop.trace");
    let explain = |frames: &str| {
        let output = triscope(&["explain", "--path", &shop, "--worst", "3", "--frames", frames]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let at = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim_start);
        let is_stack = |line: &&str| line.starts_with("at ") || line.starts_with("the wait is at ");
        lines.filter(is_stack).map(ToOwned::to_owned).collect()
    };
    let one = at(&explain("1"));
    assert!(!one.is_empty());
    assert!(one.iter().any(|line| line.contains(".go:")), "{one:?}");
    assert!(one.iter().all(|line| line.matches(" ← ").count() <= 1), "{one:?}");
    assert_eq!(at(&explain("0")), Vec::<String>::new());
    // The frames are those of the JSON.
    let paths = json(&["explain", "--json", &shop, "--worst", "3"]);
    let pieces =
        paths.as_array().unwrap().iter().flat_map(|path| path["pieces"].as_array().unwrap());
    let stacks = pieces.flat_map(|piece| [&piece["stack"], &piece["waiter_stack"]]);
    let innermost: Vec<&str> = stacks.filter_map(|stack| stack[0].as_str()).collect();
    for line in &one {
        assert!(innermost.iter().any(|function| line.contains(function)), "{line}");
    }
}
