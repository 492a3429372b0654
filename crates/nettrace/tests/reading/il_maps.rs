//! Maps of IL offsets belong to one compilation of a method: the runtime writes the events of a
//! compilation one after another.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

use crate::analysis::{declare, write};
use crate::common::at;
use nettrace::{IlOffset, MethodMap, Order, Reader};
use proptest::prelude::*;
use testkit::nettrace::{Written, assemble, event, trace, utf16};

const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";
const RUNDOWN: &str = "Microsoft-Windows-DotNETRuntimeRundown";

const TYPES: [(&str, u32, u32); 8] = [
    (RUNTIME, 143, 2),
    (RUNTIME, 190, 1),
    (RUNDOWN, 144, 2),
    (RUNDOWN, 150, 1),
    (RUNTIME, 190, 0),
    (RUNDOWN, 150, 0),
    (RUNTIME, 144, 2),
    (RUNDOWN, 149, 1),
];
/// Their numbers, from 1.
const LOAD: u32 = 1;
const MAP: u32 = 2;
const LISTED: u32 = 3;
const LISTED_MAP: u32 = 4;
const OLD_MAP: u32 = 5;
const OLD_LISTED_MAP: u32 = 6;
const UNLOAD: u32 = 7;
const STARTED_MAP: u32 = 8;

/// An event about a compilation: of a method, with the version of its code, at an address.
fn method(kind: u32, thread: u64, (id, rejit_id, start): (u64, u64, u64)) -> Written {
    let numbers = [id, 1, start].map(u64::to_le_bytes).concat();
    let sizes = [0x40u32, 0x0600_0007, 8].map(u32::to_le_bytes).concat();
    let names = ["App", "Main", "void ()"].map(utf16).concat();
    let rest = [&[0; 2][..], &rejit_id.to_le_bytes()].concat();
    event(kind, 10, thread, &[&numbers, &sizes, &names, &rest])
}

/// An event with a map: offsets in the code and in the IL.
fn map(kind: u32, thread: u64, (id, rejit_id): (u64, u64), entries: &[(u32, u32)]) -> Written {
    let head = [id, rejit_id].map(u64::to_le_bytes).concat();
    let il: Vec<u8> = entries.iter().flat_map(|(_, il)| il.to_le_bytes()).collect();
    let native: Vec<u8> = entries.iter().flat_map(|(native, _)| native.to_le_bytes()).collect();
    let count = (entries.len() as u16).to_le_bytes();
    event(kind, 10, thread, &[&head, &[0], &count, &il, &native, &[0; 10]])
}

fn read(events: &[Written]) -> MethodMap {
    read_stream(&trace(&TYPES, events))
}

fn read_stream(bytes: &[u8]) -> MethodMap {
    let mut methods = MethodMap::new();
    let options = nettrace::Options::new().order(Order::Stream);
    let mut reader = Reader::with_options(bytes, options);
    reader.for_each(|event| _ = methods.push(&event)).unwrap();
    methods
}

/// The start of each method, and the IL offset of its code at 8.
fn offsets(methods: &MethodMap) -> Vec<(u64, Option<u32>)> {
    methods.methods().iter().map(|m| (m.start, m.il_offset(m.start + 8))).collect()
}

#[test]
fn a_map_belongs_to_the_method_beside_it() {
    let methods = read(&[
        method(LOAD, 1, (5, 0, 0x1000)),
        // Another thread compiles meanwhile.
        method(LOAD, 2, (6, 0, 0x2000)),
        map(MAP, 1, (5, 0), &[(0, 0), (8, 3)]),
        map(MAP, 2, (6, 0), &[(0, 0), (8, 4)]),
        // The same method again, optimised.
        method(LOAD, 2, (5, 1, 0x3000)),
        map(MAP, 2, (5, 1), &[(0, 0), (8, 5)]),
        // The list at the end.
        map(LISTED_MAP, 1, (7, 0), &[(4, 6)]),
        method(LISTED, 1, (7, 0, 0x4000)),
        map(LISTED_MAP, 1, (5, 0), &[(8, 3)]),
        method(LISTED, 1, (5, 0, 0x1000)),
    ]);
    let expected = [(0x1000, Some(3)), (0x2000, Some(4)), (0x3000, Some(5)), (0x4000, Some(6))];
    assert_eq!(offsets(&methods), expected);
    assert_eq!(methods.unmatched_il_maps(), 0);
    let first = &methods.methods()[0];
    assert_eq!(first.token, 0x0600_0007);
    let entries: Vec<_> = first.il_map.as_ref().unwrap().entries().collect();
    assert_eq!(entries, [(0, IlOffset::At(0)), (8, IlOffset::At(3))]);
    assert_eq!((first.il_offset(0xfff), first.il_offset(0x1040)), (None, None), "outside its code");
    assert_eq!(methods.resolve(42, 0x1009, at(10)).il_offset, Some(3));
    assert_eq!(methods.resolve(42, 0x9000, at(10)).il_offset, None);
}

/// A collector can write the events of all threads.
#[test]
fn a_map_belongs_to_a_method_of_its_thread() {
    let events = [
        method(LOAD, 1, (5, 0, 0x1000)),
        method(LOAD, 2, (6, 0, 0x2000)),
        map(MAP, 1, (5, 0), &[(8, 3)]),
        map(MAP, 2, (6, 0), &[(8, 4)]),
    ];
    let methods = read(&events.map(|written| Written { by: 9, ..written }));
    assert_eq!(offsets(&methods), [(0x1000, Some(3)), (0x2000, Some(4))]);
    assert_eq!(methods.unmatched_il_maps(), 0);
}

/// A collector may not know the ids of threads.
#[test]
fn a_map_belongs_to_a_method_of_its_thread_without_an_id() {
    let mut stream = assemble::V6::new();
    // Size, index, process id.
    stream.block(6, &[1, 2].map(|n: u8| [3, 0, n, 2, 42]).concat());
    declare(&mut stream, &[(RUNTIME, 143, 2, "", &[]), (RUNTIME, 190, 1, "", &[])]);
    for (thread, written) in [
        (1, method(LOAD, 1, (5, 0, 0x1000))),
        (2, method(LOAD, 2, (6, 0, 0x2000))),
        (1, map(MAP, 1, (5, 0), &[(8, 3)])),
        (2, map(MAP, 2, (6, 0), &[(8, 4)])),
    ] {
        write(&mut stream, written.metadata as u8, thread, 10, &written.payload);
    }
    let methods = read_stream(&stream.end());
    assert_eq!(offsets(&methods), [(0x1000, Some(3)), (0x2000, Some(4))]);
    assert_eq!(methods.unmatched_il_maps(), 0);
}

/// A method that is only listed gets the map of the list; one whose load event had no map, too.
#[test]
fn the_list_adds_maps_to_known_methods() {
    let methods = read(&[
        method(LOAD, 1, (5, 0, 0x1000)),
        map(LISTED_MAP, 3, (5, 0), &[(8, 3)]),
        method(LISTED, 3, (5, 0, 0x1000)),
    ]);
    assert_eq!(offsets(&methods), [(0x1000, Some(3))]);
}

#[test]
fn a_map_without_its_method_is_counted() {
    let methods = read(&[
        map(MAP, 1, (5, 0), &[(0, 1)]),
        method(LOAD, 1, (5, 0, 0x1000)),
        // That of a compilation whose event was lost.
        map(MAP, 1, (5, 1), &[(0, 2)]),
        map(MAP, 2, (5, 0), &[(0, 3)]),
        method(UNLOAD, 1, (5, 0, 0x1000)),
        map(MAP, 1, (5, 0), &[(0, 4)]),
        // In the list: the events of methods were lost.
        map(LISTED_MAP, 1, (5, 0), &[(0, 5)]),
        map(LISTED_MAP, 1, (8, 0), &[(0, 6)]),
        method(LISTED, 1, (9, 0, 0x5000)),
    ]);
    assert_eq!(offsets(&methods), [(0x1000, None), (0x5000, None)]);
    assert_eq!(methods.unmatched_il_maps(), 6);
}

/// Version 0 of the event has the version of the IL in place of that of the code.
#[test]
fn old_maps_belong_to_the_event_before_or_after() {
    let methods = read(&[
        method(LOAD, 1, (5, 3, 0x1000)),
        map(OLD_MAP, 1, (5, 0), &[(0, 1)]),
        map(OLD_LISTED_MAP, 1, (6, 0), &[(0, 2)]),
        method(LISTED, 1, (6, 2, 0x2000)),
        method(LOAD, 1, (7, 0, 0x3000)),
        // Not directly behind its method: it could be that of another compilation.
        event(STARTED_MAP, 10, 1, &[&[0; 29]]),
        map(OLD_MAP, 1, (7, 0), &[(0, 3)]),
    ]);
    assert_eq!(offsets(&methods), [(0x1000, Some(1)), (0x2000, Some(2)), (0x3000, None)]);
    assert_eq!(methods.unmatched_il_maps(), 2);
    let methods =
        read(&[method(LISTED, 1, (5, 0, 0x1000)), map(STARTED_MAP, 1, (5, 0), &[(0, 1)])]);
    assert_eq!(offsets(&methods), [(0x1000, Some(1))]);
}

#[test]
fn malformed_maps_are_counted() {
    let mut short = map(MAP, 1, (5, 0), &[(0, 1)]);
    short.payload.truncate(24);
    let mut cold = map(MAP, 1, (5, 0), &[(0, 1)]);
    cold.payload[16] = 1;
    let methods = read(&[method(LOAD, 1, (5, 0, 0x1000)), short, cold]);
    assert_eq!(offsets(&methods), [(0x1000, None)]);
    assert_eq!(methods.unmatched_il_maps(), 2);
}

/// A method at address 0 would be the name of whatever is there.
#[test]
fn methods_without_an_address_are_counted() {
    let whole = method(LOAD, 1, (5, 0, 0x1000));
    for (length, is_known) in [(8, false), (16, false), (24, false), (27, false), (28, true)] {
        let mut cut = whole.clone();
        cut.payload.truncate(length);
        let methods = read(&[cut]);
        let counts = (methods.methods().len(), methods.undecodable());
        assert_eq!(counts, (usize::from(is_known), u64::from(!is_known)), "{length} bytes");
    }
}

#[test]
fn maps_are_within_the_limits() {
    let limits = nettrace::Limits { max_buffer: 4096, ..Default::default() };
    let mut methods = MethodMap::with_limits(limits);
    let entries: Vec<(u32, u32)> = (0..1000).map(|n| (n, n)).collect();
    let events = [method(LOAD, 1, (5, 0, 0x1000)), map(MAP, 1, (5, 0), &entries)];
    let bytes = trace(&TYPES, &events);
    Reader::new(&bytes[..]).for_each(|event| _ = methods.push(&event)).unwrap();
    assert_eq!((offsets(&methods), methods.dropped()), (vec![(0x1000, None)], 1));
}

proptest! {
    /// Any payloads, in any order: every map is that of its compilation, or counted.
    #[test]
    fn any_maps_are_read(
        events in proptest::collection::vec(
            (1u32..9, 1u64..4, 0u64..3, 0u64..2, proptest::collection::vec(any::<u8>(), 0..60)),
            0..40,
        ),
    ) {
        let written: Vec<Written> = events
            .iter()
            .map(|(kind, thread, id, rejit_id, bytes)| {
                let mut written = match *kind {
                    LOAD | LISTED | UNLOAD => {
                        method(*kind, *thread, (*id, *rejit_id, 0x1000 * (1 + id + 8 * rejit_id)))
                    }
                    // The IL offset identifies the compilation.
                    _ => map(*kind, *thread, (*id, *rejit_id), &[(0, (1 + id + 8 * rejit_id) as u32)]),
                };
                if let [0, rest @ ..] = &bytes[..] {
                    written.payload = rest.to_vec();
                }
                written
            })
            .collect();
        let methods = read(&written);
        for method in methods.methods() {
            let Some(il) = method.il_offset(method.start + 8) else { continue };
            let damaged = written.iter().any(|w| w.payload.len() < 29);
            let is_old = events.iter().any(|e| matches!(e.0, OLD_MAP | OLD_LISTED_MAP));
            prop_assert!(damaged || is_old || 0x1000 * u64::from(il) == method.start);
        }
    }
}
