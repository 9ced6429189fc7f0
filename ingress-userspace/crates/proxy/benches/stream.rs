//! Cost of an opaque stream: CPU time of the relaying thread, with `splice(2)` as in the proxy and with read and write,
//! in one interleaved run over loopback.
//!
//! `cargo bench --bench stream -- 4 7` passes 4 GB in each of 7 rounds and prints Markdown. On a shared machine,
//! throughput is not meaningful, but CPU time is stable. Benchmark frameworks measure the time of one thread, and three
//! are involved here.
#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use std::{
    env, fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::Duration,
};

use ingress_proxy::l4::tcp::{Pipes, Relay};

const GB: u64 = 1_000_000_000;
const CHUNK: usize = 256 * 1024;
/// Buffer size per direction, with read and write.
const BUFFER: usize = 64 * 1024;

#[derive(Clone, Copy, Debug)]
enum Method {
    Splice,
    ReadWrite,
}

fn main() {
    let arguments: Vec<u64> = env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let [size, rounds] = arguments.first_chunk().copied().unwrap_or([2, 5]);
    let mut ratios = Vec::new();
    println!("| round | splice, s/GB | read and write, s/GB | ratio |\n|---|---|---|---|");
    for round in 1..=rounds {
        // Each method goes first equally often.
        let order =
            if round % 2 == 0 { [Method::ReadWrite, Method::Splice] } else { [Method::Splice, Method::ReadWrite] };
        let mut cost = order.map(|method| measure(method, size * GB).as_secs_f64() / size as f64);
        if round % 2 == 0 {
            cost.reverse();
        }
        let [splice, read_write] = cost;
        ratios.push(splice / read_write);
        println!("| {round} | {splice:.3} | {read_write:.3} | {:.2} |", splice / read_write);
    }
    ratios.sort_by(f64::total_cmp);
    println!("\nMedian ratio {:.2}; most memory held {}", ratios[ratios.len() / 2], peak());
}

/// Returns the CPU time of the relaying thread for `size` bytes.
fn measure(method: Method, size: u64) -> Duration {
    let (mut client, ours) = pair();
    let (theirs, mut endpoint) = pair();
    let sender = thread::spawn(move || {
        let chunk = vec![7; CHUNK];
        let mut left = size;
        while left > 0 {
            let count = left.min(CHUNK as u64);
            client.write_all(&chunk[..count as usize]).expect("sent");
            left -= count;
        }
        // Ends the sending direction, and waits for the end of the other one.
        client.shutdown(std::net::Shutdown::Write).expect("ended");
        assert_eq!(client.read(&mut [0]).expect("an end in order"), 0);
    });
    let receiver = thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        let mut received = 0;
        loop {
            match endpoint.read(&mut buffer).expect("read") {
                0 => break received,
                count => received += count as u64,
            }
        }
    });
    let relay = thread::spawn(move || {
        let before = cpu();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let [client, endpoint] = [ours, theirs].map(|stream| {
                stream.set_nonblocking(true).expect("set");
                tokio::net::TcpStream::from_std(stream).expect("a stream")
            });
            relay(method, client, endpoint).await;
        });
        cpu() - before
    });
    sender.join().expect("sent");
    assert_eq!(receiver.join().expect("received"), size);
    relay.join().expect("relayed")
}

async fn relay(method: Method, mut client: tokio::net::TcpStream, mut endpoint: tokio::net::TcpStream) {
    match method {
        Method::Splice => {
            let relay = Relay { client, endpoint, idle_timeout: Duration::from_secs(60) };
            relay.run(&Pipes::default(), |_passed| {}).await.expect("both ended");
        }
        Method::ReadWrite => {
            let copied = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut endpoint, BUFFER, BUFFER).await;
            copied.expect("both ended");
        }
    }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
    let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
    let (far, _) = listener.accept().expect("accepted");
    (near, far)
}

/// Returns the CPU time of this thread.
fn cpu() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel tells");
    Duration::from_nanos(text.split(' ').next().and_then(|field| field.parse().ok()).expect("a number"))
}

/// Returns the peak memory of this process.
fn peak() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("the kernel tells");
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line").trim().to_owned()
}
