//! Rate of connections from SYN cookies of XDP, beside connections that the stack opened: they have the same options, so
//! they have to be as fast.
//!
//! Other work of the machine makes a transfer take twice as long or more. So connections of both kinds take turns in the
//! order ABBA, and only neighbours are compared. Each round has new nodes, because the place of a process in memory makes
//! some per cent, too. A round gives one ratio, and the interval is that of the sign test over rounds. The usual
//! connections beside themselves show what the method cannot tell apart.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};

use super::{
    figure::{Verdict, interval},
    flood::{Aim, Flood, Senders},
    node::{Node, POD_HOST, SERVED, Way},
};
use crate::{goal::Limit, load::beside_the_pod, report::median};
use ingress_common::Total;
use ingress_lab::client::{Ask, Connection, Protocol, Trust, block_on};
use xtask_tools::process;

/// Bytes of a transfer.
const LENGTH: u64 = 10 << 20;
/// Groups of four transfers in a round and direction, each transfer on a new connection.
const GROUPS: u32 = 25;
/// SYNs per second that begin a flood, and those that keep it up without taking CPU from transfers.
const BEGIN: u32 = 2000;
const KEEP: u32 = 700;
/// Longest time until the node has opened the connection of a client.
const OPENED: Duration = Duration::from_secs(1);
const CONGESTION_CONTROL: &str = "ipv4/tcp_congestion_control";
const KEPT: Limit = Limit::AtLeast(0.95);

#[derive(Clone, Copy, Debug)]
enum Direction {
    Down,
    Up,
}

/// A flooded node, where cookies open connections, and a usual one.
struct Pair {
    cookies: Node,
    usual: Node,
}

/// A connection as the node's stack sees it.
#[derive(Debug)]
struct Observed {
    /// Options that both ends agreed on, and sizes of segments.
    options: BTreeSet<String>,
    /// Round-trip time after the handshake, in milliseconds.
    rtt: f64,
}

/// Seconds of the transfers of a direction, in the order of time.
#[derive(Debug, Default)]
struct Times {
    cookies: Vec<f64>,
    usual: Vec<f64>,
}

/// Ratios of a direction, one for each round.
#[derive(Debug, Default)]
struct Ratios {
    /// Rate of connections from cookies to that of the usual ones.
    cookies: Vec<f64>,
    /// Rate of the first of two usual connections to that of the second.
    itself: Vec<f64>,
    all: Times,
}

/// Lets a client transfer in turns, and prints the ratios.
///
/// # Errors
/// Fails if a transfer fails or was not opened by a cookie, if connections from cookies have other options, if they are
/// slower than they may be, or if the rounds do not tell.
pub(super) fn run(rounds: u32, congestion_control: Option<&str>, binary: &Path) -> anyhow::Result<()> {
    ensure!(thread::available_parallelism()?.get() > 1, "the rate of transfers needs a second CPU for the node");
    // The threads of clients, pods and floods inherit the CPU; that of the nodes is the other one.
    beside_the_pod(true, || measure(rounds, congestion_control, binary))
}

fn measure(rounds: u32, congestion_control: Option<&str>, binary: &Path) -> anyhow::Result<()> {
    let mut found = [(Direction::Down, Ratios::default()), (Direction::Up, Ratios::default())];
    let mut rtts = [Vec::new(), Vec::new()];
    let (mut options, mut control) = (BTreeSet::new(), String::new());
    for round in 0..rounds {
        let begins_with_cookies = round % 2 == 0;
        let pair = Pair::start(binary, congestion_control, begins_with_cookies)?;
        let flood = pair.flood()?;
        for (direction, _) in &found {
            // Not counted: caches and pools are cold.
            transfer(&pair.cookies, *direction)?;
            transfer(&pair.usual, *direction)?;
        }
        let [from_cookie, usual] = [observe(&pair.cookies)?, observe(&pair.usual)?];
        let same = from_cookie.options == usual.options;
        ensure!(same, "a connection from a cookie has {:?}, and a usual one {:?}", from_cookie.options, usual.options);
        options = usual.options;
        control = pair.congestion_control()?;
        rtts[0].push(from_cookie.rtt);
        rtts[1].push(usual.rtt);
        for (direction, ratios) in &mut found {
            ratios.add(pair.take(*direction, begins_with_cookies)?);
        }
        flood.finish()?;
        eprintln!("round {} of {rounds} with transfers done", round + 1);
    }
    print(&found);
    let options = options.into_iter().collect::<Vec<_>>().join(", ");
    let [from_cookie, usual] = rtts.map(|rtts| median(rtts.into_iter()));
    println!(
        "\nMedians of {rounds} rounds of {} transfers of each kind; the target is a rate {KEPT}. The interval holds the\n\
         median of all possible rounds with a probability of 95 % or more. Both kinds have {options}, {control}.\n\
         After the handshake the stack takes the round-trip time for {from_cookie:.1} ms after a cookie, and {usual:.1} ms otherwise.",
        GROUPS * 2,
    );
    let with = |expect| {
        found.iter().filter(move |(_, ratios)| ratios.verdict() == expect).map(|(direction, _)| direction).collect()
    };
    let [missed, undecided]: [Vec<_>; 2] = [Verdict::Missed, Verdict::Undecided].map(with);
    ensure!(missed.is_empty(), "connections from cookies are slower than they may be: {missed:?}");
    ensure!(undecided.is_empty(), "the machine is too noisy for so few rounds, try more `--rounds`: {undecided:?}");
    Ok(())
}

fn print(found: &[(Direction, Ratios)]) {
    println!(
        "\n| 10 MiB on a new connection | from a cookie, ms | usual, ms | × rate | interval | verdict |\n|---|---:|---:|---:|---|---|"
    );
    for (direction, ratios) in found {
        let Ratios { cookies, itself, all } = ratios;
        let [from_cookie, usual] = [&all.cookies, &all.usual].map(|all| median(all.iter().copied()) * 1e3);
        println!("| {direction:?} | {from_cookie:.1} | {usual:.1} | {} | {} |", shown(cookies), ratios.verdict());
        println!("| {direction:?}, usual beside itself | - | {usual:.1} | {} | - |", shown(itself));
    }
}

/// Returns the verdict about a ratio within this interval.
fn verdict(interval: Option<[f64; 2]>) -> Verdict {
    match interval {
        Some([low, _]) if KEPT.holds(low) => Verdict::Met,
        Some([_, high]) if !KEPT.holds(high) => Verdict::Missed,
        _ => Verdict::Undecided,
    }
}

/// Returns the cells with the median of the rounds, and its interval.
fn shown(ratios: &[f64]) -> String {
    let interval = interval(ratios).map_or_else(|| "-".to_owned(), |[low, high]| format!("{low:.2} to {high:.2}"));
    format!("{:.3} | {interval}", median(ratios.iter().copied()))
}

/// Returns the seconds that a transfer takes, without its connection.
fn transfer(node: &Node, direction: Direction) -> anyhow::Result<f64> {
    let ask = match direction {
        Direction::Down => Ask::get(POD_HOST, &format!("/bytes/{LENGTH}")),
        Direction::Up => Ask::upload(POD_HOST, "/", LENGTH),
    };
    let transfer = async {
        let mut connection = connect().await?;
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

async fn connect() -> anyhow::Result<Connection> {
    Connection::open(SocketAddr::from(SERVED), Protocol::Http1, POD_HOST, &Trust::none()).await
}

/// Returns a new connection as the node's stack sees it.
fn observe(node: &Node) -> anyhow::Result<Observed> {
    node.topology.client.run(|| {
        block_on(async {
            let connection = connect().await?;
            let mut command = Command::new("ip");
            command.args(["netns", "exec", node.topology.node.name(), "ss", "--tcp", "--info", "--options"]);
            command.args(["--numeric", "--no-header", "state", "established", "sport", "=", ":80"]);
            let deadline = Instant::now() + OPENED;
            let observed = loop {
                let text = process::capture(&mut command)?;
                // The node may not have seen the client's ACK yet.
                if !text.is_empty() || Instant::now() > deadline {
                    break Observed::parse(&text)?;
                }
            };
            connection.close().await?;
            Ok(observed)
        })
    })
}

/// Returns the number of connections that cookies have opened.
fn confirmed(node: &Node) -> anyhow::Result<u64> {
    Ok(node.maps()?.read()?.total(Total::SynCookieValid).packets)
}

// === impl Pair ===

impl Pair {
    fn start(binary: &Path, congestion_control: Option<&str>, begins_with_cookies: bool) -> anyhow::Result<Self> {
        let start = |way| {
            let mut node = Node::start(way, binary, 1, true)?;
            node.poll(binary)?;
            // A client that knows of a smaller MTU offers an MSS that a cookie cannot hold.
            node.topology.raise_mtu()?;
            for namespace in [&node.topology.node, &node.topology.client] {
                // Connections have that of their namespace at the time when they are opened.
                congestion_control.map(|name| namespace.sysctl(CONGESTION_CONTROL, name)).transpose()?;
            }
            anyhow::Ok(node)
        };
        if begins_with_cookies {
            let cookies = start(Way::Answering)?;
            Ok(Self { cookies, usual: start(Way::Steered)? })
        } else {
            let usual = start(Way::Steered)?;
            Ok(Self { cookies: start(Way::Answering)?, usual })
        }
    }

    /// Returns the name of the congestion control of the node with cookies.
    fn congestion_control(&self) -> anyhow::Result<String> {
        let read =
            || fs::read_to_string(format!("/proc/sys/net/{CONGESTION_CONTROL}")).context("no congestion control");
        Ok(self.cookies.topology.node.run(read)?.trim().to_owned())
    }

    /// Floods the node with cookies, whose connections come from cookies from then on.
    fn flood(&self) -> anyhow::Result<Flood> {
        let flood = |rate| {
            let aim = Aim { port: SERVED.1, rate: Some(rate), cpu: None };
            Flood::start(&self.cookies.topology.router, Senders::Many, aim)
        };
        let first = flood(BEGIN)?;
        thread::sleep(Duration::from_secs(1));
        first.finish()?;
        flood(KEEP)
    }

    /// Takes the transfers of a round in one direction.
    fn take(&self, direction: Direction, begins_with_cookies: bool) -> anyhow::Result<Times> {
        let Self { cookies, usual } = self;
        let before = confirmed(cookies)?;
        let mut times = Times::default();
        for _ in 0..GROUPS {
            for is_outer in [true, false, false, true] {
                let (node, times) = if is_outer == begins_with_cookies {
                    (cookies, &mut times.cookies)
                } else {
                    (usual, &mut times.usual)
                };
                times.push(transfer(node, direction)?);
            }
        }
        let (confirmed, transfers) = (confirmed(cookies)? - before, times.cookies.len());
        ensure!(confirmed >= transfers as u64, "{confirmed} of {transfers} connections were opened by a cookie");
        Ok(times)
    }
}

// === impl Observed ===

impl Observed {
    /// Parses the lines of ss(8) about one connection.
    fn parse(text: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let is_option = |word: &&&str| {
            matches!(**word, "ts" | "sack")
                || ["wscale:", "mss:", "advmss:", "pmtu:"].iter().any(|name| word.starts_with(name))
        };
        let options = words.iter().filter(is_option).map(|word| (*word).to_owned()).collect();
        let rtt = words.iter().find_map(|word| word.strip_prefix("rtt:")?.split('/').next()?.parse().ok());
        Ok(Self { options, rtt: rtt.with_context(|| format!("`ss` gives no round-trip time: {text}"))? })
    }
}

// === impl Times, Ratios ===

impl Times {
    /// Returns the rate of connections from cookies to that of their neighbours.
    fn ratio(&self) -> f64 {
        median(self.cookies.iter().zip(&self.usual).map(|(cookies, usual)| usual / cookies))
    }

    /// Returns the rate of usual connections to that of the usual ones after them.
    fn ratio_to_itself(&self) -> f64 {
        median(self.usual.chunks_exact(2).map(|pair| pair[1] / pair[0]))
    }
}

impl Ratios {
    fn verdict(&self) -> Verdict {
        verdict(interval(&self.cookies))
    }

    fn add(&mut self, times: Times) {
        self.cookies.push(times.ratio());
        self.itself.push(times.ratio_to_itself());
        self.all.cookies.extend(times.cookies);
        self.all.usual.extend(times.usual);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_interval_on_one_side_of_the_limit_decides() {
        for (interval, expect) in [
            (Some([0.95, 1.1]), Verdict::Met),
            (Some([0.94, 1.1]), Verdict::Undecided),
            (Some([0.9, 0.949]), Verdict::Missed),
            (None, Verdict::Undecided),
        ] {
            assert_eq!(verdict(interval), expect, "{interval:?}");
        }
    }

    #[test]
    fn neighbours_are_compared() {
        // Other work makes the second group ten times as slow, and the third a little.
        let times = Times { cookies: vec![2.0, 2.0, 20.0, 20.0, 2.2], usual: vec![1.0, 1.0, 10.0, 10.0, 1.1] };
        assert!((times.ratio() - 0.5).abs() < 1e-9);
        assert!((times.ratio_to_itself() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn options_of_a_connection_are_read() {
        let text = "0 0 203.0.113.10:80 192.0.2.2:40000 timer:(keepalive,60sec,0)\n\
                    \t ts sack bbr wscale:10,7 rtt:62.5/31 mss:1348 pmtu:1400 rcvmss:536 advmss:1448 cwnd:10";
        let Observed { options, rtt } = Observed::parse(text).expect("valid");
        let expect = ["ts", "sack", "wscale:10,7", "mss:1348", "pmtu:1400", "advmss:1448"];
        assert_eq!(options, expect.map(str::to_owned).into());
        assert!((rtt - 62.5).abs() < 1e-9);
        assert!(Observed::parse("").is_err());
    }
}
