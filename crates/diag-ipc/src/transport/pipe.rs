//! Windows named pipes.
//!
//! Synchronous pipes have no timeouts, so they are polled with non-blocking reads and writes. The
//! module uses the portable part of `interprocess`, so that its logic is also tested on other
//! systems, with their local sockets.

use super::Deadline;
use crate::{Error, Operation};
use interprocess::local_socket::traits::Stream as _;
use interprocess::local_socket::{GenericFilePath, ToFsName as _};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

pub(super) type Stream = interprocess::local_socket::Stream;

/// The polling interval of a pipe.
const INTERVAL: Duration = Duration::from_millis(1);

pub(super) fn connect(name: &Path, deadline: Deadline) -> Result<Stream, Error> {
    let operation = Operation::Connect;
    let error = |source| Error::Io { operation, source };
    loop {
        let name = name.to_fs_name::<GenericFilePath>().map_err(error)?;
        match Stream::connect(name) {
            Ok(stream) => {
                stream.set_nonblocking(true).map_err(error)?;
                return Ok(stream);
            }
            // All instances of the pipe are in use: the server creates another one when it is
            // ready.
            Err(e) if is_busy(&e) => {
                deadline.remaining(operation)?;
                std::thread::sleep(INTERVAL);
            }
            Err(e) => return Err(error(e)),
        }
    }
}

/// `ERROR_PIPE_BUSY`.
fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || (cfg!(windows) && error.raw_os_error() == Some(231))
}

pub(super) fn read(stream: &mut Stream, buf: &mut [u8], timeout: Duration) -> io::Result<usize> {
    // When the other end closes, the stream ends, whatever the error is called.
    match retry(timeout, || (&*stream).read(buf)) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        other => other,
    }
}

pub(super) fn write(stream: &mut Stream, bytes: &[u8], timeout: Duration) -> io::Result<usize> {
    // A pipe with a full buffer accepts no bytes and returns success.
    retry(timeout, || match (&*stream).write(bytes) {
        Ok(0) if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
        other => other,
    })
}

fn retry(timeout: Duration, mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && start.elapsed() < timeout => {
                std::thread::sleep(INTERVAL);
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Address, Connection};
    use super::*;
    use crate::message::{Command, Reply, Request};
    use interprocess::local_socket::ListenerOptions;
    use interprocess::local_socket::traits::Listener as _;

    #[test]
    fn a_conversation_and_its_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let name = path.as_path().to_fs_name::<GenericFilePath>().unwrap();
        let listener = ListenerOptions::new().name(name).create_sync().unwrap();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap();
            let mut request = [0; 20];
            stream.read_exact(&mut request).unwrap();
            assert_eq!(Request::decode(&request), Ok(Request::ResumeRuntime));
            stream.write_all(&Reply::Ok(&[0; 4]).encode().unwrap()).unwrap();
            // The server does not reply to the second one.
            (stream, listener.accept().unwrap())
        });
        // A loaded machine is slow, but it gets there.
        let deadline = || Deadline::after(Duration::from_secs(120));
        let request = Request::ResumeRuntime.encode().unwrap();
        let address = Address::NamedPipe(path);
        let mut connection = Connection::open(&address, deadline()).unwrap();
        connection.send(&request, deadline()).unwrap();
        assert_eq!(connection.reply(Command::ResumeRuntime, deadline()).unwrap(), [0; 4]);
        let mut connection = Connection::open(&address, deadline()).unwrap();
        connection.send(&request, deadline()).unwrap();
        let ends = server.join().unwrap();
        let short = Deadline::after(Duration::from_millis(200));
        assert!(connection.reply(Command::ResumeRuntime, short).unwrap_err().is_timeout());
        drop(ends);
        assert!(matches!(
            connection.reply(Command::ResumeRuntime, deadline()),
            Err(Error::Closed { operation: Operation::Reply })
        ));
    }
}
