//! Reads the credentials of basic authentication (RFC 7617). They are not verified here.

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::{HeaderMap, header};

/// Longest text of credentials that is read, in bytes. Some hashes take time in proportion to the password.
pub const CREDENTIALS_MAX: usize = 1024;

/// Returns name and password (RFC 7617, section 2), or `None` if there are none or several pairs.
#[must_use]
pub fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let mut fields = headers.get_all(header::AUTHORIZATION).iter();
    let field = fields.next().filter(|_| fields.next().is_none())?;
    let (scheme, encoded) = field.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || encoded.len() > CREDENTIALS_MAX {
        return None;
    }
    let decoded = BASE64.decode(encoded.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let name = str::from_utf8(&decoded[..colon]).ok()?.to_owned();
    Some((name, decoded[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_one_well_formed_credential_is_accepted() {
        let long = format!("Basic {}", "A".repeat(CREDENTIALS_MAX + 1));
        for (fields, expect) in [
            (&["Basic YW5uOnNlY3JldA=="][..], Some(("ann", &b"secret"[..]))),
            (&["bASIC  YW5uOnNlY3JldA"], Some(("ann", b"secret"))),
            (&["Basic YW5uOmE6Yg=="], Some(("ann", b"a:b"))),
            (&["Basic YW5uOg=="], Some(("ann", b""))),
            (&["Basic YW5uOv8="], Some(("ann", b"\xff"))),
            (&["Basic OmE="], Some(("", b"a"))),
            (&["Basic YW5u"], None),
            (&["Basic !"], None),
            (&["Basic"], None),
            (&["Bearer YW5uOnNlY3JldA=="], None),
            (&["Basic YW5uOnNlY3JldA==", "Basic YW5uOnNlY3JldA=="], None),
            (&[&long], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(header::AUTHORIZATION, HeaderValue::from_str(field).expect("valid"));
            }
            let expect = expect.map(|(name, password)| (name.to_owned(), password.to_vec()));
            assert_eq!(credentials(&headers), expect, "{fields:?}");
        }
    }
}
