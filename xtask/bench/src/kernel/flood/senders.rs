//! Senders of floods, and a thread that sends for them. The effect of the packets is measured elsewhere.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::{
    errno::Errno,
    sched::{CpuSet, sched_setaffinity},
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto, socket},
    unistd::Pid,
};

use super::quic;
use ingress_lab::{
    Namespace, denied, packet,
    topology::{Family, node_addr},
};

/// First of a few addresses, from a network for measurements (RFC 2544).
const FEW: u32 = 0xc612_0001;
/// First of many addresses; no other address of the network is among them.
const MANY: u32 = 0x0a40_0000;
/// First of many addresses of IPv6, from a documentation prefix.
const MANY_V6: u128 = 0x2001_0db8_00ff_0000_0000_0000_0000_0000;
/// Packets that a flood with a rate sends at once: half of what the ring of a veth holds.
const BURST: u32 = 128;

/// Source addresses of a flood's packets, SYNs unless it says otherwise. None of them responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::kernel) enum Senders {
    /// An address in each of the denied networks.
    Denied,
    /// An address in one of the denied networks.
    OneDenied,
    /// Senders with their own addresses: each sends far more than the limit of a client.
    Few,
    /// Senders with forged addresses: each sends a SYN or two, and there are more than any table holds.
    Many,
    /// Like [`Senders::Many`], over IPv6. The legitimate clients use IPv6, too.
    ManyV6,
    /// Like [`Senders::Many`], with clients at 100 addresses that open connections as fast as they can.
    Mixed,
    /// First packets of QUIC from the senders of [`Senders::Many`], to the UDP port.
    QuicMany,
    /// First packets of QUIC from one address, each with another port.
    QuicOne,
    /// Packets of QUIC with connection IDs that no node has issued, from the senders of [`Senders::Many`].
    QuicUnknown,
    /// First packets of QUIC from the senders of [`Senders::Denied`].
    QuicDenied,
}

/// Port and rate of a flood.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernel) struct Aim {
    pub(in crate::kernel) port: u16,
    /// Packets per second; `None` is as many as a thread can send.
    pub(in crate::kernel) rate: Option<u32>,
    /// The CPU that sends, if it is a single one.
    pub(in crate::kernel) cpu: Option<usize>,
}

/// A running flood, which continues until it is finished.
pub(in crate::kernel) struct Flood {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

// === impl Senders ===

impl Senders {
    /// Returns the name in the table.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Denied => "10,000 denied networks",
            Self::OneDenied => "one denied address",
            Self::Few => "100 addresses",
            Self::Many => "4,194,304 addresses",
            Self::ManyV6 => "4,194,304 addresses, IPv6",
            Self::Mixed => "4,194,304 addresses, and 100 clients without pause",
            Self::QuicMany => "4,194,304 addresses, first packets of QUIC",
            Self::QuicOne => "one address, first packets of QUIC",
            Self::QuicUnknown => "4,194,304 addresses, packets of QUIC with unknown IDs",
            Self::QuicDenied => "10,000 denied networks, first packets of QUIC",
        }
    }

    pub(super) const fn family(self) -> Family {
        match self {
            Self::ManyV6 => Family::V6,
            _ => Family::V4,
        }
    }

    const fn count(self) -> u32 {
        match self {
            Self::Denied | Self::QuicDenied => denied::COUNT,
            Self::Few => 100,
            Self::OneDenied | Self::QuicOne => 1,
            Self::Many | Self::ManyV6 | Self::Mixed | Self::QuicMany | Self::QuicUnknown => 1 << 22,
        }
    }

    /// Returns `true` if they send to the UDP port.
    pub(super) const fn is_quic(self) -> bool {
        matches!(self, Self::QuicMany | Self::QuicOne | Self::QuicUnknown | Self::QuicDenied)
    }

    /// Returns the senders in turn; a sender has another port in each turn.
    fn sender(self, number: u32) -> SocketAddr {
        let index = number % self.count();
        let port = 1024 + (number / self.count() % 60_000) as u16;
        match self {
            Self::Denied | Self::OneDenied | Self::QuicDenied => SocketAddrV4::new(denied::address(index), port).into(),
            Self::Few | Self::QuicOne => SocketAddrV4::new(Ipv4Addr::from(FEW + index), port).into(),
            Self::Many | Self::Mixed | Self::QuicMany | Self::QuicUnknown => {
                SocketAddrV4::new(Ipv4Addr::from(MANY + index), port).into()
            }
            Self::ManyV6 => SocketAddrV6::new(Ipv6Addr::from(MANY_V6 + u128::from(index)), port, 0, 0).into(),
        }
    }
}

// === impl Flood ===

impl Flood {
    /// Sends from this namespace until [`Self::finish`].
    pub(in crate::kernel) fn start(namespace: &Namespace, senders: Senders, aim: Aim) -> anyhow::Result<Self> {
        let first = if senders.is_quic() { quic::first()? } else { Vec::new() };
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let thread = namespace.thread("flood", move || send(senders, aim, &first, &theirs))?;
        Ok(Self { stop, thread })
    }

    /// Ends the flood; returns the number of packets sent.
    pub(in crate::kernel) fn finish(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Sends until `stop`. `first` is the first packet of a client of QUIC.
fn send(senders: Senders, aim: Aim, first: &[u8], stop: &AtomicBool) -> anyhow::Result<u64> {
    let family = match senders.family() {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    let socket =
        socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw).context("cannot open a raw socket")?;
    if let Some(cpu) = aim.cpu {
        let mut cpus = CpuSet::new();
        cpus.set(cpu)?;
        sched_setaffinity(Pid::from_raw(0), &cpus).context("cannot choose the CPU of the flood")?;
    }
    let to = SocketAddr::new(node_addr(senders.family()), aim.port);
    let (mut sent, began) = (0, Instant::now());
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if let Some(rate) = aim.rate
            && number % BURST == 0
        {
            let due = Duration::from_secs_f64(f64::from(number) / f64::from(rate));
            thread::sleep(due.saturating_sub(began.elapsed()));
        }
        let result = match (senders.sender(number), to) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                let address = SockaddrIn::from(SocketAddrV4::new(*to.ip(), 0));
                let send = |packet: &[u8]| sendto(socket.as_raw_fd(), packet, &address, MsgFlags::empty());
                match senders {
                    Senders::QuicMany | Senders::QuicOne | Senders::QuicDenied => send(&packet::udp(from, to, first)),
                    Senders::QuicUnknown => send(&packet::udp(from, to, &quic::unknown(number))),
                    _ => send(&packet::syn(from, to)),
                }
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                let address = SockaddrIn6::from(SocketAddrV6::new(*to.ip(), 0, 0, 0));
                sendto(socket.as_raw_fd(), &packet::syn6(from, to), &address, MsgFlags::empty())
            }
            (from, to) => anyhow::bail!("{from} cannot send to {to}"),
        };
        match result {
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
    use std::{collections::BTreeSet, net::IpAddr};

    use super::*;

    #[test]
    fn senders_rotate_through_their_own_addresses() {
        let shut_out: BTreeSet<IpAddr> = (0..denied::COUNT).map(|number| Senders::Denied.sender(number).ip()).collect();
        assert_eq!(shut_out.len(), denied::COUNT as usize);
        for (senders, first, last) in [
            (Senders::Few, "198.18.0.1", "198.18.0.100"),
            (Senders::Many, "10.64.0.0", "10.127.255.255"),
            (Senders::ManyV6, "2001:db8:ff::", "2001:db8:ff::3f:ffff"),
        ] {
            let count = senders.count();
            let [first, last] = [first, last].map(|address| address.parse::<IpAddr>().expect("an address"));
            assert_eq!(senders.sender(0), SocketAddr::new(first, 1024));
            assert_eq!(senders.sender(count - 1), SocketAddr::new(last, 1024));
            assert_eq!(senders.sender(count), SocketAddr::new(first, 1025), "the next turn");
            assert!(shut_out.range(first..=last).next().is_none(), "{senders:?} are not denied");
        }
    }
}
