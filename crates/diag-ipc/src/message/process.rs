//! The process information of a runtime.

use super::ProcessInfoCommand;
use super::wire::{DecodeError, DecodeErrorKind, array, end, put_count, put_string, string};
use crate::{Guid, RejectedRequest};
use trace_common::Cursor;

/// The reply to `ProcessInfo`, `ProcessInfo2` or `ProcessInfo3`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessInfo {
    /// The process id in the runtime's own namespace.
    pub pid: u64,
    /// Unique id of the runtime: the cookie of its reverse connections.
    pub cookie: Guid,
    /// The command line. A suspended runtime reports only the path of the program.
    pub command_line: String,
    /// `Linux`, `Windows`, `macOS` or `Unknown`.
    pub os: String,
    /// `x64`, `arm64`, …
    pub arch: String,
    /// The entry assembly's name. From `ProcessInfo2` on.
    pub entry_assembly: Option<String>,
    /// The runtime's version, such as `9.0.1`. From `ProcessInfo2` on.
    pub clr_version: Option<String>,
    /// The portable runtime identifier, such as `linux-x64`. From `ProcessInfo3` on.
    pub portable_rid: Option<String>,
}

impl ProcessInfo {
    /// The major version of the runtime: 9 of `9.0.1`. `None` before .NET 6, which does not report it.
    pub fn major_version(&self) -> Option<u32> {
        self.clr_version.as_deref()?.split('.').next()?.parse().ok()
    }

    /// Decodes the payload of the reply to `command`.
    ///
    /// On the wire the fields are in the order of this structure. `ProcessInfo3` starts with a
    /// `u32` version.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] with the byte offset, if the payload is malformed.
    pub fn decode(command: ProcessInfoCommand, payload: &[u8]) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(payload);
        // Later versions can only append fields, which are skipped.
        let version = if command == ProcessInfoCommand::ProcessInfo3 { c.u32()? } else { 0 };
        let mut info = Self {
            pid: c.u64()?,
            cookie: Guid::from_bytes(c.array()?),
            command_line: string(&mut c)?,
            os: string(&mut c)?,
            arch: string(&mut c)?,
            entry_assembly: None,
            clr_version: None,
            portable_rid: None,
        };
        if command != ProcessInfoCommand::ProcessInfo {
            info.entry_assembly = Some(string(&mut c)?);
            info.clr_version = Some(string(&mut c)?);
        }
        if version >= 1 {
            info.portable_rid = Some(string(&mut c)?);
        }
        if version <= 1 {
            end(&c)?;
        }
        Ok(info)
    }

    /// Encodes the payload of a reply to `command`; `None` becomes an empty string.
    ///
    /// # Errors
    ///
    /// [`RejectedRequest::Nul`] if a string contains a NUL character, and [`RejectedRequest::TooLong`]
    /// if a length exceeds 32 bits.
    pub fn encode(&self, command: ProcessInfoCommand) -> Result<Vec<u8>, RejectedRequest> {
        let mut out = Vec::new();
        if command == ProcessInfoCommand::ProcessInfo3 {
            out.extend(1u32.to_le_bytes());
        }
        out.extend(self.pid.to_le_bytes());
        out.extend(self.cookie.to_bytes());
        let mut put = |text: Option<&String>| {
            put_string(&mut out, text.map_or("", String::as_str), "a field of ProcessInfo")
        };
        put(Some(&self.command_line))?;
        put(Some(&self.os))?;
        put(Some(&self.arch))?;
        if command != ProcessInfoCommand::ProcessInfo {
            put(self.entry_assembly.as_ref())?;
            put(self.clr_version.as_ref())?;
        }
        if command == ProcessInfoCommand::ProcessInfo3 {
            put(self.portable_rid.as_ref())?;
        }
        Ok(out)
    }
}

/// The payload of the reply to `ProcessEnvironment`: the size of the data that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvironmentHeader {
    /// Number of bytes of [`Environment`] that follow the reply on the same connection.
    pub size: u32,
}

impl EnvironmentHeader {
    /// Decodes the payload: the size and two reserved bytes.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] with the byte offset, if the payload is malformed.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(payload);
        let size = c.u32()?;
        c.skip(2)?;
        end(&c)?;
        Ok(Self { size })
    }

    /// Encodes the payload of the reply.
    pub fn encode(self) -> Vec<u8> {
        [&self.size.to_le_bytes()[..], &[0; 2]].concat()
    }
}

/// The current environment variables of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    entries: Vec<String>,
}

impl Environment {
    /// Decodes the data after the reply: a `u32` count, then the strings.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] with the byte offset, if the data is malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bytes);
        let entries = array(&mut c, 4, string)?;
        end(&c)?;
        Ok(Self { entries })
    }

    /// Encodes the data that a runtime sends after its reply.
    ///
    /// # Errors
    ///
    /// [`RejectedRequest::Nul`] if an entry contains a NUL character, and [`RejectedRequest::TooLong`]
    /// if a length exceeds 32 bits.
    pub fn encode(&self) -> Result<Vec<u8>, RejectedRequest> {
        let mut out = Vec::new();
        put_count(&mut out, self.entries.len())?;
        for entry in &self.entries {
            put_string(&mut out, entry, "an environment variable")?;
        }
        Ok(out)
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Names and values. An entry without `=` is a name without a value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().map(|e| e.split_once('=').unwrap_or((e, "")))
    }

    /// Number of variables.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no variables.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl FromIterator<String> for Environment {
    /// From `NAME=value` entries.
    fn from_iter<I: IntoIterator<Item = String>>(entries: I) -> Self {
        Self { entries: entries.into_iter().collect() }
    }
}

/// The size of an environment, checked against `limit`.
pub(crate) fn checked_size(header: EnvironmentHeader, limit: usize) -> Result<usize, DecodeError> {
    usize::try_from(header.size).ok().filter(|size| *size <= limit).ok_or(DecodeError {
        offset: 0,
        kind: DecodeErrorKind::Limit(header.size.into(), limit as u64),
    })
}
