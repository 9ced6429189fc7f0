//! TCP services on real links: their connections are steered like HTTP, and ports come and go independently.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use ingress_common::Total;
use ingress_lab::{
    Namespace, Process,
    client::Ask,
    controller::DataPath,
    load::{Connections, Load},
    topology::{CLIENT_V4, CLIENT_V6, Family, node_addr},
    until,
};

use crate::net::{Net, http};

/// Longest wait for the first snapshot: loading the programs is the slow part.
const READY: Duration = Duration::from_secs(30);
/// Port of the pods that speak no HTTP.
const POD_PORT: u16 = 9000;

/// A pod that sends back all received bytes at the end of the stream.
pub(crate) fn mirror(namespace: &Namespace) {
    let listener = namespace.run(|| Ok(TcpListener::bind(("0.0.0.0", POD_PORT))?)).expect("a pod listens");
    // The thread lives as long as the test's process and leaves nothing behind on the machine.
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                drop(stream.read_to_end(&mut bytes).and_then(|_| stream.write_all(&bytes)));
            });
        }
    });
}

/// Writes the Service `db` on pod-a, and the ConfigMap with these rows.
pub(crate) fn manifests(net: &Net, rows: &[(u16, &str)]) {
    let rows: String = rows.iter().map(|(port, row)| format!("  \"{port}\": {row:?}\n")).collect();
    net.write(
        "db.yaml",
        &format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: db, namespace: default}}\nspec: {{ports: [{{port: 5432, targetPort: {POD_PORT}}}]}}\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: db-1, namespace: default, labels: {{kubernetes.io/service-name: db}}}}\n\
             addressType: IPv4\nports: [{{port: {POD_PORT}}}]\nendpoints: [{{addresses: [{}]}}]\n---\n\
             apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: tcp, namespace: default}}\ndata:\n{rows}",
            net.topology.pods[0].v4
        ),
    );
}

/// [`Net::serving`] with TCP services.
fn serving(name: &str, rows: &[(u16, &str)]) -> Option<(Net, Process)> {
    serving_over(name, None, rows)
}

/// The same on another data path, if one is given.
fn serving_over(name: &str, path: Option<DataPath>, rows: &[(u16, &str)]) -> Option<(Net, Process)> {
    let net = Net::build(name)?;
    net.write("web.yaml", &net.site("web", &[0, 1]));
    mirror(&net.topology.pods[0].namespace);
    manifests(&net, rows);
    let mut options = net.options("first", 9110);
    if let Some(path) = path {
        options.path = path;
    }
    let mut command = options.command();
    command.args(["--tcp-services-configmap", "default/tcp"]);
    let mut process = net.lab.spawn(&net.topology.node, "first", command).expect("the proxy starts");
    let is_ready = || net.admin("/readyz").is_ok_and(|answer| answer.status.is_success());
    process.wait_until(READY, "the proxy is ready", is_ready).expect("it becomes ready");
    Some((net, process))
}

fn connect(from: &Namespace, to: SocketAddr) -> anyhow::Result<TcpStream> {
    from.run(|| {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(stream)
    })
}

/// Ends the stream and returns the bytes that come back.
fn finish(mut stream: TcpStream) -> anyhow::Result<String> {
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn tcp_services_are_steered_counted_and_get_proxy_headers() {
    let Some((net, _proxy)) = serving("tcp", &[(5432, "default/db:5432::PROXY")]) else { return };
    let before = net.settled();
    let (mut sent, mut received) = (0, 0);
    for (family, client, version) in
        [(Family::V4, IpAddr::from(CLIENT_V4), "TCP4"), (Family::V6, CLIENT_V6.into(), "TCP6")]
    {
        let node = SocketAddr::from((node_addr(family), 5432));
        for payload in ["hello".to_owned(), "x".repeat(300_000)] {
            let mut stream = connect(&net.topology.client, node).expect("connected");
            let local = stream.local_addr().expect("an address");
            stream.write_all(payload.as_bytes()).expect("sent");
            let answer = finish(stream).expect("an answer");
            let header = format!("PROXY {version} {client} {} {} 5432\r\n", node.ip(), local.port());
            assert!(answer == header.clone() + &payload, "{} bytes, beginning {:.100}", answer.len(), answer);
            sent += payload.len() as u64;
            received += answer.len() as u64;
        }
    }
    let after = net.settled();
    assert_eq!(after.received(), after.total(Total::Accepted));
    assert_eq!(after.total(Total::Undecided).packets, 0);
    assert_eq!(after.total(Total::LookupDefault).packets, 0);
    assert!(after.total(Total::LookupDecided).packets >= before.total(Total::LookupDecided).packets + 4);
    let host = after.hosts["tcp/5432"];
    assert_eq!((host.l7.requests.success, host.l7.bytes_in, host.l7.bytes_out), (4, sent, received));
    assert_eq!(host.l7.active, 0);
    // Packets belong to host 0 until the connection is accepted, which may be some windows later, and then to the port.
    assert!(host.net.rx_bytes > 300_000, "{:?}", host.net);
}

#[test]
fn ports_open_and_close_without_disturbing_others() {
    let Some((net, proxy)) = serving("ports", &[(5432, "default/db:5432")]) else { return };
    let load = Load::start(&net.topology.client, http(Family::V4), Ask::get("web.test", "/"), 2, Connections::New)
        .expect("load starts");
    let node = |port: u16| SocketAddr::from((node_addr(Family::V4), port));
    let client = &net.topology.client;
    let answers = |port| {
        connect(client, node(port)).is_ok_and(|mut stream| {
            stream.write_all(b"ping").is_ok() && finish(stream).is_ok_and(|answer| answer == "ping")
        })
    };
    assert!(answers(5432));
    assert!(!answers(5433));
    let mut open = connect(client, node(5432)).expect("connected");
    open.write_all(b"be").expect("sent");

    manifests(&net, &[(5432, "default/db:5432"), (5433, "default/db:5432")]);
    until("the new port", || answers(5433).then_some(())).expect("a port is added");
    assert!(answers(5432));
    manifests(&net, &[(5433, "default/db:5432")]);
    until("the old port is gone", || connect(client, node(5432)).is_err().then_some(())).expect("a port is removed");
    assert!(answers(5433));
    // Ports of the process itself are reported, and keep their use.
    manifests(
        &net,
        &[(80, "default/db:5432"), (443, "default/db:5432"), (9110, "default/db:5432"), (5433, "default/db:5432")],
    );
    let told = |port: u16| {
        let row = format!("`{port}`: ");
        until("it is told", || {
            proxy.log().lines().any(|line| line.contains("WARN") && line.contains(&row)).then_some(())
        })
    };
    for port in [80, 443, 9110] {
        told(port).unwrap_or_else(|_| panic!("{port} in\n{}", proxy.log_tail(20)));
    }
    assert!(answers(5433));

    open.write_all(b"fore").expect("a stream outlives its port");
    assert_eq!(finish(open).expect("an answer"), "before");
    load.pass(100).expect("HTTP is served");
    let report = load.stop().expect("load ends");
    assert_eq!(report.failed, 0, "{:?}", report.reasons);
    let counts = net.settled();
    assert_eq!(counts.received(), counts.total(Total::Accepted));
}

#[test]
fn ports_are_bound_without_steering() {
    let path = DataPath::Bind { http: 80, https: 443 };
    let Some((net, mut proxy)) = serving_over("bound", Some(path), &[(25, "default/db:5432::PROXY")]) else { return };
    let client = &net.topology.client;
    let exchange = |family, port: u16| -> anyhow::Result<(u16, String)> {
        let mut stream = connect(client, (node_addr(family), port).into())?;
        stream.write_all(b"ping")?;
        let local = stream.local_addr()?.port();
        Ok((local, finish(stream)?))
    };
    let answers = |port| exchange(Family::V4, port).is_ok_and(|(_, answer)| answer.ends_with("ping")).then_some(());
    let are_open = |count: usize| {
        let metrics = net.admin("/metrics").ok()?;
        let line = format!("xdp_ingress_tcp_ports{{state=\"open\"}} {count}");
        String::from_utf8_lossy(&metrics.text).lines().any(|known| known == line).then_some(())
    };
    // The main thread opens the port after it has dropped the privileges that it does not need.
    until("the port is open", || are_open(1)).unwrap_or_else(|_| panic!("{}", proxy.log_tail(20)));
    for (family, address, version) in
        [(Family::V4, IpAddr::from(CLIENT_V4), "TCP4"), (Family::V6, CLIENT_V6.into(), "TCP6")]
    {
        let (from, answer) = exchange(family, 25).expect("an answer");
        assert_eq!(answer, format!("PROXY {version} {address} {} {from} 25\r\nping", node_addr(family)));
    }
    let mut open = connect(client, (node_addr(Family::V4), 25).into()).expect("connected");
    open.write_all(b"be").expect("sent");

    manifests(&net, &[(25, "default/db:5432::PROXY"), (5432, "default/db:5432")]);
    until("the new port", || answers(5432)).expect("a port is added");
    answers(25).expect("the other is there");
    manifests(&net, &[(5432, "default/db:5432")]);
    let is_refused = |port: u16| connect(client, (node_addr(Family::V4), port).into()).is_err().then_some(());
    until("the old port is gone", || is_refused(25)).expect("a port is removed");
    until("that is told", || are_open(1)).expect("one is left");
    answers(5432).expect("the other is there");
    let (answer, _) = net.ask(client, http(Family::V4), &Ask::get("web.test", "/"));
    assert!(answer.status.is_success(), "HTTP is served");

    open.write_all(b"fore").expect("a stream outlives its port");
    assert!(finish(open).expect("an answer").ends_with("\r\nbefore"));
    proxy.terminate(Duration::from_secs(10)).expect("it ends");
    is_refused(5432).expect("the port is closed");
}
