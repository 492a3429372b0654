/// The CRC-32 of gzip, PNG and Ethernet, of bytes that follow those with the CRC `before`. That of no bytes
/// is 0.
///
/// ```
/// use trace_common::crc32;
/// assert_eq!(crc32(0, b"123456789"), 0xcbf4_3926);
/// assert_eq!(crc32(crc32(0, b"1234"), b"56789"), 0xcbf4_3926);
/// ```
pub fn crc32(before: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!before, |crc, byte| {
        let index = (crc as u8 ^ byte) as usize;
        TABLE.get(index).copied().unwrap_or_default() ^ (crc >> 8)
    })
}

const TABLE: [u32; 256] = table();

#[allow(clippy::indexing_slicing, reason = "an error of constant evaluation, not a panic")]
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let (mut value, mut bit) = (n as u32, 0);
        while bit < 8 {
            value = if value & 1 == 1 { 0xedb8_8320 ^ (value >> 1) } else { value >> 1 };
            bit += 1;
        }
        table[n] = value;
        n += 1;
    }
    table
}
