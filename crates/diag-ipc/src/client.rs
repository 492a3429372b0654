use crate::message::{
    Command, DumpFlags, DumpType, Environment, EnvironmentHeader, PerfMapType, ProcessInfo,
    Request, TracingConfig, checked_size,
};
use crate::transport::{Address, Connection, Deadline, Peer, Timeouts};
use crate::{Error, Guid, HResult, RejectedRequest, Session, target};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use trace_common::Cursor;

/// The most that the environment of a process may take: far beyond what an operating system
/// lets a process start with.
const MAX_ENVIRONMENT: usize = 64 << 20;

/// Somewhere that connections to a runtime come from.
pub(crate) trait Endpoint: fmt::Debug + Send + Sync {
    /// A connection on which one request can be sent.
    fn connect(&self, timeout: Duration) -> Result<Connection, Error>;
}

impl Endpoint for Address {
    fn connect(&self, timeout: Duration) -> Result<Connection, Error> {
        Connection::open(self, Deadline::after(timeout))
    }
}

/// Connections made by a function of the caller's.
#[cfg(unix)]
struct Dialer<F>(F);

#[cfg(unix)]
impl<F> fmt::Debug for Dialer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dialer")
    }
}

#[cfg(unix)]
impl<F> Endpoint for Dialer<F>
where
    F: Fn(Duration) -> std::io::Result<std::os::unix::net::UnixStream> + Send + Sync,
{
    fn connect(&self, timeout: Duration) -> Result<Connection, Error> {
        let stream = (self.0)(timeout)
            .map_err(|source| Error::Io { operation: crate::Operation::Connect, source })?;
        Ok(crate::transport::unix::Stream::from(stream).into())
    }
}

/// A client of one runtime.
///
/// Every command opens a connection of its own, as the protocol wants it, so that a client can
/// be cloned and used from many threads. All of them are bounded in time by [`Timeouts`].
///
/// ```no_run
/// use diag_ipc::Client;
///
/// let client = Client::for_process(1234)?;
/// let info = client.process_info()?;
/// println!("{} on .NET {}", info.command_line, info.clr_version.unwrap_or_default());
/// # Ok::<(), diag_ipc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Arc<dyn Endpoint>,
    timeouts: Timeouts,
    known: Arc<Known>,
}

/// Where to begin in each family of commands: what the target does not know is asked once.
#[derive(Debug, Default)]
struct Known {
    dump: AtomicUsize,
    collect: AtomicUsize,
    info: AtomicUsize,
}

const DUMPS: [Command; 3] =
    [Command::CreateCoreDump3, Command::CreateCoreDump2, Command::CreateCoreDump];
const COLLECTS: [Command; 6] = [
    Command::CollectTracing6,
    Command::CollectTracing5,
    Command::CollectTracing4,
    Command::CollectTracing3,
    Command::CollectTracing2,
    Command::CollectTracing,
];
const INFOS: [Command; 3] = [Command::ProcessInfo3, Command::ProcessInfo2, Command::ProcessInfo];

impl Client {
    /// A client of the process `pid`, at the socket that the process itself listens on: see
    /// [`discovery`](crate::discovery).
    #[cfg(target_os = "linux")]
    pub fn for_process(pid: u32) -> Result<Self, Error> {
        Ok(crate::discovery::Process::find(pid)?.client())
    }

    /// A client of the server at `address`, which is taken as it is: no check is made of whose
    /// it is. See [`Client::for_process`].
    pub fn new(address: impl Into<Address>) -> Self {
        Self::of(Arc::new(address.into()))
    }

    /// A client whose connections `dial` makes, within the time that it is given: for a server
    /// that is reached in a way of its own.
    #[cfg(unix)]
    pub fn with_dialer(
        dial: impl Fn(Duration) -> std::io::Result<std::os::unix::net::UnixStream>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self::of(Arc::new(Dialer(dial)))
    }

    pub(crate) fn of(endpoint: Arc<dyn Endpoint>) -> Self {
        Self { endpoint, timeouts: Timeouts::default(), known: Arc::default() }
    }

    /// With other deadlines.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// The deadlines it works with.
    pub const fn current_timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// Sends a request and returns the connection with the payload of its reply.
    fn exchange(&self, request: &Request) -> Result<(Connection, Vec<u8>), Error> {
        let message = request.encode()?;
        let mut connection = self.endpoint.connect(self.timeouts.connect)?;
        connection.send(&message, Deadline::after(self.timeouts.send))?;
        let reply = match request {
            Request::CreateCoreDump { .. } => self.timeouts.dump,
            Request::AttachProfiler { timeout_ms, .. } => {
                self.timeouts.reply + Duration::from_millis((*timeout_ms).into())
            }
            _ => self.timeouts.reply,
        };
        let payload = connection.reply(request.command(), Deadline::after(reply))?;
        Ok((connection, payload))
    }

    /// Sends a request whose reply is an `HRESULT`.
    fn order(&self, request: &Request) -> Result<(), Error> {
        let (_, payload) = self.exchange(request)?;
        match HResult::from(number(&payload, Cursor::u32)?) {
            HResult::Ok => Ok(()),
            code => Err(Error::Runtime { command: request.command(), code, message: None }),
        }
    }

    /// Sends the request as the newest command of `family` that the target knows.
    fn newest<T>(
        &self,
        family: &[Command],
        start: &AtomicUsize,
        attempt: impl Fn(Command) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut index = start.load(Ordering::Relaxed).min(family.len().saturating_sub(1));
        loop {
            let Some(command) = family.get(index) else {
                // An empty family: not reached, and no reason to panic.
                return Err(Error::Rejected(RejectedRequest::Empty("the family of commands")));
            };
            match attempt(*command) {
                Err(e) if e.is_unknown_command() && index + 1 < family.len() => {
                    index += 1;
                    start.fetch_max(index, Ordering::Relaxed);
                }
                other => return other,
            }
        }
    }

    /// What process this is, by the newest of `ProcessInfo3`, `ProcessInfo2` and `ProcessInfo`
    /// that the target knows (.NET 5).
    pub fn process_info(&self) -> Result<ProcessInfo, Error> {
        self.newest(&INFOS, &self.known.info, |command| self.process_info_by(command))
    }

    /// What process this is, by `command`: one of `ProcessInfo`, `ProcessInfo2` (.NET 7) and
    /// `ProcessInfo3` (.NET 8).
    pub fn process_info_by(&self, command: Command) -> Result<ProcessInfo, Error> {
        let (_, payload) = self.exchange(&Request::ProcessInfo { command })?;
        ProcessInfo::decode(command, &payload).map_err(Error::malformed("process information"))
    }

    /// The environment variables of the process (.NET 6).
    pub fn process_environment(&self) -> Result<Environment, Error> {
        let (mut connection, payload) = self.exchange(&Request::ProcessEnvironment)?;
        let error = || Error::malformed("environment");
        let header = EnvironmentHeader::decode(&payload).map_err(error())?;
        let size = checked_size(header, MAX_ENVIRONMENT).map_err(error())?;
        let bytes = connection.read_vec(size, Deadline::after(self.timeouts.reply))?;
        Environment::decode(&bytes).map_err(error())
    }

    /// Sets an environment variable of the process, or unsets it (.NET 6).
    ///
    /// Values cannot be empty in the protocol: `Some("")` unsets as `None` does.
    pub fn set_environment_variable(&self, name: &str, value: Option<&str>) -> Result<(), Error> {
        self.order(&Request::SetEnvironmentVariable {
            name: name.into(),
            value: value.unwrap_or_default().into(),
        })
    }

    /// Lets a runtime go on that waits at startup (.NET 5).
    ///
    /// A runtime that waits for a reverse server is resumed by that server's client alone: the
    /// same command on the default address succeeds and does nothing.
    pub fn resume_runtime(&self) -> Result<(), Error> {
        self.order(&Request::ResumeRuntime)
    }

    /// Starts to write the files by which perf names jitted code (.NET 8), into `/tmp` or
    /// `DOTNET_PerfMapJitDumpPath` of the target.
    ///
    /// This command ends a .NET 9 process that is suspended at startup, and is refused there:
    /// the target is asked for its version, and looked at, first.
    pub fn enable_perf_map(&self, perf_map_type: PerfMapType) -> Result<(), Error> {
        let version = self.process_info()?.clr_version.unwrap_or_default();
        // .NET 10 is known to be sound.
        let major = version.split('.').next().and_then(|v| v.parse::<u32>().ok());
        if major.is_none_or(|v| v < 10) && self.may_be_suspended()? {
            return Err(RejectedRequest::Suspended(version.into()).into());
        }
        self.order(&Request::EnablePerfMap { perf_map_type })
    }

    /// Whether the runtime waits at startup for [`Client::resume_runtime`]; `None` if that
    /// cannot be seen (it is another user's process, or this is not Linux).
    pub fn is_suspended(&self) -> Result<Option<bool>, Error> {
        Ok(self.peer()?.pid.and_then(target::is_suspended))
    }

    /// Where it cannot be seen, a runtime that was told to wait may be waiting.
    fn may_be_suspended(&self) -> Result<bool, Error> {
        if let Some(suspended) = self.is_suspended()? {
            return Ok(suspended);
        }
        let environment = self.process_environment()?;
        let set = |name: &str| {
            ["DOTNET_", "COMPlus_"]
                .iter()
                .filter_map(|prefix| environment.get(&format!("{prefix}{name}")))
                .any(|value| !value.is_empty() && value != "0")
        };
        Ok(set("DefaultDiagnosticPortSuspend") || set("DiagnosticPorts"))
    }

    /// Ends what [`Client::enable_perf_map`] began (.NET 8).
    pub fn disable_perf_map(&self) -> Result<(), Error> {
        self.order(&Request::DisablePerfMap)
    }

    /// Runs the startup hook of the assembly at `path` (.NET 8).
    ///
    /// A suspended runtime runs it at startup, and ends then if there is no such assembly. A
    /// running one runs it at once, on the thread of the diagnostic server: a hook that does
    /// not return blocks all diagnostics of the process for good.
    pub fn apply_startup_hook(&self, path: &str) -> Result<(), Error> {
        self.order(&Request::ApplyStartupHook { path: path.into() })
    }

    /// Attaches a profiler to the running process, which may take as long as `timeout` (.NET
    /// Core 3.1). The timeout is sent in milliseconds, as the specification has it.
    pub fn attach_profiler(
        &self,
        timeout: Duration,
        clsid: Guid,
        path: &str,
        client_data: &[u8],
    ) -> Result<(), Error> {
        self.order(&Request::AttachProfiler {
            timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            clsid,
            path: path.into(),
            client_data: client_data.into(),
        })
    }

    /// Names the profiler that a suspended runtime starts with (.NET 6). A running one answers
    /// success and does nothing.
    pub fn startup_profiler(&self, clsid: Guid, path: &str) -> Result<(), Error> {
        self.order(&Request::StartupProfiler { clsid, path: path.into() })
    }

    /// Writes a memory dump to `path`, a path in the target's own file system, by the newest of
    /// `CreateCoreDump3`, `CreateCoreDump2` and `CreateCoreDump` that the target knows.
    ///
    /// The diagnostic server of the target does nothing else meanwhile.
    pub fn create_core_dump(
        &self,
        path: &str,
        dump_type: DumpType,
        flags: DumpFlags,
    ) -> Result<(), Error> {
        let beyond = flags.difference(DumpFlags::LOGGING);
        self.newest(&DUMPS, &self.known.dump, |command| {
            if command == Command::CreateCoreDump && !beyond.is_empty() {
                return Err(Error::Unsupported {
                    option: "a dump with verbose logging or a crash report".into(),
                    needs: Command::CreateCoreDump2,
                });
            }
            self.create_core_dump_by(command, path, dump_type, flags)
        })
    }

    /// The same by `command`: one of `CreateCoreDump`, `CreateCoreDump2` (.NET 6) and
    /// `CreateCoreDump3` (.NET 8).
    pub fn create_core_dump_by(
        &self,
        command: Command,
        path: &str,
        dump_type: DumpType,
        flags: DumpFlags,
    ) -> Result<(), Error> {
        let request = Request::CreateCoreDump { command, path: path.into(), dump_type, flags };
        request.encode()?; // what is wrong with it is told before a connection is made
        if dump_type != DumpType::Full {
            let pid = self.peer()?.pid;
            if pid.and_then(target::is_single_file) == Some(true) {
                return Err(RejectedRequest::SingleFile.into());
            }
        }
        self.order(&request)
    }

    /// The process that listens at the address, as the operating system says. Makes a
    /// connection, and sends nothing.
    pub fn peer(&self) -> Result<Peer, Error> {
        Ok(self.endpoint.connect(self.timeouts.connect)?.peer())
    }

    /// Starts a tracing session, by the newest of `CollectTracing6` to `CollectTracing` that
    /// the target knows.
    ///
    /// What the target is too old for is [`Error::Unsupported`], never left out.
    pub fn collect_tracing(&self, config: &TracingConfig) -> Result<Session, Error> {
        let (needs, option) = config.needs();
        self.newest(&COLLECTS, &self.known.collect, |command| {
            if command.id() < needs.id() {
                return Err(Error::Unsupported { option: option.into(), needs });
            }
            self.start(command, config)
        })
    }

    /// The same by `command`, one of the `CollectTracing` family.
    pub fn collect_tracing_by(
        &self,
        command: Command,
        config: &TracingConfig,
    ) -> Result<Session, Error> {
        let (needs, option) = config.needs();
        if command.id() < needs.id() {
            return Err(Error::Unsupported { option: option.into(), needs });
        }
        self.start(command, config)
    }

    fn start(&self, command: Command, config: &TracingConfig) -> Result<Session, Error> {
        let request = Request::CollectTracing { command, config: config.clone() };
        let (connection, payload) = self.exchange(&request)?;
        Ok(Session::new(self.clone(), connection, number(&payload, Cursor::u64)?, command))
    }

    /// Starts a session whose events go to the kernel's user_events (.NET 10, Linux 6.4):
    /// `user_events_data` is that file of tracefs, opened for reading and writing.
    #[cfg(unix)]
    pub fn collect_user_events(
        &self,
        config: &crate::message::UserEventsConfig,
        user_events_data: std::os::fd::BorrowedFd<'_>,
    ) -> Result<crate::UserEventsSession, Error> {
        let command = Command::CollectTracing5;
        let request = Request::CollectUserEvents { command, config: config.clone() };
        let message = request.encode()?;
        let mut connection = self.endpoint.connect(self.timeouts.connect)?;
        connection.send(&message, Deadline::after(self.timeouts.send))?;
        // An older runtime has answered and closed by now: its answer says more than this.
        let sent = connection.send_fd(user_events_data);
        let payload = match connection.reply(command, Deadline::after(self.timeouts.reply)) {
            Ok(payload) => payload,
            Err(e) if e.is_unknown_command() => {
                let option = "a user_events session".into();
                return Err(Error::Unsupported { option, needs: command });
            }
            Err(e @ Error::Closed { .. }) => return Err(sent.err().unwrap_or(e)),
            Err(e) => return Err(e),
        };
        let id = number(&payload, Cursor::u64)?;
        Ok(crate::UserEventsSession::new(self.clone(), connection, id))
    }

    /// Asks for the end of a session, and waits for the reply.
    ///
    /// The reply comes when the stream of the session has been read to its end: whoever waits
    /// here must not be the one who reads. [`Session::stop`] and
    /// [`StopHandle::stop`](crate::StopHandle::stop) have no such trap. A session that does not exist
    /// is stopped successfully.
    pub fn stop_tracing(&self, session: u64) -> Result<(), Error> {
        let (_, payload) = self.exchange(&Request::StopTracing { session })?;
        check_stopped(session, &payload)
    }

    /// Sends the request to stop and returns the connection that the reply will come on.
    pub(crate) fn ask_to_stop(&self, session: u64) -> Result<Connection, Error> {
        let message = Request::StopTracing { session }.encode()?;
        let mut connection = self.endpoint.connect(self.timeouts.connect)?;
        connection.send(&message, Deadline::after(self.timeouts.send))?;
        Ok(connection)
    }

    /// Reads the reply to [`Client::ask_to_stop`].
    pub(crate) fn stopped(&self, session: u64, connection: &mut Connection) -> Result<(), Error> {
        let deadline = Deadline::after(self.timeouts.reply);
        check_stopped(session, &connection.reply(Command::StopTracing, deadline)?)
    }
}

fn check_stopped(session: u64, payload: &[u8]) -> Result<(), Error> {
    let found = number(payload, Cursor::u64)?;
    if found == session { Ok(()) } else { Err(Error::WrongSession { expected: session, found }) }
}

/// The one number that a reply consists of.
fn number<'a, T>(
    payload: &'a [u8],
    read: impl Fn(&mut Cursor<'a>) -> Result<T, trace_common::ReadError>,
) -> Result<T, Error> {
    let mut c = Cursor::new(payload);
    let value = read(&mut c).map_err(|e| Error::malformed("reply")(e.into()))?;
    crate::message::end(&c).map_err(Error::malformed("reply"))?;
    Ok(value)
}
