//! The pod of gRPC's public interoperability cases, with answers by tonic.

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
};

use bytes::Bytes;
use futures_util::{
    Stream, StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use http::HeaderValue;
use http_body::{Body as _, Frame};
use hyper::{body::Incoming, server::conn::http2::Builder};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::{Request, Response, Status, Streaming, body::Body, server};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::messages::{
    Empty, Payload, ResponseParameters, SimpleRequest, SimpleResponse, StreamingInputCallRequest,
    StreamingInputCallResponse, StreamingOutputCallRequest, StreamingOutputCallResponse, size_of,
};
use ingress_proxy_testing::{serve_connections, until};

pub(super) const INITIAL: &str = "x-grpc-test-echo-initial";
pub(super) const TRAILING: &str = "x-grpc-test-echo-trailing-bin";

#[derive(Default)]
pub(super) struct Calls {
    pub(super) begun: AtomicUsize,
    /// Calls that ended before their answers did.
    pub(super) broken: AtomicUsize,
}

pub(super) struct Pod {
    pub(super) address: SocketAddr,
    pub(super) calls: Arc<Calls>,
}

impl Pod {
    pub(super) fn start() -> Self {
        let calls = Arc::<Calls>::default();
        let seen = Arc::clone(&calls);
        let address = serve_connections(move |stream| {
            let calls = Arc::clone(&seen);
            async move {
                let service = hyper::service::service_fn(move |request| {
                    let calls = Arc::clone(&calls);
                    async move { Ok::<_, Infallible>(serve(request, calls).await) }
                });
                drop(Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await);
            }
        });
        Self { address, calls }
    }

    /// Waits until all of `begun` calls have broken off.
    pub(super) async fn until_broken(&self, begun: usize) {
        until("calls break off", || self.calls.broken.load(SeqCst) == begun).await;
        assert_eq!(self.calls.begun.load(SeqCst), begun);
    }
}

/// A call at the pod, with its answer once there is one.
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

/// A call with a deadline is never answered.
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
