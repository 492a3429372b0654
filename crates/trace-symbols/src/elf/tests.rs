use super::*;

/// A header of 64 bits, before section headers of `entry` bytes.
fn header(sections: u64, entry: u16, count: u16) -> Vec<u8> {
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    out.extend([3, 0, 62, 0, 1, 0, 0, 0]); // `ET_DYN`, `EM_X86_64`
    [0, 0, sections].iter().for_each(|word: &u64| out.extend(word.to_le_bytes()));
    out.extend([0; 4]);
    // Of this header; no program headers; no names.
    [64, 0, 0, entry, count, 0].iter().for_each(|n: &u16| out.extend(n.to_le_bytes()));
    out
}

fn section(type_: u32, offset: u64, size: u64) -> Vec<u8> {
    let mut out = [0, type_].map(u32::to_le_bytes).concat();
    out.extend([0, 0, offset, size, 0, 0, 0].iter().flat_map(|word: &u64| word.to_le_bytes()));
    out.resize(64, 0);
    out
}

const RELOCATIONS: u64 = 10;
const TABLE: u64 = RELOCATIONS * 24;

/// A file with a table of relocations, which `sections` refer to, and the limit `max`.
fn with_tables(sections: &[(u64, u64)], max: u64) -> Elf {
    let mut bytes = header(64 + TABLE, 64, sections.len() as u16);
    for n in 0..RELOCATIONS {
        let words = [1000 - n, 8, n]; // the place, `R_X86_64_RELATIVE`, the value
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    for (offset, size) in sections {
        bytes.extend(section(SHT_RELA, *offset, *size));
    }
    Elf::from_bytes(bytes, max).unwrap()
}

#[test]
fn relocations_of_all_tables_have_a_limit() {
    let half = TABLE / 2;
    let found = with_tables(&[(64 + half, half), (64, half)], 1 << 20).relative_relocations();
    let expected: Vec<(u64, u64)> = (0..RELOCATIONS).rev().map(|n| (1000 - n, n)).collect();
    assert_eq!(found, Ok(expected));
    let too_large = |elf: &Elf| match elf.relative_relocations() {
        Err(Unresolved::TooLarge { what: "the relocations", size }) => size,
        other => panic!("{other:?}"),
    };
    // Tables that share their bytes have more than the file.
    let shared = with_tables(&[(64, TABLE); 10], 1 << 20);
    assert!(too_large(&shared) > shared.len);
    assert_eq!(too_large(&with_tables(&[(64, half); 2], TABLE - 1)), TABLE);
}

#[test]
fn tables_of_headers_have_a_limit() {
    let too_large = |bytes: Vec<u8>| match Elf::from_bytes(bytes, u64::MAX) {
        Err(Unresolved::TooLarge { what, size }) => (what, size),
        other => panic!("{other:?}"),
    };
    let largest = u64::from(u16::MAX);
    let mut bytes = header(64, u16::MAX, u16::MAX);
    bytes.resize(64 + u16::MAX as usize, 0);
    assert_eq!(too_large(bytes), ("the section headers", largest * largest));
    // The number of headers is in the first one.
    let mut bytes = header(64, 64, 0);
    bytes.extend(section(0, 0, u64::MAX));
    assert_eq!(too_large(bytes), ("the section headers", u64::MAX));
    let mut bytes = header(0, 0, 0);
    bytes[32] = 64; // offset of the program headers
    bytes[54..58].fill(0xff);
    assert_eq!(too_large(bytes), ("the program headers", largest * largest));
}

/// A file of `len` bytes with segments: type, offset, size. A build id is in its last 36 bytes.
fn with_segments(segments: &[(u32, u64, u64)], len: usize) -> Elf {
    let mut bytes = header(0, 0, 0);
    bytes[32] = 64; // offset of the program headers
    bytes[54] = 56;
    bytes[56] = segments.len() as u8;
    for (type_, offset, size) in segments {
        bytes.extend([*type_, 0].map(u32::to_le_bytes).concat());
        bytes.extend([*offset, 0, 0, *size, *size, 0].map(u64::to_le_bytes).concat());
    }
    // The length of the name and of the contents, the type `NT_GNU_BUILD_ID`, the name.
    let mut note = [4, 20, 3].map(u32::to_le_bytes).concat();
    note.extend(b"GNU\0");
    note.extend([7; 20]);
    bytes.resize(len - note.len(), 0);
    bytes.extend(note);
    Elf::from_bytes(bytes, 1 << 30).unwrap()
}

#[test]
fn notes_have_a_limit_together() {
    let len = 2 << 20;
    let id = (PT_NOTE, len - 36, 36);
    let found = |notes: &[(u32, u64, u64)]| with_segments(notes, len as usize).build_id();
    assert!(found(&[id]).is_some());
    // Notes of zeros.
    let half = (PT_NOTE, 1 << 20, MAX_SMALL / 2);
    assert!(found(&[half, id]).is_some());
    assert_eq!(found(&[half, half, id]), None);
}

#[test]
fn loaded_parts_have_a_limit_together() {
    let whole = (PT_LOAD, 0, 4096);
    let sizes = |parts: &[(u32, u64, u64)]| -> Vec<Option<usize>> {
        let file = with_segments(parts, 4096);
        let parts = file.loaded_parts("a part", |_| true);
        parts.map(|part| part.ok().map(|(_, bytes)| bytes.len())).collect()
    };
    let all = [Some(4096), Some(4096), None];
    assert_eq!(sizes(&[whole; 3]), all);
    assert_eq!(sizes(&[whole, (PT_NOTE, 0, 4096), whole]), all[..2]);
}

/// The address of a function of Thumb code has a mark in bit 0.
#[test]
fn functions_of_thumb_begin_at_their_code() {
    const EM_ARM: u16 = 40;
    const FUNC: u8 = 2;
    const OBJECT: u8 = 1;
    let start = |machine: u16, kind: u8| {
        let mut bytes = header(0, 0, 0);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        let file = Elf::from_bytes(bytes, 1 << 20).unwrap();
        // The name, the type, the section, the address and the size.
        let mut symbol = vec![1, 0, 0, 0, kind, 0, 1, 0];
        symbol.extend([0x1001_u64, 8].map(u64::to_le_bytes).concat());
        let names = TextTable::new(b"\0f\0");
        file.symbol(&mut Cursor::new(&symbol), &names, &[]).unwrap().start
    };
    assert_eq!(start(EM_ARM, FUNC), 0x1000);
    assert_eq!([start(EM_ARM, OBJECT), start(62, FUNC)], [0x1001; 2]);
}

/// musl has hidden labels inside of its system calls.
#[test]
fn hidden_labels_are_no_functions() {
    const NOTYPE: u8 = 0;
    const FUNC: u8 = 2;
    const DEFAULT: u8 = 0;
    const INTERNAL: u8 = 1;
    const HIDDEN: u8 = 2;
    const PROTECTED: u8 = 3;
    const NAMES: &[u8] = b"\0syscall\0cp_end\0label\0";
    let names_at = |visibility: u8| {
        let mut symbols = Vec::new();
        for (name, kind, other, start, size) in [
            (1, FUNC, visibility, 0x1000, 0x40),
            (9, NOTYPE, visibility, 0x1010, 0),
            (16, NOTYPE, DEFAULT, 0x1020, 0),
        ] {
            symbols.extend(u32::to_le_bytes(name));
            symbols.extend([kind, other, 1, 0]); // in the section with code
            symbols.extend([start, size].map(u64::to_le_bytes).concat());
        }
        let size = symbols.len() as u64;
        let names_offset = 64 + size;
        let mut bytes = header(names_offset + NAMES.len() as u64, 64, 4);
        bytes.extend(symbols);
        bytes.extend(NAMES);
        let mut table = section(SHT_SYMTAB, 64, size);
        table[40] = 3; // the section with the names
        let mut code = section(1, 0, 0x100); // `SHT_PROGBITS`
        code[8..16].copy_from_slice(&SHF_EXECINSTR.to_le_bytes());
        code[16..24].copy_from_slice(&0x1000_u64.to_le_bytes());
        let names = section(3, names_offset, NAMES.len() as u64); // `SHT_STRTAB`
        [section(0, 0, 0), code, table, names].iter().for_each(|header| bytes.extend(header));
        let table = Elf::from_bytes(bytes, 1 << 20).unwrap().symbols().unwrap();
        let name = |address| table.at(address).unwrap().name.into_owned();
        [0x1008, 0x1018, 0x1028].map(name)
    };
    assert_eq!([INTERNAL, HIDDEN].map(names_at), [["syscall", "syscall", "label"]; 2]);
    assert_eq!([DEFAULT, PROTECTED].map(names_at), [["syscall", "cp_end", "label"]; 2]);
}

/// All symbols of a crafted file have parts of one long name: its end is found by block.
#[test]
fn names_that_share_an_end_are_those_of_a_search() {
    const BLOCK: usize = TextTable::BLOCK;
    let long = [&b"a\0"[..], &[b'x'; 3 * BLOCK], b"\0b\0", &[b'y'; BLOCK]].concat();
    let unended = vec![b'z'; MAX_TEXT + 3 * BLOCK];
    for table in [&long[..], &long[..2 * BLOCK], &unended[..], &[0; BLOCK], b""] {
        let texts = TextTable::new(table);
        assert_eq!(texts.ends.len(), table.len().div_ceil(BLOCK));
        let near_end = table.len().saturating_sub(3 * BLOCK)..table.len() + 2;
        for offset in (0..4 * BLOCK).chain(near_end).chain([u32::MAX as usize]) {
            assert_eq!(texts.at(offset as u32), text_at(table, offset as u32), "{offset}");
        }
    }
    // Of the text in the second block, the end is that of the fourth one.
    let end = 2 + 3 * BLOCK;
    assert_eq!(TextTable::new(&long).ends, [1, end, end, end, long.len()]);
}

#[test]
fn names_have_a_limit() {
    let table = [&b"a\0"[..], &[b'x'; MAX_TEXT + 1]].concat();
    assert_eq!(
        [text_at(&table, 0), text_at(&table, 1), text_at(&table, u32::MAX)],
        [b"a", &b""[..], b""]
    );
    assert_eq!(text_at(&table, 2).len(), MAX_TEXT);
    assert_eq!(text_at(&table, 4).len(), MAX_TEXT - 1);
}
