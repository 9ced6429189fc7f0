//! The law of clients that do not read. HTTP/2 connections that send requests on all their streams and read nothing
//! must neither end the product in a cgroup of 256 MiB nor harm other clients: these get all their responses, and not
//! much later.

use std::{
    net::SocketAddr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;

use super::{
    cgroup::Cgroup,
    greedy::{Greedy, Way},
    product::Product,
    verdict::{Phase, Round, Verdict},
};
use crate::report::Times;
use ingress_lab::{
    Namespace,
    client::{Ask, Protocol},
    echo::Echo,
    free_port,
    load::{Clients, Connections, Load, Report, Target},
};

/// Parameters of the law: number of measurements, and length of each of the two phases of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Law {
    pub(super) rounds: usize,
    pub(super) phase: Duration,
}

const LIMIT: u64 = 256 << 20;
/// Connections of clients that do not read, and requests on each.
const CONNECTIONS: usize = 64;
const STREAMS: u32 = 120;
const REQUESTS: usize = CONNECTIONS * STREAMS as usize;
/// Numbers of clients that read: of another pod than the attacked one; of the attacked pod, which serves both; and
/// direct clients of the other pod, without the product. The last value is the pause of each between two requests.
const GOOD: usize = 32;
const BESIDE: usize = 4;
const DIRECT: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// Time within which all requests of the attack must have arrived.
const BEGIN: Duration = Duration::from_secs(10);
/// Path of a response of a megabyte.
const LARGE: &str = "/bytes/1000000";
/// Unread bytes per connection that make it an attack: more than its sockets have to hold.
const UNREAD_MIN: u64 = 64 << 10;
/// Descriptors of a run: one for each request, and those of other clients.
pub(super) const SOCKETS: usize = REQUESTS + 200;
/// Metrics of the product by host.
const ACTIVE: &str = "xdp_ingress_host_active_requests";
const BODY_BYTES: &str = "xdp_ingress_host_response_body_bytes_total";
/// Metric of the product for all hosts together.
const WAITING: &str = "xdp_ingress_requests_waiting";

/// Running clients that read.
struct Readers {
    good: Load,
    beside: Load,
    direct: Load,
}

impl Law {
    /// Checks the law once for each protocol, all of them even after a failure.
    pub(super) fn hold(self, binary: &Path) -> anyhow::Result<()> {
        println!("slow-read: {CONNECTIONS} connections of {STREAMS} streams; {GOOD} clients that read");
        let mut broken = Vec::new();
        for way in Way::ALL {
            let rounds = (0..self.rounds).map(|_| self.measure(binary, way)).collect::<anyhow::Result<Vec<_>>>();
            match rounds {
                Ok(rounds) => {
                    let verdict = Verdict(&rounds);
                    println!("slow-read {way:?}: {verdict}");
                    if !verdict.broken().is_empty() {
                        broken.push(format!("{way:?}"));
                    }
                }
                Err(error) => {
                    println!("slow-read {way:?}: BROKEN: not measured: {error:#}");
                    broken.push(format!("{way:?}"));
                }
            }
        }
        ensure!(broken.is_empty(), "the law does not hold for {}", broken.join(", "));
        Ok(())
    }

    /// Measures one round, with its own product.
    fn measure(self, binary: &Path, way: Way) -> anyhow::Result<Round> {
        // Removed after the product has ended.
        let cgroup = Cgroup::with(LIMIT)?;
        let address = ([127, 0, 0, 1], free_port()?).into();
        let _pod = Echo::start(&Namespace::current(), "pod", &[address])?;
        let other = ([127, 0, 0, 2], address.port()).into();
        let _other = Echo::start(&Namespace::current(), "other", &[other])?;
        let mut product = Product::start_in(Some(&cgroup), binary, address)?;
        let (quiet, _beside, direct) = self.load(&product, other, way, || Ok(()))?;
        let unread = product.total(BODY_BYTES, way.host())?;
        let mut asked = 0;
        let mut greedy: Vec<Greedy> = Vec::new();
        let attacked = self.load(&product, other, way, || {
            for _ in 0..CONNECTIONS {
                greedy.push(way.ask(&product.server, LARGE, STREAMS)?);
            }
            // Later, the product ends requests that have waited too long.
            let until = Instant::now() + BEGIN;
            while asked < REQUESTS as u64 && Instant::now() < until {
                asked = asked.max(held(&product, way)?);
                thread::sleep(PAUSE);
            }
            Ok(())
        });
        let (killed, is_alive) = (cgroup.killed()?, product.is_alive()?);
        if !is_alive {
            return Ok(Round { killed, is_alive, ..Round::default() });
        }
        let (attacked, beside, direct_attacked) = attacked?;
        let round = Round {
            resident: product.resident_max()?,
            killed,
            is_alive,
            asked: (asked, REQUESTS as u64),
            unread: (product.total(BODY_BYTES, way.host())?.saturating_sub(unread), UNREAD_MIN * CONNECTIONS as u64),
            direct: [direct.times, direct_attacked.times],
            quiet,
            attacked,
            beside,
        };
        println!("{way:?}:\n{round}\n  {}", product.counters(&["evicted", "timed_out", "slow", "refused"])?);
        drop(greedy);
        Ok(round)
    }

    /// Starts clients that send requests like legitimate ones, calls `meanwhile`, and ends the clients after the length
    /// of a phase. They use the other pod, the same pod, and the other pod without the product.
    fn load(
        self,
        product: &Product,
        other: SocketAddr,
        way: Way,
        meanwhile: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<(Phase, Phase, Phase)> {
        let start = |address: SocketAddr, host, count| {
            let target = Target { protocol: Protocol::Http1, ..address.into() };
            let (ask, from) = (Ask::get(host, "/bytes/100"), Vec::new());
            let clients = Clients { target, ask, count, from, connections: Connections::Kept, pause: PAUSE };
            Load::of(&Namespace::current(), clients)
        };
        let http = product.server.http;
        let readers = Readers {
            good: start(http, "other.soak.test", GOOD)?,
            beside: start(http, way.host(), BESIDE)?,
            direct: start(other, "other.soak.test", DIRECT)?,
        };
        meanwhile()?;
        thread::sleep(self.phase);
        let Readers { good, beside, direct } = readers;
        Ok((good.stop()?.into(), beside.stop()?.into(), direct.stop()?.into()))
    }
}

impl From<Report> for Phase {
    fn from(Report { answered, failed, times, reasons }: Report) -> Self {
        Self { answered, failed, times: Times::of(times), reasons }
    }
}

/// Returns the number of requests that the product is serving or that wait for it.
fn held(product: &Product, way: Way) -> anyhow::Result<u64> {
    Ok(product.total(ACTIVE, way.host())? + product.gauge(WAITING)?)
}
