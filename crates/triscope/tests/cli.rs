//! Runs the program and looks at what it prints and how it ends.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use testkit::process::Running;

const KINDS: &str = include_str!("../../gotrace/tests/data/text/kinds.trace.txt");
const KINDS_EVENTS: &[u8] = include_bytes!("../../gotrace/tests/data/text/kinds.events");

fn triscope(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.args(args);
    command
}

struct Ran {
    stdout: Vec<u8>,
    stderr: String,
    code: Option<i32>,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).unwrap();
        Self { stdout: output.stdout, stderr, code: output.status.code() }
    }
}

fn run(args: &[&str]) -> Ran {
    triscope(args).stdin(Stdio::null()).output().unwrap().into()
}

fn run_with_input(args: &[&str], input: &[u8]) -> Ran {
    let mut child = triscope(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&input); // a program may well not read all of it
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output.into()
}

/// The text of a generation that may follow the one in `KINDS`.
fn next_generation(generation: u64) -> String {
    format!(
        "EventBatch gen={generation} m=18446744073709551615 time=200 size=19\nSync\n\
         Frequency freq=15625000\nClockSnapshot dt=5 mono=6700 sec=1700000000 nsec=120000000\n\
         EventBatch gen={generation} m=7 time=200 size=4\nProcStatus dt=1 p=0 pstatus=2\n\
         EndOfGeneration\n"
    )
}

fn wire(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    gotrace::raw::TextToWire::new(text.as_bytes()).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

fn kinds() -> Vec<u8> {
    wire(KINDS)
}

/// A trace with the same generation twice, under other numbers. They contradict each other.
fn kinds_twice() -> Vec<u8> {
    let second = KINDS.split_once('\n').unwrap().1.replace("gen=1 ", "gen=2 ");
    wire(&format!("{KINDS}{second}"))
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        text(&path)
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Asserts that a run has failed with one line that says `message`.
#[track_caller]
fn assert_refused(ran: &Ran, message: &str) {
    assert_fails(ran, 1, message);
}

/// The command line is wrong.
#[track_caller]
fn assert_wrong(ran: &Ran, message: &str) {
    assert_fails(ran, 2, message);
}

#[track_caller]
fn assert_fails(ran: &Ran, code: i32, message: &str) {
    assert_eq!(ran.code, Some(code), "{}", ran.stderr);
    assert!(ran.stderr.starts_with("triscope: "), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains(message), "{}", ran.stderr);
}

#[track_caller]
fn assert_events(ran: &Ran) {
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    assert!(ran.stdout == KINDS_EVENTS, "{}", String::from_utf8_lossy(&ran.stdout));
}

/// The level of `kernel.perf_event_paranoid` that is enough for all CPUs is beside the privilege.
#[test]
fn help_has_what_all_cpus_need() {
    for command in
        [&["profile"][..], &["top"], &["perf", "record"], &["perf", "stat"], &["perf", "top"]]
    {
        let help = String::from_utf8(run(&[command, &["--help"]].concat()).stdout).unwrap();
        let all_cpus = "All CPUs (-a, -C) need 0 or less,";
        assert!(help.contains(all_cpus) && help.contains("needs root or CAP_PERFMON"), "{help}");
    }
}

/// Lines of the text after the options are not broken again.
#[test]
fn help_has_no_line_of_a_word() {
    for command in ["convert", "open", "profile", "push", "record", "top"] {
        let help = String::from_utf8(run(&[command, "--help"]).stdout).unwrap();
        let (_, text) = help.split_once("\nExamples:").unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let is_broken = |three: &&[&str]| {
            let [before, line, after] = three else { return false };
            before.len() > 80 && (1..20).contains(&line.len()) && !after.is_empty()
        };
        assert_eq!(lines.windows(3).find(is_broken), None, "{command}");
    }
}

#[test]
fn events_are_those_of_go_whatever_the_input() {
    let (files, trace) = (Files::new(), kinds());
    let test = format!("-- expect --\nSUCCESS\n-- trace --\n{KINDS}");
    for (name, bytes) in [
        ("trace.out", trace.clone()),
        ("trace.out.gz", gzip(&trace)),
        ("trace.out.zst", zstd::encode_all(&trace[..], 1).unwrap()),
        ("trace.txt", KINDS.as_bytes().to_vec()),
        ("trace.test", test.clone().into_bytes()),
        ("comment.test", format!("Why this is here.\n{test}").into_bytes()),
        ("trace.test.gz", gzip(test.as_bytes())),
        // Compressed in parts, as by cat a.gz b.gz.
        ("parts.gz", [gzip(&trace[..100]), gzip(&trace[100..])].concat()),
    ] {
        let path = files.write(name, &bytes);
        assert_events(&run(&["go", "events", &path]));
        if !name.starts_with("comment") {
            assert_events(&run_with_input(&["go", "events", "-"], &bytes));
        }
    }
}

#[test]
fn wire_events_are_those_of_go_and_can_be_read_again() {
    let (files, trace) = (Files::new(), kinds());
    let path = files.write("trace.out", &trace);
    let ran = run(&["go", "wire", &path]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), KINDS.split_once('\n').unwrap().1);

    let ran = run(&["go", "wire", "--header", &path]);
    assert_eq!(String::from_utf8(ran.stdout.clone()).unwrap(), KINDS);
    assert_events(&run_with_input(&["go", "events", "-"], &ran.stdout));

    let old = files.write("old", &[&gotrace::Version::Go121.header()[..], &[2, 0, 0]].concat());
    assert_refused(&run(&["go", "wire", &old]), "is of Go 1.21, whose format v1 has no such");
}

#[test]
fn footprints_add_up_to_the_file() {
    let (files, trace) = (Files::new(), kinds());
    let path = files.write("trace.out", &trace);
    let ran = run(&["go", "footprint", "--json", &path]);
    let json: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let types = json["types"].as_array().unwrap();
    let sum = |of: &str| types.iter().map(|row| row[of].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("bytes") + 16, trace.len() as u64, "the header is no event");
    // Each event is a line, but for the data and frames that follow some.
    let is_event = |line: &&str| line.starts_with(char::is_uppercase);
    assert_eq!(sum("events"), KINDS.lines().skip(1).filter(is_event).count() as u64);
    let bytes: Vec<u64> = types.iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert!(bytes.is_sorted_by(|a, b| a >= b), "{bytes:?}");

    let ran = run(&["go", "footprint", &path]);
    assert!(String::from_utf8(ran.stdout).unwrap().contains("%  EventBatch\n"));
    // The part before the damage is counted.
    let cut = files.write("cut.out", &trace[..trace.len() - 2]);
    let ran = run(&["go", "footprint", &cut]);
    assert_eq!(ran.code, Some(1));
    assert!(!ran.stdout.is_empty() && ran.stderr.contains("at byte"), "{}", ran.stderr);
    let old = files.write("old", &[&gotrace::Version::Go121.header()[..], &[2, 0, 0]].concat());
    assert_refused(&run(&["go", "footprint", &old]), "has no such wire events: try go stats");
}

#[test]
fn stats_count_what_is_there() {
    let files = Files::new();
    let trace = wire(&format!("{KINDS}{}", next_generation(2)));
    let path = files.write("trace.out", &trace);
    let ran = run(&["go", "stats", "--json", &path]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    let stats: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(stats["version"], "Go 1.26");
    assert_eq!(stats["bytes"], trace.len());
    assert_eq!(stats["generations"], 2);
    assert_eq!(stats["events_by_kind"]["Sync"], 3);
    assert_eq!(stats["events_by_kind"]["StackSample"], 2);
    assert_eq!(stats["events_by_type"]["GoCreate"], 2);
    assert_eq!(stats["goroutines"], 6, "1 to 4, 8 and 9");
    assert_eq!((&stats["procs"], &stats["threads"]), (&1.into(), &2.into()));
    assert_eq!(stats["clock_snapshot"]["wall"], "2023-11-14T22:13:20.12Z");
    assert_eq!(stats["first_ns"], 6400);
    assert_eq!((&stats["error"], &stats["losses"]), (&serde_json::Value::Null, &0.into()));
    let total: u64 = stats["events_by_kind"]
        .as_object()
        .unwrap()
        .values()
        .map(|count| count.as_u64().unwrap())
        .sum();
    assert_eq!(stats["events"], total);

    let ran = run(&["go", "stats", &path]);
    let text = String::from_utf8(ran.stdout).unwrap();
    assert!(text.contains("Go 1.26 trace, format v2"), "{text}");
    assert!(text.contains("generations  2\n"), "{text}");
    assert!(text.contains("%  StateTransition\n"), "{text}");
}

/// The committed trace of a Go program with tasks and regions.
const SHOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gotrace/tests/data/shop.trace");

#[track_caller]
fn json(args: &[&str]) -> Vec<serde_json::Value> {
    let ran = run(args);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{args:?}");
    serde_json::from_slice(&ran.stdout).unwrap()
}

#[test]
fn analyses_print_tables_and_json() {
    let groups = json(&["go", "goroutines", "--json", SHOP]);
    let main = groups.iter().find(|group| group["entry"] == "main.main").unwrap();
    assert_eq!(main["count"], 1);
    let each = json(&["go", "goroutines", "--json", "--entry", "main.main", SHOP]);
    assert_eq!(each.len(), 1);
    assert_eq!(each[0]["times"], main["times"]);
    let regions = json(&["go", "regions", "--json", SHOP]);
    let tasks = json(&["go", "tasks", "--json", SHOP]);
    assert!(!regions.is_empty() && !tasks.is_empty());
    let longest = tasks[0]["duration"].as_u64().unwrap();
    assert!(tasks.iter().all(|task| task["duration"].as_u64().unwrap_or(0) <= longest));
    for row in json(&["go", "mmu", "--json", SHOP]) {
        let utilization = row["utilization"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&utilization), "{row}");
        assert_eq!(row["worst"].as_array().unwrap().len(), 1, "{row}");
    }
    for (command, column) in [
        ("goroutines", "entry function"),
        ("regions", "p99"),
        ("tasks", "duration"),
        ("mmu", "utilization"),
    ] {
        let ran = run(&["go", command, SHOP]);
        let text = String::from_utf8(ran.stdout).unwrap();
        assert!(text.lines().next().unwrap().contains(column), "{text}");
        assert!(text.lines().count() > 1, "{text}");
    }
}

#[test]
fn profiles_are_written_by_name_of_the_file() {
    let files = Files::new();
    for ending in ["pb.gz", "speedscope.json", "svg", "folded"] {
        let path = text(&files.path(&format!("sync.{ending}")));
        let ran = run(&["go", "profile", "sync", SHOP, "-o", &path]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stderr.contains(" contentions, "), "{}", ran.stderr);
        assert!(fs::metadata(&path).unwrap().len() > 100, "{ending}");
    }
    // A part is less than the whole, and a selection must select something.
    let total = |options: &[&str]| {
        let path = text(&files.path("part.folded"));
        run(&[&["go", "profile", "sync", SHOP, "-o", &path], options].concat());
        let text = fs::read_to_string(&path).unwrap_or_default();
        text.lines().map(|l| l.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let (all, of_main) = (total(&[]), total(&["--goroutine", "main.main"]));
    assert!(0 < of_main && of_main < all, "{of_main} {all}");
    let path = text(&files.path("none.svg"));
    let ran = run(&["go", "profile", "sync", SHOP, "-o", &path, "--region", "no such"]);
    assert_refused(&ran, "no region of type \"no such\"");
    assert_wrong(&run(&["go", "profile", "net", SHOP, "-o", "x.json"]), "must end in one of");
    assert!(!Path::new(&path).exists());
}

/// Go 1.26 permits it, and nothing is known of the time between.
#[test]
fn a_report_says_that_generations_are_missing() {
    let files = Files::new();
    let report = |number: u64| -> serde_json::Value {
        let trace = wire(&format!("{KINDS}{}", next_generation(number)));
        let ran = run(&["report", "--json", &files.write("trace.out", &trace)]);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let says = |report: &serde_json::Value| report["notes"].to_string().contains("generation");
    let [whole, gap] = [2, 3].map(report);
    assert_eq!(whole["losses"].as_array().unwrap().len(), 0);
    assert!(!says(&whole));
    assert_eq!(gap["losses"].as_array().unwrap().len(), 1);
    assert!(gap["notes"].to_string().contains("trace.out: 1 missing generation"), "{gap}");
}

#[test]
fn a_trace_is_cut_between_generations() {
    let files = Files::new();
    // Three generations: the second at 200 ticks of 64 ns, the third as well.
    let trace = wire(&format!("{KINDS}{}{}", next_generation(2), next_generation(3)));
    let index = gotrace::Index::read(&trace[..]).unwrap();
    let [first, second, third] = index.generations() else { panic!("{index:?}") };
    let (input, part) = (files.write("trace.out", &trace), files.path("part.out"));
    let part = text(&part);
    let seconds = |span: &gotrace::GenerationSpan| {
        format!("{:.9}", (span.last.nanos() - first.first.nanos()) as f64 / 1e9)
    };
    let numbers = |path: &str| {
        let index = gotrace::Index::read(fs::File::open(path).unwrap()).unwrap();
        index.generations().iter().map(|span| span.number).collect::<Vec<_>>()
    };
    let trim = |args: &[&str]| run(&[&["go", "trim", &input, "-o", &part], args].concat());
    assert_eq!(trim(&[]).code, Some(0));
    assert_eq!(fs::read(&part).unwrap(), trace);
    assert!(second.last > first.last, "{index:?}");
    assert_eq!(trim(&["--from", &seconds(second)]).code, Some(0));
    assert_eq!(numbers(&part), [2, 3]);
    assert_eq!(run(&["go", "stats", &part]).code, Some(0));
    let before = (second.first.nanos() - first.first.nanos() - 1) as f64 / 1e9;
    assert_eq!(trim(&["--to", &format!("{before:.9}")]).code, Some(0));
    assert_eq!(numbers(&part), [1]);
    assert_refused(&trim(&["--from", "100"]), "has no events in this range");
    assert_wrong(&trim(&["--from", "2", "--to", "1"]), "--to is before --from");
    // Compressed, and through standard input.
    let piped = run_with_input(&["go", "trim", "-", "-o", &part], &gzip(&trace));
    assert_eq!((piped.code, fs::read(&part).unwrap()), (Some(0), trace.clone()));

    let parts = text(&files.path("parts"));
    assert_eq!(run(&["go", "split", &input, "-o", &parts, "-n", "2"]).code, Some(0));
    assert_eq!(numbers(&format!("{parts}/0001.out")), [1, 2]);
    assert_eq!(numbers(&format!("{parts}/0002.out")), [3]);
    assert_eq!(fs::read_dir(&parts).unwrap().count(), 2);
    // Parts of a longer trace would be taken for parts of this one.
    let split = |n: &str| run(&["go", "split", &input, "-o", &parts, "-n", n]);
    assert_eq!(split("1").code, Some(0));
    assert_refused(&split("2"), "0003.out is not of this split: remove it");
    assert_refused(&split("3"), "0002.out to 0003.out are not of this split: remove them");
    assert_eq!(numbers(&format!("{parts}/0001.out")), [1, 2, 3]);
    assert_eq!(numbers(&format!("{parts}/0003.out")), [3]);
    // Complete parts stay.
    fs::create_dir_all(files.path("blocked/0002.out")).unwrap();
    let blocked = text(&files.path("blocked"));
    let ran = run(&["go", "split", &input, "-o", &blocked]);
    assert_refused(&ran, "0002.out: is a directory, not a file; the parts before it are written");
    assert_eq!(numbers(&format!("{blocked}/0001.out")), [1]);
    // What is read is not overwritten.
    let first_part = files.write("0001.out", &trace);
    let directory = text(files.path("0001.out").parent().unwrap());
    assert_refused(&run(&["go", "split", &first_part, "-o", &directory]), "is the input");
    assert_refused(&run(&["go", "trim", &input, "-o", &input]), "is the input");
    assert_eq!(fs::read(&first_part).unwrap(), trace);
    assert_eq!(fs::read(&input).unwrap(), trace);
    // Of a damaged trace, the part before the damage.
    let cut = files.write("cut.out", &trace[..third.offset as usize + 10]);
    let ran = run(&["go", "trim", &cut, "-o", &part]);
    assert_refused(&ran, "the generations before it are written");
    assert_eq!(numbers(&part), [1, 2]);
    let none = files.path("none.out");
    for command in ["trim", "split"] {
        let ran = run(&["go", command, &input, "-o", &text(&none), "--limit", "max_buffer=10"]);
        assert_refused(&ran, "nothing is written");
        assert!(!none.exists(), "{command}: its directory is empty");
    }
    let ran = run(&["go", "trim", &cut, "-o", &text(&none), "--from", "100"]);
    assert_refused(&ran, "nothing is written");
    assert!(!none.exists());
}

/// Neither the part that was being written nor the directory for it are left.
#[test]
fn an_interrupted_split_leaves_nothing() {
    let files = Files::new();
    let trace = wire(&format!("{KINDS}{}{}", next_generation(2), next_generation(3)));
    let parts = files.path("new/parts");
    let args = ["go", "split", "-", "-n", "5", "-o", parts.to_str().unwrap()];
    let mut child = Running::start(triscope(&args).stdin(Stdio::piped()));
    let mut stdin = child.child().stdin.take().unwrap();
    stdin.write_all(&trace).unwrap();
    testkit::wait::until("a part", || parts.join("0001.out.partial").exists());
    child.signal("INT");
    assert_eq!(child.end().code, Some(128 + 2));
    assert!(!files.path("new").exists());
}

#[test]
fn an_interrupted_trim_leaves_nothing() {
    let files = Files::new();
    let trace = wire(&format!("{KINDS}{}{}", next_generation(2), next_generation(3)));
    let part = files.path("part.out");
    let args = ["go", "trim", "-", "--from", "0", "-o", part.to_str().unwrap()];
    let mut child = Running::start(triscope(&args).stdin(Stdio::piped()));
    let mut stdin = child.child().stdin.take().unwrap();
    stdin.write_all(&trace).unwrap();
    let partial = files.path("part.out.partial");
    testkit::wait::until("a part", || partial.exists());
    child.signal("INT");
    assert_eq!(child.end().code, Some(128 + 2));
    assert!(!partial.exists() && !part.exists());
}

#[test]
fn events_before_an_error_are_printed() {
    let (files, trace) = (Files::new(), kinds_twice());
    // Within the second generation.
    let path = files.write("cut.out", &trace[..trace.len() - 100]);
    let ran = run(&["go", "events", &path]);
    assert_refused(&ran, "cut.out: ");
    let whole = KINDS_EVENTS.len() - b"M=-1 P=-1 G=-1 Sync Time=10177 N=2\n".len();
    assert!(ran.stdout.starts_with(&KINDS_EVENTS[..whole]));

    let ran = run(&["go", "stats", "--json", &path]);
    assert_refused(&ran, "cut.out: ");
    let stats: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(stats["generations"], 1);
    assert!(stats["error"].as_str().unwrap().contains("at byte"), "{stats}");

    let ran = run(&["go", "wire", &path]);
    assert_refused(&ran, "unexpected end of data");
    assert!(ran.stdout.starts_with(KINDS.split_once('\n').unwrap().1.as_bytes()));
}

#[test]
fn recover_continues_and_reports_losses() {
    let (files, mut trace) = (Files::new(), kinds_twice());
    // The first event of the first generation that is not a sync: a proc in no valid status.
    let place = trace.windows(4).position(|bytes| bytes == [13, 1, 0, 1]).unwrap();
    trace[place + 3] = 77;
    let path = files.write("damaged.out", &trace);
    let ran = run(&["go", "events", &path]);
    assert_refused(&ran, "invalid status 77");
    let before = ran.stdout.len();

    let ran = run(&["go", "events", "--recover", &path]);
    assert_eq!(ran.code, Some(1));
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", ran.stderr);
    assert!(
        lines[0].contains("invalid status 77") && lines[0].contains("continuing in generation 1")
    );
    assert!(lines[1].contains("damaged in 1 place, 0 bytes lost, 1 event lost"), "{}", lines[1]);
    assert!(ran.stdout.len() > before + KINDS_EVENTS.len() / 2, "the second generation is there");

    let ran = run(&["go", "stats", "--json", "--recover", &path]);
    assert_eq!(ran.code, Some(1));
    let stats: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&stats["losses"], &stats["generations"]), (&1.into(), &2.into()));
    assert_eq!((&stats["lost_bytes"], &stats["lost_events"]), (&0.into(), &1.into()));

    // Most of the trace is cut off, in the middle of a batch, and the rest is garbage.
    let mut trace = kinds_twice();
    let len = trace.len();
    trace[len / 10..].fill(0xff);
    let path = files.write("garbage.out", &trace);
    let ran = run(&["go", "stats", "--json", "--recover", &path]);
    let stats: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let lost = stats["lost_bytes"].as_u64().unwrap() as usize;
    assert!(lost <= len && lost >= len - len / 10, "{lost} of {len}: {}", ran.stderr);
    assert!(ran.stderr.contains(&format!("{lost} bytes lost")), "{}", ran.stderr);

    let ran = run(&["go", "stats", "--limit", "max_buffer=1", &path]);
    assert_refused(&ran, "(max_buffer) exceeds the limit of 1");
    let ran = run(&["go", "stats", "--limit", "max_buffers=1K", &path]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("expected max_buffer, "), "{}", ran.stderr);

    // Nothing to recover from: no complaint.
    let good = files.write("good.out", &kinds());
    assert_events(&run(&["go", "events", "--recover", &good]));
}

#[test]
fn inputs_that_are_something_else() {
    let files = Files::new();
    // How profiles of the CPU and of goroutines begin that Go 1.27 writes.
    let cpu = gzip(
        b"\x48\xc9\xda\xa5\x85\xc1\xae\xfe\xf4\x18\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10",
    );
    let goroutines = gzip(b"\x5a\x04\x08\x01\x10\x02\x60\x01\x0a\x04\x08\x01\x10\x02\x22\x10");
    let future = b"go 1.99 trace\0\0\0";
    let mut cut_gzip = gzip(&kinds());
    cut_gzip.truncate(cut_gzip.len() / 2);
    for (name, bytes, message) in [
        ("empty", &b""[..], "is empty"),
        ("text", b"hello, world\n", "is not a Go execution trace"),
        ("header", b"go 1.26", "not a Go execution trace"),
        ("future", future, "unknown version Go 1.99"),
        ("cpu.pprof", &cpu, "looks like a pprof profile"),
        ("goroutines.pprof", &goroutines, "looks like a pprof profile"),
        ("other.protobuf", b"\x0a\x03abc\x12\x00", "is not a Go execution trace"),
        ("perf.data", b"PERFILE2 and so on", "looks like a perf.data recording of Linux perf"),
        ("x.nettrace", b"Nettrace\x14\0\0\0!FastSerialization.1", "looks like a .NET trace"),
        ("x.xz", b"\xfd7zXZ\0\0\x04", "decompress it with xz -d"),
        ("nothing.gz", &gzip(b""), "holds nothing when decompressed"),
        ("cut.gz", &cut_gzip, "cut.gz: "),
        ("bad.zst", b"\x28\xb5\x2f\xfdxxxxxxxxxx", "bad.zst: "),
        ("bad.test", b"-- expect --\nSUCCESS\n", "line 2: expected \"-- trace --\""),
        ("bad.txt", b"Trace Go1.26\nNoSuch\n", "line 2: Go 1.26 has no event"),
    ] {
        let path = files.write(name, bytes);
        for command in ["events", "stats", "wire"] {
            assert_refused(&run(&["go", command, &path]), message);
        }
    }
    let missing = text(&files.path("missing"));
    let directory = text(files.0.path());
    assert_refused(&run(&["go", "events", &missing]), "missing: no such file or directory");
    assert_refused(&run(&["go", "stats", &directory]), "is a directory");
    assert_refused(&run(&["go", "events", "-"]), "standard input: is empty");
}

/// The same words for all commands.
#[test]
fn files_that_cannot_be_read_or_written_are_refused() {
    let files = Files::new();
    let go = files.write("go.trace", &kinds());
    let (empty, plain) = (files.write("empty", b""), files.write("plain", b"some text\n"));
    let missing = text(&files.path("missing"));
    let directory = text(files.0.path());
    for args in [&["perf", "report"][..], &["perf", "script"], &["perf", "report", "-i"]] {
        let read = |path: &str| run(&[args, &[path]].concat());
        assert_refused(&read(&missing), "missing: no such file or directory\n");
        assert_refused(&read(&directory), ": is a directory, not a file\n");
        assert_refused(&read(&empty), "empty: is empty\n");
        assert_refused(&read(&plain), "plain: is not a perf.data recording of Linux perf\n");
        let what = "go.trace: looks like a Go execution trace, not a perf.data recording";
        assert_refused(&read(&go), what);
    }
    let dataset = text(&files.path("dataset"));
    let export = run(&["export", &missing, "-o", &dataset]);
    assert_refused(&export, "missing: no such file or directory\n");
    for args in [&["dotnet", "gcdump"][..], &["dotnet", "gcdump", &go, "--baseline"]] {
        let read = |path: &str| run(&[args, &[path]].concat());
        let missing = text(&files.path("missing.nettrace"));
        assert_refused(&read(&missing), "missing.nettrace: no such file or directory\n");
        assert_refused(&read(&directory), ": is a directory, not a file\n");
        assert_refused(&read(&empty), "empty: is empty\n");
    }
    let nowhere = text(&files.path("nodir/x"));
    for args in [
        &["perf", "stat", "-o", &nowhere, "true"][..],
        &["dotnet", "collect", "-o", &nowhere, "--", "true"],
    ] {
        assert_refused(&run(args), "nodir/x: cannot be written: ");
    }
    let collect = run(&["dotnet", "collect", "-o", &directory, "--", "true"]);
    assert_refused(&collect, ": is a directory, not a file\n");
}

/// As perf takes it, and as the other commands do.
#[test]
fn a_recording_is_an_argument_or_that_of_an_option() {
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/../perf-data/tests/data/perf.perf.data");
    let files = Files::new();
    let compressed = files.write("x.gz", &gzip(&fs::read(recording).unwrap()));
    for command in ["report", "script"] {
        let of_option = run(&["perf", command, "-i", recording]);
        assert_eq!(of_option.code, Some(0), "{}", of_option.stderr);
        assert!(!of_option.stdout.is_empty());
        for file in [recording, &compressed] {
            let ran = run(&["perf", command, file]);
            assert_eq!((ran.code, ran.stdout), (Some(0), of_option.stdout.clone()), "{file}");
        }
        let both = run(&["perf", command, recording, "-i", recording]);
        assert_eq!(both.code, Some(2), "{}", both.stderr);
    }
}

#[test]
fn names_of_outputs_that_are_too_long() {
    let files = Files::new();
    let path = files.write("go.txt", KINDS.as_bytes());
    let long = text(&files.path(&format!("{}.pftrace", "x".repeat(300))));
    assert_refused(&run(&["convert", &path, "-o", &long]), "File name too long");
}

#[test]
fn names_and_messages_cannot_play_tricks_on_a_terminal() {
    let files = Files::new();
    let path = files.write("\u{1b}[31mred\n", b"Trace Go1.26\n\x1b[2J\n");
    let ran = run(&["go", "events", &path]);
    assert_refused(&ran, "\\u{1b}[31mred\\n: ");
    assert!(!ran.stderr.contains('\u{1b}'));
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let files = Files::new();
    // Much more than a pipe holds.
    let more: String = (2..8000).map(next_generation).collect();
    let path = files.write("long.txt", format!("{KINDS}{more}").as_bytes());
    for command in ["wire", "events"] {
        let mut child = triscope(&["go", command, &path])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 10]).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(141), &b""[..]));
    }
}

#[test]
fn help_has_examples() {
    let ran = run(&["--help"]);
    let text = String::from_utf8(ran.stdout).unwrap();
    assert!(text.contains("Examples:") && text.contains("triscope go stats"), "{text}");
    for command in ["events", "wire", "stats"] {
        let ran = run(&["go", command, "--help"]);
        assert_eq!(ran.code, Some(0));
        let text = String::from_utf8(ran.stdout).unwrap();
        assert!(text.contains(&format!("Examples:\n  triscope go {command} ")), "{text}");
    }
    let ran = run(&["go", "event"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("events"), "{}", ran.stderr);
}

#[test]
fn an_option_without_effect_is_refused() {
    let files = Files::new();
    for name in ["x.data", "x.pftrace", "x.html"] {
        let output = text(&files.path(name));
        let ran = run(&["profile", "--fold-stubs", "-o", &output, "true"]);
        assert_wrong(&ran, "--fold-stubs is for profiles");
    }
}

#[test]
fn seconds_and_duration_are_one_option() {
    for option in ["--seconds", "--duration"] {
        let ran = run(&["record", option, "x", "-o", "x.pftrace", "true"]);
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains("invalid value 'x' for '--seconds"), "{}", ran.stderr);
    }
}

#[test]
fn shells_and_man_are_served() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&["completions", shell]);
        assert_eq!(ran.code, Some(0));
        let text = String::from_utf8(ran.stdout).unwrap();
        assert!(text.contains("triscope") && text.contains("convert"), "{text}");
    }
    let ran = run(&["man"]);
    assert!(String::from_utf8(ran.stdout).unwrap().contains(".TH triscope 1"));
    let files = Files::new();
    // As of an account without manual pages.
    let directory = files.path("share/man/man1");
    let ran = run(&["man", &text(&directory)]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    let page = fs::read_to_string(directory.join("triscope-go-stats.1")).unwrap();
    assert!(page.contains("Summarize a trace"), "{page}");
    assert!(!directory.join("triscope-rescue-runtimes.1").exists(), "it is hidden");
}
