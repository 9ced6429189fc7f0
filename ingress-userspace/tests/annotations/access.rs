//! Access by client network and path.

use super::{Ingress, configured};
use ingress_proxy_testing::Origin;

#[test]
fn networks_are_allowed_or_denied() {
    let origin = Origin::answering("pod");
    for (annotations, expect) in [
        (&[("allowlist-source-range", "127.0.0.0/8")][..], 200),
        (&[("whitelist-source-range", "10.0.0.0/8, 127.0.0.1")], 200),
        (&[("whitelist-source-range", "10.0.0.0/8")], 403),
        (&[("allowlist-source-range", "::/0")], 403),
        (&[("denylist-source-range", "127.0.0.1")], 403),
        (&[("denylist-source-range", "10.0.0.0/8")], 200),
        (&[("allowlist-source-range", "0.0.0.0/0"), ("denylist-source-range", "127.0.0.0/8")], 403),
    ] {
        assert_eq!(Ingress::with(annotations).serve(&origin).in_order().get("/").status, expect, "{annotations:?}");
    }
}

#[test]
fn no_reading_of_a_path_evades_a_rule() {
    let origin = Origin::answering("pod");
    let open = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: open, namespace: default}\nspec:\n  ingressClassName: xdp\n  \
                rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]\n";
    let site = Ingress::with(&[("denylist-source-range", "0.0.0.0/0")]).path("/admin", "Prefix").beside(open);
    let site = site.serve(&origin).in_order();
    for (path, expect) in [
        ("/admin/x", 403),
        ("/admin%2Fx", 400),
        ("/admin%2fx", 400),
        ("/admin%5Cx", 400),
        ("/x%2F..%2Fadmin", 400),
        ("/x%2Fy", 200),
        ("/x?y=%2F", 200),
        ("/administrator%2Fx", 200),
        (r"/admin\x", 400),
        (r"/x\..\admin", 400),
        (r"/x%2Fy\..\admin", 400),
        (r"/x\y", 200),
        ("/x/..;/admin", 400),
        ("/x/..;a=b/admin", 400),
        ("/x/%2e%2e%3b/admin", 400),
        ("/.;x/admin", 400),
        ("/admin/..;/x", 400),
        ("/admin/.;/x", 403),
        ("/x/..;/y", 200),
        ("/x;y/z", 200),
        // These are no dot segments; refusing them is up to the operator.
        ("/admin;x", 200),
        ("/x/%252e%252e/admin", 200),
    ] {
        assert_eq!(site.get(path).status, expect, "{path}");
    }
}

#[test]
fn parameters_and_double_escapes_are_refused_for_all_hosts() {
    let origin = Origin::answering("pod");
    for (key, parameters, double_escapes) in
        [("path-with-parameters-action", 400, 200), ("path-with-double-escapes-action", 200, 400)]
    {
        let settings = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\n\
             data: {{{key}: reject-request}}\n"
        );
        let site = Ingress::with(&[]).beside(&settings).serve_with(&[origin.address], &configured()).in_order();
        for (path, expect) in [
            ("/x;y", parameters),
            ("/x%3by", parameters),
            ("/x%252fy", double_escapes),
            ("/x%25%32%66y", double_escapes),
            ("/x%25y?a;b%252f", 200),
        ] {
            assert_eq!(site.get(path).status, expect, "{key} {path}");
        }
    }
}

#[test]
fn an_invalid_list_denies_access() {
    let origin = Origin::answering("pod");
    let site = Ingress::with(&[("whitelist-source-range", "10.0.0.0/8, everybody")]).serve(&origin);
    assert_eq!(site.get("/").status, 503);
    assert!(site.outcomes.contains("`everybody` is neither"), "{}", site.outcomes);
    assert_eq!(origin.connections(), 0);
}

#[test]
fn the_global_list_applies_to_ingresses_without_their_own() {
    let origin = Origin::answering("pod");
    let settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: default}\n\
                    data: {whitelist-source-range: 10.0.0.0/8}\n";
    let silent = Ingress::with(&[]).beside(settings).serve_with(&[origin.address], &configured()).in_order();
    assert_eq!(silent.get("/").status, 403);
    let own = Ingress::with(&[("whitelist-source-range", "127.0.0.1")]).beside(settings);
    assert_eq!(own.serve_with(&[origin.address], &configured()).in_order().get("/").status, 200);
}

#[test]
fn blocked_clients_are_refused_everywhere() {
    let origin = Origin::answering("pod");
    let serve = |data: &str| {
        let settings = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{{data}}}\n"
        );
        Ingress::with(&[]).beside(&settings).serve_with(&[origin.address], &configured())
    };
    let agents = serve("block-user-agents: 'curl/8, ~*evil'").in_order();
    for (fields, status) in [
        ("", 200),
        ("User-Agent: curl/8\r\n", 403),
        ("User-Agent: curl/8.1\r\n", 200),
        ("User-Agent: An EVIL one\r\n", 403),
        ("User-Agent: good\r\nUser-Agent: evil\r\n", 403),
        ("Referer: evil\r\n", 200),
    ] {
        assert_eq!(agents.ask("/", fields).status, status, "{fields}");
    }
    assert_eq!(
        agents.client().send("GET / HTTP/1.1\r\nHost: other.test\r\nUser-Agent: curl/8\r\n\r\n").response().status,
        403
    );
    let odd = agents.client().send(b"GET / HTTP/1.1\r\nHost: a.test\r\nUser-Agent: evil\xff\r\n\r\n").response();
    assert_eq!(odd.status, 403, "a byte that is no text");
    let referers = serve("block-referers: '~^https?://spam\\.test/'").in_order();
    assert_eq!(referers.ask("/", "Referer: https://spam.test/x\r\n").status, 403);
    assert_eq!(referers.ask("/", "Referer: https://a.test/?https://spam.test/\r\n").status, 200);
    for (networks, status) in [("127.0.0.0/8", 403), ("10.0.0.0/8, ::1", 200)] {
        assert_eq!(serve(&format!("block-cidrs: '{networks}'")).in_order().get("/").status, status, "{networks}");
    }
    let broken = serve("block-user-agents: '~('");
    assert!(
        broken.outcomes.contains("InvalidSetting") && broken.outcomes.contains("block-user-agents"),
        "{}",
        broken.outcomes
    );
}
