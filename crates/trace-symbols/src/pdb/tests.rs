use super::*;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use proptest::prelude::*;
use std::io::Write;

/// A file with two documents and methods with these rows: a document, and the bytes of its points.
fn file(methods: &[(u16, &[u8])]) -> Vec<u8> {
    let mut blobs = vec![0];
    let mut blob = |bytes: &[u8]| {
        let index = blobs.len() as u16;
        blobs.push(bytes.len() as u8);
        blobs.extend_from_slice(bytes);
        index
    };
    let parts =
        [blob(b""), blob(b"src"), blob(b"One.cs"), blob(b"Two.cs")].map(|index| index as u8);
    let names = [blob(&[b'/', 0, parts[1], parts[2]]), blob(&[b'/', parts[3]])];
    let rows: Vec<(u16, u16)> = methods
        .iter()
        .map(|(document, points)| (*document, if points.is_empty() { 0 } else { blob(points) }))
        .collect();

    let mut pdb: Vec<u8> = (1..=20).collect();
    pdb.extend([0; 12]);
    let mut tables = vec![0, 0, 0, 0, 2, 0, 0, 1];
    tables.extend((3u64 << 48 | 1 << 55).to_le_bytes());
    tables.extend([0; 8]);
    for rows in [names.len(), rows.len(), 0] {
        tables.extend((rows as u32).to_le_bytes());
    }
    for name in names {
        tables.extend([name, 0, 0, 0].iter().flat_map(|index| index.to_le_bytes()));
    }
    for (document, points) in rows {
        tables.extend([document, points].iter().flat_map(|index| index.to_le_bytes()));
    }

    let version = b"PDB v1.0\0\0\0\0";
    let mut out = b"BSJB\x01\0\x01\0\0\0\0\0".to_vec();
    out.extend((version.len() as u32).to_le_bytes());
    out.extend(version);
    let streams: [(&[u8], &[u8]); 4] = [
        (b"#Pdb\0\0\0\0", &pdb),
        (b"#~\0\0", &tables),
        (b"#Other\0\0", b"?"),
        (b"#Blob\0\0\0", &blobs),
    ];
    out.extend([0, 0, streams.len() as u8, 0]);
    let mut start = out.len() + streams.iter().map(|(name, _)| 8 + name.len()).sum::<usize>();
    for (name, bytes) in streams {
        out.extend((start as u32).to_le_bytes());
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(name);
        start += bytes.len();
    }
    for (_, bytes) in streams {
        out.extend(bytes);
    }
    out
}

/// Points at 0 (line 10, column 5), 4 (hidden), 9 (line 12, column 9), 11 (line 8, column 1).
const POINTS: &[u8] = &[
    0, // local signature
    0, 0, 6, 10, 5, // first: IL 0, no lines, six columns
    4, 0, 0, // hidden
    5, 1, 0x7d, 4, 8, // IL 9, one line, columns -2, line +2, column +4
    2, 0, 3, 0x79, 0x71, // IL 11, line -4, column -8
];

fn line(pdb: &PortablePdb, token: u32, il: u32) -> Option<(String, u32, u32)> {
    pdb.line(token, il).unwrap().map(|line| (line.file, line.line, line.column))
}

#[test]
fn lines_are_those_of_the_last_point() {
    let pdb = PortablePdb::parse(file(&[(1, POINTS), (2, &[]), (2, POINTS)])).unwrap();
    assert_eq!(pdb.id().to_bytes()[..4], [1, 2, 3, 4]);
    assert_eq!(pdb.methods(), 3);
    let one = |line, column| Some(("/src/One.cs".to_owned(), line, column));
    for il in [0, 3, 4, 8] {
        assert_eq!(line(&pdb, 0x0600_0001, il), one(10, 5), "{il}");
    }
    assert_eq!(line(&pdb, 0x0600_0001, 9), one(12, 9));
    assert_eq!(line(&pdb, 0x0600_0001, u32::MAX), one(8, 1));
    assert_eq!(line(&pdb, 0x0600_0002, 0), None, "without points");
    assert_eq!(line(&pdb, 0x0600_0003, 0), Some(("Two.cs".to_owned(), 10, 5)));
    for token in [0, 1, 0x0600_0000, 0x0600_0004, 0x0a00_0001] {
        assert_eq!(line(&pdb, token, 0), None, "{token:#x}");
    }
}

#[test]
fn a_method_can_have_several_documents() {
    let points = &[
        0, 1, // local signature, first document
        3, 0, 6, 10, 5, // IL 3
        0, 2, // second document
        1, 0, 6, 2, 0, // IL 4, line + 1
    ];
    let pdb = PortablePdb::parse(file(&[(0, points)])).unwrap();
    assert_eq!(line(&pdb, 0x0600_0001, 2), None, "before the first point");
    assert_eq!(line(&pdb, 0x0600_0001, 3), Some(("/src/One.cs".to_owned(), 10, 5)));
    assert_eq!(line(&pdb, 0x0600_0001, 4), Some(("Two.cs".to_owned(), 11, 5)));
}

#[test]
fn errors_have_offsets() {
    let bytes = file(&[(1, &[0, 0, 0, 6, 0xff])]);
    let at = bytes.windows(4).position(|bytes| bytes == [0, 0, 6, 0xff]).unwrap() as u64;
    let found = PortablePdb::parse(bytes).unwrap().line(0x0600_0001, 0);
    assert_eq!(found, Err(Unresolved::Malformed { what: "sequence points", offset: at + 3 }));

    let pdb = PortablePdb::parse(file(&[(7, POINTS)])).unwrap();
    assert!(matches!(
        pdb.line(0x0600_0001, 0),
        Err(Unresolved::Malformed { what: "the row of a table", .. })
    ));
    let windows = b"Microsoft C/C++ MSF 7.00\r\n".to_vec();
    assert_eq!(PortablePdb::parse(windows).unwrap_err(), Unresolved::NotPortablePdb);
    let mut rows = file(&[]);
    let at = rows.windows(4).position(|bytes| bytes == [2, 0, 0, 0]).unwrap();
    rows[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(PortablePdb::parse(rows), Err(Unresolved::Malformed { .. })));
}

#[test]
fn names_that_grow_are_refused() {
    // A part of 100 bytes, again and again.
    let mut bytes = file(&[(1, POINTS)]);
    let at = bytes.windows(4).position(|bytes| bytes == [4, b'/', 0, 2]).unwrap();
    bytes[at] = 0xdf; // a length of 29 bits: past the end
    let pdb = PortablePdb::parse(bytes).unwrap();
    assert!(matches!(pdb.line(0x0600_0001, 0), Err(Unresolved::Malformed { .. })));
}

/// Each address of a crafted file would read all of it.
#[test]
fn points_of_a_method_have_a_limit() {
    let zeros = vec![0; points::MAX_BYTES + 1];
    let at = |bytes| points::at(Cursor::new(bytes), 1, u32::MAX);
    assert_eq!(at(&zeros[1..]), Ok(None));
    let size = zeros.len() as u64;
    assert_eq!(at(&zeros), Err(Unresolved::TooLarge { what: "sequence points", size }));
}

#[test]
fn names_of_too_many_parts_are_refused() {
    let mut pdb = PortablePdb::parse(file(&[(1, POINTS)])).unwrap();
    assert_eq!(pdb.blobs.end, pdb.bytes.len());
    let name = (pdb.blobs.len() as u16).to_le_bytes();
    // Empty parts without a character between them.
    let size = 1_u32 << 20;
    pdb.bytes.extend((0xc000_0000 | size).to_be_bytes());
    pdb.bytes.resize(pdb.bytes.len() + size as usize, 0);
    pdb.blobs.end = pdb.bytes.len();
    let row = pdb.documents.start;
    pdb.bytes[row..row + 2].copy_from_slice(&name);
    let found = pdb.line(0x0600_0001, 0);
    let what = "the name of a document";
    assert!(matches!(found, Err(Unresolved::Malformed { what: w, .. }) if w == what), "{found:?}");
}

/// An assembly whose debug directory has an entry of another kind, then this file.
fn assembly(pdb: &[u8], is_wide: bool) -> Vec<u8> {
    let mut deflated = b"MPDB".to_vec();
    deflated.extend((pdb.len() as u32).to_le_bytes());
    let mut encoder = DeflateEncoder::new(deflated, Compression::default());
    encoder.write_all(pdb).unwrap();
    let deflated = encoder.finish().unwrap();

    let mut out = vec![0; 0x200];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MZ");
    put(0x3c, &0x80u32.to_le_bytes());
    put(0x80, b"PE\0\0");
    put(0x86, &1u16.to_le_bytes());
    let optional: u16 = if is_wide { 240 } else { 224 };
    put(0x94, &optional.to_le_bytes());
    let (magic, count) = if is_wide { (0x20bu16, 108) } else { (0x10b, 92) };
    put(0x98, &magic.to_le_bytes());
    put(0x98 + count, &16u32.to_le_bytes());
    // The debug directory: at 0x2010 in memory, with two entries.
    put(0x98 + count + 4 + 48, &0x2010u32.to_le_bytes());
    put(0x98 + count + 8 + 48, &56u32.to_le_bytes());
    let section = 0x98 + usize::from(optional);
    for (at, value) in [(8, 0x1000u32), (12, 0x2000), (16, 0x1000), (20, 0x200)] {
        put(section + at, &value.to_le_bytes());
    }
    out.resize(0x210 + 56, 0);
    let data = out.len() as u32;
    let mut put = |at: usize, value: u32| out[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(0x210 + 12, 2);
    put(0x210 + 28 + 12, 17);
    put(0x210 + 28 + 16, deflated.len() as u32);
    put(0x210 + 28 + 24, data);
    out.extend(deflated);
    out
}

#[test]
fn assemblies_have_files_in_them() {
    let pdb = file(&[(1, POINTS)]);
    for is_wide in [false, true] {
        let assembly = assembly(&pdb, is_wide);
        let found = embedded(&assembly, 1 << 20).unwrap().unwrap();
        assert_eq!(line(&found, 0x0600_0001, 0).unwrap().1, 10);
        let size = pdb.len() as u64;
        assert!(embedded(&assembly, size).unwrap().is_some());
        assert!(matches!(embedded(&assembly, size - 1), Err(Unresolved::TooLarge { .. })));
        // Fewer or more bytes than it says.
        let at = assembly.windows(4).position(|bytes| bytes == b"MPDB").unwrap() + 4;
        for size in [size - 1, size + 1] {
            let mut assembly = assembly.clone();
            assembly[at..at + 4].copy_from_slice(&(size as u32).to_le_bytes());
            let found = embedded(&assembly, 1 << 20);
            assert!(matches!(found, Err(Unresolved::Malformed { .. })), "{found:?}");
        }
    }
    assert!(matches!(embedded(b"\x7fELF", 1), Err(Unresolved::Malformed { offset: 0, .. })));
}

#[test]
fn files_count_if_they_have_the_id_of_the_assembly() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let pdb = file(&[(1, POINTS)]);
    let own = PortablePdb::parse(pdb.clone()).unwrap().id();
    let other = Guid::from_bytes([7; 16]);
    let (app, lib, bare, built) =
        (path("App.dll"), path("Lib.dll"), path("Bare.dll"), path("src/B.pdb"));
    std::fs::write(path("App.pdb"), &pdb).unwrap();
    std::fs::write(&lib, assembly(&pdb, true)).unwrap();
    std::fs::write(&bare, assembly(b"", true)).unwrap();
    std::fs::create_dir(path("src")).unwrap();
    std::fs::write(&built, &pdb).unwrap();
    let find = |path: &str, pdb_path: &str, signature, process| {
        let assembly = Assembly { path, pdb_path, signature, process };
        let mut files = PdbFiles::default();
        let found = files.find(&assembly).map(PortablePdb::id).map_err(Clone::clone);
        (found, files.problems().count())
    };
    let own_process = Some(std::process::id());
    for process in [None, own_process] {
        assert_eq!(find(&app, "", own, process), (Ok(own), 0), "beside it");
        assert_eq!(find(&lib, "", own, process), (Ok(own), 0), "in it");
        assert_eq!(
            find(&path("None.dll"), &built, own, process),
            (Ok(own), 0),
            "where it was built"
        );
        let windows = r"C:\src\App.pdb";
        assert_eq!(find(&path("None.dll"), windows, own, process), (Ok(own), 0), "its name");
        let replaced = Unresolved::PdbId { expected: other, found: own };
        assert_eq!(find(&app, "", other, process), (Err(replaced.clone()), 1), "of another build");
        assert_eq!(find(&lib, "", other, process), (Err(replaced), 1));
        assert_eq!(find(&path("None.dll"), "", own, process), (Err(Unresolved::NoPdb), 0));
        assert_eq!(find("None.dll", "None.pdb", own, process), (Err(Unresolved::NoPdb), 0));
        let (found, problems) = find(&bare, "", own, process);
        assert!(matches!(found, Err(Unresolved::NotPortablePdb)) && problems == 1, "{found:?}");
    }
    let options = crate::Options { max_bytes: pdb.len() as u64 - 1, ..Default::default() };
    let assembly = Assembly { path: &app, pdb_path: "", signature: own, process: None };
    let mut files = PdbFiles::new(&options);
    assert!(matches!(files.find(&assembly), Err(Unresolved::TooLarge { .. })));
}

/// Asks for some lines: no answer is wrong, and none panics.
fn ask(pdb: &PortablePdb) {
    for row in 0..5 {
        for il in [0, 3, 9, 11, u32::MAX] {
            if let Ok(Some(line)) = pdb.line(0x0600_0000 | row, il) {
                assert!(line.line > 0);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_change_is_an_error_or_another_file(
        at in 0usize..400,
        with in proptest::collection::vec(any::<u8>(), 1..8),
        cut in 0usize..400,
    ) {
        let mut bytes = file(&[(1, POINTS), (0, &[0, 1, 3, 0, 6, 10, 5]), (2, POINTS)]);
        for (byte, new) in bytes.iter_mut().skip(at).zip(&with) {
            *byte = *new;
        }
        let assembly = assembly(&bytes, at % 2 == 0);
        bytes.truncate(bytes.len().saturating_sub(cut / 4));
        if let Ok(pdb) = PortablePdb::parse(bytes) {
            ask(&pdb);
        }
        let mut assembly = assembly;
        for (byte, new) in assembly.iter_mut().skip(at * 2).zip(&with) {
            *byte = *new;
        }
        assembly.truncate(assembly.len().saturating_sub(cut / 4));
        if let Ok(Some(pdb)) = embedded(&assembly, 1 << 16) {
            ask(&pdb);
        }
    }

    #[test]
    fn any_points_are_read(points in proptest::collection::vec(any::<u8>(), 1..100)) {
        if let Ok(pdb) = PortablePdb::parse(file(&[(1, &points), (0, &points)])) {
            ask(&pdb);
        }
    }

    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = embedded(&bytes, 1 << 16);
        let _ = PortablePdb::parse(bytes);
    }
}
