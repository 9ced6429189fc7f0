//! The messages of gRPC's public interoperability cases: `grpc/testing/messages.proto`, as far as the cases use them.

use prost::Message;
use tonic::{Code, Status};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Payload {
    #[prost(bytes = "vec", tag = "2")]
    pub(super) body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EchoStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SimpleRequest {
    #[prost(int32, tag = "2")]
    pub(super) response_size: i32,
    #[prost(message, optional, tag = "3")]
    pub(super) payload: Option<Payload>,
    #[prost(message, optional, tag = "7")]
    pub(super) response_status: Option<EchoStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SimpleResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamingInputCallRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamingInputCallResponse {
    #[prost(int32, tag = "1")]
    pub(super) aggregated_payload_size: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseParameters {
    #[prost(int32, tag = "1")]
    pub(super) size: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamingOutputCallRequest {
    #[prost(message, repeated, tag = "2")]
    pub(super) response_parameters: Vec<ResponseParameters>,
    #[prost(message, optional, tag = "3")]
    pub(super) payload: Option<Payload>,
    #[prost(message, optional, tag = "7")]
    pub(super) response_status: Option<EchoStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamingOutputCallResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) payload: Option<Payload>,
}

impl Payload {
    /// A payload of `size` bytes, each unlike its neighbours.
    pub(super) fn of(size: i32) -> Self {
        Self { body: (0..size).map(|at| (at % 251) as u8).collect() }
    }
}

impl From<EchoStatus> for Status {
    fn from(EchoStatus { code, message }: EchoStatus) -> Self {
        Self::new(Code::from_i32(code), message)
    }
}

/// Returns the size of a payload after checking that each byte is as sent.
pub(super) fn size_of(payload: Option<Payload>) -> i32 {
    let payload = payload.unwrap_or_default();
    let size = i32::try_from(payload.body.len()).expect("short");
    assert!(payload == Payload::of(size), "another payload of {size} bytes");
    size
}

pub(super) fn output(sizes: &[i32], payload: i32) -> StreamingOutputCallRequest {
    let response_parameters = sizes.iter().map(|&size| ResponseParameters { size }).collect();
    StreamingOutputCallRequest { response_parameters, payload: Some(Payload::of(payload)), response_status: None }
}
