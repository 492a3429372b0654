#[cfg(all(feature = "tokio", unix))]
use crate::cancellation::Cancellation;
use crate::late;
use crate::message::{
    Command, DumpCommand, DumpFlags, DumpType, Environment, EnvironmentHeader, PerfMapType,
    ProcessInfo, ProcessInfoCommand, Provider, Request, TracingCommand, TracingConfig,
    checked_size,
};
use crate::negotiate::Known;
use crate::transport::{Address, Connection, Deadline, Peer, Timeouts};
use crate::{
    Error, Guid, HResult, RejectedRequest, Result, Session, StartupHookError, check_startup_hook,
    target,
};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trace_common::Cursor;

/// Maximum size of the environment of a process, far above the limit of any operating system.
const MAX_ENVIRONMENT: usize = 64 << 20;

/// Maximum time after its resume in which a runtime starts its threads: some milliseconds on an idle machine.
const STARTUP: Duration = Duration::from_secs(5);

/// How often a runtime that was resumed is looked at.
const STARTUP_TICK: Duration = Duration::from_millis(2);

/// A source of connections to a runtime.
pub(crate) trait Endpoint: fmt::Debug + Send + Sync {
    /// Opens a connection for one request.
    fn connect(&self, timeout: Duration) -> Result<Connection>;

    /// Whether the peer of a connection is known to be the runtime. If not, it can be a proxy.
    fn is_direct(&self) -> bool {
        false
    }

    /// Whether an attempt to connect that ends early loses nothing: a later one gets the connection as soon.
    fn can_retry(&self) -> bool {
        true
    }
}

impl Endpoint for Address {
    fn connect(&self, timeout: Duration) -> Result<Connection> {
        Connection::open(self, Deadline::after(timeout))
    }
}

/// Connections from a function of the caller.
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
    fn connect(&self, timeout: Duration) -> Result<Connection> {
        let error = |source| Error::Io { operation: crate::Operation::Connect, source };
        let stream = (self.0)(timeout).map_err(error)?;
        // Every wait is one of the socket.
        stream.set_nonblocking(false).map_err(error)?;
        Ok(crate::transport::unix::Stream::from(stream).into())
    }

    /// Each connection can take a while.
    fn can_retry(&self) -> bool {
        false
    }
}

/// A client of one runtime.
///
/// The protocol allows one command per connection, so every command opens a new one. Clients can be
/// cloned and shared between threads. [`Timeouts`] bound every step.
///
/// # Errors
///
/// Every command can fail with
/// - [`Error::Rejected`] if the request is known to harm the target or cannot be encoded; nothing
///   was sent;
/// - [`Error::NoSocket`], [`Error::WrongOwner`] and [`Error::Io`] if no connection can be opened;
/// - [`Error::Timeout`], [`Error::TargetStopped`], [`Error::Closed`], [`Error::TargetEnded`] and
///   [`Error::Malformed`] if the exchange fails;
/// - [`Error::Runtime`] with the runtime's error code.
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
    #[cfg(all(feature = "tokio", unix))]
    cancellation: Option<Arc<Cancellation>>,
}

impl Client {
    /// A client of the process `pid`, at the process's own diagnostic socket: see
    /// [`discovery`](crate::discovery).
    ///
    /// # Errors
    ///
    /// [`Error::NoSocket`] if there is no such process or it has no diagnostic socket,
    /// [`Error::WrongOwner`] if the socket belongs to another process.
    #[cfg(target_os = "linux")]
    pub fn for_process(pid: u32) -> Result<Self> {
        Ok(crate::discovery::Process::find(pid)?.client())
    }

    /// A client of the server at `address`. The owner of the server is not checked: see
    /// [`Client::for_process`].
    ///
    /// The server can be a proxy. What commands check about the target before they send a request, they
    /// check only if the process that listens has the process id that the runtime reports. The id 1, which the
    /// first process of every container has, proves nothing: such a target is checked as one behind a proxy,
    /// except that a single-file application is recognized.
    pub fn new(address: impl Into<Address>) -> Self {
        Self::of(Arc::new(address.into()))
    }

    /// A client that opens its connections with `dial`, which gets the time limit. For servers
    /// behind a proxy or another transport: see [`Client::new`].
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
        Self {
            endpoint,
            timeouts: Timeouts::default(),
            known: Arc::default(),
            #[cfg(all(feature = "tokio", unix))]
            cancellation: None,
        }
    }

    /// A client whose commands can be cancelled.
    #[cfg(all(feature = "tokio", unix))]
    pub(crate) fn cancellable(&self) -> (Self, Arc<Cancellation>) {
        let cancellation = Arc::<Cancellation>::default();
        (Self { cancellation: Some(Arc::clone(&cancellation)), ..self.clone() }, cancellation)
    }

    /// Sets the timeouts.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// The timeouts.
    pub const fn current_timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// Sends a request and returns the connection with the payload of its reply.
    fn exchange(&self, request: &Request) -> Result<(Connection, Vec<u8>)> {
        self.send(request, &request.encode()?)
    }

    /// Sends `message`, the encoding of `request`.
    fn send(&self, request: &Request, message: &[u8]) -> Result<(Connection, Vec<u8>)> {
        #[cfg(all(feature = "tokio", unix))]
        if matches!(request, Request::CollectTracing { .. }) {
            self.unless_cancelled(Cancellation::check)?;
        }
        let mut connection = self.connect()?;
        // The runtime keeps a session whose stream is closed: its reply is waited for, so that it can be stopped.
        #[cfg(all(feature = "tokio", unix))]
        self.unless_cancelled(|cancellation| match request {
            Request::CollectTracing { .. } => cancellation.check(),
            Request::StopTracing { .. } => Ok(()),
            _ => cancellation.watch(&connection),
        })?;
        connection.send(message, Deadline::after(self.timeouts.send))?;
        let deadline = Deadline::after(self.reply_limit(request));
        match connection.reply(request.command(), deadline) {
            Ok(payload) => Ok((connection, payload)),
            Err(error) => Err(self.without_reply(request, connection, error)),
        }
    }

    /// The error of a request that was sent, from that of its reply.
    fn without_reply(&self, request: &Request, connection: Connection, error: Error) -> Error {
        let pid = connection.peer().pid;
        if let (Request::CollectTracing { command, .. }, Error::Timeout { .. }) = (request, &error)
        {
            // The runtime may still start the session.
            late::stop(self, connection, *command);
        }
        match (error, pid) {
            (Error::Closed { .. }, Some(pid)) if target::has_ended(pid) => {
                Error::TargetEnded { pid, command: request.command() }
            }
            (Error::Timeout { after, .. }, Some(pid)) if target::is_stopped(pid) => {
                Error::TargetStopped { pid, after }
            }
            (error, _) => error,
        }
    }

    /// Calls a function that fails if the commands of the client are cancelled, where they can be.
    #[cfg(all(feature = "tokio", unix))]
    fn unless_cancelled(
        &self,
        check: impl FnOnce(&Cancellation) -> std::io::Result<()>,
    ) -> Result<()> {
        let error = |source| Error::Io { operation: crate::Operation::Connect, source };
        self.cancellation.as_deref().map_or(Ok(()), check).map_err(error)
    }

    /// Reads the reply to the request for a session, which has its stream on the same connection.
    pub(crate) fn session(
        &self,
        mut connection: Connection,
        command: TracingCommand,
        deadline: Deadline,
    ) -> Result<Session> {
        let payload = connection.reply(command.command(), deadline)?;
        Ok(Session::new(self.clone(), connection, number(&payload, Cursor::u64)?, command))
    }

    /// The time limit for the reply to a request.
    fn reply_limit(&self, request: &Request) -> Duration {
        let Timeouts { reply, dump, .. } = self.timeouts;
        let collects_garbage = match request {
            Request::CreateCoreDump { .. } => return dump,
            Request::AttachProfiler { timeout_ms, .. } => {
                return reply.saturating_add(Duration::from_millis((*timeout_ms).into()));
            }
            Request::CollectTracing { config, .. } => {
                config.providers.iter().any(Provider::collects_garbage)
            }
            Request::CollectUserEvents { config, .. } => {
                config.providers.iter().any(|p| p.provider.collects_garbage())
            }
            _ => false,
        };
        if collects_garbage { dump.max(reply) } else { reply }
    }

    /// Sends a request whose reply is an `HRESULT`.
    fn order(&self, request: &Request) -> Result<()> {
        self.order_message(request, &request.encode()?)
    }

    fn order_message(&self, request: &Request, message: &[u8]) -> Result<()> {
        let (_, payload) = self.send(request, message)?;
        match HResult::from(number(&payload, Cursor::u32)?) {
            HResult::Ok => Ok(()),
            code => Err(Error::Runtime { command: request.command(), code, message: None }),
        }
    }

    /// Describes the process, with the newest of `ProcessInfo3`, `ProcessInfo2` and `ProcessInfo`
    /// that the target supports (.NET 5).
    ///
    /// # Errors
    ///
    /// Those of every command: see [`Client`].
    pub fn process_info(&self) -> Result<ProcessInfo> {
        let [oldest, newer @ ..] = ProcessInfoCommand::ALL;
        self.known.info.newest(&newer, oldest, |command| self.process_info_by(command))
    }

    /// Describes the process with this version of the command.
    ///
    /// # Errors
    ///
    /// Those of every command: see [`Client`].
    pub fn process_info_by(&self, command: ProcessInfoCommand) -> Result<ProcessInfo> {
        let (_, payload) = self.exchange(&Request::ProcessInfo { command })?;
        ProcessInfo::decode(command, &payload).map_err(Error::malformed("process information"))
    }

    /// Returns the environment variables of the process (.NET 6).
    ///
    /// # Errors
    ///
    /// Those of every command: see [`Client`].
    pub fn process_environment(&self) -> Result<Environment> {
        let (mut connection, payload) = self.exchange(&Request::ProcessEnvironment)?;
        let error = || Error::malformed("environment");
        let header = EnvironmentHeader::decode(&payload).map_err(error())?;
        let size = checked_size(header, MAX_ENVIRONMENT).map_err(error())?;
        let bytes = connection.read_vec(size, Deadline::after(self.timeouts.reply))?;
        Environment::decode(&bytes).map_err(error())
    }

    /// Sets an environment variable of the process, or unsets it (.NET 6).
    ///
    /// The protocol has no empty values: `Some("")` unsets the variable, as `None` does.
    ///
    /// # Errors
    ///
    /// [`HResult::EnvironmentVariableNotFound`] if the variable to unset is not set; those of every command: see
    /// [`Client`].
    pub fn set_environment_variable(&self, name: &str, value: Option<&str>) -> Result<()> {
        self.order(&Request::SetEnvironmentVariable {
            name: name.into(),
            value: value.unwrap_or_default().into(),
        })
    }

    /// Resumes a runtime that is suspended at startup (.NET 5).
    ///
    /// A runtime that is suspended by a reverse server can only be resumed by a client of that
    /// server. At its default address the same command succeeds and has no effect.
    ///
    /// The runtime replies before it starts its threads: for some milliseconds,
    /// [`Client::is_suspended`] is still `Some(true)`.
    ///
    /// # Errors
    ///
    /// Those of every command: see [`Client`].
    pub fn resume_runtime(&self) -> Result<()> {
        self.order(&Request::ResumeRuntime)?;
        self.known.set_resumed();
        Ok(())
    }

    /// Starts to write the files that perf reads to name jitted code (.NET 8), into `/tmp` or
    /// `DOTNET_PerfMapJitDumpPath` of the target.
    ///
    /// This command ends a .NET 9 process that is suspended at startup, so the runtime's version
    /// and state are checked first. After a [`resume_runtime`](Self::resume_runtime) of this client or a clone,
    /// the call waits until the runtime has started its threads: for at most 5 s after the resume, if that
    /// had no effect.
    ///
    /// # Errors
    ///
    /// [`RejectedRequest::Suspended`] if the runtime is older than .NET 10 and is suspended or may
    /// be suspended; those of every command: see [`Client`].
    pub fn enable_perf_map(&self, perf_map_type: PerfMapType) -> Result<()> {
        let info = self.process_info()?;
        // .NET 10 is not affected.
        let survives = info.major_version().is_some_and(|v| v >= 10);
        if !survives && self.state_after_resume(&info)? != Some(false) {
            let version = info.clr_version.unwrap_or_default();
            return Err(RejectedRequest::Suspended(version.into()).into());
        }
        self.order(&Request::EnablePerfMap { perf_map_type })
    }

    /// Whether the runtime is suspended at startup until [`Client::resume_runtime`]; `None` if
    /// that cannot be determined.
    ///
    /// No reply of the protocol contains this. A runtime before .NET 5 cannot be suspended. From
    /// .NET 9 on, a suspended CoreCLR has no thread called `.NET Finalizer`. For other versions and runtimes, or
    /// if threads cannot be read, a runtime that was started without
    /// `DOTNET_DefaultDiagnosticPortSuspend` and `DOTNET_DiagnosticPorts` is not suspended. A runtime that was just
    /// resumed counts as suspended until it has that thread.
    ///
    /// # Errors
    ///
    /// Those of every command: see [`Client`].
    pub fn is_suspended(&self) -> Result<Option<bool>> {
        match self.process_info() {
            Ok(info) => self.state(&info),
            Err(e) if e.is_unknown_command() => Ok(Some(false)), // .NET Core 3.1
            Err(e) => Err(e),
        }
    }

    /// As [`Client::state`]. A runtime that was resumed is waited for: that it replied is no proof that it
    /// runs. Until it has its threads, a command may harm it as if it were suspended.
    fn state_after_resume(&self, info: &ProcessInfo) -> Result<Option<bool>> {
        let limit = self.known.resumed().and_then(|at| at.checked_add(STARTUP));
        loop {
            match self.state(info)? {
                Some(true) if limit.is_some_and(|limit| Instant::now() < limit) => {
                    std::thread::sleep(STARTUP_TICK);
                }
                state => return Ok(state),
            }
        }
    }

    /// Whether the peer `pid` is the process that `info` describes, and not a proxy.
    fn is_runtime(&self, pid: u32, info: &ProcessInfo) -> bool {
        self.endpoint.is_direct() || target::is_identified_by(pid, info.pid)
    }

    fn state(&self, info: &ProcessInfo) -> Result<Option<bool>> {
        let pid = self.peer()?.pid.filter(|pid| self.is_runtime(*pid, info));
        match pid.and_then(target::has_finalizer_thread) {
            Some(true) => return Ok(Some(false)),
            Some(false) if info.major_version().is_some_and(|v| v >= 9) => return Ok(Some(true)),
            _ => {}
        }
        let environment = match self.process_environment() {
            Ok(environment) => environment,
            Err(e) if e.is_unknown_command() => return Ok(None), // .NET 5
            Err(e) => return Err(e),
        };
        let is_set = |name: &str| {
            ["DOTNET_", "COMPlus_"]
                .iter()
                .filter_map(|prefix| environment.get(&format!("{prefix}{name}")))
                .any(|value| !value.is_empty() && value != "0")
        };
        let may_be = is_set("DefaultDiagnosticPortSuspend") || is_set("DiagnosticPorts");
        Ok((!may_be).then_some(false))
    }

    /// Stops the output of [`Client::enable_perf_map`] (.NET 8).
    ///
    /// # Errors
    ///
    /// Those of every command: see [`Client`].
    pub fn disable_perf_map(&self) -> Result<()> {
        self.order(&Request::DisablePerfMap)
    }

    /// Runs the startup hook in the assembly at `path`, an absolute path without a colon in the target's
    /// file system (.NET 8).
    ///
    /// A suspended runtime runs the hook at startup. A running one runs it at once, on the thread
    /// of its diagnostic server: a hook that does not return blocks all diagnostics of the process
    /// permanently.
    ///
    /// A process ends if its runtime cannot run the hook, so the assembly is checked first, as the
    /// target sees it: see [`check_startup_hook`]. The check cannot detect a missing reference or
    /// an exception in the hook, which also end the process.
    ///
    /// # Errors
    ///
    /// [`RejectedRequest::StartupHook`] if the path is not such a path, if the assembly is not a hook or cannot be
    /// read, or if the client reaches the runtime through a proxy; [`Error::TargetEnded`] if the runtime could not
    /// run it; those of every command: see [`Client`].
    pub fn apply_startup_hook(&self, path: &str) -> Result<()> {
        let rejected = |reason| RejectedRequest::StartupHook { path: path.into(), reason };
        if !path.starts_with('/') {
            return Err(rejected(StartupHookError::RelativePath).into());
        }
        if path.contains(':') {
            return Err(rejected(StartupHookError::Colon).into());
        }
        let pid =
            self.runtime_for_hook()?.ok_or_else(|| rejected(StartupHookError::Unverifiable))?;
        target::read_assembly(pid, path)
            .and_then(|assembly| check_startup_hook(&assembly))
            .map_err(rejected)?;
        self.apply_startup_hook_unchecked(path)
    }

    /// The process in which a startup hook would run, if it is known.
    fn runtime_for_hook(&self) -> Result<Option<u32>> {
        let Some(pid) = self.peer()?.pid else { return Ok(None) };
        if self.endpoint.is_direct() {
            return Ok(Some(pid));
        }
        match self.process_info() {
            Ok(info) => Ok(self.is_runtime(pid, &info).then_some(pid)),
            // .NET Core 3.1 runs no hooks.
            Err(e) if e.is_unknown_command() => Ok(Some(pid)),
            Err(e) => Err(e),
        }
    }

    /// Runs the startup hook in the assembly at `path` without [`Client::apply_startup_hook`]'s
    /// check.
    ///
    /// `path` may also be the name of an assembly that the runtime can find. .NET 9 and 10 end if
    /// they cannot run the hook.
    ///
    /// # Errors
    ///
    /// [`Error::TargetEnded`] if the runtime could not run the hook; those of every command: see
    /// [`Client`].
    pub fn apply_startup_hook_unchecked(&self, path: &str) -> Result<()> {
        self.order(&Request::ApplyStartupHook { path: path.into() })
    }

    /// Attaches a profiler to the running process (.NET Core 3.1). The runtime may take as long as
    /// `timeout`, which is sent in milliseconds, as the specification says.
    ///
    /// # Errors
    ///
    /// Those of every command: see [`Client`].
    pub fn attach_profiler(
        &self,
        timeout: Duration,
        clsid: Guid,
        path: &str,
        client_data: &[u8],
    ) -> Result<()> {
        self.order(&Request::AttachProfiler {
            timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            clsid,
            path: path.into(),
            client_data: client_data.into(),
        })
    }

    /// Sets the profiler that a suspended runtime loads at startup (.NET 6). A running runtime
    /// reports success and does nothing.
    ///
    /// # Errors
    ///
    /// Those of every command: see [`Client`].
    pub fn startup_profiler(&self, clsid: Guid, path: &str) -> Result<()> {
        self.order(&Request::StartupProfiler { clsid, path: path.into() })
    }

    /// Writes a memory dump to `path`, a path in the target's file system, with the newest of
    /// `CreateCoreDump3`, `CreateCoreDump2` and `CreateCoreDump` that the target knows.
    ///
    /// The diagnostic server of the target executes no other command meanwhile. That of a single-file
    /// application hangs with any dump except a full one, which is not detected through a proxy.
    ///
    /// # Errors
    ///
    /// [`RejectedRequest::SingleFile`] for any dump except a full one of a single-file application;
    /// [`Error::Unsupported`] if the target is too old for `flags`; those of every command: see
    /// [`Client`].
    pub fn create_core_dump(
        &self,
        path: &str,
        dump_type: DumpType,
        flags: DumpFlags,
    ) -> Result<()> {
        let [oldest, newer @ ..] = DumpCommand::ALL;
        self.known.dump.newest(&newer, oldest, |command| {
            self.create_core_dump_by(command, path, dump_type, flags)
        })
    }

    /// Writes a memory dump with this version of the command.
    ///
    /// # Errors
    ///
    /// Those of [`Client::create_core_dump`].
    pub fn create_core_dump_by(
        &self,
        command: DumpCommand,
        path: &str,
        dump_type: DumpType,
        flags: DumpFlags,
    ) -> Result<()> {
        if command == DumpCommand::CreateCoreDump
            && !flags.difference(DumpFlags::LOGGING).is_empty()
        {
            return Err(Error::Unsupported {
                option: "a dump with verbose logging or a crash report".into(),
                needs: Command::CreateCoreDump2,
            });
        }
        let request = Request::CreateCoreDump { command, path: path.into(), dump_type, flags };
        // Report a request that cannot be encoded before a connection is opened.
        let message = request.encode()?;
        if dump_type != DumpType::Full && self.is_single_file()? {
            return Err(RejectedRequest::SingleFile.into());
        }
        self.order_message(&request, &message)
    }

    /// Whether the process may be a single-file application: it is, or a proxy with the same process id.
    fn is_single_file(&self) -> Result<bool> {
        let Some(pid) = self.peer()?.pid else { return Ok(false) };
        if target::is_single_file(pid) != Some(true) {
            return Ok(false);
        }
        if self.endpoint.is_direct() {
            return Ok(true);
        }
        match self.process_info() {
            Ok(info) => Ok(target::is_reported_as(pid, info.pid)),
            // .NET Core 3.1 extracts such an application and maps `libcoreclr`: this is a proxy.
            Err(e) if e.is_unknown_command() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The process that listens at the address, according to the operating system. Opens a
    /// connection and sends nothing.
    ///
    /// # Errors
    ///
    /// Those of opening a connection: see [`Client`].
    pub fn peer(&self) -> Result<Peer> {
        Ok(self.connect()?.peer())
    }

    /// Starts a tracing session with the newest of `CollectTracing6` to `CollectTracing` that the
    /// target supports.
    ///
    /// With the keyword `GCHeapCollect` (0x800000) of `Microsoft-Windows-DotNETRuntime`, the runtime
    /// performs a full GC before it replies: the limit of the reply is [`Timeouts::dump`], if that is longer.
    ///
    /// After [`Error::Timeout`] and [`Error::TargetStopped`] the runtime may still start the session. A thread waits
    /// for that for [`Timeouts::dump`], and stops it: see [`wait_for_late_sessions`](crate::wait_for_late_sessions).
    /// If no thread can be started, or 64 wait already, the connection is closed, which can crash .NET Core 3.1.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the target is too old for an option of `config`: options are never
    /// dropped silently. Those of every command: see [`Client`].
    pub fn collect_tracing(&self, config: &TracingConfig) -> Result<Session> {
        let [oldest, newer @ ..] = TracingCommand::ALL;
        self.known
            .tracing
            .newest(&newer, oldest, |command| self.collect_tracing_by(command, config))
    }

    /// Starts a tracing session with this version of the command.
    ///
    /// # Errors
    ///
    /// Those of [`Client::collect_tracing`].
    pub fn collect_tracing_by(
        &self,
        command: TracingCommand,
        config: &TracingConfig,
    ) -> Result<Session> {
        let (needs, option) = config.needs();
        if command < needs {
            return Err(Error::Unsupported { option: option.into(), needs: needs.into() });
        }
        let request = Request::CollectTracing { command, config: config.clone() };
        let (connection, payload) = self.exchange(&request)?;
        Ok(Session::new(self.clone(), connection, number(&payload, Cursor::u64)?, command))
    }

    /// Starts a session whose events go to the kernel's user_events (.NET 10, Linux 6.4).
    /// `user_events_data` is the file of this name in tracefs, opened for reading and writing.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] before .NET 10; those of every command: see [`Client`].
    #[cfg(unix)]
    pub fn collect_user_events(
        &self,
        config: &crate::message::UserEventsConfig,
        user_events_data: std::os::fd::BorrowedFd<'_>,
    ) -> Result<crate::UserEventsSession> {
        let version = crate::message::UserEventsCommand::CollectTracing5;
        let command = version.command();
        let request = Request::CollectUserEvents { command: version, config: config.clone() };
        let message = request.encode()?;
        let mut connection = self.connect()?;
        #[cfg(feature = "tokio")]
        self.unless_cancelled(|cancellation| cancellation.watch(&connection))?;
        connection.send(&message, Deadline::after(self.timeouts.send))?;
        // An older runtime has already replied and closed: its reply is the better error.
        let sent = connection.send_fd(user_events_data);
        let error = match connection.reply(command, Deadline::after(self.reply_limit(&request))) {
            Ok(payload) => {
                let id = number(&payload, Cursor::u64)?;
                return Ok(crate::UserEventsSession::new(self.clone(), connection, id));
            }
            Err(error) => error,
        };
        Err(match self.without_reply(&request, connection, error) {
            e if e.is_unknown_command() => {
                Error::Unsupported { option: "a user_events session".into(), needs: command }
            }
            e @ Error::Closed { .. } => sent.err().unwrap_or(e),
            e => e,
        })
    }

    /// Stops a session and waits for the reply.
    ///
    /// The runtime replies after the stream of the session was read to its end, so the thread that
    /// calls this must not be the thread that reads the stream. [`Session::stop`] and
    /// [`StopHandle::stop`](crate::StopHandle::stop) cannot deadlock. Runtimes report success for a
    /// session that does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::WrongSession`] if the reply names another session; those of every command: see
    /// [`Client`].
    pub fn stop_tracing(&self, session: u64) -> Result<()> {
        let (_, payload) = self.exchange(&Request::StopTracing { session })?;
        check_stopped(session, &payload)
    }

    /// Opens a connection for one request.
    pub(crate) fn connect(&self) -> Result<Connection> {
        self.endpoint.connect(self.timeouts.connect)
    }

    /// Opens a connection for a request that is tried again. An attempt takes `wait` at most, where a later one gets
    /// the connection as soon.
    pub(crate) fn connect_within(&self, wait: Duration) -> Result<Connection> {
        let limit = self.timeouts.connect;
        self.endpoint.connect(if self.endpoint.can_retry() { limit.min(wait) } else { limit })
    }

    /// Sends the stop request. The reply comes on the same connection.
    pub(crate) fn ask_to_stop(&self, connection: &mut Connection, session: u64) -> Result<()> {
        let message = Request::StopTracing { session }.encode()?;
        connection.send(&message, Deadline::after(self.timeouts.send))
    }

    /// Reads the reply to [`Client::ask_to_stop`].
    pub(crate) fn stopped(&self, session: u64, connection: &mut Connection) -> Result<()> {
        let deadline = Deadline::after(self.timeouts.reply);
        check_stopped(session, &connection.reply(Command::StopTracing, deadline)?)
    }
}

fn check_stopped(session: u64, payload: &[u8]) -> Result<()> {
    let found = number(payload, Cursor::u64)?;
    if found == session { Ok(()) } else { Err(Error::WrongSession { expected: session, found }) }
}

/// Decodes a reply that consists of one number.
fn number<'a, T>(
    payload: &'a [u8],
    read: impl Fn(&mut Cursor<'a>) -> std::result::Result<T, trace_common::ReadError>,
) -> Result<T> {
    let mut c = Cursor::new(payload);
    let value = read(&mut c).map_err(|e| Error::malformed("reply")(e.into()))?;
    crate::message::end(&c).map_err(Error::malformed("reply"))?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::UserEventsConfig;
    use crate::{Tracepoints, UserEventsProvider};

    #[test]
    fn a_session_that_begins_with_a_gc_has_the_limit_of_dumps() {
        let [short, long] = [1, 2].map(Duration::from_secs);
        let client = Client::new(Address::UnixSocket("socket".into()))
            .timeouts(Timeouts::all(short).dump(long));
        let command = TracingCommand::CollectTracing;
        let runtime = || Provider::new("Microsoft-Windows-DotNETRuntime");
        for (keywords, limit) in [(0x198_0001, long), (0x80_0000, long), (0x110_0001, short)] {
            let providers = [Provider::new("Other"), runtime().keywords(keywords)];
            let config = TracingConfig::new(providers);
            let request = Request::CollectTracing { command, config };
            assert_eq!(client.reply_limit(&request), limit, "{keywords:#x}");
            let provider =
                UserEventsProvider::new(runtime().keywords(keywords), Tracepoints::new("events"));
            let config = UserEventsConfig::new([provider]);
            let command = crate::message::UserEventsCommand::CollectTracing5;
            let request = Request::CollectUserEvents { command, config };
            assert_eq!(client.reply_limit(&request), limit, "{keywords:#x}");
        }
        assert_eq!(client.reply_limit(&Request::ResumeRuntime), short);
    }
}
