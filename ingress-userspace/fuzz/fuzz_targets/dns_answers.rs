//! Hostile messages in place of answers from a DNS server, over UDP and TCP. The target checks that nothing panics or
//! runs forever, and that every returned address occurs in a message.
#![no_main]

use std::{
    collections::VecDeque,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use arbitrary::Arbitrary;
use hickory_resolver::net::runtime::{
    DnsUdpSocket, RuntimeProvider, TokioHandle, TokioTime, iocompat::AsyncIoTokioAsStd,
};
use ingress_control::source::lookup_over;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

const NAME: &str = "pods.example.test";
/// The resolver's limit for longer times to live.
const MAX_TTL: Duration = Duration::from_hours(24);
/// The runtime's clock is paused, and the resolver reads another clock, which runs on.
const CLOCK_DIFFERENCE: Duration = Duration::from_mins(1);
/// Addresses of a family that are used.
const MAX_ADDRESSES: usize = 64;

#[derive(Arbitrary, Clone, Debug)]
enum Reply {
    /// Bytes, with or without the id of the question in front.
    Raw {
        is_numbered: bool,
        bytes: Vec<u8>,
    },
    Message {
        flags: u16,
        questions: u8,
        answers: Vec<Record>,
        authorities: Vec<Record>,
        rest: Vec<u8>,
    },
}

#[derive(Arbitrary, Clone, Debug)]
struct Record {
    name: Name,
    kind: u8,
    class: u8,
    ttl: u32,
    data: Vec<u8>,
    /// Difference between the actual and the declared length of the data.
    excess: i8,
}

#[derive(Arbitrary, Clone, Debug)]
enum Name {
    /// Name of the question, at byte 12 of a message.
    Asked,
    Pointer(u16),
    Labels(Vec<Vec<u8>>),
}

/// A runtime with sockets that answer from a script.
#[derive(Clone)]
struct Scripted {
    handle: TokioHandle,
    replies: Arc<Mutex<VecDeque<Reply>>>,
    /// All answers so far.
    said: Arc<Mutex<Vec<Vec<u8>>>>,
}

struct Socket {
    script: Scripted,
    asked: Mutex<Option<(Vec<u8>, SocketAddr)>>,
}

// === answers ===

impl Name {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Asked => vec![0xc0, 12],
            Self::Pointer(to) => (0xc000 | to).to_be_bytes().to_vec(),
            Self::Labels(labels) => {
                let label = |label: &Vec<u8>| [&[(label.len() % 64) as u8], &label[..label.len() % 64]].concat();
                labels.iter().flat_map(label).chain([0]).collect()
            }
        }
    }
}

impl Record {
    fn bytes(&self) -> Vec<u8> {
        let Self { name, kind, class, ttl, data, excess } = self;
        // Mostly the requested types, and those that lead to them.
        let kind = [1, 28, 5, 6, 1, 28, 41, 33, 46, 65][usize::from(*kind) % 10];
        let class = if *class < 240 { 1 } else { u16::from(*class) };
        let data = match kind {
            1 if *excess == 0 => data.iter().copied().chain([192, 0, 2, 1]).take(4).collect(),
            28 if *excess == 0 => data.iter().copied().chain([0x20, 1, 0xd, 0xb8]).chain([0; 12]).take(16).collect(),
            _ => data.clone(),
        };
        let length = (data.len() as u16).wrapping_add_signed(i16::from(*excess));
        let head = [&u16::to_be_bytes(kind)[..], &class.to_be_bytes(), &ttl.to_be_bytes(), &length.to_be_bytes()];
        [name.bytes(), head.concat(), data].concat()
    }
}

impl Reply {
    fn bytes(&self, question: &[u8]) -> Vec<u8> {
        let number = question.get(..2).unwrap_or_default();
        match self {
            Self::Raw { is_numbered: true, bytes } => [number, bytes].concat(),
            Self::Raw { is_numbered: false, bytes } => bytes.clone(),
            Self::Message { flags, questions, answers, authorities, rest } => {
                let records = |records: &[Record]| records.iter().take(200).flat_map(Record::bytes).collect::<Vec<_>>();
                // An answer, with random flags for truncation, authentic data and errors.
                let flags = 0x8000 | (flags & 0x073f);
                let repeated = if questions % 8 == 0 { 2 } else { 1 };
                let asked = question.get(12..).unwrap_or_default();
                // Bytes behind the question are not repeated by a server.
                let end = asked.iter().position(|byte| *byte == 0).map_or(asked.len(), |end| asked.len().min(end + 5));
                let counts = [repeated, answers.len().min(200) as u16, authorities.len().min(200) as u16, 0];
                let counts = counts.into_iter().flat_map(u16::to_be_bytes).collect::<Vec<_>>();
                let asked = asked[..end].repeat(usize::from(repeated));
                let head = [number, &flags.to_be_bytes(), &counts, &asked].concat();
                [head, records(answers), records(authorities), rest.clone()].concat()
            }
        }
    }
}

// === impl Scripted ===

impl Scripted {
    fn answer(&self, question: &[u8]) -> Option<Vec<u8>> {
        let reply = self.replies.lock().unwrap_or_else(PoisonError::into_inner).pop_front()?;
        let bytes = reply.bytes(question);
        self.said.lock().unwrap_or_else(PoisonError::into_inner).push(bytes.clone());
        Some(bytes)
    }
}

impl RuntimeProvider for Scripted {
    type Handle = TokioHandle;
    type Timer = TokioTime;
    type Udp = Socket;
    type Tcp = AsyncIoTokioAsStd<DuplexStream>;

    fn create_handle(&self) -> Self::Handle {
        self.handle.clone()
    }

    fn connect_tcp(
        &self,
        _: SocketAddr,
        _: Option<SocketAddr>,
        _: Option<Duration>,
    ) -> Pin<Box<dyn Send + Future<Output = io::Result<Self::Tcp>>>> {
        let (near, mut far) = duplex(1 << 17);
        let script = self.clone();
        tokio::spawn(async move {
            while let Ok(length) = far.read_u16().await {
                let mut question = vec![0; usize::from(length)];
                if far.read_exact(&mut question).await.is_err() {
                    break;
                }
                let Some(answer) = script.answer(&question) else { break };
                let length = u16::try_from(answer.len()).unwrap_or(u16::MAX);
                if far.write_u16(length).await.is_err() || far.write_all(&answer).await.is_err() {
                    break;
                }
            }
        });
        Box::pin(async move { Ok(AsyncIoTokioAsStd(near)) })
    }

    fn bind_udp(&self, _: SocketAddr, _: SocketAddr) -> Pin<Box<dyn Send + Future<Output = io::Result<Self::Udp>>>> {
        let socket = Socket { script: self.clone(), asked: Mutex::default() };
        Box::pin(async move { Ok(socket) })
    }
}

impl DnsUdpSocket for Socket {
    type Time = TokioTime;

    fn poll_recv_from(&self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((question, from)) = &*asked else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        let Some(answer) = self.script.answer(question) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
        };
        let length = answer.len().min(buf.len());
        buf[..length].copy_from_slice(&answer[..length]);
        Poll::Ready(Ok((length, *from)))
    }

    fn poll_send_to(&self, _: &mut Context<'_>, buf: &[u8], target: SocketAddr) -> Poll<io::Result<usize>> {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some((buf.to_vec(), target));
        Poll::Ready(Ok(buf.len()))
    }
}

fuzz_target!(|replies: Vec<Reply>| {
    let replies = replies.into_iter().take(32).collect();
    let script =
        Scripted { handle: TokioHandle::default(), replies: Arc::new(Mutex::new(replies)), said: Arc::default() };
    // The clock advances at once if no task can run.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let found = runtime.expect("a runtime").block_on(lookup_over(script.clone(), NAME));
    let Some((addresses, ttl)) = found else { return };
    let said = script.said.lock().unwrap_or_else(PoisonError::into_inner);
    // Applies to any message: RFC 2181, 8 allows 68 years.
    assert!(ttl <= MAX_TTL + CLOCK_DIFFERENCE, "{ttl:?}");
    for family in
        [addresses.iter().filter(|ip| ip.is_ipv4()).count(), addresses.iter().filter(|ip| ip.is_ipv6()).count()]
    {
        assert!(family <= MAX_ADDRESSES, "{family} addresses");
    }
    for address in &addresses {
        let bytes = match address {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let is_said = said.iter().any(|message| message.windows(bytes.len()).any(|window| window == bytes));
        assert!(is_said, "{address} is in no message");
    }
});
