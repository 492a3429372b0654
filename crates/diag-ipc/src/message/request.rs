use super::tracing::is_user_events;
use super::wire::{
    DecodeError, array, bad, end, message, put_count, put_name, put_string, split, string,
};
use super::{Command, TracingConfig, UserEventsConfig};
use crate::{Guid, RejectedRequest};
use trace_common::Cursor;

/// How much a dump holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DumpType {
    /// Stacks, modules and what is needed to list them.
    Normal = 1,
    /// With the managed heap.
    WithHeap = 2,
    /// Like [`DumpType::Normal`], without what may identify a person.
    Triage = 3,
    /// All of the process's memory. The only kind that a single-file application can write.
    Full = 4,
}

impl DumpType {
    const ALL: [Self; 4] = [Self::Normal, Self::WithHeap, Self::Triage, Self::Full];
}

bitflags::bitflags! {
    /// What happens beside the writing of a dump.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DumpFlags: u32 {
        /// The target prints what it does. The only flag that `CreateCoreDump` has.
        const LOGGING = 1;
        /// The target prints what it does in detail. Needs `CreateCoreDump2` (.NET 6).
        const VERBOSE_LOGGING = 2;
        /// A crash report in JSON beside the dump. Needs `CreateCoreDump2` (.NET 6).
        const CRASH_REPORT = 4;
        const _ = !0;
    }
}

/// What perf is given to name jitted code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
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

/// Everything that can be asked of a runtime.
///
/// The requests of families with several versions carry the [`Command`] that they are to be
/// encoded as.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// `CreateCoreDump`, `CreateCoreDump2` or `CreateCoreDump3`.
    CreateCoreDump {
        /// Which of them.
        command: Command,
        /// Where the dump is written, in the target's own file system.
        path: String,
        /// How much it holds.
        dump_type: DumpType,
        /// What happens beside.
        flags: DumpFlags,
    },
    /// `StopTracing`.
    StopTracing {
        /// The session. Unknown ones are accepted silently.
        session: u64,
    },
    /// `CollectTracing` to `CollectTracing6`.
    CollectTracing {
        /// Which of them.
        command: Command,
        /// What is asked for.
        config: TracingConfig,
    },
    /// `CollectTracing5` or later, to the kernel. The runtime then waits for the descriptor of
    /// `user_events_data`.
    CollectUserEvents {
        /// Which of them.
        command: Command,
        /// What is asked for.
        config: UserEventsConfig,
    },
    /// `AttachProfiler`.
    AttachProfiler {
        /// How long the runtime may take, in milliseconds.
        timeout_ms: u32,
        /// The profiler's class.
        clsid: Guid,
        /// Its library, in the target's own file system.
        path: String,
        /// Bytes for the profiler.
        client_data: Vec<u8>,
    },
    /// `StartupProfiler`.
    StartupProfiler {
        /// The profiler's class.
        clsid: Guid,
        /// Its library, in the target's own file system.
        path: String,
    },
    /// `ProcessInfo`, `ProcessInfo2` or `ProcessInfo3`.
    ProcessInfo {
        /// Which of them.
        command: Command,
    },
    /// `ResumeRuntime`.
    ResumeRuntime,
    /// `ProcessEnvironment`.
    ProcessEnvironment,
    /// `SetEnvironmentVariable`.
    SetEnvironmentVariable {
        /// The variable.
        name: String,
        /// Its new value. Empty, it is unset: the protocol has no empty values.
        value: String,
    },
    /// `EnablePerfMap`.
    EnablePerfMap {
        /// Which files are written.
        perf_map_type: PerfMapType,
    },
    /// `DisablePerfMap`.
    DisablePerfMap,
    /// `ApplyStartupHook`.
    ApplyStartupHook {
        /// The assembly, in the target's own file system.
        path: String,
    },
}

impl Request {
    /// The command that it is sent as.
    pub const fn command(&self) -> Command {
        match self {
            Self::CreateCoreDump { command, .. }
            | Self::CollectTracing { command, .. }
            | Self::CollectUserEvents { command, .. }
            | Self::ProcessInfo { command } => *command,
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

    /// The whole message, to be sent by one write.
    ///
    /// What is known to end or hang a runtime is refused here, so that no message can do it.
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
            // A payload where none is expected makes .NET 9 and 10 echo it, with memory beyond.
            Self::ProcessInfo { .. }
            | Self::ResumeRuntime
            | Self::ProcessEnvironment
            | Self::DisablePerfMap => {}
        }
        let command = self.command();
        message(command.set() as u8, command.id(), &payload)
    }

    /// Decodes a whole message, as a server would.
    pub fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        let (command, mut c) = split(message)?;
        let request = Self::decode_payload(command, &mut c)?;
        end(&c)?;
        Ok(request)
    }

    fn decode_payload(command: Command, c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(match command {
            Command::CreateCoreDump | Command::CreateCoreDump2 | Command::CreateCoreDump3 => {
                Self::CreateCoreDump {
                    command,
                    path: string(c)?,
                    dump_type: number(c, "dump type", &DumpType::ALL, |t| *t as u32)?,
                    flags: DumpFlags::from_bits_retain(c.u32()?),
                }
            }
            Command::StopTracing => Self::StopTracing { session: c.u64()? },
            Command::CollectTracing
            | Command::CollectTracing2
            | Command::CollectTracing3
            | Command::CollectTracing4
            | Command::CollectTracing5
            | Command::CollectTracing6 => {
                if is_user_events(command, c)? {
                    Self::CollectUserEvents { command, config: UserEventsConfig::decode(c)? }
                } else {
                    Self::CollectTracing { command, config: TracingConfig::decode(command, c)? }
                }
            }
            Command::AttachProfiler => Self::AttachProfiler {
                timeout_ms: c.u32()?,
                clsid: Guid::from_bytes(c.array()?),
                path: string(c)?,
                client_data: array(c, 1, |c| Ok(c.u8()?))?,
            },
            Command::StartupProfiler => {
                Self::StartupProfiler { clsid: Guid::from_bytes(c.array()?), path: string(c)? }
            }
            Command::ProcessInfo | Command::ProcessInfo2 | Command::ProcessInfo3 => {
                Self::ProcessInfo { command }
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
}

/// Reads a `u32` that stands for one of `all`.
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
        // Where a well-known client writes the empty string wrongly, so that every runtime
        // refuses the second provider.
        let config = TracingConfig::new([
            Provider::new("A").keywords(1),
            Provider::new("é").keywords(2).arguments("k=v"),
        ])
        .buffer_mb(10);
        let bytes =
            Request::CollectTracing { command: Command::CollectTracing, config }.encode().unwrap();
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
    fn what_would_end_a_runtime_is_not_encoded() {
        let collect =
            |config| Request::CollectTracing { command: Command::CollectTracing4, config };
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
            command: Command::CreateCoreDump,
            path: path.into(),
            dump_type: DumpType::Full,
            flags: DumpFlags::empty(),
        };
        assert_eq!(dump("").encode(), Err(RejectedRequest::Empty("the path of the dump")));
        assert_eq!(dump("a\0").encode(), Err(RejectedRequest::Nul("the path of the dump")));
    }

    #[test]
    fn a_message_holds_64_kib() {
        let hook = |n: usize| Request::ApplyStartupHook { path: "x".repeat(n) };
        // Count and NUL take six bytes.
        let fits = (MAX_PAYLOAD - 6) / 2;
        assert!(hook(fits).encode().is_ok());
        assert_eq!(hook(fits + 1).encode(), Err(RejectedRequest::TooLong(2 * fits + 8)));
    }

    #[test]
    fn a_message_is_decoded_to_its_end() {
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
