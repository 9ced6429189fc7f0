//! UDP services on real links: XDP counts their datagrams and leaves them alone, answers leave from the requested
//! address, and two processes of a node share the ports.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    thread,
    time::Duration,
};

use ingress_common::Total;
use ingress_lab::{
    Namespace, Process,
    topology::{Family, NODE_NIC, node_addr},
    until,
};

use crate::net::Net;

/// Port of the pods that speak no HTTP.
const POD_PORT: u16 = 5353;
/// Another address of the node.
const SECOND: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 77);
/// Headers of a datagram on the wire: Ethernet, IP, UDP.
const HEADERS: [(Family, u64); 2] = [(Family::V4, 14 + 20 + 8), (Family::V6, 14 + 40 + 8)];

/// A pod that answers each datagram with its name and the datagram.
pub(crate) fn echo(namespace: &Namespace, name: &'static str) {
    let socket = namespace.run(|| Ok(UdpSocket::bind(("0.0.0.0", POD_PORT))?)).expect("a pod listens");
    // The thread lives as long as the test's process and leaves nothing behind on the machine.
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            drop(socket.send_to(&[name.as_bytes(), b" ", &buffer[..length]].concat(), peer));
        }
    });
}

/// Writes services on these ports that lead to all pods.
pub(crate) fn manifests(net: &Net, ports: &[u16]) {
    let rows: String = ports.iter().map(|port| format!("  \"{port}\": \"default/dns:53\"\n")).collect();
    let pods: String = net.topology.pods.iter().map(|pod| format!("{{addresses: [{}]}}, ", pod.v4)).collect();
    net.write(
        "dns.yaml",
        &format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: dns, namespace: default}}\nspec: {{ports: [{{port: 53, protocol: UDP}}]}}\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: dns-1, namespace: default, labels: {{kubernetes.io/service-name: dns}}}}\n\
             addressType: IPv4\nports: [{{port: {POD_PORT}, protocol: UDP}}]\nendpoints: [{pods}]\n---\n\
             apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: udp, namespace: default}}\ndata:\n{rows}"
        ),
    );
}

/// Starts a proxy that is ready and has port 53.
fn serving(name: &str) -> Option<(Net, Process)> {
    let net = Net::build(name)?;
    net.topology.node.ip(&format!("addr add {SECOND}/24 dev {NODE_NIC}")).expect("another address");
    for pod in &net.topology.pods {
        echo(&pod.namespace, pod.name);
    }
    manifests(&net, &[53]);
    let process = start(&net, "first", 9110);
    Some((net, process))
}

fn start(net: &Net, name: &str, admin_port: u16) -> Process {
    let mut command = net.options(name, admin_port).command();
    command.args(["--udp-services-configmap", "default/udp"]);
    let mut process = net.lab.spawn(&net.topology.node, name, command).expect("the proxy starts");
    process.wait_for_log("UDP port open", 1).expect("the port is open");
    process
}

/// A socket connected to the node's `address`, which receives no answer from another one.
pub(crate) fn client(net: &Net, address: IpAddr, port: u16) -> UdpSocket {
    let open = || -> anyhow::Result<UdpSocket> {
        let socket = UdpSocket::bind((if address.is_ipv4() { "0.0.0.0" } else { "::" }, 0))?;
        socket.connect(SocketAddr::new(address, port))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(socket)
    };
    net.topology.client.run(open).expect("a client")
}

/// Returns the name of the pod that answers.
pub(crate) fn ask(socket: &UdpSocket, text: &str) -> Option<String> {
    socket.send(text.as_bytes()).ok()?;
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer).ok()?;
    let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
    answer.strip_suffix(text).map(|pod| pod.trim_end().to_owned())
}

#[test]
fn datagrams_are_counted_exactly_and_answered_from_their_address() {
    let Some((net, _proxy)) = serving("udp") else { return };
    // The kernel programs learn ports and addresses asynchronously; until then nothing is counted as accepted.
    for address in [node_addr(Family::V4), node_addr(Family::V6), SECOND.into()] {
        let socket = client(&net, address, 53);
        let is_counted = || {
            let before = net.settled().total(Total::Accepted).packets;
            ask(&socket, "x").is_some().then_some(())?;
            (net.settled().total(Total::Accepted).packets > before).then_some(())
        };
        until("datagrams are counted", is_counted).expect("the port is known to XDP");
    }
    let before = net.settled();
    let (mut packets, mut bytes) = (0, 0);
    for (family, headers) in HEADERS {
        let addresses = match family {
            Family::V4 => vec![node_addr(family), SECOND.into()],
            Family::V6 => vec![node_addr(family)],
        };
        for address in addresses {
            let socket = client(&net, address, 53);
            for n in 0..100_u64 {
                let text = "x".repeat(usize::try_from(20 + n).expect("small"));
                // The connected socket would not receive an answer from any other address.
                assert!(ask(&socket, &text).is_some_and(|pod| pod.starts_with("pod-")), "{address} {n}");
                packets += 1;
                bytes += headers + 20 + n;
            }
        }
    }
    let after = net.settled();
    let (was, is) = (before.total(Total::Accepted), after.total(Total::Accepted));
    assert_eq!((is.packets - was.packets, is.bytes - was.bytes), (packets, bytes));
    assert_eq!(after.received(), is, "each for exactly one host");
    assert_eq!(after.total(Total::Decided), before.total(Total::Decided), "none is steered");

    // Another port: not counted as accepted, and refused by the stack as before.
    let closed = client(&net, node_addr(Family::V4), 54);
    assert_eq!(ask(&closed, "x"), None);
    let later = net.settled();
    assert_eq!(later.total(Total::Accepted), is);
    assert!(later.total(Total::OtherPort).packets > after.total(Total::OtherPort).packets);
    manifests(&net, &[53, 54]);
    until("the new port", || ask(&closed, "x")).expect("a port is added");
}

#[test]
fn an_update_keeps_the_pod_of_each_client() {
    let Some((net, mut first)) = serving("udp-update") else { return };
    let clients: Vec<_> = (0..30).map(|_| client(&net, node_addr(Family::V4), 53)).collect();
    // A datagram may be lost when sockets close, and is sent again, as any UDP client must do.
    let pods = |text: &str| -> Vec<String> {
        let pod = |socket| (0..3).find_map(|_| ask(socket, text)).expect("an answer");
        clients.iter().map(pod).collect()
    };
    let before = pods("first");
    assert!(before.iter().any(|pod| *pod != before[0]), "several pods are used");
    let mut second = start(&net, "second", 9111);
    assert_eq!(pods("both"), before);
    manifests(&net, &[53, 54]);
    let other = client(&net, node_addr(Family::V4), 54);
    until("a port that both open", || ask(&other, "x")).expect("a port is added");
    until("both have it", || {
        [&first, &second].iter().all(|process| process.log().matches("UDP port open").count() == 2).then_some(())
    })
    .expect("neither keeps it from the other");
    first.terminate(Duration::from_secs(10)).expect("the first ends");
    assert_eq!(pods("second"), before);
    second.terminate(Duration::from_secs(10)).expect("the second ends");
    let closed = client(&net, node_addr(Family::V4), 53);
    assert_eq!(ask(&closed, "x"), None);
}
