//! Reads a page of a timeline back.

use std::io::Read;

/// The JSON of a page, and the encoded lanes after it.
///
/// # Panics
/// If it is no such page.
#[must_use]
pub fn data(page: &str) -> (String, Vec<u8>) {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (base64, _) = rest.split_once('<').unwrap();
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} is not of base64"),
    };
    let mut packed = Vec::new();
    for four in base64.trim_end_matches('=').as_bytes().chunks(4) {
        let bits =
            four.iter().fold(0, |bits, byte| bits << 6 | digit(*byte)) << (6 * (4 - four.len()));
        packed.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    let mut bytes = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    let lanes = bytes.split_off(4 + length);
    (String::from_utf8(bytes[4..].to_vec()).unwrap(), lanes)
}
