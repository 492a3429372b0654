//! Execution traces of a running Go program by `net/http/pprof`.

use super::{http, procfs};
use crate::failure::{Failure, Result};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempPath;

/// Time limit for the headers, and for each part of the rest after the end was requested.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The loopback addresses on which a process listens.
///
/// Source: `proc_pid_net(5)`, the files `tcp` and `tcp6`.
pub(crate) fn listening(pid: u32) -> Vec<SocketAddr> {
    let sockets = procfs::sockets(pid);
    let mut found = Vec::new();
    for file in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (Some(local), Some(&"0A"), Some(inode)) =
                (fields.get(1), fields.get(3), fields.get(9))
            else {
                continue;
            };
            if inode.parse().is_ok_and(|inode| sockets.contains(&inode)) {
                found.extend(loopback(local));
            }
        }
    }
    found
}

/// The address under which a listening address is reached from this machine, if it is one.
fn loopback(local: &str) -> Option<SocketAddr> {
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Words in the byte order of the machine.
    let words: Option<Vec<u8>> = (0..address.len() / 8)
        .map(|at| {
            let word = u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?;
            Some(word.to_ne_bytes())
        })
        .collect::<Option<Vec<[u8; 4]>>>()
        .map(|words| words.concat());
    let ip = match words?.as_slice() {
        bytes @ [_, _, _, _] => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        bytes => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
    };
    let reached = match ip {
        ip if ip.is_loopback() => ip,
        ip if ip.is_unspecified() && ip.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
        ip if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => return None,
    };
    Some(SocketAddr::new(reached, port))
}

/// A trace that a program sends while it runs.
pub(crate) struct Download {
    pub(crate) address: SocketAddr,
    stream: TcpStream,
    thread: JoinHandle<io::Result<TempPath>>,
}

impl Download {
    /// Asks for a trace of at most `limit`.
    pub(crate) fn start(address: SocketAddr, limit: Duration) -> Result<Self> {
        let name = || format!("http://{address}/debug/pprof/trace");
        let fail = |error: io::Error| Failure::about(name(), error);
        let seconds = limit.as_secs_f64();
        let target = format!("/debug/pprof/trace?seconds={seconds}");
        let http::Reply { stream, mut body } =
            http::get(&[address], &address.to_string(), &target, Some(TIMEOUT)).map_err(fail)?;
        let mut file = tempfile::NamedTempFile::new().map_err(fail)?;
        let thread = std::thread::spawn(move || {
            let copied = io::copy(&mut body, &mut file);
            match copied {
                Err(error) if file.as_file().metadata()?.len() == 0 => Err(error),
                // A program that ends closes the connection in one way or another.
                _ => Ok(file.into_temp_path()),
            }
        });
        Ok(Self { address, stream, thread })
    }

    /// Requests the end of the trace.
    ///
    /// The server sees the end of the request and stops tracing, which writes the rest. The other
    /// direction is still open for it.
    pub(crate) fn stop(&self) {
        let _ = self.stream.set_read_timeout(Some(TIMEOUT)); // the copy has the same socket
        http::end(&self.stream);
    }

    /// Whether nothing more comes.
    pub(crate) fn is_complete(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the trace and returns its file.
    pub(crate) fn finish(self) -> Result<TempPath> {
        self.stop();
        let failed = || io::Error::other("the download failed");
        let file = self.thread.join().map_err(|_| failed()).and_then(|file| file);
        file.map_err(|error| Failure::about(self.address, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_of_proc_net_tcp() {
        let text = |local| loopback(local).map(|address| address.to_string());
        assert_eq!(text("0100007F:1770").as_deref(), Some("127.0.0.1:6000"));
        assert_eq!(text("00000000:0050").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(text("0101A8C0:0050"), None, "192.168.1.1");
        let any = "00000000000000000000000000000000:1F90";
        assert_eq!(text(any).as_deref(), Some("[::1]:8080"));
        let mapped = "0000000000000000FFFF00000100007F:1F90";
        assert_eq!(text(mapped).as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(text("xyz:1F90"), None);
        assert_eq!(text("é0100007:1F90"), None);
    }

    #[test]
    fn own_listeners_are_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(listening(std::process::id()).contains(&address));
    }

    /// A server that answers with this text, and sends the rest after the request was closed.
    fn server(reply: &'static str, rest: &'static str) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while request.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            stream.write_all(reply.as_bytes()).unwrap();
            let _ = request.read_to_end(&mut Vec::new());
            let _ = stream.write_all(rest.as_bytes());
        });
        address
    }

    #[test]
    fn the_rest_comes_after_the_end() {
        let address = server("HTTP/1.0 200 OK\r\nA: b\r\n\r\ngo 1.", "27");
        let file = Download::start(address, Duration::from_secs(60)).unwrap().finish().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "go 1.27");
    }

    #[test]
    fn a_refusal_has_its_reason() {
        let address = server("HTTP/1.0 400 Bad Request\r\n\r\nexceeds WriteTimeout", "");
        // The server keeps the connection open: the text that came is enough.
        let Err(Failure::Message(why, _)) = Download::start(address, TIMEOUT).map(drop) else {
            panic!("it was not refused")
        };
        assert!(why.contains("400 Bad Request"), "{why}");
    }
}
