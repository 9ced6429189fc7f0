//! Finds TCP listeners on this node's ports. In this file a listener is a socket of any process.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead as _, BufReader},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::Context as _;

/// Where the kernel shows the sockets of this network namespace, listening ones first.
const FILES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// `TCP_LISTEN` in the kernel's notation.
const LISTENS: &str = "0A";

/// Returns the ports of this network namespace with a listener, for any address of either family but loopback: no client
/// of another machine gets there.
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
        match local(&line?) {
            Some((address, _)) if address.to_canonical().is_loopback() => {}
            Some((_, port)) => {
                ports.insert(port);
            }
            None => break,
        }
    }
    Ok(ports)
}

/// Returns the local address and port of a listener; `None` for another socket.
fn local(line: &str) -> Option<(IpAddr, u16)> {
    let mut words = line.split_ascii_whitespace();
    let (_, local, _, state) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let (address, port) = local.rsplit_once(':')?;
    if state != LISTENS {
        return None;
    }
    Some((ip_address(address)?, u16::from_str_radix(port, 16).ok()?))
}

/// Reads an address of either family: words of 32 bits in the byte order of this machine.
fn ip_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(text.get(8 * at..8 * at + 8)?, 16).ok()?.to_ne_bytes());
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn text(address: &str) -> String {
        let octets = match address.parse::<IpAddr>().expect("an address") {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let word = |word: &[u8]| format!("{:08X}", u32::from_ne_bytes(word.try_into().expect("four bytes")));
        octets.chunks(4).map(word).collect()
    }

    #[test]
    fn listeners_are_read_up_to_the_first_connection() {
        let line = |address: &str, port: u16, state: &str| {
            format!("   0: {}:{port:04X} {}:0000 {state} 00000000:00000000 00:00000000", text(address), text("0.0.0.0"))
        };
        let lines = [
            line("192.0.2.7", 8080, LISTENS),
            line("::", 80, LISTENS),
            line("192.0.2.7", 81, "01"),
            line("192.0.2.7", 82, LISTENS),
        ];
        assert_eq!(listening(lines.into_iter().map(Ok)).expect("read"), BTreeSet::from([80, 8080]));
    }

    #[test]
    fn clients_reach_no_listener_on_loopback() {
        for (address, counts) in [
            ("127.0.0.1", false),
            ("127.7.0.2", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("0.0.0.0", true),
            ("::", true),
            ("1.0.0.127", true),
            ("2001:db8::1", true),
        ] {
            let line = format!("   0: {}:0050 00000000:0000 {LISTENS} 00000000:00000000", text(address));
            let found = listening([Ok(line)].into_iter()).expect("read");
            assert_eq!(found.contains(&80), counts, "{address}");
        }
    }

    #[test]
    fn a_listener_of_this_process_is_found() {
        for addr in ["0.0.0.0:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(addr) else { continue };
            let port = listener.local_addr().expect("an address").port();
            assert!(ports().expect("read").contains(&port), "{addr}");
        }
    }
}
