//! Decides whether a request goes to a canary. Pure: randomness is an argument.

use super::{Branches, Subject, UpstreamId, template::cookie};
use crate::{CanaryRule, CanarySessions, CanaryValue};

/// Decision of a canary's conditions, before the weight is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CanaryDecision {
    Always,
    Never,
    ByWeight,
}

/// Returns the upstream for a request. `session_upstream` is the upstream of the client's session, if it has one. `draw` returns a
/// number from 0 to 1 (exclusive). Canaries for which `is_available` returns `false` cannot take requests and are ignored.
#[must_use]
pub fn choose(
    branches: &Branches,
    subject: &Subject<'_>,
    session_upstream: Option<UpstreamId>,
    draw: impl FnOnce() -> f64,
    is_available: impl Fn(UpstreamId) -> bool,
) -> UpstreamId {
    let Branches { main, canaries, over_tls: _ } = branches;
    if let Some(session_upstream) =
        session_upstream.filter(|session_upstream| session_upstream != main && is_available(*session_upstream))
    {
        return session_upstream;
    }
    let may_leave = |when: &CanaryRule| session_upstream != Some(*main) || when.sessions == CanarySessions::Ignored;
    let mut by_weight = Vec::new();
    for (when, upstream) in canaries.iter().filter(|(when, upstream)| may_leave(when) && is_available(*upstream)) {
        match wish(when, subject) {
            CanaryDecision::Always => return *upstream,
            CanaryDecision::Never => {}
            CanaryDecision::ByWeight => {
                by_weight.push((f64::from(when.weight) / f64::from(when.total.max(1)), *upstream))
            }
        }
    }
    if by_weight.is_empty() {
        return *main;
    }
    let mut left = draw();
    for (share, upstream) in by_weight {
        if left < share {
            return upstream;
        }
        left -= share;
    }
    *main
}

fn wish(when: &CanaryRule, subject: &Subject<'_>) -> CanaryDecision {
    let CanaryRule { header, cookie: name, weight: _, total: _, sessions: _ } = when;
    if let Some((name, wanted)) = header
        && let Some(value) = subject.headers.get(name)
    {
        match (wanted, value.to_str()) {
            (CanaryValue::Word, Ok("always")) => return CanaryDecision::Always,
            (CanaryValue::Word, Ok("never")) => return CanaryDecision::Never,
            (CanaryValue::Exactly(wanted), _) if wanted == value => return CanaryDecision::Always,
            (CanaryValue::Like(pattern), Ok(value)) if pattern.is_match(value) => return CanaryDecision::Always,
            _ => {}
        }
    }
    match name.as_deref().and_then(|name| cookie(subject.headers, name)) {
        Some("always") => CanaryDecision::Always,
        Some("never") => CanaryDecision::Never,
        _ => CanaryDecision::ByWeight,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::Pattern;

    const MAIN: UpstreamId = UpstreamId(0);
    const FIRST: UpstreamId = UpstreamId(1);
    const SECOND: UpstreamId = UpstreamId(2);

    fn subject(headers: &HeaderMap) -> Subject<'_> {
        Subject {
            certificate: crate::route::filter::Shown::Nothing,
            certificate_fields: "",
            method: &Method::GET,
            host: "a.test",
            port: None,
            target: "/",
            headers,
            secure: false,
            client: [192, 0, 2, 7].into(),
            https_port: 443,
            listener_port: 80,
            clock: std::time::Duration::default,
        }
    }

    fn check(rules: &[CanaryRule], fields: &[(&'static str, &'static str)], draw: f64, expect: UpstreamId) {
        let canaries = rules.iter().cloned().zip([FIRST, SECOND]).collect();
        let fields =
            fields.iter().map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value)));
        let headers: HeaderMap = fields.collect();
        let subject = subject(&headers);
        let chosen = choose(&Branches { main: MAIN, canaries, over_tls: vec![] }, &subject, None, || draw, |_| true);
        assert_eq!(chosen, expect, "{rules:?} {headers:?} {draw}");
        let unavailable = choose(
            &Branches { main: MAIN, canaries: vec![(rules[0].clone(), FIRST)], over_tls: vec![] },
            &subject,
            None,
            || draw,
            |_| false,
        );
        assert_eq!(unavailable, MAIN);
    }

    fn weight(weight: u32, total: u32) -> CanaryRule {
        CanaryRule { weight, total, ..CanaryRule::default() }
    }

    fn header(value: CanaryValue) -> CanaryRule {
        CanaryRule { header: Some(("x-canary".parse().expect("a name"), value)), total: 100, ..CanaryRule::default() }
    }

    #[test]
    fn shares_follow_weights() {
        check(&[weight(10, 100)], &[], 0.0999, FIRST);
        check(&[weight(10, 100)], &[], 0.1, MAIN);
        check(&[weight(0, 100)], &[], 0.0, MAIN);
        check(&[weight(1000, 1000)], &[], 0.9999, FIRST);
        check(&[weight(10, 100), weight(1, 5)], &[], 0.1, SECOND);
        check(&[weight(10, 100), weight(1, 5)], &[], 0.31, MAIN);
    }

    #[test]
    fn sticky_sessions_take_precedence_if_enabled() {
        let always = CanaryRule { weight: 100, total: 100, ..header(CanaryValue::Word) };
        let ignoring = CanaryRule { sessions: CanarySessions::Ignored, ..always.clone() };
        let fields: HeaderMap =
            [("x-canary".parse().expect("a name"), HeaderValue::from_static("always"))].into_iter().collect();
        let subject = subject(&fields);
        for (rules, session_upstream, unavailable, expect) in [
            (vec![always.clone()], None, None, FIRST),
            (vec![always.clone()], Some(MAIN), None, MAIN),
            (vec![ignoring.clone()], Some(MAIN), None, FIRST),
            (vec![always.clone(), always.clone()], Some(SECOND), None, SECOND),
            (vec![always.clone(), always.clone()], Some(SECOND), Some(SECOND), FIRST),
            (vec![always, ignoring], Some(MAIN), None, SECOND),
        ] {
            let canaries = rules.into_iter().zip([FIRST, SECOND]).collect();
            let branches = Branches { main: MAIN, canaries, over_tls: vec![] };
            assert_eq!(
                choose(&branches, &subject, session_upstream, || 0.5, |id| unavailable != Some(id)),
                expect,
                "{branches:?} {session_upstream:?}"
            );
        }
    }

    #[test]
    fn headers_and_cookies_take_precedence_over_weights() {
        let all = [CanaryRule { cookie: Some("c".into()), ..header(CanaryValue::Word) }];
        check(&all, &[("x-canary", "always"), ("cookie", "c=never")], 0.9, FIRST);
        check(&all, &[("x-canary", "never"), ("cookie", "c=always")], 0.0, MAIN);
        check(&all, &[("x-canary", "other"), ("cookie", "c=always")], 0.9, FIRST);
        check(&all.map(|all| CanaryRule { weight: 100, ..all }), &[("cookie", "c=never")], 0.0, MAIN);
        let exact = header(CanaryValue::Exactly(HeaderValue::from_static("eu")));
        check(std::slice::from_ref(&exact), &[("x-canary", "eu")], 0.9, FIRST);
        check(std::slice::from_ref(&exact), &[("x-canary", "always")], 0.9, MAIN);
        check(&[exact, weight(100, 100)], &[("x-canary", "us")], 0.9, SECOND);
        let like = header(CanaryValue::Like(Pattern::within("^eu-|test").expect("valid")));
        check(std::slice::from_ref(&like), &[("x-canary", "eu-1")], 0.9, FIRST);
        check(&[like], &[("x-canary", "us")], 0.9, MAIN);
    }

    #[test]
    fn clients_over_tls_reach_the_upstream_for_tls() {
        let branches =
            Branches { main: MAIN, canaries: vec![(weight(10, 100), FIRST)], over_tls: vec![(MAIN, SECOND)] };
        assert_eq!([MAIN, FIRST, SECOND].map(|chosen| branches.reached(chosen, true)), [SECOND, FIRST, SECOND]);
        assert_eq!([MAIN, FIRST, SECOND].map(|chosen| branches.reached(chosen, false)), [MAIN, FIRST, SECOND]);
    }
}
