//! What the tests share: a server that reads requests.

use diag_ipc::message::{Header, Request};
use std::io::Read as _;
use std::os::unix::net::UnixStream;

/// Reads one request. `None` if the client sends none.
pub(crate) fn request(stream: &mut UnixStream) -> Option<Request> {
    let mut header = [0; Header::LEN];
    stream.read_exact(&mut header).ok()?;
    let mut message = header.to_vec();
    message.resize(usize::from(Header::decode(&header).ok()?.size), 0);
    stream.read_exact(&mut message[Header::LEN..]).ok()?;
    Request::decode(&message).ok()
}
