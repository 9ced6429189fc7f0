//! Converts a request head from the HTTP/1.1 text to HTTP/2 fields, so that the content of a forwarded head is decided
//! in one place for both protocols.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri, header, uri::Scheme};

/// An error in the text of the head. The proxy generates that text, so this is a bug of the proxy.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("the head has no request line")]
    Line,
    #[error("a line of the head is no field")]
    Field,
    #[error("the head makes no request")]
    Request(#[source] http::Error),
}

/// Returns the request over `scheme` with the request line and fields that `write_head` appends. `host` becomes
/// `:authority`.
pub(super) fn build<B>(
    scheme: Scheme,
    method: &Method,
    write_head: impl FnOnce(&mut Vec<u8>),
    body: B,
) -> Result<Request<B>, RequestError> {
    let mut text = Vec::with_capacity(1024);
    write_head(&mut text);
    let text = Bytes::from(text);
    let mut lines = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let line = lines.next().ok_or(RequestError::Line)?;
    let target = line.split(|byte| *byte == b' ').nth(1).ok_or(RequestError::Line)?;
    let mut request = Request::new(body);
    *request.method_mut() = method.clone();
    let mut authority = Bytes::new();
    let headers = request.headers_mut();
    for line in lines {
        let colon = memchr::memchr(b':', line).ok_or(RequestError::Field)?;
        let value = text.slice_ref(line.get(colon + 1..).unwrap_or_default().trim_ascii());
        let name = HeaderName::from_bytes(&line[..colon]).map_err(|_invalid| RequestError::Field)?;
        if name == header::HOST {
            authority = value;
        } else {
            let value = HeaderValue::from_maybe_shared(value).map_err(|_invalid| RequestError::Field)?;
            headers.append(name, value);
        }
    }
    let uri = Uri::builder().scheme(scheme).authority(&authority[..]).path_and_query(target);
    *request.uri_mut() = uri.build().map_err(RequestError::Request)?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_converted_to_an_http2_request() {
        let head = |out: &mut Vec<u8>| {
            out.extend_from_slice(b"GET /a/b?c HTTP/1.1\r\nhost: a.test:81\r\nx-a: 1:2\r\nx-a:\r\nte: trailers\r\n");
        };
        let request = build(Scheme::HTTP, &Method::GET, head, ()).expect("a request");
        assert_eq!(request.uri().to_string(), "http://a.test:81/a/b?c");
        let fields: Vec<_> = request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(fields, [("x-a", &b"1:2"[..]), ("x-a", b""), ("te", b"trailers")]);
        let star = |out: &mut Vec<u8>| out.extend_from_slice(b"OPTIONS * HTTP/1.1\r\nhost: [::1]:80\r\n");
        let request = build(Scheme::HTTPS, &Method::OPTIONS, star, ()).expect("a request");
        assert_eq!((request.uri().path(), request.uri().authority().map(|a| a.as_str())), ("*", Some("[::1]:80")));
    }
}
