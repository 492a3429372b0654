//! Core files: segments, notes, and what is missing. `cargo xtask test-go --flight` reads those of the
//! kernel.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod common;

use common::Elf;
use go_flight::{CoreFile, Error, Limits, Memory, Program, Result};
use proptest::prelude::*;
use std::io::Cursor;

/// A core file with these segments (address, content) and this `AT_PHDR`.
fn core(segments: &[(u64, &[u8])], program_headers: u64) -> Vec<u8> {
    let mut note = Vec::new();
    let auxv: Vec<u8> =
        [6u64, 4096, 3, program_headers, 0, 0].into_iter().flat_map(u64::to_le_bytes).collect();
    for (type_, content) in [(1u32, &[7u8; 10][..]), (6, &auxv)] {
        note.extend(5u32.to_le_bytes());
        note.extend((content.len() as u32).to_le_bytes());
        note.extend(type_.to_le_bytes());
        note.extend_from_slice(b"CORE\0\0\0\0");
        note.extend_from_slice(content);
        note.resize(note.len().next_multiple_of(4), 0);
    }
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0\x3e\0\x01\0\0\0".to_vec();
    for word in [0u64, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64, 56, segments.len() as u16 + 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let mut offset = file.len() as u64 + 56 * (segments.len() as u64 + 1);
    let mut content = Vec::new();
    for (type_, address, bytes) in
        [(4u32, 0, &note[..])].into_iter().chain(segments.iter().map(|(a, b)| (1, *a, *b)))
    {
        let size = bytes.len() as u64;
        file.extend(type_.to_le_bytes());
        file.extend(6u32.to_le_bytes());
        for word in [offset, address, 0, size, size, 4] {
            file.extend(word.to_le_bytes());
        }
        offset += size;
        content.extend_from_slice(bytes);
    }
    [file, content].concat()
}

fn program() -> Program {
    Program::parse(Cursor::new(Elf::default().bytes())).unwrap()
}

fn read(core: &mut impl Memory, address: u64, len: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; len];
    core.read_at(address, &mut bytes).map(|()| bytes).map_err(|error| error.to_string())
}

#[test]
fn memory_is_that_of_the_segments() {
    let segments: &[(u64, &[u8])] = &[(0x3000, b"later"), (0x1000, b"first"), (0x1005, b"next")];
    let bytes = core(segments, 0x40_0040);
    let mut parsed = CoreFile::parse(Cursor::new(&bytes)).unwrap();
    assert_eq!(read(&mut parsed, 0x1000, 5).unwrap(), b"first");
    assert_eq!(read(&mut parsed, 0x1003, 6).unwrap(), b"stnext");
    assert_eq!(read(&mut parsed, 0x3004, 1).unwrap(), b"r");
    assert_eq!(read(&mut parsed, 7, 0).unwrap(), b"");
    for (address, len) in [(0xfff, 1), (0x1009, 1), (0x1008, 2), (0x3005, 1), (u64::MAX, 1)] {
        let missing = read(&mut parsed, address, len).unwrap_err();
        assert_eq!(missing, "the core file does not contain it", "{address:#x}");
    }
    let mut cut = CoreFile::parse(Cursor::new(&bytes[..bytes.len() - 1])).unwrap();
    assert_eq!(read(&mut cut, 0x1008, 1).unwrap_err(), "the core file is truncated");
}

#[test]
fn the_load_address_is_that_of_the_auxiliary_vector() {
    // A position-independent program, moved by 0x1000: its variable is behind the end of this segment.
    let mut moved =
        CoreFile::parse(Cursor::new(core(&[(0x50_1000, &[0; 48])], 0x40_1040))).unwrap();
    let error = moved.snapshot(&program(), Limits::default()).unwrap_err();
    assert!(matches!(error, Error::Memory { address: 0x50_1030, .. }), "{error}");
    let mut idle = CoreFile::parse(Cursor::new(core(&[(0x50_1000, &[0; 56])], 0x40_1040))).unwrap();
    assert!(matches!(idle.snapshot(&program(), Limits::default()), Err(Error::NotRunning)));
}

#[test]
fn other_files_are_refused() {
    let error = |bytes: &[u8]| CoreFile::parse(Cursor::new(bytes)).unwrap_err().to_string();
    assert!(error(b"").ends_with("it is not a 64-bit ELF file"));
    assert!(error(&Elf::default().bytes()).ends_with("but not a core file"));
    let mut bytes = core(&[], 0x40_0040);
    let at = bytes.windows(12).position(|w| w[..4] == [5, 0, 0, 0] && w[8] == 6).unwrap();
    bytes[at + 8] = 7;
    assert!(error(&bytes).ends_with("it has no auxiliary vector with AT_PHDR"));
}

/// Those of all segments together.
#[test]
fn notes_have_a_limit() {
    let mut bytes = core(&[(0x50_0000, &[0; 64])], 0x40_0040);
    let second = 64 + 56;
    bytes[second] = 4; // `PT_NOTE`
    bytes[second + 32..second + 40].copy_from_slice(&(256u64 << 20).to_le_bytes());
    let error = CoreFile::parse(Cursor::new(bytes)).unwrap_err().to_string();
    assert!(error.ends_with("its notes are too large"), "{error}");
}

proptest! {
    #[test]
    fn damaged_files_do_no_harm(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = core(&[(0x50_0000, &[0; 64]), (0x60_0000, b"more")], 0x40_0040);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for end in [bytes.len(), cut.index(bytes.len())] {
            if let Ok(mut core) = CoreFile::parse(Cursor::new(&bytes[..end])) {
                prop_assert!(core.snapshot(&program(), Limits::default()).is_err());
            }
        }
    }
}
