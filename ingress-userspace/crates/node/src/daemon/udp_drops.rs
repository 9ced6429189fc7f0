//! Packets that the kernel has dropped at full UDP sockets, from its list of sockets: those of some sockets alone, since
//! they were opened. Processes share a port, so the port does not tell whose they are.

use std::{fs, net::UdpSocket};

use nix::{errno::Errno, sys::stat::fstat};

/// The lists of both families. A socket for both is in the second.
const LISTS: [&str; 2] = ["/proc/self/net/udp", "/proc/self/net/udp6"];

/// Returns the number of a socket in the lists.
///
/// # Errors
/// If the kernel has no memory left.
pub(super) fn inode(socket: &UdpSocket) -> Result<u64, Errno> {
    Ok(fstat(socket)?.st_ino)
}

/// Returns the packets that the sockets with these numbers have lost; 0 if the kernel gives no list.
pub(super) fn of_sockets(inodes: &[u64]) -> u64 {
    LISTS.iter().filter_map(|path| fs::read_to_string(path).ok()).map(|list| in_list(&list, inodes)).sum()
}

/// Sums the last column of the sockets: `sl local_address rem_address st queues tr:tm retrnsmt uid timeout inode … drops`.
fn in_list(list: &str, inodes: &[u64]) -> u64 {
    let of_line = |line: &str| {
        let mut columns = line.split_ascii_whitespace();
        let inode = columns.nth(9)?.parse().ok()?;
        inodes.contains(&inode).then_some(())?;
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
    fn drops_of_the_given_sockets_count() {
        for (inodes, drops) in [(&[1, 2][..], 12), (&[3], 9), (&[1], 7), (&[4], 0), (&[], 0)] {
            assert_eq!(in_list(LIST, inodes), drops, "{inodes:?}");
        }
        assert_eq!(in_list("", &[1]), 0);
    }

    #[test]
    fn packets_to_a_full_socket_are_counted_and_those_to_another_one_are_not() {
        let [socket, other] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound"));
        let [ours, theirs] = [&socket, &other].map(|socket| inode(socket).expect("a number"));
        let size = socket2::SockRef::from(&socket).recv_buffer_size().expect("a size");
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let address = socket.local_addr().expect("an address");
        assert_eq!(of_sockets(&[ours, theirs]), 0);
        // A packet takes more of the buffer than its bytes.
        for _ in 0..=size / 1024 {
            client.send_to(&[0; 1024], address).expect("sent");
        }
        assert!(of_sockets(&[ours]) > 0, "a buffer of {size} bytes");
        assert_eq!(of_sockets(&[theirs]), 0);
    }
}
