//! The header of a trace.

use crate::error::{Error, ErrorKind};
use crate::source::Source;
use crate::version::Version;
use std::io::{self, Read};

/// Reads and releases the 16 bytes of the header.
pub(crate) fn read<R: Read>(source: &mut Source<R>) -> Result<Version, Error> {
    source.ensure(Version::HEADER_LEN)?;
    let version = parse(source.window()).map_err(|kind| Error::at(0, kind))?;
    source.release(Version::HEADER_LEN);
    Ok(version)
}

/// Reads the 16 bytes of the header, and nothing more.
pub(crate) fn read_from(source: &mut impl Read) -> Result<Version, Error> {
    let mut header = [0; Version::HEADER_LEN];
    match source.read_exact(&mut header) {
        Ok(()) => parse(&header).map_err(|kind| Error::at(0, kind)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(Error::at(0, ErrorKind::NotATrace))
        }
        Err(error) => Err(Error::at(0, error)),
    }
}

/// The version of a trace that begins with `bytes`: `go 1.N trace`, padded with zeros.
pub(crate) fn parse(bytes: &[u8]) -> Result<Version, ErrorKind> {
    let minor = bytes.get(..Version::HEADER_LEN).and_then(minor).ok_or(ErrorKind::NotATrace)?;
    Version::from_minor(minor).ok_or(ErrorKind::UnsupportedVersion(minor.into()))
}

fn minor(header: &[u8]) -> Option<u32> {
    let rest = header.strip_prefix(b"go 1.")?;
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let (digits, rest) = rest.split_at(digits);
    let padding = rest.strip_prefix(b" trace")?;
    if padding.iter().any(|b| *b != 0) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_or_refused() {
        let all = |bytes: &[u8]| {
            let results = [
                read(&mut Source::new(bytes, 1 << 20)).map_err(|error| error.kind().to_string()),
                read_from(&mut &*bytes).map_err(|error| error.kind().to_string()),
                parse(bytes).map_err(|kind| kind.to_string()),
            ];
            assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
            results.into_iter().next().unwrap()
        };
        for version in Version::ALL {
            assert_eq!(all(&version.header()), Ok(version));
        }
        let unknown = |n| Err(ErrorKind::UnsupportedVersion(n).to_string());
        assert_eq!(all(b"go 1.99 trace\0\0\0"), unknown(99));
        assert_eq!(all(b"go 1.5 trace\0\0\0\0"), unknown(5));
        assert_eq!(all(b"go 1.100 trace\0\0"), unknown(100));
        for bad in [
            &b""[..],
            b"go 1.22",
            b"go 1.22 trace\0",
            b"go 1.22 tracy\0\0\0",
            b"go 1.22 trace\0\0x",
            b"go 1. trace\0\0\0\0\0",
            b"go 1.999999999999",
        ] {
            assert_eq!(all(bad), Err(ErrorKind::NotATrace.to_string()));
        }
    }
}
