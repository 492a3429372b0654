//! Runtimes of tests: their sockets, and the replies of the test.

use diag_ipc::Client;
use diag_ipc::message::{Header, Reply, Request};
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// Longest wait for the other side.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Calls `each` with each request to a socket in this directory, and its connection.
pub(crate) fn runtime(
    dir: &Path,
    mut each: impl FnMut(Request, UnixStream) + Send + 'static,
) -> Client {
    let path = dir.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    // Ends with the process of the tests.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.set_write_timeout(Some(LIMIT)).unwrap();
            let mut message = vec![0; Header::LEN];
            stream.read_exact(&mut message).unwrap();
            let size = Header::decode(message.first_chunk().unwrap()).unwrap().size;
            message.resize(size.into(), 0);
            stream.read_exact(&mut message[Header::LEN..]).unwrap();
            each(Request::decode(&message).unwrap(), stream);
        }
    });
    Client::new(path)
}

/// Replies that the session with this id has begun.
pub(crate) fn begin(stream: &mut UnixStream, session: u64) {
    stream.write_all(&Reply::Ok(&session.to_le_bytes()).encode().unwrap()).unwrap();
}
