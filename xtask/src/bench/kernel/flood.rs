//! A flood of SYNs from denied networks, and what is left for a client that means well.

use std::{
    net::{SocketAddr, SocketAddrV4},
    os::fd::AsRawFd as _,
    path::Path,
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
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket},
};

use super::{
    Args,
    node::{Node, POD_HOST, SERVED, Way},
};
use crate::{
    bench::report::median,
    lab::{
        Namespace,
        client::Ask,
        denied,
        load::{Connections, Load},
        packet,
    },
};

/// Clients that mean well, each with a new connection for each request.
const CLIENTS: usize = 16;

/// Who is flooded, with what the table calls it.
const WAYS: [(Way, &str); 3] =
    [(Way::Denying, "deny list in XDP"), (Way::Steered, "nobody"), (Way::Filtered, "plain bind, nft netdev ingress")];

/// A running flood.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

/// What a client had within one measurement.
struct Service {
    /// Answers per second.
    goodput: f64,
    /// Milliseconds that one request in a hundred took longer than, with its connection.
    p99: f64,
    /// Requests without an answer, per second.
    failed: f64,
    /// Packets of the flood per second.
    flood: f64,
}

/// Takes turns through all ways, quiet and flooded, and prints the table.
///
/// # Errors
/// If a node does not start.
pub(super) fn run(args: &Args, binary: &Path, pin: bool) -> anyhow::Result<()> {
    let nodes = WAYS.iter().map(|(way, _)| Node::start(*way, binary, pin)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut found: Vec<[Vec<Service>; 2]> = WAYS.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    let length = Duration::from_secs(args.seconds);
    for round in 0..args.rounds as usize {
        for turn in 0..nodes.len() {
            let index = (turn + round) % nodes.len();
            for (flooded, found) in [false, true].into_iter().zip(&mut found[index]) {
                found.push(measure(&nodes[index], length, flooded)?);
            }
        }
        eprintln!("round {} of {} done", round + 1, args.rounds);
    }
    println!("| denied by | quiet, req/s | p99, ms | flooded, req/s | p99, ms | failed/s | flood, packets/s |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for ((_, name), [quiet, flooded]) in WAYS.iter().zip(&found) {
        let middle = |services: &[Service], of: fn(&Service) -> f64| median(services.iter().map(of));
        println!(
            "| {name} | {:.0} | {:.1} | {:.0} | {:.1} | {:.1} | {:.0} |",
            middle(quiet, |service| service.goodput),
            middle(quiet, |service| service.p99),
            middle(flooded, |service| service.goodput),
            middle(flooded, |service| service.p99),
            middle(flooded, |service| service.failed),
            middle(flooded, |service| service.flood),
        );
    }
    println!(
        "\nMedians of {} rounds. The flood comes from one thread, which on a link within one machine also receives what it\n\
         sends: the cheaper a drop, the more it can send.",
        args.rounds
    );
    Ok(())
}

fn measure(node: &Node, length: Duration, flooded: bool) -> anyhow::Result<Service> {
    let ask = Ask::get(POD_HOST, "/");
    let load = Load::start(&node.topology.client, SocketAddr::from(SERVED), ask, CLIENTS, Connections::New)?;
    let flood = flooded.then(|| Flood::start(&node.topology.router)).transpose()?;
    let (began, before) = (Instant::now(), [load.answered(), load.failed()]);
    thread::sleep(length);
    let (after, seconds) = ([load.answered(), load.failed()], began.elapsed().as_secs_f64());
    let sent = flood.map(Flood::finish).transpose()?.unwrap_or_default();
    let mut times = load.stop()?.times;
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).context("nothing was answered")?.as_secs_f64() * 1e3;
    let per_second = |count: u64| count as f64 / seconds;
    let [goodput, failed] = [0, 1].map(|which| per_second(after[which] - before[which]));
    Ok(Service { goodput, p99, failed, flood: per_second(sent) })
}

// === impl Flood ===

impl Flood {
    /// Sends as fast as a thread of this namespace can.
    fn start(namespace: &Namespace) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let thread = namespace.thread("flood", move || send(&theirs))?;
        Ok(Self { stop, thread })
    }

    /// Ends it; how many packets were sent.
    fn finish(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn send(stop: &AtomicBool) -> anyhow::Result<u64> {
    let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)
        .context("cannot open a raw socket")?;
    let (to, mut sent) = (SERVED.0, 0);
    let [a, b, c, d] = to.octets();
    let address = SockaddrIn::new(a, b, c, d, 0);
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let port = 1024 + (number / denied::COUNT % 60_000) as u16;
        let syn = packet::syn(SocketAddrV4::new(denied::address(number), port), to);
        match sendto(socket.as_raw_fd(), &syn, &address, MsgFlags::empty()) {
            Ok(_) => sent += 1,
            // What the link has no room for is lost, as on any other.
            Err(Errno::ENOBUFS) => {}
            Err(error) => return Err(error).context("cannot send to the node"),
        }
    }
    Ok(sent)
}
