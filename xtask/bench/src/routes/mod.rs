//! `cargo xtask bench routes`: the time of one change among many hosts until every new request sees it, the memory for
//! it, and failures of other requests. The product reads Kubernetes objects; its peers read their own configuration.

mod report;
mod served;

use anyhow::{Context as _, ensure};

use self::{
    report::{Results, Taken},
    served::Background,
};
use super::{
    hosts::{CERTIFICATES, Change, Plan, Serving, Stage, Tls, Way},
    machine, network,
    record::Part,
    subject::Subject,
};
use ingress_lab::descriptors;

const AFTER_HELP: &str = "\
A change is timed from when a peer is told of it (a signal, a command, an event, the renaming of a file) to the end of
the first of twenty answers in a row, each on a connection of its own, that have it. Peers have one worker, on CPU 1,
with all else on CPU 0, and take turns within a round; the peak of memory is that of further changes, which are not
timed. The product is told by an API server, as where it is installed, and as another peer, in rounds of its own, by a
directory with a file for each host; in these rounds, it can read HTTPRoutes, too. As root the run has a network namespace of its own.

Exit codes: 0 measured; 1 something failed, or a request to the product did; 2 the command line was not understood. A
missed goal is printed, and is no failure.

Examples:
  cargo xtask bench routes                           # 1,000, 10,000 and 100,000 hosts
  cargo xtask bench routes --quick                   # 1,000 hosts, three rounds, for review
  cargo xtask bench routes --routes 100000 --slow    # nginx too, which reads them all for each change
  cargo xtask bench routes --peer xdp-ingress --rounds 50
  cargo xtask bench routes --routes 3000 --rounds 200 --peer xdp-ingress-files,xdp-ingress-gateway-files
  cargo xtask bench routes --pgo --record            # and write docs/benchmarks.md";

/// The part of a document that `--record` writes.
pub(super) const PART: Part = Part { path: "docs/benchmarks.md", command: "cargo xtask bench routes --record" };

/// Measure how long one change takes among many hosts, beside nginx and haproxy
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// Number of hosts, each with its own Ingress, Service and EndpointSlice.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000", value_parser = hosts)]
    routes: Vec<usize>,
    /// Peers.
    #[arg(
        long = "peer",
        value_enum,
        value_delimiter = ',',
        default_value = "nginx,haproxy,haproxy-map,xdp-ingress,xdp-ingress-files"
    )]
    peers: Vec<Way>,
    /// Rounds; the medians of fewer than five say little.
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=999))]
    rounds: u32,
    /// Also measure nginx with more than 10,000 hosts.
    #[arg(long)]
    slow: bool,
    /// Use 1,000 hosts and three rounds.
    #[arg(long)]
    quick: bool,
    /// Write the tables to docs/benchmarks.md.
    #[arg(long, conflicts_with_all = ["quick", "routes", "peers"])]
    record: bool,
    #[command(flatten)]
    subject: Subject,
}

/// Number of hosts from which nginx is left out by default.
const SLOW: usize = 10_001;
/// Maximum number of descriptors of pods, peers and clients.
const DESCRIPTORS: u64 = 20_000;

/// Parses a number of hosts that is large enough for four certificates and for hosts to change.
fn hosts(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(count) if (100..=1_000_000).contains(&count) => Ok(count),
        Ok(count) => Err(format!("`{count}` is not from 100 to 1000000")),
        Err(error) => Err(format!("`{text}` is no number: {error}")),
    }
}

/// Measures, and prints Markdown.
///
/// # Errors
/// Fails if a required program is unavailable, a peer does not start, or a request to the product fails.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { routes, peers, rounds, slow, quick, record, subject } = args;
    let (routes, rounds) = if *quick { (&[1000][..], 3) } else { (routes.as_slice(), *rounds) };
    xtask_setup::packages(&["nginx", "haproxy", "iproute2", "util-linux"], "bench routes")?;
    let binary = subject.program()?;
    network::own()?;
    descriptors::raise(DESCRIPTORS)?;
    let mut results = Results::default();
    let conditions = machine::conditions(&binary)?;
    let stage = Stage::open(binary)?;
    for count in routes {
        let is_measured = |way: &Way| *way != Way::Nginx || *slow || *count < SLOW;
        // The product scans a directory every two seconds, so peers in the same rounds would wait for it.
        let (files, others): (Vec<Way>, Vec<Way>) =
            peers.iter().copied().filter(is_measured).partition(|way| way.reads_manifests());
        for ways in [others, files] {
            if !ways.is_empty() {
                // Results that took minutes are printed before an error ends the run.
                measure(&stage, *count, &ways, rounds, &mut results).inspect_err(|_| println!("{results}"))?;
            }
        }
    }
    let text = format!("{conditions}; {rounds} rounds, medians.{}\n\n{results}", subject.remark());
    println!("{text}");
    if *record {
        PART.write(&text)?;
    }
    let failures = results.own_failures();
    ensure!(failures == 0, "{failures} requests to the product failed while something changed");
    Ok(())
}

/// Measures peers with this number of hosts; all run until the last round is over.
fn measure(stage: &Stage, count: usize, ways: &[Way], rounds: u32, results: &mut Results) -> anyhow::Result<()> {
    let plan = Plan { hosts: count, tls: Tls::OneInTen };
    let mut peers = Vec::new();
    for way in ways {
        let peer = stage.start(*way, plan)?;
        eprintln!("{way} serves {count} hosts");
        peers.push((peer, 0));
    }
    for (peer, steady) in &mut peers {
        *steady = peer.settled()?;
    }
    for round in 0..rounds {
        for turn in 0..peers.len() {
            let index = (turn + round as usize) % peers.len();
            one_round(&mut peers[index].0, count, round, results)?;
        }
        eprintln!("{count} hosts: round {} of {rounds} done", round + 1);
    }
    for (mut peer, steady) in peers {
        let further = changes(peer.way(), count, rounds);
        let peak = served::peak(&mut peer, &further)?.max(steady);
        results.take(count, peer.way(), Taken { start: peer.start(), steady, peak });
    }
    Ok(())
}

fn one_round(peer: &mut Serving<'_>, count: usize, round: u32, results: &mut Results) -> anyhow::Result<()> {
    let background = Background::start(&peer.server()?)?;
    for (kind, number) in changes(peer.way(), count, round) {
        let served = served::change(peer, kind, number);
        let served = served.with_context(|| format!("{}, {count} hosts: {kind}", peer.way()))?;
        results.add(count, kind, peer.way(), round, served);
    }
    results.fail(count, peer.way(), background.stop()?);
    Ok(())
}

/// Returns the changes of a round, each with its host or certificate. The first host is never changed, because the
/// background requests it, except for its certificate.
fn changes(way: Way, count: usize, round: u32) -> Vec<(Change, usize)> {
    let round = round as usize;
    let number = |kind: &Change| match kind {
        Change::Endpoint => 1 + (count / 2 + round * 7919) % (count - 1),
        Change::Added | Change::Removed => count + round,
        Change::Certificate => round % CERTIFICATES,
    };
    way.changes().iter().map(|kind| (*kind, number(kind))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_target_existing_hosts_except_the_first() {
        for round in 0..300 {
            for (kind, number) in changes(Way::XdpIngress, 100, round) {
                match kind {
                    Change::Endpoint => assert!((1..100).contains(&number), "{number}"),
                    Change::Added | Change::Removed => assert!(number >= 100, "{number}"),
                    Change::Certificate => assert!(number < CERTIFICATES, "{number}"),
                }
            }
        }
        assert_eq!(changes(Way::Nginx, 100, 0), [(Change::Endpoint, 51)]);
    }

    #[test]
    fn host_counts_are_limited() {
        assert_eq!(hosts("100"), Ok(100));
        for bad in ["99", "1000001", "many", "-1"] {
            assert!(hosts(bad).is_err(), "{bad}");
        }
    }
}
