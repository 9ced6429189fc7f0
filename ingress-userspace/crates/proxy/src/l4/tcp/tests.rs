//! Tests of relays over loopback: all bytes and both ends arrive, and bytes are read only if the other side takes them.

use std::{io, time::Duration};

use fastrand::Rng;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::{JoinHandle, LocalSet, spawn_local, yield_now},
    time::timeout,
};

use super::{Pipes, Relay, RelayError, RelayedBytes};

const SCHEDULES: u64 = 1_000;
/// Number of schedules run concurrently, because small buffers spend most of the time waiting for acknowledgements.
const TOGETHER: u64 = 25;
/// Only reached by a failing test.
const DEADLINE: Duration = Duration::from_secs(30);

/// Returns both ends of a connection. Small buffers hold less than most schedules send, but twice the segment size of
/// loopback; with less, the kernel would wait for more room.
async fn pair(small: bool) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
    let near = TcpStream::connect(listener.local_addr().expect("address")).await.expect("connected");
    let (far, _) = listener.accept().await.expect("accepted");
    for stream in [&near, &far].into_iter().filter(|_| small) {
        SockRef::from(stream).set_send_buffer_size(8 * 1024).expect("set");
        SockRef::from(stream).set_recv_buffer_size(128 * 1024).expect("set");
    }
    (near, far)
}

/// A client and an endpoint connected by a relay, and the relay's result with the sum of the bytes it passed.
struct Line {
    client: TcpStream,
    endpoint: TcpStream,
    relay: JoinHandle<(RelayedBytes, Result<(), RelayError>)>,
}

impl Line {
    async fn new(pipes: &Pipes, small: [bool; 2], idle_timeout: Duration) -> Self {
        let (client, ours) = pair(small[0]).await;
        let (theirs, endpoint) = pair(small[1]).await;
        let (relay, pipes) = (Relay { client: ours, endpoint: theirs, idle_timeout }, pipes.clone());
        let relay = spawn_local(async move {
            let mut all = RelayedBytes::default();
            let ended = relay
                .run(&pipes, |RelayedBytes { up, down }| {
                    all.up += up;
                    all.down += down;
                })
                .await;
            (all, ended)
        });
        Self { client, endpoint, relay }
    }

    async fn plain() -> Self {
        Self::new(&Pipes::default(), [false; 2], DEADLINE).await
    }
}

/// A step in the schedule of one side. Both sides of a line read all the time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    Rest(usize),
    /// Waits for the end of the other side's sending. If the relay held that end back, this would wait for ever.
    AwaitEnd,
}

/// Returns random steps. After its last step, a side ends its sending. Only one of the two sides waits for the end of
/// the other.
fn schedule(rng: &mut Rng, awaits: bool) -> Vec<Step> {
    let mut steps: Vec<_> = (0..rng.usize(..8))
        .map(|_| match rng.u8(..4) {
            0 => Step::Rest(rng.usize(..20)),
            1 => Step::Send(rng.usize(1..100)),
            2 => Step::Send(rng.usize(1..20_000)),
            _ => Step::Send(rng.usize(1..300_000)),
        })
        .collect();
    if awaits {
        steps.insert(rng.usize(..=steps.len()), Step::AwaitEnd);
    }
    steps
}

/// Returns the bytes that a side sends, from the first one on; they depend on their position.
fn bytes(seed: u64) -> impl FnMut(usize) -> Vec<u8> {
    let mut place = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move |count| {
        let next =
            (0..count as u64).map(|n| place.wrapping_add(n).wrapping_mul(0xd134_2543_de82_ef95).to_be_bytes()[0]);
        let bytes = next.collect();
        place = place.wrapping_add(count as u64);
        bytes
    }
}

/// Sends as scheduled in `steps`. Returns the number of bytes.
async fn send(
    mut half: OwnedWriteHalf,
    steps: Vec<Step>,
    seed: u64,
    ended: tokio::sync::watch::Receiver<bool>,
) -> usize {
    let (mut next, mut sent) = (bytes(seed), 0);
    for step in steps {
        match step {
            Step::Send(count) => {
                half.write_all(&next(count)).await.expect("sent");
                sent += count;
            }
            Step::Rest(turns) => rest(turns).await,
            Step::AwaitEnd => drop(ended.clone().wait_for(|ended| *ended).await.expect("the reader goes on")),
        }
    }
    half.shutdown().await.expect("ended");
    sent
}

async fn rest(turns: usize) {
    for _ in 0..turns {
        yield_now().await;
    }
}

/// Reads to the end and compares. Returns the number of bytes.
async fn receive(mut half: OwnedReadHalf, seed: u64, mut rng: Rng, ended: tokio::sync::watch::Sender<bool>) -> usize {
    let (mut next, mut received) = (bytes(seed), 0);
    let mut buffer = vec![0; rng.usize(1..50_000)];
    loop {
        let count = half.read(&mut buffer).await.expect("read");
        assert_eq!(buffer[..count], next(count), "after {received} bytes");
        if count == 0 {
            ended.send_replace(true);
            return received;
        }
        received += count;
        if rng.u8(..10) == 0 {
            rest(rng.usize(..10)).await;
        }
    }
}

/// Runs the schedule of `seed`.
async fn check(seed: u64, pipes: &Pipes) {
    let mut rng = Rng::with_seed(seed);
    let line = Line::new(pipes, [rng.bool(), rng.bool()], DEADLINE).await;
    let awaits = rng.u8(..3);
    let (up, down) = (schedule(&mut rng, awaits == 1), schedule(&mut rng, awaits == 2));
    let Line { client, endpoint, relay } = line;
    let ((from_client, to_client), (from_endpoint, to_endpoint)) = (client.into_split(), endpoint.into_split());
    let (up_ended, client_sees) = tokio::sync::watch::channel(false);
    let (down_ended, endpoint_sees) = tokio::sync::watch::channel(false);
    let (received_up, received_down, sent_up, sent_down, relayed) = tokio::join!(
        receive(from_endpoint, seed, rng.fork(), down_ended),
        receive(from_client, !seed, rng.fork(), up_ended),
        send(to_client, up, seed, client_sees),
        send(to_endpoint, down, !seed, endpoint_sees),
        relay,
    );
    let (passed, ended) = relayed.expect("no panic");
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!((received_up, received_down), (sent_up, sent_down));
    assert_eq!(passed, RelayedBytes { up: sent_up, down: sent_down });
}

async fn within(what: &str, work: impl Future<Output = ()>) {
    timeout(DEADLINE, LocalSet::new().run_until(work)).await.unwrap_or_else(|_elapsed| panic!("stuck: {what}"));
}

#[tokio::test]
async fn all_bytes_and_ends_arrive_for_any_schedule() {
    let pipes = Pipes::default();
    for first in (0..SCHEDULES).step_by(TOGETHER as usize) {
        within(&format!("schedules from {first}"), async {
            let spawn = |seed| {
                (
                    seed,
                    spawn_local({
                        let pipes = pipes.clone();
                        async move { check(seed, &pipes).await }
                    }),
                )
            };
            let running: Vec<_> = (first..first + TOGETHER).map(spawn).collect();
            for (seed, running) in running {
                running.await.unwrap_or_else(|error| panic!("schedule {seed}: {error}"));
            }
        })
        .await;
    }
    let most = 4 * TOGETHER as usize;
    assert!(
        (1..=most).contains(&pipes.kept()),
        "{} pipes: those of one relay are used again by the next",
        pipes.kept()
    );
}

#[tokio::test]
async fn all_bytes_arrive_when_no_pipe_can_be_created() {
    for seed in 0..SCHEDULES / 10 {
        let buffers = Pipes::of_buffers(10_000);
        within(&format!("schedule {seed}"), check(seed, &buffers)).await;
        assert!(buffers.kept() > 0, "pipes are not tried");
    }
}

#[tokio::test]
async fn urgent_data_delay_neither_later_bytes_nor_the_end() {
    for pipes in [Pipes::default(), Pipes::of_buffers(1_000)] {
        within("a sender of urgent data", async {
            let Line { mut client, mut endpoint, relay } = Line::new(&pipes, [false; 2], DEADLINE).await;
            client.write_all(b"before").await.expect("sent");
            SockRef::from(&client).send_out_of_band(b"!").expect("sent");
            client.write_all(b"after").await.expect("sent");
            let mut received = [0; 11];
            endpoint.read_exact(&mut received).await.expect("read");
            assert_eq!(&received, b"beforeafter");
            SockRef::from(&client).send_out_of_band(b"!").expect("sent");
            client.write_all(b"last").await.expect("sent");
            client.shutdown().await.expect("ended");
            let mut rest = Vec::new();
            endpoint.read_to_end(&mut rest).await.expect("read");
            assert_eq!(rest, b"last");
            drop(endpoint);
            let (passed, ended) = relay.await.expect("no panic");
            assert!(ended.is_ok(), "{ended:?}");
            assert_eq!(passed, RelayedBytes { up: 15, down: 0 });
        })
        .await;
    }
}

#[tokio::test]
async fn a_receiver_that_does_not_read_stops_the_sender() {
    within("a sender that is held back", async {
        let Line { mut client, endpoint, relay } = Line::plain().await;
        let (mut sent, chunk) = (0, vec![7; 64 * 1024]);
        // The endpoint does not read, so the sender stops when the buffers are full and stays stopped.
        while let Ok(written) = timeout(Duration::from_millis(300), client.write(&chunk)).await {
            sent += written.expect("sent");
            assert!(sent < 64 * 1024 * 1024, "it takes everything");
        }
        let mut endpoint = endpoint;
        client.shutdown().await.expect("ended");
        let mut received = Vec::new();
        endpoint.read_to_end(&mut received).await.expect("read");
        assert_eq!(received.len(), sent);
        drop(endpoint);
        assert!(relay.await.expect("no panic").1.is_ok());
    })
    .await;
}

/// Reads to the end, which must be a reset. Returns the bytes before it.
async fn read_to_reset(mut stream: TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    let error = stream.read_to_end(&mut received).await.expect_err("no end in order");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    received
}

fn reset(stream: TcpStream) {
    super::relay::reset(&stream);
}

#[tokio::test]
async fn a_reset_is_forwarded_after_the_bytes_before_it() {
    within("a client that breaks off", async {
        let Line { mut client, mut endpoint, relay } = Line::plain().await;
        client.write_all(b"hello").await.expect("sent");
        endpoint.read_exact(&mut [0; 5]).await.expect("read");
        reset(client);
        assert_eq!(read_to_reset(endpoint).await, b"");
        assert!(matches!(relay.await.expect("no panic").1, Err(RelayError::Broken(_))));
    })
    .await;
    within("an endpoint that answers and breaks off, as one does that closes with bytes unread", async {
        let Line { mut client, mut endpoint, relay } = Line::plain().await;
        client.write_all(&[1; 100_000]).await.expect("sent");
        endpoint.read_exact(&mut [0; 1]).await.expect("read");
        endpoint.write_all(b"413").await.expect("sent");
        drop(endpoint);
        assert_eq!(read_to_reset(client).await, b"413");
        assert!(matches!(relay.await.expect("no panic").1, Err(RelayError::Broken(_))));
    })
    .await;
    within("an endpoint that breaks off without a word", async {
        let Line { client, endpoint, relay } = Line::plain().await;
        reset(endpoint);
        assert_eq!(read_to_reset(client).await, b"");
        assert!(matches!(relay.await.expect("no panic").1, Err(RelayError::Broken(_))));
    })
    .await;
}

#[tokio::test]
async fn silence_in_both_directions_ends_a_stream() {
    within("a stream that rests", async {
        let Line { mut client, mut endpoint, relay } =
            Line::new(&Pipes::default(), [false; 2], Duration::from_millis(50)).await;
        endpoint.write_all(b"x").await.expect("sent");
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.expect("closed in order");
        assert_eq!(received, b"x");
        assert!(matches!(relay.await.expect("no panic").1, Err(RelayError::Idle)));
    })
    .await;
}
