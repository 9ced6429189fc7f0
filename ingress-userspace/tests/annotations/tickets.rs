//! Sessions resumed elsewhere: on other workers, processes and nodes, without bypassing any check.

use base64::{Engine, engine::general_purpose::STANDARD};
use ingress_control::{change::ObjectName, translate::Options};
use rustls::{
    HandshakeKind::{self, Full, Resumed},
    version::{TLS12, TLS13},
};

use super::{
    Ingress, Site,
    handshakes::{Forger, client, get},
    pods_tls::another,
};
use ingress_proxy_testing::pki::{Authority, secret};
use ingress_proxy_testing::{Origin, Proxy};

/// Options with the Secret `default/tickets` for ticket keys.
fn sealed() -> Options {
    Options { ticket_secret: Some(ObjectName::new("default", "tickets")), ..Options::for_manifests() }
}

/// A Secret with these fields, each filled with one byte value.
fn keys(fields: &[(&str, u8, usize)]) -> String {
    let mut yaml = "apiVersion: v1\nkind: Secret\nmetadata: {name: tickets, namespace: default}\ndata:\n".to_owned();
    for (field, byte, length) in fields {
        yaml += &format!("  {field}: {}\n", STANDARD.encode(vec![*byte; *length]));
    }
    yaml
}

/// A Secret with these keys, in this order.
fn in_order(secrets: &[u8]) -> String {
    let names = ["tickets.key", "tickets.key.1", "tickets.key.2"];
    keys(&names.into_iter().zip(secrets).map(|(name, secret)| (name, *secret, 80)).collect::<Vec<_>>())
}

fn node(ingress: &Ingress, origin: &Origin) -> Site {
    ingress.serve_with(&[origin.address], &sealed()).in_order()
}

fn kind(site: &Site, config: &std::sync::Arc<rustls::ClientConfig>) -> HandshakeKind {
    let (status, kind) = get(site.proxy.https, config, "a.test").expect("a handshake");
    assert_eq!(status, "HTTP/1.1 200 OK");
    kind
}

#[test]
fn sessions_are_resumed_across_workers() {
    let origin = Origin::answering("pod");
    for ingress in [Ingress::with(&[]), Ingress::with(&[]).beside(&in_order(&[1]))] {
        let (table, outcomes) = ingress.translated(&[origin.address], &sealed());
        assert_eq!(outcomes.contains("SecretNotFound"), table.0.ticket_keys.is_none(), "{outcomes}");
        let (proxy, workers) = Proxy::start_workers(&table, 3);
        for version in [&TLS12, &TLS13] {
            let config = client(&[version]);
            for (worker, expect) in [(0, Full), (1, Resumed), (2, Resumed), (0, Resumed), (0, Resumed)] {
                let (_, kind) = get(workers[worker], &config, "a.test").expect("a handshake");
                assert_eq!(kind, expect, "{version:?} {worker}");
            }
        }
        assert_eq!(proxy.shared.stats().handshake_errors, 0);
    }
}

#[test]
fn sessions_are_resumed_across_nodes_with_shared_keys() {
    let origin = Origin::answering("pod");
    let ingress = Ingress::with(&[]).beside(&in_order(&[1]));
    let (sharing, other) = ([node(&ingress, &origin), node(&ingress, &origin)], ingress.serve(&origin).in_order());
    for version in [&TLS12, &TLS13] {
        let config = client(&[version]);
        for (site, expect) in
            [(&sharing[0], Full), (&sharing[1], Resumed), (&sharing[0], Resumed), (&other, Full), (&sharing[1], Full)]
        {
            assert_eq!(kind(site, &config), expect, "{version:?}");
        }
    }
}

#[test]
fn ticket_keys_are_rotated_by_editing_the_secret() {
    let origin = Origin::answering("pod");
    let with = |secrets: &[u8]| Ingress::with(&[]).beside(&in_order(secrets));
    let (here, there) = (node(&with(&[1]), &origin), node(&with(&[1]), &origin));
    let edit = |site: &Site, secrets: &[u8]| {
        let (table, outcomes) = with(secrets).translated(&[origin.address], &sealed());
        assert_eq!(outcomes, "");
        site.proxy.publish(&table);
    };
    for version in [&TLS12, &TLS13] {
        let config = client(&[version]);
        edit(&here, &[1]);
        edit(&there, &[1]);
        assert_eq!((kind(&here, &config), kind(&there, &config)), (Full, Resumed));
        // One node hears of the change before the other; tickets that both can open stay valid.
        edit(&here, &[1, 2]);
        assert_eq!((kind(&here, &config), kind(&there, &config)), (Resumed, Resumed));
        edit(&here, &[2, 1]);
        edit(&there, &[1, 2]);
        assert_eq!((kind(&here, &config), kind(&there, &config)), (Resumed, Resumed));
        edit(&there, &[2]);
        // `there` has sealed the last ticket with the old key.
        let before = client(&[version]);
        edit(&here, &[1]);
        assert_eq!(kind(&here, &before), Full);
        assert_eq!(kind(&there, &before), Full, "a key that is gone opens nothing");
        edit(&here, &[2]);
        assert_eq!((kind(&here, &before), kind(&there, &before)), (Resumed, Resumed));
    }
}

#[test]
fn an_invalid_ticket_secret_is_reported_and_never_quoted() {
    let origin = Origin::answering("pod");
    let long = in_order(b"QR");
    for (held, remarks, shared) in [
        (None, &["warning SecretNotFound Secret default/tickets"][..], false),
        (Some(keys(&[("other", b'Q', 80)])), &["InvalidTicketKey", "has no usable key `tickets.key`"], false),
        (Some(keys(&[("tickets.key", b'Q', 32)])), &["`tickets.key` has 32 bytes", "no usable key"], false),
        (
            Some(keys(&[("tickets.key", b'Q', 32), ("tickets.key.1", b'Q', 48)])),
            &["`tickets.key` has 32 bytes; make one of 80 random bytes", "it is left out"],
            true,
        ),
        (Some(long), &[], true),
    ] {
        let ingress = held.iter().fold(Ingress::with(&[]), |ingress, held| ingress.beside(held));
        let (table, outcomes) = ingress.translated(&[origin.address], &sealed());
        assert_eq!(table.0.ticket_keys.is_some(), shared, "{outcomes}");
        assert_eq!(outcomes.is_empty(), remarks.is_empty(), "{outcomes}");
        assert!(remarks.iter().all(|remark| outcomes.contains(remark)), "{outcomes}");
        let shown = format!("{:?} {outcomes} {:?}", table.0, Site::started(&table).proxy.shared.snapshot());
        for secret in ["QQQQ", "UVFR", "81, 81", "51, 51"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        // Either way sessions are resumed, at least by the process that they began with.
        let (config, site) = (client(&[&TLS13]), Site::started(&table));
        assert_eq!((kind(&site, &config), kind(&site, &config)), (Full, Resumed));
    }
}

/// The node that gave the ticket requested no certificate; another one, or the same one a moment later, does.
#[test]
fn resumed_sessions_do_not_evade_client_certificates() {
    let origin = Origin::answering("pod");
    let trusted = secret("clients", &[("ca.crt", &Authority::new("trusted").pem)]);
    let secrets = [("auth-tls-secret", "default/clients")];
    let open = Ingress::with(&[]).with_tls().beside(&another("b.test", &[])).beside(&in_order(&[1]));
    let closed = Ingress::with(&secrets).with_tls().beside(&trusted).beside(&in_order(&[1]));
    // Here the host that the ticket is for stays open, and another host requires certificates.
    let beside = another("b.test", &secrets) + "\n  tls: [{hosts: [b.test]}]";
    let beside = Ingress::with(&[]).with_tls().beside(&trusted).beside(&beside).beside(&in_order(&[1]));
    let (open, closed, beside) = (node(&open, &origin), node(&closed, &origin), node(&beside, &origin));
    for version in [&TLS12, &TLS13] {
        for steps in [
            &[
                (&open, "a.test", "200 OK", Full),
                (&open, "a.test", "200 OK", Resumed),
                (&closed, "a.test", "400 Bad Request", Full),
                // No ticket was given there, so the client still has the one from before.
                (&closed, "a.test", "400 Bad Request", Full),
            ][..],
            // Sessions of one host are not valid for another, with or without client certificates.
            &[
                (&beside, "a.test", "200 OK", Full),
                (&beside, "a.test", "200 OK", Resumed),
                (&beside, "b.test", "421 Misdirected Request", Full),
            ],
            &[(&open, "a.test", "200 OK", Full), (&open, "b.test", "200 OK", Full)],
        ] {
            let config = Forger::for_any_name().client(&[version]);
            for (site, name, status, expect) in steps {
                let (line, kind) = get(site.proxy.https, &config, name).expect("a handshake");
                assert_eq!((line.as_str(), kind), (&*format!("HTTP/1.1 {status}"), *expect), "{version:?} {name}");
            }
        }
    }
}
