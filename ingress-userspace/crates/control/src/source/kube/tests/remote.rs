//! Tests of the source against a server behind real connections, which may fall silent.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, AtomicUsize},
};

use futures_util::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::{
    body::{Frame, Incoming},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Config;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};
use tower::ServiceExt;

use super::{
    client::{connector, stack},
    connections::{PATIENCE, Patience},
    *,
};
use crate::source::names::{Dns, NameKind};

/// An API server with one Ingress and many Secrets, over TLS.
struct Remote {
    address: SocketAddr,
    certificate: Vec<u8>,
    speaks_http2: AtomicBool,
    connections: AtomicUsize,
    /// Connections made before the last send carry no more data, and stay open.
    silenced: watch::Sender<()>,
}

impl Remote {
    async fn start(secrets: usize) -> Arc<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
        let inner = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
        let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let remote = Arc::new(Self {
            address: listener.local_addr().expect("an address"),
            certificate: pair.cert.der().to_vec(),
            speaks_http2: true.into(),
            connections: AtomicUsize::default(),
            silenced: watch::Sender::default(),
        });
        tokio::spawn(Arc::clone(&remote).relay(listener, inner.local_addr().expect("an address")));
        tokio::spawn(Arc::clone(&remote).serve(inner, pair, secrets));
        remote
    }

    async fn relay(self: Arc<Self>, listener: TcpListener, to: SocketAddr) {
        loop {
            let (mut client, _) = listener.accept().await.expect("a connection");
            self.connections.fetch_add(1, Relaxed);
            let mut silenced = self.silenced.subscribe();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(to).await.expect("a connection");
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut server) => {}
                    _ = silenced.changed() => std::future::pending().await,
                }
            });
        }
    }

    async fn serve(self: Arc<Self>, listener: TcpListener, pair: rcgen::CertifiedKey<rcgen::KeyPair>, secrets: usize) {
        let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der()).expect("a key");
        let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![pair.cert.der().clone()], key);
        let tls = tls.expect("a TLS configuration");
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut tls = tls.clone();
            let speaks_http2 = self.speaks_http2.load(Relaxed);
            tls.alpn_protocols = vec![if speaks_http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
            tokio::spawn(async move {
                // Clients open a connection to find out the protocol, and close it.
                let Ok(stream) = TlsAcceptor::from(Arc::new(tls)).accept(stream).await else { return };
                let answer =
                    service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(&request, secrets))));
                let stream = TokioIo::new(stream);
                if speaks_http2 {
                    drop(http2::Builder::new(TokioExecutor::new()).serve_connection(stream, answer).await);
                } else {
                    drop(http1::Builder::new().serve_connection(stream, answer).await);
                }
            });
        }
    }

    fn client(&self, patience: Patience) -> Client {
        let mut config = Config::new(format!("https://{}", self.address).parse().expect("an address"));
        config.root_cert = Some(vec![self.certificate.clone()]);
        stack(config, Dns::system(NameKind::Operator), patience).expect("a client").build()
    }
}

/// Returns a list and a watch that does not end. A client that watches Ingresses for the second time receives another
/// one.
fn answer(
    request: &Request<Incoming>,
    secrets: usize,
) -> Response<impl http_body::Body<Data = bytes::Bytes, Error = Infallible> + use<>> {
    let query = request.uri().query().unwrap_or_default();
    let plural = request.uri().path().rsplit('/').next().unwrap_or_default();
    let secret = query.split('&').find_map(|field| field.strip_prefix("fieldSelector=metadata.name%3D"));
    let name = |number: usize| format!("s{number}");
    let events = match (plural, query.contains("sendInitialEvents=true"), secret) {
        ("ingresses", true, _) => {
            let tls: Vec<_> = (0..secrets).map(|number| format!(r#"{{"secretName":"{}"}}"#, name(number))).collect();
            let ingress = object("Ingress", "a", &format!(r#","spec":{{"tls":[{}]}}"#, tls.join(",")));
            event("ADDED", &ingress) + &bookmark("Ingress", "networking.k8s.io/v1")
        }
        ("ingresses", false, _) => event("ADDED", &object("Ingress", "news", "")),
        ("secrets", true, Some(name)) => event("ADDED", &object("Secret", name, "")) + &bookmark("Secret", "v1"),
        (_, true, _) => bookmark("IngressClass", "networking.k8s.io/v1"),
        (_, false, _) => String::new(),
    };
    let frames = stream::iter([Ok(Frame::data(bytes::Bytes::from(events)))]).chain(stream::pending());
    Response::new(StreamBody::new(frames))
}

/// Follows `remote` until it has reported `count` changes, calls `act`, and waits until it has reported `news`.
async fn watch(remote: &Remote, patience: Patience, count: usize, act: impl FnOnce()) {
    let (sender, mut batches) = crate::source::queue();
    let options = options();
    let compare = async {
        let mut received = 0;
        while received < count {
            received += batches.recv().await.expect("a batch").changes.len();
        }
        act();
        let news = batches.recv().await.expect("a batch").changes.into_iter().map(describe);
        assert_eq!(news.collect::<Vec<_>>(), ["+Ingress n/news"]);
    };
    tokio::select! {
        () = watch_with_client(remote.client(patience), Scope::default(), &options, sender) => panic!("the source ended"),
        result = timeout(Duration::from_secs(60), compare) => result.expect("in time"),
    }
}

#[tokio::test]
async fn a_silent_server_is_left_for_one_that_responds() {
    let patience = Patience { silence: Duration::from_millis(100), answer: Duration::from_millis(300) };
    for is_http2_afterwards in [true, false] {
        let remote = Remote::start(3).await;
        watch(&remote, patience, 4, || {
            remote.speaks_http2.store(is_http2_afterwards, Relaxed);
            remote.silenced.send_replace(());
        })
        .await;
    }
}

#[tokio::test]
async fn many_watches_share_few_connections() {
    let remote = Remote::start(500).await;
    let began = std::time::Instant::now();
    let first = async {
        let (sender, mut batches) = crate::source::queue();
        let options = translate::Options { max_references: 500, ..options() };
        // On a busy machine the first batch does not wait for all of them.
        let received = async {
            let mut received = 0;
            while received < 501 {
                received += batches.recv().await.expect("a batch").changes.len();
            }
            received
        };
        tokio::select! {
            () = watch_with_client(remote.client(PATIENCE), Scope::default(), &options, sender) => panic!("the source ended"),
            received = received => received,
        }
    };
    let received = timeout(Duration::from_secs(60), first).await.expect("in time");
    let connections = remote.connections.load(Relaxed);
    // One connection to determine the protocol, and 505 watches, 64 to a connection.
    assert_eq!((received, connections), (501, 1 + 8), "after {:?}", began.elapsed());
}

#[tokio::test]
async fn connections_have_keepalive_and_a_user_timeout() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
    let server: http::Uri = format!("http://{}", listener.local_addr().expect("an address")).parse().expect("a URI");
    let connector =
        connector(&Config::new(server.clone()), Dns::system(NameKind::Operator), PATIENCE).expect("a connector");
    let hyper_rustls::MaybeHttpsStream::Http(stream) = connector.oneshot(server).await.expect("a connection") else {
        panic!("in the clear");
    };
    let socket = socket2::SockRef::from(stream.inner());
    let Patience { silence, answer } = PATIENCE;
    assert!(socket.keepalive().expect("an option"));
    assert_eq!(socket.tcp_keepalive_time().expect("an option"), silence);
    let probes =
        socket.tcp_keepalive_interval().expect("an option") * socket.tcp_keepalive_retries().expect("an option");
    assert_eq!(probes, answer);
    assert_eq!(socket.tcp_user_timeout().expect("an option"), Some(silence + answer));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_and_stays_silent_times_out() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
    let remote = format!("https://{}", listener.local_addr().expect("an address")).parse().expect("a URI");
    let client = stack(Config::new(remote), Dns::system(NameKind::Operator), PATIENCE).expect("a client").build();
    let began = Instant::now();
    let error = client.apiserver_version().await.expect_err("no answer");
    assert!(matches!(&error, kube::Error::Service(_)), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
