//! Violations: requests that count against a client, and the threshold at which the node is to drop the client.

use std::time::Duration;

use ingress_proxy::{Violation, Violator};

use super::{Ingress, Site, client::settings, configured};
use ingress_proxy_testing::{Origin, wait_until};

const GET: &str = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
const EVIL: &str = "GET / HTTP/1.1\r\nHost: a.test\r\nUser-Agent: evil\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\nab";

const BLOCK: (&str, &str) = ("block-user-agents", "evil");
/// Everything that may count.
const ALL: (&str, &str) = ("escalate-also", "blocked, credentials, denied, limit");
const LOCAL: (&str, &str) = ("proxy-real-ip-cidr", "127.0.0.0/8");

/// `ann` with "secret".
const USERS: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: users, namespace: default}\nstringData:\n  auth: |\n\
                     \x20   ann:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

fn serve(annotations: &[(&str, &str)], data: &[(&str, &str)], origin: &Origin) -> Site {
    let ingress = Ingress::with(annotations).beside(USERS).beside(&settings(data));
    ingress.serve_with(&[origin.address], &configured()).in_order()
}

/// Returns the statuses of these requests, each on a connection of its own, once all of them have ended.
fn ask(site: &Site, requests: &[&str]) -> Vec<u16> {
    let status = |request: &&str| site.client().send(request).try_response().map_or(0, |response| response.status);
    let statuses = requests.iter().map(status).collect();
    wait_until("all connections have ended", || site.proxy.shared.stats().connections == 0);
    statuses
}

/// Returns the violations counted, by reason.
fn counted(site: &Site) -> Vec<(&'static str, u64)> {
    let counts = Violation::ALL.map(Violation::as_str).into_iter().zip(site.proxy.shared.stats().violations.violations);
    counts.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn only_deliberate_violations_count_and_only_once() {
    let origin = Origin::answering("pod");
    let basic = [("auth-type", "basic"), ("auth-secret", "users")];
    for (annotations, requests, statuses, expect) in [
        (&[][..], &[GET, "GET / HTTP/1.1\r\nHost: b.test\r\n\r\n"][..], &[200, 404][..], None),
        (&[], &["GET / HTTP/1.1\r\n\r\n"], &[400], Some(("malformed", 1))),
        (&[], &["GET / HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n"], &[400], Some(("malformed", 1))),
        // Whether the scanner or the routes detect it, it counts once.
        (
            &[],
            &[
                "GET / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
                "GET http://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
                "GET / HTTP/1.1\nHost: a.test\n\n",
            ],
            &[400, 400, 400],
            Some(("malformed", 3)),
        ),
        (&[], &[EVIL, GET, EVIL], &[403, 200, 403], Some(("blocked", 2))),
        (&[("denylist-source-range", "127.0.0.0/8")], &[GET], &[403], Some(("denied", 1))),
        (&basic, &[GET], &[401], None),
        (
            &basic,
            &["GET / HTTP/1.1\r\nHost: a.test\r\nAuthorization: Basic YW5uOndyb25n\r\n\r\n"],
            &[401],
            Some(("credentials", 1)),
        ),
        (
            &[("limit-rpm", "1"), ("limit-burst-multiplier", "1")],
            &[GET, GET, GET, GET],
            &[200, 200, 503, 503],
            Some(("limit", 2)),
        ),
        (&[("proxy-body-size", "1")], &[POST], &[413], None),
    ] {
        let site = serve(annotations, &[BLOCK, ALL, ("escalate-after", "1000")], &origin);
        assert_eq!(ask(&site, requests), statuses, "{requests:?}");
        assert_eq!(counted(&site), Vec::from_iter(expect), "{requests:?}");
    }
    let site = serve(&[], &[("escalate-after", "1000")], &origin);
    let long = format!("GET / HTTP/1.1\r\nHost: a.test\r\nX-A: {}\r\n\r\n", "a".repeat(200_000));
    let mut client = site.client();
    // The connection may be closed before all of it is sent.
    client.send(&long[..40_000]);
    assert_eq!(client.response().status, 431);
    drop(client);
    wait_until("the connection has ended", || site.proxy.shared.stats().connections == 0);
    assert!(counted(&site).is_empty());
}

/// Otherwise a page with thirty images could have its visitors dropped.
#[test]
fn requests_that_a_web_page_can_cause_never_count() {
    let origin = Origin::answering("pod");
    let site = serve(&[], &[ALL, ("escalate-after", "1000")], &origin);
    let requests = [
        "GET /%00 HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "GET /%zz HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "GET /%2e%2e/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
        // A name in the domain of the page's owner, where any name can be made to resolve.
        "GET / HTTP/1.1\r\nHost: a!b.a.test\r\n\r\n",
        // From a script: `fetch("/", {headers: {"X-A": "\x01"}})`.
        "GET / HTTP/1.1\r\nHost: a.test\r\nX-A: \x01\r\n\r\n",
        // `https://a.test:80/`, and `turn:a.test:80?transport=tcp`.
        "\x16\x03\x01\x00\x05\n\n\n\n\n",
        "\x00\x03\x00\x00\x21\x12\n\r\nContent-Length: x\r\n\r\n",
    ];
    let statuses = ask(&site, &requests);
    assert!(statuses.iter().all(|status| matches!(status, 400 | 0)), "{statuses:?}");
    assert_eq!(&statuses[..5], [400; 5]);
    assert!(counted(&site).is_empty(), "{:?}", counted(&site));
}

/// Otherwise a tenant could have visitors dropped for the hosts of all others.
#[test]
fn refusals_by_tenants_count_only_if_the_operator_enables_them() {
    let origin = Origin::answering("pod");
    let basic = [("auth-type", "basic"), ("auth-secret", "users")];
    let wrong = "GET / HTTP/1.1\r\nHost: a.test\r\nAuthorization: Basic YW5uOndyb25n\r\n\r\n";
    for (annotations, request, status, reason) in [
        (&[("denylist-source-range", "127.0.0.0/8")][..], GET, 403, "denied"),
        (&[("limit-rpm", "1"), ("limit-burst-multiplier", "1")], GET, 503, "limit"),
        (&basic, wrong, 401, "credentials"),
        (&[], EVIL, 403, "blocked"),
    ] {
        for (also, expect) in [("", vec![]), ("denied", vec!["denied"]), (ALL.1, vec![reason])] {
            let expect: Vec<_> = expect.into_iter().filter(|counted| *counted == reason).collect();
            let site = serve(annotations, &[BLOCK, ("escalate-after", "1000"), ("escalate-also", also)], &origin);
            // The limit lets two requests pass.
            assert_eq!(ask(&site, &[request; 3]).last(), Some(&status), "{reason}");
            let counted: Vec<_> = counted(&site).into_iter().map(|(reason, _)| reason).collect();
            assert_eq!(counted, expect, "{reason} with {also:?}");
        }
    }
}

#[test]
fn a_client_over_the_limit_within_the_window_is_a_violator() {
    let origin = Origin::answering("pod");
    let data = [BLOCK, ALL, ("escalate-after", "3"), ("escalate-within", "3600"), ("escalate-for", "60")];
    let site = serve(&[], &data, &origin);
    ask(&site, &[EVIL, EVIL, GET]);
    assert!(site.proxy.shared.take_violators().is_empty());
    ask(&site, &[EVIL]);
    let violators = site.proxy.shared.take_violators();
    let [Violator { network, violation: Violation::Blocked, escalation }] = violators[..] else {
        panic!("{violators:?}")
    };
    assert_eq!((network.to_string(), escalation.lasts), ("127.0.0.1/32".to_owned(), Duration::from_secs(60)));
    ask(&site, &[EVIL, EVIL]);
    site.proxy.shared.forgive(network);
    ask(&site, &[EVIL, EVIL]);
    assert!(site.proxy.shared.take_violators().is_empty(), "it began anew");
}

#[test]
fn trusted_proxies_and_their_clients_are_not_counted() {
    let origin = Origin::answering("pod");
    let escalate = [BLOCK, ALL, ("escalate-after", "1")];
    let forwarded = "GET / HTTP/1.1\r\nHost: a.test\r\nUser-Agent: evil\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n";
    let proxied = format!("PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\n{EVIL}");
    let unknown = format!("PROXY UNKNOWN\r\n{EVIL}");
    for (data, request, expect) in [
        (&[][..], forwarded, 1),
        (&[LOCAL], forwarded, 1),
        (&[("use-forwarded-headers", "true"), LOCAL], forwarded, 0),
        (&[("use-forwarded-headers", "true"), LOCAL], EVIL, 0),
        (&[("enable-real-ip", "true"), LOCAL], EVIL, 0),
        (&[("use-forwarded-headers", "true"), ("proxy-real-ip-cidr", "10.0.0.0/8")], EVIL, 1),
        (&[("use-proxy-protocol", "true"), LOCAL], &proxied, 0),
        (&[("use-proxy-protocol", "true"), LOCAL], &unknown, 0),
    ] {
        let site = serve(&[], &[&escalate[..], data].concat(), &origin);
        assert_eq!(ask(&site, &[request]), [403], "{data:?} {request}");
        assert_eq!(counted(&site).len(), expect, "{data:?} {request}");
        assert_eq!(site.proxy.shared.take_violators().len(), expect, "{data:?} {request}");
    }
}

#[test]
fn violations_are_not_counted_by_default() {
    let origin = Origin::answering("pod");
    let site = serve(&[], &[BLOCK], &origin);
    assert_eq!(ask(&site, &[EVIL, EVIL]), [403, 403]);
    assert_eq!((counted(&site), site.proxy.shared.take_violators()), (vec![], vec![]));
}
