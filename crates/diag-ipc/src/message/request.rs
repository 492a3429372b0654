use super::tracing::is_user_events;
use super::wire::{
    DecodeError, array, bad, end, message, put_count, put_name, put_string, split, string,
};
use super::{
    Command, DumpCommand, ProcessInfoCommand, TracingCommand, TracingConfig, UserEventsCommand,
    UserEventsConfig,
};
use crate::{Guid, RejectedRequest};
use trace_common::Cursor;

/// The contents of a memory dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum DumpType {
    /// Stacks, modules and the data required to list them.
    Normal = 1,
    /// With the managed heap.
    WithHeap = 2,
    /// Like [`DumpType::Normal`], without data that can identify a person.
    Triage = 3,
    /// The whole memory of the process. The only type that a single-file application can write.
    Full = 4,
}

impl DumpType {
    const ALL: [Self; 4] = [Self::Normal, Self::WithHeap, Self::Triage, Self::Full];
}

bitflags::bitflags! {
    /// Logging and crash report of a memory dump.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DumpFlags: u32 {
        /// The target prints log messages. The only flag that `CreateCoreDump` supports.
        const LOGGING = 1;
        /// The target prints detailed log messages. Needs `CreateCoreDump2` (.NET 6).
        const VERBOSE_LOGGING = 2;
        /// Writes a crash report in JSON beside the dump. Needs `CreateCoreDump2` (.NET 6).
        const CRASH_REPORT = 4;
        const _ = !0;
    }
}

/// The files in which perf finds the names of jitted code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum PerfMapType {
    /// Both.
    All = 1,
    /// `jit-PID.dump`, for `perf inject`.
    JitDump = 2,
    /// `perf-PID.map`.
    PerfMap = 3,
}

impl PerfMapType {
    const ALL: [Self; 3] = [Self::All, Self::JitDump, Self::PerfMap];
}

/// A request to a runtime.
///
/// A request with several versions contains the version to encode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// `CreateCoreDump`, `CreateCoreDump2` or `CreateCoreDump3`.
    CreateCoreDump {
        /// The version to encode.
        command: DumpCommand,
        /// The file to write, in the target's file system.
        path: String,
        /// The contents of the dump.
        dump_type: DumpType,
        /// Logging and crash report.
        flags: DumpFlags,
    },
    /// `StopTracing`.
    StopTracing {
        /// The session. Runtimes report success for unknown ids.
        session: u64,
    },
    /// `CollectTracing` to `CollectTracing6`.
    CollectTracing {
        /// The version to encode.
        command: TracingCommand,
        /// The session to start.
        config: TracingConfig,
    },
    /// `CollectTracing5` or later, with output to the kernel. After the request, the runtime waits
    /// for the descriptor of `user_events_data`.
    CollectUserEvents {
        /// The version to encode.
        command: UserEventsCommand,
        /// The session to start.
        config: UserEventsConfig,
    },
    /// `AttachProfiler`.
    AttachProfiler {
        /// Time limit for the runtime, in milliseconds.
        timeout_ms: u32,
        /// The profiler's class.
        clsid: Guid,
        /// The profiler's library, in the target's file system.
        path: String,
        /// Data for the profiler.
        client_data: Vec<u8>,
    },
    /// `StartupProfiler`.
    StartupProfiler {
        /// The profiler's class.
        clsid: Guid,
        /// The profiler's library, in the target's file system.
        path: String,
    },
    /// `ProcessInfo`, `ProcessInfo2` or `ProcessInfo3`.
    ProcessInfo {
        /// The version to encode.
        command: ProcessInfoCommand,
    },
    /// `ResumeRuntime`.
    ResumeRuntime,
    /// `ProcessEnvironment`.
    ProcessEnvironment,
    /// `SetEnvironmentVariable`.
    SetEnvironmentVariable {
        /// The variable.
        name: String,
        /// The new value. An empty value unsets the variable: the protocol has no empty values.
        value: String,
    },
    /// `EnablePerfMap`.
    EnablePerfMap {
        /// The files to write.
        perf_map_type: PerfMapType,
    },
    /// `DisablePerfMap`.
    DisablePerfMap,
    /// `ApplyStartupHook`.
    ApplyStartupHook {
        /// The assembly, in the target's file system.
        path: String,
    },
}

impl Request {
    /// The command.
    pub const fn command(&self) -> Command {
        match self {
            Self::CreateCoreDump { command, .. } => command.command(),
            Self::CollectTracing { command, .. } => command.command(),
            Self::CollectUserEvents { command, .. } => command.command(),
            Self::ProcessInfo { command } => command.command(),
            Self::StopTracing { .. } => Command::StopTracing,
            Self::AttachProfiler { .. } => Command::AttachProfiler,
            Self::StartupProfiler { .. } => Command::StartupProfiler,
            Self::ResumeRuntime => Command::ResumeRuntime,
            Self::ProcessEnvironment => Command::ProcessEnvironment,
            Self::SetEnvironmentVariable { .. } => Command::SetEnvironmentVariable,
            Self::EnablePerfMap { .. } => Command::EnablePerfMap,
            Self::DisablePerfMap => Command::DisablePerfMap,
            Self::ApplyStartupHook { .. } => Command::ApplyStartupHook,
        }
    }

    /// Encodes the whole message, including the header. Send it with one write.
    ///
    /// # Errors
    ///
    /// [`RejectedRequest`] if the request is known to end or hang a runtime, or cannot be encoded
    /// in the protocol.
    pub fn encode(&self) -> Result<Vec<u8>, RejectedRequest> {
        let mut payload = Vec::new();
        let out = &mut payload;
        match self {
            Self::CreateCoreDump { path, dump_type, flags, .. } => {
                put_name(out, path, "the path of the dump")?;
                out.extend((*dump_type as u32).to_le_bytes());
                out.extend(flags.bits().to_le_bytes());
            }
            Self::StopTracing { session } => out.extend(session.to_le_bytes()),
            Self::CollectTracing { command, config } => config.encode(*command, out)?,
            Self::CollectUserEvents { config, .. } => config.encode(out)?,
            Self::AttachProfiler { timeout_ms, clsid, path, client_data } => {
                out.extend(timeout_ms.to_le_bytes());
                out.extend(clsid.to_bytes());
                put_name(out, path, "the path of the profiler")?;
                put_count(out, client_data.len())?;
                out.extend(client_data);
            }
            Self::StartupProfiler { clsid, path } => {
                out.extend(clsid.to_bytes());
                put_name(out, path, "the path of the profiler")?;
            }
            Self::SetEnvironmentVariable { name, value } => {
                put_name(out, name, "the name of the variable")?;
                put_string(out, value, "the value of the variable")?;
            }
            Self::EnablePerfMap { perf_map_type } => {
                out.extend((*perf_map_type as u32).to_le_bytes());
            }
            Self::ApplyStartupHook { path } => {
                put_name(out, path, "the path of the startup hook")?;
            }
            // .NET 9 and 10 echo a payload where none is expected, with the memory beyond it.
            Self::ProcessInfo { .. }
            | Self::ResumeRuntime
            | Self::ProcessEnvironment
            | Self::DisablePerfMap => {}
        }
        let command = self.command();
        message(command.set() as u8, command.id(), &payload)
    }

    /// Decodes a whole message, for a server.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] with the byte offset, if the message is malformed or not a request.
    pub fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        let (command, mut c) = split(message)?;
        let request = Self::decode_payload(command, &mut c)?;
        end(&c)?;
        Ok(request)
    }

    fn decode_payload(command: Command, c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(match command {
            Command::CreateCoreDump => Self::dump(DumpCommand::CreateCoreDump, c)?,
            Command::CreateCoreDump2 => Self::dump(DumpCommand::CreateCoreDump2, c)?,
            Command::CreateCoreDump3 => Self::dump(DumpCommand::CreateCoreDump3, c)?,
            Command::StopTracing => Self::StopTracing { session: c.u64()? },
            Command::CollectTracing => Self::tracing(TracingCommand::CollectTracing, c)?,
            Command::CollectTracing2 => Self::tracing(TracingCommand::CollectTracing2, c)?,
            Command::CollectTracing3 => Self::tracing(TracingCommand::CollectTracing3, c)?,
            Command::CollectTracing4 => Self::tracing(TracingCommand::CollectTracing4, c)?,
            Command::CollectTracing5 if is_user_events(c)? => {
                Self::user_events(UserEventsCommand::CollectTracing5, c)?
            }
            Command::CollectTracing6 if is_user_events(c)? => {
                Self::user_events(UserEventsCommand::CollectTracing6, c)?
            }
            Command::CollectTracing5 => Self::tracing(TracingCommand::CollectTracing5, c)?,
            Command::CollectTracing6 => Self::tracing(TracingCommand::CollectTracing6, c)?,
            Command::AttachProfiler => Self::AttachProfiler {
                timeout_ms: c.u32()?,
                clsid: Guid::from_bytes(c.array()?),
                path: string(c)?,
                client_data: array(c, 1, |c| Ok(c.u8()?))?,
            },
            Command::StartupProfiler => {
                Self::StartupProfiler { clsid: Guid::from_bytes(c.array()?), path: string(c)? }
            }
            Command::ProcessInfo => Self::ProcessInfo { command: ProcessInfoCommand::ProcessInfo },
            Command::ProcessInfo2 => {
                Self::ProcessInfo { command: ProcessInfoCommand::ProcessInfo2 }
            }
            Command::ProcessInfo3 => {
                Self::ProcessInfo { command: ProcessInfoCommand::ProcessInfo3 }
            }
            Command::ResumeRuntime => Self::ResumeRuntime,
            Command::ProcessEnvironment => Self::ProcessEnvironment,
            Command::SetEnvironmentVariable => {
                Self::SetEnvironmentVariable { name: string(c)?, value: string(c)? }
            }
            Command::EnablePerfMap => Self::EnablePerfMap {
                perf_map_type: number(c, "perf map type", &PerfMapType::ALL, |t| *t as u32)?,
            },
            Command::DisablePerfMap => Self::DisablePerfMap,
            Command::ApplyStartupHook => Self::ApplyStartupHook { path: string(c)? },
        })
    }

    fn dump(command: DumpCommand, c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(Self::CreateCoreDump {
            command,
            path: string(c)?,
            dump_type: number(c, "dump type", &DumpType::ALL, |t| *t as u32)?,
            flags: DumpFlags::from_bits_retain(c.u32()?),
        })
    }

    fn tracing(command: TracingCommand, c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(Self::CollectTracing { command, config: TracingConfig::decode(command, c)? })
    }

    fn user_events(command: UserEventsCommand, c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(Self::CollectUserEvents { command, config: UserEventsConfig::decode(c)? })
    }
}

/// Reads a `u32` that is the number of one of `all`.
fn number<T: Copy>(
    c: &mut Cursor<'_>,
    what: &'static str,
    all: &[T],
    value: fn(&T) -> u32,
) -> Result<T, DecodeError> {
    let at = c.offset();
    let read = c.u32()?;
    all.iter().copied().find(|t| value(t) == read).ok_or(bad(at, what, read.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{DecodeErrorKind, MAX_PAYLOAD, Provider};

    #[test]
    fn two_providers_without_arguments() {
        // Every runtime replies BAD_ENCODING to a client that encodes the empty string as u16 0,
        // for the second provider.
        let config = TracingConfig::new([
            Provider::new("A").keywords(1),
            Provider::new("é").keywords(2).arguments("k=v"),
        ])
        .buffer_mb(10);
        let bytes = Request::CollectTracing { command: TracingCommand::CollectTracing, config }
            .encode()
            .unwrap();
        let expected: &[&[u8]] = &[
            b"DOTNET_IPC_V1\0",
            &[0x58, 0, 2, 2, 0, 0],
            &[10, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0],
            &[1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, b'A', 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 0xe9, 0, 0, 0],
            &[4, 0, 0, 0, b'k', 0, b'=', 0, b'v', 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn requests_that_end_a_runtime_are_not_encoded() {
        let collect =
            |config| Request::CollectTracing { command: TracingCommand::CollectTracing4, config };
        let provider = || Provider::new("A");
        assert_eq!(
            collect(TracingConfig::new([provider()]).buffer_mb(0)).encode(),
            Err(RejectedRequest::NoBuffer)
        );
        assert_eq!(collect(TracingConfig::new([])).encode(), Err(RejectedRequest::NoProviders));
        assert_eq!(
            collect(TracingConfig::new(std::iter::repeat_with(provider).take(1001))).encode(),
            Err(RejectedRequest::TooManyProviders(1001))
        );
        assert_eq!(
            collect(TracingConfig::new([Provider::new("")])).encode(),
            Err(RejectedRequest::Empty("the name of a provider"))
        );
        let dump = |path: &str| Request::CreateCoreDump {
            command: DumpCommand::CreateCoreDump,
            path: path.into(),
            dump_type: DumpType::Full,
            flags: DumpFlags::empty(),
        };
        assert_eq!(dump("").encode(), Err(RejectedRequest::Empty("the path of the dump")));
        assert_eq!(dump("a\0").encode(), Err(RejectedRequest::Nul("the path of the dump")));
    }

    #[test]
    fn payloads_over_65515_bytes_are_rejected() {
        let hook = |n: usize| Request::ApplyStartupHook { path: "x".repeat(n) };
        // Count and NUL take six bytes.
        let fits = (MAX_PAYLOAD - 6) / 2;
        assert!(hook(fits).encode().is_ok());
        assert_eq!(hook(fits + 1).encode(), Err(RejectedRequest::TooLong(2 * fits + 8)));
    }

    #[test]
    fn trailing_and_missing_bytes_are_errors() {
        let mut bytes = Request::ResumeRuntime.encode().unwrap();
        bytes.push(0);
        assert_eq!(Request::decode(&bytes).unwrap_err().kind, DecodeErrorKind::Trailing(1));
        let mut bytes = Request::StopTracing { session: 7 }.encode().unwrap();
        bytes.truncate(24);
        assert_eq!(Request::decode(&bytes).unwrap_err().offset, 20);
        bytes[17] = 0x77;
        assert_eq!(Request::decode(&bytes).unwrap_err().kind, DecodeErrorKind::BadCommand(2, 0x77));
    }
}
