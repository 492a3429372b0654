//! What is written is read again; damaged recordings are errors with their place.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails is to panic")]

use perf_data::{
    BuildId, BuildIdEntry, Entry, Error, Features, FileWriter, Limits, PipeWriter, Reader,
    RecordWriter, RecordedEvent, SortedReader, TracingData, perf_event_attr,
};
use perf_monitor::{RawRecord, Record, Timestamp};
use proptest::prelude::*;
use std::io::Cursor;
use std::ops::ControlFlow;

const SAMPLE: u32 = 9;
const LOST: u32 = 2;

/// `IDENTIFIER | TID | TIME | CPU`, with `sample_id_all`.
fn attr(config: u64) -> perf_event_attr {
    let mut attr = perf_event_attr::new(1, config);
    attr.sample_type = 1 << 16 | 1 << 1 | 1 << 2 | 1 << 7;
    attr.set_sample_id_all(true);
    attr
}

fn events() -> Vec<RecordedEvent> {
    let event = |name: &str, config, ids: &[u64]| RecordedEvent {
        name: name.to_owned(),
        attr: perf_event_attr { size: 64, ..attr(config) },
        ids: ids.to_vec(),
    };
    vec![event("cpu-clock:u", 0, &[1, 2]), event("dummy", 9, &[3])]
}

fn record(type_: u32, words: &[u64]) -> Vec<u8> {
    let size = (8 + words.len() * 8) as u64;
    let header = u64::from(type_) | size << 48;
    [&[header], words].concat().iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// A sample of the event with this id.
fn sample(id: u64, time: u64) -> Vec<u8> {
    record(SAMPLE, &[id, 7 | 8 << 32, time, 1])
}

fn lost(count: u64, time: u64) -> Vec<u8> {
    record(LOST, &[3, count, 7 | 8 << 32, time, 1, 3])
}

fn features() -> Features {
    #[cfg(target_os = "linux")]
    let mut features = Features::of_this_machine();
    #[cfg(not(target_os = "linux"))]
    let mut features = Features::default();
    let mut tracing = TracingData::default();
    tracing.events.push((
        "sys".into(),
        b"name: tp\nID: 5\nformat:\n\tfield:int a;\toffset:0;\tsize:4;\tsigned:1;\n".to_vec(),
    ));
    features.tracing = Some(tracing);
    let id = BuildId::new(&[1, 2, 3]).unwrap();
    features.build_ids.push(BuildIdEntry::new(id, "/bin/true".into(), false));
    features
}

/// Rounds of records, written in both modes.
fn written(rounds: &[Vec<Vec<u8>>]) -> [Vec<u8>; 2] {
    fn put(out: &mut impl RecordWriter, rounds: &[Vec<Vec<u8>>]) {
        for round in rounds {
            for bytes in round {
                out.record(RawRecord::split_first(bytes, 0).unwrap().0).unwrap();
            }
            out.finish_round().unwrap();
        }
    }
    let features = features();
    let mut file = FileWriter::new(Cursor::new(Vec::new()), events()).unwrap();
    put(&mut file, rounds);
    let mut pipe = PipeWriter::new(Vec::new(), &events(), &features).unwrap();
    put(&mut pipe, rounds);
    [file.finish(&features).unwrap().into_inner(), pipe.finish(&features.build_ids).unwrap()]
}

/// Time of every record, in the order of the file or sorted, until the end or an error.
fn times(bytes: &[u8], sorted: bool, limits: Limits) -> (Vec<u64>, u64, Option<Error>) {
    let mut times = Vec::new();
    let reader = match Reader::with_limits(Cursor::new(bytes), limits) {
        Ok(reader) => reader,
        Err(error) => return (times, 0, Some(error)),
    };
    let time = |time: Option<Timestamp>| time.map_or(0, |time| time.nanos() as u64);
    if sorted {
        let mut reader = SortedReader::new(reader);
        loop {
            match reader.next_record() {
                Ok(Some(entry)) => times.push(time(entry.time())),
                Ok(None) => return (times, reader.late(), None),
                Err(error) => return (times, reader.late(), Some(error)),
            }
        }
    }
    let mut reader = reader;
    loop {
        match reader.next_record() {
            Ok(Some(entry)) if entry.raw.type_() < 64 => times.push(time(entry.time())),
            Ok(Some(_)) => {}
            Ok(None) => return (times, 0, None),
            Err(error) => return (times, 0, Some(error)),
        }
    }
}

#[test]
fn each_record_is_passed_to_a_function_that_can_stop() {
    let [file, _] = written(&[vec![sample(1, 10), sample(2, 30), sample(3, 20)]]);
    let time = |entry: Entry<'_>| entry.time().map_or(0, Timestamp::nanos);
    // The reader returns the end of the round, too.
    for (is_sorted, expected) in [(false, [10, 30, 20, 0].as_slice()), (true, &[10, 20, 30])] {
        let mut seen = Vec::new();
        let stop_at_second = |entry: Entry<'_>, seen: &mut Vec<i64>| {
            seen.push(time(entry));
            if seen.len() == 2 { ControlFlow::Break("stopped") } else { ControlFlow::Continue(()) }
        };
        let mut reader = Reader::new(Cursor::new(&file)).unwrap();
        let stopped = if is_sorted {
            let mut reader = SortedReader::new(reader);
            let stopped = reader.try_for_each(|entry| stop_at_second(entry, &mut seen)).unwrap();
            reader.for_each(|entry| seen.push(time(entry))).unwrap();
            assert!(reader.try_for_each(|_| ControlFlow::Break(())).unwrap().is_continue());
            stopped
        } else {
            let stopped = reader.try_for_each(|entry| stop_at_second(entry, &mut seen)).unwrap();
            reader.for_each(|entry| seen.push(time(entry))).unwrap();
            assert!(reader.try_for_each(|_| ControlFlow::Break(())).unwrap().is_continue());
            stopped
        };
        assert_eq!(stopped, ControlFlow::Break("stopped"));
        assert_eq!(seen, expected, "sorted: {is_sorted}");
    }
}

#[test]
fn both_modes_are_read_as_they_were_written() {
    let rounds = [vec![sample(1, 10), sample(2, 30), lost(4, 20)], vec![], vec![sample(3, 25)]];
    for (mode, bytes) in written(&rounds).into_iter().enumerate() {
        let mut reader = Reader::new(Cursor::new(&bytes)).unwrap();
        assert_eq!(reader.is_pipe(), mode == 1);
        assert!(reader.is_complete());
        let session = reader.session();
        assert_eq!(session.events(), events(), "they are known before the records are read");
        assert_eq!(session.features().command_line, features().command_line);
        let mut seen = Vec::new();
        while let Some(entry) = reader.next_record().unwrap() {
            match entry.decode().unwrap().unwrap() {
                Record::Sample(s) => {
                    assert_eq!((s.pid, s.tid, s.cpu), (Some(7), Some(8), Some(1)));
                    seen.push((entry.event().unwrap().name.clone(), s.time.unwrap().nanos()));
                }
                Record::Lost(l) => {
                    assert_eq!(l.lost, 4);
                    seen.push(("lost".into(), l.sample_id.time.unwrap().nanos()));
                }
                Record::Unknown(raw) => assert_eq!(raw.type_(), 68, "end of a round"),
                other => panic!("{other:?}"),
            }
        }
        let expected = [("cpu-clock:u", 10), ("cpu-clock:u", 30), ("lost", 20), ("dummy", 25)];
        assert_eq!(seen, expected.map(|(name, time)| (name.to_owned(), time)));
        let session = reader.session();
        assert_eq!(session.events(), events());
        let (ours, theirs) = (features(), session.features());
        assert!(theirs.damaged.is_empty(), "{:?}", theirs.damaged);
        assert_eq!(ours.tracing, theirs.tracing);
        assert_eq!(ours.build_ids, theirs.build_ids);
        assert_eq!(theirs.build_id("/bin/true"), BuildId::new(&[1, 2, 3]));
        assert_eq!(ours.command_line, theirs.command_line);
        assert_eq!(ours.topology, theirs.topology);
    }
}

/// Events whose description does not fit in a record.
fn many_events() -> Vec<RecordedEvent> {
    let [event, _] = events().try_into().unwrap();
    let named =
        |n: u64| RecordedEvent { name: format!("event {n}"), ids: vec![n], ..event.clone() };
    (1..=1000).map(named).collect()
}

#[test]
fn names_of_many_events_are_in_pipes() {
    let events = many_events();
    let pipe = PipeWriter::new(Vec::new(), &events, &Features::default()).unwrap();
    let bytes = pipe.finish(&[]).unwrap();
    let mut reader = Reader::of_pipe(&bytes[..]).unwrap();
    assert!(reader.next_record().unwrap().is_none());
    let names = |events: &[RecordedEvent]| -> Vec<String> {
        events.iter().map(|event| event.name.clone()).collect()
    };
    assert_eq!(names(reader.session().events()), names(&events));
}

#[test]
fn names_that_no_pipe_can_have_are_errors() {
    let refused = |change: &dyn Fn(&mut RecordedEvent)| {
        let mut events = many_events();
        events.iter_mut().skip(7).take(1).for_each(change);
        let error = PipeWriter::new(Vec::new(), &events, &Features::default()).unwrap_err();
        let Error::Limit { what: "the names of the events", value, limit, .. } = error else {
            panic!("{error}")
        };
        assert!(value > limit);
    };
    refused(&|event| event.ids.clear());
    refused(&|event| event.name = "n".repeat(65_504));
}

#[test]
fn features_that_fit_in_no_record_are_not_in_pipes() {
    // The header and the number of the feature, two lengths, and text in units of 64 bytes.
    const LONGEST: usize = (65_535 - 16 - 8) / 64 * 64 - 1;
    let samples = [sample(1, 10), sample(2, 20)];
    for (len, is_there) in [(LONGEST, true), (LONGEST + 1, false), (1 << 20, false)] {
        let mut features = features();
        features.command_line = vec!["a".repeat(len)];
        let mut pipe = PipeWriter::new(Vec::new(), &events(), &features).unwrap();
        for bytes in &samples {
            pipe.record(RawRecord::split_first(bytes, 0).unwrap().0).unwrap();
        }
        let bytes = pipe.finish(&features.build_ids).unwrap();
        assert_eq!(times(&bytes, false, Limits::default()).0, [10, 20]);
        let mut reader = Reader::of_pipe(&bytes[..]).unwrap();
        while reader.next_record().unwrap().is_some() {}
        assert_eq!(reader.session().events(), events());
        let read = reader.session().features();
        assert!(read.damaged.is_empty(), "{:?}", read.damaged);
        assert_eq!(read.command_line.concat().len(), if is_there { len } else { 0 });
        // The features around it.
        assert_eq!(read.topology, features.topology);
        assert_eq!(read.build_ids, features.build_ids);
    }
}

/// The format of a tracepoint, as a record of pipe mode.
fn tracing_record(number: u64, name: &str) -> Vec<u8> {
    let mut tracing = TracingData::default();
    let field = "field:int a;\toffset:0;\tsize:4;\tsigned:1;";
    let format = format!("name: {name}\nID: {number}\nformat:\n\t{field}\n");
    tracing.events.push(("sys".to_owned(), format.into_bytes()));
    let bytes = tracing.to_bytes();
    let mut record = (66u64 | 12 << 48).to_le_bytes().to_vec(); // `HEADER_TRACING_DATA`
    record.extend((bytes.len() as u32).to_le_bytes());
    record.extend(bytes);
    record
}

#[test]
fn tracepoints_are_named_by_formats_that_come_in_parts() {
    // A look at all events for each part would take minutes.
    const COUNT: u64 = 1 << 15;
    let event = |n: u64| {
        let attr = perf_event_attr { type_: 2, ..attr(n) };
        // Without a name of its own it is that of the attribute.
        let name = if n == 7 { "own".to_owned() } else { format!("2:{n:#x}") };
        RecordedEvent { name, attr, ids: vec![n + 1] }
    };
    let events: Vec<_> = (0..COUNT).map(event).collect();
    let pipe = PipeWriter::new(Vec::new(), &events, &Features::default()).unwrap();
    let mut bytes = pipe.finish(&[]).unwrap();
    for n in 1..COUNT {
        bytes.extend(tracing_record(n, &format!("tp{n}")));
    }
    bytes.extend(tracing_record(8, "again"));
    let mut reader = Reader::of_pipe(&bytes[..]).unwrap();
    assert!(reader.next_record().unwrap().is_none());
    for (event, n) in reader.session().events().iter().zip(0..) {
        match n {
            0 => assert_eq!(event.name, "2:0x0"),
            7 => assert_eq!(event.name, "own"),
            n => assert_eq!(event.name, format!("sys:tp{n}")),
        }
    }
}

#[test]
fn rounds_bring_records_into_time_order() {
    // The example of the documentation.
    let t = |times: &[u64]| times.iter().map(|time| sample(1, *time)).collect::<Vec<_>>();
    let rounds = [t(&[1, 2, 4, 5, 3, 6]), t(&[7, 9, 8]), t(&[10, 11])];
    for bytes in written(&rounds) {
        assert_eq!(times(&bytes, true, Limits::default()).0, (1..=11).collect::<Vec<u64>>());
    }
    // A record that is later than the round before the last is late, and is not dropped.
    let rounds = [t(&[5]), t(&[8]), t(&[9]), t(&[3]), t(&[12])];
    for bytes in written(&rounds) {
        let (times, late, error) = times(&bytes, true, Limits::default());
        assert!(error.is_none());
        assert_eq!((times, late), (vec![5, 8, 3, 9, 12], 1));
    }
}

#[test]
fn memory_is_bounded_without_rounds() {
    let round: Vec<_> = (0..1000).map(|i| sample(1, 2000 - (i ^ 1))).collect();
    let bytes = written(&[round]);
    // The sections of features fit; the records do not.
    let limits = Limits { max_buffer: 20_000, ..Limits::default() };
    let (times, late, error) = times(&bytes[0], true, limits);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(times.len(), 1000);
    assert!(late > 0 && late < 1000, "{late}");
}

#[test]
fn a_file_of_a_killed_recorder_has_its_records() {
    let mut file = FileWriter::new(Cursor::new(Vec::new()), events()).unwrap();
    let bytes = sample(1, 10);
    file.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
    // Without `finish`; what a writer has passed on is in the file.
    let debug = format!("{file:?}");
    assert!(debug.contains("is_open: true"));
    let whole = written(&[vec![sample(1, 10), sample(1, 11)]])[0].clone();
    let mut cut = whole;
    cut[48..56].fill(0); // size of the records
    // perf writes at the start which features there will be.
    for features in [0, 0xff] {
        cut[72] = features;
        cut[73..104].fill(0);
        let mut reader = Reader::new(Cursor::new(&cut)).unwrap();
        assert!(!reader.is_complete());
        assert_eq!(reader.next_record().unwrap().unwrap().time().unwrap().nanos(), 10);
        assert_eq!(reader.session().events()[0].name, "cpu-clock", "the name of its attribute");
    }
    // Nothing was recorded.
    let empty = written(&[])[0].clone();
    let mut reader = Reader::new(Cursor::new(empty)).unwrap();
    assert!(reader.is_complete() && reader.session().features().damaged.is_empty());
    assert!(reader.next_record().unwrap().is_none());
}

#[test]
fn records_before_damage_are_returned_in_order() {
    let records: Vec<_> = [12, 11, 10].map(|time| sample(1, time)).into();
    let whole = written(&[records])[0].clone();
    let data = u64::from_le_bytes(whole[40..48].try_into().unwrap()) as usize;
    // The last record is damaged; nothing was known to be complete before it.
    let mut damaged = whole.clone();
    damaged[data + 2 * 40 + 6] = 3;
    let (seen, _, error) = times(&damaged, true, Limits::default());
    assert_eq!(seen, [11, 12]);
    assert!(matches!(error, Some(Error::Malformed { .. })), "{error:?}");
    // The recorder was killed while it wrote the last record: that is the end.
    let mut cut = whole;
    cut.truncate(data + 2 * 40 + 20);
    cut[48..56].fill(0); // size of the records
    let (seen, _, error) = times(&cut, true, Limits::default());
    assert_eq!((seen, error.map(|error| error.to_string())), (vec![11, 12], None));
    let (seen, _, error) = times(&cut, false, Limits::default());
    assert_eq!(seen, [12, 11]);
    assert!(matches!(error, Some(Error::Truncated { .. })), "{error:?}");
}

/// Its recorder has completed it, so that the header has the size of the records.
#[test]
fn a_complete_file_that_was_cut_is_truncated() {
    let whole = written(&[[10, 11, 12].map(|time| sample(1, time)).into()])[0].clone();
    let data = u64::from_le_bytes(whole[40..48].try_into().unwrap()) as usize;
    let size = u64::from_le_bytes(whole[48..56].try_into().unwrap());
    // Within a record, and between two.
    for (left, at) in [(2 * 40 + 20, data + 2 * 40), (2 * 40, data)] {
        let cut = &whole[..data + left];
        let reader = Reader::new(Cursor::new(cut)).unwrap();
        assert!(reader.is_truncated() && reader.is_complete(), "{left}");
        for is_sorted in [false, true] {
            let (seen, _, error) = times(cut, is_sorted, Limits::default());
            assert_eq!(seen, [10, 11], "{left}");
            let Some(Error::Truncated { offset, wanted, .. }) = error else { panic!("{error:?}") };
            assert_eq!((offset, wanted == size), (at as u64, at == data), "{left}");
        }
    }
    let reader = Reader::new(Cursor::new(&whole)).unwrap();
    assert!(!reader.is_truncated());
}

#[test]
fn a_feature_that_is_nowhere_is_damaged() {
    let mut file = written(&[vec![sample(1, 10)]])[0].clone();
    let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let table = (number(40) + number(48)) as usize;
    file[table + 7] = 0x80; // an offset beyond any file
    let mut reader = Reader::new(Cursor::new(file)).unwrap();
    assert_eq!(reader.session().features().damaged.len(), 1);
    assert_eq!(reader.next_record().unwrap().unwrap().time().unwrap().nanos(), 10);
}

/// A table can name the same bytes for each feature, and a file can be sparse or compressed.
#[test]
fn features_together_have_no_more_bytes_than_the_file() {
    let mut file = written(&[vec![sample(1, 10)]])[0].clone();
    let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    const FEATURE_BITS: usize = 72;
    let features = number(FEATURE_BITS).count_ones() as usize;
    let table = (number(40) + number(48)) as usize;
    let place = [0, file.len() as u64].map(u64::to_le_bytes).concat();
    for section in file[table..].chunks_exact_mut(16).take(features) {
        section.copy_from_slice(&place);
    }
    let reader = Reader::new(Cursor::new(file)).unwrap();
    let damaged = &reader.session().features().damaged;
    let is_refused = |error: &Error| error.to_string().contains("more bytes than the file");
    let refused = damaged.iter().filter(|(_, error)| is_refused(error)).count();
    assert_eq!(refused, features - 1, "{damaged:?}");
}

#[test]
fn ids_of_all_events_have_a_limit() {
    let mut events = events();
    events.push(events[0].clone());
    events.iter_mut().zip(1..).for_each(|(event, n)| event.ids = vec![n; 1000]);
    let writer = FileWriter::new(Cursor::new(Vec::new()), events).unwrap();
    let file = writer.finish(&Features::default()).unwrap().into_inner();
    let open = |max_buffer| {
        let limits = Limits { max_buffer, ..Limits::default() };
        Reader::with_limits(Cursor::new(&file), limits).map(drop)
    };
    open(400_000).unwrap();
    let error = open(200_000).unwrap_err();
    assert!(matches!(error, Error::Limit { limit: 200_000, .. }), "{error:?}");
}

/// A pipe that begins like `written`, then has a million records for its reader.
#[test]
fn records_for_the_reader_have_a_limit() {
    let [_, pipe] = written(&[]);
    let limits = Limits { max_buffer: 1 << 20, ..Limits::default() };
    let attr = perf_event_attr { size: 64, ..attr(0) };
    let attr: Vec<u64> = zerocopy::IntoBytes::as_bytes(&attr)[..64]
        .chunks(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect();
    // An event without ids, a build id, an unknown feature, a damaged feature, a name of an event.
    let mut build_id = vec![u64::from(u32::MAX)];
    build_id.extend([1; 4]);
    for (type_, words) in [
        (64, &attr[..]),
        (67, &build_id),
        (80, &[200]),
        (80, &[11, u64::MAX]),
        (78, &[1, 1, u64::from_le_bytes(*b"name\0\0\0\0")]),
    ] {
        let record = record(type_, words);
        let bytes = [&pipe[..], &record.repeat(1 << 16)].concat();
        let mut reader = Reader::of_pipe_with_limits(&bytes[..], limits).unwrap();
        let Err(Error::Limit { offset, value, limit: 1_048_576, .. }) = reader.next_record() else {
            panic!("type {type_}");
        };
        let from_start = offset as usize - pipe.len();
        assert_eq!(from_start % record.len(), 0, "type {type_}");
        assert!((1 << 20..1 << 21).contains(&value), "type {type_}");
    }
}

/// `perf` writes the conversion of times before the names of events.
#[test]
fn records_of_the_recorder_before_the_last_of_the_description_are_kept() {
    const EVENT_UPDATE: u32 = 78;
    const TIME_CONV: u32 = 79;
    const NAME: u64 = 2;
    let pipe = PipeWriter::new(Vec::new(), &events(), &Features::default()).unwrap();
    let pipe = pipe.finish(&[]).unwrap();
    let id = events()[0].ids[0];
    let conversion = record(TIME_CONV, &[1, 2, 3]);
    let name = record(EVENT_UPDATE, &[NAME, id, u64::from_le_bytes(*b"named\0\0\0")]);
    let bytes = [&pipe[..], &conversion, &name, &sample(1, 10), &sample(1, 11)].concat();
    let mut reader = Reader::new(Cursor::new(bytes)).unwrap();
    assert_eq!(reader.session().events()[0].name, "named");
    let mut seen = Vec::new();
    while let Some(entry) = reader.next_record().unwrap() {
        let time = entry.time().map(Timestamp::nanos);
        seen.push((entry.raw.type_(), entry.raw.offset() as usize - pipe.len(), time));
    }
    let first = conversion.len() + name.len();
    let second = first + sample(1, 10).len();
    assert_eq!(seen, [(TIME_CONV, 0, None), (9, first, Some(10)), (9, second, Some(11))]);
}

#[test]
fn damage_in_a_description_follows_the_records_before_it() {
    let pipe = PipeWriter::new(Vec::new(), &events(), &Features::default()).unwrap();
    let pipe = pipe.finish(&[]).unwrap();
    let conversion = record(79, &[1, 2, 3]); // `TIME_CONV`
    let name = record(78, &[2, events()[0].ids[0], 0]); // `EVENT_UPDATE`
    let all = [&pipe[..], &conversion, &name].concat();
    let bytes = &all[..all.len() - 1];
    let mut reader = Reader::new(Cursor::new(bytes)).unwrap();
    assert_eq!(reader.session().events(), events());
    assert_eq!(reader.next_record().unwrap().unwrap().raw.bytes(), conversion);
    let error = reader.next_record().unwrap_err();
    let at = (pipe.len() + conversion.len()) as u64 + 8;
    assert!(matches!(error, Error::Truncated { offset, .. } if offset == at), "{error:?}");
}

#[test]
fn errors_name_the_place() {
    let [file, pipe] = written(&[vec![sample(1, 10), sample(1, 11)]]);
    let open = |bytes: &[u8]| Reader::new(Cursor::new(bytes.to_vec()));
    assert!(matches!(open(b"").unwrap_err(), Error::Truncated { offset: 0, wanted: 16, .. }));
    assert!(matches!(open(&[7; 200]).unwrap_err(), Error::NotPerfData([7, ..])));
    assert!(matches!(open(b"2ELIFREP\0\0\0\0\0\0\0\x68").unwrap_err(), Error::BigEndian));
    let error = Reader::of_pipe(&file[..]).unwrap_err();
    assert!(matches!(error, Error::NeedsSeek));

    // A record that is smaller than its header.
    let data = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
    let mut damaged = file.clone();
    damaged[data + 40 + 6] = 3;
    let (_, _, error) = times(&damaged, false, Limits::default());
    let at = data as u64 + 40;
    assert!(matches!(error, Some(Error::Malformed { offset, .. }) if offset == at), "{error:?}");

    // A pipe that ends within a record.
    let (seen, _, error) = times(&pipe[..pipe.len() - 120], false, Limits::default());
    assert!(matches!(error, Some(Error::Truncated { .. })), "{seen:?} {error:?}");

    // A section that is larger than the file, or than allowed, allocates nothing.
    let mut huge = file.clone();
    huge[32..40].copy_from_slice(&(1u64 << 60).to_le_bytes());
    assert!(matches!(open(&huge).unwrap_err(), Error::Limit { .. }));
    huge[32..40].copy_from_slice(&(1u64 << 20).to_le_bytes());
    assert!(matches!(open(&huge).unwrap_err(), Error::Truncated { .. }));
}

/// An event has more ids when it is opened on a CPU that came online.
#[test]
fn ids_of_a_running_recording_are_those_of_its_end() {
    let mut writer = FileWriter::new(Cursor::new(Vec::new()), events()).unwrap();
    for (id, time) in [(1, 10), (5, 11)] {
        let bytes = sample(id, time);
        writer.record(RawRecord::split_first(&bytes, 0).unwrap().0).unwrap();
        writer.finish_round().unwrap();
    }
    // The kernel has ended the event of the first CPU.
    writer.add_ids([vec![2, 5], vec![3]]);
    let bytes = writer.finish(&features()).unwrap().into_inner();
    let reader = Reader::new(Cursor::new(&bytes)).unwrap();
    let session = reader.session();
    let ids: Vec<_> = session.events().iter().map(|event| event.ids.clone()).collect();
    assert_eq!(ids, [vec![1, 2, 5], vec![3]]);
    assert!(session.features().tracing.is_some());
    let (seen, _, error) = times(&bytes, false, Limits::default());
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen, [10, 11]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn records_round_trip(rounds in proptest::collection::vec(
        proptest::collection::vec((1u64..4, 1u64..1000), 0..8), 0..8)
    ) {
        let made: Vec<Vec<Vec<u8>>> = rounds
            .iter()
            .map(|round| round.iter().map(|(id, time)| sample(*id, *time)).collect())
            .collect();
        let expected: Vec<u64> = rounds.iter().flatten().map(|(_, time)| *time).collect();
        for bytes in written(&made) {
            let (seen, _, error) = times(&bytes, false, Limits::default());
            prop_assert!(error.is_none(), "{error:?}");
            prop_assert_eq!(&seen, &expected);
            // Sorting loses none, and is in order but for the late ones.
            let (mut sorted, late, _) = times(&bytes, true, Limits::default());
            let steps_back = sorted.windows(2).filter(|w| w[0] > w[1]).count() as u64;
            prop_assert!(steps_back <= late);
            sorted.sort_unstable();
            let mut all = expected.clone();
            all.sort_unstable();
            prop_assert_eq!(sorted, all);
        }
    }

    #[test]
    fn damage_is_no_panic(at in 0usize..4000, value: u8, cut in 0usize..4000, pipe: bool) {
        let [file, piped] = written(&[vec![sample(1, 10), lost(1, 11)], vec![sample(3, 12)]]);
        let mut bytes = if pipe { piped } else { file };
        let len = bytes.len();
        if let Some(byte) = bytes.get_mut(at % len) {
            *byte = value;
        }
        for len in [len, len.saturating_sub(cut)] {
            for sorted in [false, true] {
                let limits = Limits { max_buffer: 1 << 20, ..Limits::default() };
                times(&bytes[..len], sorted, limits);
            }
        }
    }
}

#[test]
fn types_are_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Reader<Cursor<Vec<u8>>>>();
    is_shared::<SortedReader<Cursor<Vec<u8>>>>();
    is_shared::<FileWriter<Cursor<Vec<u8>>>>();
    is_shared::<PipeWriter<Vec<u8>>>();
    is_shared::<Features>();
    is_shared::<perf_data::Session>();
    is_shared::<Entry<'_>>();
    is_shared::<perf_data::Mappings>();
    is_shared::<perf_data::TaskRecords>();
    is_shared::<Error>();
}
