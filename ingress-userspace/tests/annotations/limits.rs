//! Limits on the requests of one client.

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use super::{Ingress, Site, client::settings, configured};
use ingress_proxy_testing::{Client, Origin, wait_until};

const FROM: &[(&str, &str)] = &[("use-forwarded-headers", "true"), ("proxy-real-ip-cidr", "127.0.0.0/8")];

impl Site {
    /// Returns the statuses of `count` requests of the client at `address`.
    fn statuses(&self, address: &str, path: &str, count: usize) -> Vec<u16> {
        (0..count).map(|_| self.ask(path, &format!("X-Forwarded-For: {address}\r\n")).status).collect()
    }
}

#[test]
fn requests_above_a_rate_are_refused_per_client() {
    let origin = Origin::answering("pod");
    // A minute per request, so that the machine may be slow.
    let annotations = [("limit-rpm", "1"), ("limit-burst-multiplier", "2"), ("limit-whitelist", "192.0.2.0/24")];
    let ingress = Ingress::with(&annotations).path("/a", "Prefix").path("/b", "Prefix").beside(&settings(FROM));
    let site = ingress.serve_with(&[origin.address], &configured()).in_order();
    assert_eq!(site.statuses("198.51.100.1", "/a", 4), [200, 200, 200, 503]);
    // All rules of the Ingress share the count; requests of other clients do not.
    assert_eq!(site.statuses("198.51.100.1", "/b", 1), [503]);
    assert_eq!(site.statuses("198.51.100.2", "/b", 1), [200]);
    assert_eq!(site.statuses("2001:db8::1", "/b", 2), [200, 200]);
    assert_eq!(site.statuses("2001:db8::2", "/b", 2), [200, 503]);
    assert_eq!(site.statuses("192.0.2.1", "/b", 9), [200; 9]);
    let refused = site.ask("/", "X-Forwarded-For: 198.51.100.1\r\n");
    assert_eq!(refused.status, 404, "{:?}", refused.head);
    let refused = site.ask("/a", "X-Forwarded-For: 198.51.100.1\r\n");
    let wait: u32 = refused.header("retry-after").expect("when to come again").parse().expect("seconds");
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(site.proxy.shared.stats().limits.over_rate, 4);
}

#[test]
fn a_limited_client_is_served_again_later() {
    let origin = Origin::answering("pod");
    let site = Ingress::with(&[("limit-rps", "1"), ("limit-burst-multiplier", "1")]).serve(&origin).in_order();
    let mut client = site.client();
    wait_until("it is refused", || site.get("/").status == 503);
    wait_until("it is served again", || site.get("/").status == 200);
    // The connection goes on after a refusal.
    let statuses: Vec<_> = (0..20).map(|_| client.get("a.test", "/").status).collect();
    assert!(statuses.contains(&503), "{statuses:?}");
}

#[test]
fn statuses_of_refusals_follow_the_settings() {
    let origin = Origin::answering("pod");
    let data = settings(&[("limit-req-status-code", "429"), ("limit-conn-status-code", "509")]);
    let ingress = Ingress::with(&[("limit-rpm", "1"), ("limit-burst-multiplier", "1")]).beside(&data);
    let site = ingress.serve_with(&[origin.address], &configured()).in_order();
    let statuses: Vec<_> = (0..3).map(|_| site.get("/").status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let data = settings(&[("limit-req-status-code", "200")]);
    let site = Ingress::with(&[]).beside(&data).serve_with(&[origin.address], &configured());
    assert!(site.outcomes.contains("write a number from 400 to 599"), "{}", site.outcomes);
}

#[test]
fn counts_survive_a_change_of_configuration() {
    let origin = Origin::answering("pod");
    let limited = [("limit-rpm", "1"), ("limit-burst-multiplier", "1")];
    let site = Ingress::with(&limited).serve(&origin).in_order();
    assert_eq!((site.get("/").status, site.get("/").status, site.get("/").status), (200, 200, 503));
    let changed = Ingress::with(&[limited[0], limited[1], ("upstream-vhost", "b.test")]);
    site.proxy.publish(&changed.translated(&[origin.address], &configured()).0);
    assert_eq!(site.get("/").status, 503);
    let free = Ingress::with(&[("limit-rpm", "0"), ("limit-burst-multiplier", "1")]);
    site.proxy.publish(&free.translated(&[origin.address], &configured()).0);
    wait_until("there is no limit", || site.get("/").status == 200);
}

/// An upstream that answers only after a message on the channel.
fn waiting() -> (Origin, Sender<()>) {
    let (sender, receiver) = channel();
    let receiver: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(receiver));
    let origin = Origin::start(move |peer| {
        while peer.request().is_some() {
            // A dropped sender releases all requests.
            let _word = receiver.lock().expect("unpoisoned").recv().is_ok();
            peer.answer("pod");
        }
    });
    (origin, sender)
}

#[test]
fn requests_in_flight_are_limited_per_client() {
    let (origin, answer) = waiting();
    let ingress = Ingress::with(&[("limit-connections", "2")]).beside(&settings(FROM));
    let site = ingress.serve_with(&[origin.address], &configured()).in_order();
    let ask = |client: &mut Client, address: &str| {
        client.send(format!("GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: {address}\r\n\r\n"));
    };
    let mut clients: Vec<_> = (0..4).map(|_| site.client()).collect();
    // A connection without a request does not count.
    let _idle: Vec<_> = (0..4).map(|_| site.client()).collect();
    for (client, address) in clients.iter_mut().zip(["198.51.100.1", "198.51.100.1", "198.51.100.2"]) {
        ask(client, address);
    }
    wait_until("they are in flight", || origin.heads().len() == 3);
    ask(&mut clients[3], "198.51.100.1");
    let refused = clients[3].response();
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(site.proxy.shared.stats().limits.over_in_flight, 1);
    // A client that leaves makes room, and so does a response that ends.
    drop(clients.remove(0));
    wait_until("there is room for one", || site.proxy.count(1).active == 2);
    ask(&mut clients[2], "198.51.100.1");
    wait_until("it is in flight, too", || origin.heads().len() == 4);
    drop(answer);
    assert!(clients.iter_mut().all(|client| client.response().status == 200));
}

#[test]
fn bodies_of_responses_are_slowed_down() {
    let origin = Origin::start(|peer| {
        while peer.request().is_some() {
            peer.answer(&"x".repeat(200 << 10));
        }
    });
    let took = |annotations: &[(&str, &str)]| {
        let site = Ingress::with(annotations).serve(&origin).in_order();
        let begun = Instant::now();
        assert_eq!(site.get("/").body.len(), 200 << 10);
        begun.elapsed()
    };
    // The bytes of the first second come at once.
    assert!(took(&[("limit-rate", "100")]) > Duration::from_millis(500));
    let at_once = [&[("limit-rate", "0")][..], &[("limit-rate", "1"), ("limit-rate-after", "200")], &[]];
    for annotations in at_once {
        took(annotations);
    }
}

#[test]
fn rules_with_invalid_limits_are_not_served() {
    let origin = Origin::answering("pod");
    for (key, value) in [
        ("limit-rps", "ten"),
        ("limit-rpm", "-1"),
        ("limit-connections", "1000001"),
        ("limit-burst-multiplier", "0"),
        ("limit-whitelist", "everybody"),
        ("limit-allowlist", "10.0.0.0/33"),
        ("limit-rate", "10k"),
    ] {
        let site = Ingress::with(&[(key, value)]).serve(&origin);
        assert_eq!(site.get("/").status, 503, "{key}");
        assert!(site.outcomes.contains(key), "{}", site.outcomes);
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn nodes_share_the_limits_of_a_cluster() {
    let origin = Origin::answering("pod");
    let node = |name: &str, ready: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\nstatus: {{conditions: [{{type: Ready, status: '{ready}'}}, {{type: DiskPressure, status: 'True'}}]}}\n"
        )
    };
    let nodes = [node("a", "True"), node("b", "True"), node("c", "False"), node("d", "Unknown")].join("---\n");
    for (scope, count) in [("node", 7), ("cluster", 4)] {
        // Six a minute, or three for two nodes; and one.
        let annotations = [("limit-rpm", "6"), ("limit-burst-multiplier", "1"), ("limit-scope", scope)];
        let site = Ingress::with(&annotations).beside(&nodes).serve(&origin).in_order();
        let statuses: Vec<_> = (0..8).map(|_| site.get("/").status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), count, "{scope}: {statuses:?}");
    }
    let alone = [("limit-rpm", "1"), ("limit-burst-multiplier", "1"), ("limit-scope", "cluster")];
    let site = Ingress::with(&alone).serve(&origin).in_order();
    assert_eq!([200, 200, 503], [(); 3].map(|()| site.get("/").status), "without nodes, as for one");
    assert_eq!(Ingress::with(&[("limit-scope", "world")]).serve(&origin).get("/").status, 503);
}
