//! The public interoperability cases of gRPC, by their names, with tonic for the client and for the pod. `grpc.rs`
//! covers, frame by frame, the cases that tonic cannot express.

mod messages;
mod pod;

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use futures_util::{Stream, StreamExt as _, stream};
use http::{Uri, uri::PathAndQuery};
use ingress_model::Protocol;
use prost::Message;
use tokio::sync::mpsc;
use tonic::{
    Code, Request, Response, Status, Streaming, client,
    metadata::{MetadataMap, MetadataValue},
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use self::{
    messages::{
        EchoStatus, Empty, Payload, SimpleRequest, SimpleResponse, StreamingInputCallRequest,
        StreamingInputCallResponse, StreamingOutputCallRequest, StreamingOutputCallResponse, output, size_of,
    },
    pod::{INITIAL, Pod, TRAILING},
};
use ingress_proxy_testing::{DEADLINE, Proxy, Table, until};

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

/// Returns the size of the next message; `None` at the end.
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
    // tonic's client reports CANCELLED when its own clock ends a call with a deadline.
    assert_eq!((status.code(), status.message()), (Code::Cancelled, "Timeout expired"));
    // The call's progress by then depends on the machine. A call that reached the pod is broken off there, too.
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
