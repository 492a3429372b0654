//! A GET request whose reply is a stream.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Bytes of the headers of a reply.
const MAX_HEADERS: u64 = 16 << 10;

/// A reply with status 200.
pub(crate) struct Reply {
    /// The connection, to end the request.
    pub(crate) stream: TcpStream,
    /// The content. It ends with the connection.
    pub(crate) body: BufReader<TcpStream>,
}

/// Requests `target`, such as `/debug/pprof/trace?seconds=5`, of the server `host` at `address`.
/// The connection and the headers take at most `patience`.
///
/// # Errors
///
/// Those of the connection. Another status than 200 is an error with the text of the server.
pub(crate) fn get(
    address: SocketAddr,
    host: &str,
    target: &str,
    patience: Option<Duration>,
) -> io::Result<Reply> {
    let mut stream = match patience {
        Some(patience) => TcpStream::connect_timeout(&address, patience)?,
        None => TcpStream::connect(address)?,
    };
    stream.set_read_timeout(patience)?;
    // With HTTP/1.0 the reply ends with the connection and is not divided into chunks.
    write!(stream, "GET {target} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut body = BufReader::new(stream.try_clone()?);
    let mut head = (&mut body).take(MAX_HEADERS);
    let mut status = String::new();
    if head.read_line(&mut status)? == 0 {
        let why = "the server closed the connection without a reply";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
    }
    let mut line = String::new();
    while head.read_line(&mut line)? > 0 && !line.trim_end().is_empty() {
        line.clear();
    }
    if status.split(' ').nth(1) != Some("200") {
        let mut why = String::new();
        let _ = body.take(200).read_to_string(&mut why); // the status is enough
        return Err(io::Error::other(
            format!("{} {}", status.trim(), why.trim()).trim().to_owned(),
        ));
    }
    // From now on data comes when the program has some.
    stream.set_read_timeout(None)?;
    Ok(Reply { stream, body })
}

/// Ends a request. The server sees that and completes its reply; the other direction is still open
/// for it.
pub(crate) fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Write); // it may be closed already
}
