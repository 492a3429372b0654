//! Shows a file in the Perfetto UI: one request of one file on a loopback port.

use super::stop::Listener;
use crate::failure::{Failure, OneLine, Result};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The only loopback port to which the content security policy of the UI lets it connect; its own
/// `open_trace_in_ui` uses it, too.
const PORT: u16 = 9001;

const UI: &str = "https://ui.perfetto.dev";

/// The name of the file in the address, whatever its own.
const NAME: &str = "/timeline.pftrace";

/// Time limit for a request: a connection without one must not block the next.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a request.
const MAX_REQUEST: u64 = 16 << 10;

/// Prints the address of the UI with this file, opens it if there is a desktop, and waits until the
/// file was fetched or a signal comes.
pub(crate) fn in_ui(path: &Path) -> Result {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))
        .map_err(|e| Failure::about(format!("port {PORT}, which the Perfetto UI asks"), e))?;
    let url = format!("{UI}/#!/?url=http://127.0.0.1:{PORT}{NAME}");
    eprintln!("open {url} (Ctrl-C: do not wait for it)");
    // Without a desktop there is no such program.
    let _ = Command::new("xdg-open")
        .arg(&url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _listener = Listener::exit()?;
    until_fetched(&listener, path)
}

fn until_fetched(listener: &TcpListener, path: &Path) -> Result {
    loop {
        let (stream, _) = listener.accept().map_err(|e| Failure::about("the connection", e))?;
        match answer(stream, path) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => eprintln!("triscope: {}", OneLine(&error.to_string())),
        }
    }
}

/// Answers one request. Returns whether it was for the file.
fn answer(mut stream: TcpStream, path: &Path) -> io::Result<bool> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = BufReader::new(stream.try_clone()?).take(MAX_REQUEST);
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut line = String::new();
    while request.read_line(&mut line)? > 0 && !line.trim_end().is_empty() {
        line.clear();
    }
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (status, file) = match (method, target) {
        ("OPTIONS", NAME) => ("204 No Content", None),
        ("GET", NAME) => ("200 OK", Some(File::open(path)?)),
        _ => ("404 Not Found", None),
    };
    let length = file.as_ref().map_or(Ok(0), |file| file.metadata().map(|m| m.len()))?;
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nCache-Control: no-cache\r\n\
         Access-Control-Allow-Origin: {UI}\r\nAccess-Control-Allow-Private-Network: true\r\n\
         Connection: close\r\n\r\n"
    )?;
    match file {
        Some(mut file) => {
            io::copy(&mut file, &mut stream)?;
            Ok(true)
        }
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn the_file_is_served_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a trace").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let path = file.path().to_owned();
        let server = std::thread::spawn(move || until_fetched(&listener, &path));
        assert!(ask(address, "GET /etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        let preflight = ask(address, "OPTIONS /timeline.pftrace HTTP/1.1\r\n\r\n");
        assert!(preflight.starts_with("HTTP/1.1 204"), "{preflight}");
        let reply = ask(address, "GET /timeline.pftrace HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(reply.contains("Access-Control-Allow-Origin: https://ui.perfetto.dev\r\n"));
        assert!(reply.ends_with("\r\n\r\na trace"), "{reply}");
        server.join().unwrap().unwrap();
        assert!(TcpStream::connect(address).is_err(), "the server has ended");
    }
}
