//! The page for troubleshooting, followed from broken states: each is caused, found with the commands of the page, and
//! mended by the cure that the page or the product names.

use std::net::SocketAddr;

use ingress_lab::credentials::Authority;

use crate::{
    objects::{ingress, rule, site},
    reader::Reader,
    stage::{Scope, Stage, stage, until},
};

const PAGE: &str = "operate/troubleshooting.md";
/// The commands with which the page begins.
const DESCRIBE: &str = "kubectl describe ingress NAME";
const EXPLAIN: &str = "kubectl --namespace xdp-ingress exec POD -- xdp-ingress explain https://web.example.com/cart";
const STATUS: &str = "kubectl --namespace xdp-ingress exec POD -- xdp-ingress status";
const CERTIFICATE: &str =
    "openssl s_client -connect NODE:443 -servername web.example.com </dev/null | openssl x509 -noout -subject -issuer";
const POD: (&str, &str) = ("POD", "daemonset/xdp-ingress");

/// Returns status and body of an answer of the first node.
fn answer(stage: &Stage, host: &str, path: &str) -> (u16, String) {
    let node = stage.nodes()[0];
    let answer = stage.get(node, host, path).expect("an answer");
    (answer.status.as_u16(), String::from_utf8_lossy(&answer.text).into_owned())
}

fn described(reader: &Reader<'_>, name: &str, reason: &str) {
    until(&format!("`{reason}` is shown"), || {
        let said = reader.follow(DESCRIBE, &[("NAME", name)]);
        if said.contains(reason) { Ok(()) } else { Err(said) }
    });
}

fn status(scope: &Scope<'_>, host: &str, path: &str, wanted: u16) {
    scope.stage.await_status(host, path, wanted);
}

#[test]
fn not_found_is_explained() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("trouble-404");
    let reader = Reader::open(&scope, PAGE);
    scope.run(&[("web", 1)]);
    scope.apply(&ingress("web", &rule("trouble-404.test", &[("Prefix", "/api", "web")])));
    status(&scope, "trouble-404.test", "/api/x", 200);
    let (found, body) = answer(stage, "trouble-404.test", "/apix");
    assert_eq!(found, 404, "{body}");
    reader.finds(body.split_once(": ").expect("a reason").1.trim());
    let said = reader.follow(EXPLAIN, &[POD, ("https://web.example.com/cart", "http://trouble-404.test/apix")]);
    assert!(said.contains("prefixes match whole elements"), "{said}");
    reader.finds("`Prefix` matches whole elements");

    // The class is the first that the page lets its reader look at.
    scope.kubectl(&["patch", "ingress", "web", "--type=merge", "--patch", r#"{"spec":{"ingressClassName":"other"}}"#]);
    status(&scope, "trouble-404.test", "/api/x", 404);
    let said = reader.follow("kubectl get ingress NAME", &[("NAME", "web")]);
    assert!(said.contains("CLASS") && said.contains("other"), "{said}");
    scope.kubectl(&["patch", "ingress", "web", "--type=merge", "--patch", r#"{"spec":{"ingressClassName":"xdp"}}"#]);
    status(&scope, "trouble-404.test", "/api/x", 200);
}

#[test]
fn a_missing_service_is_named() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("trouble-503");
    let reader = Reader::open(&scope, PAGE);
    scope.apply(&site("web", "trouble-503.test", "web"));
    status(&scope, "trouble-503.test", "/", 503);
    let (_, body) = answer(stage, "trouble-503.test", "/");
    reader.finds(body.split_once(": ").expect("a reason").1.trim());
    reader.finds("`ServiceNotFound`");
    described(&reader, "web", "ServiceNotFound");
    let said = reader.follow(EXPLAIN, &[POD, ("https://web.example.com/cart", "http://trouble-503.test/")]);
    assert!(said.contains("web") && said.contains("503"), "{said}");
    let said = reader.follow(STATUS, &[POD]);
    assert!(said.contains("owner") || said.contains("epoch"), "{said}");
    scope.run(&[("web", 1)]);
    status(&scope, "trouble-503.test", "/", 200);
}

#[test]
fn a_wrong_certificate_is_found() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("trouble-tls");
    let reader = Reader::open(&scope, PAGE);
    let host = "trouble-tls.test";
    scope.run(&[("web", 1)]);
    let tls = format!("  tls: [{{hosts: [{host}], secretName: web-tls}}]\n");
    scope.apply(&ingress("web", &(tls + &rule(host, &[("Prefix", "/", "web")]))));
    status(&scope, host, "/", 308);
    let node: SocketAddr = crate::stage::https(stage.nodes()[0]);
    let replaced = [("NODE:443", &*node.to_string()), ("web.example.com", host)];
    let said = reader.follow(CERTIFICATE, &replaced);
    let fallback = "CN = xdp-ingress fallback";
    assert!(said.contains(fallback), "{said}");
    reader.finds(fallback);
    reader.finds("`SecretNotFound`");
    described(&reader, "web", "SecretNotFound");
    let authority = Authority::generate().expect("an authority");
    stage.apply(&authority.secret(&scope.name, "web-tls", &[host]).expect("a Secret"));
    until("the certificate of the Secret is served", || {
        let said = reader.follow(CERTIFICATE, &replaced);
        if said.contains(fallback) { Err(said) } else { Ok(()) }
    });
}
