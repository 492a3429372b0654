//! `triscope go summary` and `triscope go fetch` as processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use testkit::process::Running;

fn shop() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/shop.trace")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.arg("go").args(args).stdin(Stdio::null());
    command
}

fn go(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = go(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Each number of the JSON has a line with its table, name and field.
#[test]
fn csv_has_the_values_of_the_json() {
    let shop = shop();
    let shop = shop.to_str().unwrap();
    let csv = |command| {
        let output = go(&[command, "--csv", shop]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = text(&output.stdout);
        let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
        assert_eq!(lines[0], "table,name,field,value");
        lines
    };
    let has = |lines: &[String], line: String| assert!(lines.contains(&line), "{line}");
    let (stats, lines) = (json(&["stats", "--json", shop]), csv("stats"));
    has(&lines, format!(",,bytes,{}", stats["bytes"]));
    for (ty, count) in stats["events_by_type"].as_object().unwrap() {
        has(&lines, format!(",,events_by_type.{ty},{count}"));
    }
    let (summary, lines) = (json(&["summary", "--json", shop]), csv("summary"));
    has(&lines, format!(",,latency.p99,{}", summary["latency"]["p99"]));
    for table in ["goroutines", "tasks", "regions"] {
        for row in summary[table].as_array().unwrap() {
            let (name, sum) = (row["name"].as_str().unwrap(), &row["durations"]["sum"]);
            has(&lines, format!("{table},{name},durations.sum,{sum}"));
        }
    }
    for (number, row) in summary["mmu"].as_array().unwrap().iter().enumerate() {
        has(&lines, format!("mmu,{number},utilization,{}", row["utilization"]));
    }
}

#[test]
fn a_summary_agrees_with_the_analyses() {
    let shop = shop();
    let shop = shop.to_str().unwrap();
    let summary = json(&["summary", "--json", shop]);
    let stats = json(&["stats", "--json", shop]);
    assert_eq!(summary["events"], stats["events"]);
    assert_eq!((&summary["start"], &summary["end"]), (&stats["first_ns"], &stats["last_ns"]));
    let latency = json(&["latency", "--json", shop]);
    for field in ["count", "sum", "p50", "p99", "max", "histogram"] {
        assert_eq!(summary["latency"][field], latency[0][field], "{field}");
    }
    let named = |rows: &Value, name: &str, times: &str| -> Vec<(String, Value)> {
        let rows = rows.as_array().unwrap().iter();
        let mut rows: Vec<(String, Value)> =
            rows.map(|r| (r[name].as_str().unwrap().to_owned(), r[times].clone())).collect();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        rows
    };
    let goroutines = json(&["goroutines", "--json", shop]);
    let (ours, theirs) =
        (named(&summary["goroutines"], "name", "times"), named(&goroutines, "entry", "times"));
    assert_eq!(ours, theirs);
    let regions = json(&["regions", "--json", shop]);
    let (ours, theirs) =
        (named(&summary["regions"], "name", "durations"), named(&regions, "type", "durations"));
    assert_eq!(ours, theirs);
    let tasks = json(&["tasks", "--by-type", "--json", shop]);
    let (ours, theirs) =
        (named(&summary["tasks"], "name", "times"), named(&tasks, "type", "times"));
    assert_eq!(ours, theirs);
    let cycles = json(&["gc", "--json", shop]).as_array().unwrap().len() as u64;
    let triggers = summary["gcs"].as_object().unwrap().values();
    assert_eq!(triggers.map(|count| count.as_u64().unwrap()).sum::<u64>(), cycles);
    for window in json(&["mmu", "--json", shop]).as_array().unwrap() {
        let rows = summary["mmu"].as_array().unwrap();
        let same = rows.iter().find(|row| row["window"] == window["window"]).unwrap();
        assert_eq!(same["utilization"], window["utilization"]);
    }
    let printed = text(&go(&["summary", shop]).stdout);
    for part in ["processors ", "latency ", "13 cycles (13 allocation)", "MMU ", "GET /search"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[test]
fn a_page_has_plots_and_no_markup_of_names() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("summary.html");
    let (shop, page) = (shop(), page.to_str().unwrap());
    let output = go(&["summary", shop.to_str().unwrap(), "--html", page]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let html = std::fs::read_to_string(page).unwrap();
    // Processors, MMU, latency, pauses, and two types of tasks and three of regions.
    assert_eq!(html.matches("<svg ").count(), 4 + 2 + 3);
    for title in
        ["Ps over time", "minimum mutator utilization", "runnable to running", "stops of the world"]
    {
        assert!(html.contains(title), "{title}");
    }
    assert!(html.contains("default-src 'none'") && !html.contains("http://"), "loads nothing");

    // A cut trace is marked as such.
    let whole = std::fs::read(&shop).unwrap();
    let cut = dir.path().join("<b>cut");
    std::fs::write(&cut, &whole[..whole.len() - 100]).unwrap();
    let output = go(&["summary", "--recover", cut.to_str().unwrap(), "--html", page]);
    assert_eq!(output.status.code(), Some(1));
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("<p class=\"warning\">the trace is damaged"), "{html}");
    assert!(html.contains("&lt;b&gt;cut") && !html.contains("<b>cut"));
    let summary = go(&["summary", "--recover", "--json", cut.to_str().unwrap()]);
    let summary: Value = serde_json::from_slice(&summary.stdout).unwrap();
    assert!(summary["error"].is_string() && summary["losses"][0].is_string());
}

/// Threads with such a stack are refused, as where a limit of threads is reached.
#[test]
fn a_trace_is_read_where_no_thread_can_be_started() {
    let shop = shop();
    for analysis in ["summary", "latency"] {
        let args = [analysis, "--json", shop.to_str().unwrap()];
        let usual = go(&args);
        let refused =
            command(&args).env("RUST_MIN_STACK", (1_u64 << 60).to_string()).output().unwrap();
        assert!(refused.status.success(), "{}", text(&refused.stderr));
        assert_eq!(refused.stdout, usual.stdout, "{analysis}");
    }
}

/// As in the tables of the other commands.
#[test]
fn times_of_a_page_are_after_the_start_of_the_trace() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("summary.html");
    let (shop, page) = (shop(), page.to_str().unwrap());
    let range = ["--from", "0.05", shop.to_str().unwrap()];
    let stalls = text(&go(&[&["stalls"], &range[..]].concat()).stdout);
    let first = stalls.lines().find_map(|line| line.split_once(") at ")).unwrap().1;
    let (seconds, _) = first.split_once(" s").unwrap();
    let output = go(&[&["summary", "--html", page], &range[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains(&format!(") at {seconds} s")), "{seconds}: {html}");
}

/// A server for one request: returns the address, and the request's target when it has replied.
fn server(
    reply: impl FnOnce(&mut TcpStream, BufReader<TcpStream>) + Send + 'static,
) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = BufReader::new(stream.try_clone().unwrap());
        let mut first = String::new();
        request.read_line(&mut first).unwrap();
        let mut line = String::new();
        while request.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        reply(&mut stream, request);
        first.split(' ').nth(1).unwrap().to_owned()
    });
    (format!("http://{address}"), thread)
}

#[test]
fn a_trace_is_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("fetched.trace");
    let output = output.to_str().unwrap();
    let trace = std::fs::read(shop()).unwrap();
    for (path, target) in
        [("", "/debug/pprof/trace?seconds=5"), ("/flight?last=1", "/flight?last=1")]
    {
        let content = trace.clone();
        let (url, server) = server(move |stream, _| {
            stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Type: x\r\n\r\n").unwrap();
            stream.write_all(&content).unwrap();
        });
        let ran = go(&["fetch", &format!("{url}{path}"), "-o", output]);
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        assert_eq!(server.join().unwrap(), target);
        assert!(std::fs::read(output).unwrap() == trace);
    }
}

/// As a proxy sends it. What came of a program that is killed is kept.
#[test]
fn a_trace_in_chunks_is_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("fetched.trace");
    let output = output.to_str().unwrap();
    let trace = std::fs::read(shop()).unwrap();
    for is_complete in [true, false] {
        let content = trace.clone();
        let (url, server) = server(move |stream, _| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
            for chunk in content.chunks(10_000) {
                write!(stream, "{:x};a=b\r\n", chunk.len()).unwrap();
                stream.write_all(&[chunk, b"\r\n"].concat()).unwrap();
            }
            if is_complete {
                stream.write_all(b"0\r\n\r\n").unwrap();
            }
        });
        let ran = go(&["fetch", &url, "-o", output]);
        server.join().unwrap();
        let errors = text(&ran.stderr);
        assert_eq!(ran.status.success(), is_complete, "{errors}");
        assert_eq!(errors.contains("truncated: "), !is_complete, "{errors}");
        assert!(std::fs::read(output).unwrap() == trace);
    }
}

#[test]
fn a_profile_is_fetched_in_the_format_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [sent, kept, shown, plain] = ["sent.pb.gz", "kept.pb.gz", "x.folded", "x.trace"].map(&file);
    let made = go(&["profile", "sync", shop().to_str().unwrap(), "-o", &sent]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let content = std::fs::read(&sent).unwrap();
    let fetch = |args: &[&str]| {
        let content = content.clone();
        let (url, server) = server(move |stream, _| {
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
            // A refused reply is not read to its end.
            let _ = stream.write_all(&content);
        });
        let ran = go(&[&["fetch", &format!("{url}/debug/pprof/mutex")], args].concat());
        server.join().unwrap();
        (ran.status.success(), text(&ran.stderr))
    };
    let (is_good, errors) = fetch(&["-o", &kept]);
    assert!(is_good, "{errors}");
    assert!(std::fs::read(&kept).unwrap() == content);
    // The stacks are those of the trace.
    let direct = file("direct.folded");
    go(&["profile", "sync", shop().to_str().unwrap(), "-o", &direct]);
    let (is_good, errors) = fetch(&["-o", &shown]);
    assert!(is_good && errors.contains("by delay"), "{errors}");
    let sorted = |name: &str| {
        let text = std::fs::read_to_string(name).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&shown), sorted(&direct));
    let (is_good, errors) = fetch(&["-o", &shown, "--samples", "no"]);
    assert!(!is_good && errors.contains("no samples of no"), "{errors}");
    let (is_good, errors) = fetch(&["-o", &plain]);
    assert!(!is_good && errors.contains("FILE.svg"), "{errors}");
    assert!(!Path::new(&plain).exists());
}

/// A profile of pprof with more mappings than the tables have room for.
fn profile_of_many_mappings() -> Vec<u8> {
    const MAPPINGS: u32 = (1 << 16) + 3;
    let mut file = vec![0x0a, 0]; // a sample type without a name
    for number in 1..=MAPPINGS {
        // The id, the start, and the length of both: numbers of three bytes.
        let varint = [number as u8 | 0x80, (number >> 7) as u8 | 0x80, (number >> 14) as u8];
        let message = [&[0x08][..], &varint, &[0x10], &varint].concat();
        file.extend([0x1a, message.len() as u8]);
        file.extend(message);
    }
    file.extend([0x12, 2, 0x10, 1]); // a sample with the value 1
    file
}

#[test]
fn what_does_not_fit_of_a_fetched_profile_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("x.folded");
    let (url, server) = server(move |stream, _| {
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
        stream.write_all(&profile_of_many_mappings()).unwrap();
    });
    let url = format!("{url}/debug/pprof/heap");
    let ran = go(&["fetch", &url, "-o", output.to_str().unwrap()]);
    server.join().unwrap();
    let errors = text(&ran.stderr);
    assert!(ran.status.success(), "{errors}");
    let message = format!("triscope: {url}: 3 frames lack their module: there are too many\n");
    assert!(errors.contains(&message), "{errors}");
}

/// Interrupts a fetch after a server has read the request and sent `start` bytes of its reply.
fn fetch_until_an_interrupt(start: usize) {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("fetched.trace");
    let trace = std::fs::read(shop()).unwrap();
    let (sent, received) = std::sync::mpsc::channel();
    let content = [b"HTTP/1.0 200 OK\r\n\r\n", &trace[..]].concat();
    let (url, server) = server(move |stream, mut request| {
        let (start, rest) = content.split_at(start);
        stream.write_all(start).unwrap();
        sent.send(()).unwrap();
        // As net/http/pprof: the end of the request ends the trace, which writes the rest.
        request.read_to_end(&mut Vec::new()).unwrap();
        stream.write_all(rest).unwrap();
    });
    let mut fetch = command(&["fetch", &url, "-o", output.to_str().unwrap()]);
    let fetch = Running::start(&mut fetch);
    received.recv().unwrap(); // it listens to signals before it sends the request
    fetch.signal("INT");
    fetch.end().is_good();
    server.join().unwrap();
    assert!(std::fs::read(&output).unwrap() == trace);
}

#[test]
fn an_interrupt_ends_the_request_and_keeps_the_trace() {
    fetch_until_an_interrupt(1000);
}

/// The headers and the begin of a short trace are in a buffer of the program until its end.
#[test]
fn an_interrupt_before_the_reply_keeps_the_trace() {
    fetch_until_an_interrupt(0);
}

#[test]
fn a_fetched_trace_that_cannot_be_written_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("fetched.trace");
    std::fs::write(&output, "an older one").unwrap();
    let mut content = std::fs::read(shop()).unwrap();
    content.resize(1 << 20, 0);
    let (url, server) = server(move |stream, _| {
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
        let _ = stream.write_all(&content); // it is not read to its end
    });
    // A limit of the size is an error of the file, as a full disk is.
    let script = "ulimit -f 16 && exec \"$@\"";
    let program = env!("CARGO_BIN_EXE_triscope");
    let mut fetch = Command::new("sh");
    fetch.args(["-c", script, "sh", program, "go", "fetch", &url, "-o"]).arg(&output);
    let ran = fetch.output().unwrap();
    let errors = text(&ran.stderr);
    assert!(!ran.status.success() && errors.contains("cannot be written"), "{errors}");
    assert!(!errors.contains("truncated"), "{errors}");
    server.join().unwrap();
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "an older one");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_failed_fetch_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("none.trace");
    let fails = |url: &str, message: &str| {
        let ran = go(&["fetch", url, "-o", output.to_str().unwrap()]);
        assert!(!ran.status.success());
        assert!(text(&ran.stderr).contains(message), "{}", text(&ran.stderr));
        assert!(!output.exists());
    };
    let (url, _) = server(|stream, _| {
        stream.write_all(b"HTTP/1.0 500 Internal Server Error\r\n\r\nalready tracing\n").unwrap();
    });
    fails(&url, "500 Internal Server Error already tracing");
    let (url, _) = server(|stream, _| stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nhello").unwrap());
    fails(&url, "not a Go execution trace");
    let (url, _) = server(|_, _| ());
    fails(&url, "without a reply");
    fails("https://localhost", "only http:// is supported");
}
