//! Header, strings and arrays: the encodings that all messages share.

use super::Command;
use crate::{Guid, HResult, RejectedRequest};
use trace_common::{Cursor, ReadError, ReadErrorKind};

/// The first 14 bytes of every message.
pub const MAGIC: [u8; 14] = *b"DOTNET_IPC_V1\0";

/// Maximum length of a payload, given by the 16-bit size of a message.
pub const MAX_PAYLOAD: usize = u16::MAX as usize - Header::LEN;

const SERVER: u8 = super::CommandSet::Server as u8;
const OK: u8 = 0x00;
const ERROR: u8 = 0xff;

/// Malformed data of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {offset}")]
#[non_exhaustive]
pub struct DecodeError {
    /// Offset of the error from the start of the message or payload.
    pub offset: u64,
    /// Kind of error.
    pub kind: DecodeErrorKind,
}

/// Kind of error in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The data is too short.
    #[error(transparent)]
    Read(#[from] ReadErrorKind),
    /// The message does not begin with [`MAGIC`].
    #[error("the magic is not DOTNET_IPC_V1")]
    BadMagic,
    /// The advertisement does not begin with `ADVR_V1`.
    #[error("the magic is not ADVR_V1")]
    BadAdvertise,
    /// The size in the header is smaller than the header, or not that of the reply.
    #[error("a message of {0} bytes is not possible here")]
    BadSize(u16),
    /// The command is unknown, or a reply is not of the server's set.
    #[error("command {0:02x}.{1:02x} is not expected")]
    BadCommand(u8, u8),
    /// A string without a terminating NUL.
    #[error("a string is not terminated")]
    NotTerminated,
    /// A string with data after NUL.
    #[error("a string contains NUL")]
    Nul,
    /// A number without a meaning in the protocol.
    #[error("{1} is not a valid {0}")]
    BadValue(&'static str, u64),
    /// Bytes after the end of the message.
    #[error("{0} bytes too many")]
    Trailing(usize),
    /// More data than the client accepts.
    #[error("{0} bytes are more than the limit of {1}")]
    Limit(u64, u64),
}

impl From<ReadError> for DecodeError {
    fn from(error: ReadError) -> Self {
        Self { offset: error.offset, kind: error.kind.into() }
    }
}

/// The first 20 bytes of every message: magic, `u16` size of the whole message, `u8` command
/// set, `u8` command, `u16` 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Size of header and payload, in bytes: at least 20.
    pub size: u16,
    /// A [`CommandSet`](super::CommandSet).
    pub set: u8,
    /// The command in the set.
    pub id: u8,
}

impl Header {
    /// Bytes of a header.
    pub const LEN: usize = 20;

    /// Decodes and checks a header.
    ///
    /// # Errors
    ///
    /// [`DecodeErrorKind::BadMagic`] if the data is not a message of the protocol, and
    /// [`DecodeErrorKind::BadSize`] if its size is smaller than the header.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bytes);
        if c.array()? != MAGIC {
            return Err(DecodeError { offset: 0, kind: DecodeErrorKind::BadMagic });
        }
        let size = c.u16()?;
        if usize::from(size) < Self::LEN {
            return Err(DecodeError { offset: 14, kind: DecodeErrorKind::BadSize(size) });
        }
        // The last two bytes are reserved and ignored by every server seen.
        Ok(Self { size, set: c.u8()?, id: c.u8()? })
    }

    /// Number of bytes that follow the header.
    pub const fn payload_len(self) -> usize {
        (self.size as usize).saturating_sub(Self::LEN)
    }

    fn encode(self, out: &mut Vec<u8>) {
        out.extend(MAGIC);
        out.extend(self.size.to_le_bytes());
        out.extend([self.set, self.id, 0, 0]);
    }
}

/// Encodes a message of a header and `payload`.
pub(super) fn message(set: u8, id: u8, payload: &[u8]) -> Result<Vec<u8>, RejectedRequest> {
    let size = u16::try_from(Header::LEN + payload.len())
        .map_err(|_| RejectedRequest::TooLong(payload.len()))?;
    let mut out = Vec::with_capacity(usize::from(size));
    Header { size, set, id }.encode(&mut out);
    out.extend(payload);
    Ok(out)
}

/// The reply of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// Success, with the payload.
    Ok(&'a [u8]),
    /// Failure.
    Error {
        /// The error code.
        code: HResult,
        /// An explanation: only `CreateCoreDump3` has one.
        message: Option<Box<str>>,
    },
}

impl<'a> Reply<'a> {
    /// Decodes the `payload` that came with `header`, which contains its size.
    ///
    /// # Errors
    ///
    /// [`DecodeErrorKind::BadSize`] if the length of `payload` or of the error code does not match, and
    /// [`DecodeErrorKind::BadCommand`] if the message is not a reply.
    pub fn decode(header: Header, payload: &'a [u8]) -> Result<Self, DecodeError> {
        let size = || DecodeError { offset: 14, kind: DecodeErrorKind::BadSize(header.size) };
        if header.payload_len() != payload.len() {
            return Err(size());
        }
        match (header.set, header.id) {
            (SERVER, OK) => Ok(Self::Ok(payload)),
            (SERVER, ERROR) => {
                let mut c = Cursor::with_base(payload, Header::LEN as u64);
                let code = HResult::from(c.u32().map_err(|_| size())?);
                // An explanation that cannot be decoded does not hide the error code.
                let message = match string(&mut c) {
                    Ok(text) if !text.is_empty() => Some(text.into()),
                    _ => None,
                };
                Ok(Self::Error { code, message })
            }
            (set, id) => {
                Err(DecodeError { offset: 16, kind: DecodeErrorKind::BadCommand(set, id) })
            }
        }
    }

    /// Encodes the message, for a server.
    ///
    /// # Errors
    ///
    /// [`RejectedRequest::TooLong`] if the payload does not fit in a message, and
    /// [`RejectedRequest::Nul`] if the error text contains a NUL character.
    pub fn encode(&self) -> Result<Vec<u8>, RejectedRequest> {
        match self {
            Self::Ok(payload) => message(SERVER, OK, payload),
            Self::Error { code, message: text } => {
                let mut payload = code.code().to_le_bytes().to_vec();
                if let Some(text) = text {
                    put_string(&mut payload, text, "the error text")?;
                }
                message(SERVER, ERROR, &payload)
            }
        }
    }
}

/// The first message of a runtime on a reverse connection, 34 bytes: `"ADVR_V1\0"`, GUID cookie,
/// `u64` process id, `u16` 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertise {
    /// Unique id of the runtime, the same on all of its connections.
    pub cookie: Guid,
    /// The process id in the runtime's own namespace.
    pub pid: u64,
}

impl Advertise {
    /// Bytes of an advertisement.
    pub const LEN: usize = 34;
    const MAGIC: [u8; 8] = *b"ADVR_V1\0";

    /// Decodes an advertisement.
    ///
    /// # Errors
    ///
    /// [`DecodeErrorKind::BadAdvertise`] if the data does not begin with `ADVR_V1`.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bytes);
        if c.array()? != Self::MAGIC {
            return Err(DecodeError { offset: 0, kind: DecodeErrorKind::BadAdvertise });
        }
        Ok(Self { cookie: Guid::from_bytes(c.array()?), pid: c.u64()? })
    }

    /// Encodes the advertisement.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&Self::MAGIC);
        out[8..24].copy_from_slice(&self.cookie.to_bytes());
        out[24..32].copy_from_slice(&self.pid.to_le_bytes());
        out
    }
}

/// `u32` count of UTF-16 units *including* a NUL, then the units. The empty string is the count 0
/// alone, which every server decodes as an absent string.
pub(super) fn put_string(
    out: &mut Vec<u8>,
    text: &str,
    what: &'static str,
) -> Result<(), RejectedRequest> {
    if text.contains('\0') {
        return Err(RejectedRequest::Nul(what));
    }
    if text.is_empty() {
        out.extend([0; 4]);
        return Ok(());
    }
    let units = text.encode_utf16().count() + 1;
    // A string that does not fit in 32 bits does not fit in a message either.
    out.extend(u32::try_from(units).map_err(|_| RejectedRequest::TooLong(units))?.to_le_bytes());
    out.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
    out.extend([0; 2]);
    Ok(())
}

/// Encodes a string that must not be empty.
pub(super) fn put_name(
    out: &mut Vec<u8>,
    text: &str,
    what: &'static str,
) -> Result<(), RejectedRequest> {
    if text.is_empty() { Err(RejectedRequest::Empty(what)) } else { put_string(out, text, what) }
}

/// Reads a string. Unpaired surrogates become U+FFFD.
pub(super) fn string(c: &mut Cursor<'_>) -> Result<String, DecodeError> {
    let units = c.u32()? as usize;
    let at = c.offset();
    let bytes = c.bytes(units.saturating_mul(2))?;
    let mut text = char::decode_utf16(
        bytes.chunks_exact(2).map(|unit| u16::from_le_bytes(unit.try_into().unwrap_or_default())),
    )
    .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
    .collect::<String>();
    if units > 0 && text.pop() != Some('\0') {
        return Err(DecodeError { offset: at, kind: DecodeErrorKind::NotTerminated });
    }
    if text.contains('\0') {
        return Err(DecodeError { offset: at, kind: DecodeErrorKind::Nul });
    }
    Ok(text)
}

/// `u32` count, then the numbers.
pub(super) fn put_u32s(out: &mut Vec<u8>, values: &[u32]) -> Result<(), RejectedRequest> {
    put_count(out, values.len())?;
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    Ok(())
}

pub(super) fn put_count(out: &mut Vec<u8>, count: usize) -> Result<(), RejectedRequest> {
    out.extend(u32::try_from(count).map_err(|_| RejectedRequest::TooLong(count))?.to_le_bytes());
    Ok(())
}

pub(super) fn u32s(c: &mut Cursor<'_>) -> Result<Vec<u32>, DecodeError> {
    let count = c.u32()? as usize;
    let mut bytes = c.sub(count.saturating_mul(4))?;
    (0..count).map(|_| Ok(bytes.u32()?)).collect()
}

/// Reads an array whose elements take at least `least` bytes each.
pub(super) fn array<'a, T>(
    c: &mut Cursor<'a>,
    least: usize,
    mut element: impl FnMut(&mut Cursor<'a>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count = c.u32()? as usize;
    if count.saturating_mul(least) > c.remaining() {
        // Reports the error at the offset where the data would end.
        c.bytes(count.saturating_mul(least))?;
    }
    (0..count).map(|_| element(c)).collect()
}

/// Reads a one-byte boolean.
pub(super) fn boolean(c: &mut Cursor<'_>) -> Result<bool, DecodeError> {
    let offset = c.offset();
    match c.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(bad(offset, "boolean", other.into())),
    }
}

pub(super) const fn bad(offset: u64, what: &'static str, value: u64) -> DecodeError {
    DecodeError { offset, kind: DecodeErrorKind::BadValue(what, value) }
}

/// Fails unless all data was read.
pub(crate) fn end(c: &Cursor<'_>) -> Result<(), DecodeError> {
    match c.remaining() {
        0 => Ok(()),
        n => Err(DecodeError { offset: c.offset(), kind: DecodeErrorKind::Trailing(n) }),
    }
}

/// The command and payload of a whole request message.
pub(super) fn split(message: &[u8]) -> Result<(Command, Cursor<'_>), DecodeError> {
    let mut c = Cursor::new(message);
    let header = Header::decode(&c.array()?)?;
    let command = Command::from_wire(header.set, header.id).ok_or(DecodeError {
        offset: 16,
        kind: DecodeErrorKind::BadCommand(header.set, header.id),
    })?;
    let payload = c.sub(header.payload_len())?;
    end(&c)?;
    Ok((command, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reply_as_a_runtime_sends_it() {
        // Recorded from .NET 9.0.1.
        let bytes = b"DOTNET_IPC_V1\0\x18\0\xff\xff\0\0\x85\x13\x13\x80";
        let header = Header::decode(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(
            Reply::decode(header, &bytes[20..]),
            Ok(Reply::Error { code: HResult::UnknownCommand, message: None })
        );
    }

    #[test]
    fn replies_that_are_none() {
        let header = Header { size: 24, set: 4, id: 0 };
        let error = Reply::decode(header, &[0; 4]).unwrap_err();
        assert_eq!((error.offset, error.kind), (16, DecodeErrorKind::BadCommand(4, 0)));
        let header = Header { size: 30, set: 0xff, id: 0 };
        assert_eq!(Reply::decode(header, &[]).unwrap_err().kind, DecodeErrorKind::BadSize(30));
        let header = Header { size: 22, set: 0xff, id: 0xff };
        assert_eq!(Reply::decode(header, &[0; 2]).unwrap_err().kind, DecodeErrorKind::BadSize(22));
        let mut bytes = *b"DOTNET_IPC_V1\0\x13\0\xff\0\0\0";
        assert_eq!(Header::decode(&bytes).unwrap_err().kind, DecodeErrorKind::BadSize(19));
        bytes[12] = b'2';
        assert_eq!(Header::decode(&bytes).unwrap_err().kind, DecodeErrorKind::BadMagic);
    }

    #[test]
    fn strings_count_units_with_their_nul() {
        let mut out = Vec::new();
        put_string(&mut out, "", "text").unwrap();
        put_string(&mut out, "aé😀", "text").unwrap();
        assert_eq!(
            out,
            [
                0, 0, 0, 0, // zero bytes only
                5, 0, 0, 0, b'a', 0, 0xe9, 0, 0x3d, 0xd8, 0x00, 0xde, 0, 0
            ]
        );
        let mut c = Cursor::new(&out);
        assert_eq!(string(&mut c).unwrap(), "");
        assert_eq!(string(&mut c).unwrap(), "aé😀");
        assert_eq!(put_string(&mut out, "a\0b", "text"), Err(RejectedRequest::Nul("text")));
        assert_eq!(put_name(&mut out, "", "text"), Err(RejectedRequest::Empty("text")));
    }

    #[test]
    fn hostile_strings_are_errors() {
        let kind = |bytes: &[u8]| string(&mut Cursor::new(bytes)).unwrap_err().kind;
        assert_eq!(kind(&[1, 0, 0, 0, b'a', 0]), DecodeErrorKind::NotTerminated);
        assert_eq!(kind(&[3, 0, 0, 0, 0, 0, b'a', 0, 0, 0]), DecodeErrorKind::Nul);
        assert!(matches!(kind(&[0xff, 0xff, 0xff, 0xff, 0, 0]), DecodeErrorKind::Read(_)));
        // Some clients write an empty string with an explicit NUL.
        assert_eq!(string(&mut Cursor::new(&[1, 0, 0, 0, 0, 0])).unwrap(), "");
    }
}
