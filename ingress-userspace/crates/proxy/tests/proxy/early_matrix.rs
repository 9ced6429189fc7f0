//! Early answers in all combinations: time of the answer, persistence of the pod's connection, length of the body, its
//! pieces, and the protocol. Every request is answered, and every client connection stays open. `early` tests each
//! dimension by itself.
//!
//! A part of it is always run. All of it takes minutes, and prints a table:
//!
//! ```text
//! XDP_INGRESS_EARLY=all cargo test --package ingress-proxy --test proxy -- early_matrix --nocapture
//! ```

use std::{convert::Infallible, env, fmt, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, timeout},
};

use crate::early::{MIB, Pieces, When, http, parts, pod, table, try_response, try_send};
use ingress_proxy_testing::tls;
use ingress_proxy_testing::{DEADLINE, Proxy};

const LENGTHS: [usize; 5] = [5, 4096, 64 * 1024, MIB, 20 * MIB];
const WHENS: [When; 3] = [When::Before, When::Amid, When::After];
const PIECES: [Pieces; 3] = [Pieces::One, Pieces::Two, Pieces::Trickle];

/// Protocol of a client. Chunked bodies, TLS and HTTP/2 use no pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Http1,
    Chunked,
    Tls,
    Http2,
    Http2Cleartext,
}

const WAYS: [Way; 5] = [Way::Http1, Way::Chunked, Way::Tls, Way::Http2, Way::Http2Cleartext];

/// Result of consecutive requests on one connection, for as long as it was kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    asked: usize,
    answered: usize,
    /// Connections that ended although the body had arrived.
    ended: usize,
}

type Part = Result<Frame<Bytes>, Infallible>;
type Upload = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

enum Sender {
    Http1(Box<dyn Stream>, bool),
    Http2(SendRequest<Upload>),
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Sender {
    async fn open(proxy: &Proxy, way: Way) -> Self {
        match way {
            Way::Http1 | Way::Chunked => Self::Http1(Box::new(http(proxy).await), way == Way::Chunked),
            Way::Tls => Self::Http1(Box::new(tls::connect(proxy, &tls::config(&["http/1.1"]), "a.test").await), false),
            Way::Http2 => Self::http2(tls::connect(proxy, &tls::config(&["h2"]), "a.test").await).await,
            Way::Http2Cleartext => Self::http2(http(proxy).await).await,
        }
    }

    async fn http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.expect("a handshake");
        tokio::spawn(async move { drop(connection.await) });
        Self::Http2(sender)
    }

    /// Returns whether the answer arrived whole, and whether the connection goes on.
    async fn ask(&mut self, length: usize, pieces: Pieces) -> (bool, bool) {
        match self {
            Self::Http1(stream, is_chunked) => {
                if try_send(stream, *is_chunked, length, pieces).await.is_err() {
                    return (false, false);
                }
                let Ok((status, head)) = try_response(stream).await else { return (false, false) };
                (status == 200, !head.contains("connection: close"))
            }
            Self::Http2(sender) => {
                let stream = futures_util::stream::iter(parts(length, pieces).into_iter().enumerate());
                let stream = stream.then(|(number, part)| async move {
                    sleep(Duration::from_millis(u64::from(number > 0))).await;
                    Part::Ok(Frame::data(part))
                });
                let request = Request::post("http://a.test/").body(StreamBody::new(stream.boxed()).boxed_unsync());
                let sent = sender.send_request(request.expect("a request")).await;
                let Ok(response) = sent.map(http::Response::<Incoming>::into_body) else { return (false, false) };
                let is_whole = response.collect().await.is_ok_and(|body| body.to_bytes() == "early");
                (is_whole, sender.ready().await.is_ok())
            }
        }
    }
}

/// Asks `rounds` times in each of these ways.
async fn measure(when: When, keeps: bool, way: Way, lengths: &[usize], rounds: usize) -> Tally {
    let origin = pod(when, keeps);
    let proxy = Proxy::start(&table(&origin));
    let (mut tally, mut sender) = (Tally::default(), Sender::open(&proxy, way).await);
    for pieces in PIECES {
        for length in lengths {
            for _ in 0..rounds {
                tally.asked += 1;
                let asked = timeout(DEADLINE, sender.ask(*length, pieces)).await;
                let (is_answered, goes_on) = asked.unwrap_or((false, false));
                tally.answered += usize::from(is_answered);
                if !goes_on {
                    tally.ended += 1;
                    sender = Sender::open(&proxy, way).await;
                }
            }
        }
    }
    tally
}

impl Tally {
    fn is_good(self) -> bool {
        self.answered == self.asked && self.ended == 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, answered, ended } = self;
        write!(f, "{asked:4} asked, {:3} lost, {ended:3} connections ended", asked - answered)
    }
}

#[tokio::test]
async fn early_responses_lose_no_request_or_connection() {
    let (lengths, rounds) = match env::var("XDP_INGRESS_EARLY").as_deref() {
        Ok("all") => (&LENGTHS[..], 3),
        Ok(other) => panic!("XDP_INGRESS_EARLY is `all` or not set, and not `{other}`"),
        Err(_) => (&[5, 64 * 1024][..], 1),
    };
    let mut bad = Vec::new();
    for keeps in [true, false] {
        for when in WHENS {
            for way in WAYS {
                let tally = measure(when, keeps, way, lengths, rounds).await;
                let row = format!("pod {:6} {when:?} {way:?}", if keeps { "keeps" } else { "closes" });
                println!("{row:32} {tally}");
                if !tally.is_good() {
                    bad.push(row);
                }
            }
        }
    }
    assert!(bad.is_empty(), "{bad:?}");
}
