//! The flow table of connections of HTTP/3, by which the kernel programs count their packets.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use ingress_model::{HostId, Transport};
use ingress_proxy::FlowTable;
use ingress_proxy_testing::{Origin, Proxy, Table, until};

use super::{Client, options};

/// Remote and local address of an entry, and its host; `None` for a removed one.
type Event = (SocketAddr, SocketAddr, Option<HostId>);

/// Entries in the order of their changes.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Event>>>);

impl Recorder {
    fn note(&self, transport: Transport, remote: SocketAddr, local: SocketAddr, host: Option<HostId>) {
        assert_eq!(transport, Transport::Udp);
        self.0.lock().expect("unpoisoned").push((remote, local, host));
    }
}

impl FlowTable for Recorder {
    fn insert(&self, transport: Transport, remote: SocketAddr, local: SocketAddr, host: HostId) {
        self.note(transport, remote, local, Some(host));
    }

    fn remove(&self, transport: Transport, remote: SocketAddr, local: SocketAddr) {
        self.note(transport, remote, local, None);
    }
}

#[tokio::test]
async fn a_flow_follows_its_client_to_another_address() {
    let origin = Origin::answering("pod");
    let table = Table::default().host("a.test", &[origin.address]).host("b.test", &[origin.address]);
    let recorder = Recorder::default();
    let proxy = Proxy::start_http3_with(&table, &options(), 1, Some(Box::new(recorder.clone())));
    let client = Client::connect(&proxy, "a.test").await;
    let address = || client.endpoint.local_addr().expect("an address");
    let first = address();
    client.get("a.test", "/").await;
    client.get("a.test", "/").await;
    client.move_to("127.0.0.1");
    let second = address();
    client.get("a.test", "/").await;
    client.get("b.test", "/").await;
    client.quic.close(0_u32.into(), b"");
    until("the connection is gone", || proxy.shared.stats().connections == 0).await;
    let local = proxy.http3.expect("an address");
    let expect = [
        (first, local, Some(HostId(1))),
        (second, local, Some(HostId(1))),
        (first, local, None),
        (second, local, Some(HostId(2))),
        (second, local, None),
    ];
    let events = || recorder.0.lock().expect("unpoisoned").clone();
    until("the entry is removed", || events().len() >= expect.len()).await;
    assert_eq!(events(), expect);
}
