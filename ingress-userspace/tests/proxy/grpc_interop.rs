//! The public interoperability cases of gRPC, by their names, with tonic for the client and for the pod. What tonic
//! does not let one say, `grpc.rs` says frame by frame.

use std::{
    convert::Infallible,
    future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{
    Stream, StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use http::{HeaderValue, Uri, uri::PathAndQuery};
use http_body::{Body as _, Frame};
use hyper::{body::Incoming, server::conn::http2::Builder};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ingress_userspace::model::Protocol;
use prost::Message;
use tokio::{sync::mpsc, task::yield_now};
use tonic::{
    Code, Request, Response, Status, Streaming,
    body::Body,
    client,
    metadata::{MetadataMap, MetadataValue},
    server,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::support::{DEADLINE, Proxy, Table};

const INITIAL: &str = "x-grpc-test-echo-initial";
const TRAILING: &str = "x-grpc-test-echo-trailing-bin";

// === messages: `grpc/testing/messages.proto`, as far as the cases have them ===

#[derive(Clone, PartialEq, Message)]
struct Empty {}

#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(bytes = "vec", tag = "2")]
    body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct EchoStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct SimpleRequest {
    #[prost(int32, tag = "2")]
    response_size: i32,
    #[prost(message, optional, tag = "3")]
    payload: Option<Payload>,
    #[prost(message, optional, tag = "7")]
    response_status: Option<EchoStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct SimpleResponse {
    #[prost(message, optional, tag = "1")]
    payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Message)]
struct StreamingInputCallRequest {
    #[prost(message, optional, tag = "1")]
    payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Message)]
struct StreamingInputCallResponse {
    #[prost(int32, tag = "1")]
    aggregated_payload_size: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseParameters {
    #[prost(int32, tag = "1")]
    size: i32,
}

#[derive(Clone, PartialEq, Message)]
struct StreamingOutputCallRequest {
    #[prost(message, repeated, tag = "2")]
    response_parameters: Vec<ResponseParameters>,
    #[prost(message, optional, tag = "3")]
    payload: Option<Payload>,
    #[prost(message, optional, tag = "7")]
    response_status: Option<EchoStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct StreamingOutputCallResponse {
    #[prost(message, optional, tag = "1")]
    payload: Option<Payload>,
}

impl Payload {
    /// So many bytes, each unlike its neighbours.
    fn of(size: i32) -> Self {
        Self { body: (0..size).map(|at| (at % 251) as u8).collect() }
    }
}

impl From<EchoStatus> for Status {
    fn from(EchoStatus { code, message }: EchoStatus) -> Self {
        Self::new(Code::from_i32(code), message)
    }
}

/// The size of a payload, each of whose bytes is as it was sent.
fn size_of(payload: Option<Payload>) -> i32 {
    let payload = payload.unwrap_or_default();
    let size = i32::try_from(payload.body.len()).expect("short");
    assert!(payload == Payload::of(size), "another payload of {size} bytes");
    size
}

fn output(sizes: &[i32], payload: i32) -> StreamingOutputCallRequest {
    let response_parameters = sizes.iter().map(|&size| ResponseParameters { size }).collect();
    StreamingOutputCallRequest { response_parameters, payload: Some(Payload::of(payload)), response_status: None }
}

// === pod ===

#[derive(Default)]
struct Calls {
    begun: AtomicUsize,
    /// Those that ended before their answers did.
    broken: AtomicUsize,
}

struct Pod {
    address: SocketAddr,
    calls: Arc<Calls>,
}

impl Pod {
    fn start() -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        listener.set_nonblocking(true).expect("non-blocking");
        let pod = Self { address: listener.local_addr().expect("address"), calls: Arc::default() };
        let calls = Arc::clone(&pod.calls);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
                while let Ok((stream, _)) = listener.accept().await {
                    let calls = Arc::clone(&calls);
                    tokio::spawn(async move {
                        let service = hyper::service::service_fn(move |request| {
                            let calls = Arc::clone(&calls);
                            async move { Ok::<_, Infallible>(serve(request, calls).await) }
                        });
                        drop(Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await);
                    });
                }
            });
        });
        pod
    }

    /// Waits until all of `begun` calls have broken off.
    async fn until_broken(&self, begun: usize) {
        until("calls break off", || self.calls.broken.load(SeqCst) == begun).await;
        assert_eq!(self.calls.begun.load(SeqCst), begun);
    }
}

/// Waits until `condition` holds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited too long until {what}");
        yield_now().await;
    }
}

/// A call at the pod: what it answers, as soon as it answers.
struct Answer {
    calls: Arc<Calls>,
    body: Option<Body>,
    trailing: Option<HeaderValue>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.body.as_ref().is_some_and(|body| body.is_end_stream()) {
            self.calls.broken.fetch_add(1, SeqCst);
        }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { body, trailing, .. } = self.get_mut();
        Pin::new(body.as_mut().expect("an answer")).poll_frame(cx).map_ok(|mut frame| {
            if let Some(trailers) = frame.trailers_mut()
                && let Some(value) = trailing.take()
            {
                trailers.insert(TRAILING, value);
            }
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.is_end_stream())
    }
}

async fn serve(request: http::Request<Incoming>, calls: Arc<Calls>) -> http::Response<Answer> {
    calls.begun.fetch_add(1, SeqCst);
    let initial = request.headers().get(INITIAL).cloned();
    let trailing = request.headers().get(TRAILING).cloned();
    let mut answer = Answer { calls, body: None, trailing };
    let (mut head, body) = dispatch(request).await.into_parts();
    if let Some(value) = initial {
        head.headers.insert(INITIAL, value);
    }
    answer.body = Some(body);
    http::Response::from_parts(head, answer)
}

async fn dispatch(request: http::Request<Incoming>) -> http::Response<Body> {
    match request.uri().path() {
        "/grpc.testing.TestService/EmptyCall" => {
            let codec = ProstCodec::<Empty, Empty>::default();
            server::Grpc::new(codec).unary(service_fn(empty_call), request).await
        }
        "/grpc.testing.TestService/UnaryCall" => {
            let codec = ProstCodec::<SimpleResponse, SimpleRequest>::default();
            server::Grpc::new(codec).unary(service_fn(unary_call), request).await
        }
        "/grpc.testing.TestService/StreamingInputCall" => {
            let codec = ProstCodec::<StreamingInputCallResponse, StreamingInputCallRequest>::default();
            server::Grpc::new(codec).client_streaming(service_fn(streaming_input_call), request).await
        }
        "/grpc.testing.TestService/StreamingOutputCall" => {
            let codec = ProstCodec::<StreamingOutputCallResponse, StreamingOutputCallRequest>::default();
            server::Grpc::new(codec).server_streaming(service_fn(streaming_output_call), request).await
        }
        "/grpc.testing.TestService/FullDuplexCall" => {
            let codec = ProstCodec::<StreamingOutputCallResponse, StreamingOutputCallRequest>::default();
            server::Grpc::new(codec).streaming(service_fn(full_duplex_call), request).await
        }
        _ => Status::unimplemented("").into_http(),
    }
}

type Outputs = BoxStream<'static, Result<StreamingOutputCallResponse, Status>>;

async fn empty_call(_: Request<Empty>) -> Result<Response<Empty>, Status> {
    Ok(Response::new(Empty {}))
}

async fn unary_call(request: Request<SimpleRequest>) -> Result<Response<SimpleResponse>, Status> {
    let SimpleRequest { response_size, payload, response_status } = request.into_inner();
    size_of(payload);
    match response_status {
        Some(status) => Err(Status::from(status)),
        None => Ok(Response::new(SimpleResponse { payload: Some(Payload::of(response_size)) })),
    }
}

async fn streaming_input_call(
    request: Request<Streaming<StreamingInputCallRequest>>,
) -> Result<Response<StreamingInputCallResponse>, Status> {
    let mut requests = request.into_inner();
    let mut aggregated_payload_size = 0;
    while let Some(request) = requests.message().await? {
        aggregated_payload_size += size_of(request.payload);
    }
    Ok(Response::new(StreamingInputCallResponse { aggregated_payload_size }))
}

async fn streaming_output_call(request: Request<StreamingOutputCallRequest>) -> Result<Response<Outputs>, Status> {
    Ok(Response::new(outputs(request.into_inner()).boxed()))
}

/// One with a deadline is never answered.
async fn full_duplex_call(
    request: Request<Streaming<StreamingOutputCallRequest>>,
) -> Result<Response<Outputs>, Status> {
    if request.metadata().contains_key("grpc-timeout") {
        future::pending::<()>().await;
    }
    Ok(Response::new(request.into_inner().map_ok(outputs).try_flatten().boxed()))
}

fn outputs(
    request: StreamingOutputCallRequest,
) -> impl Stream<Item = Result<StreamingOutputCallResponse, Status>> + Send + 'static {
    let StreamingOutputCallRequest { response_parameters, payload, response_status } = request;
    size_of(payload);
    let payloads = response_parameters.into_iter().map(|ResponseParameters { size }| Some(Payload::of(size)));
    let outputs = payloads.map(|payload| Ok(StreamingOutputCallResponse { payload }));
    stream::iter(outputs.chain(response_status.map(|status| Err(Status::from(status)))))
}

// === client ===

struct Test {
    client: client::Grpc<Channel>,
    pod: Pod,
    _proxy: Proxy,
}

fn path(method: &str) -> PathAndQuery {
    format!("/grpc.testing.{method}").parse().expect("a path")
}

impl Test {
    async fn start() -> Self {
        let pod = Pod::start();
        let proxy = Proxy::start(&Table::default().host("a.test", &[pod.address]).speaking(Protocol::H2c));
        let endpoint = Endpoint::from_shared(format!("http://{}", proxy.http)).expect("an address");
        let endpoint = endpoint.origin(Uri::from_static("http://a.test"));
        let client = client::Grpc::new(endpoint.connect().await.expect("connected"));
        Self { client, pod, _proxy: proxy }
    }

    async fn unary<Q, A>(&mut self, method: &str, request: Request<Q>) -> Result<Response<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.client.ready().await.expect("ready");
        self.client.unary(request, path(method), ProstCodec::<Q, A>::default()).await
    }

    async fn input<S>(&mut self, request: Request<S>) -> Result<Response<StreamingInputCallResponse>, Status>
    where
        S: Stream<Item = StreamingInputCallRequest> + Send + 'static,
    {
        self.client.ready().await.expect("ready");
        let codec = ProstCodec::<StreamingInputCallRequest, StreamingInputCallResponse>::default();
        self.client.client_streaming(request, path("TestService/StreamingInputCall"), codec).await
    }

    async fn full_duplex<S>(
        &mut self,
        request: Request<S>,
    ) -> Result<Response<Streaming<StreamingOutputCallResponse>>, Status>
    where
        S: Stream<Item = StreamingOutputCallRequest> + Send + 'static,
    {
        self.client.ready().await.expect("ready");
        let codec = ProstCodec::<StreamingOutputCallRequest, StreamingOutputCallResponse>::default();
        self.client.streaming(request, path("TestService/FullDuplexCall"), codec).await
    }
}

/// The size of the next message; `None` at the end.
async fn next(answers: &mut Streaming<StreamingOutputCallResponse>) -> Option<i32> {
    answers.message().await.expect("a message or the end").map(|answer| size_of(answer.payload))
}

fn large() -> SimpleRequest {
    SimpleRequest { response_size: 314_159, payload: Some(Payload::of(271_828)), response_status: None }
}

// === cases ===

async fn empty_unary(test: &mut Test) {
    let answer = test.unary::<_, Empty>("TestService/EmptyCall", Request::new(Empty {})).await;
    assert_eq!(answer.expect("an answer").into_inner(), Empty {});
}

async fn large_unary(test: &mut Test) {
    let answer = test.unary::<_, SimpleResponse>("TestService/UnaryCall", Request::new(large())).await;
    assert_eq!(size_of(answer.expect("an answer").into_inner().payload), 314_159);
}

async fn client_streaming(test: &mut Test) {
    let sizes = [27_182, 8, 1_828, 45_904];
    let requests = sizes.map(|size| StreamingInputCallRequest { payload: Some(Payload::of(size)) });
    let answer = test.input(Request::new(stream::iter(requests))).await.expect("an answer").into_inner();
    assert_eq!(answer.aggregated_payload_size, 74_922);
}

async fn server_streaming(test: &mut Test) {
    let sizes = [31_415, 9, 2_653, 58_979];
    let codec = ProstCodec::<StreamingOutputCallRequest, StreamingOutputCallResponse>::default();
    test.client.ready().await.expect("ready");
    let request = Request::new(output(&sizes, 0));
    let answer = test.client.server_streaming(request, path("TestService/StreamingOutputCall"), codec).await;
    let mut answers = answer.expect("an answer").into_inner();
    for size in sizes {
        assert_eq!(next(&mut answers).await, Some(size));
    }
    assert_eq!(next(&mut answers).await, None);
}

/// Each message is answered before the next is sent.
async fn ping_pong(test: &mut Test) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let requests = stream::poll_fn(move |cx| receiver.poll_recv(cx));
    let mut answers = test.full_duplex(Request::new(requests)).await.expect("an answer").into_inner();
    for (sent, wanted) in [(27_182, 31_415), (8, 9), (1_828, 2_653), (45_904, 58_979)] {
        sender.send(output(&[wanted], sent)).expect("sent");
        assert_eq!(next(&mut answers).await, Some(wanted));
    }
    drop(sender);
    assert_eq!(next(&mut answers).await, None);
}

async fn empty_stream(test: &mut Test) {
    let mut answers = test.full_duplex(Request::new(stream::empty())).await.expect("an answer").into_inner();
    assert_eq!(next(&mut answers).await, None);
}

async fn custom_metadata(test: &mut Test) {
    fn adorned<T>(message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(INITIAL, MetadataValue::from_static("test_initial_metadata_value"));
        request.metadata_mut().insert_bin(TRAILING, MetadataValue::from_bytes(&[0xab; 3]));
        request
    }
    let check = |initial: &MetadataMap, trailing: &MetadataMap| {
        let initial = initial.get(INITIAL).expect("initial metadata").to_str().expect("text");
        let trailing = trailing.get_bin(TRAILING).expect("trailing metadata").to_bytes().expect("base64");
        assert_eq!((initial, &trailing[..]), ("test_initial_metadata_value", &[0xab; 3][..]));
    };

    let answer = test.unary::<_, SimpleResponse>("TestService/UnaryCall", adorned(large())).await;
    let answer = answer.expect("an answer");
    check(answer.metadata(), answer.metadata());

    let answer = test.full_duplex(adorned(stream::iter([output(&[314_159], 271_828)]))).await.expect("an answer");
    let (initial, mut answers, _) = answer.into_parts();
    assert_eq!((next(&mut answers).await, next(&mut answers).await), (Some(314_159), None));
    check(&initial, &answers.trailers().await.expect("an end").expect("trailers"));
}

async fn status_code_and_message(test: &mut Test) {
    let echo = EchoStatus { code: 2, message: "test status message".to_owned() };
    let request = SimpleRequest { response_status: Some(echo.clone()), ..SimpleRequest::default() };
    let answer = test.unary::<_, SimpleResponse>("TestService/UnaryCall", Request::new(request)).await;
    let status = answer.expect_err("a status");
    assert_eq!((status.code(), status.message()), (Code::Unknown, "test status message"));

    let request = StreamingOutputCallRequest { response_status: Some(echo), ..output(&[], 0) };
    let answer = test.full_duplex(Request::new(stream::iter([request]))).await.expect("an answer");
    let status = answer.into_inner().message().await.expect_err("a status");
    assert_eq!((status.code(), status.message()), (Code::Unknown, "test status message"));
}

async fn special_status_message(test: &mut Test) {
    let message = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";
    let echo = EchoStatus { code: 2, message: message.to_owned() };
    let request = SimpleRequest { response_status: Some(echo), ..SimpleRequest::default() };
    let answer = test.unary::<_, SimpleResponse>("TestService/UnaryCall", Request::new(request)).await;
    let status = answer.expect_err("a status");
    assert_eq!((status.code(), status.message()), (Code::Unknown, message));
}

async fn unimplemented_method(test: &mut Test) {
    let answer = test.unary::<_, Empty>("TestService/UnimplementedCall", Request::new(Empty {})).await;
    assert_eq!(answer.expect_err("a status").code(), Code::Unimplemented);
}

async fn unimplemented_service(test: &mut Test) {
    let answer = test.unary::<_, Empty>("UnimplementedService/UnimplementedCall", Request::new(Empty {})).await;
    assert_eq!(answer.expect_err("a status").code(), Code::Unimplemented);
}

async fn cancel_after_begin(test: &mut Test) {
    let mut request = Request::new(stream::pending());
    let cancellation = request.cancellation_handle();
    let calls = Arc::clone(&test.pod.calls);
    let (answer, ()) = tokio::join!(test.input(request), async {
        until("the call has begun", || calls.begun.load(SeqCst) == 1).await;
        cancellation.cancel();
    });
    assert_eq!(answer.expect_err("no answer").code(), Code::Cancelled);
    test.pod.until_broken(1).await;
}

async fn cancel_after_first_response(test: &mut Test) {
    let requests = stream::iter([output(&[31_415], 27_182)]).chain(stream::pending());
    let mut request = Request::new(requests);
    let cancellation = request.cancellation_handle();
    let mut answers = test.full_duplex(request).await.expect("an answer").into_inner();
    assert_eq!(next(&mut answers).await, Some(31_415));
    cancellation.cancel();
    assert_eq!(answers.message().await.expect_err("no whole answer").code(), Code::Cancelled);
    test.pod.until_broken(1).await;
}

async fn timeout_on_sleeping_server(test: &mut Test) {
    let mut request = Request::new(stream::iter([output(&[31_415], 27_182)]));
    request.set_timeout(Duration::from_millis(100));
    let status = test.full_duplex(request).await.expect_err("the pod sleeps");
    // tonic's client says CANCELLED when its own clock ends a call that has a deadline.
    assert_eq!((status.code(), status.message()), (Code::Cancelled, "Timeout expired"));
    // How far the call came by then is up to the machine; what came to the pod is broken off there, too.
    let calls = &test.pod.calls;
    until("no call is left", || calls.broken.load(SeqCst) == calls.begun.load(SeqCst)).await;
}

macro_rules! pass {
    ($($case:ident)*) => {
        mod passes {
            use super::{DEADLINE, Test};
            $(
                #[tokio::test]
                async fn $case() {
                    let mut test = Test::start().await;
                    tokio::time::timeout(DEADLINE, super::$case(&mut test)).await.expect("in time");
                }
            )*
        }
    };
}

pass! {
    empty_unary
    large_unary
    client_streaming
    server_streaming
    ping_pong
    empty_stream
    custom_metadata
    status_code_and_message
    special_status_message
    unimplemented_method
    unimplemented_service
    cancel_after_begin
    cancel_after_first_response
    timeout_on_sleeping_server
}
