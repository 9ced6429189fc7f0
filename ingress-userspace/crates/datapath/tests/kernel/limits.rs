//! Client limits under the verifier: drops and their counters, exemptions, and that CPUs racing for one bucket lose no
//! token. A token takes an hour to refill here, and tests move the time of a bucket instead of waiting.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use aya::{
    Pod,
    maps::{Array, HashMap, Map, MapData},
};
use ingress_common::{
    Alive, Bucket, ClientEntry, ClientKey, LimitBuckets, Total, Traffic,
    flow::v4_mapped,
    map::{ALIVE, ALIVE_CURRENT, CLIENTS, CLIENTS_MAX, LIMITS, LIMITS_ALL},
    steer::{PORT_LIMITS_PACKETS, PORT_LIMITS_SYNS},
};
use ingress_datapath::{ClientLimits, Datapath, DenyConfig, PacketRate, Pinned};

use crate::{
    deny::{nets, run},
    frames::{CLIENT4, CLIENT6, NODE4, NODE6, check_sum, serving_with},
    packets::{ACK, Packet, SYN},
    sandbox::{Sandbox, sandboxed},
    verdicts::{XDP_DROP, XDP_PASS},
};

const HOUR_NS: u64 = 3_600_000_000_000;

/// A node with a proxy that never hangs, and its limit maps in the kernel.
pub(crate) struct Node {
    pub(crate) datapath: Datapath,
    limits: Array<MapData, LimitBuckets>,
    clients: HashMap<MapData, ClientKey, ClientEntry>,
    alive: Array<MapData, Alive>,
}

fn array<V: Pod>(sandbox: &Sandbox, name: &str) -> Array<MapData, V> {
    Map::Array(sandbox.map(name)).try_into().expect("an array")
}

fn rate(per_second: u32, burst: u32) -> Option<PacketRate> {
    Some(PacketRate { per_second: NonZeroU32::new(per_second)?, burst: NonZeroU32::new(burst)? })
}

/// Limits with these bursts; 0 means unlimited.
pub(crate) fn bursts(syns: u32, packets: u32) -> ClientLimits {
    ClientLimits { syns: rate(1, syns), packets: rate(1, packets), is_dry_run: false }
}

fn key(addr: &str) -> ClientKey {
    ClientKey::of(&match addr.parse().expect("an address") {
        IpAddr::V4(addr) => v4_mapped(addr.octets()),
        IpAddr::V6(addr) => addr.octets(),
    })
}

/// Returns a packet of the family of `from`.
pub(crate) fn packet(from: &str, flags: u8) -> Packet {
    let (from, to) =
        if from.contains(':') { (format!("[{from}]:40000"), NODE6) } else { (format!("{from}:40000"), NODE4) };
    Packet::tcp(&from, to, flags)
}

impl Node {
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        let datapath = serving_with(&sandbox.options(&[]));
        let clients = Map::LruHashMap(sandbox.map(CLIENTS)).try_into().expect("a hash");
        let mut node = Self { datapath, limits: array(sandbox, LIMITS), clients, alive: array(sandbox, ALIVE) };
        node.set_heartbeat(u64::MAX);
        node
    }

    fn set_heartbeat(&mut self, heartbeat_ns: u64) {
        let now = self.alive.get(&ALIVE_CURRENT, 0).expect("an entry");
        self.alive.set(ALIVE_CURRENT, Alive { heartbeat_ns, ..now }, 0).expect("set");
    }

    /// Sets limits, and slows them to one token per hour.
    pub(crate) fn limit(&mut self, wanted: ClientLimits) {
        self.datapath.client_limits().set(wanted).expect("limits");
        let limits = self.limits.get(&LIMITS_ALL, 0).expect("an entry");
        let slow = |bucket: Bucket| Bucket {
            token_ns: if bucket.is_limit() { HOUR_NS } else { 0 },
            whole_ns: HOUR_NS * u64::from(bucket.burst),
            ..bucket
        };
        let slow = LimitBuckets { syns: slow(limits.syns), packets: slow(limits.packets), ..limits };
        self.limits.set(LIMITS_ALL, slow, 0).expect("set");
    }

    pub(crate) fn client(&self, addr: &str) -> Option<ClientEntry> {
        self.clients.get(&key(addr), 0).ok()
    }

    /// Moves the client's buckets as if so many hours had passed.
    pub(crate) fn wait(&mut self, addr: &str, hours: u64) {
        let client = self.client(addr).expect("known");
        let (syns_full_ns, packets_full_ns) = (
            client.syns_full_ns.saturating_sub(hours * HOUR_NS),
            client.packets_full_ns.saturating_sub(hours * HOUR_NS),
        );
        self.clients.insert(key(addr), ClientEntry { syns_full_ns, packets_full_ns, ..client }, 0).expect("set");
    }

    fn send(&self, packet: &Packet) -> u32 {
        run(&self.datapath, &packet.frame())
    }

    /// Sends `count` such packets. Returns the number that pass; the others are dropped.
    pub(crate) fn passing(&self, packet: &Packet, count: usize) -> usize {
        let verdicts: Vec<_> = (0..count).map(|_| self.send(packet)).collect();
        assert!(verdicts.iter().all(|verdict| [XDP_PASS, XDP_DROP].contains(verdict)), "{verdicts:?}");
        verdicts.into_iter().filter(|verdict| *verdict == XDP_PASS).count()
    }

    pub(crate) fn total(&self, total: Total) -> Traffic {
        self.datapath.totals().expect("totals").get(total)
    }

    pub(crate) fn has(&self, key: ClientKey) -> bool {
        self.clients.get(&key, 0).is_ok()
    }

    /// Returns the number of entries of `clients`.
    pub(crate) fn known(&self) -> usize {
        self.clients.keys().filter(Result::is_ok).count()
    }

    /// Returns the limit flags of all ports.
    fn flags(&self) -> Vec<u16> {
        let ports = self.datapath.maps().ports().expect("ports");
        let mut flags: Vec<_> =
            ports.into_iter().map(|(_, rule)| rule.flags & (PORT_LIMITS_SYNS | PORT_LIMITS_PACKETS)).collect();
        flags.dedup();
        flags
    }
}

#[test]
fn packets_beyond_the_burst_are_dropped_and_counted() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        node.limit(bursts(3, 0));
        for (client, from) in [("192.0.2.1", CLIENT4), ("2001:db8::1", CLIENT6)] {
            let syn = packet(client, SYN);
            let (limited, accepted, decided) =
                (node.total(Total::LimitedSyn), node.total(Total::Accepted), node.total(Total::Decided));
            assert_eq!(node.passing(&syn, 7), 3, "{from}");
            let bytes = syn.frame().len() as u64;
            let expect = Traffic { packets: limited.packets + 4, bytes: limited.bytes + 4 * bytes };
            assert_eq!(node.total(Total::LimitedSyn), expect, "{from}");
            assert_eq!(node.total(Total::Accepted).packets, accepted.packets + 3, "{from}");
            assert_eq!(
                node.total(Total::Decided).packets,
                decided.packets + 3,
                "{from}: no worker for what is dropped"
            );
            let known = node.client(client).expect("known");
            assert_eq!((known.limited_syns, known.limited_packets), (4, 0), "{from}");
            assert_ne!(known.limited_ns, 0);
            assert_eq!(node.passing(&packet(client, ACK), 20), 20, "{from}: SYNs alone are limited");
        }
        assert_eq!(node.total(Total::LimitedPacket), Traffic::default());
        let limited = node.datapath.maps().limited_clients().expect("clients");
        let limited: Vec<_> = limited.iter().map(|client| (client.client, client.syns, client.packets)).collect();
        let clients = nets("192.0.2.1/32 2001:db8::/64");
        assert_eq!(limited, [(clients[0], 4, 0), (clients[1], 4, 0)]);
        check_sum(&node.datapath);
    });
}

#[test]
fn packets_of_every_kind_share_a_bucket() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        node.limit(bursts(0, 6));
        for (client, udp) in [("192.0.2.1", "198.51.100.7:443"), ("2001:db8::1", "[2001:db8::7]:443")] {
            let syn = packet(client, SYN);
            let before = node.total(Total::LimitedPacket).packets;
            let udp = Packet { local: udp.parse().expect("an address"), ..Packet::udp(CLIENT4, NODE4) };
            let udp = Packet { remote: syn.remote, ..udp };
            for packet in [&syn, &packet(client, ACK), &udp] {
                assert_eq!(node.passing(packet, 2), 2, "{client}");
            }
            for packet in [&syn, &packet(client, ACK), &udp] {
                assert_eq!(node.passing(packet, 2), 0, "{client}");
            }
            assert_eq!(node.total(Total::LimitedPacket).packets, before + 6);
            assert_eq!(node.client(client).expect("known").limited_packets, 6);
        }
        assert_eq!(node.total(Total::LimitedSyn), Traffic::default());
        // Other ports, and packets in transit, are not the product's to limit.
        let elsewhere = Packet::tcp(CLIENT4, "198.51.100.7:22", ACK);
        let transit = Packet::tcp(CLIENT4, "203.0.113.9:80", ACK);
        assert_eq!((node.passing(&elsewhere, 20), node.passing(&transit, 20)), (20, 20));
        check_sum(&node.datapath);
    });
}

#[test]
fn tokens_refill_over_time_up_to_the_burst() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        node.limit(bursts(4, 0));
        for client in ["192.0.2.1", "2001:db8::1"] {
            let syn = packet(client, SYN);
            assert_eq!(node.passing(&syn, 9), 4);
            node.wait(client, 1);
            assert_eq!(node.passing(&syn, 9), 1, "{client}");
            node.wait(client, 3);
            assert_eq!(node.passing(&syn, 9), 3, "{client}");
            node.wait(client, 400_000);
            assert_eq!(node.passing(&syn, 9), 4, "{client}: full, and not fuller");
        }
        // Both limits: a client without packet tokens keeps its SYN tokens.
        node.limit(bursts(5, 2));
        let syn = packet("192.0.2.1", SYN);
        assert_eq!(node.passing(&syn, 4), 2);
        let client = node.client("192.0.2.1").expect("known");
        assert_eq!((client.limited_syns, client.limited_packets), (0, 2));
        assert_eq!(client.syns_full_ns, client.packets_full_ns, "two tokens each");
    });
}

#[test]
fn a_client_is_an_ipv4_address_or_an_ipv6_64() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        node.limit(bursts(2, 0));
        assert_eq!(node.passing(&packet("192.0.2.1", SYN), 3), 2);
        assert_eq!(node.passing(&packet("192.0.2.2", SYN), 3), 2, "the neighbour has its own");
        for (client, expect) in
            [("2001:db8:1:2::1", 1), ("2001:db8:1:2:ffff::1", 1), ("2001:db8:1:2::2", 0), ("2001:db8:1:3::1", 1)]
        {
            assert_eq!(node.passing(&packet(client, SYN), 1), expect, "{client}");
        }
        assert_eq!(node.known(), 4);
    });
}

#[test]
fn trusted_proxies_are_never_limited_and_denied_clients_stay_denied() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        let entries = DenyConfig::sparing(nets("203.0.113.0/24"), nets("192.0.2.0/28 2001:db8:5::/48"));
        node.datapath.deny_list().set(&entries).expect("the list is taken");
        node.limit(bursts(2, 3));
        for hop in ["192.0.2.1", "2001:db8:5::1"] {
            assert_eq!(node.passing(&packet(hop, SYN), 20), 20, "{hop}");
            assert_eq!(node.client(hop), None, "{hop} has no bucket");
        }
        for client in ["192.0.2.16", "2001:db8:6::1"] {
            assert_eq!(node.passing(&packet(client, SYN), 20), 2, "{client}");
        }
        let denied = node.total(Total::Denied).packets;
        assert_eq!(node.passing(&packet("203.0.113.1", SYN), 5), 0);
        assert_eq!(node.total(Total::Denied).packets, denied + 5);
        assert_eq!(node.client("203.0.113.1"), None);
        check_sum(&node.datapath);
    });
}

#[test]
fn limits_are_in_effect_only_with_a_fresh_heartbeat() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        node.datapath.deny_list().set(&DenyConfig::new(nets("203.0.113.0/24"), [])).expect("the list is taken");
        node.limit(bursts(1, 1));
        let (syn, ack) = (packet("192.0.2.1", SYN), packet("192.0.2.1", ACK));
        assert_eq!(node.passing(&syn, 3), 1);
        let before = node.client("192.0.2.1");
        node.set_heartbeat(1);
        assert_eq!((node.passing(&syn, 9), node.passing(&ack, 9)), (9, 9), "a proxy that hangs limits nobody");
        assert_eq!(node.passing(&packet("203.0.113.1", ACK), 2), 0, "but the list holds");
        assert_eq!(node.client("192.0.2.1"), before, "nor does it charge");
        node.set_heartbeat(u64::MAX);
        assert_eq!((node.passing(&syn, 3), node.passing(&ack, 3)), (0, 0));
        check_sum(&node.datapath);
    });
}

#[test]
fn without_limits_there_are_no_flags_and_no_entries() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        let (syn, ack) = (packet("192.0.2.1", SYN), packet("192.0.2.1", ACK));
        let set = |node: &Node, limits| node.datapath.client_limits().set(limits).expect("limits");
        assert_eq!((node.passing(&syn, 50), node.known(), node.flags()), (50, 0, vec![0]));
        assert!(!set(&node, ClientLimits { is_dry_run: true, ..ClientLimits::default() }), "as there are");
        for (limits, flags) in [
            (bursts(2, 0), PORT_LIMITS_SYNS),
            (bursts(0, 2), PORT_LIMITS_PACKETS),
            (bursts(2, 2), PORT_LIMITS_SYNS | PORT_LIMITS_PACKETS),
        ] {
            assert!(set(&node, limits) && !set(&node, limits), "the same is no change");
            assert_eq!((node.flags(), node.known()), (vec![flags], 0));
            assert_eq!(node.datapath.maps().client_limits().expect("limits"), limits);
        }
        node.limit(bursts(2, 0));
        assert_eq!(node.passing(&ack, 5), 5);
        assert_eq!(node.known(), 0, "what is not limited is not looked up either");
        assert_eq!((node.passing(&syn, 5), node.known()), (2, 1));
        assert!(set(&node, ClientLimits::default()));
        assert_eq!((node.passing(&syn, 50), node.known(), node.flags()), (50, 0, vec![0]));
    });
}

#[test]
fn a_dry_run_counts_excess_packets_and_passes_them() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        node.limit(ClientLimits { is_dry_run: true, ..bursts(2, 4) });
        let (syn, ack) = (packet("2001:db8::1", SYN), packet("2001:db8::1", ACK));
        assert_eq!((node.passing(&syn, 5), node.passing(&ack, 6)), (5, 6));
        let totals = [Total::WouldLimitSyn, Total::WouldLimitPacket, Total::LimitedSyn, Total::LimitedPacket];
        // Two of the SYNs pass, which leaves two packets.
        assert_eq!(totals.map(|total| node.total(total).packets), [3, 4, 0, 0]);
        assert_eq!((node.total(Total::Accepted).packets, node.total(Total::Decided).packets), (11, 5));
        let client = node.client("2001:db8::1").expect("known");
        assert_eq!((client.limited_syns, client.limited_packets), (3, 4));
        check_sum(&node.datapath);
        // Enforced, clients begin anew, and as much is dropped.
        node.limit(bursts(2, 4));
        assert_eq!((node.passing(&syn, 5), node.passing(&ack, 6)), (2, 2));
    });
}

#[test]
fn a_new_process_adopts_limits_and_a_change_resets_them() {
    sandboxed(|sandbox| {
        let first = Node::new(sandbox);
        let limits = ClientLimits { syns: rate(1, 1_000_000), packets: None, is_dry_run: false };
        assert!(first.datapath.client_limits().set(limits).expect("limits"));
        let syn = packet("192.0.2.1", SYN);
        assert_eq!(first.passing(&syn, 5), 5);
        drop(first);

        // The second process opens, takes over, and sets its ports, as the proxy does.
        let second = Node::new(sandbox);
        assert_eq!(second.datapath.maps().client_limits().expect("limits"), limits);
        assert_eq!(second.flags(), [PORT_LIMITS_SYNS], "ports that are set anew heed the limits that are there");
        let before = second.client("192.0.2.1").expect("known");
        assert!(!second.datapath.client_limits().set(limits).expect("limits"));
        assert_eq!(second.client("192.0.2.1"), Some(before), "as far as it was");
        // A bucket of a million tokens would take days to fill; one of three must not inherit that.
        assert!(second.datapath.client_limits().set(bursts(3, 0)).expect("limits"));
        assert_eq!(second.client("192.0.2.1"), None);
        let pinned = Pinned::open(&sandbox.bpffs()).expect("pins");
        assert_eq!(pinned.maps().client_limits().expect("limits"), bursts(3, 0), "as `xdp-ingress clients` sees it");
        assert!(pinned.maps().limited_clients().expect("clients").is_empty());
    });
}

#[test]
fn a_full_map_evicts_clients_and_limits_new_ones() {
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        node.limit(bursts(1, 0));
        // One more than fit, plus those that the kernel reserves for each CPU.
        for number in 0..CLIENTS_MAX + CLIENTS_MAX / 16 {
            let addr = Ipv6Addr::from((0x2001_0db8_0000_0000_u128 + u128::from(number)) << 64 | 1);
            assert_eq!(node.send(&packet(&addr.to_string(), SYN)), XDP_PASS, "client {number}");
        }
        let known = node.known();
        assert!(known > CLIENTS_MAX as usize / 2, "{known}: it was filled, and made room");
        assert_eq!(node.passing(&packet("192.0.2.1", SYN), 4), 1);
        assert_eq!(node.total(Total::ClientsFull), Traffic::default());
        check_sum(&node.datapath);
    });
}

#[test]
fn concurrent_updates_of_one_bucket_lose_nothing() {
    const THREADS: u64 = 4;
    const RUNS: u64 = 20_000;
    const BURST: u32 = 10_000;
    sandboxed(|sandbox| {
        let mut node = Node::new(sandbox);
        node.limit(bursts(0, BURST));
        let frame = packet("192.0.2.1", ACK).frame();
        // From here on the bucket is not full.
        assert_eq!(run(&node.datapath, &frame), XDP_PASS);
        let first = node.client("192.0.2.1").expect("known").packets_full_ns;
        let passed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let verdicts = (0..RUNS).map(|_| run(&node.datapath, &frame));
                    passed.fetch_add(verdicts.filter(|verdict| *verdict == XDP_PASS).count() as u64, Relaxed);
                });
            }
        });
        let (passed, client) = (passed.load(Relaxed), node.client("192.0.2.1").expect("known"));
        assert_eq!(client.packets_full_ns, first + passed * HOUR_NS, "each that passed has paid");
        assert_eq!(client.limited_packets, THREADS * RUNS - passed, "each that did not is counted");
        // All threads may see the last token at one time.
        let room = u64::from(BURST) - 1;
        assert!((room..room + THREADS).contains(&passed), "{passed}");
        check_sum(&node.datapath);
    });
}
