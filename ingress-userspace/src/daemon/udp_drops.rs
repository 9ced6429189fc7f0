//! Packets that the kernel has dropped at full UDP sockets, from its list of sockets. They are those of all sockets at a
//! port of this network namespace, since they were opened.

use std::fs;

/// The lists of both families. A socket for both is in the second.
const LISTS: [&str; 2] = ["/proc/self/net/udp", "/proc/self/net/udp6"];

/// Returns the packets that the sockets of `port` have lost; 0 if the kernel gives no list.
pub(super) fn of_port(port: u16) -> u64 {
    LISTS.iter().filter_map(|path| fs::read_to_string(path).ok()).map(|list| in_list(&list, port)).sum()
}

/// Sums the last column of the sockets with the local port `port`: `sl local_address rem_address … drops`.
fn in_list(list: &str, port: u16) -> u64 {
    let of_line = |line: &str| {
        let mut columns = line.split_ascii_whitespace();
        let (_address, local) = columns.nth(1)?.rsplit_once(':')?;
        (u16::from_str_radix(local, 16).ok()? == port).then_some(())?;
        columns.next_back()?.parse::<u64>().ok()
    };
    list.lines().skip(1).filter_map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use super::*;

    const LIST: &str = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  100: 00000000:01BB 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0000000000000000 7
  101: 0100007F:01BB 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 2 2 0000000000000000 5
  102: 00000000:1BB0 00000000:01BB 07 00000000:00000000 00:00000000 00000000     0        0 3 2 0000000000000000 9
  103: nonsense
";

    #[test]
    fn drops_of_all_sockets_at_the_local_port_count() {
        for (port, drops) in [(443, 12), (7088, 9), (1, 0)] {
            assert_eq!(in_list(LIST, port), drops, "{port}");
        }
        assert_eq!(in_list("", 443), 0);
    }

    #[test]
    fn packets_to_a_full_socket_are_counted() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let address = socket.local_addr().expect("an address");
        assert_eq!(of_port(address.port()), 0);
        let size = socket2::SockRef::from(&socket).recv_buffer_size().expect("a size");
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        // A packet takes more of the buffer than its bytes.
        for _ in 0..=size / 1024 {
            client.send_to(&[0; 1024], address).expect("sent");
        }
        assert!(of_port(address.port()) > 0, "a buffer of {size} bytes");
    }
}
