//! `triscope convert` as a process: files, messages and exit codes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may panic"
)]

use perf_data::{
    Features, FileWriter, PipeWriter, RecordWriter as _, RecordedEvent, perf_event_attr,
};
use perf_monitor::{RawRecord, SampleFlags};
use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn trace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/shop.trace")
}

fn convert(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.current_dir(dir).arg("convert").args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Those of a Go trace are those of its goroutines, without another trace.
#[test]
fn samples_of_a_go_trace_are_below_their_goroutines() {
    let dir = directory();
    let ran = convert(dir.path(), &["shop.trace", "-o", "x.folded", "--by", "goroutine"]);
    let summary = text(&ran.stderr);
    assert!(summary.contains("; 5 of 5 samples of Go programs with a goroutine"), "{summary}");
    let folded = fs::read_to_string(dir.path().join("x.folded")).unwrap();
    assert!(folded.lines().all(|line| line.starts_with("goroutine ")), "{folded}");
    let plain = convert(dir.path(), &["shop.trace", "-o", "x.folded"]);
    assert!(!text(&plain.stderr).contains("goroutine"), "{}", text(&plain.stderr));
}

/// A directory with `shop.trace` in it.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(trace(), dir.path().join("shop.trace")).unwrap();
    dir
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_trace_becomes_json_of_chrome() {
    let dir = directory();
    let output = convert(dir.path(), &["shop.trace", "-o", "out.json"]);
    let summary = text(&output.stderr);
    assert!(output.status.success(), "{summary}");
    assert!(summary.contains(" of 0.094 s, 150 goroutines, "), "{summary}");
    let json = fs::read(dir.path().join("out.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let items = json["traceEvents"].as_array().unwrap();
    let count = |phase: &str| items.iter().filter(|item| item["ph"] == phase).count();
    let running = items.iter().filter(|item| item["name"] == "Running").count();
    assert!(running >= 2562, "{running}");
    assert!(count("B") >= count("E") && count("E") > 9_000, "{} {}", count("B"), count("E"));
    assert!(count("s") > 1_000 && count("f") > 1_000, "{} {}", count("s"), count("f"));
    assert_eq!(names(dir.path()), ["out.json", "shop.trace"]);
}

/// The file behind a link is written, and the link stays.
#[test]
fn links_stay_and_their_files_are_written() {
    use std::os::unix::fs::symlink;
    let dir = directory();
    let path = |name: &str| dir.path().join(name);
    let is_link = |name: &str| fs::symlink_metadata(path(name)).unwrap().is_symlink();
    let has_json = |name: &str| {
        let bytes = fs::read(path(name)).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        json["traceEvents"].is_array()
    };
    fs::create_dir(path("there")).unwrap();
    fs::write(path("there/old.json"), "old").unwrap();
    symlink("there/first", path("second.json")).unwrap();
    symlink("old.json", path("there/first")).unwrap();
    let output = convert(dir.path(), &["shop.trace", "-o", "second.json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(is_link("second.json") && is_link("there/first") && has_json("there/old.json"));
    assert_eq!(names(&path("there")), ["first", "old.json"]);

    // A file that is open is reached without a name.
    symlink("/proc/self/fd/1", path("stdout.json")).unwrap();
    let redirected = fs::File::create(path("redirected")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.current_dir(dir.path()).args(["convert", "shop.trace", "-o", "stdout.json"]);
    let output = command.stdin(Stdio::null()).stdout(redirected).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(is_link("stdout.json") && has_json("redirected"));

    // There may be something in it already.
    symlink("/proc/self/fd/2", path("stderr.json")).unwrap();
    fs::write(path("log"), "before\n").unwrap();
    let log = fs::File::options().append(true).open(path("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.current_dir(dir.path()).args(["convert", "shop.trace", "-o", "stderr.json"]);
    assert!(command.stdin(Stdio::null()).stderr(log).status().unwrap().success());
    let log = fs::read_to_string(path("log")).unwrap();
    assert!(log.starts_with("before\n") && log.contains("\"traceEvents\":["), "{log}");
    assert!(is_link("stderr.json"));

    symlink("nothing", path("dangling.json")).unwrap();
    let output = convert(dir.path(), &["shop.trace", "-o", "dangling.json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!is_link("dangling.json") && has_json("dangling.json") && !path("nothing").exists());
}

/// A recording with a sample in each of this many files.
fn recording_of_files(count: u64, path: &Path) {
    const MMAP: u64 = 1;
    const SAMPLE: u64 = 9;
    const USER: u64 = 2;
    const ID: u64 = 7;
    let mut attr = perf_event_attr::new(1, 0);
    attr.sample_type = (SampleFlags::IP | SampleFlags::TID | SampleFlags::TIME).bits();
    let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![ID] };
    let file = BufWriter::new(fs::File::create(path).unwrap());
    let mut writer = FileWriter::new(file, vec![event]).unwrap();
    let mut record = |words: &[u64]| {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
    };
    let header = |kind, words: u64| kind | USER << 32 | (words * 8) << 48;
    for number in 0..count {
        let (ids, address) = (5 | 5 << 32, 0x10_0000 + number * 0x1000);
        // The name is at most seven bytes.
        let mut name = [0; 8];
        let text = format!("/{number}");
        name[..text.len()].copy_from_slice(text.as_bytes());
        let name = u64::from_ne_bytes(name);
        record(&[header(MMAP, 6), ids, address, 0x1000, 0, name]);
        record(&[header(SAMPLE, 4), address, ids, number + 1]);
    }
    writer.finish(&Features::default()).unwrap();
}

/// What did not fit is missing in the profile, and said.
#[test]
fn profiles_say_what_does_not_fit() {
    const MAX_MAPPINGS: u64 = 1 << 16;
    let dir = tempfile::tempdir().unwrap();
    recording_of_files(MAX_MAPPINGS + 3, &dir.path().join("many.data"));
    for name in ["out.folded", "out.json.gz"] {
        let output = convert(dir.path(), &["many.data", "-o", name]);
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let message = "\ntriscope: many.data: 3 frames lack their module: there are too many\n";
        assert!(stderr.contains(message), "{stderr}");
    }
}

/// A recording of a sample, and of 40 that a CPU lost.
fn recording_with_loss(path: &Path) {
    const LOST: u64 = 2;
    const SAMPLE: u64 = 9;
    const USER: u64 = 2;
    const ID: u64 = 7;
    let mut attr = perf_event_attr::new(1, 0);
    let flags = SampleFlags::IP | SampleFlags::TID | SampleFlags::TIME | SampleFlags::CPU;
    attr.sample_type = flags.bits();
    attr.set_sample_id_all(true);
    let event = RecordedEvent { name: "cpu-clock".into(), attr, ids: vec![ID] };
    let file = BufWriter::new(fs::File::create(path).unwrap());
    let mut writer = FileWriter::new(file, vec![event]).unwrap();
    let (ids, cpu) = (5 | 5 << 32, 1);
    for words in [
        [SAMPLE | USER << 32 | 40 << 48, 0x10_0000, ids, 1000, cpu, 0],
        [LOST | 48 << 48, ID, 40, ids, 2000, cpu],
    ] {
        let bytes = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect::<Vec<u8>>();
        writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
    }
    writer.finish(&Features::default()).unwrap();
}

/// Shares of half of the samples are other ones: `convert`, `diff` and `push` say so of each file.
#[test]
fn profiles_say_what_was_lost() {
    let dir = tempfile::tempdir().unwrap();
    recording_with_loss(&dir.path().join("lost.data"));
    recording_with_loss(&dir.path().join("other.data"));
    for (command, is_good, of) in [
        (&["convert", "lost.data", "-o", "out.folded"][..], true, &["lost"][..]),
        (&["convert", "lost.data", "-o", "out.json.gz"], true, &["lost"]),
        (&["diff", "lost.data", "other.data"], true, &["lost", "other"]),
        // Nothing listens there.
        (
            &["push", "lost.data", "--service", "a", "--otlp", "http://127.0.0.1:1"],
            false,
            &["lost"],
        ),
    ] {
        let mut triscope = Command::new(env!("CARGO_BIN_EXE_triscope"));
        let triscope = triscope.current_dir(dir.path()).args(command).stdin(Stdio::null());
        let output = triscope.output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.success(), is_good, "{stderr}");
        assert_eq!(stderr.matches(" 40 samples lost, ").count(), of.len(), "{stderr}");
        for name in of {
            let line =
                format!("triscope: {name}.data: 40 samples lost, the buffer of a CPU was full\n");
            assert!(stderr.contains(&line), "{stderr}");
        }
    }
}

/// What is before the end of the file is converted.
#[test]
fn a_recording_that_was_cut_is_read_up_to_there() {
    let dir = tempfile::tempdir().unwrap();
    let whole =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../perf-data/tests/data/perf.perf.data");
    let mut bytes = fs::read(whole).unwrap();
    bytes.truncate(10_000);
    fs::write(dir.path().join("cut.data"), &bytes).unwrap();
    // Its recorder had not completed it.
    bytes[48..56].fill(0); // the size of the records
    fs::write(dir.path().join("killed.data"), &bytes).unwrap();
    let truncated = "triscope: cut.data: a record at byte 9944 is truncated";
    let incomplete = "killed.data: the recorder did not complete it: the end can be missing\n";
    for (command, out) in [
        (&["convert", "FILE", "-o", "out.folded"][..], "triscope: "),
        (&["convert", "FILE", "-o", "out.pftrace"], "triscope: "),
        (&["diff", "FILE", "FILE"], "triscope: "),
        (&["export", "FILE", "-o", "dataset", "--host", "x"], "triscope: "),
        (&["perf", "report", "-i", "FILE"], "triscope: "),
        (&["report", "FILE"], ""),
    ] {
        let run = |file: &str| {
            let args = command.iter().map(|arg| if *arg == "FILE" { file } else { arg });
            let mut triscope = Command::new(env!("CARGO_BIN_EXE_triscope"));
            let triscope = triscope.current_dir(dir.path()).args(args).stdin(Stdio::null());
            let output = triscope.output().unwrap();
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        };
        let (code, stdout, stderr) = run("cut.data");
        assert_eq!(code, Some(1), "{command:?}: {stderr}");
        assert!(stderr.contains(truncated), "{command:?}: {stderr}");
        assert!(!(stdout.clone() + &stderr).contains("did not complete"), "{command:?}: {stderr}");
        if command.contains(&"report") {
            assert!(stdout.contains("113 "), "{stdout}");
        }
        let (code, stdout, stderr) = run("killed.data");
        assert_eq!(code, Some(0), "{command:?}: {stderr}");
        let said = if out.is_empty() { &stdout } else { &stderr };
        assert!(said.contains(&format!("{out}{incomplete}")), "{command:?}: {stderr}");
    }
    let folded = fs::read_to_string(dir.path().join("out.folded")).unwrap();
    let weights = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1);
    let sum: u64 = weights.map(|weight| weight.parse::<u64>().unwrap()).sum();
    assert!(sum > 0, "{folded}");
}

/// All that it has would count twice.
#[test]
fn a_file_that_is_given_twice_is_refused() {
    let dir = directory();
    fs::hard_link(dir.path().join("shop.trace"), dir.path().join("same.trace")).unwrap();
    for (second, why) in [
        ("shop.trace", "shop.trace: is given twice"),
        ("./shop.trace", "is the same file as shop.trace"),
        ("same.trace", "same.trace: is the same file as shop.trace"),
    ] {
        for output in ["out.pftrace", "out.folded", "out.html"] {
            let output = convert(dir.path(), &["shop.trace", second, "-o", output]);
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{error}");
            assert!(error.contains(why), "{error}");
        }
    }
    assert_eq!(names(dir.path()), ["same.trace", "shop.trace"]);
}

#[test]
fn a_trace_becomes_a_timeline() {
    let dir = directory();
    let output = convert(dir.path(), &["shop.trace", "-o", "out.pftrace"]);
    assert_eq!(text(&output.stdout), "");
    assert!(output.status.success());
    let size = fs::metadata(dir.path().join("out.pftrace")).unwrap().len();
    let summary = text(&output.stderr);
    let (line, next) = summary.split_once('\n').unwrap();
    assert!(line.starts_with("out.pftrace: 10080 events of 0.094 s, 150 goroutines, "), "{line}");
    assert!(line.ends_with(&format!("{:.1} kB", size as f64 / 1e3)), "{line}");
    assert_eq!(next, "open it at https://ui.perfetto.dev (\"Open trace file\")\n");
    assert_eq!(names(dir.path()), ["out.pftrace", "shop.trace"], "nothing else is left");

    // The same again replaces it by the same; uncompressed it is larger and names the process.
    let first = fs::read(dir.path().join("out.pftrace")).unwrap();
    assert!(convert(dir.path(), &["shop.trace", "-o", "out.pftrace"]).status.success());
    assert_eq!(fs::read(dir.path().join("out.pftrace")).unwrap(), first);
    let args = ["shop.trace", "-o", "plain.pftrace", "--uncompressed", "--name", "the shop"];
    assert!(convert(dir.path(), &args).status.success());
    let plain = fs::read(dir.path().join("plain.pftrace")).unwrap();
    assert!(plain.len() > 3 * first.len());
    assert!(plain.windows(8).any(|w| w == b"the shop"));
    let args = ["shop.trace", "-o", "bare.pftrace", "--uncompressed", "--no-arrows"];
    assert!(convert(dir.path(), &args).status.success());
    assert!(fs::metadata(dir.path().join("bare.pftrace")).unwrap().len() < plain.len() as u64);
}

#[test]
fn pipes_and_compressed_input() {
    let dir = directory();
    convert(dir.path(), &["shop.trace", "-o", "file.pftrace", "--name", "x"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.args(["convert", "-", "-o", "-", "--name", "x"]);
    let output = command.stdin(fs::File::open(trace()).unwrap()).output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, fs::read(dir.path().join("file.pftrace")).unwrap());
    assert!(text(&output.stderr).starts_with("standard output: 10080 events"));

    let gz = trace().with_file_name("go1.26-mixed.trace.gz");
    let output = convert(dir.path(), &[gz.to_str().unwrap(), "-o", "gz.pftrace"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = convert(dir.path(), &["shop.trace", "-o", "/dev/null"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(Path::new("/dev/null").exists());
}

/// What is read twice is in a temporary file, which is not what is damaged.
#[test]
fn damage_of_compressed_input_is_that_of_the_input() {
    let dir = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../perf-data/tests/data");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let recording = fs::read(data.join("scheduler.perf.data")).unwrap();
    std::io::Write::write_all(&mut encoder, &recording).unwrap();
    let packed = encoder.finish().unwrap();
    fs::write(dir.path().join("cut.gz"), &packed[..packed.len() / 2]).unwrap();
    let output = convert(dir.path(), &["cut.gz", "-o", "out.pftrace"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("triscope: cut.gz: "), "{stderr}");
    assert_eq!(names(dir.path()), ["cut.gz"]);
}

#[test]
fn an_output_that_cannot_be_is_one_line_and_no_file() {
    let dir = directory();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("not.trace"), "hello").unwrap();
    std::os::unix::fs::symlink("shop.trace", dir.path().join("link")).unwrap();
    let cases: [(&[&str], &str); 6] = [
        (&["shop.trace", "-o", "shop.trace"], "shop.trace: is the input"),
        (&["shop.trace", "-o", "link"], "link: is the input"),
        (&["shop.trace", "-o", "sub"], "sub: is a directory"),
        (&["shop.trace", "-o", "no/such/dir.pftrace"], "no/such/dir.pftrace: cannot be written"),
        (
            &["not.trace", "-o", "out.pftrace"],
            "not.trace: is not a trace of a known format: Go execution traces",
        ),
        (&["missing", "-o", "out.pftrace"], "missing: no such file"),
    ];
    let before = names(dir.path());
    for (args, message) in cases {
        let output = convert(dir.path(), args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr.starts_with(&format!("triscope: {message}")), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert_eq!(text(&output.stdout), "");
        assert_eq!(names(dir.path()), before);
    }
    assert_eq!(fs::read(dir.path().join("shop.trace")).unwrap(), fs::read(trace()).unwrap());
    assert_eq!(convert(dir.path(), &["shop.trace"]).status.code(), Some(2), "-o is required");
}

#[test]
fn of_a_damaged_trace_there_is_what_was_read() {
    let dir = directory();
    // Several generations; the damage is in a late one.
    let gz = fs::File::open(trace().with_file_name("go1.25-mixed.trace.gz")).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(gz), &mut bytes).unwrap();
    let cut = bytes.len() * 9 / 10;
    fs::write(dir.path().join("cut.trace"), &bytes[..cut]).unwrap();
    let output = convert(dir.path(), &["cut.trace", "-o", "out.pftrace"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("out.pftrace (partial): "), "{stderr}");
    assert_eq!(stderr.lines().count(), 3, "{stderr}");
    let before = fs::metadata(dir.path().join("out.pftrace")).unwrap().len();

    let output = convert(dir.path(), &["cut.trace", "-o", "out.pftrace", "--recover"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(" gap"), "{}", text(&output.stderr));
    assert!(fs::metadata(dir.path().join("out.pftrace")).unwrap().len() > before);

    // Nothing before the damage: no file, and a word on what may help.
    fs::write(dir.path().join("head.trace"), &fs::read(trace()).unwrap()[..30_000]).unwrap();
    let output = convert(dir.path(), &["head.trace", "-o", "head.pftrace"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("nothing could be converted") && stderr.contains("--recover"));
    assert!(!dir.path().join("head.pftrace").exists());
    assert_eq!(names(dir.path()), ["cut.trace", "head.trace", "out.pftrace", "shop.trace"]);
}

#[test]
fn other_formats_are_refused_with_the_list() {
    let dir = directory();
    for name in ["a.parquet", "a.unknown"] {
        let output = convert(dir.path(), &["shop.trace", "-o", name]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.starts_with(&format!("triscope: {name}: unknown format .")), "{stderr}");
        assert!(stderr.contains(".pftrace, .perfetto-trace or .perfetto"), "{stderr}");
        for other in [".json", ".html", ".json.gz", ".svg", ".pb.gz", ".folded", ".speedscope.json"]
        {
            assert!(stderr.contains(other), "{other}: {stderr}");
            let output = convert(dir.path(), &["shop.trace", "-o", &format!("other{other}")]);
            assert!(output.status.success(), "{other}: {}", text(&output.stderr));
            fs::remove_file(dir.path().join(format!("other{other}"))).unwrap();
        }
        assert_eq!(names(dir.path()), ["shop.trace"]);
    }
    for name in ["a.pftrace", "a.perfetto-trace", "a"] {
        assert!(convert(dir.path(), &["shop.trace", "-o", name]).status.success(), "{name}");
    }
}

#[test]
fn samples_become_a_profile() {
    let dir = directory();
    for name in ["a.svg", "a.pb.gz", "a.speedscope.json", "a.folded"] {
        let output = convert(dir.path(), &["shop.trace", "-o", name]);
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(stderr.starts_with(&format!("{name}: 5 samples of go-cpu")), "{stderr}");
    }
    let folded = fs::read_to_string(dir.path().join("a.folded")).unwrap();
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(folded.lines().map(count).sum::<u64>(), 5, "{folded}");
    assert!(folded.lines().all(|line| line.split(';').count() > 1), "{folded}");

    let fails = |args: &[&str], code: i32, message: &str| {
        let output = convert(dir.path(), &[&["shop.trace", "-o"][..], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert_eq!(text(&output.stderr), format!("triscope: {message}\n"));
    };
    let there = "no samples of cycles: there are 5 samples of go-cpu";
    fails(&["b.svg", "--samples", "cycles"], 1, there);
    fails(&["b.svg", "--no-arrows"], 2, "not for a profile: --no-arrows");
    fails(&["b.pftrace", "--samples", "go-cpu"], 2, "--samples and --by are for a profile");
    assert!(!dir.path().join("b.svg").exists());
}

/// The lines of a timeline.
fn lines(path: &Path) -> Vec<String> {
    testkit::perfetto::Timeline::read(&fs::read(path).unwrap()).lines
}

#[test]
fn clocks_that_cannot_be_related_are_refused() {
    let dir = directory();
    let gz = fs::File::open(trace().with_file_name("go1.21-mixed.trace.gz")).unwrap();
    let mut old = fs::File::create(dir.path().join("old.trace")).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(gz), &mut old).unwrap();
    let before = names(dir.path());
    let both = ["shop.trace", "old.trace", "-o", "out.pftrace"];
    let output = convert(dir.path(), &both);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.starts_with("triscope: old.trace: its clock cannot be related to"), "{stderr}");
    assert!(stderr.contains("--offset FILE=SECONDS"), "{stderr}");
    assert_eq!(names(dir.path()), before, "there is no output");
    // Alone it is on its own clock, and with an offset it is where that says.
    assert!(convert(dir.path(), &["old.trace", "-o", "old.pftrace"]).status.success());
    let offset = |seconds: &str| {
        let offset = format!("--offset=old.trace={seconds}");
        let output = convert(dir.path(), &[&both[..], &[&offset, "--uncompressed"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        // The first line is about the clocks, and switches have absolute times.
        lines(&dir.path().join("out.pftrace"))
    };
    let (at_0, at_1000) = (offset("0"), offset("1000"));
    assert_eq!(at_0.len(), at_1000.len());
    let time = |line: &String| line.split_once(' ').and_then(|(time, _)| time.parse::<i64>().ok());
    let moved = at_0
        .iter()
        .zip(&at_1000)
        .filter_map(|(a, b)| Some(time(b)? - time(a)?))
        .collect::<std::collections::BTreeSet<_>>();
    assert_eq!(moved.into_iter().collect::<Vec<_>>(), [0, 1_000_000_000_000]);
    for bad in ["old.trace=x", "3", "none.trace=3"] {
        let bad = format!("--offset={bad}");
        let output = convert(dir.path(), &[&both[..], &[&bad]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    }
}

/// What a recording in pipe mode says of itself is between its records.
#[test]
fn recordings_in_pipe_mode_have_their_description() {
    let dir = directory();
    let mut attr = perf_event_attr::new(1, 0);
    let flags = SampleFlags::IP | SampleFlags::TID | SampleFlags::TIME | SampleFlags::CPU;
    attr.sample_type = flags.bits();
    let event = RecordedEvent { name: "named".into(), attr, ids: vec![7] };
    let mut features = Features::default();
    features.hostname = Some("machine".into());
    let sample = [9 | 2 << 32 | 40 << 48, 0x10_0000, 5 | 5 << 32, 1000, 1];
    let sample: Vec<u8> = sample.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
    let file = fs::File::create(dir.path().join("file.data")).unwrap();
    let mut file = FileWriter::new(file, vec![event.clone()]).unwrap();
    file.record(RawRecord::split_first(&sample, 0).unwrap().0).unwrap();
    file.finish(&features).unwrap();
    let pipe = fs::File::create(dir.path().join("pipe.data")).unwrap();
    let mut pipe = PipeWriter::new(pipe, &[event], &features).unwrap();
    pipe.record(RawRecord::split_first(&sample, 0).unwrap().0).unwrap();
    pipe.finish(&[]).unwrap();
    let [file, pipe] = ["file", "pipe"].map(|name| {
        let (input, out) = (format!("{name}.data"), format!("{name}.pftrace"));
        let output = convert(dir.path(), &[&input, "-o", &out, "--uncompressed"]);
        let stderr = text(&output.stderr);
        assert!(output.status.success() && stderr.contains("1 sample of named"), "{stderr}");
        // On the clock of perf.
        let both = convert(dir.path(), &["shop.trace", &input, "-o", "both.pftrace"]);
        let refused = text(&both.stderr);
        assert!(!both.status.success() && refused.contains("CLOCK_MONOTONIC"), "{refused}");
        lines(&dir.path().join(out))
    });
    assert_eq!(file, pipe);
}

#[test]
fn each_trace_is_a_process_of_its_own() {
    let dir = directory();
    fs::copy(trace(), dir.path().join("other.trace")).unwrap();
    let processes = |args: &[&str]| {
        let args = [&["shop.trace", "other.trace", "-o", "out.pftrace"], args].concat();
        let output = convert(dir.path(), &args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = lines(&dir.path().join("out.pftrace"));
        let named = |name: &str| {
            let track = lines.iter().find_map(|l| l.strip_prefix(&format!("track {name} ")));
            track.unwrap_or_else(|| panic!("{name}")).to_owned()
        };
        (named("one"), named("two"))
    };
    let names = ["--name", "shop.trace=one", "--name", "other.trace=two"];
    let (one, two) = processes(&names);
    assert_ne!(one, two);
    let pids = ["--pid", "shop.trace=77", "--pid", "other.trace=78"];
    let (one, two) = processes(&[&names[..], &pids].concat());
    assert!(one.starts_with("77") && two.starts_with("78"), "{one} {two}");
    let args = ["shop.trace", "other.trace", "-o", "out.pftrace", "--pid", "77"];
    assert_eq!(convert(dir.path(), &args).status.code(), Some(2), "whose is it?");
}

/// Options with a value for each file name the files of a directory.
#[test]
fn the_files_of_a_directory_have_options() {
    let dir = directory();
    fs::create_dir(dir.path().join("in")).unwrap();
    fs::rename(dir.path().join("shop.trace"), dir.path().join("in/shop.trace")).unwrap();
    let alone = ["in", "-o", "out.pftrace", "--pid", "77", "--name", "one"];
    let output = convert(dir.path(), &alone);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let track = |name: &str| {
        let lines = lines(&dir.path().join("out.pftrace"));
        lines.iter().any(|line| line.starts_with(&format!("track {name}")))
    };
    assert!(track("one 77"));
    // The clock of the older trace needs an offset, which the failure asks for.
    let old = trace().with_file_name("go1.21-mixed.trace.gz");
    fs::copy(old, dir.path().join("in/old.trace")).unwrap();
    let both = ["in", "-o", "out.pftrace", "--name", "in/shop.trace=two"];
    let output = convert(dir.path(), &both);
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("triscope: in/old.trace: its clock cannot be related"), "{stderr}");
    for output in ["out.pftrace", "out.html", "out.svg"] {
        let offset = ["in", "-o", output, "--offset", "in/old.trace=12.5"];
        let output = convert(dir.path(), &offset);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let output = convert(dir.path(), &[&both[..], &["--offset=in/old.trace=12.5"]].concat());
    assert!(output.status.success() && track("two"), "{}", text(&output.stderr));
    for option in ["--offset=in=12.5", "--pid=in=7", "--name=in=x", "--pid=7"] {
        let output = convert(dir.path(), &["in", "-o", "out.pftrace", option]);
        assert_eq!(output.status.code(), Some(2), "{option}: {}", text(&output.stderr));
    }
}

/// A recording of the kernel has the process ids and names of all programs.
#[test]
fn a_recording_of_the_kernel_takes_no_process_id() {
    let dir = directory();
    recording_of_files(1, &dir.path().join("perf.data"));
    let before = names(dir.path());
    for option in ["--pid=perf.data=7", "--name=perf.data=x"] {
        for output in ["out.pftrace", "out.folded"] {
            let output = convert(dir.path(), &["perf.data", "-o", output, option]);
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{stderr}");
            assert!(
                stderr.starts_with("triscope: perf.data: has the process ids and "),
                "{stderr}"
            );
            assert_eq!(names(dir.path()), before);
        }
    }
}

#[test]
fn a_trace_that_is_cut_by_a_byte_names_the_option_that_helps() {
    let dir = directory();
    let whole = fs::read(trace()).unwrap();
    fs::write(dir.path().join("cut.trace"), &whole[..whole.len() - 1]).unwrap();
    let output = convert(dir.path(), &["cut.trace", "-o", "out.pftrace"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--recover"), "{}", text(&output.stderr));
    let output = convert(dir.path(), &["cut.trace", "-o", "out.pftrace", "--recover"]);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("out.pftrace (partial): "), "{stderr}");
}

#[test]
fn help_has_examples() {
    let output = convert(Path::new("."), &["--help"]);
    let help = text(&output.stdout);
    for part in ["https://ui.perfetto.dev", "triscope convert trace.out -o", "--recover"] {
        assert!(help.contains(part), "{part}");
    }
}

#[test]
fn a_trace_of_which_nothing_is_shown_says_so() {
    let dir = directory();
    let trace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../nettrace/tests/data/v6-record-trace-pid.nettrace");
    let output = convert(dir.path(), &[trace.to_str().unwrap(), "-o", "out.pftrace"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("nothing of the trace can be shown"), "{errors}");
    assert!(errors.contains("32 Universal.System/ProcessMapping"), "{errors}");
    assert!(!errors.contains("open it"), "{errors}");
    assert_eq!(names(dir.path()), ["shop.trace"], "no file is left");
}

/// As on a full disk, or where the reader of a pipe has ended.
#[test]
fn without_room_for_messages_the_file_is_written() {
    let dir = directory();
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.current_dir(dir.path()).args(["convert", "shop.trace", "-o", "x.pftrace"]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert!(command.stderr(full).status().unwrap().success());
    let output = convert(dir.path(), &["shop.trace", "-o", "y.pftrace"]);
    assert!(output.status.success() && !output.stderr.is_empty());
    let [x, y] = ["x", "y"].map(|name| fs::read(dir.path().join(name).with_extension("pftrace")));
    assert_eq!(x.unwrap(), y.unwrap());
}
