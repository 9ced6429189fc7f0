//! The clients of the soak, and the laws that the product must satisfy in each run.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use tokio_tungstenite::tungstenite::Message;

use super::{pod::TRICKLE, product::Product};
use ingress_lab::idle::{self, Kind};

/// Permitted growth of the memory within a stream, which covers temporary reserves of the allocator.
const GROWTH: u64 = 2 << 20;
/// Longest silence in a stream that never pauses for longer than a second.
const SILENCE: Duration = Duration::from_secs(5);
/// Targets of hardening.md, in bytes per connection.
pub(super) const IDLE: [(Kind, u64); 2] = [(Kind::Tls, 10_752), (Kind::Plain, 1229)];

fn get(path: &str, host: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Reads until `done` returns `true`; `done` sees each piece.
fn read_until(stream: &mut impl Read, mut done: impl FnMut(&[u8]) -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let mut bytes = vec![0; 256 << 10];
    loop {
        let count = stream.read(&mut bytes).context("the stream was cut")?;
        ensure!(count > 0, "the stream ended early");
        if done(&bytes[..count])? {
            return Ok(());
        }
    }
}

/// Minimum and maximum of the memory since the start, sampled once a second.
struct Memory<'p> {
    product: &'p Product,
    next: Instant,
    range: Option<(u64, u64)>,
}

impl<'p> Memory<'p> {
    fn of(product: &'p Product) -> Self {
        Self { product, next: Instant::now() + Duration::from_secs(3), range: None }
    }

    fn look(&mut self) -> anyhow::Result<()> {
        if Instant::now() >= self.next {
            self.next = Instant::now() + Duration::from_secs(1);
            let now = self.product.memory()?;
            let (least, most) = self.range.unwrap_or((now, now));
            self.range = Some((least.min(now), most.max(now)));
        }
        Ok(())
    }

    fn is_constant(&self, what: &str) -> anyhow::Result<()> {
        let (least, most) = self.range.context("too short to say anything of memory")?;
        println!("{what}; memory {:.1} to {:.1} MiB", mib(least), mib(most));
        ensure!(most - least <= GROWTH, "memory is not constant");
        Ok(())
    }
}

pub(super) fn stream(product: &Product, length: u64) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(product.server.http)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.write_all(get(&format!("/stream/{length}"), "soak.test").as_bytes())?;
    let (began, mut memory, mut received, mut head) = (Instant::now(), Memory::of(product), 0, Vec::new());
    read_until(&mut stream, |bytes| {
        memory.look()?;
        if received > 0 {
            received += bytes.len() as u64;
        } else {
            head.extend_from_slice(bytes);
            let end = head.windows(4).position(|window| window == b"\r\n\r\n");
            received = end.map_or(0, |end| (head.len() - end - 4) as u64);
        }
        Ok(received >= length)
    })?;
    ensure!(received == length, "{received} bytes of {length}");
    let seconds = began.elapsed().as_secs_f64();
    memory.is_constant(&format!("stream: {length} bytes in {seconds:.0} s, {:.0} MB/s", length as f64 / seconds / 1e6))
}

pub(super) fn trickle(product: &Product, time: Duration) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(product.server.http)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.write_all(get(&format!("/trickle/{}", time.as_secs()), "soak.test").as_bytes())?;
    let (began, mut memory, mut received, mut tail) = (Instant::now(), Memory::of(product), 0, Vec::new());
    read_until(&mut stream, |bytes| {
        memory.look()?;
        received += bytes.iter().filter(|byte| **byte == b'x').count();
        tail.extend_from_slice(bytes);
        tail.drain(..tail.len().saturating_sub(7));
        Ok(tail.ends_with(b"\r\n0\r\n\r\n"))
    })?;
    // The product's own header fields contain an `x`, too.
    let expect = TRICKLE * usize::try_from(time.as_secs())?;
    ensure!((expect..expect + 20).contains(&received), "{received} bytes of {expect}");
    memory.is_constant(&format!("trickle: {} s at {TRICKLE} bytes each second", began.elapsed().as_secs()))
}

pub(super) fn idle(product: &Product, (kind, max): (Kind, u64), count: usize) -> anyhow::Result<()> {
    let each = idle::weigh(kind, &product.server, count, || product.memory())?;
    println!("idle: {count} connections, {kind:?}: {each} bytes each (at most {max})");
    ensure!(each <= max, "an idle connection costs too much");
    Ok(())
}

pub(super) fn websockets(product: &Product, count: usize, changes: usize) -> anyhow::Result<()> {
    let mut sockets = (0..count)
        .map(|_| idle::web_socket(product.server.http, "soak.test", "/websocket"))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (began, memory) = (Instant::now(), product.memory()?);
    for change in 1..=changes {
        product.change(change)?;
        live(product.server.http, change)?;
        // A tenth of the sockets for each change, so that each gets a turn and the run ends in time.
        for (number, socket) in sockets.iter_mut().enumerate().skip(change % 10).step_by(10) {
            let said = Message::text(format!("{number} at {change}"));
            let answer = socket.send(said.clone()).and_then(|()| socket.read());
            let answer = answer.with_context(|| format!("WebSocket {number} was cut by change {change}"))?;
            ensure!(answer == said, "WebSocket {number} got {answer:?}");
        }
    }
    println!(
        "websockets: {count} through {changes} changes in {:.0} s, none cut; memory {:.1} MiB, then {:.1} MiB",
        began.elapsed().as_secs_f64(),
        mib(memory),
        mib(product.memory()?)
    );
    Ok(())
}

/// Waits until a change is served.
fn live(address: SocketAddr, change: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut stream = TcpStream::connect(address)?;
    while Instant::now() < deadline {
        stream.write_all(get("/", &format!("v{change}.test")).as_bytes())?;
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes)?;
        if bytes[..count].starts_with(b"HTTP/1.1 200 ") {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(2));
    }
    bail!("change {change} is not served")
}
