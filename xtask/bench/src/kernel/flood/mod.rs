//! Floods of SYNs and of QUIC, and the service that remains for legitimate clients: with the deny list and the limits of clients in
//! XDP, with the list alone, with SYN cookies of XDP, with a program that only counts, and with nft.
//!
//! ```text
//! senders (source addresses, and a thread) ───┐
//! node (the defence against them) ────────────┼── service: goodput, p99 ── row: flooded compared to quiet, verdict
//! ```

mod quic;
mod row;
mod senders;
mod service;

use std::{path::Path, time::Duration};

use anyhow::ensure;
use clap::ValueEnum as _;

pub(super) use self::senders::{Aim, Flood, Senders};
use self::{
    row::{BESIDE_GOODPUT, BESIDE_P99, GOODPUT, HEAD, P99, Round, Row},
    service::{Clients, Service, Trial},
};
use super::{
    Verdict,
    node::{Node, Way},
};
use ingress_lab::topology::Family;

/// Defences against floods of SYNs.
const WAYS: [Way; 9] = [
    Way::Limiting,
    Way::Denying,
    Way::Answering,
    Way::AnsweringByDefault,
    Way::AnsweringAndLimiting,
    Way::Bound,
    COUNTED,
    Way::Filtered,
    Way::Proxied,
];
/// The defence that SYN cookies are compared to.
const COUNTED: Way = Way::Counted;
/// Defences against floods of QUIC: the checks of XDP and of the proxy, which need no option.
const WAYS_OF_QUIC: [Way; 1] = [DENYING];
/// The defence that drops all of [`Senders::QuicDenied`], to which other floods of QUIC are compared.
const DENYING: Way = Way::Denying;

/// Options of floods.
#[derive(Debug, clap::Args)]
#[group(id = "flood-options")]
pub(super) struct Options {
    /// Senders of the floods; by default those of SYNs in turn.
    #[arg(long, value_delimiter = ',', requires = "flood")]
    senders: Vec<Senders>,
    /// Defences; by default those against SYNs, or against QUIC if all senders are of QUIC.
    #[arg(long, value_delimiter = ',', requires = "flood")]
    ways: Vec<Way>,
    /// Packets of a flood per second; by default as many as a thread can send.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1000..=10_000_000), requires = "flooding")]
    pub(super) rate: Option<u32>,
    /// Protocol of the legitimate clients, and thereby the port of the floods.
    #[arg(long, requires = "flood", value_enum, default_value_t)]
    clients: Clients,
}

/// A turn of a node: its service without a flood by family, and in each flood.
struct Turn {
    quiet: [Option<Service>; 2],
    flooded: Vec<Service>,
}

/// Takes turns through all ways, quiet and in each flood, and prints the table.
///
/// # Errors
/// Fails if a node does not start, or a flood takes more from clients than the limits permit.
pub(super) fn run(options: &Options, rounds: u32, seconds: u64, binary: &Path, pin: bool) -> anyhow::Result<()> {
    let of_syns = || Senders::value_variants().iter().filter(|senders| !senders.is_quic()).copied().collect();
    let mut floods = if options.senders.is_empty() { of_syns() } else { options.senders.clone() };
    let usual_ways = if floods.iter().all(|senders| senders.is_quic()) { &WAYS_OF_QUIC[..] } else { &WAYS };
    let mut ways = if options.ways.is_empty() { usual_ways.to_vec() } else { options.ways.clone() };
    // Floods of QUIC are judged by one that XDP drops.
    if floods.iter().any(|senders| senders.is_quic()) {
        if !floods.contains(&Senders::QuicDenied) {
            floods.push(Senders::QuicDenied);
        }
        if !ways.contains(&DENYING) {
            ways.push(DENYING);
        }
    }
    // SYN cookies are judged by it.
    if ways.iter().any(|way| way.has_cookies()) && !ways.contains(&COUNTED) {
        ways.push(COUNTED);
    }
    let has_http3 = options.clients == Clients::Http3 || floods.iter().any(|senders| senders.is_quic());
    let further = if has_http3 { &["--http3=on"][..] } else { &[] };
    let start = |&way: &Way| Node::start_with(way, binary, 1, pin, further);
    let nodes = ways.iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    nodes.iter().try_for_each(service::prepare)?;
    let mut turns: Vec<Vec<Turn>> = ways.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds as usize {
        for turn in 0..nodes.len() {
            let index = (turn + round) % nodes.len();
            turns[index].push(Turn::take(&nodes[index], &floods, options, Duration::from_secs(seconds))?);
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    let dropped = floods.iter().position(|senders| *senders == Senders::QuicDenied);
    let turns_of = |way: Way| ways.iter().position(|other| *other == way).map(|index| &turns[index]);
    let mut rows = Vec::new();
    for (which, &senders) in floods.iter().enumerate() {
        for (&way, turns) in ways.iter().zip(&turns) {
            let (reference, beside) =
                if senders.is_quic() { (turns_of(DENYING), dropped) } else { (turns_of(COUNTED), Some(which)) };
            let round = |(index, turn): (usize, &Turn)| {
                let beside = reference.and_then(|turns| turns.get(index)?.flooded.get(beside?));
                turn.round(which, senders, beside.copied())
            };
            let rounds: Vec<_> = turns.iter().enumerate().filter_map(round).collect();
            rows.push(Row::of(senders, way, &rounds));
        }
    }
    println!("{HEAD}");
    for row in &rows {
        println!("{row}");
    }
    println!(
        "\nMedians of {rounds} rounds of {seconds} s. What is kept is a flooded figure relative to the quiet one of its round; the\n\
         target is goodput {GOODPUT} and p99 {P99}. SYN cookies are judged by the flooded figures of a program that only\n\
         counts, in the same round: goodput {BESIDE_GOODPUT} and p99 {BESIDE_P99}. Floods of QUIC are judged by the goodput\n\
         during one that the deny list drops, in the same round: {GOODPUT}. In brackets: what nothing of ours is in the way of,\n\
         and comparisons. The flood comes from one thread, which on a link within one machine also receives what it\n\
         sends: the cheaper a drop, the more it can send."
    );
    let missed = rows.iter().filter(|row| row.is_promised() && row.verdict() == Verdict::Missed);
    let missed: Vec<String> = missed.map(Row::name).collect();
    ensure!(missed.is_empty(), "floods that take more from clients than they may: {}", missed.join("; "));
    Ok(())
}

// === impl Turn ===

impl Turn {
    fn take(node: &Node, floods: &[Senders], options: &Options, length: Duration) -> anyhow::Result<Self> {
        let trial = |family, flood| Trial { family, clients: options.clients, length, flood, rate: options.rate };
        let mut quiet = [None, None];
        for family in [Family::V4, Family::V6] {
            if floods.iter().any(|senders| senders.family() == family) {
                quiet[family as usize] = Some(trial(family, None).run(node)?);
            }
        }
        let flooded = floods.iter().map(|&senders| trial(senders.family(), Some(senders)).run(node));
        Ok(Self { quiet, flooded: flooded.collect::<anyhow::Result<_>>()? })
    }

    /// Returns a flood of this round, beside the service that it is compared to.
    fn round(&self, which: usize, senders: Senders, beside: Option<Service>) -> Option<Round> {
        Some(Round { quiet: self.quiet[senders.family() as usize]?, flooded: *self.flooded.get(which)?, beside })
    }
}
