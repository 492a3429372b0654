//! The socket of a server and its accept thread.

use super::Shared;
use crate::message::Advertise;
use crate::transport::Connection;
use crate::{Error, Operation, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit for a connection to identify itself.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of open connections that have not identified themselves.
const MAX_PENDING: usize = 64;

/// The file of a socket. Dropping it removes the file, if it is still the same file.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.id) {
            let _ = fs::remove_file(&self.path); // no caller to report it to
        }
    }
}

pub(super) fn bind(path: &Path) -> Result<(UnixListener, SocketFile)> {
    let error = |source: io::Error| Error::Io { operation: Operation::Bind, source };
    let address = SocketAddrUnix::new(path).map_err(|e| error(e.into()))?;
    let socket = crate::transport::unix::socket().map_err(|e| error(e.into()))?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(|e| error(e.into()))?;
    let mode = Mode::RUSR | Mode::WUSR;
    // The file inherits the mode of the socket, so other users can never connect.
    #[cfg(not(target_vendor = "apple"))]
    rustix::fs::fchmod(&socket, mode).map_err(|e| error(e.into()))?;
    // Binding creates a new file. It fails if the path exists, even as a symbolic link.
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) if is_dead(path) => {
            fs::remove_file(path).map_err(error)?;
            rustix::net::bind(&socket, &address).map_err(|e| error(e.into()))?;
        }
        other => other.map_err(|e| error(e.into()))?,
    }
    let metadata = fs::symlink_metadata(path).map_err(error)?;
    let file = SocketFile { path: path.to_path_buf(), id: (metadata.dev(), metadata.ino()) };
    // macOS rejects `fchmod` of a socket. Nobody can connect before `listen`.
    #[cfg(target_vendor = "apple")]
    rustix::fs::chmod(path, mode).map_err(|e| error(e.into()))?;
    rustix::net::listen(&socket, 128).map_err(|e| error(e.into()))?;
    Ok((socket.into(), file))
}

/// Whether this is a socket of this user without a listener.
fn is_dead(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|m| m.file_type().is_socket() && m.uid() == rustix::process::geteuid().as_raw())
        && connect(path).is_err_and(|error| error == Errno::CONNREFUSED)
}

/// Connects without waiting: a listener whose queue is full is `Errno::AGAIN`.
fn connect(path: &Path) -> rustix::io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = crate::transport::unix::socket()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket)
}

/// A connection that has not identified itself yet.
struct Pending {
    stream: UnixStream,
    bytes: [u8; Advertise::LEN],
    filled: usize,
    since: Instant,
}

enum Progress {
    Waiting(Pending),
    Advertised(Advertise, Connection),
    Malformed,
}

impl Pending {
    /// Reads the available bytes, and returns to `waiting` if the advertisement is incomplete.
    fn advance(self, waiting: &mut Vec<Self>, shared: &Shared) {
        match self.read() {
            Progress::Waiting(one) if one.since.elapsed() < TIMEOUT => waiting.push(one),
            Progress::Waiting(_) => shared.lock().stats.timed_out += 1,
            Progress::Advertised(advertise, connection) => {
                shared.advertised(advertise, connection);
            }
            Progress::Malformed => shared.lock().stats.malformed += 1,
        }
    }

    fn read(mut self) -> Progress {
        loop {
            // Read no data after the advertisement: a runtime sends none.
            match self.stream.read(self.bytes.get_mut(self.filled..).unwrap_or_default()) {
                Ok(0) => return Progress::Malformed,
                Ok(n) => self.filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Progress::Waiting(self),
                Err(_) => return Progress::Malformed,
            }
            if self.filled == Advertise::LEN {
                let Ok(advertise) = Advertise::decode(&self.bytes) else {
                    return Progress::Malformed;
                };
                return match self.stream.set_nonblocking(false) {
                    Ok(()) => {
                        let stream = crate::transport::unix::Stream::from(self.stream);
                        Progress::Advertised(advertise, stream.into())
                    }
                    Err(_) => Progress::Malformed,
                };
            }
        }
    }
}

/// Accepts until the other end of `asleep` is closed.
pub(super) fn run(listener: &UnixListener, asleep: &UnixStream, shared: &Shared) {
    let mut pending = Vec::<Pending>::new();
    loop {
        let ready = {
            let mut fds =
                vec![PollFd::new(asleep, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
            fds.extend(pending.iter().map(|p| PollFd::new(&p.stream, PollFlags::IN)));
            let timeout = pending
                .iter()
                .map(|p| TIMEOUT.saturating_sub(p.since.elapsed()) + Duration::from_millis(1))
                .min()
                .and_then(|d| Timespec::try_from(d).ok());
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return, // out of memory: nothing can be done
            }
            fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>()
        };
        if ready.first() == Some(&true) {
            return;
        }
        let pending_before = std::mem::take(&mut pending);
        for (one, ready) in pending_before.into_iter().zip(ready.iter().skip(2)) {
            if *ready {
                one.advance(&mut pending, shared);
            } else if one.since.elapsed() < TIMEOUT {
                pending.push(one);
            } else {
                shared.lock().stats.timed_out += 1;
            }
        }
        if ready.get(1) == Some(&true) {
            accept(listener, &mut pending, shared);
        }
    }
}

fn accept(listener: &UnixListener, pending: &mut Vec<Pending>, shared: &Shared) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => {
                // Out of descriptors, or the connection was closed again: avoid a tight loop.
                std::thread::sleep(Duration::from_millis(10));
                return;
            }
        };
        if stream.set_nonblocking(true).is_err() {
            continue;
        }
        // A runtime sends its advertisement at once, so it never waits among idle connections.
        let bytes = [0; Advertise::LEN];
        Pending { stream, bytes, filled: 0, since: Instant::now() }.advance(pending, shared);
        if pending.len() > MAX_PENDING {
            // The connection that was idle for longest is closed.
            let before = pending.len();
            pending.remove(0).advance(pending, shared);
            if pending.len() == before {
                pending.pop();
                shared.lock().stats.refused += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_with_a_full_queue_is_alive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let socket = crate::transport::unix::socket().unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(is_dead(&path), "nobody listens");
        rustix::net::listen(&socket, 0).unwrap();
        let connections: Vec<_> = std::iter::from_fn(|| connect(&path).ok()).collect();
        assert!(!is_dead(&path) && !connections.is_empty());
        drop(socket);
        assert!(is_dead(&path));
    }
}
