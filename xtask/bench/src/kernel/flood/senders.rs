//! Senders of floods, and a thread that sends for them. The effect of the packets is measured elsewhere.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use anyhow::Context as _;
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket},
};

use crate::kernel::node::SERVED;
use ingress_lab::{Namespace, denied, packet};

/// First of a few addresses, from a network for measurements (RFC 2544).
const FEW: u32 = 0xc612_0001;
/// First of many addresses; no other address of the network is among them.
const MANY: u32 = 0x0a40_0000;

/// Source addresses of a flood's SYNs. None of them responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Senders {
    /// An address in each of the denied networks.
    Denied,
    /// Senders with their own addresses: each sends far more than the limit of a client.
    Few,
    /// Senders with forged addresses: each sends a SYN or two, and there are more than any table holds.
    Many,
}

/// A running flood, which continues until it is finished.
pub(super) struct Flood {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

// === impl Senders ===

impl Senders {
    pub(super) const ALL: [Self; 3] = [Self::Denied, Self::Few, Self::Many];

    /// Returns the name in the table.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Denied => "10,000 denied networks",
            Self::Few => "100 addresses",
            Self::Many => "4,194,304 addresses",
        }
    }

    const fn count(self) -> u32 {
        match self {
            Self::Denied => denied::COUNT,
            Self::Few => 100,
            Self::Many => 1 << 22,
        }
    }

    /// Returns the senders in turn; a sender has another port in each turn.
    fn sender(self, number: u32) -> SocketAddrV4 {
        let index = number % self.count();
        let address = match self {
            Self::Denied => denied::address(index),
            Self::Few => Ipv4Addr::from(FEW + index),
            Self::Many => Ipv4Addr::from(MANY + index),
        };
        let port = 1024 + (number / self.count() % 60_000) as u16;
        SocketAddrV4::new(address, port)
    }
}

// === impl Flood ===

impl Flood {
    /// Sends as fast as a thread of this namespace can.
    pub(super) fn start(namespace: &Namespace, senders: Senders) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let thread = namespace.thread("flood", move || send(senders, &theirs))?;
        Ok(Self { stop, thread })
    }

    /// Ends the flood; returns the number of packets sent.
    pub(super) fn finish(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn send(senders: Senders, stop: &AtomicBool) -> anyhow::Result<u64> {
    let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)
        .context("cannot open a raw socket")?;
    let (to, mut sent) = (SERVED.0, 0);
    let [a, b, c, d] = to.octets();
    let address = SockaddrIn::new(a, b, c, d, 0);
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let syn = packet::syn(senders.sender(number), to);
        match sendto(socket.as_raw_fd(), &syn, &address, MsgFlags::empty()) {
            Ok(_) => sent += 1,
            // Packets that do not fit on the link are lost, as on any other link.
            Err(Errno::ENOBUFS) => {}
            Err(error) => return Err(error).context("cannot send to the node"),
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn senders_rotate_through_their_own_addresses() {
        let shut_out: BTreeSet<Ipv4Addr> =
            (0..denied::COUNT).map(|number| *Senders::Denied.sender(number).ip()).collect();
        assert_eq!(shut_out.len(), denied::COUNT as usize);
        for (senders, first, last) in [
            (Senders::Few, Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 100)),
            (Senders::Many, Ipv4Addr::new(10, 64, 0, 0), Ipv4Addr::new(10, 127, 255, 255)),
        ] {
            let count = senders.count();
            assert_eq!(senders.sender(0), SocketAddrV4::new(first, 1024));
            assert_eq!(senders.sender(count - 1), SocketAddrV4::new(last, 1024));
            assert_eq!(senders.sender(count), SocketAddrV4::new(first, 1025), "the next turn");
            assert!(shut_out.range(first..=last).next().is_none(), "{senders:?} are not denied");
        }
    }
}
