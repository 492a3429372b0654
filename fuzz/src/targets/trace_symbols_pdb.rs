//! Portable PDB files, also in assemblies, and the lines of their methods.

use trace_symbols::pdb::{PortablePdb, embedded};

pub fn target(data: &[u8]) {
    if let Ok(pdb) = PortablePdb::parse(data.to_vec()) {
        look_at(&pdb);
    }
    // Without the signature and the version, which a fuzzer need not find.
    let header = b"BSJB\x01\0\x01\0\0\0\0\0\x04\0\0\0v1.0";
    if let Ok(pdb) = PortablePdb::parse([&header[..], data].concat()) {
        look_at(&pdb);
    }
    if let Ok(Some(pdb)) = embedded(data, 1 << 20) {
        look_at(&pdb);
    }
}

fn look_at(pdb: &PortablePdb) {
    for row in (0..16).chain([pdb.methods(), pdb.methods().wrapping_add(1)]) {
        for il in [0, 1, 16, 1 << 16, u32::MAX] {
            if let Ok(Some(line)) = pdb.line(0x0600_0000 | (row & 0xff_ffff), il) {
                assert!(line.line > 0 && line.file.len() <= 3 << 16);
            }
        }
    }
}
