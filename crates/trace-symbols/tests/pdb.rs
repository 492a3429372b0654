//! Lines of a Portable PDB file that Mono.Cecil wrote, beside an assembly and in it.
#![cfg(feature = "pdb")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::path::{Path, PathBuf};
use trace_symbols::pdb::{Assembly, PdbFiles, PortablePdb, embedded};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// The methods of the source, in the order of their rows, with the first and the last line of code.
const METHODS: [(u32, u32); 7] =
    [(19, 23), (28, 35), (40, 45), (52, 57), (62, 71), (75, 86), (12, 13)];

fn check(pdb: &PortablePdb) {
    assert_eq!(pdb.methods(), 7);
    for (row, (first, last)) in (1..).zip(METHODS) {
        let mut lines = Vec::new();
        for il in 0..200 {
            let Some(line) = pdb.line(0x0600_0000 | row, il).unwrap() else { continue };
            assert_eq!(line.file, "/src/Lines.cs");
            assert!((first..=last).contains(&line.line), "{row} {il} {line:?}");
            lines.push(line.line);
        }
        assert_eq!((lines.len(), lines[0]), (200, first), "{row}");
    }
    // The two calls of a method.
    let line = |il| pdb.line(0x0600_0003, il).unwrap().unwrap().line;
    let calls: std::collections::BTreeSet<u32> = (0..30).map(line).collect();
    assert!(calls.contains(&41) && calls.contains(&43), "{calls:?}");
    assert_eq!(pdb.line(0x0600_0008, 0).unwrap(), None);
}

#[test]
fn lines_of_a_file_are_those_of_the_source() {
    check(&PortablePdb::parse(std::fs::read(data("Lines.pdb")).unwrap()).unwrap());
}

#[test]
fn lines_of_an_assembly_are_those_of_the_source() {
    let assembly = std::fs::read(data("Lines-embedded.dll")).unwrap();
    let pdb = embedded(&assembly, 1 << 20).unwrap().unwrap();
    check(&pdb);
    let path = data("Lines-embedded.dll");
    let (path, signature) = (path.to_str().unwrap(), pdb.id());
    let assembly = Assembly { path, pdb_path: "Lines.pdb", signature, process: None };
    // The file beside it is of another build.
    let mut files = PdbFiles::default();
    check(files.find(&assembly).unwrap());
    assert_eq!(files.problems().count(), 0);
}
