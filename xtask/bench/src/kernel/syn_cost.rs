//! CPU time that a node spends on a SYN with a forged sender: to answer it by a cookie of XDP, by one of the stack, or by
//! nft's `synproxy`. The latter two are below a program that only counts: on a veth, a packet for XDP is copied first,
//! and one without XDP needs no memory of the receiver. On a network card it needs some in any case.
//!
//! The link polls in a thread of its own. The time of that thread is therefore all that the node spends on the packets:
//! neither the sender's nor the router's. It yields to the sender on the same CPU, so that it receives bursts. Otherwise
//! it would sleep after each packet, and that costs ten times what a packet does.

use std::{collections::BTreeSet, fs, path::Path, process::Command, thread, time::Duration};

use anyhow::{Context as _, ensure};

use super::{
    figure::{Clause, Row, Spread},
    flood::{Aim, Flood, Senders},
    node::{Node, Way},
};
use crate::{
    goal::Limit,
    usage::{self, CpuTime},
};
use ingress_common::Total;
use ingress_lab::{
    Namespace,
    topology::{NODE_NIC, ROUTER_NIC},
};
use xtask_tools::process;

/// Ways to treat SYNs, with the base that is subtracted first: a program that counts and drops each one.
const WAYS: [(Way, Senders); 5] = [
    (Way::Denying, Senders::OneDenied),
    (Way::Answering, Senders::Many),
    (Way::StackAnswers, Senders::Many),
    (Way::Proxied, Senders::Many),
    (Way::Bound, Senders::Many),
];
/// Packets per second without `--rate`.
const RATE: u32 = 20_000;
/// Share of the received SYNs that a node has to answer. Answers that do not fit into the ring of the router are lost.
const ANSWERED: f64 = 0.9;

/// Longest time for which packets are under way.
const UNDER_WAY: Duration = Duration::from_millis(200);

/// A node, and the thread that receives its packets.
struct Polled {
    node: Node,
    receiver: u32,
}

/// Takes turns through all ways, and prints the table.
///
/// # Errors
/// Fails if SYNs were lost or not answered, or XDP takes a larger share of the others' time than it may.
pub(super) fn run(rate: Option<u32>, rounds: u32, seconds: u64, binary: &Path) -> anyhow::Result<()> {
    ensure!(thread::available_parallelism()?.get() > 1, "the cost of SYNs needs a second CPU for the receiver");
    let rate = rate.unwrap_or(RATE);
    let nodes = WAYS.iter().map(|&(way, _)| Polled::start(way, binary)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut costs = [const { Vec::new() }; WAYS.len()];
    for round in 0..rounds as usize {
        for turn in 0..nodes.len() {
            let index = (turn + round) % nodes.len();
            costs[index].push(nodes[index].cost(WAYS[index], rate, Duration::from_secs(seconds))?);
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    let [dropped, answered, stack, proxied, without_xdp] = costs.each_ref().map(|costs| Spread::of(costs));
    println!(
        "\n| SYN with a forged sender | ns, best | median | ns more than a drop, best | median |\n|---|---:|---:|---:|---:|"
    );
    for (name, cost) in [
        ("counted and dropped by XDP", dropped),
        ("answered by XDP", answered),
        ("counted by XDP, answered by the stack", stack),
        ("counted by XDP, answered by nft `synproxy`", proxied),
        ("answered by the stack, without XDP", without_xdp),
    ] {
        let Spread { best, median } = cost;
        println!("| {name} | {best:.0} | {median:.0} | {:.0} | {:.0} |", best - dropped.best, median - dropped.median);
    }
    let above = |cost: Spread| Spread { best: cost.best - dropped.best, median: cost.median - dropped.median };
    let clause = |limit, of: &str, other| Clause {
        limit: Limit::AtMost(limit),
        of: format!("× {of}"),
        found: above(answered).over(above(other)),
    };
    let row = Row::judged_by_median(
        12,
        "CPU for a SYN that XDP answers, less a program that counts and drops",
        &[clause(0.25, "the stack's own cookies", stack), clause(0.2, "nft `synproxy`", proxied)],
    );
    println!("\n| # | figure | target | measured | verdict |\n|---|---|---|---|---|\n{row}");
    println!(
        "\n{rounds} rounds of {seconds} s with {rate} SYNs per second, in bursts. The median is judged: a round in which the receiver waits for the CPU misses packets."
    );
    ensure!(row.verdict != super::Verdict::Missed, "figures that are not reached: 12");
    Ok(())
}

// === impl Polled ===

impl Polled {
    fn start(way: Way, binary: &Path) -> anyhow::Result<Self> {
        let mut node = Node::start(way, binary, 1, true)?;
        node.poll(binary)?;
        poll_in_thread(&node.topology.router, ROUTER_NIC, 0)?;
        let receiver = poll_in_thread(&node.topology.node, NODE_NIC, 1)?;
        process::capture(Command::new("chrt").args(["--idle", "--pid", "0", &receiver.to_string()]))?;
        Ok(Self { node, receiver })
    }

    /// Returns the nanoseconds of the receiver for each SYN that it received.
    fn cost(&self, (way, senders): (Way, Senders), rate: u32, length: Duration) -> anyhow::Result<f64> {
        let used = || CpuTime::of([self.receiver]).map(|time| time.all);
        let router = &self.node.topology.router;
        let aim = Aim { port: 80, rate: Some(rate), cpu: Some(1) };
        // Not counted: XDP answers from the first quarter second of a flood on.
        let warm_up = Flood::start(router, senders, aim)?;
        thread::sleep(Duration::from_secs(1));
        warm_up.finish()?;
        thread::sleep(UNDER_WAY);
        // Of SYNs that do not fit into the ring of the link, the node knows nothing.
        let counts = || anyhow::Ok([received(&self.node.topology.node, NODE_NIC)?, received(router, ROUTER_NIC)?]);
        let (before, first) = (used()?, counts()?);
        let by_xdp = self.answered_by_xdp(way)?;
        let flood = Flood::start(router, senders, aim)?;
        thread::sleep(length);
        flood.finish()?;
        thread::sleep(UNDER_WAY);
        let (used, last) = (used()? - before, counts()?);
        let [polled, answered] = [0, 1].map(|which| (last[which] - first[which]) as f64);
        let by_xdp = self.answered_by_xdp(way)? - by_xdp;
        let share = if way == Way::Answering { by_xdp } else { answered } / polled;
        let is_expected = if way == Way::Denying { share < 0.01 } else { share >= ANSWERED };
        ensure!(is_expected, "{way:?} answered {share:.3} of {polled} SYNs; try a lower `--rate`");
        Ok(used * 1e9 / polled)
    }

    /// Returns the number of SYNs that XDP has answered.
    fn answered_by_xdp(&self, way: Way) -> anyhow::Result<f64> {
        if !way.has_cookies() {
            return Ok(0.0);
        }
        Ok(self.node.maps()?.read()?.total(Total::SynCookieSent).packets as f64)
    }
}

/// Lets an interface poll in a thread of its own (`Documentation/networking/napi.rst`) on this CPU; returns its ID.
fn poll_in_thread(namespace: &Namespace, interface: &str, cpu: usize) -> anyhow::Result<u32> {
    let before = pollers(interface);
    let file = format!("echo 1 > /sys/class/net/{interface}/threaded");
    process::capture(Command::new("ip").args(["netns", "exec", namespace.name(), "sh", "-c", &file]))?;
    let new: Vec<u32> = pollers(interface).difference(&before).copied().collect();
    for poller in &new {
        let (cpu, poller) = (cpu.to_string(), poller.to_string());
        process::capture(Command::new("taskset").args(["--pid", "--cpu-list", &cpu, &poller]))?;
    }
    match new[..] {
        [poller] => Ok(poller),
        _ => anyhow::bail!("`{interface}` polls in {} threads, and one is expected", new.len()),
    }
}

/// Returns the kernel's threads that poll interfaces with this name.
fn pollers(interface: &str) -> BTreeSet<u32> {
    let name = format!("napi/{interface}-");
    let is_poller =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(&name));
    usage::tree(usage::KTHREADD).into_iter().filter(is_poller).collect()
}

/// Returns the packets that an interface has received.
fn received(namespace: &Namespace, interface: &str) -> anyhow::Result<u64> {
    let table = namespace.run(|| fs::read_to_string("/proc/thread-self/net/dev").context("cannot read `net/dev`"))?;
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    packets.with_context(|| format!("`net/dev` has no packets of `{interface}`"))
}
