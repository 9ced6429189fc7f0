//! The choice of a pod, and retries on another pod.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use super::{Ingress, Site};
use ingress_proxy_testing::{Origin, Response};

/// Pods that answer with their name.
fn pods() -> [Origin; 3] {
    [Origin::answering("a"), Origin::answering("b"), Origin::answering("c")]
}

fn serve(annotations: &[(&str, &str)], pods: &[Origin]) -> Site {
    let addresses: Vec<_> = pods.iter().map(|pod| pod.address).collect();
    Ingress::with(annotations).serve_from(&addresses).in_order()
}

fn names(answers: impl IntoIterator<Item = Response>) -> BTreeSet<String> {
    answers.into_iter().map(|answer| answer.text().to_owned()).collect()
}

#[test]
fn every_algorithm_uses_all_pods() {
    let pods = pods();
    for balance in ["round_robin", "least_request", "ewma"] {
        let site = serve(&[("load-balance", balance)], &pods);
        assert_eq!(names((0..60).map(|_| site.get("/"))).len(), 3, "{balance}");
    }
}

#[test]
fn requests_with_the_same_hash_key_reach_the_same_pod() {
    let pods = pods();
    let site = serve(&[("upstream-hash-by", "$arg_user")], &pods);
    let of = |user: usize| names((0..5).map(|n| site.get(&format!("/{n}?user={user}"))));
    let all: BTreeSet<_> = (0..30).map(of).collect();
    assert!(all.iter().all(|one| one.len() == 1), "{all:?}");
    assert_eq!(all.len(), 3);
}

#[test]
fn requests_with_the_same_hash_key_share_a_subset_of_the_pods() {
    let pods = pods();
    let subset =
        [("upstream-hash-by", "$arg_user"), ("upstream-hash-by-subset", "true"), ("upstream-hash-by-subset-size", "2")];
    let site = serve(&subset, &pods);
    let of = |user: usize| names((0..60).map(|n| site.get(&format!("/{n}?user={user}"))));
    assert!((0..5).map(of).all(|one| one.len() == 2));
}

/// Returns a response's cookie in the form in which the client sends it back; heads are read in lower case here.
fn cookie(response: &Response) -> Option<String> {
    Some(format!("Cookie: x=1; {}\r\n", response.header("set-cookie")?.split_once(';')?.0))
}

#[test]
fn a_client_stays_with_its_pod() {
    let pods = pods();
    for (mode, name) in [("balanced", "sid"), ("persistent", "route")] {
        let annotations = [("affinity", "cookie"), ("affinity-mode", mode), ("session-cookie-name", name)];
        let site = serve(&annotations, &pods);
        let mut seen = BTreeSet::new();
        for _ in 0..30 {
            let first = site.get("/");
            let cookie = cookie(&first).expect("a cookie");
            assert!(cookie.contains(&format!(" {name}=")), "{cookie}");
            let again = site.ask("/", &cookie);
            assert_eq!((again.text(), again.header("set-cookie")), (first.text(), None), "{mode}");
            seen.insert(first.text().to_owned());
        }
        assert_eq!(seen.len(), 3, "{mode}");
        // An invalid cookie counts as none.
        assert!(site.ask("/", &format!("Cookie: {name}=evil\r\n")).header("set-cookie").is_some());
    }
}

#[test]
fn a_client_of_a_removed_pod_stays_with_its_new_pod() {
    let pods = pods();
    let annotations = [("affinity", "cookie"), ("affinity-mode", "persistent"), ("session-cookie-name", "sid")];
    let before = serve(&annotations, &pods);
    let first = std::iter::repeat_with(|| before.get("/")).find(|answer| answer.text() == "c").expect("c in the end");
    let cookie = cookie(&first).expect("a cookie");
    let after = serve(&annotations, &pods[..2]);
    let moved = after.ask("/", &cookie);
    assert_ne!(moved.text(), "c");
    let cookie = self::cookie(&moved).expect("a new cookie");
    assert!((0..5).all(|_| after.ask("/", &cookie).text() == moved.text()));
}

#[test]
fn session_cookies_have_the_configured_attributes() {
    let pod = Origin::answering("pod");
    let set = |annotations: &[(&str, &str)], path: &str| {
        let mut all = vec![("affinity", "cookie")];
        all.extend(annotations);
        let site = Ingress::with(&all).path(path, "Prefix").serve(&pod).in_order();
        let response = site.get(path);
        let (_, attributes) =
            response.header("set-cookie").and_then(|cookie| cookie.split_once("; ")).expect("a cookie");
        attributes.to_owned()
    };
    assert_eq!(set(&[], "/"), "path=/; httponly");
    assert_eq!(set(&[], "/app"), "path=/app; httponly");
    let all = [
        ("session-cookie-path", "/x"),
        ("session-cookie-domain", "a.test"),
        ("session-cookie-expires", "1"),
        ("session-cookie-max-age", "60"),
        ("session-cookie-samesite", "None"),
        ("session-cookie-secure", "true"),
    ];
    assert_eq!(set(&all, "/app"), "path=/x; httponly; domain=a.test; max-age=60; secure; samesite=none");
    assert_eq!(set(&[("session-cookie-expires", "5")], "/"), "path=/; httponly; max-age=5");
}

/// Pods of which the first to be asked answers `first`; all other answers are 200.
fn stumbling(first: &'static str) -> (Arc<AtomicUsize>, [Origin; 2]) {
    let asked = Arc::new(AtomicUsize::new(0));
    let pod = || {
        let asked = Arc::clone(&asked);
        Origin::start(move |peer| {
            while peer.request().is_some() {
                let is_first = asked.fetch_add(1, SeqCst) == 0;
                match first {
                    "" if is_first => return,
                    _ if is_first => peer.send(first),
                    _ => peer.answer("pod"),
                }
            }
        })
    };
    let pods = [pod(), pod()];
    (asked, pods)
}

fn check_retry(first: &'static str, next: &str, request: &str, expect: (u16, usize)) {
    let (asked, pods) = stumbling(first);
    let site = if next.is_empty() { serve(&[], &pods) } else { serve(&[("proxy-next-upstream", next)], &pods) };
    let response = site.client().send(request).response();
    assert_eq!((response.status, asked.load(SeqCst)), expect, "{first:?} {next} {request:?}");
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n";
const PUT: &str = "PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\n\r\nx";
const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
const BROKEN: &str = "HTTP/1.1 two hundred\r\n\r\n";

#[test]
fn retries_follow_proxy_next_upstream() {
    for (first, next, request, expect) in [
        ("", "", GET, (200, 2)),
        ("", "", POST, (502, 1)),
        ("", "off", GET, (502, 1)),
        ("", "timeout", GET, (502, 1)),
        ("", "error non_idempotent", POST, (200, 2)),
        (BUSY, "", GET, (503, 1)),
        (BUSY, "error http_503", GET, (200, 2)),
        (BUSY, "error http_502", GET, (503, 1)),
        (BUSY, "http_503", POST, (503, 1)),
        (BUSY, "http_503 non_idempotent", POST, (200, 2)),
        (BUSY, "http_503", PUT, (503, 1)),
        (BROKEN, "", GET, (502, 1)),
        (BROKEN, "invalid_header", GET, (200, 2)),
    ] {
        check_retry(first, next, request, expect);
    }
}

#[test]
fn the_connection_of_a_retried_response_is_kept() {
    for busy in [BUSY, "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"] {
        let (_, pods) = stumbling(busy);
        let site = serve(&[("proxy-next-upstream", "http_503")], &pods);
        let mut client = site.client();
        for _ in 0..3 {
            // The first pod's response must be read to its end before the second can have answered.
            assert_eq!(client.send(GET).response().status, 200);
        }
        assert_eq!(pods.iter().map(Origin::connections).sum::<usize>(), 2, "{busy:?}");
    }
}

#[test]
fn timeouts_are_retried_if_configured() {
    let silent = Origin::start(|peer| peer.until_closed());
    let others = [Origin::answering("pod")];
    let addresses = [silent.address, others[0].address];
    let serve = |next| {
        let annotations = [("proxy-next-upstream", next), ("proxy-read-timeout", "1")];
        Ingress::with(&annotations).serve_from(&addresses).in_order()
    };
    let statuses = |site: &Site| [site.get("/").status, site.get("/").status].into_iter().max();
    assert_eq!(statuses(&serve("error")), Some(504));
    assert_eq!(statuses(&serve("error timeout")), Some(200));
}

#[test]
fn the_number_of_tries_is_limited() {
    let busy = || {
        Origin::start(|peer| {
            while peer.request().is_some() {
                peer.send(BUSY)
            }
        })
    };
    let pods = [busy(), busy(), busy(), busy()];
    let addresses: Vec<_> = pods.iter().map(|pod| pod.address).collect();
    for (tries, expect) in [("1", 1), ("2", 2), ("0", 4), ("9", 4)] {
        let before: usize = pods.iter().map(|pod| pod.heads().len()).sum();
        let annotations = [("proxy-next-upstream", "http_503"), ("proxy-next-upstream-tries", tries)];
        assert_eq!(Ingress::with(&annotations).serve_from(&addresses).in_order().get("/").status, 503);
        assert_eq!(pods.iter().map(|pod| pod.heads().len()).sum::<usize>() - before, expect, "{tries}");
    }
}
