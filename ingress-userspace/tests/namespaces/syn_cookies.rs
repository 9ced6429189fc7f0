//! SYN cookies of XDP: within a flood of SYNs from spoofed senders, clients are served and counted, also while the
//! processes of the node change.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6},
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ingress_common::Total;
use ingress_lab::{
    Process,
    client::{Ask, Connection, Protocol, Trust, block_on},
    controller::{DataPath, Options},
    load::{Connections, Load},
    packet,
    topology::{Family, NODE_V4, NODE_V6, ROUTER_NIC},
    until, until_within,
};
use nix::sys::{
    signal::Signal,
    socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto, socket},
};

use crate::{
    generation::Generation,
    net::{Net, http, stop_all},
};

const ON: [&str; 2] = ["--syn-cookies=on", "--syn-cookies-threshold=1000"];
/// Longest wait for a process to become ready.
const START: Duration = Duration::from_secs(120);
/// Bytes of a body in each direction.
const BODY: u64 = 10_000_000;

/// A flood of both families from the router, until the value is dropped.
struct Flood {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Flood {
    fn start(net: &Net) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&is_over);
        let thread = net.topology.router.thread("flood", move || send(&theirs)).expect("a thread");
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(Ok(sent)) = self.thread.take().map(JoinHandle::join) {
            sent.expect("the flood is sent");
        }
    }
}

/// Sends some four thousand SYNs per second, which leaves CPU to others. No sender answers.
fn send(is_over: &AtomicBool) -> anyhow::Result<()> {
    const AT_ONCE: u32 = 20;
    let raw = |family| -> anyhow::Result<OwnedFd> {
        Ok(socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?)
    };
    let (v4, v6) = (raw(AddressFamily::Inet)?, raw(AddressFamily::Inet6)?);
    let [a, b, c, d] = NODE_V4.octets();
    let to4 = SockaddrIn::new(a, b, c, d, 0);
    let to6 = SockaddrIn6::from(SocketAddrV6::new(NODE_V6, 0, 0, 0));
    let mut number = 0_u32;
    while !is_over.load(Relaxed) {
        for _ in 0..AT_ONCE {
            number = number.wrapping_add(1);
            let index = number % (1 << 20);
            let port = 1024 + u16::try_from(number % 60_000)?;
            let from4 = SocketAddrV4::new(Ipv4Addr::from(0x0a40_0000 + index), port);
            let from6 = Ipv6Addr::from(0x2001_0db8_00ff_0000_0000_0000_0000_0000 + u128::from(index));
            let from6 = SocketAddrV6::new(from6, port, 0, 0);
            // A packet that does not fit on the link is lost.
            let _lost =
                sendto(v4.as_raw_fd(), &packet::syn(from4, SocketAddrV4::new(NODE_V4, 80)), &to4, MsgFlags::empty())
                    .is_err();
            let syn6 = packet::syn6(from6, SocketAddrV6::new(NODE_V6, 80, 0, 0));
            let _lost = sendto(v6.as_raw_fd(), &syn6, &to6, MsgFlags::empty()).is_err();
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn packets(net: &Net, total: Total) -> u64 {
    net.maps().read().expect("maps").total(total).packets
}

/// Attaches a program to the router's end of the link: a veth delivers what XDP sends only to an end with a program.
fn count_at_router(net: &Net) -> Process {
    let bpffs = net.bpffs.with_file_name("router");
    let path = DataPath::Count { interface: ROUTER_NIC.into(), bpffs };
    let binary = Path::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    let options =
        Options { path, name: "router".into(), ..Options::kernel(binary, &net.manifests, ROUTER_NIC, &net.bpffs) };
    let mut process = net.lab.spawn(&net.topology.router, "router", options.command()).expect("it starts");
    process.wait_for_log("kernel part open", 1).expect("its program is attached");
    process
}

fn exchange(net: &Net, family: Family) {
    let work = async move {
        let mut connection = Connection::open(http(family), Protocol::Http1, "web.test", &Trust::none()).await?;
        let received = connection.start(&Ask::get("web.test", &format!("/bytes/{BODY}"))).await?.rest().await?;
        anyhow::ensure!(received == BODY, "{received} bytes");
        let answer = connection.send(&Ask::upload("web.test", "/", BODY)).await?;
        anyhow::ensure!(answer.status.is_success(), "{}", answer.status);
        Ok(())
    };
    net.topology.client.run(|| block_on(work)).unwrap_or_else(|error| panic!("{family:?}: {error:#}"));
}

#[test]
fn a_flood_of_spoofed_syns_fails_no_request_and_miscounts_none() {
    let Some(net) = Net::build("syn-cookies") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    for name in ["ipv4/tcp_syncookies", "ipv4/tcp_timestamps"] {
        net.topology.node.sysctl(name, "2").expect("a setting of the namespace");
    }
    net.topology.router.ip("route add blackhole 0.0.0.0/0\nroute add blackhole ::/0").expect("routes");
    let _router = count_at_router(&net);
    let mut old = Generation::start(&net, "old", &ON);
    until("the state", || old.process.log().contains("SYN cookies of XDP are ready").then_some(())).expect("ready");
    let flood = Flood::start(&net);
    until("the flood", || (packets(&net, Total::SynCookieSent) > 1000).then_some(())).expect("it is answered");
    until("the log", || old.process.log().contains("a flood of SYNs has begun").then_some(())).expect("it is logged");
    let metrics = String::from_utf8_lossy(&net.admin("/metrics").expect("an answer").text).into_owned();
    for line in ["xdp_ingress_syn_flood 1\n", "xdp_ingress_syn_cookies_ready{state=\"ready\"} 1\n"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let load = |family| {
        let load = Load::start(&net.topology.client, http(family), Ask::get("web.test", "/"), 2, Connections::New);
        (format!("{family:?}"), load.unwrap_or_else(|error| panic!("{family:?}: {error:#}")))
    };
    let loads: Vec<_> = [Family::V4, Family::V6].map(load).into();
    let pass =
        || loads.iter().for_each(|(name, load)| load.pass(50).unwrap_or_else(|error| panic!("{name}: {error:#}")));
    pass();
    [Family::V4, Family::V6].into_iter().for_each(|family| exchange(&net, family));
    for number in 0..2 {
        let mut new = Generation::spawn(&net, &format!("new-{number}"), &ON);
        // Within a flood, a busy machine verifies the programs slowly.
        until_within(START, "the successor", || new.probe("ready").ok()).expect("it becomes ready");
        until("the change of owner", || old.probe("ready").is_err().then_some(())).expect("it owns the node");
        pass();
        if number == 0 {
            // A roll-back: the process before takes the node again.
            new.process.signal(Signal::SIGTERM).expect("asked to end");
            until("the old one to be ready", || old.probe("ready").ok()).expect("it takes the node back");
            pass();
            assert!(new.ended().success());
        } else {
            old.process.signal(Signal::SIGTERM).expect("asked to end");
            pass();
            assert!(old.ended().success());
            std::mem::swap(&mut old, &mut new);
        }
        pass();
    }
    let valid = packets(&net, Total::SynCookieValid);
    let report = stop_all(loads);
    assert_eq!(report.failed, 0, "{:#?}", report.reasons);
    assert!(valid > 0, "clients are answered by cookies");
    drop(flood);
    let counts = net.settled();
    let success = counts.hosts["web.test"].l7.requests.success;
    // Each exchange is two requests.
    assert_eq!(success, report.answered + 4);
    assert_eq!(counts.received(), counts.total(Total::Accepted), "the hosts' packets add up");
}

#[test]
fn without_the_option_a_flood_is_left_to_the_stack() {
    let Some((net, controller)) = Net::serving("syn-cookies-off") else { return };
    let _flood = Flood::start(&net);
    until("the flood", || (packets(&net, Total::Decided) > 2000).then_some(())).expect("it passes");
    assert_eq!(packets(&net, Total::SynCookieSent), 0);
    let log = controller.process.log();
    assert!(log.contains("ingress_xdp") && !log.contains("ingress_xdp_cookies"), "{log}");
}
