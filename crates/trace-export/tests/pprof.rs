//! Profiles in the format of pprof are read as they were written, and anything else is an error.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use flate2::read::GzDecoder;
use proptest::prelude::*;
use std::io::Read;
use trace_export::profile::{
    Error, Format, Label, LabelSet, Measure, Profile, ReadLimits, Samples, Unit, read_pprof,
};
use trace_timeline::{
    ClockDomain, Entity, EntityKind, Event, EventKind, Frame, Mapping, SampleKind, SampledEvent,
    SampledEventId, TableLimits, Tables, TextId, Timestamp,
};

/// A sample: indexes of its frames, the value of its labels, count and weight.
type Sample = (Vec<usize>, Option<(String, i64)>, u64, u64);

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let label = proptest::option::of(("[a-z]{1,4}", any::<i64>()));
    let numbers = (0..1_u64 << 40, 0..1_u64 << 40);
    let sample = (prop::collection::vec(0_usize..12, 0..6), label, numbers);
    let sample = sample.prop_map(|(path, label, (count, weight))| (path, label, count, weight));
    prop::collection::vec(sample, 0..20)
}

fn measures() -> impl Strategy<Value = Measure> {
    let measure = |events: &'static str, weight: &'static str, unit, period| Measure {
        events: events.into(),
        weight: weight.into(),
        unit,
        period,
    };
    prop_oneof![
        Just(measure("samples", "cpu", Unit::Nanoseconds, 1_000_000)),
        Just(measure("contentions", "delay", Unit::Nanoseconds, 0)),
        Just(measure("samples", "cycles", Unit::Occurrences, 0)),
        Just(measure("samples", "alloc_space", Unit::Bytes, 0)),
        Just(measure("exceptions", "exceptions", Unit::Count, 0)),
    ]
}

/// Frames with and without names, lines, mappings and addresses.
fn frames(tables: &mut Tables) -> Vec<Frame> {
    let mapping = |tables: &mut Tables, path: &[u8], start| {
        let (path, build_id) = (tables.text(path), tables.text(b"00ff"));
        let (end, offset) = (start + 0x1000, 0x40);
        let is_kernel = path == tables.text(b"[kernel.kallsyms]");
        tables.add_mapping(Mapping { path, build_id, start, end, offset, is_kernel })
    };
    let program = mapping(tables, b"/bin/app", 0x40_0000);
    let kernel = mapping(tables, b"[kernel.kallsyms]", 0);
    let mut frames = Vec::new();
    for index in 0..12_u32 {
        let function = match index % 4 {
            3 => Default::default(),
            _ => tables.text(format!("f{}", index / 2).as_bytes()),
        };
        let file = if index % 2 == 0 || function.is_empty() { b"" } else { &b"a.c"[..] };
        frames.push(Frame {
            function,
            file: tables.text(file),
            line: if function.is_empty() { 0 } else { index / 3 },
            mapping: [program, kernel, None][index as usize % 3],
            address: u64::from(index) * 16 + 1,
        });
    }
    frames
}

fn write(profile: &Profile, tables: &Tables) -> Vec<u8> {
    let mut file = Vec::new();
    profile.write(Format::Pprof, "", tables, &mut file).unwrap();
    let mut message = Vec::new();
    GzDecoder::new(&file[..]).read_to_end(&mut message).unwrap();
    message
}

fn written(measure: Measure, samples: &[Sample]) -> (Profile, Tables) {
    let (mut tables, mut profile) = (Tables::new(), Profile::new(measure));
    let frames = frames(&mut tables);
    let [key, number] = [&b"key"[..], b"number"].map(|text| tables.text(text));
    for (path, label, count, weight) in samples {
        let path: Vec<Frame> = path.iter().map(|index| frames[*index]).collect();
        let stack = tables.stack(&path);
        let labels = match label {
            Some((text, value)) => {
                let text = Label::Text(tables.text(text.as_bytes()));
                profile.labels(&[(key, text), (number, Label::Number(*value))])
            }
            None => LabelSet::default(),
        };
        profile.add(stack, labels, *count, *weight);
    }
    profile.set_span(7, 1_000);
    (profile, tables)
}

proptest! {
    #[test]
    fn written_profiles_are_read(measure in measures(), samples in samples()) {
        let (profile, tables) = written(measure, &samples);
        let message = write(&profile, &tables);
        let mut others = Tables::new();
        let mut file = read_pprof(&message, &ReadLimits::default(), &mut others).unwrap();
        let read = file.profiles.remove(file.default);
        prop_assert_eq!(read.measure(), profile.measure());
        prop_assert_eq!((read.count(), read.weight()), (profile.count(), profile.weight()));
        prop_assert_eq!(write(&read, &others), message);
    }

    /// A damaged profile is another one or an error.
    #[test]
    fn damage_is_no_panic(
        samples in samples(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        end in any::<prop::sample::Index>(),
    ) {
        let measure = Measure {
            events: "samples".into(),
            weight: "cpu".into(),
            unit: Unit::Nanoseconds,
            period: 1,
        };
        let (profile, tables) = written(measure, &samples);
        let mut message = write(&profile, &tables);
        let at = at.index(message.len());
        message[at] = byte;
        message.truncate(end.index(message.len()) + 1);
        let mut limits = ReadLimits::default();
        (limits.items, limits.frames, limits.depth) = (1 << 12, 1 << 12, 1 << 8);
        let mut tables = Tables::new();
        if let Ok(file) = read_pprof(&message, &limits, &mut tables) {
            prop_assert!(file.default < file.profiles.len());
            write(&file.profiles[file.default], &tables);
        }
    }
}

/// Addresses are those of memory, where programs of other tools look for them.
#[test]
fn mappings_have_the_addresses_of_their_frames() {
    let mut tables = Tables::new();
    let path = tables.text(b"/bin/app");
    let (start, end, offset) = (0x40_1000, 0x40_3000, 0x1000);
    let known = Mapping { path, start, end, offset, ..Mapping::default() };
    let mapping = tables.add_mapping(known);
    // The last one is in a part that is mapped, too.
    let frame = |address| Frame { mapping, address, ..Frame::default() };
    let stack = tables.stack(&[0x1010, 0x2fff, 0, 0x5008].map(frame));
    let mut profile = Profile::new(Measure {
        events: "samples".into(),
        weight: "cpu".into(),
        unit: Unit::Nanoseconds,
        period: 0,
    });
    profile.add(stack, LabelSet::default(), 1, 1);
    let message = write(&profile, &tables);
    let location = |id, address| {
        let location = Message::default().int(1, id).int(2, 1);
        if address > 0 { location.int(3, address) } else { location }
    };
    let mapping = Message::default().int(1, 1).int(2, start).int(3, 0x40_6000).int(4, offset);
    let expected: Vec<Vec<u8>> = [
        Message::default().message(3, mapping.int(5, 5)).0,
        Message::default().message(4, location(1, 0x40_1010)).0,
        Message::default().message(4, location(2, 0x40_2fff)).0,
        Message::default().message(4, location(3, 0)).0,
        Message::default().message(4, location(4, 0x40_5008)).0,
    ]
    .into();
    for part in expected {
        let has = message.windows(part.len()).any(|window| window == part);
        assert!(has, "{part:x?} in {message:x?}");
    }
}

/// `go tool pprof` looks for the names of functions of mappings that have none.
#[test]
fn mappings_with_names_for_all_frames_have_functions() {
    let (mut tables, mut samples) = (Tables::new(), Vec::new());
    let name = tables.text(b"main");
    let files = [("/bin/named", 1..3), ("/bin/partly", 0..2), ("/bin/nameless", 0..1)];
    for (path, addresses) in &files {
        let path = tables.text(path.as_bytes());
        let (start, end) = (0x40_0000, 0x40_1000);
        let mapping = Mapping { path, start, end, ..Mapping::default() };
        let mapping = tables.add_mapping(mapping);
        for address in addresses.clone() {
            let function = if address > 0 { name } else { TextId::EMPTY };
            samples.push(Frame { function, mapping, address: 16 + address, ..Frame::default() });
        }
    }
    let mut profile = Profile::new(Measure {
        events: "samples".into(),
        weight: "cpu".into(),
        unit: Unit::Nanoseconds,
        period: 0,
    });
    // The one without a name is the last one.
    for frame in samples.iter().rev() {
        let stack = tables.stack(&[*frame]);
        profile.add(stack, LabelSet::default(), 1, 1);
    }
    let message = write(&profile, &tables);
    let has = |part: Vec<u8>| message.windows(part.len()).any(|window| window == part);
    let place = |id| Message::default().int(1, id).int(2, 0x40_0000).int(3, 0x40_1000);
    let named: Vec<bool> = (1..=3)
        .map(|id| {
            let mapping = |has_functions: bool| {
                (5..20).any(|path| {
                    let mapping = place(id).int(5, path);
                    let mapping = if has_functions { mapping.int(7, 1) } else { mapping };
                    has(Message::default().message(3, mapping).0)
                })
            };
            assert_ne!(mapping(true), mapping(false), "{id}");
            mapping(true)
        })
        .collect();
    assert_eq!(named.iter().filter(|named| **named).count(), 1, "{named:?}");
}

/// The time of a profile is that of the wall clock.
#[test]
fn profiles_of_samples_have_their_time() {
    let mut tables = Tables::new();
    let thread = tables.entity(Entity::new(EntityKind::Thread, 7)).unwrap();
    let at = Timestamp::from_nanos;
    let clock = |domain| EventKind::Clock { time: at(5), domain, reading: at(1_000_005) };
    let sample = EventKind::Sample {
        entity: thread,
        kind: SampleKind::Cpu,
        stack: None,
        weight: 1,
        thread: None,
        cpu: None,
        event: SampledEventId::NONE,
        of: None,
    };
    for (domain, start) in [(ClockDomain::Realtime, 1_000_020), (ClockDomain::Boottime, 0)] {
        let mut samples = Samples::new();
        for (time, kind) in [(5, clock(domain)), (20, sample), (50, sample)] {
            samples.push(&Event { time: at(time), kind }, &tables);
        }
        let profiles = samples.into_profiles(&tables);
        assert_eq!(profiles[0].1.span(), (start, 30), "{domain}");
    }
}

/// As in a recording of one event, and one of it and others.
#[test]
fn an_event_of_two_recordings_has_one_profile() {
    let mut tables = Tables::new();
    let thread = tables.entity(Entity::new(EntityKind::Thread, 7)).unwrap();
    let [cycles, faults] = [&b"cycles"[..], b"page-faults"].map(|name| tables.text(name));
    let recorded = [(cycles, false), (cycles, true), (faults, true)];
    let mut samples = Samples::new();
    for (weight, (name, has_others)) in [(10, recorded[0]), (5, recorded[1]), (1, recorded[2])] {
        let unit = TextId::EMPTY;
        let event = tables.add_sampled_event(SampledEvent { name, unit, has_others });
        let (entity, kind, stack) = (thread, SampleKind::Cpu, None);
        let (thread, cpu, of) = (None, None, None);
        let kind = EventKind::Sample { entity, kind, stack, weight, thread, cpu, event, of };
        samples.push(&Event { time: Timestamp::default(), kind }, &tables);
    }
    let profiles = samples.into_profiles(&tables);
    let profiles: Vec<(&str, u64, u64)> = profiles
        .iter()
        .map(|(name, profile)| (name.as_str(), profile.count(), profile.weight()))
        .collect();
    assert_eq!(profiles, [("cycles", 2, 15), ("page-faults", 1, 1)]);
}

/// A message with fields of numbers and of bytes.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    fn int(self, field: u64, value: u64) -> Self {
        self.varint(field << 3).varint(value)
    }

    fn bytes(self, field: u64, bytes: &[u8]) -> Self {
        let mut this = self.varint(field << 3 | 2).varint(bytes.len() as u64);
        this.0.extend_from_slice(bytes);
        this
    }

    fn message(self, field: u64, inner: Self) -> Self {
        self.bytes(field, &inner.0)
    }

    fn texts(self, texts: &[&str]) -> Self {
        texts.iter().fold(self, |this, text| this.bytes(6, text.as_bytes()))
    }

    fn read(&self) -> Result<Vec<Measure>, Error> {
        let file = read_pprof(&self.0, &ReadLimits::default(), &mut Tables::new())?;
        Ok(file.profiles.iter().map(|profile| profile.measure().clone()).collect())
    }
}

fn value_type(kind: u64, unit: u64) -> Message {
    Message::default().int(1, kind).int(2, unit)
}

/// A heap profile of Go: two pairs of counts and bytes; and units of other tools.
#[test]
fn units_and_counts_of_sample_types() {
    let texts =
        ["", "alloc_objects", "count", "alloc_space", "bytes", "inuse_objects", "inuse_space"];
    let mut message = Message::default().texts(&texts);
    for (kind, unit) in [(1, 2), (3, 4), (5, 2), (6, 4)] {
        message = message.message(1, value_type(kind, unit));
    }
    let sample = Message::default().int(2, 1).int(2, 2).int(2, 3).int(2, 4);
    message = message.message(2, sample).int(14, 3);
    let file = read_pprof(&message.0, &ReadLimits::default(), &mut Tables::new()).unwrap();
    assert_eq!(file.default, 1);
    let numbers: Vec<(&str, Unit, u64, u64)> = file
        .profiles
        .iter()
        .map(|profile| {
            let Measure { events, unit, .. } = profile.measure();
            (&**events, *unit, profile.count(), profile.weight())
        })
        .collect();
    let (objects, in_use) = ("alloc_objects", "inuse_objects");
    assert_eq!(
        numbers,
        [
            (objects, Unit::Count, 1, 1),
            (objects, Unit::Bytes, 1, 2),
            (in_use, Unit::Count, 3, 3),
            (in_use, Unit::Bytes, 3, 4)
        ]
    );
    let message = Message::default().texts(&["", "wall", "milliseconds", "fuel", "litres"]);
    let message = message.message(1, value_type(1, 2)).message(1, value_type(3, 4));
    let message = message.message(2, Message::default().bytes(2, &[5, 6]));
    let file = read_pprof(&message.0, &ReadLimits::default(), &mut Tables::new()).unwrap();
    let weights: Vec<(&str, Unit, u64)> = file
        .profiles
        .iter()
        .map(|profile| (&*profile.measure().weight, profile.measure().unit, profile.weight()))
        .collect();
    let expected =
        [("wall", Unit::Nanoseconds, 5_000_000), ("fuel (litres)", Unit::Occurrences, 6)];
    assert_eq!(weights, expected);
}

/// Those of `go tool pprof`.
#[test]
fn units_have_several_names() {
    let of = |unit: &str| {
        let message = Message::default().texts(&["", "x", unit]).message(1, value_type(1, 2));
        let message = message.message(2, Message::default().bytes(2, &[1]));
        let file = read_pprof(&message.0, &ReadLimits::default(), &mut Tables::new()).unwrap();
        (file.profiles[0].measure().unit, file.profiles[0].weight())
    };
    for (names, unit, by) in [
        (&["ns", "NS", "nanoseconds"][..], Unit::Nanoseconds, 1),
        (&["us", "microsecond"], Unit::Nanoseconds, 1000),
        (&["s", "sec", "secs", "Seconds"], Unit::Nanoseconds, 1_000_000_000),
        (&["hr", "hrs", "hours"], Unit::Nanoseconds, 3_600_000_000_000),
        (&["B", "b", "bytes"], Unit::Bytes, 1),
        (&["kB", "KB", "kbytes", "kilobytes"], Unit::Bytes, 1 << 10),
        (&["GB", "gigabyte"], Unit::Bytes, 1 << 30),
        (&["PB"], Unit::Bytes, 1 << 50),
        (&["n", "bs", "litres"], Unit::Occurrences, 1),
    ] {
        for name in names {
            assert_eq!(of(name), (unit, by), "{name}");
        }
    }
}

/// The values of a heap profile are sums of bytes, although it has a period; samples of a CPU profile
/// are counted. Without their number only the time is known.
#[test]
fn folded_stacks_have_bytes_of_heap_profiles_and_samples_of_cpu_profiles() {
    let folded = |types: &[[u64; 2]], period_type, values: &[u8]| {
        let texts = ["", "inuse_objects", "count", "inuse_space", "bytes", "space"];
        let mut message =
            Message::default().texts(&texts).texts(&["samples", "cpu", "nanoseconds"]);
        for [kind, unit] in types {
            message = message.message(1, value_type(*kind, *unit));
        }
        let [kind, unit] = period_type;
        let message = message.message(11, value_type(kind, unit)).int(12, 1 << 19);
        let message = message.message(2, Message::default().bytes(2, values));
        let mut tables = Tables::new();
        let file = read_pprof(&message.0, &ReadLimits::default(), &mut tables).unwrap();
        let mut out = Vec::new();
        file.profiles[file.default].write(Format::Folded, "", &tables, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let (space, cpu) = ([5, 4], [7, 8]);
    assert_eq!(folded(&[[1, 2], [3, 4]], space, &[2, 100]), " 100\n");
    assert_eq!(folded(&[[6, 2], [7, 8]], cpu, &[2, 100]), " 2\n");
    assert_eq!(folded(&[[7, 8]], cpu, &[100]), " 100\n");
}

#[test]
fn errors_have_their_place() {
    let start = || Message::default().texts(&["", "cpu", "count"]).message(1, value_type(1, 2));
    let error = |message: Message| message.read().unwrap_err().to_string();
    assert_eq!(
        Message::default().read().unwrap_err().to_string(),
        "the profile has no sample types"
    );
    // The tables take 22 bytes; a message has 2 bytes before it.
    assert_eq!(start().0.len(), 20);
    let two = Message::default().int(2, 1).int(2, 1);
    assert_eq!(error(start().message(2, two)), "expected 1 values, found 2 at byte 22");
    let negative = Message::default().int(2, -5_i64 as u64);
    let is_difference = "the value -5 is negative at byte 22: the profile is a difference";
    assert_eq!(error(start().message(2, negative)), is_difference);
    let sample = Message::default().int(1, 9).int(2, 1);
    assert_eq!(error(start().message(2, sample)), "there is no location 9 at byte 22");
    let location = Message::default().int(1, 1).int(2, 3);
    assert_eq!(error(start().message(4, location)), "there is no mapping 3 at byte 22");
    assert_eq!(error(start().int(2, 1)), "field 2 has the wire type 0 at byte 20");
    assert_eq!(error(start().bytes(12, b"")), "field 12 has the wire type 2 at byte 20");
    assert_eq!(error(start().varint(3 << 3 | 3)), "field 3 has the wire type 3 at byte 20");
    let short = start().varint(2 << 3 | 2).varint(100);
    assert!(error(short).ends_with("at byte 22"));
    let error = read_pprof(b"\x1f\x8b\x08\0", &ReadLimits::default(), &mut Tables::new());
    assert!(matches!(error, Err(Error::Compression(_))));
}

/// Few bytes that expand: each limit is an error.
#[test]
fn limits_hold() {
    let mut limits = ReadLimits::default();
    (limits.items, limits.frames, limits.depth, limits.bytes) = (40, 50, 20, 200);
    let read = |message: &[u8]| {
        read_pprof(message, &limits, &mut Tables::new()).map(|_| ()).unwrap_err().to_string()
    };
    let location = (0..4).fold(Message::default().int(1, 1), |this, _| this.bytes(4, b""));
    let types =
        || Message::default().message(1, value_type(0, 0)).message(4, Message(location.0.clone()));
    let sample = |calls: usize| Message::default().bytes(1, &vec![1; calls]).int(2, 1);
    assert_eq!(read(&types().message(2, sample(6)).0), "more than 20 frames of a sample");
    let wide = (0..4).fold(types(), |this, _| this.message(2, sample(4)));
    assert_eq!(read(&wide.0), "more than 50 frames");
    let many = (0..45).fold(Message::default(), |this, _| this.bytes(6, b""));
    assert_eq!(read(&many.0), "more than 40 items");
    assert_eq!(read(&[0; 201]), "more than 200 bytes");
    let types = (0..30).fold(Message::default(), |this, _| this.message(1, value_type(0, 0)));
    limits.items = 1 << 10;
    limits.bytes = 1 << 10;
    let many = (0..35).fold(types, |this, _| this.message(1, value_type(0, 0)));
    let error = read_pprof(&many.0, &limits, &mut Tables::new()).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "more than 64 sample types");
    // A bomb: 100 kB of zeros.
    let mut bomb = Vec::new();
    let zeros = vec![0; 100_000];
    let mut encoder = flate2::read::GzEncoder::new(&zeros[..], flate2::Compression::best());
    encoder.read_to_end(&mut bomb).unwrap();
    let error = read_pprof(&bomb, &limits, &mut Tables::new()).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "more than 1024 bytes");
}

/// Each profile of a file has the labels of all samples.
#[test]
fn labels_count_for_each_sample_type() {
    let read = |types: usize| {
        let message = Message::default().texts(&["", "key"]);
        let message = (0..types).fold(message, |this, _| this.message(1, value_type(0, 0)));
        let sample = Message::default().bytes(2, &vec![1; types]);
        let label = || Message::default().int(1, 1).int(3, 7);
        let sample = (0..100).fold(sample, |this, _| this.message(3, label()));
        let mut limits = ReadLimits::default();
        limits.items = 1000;
        let file = read_pprof(&message.message(2, sample).0, &limits, &mut Tables::new());
        file.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(read(1), Ok(()));
    assert_eq!(read(20), Err("more than 1000 items".to_owned()));
}

/// To find a text in the tables takes as long as it is.
#[test]
fn a_text_is_looked_up_once() {
    let mut limits = TableLimits::default();
    limits.text_bytes = 10;
    // Each look-up of one that has no room is counted.
    let mut tables = Tables::with_limits(limits);
    let mut message =
        Message::default().texts(&["", "a text above the limit"]).message(1, value_type(0, 0));
    for id in 1..=100 {
        let function = Message::default().int(1, id).int(2, 1).int(4, 1);
        let mapping = Message::default().int(1, id).int(5, 1).int(6, 1);
        message = message.message(5, function).message(3, mapping);
        let label = Message::default().int(1, 1).int(2, 1);
        message = message.message(2, Message::default().int(2, 1).message(3, label));
    }
    read_pprof(&message.0, &ReadLimits::default(), &mut tables).unwrap();
    assert_eq!(tables.dropped().texts, 1);
}

#[test]
fn long_names_of_sample_types_are_refused() {
    let name = "x".repeat(5000);
    let message = Message::default().texts(&["", &name]).message(1, value_type(1, 0));
    let error = message.read().unwrap_err().to_string();
    assert_eq!(error, "more than 4096 bytes of a name of a sample type");
}
