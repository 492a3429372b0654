//! The user at the other end of a connection from this machine.
//!
//! The arguments of a program, and so an address that a browser is started with, are visible to all
//! users. A connection of another user is closed, whatever it knows.

use std::fs;
use std::io;
use std::net::SocketAddrV4;

/// Whether the connection from `peer` to `server` may be answered: it is that of this user, or of root,
/// who may read all files. Root also answers the user who became root: the browser can be theirs.
///
/// # Errors
///
/// The connection is not in the tables of the kernel, or they cannot be read.
pub(super) fn is_own(peer: SocketAddrV4, server: SocketAddrV4) -> io::Result<bool> {
    let own = rustix::process::getuid().as_raw();
    let user = user(peer, server)?;
    Ok(user == own || user == 0 || (own == 0 && became_root().contains(&user)))
}

/// The users who became root to start this program.
fn became_root() -> Vec<u32> {
    let by = ["SUDO_UID", "PKEXEC_UID"].map(|name| std::env::var(name).ok());
    starters(&by, &fs::read_to_string("/proc/self/loginuid").unwrap_or_default())
}

/// Those of the programs that change the user; without one, that of the login: `proc_pid_loginuid(5)`.
fn starters(by: &[Option<String>], login: &str) -> Vec<u32> {
    /// There was no login.
    const UNSET: u32 = u32::MAX;
    let by: Vec<u32> = by.iter().flatten().filter_map(|user| user.parse().ok()).collect();
    if !by.is_empty() {
        return by;
    }
    login.trim().parse().ok().filter(|user| *user != UNSET).into_iter().collect()
}

/// The user of the socket of `peer` that is connected to `server`.
///
/// Source: `proc_net(5)`.
fn user(peer: SocketAddrV4, server: SocketAddrV4) -> io::Result<u32> {
    // The table can change while it is read.
    const TRIES: usize = 3;
    for _ in 0..TRIES {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let found = match fs::read_to_string(table) {
                Ok(text) => user_in(&text, peer, server),
                // A kernel without IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            if let Some(user) = found {
                return Ok(user);
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "its user is not known"))
}

/// The user of a socket in a table. Its addresses are numbers in the order of the machine, after the
/// prefix of IPv4 in a table of IPv6.
///
/// Other sockets can have the port of the peer, with another address at their other end. Those of all
/// users that are closed have user 0.
fn user_in(table: &str, peer: SocketAddrV4, server: SocketAddrV4) -> Option<u32> {
    const ESTABLISHED: &str = "01";
    let [local, remote] = [peer, server].map(|address| {
        let number = u32::from_ne_bytes(address.ip().octets());
        format!("{number:08X}:{:04X}", address.port())
    });
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let [from, to, state] = [fields.next()?, fields.next()?, fields.next()?];
        let is_it = from.ends_with(&local) && to.ends_with(&remote) && state == ESTABLISHED;
        fields.nth(3).filter(|_| is_it)?.parse().ok()
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
            1: 0100007F:9C40 0100007F:0050 01 00000000:00000000 02:00000000 00000000  1009        0 2\n\
            2: 0100007F:9C40 0100007F:2329 05 00000000:00000000 02:00000000 00000000     0        0 0\n\
            3: 0100007F:9C40 0100007F:2329 01 00000000:00000000 02:00000000 00000000  1002        0 2\n\
            4: 0000000000000000FFFF00000100007F:9C41 0000000000000000FFFF00000100007F:2329 01 0:0 00:0 0  1003  0 3\n";
        let address = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let of = |port| user_in(table, address(port), address(0x2329));
        if cfg!(target_endian = "little") {
            let users = [0x9c40, 0x9c41, 0x2329, 1].map(of);
            assert_eq!(users, [Some(1002), Some(1003), None, None]);
        }
    }

    #[test]
    fn root_answers_the_user_who_became_root() {
        let of = |users: [Option<&str>; 2], login| {
            starters(&users.map(|user| user.map(str::to_owned)), login)
        };
        assert_eq!(of([Some("1000"), None], "1001"), [1000]);
        assert_eq!(of([None, Some("1002")], "1001\n"), [1002]);
        assert_eq!(of([None, None], "1001\n"), [1001]);
        for nobody in ["4294967295\n", "", "x"] {
            assert_eq!(of([None, Some("no")], nobody), [0; 0]);
        }
    }

    #[test]
    fn a_connection_has_the_user_of_this_process() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ends = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let (SocketAddr::V4(peer), SocketAddr::V4(server)) = ends else { panic!("not IPv4") };
        assert_eq!(user(peer, server).unwrap(), rustix::process::getuid().as_raw());
        assert!(is_own(peer, server).unwrap());
        assert!(user(server, server).is_err(), "there is no such connection");
    }
}
