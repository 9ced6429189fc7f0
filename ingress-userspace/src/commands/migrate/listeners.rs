//! Finds TCP listeners on this node's ports. In this file a listener is a socket of any process.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead as _, BufReader},
};

use anyhow::Context as _;

/// Where the kernel shows the sockets of this network namespace, listening ones first.
const FILES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// `TCP_LISTEN` in the kernel's notation.
const LISTENS: &str = "0A";

/// Returns the ports of this network namespace with a listener, for any address of either family.
///
/// # Errors
/// Fails if the kernel does not show its sockets.
pub(super) fn ports() -> anyhow::Result<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for path in FILES {
        match File::open(path) {
            Ok(file) => {
                let lines = BufReader::new(file).lines().skip(1);
                ports.extend(listening(lines).with_context(|| format!("cannot read `{path}`"))?);
            }
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read `{path}`")),
        }
    }
    Ok(ports)
}

/// Returns the ports of the listeners at the beginning of the lines. Connections, of which there may be many, follow
/// them and are not read.
fn listening(lines: impl Iterator<Item = io::Result<String>>) -> io::Result<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for line in lines {
        match port(&line?) {
            Some(port) => ports.insert(port),
            None => break,
        };
    }
    Ok(ports)
}

/// Returns the local port of a listener; `None` for another socket.
fn port(line: &str) -> Option<u16> {
    let mut words = line.split_ascii_whitespace();
    let (_, local, _, state) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let (_, port) = local.rsplit_once(':')?;
    if state == LISTENS { u16::from_str_radix(port, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listeners_are_read_up_to_the_first_connection() {
        let lines = [
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0",
            "   1: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000",
            "   2: 0100007F:0051 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0",
            "   3: 0100007F:0052 00000000:0000 0A 00000000:00000000",
        ];
        let found = listening(lines.into_iter().map(|line| Ok(line.to_owned()))).expect("read");
        assert_eq!(found, BTreeSet::from([80, 8080]));
    }

    #[test]
    fn a_listener_of_this_process_is_found() {
        for addr in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(addr) else { continue };
            let port = listener.local_addr().expect("an address").port();
            assert!(ports().expect("read").contains(&port), "{addr}");
        }
    }
}
