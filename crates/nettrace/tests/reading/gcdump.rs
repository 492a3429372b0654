//! `.gcdump` files: what is written is read again, and damage is an error.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;
use nettrace::Reader;
use nettrace::analysis::{HeapNode, HeapSnapshot};
use nettrace::gcdump::{DumpInfo, GcDumpErrorKind, HeapGraph, difference};
use proptest::prelude::*;
use std::time::{Duration, UNIX_EPOCH};
use testkit::nettrace::assemble::{utf16z, v4};
use trace_common::Limits;

const RUNTIME: &str = "Microsoft-Windows-DotNETRuntime";

fn push(heap: &mut HeapSnapshot, event: u32, count: usize, values: &[Vec<u8>]) {
    push_chunk(heap, 0, event, count, values);
}

fn push_chunk(heap: &mut HeapSnapshot, chunk: u32, event: u32, count: usize, values: &[Vec<u8>]) {
    // Index (of those that have one), Count, ClrInstanceID, values.
    let mut payload = Vec::new();
    if [16, 17, 18, 19].contains(&event) {
        payload.extend(chunk.to_le_bytes());
    }
    payload.extend((count as u32).to_le_bytes());
    if event == 38 {
        payload.extend(0u64.to_le_bytes());
    }
    payload.extend(7u16.to_le_bytes());
    payload.extend(values.concat());
    let stream = v4(RUNTIME, event, 0, &0u32.to_le_bytes(), &payload);
    let mut reader = Reader::new(&stream[..]);
    while let Some(event) = reader.next_event().unwrap() {
        heap.push(&event);
    }
}

fn gc_type(id: u64, name: &str) -> Vec<u8> {
    let mut out = id.to_le_bytes().to_vec();
    out.extend([0; 8 + 4 + 4 + 1]);
    out.extend(utf16z(name));
    out.extend(0u32.to_le_bytes());
    out
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A root: address, kind, flags.
fn root(address: u64, kind: u8, flags: u32) -> Vec<u8> {
    let mut out = address.to_le_bytes().to_vec();
    out.push(kind);
    out.extend(flags.to_le_bytes());
    out.extend([0; 8]);
    out
}

/// A list of two strings on the stack, a static cache, a weak reference, garbage.
fn heap() -> HeapSnapshot {
    let mut heap = HeapSnapshot::new();
    let list = "System.Collections.Generic.List`1[System.String]";
    let types = [gc_type(1, "System.String"), gc_type(2, list), gc_type(3, "System.Byte[]")];
    push(&mut heap, 15, 3, &types);
    // address, size, type, number of references
    let nodes = [
        words(&[0x100, 32, 2, 2]),
        words(&[0x200, 22, 1, 0]),
        words(&[0x300, 40, 1, 0]),
        words(&[0x400, 85_024, 3, 0]),
        words(&[0x500, 24, 3, 0]),
    ];
    push(&mut heap, 18, 5, &nodes);
    let edge = |to: u64| [words(&[to]), vec![0; 4]].concat();
    push(&mut heap, 19, 2, &[edge(0x200), edge(0x300)]);
    push(&mut heap, 16, 2, &[root(0x100, 0, 0), root(0x500, 2, 2)]);
    let mut variable = words(&[9, 0x400, 3]);
    variable.extend(0u32.to_le_bytes());
    variable.extend(utf16z("Cache.s_pages"));
    push(&mut heap, 38, 1, &[variable]);
    heap
}

fn info() -> DumpInfo {
    let mut info = DumpInfo::default();
    info.process_name = Some("shop ✓".into());
    info.pid = 42;
    info.machine = Some("box".into());
    info.collected = Some(UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_700));
    info.tool = Some("test".into());
    info
}

fn file() -> Vec<u8> {
    let mut out = Vec::new();
    HeapGraph::from_snapshot(&heap(), info()).write(&mut out).unwrap();
    out
}

#[test]
fn a_walk_becomes_a_graph_with_the_names_of_the_vendors_tool() {
    let graph = HeapGraph::from_snapshot(&heap(), info());
    assert_eq!((graph.object_count(), graph.total_size()), (5, heap().total_size()));
    let totals: Vec<_> = graph.totals().into_iter().map(|t| (t.name, t.count, t.size)).collect();
    assert_eq!(
        totals,
        [
            ("System.Byte[] (Bytes > 10K)".into(), 1, 85_024),
            ("System.String".into(), 2, 62),
            ("System.Collections.Generic.List<System.String>".into(), 1, 32),
            ("System.Byte[]".into(), 1, 24),
        ]
    );
}

/// `GCStart` (1) or `GCEnd` (2) of a GC.
fn push_gc(heap: &mut HeapSnapshot, event: u32, number: u32) {
    let payload = [&number.to_le_bytes()[..], &[0; 14]].concat();
    let stream = v4(RUNTIME, event, 0, &0u32.to_le_bytes(), &payload);
    let mut reader = Reader::new(&stream[..]);
    while let Some(event) = reader.next_event().unwrap() {
        heap.push(&event);
    }
}

/// A heap dump of one object and its roots, which come first.
fn push_dump(heap: &mut HeapSnapshot, number: u32) {
    push_gc(heap, 1, number);
    let mut variable = words(&[9, 0x200, 1]);
    variable.extend(0u32.to_le_bytes());
    variable.extend(utf16z("Cache.s_text"));
    push(heap, 38, 1, &[variable]);
    push(heap, 16, 1, &[root(0x200, 0, 0)]);
    push(heap, 18, 1, &[words(&[0x200, 22, 1, 0])]);
    push_gc(heap, 2, number);
}

#[test]
fn the_last_of_several_walks_keeps_its_roots() {
    // One heap dump fits, two do not.
    let limits = Limits { max_buffer: 400, ..Limits::default() };
    let mut heap = HeapSnapshot::with_limits(limits);
    push(&mut heap, 15, 1, &[gc_type(1, "System.String")]);
    for number in 1..=10 {
        push_dump(&mut heap, number);
        // A GC without a heap dump changes nothing.
        push_gc(&mut heap, 1, 100 + number);
        push_gc(&mut heap, 2, 100 + number);
        assert_eq!((heap.nodes().len(), heap.roots().len()), (1, 2), "{number}");
        assert!(heap.is_complete(), "{number}: {:?}", heap.missing());
    }
}

#[test]
fn missing_parts_of_the_roots_are_counted() {
    let mut heap = HeapSnapshot::new();
    push(&mut heap, 15, 1, &[gc_type(1, "System.String")]);
    push_gc(&mut heap, 1, 1);
    push_chunk(&mut heap, 2, 16, 1, &[root(0x200, 0, 0)]);
    push_chunk(&mut heap, 1, 17, 1, &[words(&[0x200, 0x200, 0])]);
    push(&mut heap, 18, 1, &[words(&[0x200, 22, 1, 0])]);
    push_gc(&mut heap, 2, 1);
    assert_eq!((heap.is_complete(), heap.missing()), (false, (3, 0)));
}

/// Three parts of two objects each, with one reference each, to the object itself. `without` are the events and
/// the parts that are missing. Returns how many objects have no known references, and the objects with theirs.
fn walk(without: &[(u32, u32)]) -> (usize, Vec<(u64, Vec<u64>)>) {
    let mut heap = HeapSnapshot::new();
    push(&mut heap, 15, 1, &[gc_type(1, "System.String")]);
    push_gc(&mut heap, 1, 1);
    for part in 0..3 {
        let addresses = [0, 1].map(|n| u64::from(part) * 0x200 + 0x100 + n * 0x100);
        let nodes = addresses.map(|address| words(&[address, 24, 1, 1]));
        let edges = addresses.map(|address| [words(&[address]), vec![0; 4]].concat());
        for (event, values) in [(18, nodes), (19, edges)] {
            if !without.contains(&(event, part)) {
                push_chunk(&mut heap, part, event, 2, &values);
            }
        }
    }
    push_gc(&mut heap, 2, 1);
    assert_eq!(heap.is_complete(), without.is_empty());
    // Objects that are missing are not in the graph as those that others refer to.
    let graph = HeapGraph::from_snapshot(&heap, info());
    assert_eq!(graph.object_count(), heap.nodes().len());
    let nodes = heap.nodes().iter().map(|node| (node.address, heap.edges(node).to_vec()));
    (heap.unknown_references(), nodes.collect())
}

/// Only the order of objects and references relates them.
#[test]
fn objects_after_a_missing_part_have_no_references_of_others() {
    let own = |address: u64| (address, vec![address]);
    let unknown = |address: u64| (address, Vec::new());
    let [a, b, c, d, e, f] = [1, 2, 3, 4, 5, 6].map(|n| n * 0x100);
    assert_eq!(walk(&[]), (0, [a, b, c, d, e, f].map(own).to_vec()));
    // Part 1 of the objects.
    assert_eq!(walk(&[(18, 1)]), (2, vec![own(a), own(b), unknown(e), unknown(f)]));
    // Part 1 of the references: those of part 2 came.
    let rest = [c, d, e, f].map(unknown);
    assert_eq!(walk(&[(19, 1)]), (4, [&[own(a), own(b)][..], &rest].concat()));
    // Part 0 of the objects, and all references.
    assert_eq!(walk(&[(18, 0)]), (4, [c, d, e, f].map(unknown).to_vec()));
}

/// Objects that are not in the event which should have them, and a reference for which there is no room, are
/// missing, too.
#[test]
fn objects_after_one_that_is_left_out_have_no_references_of_others() {
    let mut heap = HeapSnapshot::new();
    let edge = |to: u64| [words(&[to]), vec![0; 4]].concat();
    push(&mut heap, 18, 1, &[words(&[0x100, 24, 1, 1])]);
    push_chunk(&mut heap, 1, 18, 1, &[]);
    push_chunk(&mut heap, 2, 18, 1, &[words(&[0x300, 24, 1, 1])]);
    assert_eq!(heap.missing(), (0, 1));
    push(&mut heap, 19, 3, &[edge(0x100), edge(0x200), edge(0x300)]);
    let edges: Vec<&[u64]> = heap.nodes().iter().map(|node| heap.edges(node)).collect();
    assert_eq!((edges, heap.unknown_references()), (vec![&[0x100][..], &[]], 1));

    let nodes = [words(&[0x100, 24, 1, 2]), words(&[0x200, 24, 1, 1])];
    let room = 2 * size_of::<HeapNode>() + size_of::<u64>();
    let limits = Limits { max_buffer: room, ..Limits::default() };
    let mut heap = HeapSnapshot::with_limits(limits);
    push(&mut heap, 18, 2, &nodes);
    push(&mut heap, 19, 3, &[edge(0x100), edge(0x200), edge(0x200)]);
    let edges: Vec<&[u64]> = heap.nodes().iter().map(|node| heap.edges(node)).collect();
    assert_eq!((edges, heap.unknown_references()), (vec![&[0x100][..], &[]], 2));
}

#[test]
fn a_walk_is_complete_when_every_type_is_described() {
    let mut heap = HeapSnapshot::new();
    push_gc(&mut heap, 1, 5);
    push(&mut heap, 18, 1, &[words(&[0x200, 22, 1, 0])]);
    push_gc(&mut heap, 2, 5);
    assert_eq!((heap.is_complete(), heap.undescribed_types()), (false, 1));
    push(&mut heap, 15, 1, &[gc_type(1, "System.String")]);
    assert_eq!((heap.is_complete(), heap.undescribed_types()), (true, 0));
}

#[test]
fn paths_lead_from_the_root_to_the_object() {
    let graph = HeapGraph::from_snapshot(&heap(), info());
    let path = |name| {
        let paths = graph.paths_to(name, 1);
        paths[0].iter().map(|step| step.name.clone()).collect::<Vec<_>>()
    };
    let list = "System.Collections.Generic.List<System.String>";
    assert_eq!(path("System.String"), ["[.NET Roots]", "[local vars]", list, "System.String"]);
    let large = "System.Byte[] (Bytes > 10K)";
    for name in [large, "System.Byte[]"] {
        let steps = ["[.NET Roots]", "[static vars]", "[static var Cache.s_pages]", large];
        assert_eq!(path(name), steps, "{name}");
    }
    assert_eq!(graph.paths_to(large, 2).len(), 1);
    let [_, small] = &graph.paths_to("System.Byte[]", 2)[..] else { panic!() };
    let [small] = &small[..] else { panic!("only a weak reference leads to it: {small:?}") };
    assert!(small.name == "System.Byte[]" && small.address != 0 && small.size > 0, "{small:?}");
    assert!(graph.paths_to("System.Nothing", 1).is_empty());
}

#[test]
fn written_dumps_are_read() {
    let graph = HeapGraph::from_snapshot(&heap(), info());
    let again = HeapGraph::parse(&file()).unwrap();
    assert!(HeapGraph::is_gcdump(&file()[..HeapGraph::PREFIX]));
    assert!(!HeapGraph::is_gcdump(&file()[..HeapGraph::PREFIX - 1]));
    assert_eq!(again.info, info());
    assert_eq!(again.totals(), graph.totals());
    assert_eq!(again.paths_to("System.String", 9), graph.paths_to("System.String", 9));
    assert_eq!(again.reference_count(), graph.reference_count());
}

/// That of the fixtures, with which the fuzzer begins.
#[test]
fn a_dump_in_a_file_is_written_again_as_it_is() {
    let bytes = std::fs::read(common::data().join("heap.gcdump")).unwrap();
    let graph = HeapGraph::parse(&bytes).unwrap();
    assert_eq!((graph.object_count(), graph.total_size(), graph.reference_count()), (3, 86, 6));
    let mut again = Vec::new();
    graph.write(&mut again).unwrap();
    assert_eq!(again, bytes);
}

/// A file has sizes of 31 bits.
#[test]
fn objects_of_more_than_4_gib_have_their_size() {
    const SIZE: u64 = 8_000_000_024;
    let mut heap = HeapSnapshot::new();
    push(&mut heap, 15, 1, &[gc_type(1, "System.Int64[]")]);
    push(&mut heap, 18, 2, &[words(&[0x100, SIZE, 1, 0]), words(&[0x200, u64::MAX, 1, 0])]);
    push(&mut heap, 16, 1, &[root(0x100, 0, 0)]);
    let graph = HeapGraph::from_snapshot(&heap, info());
    let name = "System.Int64[] (Bytes > 100M)";
    assert_eq!((graph.total_size(), graph.oversized()), (u64::MAX, 2));
    let totals: Vec<_> = graph.totals().into_iter().map(|t| (t.name, t.count, t.size)).collect();
    assert_eq!(totals, [(name.to_owned(), 2, u64::MAX)]);
    let sizes = |graph: &HeapGraph| -> Vec<u64> {
        let paths = graph.paths_to(name, 9);
        paths.iter().filter_map(|path| Some(path.last()?.size)).collect()
    };
    // The larger one is not reachable.
    assert_eq!(sizes(&graph), [SIZE, u64::MAX]);
    let mut file = Vec::new();
    graph.write(&mut file).unwrap();
    let again = HeapGraph::parse(&file).unwrap();
    assert_eq!((sizes(&again), again.oversized()), (vec![(1 << 31) - 1; 2], 0));
}

#[test]
fn a_difference_has_what_grew_first_and_nothing_that_stayed() {
    let before = HeapGraph::from_snapshot(&heap(), info()).totals();
    let mut after = before.clone();
    after[1].count += 3;
    after[1].size += 96;
    after.retain(|total| total.name != "System.Byte[]");
    let deltas: Vec<_> = difference(&before, &after)
        .into_iter()
        .map(|d| (d.name.clone(), d.count_change(), d.size_change()))
        .collect();
    assert_eq!(deltas, [("System.String".into(), 3, 96), ("System.Byte[]".into(), -1, -24)]);
}

#[test]
fn other_files_are_refused() {
    for bytes in [&b""[..], b"Nettrace", b"\x14\0\0\0!FastSerialization.2"] {
        let error = HeapGraph::parse(bytes).unwrap_err();
        assert_eq!((error.offset, error.kind), (0, GcDumpErrorKind::NotGcDump));
    }
    let mut newer = file();
    let version = newer.windows(4).position(|w| w == 10i32.to_le_bytes()).unwrap();
    newer[version..version + 4].copy_from_slice(&11i32.to_le_bytes());
    let error = HeapGraph::parse(&newer).unwrap_err();
    assert_eq!(error.kind, GcDumpErrorKind::UnsupportedVersion(11));
}

#[test]
fn every_cut_is_an_error_with_an_offset_within_the_file() {
    let file = file();
    for cut in 0..file.len() {
        let result = HeapGraph::parse(&file[..cut]);
        let error = result.expect_err("a file that is cut is not whole");
        assert!(error.offset <= cut as u64, "{error} in {cut} bytes");
    }
}

/// On a machine of 32 bits, four times a reference does not fit into an address.
#[test]
fn numbers_of_any_size_are_read_or_refused() {
    let file = file();
    for place in 0..file.len() - 4 {
        for number in [u32::MAX, 1 << 31, 1 << 30] {
            let mut damaged = file.clone();
            damaged[place..place + 4].copy_from_slice(&number.to_le_bytes());
            if let Err(error) = HeapGraph::parse(&damaged) {
                assert!(error.offset <= file.len() as u64, "{error} with {number} at {place}");
            }
        }
    }
}

proptest! {
    #[test]
    fn damage_never_panics(at in prop::collection::vec((0usize..2000, any::<u8>()), 1..8)) {
        let mut file = file();
        let length = file.len();
        for (place, byte) in at {
            file[place % length] = byte;
        }
        if let Ok(graph) = HeapGraph::parse(&file) {
            graph.totals();
            graph.paths_to("System.String", 3);
            graph.write(Vec::new()).unwrap();
        }
    }
}
