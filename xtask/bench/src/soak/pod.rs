//! The pod of the soak: endless bytes, a trickle, WebSockets that echo, and a short response to any other request.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use tokio_tungstenite::tungstenite;

pub(super) struct Pod {
    pub(super) address: SocketAddr,
}

/// Bytes per second of the trickle.
pub(super) const TRICKLE: usize = 16_000;

impl Pod {
    /// Starts a pod that serves as long as this process lives.
    pub(super) fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no port for the pod")?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A small stack: there are a thousand of them.
                let started = thread::Builder::new().stack_size(128 << 10).spawn(move || drop(serve(stream)));
                drop(started);
            }
        });
        Ok(Self { address })
    }
}

fn serve(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let (mut buffer, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else {
            // Peeks only, so that the handshake is still there for the code that responds to it.
            let count = stream.peek(&mut bytes)?;
            if count == 0 {
                return Ok(());
            }
            if bytes[..count].starts_with(b"GET /websocket ") {
                return echo(stream);
            }
            let count = stream.read(&mut bytes)?;
            buffer.extend_from_slice(&bytes[..count]);
            continue;
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        buffer.drain(..end + 4);
        let path = head.split(' ').nth(1).unwrap_or_default();
        match path.rsplit_once('/') {
            Some(("/stream", length)) => endless(&mut stream, length.parse()?)?,
            Some(("/trickle", seconds)) => trickle(&mut stream, seconds.parse()?)?,
            _ => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\npod")?,
        }
    }
}

fn endless(stream: &mut TcpStream, length: u64) -> anyhow::Result<()> {
    let block = vec![b'x'; 256 << 10];
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")?;
    let mut left = length;
    while left > 0 {
        let part = left.min(block.len() as u64);
        stream.write_all(&block[..usize::try_from(part)?])?;
        left -= part;
    }
    Ok(())
}

/// Sends like internet radio, without a length.
fn trickle(stream: &mut TcpStream, seconds: u64) -> anyhow::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    let began = Instant::now();
    let chunk = [format!("{TRICKLE:x}\r\n").as_bytes(), &[b'x'; TRICKLE], b"\r\n"].concat();
    for second in 1..=seconds {
        stream.write_all(&chunk)?;
        thread::sleep((began + Duration::from_secs(second)).saturating_duration_since(Instant::now()));
    }
    Ok(stream.write_all(b"0\r\n\r\n")?)
}

fn echo(stream: TcpStream) -> anyhow::Result<()> {
    let mut socket = tungstenite::accept(stream)?;
    loop {
        let message = socket.read()?;
        if message.is_text() || message.is_binary() {
            socket.send(message)?;
        }
    }
}
