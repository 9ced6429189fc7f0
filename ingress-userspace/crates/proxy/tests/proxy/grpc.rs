//! gRPC from end to end: the cases of its interoperability tests, under their names, at the level of messages. Clients
//! with TLS and without, a pod that speaks HTTP/2 in the clear. `grpc_interop` has the same with a gRPC library.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream, client::SendRequest, server::SendResponse};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, request::Parts};
use ingress_common::HostL7;
use ingress_model::Protocol;
use tokio::time::timeout;

use ingress_proxy_testing::tls::{config, connect};
use ingress_proxy_testing::{DEADLINE, Proxy, Table, serve_connections, until};

static INITIAL: HeaderName = HeaderName::from_static("x-grpc-test-echo-initial");
static TRAILING: HeaderName = HeaderName::from_static("x-grpc-test-echo-trailing-bin");
/// `\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n`, in its encoded form.
const SPECIAL: &str = "%09%0Atest with whitespace%0D%0Aand Unicode BMP %E2%98%BA and non-BMP %F0%9F%98%88%09%0A";

// === messages ===

/// A message of `length` bytes.
fn message(length: usize) -> Bytes {
    let mut message = BytesMut::from(&[0_u8][..]);
    message.extend_from_slice(&u32::try_from(length).expect("short").to_be_bytes());
    message.resize(5 + length, b'm');
    message.freeze()
}

/// Messages as they arrive, cut anywhere.
struct Messages {
    stream: RecvStream,
    buffer: BytesMut,
}

impl Messages {
    fn new(stream: RecvStream) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// Returns the length of the next message; `None` at the end.
    async fn next(&mut self) -> Result<Option<usize>, h2::Error> {
        loop {
            if let Some(length) = self.buffer.get(1..5).map(|mut length| length.get_u32() as usize)
                && self.buffer.len() >= 5 + length
            {
                assert!(self.buffer.split_to(5 + length)[5..].iter().all(|byte| *byte == b'm'));
                return Ok(Some(length));
            }
            let Some(data) = self.stream.data().await.transpose()? else {
                assert!(self.buffer.is_empty(), "an end amid a message");
                return Ok(None);
            };
            self.stream.flow_control().release_capacity(data.len())?;
            self.buffer.extend_from_slice(&data);
        }
    }

    async fn trailers(&mut self) -> HeaderMap {
        self.stream.trailers().await.expect("trailers").expect("trailers")
    }
}

// === pod ===

#[derive(Default)]
struct Calls {
    begun: usize,
    /// Calls that broke off, with their reasons.
    broken: Vec<(String, Option<Reason>)>,
}

struct Pod {
    address: SocketAddr,
    calls: Arc<Mutex<Calls>>,
}

fn trailers(status: &str, message: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_str(status).expect("a value"));
    if !message.is_empty() {
        trailers.insert("grpc-message", HeaderValue::from_str(message).expect("a value"));
    }
    trailers
}

fn head() -> Response<()> {
    Response::builder().header("content-type", "application/grpc").body(()).expect("valid response")
}

impl Pod {
    fn start() -> Self {
        let calls = Arc::<Mutex<Calls>>::default();
        let seen = Arc::clone(&calls);
        let address = serve_connections(move |stream| {
            let calls = Arc::clone(&seen);
            async move {
                let mut connection = h2::server::handshake(stream).await.expect("a handshake");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    let calls = Arc::clone(&calls);
                    tokio::spawn(async move {
                        calls.lock().expect("unpoisoned").begun += 1;
                        let (parts, body) = request.into_parts();
                        let path = parts.uri.path().to_owned();
                        if let Err(error) = answer(parts, Messages::new(body), respond).await {
                            calls.lock().expect("unpoisoned").broken.push((path, error.reason()));
                        }
                    });
                }
            }
        });
        Self { address, calls }
    }
}

async fn answer(parts: Parts, mut messages: Messages, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    for (name, value) in [("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "interop")] {
        assert_eq!(parts.headers.get(name).map(HeaderValue::as_bytes), Some(value.as_bytes()), "{name}");
    }
    let mut response = head();
    response.headers_mut().extend(parts.headers.get(&INITIAL).map(|value| (INITIAL.clone(), value.clone())));
    let mut last = trailers("0", "");
    last.extend(parts.headers.get(&TRAILING).map(|value| (TRAILING.clone(), value.clone())));
    let mut send = |response| respond.send_response(response, false);
    match parts.uri.path() {
        "/grpc.testing.TestService/EmptyCall" => {
            assert_eq!((messages.next().await?, messages.next().await?), (Some(0), None));
            let mut stream = send(response)?;
            stream.send_data(message(0), false)?;
            stream.send_trailers(last)
        }
        "/grpc.testing.TestService/UnaryCall" => {
            assert_eq!((messages.next().await?, messages.next().await?), (Some(271_828), None));
            let mut stream = send(response)?;
            stream.send_data(message(314_159), false)?;
            stream.send_trailers(last)
        }
        "/grpc.testing.TestService/StreamingInputCall" => {
            let mut sum = 0;
            while let Some(length) = messages.next().await? {
                sum += length;
            }
            let mut stream = send(response)?;
            stream.send_data(message(sum), false)?;
            stream.send_trailers(last)
        }
        "/grpc.testing.TestService/StreamingOutputCall" => {
            assert_eq!((messages.next().await?, messages.next().await?), (Some(3), None));
            let mut stream = send(response)?;
            for length in [31_415, 9, 2_653, 58_979] {
                stream.send_data(message(length), false)?;
            }
            stream.send_trailers(last)
        }
        "/grpc.testing.TestService/FullDuplexCall" => {
            let mut stream = send(response)?;
            while let Some(length) = messages.next().await? {
                stream.send_data(message(2 * length), false)?;
            }
            stream.send_trailers(last)
        }
        "/grpc.testing.TestService/Status" => {
            let message = parts.headers.get("x-message").expect("a message").to_str().expect("text");
            let mut stream = send(response)?;
            stream.send_trailers(trailers("2", message))
        }
        "/grpc.testing.TestService/Sleep" => {
            assert_eq!(parts.headers["grpc-timeout"], "100m");
            messages.next().await?;
            Err(std::future::poll_fn(|cx| respond.poll_reset(cx)).await?.into())
        }
        // The response has only a head, which then carries the trailers' fields.
        _ => {
            response.headers_mut().extend(trailers("12", ""));
            respond.send_response(response, true).map(drop)
        }
    }
}

// === client ===

/// A call in progress.
struct Call {
    sender: SendStream<Bytes>,
    response: Option<h2::client::ResponseFuture>,
}

struct Client(SendRequest<Bytes>);

impl Client {
    async fn over(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static) -> Self {
        let (client, connection) = h2::client::handshake(stream).await.expect("handshake");
        tokio::spawn(async move { drop(connection.await) });
        Self(client)
    }

    async fn call(&mut self, method: &str, fields: &[(&str, &str)]) -> Call {
        let mut request = Request::post(format!("http://a.test/grpc.testing.{method}"))
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            .header("user-agent", "interop");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        self.0 = self.0.clone().ready().await.expect("ready");
        let (response, sender) = self.0.send_request(request.body(()).expect("valid request"), false).expect("sent");
        Call { sender, response: Some(response) }
    }

    /// Sends `lengths`, reads all, and returns the fields, lengths and trailers received.
    async fn whole(
        &mut self,
        method: &str,
        fields: &[(&str, &str)],
        lengths: &[usize],
    ) -> (HeaderMap, Vec<usize>, HeaderMap) {
        let mut call = self.call(method, fields).await;
        for length in lengths {
            call.send(*length);
        }
        call.end();
        let (fields, mut messages) = call.response().await;
        let mut lengths = Vec::new();
        while let Some(length) = messages.next().await.expect("a message") {
            lengths.push(length);
        }
        let trailers = messages.trailers().await;
        assert_eq!(trailers["grpc-status"], "0", "{method}");
        (fields, lengths, trailers)
    }
}

impl Call {
    fn send(&mut self, length: usize) {
        self.sender.send_data(message(length), false).expect("sent");
    }

    fn end(&mut self) {
        self.sender.send_data(Bytes::new(), true).expect("sent");
    }

    async fn response(&mut self) -> (HeaderMap, Messages) {
        let response = self.response.take().expect("once").await.expect("a response");
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (200, &HeaderValue::from_static("application/grpc"))
        );
        let (parts, body) = response.into_parts();
        (parts.headers, Messages::new(body))
    }
}

async fn unary_and_streaming(client: &mut Client) {
    let whole = |(_, lengths, _): (HeaderMap, Vec<usize>, HeaderMap)| lengths;
    // empty_unary, large_unary, client_streaming, server_streaming, empty_stream.
    assert_eq!(whole(client.whole("TestService/EmptyCall", &[], &[0]).await), [0]);
    assert_eq!(whole(client.whole("TestService/UnaryCall", &[], &[271_828]).await), [314_159]);
    let lengths = [27_182, 8, 1_828, 45_904];
    assert_eq!(whole(client.whole("TestService/StreamingInputCall", &[], &lengths).await), [74_922]);
    let lengths = [31_415, 9, 2_653, 58_979];
    assert_eq!(whole(client.whole("TestService/StreamingOutputCall", &[], &[3]).await), lengths);
    assert_eq!(whole(client.whole("TestService/FullDuplexCall", &[], &[]).await), [0; 0]);
    // ping_pong: each message is answered before the next is sent.
    let mut call = client.call("TestService/FullDuplexCall", &[]).await;
    let (_, mut messages) = call.response().await;
    for length in [27_182, 8, 1_828, 45_904] {
        call.send(length);
        assert_eq!(messages.next().await.expect("a message"), Some(2 * length));
    }
    call.end();
    assert_eq!(messages.next().await.expect("an end"), None);
    assert_eq!(messages.trailers().await["grpc-status"], "0");
}

async fn metadata_and_status(client: &mut Client) {
    // custom_metadata.
    let sent = [(INITIAL.as_str(), "test_initial_metadata_value"), (TRAILING.as_str(), "q6ur")];
    for (method, length) in [("TestService/UnaryCall", 271_828), ("TestService/FullDuplexCall", 1)] {
        let (fields, _, trailers) = client.whole(method, &sent, &[length]).await;
        assert_eq!(
            (&fields[&INITIAL], &trailers[&TRAILING]),
            (&sent[0].1.parse().expect("a value"), &sent[1].1.parse().expect("a value"))
        );
    }
    // status_code_and_message, special_status_message.
    for message in ["test status message", SPECIAL] {
        let mut call = client.call("TestService/Status", &[("x-message", message)]).await;
        call.end();
        let (_, mut messages) = call.response().await;
        assert_eq!(messages.next().await.expect("an end"), None);
        let trailers = messages.trailers().await;
        assert_eq!(
            (&trailers["grpc-status"], &trailers["grpc-message"]),
            (&"2".parse().expect("a value"), &message.parse().expect("a value"))
        );
    }
    // unimplemented_method, unimplemented_service.
    for method in ["TestService/UnimplementedCall", "UnimplementedService/UnimplementedCall"] {
        let mut call = client.call(method, &[]).await;
        call.send(0);
        call.end();
        let (fields, mut messages) = call.response().await;
        assert_eq!(fields["grpc-status"], "12");
        assert_eq!(messages.next().await.expect("an end"), None);
    }
}

async fn cancellations(client: &mut Client, pod: &Pod) {
    // Waits until `method` has broken off, or without one until another call has begun.
    let wait_for = async |method: Option<&str>| {
        let begun = pod.calls.lock().expect("unpoisoned").begun;
        let entry = method.map(|method| (format!("/grpc.testing.TestService/{method}"), Some(Reason::CANCEL)));
        let is_there = || {
            let calls = pod.calls.lock().expect("unpoisoned");
            entry.as_ref().map_or(calls.begun > begun, |entry| calls.broken.contains(entry))
        };
        until("the pod has seen the call", is_there).await;
        pod.calls.lock().expect("unpoisoned").broken.clear();
    };
    // cancel_after_begin.
    let mut call = client.call("TestService/StreamingInputCall", &[]).await;
    wait_for(None).await;
    call.sender.send_reset(Reason::CANCEL);
    wait_for(Some("StreamingInputCall")).await;
    // cancel_after_first_response.
    let mut call = client.call("TestService/FullDuplexCall", &[]).await;
    call.send(27_182);
    let (_, mut messages) = call.response().await;
    assert_eq!(messages.next().await.expect("a message"), Some(54_364));
    call.sender.send_reset(Reason::CANCEL);
    wait_for(Some("FullDuplexCall")).await;
    // timeout_on_sleeping_server.
    let mut call = client.call("TestService/Sleep", &[("grpc-timeout", "100m")]).await;
    call.send(27_182);
    let response = call.response.take().expect("once");
    timeout(Duration::from_millis(100), response).await.expect_err("the server sleeps");
    call.sender.send_reset(Reason::CANCEL);
    wait_for(Some("Sleep")).await;
}

#[tokio::test]
async fn grpc_calls_are_forwarded_completely() {
    let pod = Pod::start();
    let proxy = Proxy::start(&Table::default().host("a.test", &[pod.address]).speaking(Protocol::H2c));
    let mut clients = vec![Client::over(tokio::net::TcpStream::connect(proxy.http).await.expect("connected")).await];
    clients.push(Client::over(connect(&proxy, &config(&["h2"]), "a.test").await).await);
    for client in &mut clients {
        timeout(DEADLINE, unary_and_streaming(client)).await.expect("in time");
        timeout(DEADLINE, metadata_and_status(client)).await.expect("in time");
        timeout(DEADLINE, cancellations(client, &pod)).await.expect("in time");
    }
    let HostL7 { requests, active, .. } = proxy.count(1);
    assert_eq!((requests, active), ([24, 0, 0, 0, 6].into(), 0));
}
