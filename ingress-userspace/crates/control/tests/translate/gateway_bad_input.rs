//! Bad objects of the Gateway API beside good ones: each gets the condition that the specification names, and the good ones
//! keep their rules and statuses.

use crate::case::{Translated, translated};

/// Objects of the namespace `good`. Those of `bad` are younger.
const GOOD: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: xdp}\n\
    spec: {controllerName: xdp-ingress.io/gateway-controller}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n\
    metadata: {namespace: good, name: g, creationTimestamp: 2026-01-01T00:00:00Z}\n\
    spec: {gatewayClassName: xdp, listeners: [\
    {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}, \
    {name: named, port: 81, protocol: HTTP, hostname: good.test}]}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
    metadata: {namespace: good, name: r, creationTimestamp: 2026-01-01T00:00:00Z}\n\
    spec: {parentRefs: [{name: g}], hostnames: [good.test], rules: [\
    {matches: [{path: {value: /}}, {path: {value: /a}, method: POST}], backendRefs: [{name: web, port: 80}]}]}\n---\n\
    apiVersion: v1\nkind: Secret\nmetadata: {namespace: good, name: cert}\ntype: kubernetes.io/tls\n---\n\
    apiVersion: v1\nkind: Service\nmetadata: {namespace: good, name: web}\nspec: {ports: [{port: 80}]}\n---\n\
    apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
    metadata: {namespace: good, name: web, labels: {kubernetes.io/service-name: web}}\n\
    addressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [10.0.0.1]}]\n---\n\
    apiVersion: v1\nkind: Service\nmetadata: {namespace: bad, name: web}\nspec: {ports: [{port: 80}]}\n---\n\
    apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
    metadata: {namespace: bad, name: web, labels: {kubernetes.io/service-name: web}}\n\
    addressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [10.0.0.2]}]\n---\n\
    apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {namespace: good, name: i}\n\
    spec: {rules: [{host: ingress.test, http: {paths: [\
    {path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}\n";

/// An HTTPRoute `bad/r` at the good Gateway with this rest of its `spec`.
fn route(rest: &str) -> String {
    object("HTTPRoute", "r", &format!("{{parentRefs: [{{namespace: good, name: g, sectionName: http}}], {rest}}}"))
}

/// A Gateway `bad/g` with these listeners.
fn gateway(listeners: &str) -> String {
    object("Gateway", "g", &format!("{{gatewayClassName: xdp, listeners: [{listeners}]}}"))
}

fn object(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\n\
         metadata: {{namespace: bad, name: {name}, creationTimestamp: 2026-01-02T00:00:00Z}}\nspec: {spec}\n"
    )
}

/// Returns the statuses by object: the first line is kind and name.
fn by_object(statuses: &str) -> Vec<(&str, String)> {
    let mut all: Vec<(&str, String)> = Vec::new();
    for line in statuses.lines() {
        match all.last_mut() {
            Some((_, text)) if line.starts_with(' ') => *text += &format!("{}\n", line.trim()),
            _ => all.push((line, String::new())),
        }
    }
    all
}

/// Removes the numbers of routes: an accepted route counts, also a bad one.
fn without_counts(text: &str) -> String {
    let line = |line: &str| line.split(" routes ").next().unwrap_or_default().to_owned() + "\n";
    text.lines().map(line).collect()
}

/// Adds an object to the good ones. Demands that its status has these words and its rules are `rules`, and that nothing
/// changes for the good ones.
fn check(bad: &str, words: &[&str], rules: &[&str]) {
    let (alone, both) = (translated("in.yaml", GOOD), translated("in.yaml", &format!("{GOOD}{bad}")));
    let Translated { table, statuses, .. } = &both;
    let is_bad = |line: &&str| line.contains("bad/") || line.contains("bad.test");
    let (of_bad, of_good): (Vec<&str>, Vec<&str>) = table.lines().partition(is_bad);
    assert_eq!(of_good, alone.table.lines().collect::<Vec<_>>(), "{bad}");
    let found: Vec<&str> = of_bad.into_iter().filter_map(|line| line.split("->").nth(1)).map(str::trim).collect();
    let found: Vec<&str> = found.into_iter().filter(|rule| rule.contains('#')).collect();
    assert_eq!(found, rules, "{table}\n{bad}");
    let (before, after) = (by_object(&alone.statuses), by_object(statuses));
    let (of_bad, of_good): (Vec<_>, Vec<_>) = after.into_iter().partition(|(id, _)| id.contains(" bad/"));
    let bare = |all: Vec<(&str, String)>| -> Vec<_> {
        all.into_iter().map(|(id, text)| (id.to_owned(), without_counts(&text))).collect()
    };
    assert_eq!(bare(of_good), bare(before), "{bad}");
    let text: String = of_bad.into_iter().map(|(_, text)| text).collect();
    for word in words {
        assert!(text.contains(word), "`{word}` is missing:\n{text}\n{bad}");
    }
    assert!(!words.is_empty() || text.is_empty(), "{text}\n{bad}");
}

/// Demands that the owner of `bad/r` alone is told of a conflict with the good route, which no condition says.
fn tells_conflict(bad: &str) {
    let Translated { outcomes, .. } = translated("in.yaml", &format!("{GOOD}{bad}"));
    let told: Vec<&str> = outcomes.lines().filter(|line| line.contains("RouteConflict")).collect();
    let [told] = *told else { panic!("one conflict: {told:?}\n{bad}") };
    assert!(told.contains("HTTPRoute bad/r ") && told.contains("the older HTTPRoute `good/r`"), "{told}\n{bad}");
}

const SERVED: &str = "bad/web:80  # bad/r";
const REFUSED: &str = "refuse: invalid reference to a backend  # bad/r";

#[test]
fn unknown_fields_are_ignored() {
    let good = "backendRefs: [{name: web, port: 80, colour: red}]";
    let text = format!("hostnames: [bad.test], colour: red, rules: [{{{good}, colour: {{a: [1]}}}}]");
    check(&route(&text), &["Accepted=True", "ResolvedRefs=True"], &[SERVED]);
    let listener = "{name: l, port: 82, protocol: HTTP, colour: red, allowedRoutes: {colour: red}}";
    check(&gateway(listener), &["Accepted=True Accepted", "Programmed=True"], &[]);
}

#[test]
fn unknown_values_of_a_route_refuse_that_route() {
    for rule in [
        "matches: [{path: {type: Glob, value: /}}]",
        "matches: [{headers: [{type: Semver, name: a, value: b}]}]",
        "matches: [{queryParams: [{type: Semver, name: a, value: b}]}]",
        "filters: [{type: Teleport}]",
        "filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceNothing}}}]",
        "filters: [{type: RequestRedirect, requestRedirect: {scheme: gopher}}]",
        "timeouts: {request: soon}",
    ] {
        let text = format!("hostnames: [bad.test], rules: [{{{rule}, backendRefs: [{{name: web, port: 80}}]}}]");
        check(&route(&text), &["Accepted=False UnsupportedValue"], &[]);
    }
    let kind = "hostnames: [bad.test], rules: [{backendRefs: [{group: a.test, kind: Fleet, name: web, port: 80}]}]";
    check(&route(kind), &["Accepted=True", "ResolvedRefs=False InvalidKind"], &[REFUSED]);
    // A parent of another kind belongs to another controller.
    let parent =
        "{parentRefs: [{group: a.test, kind: Fleet, name: g}], rules: [{backendRefs: [{name: web, port: 80}]}]}";
    check(&object("HTTPRoute", "r", parent), &[], &[]);
}

#[test]
fn unknown_values_of_a_listener_refuse_that_listener() {
    let other = "{name: other, port: 83, protocol: HTTP}";
    for (listener, word) in [
        ("{name: l, port: 82, protocol: acme.test/quic}", "Accepted=False UnsupportedProtocol"),
        ("{name: l, port: 82, protocol: HTTPS, tls: {mode: Half}}", "Accepted=False UnsupportedValue"),
    ] {
        check(&gateway(&format!("{listener}, {other}")), &[word, "Accepted=True ListenersNotValid"], &[]);
    }
    let listener = "{name: l, port: 82, protocol: HTTP, allowedRoutes: {kinds: [{group: a.test, kind: Fleet}]}}";
    check(&gateway(&format!("{listener}, {other}")), &["ResolvedRefs=False InvalidRouteKinds"], &[]);
    // Routes of no namespace are allowed by a value that is not known.
    let listener = "{name: l, port: 82, protocol: HTTP, allowedRoutes: {namespaces: {from: Friends}}}";
    let own = "{parentRefs: [{name: g}], rules: [{backendRefs: [{name: web, port: 80}]}]}";
    let both = gateway(listener) + &object("HTTPRoute", "r", own);
    check(&both, &["Accepted=False NotAllowedByListeners"], &[]);
}

#[test]
fn references_without_a_grant_are_not_followed() {
    let text = "hostnames: [bad.test], rules: [{backendRefs: [{namespace: good, name: web, port: 80}]}]";
    check(&route(text), &["Accepted=True", "ResolvedRefs=False RefNotPermitted"], &[REFUSED]);
    let mirror = "hostnames: [bad.test], rules: [{backendRefs: [{name: web, port: 80}], filters: [\
                  {type: RequestMirror, requestMirror: {backendRef: {namespace: good, name: web, port: 80}}}]}]";
    check(&route(mirror), &["ResolvedRefs=False RefNotPermitted"], &[SERVED]);
    let listener = "{name: l, port: 443, protocol: HTTPS, tls: {certificateRefs: [{namespace: good, name: cert}]}}";
    check(&gateway(listener), &["ResolvedRefs=False RefNotPermitted", "Programmed=False"], &[]);
    // A grant for another kind or another namespace is none.
    for from in ["kind: GRPCRoute, namespace: bad", "kind: HTTPRoute, namespace: other"] {
        let grant = format!(
            "---\napiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\n\
             metadata: {{namespace: good, name: g}}\n\
             spec: {{from: [{{group: gateway.networking.k8s.io, {from}}}], to: [{{group: '', kind: Service}}]}}\n"
        );
        check(&(grant + &route(text)), &["ResolvedRefs=False RefNotPermitted"], &[REFUSED]);
    }
}

#[test]
fn a_younger_listener_in_conflict_takes_nothing() {
    for (listener, word) in [
        ("{name: l, port: 80, protocol: HTTP}", "Conflicted=True HostnameConflict"),
        ("{name: l, port: 81, protocol: HTTP, hostname: good.test}", "Conflicted=True HostnameConflict"),
        ("{name: l, port: 81, protocol: TCP}", "Conflicted=True ProtocolConflict"),
        ("{name: l, port: 81, protocol: HTTPS, hostname: bad.test}", "Conflicted=True ProtocolConflict"),
    ] {
        let own = "{parentRefs: [{name: g}], rules: [{backendRefs: [{name: web, port: 80}]}]}";
        let text = gateway(listener) + &object("HTTPRoute", "r", own);
        check(&text, &[word, "Programmed=False"], &[]);
    }
}

#[test]
fn a_route_in_the_shadow_of_an_older_one_takes_nothing() {
    let backends = "backendRefs: [{name: web, port: 80}]";
    let accepted = ["Accepted=True", "ResolvedRefs=True"];
    // Alike in host, path and conditions; also in another spelling of the path.
    for matches in ["{path: {value: /}}", "{path: {value: /a}, method: POST}", "{path: {value: /a/}, method: POST}"] {
        let text = format!("hostnames: [good.test], rules: [{{matches: [{matches}], {backends}}}]");
        check(&route(&text), &accepted, &[]);
        tells_conflict(&route(&text));
    }
    // One match in the shadow leaves the others of the route.
    let text = format!(
        "hostnames: [good.test], rules: [{{matches: [{{path: {{value: /}}}}, {{path: {{value: /b}}}}], {backends}}}]"
    );
    check(&route(&text), &accepted, &[SERVED]);
    tells_conflict(&route(&text));
    // The other kind of routes for the same hostname yields as a whole.
    let parent = "parentRefs: [{namespace: good, name: g, sectionName: http}]";
    let text = format!("{{{parent}, hostnames: [good.test], rules: [{{{backends}}}]}}");
    check(&object("GRPCRoute", "r", &text), &["Accepted=False HostnameConflict"], &[]);
}
