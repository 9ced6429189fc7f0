//! Applies rules that answer requests.
//!
//! A client must not escape a refusal by writing the same in another way. So a refusal holds if its condition holds for
//! *any* form of a text that a pod may see: another reading of the path, another line of a field, another cookie or argument
//! of the same name. An exemption must hold for all of them. A redirect looks at the text as nginx does.
//!
//! Work is bounded: a text that is too long to be searched is refused where a match would be, so length hides nothing.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use regex::Captures;

use super::{Edits, Subject, Verdict, location_with, path, render};
use crate::{
    Answer, Pattern, RequestCondition, RequestRule, RequestRules, RequestSubject, Template, TextTest, Variable,
    request_path,
};

/// Limit for the product of automaton states and bytes, over all searches for one request; 5 to 12 ms in the worst case.
pub(super) const WORK_MAX: usize = 1 << 20;

/// Returns the answer of the first rule whose conditions hold.
pub(super) fn apply<'f>(rules: &'f RequestRules, subject: &Subject<'_>, edits: &mut Edits<'f>) -> Verdict<'f> {
    let mut request = Request::of(subject);
    for RequestRule { conditions, answer } in rules.iter() {
        if !conditions.iter().all(|condition| request.meets(condition, answer)) {
            continue;
        }
        return match answer {
            Answer::Pass => Verdict::Continue,
            Answer::Refuse(status) => Verdict::Refuse { status: *status },
            Answer::Respond { status, body } => Verdict::Respond { status: *status, body },
            Answer::Redirect(_) | Answer::Rewrite(_) => {
                let last = conditions.iter().rev().find(|condition| condition.has_groups());
                let text = last.map(|condition| searched(condition, subject)).unwrap_or_default();
                let groups = last.and_then(|condition| captures(condition, &text));
                match answer {
                    Answer::Redirect(redirect) => {
                        let location = location_with(redirect, subject, groups.as_ref());
                        Verdict::Redirect { status: redirect.status, location }
                    }
                    Answer::Rewrite(target) if subject.target != "*" => {
                        edits.target = Some(render(target, subject, groups.as_ref()));
                        Verdict::Continue
                    }
                    _ => Verdict::Continue,
                }
            }
        };
    }
    Verdict::Continue
}

/// Returns the first text that decides about the answer and is not known, for a request of which only some texts are
/// known; `None` if those decide.
#[must_use]
pub fn undecided_by<'f>(
    rules: &'f RequestRules,
    subject: &Subject<'_>,
    is_known: impl Fn(&RequestSubject) -> bool,
) -> Option<&'f RequestSubject> {
    let mut request = Request::of(subject);
    // A rewritten path leads to the same pods.
    let answers = rules.iter().take_while(|rule| !matches!(rule.answer, Answer::Rewrite(_)));
    answers.into_iter().find_map(|RequestRule { conditions, answer }| {
        let (known, unknown): (Vec<_>, Vec<_>) = conditions.iter().partition(|condition| is_known(&condition.subject));
        let may_answer = known.into_iter().all(|condition| request.meets(condition, answer));
        may_answer.then(|| unknown.first().map(|condition| &condition.subject))
    })?
}

/// A request while rules are applied to it.
struct Request<'s, 'r> {
    subject: &'s Subject<'r>,
    /// Other forms in which a pod may read the path.
    other_paths: Vec<String>,
    /// The work that is left for searches.
    work: usize,
}

// === impl Request ===

impl<'s, 'r> Request<'s, 'r> {
    fn of(subject: &'s Subject<'r>) -> Self {
        let mut other_paths = request_path::others(path(subject.target));
        // In PCRE, `$` also matches before a line feed at the end.
        let cut: Vec<_> = other_paths.iter().filter_map(|path| path.strip_suffix('\n')).map(str::to_owned).collect();
        other_paths.extend(cut);
        Self { subject, other_paths, work: WORK_MAX }
    }

    /// Returns whether a condition holds, for a rule with this answer.
    fn meets(&mut self, condition: &RequestCondition, answer: &Answer) -> bool {
        let RequestCondition { subject: wanted, test, is_negated } = condition;
        let Self { subject, other_paths, work } = self;
        let refuses = matches!(answer, Answer::Refuse(_));
        let mut holds = |text: &str| match test {
            TextTest::Is(whole) => (text == &**whole) != *is_negated,
            TextTest::Begins(start) => text.starts_with(&**start) != *is_negated,
            TextTest::Matches(pattern) => match is_match(pattern, text, work) {
                Some(is_match) => is_match != *is_negated,
                None => refuses,
            },
            TextTest::Within(network) => network.contains(&subject.client) != *is_negated,
        };
        match (answer, wanted) {
            (Answer::Refuse(_) | Answer::Pass, RequestSubject::Path) => {
                let mut texts = [path(subject.target)].into_iter().chain(other_paths.iter().map(String::as_str));
                if refuses { texts.any(holds) } else { texts.all(holds) }
            }
            // Neither a second line nor a byte that is not UTF-8 hides a match.
            (_, RequestSubject::Header(name)) if subject.headers.contains_key(name) => {
                let mut lines =
                    subject.headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
                // A redirect without a match must find none in any line.
                if refuses || !is_negated { lines.any(|line| holds(&line)) } else { lines.all(|line| holds(&line)) }
            }
            (Answer::Refuse(_), RequestSubject::Variable(Variable::Cookie(name))) => {
                let mut values = any_case_cookies(subject.headers, name).map(String::from_utf8_lossy).peekable();
                if values.peek().is_none() { holds("") } else { values.any(|value| holds(value.trim_matches('"'))) }
            }
            (Answer::Refuse(_), RequestSubject::Variable(Variable::Argument(name))) => {
                let query = subject.target.split_once('?').map_or("", |(_, query)| query);
                let mut values = arguments(query, name).peekable();
                if values.peek().is_none() { holds("") } else { values.any(|value| holds(&value)) }
            }
            (_, other) => holds(&first(other, subject)),
        }
    }
}

/// Searches for `pattern`; `None` if the text is too long, or no work is left.
fn is_match(pattern: &Pattern, text: &str, work: &mut usize) -> Option<bool> {
    if pattern.is_beyond(text) {
        return None;
    }
    *work = work.checked_sub(pattern.work(text))?;
    Some(pattern.is_match(text))
}

/// Yields the values of an argument, as the client wrote them and decoded.
fn arguments<'q>(query: &'q str, name: &str) -> impl Iterator<Item = Cow<'q, str>> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    // nginx ignores the case of names.
    let named = pairs.filter(move |(found, _)| decoded(found).eq_ignore_ascii_case(name)).map(|(_, value)| value);
    named.flat_map(|value| [value.into(), decoded(value).into()])
}

/// Iterates over the values of all cookies of that name in any case, which nginx ignores.
fn any_case_cookies<'r>(headers: &'r http::HeaderMap, name: &str) -> impl Iterator<Item = &'r [u8]> {
    let fields = headers.get_all(http::header::COOKIE).iter().map(http::HeaderValue::as_bytes);
    let pairs = fields.flat_map(|field| field.split(|b| *b == b';')).map(<[u8]>::trim_ascii);
    pairs.filter_map(move |pair| {
        let (found, value) = pair.split_at_checked(name.len())?;
        value.strip_prefix(b"=").filter(|_| found.eq_ignore_ascii_case(name.as_bytes()))
    })
}

fn decoded(text: &str) -> String {
    String::from_utf8_lossy(&percent_decode_str(text).collect::<Vec<_>>()).into_owned()
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

/// Returns the text in which a condition has found its expression: of a repeated field, that of the first line with a match.
/// It has the bound of the search that found it.
fn searched<'r>(condition: &RequestCondition, subject: &Subject<'r>) -> Cow<'r, str> {
    match (&condition.subject, &condition.test) {
        (RequestSubject::Header(name), TextTest::Matches(pattern)) => {
            let mut lines = subject.headers.get_all(name).iter().map(|line| String::from_utf8_lossy(line.as_bytes()));
            let mut work = WORK_MAX;
            lines.find(|line| is_match(pattern, line, &mut work) == Some(true)).unwrap_or_default()
        }
        (wanted, _) => first(wanted, subject),
    }
}

fn captures<'t>(condition: &RequestCondition, text: &'t str) -> Option<Captures<'t>> {
    match &condition.test {
        TextTest::Matches(pattern) => pattern.captures(text),
        TextTest::Is(_) | TextTest::Begins(_) | TextTest::Within(_) => None,
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
        let mut edits = Edits::default();
        match apply(rules, &subject, &mut edits) {
            Verdict::Continue => edits.target.map(|target| format!("rewrite {target}")).unwrap_or_default(),
            Verdict::Respond { status, body } => format!("{status} {body:?}"),
            Verdict::Refuse { status } => status.to_string(),
            Verdict::Redirect { status, location } => format!("{status} {location}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_rule_answers_rewrites_and_knows_networks() {
        let text = "client = 198.51.100.0/24 -> 403\nclient != 192.0.2.0/24 -> 401\npath = /up -> 200 ok\n\
                    method = OPTIONS -> 204\npath ~ ^/api/(.*)$ -> rewrite /$1$is_args$args\npath ~ ^/api -> 404";
        let rules = RequestRules::redirects(text).expect("valid");
        for (target, expect) in [
            ("/up", "200 \"ok\""),
            ("/api/x?a=b", "rewrite /x?a=b"),
            ("/api/x", "rewrite /x"),
            ("/api", "404"),
            ("/x", ""),
        ] {
            assert_eq!(verdict(&rules, "a.test", target, &[]), expect, "{target}");
        }
    }

    #[test]
    fn neither_the_case_of_a_name_nor_a_line_feed_hides_what_is_refused() {
        let rules = RequestRules::redirects("arg:debug = 1 -> 403\ncookie:beta = 1 -> 402").expect("valid");
        assert_eq!(verdict(&rules, "a.test", "/?DEBUG=1", &[]), "403");
        assert_eq!(verdict(&rules, "a.test", "/", &[("cookie", b"a=2; BETA=1")]), "402");
        assert_eq!(verdict(&rules, "a.test", "/", &[("cookie", b"betas=1; abeta=1")]), "");
        let rules = RequestRules::deny_paths("~ \\.php$").expect("valid");
        assert_eq!(verdict(&rules, "a.test", "/a.php%0a", &[]), "403");
        assert_eq!(verdict(&rules, "a.test", "/a.php%0ab", &[]), "");
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
        for hidden in
            ["/x/..%2fmetrics", "/x/..;/metrics", "/%2fmetrics", "/x\\..\\metrics", "/%5cmetrics", "/metrics;x/y"]
        {
            assert_eq!(verdict(&rules, "a.test", hidden, &[]), "404", "{hidden}");
        }
        // An exemption is for paths that no pod reads otherwise.
        assert_eq!(verdict(&rules, "a.test", "/.well-known/..%2fmetrics", &[]), "404");
        let escaped = RequestRules::deny_paths("/@fs, = /a b").expect("valid");
        for target in ["/%40fs/etc", "/@fs/etc", "/a%20b", "/%25/..%2f%40fs/etc", "/x%5c..%5c%40fs", "/x%2f..;%2f%40fs"]
        {
            assert_eq!(verdict(&escaped, "a.test", target, &[]), "403", "{target}");
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
    fn no_other_value_escapes_a_refusal() {
        let cookies = [("cookie", &b"x=good; x=\xffbad"[..])];
        for (text, target, headers, expect) in [
            ("arg:debug = 1 -> 403", "/?debug=0&debug=1", &[][..], "403"),
            ("arg:debug = 1 -> 403", "/?d%65bug=%31", &[], "403"),
            ("arg:debug = 1 -> 403", "/?debug=0", &[], ""),
            ("arg:key != s -> 403", "/?key=s&key=t", &[], "403"),
            ("arg:key != s -> 403", "/?key=s", &[], ""),
            ("arg:key != s -> 403", "/", &[], "403"),
            ("cookie:x ~ bad -> 403", "/", &cookies, "403"),
            ("cookie:x ~ bad -> /x", "/", &cookies, ""),
            ("header:X-Key != s -> 403", "/", &[("x-key", b"s"), ("x-key", b"t")], "403"),
            ("header:X-Key != s -> 403", "/", &[("x-key", b"s")], ""),
        ] {
            let rules = RequestRules::redirects(text).expect("valid");
            assert_eq!(verdict(&rules, "a.test", target, headers), expect, "{text} {target}");
        }
        // Groups are those of the line that matches.
        let rules = RequestRules::redirects("header:X-A ~ ^to-(.*)$ -> /$1").expect("valid");
        let lines = [("x-a", &b"other"[..]), ("x-a", b"to-b")];
        assert_eq!(verdict(&rules, "a.test", "/", &lines), "302 https://a.test/b");
    }

    #[test]
    fn searches_of_a_request_have_a_bound_together() {
        let rules = RequestRules::redirects("header:X-A ~ (a?b?){200}c -> 403").expect("valid");
        let line = ("x-a", &[b'a'; 100][..]);
        assert_eq!(verdict(&rules, "a.test", "/", &[line]), "");
        assert_eq!(verdict(&rules, "a.test", "/", &[line; 50]), "403");
        let rules = RequestRules::redirects("header:X-A ~ (a?b?){200}c -> /x").expect("valid");
        assert_eq!(verdict(&rules, "a.test", "/", &[line; 50]), "");
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
