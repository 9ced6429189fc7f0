//! Applies a rule's filters to a request. Pure: it decides, the proxy acts.

use crate::model::{Filter, PathMatch, path::ACME_CHALLENGE};

/// What the filters need to know of a request.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'r> {
    /// Canonical host, without port.
    pub host: &'r str,
    /// Path and query as they are forwarded.
    pub target: &'r str,
    /// Whether the client's connection is encrypted.
    pub secure: bool,
    /// Where clients reach HTTPS; 443 goes without saying in a redirect.
    pub https_port: u16,
}

/// What the filters made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On to the rule's action.
    Continue,
    /// Answer with this redirect.
    Redirect { status: u16, location: String },
}

/// Runs the filters in order; the first that does not continue ends it.
#[must_use]
pub fn apply(filters: &[Filter], subject: Subject<'_>) -> Verdict {
    for filter in filters {
        let verdict = match filter {
            Filter::RedirectHttps { status, except } => redirect_https(*status, except, subject),
        };
        if verdict != Verdict::Continue {
            return verdict;
        }
    }
    Verdict::Continue
}

fn redirect_https(status: u16, except: &[PathMatch], subject: Subject<'_>) -> Verdict {
    let Subject { host, target, secure, https_port } = subject;
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    if secure || path.starts_with(ACME_CHALLENGE) || except.iter().any(|except| except.matches(path)) {
        return Verdict::Continue;
    }
    let location = match https_port {
        443 => format!("https://{host}{target}"),
        port => format!("https://{host}:{port}{target}"),
    };
    Verdict::Redirect { status, location }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters() -> [Filter; 1] {
        [Filter::RedirectHttps { status: 308, except: [PathMatch::prefix("/plain").expect("valid")].into() }]
    }

    fn check(target: &str, secure: bool, expect: Verdict) {
        let filters = filters();
        let subject = Subject { host: "a.test", target, secure, https_port: 443 };
        assert_eq!(apply(&filters, subject), expect, "{target}");
    }

    #[test]
    fn a_redirect_names_an_unusual_port() {
        let filters = filters();
        let subject = Subject { host: "a.test", target: "/x", secure: false, https_port: 8443 };
        let location = "https://a.test:8443/x".to_owned();
        assert_eq!(apply(&filters, subject), Verdict::Redirect { status: 308, location });
    }

    #[test]
    fn plain_requests_are_sent_to_https() {
        let location = "https://a.test/x?y=1".to_owned();
        check("/x?y=1", false, Verdict::Redirect { status: 308, location });
        check("/x?y=1", true, Verdict::Continue);
    }

    #[test]
    fn acme_challenges_stay_on_http() {
        check("/.well-known/acme-challenge/token", false, Verdict::Continue);
        let location = "https://a.test/.well-known/other".to_owned();
        check("/.well-known/other", false, Verdict::Redirect { status: 308, location });
    }
    #[test]
    fn excepted_paths_stay_on_http() {
        check("/plain", false, Verdict::Continue);
        check("/plain/below?x=/", false, Verdict::Continue);
        let location = "https://a.test/plainer?x=/plain".to_owned();
        check("/plainer?x=/plain", false, Verdict::Redirect { status: 308, location });
    }
}
