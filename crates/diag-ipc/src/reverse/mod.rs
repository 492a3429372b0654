//! A server that runtimes connect to: `DOTNET_DiagnosticPorts` (.NET 5).
//!
//! A runtime that is started with `DOTNET_DiagnosticPorts=PATH` connects to the socket at `PATH`,
//! identifies itself, and is suspended at startup until it is resumed (unless the variable ends in
//! `,nosuspend`). A session that is started before that records the program from its first line.
//! The runtime keeps one idle connection open. A command consumes it, and the runtime connects
//! again at once. The programs that a program starts inherit the variable, and wait at the same port.
//!
//! ```no_run
//! use diag_ipc::{Provider, TracingConfig, reverse::Server};
//! use std::{fs::File, process::Command, thread, time::Duration};
//!
//! let mut file = File::create("startup.nettrace")?;
//! let server = Server::bind("/run/user/1000/app.sock".as_ref())?;
//! let mut child = Command::new("./app").env("DOTNET_DiagnosticPorts", server.path()).spawn()?;
//! let begin = || -> diag_ipc::Result<_> {
//!     let client = server.accept(Duration::from_secs(30))?.client();
//!     let config = TracingConfig::new([Provider::new("System.Runtime")]);
//!     let session = client.collect_tracing(&config)?;
//!     client.resume_runtime()?;
//!     Ok(session)
//! };
//! let session = begin().inspect_err(|_| drop(child.kill()))?; // it would stay suspended
//! let end = thread::scope(|scope| {
//!     scope.spawn(|| {
//!         while let Ok(other) = server.accept(Duration::MAX) {
//!             let _ = other.client().resume_runtime(); // it may have ended
//!         }
//!     });
//!     let end = session.record(&mut file); // until the program ends
//!     server.shutdown();
//!     end
//! });
//! println!("{} bytes, {end}", end.bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod listener;

use crate::client::Endpoint;
use crate::message::Advertise;
use crate::transport::{Connection, Deadline, Peer};
use crate::{Client, Error, Guid, Operation, Result, target};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of runtimes that a server tracks.
const MAX_RUNTIMES: usize = 1024;

/// A server for reverse connections. Dropping it calls [`Server::shutdown`].
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    path: PathBuf,
    listener: Mutex<Option<Listener>>,
}

/// The resources that end with the server.
#[derive(Debug)]
struct Listener {
    /// The thread ends when the other end of this socket is closed.
    wake: UnixStream,
    thread: JoinHandle<()>,
    /// Dropped last: the file is removed after the thread has ended.
    _file: listener::SocketFile,
}

impl Server {
    /// Listens at `path`.
    ///
    /// The socket has mode 0600 from its creation. A symbolic link at `path` is not followed. An
    /// existing file is replaced only if it is a socket of this user without a listener.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the socket cannot be created, or if the absolute path is not UTF-8 or contains a comma or a
    /// semicolon, which `DOTNET_DiagnosticPorts` cannot express.
    pub fn bind(path: &Path) -> Result<Self> {
        let error = |source| Error::Io { operation: Operation::Bind, source };
        // A runtime can have another working directory.
        let path = std::path::absolute(path).map_err(error)?;
        if path.to_str().is_none_or(|path| path.contains([',', ';'])) {
            let reason =
                "a path in DOTNET_DiagnosticPorts must be UTF-8, without commas and semicolons";
            return Err(error(io::Error::new(io::ErrorKind::InvalidInput, reason)));
        }
        let (listener, file) = listener::bind(&path)?;
        let (wake, asleep) = UnixStream::pair().map_err(error)?;
        let shared = Arc::<Shared>::default();
        let thread = std::thread::Builder::new()
            .name("diag-ipc reverse".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || listener::run(&listener, &asleep, &shared)
            })
            .map_err(error)?;
        let listener = Mutex::new(Some(Listener { wake, thread, _file: file }));
        Ok(Self { shared, path, listener })
    }

    /// The absolute path of the socket: the value of `DOTNET_DiagnosticPorts`, to which `,nosuspend` may be appended.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next runtime that has not connected before.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`], and [`Error::Closed`] after [`Server::shutdown`].
    pub fn accept(&self, timeout: Duration) -> Result<Runtime> {
        let operation = Operation::Accept;
        let deadline = Deadline::after(timeout);
        let mut state = self.shared.lock();
        loop {
            if state.closed {
                return Err(Error::Closed { operation });
            }
            if let Some(advertise) = state.fresh.pop_front() {
                if let Some(slot) = state.slots.get(&advertise.cookie) {
                    return Ok(Runtime::new(&self.shared, advertise, slot.peer));
                }
            }
            state = self.shared.wait(state, deadline.remaining(operation)?);
        }
    }

    /// Counts of the connections so far.
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats
    }

    /// Closes the server and all its connections, and removes its socket, if the file at
    /// [`Server::path`] still is that socket. Threads in [`Server::accept`] return.
    pub fn shutdown(&self) {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Listener { wake, thread, _file }) = listener else { return };
        drop(wake);
        let _ = thread.join(); // it does not panic
        let mut state = self.shared.lock();
        state.closed = true;
        // Clients can outlive the server, but the runtimes must detect that it is gone.
        state.slots.clear();
        state.fresh.clear();
        self.shared.changed.notify_all();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Counts of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Connections of runtimes.
    pub advertised: u64,
    /// Connections that sent other data, or closed before they identified themselves.
    pub malformed: u64,
    /// Connections that did not identify themselves within a second.
    pub timed_out: u64,
    /// Connections from another process with the cookie of a known runtime.
    pub impostors: u64,
    /// Connections beyond the maximum number of open connections.
    pub refused: u64,
}

/// A runtime that has connected to a [`Server`].
#[derive(Clone, Debug)]
pub struct Runtime {
    advertise: Advertise,
    peer: Peer,
    client: Client,
}

impl Runtime {
    fn new(shared: &Arc<Shared>, advertise: Advertise, peer: Peer) -> Self {
        let is_direct = peer.pid.is_some_and(|pid| target::is_identified_by(pid, advertise.pid));
        let cookie = advertise.cookie;
        let endpoint = ReverseEndpoint { shared: Arc::clone(shared), cookie, is_direct };
        Self { advertise, peer, client: Client::of(Arc::new(endpoint)) }
    }

    /// The id of the runtime, which all its connections carry.
    pub const fn cookie(&self) -> Guid {
        self.advertise.cookie
    }

    /// Its process id in its own namespace, according to the runtime.
    pub const fn pid(&self) -> u64 {
        self.advertise.pid
    }

    /// Its process, according to the operating system.
    pub const fn peer(&self) -> Peer {
        self.peer
    }

    /// A client that sends its commands over the runtime's reverse connections. Its connect timeout
    /// is the time that it waits for one.
    pub fn client(&self) -> Client {
        self.client.clone()
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<Guid, Slot>,
    /// Runtimes that `accept` has not returned yet.
    fresh: VecDeque<Advertise>,
    stats: Stats,
    closed: bool,
}

#[derive(Debug)]
struct Slot {
    peer: Peer,
    /// The newest connection: a runtime has one at a time. None while a command uses it.
    connection: Option<Connection>,
    /// Whether the runtime has closed its connection, without a new one since.
    is_closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, at_most: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Keeps the connection of a runtime for its next command.
    fn advertised(&self, advertise: Advertise, connection: Connection) {
        let peer = connection.peer();
        let mut state = self.lock();
        if let Some(slot) = state.slots.get_mut(&advertise.cookie) {
            if slot.peer == peer {
                slot.connection = Some(connection);
                slot.is_closed = false;
                state.stats.advertised += 1;
            } else {
                state.stats.impostors += 1;
            }
        } else {
            // Each connection takes a descriptor, of which there are often as few as runtimes.
            for slot in state.slots.values_mut() {
                if slot.connection.as_ref().is_some_and(|connection| !is_idle(connection)) {
                    slot.connection = None;
                    slot.is_closed = true;
                }
            }
            if state.slots.len() >= MAX_RUNTIMES {
                state.slots.retain(|_, slot| !slot.is_closed);
            }
            if state.slots.len() >= MAX_RUNTIMES {
                // Some of these may have ended during a command.
                state.slots.retain(|_, slot| slot.connection.is_some());
            }
            if state.slots.len() >= MAX_RUNTIMES {
                state.stats.refused += 1;
                return;
            }
            let slot = Slot { peer, connection: Some(connection), is_closed: false };
            state.slots.insert(advertise.cookie, slot);
            let State { slots, fresh, stats, .. } = &mut *state;
            fresh.push_back(advertise);
            fresh.retain(|a| slots.contains_key(&a.cookie));
            stats.advertised += 1;
        }
        self.changed.notify_all();
    }
}

/// The connections of one runtime.
#[derive(Debug)]
struct ReverseEndpoint {
    shared: Arc<Shared>,
    cookie: Guid,
    /// Whether the process that connects is the one that the runtime reports.
    is_direct: bool,
}

impl Endpoint for ReverseEndpoint {
    fn connect(&self, timeout: Duration) -> Result<Connection> {
        let operation = Operation::Connect;
        let deadline = Deadline::after(timeout);
        let mut state = self.shared.lock();
        loop {
            if state.closed {
                return Err(Error::Closed { operation });
            }
            let slot = state.slots.get_mut(&self.cookie).ok_or(Error::Closed { operation })?;
            match slot.connection.take() {
                Some(connection) if is_idle(&connection) => return Ok(connection),
                // The runtime has closed it, and will connect again or has ended.
                _ => state = self.shared.wait(state, deadline.remaining(operation)?),
            }
        }
    }

    fn is_direct(&self) -> bool {
        self.is_direct
    }
}

/// Whether a connection is idle: a runtime sends only replies.
fn is_idle(connection: &Connection) -> bool {
    let Some(fd) = connection.as_fd() else { return false };
    let mut poll = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    matches!(rustix::event::poll(&mut poll, Some(&Timespec::default())), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A runtime connects. Returns its end of the connection.
    fn connect(shared: &Shared, number: usize) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let advertise = Advertise { cookie: Guid::from_u128(number as u128), pid: 42 };
        shared.advertised(advertise, Connection::from(crate::transport::unix::Stream::from(ours)));
        theirs
    }

    #[test]
    fn connections_of_ended_runtimes_are_closed() {
        let shared = Shared::default();
        let _idle = connect(&shared, 0);
        let _used = connect(&shared, 1);
        let of = |number: u128| Guid::from_u128(number);
        let used = shared.lock().slots.get_mut(&of(1)).unwrap().connection.take();
        assert!(used.is_some());
        for number in 2..3 * MAX_RUNTIMES {
            drop(connect(&shared, number));
        }
        let state = shared.lock();
        let open = state.slots.values().filter(|slot| slot.connection.is_some());
        assert_eq!(open.count(), 2, "the one that waits, and the last one");
        assert!(state.slots.contains_key(&of(1)), "a command uses its connection");
        assert!(state.slots.len() <= MAX_RUNTIMES);
        assert_eq!(state.stats.refused, 0);
    }
}
