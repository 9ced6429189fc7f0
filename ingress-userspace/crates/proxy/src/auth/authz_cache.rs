//! Cached responses of authentication services, and the cookies that they set.

use std::{sync::Arc, time::Instant};

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

use ingress_model::PassedField;

use crate::auth::hmac_cache::HmacCache;

/// Number of cached responses, for rules with a cache.
pub(crate) const CACHED_MAX: usize = 8 * 1024;

/// Cached responses with their expiry times.
pub(crate) type AuthzCache = HmacCache<(Instant, Arc<AuthzResponse>)>;

/// The response of an authentication service.
#[derive(Debug)]
pub(crate) struct AuthzResponse {
    pub(crate) status: StatusCode,
    pub(crate) challenges: Vec<HeaderValue>,
    /// The fields to set for the pod.
    pub(crate) found: Vec<(HeaderName, HeaderValue)>,
    pub(crate) cookies: Vec<HeaderValue>,
}

/// Cookies for the client.
#[derive(Debug, Default)]
pub(crate) struct Cookies {
    pub(crate) fields: Vec<HeaderValue>,
    /// Whether they are also added to error responses.
    pub(crate) always: bool,
}

impl AuthzResponse {
    /// Creates an entry with these fields for the pod. Values are copied: they are slices of the read buffer,
    /// which a cached entry would otherwise keep in memory.
    pub(crate) fn of(passed: &[PassedField], status: StatusCode, headers: &HeaderMap) -> Self {
        let copy = |value: &HeaderValue| HeaderValue::from_bytes(value.as_bytes());
        let values = |name: &HeaderName| headers.get_all(name).iter().flat_map(copy).collect::<Vec<_>>();
        let mut found = Vec::new();
        for PassedField { from, to } in passed {
            found.extend(values(from).into_iter().map(|value| (to.clone(), value)));
        }
        Self { status, challenges: values(&header::WWW_AUTHENTICATE), found, cookies: values(&header::SET_COOKIE) }
    }

    /// Returns whether the response may be cached, considering its `Cache-Control`, its cookies and its size.
    pub(crate) fn is_memorable(&self, headers: &HeaderMap) -> bool {
        let Self { status: _, challenges, found, cookies } = self;
        let directives =
            headers.get_all(header::CACHE_CONTROL).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
        let forbids = |directive: &[u8]| {
            let directive = directive.trim_ascii().to_ascii_lowercase();
            matches!(&*directive, b"no-store" | b"no-cache" | b"private" | b"max-age=0" | b"s-maxage=0")
        };
        let values = challenges.iter().chain(found.iter().map(|(_, value)| value));
        cookies.is_empty()
            && !directives.into_iter().any(forbids)
            && values.map(HeaderValue::len).sum::<usize>() <= CACHED_BYTES_MAX
    }
}

impl Cookies {
    /// Adds the cookies if the status allows it: those statuses to which nginx's `add_header` applies, or any.
    pub(crate) fn add<B>(&self, response: &mut Response<B>) {
        let Self { fields, always } = self;
        let goes = matches!(response.status().as_u16(), 200 | 201 | 204 | 206 | 301..=304 | 307 | 308);
        if *always || goes {
            for field in fields {
                response.headers_mut().append(header::SET_COOKIE, field.clone());
            }
        }
    }
}

/// Size of the largest cached response: 32 MB for the whole cache.
const CACHED_BYTES_MAX: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::header;

    use super::*;

    #[test]
    fn a_cached_response_does_not_retain_the_read_buffer() {
        let read = Bytes::from(b"name, and all else that was read".to_vec());
        let value = || HeaderValue::from_maybe_shared(read.slice(..4)).expect("text");
        let names = [header::FROM, header::WWW_AUTHENTICATE, header::SET_COOKIE];
        let passed = [PassedField { from: header::FROM, to: HeaderName::from_static("x-subject") }];
        let headers: HeaderMap = names.map(|name| (name, value())).into_iter().collect();
        let authz_response = AuthzResponse::of(&passed, StatusCode::OK, &headers);
        drop(headers);
        assert!(read.is_unique());
        let AuthzResponse { status: _, challenges, found, cookies } = authz_response;
        let value = HeaderValue::from_static("name");
        assert_eq!(found, [(HeaderName::from_static("x-subject"), value.clone())]);
        assert_eq!([challenges, cookies], [[value.clone()], [value]]);
    }
}
