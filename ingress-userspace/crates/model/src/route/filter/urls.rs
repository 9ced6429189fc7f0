//! Rewrites URLs and cookies in the head of a pod's response, as nginx does with `proxy_redirect` and `proxy_cookie_…`.
//! Values that are no text, or would be no valid field, stay as they are. So do those for which the work or the bytes of one
//! response are spent: pods choose both, and other tenants share the thread.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use regex::Captures;

use super::{Subject, render, rules::WORK_MAX};
use crate::{RewriteSource, Template, UrlRewrite, UrlRewrites};

/// Bytes that all rewriting of one response may render.
const RENDERED_MAX: usize = 64 * 1024;

/// Work and bytes that are left for one response.
struct Budget {
    work: usize,
    bytes: usize,
}

/// Rewrites the head of a response of a pod.
pub fn rewrite_urls(rewrites: &UrlRewrites, subject: &Subject<'_>, headers: &mut HeaderMap) {
    let UrlRewrites { redirect, cookie_domain, cookie_path } = rewrites;
    let mut budget = Budget { work: WORK_MAX, bytes: RENDERED_MAX };
    if let Some(redirect) = redirect {
        each(headers, &header::LOCATION, |location| {
            let location = budget.beginning(redirect, subject, location)?;
            // As in redirects of the proxy itself. Two slashes begin no other host.
            let is_path = location.starts_with('/');
            let scheme = if subject.secure { "https" } else { "http" };
            Some(if is_path { format!("{scheme}://{}{location}", subject.host) } else { location })
        });
        each(headers, &header::REFRESH, |refresh| {
            let at = refresh.to_ascii_lowercase().find("url=")? + "url=".len();
            Some(format!("{}{}", &refresh[..at], budget.beginning(redirect, subject, &refresh[at..])?))
        });
    }
    if cookie_domain.is_some() || cookie_path.is_some() {
        each(headers, &header::SET_COOKIE, |cookie| {
            let mut is_changed = false;
            let attributes = cookie.split(';').enumerate().map(|(at, attribute)| {
                let changed = (at > 0)
                    .then(|| budget.with_attribute(cookie_domain.as_ref(), cookie_path.as_ref(), subject, attribute))
                    .flatten();
                is_changed |= changed.is_some();
                changed.map_or(Cow::Borrowed(attribute), Cow::Owned)
            });
            let attributes = attributes.collect::<Vec<_>>().join(";");
            is_changed.then_some(attributes)
        });
    }
}

/// Replaces the values of a field for which `edit` returns others.
fn each(headers: &mut HeaderMap, name: &HeaderName, mut edit: impl FnMut(&str) -> Option<String>) {
    if !headers.contains_key(name) {
        return;
    }
    if let header::Entry::Occupied(mut values) = headers.entry(name) {
        for value in values.iter_mut() {
            let edited = str::from_utf8(value.as_bytes()).ok().and_then(&mut edit);
            if let Some(edited) = edited.and_then(|text| HeaderValue::try_from(text).ok()) {
                *value = edited;
            }
        }
    }
}

// === impl Budget ===

impl Budget {
    /// Returns an attribute of a cookie with another domain or path; `None` if it stays.
    fn with_attribute(
        &mut self,
        cookie_domain: Option<&UrlRewrite>,
        cookie_path: Option<&UrlRewrite>,
        subject: &Subject<'_>,
        attribute: &str,
    ) -> Option<String> {
        let (name, value) = attribute.split_once('=')?;
        let text = value.trim();
        let new = match name.trim() {
            name if name.eq_ignore_ascii_case("domain") => self.domain(cookie_domain?, subject, text),
            name if name.eq_ignore_ascii_case("path") => self.beginning(cookie_path?, subject, text),
            _ => None,
        }?;
        Some(format!("{name}={new}"))
    }

    /// Returns `text` with another beginning, or a whole text for an expression; `None` if it stays.
    fn beginning(&mut self, rewrite: &UrlRewrite, subject: &Subject<'_>, text: &str) -> Option<String> {
        let UrlRewrite { from, to } = rewrite;
        match from {
            RewriteSource::Text(from) => {
                let rest = text.strip_prefix(&*self.rendered(from, subject, None)?)?;
                Some(self.rendered(to, subject, None)? + rest)
            }
            RewriteSource::Expression(_) => self.whole(rewrite, subject, text),
        }
    }

    /// Returns the domain in place of `text`; `None` if it stays.
    fn domain(&mut self, rewrite: &UrlRewrite, subject: &Subject<'_>, text: &str) -> Option<String> {
        let UrlRewrite { from, to } = rewrite;
        match from {
            RewriteSource::Text(from) => {
                let (dot, name) = text.strip_prefix('.').map_or(("", text), |name| (".", name));
                let is_same = self.rendered(from, subject, None)?.eq_ignore_ascii_case(name);
                if is_same { Some(format!("{dot}{}", self.rendered(to, subject, None)?)) } else { None }
            }
            RewriteSource::Expression(_) => self.whole(rewrite, subject, text),
        }
    }

    fn whole(&mut self, UrlRewrite { from, to }: &UrlRewrite, subject: &Subject<'_>, text: &str) -> Option<String> {
        let RewriteSource::Expression(pattern) = from else { return None };
        if pattern.is_beyond(text) {
            return None;
        }
        self.work = self.work.checked_sub(pattern.work(text))?;
        let groups = pattern.captures(text)?;
        self.rendered(to, subject, Some(&groups))
    }

    fn rendered(
        &mut self,
        template: &Template,
        subject: &Subject<'_>,
        groups: Option<&Captures<'_>>,
    ) -> Option<String> {
        if self.bytes == 0 {
            return None;
        }
        let text = render(template, subject, groups);
        let left = self.bytes.checked_sub(text.len());
        self.bytes = left.unwrap_or_default();
        left.map(|_| text)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::Method;

    use super::*;
    use crate::route::filter::Shown;

    const NAMES: [HeaderName; 3] = [header::LOCATION, header::REFRESH, header::SET_COOKIE];

    fn rewritten(rewrites: &UrlRewrites, name: &HeaderName, values: &[&str]) -> Vec<String> {
        let requested = HeaderMap::new();
        let subject = Subject {
            method: &Method::GET,
            host: "shop.test",
            port: Some(8443),
            target: "/",
            headers: &requested,
            secure: true,
            certificate: Shown::Nothing,
            certificate_fields: "",
            client: IpAddr::from([192, 0, 2, 7]),
            https_port: 443,
            listener_port: 443,
            clock: std::time::Duration::default,
        };
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        rewrite_urls(rewrites, &subject, &mut headers);
        let texts = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        texts.collect()
    }

    #[test]
    fn redirects_get_another_beginning() {
        let redirect = |from: &str, to: &str| {
            let redirect = Some(UrlRewrite::new(from, to).expect("valid"));
            UrlRewrites { redirect, ..UrlRewrites::default() }
        };
        let [location, refresh, cookie] = NAMES;
        for (from, to, value, expect) in [
            ("http://pod:8080/", "https://$host/app/", "http://pod:8080/a?b", "https://shop.test/app/a?b"),
            ("http://pod:8080/", "https://$host/app/", "HTTP://pod:8080/a", "HTTP://pod:8080/a"),
            ("http://pod:8080/", "https://$host/app/", "https://other.test/", "https://other.test/"),
            ("/", "/app/", "/login", "https://shop.test/app/login"),
            ("http://pod/", "//cdn.test/", "http://pod/a", "https://shop.test//cdn.test/a"),
            ("http://$host:8080/", "/", "http://shop.test:8080/a", "https://shop.test/a"),
            ("~^http://[^/]+:8080/(.*)$", "/$1", "http://x:8080/a", "https://shop.test/a"),
            ("~^HTTP://", "/", "http://x", "http://x"),
            ("~*^HTTP://([a-z]+)", "https://$1.test", "http://x/tail", "https://x.test"),
        ] {
            assert_eq!(rewritten(&redirect(from, to), &location, &[value]), [expect], "{from} {to} {value}");
        }
        let rewrites = redirect("/", "/app/");
        assert_eq!(rewritten(&rewrites, &refresh, &["5; URL=/a", "5", "0;url=b"]), ["5; URL=/app/a", "5", "0;url=b"]);
        assert_eq!(rewritten(&rewrites, &cookie, &["a=1; Path=/"]), ["a=1; Path=/"]);
    }

    #[test]
    fn paths_of_cookies_get_another_beginning() {
        let path = |from: &str, to: &str| {
            let cookie_path = Some(UrlRewrite::new(from, to).expect("valid"));
            UrlRewrites { cookie_path, ..UrlRewrites::default() }
        };
        for (from, to, value, expect) in [
            ("/", "/app/", "a=1; Path=/; HttpOnly", "a=1; Path=/app/; HttpOnly"),
            ("/old", "/new", "a=1;PATH = /old/x", "a=1;PATH =/new/x"),
            ("/old", "/new", "a=1; Path=/other", "a=1; Path=/other"),
            ("/", "/; Secure; SameSite=None", "a=1; path=/", "a=1; path=/; Secure; SameSite=None"),
            ("~^/.*$", "/", "a=1; path=/x/y", "a=1; path=/"),
            ("/", "/app", "Path=/", "Path=/"),
            ("/", "/app", "a=1; Path", "a=1; Path"),
        ] {
            assert_eq!(rewritten(&path(from, to), &NAMES[2], &[value]), [expect], "{from} {to} {value}");
        }
        let both = rewritten(&path("/", "/b/"), &NAMES[2], &["a=1; Path=/x", "b=2", "c=3; Path=/y"]);
        assert_eq!(both, ["a=1; Path=/b/x", "b=2", "c=3; Path=/b/y"]);
    }

    #[test]
    fn domains_of_cookies_are_replaced_as_a_whole() {
        let domain = |from: &str, to: &str| {
            let cookie_domain = Some(UrlRewrite::of_domain(from, to).expect("valid"));
            UrlRewrites { cookie_domain, ..UrlRewrites::default() }
        };
        for (from, to, value, expect) in [
            ("pod.local", "shop.test", "a=1; Domain=pod.local", "a=1; Domain=shop.test"),
            (".Pod.local", ".$host", "a=1; domain=.pod.LOCAL; Path=/", "a=1; domain=.shop.test; Path=/"),
            ("pod.local", "shop.test", "a=1; Domain=x.pod.local", "a=1; Domain=x.pod.local"),
            ("~^(.+)\\.pod\\.local$", "$1.shop.test", "a=1; Domain=x.POD.local", "a=1; Domain=x.shop.test"),
        ] {
            assert_eq!(rewritten(&domain(from, to), &NAMES[2], &[value]), [expect], "{from} {to} {value}");
        }
    }

    #[test]
    fn work_and_bytes_of_one_response_are_bounded() {
        let path = |from: &str, to: &str| {
            let cookie_path = Some(UrlRewrite::new(from, to).expect("valid"));
            UrlRewrites { cookie_path, ..UrlRewrites::default() }
        };
        let count = |rewrites: &UrlRewrites, cookie: &str, new: &str| {
            let found = rewritten(rewrites, &NAMES[2], &[cookie]);
            found[0].matches(new).count()
        };
        // 1 KiB for each attribute: 64 have room.
        let long = format!("/{}", "y".repeat(1023));
        assert_eq!(count(&path("/x", &long), &format!("a=1{}", "; Path=/x".repeat(60)), "yyy;"), 59);
        assert!(count(&path("/x", &long), &format!("a=1{}", "; Path=/x".repeat(1000)), "yyy;") < 64);
        // Some 800 states for 60 bytes: about 20 searches.
        let heavy = path("~^(a?b?){200}c|^/x", "/z");
        let searches = count(&heavy, &format!("a=1{}", format!("; Path=/x{}", "a".repeat(60)).repeat(1000)), "Path=/z");
        assert!((1..100).contains(&searches), "{searches}");
    }

    #[test]
    fn values_too_long_to_search_stay() {
        let redirect = Some(UrlRewrite::new("~^(.*)$", "/b$1").expect("valid"));
        let rewrites = UrlRewrites { redirect, ..UrlRewrites::default() };
        assert_eq!(rewritten(&rewrites, &header::LOCATION, &["/a"]), ["https://shop.test/b/a"]);
        let long = format!("/{}", "a".repeat(1 << 20));
        assert_eq!(rewritten(&rewrites, &header::LOCATION, &[&long]), [long]);
    }
}
