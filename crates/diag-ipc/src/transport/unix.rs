//! Unix domain sockets.

use super::{Deadline, Peer};
use crate::{Error, Operation};
use interprocess::local_socket::traits::StreamCommon as _;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The standard library's stream, in a wrapper that can read the peer's credentials.
pub(crate) type Stream = interprocess::os::unix::uds_local_socket::Stream;

/// Connects to the socket at `path`.
///
/// A blocking `connect` waits for space in the server's queue for as long as the send timeout of
/// the socket; a non-blocking one would fail at once, with no way to wait.
pub(super) fn connect(path: &Path, deadline: Deadline) -> Result<Stream, Error> {
    let operation = Operation::Connect;
    let error = |errno: Errno| Error::Io { operation, source: errno.into() };
    // Keeps the directory open until the connection is established, if the path is too long.
    let mut directory = None;
    let address = address(path, &mut directory)?;
    let socket = socket().map_err(error)?;
    loop {
        let left = deadline.remaining(operation)?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(at_least_one(left)))
            .map_err(error)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(UnixStream::from(socket).into()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(deadline.passed(operation)),
            Err(errno) => return Err(error(errno)),
        }
    }
}

/// Connects to the socket at `path` without waiting. [`Errno::AGAIN`] if the server's queue is full.
#[cfg(target_os = "linux")]
pub(crate) fn connect_at_once(path: &Path) -> Result<Stream, Error> {
    let error = |errno: Errno| Error::Io { operation: Operation::Connect, source: errno.into() };
    let mut directory = None;
    let address = address(path, &mut directory)?;
    let socket = socket().map_err(error)?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(error)?;
    rustix::net::connect(&socket, &address).map_err(error)?;
    Ok(UnixStream::from(socket).into())
}

/// The address of the socket at `path`. With a path that is too long, it is valid as long as `directory` is open.
fn address(path: &Path, directory: &mut Option<OwnedFd>) -> Result<SocketAddrUnix, Error> {
    match SocketAddrUnix::new(path) {
        Err(Errno::NAMETOOLONG) if cfg!(target_os = "linux") => {
            SocketAddrUnix::new(shorten(path, directory)?)
        }
        other => other,
    }
    .map_err(|errno| Error::Io { operation: Operation::Connect, source: errno.into() })
}

/// A stream socket that is closed by `execve(2)`.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// A stream socket that is closed by `execve(2)`, unless another thread executes a program between
/// the two calls: macOS has no `SOCK_CLOEXEC`. A write to a closed connection raises no signal.
#[cfg(target_vendor = "apple")]
pub(crate) fn socket() -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    sockopt::set_socket_nosigpipe(&socket, true)?;
    Ok(socket)
}

/// A name for the socket at `path` that fits in a socket address, through its directory's
/// descriptor.
fn shorten(path: &Path, directory: &mut Option<OwnedFd>) -> Result<std::path::PathBuf, Error> {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsRawFd as _;
    let error = |source| Error::Io { operation: Operation::Connect, source };
    let name = path.file_name().ok_or_else(|| error(io::ErrorKind::InvalidInput.into()))?;
    let parent = path.parent().unwrap_or(Path::new("."));
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let fd = rustix::fs::open(parent, flags, Mode::empty()).map_err(|e| error(e.into()))?;
    let short = Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string()).join(name);
    *directory = Some(fd);
    Ok(short)
}

pub(super) fn read(stream: &mut Stream, buf: &mut [u8], timeout: Duration) -> io::Result<usize> {
    stream.inner().set_read_timeout(Some(at_least_one(timeout)))?;
    stream.inner().read(buf)
}

#[cfg(feature = "tokio")]
pub(super) fn set_blocking(stream: &Stream) -> io::Result<()> {
    stream.inner().set_nonblocking(false)
}

#[cfg(feature = "tokio")]
pub(super) fn try_read(stream: &Stream, buf: &mut [u8]) -> io::Result<usize> {
    use rustix::net::{RecvFlags, recv};
    Ok(rustix::io::retry_on_intr(|| recv(stream.inner(), &mut *buf, RecvFlags::DONTWAIT))?.0)
}

pub(super) fn write(stream: &mut Stream, bytes: &[u8], timeout: Duration) -> io::Result<usize> {
    stream.inner().set_write_timeout(Some(at_least_one(timeout)))?;
    stream.inner().write(bytes)
}

/// Socket timeouts are in microseconds, and 0 disables them.
fn at_least_one(timeout: Duration) -> Duration {
    timeout.max(Duration::from_millis(1))
}

pub(crate) fn peer(stream: &Stream) -> Peer {
    let Ok(credentials) = stream.peer_creds() else { return Peer::default() };
    Peer {
        // 0 is a process that is not visible in our namespace.
        pid: credentials.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0),
        uid: credentials.euid(),
    }
}

pub(super) fn fd(stream: &Stream) -> BorrowedFd<'_> {
    stream.inner().as_fd()
}

#[cfg(any(target_os = "linux", target_os = "macos", target_os = "android"))]
pub(super) fn send_fd(stream: &Stream, fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let byte = [io::IoSlice::new(&[0])];
    // On macOS, the socket has that option.
    #[cfg(not(target_vendor = "apple"))]
    let flags = SendFlags::NOSIGNAL;
    #[cfg(target_vendor = "apple")]
    let flags = SendFlags::empty();
    sendmsg(stream.inner(), &byte, &mut control, flags)?;
    Ok(())
}
