//! `cargo xtask bench kernel`: the target figures of the kernel part, each beside its target. Alternatives are measured
//! in the same run and the same rounds.
//!
//! ```text
//! node (a way to serve each) ── short connections, cpu ──┐
//! elsewhere (tests and benches that guard the others) ───┼── figure: rows, verdicts
//! costs (tests/kernel: TEST_RUN, live frames, nft) ──┬───┘
//!                                                    ├── docs/kernel-figures.md
//! node ── balance: how two workers share ────────────┘
//! node ── flood: service to legitimate clients, a separate run
//!      ── syn_cost: CPU for a SYN of a flood, transfers: rate of connections from cookies, a separate run
//! ```

mod balance;
mod costs;
mod cpu;
mod elsewhere;
mod figure;
mod flood;
mod node;
mod syn_cost;
mod transfers;

use std::{path::Path, time::Duration};

use anyhow::ensure;

use self::{
    costs::Costs,
    cpu::Cpu,
    figure::{Clause, Row, Spread, Verdict},
    node::{Node, Way},
};
use super::{goal::Limit, machine, record::Part, subject::Subject};
use ingress_lab::capability;

const AFTER_HELP: &str = "\
CPU time is that of the load, the proxy and ksoftirqd together. Drops are timed by the kernel, on live frames
(BPF_PROG_TEST_RUN), without a sender. Everything happens in namespaces that go with the run. Needs root.

Balance is that of two workers, where XDP chooses one for each connection and where the kernel does, for ports that
workers share (SO_REUSEPORT): how 120 connections that last are spread, whose packets come by one CPU or by every CPU,
and how soon they are answered when all ask at once. By XDP's choice no worker is to hold more than 125 % of the mean, and three.

A flood comes from denied networks, from few addresses (each far over its limit), or from many (each sends once) by
IPv4, by IPv6, or beside 100 clients without pause. In its way are the deny list and limits of clients in XDP, the list
alone, SYN cookies of XDP, or nft. The list and the limits have to leave clients 90 % of their goodput, and may double
their 99th percentile. SYN cookies are compared to a program that only counts.

Exit codes: 0 every figure that was measured is reached; 1 one is not, or something failed; 2 the command line was not
understood.

Examples:
  cargo xtask bench kernel                # figures 1 to 3, 11 and balance measured, the others cited; about six minutes
  cargo xtask bench kernel --all          # all of them
  cargo xtask bench kernel --pgo --record # and write docs/kernel-figures.md
  cargo xtask bench kernel --flood --rounds 4           # what floods leave for clients; about twenty minutes
  cargo xtask bench kernel --flood --senders many --clients https
  cargo xtask bench kernel --syn-cost                   # CPU for a SYN, by XDP, the stack and nft; about six minutes
  cargo xtask bench kernel --transfers --rounds 30      # only the rate of connections from SYN cookies; about six minutes";

/// The part of a document that `--record` writes.
pub(super) const PART: Part = Part { path: "docs/kernel-figures.md", command: "cargo xtask bench kernel --record" };

/// Measure the costs of the kernel part, beside plain bind and nft
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// Rounds of measurements on links; the best of fewer than eight says little.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Length of one measurement in seconds.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Measure instead the goodput and the 99th percentile of clients during floods of SYNs.
    #[arg(long, conflicts_with_all = ["all", "record"], group = "flooding")]
    flood: bool,
    /// Measure instead the CPU for each SYN of a flood, by XDP, by the stack and by nft, and the rate of connections from
    /// SYN cookies.
    #[arg(long, conflicts_with_all = ["all", "record"], group = "flooding")]
    syn_cost: bool,
    /// Measure instead only the rate of connections from SYN cookies, beside usual ones.
    #[arg(long, conflicts_with_all = ["all", "record", "flood", "syn_cost"])]
    transfers: bool,
    /// Congestion control of nodes and clients for transfers, such as reno; by default that of this machine.
    #[arg(long, value_name = "NAME", requires = "transfers")]
    congestion_control: Option<String>,
    #[command(flatten)]
    options: flood::Options,
    /// Also run the tests and the bench that guard the other figures.
    #[arg(long)]
    all: bool,
    /// Write instructions and nanoseconds of each program, and balance, to docs/kernel-figures.md.
    #[arg(long)]
    record: bool,
    #[command(flatten)]
    subject: Subject,
}

/// Measures, and prints Markdown.
///
/// # Errors
/// Fails if the machine lacks a requirement, or a figure is missed.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let missing = capability::missing();
    ensure!(missing.is_empty(), "`cargo xtask bench kernel` needs what this machine lacks: {}", missing.join("; "));
    xtask_setup::packages(&["ethtool", "iproute2", "nftables", "util-linux", "wrk"], "bench kernel")?;
    let binary = args.subject.program()?;
    let pin = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    if args.flood {
        return flood::run(&args.options, args.rounds, args.seconds, &binary, pin);
    }
    if args.transfers {
        return transfers::run(args.rounds, args.congestion_control.as_deref(), &binary);
    }
    if args.syn_cost {
        syn_cost::run(args.options.rate, args.rounds, args.seconds, &binary)?;
        return transfers::run(args.rounds, None, &binary);
    }
    let costs = Costs::take()?;
    let balance = balance::measure(args.rounds, &binary)?;
    if args.record {
        let (kernel, costs) = (machine::kernel_version()?, costs.table());
        let balance = format!("**Balance between workers**{}\n\n{balance}", args.subject.remark());
        PART.write(&format!("Linux {kernel}\n\n**Each program**\n\n{costs}\n{balance}"))?;
    }
    let mut rows = vec![short_connections(args, &binary, pin)?, drops(&costs)?, full_path(&costs)?];
    rows.extend(elsewhere::rows(args.all)?);
    rows.push(pool(&costs)?);
    println!("\n| # | figure | target | measured | verdict |\n|---|---|---|---|---|");
    for row in &rows {
        println!("{row}");
    }
    let (rounds, seconds) = (args.rounds, args.seconds);
    println!(
        "\nThe best of all rounds is judged: {rounds} of {seconds} s for figure 1, 8 of 200,000 packets for 2 and 3, 40 of 50,000 for 11.\n\n\
         {balance}"
    );
    let failed = rows.iter().filter(|row| row.verdict == Verdict::Missed);
    let mut failed: Vec<String> = failed.map(|row| row.number.to_string()).collect();
    if balance.is_missed() {
        failed.push("balance".to_owned());
    }
    ensure!(failed.is_empty(), "figures that are not reached: {}", failed.join(", "));
    Ok(())
}

/// Measures figure 1.
fn short_connections(args: &Args, binary: &Path, pin: bool) -> anyhow::Result<Row> {
    let ways = [Way::Steered, Way::Bound, Way::Redirected];
    let nodes = ways.into_iter().map(|way| Node::start(way, binary, 1, pin)).collect::<anyhow::Result<Vec<_>>>()?;
    let (cpu, length) = (Cpu::new(), Duration::from_secs(args.seconds));
    for node in &nodes {
        // Warm-up, not counted: caches, pools and neighbours are cold.
        node.short_connection(&cpu, Duration::from_secs(1), pin)?;
    }
    let mut costs = vec![Vec::new(); nodes.len()];
    for round in 0..args.rounds as usize {
        for turn in 0..nodes.len() {
            let index = (turn + round) % nodes.len();
            costs[index].push(nodes[index].short_connection(&cpu, length, pin)?);
        }
        eprintln!("round {} of {} done", round + 1, args.rounds);
    }
    let spreads: Vec<Spread> = costs.iter().map(|costs| Spread::of(costs)).collect();
    let steered_over = |way: usize| spreads[0].over(spreads[way]);
    let own = format!("CPU per short connection ({:.1} µs)", spreads[0].best);
    Ok(Row::judged(
        1,
        &own,
        &[
            Clause { limit: Limit::AtMost(1.1), of: "× plain bind".into(), found: steered_over(1) },
            Clause { limit: Limit::Below(1.0), of: "× nft REDIRECT".into(), found: steered_over(2) },
        ],
    ))
}

/// Measures figure 2.
fn drops(costs: &Costs) -> anyhow::Result<Row> {
    let xdp = costs.get("drop, XDP")?;
    let over_xdp = |name| costs.get(name).map(|other| other.over(xdp));
    let own = format!("ns to drop a packet of 10,000 networks by XDP ({})", xdp.best);
    Ok(Row::judged(
        2,
        &own,
        &[
            Clause {
                limit: Limit::AtLeast(4.0),
                of: "times that by nft netdev ingress".into(),
                found: over_xdp("drop, nft netdev ingress")?,
            },
            Clause {
                limit: Limit::AtLeast(6.0),
                of: "times that by nft input and conntrack".into(),
                found: over_xdp("drop, nft input and conntrack")?,
            },
        ],
    ))
}

/// Measures figure 3. A SYN is the most expensive packet, because it takes from two buckets and chooses a worker; here
/// with denied networks.
///
/// The design has 225 ns, of which an empty program takes 27. The cost of the kernel's own loop differs by kernel and
/// is not part of the program: the program may take the 198 ns between the two.
fn full_path(costs: &Costs) -> anyhow::Result<Row> {
    let bare = costs.get("full path, bare pass")?;
    let limit = Limit::AtMost(bare.best + 198.0);
    let clause = |family: &str| -> anyhow::Result<Clause> {
        let found = costs.get(&format!("full path, {family} SYN"))?;
        Ok(Clause { limit, of: format!("ns, {family}"), found })
    };
    let own = format!("full path, 198 ns more than `return XDP_PASS` (here {})", bare.best);
    Ok(Row::judged(3, &own, &[clause("v4")?, clause("v6")?]))
}

/// Measures figure 11. An answer is no question, so each run gets a new frame, and the clock is part of both times.
fn pool(costs: &Costs) -> anyhow::Result<Row> {
    const WITHOUT: &str = ", without a pool";
    let (answered, bare) = (costs.get("announce, ARP answered, single")?, costs.get("announce, bare pass, single")?);
    let answer = Spread { best: answered.best - bare.best, median: answered.median - bare.median };
    let clause = |limit, of: &str, found| Clause { limit: Limit::AtMost(limit), of: of.to_owned(), found };
    Ok(Row::judged(
        11,
        "addresses without a load balancer: the answer to ARP, and the most that another packet costs more",
        &[
            clause(250.0, "ns to answer", answer),
            clause(2.0, "ns more while announcing", costs.more(", announcing", WITHOUT)?),
            clause(2.0, "ns more while forwarding", costs.more(", forwarding", WITHOUT)?),
        ],
    ))
}
