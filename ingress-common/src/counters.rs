//! Traffic and request counters, and their names.

use core::sync::atomic::AtomicU64;

/// Packets and bytes. The bytes include the link header, as the program saw the frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Traffic {
    pub packets: u64,
    pub bytes: u64,
}

impl core::ops::AddAssign for Traffic {
    #[inline(always)]
    fn add_assign(&mut self, Self { packets, bytes }: Self) {
        self.packets += packets;
        self.bytes += bytes;
    }
}

/// Value of [`crate::map::HOST_NET`]: wire traffic of one host, received and transmitted.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HostNet {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    /// Written by `ingress_tc_out`; counts segments as the NIC sends them.
    pub tx_packets: u64,
    pub tx_bytes: u64,
}

impl core::ops::AddAssign for HostNet {
    fn add_assign(&mut self, Self { rx_packets, rx_bytes, tx_packets, tx_bytes }: Self) {
        self.rx_packets += rx_packets;
        self.rx_bytes += rx_bytes;
        self.tx_packets += tx_packets;
        self.tx_bytes += tx_bytes;
    }
}

/// Value of [`crate::map::NIC_NET`]: the wire traffic of all hosts on one interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NicNet {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
}

impl core::ops::AddAssign for NicNet {
    fn add_assign(&mut self, Self { rx_packets, rx_bytes, tx_packets, tx_bytes }: Self) {
        self.rx_packets += rx_packets;
        self.rx_bytes += rx_bytes;
        self.tx_packets += tx_packets;
        self.tx_bytes += tx_bytes;
    }
}

/// Value of [`crate::map::HOST_L7`]: requests of one host, exact for every protocol.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HostL7 {
    /// Final responses by [`StatusClass`].
    pub requests: Requests,
    /// Request body bytes received from clients, transfer coding removed.
    pub bytes_in: u64,
    /// Response body bytes handed to clients, transfer coding removed.
    pub bytes_out: u64,
    /// Requests in progress; the only value of this struct that also decreases.
    pub active: u64,
}

/// A count for each [`StatusClass`]. These are fields and not an array so that bpftool prints the names.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Requests {
    pub success: u64,
    pub redirect: u64,
    pub client_error: u64,
    pub server_error: u64,
    pub aborted: u64,
}

impl Requests {
    /// Returns the counts in the order of [`StatusClass::NAMES`].
    #[must_use]
    pub const fn to_array(self) -> [u64; StatusClass::COUNT] {
        let Self { success, redirect, client_error, server_error, aborted } = self;
        [success, redirect, client_error, server_error, aborted]
    }
}

impl core::ops::Add for Requests {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let other = other.to_array();
        let own = self.to_array();
        core::array::from_fn(|class| own[class] + other[class]).into()
    }
}

impl core::ops::AddAssign<StatusClass> for Requests {
    /// Adds one request of this class.
    fn add_assign(&mut self, class: StatusClass) {
        *match class {
            StatusClass::Success => &mut self.success,
            StatusClass::Redirect => &mut self.redirect,
            StatusClass::ClientError => &mut self.client_error,
            StatusClass::ServerError => &mut self.server_error,
            StatusClass::Aborted => &mut self.aborted,
        } += 1;
    }
}

impl From<[u64; StatusClass::COUNT]> for Requests {
    fn from([success, redirect, client_error, server_error, aborted]: [u64; StatusClass::COUNT]) -> Self {
        Self { success, redirect, client_error, server_error, aborted }
    }
}

/// [`HostL7`] from the side of the counting process: the same bytes, accessed by atomic operations only.
#[repr(C)]
#[derive(Debug, Default)]
pub struct HostL7Cell {
    pub requests: [AtomicU64; StatusClass::COUNT],
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub active: AtomicU64,
}

impl HostL7Cell {
    /// Returns a copy of the counters, each of which is read separately.
    #[must_use]
    pub fn load(&self) -> HostL7 {
        use core::sync::atomic::Ordering::Relaxed;
        let Self { requests, bytes_in, bytes_out, active } = self;
        HostL7 {
            requests: core::array::from_fn(|class| requests[class].load(Relaxed)).into(),
            bytes_in: bytes_in.load(Relaxed),
            bytes_out: bytes_out.load(Relaxed),
            active: active.load(Relaxed),
        }
    }

    /// Returns the counters and resets them to zero. `active` is neither reset nor returned.
    #[cfg(target_has_atomic = "64")]
    pub fn take(&self) -> HostL7 {
        use core::sync::atomic::Ordering::Relaxed;
        let Self { requests, bytes_in, bytes_out, active: _ } = self;
        HostL7 {
            requests: core::array::from_fn(|class| requests[class].swap(0, Relaxed)).into(),
            bytes_in: bytes_in.swap(0, Relaxed),
            bytes_out: bytes_out.swap(0, Relaxed),
            active: 0,
        }
    }

    /// Adds counts from elsewhere.
    #[cfg(target_has_atomic = "64")]
    pub fn add(&self, HostL7 { requests, bytes_in, bytes_out, active }: HostL7) {
        use core::sync::atomic::Ordering::Relaxed;
        let classes = requests.to_array();
        for (cell, count) in self.requests.iter().zip(classes) {
            cell.fetch_add(count, Relaxed);
        }
        self.bytes_in.fetch_add(bytes_in, Relaxed);
        self.bytes_out.fetch_add(bytes_out, Relaxed);
        self.active.fetch_add(active, Relaxed);
    }
}

/// Outcome of a request.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusClass {
    Success = 0,
    Redirect = 1,
    ClientError = 2,
    ServerError = 3,
    /// The client went away or the response broke off before its end; also status codes outside 2xx–5xx.
    Aborted = 4,
}

impl StatusClass {
    pub const COUNT: usize = 5;
    /// Label of each class, indexed by its number.
    pub const NAMES: [&'static str; Self::COUNT] = ["2xx", "3xx", "4xx", "5xx", "aborted"];

    /// Returns the class of a final status code.
    #[must_use]
    pub const fn of(status: u16) -> Self {
        match status / 100 {
            2 => Self::Success,
            3 => Self::Redirect,
            4 => Self::ClientError,
            5 => Self::ServerError,
            _ => Self::Aborted,
        }
    }
}

macro_rules! totals {
    ($($(#[$doc:meta])* $variant:ident = $index:literal $name:literal,)*) => {
        /// Index into [`crate::map::TOTALS`].
        ///
        /// *Verdicts*: every received packet that a program sees adds to exactly one of them.
        /// *Events*: counted in addition to a verdict, or by another program. The numbers are the ABI: a reason is
        /// never renumbered.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Total { $($(#[$doc])* $variant = $index,)* }

        impl Total {
            /// All reasons, each with the name that tools show.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$variant, $name),)*];
        }
    };
}

totals! {
    /// Verdict: addressed to a node address and a steered port; passed on. Σ over hosts of `host_net.rx` equals this.
    Accepted = 0 "accepted",
    /// Verdict: neither IPv4 nor IPv6 (ARP, more than two VLAN tags, …); passed.
    NotIp = 1 "not_ip",
    /// Verdict: too short for the headers it announces, or headers that contradict each other; passed to the stack,
    /// which drops it or reassembles it with the other fragments of its datagram ([`Total::HiddenPort`]).
    Malformed = 2 "malformed",
    /// Verdict: a fragment other than the first, which has no port; passed.
    Fragment = 3 "fragment",
    /// Verdict: neither TCP nor UDP; passed.
    OtherProtocol = 4 "other_protocol",
    /// Verdict: port is not steered; passed.
    OtherPort = 5 "other_port",
    /// Verdict: a steered port of an address that does not belong to this node; passed untouched.
    Transit = 6 "transit",
    /// Verdict: source on a deny list; dropped.
    Denied = 7 "denied",
    /// Verdict: SYN above the limit of its client ([`crate::LimitBuckets::syns`]); dropped.
    LimitedSyn = 8 "limited_syn",
    /// Verdict: packet above the limit of its client ([`crate::LimitBuckets::packets`]); dropped.
    LimitedPacket = 9 "limited_packet",
    /// Verdict: SYN for a port that replaces another one in packets on this node ([`crate::steer::PORT_REWRITTEN`]);
    /// clients may not connect to it directly. Dropped.
    RewrittenPort = 10 "rewritten_port",
    /// Verdict: for a node address and from a limited client, but the program cannot read the port; dropped. Such a
    /// packet is a first fragment without its whole TCP or UDP header, or has more extension headers than the program
    /// follows, whereas the stack reassembles fragments and follows all headers. Without limits it counts as
    /// [`Total::Malformed`], from a denied sender as [`Total::Denied`].
    HiddenPort = 11 "hidden_port",
    /// Verdict: a question for the link-layer address of a held address ([`crate::steer::ADDR_HELD`]) that this node
    /// announces, in ARP or neighbour discovery; answered by the program.
    Announced = 12 "announced",
    /// Verdict: such a question for an address that another node announces; dropped.
    Unannounced = 13 "unannounced",
    /// Verdict: TCP segment for an address that another node announced before ([`crate::steer::ADDR_MOVED`]), of no
    /// connection of this node; sent to that node.
    Forwarded = 14 "forwarded",
    /// Verdict: SYN during a flood; answered by a SYN cookie ([`crate::SynCookies`]).
    SynCookieSent = 15 "syn_cookie_sent",
    /// Event: SYN, or ACK with a valid SYN cookie, for which XDP chose a worker.
    Decided = 16 "decided",
    /// Event: SYN while the heartbeat was older than [`crate::steer::HEARTBEAT_STALE_NS`]; XDP neither chose a worker
    /// nor limited the packet.
    HeartbeatStale = 18 "heartbeat_stale",
    /// Event: accepted or transmitted packet with a host id outside `host_net`; counted for host 0.
    HostOutOfRange = 19 "host_out_of_range",
    /// Event: packet of a client for which `clients` had no room; not limited. The map evicts old clients itself, so 0
    /// is expected.
    ClientsFull = 20 "clients_full",
    /// Event: connection that the proxy could not enter in `flows`; its packets stay with host 0.
    FlowsFull = 21 "flows_full",
    /// Event: SYN that would have been [`Total::LimitedSyn`] without [`crate::limit::LIMITS_DRY_RUN`].
    WouldLimitSyn = 22 "would_limit_syn",
    /// Event: packet that would have been [`Total::LimitedPacket`] without [`crate::limit::LIMITS_DRY_RUN`].
    WouldLimitPacket = 23 "would_limit_packet",
    /// Event: SYN of a client outside the share ([`crate::Share`]): XDP chose no worker, and the connection is left to
    /// another listener of its port.
    Left = 24 "left",
    /// Verdict: TCP segment during a flood that belongs to no connection and confirms no SYN cookie; dropped.
    SynCookieInvalid = 25 "syn_cookie_invalid",
    /// Event: accepted ACK that confirms a SYN cookie.
    SynCookieValid = 26 "syn_cookie_valid",
    /// Event: SYN that would have been [`Total::SynCookieSent`] without
    /// [`crate::syn_cookies::SYN_COOKIES_DRY_RUN`].
    WouldSendSynCookie = 27 "would_send_syn_cookie",
    /// Verdict: packet for a port of QUIC without a connection ID that a process of this node can have issued, and not the
    /// first of a connection; dropped ([`crate::steer::PORT_QUIC_CHECKS`]).
    QuicUnknown = 28 "quic_unknown",
    /// Verdict: first packet of a QUIC connection in a datagram of less than 1200 bytes, or one of another version, which
    /// a server drops (RFC 9000, 14.1 and 5.2.2); dropped ([`crate::steer::PORT_QUIC_CHECKS`]).
    QuicShort = 29 "quic_short",
    /// Event: lookup that delivered to the worker XDP chose (packets only). The kernel looks up every segment without
    /// an established connection: SYNs, and occasionally a segment that arrives after its connection is gone, which is
    /// then refused.
    LookupDecided = 32 "lookup_decided",
    /// Event: lookup by the default rule for a connection that no program saw on a NIC: node-local, pod → node (packets
    /// only).
    LookupDefault = 33 "lookup_default",
    /// Event: lookup by the default rule although a NIC with the program received the packet and XDP left no choice
    /// (packets only); 0 is expected.
    Undecided = 34 "undecided",
    /// Event: lookup that found the slot empty and passed to the stack, which refuses the connection (packets only).
    SlotEmpty = 35 "slot_empty",
    /// Event: lookup with a listener that the kernel refused (packets only).
    AssignFailed = 36 "assign_failed",
    /// Event: lookup by the default rule because XDP's choice is older than [`crate::steer::HANDOFF_FRESH_NS`] (packets
    /// only): a segment that arrives after its connection is gone.
    LookupLate = 37 "lookup_late",
    /// Event: lookup for a sender on the deny list, which the stack then refuses (packets only). The packet passed no
    /// program of an interface, or the program could not parse it.
    LookupDenied = 38 "lookup_denied",
    /// Event: lookup of a connection that the share leaves to another listener of its port (packets only).
    LookupLeft = 39 "lookup_left",
    /// Event: packet of QUIC with an ID of this node, delivered to the socket of the worker that issued the ID. This
    /// event and the next five count each lookup for a port of QUIC once. A train of merged datagrams is one lookup
    /// (packets only).
    QuicById = 40 "quic_by_id",
    /// Event: first packet of a QUIC connection, for which a worker of the owner was chosen (packets only).
    QuicNew = 41 "quic_new",
    /// Event: further first packet of a QUIC connection, delivered to the socket that was chosen for the one before
    /// (packets only).
    QuicNoted = 42 "quic_noted",
    /// Event: packet of QUIC with an ID of a process that has no socket for it, because it has ended; delivered to a
    /// worker of the owner (packets only).
    QuicGone = 43 "quic_gone",
    /// Event: packet with neither an ID of this node nor the type of a first packet, delivered to a worker of the owner
    /// (packets only).
    QuicOther = 44 "quic_other",
    /// Event: packet for a port of QUIC for which the kernel chose the socket by hash, because no process owns the port
    /// or the owner's worker has no socket (packets only).
    QuicUnchosen = 45 "quic_unchosen",
    /// Event: packet sent by a steered port of a node address, as seen by `ingress_tc_out`; counts segments and the
    /// bytes of all of them. Σ over hosts of `host_net.tx` equals this.
    Transmitted = 48 "transmitted",
}

impl Total {
    /// Returns `true` for a verdict: a number below 16, all of which are in use, or a later one that is named here. The
    /// packets of all verdicts add up to all packets the program saw.
    #[must_use]
    pub const fn is_verdict(self) -> bool {
        (self as u32) < 16 || matches!(self, Self::SynCookieInvalid | Self::QuicUnknown | Self::QuicShort)
    }

    /// Returns `true` for a verdict on packets that a program dropped.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        matches!(
            self,
            Self::Denied
                | Self::LimitedSyn
                | Self::LimitedPacket
                | Self::HiddenPort
                | Self::RewrittenPort
                | Self::SynCookieInvalid
                | Self::QuicUnknown
                | Self::QuicShort
        )
    }
}

const _: () = assert!(size_of::<Traffic>() == 16 && align_of::<Traffic>() == 8);
const _: () = assert!(size_of::<HostNet>() == 32 && align_of::<HostNet>() == 8);
const _: () = assert!(size_of::<NicNet>() == 32 && align_of::<NicNet>() == 8);
const _: () = assert!(size_of::<HostL7>() == 64 && align_of::<HostL7>() == 8);
const _: () = assert!(size_of::<HostL7Cell>() == 64 && align_of::<HostL7Cell>() == 8);
