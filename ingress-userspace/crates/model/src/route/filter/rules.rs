//! Applies rules that answer requests. A text that is too long to be searched is refused where a match would be, so that
//! length hides nothing.

use std::borrow::Cow;

use regex::Captures;

use super::{Subject, Verdict, location_with, path, render};
use crate::{Answer, RequestCondition, RequestRule, RequestRules, RequestSubject, Template, TextTest, Variable};

/// Returns the answer of the first rule whose conditions hold.
pub(super) fn apply<'f>(rules: &'f RequestRules, subject: &Subject<'_>) -> Verdict<'f> {
    for RequestRule { conditions, answer } in rules.iter() {
        let refuses = matches!(answer, Answer::Refuse(_));
        if !conditions.iter().all(|condition| holds(condition, subject, refuses)) {
            continue;
        }
        return match answer {
            Answer::Pass => Verdict::Continue,
            Answer::Refuse(status) => Verdict::Refuse { status: *status },
            Answer::Redirect(redirect) => {
                let texts: Vec<_> = conditions.iter().filter(|condition| condition.has_groups()).collect();
                let text = texts.last().map(|condition| first(&condition.subject, subject)).unwrap_or_default();
                let groups = texts.last().and_then(|condition| captures(condition, &text));
                let location = location_with(redirect, subject, groups.as_ref());
                Verdict::Redirect { status: redirect.status, location }
            }
        };
    }
    Verdict::Continue
}

/// Returns whether a condition holds. `is_strict` is the result for texts too long to be searched.
fn holds(condition: &RequestCondition, subject: &Subject<'_>, is_strict: bool) -> bool {
    let RequestCondition { subject: wanted, test, is_negated } = condition;
    let is_met = |text: &str| match test {
        TextTest::Is(whole) => text == &**whole,
        TextTest::Begins(start) => text.starts_with(&**start),
        TextTest::Matches(pattern) if pattern.is_beyond(text) => is_strict != *is_negated,
        TextTest::Matches(pattern) => pattern.is_match(text),
    };
    let is_met = match wanted {
        // Neither a second line nor a byte that is not UTF-8 hides a match.
        RequestSubject::Header(name) if subject.headers.contains_key(name) => {
            let lines = subject.headers.get_all(name).iter();
            lines.map(|line| String::from_utf8_lossy(line.as_bytes())).any(|line| is_met(&line))
        }
        other => is_met(&first(other, subject)),
    };
    is_met != *is_negated
}

/// Returns the text of a subject; of a repeated field, that of the first line.
fn first<'r>(wanted: &RequestSubject, subject: &Subject<'r>) -> Cow<'r, str> {
    match wanted {
        RequestSubject::Path => path(subject.target).into(),
        RequestSubject::Variable(Variable::Host) => subject.host.into(),
        RequestSubject::Header(name) => {
            subject.headers.get(name).map(|line| String::from_utf8_lossy(line.as_bytes())).unwrap_or_default()
        }
        RequestSubject::Variable(variable) => render(&Template::of(variable.clone()), subject, None).into(),
    }
}

fn captures<'t>(condition: &RequestCondition, text: &'t str) -> Option<Captures<'t>> {
    match &condition.test {
        TextTest::Matches(pattern) => pattern.captures(text),
        TextTest::Is(_) | TextTest::Begins(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::{HeaderMap, HeaderName, HeaderValue, Method};

    use super::*;
    use crate::route::filter::Shown;

    fn verdict(rules: &RequestRules, host: &str, target: &str, headers: &[(&'static str, &[u8])]) -> String {
        let field = |(name, value): &(&'static str, &[u8])| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value).expect("a value"))
        };
        let headers: HeaderMap = headers.iter().map(field).collect();
        let subject = Subject {
            method: &Method::GET,
            host,
            port: None,
            target,
            headers: &headers,
            secure: true,
            certificate: Shown::Nothing,
            client: IpAddr::from([192, 0, 2, 1]),
            https_port: 443,
            listener_port: 443,
        };
        match apply(rules, &subject) {
            Verdict::Continue => String::new(),
            Verdict::Refuse { status } => status.to_string(),
            Verdict::Redirect { status, location } => format!("{status} {location}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_first_entry_for_a_path_decides() {
        let text = "!/.well-known/, /metrics=404, = /status, ~ /\\., ~* \\.(sql|bak)$=410";
        let rules = RequestRules::deny_paths(text).expect("valid");
        for (target, expect) in [
            ("/", ""),
            ("/metrics", "404"),
            ("/metrics/x?y", "404"),
            ("/metricsx", "404"),
            ("/a/metrics", ""),
            ("/status", "403"),
            ("/status/", ""),
            ("/a/.git/config", "403"),
            ("/.well-known/acme-challenge/x", ""),
            ("/dump.SQL?x=1", "410"),
            ("/?x=.bak", ""),
        ] {
            assert_eq!(verdict(&rules, "a.test", target, &[]), expect, "{target}");
        }
        // The path is too long for the expression, so it may be one of those that are denied.
        let long = format!("/{}", "a".repeat(200_000));
        assert_eq!(verdict(&rules, "a.test", &long, &[]), "403");
    }

    #[test]
    fn rules_redirect_and_refuse_by_conditions() {
        let text = "\
            host = old.test -> 301 https://new.test$request_uri\n\
            path ~ ^/blog/([^/]*)/(.*)$ and arg:old != 1 -> https://blog.test/$2/$1\n\
            header:User-Agent ~* bot -> 429\n\
            header:X-Forwarded-Proto = http -> 308 https://$host/s\n\
            path = / -> /app";
        let rules = RequestRules::redirects(text).expect("valid");
        for (host, target, headers, expect) in [
            ("old.test", "/x?y", &[][..], "301 https://new.test/x?y"),
            ("a.test", "/blog/a/b", &[], "302 https://blog.test/b/a"),
            ("a.test", "/blog/a/b?old=1", &[], ""),
            ("a.test", "/x", &[("user-agent", &b"Good"[..]), ("user-agent", b"\xffBadBot")], "429"),
            ("a.test", "/x", &[("x-forwarded-proto", b"http")], "308 https://a.test/s"),
            ("a.test", "/x", &[("x-forwarded-proto", b"https")], ""),
            ("a.test", "/?x", &[], "302 https://a.test/app"),
        ] {
            assert_eq!(verdict(&rules, host, target, headers), expect, "{host}{target}");
        }
        // A missing field is the empty text.
        let rules = RequestRules::redirects("header:X-Key = \"\" -> 401").expect("valid");
        assert_eq!(verdict(&rules, "a.test", "/", &[]), "401");
        assert_eq!(verdict(&rules, "a.test", "/", &[("x-key", b"1")]), "");
    }

    #[test]
    fn texts_too_long_to_be_searched_are_refused_and_never_redirected() {
        let long = "a".repeat(300_000);
        for (text, expect) in [
            ("header:X-A ~ b -> 403", "403"),
            ("header:X-A !~ b -> 403", "403"),
            ("header:X-A ~ b -> /x", ""),
            ("header:X-A !~ b -> /x", ""),
        ] {
            let rules = RequestRules::redirects(text).expect("valid");
            assert_eq!(verdict(&rules, "a.test", "/", &[("x-a", long.as_bytes())]), expect, "{text}");
        }
    }
}
