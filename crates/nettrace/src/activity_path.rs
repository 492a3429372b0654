use crate::Guid;

/// Decodes the activity path that .NET packed into `id`, such as `//1/2/13`; `None` if `id` is not
/// a path.
///
/// `EventSource` numbers activities within their parent and packs the numbers of the whole path
/// into nibbles (`ActivityTracker` of System.Private.CoreLib). Such ids end in a checksum over the
/// first twelve bytes and the process id, which distinguishes them from random ids. With
/// `pid` `None`, ids of any process are accepted.
pub fn activity_path(id: Guid, pid: Option<u32>) -> Option<String> {
    let bytes = id.to_bytes();
    let word = |i: usize| -> u32 {
        let b = bytes.get(i * 4..i * 4 + 4).unwrap_or_default();
        b.iter().rev().fold(0, |acc, &b| acc << 8 | u32::from(b))
    };
    let sum = word(0).wrapping_add(word(1)).wrapping_add(word(2)).wrapping_add(0x599D_99AD);
    match pid {
        // Runtimes before .NET Core 3.0 write the plain sum, without the process id.
        Some(pid) if sum ^ pid != word(3) && sum != word(3) => return None,
        None if (sum ^ word(3)) >> 22 != 0 => return None, // PID_MAX_LIMIT of Linux is 2^22
        _ => {}
    }
    let nibbles: Vec<u8> = bytes.iter().take(12).flat_map(|&b| [b >> 4, b & 0xf]).collect();
    let mut path = String::from("/");
    let mut i = 0;
    while let Some(&nibble) = nibbles.get(i) {
        i += 1;
        let (number, prefix) = match nibble {
            0 => break,
            1..=0xa => (u32::from(nibble), ""),
            // The number did not fit in the id: a marker, then an opaque number.
            0xb => {
                let Some(&next) = nibbles.get(i) else { break };
                i += 1;
                if next == 0 {
                    break;
                }
                let Some(n) = multi_byte(&nibbles, &mut i, next) else { break };
                (n, "$")
            }
            len => {
                let Some(n) = multi_byte(&nibbles, &mut i, len) else { break };
                (n, "")
            }
        };
        path.push('/');
        path.push_str(prefix);
        path.push_str(&number.to_string());
    }
    if path.len() > 1 { Some(path) } else { None }
}

/// Nibbles 0xc to 0xf say that one to four bytes follow, aligned to the next whole byte; the
/// nibble that the alignment skips holds the number's highest bits.
fn multi_byte(nibbles: &[u8], i: &mut usize, len: u8) -> Option<u32> {
    let bytes = usize::from(len.checked_sub(0xc)?) + 1;
    let mut value = 0u32;
    if *i % 2 == 1 {
        value = u32::from(*nibbles.get(*i)?);
        *i += 1;
    }
    for k in (0..bytes).rev() {
        let high = nibbles.get(*i + 2 * k)?;
        let low = nibbles.get(*i + 2 * k + 1)?;
        value = value << 8 | u32::from(high << 4 | low);
    }
    *i += 2 * bytes;
    Some(value)
}
