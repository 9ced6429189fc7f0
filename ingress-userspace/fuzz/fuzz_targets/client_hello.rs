//! TLS ClientHellos from hostile bytes. The target checks that parsing never panics, that returned names are valid, and
//! that the wait for more bytes ends. An incomplete beginning is never refused, in any split.
#![no_main]

use ingress_proxy::l4::tcp::{HELLO_MAX, HelloReader, ParsedHello};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], u8)| {
    let (bytes, step) = input;
    let whole = HelloReader::default().read(bytes);
    match &whole {
        ParsedHello::Part => assert!(bytes.len() < HELLO_MAX),
        ParsedHello::Name(name) => {
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
            assert!(name.len() <= 253 && name.bytes().all(is_plain), "{name:?}");
        }
        ParsedHello::Nothing => {}
    }
    // Same as on a connection: growing prefixes from the first byte on, until there is a result.
    let mut reader = HelloReader::default();
    let ends = (0..bytes.len()).step_by(usize::from(step) + 1).chain([bytes.len()]);
    let seen = ends.map(|end| reader.read(&bytes[..end])).find(|seen| *seen != ParsedHello::Part);
    match (seen, whole) {
        (None, whole) => assert_eq!(whole, ParsedHello::Part),
        (Some(ParsedHello::Name(name)), ParsedHello::Name(whole)) => assert_eq!(name, whole),
        (Some(_), whole) => assert_ne!(whole, ParsedHello::Part),
    }
});
