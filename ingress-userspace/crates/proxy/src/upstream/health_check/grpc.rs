//! The messages of `grpc.health.v1.Health/Check`. Each has a single field, so a code generator is not worth its cost.
//! Pure.

use bytes::{BufMut as _, Bytes, BytesMut};

pub(super) const PATH: &str = "/grpc.health.v1.Health/Check";

/// Returns `HealthCheckRequest { service }` as a gRPC message: the compression flag, the length, then the message.
pub(super) fn request(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    if !service.is_empty() {
        // Field 1, of type `string`.
        message.put_u8(1 << 3 | 2);
        put_varint(&mut message, service.len());
        message.put_slice(service.as_bytes());
    }
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put(message);
    framed.freeze()
}

/// Returns whether a response body is exactly one `HealthCheckResponse { status: SERVING }`.
pub(super) fn is_serving(framed: &[u8]) -> bool {
    // The status is field 1 of type `enum`, and SERVING is 1. The response has no other field.
    framed == [0, 0, 0, 0, 2, 1 << 3, 1]
}

fn put_varint(out: &mut BytesMut, mut value: usize) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_follow_the_grpc_health_protocol() {
        assert_eq!(&*request(""), [0, 0, 0, 0, 0]);
        assert_eq!(&*request("a.B"), [0, 0, 0, 0, 5, 10, 3, b'a', b'.', b'B']);
        let long = request(&"x".repeat(300));
        assert_eq!((&long[..8], long.len()), (&[0, 0, 0, 1, 47, 10, 0xac, 2][..], 308));
        assert!(is_serving(&[0, 0, 0, 0, 2, 8, 1]));
        for other in [&[][..], &[0, 0, 0, 0, 0], &[0, 0, 0, 0, 2, 8, 2], &[1, 0, 0, 0, 2, 8, 1]] {
            assert!(!is_serving(other), "{other:?}");
        }
    }
}
