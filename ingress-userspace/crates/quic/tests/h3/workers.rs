//! Two workers on one port, among which the kernel distributes packets by their addresses alone.

use std::{
    cell::RefCell,
    net::{SocketAddr, UdpSocket},
    rc::Rc,
};

use ingress_quic::{Handle, Limits};
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::{Server, bind, connect, get, options, pattern, post, run, start_with};

fn bind_shared(address: SocketAddr) -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).expect("a socket");
    socket.set_reuse_port(true).expect("an option");
    socket.bind(&address.into()).expect("bound");
    socket.into()
}

/// Starts two workers that give each other's datagrams to each other.
fn start_two() -> [Server; 2] {
    let handles = Rc::new(RefCell::new(Vec::<Handle>::new()));
    let first = bind_shared(([127, 0, 0, 1], 0).into());
    let second = bind_shared(first.local_addr().expect("an address"));
    let (made, certificate) = options(first, 0, Limits::default());
    let start = |mut made: ingress_quic::Options, certificate| {
        let siblings = Rc::clone(&handles);
        made.forward = Box::new(move |sibling, datagram| siblings.borrow()[usize::from(sibling)].inject(datagram));
        let server = start_with((made, certificate));
        handles.borrow_mut().push(server.handle.clone());
        server
    };
    let (mut other, _unused) = options(second, 1, Limits::default());
    other.tls = made.tls.clone();
    let second_certificate = certificate.clone();
    [start(made, certificate), start(other, second_certificate)]
}

#[test]
fn the_kernel_distributes_connections_among_workers() {
    run(async {
        let servers = start_two();
        let mut clients = Vec::new();
        // All with one worker: once in 2⁴⁷ runs.
        for number in 0..48 {
            let client = connect(&servers[0]).await;
            assert_eq!(get(&client, "/size/100").await.expect("a response").body, pattern(100), "{number}");
            clients.push(client);
        }
        let accepted = servers.each_ref().map(|server| server.handle.counters().accepted.get());
        assert_eq!(accepted.iter().sum::<u64>(), 48);
        assert!(!accepted.contains(&0), "{accepted:?}");
    });
}

#[test]
fn packets_of_a_sibling_reach_it() {
    run(async {
        let servers = start_two();
        let client = connect(&servers[0]).await;
        // Each new port is hashed to the wrong worker in half of all cases: none of 48, once in 2⁴⁸ runs.
        for change in 0..48 {
            client.endpoint.rebind(bind()).expect("another socket");
            let got = post(&client, "/echo/", pattern(5_000)).await.expect("a response");
            assert!(got.body == pattern(5_000), "{change}");
        }
        let sum = |of: fn(&ingress_quic::Counters) -> u64| {
            servers.iter().map(|server| of(server.handle.counters())).sum::<u64>()
        };
        assert_eq!(sum(|counters| counters.accepted.get()), 1);
        assert!(sum(|counters| counters.foreign.get()) > 0);
    });
}
