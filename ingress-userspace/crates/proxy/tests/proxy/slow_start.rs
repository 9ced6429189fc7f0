//! HTTP/2 clients that send requests on many streams and read nothing, over every kind of connection: the number of
//! requests that begin, and their results.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use ingress_model::Protocol;
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};

use crate::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, NONE, PREFACE, Raw, SETTINGS, WINDOW_UPDATE, frame};
use ingress_proxy_testing::tls;
use ingress_proxy_testing::{DEADLINE, Origin, Proxy, Table, serve_connections, wait_settled, wait_until};

/// Protocols of a client and its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Cleartext,
    Tls,
    Grpc,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Cleartext, Self::Tls, Self::Grpc];

    /// A table that routes `a.test` to `pod`.
    pub(crate) fn table(self, pod: SocketAddr) -> Table {
        let table = Table::default().host("a.test", &[pod]);
        // Hosts that are added later have pods of HTTP/1.1.
        if self == Self::Grpc { table.speaking(Protocol::H2c) } else { table }
    }

    /// A client that grants the largest windows.
    pub(crate) fn client(self, proxy: &Proxy) -> Raw<Box<dyn Stream>> {
        let connect = |address| {
            let stream = TcpStream::connect(address).expect("connected");
            stream.set_read_timeout(Some(DEADLINE)).expect("timeout set");
            stream
        };
        let stream: Box<dyn Stream> = match self {
            Self::Cleartext | Self::Grpc => Box::new(connect(proxy.http)),
            Self::Tls => {
                let name = ServerName::try_from("a.test").expect("a name");
                let connection = ClientConnection::new(tls::config(&["h2"]), name).expect("a connection");
                Box::new(StreamOwned::new(connection, connect(proxy.https)))
            }
        };
        let mut client = Raw(stream);
        // SETTINGS_INITIAL_WINDOW_SIZE: 2^31 - 1.
        let settings = frame(SETTINGS, NONE, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
        client.send(&[PREFACE, &settings, &frame(WINDOW_UPDATE, NONE, 0, &0x7fff_0000_u32.to_be_bytes())].concat());
        client
    }

    /// A request on `stream`.
    pub(crate) fn request(self, stream: u32) -> Vec<u8> {
        let (method, scheme) = match self {
            Self::Cleartext => (0x82, 0x86),
            Self::Tls => (0x82, 0x87),
            Self::Grpc => (0x83, 0x86),
        };
        let mut fields = [&[method, scheme, 0x84, 0x01, 6][..], b"a.test"].concat();
        if self == Self::Grpc {
            fields.extend_from_slice(b"\x0f\x10\x10application/grpc\x00\x02te\x08trailers");
        }
        frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields)
    }
}

pub(crate) trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// A pod that counts its requests.
pub(crate) struct Pod {
    pub(crate) address: SocketAddr,
    asked: Arc<AtomicUsize>,
    _origin: Option<Origin>,
}

impl Pod {
    /// Starts a pod. `length` returns the number of response bytes for a request by its number; `None` means no
    /// response.
    pub(crate) fn start(way: Way, length: impl Fn(usize) -> Option<usize> + Send + Sync + 'static) -> Self {
        let asked = Arc::<AtomicUsize>::default();
        let (count, length) = (Arc::clone(&asked), Arc::new(length));
        if way != Way::Grpc {
            let origin = Origin::start(move |peer| {
                while peer.head().is_some() {
                    match length(count.fetch_add(1, SeqCst)) {
                        Some(length) => peer.answer(&"x".repeat(length)),
                        None => peer.until_closed(),
                    }
                }
            });
            return Self { address: origin.address, asked, _origin: Some(origin) };
        }
        let address = serve_connections(move |stream| {
            let (count, length) = (Arc::clone(&count), Arc::clone(&length));
            async move {
                let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                while let Some(Ok((_request, mut respond))) = connection.accept().await {
                    let length = length(count.fetch_add(1, SeqCst));
                    tokio::spawn(async move {
                        let Some(length) = length else { return std::future::pending().await };
                        let head = http::Response::builder().header("content-type", "application/grpc");
                        let Ok(mut body) = respond.send_response(head.body(()).expect("valid"), false) else { return };
                        body.send_data(Bytes::from(vec![b'x'; length]), true).unwrap_or_default();
                    });
                }
            }
        });
        Self { address, asked, _origin: None }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }
}

const STREAMS: usize = 120;
/// Large enough that the sockets cannot hold four of them.
const LARGE: usize = 6_000_000;

fn stream(number: usize) -> u32 {
    1 + 2 * u32::try_from(number).expect("small")
}

#[test]
fn requests_of_a_client_that_does_not_read_start_slowly() {
    for way in Way::ALL {
        let pod = Pod::start(way, |number| Some(if number < 4 { LARGE } else { 1000 }));
        let proxy = Proxy::start(&way.table(pod.address));
        let mut client = way.client(&proxy);
        client.send(&(0..4).flat_map(|number| way.request(stream(number))).collect::<Vec<_>>());
        wait_until("these are asked", || pod.asked() == 4);
        wait_settled("the sockets are full", || proxy.count(1).bytes_out);
        client.send(&(4..STREAMS).flat_map(|number| way.request(stream(number))).collect::<Vec<_>>());
        let count = || proxy.count(1);
        let here = || count().active + count().requests.success + proxy.shared.stats().waiting as u64;
        wait_until("all are here", || here() == STREAMS as u64);
        // Longer than the interval at which requests begin for a client that reads.
        thread::sleep(Duration::from_millis(600));
        let asked = pod.asked();
        assert!(asked < STREAMS / 3, "{way:?}: {asked} are with the pod");
        let mut ended = 0;
        while ended < STREAMS {
            let frame = client.next().expect("more");
            ended += usize::from(frame.kind == DATA && frame.flags & END_STREAM != 0);
        }
        assert_eq!(pod.asked(), STREAMS, "{way:?}");
    }
}

#[test]
fn silent_pods_do_not_block_other_requests() {
    for way in Way::ALL {
        let pod = Pod::start(way, |_| None);
        let proxy = Proxy::start(&way.table(pod.address));
        let mut client = way.client(&proxy);
        client.send(&(0..STREAMS).flat_map(|number| way.request(stream(number))).collect::<Vec<_>>());
        wait_until("all are asked", || pod.asked() == STREAMS);
    }
}
