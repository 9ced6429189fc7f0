//! The request id, which the pod receives and the log shows.

use std::cell::Cell;

use http::HeaderValue;

use crate::http::fields::Field;
use crate::random::random;

const REQUEST_ID_MAX: usize = 128;

/// Id of a request, for the pod and the log.
#[derive(Clone, Debug)]
pub(crate) enum RequestId {
    /// Sent by the client.
    Sent(HeaderValue),
    Made([u8; 32]),
}

impl RequestId {
    /// Returns the client's id if it has one that is harmless in a log, else a new one.
    pub(crate) fn of(sent: Field<'_>) -> Self {
        match sent {
            Field::Once(id) if is_request_id(id) => Self::Sent(id.clone()),
            Field::Once(_) | Field::Absent | Field::Repeated => Self::Made(next_request_id()),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Sent(id) => id.as_bytes(),
            Self::Made(id) => id,
        }
    }
}

fn is_request_id(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    !bytes.is_empty() && bytes.len() <= REQUEST_ID_MAX && bytes.iter().all(u8::is_ascii_graphic)
}

/// Returns 32 hexadecimal digits: 64 random bits of the thread and the scrambled number of the request. Unique, not
/// secret.
fn next_request_id() -> [u8; 32] {
    thread_local! {
        static STATE: (u64, Cell<u64>) = (random(), Cell::new(random()));
    }
    STATE.with(|(thread, count)| {
        count.set(count.get().wrapping_add(1));
        // A bijection (the finaliser of SplitMix64), so that the numbers stay distinct.
        let mut mixed = count.get();
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let value = (u128::from(*thread) << 64) | u128::from(mixed);
        hexadecimal(value.to_be_bytes())
    })
}

/// Writes the high digits of all bytes and then the low ones. The order is irrelevant, because the number is never
/// read, and it lets the compiler compute sixteen digits at once.
fn hexadecimal(bytes: [u8; 16]) -> [u8; 32] {
    let digit = |value: u8| value + if value < 10 { b'0' } else { b'a' - 10 };
    let mut digits = [0; 32];
    let (high, low) = digits.split_at_mut(bytes.len());
    for ((high, low), &byte) in high.iter_mut().zip(low).zip(&bytes) {
        (*high, *low) = (digit(byte >> 4), digit(byte & 0xf));
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_ids_are_kept_and_others_replaced() {
        let value = |text: &str| HeaderValue::from_str(text).expect("a value");
        let longest = "a".repeat(REQUEST_ID_MAX);
        for (sent, kept) in [
            (Field::Once(&value("abc-1")), Some("abc-1")),
            (Field::Once(&value(&longest)), Some(&*longest)),
            (Field::Once(&value(&format!("{longest}a"))), None),
            (Field::Once(&value("a b")), None),
            (Field::Once(&value("")), None),
            (Field::Absent, None),
            (Field::Repeated, None),
        ] {
            let id = || String::from_utf8_lossy(RequestId::of(sent).as_bytes()).into_owned();
            let (one, other) = (id(), id());
            if let Some(kept) = kept {
                assert_eq!([&*one, &*other], [kept; 2]);
            } else {
                assert!(one.len() == 32 && one.bytes().all(|b| b.is_ascii_hexdigit()), "{one}");
                assert_ne!(one, other);
            }
        }
    }

    #[test]
    fn ids_are_formatted_as_hexadecimal() {
        let mut bytes = [0; 16];
        (bytes[0], bytes[1], bytes[15]) = (0x0f, 0xa9, 0x9a);
        assert_eq!(hexadecimal(bytes), *b"0a00000000000009f90000000000000a");
    }
}
