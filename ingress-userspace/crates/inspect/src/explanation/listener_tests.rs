//! Explanations by listeners of Gateways.

use std::net::IpAddr;

use ingress_control::{
    AddressPool, Origin,
    change::Change,
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, translate},
};

use super::*;

const GATEWAY: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: xdp}\n\
    spec: {controllerName: xdp-ingress.io/gateway-controller}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {namespace: n, name: g}\n\
    spec: {gatewayClassName: xdp, listeners: [{name: web, port: 80, protocol: HTTP, hostname: '*.shop.test'}, \
    {name: raw, port: 9000, protocol: TCP}]}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {namespace: n, name: cart}\n\
    spec:\n  parentRefs: [{name: g, sectionName: web}]\n  hostnames: [a.shop.test]\n  rules:\n  \
    - {matches: [{path: {value: /cart}, queryParams: [{name: beta, value: yes}]}], backendRefs: [{name: beta, port: 80}]}\n  \
    - {matches: [{path: {value: /cart}}], backendRefs: [{name: web, port: 80}]}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {namespace: n, name: rest}\n\
    spec: {parentRefs: [{name: g, sectionName: web}], rules: [{matches: [{path: {value: /rest}}], backendRefs: [{name: gone, port: 80}]}]}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {namespace: n, name: raw}\n\
    spec: {parentRefs: [{name: g, sectionName: raw}], rules: [{backendRefs: [{name: web, port: 80}]}]}\n---\n\
    apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {namespace: n, name: old}\n\
    spec: {ingressClassName: xdp, rules: [{host: a.shop.test, http: {paths: [{path: /, pathType: Prefix, \
    backend: {service: {name: web, port: {number: 80}}}}]}}]}\n---\n\
    apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: xdp}\n\
    spec: {controller: xdp-ingress.io/controller}\n---\n\
    apiVersion: v1\nkind: Service\nmetadata: {namespace: n, name: web}\nspec: {ports: [{port: 80}]}\n---\n\
    apiVersion: v1\nkind: Service\nmetadata: {namespace: n, name: beta}\nspec: {ports: [{port: 80}]}\n";

fn table(pool: Option<&str>) -> RouteTable {
    let mut options = Options::default();
    if let Some(network) = pool {
        let network = AddressPool::parse_network(network).expect("a network");
        options.gateway_addresses = AddressPool::new([network]).expect("a pool");
    }
    let mut cluster = Cluster::default();
    for object in parse(&std::path::Path::new("in.yaml").into(), GATEWAY).objects {
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    translate(&cluster, &options).table
}

#[test]
fn a_route_of_a_gateway_is_named_with_its_listener() {
    let table = table(None);
    let explained = |url: &str| explain(&table, url).expect("a URL");
    let cart = explained("http://a.shop.test/cart/1");
    assert_eq!(
        (cart.verdict, cart.hosts.as_slice()),
        (Verdict::Forwarded, ["a.shop.test".to_owned(), "*".to_owned()].as_slice())
    );
    assert_eq!(cart.summary, "Route `n/cart` of listener `n/g/web` sends the request to `n/web:80` (0 pods).");
    let route = cart.route.expect("a rule");
    assert_eq!(
        (route.listener.as_deref(), &*route.ingress, route.path.as_deref()),
        (Some("n/g/web"), "n/cart", Some("/cart"))
    );
    let reasons: Vec<_> = cart.considered.iter().map(|other| (&*other.ingress, &*other.reason)).collect();
    let unmet = "its conditions do not hold for GET with this query and without fields";
    assert_eq!(reasons, [("n/cart", unmet), ("n/rest", "the path is not below this prefix")]);
    // Query and port matter.
    let beta = explained("http://a.shop.test/cart?beta=yes");
    assert_eq!(beta.summary, "Route `n/cart` of listener `n/g/web` sends the request to `n/beta:80` (0 pods).");
    let raw = explained("http://a.shop.test:9000/");
    assert_eq!(raw.verdict, Verdict::Passthrough);
    assert_eq!(raw.summary, "The bytes of the connection go through listener `n/g/raw` to `n/web:80+tcp`.");
    // A request falls through to routes of less specific hosts.
    let rest = explained("http://a.shop.test/rest");
    assert_eq!((rest.verdict, rest.hosts[0].as_str()), (Verdict::Refused, "*"));
    assert!(rest.summary.starts_with("Route `n/rest` of listener `n/g/web` answers 500: "), "{}", rest.summary);
    assert!(rest.summary.ends_with("; see the conditions of the route."), "{}", rest.summary);
}

#[test]
fn requests_without_a_route_are_explained_by_the_ingresses() {
    let shared = explain(&table(None), "http://a.shop.test/x").expect("a URL");
    assert_eq!(shared.summary, "Ingress `n/old` sends the request to `n/web:80` (0 pods).");
    let note = "At the same port, listener `n/g/web` has no route for the request, which goes on to the Ingresses.";
    assert_eq!(shared.notes[0], note);
    let pool = table(Some("192.0.2.7"));
    let address: IpAddr = [192, 0, 2, 7].into();
    assert!(pool.binds.keys().all(|bind| bind.address == Some(address)));
    let own = explain(&pool, "http://a.shop.test/x").expect("a URL");
    assert_eq!(own.summary, shared.summary, "at other addresses");
    let note = "At the same port, listener `n/g/web` at `192.0.2.7` has no route for the request: it gets 404 there.";
    assert_eq!(own.notes[0], note);
    let cart = explain(&pool, "http://a.shop.test/cart").expect("a URL");
    assert_eq!(
        cart.notes,
        [
            "This holds for connections to `192.0.2.7`, the address of the Gateway.",
            "`n/web:80` has no pod that takes requests: it answers 503."
        ]
    );
    assert_eq!(explain(&pool, "http://other.test/").expect("a URL").verdict, Verdict::NotFound);
}
