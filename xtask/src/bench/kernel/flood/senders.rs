//! Who floods the node, and a thread that sends for them. It does not know what becomes of what it sends.

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

use crate::{
    bench::kernel::node::SERVED,
    lab::{Namespace, denied, packet},
};

/// First of few addresses: of a network for measurements (RFC 2544).
const FEW: u32 = 0xc612_0001;
/// First of many addresses, which no other address of the network is among.
const MANY: u32 = 0x0a40_0000;

/// Whose SYNs a flood consists of. None of them answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Senders {
    /// An address in each of the denied networks.
    Denied,
    /// Whoever floods under an address of their own: each sends far more than a client may.
    Few,
    /// Whoever floods under addresses of others: each sends a SYN or two, and there are more than any table holds.
    Many,
}

/// A running flood. One that is not finished goes on.
pub(super) struct Flood {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

// === impl Senders ===

impl Senders {
    pub(super) const ALL: [Self; 3] = [Self::Denied, Self::Few, Self::Many];

    /// What the table calls them.
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

    /// In turn; who has had a turn has another port in the next.
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

    /// Ends it; how many packets were sent.
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
            // What the link has no room for is lost, as on any other.
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
    fn senders_have_their_turns_and_nobody_elses_address() {
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
