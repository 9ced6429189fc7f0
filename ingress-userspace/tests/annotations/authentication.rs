//! Access by name and password.

use ingress_control::translate::Options;

use super::{Ingress, Site};
use ingress_proxy_testing::{Client, Origin, Response, wait_until};

/// `ann` with "secret" by bcrypt, `bob` with "password" by apr1, and invalid lines.
const FILE: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: users, namespace: default}\nstringData:\n  auth: |\n\
                    \x20   ann:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n\
                    \x20   bob:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00\n";

const ASKS: [(&str, &str); 2] = [("auth-type", "basic"), ("auth-secret", "users")];

// `ann:secret`, `bob:password`, `ann:wrong`, `eve:secret`.
const ANN: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
const BOB: &str = "Authorization: Basic Ym9iOnBhc3N3b3Jk\r\n";
const WRONG: &str = "Authorization: Basic YW5uOndyb25n\r\n";
const EVE: &str = "Authorization: Basic ZXZlOnNlY3JldA==\r\n";

fn hashed(site: &Site) -> u64 {
    site.proxy.shared.stats().passwords_hashed
}

#[track_caller]
fn check_refused(response: &Response, realm: &str) {
    let challenge = format!("basic realm=\"{realm}\", charset=\"utf-8\"");
    assert_eq!((response.status, response.header("www-authenticate")), (401, Some(&*challenge)));
}

#[test]
fn valid_passwords_are_accepted() {
    let origin = Origin::mirror();
    let site = Ingress::with(&ASKS).beside(FILE).serve(&origin).in_order();
    check_refused(&site.get("/"), "authentication required");
    for wrong in [WRONG, EVE, "Authorization: Bearer x\r\n", &format!("{ANN}{ANN}")] {
        check_refused(&site.ask("/", wrong), "authentication required");
    }
    assert_eq!(origin.connections(), 0);
    for right in [ANN, BOB] {
        let response = site.ask("/", &format!("{right}X-A: 1\r\n"));
        assert_eq!(response.status, 200);
        let text = response.text();
        assert!(text.contains("x-a: 1") && !text.contains("authorization"), "pods need no password: {text}");
    }
    assert_eq!(Ingress::with(&[]).serve(&origin).ask("/", ANN).text().matches("authorization: basic").count(), 1);
}

#[test]
fn a_password_is_verified_once() {
    let origin = Origin::answering("pod");
    let site = Ingress::with(&ASKS).beside(FILE).serve(&origin).in_order();
    for (fields, status, expect) in
        [(ANN, 200, 1), (ANN, 200, 1), (WRONG, 401, 2), (WRONG, 401, 3), (EVE, 401, 4), (ANN, 200, 4), ("", 401, 4)]
    {
        assert_eq!((site.ask("/", fields).status, hashed(&site)), (status, expect), "{fields}");
    }
}

#[test]
fn a_changed_secret_takes_effect() {
    let origin = Origin::answering("pod");
    let site = Ingress::with(&ASKS).beside(FILE).serve(&origin).in_order();
    let mut client = site.client();
    let mut ask =
        |fields: &str| client.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")).response().status;
    assert_eq!((ask(ANN), ask(BOB)), (200, 200));
    let rotated = FILE.replace(
        "ann:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW",
        "eve:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
    );
    let (table, outcomes) =
        Ingress::with(&ASKS).beside(&rotated).translated(&[origin.address], &Options::for_manifests());
    assert_eq!(outcomes, "");
    site.proxy.publish(&table);
    assert_eq!((ask(ANN), ask(EVE), ask(BOB)), (401, 200, 200));
    // Neither the removed user nor the new user with the same password was answered from the cache.
    assert_eq!(hashed(&site), 4);
}

#[test]
fn a_secret_may_have_one_key_for_each_user() {
    let origin = Origin::answering("pod");
    let map = "apiVersion: v1\nkind: Secret\nmetadata: {name: users, namespace: default}\n\
               stringData: {ann: '{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=', eve: secret}\n";
    let annotations =
        [("auth-secret", "default/users"), ("auth-secret-type", "auth-map"), ("auth-realm", "The \"Site\"")];
    let site = Ingress::with(&annotations).beside(map).serve(&origin);
    assert_eq!(site.ask("/", ANN).status, 200);
    check_refused(&site.ask("/", EVE), "the \\\"site\\\"");
    let told = &site.outcomes;
    assert!(told.contains("InvalidCredentials Secret default/users") && told.contains("user `eve`"), "{told}");
    assert!(!told.contains("secret`"), "{told}");
}

#[test]
fn an_invalid_line_locks_no_other_user_out() {
    let origin = Origin::answering("pod");
    let broken = format!("{FILE}    eve:secret\n    hunter2\n");
    let site = Ingress::with(&ASKS).beside(&broken).serve(&origin);
    assert_eq!((site.ask("/", ANN).status, site.ask("/", EVE).status), (200, 401));
    for line in ["line 3 of `auth`: it is no hash", "line 4 of `auth`: there is no `:`"] {
        assert!(site.outcomes.contains(line), "{}", site.outcomes);
    }
    assert!(!site.outcomes.contains("hunter2") && !site.outcomes.contains("eve"), "{}", site.outcomes);
}

#[test]
fn rules_with_unusable_credentials_are_not_served() {
    let origin = Origin::answering("pod");
    let empty =
        "apiVersion: v1\nkind: Secret\nmetadata: {name: users, namespace: default}\nstringData: {auth: '# nobody'}\n";
    for (annotations, secret, expect) in [
        (
            &ASKS[..],
            "",
            "SecretNotFound Ingress default/web (in.yaml): secret `default/users` of `auth-secret` does not exist",
        ),
        (&[("auth-type", "basic")], "", "there is no `auth-secret`"),
        (&[("auth-type", "digest"), ASKS[1]], FILE, "digest is refused"),
        (&[ASKS[0], ("auth-secret", "other/users")], FILE, "is in another namespace"),
        (&[ASKS[0], ASKS[1], ("auth-secret-type", "auth-tree")], FILE, "`auth-file` or `auth-map`"),
        (&ASKS, empty, "has no user"),
        (&ASKS, &empty.replace("auth:", "other:"), "has no `auth`"),
    ] {
        let mut ingress = Ingress::with(annotations);
        if !secret.is_empty() {
            ingress = ingress.beside(secret);
        }
        let site = ingress.serve(&origin);
        assert_eq!(site.ask("/", ANN).status, 503, "{annotations:?}");
        assert!(site.outcomes.contains(expect), "{expect}: {}", site.outcomes);
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn satisfy_any_accepts_address_or_password() {
    let origin = Origin::mirror();
    let (here, elsewhere) = (("allowlist-source-range", "127.0.0.0/8"), ("allowlist-source-range", "10.0.0.0/8"));
    let (any, denied) = (("satisfy", "any"), ("denylist-source-range", "127.0.0.1"));
    for (more, stranger, ann) in [
        (&[here][..], 401, 200),
        (&[elsewhere], 403, 403),
        (&[here, any], 200, 200),
        (&[elsewhere, any], 401, 200),
        (&[denied, any], 401, 200),
        (&[here, denied, any], 401, 200),
        (&[any], 401, 200),
        (&[("satisfy", "all"), elsewhere], 403, 403),
    ] {
        let site = Ingress::with(&[&ASKS[..], more].concat()).beside(FILE).serve(&origin).in_order();
        assert_eq!((site.get("/").status, site.ask("/", ANN).status), (stranger, ann), "{more:?}");
        assert!(!site.ask("/", ANN).text().contains("authorization"), "{more:?}");
    }
    let site = Ingress::with(&[any, elsewhere]).serve(&origin).in_order();
    assert_eq!(site.get("/").status, 403, "without authentication, the list is all there is");
}

#[test]
fn preflights_need_no_password_and_refusals_have_cors_headers() {
    let origin = Origin::answering("pod");
    let site = Ingress::with(&[ASKS[0], ASKS[1], ("enable-cors", "true")]).beside(FILE).serve(&origin).in_order();
    let fields = "Origin: https://b.test\r\nAccess-Control-Request-Method: PUT\r\n";
    let preflight = site.client().send(format!("OPTIONS / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")).response();
    assert_eq!((preflight.status, origin.connections()), (204, 0));
    let refused = site.ask("/", "Origin: https://b.test\r\n");
    check_refused(&refused, "authentication required");
    assert_eq!(refused.header("access-control-allow-origin"), Some("*"));
}

/// Returns the first bytes of an answer that the client has not read yet, if it has arrived.
fn begun(client: &Client) -> Option<[u8; 12]> {
    let mut start = [0; 12];
    client.stream.peek(&mut start).ok().map(|_count| start)
}

fn is_busy(client: &Client) -> bool {
    begun(client) == Some(*b"HTTP/1.1 503")
}

#[test]
fn guesses_for_one_secret_do_not_delay_workers_or_other_secrets() {
    // Cost 12 takes about 0.3 s for each guess.
    let slow = "$2y$12$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
    let origin = Origin::answering("pod");
    let users = FILE.replace("$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW", slow);
    let site = Ingress::with(&ASKS).beside(&users).serve(&origin).in_order();
    let mut guesses: Vec<_> = (0..40)
        .map(|_| {
            let mut client = site.client();
            client.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{WRONG}\r\n"));
            client.stream.set_nonblocking(true).expect("set");
            client
        })
        .collect();
    wait_until("some are turned away", || guesses.iter().filter(|client| is_busy(client)).count() >= 4);
    // The one worker keeps answering meanwhile.
    check_refused(&site.get("/"), "authentication required");
    assert!(guesses.iter().any(|client| begun(client).is_none()), "others are still being verified");
    for busy in guesses.iter_mut().filter(|client| is_busy(client)) {
        busy.stream.set_nonblocking(false).expect("set");
        assert_eq!(busy.response().header("retry-after"), Some("1"));
    }
}
