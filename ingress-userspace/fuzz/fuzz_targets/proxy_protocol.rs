//! PROXY protocol headers from hostile bytes. The target checks that parsing never panics and ignores bytes behind the
//! header. The beginning of a valid header is never refused, and a refusal is final.
#![no_main]

use ingress_proxy::downstream::proxy_protocol::{ParsedHeader, V2_MAX, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes);
    for end in 0..bytes.len().min(V2_MAX + 1) {
        let part = parse(&bytes[..end]);
        match (part, whole) {
            (Ok(None), _) => {}
            (Ok(Some(parsed)), _) => {
                assert_eq!(part, whole);
                assert!(parsed.length <= end);
            }
            (Err(_), _) => assert!(whole.is_err()),
        }
    }
    if let Ok(Some(ParsedHeader { length, .. })) = whole {
        assert!(length <= V2_MAX.min(bytes.len()));
        for end in 0..length {
            assert_eq!(parse(&bytes[..end]), Ok(None));
        }
    }
    if bytes.len() >= V2_MAX {
        assert_ne!(whole, Ok(None));
    }
});
