//! Decides whether a response is compressed, and with which coding (RFC 9110, 8.4 and 12.5.3). The body is not touched.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use super::{Subject, cors::vary};
use crate::{Coding, Compression, Offer};

/// Fields with digests of the bytes sent by the pod.
const DIGESTS: [HeaderName; 4] = [
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
];

/// Returns the coding for the body of this response, of `length` bytes if known, and adjusts the head. For HEAD, the
/// head is that of a response to GET.
pub fn compress<'c>(
    compression: &'c Compression,
    subject: &Subject<'_>,
    status: StatusCode,
    length: Option<u64>,
    headers: &mut HeaderMap,
) -> Option<&'c Offer> {
    if !may_be_changed(status, subject.headers, headers) {
        return None;
    }
    let Compression { offers, without_gzip } = compression;
    let content_type = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    // Messages of gRPC have their own compression, and gRPC clients support no other.
    if content_type.get(..16).is_some_and(|start| start.eq_ignore_ascii_case("application/grpc")) {
        return None;
    }
    let fits = |offer: &Offer| {
        let is_long = length.is_none_or(|length| length >= offer.min_length.max(1));
        is_long && offer.types.hold(content_type)
    };
    if !offers.iter().any(fits) {
        return None;
    }
    let agent = subject.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let cannot_gzip = without_gzip.as_ref().zip(agent).is_some_and(|(pattern, agent)| pattern.is_match(agent));
    let best = offers
        .iter()
        .filter(|offer| fits(offer) && !(offer.coding == Coding::Gzip && cannot_gzip))
        .map(|offer| (quality(subject.headers, offer.coding.name()).unwrap_or(0), offer))
        .filter(|(quality, _)| *quality > quality_of_none(subject.headers))
        // Among equally preferred codings, the first one wins.
        .reduce(|best, other| if other.0 > best.0 { other } else { best });
    vary(headers, "Accept-Encoding");
    let (_, offer) = best?;
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(offer.coding.name()));
    headers.remove(header::CONTENT_LENGTH);
    // The pod's ranges refer to bytes that the client does not get.
    headers.remove(header::ACCEPT_RANGES);
    weaken(headers);
    (*subject.method != Method::HEAD).then_some(offer)
}

/// Returns whether the body of the response may be transformed.
fn may_be_changed(status: StatusCode, request: &HeaderMap, response: &HeaderMap) -> bool {
    let has_no_body = status.is_informational()
        || matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED
        );
    !has_no_body
        && !response.contains_key(header::CONTENT_ENCODING)
        && !response.contains_key(header::CONTENT_RANGE)
        && !DIGESTS.iter().any(|digest| response.contains_key(digest))
        && ![request, response].into_iter().any(forbids_transforms)
}

/// Returns whether the fields contain `Cache-Control: no-transform` (RFC 9111, 5.2.1.6 and 5.2.2.6).
fn forbids_transforms(headers: &HeaderMap) -> bool {
    elements(headers, &header::CACHE_CONTROL).any(|directive| directive.eq_ignore_ascii_case("no-transform"))
}

/// Returns the client's weight for `coding` in thousandths: 0 if refused, `None` if not mentioned.
fn quality(headers: &HeaderMap, coding: &str) -> Option<u16> {
    let mut any = None;
    for element in elements(headers, &header::ACCEPT_ENCODING) {
        let mut parts = element.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let name = name.strip_prefix("x-").filter(|name| name.eq_ignore_ascii_case("gzip")).unwrap_or(name);
        if name == "*" {
            any = Some(weight(parts));
        } else if name.eq_ignore_ascii_case(coding) {
            return Some(weight(parts));
        }
    }
    any
}

/// Returns the client's weight for `identity`. It counts only if named: being acceptable by default is no preference.
fn quality_of_none(headers: &HeaderMap) -> u16 {
    let named = elements(headers, &header::ACCEPT_ENCODING).find(|element| {
        element.get(..8).is_some_and(|name| name.eq_ignore_ascii_case("identity")) && !element[8..].starts_with('-')
    });
    named.map_or(0, |element| {
        // With equal weights, the coding wins, because it is shorter.
        weight(element.split(';').skip(1).map(str::trim)).saturating_sub(1)
    })
}

/// Parses `q=0.5` as 500 (RFC 9110, 12.4.2); an invalid weight counts as a refusal.
fn weight<'p>(mut parameters: impl Iterator<Item = &'p str>) -> u16 {
    let Some(value) = parameters.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="))) else {
        return 1000;
    };
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    let is_number = fraction.len() <= 3 && fraction.bytes().all(|b| b.is_ascii_digit());
    let thousandths = format!("{fraction:0<3}").parse().unwrap_or(0);
    match whole {
        "1" if is_number && thousandths == 0 => 1000,
        "0" if is_number => thousandths,
        _ => 0,
    }
}

fn elements<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|element| !element.is_empty())
}

/// Weakens the `ETag`: the same content in different bytes must not share a strong validator (RFC 9110, 8.8.1).
fn weaken(headers: &mut HeaderMap) {
    if let Some(tag) = headers.get_mut(header::ETAG)
        && !tag.as_bytes().starts_with(b"W/")
    {
        match HeaderValue::from_bytes(&[b"W/", tag.as_bytes()].concat()) {
            Ok(weak) => *tag = weak,
            Err(_) => drop(headers.remove(header::ETAG)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::route::filter::Shown;
    use crate::{MediaTypes, Pattern};

    fn offer(coding: Coding, types: &str) -> Offer {
        Offer { coding, level: 1, min_length: 100, types: MediaTypes::parse(types).expect("types").into() }
    }

    fn headers(lines: &[&str]) -> HeaderMap {
        let field = |line: &str| {
            let (name, value) = line.split_once(": ").expect("a field");
            (name.parse::<HeaderName>().expect("a name"), HeaderValue::from_str(value).expect("a value"))
        };
        lines.iter().map(|line| field(line)).collect()
    }

    fn subject<'r>(method: &'r Method, headers: &'r HeaderMap) -> Subject<'r> {
        Subject {
            method,
            host: "a.test",
            port: None,
            target: "/",
            headers,
            secure: false,
            certificate: Shown::Nothing,
            certificate_fields: "",
            client: IpAddr::from([192, 0, 2, 1]),
            https_port: 443,
            listener_port: 80,
            clock: std::time::Duration::default,
        }
    }

    fn all() -> Compression {
        let offers = Coding::ALL.map(|coding| offer(coding, "text/plain application/json")).into();
        Compression { offers, without_gzip: Some(Pattern::within("MSIE [1-6]\\.").expect("a pattern")) }
    }

    /// Returns the coding for 1000 bytes of text and a client with these fields.
    fn coding(request: &[&'static str]) -> Option<&'static str> {
        let (request, mut response) = (headers(request), headers(&["content-type: text/plain"]));
        let offer = compress(&all(), &subject(&Method::GET, &request), StatusCode::OK, Some(1000), &mut response)
            .map(|offer| offer.coding.name());
        assert_eq!(response.get(header::VARY).map(HeaderValue::as_bytes), Some(&b"Accept-Encoding"[..]));
        assert_eq!(response.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok()), offer);
        offer
    }

    #[test]
    fn accept_encoding_selects_the_coding() {
        for (accepted, expect) in [
            ("gzip", Some("gzip")),
            ("x-gzip", Some("gzip")),
            ("GZip", Some("gzip")),
            ("gzip, deflate, br, zstd", Some("zstd")),
            ("gzip, br", Some("br")),
            ("gzip;q=1.0, br;q=0.8", Some("gzip")),
            ("gzip;q=0.5, br;q=0.501", Some("br")),
            ("gzip ; q=0.5 , br ; q=0", Some("gzip")),
            ("*", Some("zstd")),
            ("*;q=0.1, zstd;q=0", Some("br")),
            ("*;q=0, gzip", Some("gzip")),
            ("*;q=0", None),
            ("identity", None),
            ("identity, gzip", Some("gzip")),
            ("identity;q=1, gzip;q=0.5", None),
            ("identity;q=0.5, gzip;q=1", Some("gzip")),
            ("identity;q=0, gzip", Some("gzip")),
            ("gzip;q=0.000", None),
            ("gzip;q=1.001", None),
            ("gzip;q=0.1234", None),
            ("gzip;q=x", None),
            ("gzip;q=-1", None),
            ("deflate", None),
            ("", None),
        ] {
            let field: &'static str = format!("accept-encoding: {accepted}").leak();
            assert_eq!(coding(&[field]), expect, "{accepted}");
        }
        assert_eq!(coding(&[]), None);
        assert_eq!(coding(&["accept-encoding: deflate", "accept-encoding: br"]), Some("br"));
        assert_eq!(coding(&["accept-encoding: gzip", "user-agent: Mozilla/4.0 (MSIE 6.0)"]), None);
        assert_eq!(coding(&["accept-encoding: gzip, br", "user-agent: Mozilla/4.0 (MSIE 6.0)"]), Some("br"));
    }

    #[test]
    fn ineligible_responses_are_not_compressed() {
        const TEXT: &str = "content-type: text/plain; charset=utf-8";
        for (status, length, response, request, expect) in [
            (200, Some(100), &[TEXT][..], "", true),
            (200, None, &[TEXT], "", true),
            (404, None, &["content-type: TEXT/HTML"], "", true),
            (200, Some(99), &[TEXT], "", false),
            (200, Some(0), &[TEXT], "", false),
            (204, None, &[TEXT], "", false),
            (205, None, &[TEXT], "", false),
            (206, None, &[TEXT], "", false),
            (304, None, &[TEXT], "", false),
            (200, None, &[], "", false),
            (200, None, &["content-type: image/png"], "", false),
            (200, None, &["content-type: text/plainer"], "", false),
            (200, None, &["content-type: application/grpc"], "", false),
            (200, None, &["content-type: application/grpc-web+proto"], "", false),
            (200, None, &[TEXT, "content-encoding: br"], "", false),
            (200, None, &[TEXT, "content-encoding: identity"], "", false),
            (200, None, &[TEXT, "content-range: bytes 0-9/10"], "", false),
            (200, None, &[TEXT, "cache-control: public, No-Transform"], "", false),
            (200, None, &[TEXT, "content-digest: sha-256=:x:"], "", false),
            (200, None, &[TEXT], "cache-control: no-transform", false),
        ] {
            let mut request = headers(if request.is_empty() { &[] } else { std::slice::from_ref(&request) });
            request.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
            let mut compression = all();
            compression.offers.push(offer(Coding::Gzip, "application/grpc application/grpc-web+proto"));
            let before = headers(response);
            let mut after = before.clone();
            let status = StatusCode::from_u16(status).expect("a status");
            let compressed = compress(&compression, &subject(&Method::GET, &request), status, length, &mut after);
            assert_eq!(compressed.is_some(), expect, "{status} {length:?} {response:?}");
            assert_eq!(before == after, !expect, "{status} {length:?} {response:?}");
        }
    }

    #[test]
    fn response_headers_reflect_the_compression() {
        let request = headers(&["accept-encoding: gzip"]);
        let pod = [
            "content-type: text/plain",
            "content-length: 1000",
            "accept-ranges: bytes",
            "etag: \"a\"",
            "vary: Origin, accept-encoding",
        ];
        for (tag, expect) in [("etag: \"a\"", "W/\"a\""), ("etag: W/\"a\"", "W/\"a\"")] {
            for method in [Method::GET, Method::HEAD] {
                let mut response = headers(&pod.map(|line| if line.starts_with("etag") { tag } else { line }));
                let all = all();
                let offer = compress(&all, &subject(&method, &request), StatusCode::OK, Some(1000), &mut response);
                assert_eq!(offer.is_some(), method == Method::GET);
                let tag = format!("etag: {expect}");
                let expect =
                    ["content-type: text/plain", &tag, "vary: Origin, accept-encoding", "content-encoding: gzip"];
                assert_eq!(response, headers(&expect));
            }
        }
    }
}
