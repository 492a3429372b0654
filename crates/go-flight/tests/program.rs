//! Programs: which are accepted, and where their flight recorder is looked for.

mod common;

use common::Elf;
use go_flight::{Error, Limits, Memory, Program, Result};
use proptest::prelude::*;
use std::io::{self, Cursor};

fn parse(elf: &Elf) -> Result<Program> {
    Program::parse(Cursor::new(elf.bytes()))
}

/// Notes what is read, and has nothing.
#[derive(Default)]
struct Empty(Vec<u64>);

impl Memory for Empty {
    fn read_at(&mut self, address: u64, _: &mut [u8]) -> io::Result<()> {
        self.0.push(address);
        Err(io::ErrorKind::AddrNotAvailable.into())
    }
}

/// The first address that a snapshot reads.
fn first_read(program: &Program, load_bias: u64) -> u64 {
    let mut memory = Empty::default();
    let read = program.snapshot(&mut memory, load_bias, Limits::default());
    assert!(matches!(read, Err(Error::Memory { .. })));
    memory.0[0]
}

#[test]
fn the_variable_is_that_of_the_symbol() {
    let program = parse(&Elf { tracing: Some(0x51_0000), ..Elf::default() }).unwrap();
    assert_eq!(program.go_version(), "go1.26.6");
    assert!(program.has_symbols());
    // The field `flightRecorder`.
    assert_eq!(first_read(&program, 0), 0x51_0000 + 48);
    let bias = program.load_bias(0x5555_5540_0040);
    assert_eq!(bias, 0x5555_5500_0000);
    assert_eq!(first_read(&program, bias), 0x5555_5551_0000 + 48);
}

#[test]
fn a_program_without_symbols_is_searched_in_its_bss() {
    let program = parse(&Elf { is_stripped: true, bss: (0x52_0000, 4096), ..Elf::default() });
    let program = program.unwrap();
    assert!(!program.has_symbols());
    assert_eq!(first_read(&program, 0x1000), 0x52_1000);
    let small = parse(&Elf { is_stripped: true, bss: (0x52_0000, 40), ..Elf::default() }).unwrap();
    let found = small.snapshot(&mut Empty::default(), 0, Limits::default());
    assert!(matches!(found, Err(Error::NotFound)));
    let large = Elf { is_stripped: true, bss: (u64::MAX - 9, u64::MAX), ..Elf::default() };
    let found = parse(&large).unwrap().snapshot(&mut Empty::default(), 0x1000, Limits::default());
    assert!(found.is_err());
}

/// `strip -x` of a program that a C linker linked removes the symbols of Go, and not those of C.
#[test]
fn a_program_with_symbols_of_c_alone_is_searched() {
    for other in ["main", "runtime/trace.tracings", "runtime.main.func1"] {
        let program = parse(&Elf { tracing: None, other, ..Elf::default() }).unwrap();
        assert!(!program.has_symbols());
        assert_eq!(first_read(&program, 0), 0x50_0000);
    }
}

#[test]
fn unknown_programs_are_refused() {
    let error = |elf: &Elf| parse(elf).unwrap_err().to_string();
    let of = |version: &str| Elf { version: version.to_owned(), ..Elf::default() };
    for known in ["go1.25", "go1.26.6", "go1.27.3 X:nodwarf5"] {
        assert!(parse(&of(known)).is_ok(), "{known}");
    }
    for unknown in ["go1.24.11", "go1.99", "devel go1.28-abcdef", ""] {
        let expected =
            format!("the layouts of {unknown} are unknown; they are known for Go 1.25, 1.26, 1.27");
        assert_eq!(error(&of(unknown)), expected);
    }
    assert!(parse(&Elf { machine: 183, ..Elf::default() }).is_ok(), "arm64");
    let riscv = Elf { machine: 243, ..Elf::default() };
    assert!(error(&riscv).contains("ELF machine 243"), "{}", error(&riscv));
    let unused = Elf { tracing: None, ..Elf::default() };
    assert!(matches!(parse(&unused), Err(Error::NotLinked)));
    assert!(matches!(Program::parse(Cursor::new(b"#!/bin/sh")), Err(Error::Elf(_))));
    let mut other = Elf::default().bytes();
    let at = other.windows(13).position(|w| w == b".go.buildinfo").unwrap();
    other[at] = b'_';
    assert!(matches!(Program::parse(Cursor::new(other)), Err(Error::NotGo)));
}

proptest! {
    #[test]
    fn damaged_files_do_no_harm(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        is_stripped in any::<bool>(),
    ) {
        let mut bytes = Elf { is_stripped, ..Elf::default() }.bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for end in [bytes.len(), cut.index(bytes.len())] {
            if let Ok(program) = Program::parse(Cursor::new(&bytes[..end])) {
                let mut memory = Empty::default();
                prop_assert!(program.snapshot(&mut memory, 0, Limits::default()).is_err());
                prop_assert!(memory.0.len() < 10);
            }
        }
    }
}

#[test]
fn types_are_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Program>();
    is_shared::<go_flight::Snapshot>();
    is_shared::<Error>();
}
