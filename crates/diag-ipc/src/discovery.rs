//! The processes with a diagnostic server, and their sockets (Linux).
//!
//! A runtime listens on `dotnet-diagnostic-{pid}-{key}-socket` in its temporary directory (`TMPDIR`
//! or `/tmp`). The key is the process's start time in clock ticks since boot, field 22 of
//! `/proc/PID/stat`. All of these are as the process sees them: its process id in its innermost
//! namespace, its root directory, its `TMPDIR`.
//!
//! Every user can write to `/tmp`: a socket with the right name can be left over from a dead
//! process, or be an attack. A socket is only used if its file belongs to the user of the process or to root
//! and if that process listens on it (`SO_PEERCRED`). Both are checked before anything is sent.
//!
//! ```no_run
//! let found = diag_ipc::discovery::processes()?;
//! for process in &found.processes {
//!     println!("{} {:?}", process.pid, process.command_line());
//! }
//! println!("{} processes could not be looked at", found.unreadable);
//! # Ok::<(), diag_ipc::Error>(())
//! ```

use crate::client::Endpoint;
use crate::transport::{Address, Connection, Deadline, Peer, unix};
use crate::{Client, Error, NoSocketReason, Operation, Result};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use trace_common::{FoundFile, innermost_pid, start_ticks};

/// Maximum number of sockets with a process id that are tried if none has the expected key.
const MAX_CANDIDATES: usize = 16;

/// Maximum number of [`ProcessList::unseen`].
const MAX_UNSEEN: usize = 256;

/// How directories are opened.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Time limit of the check of a socket. The queue of one that nobody accepts from can be full.
const CHECK: Duration = Duration::from_secs(1);

/// Time limit of all checks of [`processes`], and of those of [`stale_sockets`].
const CHECKS: Duration = Duration::from_secs(5);

/// Bytes of an environment. `execve(2)` takes at most 6 MiB of arguments and environment; a process can
/// make the kernel show a terabyte (`PR_SET_MM_MAP`).
const MAX_ENVIRONMENT: u64 = 8 << 20;

/// Bytes of a command line that are read.
const MAX_COMMAND_LINE: u64 = 1 << 20;

/// The processes with a diagnostic server: the result of [`processes`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ProcessList {
    /// The processes, by process id.
    pub processes: Vec<Process>,
    /// Sockets that are named after a process and do not belong to it.
    pub rejected: Vec<Error>,
    /// Sockets in this process's temporary directory without a listener, left by killed processes.
    /// They can be removed.
    pub stale: Vec<PathBuf>,
    /// Sockets in this process's temporary directory that have a listener and belong to no process in the list,
    /// by path. With a directory that containers share, these are the runtimes of other PID namespaces. At most
    /// 256.
    pub unseen: Vec<UnseenSocket>,
    /// Whether there may be more such sockets: there are more than 256, or the directory was not read to its end
    /// within five seconds.
    pub more_unseen: bool,
    /// Number of processes whose environment could not be read: those of other users, unless this
    /// process is privileged, and those that show more than 8 MiB. Such a process is only found if it
    /// uses `/tmp`.
    pub unreadable: usize,
}

/// Lists the processes with a diagnostic server, those in containers included.
///
/// Without `CAP_SYS_PTRACE`, processes of other users are only found if their sockets are in `/tmp` of the same root
/// directory. Only their users and root can connect to those sockets: for others, each command is an [`Error::Io`] of
/// [`Operation::Connect`].
///
/// # Errors
///
/// [`Error::Io`] if `/proc` cannot be read.
pub fn processes() -> Result<ProcessList> {
    let error = |source| Error::Io { operation: Operation::Discover, source };
    let mut found = ProcessList::default();
    let mut search = Search::new(CHECKS);
    for entry in fs::read_dir("/proc").map_err(error)? {
        let name = entry.map_err(error)?.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) else { continue };
        let Ok(identity) = Identity::read(pid) else { continue }; // it has ended
        let environment = identity.tmpdir();
        found.unreadable += usize::from(environment.is_none() && !is_kernel_thread(pid));
        match identity.locate(environment.as_deref(), &mut search) {
            Ok(process) => found.processes.push(process),
            Err(Error::NoSocket { .. }) => {}
            // Once, not for each process whose socket may be in a directory that is too large.
            Err(Error::Timeout { .. }) if found.rejected.iter().any(is_timeout) => {}
            Err(e) => found.rejected.push(e),
        }
    }
    found.processes.sort_by_key(|p| p.pid);
    let tmpdir = own_tmpdir();
    let directory = rustix::fs::open(&tmpdir, DIRECTORY, Mode::empty()).ok();
    let is_here = |process: &Process| {
        directory.as_ref().is_some_and(|own| is_same(own, &process.socket.directory))
    };
    let here = found.processes.iter().filter(|process| is_here(process));
    let mut known: HashSet<OsString> =
        here.map(|process| OsString::from(&process.socket.name)).collect();
    known.extend(found.rejected.iter().filter_map(wrong_name).map(OsStr::to_owned));
    let others = Others::read(&tmpdir, &known);
    found.stale = others.stale;
    found.stale.retain(|path| found.processes.iter().all(|p| p.socket.path != *path));
    found.unseen = others.unseen;
    found.more_unseen = others.more_unseen;
    let mut listeners: BTreeSet<u32> =
        found.unseen.iter().filter_map(|unseen| unseen.listener).collect();
    for process in &found.processes {
        listeners.remove(&process.pid);
    }
    let started = started(listeners, &mut Search::new(Duration::ZERO));
    let started = started.iter().filter(|process| is_here(process));
    let names: HashSet<&OsStr> = started.map(|process| OsStr::new(&process.socket.name)).collect();
    found.unseen.retain(|unseen| unseen.path.file_name().is_none_or(|name| !names.contains(name)));
    Ok(found)
}

/// Those of the processes that have a diagnostic server: they have started since `/proc` was listed.
///
/// Every user can make such sockets: all processes have the time limit of one list. Those after it are not looked at.
fn started(pids: BTreeSet<u32>, search: &mut Search) -> Vec<Process> {
    let limit = search.lists;
    pids.into_iter()
        .take_while(|_| limit.remaining(Operation::List).is_ok())
        .filter_map(|pid| search.find(pid).ok())
        .collect()
}

/// The name of the socket that an error is about.
fn wrong_name(error: &Error) -> Option<&OsStr> {
    let Error::WrongOwner { path, .. } = error else { return None };
    path.file_name()
}

/// A diagnostic socket whose process is not known: see [`ProcessList::unseen`].
///
/// Its file belongs to the user of this process, unless that is root: every user can make such a socket in
/// `/tmp`. A listener that is visible has the same user. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct UnseenSocket {
    /// Its path, for a [`Client`].
    pub path: PathBuf,
    /// The user that it belongs to.
    pub uid: u32,
    /// The process that listens on it, in the namespace of the caller, if it is visible there: it is not the one
    /// that the socket is named after, such as a proxy. `None` if it is in another PID namespace.
    pub listener: Option<u32>,
}

/// The address of the server of process `pid`.
///
/// # Errors
///
/// Those of [`Process::find`].
pub fn default_server_address(pid: u32) -> Result<Address> {
    Ok(Process::find(pid)?.address())
}

/// A process with a diagnostic server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Process {
    /// Its process id in the namespace of the caller.
    pub pid: u32,
    /// Its process id in its own namespace, which its runtime reports.
    pub namespace_pid: u32,
    /// The user that it runs as.
    pub uid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
    socket: Arc<Socket>,
}

impl Process {
    /// Finds the socket of process `pid`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSocket`] if there is no such process or it has no diagnostic socket,
    /// [`Error::WrongOwner`] if the socket belongs to another process, [`Error::Io`] if `/proc`
    /// cannot be read.
    pub fn find(pid: u32) -> Result<Self> {
        Self::find_within(pid, CHECKS)
    }

    /// As [`Process::find`], with a time limit for connecting to sockets that may be that of the process. With
    /// [`Duration::ZERO`] it connects to none. The socket with the expected name is found in any case.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if there are sockets that were not checked, or the directory was not listed to its end
    /// ([`Operation::List`]); those of [`Process::find`].
    pub fn find_within(pid: u32, limit: Duration) -> Result<Self> {
        Search::new(limit).find(pid)
    }

    /// A client of its runtime.
    pub fn client(&self) -> Client {
        Client::of(self.socket.clone())
    }

    /// Its socket, as a path that is valid in this process. [`Process::client`] is safer, because a
    /// path can be replaced at any time.
    pub fn address(&self) -> Address {
        Address::UnixSocket(self.socket.path.clone())
    }

    /// Its command line, from `/proc`: at most 1 MiB of it.
    pub fn command_line(&self) -> Vec<String> {
        fs::File::open(format!("/proc/{}/cmdline", self.pid))
            .and_then(|file| start(file, MAX_COMMAND_LINE))
            .unwrap_or_default()
            .split(|b| *b == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .filter(|word| !word.is_empty())
            .collect()
    }
}

/// A socket in an open directory, unaffected by later changes of its path.
#[derive(Debug)]
struct Socket {
    pid: u32,
    /// The real and effective user of the process.
    uids: [u32; 2],
    directory: OwnedFd,
    name: String,
    /// For messages.
    path: PathBuf,
}

impl Socket {
    fn wrong(&self, found: String) -> Error {
        Error::WrongOwner { path: self.path.clone(), pid: self.pid, found: found.into() }
    }

    /// Whether a socket of the process can belong to this user. A process that starts as root can become another user.
    fn is_user(&self, uid: u32) -> bool {
        uid == 0 || self.uids.contains(&uid)
    }

    /// Checks the file: a cheap check before a connection is opened.
    fn check_file(&self) -> Result<()> {
        let stat = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| match e {
                Errno::NOENT => Error::NoSocket { pid: self.pid, reason: NoSocketReason::NotFound },
                e => Error::Io { operation: Operation::Discover, source: e.into() },
            })?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(self.wrong("it is not a socket".into()));
        }
        if !self.is_user(stat.st_uid) {
            return Err(self.wrong(format!("it is owned by user {}", stat.st_uid)));
        }
        Ok(())
    }
}

impl Endpoint for Socket {
    fn connect(&self, timeout: Duration) -> Result<Connection> {
        self.check_file()?;
        // Through the directory's descriptor: this follows no symbolic link in the path, and is
        // short.
        let path = Path::new("/proc/self/fd")
            .join(self.directory.as_raw_fd().to_string())
            .join(&self.name);
        let connection = Connection::open(&Address::UnixSocket(path), Deadline::after(timeout))?;
        match connection.peer() {
            Peer { pid: Some(pid), uid: Some(uid) } if pid == self.pid => {
                if self.is_user(uid) {
                    Ok(connection)
                } else {
                    Err(self.wrong(format!("user {uid} listens on it")))
                }
            }
            Peer { pid: Some(pid), .. } => Err(self.wrong(format!("process {pid} listens on it"))),
            _ => Err(self.wrong("a process outside of this PID namespace listens on it".into())),
        }
    }

    fn is_direct(&self) -> bool {
        true
    }
}

/// The identity of a process and its socket.
struct Identity {
    pid: u32,
    namespace_pid: u32,
    uids: [u32; 2],
    start_time: u64,
}

impl Identity {
    fn read(pid: u32) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let stat = fs::read(format!("/proc/{pid}/stat"))?;
        let status = fs::read(format!("/proc/{pid}/status"))?;
        let (namespace_pid, uids) = parse_status(&status).ok_or_else(invalid)?;
        let start_time = start_ticks(&stat).ok_or_else(invalid)?;
        // Without namespaces, the kernel has no NSpid line.
        Ok(Self { pid, namespace_pid: namespace_pid.unwrap_or(pid), uids, start_time })
    }

    /// The temporary directory that the process was started with, if its environment can be read.
    fn tmpdir(&self) -> Option<PathBuf> {
        let environment = fs::File::open(format!("/proc/{}/environ", self.pid)).ok()?;
        let environment = whole(environment, MAX_ENVIRONMENT).ok()?;
        let tmpdir = parse_tmpdir(&environment);
        if tmpdir.is_absolute() {
            return Some(tmpdir);
        }
        // The runtime uses it unchanged, relative to its working directory.
        Some(fs::read_link(format!("/proc/{}/cwd", self.pid)).ok()?.join(tmpdir))
    }

    /// Finds the socket below the process's own root directory.
    fn locate(self, tmpdir: Option<&Path>, search: &mut Search) -> Result<Process> {
        let none = || Error::NoSocket { pid: self.pid, reason: NoSocketReason::NotFound };
        let tmpdir = tmpdir.unwrap_or(Path::new("/tmp"));
        let (directory, shown) = self.open(tmpdir).ok_or_else(none)?;
        let mut socket = Socket {
            pid: self.pid,
            uids: self.uids,
            directory,
            name: socket_name(self.namespace_pid, self.start_time),
            path: PathBuf::new(),
        };
        socket.path = shown.join(&socket.name);
        match socket.check_file() {
            Ok(()) => {}
            // In a time namespace the key of the process differs from its start time: use the
            // socket that the process listens on.
            Err(Error::NoSocket { .. }) => {
                let (deadline, lists) = (search.deadline, search.lists);
                let listing = search.listing(&socket.directory);
                let mut passed = listing.passed.then(|| lists.passed(Operation::List));
                let name = listing
                    .of_process(self.namespace_pid)
                    .iter()
                    .take(MAX_CANDIDATES)
                    .find(|n| {
                        socket.name.clone_from(n);
                        // Every user can make such files: most are refused without a connection.
                        if socket.check_file().is_err() {
                            return false;
                        }
                        match deadline.remaining(Operation::Discover) {
                            Ok(left) => socket.connect(left.min(CHECK)).is_ok(),
                            Err(error) => {
                                passed = Some(error);
                                false
                            }
                        }
                    })
                    .cloned();
                socket.name = name.ok_or_else(|| passed.unwrap_or_else(none))?;
                socket.path = shown.join(&socket.name);
            }
            Err(e) => return Err(e),
        }
        Ok(Process {
            pid: self.pid,
            namespace_pid: self.namespace_pid,
            uid: self.uids[1],
            start_time: self.start_time,
            socket: Arc::new(socket),
        })
    }

    /// Opens `tmpdir` as the process sees it. Symbolic links are followed within its root.
    fn open(&self, tmpdir: &Path) -> Option<(OwnedFd, PathBuf)> {
        let flags = DIRECTORY;
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let open_root = || rustix::fs::open(&root, flags, Mode::empty());
        if let Ok(fd) = open_root() {
            // The kernel shows the same path if the directory is the same as here.
            if let Ok(inner) = FoundFile::directory_in(&fd, tmpdir) {
                let here = rustix::fs::open(tmpdir, flags, Mode::empty());
                let same = here.is_ok_and(|here| is_same(&here, &inner));
                let relative = tmpdir.strip_prefix("/").unwrap_or(tmpdir);
                let shown = if same { tmpdir.to_path_buf() } else { root.join(relative) };
                return Some((inner, shown));
            }
            return None;
        }
        // Another user's process: if it shares our root, this is its directory.
        let fd = rustix::fs::openat(CWD, tmpdir, flags, Mode::empty()).ok()?;
        Some((fd, tmpdir.to_path_buf()))
    }
}

/// A search for the sockets of several processes, with one time limit. A temporary directory that they share is
/// listed once: a socket that appears later, with another name than the expected one, is for the next search.
///
/// ```no_run
/// # use std::time::Duration;
/// let mut search = diag_ipc::discovery::Search::new(Duration::from_secs(5));
/// let found: Vec<_> = [1234, 5678].map(|pid| search.find(pid)).into_iter().flatten().collect();
/// ```
#[derive(Debug)]
pub struct Search {
    /// Of the connections to sockets.
    deadline: Deadline,
    /// Of the lists of directories.
    lists: Deadline,
    /// By device and inode: many processes have the same temporary directory.
    listings: HashMap<(u64, u64), Listing>,
}

/// The diagnostic sockets in a directory, by their names.
#[derive(Debug, Default)]
struct Listing {
    by_process: HashMap<u32, Vec<String>>,
    /// The deadline passed before the end of the directory, or it has names of too many processes.
    passed: bool,
}

/// Maximum number of processes that files of a directory are named after. Linux has four million ids.
const MAX_PROCESSES: usize = 1 << 16;

/// Time limit of lists of directories, if that of the connections is shorter.
const LISTS: Duration = Duration::from_secs(1);

/// Number of files between two looks at the time.
const FILES: usize = 1 << 10;

impl Search {
    /// A search with a time limit for connecting to sockets that may be those of the processes. With
    /// [`Duration::ZERO`] it connects to none. Sockets with the expected names are found in any case.
    pub fn new(limit: Duration) -> Self {
        let (deadline, lists) = (Deadline::after(limit), Deadline::after(limit.max(LISTS)));
        Self { deadline, lists, listings: HashMap::new() }
    }

    /// Finds the socket of process `pid`.
    ///
    /// # Errors
    ///
    /// Those of [`Process::find_within`].
    pub fn find(&mut self, pid: u32) -> Result<Process> {
        let identity = Identity::read(pid).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Error::NoSocket { pid, reason: NoSocketReason::NoProcess },
            _ => Error::Io { operation: Operation::Discover, source: e },
        })?;
        let tmpdir = identity.tmpdir();
        identity.locate(tmpdir.as_deref(), self).map_err(|e| match e {
            Error::NoSocket { reason: NoSocketReason::NotFound, .. } if tmpdir.is_none() => {
                Error::NoSocket { pid, reason: NoSocketReason::PermissionDenied }
            }
            other => other,
        })
    }

    fn listing(&mut self, directory: &OwnedFd) -> &Listing {
        let Self { lists, listings, .. } = self;
        // Without an identity, such a directory is listed again.
        let id = id(directory).unwrap_or_default();
        match listings.entry(id) {
            Entry::Occupied(known) if id != (0, 0) => known.into_mut(),
            entry => entry.insert_entry(Listing::read(directory, *lists)).into_mut(),
        }
    }
}

impl Listing {
    fn read(directory: &OwnedFd, deadline: Deadline) -> Self {
        let mut listing = Self::default();
        for (number, name) in (1..).zip(entries(directory)) {
            if let Some(pid) = process_of(&name) {
                let names = listing.by_process.entry(pid).or_default();
                if names.len() < MAX_CANDIDATES {
                    names.push(name);
                }
            }
            let passed = number % FILES == 0 && deadline.remaining(Operation::List).is_err();
            // Every user can make such files.
            if passed || listing.by_process.len() > MAX_PROCESSES {
                listing.passed = true;
                break;
            }
        }
        listing
    }

    fn of_process(&self, pid: u32) -> &[String] {
        self.by_process.get(&pid).map_or(&[], Vec::as_slice)
    }
}

/// The process id in the name of a socket.
fn process_of(name: &str) -> Option<u32> {
    let (pid, _) =
        name.strip_prefix("dotnet-diagnostic-")?.strip_suffix("-socket")?.split_once('-')?;
    // The runtime writes no sign and no zeros.
    pid.parse().ok().filter(|number: &u32| number.to_string() == pid)
}

fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::Timeout { .. })
}

/// A kernel thread has no command line. (A process can clear its own. It is still found, but not
/// counted as unreadable.)
fn is_kernel_thread(pid: u32) -> bool {
    fs::File::open(format!("/proc/{pid}/cmdline"))
        .and_then(|file| start(file, 1))
        .is_ok_and(|line| line.is_empty())
}

/// At most `max` bytes of a file whose size is the choice of another process.
fn start(file: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The bytes of such a file. An error if it has more than `max`.
fn whole(file: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let bytes = start(file, max.saturating_add(1))?;
    if bytes.len() as u64 > max { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

fn is_same(a: &OwnedFd, b: &OwnedFd) -> bool {
    id(a).is_some_and(|a| id(b) == Some(a))
}

/// Device and inode.
#[allow(
    clippy::useless_conversion,
    clippy::unnecessary_cast,
    reason = "their types differ by platform"
)]
fn id(fd: &OwnedFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|s| (s.st_dev as u64, s.st_ino as u64))
}

fn entries(directory: &OwnedFd) -> impl Iterator<Item = String> + use<> {
    rustix::fs::Dir::read_from(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
}

/// The last of the process's ids, and its real and effective user.
fn parse_status(status: &[u8]) -> Option<(Option<u32>, [u32; 2])> {
    let namespace_pid = innermost_pid(status);
    let status = String::from_utf8_lossy(status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let mut uids = field("Uid:")?.split_whitespace().filter_map(|n| n.parse().ok());
    Some((namespace_pid, [uids.next()?, uids.next()?]))
}

/// The value of `TMPDIR`, or `/tmp`, the default of the runtime.
fn parse_tmpdir(environment: &[u8]) -> PathBuf {
    environment
        .split(|b| *b == 0)
        .find_map(|entry| entry.strip_prefix(b"TMPDIR="))
        .filter(|value| !value.is_empty())
        .map_or_else(|| "/tmp".into(), |value| PathBuf::from(OsStr::from_bytes(value)))
}

fn socket_name(pid: u32, key: u64) -> String {
    format!("dotnet-diagnostic-{pid}-{key}-socket")
}

fn own_tmpdir() -> PathBuf {
    let variable = std::env::var_os("TMPDIR").unwrap_or_default().into_vec();
    parse_tmpdir(&[b"TMPDIR=", &variable[..]].concat())
}

/// The diagnostic sockets in `directory` without a listener, left by killed processes.
///
/// Symbolic links are not followed. Other files in the directory may use up five seconds: the sockets after them
/// are not in the list.
pub fn stale_sockets(directory: &Path) -> Vec<PathBuf> {
    Others::read(directory, &HashSet::new()).stale
}

/// The diagnostic sockets in a directory, without regard to processes.
#[derive(Debug, Default)]
struct Others {
    /// Those without a listener.
    stale: Vec<PathBuf>,
    /// Those with one.
    unseen: Vec<UnseenSocket>,
    /// Whether there may be more of them.
    more_unseen: bool,
}

impl Others {
    /// Names in `known` are those of sockets whose processes are known.
    fn read(directory: &Path, known: &HashSet<OsString>) -> Self {
        let mut others = Self::default();
        let Ok(entries) = fs::read_dir(directory) else { return others };
        let deadline = Deadline::after(CHECKS);
        for entry in entries {
            if deadline.remaining(Operation::Discover).is_err() {
                others.more_unseen = true;
                break;
            }
            let Ok(entry) = entry else { continue };
            let path = entry.path();
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if name.starts_with("dotnet-diagnostic-") && name.ends_with("-socket") {
                others.add(path, known);
            }
        }
        others.unseen.sort();
        others
    }

    fn add(&mut self, path: PathBuf, known: &HashSet<OsString>) {
        let Ok(metadata) = fs::symlink_metadata(&path) else { return };
        if !metadata.file_type().is_socket() {
            return;
        }
        // A socket whose queue is full delays nothing: it is neither of the two.
        match unix::connect_at_once(&path) {
            Ok(stream) => {
                let (Peer { pid: listener, uid: user }, uid) =
                    (unix::peer(&stream), metadata.uid());
                let own = rustix::process::geteuid();
                let is_ours = own.is_root() || own.as_raw() == uid;
                // Of a process in another PID namespace, the user is not known either.
                let listens = user.is_none_or(|user| user == uid);
                let is_known = path.file_name().is_some_and(|name| known.contains(name));
                if !is_ours || !listens || is_known {
                    return;
                }
                if self.unseen.len() < MAX_UNSEEN {
                    self.unseen.push(UnseenSocket { path, uid, listener });
                } else {
                    self.more_unseen = true;
                }
            }
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::ConnectionRefused => {
                self.stale.push(path);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files() {
        let status = b"Name:\tx\nUid:\t1000\t1001\t1000\t1000\nNSpid:\t4242\t7\n";
        assert_eq!(parse_status(status), Some((Some(7), [1000, 1001])));
        assert_eq!(parse_status(b"Name:\tx\n"), None);
        assert_eq!(parse_tmpdir(b"A=1\0TMPDIR=/a b\0B=2\0"), Path::new("/a b"));
        assert_eq!(parse_tmpdir(b"TMPDIR=\0"), Path::new("/tmp"));
        assert_eq!(parse_tmpdir(b"XTMPDIR=/x\0"), Path::new("/tmp"));
    }

    #[test]
    fn files_of_other_processes_have_a_limit() {
        assert_eq!(start(io::repeat(b'x'), 3).unwrap(), b"xxx");
        assert_eq!(start(&b"ab"[..], 3).unwrap(), b"ab");
        let error = whole(io::repeat(b'x'), MAX_ENVIRONMENT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(whole(&b"abc"[..], 3).unwrap(), b"abc");
        assert!(whole(&b"abcd"[..], 3).is_err());
    }

    #[test]
    fn stale_sockets_are_sockets() {
        use std::os::unix::net::UnixListener;
        let dir = tempfile::tempdir().unwrap();
        let name = |pid: u32| dir.path().join(socket_name(pid, 5));
        drop(UnixListener::bind(name(1)).unwrap());
        let _listener = UnixListener::bind(name(2)).unwrap();
        fs::write(name(3), "").unwrap();
        std::os::unix::fs::symlink(name(1), name(4)).unwrap();
        drop(UnixListener::bind(dir.path().join("other-socket")).unwrap());
        assert_eq!(stale_sockets(dir.path()), [name(1)]);
        let uid = rustix::process::geteuid().as_raw();
        let listener = Some(std::process::id());
        let unseen = UnseenSocket { path: name(2), uid, listener };
        assert_eq!(Others::read(dir.path(), &HashSet::new()).unseen, [unseen]);
    }

    #[test]
    fn known_sockets_do_not_count() {
        use std::os::unix::net::UnixListener;
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<_> = (1..).map(|pid| socket_name(pid, 5)).take(MAX_UNSEEN + 1).collect();
        let listener = |name: &String| UnixListener::bind(dir.path().join(name)).unwrap();
        let _listeners: Vec<_> = names.iter().map(listener).collect();
        let read = |known: &[String]| {
            let known = known.iter().map(OsString::from).collect();
            let Others { unseen, more_unseen, .. } = Others::read(dir.path(), &known);
            (unseen.len(), more_unseen)
        };
        assert_eq!(read(&[]), (MAX_UNSEEN, true));
        assert_eq!(read(&names[..1]), (MAX_UNSEEN, false));
        assert_eq!(read(&names), (0, false));
    }

    #[test]
    fn processes_that_have_started_have_one_time_limit() {
        // It finds a socket by its name, without a connection.
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep");
        let mut child = child.arg("100").env("TMPDIR", dir.path()).spawn().unwrap();
        // `spawn` returns a moment before the child has its environment.
        let environ = format!("/proc/{}/environ", child.id());
        let has = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|text| text == part);
        let dir_name = dir.path().as_os_str().as_encoded_bytes();
        while !has(&fs::read(&environ).unwrap(), dir_name) {
            std::thread::yield_now();
        }
        let own = Identity::read(child.id()).unwrap();
        let name = socket_name(own.namespace_pid, own.start_time);
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join(&name)).unwrap();
        let pids = BTreeSet::from([child.id()]);
        let found = started(pids.clone(), &mut Search::new(Duration::ZERO));
        let mut late = Search::new(Duration::ZERO);
        late.lists = Deadline::after(Duration::ZERO);
        let none = started(pids, &mut late);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.iter().map(|p| &p.socket.name).collect::<Vec<_>>(), [&name]);
        assert!(none.is_empty(), "{none:?}");
    }

    #[test]
    fn a_full_queue_delays_no_list() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(socket_name(1, 5));
        let socket = unix::socket().unwrap();
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let mut connections = Vec::new();
        let full = loop {
            match unix::connect_at_once(&path) {
                Ok(connection) => connections.push(connection),
                Err(error) => break error,
            }
        };
        let Error::Io { source, .. } = full else { panic!("{full}") };
        assert_eq!(source.kind(), io::ErrorKind::WouldBlock);
        let others = Others::read(dir.path(), &HashSet::new());
        assert!(others.stale.is_empty() && others.unseen.is_empty(), "{others:?}");
    }

    #[test]
    fn a_socket_of_a_process_that_has_dropped_root_is_its_own() {
        if !rustix::process::geteuid().is_root() {
            // Not through what the test harness captures.
            let skipped = b"\n==== SKIPPED: a process that has dropped root: needs root\n";
            io::Write::write_all(&mut io::stderr(), skipped).unwrap();
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (name, path) = ("socket".to_owned(), dir.path().join("socket"));
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let directory = rustix::fs::open(dir.path(), DIRECTORY, Mode::empty()).unwrap();
        let (pid, uids) = (std::process::id(), [1000, 1000]);
        let socket = Socket { pid, uids, directory, name, path };
        socket.connect(CHECK).unwrap();
        std::os::unix::fs::chown(&socket.path, Some(1001), None).unwrap();
        let error = socket.check_file().unwrap_err();
        assert!(matches!(error, Error::WrongOwner { .. }), "{error}");
    }

    #[test]
    fn a_search_has_a_time_limit() {
        let dir = tempfile::tempdir().unwrap();
        let search = || {
            let identity = Identity::read(std::process::id()).unwrap();
            let mut search = Search::new(Duration::ZERO);
            identity.locate(Some(dir.path()), &mut search).unwrap_err()
        };
        assert!(matches!(search(), Error::NoSocket { .. }), "there is nothing to check");
        let name = |key| format!("dotnet-diagnostic-{}-{key}-socket", std::process::id());
        fs::write(dir.path().join(name("x")), "").unwrap();
        assert!(matches!(search(), Error::NoSocket { .. }), "a file needs no connection");
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join(name("y"))).unwrap();
        let error = search();
        assert!(matches!(error, Error::Timeout { operation: Operation::Discover, .. }), "{error}");
    }

    #[test]
    fn a_directory_is_listed_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| fs::write(dir.path().join(name), "").unwrap();
        let locate = |search: &mut Search| {
            let identity = Identity::read(std::process::id()).unwrap();
            identity.locate(Some(dir.path()), search).unwrap_err()
        };
        let names = |search: &Search| {
            let listings = search.listings.values();
            listings.flat_map(|l| l.by_process.values()).map(Vec::len).sum::<usize>()
        };
        let pid = innermost_pid(&fs::read("/proc/self/status").unwrap()).unwrap();
        file(&format!("dotnet-diagnostic-{pid}-x-socket"));
        file("dotnet-diagnostic-7-5-socket");
        for other in
            ["dotnet-diagnostic-+7-5-socket", "dotnet-diagnostic-7-socket", "clr-debug-pipe"]
        {
            file(other);
        }
        let mut search = Search::new(Duration::from_secs(600));
        for _ in 0..2 {
            // It is a file, not a socket.
            assert!(matches!(locate(&mut search), Error::NoSocket { .. }));
            assert_eq!((search.listings.len(), names(&search)), (1, 2));
            file("dotnet-diagnostic-8-5-socket");
        }

        // A listing has a time limit of its own.
        fs::remove_file(dir.path().join(format!("dotnet-diagnostic-{pid}-x-socket"))).unwrap();
        for number in 0..FILES {
            file(&number.to_string());
        }
        let mut search = Search::new(Duration::ZERO);
        assert!(matches!(locate(&mut search), Error::NoSocket { .. }), "no socket may be its own");
        let mut search = Search::new(Duration::ZERO);
        search.lists = Deadline::after(Duration::ZERO);
        let error = locate(&mut search);
        assert!(matches!(error, Error::Timeout { operation: Operation::List, .. }), "{error}");
    }

    #[test]
    fn this_process_has_no_socket() {
        let error = Process::find(std::process::id()).unwrap_err();
        assert!(
            matches!(error, Error::NoSocket { reason: NoSocketReason::NotFound, .. }),
            "{error}"
        );
        let error = Process::find_within(std::process::id(), Duration::ZERO).unwrap_err();
        assert!(matches!(error, Error::NoSocket { .. }), "there is nothing to check: {error}");
        let error = Process::find(u32::MAX).unwrap_err();
        assert!(matches!(error, Error::NoSocket { reason: NoSocketReason::NoProcess, .. }));
    }
}
