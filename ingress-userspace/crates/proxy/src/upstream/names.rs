//! Names of response fields in the spelling that servers commonly use, recognized without validating each character.

use http::{HeaderName, header};

use super::Malformed;

macro_rules! usual {
    ($($spelling:literal => $name:expr,)+) => {
        fn usual(name: &[u8]) -> Option<HeaderName> {
            Some(match name {
                $($spelling => $name,)+
                _ => return None,
            })
        }

        #[cfg(test)]
        const USUAL: &[&[u8]] = &[$($spelling,)+];
    };
}

usual! {
    b"Accept-Ranges" => header::ACCEPT_RANGES,
    b"Access-Control-Allow-Credentials" => header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    b"Access-Control-Allow-Headers" => header::ACCESS_CONTROL_ALLOW_HEADERS,
    b"Access-Control-Allow-Methods" => header::ACCESS_CONTROL_ALLOW_METHODS,
    b"Access-Control-Allow-Origin" => header::ACCESS_CONTROL_ALLOW_ORIGIN,
    b"Cache-Control" => header::CACHE_CONTROL,
    b"Connection" => header::CONNECTION,
    b"Content-Disposition" => header::CONTENT_DISPOSITION,
    b"Content-Encoding" => header::CONTENT_ENCODING,
    b"Content-Language" => header::CONTENT_LANGUAGE,
    b"Content-Length" => header::CONTENT_LENGTH,
    b"Content-Security-Policy" => header::CONTENT_SECURITY_POLICY,
    b"Content-Type" => header::CONTENT_TYPE,
    b"Date" => header::DATE,
    b"ETag" => header::ETAG,
    b"Expires" => header::EXPIRES,
    b"Keep-Alive" => const { HeaderName::from_static("keep-alive") },
    b"Last-Modified" => header::LAST_MODIFIED,
    b"Location" => header::LOCATION,
    b"Pragma" => header::PRAGMA,
    b"Referrer-Policy" => header::REFERRER_POLICY,
    b"Server" => header::SERVER,
    b"Set-Cookie" => header::SET_COOKIE,
    b"Strict-Transport-Security" => header::STRICT_TRANSPORT_SECURITY,
    b"Transfer-Encoding" => header::TRANSFER_ENCODING,
    b"Vary" => header::VARY,
    b"X-Content-Type-Options" => header::X_CONTENT_TYPE_OPTIONS,
    b"X-Frame-Options" => header::X_FRAME_OPTIONS,
    b"X-Powered-By" => const { HeaderName::from_static("x-powered-by") },
    b"X-Request-Id" => const { HeaderName::from_static("x-request-id") },
    b"X-XSS-Protection" => header::X_XSS_PROTECTION,
    // Names in lower case, sent by Node, and by proxies that write names as HTTP/2 does.
    b"connection" => header::CONNECTION,
    b"content-length" => header::CONTENT_LENGTH,
    b"content-type" => header::CONTENT_TYPE,
    b"date" => header::DATE,
    b"server" => header::SERVER,
    b"transfer-encoding" => header::TRANSFER_ENCODING,
    b"vary" => header::VARY,
}

/// Returns the name with this spelling.
///
/// # Errors
/// [`Malformed::Header`] if the name is not a token.
pub(super) fn name(spelling: &[u8]) -> Result<HeaderName, Malformed> {
    match usual(spelling) {
        Some(name) => Ok(name),
        None => HeaderName::from_bytes(spelling).map_err(|_invalid| Malformed::Header),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_spellings_are_parsed_like_any_other() {
        for spelling in USUAL {
            let text = String::from_utf8_lossy(spelling);
            assert_eq!(usual(spelling), HeaderName::from_bytes(spelling).ok(), "{text}");
        }
        assert_eq!(name(b"X-Other"), Ok(HeaderName::from_static("x-other")));
        assert_eq!(name(b"Date "), Err(Malformed::Header));
    }
}
