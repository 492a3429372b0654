use super::*;
use perf_data::{Features, FileWriter, RecordWriter, RecordedEvent, TracingData, perf_event_attr};
use perf_monitor::{RawRecord, SampleFlags};

/// A tracepoint with an integer and the address of a text.
fn format(number: u64, print: &str) -> Vec<u8> {
    let fields = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
                  \tfield:int a\u{1b};\toffset:0;\tsize:4;\tsigned:1;\n\
                  \tfield:u64 p;\toffset:4;\tsize:8;\tsigned:0;\n";
    format!("name: tp\nID: {number}\nformat:\n{fields}\nprint fmt: {print}\n").into_bytes()
}

/// A sample of the event with this id, with the fields 7 and 0x1234.
fn sample(id: u64) -> Vec<u8> {
    let mut bytes = (9u64 | 48 << 48).to_le_bytes().to_vec();
    [id, 7 | 8 << 32, 1000].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(12u32.to_le_bytes());
    bytes.extend(7u32.to_le_bytes());
    bytes.extend(0x1234u64.to_le_bytes());
    bytes
}

#[test]
fn control_characters_of_a_recording_do_not_reach_the_terminal() {
    let event = |id: u64| {
        let mut attr = perf_event_attr::new(TRACEPOINT, id);
        let flags = SampleFlags::IDENTIFIER | SampleFlags::TID | SampleFlags::TIME;
        attr.sample_type = (flags | SampleFlags::RAW).bits();
        attr.set_sample_id_all(true);
        RecordedEvent { name: format!("event\u{1b}]{id}"), attr, ids: vec![id] }
    };
    let mut tracing = TracingData::default();
    let print = "\"\u{1b}[2J%s %s\", __print_symbolic(1, { 1, \"\u{1b}A\" }), REC->p";
    tracing.events.push(("sys".to_owned(), format(1, print)));
    // A format that is not parsed: the fields are printed.
    tracing.events.push(("sys".to_owned(), format(2, "\"%d\", unknown(REC->p)")));
    tracing.printk_formats = b"0x1234 : \"printk\x1b[31m\"\n".to_vec();
    let mut features = Features::default();
    features.tracing = Some(tracing);
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("perf.data");
    let file = std::fs::File::create(&input).unwrap();
    let mut writer = FileWriter::new(file, vec![event(1), event(2)]).unwrap();
    for id in [1, 2] {
        writer.record(RawRecord::split_first(&sample(id), 0).unwrap().0).unwrap();
    }
    writer.finish(&features).unwrap();

    let recording = Recording { file: Some(input), input: None };
    let args = Args { recording, ns: false, no_demangle: false };
    let (mut tracepoints, mut lines) = (Tracepoints::default(), String::new());
    read(args.recording.path(), |sample, state| {
        tracepoints.take_from(sample);
        put(&mut lines, &args, sample, state, &tracepoints).unwrap();
        Ok(())
    })
    .unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    let [first, second] = lines.as_slice() else { panic!("{lines:?}") };
    let ends = [
        "event\\u{1b}]1: \\u{1b}[2J\\u{1b}A printk\\u{1b}[31m",
        "event\\u{1b}]2: a\\u{1b}=7 p=4660",
    ];
    assert!(first.ends_with(ends[0]), "{first:?}");
    assert!(second.ends_with(ends[1]), "{second:?}");
}
