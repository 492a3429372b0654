//! The user at the other end of a connection from this machine.
//!
//! The arguments of a program, and so an address that a browser is started with, are visible to all
//! users. A request of another user is refused, whatever it knows.

use std::fs;
use std::io;
use std::net::SocketAddrV4;

/// Whether the connection from `peer` may be answered: it is that of this user, or of root, who may
/// read all files. Root answers all: the browser can be that of the user who started `sudo`.
///
/// # Errors
///
/// The connection is not in the tables of the kernel, or they cannot be read.
pub(super) fn is_own(peer: SocketAddrV4) -> io::Result<bool> {
    let own = rustix::process::getuid().as_raw();
    if own == 0 {
        return Ok(true);
    }
    let user = user(peer)?;
    Ok(user == own || user == 0)
}

/// The user of the socket with this address.
///
/// Source: `proc_net(5)`.
fn user(peer: SocketAddrV4) -> io::Result<u32> {
    // The table can change while it is read.
    const TRIES: usize = 3;
    for _ in 0..TRIES {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let found = match fs::read_to_string(table) {
                Ok(text) => user_in(&text, peer),
                // A kernel without IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            if let Some(user) = found {
                return Ok(user);
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "the user of a connection is not known"))
}

/// The user of a socket in a table: its local address is a number in the order of the machine, after
/// the prefix of IPv4 in a table of IPv6.
fn user_in(table: &str, peer: SocketAddrV4) -> Option<u32> {
    let address = u32::from_ne_bytes(peer.ip().octets());
    let local = format!("{address:08X}:{:04X}", peer.port());
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let is_it = fields.next()?.strip_suffix(&local).is_some();
        fields.nth(5).filter(|_| is_it)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

    #[test]
    fn users_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n\
            0: 0100007F:2329 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 1\n\
            1: 0100007F:9C40 0100007F:2329 01 00000000:00000000 02:00000000 00000000  1002        0 2\n\
            2: 0000000000000000FFFF00000100007F:9C41 0:0 01 0:0 00:0 0  1003        0 3\n";
        let of = |port| user_in(table, SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        if cfg!(target_endian = "little") {
            let users = [0x9c40, 0x9c41, 0x2329, 1].map(of);
            assert_eq!(users, [Some(1002), Some(1003), Some(1001), None]);
        }
    }

    #[test]
    fn a_connection_has_the_user_of_this_process() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let SocketAddr::V4(peer) = client.local_addr().unwrap() else { panic!("not IPv4") };
        assert_eq!(user(peer).unwrap(), rustix::process::getuid().as_raw());
        assert!(is_own(peer).unwrap());
    }
}
