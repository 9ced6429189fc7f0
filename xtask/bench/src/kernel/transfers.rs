//! Rate of connections from SYN cookies of XDP, beside connections that the stack opened: they have the same options, so
//! they have to be as fast.

use std::{
    net::SocketAddr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;

use super::{
    figure::Verdict,
    flood::{Aim, Flood, Senders},
    node::{Node, POD_HOST, SERVED, Way},
};
use crate::{goal::Limit, report::median};
use ingress_common::Total;
use ingress_lab::client::{Ask, Connection, Protocol, Trust, block_on};

/// Bytes of a transfer.
const LENGTH: u64 = 10 << 20;
/// Transfers of a round in each direction, each on a new connection, and in turns.
const TRANSFERS: u32 = 50;
/// SYNs per second that begin a flood, and those that keep it up without taking CPU from transfers.
const BEGIN: u32 = 2000;
const KEEP: u32 = 700;
const KEPT: Limit = Limit::AtLeast(0.95);

#[derive(Clone, Copy, Debug)]
enum Direction {
    Down,
    Up,
}

/// Lets a client transfer in turns, and prints the ratios.
///
/// # Errors
/// Fails if a transfer fails or was not opened by a cookie, or connections from cookies are slower than they may be.
pub(super) fn run(rounds: u32, binary: &Path) -> anyhow::Result<()> {
    let start = |way| {
        let mut node = Node::start(way, binary, 1, true)?;
        node.poll(binary)?;
        anyhow::Ok(node)
    };
    let (cookies, usual) = (start(Way::Answering)?, start(Way::Steered)?);
    let flood = |rate| {
        let aim = Aim { port: SERVED.1, rate: Some(rate), cpu: None };
        Flood::start(&cookies.topology.router, Senders::Many, aim)
    };
    let first = flood(BEGIN)?;
    thread::sleep(Duration::from_secs(1));
    first.finish()?;
    let flood = flood(KEEP)?;
    println!(
        "\n| 10 MiB on a new connection | from a cookie, ms | usual, ms | × rate | verdict |\n|---|---:|---:|---:|---|"
    );
    let mut missed = Vec::new();
    for direction in [Direction::Down, Direction::Up] {
        let (mut slow, mut fast) = (Vec::new(), Vec::new());
        let (transfers, before) = (rounds * TRANSFERS, confirmed(&cookies)?);
        for _ in 0..transfers {
            slow.push(transfer(&cookies, direction)?);
            fast.push(transfer(&usual, direction)?);
        }
        let confirmed = confirmed(&cookies)? - before;
        ensure!(confirmed >= transfers.into(), "{confirmed} of {transfers} connections were opened by a cookie");
        let (slow, fast) = (median(slow.into_iter()), median(fast.into_iter()));
        let ratio = fast / slow;
        let verdict = if KEPT.holds(ratio) { Verdict::Met } else { Verdict::Missed };
        println!("| {direction:?} | {:.1} | {:.1} | {ratio:.2} | {verdict} |", slow * 1e3, fast * 1e3);
        if verdict == Verdict::Missed {
            missed.push(direction);
        }
    }
    flood.finish()?;
    println!("\nMedians of {} transfers in turns; the target is a rate {KEPT}.", rounds * TRANSFERS);
    ensure!(missed.is_empty(), "connections from cookies are slower than they may be: {missed:?}");
    Ok(())
}

/// Returns the seconds that a transfer takes, without its connection.
fn transfer(node: &Node, direction: Direction) -> anyhow::Result<f64> {
    let ask = match direction {
        Direction::Down => Ask::get(POD_HOST, &format!("/bytes/{LENGTH}")),
        Direction::Up => Ask::upload(POD_HOST, "/", LENGTH),
    };
    let transfer = async {
        let served = SocketAddr::from(SERVED);
        let mut connection = Connection::open(served, Protocol::Http1, POD_HOST, &Trust::none()).await?;
        let begun = Instant::now();
        let answer = connection.start(&ask).await?;
        ensure!(answer.status.is_success(), "answered {}", answer.status);
        let received = answer.rest().await?;
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(matches!(direction, Direction::Up) || received == LENGTH, "{received} of {LENGTH} bytes arrived");
        connection.close().await?;
        anyhow::Ok(seconds)
    };
    node.topology.client.run(|| block_on(transfer))
}

/// Returns the number of connections that cookies have opened.
fn confirmed(node: &Node) -> anyhow::Result<u64> {
    Ok(node.maps()?.read()?.total(Total::SynCookieValid).packets)
}
