//! The table of functions of a Go program: any bytes behind a header, in a file with the description that

//! refers to it.

use trace_symbols::{ObjectFile, Options};

/// The positions and addresses of the parts of the file.
const TABLE: u64 = 0x1000;
const DATA: u64 = 0x2_0000;
const FUNCTIONS: u64 = 0x3_0000;

pub fn target(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let magic = [0xfffffffbu32, 0xfffffffa, 0xfffffff0, 0xfffffff1][usize::from(choice & 3)];
    let mut table = magic.to_le_bytes().to_vec();
    table.extend([0, 0, 1, 8]);
    let words: Vec<u8> = data.iter().copied().take(16).collect();
    // The number of functions, files, the text, and the offsets of five parts.
    for n in 0..8 {
        let word = words.get(n).copied().unwrap_or(1);
        table.extend((u64::from(word) * if n < 3 { 1 } else { 4 }).to_le_bytes());
    }
    table.extend(data.get(16..).unwrap_or_default());
    table.truncate(0x1_0000);
    let functions = u64::from(words.first().copied().unwrap_or(1));
    let names = u64::from(words.get(3).copied().unwrap_or(1)) * 4;
    let mut module = [0u64; 44];
    (module[0], module[1], module[17]) = (TABLE, TABLE + names, functions + 1);
    (module[22], module[23]) = (0x1000, u64::MAX);
    (module[37], module[38], module[40], module[43]) = (1, FUNCTIONS, FUNCTIONS, FUNCTIONS);
    module[38] = if choice & 4 == 0 { FUNCTIONS } else { 0 };
    let mut file = vec![0; FUNCTIONS as usize];
    file[TABLE as usize..TABLE as usize + table.len()].copy_from_slice(&table);
    for (place, word) in file[DATA as usize..].chunks_exact_mut(8).zip(module) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(data);
    let Ok(file) = ObjectFile::parse(elf(file, table.len() as u64), &Options::default()) else {
        return;
    };
    for address in (0x1000..0x1100).chain((0..40).map(|bit| 1 << bit)) {
        if let Ok(frames) = file.frames(address) {
            assert!(!frames.is_empty() && !frames.last().unwrap().is_inlined);
        }
    }
}

/// A file with two segments and the section of the table.
fn elf(mut file: Vec<u8>, table: u64) -> Vec<u8> {
    let len = file.len() as u64;
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2u16, 62] {
        header.extend(half.to_le_bytes());
    }
    header.extend(1u32.to_le_bytes());
    for word in [0, 64, len] {
        header.extend(u64::to_le_bytes(word));
    }
    header.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 2, 64, 3, 2] {
        header.extend(half.to_le_bytes());
    }
    // Readable code, then writable data.
    for (flags, start, end) in [(5u32, 0, DATA), (6, DATA, len)] {
        header.extend(1u32.to_le_bytes());
        header.extend(flags.to_le_bytes());
        for word in [start, start, start, end - start, end - start, 0x1000] {
            header.extend(u64::to_le_bytes(word));
        }
    }
    file[..header.len()].copy_from_slice(&header);
    const NAMES: &[u8] = b"\0.gopclntab\0";
    let names = len + 3 * 64;
    for (name, kind, start, size) in
        [(0u32, 0u32, 0, 0), (1, 1, TABLE, table), (0, 3, names, NAMES.len() as u64)]
    {
        file.extend(name.to_le_bytes());
        file.extend(kind.to_le_bytes());
        for word in [0, start, start, size] {
            file.extend(u64::to_le_bytes(word));
        }
        file.extend([0; 24]);
    }
    file.extend_from_slice(NAMES);
    file
}
