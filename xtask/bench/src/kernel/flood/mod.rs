//! Floods of SYNs, and the service that remains for legitimate clients: with the deny list and the limits of clients in
//! XDP, with the list alone, with SYN cookies of XDP, with a program that only counts, and with nft.
//!
//! ```text
//! senders (source addresses, and a thread) ───┐
//! node (the defence against them) ────────────┼── service: goodput, p99 ── row: flooded compared to quiet, verdict
//! ```

mod row;
mod senders;
mod service;

use std::{path::Path, time::Duration};

use anyhow::ensure;

use self::{
    row::{GOODPUT, HEAD, P99, Row},
    senders::Senders,
    service::Service,
};
use super::{
    Args, Verdict,
    node::{Node, Way},
};

/// Defences against floods.
const WAYS: [Way; 6] = [Way::Limiting, Way::Denying, Way::Answering, Way::Bound, Way::Counted, Way::Filtered];

/// A turn of a node: its service without a flood, and in each flood.
struct Turn {
    quiet: Service,
    flooded: [Service; Senders::ALL.len()],
}

/// Takes turns through all ways, quiet and in each flood, and prints the table.
///
/// # Errors
/// Fails if a node does not start, or a flood takes more from clients than the limits permit.
pub(super) fn run(args: &Args, binary: &Path, pin: bool) -> anyhow::Result<()> {
    let nodes = WAYS.into_iter().map(|way| Node::start(way, binary, 1, pin)).collect::<anyhow::Result<Vec<_>>>()?;
    nodes.iter().try_for_each(service::prepare)?;
    let mut turns: [Vec<Turn>; WAYS.len()] = Default::default();
    let length = Duration::from_secs(args.seconds);
    for round in 0..args.rounds as usize {
        for turn in 0..nodes.len() {
            let index = (turn + round) % nodes.len();
            turns[index].push(take_turn(&nodes[index], length)?);
        }
        eprintln!("round {} of {} done", round + 1, args.rounds);
    }
    let mut rows = Vec::new();
    for (which, senders) in Senders::ALL.into_iter().enumerate() {
        for (way, turns) in WAYS.into_iter().zip(&turns) {
            rows.push(Row::of(senders, way, turns.iter().map(|turn| (turn.quiet, turn.flooded[which]))));
        }
    }
    println!("{HEAD}");
    for row in &rows {
        println!("{row}");
    }
    println!(
        "\nMedians of {} rounds of {} s. What is kept is a flooded figure relative to the quiet one of its round; the\n\
         target is goodput {GOODPUT} and p99 {P99}. In brackets: what nothing of ours is in the way of, and nft. The\n\
         flood comes from one thread, which on a link within one machine also receives what it sends: the cheaper a\n\
         drop, the more it can send.",
        args.rounds, args.seconds
    );
    let missed = rows.iter().filter(|row| row.is_promised() && row.verdict() == Verdict::Missed);
    let missed: Vec<String> = missed.map(Row::name).collect();
    ensure!(missed.is_empty(), "floods that take more from clients than they may: {}", missed.join("; "));
    Ok(())
}

fn take_turn(node: &Node, length: Duration) -> anyhow::Result<Turn> {
    let quiet = service::measure(node, length, None)?;
    let flooded = |senders| service::measure(node, length, Some(senders));
    let [denied, few, many] = Senders::ALL;
    Ok(Turn { quiet, flooded: [flooded(denied)?, flooded(few)?, flooded(many)?] })
}
