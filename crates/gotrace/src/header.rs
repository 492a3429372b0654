//! The header of a trace.

use crate::error::{Error, ErrorKind};
use crate::source::Source;
use crate::version::Version;
use std::io::Read;

/// Reads and releases the 16 bytes of the header.
pub(crate) fn read<R: Read>(source: &mut Source<R>) -> Result<Version, Error> {
    let complete = source.ensure(Version::HEADER_LEN)?;
    let minor = parse(source.window()).ok_or(Error::at(0, ErrorKind::NotATrace))?;
    let version = u32::try_from(minor).ok().and_then(Version::from_minor);
    let version = version.ok_or(Error::at(0, ErrorKind::UnknownVersion(minor)))?;
    if !complete {
        return Err(Error::at(0, ErrorKind::NotATrace));
    }
    source.release(Version::HEADER_LEN);
    Ok(version)
}

/// The version of a trace that begins with `bytes`, if they have all of a valid header.
pub(crate) fn version(bytes: &[u8]) -> Option<Version> {
    let minor = parse(bytes.get(..Version::HEADER_LEN)?)?;
    u32::try_from(minor).ok().and_then(Version::from_minor)
}

/// The minor version of `go 1.N trace`, padded with zeros to the length of a header.
fn parse(bytes: &[u8]) -> Option<u64> {
    let rest = bytes.strip_prefix(b"go 1.")?;
    let digits = rest.iter().take(3).take_while(|b| b.is_ascii_digit()).count();
    let (digits, rest) = rest.split_at(digits);
    let padding = rest.strip_prefix(b" trace")?;
    let padding = padding.get(..Version::HEADER_LEN.saturating_sub(11 + digits.len()))?;
    if digits.is_empty() || padding.iter().any(|b| *b != 0) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(bytes: &[u8]) -> Result<Version, String> {
        read(&mut Source::new(bytes, 1 << 20)).map_err(|e| e.kind().to_string())
    }

    #[test]
    fn headers() {
        for version in Version::ALL {
            assert_eq!(kind(&version.header()), Ok(version));
        }
        let unknown = |n| ErrorKind::UnknownVersion(n).to_string();
        assert_eq!(kind(b"go 1.99 trace\0\0\0"), Err(unknown(99)));
        assert_eq!(kind(b"go 1.5 trace\0\0\0\0"), Err(unknown(5)));
        for bad in [
            &b""[..],
            b"go 1.22",
            b"go 1.22 trace\0",
            b"go 1.22 tracy\0\0\0",
            b"go 1. trace\0\0\0\0\0",
        ] {
            assert_eq!(kind(bad), Err(ErrorKind::NotATrace.to_string()));
        }
    }
}
