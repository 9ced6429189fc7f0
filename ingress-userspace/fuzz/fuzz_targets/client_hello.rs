//! TLS ClientHellos from hostile bytes. The target checks that parsing never panics, that returned names are valid, and
//! that the wait for more bytes ends. An incomplete beginning is never refused, in any split.
#![no_main]

use ingress_proxy::l4::tcp::{HELLO_MAX, HelloReader, Seen};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], u8)| {
    let (bytes, step) = input;
    let whole = HelloReader::default().read(bytes);
    match &whole {
        Seen::Part => assert!(bytes.len() < HELLO_MAX),
        Seen::Name(name) => {
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
            assert!(name.len() <= 253 && name.bytes().all(is_plain), "{name:?}");
        }
        Seen::Nothing => {}
    }
    // Same as on a connection: growing prefixes from the first byte on, until there is a result.
    let mut reader = HelloReader::default();
    let ends = (0..bytes.len()).step_by(usize::from(step) + 1).chain([bytes.len()]);
    let seen = ends.map(|end| reader.read(&bytes[..end])).find(|seen| *seen != Seen::Part);
    match (seen, whole) {
        (None, whole) => assert_eq!(whole, Seen::Part),
        (Some(Seen::Name(name)), Seen::Name(whole)) => assert_eq!(name, whole),
        (Some(_), whole) => assert_ne!(whole, Seen::Part),
    }
});
