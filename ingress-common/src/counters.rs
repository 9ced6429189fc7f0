//! What is counted, and under which name.

use core::sync::atomic::AtomicU64;

/// Packets and bytes. Bytes are those of the frame as the program saw it, link header included.
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
    /// Filled by `ingress_tc_out`: segments, as the NIC sends them.
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

/// Value of [`crate::map::NIC_NET`]: what of the wire traffic of all hosts went by one interface.
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

/// Value of [`crate::map::HOST_L7`]: requests of one host, exact whatever the protocol.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HostL7 {
    /// Final responses by [`StatusClass`].
    pub requests: Requests,
    /// Request body bytes received from clients, transfer coding removed.
    pub bytes_in: u64,
    /// Response body bytes handed to clients, transfer coding removed.
    pub bytes_out: u64,
    /// Requests being served now: the only value here that also falls.
    pub active: u64,
}

/// A count for each [`StatusClass`]; fields and not an array, so that bpftool prints the names.
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
    /// In the order of [`StatusClass::NAMES`].
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
    /// One more of this class.
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

/// [`HostL7`] as a process that counts sees it; the same bytes, touched by atomic operations only.
#[repr(C)]
#[derive(Debug, Default)]
pub struct HostL7Cell {
    pub requests: [AtomicU64; StatusClass::COUNT],
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub active: AtomicU64,
}

impl HostL7Cell {
    /// A copy of the counters, each read on its own.
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
}

/// How a request ended.
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusClass {
    Success = 0,
    Redirect = 1,
    ClientError = 2,
    ServerError = 3,
    /// The client went away, or the response broke off, before the end of the response; also status codes outside
    /// 2xx–5xx.
    Aborted = 4,
}

impl StatusClass {
    pub const COUNT: usize = 5;
    /// Label of each class, by its number.
    pub const NAMES: [&'static str; Self::COUNT] = ["2xx", "3xx", "4xx", "5xx", "aborted"];

    /// The class of a final status code.
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
        /// *Verdicts*: every packet that a program sees as it is received adds to exactly one.
        /// *Events*: added beside a verdict, or by another program. The numbers are the ABI: a reason is never renumbered.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Total { $($(#[$doc])* $variant = $index,)* }

        impl Total {
            /// Every reason with the name under which tools show it.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$variant, $name),)*];
        }
    };
}

totals! {
    /// Verdict: for a node address and a steered port, passed on. Σ over hosts of `host_net.rx` equals this.
    Accepted = 0 "accepted",
    /// Verdict: neither IPv4 nor IPv6 (ARP, more than two VLAN tags, …); passed.
    NotIp = 1 "not_ip",
    /// Verdict: too short for the headers it announces, or headers that contradict themselves; passed to the stack,
    /// which drops it, or puts it together with others of its datagram ([`Total::HiddenPort`]).
    Malformed = 2 "malformed",
    /// Verdict: a fragment other than the first; it names no port. Passed.
    Fragment = 3 "fragment",
    /// Verdict: neither TCP nor UDP; passed.
    OtherProtocol = 4 "other_protocol",
    /// Verdict: not a steered port; passed.
    OtherPort = 5 "other_port",
    /// Verdict: a steered port of an address that is not this node's; passed untouched.
    Transit = 6 "transit",
    /// Verdict: source on a deny list; dropped.
    Denied = 7 "denied",
    /// Verdict: SYN above what its client may send ([`crate::Limits::syns`]); dropped.
    LimitedSyn = 8 "limited_syn",
    /// Verdict: packet above what its client may send ([`crate::Limits::packets`]); dropped.
    LimitedPacket = 9 "limited_packet",
    /// Verdict: SYN for a port that packets get on this node in the place of another
    /// ([`crate::steer::PORT_REWRITTEN`]), which no client may ask for; dropped.
    RewrittenPort = 10 "rewritten_port",
    /// Verdict: for a node address, its port not within reach of the program, and its client limited; dropped. A first
    /// fragment without all of its TCP or UDP header, or more extension headers than are followed: the stack puts the
    /// fragments together and follows them all. Without limits it is [`Total::Malformed`], from a denied sender
    /// [`Total::Denied`].
    HiddenPort = 11 "hidden_port",
    /// Event: SYN for which XDP chose a worker.
    Decided = 16 "decided",
    /// Event: SYN while the heartbeat was older than [`crate::steer::HEARTBEAT_STALE_NS`]; XDP neither chose nor
    /// limited.
    HeartbeatStale = 18 "heartbeat_stale",
    /// Event: accepted or transmitted packet of a host id outside `host_net`; counted for host 0.
    HostOutOfRange = 19 "host_out_of_range",
    /// Event: packet of a client for which `clients` had no room; not limited. The map makes room itself: expected 0.
    ClientsFull = 20 "clients_full",
    /// Event: connection the proxy could not enter in `flows`; its packets stay with host 0.
    FlowsFull = 21 "flows_full",
    /// Event: SYN that would be [`Total::LimitedSyn`], but for [`crate::limit::LIMITS_DRY_RUN`].
    WouldLimitSyn = 22 "would_limit_syn",
    /// Event: packet that would be [`Total::LimitedPacket`], but for [`crate::limit::LIMITS_DRY_RUN`].
    WouldLimitPacket = 23 "would_limit_packet",
    /// Event: lookup that delivered to the worker XDP chose (packets only). The kernel looks up every segment without
    /// an established connection: SYNs, and now and then one that comes after its connection is gone, which is then
    /// refused.
    LookupDecided = 32 "lookup_decided",
    /// Event: lookup by the default rule for a connection that no program's NIC saw: node-local, pod → node (packets
    /// only).
    LookupDefault = 33 "lookup_default",
    /// Event: lookup by the default rule although a NIC with the program took the packet, and XDP has left no choice
    /// (packets only): expected 0.
    Undecided = 34 "undecided",
    /// Event: lookup that found the slot empty and passed to the stack, which refuses the connection (packets only).
    SlotEmpty = 35 "slot_empty",
    /// Event: lookup whose listener the kernel would not take (packets only).
    AssignFailed = 36 "assign_failed",
    /// Event: lookup by the default rule because XDP's choice is older than [`crate::steer::HANDOFF_FRESH_NS`] (packets
    /// only): a segment that comes after its connection is gone.
    LookupLate = 37 "lookup_late",
    /// Event: lookup for a sender on the deny list, which the stack then refuses (packets only): one that no program of
    /// an interface saw, or could not see through.
    LookupDenied = 38 "lookup_denied",
    /// Event: packet that a steered port of a node address sends, as `ingress_tc_out` saw it: segments, and their bytes
    /// together. Σ over hosts of `host_net.tx` equals this.
    Transmitted = 48 "transmitted",
}

impl Total {
    /// Whether this is a verdict: the verdicts' packets add up to all packets the program saw.
    #[must_use]
    pub const fn is_verdict(self) -> bool {
        (self as u32) < 16
    }
}

const _: () = assert!(size_of::<Traffic>() == 16 && align_of::<Traffic>() == 8);
const _: () = assert!(size_of::<HostNet>() == 32 && align_of::<HostNet>() == 8);
const _: () = assert!(size_of::<NicNet>() == 32 && align_of::<NicNet>() == 8);
const _: () = assert!(size_of::<HostL7>() == 64 && align_of::<HostL7>() == 8);
const _: () = assert!(size_of::<HostL7Cell>() == 64 && align_of::<HostL7Cell>() == 8);
