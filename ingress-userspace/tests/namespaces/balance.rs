//! Connections are spread over the workers, whatever CPU they come by, and what that is beside `SO_REUSEPORT`.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use ingress_common::{Total, WorkerLoad};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use xtask::lab::{
    Process,
    client::Ask,
    topology::{Family, NODE_NIC},
    until,
};

use crate::{
    generation::Generation,
    net::{Net, http},
};

/// Of every process here.
const WORKERS: u32 = 2;
const CONNECTIONS: usize = 120;
/// Requests of each connection that are measured.
const ROUNDS: usize = 20;

/// By which CPUs the clients send.
#[derive(Clone, Copy, Debug)]
enum Senders {
    OneCpu,
    EveryCpu,
}

impl Senders {
    const ALL: [Self; 2] = [Self::OneCpu, Self::EveryCpu];

    /// Moves the calling thread to its next CPU.
    fn move_to(self, number: usize) -> anyhow::Result<()> {
        let this = Pid::from_raw(0);
        // Of the process: the thread may have been moved already.
        let may = sched_getaffinity(Pid::this())?;
        let cpus: Vec<_> = (0..CpuSet::count()).filter(|&cpu| may.is_set(cpu) == Ok(true)).collect();
        let cpu = match self {
            Self::OneCpu => cpus.first(),
            Self::EveryCpu => cpus.get(number % cpus.len()),
        };
        let mut one = CpuSet::new();
        one.set(*cpu.context("no CPU")?)?;
        Ok(sched_setaffinity(this, &one)?)
    }

    /// Opens connections and keeps them.
    fn connect(self, net: &Net, count: usize) -> Vec<TcpStream> {
        let opened = net.topology.client.run(|| {
            (0..count)
                .map(|number| {
                    self.move_to(number)?;
                    let stream = TcpStream::connect_timeout(&http(Family::V4), Duration::from_secs(10))?;
                    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
                    stream.set_nodelay(true)?;
                    Ok(stream)
                })
                .collect::<anyhow::Result<_>>()
        });
        opened.expect("the node takes connections")
    }
}

/// What each worker from `first` on holds, once it is `total` together and nothing is on its way.
#[track_caller]
fn held(net: &Net, first: u32, total: usize) -> Vec<u64> {
    let maps = net.maps();
    let look = || -> Option<Vec<u64>> {
        let workers = maps.workers(first, WORKERS).expect("workers");
        let is_settled = |load: &WorkerLoad| load.connections() == Some(load.open);
        let open: Vec<u64> = workers.iter().map(|load| load.open).collect();
        (workers.iter().all(is_settled) && open.iter().sum::<u64>() == total as u64).then_some(open)
    };
    until(&format!("{total} connections"), look)
        .unwrap_or_else(|error| panic!("{error:#}: {:?}", maps.workers(first, WORKERS)))
}

#[test]
fn no_cpu_of_senders_has_all_its_connections_on_one_worker() {
    let Some((net, _proxy)) = Net::serving("balance") else { return };
    let first = net.maps().first_worker().expect("a rule");
    held(&net, first, 0);
    for senders in Senders::ALL {
        let connections = senders.connect(&net, CONNECTIONS);
        let held_now = held(&net, first, CONNECTIONS);
        println!("{CONNECTIONS} connections, {senders:?}: {held_now:?}");
        // A quarter above the mean, the one that got it there, and two that were between two counts.
        let most = CONNECTIONS * 125 / 100 / WORKERS as usize + 3;
        assert!(held_now.iter().all(|&held| held as usize <= most), "{held_now:?}, at most {most}");
        drop(connections);
        held(&net, first, 0);
    }
    // Those of the node itself, by the default rule.
    let node = &net.topology.node;
    let open =
        || (0..CONNECTIONS).map(|_| Ok(TcpStream::connect(http(Family::V4))?)).collect::<anyhow::Result<Vec<_>>>();
    let connections = node.run(open).expect("the node takes connections");
    let held_now = held(&net, first, CONNECTIONS);
    assert!(held_now.iter().all(|&held| held > 0), "{held_now:?}");
    drop(connections);
    held(&net, first, 0);
    let counts = net.settled();
    assert_eq!(counts.total(Total::Undecided).packets, 0);
    assert_eq!(counts.total(Total::SlotEmpty).packets, 0);
}

#[test]
fn a_successor_begins_with_nothing_and_its_predecessor_counts_to_the_end() {
    let Some(net) = Net::build("balances") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let _first = Generation::start(&net, "first", &[]);
    let of_first = net.maps().first_worker().expect("a rule");
    let old = Senders::OneCpu.connect(&net, 20);
    held(&net, of_first, 20);
    let mut second = Generation::start(&net, "second", &[]);
    let of_second = until("the node is the second's", || {
        let now = net.maps().first_worker().expect("a rule");
        (now != of_first).then_some(now)
    })
    .expect("it takes over");
    let new = Senders::OneCpu.connect(&net, 20);
    let of_new = held(&net, of_second, 20);
    assert!(of_new.iter().all(|&held| held > 0), "{of_new:?}");
    drop(old);
    held(&net, of_first, 0);
    held(&net, of_second, 20);

    // One that crashes leaves what it had told; the next one to have the node is not misled by it.
    second.process.kill().expect("it crashes");
    drop(new);
    until("the first has the node again", || (net.maps().first_worker().expect("a rule") == of_first).then_some(()))
        .expect("it takes the node back");
    let again = Senders::OneCpu.connect(&net, 20);
    let of_again = held(&net, of_first, 20);
    assert!(of_again.iter().all(|&held| held > 0), "{of_again:?}");
    drop(again);
}

/// The product with ports that its workers share, whose connections the kernel spreads by a hash; XDP only counts.
fn bound(net: &Net) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"));
    command.env("NO_COLOR", "1").args(["run", "--workers", &WORKERS.to_string(), "--admin-addr", "127.0.0.1:9110"]);
    command.args(["--steer", "bind", "--http-port", "80", "--https-port", "443"]);
    command.args(["--xdp-mode", "native", "--interface", NODE_NIC]);
    command.arg("--manifests").arg(&net.manifests).arg("--bpffs").arg(&net.bpffs);
    let mut process = net.lab.spawn(&net.topology.node, "bound", command).expect("the proxy starts");
    let is_ready = || net.admin("/readyz").is_ok_and(|answer| answer.status.is_success());
    process.wait_until(Duration::from_secs(30), "the proxy is ready", is_ready).expect("it becomes ready");
    process
}

/// Reads an answer to its end.
fn answer(stream: &mut TcpStream) -> anyhow::Result<()> {
    const LENGTH: &str = "content-length: ";
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece)?;
        anyhow::ensure!(count > 0, "the connection ends");
        bytes.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix(LENGTH)).context("no length")?;
        if body.len() >= length.parse::<usize>()? {
            return Ok(());
        }
    }
}

/// How long answers take when all connections ask at once, sorted.
fn times(net: &Net, senders: Senders, connections: &mut [TcpStream]) -> Vec<Duration> {
    let asked = net.topology.client.run(|| {
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            let began = Instant::now();
            for (number, stream) in connections.iter_mut().enumerate() {
                senders.move_to(number + round)?;
                stream.write_all(b"GET /status/200 HTTP/1.1\r\nHost: web.test\r\n\r\n")?;
            }
            for stream in connections.iter_mut() {
                answer(stream)?;
                times.push(began.elapsed());
            }
        }
        times.sort();
        Ok(times)
    });
    asked.expect("answers")
}

/// Prints, and judges nothing but that both serve: times are the machine's.
#[test]
fn balance_and_times_beside_reuseport_are_printed() {
    let Some(net) = Net::build("reuseport") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    for name in ["XDP's choice", "SO_REUSEPORT"] {
        // Ended when they are dropped.
        let _process: Process = if name == "SO_REUSEPORT" { bound(&net) } else { net.start("steered", 9110).process };
        let (answered, _) = net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/"));
        assert_eq!(answered.status, 200);
        let first = net.maps().first_worker().expect("a rule");
        for senders in Senders::ALL {
            held(&net, first, 0);
            let mut connections = senders.connect(&net, CONNECTIONS);
            let held_now = held(&net, first, CONNECTIONS);
            let times = times(&net, senders, &mut connections);
            let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
            println!(
                "{name:<14} {senders:?} workers hold {held_now:?}, {CONNECTIONS} requests at once: p50 {} µs, p99 {} µs",
                at(50),
                at(99)
            );
        }
    }
}
