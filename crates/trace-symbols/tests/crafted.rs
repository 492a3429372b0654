//! Files that are made to take much memory or time: they have the names that are left, and the reason.

#![cfg(feature = "dwarf")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use trace_symbols::{ObjectFile, Options, Unresolved};

/// The address of the code of all files.
const TEXT: u64 = 0x1000;
const CODE: u64 = 0x1000;

fn uleb(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// A 64-bit file of code at [`TEXT`], with sections: name, flags, contents.
fn elf(sections: &[(&str, u64, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; TEXT as usize];
    file.resize((TEXT + CODE) as usize, 0x90);
    let (mut names, mut headers) = (vec![0], vec![0; 64]);
    let mut add = |file: &mut Vec<u8>, name: &str, type_: u32, flags: u64, bytes: &[u8]| {
        headers.extend([names.len() as u32, type_].map(u32::to_le_bytes).concat());
        names.extend([name.as_bytes(), b"\0"].concat());
        let contents = if type_ == 3 { &names } else { bytes };
        let words = [flags, 0, file.len() as u64, contents.len() as u64, 0, 1, 0];
        headers.extend(words.map(u64::to_le_bytes).concat());
        file.extend(contents);
    };
    for (name, flags, bytes) in sections {
        add(&mut file, name, 1, *flags, bytes);
    }
    // The names.
    add(&mut file, "names", 3, 0, &[]);
    let (count, at) = (sections.len() as u16 + 2, file.len() as u64);
    file.extend(headers);
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    header.extend([TEXT, 64, at].map(u64::to_le_bytes).concat());
    let halves = [0, 0, 64, 56, 1, 64, count, count - 1];
    header.extend(halves.map(u16::to_le_bytes).concat());
    // One segment, of code.
    header.extend([1, 5].map(u32::to_le_bytes).concat());
    header.extend([TEXT, TEXT, TEXT, CODE, CODE, 1].map(u64::to_le_bytes).concat());
    file[..header.len()].copy_from_slice(&header);
    file
}

const UNIT: u64 = 0x11;
const FUNCTION: u64 = 0x2e;
const INLINED: u64 = 0x1d;
/// Names and forms.
type Attributes = [(u64, u64)];
/// `DW_AT_name` (`DW_FORM_string`), `DW_AT_low_pc` (`addr`), `DW_AT_high_pc` (`data4`).
const NAMED: [(u64, u64); 3] = [(0x03, 0x08), (0x11, 0x01), (0x12, 0x06)];
/// `DW_AT_ranges` (`DW_FORM_sec_offset`).
const RANGES: [(u64, u64); 1] = [(0x55, 0x17)];
/// `DW_AT_stmt_list` (`DW_FORM_sec_offset`), `DW_AT_comp_dir` (`DW_FORM_string`).
const LINES: [(u64, u64); 2] = [(0x10, 0x17), (0x1b, 0x08)];

/// Abbreviations: the tag, whether there are children, and attributes. The first one has number 1.
fn abbreviations(all: &[(u64, bool, &Attributes)]) -> Vec<u8> {
    let mut out = Vec::new();
    for ((tag, has_children, attributes), number) in all.iter().zip(1..) {
        out.extend([uleb(number), uleb(*tag), vec![u8::from(*has_children)]].concat());
        attributes.iter().for_each(|(name, form)| out.extend([uleb(*name), uleb(*form)].concat()));
        out.extend([0, 0]);
    }
    out.push(0);
    out
}

/// A unit of DWARF 4.
fn unit(entries: &[u8]) -> Vec<u8> {
    let header = [4, 0, 0, 0, 0, 0, 8];
    let len = (header.len() + entries.len()) as u32;
    [&len.to_le_bytes()[..], &header, entries].concat()
}

/// The attributes of [`NAMED`], of all code.
fn named(name: &str) -> Vec<u8> {
    let size = (CODE as u32).to_le_bytes();
    [name.as_bytes(), &[0], &TEXT.to_le_bytes(), &size].concat()
}

/// A function `f` of all code with inlined calls in one another.
fn nested(depth: usize) -> Vec<u8> {
    let abbreviations =
        abbreviations(&[(UNIT, true, &NAMED), (FUNCTION, true, &NAMED), (INLINED, true, &[])]);
    let mut entries = [&[1][..], &named("unit"), &[2], &named("f")].concat();
    entries.resize(entries.len() + depth, 3);
    entries.resize(entries.len() + depth + 2, 0);
    elf(&[(".debug_abbrev", 0, &abbreviations), (".debug_info", 0, &unit(&entries))])
}

/// A function `f` of all code with inlined calls without an address, one after another.
fn inlined(calls: usize) -> Vec<u8> {
    let abbreviations =
        abbreviations(&[(UNIT, true, &NAMED), (FUNCTION, true, &NAMED), (INLINED, false, &[])]);
    let mut entries = [&[1][..], &named("unit"), &[2], &named("f")].concat();
    entries.resize(entries.len() + calls, 3);
    entries.extend([0, 0]);
    elf(&[(".debug_abbrev", 0, &abbreviations), (".debug_info", 0, &unit(&entries))])
}

/// One unit with functions, or many units, that share a list of ranges. The first one is that of the code.
fn shared(units: usize, functions: usize, ranges: u64) -> Vec<u8> {
    let abbreviations = abbreviations(&[
        (UNIT, true, &NAMED),
        (FUNCTION, false, &RANGES),
        (UNIT, false, &RANGES),
        (FUNCTION, false, &NAMED),
    ]);
    let mut entries = [&[1][..], &named("unit"), &[4], &named("f")].concat();
    (0..functions).for_each(|_| entries.extend([2, 0, 0, 0, 0]));
    entries.push(0);
    let mut info = unit(&entries);
    (0..units).for_each(|_| info.extend(unit(&[3, 0, 0, 0, 0])));
    let pairs = (0..ranges).flat_map(|n| [TEXT + CODE + 2 * n, TEXT + CODE + 2 * n + 1]);
    let list: Vec<u8> = pairs.chain([0, 0]).flat_map(u64::to_le_bytes).collect();
    elf(&[
        (".debug_abbrev", 0, &abbreviations),
        (".debug_info", 0, &info),
        (".debug_ranges", 0, &list),
    ])
}

/// A line table of DWARF 4 with these files, and a program that defines others.
fn line_table(files: &[&[u8]], defined: usize) -> Vec<u8> {
    // The lengths of an instruction and of a row, `is_stmt`, the base and the range of lines, the first
    // special opcode; no directories.
    let mut header = vec![1, 1, 1, 0xfb, 14, 1, 0];
    files.iter().for_each(|file| header.extend([*file, &[0; 4]].concat()));
    header.push(0);
    // `DW_LNE_define_file`.
    let program = [0, 6, 3, b'd', 0, 0, 0, 0].repeat(defined);
    let size = (header.len() as u32).to_le_bytes();
    let table = [&[4, 0][..], &size, &header, &program].concat();
    [&(table.len() as u32).to_le_bytes()[..], &table].concat()
}

/// A function `f` in the first of some units, which are in a directory and share a table of lines.
fn with_lines(units: usize, directory: usize, table: &[u8]) -> Vec<u8> {
    let attributes = [&NAMED[..], &LINES].concat();
    let abbreviations = abbreviations(&[(UNIT, true, &attributes[..]), (FUNCTION, false, &NAMED)]);
    let mut root = [&[1][..], &named("unit"), &[0; 4]].concat();
    root.resize(root.len() + directory, b'/');
    root.push(0);
    let mut info = unit(&[&root[..], &[2], &named("f"), &[0]].concat());
    (1..units).for_each(|_| info.extend(unit(&[&root[..], &[0]].concat())));
    elf(&[
        (".debug_abbrev", 0, &abbreviations),
        (".debug_info", 0, &info),
        (".debug_line", 0, table),
    ])
}

/// A function `f` in the first of some units, of which the others share a name.
fn with_name(units: usize, size: usize) -> Vec<u8> {
    // `DW_AT_name` (`DW_FORM_strp`).
    let abbreviations = abbreviations(&[
        (UNIT, true, &NAMED),
        (FUNCTION, false, &NAMED),
        (UNIT, false, &[(0x03, 0x0e)][..]),
    ]);
    let mut info = unit(&[&[1][..], &named("unit"), &[2], &named("f"), &[0]].concat());
    (0..units).for_each(|_| info.extend(unit(&[3, 0, 0, 0, 0])));
    let mut names = vec![b'x'; size];
    names.push(0);
    elf(&[
        (".debug_abbrev", 0, &abbreviations),
        (".debug_info", 0, &info),
        (".debug_str", 0, &names),
    ])
}

/// A function `f` with inlined calls in one another, whose names are parts of a long text.
fn with_long_names(calls: u32, size: usize) -> Vec<u8> {
    // `DW_AT_name` (`DW_FORM_strp`).
    let attributes = [&[(0x03, 0x0e)][..], &NAMED[1..]].concat();
    let abbreviations = abbreviations(&[
        (UNIT, true, &NAMED),
        (FUNCTION, true, &NAMED),
        (INLINED, true, &attributes[..]),
    ]);
    let mut entries = [&[1][..], &named("unit"), &[2], &named("f")].concat();
    for n in 0..calls {
        // Without a name of its own.
        entries.extend([&[3][..], &n.to_le_bytes(), &named("")[1..]].concat());
    }
    entries.resize(entries.len() + calls as usize + 2, 0);
    let mut names = vec![b'x'; size];
    names.push(0);
    elf(&[
        (".debug_abbrev", 0, &abbreviations),
        (".debug_info", 0, &unit(&entries)),
        (".debug_str", 0, &names),
    ])
}

/// A function `f` with inlined calls beside each other, without an address, that share the name of this size of
/// another function.
fn with_shared_name(calls: usize, size: usize) -> Vec<u8> {
    // `DW_AT_name` (`DW_FORM_strp`), `DW_AT_abstract_origin` (`DW_FORM_ref4`).
    let abbreviations = abbreviations(&[
        (UNIT, true, &NAMED),
        (FUNCTION, true, &NAMED),
        (FUNCTION, false, &[(0x03, 0x0e)][..]),
        (INLINED, false, &[(0x31, 0x13)][..]),
    ]);
    let root = [&[1][..], &named("unit")].concat();
    // From the start of the header of the unit on.
    let origin = (11 + root.len() as u32).to_le_bytes();
    let call = [&[4][..], &origin].concat();
    let entries =
        [&root[..], &[3, 0, 0, 0, 0], &[2], &named("f"), &call.repeat(calls), &[0, 0]].concat();
    let mut names = vec![b'x'; size];
    names.push(0);
    elf(&[
        (".debug_abbrev", 0, &abbreviations),
        (".debug_info", 0, &unit(&entries)),
        (".debug_str", 0, &names),
    ])
}

/// The function at the start of the code, and the problem.
fn resolve(file: Vec<u8>, options: &Options) -> (Result<String, Unresolved>, Option<Unresolved>) {
    let file = match ObjectFile::parse(file, options) {
        Ok(file) => file,
        Err(why) => return (Err(why), None),
    };
    let name = file.frames(TEXT).map(|frames| frames.last().unwrap().function.to_string());
    (name, file.problem().cloned())
}

#[test]
fn nested_entries_have_a_limit() {
    let good = (Ok("f".to_owned()), None);
    assert_eq!(resolve(nested(100), &Options::default()), good);
    // One for each level would need more than the stack of a thread.
    let what = "the nested entries";
    let refused = (Err(Unresolved::NoSymbols), Some(Unresolved::Excessive { what }));
    assert_eq!(resolve(nested(300_000), &Options::default()), refused);
}

#[test]
fn shared_ranges_have_a_limit() {
    let good = (Ok("f".to_owned()), None);
    assert_eq!(resolve(shared(10, 10, 10), &Options::default()), good);
    // Together they would have 900 million ranges.
    let what = "the ranges of functions";
    let refused = (Err(Unresolved::NoSymbols), Some(Unresolved::Excessive { what }));
    assert_eq!(resolve(shared(0, 30_000, 30_000), &Options::default()), refused);
    let what = "the ranges of units";
    let refused = (Err(Unresolved::Excessive { what }), None);
    assert_eq!(resolve(shared(30_000, 0, 30_000), &Options::default()), refused);
}

#[test]
fn the_caller_of_an_inlined_call_without_a_name_has_the_line_of_the_call() {
    // `DW_AT_call_line` (`DW_FORM_data1`).
    let attributes = [&NAMED[1..], &[(0x59, 0x0b)]].concat();
    let abbreviations = abbreviations(&[
        (UNIT, true, &NAMED),
        (FUNCTION, true, &NAMED),
        (INLINED, false, &attributes[..]),
    ]);
    let call = [&[3][..], &named("")[1..], &[7]].concat();
    let entries = [&[1][..], &named("unit"), &[2], &named("f"), &call, &[0, 0]].concat();
    let file = elf(&[(".debug_abbrev", 0, &abbreviations), (".debug_info", 0, &unit(&entries))]);
    let frames = ObjectFile::parse(file, &Options::default()).unwrap().frames(TEXT).unwrap();
    let frames: Vec<_> = frames.iter().map(|f| (&*f.symbol, f.line, f.is_inlined)).collect();
    assert_eq!(frames, [("f", 7, false)]);
}

#[test]
fn inlined_calls_have_a_limit() {
    let good = (Ok("f".to_owned()), None);
    assert_eq!(resolve(inlined(1000), &Options::default()), good);
    // Each takes one byte of the file, and tens of bytes of memory.
    let what = "the ranges of functions";
    let refused = (Err(Unresolved::NoSymbols), Some(Unresolved::Excessive { what }));
    assert_eq!(resolve(inlined(200_000), &Options::default()), refused);
}

#[test]
fn paths_of_files_have_a_limit() {
    let good = (Ok("f".to_owned()), None);
    let what = "the paths of files";
    let refused = (Err(Unresolved::NoSymbols), Some(Unresolved::Excessive { what }));
    let found = |directory, files: usize, defined| {
        let table = line_table(&vec![&b"a"[..]; files], defined);
        resolve(with_lines(1, directory, &table), &Options::default())
    };
    assert_eq!(found(1000, 10, 10), good);
    // Each path has the directory: 500 MB, or 100 GB.
    assert_eq!(found(50_000, 10_000, 0), refused);
    assert_eq!(found(1 << 20, 100_000, 0), refused);
    assert_eq!(found(1 << 20, 0, 100_000), refused);
}

#[test]
fn headers_of_lines_have_a_limit() {
    let good = (Ok("f".to_owned()), None);
    let what = "the line tables";
    let refused = (Err(Unresolved::Excessive { what }), None);
    let found = |units, files: &[&[u8]]| {
        resolve(with_lines(units, 1, &line_table(files, 0)), &Options::default())
    };
    let name = |size| vec![b'a'; size];
    let short = name(1);
    assert_eq!(found(10, &[&short[..]; 1000]), good);
    // Each unit would have the files of the table that it shares.
    assert_eq!(found(30_000, &[&short[..]; 10_000]), refused);
    assert_eq!(found(1, &[&name(1 << 20)]), good);
    assert_eq!(found(1, &[&name(1 << 24)]), refused);
}

#[test]
fn names_of_units_have_a_limit() {
    let good = (Ok("f".to_owned()), None);
    assert_eq!(resolve(with_name(10, 1 << 20), &Options::default()), good);
    assert_eq!(resolve(with_name(10_000, 200), &Options::default()), good);
    // Each unit would be read with a search of a megabyte.
    let what = "the names of units";
    let refused = (Err(Unresolved::Excessive { what }), None);
    assert_eq!(resolve(with_name(1000, 1 << 20), &Options::default()), refused);
}

#[test]
fn names_of_inlined_calls_have_a_limit() {
    let good = (Ok("f".to_owned()), None);
    let what = "the names of functions";
    let refused = (Err(Unresolved::NoSymbols), Some(Unresolved::Excessive { what }));
    let found = |calls, size| resolve(with_shared_name(calls, size), &Options::default());
    assert_eq!(found(1000, 10_000), good);
    assert_eq!(found(1, 1 << 20), good);
    assert_eq!(found(1, (1 << 20) + 1), refused);
    // The name of each is a search: 10 GB together.
    assert_eq!(found(20_000, 500_000), refused);
}

#[test]
fn names_at_an_address_have_a_limit() {
    let file = ObjectFile::parse(with_long_names(240, 1 << 17), &Options::default()).unwrap();
    let frames = file.frames(TEXT).unwrap();
    assert_eq!((frames.len(), &*frames[240].symbol), (241, "f"));
    assert!(frames.iter().all(|frame| !frame.symbol.is_empty()));
    assert!(frames.iter().map(|frame| frame.symbol.len()).sum::<usize>() < 2 << 20);
}

#[test]
fn debug_sections_have_a_limit_together() {
    let abbreviations = abbreviations(&[(UNIT, false, &NAMED)]);
    let info = unit(&[&[1][..], &named("unit")].concat());
    let strings = vec![b'x'; 1 << 20];
    let file = |with_lines: bool| {
        let mut sections =
            vec![(".debug_abbrev", 0, &abbreviations[..]), (".debug_info", 0, &info)];
        sections.extend([(".debug_str", 0, &strings[..]), (".debug_line_str", 0, &strings)]);
        sections.extend(with_lines.then_some((".debug_addr", 0, &strings[..])));
        elf(&sections)
    };
    let mut options = Options::default();
    options.max_bytes = (1 << 20) + 1000;
    assert_eq!(resolve(file(false), &options), (Err(Unresolved::NoSymbols), None));
    let too_large = Unresolved::TooLarge { what: "debug information", size: 1 << 20 };
    assert_eq!(resolve(file(true), &options), (Err(too_large), None));
}

#[test]
fn the_size_of_a_compressed_section_has_64_bits() {
    const COMPRESSED: u64 = 0x800;
    let abbreviations = abbreviations(&[(UNIT, false, &NAMED)]);
    let size: u64 = (1 << 32) + 4;
    // `ELFCOMPRESS_ZLIB`, the size, the alignment.
    let header = [1, size, 1].map(u64::to_le_bytes).concat();
    let file = elf(&[(".debug_abbrev", 0, &abbreviations), (".debug_info", COMPRESSED, &header)]);
    let too_large = Unresolved::TooLarge { what: "debug information", size };
    assert_eq!(resolve(file, &Options::default()), (Err(too_large), None));
}

#[test]
fn types_are_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    fn is_sent<T: Send>() {}
    is_shared::<trace_symbols::AddressSpaces>();
    is_shared::<trace_symbols::Module>();
    is_shared::<Options>();
    is_shared::<Unresolved>();
    is_sent::<trace_symbols::Symbolizer>();
}
