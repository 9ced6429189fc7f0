//! Renders templates with the properties of a request.

use std::fmt::Write as _;

use http::{HeaderMap, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use regex::Captures;

use super::{Subject, basic::credentials};
use crate::{Template, TemplatePiece, Variable};

/// Escapes all but unreserved characters (RFC 3986, 2.3).
pub const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Names of the fields about a client's certificate.
const SUBJECT: &str = "ssl-client-subject-dn";
const ISSUER: &str = "ssl-client-issuer-dn";
const RESULT: &str = "ssl-client-verify";

/// Renders `template` with the groups of `captures`. Groups without captures and properties missing from the request
/// are empty.
#[must_use]
pub fn render(template: &Template, subject: &Subject<'_>, captures: Option<&Captures<'_>>) -> String {
    let mut text = String::new();
    for piece in template.pieces() {
        match piece {
            TemplatePiece::Text(piece) => text.push_str(piece),
            TemplatePiece::Variable(variable) => push(&mut text, variable, subject, captures),
        }
    }
    text
}

fn push(text: &mut String, variable: &Variable, subject: &Subject<'_>, captures: Option<&Captures<'_>>) {
    let Subject {
        method,
        host,
        port,
        target,
        headers,
        secure,
        certificate: _,
        certificate_fields,
        client,
        https_port: _,
        listener_port: _,
        clock,
    } = subject;
    let of_certificate = |name| certificate_field(certificate_fields, name);
    let path_and_query = || target.split_once('?').map_or((*target, ""), |(path, query)| (path, query));
    match variable {
        Variable::Scheme => text.push_str(if *secure { "https" } else { "http" }),
        Variable::Host => text.push_str(host),
        Variable::Authority => {
            text.push_str(host);
            if let Some(port) = port {
                text.push_str(&format!(":{port}"));
            }
        }
        Variable::RequestUri => text.push_str(target),
        Variable::EscapedRequestUri => text.extend(utf8_percent_encode(target, RESERVED)),
        Variable::Path => text.push_str(path_and_query().0),
        Variable::Query => text.push_str(path_and_query().1),
        Variable::QuestionMark => text.push_str(if path_and_query().1.is_empty() { "" } else { "?" }),
        Variable::ClientAddress => text.push_str(&client.to_string()),
        Variable::Method => text.push_str(method.as_str()),
        Variable::RemoteUser => text.push_str(&remote_user(headers).unwrap_or_default()),
        Variable::Header(name) => {
            text.push_str(headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default());
        }
        Variable::Cookie(name) => text.push_str(cookie(headers, name).unwrap_or_default()),
        Variable::Argument(name) => text.push_str(argument(path_and_query().1, name).unwrap_or_default()),
        Variable::Group(number) => {
            text.push_str(captures.and_then(|captures| captures.get(usize::from(*number))).map_or("", |m| m.as_str()));
        }
        Variable::Time => {
            let now = clock();
            // Writing to a string cannot fail.
            let _infallible = write!(text, "{}.{:03}", now.as_secs(), now.subsec_millis());
        }
        Variable::CertificateSubject => text.push_str(of_certificate(SUBJECT).unwrap_or_default()),
        Variable::CertificateIssuer => text.push_str(of_certificate(ISSUER).unwrap_or_default()),
        Variable::CertificateResult => {
            text.push_str(of_certificate(RESULT).unwrap_or(if *secure { "NONE" } else { "" }));
        }
    }
}

/// Returns the value of a field about the client's certificate, from lines of a head.
fn certificate_field<'f>(fields: &'f str, name: &str) -> Option<&'f str> {
    fields.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Returns the name of the user that the client claims to be, if it is a text without control characters. For clients
/// with a valid password, it is the one whose password was verified.
fn remote_user(headers: &HeaderMap) -> Option<String> {
    let (name, _password) = credentials(headers)?;
    (!name.chars().any(char::is_control)).then_some(name)
}

/// Returns the value of the first cookie of that name (RFC 6265, 5.4), without surrounding quotes.
#[must_use]
pub fn cookie<'r>(headers: &'r HeaderMap, name: &str) -> Option<&'r str> {
    let value = str::from_utf8(cookies(headers, name).next()?).ok()?;
    Some(value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value))
}

/// Iterates over the values of all cookies of that name.
pub fn cookies<'r>(headers: &'r HeaderMap, name: &str) -> impl Iterator<Item = &'r [u8]> {
    let fields = headers.get_all(header::COOKIE).iter().map(http::HeaderValue::as_bytes);
    let pairs = fields.flat_map(|field| field.split(|b| *b == b';')).map(<[u8]>::trim_ascii);
    pairs.filter_map(move |pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// Returns whether the rendered text is unambiguous. Fields and cookies that occur more than once, or that are not
/// text, may be interpreted differently elsewhere.
#[must_use]
pub fn is_faithful(template: &Template, subject: &Subject<'_>) -> bool {
    template.variables().all(|variable| match variable {
        Variable::Header(name) => {
            let mut values = subject.headers.get_all(name).iter();
            values.next().is_none_or(|value| value.to_str().is_ok()) && values.next().is_none()
        }
        Variable::Cookie(name) => {
            let mut values = cookies(subject.headers, name);
            values.next().is_none_or(|value| value.is_ascii()) && values.next().is_none()
        }
        Variable::RemoteUser => subject.headers.get_all(header::AUTHORIZATION).iter().nth(1).is_none(),
        _ => true,
    })
}

/// Returns the value of the first argument of that name, in any case, as nginx compares them.
fn argument<'r>(query: &'r str, name: &str) -> Option<&'r str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderValue, Method};

    use super::*;
    use crate::Pattern;

    #[test]
    fn variables_are_replaced_by_values_of_the_request() {
        let mut headers = HeaderMap::new();
        headers.insert("x-tenant", HeaderValue::from_static("t1"));
        headers.append("cookie", HeaderValue::from_static("a=1; b=\"2\""));
        headers.append("cookie", HeaderValue::from_static("c=3=3"));
        // `jane:doe:x`
        headers.insert("authorization", HeaderValue::from_static("basic amFuZTpkb2U6eA=="));
        let subject = Subject {
            method: &Method::POST,
            host: "a.test",
            port: Some(8443),
            target: "/x/y?k=v&q=%20",
            headers: &headers,
            certificate: crate::route::filter::Shown::Nothing,
            certificate_fields: "ssl-client-verify: SUCCESS\r\nssl-client-subject-dn: CN=a,O=b: c\r\n",
            secure: true,
            client: [192, 0, 2, 7].into(),
            https_port: 443,
            listener_port: 8443,
            clock: || Duration::from_millis(1_700_000_000_007),
        };
        let pattern = Pattern::of_path("/(x)/(.*)").expect("valid");
        let captures = pattern.captures("/x/y");
        for (template, expect) in [
            ("$scheme://$host$request_uri", "https://a.test/x/y?k=v&q=%20"),
            ("$scheme://$http_host|$best_http_host|$host", "https://a.test:8443|a.test:8443|a.test"),
            ("$uri$is_args$args", "/x/y?k=v&q=%20"),
            ("$escaped_request_uri", "%2Fx%2Fy%3Fk%3Dv%26q%3D%2520"),
            ("$remote_addr $request_method", "192.0.2.7 POST"),
            ("[$remote_user]", "[jane]"),
            ("$http_x_tenant|$http_x_none", "t1|"),
            ("$cookie_a|$cookie_b|$cookie_c|$cookie_d", "1|2|3=3|"),
            ("$arg_k|$arg_q|$arg_z", "v|%20|"),
            ("/$2/$1/$3", "/y/x/"),
            ("$ssl_client_verify|$ssl_client_s_dn|$ssl_client_i_dn", "SUCCESS|CN=a,O=b: c|"),
        ] {
            let parsed = Template::parse(template).expect("valid");
            assert_eq!(render(&parsed, &subject, captures.as_ref()), expect, "{template}");
        }
        // `ann:` with a password that is no UTF-8 and without padding, as users of `auth-secret` may send it.
        let mut odd = HeaderMap::new();
        odd.insert("authorization", HeaderValue::from_static("Basic YW5uOv8"));
        let user = Template::parse("[$remote_user]").expect("valid");
        assert_eq!(render(&user, &Subject { headers: &odd, ..subject }, None), "[ann]");
        // None of two is verified.
        odd.append("authorization", HeaderValue::from_static("Basic cm9vdDo="));
        assert_eq!(render(&user, &Subject { headers: &odd, ..subject }, None), "[]");
        let result = Template::parse("$ssl_client_verify$ssl_client_s_dn").expect("valid");
        let shows_none = Subject { certificate_fields: "", ..subject };
        assert_eq!(render(&result, &shows_none, None), "NONE");
        assert!(is_faithful(&result, &subject));
        let time = Template::parse("t=${msec}").expect("valid");
        assert_eq!(render(&time, &subject, None), "t=1700000000.007");
        let bare = Template::parse("[$is_args$args]").expect("valid");
        let bare_subject = Subject { target: "/x", port: None, ..subject };
        assert_eq!(render(&bare, &bare_subject, None), "[]");
        let host = Template::parse("$http_host").expect("valid");
        assert_eq!(render(&host, &bare_subject, None), "a.test");
    }
}
