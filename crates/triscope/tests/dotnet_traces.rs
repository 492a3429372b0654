//! `triscope dotnet` and `triscope convert` with .NET traces: recorded ones, and live ones of real
//! processes.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "these are tests")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::dotnet::{Runtime, Target};
use testkit::nettrace::assemble;
use testkit::process::Running;

/// A capture of the crate `nettrace`.
fn capture(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nettrace/tests/data");
    dir.join(name).to_str().unwrap().to_owned()
}

/// The program, with ports in the temporary directory, and without those of the user.
fn triscope() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_triscope"));
    command.env_remove("XDG_RUNTIME_DIR").env_remove("DOTNET_DiagnosticPorts");
    command
}

struct Ran {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

fn run(args: &[&str]) -> Ran {
    run_in(args, None)
}

fn run_in(args: &[&str], tmpdir: Option<&Path>) -> Ran {
    let mut command = triscope();
    command.args(args).stdin(Stdio::null());
    if let Some(tmpdir) = tmpdir {
        command.env("TMPDIR", tmpdir);
    }
    let output = command.output().unwrap();
    Ran {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code(),
    }
}

/// What a command prints that has to succeed.
fn ok(args: &[&str]) -> String {
    let ran = run(args);
    assert_eq!(ran.code, Some(0), "{args:?}\n{}", ran.stderr);
    ran.stdout
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn stats_have_the_shape_and_numbers_of_the_known_answers() {
    let mut checked = 0;
    for file in std::fs::read_dir(capture("expect")).unwrap() {
        let path = file.unwrap().path();
        let expected: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let trace = capture(path.file_stem().unwrap().to_str().unwrap());
        let got: Value = serde_json::from_str(&ok(&["dotnet", "stats", "--json", &trace])).unwrap();
        assert_eq!(got, expected, "{trace}");
        let text = ok(&["dotnet", "stats", &trace]);
        assert!(text.contains(&format!("\nevents           {}\n", expected["events"])), "{text}");
        checked += 1;
    }
    assert!(checked >= 6, "{checked}");
}

#[test]
fn events_are_printed_as_text_and_as_json() {
    let trace = capture("t10-activity.nettrace");
    let text = ok(&["dotnet", "events", &trace, "--event", "Str"]);
    assert_eq!(text.lines().count(), 91);
    let first = "2024.396666237   28683 Rust-DiagIpc-Test/Str a=h\u{e9}llo-\u{1F600}-27932 \
                 n=27932 b=z\u{100}z";
    assert_eq!(text.lines().next(), Some(first));

    let json =
        lines(&ok(&["dotnet", "events", &trace, "--json", "--provider", "Rust-DiagIpc-Test"]));
    assert_eq!(json.len(), 1_088, "all but ProcessInfo");
    let start = json.iter().find(|e| e["name"] == "WorkStart").unwrap();
    assert_eq!(start["fields"]["id"], 279_320);
    assert_eq!(start["activity_path"], "//1/225");
    assert_eq!((&start["tid"], &start["pid"]), (&28_683.into(), &28_643.into()));
    let bytes = json.iter().find(|e| e["name"] == "Arr").unwrap();
    assert_eq!(bytes["payload"], "040000000102031c", "no runtime describes a byte array");
    let times: Vec<i64> = json.iter().map(|e| e["time_ns"].as_i64().unwrap()).collect();
    assert!(times.is_sorted());
}

/// The checksum of an id has the number of the process in its container.
#[test]
fn activities_in_containers_are_printed_as_paths() {
    let mut stream = assemble::V6::new();
    // Size, index, process id 4242, thread id.
    stream.block(6, &[6, 0, 1, 2, 0x92, 0x21, 3, 11]);
    // An event without fields.
    let (provider, name) = (assemble::utf8("Own"), assemble::utf8("Work"));
    let row = [vec![1], provider, vec![1], name, vec![0, 0, 2, 0, 9, 0]].concat();
    stream.block(3, &[&[0, 0][..], &(row.len() as u16).to_le_bytes(), &row].concat());
    // The numbers 1 and 2, and the checksum with process 1.
    let checksum = (0x12 + 0x599d_99ad_u32) ^ 1;
    let id = [&[0x12][..], &[0; 11], &checksum.to_le_bytes()].concat();
    // A list of one label: the activity.
    stream.block(8, &[&[1, 0, 0, 0, 1, 0, 0, 0, 1 | 0x80][..], &id].concat());
    stream.compressed(&assemble::blob(&[0xd7, 1, 0, 0, 0, 1, 5, 1], &[]));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("linux.nettrace");
    std::fs::write(&file, stream.end()).unwrap();
    let trace = file.to_str().unwrap();
    let text = ok(&["dotnet", "events", trace]);
    assert!(text.ends_with(" Own/Work activity=//1/2\n"), "{text}");
    assert_eq!(lines(&ok(&["dotnet", "events", trace, "--json"]))[0]["activity_path"], "//1/2");
}

/// An event that declares an `int` (type code 9) and has two bytes.
#[test]
fn a_payload_that_cannot_be_decoded_is_printed_with_the_error() {
    let fields = [&1u32.to_le_bytes()[..], &9u32.to_le_bytes(), &assemble::utf16z("n")].concat();
    let stream = assemble::v4_named("Own", 1, "Short", &fields, &[0xab, 0xcd]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("short.nettrace");
    std::fs::write(&file, stream).unwrap();
    let trace = file.to_str().unwrap();
    let text = ok(&["dotnet", "events", trace]);
    assert!(text.contains("Own/Short error=\"payload of 2 bytes does not match"), "{text}");
    assert!(text.ends_with(" payload=abcd\n"), "{text}");
    let event = &lines(&ok(&["dotnet", "events", trace, "--json"]))[0];
    assert_eq!((&event["payload"], &event["fields"]), (&"abcd".into(), &serde_json::json!({})));
    assert!(
        event["error"].as_str().is_some_and(|e| e.starts_with("payload of 2 bytes")),
        "{event}"
    );
}

/// Fields of an anonymous type have their names, dates are readable.
#[test]
fn self_describing_events_are_printed_with_their_fields() {
    let text = ok(&["dotnet", "events", &capture("t9-shapes.nettrace"), "--event", "Money"]);
    let first = text.lines().next().unwrap();
    assert!(first.contains("Triscope-Shapes/Money Amount=-"), "{first}");
    assert!(first.ends_with(" T=2021-02-03T04:05:06.0000000Z"), "{first}");
}

#[test]
fn counters_of_a_trace_are_values_per_second() {
    let trace = capture("t10-counters.nettrace");
    let values = lines(&ok(&["dotnet", "counters", &trace, "--format", "json"]));
    assert_eq!(values.len(), 124);
    let rate = values.iter().find(|v| v["name"] == "incs").unwrap();
    assert_eq!(rate["kind"], "rate");
    assert!((50.0..200.0).contains(&rate["value"].as_f64().unwrap()), "{rate}");
    let csv = ok(&["dotnet", "counters", &trace, "--format", "csv"]);
    assert!(csv.starts_with("time_utc,time_s,provider,counter,tags,kind,value,unit\n"), "{csv}");
    assert!(csv.lines().nth(1).unwrap().starts_with("2026-11-21T01:24:22.259Z,1759.478738241,"));
    assert_eq!(csv.lines().count(), 125);
    for format in [&["--format", "csv"][..], &[]] {
        assert_eq!(ok(&[&["dotnet", "counters", &trace, "-o", "-"], format].concat()), csv);
    }
    let prometheus = ok(&["dotnet", "counters", &trace, "--format", "prom"]);
    let to = ok(&["dotnet", "counters", &trace, "--format", "prom", "-o", "-"]);
    assert!(to == prometheus && to.contains("\n# TYPE "), "{to}");
    let table = ok(&["dotnet", "counters", &trace, "--format", "table"]);
    assert!(table.contains("    Request Time ") && !table.contains('\x1b'), "{table}");
}

#[test]
fn counters_are_selected_by_source_and_name() {
    let trace = capture("t10-counters.nettrace");
    let wanted = "System.Runtime[cpu-usage,gc-heap-size],Rust-DiagIpc-SelfDesc[incs]";
    let values =
        lines(&ok(&["dotnet", "counters", &trace, "--counters", wanted, "--format", "json"]));
    let names: std::collections::BTreeSet<_> =
        values.iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(Vec::from_iter(names), ["cpu-usage", "gc-heap-size", "incs"]);
    let ran = run(&["dotnet", "counters", &trace, "--counters", "System.Runtime[cpu-usage"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("no ] after System.Runtime["), "{}", ran.stderr);
}

#[test]
fn counters_are_written_for_prometheus() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.prom");
    let trace = capture("t9-metrics.nettrace");
    ok(&["dotnet", "counters", &trace, "-o", file.to_str().unwrap()]);
    let text = std::fs::read_to_string(&file).unwrap();
    let sample =
        "system_runtime_dotnet_gc_last_collection_heap_size{gc_heap_generation=\"loh\"} 1600448\n";
    assert!(text.contains(sample), "{text}");
    // A metric is described once, before its samples; every line is a comment or a sample.
    let mut described = std::collections::HashSet::new();
    for line in text.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(rest) => assert!(described.insert(rest.split(' ').next().unwrap()), "{line}"),
            None if line.starts_with("# HELP ") => {}
            None => {
                let name = line.split(['{', ' ']).next().unwrap();
                assert!(described.contains(name), "{line}");
                line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
            }
        }
    }
    let ran = run(&["dotnet", "counters", &trace, "-o", "counters.pdf"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("use .csv, .json or .prom"), "{}", ran.stderr);
}

#[test]
fn counters_do_not_replace_their_trace() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("app.nettrace");
    let content = std::fs::read(capture("t10-counters.nettrace")).unwrap();
    std::fs::write(&trace, &content).unwrap();
    let trace = trace.to_str().unwrap();
    for format in ["csv", "json", "prometheus"] {
        let ran = run(&["dotnet", "counters", trace, "--format", format, "-o", trace]);
        assert_eq!(ran.code, Some(1), "{format}");
        assert!(ran.stderr.contains("is the input"), "{}", ran.stderr);
        assert!(std::fs::read(trace).unwrap() == content, "{format}");
    }
}

#[test]
fn a_wrong_command_line_has_a_status_of_its_own() {
    for (args, error) in [
        ("counters 1 --format table -o x.csv", "a table goes to the terminal"),
        ("collect 1 --profile nosuch", "there is no profile nosuch"),
        ("collect 1 --clrevents nosuch", "no keyword nosuch"),
        ("collect 1 --clrevents gc --clreventlevel x", "a level is 0 to 5"),
        ("collect 1 --providers A:x", "A:x"),
        ("collect --resume-runtime false -- app", "nothing else can resume COMMAND"),
        ("collect 1 -- app", "either a process or a COMMAND"),
        ("info --diagnostic-port p,foo", "listen or connect, not foo"),
        ("set-env 1234", "no variables specified"),
        ("set-env x A=1", "x: is not a PID"),
        ("set-env 1234 A=", "cannot be set to an empty value"),
    ] {
        let words: Vec<_> = ["dotnet"].into_iter().chain(args.split(' ')).collect();
        let ran = run(&words);
        assert_eq!(ran.code, Some(2), "{args}: {}", ran.stderr);
        assert!(ran.stderr.contains(error), "{args}: {}", ran.stderr);
    }
}

/// Events of `System.Diagnostics.Metrics`: a value of each meter's histogram, and a conflict.
fn meters(names: &[&str]) -> Vec<u8> {
    let events: Vec<_> = names.iter().map(|name| histogram(name, "0.5=1.5", 12, 34.5)).collect();
    of_meters(&[&[assemble::blob(&[0xc7, 2, 0, 9, 0, 9, 5], &[])], &events[..]].concat())
}

/// A value of a meter's histogram.
fn histogram(meter: &str, quantiles: &str, count: i32, sum: f64) -> Vec<u8> {
    let mut payload = [meter, "latency", "ms", "", quantiles].map(assemble::utf16z).concat();
    payload.extend(count.to_le_bytes());
    payload.extend(sum.to_le_bytes());
    assemble::blob(&[0xc7, 1, 0, 9, 0, 9, 5], &payload)
}

/// A trace with events of meters: 1 is a histogram, 2 a conflict, 3 an error, 4 a counter of the event source
/// `Shop`.
fn of_meters(events: &[Vec<u8>]) -> Vec<u8> {
    let provider = "System.Diagnostics.Metrics";
    let texts = ["meterName", "instrumentName", "unit", "tags", "quantiles"].map(|name| (name, 18));
    let mut fields = 7_u32.to_le_bytes().to_vec();
    for (name, ty) in texts.into_iter().chain([("count", 9), ("sum", 14u32)]) {
        fields.extend(ty.to_le_bytes());
        fields.extend(assemble::utf16z(name));
    }
    let value = assemble::metadata(provider, 6, 0, "HistogramValuePublished", 0, &fields);
    let name = "MultipleSessionsConfiguredIncorrectlyError";
    let mut conflict = assemble::metadata(provider, 17, 0, name, 0, &[0; 4]);
    conflict[0] = 2;
    let described = |fields: &[(&str, u32)]| {
        let mut described = (fields.len() as u32).to_le_bytes().to_vec();
        for (name, ty) in fields {
            described.extend(ty.to_le_bytes());
            described.extend(assemble::utf16z(name));
        }
        described
    };
    let fields = described(&[("sessionId", 18), ("errorMessage", 18)]);
    let mut error = assemble::metadata(provider, 11, 0, "Error", 0, &fields);
    error[0] = 3;
    let fields = described(&[("Name", 18), ("Mean", 14)]);
    let mut counter = assemble::metadata("Shop", 1, 0, "EventCounters", 0, &fields);
    counter[0] = 4;
    let types = [value, conflict, error, counter].map(|ty| assemble::blob(&[0x80, 0], &ty));
    assemble::Stream::v4()
        .compressed("MetadataBlock", &types.concat())
        .compressed("EventBlock", &events.concat())
        .end()
}

/// A value of a counter of the event source `Shop`.
fn event_counter(name: &str, mean: f64) -> Vec<u8> {
    let payload = [assemble::utf16z(name), mean.to_le_bytes().to_vec()].concat();
    assemble::blob(&[0xc7, 4, 0, 9, 0, 9, 5], &payload)
}

/// An id of metadata has another meaning after a flush.
#[test]
fn event_types_after_a_flush_have_names() {
    let mut stream = assemble::V6::new();
    // Size, index, process id, thread id.
    stream.block(6, &[5, 0, 1, 2, 10, 3, 11]);
    let declare = |stream: &mut assemble::V6, provider, name| {
        let mut row = [&[1], &*assemble::utf8(provider), &[1], &*assemble::utf8(name)].concat();
        row.extend([0, 0, 0, 0]);
        let size = (row.len() as u16).to_le_bytes();
        stream.block(3, &[&[0, 0], &size[..], &row].concat());
        stream.compressed(&assemble::blob(&[0xc7, 1, 0, 1, 0, 1, 5], &[]));
    };
    declare(&mut stream, "A", "first");
    stream.block(4, &[&6i64.to_le_bytes()[..], &2u32.to_le_bytes(), &[0; 4]].concat());
    declare(&mut stream, "B", "second");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("flush.nettrace");
    std::fs::write(&file, stream.end()).unwrap();
    let text = ok(&["dotnet", "stats", file.to_str().unwrap()]);
    assert!(text.contains("A/first (1 v0)") && text.contains("B/second (1 v0)"), "{text}");
}

/// As `System.Runtime` since .NET 9.
#[test]
fn an_event_source_and_a_meter_can_have_the_same_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("meters.nettrace");
    let events =
        [event_counter("a", 1.0), event_counter("b", 2.0), histogram("Shop", "0.5=1.5", 1, 1.5)];
    std::fs::write(&file, of_meters(&events)).unwrap();
    let file = file.to_str().unwrap();
    for (args, shown) in [
        (&["--counters", "Shop[a]", "--meter", "Shop"][..], &["a", "latency"][..]),
        (&["--counters", "Shop", "--meter", "Other"], &["a", "b"]),
        (&["--counters", "Other", "--meter", "Shop"], &["latency"]),
        (&["--counters", "Shop[a,latency]"], &["a", "latency"]),
        (&["--meter", "Shop"], &["a", "b", "latency"]),
        (&["--counters", "Other"], &[]),
        (&["--counters", "shop[a]"], &["a"]),
        (&[], &["a", "b", "latency"]),
    ] {
        let ran = run(&[&["dotnet", "counters", file, "--format", "json"], args].concat());
        let names: Vec<_> = lines(&ran.stdout).iter().map(|v| v["name"].clone()).collect();
        assert_eq!(names, shown, "{args:?}");
    }
    // A counter with the name of the instrument too.
    let path = dir.path().join("same.nettrace");
    let events = [event_counter("latency", 2.0), histogram("Shop", "0.5=1.5", 1, 1.5)];
    std::fs::write(&path, of_meters(&events)).unwrap();
    let path = path.to_str().unwrap();
    let table = ok(&["dotnet", "counters", path, "--format", "table"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.contains("2.000") && table.contains("latency p50"), "{table}");
    let text = ok(&["dotnet", "counters", path, "--format", "prometheus"]);
    let values: Vec<_> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
    let expected = [
        "# TYPE shop_latency gauge",
        "shop_latency 2",
        "# TYPE shop_latency_meter summary",
        "shop_latency_meter{quantile=\"0.5\"} 1.5",
        "shop_latency_meter_sum 1.5",
        "shop_latency_meter_count 1",
    ];
    assert_eq!(values, expected);
}

/// Two names that become one are two metrics.
#[test]
fn metrics_of_prometheus_have_different_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("same.nettrace");
    let events = [
        event_counter("queue-size", 1.0),
        event_counter("queue.size", 2.0),
        event_counter("latency_sum", 3.0),
        histogram("Shop", "0.5=1.5", 1, 1.5),
        histogram("shop", "0.5=2.5", 2, 2.5),
    ];
    std::fs::write(&path, of_meters(&events)).unwrap();
    let text = ok(&["dotnet", "counters", path.to_str().unwrap(), "--format", "prometheus"]);
    let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        "shop_latency{quantile=\"0.5\"} 1.5",
        "shop_latency_sum 1.5",
        "shop_latency_count 1",
        "shop_latency_2{quantile=\"0.5\"} 2.5",
        "shop_latency_2_sum 2.5",
        "shop_latency_2_count 2",
        "shop_latency_sum_2 3",
        "shop_queue_size 1",
        "shop_queue_size_2 2",
    ];
    assert_eq!(values, expected);
}

/// A value of the gauge `size` of the meter `Shop`: version of the meter, number of the instrument, value.
type Gauge = (&'static str, i32, &'static str);

/// A trace with the values of these collections.
fn gauges(collections: &[&[Gauge]]) -> Vec<u8> {
    let fields = [
        ("meterName", 18),
        ("meterVersion", 18),
        ("instrumentName", 18),
        ("tags", 18),
        ("lastValue", 18),
        ("instrumentId", 9u32),
    ];
    let mut described = (fields.len() as u32).to_le_bytes().to_vec();
    for (name, ty) in fields {
        described.extend(ty.to_le_bytes());
        described.extend(assemble::utf16z(name));
    }
    let provider = "System.Diagnostics.Metrics";
    let value = assemble::metadata(provider, 5, 2, "GaugeValuePublished", 0, &described);
    let mut start = assemble::metadata(provider, 2, 0, "CollectionStart", 0, &[0; 4]);
    start[0] = 2;
    let types = [value, start].map(|ty| assemble::blob(&[0x80, 0], &ty));
    let mut events = Vec::new();
    for values in collections {
        events.extend(assemble::blob(&[0xc7, 2, 0, 9, 0, 9, 5], &[]));
        for (version, id, value) in *values {
            let texts = ["Shop", *version, "size", "k=v", *value].map(assemble::utf16z).concat();
            let payload = [texts, id.to_le_bytes().to_vec()].concat();
            events.extend(assemble::blob(&[0xc7, 1, 0, 9, 0, 9, 5], &payload));
        }
    }
    assemble::Stream::v4()
        .compressed("MetadataBlock", &types.concat())
        .compressed("EventBlock", &events)
        .end()
}

/// Instruments that report in the same collections are apart. One that follows another replaces it.
#[test]
fn instruments_of_the_same_name_are_apart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("meters.nettrace");
    let path = file.to_str().unwrap();
    let values = |collections: &[&[Gauge]]| {
        std::fs::write(&file, gauges(collections)).unwrap();
        let text = ok(&["dotnet", "counters", path, "--format", "prometheus"]);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let of = |id: i32, value| (if id == 1 { "1.0" } else { "2.0" }, id, value);
    let line = |(version, id, value): Gauge| {
        let labels = format!("k=\"v\",meter_version=\"{version}\",instrument_id=\"{id}\"");
        format!("shop_size{{{labels}}} {value}")
    };
    let (first, second) = ([of(1, "1"), of(2, "2")], [of(2, "4"), of(1, "3")]);
    assert_eq!(values(&[&first]), first.map(line));
    assert_eq!(values(&[&first, &second]), [of(1, "3"), of(2, "4")].map(line));
    let table = ok(&["dotnet", "counters", path, "--format", "table"]);
    let labels = ["1.0,instrument_id=1] ", "2.0,instrument_id=2] "];
    let labels = labels.map(|label| table.contains(&format!("size [k=v,meter_version={label}")));
    assert_eq!(labels, [true; 2], "{table}");
    let json = lines(&ok(&["dotnet", "counters", path, "--format", "json"]));
    assert_eq!((&json[1]["meter_version"], &json[1]["instrument_id"]), (&"2.0".into(), &2.into()));

    // A third one begins, and the others continue.
    let third = [of(3, "5"), of(1, "6"), of(2, "7")];
    let sorted = [third[1], third[2], third[0]];
    for number in 1..4 {
        let collections = [&[&first[..]][..], &vec![&third[..]; number]].concat();
        assert_eq!(values(&collections), sorted.map(line));
    }
    // They end.
    let [a, b, c] = ["5", "6", "7"].map(|value| [of(3, value)]);
    assert_eq!(values(&[&first, &a, &b]), [first[0], first[1], b[0]].map(line));
    assert_eq!(values(&[&first, &a, &b, &c]), ["shop_size{k=\"v\"} 7"]);
    // Each has one value.
    let once: Vec<[Gauge; 1]> = (1..200).map(|id| [of(id, "1")]).collect();
    let once: Vec<&[Gauge]> = once.iter().map(|values| &values[..]).collect();
    assert_eq!(values(&once).len(), 3);
}

/// Those that have been shown stay.
#[test]
fn too_many_instruments_of_the_same_name_are_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("meters.nettrace");
    let values: Vec<Gauge> = (1..=66).map(|id| ("", id, "1")).collect();
    std::fs::write(&file, gauges(&[&values, &values])).unwrap();
    let ran = run(&["dotnet", "counters", file.to_str().unwrap(), "--format", "prometheus"]);
    let shown: Vec<_> = ran.stdout.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(shown.len(), 64);
    assert!(shown[0].contains("instrument_id=\"1\"") && shown[63].contains("id=\"64\""));
    assert_eq!(ran.stderr.matches("only 64 instruments").count(), 1, "{}", ran.stderr);
}

/// A sample that occurs twice makes Prometheus refuse the file.
#[test]
fn the_counters_of_several_processes_are_apart() {
    let mut stream = assemble::V6::new();
    // Threads 1 and 2. Size, index, process id, thread id.
    stream.block(6, &[5, 0, 1, 2, 41, 3, 41, 5, 0, 2, 2, 42, 3, 42]);
    let (text, double) = (18, 14);
    let of_gauge = ["meterName", "instrumentName", "tags", "lastValue"].map(|name| (name, text));
    let of_counter = [("Name", text), ("Mean", double)];
    let types = [
        ("System.Diagnostics.Metrics", "GaugeValuePublished", &of_gauge[..]),
        ("Shop", "EventCounters", &of_counter),
    ];
    let mut declared = vec![0, 0];
    for (id, (provider, name, fields)) in (1u8..).zip(types) {
        let names = [assemble::utf8(provider), vec![id], assemble::utf8(name)].concat();
        let mut row = [&[id], &names[..], &[fields.len() as u8, 0]].concat();
        for (name, ty) in fields {
            let field = [assemble::utf8(name), vec![*ty]].concat();
            row.extend([&[field.len() as u8, 0], &field[..]].concat());
        }
        row.extend([0, 0]);
        declared.extend([&(row.len() as u16).to_le_bytes()[..], &row].concat());
    }
    stream.block(3, &declared);
    // The second process reports half as often.
    for (thread, value) in [(1u8, 1u8), (1, 2), (2, 3), (1, 4)] {
        let gauge = ["Shop", "size", "k=v", &value.to_string()].map(assemble::utf16z).concat();
        let counter = [assemble::utf16z("load"), f64::from(value).to_le_bytes().to_vec()].concat();
        for (id, payload) in [(1, gauge), (2, counter)] {
            let header = [0xc7, id, 0, thread, 0, thread, 5];
            stream.compressed(&assemble::blob(&header, &payload));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("two.nettrace");
    std::fs::write(&file, stream.end()).unwrap();
    let file = file.to_str().unwrap();
    let text = ok(&["dotnet", "counters", file, "--format", "prometheus"]);
    let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        "shop_load{pid=\"41\"} 4",
        "shop_load{pid=\"42\"} 3",
        "shop_size{k=\"v\",pid=\"41\"} 4",
        "shop_size{k=\"v\",pid=\"42\"} 3",
    ];
    assert_eq!(values, expected);
    let table = ok(&["dotnet", "counters", file, "--format", "table"]);
    for label in ["load [pid=41] ", "load [pid=42] ", "size [k=v,pid=41] ", "size [k=v,pid=42] "] {
        assert!(table.contains(label), "{table}");
    }
}

/// An event of a meter: its name, its fields with their types, and its payload.
type Metric<'a> = (&'a str, &'a [(&'a str, u32)], Vec<u8>);

/// A trace with these events.
fn of_metrics(events: &[Metric<'_>]) -> Vec<u8> {
    let (mut types, mut blobs) = (Vec::new(), Vec::new());
    for (number, (name, fields, payload)) in (1u8..).zip(events) {
        let mut described = (fields.len() as u32).to_le_bytes().to_vec();
        for (name, ty) in *fields {
            described.extend(ty.to_le_bytes());
            described.extend(assemble::utf16z(name));
        }
        let provider = "System.Diagnostics.Metrics";
        let mut ty = assemble::metadata(provider, number.into(), 0, name, 0, &described);
        ty[0] = number;
        types.extend(assemble::blob(&[0x80, 0], &ty));
        blobs.extend(assemble::blob(&[0xc7, number, 0, 9, 0, 9, 5], payload));
    }
    assemble::Stream::v4()
        .compressed("MetadataBlock", &types)
        .compressed("EventBlock", &blobs)
        .end()
}

/// .NET 6 and 7 report the percentiles of a histogram alone.
#[test]
fn a_histogram_without_its_sum_has_percentiles() {
    let fields =
        ["meterName", "instrumentName", "unit", "tags", "quantiles"].map(|name| (name, 18));
    let values = ["Shop", "latency", "ms", "", "0.5=1.5"].map(assemble::utf16z).concat();
    let event = ("HistogramValuePublished", &fields[..], values);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("meters.nettrace");
    std::fs::write(&file, of_metrics(&[event.clone(), event])).unwrap();
    let counters = |format| ok(&["dotnet", "counters", file.to_str().unwrap(), "--format", format]);
    assert_eq!(counters("table"), "Shop\n    latency p50            1.500 ms\n");
    let csv = counters("csv");
    let rows: Vec<_> = csv.lines().skip(1).map(|row| row.splitn(3, ',').nth(2).unwrap()).collect();
    assert_eq!(rows, ["Shop,latency,Percentile=50,percentile,1.5,ms"; 2]);
    let json = &lines(&counters("json"))[0];
    assert_eq!((&json["value"], &json["quantiles"][0][1]), (&Value::Null, &1.5.into()));
    let prometheus = counters("prometheus");
    let samples: Vec<_> = prometheus.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples, ["shop_latency{quantile=\"0.5\"} 1.5"]);
}

/// The percentiles of an earlier interval do not last.
#[test]
fn an_idle_histogram_without_its_sum_has_no_percentiles() {
    let fields =
        ["meterName", "instrumentName", "unit", "tags", "quantiles"].map(|name| (name, 18));
    let event = |quantiles| {
        let values = ["Shop", "latency", "ms", "", quantiles].map(assemble::utf16z).concat();
        ("HistogramValuePublished", &fields[..], values)
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("meters.nettrace");
    std::fs::write(&file, of_metrics(&[event("0.5=1.5"), event("")])).unwrap();
    let counters = |format| {
        let ran = run(&["dotnet", "counters", file.to_str().unwrap(), "--format", format]);
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{format}");
        ran.stdout
    };
    assert_eq!(counters("table"), "Shop\n    latency        no values ms\n");
    let csv = counters("csv");
    let rows: Vec<_> = csv.lines().skip(1).map(|row| row.splitn(3, ',').nth(2).unwrap()).collect();
    assert_eq!(rows, ["Shop,latency,Percentile=50,percentile,1.5,ms"]);
    let prometheus = counters("prometheus");
    let samples: Vec<_> = prometheus.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples, [""; 0]);
}

/// Of a session that has begun within a collection of another client, whose interval can be any.
#[test]
fn a_rate_without_its_interval_is_not_shown() {
    const DATE: u32 = 16;
    let fields = ["meterName", "instrumentName", "unit", "tags", "rate"].map(|name| (name, 18));
    let rate = |value| {
        let values = ["Shop", "sold", "", "", value].map(assemble::utf16z).concat();
        ("CounterRateValuePublished", &fields[..], values)
    };
    let times = [("intervalStartTime", DATE), ("intervalEndTime", DATE)];
    let ten_seconds = [0i64, 100_000_000].map(i64::to_le_bytes).concat();
    let start = ("CollectionStart", &times[..], ten_seconds);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("meters.nettrace");
    std::fs::write(&file, of_metrics(&[rate("70"), start, rate("80")])).unwrap();
    let json = ok(&["dotnet", "counters", file.to_str().unwrap(), "--format", "json"]);
    let values: Vec<_> = lines(&json).iter().map(|line| line["value"].clone()).collect();
    assert_eq!(values, [8.0]);
}

#[test]
fn an_idle_histogram_has_no_values() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("meters.nettrace");
    let error = ["1", "System.Exception: no\n   at A()"].map(assemble::utf16z).concat();
    let events = [
        histogram("Shop", "0.5=1.5", 1, 1.5),
        histogram("Shop", "", 0, 0.0),
        assemble::blob(&[0xc7, 3, 0, 9, 0, 9, 5], &error),
    ];
    std::fs::write(&file, of_meters(&events)).unwrap();
    let file = file.to_str().unwrap();
    let ran = run(&["dotnet", "counters", file, "--format", "table"]);
    assert_eq!(ran.stdout, "Shop\n    latency        no values ms\n");
    let message = "triscope: the runtime reported 1 error of meters: System.Exception: no\n";
    assert!(ran.stderr.contains(message), "{}", ran.stderr);
}

#[test]
fn totals_of_histograms_are_those_of_all_intervals() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("meters.nettrace");
    std::fs::write(&file, meters(&["Shop", "Shop", "Shop"])).unwrap();
    let text = ok(&["dotnet", "counters", file.to_str().unwrap(), "--format", "prometheus"]);
    let totals = "shop_latency_sum 103.5\nshop_latency_count 36\n";
    assert!(text.contains(totals), "{text}");
}

/// The runtime reports them since the start of the session.
#[test]
fn totals_of_exponential_histograms_are_the_last_ones() {
    let texts = ["meterName", "instrumentName", "unit", "tags", "buckets"].map(|name| (name, 18));
    let numbers = [("scale", 9), ("zeroCount", 11), ("count", 11)];
    let fields = [&texts[..], &numbers, &["sum", "minimum", "maximum"].map(|name| (name, 14))];
    let fields = fields.concat();
    let mut described = (fields.len() as u32).to_le_bytes().to_vec();
    for (name, ty) in fields {
        described.extend(u32::to_le_bytes(ty));
        described.extend(assemble::utf16z(name));
    }
    let name = "Base2ExponentialHistogramValuePublished";
    let described = assemble::metadata("System.Diagnostics.Metrics", 19, 1, name, 0, &described);
    let event = |count: i64| {
        let buckets = count.to_string();
        let payload = [
            ["Shop", "latency", "ms", "", &buckets].map(assemble::utf16z).concat(),
            0i32.to_le_bytes().to_vec(),
            [0, count].map(i64::to_le_bytes).concat(),
            [3.0 * count as f64, 3.0, 3.0].map(f64::to_le_bytes).concat(),
        ];
        assemble::blob(&[0xc7, 1, 0, 9, 0, 9, 5], &payload.concat())
    };
    let trace = assemble::Stream::v4()
        .compressed("MetadataBlock", &assemble::blob(&[0x80, 0], &described))
        .compressed("EventBlock", &[event(1), event(3)].concat())
        .end();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("meters.nettrace");
    std::fs::write(&file, trace).unwrap();
    let file = file.to_str().unwrap();
    let text = ok(&["dotnet", "counters", file, "--format", "prometheus"]);
    for line in [
        "# TYPE shop_latency summary\n",
        "shop_latency{quantile=\"0.5\"} 3\n",
        "shop_latency_sum 9\nshop_latency_count 3\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let json = lines(&ok(&["dotnet", "counters", file, "--format", "json"]));
    assert_eq!(json.len(), 2);
    assert_eq!((&json[1]["kind"], &json[1]["count"]), (&"histogram".into(), &3.into()));
}

#[test]
fn meters_of_other_sessions_are_not_shown_and_a_conflict_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("meters.nettrace");
    std::fs::write(&file, meters(&["Shop", "Shop.Orders", "Other"])).unwrap();
    let file = file.to_str().unwrap();
    for (meter, shown) in [
        ("Shop", &["Shop"][..]),
        ("Shop*", &["Shop", "Shop.Orders"]),
        ("Shop.Orders\\latency,Other\\size", &["Shop.Orders"]),
    ] {
        let ran = run(&["dotnet", "counters", file, "--meter", meter, "--format", "json"]);
        let names: Vec<_> = lines(&ran.stdout).iter().map(|v| v["provider"].clone()).collect();
        assert_eq!(names, shown, "{meter}");
        assert!(ran.stderr.contains("another session has other meters"), "{}", ran.stderr);
    }
}

/// The times of the two events are as far apart as possible.
#[test]
fn the_time_of_a_trace_has_a_limit() {
    let metadata = assemble::metadata("Own", 1, 0, "E", 0, &[0; 4]);
    let at = |ticks: u64| {
        let header = [&[0xc7, 1, 0, 9, 0, 9][..], &assemble::varint(ticks)].concat();
        assemble::blob(&header, &[])
    };
    // The second time is relative to the first.
    let events = [at(i64::MAX as u64), at(1)].concat();
    let trace = assemble::Stream::v4()
        .compressed("MetadataBlock", &assemble::blob(&[0x80, 0], &metadata))
        .compressed("EventBlock", &events)
        .end();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("own.nettrace");
    std::fs::write(&file, trace).unwrap();
    let text = ok(&["dotnet", "stats", file.to_str().unwrap()]);
    assert!(text.contains("events over      9223372036.854776 s"), "{text}");
}

#[test]
fn a_heap_walk_with_missing_parts_fails() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("heap.nettrace");
    // The second part of the objects: one object.
    let numbers = [1u32, 1].map(u32::to_le_bytes).concat();
    let object = [0x200u64, 24, 1, 0].map(u64::to_le_bytes).concat();
    let payload = [&numbers[..], &[7, 0], &object].concat();
    let runtime = "Microsoft-Windows-DotNETRuntime";
    std::fs::write(&file, assemble::v4(runtime, 18, 0, &[0; 4], &payload)).unwrap();
    let ran = run(&["dotnet", "gcdump", file.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stdout.contains("24 bytes in 1 objects"), "{}", ran.stdout);
    assert!(ran.stderr.contains("incomplete, as are the totals: 1 parts lost"), "{}", ran.stderr);
}

/// The stream continues after the dump, with another process.
#[test]
fn a_heap_dump_has_its_process_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let [trace, dump] = ["heap.nettrace", "heap.gcdump"].map(|name| dir.path().join(name));
    let info = |events: &[(u8, u64)]| {
        let mut stream = assemble::V6::new();
        stream.block(6, &[[5, 0, 1, 2, 10, 3, 1], [5, 0, 2, 2, 20, 3, 2]].concat());
        let [runtime, empty] = ["Microsoft-Windows-DotNETRuntime", ""].map(assemble::utf8);
        let row = [&[1][..], &runtime, &[18], &empty, &[0, 0, 2, 0, 9, 0]].concat();
        let size = (row.len() as u16).to_le_bytes();
        stream.block(3, &[&[0, 0], &size[..], &row].concat());
        // One object.
        let numbers = [0u32, 1].map(u32::to_le_bytes).concat();
        let object = [0x200u64, 24, 1, 0].map(u64::to_le_bytes).concat();
        let payload = [&numbers[..], &[7, 0], &object].concat();
        for (thread, time) in events {
            let at = assemble::varint(*time);
            let header = [&[0xc7, 1, 0, *thread, 0, *thread][..], &at].concat();
            stream.compressed(&assemble::blob(&header, &payload));
        }
        std::fs::write(&trace, stream.end()).unwrap();
        let (trace, dump) = (trace.to_str().unwrap(), dump.to_str().unwrap());
        run(&["dotnet", "gcdump", trace, "-o", dump]);
        let file = std::fs::read(dump).unwrap();
        nettrace::gcdump::HeapGraph::parse(&file).unwrap().info
    };
    let expected = info(&[(1, 2000)]);
    assert_eq!(expected.pid, 10);
    assert!(expected.collected.is_some());
    assert_eq!(info(&[(1, 2000), (2, 900_000_000_000)]), expected);
}

#[test]
fn a_heap_with_an_object_of_more_than_4_gib_has_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let [trace, dump] = ["heap.nettrace", "heap.gcdump"].map(|name| dir.path().join(name));
    let numbers = [0u32, 1].map(u32::to_le_bytes).concat();
    let object = [0x200u64, 8_000_000_024, 1, 0].map(u64::to_le_bytes).concat();
    let payload = [&numbers[..], &[7, 0], &object].concat();
    let runtime = "Microsoft-Windows-DotNETRuntime";
    std::fs::write(&trace, assemble::v4(runtime, 18, 0, &[0; 4], &payload)).unwrap();
    let (trace, dump) = (trace.to_str().unwrap(), dump.to_str().unwrap());
    // The type has no name.
    let ran = run(&["dotnet", "gcdump", trace]);
    assert!(ran.stdout.contains("8000000024 bytes in 1 objects"), "{}", ran.stdout);
    assert!(!ran.stderr.contains("GiB"), "{}", ran.stderr);
    let ran = run(&["dotnet", "gcdump", trace, "-o", dump]);
    assert!(ran.stderr.contains("1 objects, 8000000024 bytes"), "{}", ran.stderr);
    let limit = "heap.gcdump: 1 object of more than 2 GiB: written with 2 GiB";
    assert_eq!(ran.stderr.matches(limit).count(), 1, "{}", ran.stderr);
    let text = ok(&["dotnet", "gcdump", dump]);
    assert!(text.contains("2147483647 bytes in 1 objects"), "{text}");
}

#[test]
fn a_source_is_one_of_file_process_port_or_command() {
    let trace = capture("t10-counters.nettrace");
    for verb in ["events", "counters", "gc"] {
        for more in [&["-p", "1"][..], &["-n", "app"], &["--", "app"], &["--dport", "x"]] {
            let ran = run(&[&["dotnet", verb, &trace], more].concat());
            assert_eq!(ran.code, Some(2), "{verb} {more:?}: {}", ran.stderr);
            assert!(ran.stderr.contains("cannot be used with"), "{verb} {more:?}: {}", ran.stderr);
        }
        let ran = run(&["dotnet", verb, "-n", "there-is-no-such-program"]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("there-is-no-such-program"), "{}", ran.stderr);
    }
}

#[test]
fn cut_traces_are_read_to_the_cut_and_fail() {
    let trace = capture("t9-killed.nettrace");
    let ran = run(&["dotnet", "stats", "--json", &trace]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("the stream is truncated: it has no end mark at byte 40452"));
    let stats: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&stats["truncated_at"], &stats["events"]), (&40_452.into(), &3_159.into()));
}

#[test]
fn other_formats_are_named_in_the_error() {
    let ran = run(&["dotnet", "events", &capture("README.md")]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("not a .NET trace"), "{}", ran.stderr);
    let ran = run(&["dotnet", "profile", &capture("t10-filter.nettrace"), "-o", "x.pdf"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains(".speedscope.json"), "{}", ran.stderr);
    let ran = run(&["dotnet", "profile", &capture("t10-filter.nettrace"), "-o", "x.svg"]);
    assert!(ran.stderr.contains("the trace contains no samples"), "{}", ran.stderr);
    assert!(!Path::new("x.svg").exists());
}

#[test]
fn profiles_are_written_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let trace = capture("t9-killed.nettrace");
    let write = |name: &str| {
        let path = dir.path().join(name);
        // The trace is cut: what there is is written, and the exit code says so.
        let ran = run(&["dotnet", "profile", &trace, "-o", path.to_str().unwrap()]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("2535 samples"), "{}", ran.stderr);
        std::fs::read(path).unwrap()
    };
    let speedscope: Value = serde_json::from_slice(&write("p.speedscope.json")).unwrap();
    let profiles = speedscope["profiles"].as_array().unwrap();
    let samples = profiles.iter().map(|p| p["samples"].as_array().unwrap().len());
    assert_eq!(samples.sum::<usize>(), 2_535);
    let frames = speedscope["shared"]["frames"].as_array().unwrap().len();
    for profile in profiles {
        assert_eq!(
            profile["samples"].as_array().unwrap().len(),
            profile["weights"].as_array().unwrap().len()
        );
        let total: u64 =
            profile["weights"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
        assert_eq!(profile["endValue"], total);
        for frame in
            profile["samples"].as_array().unwrap().iter().flat_map(|s| s.as_array().unwrap())
        {
            assert!((frame.as_u64().unwrap() as usize) < frames);
        }
    }
    let folded = String::from_utf8(write("p.folded")).unwrap();
    let count = |l: &str| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    assert_eq!(folded.lines().map(count).sum::<u64>(), 2_535);
    assert!(write("p.pb.gz").starts_with(&[0x1f, 0x8b]));
    let svg = String::from_utf8(write("p.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
}

/// Without an output.
#[test]
fn the_hottest_methods_are_a_table() {
    let trace = capture("t9-killed.nettrace");
    // The trace is truncated.
    let table = |args: &[&str]| {
        let ran = run(&[&["dotnet", "profile", &trace], args].concat());
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        ran.stdout
    };
    let all: Value = serde_json::from_str(&table(&["--json"])).unwrap();
    let functions = all["functions"].as_array().unwrap();
    let numbers = |key: &str| -> Vec<u64> {
        functions.iter().map(|function| function[key].as_u64().unwrap()).collect()
    };
    let (own, total) = (numbers("self"), numbers("total"));
    assert!(functions.len() > 20 && own.is_sorted_by(|a, b| a >= b), "{own:?}");
    assert_eq!(
        (all["samples"].as_u64(), own.iter().sum()),
        (Some(2_535), all["total"].as_u64().unwrap())
    );
    let shares: f64 = functions.iter().map(|f| f["self_share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    assert!(own.iter().zip(&total).all(|(own, total)| own <= total));

    let text = table(&["--rows", "3"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("t9-killed.nettrace: 2535 samples of wall, "), "{text}");
    assert!(lines[1].trim_start().starts_with("SELF"), "{text}");
    for (line, function) in lines[2..5].iter().zip(functions) {
        let name = function["name"].as_str().unwrap();
        let share = format!("{:.2} %", function["self_share"].as_f64().unwrap() * 100.0);
        assert!(line.ends_with(name) && line.trim_start().starts_with(&share), "{line} {function}");
    }
    assert_eq!(lines[5], format!("{} more functions: --rows 0 prints all", functions.len() - 3));
    let most = total.iter().max().unwrap();
    let by_total: Value = serde_json::from_str(&table(&["--json", "--sort", "total"])).unwrap();
    assert_eq!(by_total["functions"][0]["total"], *most);

    let ran = run(&["dotnet", "profile", &trace, "--json", "-o", "x.svg"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}

#[test]
fn several_traces_become_one_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("both.pftrace");
    let go = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gotrace/tests/data/shop.trace");
    let (one, two) = (capture("t10-activity.nettrace"), go.to_str().unwrap());
    let text = run(&["convert", &one, two, "-o", out.to_str().unwrap()]).stderr;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].ends_with("t10-activity.nettrace: 1089 events of 1.490 s, 0 samples"));
    // They are of two boots.
    assert!(lines[3].contains("shop.trace: its clocks do not fit those of "), "{text}");
    assert!(lines[1].contains("goroutines"), "{text}");
    assert!(std::fs::metadata(&out).unwrap().len() > 10_000);

    let single = run(&["convert", &one, "-o", out.to_str().unwrap()]).stderr;
    assert!(single.contains("both.pftrace: 1089 events of 1.490 s, 0 samples, "), "{single}");
    let ran = run(&["convert", &one, "-o", &one]);
    assert!(ran.stderr.contains("is the input"), "{}", ran.stderr);
}

#[test]
fn events_have_stacks_with_the_names_of_methods() {
    let trace = "../trace-timeline/tests/data/t9-runtime.nettrace.gz";
    let text = ok(&["dotnet", "events", trace, "--stacks", "--event", "MethodJittingStarted"]);
    let is_named = |line: &str| {
        let frame = line.strip_prefix("        0x").and_then(|frame| frame.split_once(' '));
        frame.is_some_and(|(_, method)| {
            method.starts_with("System.Private.CoreLib!System.Reflection.")
        })
    };
    assert!(text.lines().any(is_named), "{text}");

    let json = ["dotnet", "events", trace, "--stacks", "--json"];
    let events = lines(&ok(&json));
    let frames = events.iter().filter_map(|event| event["stack"].as_array()).flatten();
    let (mut all, mut named) = (0, 0);
    for frame in frames {
        assert!(frame["ip"].as_str().unwrap().starts_with("0x"));
        all += 1;
        named += usize::from(frame["method"].is_string());
    }
    assert!(named * 2 > all && all > 100, "{named} of {all}");
    // Of standard input only those that were named before are known.
    let mut command = triscope();
    command.args(["dotnet", "events", "-", "--stacks", "--json"]);
    let piped = command.stdin(std::fs::File::open(trace).unwrap()).output().unwrap();
    assert_eq!(lines(std::str::from_utf8(&piped.stdout).unwrap()).len(), events.len());
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn live_processes_are_shown() {
    for runtime in Runtime::ALL {
        let mut target = Target::of(runtime).mode("mix").start();
        target.await_workload();
        let pid = target.pid().to_string();
        let live = |args: &[&str]| {
            let ran = run_in(&[&["dotnet"], args].concat(), Some(target.tmpdir()));
            assert_eq!(ran.code, Some(0), "{runtime:?} {args:?}\n{}", ran.stderr);
            ran
        };
        let stack = live(&["stack", &pid]).stdout;
        assert!(stack.contains("Workload!Workload.Run()"), "{stack}");
        assert!(stack.matches("\nthread ").count() >= 2, "{stack}");
        // .NET Core 3.1 gives its threads no names.
        let name = if runtime == Runtime::Core31 { "(dotnet)" } else { "(mix)" };
        assert!(stack.contains(name), "{runtime:?} {stack}");

        let json = live(&["gcdump", &pid, "--json"]).stdout;
        let heap: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(heap["complete"], true);
        assert!(heap["objects"].as_u64().unwrap() > 500);
        let sum: u64 =
            heap["types"].as_array().unwrap().iter().filter_map(|t| t["size"].as_u64()).sum();
        assert_eq!(heap["size"], sum);

        let file = target.tmpdir().join("heap.gcdump");
        let file = file.to_str().unwrap();
        let written = live(&["gcdump", &pid, "-o", file]);
        assert_eq!(written.stdout, "", "the file is what was asked for");
        let again: Value =
            serde_json::from_str(&ok(&["dotnet", "gcdump", file, "--json"])).unwrap();
        let objects = format!("{} objects", again["objects"]);
        assert!(written.stderr.contains(&objects), "{} {objects}", written.stderr);
        let same = ok(&["dotnet", "gcdump", file, "--baseline", file]);
        assert!(same.contains("+0 bytes in +0 objects"), "{same}");
        let grown = live(&["gcdump", &pid, "--baseline", file, "--json"]).stdout;
        let grown: Value = serde_json::from_str(&grown).unwrap();
        assert_eq!(grown["objects_before"], again["objects"]);
        let paths = ok(&["dotnet", "gcdump", file, "--roots", "System.String", "--top", "50"]);
        assert!(paths.contains("[.NET Roots]\n") && paths.contains("System.String @"), "{paths}");

        let collections = lines(&live(&["gc", &pid, "--duration", "2", "--json"]).stdout);
        assert!(collections.len() >= 2, "{collections:?}");
        assert!(collections.iter().all(|gc| gc["pause_ms"].as_f64().unwrap() > 0.0));

        let args = ["counters", &pid, "--counters", "Triscope-SelfDescribing", "--duration", "3"];
        let counters = live(&args).stdout;
        assert!(counters.contains(",Triscope-SelfDescribing,heap-size,"), "{counters}");

        let args =
            ["events", &pid, "--provider", "Triscope-Workload:0xf", "--duration", "1", "--json"];
        let events = lines(&live(&args).stdout);
        assert!(events.iter().any(|e| e["fields"]["c"] == "x"), "{events:?}");

        if runtime != Runtime::Core31 {
            // From the first moment of a program to its end.
            let mut program = triscope();
            program.args(["dotnet", "events", "--json", "--event", "MethodLoadVerbose"]);
            program.args(["--provider", "Microsoft-Windows-DotNETRuntime:0x10:5", "--"]);
            program.arg(runtime.program()).env("TMPDIR", target.tmpdir());
            program.env("WORKLOAD_MODE", "mix").env("WORKLOAD_SECONDS", "2");
            let ran = program.output().unwrap();
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            assert!(String::from_utf8_lossy(&ran.stdout).contains("MethodLoadVerbose"));
        }

        let out = target.tmpdir().join("p.folded");
        live(&["profile", &pid, "--duration", "1", "-o", out.to_str().unwrap()]);
        let folded = std::fs::read_to_string(out).unwrap();
        assert!(folded.contains("Workload!Workload.Burn(int32,int32)"), "{folded}");

        for (events, leaf) in [
            ("allocations", "[System.Byte[]] "),
            ("exceptions", ";[System.InvalidOperationException] "),
            ("contention", ";Workload!Workload.Contend()"),
        ] {
            let out = target.tmpdir().join("events.folded");
            let out = out.to_str().unwrap();
            live(&["profile", &pid, "--of", events, "--duration", "1", "-o", out]);
            let folded = std::fs::read_to_string(out).unwrap();
            assert!(folded.lines().any(|line| line.contains(leaf)), "{events}: {folded}");
        }
    }
}

/// A method has one name in all profiles.
#[test]
fn a_trace_is_equal_to_its_own_profile() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../trace-timeline/tests/data/t9-runtime.nettrace.gz");
    let trace = trace.to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("own.pb.gz");
    let profile = profile.to_str().unwrap();
    ok(&["dotnet", "profile", trace, "-o", profile]);
    // The weights are times, and those of the trace a number.
    let ran = run(&["diff", trace, profile]);
    assert_eq!(ran.code, Some(1));
    let hint = format!("{profile} has wall, samples");
    assert!(ran.stderr.contains("--samples FILE=NAME") && ran.stderr.contains(&hint), "{hint}");
    const SLEEP: &str = "System.Private.CoreLib!System.Threading.Thread.Sleep(int32)";
    let samples = format!("{profile}=samples");
    for files in [[trace, profile], [profile, trace]] {
        let args = [&["diff", "--json", "--samples", &samples][..], &files].concat();
        let same: Value = serde_json::from_str(&ok(&args)).unwrap();
        let functions = same["functions"].as_array().unwrap();
        let is_same = |of: &Value| of["before"] == of["after"];
        assert!(functions.iter().all(|f| is_same(&f["self"]) && is_same(&f["total"])), "{same}");
        let mut names = functions.iter().filter_map(|function| function["name"].as_str());
        assert!(names.any(|name| name == SLEEP), "{same}");
    }
}

/// Options of a session have no effect on a trace.
#[test]
fn options_for_a_process_are_refused_with_a_trace() {
    let trace = capture("t10-counters.nettrace");
    for (verb, option, value) in [
        ("gc", "--duration", "1"),
        ("profile", "--duration", "1"),
        ("events", "--duration", "1"),
        ("counters", "--duration", "1"),
        ("counters", "--interval", "3"),
        ("counters", "--max-time-series", "3"),
        ("counters", "--max-histograms", "3"),
        ("gcdump", "--timeout", "3"),
    ] {
        let ran = run(&["dotnet", verb, &trace, option, value]);
        let expected = format!("triscope: {option} is for a process, not for a trace\n");
        assert_eq!(
            (ran.code, ran.stderr, ran.stdout),
            (Some(2), expected, String::new()),
            "{verb}"
        );
    }
}

/// The process has the same option in all verbs.
#[test]
fn a_process_is_given_by_its_id() {
    // The largest possible pid_max is 4194304.
    let said = |option: &str| run(&["dotnet", "info", option, "4194305"]);
    for option in ["-p", "--pid", "--process-id"] {
        assert_eq!(said(option).code, Some(1), "{option}: {}", said(option).stderr);
    }
}

/// Each of the 24 calls of `GC.Collect` has its stack.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn gcs_have_the_stacks_that_triggered_them() {
    for runtime in Runtime::ALL {
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path().join("gc.nettrace");
        // The program waits until its events are enabled, and prints what it did.
        let mut collect = triscope();
        collect.args(["dotnet", "collect", "--providers"]);
        collect
            .arg("Triscope-Answers,Microsoft-Windows-DotNETRuntime:0x19:5")
            .arg("-o")
            .arg(&trace);
        let target = (runtime == Runtime::Core31)
            .then(|| Target::of(runtime).mode("answers:gc").suspended().start());
        match &target {
            // It connects to no port.
            Some(target) => collect.arg("-p").arg(target.pid().to_string()),
            None => collect.arg("--").arg(runtime.program()),
        };
        let home = target.as_ref().map_or(dir.path(), |target| target.tmpdir());
        collect.env("TMPDIR", home).env("WORKLOAD_MODE", "answers:gc").stdin(Stdio::null());
        let ran = collect.output().unwrap();
        assert!(ran.status.success(), "{runtime:?}: {}", String::from_utf8_lossy(&ran.stderr));
        let folded = dir.path().join("gc.folded");
        let paths = [&trace, &folded].map(|path| path.to_str().unwrap());
        ok(&["dotnet", "profile", paths[0], "--of", "gcs", "-o", paths[1]]);
        let folded = std::fs::read_to_string(&folded).unwrap();
        let found = folded.lines().filter(|line| {
            line.contains("Workload!Answers.Collections()") && line.contains("[Induced")
        });
        let found: u64 = found.map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
        assert_eq!(found, 24, "{runtime:?}: {folded}");
    }
}

/// Runs `triscope record --dotnet`; returns its messages and the bytes of the timeline.
fn record(dir: &Path, args: &[&str], command: &[&std::ffi::OsStr]) -> (String, Vec<u8>) {
    let out = dir.join("out.pftrace");
    let mut record = triscope();
    record.args(["record", "--uncompressed", "-o"]).arg(&out).arg("--dotnet").args(args);
    if !command.is_empty() {
        record.arg("--").args(command);
    }
    record.env("TMPDIR", dir).env("WORKLOAD_MODE", "mix").env("WORKLOAD_SECONDS", "3");
    let output = record.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    (errors, std::fs::read(out).unwrap())
}

/// As in a container: the runtime writes the ids of its own PID namespace.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_process_in_another_pid_namespace_is_that_of_the_kernel() {
    const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let possible = Command::new(UNSHARE[0]).args(&UNSHARE[1..]).arg("true").status();
    let possible = possible.is_ok_and(|status| status.success());
    if !testkit::skip::can("another PID namespace: root", possible) {
        return;
    }
    for runtime in Runtime::ALL {
        let mut target = Target::of(runtime).mode("mix").wrapper(UNSHARE).no_wait().start();
        target.await_workload();
        let children = format!("/proc/{0}/task/{0}/children", target.pid());
        let pid = std::fs::read_to_string(children).unwrap().trim().to_owned();
        let kept = target.tmpdir().join("kept");
        let keep = kept.to_str().unwrap();
        record(target.tmpdir(), &[&pid, "--seconds", "1", "--keep", keep], &[]);
        let threads = std::fs::read(kept.join(format!("dotnet-{pid}.threads"))).unwrap();
        let threads: Value = serde_json::from_slice(&threads).unwrap();
        assert_eq!(threads["1"].to_string(), pid);
        let report = ok(&["report", keep]);
        let processes = report.matches("(process ").count();
        assert_eq!(report.matches(&format!("(process {pid})")).count(), processes, "{report}");
        assert!(report.contains(" .NET threads, "), "{report}");
        target.assert_alive();
    }
}

/// How often a text is in the trace without more of a signature behind it.
fn names(trace: &[u8], text: &[u8]) -> usize {
    let whole = |at: usize| trace.get(at + text.len()) != Some(&b'(');
    let places = trace.windows(text.len()).enumerate().filter(|(_, w)| *w == text);
    places.filter(|(at, _)| whole(*at)).count()
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_command_is_recorded_with_its_runtime() {
    for runtime in Runtime::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (errors, trace) = record(dir.path(), &[], &[runtime.program().as_os_str()]);
        assert!(errors.contains(" samples"), "{errors}");
        let holds = |text: &[u8]| trace.windows(text.len()).any(|w| w == text);
        assert!(holds(b"Workload.Burn(int32,int32)") && holds(b"GC gen "), "{errors}");
        // The compilation of the first method of the workload: .NET Core 3.1 cannot be waited for.
        let first = names(&trace, b"Workload.Run");
        assert!(first >= 1 || runtime == Runtime::Core31, "{runtime:?}: {errors}");
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 1, "the timeline alone is left behind");
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn every_runtime_that_a_command_starts_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let [net9, net10] = [Runtime::Net9, Runtime::Net10].map(Runtime::program);
    let script = "\"$0\" & \"$1\"; wait";
    let words =
        ["sh".as_ref(), "-c".as_ref(), script.as_ref(), net9.as_os_str(), net10.as_os_str()];
    let (errors, trace) = record(dir.path(), &[], &words);
    assert_eq!(errors.matches(" samples").count(), 2, "{errors}");
    assert!(names(&trace, b"Workload.Main") >= 1, "that of .NET 9: {errors}");
    assert!(names(&trace, b"StartupHook.Initialize") >= 1, "that of .NET 10: {errors}");
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_daemon_of_the_command_is_not_left_suspended() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let out = dir.path().join("out");
    let mut record = triscope();
    record.args(["record", "--dotnet", "-o"]).arg(&out).args(["--", "sh", "-c"]);
    record.arg("\"$0\" > \"$1\" 2>&1 &").arg(Runtime::Net9.program()).arg(&log);
    record.env("TMPDIR", dir.path()).env("WORKLOAD_MODE", "idle").env("WORKLOAD_SECONDS", "1");
    let output = record.stdin(Stdio::null()).output().unwrap();
    // Its runtime may have come before the shell had ended, or after.
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(out.is_file(), "{errors}");
    testkit::wait::until(&format!("a daemon that runs: {errors}"), || {
        std::fs::read_to_string(&log).unwrap_or_default().contains(" runs\n")
    });
}

/// The recorder is killed before the command starts its runtime.
#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_killed_recorder_leaves_no_runtime_suspended() {
    for runtime in [Runtime::Net9, Runtime::Net10] {
        let dir = tempfile::tempdir().unwrap();
        let mut record = triscope();
        record.args(["record", "--dotnet", "-o"]).arg(dir.path().join("out")).args(["--", "sh"]);
        record.args(["-c", "echo ready; read x; exec \"$0\" 2>&1"]).arg(runtime.program());
        record.env("TMPDIR", dir.path()).env("WORKLOAD_MODE", "idle").env("WORKLOAD_SECONDS", "1");
        record.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut recorder = Running::spawn(&mut record);
        let mut lines = BufReader::new(recorder.child().stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let mut input = recorder.child().stdin.take().unwrap();
        drop(recorder); // kills it
        writeln!(input).unwrap();
        // The output ends with the program.
        assert!(lines.any(|line| line.unwrap().ends_with(" runs")), "{runtime:?}");
        // The rescue process removes the port, and ends.
        let left = || {
            let entries = std::fs::read_dir(dir.path()).unwrap();
            let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.find(|name| name.starts_with("triscope-"))
        };
        testkit::wait::until("the end of the port", || left().is_none());
    }
}

#[test]
#[ignore = "needs real runtimes: cargo xtask test-runtimes"]
fn a_running_process_is_recorded_and_continues() {
    for runtime in Runtime::ALL {
        let mut target = Target::of(runtime).mode("mix").start();
        let dir = target.tmpdir().to_owned();
        let (errors, trace) = record(&dir, &[&target.pid().to_string(), "--seconds", "1"], &[]);
        assert!(errors.contains(" samples"), "{errors}");
        let holds = |text: &[u8]| trace.windows(text.len()).any(|w| w == text);
        assert!(holds(b"Workload.Burn(int32,int32)"), "{errors}");
        target.assert_alive();
    }
}
