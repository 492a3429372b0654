//! The extensions of `%p`: [`printk-formats`][doc] of the kernel's documentation.
//!
//! [doc]: https://www.kernel.org/doc/html/latest/core-api/printk-formats.html

use super::{Names, Value, little_endian, named};
use std::fmt::Write as _;
use std::net::Ipv6Addr;

/// Letters after `%p`, and their meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pointer {
    #[default]
    Address,
    /// `S`, `B`: the name of an address, and the offset in it.
    Symbol,
    /// `s`: the name of an address.
    Function,
    Ipv4(Ipv4),
    Ipv6(Ipv6),
    /// `IS`, `iS`: a `struct sockaddr`.
    Socket(Socket),
    /// `M`, `m`.
    Mac {
        separator: &'static str,
        is_reversed: bool,
    },
    /// `U`.
    Uuid {
        is_little_endian: bool,
        is_upper: bool,
    },
    /// `h`: as many bytes as the width says.
    Hex(&'static str),
    /// `b`: as many bits as the width says.
    Bitmap,
    /// `bl`: ranges of bits.
    BitList,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ipv4 {
    has_zeros: bool,
    is_reversed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ipv6 {
    Colons,
    /// Without colons.
    Digits,
    Compressed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    v4: Ipv4,
    v6: Ipv6,
    has_port: bool,
    has_flow: bool,
    has_scope: bool,
}

/// `AF_INET` and `AF_INET6` of `socket(2)`.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Maximum number of bytes that `h` prints.
const MAX_HEX: usize = 64;

impl Pointer {
    /// The meaning of all letters and digits after `%p`.
    pub(super) fn parse(letters: &str) -> Option<Self> {
        let mac = |separator, is_reversed| Self::Mac { separator, is_reversed };
        let uuid = |is_little_endian, is_upper| Self::Uuid { is_little_endian, is_upper };
        Some(match letters {
            // The kernel's log has a hash of an address, unless it is `x` or `K`.
            "" | "x" | "K" => Self::Address,
            "S" | "B" | "F" => Self::Symbol,
            "s" | "f" => Self::Function,
            "I6" => Self::Ipv6(Ipv6::Colons),
            "I6c" => Self::Ipv6(Ipv6::Compressed),
            "i6" => Self::Ipv6(Ipv6::Digits),
            "M" => mac(":", false),
            "MR" => mac(":", true),
            "MF" => mac("-", false),
            "m" => mac("", false),
            "mR" => mac("", true),
            "U" | "Ub" => uuid(false, false),
            "UB" => uuid(false, true),
            "Ul" => uuid(true, false),
            "UL" => uuid(true, true),
            "h" => Self::Hex(" "),
            "hC" => Self::Hex(":"),
            "hD" => Self::Hex("-"),
            "hN" => Self::Hex(""),
            "b" => Self::Bitmap,
            "bl" => Self::BitList,
            _ => {
                let has_zeros = letters.starts_with('i');
                let rest = letters.strip_prefix(['I', 'i'])?;
                if let Some(order) = rest.strip_prefix('4') {
                    return Some(Self::Ipv4(Ipv4 { has_zeros, is_reversed: is_reversed(order)? }));
                }
                Self::Socket(Socket::parse(has_zeros, rest.strip_prefix('S')?)?)
            }
        })
    }

    /// Whether the width is a number of bytes or bits.
    pub(super) const fn takes_width(self) -> bool {
        matches!(self, Self::Hex(_) | Self::Bitmap | Self::BitList)
    }

    /// The text; `None` if the data is too short.
    pub(super) fn text(
        self,
        value: &Value<'_>,
        width: Option<usize>,
        names: &Names<'_>,
    ) -> Option<String> {
        let number;
        let bytes = match (self, value) {
            (_, Value::Text(text)) => return Some(text.clone()),
            // The address of a field is its value.
            (Self::Ipv4(_), Value::Number(value)) => {
                number = value.to_le_bytes();
                &number
            }
            (_, Value::Number(address)) => return Some(self.address(*address as u64, names)),
            (_, Value::Bytes(bytes)) => *bytes,
        };
        Some(match self {
            Self::Address | Self::Symbol | Self::Function => {
                self.address(little_endian(bytes), names)
            }
            Self::Ipv4(style) => style.text(bytes.first_chunk()?),
            Self::Ipv6(style) => style.text(bytes.first_chunk()?),
            Self::Socket(style) => style.text(bytes)?,
            Self::Mac { separator, is_reversed } => {
                let mut mac = *bytes.first_chunk::<6>()?;
                if is_reversed {
                    mac.reverse();
                }
                hex(&mac, separator)
            }
            Self::Uuid { is_little_endian, is_upper } => {
                let text = uuid(*bytes.first_chunk()?, is_little_endian);
                if is_upper { text.to_uppercase() } else { text }
            }
            Self::Hex(separator) => hex(bytes.get(..width.unwrap_or(1).min(MAX_HEX))?, separator),
            Self::Bitmap => bitmap(bytes, width.unwrap_or(0))?,
            Self::BitList => bit_list(bytes, width.unwrap_or(0))?,
        })
    }

    fn address(self, address: u64, names: &Names<'_>) -> String {
        let name = match self {
            Self::Symbol => named(names, address),
            Self::Function => named(names, address)
                .map(|name| name.split_once('+').map_or(name.as_str(), |(f, _)| f).to_owned()),
            _ => None,
        };
        name.unwrap_or_else(|| format!("{address:#x}"))
    }
}

/// The byte order of an IPv4 address: that of the network (`n`, `b`), or of the little-endian host.
fn is_reversed(order: &str) -> Option<bool> {
    match order {
        "" | "n" | "b" => Some(false),
        "h" | "l" => Some(true),
        _ => None,
    }
}

impl Ipv4 {
    fn text(self, address: &[u8; 4]) -> String {
        let mut address = *address;
        if self.is_reversed {
            address.reverse();
        }
        let part = |byte: u8| if self.has_zeros { format!("{byte:03}") } else { byte.to_string() };
        address.map(part).join(".")
    }
}

impl Ipv6 {
    fn text(self, address: &[u8; 16]) -> String {
        let separator = match self {
            Self::Compressed => return Ipv6Addr::from(*address).to_string(),
            Self::Colons => ":",
            Self::Digits => "",
        };
        let parts: Vec<String> = address.chunks(2).map(|pair| hex(pair, "")).collect();
        parts.join(separator)
    }
}

impl Socket {
    /// The letters after `IS` or `iS`.
    fn parse(has_zeros: bool, letters: &str) -> Option<Self> {
        let v6 = if has_zeros { Ipv6::Digits } else { Ipv6::Colons };
        let v4 = Ipv4 { has_zeros, is_reversed: false };
        let mut this = Self { v4, v6, has_port: false, has_flow: false, has_scope: false };
        for letter in letters.chars() {
            match letter {
                'p' => this.has_port = true,
                'f' => this.has_flow = true,
                's' => this.has_scope = true,
                'c' if has_zeros => {}
                'c' => this.v6 = Ipv6::Compressed,
                _ => this.v4.is_reversed = is_reversed(letter.encode_utf8(&mut [0; 4]))?,
            }
        }
        Some(this)
    }

    /// A `struct sockaddr_in` or `sockaddr_in6`.
    fn text(self, bytes: &[u8]) -> Option<String> {
        let mut text = match u16::from_le_bytes(*bytes.first_chunk()?) {
            AF_INET => self.v4.text(bytes.get(4..)?.first_chunk()?),
            AF_INET6 => {
                let address = self.v6.text(bytes.get(8..)?.first_chunk()?);
                let has_more = self.has_port || self.has_flow || self.has_scope;
                if has_more { format!("[{address}]") } else { address }
            }
            _ => return Some("(einval)".to_owned()),
        };
        if self.has_port {
            let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
            let _ = write!(text, ":{port}");
        }
        if text.starts_with('[') {
            if self.has_flow {
                let flow = u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?) & 0x0fff_ffff;
                let _ = write!(text, "/{flow}");
            }
            if self.has_scope {
                let scope = u32::from_le_bytes(*bytes.get(24..)?.first_chunk()?);
                let _ = write!(text, "%{scope}");
            }
        }
        Some(text)
    }
}

fn hex(bytes: &[u8], separator: &str) -> String {
    let bytes: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    bytes.join(separator)
}

/// Its first three numbers can be little-endian.
fn uuid(mut uuid: [u8; 16], is_little_endian: bool) -> String {
    if is_little_endian {
        for part in [0..4, 4..6, 6..8] {
            uuid.get_mut(part).unwrap_or_default().reverse();
        }
    }
    let parts = [0..4, 4..6, 6..8, 8..10, 10..16];
    parts.map(|part| hex(uuid.get(part).unwrap_or_default(), "")).join("-")
}

/// The first bits: words of 32 bits, the highest first. A part of a word has fewer digits.
fn bitmap(bytes: &[u8], bits: usize) -> Option<String> {
    let bytes = bytes.get(..bits.div_ceil(8))?;
    let word = |(n, word): (usize, &[u8])| {
        let bits = (bits - n * 32).min(32);
        let value = little_endian(word) & (u64::MAX >> (64 - bits));
        format!("{value:0digits$x}", digits = bits.div_ceil(4))
    };
    let words: Vec<String> = bytes.chunks(4).enumerate().map(word).rev().collect();
    Some(words.join(","))
}

/// The bits that are set among the first `bits`, as in `0-3,8`.
fn bit_list(bytes: &[u8], bits: usize) -> Option<String> {
    let bytes = bytes.get(..bits.div_ceil(8))?;
    let is_set = |bit: &usize| bytes.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 != 0);
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for bit in (0..bits).filter(is_set) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == bit => *last = bit,
            _ => ranges.push((bit, bit)),
        }
    }
    let range = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let ranges: Vec<String> = ranges.into_iter().map(range).collect();
    Some(ranges.join(","))
}
