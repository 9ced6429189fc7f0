//! Writes the head of the forwarded request straight from the client's header map: nothing is copied in between, and
//! nothing that concerns the client's connection alone, or that only we may say, gets through.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::route::{Subject, filter::Edits};

use super::{
    authority::Authority,
    client::Client,
    fields::Fields,
    request_id::RequestId,
    upstream::{head::tokens, write_header, write_request_line},
    via,
    websocket::Handshake,
};

/// What of a request goes into the forwarded head.
pub(super) struct Head<'r> {
    /// That the client speaks.
    pub(super) version: http::Version,
    pub(super) subject: &'r Subject<'r>,
    /// What is in the header map of `subject`.
    pub(super) fields: &'r Fields<'r>,
    pub(super) authority: &'r Authority<'r>,
    /// What its rule changes of it.
    pub(super) edits: &'r Edits<'r>,
    pub(super) client: &'r Client<'r>,
    /// What pods are told of the client's certificate, as lines of a head.
    pub(super) identity: Option<&'r [u8]>,
    pub(super) request_id: &'r RequestId,
    /// If it is one of WebSocket.
    pub(super) handshake: Option<&'r Handshake>,
    /// Whether fields of the client whose names have `_` are passed on.
    pub(super) underscores: bool,
}

impl Head<'_> {
    pub(super) fn method(&self) -> &http::Method {
        self.subject.method
    }

    /// Appends request line and fields, without framing fields and the final line end.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let Self { version, subject, fields, authority, edits, client, identity, request_id, handshake, underscores } =
            self;
        let Subject { method, target, headers, .. } = subject;
        write_request_line(out, method, edits.target.as_deref().unwrap_or(target));
        out.extend_from_slice(b"host: ");
        match edits.host {
            Some(host) => out.extend_from_slice(host.as_bytes()),
            None => out.extend_from_slice(authority.as_str().as_bytes()),
        }
        out.extend_from_slice(b"\r\n");
        let nominated = Nominated::of(fields);
        // Asked once for all fields of the client.
        let are_edited = !edits.leave_fields();
        let mut has_cookies = false;
        let has_own_key = handshake.is_some_and(|handshake| handshake.key.is_some());
        for (name, value) in *headers {
            match class(name.as_str()) {
                _ if are_edited && edits.replace(name.as_str()) => {}
                Class::Pass if has_own_key && *name == header::SEC_WEBSOCKET_KEY => {}
                _ if client.hidden.is_some_and(|hidden| is_alias(name, hidden)) => {}
                Class::Pass if !nominated.holds(name) => write_header(out, name, value),
                Class::Protected => write_header(out, name, value),
                Class::Cookie => has_cookies = true,
                Class::Underscored if *underscores && !nominated.holds(name) => write_header(out, name, value),
                Class::Pass | Class::Underscored | Class::Drop => {}
            }
        }
        if has_cookies {
            write_cookies(out, headers);
        }
        self.write_forwarded(out);
        if let Some(identity) = identity {
            self.write_lines(out, identity);
        }
        if !edits.replace("x-request-id") {
            out.extend_from_slice(b"x-request-id: ");
            out.extend_from_slice(request_id.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        via::write(out, *version, fields);
        edits.fields(subject).for_each(|(name, value)| write_header(out, name, &value));
        if let Some(Handshake { accept: _, key }) = handshake {
            out.extend_from_slice(b"connection: upgrade\r\nupgrade: websocket\r\n");
            if let Some(key) = key {
                out.extend_from_slice(b"sec-websocket-key: ");
                out.extend_from_slice(key);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Appends what we say of the client, but for fields that the rule has its own mind about.
    fn write_forwarded(&self, out: &mut Vec<u8>) {
        const HOST: &str = "x-forwarded-host";
        self.write_lines(out, &self.client.forwarded);
        if !self.edits.replace(HOST) {
            out.extend_from_slice(b"x-forwarded-host: ");
            match self.client.host {
                Some(host) => out.extend_from_slice(host.as_bytes()),
                None => out.extend_from_slice(self.authority.as_str().as_bytes()),
            }
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Appends lines of our own, but for fields that the rule has its own mind about.
    fn write_lines(&self, out: &mut Vec<u8>, lines: &[u8]) {
        if self.edits.leave_fields() {
            out.extend_from_slice(lines);
        } else {
            for line in lines.split_inclusive(|b| *b == b'\n') {
                let name = line.split(|b| *b == b':').next().unwrap_or_default();
                if !str::from_utf8(name).is_ok_and(|name| self.edits.replace(name)) {
                    out.extend_from_slice(line);
                }
            }
        }
    }

    /// Whether the client takes trailers, and so the endpoint may send them: gRPC insists on being told so (RFC 9113,
    /// 8.2.2).
    pub(super) fn takes_trailers(&self) -> bool {
        let is_trailers = |coding: &[u8]| coding.eq_ignore_ascii_case(b"trailers");
        self.fields.te().flat_map(|value| tokens(value.as_bytes())).any(is_trailers)
    }
}

/// What becomes of a field of the client.
#[derive(PartialEq, Eq)]
enum Class {
    /// Forwarded unless `Connection` nominates it.
    Pass,
    /// Forwarded even if nominated: routing or authorisation may rely on it (RFC 9110, 7.6.1, forbids to nominate
    /// them).
    Protected,
    /// Not forwarded, or written anew.
    Drop,
    Cookie,
    /// Forwarded as [`Class::Pass`] where names may have `_`.
    Underscored,
}

/// `name` is in lower case. Sorted by length, so that most names are settled by one comparison of numbers.
fn class(name: &str) -> Class {
    match name.len() {
        2 if name == "te" => Class::Drop,
        3 if name == "via" => Class::Drop,
        4 if name == "host" => Class::Drop,
        // To CGI it is `HTTP_PROXY`, by which many a library finds the proxy of its own requests (CVE-2016-5385).
        5 if name == "proxy" => Class::Drop,
        6 if name == "cookie" => Class::Cookie,
        6 if name == "expect" => Class::Drop,
        7 if name == "upgrade" => Class::Drop,
        8 if name == "x-scheme" => Class::Drop,
        9 if name == "forwarded" || name == "x-real-ip" => Class::Drop,
        10 if name == "connection" || name == "keep-alive" => Class::Drop,
        12 if name == "x-request-id" => Class::Drop,
        12 if name == "content-type" => Class::Protected,
        13 if name == "authorization" => Class::Protected,
        14 if name == "content-length" || name == "http2-settings" => Class::Drop,
        15 if name == "ssl-client-cert" => Class::Drop,
        16 if name == "proxy-connection" => Class::Drop,
        16 if name == "content-encoding" => Class::Protected,
        17 if name == "transfer-encoding" || name == "ssl-client-verify" => Class::Drop,
        19 if name == "proxy-authorization" => Class::Drop,
        20 if name == "ssl-client-issuer-dn" => Class::Drop,
        21 if name == "ssl-client-subject-dn" => Class::Drop,
        24 if name == "x-original-forwarded-for" => Class::Drop,
        _ if name.starts_with("x-forwarded-") => Class::Drop,
        _ if name.contains('_') => class_of_alias(name),
        _ => Class::Pass,
    }
}

/// Removes from a request's trailers what may not stand in its head either: a pod that merges the two would believe it.
pub(super) fn strip_trailers(trailers: &mut HeaderMap) {
    let taken: Vec<HeaderName> = trailers.keys().filter(|name| class(name.as_str()) != Class::Pass).cloned().collect();
    for name in taken {
        trailers.remove(name);
    }
}

/// Whether no value begins or ends with white space. HTTP/1 has none there, as its parser takes it away; in HTTP/2 a
/// request with it is malformed (RFC 9113, 8.2.1), and readers of what it becomes would not agree on its value.
pub(super) fn are_trimmed(headers: &HeaderMap) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    headers.values().map(HeaderValue::as_bytes).all(|value| !is_space(value.first()) && !is_space(value.last()))
}

/// CGI and what descends from it (RFC 3875, 4.1.18) take `_` and `-` for the same: `X_Real_IP` must not say what
/// `X-Real-IP` may not.
#[cold]
fn class_of_alias(name: &str) -> Class {
    match class(&name.replace('_', "-")) {
        Class::Pass | Class::Protected | Class::Underscored => Class::Underscored,
        Class::Drop | Class::Cookie => Class::Drop,
    }
}

/// Whether `name` is `field`, or would be taken for it; see [`class_of_alias`].
fn is_alias(name: &HeaderName, field: &HeaderName) -> bool {
    name == field || (name.as_str().contains('_') && name.as_str().replace('_', "-") == field.as_str())
}

/// The names that `Connection` lists (RFC 9110, 7.6.1).
struct Nominated<'r>(Vec<&'r str>);

impl<'r> Nominated<'r> {
    fn of(fields: &Fields<'r>) -> Self {
        let options = fields.nominating().filter_map(|value| value.to_str().ok());
        Self(options.flat_map(|value| value.split(',')).map(str::trim).collect())
    }

    fn holds(&self, name: &HeaderName) -> bool {
        self.0.iter().any(|nominated| name.as_str().eq_ignore_ascii_case(nominated))
    }
}

/// HTTP/2 clients may send cookies in crumbs; HTTP/1.1 has one field (RFC 9113, 8.2.3).
fn write_cookies(out: &mut Vec<u8>, headers: &HeaderMap) {
    let mut cookies = headers.get_all(header::COOKIE).iter();
    let Some(first) = cookies.next() else { return };
    out.extend_from_slice(b"cookie: ");
    out.extend_from_slice(first.as_bytes());
    for cookie in cookies {
        out.extend_from_slice(b"; ");
        out.extend_from_slice(cookie.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HeaderEdits;

    #[test]
    fn trailers_say_nothing_that_the_head_may_not_say() {
        let mut trailers = HeaderMap::new();
        for name in ["x-checksum", "x-forwarded-for", "x_real_ip", "authorization", "cookie", "host"] {
            trailers.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        strip_trailers(&mut trailers);
        assert_eq!(trailers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-checksum"]);
    }

    /// The forwarded fields of a request for `a.test` with these fields, without those that every request gets.
    fn check(fields: &[(&'static str, &str)], expect: &str) {
        let written = write(fields, "", true);
        let own = ["host: a.test", "x-forwarded-for: 192.0.2.7", "x-forwarded-host: a.test"];
        let made = |line: &str| own.contains(&line) || line.starts_with("x-request-id: ") || line.starts_with("via: ");
        let rest: Vec<_> = written.lines().skip(1).filter(|line| !made(line)).collect();
        assert_eq!(rest.join("|"), expect, "{fields:?}");
        for line in own {
            assert_eq!(written.lines().filter(|l| *l == line).count(), 1, "{line}: {written}");
        }
        for name in ["x-request-id: ", "via: "] {
            assert_eq!(written.lines().filter(|line| line.starts_with(name)).count(), 1, "{name}: {written}");
        }
    }

    /// `edits` are changes as `request-headers` has them.
    fn write(fields: &[(&'static str, &str)], edits: &str, underscores: bool) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).expect("valid value"));
        }
        let authority = Authority::parse("a.test").expect("valid authority");
        let fields = Fields::of(&headers);
        let subject = Subject {
            method: &http::Method::GET,
            host: authority.host(),
            port: None,
            target: "/x?y",
            headers: &headers,
            certificate: crate::route::filter::Shown::Nothing,
            secure: false,
            client: [192, 0, 2, 7].into(),
            https_port: 443,
        };
        let hidden = HeaderName::from_static("cf-connecting-ip");
        let client = Client {
            address: subject.client,
            secure: false,
            forwarded: b"x-forwarded-for: 192.0.2.7\r\n".into(),
            host: None,
            hidden: Some(&hidden),
        };
        let changes = HeaderEdits::parse(edits).expect("valid");
        let edits = Edits { headers: changes.iter().collect(), ..Edits::default() };
        let head = Head {
            version: http::Version::HTTP_11,
            subject: &subject,
            fields: &fields,
            authority: &authority,
            edits: &edits,
            client: &client,
            identity: None,
            request_id: &RequestId::of(fields.request_id),
            handshake: None,
            underscores,
        };
        let mut out = Vec::new();
        head.write(&mut out);
        let text = String::from_utf8(out).expect("ascii");
        assert!(text.starts_with("GET /x?y HTTP/1.1\r\n"), "{text}");
        text
    }

    #[test]
    fn fields_of_the_connection_stay_behind() {
        for (fields, expect) in [
            (&[("accept", "*/*"), ("x-a", "1"), ("x-a", "2")][..], "accept: */*|x-a: 1|x-a: 2"),
            (&[("connection", "keep-alive, X-A"), ("x-a", "1"), ("x-b", "2")], "x-b: 2"),
            (&[("connection", "close, x-a"), ("x-a", "1"), ("x-b", "2")], "x-b: 2"),
            (&[("connection", "close"), ("connection", "x-a,x-b"), ("x-a", "1"), ("x-b", "2")], ""),
            (&[("connection", "upgrade"), ("upgrade", "h2c"), ("http2-settings", "x")], ""),
            (&[("te", "trailers, deflate"), ("keep-alive", "5"), ("proxy-connection", "keep-alive")], ""),
            (&[("transfer-encoding", "chunked"), ("content-length", "5"), ("expect", "100-continue")], ""),
            (&[("proxy-authorization", "Basic x"), ("host", "evil.test")], ""),
        ] {
            check(fields, expect);
        }
    }

    #[test]
    fn nominating_a_field_that_policies_rely_on_has_no_effect() {
        check(
            &[("connection", "authorization, cookie"), ("authorization", "Basic x"), ("cookie", "a=1")],
            "authorization: Basic x|cookie: a=1",
        );
        check(&[("connection", "x-forwarded-for, host, x-forwarded-host")], "");
    }

    #[test]
    fn what_only_the_proxy_may_say_is_replaced() {
        for name in [
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-anything",
            "x-real-ip",
            "x-scheme",
            "x_scheme",
            "x-original-forwarded-for",
            "x_original_forwarded-for",
            "proxy",
            "forwarded",
            "ssl-client-cert",
            "ssl-client-verify",
            "ssl-client-subject-dn",
            "ssl-client-issuer-dn",
            "ssl_client_verify",
        ] {
            check(&[(name, "evil")], "");
        }
        for name in ["x-request-id", "via"] {
            check(&[(name, "one"), (name, "another")], "");
        }
        for name in ["cf-connecting-ip", "cf_connecting_ip", "cf_connecting-ip"] {
            check(&[(name, "evil"), ("cf-ray", "1")], "cf-ray: 1");
        }
    }

    #[test]
    fn an_underscore_says_nothing_that_a_hyphen_may_not() {
        for name in [
            "x_forwarded_for",
            "x_forwarded-for",
            "x-forwarded_for",
            "x_real_ip",
            "x-real_ip",
            "x_forwarded_proto",
            "x_forwarded_anything",
            "x_request_id",
            "content_length",
            "transfer_encoding",
            "proxy_authorization",
        ] {
            check(&[(name, "evil"), ("x-a", "1")], "x-a: 1");
        }
        check(&[("x_a", "1"), ("content_type", "x"), ("_", "y")], "x_a: 1|content_type: x|_: y");
    }

    #[test]
    fn names_with_underscores_pass_where_they_may() {
        let fields = [("x_a", "1"), ("_", "y"), ("x_real_ip", "evil"), ("content_type", "x"), ("x-b", "2")];
        for (underscores, expect) in
            [(true, &["x_a: 1", "_: y", "content_type: x", "x-b: 2"][..]), (false, &["x-b: 2"])]
        {
            let written = write(&fields, "", underscores);
            let is_sent = |line: &&str| fields.iter().any(|(name, _)| line.split(": ").next() == Some(name));
            assert_eq!(written.lines().filter(is_sent).collect::<Vec<_>>(), expect);
        }
    }

    #[test]
    fn rules_change_fields() {
        for (fields, edits, expect, gone) in [
            (&[("x-a", "1"), ("x-a", "2")][..], "X-A: 3", "x-a: 3", "x-a: 1"),
            (&[("x_a", "1")], "X-A: 3", "x-a: 3", "x_a"),
            (&[("x_a", "1")], "-X-A", "", "x_a"),
            (&[("x-a", "1")], "+X-A: 2\n+X-A: 3", "x-a: 2 x-a: 3", "x-b"),
            (&[("x-a", "1")], "+X-A: 2\nX-A: 3\n+X-A: 4", "x-a: 3 x-a: 4", "x-a: 2"),
            (&[("x-a", "1"), ("authorization", "x"), ("cookie", "c")], "-X-A\n-Authorization\n-Cookie", "", "x-a"),
            (
                &[],
                "X-Forwarded-For: $remote_addr!\nX-Forwarded-Host: h\nX-Request-Id: i",
                "x-forwarded-for: 192.0.2.7! x-forwarded-host: h x-request-id: i",
                "x-forwarded-for: 192.0.2.7 ",
            ),
        ] {
            let written = write(fields, edits, true).lines().skip(2).collect::<Vec<_>>().join(" ") + " ";
            assert!(written.contains(expect) && !written.contains(gone), "{edits}: {written}");
            if expect.is_empty() {
                assert!(!written.contains("authorization") && !written.contains("cookie"), "{written}");
            }
        }
    }

    #[test]
    fn cookie_crumbs_are_joined() {
        check(&[("cookie", "a=1"), ("x-a", "1"), ("cookie", "b=2"), ("cookie", "c=3")], "x-a: 1|cookie: a=1; b=2; c=3");
    }
}
