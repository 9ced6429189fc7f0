//! `cargo xtask bench memory`: memory per idle connection, per route and per certificate, for each peer.

use std::fmt::Write as _;

use super::{
    hosts::{Plan, Stage, Tls, Way},
    machine, network,
    record::Part,
    subject::Subject,
};
use ingress_lab::{descriptors, idle, idle::Kind, memory};

const AFTER_HELP: &str = "\
Memory is the proportional share of all processes of a peer, without pages of files (Pss_Anon and Pss_Shmem): the share
of these changes with whoever else has the same libraries. Each figure is that of a peer which has just been started, so
that none has what another has freed. As root the run has a network namespace of its own.

Exit codes: 0 measured; 1 something failed; 2 the command line was not understood. A missed goal is printed, and is no
failure.

Examples:
  cargo xtask bench memory
  cargo xtask bench memory --quick              # a tenth of everything, for review
  cargo xtask bench memory --connections 5000
  cargo xtask bench memory --pgo --record       # and write docs/benchmarks.md";

/// The part of a document that `--record` writes.
pub(super) const PART: Part = Part { path: "docs/benchmarks.md", command: "cargo xtask bench memory --record" };

/// Measure the memory for connections, routes and certificates, beside nginx and haproxy
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// Connections of each kind.
    #[arg(long, default_value_t = 9000, value_parser = clap::value_parser!(u32).range(100..=9_500))]
    connections: u32,
    /// Hosts, each with a route.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    routes: u32,
    /// Certificates, each for one host.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    certificates: u32,
    /// Peers; the first is the reference of all ratios.
    #[arg(long = "peer", value_enum, value_delimiter = ',', default_value = "nginx,haproxy,xdp-ingress")]
    peers: Vec<Way>,
    /// Use a tenth of everything.
    #[arg(long)]
    quick: bool,
    /// Write the table to docs/benchmarks.md.
    #[arg(long, conflicts_with_all = ["quick", "peers", "connections", "routes", "certificates"])]
    record: bool,
    #[command(flatten)]
    subject: Subject,
}

/// Measured kinds of connections, each with the product's limit in bytes.
const CONNECTIONS: [(Kind, &str, Option<u64>); 4] = [
    (Kind::Plain, "idle connection", Some(1229)),
    (Kind::Tls, "idle connection, TLS", Some(10_752)),
    (Kind::Http2, "idle connection, HTTP/2 over TLS", None),
    (Kind::WebSocket, "WebSocket", None),
];

/// Number of routes in the baseline: as few as a comparison permits.
const FEW: usize = 10;

/// Bytes per object of one kind, for each peer.
#[derive(Debug, PartialEq)]
struct Row {
    what: String,
    goal: Option<u64>,
    each: Vec<(Way, u64)>,
}

/// Measures, and prints Markdown.
///
/// # Errors
/// Fails if a required program is unavailable, a peer does not start, or a connection fails.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { connections, routes, certificates, peers, quick, record, subject } = args;
    let part = if *quick { 10 } else { 1 };
    let [connections, routes, certificates] = [connections, routes, certificates].map(|count| (*count / part) as usize);
    xtask_setup::packages(&["nginx", "haproxy", "iproute2", "util-linux"], "bench memory")?;
    let binary = subject.program()?;
    network::own()?;
    // A WebSocket takes one descriptor of the client and one of the pod; the peer has its own limit.
    descriptors::raise(2 * connections as u64 + 2000)?;
    let conditions = machine::conditions(&binary)?;
    let stage = Stage::open(binary)?;
    let mut rows = Vec::new();
    for (kind, what, goal) in CONNECTIONS {
        rows.push(Row::of(&format!("{what} ({connections})"), goal, peers, |way| {
            let peer = stage.start(way, Plan { hosts: 1, tls: Tls::OneInTen })?;
            idle::weigh(kind, &peer.server()?, connections, || peer.memory())
        })?);
    }
    rows.push(Row::of(&format!("route ({routes})"), None, peers, |way| {
        let weight = |hosts| stage.start(way, Plan { hosts, tls: Tls::None })?.settled();
        memory::each(weight(FEW)?, weight(FEW + routes)?, routes)
    })?);
    // Read from manifests: the lab's API server uses a connection for each watched Secret, whereas that of a cluster
    // multiplexes 64 on each connection. haproxy has one certificate for all hosts here.
    let own = [Way::XdpIngressFiles];
    rows.push(Row::of(&format!("certificate ({certificates})"), None, &own, |way| {
        let weight = |tls| stage.start(way, Plan { hosts: certificates, tls })?.settled();
        memory::each(weight(Tls::None)?, weight(Tls::Each)?, certificates)
    })?);
    let text = format!("{conditions}.{}\n\n{}", subject.remark(), table(&rows));
    println!("{text}");
    if *record {
        PART.write(&text)?;
    }
    Ok(())
}

// === impl Row ===

impl Row {
    fn of(
        what: &str,
        goal: Option<u64>,
        ways: &[Way],
        weigh: impl Fn(Way) -> anyhow::Result<u64>,
    ) -> anyhow::Result<Self> {
        let each = ways.iter().map(|way| Ok((*way, weigh(*way)?))).collect::<anyhow::Result<_>>()?;
        eprintln!("{what} done");
        Ok(Self { what: what.to_owned(), goal, each })
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = "| what (of so many) | peer | bytes each | × first | goal |\n|---|---|---:|---:|---|\n".to_owned();
    for Row { what, goal, each } in rows {
        for (way, bytes) in each {
            let ratio = match each.as_slice() {
                [(_, first), _, ..] => format!("{:.2}", *bytes as f64 / *first as f64),
                _ => String::new(),
            };
            let verdict = match goal {
                Some(goal) if way.is_ours() => {
                    format!("≤ {goal}: {}", if bytes <= goal { "met" } else { "missed" })
                }
                _ => String::new(),
            };
            // Writing to a String does not fail.
            writeln!(text, "| {what} | {} | {bytes} | {ratio} | {verdict} |", way.peer()).ok();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_those_of_the_product() {
        let each = vec![(Way::Nginx, 400), (Way::XdpIngress, 1200)];
        let row = |goal| Row { what: "connection".into(), goal, each: each.clone() };
        let lines: Vec<String> =
            table(&[row(Some(1229)), row(Some(1199)), row(None)]).lines().skip(2).map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "| connection | nginx | 400 | 1.00 |  |",
                "| connection | xdp-ingress | 1200 | 3.00 | ≤ 1229: met |",
                "| connection | nginx | 400 | 1.00 |  |",
                "| connection | xdp-ingress | 1200 | 3.00 | ≤ 1199: missed |",
                "| connection | nginx | 400 | 1.00 |  |",
                "| connection | xdp-ingress | 1200 | 3.00 |  |",
            ]
        );
    }

    #[test]
    fn a_failing_peer_fails_the_row() {
        let weigh = |way: Way| if way == Way::Haproxy { anyhow::bail!("no haproxy") } else { Ok(7) };
        let row = Row::of("route", None, &[Way::Nginx], weigh).expect("weighed");
        assert_eq!(row.each, [(Way::Nginx, 7)]);
        assert!(Row::of("route", None, &[Way::Nginx, Way::Haproxy], weigh).is_err());
    }
}
